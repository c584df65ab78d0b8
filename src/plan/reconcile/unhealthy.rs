//! Dynamic nodes that Slurm cannot use: down, drained to the end, registered as something else, not up before ResumeTimeout (aws-facts D.2).
//! They go back to `idle~`, their instances with them. SuspendExc* of slurm.conf is about idle nodes and spares none of these (M17).

use super::facts::Backing;
use super::report::Bootstrap;
use super::{Draft, Facts, Level, Order, blocks, boots, state, sync};
use crate::model::failure::code_of;
use crate::model::hostlist;
use crate::model::node::{Base, SlurmNode};
use crate::plan::reasons::{self, UNHEALTHY};

/// A node that is drained and off leaves that by a power-down; where so many have no effect, `resume` ends it.
const POWER_DOWNS: u32 = 3;
const DRAINED_OFF: &str = "drained and off";
const KEPT_DRAINED: &str = "drained and off by a person";

pub(super) fn unhealthy(draft: &mut Draft<'_>) {
    let mut kept = Vec::new();
    for index in 0..draft.facts.len() {
        let facts = draft.facts[index];
        let (state, reason) = (&facts.node.state, facts.node.reason.as_deref());
        if state::is_down(state) && reasons::is_silent(reason) {
            draft.report.not_responding.push(facts.name.to_owned());
        }
        if facts.is_static && is_kept(&facts) && draft.seen(facts.name, KEPT_DRAINED) == 1 {
            kept.push(facts.name);
        }
        if facts.is_static || draft.is_handled(facts.name) || is_exempt(draft, &facts) {
            continue;
        }
        count(draft, index);
        if (state::is_off(state) && state.has("DRAIN")) || is_kept(&facts) {
            drained_off(draft, &facts, &mut kept);
        } else if let Some(why) = why(draft, &facts) {
            draft.report.unhealthy_dynamic.push(facts.name.to_owned());
            draft.take_down(index, UNHEALTHY, why);
        }
    }
    if !kept.is_empty() {
        let nodes = hostlist::compress_sorted(&kept);
        draft.note(Level::Info, format!("powered down and drained by a person, left so: {nodes}"));
    }
}

/// Off, and drained by a person, who knows why: by a stop of the fleet, or since it is off. Down besides, as nodes of a group that rests
/// are, it is kept all the same where nothing stands behind it: to bring it back takes the drain away.
pub(super) fn is_kept(facts: &Facts<'_>) -> bool {
    let (state, reason) = (&facts.node.state, facts.node.reason.as_deref());
    let is_bare = || facts.entry.is_none() && facts.backing == Backing::Nothing;
    let is_off = state::is_off(state) || (state::is_resume_timeout(state) && is_bare());
    is_off && state.has("DRAIN") && reasons::is_a_persons(reason)
}

/// Rebooting, coming up for a job, on their way off, being launched right now, or reserved until their Capacity Block is active.
fn is_exempt(draft: &Draft<'_>, facts: &Facts<'_>) -> bool {
    let state = &facts.node.state;
    sync::comes_back(facts)
        || (state.is_awaited() && !state.is_down())
        || draft.is_out_of_service(facts)
        || blocks::is_waiting(draft, facts.group)
        || state.is_powering_down()
        || facts.has_live_claim(draft.snapshot)
}

/// Boot failures of which the state tells. Nothing was launched where the reason has a code, or where nothing is left behind the node.
fn count(draft: &mut Draft<'_>, index: usize) {
    let facts = draft.facts[index];
    let state = &facts.node.state;
    let was_launched = matches!(facts.backing, Backing::Instance(_) | Backing::Ended(_) | Backing::Missing);
    let has_code = facts.node.reason.as_deref().and_then(code_of).is_some();
    if state::is_resume_timeout(state) && was_launched && !has_code {
        boots::failed(draft, index, Bootstrap::DynamicResumeTimeout, "not up before ResumeTimeout");
    } else if is_invalid(facts.node) && was_launched {
        boots::failed(draft, index, Bootstrap::Other, INVALID);
    }
}

const INVALID: &str = "it registered with less than slurm.conf promises";

/// A node with a job, or with the end of one, is left until that is over (M07).
fn is_invalid(node: &SlurmNode) -> bool {
    state::is_invalid_registration(&node.state) && !state::has_job(&node.state) && !node.state.is_powering_up()
}

/// We have set it down on its way back, and a pass came to an end before the rest of it: not what `terminate_down_nodes` spares.
fn is_down_by_us(node: &SlurmNode) -> bool {
    let words = [UNHEALTHY, reasons::INACTIVE, reasons::STOPPING];
    let is_ours =
        |reason: &str| words.contains(&reason) || reason.strip_prefix(UNHEALTHY).is_some_and(|rest| rest.starts_with(": "));
    state::is_down(&node.state) && node.reason.as_deref().is_some_and(is_ours)
}

/// Why the node cannot go on; `None`: it can.
fn why(draft: &Draft<'_>, facts: &Facts<'_>) -> Option<&'static str> {
    let (state, upkeep) = (&facts.node.state, &draft.policy.upkeep);
    if is_invalid(facts.node) && upkeep.terminate_drain_nodes && state.base == Base::Idle {
        Some(INVALID)
    } else if state::is_state_healthy(state, upkeep, false) && !is_down_by_us(facts.node) {
        None
    } else if state::is_resume_timeout(state) {
        Some("it is down and off")
    } else if state::is_down(state) {
        Some("it is down")
    } else {
        Some("it is drained and has no job")
    }
}

/// Slurm does not use it, and its power-down has not ended that. A person who drained it knows why; whatever else did is over.
fn drained_off<'a>(draft: &mut Draft<'a>, facts: &Facts<'a>, kept: &mut Vec<&'a str>) {
    let (state, reason) = (&facts.node.state, facts.node.reason.as_deref());
    if !draft.policy.upkeep.terminate_drain_nodes || state.power_down_requested() {
        return;
    }
    if reasons::is_a_persons(reason) {
        if draft.seen(facts.name, KEPT_DRAINED) == 1 {
            kept.push(facts.name);
        }
        return;
    }
    draft.handle(facts.name);
    draft.report.unhealthy_dynamic.push(facts.name.to_owned());
    if draft.seen(facts.name, DRAINED_OFF) > POWER_DOWNS {
        let why = format!("it is off and stays drained in spite of {POWER_DOWNS} power-downs");
        draft.order(facts.name, Order::Resume, None, &why);
    } else {
        draft.order(facts.name, Order::PowerDownForce, Some(UNHEALTHY), "it is off and still drained");
    }
}

#[cfg(test)]
mod tests;
