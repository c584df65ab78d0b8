//! Units that share groups, one after the other in the file's order (aws-facts C.4, C.5).

use std::collections::VecDeque;
use std::sync::Arc;

use super::judge::Found;
use super::{Fate, Got, Pooled, Purpose, Scaling, Shortage, why};
use crate::model::failure::Failure;
use crate::model::policy::Strategy;

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) units: Vec<Unit>,
    groups: Vec<usize>,
    /// The unit whose turn it is.
    pub(super) next: usize,
    current: Option<Current>,
    /// The current unit may have lost nodes.
    pub(super) stale: bool,
    /// What EC2 is asked for all units at once; `None` = nothing is.
    inflow: Option<Strategy>,
    /// A unit gets all of its nodes or none.
    pub(super) whole: bool,
    /// What a unit lacks after the inflow is launched for it.
    pub(super) launches_more: bool,
    /// Orders of other nodes' own that must be judged first, since they may back nodes of this lane.
    pub(super) blocked: usize,
    /// Orders of the current pass that are not answered yet.
    pub(super) awaited: usize,
    pub(super) stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Waiting,
    Started,
    Done,
}

/// The nodes of a job, or of the call.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) job: Option<usize>,
    pub(super) nodes: Vec<usize>,
    /// The place in `nodes` of its first node that is known to fail.
    pub(super) refused: Option<usize>,
}

/// The unit whose turn it is: what it still needs.
#[derive(Debug)]
pub(super) struct Current {
    pub(super) parts: Vec<Part>,
    /// Nodes that got an instance.
    backed: usize,
    /// Orders are out.
    passing: bool,
}

#[derive(Debug)]
pub(super) struct Part {
    pub(super) group: usize,
    pub(super) nodes: VecDeque<usize>,
    pub(super) need: usize,
    /// Taken from the pool before the pass, for the first nodes.
    pub(super) taken: Vec<Pooled>,
    pub(super) orders: Vec<usize>,
}

impl Lane {
    pub(super) fn new(units: Vec<Unit>, groups: Vec<usize>, inflow: Option<Strategy>, strategy: Strategy) -> Self {
        let launches_more = strategy == Strategy::AllOrNothing && units.iter().any(|unit| unit.job.is_some());
        Self {
            units,
            groups,
            next: 0,
            current: None,
            stale: false,
            inflow,
            whole: strategy != Strategy::BestEffort,
            launches_more,
            blocked: 0,
            awaited: 0,
            stage: Stage::Waiting,
        }
    }
}

impl Scaling {
    /// Does what can be done now for the units of a lane.
    pub(super) fn advance(&mut self, lane: usize) {
        if self.lanes[lane].blocked > 0 || self.lanes[lane].stage == Stage::Done {
            return;
        }
        if self.lanes[lane].stage == Stage::Waiting {
            self.lanes[lane].stage = Stage::Started;
            self.start_inflow(lane);
        }
        self.prune(lane);
        while self.lanes[lane].next < self.lanes[lane].units.len() {
            let mut current = match self.lanes[lane].current.take() {
                Some(current) => current,
                None => self.begin_unit(lane),
            };
            let ended = match self.lanes[lane].whole {
                true => self.serve_whole(lane, &mut current),
                false => self.serve_part(&mut current),
            };
            if !ended {
                self.lanes[lane].current = Some(current);
                return;
            }
            let unit = self.lanes[lane].next;
            self.lanes[lane].next += 1;
            for node in std::mem::take(&mut self.lanes[lane].units[unit].nodes) {
                self.settle(node);
            }
        }
        self.end_lane(lane);
    }

    /// Orders for all nodes of the lane's units at once.
    fn start_inflow(&mut self, lane: usize) {
        let Lane { units, whole, .. } = &self.lanes[lane];
        let units = units.iter().filter(|unit| !whole || unit.refused.is_none());
        let mut nodes: Vec<usize> = units.flat_map(|unit| unit.nodes.iter().copied()).collect();
        nodes.retain(|&node| self.is_wanting(node) && !std::mem::replace(&mut self.nodes[node].asked, true));
        self.order_inflow(lane, &nodes);
    }

    fn order_inflow(&mut self, lane: usize, nodes: &[usize]) {
        let Lane { inflow: Some(strategy), whole, .. } = self.lanes[lane] else { return };
        let ask = match strategy {
            Strategy::AllOrNothing => Strategy::AllOrNothing,
            Strategy::BestEffort | Strategy::GreedyAllOrNothing => Strategy::BestEffort,
        };
        for (group, nodes) in self.by_group(nodes) {
            for batch in nodes.chunks(self.groups[group].batch_size) {
                let (order, _) = self.order(batch.to_vec(), ask, Purpose::Inflow { lane }, None);
                self.groups[group].inflow.push(order);
            }
            self.merge(group, whole);
        }
    }

    /// What the unit lacks, as far as the inflow left it out.
    fn order_left_out(&mut self, lane: usize, current: &Current) {
        let mut nodes = Vec::new();
        for part in &current.parts {
            let group = &mut self.groups[part.group];
            let count = nodes.len();
            nodes.extend(part.nodes.iter().copied().skip(group.pool.len()).take(group.left_out));
            group.left_out -= nodes.len() - count;
        }
        self.order_inflow(lane, &nodes);
    }

    /// Puts into the pool what has come for the group, in the order of the orders: an answer waits for those before it.
    pub(super) fn merge(&mut self, group: usize, whole: bool) {
        while let Some(&order) = self.groups[group].inflow.get(self.groups[group].merged) {
            let state = &mut self.orders[order];
            let Some(Got { instances, short, given_up }) = &mut state.answer else { return };
            let (instances, short, given_up) = (std::mem::take(instances), short.take(), *given_up);
            let mut nodes = std::mem::take(&mut state.nodes);
            nodes.retain(|&node| !self.is_cancelled(node));
            let count = nodes.len().saturating_sub(instances.len());
            let group = &mut self.groups[group];
            group.merged += 1;
            group.pool.extend(instances);
            let Some(failure) = short.filter(|_| count > 0) else { continue };
            let shortage = Shortage { count, failure: Arc::clone(&failure), given_up };
            if !whole {
                group.short.push_back(shortage);
            } else if why::has_a_code(&failure) {
                if group.cause.as_ref().is_none_or(|cause| cause.given_up && !given_up) {
                    group.cause = Some(shortage);
                }
                for node in nodes {
                    self.blame(node, &failure, given_up);
                }
            }
        }
    }

    /// Takes nodes that were cancelled out of the current unit.
    fn prune(&mut self, lane: usize) {
        let lane = &mut self.lanes[lane];
        if !std::mem::take(&mut lane.stale) {
            return;
        }
        let Some(current) = &mut lane.current else { return };
        for part in &mut current.parts {
            part.nodes.retain(|&node| self.nodes[node].fate != Fate::Cancelled);
            part.need = part.nodes.len();
        }
        if !current.passing {
            current.parts.retain(|part| part.need > 0);
        }
    }

    fn begin_unit(&self, lane: usize) -> Current {
        let unit = &self.lanes[lane].units[self.lanes[lane].next];
        let open: Vec<usize> = unit.nodes.iter().copied().filter(|&node| self.is_wanting(node)).collect();
        let parts = self.by_group(&open).into_iter().map(|(group, nodes)| Part {
            group,
            need: nodes.len(),
            nodes: nodes.into(),
            taken: Vec::new(),
            orders: Vec::new(),
        });
        Current { parts: parts.collect(), backed: 0, passing: false }
    }

    fn is_flowing(&self, group: usize) -> bool {
        self.groups[group].merged < self.groups[group].inflow.len()
    }

    /// All or nothing. `true` when the unit is judged.
    fn serve_whole(&mut self, lane: usize, current: &mut Current) -> bool {
        let unit = &self.lanes[lane].units[self.lanes[lane].next];
        let job = unit.job;
        if let Some(place) = unit.refused {
            self.refuse_unit(lane, current, unit.nodes[place]);
            return true;
        }
        if !current.passing {
            if current.parts.iter().all(|part| self.groups[part.group].pool.len() >= part.need) {
                for part in &mut current.parts {
                    let instances = self.groups[part.group].pool.drain(..part.need).collect();
                    self.bind(part, instances);
                }
                return true;
            }
            if current.parts.iter().any(|part| self.is_flowing(part.group)) {
                return false;
            }
            if !self.lanes[lane].launches_more {
                self.order_left_out(lane, current);
                if current.parts.iter().any(|part| self.is_flowing(part.group)) {
                    return false;
                }
                let in_pool = |part: &Part| Found::of(part, self.groups[part.group].pool.len());
                let found: Vec<Found> = current.parts.iter().map(in_pool).collect();
                self.fail_unit(lane, current, &found);
                return true;
            }
            self.start_pass(lane, current, job);
        }
        if self.lanes[lane].awaited > 0 {
            return false;
        }
        self.judge_pass(lane, current);
        true
    }

    /// Orders for what the unit needs beyond the pool, all at once.
    fn start_pass(&mut self, lane: usize, current: &mut Current, job: Option<usize>) {
        current.passing = true;
        for part in &mut current.parts {
            let group = &mut self.groups[part.group];
            let take = part.need.min(group.pool.len());
            part.taken = group.pool.drain(..take).collect();
            let batch_size = group.batch_size;
            let rest: Vec<usize> = part.nodes.iter().copied().skip(take).collect();
            for batch in rest.chunks(batch_size) {
                let (order, awaited) = self.order(batch.to_vec(), Strategy::AllOrNothing, Purpose::Pass { lane }, job);
                self.lanes[lane].awaited += usize::from(awaited);
                part.orders.push(order);
            }
        }
    }

    pub(super) fn bind(&mut self, part: &mut Part, instances: Vec<Pooled>) {
        for (node, instance) in part.nodes.drain(..).zip(instances) {
            self.assign(node, instance);
        }
    }

    /// As many as there are, the first nodes first, each as soon as its instance is there. `true` when the unit is judged.
    fn serve_part(&mut self, current: &mut Current) -> bool {
        for part in &mut current.parts {
            while !part.nodes.is_empty() {
                let Some(instance) = self.groups[part.group].pool.pop_front() else { break };
                if let Some(node) = part.nodes.pop_front() {
                    self.assign(node, instance);
                    current.backed += 1;
                }
            }
        }
        current.parts.retain(|part| !part.nodes.is_empty());
        if current.parts.iter().any(|part| self.is_flowing(part.group)) {
            return false;
        }
        for part in &current.parts {
            for &node in &part.nodes {
                // In an earlier unit of the lane it got its failure already.
                if std::mem::replace(&mut self.nodes[node].counted_short, true) {
                    continue;
                }
                match self.next_shortage(part.group) {
                    Some((failure, given_up)) if why::has_a_code(&failure) => self.blame(node, &failure, given_up),
                    Some((failure, _)) if current.backed > 0 => self.blame_last(node, &failure),
                    _ => self.blame_last(node, &Arc::new(why::nothing_left())),
                }
            }
        }
        true
    }

    /// Why the next of the instances that the group is short of did not come, and whether the time was up.
    fn next_shortage(&mut self, group: usize) -> Option<(Arc<Failure>, bool)> {
        let short = &mut self.groups[group].short;
        let Shortage { count, failure, given_up } = short.front_mut()?;
        let why = (Arc::clone(failure), *given_up);
        *count -= 1;
        if *count == 0 {
            short.pop_front();
        }
        Some(why)
    }

    /// No unit is left: what lies in the pools goes, once all of it has come.
    fn end_lane(&mut self, lane: usize) {
        let groups = self.lanes[lane].groups.clone();
        if groups.iter().any(|&group| self.is_flowing(group)) {
            return;
        }
        for group in groups {
            for instance in std::mem::take(&mut self.groups[group].pool) {
                self.release(instance);
            }
        }
        self.lanes[lane].stage = Stage::Done;
        self.lanes_left -= 1;
    }
}
