//! Instances that are named behind a node and that EC2 does not show at all. EC2 shows a new one late, and one look that misses an
//! instance proves nothing (M09): so it is believed gone only when it is old enough and was missed in several passes running. What the
//! mapping does not name may be an instance that is not ours by tag: as long as Slurm hears from the node, something is there.

use super::facts::{Backing, Facts};
use super::memory::Missing;
use super::{Memory, Policy, Snapshot, state};

/// Passes that must miss an instance, whatever the configuration says: a single look never ends a node.
const PASSES: u32 = 2;

/// Counts the passes in `memory` and sets [`Facts::is_gone`] where it has been long enough.
pub(super) fn judge(snapshot: &Snapshot, policy: &Policy, memory: &mut Memory, facts: &mut [Facts<'_>]) {
    let mut before = std::mem::take(&mut memory.missing);
    for facts in facts.iter_mut().filter(|facts| facts.backing == Backing::Missing) {
        let named = facts.instance_id().unwrap_or(&facts.node.addr);
        let mut missing = before.remove(facts.name).filter(|missing| missing.instance == named).unwrap_or_else(|| Missing {
            instance: named.to_owned(),
            since: snapshot.now,
            passes: 0,
        });
        missing.passes = missing.passes.saturating_add(1);
        let launched = facts.entry.and_then(|entry| entry.launched).unwrap_or(missing.since);
        let is_heard = facts.entry.is_none() && state::is_online(&facts.node.state);
        facts.is_gone = !is_heard
            && snapshot.now.since(launched) >= policy.upkeep.missing_grace
            && missing.passes >= PASSES
            && missing.passes > policy.upkeep.missing_max_count;
        memory.missing.insert(facts.name.to_owned(), missing);
    }
}
