//! Stops and starts of the compute fleet, by each of the three programs.

mod drained;
mod manager;
mod stage;
mod table;

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};
use slurm_ec2_testkit::ec2::{Behaviour, InstanceChange, Rule, Seed};

use crate::crash::stage::wait_for_scontrol;
use crate::site::finished;
use stage::{BOOTING, Fleet, OFF, PATIENCE};

/// The orders to a node among these updates, in their order.
fn orders<'u>(updates: &'u [String], node: &str) -> Vec<&'u str> {
    let names = |update: &&String| {
        update
            .split_whitespace()
            .any(|word| word.strip_prefix("nodename=").is_some_and(|list| list.split(',').any(|one| one == node)))
    };
    let state = |update: &'u String| update.split_whitespace().find_map(|word| word.strip_prefix("state="));
    updates.iter().filter(names).filter_map(state).collect()
}

fn down_then_off() -> [(&'static str, &'static str); 5] {
    [
        ("c5-1", "ALLOCATED+CLOUD"),
        ("c5-2", "IDLE+CLOUD"),
        ("c5-3", BOOTING),
        ("c5-4", "DOWN+CLOUD+NOT_RESPONDING"),
        ("c5-5", "IDLE+CLOUD+POWERING_DOWN"),
    ]
}

/// B111.
#[test]
fn z01_a_stop_leaves_nothing_on() {
    for version in ["22.05.8", "24.11.5"] {
        let fleet = Fleet::new(Behaviour::default());
        fleet.site.scontrol("version", version);
        fleet.up(&down_then_off());
        let ran = fleet.fleet(&["stop"]);
        assert_eq!(ran.code, Some(0), "{}\n{}", ran.stderr, fleet.site.log("slurm-ec2"));
        assert!(ran.stdout.contains("no clusterstatusmgtd runs here"), "{}", ran.stdout);
        fleet.assert_stopped();
        assert_eq!(fleet.status(), "STOPPED");
        let updates = fleet.site.updates();
        assert_eq!(updates[0], "update partitionname=q1 state=inactive", "before anything else");
        // A job or a boot would keep power_down_force waiting for a slurmd whose machine is gone.
        for node in ["c5-1", "c5-3"] {
            assert_eq!(orders(&updates, node), ["down", "power_down"], "{updates:?}");
        }
        assert_eq!(orders(&updates, "c5-2"), ["power_down_force"]);
        assert_eq!(orders(&updates, "c5-4"), ["power_down"]);
        assert!(orders(&updates, "c5-5").is_empty(), "{updates:?}");
        let down = updates.iter().position(|update| update.contains("state=down")).unwrap();
        assert!(updates[down].contains("reason=stopping cluster"), "{updates:?}");
        let dummies = updates[..down].iter().any(|update| update.contains("nodeaddr=192.0.2."));
        assert_eq!(dummies, version == "22.05.8", "a requeue there freezes slurmctld without addresses");
        // Again: nothing to do.
        let ran = fleet.fleet(&["stop", "--wait"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "the fleet is STOPPED already\n"));
        assert_eq!(fleet.site.updates().len(), updates.len());
    }
}

#[test]
fn a_stop_takes_instances_that_nobody_maps_and_leaves_those_of_others() {
    let fleet = Fleet::new(Behaviour::default());
    fleet.up(&[("c5-1", "IDLE+CLOUD")]);
    let state = fs::read_to_string(fleet.site.path("state/state-id")).unwrap().trim().to_owned();
    let seed = |state: &str| Seed {
        tags: [("slurm-ec2:cluster", "hpc"), ("slurm-ec2:state", state)]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        ..Seed::default()
    };
    let stray = fleet.site.ec2.seed(&seed(&state));
    let others = fleet.site.ec2.seed(&seed("0123456789abcdef"));
    assert_eq!(fleet.fleet(&["stop"]).code, Some(0), "{}", fleet.site.log("slurm-ec2"));
    let live = fleet.site.live();
    assert!(!live.contains(&stray[0]));
    assert_eq!(live, BTreeSet::from([others[0].clone()]));
}

/// The stop takes the claims of the launch away; so the launch, when EC2 answers, condemns what it got.
#[test]
fn a_launch_that_goes_on_while_the_fleet_stops_leaves_nothing() {
    let fleet = Fleet::new(Behaviour::default());
    fleet.up(&[("c5-1", "IDLE+CLOUD")]);
    fleet.show(&[("c5-1", "IDLE+CLOUD"), ("c5-2", BOOTING)]);
    fleet.site.ec2.add_rules([Rule::on("RunInstances").hold("launch")]);
    let resume = fleet.site.spawn("slurm_resume", &["c5-2"]);
    assert!(fleet.site.ec2.wait_held("launch", PATIENCE));
    assert_eq!(fleet.fleet(&["stop"]).code, Some(0), "{}", fleet.site.log("slurm-ec2"));
    fleet.site.ec2.release("launch");
    finished(resume.wait_with_output().unwrap());
    fleet.assert_stopped();
}

/// B112.
#[test]
fn z02_a_start_makes_every_node_fit_and_resumes_only_those_that_power_down() {
    let fleet = Fleet::new(Behaviour::default());
    fleet.up(&[("c5-1", "IDLE+CLOUD")]);
    assert_eq!(fleet.fleet(&["stop"]).code, Some(0));
    // As if SuspendTimeout were never over.
    fleet.site.scontrol("live", "steps slow\n");
    fleet.show(&[
        ("c5-1", OFF),
        ("c5-2", "IDLE+CLOUD+POWERING_DOWN"),
        ("c5-3", "DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING"),
        ("c5-4", "IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING"),
        ("c5-5", "DOWN+CLOUD+POWERED_DOWN"),
        ("c5-6", BOOTING),
    ]);
    let before = fleet.site.updates().len();
    let ran = fleet.fleet(&["start"]);
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stderr, fleet.site.log("slurm-ec2"));
    let states: BTreeSet<String> = fleet.nodes().into_iter().map(|(_, state, _)| state).collect();
    assert_eq!(states, BTreeSet::from([OFF.to_owned()]), "{:?}\n{}", fleet.nodes(), fleet.site.log("slurm-ec2"));
    assert_eq!((fleet.partition().as_str(), fleet.status().as_str()), ("UP", "RUNNING"));
    let updates = &fleet.site.updates()[before..];
    assert_eq!(orders(updates, "c5-1"), Vec::<&str>::new(), "{updates:?}");
    assert_eq!(orders(updates, "c5-2"), ["resume"]);
    assert_eq!(orders(updates, "c5-3"), ["power_down", "resume"]);
    assert_eq!(orders(updates, "c5-4"), ["power_down_force", "resume"]);
    assert_eq!(orders(updates, "c5-5"), ["resume"]);
    assert_eq!(orders(updates, "c5-6"), ["down", "power_down", "resume"]);
    let up = updates.iter().position(|update| update == "update partitionname=q1 state=up").unwrap();
    assert!(updates[up..].iter().all(|update| !update.contains("nodename=")), "nodes first: {updates:?}");
}

#[test]
fn z02_one_refusal_does_not_stop_the_rest_of_a_start() {
    let fleet = Fleet::new(Behaviour::default());
    fleet.set_status("STOPPED");
    fleet.site.scontrol("partitions", "PartitionName=q1\n   State=INACTIVE TotalCPUs=1\n\n");
    fleet.show(&[("c5-1", "DOWN+CLOUD+POWERED_DOWN"), ("c5-2", "DOWN+CLOUD+POWERED_DOWN"), ("c5-3", "IDLE+CLOUD+POWERING_DOWN")]);
    fleet.site.scontrol("refuse", "c5-2\n");
    let ran = fleet.fleet(&["start"]);
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stderr, fleet.site.log("slurm-ec2"));
    let states: Vec<String> = fleet.nodes().into_iter().map(|(_, state, _)| state).collect();
    assert_eq!(states, [OFF, "DOWN+CLOUD+POWERED_DOWN", OFF]);
    assert_eq!(fleet.partition(), "UP");
    let log = fleet.site.log("slurm-ec2");
    assert!(log.contains("c5-2") && log.contains("could not be made ready"), "{log}");
}

#[test]
fn a_start_ends_protected_mode_and_forgets_the_failures_before_it() {
    let fleet = Fleet::new(Behaviour::default());
    fleet.up(&[("c5-1", "ALLOCATED+CLOUD")]);
    fleet.set_status("PROTECTED");
    fleet.site.scontrol("partitions", "PartitionName=q1\n   State=INACTIVE TotalCPUs=1\n\n");
    let failures = json!({"version": 1, "groups": {"c5": {"count": 12, "last": "2026-11-29T12:00:00Z", "nodes": [
        {"node": "c5-9", "at": "2026-11-29T12:00:00Z"}]}}});
    fleet.site.write("state/failures.json", &failures.to_string());
    assert_eq!(fleet.fleet(&["start"]).code, Some(0), "{}", fleet.site.log("slurm-ec2"));
    assert_eq!((fleet.partition().as_str(), fleet.status().as_str()), ("UP", "RUNNING"));
    let left: Value = serde_json::from_slice(&fs::read(fleet.site.path("state/failures.json")).unwrap()).unwrap();
    assert_eq!(left["groups"], json!({}));
    assert!(left["started"].is_string() || left["started"].is_number(), "for a clustermgtd that saw none of it: {left}");
    // What runs goes on.
    assert_eq!((fleet.nodes()[0].1.as_str(), fleet.site.live().len()), ("ALLOCATED+CLOUD", 1));
}

#[test]
fn a_fleet_that_runs_with_an_inactive_partition_is_started_again() {
    let fleet = Fleet::new(Behaviour::default());
    fleet.show(&[("c5-1", OFF)]);
    let ran = fleet.fleet(&["start"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "the fleet is RUNNING already\n"), "{}", ran.stderr);
    fleet.site.scontrol("partitions", "PartitionName=q1\n   State=INACTIVE TotalCPUs=1\n\n");
    let ran = fleet.fleet(&["start"]);
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stderr, fleet.site.log("slurm-ec2"));
    assert!(ran.stdout.contains("partition q1 is inactive"), "{}", ran.stdout);
    assert_eq!((fleet.partition().as_str(), fleet.status().as_str()), ("UP", "RUNNING"));
    fleet.site.scontrol("fail.show", "1\nUnable to contact slurm controller (connect failure)\n");
    // Half of it is for the look.
    fleet.give("5m", "20s");
    let ran = fleet.fleet(&["start"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("RUNNING already") && ran.stderr.contains("Unable to contact"), "{}", ran.stderr);
}

#[test]
fn z04_words_that_are_no_request_are_refused_with_those_that_are() {
    let fleet = Fleet::new(Behaviour::default());
    for word in ["STOPPED", "RUNNING", "stopp"] {
        let ran = fleet.fleet(&[word]);
        assert_eq!(ran.code, Some(2));
        assert!(ran.stderr.contains("start, stop, status"), "{}", ran.stderr);
    }
    assert_eq!(fleet.status(), "RUNNING");
    fleet.set_status("ASLEEP");
    let ran = fleet.fleet(&["start"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("ASLEEP") && ran.stderr.contains("RUNNING, STOPPED"), "{}", ran.stderr);
}

#[test]
fn what_keeps_a_stop_from_its_end_is_told_and_the_stop_can_be_made_again() {
    let fleet = Fleet::new(Behaviour { protected: vec![1], ..Behaviour::default() });
    fleet.up(&[("c5-1", "IDLE+CLOUD"), ("c5-2", "IDLE+CLOUD")]);
    let ran = fleet.fleet(&["stop"]);
    assert_eq!(ran.code, Some(75), "{}", fleet.site.log("slurm-ec2"));
    let protected = fleet.site.ec2.instances()[0].id.clone();
    assert!(ran.stderr.contains("termination protection") && ran.stderr.contains(&protected), "{}", ran.stderr);
    assert_eq!(fleet.status(), "STOPPING");
    assert_eq!(fleet.site.live(), BTreeSet::from([protected.clone()]));
    fleet.site.ec2.change(&protected, InstanceChange { protected: Some(false), ..InstanceChange::default() });
    assert_eq!(fleet.fleet(&["stop"]).code, Some(0), "{}", fleet.site.log("slurm-ec2"));
    fleet.assert_stopped();
    assert_eq!(fleet.status(), "STOPPED");
}

#[test]
fn without_slurmctld_the_instances_go_and_the_stop_is_not_done() {
    let fleet = Fleet::with(Behaviour::default(), "[fleet]\ntimeout = \"20s\"\n");
    fleet.up(&[("c5-1", "ALLOCATED+CLOUD")]);
    fleet.site.scontrol("fail.show", "1\nUnable to contact slurm controller (connect failure)\n");
    let stop = fleet.command(&["stop"]).spawn().unwrap();
    fleet.wait("the end of the instances", || fleet.site.live().is_empty());
    // What was heard counts, whatever the looks that the end cuts short come to.
    fleet.site.scontrol("hang.show", "");
    let ran = finished(stop.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(75));
    assert!(ran.stderr.contains("Unable to contact slurm controller"), "{}", ran.stderr);
    assert!(fleet.site.live().is_empty());
    assert_eq!((fleet.status().as_str(), fleet.partition().as_str()), ("STOPPING", "UP"));
    for file in ["fail.show", "hang.show"] {
        fs::remove_file(fleet.site.path(&format!("bin/scontrol.{file}"))).unwrap();
    }
    fleet.give("20s", "5m");
    // A start instead: the node whose machine is gone is taken off and fit again.
    let ran = fleet.fleet(&["start"]);
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stderr, fleet.site.log("slurm-ec2"));
    assert_eq!((fleet.status().as_str(), fleet.partition().as_str()), ("RUNNING", "UP"));
}

/// B114.
#[test]
fn the_daemon_carries_requests_out_within_seconds() {
    // Its next look at the status would be in an hour.
    let fleet = Fleet::with(Behaviour::default(), "[fleet]\npoll = \"1h\"\n");
    fleet.up(&down_then_off());
    let daemon = fleet.daemon();
    let ran = fleet.fleet(&["stop", "--wait", "--timeout", "5m"]);
    assert_eq!(ran.code, Some(0), "{}\n{}\n{}", ran.stdout, ran.stderr, daemon.log());
    assert!(ran.stdout.contains("carried out by process") && ran.stdout.ends_with("the fleet is STOPPED\n"), "{}", ran.stdout);
    fleet.assert_stopped();
    assert!(!fleet.site.log("slurm-ec2").contains("stopping the fleet"), "the command only asks");
    let ran = fleet.fleet(&["start", "--wait", "--timeout", "5m"]);
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stderr, daemon.log());
    assert_eq!((fleet.status().as_str(), fleet.partition().as_str()), ("RUNNING", "UP"));
    let second = fleet.site.run("clusterstatusmgtd", &[]);
    assert_eq!(second.code, Some(78));
    assert!(second.stderr.contains("is there for this cluster already: process"), "{}", second.stderr);
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn a_request_that_was_made_before_the_daemon_came_is_carried_out() {
    let fleet = Fleet::new(Behaviour::default());
    fleet.up(&[("c5-1", "IDLE+CLOUD")]);
    fleet.set_status("STOP_REQUESTED");
    let _daemon = fleet.daemon();
    fleet.wait("the stop", || fleet.status() == "STOPPED");
    fleet.assert_stopped();
}

#[test]
fn a_request_that_cannot_be_taken_is_told_once_and_keeps_no_signal_from_the_daemon() {
    let fleet = Fleet::with(Behaviour::default(), "[fleet]\npoll = \"1h\"\n");
    fleet.up(&[("c5-1", "IDLE+CLOUD")]);
    fleet.set_status("STOP_REQUESTED");
    let in_the_way = fleet.site.path("state/fleet.lock");
    let _ = fs::remove_file(&in_the_way);
    fs::create_dir(&in_the_way).unwrap();
    let told = |log: &str| log.lines().filter(|line| line.contains("fleet.lock") && !line.contains(" DEBUG ")).count();
    let daemon = fleet.daemon();
    fleet.wait("the error", || told(&daemon.log()) > 0);
    // Asked again it tries again, and has nothing new to tell.
    assert_eq!(fleet.fleet(&["stop"]).code, Some(0));
    fleet.wait("the next try", || daemon.log().contains("as before: "));
    assert_eq!(daemon.end_in_time(), Some(0));
    let log = fleet.site.log("clusterstatusmgtd");
    assert_eq!(told(&log), 1, "{log}");
    // One that comes when nothing is in the way carries it out.
    fs::remove_dir(&in_the_way).unwrap();
    let _daemon = fleet.daemon();
    fleet.wait("the stop", || fleet.status() == "STOPPED");
    fleet.assert_stopped();
}

/// Ends the daemon while its n-th update waits, as systemd does or with SIGKILL; then lets the update go.
fn interrupt(fleet: &Fleet, update: usize, gently: bool, begin: impl FnOnce()) {
    let hold = fleet.site.path(&format!("bin/scontrol.hold.{update}"));
    fs::write(&hold, "").unwrap();
    let daemon = fleet.daemon();
    begin();
    let held = fleet.site.path(&format!("bin/scontrol.held.{update}"));
    fleet.wait("the update", || held.exists());
    if gently {
        // It does not wait for scontrol, which waits for us.
        assert_eq!(daemon.end(), Some(0));
    } else {
        daemon.kill();
    }
    fs::remove_file(&hold).unwrap();
    // Else its change could come after those of the next one.
    wait_for_scontrol(&fleet.site);
}

/// B113.
#[test]
fn killed_anywhere_a_stop_is_taken_up_again() {
    for (update, gently) in [(1, true), (1, false), (2, false), (3, true), (4, false), (5, false)] {
        let fleet = Fleet::new(Behaviour::default());
        fleet.up(&down_then_off());
        interrupt(&fleet, update, gently, || assert_eq!(fleet.fleet(&["stop"]).code, Some(0)));
        assert_eq!(fleet.status(), "STOPPING");
        let daemon = fleet.daemon();
        fleet.wait("the stop", || fleet.status() == "STOPPED");
        fleet.assert_stopped();
        assert!(daemon.log().contains("was begun before and not ended"), "{}", daemon.log());
    }
}

#[test]
fn killed_anywhere_a_start_is_taken_up_again() {
    for (update, gently) in [(1, false), (2, true), (3, false), (4, false)] {
        let fleet = Fleet::new(Behaviour::default());
        fleet.set_status("STOPPED");
        fleet.site.scontrol("live", "steps slow\n");
        fleet.site.scontrol("partitions", "PartitionName=q1\n   State=INACTIVE TotalCPUs=1\n\n");
        fleet.show(&[
            ("c5-1", "IDLE+CLOUD+POWERING_DOWN"),
            ("c5-2", BOOTING),
            ("c5-3", "DOWN+CLOUD+POWERED_DOWN"),
            ("c5-4", OFF),
        ]);
        interrupt(&fleet, update, gently, || assert_eq!(fleet.fleet(&["start"]).code, Some(0)));
        assert_eq!(fleet.status(), "STARTING");
        let _daemon = fleet.daemon();
        fleet.wait("the start", || fleet.status() == "RUNNING");
        assert_eq!(fleet.partition(), "UP");
        assert!(fleet.nodes().iter().all(|(_, state, _)| state == OFF), "{:?}", fleet.nodes());
    }
}

#[test]
fn z04_a_start_that_is_asked_for_during_a_stop_waits_for_its_end() {
    let fleet = Fleet::new(Behaviour::default());
    fleet.up(&down_then_off());
    fleet.site.scontrol("hold.2", "");
    let daemon = fleet.daemon();
    assert_eq!(fleet.fleet(&["stop"]).code, Some(0));
    let held = fleet.site.path("bin/scontrol.held.2");
    fleet.wait("the second update", || held.exists());
    assert_eq!(fleet.status(), "STOPPING");
    let start = fleet.command(&["start", "--wait", "--timeout", "5m"]).spawn().unwrap();
    fleet.wait("the request", || fleet.status() == "START_REQUESTED");
    assert_eq!(fleet.partition(), "INACTIVE", "the stop goes on");
    fs::remove_file(fleet.site.path("bin/scontrol.hold.2")).unwrap();
    let ran = finished(start.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stderr, daemon.log());
    assert_eq!((fleet.status().as_str(), fleet.partition().as_str()), ("RUNNING", "UP"));
    assert!(fleet.site.live().is_empty(), "the stop was carried out before");
    let updates = fleet.site.updates();
    let up = updates.iter().position(|update| update.ends_with("state=up")).unwrap();
    assert!(updates[up..].iter().all(|update| !update.contains("state=inactive")), "{updates:?}");
}

#[test]
fn two_commands_at_once_do_it_one_after_the_other() {
    let fleet = Fleet::new(Behaviour::default());
    fleet.up(&down_then_off());
    let children: Vec<_> = (0..3).map(|_| fleet.command(&["stop"]).spawn().unwrap()).collect();
    for child in children {
        let ran = finished(child.wait_with_output().unwrap());
        assert_eq!(ran.code, Some(0), "{}\n{}", ran.stderr, fleet.site.log("slurm-ec2"));
    }
    fleet.assert_stopped();
    let updates = fleet.site.updates();
    assert_eq!(orders(&updates, "c5-1"), ["down", "power_down"], "{updates:?}");
}

#[test]
fn the_status_is_printed_for_people_and_for_programs() {
    let fleet = Fleet::new(Behaviour::default());
    let ran = fleet.fleet(&["status"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.starts_with("RUNNING (") && ran.stdout.contains("no clusterstatusmgtd runs here"), "{}", ran.stdout);
    assert!(!fleet.site.path("state").exists(), "looking makes nothing");
    fleet.set_status("PROTECTED");
    let queue = json!({"failures": 10, "threshold": 10, "protected_since": "2026-11-29T12:00:00Z",
        "last": [{"node": "c5-1", "at": "2026-11-29T11:59:00Z", "why": "never registered"}], "command": "slurm-ec2 fleet start"});
    fleet.site.write("state/clustermgtd-status.json", &json!({"version": 1, "queues": {"q1": queue}}).to_string());
    let _daemon = fleet.daemon();
    let ran = fleet.fleet(&["status"]);
    for part in
        ["PROTECTED", "queue q1", "10 nodes failed", "never registered", "slurm-ec2 fleet start", "carried out by process"]
    {
        assert!(ran.stdout.contains(part), "{part}: {}", ran.stdout);
    }
    let json: Value = serde_json::from_str(&fleet.fleet(&["status", "--json"]).stdout).unwrap();
    assert_eq!((&json["status"], &json["queues"]["q1"]), (&json!("PROTECTED"), &queue));
}
