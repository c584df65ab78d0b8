//! What is left of the instance that is replaced: by a pass that came to an end in its middle, or because Slurm goes on naming it.

use super::*;
use crate::model::cluster::{Ailment, Check};

fn counted(world: &World) -> u64 {
    world.memory.failures.values().flat_map(|groups| groups.values()).map(|failures| failures.count).sum()
}

/// A node that was up and cannot go on; its instance is of that age.
fn unhealthy(state: &str, reason: &str, age: u64) -> World {
    let mut world = World::new();
    world.up(NODE, state, "i-1").reason(NODE, reason);
    let launched = world.ago(age);
    world.mapping_mut().nodes.get_mut(NODE).unwrap().launched = Some(launched);
    world.snapshot.instances.get_mut("i-1").unwrap().launch_time = Some(launched);
    let booted = launched.secs() + 60;
    (world.slurm(NODE).boot_time, world.slurm(NODE).slurmd_start_time) = (Some(booted), Some(booted));
    world
}

/// Killed, or the mapping was locked, or slurmctld did not answer in time: the node is down and no more was done.
#[test]
fn a_replacement_that_was_only_begun_is_done_and_counts_as_no_boot_failure() {
    for (state, reason) in [("DOWN+CLOUD", "Kill task failed"), ("IDLE+CLOUD+DRAIN", "NHC: bad disk")] {
        for (age, may_drain, may_down) in [(600, true, true), (LONG, true, true), (600, true, false), (LONG, false, true)] {
            let mut world = unhealthy(state, reason, age);
            (world.policy.upkeep.terminate_drain_nodes, world.policy.upkeep.terminate_down_nodes) = (may_drain, may_down);
            let decision = world.pass();
            if decision.actions.is_empty() {
                continue;
            }
            assert_eq!(lines(&decision.actions), replaced(Some(terminate())));
            world.state(NODE, "DOWN+CLOUD").reason(NODE, MAINTENANCE);
            let decision = pass(&mut world);
            assert_eq!(lines(&decision.actions), [terminate(), reset(), launch()], "{state} {age}");
            let told = notes(&decision).join("\n");
            assert!(told.contains("its replacement was only begun"), "{told}");
            assert_eq!((counted(&world), decision.report.boot_failures.len()), (0, 0), "{state} {age}");
            assert_eq!(lines(&pass(&mut world).actions), [""; 0]);
        }
    }
}

/// The same where not even the first order was carried out: the node is what it was.
#[test]
fn a_replacement_of_which_nothing_was_done_is_done_and_counts_as_no_boot_failure() {
    let failing = "Node failing ec2_health_check: reachability failed";
    for (state, reason) in [("IDLE+CLOUD+DRAIN", failing), ("IDLE+CLOUD+POWERED_DOWN", ""), ("DOWN+CLOUD", "Kill task failed")] {
        for age in [600, LONG] {
            let mut world = unhealthy(state, reason, age);
            let before = world.snapshot.clone();
            let first = lines(&world.pass().actions);
            assert!(first.contains(&terminate()), "{state} {age}: {first:?}");
            for _ in 0..3 {
                world.snapshot = before.clone();
                let decision = world.pass();
                assert!(lines(&decision.actions).contains(&terminate()), "{state} {age}: {:?}", lines(&decision.actions));
                assert!(!lines(&decision.actions).iter().any(|line| line.contains("resume")), "{state} {age}");
                assert_eq!((counted(&world), decision.report.boot_failures.len()), (0, 0), "{state} {age}");
            }
        }
    }
}

/// The same where the old instance fails a check: that is why it is replaced, and no failure of the new one.
#[test]
fn a_failing_check_of_the_instance_that_is_replaced_is_no_failure_to_boot() {
    let mut world = unhealthy("IDLE+CLOUD+DRAIN", "Node failing ec2_health_check: reachability failed", LONG);
    let since = Some(world.ago(LONG));
    let ailment = Ailment { check: Check::Instance, since, text: "reachability failed".to_owned() };
    world.snapshot.ailments.insert("i-1".to_owned(), vec![ailment]);
    assert_eq!(lines(&world.pass().actions), replaced(Some(terminate())));
    world.state(NODE, "DOWN+CLOUD").reason(NODE, MAINTENANCE);
    assert_eq!(lines(&pass(&mut world).actions), [terminate(), reset(), launch()]);
    assert_eq!(counted(&world), 0);
}

/// The same where the instance ends by itself.
#[test]
fn an_instance_that_ended_before_its_replacement_is_no_failure_to_boot() {
    for is_mapped in [true, false] {
        let mut world = unhealthy("IDLE+CLOUD", "", LONG);
        world.snapshot.instances.get_mut("i-1").unwrap().state = InstanceState::Terminated;
        assert!(lines(&world.pass().actions).contains(&launch()));
        world.state(NODE, "DOWN+CLOUD").reason(NODE, MAINTENANCE);
        if !is_mapped {
            world.mapping_mut().nodes.clear();
        }
        let decision = pass(&mut world);
        assert!(lines(&decision.actions).contains(&launch()));
        assert_eq!((counted(&world), decision.report.boot_failures.len()), (0, 0), "{is_mapped}");
    }
}

/// Slurm forgets an InstanceId when it powers a node down, and a static one is not. EC2 shows what has ended for an hour.
#[test]
fn m25_the_id_of_the_old_instance_hides_no_failed_launch() {
    for shown in [Some(InstanceState::ShuttingDown), Some(InstanceState::Terminated), None] {
        let mut world = unhealthy("DOWN+CLOUD", "Not responding", LONG);
        assert_eq!(lines(&world.pass().actions), replaced(Some(terminate())));
        world.mapping_mut().nodes.clear();
        let own = NODE.to_owned();
        (world.slurm(NODE).addr, world.slurm(NODE).hostname) = (own.clone(), own);
        match shown {
            Some(state) => world.snapshot.instances.get_mut("i-1").unwrap().state = state,
            None => world.snapshot.instances.clear(),
        }
        world.state(NODE, "DOWN+CLOUD").reason(NODE, ICE);
        let mut told = vec![];
        for _ in 0..5 {
            let decision = world.pass();
            assert!(!lines(&decision.actions).contains(&launch()), "its group rests: {shown:?}");
            told.extend(decision.notes.into_iter().map(|note| note.text));
        }
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("rests until"), "{told:?}");
        assert_eq!(counted(&world), 0, "{shown:?}");
    }
}

/// The clock was an hour ahead when the replacement began: what is launched since is not terminated for that.
#[test]
fn a_clock_that_was_ahead_ends_no_new_instance() {
    let mut world = unhealthy("DOWN+CLOUD", "Not responding", LONG);
    let decision = pass(&mut world);
    assert!(lines(&decision.actions).contains(&launch()));
    world.snapshot.now = world.ago(LONG);
    world.snapshot.live.clear();
    world.snapshot.launches.clear();
    world.back(NODE, "i-2", InstanceState::Running, 30).slurm(NODE).boot_time = None;
    world.slurm(NODE).slurmd_start_time = None;
    for _ in 0..5 {
        assert_eq!(lines(&pass(&mut world).actions), [""; 0]);
    }
}
