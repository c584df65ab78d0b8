//! Carries out what a pass decided, in phases: partitions and fleet; nodes down; mapping and EC2; nodes powered down and reset;
//! reservations. What takes long (launches, consoles) is handed back for the background.
//!
//! Nothing is done on a guess: nodes and mapping are looked at once more, and what concerns a node that changed since the snapshot is
//! left to the next pass (`recheck.rs`, and under the mapping's lock `freeing.rs`). A node whose first update slurmctld did not take is
//! left alone for the rest of the pass.

use std::collections::{BTreeMap, BTreeSet};

use super::shared::Shared;
use super::{freeing, recheck};
use crate::clock;
use crate::error::chain;
use crate::model::hostlist;
use crate::plan::reconcile::{Action, Order, ReservationOrder, Snapshot, What};
use crate::programs::context::Context;
use crate::programs::{release, telling};
use crate::slurm::partitions::PartitionChange;
use crate::store::fleet_status::FleetStatusStore;

/// What the actions stand on.
pub(super) struct Scene<'a> {
    pub(super) context: &'a Context,
    pub(super) shared: &'a Shared,
    pub(super) snapshot: &'a Snapshot,
    pub(super) fleet: &'a FleetStatusStore,
    /// Condemned instances that EC2 would not terminate a short while ago.
    pub(super) stubborn: &'a BTreeSet<String>,
    /// What was not done in the last pass either.
    pub(super) failures: &'a BTreeSet<String>,
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
    /// Partitions that were set inactive.
    pub(super) inactivated: BTreeSet<String>,
    /// Nodes to launch instances for.
    pub(super) launch: Vec<String>,
    /// Node and instance of consoles to read.
    pub(super) consoles: Vec<(String, String)>,
    /// Condemned instances that EC2 refuses to terminate.
    pub(super) refused: Vec<String>,
    /// Each with its names and why.
    pub(super) failures: BTreeSet<String>,
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

/// A pass' actions on their way.
pub(super) struct Acting<'a> {
    pub(super) scene: &'a Scene<'a>,
    pub(super) actions: &'a [Action],
    /// Nodes that are left alone from here on.
    pub(super) left: BTreeSet<String>,
    /// Instances that stand behind something after all.
    spared: BTreeSet<String>,
    performed: Performed,
}

impl<'a> Acting<'a> {
    pub(super) fn context(&self) -> &'a Context {
        self.scene.context
    }

    fn leave(&mut self, changed: recheck::Changed) {
        for (node, why) in &changed.nodes {
            tracing::debug!(node, "left to the next pass: {why}");
        }
        for (instance, why) in &changed.instances {
            tracing::debug!(instance, "left to the next pass: {why}");
        }
        self.performed.left += changed.nodes.len() + changed.instances.len();
        self.left.extend(changed.nodes.into_keys());
        self.spared.extend(changed.instances.into_keys());
    }

    /// Takes the log line of what was done: one for each kind and why, whatever the number of nodes (M23).
    pub(super) fn done(&mut self, what: &str, done: &[(&str, &str)]) {
        self.performed.done += done.len();
        let mut by_why: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, why) in done {
            by_why.entry(why).or_default().push(name);
        }
        for (why, names) in by_why {
            tracing::info!(names = shown(&names), count = names.len(), "{what}: {why}");
        }
    }

    /// Told once, however many passes it lasts.
    pub(super) fn failed(&mut self, what: &str, names: &[&str], error: &str) {
        self.performed.left += names.len();
        self.performed.trouble = Some(format!("{what}: {error}"));
        let names_shown = shown(names);
        let failure = format!("{what} {names_shown} {error}");
        if self.scene.failures.contains(&failure) {
            tracing::debug!(names = names_shown, count = names.len(), "again not done, {what}: {error}");
        } else {
            tracing::error!(names = names_shown, count = names.len(), "not done, {what}: {error}");
        }
        self.performed.failures.insert(failure);
    }

    async fn partitions(&mut self) {
        for action in self.actions {
            let What::Inactivate { partition } = &action.what else { continue };
            let limit = self.context().limits.end;
            match self.context().slurm.set_partition(partition, PartitionChange::Inactive, limit).await {
                Ok(()) => {
                    self.performed.inactivated.insert(partition.clone());
                    self.done("partition set inactive", &[(partition, &action.why)]);
                }
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
        (self.performed.launch, self.performed.consoles) = for_background(self.actions, &self.left);
    }
}

/// Nodes to launch for, and nodes with the instances whose consoles are to be read; nothing of those that are left alone.
fn for_background(actions: &[Action], left: &BTreeSet<String>) -> (Vec<String>, Vec<(String, String)>) {
    let (mut launch, mut consoles) = (Vec::new(), Vec::new());
    for action in actions {
        match &action.what {
            What::Launch { node } if !left.contains(node) => launch.push(node.clone()),
            What::Console { node, instance } if !left.contains(node) => consoles.push((node.clone(), instance.clone())),
            _ => {}
        }
    }
    (launch, consoles)
}

/// Nodes as a host list, instance ids as they are.
fn shown(names: &[&str]) -> String {
    if names.iter().all(|name| name.starts_with("i-")) { telling::list(names) } else { hostlist::compress_sorted(names) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_alone_is_left_alone_in_the_background_too() {
        let of = |node: &str| {
            let (node, instance) = (node.to_owned(), format!("i-{node}"));
            let whats = [What::Launch { node: node.clone() }, What::Console { node, instance }];
            whats.map(|what| Action { what, why: String::new() })
        };
        let actions = [of("c5-1"), of("c5-2")].concat();
        let console = |node: &str| (node.to_owned(), format!("i-{node}"));
        let (launch, consoles) = for_background(&actions, &BTreeSet::from(["c5-1".to_owned()]));
        assert_eq!((launch, consoles), (vec!["c5-2".to_owned()], vec![console("c5-2")]));
    }
}
