//! What slurmctld forgot, or never did (slurm-facts 0 #2, #7): nodes that it waits for and for which nobody launches anything, and nodes
//! that idle for ever because it lost since when. What is wrong only if it lasts is watched for some passes first.

use std::time::Duration;

use super::facts::Backing;
use super::{Draft, Facts, Level, Order, What, suspending};
use crate::model::hostlist;
use crate::model::node::Base;
use crate::model::time::Timestamp;

/// ResumeProgram claims its nodes within seconds, if it runs.
const UNCLAIMED_PASSES: u32 = 2;
/// Where a launch of ours came to nothing either, it is asked for again after so many passes; ResumeTimeout ends it.
const UNCLAIMED_AGAIN: u32 = 5;
const UNCLAIMED: &str = "awaited, nothing launched";

const IDLE_PASSES: u32 = 3;
/// Where the power-down had no effect.
const IDLE_AGAIN: u32 = 10;
const IDLE: &str = "idle for too long";
/// slurmctld looks for idle nodes only now and then.
const MARGIN: Duration = Duration::from_secs(120);

/// With these, an idle node is on its way somewhere or held for somebody.
const HELD: [&str; 18] = [
    "BLOCKED",
    "COMPLETING",
    "DRAIN",
    "FAIL",
    "INVALID_REG",
    "MAINTENANCE",
    "NOT_RESPONDING",
    "PLANNED",
    "POWERED_DOWN",
    "POWERING_DOWN",
    "POWERING_UP",
    "POWER_DOWN",
    "POWER_UP",
    "REBOOT_ISSUED",
    "REBOOT_REQUESTED",
    "RESERVED",
    "RESUME",
    "DYNAMIC_FUTURE",
];

pub(super) fn forgotten(draft: &mut Draft<'_>) {
    let (mut unclaimed, mut idle) = (Vec::new(), Vec::new());
    for index in 0..draft.facts.len() {
        let facts = draft.facts[index];
        if draft.is_handled(facts.name) || draft.is_out_of_service(&facts) {
            continue;
        }
        if is_unclaimed(&facts) {
            let passes = draft.seen(facts.name, UNCLAIMED);
            if is_due(passes, UNCLAIMED_PASSES, UNCLAIMED_AGAIN) {
                draft.handle(facts.name);
                draft.act(What::Launch { node: facts.name.to_owned() }, "slurmctld waits for it and nothing was launched");
                unclaimed.push(facts.name);
            }
        } else if is_idle_for_too_long(draft, &facts) {
            let passes = draft.seen(facts.name, IDLE);
            if is_due(passes, IDLE_PASSES, IDLE_AGAIN) {
                draft.handle(facts.name);
                draft.order(facts.name, Order::PowerDown, None, "idle for longer than SuspendTime");
                idle.push(facts.name);
            }
        }
    }
    let (passes, warn) = (UNCLAIMED_PASSES, Level::Warn);
    if !unclaimed.is_empty() {
        let nodes = hostlist::compress_sorted(&unclaimed);
        let text = "launched now: slurmctld waits for them, and ResumeProgram did not come for them in";
        draft.note(warn, format!("{text} {passes} passes: {nodes}"));
    }
    if !idle.is_empty() {
        let nodes = hostlist::compress_sorted(&idle);
        draft.note(warn, format!("powered down: idle for longer than SuspendTime, and slurmctld did not do it: {nodes}"));
    }
}

/// For the first time after `first` passes, then each `again`.
fn is_due(passes: u32, first: u32, again: u32) -> bool {
    passes >= first && (passes - first).is_multiple_of(again)
}

/// Powering up, with no instance, no claim and nothing that may still appear.
fn is_unclaimed(facts: &Facts<'_>) -> bool {
    let state = &facts.node.state;
    state.is_awaited() && !state.is_down() && !state.is_powering_down() && is_bare(facts)
}

fn is_bare(facts: &Facts<'_>) -> bool {
    facts.backing == Backing::Nothing && facts.entry.is_none()
}

/// Up without a job for SuspendTime and more, though it may be suspended (M28).
fn is_idle_for_too_long(draft: &Draft<'_>, facts: &Facts<'_>) -> bool {
    if facts.is_static || !is_idle(facts) {
        return false;
    }
    let Some(limit) = suspending::limit(draft, facts) else { return false };
    busy_until(facts).is_some_and(|busy| draft.snapshot.now.since(busy) > limit + MARGIN)
}

fn is_idle(facts: &Facts<'_>) -> bool {
    let state = &facts.node.state;
    state.base == Base::Idle && facts.node.reservation.is_none() && !HELD.iter().any(|flag| state.has(flag))
}

/// When the node was last of use, as far as anybody knows; `None`: that is not known, and nothing is done on a guess.
fn busy_until(facts: &Facts<'_>) -> Option<Timestamp> {
    let by_slurm = [facts.node.last_busy, facts.node.slurmd_start_time].into_iter().flatten().max()?;
    let booted = facts.node.boot_time.unwrap_or_default();
    Some(Timestamp::from_secs(by_slurm.max(booted)).max(facts.launched.unwrap_or_default()))
}

#[cfg(test)]
mod tests;
