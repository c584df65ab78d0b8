//! Whose fault it was: the codes and classes of nodes whose own launch is not the one that failed.

use super::simulated::{Capacity, SHORTAGE, failure, groups, request, run};
use super::{Answer, Scaling};
use crate::model::failure::{ErrorClass, Failure, codes};
use crate::model::policy::{ScaleBy, Strategy};
use crate::plan::test_support::instance;

pub(super) const ALL: Strategy = Strategy::AllOrNothing;
pub(super) const GREEDY: Strategy = Strategy::GreedyAllOrNothing;
pub(super) const BEST: Strategy = Strategy::BestEffort;

pub(super) fn given(ids: &[&str]) -> Answer {
    Answer { instances: ids.iter().map(|id| instance(id)).collect(), failure: None }
}

pub(super) fn refused(code: &str) -> Answer {
    Answer { instances: Vec::new(), failure: Some(failure(code)) }
}

pub(super) fn backed(round: &super::Round) -> Vec<(&str, &str)> {
    round.assign.iter().map(|one| (one.node.as_str(), one.instance.id.as_str())).collect()
}

pub(super) fn codes_of(round: &super::Round) -> Vec<(&str, &str, ErrorClass)> {
    round.fail.iter().map(|(node, failure)| (node.as_str(), failure.code.as_str(), failure.class)).collect()
}

fn throttled() -> Answer {
    let failure = Failure { class: ErrorClass::Throttled, ..failure("RequestLimitExceeded") };
    Answer { instances: Vec::new(), failure: Some(failure) }
}

#[test]
fn b54_a_group_whose_own_pass_brought_all_earns_no_backoff() {
    let groups = groups(&["a", "b"], 9, ALL);
    let nodes = ["a-1", "a-2", "b-1", "b-2", "a-3", "a-4"];
    // Whichever of the two is asked first.
    for (job, code) in [(["a-1", "a-2", "b-1", "b-2"], codes::LIMITED), (["b-1", "b-2", "a-1", "a-2"], SHORTAGE)] {
        let jobs: [(u64, &[&str]); 2] = [(1, &job), (2, &["a-3", "a-4"])];
        let ended = run(request(&nodes, &jobs, &groups, ScaleBy::Job, ALL), &mut Capacity::of(&[("a", 3), ("b", 0)]));
        assert_eq!(ended.nodes(), ["a-3", "a-4"]);
        for node in ["a-1", "a-2"] {
            let failure = &ended.failed[node];
            assert_eq!((failure.code.as_str(), failure.class), (code, ErrorClass::Other), "{node}");
            assert!(failure.sentence.starts_with("job 1 needs all of its nodes, and b-1 got no instance"), "{failure:?}");
        }
        assert_eq!((ended.failed["b-1"].code.as_str(), ended.failed["b-1"].class), (SHORTAGE, ErrorClass::Capacity));
    }
}

#[test]
fn b54_a_group_that_gave_a_part_with_a_code_but_all_that_the_job_needs_earns_no_backoff() {
    let groups = groups(&["a", "b"], 9, GREEDY);
    let nodes = ["a-1", "a-2", "b-1", "a-3", "a-4"];
    let jobs: [(u64, &[&str]); 2] = [(1, &["a-1", "a-2", "b-1"]), (2, &["a-3", "a-4"])];
    let mut scaling = Scaling::new(request(&nodes, &jobs, &groups, ScaleBy::Job, GREEDY));
    scaling.next_round();
    scaling.record(0, Answer { failure: Some(failure(SHORTAGE)), ..given(&["i-1", "i-2"]) });
    scaling.record(1, refused("VcpuLimitExceeded"));
    let round = scaling.next_round();
    assert_eq!(backed(&round), [("a-3", "i-1"), ("a-4", "i-2")]);
    let other = |node| (node, codes::LIMITED, ErrorClass::Other);
    assert_eq!(codes_of(&round), [other("a-1"), other("a-2"), ("b-1", "VcpuLimitExceeded", ErrorClass::Quota)]);
    assert!(round.fail[0].1.sentence.contains("b-1 got no instance (VcpuLimitExceeded"), "{:?}", round.fail[0]);
}

#[test]
fn b53_what_failed_for_a_node_that_was_served_is_told_to_the_one_that_was_not() {
    let groups = groups(&["a"], 2, GREEDY);
    let nodes = ["a-1", "a-2", "a-3", "a-4"];
    let jobs: [(u64, &[&str]); 2] = [(1, &["a-1", "a-2"]), (2, &["a-3", "a-4"])];
    let quota = ("VcpuLimitExceeded", ErrorClass::Quota);
    let throttle = ("RequestLimitExceeded", ErrorClass::Throttled);
    let unreachable = (codes::UNREACHABLE, ErrorClass::Other);
    let answers = [(refused(quota.0), quota), (throttled(), throttle), (refused(unreachable.0), unreachable)];
    for (answer, (code, class)) in answers {
        let mut scaling = Scaling::new(request(&nodes, &jobs, &groups, ScaleBy::Job, GREEDY));
        scaling.next_round();
        scaling.record(0, answer);
        scaling.record(1, given(&["i-1", "i-2"]));
        let round = scaling.next_round();
        assert_eq!(backed(&round), [("a-1", "i-1"), ("a-2", "i-2")]);
        assert_eq!(codes_of(&round), [("a-3", code, class), ("a-4", code, class)]);
        assert!(round.fail[0].1.sentence.contains(&format!("EC2 said {code}")), "{:?}", round.fail[0]);
    }
    // One is left for job 2: that it is not whole is said by the catch-all, whose class is that of what really failed.
    let nodes = ["a-1", "a-2", "a-3", "a-4", "a-5"];
    let jobs: [(u64, &[&str]); 2] = [(1, &["a-1", "a-2"]), (2, &["a-3", "a-4", "a-5"])];
    let mut scaling = Scaling::new(request(&nodes, &jobs, &groups, ScaleBy::Job, GREEDY));
    scaling.next_round();
    scaling.record(0, throttled());
    scaling.record(1, given(&["i-1", "i-2"]));
    scaling.record(2, given(&["i-3"]));
    let told = ["a-3", "a-4", "a-5"].map(|node| (node, codes::LIMITED, ErrorClass::Throttled));
    assert_eq!(codes_of(&scaling.next_round()), told);
}

#[test]
fn b53_b56_that_the_time_is_up_hides_no_code_of_ec2() {
    let out_of_time = || refused(codes::DEADLINE);
    // A shortage first, and no time for the job's own launch.
    let nodes = ["a-1", "a-2", "a-3", "a-4"];
    let jobs: [(u64, &[&str]); 2] = [(1, &["a-1", "a-2"]), (2, &["a-3", "a-4"])];
    let groups_of_four = groups(&["a"], 9, ALL);
    let mut scaling = Scaling::new(request(&nodes, &jobs, &groups_of_four, ScaleBy::Job, ALL));
    scaling.next_round();
    scaling.record(0, refused(SHORTAGE));
    let mut told = Vec::new();
    loop {
        let round = scaling.next_round();
        if round.is_empty() {
            break;
        }
        told.extend(round.fail.into_iter().map(|(node, failure)| (node, failure.code)));
        for order in round.launch {
            scaling.record(order.id, out_of_time());
        }
    }
    assert_eq!(told, nodes.map(|node| (node.to_owned(), SHORTAGE.to_owned())));
    assert!(scaling.is_finished());

    // Of two launches of the group that failed for others, EC2's is told, whichever was first.
    let nodes = ["a-1", "a-2", "a-3", "a-4", "a-5", "a-6"];
    let jobs: [(u64, &[&str]); 3] = [(1, &["a-1", "a-2"]), (2, &["a-3", "a-4"]), (3, &["a-5", "a-6"])];
    let groups = groups(&["a"], 2, GREEDY);
    for answers in [[out_of_time(), throttled()], [throttled(), out_of_time()]] {
        let mut scaling = Scaling::new(request(&nodes, &jobs, &groups, ScaleBy::Job, GREEDY));
        scaling.next_round();
        for (order, answer) in answers.into_iter().enumerate() {
            scaling.record(order, answer);
        }
        scaling.record(2, given(&["i-1", "i-2"]));
        let round = scaling.next_round();
        assert_eq!(backed(&round), [("a-1", "i-1"), ("a-2", "i-2")]);
        assert_eq!(codes_of(&round)[2..], ["a-5", "a-6"].map(|node| (node, "RequestLimitExceeded", ErrorClass::Throttled)));
    }
}

#[test]
fn a_node_outside_every_group_holds_its_job_back_and_no_other() {
    let groups = groups(&["a", "b"], 9, ALL);
    let nodes = ["a-1", "x-1", "b-1", "b-2", "x-2", "x-3"];
    let jobs: [(u64, &[&str]); 3] = [(1, &["a-1", "x-1"]), (2, &["b-1", "b-2"]), (3, &["x-2", "x-3"])];
    let wanted = |node: &&str| super::Wanted {
        node: (*node).to_owned(),
        // b's, for want of one of its own.
        group: if node.starts_with('a') { &groups["a"] } else { &groups["b"] },
        refused: node.starts_with('x').then(|| failure(codes::UNKNOWN_NODE)),
    };
    let start = |strategy| {
        Scaling::new(super::Request {
            nodes: nodes.iter().map(wanted).collect(),
            jobs: Some(jobs.iter().map(|(id, nodes)| (*id, nodes.iter().map(|&node| node.to_owned()).collect())).collect()),
            scale_by: ScaleBy::Job,
            strategy,
        })
    };
    for strategy in [ALL, GREEDY] {
        let mut scaling = start(strategy);
        let round = scaling.next_round();
        let told = |node| (node, codes::UNKNOWN_NODE, ErrorClass::Other);
        assert_eq!(codes_of(&round), [told("a-1"), told("x-1"), told("x-2"), told("x-3")]);
        assert_eq!(round.launch[0].nodes, ["b-1", "b-2"]);
        scaling.record(0, given(&["i-1", "i-2"]));
        assert_eq!(backed(&scaling.next_round()), [("b-1", "i-1"), ("b-2", "i-2")]);
        assert!(scaling.is_finished());
    }
    let mut scaling = start(BEST);
    let round = scaling.next_round();
    assert_eq!(round.launch.iter().map(|order| order.nodes.join(" ")).collect::<Vec<_>>(), ["a-1", "b-1 b-2"]);
}
