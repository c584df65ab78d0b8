//! Nodes and the instances behind them kept in agreement: what is left of nodes that go off, and nodes whose instance is gone (aws-facts
//! D.2, D.3, "powering down"). Facts in, repairs of single nodes out; no count of failures is kept here.

use super::facts::Backing;
use super::report::Bootstrap;
use super::{Draft, Facts, Order, blocks, boots, state};
use crate::model::instance::{Instance, tag};
use crate::plan::reasons::UNHEALTHY;

/// With more nodes than these the reason names no instance: each reason of its own is an update of its own.
const NAMED: usize = 20;

/// Nodes that are off or on their way there.
pub(super) fn powering_down(draft: &mut Draft<'_>) {
    for index in 0..draft.facts.len() {
        if !draft.is_handled(draft.facts[index].name) {
            settle(draft, index);
        }
    }
}

/// Takes away what is left behind a node that is off or powers down. POWER_DOWN alone is a request: a job may still run (M06).
pub(super) fn settle(draft: &mut Draft<'_>, index: usize) {
    let facts = draft.facts[index];
    if state::is_powering_down(&facts.node.state) {
        match facts.backing.instance() {
            Some(instance) if !draft.stays(&instance.id) => clear(draft, index, "its node powers down"),
            _ if facts.is_gone && facts.entry.is_some() => clear(draft, index, "its node powers down and it is gone"),
            _ => {}
        }
    } else if state::is_off(&facts.node.state) {
        settle_off(draft, index);
    }
}

fn settle_off(draft: &mut Draft<'_>, index: usize) {
    let facts = draft.facts[index];
    match facts.backing {
        Backing::Instance(instance) if !draft.stays(&instance.id) => {
            if is_awaited_by_somebody(draft, &facts, instance) {
                draft.handle(facts.name);
            } else {
                clear(draft, index, "its node is powered down");
            }
        }
        Backing::Claimed if facts.has_live_claim(draft.snapshot) => {}
        Backing::Missing if facts.entry.is_some() && !facts.is_gone => {}
        Backing::Instance(_) | Backing::Ended(_) | Backing::Missing | Backing::Claimed => {
            clear(draft, index, "the node is powered down and nothing is behind it");
        }
        Backing::Nothing => {}
    }
}

/// An instance may be younger than what Slurm knows of its node: a resume by hand, or one that slurmctld forgot in a crash (M15).
fn is_awaited_by_somebody(draft: &Draft<'_>, facts: &Facts<'_>, instance: &Instance) -> bool {
    let now = draft.snapshot.now;
    let is_young = facts.launched.is_some_and(|launched| now.since(launched) < draft.policy.upkeep.orphan_timeout);
    is_young || (facts.entry.is_none() && is_of_a_launch(draft, instance))
}

/// A launch record answers for the instance.
pub(super) fn is_of_a_launch(draft: &Draft<'_>, instance: &Instance) -> bool {
    instance.tags.get(tag::LAUNCH).is_some_and(|launch| draft.snapshot.launches.contains(launch))
}

/// Instance, entry and address of a node that needs no other update.
fn clear(draft: &mut Draft<'_>, index: usize, why: &str) {
    let facts = draft.facts[index];
    let before = draft.actions.len();
    draft.let_go(index, why);
    if facts.has_address() {
        draft.order(facts.name, Order::ResetAddress, None, why);
    }
    if draft.actions.len() > before {
        draft.handle(facts.name);
    }
}

/// Nodes whose instance is gone: terminated outside of a suspend, reclaimed, stopped (M26), or never seen (M09). Their jobs are requeued.
pub(super) fn gone(draft: &mut Draft<'_>) {
    let mut found = Vec::new();
    for (index, facts) in draft.facts.iter().enumerate() {
        if facts.is_gone && !draft.is_handled(facts.name) && can_be_taken_down(draft, facts) {
            found.push(index);
        }
    }
    let is_named = found.len() <= NAMED;
    for index in found {
        take_gone_down(draft, index, is_named);
    }
}

/// A reboot that Slurm was asked for, which brings the node back by itself (M14); not from an instance that has ended.
pub(super) fn comes_back(facts: &Facts<'_>) -> bool {
    state::is_rebooting(&facts.node.state) && !matches!(facts.backing, Backing::Ended(_))
}

/// Not so: a node that comes back by itself or goes by itself; one that slurm_resume is about to be called for, which replaces what it
/// finds; one that is down, where there is nothing to requeue and other rules decide, unless they spare it.
fn can_be_taken_down(draft: &Draft<'_>, facts: &Facts<'_>) -> bool {
    let state = &facts.node.state;
    if comes_back(facts) || state::is_powering_down(state) {
        return false;
    }
    if state::is_down(state) {
        let is_spared = state::is_rebooting(state) || blocks::is_waiting(draft, facts.group);
        return is_spared || !draft.policy.upkeep.terminate_down_nodes;
    }
    let goes = state.power_down_requested() && !state.is_powering_up() && !state::has_job(state);
    !goes && !state.is_powered_down()
}

/// Takes down a node that [`Facts::is_gone`]. `is_named`: the reason says which instance it was.
pub(super) fn take_gone_down(draft: &mut Draft<'_>, index: usize, is_named: bool) {
    let facts = draft.facts[index];
    let what = what_is_gone(&facts, is_named);
    if facts.node.state.is_awaited() {
        boots::failed(draft, index, Bootstrap::Other, &what);
    }
    draft.take_down(index, &format!("{UNHEALTHY}: {what}"), &what);
}

fn what_is_gone(facts: &Facts<'_>, is_named: bool) -> String {
    let was = match facts.backing {
        Backing::Ended(instance) => instance.state.as_str(),
        _ => "gone",
    };
    match facts.instance_id().filter(|_| is_named) {
        Some(id) => format!("instance {id} is {was}"),
        None => format!("its instance is {was}"),
    }
}
