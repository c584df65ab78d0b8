//! What a unit that must be whole comes to: after its pass, and why where it gets nothing.

use std::sync::Arc;

use super::lane::{Current, Part};
use super::{Got, Pooled, Scaling, why};
use crate::model::failure::Failure;

/// What there is for a part of a unit.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Found {
    /// As many as count: none behind the first short order.
    got: usize,
    /// It lacks instances, and nothing before it does.
    at_fault: bool,
    /// All that it needs is there, whether it counts or not.
    full: bool,
}

impl Found {
    /// Where `there` instances lie ready.
    pub(super) fn of(part: &Part, there: usize) -> Self {
        Self { got: part.need.min(there), at_fault: there < part.need, full: there >= part.need }
    }
}

impl Scaling {
    /// The package tries batch after batch and stops at the first short one. Ours were all sent; those behind it count as not
    /// tried when it comes to the codes. Orders whose nodes were cancelled meanwhile are not short of them.
    pub(super) fn judge_pass(&mut self, lane: usize, current: &mut Current) {
        let mut stopped = false;
        let (mut brought, mut found) = (Vec::new(), Vec::with_capacity(current.parts.len()));
        for part in &mut current.parts {
            let mut instances = std::mem::take(&mut part.taken);
            let (mut counted, mut first_short) = (instances.len(), None);
            for &order in &part.orders {
                let state = &mut self.orders[order];
                let mut nodes = std::mem::take(&mut state.nodes);
                let Some(Got { instances: came, short, given_up }) = &mut state.answer else { continue };
                let (mut came, short, given_up) = (std::mem::take(came), short.take(), *given_up);
                nodes.retain(|&node| !self.is_cancelled(node));
                if first_short.is_none() {
                    counted += came.len().min(nodes.len());
                    first_short = short.filter(|_| came.len() < nodes.len()).map(|failure| (nodes, failure, given_up));
                }
                instances.append(&mut came);
            }
            let full = instances.len() >= part.need;
            let at_fault = !stopped && !full;
            let got = if stopped { 0 } else { counted.min(part.need) };
            if let Some((nodes, failure, given_up)) = first_short.filter(|(_, failure, _)| at_fault && why::has_a_code(failure)) {
                for node in nodes {
                    self.blame(node, &failure, given_up);
                }
            }
            stopped |= at_fault;
            brought.push(instances);
            found.push(Found { got, at_fault, full });
        }
        for (part, mut instances) in current.parts.iter_mut().zip(brought) {
            let spare = instances.split_off(if stopped { 0 } else { part.need });
            self.put_back(part.group, spare);
            if !stopped {
                self.bind(part, instances);
            }
        }
        if stopped {
            self.fail_unit(lane, current, &found);
        }
    }

    /// Back to where they came from: the oldest first.
    fn put_back(&mut self, group: usize, spare: Vec<Pooled>) {
        let pool = &mut self.groups[group].pool;
        for instance in spare.into_iter().rev() {
            pool.push_front(instance);
        }
    }

    /// A unit that is not whole. A node whose own launch failed keeps that failure, unless all that its group needs came after it.
    /// Of the others, those of a group that is short are told so, and the rest that they are dragged along.
    pub(super) fn fail_unit(&mut self, lane: usize, current: &Current, found: &[Found]) {
        for (part, _) in current.parts.iter().zip(found).filter(|(_, found)| found.full) {
            for &node in &part.nodes {
                self.nodes[node].why = None;
            }
        }
        let Self { lanes, nodes, groups, .. } = &*self;
        let launches_more = lanes[lane].launches_more;
        let name = self.unit_name(lane);
        let some = found.iter().any(|found| found.got > 0);
        let blamed = |node: usize| nodes[node].why.as_ref().map(|failure| (node, Arc::clone(failure)));
        let launch_failed = |&(node, ref failure): &(usize, Arc<Failure>)| why::has_a_code(failure) && !nodes[node].held_back;
        let own = |part: &Part| part.nodes.iter().find_map(|&node| blamed(node).filter(launch_failed));
        let mut cause = None;
        let mut failures: Vec<Option<Arc<Failure>>> = Vec::with_capacity(current.parts.len());
        for (part, &Found { got, at_fault, .. }) in current.parts.iter().zip(found) {
            let group = &groups[part.group];
            let lacking = part.nodes.get(got).or(part.nodes.back()).copied().filter(|_| at_fault);
            // A launch for others of the group that failed: what came for these nodes served those.
            let of_group = || {
                let cause = group.cause.as_ref().filter(|_| !launches_more)?;
                lacking.zip(Some(Arc::clone(&cause.failure)))
            };
            let (failure, why) = match (own(part).or_else(of_group), lacking) {
                (Some((node, why)), _) => (Some(why::same_group(&name, &nodes[node].name, &why, some)), Some((node, why))),
                (None, Some(node)) => {
                    let failure = if some { why::part_of(&name, &group.name, got, part.need) } else { why::nothing_left() };
                    (Some(failure.clone()), Some((node, Arc::new(failure))))
                }
                (None, None) => (None, None),
            };
            cause = cause.or(why);
            failures.push(failure.map(Arc::new));
        }
        let dragged = match (&self.given_up, &cause) {
            (Some(failure), _) => Arc::clone(failure),
            (None, Some((node, cause))) => Arc::new(why::dragged_along(&name, &nodes[*node].name, cause, some)),
            (None, None) => Arc::new(why::nothing_left()),
        };
        for (part, failure) in current.parts.iter().zip(failures) {
            let failure = failure.filter(|_| self.given_up.is_none()).unwrap_or_else(|| Arc::clone(&dragged));
            for &node in &part.nodes {
                self.blame_last(node, &failure);
            }
        }
    }

    /// A unit that `refused` holds back: nothing was launched for it.
    pub(super) fn refuse_unit(&mut self, lane: usize, current: &Current, refused: usize) {
        let failure = match (&self.given_up, &self.nodes[refused].why) {
            (Some(failure), _) => Arc::clone(failure),
            (None, Some(cause)) => Arc::new(why::dragged_along(&self.unit_name(lane), &self.nodes[refused].name, cause, false)),
            (None, None) => Arc::new(why::nothing_left()),
        };
        for &node in current.parts.iter().flat_map(|part| &part.nodes) {
            self.hold_back(node, &failure);
        }
    }

    /// Of the unit whose turn it is.
    fn unit_name(&self, lane: usize) -> String {
        let unit = &self.lanes[lane].units[self.lanes[lane].next];
        unit.job.map_or_else(|| "the call".to_owned(), |job| format!("job {}", self.jobs[job]))
    }
}
