//! What is around the programs is broken: EC2 away, no credentials, scontrol missing or hanging, folders and files not as they
//! should be.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, Instant, SystemTime};

use slurm_ec2_testkit::ec2::{Behaviour, Capacity, Rule};

use crate::crash::stage;
use crate::site::{GROUP, Site, copy_to_run, finished};

const OFF: &str = "request_bucket = \"off\"\n";

/// Rewrites the configuration.
fn change(site: &Site, from: &str, to: &str) {
    let config = fs::read_to_string(site.path("slurm-ec2.toml")).unwrap();
    assert!(config.contains(from), "{from} is not in {config}");
    site.write("slurm-ec2.toml", &config.replace(from, to));
}

/// EC2 is at a port where nobody listens.
fn without_ec2(site: &Site) -> String {
    let url = site.ec2.url();
    change(site, &url, "http://127.0.0.1:1");
    url
}

/// Programs of this site that still run.
fn running_children(site: &Site) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        if fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == site.dir.path()) {
            found.push(fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default());
        }
    }
    found
}

/// Those that go on running: one that was killed may take a moment to go, a hanging stand-in takes a minute to end by itself.
fn left_behind(site: &Site) -> Vec<String> {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let found = running_children(site);
        if found.is_empty() || Instant::now() > end {
            return found;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn ec2_away_fails_the_nodes_in_time_and_keeps_what_is_condemned() {
    let site = Site::new(Behaviour::default());
    assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(0));
    let url = without_ec2(&site);
    // A quarter of it is for telling Slurm.
    site.limit(24);
    let ran = site.run("slurm_resume", &["c5-2"]);
    // 75 when the time is up while a call is under way (what became of it is not known), 1 when it is between two that were refused.
    assert!(matches!(ran.code, Some(1 | 75)), "{:?} {}", ran.code, site.log("slurm_resume"));
    let told = site.updates().into_iter().find(|line| line.contains("reason=") && line.contains("c5-2")).unwrap();
    assert!(told.contains("state=power_down_force") && told.contains("(Code:"), "{told}");
    assert!(!site.path("state/backoff.json").exists(), "EC2 said nothing that would make the group rest");
    assert_eq!(site.running().len(), 1);
    site.hurry();
    let ran = site.run("slurm_suspend", &["c5-1"]);
    assert_eq!(ran.code, Some(75), "{}", site.log("slurm_suspend"));
    assert_eq!((site.condemned(), site.running().len()), (site.live(), 0));
    assert!(ran.stderr.contains(site.live().first().unwrap().as_str()), "{}", ran.stderr);
    // EC2 is back: any next program.
    change(&site, "http://127.0.0.1:1", &url);
    site.patience();
    assert_eq!(site.run("slurm_suspend", &["c5-9"]).code, Some(0), "{}", site.log("slurm_suspend"));
    assert!(site.live().is_empty() && site.condemned().is_empty());
}

#[test]
fn no_credentials_are_told_as_such() {
    let site = Site::new(Behaviour::default());
    site.write("credentials", "");
    let ran = site.run("slurm_resume", &["c5-1"]);
    assert_eq!(ran.code, Some(1), "{}", site.log("slurm_resume"));
    let told = site.updates().into_iter().find(|line| line.contains("reason=")).unwrap();
    assert!(told.contains("(Code:NoCredentials)") && told.contains("c5-1"), "{told}");
    assert!(site.ec2.requests().is_empty() && site.running().is_empty());
}

#[test]
fn b16_with_a_scontrol_that_does_not_run_the_instances_stay_and_the_next_program_tells() {
    let site = Site::new(Behaviour::default());
    // It is there and may be run, so that nothing is noticed before the launch.
    fs::remove_file(site.path("bin/scontrol")).unwrap();
    site.write("no-program", "\u{7f}ELF");
    fs::set_permissions(site.path("no-program"), fs::Permissions::from_mode(0o755)).unwrap();
    copy_to_run(&site.path("no-program"), &site.path("bin/scontrol"));
    let ran = site.run("slurm_resume", &["c5-1"]);
    assert_eq!(ran.code, Some(75), "{}", site.log("slurm_resume"));
    assert!(ran.stderr.contains("bin_dir"), "{}", ran.stderr);
    assert_eq!((site.live().len(), site.mapping()["nodes"]["c5-1"]["unpublished"].as_bool()), (1, Some(true)));
    let stand_in = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bin/scontrol");
    fs::remove_file(site.path("bin/scontrol")).unwrap();
    std::os::unix::fs::symlink(stand_in, site.path("bin/scontrol")).unwrap();
    assert_eq!(site.run("slurm_resume", &["c5-2"]).code, Some(0), "{}", site.log("slurm_resume"));
    assert!(site.updates().iter().any(|line| line.contains("c5-1") && line.contains("nodeaddr=")), "{:?}", site.updates());
    assert!(site.mapping()["nodes"]["c5-1"].get("unpublished").is_none());
}

#[test]
fn b16_b42_r19_a_hanging_scontrol_is_ended_and_left_behind_by_nobody() {
    let site = Site::new(Behaviour::default());
    site.hurry();
    change(&site, "[slurm]\n", "[slurm]\ncommand_timeout = \"4s\"\n");
    site.scontrol("hang.update", "");
    let ran = site.run("slurm_resume", &["c5-[1-2]"]);
    assert_eq!(ran.code, Some(75), "{}", site.log("slurm_resume"));
    assert_eq!((site.live().len(), site.running().len()), (2, 2), "an update that timed out says nothing about the node");
    assert_eq!(site.mapping()["nodes"]["c5-2"]["unpublished"], true);
    assert_eq!(left_behind(&site), Vec::<String>::new());
}

#[test]
fn b16_slurmctld_away_for_a_moment_is_no_failure() {
    let site = Site::new(Behaviour::default());
    site.scontrol("fail.once", "1\nslurm_update error: Unable to contact slurm controller (connect failure)\n");
    let ran = site.run("slurm_resume", &["c5-[1-2]"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{}", site.log("slurm_resume"));
    assert!(site.mapping()["nodes"]["c5-1"].get("unpublished").is_none());
    site.assert_settled();
}

/// slurmctld's "you may not" says nothing about the nodes.
#[test]
fn b16_a_user_whom_slurmctld_does_not_trust_loses_no_instance() {
    let site = Site::new(Behaviour::default());
    site.scontrol("fail.update", "1\nslurm_update error: Access/permission denied\n");
    let ran = site.run("slurm_resume", &["c5-1"]);
    assert_eq!(ran.code, Some(75), "{}", site.log("slurm_resume"));
    assert_eq!((site.live().len(), site.running().len()), (1, 1));
    assert!(ran.stderr.contains("SlurmUser"), "{}", ran.stderr);
}

/// R20: the mistakes are in the log as well, since slurmctld keeps nothing that its programs say.
#[test]
fn r20_b20_a_broken_configuration_is_told_through_the_configured_scontrol() {
    for format in ["text", "json"] {
        let site = Site::new(Behaviour::default());
        change(&site, "level = \"debug\"", &format!("format = \"{format}\"\nlevel = \"loud\""));
        change(&site, "request_bucket", "batchsize = 3\nrequest_bucket");
        fs::create_dir(site.path("log")).unwrap();
        for program in ["slurm_resume", "slurm_suspend", "slurm_resume_fail"] {
            let ran = site.run(program, &["c5-[1-2]"]);
            assert_eq!(ran.code, Some(78), "{program}");
            for text in [ran.stderr, site.log(program)] {
                for word in ["slurm-ec2.toml:", "batchsize", "batch_size", "loud"] {
                    assert!(text.contains(word), "{program}: {word} is not in {text}");
                }
            }
        }
        let updates = site.updates();
        assert_eq!(updates.len(), 2, "resume has nodes that wait, resume-fail's would stay down: {updates:?}");
        assert_eq!(updates[1], "update nodename=c5-1,c5-2 state=power_down");
        for word in ["nodename=c5-1,c5-2", "state=power_down_force", "(Code:", "slurm-ec2.toml:"] {
            assert!(updates[0].contains(word), "{word}: {updates:?}");
        }
        assert!(site.ec2.requests().is_empty() && !site.path("state").exists());
        if format == "json" {
            for line in site.log("slurm_resume").lines() {
                let value: serde_json::Value = serde_json::from_str(line).unwrap();
                assert!(value["level"] == "ERROR" && value["message"].as_str().unwrap().contains("batchsize"), "{line}");
            }
        }
        // A look without consequences has none.
        let before = (site.log("slurm_resume"), site.updates().len());
        assert_eq!(site.run("slurm_resume", &["--dry-run", "c5-1"]).code, Some(78));
        assert_eq!(before, (site.log("slurm_resume"), site.updates().len()));
    }
}

/// Root that stumbles over a broken configuration leaves no log file that slurmctld's user cannot write.
#[test]
fn r20_roots_complaint_belongs_to_the_owner_of_the_log() {
    let site = Site::new(Behaviour::default());
    fs::create_dir(site.path("log")).unwrap();
    if std::os::unix::fs::chown(site.path("log"), Some(65534), Some(65534)).is_err() {
        return; // not root: all files are this user's anyway
    }
    change(&site, "request_bucket", "batchsize = 3\nrequest_bucket");
    assert_eq!(site.run("slurm_suspend", &["c5-1"]).code, Some(78));
    assert_eq!(fs::metadata(site.path("log/slurm_suspend.log")).unwrap().uid(), 65534);
}

#[test]
fn b20_a_stale_heartbeat_is_no_daemon() {
    let site = Site::new(Behaviour::with_capacity(vec![Capacity::limit("*", "*", 0)]));
    fs::create_dir(site.path("state")).unwrap();
    let beat = fs::File::create(site.path("state/heartbeat")).unwrap();
    beat.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)).unwrap();
    assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(1));
    assert!(site.updates().iter().any(|line| line.contains("state=power_down_force")), "{:?}", site.updates());
    assert!(site.path("state/backoff.json").exists());
}

#[test]
fn c06_addresses_as_the_site_wants_them_told() {
    for (mode, version, address, id) in [
        ("scontrol", "24.11.5", true, true),
        ("registration", "24.11.5", false, true),
        ("registration", "22.05.8", false, false),
        ("none", "26.05.5", false, false),
    ] {
        let site = Site::new(Behaviour::default());
        change(&site, "[slurm]\n", &format!("[slurm]\nnode_address = \"{mode}\"\n"));
        site.scontrol("version", version);
        assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(0), "{}", site.log("slurm_resume"));
        let updates = site.updates().join("\n");
        assert_eq!(updates.contains("nodeaddr="), address, "{mode} {version}: {updates}");
        assert_eq!(updates.to_lowercase().contains("instanceid="), id, "{mode} {version}: {updates}");
        // The node keeps its own name everywhere: what MPI and srun resolve is not EC2's name.
        assert!(!updates.contains("nodehostname="), "{updates}");
        assert!(site.mapping()["nodes"]["c5-1"].get("unpublished").is_none(), "{mode}: nothing is left to be told");
    }
}

#[test]
fn a_missing_state_folder_is_made_for_slurms_user() {
    let site = Site::new(Behaviour::default());
    fs::set_permissions(site.dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let root = fs::metadata(site.path("bin")).unwrap().uid() == 0;
    if root {
        site.write("slurm.conf", "SlurmUser=65534\nResumeTimeout=600\n");
        fs::set_permissions(site.path("bin"), fs::Permissions::from_mode(0o777)).unwrap();
    }
    assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(0), "{}", site.log("slurm_resume"));
    let folder = fs::metadata(site.path("state")).unwrap();
    assert_eq!(folder.mode() & 0o7777, 0o750);
    for name in ["state", "state/mapping.json", "log", "log/slurm_resume.log"] {
        assert_eq!(fs::metadata(site.path(name)).unwrap().uid(), if root { 65534 } else { folder.uid() }, "{name}");
    }
    if root {
        site.write("slurm.conf", "SlurmUser=nobody-of-this-name\n");
        fs::remove_dir_all(site.path("state")).unwrap();
        let ran = site.run("slurm_resume", &["c5-1"]);
        assert!(ran.code == Some(78) && ran.stderr.contains("nobody-of-this-name"), "{}", ran.stderr);
        assert!(!site.path("state").exists());
    }
}

#[test]
fn b42_without_slurm_conf_there_is_a_short_limit() {
    let site = Site::new(Behaviour::default());
    fs::remove_file(site.path("slurm.conf")).unwrap();
    assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(0), "{}", site.log("slurm_resume"));
    let log = site.log("slurm_resume");
    assert!(log.contains("slurm.conf cannot be read") && log.contains("limit_s=30"), "{log}");
}

#[test]
fn b42_b31_a_suspend_that_ec2_does_not_answer_ends_in_time() {
    let site = Site::new(Behaviour::default());
    assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(0));
    site.hurry();
    site.ec2.add_rules([Rule::on("TerminateInstances").nth(1).hang()]);
    let ran = site.run("slurm_suspend", &["c5-[1-2]"]);
    assert_eq!(ran.code, Some(75), "{}", site.log("slurm_suspend"));
    assert_eq!((site.condemned(), site.live().len()), (site.live(), 2));
    site.patience();
    assert_eq!(site.run("slurm_suspend", &["c5-9"]).code, Some(0), "{}", site.log("slurm_suspend"));
    assert!(site.live().is_empty() && site.condemned().is_empty());
}

/// S04: three different mishaps, then EC2 works again, all in one run.
#[test]
fn s04_a_termination_is_repeated() {
    let site = Site::new(Behaviour::default());
    assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(0));
    site.ec2.add_rules([
        Rule::on("TerminateInstances").nth(1).error("InternalError", 500),
        Rule::on("TerminateInstances").nth(1).error("RequestLimitExceeded", 503),
        Rule::on("TerminateInstances").nth(1).drop_after(),
    ]);
    assert_eq!(site.run("slurm_suspend", &["c5-[1-2]"]).code, Some(0), "{}", site.log("slurm_suspend"));
    assert!(site.live().is_empty() && site.condemned().is_empty());
}

/// The nodes as Slurm shows them while their instances run: by address.
fn shown(site: &Site, state: &str) -> String {
    let mapping = site.mapping();
    let record = |node: &str| {
        let address = mapping["nodes"][node]["private_ip"].as_str().unwrap().to_owned();
        format!(
            "NodeName={node} CoresPerSocket=1\n   NodeAddr={address} NodeHostName={node}\n   State={state} ThreadsPerCore=1\n   Partitions=q1\n\n"
        )
    };
    site.running().iter().map(|(node, _)| record(node)).collect()
}

#[test]
fn b40_a_lost_mapping_is_rebuilt_from_slurm_and_ec2() {
    let site = Site::new(Behaviour::default());
    assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(0));
    let first = site.running();
    site.scontrol("nodes", &shown(&site, "IDLE+CLOUD"));
    fs::remove_file(site.path("state/mapping.json")).unwrap();
    // While slurmctld does not say which nodes they are, a launch could double them.
    site.scontrol("fail.show", "1\nslurm_load_node error: Unable to contact slurm controller (connect failure)\n");
    site.hurry();
    assert_ne!(site.run("slurm_resume", &["c5-[1-3]"]).code, Some(0));
    assert_eq!((site.ec2.count("RunInstances"), site.ec2.count("TerminateInstances")), (1, 0));
    fs::remove_file(site.path("bin/scontrol.fail.show")).unwrap();
    site.patience();
    assert_eq!(site.run("slurm_resume", &["c5-[1-3]"]).code, Some(0), "{}", site.log("slurm_resume"));
    let now = site.running();
    assert_eq!((now.len(), &now[..2]), (3, &first[..]), "{}", site.log("slurm_resume"));
    assert_eq!(site.live().len(), 3);
    assert!(site.log("slurm_resume").contains("is rebuilt"));
    site.assert_settled();
}

#[test]
fn b19_an_instance_that_has_registered_before_is_rebooted_on_request() {
    let site = Site::with(Behaviour::default(), &format!("{OFF}on_existing = \"reboot\"\n"), GROUP);
    assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(0));
    let first = site.running();
    let later = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() + 2;
    let nodes = shown(&site, "IDLE+CLOUD+NOT_RESPONDING+POWERING_UP");
    site.scontrol(
        "nodes",
        &nodes.replacen("Partitions=q1", &format!("Partitions=q1\n   BootTime={later} SlurmdStartTime={later}"), 1),
    );
    assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(0), "{}", site.log("slurm_resume"));
    let reboots = site.ec2.requests_of("RebootInstances");
    assert_eq!((reboots.len(), reboots[0].param("InstanceId.1")), (1, Some(first[0].1.as_str())));
    let now = site.running();
    assert_eq!(now[0], first[0], "rebooted and kept");
    assert_ne!(now[1], first[1], "never registered: replaced");
    assert_eq!(site.live().len(), 2);
    site.assert_settled();
    // A reboot that EC2 refuses fails the node and ends its instance.
    site.scontrol(
        "nodes",
        &shown(&site, "IDLE+CLOUD+POWERING_UP").replace("Partitions=q1", &format!("SlurmdStartTime={}", later + 60)),
    );
    site.ec2.add_rules([Rule::on("RebootInstances").error("UnauthorizedOperation", 403)]);
    assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(1), "{}", site.log("slurm_resume"));
    assert!(!site.live().contains(&now[0].1));
    assert!(site.updates().iter().any(|line| line.contains("(Code:UnauthorizedOperation)") && line.contains("c5-1")));
    site.assert_settled();
}

#[test]
fn b34_ten_consoles_at_most_and_every_node_comes_back() {
    let site = Site::new(Behaviour { full_size: false, ..Behaviour::default() });
    assert_eq!(site.run("slurm_resume", &["c5-[1-13]"]).code, Some(0));
    site.scontrol("state", "DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING\n");
    assert_eq!(site.run("slurm_resume_fail", &["c5-[1-12]"]).code, Some(0), "{}", site.log("slurm_resume_fail"));
    assert_eq!((site.ec2.count("GetConsoleOutput"), site.live().len(), site.running().len()), (10, 1, 1));
    let back = site.updates().into_iter().find(|line| line.contains("state=power_down")).unwrap();
    assert!((1..=12).all(|n| back.contains(&format!("c5-{n}"))) && !back.contains("c5-13"), "{back}");
    site.assert_settled();
}

#[test]
fn b34_f01_a_refusal_of_slurmctld_does_not_keep_the_instance() {
    let site = Site::new(Behaviour { console: String::new(), ..Behaviour::default() });
    assert_eq!(site.run("slurm_resume", &["c5-[1-3]"]).code, Some(0));
    site.scontrol("state", "DOWN+CLOUD+POWERED_DOWN\n");
    site.scontrol("refuse", "c5-2\n");
    site.scontrol("applied", "");
    let ran = site.run("slurm_resume_fail", &["c5-[1-3]"]);
    assert_eq!(ran.code, Some(1), "{}", site.log("slurm_resume_fail"));
    assert!(site.live().is_empty() && site.running().is_empty());
    let applied = fs::read_to_string(site.path("bin/scontrol.applied")).unwrap();
    for node in ["c5-1 ", "c5-3 "] {
        assert!(applied.lines().any(|line| line.starts_with(node) && line.contains("state=power_down")), "{node}: {applied}");
    }
    assert!(site.log("slurm_resume_fail").contains("no console output yet"));
}

/// The node is gone from the mapping, its instance is known to Slurm only by the address that resume-fail is about to reset.
#[test]
fn b32_b34_resume_fail_looks_before_the_address_is_gone() {
    let site = Site::new(Behaviour::default());
    assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(0));
    site.scontrol("nodes", &shown(&site, "DOWN+CLOUD+POWERED_DOWN"));
    let mut mapping = site.mapping();
    mapping["nodes"] = serde_json::json!({});
    site.write("state/mapping.json", &mapping.to_string());
    assert_eq!(site.run("slurm_resume_fail", &["c5-1"]).code, Some(0), "{}", site.log("slurm_resume_fail"));
    assert!(site.live().is_empty() && site.condemned().is_empty(), "{}", site.log("slurm_resume_fail"));
    let calls = site.scontrol_calls();
    let at = |what: &str| calls.iter().rposition(|line| line.contains(what)).unwrap();
    assert!(at("show") < at("state=power_down"), "{calls:?}");
}

/// A call that names a node twice, in several arguments, wakes it once.
#[test]
fn duplicates_and_several_lists_are_one_list() {
    let site = Site::new(Behaviour::default());
    let ran = finished(site.command("slurm_resume", &["c5-1,c5-[1-2]", "c5-2", "c5-3"]).output().unwrap());
    assert_eq!(ran.code, Some(0), "{}", site.log("slurm_resume"));
    assert_eq!((site.running().len(), site.live().len()), (3, 3));
    assert!(site.log("slurm_resume").contains("named more than once"));
}

/// EC2 takes calls and never answers: what is asked before the launch is as limited as the launch itself.
#[test]
fn b42_looking_does_not_take_longer_than_the_run_may() {
    stage::each(&["slurm_resume", "slurm_suspend", "slurm_resume_fail"], |program| {
        let site = Site::new(Behaviour::default());
        assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(0));
        site.scontrol("nodes", &shown(&site, "DOWN+CLOUD+POWERED_DOWN"));
        if *program != "slurm_resume" {
            // c5-2 is one to be looked up.
            let mut mapping = site.mapping();
            mapping["nodes"].as_object_mut().unwrap().remove("c5-2");
            site.write("state/mapping.json", &mapping.to_string());
        }
        site.ec2.add_rules([Rule::on("DescribeInstances").hang(), Rule::on("GetConsoleOutput").hang()]);
        // Of these the looks, each half of what is left, may take three quarters. What a hanging call takes by itself, `[aws]
        // operation_timeout`, is 100 s: after those nothing would begin any more.
        site.limit(32);
        let ran = site.run(program, &["c5-[1-3]"]);
        let log = site.log(program);
        assert_eq!(ran.code, Some(0), "{program}: {log}");
        match *program {
            // What has no instance is launched all the same.
            "slurm_resume" => assert_eq!((site.ec2.count("RunInstances"), site.running().len()), (2, 3), "{log}"),
            _ => assert!(site.running().is_empty() && site.ec2.count("TerminateInstances") > 0, "{log}"),
        }
    });
}

/// SIGTERM while EC2 (suspend) or slurmctld (resume) does not answer: both end by themselves, long before their own limit.
#[test]
fn b43_sigterm_ends_the_wait_for_what_does_not_answer() {
    let (first, second) = (Site::new(Behaviour::default()), Site::new(Behaviour::default()));
    assert_eq!(first.run("slurm_resume", &["c5-[1-2]"]).code, Some(0));
    first.ec2.add_rules([Rule::on("TerminateInstances").hold("end")]);
    second.scontrol("hang.update", "");
    let suspend = first.spawn("slurm_suspend", &["c5-[1-2]"]);
    let resume = second.spawn("slurm_resume", &["c5-[1-2]"]);
    assert!(first.ec2.wait_held("end", stage::PATIENCE));
    stage::wait_until("the update", || !second.updates().is_empty());
    for child in [&suspend, &resume] {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id().cast_signed()), nix::sys::signal::Signal::SIGTERM).unwrap();
    }
    for (site, child, program) in [(&first, suspend, "slurm_suspend"), (&second, resume, "slurm_resume")] {
        assert_eq!(finished(child.wait_with_output().unwrap()).code, Some(75), "{}", site.log(program));
        assert!(site.log(program).contains("SIGTERM") && site.log(program).contains("ended"), "{}", site.log(program));
    }
    assert_eq!((first.condemned(), first.running().len()), (first.live(), 0));
    assert_eq!((second.live().len(), second.mapping()["nodes"]["c5-1"]["unpublished"].as_bool()), (2, Some(true)));
    assert_eq!(left_behind(&second), Vec::<String>::new());
}
