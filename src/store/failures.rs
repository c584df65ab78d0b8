//! Boot failures per group: nodes that never registered, counted, and when the fleet was last started, from which they count anew. Nodes
//! in, counts out; decides nothing about what follows.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::StoreError;
use super::ledger::{Document, Ledger};
use crate::model::time::Timestamp;

/// Nodes remembered per group, the latest: enough to see a pattern, and the file stays small.
const NODES_KEPT: usize = 50;

/// `failures.json`
#[derive(Debug, Clone)]
pub(crate) struct BootFailures {
    ledger: Ledger,
}

/// What is kept of one group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GroupFailures {
    /// Failures since the count was last cleared.
    pub(crate) count: u64,
    pub(crate) last: Timestamp,
    /// The latest, oldest first; at most 50. A node that failed again stands at its last time.
    pub(crate) nodes: Vec<NodeFailure>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodeFailure {
    pub(crate) node: String,
    pub(crate) at: Timestamp,
}

/// See [`BootFailures::noted`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Noted {
    /// When the fleet was last started; `None`: not since the folder was made.
    pub(crate) started: Option<Timestamp>,
    /// The nodes that failed and when, of all groups, oldest first.
    pub(crate) nodes: Vec<(String, Timestamp)>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FailuresFile {
    version: u32,
    groups: BTreeMap<String, GroupFailures>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    started: Option<Timestamp>,
}

impl Default for FailuresFile {
    fn default() -> Self {
        Self { version: Self::VERSION, groups: BTreeMap::new(), started: None }
    }
}

impl Document for FailuresFile {
    const VERSION: u32 = 1;
    const DURABLE: bool = true;

    fn version(&self) -> u32 {
        self.version
    }
}

impl BootFailures {
    pub(crate) fn in_folder(dir: &Path) -> Self {
        Self { ledger: Ledger::new(dir, "failures") }
    }

    /// All groups that failed.
    #[cfg(test)]
    pub(crate) fn read(&self) -> Result<BTreeMap<String, GroupFailures>, StoreError> {
        Ok(self.ledger.read::<FailuresFile>()?.unwrap_or_default().groups)
    }

    /// What clustermgtd counts by, of one moment. On an error: log it and go on as if there were nothing.
    pub(crate) fn noted(&self) -> Result<Noted, StoreError> {
        let file = self.ledger.read::<FailuresFile>()?.unwrap_or_default();
        let failures = file.groups.into_values().flat_map(|group| group.nodes);
        let mut nodes: Vec<_> = failures.map(|failure| (failure.node, failure.at)).collect();
        nodes.sort_by(|(a, first), (b, second)| first.cmp(second).then_with(|| a.cmp(b)));
        Ok(Noted { started: file.started, nodes })
    }

    /// Forgets all of them, for the fleet is started, and keeps that it was: who counted them elsewhere may not see it otherwise.
    pub(crate) fn start_anew(&self, now: Timestamp) -> Result<(), StoreError> {
        self.ledger.update(|file: &mut FailuresFile| {
            file.groups.clear();
            file.started = Some(now);
        })
    }

    /// Counts one failure for each of these nodes of the group and gives the group's new count.
    pub(crate) fn note(&self, group: &str, nodes: &[String], now: Timestamp) -> Result<u64, StoreError> {
        self.ledger.update(|file: &mut FailuresFile| {
            let kept =
                file.groups.entry(group.to_owned()).or_insert_with(|| GroupFailures { count: 0, last: now, nodes: Vec::new() });
            kept.count = kept.count.saturating_add(nodes.len() as u64);
            kept.last = now;
            kept.nodes.retain(|failure| !nodes.contains(&failure.node));
            kept.nodes.extend(nodes.iter().map(|node| NodeFailure { node: node.clone(), at: now }));
            kept.nodes.drain(..kept.nodes.len().saturating_sub(NODES_KEPT));
            kept.count
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn counted_per_group_with_the_latest_nodes() {
        let dir = tempfile::tempdir().unwrap();
        let store = BootFailures::in_folder(dir.path());
        assert!(store.read().unwrap().is_empty());
        let names = |from: usize, to: usize| (from..to).map(|n| format!("n{n}")).collect::<Vec<_>>();
        assert_eq!(store.note("a", &names(0, 2), Timestamp::from_secs(1)).unwrap(), 2);
        assert_eq!(store.note("a", &names(1, 2), Timestamp::from_secs(2)).unwrap(), 3);
        store.note("b", &names(0, 1), Timestamp::from_secs(3)).unwrap();
        let a = &store.read().unwrap()["a"];
        assert_eq!((a.count, a.last), (3, Timestamp::from_secs(2)));
        let kept: Vec<(&str, u64)> = a.nodes.iter().map(|failure| (failure.node.as_str(), failure.at.secs())).collect();
        assert_eq!(kept, [("n0", 1), ("n1", 2)]);
        let told = store.noted().unwrap().nodes;
        let told: Vec<(&str, u64)> = told.iter().map(|(node, at)| (node.as_str(), at.secs())).collect();
        assert_eq!(told, [("n0", 1), ("n1", 2), ("n0", 3)], "of both groups");
        assert_eq!(store.note("a", &names(0, 500), Timestamp::from_secs(4)).unwrap(), 503);
        let a = &store.read().unwrap()["a"];
        assert_eq!((a.nodes.len(), a.nodes[49].node.as_str()), (50, "n499"));
        assert_eq!(store.read().unwrap().into_keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(store.noted().unwrap().started, None);
        store.start_anew(Timestamp::from_secs(5)).unwrap();
        assert!(store.read().unwrap().is_empty());
        store.note("a", &names(0, 1), Timestamp::from_secs(6)).unwrap();
        assert_eq!(store.noted().unwrap().started, Some(Timestamp::from_secs(5)), "also when there was nothing to forget");
    }
}
