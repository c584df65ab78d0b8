//! Orders whose nodes depend on nothing else: judged as soon as they are answered.

use std::collections::{BTreeSet, VecDeque};

use super::{Alone, Purpose, Scaling};
use crate::model::policy::Strategy;

impl Scaling {
    /// Orders in batches, by group in the order in which the groups come. Lanes that have a node of an order too wait for it.
    pub(super) fn order_alone(&mut self, alone: &Alone) {
        let nodes: Vec<usize> = alone.nodes.iter().copied().filter(|&node| self.is_wanting(node)).collect();
        for (group, nodes) in self.by_group(&nodes) {
            let strategy = alone.strategy.unwrap_or(self.groups[group].strategy);
            let ask = match strategy {
                Strategy::AllOrNothing => Strategy::AllOrNothing,
                Strategy::BestEffort | Strategy::GreedyAllOrNothing => Strategy::BestEffort,
            };
            let whole = strategy != Strategy::BestEffort;
            for batch in nodes.chunks(self.groups[group].batch_size) {
                let units = batch.iter().flat_map(|&node| &self.nodes[node].units);
                let lanes: BTreeSet<usize> = units.map(|&(lane, _)| lane).collect();
                for &lane in &lanes {
                    self.lanes[lane].blocked += 1;
                }
                let lanes = lanes.into_iter().collect();
                let (order, awaited) = self.order(batch.to_vec(), ask, Purpose::Alone { whole, lanes }, None);
                if !awaited {
                    self.answered.push(order);
                }
            }
        }
    }

    /// Gives each node of the order its instance, if there is one; where the batch must be `whole`, all or none.
    pub(super) fn judge_alone(&mut self, order: usize) {
        let state = &mut self.orders[order];
        let (Some(got), Purpose::Alone { whole, lanes }) = (&mut state.answer, &mut state.purpose) else { return };
        let (whole, lanes) = (*whole, std::mem::take(lanes));
        let (mut nodes, short, given_up) = (std::mem::take(&mut state.nodes), got.short.take(), got.given_up);
        let mut instances = VecDeque::from(std::mem::take(&mut got.instances));
        nodes.retain(|&node| !self.is_cancelled(node));
        if whole && instances.len() < nodes.len() {
            for instance in instances.drain(..) {
                self.release(instance);
            }
        }
        for &node in &nodes {
            match (instances.pop_front(), &short) {
                (Some(instance), _) => self.assign(node, instance),
                (None, Some(failure)) => self.blame(node, failure, given_up),
                (None, None) => {}
            }
        }
        for instance in instances {
            self.release(instance);
        }
        for node in nodes {
            self.settle(node);
        }
        for lane in lanes {
            self.lanes[lane].blocked -= 1;
            if self.lanes[lane].blocked == 0 {
                self.ready.insert(lane);
            }
        }
    }
}
