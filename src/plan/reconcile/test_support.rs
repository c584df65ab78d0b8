//! A small cluster for the tests of the decision: nodes, instances, entries and partitions by a word each, then passes.
//!
//! Node names are of the form `QUEUE-dy-RESOURCE-N` and `QUEUE-st-RESOURCE-N`: partition `QUEUE`, group `QUEUE/RESOURCE`, `st` = static;
//! both come into being with the first node. Any other name is a node that is not ours. Ages are in seconds before `now`, so that a pass
//! makes everything older by [`LOOP`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::{Action, Decision, GroupView, Member, Memory, Policy, Snapshot, SuspendRules, reconcile};
use crate::model::cluster::{Partition, PartitionState};
use crate::model::failure::BackoffTimes;
use crate::model::fleet::FleetStatus;
use crate::model::instance::{Instance, InstanceState, tag};
use crate::model::mapping::{Condemned, Mapping, NodeEntry, NodeState};
use crate::model::node::{SlurmNode, State};
use crate::model::policy::Upkeep;
use crate::model::time::Timestamp;

/// 2026-12-01T12:00:00Z
pub(crate) const NOW: Timestamp = Timestamp::from_secs(1_796_126_400);

/// From pass to pass.
pub(crate) const LOOP: Duration = Duration::from_secs(60);

/// Age of what has long been there.
pub(crate) const LONG: u64 = 3600;

/// The launch that [`World::back`] gives its entries and instances: neither live nor recorded.
pub(crate) const OLD_LAUNCH: &str = "launch-old";

#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) snapshot: Snapshot,
    pub(crate) memory: Memory,
    pub(crate) policy: Policy,
}

impl World {
    /// Running, empty, standalone.
    pub(crate) fn new() -> Self {
        Self { snapshot: snapshot(), memory: Memory::default(), policy: policy() }
    }

    /// A node as Slurm shows it, with its own name for address and nothing behind it.
    pub(crate) fn node(&mut self, name: &str, state: &str) -> &mut Self {
        let place = place(name);
        let group = place.map(|(queue, resource, _)| self.group(queue, resource));
        let queue = place.map_or("debug", |(queue, _, _)| queue);
        let partition = Partition { name: queue.to_owned(), state: PartitionState::Up };
        self.snapshot.partitions.entry(queue.to_owned()).or_insert(partition);
        let member = Member { slurm: slurm_node(name, state, queue), group, is_static: place.is_some_and(|(_, _, kind)| kind) };
        self.snapshot.nodes.insert(name.to_owned(), member);
        self
    }

    /// `count` nodes named `PREFIX1`, `PREFIX2`, …
    pub(crate) fn nodes(&mut self, prefix: &str, count: usize, state: &str) -> &mut Self {
        for number in 1..=count {
            self.node(&format!("{prefix}{number}"), state);
        }
        self
    }

    /// Index of the group, made if it is not there.
    pub(crate) fn group(&mut self, queue: &str, resource: &str) -> usize {
        let name = format!("{queue}/{resource}");
        self.policy.partitions.insert(queue.to_owned());
        if let Some(index) = self.policy.groups.iter().position(|group| group.name == name) {
            return index;
        }
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let backoff = BackoffTimes { capacity: minutes(10), quota: minutes(10), configuration: minutes(30) };
        self.policy.groups.push(GroupView { name, backoff, block: None });
        self.policy.groups.len() - 1
    }

    pub(crate) fn partition(&mut self, name: &str, state: PartitionState) -> &mut Self {
        self.snapshot.partitions.insert(name.to_owned(), Partition { name: name.to_owned(), state });
        self
    }

    /// The node as Slurm shows it, to change it.
    pub(crate) fn slurm(&mut self, node: &str) -> &mut SlurmNode {
        &mut self.snapshot.nodes.get_mut(node).expect("a node of this world").slurm
    }

    pub(crate) fn state(&mut self, node: &str, state: &str) -> &mut Self {
        self.slurm(node).state = State::parse(state);
        self
    }

    pub(crate) fn reason(&mut self, node: &str, reason: &str) -> &mut Self {
        self.slurm(node).reason = Some(reason.to_owned());
        self
    }

    /// An instance of ours, tagged with [`OLD_LAUNCH`], with an address of its own, behind no node.
    pub(crate) fn instance(&mut self, id: &str, state: InstanceState, age: u64) -> &mut Instance {
        let number = self.snapshot.instances.len() + 1;
        let ip = format!("10.0.{}.{}", number / 250, number % 250 + 1);
        let instance = Instance {
            id: id.to_owned(),
            state,
            hostname: Some(format!("ip-{}", ip.replace('.', "-"))),
            private_ip: Some(ip),
            instance_type: Some("c5.large".to_owned()),
            zone: Some("eu-west-1a".to_owned()),
            subnet: Some("subnet-1".to_owned()),
            launch_time: Some(self.ago(age)),
            tags: BTreeMap::from([(tag::LAUNCH.to_owned(), OLD_LAUNCH.to_owned())]),
        };
        self.snapshot.instances.entry(id.to_owned()).insert_entry(instance).into_mut()
    }

    /// An instance of that age behind the node: mapping, InstanceId and NodeAddr name it.
    pub(crate) fn back(&mut self, node: &str, id: &str, state: InstanceState, age: u64) -> &mut Self {
        let instance = self.instance(id, state, age).clone();
        self.address(node, instance.private_ip.as_deref().unwrap_or_default());
        self.slurm(node).instance_id = Some(id.to_owned());
        self.entry(node, Some(id), age).private_ip = instance.private_ip;
        self
    }

    /// NodeAddr and NodeHostName.
    pub(crate) fn address(&mut self, node: &str, address: &str) -> &mut Self {
        let slurm = self.slurm(node);
        address.clone_into(&mut slurm.addr);
        slurm.hostname = format!("ip-{}", address.replace('.', "-"));
        self
    }

    /// A mapping entry, `running` with an instance, `launching` without; its launch is of that age.
    pub(crate) fn entry(&mut self, node: &str, id: Option<&str>, age: u64) -> &mut NodeEntry {
        let at = self.ago(age);
        let group = self.snapshot.nodes.get(node).and_then(|member| member.group);
        let entry = NodeEntry {
            state: if id.is_some() { NodeState::Running } else { NodeState::Launching },
            group: group.map_or_else(|| "gone".to_owned(), |index| self.policy.groups[index].name.clone()),
            launch: OLD_LAUNCH.to_owned(),
            requested: at,
            since: at,
            launched: Some(at),
            instance_id: id.map(str::to_owned),
            private_ip: None,
            hostname: None,
            instance_type: None,
            zone: None,
            unpublished: false,
        };
        self.mapping_mut().nodes.entry(node.to_owned()).insert_entry(entry).into_mut()
    }

    /// A node whose instance has run for [`LONG`] and whose slurmd has registered: `IDLE+CLOUD`, `MIXED+CLOUD`, …
    pub(crate) fn up(&mut self, node: &str, state: &str, id: &str) -> &mut Self {
        self.node(node, state).back(node, id, InstanceState::Running, LONG);
        let (booted, now) = (self.ago(LONG - 60).secs(), self.snapshot.now.secs());
        let slurm = self.slurm(node);
        slurm.boot_time = Some(booted);
        slurm.slurmd_start_time = Some(booted + 5);
        slurm.last_busy = Some(now);
        self
    }

    pub(crate) fn mapping_mut(&mut self) -> &mut Mapping {
        Arc::make_mut(&mut self.snapshot.mapping)
    }

    /// A run with this launch id is at work and holds the nodes' claims.
    pub(crate) fn live_launch(&mut self, launch: &str, nodes: &[&str]) -> &mut Self {
        self.snapshot.live.insert(launch.to_owned());
        self.snapshot.launches.insert(launch.to_owned());
        for node in nodes {
            launch.clone_into(&mut self.entry(node, None, 5).launch);
        }
        self
    }

    pub(crate) fn condemn(&mut self, id: &str) -> &mut Self {
        let since = self.snapshot.now;
        let condemned =
            Condemned { node: None, launch: OLD_LAUNCH.to_owned(), since, launched: Some(since), why: "suspended".to_owned() };
        self.mapping_mut().condemned.insert(id.to_owned(), condemned);
        self
    }

    /// The moment so many seconds before now.
    pub(crate) fn ago(&self, seconds: u64) -> Timestamp {
        Timestamp::from_secs(self.snapshot.now.secs() - seconds)
    }

    /// What would be done now. Nothing is remembered.
    pub(crate) fn decide(&self) -> Decision {
        reconcile(&self.snapshot, &self.memory, &self.policy)
    }

    /// One pass: decides, remembers, and [`LOOP`] goes by. The actions are not carried out.
    pub(crate) fn pass(&mut self) -> Decision {
        let decision = self.decide();
        self.memory = decision.memory.clone();
        self.snapshot.now = self.snapshot.now + LOOP;
        decision
    }

    /// One pass; its actions as [`lines`].
    pub(crate) fn pass_lines(&mut self) -> Vec<String> {
        lines(&self.pass().actions)
    }
}

/// The actions as `slurm-ec2 reconcile --dry-run` prints them, with single spaces: `terminate i-1 of q1-dy-c1-1`.
pub(crate) fn lines(actions: &[Action]) -> Vec<String> {
    actions.iter().map(|action| action.what.to_string().split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// What is done about one node.
pub(crate) fn lines_of(decision: &Decision, node: &str) -> Vec<String> {
    let actions: Vec<Action> = decision.actions.iter().filter(|action| action.what.node() == Some(node)).cloned().collect();
    lines(&actions)
}

/// The notes' texts.
pub(crate) fn notes(decision: &Decision) -> Vec<&str> {
    decision.notes.iter().map(|note| note.text.as_str()).collect()
}

/// What [`super::Draft::take_down`] comes to for a node that is not down, with an instance behind it.
pub(crate) fn taken_down(node: &str, id: &str, reason: &str) -> Vec<String> {
    vec![
        format!("down {node} reason {reason:?}"),
        format!("terminate {id} of {node}"),
        format!("power_down {node}"),
        format!("reset-address {node}"),
    ]
}

/// Queue, resource and `is static` of a node of ours.
fn place(name: &str) -> Option<(&str, &str, bool)> {
    let mut parts = name.split('-');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(queue), Some(kind @ ("st" | "dy")), Some(resource), Some(_)) => Some((queue, resource, kind == "st")),
        _ => None,
    }
}

fn slurm_node(name: &str, state: &str, partition: &str) -> SlurmNode {
    SlurmNode { partitions: vec![partition.to_owned()], ..SlurmNode::named(name, state) }
}

fn snapshot() -> Snapshot {
    Snapshot {
        now: NOW,
        fleet: FleetStatus::Running,
        nodes: BTreeMap::new(),
        partitions: BTreeMap::new(),
        reservations: Some(Vec::new()),
        instances: BTreeMap::new(),
        strangers: BTreeSet::new(),
        mapping: Arc::new(Mapping::new("orchard")),
        rebuilt: false,
        launches: BTreeSet::new(),
        live: BTreeSet::new(),
        ailments: BTreeMap::new(),
        ailments_told: true,
        blocks: None,
        boot_failures: Vec::new(),
        started: None,
    }
}

/// The defaults, standalone; SuspendTime 600 s.
fn policy() -> Policy {
    let upkeep = Upkeep {
        disabled: false,
        terminate_drain_nodes: true,
        terminate_down_nodes: true,
        orphan_timeout: Duration::from_secs(300),
        missing_grace: Duration::from_secs(120),
        missing_max_count: 0,
        replacement_timeout: Duration::from_secs(1800),
        check_instances: true,
        check_events: true,
        check_timeout: Duration::from_secs(180),
        check_grace: Duration::from_secs(180),
        protected_count: Some(10),
        shortage_timeout: None,
        manage_blocks: true,
        consoles: true,
        consoles_most: Some(1),
        console_wait: Duration::from_secs(300),
    };
    Policy {
        upkeep,
        groups: Vec::new(),
        partitions: BTreeSet::new(),
        parallelcluster: false,
        suspend: SuspendRules { time: Some(Duration::from_secs(600)), ..SuspendRules::default() },
        hides_off_nodes: false,
    }
}
