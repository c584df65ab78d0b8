//! clustermgtd's decision: one [`Snapshot`] of Slurm, EC2, the mapping and the launch records, and what is remembered of earlier
//! passes, in; actions with their reasons and the new memory out. No clock, no I/O, no second look.
//!
//! Where a snapshot is not whole there is no snapshot: the program then does nothing that destroys. Every action is checked again
//! by the program just before it is done (`programs/clustermgtd/perform.rs`), so that a node that changed since is left alone.
//!
//! Properties, checked by `properties.rs` on a model of the world: applying the actions and deciding again reaches "nothing to do" ·
//! an instance that backs a healthy node with a job is never terminated · a healthy world yields no action.

mod action;
mod blocks;
mod boots;
mod facts;
mod forgotten;
mod health;
mod held;
mod inactive;
mod memory;
mod missing;
mod orphans;
mod policy;
mod protected;
mod report;
mod shortage;
pub(crate) mod state;
mod statics;
mod stuck;
mod suspending;
mod sync;
mod unhealthy;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod test_support;
#[cfg(test)]
mod test_world;
#[cfg(test)]
mod tests_clock;
#[cfg(test)]
mod tests_inactive;
#[cfg(test)]
mod tests_orphans;
#[cfg(test)]
mod tests_state;
#[cfg(test)]
mod tests_sync;
#[cfg(test)]
mod world;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

pub(crate) use action::{Action, Order, ReservationOrder, What};
pub(crate) use blocks::{are_due as blocks_are_due, need_reservations};
pub(crate) use facts::Facts;
pub(crate) use memory::Memory;
#[cfg(test)]
pub(crate) use memory::{GroupFailures, NodeFailure};
pub(crate) use policy::{GroupView, Policy, SuspendRules};
pub(crate) use protected::way_out;
pub(crate) use report::{Level, Note, Report};

use crate::model::cluster::{Ailment, CapacityBlock, Partition, PartitionState, Reservation};
use crate::model::fleet::FleetStatus;
use crate::model::instance::Instance;
use crate::model::mapping::Mapping;
use crate::model::node::{SlurmNode, State};
use crate::model::time::Timestamp;

/// The world at one moment, whole. EC2 was asked first, then mapping and records together, then Slurm: so what Slurm shows is the
/// newest, and an instance that EC2 did not show yet is never taken for one that is gone because of the order.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) now: Timestamp,
    pub(crate) fleet: FleetStatus,
    /// Every node that Slurm shows, configured or not (a node that is not ours may hold an instance that is).
    pub(crate) nodes: BTreeMap<String, Member>,
    pub(crate) partitions: BTreeMap<String, Partition>,
    /// `None`: Slurm was not asked, or did not tell them.
    pub(crate) reservations: Option<Vec<Reservation>>,
    /// Instances that are ours by tag and live, and those that the mapping or Slurm names, in whatever state EC2 shows them.
    pub(crate) instances: BTreeMap<String, Instance>,
    /// Those of them that are not ours by tag: Slurm's InstanceId alone names them. They back their node and are never terminated.
    pub(crate) strangers: BTreeSet<String>,
    pub(crate) mapping: Arc<Mapping>,
    /// The mapping was missing and has just been rebuilt: nothing is terminated in this pass.
    pub(crate) rebuilt: bool,
    /// Launch ids of launch records that are there, whether at work or still to be recovered: they answer for their instances.
    pub(crate) launches: BTreeSet<String>,
    /// Launch ids whose run is at work now: their claims are theirs.
    pub(crate) live: BTreeSet<String>,
    /// By instance id; only what is wrong.
    pub(crate) ailments: BTreeMap<String, Vec<Ailment>>,
    /// EC2 has told them, in this pass or before.
    pub(crate) ailments_told: bool,
    /// Capacity reservations of the configuration by id; one that EC2 does not know is absent. `None`: EC2 was not asked in this pass.
    pub(crate) blocks: Option<BTreeMap<String, CapacityBlock>>,
    /// Boot failures that slurm_resume_fail and slurm_suspend have noted: node and time.
    pub(crate) boot_failures: Vec<(String, Timestamp)>,
    /// When the fleet was last started, as the start itself noted it.
    pub(crate) started: Option<Timestamp>,
}

/// A node as Slurm shows it, and its place in the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) slurm: SlurmNode,
    /// Index into [`Policy::groups`]; `None` = not ours: never updated.
    pub(crate) group: Option<usize>,
    /// To be kept up all the time.
    pub(crate) is_static: bool,
}

/// What a pass comes to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Decision {
    /// In the order in which they are to be done, as far as they depend on each other.
    pub(crate) actions: Vec<Action>,
    pub(crate) memory: Memory,
    /// For the log: what changed, once.
    pub(crate) notes: Vec<Note>,
    pub(crate) report: Report,
}

/// One pass. Each node gets the repair of the first rule that finds something to do; rules that only watch come after.
pub(crate) fn reconcile(snapshot: &Snapshot, memory: &Memory, policy: &Policy) -> Decision {
    let mut draft = Draft::new(snapshot, memory, policy);
    inactive::started(&mut draft);
    if policy.upkeep.disabled {
        return draft.finish();
    }
    if !snapshot.fleet.is_running() {
        // Starting and stopping are somebody else's; a fleet that is stopped stays so.
        if snapshot.fleet == FleetStatus::Stopped {
            inactive::stopped(&mut draft);
        }
        return draft.finish();
    }
    held::drain_again(&mut draft);
    inactive::inactive_partitions(&mut draft);
    blocks::blocks(&mut draft);
    health::failing_checks(&mut draft);
    statics::statics(&mut draft);
    sync::powering_down(&mut draft);
    sync::gone(&mut draft);
    shortage::shortages(&mut draft);
    unhealthy::unhealthy(&mut draft);
    stuck::stuck(&mut draft);
    forgotten::forgotten(&mut draft);
    protected::protected(&mut draft);
    orphans::orphans(&mut draft);
    report::watch(&mut draft);
    draft.finish()
}

/// A decision in the making.
pub(crate) struct Draft<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) policy: &'a Policy,
    /// One per node of ours, in the order of names.
    pub(crate) facts: Vec<Facts<'a>>,
    /// What was remembered when the pass began.
    pub(crate) before: &'a Memory,
    pub(crate) memory: Memory,
    pub(crate) actions: Vec<Action>,
    pub(crate) notes: Vec<Note>,
    pub(crate) report: Report,
    /// Nodes that have a repair in this pass, or are to be left alone in it: no later rule touches them.
    handled: HashSet<&'a str>,
    /// Instances that go in this pass.
    terminated: HashSet<&'a str>,
    /// Which node stands before which instance.
    owners: facts::Owners<'a>,
}

impl<'a> Draft<'a> {
    fn new(snapshot: &'a Snapshot, memory: &'a Memory, policy: &'a Policy) -> Self {
        let owners = facts::Owners::of(snapshot);
        let mut facts = facts::of(snapshot, policy, &owners);
        let before = memory;
        let mut memory = memory.clone();
        missing::judge(snapshot, policy, &mut memory, &mut facts);
        // Powering down is what a repair looks like while it is under way: the count goes on where it had no effect.
        let goes_down = |state: &State| !state.is_powering_up() && (state.is_powering_down() || state.power_down_requested());
        memory.watched.retain(|node, _| snapshot.nodes.get(node).is_some_and(|member| goes_down(&member.slurm.state)));
        Self {
            snapshot,
            policy,
            facts,
            before,
            memory,
            actions: Vec::new(),
            notes: Vec::new(),
            report: Report::default(),
            handled: HashSet::new(),
            terminated: HashSet::new(),
            owners,
        }
    }

    fn finish(self) -> Decision {
        Decision { actions: self.actions, memory: self.memory, notes: self.notes, report: self.report }
    }

    pub(crate) fn is_handled(&self, node: &str) -> bool {
        self.handled.contains(node)
    }

    /// No later rule touches the node in this pass.
    pub(crate) fn handle(&mut self, node: &'a str) {
        self.handled.insert(node);
    }

    /// Are all of the node's partitions that are ours inactive? Such nodes are `inactive.rs`'s alone.
    pub(crate) fn is_out_of_service(&self, facts: &Facts<'_>) -> bool {
        let mut ours = facts.node.partitions.iter().filter(|name| self.policy.partitions.contains(*name)).peekable();
        let inactive = |name: &String| self.snapshot.partitions.get(name).is_some_and(|it| it.state == PartitionState::Inactive);
        ours.peek().is_some() && ours.all(inactive)
    }

    /// In how many passes running, this one included, has `rule` seen the node like this? What no rule sees in a pass is forgotten, so
    /// the count begins anew when the condition ends; passes in which the node powers down neither count nor end it. A node is watched by
    /// one rule at a time.
    pub(crate) fn seen(&mut self, node: &str, rule: &str) -> u32 {
        let before = self.before.watched.get(node).filter(|watched| watched.rule == rule);
        let passes = before.map_or(0, |watched| watched.passes).saturating_add(1);
        let since = before.map_or(self.snapshot.now, |watched| watched.since);
        self.memory.watched.insert(node.to_owned(), memory::Watched { rule: rule.to_owned(), since, passes });
        passes
    }

    pub(crate) fn act(&mut self, what: What, why: impl Into<String>) {
        self.actions.push(Action { what, why: why.into() });
    }

    pub(crate) fn note(&mut self, level: Level, text: impl Into<String>) {
        self.notes.push(Note { level, text: text.into() });
    }

    /// Terminates an instance once, frees the node behind it if it is mapped to it. Never in the pass that rebuilt the mapping.
    pub(crate) fn terminate(&mut self, instance: &'a str, node: Option<&'a str>, why: &str) {
        if self.snapshot.rebuilt || self.stays(instance) || !self.terminated.insert(instance) {
            return;
        }
        self.act(What::Terminate { instance: instance.to_owned(), node: node.map(str::to_owned) }, why);
    }

    /// Not to be terminated by a rule: it goes already, or it is not ours.
    pub(crate) fn stays(&self, instance: &str) -> bool {
        let is_mapped = || self.owners.get(instance).is_some_and(|owner| owner.is_mapped);
        self.snapshot.mapping.condemned.contains_key(instance) || (self.snapshot.strangers.contains(instance) && !is_mapped())
    }

    /// The node's instance goes, if it may, and its entry is freed.
    fn let_go(&mut self, index: usize, why: &str) {
        let facts = self.facts[index];
        match facts.backing.instance() {
            Some(instance) if !self.stays(&instance.id) => self.terminate(&instance.id, Some(facts.name), why),
            // The rebuilt entry is all that is known of the instance that must not go in this pass.
            _ if facts.entry.is_some() && !self.snapshot.rebuilt => self.act(What::Forget { node: facts.name.to_owned() }, why),
            _ => {}
        }
    }

    /// The way back of a node that cannot go on: down with the reason (its jobs are requeued), its instance terminated and its entry
    /// freed, then powered down, which ends in `idle~` with the node's own address (slurm-facts E: works from every state and in
    /// every version, also where slurmd is dead and `power_down_force` alone would wait for it).
    pub(crate) fn take_down(&mut self, index: usize, reason: &str, why: &str) {
        let facts = self.facts[index];
        let state = &facts.node.state;
        self.handle(facts.name);
        if !state.is_down() {
            self.order(facts.name, Order::Down, Some(reason), why);
        }
        self.let_go(index, why);
        if state.is_down() && state.is_powered_down() && self.seen(facts.name, STAYS_DOWN) > POWER_DOWNS {
            self.order(facts.name, Order::Resume, None, &format!("stays down in spite of {POWER_DOWNS} power-downs: {why}"));
        } else {
            self.order(facts.name, Order::PowerDown, state.is_down().then_some(reason), why);
        }
        self.order(facts.name, Order::ResetAddress, None, why);
    }

    fn order(&mut self, node: &str, order: Order, reason: Option<&str>, why: &str) {
        self.act(What::Node { node: node.to_owned(), order, reason: reason.map(str::to_owned) }, why);
    }
}

/// A node that is off and DOWN (ResumeTimeout) leaves that by `power_down`; where that has no effect in so many passes, `resume` is what
/// ends it at once, without SuspendProgram (slurm-facts I).
const POWER_DOWNS: u32 = 3;
const STAYS_DOWN: &str = "stays down";
