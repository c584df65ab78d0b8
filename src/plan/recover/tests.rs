//! The decisions on dead runs.

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
    let ask = Ask { group: &group, recipe: &group.recipe, strategy: group.launch.strategy, names_node: true };
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

fn condemned() -> Condemned {
    Condemned { node: None, launch: LAUNCH.into(), since: Timestamp::from_secs(1), launched: None, why: "x".into() }
}

struct World {
    mapping: Mapping,
    slurm: BTreeMap<String, Wanted>,
    called: BTreeSet<String>,
    changed: BTreeSet<String>,
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
            changed: BTreeSet::new(),
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
            changed: &self.changed,
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
    refused.mapping.condemned.insert("i-2".into(), condemned());
    for (world, left) in [(backed, &nodes[1..]), (refused, &nodes[..])] {
        let recovery = world.recover(std::slice::from_ref(&batch));
        assert!(recovery.replay.is_empty(), "{recovery:?}");
        assert_eq!(recovery.relaunch.iter().map(|r| r.node.clone()).collect::<Vec<_>>(), left);
    }
}

#[test]
fn a_claim_that_changed_meanwhile_is_looked_at_anew() {
    let nodes = names("c5-", 3);
    for may_launch in [true, false] {
        let mut world = World::new(&nodes);
        world.may_launch = may_launch;
        world.now = 101 + 600;
        world.instances = ["i-1", "i-2", "i-3"].map(tagged).to_vec();
        // Slurm's answer is of before the change too.
        world.slurm.remove(&nodes[1]);
        world.changed.insert(nodes[1].clone());
        let batch = dead(&nodes, Some(101));
        let recovery = world.recover(std::slice::from_ref(&batch));
        assert_eq!(recovery.adopt.iter().map(|one| one.node.as_str()).collect::<Vec<_>>(), ["c5-1", "c5-3"]);
        assert_eq!(recovery.free, ["c5-1", "c5-3"], "its claim stays");
        assert!(recovery.done.is_empty() && !recovery.clean, "its batch is not done: {recovery:?}");
        assert!(recovery.condemn.is_empty(), "the third instance may be its: {recovery:?}");
        // This call launches it: nothing to wait for.
        world.called.insert(nodes[1].clone());
        let recovery = world.recover(&[batch]);
        assert_eq!((recovery.free.len(), recovery.done.as_slice(), recovery.condemn.len()), (3, &[0][..], 1));
    }
    // Another run has it: nothing of the dead run's is meant for it any more.
    let mut world = World::new(&nodes);
    world.now = 101 + 600;
    world.instances = vec![tagged("i-1")];
    for node in &nodes {
        "other".clone_into(&mut world.mapping.nodes.get_mut(node).unwrap().launch);
    }
    world.slurm.clear();
    world.changed.extend(nodes.iter().cloned());
    let recovery = world.recover(&[dead(&nodes, Some(101))]);
    assert_eq!((recovery.free.len(), recovery.condemn.len(), recovery.done.as_slice()), (0, 1, &[0][..]));
}

/// Every batch on its own, in a time that does not grow with the square of their number.
#[test]
fn ten_thousand_batches() {
    let nodes = names("c5-", 10_000);
    let mut world = World::new(&nodes);
    let mut batches = Vec::new();
    for (index, node) in nodes.iter().enumerate() {
        let mut batch = dead(std::slice::from_ref(node), Some(101));
        batch.index = index;
        batch.request.tags.iter_mut().filter(|(key, _)| key == tag::BATCH).for_each(|(_, value)| *value = index.to_string());
        batches.push(batch);
        // Some have their answer: an instance for a node, or one on its way out.
        let mut found = tagged(&format!("i-{index}"));
        found.tags.insert(tag::BATCH.into(), index.to_string());
        if index % 2 == 1 {
            world.mapping.condemned.insert(found.id.clone(), condemned());
        }
        world.instances.push(found);
    }
    let recovery = world.recover(&batches);
    assert_eq!((recovery.replay.len(), recovery.relaunch.len()), (5000, 5000));
    assert_eq!((recovery.free.len(), recovery.done.len()), (10_000, 10_000));
    world.now = 101 + 600;
    let late = world.recover(&batches);
    assert_eq!((late.adopt.len(), late.relaunch.len(), late.condemn.len()), (5000, 5000, 0));
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
                world.mapping.condemned.insert(id, condemned());
            }
        }
        let mut batch = dead(&nodes, sent.then_some(101));
        batch.done = done;
        let recovery = world.recover(&[batch]);
        let adopted = recovery.adopt.iter().map(|adoption| adoption.instance.id.clone());
        let mut out: Vec<_> = adopted.chain(recovery.condemn.iter().map(|(one, _)| one.id.clone())).collect();
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
