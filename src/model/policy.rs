//! How launches are made: the values of `[launch]`, which a group may override.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::failure::BackoffTimes;

/// Is part of a batch worth having?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Strategy {
    /// As many as there are.
    BestEffort,
    /// The whole unit (job, call or batch) or nothing; EC2 is asked for whole batches.
    AllOrNothing,
    /// The whole unit or nothing, but EC2 is asked for as many as there are; what does not make a whole unit is given to the next or
    /// released.
    GreedyAllOrNothing,
}

/// What belongs together: the unit that a [`Strategy`] speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScaleBy {
    /// Each launch call by itself.
    Batch,
    /// All nodes of one call of `slurm_resume`.
    Call,
    /// The nodes of each job, by the resume file; without one, as `Call`.
    Job,
}

/// What happens to a node that is already mapped to an older live instance when resume is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnExisting {
    /// Terminate it and launch anew.
    Replace,
    /// Reboot it when it is known to have registered before, else replace.
    Reboot,
}

/// Does a clustermgtd bring failed nodes back?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Daemon {
    /// By its heartbeat in the state folder.
    Auto,
    Yes,
    No,
}

/// The values that a group may set for itself.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LaunchPolicy {
    pub(crate) strategy: Strategy,
    /// Nodes per launch call.
    pub(crate) batch_size: usize,
    pub(crate) on_existing: OnExisting,
    /// Write each node's name on its instance (`slurm-ec2:node`).
    pub(crate) node_tags: bool,
    pub(crate) backoff: BackoffTimes,
}

/// Token bucket for launch calls, shared by all runs on this machine (aws-facts A.7).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bucket {
    /// Calls that may go out at once.
    pub(crate) burst: u32,
    /// Calls per second after that.
    pub(crate) per_second: f64,
}

/// The values that hold for a whole run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RunPolicy {
    pub(crate) scale_by: ScaleBy,
    /// The strategy of units that reach across groups (`Call` and `Job`); with `Batch` each group has its own.
    pub(crate) strategy: Strategy,
    /// Lift the two minutes that Slurm makes a requeued batch job wait, where it can go to nodes that are not in back-off.
    pub(crate) requeue_now: bool,
    /// Instance ids in one TerminateInstances call at most.
    pub(crate) terminate_batch_size: usize,
    /// EC2 launch calls in flight at most.
    pub(crate) concurrency: usize,
    /// `None` = off.
    pub(crate) bucket: Option<Bucket>,
    /// The most a run may take; shortened by slurm.conf's ResumeTimeout.
    pub(crate) deadline: Duration,
    pub(crate) daemon: Daemon,
    /// Time a created instance gets to show its private address.
    pub(crate) address_timeout: Duration,
}
