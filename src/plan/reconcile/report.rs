//! What a pass saw, for the log and for the events; decides nothing.

use std::collections::BTreeMap;

use super::{Draft, Facts, state};
use crate::model::node::Base;

/// A line for the log, told when something changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) level: Level,
    pub(crate) text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Info,
    Warn,
    Error,
}

/// Counts and names, as the package's events have them (aws-facts B.17). Node names in the order of Slurm.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// Check → nodes whose instance fails it.
    pub(crate) failing_checks: BTreeMap<&'static str, Vec<String>>,
    /// In service, with an address or a mapping entry, and their instance is gone.
    pub(crate) invalid_backing: Vec<String>,
    /// Down because slurmd does not respond.
    pub(crate) not_responding: Vec<String>,
    /// Kind (`static-replacement-timeout-error`, `dynamic-resume-timeout-error`, `other-bootstrap-error`) → nodes.
    pub(crate) boot_failures: BTreeMap<&'static str, Vec<String>>,
    pub(crate) unhealthy_static: Vec<String>,
    pub(crate) unhealthy_dynamic: Vec<String>,
    pub(crate) replacing: Vec<String>,
    /// Longest idle node and how many idle: static, then dynamic.
    pub(crate) idle: [Option<Idle>; 2],
    /// Nodes of ours by state text.
    pub(crate) states: BTreeMap<String, usize>,
    /// Live instances of ours.
    pub(crate) instances: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Idle {
    pub(crate) node: String,
    pub(crate) seconds: u64,
    pub(crate) count: usize,
}

/// How a node failed to boot: the package's kinds (aws-facts B.17, `protected-mode-error-count`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Bootstrap {
    /// A static node that is being replaced was not up in time.
    StaticReplacementTimeout,
    /// slurmctld waited in vain for the node (ResumeTimeout).
    DynamicResumeTimeout,
    /// Its instance went, failed its checks or registered as something else before the node was up.
    Other,
}

impl Bootstrap {
    /// The event's word for it: a key of [`Report::boot_failures`].
    pub(crate) fn event(self) -> &'static str {
        match self {
            Self::StaticReplacementTimeout => "static-replacement-timeout-error",
            Self::DynamicResumeTimeout => "dynamic-resume-timeout-error",
            Self::Other => "other-bootstrap-error",
        }
    }
}

/// Fills what no rule has filled.
pub(super) fn watch(draft: &mut Draft<'_>) {
    let now = draft.snapshot.now;
    let in_vain = draft.facts.iter().filter(|facts| is_backed_in_vain(facts) && !draft.is_out_of_service(facts));
    draft.report.invalid_backing = in_vain.map(|facts| facts.name.to_owned()).collect();
    let Draft { facts, report, snapshot, .. } = draft;
    // Neighbours are mostly alike, and a text for each of 10,000 nodes is to be felt.
    for alike in facts.chunk_by(|one, other| one.node.state == other.node.state) {
        *report.states.entry(alike[0].node.state.to_string()).or_default() += alike.len();
    }
    for facts in facts.iter() {
        if is_not_responding(facts) && !report.not_responding.iter().any(|name| name == facts.name) {
            report.not_responding.push(facts.name.to_owned());
        }
        if let Some(since) = idle_since(facts) {
            let seconds = now.secs().saturating_sub(since);
            let idle = report.idle[usize::from(!facts.is_static)].get_or_insert_with(|| Idle {
                node: facts.name.to_owned(),
                seconds,
                count: 0,
            });
            idle.count += 1;
            if seconds > idle.seconds {
                (idle.node, idle.seconds) = (facts.name.to_owned(), seconds);
            }
        }
    }
    report.instances = snapshot.instances.values().filter(|instance| instance.state.is_live()).count();
}

/// Its instance is gone, and not because the node goes off.
fn is_backed_in_vain(facts: &Facts<'_>) -> bool {
    let state = &facts.node.state;
    facts.is_gone && !state::is_powering_down(state) && !state::is_off(state)
}

/// slurmctld has set it down because slurmd was not heard of (aws-facts B.16).
fn is_not_responding(facts: &Facts<'_>) -> bool {
    facts.node.state.is_down() && facts.node.reason.as_deref().is_some_and(|reason| reason.starts_with("Not responding"))
}

/// Seconds since 1970: the last job's end on an idle node, or the node's start where that came later. `None` for a node that is not idle
/// and in service, or whose times are not known.
fn idle_since(facts: &Facts<'_>) -> Option<u64> {
    let node = facts.node;
    let is_idle = state::is_online(&node.state) && node.state.base == Base::Idle && !state::has_job(&node.state);
    if is_idle { node.last_busy.max(node.slurmd_start_time) } else { None }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::World;
    use super::*;
    use crate::model::cluster::PartitionState;
    use crate::model::instance::InstanceState;

    fn watched(world: &World) -> Report {
        let mut draft = Draft::new(&world.snapshot, &world.memory, &world.policy);
        watch(&mut draft);
        draft.finish().report
    }

    #[test]
    fn the_longest_idle_node_of_each_kind() {
        let mut world = World::new();
        let ago = |seconds: u64| Some(World::new().ago(seconds).secs());
        for (node, state, busy, started) in [
            ("q1-dy-c5-1", "IDLE+CLOUD", ago(100), ago(900)),
            ("q1-dy-c5-2", "IDLE+CLOUD+PLANNED", ago(250), ago(900)),
            // Busy in its former life only.
            ("q1-dy-c5-3", "IDLE+CLOUD", ago(5000), ago(200)),
            ("q1-dy-c5-4", "IDLE+CLOUD", None, None),
            ("q1-dy-c5-5", "MIXED+CLOUD", ago(1000), ago(1000)),
            ("q1-dy-c5-6", "IDLE+COMPLETING+CLOUD", ago(1000), ago(1000)),
            ("q1-dy-c5-7", "IDLE+CLOUD+POWERED_DOWN", ago(1000), ago(1000)),
            ("q1-dy-c5-8", "IDLE+CLOUD+DRAIN", ago(1000), ago(1000)),
            ("debug1", "IDLE", ago(1000), ago(1000)),
            ("q1-st-c5-1", "IDLE+CLOUD", None, ago(70)),
        ] {
            let slurm = world.node(node, state).slurm(node);
            (slurm.last_busy, slurm.slurmd_start_time) = (busy, started);
        }
        let expected = [("q1-st-c5-1", 70, 1), ("q1-dy-c5-2", 250, 3)];
        assert_eq!(
            watched(&world).idle,
            expected.map(|(node, seconds, count)| Some(Idle { node: node.to_owned(), seconds, count }))
        );
        assert_eq!(watched(&World::new()).idle, [None, None]);
    }

    #[test]
    fn states_instances_and_nodes_that_do_not_respond() {
        let mut world = World::new();
        world.nodes("q1-dy-c5-", 2, "IDLE+CLOUD+POWERED_DOWN").node("debug1", "IDLE");
        world.node("q1-dy-c5-3", "DOWN+CLOUD+NOT_RESPONDING").reason("q1-dy-c5-3", "Not responding");
        world.node("q1-dy-c5-4", "DOWN+CLOUD").reason("q1-dy-c5-4", "bad disk");
        world.instance("i-1", InstanceState::Running, 10);
        world.instance("i-2", InstanceState::Terminated, 10);
        world.instance("i-3", InstanceState::Pending, 10);
        let report = watched(&world);
        let states: Vec<(&str, usize)> = report.states.iter().map(|(state, count)| (state.as_str(), *count)).collect();
        assert_eq!(states, [("DOWN+CLOUD", 1), ("DOWN+CLOUD+NOT_RESPONDING", 1), ("IDLE+CLOUD+POWERED_DOWN", 2)]);
        assert_eq!(report.not_responding, ["q1-dy-c5-3"]);
        assert_eq!(report.instances, 2);
    }

    #[test]
    fn nodes_whose_instance_is_gone_while_they_are_in_service() {
        let mut world = World::new();
        for (number, node_state, instance) in [
            (1, "ALLOCATED+CLOUD", InstanceState::Running),
            (2, "ALLOCATED+CLOUD", InstanceState::Terminated),
            (3, "IDLE+CLOUD+POWERING_DOWN", InstanceState::Terminated),
            (4, "IDLE+CLOUD+POWERED_DOWN", InstanceState::Terminated),
            (5, "DOWN+CLOUD+POWERED_DOWN", InstanceState::Terminated),
        ] {
            let node = format!("q1-dy-c5-{number}");
            world.node(&node, node_state).back(&node, &format!("i-{number}"), instance, 900);
        }
        world.node("q1-dy-c5-6", "IDLE+CLOUD+POWERED_DOWN");
        assert_eq!(watched(&world).invalid_backing, ["q1-dy-c5-2", "q1-dy-c5-5"]);
        world.partition("q1", PartitionState::Inactive);
        assert!(watched(&world).invalid_backing.is_empty());
    }

    #[test]
    fn kinds_of_boot_failures_are_the_events_words() {
        let kinds = [Bootstrap::StaticReplacementTimeout, Bootstrap::DynamicResumeTimeout, Bootstrap::Other];
        let words = ["static-replacement-timeout-error", "dynamic-resume-timeout-error", "other-bootstrap-error"];
        assert_eq!(kinds.map(Bootstrap::event), words);
    }
}
