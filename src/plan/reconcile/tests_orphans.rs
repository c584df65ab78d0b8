//! Rule 13, and the states of rule 10.

use super::test_support::{LONG, World, lines, notes};
use crate::model::instance::{InstanceState, tag};

const NODE: &str = "q1-dy-c1-1";

fn orphan(age: u64) -> World {
    let mut world = World::new();
    world.instance("i-1", InstanceState::Running, age);
    world
}

/// B94.
#[test]
fn m15_an_orphan_goes_when_it_is_old_and_was_one_in_the_last_pass_too() {
    let mut world = orphan(LONG);
    assert_eq!(world.pass_lines(), [""; 0], "seen for the first time");
    assert_eq!(world.pass_lines(), ["terminate i-1"]);
    for state in [InstanceState::Pending, InstanceState::Running] {
        let mut world = World::new();
        world.instance("i-1", state, 179);
        for age in [179, 239, 299] {
            assert_eq!(world.pass_lines(), [""; 0], "{age} s old");
        }
        assert_eq!(world.pass_lines(), ["terminate i-1"], "359 s old");
    }
}

#[test]
fn an_orphan_whose_age_is_not_known_is_old() {
    let mut world = orphan(LONG);
    world.instance("i-1", InstanceState::Running, 0).launch_time = None;
    assert_eq!((world.pass_lines().len(), world.pass_lines().len()), (0, 1));
}

#[test]
fn an_orphan_that_was_needed_meanwhile_begins_anew() {
    let mut world = orphan(LONG);
    world.pass();
    world.node(NODE, "IDLE+CLOUD+NOT_RESPONDING+POWERING_UP").back(NODE, "i-1", InstanceState::Running, LONG);
    world.pass();
    assert!(world.memory.orphans.is_empty());
    world.state(NODE, "IDLE+CLOUD+POWERED_DOWN").mapping_mut().nodes.clear();
    world.slurm(NODE).instance_id = None;
    world.address(NODE, NODE);
    assert_eq!((world.pass_lines().len(), world.pass_lines().len()), (0, 1));
}

type Change = fn(&mut World);

#[test]
fn whatever_still_names_an_instance_keeps_it() {
    let keeps: [(&str, Change); 8] = [
        ("an entry", |world| {
            world.entry(NODE, Some("i-1"), LONG);
        }),
        ("an entry of a node that is not ours", |world| {
            world.entry("head01", Some("i-1"), LONG);
        }),
        ("InstanceId", |world| world.slurm(NODE).instance_id = Some("i-1".to_owned())),
        ("InstanceId of a node that is not ours", |world| world.slurm("head01").instance_id = Some("i-1".to_owned())),
        ("NodeAddr", |world| {
            let address = world.snapshot.instances["i-1"].private_ip.clone().unwrap_or_default();
            world.address("head01", &address);
        }),
        ("a launch record", |world| {
            world.snapshot.launches.insert("launch-old".to_owned());
        }),
        ("a release that is underway", |world| {
            world.condemn("i-1");
        }),
        ("that it is not ours", |world| {
            world.snapshot.strangers.insert("i-1".to_owned());
        }),
    ];
    for (what, keep) in keeps {
        let mut world = orphan(LONG);
        world.node(NODE, "IDLE+CLOUD").node("head01", "IDLE");
        keep(&mut world);
        for _ in 0..3 {
            assert!(!world.pass_lines().iter().any(|line| line.starts_with("terminate")), "{what}");
            assert!(world.memory.orphans.is_empty(), "{what}");
        }
    }
}

#[test]
fn a_node_that_is_off_keeps_no_instance() {
    // DOWN too: ResumeTimeout leaves the address. (How that node comes back is another rule's.)
    for state in ["IDLE+CLOUD+POWERED_DOWN", "DOWN+CLOUD+POWERED_DOWN"] {
        let mut world = orphan(LONG);
        world.node("head01", state).slurm("head01").instance_id = Some("i-1".to_owned());
        world.pass();
        assert_eq!(world.pass_lines(), ["terminate i-1"], "{state}");
    }
}

#[test]
fn m16_an_instance_of_a_node_that_is_not_configured_may_go() {
    let mut world = orphan(LONG);
    world.node(NODE, "IDLE+CLOUD+POWERED_DOWN");
    let tags = &mut world.instance("i-1", InstanceState::Running, LONG).tags;
    tags.insert(tag::NODE.to_owned(), "q9-dy-c9-1".to_owned());
    assert_eq!((world.pass_lines().len(), world.pass_lines()), (0, vec!["terminate i-1".to_owned()]));
}

#[test]
fn m16_an_entry_of_a_node_that_slurm_has_no_more_ends_after_three_passes() {
    let mut world = orphan(LONG);
    world.node(NODE, "IDLE+CLOUD+POWERED_DOWN").entry("q1-dy-c1-99", Some("i-1"), LONG);
    world.entry("q1-dy-c1-98", Some("i-gone"), LONG);
    assert_eq!((world.pass_lines().len(), world.pass_lines().len()), (0, 0));
    assert_eq!(world.pass_lines(), ["forget q1-dy-c1-98", "terminate i-1 of q1-dy-c1-99"]);
    let mut world = World::new();
    world.node(NODE, "IDLE+CLOUD+POWERED_DOWN").live_launch("launch-now", &["q1-dy-c1-99"]);
    for _ in 0..9 {
        assert_eq!(world.pass_lines(), [""; 0], "a launch at work answers for it");
    }
    let mut world = World::new();
    world.entry("q1-dy-c1-99", Some("i-gone"), 100);
    for age in [100, 160, 220, 280] {
        assert_eq!(world.pass_lines(), [""; 0], "launched {age} s ago");
    }
    world.snapshot.rebuilt = true;
    assert_eq!(world.pass_lines(), [""; 0], "340 s ago, but nobody knows whether the mapping is whole");
    world.snapshot.rebuilt = false;
    assert_eq!(world.pass_lines(), ["forget q1-dy-c1-99"]);
}

#[test]
fn an_entry_of_a_node_that_no_group_has_any_more_ends_when_the_node_is_off() {
    for off in ["IDLE+CLOUD+POWERED_DOWN", "DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING"] {
        let mut world = World::new();
        world.node("old1", off).back("old1", "i-1", InstanceState::Running, LONG);
        world.node("old2", off).entry("old2", Some("i-gone"), LONG);
        assert_eq!((world.pass_lines().len(), world.pass_lines().len()), (0, 0), "{off}");
        assert_eq!(world.pass_lines(), ["terminate i-1 of old1", "forget old2"], "{off}");
    }
    // In use, about to be, young, or held by a launch.
    for state in ["IDLE+CLOUD", "ALLOCATED+CLOUD+POWERED_DOWN", "IDLE+CLOUD+POWER_UP+POWERED_DOWN", "DOWN+CLOUD", "FUTURE+CLOUD"]
    {
        let mut world = World::new();
        world.node("old1", state).back("old1", "i-1", InstanceState::Running, LONG);
        assert_eq!([0; 5].map(|_| world.pass_lines().len()), [0; 5], "{state}");
    }
    let mut world = World::new();
    world.node("old1", "IDLE+CLOUD+POWERED_DOWN").back("old1", "i-1", InstanceState::Running, 0);
    assert_eq!([0; 5].map(|_| world.pass_lines().len()), [0; 5]);
    let mut world = World::new();
    world.node("old1", "IDLE+CLOUD+POWERED_DOWN").live_launch("launch-now", &["old1"]);
    assert_eq!([0; 9].map(|_| world.pass_lines().len()), [0; 9]);
}

#[test]
fn a_node_that_slurm_only_hides_is_not_taken_for_removed() {
    let mut world = World::new();
    world.policy.hides_off_nodes = true;
    world.node(NODE, "IDLE+CLOUD+POWERED_DOWN").entry("q1-dy-c1-98", Some("i-gone"), LONG);
    world.instance("i-1", InstanceState::Running, LONG);
    world.entry("q1-dy-c1-99", Some("i-1"), LONG);
    assert_eq!([0; 9].map(|_| world.pass_lines().len()), [0; 9]);
    world.policy.hides_off_nodes = false;
    world.pass();
    world.pass();
    assert_eq!(world.pass_lines().len(), 2);
}

/// A node with a job, of which nobody but the lost mapping told which instance is its, and one whose address tells.
fn rebuilt() -> World {
    let mut world = World::new();
    world.up(NODE, "ALLOCATED+CLOUD", "i-1").up("q1-dy-c1-2", "IDLE+CLOUD", "i-2");
    world.mapping_mut().nodes.clear();
    world.slurm(NODE).instance_id = None;
    world.slurm(NODE).addr = NODE.to_owned();
    world.snapshot.rebuilt = true;
    world
}

#[test]
fn what_was_found_without_a_node_when_the_mapping_was_rebuilt_is_an_admins_to_judge() {
    let mut world = rebuilt();
    let decision = world.pass();
    assert_eq!((lines(&decision.actions), decision.memory.orphans.len()), (vec![], 0));
    let advice = "look whether jobs run on them, and terminate by hand those that nobody needs: nothing else ends them";
    assert_eq!(notes(&decision), [format!("found without a node when the mapping was rebuilt: i-1; {advice}")]);
    world.snapshot.rebuilt = false;
    for _ in 0..10 {
        let decision = world.pass();
        assert_eq!((lines(&decision.actions), notes(&decision)), (vec![], vec![]));
    }
    assert_eq!(world.memory.unbound.keys().collect::<Vec<_>>(), ["i-1"]);
    // Another instance that is behind nothing goes as ever.
    world.instance("i-3", InstanceState::Running, LONG);
    assert_eq!((world.pass_lines(), world.pass_lines()), (vec![], vec!["terminate i-3".to_owned()]));
    world.snapshot.instances.remove("i-3");
    world.snapshot.rebuilt = true;
    assert!(world.pass().notes.is_empty(), "told once");
}

#[test]
fn an_orphan_of_before_is_none_when_the_mapping_was_rebuilt() {
    let mut world = orphan(LONG);
    world.pass();
    world.snapshot.rebuilt = true;
    assert_eq!(world.pass_lines(), [""; 0]);
    world.snapshot.rebuilt = false;
    assert_eq!([0; 5].map(|_| world.pass_lines().len()), [0; 5], "nobody knows any more");
}

#[test]
fn an_unbound_instance_is_forgotten_when_it_is_bound_or_gone() {
    let mut world = rebuilt();
    world.pass();
    world.snapshot.rebuilt = false;
    let unbound = |mut world: World, change: Change| {
        change(&mut world);
        !world.pass().memory.unbound.is_empty()
    };
    assert!(unbound(world.clone(), |_| {}));
    assert!(!unbound(world.clone(), |world| drop(world.entry(NODE, Some("i-1"), LONG).clone())));
    assert!(!unbound(world.clone(), |world| world.slurm(NODE).instance_id = Some("i-1".to_owned())));
    assert!(!unbound(world.clone(), |world| drop(world.condemn("i-1").clone())));
    assert!(!unbound(world.clone(), |world| {
        world.instance("i-1", InstanceState::Terminated, LONG);
    }));
    // EC2 does not show it for some passes, and then again: it is still the same.
    let shown = world.snapshot.instances.remove("i-1").expect("it");
    for _ in 0..9 {
        world.pass();
    }
    let mut again = world.clone();
    again.snapshot.instances.insert("i-1".to_owned(), shown);
    assert_eq!([0; 5].map(|_| again.pass_lines().len()), [0; 5]);
    assert!(world.pass().memory.unbound.is_empty(), "ten passes");
}

const SILENT: &str = "IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING";

/// B98.
#[test]
fn m01_off_and_not_responding_is_powered_down_once() {
    let mut world = World::new();
    world.node(NODE, SILENT);
    assert_eq!(world.pass_lines(), [""; 0], "so it is for a moment after each power-down");
    let expected = format!("power_down_force {NODE} reason \"Powered down and not responding: powered down again\"");
    assert_eq!(world.pass_lines(), std::slice::from_ref(&expected));
    for _ in 3..32 {
        assert_eq!(world.pass_lines(), [""; 0], "once");
    }
    assert_eq!(world.pass_lines(), std::slice::from_ref(&expected), "half an hour later the first must have come to nothing");
    // The same again after it had been well is a new case.
    world.state(NODE, "IDLE+CLOUD+POWERED_DOWN").pass();
    world.state(NODE, SILENT);
    assert_eq!((world.pass_lines().len(), world.pass_lines()), (0, vec![expected]));
}

#[test]
fn m01_the_node_is_well_in_the_end() {
    let mut world = World::new();
    world.node(NODE, SILENT);
    assert_eq!(world.settle(1), 1);
    assert_eq!(world.slurm(NODE).state.to_string(), "IDLE+CLOUD+POWERED_DOWN");
}

#[test]
fn m01_not_in_one_pass_alone_and_not_with_something_else_going_on() {
    let mut world = World::new();
    world.node(NODE, SILENT).pass();
    world.state(NODE, "IDLE+CLOUD+POWERED_DOWN").pass();
    assert_eq!(world.state(NODE, SILENT).pass_lines(), [""; 0]);
    for state in [
        "ALLOCATED+CLOUD+POWERED_DOWN+NOT_RESPONDING",
        "IDLE+CLOUD+POWER_DOWN+POWERED_DOWN+NOT_RESPONDING",
        "IDLE+CLOUD+POWER_UP+POWERED_DOWN+NOT_RESPONDING",
        "IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING+REBOOT_ISSUED",
        "IDLE+CLOUD+DRAIN+POWERED_DOWN+NOT_RESPONDING",
    ] {
        let mut world = World::new();
        world.node(NODE, state).reason(NODE, "bad disk, by a person");
        assert_eq!((world.pass_lines().len(), world.pass_lines().len()), (0, 0), "{state}");
    }
}

#[test]
fn m01_not_with_an_instance_that_is_or_may_be_there() {
    let mut world = World::new();
    world.node(NODE, SILENT).entry(NODE, Some("i-1"), 0);
    assert_eq!((world.pass_lines().len(), world.pass_lines().len()), (0, 0), "not visible yet");
    let mut world = World::new();
    world.node(NODE, SILENT).condemn("i-1").instance("i-1", InstanceState::Running, LONG);
    world.slurm(NODE).instance_id = Some("i-1".to_owned());
    assert_eq!((world.pass_lines().len(), world.pass_lines().len()), (0, 0), "not gone yet");
}

#[test]
fn a_claim_that_nobody_holds_is_forgotten() {
    let mut world = World::new();
    world.node(NODE, "IDLE+CLOUD+POWERED_DOWN").entry(NODE, None, 60);
    assert_eq!(world.pass_lines(), [format!("forget {NODE}")]);
    world.snapshot.launches.insert("launch-old".to_owned());
    assert_eq!(world.pass_lines(), [""; 0], "a record is there: its recovery decides");
}

#[test]
fn down_and_off_in_spite_of_three_power_downs_is_resumed() {
    let mut world = World::new();
    world.node(NODE, "DOWN+CLOUD+POWERED_DOWN").reason(NODE, "ResumeTimeout reached");
    for pass in 1..=3 {
        let all = world.pass_lines();
        assert!(all.iter().any(|line| line.starts_with("power_down ")), "pass {pass}: {all:?}");
    }
    let all = world.pass_lines();
    assert!(all.contains(&format!("resume {NODE}")) && !all.iter().any(|line| line.starts_with("power_down")), "{all:?}");
}
