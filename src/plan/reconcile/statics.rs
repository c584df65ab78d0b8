//! Static nodes are up all the time: one that is not gets a new instance. `verdict.rs` judges each; here that is carried out and remembered.
//!
//! A replaced node is down by our word, its old instance goes, and a new one is launched at once; Slurm does not power it up. In
//! ParallelCluster the node resumes itself at its boot (aws-facts B.13), elsewhere it is resumed when its slurmd has registered. Until then
//! it is in [`super::Memory::replacing`] and no rule touches it, unless its instance goes, its checks fail or its time is over.

mod verdict;

use std::collections::BTreeMap;
use std::time::Duration;

use super::memory::Replacement;
use super::{Draft, Facts, Level, Order, What, blocks, boots, shortage, state, suspending, sync};
use crate::model::hostlist;
use crate::model::time::Timestamp;
use crate::plan::reasons::MAINTENANCE;
pub(super) use verdict::has_new_instance;
use verdict::{Cause, Verdict};

/// A launch that was asked for has claimed its nodes or failed by then: the longest that a run may take.
const ANSWER: Duration = Duration::from_mins(2);

/// A node of ParallelCluster's that has registered and stays down in so many passes is resumed all the same.
const PASSES_TO_RESUME: u32 = 3;
const REGISTERED: &str = "static, registered";

/// A power-down that was asked for may be pending in fewer passes.
const PASSES_TO_LEAVE: u32 = 3;
const LEAVING: &str = "static, power-down asked for";

/// Nodes that are replaced alike in this pass, for the log.
type Told = BTreeMap<Alike, Vec<String>>;

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Alike {
    why: String,
    state: String,
    /// Within their time to come up.
    within: bool,
    /// They are off, and slurmctld may well have done that: it would do so for ever.
    suspended: bool,
}

pub(super) fn statics(draft: &mut Draft<'_>) {
    forget(draft);
    let (mut told, mut up) = (Told::new(), Vec::new());
    // Of a mapping that was just rebuilt nobody knows whether it is whole.
    let count = if draft.snapshot.rebuilt { 0 } else { draft.facts.len() };
    for index in 0..count {
        let facts = draft.facts[index];
        if !facts.is_static || draft.is_handled(facts.name) || is_exempt(draft, &facts) {
            continue;
        }
        match verdict::judge(draft, &facts) {
            Verdict::Leave => {}
            Verdict::Up => up.extend(draft.memory.replacing.remove(facts.name).map(|_| facts.name)),
            Verdict::Kept => drop(draft.memory.replacing.remove(facts.name)),
            Verdict::Wait => draft.handle(facts.name),
            Verdict::Adopt => adopt(draft, index),
            Verdict::Registered => resume(draft, index),
            Verdict::Leaving if draft.seen(facts.name, LEAVING) < PASSES_TO_LEAVE => {}
            // Down now, slurmctld would call SuspendProgram, which takes what is launched.
            Verdict::Leaving if facts.node.state.is_powering_up() => power_off(draft, index, &Cause::PoweredDown, &mut told),
            Verdict::Leaving => replace(draft, index, &Cause::PoweredDown, &mut told),
            Verdict::Off(cause) => power_off(draft, index, &cause, &mut told),
            Verdict::Replace(cause) => replace(draft, index, &cause, &mut told),
        }
    }
    draft.report.replacing = draft.memory.replacing.keys().cloned().collect();
    hostlist::sort(&mut draft.report.replacing);
    tell(draft, &up, told);
}

/// What is remembered of nodes that are static no longer, or that Slurm has no more. One that it may only hide is not forgotten.
fn forget(draft: &mut Draft<'_>) {
    let Draft { snapshot, policy, facts, memory, .. } = draft;
    memory.replacing.retain(|name, _| {
        let is_hidden = policy.hides_off_nodes && !snapshot.nodes.contains_key(name);
        let found = facts.binary_search_by(|facts| facts.name.cmp(name));
        is_hidden || found.is_ok_and(|index| facts[index].is_static)
    });
}

fn is_exempt(draft: &Draft<'_>, facts: &Facts<'_>) -> bool {
    sync::comes_back(facts) || draft.is_out_of_service(facts) || blocks::is_waiting(draft, facts.group)
}

fn adopt(draft: &mut Draft<'_>, index: usize) {
    let facts = draft.facts[index];
    draft.handle(facts.name);
    let at = facts.launched.unwrap_or(draft.snapshot.now);
    draft.memory.replacing.insert(facts.name.to_owned(), Replacement { since: at, asked: at, why: "found coming up".to_owned() });
}

fn resume(draft: &mut Draft<'_>, index: usize) {
    let name = draft.facts[index].name;
    draft.handle(name);
    if draft.policy.parallelcluster && draft.seen(name, REGISTERED) < PASSES_TO_RESUME {
        return;
    }
    draft.order(name, Order::Resume, None, "its new instance has registered");
}

/// Ends in `idle~`, from where the node is replaced.
fn power_off(draft: &mut Draft<'_>, index: usize, cause: &Cause, told: &mut Told) {
    let facts = draft.facts[index];
    begin_rest(draft, &facts, cause);
    draft.report.unhealthy_static.push(facts.name.to_owned());
    keep_for_the_log(draft, &facts, cause, told);
    remember(draft, &facts, cause, false);
    draft.take_down(index, MAINTENANCE, &format!("{cause}, and slurmctld still waits for it"));
}

fn replace(draft: &mut Draft<'_>, index: usize, cause: &Cause, told: &mut Told) {
    let facts = draft.facts[index];
    draft.handle(facts.name);
    begin_rest(draft, &facts, cause);
    let comes_up = has_new_instance(draft, &facts);
    if let Some(kind) = cause.boot_failure(comes_up) {
        boots::failed(draft, index, kind, &cause.to_string());
    }
    let rests = shortage::is_resting(draft, facts.group);
    let is_bare = facts.entry.is_none() && facts.backing.instance().is_none();
    if !(rests && is_bare) {
        // Of a group that rests its shortage was told.
        keep_for_the_log(draft, &facts, cause, told);
    }
    remember(draft, &facts, cause, !rests);
    if rests && is_bare && facts.node.state.is_down() {
        // All is done but the launch, which would fail again.
        return;
    }
    draft.report.unhealthy_static.push(facts.name.to_owned());
    take_out(draft, index, rests && is_bare, &cause.to_string());
    if !rests {
        draft.act(What::Launch { node: facts.name.to_owned() }, cause.to_string());
    }
}

/// Down, with its address and instance gone. `rests`: until its group may launch again.
fn take_out(draft: &mut Draft<'_>, index: usize, rests: bool, why: &str) {
    let facts = draft.facts[index];
    let disabled = if rests { shortage::disabled(draft, facts.group) } else { None };
    let reason = disabled.as_deref().unwrap_or(MAINTENANCE);
    // Said again where the node is down with a code: the next launch must not be taken for the one that failed.
    if !facts.node.state.is_down() || facts.node.reason.as_deref() != Some(reason) {
        draft.order(facts.name, Order::Down, Some(reason), why);
    }
    draft.let_go(index, why);
    draft.order(facts.name, Order::ResetAddress, None, why);
}

/// EC2 has nothing for the group, by the code of a launch that failed.
fn begin_rest(draft: &mut Draft<'_>, facts: &Facts<'_>, cause: &Cause) {
    if let Cause::LaunchFailed(_) = cause {
        shortage::begin(draft, facts);
    }
}

/// The node's replacement as it was remembered before this pass; a failing check has ended it since.
fn known(draft: &Draft<'_>, facts: &Facts<'_>) -> Option<Replacement> {
    draft.memory.replacing.get(facts.name).or_else(|| draft.before.replacing.get(facts.name)).cloned()
}

/// `launches`: a launch is asked for now.
fn remember(draft: &mut Draft<'_>, facts: &Facts<'_>, cause: &Cause, launches: bool) {
    let (now, before) = (draft.snapshot.now, known(draft, facts));
    let since = before.as_ref().filter(|_| cause.is_another_try()).map_or(now, |before| before.since);
    let asked = if launches { now } else { before.map_or(Timestamp::default(), |before| before.asked) };
    let replacement = Replacement { since, asked, why: cause.to_string() };
    draft.memory.replacing.insert(facts.name.to_owned(), replacement);
}

/// A further try for the same cause is not told again.
fn keep_for_the_log(draft: &Draft<'_>, facts: &Facts<'_>, cause: &Cause, told: &mut Told) {
    let (before, why) = (known(draft, facts), cause.to_string());
    if before.as_ref().is_some_and(|before| cause.is_another_try() && before.why == why) {
        return;
    }
    let since = before.as_ref().map(|before| facts.launched.unwrap_or(before.asked));
    let within = since.is_some_and(|at| draft.snapshot.now.since(at) < draft.policy.upkeep.replacement_timeout);
    let suspended = state::is_off(&facts.node.state) && suspending::limit(draft, facts).is_some();
    let alike = Alike { why, state: facts.node.state.to_string(), within, suspended };
    told.entry(alike).or_default().push(facts.name.to_owned());
}

/// Names, full state, and whether within the time that a new instance gets (M12); one line for nodes that are alike.
fn tell(draft: &mut Draft<'_>, up: &[&str], told: Told) {
    if !up.is_empty() {
        draft.note(Level::Info, format!("static nodes up again: {}", hostlist::compress_sorted(up)));
    }
    let limit = humantime::format_duration(draft.policy.upkeep.replacement_timeout);
    for (Alike { why, state, within, suspended }, nodes) in told {
        let nodes = hostlist::compress_sorted(&nodes);
        let grace = if within { "within" } else { "outside" };
        let advice = if suspended { SUSPENDED } else { "" };
        let text = format!("static nodes replaced: {nodes} in state {state}, {grace} the {limit} to come up: {why}{advice}");
        draft.note(Level::Warn, text);
    }
}

/// What to do about nodes that slurmctld powers down.
const SUSPENDED: &str = "; SuspendExcNodes of slurm.conf does not name them, so slurmctld powers them down when they are idle";

#[cfg(test)]
mod tests;
