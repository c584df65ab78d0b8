//! Instances of ours that stand behind nothing: they cost money and nobody waits for them. Instances, mapping, nodes and launch records
//! in; terminations out, never on one look alone, and never of what a launch may still be about to use (M15, M16).
//!
//! Where Slurm holds no addresses, a mapping that was lost and rebuilt binds nothing: what was found loose then may serve a node with a
//! job, so an admin is told of it once, and nothing is done about it.

use std::collections::BTreeMap;

use super::memory::Unbound;
use super::{Draft, Level, sync};
use crate::model::instance::Instance;

/// EC2 shows an instance that has ended no more; one look that misses a live one proves nothing.
const UNSEEN_PASSES: u32 = 10;

/// Ids that a note names; it tells the number of the others.
const NAMED: usize = 20;

pub(super) fn orphans(draft: &mut Draft<'_>) {
    let (snapshot, before) = (draft.snapshot, draft.before);
    keep_unbound(draft);
    let mut orphans = BTreeMap::new();
    for (id, instance) in &snapshot.instances {
        if snapshot.rebuilt || draft.memory.unbound.contains_key(id) || !is_orphan(draft, id, instance) {
            continue;
        }
        let since = before.orphans.get(id).copied();
        orphans.insert(id.clone(), since.unwrap_or(snapshot.now));
        let is_old =
            instance.launch_time.is_none_or(|launched| snapshot.now.since(launched) >= draft.policy.upkeep.orphan_timeout);
        if since.is_some() && is_old {
            draft.terminate(id, None, "no node and no launch needs it");
        }
    }
    draft.memory.orphans = orphans;
}

/// What is remembered of instances that were found loose: until they are gone, go, or stand behind a node again.
fn keep_unbound(draft: &mut Draft<'_>) {
    let mut unbound = std::mem::take(&mut draft.memory.unbound);
    unbound.retain(|id, unbound| {
        let Some(instance) = draft.snapshot.instances.get(id) else {
            unbound.unseen = unbound.unseen.saturating_add(1);
            return unbound.unseen < UNSEEN_PASSES;
        };
        unbound.unseen = 0;
        instance.state.is_live() && !is_backing(draft, id) && !draft.stays(id)
    });
    let mut found: Vec<&str> = Vec::new();
    for (id, instance) in draft.snapshot.instances.iter().filter(|_| draft.snapshot.rebuilt) {
        // One that Slurm names for a node that is off was that node's.
        if draft.owners.get(id).is_none() && is_orphan(draft, id, instance) && !unbound.contains_key(id) {
            unbound.insert(id.clone(), Unbound { since: draft.snapshot.now, unseen: 0 });
            found.push(id);
        }
    }
    draft.memory.unbound = unbound;
    if !found.is_empty() {
        let others = found.len().saturating_sub(NAMED);
        found.truncate(NAMED);
        let others = if others > 0 { format!(" and {others} more") } else { String::new() };
        let advice = "look whether jobs run on them, and terminate by hand those that nobody needs: nothing else ends them";
        draft.note(
            Level::Warn,
            format!("found without a node when the mapping was rebuilt: {}{others}; {advice}", found.join(", ")),
        );
    }
}

fn is_orphan(draft: &Draft<'_>, id: &str, instance: &Instance) -> bool {
    instance.state.is_live() && !is_backing(draft, id) && !draft.stays(id) && !sync::is_of_a_launch(draft, instance)
}

fn is_backing(draft: &Draft<'_>, id: &str) -> bool {
    draft.owners.get(id).is_some_and(|owner| owner.is_mapped || !owner.is_off)
}
