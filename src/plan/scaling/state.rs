//! What [`super::Scaling`] remembers of groups, nodes and orders between the rounds.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::model::failure::Failure;
use crate::model::instance::Instance;
use crate::model::policy::Strategy;

#[derive(Debug)]
pub(super) struct GroupState {
    pub(super) name: String,
    pub(super) batch_size: usize,
    pub(super) strategy: Strategy,
    /// Launched, not yet bound.
    pub(super) pool: VecDeque<Pooled>,
    /// Inflow orders, and how many of them, from the first on, are in the pool.
    pub(super) inflow: Vec<usize>,
    pub(super) merged: usize,
    /// Nodes that the inflow left out, for their unit was refused, and that it would not leave out any more: the node that the unit
    /// was refused for was cancelled. So many more may be ordered.
    pub(super) left_out: usize,
    /// What inflow orders are short of, in the order of the nodes. For units that need not be whole.
    pub(super) short: VecDeque<Shortage>,
    /// Why inflow orders are short of instances, where EC2 said why. For units that must be whole.
    pub(super) cause: Option<Shortage>,
}

/// Instances that did not come.
#[derive(Debug, Clone)]
pub(super) struct Shortage {
    pub(super) count: usize,
    pub(super) failure: Arc<Failure>,
    /// As in [`Got`].
    pub(super) given_up: bool,
}

/// Nodes each for itself, or whose orders are units by themselves.
#[derive(Debug)]
pub(super) struct Alone {
    pub(super) nodes: Vec<usize>,
    /// `None` = that of each group.
    pub(super) strategy: Option<Strategy>,
}

#[derive(Debug)]
pub(super) struct NodeState {
    pub(super) name: String,
    pub(super) group: usize,
    /// Places in `Scaling::jobs`.
    pub(super) jobs: Vec<usize>,
    /// The units that it is in: the lane, and the unit's place there.
    pub(super) units: Vec<(usize, usize)>,
    pub(super) fate: Fate,
    pub(super) refused: bool,
    /// In an inflow order, or counted as left out.
    pub(super) asked: bool,
    /// One of the instances that its group is short of was counted as its own.
    pub(super) counted_short: bool,
    /// Units and orders not yet judged that may still back it.
    pub(super) chances: usize,
    /// The failure it ends with unless something backs it.
    pub(super) why: Option<Arc<Failure>>,
    /// `why` is merely that a unit of its own was refused for another node: anything else takes its place.
    pub(super) held_back: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Open,
    Backed,
    Failed,
    Cancelled,
}

#[derive(Debug, Clone)]
pub(super) struct Pooled {
    pub(super) instance: Instance,
    pub(super) order: usize,
}

#[derive(Debug)]
pub(super) struct OrderState {
    pub(super) group: usize,
    pub(super) nodes: Vec<usize>,
    pub(super) purpose: Purpose,
    pub(super) answer: Option<Got>,
}

#[derive(Debug)]
pub(super) enum Purpose {
    /// `lanes` wait for it, for they have nodes of it too.
    Alone {
        whole: bool,
        lanes: Vec<usize>,
    },
    Inflow {
        lane: usize,
    },
    Pass {
        lane: usize,
    },
}

/// An answer after the unusable instances are taken out.
#[derive(Debug)]
pub(super) struct Got {
    pub(super) instances: Vec<Pooled>,
    /// Set where there are fewer than asked.
    pub(super) short: Option<Arc<Failure>>,
    /// Never sent, or its answer not waited for: the time is up, which says nothing of EC2.
    pub(super) given_up: bool,
}
