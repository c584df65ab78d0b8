//! Units that share groups, one after the other in the file's order (aws-facts C.4, C.5).

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::{Got, Pooled, Purpose, Scaling, why};
use crate::model::failure::Failure;
use crate::model::policy::Strategy;

#[derive(Debug)]
pub(super) struct Lane {
    units: Vec<Unit>,
    groups: Vec<usize>,
    /// The unit whose turn it is.
    next: usize,
    current: Option<Current>,
    /// What EC2 is asked for all units at once; `None` = nothing is.
    inflow: Option<Strategy>,
    /// A unit gets all of its nodes or none.
    pub(super) whole: bool,
    /// What a unit lacks after the inflow is launched for it.
    launches_more: bool,
    /// Orders of other nodes' own that must be judged first, since they may back nodes of this lane.
    pub(super) blocked: usize,
    /// Orders of the current pass that are not answered yet.
    pub(super) awaited: usize,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    Started,
    Done,
}

/// The nodes of a job, or of the call.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) job: Option<usize>,
    pub(super) nodes: Vec<usize>,
    /// Its first node that is known to fail.
    pub(super) refused: Option<usize>,
}

/// The unit whose turn it is: what it still needs.
#[derive(Debug)]
struct Current {
    parts: Vec<Part>,
    /// Nodes that got an instance.
    backed: usize,
    /// Orders are out.
    passing: bool,
}

#[derive(Debug)]
struct Part {
    group: usize,
    nodes: VecDeque<usize>,
    need: usize,
    /// Taken from the pool before the pass, for the first nodes.
    taken: Vec<Pooled>,
    orders: Vec<usize>,
}

/// What a pass brought for one part.
struct Brought {
    instances: Vec<Pooled>,
    /// As many as count: none behind the first short order.
    got: usize,
    /// The first short order is one of this part.
    at_fault: bool,
}

impl Lane {
    pub(super) fn new(units: Vec<Unit>, groups: Vec<usize>, inflow: Option<Strategy>, strategy: Strategy) -> Self {
        let launches_more = strategy == Strategy::AllOrNothing && units.iter().any(|unit| unit.job.is_some());
        Self {
            units,
            groups,
            next: 0,
            current: None,
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
        let Some(strategy) = self.lanes[lane].inflow else { return };
        let ask = match strategy {
            Strategy::AllOrNothing => Strategy::AllOrNothing,
            Strategy::BestEffort | Strategy::GreedyAllOrNothing => Strategy::BestEffort,
        };
        let whole = self.lanes[lane].whole;
        let (mut nodes, mut named) = (Vec::new(), BTreeSet::new());
        for unit in self.lanes[lane].units.iter().filter(|unit| !whole || unit.refused.is_none()) {
            for &node in &unit.nodes {
                let state = &self.nodes[node];
                if !state.backed && !state.refused && named.insert(node) {
                    nodes.push(node);
                }
            }
        }
        for (group, nodes) in self.by_group(&nodes) {
            for batch in nodes.chunks(self.groups[group].batch_size) {
                let (order, _) = self.order(batch.to_vec(), ask, Purpose::Inflow { lane }, None);
                self.groups[group].inflow.push(order);
            }
            self.merge(group, whole);
        }
    }

    /// Puts into the pool what has come for the group, in the order of the orders: an answer waits for those before it.
    pub(super) fn merge(&mut self, group: usize, whole: bool) {
        while let Some(&order) = self.groups[group].inflow.get(self.groups[group].merged) {
            let state = &mut self.orders[order];
            let Some(Got { instances, short, given_up }) = &mut state.answer else { return };
            let (instances, short, given_up) = (std::mem::take(instances), short.take(), *given_up);
            let nodes = std::mem::take(&mut state.nodes);
            let missing = nodes.len().saturating_sub(instances.len());
            let group = &mut self.groups[group];
            group.merged += 1;
            group.pool.extend(instances);
            let Some(failure) = short else { continue };
            if !whole {
                group.short.push_back((missing, failure));
            } else if why::has_a_code(&failure) {
                for node in nodes {
                    self.blame(node, &failure, given_up);
                }
            }
        }
    }

    fn begin_unit(&self, lane: usize) -> Current {
        let unit = &self.lanes[lane].units[self.lanes[lane].next];
        let open: Vec<usize> =
            unit.nodes.iter().copied().filter(|&node| !self.nodes[node].backed && !self.nodes[node].refused).collect();
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
        if unit.refused.is_some() {
            self.fail_unit(lane, current, &[], &[]);
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
                let got: Vec<usize> =
                    current.parts.iter().map(|part| part.need.min(self.groups[part.group].pool.len())).collect();
                let at_fault: Vec<bool> = current.parts.iter().zip(&got).map(|(part, &got)| got < part.need).collect();
                self.fail_unit(lane, current, &got, &at_fault);
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

    /// The package tries batch after batch and stops at the first short one. Ours were all sent; those behind it count as not
    /// tried.
    fn judge_pass(&mut self, lane: usize, current: &mut Current) {
        let mut stopped = false;
        let mut brought = Vec::with_capacity(current.parts.len());
        for part in &mut current.parts {
            let got = if stopped { 0 } else { part.taken.len() };
            let mut part_brought = Brought { got, at_fault: false, instances: std::mem::take(&mut part.taken) };
            for &order in &part.orders {
                let state = &mut self.orders[order];
                let nodes = std::mem::take(&mut state.nodes);
                let Some(Got { instances, short, given_up }) = &mut state.answer else { continue };
                let (mut instances, short, given_up) = (std::mem::take(instances), short.take(), *given_up);
                if !stopped {
                    part_brought.got += instances.len().min(nodes.len());
                }
                part_brought.instances.append(&mut instances);
                let Some(failure) = short.filter(|_| !stopped) else { continue };
                (stopped, part_brought.at_fault) = (true, true);
                if why::has_a_code(&failure) {
                    for node in nodes {
                        self.blame(node, &failure, given_up);
                    }
                }
            }
            brought.push(part_brought);
        }
        let got: Vec<usize> = brought.iter().map(|part| part.got).collect();
        let at_fault: Vec<bool> = brought.iter().map(|part| part.at_fault).collect();
        for (part, Brought { mut instances, .. }) in current.parts.iter_mut().zip(brought) {
            let bound = if stopped { 0 } else { part.need.min(instances.len()) };
            let spare = instances.split_off(bound);
            let pool = &mut self.groups[part.group].pool;
            // Back to where they came from: the oldest first.
            for instance in spare.into_iter().rev() {
                pool.push_front(instance);
            }
            if !stopped {
                self.bind(part, instances);
            }
        }
        if stopped {
            self.fail_unit(lane, current, &got, &at_fault);
        }
    }

    fn bind(&mut self, part: &mut Part, instances: Vec<Pooled>) {
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
                    Some(failure) if why::has_a_code(&failure) => self.blame(node, &failure, self.given_up.is_some()),
                    Some(failure) if current.backed > 0 => self.blame_last(node, &failure),
                    _ => self.blame_last(node, &Arc::new(why::nothing_left())),
                }
            }
        }
        true
    }

    /// Why the next of the instances that the group is short of did not come.
    fn next_shortage(&mut self, group: usize) -> Option<Arc<Failure>> {
        let short = &mut self.groups[group].short;
        let (count, failure) = short.front_mut()?;
        let failure = Arc::clone(failure);
        *count -= 1;
        if *count == 0 {
            short.pop_front();
        }
        Some(failure)
    }

    /// A unit that is not whole. A node whose own launch failed keeps that failure. Of the others, those of a group that is short
    /// are told so, and the rest that they are dragged along.
    fn fail_unit(&mut self, lane: usize, current: &Current, got: &[usize], at_fault: &[bool]) {
        let unit = &self.lanes[lane].units[self.lanes[lane].next];
        let name = unit.job.map_or_else(|| "the call".to_owned(), |job| format!("job {}", self.jobs[job]));
        let some = got.iter().any(|&got| got > 0);
        let blamed = |node: usize| self.nodes[node].why.as_ref().map(|failure| (node, Arc::clone(failure)));
        let own = |part: &Part| part.nodes.iter().find_map(|&node| blamed(node).filter(|(_, failure)| why::has_a_code(failure)));
        let mut cause = unit.refused.and_then(blamed);
        let mut failures: Vec<Option<Arc<Failure>>> = Vec::with_capacity(current.parts.len());
        for (at, part) in current.parts.iter().enumerate() {
            let group = &self.groups[part.group].name;
            let (got, at_fault) = (got.get(at).copied().unwrap_or(0), at_fault.get(at).copied().unwrap_or(false));
            let (failure, why) = match own(part) {
                Some((node, why)) => (Some(why::same_group(&name, &self.nodes[node].name, &why, some)), Some((node, why))),
                None if at_fault => {
                    let failure = if some { why::part_of(&name, group, got, part.need) } else { why::nothing_left() };
                    let lacking = part.nodes.get(got).or(part.nodes.back()).copied();
                    (Some(failure.clone()), lacking.map(|node| (node, Arc::new(failure))))
                }
                None => (None, None),
            };
            cause = cause.or(why);
            failures.push(failure.map(Arc::new));
        }
        let dragged = match (&self.given_up, &cause) {
            (Some(failure), _) => Arc::clone(failure),
            (None, Some((node, cause))) => Arc::new(why::dragged_along(&name, &self.nodes[*node].name, cause, some)),
            (None, None) => Arc::new(why::nothing_left()),
        };
        for (part, failure) in current.parts.iter().zip(failures) {
            let failure = failure.filter(|_| self.given_up.is_none()).unwrap_or_else(|| Arc::clone(&dragged));
            for &node in &part.nodes {
                self.blame_last(node, &failure);
            }
        }
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
