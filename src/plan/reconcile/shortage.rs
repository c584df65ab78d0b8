//! Groups for which EC2 had no instance: they rest for a while, so that jobs do not launch and fail in a circle (aws-facts D.6). Nodes whose
//! launch failed, by the code in their Reason, in; nodes to set down, and to bring back when the time is over, out.
//!
//! A node whose launch failed stays down. The group's other nodes that are off are set down with the same code, so that the scheduler
//! looks elsewhere. Nodes that are up or coming up are never touched. The end needs nothing but the clock; that a node still lies there
//! with its old code, because its power-down has not got through, begins no new rest.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::facts::Backing;
use super::memory::{Over, Shortage};
use super::{Draft, Facts, Level, Order, POWER_DOWNS, Policy, STAYS_DOWN, blocks, state};
use crate::model::ec2_codes;
use crate::model::failure::{BackoffKind, RESUME_TIMEOUT, blamed_in, code_of, reason_with};
use crate::plan::reasons::{DISABLED, ENABLED};

/// For [`DISABLED`], where it is not capacity that lacks.
const DISABLED_OTHERWISE: &str = "Temporarily disabling node: launches of its group fail";

/// For so many passes a node that lies there after the end is taken for one that has not been brought back yet: one more than the
/// power-downs, for the resume that follows them. After that its code counts as a new one.
const ENDING: u32 = POWER_DOWNS + 1;
/// A static node is launched at once, and EC2 mostly refuses before the next pass.
const ENDING_STATIC: u32 = 1;

/// Does the group rest now?
pub(super) fn is_resting(draft: &Draft<'_>, group: usize) -> bool {
    draft.memory.shortages.get(&draft.policy.groups[group].name).is_some_and(|shortage| !is_over(draft, shortage))
}

/// The node's launch failed: its group rests from now on, if the code in its Reason asks for it. Once: what fails while the group rests,
/// or in the pass that ends it, prolongs nothing, nor does what was left lying then.
pub(super) fn begin(draft: &mut Draft<'_>, facts: &Facts<'_>) {
    let (name, now) = (&draft.policy.groups[facts.group].name, draft.snapshot.now);
    let Some(code) = failed_with(draft, facts) else { return };
    let Some((kind, time)) = rest(draft.policy, facts.group, code) else { return };
    let before = draft.memory.shortages.get(name);
    if before.is_some_and(|shortage| shortage.over.as_ref().is_none_or(|over| over.nodes.contains(facts.name))) {
        return;
    }
    let until = now + time;
    draft.note(
        Level::Warn,
        format!("group {name} rests until {until} after {code}: its nodes that are off are set down, those that are up are left"),
    );
    draft.memory.shortages.insert(name.clone(), Shortage { code: code.to_owned(), kind, since: now, until, over: None });
}

/// The Reason of nodes of a resting group that nobody tried to launch.
pub(super) fn disabled(draft: &Draft<'_>, group: usize) -> Option<String> {
    let shortage = draft.memory.shortages.get(&draft.policy.groups[group].name)?;
    let words = if shortage.kind == BackoffKind::Capacity { DISABLED } else { DISABLED_OTHERWISE };
    Some(reason_with(&shortage.code, words))
}

/// How long a group rests after this code; `None`: its nodes are treated like any others that are down.
fn rest(policy: &Policy, group: usize, code: &str) -> Option<(BackoffKind, Duration)> {
    let kind = ec2_codes::rest_of(code, policy.parallelcluster)?;
    let time = policy.upkeep.shortage_timeout.unwrap_or_else(|| policy.groups[group].backoff.of(kind));
    (!time.is_zero()).then_some((kind, time))
}

/// A beginning in the future was written by a clock that was wrong: its end would be as wrong.
fn is_over(draft: &Draft<'_>, shortage: &Shortage) -> bool {
    shortage.over.is_some() || shortage.until <= draft.snapshot.now || shortage.since > draft.snapshot.now
}

pub(super) fn shortages(draft: &mut Draft<'_>) {
    let policy = draft.policy;
    draft.memory.shortages.retain(|name, _| policy.groups.iter().any(|group| group.name == *name));
    let concerned: Vec<usize> = (0..draft.facts.len()).filter(|index| is_concerned(draft, *index)).collect();
    for index in &concerned {
        let facts = draft.facts[*index];
        begin(draft, &facts);
    }
    if draft.memory.shortages.is_empty() {
        return;
    }
    let mut back: BTreeMap<usize, usize> = BTreeMap::new();
    for index in concerned {
        let facts = draft.facts[index];
        let Some(shortage) = draft.memory.shortages.get(&policy.groups[facts.group].name) else { continue };
        let (is_over, code) = (is_over(draft, shortage), shortage.code.clone());
        let lies = lies(draft, &facts);
        if is_over && lies {
            bring_back(draft, &facts);
            *back.entry(facts.group).or_default() += 1;
        } else if !is_over && lies {
            draft.handle(facts.name);
        } else if !is_over && is_idle_off(&facts) {
            set_down(draft, &facts, &code);
        }
    }
    end(draft, &back);
}

/// Dynamic nodes in service that no other rule has taken; static ones are `statics.rs`'s.
fn is_concerned(draft: &Draft<'_>, index: usize) -> bool {
    let facts = &draft.facts[index];
    !facts.is_static && !draft.is_handled(facts.name) && is_in_service(draft, facts)
}

fn is_in_service(draft: &Draft<'_>, facts: &Facts<'_>) -> bool {
    !draft.is_out_of_service(facts) && !blocks::is_waiting(draft, facts.group) && !state::is_rebooting(&facts.node.state)
}

/// The code with which the node's launch failed: it is down, and nothing came of it. One that failed along with a node of another group,
/// for a job that needs both, says nothing about its own.
fn failed_with<'a>(draft: &Draft<'_>, facts: &Facts<'a>) -> Option<&'a str> {
    let reason = facts.node.reason.as_deref().filter(|_| is_down_with_nothing(facts))?;
    let blamed = blamed_in(reason).and_then(|node| draft.snapshot.nodes.get(node));
    if blamed.is_some_and(|member| member.group != Some(facts.group)) {
        return None;
    }
    code_of(reason)
}

/// An old address may be left on Slurm 22.05; an instance, or one that may still be seen, is not.
fn is_down_with_nothing(facts: &Facts<'_>) -> bool {
    let is_bare = facts.entry.is_none() && matches!(facts.backing, Backing::Nothing | Backing::Missing);
    state::is_down(&facts.node.state) && is_bare
}

/// Down because of the group's shortage: by its code, or because slurmctld waited on for a node that was down already and said so at
/// ResumeTimeout.
fn lies(draft: &Draft<'_>, facts: &Facts<'_>) -> bool {
    let timed_out = || facts.node.reason.as_deref().is_some_and(|reason| reason.ends_with(RESUME_TIMEOUT));
    match failed_with(draft, facts) {
        Some(code) => rest(draft.policy, facts.group, code).is_some(),
        None => is_down_with_nothing(facts) && timed_out(),
    }
}

/// `idle~`, to be had by the scheduler, with nothing behind it. One that a person has drained is left so.
fn is_idle_off(facts: &Facts<'_>) -> bool {
    let state = &facts.node.state;
    let to_be_had = !state.has("DRAIN") && !state.power_down_requested();
    state::is_off(state) && to_be_had && facts.entry.is_none() && facts.backing == Backing::Nothing
}

fn set_down<'a>(draft: &mut Draft<'a>, facts: &Facts<'a>, code: &str) {
    draft.handle(facts.name);
    let reason = disabled(draft, facts.group);
    draft.order(facts.name, Order::Down, reason.as_deref(), &format!("its group rests after {code}"));
}

fn bring_back<'a>(draft: &mut Draft<'a>, facts: &Facts<'a>) {
    draft.handle(facts.name);
    let why = "the rest of its group is over";
    let is_off = facts.node.state.is_powered_down();
    if is_off && draft.seen(facts.name, STAYS_DOWN) > POWER_DOWNS {
        draft.order(facts.name, Order::Resume, None, &format!("{why}, and it stays down in spite of {POWER_DOWNS} power-downs"));
    } else {
        draft.order(facts.name, Order::PowerDown, Some(ENABLED), why);
    }
    if facts.node.addr != facts.node.name {
        draft.order(facts.name, Order::ResetAddress, None, why);
    }
}

/// Tells what is over, once, and forgets it when none of the nodes that lay there does any more; `back` = nodes brought back in this
/// pass, by group.
fn end(draft: &mut Draft<'_>, back: &BTreeMap<usize, usize>) {
    let policy = draft.policy;
    for (group, name) in policy.groups.iter().enumerate().map(|(group, view)| (group, &view.name)) {
        let Some(shortage) = draft.memory.shortages.get(name).filter(|shortage| is_over(draft, shortage)) else { continue };
        if shortage.over.is_none() {
            let nodes = back.get(&group).copied().unwrap_or_default();
            let text = format!("group {name} no longer rests after {}: {nodes} nodes are brought back", shortage.code);
            draft.note(Level::Info, text);
        }
        let left = left_lying(draft, group, draft.memory.shortages[name].over.as_ref());
        if left.nodes.is_empty() {
            draft.memory.shortages.remove(name);
        } else if let Some(shortage) = draft.memory.shortages.get_mut(name) {
            shortage.over = Some(left);
        }
    }
}

/// The group's nodes that lie there as they did when its rest ended; `before` = those of the last pass, if it was over then.
fn left_lying(draft: &Draft<'_>, group: usize, before: Option<&Over>) -> Over {
    let passes = before.map_or(0, |over| over.passes).saturating_add(1);
    let is_left = |facts: &&Facts<'_>| {
        let most = if facts.is_static { ENDING_STATIC } else { ENDING };
        facts.group == group
            && passes <= most
            && before.is_none_or(|over| over.nodes.contains(facts.name))
            && is_in_service(draft, facts)
            && lies(draft, facts)
    };
    let nodes: BTreeSet<String> = draft.facts.iter().filter(is_left).map(|facts| facts.name.to_owned()).collect();
    Over { nodes, passes }
}

#[cfg(test)]
mod tests;
