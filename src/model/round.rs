//! What the decisions hand to the adapters: launch requests, and what came of them.

use serde::{Deserialize, Serialize};

use super::failure::Failure;
use super::instance::Instance;
use super::policy::Strategy;
use super::recipe::Recipe;

/// One launch call, complete: repeated with the same `client_token` it is the same call. Kept in the launch record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LaunchRequest {
    pub(crate) group: String,
    pub(crate) recipe: Recipe,
    pub(crate) strategy: Strategy,
    /// Instances wanted (MaxCount / TotalTargetCapacity).
    pub(crate) count: u32,
    /// EC2 `ClientToken`, at most 64 ASCII characters.
    pub(crate) client_token: String,
    /// Tags of this launch (cluster, state, launch, group, batch, …) and the config's own, for instances (and volumes).
    pub(crate) tags: Vec<(String, String)>,
}

impl LaunchRequest {
    /// MinCount / MinTargetCapacity by strategy.
    pub(crate) fn min_count(&self) -> u32 {
        match self.strategy {
            Strategy::BestEffort | Strategy::GreedyAllOrNothing => 1,
            Strategy::AllOrNothing => self.count,
        }
    }
}

/// What a launch call gave.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Launched {
    /// RunInstances' come with their addresses, CreateFleet's are ids only.
    pub(crate) instances: Vec<Instance>,
    /// CreateFleet's own error list; RunInstances has none when it succeeds.
    pub(crate) errors: Vec<Failure>,
    pub(crate) request_id: Option<String>,
}

/// An instance for a node: goes into the mapping, then to Slurm.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Assignment {
    pub(crate) node: String,
    pub(crate) instance: Instance,
}
