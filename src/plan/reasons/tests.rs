use super::*;
use crate::model::failure::{ErrorClass, Failure, reason_with};
use crate::model::node::SlurmNode;
use crate::plan::fleet_status::{Seen, for_start};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    Ours,
    /// About the instance that is up.
    Notice,
    Slurms,
    APersons,
}
use Whose::{APersons, Notice, Ours, Slurms};

const KINDS: [(Option<&str>, Whose); 60] = [
    (None, Ours),
    (Some(""), Ours),
    (Some("  "), Ours),
    (Some(MAINTENANCE), Ours),
    (Some("Scheduler health check failed: instance i-1 is terminated"), Ours),
    (Some("Scheduler health check failed : Not responding"), Ours),
    (Some("(Code:InsufficientInstanceCapacity)no c5.large : ResumeTimeout reached"), Ours),
    (Some("(Code:InsufficientInstanceCapacity)Failure when resuming nodes"), Ours),
    (Some("Failure when resuming nodes"), Ours),
    (Some("Node failing ec2_health_check: reachability failed"), Ours),
    (Some("Node start up"), Ours),
    (Some("inactive partition, Low CPUs"), Ours),
    (Some("stopping cluster"), Ours),
    (Some("slurm-ec2"), Ours),
    (Some("slurm-ec2 : ResumeTimeout reached"), Ours),
    (Some("EC2 spot notice: terminate at 2026-11-29T12:02:00Z"), Notice),
    (Some("EC2 spot notice: terminate at 2026-11-29T12:02:00Z : Not responding"), Notice),
    (Some("EC2 rebalance recommendation of 2026-11-29T12:00:00Z"), Notice),
    (Some("updating node state during cluster update"), Notice),
    (Some("updating node state during cluster update : Not responding"), Notice),
    (Some("NHC: check_fs_mount:  /scratch not mounted"), Notice),
    (Some("NHC says nothing, I do"), APersons),
    (Some("Not responding"), Slurms),
    (Some("ResumeTimeout reached"), Slurms),
    (Some("Not responding : ResumeTimeout reached"), Slurms),
    (Some("Low RealMemory"), Slurms),
    (Some("Low RealMemory (reported:1800 < 100.00% of configured:4096)"), Slurms),
    (Some("Low socket*core*thread count, Low CPUs, Low TmpDisk"), Slurms),
    (Some("Not responding, Low RealMemory (reported:1 < 100.00% of configured:2) : Prolog error"), Slurms),
    (Some("gres/gpu count reported lower than configured (0 < 1)"), Slurms),
    (Some("gres/gpu count too low (0 < 1)"), Slurms),
    (Some("Kill task failed"), Slurms),
    (Some("Prolog error"), Slurms),
    (Some("Epilog error"), Slurms),
    (Some("Prolog/Epilog failure"), Slurms),
    (Some("SlurmdSpoolDir is full"), Slurms),
    (Some("Job step not running"), Slurms),
    (Some("POWER_DOWN_ASAP"), Slurms),
    (Some("batch job complete failure"), Slurms),
    (Some("Node unexpectedly rebooted"), Slurms),
    (Some("Reboot ASAP : reboot issued : reboot timed out"), Slurms),
    (Some("bad disk, ticket 4711"), APersons),
    (Some("bad disk : Not responding"), APersons),
    (Some("pd : ResumeTimeout reached"), APersons),
    (Some("Not responding, I look into it"), APersons),
    (Some("Not responding : bob knows"), APersons),
    (Some("Not responding since Monday"), APersons),
    (Some("the switch: Not responding"), APersons),
    (Some("not responding"), APersons),
    (Some("Low disk space"), APersons),
    (Some("Low RealMemory after the DIMM failed"), APersons),
    (Some("Kill task failed again, see ticket 4711"), APersons),
    (Some("gres/gpu 3 is broken"), APersons),
    (Some("Node failing now and then"), APersons),
    (Some("slurm-ec2 keeps failing here"), APersons),
    (Some("slurm-ec2, see ticket 4711"), APersons),
    (Some("looks like Scheduler health check failed"), APersons),
    (Some("new kernel : reboot issued"), APersons),
    (Some("updating the driver, ticket 4711"), APersons),
    (Some("POWER_DOWN_ASAP, then swap the disk"), APersons),
];

#[test]
fn a_reason_tells_who_wrote_it() {
    for (reason, whose) in KINDS {
        let told = (is_ours(reason), is_slurms(reason), is_a_persons(reason));
        assert_eq!(told, (whose == Ours, whose == Slurms, whose == APersons), "{reason:?}");
    }
    assert!(is_silent(Some("Not responding")) && is_silent(Some("pd : Not responding")));
    assert!(!is_silent(Some("bad disk")) && !is_silent(None));
    for (reason, has) in [("bad disk : Not responding", true), ("bad disk, Low CPUs", true), ("bad disk, ticket 4711", false)] {
        assert_eq!(has_slurms(Some(reason)), has, "{reason}");
    }
}

/// Whatever Slurm adds on any version: nobody's Reason becomes another's.
#[test]
fn what_slurm_puts_behind_a_reason_changes_nothing() {
    for (reason, whose) in KINDS.into_iter().filter(|(reason, _)| reason.is_some_and(|reason| !reason.trim().is_empty())) {
        for added in [" : Not responding", " : ResumeTimeout reached", " : reboot issued", ", Low CPUs"] {
            let longer = reason.map(|reason| format!("{reason}{added}"));
            assert_eq!(is_a_persons(longer.as_deref()), whose == APersons, "{longer:?}");
        }
    }
}

/// B112. A node with a job's leftovers, a broken registration or a notice is made fit again; one that a person has drained or set down is
/// not, by whatever way.
#[test]
fn a_start_leaves_what_a_person_drained_and_takes_back_everything_else() {
    for (reason, whose) in KINDS {
        for (state, is_backed) in [
            ("IDLE+CLOUD+DRAIN+POWERED_DOWN", false),
            ("IDLE+CLOUD+DRAIN+POWERING_DOWN", false),
            ("DOWN+CLOUD+DRAIN+POWERED_DOWN", false),
            ("DOWN+CLOUD+POWERED_DOWN", false),
            ("DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING", false),
            ("DOWN+CLOUD", false),
            ("DOWN+CLOUD", true),
            ("DOWN+CLOUD+DRAIN", true),
            ("DOWN+CLOUD+DRAIN+NOT_RESPONDING", true),
        ] {
            let node = node(state, reason);
            let orders = for_start([Seen { node: &node, is_backed }]);
            let worked_at = orders.all_open().count();
            assert_eq!((orders.left.len(), worked_at), if whose == APersons { (1, 0) } else { (0, 1) }, "{reason:?} {state}");
        }
    }
    // Without either flag it is what is left of an earlier time.
    let free = node("IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING", Some("bad disk"));
    assert_eq!(for_start([Seen { node: &free, is_backed: false }]).force.len(), 1);
}

/// What our programs make of the constants.
#[test]
fn what_our_programs_write_is_ours() {
    let failure = Failure {
        code: "VcpuLimitExceeded".into(),
        class: ErrorClass::Quota,
        sentence: "no more : really".into(),
        request_id: None,
    };
    let made = [failure.reason("tried again in 5m"), reason_with("X", DISABLED), UNSAID.to_owned()];
    let failing = [Check::Instance, Check::System, Check::Event].map(|check| format!("{FAILING}{}: anything", check.name()));
    let fixed = OURS.into_iter().chain(NOTICES).map(str::to_owned);
    for reason in made.into_iter().chain(failing).chain(fixed) {
        assert!(!is_a_persons(Some(&reason)) && !is_slurms(Some(&reason)), "{reason}");
    }
}

fn node(state: &str, reason: Option<&str>) -> SlurmNode {
    SlurmNode { reason: reason.map(str::to_owned), partitions: vec!["q".to_owned()], ..SlurmNode::named("c5-1", state) }
}
