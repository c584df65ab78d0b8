//! What slurmctld forgot.

use std::time::Duration;

use super::super::test_support::{LONG, World, lines, notes};
use crate::model::cluster::PartitionState;
use crate::model::instance::InstanceState;

const NODE: &str = "q1-dy-c1-1";
const AWAITED: &str = "ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP";

/// The passes, from the first, in which something was done about the node.
fn passes(world: &mut World, count: usize, line: &str) -> Vec<usize> {
    let mut acted = Vec::new();
    for pass in 1..=count {
        let lines = world.pass_lines();
        if !lines.is_empty() {
            assert_eq!(lines, [format!("{line} {NODE}")], "pass {pass}");
            acted.push(pass);
        }
    }
    acted
}

/// Idle since an hour, as far as Slurm knows; up for two.
fn idle(state: &str) -> World {
    let mut world = World::new();
    world.up(NODE, state, "i-1").back(NODE, "i-1", InstanceState::Running, 2 * LONG);
    let (busy, start) = (world.ago(LONG).secs(), world.ago(2 * LONG).secs());
    let slurm = world.slurm(NODE);
    (slurm.last_busy, slurm.slurmd_start_time, slurm.boot_time) = (Some(busy), Some(start), Some(start));
    world
}

/// B99.
#[test]
fn a_node_that_nobody_launches_is_launched_in_the_second_pass() {
    for (name, state) in [(NODE, AWAITED), (NODE, "IDLE+CLOUD+POWERING_UP"), ("q1-st-c1-1", AWAITED)] {
        let mut world = World::new();
        world.node(name, state);
        assert_eq!(world.pass_lines(), [""; 0], "{name} {state}");
        let decision = world.pass();
        assert_eq!(lines(&decision.actions), [format!("launch {name}")], "{state}");
        let text = "launched now: slurmctld waits for them, and ResumeProgram did not come for them in 2 passes";
        assert_eq!(notes(&decision), [format!("{text}: {name}")]);
        world.live_launch("launch-new", &[name]);
        assert_eq!(world.pass_lines(), [""; 0]);
        assert!(world.memory.watched.is_empty());
    }
    let mut world = World::new();
    world.node(NODE, AWAITED);
    assert_eq!(passes(&mut world, 15, "launch"), [2, 7, 12], "where the launch comes to nothing");
}

#[test]
fn a_node_that_somebody_answers_for_is_left() {
    type Change = fn(&mut World);
    let changes: [(&str, Change); 6] = [
        ("claimed", |world| {
            world.live_launch("launch-new", &[NODE]);
        }),
        ("backed", |world| {
            world.back(NODE, "i-1", InstanceState::Pending, 30);
        }),
        ("backed by an instance that is not visible yet", |world| {
            world.entry(NODE, Some("i-1"), 5);
        }),
        ("powered down again", |world| {
            world.state(NODE, "IDLE+CLOUD+POWER_DOWN+NOT_RESPONDING+POWERING_UP");
        }),
        ("not yet called for", |world| {
            world.state(NODE, "MIXED+CLOUD+POWERED_DOWN");
        }),
        ("in an inactive partition", |world| {
            world.partition("q1", PartitionState::Inactive);
        }),
    ];
    for (what, change) in changes {
        let mut world = World::new();
        world.node(NODE, AWAITED);
        change(&mut world);
        for _ in 0..2 {
            assert!(!world.pass_lines().iter().any(|line| line.starts_with("launch")), "{what}");
        }
    }
}

/// B99.
#[test]
fn m28_an_idle_node_is_powered_down_once_in_the_third_pass() {
    let mut world = idle("IDLE+CLOUD");
    assert_eq!(passes(&mut world, 2, "power_down"), [0; 0]);
    let decision = world.pass();
    assert_eq!(lines(&decision.actions), [format!("power_down {NODE}")]);
    assert_eq!(
        notes(&decision),
        [format!("powered down: idle for longer than SuspendTime, and slurmctld did not do it: {NODE}")]
    );
    // Asked for again only much later, if nothing came of it.
    assert_eq!(passes(&mut world, 21, "power_down"), [10, 20]);
    let mut world = idle("IDLE+CLOUD+NEW_FLAG");
    assert_eq!(passes(&mut world, 5, "power_down"), [3]);
}

#[test]
fn m28_the_count_begins_anew_when_a_job_came() {
    let mut world = idle("IDLE+CLOUD");
    passes(&mut world, 2, "power_down");
    world.state(NODE, "MIXED+CLOUD");
    world.pass();
    world.state(NODE, "IDLE+CLOUD");
    assert_eq!(passes(&mut world, 3, "power_down"), [3]);
}

#[test]
fn m28_a_node_is_spared_where_slurm_may_not_suspend_it_or_nobody_knows() {
    type Change = fn(&mut World);
    let changes: [(&str, Change); 15] = [
        ("SuspendTime is infinite", |world| world.policy.suspend.time = None),
        ("its partition's is", |world| {
            world.policy.suspend.partitions.insert("q1".to_owned(), None);
        }),
        ("its partition's is longer", |world| {
            world.policy.suspend.partitions.insert("q1".to_owned(), Some(Duration::from_hours(2)));
        }),
        ("SuspendExcNodes", |world| {
            world.policy.suspend.excluded_nodes.insert(NODE.to_owned());
        }),
        ("SuspendExcParts", |world| {
            world.policy.suspend.excluded_partitions.insert("q1".to_owned());
        }),
        ("SuspendExcStates", |world| {
            world.policy.suspend.excluded_states.insert("cloud".to_owned());
        }),
        ("busy within the margin", |world| {
            let busy = world.ago(500).secs();
            world.slurm(NODE).last_busy = Some(busy);
        }),
        ("its slurmd is young", |world| {
            let start = world.ago(300).secs();
            world.slurm(NODE).slurmd_start_time = Some(start);
        }),
        ("launched a moment ago", |world| world.mapping_mut().nodes.get_mut(NODE).unwrap().launched = Some(world.ago(300))),
        ("Slurm does not tell", |world| (world.slurm(NODE).last_busy, world.slurm(NODE).slurmd_start_time) = (None, None)),
        ("reserved", |world| world.slurm(NODE).reservation = Some("maint".to_owned())),
        ("a job is planned", |world| {
            world.state(NODE, "IDLE+CLOUD+PLANNED");
        }),
        ("an epilog runs", |world| {
            world.state(NODE, "IDLE+CLOUD+COMPLETING");
        }),
        ("it runs a job", |world| {
            world.state(NODE, "MIXED+CLOUD");
        }),
        ("static", |world| world.snapshot.nodes.get_mut(NODE).unwrap().is_static = true),
    ];
    for (what, change) in changes {
        let mut world = idle("IDLE+CLOUD");
        change(&mut world);
        assert_eq!(passes(&mut world, 3, "power_down"), [0; 0], "{what}");
    }
    // A partition's own time counts where the cluster has none; of several the largest.
    let mut world = idle("IDLE+CLOUD");
    world.policy.suspend.time = None;
    world.policy.suspend.partitions.insert("q1".to_owned(), Some(Duration::from_mins(5)));
    assert_eq!(passes(&mut world, 3, "power_down"), [3]);
    let mut world = idle("IDLE+CLOUD");
    world.slurm(NODE).partitions.push("long".to_owned());
    world.policy.suspend.partitions.insert("long".to_owned(), Some(Duration::from_hours(2)));
    assert_eq!(passes(&mut world, 3, "power_down"), [0; 0]);
    // slurmd's start stands in for a time that Slurm does not tell.
    let mut world = idle("IDLE+CLOUD");
    world.slurm(NODE).last_busy = None;
    assert_eq!(passes(&mut world, 3, "power_down"), [3]);
}
