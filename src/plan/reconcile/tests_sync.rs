//! Rules 6 and 7: nodes that go off, and nodes whose instance is gone.

use super::test_support::{LONG, World, lines, lines_of, taken_down};
use crate::model::cluster::PartitionState;
use crate::model::instance::InstanceState;

const NODE: &str = "q1-dy-c1-1";

fn backed(state: &str, instance: InstanceState, age: u64) -> World {
    let mut world = World::new();
    world.node(NODE, state).back(NODE, "i-1", instance, age);
    world
}

fn cleared(id: &str) -> Vec<String> {
    vec![format!("terminate {id} of {NODE}"), format!("reset-address {NODE}")]
}

/// B93.
#[test]
fn m06_only_a_node_that_powers_down_loses_its_instance() {
    for state in ["IDLE+CLOUD+POWERING_DOWN", "DOWN+CLOUD+POWERING_DOWN", "IDLE+CLOUD+DRAIN+POWERING_DOWN+SOMENEWFLAG"] {
        assert_eq!(backed(state, InstanceState::Running, LONG).pass_lines(), cleared("i-1"), "{state}");
    }
    for state in ["ALLOCATED+CLOUD+DRAIN+POWER_DOWN", "ALLOCATED+CLOUD+POWER_DOWN", "IDLE+CLOUD+POWER_DOWN"] {
        assert_eq!(backed(state, InstanceState::Running, LONG).pass_lines(), [""; 0], "{state}: a request");
    }
}

#[test]
fn a_suspend_that_went_well_needs_nothing() {
    let mut world = backed("IDLE+CLOUD+POWERING_DOWN", InstanceState::Running, LONG);
    world.mapping_mut().nodes.clear();
    world.condemn("i-1");
    assert_eq!(world.pass_lines(), [""; 0], "slurm_suspend has condemned it, it is only not gone yet");
    world.snapshot.instances.get_mut("i-1").expect("it").state = InstanceState::ShuttingDown;
    assert_eq!(world.pass_lines(), [""; 0], "InstanceId stays until the node is off");
    world.snapshot.instances.clear();
    assert_eq!(world.pass_lines(), [""; 0]);
}

#[test]
fn m15_an_instance_younger_than_slurms_word_is_kept_behind_a_node_that_is_off() {
    for (state, instance) in
        [("IDLE+CLOUD+POWERED_DOWN", InstanceState::Running), ("IDLE+CLOUD+POWERED_DOWN", InstanceState::Pending)]
    {
        assert_eq!(backed(state, instance, 60).pass_lines(), [""; 0], "{instance:?}");
        assert_eq!(backed(state, instance, 299).pass_lines(), [""; 0], "{instance:?}");
        assert_eq!(backed(state, instance, 301).pass_lines(), cleared("i-1"), "{instance:?}");
    }
}

#[test]
fn a_node_that_is_about_to_be_called_for_is_not_off() {
    for state in ["IDLE+CLOUD+POWER_UP+POWERED_DOWN", "ALLOCATED+CLOUD+POWERED_DOWN", "MIXED+CLOUD+POWERED_DOWN"] {
        assert_eq!(backed(state, InstanceState::Running, LONG).pass_lines(), [""; 0], "{state}");
        assert_eq!(backed(state, InstanceState::Terminated, LONG).pass_lines(), [""; 0], "{state}");
    }
}

#[test]
fn m04_m05_flags_beside_powered_down_hide_nothing() {
    for state in
        ["IDLE+CLOUD+POWER_DOWN+POWERED_DOWN", "IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING", "IDLE+CLOUD+POWERED_DOWN+PLANNED"]
    {
        assert_eq!(backed(state, InstanceState::Running, LONG).pass_lines(), cleared("i-1"), "{state}");
    }
    let mut world = World::new();
    world.node(NODE, "IDLE+CLOUD+POWER_DOWN+POWERED_DOWN");
    assert_eq!(world.pass_lines(), [""; 0], "M05: off, and nothing to do");
}

#[test]
fn an_address_without_anything_behind_it_is_reset_on_a_node_that_is_off() {
    let mut world = World::new();
    world.node(NODE, "IDLE+CLOUD+POWERED_DOWN").address(NODE, "10.0.0.9");
    assert_eq!(world.pass_lines(), [format!("reset-address {NODE}")]);
    // With an entry besides whose claim nobody holds.
    world.entry(NODE, None, LONG);
    assert_eq!(world.pass_lines(), [format!("forget {NODE}"), format!("reset-address {NODE}")]);
    world.live_launch("launch-now", &[NODE]);
    assert_eq!(world.pass_lines(), [""; 0], "a run is at work");
    // The address that a failed launch leaves on Slurm 22.05 is none.
    let mut world = World::new();
    world.node(NODE, "IDLE+CLOUD+POWERED_DOWN").address(NODE, "192.0.2.7");
    assert_eq!(world.pass_lines(), [""; 0]);
}

#[test]
fn an_old_address_never_ends_the_instance_that_has_it_now() {
    let mut world = World::new();
    world.up("q1-dy-c1-2", "ALLOCATED+CLOUD", "i-2").node(NODE, "IDLE+CLOUD+POWERED_DOWN");
    let address = world.slurm("q1-dy-c1-2").addr.clone();
    world.address(NODE, &address);
    assert_eq!(world.pass_lines(), [format!("reset-address {NODE}")]);
    // Also where Slurm alone knows whose it is.
    world.mapping_mut().nodes.clear();
    assert_eq!(world.pass_lines(), [format!("reset-address {NODE}")]);
    // And where the other node powers down with the address of the one that is busy.
    world.state(NODE, "IDLE+CLOUD+POWERING_DOWN");
    assert_eq!(world.pass_lines(), [""; 0]);
}

#[test]
fn a_stranger_behind_a_node_that_goes_off_stays() {
    let mut world = backed("IDLE+CLOUD+POWERED_DOWN", InstanceState::Running, LONG);
    world.mapping_mut().nodes.clear();
    world.snapshot.strangers.insert("i-1".to_owned());
    assert_eq!(world.pass_lines(), [format!("reset-address {NODE}")]);
    // What the mapping names was adopted.
    let mut world = backed("IDLE+CLOUD+POWERED_DOWN", InstanceState::Running, LONG);
    world.snapshot.strangers.insert("i-1".to_owned());
    assert_eq!(world.pass_lines(), cleared("i-1"));
}

#[test]
fn an_instance_that_slurm_alone_names_goes_with_its_node() {
    // Slurm 22.05: the address; later InstanceId, too.
    let mut world = backed("IDLE+CLOUD+POWERING_DOWN", InstanceState::Running, LONG);
    world.mapping_mut().nodes.clear();
    assert_eq!(world.pass_lines(), cleared("i-1"));
    world.slurm(NODE).instance_id = None;
    assert_eq!(world.pass_lines(), cleared("i-1"));
    world.slurm(NODE).instance_id = Some("i-1,i-2".to_owned());
    assert_eq!(world.pass_lines(), cleared("i-1"), "what older versions make of a list of ids names nothing");
    // Off, and a launch that is not over answers for the instance.
    world.state(NODE, "IDLE+CLOUD+POWERED_DOWN").snapshot.launches.insert("launch-old".to_owned());
    assert_eq!(world.pass_lines(), [""; 0]);
}

#[test]
fn the_pass_that_rebuilt_the_mapping_terminates_nothing() {
    let mut world = backed("ALLOCATED+CLOUD", InstanceState::Terminated, LONG);
    world.snapshot.rebuilt = true;
    assert!(!world.pass_lines().contains(&format!("forget {NODE}")));
    let mut world = backed("IDLE+CLOUD+POWERING_DOWN", InstanceState::Running, LONG);
    world.snapshot.rebuilt = true;
    assert_eq!(world.pass_lines(), [format!("reset-address {NODE}")], "the entry stays too");
}

/// B91.
#[test]
fn m26_a_node_whose_instance_ends_is_taken_down_in_the_same_pass() {
    for (state, word) in [
        (InstanceState::Terminated, "terminated"),
        (InstanceState::ShuttingDown, "shutting-down"),
        (InstanceState::Stopping, "stopping"),
        (InstanceState::Stopped, "stopped"),
    ] {
        for of_node in ["ALLOCATED+CLOUD", "IDLE+CLOUD", "IDLE+CLOUD+DRAIN", "ALLOCATED+CLOUD+NOT_RESPONDING+SOMENEWFLAG"] {
            let decision = backed(of_node, state, LONG).pass();
            let mut expected = taken_down(NODE, "i-1", &format!("Scheduler health check failed: instance i-1 is {word}"));
            if !state.is_live() {
                expected[1] = format!("forget {NODE}");
            }
            assert_eq!(lines(&decision.actions), expected, "{state:?} under {of_node}");
        }
    }
}

#[test]
fn a_state_of_ec2_that_is_not_known_is_no_end() {
    assert_eq!(backed("ALLOCATED+CLOUD", InstanceState::Unknown, LONG).pass_lines(), [""; 0]);
}

/// slurmctld has lost sight of it, too.
const UNHEARD: &str = "ALLOCATED+CLOUD+NOT_RESPONDING";

/// A world whose node's instance EC2 does not show.
fn unseen(state: &str, age: u64) -> World {
    let mut world = backed(state, InstanceState::Running, age);
    world.snapshot.instances.clear();
    world
}

/// B92.
#[test]
fn m09_a_young_instance_that_ec2_does_not_show_yet_is_waited_for() {
    // Launched at 0, passes at 0, 60 and 90 s: EC2 shows it at 95 s.
    let mut world = unseen("ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP", 0);
    assert_eq!(world.pass_lines(), [""; 0]);
    assert_eq!(world.pass_lines(), [""; 0]);
    world.snapshot.now = world.ago(30);
    assert_eq!(world.pass_lines(), [""; 0], "90 s after the launch");
    world.instance("i-1", InstanceState::Running, 95);
    assert_eq!(world.pass_lines(), [""; 0]);
    assert!(world.memory.missing.is_empty());
}

#[test]
fn m09_an_instance_that_was_never_visible_ends_after_the_grace() {
    let mut world = unseen("ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP", 0);
    assert_eq!((world.pass_lines(), world.pass_lines()), (vec![], vec![]));
    let decision = world.pass();
    let mut expected = taken_down(NODE, "i-1", "Scheduler health check failed: instance i-1 is gone");
    expected[1] = format!("forget {NODE}");
    assert_eq!(lines(&decision.actions), expected, "120 s after the launch");
    assert_eq!(decision.report.boot_failures["other-bootstrap-error"], [NODE], "it never came up");
}

/// B92.
#[test]
fn one_look_that_misses_an_old_instance_proves_nothing() {
    let mut world = unseen(UNHEARD, LONG);
    assert_eq!(world.pass_lines(), [""; 0]);
    world.instance("i-1", InstanceState::Running, LONG);
    assert_eq!(world.pass_lines(), [""; 0], "seen again: the count begins anew");
    world.snapshot.instances.clear();
    assert_eq!(world.pass_lines(), [""; 0]);
    assert_eq!(world.pass_lines().len(), 4);
}

#[test]
fn another_instance_that_is_missing_is_counted_by_itself() {
    let mut world = unseen(UNHEARD, LONG);
    assert_eq!(world.pass_lines(), [""; 0]);
    world.entry(NODE, Some("i-2"), LONG);
    assert_eq!(world.pass_lines(), [""; 0]);
    assert_eq!(world.pass_lines().len(), 4);
}

#[test]
fn the_configured_number_of_passes_is_tolerated() {
    let mut world = unseen(UNHEARD, LONG);
    world.policy.upkeep.missing_max_count = 3;
    for pass in 1..=3 {
        assert_eq!(world.pass_lines(), [""; 0], "pass {pass}");
    }
    assert_eq!(world.pass_lines().len(), 4);
}

#[test]
fn an_address_alone_is_missing_since_it_was_first_seen_so() {
    let mut world = World::new();
    world.node(NODE, "ALLOCATED+CLOUD+NOT_RESPONDING").address(NODE, "10.0.0.9");
    assert_eq!((world.pass_lines(), world.pass_lines()), (vec![], vec![]));
    let expected = "down q1-dy-c1-1 reason \"Scheduler health check failed: its instance is gone\"";
    assert_eq!(world.pass_lines()[0], expected, "120 s after the first look");
}

/// Nodes with a job that slurmctld hears, drained and about to be powered down ones among them.
const HEARD: [&str; 5] = [
    "ALLOCATED+CLOUD",
    "ALLOCATED+CLOUD+DRAIN",
    "ALLOCATED+CLOUD+DRAIN+POWER_DOWN",
    "MIXED+CLOUD+FAIL",
    "IDLE+CLOUD+COMPLETING+DRAIN",
];

#[test]
fn m09_ec2_that_shows_nothing_at_all_ends_no_node_that_slurm_hears() {
    for state in HEARD {
        let mut world = World::new();
        for number in 1..=30 {
            world.up(&format!("q1-dy-c1-{number}"), state, &format!("i-{number}"));
            world.up(&format!("q1-st-c1-{number}"), state, &format!("i-st-{number}"));
        }
        world.snapshot.instances.clear();
        for _ in 0..10 {
            assert_eq!(world.pass_lines(), [""; 0], "{state}");
        }
        // What EC2 does show as ended ends at once.
        world.instance("i-7", InstanceState::Terminated, LONG);
        let all = world.pass_lines();
        assert!(!all.is_empty() && all.iter().all(|line| line.contains(" q1-dy-c1-7")), "{state}: {all:?}");
    }
}

#[test]
fn passes_that_miss_an_instance_count_from_when_slurm_hears_its_node_no_more() {
    let mut world = unseen("ALLOCATED+CLOUD", LONG);
    for _ in 0..10 {
        assert_eq!(world.pass_lines(), [""; 0]);
    }
    assert_eq!(world.state(NODE, UNHEARD).pass_lines(), [""; 0], "one pass without an answer");
    assert_eq!(world.state(NODE, "ALLOCATED+CLOUD").pass_lines(), [""; 0]);
    assert_eq!(world.state(NODE, UNHEARD).pass_lines(), [""; 0]);
    assert_eq!(world.pass_lines().len(), 4);
}

#[test]
fn a_node_that_slurm_hears_is_not_gone_because_nobody_of_ours_launched_it() {
    for state in HEARD {
        let mut world = World::new();
        world.node(NODE, state).address(NODE, "10.0.0.9");
        for _ in 0..10 {
            assert_eq!(world.pass_lines(), [""; 0], "{state}");
        }
        world.state(NODE, UNHEARD);
        assert_eq!([world.pass_lines(), world.pass_lines()], [vec![], vec![]] as [Vec<String>; 2]);
        assert_eq!(world.pass_lines().len(), 3, "{state}: 120 s after it was last heard");
    }
}

#[test]
fn what_is_gone_behind_a_node_that_is_off_costs_no_update_but_the_address() {
    let off = "IDLE+CLOUD+POWERED_DOWN";
    let forgotten = [format!("forget {NODE}"), format!("reset-address {NODE}")];
    assert_eq!(backed(off, InstanceState::Terminated, LONG).pass_lines(), forgotten);
    assert_eq!(backed(off, InstanceState::Stopped, LONG).pass_lines(), cleared("i-1"));
    let mut world = unseen(off, 0);
    assert_eq!((world.pass_lines(), world.pass_lines()), (vec![], vec![]), "a resume by hand, not visible yet");
    assert_eq!(world.pass_lines(), forgotten);
    assert_eq!(backed("IDLE+CLOUD+POWERING_DOWN", InstanceState::Terminated, LONG).pass_lines(), forgotten);
    assert_eq!(backed("IDLE+CLOUD+POWER_DOWN", InstanceState::Terminated, LONG).pass_lines(), [""; 0], "off in a moment");
}

#[test]
fn m14_a_node_that_reboots_is_left_alone() {
    for state in ["ALLOCATED+CLOUD+REBOOT_ISSUED", "IDLE+CLOUD+REBOOT_REQUESTED", "DOWN+CLOUD+REBOOT_ISSUED"] {
        assert_eq!(backed(state, InstanceState::Running, LONG).pass_lines(), [""; 0], "{state}");
        let mut world = unseen(state, LONG);
        assert_eq!([0; 5].map(|_| world.pass_lines().len()), [0; 5], "{state}: not shown while it reboots");
    }
}

#[test]
fn a_reboot_hides_no_instance_that_has_ended() {
    for state in ["ALLOCATED+CLOUD+REBOOT_REQUESTED", "IDLE+CLOUD+REBOOT_ISSUED", "DOWN+CLOUD+REBOOT_ISSUED"] {
        for (instance, freed) in
            [(InstanceState::Terminated, format!("forget {NODE}")), (InstanceState::Stopped, format!("terminate i-1 of {NODE}"))]
        {
            let lines = backed(state, instance, LONG).pass_lines();
            assert!(lines.contains(&freed) && lines.iter().any(|line| line.starts_with("power_down ")), "{state} {lines:?}");
        }
    }
    let mut world = World::new();
    let node = "q1-st-c1-1";
    world.node(node, "ALLOCATED+CLOUD+REBOOT_REQUESTED").back(node, "i-1", InstanceState::Terminated, LONG);
    assert!(world.pass_lines().contains(&format!("launch {node}")), "a static one is replaced");
    let mut world = backed("IDLE+CLOUD+REBOOT_ISSUED", InstanceState::Terminated, LONG);
    world.partition("q1", PartitionState::Inactive);
    assert!(world.pass_lines().contains(&format!("forget {NODE}")), "its partition is inactive");
}

#[test]
fn a_node_of_a_block_that_is_not_active_keeps_nothing_that_is_dead() {
    for name in [NODE, "q1-st-c1-1"] {
        let mut world = World::new();
        world.node(name, "DOWN+CLOUD").back(name, "i-1", InstanceState::Terminated, LONG);
        world.policy.groups[0].block = Some("cr-1".to_owned());
        world.memory.blocks_waiting.insert("cr-1".to_owned(), "expired".to_owned());
        let of_node = lines_of(&world.pass(), name);
        let reason = "Scheduler health check failed: instance i-1 is terminated";
        let expected =
            [format!("forget {name}"), format!("power_down {name} reason {reason:?}"), format!("reset-address {name}")];
        assert_eq!(of_node, expected);
        world.snapshot.instances.clear();
        world.mapping_mut().nodes.clear();
        world.slurm(name).instance_id = None;
        let own = name.to_owned();
        world.slurm(name).addr = own;
        assert!(lines_of(&world.pass(), name).is_empty(), "nothing is left behind it");
    }
}

#[test]
fn a_lost_node_that_is_awaited_counts_as_one_boot_failure() {
    let mut world = backed("ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP", InstanceState::Terminated, 60);
    let decision = world.pass();
    assert_eq!(decision.report.boot_failures["other-bootstrap-error"], [NODE]);
    assert_eq!(decision.memory.failures["q1"]["q1/c1"].count, 1);
    let decision = backed("ALLOCATED+CLOUD", InstanceState::Terminated, 60).pass();
    assert!(decision.report.boot_failures.is_empty() && decision.memory.failures.is_empty(), "it had come up");
}

#[test]
fn many_that_go_at_once_are_told_to_slurm_with_one_reason() {
    let mut world = World::new();
    for number in 1..=100 {
        world.up(&format!("q1-dy-c1-{number}"), "ALLOCATED+CLOUD", &format!("i-{number}"));
    }
    for instance in world.snapshot.instances.values_mut() {
        instance.state = InstanceState::Terminated;
    }
    let decision = world.pass();
    for number in 1..=100 {
        let node = format!("q1-dy-c1-{number}");
        let expected = format!("down {node} reason \"Scheduler health check failed: its instance is terminated\"");
        assert_eq!(lines_of(&decision, &node)[0], expected);
    }
}

#[test]
fn down_nodes_with_nothing_behind_them_are_other_rules_business_unless_those_are_off() {
    let mut world = backed("DOWN+CLOUD", InstanceState::Terminated, LONG);
    let theirs = format!("power_down {NODE} reason \"Scheduler health check failed\"");
    assert!(world.clone().pass_lines().contains(&theirs), "that it is down comes first");
    world.policy.upkeep.terminate_down_nodes = false;
    let reason = "Scheduler health check failed: instance i-1 is terminated";
    assert_eq!(
        world.pass_lines(),
        [format!("forget {NODE}"), format!("power_down {NODE} reason {reason:?}"), format!("reset-address {NODE}")]
    );
}

#[test]
fn a_job_under_a_reclaimed_instance_is_requeued_and_the_node_ends_off() {
    let mut world = backed("ALLOCATED+CLOUD", InstanceState::Stopping, LONG);
    world.settle(2);
    let node = world.slurm(NODE);
    assert_eq!((node.state.to_string(), &*node.addr), ("IDLE+CLOUD+POWERED_DOWN".to_owned(), NODE));
    assert!(world.snapshot.mapping.nodes.is_empty());
}
