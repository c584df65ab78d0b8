//! What clustermgtd remembers from pass to pass, and over its own restarts: kept as `clustermgtd.json` in the state folder.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::model::failure::BackoffKind;
use crate::model::time::Timestamp;

/// All of it. Unknown keys are errors: an older program must not drop what a newer one remembers without a word.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Memory {
    /// Instances that stood behind no node in the last pass, and since when.
    pub(crate) orphans: BTreeMap<String, Timestamp>,
    /// Instances found without a node when the mapping was rebuilt: they may serve one all the same, so they are never orphans.
    #[serde(default)]
    pub(crate) unbound: BTreeMap<String, Unbound>,
    /// Nodes that slurmctld did not hear in the last pass, and whose instance EC2 did not show.
    pub(crate) missing: BTreeMap<String, Missing>,
    /// Nodes in a state that is wrong only if it lasts: the state and the passes in which it was seen.
    pub(crate) watched: BTreeMap<String, Watched>,
    /// Static nodes that are being replaced.
    pub(crate) replacing: BTreeMap<String, Replacement>,
    /// Groups that rest because EC2 had nothing for them.
    pub(crate) shortages: BTreeMap<String, Shortage>,
    /// Boot failures by queue (partition), then by group.
    pub(crate) failures: BTreeMap<String, BTreeMap<String, GroupFailures>>,
    /// Which launch of a node was counted last: a node counts once per launch.
    pub(crate) counted: BTreeMap<String, String>,
    /// The latest boot failure of others (`failures.json`) that was counted.
    pub(crate) failures_seen: Timestamp,
    /// The last start of the fleet that was seen.
    #[serde(default)]
    pub(crate) started: Option<Timestamp>,
    /// Nodes that were drained because a check of their instance fails, with the instance.
    pub(crate) failing: BTreeMap<String, String>,
    /// Queues that protected mode has set inactive, and when.
    pub(crate) protected: BTreeMap<String, Timestamp>,
    /// When Capacity Blocks were last looked at.
    pub(crate) blocks_checked: Timestamp,
    /// Capacity Blocks that were not active then: their nodes are reserved.
    pub(crate) blocks_waiting: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Unbound {
    pub(crate) since: Timestamp,
    /// Passes running in which EC2 did not show it.
    pub(crate) unseen: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Missing {
    pub(crate) instance: String,
    pub(crate) since: Timestamp,
    pub(crate) passes: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Watched {
    /// Which rule watches it.
    pub(crate) rule: String,
    pub(crate) since: Timestamp,
    pub(crate) passes: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Replacement {
    /// When this replacement began.
    pub(crate) since: Timestamp,
    /// When a launch was last asked for.
    pub(crate) asked: Timestamp,
    pub(crate) why: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shortage {
    pub(crate) code: String,
    pub(crate) kind: BackoffKind,
    pub(crate) since: Timestamp,
    pub(crate) until: Timestamp,
    /// It is over, and kept until the nodes that lay there are seen otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) over: Option<Over>,
}

/// The end of a group's rest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Over {
    /// Nodes that were down because of the rest when it ended, and have been so in each pass since.
    pub(crate) nodes: BTreeSet<String>,
    /// Passes since then, the one that ended it included.
    pub(crate) passes: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GroupFailures {
    pub(crate) count: u64,
    /// The latest, oldest first; at most [`LAST_FAILURES`].
    pub(crate) last: Vec<NodeFailure>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodeFailure {
    pub(crate) node: String,
    pub(crate) at: Timestamp,
    pub(crate) why: String,
}

/// Failures that the line about protected mode names (M24).
pub(crate) const LAST_FAILURES: usize = 5;
