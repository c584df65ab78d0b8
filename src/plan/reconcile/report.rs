//! What a pass saw, for the log and for the events; decides nothing.

use std::collections::BTreeMap;

use super::Draft;

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
    /// An address or a mapping entry, and no instance.
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

/// Fills what no rule has filled.
pub(super) fn watch(draft: &mut Draft<'_>) {
    let _ = draft;
}
