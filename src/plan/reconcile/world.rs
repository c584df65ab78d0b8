//! A model of the world for the properties of the decision (`properties.rs`): Slurm's nodes, EC2's instances, the mapping and what is
//! remembered. A decision's actions change it as Slurm 22.05 or a later version, EC2 and our own programs would (slurm-facts D, E, I);
//! then time goes by (`world/slurm.rs`). Deterministic: chance comes from a seed.

mod acting;
mod slurm;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::test_support::LOOP;
use super::{Decision, Member, Memory, Policy, Snapshot};
use crate::model::cluster::{Ailment, Partition, PartitionState, Reservation};
use crate::model::fleet::FleetStatus;
use crate::model::instance::{Instance, InstanceState, tag};
use crate::model::mapping::{Mapping, NodeEntry, NodeState};
use crate::model::node::{SlurmNode, State};
use crate::model::time::Timestamp;

/// How this Slurm is configured and which programs of ours run in it at all. Whatever they are, the daemon must cope.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ways {
    /// 23.11 and later: an InstanceId, and addresses that are reset when a node is off.
    pub(super) new_slurm: bool,
    /// `SlurmctldParameters=idle_on_node_suspend`
    pub(super) idle_on_suspend: bool,
    /// ReturnToService
    pub(super) return_to_service: u8,
    pub(super) resume_runs: bool,
    pub(super) suspend_runs: bool,
    pub(super) resume_fail_runs: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Cluster {
    pub(super) now: Timestamp,
    pub(super) fleet: FleetStatus,
    pub(super) ways: Ways,
    pub(super) policy: Policy,
    pub(super) memory: Memory,
    pub(super) nodes: BTreeMap<String, Node>,
    pub(super) machines: BTreeMap<String, Machine>,
    pub(super) mapping: Mapping,
    pub(super) partitions: BTreeMap<String, PartitionState>,
    pub(super) reservations: Vec<Reservation>,
    /// Launches at work, with their nodes: they end before the next pass.
    pub(super) live: BTreeMap<String, Vec<String>>,
    /// Launch records that nobody works at, and when a recovery drops them.
    pub(super) records: BTreeMap<String, Timestamp>,
    pub(super) boot_failures: Vec<(String, Timestamp)>,
    /// EC2 has instances to give.
    pub(super) has_capacity: bool,
    /// New instances come up.
    pub(super) boots: bool,
    /// The mapping was rebuilt just now.
    pub(super) rebuilt: bool,
    serial: u32,
}

/// A node as slurmctld keeps it.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) queue: String,
    pub(super) group: usize,
    pub(super) is_static: bool,
    /// First word of the state. ALLOCATED and MIXED: a job is on it.
    pub(super) base: String,
    pub(super) flags: BTreeSet<String>,
    pub(super) reason: Option<String>,
    pub(super) addr: String,
    pub(super) instance_id: Option<String>,
    pub(super) boot: Option<Timestamp>,
    pub(super) slurmd: Option<Timestamp>,
    pub(super) busy: Timestamp,
    pub(super) job_ends: Option<Timestamp>,
    /// When its powering up or down began.
    pub(super) power_since: Timestamp,
    /// Scans in which its slurmd did not answer.
    pub(super) silent: u32,
    /// Slurm has lost its idle time and never suspends it (M28).
    pub(super) idle_is_lost: bool,
}

/// An instance, and the machine that it is.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    pub(super) instance: Instance,
    pub(super) boots: bool,
    /// The node that its slurmd has registered as.
    pub(super) registered: Option<String>,
    /// EC2 does not show it now, and when that was the last time.
    pub(super) is_hidden: bool,
    pub(super) hidden: Option<Timestamp>,
    pub(super) ailments: Vec<Ailment>,
    pub(super) ended: Option<Timestamp>,
}

impl Node {
    pub(super) fn state(&self) -> State {
        State::parse(&format!("{}+CLOUD{}", self.base, self.flags.iter().map(|flag| format!("+{flag}")).collect::<String>()))
    }

    pub(super) fn set(&mut self, state: &str) {
        let mut words = state.split('+').filter(|word| *word != "CLOUD").map(str::to_owned);
        self.base = words.next().unwrap_or_default();
        self.flags = words.collect();
    }

    pub(super) fn has(&self, flag: &str) -> bool {
        self.flags.contains(flag)
    }

    pub(super) fn has_job(&self) -> bool {
        matches!(self.base.as_str(), "ALLOCATED" | "MIXED")
    }

    pub(super) fn is_down(&self) -> bool {
        self.base == "DOWN"
    }

    /// One that Slurm keeps for itself: no update of ours is for it.
    pub(super) fn is_odd(&self) -> bool {
        !self.has_job() && !self.is_down() && self.base != "IDLE"
    }

    fn put(&mut self, flag: &str) {
        self.flags.insert(flag.to_owned());
    }

    fn clear(&mut self, flags: &[&str]) {
        self.flags.retain(|flag| !flags.contains(&flag.as_str()));
    }

    fn shown(&self) -> SlurmNode {
        SlurmNode {
            name: self.name.clone(),
            addr: self.addr.clone(),
            hostname: self.addr.clone(),
            instance_id: self.instance_id.clone(),
            state: self.state(),
            reason: self.reason.clone(),
            boot_time: self.boot.map(Timestamp::secs),
            slurmd_start_time: self.slurmd.map(Timestamp::secs),
            partitions: vec![self.queue.clone()],
            features: Vec::new(),
            last_busy: Some(self.busy.secs()),
            reservation: None,
        }
    }
}

impl Machine {
    pub(super) fn is_running(&self) -> bool {
        self.instance.state == InstanceState::Running
    }
}

impl Cluster {
    pub(super) fn new(now: Timestamp, policy: Policy, ways: Ways) -> Self {
        Self {
            now,
            fleet: FleetStatus::Running,
            ways,
            policy,
            memory: Memory::default(),
            nodes: BTreeMap::new(),
            machines: BTreeMap::new(),
            mapping: Mapping::new("orchard"),
            partitions: BTreeMap::new(),
            reservations: Vec::new(),
            live: BTreeMap::new(),
            records: BTreeMap::new(),
            boot_failures: Vec::new(),
            has_capacity: true,
            boots: true,
            rebuilt: false,
            serial: 0,
        }
    }

    /// What a pass gets to see.
    pub(super) fn snapshot(&self) -> Snapshot {
        let member = |node: &Node| Member { slurm: node.shown(), group: Some(node.group), is_static: node.is_static };
        let partition =
            |(name, state): (&String, &PartitionState)| (name.clone(), Partition { name: name.clone(), state: *state });
        let named: BTreeSet<&str> = self
            .mapping
            .nodes
            .values()
            .filter_map(|entry| entry.instance_id.as_deref())
            .chain(self.nodes.values().filter_map(|node| node.instance_id.as_deref()))
            .collect();
        let shown = self
            .machines
            .iter()
            .filter(|(id, machine)| !machine.is_hidden && (machine.instance.state.is_live() || named.contains(id.as_str())));
        Snapshot {
            now: self.now,
            fleet: self.fleet,
            nodes: self.nodes.iter().map(|(name, node)| (name.clone(), member(node))).collect(),
            partitions: self.partitions.iter().map(partition).collect(),
            reservations: Some(self.reservations.clone()),
            instances: shown.clone().map(|(id, machine)| (id.clone(), machine.instance.clone())).collect(),
            mapping: Arc::new(self.mapping.clone()),
            rebuilt: self.rebuilt,
            strangers: BTreeSet::new(),
            launches: self.live.keys().chain(self.records.keys()).cloned().collect(),
            live: self.live.keys().cloned().collect(),
            ailments: shown
                .filter(|(_, machine)| !machine.ailments.is_empty())
                .map(|(id, machine)| (id.clone(), machine.ailments.clone()))
                .collect(),
            ailments_told: true,
            blocks: None,
            boot_failures: self.boot_failures.clone(),
            started: None,
        }
    }

    /// Decides, carries out the first `most` actions and remembers; `remembers` = the new memory was written. Then [`LOOP`] goes by.
    pub(super) fn carry_out(&mut self, decision: &Decision, most: usize, remembers: bool) {
        let mut actions: Vec<_> = decision.actions.iter().map(|action| &action.what).collect();
        actions.sort_by_key(|what| acting::phase(what));
        for what in actions.into_iter().take(most) {
            self.act(what);
        }
        if remembers {
            self.memory = decision.memory.clone();
        }
        self.rebuilt = false;
        self.goes_by();
    }

    fn goes_by(&mut self) {
        self.now = self.now + LOOP;
        self.machines.values_mut().for_each(|machine| machine.is_hidden = false);
        self.end_launches();
        self.ec2();
        self.slurm();
    }

    /// Pending ones run, what is to end ends, condemned ones are terminated by whatever program of ours runs next.
    fn ec2(&mut self) {
        for id in self.mapping.condemned.keys().cloned().collect::<Vec<_>>() {
            self.terminate(&id);
        }
        for machine in self.machines.values_mut() {
            machine.instance.state = match machine.instance.state {
                InstanceState::Pending => InstanceState::Running,
                InstanceState::ShuttingDown => InstanceState::Terminated,
                InstanceState::Stopping => InstanceState::Stopped,
                state => state,
            };
            if !machine.is_running() {
                machine.registered = None;
            }
        }
        // EC2 shows what is terminated for a while.
        let long_ago = |ended: Timestamp| self.now.since(ended).as_secs() > 1200;
        self.machines.retain(|_, machine| !machine.ended.is_some_and(long_ago));
        let machines = &self.machines;
        self.mapping.condemned.retain(|id, _| machines.get(id).is_some_and(|machine| machine.instance.state.is_live()));
    }

    pub(super) fn terminate(&mut self, id: &str) {
        if let Some(machine) = self.machines.get_mut(id).filter(|machine| machine.instance.state.is_live()) {
            machine.instance.state = InstanceState::ShuttingDown;
            machine.ended = Some(self.now);
            machine.registered = None;
        }
    }

    /// A new instance, whose launch was sent at `launched`.
    pub(super) fn machine(&mut self, state: InstanceState, launch: &str, launched: Timestamp) -> Instance {
        self.serial += 1;
        let instance = Instance {
            id: format!("i-{}", self.serial),
            state,
            private_ip: Some(format!("10.0.{}.{}", self.serial / 250, self.serial % 250 + 1)),
            hostname: None,
            instance_type: None,
            zone: None,
            subnet: None,
            launch_time: Some(launched),
            tags: BTreeMap::from([(tag::LAUNCH.to_owned(), launch.to_owned())]),
        };
        let machine = Machine {
            instance: instance.clone(),
            boots: self.boots,
            registered: None,
            is_hidden: false,
            hidden: None,
            ailments: Vec::new(),
            ended: (!state.is_live()).then_some(self.now),
        };
        self.machines.insert(instance.id.clone(), machine);
        instance
    }

    /// A mapping entry: `running` with an instance, else `launching`.
    pub(super) fn entry(&mut self, node: &str, instance: Option<&Instance>, launch: &str, at: Timestamp) {
        let entry = NodeEntry {
            state: if instance.is_some() { NodeState::Running } else { NodeState::Launching },
            group: self.policy.groups[self.nodes[node].group].name.clone(),
            launch: launch.to_owned(),
            requested: at,
            since: at,
            launched: instance.map(|_| at),
            instance_id: instance.map(|instance| instance.id.clone()),
            private_ip: instance.and_then(|instance| instance.private_ip.clone()),
            hostname: None,
            instance_type: None,
            zone: None,
            unpublished: false,
        };
        self.mapping.nodes.insert(node.to_owned(), entry);
    }

    /// The machine whose slurmd answers for the node.
    pub(super) fn answering(&self, node: &str) -> Option<&Machine> {
        self.machines.values().find(|machine| machine.is_running() && machine.registered.as_deref() == Some(node))
    }

    fn next_launch(&mut self) -> String {
        self.serial += 1;
        format!("launch-{}", self.serial)
    }
}
