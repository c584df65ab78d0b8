//! Instances of ours that stand behind nothing: they cost money and nobody waits for them. Instances, mapping, nodes and launch records
//! in; terminations out, never on one look alone, and never of what a launch may still be about to use (M15, M16).

use std::collections::BTreeMap;

use super::{Draft, sync};
use crate::model::instance::Instance;

pub(super) fn orphans(draft: &mut Draft<'_>) {
    let (snapshot, before) = (draft.snapshot, draft.before);
    let mut orphans = BTreeMap::new();
    for (id, instance) in &snapshot.instances {
        if !is_orphan(draft, id, instance) {
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

fn is_orphan(draft: &Draft<'_>, id: &str, instance: &Instance) -> bool {
    let is_backing = draft.owners.get(id).is_some_and(|owner| owner.is_mapped || !owner.is_off);
    instance.state.is_live() && !is_backing && !draft.stays(id) && !sync::is_of_a_launch(draft, instance)
}
