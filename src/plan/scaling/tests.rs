//! Single stories: concurrency, streaming, failures, time limits, size.

use std::collections::BTreeMap;

use super::codes_told::{ALL, BEST, GREEDY, backed, codes_of, given, refused};
use super::simulated::{Capacity, SHORTAGE, failure, group_of, groups, request, run};
use super::{Request, Scaling, Wanted};
use crate::model::failure::{ErrorClass, codes};
use crate::model::policy::ScaleBy;
use crate::plan::test_support::names;

#[test]
fn b52_what_does_not_depend_on_each_other_goes_out_at_once() {
    let groups = groups(&["a", "b"], 2, ALL);
    let nodes = ["a-1", "a-2", "a-3", "b-1", "b-2", "b-9"];
    let jobs: [(u64, &[&str]); 2] = [(7, &["a-1", "a-2", "a-3", "b-1", "b-2"]), (8, &["b-9"])];
    let mut scaling = Scaling::new(request(&nodes, &jobs, &groups, ScaleBy::Job, ALL));
    let round = scaling.next_round();
    let orders: Vec<_> = round.launch.iter().map(|order| (order.nodes.join(" "), order.strategy, order.jobs.clone())).collect();
    let expected = [("b-9", 8), ("a-1 a-2", 7), ("a-3", 7), ("b-1 b-2", 7)];
    assert_eq!(orders, expected.map(|(nodes, job)| (nodes.to_owned(), ALL, vec![job])));
    assert!(scaling.next_round().is_empty() && !scaling.is_finished(), "waiting");
}

#[test]
fn jobs_of_other_groups_do_not_wait_for_each_other() {
    let groups = groups(&["a", "b"], 9, ALL);
    let nodes = ["a-1", "a-2", "a-3", "a-4", "b-1", "b-2", "b-3", "b-4"];
    let jobs: [(u64, &[&str]); 4] = [(1, &["a-1", "a-2"]), (2, &["b-1", "b-2"]), (3, &["a-3", "a-4"]), (4, &["b-3", "b-4"])];
    let mut scaling = Scaling::new(request(&nodes, &jobs, &groups, ScaleBy::Job, ALL));
    assert_eq!(scaling.next_round().launch.len(), 2);
    scaling.record(1, refused(SHORTAGE));
    let round = scaling.next_round();
    assert_eq!((round.launch[0].jobs.as_slice(), round.launch.len()), ([2].as_slice(), 1), "job 2 goes on, a is not answered");
    scaling.record(2, given(&["i-1", "i-2"]));
    let round = scaling.next_round();
    assert_eq!(backed(&round), [("b-1", "i-1"), ("b-2", "i-2")]);
    assert_eq!(round.launch[0].jobs, [4], "job 4 comes after job 2");
}

#[test]
fn a_job_gets_its_nodes_as_soon_as_they_are_there() {
    let groups = groups(&["a"], 2, GREEDY);
    let nodes = ["a-1", "a-2", "a-3", "a-4", "a-5"];
    let jobs: [(u64, &[&str]); 2] = [(1, &["a-1", "a-2"]), (2, &["a-3", "a-4", "a-5"])];
    let mut scaling = Scaling::new(request(&nodes, &jobs, &groups, ScaleBy::Job, GREEDY));
    assert_eq!(scaling.next_round().launch.len(), 3);
    scaling.record(2, given(&["i-5"]));
    assert!(scaling.next_round().is_empty(), "an answer waits for those before it");
    assert!(scaling.holds_instances());
    scaling.record(0, given(&["i-1", "i-2"]));
    assert_eq!(backed(&scaling.next_round()), [("a-1", "i-1"), ("a-2", "i-2")]);
    scaling.record(1, given(&["i-3", "i-4"]));
    assert_eq!(backed(&scaling.next_round()), [("a-3", "i-3"), ("a-4", "i-4"), ("a-5", "i-5")]);
    assert!(scaling.is_finished() && !scaling.holds_instances());
}

#[test]
fn best_effort_publishes_each_batch_as_it_comes() {
    for (scale_by, jobs) in [(ScaleBy::Call, false), (ScaleBy::Batch, false), (ScaleBy::Job, true)] {
        let groups = groups(&["a"], 2, BEST);
        let nodes = ["a-1", "a-2", "a-3", "a-4"];
        let jobs: Vec<(u64, &[&str])> = if jobs { vec![(1, &nodes)] } else { Vec::new() };
        let mut scaling = Scaling::new(request(&nodes, &jobs, &groups, scale_by, BEST));
        assert_eq!(scaling.next_round().launch.len(), 2);
        scaling.record(0, given(&["i-2", "i-1"]));
        assert_eq!(backed(&scaling.next_round()), [("a-1", "i-1"), ("a-2", "i-2")], "{scale_by:?}");
    }
}

#[test]
fn b55_r13_a_node_that_fails_first_and_is_launched_for_another_job_is_not_failed() {
    let groups = groups(&["a"], 9, ALL);
    let nodes = ["a-1", "a-2"];
    let jobs: [(u64, &[&str]); 2] = [(1, &["a-1"]), (2, &["a-1", "a-2"])];
    let mut scaling = Scaling::new(request(&nodes, &jobs, &groups, ScaleBy::Job, ALL));
    let round = scaling.next_round();
    assert_eq!(round.launch.len(), 1, "the job that shares the node waits");
    scaling.record(0, refused(SHORTAGE));
    let round = scaling.next_round();
    assert!(round.fail.is_empty());
    assert_eq!(round.launch[0].nodes, ["a-1", "a-2"]);
    scaling.record(1, given(&["i-1", "i-2"]));
    let round = scaling.next_round();
    assert_eq!(backed(&round), [("a-1", "i-1"), ("a-2", "i-2")]);
    assert!(scaling.is_finished());

    let jobs: [(u64, &[&str]); 2] = [(1, &["a-1", "a-2"]), (2, &["a-2", "a-3"])];
    let nodes = ["a-1", "a-2", "a-3"];
    let ended = run(request(&nodes, &jobs, &groups, ScaleBy::Job, ALL), &mut Capacity::of(&[("a", 2)]));
    assert_eq!(ended.nodes(), ["a-1", "a-2"]);
    assert_eq!(ended.codes(), BTreeMap::from([("a-3", SHORTAGE)]));
}

#[test]
fn r12_one_of_two_types_has_no_capacity() {
    let groups = groups(&["a", "b"], 9, ALL);
    let nodes = ["a-1", "a-2", "a-3", "b-1"];
    let run = |strategy| {
        let request = request(&nodes, &[(1, &nodes)], &groups, ScaleBy::Job, strategy);
        run(request, &mut Capacity::of(&[("a", 3), ("b", 0)]))
    };
    for strategy in [ALL, GREEDY] {
        let ended = run(strategy);
        assert!(ended.backed.is_empty());
        assert_eq!(ended.released.len(), 3);
        let class = |node: &str| (ended.failed[node].code.as_str(), ended.failed[node].class);
        assert_eq!(class("b-1"), (SHORTAGE, ErrorClass::Capacity));
        assert_eq!(class("a-1"), (codes::LIMITED, ErrorClass::Other), "a has capacity: no back-off for it");
        let cause = format!("({SHORTAGE}: EC2 said {SHORTAGE})");
        let sentence = format!("job 1 needs all of its nodes, and b-1 got no instance {cause}");
        assert_eq!(ended.failed["a-1"].sentence, sentence);
    }
    let ended = run(BEST);
    assert_eq!(ended.nodes(), ["a-1", "a-2", "a-3"]);
    assert_eq!(ended.codes(), BTreeMap::from([("b-1", SHORTAGE)]));
}

#[test]
fn b53_r08_codes_go_with_what_failed() {
    // The first batch fails, the second works: the second's nodes are backed, the first's have the code.
    let groups = groups(&["a"], 2, BEST);
    let nodes = ["a-1", "a-2", "a-3", "a-4"];
    let mut scaling = Scaling::new(request(&nodes, &[], &groups, ScaleBy::Call, BEST));
    scaling.next_round();
    scaling.record(0, refused("VcpuLimitExceeded"));
    scaling.record(1, given(&["i-1", "i-2"]));
    let round = scaling.next_round();
    assert_eq!(backed(&round), [("a-3", "i-1"), ("a-4", "i-2")]);
    let code = ("VcpuLimitExceeded", ErrorClass::Quota);
    assert_eq!(codes_of(&round), [("a-1", code.0, code.1), ("a-2", code.0, code.1)]);

    // Nodes of a job stand in its order; those that stay without an instance have the code of the batch that failed.
    let jobs: [(u64, &[&str]); 2] = [(1, &["a-1", "a-2"]), (2, &["a-3", "a-4"])];
    let mut scaling = Scaling::new(request(&nodes, &jobs, &groups, ScaleBy::Job, BEST));
    scaling.next_round();
    scaling.record(0, refused("VcpuLimitExceeded"));
    scaling.record(1, given(&["i-1", "i-2"]));
    let round = scaling.next_round();
    assert_eq!(backed(&round), [("a-1", "i-1"), ("a-2", "i-2")]);
    assert_eq!(codes_of(&round), [("a-3", code.0, code.1), ("a-4", code.0, code.1)]);

    // A group that was not tried by the package has the code of what failed in its unit, not a made-up shortage.
    let groups = super::simulated::groups(&["a", "b"], 2, ALL);
    let nodes = ["a-1", "b-1"];
    let mut scaling = Scaling::new(request(&nodes, &[(1, &nodes)], &groups, ScaleBy::Job, ALL));
    scaling.next_round();
    scaling.record(1, given(&["i-1"]));
    scaling.record(0, refused("VcpuLimitExceeded"));
    let round = scaling.next_round();
    assert_eq!(codes_of(&round), [("a-1", code.0, code.1), ("b-1", code.0, ErrorClass::Other)]);
    assert_eq!(round.release.len(), 1);
}

#[test]
fn r05_an_instance_without_address_is_missing_and_goes() {
    let groups = groups(&["a"], 9, ALL);
    let nodes = ["a-1", "a-2"];
    for (scale_by, strategy, backed) in [(ScaleBy::Call, ALL, 0), (ScaleBy::Call, BEST, 1), (ScaleBy::Batch, GREEDY, 0)] {
        let mut groups = groups.clone();
        for group in groups.values_mut() {
            group.launch.strategy = strategy;
        }
        let mut scaling = Scaling::new(request(&nodes, &[], &groups, scale_by, strategy));
        scaling.next_round();
        let mut answer = given(&["i-1", "i-2"]);
        answer.instances[0].private_ip = None;
        answer.failure = Some(failure(codes::NO_ADDRESS));
        scaling.record(0, answer);
        let round = scaling.next_round();
        assert_eq!((round.assign.len(), round.fail.len(), round.release.len()), (backed, 2 - backed, 2 - backed));
        assert!(round.fail.iter().all(|(_, failure)| failure.code == codes::NO_ADDRESS));
        assert!(round.release.iter().any(|(instance, order)| instance.id == "i-1" && *order == 0));
    }
}

#[test]
fn a_refused_node_costs_its_whole_job_no_launch_and_the_others_nothing() {
    let groups = groups(&["a", "b"], 9, ALL);
    let nodes = ["a-1", "b-1", "a-2", "a-3"];
    let jobs: [(u64, &[&str]); 2] = [(1, &["a-1", "b-1"]), (2, &["a-2", "a-3"])];
    for strategy in [ALL, GREEDY] {
        let mut request = request(&nodes, &jobs, &groups, ScaleBy::Job, strategy);
        request.nodes[1].refused = Some(failure("VcpuLimitExceeded"));
        let mut capacity = Capacity::of(&[("a", 9), ("b", 9)]);
        let ended = run(request, &mut capacity);
        assert_eq!(ended.nodes(), ["a-2", "a-3"]);
        assert_eq!(ended.codes(), BTreeMap::from([("a-1", "VcpuLimitExceeded"), ("b-1", "VcpuLimitExceeded")]));
        assert_eq!(ended.failed["a-1"].class, ErrorClass::Other);
        assert_eq!(capacity.calls.len(), 1);
    }
    let mut request = request(&nodes, &jobs, &groups, ScaleBy::Job, BEST);
    request.nodes[1].refused = Some(failure("VcpuLimitExceeded"));
    let ended = run(request, &mut Capacity::of(&[("a", 9), ("b", 9)]));
    assert_eq!(ended.nodes(), ["a-1", "a-2", "a-3"]);
}

#[test]
fn batches_are_units_by_themselves_with_their_groups_strategy() {
    let mut groups = groups(&["a", "b"], 2, GREEDY);
    if let Some(group) = groups.get_mut("b") {
        group.launch.strategy = BEST;
    }
    let nodes = ["a-1", "a-2", "a-3", "b-1", "b-2"];
    let jobs: [(u64, &[&str]); 1] = [(1, &nodes)];
    let mut scaling = Scaling::new(request(&nodes, &jobs, &groups, ScaleBy::Batch, ALL));
    let round = scaling.next_round();
    assert!(round.launch.iter().all(|order| order.strategy == BEST && order.jobs == [1]));
    scaling.record(0, given(&["i-1"]));
    scaling.record(1, given(&["i-2"]));
    scaling.record(2, given(&[]));
    let round = scaling.next_round();
    assert_eq!(backed(&round), [("a-3", "i-2")]);
    assert_eq!(round.release[0].0.id, "i-1");
    assert!(round.fail.iter().all(|(_, failure)| failure.code == codes::LIMITED), "EC2 gave no code");
    assert_eq!(round.fail.len(), 4);
}

#[test]
fn b56_giving_up_keeps_what_serves_a_unit_and_releases_the_rest() {
    let groups = groups(&["a", "b"], 9, ALL);
    let nodes = ["a-1", "a-2", "b-1", "b-2", "a-3", "a-4"];
    let jobs: [(u64, &[&str]); 2] = [(1, &["a-1", "a-2", "b-1", "b-2"]), (2, &["a-3", "a-4"])];
    let mut scaling = Scaling::new(request(&nodes, &jobs, &groups, ScaleBy::Job, ALL));
    scaling.next_round();
    scaling.record(0, given(&["i-1", "i-2", "i-3", "i-4"]));
    scaling.record(1, refused(SHORTAGE));
    assert_eq!(scaling.next_round().launch.len(), 1, "job 1 tries b once more");
    let round = scaling.give_up(failure(codes::DEADLINE));
    assert_eq!(backed(&round), [("a-3", "i-1"), ("a-4", "i-2")]);
    assert_eq!(round.release.len(), 2);
    let code = |node: &str| round.fail.iter().find(|(name, _)| name == node).map(|(_, failure)| failure.code.as_str());
    assert_eq!(code("b-1"), Some(SHORTAGE), "its own failure stays");
    assert_eq!(code("a-1"), Some(codes::DEADLINE));
    assert!(scaling.is_finished());
    scaling.record(2, given(&["i-8", "i-9"]));
    scaling.record(77, given(&["i-10"]));
    assert_eq!(scaling.next_round().release.len(), 3, "what comes late goes");
    assert!(scaling.is_finished());
    assert!(scaling.give_up(failure("Again")).is_empty());
}

#[test]
fn nothing_is_asked_for_nothing() {
    let groups = groups(&["a"], 2, ALL);
    for scale_by in [ScaleBy::Batch, ScaleBy::Call, ScaleBy::Job] {
        for strategy in [ALL, GREEDY, BEST] {
            let mut scaling = Scaling::new(request(&[], &[(1, &["a-1"])], &groups, scale_by, strategy));
            assert!(scaling.next_round().is_empty() && scaling.is_finished());
        }
    }
}

/// Passes in a moment or not at all: squared, 50,000 nodes would be minutes.
#[test]
fn fifty_thousand_nodes_of_five_thousand_jobs() {
    let nodes = names("a-", 50_000);
    for (jobs, batch_size, strategy, capacity) in [(5_000, 500, ALL, 49_995), (1, 1, ALL, 49_995), (5_000, 1, BEST, 40_000)] {
        let groups = groups(&["a"], batch_size, strategy);
        let jobs = nodes.chunks(50_000 / jobs).enumerate().map(|(job, nodes)| (job as u64, nodes.to_vec())).collect();
        let wanted = |node: &String| Wanted { node: node.clone(), group: group_of(&groups, node), refused: None };
        let nodes = nodes.iter().map(wanted).collect();
        let request = Request { nodes, jobs: Some(jobs), scale_by: ScaleBy::Job, strategy };
        let ended = run(request, &mut Capacity::of(&[("a", capacity)]));
        assert_eq!(ended.backed.len() + ended.failed.len(), 50_000);
    }
}
