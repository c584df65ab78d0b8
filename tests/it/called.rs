//! As slurmctld calls: nothing in the environment, odd descriptors and signals, long lists, many at once. And broken surroundings.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use slurm_ec2_testkit::ec2::{Behaviour, Rule};

use crate::site::{GROUP, Site, copy_to_run, finished, program_path};

#[test]
fn closed_descriptors_and_blocked_signals_as_in_22_05() {
    let site = Site::new(Behaviour::default());
    // The mask of 22.05 (slurm-facts A.1), set by a shell-less helper: python blocks and executes.
    let script = format!(
        "import os,signal\n\
         signal.pthread_sigmask(signal.SIG_BLOCK,[1,2,3,6,10,12,13,14,15,17,20,24])\n\
         [os.close(fd) for fd in (0,1,2)]\n\
         os.execve('{}',['slurm_resume','c5-[1-2]'],{{'SLURM_CONF':'{}','SLURM_EC2_CONFIG':'{}'}})\n",
        program_path("slurm_resume").display(),
        site.path("slurm.conf").display(),
        site.path("slurm-ec2.toml").display()
    );
    let status = Command::new("python3").args(["-c", &script]).stdin(Stdio::null()).status().unwrap();
    assert!(status.success(), "{}", site.log("slurm_resume"));
    assert_eq!(site.running().len(), 2);
}

#[test]
fn a_blocked_sigterm_still_ends_it_b43() {
    let site = Site::new(Behaviour::with_rules(vec![Rule::on("RunInstances").hold("launch")]));
    let mut child = site.spawn("slurm_resume", &["c5-[1-2]"]);
    assert!(site.ec2.wait_held("launch", std::time::Duration::from_secs(120)));
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    // The answer comes within the grace: it is committed.
    site.ec2.release("launch");
    let code = child.wait().unwrap().code();
    assert!(code.is_some(), "ended by itself, not by the signal");
    site.assert_settled();
    assert!(site.log("slurm_resume").contains("SIGTERM"), "{}", site.log("slurm_resume"));
}

#[test]
fn twenty_thousand_scattered_nodes() {
    let groups = "[[group]]\nname = \"big\"\nnodes = \"big-dy-[1-40000]\"\nbatch_size = 1000\nlaunch_template = { name = \"hpc-big\", version = \"1\" }\n";
    let launch = "request_bucket = \"off\"\ndeadline = \"15m\"\n";
    let site = Site::with(Behaviour { full_size: false, ..Behaviour::default() }, launch, groups);
    // How long it takes is the bench's matter.
    site.limit(900);
    let config = std::fs::read_to_string(site.path("slurm-ec2.toml")).unwrap();
    site.write("slurm-ec2.toml", &config.replace("[slurm]\n", "[slurm]\ncommand_timeout = \"5m\"\n"));
    let odd: Vec<String> = (0..20_000).map(|n| (2 * n + 1).to_string()).collect();
    let ran = site.run("slurm_resume", &[&format!("big-dy-[{}]", odd.join(","))]);
    assert_eq!(ran.code, Some(0), "{}", site.log("slurm_resume").chars().take(3000).collect::<String>());
    assert_eq!(site.running().len(), 20_000);
    assert_eq!(site.ec2.count("RunInstances"), 20);
    for call in site.updates() {
        assert!(call.split(' ').all(|argument| argument.len() < 128 * 1024));
    }
}

#[test]
fn r18_ten_at_the_same_moment() {
    let site = Site::new(Behaviour::default());
    let children: Vec<_> = (0..10)
        .map(|n| {
            let file = site.path(&format!("resume-{n}.json"));
            let nodes = format!("c5-[{}-{}]", 10 * n + 1, 10 * n + 10);
            std::fs::write(&file, format!("{{\"all_nodes_resume\":\"{nodes}\",\"jobs\":[]}}")).unwrap();
            site.command("slurm_resume", &[&nodes]).env("SLURM_RESUME_FILE", file).spawn().unwrap()
        })
        .collect();
    for child in children {
        let ran = finished(child.wait_with_output().unwrap());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }
    assert_eq!((site.live().len(), site.running().len()), (100, 100));
    site.assert_settled();
}

#[test]
fn r15_b10_a_resume_file_that_cannot_be_used_costs_a_warning() {
    for content in [None, Some(""), Some("{"), Some("[1]")] {
        let site = Site::new(Behaviour::default());
        if let Some(text) = content {
            site.write("resume.json", text);
        }
        let output =
            site.command("slurm_resume", &["c5-[1-2]"]).env("SLURM_RESUME_FILE", site.path("resume.json")).output().unwrap();
        assert_eq!(finished(output).code, Some(0));
        assert_eq!(site.running().len(), 2);
        let log = site.log("slurm_resume");
        assert_eq!(log.matches(" WARN ").count(), 1, "{log}");
    }
}

#[test]
fn r16_the_resume_file_may_go_while_ec2_is_slow() {
    let site = Site::new(Behaviour::with_rules(vec![Rule::on("RunInstances").hold("launch")]));
    site.write("resume.json", r#"{"all_nodes":"c5-1","jobs":[{"job_id":4711,"nodes":"c5-1"}]}"#);
    let child = site.command("slurm_resume", &["c5-1"]).env("SLURM_RESUME_FILE", site.path("resume.json")).spawn().unwrap();
    assert!(site.ec2.wait_held("launch", std::time::Duration::from_secs(120)));
    std::fs::remove_file(site.path("resume.json")).unwrap();
    site.ec2.release("launch");
    assert_eq!(finished(child.wait_with_output().unwrap()).code, Some(0));
    assert!(site.log("slurm_resume").contains("jobs=\"4711\""));
}

#[test]
fn r20_r21_the_log_tells_start_and_end_with_the_pid() {
    let site = Site::new(Behaviour::default());
    let child = site.spawn("slurm_resume", &["c5-[1-2]"]);
    let pid = child.id();
    child.wait_with_output().unwrap();
    let log = site.log("slurm_resume");
    assert!(log.lines().all(|line| line.contains(&format!("[pid={pid} launch="))), "{log}");
    let first = log.lines().next().unwrap();
    assert!(first.contains("started") && first.contains("c5-[1-2]"), "{first}");
    let last = log.lines().last().unwrap();
    for word in ["ended", "launched=2", "failed=0", "total_ms=", "RunInstances=1"] {
        assert!(last.contains(word), "{word}: {last}");
    }
}

#[test]
fn r33_b1_a_malformed_host_list_touches_nothing() {
    for list in ["n[3-1]", "n[1-", "n[1-2", "n[a]"] {
        let site = Site::new(Behaviour::default());
        for program in ["slurm_resume", "slurm_suspend", "slurm_resume_fail"] {
            let ran = site.run(program, &[list]);
            assert_eq!(ran.code, Some(2), "{program} {list}");
            assert!(ran.stderr.contains(list), "{}", ran.stderr);
        }
        assert!(site.ec2.requests().is_empty() && site.updates().is_empty());
    }
    let site = Site::new(Behaviour::default());
    assert_eq!(site.run("slurm_resume", &[" "]).code, Some(2));
}

#[test]
fn b2_too_many_names_are_an_error() {
    let site = Site::new(Behaviour::default());
    let ran = site.run("slurm_resume", &["c5-[1-99999999]"]);
    assert!(ran.code == Some(2) && ran.stderr.contains("1000000"), "{}", ran.stderr);
}

#[test]
fn b41_a_foreign_mapping_is_not_touched_and_slurm_is_told() {
    for content in [
        "",
        "{",
        "{\"version\": 2, \"cluster\": \"hpc\", \"nodes\": {}, \"condemned\": {}}",
        "{\"version\": 1, \"cluster\": \"other\", \"nodes\": {}, \"condemned\": {}}",
    ] {
        let site = Site::new(Behaviour::default());
        std::fs::create_dir(site.path("state")).unwrap();
        site.write("state/mapping.json", content);
        let ran = site.run("slurm_resume", &["c5-1"]);
        assert_eq!(ran.code, Some(78), "{}", ran.stderr);
        assert!(ran.stderr.contains("mapping.json"), "{}", ran.stderr);
        assert_eq!(std::fs::read_to_string(site.path("state/mapping.json")).unwrap(), content);
        assert_eq!(site.ec2.count("RunInstances"), 0);
        assert!(
            site.updates().iter().any(|line| line.contains("c5-1") && line.contains("(Code:StateError)")),
            "{:?}",
            site.updates()
        );
        assert_eq!(site.run("slurm_suspend", &["c5-1"]).code, Some(78));
        assert_eq!(std::fs::read_to_string(site.path("state/mapping.json")).unwrap(), content);
    }
}

#[test]
fn a_broken_configuration_is_told_to_slurm_and_shows_all_mistakes() {
    let site = Site::new(Behaviour::default());
    site.write(
        "slurm-ec2.toml",
        &format!(
            "cluster = 3\nregoin = \"x\"\n[[group]]\nname = \"a\"\nnodes = \"a-[1\"\nlaunch_template = \"hpc-a\"\n[slurm]\nbin_dir = {:?}\n",
            site.path("bin")
        ),
    );
    let ran = site.run("slurm_resume", &["c5-1"]);
    assert_eq!(ran.code, Some(78));
    for place in ["slurm-ec2.toml:1:11", "slurm-ec2.toml:2:1", "slurm-ec2.toml:5:"] {
        assert!(ran.stderr.contains(place), "{place} is not in\n{}", ran.stderr);
    }
    assert!(site.ec2.requests().is_empty());
    assert!(site.updates().iter().any(|line| line.contains("nodename=c5-1") && line.contains("state=power_down_force")));
}

#[test]
fn p01_a_configuration_that_this_user_cannot_read() {
    let site = Site::new(Behaviour::default());
    std::fs::set_permissions(site.path("slurm-ec2.toml"), std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::set_permissions(site.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let Some(mut command) = as_nobody(&site, &["c5-1"]) else { return };
    let ran = finished(command.output().unwrap());
    assert_eq!(ran.code, Some(78), "{}", ran.stderr);
    for word in ["slurm-ec2.toml", "600", "65534"] {
        assert!(ran.stderr.contains(word), "{word} is not in {}", ran.stderr);
    }
}

#[test]
fn a_state_folder_that_cannot_be_written_comes_before_any_ec2_call() {
    let site = Site::new(Behaviour::default());
    std::fs::set_permissions(site.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(site.path("bin"), std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::create_dir(site.path("state")).unwrap();
    let Some(mut command) = as_nobody(&site, &["c5-1"]) else { return };
    let ran = finished(command.output().unwrap());
    assert_eq!(ran.code, Some(78), "{}", ran.stderr);
    assert!(ran.stderr.contains("state") && site.ec2.requests().is_empty(), "{}", ran.stderr);
    let updates = site.updates();
    assert!(updates.iter().any(|line| line.contains("nodename=c5-1") && line.contains("(Code:StateError)")), "{updates:?}");
}

/// A program of this build where user nobody reaches it. `None` when this is not root: then there is no other user to be.
fn as_nobody(site: &Site, args: &[&str]) -> Option<Command> {
    let root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n");
    if !root {
        return None;
    }
    // Build folders are often closed to others.
    let copy = site.path("slurm_resume");
    copy_to_run(&program_path("slurm_resume"), &copy);
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", "exec \"$@\"", "sh"])
        .arg(copy)
        .args(args)
        .env_clear()
        .env("SLURM_EC2_CONFIG", site.path("slurm-ec2.toml"))
        .env("SLURM_CONF", site.path("slurm.conf"))
        .uid(65534)
        .gid(65534)
        .current_dir("/")
        .stdin(Stdio::null());
    Some(command)
}

#[test]
fn root_becomes_the_owner_of_the_state_folder() {
    let site = Site::new(Behaviour::default());
    std::fs::set_permissions(site.dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::create_dir(site.path("state")).unwrap();
    if std::os::unix::fs::chown(site.path("state"), Some(65534), Some(65534)).is_err() {
        return; // not root: nothing to become
    }
    assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(0), "{}", site.log("slurm_resume"));
    use std::os::unix::fs::MetadataExt;
    for name in ["state/mapping.json", "state/lock", "state/state-id", "log/slurm_resume.log"] {
        assert_eq!(std::fs::metadata(site.path(name)).unwrap().uid(), 65534, "{name}");
    }
}

#[test]
fn a_log_folder_that_cannot_be_written_is_no_failure() {
    let site = Site::new(Behaviour::default());
    site.write("log", "a file where the folder should be");
    let ran = site.run("slurm_resume", &["c5-1"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("ended launched=1") || ran.stderr.contains("launched=1"), "{}", ran.stderr);
}

#[test]
fn json_lines_parse_and_carry_the_launch() {
    let site = Site::new(Behaviour::default());
    let config = std::fs::read_to_string(site.path("slurm-ec2.toml")).unwrap();
    site.write("slurm-ec2.toml", &config.replace("level = \"debug\"", "level = \"info\"\nformat = \"json\""));
    assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(0));
    let log = site.log("slurm_resume");
    for line in log.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(value["timestamp"].is_string() && value["level"].is_string(), "{line}");
        assert!(value["span"]["launch"].is_string() && value["span"]["pid"].is_number(), "{line}");
    }
    assert!(log.lines().count() >= 3);
}

#[test]
fn by_hand_help_version_dry_run() {
    let site = Site::new(Behaviour::default());
    for program in ["slurm_resume", "slurm_suspend", "slurm_resume_fail", "slurm-ec2"] {
        let help = site.run(program, &["--help"]);
        assert!(help.code == Some(0) && help.stdout.contains("Exit status") && help.stderr.is_empty(), "{program}");
        let version = site.run(program, &["--version"]);
        assert_eq!((version.code, version.stdout), (Some(0), format!("{program} {}\n", env!("CARGO_PKG_VERSION"))));
    }
    assert_eq!(site.run("slurm_resume", &[]).code, Some(2));
    let dry = site.run("slurm_resume", &["--dry-run", "c5-[1-3]"]);
    assert!(dry.code == Some(0) && dry.stdout.contains("c5-[1-3]"), "{}", dry.stdout);
    assert!(site.ec2.requests().is_empty() && site.scontrol_calls().is_empty() && !site.path("state").exists());
    let verbose = site.run("slurm_resume", &["-v", "c5-1"]);
    assert!(verbose.code == Some(0) && verbose.stderr.contains("launched=1"), "{}", verbose.stderr);
}

#[test]
fn r14_nothing_failed_nothing_told() {
    let site = Site::new(Behaviour::default());
    assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(0));
    assert!(site.updates().iter().all(|line| !line.contains("state=")), "{:?}", site.updates());
    assert!(!site.log("slurm_resume").contains("down"));
}

#[test]
fn r28_a_full_subnet_gives_its_code() {
    let site = Site::with(
        Behaviour::with_rules(vec![Rule::on("RunInstances").error("InsufficientFreeAddressesInSubnet", 400)]),
        "request_bucket = \"off\"\n",
        GROUP,
    );
    assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(1));
    assert!(site.updates().join("\n").contains("(Code:InsufficientFreeAddressesInSubnet)"));
}

#[test]
fn p09_many_at_once_stay_small() {
    let site = Site::new(Behaviour { full_size: false, ..Behaviour::default() });
    let children: Vec<_> = (1..=30).map(|n| site.spawn("slurm_resume", &[&format!("c5-{n}")])).collect();
    for child in children {
        let ran = finished(child.wait_with_output().unwrap());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }
    assert_eq!(site.running().len(), 30);
    site.assert_settled();
}
