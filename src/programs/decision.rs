//! A scaling decision of a run and what is out for it: answers go in, what is to be written and launched next comes out.

use std::collections::{BTreeMap, BTreeSet};

use super::commit::Ended;
use super::launching::{End, Outcome};
use crate::model::failure::Failure;
use crate::model::mapping::Mapping;
use crate::plan::scaling::{Answer, Order, Round, Scaling};

/// An order of one of the run's decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OrderId {
    /// Its decision, by place.
    pub(crate) decision: usize,
    pub(crate) order: usize,
}

/// A scaling decision that is being carried out.
#[derive(Debug)]
pub(crate) struct Decision {
    scaling: Scaling,
    /// Orders whose answer is out.
    awaited: usize,
    /// Orders that are answered: instances in the pool may still come from them.
    pub(super) ended: BTreeMap<usize, Ended>,
    /// Its nodes that have neither an instance nor a failure yet.
    open: BTreeSet<String>,
}

impl Decision {
    /// `nodes` are those that `scaling` decides about, `awaited` its orders that are out.
    pub(super) fn new(scaling: Scaling, nodes: BTreeSet<String>, awaited: usize) -> Self {
        Self { scaling, awaited, ended: BTreeMap::new(), open: nodes }
    }

    /// Nodes that this run does not own any more (suspended, taken over): nothing more is launched for them, and nobody waits for them.
    pub(super) fn let_go(&mut self, mapping: &Mapping, is_ours: impl Fn(&Mapping, &str) -> bool) {
        let lost: Vec<String> = self.open.iter().filter(|node| !is_ours(mapping, node)).cloned().collect();
        for node in lost {
            self.scaling.cancel(&node);
            self.open.remove(&node);
        }
    }

    /// Takes the answer to an order.
    pub(super) fn record(&mut self, order: usize, outcome: Outcome, now: crate::model::time::Timestamp) {
        self.awaited = self.awaited.saturating_sub(1);
        let sent = outcome.work.sent.unwrap_or(now);
        self.ended.insert(order, Ended { batch: outcome.work.batch, sent });
        let answer = match outcome.end {
            End::Answered { instances, short } => Answer { instances, failure: short },
            End::Failed(failure) | End::Unknown(failure) => Answer { instances: Vec::new(), failure: Some(failure) },
        };
        self.scaling.record(order, answer);
    }

    /// What is to be written now. `send` records a further order and sends it; its `Err` is the order's answer.
    pub(super) fn decide(&mut self, mut send: impl FnMut(&Order) -> Result<(), Failure>, time_is_up: Failure) -> Round {
        let mut all = Round::default();
        loop {
            let round = self.scaling.next_round();
            if round.is_empty() {
                break;
            }
            for order in self.take(round, &mut all) {
                match send(&order) {
                    Ok(()) => self.awaited += 1,
                    Err(failure) => self.scaling.record(order.id, Answer { instances: Vec::new(), failure: Some(failure) }),
                }
            }
        }
        if self.awaited == 0 && !self.scaling.is_finished() {
            let round = self.scaling.give_up(time_is_up);
            self.take(round, &mut all);
        }
        all
    }

    fn take(&mut self, round: Round, all: &mut Round) -> Vec<Order> {
        for node in round.assign.iter().map(|assigned| &assigned.node).chain(round.fail.iter().map(|(node, _)| node)) {
            self.open.remove(node);
        }
        all.assign.extend(round.assign);
        all.fail.extend(round.fail);
        all.release.extend(round.release);
        round.launch
    }
}
