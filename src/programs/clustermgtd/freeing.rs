//! The mapping's part of a pass: in one locked write, nodes lose their entries and instances are condemned, each only if what the
//! decision saw still holds (architecture.md "Compare and set").

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::perform::Scene;
use crate::clock;
use crate::model::instance::tag;
use crate::model::mapping::{Mapping, NodeState};
use crate::model::time::Timestamp;
use crate::plan::reconcile::{Action, What};
use crate::programs::recovery;
use crate::store::door::Draft;
use crate::store::error::StoreError;

/// What was done.
#[derive(Debug, Default)]
pub(super) struct Freed<'a> {
    pub(super) condemned: Vec<&'a Action>,
    pub(super) forgotten: Vec<&'a Action>,
    /// Node or instance, and why nothing was done about it.
    pub(super) left: BTreeMap<String, &'static str>,
    /// The nodes among those: nothing more is done to them in this pass.
    pub(super) changed: BTreeSet<String>,
}

/// Carries out the `Terminate` and `Forget` among `wishes`.
pub(super) fn free<'a>(scene: &Scene<'_>, wishes: &[&'a Action]) -> Result<Freed<'a>, StoreError> {
    let now = clock::now();
    let changed = scene.context.store.change(scene.context.lock_wait(), now, |draft| {
        let mut freed = Freed::default();
        let backing: HashSet<String> = draft.mapping.nodes.values().filter_map(|entry| entry.instance_id.clone()).collect();
        for action in wishes {
            match &action.what {
                What::Terminate { instance, node } => match check(scene, draft, instance, node.as_deref(), &backing) {
                    Ok(()) => {
                        condemn(scene, &mut draft.mapping, instance, node.as_deref(), &action.why, now);
                        freed.condemned.push(action);
                    }
                    Err(why) => freed.leave(node.as_ref().unwrap_or(instance), why),
                },
                What::Forget { node } => match forget(scene, draft, node, &action.why, now) {
                    Ok(()) => freed.forgotten.push(action),
                    Err(why) => freed.leave(node, why),
                },
                _ => {}
            }
        }
        Some(freed)
    })?;
    Ok(changed.map(|(freed, _)| freed).unwrap_or_default())
}

impl Freed<'_> {
    fn leave(&mut self, node: &str, why: &'static str) {
        self.left.insert(node.to_owned(), why);
        self.changed.insert(node.to_owned());
    }
}

const CHANGED: &str = "its mapping entry has changed";
const NOT_OURS: &str = "its instance bears neither this state folder's tags nor those of this ParallelCluster";

/// May the instance go?
fn check(scene: &Scene<'_>, draft: &Draft, id: &str, node: Option<&str>, backing: &HashSet<String>) -> Result<(), &'static str> {
    if let Some(node) = node {
        if !is_as_it_was(scene, &draft.mapping, node) {
            return Err(CHANGED);
        }
        if draft.mapping.nodes.get(node).is_some_and(|entry| entry.instance_id.as_deref() == Some(id)) {
            return Ok(());
        }
    }
    // Nobody but Slurm, or nobody at all, names it: an instance that somebody else started is not ours to end.
    let Some(instance) = scene.snapshot.instances.get(id).filter(|instance| scene.context.is_ours(instance)) else {
        return Err(NOT_OURS);
    };
    if backing.contains(id) {
        return Err("its instance stands behind a node in the mapping");
    }
    let launch = instance.tags.get(tag::LAUNCH);
    if node.is_none() && launch.is_some_and(|launch| draft.recorded.contains(launch)) {
        return Err("a launch that is not over answers for it");
    }
    Ok(())
}

/// The node is freed and the instance condemned in the same write.
fn condemn(scene: &Scene<'_>, mapping: &mut Mapping, id: &str, node: Option<&str>, why: &str, now: Timestamp) {
    if let Some(node) = node
        && mapping.nodes.get(node).is_some_and(|entry| entry.instance_id.as_deref() == Some(id))
    {
        recovery::take_down(mapping, node, now, why);
        return;
    }
    let instance = scene.snapshot.instances.get(id);
    let launch = instance.and_then(|instance| instance.tags.get(tag::LAUNCH)).cloned().unwrap_or_default();
    let launched = instance.and_then(|instance| instance.launch_time);
    recovery::condemn(mapping, id, node, &launch, launched, now, why);
}

fn forget(scene: &Scene<'_>, draft: &mut Draft, node: &str, why: &str, now: Timestamp) -> Result<(), &'static str> {
    if !is_as_it_was(scene, &draft.mapping, node) {
        return Err(CHANGED);
    }
    let Some(entry) = draft.mapping.nodes.get(node) else { return Ok(()) };
    if entry.state == NodeState::Launching && draft.recorded.contains(&entry.launch) {
        return Err("its launch is not over");
    }
    let shown = entry.instance_id.as_ref().and_then(|id| scene.snapshot.instances.get(id));
    if shown.is_some_and(|instance| !instance.state.is_live()) {
        draft.mapping.nodes.remove(node);
    } else {
        // One that is only not visible yet goes when it is.
        recovery::take_down(&mut draft.mapping, node, now, why);
    }
    Ok(())
}

fn is_as_it_was(scene: &Scene<'_>, mapping: &Mapping, node: &str) -> bool {
    mapping.nodes.get(node) == scene.snapshot.mapping.nodes.get(node)
}
