//! A node group's launch recipe: what is asked of EC2 for its nodes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::policy::LaunchPolicy;

/// Which EC2 call launches the group's nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Api {
    RunInstances,
    CreateFleet,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(clippy::enum_variant_names, reason = "EC2's words")]
pub(crate) enum Capacity {
    OnDemand,
    Spot,
    CapacityBlock,
}

/// A launch template by exactly one of name and id, and its version (`$Default`, `$Latest` or a number).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LaunchTemplate {
    pub(crate) name: Option<String>,
    pub(crate) id: Option<String>,
    pub(crate) version: String,
}

impl LaunchTemplate {
    /// How the log and the reasons call it.
    pub(crate) fn label(&self) -> &str {
        self.name.as_deref().or(self.id.as_deref()).unwrap_or("?")
    }
}

/// One `[[group]]`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Group {
    pub(crate) name: String,
    /// The host list as written; `Settings::group_of` answers which group a node belongs to.
    pub(crate) nodes: String,
    pub(crate) recipe: Recipe,
    pub(crate) launch: LaunchPolicy,
}

/// What goes into the request, apart from the count. Recorded in the launch record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Recipe {
    pub(crate) api: Api,
    pub(crate) launch_template: LaunchTemplate,
    /// Empty = the template's own. RunInstances takes at most one.
    pub(crate) instance_types: Vec<String>,
    /// Empty = the template's own. RunInstances takes at most one.
    pub(crate) subnets: Vec<String>,
    pub(crate) capacity: Capacity,
    /// EC2's own word, checked against the capacity (aws-facts A.2).
    pub(crate) allocation_strategy: Option<String>,
    /// US dollars an hour, spot only.
    pub(crate) max_price: Option<f64>,
    /// The config's own tags, for instances and volumes.
    pub(crate) tags: BTreeMap<String, String>,
}
