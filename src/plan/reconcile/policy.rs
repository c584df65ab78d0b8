//! What clustermgtd goes by: the configuration as far as the decision needs it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::model::failure::BackoffTimes;
use crate::model::policy::Upkeep;

#[derive(Debug, Clone)]
pub(crate) struct Policy {
    pub(crate) upkeep: Upkeep,
    /// By index; [`super::Member::group`] points here.
    pub(crate) groups: Vec<GroupView>,
    /// Partitions that are ours to set inactive and to look after: those that the configuration names, else those with nodes of ours
    /// only (M21).
    pub(crate) partitions: BTreeSet<String>,
    /// Beside ParallelCluster: a static node resumes itself when it is up (aws-facts B.13), and words and rules are the package's.
    pub(crate) parallelcluster: bool,
    pub(crate) suspend: SuspendRules,
    /// Slurm shows no nodes that are off (before 23.02 without `PrivateData=cloud`): one that it does not show may be there all the same.
    pub(crate) hides_off_nodes: bool,
}

/// What slurm.conf says about powering idle nodes down.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SuspendRules {
    /// SuspendTime of the cluster; `None` = INFINITE or not known.
    pub(crate) time: Option<Duration>,
    /// By partition where it has its own; the inner `None` = INFINITE. A node gets the largest of its partitions (slurm-facts F).
    pub(crate) partitions: BTreeMap<String, Option<Duration>>,
    /// SuspendExcNodes, expanded; counted sets (`list:2`) wholly.
    pub(crate) excluded_nodes: BTreeSet<String>,
    pub(crate) excluded_partitions: BTreeSet<String>,
    /// SuspendExcStates, lower case.
    pub(crate) excluded_states: BTreeSet<String>,
}

/// One group as the decision sees it.
#[derive(Debug, Clone)]
pub(crate) struct GroupView {
    pub(crate) name: String,
    /// How long it rests after a failure, by kind.
    pub(crate) backoff: BackoffTimes,
    /// The capacity reservation of a Capacity Block that its nodes run in.
    pub(crate) block: Option<String>,
}
