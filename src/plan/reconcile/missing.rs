//! Instances that are named behind a node and that EC2 does not show at all. EC2 shows a new one late, and one look that misses an
//! instance proves nothing (M09): so it is believed gone only when it is old enough and was missed in several passes running. Nor do
//! many looks as long as slurmctld hears from the node: EC2 has answered "nothing" with success before, and a whole cluster with its
//! jobs must not end by that. What EC2 does show as ended is another matter (`facts.rs`).

use super::facts::{Backing, Facts, believed};
use super::memory::Missing;
use super::{Memory, Policy, Snapshot, state};

/// Passes in which EC2 does not show an instance and slurmctld does not hear its node, whatever the configuration says: a single look never ends a node.
const PASSES: u32 = 2;

/// Counts the passes in `memory` and sets [`Facts::is_gone`] where it has been long enough.
pub(super) fn judge(snapshot: &Snapshot, policy: &Policy, memory: &mut Memory, facts: &mut [Facts<'_>]) {
    let mut before = std::mem::take(&mut memory.missing);
    let is_missed = |facts: &Facts<'_>| facts.backing == Backing::Missing && !state::is_heard(&facts.node.state);
    for facts in facts.iter_mut().filter(|facts| is_missed(facts)) {
        let named = facts.instance_id().unwrap_or(&facts.node.addr);
        let mut missing = before.remove(facts.name).filter(|missing| missing.instance == named).unwrap_or_else(|| Missing {
            instance: named.to_owned(),
            since: snapshot.now,
            passes: 0,
        });
        missing.passes = missing.passes.saturating_add(1);
        // Missed first while the clock was ahead.
        missing.since = missing.since.min(snapshot.now);
        let launched = believed(facts.entry.and_then(|entry| entry.launched), snapshot.now).unwrap_or(missing.since);
        facts.is_gone = snapshot.now.since(launched) >= policy.upkeep.missing_grace
            && missing.passes >= PASSES
            && missing.passes > policy.upkeep.missing_max_count;
        memory.missing.insert(facts.name.to_owned(), missing);
    }
}
