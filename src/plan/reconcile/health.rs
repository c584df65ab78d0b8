//! EC2's status checks and scheduled events (aws-facts D.4): what ails the instances in; nodes to drain, and boots to give up, out. What
//! is drained is replaced or powered down by the other rules once no job is left on it.

use std::collections::BTreeMap;

use super::facts::Backing;
use super::report::Bootstrap;
use super::{Draft, Facts, Order, What, boots, state, statics};
use crate::model::cluster::{Ailment, Check};
use crate::model::instance::Instance;
use crate::model::node::Base;
use crate::model::time::Timestamp;
use crate::plan::reasons::FAILING;

/// An instance whose checks fail for long enough to count.
struct Failing {
    /// The package's word for the kind of check.
    check: &'static str,
    text: String,
}

impl Failing {
    fn reason(&self) -> String {
        format!("{FAILING}{}: {}", self.check, self.text)
    }
}

pub(super) fn failing_checks(draft: &mut Draft<'_>) {
    if !draft.snapshot.ailments_told {
        // What is remembered of them is not over for that.
        return;
    }
    let mut known = BTreeMap::new();
    for index in 0..draft.facts.len() {
        let facts = &draft.facts[index];
        let (name, node) = (facts.name, facts.node);
        let Backing::Instance(instance) = facts.backing else {
            let before = draft.before.failing.get(name).filter(|id| facts.instance_id() == Some(id.as_str()));
            if facts.backing == Backing::Missing {
                // Not shown in this look.
                known.extend(before.map(|id| (name.to_owned(), id.clone())));
            }
            continue;
        };
        let Some(failing) = failing(draft, facts, instance) else { continue };
        draft.report.failing_checks.entry(failing.check).or_default().push(name.to_owned());
        if draft.is_handled(name) {
            continue;
        }
        let why = format!("{} of {}: {}", failing.check, instance.id, failing.text);
        if node.state.is_powering_up() {
            // It would not be there for long, and the boot may hang till ResumeTimeout (M13).
            boots::failed(draft, index, Bootstrap::Other, &why);
            draft.take_down(index, &failing.reason(), &why);
        } else if node.state.is_down() {
            // A static node that comes up: no longer left to it, so that it is replaced at once. Other rules have all others.
            let comes_up = statics::has_new_instance(draft, facts);
            if draft.memory.replacing.remove(name).is_some() && comes_up {
                boots::failed(draft, index, Bootstrap::Other, &why);
            }
        } else if node.state.has("DRAIN") {
            known.insert(name.to_owned(), instance.id.clone());
        } else if draft.before.failing.get(name) == Some(&instance.id) {
            // Somebody has seen it drained and wants it all the same.
            known.insert(name.to_owned(), instance.id.clone());
        } else {
            let what = What::Node { node: name.to_owned(), order: Order::Drain, reason: Some(failing.reason()) };
            draft.act(what, why);
            draft.handle(name);
        }
    }
    draft.memory.failing = known;
}

/// What fails on the node's instance, where that counts: the node is up or coming up, in a queue that works, and nobody reboots it.
fn failing(draft: &Draft<'_>, facts: &Facts<'_>, instance: &Instance) -> Option<Failing> {
    let state = &facts.node.state;
    let ailments = draft.snapshot.ailments.get(&instance.id)?;
    let known = matches!(state.base, Base::Idle | Base::Allocated | Base::Mixed | Base::Down);
    // A static node that is replaced is off for Slurm until its new instance has registered (M13).
    let is_off = state.is_powered_down() && !draft.memory.replacing.contains_key(facts.name);
    let leaving = state.power_down_requested() || state.is_powering_down() || is_off;
    if !known || leaving || state::is_rebooting(state) || draft.is_out_of_service(facts) || has_just_started(draft, facts) {
        return None;
    }
    let failing: Vec<&Ailment> = ailments.iter().filter(|ailment| counts(draft, ailment, instance)).collect();
    let check = failing.iter().map(|ailment| ailment.check).min()?.name();
    let texts: Vec<&str> =
        failing.iter().filter(|ailment| ailment.check.name() == check).map(|ailment| ailment.text.as_str()).collect();
    Some(Failing { check, text: texts.join("; ") })
}

/// Events count at once; checks when they have failed for a while. Where EC2 does not tell since when, as long as the instance is old.
fn counts(draft: &Draft<'_>, ailment: &Ailment, instance: &Instance) -> bool {
    let upkeep = &draft.policy.upkeep;
    match ailment.check {
        Check::Event => upkeep.check_events,
        Check::Instance | Check::System => {
            let since = ailment.since.or(instance.launch_time).unwrap_or_default();
            upkeep.check_instances && draft.snapshot.now.since(since) >= upkeep.check_timeout
        }
    }
}

/// slurmd came up a short while ago: the checks may still tell of the time before (M14). A time far ahead of now is none: the node's clock
/// is wrong, and the checks of its instance would not count for as long.
fn has_just_started(draft: &Draft<'_>, facts: &Facts<'_>) -> bool {
    let (now, grace) = (draft.snapshot.now, draft.policy.upkeep.check_grace);
    let mut times = [facts.node.slurmd_start_time, facts.node.boot_time].into_iter().flatten().map(Timestamp::from_secs);
    times.any(|at| now.since(at) < grace && at.since(now) < grace)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::memory::Replacement;
    use super::super::test_support::{LONG, World, lines, lines_of, taken_down};
    use super::*;
    use crate::model::cluster::PartitionState;
    use crate::model::instance::InstanceState;

    const NODE: &str = "q1-dy-c5-1";
    const STATIC: &str = "q1-st-c5-1";
    const REASON: &str = "Node failing ec2_health_check: reachability failed";

    fn impaired(world: &World, check: Check, age: Option<u64>) -> Ailment {
        Ailment { check, since: age.map(|age| world.ago(age)), text: "reachability failed".to_owned() }
    }

    fn event() -> Ailment {
        Ailment { check: Check::Event, since: None, text: "system-reboot 2026-12-02".to_owned() }
    }

    fn ail(world: &mut World, id: &str, ailments: Vec<Ailment>) {
        world.snapshot.ailments.insert(id.to_owned(), ailments);
    }

    /// A node whose instance has failed a check for that long.
    fn world(state: &str, age: u64) -> World {
        let mut world = World::new();
        world.up(NODE, state, "i-1");
        let ailment = impaired(&world, Check::System, Some(age));
        ail(&mut world, "i-1", vec![ailment]);
        world
    }

    fn drained(node: &str, reason: &str) -> Vec<String> {
        vec![format!("drain {node} reason {reason:?}")]
    }

    /// B100.
    #[test]
    fn a_node_that_fails_for_long_enough_is_drained() {
        for (check, age, expected) in [
            (Check::Instance, Some(180), true),
            (Check::System, Some(180), true),
            (Check::System, Some(179), false),
            // EC2 does not tell: as old as the instance.
            (Check::Instance, None, true),
        ] {
            for state in ["IDLE+CLOUD", "MIXED+CLOUD", "ALLOCATED+CLOUD", "MIXED+CLOUD+PLANNED", "ALLOCATED+CLOUD+NEW_FLAG"] {
                let mut world = world(state, 0);
                let ailment = impaired(&world, check, age);
                ail(&mut world, "i-1", vec![ailment]);
                let decision = world.decide();
                let lines = lines(&decision.actions);
                assert_eq!(lines, if expected { drained(NODE, REASON) } else { vec![] }, "{check:?} {age:?} {state}");
                assert_eq!(decision.report.failing_checks.contains_key("ec2_health_check"), expected);
            }
        }
    }

    #[test]
    fn an_event_counts_at_once_and_health_comes_first() {
        let mut world = world("MIXED+CLOUD", 10);
        world.snapshot.ailments.get_mut("i-1").unwrap().push(event());
        assert_eq!(world.pass_lines(), drained(NODE, "Node failing scheduled_events_check: system-reboot 2026-12-02"));
        let young = world.decide().report.failing_checks;
        assert_eq!(young.into_iter().collect::<Vec<_>>(), [("scheduled_events_check", vec![NODE.to_owned()])]);
        world.snapshot.now = world.snapshot.now + std::time::Duration::from_mins(10);
        assert_eq!(world.pass_lines(), drained(NODE, REASON));
    }

    #[test]
    fn a_check_that_is_turned_off_does_not_count() {
        for (instances, events, expected) in [(false, false, 0), (true, false, 1), (false, true, 1)] {
            let mut world = world("IDLE+CLOUD", LONG);
            world.snapshot.ailments.get_mut("i-1").unwrap().push(event());
            (world.policy.upkeep.check_instances, world.policy.upkeep.check_events) = (instances, events);
            let decision = world.decide();
            assert_eq!(decision.actions.len(), expected);
            let kind = decision.report.failing_checks.into_keys().collect::<Vec<_>>();
            let wanted = [(instances, "ec2_health_check"), (events, "scheduled_events_check")];
            assert_eq!(kind, wanted.into_iter().filter(|(on, _)| *on).map(|(_, kind)| kind).collect::<Vec<_>>());
        }
    }

    #[test]
    fn m14_a_node_that_reboots_or_has_just_started_is_left_alone() {
        for state in ["IDLE+CLOUD+REBOOT_ISSUED", "DOWN+CLOUD+REBOOT_ISSUED", "ALLOCATED+CLOUD+DRAIN+REBOOT_REQUESTED"] {
            let mut world = world(state, LONG);
            assert_eq!(lines_of(&world.pass(), NODE), [""; 0], "{state}");
            assert!(world.memory.failing.is_empty());
        }
        let mut world = world("IDLE+CLOUD", LONG);
        let started = world.ago(170).secs();
        world.slurm(NODE).slurmd_start_time = Some(started);
        assert_eq!(world.pass_lines(), [""; 0], "170 s after the start");
        assert_eq!(world.pass_lines(), drained(NODE, REASON), "230 s");
    }

    #[test]
    fn a_clock_that_is_ahead_hides_no_check() {
        for (ahead, expected) in [(100, vec![]), (LONG, drained(NODE, REASON))] {
            let mut world = world("IDLE+CLOUD", LONG);
            let started = world.snapshot.now.secs() + ahead;
            world.slurm(NODE).slurmd_start_time = Some(started);
            assert_eq!(world.pass_lines(), expected, "{ahead} s");
            let booted = world.ago(60).secs();
            world.slurm(NODE).boot_time = Some(booted);
            assert_eq!(world.pass_lines(), [""; 0], "it has booted just now");
        }
    }

    #[test]
    fn nodes_that_go_anyway_or_are_out_of_service_are_left_alone() {
        for state in ["IDLE+CLOUD+POWER_DOWN", "ALLOCATED+CLOUD+DRAIN+POWER_DOWN", "FUTURE+CLOUD", "UNKNOWN+CLOUD"] {
            assert_eq!(lines(&world(state, LONG).decide().actions), [""; 0], "{state}");
        }
        let mut world = world("ALLOCATED+CLOUD", LONG);
        world.partition("q1", PartitionState::Inactive);
        assert_eq!(world.pass_lines(), [""; 0]);
        // In another queue of ours it still works; a partition of the site's own says nothing.
        world.slurm(NODE).partitions.push("site".to_owned());
        world.partition("site", PartitionState::Up);
        assert_eq!(world.pass_lines(), [""; 0]);
        world.policy.partitions.insert("site".to_owned());
        assert_eq!(world.pass_lines(), drained(NODE, REASON));
    }

    #[test]
    fn drained_once_and_then_left_to_whoever_resumes_it() {
        let mut world = world("MIXED+CLOUD", LONG);
        assert_eq!(world.pass_lines(), drained(NODE, REASON));
        // It has not happened: again.
        assert_eq!(world.pass_lines(), drained(NODE, REASON));
        world.state(NODE, "MIXED+CLOUD+DRAIN");
        assert_eq!(world.pass_lines(), [""; 0]);
        assert_eq!(world.memory.failing[NODE], "i-1");
        world.state(NODE, "MIXED+CLOUD");
        assert_eq!(world.pass_lines(), [""; 0]);
        assert_eq!(world.decide().report.failing_checks["ec2_health_check"], [NODE], "told all the same");
        // Well again, then ill again; and another instance.
        world.snapshot.ailments.clear();
        world.pass();
        assert!(world.memory.failing.is_empty());
        let ailment = impaired(&world, Check::Instance, Some(LONG));
        ail(&mut world, "i-1", vec![ailment]);
        assert_eq!(world.pass_lines(), drained(NODE, REASON));
    }

    /// EC2 does not show everything at once (M09), and does not tell the checks in every pass: what was told of them still counts.
    #[test]
    fn a_look_that_misses_something_undoes_no_persons_resume() {
        for misses in ["the instance", "the checks"] {
            let mut world = world("MIXED+CLOUD+DRAIN", LONG);
            world.pass();
            world.state(NODE, "MIXED+CLOUD");
            let whole = world.snapshot.clone();
            match misses {
                "the instance" => world.snapshot.instances.clear(),
                _ => (world.snapshot.ailments, world.snapshot.ailments_told) = (BTreeMap::new(), false),
            }
            assert_eq!(world.pass_lines(), [""; 0], "{misses}");
            world.snapshot = whole;
            assert_eq!(world.pass_lines(), [""; 0], "{misses}");
        }
    }

    #[test]
    fn a_node_drained_for_it_is_taken_down_when_no_job_is_left() {
        let mut world = world("ALLOCATED+CLOUD+DRAIN", LONG);
        assert_eq!(world.pass_lines(), [""; 0]);
        world.state(NODE, "IDLE+CLOUD+DRAIN").reason(NODE, REASON);
        assert!(lines_of(&world.pass(), NODE).contains(&format!("terminate i-1 of {NODE}")));
    }

    #[test]
    fn a_node_that_boots_is_taken_down_and_counted_once() {
        for state in ["ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP", "IDLE+CLOUD+POWERING_UP"] {
            let mut world = World::new();
            world.node(NODE, state).back(NODE, "i-1", InstanceState::Running, 400);
            let ailment = impaired(&world, Check::Instance, Some(200));
            ail(&mut world, "i-1", vec![ailment]);
            let decision = world.pass();
            let console = vec![format!("console i-1 of {NODE}")];
            assert_eq!(lines_of(&decision, NODE), [console, taken_down(NODE, "i-1", REASON)].concat(), "{state}");
            assert_eq!(decision.report.boot_failures["other-bootstrap-error"], [NODE]);
            assert_eq!(world.memory.failures["q1"]["q1/c5"].count, 1);
            // Nothing of it has happened: tried again, not counted again.
            assert_eq!(lines_of(&world.pass(), NODE), taken_down(NODE, "i-1", REASON));
            assert_eq!(world.memory.failures["q1"]["q1/c5"].count, 1);
        }
    }

    #[test]
    fn m13_a_static_node_that_fails_while_it_is_replaced_is_replaced_at_once() {
        let mut world = World::new();
        world.node(STATIC, "DOWN+CLOUD").back(STATIC, "i-1", InstanceState::Running, 240);
        world.reason(STATIC, "Static node maintenance: unhealthy node is being replaced");
        let asked = world.ago(240);
        let replacement = Replacement { since: asked, asked, why: "gone".to_owned() };
        world.memory.replacing.insert(STATIC.to_owned(), replacement);
        assert_eq!(world.pass_lines(), [""; 0], "four minutes old and well: it has its time");
        let ailment = impaired(&world, Check::Instance, Some(185));
        ail(&mut world, "i-1", vec![ailment]);
        let decision = world.pass();
        let lines = lines_of(&decision, STATIC);
        assert!(
            lines.contains(&format!("terminate i-1 of {STATIC}")) && lines.contains(&format!("launch {STATIC}")),
            "{lines:?}"
        );
        assert_eq!(lines[0], format!("console i-1 of {STATIC}"));
        assert_eq!(world.memory.failures["q1"]["q1/c5"].count, 1);
        assert_eq!(decision.report.boot_failures["other-bootstrap-error"], [STATIC]);
        assert_eq!(world.memory.replacing[STATIC].since, asked + std::time::Duration::from_mins(5), "a new replacement");
    }
}
