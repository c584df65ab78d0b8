//! Dynamic nodes that Slurm cannot use.

use super::super::Memory;
use super::super::test_support::{LONG, World, lines, notes, taken_down};
use crate::model::cluster::PartitionState;
use crate::model::instance::InstanceState;

const NODE: &str = "q1-dy-c1-1";
const OFF: &str = "IDLE+CLOUD+POWERED_DOWN";
const REASON: &str = "Scheduler health check failed";

/// What comes of a node that is down already.
fn powered_down(freed: &[&str]) -> Vec<String> {
    let mut lines: Vec<String> = freed.iter().map(|line| (*line).to_owned()).collect();
    lines.push(format!("power_down {NODE} reason {REASON:?}"));
    lines.push(format!("reset-address {NODE}"));
    lines
}

fn world(state: &str) -> World {
    let mut world = World::new();
    world.node(NODE, state);
    world
}

fn backed(state: &str) -> World {
    let mut world = world(state);
    world.back(NODE, "i-1", InstanceState::Running, LONG);
    world
}

/// The console of its instance is asked for first.
fn with_console(lines: Vec<String>) -> Vec<String> {
    [vec![format!("console i-1 of {NODE}")], lines].concat()
}

fn counted(world: &World) -> u64 {
    world.memory.failures.values().flat_map(|groups| groups.values()).map(|failures| failures.count).sum()
}

/// B96.
#[test]
fn m02_m05_a_node_that_is_down_comes_back() {
    for state in [
        "DOWN+CLOUD",
        "DOWN+CLOUD+NOT_RESPONDING",
        "DOWN+CLOUD+NOT_RESPONDING+POWERING_UP",
        "DOWN+CLOUD+POWERED_DOWN",
        "DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING",
        "DOWN+CLOUD+POWER_DOWN+POWERED_DOWN+NOT_RESPONDING",
        "DOWN+CLOUD+DRAIN",
        "DOWN+CLOUD+MAINTENANCE+RESERVED+NEW_FLAG",
    ] {
        let mut world = world(state);
        let decision = world.pass();
        assert_eq!(lines(&decision.actions), powered_down(&[]), "{state}");
        assert_eq!(decision.report.unhealthy_dynamic, [NODE], "{state}");
        world.state(NODE, OFF);
        assert_eq!(world.pass_lines(), [""; 0], "{state}");
        assert_eq!(counted(&world), 0, "nothing was launched: {state}");
    }
}

#[test]
fn m05_a_node_that_is_off_or_on_its_way_is_left() {
    for state in [
        OFF,
        "IDLE+CLOUD+POWER_DOWN+POWERED_DOWN",
        "DOWN+CLOUD+POWER_DOWN",
        "DOWN+CLOUD+POWERING_DOWN",
        "IDLE+CLOUD+DRAIN+POWERING_DOWN",
        "IDLE+CLOUD+DRAIN+POWER_DOWN",
        "DOWN+CLOUD+REBOOT_ISSUED",
        "IDLE+CLOUD+DRAIN+REBOOT_REQUESTED",
    ] {
        assert_eq!(world(state).pass_lines(), [""; 0], "{state}");
    }
}

#[test]
fn m07_a_drained_node_goes_when_its_job_and_epilog_are_over() {
    for (state, goes) in [
        ("IDLE+CLOUD+DRAIN", true),
        ("IDLE+CLOUD+DRAIN+NEW_FLAG", true),
        ("IDLE+COMPLETING+CLOUD+DRAIN", false),
        ("MIXED+COMPLETING+CLOUD+DRAIN", false),
        ("MIXED+CLOUD+DRAIN", false),
        ("ALLOCATED+CLOUD+DRAIN", false),
        // It comes up first.
        ("IDLE+CLOUD+DRAIN+POWERING_UP", false),
    ] {
        let mut world = backed(state);
        let expected = if goes { taken_down(NODE, "i-1", REASON) } else { vec![] };
        assert_eq!(world.pass_lines(), expected, "{state}");
    }
}

#[test]
fn m18_a_silent_node_goes_with_its_instance_in_one_pass() {
    let mut world = backed("DOWN+CLOUD+NOT_RESPONDING");
    world.reason(NODE, "Not responding").node("q1-dy-c1-2", "DOWN+CLOUD");
    world.node("q1-st-c1-1", "DOWN+CLOUD+NOT_RESPONDING").reason("q1-st-c1-1", "Not responding");
    let decision = world.pass();
    let of_node = super::super::test_support::lines_of(&decision, NODE);
    assert_eq!(of_node, powered_down(&["terminate i-1 of q1-dy-c1-1"]));
    assert_eq!(decision.report.not_responding, [NODE, "q1-st-c1-1"]);
}

#[test]
fn m17_what_slurm_may_not_suspend_is_unhealthy_all_the_same() {
    let mut world = backed("DOWN+CLOUD+NOT_RESPONDING");
    let rules = &mut world.policy.suspend;
    rules.excluded_states.extend(["down".to_owned(), "not_responding".to_owned()]);
    rules.excluded_nodes.insert(NODE.to_owned());
    rules.excluded_partitions.insert("q1".to_owned());
    rules.time = None;
    assert_eq!(world.pass_lines(), powered_down(&["terminate i-1 of q1-dy-c1-1"]));
}

#[test]
fn settings_spare_nodes() {
    for (state, down, drain, spared) in [
        ("DOWN+CLOUD", false, true, true),
        ("IDLE+CLOUD+DRAIN", true, false, true),
        ("IDLE+CLOUD+INVALID_REG+DRAIN", true, false, true),
        ("IDLE+CLOUD+DRAIN", false, true, false),
        ("DOWN+CLOUD", true, false, false),
        ("DOWN+CLOUD+DRAIN", false, true, false),
    ] {
        let mut world = backed(state);
        (world.policy.upkeep.terminate_down_nodes, world.policy.upkeep.terminate_drain_nodes) = (down, drain);
        // To read one spares the node.
        world.policy.upkeep.consoles = false;
        assert_eq!(world.pass_lines().is_empty(), spared, "{state} {down} {drain}");
    }
}

#[test]
fn nodes_of_other_rules_are_left() {
    let mut world = backed("DOWN+CLOUD");
    world.policy.groups[0].block = Some("cr-1".to_owned());
    world.memory.blocks_waiting.insert("cr-1".to_owned(), "scheduled".to_owned());
    assert!(super::super::test_support::lines_of(&world.decide(), NODE).is_empty(), "its Capacity Block is not active");
    let mut world = backed("DOWN+CLOUD");
    world.partition("q1", PartitionState::Inactive);
    assert!(!world.pass_lines().iter().any(|line| line.contains(REASON)));
    let mut world = World::new();
    world.node(NODE, "DOWN+CLOUD").live_launch("launch-new", &[NODE]);
    assert_eq!(world.pass_lines(), [""; 0], "somebody launches it by hand");
    world.snapshot.live.clear();
    world.snapshot.launches.clear();
    assert_eq!(world.pass_lines(), powered_down(&["forget q1-dy-c1-1"]));
    let mut world = World::new();
    world.node("head01", "DOWN").node("q1-st-c1-1", "FUTURE+CLOUD");
    assert_eq!(world.pass_lines(), [""; 0], "not ours");
}

#[test]
fn resume_timeout_counts_once_for_each_launch() {
    for state in ["DOWN+CLOUD+POWERED_DOWN", "DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING"] {
        let mut world = backed(state);
        world.reason(NODE, "ResumeTimeout reached");
        let decision = world.pass();
        let kinds: Vec<_> = decision.report.boot_failures.into_iter().collect();
        assert_eq!(kinds, [("dynamic-resume-timeout-error", vec![NODE.to_owned()])], "{state}");
        world.pass();
        assert_eq!(counted(&world), 1, "the second pass saw the same: {state}");
        world.back(NODE, "i-2", InstanceState::Running, 60);
        world.mapping_mut().nodes.get_mut(NODE).unwrap().launch = "launch-2".to_owned();
        world.pass();
        assert_eq!(counted(&world), 2, "{state}");
    }
    // Down on the way up, by whomever; and a launch that failed, whose old address Slurm 22.05 has kept.
    let mut world = backed("DOWN+CLOUD+POWERING_UP");
    world.pass();
    assert_eq!(counted(&world), 0);
    let mut world = self::world("DOWN+CLOUD+POWERED_DOWN");
    world.address(NODE, "10.9.9.9").reason(NODE, "(Code:NoPrivateAddress)it never showed an address");
    assert!(!world.pass_lines().is_empty());
    assert_eq!(counted(&world), 0);
}

#[test]
fn an_invalid_registration_counts_and_goes() {
    for state in ["IDLE+CLOUD+INVALID_REG+DRAIN", "IDLE+CLOUD+INVALID_REG"] {
        let mut world = backed(state);
        let decision = world.pass();
        assert_eq!(lines(&decision.actions), with_console(taken_down(NODE, "i-1", REASON)), "{state}");
        assert_eq!(decision.report.boot_failures.keys().collect::<Vec<_>>(), [&"other-bootstrap-error"], "{state}");
        assert_eq!(counted(&world), 1, "{state}");
        assert_eq!(world.pass_lines(), taken_down(NODE, "i-1", REASON), "its console was asked for: {state}");
        let mut world = backed(state);
        world.policy.upkeep.consoles = false;
        assert_eq!(world.pass_lines(), taken_down(NODE, "i-1", REASON), "not wanted: {state}");
    }
    for state in ["MIXED+CLOUD+INVALID_REG+DRAIN", "IDLE+CLOUD+INVALID_REG+DRAIN+POWER_DOWN"] {
        let mut world = backed(state);
        assert_eq!((world.pass_lines(), counted(&world)), (vec![], 0), "{state}");
    }
}

#[test]
fn a_drain_that_outlives_its_power_down_ends_if_nobody_wants_it() {
    for reason in
        [REASON, "Node failing ec2_health_check: reachability failed", "Kill task failed", "Low RealMemory (reported:1)"]
    {
        let mut world = world("IDLE+CLOUD+DRAIN+POWERED_DOWN");
        world.reason(NODE, reason);
        let forced = [format!("power_down_force {NODE} reason {REASON:?}")];
        for pass in 1..=3 {
            assert_eq!(world.pass_lines(), forced, "{reason}, pass {pass}");
            world.state(NODE, "IDLE+CLOUD+DRAIN+POWERING_DOWN");
            assert_eq!(world.pass_lines(), [""; 0]);
            world.state(NODE, "IDLE+CLOUD+DRAIN+POWERED_DOWN");
        }
        // Without idle_on_node_suspend it would go on like that.
        assert_eq!(world.pass_lines(), [format!("resume {NODE}")]);
        world.state(NODE, OFF);
        assert_eq!(world.pass_lines(), [""; 0]);
        assert!(world.memory.watched.is_empty());
    }
}

#[test]
fn a_person_who_drains_a_node_that_is_off_is_heard() {
    let mut world = World::new();
    world.nodes("q1-dy-c1-", 3, "IDLE+CLOUD+DRAIN+POWERED_DOWN");
    (1..=3).for_each(|number| {
        world.reason(&format!("q1-dy-c1-{number}"), "bad disk, ticket 4711");
    });
    let decision = world.pass();
    assert_eq!(lines(&decision.actions), [""; 0]);
    assert_eq!(notes(&decision), ["powered down and drained by a person, left so: q1-dy-c1-[1-3]"]);
    assert!(world.pass().notes.is_empty());
    // Its instance is of no use to anybody.
    world.back("q1-dy-c1-2", "i-2", InstanceState::Running, LONG);
    assert_eq!(world.pass_lines(), ["terminate i-2 of q1-dy-c1-2", "reset-address q1-dy-c1-2"]);
    world.memory = Memory::default();
    world.policy.upkeep.terminate_drain_nodes = false;
    world.reason("q1-dy-c1-1", REASON);
    assert!(!world.pass_lines().iter().any(|line| line.contains("q1-dy-c1-1")));
}

/// B96. Its group rests, so it is down by our word when a person drains it: `power_down` would take the drain away with the rest.
#[test]
fn a_person_who_drains_a_node_of_a_resting_group_is_heard() {
    const ICE: &str = "(Code:InsufficientInstanceCapacity)Temporarily disabling node due to insufficient capacity";
    let mut world = World::new();
    world.nodes("q1-dy-c1-", 2, "DOWN+CLOUD+POWERED_DOWN");
    world.reason(NODE, ICE).reason("q1-dy-c1-2", ICE);
    world.pass();
    world.state(NODE, "DOWN+CLOUD+DRAIN+POWERED_DOWN").reason(NODE, "bad disk, ticket 4711");
    let decision = world.pass();
    assert_eq!(lines(&decision.actions), [""; 0]);
    assert_eq!(notes(&decision), ["powered down and drained by a person, left so: q1-dy-c1-1"]);
    // The rest is over: for the other one.
    let actions: Vec<String> = (0..12).flat_map(|_| world.pass_lines()).collect();
    assert!(!actions.is_empty() && actions.iter().all(|line| line.contains("q1-dy-c1-2")), "{actions:?}");
    // What is behind it goes all the same, as behind any node that was not up in time.
    world.back(NODE, "i-1", InstanceState::Running, LONG);
    assert!(world.pass_lines().contains(&format!("terminate i-1 of {NODE}")));
}

/// Killed between the order that sets a node down and the one that brings it back.
#[test]
fn a_node_that_we_have_set_down_comes_back_whatever_is_spared() {
    for (reason, expected) in [
        (REASON, true),
        ("inactive partition", true),
        ("Scheduler health check failed: instance i-1 is terminated", true),
        ("Scheduler health check failed : Not responding", false),
    ] {
        let mut world = backed("DOWN+CLOUD");
        world.policy.upkeep.terminate_down_nodes = false;
        world.reason(NODE, reason);
        let freed = format!("terminate i-1 of {NODE}");
        assert_eq!(world.pass_lines(), if expected { powered_down(&[&freed]) } else { vec![] }, "{reason}");
    }
}
