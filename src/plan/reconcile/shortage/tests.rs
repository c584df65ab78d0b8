//! Groups that rest.

use std::time::Duration;

use super::super::What;
use super::super::memory::Shortage;
use super::super::test_support::{World, lines, lines_of, notes};
use crate::model::failure::BackoffKind;
use crate::model::instance::InstanceState;
use crate::model::time::Timestamp;

const ICE: &str = "InsufficientInstanceCapacity";
const DOWN: &str = "DOWN+CLOUD+NOT_RESPONDING+POWERING_UP";
const OFF: &str = "IDLE+CLOUD+POWERED_DOWN";
const DISABLED: &str = "(Code:InsufficientInstanceCapacity)Temporarily disabling node due to insufficient capacity";
const ENABLED: &str = "Enabling node since insufficient capacity timeout expired";

/// A node whose launch failed with that code, another of its group that is off, and one of another group.
fn world(code: &str) -> World {
    let mut world = World::new();
    world.node("q1-dy-c1-1", DOWN).reason("q1-dy-c1-1", &failure(code));
    world.node("q1-dy-c1-2", OFF).node("q1-dy-c2-1", OFF);
    world
}

fn failure(code: &str) -> String {
    format!("(Code:{code})Failure when resuming nodes - Check the slurm_resume log for EC2 error codes")
}

fn set_down(node: &str) -> String {
    format!("down {node} reason {DISABLED:?}")
}

fn brought_back(node: &str) -> String {
    format!("power_down {node} reason {ENABLED:?}")
}

/// The group's rest from now.
fn rest(decision: &super::super::Decision, now: Timestamp) -> Option<(BackoffKind, u64)> {
    let shortage = decision.memory.shortages.get("q1/c1")?;
    Some((shortage.kind, shortage.until.since(now).as_secs()))
}

/// The node was set down as this module asks for it.
fn obey(world: &mut World, node: &str) {
    world.state(node, "DOWN+CLOUD+POWERED_DOWN").reason(node, DISABLED);
}

#[test]
fn the_code_alone_says_whether_and_how_long_a_group_rests() {
    let (capacity, quota, configuration) = (BackoffKind::Capacity, BackoffKind::Quota, BackoffKind::Configuration);
    for (code, standalone, package) in [
        (ICE, Some((capacity, 600)), Some((capacity, 90))),
        ("LimitedInstanceCapacity", Some((capacity, 600)), Some((capacity, 90))),
        ("MaxSpotInstanceCountExceeded", Some((quota, 300)), Some((capacity, 90))),
        ("VcpuLimitExceeded", Some((quota, 300)), None),
        ("UnauthorizedOperation", Some((configuration, 1800)), None),
        ("RequestLimitExceeded", None, None),
        ("NoPrivateAddress", None, None),
    ] {
        let mut world = world(code);
        world.policy.groups[0].backoff.quota = Duration::from_mins(5);
        let decision = world.decide();
        assert_eq!(rest(&decision, world.snapshot.now), standalone, "{code}");
        world.policy.parallelcluster = true;
        world.policy.upkeep.shortage_timeout = Some(Duration::from_secs(90));
        let decision = world.decide();
        assert_eq!(rest(&decision, world.snapshot.now), package, "{code} in ParallelCluster");
        // What does not rest goes the way of every node that is down.
        let lines = lines_of(&decision, "q1-dy-c1-1");
        assert_eq!(lines.is_empty(), package.is_some(), "{code}: {lines:?}");
    }
}

#[test]
fn m23_the_other_nodes_of_the_group_are_set_down_and_no_others() {
    let mut world = world(ICE);
    world.node("q2-dy-c1-1", OFF);
    let decision = world.pass();
    assert_eq!(lines(&decision.actions), [set_down("q1-dy-c1-2")]);
    assert_eq!(notes(&decision).len(), 1);
    assert!(notes(&decision)[0].starts_with("group q1/c1 rests until 2026-12-01T12:10:00Z after InsufficientInstanceCapacity"));
    obey(&mut world, "q1-dy-c1-2");
    for pass in 1..10 {
        let decision = world.pass();
        assert_eq!((lines(&decision.actions), notes(&decision)), (vec![], vec![]), "pass {pass}");
    }
}

#[test]
fn m23_five_thousand_nodes_make_one_line() {
    let mut world = World::new();
    world.nodes("q1-dy-c1-", 5000, OFF).state("q1-dy-c1-7", DOWN).reason("q1-dy-c1-7", &failure(ICE));
    let decision = world.decide();
    assert_eq!((decision.actions.len(), decision.notes.len()), (4999, 1));
    assert!(notes(&decision)[0].contains("q1/c1"));
}

#[test]
fn nodes_that_are_up_or_spoken_for_are_left() {
    for state in [
        "IDLE+CLOUD",
        "MIXED+CLOUD",
        "ALLOCATED+CLOUD+POWERING_UP",
        "IDLE+CLOUD+POWERING_DOWN",
        "IDLE+CLOUD+POWER_UP+POWERED_DOWN",
        "MIXED+CLOUD+POWERED_DOWN",
    ] {
        let mut world = world(ICE);
        world.up("q1-dy-c1-2", state, "i-2");
        let decision = world.decide();
        let downs = decision.actions.iter().filter(|action| matches!(&action.what, What::Node { reason: Some(_), .. })).count();
        assert_eq!(downs, 0, "{state}: {:?}", lines(&decision.actions));
    }
    // Drained by a person: not to be had by the scheduler anyway.
    let mut world = world(ICE);
    world.state("q1-dy-c1-2", "IDLE+CLOUD+DRAIN+POWERED_DOWN").reason("q1-dy-c1-2", "bad disk");
    assert_eq!(world.pass_lines(), [""; 0]);
}

/// B102.
#[test]
fn the_rest_ends_on_time_and_all_come_back() {
    let mut world = world(ICE);
    world.pass();
    obey(&mut world, "q1-dy-c1-2");
    // Old Slurm has set an address that nobody has.
    world.slurm("q1-dy-c1-1").addr = "192.0.2.1".to_owned();
    for _ in 1..10 {
        world.pass();
    }
    let decision = world.pass();
    let expected = [brought_back("q1-dy-c1-1"), "reset-address q1-dy-c1-1".to_owned(), brought_back("q1-dy-c1-2")];
    assert_eq!(lines(&decision.actions), expected);
    assert_eq!(notes(&decision), ["group q1/c1 no longer rests after InsufficientInstanceCapacity: 2 nodes are brought back"]);
    for node in ["q1-dy-c1-1", "q1-dy-c1-2"] {
        world.state(node, OFF).reason(node, ENABLED);
        world.slurm(node).addr = node.to_owned();
    }
    let decision = world.pass();
    assert_eq!((lines(&decision.actions), notes(&decision)), (vec![], vec![]));
    assert!(world.memory.shortages.is_empty());
}

/// A group whose rest has just ended, with both of its nodes asked to come back.
fn ended() -> World {
    let mut world = world(ICE);
    world.pass();
    world.state("q1-dy-c1-1", "DOWN+CLOUD+POWERED_DOWN");
    obey(&mut world, "q1-dy-c1-2");
    world.snapshot.now = world.memory.shortages["q1/c1"].until;
    assert_eq!(world.pass_lines(), [brought_back("q1-dy-c1-1"), brought_back("q1-dy-c1-2")]);
    world
}

#[test]
fn a_node_whose_power_down_has_not_got_through_begins_no_new_rest() {
    let mut world = ended();
    world.state("q1-dy-c1-1", OFF).reason("q1-dy-c1-1", ENABLED);
    for _ in 0..2 {
        let decision = world.pass();
        assert_eq!((lines(&decision.actions), notes(&decision)), (vec![brought_back("q1-dy-c1-2")], vec![]));
    }
    world.state("q1-dy-c1-2", "DOWN+CLOUD+POWERING_DOWN");
    assert_eq!(world.pass_lines(), [""; 0]);
    assert!(world.memory.shortages.is_empty());
}

#[test]
fn the_end_of_a_rest_survives_a_restart_and_a_clock_set_back() {
    let mut world = ended();
    let text = serde_json::to_string(&world.memory).expect("a text");
    world.memory = serde_json::from_str(&text).expect("the same");
    world.snapshot.now = world.ago(300);
    world.node("q1-dy-c1-3", OFF);
    assert_eq!(world.pass_lines(), [brought_back("q1-dy-c1-1"), brought_back("q1-dy-c1-2")], "no other is set down");
}

#[test]
fn a_node_that_no_power_down_brings_back_is_resumed() {
    let mut world = ended();
    world.pass();
    world.pass();
    assert_eq!(world.pass_lines(), ["resume q1-dy-c1-1", "resume q1-dy-c1-2"]);
}

#[test]
fn what_fails_after_the_end_begins_a_new_rest() {
    // Another node of the group, while one still lies there.
    let mut world = ended();
    world.state("q1-dy-c1-2", OFF);
    world.pass();
    world.state("q1-dy-c1-2", DOWN).reason("q1-dy-c1-2", &failure("Unsupported"));
    let decision = world.pass();
    assert_eq!((lines(&decision.actions), notes(&decision).len()), (vec![], 1));
    assert_eq!(decision.memory.shortages["q1/c1"].code, "Unsupported");
    // The same one again and again, faster than the passes.
    let mut world = ended();
    let until = world.memory.shortages["q1/c1"].until;
    for _ in 0..6 {
        world.state("q1-dy-c1-1", DOWN).reason("q1-dy-c1-1", &failure(ICE)).state("q1-dy-c1-2", OFF).pass();
    }
    assert!(world.memory.shortages["q1/c1"].until > until);
}

#[test]
fn the_end_needs_no_node_that_failed() {
    let mut world = world(ICE);
    world.pass();
    world.state("q1-dy-c1-1", OFF).state("q1-dy-c1-2", "MIXED+CLOUD+POWERING_UP");
    world.snapshot.now = world.snapshot.now + Duration::from_mins(10);
    assert!(world.decide().memory.shortages.is_empty());
}

#[test]
fn a_rest_is_not_prolonged_by_what_fails_meanwhile() {
    let mut world = world(ICE);
    let until = world.pass().memory.shortages["q1/c1"].until;
    world.state("q1-dy-c1-2", DOWN).reason("q1-dy-c1-2", &failure("Unsupported"));
    assert_eq!(world.pass().memory.shortages["q1/c1"].until, until);
    world.snapshot.now = until;
    let decision = world.pass();
    assert_eq!(lines(&decision.actions), [brought_back("q1-dy-c1-1"), brought_back("q1-dy-c1-2")]);
}

#[test]
fn m25_resume_timeout_of_a_node_that_was_never_launched_changes_nothing() {
    for reason in ["ResumeTimeout reached".to_owned(), format!("{} : ResumeTimeout reached", failure(ICE))] {
        let mut world = world(ICE);
        world.pass();
        obey(&mut world, "q1-dy-c1-2");
        world.state("q1-dy-c1-1", "DOWN+CLOUD+POWERED_DOWN").reason("q1-dy-c1-1", &reason);
        let decision = world.pass();
        assert_eq!(lines(&decision.actions), [""; 0], "{reason}");
        assert!(decision.memory.failures.is_empty() && decision.memory.counted.is_empty());
    }
    // Of a group that does not rest, that is the reason of now.
    let mut world = World::new();
    world.node("q1-dy-c1-1", "DOWN+CLOUD+POWERED_DOWN").reason("q1-dy-c1-1", "(Code:Unsupported)x : ResumeTimeout reached");
    assert!(!world.decide().actions.is_empty() && world.decide().memory.shortages.is_empty());
}

#[test]
fn a_node_with_an_instance_does_not_lie_there_and_cost_money() {
    let mut world = world(ICE);
    world.back("q1-dy-c1-1", "i-1", InstanceState::Running, 600);
    let decision = world.decide();
    assert!(lines(&decision.actions).contains(&"terminate i-1 of q1-dy-c1-1".to_owned()));
    assert!(decision.memory.shortages.is_empty());
}

#[test]
fn a_rest_of_no_time_is_none() {
    let mut world = world(ICE);
    world.policy.upkeep.shortage_timeout = Some(Duration::ZERO);
    let decision = world.decide();
    assert!(decision.memory.shortages.is_empty());
    assert!(!lines_of(&decision, "q1-dy-c1-1").is_empty() && lines_of(&decision, "q1-dy-c1-2").is_empty());
}

#[test]
fn what_is_remembered_wrongly_ends() {
    let mut world = world(ICE);
    world.memory = world.decide().memory;
    // Written while the clock was a year ahead.
    let ahead = world.snapshot.now + Duration::from_hours(24 * 365);
    let wrong = Shortage { since: ahead, until: ahead + Duration::from_mins(10), ..world.memory.shortages["q1/c1"].clone() };
    world.memory.shortages.insert("q1/c1".to_owned(), wrong.clone());
    world.memory.shortages.insert("q9/gone".to_owned(), wrong);
    let decision = world.decide();
    assert_eq!(lines(&decision.actions), [brought_back("q1-dy-c1-1")]);
    world.memory = decision.memory;
    world.state("q1-dy-c1-1", OFF).pass();
    assert!(world.memory.shortages.is_empty());
}

#[test]
fn a_lost_memory_is_made_up_for_by_the_reasons() {
    let mut world = world(ICE);
    world.pass();
    obey(&mut world, "q1-dy-c1-2");
    world.memory = super::super::Memory::default();
    world.state("q1-dy-c1-1", OFF);
    let decision = world.pass();
    assert_eq!(lines(&decision.actions), [set_down("q1-dy-c1-1")]);
    assert_eq!(decision.memory.shortages["q1/c1"].code, ICE);
}

#[test]
fn a_node_that_failed_along_with_another_groups_says_nothing_about_its_own() {
    for (blamed, rests) in [("q1-dy-c1-2", true), ("q1-dy-c2-1", false), ("unheard-1", true)] {
        let mut world = world(ICE);
        let text = format!("{}: job 17 needs all of its nodes, and {blamed} got no instance ({ICE}: no c5.large)", failure(ICE));
        world.reason("q1-dy-c1-1", &text);
        let decision = world.decide();
        assert_eq!(decision.memory.shortages.contains_key("q1/c1"), rests, "{blamed}");
        assert_eq!(lines_of(&decision, "q1-dy-c1-1").is_empty(), rests, "it is brought back at once: {blamed}");
    }
}
