//! How a replacement goes on, and how it ends.

use super::super::super::Memory;
use super::super::super::test_support::{NOW, World, lines, notes};
use super::*;
use crate::model::cluster::{Ailment, Check};

/// The run that was asked for is over: its instance stands behind the node.
fn launched(world: &mut World, id: &str) {
    world.snapshot.live.clear();
    world.snapshot.launches.clear();
    world.back(NODE, id, InstanceState::Running, 30);
}

/// The run that was asked for is over, with nothing.
fn failed(world: &mut World, reason: &str) {
    world.snapshot.live.clear();
    world.snapshot.launches.clear();
    world.mapping_mut().nodes.remove(NODE);
    world.reason(NODE, reason);
}

/// slurmd has registered: Slurm keeps a node down that was set down.
fn registered(world: &mut World, state: &str) {
    let booted = world.snapshot.now.secs();
    world.state(NODE, state).slurm(NODE).boot_time = Some(booted);
}

/// A node whose replacement has been launched, with nothing else to be done.
fn coming_up(parallelcluster: bool) -> World {
    let mut world = World::new();
    world.policy.parallelcluster = parallelcluster;
    world.node(NODE, OFF);
    assert_eq!(lines(&pass(&mut world).actions), replaced(None));
    assert_eq!(lines(&pass(&mut world).actions), [""; 0], "claimed");
    launched(&mut world, "i-1");
    assert_eq!(lines(&pass(&mut world).actions), [""; 0], "it boots");
    world
}

fn counted(world: &World) -> u64 {
    world.memory.failures.values().flat_map(|groups| groups.values()).map(|failures| failures.count).sum()
}

/// B97.
#[test]
fn a_replacement_ends_with_the_node_in_service() {
    let mut world = coming_up(false);
    registered(&mut world, "DOWN+CLOUD");
    let decision = pass(&mut world);
    assert_eq!(lines(&decision.actions), [format!("resume {NODE}")]);
    assert_eq!(decision.report.replacing, [NODE]);
    let decision = pass(&mut world);
    assert_eq!(notes(&decision), [format!("static nodes up again: {NODE}")]);
    assert!(decision.actions.is_empty() && world.memory.replacing.is_empty());
    assert!(pass(&mut world).notes.is_empty() && counted(&world) == 0);
}

#[test]
fn a_node_of_parallelclusters_resumes_itself_or_is_resumed_in_the_third_pass() {
    let mut world = coming_up(true);
    registered(&mut world, "DOWN+CLOUD");
    assert_eq!(lines(&pass(&mut world).actions), [""; 0]);
    assert_eq!(lines(&pass(&mut world).actions), [""; 0]);
    assert_eq!(lines(&pass(&mut world).actions), [format!("resume {NODE}")]);
    let mut world = coming_up(true);
    registered(&mut world, "IDLE+CLOUD");
    assert!(pass(&mut world).actions.is_empty() && world.memory.replacing.is_empty());
}

#[test]
fn a_node_is_resumed_only_when_its_new_slurmd_is_there_and_nobody_else_has_set_it_down() {
    type Change = fn(&mut World);
    let changes: [(&str, Change); 5] = [
        ("booted before the launch", |world| world.slurm(NODE).boot_time = Some(1)),
        ("no registration", |world| world.slurm(NODE).boot_time = None),
        ("still off", |world| {
            world.state(NODE, "DOWN+CLOUD+POWERED_DOWN");
        }),
        ("silent again", |world| {
            world.state(NODE, "DOWN+CLOUD+NOT_RESPONDING");
        }),
        ("a person's reason", |world| {
            world.reason(NODE, "bad disk");
        }),
    ];
    for (what, change) in changes {
        let mut world = coming_up(false);
        registered(&mut world, "DOWN+CLOUD");
        assert!(!world.decide().actions.is_empty());
        change(&mut world);
        assert_eq!(lines(&world.decide().actions), [""; 0], "{what}");
    }
    // slurmd's own start tells as well; a drain by our own word goes with the rest.
    let mut world = coming_up(false);
    world.state(NODE, "IDLE+CLOUD+DRAIN").slurm(NODE).slurmd_start_time = Some(NOW.secs() + 600);
    assert_eq!(lines(&world.decide().actions), [format!("resume {NODE}")]);
}

#[test]
fn m25_a_failed_launch_waits_for_its_group_and_counts_as_no_boot_failure() {
    let mut world = World::new();
    world.node(NODE, OFF).node("q1-dy-c1-1", "DOWN+CLOUD");
    world.up("q1-dy-c1-1", "IDLE+CLOUD", "i-9");
    pass(&mut world);
    failed(&mut world, ICE);
    let decision = pass(&mut world);
    assert_eq!(lines(&decision.actions), [""; 0]);
    assert_eq!(notes(&decision).len(), 1, "{:?}", notes(&decision));
    let until = world.memory.shortages["q1/c1"].until;
    let mut passes = 0;
    while world.snapshot.now < until {
        let decision = pass(&mut world);
        assert_eq!((lines(&decision.actions), notes(&decision)), (vec![], vec![]));
        assert_eq!(decision.report.replacing, [NODE]);
        passes += 1;
    }
    assert_eq!(passes, 9);
    let decision = pass(&mut world);
    // Down once more: the code must not be taken for the next launch's.
    assert_eq!(lines(&decision.actions), replaced(None));
    assert_eq!(pass(&mut world).actions, []);
    failed(&mut world, ICE);
    pass(&mut world);
    assert!(world.memory.shortages["q1/c1"].until > until);
    assert_eq!(counted(&world), 0);
}

#[test]
fn a_launch_that_failed_otherwise_is_tried_in_the_next_pass_and_told_once() {
    let mut world = World::new();
    world.policy.parallelcluster = true;
    world.node(NODE, OFF);
    pass(&mut world);
    let mut told = 0;
    for _ in 0..4 {
        failed(&mut world, "(Code:VcpuLimitExceeded)Failure when resuming nodes");
        let decision = pass(&mut world);
        assert_eq!(lines(&decision.actions), replaced(None));
        told += notes(&decision).len();
    }
    assert_eq!((told, counted(&world)), (1, 0));
    assert!(world.memory.shortages.is_empty());
}

#[test]
fn a_node_that_is_drained_as_soon_as_it_is_up_has_not_failed_to_boot() {
    let mut world = coming_up(false);
    registered(&mut world, "ALLOCATED+CLOUD+DRAIN");
    world.reason(NODE, "bad disk");
    assert_eq!(lines(&pass(&mut world).actions), [""; 0]);
    assert!(world.memory.replacing.is_empty(), "it runs a job");
    let mut world = coming_up(false);
    world.policy.upkeep.terminate_drain_nodes = false;
    registered(&mut world, "IDLE+CLOUD+DRAIN");
    world.reason(NODE, "bad disk");
    assert!(pass(&mut world).actions.is_empty() && world.memory.replacing.is_empty(), "left to whoever drained it");
    let mut world = coming_up(false);
    registered(&mut world, "IDLE+CLOUD+DRAIN");
    world.reason(NODE, "bad disk").snapshot.now = world.snapshot.now + std::time::Duration::from_hours(1);
    assert_eq!(lines(&pass(&mut world).actions), replaced(Some(terminate())));
    assert_eq!(counted(&world), 0);
}

#[test]
fn a_node_that_slurm_sets_down_at_its_registration_is_resumed() {
    // Without ReturnToService: slurmctld did not wait for this boot.
    let mut world = coming_up(false);
    registered(&mut world, "DOWN+CLOUD");
    world.reason(NODE, "Node unexpectedly rebooted");
    assert_eq!(lines(&pass(&mut world).actions), [format!("resume {NODE}")]);
    assert!(pass(&mut world).actions.is_empty() && world.memory.replacing.is_empty());
}

/// Its own computemgtd keeps a node out of service whose instance EC2 takes away: a resume would undo that.
#[test]
fn a_node_that_drains_itself_at_a_notice_of_ec2_is_not_resumed() {
    for (state, reason) in [
        ("DOWN+CLOUD+DRAIN", "EC2 spot notice: terminate at 2026-11-29T12:02:00Z"),
        ("ALLOCATED+CLOUD+DRAIN", "EC2 rebalance recommendation of 2026-11-29T12:00:00Z"),
    ] {
        let mut world = coming_up(false);
        registered(&mut world, state);
        world.reason(NODE, reason);
        assert_eq!(lines(&pass(&mut world).actions), [""; 0], "{state}");
    }
    // Drained and idle: its instance is replaced, which is no failure to boot.
    let mut world = coming_up(false);
    registered(&mut world, "IDLE+CLOUD+DRAIN");
    world.reason(NODE, "EC2 rebalance recommendation of 2026-11-29T12:00:00Z");
    assert_eq!(lines(&pass(&mut world).actions), replaced(Some(terminate())));
    assert_eq!(counted(&world), 0);
}

#[test]
fn a_launch_that_never_came_is_asked_for_again() {
    // Asked for, and no claim was seen: the daemon was restarted, or the run was killed at once.
    let mut world = World::new();
    world.node(NODE, OFF);
    pass(&mut world);
    failed(&mut world, MAINTENANCE);
    assert_eq!(lines(&pass(&mut world).actions), [""; 0], "one minute");
    assert_eq!(lines(&pass(&mut world).actions), [reset(), launch()], "two minutes");
    // Killed with its claim; its record is being recovered, then it is gone.
    world.snapshot.live.clear();
    assert_eq!(lines(&pass(&mut world).actions), [""; 0], "recorded");
    world.snapshot.launches.clear();
    assert_eq!(lines(&pass(&mut world).actions), [forget(), reset(), launch()]);
}

#[test]
fn an_instance_that_never_registers_is_given_up_at_the_end_of_its_time() {
    let mut world = coming_up(false);
    let mut passes = 0;
    let decision = loop {
        let decision = pass(&mut world);
        if !decision.actions.is_empty() {
            break decision;
        }
        passes += 1;
    };
    // Seen at 30 s and every minute from then.
    assert_eq!(passes, 29);
    assert_eq!(lines(&decision.actions), [format!("console i-1 of {NODE}"), terminate(), reset(), launch()]);
    let text = format!(
        "static nodes replaced: {NODE} in state DOWN+CLOUD+POWERED_DOWN, outside the 30m to come up: it was not up in time"
    );
    assert_eq!(notes(&decision), [text]);
    let kinds: Vec<_> = decision.report.boot_failures.into_iter().collect();
    assert_eq!(kinds, [("static-replacement-timeout-error", vec![NODE.to_owned()])]);
    assert_eq!(counted(&world), 1);
    assert_eq!(lines(&pass(&mut world).actions), [""; 0]);
}

#[test]
fn m12_a_node_that_fails_while_it_comes_up_is_told_with_its_state_and_its_grace() {
    type Change = fn(&mut World);
    let changes: [(&str, &str, &str, Change); 3] = [
        ("its instance is gone", "DOWN+CLOUD+POWERED_DOWN", "other-bootstrap-error", |world| {
            world.snapshot.instances.get_mut("i-1").unwrap().state = InstanceState::ShuttingDown;
        }),
        ("it registered with less than slurm.conf promises", "DOWN+CLOUD+DRAIN+INVALID_REG", "other-bootstrap-error", |world| {
            registered(world, "DOWN+CLOUD+INVALID_REG+DRAIN");
        }),
        // M13: not at the end of its time.
        ("a check of its instance fails", "DOWN+CLOUD+POWERED_DOWN", "other-bootstrap-error", |world| {
            let since = Some(world.ago(180));
            let ailment = Ailment { check: Check::Instance, since, text: "reachability failed".to_owned() };
            world.snapshot.ailments.insert("i-1".to_owned(), vec![ailment]);
        }),
    ];
    for (cause, state, kind, change) in changes {
        let mut world = coming_up(false);
        change(&mut world);
        let decision = pass(&mut world);
        let lines = lines(&decision.actions);
        assert_eq!(lines[lines.len() - 2..], [reset(), launch()], "{cause}");
        assert_eq!(
            notes(&decision),
            [format!("static nodes replaced: {NODE} in state {state}, within the 30m to come up: {cause}")]
        );
        assert_eq!(decision.report.boot_failures.keys().collect::<Vec<_>>(), [&kind], "{cause}");
        assert_eq!(counted(&world), 1, "{cause}");
        assert_eq!(pass(&mut world).actions, [], "{cause}");
    }
}

#[test]
fn a_restart_in_the_middle_changes_nothing() {
    // The memory is kept; where it is lost, the reason tells.
    for memory_is_lost in [false, true] {
        let mut world = coming_up(false);
        if memory_is_lost {
            world.memory = Memory::default();
        }
        let decision = pass(&mut world);
        assert_eq!((lines(&decision.actions), decision.report.replacing), (vec![], vec![NODE.to_owned()]));
        registered(&mut world, "DOWN+CLOUD");
        assert_eq!(lines(&pass(&mut world).actions), [format!("resume {NODE}")]);
    }
    // Of one that was up in between, the reason is an old one.
    let mut world = coming_up(false);
    world.memory = Memory::default();
    registered(&mut world, "DOWN+CLOUD+NOT_RESPONDING");
    assert_eq!(lines(&world.decide().actions), [terminate(), reset(), launch()]);
}

#[test]
fn what_is_no_static_node_any_more_is_forgotten() {
    let mut world = coming_up(false);
    world.snapshot.nodes.get_mut(NODE).unwrap().is_static = false;
    assert!(world.decide().memory.replacing.is_empty());
    world.policy.hides_off_nodes = true;
    assert!(world.decide().memory.replacing.is_empty(), "it is shown");
    world.snapshot.nodes.clear();
    assert!(!world.decide().memory.replacing.is_empty(), "Slurm may hide it");
    world.policy.hides_off_nodes = false;
    assert!(world.decide().memory.replacing.is_empty());
}

#[test]
fn an_invalid_registration_of_the_old_instance_is_not_the_new_ones() {
    let mut world = coming_up(false);
    world.state(NODE, "DOWN+CLOUD+INVALID_REG+DRAIN").slurm(NODE).boot_time = Some(NOW.secs() - 600);
    assert_eq!(lines(&pass(&mut world).actions), [""; 0], "it boots");
    registered(&mut world, "DOWN+CLOUD+INVALID_REG+DRAIN");
    assert!(!pass(&mut world).actions.is_empty());
}
