//! EC2's machine, in the words this project needs.

use std::collections::BTreeMap;

use super::time::Timestamp;

/// Where an instance is in its life (EC2's `InstanceStateName`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum InstanceState {
    Pending,
    Running,
    ShuttingDown,
    Terminated,
    Stopping,
    Stopped,
    /// A state this version does not know; treated as alive, so that nothing is forgotten.
    Unknown,
}

impl InstanceState {
    /// Costs money or may come back: everything but shutting-down and terminated.
    pub(crate) fn is_live(self) -> bool {
        !matches!(self, Self::ShuttingDown | Self::Terminated)
    }

    /// Can still come up behind its node without help: pending or running.
    pub(crate) fn is_usable(self) -> bool {
        matches!(self, Self::Pending | Self::Running)
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::ShuttingDown => "shutting-down",
            Self::Terminated => "terminated",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Unknown => "unknown",
        }
    }
}

/// One instance as EC2 told it. Address and host name come from the interface with network card 0, device 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Instance {
    /// `i-…`
    pub(crate) id: String,
    pub(crate) state: InstanceState,
    /// Absent until EC2 knows it (CreateFleet's instances, for some seconds).
    pub(crate) private_ip: Option<String>,
    /// First label of the private DNS name (`ip-10-0-0-5`).
    pub(crate) hostname: Option<String>,
    pub(crate) instance_type: Option<String>,
    pub(crate) zone: Option<String>,
    pub(crate) subnet: Option<String>,
    /// EC2's clock, whole seconds.
    pub(crate) launch_time: Option<Timestamp>,
    pub(crate) tags: BTreeMap<String, String>,
}

/// Tag keys that tie an instance to what launched it. `:state` is the random id of the state folder.
pub(crate) mod tag {
    pub(crate) const CLUSTER: &str = "slurm-ec2:cluster";
    pub(crate) const STATE: &str = "slurm-ec2:state";
    pub(crate) const LAUNCH: &str = "slurm-ec2:launch";
    pub(crate) const GROUP: &str = "slurm-ec2:group";
    /// Index of the batch in the launch record.
    pub(crate) const BATCH: &str = "slurm-ec2:batch";
    /// The node's name, where `[launch] node_tags` asks for it.
    pub(crate) const NODE: &str = "slurm-ec2:node";
    /// ParallelCluster's own, from its launch templates (aws-facts B.10): the cluster, and [`PARALLELCLUSTER_COMPUTE`] for its nodes.
    pub(crate) const PARALLELCLUSTER_NAME: &str = "parallelcluster:cluster-name";
    pub(crate) const PARALLELCLUSTER_TYPE: &str = "parallelcluster:node-type";
    pub(crate) const PARALLELCLUSTER_COMPUTE: &str = "Compute";
    /// What every key of ours begins with; a tag of the config must not.
    pub(crate) const PREFIX: &str = "slurm-ec2:";
}
