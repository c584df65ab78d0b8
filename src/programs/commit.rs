//! Ended batches into the mapping, under the lock, compare and set: a node gets its instance only if this run's claim still holds
//! and the instance passes Slurm's boot gate; every other instance is condemned in the same write.

use std::collections::{BTreeMap, BTreeSet};

use super::launching::{End, Outcome};
use super::recovery;
use super::telling::Failed;
use crate::model::failure::{ErrorClass, Failure, codes};
use crate::model::instance::Instance;
use crate::model::mapping::{Mapping, NodeEntry, NodeState};
use crate::model::time::Timestamp;
use crate::plan::assign::pair;
use crate::plan::claim::passes_boot_gate;
use crate::plan::launch::Batch;
use crate::plan::scaling::Round;

/// What one locked write of ended batches gave.
#[derive(Default)]
pub(super) struct Committed {
    pub(super) publish: Vec<(String, Instance)>,
    pub(super) failed: Vec<Failed>,
    /// Nodes that need another launch, with the batch they were in: Slurm asked for them again meanwhile, or a repeated request gave
    /// instances that are in use or condemned already.
    pub(super) again: Vec<(Batch, Vec<String>)>,
    /// The same, of the scaling decisions: they are decided about anew, so that a unit stays one.
    pub(super) units_again: Vec<String>,
    /// Claims lost to somebody else: nothing is told to Slurm about them.
    pub(super) lost: Vec<(String, &'static str)>,
    pub(super) condemned: bool,
}

/// A batch that an order of the scaling decision became, once it has ended.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    pub(super) batch: Batch,
    /// When its request first went out.
    pub(super) sent: Timestamp,
}

/// Whose write it is, and when.
#[derive(Clone, Copy)]
pub(super) struct Writer<'a> {
    pub(super) launch: &'a str,
    pub(super) now: Timestamp,
    pub(super) may_launch: bool,
}

impl Writer<'_> {
    fn owns(&self, entry: &NodeEntry) -> bool {
        entry.state == NodeState::Launching && entry.launch == self.launch
    }

    pub(super) fn fail(&self, mapping: &mut Mapping, node: &str, group: Option<&str>, failure: &Failure, step: &mut Committed) {
        let Some(entry) = mapping.nodes.get(node).filter(|entry| self.owns(entry)) else {
            step.lost.push((node.to_owned(), "suspended or taken over meanwhile"));
            return;
        };
        let group = group.unwrap_or(&entry.group).to_owned();
        mapping.nodes.remove(node);
        step.failed.push(Failed { node: node.to_owned(), group: Some(group), failure: failure.clone() });
    }

    fn release(
        &self,
        mapping: &mut Mapping,
        instance: &Instance,
        node: Option<&str>,
        sent: Timestamp,
        why: &str,
        step: &mut Committed,
    ) {
        recovery::condemn(mapping, &instance.id, node, self.launch, Some(sent), self.now, why);
        step.condemned = true;
    }

    /// The node's instance goes into the mapping; false = the node needs another launch.
    fn assign(&self, mapping: &mut Mapping, node: &str, instance: &Instance, ended: &Ended, step: &mut Committed) -> bool {
        let Ended { batch, sent } = ended;
        match mapping.nodes.get(node) {
            Some(entry) if self.owns(entry) && passes_boot_gate(*sent, entry.requested) => {
                let entry = recovery::running(&batch.request.group, self.launch, instance, entry.requested, *sent, self.now);
                mapping.nodes.insert(node.to_owned(), entry);
                step.publish.push((node.to_owned(), instance.clone()));
                true
            }
            Some(entry) if self.owns(entry) => {
                self.release(mapping, instance, Some(node), *sent, "Slurm asked for the node again after it was launched", step);
                false
            }
            _ => {
                self.release(mapping, instance, Some(node), *sent, "its node was suspended or taken over meanwhile", step);
                step.lost.push((node.to_owned(), "suspended or taken over meanwhile"));
                true
            }
        }
    }

    /// Nodes for which what was launched does not serve.
    fn again(&self, mapping: &mut Mapping, batch: &Batch, nodes: Vec<String>, step: &mut Committed) {
        if nodes.is_empty() {
            return;
        }
        if self.may_launch {
            step.again.push((batch.clone(), nodes));
            return;
        }
        let failure = Failure {
            code: codes::DEADLINE.to_owned(),
            class: ErrorClass::Other,
            sentence: "what was launched for the node cannot serve it and no time was left to launch anew".to_owned(),
            request_id: None,
        };
        for node in nodes {
            self.fail(mapping, &node, Some(&batch.request.group), &failure, step);
        }
    }

    /// Commits what the scaling decision says of its orders; `ended` has each order that an instance came from.
    pub(super) fn commit_round(
        &self,
        mapping: &mut Mapping,
        round: &Round,
        ended: &BTreeMap<usize, Ended>,
        step: &mut Committed,
    ) {
        let sent = |order: &usize| ended.get(order).map_or(self.now, |ended| ended.sent);
        for (node, failure) in &round.fail {
            self.fail(mapping, node, None, failure, step);
        }
        for (instance, order) in &round.release {
            self.release(mapping, instance, None, sent(order), "no node needs it", step);
        }
        for assigned in &round.assign {
            let Some(of) = ended.get(&assigned.order) else { continue };
            if self.assign(mapping, &assigned.node, &assigned.instance, of, step) {
                continue;
            }
            if self.may_launch {
                step.units_again.push(assigned.node.clone());
            } else {
                self.again(mapping, &of.batch, vec![assigned.node.clone()], step);
            }
        }
    }

    /// A node of which somebody who must know it did not want to hear: failed, its instance condemned.
    pub(super) fn take_back(
        &self,
        mapping: &mut Mapping,
        node: &str,
        instance: &Instance,
        failure: &Failure,
        step: &mut Committed,
    ) {
        if mapping.nodes.get(node).is_some_and(|entry| entry.instance_id.as_ref() == Some(&instance.id)) {
            let entry = recovery::take_down(mapping, node, self.now, "the node could not be told");
            let group = entry.map(|entry| entry.group);
            step.failed.push(Failed { node: node.to_owned(), group, failure: failure.clone() });
            step.condemned = true;
        }
    }

    /// Commits one batch that stands for itself: a repeated request of a dead run, or a launch anew.
    pub(super) fn commit_one(&self, mapping: &mut Mapping, outcome: &Outcome, step: &mut Committed) {
        let Outcome { work, end, .. } = outcome;
        let group = &work.batch.request.group;
        let (instances, short) = match end {
            End::Failed(failure) | End::Unknown(failure) => {
                for node in &work.batch.nodes {
                    self.fail(mapping, node, Some(group), failure, step);
                }
                return;
            }
            End::Answered { instances, short } => (instances, short),
        };
        let ended = Ended { batch: work.batch.clone(), sent: work.sent.unwrap_or(self.now) };
        // What somebody condemned meanwhile is on its way out. And a request that a dead run sent first may answer with instances
        // which that run already gave to nodes: they are not given twice, and not surplus either.
        let backing: BTreeSet<&str> = mapping.nodes.values().filter_map(|entry| entry.instance_id.as_deref()).collect();
        let usable: Vec<Instance> = instances
            .iter()
            .filter(|instance| !mapping.condemned.contains_key(&instance.id) && !backing.contains(instance.id.as_str()))
            .cloned()
            .collect();
        let spent = usable.len() < instances.len();
        let pairing = pair(&work.batch.nodes, usable, work.batch.request.strategy);
        let failure = short.clone().unwrap_or_else(|| Failure {
            code: codes::LIMITED.to_owned(),
            class: ErrorClass::Capacity,
            sentence: "EC2 launched fewer usable instances than asked".to_owned(),
            request_id: None,
        });
        let mut again = Vec::new();
        for node in &pairing.unbacked {
            if spent && mapping.nodes.get(node).is_some_and(|entry| self.owns(entry)) {
                again.push(node.clone());
            } else {
                self.fail(mapping, node, Some(group), &failure, step);
            }
        }
        for instance in &pairing.surplus {
            self.release(mapping, instance, None, ended.sent, "no node needs it", step);
        }
        for assignment in &pairing.assigned {
            if !self.assign(mapping, &assignment.node, &assignment.instance, &ended, step) {
                again.push(assignment.node.clone());
            }
        }
        self.again(mapping, &ended.batch, again, step);
    }
}
