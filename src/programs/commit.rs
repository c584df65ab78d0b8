//! An ended batch into the mapping, under the lock, compare and set: a node gets its instance only if this run's claim still holds
//! and the instance passes Slurm's boot gate; every other instance is condemned in the same write.

use std::collections::BTreeSet;

use super::launching::{End, Outcome, Work};
use super::recovery;
use super::telling::Failed;
use crate::model::failure::{ErrorClass, Failure, codes};
use crate::model::instance::Instance;
use crate::model::mapping::{Mapping, NodeEntry, NodeState};
use crate::model::time::Timestamp;
use crate::plan::assign::pair;
use crate::plan::claim::passes_boot_gate;
use crate::plan::launch::Batch;

/// What one locked write of ended batches gave.
#[derive(Default)]
pub(super) struct Committed {
    pub(super) publish: Vec<(String, Instance)>,
    pub(super) failed: Vec<Failed>,
    /// Nodes that need another launch, with the batch they were in: Slurm asked for them again meanwhile, or a repeated request gave
    /// instances that are in use or condemned already.
    pub(super) again: Vec<(Batch, Vec<String>)>,
    pub(super) split: Vec<Work>,
    /// Claims lost to somebody else: nothing is told to Slurm about them.
    pub(super) lost: Vec<(String, &'static str)>,
    pub(super) condemned: bool,
}

/// Commits one batch.
pub(super) fn commit_one(
    mapping: &mut Mapping,
    launch: &str,
    outcome: Outcome,
    now: Timestamp,
    may_launch: bool,
    step: &mut Committed,
) {
    let Outcome { work, end, .. } = outcome;
    let group = &work.batch.request.group;
    let is_ours = |entry: &NodeEntry| entry.state == NodeState::Launching && entry.launch == launch;
    let mut fail = |mapping: &mut Mapping, node: &String, failure: &Failure, lost: &mut Vec<_>| {
        if mapping.nodes.get(node).is_some_and(is_ours) {
            mapping.nodes.remove(node);
            step.failed.push(Failed { node: node.clone(), group: Some(group.clone()), failure: failure.clone(), resting: false });
        } else {
            lost.push((node.clone(), "suspended or taken over meanwhile"));
        }
    };
    let (instances, short) = match end {
        End::Split(parts) => {
            step.split.extend(parts);
            return;
        }
        End::Failed(failure) | End::Unknown(failure) => {
            for node in &work.batch.nodes {
                fail(mapping, node, &failure, &mut step.lost);
            }
            return;
        }
        End::Answered { instances, short } => (instances, short),
    };
    let sent = work.sent.unwrap_or(now);
    // What somebody condemned meanwhile is on its way out. And a request that a dead run sent first may answer with instances which
    // that run already gave to nodes: they are not given twice, and not surplus either.
    let answered = instances.len();
    let backing: BTreeSet<&str> = mapping.nodes.values().filter_map(|entry| entry.instance_id.as_deref()).collect();
    let instances: Vec<Instance> = instances
        .into_iter()
        .filter(|instance| !mapping.condemned.contains_key(&instance.id) && !backing.contains(instance.id.as_str()))
        .collect();
    let spent = instances.len() < answered;
    let pairing = pair(&work.batch.nodes, instances, work.batch.request.strategy);
    let failure = short.unwrap_or_else(|| Failure {
        code: codes::LIMITED.to_owned(),
        class: ErrorClass::Capacity,
        sentence: "EC2 launched fewer usable instances than asked".to_owned(),
        request_id: None,
    });
    let mut again = Vec::new();
    for node in &pairing.unbacked {
        if spent && mapping.nodes.get(node).is_some_and(is_ours) {
            again.push(node.clone());
        } else {
            fail(mapping, node, &failure, &mut step.lost);
        }
    }
    let condemn = |mapping: &mut Mapping, instance: &Instance, node: Option<&str>, why: &str| {
        recovery::condemn(mapping, &instance.id, node, launch, Some(sent), now, why);
    };
    for instance in &pairing.surplus {
        condemn(mapping, instance, None, "no node needs it");
        step.condemned = true;
    }
    for assignment in pairing.assigned {
        let (node, instance) = (assignment.node, assignment.instance);
        match mapping.nodes.get(&node) {
            Some(entry) if is_ours(entry) && passes_boot_gate(sent, entry.requested) => {
                let entry = recovery::running(group, launch, &instance, entry.requested, sent, now);
                mapping.nodes.insert(node.clone(), entry);
                step.publish.push((node, instance));
            }
            Some(entry) if is_ours(entry) => {
                condemn(mapping, &instance, Some(&node), "Slurm asked for the node again after it was launched");
                step.condemned = true;
                again.push(node);
            }
            _ => {
                condemn(mapping, &instance, Some(&node), "its node was suspended or taken over meanwhile");
                step.condemned = true;
                step.lost.push((node, "suspended or taken over meanwhile"));
            }
        }
    }
    if again.is_empty() {
        return;
    }
    if may_launch {
        step.again.push((work.batch.clone(), again));
    } else {
        let failure = Failure {
            code: codes::DEADLINE.to_owned(),
            class: ErrorClass::Other,
            sentence: "what was launched for the node cannot serve it and no time was left to launch anew".to_owned(),
            request_id: None,
        };
        for node in again {
            mapping.nodes.remove(&node);
            step.failed.push(Failed { node, group: Some(group.clone()), failure: failure.clone(), resting: false });
        }
    }
}
