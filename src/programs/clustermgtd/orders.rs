//! Slurm's part of a pass: nodes set down, drained, powered down, resumed, their addresses taken back; those that get the same update for
//! the same reason in one call.

use std::collections::{BTreeMap, HashSet};

use super::perform::Acting;
use crate::model::node::{Base, SlurmNode};
use crate::plan::reconcile::{Order, What};
use crate::programs::{beside, suspend, telling};
use crate::slurm::scontrol::Applied;
use crate::slurm::update;

/// Nodes that get the same update for the same reason.
struct Batch<'a> {
    order: Order,
    reason: Option<&'a str>,
    /// With why.
    nodes: BTreeMap<&'a str, &'a str>,
}

impl<'a> Acting<'a> {
    /// The updates of these kinds, in this order.
    pub(super) async fn nodes(&mut self, orders: &[Order]) {
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

    pub(super) async fn reset_addresses(&mut self) {
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
}

/// No address, and a job that may wait for it.
fn waits_without_address(node: &SlurmNode) -> bool {
    let has_job = matches!(node.state.base, Base::Allocated | Base::Mixed);
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
