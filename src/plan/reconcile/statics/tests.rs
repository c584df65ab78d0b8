//! Static nodes as they are found; `course.rs` has what follows.

mod course;
mod leftovers;

use super::super::memory::Replacement;
use super::super::test_support::{LONG, World, lines, lines_of, notes};
use super::super::{Decision, Memory, Order, What};
use crate::model::cluster::PartitionState;
use crate::model::instance::InstanceState;

const NODE: &str = "q1-st-c1-1";
const MAINTENANCE: &str = "Static node maintenance: unhealthy node is being replaced";
const OFF: &str = "IDLE+CLOUD+POWERED_DOWN";
const ICE: &str = "(Code:InsufficientInstanceCapacity)Failure when resuming nodes";

fn down() -> String {
    format!("down {NODE} reason {MAINTENANCE:?}")
}

fn reset() -> String {
    format!("reset-address {NODE}")
}

fn launch() -> String {
    format!("launch {NODE}")
}

fn terminate() -> String {
    format!("terminate i-1 of {NODE}")
}

fn forget() -> String {
    format!("forget {NODE}")
}

/// What a replacement comes to, with this in the middle.
fn replaced(freed: Option<String>) -> Vec<String> {
    [Some(down()), freed, Some(reset()), Some(launch())].into_iter().flatten().collect()
}

/// Slurm and EC2 do what was decided; launches take their claims.
fn obey(world: &mut World, decision: &Decision) {
    for action in &decision.actions {
        match &action.what {
            What::Node { node, order: Order::Down, reason } => {
                let off = if world.slurm(node).state.is_powered_down() { "+POWERED_DOWN" } else { "" };
                world.state(node, &format!("DOWN+CLOUD{off}")).reason(node, reason.as_deref().unwrap_or_default());
            }
            What::Node { node, order: Order::PowerDown | Order::PowerDownForce, reason } => {
                world.state(node, OFF).reason(node, reason.as_deref().unwrap_or_default());
            }
            What::Node { node, order: Order::Resume, .. } => {
                world.state(node, "IDLE+CLOUD");
            }
            What::Node { node, order: Order::ResetAddress, .. } => {
                let own = node.clone();
                let slurm = world.slurm(node);
                (slurm.addr, slurm.instance_id) = (own, None);
            }
            What::Terminate { instance, node } => {
                world.snapshot.instances.remove(instance);
                node.iter().for_each(|node| {
                    world.mapping_mut().nodes.remove(node);
                });
            }
            What::Forget { node } => {
                world.mapping_mut().nodes.remove(node);
            }
            What::Launch { node } => {
                world.live_launch("launch-new", &[node]);
            }
            What::Node { .. } | What::Console { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

/// One pass, carried out.
fn pass(world: &mut World) -> Decision {
    let decision = world.pass();
    obey(world, &decision);
    decision
}

#[test]
fn a_static_node_is_replaced_when_it_is_not_up() {
    let (running, old) = (InstanceState::Running, Some(LONG));
    let instance = || replaced(Some(terminate()));
    for (state, backing, expected) in [
        ("IDLE+CLOUD", Some((running, old)), vec![]),
        ("IDLE+CLOUD+PLANNED+NEW_FLAG", Some((running, old)), vec![]),
        ("IDLE+CLOUD", None, replaced(None)),
        (OFF, None, replaced(None)),
        (OFF, Some((running, old)), instance()),
        // A resume by hand.
        (OFF, Some((running, Some(60))), vec![]),
        ("IDLE+CLOUD+DRAIN+POWERED_DOWN", None, replaced(None)),
        ("DOWN+CLOUD", None, replaced(None)),
        ("DOWN+CLOUD", Some((running, old)), instance()),
        // Died young, but not while it was being replaced.
        ("DOWN+CLOUD+NOT_RESPONDING", Some((running, Some(600))), instance()),
        ("DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING", Some((running, old)), instance()),
        ("DOWN+CLOUD+POWER_DOWN", Some((running, old)), vec![]),
        ("DOWN+CLOUD+REBOOT_ISSUED", Some((running, old)), vec![]),
        ("IDLE+CLOUD+DRAIN", Some((running, old)), instance()),
        ("IDLE+CLOUD+DRAIN+COMPLETING", Some((running, old)), vec![]),
        ("ALLOCATED+CLOUD+DRAIN", Some((running, old)), vec![]),
        (
            "IDLE+CLOUD+INVALID_REG+DRAIN",
            Some((running, Some(600))),
            [vec![format!("console i-1 of {NODE}")], instance()].concat(),
        ),
        // Silent, but not given up by Slurm yet.
        ("IDLE+CLOUD+NOT_RESPONDING", Some((running, old)), vec![]),
        // Jobs go on as long as their instance does.
        ("ALLOCATED+CLOUD", None, vec![]),
        ("MIXED+CLOUD", Some((InstanceState::Terminated, old)), replaced(Some(forget()))),
        ("MIXED+CLOUD", Some((InstanceState::Stopped, old)), instance()),
        // slurm_resume's.
        ("ALLOCATED+CLOUD+POWERING_UP", Some((InstanceState::Pending, Some(30))), vec![]),
        ("MIXED+CLOUD+POWERED_DOWN", None, vec![]),
        ("IDLE+CLOUD+POWER_UP+POWERED_DOWN", None, vec![]),
        // On its way off.
        ("IDLE+CLOUD+POWERING_DOWN", None, vec![]),
        ("FUTURE+CLOUD", None, vec![]),
        ("UNHEARD+CLOUD", None, vec![]),
    ] {
        let mut world = World::new();
        world.node(NODE, state);
        if let Some((instance, age)) = backing {
            world.back(NODE, "i-1", instance, age.unwrap_or_default());
        }
        let decision = pass(&mut world);
        assert_eq!(lines(&decision.actions), expected, "{state} {backing:?}");
        assert_eq!(decision.report.replacing.is_empty(), expected.is_empty(), "{state} {backing:?}");
        assert_eq!(decision.report.unhealthy_static.is_empty(), expected.is_empty(), "{state} {backing:?}");
        assert_eq!(lines(&pass(&mut world).actions), [""; 0], "and again: {state} {backing:?}");
    }
}

#[test]
fn settings_and_silence_spare_a_node_with_an_instance() {
    for (state, spared) in [("DOWN+CLOUD", true), ("IDLE+CLOUD+DRAIN", true), (OFF, false)] {
        let mut world = World::new();
        world.node(NODE, state).back(NODE, "i-1", InstanceState::Running, LONG);
        (world.policy.upkeep.terminate_down_nodes, world.policy.upkeep.terminate_drain_nodes) = (false, false);
        assert_eq!(world.pass_lines().is_empty(), spared, "{state}");
        // Without an instance there is nothing to be looked into.
        world.snapshot.instances.clear();
        world.mapping_mut().nodes.clear();
        world.slurm(NODE).instance_id = None;
        world.slurm(NODE).addr = NODE.to_owned();
        world.memory = Memory::default();
        assert_eq!(lines(&world.decide().actions), replaced(None), "{state}");
    }
}

#[test]
fn nodes_out_of_service_are_left() {
    let mut world = World::new();
    world.node(NODE, OFF).partition("q1", PartitionState::Inactive);
    assert_eq!(world.pass_lines(), [""; 0], "inactive");
    world.partition("q1", PartitionState::Up);
    world.policy.groups[0].block = Some("cr-1".to_owned());
    world.memory.blocks_waiting.insert("cr-1".to_owned(), "scheduled".to_owned());
    let decision = world.decide();
    assert!(lines_of(&decision, NODE).is_empty(), "reserved until its Capacity Block is active");
    world.policy.groups[0].block = None;
    world.snapshot.rebuilt = true;
    assert_eq!(world.pass_lines(), [""; 0], "the mapping was rebuilt");
    world.snapshot.rebuilt = false;
    assert_eq!(world.pass_lines(), replaced(None));
}

#[test]
fn nodes_alike_are_told_in_one_line_with_what_to_do() {
    let mut world = World::new();
    world.nodes("q1-st-c1-", 500, OFF);
    let text = "static nodes replaced: q1-st-c1-[1-500] in state IDLE+CLOUD+POWERED_DOWN, outside the 30m to come up: no instance \
                stands behind it";
    let advice = "; SuspendExcNodes of slurm.conf does not name them, so slurmctld powers them down when they are idle";
    assert_eq!(notes(&world.decide()), [format!("{text}{advice}")]);
    world.policy.suspend.excluded_partitions.insert("q1".to_owned());
    assert_eq!(notes(&world.decide()), [text]);
}

#[test]
fn a_power_down_that_stays_pending_is_not_waited_for() {
    for state in ["IDLE+CLOUD+POWER_DOWN+POWERED_DOWN", "DOWN+CLOUD+POWER_DOWN"] {
        let mut world = World::new();
        world.node(NODE, state);
        assert_eq!(world.pass_lines(), [""; 0], "{state}");
        assert_eq!(world.pass_lines(), [""; 0], "{state}");
        assert_eq!(world.pass_lines(), replaced(None), "{state}");
    }
    // One that slurmctld also waits for must be off first: SuspendProgram would be called for what is launched.
    let mut world = World::new();
    world.node(NODE, "IDLE+CLOUD+POWER_DOWN+NOT_RESPONDING+POWERING_UP");
    assert_eq!([world.pass_lines(), world.pass_lines()], [vec![], vec![]] as [Vec<String>; 2]);
    assert_eq!(world.pass_lines(), [down(), format!("power_down {NODE}"), reset()]);
    let mut world = World::new();
    world.up(NODE, "ALLOCATED+CLOUD+POWER_DOWN", "i-1");
    for _ in 0..5 {
        assert_eq!(world.pass_lines(), [""; 0], "its job goes on");
    }
}

#[test]
fn a_boot_that_slurm_still_waits_for_is_powered_off_first() {
    // A job was given the node, and slurm_resume failed with it.
    for (reason, rests) in [("Failure when resuming nodes", false), (ICE, true)] {
        let mut world = World::new();
        world.node(NODE, "DOWN+CLOUD+NOT_RESPONDING+POWERING_UP").reason(NODE, reason);
        let decision = pass(&mut world);
        assert_eq!(lines(&decision.actions), [format!("power_down {NODE} reason {MAINTENANCE:?}"), reset()]);
        assert_eq!(world.memory.shortages.contains_key("q1/c1"), rests);
        assert_eq!(pass(&mut world).actions.iter().any(|action| matches!(action.what, What::Launch { .. })), !rests);
        assert_eq!(lines(&pass(&mut world).actions), [""; 0]);
    }
}

#[test]
fn an_order_after_the_rest_that_did_not_get_through_begins_no_new_one() {
    let mut world = World::new();
    world.node(NODE, "DOWN+CLOUD+POWERED_DOWN").reason(NODE, ICE);
    world.pass();
    let until = world.memory.shortages["q1/c1"].until;
    world.snapshot.now = until;
    assert!(world.pass_lines().contains(&launch()));
    assert!(world.pass_lines().contains(&launch()), "slurmctld did not take it: it is down with the old code");
    // Seen a third time it is the code of a launch.
    assert_eq!(world.pass_lines(), [""; 0]);
    assert!(world.memory.shortages["q1/c1"].until > until);
}

#[test]
fn a_node_that_is_off_is_set_down_while_its_group_rests() {
    let mut world = World::new();
    world.node("q1-dy-c1-1", "DOWN+CLOUD").reason("q1-dy-c1-1", ICE).up(NODE, "IDLE+CLOUD", "i-1");
    pass(&mut world);
    world.state(NODE, OFF).slurm(NODE).instance_id = None;
    world.slurm(NODE).addr = NODE.to_owned();
    world.snapshot.instances.clear();
    world.mapping_mut().nodes.clear();
    let disabled = "(Code:InsufficientInstanceCapacity)Temporarily disabling node due to insufficient capacity";
    let decision = pass(&mut world);
    assert_eq!(lines(&decision.actions), [format!("down {NODE} reason {disabled:?}"), reset()]);
    assert_eq!(notes(&decision), [""; 0]);
    assert_eq!(lines(&pass(&mut world).actions), [""; 0]);
    world.snapshot.now = world.memory.shortages["q1/c1"].until;
    assert_eq!(lines_of(&pass(&mut world), NODE), replaced(None));
    // One with an instance that is of no use loses it at once.
    let mut world = World::new();
    world.node("q1-dy-c1-1", "DOWN+CLOUD").reason("q1-dy-c1-1", ICE);
    pass(&mut world);
    world.node(NODE, "DOWN+CLOUD").back(NODE, "i-1", InstanceState::Running, LONG);
    assert_eq!(lines(&pass(&mut world).actions), [down(), terminate(), reset()]);
    assert_eq!(lines(&pass(&mut world).actions), [""; 0]);
}

/// B126. By a stop of the fleet, or since it is off.
#[test]
fn what_a_person_drained_comes_up_when_they_resume_it() {
    let mut world = World::new();
    world.node(NODE, "IDLE+CLOUD+DRAIN+POWERED_DOWN").reason(NODE, "bad disk, ticket 4711");
    let decision = pass(&mut world);
    assert_eq!(lines(&decision.actions), [""; 0]);
    assert_eq!(notes(&decision), ["powered down and drained by a person, left so: q1-st-c1-1"]);
    for _ in 0..5 {
        let decision = pass(&mut world);
        assert!(decision.actions.is_empty() && decision.notes.is_empty());
    }
    // `state=resume` takes the reason away, too.
    world.state(NODE, "IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING").slurm(NODE).reason = None;
    assert_eq!(lines(&pass(&mut world).actions), replaced(None));
}

/// B96. Down by our word, as long as its group rests, when a person drains it.
#[test]
fn what_a_person_drained_while_its_group_rests_is_not_launched_at_the_end() {
    let mut world = World::new();
    world.node(NODE, "DOWN+CLOUD+POWERED_DOWN").reason(NODE, ICE);
    pass(&mut world);
    world.state(NODE, "DOWN+CLOUD+DRAIN+POWERED_DOWN").reason(NODE, "bad disk, ticket 4711");
    for _ in 0..15 {
        assert_eq!(lines(&pass(&mut world).actions), [""; 0]);
    }
    assert!(world.memory.replacing.is_empty() && world.memory.shortages.is_empty());
    world.state(NODE, "IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING").slurm(NODE).reason = None;
    assert_eq!(lines(&pass(&mut world).actions), replaced(None));
}

/// B126. ParallelCluster's cookbook drains the static nodes of a queue that it has changed: those that are off and those that come up as
/// well, whose instances are as the queue was.
#[test]
fn what_an_update_of_the_cluster_drained_is_replaced_whether_off_or_up() {
    const UPDATE: &str = "updating node state during cluster update";
    let mut world = World::new();
    world.node(NODE, "IDLE+CLOUD+DRAIN+POWERED_DOWN").reason(NODE, UPDATE);
    assert_eq!(lines(&pass(&mut world).actions), replaced(None));
    for comes_up in [false, true] {
        let mut world = World::new();
        world.up(NODE, "IDLE+CLOUD+DRAIN", "i-1").reason(NODE, UPDATE);
        if comes_up {
            let at = world.ago(300);
            let replacement = Replacement { since: at, asked: at, why: "it is down".to_owned() };
            world.memory.replacing.insert(NODE.to_owned(), replacement);
        }
        assert_eq!(lines(&pass(&mut world).actions), replaced(Some(terminate())), "{comes_up}");
    }
}
