//! What becomes of a launch whose run died: its claims, its instances, its nodes (architecture.md "Launch protocol").

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::model::instance::{Instance, tag};
use crate::model::mapping::{Mapping, NodeEntry, NodeState};
use crate::model::round::LaunchRequest;
use crate::model::time::Timestamp;
use crate::plan::claim::passes_boot_gate;

/// A client token is repeated only this long after its request was sent: later the instances are looked for by tag alone.
pub(crate) const REPLAY_WINDOW: Duration = Duration::from_mins(10);

/// An instance may become visible this long after its launch; a record is kept until a sweep at least this late found nothing.
pub(crate) const LATE_VISIBILITY: Duration = Duration::from_mins(5);

/// A batch of a dead run.
#[derive(Debug, Clone)]
pub(crate) struct DeadBatch {
    pub(crate) index: usize,
    pub(crate) nodes: Vec<String>,
    pub(crate) request: LaunchRequest,
    /// When its request went out first; `None` = never. From here its token ages.
    pub(crate) sent: Option<Timestamp>,
    /// When it went out last: instances may still appear from here.
    pub(crate) last_sent: Option<Timestamp>,
    /// Its nodes have been dealt with; only late instances are still looked for.
    pub(crate) done: bool,
}

impl DeadBatch {
    /// What its instances carry.
    pub(crate) fn key(&self) -> Key {
        Key::of(self.request.tags.iter().map(|(key, value)| (key.as_str(), value.as_str())))
    }
}

/// The tags by which an instance and the batch it was launched for are found together: launch id and number of the batch.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(String, String);

impl Key {
    fn of<'a>(tags: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut key = Self(String::new(), String::new());
        for (name, value) in tags {
            match name {
                tag::LAUNCH => value.clone_into(&mut key.0),
                tag::BATCH => value.clone_into(&mut key.1),
                _ => {}
            }
        }
        key
    }

    pub(crate) fn of_request(request: &LaunchRequest) -> Self {
        Self::of(request.tags.iter().map(|(key, value)| (key.as_str(), value.as_str())))
    }

    fn of_instance(instance: &Instance) -> Self {
        Self::of(instance.tags.iter().map(|(key, value)| (key.as_str(), value.as_str())))
    }

    /// The launch id.
    pub(crate) fn launch(&self) -> &str {
        &self.0
    }
}

/// Does Slurm still want a node to come up?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// POWERING_UP, and no POWER_DOWN asked.
    Yes,
    No,
}

/// Everything the decision stands on.
#[derive(Debug)]
pub(crate) struct Scene<'a> {
    pub(crate) launch: &'a str,
    /// When the dead run was asked for its nodes.
    pub(crate) requested: Timestamp,
    pub(crate) batches: &'a [DeadBatch],
    /// Live instances that carry the tags of its batches.
    pub(crate) instances: &'a [Instance],
    pub(crate) mapping: &'a Mapping,
    pub(crate) slurm: &'a BTreeMap<String, Wanted>,
    /// Nodes that the present call launches anyway.
    pub(crate) called: &'a BTreeSet<String>,
    /// Nodes whose entry is not what it was when EC2 and Slurm were asked: what these said may be of before the change.
    pub(crate) changed: &'a BTreeSet<String>,
    /// Batches that a live run, or a replay decided on just now, answers for: their instances are not looked at.
    pub(crate) covered: &'a BTreeSet<Key>,
    /// Only slurm_resume launches.
    pub(crate) may_launch: bool,
    pub(crate) now: Timestamp,
}

/// A found instance for the node it was launched for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Adoption {
    pub(crate) node: String,
    pub(crate) group: String,
    pub(crate) instance: Instance,
    pub(crate) requested: Timestamp,
    pub(crate) launched: Timestamp,
}

/// A node that gets a new launch; `requested` is kept from the time Slurm asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Relaunch {
    pub(crate) node: String,
    pub(crate) group: String,
    pub(crate) requested: Timestamp,
}

/// The same request with the same token again: EC2 answers with the instances it launched, or launches them now.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Replay {
    pub(crate) request: LaunchRequest,
    pub(crate) nodes: Vec<Relaunch>,
    pub(crate) sent: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Recovery {
    pub(crate) adopt: Vec<Adoption>,
    pub(crate) condemn: Vec<(Instance, Option<Timestamp>)>,
    /// Claims of the dead run to remove.
    pub(crate) free: Vec<String>,
    pub(crate) replay: Vec<Replay>,
    pub(crate) relaunch: Vec<Relaunch>,
    /// Batches whose nodes are dealt with now.
    pub(crate) done: Vec<usize>,
    /// Nothing of this launch was found that had to be dealt with.
    pub(crate) clean: bool,
}

impl Recovery {
    /// All nodes that get an instance by what was decided so far.
    pub(crate) fn served(&self) -> impl Iterator<Item = &str> {
        let replayed = self.replay.iter().flat_map(|replay| &replay.nodes);
        let adopted = self.adopt.iter().map(|adoption| adoption.node.as_str());
        adopted.chain(replayed.chain(&self.relaunch).map(|relaunch| relaunch.node.as_str()))
    }
}

/// Decides for one dead run.
pub(crate) fn recover(scene: &Scene<'_>) -> Recovery {
    let accounted: BTreeSet<&str> = scene
        .mapping
        .nodes
        .values()
        .filter_map(|entry| entry.instance_id.as_deref())
        .chain(scene.mapping.condemned.keys().map(String::as_str))
        .collect();
    let mut recovering = Recovering::new(scene);
    let mut by_batch: BTreeMap<Key, Vec<&Instance>> = BTreeMap::new();
    for instance in scene.instances {
        let key = Key::of_instance(instance);
        if instance.state.is_live() && !accounted.contains(instance.id.as_str()) && !scene.covered.contains(&key) {
            recovering.decided.clean = false;
            by_batch.entry(key).or_default().push(instance);
        }
    }
    // The newest first: a batch recorded later (another token, a half of a split) took over the nodes of an earlier one.
    for batch in scene.batches.iter().rev() {
        let mut found = by_batch.remove(&batch.key()).unwrap_or_default();
        found.sort_by(|a, b| a.id.cmp(&b.id));
        recovering.batch(batch, found);
    }
    let mut decided = recovering.decided;
    // Instances of this launch that name no batch of the record.
    decided.condemn.extend(by_batch.into_values().flatten().map(|instance| (instance.clone(), instance.launch_time)));
    decided
}

/// What was decided on the batches so far.
struct Recovering<'a> {
    scene: &'a Scene<'a>,
    decided: Recovery,
    /// `decided.free` and the nodes served by `decided`, to be found at once.
    freed: BTreeSet<&'a str>,
    served: BTreeSet<String>,
    /// Batches of condemned instances that EC2 shows.
    condemned: BTreeSet<Key>,
    /// An instance of this launch is condemned that EC2 does not show (any more, or yet): it may be of any of its batches.
    condemned_unseen: bool,
}

impl<'a> Recovering<'a> {
    fn new(scene: &'a Scene<'a>) -> Self {
        let shown: BTreeMap<&str, &Instance> = scene.instances.iter().map(|instance| (instance.id.as_str(), instance)).collect();
        let (mut condemned, mut condemned_unseen) = (BTreeSet::new(), false);
        for (id, of) in &scene.mapping.condemned {
            match shown.get(id.as_str()) {
                Some(instance) => drop(condemned.insert(Key::of_instance(instance))),
                None => condemned_unseen |= of.launch == scene.launch,
            }
        }
        let decided = Recovery { clean: true, ..Recovery::default() };
        Self { scene, decided, freed: BTreeSet::new(), served: BTreeSet::new(), condemned, condemned_unseen }
    }

    fn batch(&mut self, batch: &'a DeadBatch, found: Vec<&Instance>) {
        let scene = self.scene;
        let mut wanted = Vec::new();
        // A claim that somebody changed meanwhile stays until it is looked at anew.
        let mut postponed = false;
        for node in &batch.nodes {
            let entry = scene.mapping.nodes.get(node);
            let ours = entry.filter(|entry| is_claim_of(entry, scene.launch));
            let called = scene.called.contains(node);
            if ours.is_some() && !called && scene.changed.contains(node) {
                postponed = true;
                continue;
            }
            if ours.is_some() && self.freed.insert(node) {
                self.decided.free.push(node.clone());
            }
            let free_for_us = (entry.is_none() || ours.is_some()) && !called && !self.served.contains(node);
            if !batch.done && free_for_us && scene.slurm.get(node) == Some(&Wanted::Yes) {
                let requested = ours.map_or(scene.requested, |entry| entry.requested);
                wanted.push(Relaunch { node: node.clone(), group: batch.request.group.clone(), requested });
            }
        }
        if !wanted.is_empty() || postponed {
            self.decided.clean = false;
        }
        let dealt_with = |decided: &mut Recovery| {
            if !batch.done && !postponed {
                decided.done.push(batch.index);
            }
        };
        if let Some(sent) = batch.sent
            && scene.may_launch
            && !batch.done
            && !wanted.is_empty()
            && wanted.iter().all(|node| passes_boot_gate(sent, node.requested))
            && scene.now.since(sent) < REPLAY_WINDOW
            && !scene.covered.contains(&batch.key())
            && !self.was_committed(batch)
        {
            self.served.extend(wanted.iter().map(|node| node.node.clone()));
            self.decided.replay.push(Replay { request: batch.request.clone(), nodes: wanted, sent });
            dealt_with(&mut self.decided);
            return;
        }
        let mut wanted = wanted.into_iter().peekable();
        for instance in found {
            let sent = batch.sent.or(instance.launch_time);
            let usable = instance.state.is_usable() && instance.private_ip.is_some();
            match (sent, wanted.peek()) {
                (Some(launched), Some(node)) if usable && passes_boot_gate(launched, node.requested) => {
                    let Relaunch { node, group, requested } = wanted.next().unwrap_or_else(|| unreachable!("peeked"));
                    self.served.insert(node.clone());
                    self.decided.adopt.push(Adoption { node, group, instance: instance.clone(), requested, launched });
                }
                // It may serve the node that is looked at anew.
                _ if postponed => {}
                _ => self.decided.condemn.push((instance.clone(), sent)),
            }
        }
        let left: Vec<_> = wanted.collect();
        if left.is_empty() || scene.may_launch {
            dealt_with(&mut self.decided);
            self.served.extend(left.iter().map(|node| node.node.clone()));
            self.decided.relaunch.extend(left);
        }
    }

    /// Did the dead run get the answer for this batch and put it into the mapping? Then the same request again would only name
    /// instances that have their nodes, or are on their way out.
    fn was_committed(&self, batch: &DeadBatch) -> bool {
        let Scene { mapping, launch, .. } = self.scene;
        let backs = |entry: &NodeEntry| entry.state == NodeState::Running && entry.launch == *launch;
        self.condemned_unseen
            || self.condemned.contains(&batch.key())
            || batch.nodes.iter().filter_map(|node| mapping.nodes.get(node)).any(backs)
    }
}

fn is_claim_of(entry: &NodeEntry, launch: &str) -> bool {
    entry.state == NodeState::Launching && entry.launch == launch
}

/// May the record go? After two clean sweeps of which the last came late enough, or at once when nothing was ever sent.
pub(crate) fn may_delete(batches: &[DeadBatch], sweeps: &[(Timestamp, bool)]) -> bool {
    if batches.iter().any(|batch| !batch.done) {
        return false;
    }
    let Some(sent) = batches.iter().filter_map(|batch| batch.last_sent).max() else { return true };
    let clean: Vec<_> = sweeps.iter().rev().take_while(|(_, clean)| *clean).collect();
    clean.len() >= 2 && clean.first().is_some_and(|(at, _)| at.since(sent) >= LATE_VISIBILITY)
}

#[cfg(test)]
mod tests;
