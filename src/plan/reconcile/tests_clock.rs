//! B127. A clock that was ahead for a while, and is right again: what was written down meanwhile holds nothing up until that time comes.

use std::time::Duration;

use super::test_support::{LONG, World, lines_of};
use super::*;
use crate::model::instance::InstanceState;

const NODE: &str = "q1-dy-c5-1";
const STATIC: &str = "q1-st-c5-1";
const BLOCK: &str = "cr-0123456789abcdef0";

/// As far ahead as the clock was.
const AHEAD: Duration = Duration::from_hours(24 * 365);

/// The mapping's entry was written while the clock was ahead; EC2's own clock never was.
fn launched_ahead(world: &mut World, node: &str) {
    let at = world.snapshot.now + AHEAD;
    let entry = world.mapping_mut().nodes.get_mut(node).expect("an entry");
    (entry.requested, entry.since, entry.launched) = (at, at, Some(at));
}

fn passes(world: &mut World, node: &str, count: usize) -> Vec<String> {
    (0..count).flat_map(|_| lines_of(&world.pass(), node)).collect()
}

#[test]
fn blocks_are_asked_for_again() {
    let mut world = World::new();
    world.node(NODE, "IDLE+CLOUD+POWERED_DOWN");
    world.policy.groups[0].block = Some(BLOCK.to_owned());
    world.memory.blocks_checked = world.snapshot.now + AHEAD;
    assert!(blocks_are_due(&world.policy, &world.memory, world.snapshot.now));
    world.memory.blocks_checked = world.snapshot.now;
    assert!(!blocks_are_due(&world.policy, &world.memory, world.snapshot.now));
}

#[test]
fn an_instance_behind_a_node_that_is_off_goes() {
    let mut world = World::new();
    world.node(NODE, "IDLE+CLOUD+POWERED_DOWN").back(NODE, "i-1", InstanceState::Running, LONG);
    launched_ahead(&mut world, NODE);
    assert!(passes(&mut world, NODE, 3).contains(&format!("terminate i-1 of {NODE}")));
}

#[test]
fn an_instance_that_is_not_shown_is_gone_in_the_end() {
    for seen_ahead in [false, true] {
        let mut world = World::new();
        world.node(NODE, "ALLOCATED+CLOUD+NOT_RESPONDING").back(NODE, "i-1", InstanceState::Running, LONG);
        world.snapshot.instances.clear();
        launched_ahead(&mut world, NODE);
        if seen_ahead {
            world.mapping_mut().nodes.clear();
            let since = world.snapshot.now + AHEAD;
            world.memory.missing.insert(NODE.to_owned(), memory::Missing { instance: "i-1".to_owned(), since, passes: 1 });
        }
        let lines = passes(&mut world, NODE, 5);
        assert!(lines.iter().any(|line| line.starts_with(&format!("down {NODE}"))), "{seen_ahead}: {lines:?}");
    }
}

#[test]
fn a_static_node_that_has_registered_is_resumed() {
    let mut world = World::new();
    world.node(STATIC, "DOWN+CLOUD").back(STATIC, "i-1", InstanceState::Running, 300);
    world.reason(STATIC, "Static node maintenance: unhealthy node is being replaced");
    launched_ahead(&mut world, STATIC);
    let at = world.snapshot.now + AHEAD;
    world.memory.replacing.insert(STATIC.to_owned(), memory::Replacement { since: at, asked: at, why: "gone".to_owned() });
    let booted = world.ago(200).secs();
    world.slurm(STATIC).boot_time = Some(booted);
    assert_eq!(lines_of(&world.pass(), STATIC), [format!("resume {STATIC}")]);
}

#[test]
fn a_static_node_that_does_not_come_up_is_replaced() {
    let mut world = World::new();
    world.node(STATIC, "DOWN+CLOUD").back(STATIC, "i-1", InstanceState::Running, LONG);
    world.reason(STATIC, "Static node maintenance: unhealthy node is being replaced");
    launched_ahead(&mut world, STATIC);
    let at = world.snapshot.now + AHEAD;
    world.memory.replacing.insert(STATIC.to_owned(), memory::Replacement { since: at, asked: at, why: "gone".to_owned() });
    let lines = passes(&mut world, STATIC, 2);
    assert!(lines.contains(&format!("launch {STATIC}")), "{lines:?}");
}

#[test]
fn an_entry_of_a_node_that_slurm_has_no_more_goes() {
    let mut world = World::new();
    world.node("q1-dy-c5-2", "IDLE+CLOUD+POWERED_DOWN");
    world.instance("i-1", InstanceState::Running, LONG);
    world.entry(NODE, Some("i-1"), LONG);
    launched_ahead(&mut world, NODE);
    assert!(passes(&mut world, NODE, 4).contains(&format!("terminate i-1 of {NODE}")));
}
