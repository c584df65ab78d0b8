//! The programs on a ParallelCluster head node: its configuration files, its heartbeat, its log and events, and what is left to its own
//! clustermgtd.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use slurm_ec2_testkit::dynamodb::{self, Table};
use slurm_ec2_testkit::ec2::{Behaviour, Capacity, InstanceChange, Rule, Seed, State};

use crate::site::{Ran, Site, finished};

/// What a test waits for must come; this is only the end of a test that fails.
const PATIENCE: Duration = Duration::from_secs(120);

const TABLE: &str = "parallelcluster-slurm-orchard";
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

    /// With a TOML file instead of the package's, so that addresses are told; `more` is appended to its sections.
    fn toml(&self, aws: &str, more: &str) {
        let root = self.site.dir.path().display();
        self.site.write(
            "slurm-ec2.toml",
            &format!(
                "cluster = \"orchard\"\nregion = \"eu-west-1\"\n[aws]\nendpoint_url = \"{}\"\n{aws}\
                 credentials_file = \"{root}/credentials\"\n[slurm]\nbin_dir = \"{root}/bin\"\n[state]\ndir = \"{root}/state\"\n\
                 [log]\ndir = \"{root}/log\"\n[parallelcluster]\nheartbeat = \"{root}/clustermgtd_heartbeat\"\n{more}\
                 [[group]]\nname = \"apple/core\"\nqueue = \"apple\"\ncompute_resource = \"core\"\n\
                 launch_template = {{ name = \"orchard-apple-core\", version = \"1\" }}\n",
                self.site.ec2.url()
            ),
        );
    }

    /// The package's table of nodes, with its role, and a TOML file that names it.
    fn table(&self) -> dynamodb::Endpoint {
        let table = Table::new(TABLE, "Id").only(&["PutItem", "BatchWriteItem", "GetItem", "BatchGetItem"]);
        let tables = dynamodb::Endpoint::start(dynamodb::Behaviour { tables: vec![table], ..dynamodb::Behaviour::default() });
        self.toml(
            &format!("dynamodb_endpoint_url = \"{}\"\n", tables.url()),
            &format!("[node_table]\ntable = \"{TABLE}\"\nhead_node_private_ip = \"10.40.0.17\"\nhead_node_hostname = \"head\"\n"),
        );
        tables
    }

    /// The private address of an instance.
    fn ip(&self, id: &str) -> String {
        self.site.ec2.instances().into_iter().find(|instance| instance.id == id).unwrap().private_ip.to_string()
    }

    /// So short that what hangs is given up within seconds.
    fn hurry(&self) {
        self.site.write("slurm.conf", "ClusterName=orchard\nSlurmUser=root\nResumeTimeout=40\nSuspendTimeout=40\n");
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
fn b75_a_plain_suspend_takes_the_addresses_back_before_it_terminates() {
    // Whatever Slurm would do by itself, later.
    for version in ["22.05.8", "24.11.5", "25.11.6"] {
        let head = Head::up(Behaviour::default(), "apple-dy-core-[1-2]");
        head.site.scontrol("version", version);
        head.site.scontrol("state", "IDLE+CLOUD+POWERING_DOWN\n");
        let before = head.site.updates().len();
        head.site.ec2.add_rules([Rule::on("TerminateInstances").hold("gone")]);
        let child = head.command("slurm_suspend", &["apple-dy-core-[1-2]"]).spawn().unwrap();
        assert!(head.site.ec2.wait_held("gone", PATIENCE));
        let nodes = "apple-dy-core-1,apple-dy-core-2";
        let back = format!("update nodename={nodes} nodeaddr={nodes} nodehostname={nodes}");
        assert_eq!(head.site.updates()[before..], [back.as_str()], "{version}");
        head.site.ec2.release_all();
        assert_eq!(finished(child.wait_with_output().unwrap()).code, Some(0));
        assert!(head.site.live().is_empty());
        assert_eq!(head.site.updates().len(), before + 1, "state is clustermgtd's");
        assert!(!head.site.path("state/failures.json").exists());
        assert_eq!(head.site.ec2.count("GetConsoleOutput"), 0);
    }
}

/// Slurm 22.05 would forget with it why the node was drained, and that it was.
#[test]
fn b126_a_suspend_leaves_the_address_of_a_node_that_a_stop_drains_again() {
    let head = Head::up(Behaviour::default(), "apple-dy-core-[1-2]");
    let mapping = head.site.mapping();
    let record = |node: &str, reason: &str| {
        let address = mapping["nodes"][node]["private_ip"].as_str().unwrap();
        format!(
            "NodeName={node} CoresPerSocket=1\n   NodeAddr={address} NodeHostName={node}\n   State=IDLE+CLOUD+POWERING_DOWN\n   \
             Reason={reason} [root@2026-11-29T12:00:00]\n\n"
        )
    };
    let nodes =
        [record("apple-dy-core-1", "stopping cluster, was drained: bad disk"), record("apple-dy-core-2", "stopping cluster")];
    head.site.scontrol("nodes", &nodes.concat());
    let before = head.site.updates().len();
    assert_eq!(head.run("slurm_suspend", &["apple-dy-core-[1-2]"]).code, Some(0), "{}", head.log("slurm_suspend"));
    assert!(head.site.live().is_empty());
    let back = "update nodename=apple-dy-core-2 nodeaddr=apple-dy-core-2 nodehostname=apple-dy-core-2";
    assert_eq!(head.site.updates()[before..], [back]);
}

#[test]
fn a_slurmctld_that_does_not_answer_keeps_no_instance_on() {
    for (file, text) in [
        ("hang.update", ""),
        ("fail.update", "1\nslurm_update error: Unable to contact slurm controller (connect failure)\n"),
        ("refuse", "apple-dy-core-1\n"),
    ] {
        let head = Head::up(Behaviour::default(), "apple-dy-core-[1-2]");
        head.hurry();
        head.site.scontrol("state", "IDLE+CLOUD+POWERING_DOWN\n");
        head.site.scontrol(file, text);
        assert_eq!(head.run("slurm_suspend", &["apple-dy-core-[1-2]"]).code, Some(0), "{file}: {}", head.log("slurm_suspend"));
        assert!(head.site.live().is_empty(), "{file}");
        let log = head.log("slurm_suspend");
        assert!(log.contains(" - WARNING - ") && log.contains("back"), "{file}: {log}");
    }
}

#[test]
fn a_node_without_address_is_not_given_one() {
    let head = Head::new(Behaviour::default());
    head.site.scontrol("state", "IDLE+CLOUD+POWERING_DOWN\n");
    assert_eq!(head.run("slurm_suspend", &["apple-dy-core-[1-2]"]).code, Some(0));
    assert!(head.site.updates().is_empty(), "22.05 forgets the reason of a node that is told anything");
}

#[test]
fn a_newer_resume_keeps_its_address() {
    let node = "apple-dy-core-1";
    // It has asked before this suspend looked.
    let head = Head::up(Behaviour::default(), "apple-dy-core-[1-2]");
    let mut mapping = head.site.mapping();
    // Later than the suspend begins, and no later than a right clock may be ahead (B127).
    let requested = humantime::format_rfc3339_millis(SystemTime::now() + Duration::from_secs(100));
    mapping["nodes"][node]["requested"] = json!(requested.to_string());
    head.site.write("state/mapping.json", &mapping.to_string());
    head.site.scontrol("state", "IDLE+CLOUD+POWERED_DOWN\n");
    let before = head.site.updates().len();
    assert_eq!(head.run("slurm_suspend", &["apple-dy-core-[1-2]"]).code, Some(0), "{}", head.log("slurm_suspend"));
    let back = "update nodename=apple-dy-core-2 nodeaddr=apple-dy-core-2 nodehostname=apple-dy-core-2";
    assert_eq!(head.site.updates()[before..], [back]);
    assert_eq!(head.site.live().len(), 1);

    // It comes while slurmctld takes the address back: what it has told is told again.
    let head = Head::new(Behaviour::default());
    head.toml("", "");
    head.site.scontrol("version", "22.05.8");
    head.site.scontrol("applied", "");
    assert_eq!(head.site.run("slurm_resume", &[node]).code, Some(0), "{}", head.log("slurm_resume"));
    let old = head.site.live();
    head.site.scontrol("state", "IDLE+CLOUD+POWERED_DOWN\n");
    head.site.scontrol(&format!("hold.{}", head.site.updates().len() + 1), "");
    let held = head.site.path(&format!("bin/scontrol.held.{}", head.site.updates().len() + 1));
    let hold = head.site.path(&format!("bin/scontrol.hold.{}", head.site.updates().len() + 1));
    let suspend = head.site.spawn("slurm_suspend", &[node]);
    let end = Instant::now() + PATIENCE;
    while !held.exists() {
        assert!(Instant::now() < end, "{}", head.log("slurm_suspend"));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(head.site.run("slurm_resume", &[node]).code, Some(0), "{}", head.log("slurm_resume"));
    fs::remove_file(hold).unwrap();
    assert_eq!(finished(suspend.wait_with_output().unwrap()).code, Some(0), "{}", head.log("slurm_suspend"));
    let running = head.site.running();
    assert!(running.len() == 1 && !old.contains(&running[0].1), "{running:?}");
    assert_eq!(head.site.live().into_iter().collect::<Vec<_>>(), [running[0].1.clone()]);
    let applied = fs::read_to_string(head.site.path("bin/scontrol.applied")).unwrap();
    assert_eq!(applied.lines().last().unwrap(), format!("{node} nodeaddr={}", head.ip(&running[0].1)), "{applied}");
}

/// What the package makes of a node: by state, what stands behind it, and the name of its question.
fn truth_table() -> BTreeMap<(String, String), BTreeMap<String, bool>> {
    let text = include_str!("../data/parallelcluster/node-state-truth-table.csv");
    let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
    let names = lines.next().unwrap();
    lines
        .map(|line| {
            let answers = names.iter().zip(&line).skip(2).map(|(name, answer)| (name.clone(), answer == "1")).collect();
            ((line[0].clone(), line[1].clone()), answers)
        })
        .collect()
}

#[test]
fn what_is_left_of_a_node_is_what_clustermgtd_goes_by() {
    const NODE: &str = "apple-dy-core-1";
    let table = truth_table();
    let says = |state: &str, backing: &str, question: &str| table[&(state.to_owned(), backing.to_owned())][question];
    let mut seen = (0, 0);
    for (state, _) in table.keys().filter(|(_, backing)| backing == "address+instance") {
        let flags: Vec<&str> = state.split('+').collect();
        let is = |flag| flags.contains(&flag);
        let goes_down = is("POWERING_DOWN") || is("POWERED_DOWN") && !is("DOWN");
        if !goes_down && !is("POWERED_DOWN") {
            continue;
        }
        for program in ["slurm_suspend", "slurm_resume_fail"] {
            let head = Head::up(Behaviour::default(), NODE);
            let id = head.site.live().pop_first().unwrap();
            head.shows(&[(NODE, state, &head.ip(&id), &id)]);
            let before = head.site.updates().len();
            assert_eq!(head.run(program, &[NODE]).code, Some(0), "{state}: {}", head.log(program));
            assert!(head.site.live().is_empty(), "{state}");
            let left = match &head.site.updates()[before..] {
                [] => "address-without-instance",
                [update] if *update == format!("update nodename={NODE} nodeaddr={NODE} nodehostname={NODE}") => "no-address",
                other => panic!("{state}: {other:?}"),
            };
            if !goes_down {
                // As much of a failure as while its instance was there.
                assert_eq!(left, "address-without-instance", "{state}");
                let failure = |backing| says(state, backing, "dynamic_bootstrap_failure");
                assert_eq!(failure(left), failure("address+instance"), "{state}");
                assert!(failure(left) || state != "DOWN+CLOUD+POWERED_DOWN");
                seen.1 += 1;
            } else if program == "slurm_suspend" {
                // As healthy as while its instance was there (a drained node never is), which it is not with its address.
                let healthy = |backing| says(state, backing, "dynamic_healthy");
                assert_eq!((left, healthy(left)), ("no-address", healthy("address+instance")), "{state}");
                assert!(!healthy("address-without-instance") && !says(state, left, "powering_down_with_address"), "{state}");
                seen.0 += 1;
            }
        }
    }
    assert_eq!(seen, (6, 6));
}

#[test]
fn each_instance_goes_for_its_own_reason() {
    let head = Head::up(Behaviour::default(), "apple-dy-core-[1-2]");
    let states = [("apple-dy-core-1", "IDLE+CLOUD+POWERING_DOWN"), ("apple-dy-core-2", "DOWN+CLOUD+POWERED_DOWN")];
    head.shows(&states.map(|(node, state)| (node, state, node, "(null)")));
    head.site.ec2.add_rules([Rule::on("TerminateInstances").error("UnauthorizedOperation", 403)]);
    assert_eq!(head.run("slurm_suspend", &["apple-dy-core-[1-2]"]).code, Some(1), "{}", head.log("slurm_suspend"));
    let mapping = head.site.mapping();
    let condemned = mapping["condemned"].as_object().unwrap().values();
    let mut why: Vec<_> = condemned.map(|one| (one["node"].as_str().unwrap(), one["why"].as_str().unwrap())).collect();
    why.sort_unstable();
    assert_eq!(why, [("apple-dy-core-1", "suspended"), ("apple-dy-core-2", "not registered before ResumeTimeout")]);
}

#[test]
fn a_missing_mapping_is_rebuilt_from_all_that_slurm_shows() {
    let head = Head::up(Behaviour::default(), "apple-dy-core-[1-2],apple-st-core-1");
    let before = head.site.running();
    let shown: Vec<(String, String)> = before.iter().map(|(node, id)| (node.clone(), head.ip(id))).collect();
    // By address, by instance, and a node that nothing stands behind.
    let mut nodes = vec![("apple-dy-core-9", "IDLE+CLOUD+POWERED_DOWN", "apple-dy-core-9", "(null)")];
    for ((node, ip), (_, id)) in shown.iter().zip(&before) {
        let (ip, id) = if node == "apple-st-core-1" { (node, id.as_str()) } else { (ip, "(null)") };
        nodes.push((node, "ALLOCATED+CLOUD", ip, id));
    }
    nodes.push(("apple-dy-core-3", "ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP", "apple-dy-core-3", "(null)"));
    head.shows(&nodes);
    fs::remove_file(head.site.path("state/mapping.json")).unwrap();
    assert_eq!(head.run("slurm_resume", &["apple-dy-core-[2-3]"]).code, Some(0), "{}", head.log("slurm_resume"));
    let after = head.site.running();
    assert_eq!(after.len(), 4, "{after:?}");
    assert!(before.iter().all(|one| after.contains(one)), "{before:?} {after:?}");
    assert_eq!((head.site.live().len(), head.site.ec2.count("TerminateInstances")), (4, 0));
    head.site.assert_settled();
    assert!(head.log("slurm_resume").contains("the mapping was missing and is rebuilt"), "{}", head.log("slurm_resume"));

    // A suspend is as good an occasion.
    fs::remove_file(head.site.path("state/mapping.json")).unwrap();
    let down = nodes
        .iter()
        .map(|node| if node.0 == "apple-dy-core-1" { (node.0, "IDLE+CLOUD+POWERING_DOWN", node.2, node.3) } else { *node });
    let ip3 = head.ip(&after.iter().find(|(node, _)| node == "apple-dy-core-3").unwrap().1);
    let down: Vec<_> = down
        .map(|node| if node.0 == "apple-dy-core-3" { (node.0, "ALLOCATED+CLOUD", ip3.as_str(), node.3) } else { node })
        .collect();
    head.shows(&down);
    assert_eq!(head.run("slurm_suspend", &["apple-dy-core-1"]).code, Some(0), "{}", head.log("slurm_suspend"));
    let left: Vec<_> = after.into_iter().filter(|(node, _)| node != "apple-dy-core-1").collect();
    assert_eq!(head.site.running(), left);
    assert_eq!(head.site.live().len(), 3);
}

/// A FIFO that nobody writes hangs its readers, as NFS does.
#[test]
fn r29_s05_a_heartbeat_that_cannot_be_read_ends_nothing_but_the_launch() {
    let stuck = |head: &Head| {
        head.hurry();
        let path = head.site.path("clustermgtd_heartbeat");
        fs::remove_file(&path).unwrap();
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    };
    let head = Head::up(Behaviour::default(), "apple-dy-core-[1-2]");
    stuck(&head);
    head.site.scontrol("state", "IDLE+CLOUD+POWERING_DOWN\n");
    assert_eq!(head.run("slurm_suspend", &["apple-dy-core-[1-2]"]).code, Some(0), "{}", head.log("slurm_suspend"));
    assert!(head.site.live().is_empty());
    let log = head.log("slurm_suspend");
    assert!(log.contains("clustermgtd_heartbeat could not be read within") && log.contains("terminating all the same"), "{log}");

    let head = Head::new(Behaviour::default());
    stuck(&head);
    assert_eq!(head.run("slurm_resume", &["apple-dy-core-[1-2]"]).code, Some(75), "{}", head.log("slurm_resume"));
    assert!(head.site.ec2.requests().is_empty());
    let down = "update nodename=apple-dy-core-1,apple-dy-core-2 state=down reason=Failure when resuming nodes";
    assert_eq!(head.site.updates(), [down]);
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

/// An item as the package writes it.
fn put(tables: &dynamodb::Endpoint, node: &str, id: &str) {
    let item = json!({"Id": {"S": node}, "InstanceId": {"S": id}, "HeadNodePrivateIp": {"S": "10.40.0.17"},
        "HeadNodeHostname": {"S": "head"}});
    tables.put(TABLE, serde_json::from_value(item).unwrap());
}

/// clustermgtd has replaced nodes that we launched; or the package was at work between two times of ours.
#[test]
fn b76_a_stale_mapping_hides_no_instance() {
    for (program, state) in [
        ("slurm_suspend", "IDLE+CLOUD+POWERING_DOWN"),
        ("slurm_suspend", "DOWN+CLOUD+POWERED_DOWN"),
        ("slurm_resume_fail", "DOWN+CLOUD+POWERED_DOWN"),
    ] {
        let head = Head::up(Behaviour::default(), "apple-st-core-[1-5]");
        let mapped: BTreeMap<String, String> = head.site.running().into_iter().collect();
        let of = |n: usize| mapped[&format!("apple-st-core-{n}")].as_str();
        let (by_id, _) = seed(&head, "orchard", "Compute");
        let (by_address, ip) = seed(&head, "orchard", "Compute");
        let (anothers, anothers_ip) = seed(&head, "orchard", "Compute");
        head.shows(&[
            ("apple-st-core-1", state, "apple-st-core-1", &by_id),
            ("apple-st-core-2", state, &ip, "(null)"),
            // These two name what others have by now: by Slurm's word, by the mapping's.
            ("apple-st-core-3", state, &anothers_ip, "(null)"),
            ("apple-st-core-4", state, "apple-st-core-4", of(5)),
            ("apple-st-core-5", "ALLOCATED+CLOUD", &head.ip(of(5)), of(5)),
            ("apple-st-core-6", "ALLOCATED+CLOUD", &anothers_ip, &anothers),
        ]);
        assert_eq!(head.run(program, &["apple-st-core-[1-4]"]).code, Some(0), "{}", head.log(program));
        let live: Vec<String> = head.site.live().into_iter().collect();
        let mut stay = vec![of(5).to_owned(), anothers];
        stay.sort_unstable();
        assert_eq!(live, stay, "{by_id} {by_address} {}", head.log(program));
        assert!(head.site.condemned().is_empty());
        assert_eq!(head.site.running(), [("apple-st-core-5".to_owned(), of(5).to_owned())]);
    }
}

#[test]
fn b76_the_node_table_is_asked_where_slurm_does_not_confirm_the_mapping() {
    let head = Head::new(Behaviour::default());
    let tables = head.table();
    assert_eq!(head.site.run("slurm_resume", &["apple-st-core-[1-3]"]).code, Some(0), "{}", head.log("slurm_resume"));
    let mapped: BTreeMap<String, String> = head.site.running().into_iter().collect();
    let of = |n: usize| mapped[&format!("apple-st-core-{n}")].as_str();
    let (replacement, _) = seed(&head, "orchard", "Compute");
    put(&tables, "apple-st-core-1", &replacement);
    let state = "IDLE+CLOUD+POWERING_DOWN";
    let (two, three) = (head.ip(of(2)), head.ip(of(3)));
    head.shows(&[
        ("apple-st-core-1", state, "apple-st-core-1", "(null)"),
        ("apple-st-core-2", state, &two, of(2)),
        ("apple-st-core-3", state, &three, "(null)"),
    ]);
    // The common case costs no further call.
    let describes = head.site.ec2.count("DescribeInstances");
    assert_eq!(head.site.run("slurm_suspend", &["apple-st-core-[2-3]"]).code, Some(0), "{}", head.log("slurm_suspend"));
    assert_eq!((head.site.ec2.count("DescribeInstances"), tables.count("BatchGetItem")), (describes, 0));
    assert_eq!(head.site.live().len(), 2);
    assert_eq!(head.site.run("slurm_suspend", &["apple-st-core-1"]).code, Some(0), "{}", head.log("slurm_suspend"));
    assert!(head.site.live().is_empty(), "{}", head.log("slurm_suspend"));
}

#[test]
fn the_node_table_knows_what_slurm_forgot() {
    let head = Head::new(Behaviour::default());
    let tables = head.table();
    let (id, _) = seed(&head, "orchard", "Compute");
    let (others, _) = seed(&head, "vineyard", "Compute");
    for (node, id) in [("apple-st-core-1", &id), ("apple-st-core-2", &others)] {
        put(&tables, node, id);
    }
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
