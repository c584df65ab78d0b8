//! Finishes what dead runs left, in any program: claims freed, found instances adopted or condemned, and in slurm_resume the nodes
//! that still wait launched. The decisions are `plan::recover`'s.

use std::collections::{BTreeMap, BTreeSet};

use super::survey::{Dead, Survey};
use crate::clock;
use crate::model::instance::{Instance, InstanceState};
use crate::model::mapping::{Condemned, Mapping, NodeEntry, NodeState};
use crate::model::time::Timestamp;
use crate::plan::recover::{self, Key, Recovery, Relaunch, Replay, Scene};
use crate::store::launch_record::RecordEvent;

/// What the program has to do after the mapping was changed.
#[derive(Default)]
pub(crate) struct ToFinish {
    /// Adopted: tell Slurm.
    pub(crate) publish: Vec<(String, Instance)>,
    pub(crate) replay: Vec<Replay>,
    pub(crate) relaunch: Vec<Relaunch>,
    recoveries: Vec<(usize, Recovery)>,
}

/// Applies the decisions on all dead runs to `mapping`, which the caller commits under the lock it holds. Nothing is done while
/// EC2 or Slurm did not answer: the records stay for the next program.
pub(crate) fn apply(
    mapping: &mut Mapping,
    survey: &Survey,
    called: &BTreeSet<String>,
    may_launch: bool,
    now: Timestamp,
) -> ToFinish {
    let mut finish = ToFinish::default();
    if survey.dead.is_empty() || !survey.dead_answered || !survey.slurm_answered() {
        return finish;
    }
    // What changed since Slurm was asked is somebody else's work by now.
    let mut wanted = survey.wanted();
    wanted.retain(|node, _| mapping.nodes.get(node) == survey.mapping.nodes.get(node));
    let is_changed = |(node, entry): &(&String, &NodeEntry)| survey.mapping.nodes.get(*node) != Some(*entry);
    let changed: BTreeSet<String> = mapping.nodes.iter().filter(is_changed).map(|(node, _)| node.clone()).collect();
    let mut covered = survey.covered.clone();
    // A run that was killed while it finished another one leaves two records that name the same nodes.
    let mut called = called.clone();
    for (index, dead) in survey.dead.iter().enumerate() {
        tell_again(mapping, dead);
        let recovery = recover::recover(&Scene {
            launch: &dead.launch,
            requested: dead.requested,
            batches: &dead.batches,
            instances: &dead.instances,
            mapping,
            slurm: &wanted,
            called: &called,
            changed: &changed,
            covered: &covered,
            may_launch,
            now,
        });
        log(dead, &recovery);
        called.extend(recovery.served().map(str::to_owned));
        covered.extend(recovery.replay.iter().map(|replay| Key::of_request(&replay.request)));
        for node in &recovery.free {
            mapping.nodes.remove(node);
        }
        for adoption in &recovery.adopt {
            let entry = running(&adoption.group, &dead.launch, &adoption.instance, adoption.requested, adoption.launched, now);
            mapping.nodes.insert(adoption.node.clone(), entry);
            finish.publish.push((adoption.node.clone(), adoption.instance.clone()));
        }
        for (instance, launched) in &recovery.condemn {
            condemn(mapping, &instance.id, None, &dead.launch, *launched, now, "its launch was interrupted");
        }
        finish.replay.extend(recovery.replay.iter().cloned());
        finish.relaunch.extend(recovery.relaunch.iter().cloned());
        finish.recoveries.push((index, recovery));
    }
    finish
}

/// After the commit: notes in the records what is dealt with, and removes those that need no more looking after.
pub(crate) fn settle(survey: &mut Survey, finish: &ToFinish) {
    let now = clock::now();
    // From the back, so that the indices of what is still to come stay right.
    for (index, recovery) in finish.recoveries.iter().rev() {
        let mut dead = survey.dead.remove(*index);
        let mut events: Vec<RecordEvent> = recovery.done.iter().map(|batch| RecordEvent::Done { batch: *batch }).collect();
        events.push(RecordEvent::Swept { at: now, clean: recovery.clean });
        let mut sweeps: Vec<_> = dead.record.record.sweeps.clone();
        sweeps.push((now, recovery.clean));
        let mut batches = dead.batches;
        let done: BTreeSet<usize> = recovery.done.iter().copied().collect();
        for batch in &mut batches {
            batch.done |= done.contains(&batch.index);
        }
        let result = if recover::may_delete(&batches, &sweeps) {
            dead.record.delete().map_err(|error| crate::error::chain(&error))
        } else {
            dead.record.append(&events).map_err(|error| error.to_string())
        };
        if let Err(error) = result {
            tracing::warn!(of = dead.launch, "launch record cannot be updated, it is looked at again next time: {error}");
        }
    }
}

/// A run that was killed while it told Slurm of its instances may have had the last word about a node that another run has tied to a newer
/// one meanwhile: whoever tells what is not told yet tells of that one again.
fn tell_again(mapping: &mut Mapping, dead: &Dead) {
    for node in dead.batches.iter().filter(|batch| !batch.done).flat_map(|batch| &batch.nodes) {
        let entry = mapping.nodes.get_mut(node).filter(|entry| entry.state == NodeState::Running && entry.launch != dead.launch);
        if let Some(entry) = entry {
            entry.unpublished = true;
        }
    }
}

fn log(dead: &Dead, recovery: &Recovery) {
    if recovery.clean && recovery.free.is_empty() {
        tracing::debug!(of = dead.launch, "interrupted launch: nothing left of it");
        return;
    }
    tracing::warn!(
        of = dead.launch,
        claims_freed = recovery.free.len(),
        adopted = recovery.adopt.len(),
        condemned = recovery.condemn.len(),
        repeated = recovery.replay.iter().map(|replay| replay.nodes.len()).sum::<usize>(),
        launched_anew = recovery.relaunch.len(),
        "a launch was interrupted, finishing it"
    );
}

/// An entry for a node with its instance.
pub(crate) fn running(
    group: &str,
    launch: &str,
    instance: &Instance,
    requested: Timestamp,
    launched: Timestamp,
    now: Timestamp,
) -> NodeEntry {
    NodeEntry {
        state: NodeState::Running,
        group: group.to_owned(),
        launch: launch.to_owned(),
        requested,
        since: now,
        launched: Some(launched),
        instance_id: Some(instance.id.clone()),
        private_ip: instance.private_ip.clone(),
        hostname: instance.hostname.clone(),
        instance_type: instance.instance_type.clone(),
        zone: instance.zone.clone(),
        // Until Slurm has been told; a crash before that leaves it to the next program.
        unpublished: true,
    }
}

/// Running nodes that Slurm was not told of, and whose run is gone: the next program tells it.
pub(crate) fn unpublished(mapping: &Mapping, live: &BTreeSet<String>) -> Vec<(String, Instance)> {
    mapping
        .nodes
        .iter()
        .filter(|(_, entry)| entry.unpublished && entry.state == NodeState::Running && !live.contains(&entry.launch))
        .filter_map(|(node, entry)| Some((node.clone(), as_instance(entry)?)))
        .collect()
}

/// What the mapping knows of an instance: enough to tell Slurm.
pub(crate) fn as_instance(entry: &NodeEntry) -> Option<Instance> {
    Some(Instance {
        id: entry.instance_id.clone()?,
        state: InstanceState::Unknown,
        private_ip: entry.private_ip.clone(),
        hostname: entry.hostname.clone(),
        instance_type: entry.instance_type.clone(),
        zone: entry.zone.clone(),
        subnet: None,
        launch_time: entry.launched,
        tags: BTreeMap::new(),
    })
}

/// Puts an instance on the list of those that are to go; the first reason stays.
pub(crate) fn condemn(
    mapping: &mut Mapping,
    id: &str,
    node: Option<&str>,
    launch: &str,
    launched: Option<Timestamp>,
    now: Timestamp,
    why: &str,
) {
    mapping.condemned.entry(id.to_owned()).or_insert_with(|| Condemned {
        node: node.map(str::to_owned),
        launch: launch.to_owned(),
        since: now,
        launched,
        why: why.to_owned(),
    });
}

/// Frees a node and condemns the instance behind it, in one change.
pub(crate) fn take_down(mapping: &mut Mapping, node: &str, now: Timestamp, why: &str) -> Option<NodeEntry> {
    let entry = mapping.nodes.remove(node)?;
    if let Some(id) = &entry.instance_id {
        condemn(mapping, id, Some(node), &entry.launch, entry.launched, now, why);
    }
    Some(entry)
}
