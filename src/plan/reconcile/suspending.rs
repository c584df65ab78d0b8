//! When slurmctld itself powers an idle node down, by slurm.conf (slurm-facts F). A node in; how long it may idle, or never, out.

use std::time::Duration;

use super::{Draft, Facts};

/// How long the node may idle before slurmctld is to power it down; `None` = it never is, or that is not known.
pub(super) fn limit(draft: &Draft<'_>, facts: &Facts<'_>) -> Option<Duration> {
    if is_excluded(draft, facts) { None } else { suspend_time(draft, facts) }
}

/// SuspendExcNodes, SuspendExcParts and SuspendExcStates.
fn is_excluded(draft: &Draft<'_>, facts: &Facts<'_>) -> bool {
    let rules = &draft.policy.suspend;
    rules.excluded_nodes.contains(facts.name)
        || facts.node.partitions.iter().any(|partition| rules.excluded_partitions.contains(partition))
        || rules.excluded_states.iter().any(|word| facts.node.state.has(&word.to_uppercase()))
}

/// The largest of its partitions' times, a partition without one of its own having the cluster's.
fn suspend_time(draft: &Draft<'_>, facts: &Facts<'_>) -> Option<Duration> {
    let rules = &draft.policy.suspend;
    let times = facts.node.partitions.iter().map(|partition| rules.partitions.get(partition).copied().unwrap_or(rules.time));
    times.reduce(|one, other| Some(one?.max(other?))).unwrap_or(rules.time)
}
