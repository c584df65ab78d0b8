//! Units of jobs while the world moves on: suspends, second calls, signals, a busy lock, dead runs.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::process::Child;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use slurm_ec2_testkit::ec2::{Behaviour, Capacity, Rule};

use crate::crash::stage::{self, Stop, age};
use crate::jobs::file;
use crate::site::{Site, finished};

const OFF: &str = "request_bucket = \"off\"\n";

/// Two groups of different types.
const TWO: &str = "[[group]]\nname = \"c5\"\nnodes = \"c5-[1-99]\"\nlaunch_template = { name = \"hpc-c5\", version = \"1\" }\n\
                   instance_types = [\"c5.large\"]\n\
                   [[group]]\nname = \"m5\"\nnodes = \"m5-[1-99]\"\nlaunch_template = { name = \"hpc-m5\", version = \"1\" }\n\
                   instance_types = [\"m5.large\"]\n";

fn spawn_jobs(site: &Site, hostlist: &str, jobs: &[(u32, &str)]) -> Child {
    site.write("resume.json", &file(jobs));
    site.command("slurm_resume", &[hostlist]).env("SLURM_RESUME_FILE", site.path("resume.json")).spawn().unwrap()
}

fn wait_held(site: &Site, gate: &str) {
    let begun = Instant::now();
    while !site.ec2.wait_held(gate, Duration::from_millis(20)) {
        assert!(begun.elapsed() < stage::PATIENCE, "{}", site.log("slurm_resume"));
    }
}

fn running(site: &Site) -> Vec<String> {
    site.running().into_iter().map(|(node, _)| node).collect()
}

#[test]
fn a_dead_runs_nodes_are_no_part_of_the_present_units() {
    let launch = format!("{OFF}scale_by = \"call\"\nstrategy = \"all-or-nothing\"\n");
    let site = stage::site(Behaviour::default(), &launch, TWO);
    let armed = Stop::Before("RunInstances", 1, stage::Fate::Never).arm(&site);
    armed.kill("slurm_resume", &["c5-[1-3]"]);
    armed.let_go();
    age(&site);
    age(&site);
    site.ec2.adjust(|b| b.capacity = vec![Capacity::limit("c5.large", "*", 0)]);
    let ran = site.run("slurm_resume", &["m5-[1-2]"]);
    assert_eq!(running(&site), ["m5-1", "m5-2"], "{:?}", ran.code);
}

/// Jobs c5-[1-2] and c5-[3-4], the first of them suspended while the first launch is out; what came of it.
fn first_job_suspended(strategy: &str, capacity: u32) -> Site {
    let launch = format!("{OFF}scale_by = \"job\"\nstrategy = \"{strategy}\"\n");
    let mut behaviour = Behaviour::with_capacity(vec![Capacity::limit("c5.large", "*", capacity)]);
    behaviour.rules = vec![Rule::on("RunInstances").nth(1).hold("gate")];
    let site = Site::with(behaviour, &launch, TWO);
    let child = spawn_jobs(&site, "c5-[1-4]", &[(1, "c5-[1-2]"), (2, "c5-[3-4]")]);
    wait_held(&site, "gate");
    assert_eq!(site.run("slurm_suspend", &["c5-[1-2]"]).code, Some(0));
    site.ec2.release("gate");
    let ran = finished(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(0), "{}", site.log("slurm_resume"));
    assert_eq!(running(&site), ["c5-3", "c5-4"]);
    site
}

#[test]
fn instances_go_to_the_job_that_still_waits() {
    first_job_suspended("greedy-all-or-nothing", 2);
}

#[test]
fn nothing_more_is_launched_for_a_suspended_job() {
    let site = first_job_suspended("all-or-nothing", 3);
    assert_eq!(site.ec2.instances().len(), 2);
}

#[test]
fn b51_asked_again_in_mid_run_a_job_is_still_whole_or_nothing() {
    let launch = format!("{OFF}scale_by = \"job\"\nstrategy = \"all-or-nothing\"\n");
    let rules = vec![
        Rule::on("RunInstances").instance_type("m5.large").nth(1).hold("gate"),
        Rule::on("RunInstances").instance_type("m5.large").error("InsufficientInstanceCapacity", 500),
        Rule::on("RunInstances").instance_type("c5.large").nth(1).hold("gate"),
    ];
    let site = Site::with(Behaviour::with_rules(rules), &launch, TWO);
    let jobs = [(1, "c5-[1-2],m5-[1-2]")];
    let child = spawn_jobs(&site, "c5-[1-2],m5-[1-2]", &jobs);
    // Both of them: one that comes after the gate was opened would stand there until it is given up.
    let both = |snapshot: &slurm_ec2_testkit::ec2::Snapshot| snapshot.held.get("gate") == Some(&2);
    assert!(site.ec2.wait_until(stage::PATIENCE, both), "{}", site.log("slurm_resume"));
    // slurmctld restarted.
    assert_eq!(site.resume("c5-[1-2],m5-[1-2]", &file(&jobs)).code, Some(0));
    site.ec2.release("gate");
    let ran = finished(child.wait_with_output().unwrap());
    assert!(running(&site).is_empty() || running(&site).len() == 4, "half: {:?} {:?}", running(&site), ran.code);
}

#[test]
fn a_write_that_fails_is_made_up_for() {
    let launch = format!("{OFF}scale_by = \"job\"\nstrategy = \"all-or-nothing\"\n");
    let mut b = Behaviour::with_capacity(vec![Capacity::limit("c5.large", "*", 3)]);
    b.rules = vec![Rule::on("RunInstances").nth(1).hold("gate")];
    let site = Site::with(b, &launch, TWO);
    let child = spawn_jobs(&site, "c5-[1-4]", &[(1, "c5-[1-2]"), (2, "c5-[3-4]")]);
    wait_held(&site, "gate");
    let lock = OpenOptions::new().write(true).open(site.path("state/lock")).unwrap();
    let held = Flock::lock(lock, FlockArg::LockExclusive).unwrap();
    site.ec2.release("gate");
    stage::wait_until("the write that fails", || site.log("slurm_resume").contains("the mapping cannot be written"));
    drop(held);
    let ran = finished(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(1), "{}", site.log("slurm_resume"));
    let told = site.updates().join("\n");
    assert!(running(&site).len() >= 2 || told.contains("c5-1"), "silent");
}

#[test]
fn the_name_tag_is_the_nodes_own() {
    let launch = format!("{OFF}scale_by = \"job\"\nstrategy = \"greedy-all-or-nothing\"\nbatch_size = 1\nnode_tags = true\n");
    let rules = vec![Rule::on("RunInstances").tag("slurm-ec2:node", "c5-1").error("InsufficientInstanceCapacity", 500)];
    let site = Site::with(Behaviour::with_rules(rules), &launch, TWO);
    let jobs = [(1, "c5-[1-2]"), (2, "c5-[3-5]")];
    let ran = site.resume("c5-[1-5]", &file(&jobs));
    let tags: BTreeMap<_, _> =
        site.ec2.live_instances().into_iter().map(|i| (i.id.clone(), i.tags.get("slurm-ec2:node").cloned())).collect();
    for (node, id) in site.running() {
        assert_eq!(tags[&id].as_deref(), Some(node.as_str()), "{id} {:?}", ran.code);
    }
}

#[test]
fn after_a_signal_nothing_falls_back_and_the_code_stays() {
    const CHAIN: &str = "[[group]]\nname = \"c5\"\nnodes = \"c5-[1-2000]\"\nlaunch_template = { name = \"hpc-c5\", version = \"1\" }\n\
        instance_types = [\"c5.large\"]\n[[group.fallback]]\ninstance_types = [\"c6i.large\"]\n";
    let rules = vec![Rule::on("RunInstances").nth(1).hold("gate").error("InsufficientInstanceCapacity", 500)];
    let site = Site::with(Behaviour::with_rules(rules), OFF, CHAIN);
    let child = site.spawn("slurm_resume", &["c5-[1-2]"]);
    wait_held(&site, "gate");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap()), nix::sys::signal::Signal::SIGTERM)
        .unwrap();
    stage::wait_until("the signal is seen", || site.log("slurm_resume").contains("SIGTERM"));
    site.ec2.release("gate");
    let ran = finished(child.wait_with_output().unwrap());
    assert!(site.updates().join("\n").contains("(Code:InsufficientInstanceCapacity)"), "{:?}", ran.code);
}

#[test]
fn b51_a_job_with_a_node_outside_every_group_does_not_start_half() {
    let launch = format!("{OFF}scale_by = \"job\"\nstrategy = \"all-or-nothing\"\n");
    let site = Site::with(Behaviour::default(), &launch, TWO);
    let ran = site.resume("c5-[1-2],zz-1", &file(&[(1, "c5-[1-2],zz-1")]));
    assert!(running(&site).is_empty(), "half: {:?} {:?}", running(&site), ran.code);
    assert!(!site.path("state/backoff.json").exists(), "no group is to blame");
}

#[test]
fn a_plan_shows_what_a_resting_group_drags_along() {
    let launch = format!("{OFF}scale_by = \"call\"\nstrategy = \"all-or-nothing\"\n");
    let site = Site::with(Behaviour::with_capacity(vec![Capacity::limit("m5.large", "*", 0)]), &launch, TWO);
    assert_eq!(site.run("slurm_resume", &["m5-1"]).code, Some(1));
    let ran = site.run("slurm_resume", &["--dry-run", "c5-[1-2],m5-[1-2]"]);
    assert!(ran.stdout.contains("c5-[1-2]"), "nothing is said of them");
}
