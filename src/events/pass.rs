//! `clustermgtd.events`: what one pass saw, counted. Numbers and names in, lines out. Of the package's events these are the ones at its
//! default level (aws-facts B.17); those at DEBUG are not written.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{NODES, Node, Source, datetime};

/// What a pass saw. Names in any order; a list is cut to 100, its count is the true one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pass<'a> {
    /// `ec2_health_check`, `scheduled_events_check` → nodes whose instance fails it.
    pub(crate) failing_checks: Option<&'a BTreeMap<&'static str, Vec<String>>>,
    /// Nodes with an address and no instance.
    pub(crate) invalid_backing: &'a [String],
    /// Nodes that are down because slurmd does not respond.
    pub(crate) not_responding: &'a [String],
    /// Kind of boot failure → nodes.
    pub(crate) boot_failures: Option<&'a BTreeMap<&'static str, Vec<String>>>,
    /// The longest idle static and dynamic node, and how many are idle.
    pub(crate) idle: [Option<IdleNode<'a>>; 2],
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct IdleNode<'a> {
    pub(crate) name: &'a str,
    pub(crate) seconds: u64,
    pub(crate) count: usize,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Counted<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    failure_type: Option<&'a str>,
    count: usize,
    nodes: Vec<Node<'a>>,
}

impl<'a> Counted<'a> {
    fn of(failure_type: Option<&'a str>, nodes: &'a [String]) -> Self {
        Self { failure_type, count: nodes.len(), nodes: nodes.iter().take(NODES).map(|name| Node { name }).collect() }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Idle<'a> {
    node_type: &'static str,
    count: usize,
    longest_idle_time: f64,
    longest_idle_node: Node<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Heartbeat {
    heartbeat_timestamp: String,
}

/// The lines of one pass; kinds of trouble that nothing had are left out.
pub(crate) fn lines(source: &Source<'_>, pass: &Pass<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    let mut warn = |event, message, kind, nodes: &[String]| {
        if !nodes.is_empty() {
            lines.push(source.event("WARNING", event, message, Counted::of(kind, nodes)));
        }
    };
    for (kind, nodes) in pass.failing_checks.into_iter().flatten() {
        warn("nodes-failing-health-check-count", "Number of nodes whose instance fails a check of EC2", Some(*kind), nodes);
    }
    warn("invalid-backing-instance-count", "Number of nodes whose instance is not there", None, pass.invalid_backing);
    warn(
        "node-not-responding-down-count",
        "Number of nodes that are down because they do not respond",
        None,
        pass.not_responding,
    );
    for (kind, nodes) in pass.boot_failures.into_iter().flatten() {
        warn("protected-mode-error-count", "Number of nodes that failed to boot", Some(*kind), nodes);
    }
    for (node_type, idle) in ["static", "dynamic"].into_iter().zip(pass.idle) {
        let Some(idle) = idle else { continue };
        #[expect(clippy::cast_precision_loss, reason = "seconds that a node has been idle stay far below 2^52")]
        let longest_idle_time = idle.seconds as f64;
        let detail = Idle { node_type, count: idle.count, longest_idle_time, longest_idle_node: Node { name: idle.name } };
        lines.push(source.event("INFO", "compute-node-idle-time", "Longest time that a node has been idle", detail));
    }
    lines
}

/// The line of each pass' end.
pub(crate) fn heartbeat(source: &Source<'_>) -> String {
    let detail = Heartbeat { heartbeat_timestamp: datetime(source.at) };
    source.event("INFO", "clustermgtd-heartbeat", "clustermgtd has ended a pass", detail)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::Component;
    use super::*;

    fn source() -> Source<'static> {
        let at = "2026-03-14T15:09:26.535Z".parse().unwrap();
        Source { component: Component::Clustermgtd, cluster: "orchard", instance_id: "i-0a11e57000c0ffee1", at }
    }

    fn names(count: usize) -> Vec<String> {
        (1..=count).map(|n| format!("q-dy-r-{n}")).collect()
    }

    #[test]
    fn what_the_metric_filters_look_at() {
        let (few, many) = (names(2), names(150));
        let checks = BTreeMap::from([("ec2_health_check", many.clone()), ("scheduled_events_check", Vec::new())]);
        let boots = BTreeMap::from([("other-bootstrap-error", few.clone())]);
        let pass = Pass {
            failing_checks: Some(&checks),
            invalid_backing: &few,
            not_responding: &few[..1],
            boot_failures: Some(&boots),
            idle: [None, Some(IdleNode { name: "q-dy-r-1", seconds: 61, count: 3 })],
        };
        let events: Vec<serde_json::Value> =
            lines(&source(), &pass).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        let seen: Vec<(&str, &str, Option<&str>, u64)> = events
            .iter()
            .map(|event| {
                let detail = &event["detail"];
                (
                    event["event-type"].as_str().unwrap(),
                    event["level"].as_str().unwrap(),
                    detail["failure-type"].as_str().or(detail["node-type"].as_str()),
                    detail["count"].as_u64().unwrap(),
                )
            })
            .collect();
        assert_eq!(
            seen,
            [
                ("nodes-failing-health-check-count", "WARNING", Some("ec2_health_check"), 150),
                ("invalid-backing-instance-count", "WARNING", None, 2),
                ("node-not-responding-down-count", "WARNING", None, 1),
                ("protected-mode-error-count", "WARNING", Some("other-bootstrap-error"), 2),
                ("compute-node-idle-time", "INFO", Some("dynamic"), 3),
            ]
        );
        assert_eq!(events[0]["detail"]["nodes"].as_array().unwrap().len(), 100, "cut, and the count is true");
        assert_eq!(events[4]["detail"]["longest-idle-time"].as_f64(), Some(61.0));
        assert!(events.iter().all(|event| event["component"] == "clustermgtd" && event["scheduler"] == "slurm"));
    }

    #[test]
    fn a_quiet_pass_has_its_heartbeat_only() {
        assert!(lines(&source(), &Pass::default()).is_empty());
        let event: serde_json::Value = serde_json::from_str(&heartbeat(&source())).unwrap();
        assert_eq!(event["event-type"], "clustermgtd-heartbeat");
        assert_eq!(event["detail"]["heartbeat-timestamp"], "2026-03-14T15:09:26.535+00:00");
    }
}
