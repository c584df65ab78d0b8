//! Nodes that the run does not own any more.

use super::lane::Stage;
use super::{Fate, Scaling};

impl Scaling {
    /// `node` was suspended or taken over: from the next [`Self::next_round`] on nothing is ordered for it, and it is neither
    /// assigned nor failed. Its unit goes on as if it never had the node. Orders that are out stay out; what they bring too much
    /// serves other nodes or is released. Nodes that are not of this run, or have had their say, are left alone.
    pub(crate) fn cancel(&mut self, node: &str) {
        let Some(&node) = self.places.get(node) else { return };
        if self.nodes[node].fate != Fate::Open {
            return;
        }
        self.nodes[node].fate = Fate::Cancelled;
        for (lane_at, place) in std::mem::take(&mut self.nodes[node].units) {
            let lane = &mut self.lanes[lane_at];
            if place < lane.next {
                continue;
            }
            lane.stale = true;
            self.ready.insert(lane_at);
            let unit = &mut lane.units[place];
            let Some(first) = unit.refused.filter(|&first| unit.nodes[first] == node) else { continue };
            let still = |&at: &usize| {
                let state = &self.nodes[unit.nodes[at]];
                state.refused && state.fate == Fate::Open
            };
            unit.refused = (first..unit.nodes.len()).find(still);
            if unit.refused.is_some() || lane.stage == Stage::Waiting {
                continue;
            }
            for &node in &unit.nodes {
                let state = &mut self.nodes[node];
                if state.fate == Fate::Open && !std::mem::replace(&mut state.asked, true) {
                    self.groups[state.group].left_out += 1;
                }
            }
        }
    }
}
