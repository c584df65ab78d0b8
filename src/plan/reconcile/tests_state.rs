//! The predicates of `state.rs` against the package's own, row by row: `node-state-truth-table.csv` has 30 states with three backings.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use super::facts::Backing;
use super::test_support::World;
use super::{Draft, Facts, state};
use crate::model::instance::InstanceState;
use crate::model::node::{Base, State};
use crate::model::policy::Upkeep;

const TABLE: &str = include_str!("../../../tests/data/parallelcluster/node-state-truth-table.csv");

/// Compares one column with a predicate. `differs` names the rows, as `state` or `state,backing`, where ours says the opposite on purpose.
fn check(column: &str, is_static: bool, ours: impl Fn(&Facts<'_>) -> bool, differs: &[&str]) {
    let rows = rows(column);
    let mut world = World::new();
    for (number, (state, backing, _)) in rows.iter().enumerate() {
        let (node, id) = (name(is_static, number), format!("i-{number}"));
        world.node(&node, state);
        match *backing {
            "no-address" => {}
            "address+instance" => drop(world.back(&node, &id, InstanceState::Running, 3600)),
            // The package never sees one that is terminated. Of what EC2 does not show at all we believe Slurm as long as it hears from
            // the node (`missing.rs`).
            "address-without-instance" => drop(world.back(&node, &id, InstanceState::Terminated, 3600)),
            other => panic!("{other}"),
        }
    }
    let draft = Draft::new(&world.snapshot, &world.memory, &world.policy);
    let mut different = BTreeSet::new();
    for (number, (state, backing, theirs)) in rows.iter().enumerate() {
        let name = name(is_static, number);
        let facts = draft.facts.iter().find(|facts| facts.name == name).unwrap();
        if ours(facts) != *theirs {
            different.insert((*state, *backing));
        }
    }
    let is_named = |state: &str, backing: &str| differs.iter().any(|it| *it == state || *it == format!("{state},{backing}"));
    for (state, backing, theirs) in &rows {
        let expected = is_named(state, backing);
        assert_eq!(different.contains(&(*state, *backing)), expected, "{column} of {state} {backing}: the package says {theirs}");
    }
    for row in differs {
        assert!(rows.iter().any(|(state, backing, _)| *row == *state || *row == format!("{state},{backing}")), "{row} is no row");
    }
}

/// State, backing and the column's value.
fn rows(column: &str) -> Vec<(&'static str, &'static str, bool)> {
    let mut lines = TABLE.lines();
    let index = lines.next().unwrap().split(',').position(|name| name == column).unwrap();
    let rows: Vec<_> = lines
        .map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            (cells[0], cells[1], cells[index] == "1")
        })
        .collect();
    assert_eq!(rows.len(), 90);
    rows
}

fn name(is_static: bool, number: usize) -> String {
    format!("q1-{}-c{number}-1", if is_static { "st" } else { "dy" })
}

/// The package's predicates that no rule asks as a whole: of those that the rules do ask.
impl Facts<'_> {
    fn is_dynamic_healthy(&self, upkeep: &Upkeep) -> bool {
        !self.is_gone && state::is_state_healthy(&self.node.state, upkeep, false)
    }

    /// A static node must have an address besides.
    fn is_static_healthy(&self, upkeep: &Upkeep) -> bool {
        self.has_address() && self.is_dynamic_healthy(upkeep)
    }

    fn has_boot_failed(&self) -> bool {
        let state = &self.node.state;
        let waits = state.is_powering_up() && (state::has_job(state) || state.base == Base::Idle);
        (waits && self.is_gone)
            || (state::is_resume_timeout(state) && self.backing != Backing::Nothing)
            || state::is_invalid_registration(state)
    }

    fn is_powering_down_with_address(&self) -> bool {
        let state = &self.node.state;
        self.has_address() && (state::is_off(state) || state::is_powering_down(state))
    }

    fn is_up(&self) -> bool {
        let state = &self.node.state;
        !state.has("DRAIN") && !state::is_down(state) && !state.is_powering_down()
    }
}

#[test]
fn m05_m07_dynamic_healthy_as_the_package_has_it() {
    let upkeep = World::new().policy.upkeep;
    check("dynamic_healthy", false, |facts| facts.is_dynamic_healthy(&upkeep), &[]);
}

#[test]
fn a_static_node_that_is_being_replaced_may_be_down_or_drained() {
    let upkeep = World::new().policy.upkeep;
    for text in ["DOWN+CLOUD", "IDLE+CLOUD+DRAIN"] {
        let state = State::parse(text);
        assert!(state::is_state_healthy(&state, &upkeep, true) && !state::is_state_healthy(&state, &upkeep, false), "{text}");
    }
}

#[test]
fn static_healthy_as_the_package_has_it() {
    let upkeep = World::new().policy.upkeep;
    check("static_healthy_not_in_replacement", true, |facts| facts.is_static_healthy(&upkeep), &[]);
}

#[test]
fn m04_boot_failures_as_the_package_has_them_on_every_slurm() {
    // Slurm 22.05 leaves NOT_RESPONDING on a node that missed ResumeTimeout; the package of today looks for the exact words of 23.11 and
    // never counts it. With an address and without: the same rule as for the state without that flag.
    let differs = [
        "DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING,address+instance",
        "DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING,address-without-instance",
    ];
    check("dynamic_bootstrap_failure", false, |facts| facts.has_boot_failed(), &differs);
}

#[test]
fn reset_of_inactive_partitions_as_the_package_has_it() {
    check("dynamic_reset_when_partition_inactive", false, |facts| facts.needs_reset_when_inactive(), &[]);
}

#[test]
fn m06_powering_down_with_address_as_the_package_has_it() {
    check("powering_down_with_address", false, |facts| facts.is_powering_down_with_address(), &[]);
}

#[test]
fn up_as_the_package_has_it() {
    check("is_up", false, |facts| facts.is_up(), &[]);
}

#[test]
fn m05_down_as_the_package_has_it() {
    check("is_down", false, |facts| state::is_down(&facts.node.state), &[]);
}

#[test]
fn online_as_the_package_has_it_but_for_flags_that_say_nothing_about_health() {
    // The package asks for the whole text, so a node that the scheduler plans with, or that is reserved, ends no failure count.
    let differs = ["IDLE+CLOUD+MAINTENANCE+RESERVED", "IDLE+CLOUD+PLANNED"];
    check("is_online", false, |facts| state::is_online(&facts.node.state), &differs);
}

#[test]
fn running_jobs_as_the_package_has_them() {
    check("is_running_job", false, |facts| state::runs_job(&facts.node.state), &[]);
}

#[test]
fn m09_slurm_hears_a_node_whatever_else_is_said_of_it() {
    for (text, is_heard) in [
        ("IDLE+CLOUD", true),
        ("MIXED+CLOUD+PLANNED+SOMENEWFLAG", true),
        ("ALLOCATED+CLOUD+DRAIN+POWER_DOWN", true),
        ("IDLE+CLOUD+INVALID_REG+DRAIN", true),
        ("ALLOCATED+CLOUD+REBOOT_REQUESTED", true),
        ("ALLOCATED+CLOUD+NOT_RESPONDING", false),
        ("ALLOCATED+CLOUD+POWERING_UP", false),
        ("IDLE+CLOUD+POWERED_DOWN", false),
        ("IDLE+CLOUD+POWER_UP+POWERED_DOWN", false),
        ("IDLE+CLOUD+POWERING_DOWN", false),
        ("MIXED+CLOUD+REBOOT_ISSUED", false),
        ("DOWN+CLOUD", false),
    ] {
        assert_eq!(state::is_heard(&State::parse(text)), is_heard, "{text}");
    }
}

/// What each predicate says of a state.
fn all(text: &str) -> [bool; 8] {
    let state = State::parse(text);
    [
        state::is_rebooting(&state),
        state::is_down(&state),
        state::is_drained(&state),
        state::is_off(&state),
        state::is_powering_down(&state),
        state::runs_job(&state),
        state::is_resume_timeout(&state),
        state::is_invalid_registration(&state),
    ]
}

#[test]
fn flags_that_are_not_asked_for_change_no_predicate() {
    for (state, _, _) in rows("is_up") {
        for flag in ["PLANNED", "RESERVED", "MAINTENANCE", "DYNAMIC_NORM", "SOMENEWFLAG"] {
            let with = format!("{state}+{flag}");
            assert_eq!(all(&with), all(state), "{with}");
            assert_eq!(state::is_online(&State::parse(&with)), state::is_online(&State::parse(state)), "{with}");
        }
    }
}

#[test]
fn m04_states_that_were_once_never_matched() {
    let of = State::parse;
    assert!(state::is_resume_timeout(&of("DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING+SOMENEWFLAG")));
    assert!(state::is_down(&of("DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING")));
    assert!(state::is_off(&of("IDLE+CLOUD+DRAIN+POWERED_DOWN")) && state::is_drained(&of("IDLE+DRAIN+CLOUD+POWERED_DOWN")));
    assert!(state::is_powering_down(&of("IDLE+CLOUD+POWERING_DOWN")) && !state::is_powering_down(&of("IDLE+CLOUD+POWERED_DOWN")));
}

#[test]
fn m05_a_request_beside_the_state_is_seen_as_what_it_is() {
    let of = State::parse;
    assert!(state::is_off(&of("IDLE+CLOUD+POWER_DOWN+POWERED_DOWN")));
    assert!(state::is_down(&of("DOWN+CLOUD+POWER_DOWN+POWERED_DOWN+NOT_RESPONDING")));
    assert!(!state::is_resume_timeout(&of("DOWN+CLOUD+POWER_DOWN+POWERED_DOWN")), "it is on its way back");
    assert!(!state::is_off(&of("IDLE+CLOUD+POWER_UP+POWERED_DOWN")), "it is about to be called for");
}

#[test]
fn m04_m05_m07_what_the_whole_decision_does_in_these_states() {
    let node = "q1-dy-c1-1";
    for (state, is_taken_down) in [
        ("IDLE+CLOUD+DRAIN+COMPLETING", false),
        ("MIXED+CLOUD+DRAIN+COMPLETING", false),
        ("IDLE+CLOUD+DRAIN", true),
        ("IDLE+CLOUD+DRAIN+SOMENEWFLAG", true),
        ("DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING", true),
        ("DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING+SOMENEWFLAG", true),
        ("DOWN+CLOUD+POWER_DOWN+POWERED_DOWN+NOT_RESPONDING", true),
        ("IDLE+CLOUD+PLANNED", false),
    ] {
        let mut world = World::new();
        world.up(node, state, "i-1");
        let all = world.pass_lines();
        let ends = ["terminate i-1 of q1-dy-c1-1", "reset-address q1-dy-c1-1"].iter().all(|line| all.iter().any(|it| it == line));
        assert_eq!((ends, all.is_empty()), (is_taken_down, !is_taken_down), "{state}: {all:?}");
    }
}

#[test]
fn a_job_that_waits_for_its_node_does_not_run() {
    let runs = |text| state::runs_job(&State::parse(text));
    assert!(!runs("ALLOCATED+CLOUD+POWERED_DOWN") && !runs("MIXED+CLOUD+POWERED_DOWN+PLANNED"));
    assert!(!runs("MIXED+CLOUD+NOT_RESPONDING+POWERING_UP"));
    assert!(runs("IDLE+COMPLETING+CLOUD") && runs("MIXED+CLOUD+PLANNED") && runs("ALLOCATED+CLOUD+DRAIN+POWER_DOWN"));
}

/// B90.
#[test]
fn c05_m21_nodes_that_slurm_knows_nothing_about_are_nobodys() {
    let mut world = World::new();
    for (number, state) in ["FUTURE", "UNKNOWN+CLOUD", "ERROR", "NOVEL+CLOUD", "IDLE+CLOUD"].iter().enumerate() {
        world.node(&format!("q1-dy-c1-{number}"), state);
    }
    world.node("head01", "IDLE");
    let draft = Draft::new(&world.snapshot, &world.memory, &world.policy);
    assert_eq!(draft.facts.iter().map(|facts| facts.name).collect::<Vec<_>>(), ["q1-dy-c1-4"]);
}
