//! Carries out what a pass decided, in phases: partitions and fleet; nodes down; mapping and EC2; nodes powered down and reset;
//! reservations. What takes long (launches, consoles) is handed back for the background.
//!
//! Nothing is done on a guess: nodes and mapping are looked at once more, and what concerns a node that changed since the snapshot is
//! left to the next pass (`recheck.rs`, and under the mapping's lock `freeing.rs`). A node whose first update slurmctld did not take is
//! left alone for the rest of the pass.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::shared::Shared;
use super::{freeing, recheck};
use crate::clock;
use crate::error::chain;
use crate::model::hostlist;
use crate::model::node::SlurmNode;
use crate::plan::reconcile::{Action, Order, ReservationOrder, Snapshot, What};
use crate::programs::context::Context;
use crate::programs::{beside, release, suspend, telling};
use crate::slurm::partitions::PartitionChange;
use crate::slurm::scontrol::Applied;
use crate::slurm::update;
use crate::store::fleet_status::FleetStatusStore;

/// What the actions stand on.
pub(super) struct Scene<'a> {
    pub(super) context: &'a Context,
    pub(super) shared: &'a Shared,
    pub(super) snapshot: &'a Snapshot,
    pub(super) fleet: &'a FleetStatusStore,
    /// Condemned instances that EC2 would not terminate a short while ago.
    pub(super) stubborn: &'a BTreeSet<String>,
    /// slurm.conf's SlurmUser, to whom reservations are given.
    pub(super) slurm_user: &'a str,
}

/// What came of them.
#[derive(Debug, Default)]
pub(super) struct Performed {
    /// Actions that were carried out, apart from those in the background.
    pub(super) done: usize,
    /// Left to the next pass.
    pub(super) left: usize,
    /// Nodes to launch instances for.
    pub(super) launch: Vec<String>,
    /// Node and instance of consoles to read.
    pub(super) consoles: Vec<(String, String)>,
    /// Condemned instances that EC2 refuses to terminate.
    pub(super) refused: Vec<String>,
    /// Why some of it was not done, for the status.
    pub(super) trouble: Option<String>,
}

/// All phases, one after the other.
pub(super) async fn perform(scene: &Scene<'_>, actions: &[Action]) -> Performed {
    let mut acting = Acting { scene, actions, left: BTreeSet::new(), spared: BTreeSet::new(), performed: Performed::default() };
    match recheck::changed(scene, actions).await {
        Ok(changed) => acting.leave(changed),
        Err(error) => {
            tracing::error!("nothing is done in this pass, the nodes cannot be looked at again: {error}");
            acting.performed.left = actions.len();
            acting.performed.trouble = Some(error);
            return acting.performed;
        }
    }
    acting.partitions().await;
    acting.fleet().await;
    acting.nodes(&[Order::Down, Order::Drain, Order::PowerDownForce]).await;
    acting.free();
    acting.release().await;
    acting.nodes(&[Order::PowerDown, Order::Resume]).await;
    acting.reset_addresses().await;
    acting.reservations().await;
    acting.background();
    acting.performed
}

struct Acting<'a> {
    scene: &'a Scene<'a>,
    actions: &'a [Action],
    /// Nodes that are left alone from here on.
    left: BTreeSet<String>,
    /// Instances that stand behind something after all.
    spared: BTreeSet<String>,
    performed: Performed,
}

/// Nodes that get the same update for the same reason.
struct Batch<'a> {
    order: Order,
    reason: Option<&'a str>,
    /// With why.
    nodes: BTreeMap<&'a str, &'a str>,
}

impl<'a> Acting<'a> {
    fn context(&self) -> &'a Context {
        self.scene.context
    }

    fn leave(&mut self, changed: recheck::Changed) {
        for (node, why) in &changed.nodes {
            tracing::debug!(node, "left to the next pass: {why}");
        }
        for (instance, why) in &changed.instances {
            tracing::debug!(instance, "left to the next pass: {why}");
        }
        self.left.extend(changed.nodes.into_keys());
        self.spared.extend(changed.instances.into_keys());
    }

    /// Takes the log line of what was done: one for each kind and why, whatever the number of nodes (M23).
    fn done(&mut self, what: &str, done: &[(&str, &str)]) {
        self.performed.done += done.len();
        let mut by_why: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, why) in done {
            by_why.entry(why).or_default().push(name);
        }
        for (why, names) in by_why {
            tracing::info!(names = shown(&names), count = names.len(), "{what}: {why}");
        }
    }

    fn failed(&mut self, what: &str, names: &[&str], error: &str) {
        self.performed.left += names.len();
        self.performed.trouble = Some(format!("{what}: {error}"));
        tracing::error!(names = shown(names), count = names.len(), "not done, {what}: {error}");
    }

    async fn partitions(&mut self) {
        for action in self.actions {
            let What::Inactivate { partition } = &action.what else { continue };
            let limit = self.context().limits.end;
            match self.context().slurm.set_partition(partition, PartitionChange::Inactive, limit).await {
                Ok(()) => self.done("partition set inactive", &[(partition, &action.why)]),
                Err(error) => self.failed("partition set inactive", &[partition], &chain(&error)),
            }
            self.scene.shared.step();
        }
    }

    async fn fleet(&mut self) {
        for action in self.actions {
            let What::Fleet { from, to } = action.what else { continue };
            match self.scene.fleet.compare_and_set(from, to, clock::now()).await {
                Ok(true) => self.done("fleet status changed", &[(to.as_str(), &action.why)]),
                Ok(false) => tracing::warn!("the fleet's status is not {from} any more, it does not become {to}"),
                Err(error) => self.failed("fleet status changed", &[to.as_str()], &chain(&error)),
            }
            self.scene.shared.step();
        }
    }

    /// The updates of these kinds, in this order.
    async fn nodes(&mut self, orders: &[Order]) {
        for order in orders {
            for batch in self.batches(*order) {
                self.update(batch).await;
                self.scene.shared.step();
            }
        }
    }

    fn batches(&self, wanted: Order) -> Vec<Batch<'a>> {
        let mut batches: BTreeMap<Option<&'a str>, BTreeMap<&'a str, &'a str>> = BTreeMap::new();
        for action in self.actions {
            let What::Node { node, order, reason } = &action.what else { continue };
            if *order == wanted && !self.left.contains(node) {
                batches.entry(reason.as_deref()).or_default().insert(node, &action.why);
            }
        }
        batches.into_iter().map(|(reason, nodes)| Batch { order: wanted, reason, nodes }).collect()
    }

    async fn update(&mut self, batch: Batch<'a>) {
        let nodes: Vec<String> = batch.nodes.keys().map(|node| (*node).to_owned()).collect();
        let per_call = self.context().settings.slurm.nodes_per_call;
        let reason = batch.reason.unwrap_or_default();
        if matches!(batch.order, Order::Down | Order::PowerDownForce) {
            self.dummy_addresses(&nodes).await;
        }
        let calls = match batch.order {
            Order::Down => update::down_args(&nodes, reason, None, per_call),
            Order::Drain => update::drain_args(&nodes, reason, per_call),
            Order::PowerDownForce => update::power_down_force_at_once_args(&nodes, reason, per_call),
            Order::PowerDown => update::power_down_args(&nodes, batch.reason, per_call),
            Order::Resume => update::resume_args(&nodes, per_call),
            Order::ResetAddress => update::own_address_args(&nodes, per_call),
        };
        let applied = self.context().apply(calls).await;
        self.settle(&batch, applied);
    }

    /// On old versions slurmctld stands still for each node of a job that it requeues while the node's address cannot be resolved
    /// (slurm-facts I).
    async fn dummy_addresses(&self, nodes: &[String]) {
        let version = telling::version(self.context()).await;
        let needs =
            |node: &&String| self.scene.snapshot.nodes.get(*node).is_some_and(|member| waits_without_address(&member.slurm));
        let nodes: Vec<String> = nodes.iter().filter(needs).cloned().collect();
        let calls = update::dummy_address_args(&nodes, &version, self.context().settings.slurm.nodes_per_call);
        if !calls.is_empty() {
            self.context().apply(calls).await;
        }
    }

    fn settle(&mut self, batch: &Batch<'a>, applied: Applied) {
        let what = done_to_nodes(batch.order);
        let taken: HashSet<&str> = applied.done.iter().map(String::as_str).collect();
        let done: Vec<(&str, &str)> =
            batch.nodes.iter().filter(|(node, _)| taken.contains(*node)).map(|(node, why)| (*node, *why)).collect();
        self.done(what, &done);
        if !applied.unknown.is_empty() {
            let names: Vec<&str> = applied.unknown.iter().map(String::as_str).collect();
            self.failed(what, &names, &telling::why(&applied));
        }
        let mut by_text: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (node, text) in &applied.refused {
            by_text.entry(text).or_default().push(node);
        }
        for (text, names) in by_text {
            self.failed(what, &names, &format!("slurmctld refuses it: {text}"));
        }
        self.left.extend(applied.unknown);
        self.left.extend(applied.refused.into_iter().map(|(node, _)| node));
    }

    /// One locked write: nodes freed, their instances condemned.
    fn free(&mut self) {
        let wishes: Vec<&Action> = self.actions.iter().filter(|action| self.is_wanted(action)).collect();
        if wishes.is_empty() {
            return;
        }
        match freeing::free(self.scene, &wishes) {
            Ok(freed) => {
                for (name, why) in &freed.left {
                    tracing::debug!(name, "left to the next pass: {why}");
                }
                self.performed.left += freed.left.len();
                let condemned: Vec<(&str, &str)> = freed.condemned.iter().map(|action| named(action)).collect();
                self.done("instance given up", &condemned);
                let forgotten: Vec<(&str, &str)> = freed.forgotten.iter().map(|action| named(action)).collect();
                self.done("mapping entry dropped", &forgotten);
                self.left.extend(freed.changed);
            }
            Err(error) => {
                // Without it nothing that follows for these nodes may be done.
                let nodes: Vec<String> = wishes.iter().filter_map(|action| action.what.node()).map(str::to_owned).collect();
                self.failed("instances given up", &nodes.iter().map(String::as_str).collect::<Vec<_>>(), &chain(&error));
                self.left.extend(nodes);
            }
        }
        self.scene.shared.step();
    }

    /// About the mapping, and of nothing that is left alone?
    fn is_wanted(&self, action: &Action) -> bool {
        match &action.what {
            What::Terminate { instance, node } => {
                !self.spared.contains(instance) && node.as_ref().is_none_or(|node| !self.left.contains(node))
            }
            What::Forget { node } => !self.left.contains(node),
            _ => false,
        }
    }

    /// Whatever is condemned, by whomever.
    async fn release(&mut self) {
        let released = release::release(self.context(), self.scene.stubborn).await;
        self.performed.refused = released.refused;
        self.scene.shared.step();
    }

    async fn reset_addresses(&mut self) {
        for batch in self.batches(Order::ResetAddress) {
            let nodes: Vec<String> = batch.nodes.keys().map(|node| (*node).to_owned()).collect();
            let calls = update::own_address_args(&nodes, self.context().settings.slurm.nodes_per_call);
            let applied = self.context().apply(calls).await;
            self.settle(&batch, applied);
            // A resume that came in between may have told Slurm its address before this did.
            let again = beside::claimed_since(self.context(), &nodes);
            suspend::publish_rest(self.context(), &again).await;
            self.scene.shared.step();
        }
    }

    async fn reservations(&mut self) {
        let (slurm, end) = (&self.context().slurm, self.context().limits.end);
        for action in self.actions {
            let What::Reservation(order) = &action.what else { continue };
            let (what, name, result) = match order {
                ReservationOrder::Create { name, nodes } => {
                    ("reservation made", name, slurm.create_reservation(name, nodes, self.scene.slurm_user, end).await)
                }
                ReservationOrder::Update { name, nodes } => {
                    ("reservation changed", name, slurm.update_reservation(name, nodes, end).await)
                }
                ReservationOrder::Delete { name } => ("reservation removed", name, slurm.delete_reservation(name, end).await),
            };
            match result {
                Ok(()) => self.done(what, &[(name, &action.why)]),
                Err(error) => self.failed(what, &[name], &chain(&error)),
            }
            self.scene.shared.step();
        }
    }

    fn background(&mut self) {
        for action in self.actions {
            match &action.what {
                What::Launch { node } if !self.left.contains(node) => self.performed.launch.push(node.clone()),
                What::Console { node, instance } => self.performed.consoles.push((node.clone(), instance.clone())),
                _ => {}
            }
        }
    }
}

/// Nodes as a host list, instance ids as they are.
fn shown(names: &[&str]) -> String {
    if names.iter().all(|name| name.starts_with("i-")) { telling::list(names) } else { hostlist::compress_sorted(names) }
}

/// No address, and a job that may wait for it.
fn waits_without_address(node: &SlurmNode) -> bool {
    let has_job = matches!(node.state.base, crate::model::node::Base::Allocated | crate::model::node::Base::Mixed);
    node.addr == node.name && (has_job || node.state.is_powering_up())
}

fn done_to_nodes(order: Order) -> &'static str {
    match order {
        Order::Down => "nodes set down",
        Order::Drain => "nodes drained",
        Order::PowerDown => "nodes powered down",
        Order::PowerDownForce => "nodes powered down by force",
        Order::Resume => "nodes resumed",
        Order::ResetAddress => "addresses taken back",
    }
}

/// What the log names, and why.
fn named(action: &Action) -> (&str, &str) {
    let name = match &action.what {
        What::Terminate { instance, .. } => instance,
        What::Forget { node } => node,
        _ => "",
    };
    (name, &action.why)
}
