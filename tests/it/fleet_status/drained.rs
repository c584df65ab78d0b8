//! What a person drained or set down stays out of service over a stop and a start, wherever the programs are killed.

use std::fs;
use std::process::Child;

use slurm_ec2_testkit::ec2::Behaviour;

use super::stage::{Fleet, OFF};
use super::{interrupt, orders};
use crate::crash::stage::wait_for_scontrol;

const REASON: &str = "bad disk, ticket 4711";

fn is_as_the_person_had_it(fleet: &Fleet, node: &str) -> bool {
    let (state, reason) = fleet.state_and_reason(node);
    let flags: Vec<&str> = state.split('+').collect();
    flags.contains(&"DRAIN") && flags.contains(&"POWERED_DOWN") && reason.as_deref() == Some(REASON)
}

/// Idle, busy and booting nodes, three of them drained by a person, and one by Slurm.
fn with_drained_nodes() -> Fleet {
    let fleet = Fleet::new(Behaviour::default());
    fleet.up(&[
        ("c5-1", "IDLE+CLOUD"),
        ("c5-2", "ALLOCATED+CLOUD"),
        ("c5-3", "DOWN+CLOUD"),
        ("c5-4", "IDLE+CLOUD"),
        ("c5-5", "IDLE+CLOUD"),
    ]);
    for node in ["c5-1", "c5-2", "c5-3"] {
        fleet.drain(node, REASON);
    }
    fleet.drain("c5-4", "Kill task failed");
    let _ = fs::remove_file(fleet.site.path("bin/scontrol.log"));
    fleet
}

#[track_caller]
fn assert_drained(fleet: &Fleet) {
    let log = || format!("{}\n{}", fleet.site.log("slurm-ec2"), fleet.site.log("clusterstatusmgtd"));
    for node in ["c5-1", "c5-2", "c5-3"] {
        assert!(is_as_the_person_had_it(fleet, node), "{node}: {:?}\n{}", fleet.state_and_reason(node), log());
    }
    for node in ["c5-4", "c5-5"] {
        assert_eq!(fleet.state_and_reason(node).0, OFF, "{node}\n{}", log());
    }
    assert!(fleet.nodes().iter().all(|(name, _, address)| name == address), "{:?}", fleet.nodes());
    assert!(fleet.site.live().is_empty());
}

#[test]
fn b126_what_a_person_drained_is_drained_after_a_stop_and_a_start() {
    for version in ["22.05.8", "24.11.5"] {
        let fleet = with_drained_nodes();
        fleet.site.scontrol("version", version);
        let ran = fleet.fleet(&["stop"]);
        assert_eq!(ran.code, Some(0), "{}\n{}", ran.stderr, fleet.site.log("slurm-ec2"));
        assert_drained(&fleet);
        let updates = fleet.site.updates();
        for (node, told) in [("c5-1", vec!["power_down_force", "drain"]), ("c5-2", vec!["down", "power_down", "drain"])] {
            assert_eq!(orders(&updates, node), told, "{updates:?}");
        }
        // The reason comes with the first order, or a program that is killed after it leaves a node that nobody knows of.
        let mark = format!("reason=stopping cluster, was drained: {REASON}");
        for (node, state) in [("c5-1", "power_down_force"), ("c5-2", "down"), ("c5-3", "power_down")] {
            let order = updates.iter().find(|update| update.contains(node) && update.contains(&format!("state={state} ")));
            assert!(order.is_some_and(|order| order.ends_with(&mark)), "{node}: {updates:?}");
        }
        let ran = fleet.fleet(&["start"]);
        assert_eq!(ran.code, Some(0), "{}\n{}", ran.stderr, fleet.site.log("slurm-ec2"));
        assert_drained(&fleet);
        assert_eq!((fleet.status().as_str(), fleet.partition().as_str()), ("RUNNING", "UP"));
        assert_eq!(fleet.site.updates().len() - updates.len(), 1, "only the partition: {:?}", fleet.site.updates());
        let log = fleet.site.log("slurm-ec2");
        assert!(log.contains("drained again") && log.contains("left drained"), "{log}");
    }
}

#[test]
fn b126_killed_anywhere_a_stop_or_a_start_drains_again() {
    killed_anywhere(1..9, with_drained_nodes, |fleet, then, story| {
        for node in ["c5-1", "c5-2", "c5-3"] {
            let (state, reason) = fleet.state_and_reason(node);
            assert!(state.contains("DRAIN") && reason.as_deref() == Some(REASON), "{story} {node} {state} {reason:?}");
        }
        if then == "stop" {
            assert_drained(fleet);
        }
    });
}

/// A stop is killed at each of these updates; a stop or a start goes on. `check` is told which, and of what case.
fn killed_anywhere(updates: std::ops::Range<usize>, with: fn() -> Fleet, check: impl Fn(&Fleet, &str, &str)) {
    for update in updates {
        for then in ["stop", "start"] {
            let fleet = with();
            interrupt(&fleet, update, false, || assert_eq!(fleet.fleet(&["stop"]).code, Some(0)));
            let ran = fleet.fleet(&[then]);
            assert_eq!(ran.code, Some(0), "{}\n{}", ran.stderr, fleet.site.log("slurm-ec2"));
            check(&fleet, then, &format!("{update} {then}"));
        }
    }
}

#[test]
fn b126_a_start_drains_again_where_slurmctld_has_forgotten_the_inactive_partitions() {
    let fleet = Fleet::new(Behaviour::default());
    fleet.up(&[("c5-1", "IDLE+CLOUD")]);
    fleet.drain("c5-1", REASON);
    let _ = fs::remove_file(fleet.site.path("bin/scontrol.log"));
    interrupt(&fleet, 2, false, || assert_eq!(fleet.fleet(&["stop"]).code, Some(0)));
    assert!(!fleet.state_and_reason("c5-1").0.contains("DRAIN"));
    fleet.site.scontrol("partitions", "PartitionName=q1\n   State=UP TotalCPUs=1\n\n");
    assert_eq!(fleet.fleet(&["start"]).code, Some(0), "{}", fleet.site.log("slurm-ec2"));
    assert!(fleet.state_and_reason("c5-1").0.contains("DRAIN"), "{:?}", fleet.state_and_reason("c5-1"));
    assert_eq!(fleet.state_and_reason("c5-1").1.as_deref(), Some(REASON));
    assert!(fleet.site.live().is_empty());
}

/// Killed before it could drain again, with the mark in Slurm alone.
#[test]
fn b126_a_node_that_is_resumed_while_the_fleet_stops_is_not_drained_again() {
    let fleet = with_drained_nodes();
    interrupt(&fleet, 6, false, || assert_eq!(fleet.fleet(&["stop"]).code, Some(0)));
    fleet.wait("the power-down of the last node", || fleet.state_and_reason("c5-3").0.contains("POWER"));
    for node in ["c5-1", "c5-2"] {
        let (state, reason) = fleet.state_and_reason(node);
        assert!(!state.contains("DRAIN") && reason.is_some_and(|reason| reason.starts_with("stopping cluster, was drained: ")));
        // Refused where the node is off already; the reason goes all the same.
        fleet.scontrol(&["update", &format!("nodename={node}"), "state=resume"]);
    }
    assert_eq!(fleet.fleet(&["stop"]).code, Some(0), "{}", fleet.site.log("slurm-ec2"));
    assert!(is_as_the_person_had_it(&fleet, "c5-3"), "{:?}", fleet.state_and_reason("c5-3"));
    for node in ["c5-1", "c5-2"] {
        assert_eq!(fleet.state_and_reason(node), (OFF.to_owned(), None));
    }
}

/// One that a person set down, up and off, and one that slurmctld did.
fn with_down_nodes() -> Fleet {
    let fleet = Fleet::new(Behaviour::default());
    fleet.up(&[("c5-1", "IDLE+CLOUD"), ("c5-2", OFF), ("c5-3", "IDLE+CLOUD")]);
    for (node, reason) in [("c5-1", REASON), ("c5-2", REASON), ("c5-3", "Not responding")] {
        fleet.scontrol(&["update", &format!("nodename={node}"), "state=down", &format!("reason={reason}")]);
        assert!(fleet.state_and_reason(node).0.starts_with("DOWN+CLOUD"));
    }
    let _ = fs::remove_file(fleet.site.path("bin/scontrol.log"));
    fleet
}

#[test]
fn b126_what_a_person_set_down_is_drained_after_a_stop_and_a_start() {
    let fleet = with_down_nodes();
    for word in ["stop", "start"] {
        let ran = fleet.fleet(&[word]);
        assert_eq!(ran.code, Some(0), "{}\n{}", ran.stderr, fleet.site.log("slurm-ec2"));
        for node in ["c5-1", "c5-2"] {
            assert!(is_as_the_person_had_it(&fleet, node), "{word} {node}: {:?}", fleet.state_and_reason(node));
        }
        assert_eq!(fleet.state_and_reason("c5-3").0, OFF, "{word}");
    }
    let updates = fleet.site.updates();
    for node in ["c5-1", "c5-2"] {
        assert_eq!(orders(&updates, node), ["power_down", "drain"], "{updates:?}");
    }
    let mark = format!("reason=stopping cluster, was down: {REASON}");
    assert!(updates.iter().any(|update| update.contains("state=power_down ") && update.ends_with(&mark)), "{updates:?}");
    assert!(fleet.site.live().is_empty());
}

#[test]
fn b126_killed_anywhere_what_a_person_set_down_stays_out_of_service() {
    killed_anywhere(1..6, with_down_nodes, |fleet, then, story| {
        for node in ["c5-1", "c5-2"] {
            let (state, reason) = fleet.state_and_reason(node);
            // A start leaves those down that nobody has told yet.
            let is_out = state.contains("DRAIN") || (then == "start" && state.starts_with("DOWN"));
            assert!(is_out && reason.as_deref() == Some(REASON), "{story} {node} {state} {reason:?}");
        }
    });
}

/// A stop was killed behind its order to power a drained node down, and slurmctld does not begin with that.
fn with_a_late_power_down(sections: &str) -> Fleet {
    let fleet = Fleet::with(Behaviour::default(), &format!("{sections}[fleet]\npoll = \"1s\"\ntimeout = \"5m\"\n"));
    fleet.up(&[("c5-1", "IDLE+CLOUD")]);
    fleet.drain("c5-1", REASON);
    let _ = fs::remove_file(fleet.site.path("bin/scontrol.log"));
    fleet.site.scontrol("live", "steps late\n");
    interrupt(&fleet, 2, false, || assert_eq!(fleet.fleet(&["stop"]).code, Some(0)));
    assert_waits(&fleet);
    fleet
}

#[track_caller]
fn assert_waits(fleet: &Fleet) {
    let mark = format!("stopping cluster, was drained: {REASON}");
    assert_eq!(fleet.state_and_reason("c5-1"), ("IDLE+CLOUD+DRAIN+POWER_DOWN".to_owned(), Some(mark)));
}

/// slurmctld begins with the power-down, and DRAIN goes.
fn begin(fleet: &Fleet) {
    fleet.site.scontrol("live", "steps\n");
    fleet.scontrol(&["update", "nodename=c5-1", "state=power_down_force"]);
}

/// Killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn b126_a_start_stays_until_slurmctld_has_begun_with_the_power_down() {
    let fleets = [with_a_late_power_down(""), with_a_late_power_down("")];
    let mut starts = fleets.each_ref().map(|fleet| Running(fleet.command(&["start"]).spawn().unwrap()));
    for fleet in &fleets {
        fleet.wait("the partition", || fleet.partition() == "UP");
        assert_waits(fleet);
    }
    let ([fleet, killed], [start, to_be_killed]) = (&fleets, &mut starts);
    begin(fleet);
    assert_eq!(start.0.wait().unwrap().code(), Some(0), "{}", fleet.site.log("slurm-ec2"));
    // The next one finds it, though the partitions are up.
    to_be_killed.0.kill().unwrap();
    to_be_killed.0.wait().unwrap();
    wait_for_scontrol(&killed.site);
    assert_eq!(killed.status(), "STARTING");
    begin(killed);
    assert_eq!(killed.fleet(&["start"]).code, Some(0), "{}", killed.site.log("slurm-ec2"));
    for fleet in &fleets {
        assert!(is_as_the_person_had_it(fleet, "c5-1"), "{:?}\n{}", fleet.state_and_reason("c5-1"), fleet.site.log("slurm-ec2"));
        assert_eq!((fleet.status().as_str(), fleet.partition().as_str()), ("RUNNING", "UP"));
        assert!(fleet.site.live().is_empty());
    }
}

#[test]
fn b126_clustermgtd_drains_what_a_start_does_not_stay_for() {
    let fleet = with_a_late_power_down("[clustermgtd]\nloop_time = \"1s\"\n");
    let _daemon = Running(fleet.site.spawn("clustermgtd", &[]));
    fleet.wait("clustermgtd", || fleet.site.path("state/clustermgtd-status.json").exists());
    let ran = fleet.fleet(&["start"]);
    assert_eq!((ran.code, fleet.status().as_str()), (Some(0), "RUNNING"), "{}\n{}", ran.stderr, fleet.site.log("slurm-ec2"));
    assert_waits(&fleet);
    begin(&fleet);
    fleet.wait("the drain", || is_as_the_person_had_it(&fleet, "c5-1"));
    assert!(fleet.site.live().is_empty());
}
