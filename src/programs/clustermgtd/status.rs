//! `clustermgtd-status.json` in the state folder: the truth about the last pass, for people and for other programs. Replaced whole after
//! every pass, also one that could not see everything.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use crate::model::fleet::FleetStatus;
use crate::model::time::Timestamp;
use crate::plan::reconcile::{Memory, Report};
use crate::store::atomic;

const FILE: &str = "clustermgtd-status.json";

/// How a pass ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Outcome {
    /// Everything was seen and decided.
    Complete,
    /// Something could not be seen: nothing was done.
    Incomplete,
    /// Nothing was to be done at all: the fleet is being started or stopped, or management is switched off.
    Resting,
}

/// What is known when a pass has ended.
#[derive(Debug, Clone)]
pub(super) struct Ended<'a> {
    pub(super) began: Timestamp,
    pub(super) ended: Timestamp,
    pub(super) outcome: Outcome,
    /// What was missing, or what was not done.
    pub(super) problem: Option<&'a str>,
    pub(super) fleet: Option<FleetStatus>,
    /// Of the last pass that was complete.
    pub(super) report: &'a Report,
    pub(super) actions: Actions,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Actions {
    pub(super) done: usize,
    /// To the next pass.
    pub(super) left: usize,
    /// Nodes whose launches began.
    pub(super) launching: usize,
}

#[derive(Serialize)]
struct File<'a> {
    version: u32,
    cluster: &'a str,
    pid: u32,
    pass: Pass<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fleet: Option<FleetStatus>,
    nodes: &'a BTreeMap<String, usize>,
    instances: usize,
    actions: Actions,
    /// Static nodes that are being replaced, and why.
    replacing: BTreeMap<&'a str, &'a str>,
    shortages: BTreeMap<&'a str, Shortage<'a>>,
    failing_checks: &'a BTreeMap<&'static str, Vec<String>>,
    queues: BTreeMap<&'a str, Queue<'a>>,
}

#[derive(Serialize)]
struct Pass<'a> {
    began: Timestamp,
    ended: Timestamp,
    result: Outcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<&'a str>,
}

#[derive(Serialize)]
struct Shortage<'a> {
    code: &'a str,
    since: Timestamp,
    until: Timestamp,
}

/// A queue whose nodes failed to boot.
#[derive(Serialize)]
struct Queue<'a> {
    failures: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    threshold: Option<u64>,
    /// The latest, oldest first.
    last: Vec<Failure<'a>>,
    /// Since when protected mode keeps it inactive.
    #[serde(skip_serializing_if = "Option::is_none")]
    protected_since: Option<Timestamp>,
    /// Ends that.
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<&'a str>,
}

#[derive(Serialize)]
struct Failure<'a> {
    node: &'a str,
    at: Timestamp,
    why: &'a str,
}

/// Writes it; `threshold` is that of protected mode and `command` ends it.
pub(super) fn write(
    dir: &Path,
    cluster: &str,
    ended: &Ended<'_>,
    memory: &Memory,
    threshold: Option<u64>,
    command: &str,
) -> std::io::Result<()> {
    let file = File {
        version: 1,
        cluster,
        pid: std::process::id(),
        pass: Pass { began: ended.began, ended: ended.ended, result: ended.outcome, problem: ended.problem },
        fleet: ended.fleet,
        nodes: &ended.report.states,
        instances: ended.report.instances,
        actions: ended.actions,
        replacing: memory.replacing.iter().map(|(node, replacement)| (node.as_str(), replacement.why.as_str())).collect(),
        shortages: memory
            .shortages
            .iter()
            .map(|(group, shortage)| {
                (group.as_str(), Shortage { code: &shortage.code, since: shortage.since, until: shortage.until })
            })
            .collect(),
        failing_checks: &ended.report.failing_checks,
        queues: queues(memory, threshold, command),
    };
    let mut bytes = serde_json::to_vec_pretty(&file)?;
    bytes.push(b'\n');
    atomic::replace_unsynced(&dir.join(FILE), &bytes, atomic::FILE_MODE)
}

fn queues<'a>(memory: &'a Memory, threshold: Option<u64>, command: &'a str) -> BTreeMap<&'a str, Queue<'a>> {
    let names = memory.failures.keys().chain(memory.protected.keys());
    names
        .map(|queue| {
            let groups = memory.failures.get(queue);
            let of_groups = || groups.into_iter().flat_map(BTreeMap::values);
            let mut last: Vec<Failure<'_>> = of_groups()
                .flat_map(|group| &group.last)
                .map(|failure| Failure { node: &failure.node, at: failure.at, why: &failure.why })
                .collect();
            last.sort_by_key(|failure| failure.at);
            let protected_since = memory.protected.get(queue).copied();
            let failures = of_groups().map(|group| group.count).sum();
            let command = protected_since.map(|_| command);
            (queue.as_str(), Queue { failures, threshold, last, protected_since, command })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::plan::reconcile::{GroupFailures, NodeFailure};

    #[test]
    fn m24_a_protected_queue_is_shown_with_count_failures_and_command() {
        let dir = tempfile::tempdir().unwrap();
        let at = Timestamp::from_secs;
        let failure = |node: &str, time| NodeFailure { node: node.to_owned(), at: at(time), why: "never registered".to_owned() };
        let mut memory = Memory::default();
        let groups = BTreeMap::from([
            ("q1/a".to_owned(), GroupFailures { count: 4, last: vec![failure("q1-dy-a-1", 9)] }),
            ("q1/b".to_owned(), GroupFailures { count: 6, last: vec![failure("q1-dy-b-1", 5)] }),
        ]);
        memory.failures.insert("q1".to_owned(), groups);
        memory.protected.insert("q1".to_owned(), at(20));
        let ended = Ended {
            began: at(19),
            ended: at(20),
            outcome: Outcome::Complete,
            problem: None,
            fleet: Some(FleetStatus::Protected),
            report: &Report::default(),
            actions: Actions::default(),
        };
        write(dir.path(), "hpc", &ended, &memory, Some(10), "slurm-ec2 fleet start").unwrap();
        let text = std::fs::read(dir.path().join(FILE)).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let queue = &value["queues"]["q1"];
        assert_eq!((queue["failures"].as_u64(), queue["threshold"].as_u64()), (Some(10), Some(10)));
        assert_eq!(
            (queue["last"][0]["node"].as_str(), queue["last"][1]["node"].as_str()),
            (Some("q1-dy-b-1"), Some("q1-dy-a-1"))
        );
        assert_eq!(queue["command"], "slurm-ec2 fleet start");
        assert_eq!((value["fleet"].as_str(), value["pass"]["result"].as_str()), (Some("PROTECTED"), Some("complete")));
    }
}
