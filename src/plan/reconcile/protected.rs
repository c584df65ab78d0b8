//! Protected mode: a queue whose nodes fail at boot again and again takes no more jobs, so that it does not burn money (aws-facts D.5).
//! Boot failures that other rules and slurm_resume_fail found in; counts per queue and group, and the queue's end, out. It ends by a start
//! of the fleet, which clears the counts, so that leftovers never bring it back. That a queue is up again says nothing while the fleet is
//! PROTECTED: slurmctld forgets INACTIVE when it restarts or reads slurm.conf again.

use std::collections::BTreeSet;

use super::facts::Backing;
use super::memory::{LAST_FAILURES, NodeFailure};
use super::report::Bootstrap;
use super::{Draft, Facts, Level, Memory, Policy, What, state};
use crate::model::cluster::PartitionState;
use crate::model::failure::code_of;
use crate::model::fleet::FleetStatus;
use crate::model::time::Timestamp;

/// Counts a boot failure of the node `draft.facts[index]` against its group, in every queue of ours that has the node: once per launch,
/// whatever the number of passes that see it and of rules that name it (D.9 #16).
pub(super) fn count_failure(draft: &mut Draft<'_>, index: usize, kind: Bootstrap, why: &str) {
    let (launch, now) = (launch_of(&draft.facts[index]), draft.snapshot.now);
    count(draft, index, launch, kind, why, now);
}

fn count(draft: &mut Draft<'_>, index: usize, launch: String, kind: Bootstrap, why: &str, at: Timestamp) {
    let (name, node, group) = (draft.facts[index].name, draft.facts[index].node, draft.facts[index].group);
    if draft.memory.counted.get(name).is_some_and(|counted| is_same(counted, &launch)) {
        return;
    }
    draft.memory.counted.insert(name.to_owned(), launch);
    draft.report.boot_failures.entry(kind.event()).or_default().push(name.to_owned());
    if draft.policy.upkeep.protected_count.is_none() {
        return;
    }
    let group = &draft.policy.groups[group].name;
    for queue in node.partitions.iter().filter(|queue| draft.policy.partitions.contains(*queue)) {
        let failures = draft.memory.failures.entry(queue.clone()).or_default().entry(group.clone()).or_default();
        failures.count += 1;
        failures.last.push(NodeFailure { node: name.to_owned(), at, why: why.to_owned() });
        let excess = failures.last.len().saturating_sub(LAST_FAILURES);
        failures.last.drain(..excess);
    }
}

/// What tells this launch of the node from its next one; empty where at most an address is left of it.
fn launch_of(facts: &Facts<'_>) -> String {
    let launch = facts.entry.map(|entry| entry.launch.as_str());
    launch.or(facts.instance_id()).unwrap_or_default().to_owned()
}

/// Is it the launch that was counted? Less may be known of it by now: its entry goes first, Slurm's InstanceId later.
fn is_same(counted: &str, launch: &str) -> bool {
    let is_instance = |text: &str| text.starts_with("i-");
    counted == launch || launch.is_empty() || (is_instance(launch) && !is_instance(counted) && !counted.is_empty())
}

pub(super) fn protected(draft: &mut Draft<'_>) {
    noted_by_others(draft);
    settle(draft);
    let Some(threshold) = draft.policy.upkeep.protected_count else {
        draft.memory.failures.clear();
        draft.memory.protected.clear();
        return;
    };
    leave(draft, threshold);
    clear_healthy(draft);
    enter(draft, threshold);
}

/// Boot failures that slurm_resume_fail has noted since the last pass: slurmctld's ResumeTimeout, mostly over before a pass sees it.
fn noted_by_others(draft: &mut Draft<'_>) {
    let (snapshot, now) = (draft.snapshot, draft.snapshot.now);
    // Seen or noted while the clock was ahead: nothing of the time until then would count.
    let seen = draft.memory.failures_seen.min(now);
    draft.memory.failures_seen = seen;
    for (node, at) in snapshot.boot_failures.iter().filter(|(_, at)| *at > seen && *at <= now) {
        draft.memory.failures_seen = draft.memory.failures_seen.max(*at);
        let Ok(index) = draft.facts.binary_search_by(|facts| facts.name.cmp(node)) else { continue };
        let facts = &draft.facts[index];
        if facts.node.reason.as_deref().and_then(code_of).is_some() {
            // It was never launched, and slurmctld has named it all the same at ResumeTimeout (M25).
            continue;
        }
        // A later launch of the node is not the one that failed.
        let launch = if facts.entry.is_some_and(|entry| entry.requested > *at) { String::new() } else { launch_of(facts) };
        count(draft, index, launch, Bootstrap::DynamicResumeTimeout, "not up before ResumeTimeout", *at);
    }
}

/// What was counted is over for nodes that are off with nothing behind them, or up: their next failure is another one.
fn settle(draft: &mut Draft<'_>) {
    if draft.memory.counted.is_empty() {
        return;
    }
    let is_clear = |facts: &Facts<'_>| facts.entry.is_none() && !facts.has_address();
    let over = |facts: &Facts<'_>| (state::is_off(&facts.node.state) && is_clear(facts)) || is_healthy(draft, facts);
    let counted: BTreeSet<&str> = draft.facts.iter().filter(|facts| !over(facts)).map(|facts| facts.name).collect();
    draft.memory.counted.retain(|node, _| counted.contains(node.as_str()));
}

/// Was the fleet started? Then all is counted anew; else the protected queues are kept inactive. An order is remembered in the pass that
/// gives it, so that a start before the next pass is seen as one; RUNNING with a queue inactive is an order of which half got through.
fn leave(draft: &mut Draft<'_>, threshold: u64) {
    let (policy, fleet, now, partitions) = (draft.policy, draft.snapshot.fleet, draft.snapshot.now, &draft.snapshot.partitions);
    draft.memory.failures.retain(|queue, groups| {
        groups.retain(|name, _| policy.groups.iter().any(|group| group.name == *name));
        policy.partitions.contains(queue) && !groups.is_empty()
    });
    // Protected, and nobody remembers what for: killed before the memory was written.
    let forgotten = fleet == FleetStatus::Protected && draft.memory.protected.is_empty();
    for queue in draft.memory.failures.keys().cloned().collect::<Vec<_>>() {
        if is_inactive(draft, &queue) && (forgotten || failures_of(&draft.memory, &queue) >= threshold) {
            draft.memory.protected.entry(queue).or_insert(now);
        }
    }
    draft.memory.protected.retain(|queue, _| policy.partitions.contains(queue) && partitions.contains_key(queue));
    let (inactive, others): (Vec<_>, Vec<_>) =
        draft.memory.protected.keys().cloned().partition(|queue| is_inactive(draft, queue));
    if fleet == FleetStatus::Running && inactive.is_empty() && !others.is_empty() {
        draft.memory.failures.clear();
        draft.memory.protected.clear();
        draft.note(Level::Info, "the fleet was started after protected mode: boot failures are counted anew");
        return;
    }
    // Down or draining by somebody's hand it takes no job either.
    for queue in others.into_iter().filter(|queue| partitions.get(queue).is_some_and(|it| it.state == PartitionState::Up)) {
        draft.act(What::Inactivate { partition: queue }, "it is up, and protected until the fleet is started");
    }
    if let (FleetStatus::Running, Some(queue)) = (fleet, inactive.first()) {
        protect_fleet(draft, &format!("queue {queue} is inactive because its nodes fail to boot"));
    }
}

/// A node that is up shows that its group can boot; no other group's.
fn clear_healthy(draft: &mut Draft<'_>) {
    if draft.memory.failures.is_empty() {
        return;
    }
    let healthy: BTreeSet<&str> = draft
        .facts
        .iter()
        .filter(|facts| is_healthy(draft, facts))
        .map(|facts| draft.policy.groups[facts.group].name.as_str())
        .collect();
    let protected = &draft.memory.protected;
    draft.memory.failures.retain(|queue, groups| {
        if !protected.contains_key(queue) {
            groups.retain(|group, _| !healthy.contains(group.as_str()));
        }
        !groups.is_empty()
    });
}

/// Ends the queues that have failed too often. One with a running job waits for its end, and no other waits with it.
fn enter(draft: &mut Draft<'_>, threshold: u64) {
    let due: Vec<String> = draft
        .memory
        .failures
        .keys()
        .filter(|queue| failures_of(&draft.memory, queue) >= threshold)
        .filter(|queue| draft.snapshot.partitions.contains_key(*queue) && !is_inactive(draft, queue))
        .filter(|queue| !draft.memory.protected.contains_key(*queue))
        .cloned()
        .collect();
    for queue in due {
        let count = failures_of(&draft.memory, &queue);
        if draft.facts.iter().any(|facts| facts.node.partitions.contains(&queue) && state::runs_job(&facts.node.state)) {
            if failures_of(draft.before, &queue) < threshold {
                let text = format!(
                    "queue {queue}: {count} boot failures, the threshold is {threshold}; inactive when its jobs have ended"
                );
                draft.note(Level::Warn, text);
            }
            continue;
        }
        let why = format!("{count} boot failures, the threshold is {threshold}");
        draft.act(What::Inactivate { partition: queue.clone() }, why.clone());
        draft.note(Level::Error, told(draft, &queue, &why));
        protect_fleet(draft, &format!("queue {queue}: {why}"));
        draft.memory.protected.insert(queue, draft.snapshot.now);
    }
}

/// Once in a pass, and only from RUNNING.
fn protect_fleet(draft: &mut Draft<'_>, why: &str) {
    let what = What::Fleet { from: FleetStatus::Running, to: FleetStatus::Protected };
    if draft.snapshot.fleet == FleetStatus::Running && !draft.actions.iter().any(|action| action.what == what) {
        draft.act(what, why);
    }
}

/// The one line that says what happened, why, and how it ends (M24).
fn told(draft: &Draft<'_>, queue: &str, why: &str) -> String {
    let last: Vec<String> =
        last_failures(&draft.memory, queue).iter().map(|it| format!("{} at {} ({})", it.node, it.at, it.why)).collect();
    let command = way_out(draft.policy, &draft.snapshot.mapping.cluster);
    format!("queue {queue} is set inactive: {why}; last failures: {}; when the cause is repaired: {command}", last.join(", "))
}

/// The command that ends protected mode.
pub(crate) fn way_out(policy: &Policy, cluster: &str) -> String {
    if policy.parallelcluster {
        format!("pcluster update-compute-fleet --cluster-name {cluster} --status START_REQUESTED")
    } else {
        "slurm-ec2 fleet start".to_owned()
    }
}

/// Boot failures that count against the queue.
pub(crate) fn failures_of(memory: &Memory, queue: &str) -> u64 {
    memory.failures.get(queue).into_iter().flat_map(|groups| groups.values()).map(|group| group.count).sum()
}

/// The queue's latest, oldest first.
pub(crate) fn last_failures<'m>(memory: &'m Memory, queue: &str) -> Vec<&'m NodeFailure> {
    let groups = memory.failures.get(queue).into_iter().flat_map(|groups| groups.values());
    let mut last: Vec<&NodeFailure> = groups.flat_map(|group| &group.last).collect();
    last.sort_by(|a, b| (a.at, &a.node).cmp(&(b.at, &b.node)));
    last.split_off(last.len().saturating_sub(LAST_FAILURES))
}

fn is_inactive(draft: &Draft<'_>, queue: &str) -> bool {
    draft.snapshot.partitions.get(queue).is_some_and(|partition| partition.state == PartitionState::Inactive)
}

/// Up, registered, with a live instance, and no rule has found anything.
fn is_healthy(draft: &Draft<'_>, facts: &Facts<'_>) -> bool {
    state::is_online(&facts.node.state)
        && matches!(facts.backing, Backing::Instance(_))
        && !draft.is_handled(facts.name)
        && !draft.memory.failing.contains_key(facts.name)
}

#[cfg(test)]
mod tests;
