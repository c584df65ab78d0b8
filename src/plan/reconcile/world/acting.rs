//! What the daemon's actions do to the world.

use super::{Cluster, Node};
use crate::model::cluster::{PartitionState, Reservation};
use crate::model::mapping::Condemned;
use crate::plan::reconcile::{Order, ReservationOrder, What};

/// The order in which actions are carried out.
pub(super) fn phase(what: &What) -> u8 {
    match what {
        What::Inactivate { .. } | What::Fleet { .. } => 1,
        What::Node { order: Order::Down | Order::Drain | Order::PowerDownForce, .. } => 2,
        What::Terminate { .. } | What::Forget { .. } => 3,
        What::Node { order: Order::PowerDown | Order::Resume | Order::ResetAddress, .. } => 4,
        What::Launch { .. } | What::Console { .. } | What::Reservation(_) => 5,
    }
}

impl Cluster {
    pub(super) fn act(&mut self, what: &What) {
        match what {
            What::Node { node, order, reason } => self.update(node, *order, reason.as_deref()),
            What::Terminate { instance, node } => {
                self.condemn(instance, node.as_deref());
                self.terminate(instance);
            }
            What::Forget { node } => {
                self.mapping.nodes.remove(node);
            }
            What::Launch { node } => {
                let launch = self.next_launch();
                self.claim(node, &launch);
            }
            What::Console { .. } => {}
            What::Inactivate { partition } => {
                self.partitions.insert(partition.clone(), PartitionState::Inactive);
            }
            What::Reservation(order) => self.reserve(order),
            What::Fleet { from, to } => {
                if self.fleet == *from {
                    self.fleet = *to;
                }
            }
        }
    }

    /// The instance is to go; the node whose entry names it is free.
    pub(super) fn condemn(&mut self, id: &str, node: Option<&str>) {
        if let Some(node) =
            node.filter(|node| self.mapping.nodes.get(*node).is_some_and(|it| it.instance_id.as_deref() == Some(id)))
        {
            self.mapping.nodes.remove(node);
        }
        let condemned = Condemned {
            node: node.map(str::to_owned),
            launch: String::new(),
            since: self.now,
            launched: None,
            why: String::new(),
        };
        self.mapping.condemned.insert(id.to_owned(), condemned);
    }

    /// `scontrol update nodename=NODE …`
    pub(in super::super) fn update(&mut self, name: &str, order: Order, reason: Option<&str>) {
        let answers = self.answering(name).is_some();
        let ways = self.ways;
        let Some(node) = self.nodes.get_mut(name).filter(|node| !node.is_odd()) else { return };
        if let Some(reason) = reason {
            node.reason = Some(reason.to_owned());
        }
        match order {
            Order::Down => node.fall(),
            Order::Drain => node.put("DRAIN"),
            Order::PowerDown | Order::PowerDownForce if node.has("POWERING_DOWN") => {}
            Order::PowerDown => {
                if node.is_down() {
                    node.clear(&["POWERING_UP"]);
                    if !ways.new_slurm {
                        node.clear(&["POWERED_DOWN"]);
                    }
                }
                node.put("POWER_DOWN");
            }
            Order::PowerDownForce => {
                if node.has_job() {
                    "IDLE".clone_into(&mut node.base);
                    // The epilog must end on the node, and nobody is there to run it.
                    if !answers {
                        node.put("COMPLETING");
                    }
                }
                node.clear(&["POWERING_UP", "POWER_UP"]);
                node.put("POWER_DOWN");
            }
            Order::Resume if node.has("POWERING_DOWN") => {
                node.clear(&["POWERING_DOWN", "POWER_DOWN"]);
                node.put("POWERED_DOWN");
            }
            Order::Resume => {
                if node.is_down() || node.has("DRAIN") {
                    node.clear(&["DRAIN", "INVALID_REG"]);
                    node.reason = None;
                    if node.is_down() {
                        "IDLE".clone_into(&mut node.base);
                    }
                }
            }
            Order::ResetAddress => node.addr.clone_from(&node.name),
        }
    }

    fn reserve(&mut self, order: &ReservationOrder) {
        match order {
            ReservationOrder::Create { name, nodes } | ReservationOrder::Update { name, nodes } => {
                self.reservations.retain(|it| it.name != *name);
                self.reservations.push(Reservation { name: name.clone(), nodes: nodes.clone() });
            }
            ReservationOrder::Delete { name } => self.reservations.retain(|it| it.name != *name),
        }
    }
}

impl Node {
    /// Down: what ran is requeued.
    pub(super) fn fall(&mut self) {
        "DOWN".clone_into(&mut self.base);
        self.clear(&["COMPLETING", "POWER_UP"]);
    }
}
