//! What is launched for which job, and who gets what comes of it.
//!
//! In: the nodes of one call with their groups, the jobs of the resume file, the strategy, and one answer for each order. Out:
//! rounds of orders, assignments, failures and releases. It never looks at a clock and asks nobody; the order in which answers
//! arrive changes when things happen, not what becomes of a node.
//!
//! The rules are ParallelCluster's (aws-facts C.3 to C.5). What they speak of:
//! - *alone*: an order whose nodes are each for itself (single-node jobs, nodes of no job, a best-effort call) or that is a unit
//!   by itself (`ScaleBy::Batch`). It is judged as soon as it is answered.
//! - *unit*: the nodes of a job, or of the whole call. A *whole* unit gets all of its nodes or none.
//! - *lane*: units that share groups, one after the other in the file's order. Lanes share nothing and go on side by side.
//! - *inflow*: orders for all units of a lane at once. What they bring lies in the group's *pool*, and the units take from there.
//! - *pass*: orders for what one unit still needs beyond the pool.
//!
//! Where we leave the package's ways: orders of a pass go out together although the package stops at the first short one (those
//! behind it are judged as never tried, what they bring goes to the pool); a unit takes from the pool as soon as what it needs is
//! there; EC2's own code is kept wherever there is one; a node of no job is launched; a failure is final only when no later unit
//! can back the node.
//!
//! A node that the run loses on its way (*cancelled*) is judged as if it had never been asked for.

mod alone;
mod build;
mod cancel;
#[cfg(test)]
mod cancelled;
#[cfg(test)]
mod codes_told;
mod judge;
mod lane;
#[cfg(test)]
mod package;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod simulated;
mod state;
#[cfg(test)]
mod table;
#[cfg(test)]
mod tests;
mod why;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::failure::{Failure, codes};
use crate::model::instance::Instance;
use crate::model::policy::{ScaleBy, Strategy};
use crate::model::recipe::Group;
use lane::Lane;
use state::{Alone, Fate, Got, GroupState, NodeState, OrderState, Pooled, Purpose, Shortage};

/// What is asked for.
#[derive(Debug, Clone)]
pub(crate) struct Request<'a> {
    /// The nodes to launch, in the call's order. A name that comes twice counts once.
    pub(crate) nodes: Vec<Wanted<'a>>,
    /// Id and nodes of each job, in the resume file's order. `None` = no usable resume file.
    pub(crate) jobs: Option<Vec<(u64, Vec<String>)>>,
    pub(crate) scale_by: ScaleBy,
    /// Of units that reach across groups; with `ScaleBy::Batch` the group's own counts.
    pub(crate) strategy: Strategy,
}

/// A node to launch. Its group says how many nodes go into one order.
#[derive(Debug, Clone)]
pub(crate) struct Wanted<'a> {
    pub(crate) node: String,
    pub(crate) group: &'a Group,
    /// It is known to fail (its group is in back-off): nothing is ordered for it, and a unit that must be whole fails with it,
    /// without a launch. `group` is of no account then: for a node outside every group, any will do. A node that shall not drag
    /// others along is left out of the request.
    pub(crate) refused: Option<Failure>,
}

/// One launch to be made: goes out at once, together with every other that is outstanding.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Order {
    pub(crate) id: usize,
    pub(crate) group: String,
    /// The nodes that the instances are meant for, in order; as many instances are asked for.
    pub(crate) nodes: Vec<String>,
    /// `AllOrNothing`: EC2 is asked for all or none. `BestEffort`: for at least one.
    pub(crate) strategy: Strategy,
    /// The jobs that wait for these nodes, in the file's order.
    pub(crate) jobs: Vec<u64>,
}

/// What became of an order.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Answer {
    /// All instances that exist because of it. One that is not usable or has no private address counts as missing: it goes.
    pub(crate) instances: Vec<Instance>,
    /// Why there are fewer than asked. `None` (or the catch-all code) where EC2 gave no code.
    pub(crate) failure: Option<Failure>,
}

/// An instance for a node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Assigned {
    pub(crate) node: String,
    pub(crate) instance: Instance,
    /// The order that the instance came from.
    pub(crate) order: usize,
}

/// What can be done now. The parts do not depend on each other.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Round {
    pub(crate) launch: Vec<Order>,
    pub(crate) assign: Vec<Assigned>,
    /// Nodes that nothing can back any more.
    pub(crate) fail: Vec<(String, Failure)>,
    /// Instances that no node gets, each with the order that it came from.
    pub(crate) release: Vec<(Instance, usize)>,
}

impl Round {
    pub(crate) fn is_empty(&self) -> bool {
        self.launch.is_empty() && self.assign.is_empty() && self.fail.is_empty() && self.release.is_empty()
    }
}

/// The decision of one run, between its rounds.
#[derive(Debug)]
pub(crate) struct Scaling {
    /// In the order in which the call names them first.
    groups: Vec<GroupState>,
    nodes: Vec<NodeState>,
    /// The place of each node by its name.
    places: BTreeMap<String, usize>,
    /// Ids of the jobs, in the file's order.
    jobs: Vec<u64>,
    /// By order id.
    orders: Vec<OrderState>,
    lanes: Vec<Lane>,
    /// Ordered in the first round.
    alone: Option<Alone>,
    /// Orders of theirs that are answered and not judged.
    answered: Vec<usize>,
    /// Lanes to be looked at again.
    ready: BTreeSet<usize>,
    lanes_left: usize,
    outstanding: usize,
    /// Instances that are neither assigned nor released.
    held: usize,
    /// Ids of all instances so far: none is given twice.
    seen: BTreeSet<String>,
    /// What the next round is made of.
    round: Round,
    given_up: Option<Arc<Failure>>,
    /// With `ScaleBy::Batch` an answer without instances and without a code keeps the catch-all code.
    by_batch: bool,
}

impl Scaling {
    /// Begins; nothing is decided before the first [`Self::next_round`].
    pub(crate) fn new(request: Request<'_>) -> Self {
        build::build(request)
    }

    /// What can be done now: empty while answers are awaited and when everything is done.
    pub(crate) fn next_round(&mut self) -> Round {
        if let Some(alone) = self.alone.take() {
            self.order_alone(&alone);
            self.fail_hopeless();
        }
        for order in std::mem::take(&mut self.answered) {
            self.judge_alone(order);
        }
        while let Some(lane) = self.ready.pop_first() {
            self.advance(lane);
        }
        std::mem::take(&mut self.round)
    }

    /// Takes the answer to an order. What comes for an order that was given up, or answered before, is released.
    pub(crate) fn record(&mut self, order: usize, answer: Answer) {
        let mut instances = Vec::with_capacity(answer.instances.len());
        let open = self.orders.get(order).is_some_and(|state| state.answer.is_none());
        for instance in answer.instances {
            if !self.seen.insert(instance.id.clone()) {
                continue;
            }
            self.held += 1;
            if open && instance.private_ip.is_some() && instance.state.is_usable() {
                instances.push(Pooled { instance, order });
            } else {
                self.release(Pooled { instance, order });
            }
        }
        if !open {
            return;
        }
        // The same answer gives the same pairs, whatever order EC2 lists its instances in (aws-facts A.5).
        instances.sort_by(|a, b| a.instance.id.cmp(&b.instance.id));
        let state = &self.orders[order];
        let short = (instances.len() < state.nodes.len()).then(|| {
            why::short(answer.failure, &self.groups[state.group].name, instances.len(), state.nodes.len(), self.by_batch)
        });
        let given_up = short.as_ref().is_some_and(|failure| failure.code == codes::DEADLINE);
        self.outstanding -= 1;
        self.close(order, Got { instances, short: short.map(Arc::new), given_up });
    }

    /// Nothing is left to do, and no answer is awaited.
    pub(crate) fn is_finished(&self) -> bool {
        let nothing_due = self.alone.is_none() && self.answered.is_empty() && self.ready.is_empty();
        self.lanes_left == 0 && self.outstanding == 0 && nothing_due && self.round.is_empty()
    }

    /// Instances lie here that are neither assigned nor released.
    #[cfg(test)]
    pub(crate) fn holds_instances(&self) -> bool {
        self.held > 0
    }

    /// The time is up: nothing more is launched and no answer awaited. What is there goes to the units that it suffices for, in
    /// their order, the rest is released; a node that stays without an instance fails with `failure` unless it has a failure of
    /// its own. Answers that come later are recorded all the same: what they bring is released in the next round.
    pub(crate) fn give_up(&mut self, failure: Failure) -> Round {
        let failure = Arc::clone(self.given_up.get_or_insert_with(|| Arc::new(failure)));
        for order in 0..self.orders.len() {
            if self.orders[order].answer.is_none() {
                self.outstanding -= 1;
                self.close(order, Got { instances: Vec::new(), short: Some(Arc::clone(&failure)), given_up: true });
            }
        }
        self.next_round()
    }

    /// A new order for `nodes`, which are all of one group. `true` when its answer is awaited.
    fn order(&mut self, nodes: Vec<usize>, strategy: Strategy, purpose: Purpose, job: Option<usize>) -> (usize, bool) {
        let id = self.orders.len();
        let group = nodes.first().map_or(0, |&node| self.nodes[node].group);
        if let Some(failure) = self.given_up.clone() {
            let got = Got { instances: Vec::new(), short: Some(failure), given_up: true };
            self.orders.push(OrderState { group, nodes, purpose, answer: Some(got) });
            return (id, false);
        }
        let jobs = match job {
            Some(job) => vec![self.jobs[job]],
            None => {
                let places: BTreeSet<usize> = nodes.iter().flat_map(|&node| self.nodes[node].jobs.iter().copied()).collect();
                places.into_iter().map(|place| self.jobs[place]).collect()
            }
        };
        self.round.launch.push(Order {
            id,
            group: self.groups[group].name.clone(),
            nodes: nodes.iter().map(|&node| self.nodes[node].name.clone()).collect(),
            strategy,
            jobs,
        });
        self.orders.push(OrderState { group, nodes, purpose, answer: None });
        self.outstanding += 1;
        (id, true)
    }

    /// An order is answered: whoever waits for it is told.
    fn close(&mut self, order: usize, got: Got) {
        let state = &mut self.orders[order];
        state.answer = Some(got);
        match state.purpose {
            Purpose::Alone { .. } => self.answered.push(order),
            Purpose::Inflow { lane } => {
                let group = state.group;
                self.merge(group, self.lanes[lane].whole);
                self.ready.insert(lane);
            }
            Purpose::Pass { lane } => {
                self.lanes[lane].awaited -= 1;
                if self.lanes[lane].awaited == 0 {
                    self.ready.insert(lane);
                }
            }
        }
    }

    fn is_cancelled(&self, node: usize) -> bool {
        self.nodes[node].fate == Fate::Cancelled
    }

    /// It may get an instance.
    fn is_wanting(&self, node: usize) -> bool {
        self.nodes[node].fate == Fate::Open && !self.nodes[node].refused
    }

    fn assign(&mut self, node: usize, Pooled { instance, order }: Pooled) {
        self.held -= 1;
        let state = &mut self.nodes[node];
        state.fate = Fate::Backed;
        self.round.assign.push(Assigned { node: state.name.clone(), instance, order });
    }

    fn release(&mut self, Pooled { instance, order }: Pooled) {
        self.held -= 1;
        self.round.release.push((instance, order));
    }

    /// Remembers why a launch did not bring `node` an instance. EC2's word takes the place of an older one; that the time is up
    /// does not.
    fn blame(&mut self, node: usize, failure: &Arc<Failure>, given_up: bool) {
        if !given_up {
            self.nodes[node].why = None;
        }
        self.blame_last(node, failure);
    }

    /// As [`Self::blame`], where nothing better is known.
    fn blame_last(&mut self, node: usize, failure: &Arc<Failure>) {
        let state = &mut self.nodes[node];
        if std::mem::take(&mut state.held_back) {
            state.why = None;
        }
        state.why.get_or_insert_with(|| Arc::clone(failure));
    }

    /// A unit of the node's is refused for another node. What comes of launches that are out for `node` is told instead, whether
    /// it comes before or after.
    fn hold_back(&mut self, node: usize, failure: &Arc<Failure>) {
        let state = &mut self.nodes[node];
        if state.why.is_none() {
            (state.why, state.held_back) = (Some(Arc::clone(failure)), true);
        }
    }

    /// One chance less: the last one gone, a node that nothing backs has failed.
    fn settle(&mut self, node: usize) {
        let state = &mut self.nodes[node];
        state.chances -= 1;
        if state.chances == 0 && state.fate == Fate::Open {
            state.fate = Fate::Failed;
            let failure = state.why.as_deref().cloned().unwrap_or_else(why::nothing_left);
            self.round.fail.push((state.name.clone(), failure));
        }
    }
}
