//! computemgtd's watch over the head node: heartbeats that stop, hang or come back, and what slurmctld says then.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::compute_node::{NODE, NOTICE, Node};

const UNREACHABLE: &str = "1\nslurm_load_node error: Unable to contact slurm controller (connect failure)\n";

/// B120.
#[test]
fn w03_a_stale_heartbeat_and_a_node_that_is_off_shut_it_down_once() {
    for state in ["IDLE+CLOUD+POWERED_DOWN", "IDLE+CLOUD+POWERING_DOWN", "DOWN+CLOUD+SOMETHING_NEW"] {
        // Looks when it likes, as it does where nobody signals.
        let node = Node::with("loop_time = \"5s\"\n");
        node.site.scontrol("state", &format!("{state}\n"));
        // What the log held when shutdown began.
        node.site.write("bin/shutdown.copy", &node.site.path("log/computemgtd.log").display().to_string());
        let daemon = node.start();
        node.until("a shutdown", || !node.shutdowns().is_empty());
        let before = fs::read_to_string(node.site.path("bin/shutdown.copied")).unwrap();
        assert!(before.contains("this node shuts itself down") && before.contains(state), "{before}");
        node.loops(3);
        assert_eq!(node.shutdowns(), ["-h now"]);
        assert_eq!(node.lines_with("this node shuts itself down"), 1);
        assert_eq!(daemon.end(), Some(0));
    }
}

#[test]
fn w03_a_heartbeat_that_changes_keeps_the_node_on() {
    let limit = Duration::from_secs(15);
    let node = Node::with(&format!("heartbeat_timeout = \"{}s\"\n", limit.as_secs()));
    node.site.scontrol("state", "IDLE+CLOUD+POWERED_DOWN\n");
    let _daemon = node.start();
    node.loops(1);
    // Longer than an unchanged one would do.
    let begun = Instant::now();
    let mut beat = 0;
    while begun.elapsed() < limit + Duration::from_secs(5) {
        node.beat(&format!("2026-03-14 15:09:26.{beat:06}+0000"));
        node.loops(1);
        std::thread::sleep(Duration::from_millis(200));
        beat += 1;
    }
    assert!(node.shutdowns().is_empty(), "{}", node.log());
    // Neither is slurmctld troubled.
    assert_eq!(node.site.scontrol_calls(), Vec::<String>::new());
}

#[test]
fn w03_a_healthy_node_runs_on_without_clustermgtd() {
    for state in ["ALLOCATED+CLOUD", "IDLE+CLOUD+DRAIN", "MIXED+CLOUD+SOMETHING_NEW", "DOWN+CLOUD+REBOOT_ISSUED"] {
        let node = Node::new();
        node.site.scontrol("state", &format!("{state}\n"));
        let _daemon = node.start();
        node.looking("a decision", || node.log().contains("the heartbeat is stale"));
        node.loops(2);
        assert!(node.shutdowns().is_empty(), "{state}: {}", node.log());
        assert_eq!(node.lines_with("the heartbeat is stale"), 1, "told on change alone: {}", node.log());
        assert!(node.site.updates().is_empty());
    }
}

/// The whole time-out, and no job here; a job runs for as long as it likes (aws-facts D.9 #20).
#[test]
fn w03_a_silent_slurmctld_shuts_down_an_idle_node_and_no_busy_one() {
    // As slurmd's processes are called; it is there before the daemon looks.
    let beside = |seconds: &str| {
        format!(
            "ln -s /usr/bin/sleep slurmstepd; ./slurmstepd {seconds} & until grep -qs slurmstepd /proc/$!/comm; do sleep 0.05; done"
        )
    };
    // The first is no step: slurmd's own, that holds its cgroup.
    for (beside, busy) in [(beside("infinity"), false), (beside("1000"), true)] {
        // A question to a silent slurmctld takes the whole of a loop.
        let node = Node::with("loop_time = \"1s\"\n");
        node.site.scontrol("fail.show", UNREACHABLE);
        let folder = node.site.path("steps");
        fs::create_dir(&folder).unwrap();
        let _daemon = node.start_as(node.command(&format!("cd {}; {beside}", folder.display())));
        if busy {
            node.until("a decision", || node.log().contains("but a job runs here"));
            node.loops(2);
            assert!(node.shutdowns().is_empty(), "{}", node.log());
            fs::remove_file(node.site.path("bin/scontrol.fail.show")).unwrap();
            node.until("an answer", || node.log().contains("slurmctld answers again"));
        } else {
            node.until("a shutdown", || !node.shutdowns().is_empty());
            assert!(node.log().contains("slurmctld does not answer since"), "{}", node.log());
        }
    }
}

/// B122.
#[test]
fn w02_a_heartbeat_that_hangs_does_not_stop_the_watch() {
    // Each look waits a loop for the heartbeat. The time-out is one in which some question to slurmctld is answered within its second, on
    // a loaded machine too.
    let node = Node::with("loop_time = \"1s\"\nheartbeat_timeout = \"8s\"\n");
    fs::remove_file(node.site.path("heartbeat")).unwrap();
    // Opening it waits for a writer, who never comes.
    assert!(Command::new("mkfifo").arg(node.site.path("heartbeat")).status().unwrap().success());
    let daemon = node.start();
    node.until("some looks", || node.site.scontrol_calls().len() >= 4);
    node.until("a decision", || node.log().contains("the heartbeat is stale"));
    assert!(node.shutdowns().is_empty(), "{}", node.log());
    // One thread waits for the FIFO, not one for each look.
    node.loops(3);
    // Its own, that one, and beside them for a moment those that ask scontrol or look at processes.
    node.until("no more threads", || daemon.entries("task") <= 2);
    assert_eq!(node.lines_with("the heartbeat cannot be read"), 1, "{}", node.log());
    node.site.scontrol("state", "IDLE+CLOUD+POWERED_DOWN\n");
    node.until("a shutdown", || !node.shutdowns().is_empty());
    assert_eq!(daemon.end(), Some(0), "with a thread that hangs");
}

#[test]
fn w02_a_hanging_scontrol_or_configuration_does_not_keep_it_from_ending() {
    // It asks, and decides nothing yet.
    let node = Node::with("loop_time = \"1s\"\nheartbeat_timeout = \"1h\"\n");
    node.site.scontrol("hang.show", "");
    let daemon = node.start();
    node.until("a question", || !node.site.scontrol_calls().is_empty());
    fs::remove_file(node.site.path("slurm-ec2.toml")).unwrap();
    assert!(Command::new("mkfifo").arg(node.site.path("slurm-ec2.toml")).status().unwrap().success());
    daemon.signal(Signal::SIGHUP);
    assert_eq!(daemon.end(), Some(0));
    assert!(node.shutdowns().is_empty());
}

/// B121.
#[test]
fn w04_time_zones_and_the_head_nodes_clock_play_no_part() {
    for zone in ["UTC", "America/Los_Angeles", "Asia/Kolkata"] {
        let node = Node::new();
        // An hour that Los Angeles does not have, long ago and far ahead.
        for time in ["2026-03-08 02:30:00.000000-0800", "1999-01-01 00:00:00.000000+0000", "2099-01-01 00:00:00.000000+0530"] {
            node.beat(time);
        }
        node.site.scontrol("state", "IDLE+CLOUD+POWERED_DOWN\n");
        let mut command = node.command("");
        command.env("TZ", zone);
        let _daemon = node.start_as(command);
        node.looking("a shutdown", || !node.shutdowns().is_empty());
        let log = node.log();
        let line = log.lines().find(|line| line.contains("this node shuts itself down")).unwrap();
        let age: u64 = line.split("has not changed for ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        // No zone and no clock is so little off.
        assert!((2..600).contains(&age), "{zone}: {line}");
    }
}

#[test]
fn w05_a_thousand_looks_leave_no_descriptor_open() {
    let node = Node::with("spot_hook = \"/nonexistent\"\n");
    let daemon = node.start();
    // Stale, so that each look asks scontrol as well.
    node.looking("a question", || !node.site.scontrol_calls().is_empty());
    let look = |count: usize| {
        for _ in 0..count {
            let asked = node.site.scontrol_calls().len();
            daemon.signal(Signal::SIGHUP);
            node.until("a look", || node.site.scontrol_calls().len() > asked);
        }
        // The last scontrol may still be at work.
        node.until("quiet", || daemon.entries("task") == 1);
    };
    look(10);
    let early = daemon.entries("fd");
    look(1000);
    // In the middle of a look there are some more.
    node.until("no more descriptors than before", || daemon.entries("fd") <= early + 2);
    assert!(node.shutdowns().is_empty());
}

#[test]
fn w05_a_bad_configuration_is_told_once_and_the_last_good_one_counts() {
    let node = Node::new();
    let good = fs::read_to_string(node.site.path("slurm-ec2.toml")).unwrap();
    let _daemon = node.start();
    node.until("the start", || node.log().contains("started"));
    let refused = "the configuration has changed and cannot be used";
    for (count, bad) in [(1, "cluster = 3\n"), (2, ""), (3, "[computemgtd\n")] {
        node.site.write("slurm-ec2.toml", bad);
        node.looking("the error", || node.lines_with(refused) >= count);
        let asked = node.site.scontrol_calls().len();
        node.looking("two looks", || node.site.scontrol_calls().len() >= asked + 2);
        assert_eq!(node.lines_with(refused), count, "{}", node.log());
    }
    fs::remove_file(node.site.path("slurm-ec2.toml")).unwrap();
    node.looking("the error", || node.lines_with(refused) == 4);
    node.site.write("slurm-ec2.toml", &good);
    node.looking("the change", || node.log().contains("the configuration has changed and counts"));
    // By the last good one, all the time.
    node.site.write("slurm-ec2.toml", "garbage");
    node.site.scontrol("state", "DOWN+CLOUD\n");
    node.looking("a shutdown", || !node.shutdowns().is_empty());
}

#[test]
fn w05_a_configuration_that_is_bad_or_absent_at_the_start_ends_it() {
    let node = Node::new();
    node.site.write("slurm-ec2.toml", "cluster = 3\n");
    let ran = node.site.run("computemgtd", &[]);
    assert!(ran.code == Some(78) && ran.stderr.contains("slurm-ec2.toml:1:"), "{:?} {}", ran.code, ran.stderr);
    // On NFS it may only not be there yet: systemd starts the daemon again.
    fs::remove_file(node.site.path("slurm-ec2.toml")).unwrap();
    assert_eq!(node.site.run("computemgtd", &[]).code, Some(75));
    assert_eq!(node.site.run("computemgtd", &["--nonsense"]).code, Some(2));
}

#[test]
fn a_shutdown_that_fails_is_tried_again_and_told_once() {
    let node = Node::new();
    node.site.scontrol("state", "DOWN+CLOUD\n");
    node.site.write("bin/shutdown.fail", "1\nFailed to connect to bus\n");
    let _daemon = node.start();
    node.looking("three tries", || node.shutdowns().len() >= 3);
    assert_eq!(node.lines_with("Failed to connect to bus"), 1, "{}", node.log());
    fs::remove_file(node.site.path("bin/shutdown.fail")).unwrap();
    node.looking("success", || node.log().contains("the shutdown has been accepted"));
    let count = node.shutdowns().len();
    node.loops(2);
    assert_eq!(node.shutdowns().len(), count);
}

#[test]
fn w03_through_sudo_as_parallelcluster_has_it() {
    let node = Node::new();
    let sudo = format!("sudo = \"{}\"\n", node.site.path("bin/sudo").display());
    node.site.write("slurm-ec2.toml", &node.config("", &sudo));
    node.site.scontrol("state", "DOWN+CLOUD\n");
    let _daemon = node.start();
    node.looking("a shutdown", || !node.shutdowns().is_empty());
    let bin = node.site.path("bin").display().to_string();
    let calls = node.recorded("sudo");
    assert!(
        calls.iter().any(|call| call.starts_with(&format!("-n {bin}/scontrol --all --local show nodes {NODE}"))),
        "{calls:?}"
    );
    assert_eq!(calls.iter().filter(|call| **call == format!("-n {bin}/shutdown -h now")).count(), 1, "{calls:?}");
}

#[test]
fn switched_off_it_only_watches() {
    let node = Node::with("disabled = true\nspot_hook = \"/nonexistent/hook\"\n");
    node.site.scontrol("state", "DOWN+CLOUD\n");
    node.imds.set("spot/instance-action", NOTICE);
    let _daemon = node.start();
    node.looking("both", || node.log().contains("shutting down is switched off") && node.log().contains("spot notice"));
    let seen = node.imds.count("spot/instance-action");
    node.until("further looks", || node.imds.count("spot/instance-action") >= seen + 2);
    assert!(node.shutdowns().is_empty() && node.site.scontrol_calls().is_empty(), "{}", node.log());
    assert!(!node.log().contains("hook"), "{}", node.log());
}

#[test]
fn a_host_name_that_slurm_does_not_know_shuts_nothing_down() {
    let node = Node::new();
    fs::remove_file(node.site.path("node-name")).unwrap();
    // Every name is unknown.
    node.site.scontrol("nodes", "NodeName=other CoresPerSocket=1 \n   State=DOWN+CLOUD \n\n");
    let _daemon = node.start();
    node.looking("a decision", || node.log().contains("slurmctld knows no node"));
    node.loops(4);
    assert!(node.shutdowns().is_empty(), "{}", node.log());
}

/// A head or login node made from the same image: its host has a name as well, and slurmctld is stopped for the day.
#[test]
fn w03_a_machine_that_nobody_has_called_a_node_is_not_shut_down_for_silence() {
    let node = Node::with("loop_time = \"1s\"\n");
    fs::remove_file(node.site.path("node-name")).unwrap();
    node.site.scontrol("fail.show", UNREACHABLE);
    let _daemon = node.start();
    node.until("a decision", || node.log().contains("nobody has said that this machine is a node"));
    // Far more than the time-out of 2 s.
    node.loops(6);
    assert!(node.shutdowns().is_empty(), "{}", node.log());
    // slurmctld knows it: from now on its silence counts.
    fs::remove_file(node.site.path("bin/scontrol.fail.show")).unwrap();
    let again = "slurmctld answers again";
    node.until("an answer", || node.log().contains(again));
    // On a machine that stands still it may fall silent once more right after that.
    let log = node.log();
    assert!(!log.split_once(again).unwrap().0.contains("this node shuts itself down"), "{log}");
    node.site.scontrol("fail.show", UNREACHABLE);
    node.until("a shutdown", || !node.shutdowns().is_empty());
    assert!(node.log().contains("slurmctld does not answer since"), "{}", node.log());
}

#[test]
fn a_compute_nodes_own_file_is_enough() {
    let node = Node::new();
    let config = node.config("", "");
    node.site.write("slurm-ec2.toml", config.split("[[group]]").next().unwrap());
    node.site.scontrol("state", "DOWN+CLOUD\n");
    let daemon = node.start();
    node.looking("a shutdown", || !node.shutdowns().is_empty());
    assert_eq!(daemon.end(), Some(0), "{}", node.log());
}

#[test]
fn w02_a_scontrol_that_hangs_is_a_slurmctld_that_does_not_answer() {
    // A question takes the whole of a loop.
    let node = Node::with("loop_time = \"1s\"\n");
    node.site.scontrol("hang.show", "");
    let _daemon = node.start();
    node.until("a shutdown", || !node.shutdowns().is_empty());
    assert!(node.log().contains("slurmctld does not answer since"), "{}", node.log());
}

/// B122.
#[test]
fn w02_with_a_configuration_that_hangs_the_last_good_one_counts() {
    // Thirty seconds of each are waited for the file.
    let node = Node::with("loop_time = \"1s\"\n");
    let _daemon = node.start();
    node.until("a question", || !node.site.scontrol_calls().is_empty());
    fs::remove_file(node.site.path("slurm-ec2.toml")).unwrap();
    assert!(Command::new("mkfifo").arg(node.site.path("slurm-ec2.toml")).status().unwrap().success());
    node.site.scontrol("state", "DOWN+CLOUD\n");
    node.until("a shutdown", || !node.shutdowns().is_empty());
    node.until("the warning", || node.log().contains("the configuration's file system does not answer"));
}
