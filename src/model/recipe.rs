//! A node group's launch recipe: what is asked of EC2 for its nodes.

use std::collections::BTreeMap;
use std::fmt;

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
    /// As the launch template says; RunInstances only.
    Template,
}

/// A launch template by exactly one of name and id, and its version (`$Default`, `$Latest` or a number).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
    pub(crate) nodes: GroupNodes,
    pub(crate) recipe: Recipe,
    /// Tried one after the other for what the recipe did not give, when that failed for capacity, quota or zone.
    pub(crate) fallbacks: Vec<Recipe>,
    pub(crate) launch: LaunchPolicy,
    /// `cr-…`: the reservation of the Capacity Block that its nodes run in, where they do and the configuration says which.
    pub(crate) capacity_reservation: Option<String>,
}

/// Which nodes a group has; `Settings::group_of` answers which group a node belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GroupNodes {
    /// The host list as written.
    List(String),
    /// Every node of a ParallelCluster compute resource: `{queue}-{st|dy}-{resource}-{n}`.
    Queue { queue: String, resource: String },
}

impl fmt::Display for GroupNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::List(list) => f.write_str(list),
            Self::Queue { queue, resource } => write!(f, "{queue}-(st|dy)-{resource}-N"),
        }
    }
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
    /// Tag instances alone: ParallelCluster's role may tag nothing else, and its template tags the volumes (aws-facts B.13).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) tag_instances_only: bool,
    /// Parameters of the API call, in the API's own spelling; each replaces the one made from the fields above whole
    /// (aws-facts B.9). Checked against the API when the configuration is read.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub(crate) overrides: serde_json::Map<String, serde_json::Value>,
}
