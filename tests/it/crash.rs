//! Killed at any point, the next program of any kind finishes: no instance lost, none doubled, no half-written file (B40).
//!
//! The real programs are stopped at each of their outside effects, before and after it is carried out, killed with SIGKILL, and
//! followed by another program; then EC2's own list of instances, the mapping, the launch records and what Slurm was told are
//! compared.

mod stage;

use slurm_ec2_testkit::ec2::Behaviour;

use crate::site::Site;
use stage::Fate::{Early, Late, Never};
use stage::Stop::{After, AfterUpdate, Before, BeforeUpdate, Scontrol};
use stage::{
    CREATE_FLEET, Next, PLAIN, POWERED_DOWN, POWERING_UP, RUN_INSTANCES, SAME, Stop, TAGGING, assert_backed, assert_free, assert_sound, each,
    settle,
};

const VICTIMS: [&str; 3] = ["c5-1", "c5-2", "c5-3"];

/// A killed resume: its settings, and whether its nodes were claimed by then, so that the next program knows of them.
#[derive(Debug, Clone, Copy)]
struct Killed {
    launch: &'static str,
    group: &'static str,
    /// A node that slurmctld refuses.
    refused: Option<&'static str>,
    stop: Stop,
    claimed: bool,
}

#[derive(Debug, Clone, Copy)]
struct Case {
    killed: Killed,
    next: Next,
    slurm: &'static str,
}

/// Every next program for nodes that Slurm still wants; those that name other nodes also for nodes that Slurm has given up.
fn cases(killed: &[Killed]) -> Vec<Case> {
    let mut cases = Vec::new();
    for killed in killed {
        for next in Next::ALL {
            cases.push(Case { killed: *killed, next, slurm: POWERING_UP });
        }
        for next in [Next::ResumeOthers, Next::SuspendOthers] {
            cases.push(Case { killed: *killed, next, slurm: POWERED_DOWN });
        }
    }
    cases
}

fn killed_resume(case: &Case) {
    let Case { killed, next, slurm } = *case;
    let site = stage::site(Behaviour::default(), killed.launch, killed.group);
    if let Some(node) = killed.refused {
        site.scontrol("refuse", node);
    }
    let armed = killed.stop.arm(&site);
    armed.kill("slurm_resume", &[SAME]);
    assert_sound(&site);
    if !armed.is_late() {
        armed.let_go();
    }
    // A node is refused while slurmctld does not know it: after the next reconfigure it does.
    site.scontrol("refuse", "");
    site.scontrol("state", slurm);
    next.run(&site);
    assert_sound(&site);
    let wanted = slurm == POWERING_UP && killed.claimed && !next.takes_down();
    if wanted && next == Next::ResumeOthers {
        assert_backed(&site, &VICTIMS);
    }
    if armed.is_late() {
        armed.let_go();
        assert_sound(&site);
    }
    if next.takes_down() {
        site.scontrol("state", POWERED_DOWN);
    }
    settle(&site);
    if wanted {
        assert_backed(&site, &VICTIMS);
    }
    if next.takes_down() {
        assert_free(&site, &VICTIMS);
    }
}

const fn plain(stop: Stop, claimed: bool) -> Killed {
    Killed { launch: PLAIN, group: RUN_INSTANCES, refused: None, stop, claimed }
}

const fn fleet(stop: Stop) -> Killed {
    Killed { launch: PLAIN, group: CREATE_FLEET, refused: None, stop, claimed: true }
}

const fn refused(stop: Stop) -> Killed {
    Killed { launch: PLAIN, group: RUN_INSTANCES, refused: Some("c5-2"), stop, claimed: true }
}

#[test]
fn b40_resume_killed_before_its_claims() {
    each(
        &cases(&[
            plain(Before("DescribeLaunchTemplates", 1, Early), false),
            plain(After("DescribeLaunchTemplates", 1), false),
            plain(Before("DescribeInstances", 1, Early), false),
        ]),
        killed_resume,
    );
}

#[test]
fn b40_resume_killed_at_run_instances() {
    each(
        &cases(&[
            plain(Before("RunInstances", 1, Early), true),
            plain(Before("RunInstances", 1, Late), true),
            plain(Before("RunInstances", 1, Never), true),
            plain(After("RunInstances", 1), true),
        ]),
        killed_resume,
    );
}

#[test]
fn b40_r05_resume_killed_at_create_fleet() {
    each(
        &cases(&[
            fleet(Before("CreateFleet", 1, Early)),
            fleet(Before("CreateFleet", 1, Late)),
            fleet(Before("CreateFleet", 1, Never)),
            fleet(After("CreateFleet", 1)),
            // The first one looks whether there is a mapping to rebuild.
            fleet(Before("DescribeInstances", 2, Early)),
            fleet(After("DescribeInstances", 2)),
        ]),
        killed_resume,
    );
}

#[test]
fn b40_resume_killed_while_slurm_is_told() {
    let tagging = |stop| Killed { launch: TAGGING, group: RUN_INSTANCES, refused: None, stop, claimed: true };
    each(
        &cases(&[
            plain(Scontrol("version"), true),
            plain(BeforeUpdate(1), true),
            plain(AfterUpdate(1), true),
            tagging(Before("CreateTags", 1, Early)),
            tagging(Before("CreateTags", 1, Never)),
            tagging(After("CreateTags", 2)),
        ]),
        killed_resume,
    );
}

#[test]
fn b40_b17_resume_killed_while_slurm_refuses_a_node() {
    each(
        &cases(&[
            refused(Before("TerminateInstances", 1, Early)),
            refused(Before("TerminateInstances", 1, Never)),
            refused(After("TerminateInstances", 1)),
            refused(BeforeUpdate(2)),
            refused(AfterUpdate(2)),
        ]),
        killed_resume,
    );
}
