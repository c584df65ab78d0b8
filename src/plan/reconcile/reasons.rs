//! The Reasons that nodes carry: ours, which are the package's words (aws-facts B.16), and whose a given one is. Text in, text out.

use crate::model::failure::{NOT_RESPONDING, RESUME_TIMEOUT};

/// A static node that is taken out of service until its new instance is up.
pub(super) const MAINTENANCE: &str = "Static node maintenance: unhealthy node is being replaced";
/// A dynamic node that cannot go on.
pub(super) const UNHEALTHY: &str = "Scheduler health check failed";
/// A node of a group that rests because EC2 has nothing for it, and the end of that.
pub(super) const DISABLED: &str = "Temporarily disabling node due to insufficient capacity";
pub(super) const ENABLED: &str = "Enabling node since insufficient capacity timeout expired";

/// What the programs and daemons begin their Reasons with, the package's among them.
const OURS: [&str; 12] = [
    MAINTENANCE,
    UNHEALTHY,
    DISABLED,
    ENABLED,
    "(Code:",
    "Failure when resuming nodes",
    "Node failing ",
    "inactive partition",
    "stopping cluster",
    "Node start up",
    "EC2 spot notice",
    "Powered down and not responding",
];

/// What slurmctld and slurmd begin theirs with, for nodes that they set down or drain themselves.
const SLURMS: [&str; 14] = [
    NOT_RESPONDING,
    RESUME_TIMEOUT,
    "Low ",
    "gres/",
    "Kill task failed",
    "Prolog error",
    "Epilog error",
    "batch job complete failure",
    "Duplicate jobid",
    "Reboot ASAP",
    "reboot timed out",
    "Node unexpectedly rebooted",
    "powering down",
    "slurmd ",
];

/// One of ours, with what slurmctld may have put behind it; none at all counts, since Slurm asks people for one.
pub(super) fn is_ours(reason: Option<&str>) -> bool {
    begins_with(reason, &OURS)
}

/// Neither ours nor Slurm's: somebody has written it, and knows why.
pub(super) fn is_a_persons(reason: Option<&str>) -> bool {
    !begins_with(reason, &OURS) && !begins_with(reason, &SLURMS)
}

/// The node is down because slurmd is silent.
pub(super) fn is_silent(reason: Option<&str>) -> bool {
    reason.is_some_and(|reason| reason.contains(NOT_RESPONDING))
}

fn begins_with(reason: Option<&str>, words: &[&str]) -> bool {
    let reason = reason.unwrap_or_default().trim_start();
    reason.is_empty() || words.iter().any(|word| reason.starts_with(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_tells_who_wrote_it() {
        for (reason, ours, persons) in [
            (None, true, false),
            (Some(""), true, false),
            (Some(MAINTENANCE), true, false),
            (Some("Scheduler health check failed : Not responding"), true, false),
            (Some("(Code:InsufficientInstanceCapacity)no c5.large"), true, false),
            (Some("Node failing ec2_health_check: reachability failed"), true, false),
            (Some("Not responding"), false, false),
            (Some("ResumeTimeout reached"), false, false),
            (Some("Low RealMemory (reported:1800 < 100.00% of configured:4096)"), false, false),
            (Some("Kill task failed"), false, false),
            (Some("bad disk, ticket 4711"), false, true),
            (Some("not responding well, looking into it"), false, true),
        ] {
            assert_eq!((is_ours(reason), is_a_persons(reason)), (ours, persons), "{reason:?}");
        }
        assert!(is_silent(Some("Not responding")) && is_silent(Some("pd : Not responding")));
        assert!(!is_silent(Some("bad disk")) && !is_silent(None));
    }
}
