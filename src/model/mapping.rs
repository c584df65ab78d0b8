//! Which instance stands behind which node: the document that `store/` keeps and other programs read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::time::Timestamp;

/// The only version of the document this program reads and writes.
pub(crate) const VERSION: u32 = 1;

/// `mapping.json`. Others may rely on its form (architecture.md "The mapping").
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mapping {
    pub(crate) version: u32,
    pub(crate) cluster: String,
    #[serde(default)]
    pub(crate) nodes: BTreeMap<String, NodeEntry>,
    /// Instances that are to be terminated and are not yet seen gone, by instance id.
    #[serde(default)]
    pub(crate) condemned: BTreeMap<String, Condemned>,
}

impl Mapping {
    pub(crate) fn new(cluster: &str) -> Self {
        Self { version: VERSION, cluster: cluster.to_owned(), nodes: BTreeMap::new(), condemned: BTreeMap::new() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum NodeState {
    /// Claimed by a launch; no instance known yet.
    Launching,
    /// An instance stands behind the node.
    Running,
}

/// What is known of one node. Fields not known yet are absent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeEntry {
    pub(crate) state: NodeState,
    pub(crate) group: String,
    /// The launch (run of a program) that claimed the node.
    pub(crate) launch: String,
    /// When Slurm last asked for the node, by the head node's clock.
    pub(crate) requested: Timestamp,
    /// When the state began.
    pub(crate) since: Timestamp,
    /// When the launch request of its instance was sent, by the head node's clock: what `requested` is compared with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) launched: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) instance_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) private_ip: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hostname: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) instance_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) zone: Option<String>,
    /// Slurm could not be reached: the next program tells it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) unpublished: bool,
}

/// Why an instance is to go, and which node it stood behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Condemned {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    pub(crate) launch: String,
    pub(crate) since: Timestamp,
    /// When its launch request was sent (head node's clock) or EC2's LaunchTime: an id younger than 10 minutes that EC2
    /// does not know is only not visible yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) launched: Option<Timestamp>,
    pub(crate) why: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form serde asks for")]
fn is_false(value: &bool) -> bool {
    !value
}
