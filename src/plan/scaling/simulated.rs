//! EC2 as far as these decisions meet it: so many instances per group, given in the order of the orders; and a loop that performs
//! the rounds.

use std::collections::{BTreeMap, BTreeSet};

use super::{Answer, Order, Request, Round, Scaling, Wanted};
use crate::model::failure::{ErrorClass, Failure};
use crate::model::instance::Instance;
use crate::model::policy::{ScaleBy, Strategy};
use crate::model::recipe::Group;
use crate::plan::test_support;

pub(super) const SHORTAGE: &str = "InsufficientInstanceCapacity";

pub(super) fn failure(code: &str) -> Failure {
    let class = match code {
        SHORTAGE | "UnfulfillableCapacity" => ErrorClass::Capacity,
        "VcpuLimitExceeded" | "MaxSpotInstanceCountExceeded" => ErrorClass::Quota,
        _ => ErrorClass::Other,
    };
    Failure { code: code.to_owned(), class, sentence: format!("EC2 said {code}"), request_id: None }
}

pub(super) fn request<'a>(
    nodes: &[&str],
    jobs: &[(u64, &[&str])],
    groups: &'a BTreeMap<String, Group>,
    scale_by: ScaleBy,
    strategy: Strategy,
) -> Request<'a> {
    let wanted = |node: &&str| Wanted { node: (*node).to_owned(), group: group_of(groups, node), refused: None };
    let of_job = |(id, nodes): &(u64, &[&str])| (*id, nodes.iter().map(|&node| node.to_owned()).collect());
    Request {
        nodes: nodes.iter().map(wanted).collect(),
        jobs: (!jobs.is_empty()).then(|| jobs.iter().map(of_job).collect()),
        scale_by,
        strategy,
    }
}

/// Node `a-7` is of group `a`.
pub(super) fn group_of<'a>(groups: &'a BTreeMap<String, Group>, node: &str) -> &'a Group {
    &groups[node.rsplit_once('-').unwrap().0]
}

pub(super) fn groups(names: &[&str], batch_size: usize, strategy: Strategy) -> BTreeMap<String, Group> {
    let group = |name: &&str| {
        let mut group = test_support::group(name, batch_size);
        group.launch.strategy = strategy;
        ((*name).to_owned(), group)
    };
    names.iter().map(group).collect()
}

/// What is left of each group's instances.
#[derive(Default)]
pub(super) struct Capacity {
    pub(super) left: BTreeMap<String, usize>,
    /// RunInstances fails with this, whatever is left.
    pub(super) api_errors: BTreeMap<String, String>,
    /// CreateFleet's own errors when it gives less than asked. Without an entry RunInstances is meant.
    pub(super) fleet_errors: Option<BTreeMap<String, Vec<String>>>,
    /// Fleets of several types and zones cannot be all or nothing.
    pub(super) no_minimum: bool,
    pub(super) launched: BTreeMap<String, usize>,
    /// One line for each call.
    pub(super) calls: Vec<String>,
}

impl Capacity {
    pub(super) fn of(left: &[(&str, usize)]) -> Self {
        Self { left: left.iter().map(|(group, count)| ((*group).to_owned(), *count)).collect(), ..Self::default() }
    }

    pub(super) fn launch(&mut self, order: &Order) -> Answer {
        let (group, most) = (order.group.as_str(), order.nodes.len());
        let least = if order.strategy == Strategy::AllOrNothing { most } else { 1 };
        let left = self.left.get(group).copied().unwrap_or(0);
        if let Some(errors) = self.fleet_errors.clone() {
            let least = (!self.no_minimum).then_some(least);
            let given = if left < least.unwrap_or(0) { 0 } else { left.min(most) };
            let errors = if given < most { errors.get(group).cloned().unwrap_or_default() } else { Vec::new() };
            self.calls.push(format!("CreateFleet {group} {least:?} {most} {given} {errors:?}"));
            return Answer { instances: self.give(group, given), failure: errors.first().map(|code| failure(code)) };
        }
        let error = self.api_errors.get(group).cloned().or((left < least).then(|| SHORTAGE.to_owned()));
        if let Some(code) = error {
            self.calls.push(format!("RunInstances {group} {least}-{most} {code}"));
            return Answer { instances: Vec::new(), failure: Some(failure(&code)) };
        }
        let given = left.min(most);
        self.calls.push(format!("RunInstances {group} {least}-{most} {given}"));
        Answer { instances: self.give(group, given), failure: None }
    }

    pub(super) fn give(&mut self, group: &str, count: usize) -> Vec<Instance> {
        let launched = self.launched.entry(group.to_owned()).or_default();
        let instances = (*launched..*launched + count).map(|n| test_support::instance(&format!("i-{group}-{n:05}"))).collect();
        *launched += count;
        *self.left.entry(group.to_owned()).or_insert(count) -= count;
        instances
    }
}

/// What a whole run came to.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Ended {
    pub(super) backed: BTreeMap<String, String>,
    pub(super) failed: BTreeMap<String, Failure>,
    pub(super) released: BTreeSet<String>,
}

impl Ended {
    /// Adds what a round says; nothing may end twice.
    pub(super) fn take(&mut self, round: &Round) {
        for one in &round.assign {
            let again = self.backed.insert(one.node.clone(), one.instance.id.clone());
            assert_eq!(again, None, "{} has two instances", one.node);
            assert!(!self.failed.contains_key(&one.node), "{} failed before", one.node);
        }
        for (node, failure) in &round.fail {
            let again = self.failed.insert(node.clone(), failure.clone());
            assert_eq!(again, None, "{node} failed twice");
            assert!(!self.backed.contains_key(node), "{node} is backed");
        }
        for (instance, _) in &round.release {
            assert!(self.released.insert(instance.id.clone()), "{} released twice", instance.id);
        }
    }

    /// Code of each failed node.
    pub(super) fn codes(&self) -> BTreeMap<&str, &str> {
        self.failed.iter().map(|(node, failure)| (node.as_str(), failure.code.as_str())).collect()
    }

    pub(super) fn nodes(&self) -> Vec<&str> {
        self.backed.keys().map(String::as_str).collect()
    }
}

/// Performs everything, EC2 answering the orders of each round in their order.
pub(super) fn run(request: Request<'_>, capacity: &mut Capacity) -> Ended {
    let mut scaling = Scaling::new(request);
    let mut ended = Ended::default();
    loop {
        let round = scaling.next_round();
        if round.is_empty() {
            break;
        }
        ended.take(&round);
        for order in &round.launch {
            let answer = capacity.launch(order);
            scaling.record(order.id, answer);
        }
    }
    assert!(scaling.is_finished() && !scaling.holds_instances());
    ended
}
