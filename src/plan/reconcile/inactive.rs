//! Partitions that are out of service: by a stopped fleet, by protected mode, or by hand. Nothing of ours runs there for long.

use super::facts::Backing;
use super::{Draft, Order, What, state, stuck, sync, unhealthy};
use crate::model::cluster::PartitionState;
use crate::model::instance::Instance;
use crate::plan::reasons::{INACTIVE, STOPPING};

const STOPPED: &str = "the fleet is stopped";

/// A fleet that is stopped stays so: partitions inactive, nodes off, no instance of ours alive.
pub(super) fn stopped(draft: &mut Draft<'_>) {
    let (snapshot, policy) = (draft.snapshot, draft.policy);
    for partition in snapshot.partitions.values().filter(|partition| policy.partitions.contains(&partition.name)) {
        if partition.state != PartitionState::Inactive {
            draft.act(What::Inactivate { partition: partition.name.clone() }, STOPPED);
        }
    }
    for index in 0..draft.facts.len() {
        stop(draft, index);
    }
    for (id, instance) in &snapshot.instances {
        end(draft, id, instance);
    }
    // What was underway is over. Failures of this time must not count in the next, or a start could end in protected mode at once (Z*).
    let memory = &mut draft.memory;
    memory.orphans.clear();
    memory.replacing.clear();
    memory.shortages.clear();
    memory.failing.clear();
    memory.failures.clear();
    memory.counted.clear();
    memory.failures_seen = snapshot.now;
}

/// Was the fleet started since the last pass? Then the same is over, for no pass need have seen the stop before it. A start that ends
/// protected mode stops nothing: what is remembered of nodes that still have what stood behind them stays.
pub(super) fn started(draft: &mut Draft<'_>) {
    let Some(at) = draft.snapshot.started.filter(|at| draft.memory.started != Some(*at)) else { return };
    let (snapshot, memory) = (draft.snapshot, &mut draft.memory);
    let is_mapped = |node: &String| snapshot.mapping.nodes.contains_key(node);
    memory.started = Some(at);
    memory.orphans.clear();
    memory.replacing.retain(|node, _| is_mapped(node));
    memory.shortages.clear();
    memory.failing.retain(|_, instance| snapshot.instances.get(instance).is_some_and(|found| found.state.is_live()));
    memory.failures.clear();
    memory.counted.retain(|node, _| is_mapped(node));
    memory.failures_seen = memory.failures_seen.max(at);
}

fn stop(draft: &mut Draft<'_>, index: usize) {
    let facts = draft.facts[index];
    let state = &facts.node.state;
    let is_on = !state::is_off(state) && !state::is_powering_down(state);
    if is_on && !unhealthy::is_kept(&facts) {
        // The end of a job waits for its node's epilog, and this pass terminates the instance.
        if state::has_job(state) || state.is_down() {
            return draft.take_down(index, STOPPING, STOPPED);
        }
        draft.order(facts.name, Order::PowerDownForce, Some(STOPPING), STOPPED);
    }
    // The instances that are there go below, and their entries with them.
    let is_over = facts.is_gone || (facts.backing == Backing::Claimed && !facts.has_live_claim(draft.snapshot));
    if is_over && facts.entry.is_some() && facts.backing.instance().is_none() {
        draft.let_go(index, STOPPED);
    }
    if facts.has_address() && !state::is_powering_down(state) {
        draft.order(facts.name, Order::ResetAddress, None, STOPPED);
    }
}

/// The instance goes, unless a launch that is not over will release it itself.
fn end<'a>(draft: &mut Draft<'a>, id: &'a str, instance: &'a Instance) {
    let owner = draft.owners.get(id);
    let is_mapped = owner.is_some_and(|owner| owner.is_mapped);
    if !instance.state.is_live() || (!is_mapped && sync::is_of_a_launch(draft, instance)) {
        return;
    }
    let node = owner.filter(|owner| !owner.is_off).map(|owner| owner.node);
    draft.terminate(id, node, STOPPED);
}

/// Nodes that no active partition of ours has: instances terminated, nodes reset. Slurm's own meaning of INACTIVE is that what was started
/// goes on: a node with a job, running or waiting for the boot, is left until the job ends.
pub(super) fn inactive_partitions(draft: &mut Draft<'_>) {
    let mut ours = draft.snapshot.partitions.values().filter(|partition| draft.policy.partitions.contains(&partition.name));
    if !ours.any(|partition| partition.state == PartitionState::Inactive) {
        return;
    }
    for index in 0..draft.facts.len() {
        if draft.is_out_of_service(&draft.facts[index]) && !draft.is_handled(draft.facts[index].name) {
            let (facts, before) = (draft.facts[index], draft.actions.len());
            draft.handle(facts.name);
            take_out(draft, index);
            if draft.actions.len() == before {
                stuck::abandoned(draft, &facts);
            }
        }
    }
}

fn take_out(draft: &mut Draft<'_>, index: usize) {
    let facts = draft.facts[index];
    let state = &facts.node.state;
    if sync::comes_back(&facts) {
        return;
    }
    if state::has_job(state) && !state::is_down(state) {
        if facts.is_gone && !state.is_powered_down() {
            sync::take_gone_down(draft, index, true);
        }
        return;
    }
    draft.memory.replacing.remove(facts.name);
    if state::is_off(state) || state::is_powering_down(state) {
        sync::settle(draft, index);
        return;
    }
    let comes_by_itself = state.power_down_requested() && !state::is_down(state);
    if comes_by_itself || facts.has_live_claim(draft.snapshot) || state.has("POWER_UP") || unhealthy::is_kept(&facts) {
        return;
    }
    // Where down nodes stay down, only what is left behind one is cleared away.
    let stays_down = state::is_down(state) && !draft.policy.upkeep.terminate_down_nodes;
    if !stays_down || facts.needs_reset_when_inactive() || facts.backing.instance().is_some() {
        draft.take_down(index, INACTIVE, "its partition is inactive");
    }
}
