//! The programs on a ParallelCluster head node: its configuration files, its heartbeat, its log and events, and what is left to its own
//! clustermgtd.

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use slurm_ec2_testkit::dynamodb::{self, Table};
use slurm_ec2_testkit::ec2::{Behaviour, Capacity, InstanceChange, Rule, Seed, State};

use crate::site::{Ran, Site, finished};

/// What a test waits for must come; this is only the end of a test that fails.
const PATIENCE: Duration = Duration::from_secs(60);

const STALE: &str = "2020-01-01 00:00:00.000000+0000";
const RESUME_FAILED: &str = "Failure when resuming nodes - Check the slurm_resume log for EC2 error codes: ";

/// A head node of the cluster `orchard` with the queue `apple` and its compute resource `core`.
struct Head {
    site: Site,
}

impl Head {
    /// Launches only, as with `update_node_address = false`; nothing but EC2 and scontrol is there.
    fn new(behaviour: Behaviour) -> Self {
        let head = Self { site: Site::new(behaviour) };
        fs::remove_file(head.site.path("slurm-ec2.toml")).unwrap();
        let root = head.site.dir.path().display();
        head.site.write(
            "parallelcluster_slurm_resume.conf",
            &format!(
                "[slurm_resume]\ncluster_name = orchard\nregion = eu-west-1\nproxy = NONE\n\
                 dynamodb_table = parallelcluster-slurm-orchard\nhosted_zone =\ndns_domain =\nuse_private_hostname = false\n\
                 head_node_private_ip = 10.40.0.17\nhead_node_hostname = ip-10-40-0-17.eu-west-1.compute.internal\n\
                 clustermgtd_heartbeat_file_path = {root}/clustermgtd_heartbeat\ninstance_id = i-0a11e57000c0ffee1\n\
                 scaling_strategy = best-effort\nupdate_node_address = false\nfleet_config_file = {root}/fleet-config.json\n\
                 run_instances_overrides = {root}/run_instances_overrides.json\n\
                 create_fleet_overrides = {root}/create_fleet_overrides.json\n\
                 [slurm_ec2]\nstate_dir = {root}/state\nlog_dir = {root}/log\nendpoint_url = {}\nrequest_bucket = false\n",
                head.site.ec2.url()
            ),
        );
        head.site.write(
            "parallelcluster_slurm_suspend.conf",
            &format!("[slurm_suspend]\nclustermgtd_heartbeat_file_path = {root}/clustermgtd_heartbeat\n"),
        );
        let core = json!({"Api": "run-instances", "CapacityType": "on-demand", "Instances": [{"InstanceType": "c5.large"}]});
        head.site.write("fleet-config.json", &json!({"apple": {"core": core}}).to_string());
        head.alive();
        head
    }

    /// clustermgtd has just been here.
    fn alive(&self) {
        let now = Command::new("date").args(["-u", "+%Y-%m-%d %H:%M:%S.%6N+0000"]).output().unwrap();
        self.heartbeat(String::from_utf8(now.stdout).unwrap().trim());
    }

    fn heartbeat(&self, text: &str) {
        self.site.write("clustermgtd_heartbeat", text);
    }

    /// As sudo starts it for the wrapper.
    fn command(&self, program: &str, args: &[&str]) -> Command {
        let conf = if program == "slurm_resume" { "resume" } else { "suspend" };
        let mut command = self.site.command(program, args);
        command
            .env_remove("SLURM_EC2_CONFIG")
            .env("CONFIG_FILE", self.site.path(&format!("parallelcluster_slurm_{conf}.conf")))
            .env("SLURM_BINARIES_DIR", self.site.path("bin"))
            .env("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
            .env("AWS_SECRET_ACCESS_KEY", "secret");
        command
    }

    fn run(&self, program: &str, args: &[&str]) -> Ran {
        finished(self.command(program, args).output().unwrap())
    }

    fn log(&self, program: &str) -> String {
        self.site.log(program)
    }

    fn events(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.site.path("log/slurm_resume.events")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Up, as Slurm's resume had it.
    fn up(behaviour: Behaviour, nodes: &str) -> Self {
        let head = Self::new(behaviour);
        assert_eq!(head.run("slurm_resume", &[nodes]).code, Some(0), "{}", head.log("slurm_resume"));
        head
    }

    /// What Slurm shows of nodes: name, state, address, instance.
    fn shows(&self, nodes: &[(&str, &str, &str, &str)]) {
        let record = |(name, state, addr, id): &(&str, &str, &str, &str)| {
            format!(
                "NodeName={name} CoresPerSocket=1 \n   NodeAddr={addr} NodeHostName={name} \n   State={state} ThreadsPerCore=1 \n   \
                 InstanceId={id} InstanceType=(null)\n\n"
            )
        };
        self.site.scontrol("nodes", &nodes.iter().map(record).collect::<String>());
    }
}

fn no_capacity() -> Behaviour {
    Behaviour::with_capacity(vec![Capacity::limit("*", "*", 0)])
}

/// Behind the time: ` - 4711 - [slurm_resume:run] - INFO - ended …`
fn columns(line: &str) -> Vec<&str> {
    line.splitn(5, " - ").collect()
}

#[test]
fn b73_r29_a_stale_heartbeat_launches_nothing() {
    for (heartbeat, word) in [(Some(STALE), "old"), (Some(""), "instead of a time"), (None, "No such file")] {
        let head = Head::new(Behaviour::default());
        match heartbeat {
            Some(text) => head.heartbeat(text),
            None => fs::remove_file(head.site.path("clustermgtd_heartbeat")).unwrap(),
        }
        let ran = head.run("slurm_resume", &["apple-dy-core-[1-2]"]);
        assert_eq!(ran.code, Some(75), "{}", ran.stderr);
        assert!(head.site.ec2.requests().is_empty());
        let updates = head.site.updates();
        let down = "update nodename=apple-dy-core-1,apple-dy-core-2 state=down reason=Failure when resuming nodes";
        assert_eq!(updates, [down]);
        let log = head.log("slurm_resume");
        let line = log.lines().find(|line| line.contains(" - ERROR - ")).unwrap();
        assert!(line.contains("clustermgtd_heartbeat") && line.contains(word), "{line}");
        assert!(ran.stderr.contains("clustermgtd_heartbeat"), "{}", ran.stderr);
    }
}

#[test]
fn r29_nodes_that_run_jobs_are_not_set_down() {
    let head = Head::new(Behaviour::default());
    head.heartbeat(STALE);
    head.site.scontrol("state", "ALLOCATED+CLOUD\n");
    assert_eq!(head.run("slurm_resume", &["apple-dy-core-1"]).code, Some(75));
    assert!(head.site.updates().is_empty());
}

#[test]
fn s05_a_stale_heartbeat_costs_a_suspend_one_warning() {
    let head = Head::up(Behaviour::default(), "apple-dy-core-[1-2]");
    head.heartbeat(STALE);
    head.site.scontrol("state", "IDLE+CLOUD+POWERING_DOWN\n");
    assert_eq!(head.run("slurm_suspend", &["apple-dy-core-[1-2]"]).code, Some(0), "{}", head.log("slurm_suspend"));
    assert!(head.site.live().is_empty());
    let log = head.log("slurm_suspend");
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains(" - WARNING - ")).collect();
    assert_eq!(warnings.len(), 1, "{log}");
    assert!(warnings[0].contains("clustermgtd_heartbeat") && warnings[0].contains("terminating all the same"), "{log}");
    assert!(!log.contains(" - ERROR - "), "{log}");
}

#[test]
fn r20_r21_start_and_end_in_the_packages_form() {
    let head = Head::new(Behaviour::default());
    head.site.write(
        "jobs.json",
        r#"{"all_nodes_resume":"apple-dy-core-[1-2]","jobs":[{"job_id":17,"nodes_resume":"apple-dy-core-[1-2]"}]}"#,
    );
    let child = head
        .command("slurm_resume", &["apple-dy-core-[1-2]"])
        .env("SLURM_RESUME_FILE", head.site.path("jobs.json"))
        .spawn()
        .unwrap();
    let pid = child.id().to_string();
    assert_eq!(finished(child.wait_with_output().unwrap()).code, Some(0), "{}", head.log("slurm_resume"));
    let log = head.log("slurm_resume");
    for line in log.lines() {
        let columns = columns(line);
        assert_eq!(columns.len(), 5, "{line}");
        let (time, rest) = (columns[0].as_bytes(), &columns[1..]);
        assert!(time.len() == 23 && time[4] == b'-' && time[10] == b' ' && time[19] == b',', "{line}");
        assert_eq!(rest[0], pid, "{line}");
        assert!(rest[1].starts_with("[slurm_resume:") && rest[1].ends_with(']'), "{line}");
        assert!(["DEBUG", "INFO", "WARNING", "ERROR"].contains(&rest[2]), "{line}");
        assert!(rest[3].len() > 10, "{line}");
    }
    let first = log.lines().find(|line| line.contains("started")).unwrap();
    assert!(first.contains("JobID 17 - started") && first.contains("apple-dy-core-[1-2]"), "{first}");
    let last = log.lines().last().unwrap();
    for word in ["ended", "launched=2", "failed=0", "total_ms="] {
        assert!(last.contains(word), "{word}: {last}");
    }
    assert_eq!(head.run("slurm_suspend", &["apple-dy-core-[1-2]"]).code, Some(0));
    let log = head.log("slurm_suspend");
    assert!(log.lines().all(|line| line[23..].starts_with(" - [slurm_suspend:")), "{log}");
}

#[test]
fn r20_a_configuration_with_mistakes_is_told_in_the_log_and_to_slurm() {
    let head = Head::new(Behaviour::default());
    let conf = fs::read_to_string(head.site.path("parallelcluster_slurm_resume.conf")).unwrap();
    head.site.write(
        "parallelcluster_slurm_resume.conf",
        &conf.replace("launch_max", "x").replace("proxy = NONE", "job_level_scaling = perhaps"),
    );
    fs::create_dir(head.site.path("log")).unwrap();
    let ran = head.run("slurm_resume", &["apple-dy-core-1"]);
    assert_eq!(ran.code, Some(78));
    assert!(head.site.ec2.requests().is_empty());
    let log = head.log("slurm_resume");
    assert!(
        log.contains(" - ERROR - ") && log.contains("job_level_scaling") && ran.stderr.contains("job_level_scaling"),
        "{log}"
    );
    let updates = head.site.updates();
    assert_eq!(updates.len(), 1, "{updates:?}");
    assert!(updates[0].contains("state=down reason=(Code:ConfigurationError)Failure when resuming nodes"), "{updates:?}");
}

#[test]
fn the_time_in_the_log_is_local() {
    let head = Head::new(Behaviour::default());
    let hours = |zone: &str| {
        let _ = fs::remove_file(head.site.path("log/slurm_suspend.log"));
        let ran = head.command("slurm_suspend", &["apple-dy-core-9"]).env("TZ", zone).output().unwrap();
        assert_eq!(finished(ran).code, Some(0));
        let line = head.log("slurm_suspend").lines().next().unwrap().to_owned();
        line[11..13].parse::<i32>().unwrap()
    };
    // Between the two runs an hour may strike.
    let apart = (hours("UTC-5") - hours("UTC")).rem_euclid(24);
    assert!([4, 5].contains(&apart), "{apart}");
}

#[test]
fn b74_r22_events_and_reasons_of_a_failed_launch() {
    let head = Head::new(no_capacity());
    assert_eq!(head.run("slurm_resume", &["apple-dy-core-[1-3],apple-st-core-1"]).code, Some(1));
    let events = head.events();
    let seen: Vec<(&str, u64)> =
        events.iter().map(|event| (event["message"].as_str().unwrap(), event["detail"]["count"].as_u64().unwrap())).collect();
    assert_eq!(
        seen,
        [
            ("Number of dynamic nodes that failed to launch a backing instance", 3),
            ("Number of static nodes that failed to launch a backing instance", 1)
        ]
    );
    assert_eq!(events[0]["detail"]["failure-type"], "ice-failures");
    assert_eq!((&events[0]["cluster-name"], &events[0]["instance-id"]), (&json!("orchard"), &json!("i-0a11e57000c0ffee1")));
    // Down, never power_down_force: clustermgtd does the rest, and keeps the back-off.
    let updates = head.site.updates();
    assert!(!updates.is_empty());
    for update in &updates {
        assert!(update.contains("state=down"), "{update}");
        assert!(update.contains(&format!("reason=(Code:InsufficientInstanceCapacity){RESUME_FAILED}")), "{update}");
        assert!(!update.contains("power_down") && !update.contains("nodeaddr"), "{update}");
    }
    let names = fs::read_dir(head.site.path("state")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(names.into_iter().all(|name| !name.contains("backoff")), "no back-off is kept");
    let log = head.log("slurm_resume");
    assert!(log.contains("launch failed"), "{log}");
}

#[test]
fn b72_names_of_another_form_and_unknown_ones_are_told_apart() {
    let head = Head::new(Behaviour::default());
    assert_eq!(head.run("slurm_resume", &["apple-dy-core-1,pear-dy-core-1,gpu7"]).code, Some(1));
    assert_eq!(head.site.live().len(), 1, "the others go on");
    let updates = head.site.updates().join("\n");
    assert!(
        updates.contains(&format!("nodename=gpu7 state=down reason=(Code:InvalidNodenameError){RESUME_FAILED}")),
        "{updates}"
    );
    assert!(updates.contains("nodename=pear-dy-core-1 state=down reason=(Code:NodeNotConfigured)"), "{updates}");
    assert!(updates.contains("queue pear"), "{updates}");
    assert_eq!(head.events()[0]["detail"]["failure-type"], "other-failures");
}

#[test]
fn b77_a_rotated_log_is_made_anew() {
    let head = Head::new(no_capacity());
    head.run("slurm_resume", &["apple-dy-core-1"]);
    for name in ["slurm_resume.log", "slurm_resume.events"] {
        fs::rename(head.site.path("log").join(name), head.site.path("log").join(format!("{name}.1"))).unwrap();
    }
    let before = fs::read_to_string(head.site.path("log/slurm_resume.log.1")).unwrap();
    head.run("slurm_resume", &["apple-dy-core-2"]);
    assert_eq!(fs::read_to_string(head.site.path("log/slurm_resume.log.1")).unwrap(), before);
    assert!(head.log("slurm_resume").contains("apple-dy-core-2"));
    assert_eq!(head.events().len(), 1);
}

#[test]
fn r17_no_temporary_file_is_left() {
    let head = Head::new(Behaviour::default());
    let temporary = head.site.path("tmp");
    fs::create_dir(&temporary).unwrap();
    let jobs = r#"{"all_nodes_resume":"apple-dy-core-1","jobs":[{"job_id":1,"nodes_resume":"apple-dy-core-1"}]}"#;
    head.site.write("jobs.json", jobs);
    let resume = |node: usize| {
        let mut command = head.command("slurm_resume", &[&format!("apple-dy-core-{node}")]);
        command.env("TMPDIR", &temporary).env("SLURM_RESUME_FILE", head.site.path("jobs.json"));
        command
    };
    let files = || {
        let count = |dir: &std::path::Path| fs::read_dir(dir).unwrap().count();
        (count(&temporary), count(head.site.dir.path()), count(&head.site.path("state")))
    };
    assert_eq!(finished(resume(1).output().unwrap()).code, Some(0));
    let before = files();
    for node in 2..20 {
        // Every other one fails.
        if node % 2 == 0 {
            head.site.ec2.add_rules([Rule::on("RunInstances").times(1).error("VcpuLimitExceeded", 400)]);
        }
        assert_eq!(finished(resume(node).output().unwrap()).code, Some(if node % 2 == 0 { 1 } else { 0 }));
    }
    head.site.ec2.add_rules([Rule::on("RunInstances").hold("launch")]);
    let mut child = resume(20).spawn().unwrap();
    assert!(head.site.ec2.wait_held("launch", PATIENCE));
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    head.site.ec2.release("launch");
    child.wait().unwrap();
    assert_eq!(files(), before);
    assert_eq!(fs::read_to_string(head.site.path("jobs.json")).unwrap(), jobs);
}

#[test]
fn r18_two_at_once_with_files_of_their_own() {
    let head = Head::new(Behaviour::default());
    let children: Vec<_> = [(1, "apple-dy-core-[1-4]"), (2, "apple-dy-core-[5-9]")]
        .map(|(job, nodes)| {
            let file = head.site.path(&format!("resume-{job}.json"));
            let jobs = json!([{"job_id": job, "nodes_resume": nodes, "nodes_alloc": nodes}]);
            fs::write(&file, json!({"all_nodes_resume": nodes, "jobs": jobs}).to_string()).unwrap();
            head.command("slurm_resume", &[nodes]).env("SLURM_RESUME_FILE", file).spawn().unwrap()
        })
        .into_iter()
        .collect();
    for child in children {
        assert_eq!(finished(child.wait_with_output().unwrap()).code, Some(0), "{}", head.log("slurm_resume"));
    }
    let nodes: Vec<String> = head.site.running().into_iter().map(|(node, _)| node).collect();
    assert_eq!(nodes, (1..=9).map(|n| format!("apple-dy-core-{n}")).collect::<Vec<_>>());
    assert_eq!(head.site.live().len(), 9);
    head.site.assert_settled();
}

#[test]
fn suspend_is_resume_fail_for_nodes_that_timed_out() {
    for state in ["DOWN+CLOUD+POWERED_DOWN", "DOWN+CLOUD+NOT_RESPONDING+POWERED_DOWN"] {
        let head = Head::up(Behaviour::default(), "apple-dy-core-[1-3]");
        head.site.scontrol("state", &format!("{state}\n"));
        let before = head.site.updates().len();
        assert_eq!(head.run("slurm_suspend", &["apple-dy-core-[1-2]"]).code, Some(0), "{}", head.log("slurm_suspend"));
        assert_eq!(head.site.live().len(), 1);
        assert_eq!(head.site.updates().len(), before, "state and address are clustermgtd's: it counts them");
        let log = head.log("slurm_suspend");
        assert!(log.contains("did not register before ResumeTimeout") && log.contains("cloud-init: finished"), "{log}");
        let failures: Value = serde_json::from_slice(&fs::read(head.site.path("state/failures.json")).unwrap()).unwrap();
        let counts: Vec<&Value> = failures["groups"].as_object().unwrap().values().map(|group| &group["count"]).collect();
        assert_eq!(counts, [&json!(2)]);
    }
}

#[test]
fn resume_fail_leaves_the_nodes_to_clustermgtd_too() {
    let head = Head::up(Behaviour::default(), "apple-dy-core-1");
    head.site.scontrol("state", "DOWN+CLOUD+POWERED_DOWN\n");
    let before = head.site.updates().len();
    assert_eq!(head.run("slurm_resume_fail", &["apple-dy-core-1"]).code, Some(0), "{}", head.log("slurm_resume_fail"));
    assert!(head.site.live().is_empty());
    assert_eq!(head.site.updates().len(), before);
}

#[test]
fn b75_a_plain_suspend_terminates_and_tells_slurm_nothing() {
    let head = Head::up(Behaviour::default(), "apple-dy-core-[1-2]");
    head.site.scontrol("state", "IDLE+CLOUD+POWERING_DOWN\n");
    let before = head.site.updates().len();
    assert_eq!(head.run("slurm_suspend", &["apple-dy-core-[1-2]"]).code, Some(0));
    assert!(head.site.live().is_empty());
    assert_eq!(head.site.updates().len(), before);
    assert!(!head.site.path("state/failures.json").exists());
    assert_eq!(head.site.ec2.count("GetConsoleOutput"), 0);
}

#[test]
fn a_node_that_is_up_after_all_keeps_its_instance() {
    let head = Head::up(Behaviour::default(), "apple-dy-core-[1-2]");
    let states = [("apple-dy-core-1", "ALLOCATED+CLOUD"), ("apple-dy-core-2", "DOWN+CLOUD+POWERED_DOWN")];
    head.shows(&states.map(|(node, state)| (node, state, node, "(null)")));
    assert_eq!(head.run("slurm_suspend", &["apple-dy-core-[1-2]"]).code, Some(0));
    let running = head.site.running();
    assert_eq!(running.len(), 1);
    assert_eq!((running[0].0.as_str(), head.site.live().len()), ("apple-dy-core-1", 1));
    assert!(head.log("slurm_suspend").contains("up after all"));
}

/// An instance of the package's own launch.
fn seed(head: &Head, cluster: &str, node_type: &str) -> (String, String) {
    let tags = [("parallelcluster:cluster-name", cluster), ("parallelcluster:node-type", node_type)];
    let tags = tags.map(|(key, value)| (key.to_owned(), value.to_owned())).into_iter().collect();
    let id = head.site.ec2.seed(&Seed { tags, age_ms: 3_600_000, ..Seed::default() }).remove(0);
    let ip = head.site.ec2.instances().into_iter().find(|instance| instance.id == id).unwrap().private_ip.to_string();
    (id, ip)
}

#[test]
fn b76_what_the_package_launched_is_found_by_slurms_word() {
    let head = Head::new(Behaviour::default());
    let (by_id, _) = seed(&head, "orchard", "Compute");
    let (by_address, ip) = seed(&head, "orchard", "Compute");
    let (others, other_ip) = seed(&head, "vineyard", "Compute");
    let (head_node, head_ip) = seed(&head, "orchard", "HeadNode");
    let state = "IDLE+CLOUD+POWERING_DOWN";
    head.shows(&[
        ("apple-st-core-1", state, "apple-st-core-1", &by_id),
        ("apple-st-core-2", state, &ip, "(null)"),
        ("apple-st-core-3", state, &other_ip, &others),
        ("apple-st-core-4", state, &head_ip, &head_node),
    ]);
    assert_eq!(head.run("slurm_suspend", &["apple-st-core-[1-4]"]).code, Some(0), "{}", head.log("slurm_suspend"));
    let live = head.site.live();
    assert!(!live.contains(&by_id) && !live.contains(&by_address), "{}", head.log("slurm_suspend"));
    assert!(live.contains(&others) && live.contains(&head_node));
}

#[test]
fn an_address_that_another_node_has_by_now_is_not_followed() {
    let head = Head::new(Behaviour::default());
    let (id, ip) = seed(&head, "orchard", "Compute");
    head.shows(&[
        ("apple-st-core-1", "IDLE+CLOUD+POWERING_DOWN", &ip, "(null)"),
        ("apple-st-core-2", "ALLOCATED+CLOUD", &ip, &id),
    ]);
    assert_eq!(head.run("slurm_suspend", &["apple-st-core-1"]).code, Some(0), "{}", head.log("slurm_suspend"));
    assert!(head.site.live().contains(&id));
    assert!(head.log("slurm_suspend").contains("it is node apple-st-core-2's"), "{}", head.log("slurm_suspend"));
}

#[test]
fn the_node_table_knows_what_slurm_forgot() {
    const TABLE: &str = "parallelcluster-slurm-orchard";
    let head = Head::new(Behaviour::default());
    let table = Table::new(TABLE, "Id").only(&["PutItem", "BatchWriteItem", "GetItem", "BatchGetItem"]);
    let tables = dynamodb::Endpoint::start(dynamodb::Behaviour { tables: vec![table], ..dynamodb::Behaviour::default() });
    let (id, _) = seed(&head, "orchard", "Compute");
    let (others, _) = seed(&head, "vineyard", "Compute");
    for (node, id) in [("apple-st-core-1", &id), ("apple-st-core-2", &others)] {
        let item = json!({"Id": {"S": node}, "InstanceId": {"S": id}, "HeadNodePrivateIp": {"S": "10.40.0.17"},
            "HeadNodeHostname": {"S": "head"}});
        tables.put(TABLE, serde_json::from_value(item).unwrap());
    }
    let root = head.site.dir.path().display();
    head.site.write(
        "slurm-ec2.toml",
        &format!(
            "cluster = \"orchard\"\nregion = \"eu-west-1\"\n[aws]\nendpoint_url = \"{}\"\ndynamodb_endpoint_url = \"{}\"\n\
             credentials_file = \"{root}/credentials\"\n[slurm]\nbin_dir = \"{root}/bin\"\n[state]\ndir = \"{root}/state\"\n\
             [log]\ndir = \"{root}/log\"\n[parallelcluster]\nheartbeat = \"{root}/clustermgtd_heartbeat\"\n\
             [node_table]\ntable = \"{TABLE}\"\nhead_node_private_ip = \"10.40.0.17\"\nhead_node_hostname = \"head\"\n\
             [[group]]\nname = \"apple/core\"\nqueue = \"apple\"\ncompute_resource = \"core\"\n\
             launch_template = {{ name = \"orchard-apple-core\", version = \"1\" }}\n",
            head.site.ec2.url(),
            tables.url()
        ),
    );
    let state = "IDLE+CLOUD+POWERING_DOWN";
    let nodes = ["apple-st-core-1", "apple-st-core-2"].map(|node| (node, state, node, "(null)"));
    head.shows(&nodes);
    let ran = head.site.run("slurm_suspend", &["apple-st-core-[1-2]"]);
    assert_eq!(ran.code, Some(0), "{} {}", ran.stderr, head.log("slurm_suspend"));
    let live = head.site.live();
    assert!(!live.contains(&id) && live.contains(&others), "{}", head.log("slurm_suspend"));
}

#[test]
fn clustermgtd_may_have_been_faster() {
    // Gone, but still shown; gone and forgotten.
    for behaviour in [Behaviour::default(), Behaviour { forget_terminated_ms: Some(0), ..Behaviour::default() }] {
        let forgotten = behaviour.forget_terminated_ms.is_some();
        let head = Head::up(behaviour, "apple-dy-core-[1-3]");
        head.site.scontrol("state", "IDLE+CLOUD+POWERING_DOWN\n");
        let launched = head.site.mapping()["nodes"]["apple-dy-core-1"]["launched"].as_str().unwrap().to_owned();
        for instance in head.site.ec2.live_instances().into_iter().take(2) {
            let gone = InstanceChange { state: Some(State::Terminated), ..InstanceChange::default() };
            head.site.ec2.change(&instance.id, gone);
        }
        if forgotten {
            // Old enough that an unknown id is no new one.
            let mapping = fs::read_to_string(head.site.path("state/mapping.json")).unwrap();
            head.site.write("state/mapping.json", &mapping.replace(&launched, "2020-01-01T00:00:00Z"));
        }
        let ran = head.run("slurm_suspend", &["apple-dy-core-[1-3]"]);
        assert_eq!(ran.code, Some(0), "{}", head.log("slurm_suspend"));
        let log = head.log("slurm_suspend");
        assert!(!log.contains(" - ERROR - ") && !log.contains(" - WARNING - "), "{log}");
        assert!(head.site.live().is_empty() && head.site.condemned().is_empty());
        assert!(head.site.ec2.count("TerminateInstances") <= 3, "no storm: {}", head.site.ec2.count("TerminateInstances"));
    }
}

#[test]
fn scontrol_is_run_through_sudo_where_that_is_configured() {
    let site = Site::new(Behaviour::default());
    let stand_in = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bin/sudo");
    std::os::unix::fs::symlink(stand_in, site.path("bin/sudo")).unwrap();
    let toml = fs::read_to_string(site.path("slurm-ec2.toml")).unwrap();
    let sudo = format!("[slurm]\nsudo = \"{}\"\n", site.path("bin/sudo").display());
    site.write("slurm-ec2.toml", &toml.replace("[slurm]\n", &sudo));
    assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(0), "{}", site.log("slurm_resume"));
    let calls = fs::read_to_string(site.path("bin/sudo.log")).unwrap();
    let scontrol = site.path("bin/scontrol").display().to_string();
    assert!(calls.lines().all(|call| call.starts_with(&format!("-n {scontrol}"))), "{calls}");
    assert!(site.updates().iter().any(|update| update.contains("nodeaddr=")), "{calls}");

    site.write("bin/sudo.refuse", "sudo: a password is required\n");
    site.ec2.adjust(|behaviour| behaviour.capacity = vec![Capacity::limit("*", "*", 2)]);
    assert_eq!(site.run("slurm_resume", &["c5-3"]).code, Some(75));
    let log = site.log("slurm_resume");
    assert!(log.contains(&format!("NOPASSWD: {scontrol}")), "{log}");
}
