//! The Reasons that nodes carry: those that our programs write, which are the package's words where it has some (aws-facts B.16), and whose
//! a given one is. Text in, text out. Every Reason that this project gives a node begins with one of the constants here, or with a code
//! (`model/failure.rs`): what begins otherwise is not ours, and may be a person's.
//!
//! slurmctld puts its own words behind a Reason that is there already: ` : Not responding` (slurm-facts E), `, Low CPUs`. So the beginning
//! tells who spoke first, and what a person has written first stays theirs whatever follows.

use crate::model::cluster::Check;
use crate::model::failure::{CODE, NOT_RESPONDING, RESUME_TIMEOUT, UNSAID};

/// A static node that is taken out of service until its new instance is up.
pub(crate) const MAINTENANCE: &str = "Static node maintenance: unhealthy node is being replaced";
/// A dynamic node that cannot go on.
pub(crate) const UNHEALTHY: &str = "Scheduler health check failed";
/// A node of a group that rests because EC2 has nothing for it, and the end of that.
pub(crate) const DISABLED: &str = "Temporarily disabling node due to insufficient capacity";
pub(crate) const ENABLED: &str = "Enabling node since insufficient capacity timeout expired";
/// A node whose instance fails EC2's checks or has an event ahead; the check's name stands behind it.
pub(crate) const FAILING: &str = "Node failing ";
/// A node that is off and does not answer.
pub(crate) const SILENT: &str = "Powered down and not responding: powered down again";
/// A node that nobody tried to launch.
pub(crate) const NOT_RESUMED: &str = "Failure when resuming nodes";
/// A node of a partition, or of a fleet, that is out of service.
pub(crate) const INACTIVE: &str = "inactive partition";
pub(crate) const STOPPING: &str = "stopping cluster";
/// A node that EC2 takes away, or is about to, by its own computemgtd; what EC2 said stands behind it.
pub(crate) const SPOT: &str = "EC2 spot notice";
pub(crate) const REBALANCE: &str = "EC2 rebalance recommendation";

/// The package's compute nodes say so when they come up.
const STARTED: &str = "Node start up";

/// ParallelCluster's cookbook, at an update of the cluster: it drains the static nodes of queues that have changed, off or not, and powers
/// the others down, so that both come up again with what is new.
const UPDATED: &str = "updating node state during cluster update";

/// LBNL's Node Health Check, the usual HealthCheckProgram, writes this before what it has found on the node.
const CHECKED: &str = "NHC:";

/// What the programs of the head node begin their Reasons with, the package's among them.
const OURS: [&str; 10] = [CODE, MAINTENANCE, UNHEALTHY, DISABLED, ENABLED, SILENT, NOT_RESUMED, INACTIVE, STOPPING, STARTED];

/// What is said of an instance that is up, by the node itself or by an update: unlike the others it ends with that instance.
const NOTICES: [&str; 4] = [SPOT, REBALANCE, UPDATED, CHECKED];

/// What slurmctld and slurmd write about nodes that they set down or drain themselves; numbers in brackets may follow.
const SLURMS: [&str; 25] = [
    NOT_RESPONDING,
    RESUME_TIMEOUT,
    "Low socket*core*thread count",
    "Low CPUs",
    "Low RealMemory",
    "Low TmpDisk",
    "CoreSpec differ",
    "Reported active features",
    "Could not unpack gres data",
    "Kill task failed",
    "Prolog error",
    "Epilog error",
    "Prolog/Epilog failure",
    "Job env setup error",
    "Job is not running",
    "Job step not running",
    "SlurmdSpoolDir is full",
    "batch job complete failure",
    "Duplicate jobid",
    // `state=power_down_asap`: DRAIN until the node is idle, then its power-down ends it.
    "POWER_DOWN_ASAP",
    "Reboot ASAP",
    "reboot issued",
    "reboot complete",
    "reboot timed out",
    "Node unexpectedly rebooted",
];

/// What slurmctld puts between a Reason and what it adds.
const BETWEEN: [&str; 2] = [" : ", ", "];

/// One of the head node's programs', with what slurmctld may have put behind it; none at all counts, since Slurm asks people for one.
pub(crate) fn is_ours(reason: Option<&str>) -> bool {
    let text = text(reason);
    let is_a_check = |rest: &str| [Check::Instance, Check::Event].iter().any(|check| rest.starts_with(check.name()));
    // "slurm-ec2" is a word that people use.
    let is_all = |rest: &str| rest.is_empty() || added(rest).is_some_and(|added| is_slurms(Some(added)));
    text.is_empty()
        || begins_with(text, &OURS)
        || text.strip_prefix(FAILING).is_some_and(is_a_check)
        || text.strip_prefix(UNSAID).is_some_and(is_all)
}

/// slurmctld's or slurmd's, each word of it: a person may begin with the same words.
pub(crate) fn is_slurms(reason: Option<&str>) -> bool {
    let text = text(reason);
    !text.is_empty() && words(text).all(is_slurms_word)
}

/// slurmctld has had a word in it, be it behind somebody else's.
pub(crate) fn has_slurms(reason: Option<&str>) -> bool {
    words(text(reason)).any(is_slurms_word)
}

/// Neither ours nor Slurm's: somebody has written it, and knows why.
pub(crate) fn is_a_persons(reason: Option<&str>) -> bool {
    !is_ours(reason) && !begins_with(text(reason), &NOTICES) && !is_slurms(reason)
}

/// The node is down because slurmd is silent.
pub(crate) fn is_silent(reason: Option<&str>) -> bool {
    reason.is_some_and(|reason| reason.contains(NOT_RESPONDING))
}

fn text(reason: Option<&str>) -> &str {
    reason.unwrap_or_default().trim()
}

fn begins_with(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| text.starts_with(word))
}

/// What was said one after the other; a comma may be within one, too.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(BETWEEN[0]).flat_map(|part| part.split(BETWEEN[1]))
}

/// What slurmctld has put behind a Reason.
fn added(rest: &str) -> Option<&str> {
    BETWEEN.iter().find_map(|between| rest.strip_prefix(between))
}

/// `Low RealMemory (reported:1800 < 100.00% of configured:4096)`, `gres/gpu count reported lower than configured (0 < 1)`
fn is_slurms_word(text: &str) -> bool {
    let is_whole = |rest: &str| rest.is_empty() || rest.starts_with(" (");
    let is_gres = |text: &str| text.split_once(' ').is_some_and(|(_, rest)| begins_with(rest, &["count ", "GRES core "]));
    SLURMS.iter().any(|word| text.strip_prefix(word).is_some_and(is_whole)) || (text.starts_with("gres/") && is_gres(text))
}

#[cfg(test)]
mod tests;
