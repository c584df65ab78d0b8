//! The configuration as meant: what `file.rs` makes of the TOML. After this nothing is checked again.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::model::policy::RunPolicy;
use crate::model::recipe::Group;

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The file it came from, for messages.
    pub(crate) path: PathBuf,
    pub(crate) cluster: String,
    pub(crate) region: String,
    /// Most names that one host list may stand for.
    pub(crate) hostlist_limit: usize,
    pub(crate) aws: AwsSettings,
    pub(crate) slurm: SlurmSettings,
    pub(crate) state_dir: PathBuf,
    pub(crate) log: LogSettings,
    pub(crate) run: RunPolicy,
    pub(crate) groups: Vec<Group>,
    /// Node name → index into `groups`. Filled for every configured node.
    pub(crate) node_group: NodeIndex,
}

impl Settings {
    /// The group a node belongs to; `None` for a node outside every group.
    pub(crate) fn group_of(&self, node: &str) -> Option<&Group> {
        self.node_group.get(node).map(|index| &self.groups[index])
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct NodeIndex(pub(crate) HashMap<String, u32>);

impl NodeIndex {
    pub(crate) fn get(&self, node: &str) -> Option<usize> {
        self.0.get(node).map(|index| *index as usize)
    }
}

/// `[aws]`
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AwsSettings {
    pub(crate) endpoint_url: Option<String>,
    pub(crate) profile: Option<String>,
    /// Absolute: the programs have no HOME (aws-facts A.10).
    pub(crate) config_file: Option<PathBuf>,
    pub(crate) credentials_file: Option<PathBuf>,
    /// For EC2 only; instance metadata never goes through it.
    pub(crate) proxy: Option<String>,
    pub(crate) no_proxy: Vec<String>,
    pub(crate) ca_bundle: Option<PathBuf>,
    /// Tries of one API call, the first included.
    pub(crate) attempts: u32,
    pub(crate) connect_timeout: Duration,
    /// One try.
    pub(crate) attempt_timeout: Duration,
    /// All tries of one call.
    pub(crate) operation_timeout: Duration,
}

/// How Slurm learns a node's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeAddress {
    /// `scontrol update nodeaddr=…`
    Scontrol,
    /// slurmd's registration sets it (23.11+); InstanceId is still told where the version takes it.
    Registration,
    /// Nothing is told.
    None,
}

/// `[slurm]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlurmSettings {
    pub(crate) bin_dir: PathBuf,
    pub(crate) conf: PathBuf,
    pub(crate) node_address: NodeAddress,
    /// Nodes in one scontrol call at most; argument bytes cut earlier.
    pub(crate) nodes_per_call: usize,
    pub(crate) command_timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// `[log]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogSettings {
    pub(crate) dir: PathBuf,
    pub(crate) level: tracing::Level,
    pub(crate) format: LogFormat,
}
