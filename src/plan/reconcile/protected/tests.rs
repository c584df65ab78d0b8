//! The rule's tests: what counts, what it comes to, and how it ends.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::model::instance::InstanceState;
use crate::plan::reconcile::test_support::{World, lines, notes};

const NODE: &str = "q1-dy-c5-1";
const BOOTING: &str = "ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP";
const OFF: &str = "IDLE+CLOUD+POWERED_DOWN";

/// q1 with groups c5 and c6, q2 with c5, a node of each booting.
fn world() -> World {
    let mut world = World::new();
    for node in [NODE, "q1-dy-c6-1", "q2-dy-c5-1"] {
        world.node(node, OFF);
    }
    world
}

/// Boot failures of a group, as counted in earlier passes.
fn counted(world: &mut World, queue: &str, group: &str, count: u64) {
    let last = (1..=count.min(5))
        .map(|n| NodeFailure { node: format!("{queue}-dy-{group}-{n}"), at: world.ago(100 - n), why: "never came".to_owned() })
        .collect();
    let failures = crate::plan::reconcile::memory::GroupFailures { count, last };
    world.memory.failures.entry(queue.to_owned()).or_default().insert(format!("{queue}/{group}"), failures);
}

fn inactive(queue: &str) -> Vec<String> {
    vec![format!("inactive partition {queue}"), "fleet RUNNING to PROTECTED".to_owned()]
}

/// Counts in a pass of its own, as a rule would.
fn count_in_a_pass(world: &mut World) -> u64 {
    let mut draft = Draft::new(&world.snapshot, &world.memory, &world.policy);
    count_failure(&mut draft, 0, Bootstrap::Other, "its instance is gone");
    count_failure(&mut draft, 0, Bootstrap::DynamicResumeTimeout, "and more");
    protected(&mut draft);
    world.memory = draft.finish().memory;
    failures_of(&world.memory, "q1")
}

#[test]
fn a_launch_counts_once() {
    let mut world = World::new();
    world.node(NODE, BOOTING).back(NODE, "i-1", InstanceState::Terminated, 100);
    assert_eq!(count_in_a_pass(&mut world), 1);
    assert_eq!(count_in_a_pass(&mut world), 1, "seen again");
    world.mapping_mut().nodes.clear();
    assert_eq!(count_in_a_pass(&mut world), 1, "its entry is gone, Slurm still names the instance");
    world.slurm(NODE).instance_id = None;
    world.snapshot.instances.clear();
    assert_eq!(count_in_a_pass(&mut world), 1, "only the address is left");
    world.back(NODE, "i-2", InstanceState::Terminated, 10);
    world.entry(NODE, Some("i-2"), 10).launch = "launch-new".to_owned();
    assert_eq!(count_in_a_pass(&mut world), 2, "the next launch");
    assert_eq!(world.memory.failures["q1"]["q1/c5"].last.len(), 2);
}

#[test]
fn without_a_launch_id_the_next_one_is_told_apart_by_instance_or_by_a_time_in_between() {
    let mut world = World::new();
    world.node(NODE, BOOTING).address(NODE, "10.0.0.1").slurm(NODE).instance_id = Some("i-1".to_owned());
    assert_eq!(count_in_a_pass(&mut world), 1);
    world.slurm(NODE).instance_id = Some("i-2".to_owned());
    assert_eq!(count_in_a_pass(&mut world), 2);
    world.slurm(NODE).instance_id = None;
    assert_eq!(count_in_a_pass(&mut world), 2);
    // Off in between, with its own address: what was counted is over.
    world.node(NODE, OFF);
    let draft = Draft::new(&world.snapshot, &world.memory, &world.policy);
    world.memory = draft_of(draft);
    assert!(world.memory.counted.is_empty());
    world.node(NODE, BOOTING).address(NODE, "10.0.0.1");
    assert_eq!(count_in_a_pass(&mut world), 3);
}

fn draft_of(mut draft: Draft<'_>) -> Memory {
    protected(&mut draft);
    draft.finish().memory
}

#[test]
fn a_node_counts_in_every_queue_of_ours_and_the_last_five_are_kept() {
    let mut world = World::new();
    world.nodes("q1-dy-c5-", 7, BOOTING).partition("all", PartitionState::Up).partition("site", PartitionState::Up);
    world.policy.partitions.insert("all".to_owned());
    for n in 1..=7 {
        world.slurm(&format!("q1-dy-c5-{n}")).partitions.extend(["all".to_owned(), "site".to_owned()]);
    }
    let mut draft = Draft::new(&world.snapshot, &world.memory, &world.policy);
    for index in 0..7 {
        count_failure(&mut draft, index, Bootstrap::Other, "gone");
    }
    assert_eq!(draft.report.boot_failures["other-bootstrap-error"].len(), 7);
    let memory = draft_of(draft);
    assert_eq!(memory.failures.keys().collect::<Vec<_>>(), ["all", "q1"]);
    assert_eq!([failures_of(&memory, "all"), failures_of(&memory, "q1"), failures_of(&memory, "site")], [7, 7, 0]);
    let last: Vec<&str> = last_failures(&memory, "q1").iter().map(|it| it.node.as_str()).collect();
    assert_eq!(last, ["q1-dy-c5-3", "q1-dy-c5-4", "q1-dy-c5-5", "q1-dy-c5-6", "q1-dy-c5-7"]);
}

#[test]
fn failures_that_programs_noted_count_once_and_not_beside_ours() {
    let mut world = world();
    let (first, second) = (world.ago(50), world.ago(20));
    world.snapshot.boot_failures = vec![(NODE.to_owned(), first), ("q9-dy-c5-1".to_owned(), second)];
    let decision = world.pass();
    assert_eq!(decision.report.boot_failures["dynamic-resume-timeout-error"], [NODE]);
    world.pass();
    assert_eq!(failures_of(&world.memory, "q1"), 1, "seen already");
    assert_eq!(world.memory.failures_seen, second);
    // It is off again: the next one is another.
    let third = world.ago(1);
    world.snapshot.boot_failures.push((NODE.to_owned(), third));
    world.pass();
    assert_eq!(failures_of(&world.memory, "q1"), 2);
    // slurm_resume_fail notes what a rule has just counted, and what EC2 had no capacity for.
    world.node(NODE, BOOTING).back(NODE, "i-1", InstanceState::Terminated, 100);
    assert_eq!(count_in_a_pass(&mut world), 3);
    world.node(NODE, "IDLE+CLOUD+POWERING_DOWN").reason("q1-dy-c6-1", "(Code:InsufficientInstanceCapacity)no room");
    world.mapping_mut().nodes.clear();
    let now = world.snapshot.now;
    world.snapshot.boot_failures = vec![(NODE.to_owned(), now), ("q1-dy-c6-1".to_owned(), now)];
    world.pass();
    assert_eq!(failures_of(&world.memory, "q1"), 3);
}

#[test]
fn a_clock_that_was_ahead_hides_no_failure_that_programs_noted() {
    let mut world = world();
    let now = world.snapshot.now;
    world.memory.failures_seen = now + std::time::Duration::from_hours(1);
    world.snapshot.boot_failures = vec![("q1-dy-c6-1".to_owned(), now + std::time::Duration::from_hours(1))];
    world.pass();
    assert_eq!((world.memory.failures_seen, failures_of(&world.memory, "q1")), (now, 0));
    world.snapshot.boot_failures.push((NODE.to_owned(), world.ago(10)));
    world.pass();
    assert_eq!(failures_of(&world.memory, "q1"), 1);
}

/// B103.
#[test]
fn a_queue_is_set_inactive_at_the_threshold() {
    for (c5, c6, count, expected) in [
        (10, 0, Some(10), inactive("q1")),
        (9, 0, Some(10), vec![]),
        (5, 5, Some(10), inactive("q1")),
        (1, 0, Some(1), inactive("q1")),
        (99, 0, None, vec![]),
    ] {
        let mut world = world();
        world.policy.upkeep.protected_count = count;
        counted(&mut world, "q1", "c5", c5);
        counted(&mut world, "q1", "c6", c6);
        counted(&mut world, "q2", "c5", 0);
        assert_eq!(world.pass_lines(), expected, "{c5} {c6} {count:?}");
    }
}

#[test]
fn m24_one_error_line_names_queue_count_threshold_failures_and_the_way_out() {
    for (parallelcluster, command) in [
        (false, "slurm-ec2 fleet start"),
        (true, "pcluster update-compute-fleet --cluster-name orchard --status START_REQUESTED"),
    ] {
        let mut world = world();
        world.policy.parallelcluster = parallelcluster;
        counted(&mut world, "q1", "c5", 8);
        counted(&mut world, "q1", "c6", 2);
        let decision = world.decide();
        let [note] = decision.notes.as_slice() else { panic!("{:?}", decision.notes) };
        assert_eq!(note.level, Level::Error);
        let at = |n: u64| world.ago(100 - n);
        let last = [
            format!("q1-dy-c5-2 at {} (never came), q1-dy-c6-2 at {} (never came)", at(2), at(2)),
            format!("q1-dy-c5-5 at {} (never came)", at(5)),
        ];
        for part in
            ["queue q1 ", "10 boot failures", "threshold is 10", command].into_iter().chain(last.iter().map(String::as_str))
        {
            assert!(note.text.contains(part), "{part} in {}", note.text);
        }
        assert!(!note.text.contains("q1-dy-c5-1 at"), "five are enough: {}", note.text);
    }
}

#[test]
fn a_busy_queue_waits_and_shields_no_other() {
    let mut world = world();
    world.up("q1-dy-c6-2", "MIXED+CLOUD", "i-6");
    counted(&mut world, "q1", "c5", 9);
    counted(&mut world, "q2", "c5", 10);
    world.node(NODE, BOOTING).back(NODE, "i-1", InstanceState::Terminated, 100);
    let mut draft = Draft::new(&world.snapshot, &world.memory, &world.policy);
    count_failure(&mut draft, 0, Bootstrap::Other, "gone");
    protected(&mut draft);
    let decision = draft.finish();
    assert_eq!(lines(&decision.actions), inactive("q2"));
    let waits =
        |decision: &crate::plan::reconcile::Decision| notes(decision).iter().filter(|text| text.contains("queue q1")).count();
    assert_eq!(waits(&decision), 1);
    world.memory = decision.memory;
    world.node(NODE, OFF).mapping_mut().nodes.remove(NODE);
    world.partition("q2", PartitionState::Inactive).snapshot.fleet = FleetStatus::Protected;
    let decision = world.pass();
    assert_eq!((lines(&decision.actions), waits(&decision)), (vec![], 0), "said once");
    assert_eq!(world.memory.protected.keys().collect::<Vec<_>>(), ["q2"]);
    // The job ends. The fleet is protected already.
    world.state("q1-dy-c6-2", "IDLE+CLOUD+DRAIN");
    assert!(world.pass_lines().contains(&"inactive partition q1".to_owned()));
}

#[test]
fn a_healthy_node_clears_its_own_group_and_no_other() {
    for (node, state, cleared) in [
        (NODE, "IDLE+CLOUD", true),
        (NODE, "ALLOCATED+CLOUD", true),
        (NODE, "IDLE+CLOUD+PLANNED+NEW_FLAG", true),
        (NODE, "IDLE+CLOUD+POWERING_UP", false),
        (NODE, "ALLOCATED+CLOUD+DRAIN", false),
        (NODE, "DOWN+CLOUD", false),
        (NODE, "IDLE+CLOUD+NOT_RESPONDING", false),
        ("q1-dy-c6-1", "IDLE+CLOUD", false),
        ("q2-dy-c5-1", "IDLE+CLOUD", false),
    ] {
        let mut world = world();
        counted(&mut world, "q1", "c5", 3);
        world.up(node, state, "i-1");
        world.pass();
        assert_eq!(failures_of(&world.memory, "q1"), if cleared { 0 } else { 3 }, "{node} {state}");
    }
}

/// B104.
#[test]
fn a_start_clears_everything() {
    let mut world = world();
    counted(&mut world, "q1", "c5", 10);
    counted(&mut world, "q2", "c5", 9);
    assert_eq!(world.pass_lines(), inactive("q1"));
    world.partition("q1", PartitionState::Inactive).snapshot.fleet = FleetStatus::Protected;
    assert_eq!(world.pass_lines(), [""; 0]);
    assert_eq!(failures_of(&world.memory, "q1"), 10, "for the status");
    world.snapshot.fleet = FleetStatus::Starting;
    world.partition("q1", PartitionState::Up).pass();
    world.snapshot.fleet = FleetStatus::Running;
    assert_eq!(world.pass_lines(), [""; 0]);
    assert!(world.memory.failures.is_empty() && world.memory.protected.is_empty());
}

/// Two queues of a fleet that is PROTECTED, both seen inactive.
fn both_protected() -> World {
    let mut world = world();
    counted(&mut world, "q1", "c5", 10);
    counted(&mut world, "q2", "c5", 10);
    world.pass();
    world.partition("q1", PartitionState::Inactive).partition("q2", PartitionState::Inactive);
    world.snapshot.fleet = FleetStatus::Protected;
    assert_eq!(world.pass_lines(), [""; 0]);
    world
}

#[test]
fn a_protected_queue_that_slurmctld_has_put_up_is_set_inactive_again_until_the_fleet_is_started() {
    let mut world = both_protected();
    world.partition("q1", PartitionState::Up);
    for _ in 0..2 {
        let decision = world.pass();
        assert_eq!((lines(&decision.actions), notes(&decision)), (vec!["inactive partition q1".to_owned()], vec![]));
    }
    world.partition("q2", PartitionState::Up);
    assert_eq!(world.pass_lines(), ["inactive partition q1", "inactive partition q2"]);
    assert_eq!([failures_of(&world.memory, "q1"), failures_of(&world.memory, "q2")], [10, 10]);
    // Somebody has taken it out of service in another way.
    world.partition("q1", PartitionState::Drain).partition("q2", PartitionState::Inactive);
    assert_eq!(world.pass_lines(), [""; 0]);
    world.partition("q1", PartitionState::Up).partition("q2", PartitionState::Up).snapshot.fleet = FleetStatus::Running;
    assert_eq!(world.pass_lines(), [""; 0]);
    assert!(world.memory.failures.is_empty() && world.memory.protected.is_empty());
}

#[test]
fn a_queue_that_slurm_has_no_more_is_not_protected() {
    let mut world = both_protected();
    world.snapshot.partitions.remove("q1");
    world.snapshot.nodes.retain(|name, _| !name.starts_with("q1-"));
    assert_eq!(world.pass_lines(), [""; 0]);
    assert_eq!(world.memory.protected.keys().collect::<Vec<_>>(), ["q2"]);
}

#[test]
fn z01_a_start_before_the_next_pass_is_seen_as_one() {
    let mut world = world();
    counted(&mut world, "q1", "c5", 10);
    assert_eq!(world.pass_lines(), inactive("q1"));
    // Inactive, PROTECTED, started and RUNNING, all between two passes; or a clustermgtd that was restarted besides.
    let text = serde_json::to_string(&world.memory).unwrap();
    world.memory = serde_json::from_str(&text).unwrap();
    for _ in 0..2 {
        assert_eq!(world.pass_lines(), [""; 0]);
        assert!(world.memory.failures.is_empty() && world.memory.protected.is_empty());
    }
}

#[test]
fn an_order_that_did_not_reach_slurmctld_is_given_again() {
    let mut world = world();
    counted(&mut world, "q1", "c5", 10);
    counted(&mut world, "q2", "c5", 10);
    world.pass();
    // The status was written, and no queue is inactive.
    let mut written = world.clone();
    written.snapshot.fleet = FleetStatus::Protected;
    assert_eq!(written.pass_lines(), ["inactive partition q1", "inactive partition q2"]);
    // The first queue alone is inactive.
    world.partition("q1", PartitionState::Inactive);
    assert_eq!(world.pass_lines(), ["inactive partition q2", "fleet RUNNING to PROTECTED"]);
}

#[test]
fn interrupted_between_queue_status_and_memory_it_ends_the_same() {
    // The queue is inactive, the status was not written: given again, and no start is seen in it.
    let mut world = world();
    counted(&mut world, "q1", "c5", 10);
    world.pass();
    world.partition("q1", PartitionState::Inactive);
    for _ in 0..2 {
        assert_eq!(world.pass_lines(), ["fleet RUNNING to PROTECTED"]);
    }
    assert_eq!(failures_of(&world.memory, "q1"), 10);
    // Both are done, the memory of the last failure was not written.
    let mut world = self::world();
    counted(&mut world, "q1", "c5", 9);
    world.partition("q1", PartitionState::Inactive).snapshot.fleet = FleetStatus::Protected;
    world.pass();
    world.partition("q1", PartitionState::Up).snapshot.fleet = FleetStatus::Running;
    world.pass();
    assert_eq!(failures_of(&world.memory, "q1"), 0, "no leftover after the start");
}

#[test]
fn counts_survive_a_restart_and_go_with_their_queue_and_node() {
    let mut world = world();
    world.node(NODE, BOOTING).back(NODE, "i-1", InstanceState::Terminated, 100);
    counted(&mut world, "q1", "c5", 8);
    assert_eq!(count_in_a_pass(&mut world), 9);
    let text = serde_json::to_string(&world.memory).unwrap();
    world.memory = serde_json::from_str(&text).unwrap();
    assert_eq!(count_in_a_pass(&mut world), 9, "its launch is remembered too");
    world.snapshot.nodes.remove(NODE);
    world.policy.partitions.remove("q1");
    let draft = Draft::new(&world.snapshot, &world.memory, &world.policy);
    let memory = draft_of(draft);
    assert!(memory.counted.is_empty() && memory.failures.is_empty());
}
