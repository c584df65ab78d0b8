//! Orders whose nodes depend on nothing else: judged as soon as they are answered.

use std::collections::VecDeque;

use super::{Purpose, Scaling};
use crate::model::policy::Strategy;

impl Scaling {
    /// Orders for `nodes` in batches, by group in the order in which the groups come. `lanes_of`: the lanes that
    /// have a node too.
    pub(super) fn order_alone(&mut self, nodes: &[usize], strategy: Option<Strategy>, lanes_of: &[Vec<usize>]) {
        for (group, nodes) in self.by_group(nodes) {
            let strategy = strategy.unwrap_or(self.groups[group].strategy);
            let ask = match strategy {
                Strategy::AllOrNothing => Strategy::AllOrNothing,
                Strategy::BestEffort | Strategy::GreedyAllOrNothing => Strategy::BestEffort,
            };
            let whole = strategy != Strategy::BestEffort;
            for batch in nodes.chunks(self.groups[group].batch_size) {
                let mut lanes: Vec<usize> =
                    batch.iter().flat_map(|&node| lanes_of.get(node).into_iter().flatten().copied()).collect();
                lanes.sort_unstable();
                lanes.dedup();
                for &lane in &lanes {
                    self.lanes[lane].blocked += 1;
                }
                for &node in batch {
                    self.nodes[node].chances += 1;
                }
                self.order(batch.to_vec(), ask, Purpose::Alone { whole, lanes }, None);
            }
        }
    }

    /// Gives each node of the order its instance, if there is one; where the batch must be `whole`, all or none.
    pub(super) fn judge_alone(&mut self, order: usize, whole: bool, lanes: &[usize]) {
        let state = &mut self.orders[order];
        let Some(got) = &mut state.answer else { return };
        let (nodes, short, given_up) = (std::mem::take(&mut state.nodes), got.short.take(), got.given_up);
        let mut instances = VecDeque::from(std::mem::take(&mut got.instances));
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
        for &lane in lanes {
            self.lanes[lane].blocked -= 1;
            if self.lanes[lane].blocked == 0 {
                self.ready.insert(lane);
            }
        }
    }
}
