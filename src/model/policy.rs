//! How launches are made (the values of `[launch]`, which a group may override) and how clustermgtd looks after the cluster.

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

/// What clustermgtd repairs, and after how long: the values of `[clustermgtd]`, by ParallelCluster's names where it has one (aws-facts B.5).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Upkeep {
    /// Nothing is looked after; the heartbeat is written all the same (`disable_all_cluster_management`).
    pub(crate) disabled: bool,
    /// A drained node without a job counts as unhealthy.
    pub(crate) terminate_drain_nodes: bool,
    /// A node that is down counts as unhealthy.
    pub(crate) terminate_down_nodes: bool,
    /// An instance that stands behind no node goes at this age (`orphaned_instance_timeout`).
    pub(crate) orphan_timeout: Duration,
    /// A mapped instance that EC2 does not show at all is believed gone at this age.
    pub(crate) missing_grace: Duration,
    /// Passes in which an instance may be missing besides (`ec2_instance_missing_max_count`).
    pub(crate) missing_max_count: u32,
    /// A static node that is being replaced must be up by then (`node_replacement_timeout`).
    pub(crate) replacement_timeout: Duration,
    /// Look at EC2's status checks.
    pub(crate) check_instances: bool,
    /// Look at EC2's scheduled events.
    pub(crate) check_events: bool,
    /// A status check must fail for as long (`health_check_timeout`).
    pub(crate) check_timeout: Duration,
    /// Failing checks do not count so long after slurmd started (`health_check_timeout_after_slurmdstarttime`).
    pub(crate) check_grace: Duration,
    /// Boot failures of a queue after which it is set inactive (`protected_failure_count`); `None` = never.
    pub(crate) protected_count: Option<u64>,
    /// How long a resource rests after a shortage (`insufficient_capacity_timeout`), where ParallelCluster's files say it; standalone the
    /// groups' own `[launch] backoff` counts. `Some(0)` = shortages are not handled apart.
    pub(crate) shortage_timeout: Option<Duration>,
    /// Make Slurm reservations for Capacity Blocks that are not active.
    pub(crate) manage_blocks: bool,
    /// Read the consoles of instances that failed to boot.
    pub(crate) consoles: bool,
    /// Consoles read in one pass; `None` = all.
    pub(crate) consoles_most: Option<usize>,
    /// An instance's console is read so long after its failure, when the end of it is there.
    pub(crate) console_wait: Duration,
}
