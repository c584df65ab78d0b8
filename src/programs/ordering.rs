//! The nodes that a resume is to launch: their scaling decision, and its first orders as batches.

use std::collections::{BTreeMap, BTreeSet};

use super::claiming::Claimed;
use super::decision::{Decision, OrderId};
use super::launching::Work;
use super::telling::{self, Failed};
use crate::model::failure::{Backoff, ErrorClass, Failure};
use crate::model::policy::{RunPolicy, ScaleBy};
use crate::model::recipe::Group;
use crate::model::time::Timestamp;
use crate::plan::launch::{Ask, LaunchContext, batch};
use crate::plan::scaling::{Request, Round, Scaling, Wanted};

/// The nodes to launch.
pub(super) struct Wishes<'a> {
    scale_by: ScaleBy,
    nodes: Vec<Wanted<'a>>,
    requested_at: BTreeMap<String, Timestamp>,
    /// Told already: here only for the units they belong to.
    outside: BTreeSet<String>,
}

/// What came of them, besides the work.
#[derive(Default)]
pub(super) struct Ordered<'a> {
    /// Node, group, and when Slurm asked: to be claimed.
    pub(super) claims: Vec<(String, String, Timestamp)>,
    /// Nodes whose turn comes later, by group.
    pub(super) later: Vec<(&'a Group, Vec<String>)>,
}

impl<'a> Wishes<'a> {
    pub(super) fn new(scale_by: ScaleBy) -> Self {
        Self { scale_by, nodes: Vec::new(), requested_at: BTreeMap::new(), outside: BTreeSet::new() }
    }

    /// A node of a group in back-off fails; where units are made up of several nodes, its unit must know.
    pub(super) fn add(
        &mut self,
        node: &str,
        group: &'a Group,
        requested: Timestamp,
        backoff: Option<&Backoff>,
        claimed: &mut Claimed,
    ) {
        let refused = match backoff {
            Some(backoff) if self.scale_by == ScaleBy::Batch => {
                let failure = telling::backoff_failure(backoff);
                claimed.failed.push(Failed { node: node.to_owned(), group: Some(group.name.clone()), failure });
                return;
            }
            Some(backoff) => Some(telling::backoff_failure(backoff)),
            None => None,
        };
        self.requested_at.insert(node.to_owned(), requested);
        self.nodes.push(Wanted { node: node.to_owned(), group, refused });
    }

    /// A node outside every group, which `failure` has been given to: its job, where that must be whole, is not begun. `any` group
    /// stands in, since nothing is ordered for the node; it is not to blame, and earns no back-off.
    pub(super) fn add_outside(&mut self, node: &str, any: Option<&'a Group>, failure: Failure) {
        if let Some(group) = any {
            self.outside.insert(node.to_owned());
            self.nodes.push(Wanted {
                node: node.to_owned(),
                group,
                refused: Some(Failure { class: ErrorClass::Other, ..failure }),
            });
        }
    }

    /// Decides for the first time: the orders become work of `claimed`, the decision goes on with their answers.
    pub(super) fn order(
        self,
        jobs: Option<&[(u64, Vec<String>)]>,
        run: &RunPolicy,
        context: &LaunchContext<'_>,
        claimed: &mut Claimed,
    ) -> Ordered<'a> {
        let Self { scale_by, nodes, requested_at, outside } = self;
        let groups: BTreeMap<&str, &Group> = nodes.iter().map(|wish| (wish.group.name.as_str(), wish.group)).collect();
        let mut open: BTreeMap<String, &Group> = nodes.iter().map(|wish| (wish.node.clone(), wish.group)).collect();
        let jobs = jobs.map(<[_]>::to_vec);
        let mut scaling = Scaling::new(Request { nodes, jobs, scale_by, strategy: run.strategy });
        let Round { launch, fail, .. } = scaling.next_round();
        for (node, failure) in fail {
            let group = open.remove(&node).map(|group| group.name.clone());
            if outside.contains(&node) {
                continue;
            }
            claimed.failed.push(Failed { node, group, failure });
        }
        open.retain(|node, _| !outside.contains(node));
        if open.is_empty() {
            return Ordered::default();
        }
        let mut waiting = open.clone();
        let (decision, orders) = (claimed.decisions.len(), launch.len());
        for order in launch {
            let Some(group) = groups.get(order.group.as_str()) else { continue };
            for node in &order.nodes {
                waiting.remove(node);
            }
            let ask = Ask { group, recipe: &group.recipe, strategy: order.strategy, names_node: scale_by == ScaleBy::Batch };
            let index = claimed.work.len();
            let batch = batch(ask, order.nodes, context, index);
            claimed.work.push(Work { index, order: Some(OrderId { decision, order: order.id }), batch, sent: None });
        }
        let mut later: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (node, group) in waiting {
            later.entry(&group.name).or_default().push(node);
        }
        let later = later.into_iter().filter_map(|(group, nodes)| Some((*groups.get(group)?, nodes))).collect();
        let names: BTreeSet<String> = open.keys().cloned().collect();
        claimed.decisions.push(Decision::new(scaling, names, orders));
        let claim = |(node, group): (String, &Group)| {
            let requested = requested_at.get(&node).copied()?;
            Some((node, group.name.clone(), requested))
        };
        Ordered { claims: open.into_iter().filter_map(claim).collect(), later }
    }
}
