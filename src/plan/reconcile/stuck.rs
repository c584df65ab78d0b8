//! States that Slurm does not leave by itself, and entries that nobody will finish. What is wrong only if it lasts is watched for some
//! passes first.

use super::facts::{Backing, believed};
use super::{Draft, Facts, Order, What, state};
use crate::model::mapping::NodeState;
use crate::model::node::State;
use crate::plan::reasons;

/// Two passes: a node is `idle~` without an answer for a moment after each power-down (M01).
const SILENT_PASSES: u32 = 2;
/// Where the power-down did not reach slurmctld, or had no effect. Not sooner: the node is out of service for SuspendTimeout each time.
const SILENT_AGAIN: u32 = 30;
const SILENT: &str = "off and not responding";

/// An entry whose node Slurm does not show, or the configuration does not have, is believed to be of one that was removed after so many
/// passes.
const UNKNOWN_PASSES: u32 = 3;
const UNKNOWN: &str = "not in Slurm";
const UNCONFIGURED: &str = "not in the configuration";

pub(super) fn stuck(draft: &mut Draft<'_>) {
    for index in 0..draft.facts.len() {
        let facts = draft.facts[index];
        if !draft.is_handled(facts.name) {
            silent(draft, &facts);
            abandoned(draft, &facts);
        }
    }
    removed(draft);
}

/// `IDLE+POWERED_DOWN+NOT_RESPONDING`: never scheduled, shown nowhere. One power-down, and no other for long while the state lasts (M01).
fn silent<'a>(draft: &mut Draft<'a>, facts: &Facts<'a>) {
    let state = &facts.node.state;
    let is_silent = state::is_off(state) && state.has("NOT_RESPONDING") && facts.backing.instance().is_none();
    if !is_silent || facts.entry.is_some() || state.has("DRAIN") || state.power_down_requested() || state::is_rebooting(state) {
        return;
    }
    if draft.seen(facts.name, SILENT) % SILENT_AGAIN == SILENT_PASSES {
        let why = "off and not responding in two passes running: Slurm starts no job on it";
        draft.order(facts.name, Order::PowerDownForce, Some(reasons::SILENT), why);
        draft.handle(facts.name);
    }
}

/// A claim that neither a run nor a recovery holds.
pub(super) fn abandoned<'a>(draft: &mut Draft<'a>, facts: &Facts<'a>) {
    if facts.backing == Backing::Claimed && !facts.has_live_claim(draft.snapshot) {
        draft.act(What::Forget { node: facts.name.to_owned() }, "the launch that claimed it is over");
        draft.handle(facts.name);
    }
}

/// Entries of nodes that Slurm or the configuration does not have any more. Nothing is told to Slurm about them.
fn removed(draft: &mut Draft<'_>) {
    let (snapshot, policy) = (draft.snapshot, draft.policy);
    for (name, entry) in &snapshot.mapping.nodes {
        let (rule, why) = match snapshot.nodes.get(name) {
            // It may be there, and be off.
            None if policy.hides_off_nodes => continue,
            None => (UNKNOWN, "Slurm has no such node any more"),
            Some(member) if member.group.is_none() && is_at_rest(&member.slurm.state) => {
                (UNCONFIGURED, "its node is off and in no group any more")
            }
            Some(_) => continue,
        };
        let made = believed(Some(entry.launched.unwrap_or(entry.since)), snapshot.now);
        let is_old = made.is_none_or(|made| snapshot.now.since(made) >= policy.upkeep.orphan_timeout);
        let is_held = entry.state == NodeState::Launching && snapshot.launches.contains(&entry.launch);
        if draft.seen(name, rule) < UNKNOWN_PASSES || !is_old || is_held || snapshot.rebuilt {
            continue;
        }
        let instance = entry.instance_id.as_ref().and_then(|id| snapshot.instances.get(id));
        match instance.filter(|instance| instance.state.is_live() && !draft.stays(&instance.id)) {
            Some(instance) => draft.terminate(&instance.id, Some(name), why),
            None => draft.act(What::Forget { node: name.clone() }, why),
        }
    }
}

/// Off, and nobody waits for it.
fn is_at_rest(state: &State) -> bool {
    state::is_off(state) || state::is_resume_timeout(state)
}
