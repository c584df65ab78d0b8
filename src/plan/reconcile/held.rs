//! What a stop of the fleet was to drain again and did not: nodes with its mark in, drains out. A start that ends before slurmctld has begun
//! with their power-down leaves them so (`plan/fleet_status/held.rs`). The mark goes with the first update that is none of these, so no
//! other rule touches them before.

use super::{Draft, Order, state};
use crate::plan::fleet_status::{to_be_drained_again, what_was_said};

const AGAIN: &str = "a person had drained it, or set it down, before the fleet was stopped";
const BEGUN: &str = "a stop of the fleet has only begun to power it down";
const WAITED: &str = "a power-down with a person's mark";

const NEVER_BEGUN: &str = "slurmctld does not begin the power-down that a stop of the fleet asked for";

/// So many passes slurmctld has for a power-down that was asked for. Then it is asked again, and what stands behind the node goes.
const PASSES: u32 = 10;

pub(super) fn drain_again(draft: &mut Draft<'_>) {
    for index in 0..draft.facts.len() {
        let facts = draft.facts[index];
        let (node, reason) = (facts.node, facts.node.reason.as_deref());
        if what_was_said(reason).is_none() {
            continue;
        }
        let state = &node.state;
        let is_asked_for = state.power_down_requested();
        if let Some(said) = to_be_drained_again(node) {
            draft.order(facts.name, Order::Drain, Some(said), AGAIN);
        } else if state.is_down() && !is_asked_for {
            draft.order(facts.name, Order::PowerDown, reason, BEGUN);
        } else if !is_asked_for || (!state.is_down() && (state::has_job(state) || state.is_powering_up())) {
            // What is left of a Reason on a node that is up again; the end of a job is waited for by other rules.
            continue;
        } else if draft.seen(facts.name, WAITED) > PASSES {
            draft.order(facts.name, Order::PowerDown, reason, NEVER_BEGUN);
            if let Some(instance) = facts.backing.instance().filter(|instance| instance.state.is_live()) {
                draft.terminate(&instance.id, Some(facts.name), NEVER_BEGUN);
            }
        }
        draft.handle(facts.name);
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{LONG, World, lines};
    use crate::model::cluster::PartitionState;
    use crate::model::instance::InstanceState;

    const DRAINED: &str = "stopping cluster, was drained: bad disk, ticket 4711";
    const DOWN: &str = "stopping cluster, was down: bad disk, ticket 4711";

    /// B126. Static or not, with an instance that has not gone yet or without, in a queue that works or not.
    #[test]
    fn what_a_stop_has_marked_is_drained_as_soon_as_its_power_down_begins() {
        for node in ["q1-dy-c1-1", "q1-st-c1-1"] {
            let drain = format!("drain {node} reason \"bad disk, ticket 4711\"");
            let power_down = |mark: &str| format!("power_down {node} reason {mark:?}");
            for (state, mark, expected) in [
                ("IDLE+CLOUD+POWERING_DOWN", DRAINED, vec![drain.clone()]),
                ("IDLE+CLOUD+POWERING_DOWN", DOWN, vec![drain.clone()]),
                ("IDLE+CLOUD+POWERED_DOWN", DRAINED, vec![drain.clone()]),
                ("IDLE+CLOUD+POWERED_DOWN", DOWN, vec![drain]),
                // Drained now, it would be so no longer when that begins.
                ("IDLE+CLOUD+DRAIN+POWER_DOWN", DRAINED, vec![]),
                ("DOWN+CLOUD+DRAIN+POWER_DOWN+NOT_RESPONDING", DRAINED, vec![]),
                ("DOWN+CLOUD+POWER_DOWN+POWERED_DOWN", DOWN, vec![]),
                ("DOWN+CLOUD", DOWN, vec![power_down(DOWN)]),
                ("DOWN+CLOUD+DRAIN", DRAINED, vec![power_down(DRAINED)]),
            ] {
                for (is_backed, partition) in
                    [(false, PartitionState::Up), (true, PartitionState::Up), (false, PartitionState::Inactive)]
                {
                    let mut world = World::new();
                    world.node(node, state);
                    if is_backed {
                        world.back(node, "i-1", InstanceState::Running, LONG);
                    }
                    world.reason(node, mark).partition("q1", partition);
                    for _ in 0..5 {
                        assert_eq!(lines(&world.pass().actions), expected, "{node} {state} {mark} {is_backed} {partition:?}");
                    }
                }
            }
        }
    }

    /// What the instance behind it costs does not wait for a slurmctld that never begins.
    #[test]
    fn a_power_down_that_never_begins_is_asked_for_again_and_its_instance_goes() {
        for node in ["q1-dy-c1-1", "q1-st-c1-1"] {
            let mut world = World::new();
            world.node(node, "DOWN+CLOUD+POWER_DOWN+POWERED_DOWN").reason(node, DOWN);
            world.back(node, "i-1", InstanceState::Running, LONG);
            for _ in 0..super::PASSES {
                assert_eq!(lines(&world.pass().actions), [""; 0]);
            }
            let expected = [format!("power_down {node} reason {DOWN:?}"), format!("terminate i-1 of {node}")];
            assert_eq!(lines(&world.pass().actions), expected);
        }
    }

    #[test]
    fn what_is_left_of_a_mark_on_a_node_that_is_up_means_nothing() {
        for state in ["IDLE+CLOUD", "ALLOCATED+CLOUD"] {
            let mut world = World::new();
            world.up("q1-st-c1-1", state, "i-1").reason("q1-st-c1-1", DRAINED);
            assert_eq!(lines(&world.pass().actions), [""; 0], "{state}");
        }
    }
}
