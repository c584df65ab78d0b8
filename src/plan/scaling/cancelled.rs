//! Nodes that the run loses on its way.

use std::collections::BTreeMap;

use super::Scaling;
use super::codes_told::{ALL, BEST, GREEDY, backed, codes_of, given, refused};
use super::simulated::{Capacity, Ended, SHORTAGE, failure, group_of, groups, request};
use crate::model::failure::ErrorClass;
use crate::model::policy::ScaleBy;
use crate::plan::test_support::names;

fn released(round: &super::Round) -> Vec<&str> {
    round.release.iter().map(|(instance, _)| instance.id.as_str()).collect()
}

fn ordered(round: &super::Round) -> Vec<String> {
    round.launch.iter().map(|order| order.nodes.join(" ")).collect()
}

#[test]
fn an_order_not_yet_taken_loses_the_node_or_vanishes() {
    for (scale_by, strategy) in [(ScaleBy::Batch, BEST), (ScaleBy::Call, BEST), (ScaleBy::Call, ALL), (ScaleBy::Job, GREEDY)] {
        let groups = groups(&["a", "b"], 9, strategy);
        let mut scaling = Scaling::new(request(&["a-1", "b-1", "a-2"], &[], &groups, scale_by, strategy));
        for node in ["b-1", "a-1", "b-1", "c-1", ""] {
            scaling.cancel(node);
        }
        let round = scaling.next_round();
        assert_eq!(ordered(&round), ["a-2"], "{scale_by:?}");
        scaling.record(round.launch[0].id, given(&["i-1"]));
        assert_eq!(backed(&scaling.next_round()), [("a-2", "i-1")]);
        assert!(scaling.is_finished());
        scaling.cancel("a-2");
        assert!(scaling.next_round().is_empty() && scaling.is_finished(), "it had its instance");
    }
}

#[test]
fn a_single_node_that_goes_leaves_its_instance_to_its_order() {
    let groups = groups(&["a"], 9, BEST);
    let mut scaling = Scaling::new(request(&["a-1", "a-2", "a-3"], &[], &groups, ScaleBy::Call, BEST));
    scaling.next_round();
    scaling.record(0, given(&["i-1", "i-2"]));
    // The answer is there, but nothing was decided yet.
    scaling.cancel("a-1");
    let round = scaling.next_round();
    assert_eq!(backed(&round), [("a-2", "i-1"), ("a-3", "i-2")]);
    assert!(round.fail.is_empty() && scaling.is_finished());

    let mut scaling = Scaling::new(request(&["a-1", "a-2"], &[], &groups, ScaleBy::Call, BEST));
    scaling.next_round();
    scaling.cancel("a-1");
    scaling.cancel("a-2");
    scaling.record(0, given(&["i-1", "i-2"]));
    let round = scaling.next_round();
    assert_eq!((released(&round).len(), round.assign.len(), round.fail.len()), (2, 0, 0));
    assert!(scaling.is_finished() && !scaling.holds_instances());
}

#[test]
fn a_batch_that_must_be_whole_is_whole_without_the_node() {
    let groups = groups(&["a"], 9, ALL);
    let mut scaling = Scaling::new(request(&["a-1", "a-2"], &[], &groups, ScaleBy::Batch, ALL));
    scaling.next_round();
    scaling.cancel("a-1");
    scaling.record(0, given(&["i-1"]));
    assert_eq!(backed(&scaling.next_round()), [("a-2", "i-1")]);
}

#[test]
fn a_job_is_whole_without_the_node_and_the_next_job_gets_what_it_leaves() {
    for strategy in [ALL, GREEDY] {
        let groups = groups(&["a"], 9, strategy);
        let nodes = ["a-1", "a-2", "a-3", "a-4", "a-5"];
        let jobs: [(u64, &[&str]); 2] = [(1, &["a-1", "a-2", "a-3"]), (2, &["a-4", "a-5"])];
        let mut scaling = Scaling::new(request(&nodes, &jobs, &groups, ScaleBy::Job, strategy));
        scaling.next_round();
        scaling.cancel("a-2");
        scaling.record(0, given(&["i-1", "i-2", "i-3", "i-4"]));
        let round = scaling.next_round();
        assert_eq!(backed(&round), [("a-1", "i-1"), ("a-3", "i-2"), ("a-4", "i-3"), ("a-5", "i-4")]);
        assert!(scaling.is_finished() && !scaling.holds_instances());
    }
}

#[test]
fn a_job_that_waits_goes_on_when_the_node_it_waits_for_is_gone() {
    // In the pool: of b nothing has come yet.
    let groups = groups(&["a", "b"], 9, GREEDY);
    let nodes = ["a-1", "b-1"];
    let mut scaling = Scaling::new(request(&nodes, &[(1, &nodes)], &groups, ScaleBy::Job, GREEDY));
    scaling.next_round();
    scaling.record(0, given(&["i-1"]));
    assert!(scaling.next_round().is_empty());
    scaling.cancel("b-1");
    assert!(!scaling.is_finished());
    assert_eq!(backed(&scaling.next_round()), [("a-1", "i-1")]);
    scaling.record(1, given(&["i-2"]));
    assert_eq!(released(&scaling.next_round()), ["i-2"]);
    assert!(scaling.is_finished());
}

#[test]
fn a_pass_is_judged_by_what_remains() {
    let groups = groups(&["a", "b"], 2, ALL);
    let nodes = ["a-1", "a-2", "a-3", "b-1"];
    let jobs: [(u64, &[&str]); 1] = [(1, &nodes)];
    let start = || {
        let mut scaling = Scaling::new(request(&nodes, &jobs, &groups, ScaleBy::Job, ALL));
        assert_eq!(ordered(&scaling.next_round()), ["a-1 a-2", "a-3", "b-1"]);
        scaling
    };
    // The order that failed was for nobody else.
    let mut scaling = start();
    scaling.cancel("a-3");
    scaling.record(1, refused(SHORTAGE));
    scaling.record(0, given(&["i-1", "i-2"]));
    scaling.record(2, given(&["i-3"]));
    assert_eq!(backed(&scaling.next_round()), [("a-1", "i-1"), ("a-2", "i-2"), ("b-1", "i-3")]);
    assert!(scaling.is_finished());
    // What came for the node serves another.
    let mut scaling = start();
    scaling.record(1, refused(SHORTAGE));
    scaling.record(0, given(&["i-1", "i-2"]));
    scaling.cancel("a-1");
    scaling.record(2, given(&["i-3"]));
    assert_eq!(backed(&scaling.next_round()), [("a-2", "i-1"), ("a-3", "i-2"), ("b-1", "i-3")]);
    // It is not enough: what remains gets nothing, and the node is not failed with it.
    let mut scaling = start();
    scaling.cancel("a-1");
    scaling.record(0, given(&["i-1", "i-2"]));
    scaling.record(1, given(&["i-3"]));
    scaling.record(2, refused(SHORTAGE));
    let round = scaling.next_round();
    assert_eq!((round.assign.len(), released(&round).len()), (0, 3));
    assert_eq!(round.fail.iter().map(|(node, _)| node.as_str()).collect::<Vec<_>>(), ["a-2", "a-3", "b-1"]);
    assert!(scaling.is_finished());
}

#[test]
fn a_job_of_which_nothing_remains_leaves_its_instances_to_later_jobs() {
    for (strategy, second) in [(ALL, Some(2)), (GREEDY, None), (BEST, None)] {
        let groups = groups(&["a"], 2, strategy);
        let nodes = ["a-1", "a-2", "a-3", "a-4"];
        let jobs: [(u64, &[&str]); 2] = [(1, &["a-1", "a-2"]), (2, &["a-3", "a-4"])];
        let mut scaling = Scaling::new(request(&nodes, &jobs, &groups, ScaleBy::Job, strategy));
        scaling.next_round();
        if let Some(pass) = second {
            // Job 1 has a pass of its own under way.
            scaling.record(0, refused(SHORTAGE));
            scaling.record(1, refused(SHORTAGE));
            assert_eq!(ordered(&scaling.next_round()), ["a-1 a-2"]);
            scaling.cancel("a-1");
            scaling.cancel("a-2");
            scaling.record(pass, given(&["i-1", "i-2"]));
        } else {
            scaling.cancel("a-1");
            scaling.cancel("a-2");
            scaling.record(0, given(&["i-1", "i-2"]));
            scaling.record(1, refused(SHORTAGE));
        }
        let round = scaling.next_round();
        assert_eq!(backed(&round), [("a-3", "i-1"), ("a-4", "i-2")], "{strategy:?}");
        assert!(round.fail.is_empty() && scaling.is_finished());
    }
}

#[test]
fn the_refused_node_of_a_job_goes_and_the_job_is_launched() {
    for strategy in [ALL, GREEDY] {
        let groups = groups(&["a", "b"], 9, strategy);
        let nodes = ["a-1", "a-2", "a-3", "a-4", "b-1"];
        let jobs: [(u64, &[&str]); 2] = [(1, &["a-1", "a-2"]), (2, &["a-3", "b-1", "a-4"])];
        let mut request = request(&nodes, &jobs, &groups, ScaleBy::Job, strategy);
        request.nodes[4].refused = Some(failure("Resting"));
        let mut scaling = Scaling::new(request);
        assert_eq!(ordered(&scaling.next_round()), ["a-1 a-2"]);
        scaling.cancel("b-1");
        scaling.record(0, given(&["i-1", "i-2", "i-3"]));
        let round = scaling.next_round();
        assert_eq!(backed(&round), [("a-1", "i-1"), ("a-2", "i-2")]);
        // What is lacking beyond the pool.
        assert_eq!(ordered(&round), ["a-4"], "{strategy:?}");
        scaling.record(1, given(&["i-4"]));
        assert_eq!(scaling.next_round().assign.len(), 2, "{strategy:?}");
        assert!(scaling.is_finished());
    }
}

#[test]
fn shortages_of_best_effort_are_those_of_the_nodes_that_remain() {
    let groups = groups(&["a"], 2, BEST);
    let nodes = ["a-1", "a-2", "a-3", "a-4"];
    let mut scaling = Scaling::new(request(&nodes, &[(1, &nodes)], &groups, ScaleBy::Job, BEST));
    scaling.next_round();
    scaling.cancel("a-1");
    scaling.cancel("a-2");
    scaling.record(0, refused(SHORTAGE));
    assert!(scaling.next_round().is_empty());
    scaling.record(1, refused("VcpuLimitExceeded"));
    let round = scaling.next_round();
    assert_eq!(codes_of(&round), ["a-3", "a-4"].map(|node| (node, "VcpuLimitExceeded", ErrorClass::Quota)));
    assert!(scaling.is_finished());
}

/// Passes in a moment or not at all: squared, it would be minutes.
#[test]
fn fifty_thousand_nodes_are_cancelled() {
    let nodes = names("a-", 50_000);
    let groups = groups(&["a"], 500, ALL);
    for rest in [false, true] {
        let wanted = |node: &String| super::Wanted {
            node: node.clone(),
            group: group_of(&groups, node),
            refused: rest.then(|| failure("Resting")),
        };
        let request = super::Request {
            nodes: nodes.iter().map(wanted).collect(),
            jobs: Some(vec![(1, nodes.clone())]),
            scale_by: ScaleBy::Job,
            strategy: GREEDY,
        };
        let mut scaling = Scaling::new(request);
        let (mut capacity, mut ended) = (Capacity::of(&[("a", 50_000)]), Ended::default());
        let mut orders = Vec::new();
        if !rest {
            orders = scaling.next_round().launch;
        }
        for node in &nodes {
            scaling.cancel(node);
        }
        for order in &orders {
            scaling.record(order.id, capacity.launch(order));
        }
        ended.take(&scaling.next_round());
        assert_eq!(ended.released.len(), if rest { 0 } else { 50_000 });
        assert_eq!((ended.backed.len(), ended.failed, scaling.is_finished()), (0, BTreeMap::new(), true));
    }
}
