//! Killed at any point, the next program of any kind finishes: no instance lost, none doubled, no half-written file (B40).
//!
//! The real programs are stopped at each of their outside effects, before and after it is carried out, killed with SIGKILL, and
//! followed by another program; then EC2's own list of instances, the mapping, the launch records and what Slurm was told are
//! compared.

pub mod stage;

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::process::Child;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use slurm_ec2_testkit::ec2::{Behaviour, InstanceChange, Rule, State};

use crate::site::{Site, finished};
use stage::Fate::{Early, Late, Never};
use stage::Stop::{After, AfterUpdate, Before, BeforeUpdate, Scontrol};
use stage::{
    CREATE_FLEET, Next, OTHERS, PLAIN, POWERED_DOWN, POWERING_UP, RUN_INSTANCES, SAME, Stop, TAGGING, age, assert_backed,
    assert_clean, assert_free, assert_sound, each, join, logs, settle, succeed, wait_for_scontrol, wait_until,
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

/// Nodes that are up, taken down by a program that is killed at it.
fn killed_while_taking_down(program: &str, slurm: &str, stop: Stop, next: Next, freed: bool) {
    let site = stage::site(Behaviour::default(), PLAIN, RUN_INSTANCES);
    succeed(&site, "slurm_resume", SAME);
    let old = site.live();
    site.scontrol("state", slurm);
    let armed = stop.arm(&site);
    // One node without an instance, which is looked for.
    armed.kill(program, &["c5-[1-3],c5-9"]);
    assert_sound(&site);
    armed.let_go();
    if matches!(next, Next::ResumeSame | Next::ResumeOthers) {
        site.scontrol("state", POWERING_UP);
    }
    next.run(&site);
    assert_sound(&site);
    settle(&site);
    if freed || next == Next::ResumeSame || next.takes_down() {
        assert!(site.live().is_disjoint(&old), "still on: {old:?}\n{}", logs(&site));
    } else {
        assert_backed(&site, &VICTIMS);
    }
    if next == Next::ResumeSame {
        assert_backed(&site, &VICTIMS);
    }
}

/// Each stop with each next program.
fn times_next(stops: &[(Stop, bool)]) -> Vec<(Stop, bool, Next)> {
    stops.iter().flat_map(|(stop, freed)| Next::ALL.map(|next| (*stop, *freed, next))).collect()
}

#[test]
fn b40_b31_suspend_killed() {
    let stops = [
        (Scontrol("show"), true),
        (Before("TerminateInstances", 1, Early), true),
        (Before("TerminateInstances", 1, Never), true),
        (After("TerminateInstances", 1), true),
    ];
    each(&times_next(&stops), |(stop, freed, next)| {
        killed_while_taking_down("slurm_suspend", "IDLE+CLOUD+POWERING_DOWN", *stop, *next, *freed);
    });
}

#[test]
fn b40_f01_resume_fail_killed() {
    let stops = [
        // It first asks whether the nodes came up after all.
        (Scontrol("show"), false),
        (Before("GetConsoleOutput", 1, Early), true),
        (After("GetConsoleOutput", 3), true),
        (Before("TerminateInstances", 1, Early), true),
        (Before("TerminateInstances", 1, Never), true),
        (After("TerminateInstances", 1), true),
        (BeforeUpdate(1), true),
        (AfterUpdate(1), true),
    ];
    each(&times_next(&stops), |(stop, freed, next)| {
        killed_while_taking_down("slurm_resume_fail", "DOWN+CLOUD+NOT_RESPONDING+POWERED_DOWN", *stop, *next, *freed);
    });
}

/// A program is killed while it finishes what a killed resume left, then a third one comes.
#[test]
fn b40_killed_while_finishing_a_killed_run() {
    let firsts = [Before("RunInstances", 1, Never), After("RunInstances", 1), BeforeUpdate(1)];
    let seconds = [
        ("slurm_resume", OTHERS, Scontrol("show")),
        ("slurm_resume", OTHERS, After("DescribeInstances", 1)),
        ("slurm_resume", OTHERS, Before("RunInstances", 1, Early)),
        ("slurm_resume", OTHERS, After("RunInstances", 1)),
        // Two updates go out at the same time: which is the first one is nobody's to say.
        ("slurm_resume", OTHERS, Scontrol("update")),
        ("slurm_resume", SAME, After("RunInstances", 1)),
        ("slurm_resume", SAME, AfterUpdate(1)),
        ("slurm_suspend", OTHERS, Scontrol("show")),
        ("slurm_suspend", OTHERS, After("DescribeInstances", 1)),
        ("slurm_suspend", SAME, After("DescribeInstances", 1)),
    ];
    let thirds = [Next::ResumeOthers, Next::ResumeSame, Next::SuspendOthers, Next::FailSame];
    let mut cases = Vec::new();
    for (row, first) in firsts.into_iter().enumerate() {
        for (column, second) in seconds.into_iter().enumerate() {
            // Half of all, so that each meets each.
            let picked = thirds.into_iter().enumerate().filter(|(index, _)| (row + column + index) % 2 == 0);
            cases.extend(picked.map(|(_, third)| (first, second, third)));
        }
    }
    each(&cases, |(first, (program, nodes, stop), third)| {
        let site = stage::site(Behaviour::default(), PLAIN, RUN_INSTANCES);
        let armed = first.arm(&site);
        armed.kill("slurm_resume", &[SAME]);
        armed.let_go();
        wait_for_scontrol(&site);
        let armed = stop.arm(&site);
        armed.kill(program, &[nodes]);
        assert_sound(&site);
        armed.let_go();
        wait_for_scontrol(&site);
        let suspended = (*program, *nodes) == ("slurm_suspend", SAME) && *third != Next::ResumeSame;
        if suspended {
            site.scontrol("state", POWERED_DOWN);
        }
        third.run(&site);
        assert_sound(&site);
        if third.takes_down() {
            site.scontrol("state", POWERED_DOWN);
        }
        settle(&site);
        if !third.takes_down() && !suspended {
            assert_backed(&site, &VICTIMS);
        }
        let claimed = !matches!(stop, Scontrol("show") | After("DescribeInstances", _));
        if (*program, *nodes) == ("slurm_resume", OTHERS) && claimed && *third != Next::SuspendOthers {
            assert_backed(&site, &["c5-11", "c5-12"]);
        }
    });
}

/// The same request again, with the same token: what was launched serves, nothing is launched twice.
#[test]
fn b13_b40_a_launch_is_repeated_not_doubled() {
    let stops = [Before("RunInstances", 1, Early), Before("RunInstances", 1, Never), After("RunInstances", 1)];
    each(&stops, |stop| {
        let site = stage::site(Behaviour::default(), PLAIN, RUN_INSTANCES);
        let armed = stop.arm(&site);
        armed.kill("slurm_resume", &[SAME]);
        armed.let_go();
        Next::ResumeOthers.run(&site);
        assert_backed(&site, &VICTIMS);
        assert_eq!(site.ec2.instances().len(), 5, "{}", logs(&site));
        let tokens: Vec<_> =
            site.ec2.requests_of("RunInstances").iter().map(|one| one.param("ClientToken").unwrap().to_owned()).collect();
        assert!(tokens.len() == 3 && tokens[1..].contains(&tokens[0]), "{tokens:?}");
    });
}

/// Two killed runs, the second while it finished the first: their records name the same nodes, which are launched once.
#[test]
fn b13_b40_two_killed_runs_launch_their_nodes_once() {
    // The second run sends two requests at the same time.
    let stops =
        [Before("RunInstances", 1, Never), Before("RunInstances", 1, Early), After("RunInstances", 2), Scontrol("update")];
    let firsts = [Before("RunInstances", 1, Never), After("RunInstances", 1)];
    let cases: Vec<_> = firsts.iter().flat_map(|first| stops.map(|second| (*first, second))).collect();
    each(&cases, |(first, second)| {
        let site = stage::site(Behaviour::default(), PLAIN, RUN_INSTANCES);
        for (stop, nodes) in [(first, SAME), (second, "c5-11")] {
            let armed = stop.arm(&site);
            armed.kill("slurm_resume", &[nodes]);
            armed.let_go();
            wait_for_scontrol(&site);
        }
        succeed(&site, "slurm_resume", "c5-12");
        assert_backed(&site, &["c5-1", "c5-2", "c5-3", "c5-11", "c5-12"]);
        assert_eq!(site.ec2.instances().len(), 5, "{}", logs(&site));
        settle(&site);
        assert_eq!(site.live().len(), 5, "{}", logs(&site));
    });
}

/// An instance that EC2 shows only some minutes after its run was killed.
#[test]
fn b40_instances_that_show_up_late() {
    let cases: Vec<_> = Next::ALL.iter().flat_map(|next| [(*next, POWERING_UP), (*next, POWERED_DOWN)]).collect();
    each(&cases, |(next, slurm)| {
        let site = stage::site(Behaviour { hidden_from_terminate: true, ..Behaviour::default() }, PLAIN, RUN_INSTANCES);
        let armed = After("RunInstances", 1).arm(&site);
        armed.kill("slurm_resume", &[SAME]);
        let hide = |hidden| {
            for instance in site.ec2.instances().iter().filter(|instance| instance.ordinal <= 3) {
                site.ec2.change(&instance.id, InstanceChange { hidden: Some(hidden), ..InstanceChange::default() });
            }
        };
        hide(true);
        armed.let_go();
        site.scontrol("state", slurm);
        // What it launches anew is visible at once.
        next.run(&site);
        assert_sound(&site);
        // Nothing to be found yet, and the record stays all the same.
        succeed(&site, "slurm_suspend", "c5-21");
        assert_sound(&site);
        hide(false);
        if next.takes_down() {
            site.scontrol("state", POWERED_DOWN);
        }
        settle(&site);
        if *slurm == POWERING_UP && !next.takes_down() {
            assert_backed(&site, &VICTIMS);
        }
        assert!(!next.takes_down() || site.live().is_empty(), "{}", logs(&site));
    });
}

#[test]
fn b40_programs_race_for_what_a_killed_run_left() {
    let stops = [Before("RunInstances", 1, Never), After("RunInstances", 1), BeforeUpdate(1)];
    let cases: Vec<_> = stops.iter().flat_map(|stop| [(*stop, 0), (*stop, 1), (*stop, 2)]).collect();
    each(&cases, |(stop, round)| {
        let site = stage::site(Behaviour::default(), PLAIN, RUN_INSTANCES);
        let armed = stop.arm(&site);
        armed.kill("slurm_resume", &[SAME]);
        armed.let_go();
        wait_for_scontrol(&site);
        let mut programs = [
            ("slurm_resume", "c5-11"),
            ("slurm_suspend", "c5-30"),
            ("slurm_resume", "c5-12"),
            ("slurm_resume_fail", "c5-31"),
            ("slurm_resume", "c5-13"),
        ];
        programs.rotate_left(*round);
        join(&site, programs.iter().map(|(program, node)| site.spawn(program, &[node])).collect());
        assert_sound(&site);
        assert_backed(&site, &["c5-11", "c5-12", "c5-13"]);
        settle(&site);
        assert_backed(&site, &VICTIMS);
        assert_eq!(site.live().len(), 6, "{}", logs(&site));
    });
}

/// Suspended while its run waits for EC2, and asked for again before the first run has its answer.
#[test]
fn b33_s03_suspended_and_resumed_while_it_is_launched() {
    let site = stage::site(Behaviour::default(), PLAIN, RUN_INSTANCES);
    let armed = After("RunInstances", 1).arm(&site);
    let mut first = site.spawn("slurm_resume", &[SAME]);
    armed.wait("slurm_resume", &mut first);
    let old = site.live();
    succeed(&site, "slurm_suspend", SAME);
    assert_free(&site, &VICTIMS);
    assert_eq!(site.live(), old, "the live run answers for them");
    assert_sound(&site);
    succeed(&site, "slurm_resume", SAME);
    assert_backed(&site, &VICTIMS);
    armed.let_go();
    join(&site, vec![first]);
    assert_sound(&site);
    assert_backed(&site, &VICTIMS);
    assert!(site.live().is_disjoint(&old), "{}", logs(&site));
    assert_clean(&site);
    settle(&site);
}

/// The first run has tied its instances and is telling Slurm when it is asked again: its word comes after the second run's.
#[test]
fn b19_the_last_word_to_slurm_is_of_the_instance_that_counts() {
    let site = stage::site(Behaviour::default(), PLAIN, RUN_INSTANCES);
    let (armed, first, old) = asked_again_at(&site, 1);
    armed.let_go();
    join(&site, vec![first]);
    assert!(site.live().is_disjoint(&old), "{}", logs(&site));
    assert_backed(&site, &VICTIMS);
    assert_clean(&site);
}

/// A run that stands at its n-th word to slurmctld, with the instances that it has launched; a second run has replaced them.
fn asked_again_at(site: &Site, update: usize) -> (stage::Armed<'_>, Child, BTreeSet<String>) {
    let armed = BeforeUpdate(update).arm(site);
    let mut first = site.spawn("slurm_resume", &[SAME]);
    armed.wait("slurm_resume", &mut first);
    let old = site.live();
    succeed(site, "slurm_resume", SAME);
    assert_backed(site, &VICTIMS);
    (armed, first, old)
}

/// As above, but the first run is killed while slurmctld takes its word: any next program has the last one.
#[test]
fn b19_b40_killed_while_it_tells_of_an_older_instance() {
    each(&Next::ALL, |next| {
        let site = stage::site(Behaviour::default(), PLAIN, RUN_INSTANCES);
        // Of the addresses; the first one is of the instances' ids.
        let (armed, mut first, old) = asked_again_at(&site, 2);
        stage::kill(&mut first);
        armed.let_go();
        next.run(&site);
        assert_sound(&site);
        assert!(site.live().is_disjoint(&old), "{}", logs(&site));
        if next.takes_down() {
            site.scontrol("state", POWERED_DOWN);
        } else {
            assert_backed(&site, &VICTIMS);
        }
        settle(&site);
    });
}

/// Suspended and asked for again, and the first run is killed while it waits.
#[test]
fn b33_b40_suspended_and_resumed_while_it_is_launched_by_a_run_that_is_killed() {
    let site = stage::site(Behaviour::default(), PLAIN, RUN_INSTANCES);
    let armed = After("RunInstances", 1).arm(&site);
    let mut first = site.spawn("slurm_resume", &[SAME]);
    armed.wait("slurm_resume", &mut first);
    let old = site.live();
    succeed(&site, "slurm_suspend", SAME);
    succeed(&site, "slurm_resume", SAME);
    stage::kill(&mut first);
    armed.let_go();
    assert_sound(&site);
    settle(&site);
    assert_backed(&site, &VICTIMS);
    assert!(site.live().is_disjoint(&old), "{}", logs(&site));
}

/// known-failures S03: the old machine of a node takes its time to go.
#[test]
fn s03_resumed_while_the_old_instance_is_still_shutting_down() {
    let site = stage::site(Behaviour { shutting_down_ms: 600_000, ..Behaviour::default() }, PLAIN, RUN_INSTANCES);
    succeed(&site, "slurm_resume", SAME);
    let old = site.live();
    succeed(&site, "slurm_suspend", SAME);
    succeed(&site, "slurm_resume", SAME);
    assert_backed(&site, &VICTIMS);
    succeed(&site, "slurm_suspend", OTHERS);
    assert_clean(&site);
    assert!(site.live().is_disjoint(&old) && site.live().len() == 3);
}

/// known-failures F03: the machine of a node that was given up must not come up behind it.
#[test]
fn f03_resume_fail_ends_an_instance_that_still_boots() {
    let site = stage::site(Behaviour { boot_ms: 600_000, ..Behaviour::default() }, PLAIN, RUN_INSTANCES);
    succeed(&site, "slurm_resume", SAME);
    assert!(site.ec2.instances().iter().all(|instance| instance.state == State::Pending));
    site.scontrol("state", "DOWN+CLOUD+NOT_RESPONDING+POWERED_DOWN");
    succeed(&site, "slurm_resume_fail", SAME);
    assert!(site.live().is_empty());
    assert_free(&site, &VICTIMS);
    assert_clean(&site);
}

/// known-failures R18: each with its own resume file, none with another's nodes.
#[test]
fn r18_ten_resumes_at_the_same_moment_for_different_nodes() {
    let site = stage::site(Behaviour::default(), PLAIN, RUN_INSTANCES);
    let nodes: Vec<String> = (0..10).map(|n| format!("c5-[{}-{}]", 100 + n * 10, 104 + n * 10)).collect();
    let start = |(n, nodes): (usize, &String)| {
        let file = format!("resume-{n}.json");
        site.write(&file, &format!(r#"{{"all_nodes_resume":"{nodes}","jobs":[{{"job_id":{n},"nodes_resume":"{nodes}"}}]}}"#));
        site.command("slurm_resume", &[nodes]).env("SLURM_RESUME_FILE", site.path(&file)).spawn().unwrap()
    };
    join(&site, nodes.iter().enumerate().map(start).collect());
    let all: Vec<String> = (0..10).flat_map(|n| (100 + n * 10..=104 + n * 10).map(|node| format!("c5-{node}"))).collect();
    assert_backed(&site, &all.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!((site.running().len(), site.ec2.instances().len()), (50, 50));
    assert_clean(&site);
}

#[test]
fn b40_ten_resumes_at_the_same_moment_for_the_same_nodes() {
    let site = stage::site(Behaviour::default(), PLAIN, RUN_INSTANCES);
    join(&site, (0..10).map(|_| site.spawn("slurm_resume", &[SAME])).collect());
    assert_sound(&site);
    assert_eq!(site.running().len(), 3);
    site.assert_settled();
    settle(&site);
    assert_backed(&site, &VICTIMS);
}

#[test]
fn b40_resumes_and_suspends_at_the_same_moment() {
    let site = stage::site(Behaviour::default(), PLAIN, RUN_INSTANCES);
    for _ in 0..3 {
        let programs = ["slurm_resume", "slurm_suspend", "slurm_resume", "slurm_suspend", "slurm_resume_fail"];
        join(&site, programs.iter().map(|program| site.spawn(program, &[SAME])).collect());
        assert_sound(&site);
    }
    settle(&site);
    succeed(&site, "slurm_suspend", SAME);
    assert!(site.live().is_empty(), "{}", logs(&site));
    assert_clean(&site);
}

#[test]
fn b13_lost_answers_launch_nothing_twice() {
    let cases = [
        (RUN_INSTANCES, "RunInstances"),
        (CREATE_FLEET, "CreateFleet"),
        (CREATE_FLEET, "DescribeInstances"),
        (RUN_INSTANCES, "DescribeLaunchTemplates"),
        (RUN_INSTANCES, "TerminateInstances"),
    ];
    each(&cases, |(group, action)| {
        let site = stage::site(Behaviour::default(), PLAIN, group);
        let rules = [Rule::on(action).nth(1).drop_after(), Rule::on(action).nth(1).cut()];
        site.ec2.add_rules(rules);
        succeed(&site, "slurm_resume", SAME);
        assert_backed(&site, &VICTIMS);
        assert_eq!(site.ec2.instances().len(), 3, "{}", logs(&site));
        assert_clean(&site);
        succeed(&site, "slurm_suspend", SAME);
        assert!(site.live().is_empty());
        assert_clean(&site);
    });
}

#[test]
fn b43_sigterm_while_a_launch_is_under_way() {
    let launch = "request_bucket = \"off\"\nbatch_size = 2\nconcurrency = 1\n";
    let site = stage::site(Behaviour::default(), launch, RUN_INSTANCES);
    let armed = After("RunInstances", 1).arm(&site);
    let mut child = site.spawn("slurm_resume", &["c5-[1-4]"]);
    armed.wait("slurm_resume", &mut child);
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGTERM).unwrap();
    wait_until("the signal is seen", || site.log("slurm_resume").contains("SIGTERM"));
    armed.let_go();
    let ran = finished(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(1), "{}", site.log("slurm_resume"));
    assert_eq!(site.ec2.count("RunInstances"), 1, "no new launch");
    assert_backed(&site, &["c5-1", "c5-2"]);
    assert_free(&site, &["c5-3", "c5-4"]);
    let down = site.updates().into_iter().find(|line| line.contains("state=power_down_force")).unwrap_or_default();
    assert!(down.contains("c5-3,c5-4") || down.contains("c5-[3-4]"), "{:?}", site.updates());
    assert_clean(&site);
}

/// The time is up while EC2 has launched but not answered: the run gives its nodes up, and the next program ends the instances.
#[test]
fn b42_b40_the_answer_comes_after_the_deadline() {
    let cases = [(RUN_INSTANCES, "RunInstances"), (CREATE_FLEET, "CreateFleet")];
    each(&cases, |(group, action)| {
        let site = stage::site(Behaviour::default(), "request_bucket = \"off\"\ndeadline = \"24s\"\n", group);
        let armed = After(action, 1).arm(&site);
        // A quarter of the time is for telling Slurm.
        let ran = site.run("slurm_resume", &[SAME]);
        assert_eq!(ran.code, Some(75), "{}", logs(&site));
        assert_free(&site, &VICTIMS);
        assert!(site.updates().iter().any(|line| line.contains("state=power_down_force")), "{:?}", site.updates());
        assert_eq!((site.live().len(), site.records().len()), (3, 1));
        assert_sound(&site);
        armed.let_go();
        site.scontrol("state", "IDLE+CLOUD+POWERING_DOWN");
        succeed(&site, "slurm_suspend", SAME);
        assert!(site.live().is_empty(), "{}", logs(&site));
        settle(&site);
    });
}

/// What a writer leaves that is killed in the middle of a line or of a file.
#[test]
fn b40_p08_half_a_line_and_half_a_file() {
    each(&Next::ALL, |next| {
        let site = stage::site(Behaviour::default(), PLAIN, RUN_INSTANCES);
        let armed = After("RunInstances", 1).arm(&site);
        armed.kill("slurm_resume", &[SAME]);
        armed.let_go();
        let record = site.records().remove(0);
        OpenOptions::new().append(true).open(&record).unwrap().write_all(br#"{"event":"done","bat"#).unwrap();
        let name = record.file_name().unwrap().to_str().unwrap().to_owned();
        for litter in [".mapping.json.77-0123456789abcdef.tmp".to_owned(), format!("launches/.{name}.77-0123456789abcdef.tmp")] {
            fs::write(site.path("state").join(litter), "{").unwrap();
        }
        next.run(&site);
        assert_sound(&site);
        if next.takes_down() {
            site.scontrol("state", POWERED_DOWN);
        }
        settle(&site);
        if !next.takes_down() {
            assert_backed(&site, &VICTIMS);
        }
    });
}

/// Killed anywhere at all, not only at outside effects.
#[test]
fn b40_killed_at_random_moments() {
    each(&[1, 2, 3, 4, 5, 6], |seed| {
        let mut random = fastrand::Rng::with_seed(*seed);
        let group = if seed % 2 == 0 { RUN_INSTANCES } else { CREATE_FLEET };
        let site = stage::site(Behaviour { hidden_describes: u32::from(*seed > 4), ..Behaviour::default() }, TAGGING, group);
        for _ in 0..10 {
            let mut start = || {
                let program =
                    ["slurm_resume", "slurm_resume", "slurm_resume", "slurm_suspend", "slurm_resume_fail"][random.usize(0..5)];
                let nodes = [SAME, SAME, OTHERS, "c5-[2-5]", "c5-1,c5-11"][random.usize(0..5)];
                stage::spawn_group(&site, program, &[nodes])
            };
            // Another one beside it, which goes on.
            let (mut victim, beside) = (start(), start());
            std::thread::sleep(Duration::from_micros(random.u64(0..90_000)));
            stage::kill_group(&mut victim);
            join(&site, vec![beside]);
            wait_for_scontrol(&site);
            assert_sound(&site);
            if random.u8(0..3) == 0 {
                age(&site);
            }
        }
        settle(&site);
    });
}
