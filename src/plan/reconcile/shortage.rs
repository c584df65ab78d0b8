//! Groups for which EC2 had no instance: they rest for a while, so that jobs do not launch and fail in a circle (aws-facts D.6). Nodes whose
//! launch failed, by the code in their Reason, in; nodes to set down, and to bring back when the time is over, out.
//!
//! A node whose launch failed stays down. The group's other nodes that are off are set down with the same code, so that the scheduler
//! looks elsewhere. Nodes that are up or coming up are never touched. The end needs nothing but the clock.

use std::collections::BTreeMap;
use std::time::Duration;

use super::facts::Backing;
use super::memory::Shortage;
use super::reasons::{DISABLED, ENABLED};
use super::{Draft, Facts, Level, Order, Policy, blocks, state};
use crate::model::ec2_codes;
use crate::model::failure::{BackoffKind, RESUME_TIMEOUT, blamed_in, code_of, reason_with};

/// For [`DISABLED`], where it is not capacity that lacks.
const DISABLED_OTHERWISE: &str = "Temporarily disabling node: launches of its group fail";

/// Does the group rest now?
pub(super) fn is_resting(draft: &Draft<'_>, group: usize) -> bool {
    draft.memory.shortages.get(&draft.policy.groups[group].name).is_some_and(|shortage| !is_over(draft, shortage))
}

/// The node's launch failed: its group rests from now on, if the code in its Reason asks for it. Once: what fails while the group rests,
/// or in the pass that ends it, prolongs nothing.
pub(super) fn begin(draft: &mut Draft<'_>, facts: &Facts<'_>) {
    let (name, now) = (&draft.policy.groups[facts.group].name, draft.snapshot.now);
    let Some(code) = failed_with(draft, facts) else { return };
    let Some((kind, time)) = rest(draft.policy, facts.group, code) else { return };
    if draft.memory.shortages.contains_key(name) {
        return;
    }
    let until = now + time;
    draft.note(
        Level::Warn,
        format!("group {name} rests until {until} after {code}: its nodes that are off are set down, those that are up are left"),
    );
    draft.memory.shortages.insert(name.clone(), Shortage { code: code.to_owned(), kind, since: now, until });
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
    shortage.until <= draft.snapshot.now || shortage.since > draft.snapshot.now
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
    !facts.is_static
        && !draft.is_handled(facts.name)
        && !draft.is_out_of_service(facts)
        && !blocks::is_waiting(draft, facts.group)
        && !state::is_rebooting(&facts.node.state)
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
    draft.order(facts.name, Order::PowerDown, Some(ENABLED), why);
    if facts.node.addr != facts.node.name {
        draft.order(facts.name, Order::ResetAddress, None, why);
    }
}

/// Forgets what is over; `back` = nodes brought back, by group.
fn end(draft: &mut Draft<'_>, back: &BTreeMap<usize, usize>) {
    let over: Vec<String> = {
        let shortages = draft.memory.shortages.iter();
        shortages.filter(|(_, shortage)| is_over(draft, shortage)).map(|(name, _)| name.clone()).collect()
    };
    for name in over {
        let Some(shortage) = draft.memory.shortages.remove(&name) else { continue };
        let nodes = draft.policy.groups.iter().position(|group| group.name == name).and_then(|index| back.get(&index));
        let nodes = nodes.copied().unwrap_or_default();
        draft.note(Level::Info, format!("group {name} no longer rests after {}: {nodes} nodes are brought back", shortage.code));
    }
}

#[cfg(test)]
mod tests;
