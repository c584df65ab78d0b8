//! What each node of ours needs when the fleet stops or starts: Slurm's states in, orders out. Asked again and again until there are
//! none; each order may be given twice.
//!
//! Ways to take a node off that end in `idle~` on every version (slurm-facts E, I; docs/slurm-notes.md):
//! - nothing runs on it: `power_down_force`;
//! - a job runs or ends on it, or it powers up: `down`, which requeues the job at once, then `power_down`. With `power_down_force` alone a
//!   job's end is waited for, which slurmd has to tell, and its machine is gone: the node stays COMPLETING until SlurmdTimeout (seen on
//!   22.05.8); and a node that powers up may stay so for the whole ResumeTimeout (Z01).

use std::collections::{BTreeMap, BTreeSet};

use super::held;
use crate::model::cluster::{Partition, PartitionState};
use crate::model::node::{Base, SlurmNode, State};
use crate::plan::reasons;
use crate::plan::reconcile::state::{has_job, is_off, is_powering_down, is_rebooting};

/// A node of ours as it was found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) node: &'a SlurmNode,
    /// An instance stands behind it or is being launched for it; also when that is not known.
    pub(crate) is_backed: bool,
}

/// Names of nodes by what is to be done with them; in the order in which it is to be done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Orders {
    /// `state=down`, then (after their instances are condemned) `state=power_down`.
    pub(crate) down: Vec<String>,
    /// `state=power_down_force`
    pub(crate) force: Vec<String>,
    /// `state=power_down`
    pub(crate) power_down: Vec<String>,
    /// `state=resume`: ends DOWN, DRAIN and POWERING_DOWN.
    pub(crate) resume: Vec<String>,
    /// NodeAddr and NodeHostName become the node's name.
    pub(crate) reset: Vec<String>,
    /// Something was asked of Slurm for them and takes its time.
    pub(crate) waiting: Vec<String>,
    /// `state=drain`, with the Reason among `reasons`: as a person had them before a stop took them off.
    pub(crate) drain: Vec<String>,
    /// Drained or set down by a person, for a reason of their own: left so.
    pub(crate) left: Vec<String>,
    /// What these nodes are told as Reason instead of the transition's own.
    pub(crate) reasons: BTreeMap<String, String>,
}

impl Orders {
    /// Is there something to tell Slurm or to wait for?
    pub(crate) fn is_settled(&self) -> bool {
        self.all_open().next().is_none()
    }

    /// Nodes that are not yet as they are to be.
    pub(crate) fn all_open(&self) -> impl Iterator<Item = &String> {
        [&self.down, &self.force, &self.power_down, &self.resume, &self.drain, &self.reset, &self.waiting].into_iter().flatten()
    }

    /// Every node that is taken away from its instance, if it has one.
    pub(crate) fn freed(&self) -> BTreeSet<String> {
        [&self.down, &self.force, &self.power_down, &self.resume, &self.drain].into_iter().flatten().cloned().collect()
    }

    /// These nodes, those with the same Reason together; `None`: the transition's own.
    pub(crate) fn by_reason<'o>(&'o self, nodes: &[String]) -> BTreeMap<Option<&'o str>, Vec<String>> {
        let mut found: BTreeMap<Option<&str>, Vec<String>> = BTreeMap::new();
        for node in nodes {
            found.entry(self.reasons.get(node).map(String::as_str)).or_default().push(node.clone());
        }
        found
    }

    /// Without the nodes of which `is_pending` says that they were told the same a moment ago: those wait.
    pub(crate) fn hold_back(&mut self, mut is_pending: impl FnMut(&str, What) -> bool) {
        let lists = [
            (&mut self.down, What::Down),
            (&mut self.force, What::Force),
            (&mut self.power_down, What::PowerDown),
            (&mut self.resume, What::Resume),
            (&mut self.drain, What::Drain),
            (&mut self.reset, What::Reset),
        ];
        for (list, what) in lists {
            let (held, now): (Vec<String>, Vec<String>) =
                std::mem::take(list).into_iter().partition(|node| is_pending(node, what));
            *list = now;
            self.waiting.extend(held);
        }
    }
}

/// One kind of order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum What {
    Down,
    Force,
    PowerDown,
    Resume,
    Drain,
    Reset,
}

impl What {
    /// For messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Down => "state=down",
            Self::Force => "state=power_down_force",
            Self::PowerDown => "state=power_down",
            Self::Resume => "state=resume",
            Self::Drain => "state=drain",
            Self::Reset => "own address",
        }
    }
}

/// Everything off.
pub(crate) fn for_stop<'a>(nodes: impl IntoIterator<Item = &'a SlurmNode>) -> Orders {
    let mut orders = Orders::default();
    for node in nodes.into_iter().filter(|node| is_known(&node.state)) {
        let state = &node.state;
        let list = if let Some(said) = to_be_drained_again(node) {
            orders.reasons.insert(node.name.clone(), said.to_owned());
            &mut orders.drain
        } else if is_powering_down(state) {
            &mut orders.waiting
        } else if is_at_rest(state) && !is_to_be_drained(node) {
            if has_foreign_address(node) { &mut orders.reset } else { continue }
        } else {
            take_off(&mut orders, node)
        };
        list.push(node.name.clone());
    }
    orders
}

/// Every node of these inactive partitions fit for the next job: what a stop left half done, or what had gone wrong before it.
pub(crate) fn for_start<'a>(nodes: impl IntoIterator<Item = Seen<'a>>) -> Orders {
    let mut orders = Orders::default();
    for Seen { node, is_backed } in nodes.into_iter().filter(|seen| is_known(&seen.node.state)) {
        let state = &node.state;
        let is_off_somehow = state.is_powered_down() && !has_job(state) && !state.is_powering_up() && !state.has("POWER_UP");
        let list = if let Some(said) = to_be_drained_again(node) {
            orders.reasons.insert(node.name.clone(), said.to_owned());
            &mut orders.drain
        } else if is_held(node) {
            &mut orders.left
        } else if is_left_by_a_stop(node) {
            take_off(&mut orders, node)
        } else if is_powering_down(state) {
            // Its instance goes; it need not wait for SuspendTimeout (Z02).
            &mut orders.resume
        } else if is_off_somehow && state.is_down() {
            // `resume` would leave NOT_RESPONDING (F02), and a request that stands there already (M05).
            let power_down = state.has("NOT_RESPONDING") || state.power_down_requested();
            if power_down { &mut orders.power_down } else { &mut orders.resume }
        } else if is_off_somehow && state.has("DRAIN") {
            &mut orders.resume
        } else if is_off_somehow && state.has("NOT_RESPONDING") {
            &mut orders.force
        } else if is_off_somehow {
            if has_foreign_address(node) { &mut orders.reset } else { continue }
        } else if is_backed && (is_rebooting(state) || !state.is_down()) || state.has("POWER_UP") {
            // Up, or about to be.
            continue;
        } else {
            take_off(&mut orders, node)
        };
        list.push(node.name.clone());
    }
    orders
}

/// The way off for a node that is not off and not on its way. One that a person drained or set down is told so as its Reason.
fn take_off<'o>(orders: &'o mut Orders, node: &SlurmNode) -> &'o mut Vec<String> {
    let state = &node.state;
    let marked = held::marked(node);
    let is_marked = marked.as_deref() == node.reason.as_deref();
    if let Some(marked) = &marked {
        orders.reasons.insert(node.name.clone(), marked.clone());
    }
    match (state.is_down(), state.power_down_requested()) {
        (true, true) if marked.is_none() || is_marked => &mut orders.waiting,
        (true, _) => &mut orders.power_down,
        (false, _) if has_job(state) || state.is_powering_up() => &mut orders.down,
        (false, _) => &mut orders.force,
    }
}

/// Off, set down by a person, and not drained with their words yet: DOWN alone ends with any power-down, and clustermgtd ends it. Where
/// `idle_on_node_suspend` is not set DOWN outlives the power-down; DRAIN beside it is what was to come of this.
fn is_to_be_drained(node: &SlurmNode) -> bool {
    let is_done = node.state.has("DRAIN") && held::what_was_said(node.reason.as_deref()).is_none();
    node.state.is_down() && !is_done && held::marked(node).is_some()
}

/// What a person said of a node that Slurm is powering down, or has, and that was drained or down before. Not sooner: DRAIN goes when
/// SuspendProgram is called, and stays when it is set after that.
pub(crate) fn to_be_drained_again(node: &SlurmNode) -> Option<&str> {
    let state = &node.state;
    // Newer versions show so what was asked for of a node that was down and off.
    let is_asked_for = state.is_down() && state.power_down_requested();
    let is_begun = is_powering_down(state) || (is_at_rest(state) && !is_asked_for);
    held::what_was_said(node.reason.as_deref()).filter(|_| is_begun)
}

/// A stop ended between its order to take a drained node off and the drain that was to follow: no job may come there before that.
pub(crate) fn is_left_by_a_stop(node: &SlurmNode) -> bool {
    let (state, said) = (&node.state, held::what_was_said(node.reason.as_deref()));
    said.is_some() && (state.has("DRAIN") || state.is_down() || is_powering_down(state) || is_at_rest(state))
}

/// Nodes of other kinds are never updated.
fn is_known(state: &State) -> bool {
    !matches!(state.base, Base::Future | Base::Unknown | Base::Other(_))
}

/// Off, whether for good or as a failure left it: a stop asks no more.
fn is_at_rest(state: &State) -> bool {
    is_off(state) || (state.is_down() && state.is_powered_down() && !state.is_powering_up())
}

/// Also the address that a failed launch leaves on Slurm 22.05 (RFC 5737).
fn has_foreign_address(node: &SlurmNode) -> bool {
    node.addr != node.name || node.hostname != node.name
}

/// Drained or set down by a person. A reason without either flag is what is left of an earlier time.
fn is_held(node: &SlurmNode) -> bool {
    let is_held = node.state.has("DRAIN") || node.state.is_down();
    is_held && !is_rebooting(&node.state) && reasons::is_a_persons(node.reason.as_deref())
}

/// The partitions that are ours to change: those that are named, else those that hold nodes of ours and no others (M21). Each node comes
/// with whether it is ours.
pub(crate) fn partitions<'a>(named: &[String], nodes: impl IntoIterator<Item = (&'a SlurmNode, bool)>) -> BTreeSet<String> {
    if !named.is_empty() {
        return named.iter().cloned().collect();
    }
    let mut only_ours: BTreeMap<&str, bool> = BTreeMap::new();
    for (node, is_ours) in nodes {
        for partition in &node.partitions {
            *only_ours.entry(partition).or_insert(true) &= is_ours;
        }
    }
    only_ours.into_iter().filter(|(_, only_ours)| *only_ours).map(|(name, _)| name.to_owned()).collect()
}

/// Is the node in inactive ones of these partitions, and in no other of them?
pub(crate) fn is_inactive(node: &SlurmNode, partitions: &[Partition]) -> bool {
    let mut states = partitions.iter().filter(|partition| node.partitions.contains(&partition.name)).map(|found| found.state);
    let mut any = false;
    states.all(|state| {
        any = true;
        state == PartitionState::Inactive
    }) && any
}
