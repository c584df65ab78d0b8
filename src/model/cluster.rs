//! What Slurm and EC2 say about the cluster besides its nodes and instances.

use super::time::Timestamp;

/// `State=` of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartitionState {
    Up,
    Down,
    Drain,
    /// Takes no new jobs and starts none; what runs goes on.
    Inactive,
    /// A word that this version does not know.
    Other,
}

/// One partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Partition {
    pub(crate) name: String,
    pub(crate) state: PartitionState,
}

/// One reservation of Slurm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) name: String,
    /// Its nodes, expanded.
    pub(crate) nodes: Vec<String>,
}

/// What is wrong with an instance by DescribeInstanceStatus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ailment {
    pub(crate) check: Check,
    /// Impaired since then; absent for events and where EC2 does not tell.
    pub(crate) since: Option<Timestamp>,
    /// For the reason and the log: `instance reachability failed`, `system-reboot 2026-12-01: …`.
    pub(crate) text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Check {
    /// The instance's own status check.
    Instance,
    /// That of the system it runs on.
    System,
    /// A scheduled event that is neither completed nor cancelled.
    Event,
}

impl Check {
    /// The package's word for the kind of check (aws-facts B.16, B.17).
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Instance | Self::System => "ec2_health_check",
            Self::Event => "scheduled_events_check",
        }
    }
}

/// A Capacity Block (or another capacity reservation) as EC2 tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CapacityBlock {
    /// `cr-…`
    pub(crate) id: String,
    /// EC2's word: `active`, `scheduled`, `payment-pending`, `expired`, …
    pub(crate) state: String,
}

impl CapacityBlock {
    pub(crate) fn is_active(&self) -> bool {
        self.state == "active"
    }
}
