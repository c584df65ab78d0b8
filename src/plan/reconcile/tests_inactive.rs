//! Rules 1 and 2: a stopped fleet, and inactive partitions.

use std::time::Duration;

use super::Memory;
use super::memory::{Replacement, Shortage};
use super::test_support::{LONG, LOOP, World, lines, lines_of, taken_down};
use crate::model::cluster::PartitionState;
use crate::model::failure::BackoffKind;
use crate::model::fleet::FleetStatus;
use crate::model::instance::InstanceState;

const NODE: &str = "q1-dy-c1-1";

/// Two queues with nodes in every kind of state, and an instance that stands behind nothing.
fn a_bit_of_everything() -> World {
    let mut world = World::new();
    world.up("q1-dy-c1-1", "IDLE+CLOUD", "i-1").up("q1-dy-c1-2", "ALLOCATED+CLOUD", "i-2");
    world.node("q1-dy-c1-3", "IDLE+CLOUD+POWERED_DOWN");
    world.node("q1-dy-c1-4", "IDLE+CLOUD+POWERING_DOWN").back("q1-dy-c1-4", "i-4", InstanceState::Running, LONG);
    world.node("q1-dy-c1-5", "ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP").back("q1-dy-c1-5", "i-5", InstanceState::Pending, 30);
    world.node("q1-dy-c1-6", "DOWN+CLOUD+POWERED_DOWN");
    world.up("q2-st-c1-1", "IDLE+CLOUD", "i-6");
    world.node("q2-dy-c1-1", "IDLE+CLOUD+POWERED_DOWN").address("q2-dy-c1-1", "10.9.9.9");
    world.node("head01", "IDLE");
    world.instance("i-alone", InstanceState::Running, LONG);
    world.instance("i-left", InstanceState::Running, LONG);
    world.slurm("q2-dy-c1-1").instance_id = Some("i-left".to_owned());
    world
}

#[test]
fn a_stopped_fleet_has_no_active_partition_no_node_on_and_no_instance() {
    let mut world = a_bit_of_everything();
    world.snapshot.fleet = FleetStatus::Stopped;
    let decision = world.pass();
    let all = lines(&decision.actions);
    for expected in [
        "inactive partition q1",
        "inactive partition q2",
        "power_down_force q1-dy-c1-1 reason \"stopping cluster\"",
        "down q1-dy-c1-2 reason \"stopping cluster\"",
        "power_down q1-dy-c1-2",
        "power_down q1-dy-c1-6 reason \"stopping cluster\"",
        "terminate i-2 of q1-dy-c1-2",
        "terminate i-4 of q1-dy-c1-4",
        "terminate i-5 of q1-dy-c1-5",
        "terminate i-alone",
        "reset-address q1-dy-c1-1",
    ] {
        assert!(all.iter().any(|line| line == expected), "{expected} in {all:#?}");
    }
    assert_eq!(lines_of(&decision, "q1-dy-c1-3"), [""; 0], "off already");
    assert_eq!(lines_of(&decision, "q1-dy-c1-4"), ["terminate i-4 of q1-dy-c1-4"], "on its way");
    assert_eq!(lines_of(&decision, "q2-dy-c1-1"), ["reset-address q2-dy-c1-1"]);
    assert!(all.contains(&"terminate i-left".to_owned()), "it is not that node's any more");
    assert_eq!(lines_of(&decision, "head01"), [""; 0], "not ours");
    assert!(!all.iter().any(|line| line.contains("debug")), "the partition of others stays: {all:?}");
    world.perform(&decision.actions);
    world.go_on();
    world.settle(3);
    let live = world.snapshot.instances.values().filter(|instance| instance.state.is_live()).count();
    assert_eq!((live, world.snapshot.mapping.nodes.len()), (0, 0));
    let off = |name: &str| name == "head01" || world.snapshot.nodes[name].slurm.state.to_string() == "IDLE+CLOUD+POWERED_DOWN";
    assert!(world.snapshot.nodes.keys().all(|name| off(name)), "{:?}", world.snapshot.nodes);
}

#[test]
fn a_fleet_in_transition_is_left_to_the_one_who_moves_it() {
    use FleetStatus::{StartRequested, Starting, StopRequested, Stopping, Unknown};
    for status in [Starting, Stopping, StartRequested, StopRequested, Unknown] {
        let mut world = a_bit_of_everything();
        world.snapshot.fleet = status;
        assert_eq!(world.pass_lines(), [""; 0], "{status}");
        assert_eq!(world.pass_lines(), [""; 0], "{status}");
    }
}

#[test]
fn nothing_of_what_was_underway_outlives_a_stop() {
    let mut world = a_bit_of_everything();
    world.snapshot.fleet = FleetStatus::Stopped;
    let at = world.ago(300);
    let replacement = Replacement { since: at, asked: at, why: "down".to_owned() };
    world.memory.replacing.insert("q2-st-c1-1".to_owned(), replacement);
    world.memory.orphans.insert("i-alone".to_owned(), at);
    world.memory.failures.entry("q1".to_owned()).or_default().entry("q1/c1".to_owned()).or_default().count = 9;
    world.memory.counted.insert(NODE.to_owned(), "launch-old".to_owned());
    world.memory.failing.insert(NODE.to_owned(), "i-1".to_owned());
    let shortage =
        Shortage { code: "x".to_owned(), kind: BackoffKind::Capacity, since: at, until: world.snapshot.now + LOOP, over: None };
    world.memory.shortages.insert("q1/c1".to_owned(), shortage);
    world.memory.protected.insert("q1".to_owned(), at);
    world.snapshot.boot_failures = vec![(NODE.to_owned(), world.ago(5))];
    let (now, memory) = (world.snapshot.now, world.pass().memory);
    let (protected, watched) = (world.memory.protected.clone(), memory.watched.clone());
    let expected = Memory { failures_seen: now, protected, watched, ..Memory::default() };
    assert_eq!(memory, expected, "failures of before the stop count no more; that q1 was protected is the next start's to clear");
    assert_eq!(memory.protected.len(), 1);
}

#[test]
fn what_was_counted_does_not_outlive_a_stop_and_start_between_two_passes() {
    let mut world = World::new();
    world.node(NODE, "IDLE+CLOUD+POWERED_DOWN").node("q1-dy-c1-2", "IDLE+CLOUD+POWERED_DOWN");
    world.up("q2-st-c1-1", "IDLE+CLOUD", "i-1");
    let at = world.ago(10);
    world.memory.failures.entry("q1".to_owned()).or_default().entry("q1/c1".to_owned()).or_default().count = 9;
    world.memory.failing.insert(NODE.to_owned(), "i-old".to_owned());
    world.snapshot.started = Some(at);
    // The first is of before the start, the second is the tenth failure otherwise.
    world.snapshot.boot_failures = vec![("q1-dy-c1-2".to_owned(), world.ago(20)), (NODE.to_owned(), world.ago(5))];
    let memory = world.pass().memory;
    assert_eq!(memory.failures["q1"]["q1/c1"].count, 1);
    assert_eq!((memory.started, memory.failing.len()), (Some(at), 0));
    // The same start is seen once.
    world.memory.failures.entry("q1".to_owned()).or_default().entry("q1/c1".to_owned()).or_default().count = 9;
    assert_eq!(world.pass().memory.failures["q1"]["q1/c1"].count, 9);
}

#[test]
fn a_start_that_stops_nothing_leaves_the_replacements_that_are_underway() {
    let mut world = World::new();
    world.node("q2-st-c1-1", "DOWN+CLOUD+POWERED_DOWN").back("q2-st-c1-1", "i-1", InstanceState::Running, 30);
    let at = world.ago(60);
    let replacement = Replacement { since: at, asked: at, why: "down".to_owned() };
    world.memory.replacing.insert("q2-st-c1-1".to_owned(), replacement);
    world.snapshot.started = Some(world.ago(10));
    assert_eq!(world.pass_lines(), [""; 0]);
    assert!(world.memory.replacing.contains_key("q2-st-c1-1"));
}

#[test]
fn a_stop_leaves_what_a_launch_at_work_will_release_itself() {
    let mut world = World::new();
    world.node(NODE, "IDLE+CLOUD+POWERED_DOWN").live_launch("launch-now", &[NODE]);
    world.instance("i-1", InstanceState::Pending, 2).tags.insert("slurm-ec2:launch".to_owned(), "launch-now".to_owned());
    world.partition("q1", PartitionState::Inactive).snapshot.fleet = FleetStatus::Stopped;
    assert_eq!(world.pass_lines(), [""; 0]);
    world.snapshot.live.clear();
    world.snapshot.launches.clear();
    assert_eq!(world.pass_lines(), [format!("forget {NODE}"), "terminate i-1".to_owned()]);
}

#[test]
fn a_node_that_stays_down_in_a_stopped_fleet_is_resumed() {
    let mut world = World::new();
    world.node(NODE, "DOWN+CLOUD+POWERED_DOWN").partition("q1", PartitionState::Inactive).snapshot.fleet = FleetStatus::Stopped;
    for pass in 1..=3 {
        let expected = format!("power_down {NODE} reason \"stopping cluster\"");
        assert_eq!(world.pass_lines()[0], expected, "pass {pass}: idle_on_node_suspend is off");
    }
    assert_eq!(world.pass_lines()[0], format!("resume {NODE}"));
}

/// B126, B96. Where `idle_on_node_suspend` is off a stop leaves it so; a person may also have drained it while its group rests.
#[test]
fn a_node_that_is_down_off_and_drained_by_a_person_is_left_so() {
    for fleet in [FleetStatus::Stopped, FleetStatus::Running] {
        let mut world = inactive("DOWN+CLOUD+DRAIN+POWERED_DOWN");
        world.reason(NODE, "bad disk, ticket 4711").snapshot.fleet = fleet;
        for _ in 0..5 {
            assert_eq!(world.pass_lines(), [""; 0], "{fleet:?}");
        }
        world.state(NODE, "DOWN+CLOUD+POWERED_DOWN");
        assert!(!world.pass_lines().is_empty(), "not drained, {fleet:?}");
    }
}

#[test]
fn an_entry_whose_instance_is_gone_ends_in_a_stopped_fleet() {
    let mut world = World::new();
    world.node(NODE, "IDLE+CLOUD+POWERED_DOWN").entry(NODE, Some("i-1"), LONG);
    world.partition("q1", PartitionState::Inactive).snapshot.fleet = FleetStatus::Stopped;
    assert_eq!((world.pass_lines().len(), world.pass_lines()), (0, vec![format!("forget {NODE}")]));
}

/// A world whose only partition is inactive.
fn inactive(state: &str) -> World {
    let mut world = World::new();
    world.node(NODE, state).partition("q1", PartitionState::Inactive);
    world
}

/// B95.
#[test]
fn a_job_in_an_inactive_partition_is_never_killed() {
    for state in [
        "ALLOCATED+CLOUD",
        "MIXED+CLOUD+PLANNED",
        "IDLE+COMPLETING+CLOUD",
        "ALLOCATED+CLOUD+DRAIN",
        "ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP",
        "ALLOCATED+CLOUD+POWERED_DOWN",
    ] {
        let mut world = inactive(state);
        world.back(NODE, "i-1", InstanceState::Running, LONG);
        for _ in 0..3 {
            assert_eq!(world.pass_lines(), [""; 0], "{state}");
        }
    }
    let mut world = inactive("IDLE+CLOUD");
    world.back(NODE, "i-1", InstanceState::Running, LONG);
    assert_eq!(world.pass_lines(), taken_down(NODE, "i-1", "inactive partition"), "the job has ended");
}

#[test]
fn a_job_in_an_inactive_partition_whose_instance_is_gone_is_requeued() {
    let mut world = inactive("ALLOCATED+CLOUD");
    world.back(NODE, "i-1", InstanceState::Terminated, LONG);
    let all = world.pass_lines();
    assert_eq!(all[0], format!("down {NODE} reason \"Scheduler health check failed: instance i-1 is terminated\""));
}

#[test]
fn every_node_of_an_inactive_partition_ends_off_with_its_own_address() {
    let states = [
        "IDLE+CLOUD",
        "IDLE+CLOUD+DRAIN",
        "IDLE+CLOUD+POWER_DOWN",
        "IDLE+CLOUD+POWERING_DOWN",
        "IDLE+CLOUD+POWERED_DOWN",
        "IDLE+CLOUD+NOT_RESPONDING+POWERING_UP",
        "IDLE+CLOUD+POWER_DOWN+NOT_RESPONDING+POWERING_UP",
        "IDLE+CLOUD+INVALID_REG+DRAIN",
        "IDLE+CLOUD+MAINTENANCE+RESERVED+SOMENEWFLAG",
        "DOWN+CLOUD",
        "DOWN+CLOUD+NOT_RESPONDING",
        "DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING",
        "DOWN+CLOUD+POWER_DOWN",
    ];
    for state in states {
        for name in ["q1-dy-c1-1", "q1-st-c1-1"] {
            let mut world = World::new();
            world.node(name, state).back(name, "i-1", InstanceState::Running, LONG).partition("q1", PartitionState::Inactive);
            world.settle(4);
            let node = world.slurm(name).clone();
            assert_eq!((node.state.to_string(), &*node.addr), ("IDLE+CLOUD+POWERED_DOWN".to_owned(), name), "{state}");
            assert!(!world.snapshot.instances["i-1"].state.is_live() && world.snapshot.mapping.nodes.is_empty(), "{state}");
        }
    }
}

#[test]
fn a_node_with_another_partition_of_ours_that_is_active_is_in_service() {
    let mut world = inactive("IDLE+CLOUD");
    world.up(NODE, "IDLE+CLOUD", "i-1");
    world.partition("q2", PartitionState::Up).policy.partitions.insert("q2".to_owned());
    world.slurm(NODE).partitions.push("q2".to_owned());
    assert_eq!(world.pass_lines(), [""; 0]);
    world.partition("q2", PartitionState::Inactive);
    assert_eq!(world.pass_lines(), taken_down(NODE, "i-1", "inactive partition"));
}

#[test]
fn a_partition_of_others_neither_keeps_a_node_nor_takes_it_out() {
    let mut world = inactive("IDLE+CLOUD");
    world.up(NODE, "IDLE+CLOUD", "i-1").partition("everything", PartitionState::Up);
    world.slurm(NODE).partitions.push("everything".to_owned());
    assert_eq!(world.pass_lines(), taken_down(NODE, "i-1", "inactive partition"));
    world.partition("q1", PartitionState::Up).partition("everything", PartitionState::Inactive);
    assert_eq!(world.pass_lines(), [""; 0]);
}

#[test]
fn what_needs_nothing_in_an_inactive_partition_is_left() {
    for state in ["IDLE+CLOUD+POWERED_DOWN", "IDLE+CLOUD+POWERING_DOWN", "IDLE+CLOUD+POWER_UP+POWERED_DOWN"] {
        assert_eq!(inactive(state).pass_lines(), [""; 0], "{state}");
    }
    for state in ["IDLE+CLOUD+REBOOT_ISSUED", "IDLE+CLOUD+POWER_DOWN", "IDLE+CLOUD+POWER_DOWN+NOT_RESPONDING+POWERING_UP"] {
        let mut world = inactive(state);
        world.back(NODE, "i-1", InstanceState::Running, LONG);
        assert_eq!(world.pass_lines(), [""; 0], "{state} comes back or goes by itself");
    }
    let mut world = inactive("ALLOCATED+CLOUD+POWERED_DOWN");
    world.back(NODE, "i-1", InstanceState::Terminated, LONG);
    assert_eq!(world.pass_lines(), [""; 0], "slurm_resume is about to be called for it");
}

#[test]
fn where_down_nodes_stay_down_only_what_is_left_behind_them_goes() {
    let down = |world: &mut World| {
        world.policy.upkeep.terminate_down_nodes = false;
        world.pass_lines().len()
    };
    assert_eq!(down(&mut inactive("DOWN+CLOUD")), 0, "the package's column: down, no address");
    assert_eq!(down(inactive("DOWN+CLOUD").address(NODE, "10.0.0.9")), 2);
    let mut mapped = inactive("DOWN+CLOUD");
    mapped.instance("i-1", InstanceState::Running, LONG);
    mapped.entry(NODE, Some("i-1"), LONG);
    assert_eq!(down(&mut mapped), 3);
    assert_eq!(
        inactive("DOWN+CLOUD").pass_lines(),
        [format!("power_down {NODE} reason \"inactive partition\""), format!("reset-address {NODE}")]
    );
}

#[test]
fn a_launch_that_is_at_work_for_an_inactive_partition_is_waited_for() {
    let mut world = inactive("IDLE+CLOUD+NOT_RESPONDING+POWERING_UP");
    world.live_launch("launch-now", &[NODE]);
    assert_eq!(world.pass_lines(), [""; 0]);
    world.back(NODE, "i-1", InstanceState::Pending, 2);
    assert_eq!(world.pass_lines(), taken_down(NODE, "i-1", "inactive partition"));
}

#[test]
fn a_claim_that_nobody_holds_ends_in_an_inactive_partition_too() {
    for state in ["ALLOCATED+CLOUD", "IDLE+CLOUD+POWERED_DOWN"] {
        let mut world = inactive(state);
        world.entry(NODE, None, LONG);
        assert_eq!(world.pass_lines(), [format!("forget {NODE}")], "{state}");
    }
}

#[test]
fn a_static_node_of_an_inactive_partition_is_no_longer_being_replaced() {
    let mut world = World::new();
    let name = "q1-st-c1-1";
    world.node(name, "IDLE+CLOUD+POWERED_DOWN").partition("q1", PartitionState::Inactive);
    let at = world.ago(60);
    world.memory.replacing.insert(name.to_owned(), Replacement { since: at, asked: at, why: "down".to_owned() });
    world.policy.upkeep.replacement_timeout = Duration::from_secs(1);
    let decision = world.pass();
    assert_eq!((lines(&decision.actions), decision.memory.replacing.len()), (Vec::new(), 0));
}
