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
    let mut recovery = Recovery { clean: true, ..Recovery::default() };
    let accounted: BTreeSet<&str> = scene
        .mapping
        .nodes
        .values()
        .filter_map(|entry| entry.instance_id.as_deref())
        .chain(scene.mapping.condemned.keys().map(String::as_str))
        .collect();
    let mut by_batch: BTreeMap<Key, Vec<&Instance>> = BTreeMap::new();
    for instance in scene.instances {
        let key = Key::of_instance(instance);
        if instance.state.is_live() && !accounted.contains(instance.id.as_str()) && !scene.covered.contains(&key) {
            recovery.clean = false;
            by_batch.entry(key).or_default().push(instance);
        }
    }
    // The newest first: a batch recorded later (another token, a half of a split) took over the nodes of an earlier one.
    for batch in scene.batches.iter().rev() {
        let mut found = by_batch.remove(&batch.key()).unwrap_or_default();
        found.sort_by(|a, b| a.id.cmp(&b.id));
        recover_batch(scene, batch, found, &mut recovery);
    }
    // Instances of this launch that name no batch of the record.
    recovery.condemn.extend(by_batch.into_values().flatten().map(|instance| (instance.clone(), instance.launch_time)));
    recovery
}

fn recover_batch(scene: &Scene<'_>, batch: &DeadBatch, found: Vec<&Instance>, recovery: &mut Recovery) {
    let mut wanted = Vec::new();
    let served: BTreeSet<String> = recovery.served().map(str::to_owned).collect();
    let freed: BTreeSet<String> = recovery.free.iter().cloned().collect();
    for node in &batch.nodes {
        let entry = scene.mapping.nodes.get(node);
        let ours = entry.filter(|entry| is_claim_of(entry, scene.launch));
        if ours.is_some() && !freed.contains(node) {
            recovery.free.push(node.clone());
        }
        let free_for_us = (entry.is_none() || ours.is_some()) && !scene.called.contains(node) && !served.contains(node);
        if !batch.done && free_for_us && scene.slurm.get(node) == Some(&Wanted::Yes) {
            let requested = ours.map_or(scene.requested, |entry| entry.requested);
            wanted.push(Relaunch { node: node.clone(), group: batch.request.group.clone(), requested });
        }
    }
    if !wanted.is_empty() {
        recovery.clean = false;
    }
    if let Some(sent) = batch.sent
        && scene.may_launch
        && !batch.done
        && !wanted.is_empty()
        && wanted.iter().all(|node| passes_boot_gate(sent, node.requested))
        && scene.now.since(sent) < REPLAY_WINDOW
        && !scene.covered.contains(&batch.key())
        && !was_committed(scene, batch)
    {
        recovery.replay.push(Replay { request: batch.request.clone(), nodes: wanted, sent });
        recovery.done.push(batch.index);
        return;
    }
    let mut wanted = wanted.into_iter().peekable();
    for instance in found {
        let sent = batch.sent.or(instance.launch_time);
        let usable = instance.state.is_usable() && instance.private_ip.is_some();
        match (sent, wanted.peek()) {
            (Some(launched), Some(node)) if usable && passes_boot_gate(launched, node.requested) => {
                let Relaunch { node, group, requested } = wanted.next().unwrap_or_else(|| unreachable!("peeked"));
                recovery.adopt.push(Adoption { node, group, instance: instance.clone(), requested, launched });
            }
            _ => recovery.condemn.push((instance.clone(), sent)),
        }
    }
    let left: Vec<_> = wanted.collect();
    if left.is_empty() || scene.may_launch {
        if !batch.done {
            recovery.done.push(batch.index);
        }
        recovery.relaunch.extend(left);
    }
}

/// Did the dead run get the answer for this batch and put it into the mapping? Then the same request again would only name instances
/// that have their nodes, or are on their way out.
fn was_committed(scene: &Scene<'_>, batch: &DeadBatch) -> bool {
    let backs = |node: &String| {
        scene.mapping.nodes.get(node).is_some_and(|entry| entry.state == NodeState::Running && entry.launch == scene.launch)
    };
    batch.nodes.iter().any(backs)
        || scene.mapping.condemned.iter().any(|(id, condemned)| {
            let seen = scene.instances.iter().find(|instance| instance.id == *id);
            // One that EC2 does not show (any more, or yet) may be of any batch of its launch.
            seen.map_or(condemned.launch == scene.launch, |instance| Key::of_instance(instance) == batch.key())
        })
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
mod tests {
    use super::*;
    use crate::model::mapping::Condemned;
    use crate::plan::launch::{Ask, LaunchContext, batch};
    use crate::plan::test_support::{group, instance, names, running};
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    const LAUNCH: &str = "dead";

    fn dead(nodes: &[String], sent: Option<u64>) -> DeadBatch {
        let versions = BTreeMap::new();
        let context = LaunchContext { cluster: "hpc", state_id: "s", launch: LAUNCH, versions: &versions };
        let group = group("c5", 500);
        let ask = Ask { group: &group, recipe: &group.recipe, strategy: group.launch.strategy };
        let batch = batch(ask, nodes.to_vec(), &context, 0);
        let sent = sent.map(Timestamp::from_secs);
        DeadBatch { index: 0, nodes: batch.nodes, request: batch.request, sent, last_sent: sent, done: false }
    }

    fn tagged(id: &str) -> Instance {
        let mut one = instance(id);
        one.tags.insert(tag::LAUNCH.into(), LAUNCH.into());
        one.tags.insert(tag::BATCH.into(), "0".into());
        one
    }

    struct World {
        mapping: Mapping,
        slurm: BTreeMap<String, Wanted>,
        called: BTreeSet<String>,
        covered: BTreeSet<Key>,
        instances: Vec<Instance>,
        may_launch: bool,
        now: u64,
    }

    impl World {
        fn new(nodes: &[String]) -> Self {
            let mut mapping = Mapping::new("hpc");
            for node in nodes {
                let mut claim = running("x", 100);
                claim.state = NodeState::Launching;
                claim.launch = LAUNCH.into();
                claim.instance_id = None;
                claim.launched = None;
                mapping.nodes.insert(node.clone(), claim);
            }
            let slurm = nodes.iter().map(|n| (n.clone(), Wanted::Yes)).collect();
            Self {
                mapping,
                slurm,
                called: BTreeSet::new(),
                covered: BTreeSet::new(),
                instances: vec![],
                may_launch: true,
                now: 200,
            }
        }

        fn recover(&self, batches: &[DeadBatch]) -> Recovery {
            recover(&Scene {
                launch: LAUNCH,
                requested: Timestamp::from_secs(100),
                batches,
                instances: &self.instances,
                mapping: &self.mapping,
                slurm: &self.slurm,
                called: &self.called,
                covered: &self.covered,
                may_launch: self.may_launch,
                now: Timestamp::from_secs(self.now),
            })
        }
    }

    #[test]
    fn never_sent_means_launched_anew() {
        let nodes = names("c5-", 2);
        let recovery = World::new(&nodes).recover(&[dead(&nodes, None)]);
        assert_eq!(recovery.relaunch.iter().map(|r| r.node.clone()).collect::<Vec<_>>(), nodes);
        assert_eq!(recovery.free, nodes);
        assert_eq!(recovery.done, [0]);
        assert!(recovery.replay.is_empty() && recovery.condemn.is_empty());
    }

    #[test]
    fn sent_and_wanted_is_replayed_with_the_same_token() {
        let nodes = names("c5-", 2);
        let mut world = World::new(&nodes);
        world.instances = vec![tagged("i-1")];
        let batch = dead(&nodes, Some(101));
        let recovery = world.recover(std::slice::from_ref(&batch));
        assert_eq!(recovery.replay.len(), 1);
        assert_eq!(recovery.replay[0].request.client_token, batch.request.client_token);
        assert!(recovery.condemn.is_empty(), "the replay's answer accounts for them");
        world.now = 101 + 600;
        let late = world.recover(&[batch]);
        assert!(late.replay.is_empty());
        assert_eq!(late.adopt.len(), 1);
        assert_eq!(late.relaunch.len(), 1);
    }

    #[test]
    fn a_node_asked_for_again_does_not_get_the_older_instance() {
        let nodes = names("c5-", 1);
        let mut world = World::new(&nodes);
        world.instances = vec![tagged("i-1")];
        world.called.insert(nodes[0].clone());
        let recovery = world.recover(&[dead(&nodes, Some(101))]);
        assert_eq!(recovery.condemn.len(), 1);
        assert!(recovery.adopt.is_empty() && recovery.replay.is_empty() && recovery.relaunch.is_empty());
    }

    #[test]
    fn suspend_adopts_what_is_wanted_and_condemns_the_rest() {
        let nodes = names("c5-", 2);
        let mut world = World::new(&nodes);
        world.may_launch = false;
        world.slurm.insert(nodes[0].clone(), Wanted::No);
        world.instances = vec![tagged("i-1"), tagged("i-2")];
        let recovery = world.recover(&[dead(&nodes, Some(101))]);
        assert_eq!(recovery.adopt.len(), 1);
        assert_eq!(recovery.adopt[0].node, nodes[1]);
        assert_eq!(recovery.condemn.len(), 1);
        assert_eq!(recovery.done, [0]);
    }

    #[test]
    fn a_wanted_node_without_instance_waits_for_a_resume() {
        let nodes = names("c5-", 1);
        let mut world = World::new(&nodes);
        world.may_launch = false;
        let recovery = world.recover(&[dead(&nodes, Some(101))]);
        assert!(recovery.done.is_empty() && recovery.relaunch.is_empty());
        assert_eq!(recovery.free, nodes, "the claim does not outlive the run");
    }

    #[test]
    fn what_a_live_run_answers_for_is_not_touched() {
        let nodes = names("c5-", 1);
        let mut world = World::new(&nodes);
        world.instances = vec![tagged("i-1")];
        let mut batch = dead(&nodes, Some(101));
        batch.done = true;
        assert_eq!(world.recover(std::slice::from_ref(&batch)).condemn.len(), 1);
        world.covered.insert(batch.key());
        let recovery = world.recover(&[batch]);
        assert!(recovery.condemn.is_empty() && recovery.adopt.is_empty());
    }

    #[test]
    fn a_later_batch_took_over_the_nodes_of_an_earlier_one() {
        let nodes = names("c5-", 2);
        let (first, mut half, mut other) = (dead(&nodes, Some(101)), dead(&nodes[..1], Some(102)), dead(&nodes[1..], None));
        half.index = 1;
        other.index = 2;
        for (batch, index) in [(&mut half, "1"), (&mut other, "2")] {
            batch.request.client_token.push_str(index);
            batch.request.tags.iter_mut().filter(|(key, _)| key == tag::BATCH).for_each(|(_, value)| *value = index.to_owned());
        }
        let recovery = World::new(&nodes).recover(&[first, half, other]);
        assert_eq!(recovery.free.len(), 2);
        assert_eq!(recovery.replay.iter().flat_map(|r| &r.nodes).map(|r| r.node.as_str()).collect::<Vec<_>>(), ["c5-1"]);
        assert_eq!(recovery.relaunch.iter().map(|r| r.node.as_str()).collect::<Vec<_>>(), ["c5-2"]);
        assert_eq!(recovery.done, [2, 1, 0]);
    }

    #[test]
    fn an_answer_that_was_committed_is_not_asked_for_again() {
        let nodes = names("c5-", 2);
        let batch = dead(&nodes, Some(101));
        // c5-1 is up; slurmctld refused c5-2, whose instance is on its way out, and the run died.
        let mut backed = World::new(&nodes);
        backed.mapping.nodes.remove(&nodes[1]);
        let mut entry = running("i-1", 101);
        entry.launch = LAUNCH.into();
        backed.mapping.nodes.insert(nodes[0].clone(), entry);
        // Both were refused.
        let mut refused = World::new(&nodes);
        refused.mapping.nodes.clear();
        let condemned =
            Condemned { node: None, launch: LAUNCH.into(), since: Timestamp::from_secs(1), launched: None, why: "x".into() };
        refused.mapping.condemned.insert("i-2".into(), condemned);
        for (world, left) in [(backed, &nodes[1..]), (refused, &nodes[..])] {
            let recovery = world.recover(std::slice::from_ref(&batch));
            assert!(recovery.replay.is_empty(), "{recovery:?}");
            assert_eq!(recovery.relaunch.iter().map(|r| r.node.clone()).collect::<Vec<_>>(), left);
        }
    }

    #[test]
    fn a_record_goes_after_two_clean_sweeps_the_last_late_enough() {
        let mut batch = dead(&names("c5-", 1), Some(100));
        let at = |secs, clean| (Timestamp::from_secs(secs), clean);
        assert!(!may_delete(std::slice::from_ref(&batch), &[at(500, true), at(501, true)]), "its nodes are not done");
        batch.done = true;
        let batch = [batch];
        assert!(!may_delete(&batch, &[at(500, true)]));
        assert!(!may_delete(&batch, &[at(200, true), at(399, true)]));
        assert!(!may_delete(&batch, &[at(401, true), at(402, false), at(403, true)]));
        assert!(may_delete(&batch, &[at(200, true), at(400, true)]));
    }

    proptest! {
        /// P2 for recovery: every live instance of the launch is adopted, condemned or covered by a replay; never two of these.
        #[test]
        fn nothing_lost_nothing_doubled(
            nodes in 1usize..6, sent in any::<bool>(), done in any::<bool>(), may_launch in any::<bool>(),
            wanted in proptest::collection::vec(any::<bool>(), 6), called in proptest::collection::vec(any::<bool>(), 6),
            known in proptest::collection::vec(0u8..3, 0..6), now in 101u64..2000,
        ) {
            let nodes = names("c5-", nodes);
            let mut world = World::new(&nodes);
            world.may_launch = may_launch;
            world.now = now;
            for (i, node) in nodes.iter().enumerate() {
                world.slurm.insert(node.clone(), if wanted[i] { Wanted::Yes } else { Wanted::No });
                if called[i] { world.called.insert(node.clone()); }
            }
            for (i, how) in known.iter().enumerate() {
                let id = format!("i-{i}");
                world.instances.push(tagged(&id));
                if *how == 1 { world.mapping.nodes.insert(format!("other-{i}"), running(&id, 101)); }
                if *how == 2 {
                    world.mapping.condemned.insert(id, Condemned { node: None, launch: LAUNCH.into(), since: Timestamp::from_secs(1), launched: None, why: "x".into() });
                }
            }
            let mut batch = dead(&nodes, sent.then_some(101));
            batch.done = done;
            let recovery = world.recover(&[batch]);
            let mut out: Vec<_> = recovery.adopt.iter().map(|a| a.instance.id.clone()).chain(recovery.condemn.iter().map(|(i, _)| i.id.clone())).collect();
            out.sort();
            let unaccounted: Vec<_> = known.iter().enumerate().filter(|(_, how)| **how == 0).map(|(i, _)| format!("i-{i}")).collect();
            if recovery.replay.is_empty() {
                prop_assert_eq!(out, unaccounted);
            } else {
                prop_assert!(out.is_empty());
            }
            let mut served: Vec<_> = recovery.adopt.iter().map(|a| &a.node)
                .chain(recovery.relaunch.iter().map(|r| &r.node))
                .chain(recovery.replay.iter().flat_map(|r| r.nodes.iter().map(|n| &n.node))).collect();
            let count = served.len();
            served.sort();
            served.dedup();
            prop_assert_eq!(served.len(), count);
            prop_assert!(served.iter().all(|n| !world.called.contains(*n)));
            if !may_launch { prop_assert!(recovery.relaunch.is_empty() && recovery.replay.is_empty()); }
        }
    }
}
