//! Broken surroundings: what cannot be seen whole is not acted on, what changes in between is left alone, and the heartbeat goes on.

use std::collections::BTreeMap;
use std::fs;

use slurm_ec2_testkit::ec2::{Behaviour, InstanceChange, Rule, Seed, State};

use super::world::{Daemon, GROUP, PATIENCE, STATIC, STEP_BY_STEP, node, nodes_of, site, site_with};
use crate::site::Site;

/// Work for the daemon: a node whose instance is gone, and an old instance without a node.
fn trouble(behaviour: Behaviour) -> Site {
    trouble_with(behaviour, GROUP)
}

fn trouble_with(behaviour: Behaviour, groups: &str) -> Site {
    let site = site_with(behaviour, groups);
    assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(0));
    site.scontrol("nodes", &nodes_of(&site, "IDLE+CLOUD"));
    site.ec2.change(&site.running()[0].1, InstanceChange { state: Some(State::Terminated), ..InstanceChange::default() });
    let state = fs::read_to_string(site.path("state/state-id")).unwrap();
    let tags = [("slurm-ec2:cluster", "hpc"), ("slurm-ec2:state", state.trim())];
    let tags = tags.map(|(key, value)| (key.to_owned(), value.to_owned()));
    site.ec2.seed(&Seed { tags: BTreeMap::from(tags), age_ms: 3_600_000, ..Seed::default() });
    site
}

fn heartbeat(site: &Site) -> String {
    fs::read_to_string(site.path("state/heartbeat")).unwrap_or_default()
}

/// Passes go by, nothing is destroyed, the heartbeat changes, the truth is told; then all is well again, and the work is done.
#[track_caller]
fn nothing_until(site: &Site, what: &str, repair: impl FnOnce()) {
    let before = (site.updates().len(), site.running(), site.ec2.count("TerminateInstances"));
    let mut daemon = Daemon::start(site);
    daemon.passes(1);
    let beat = heartbeat(site);
    daemon.passes(2);
    daemon.wait(|_| heartbeat(site) != beat);
    assert_eq!((site.updates().len(), site.running(), site.ec2.count("TerminateInstances")), before, "{what}: {}", daemon.log());
    let status = daemon.status();
    assert_eq!(status["pass"]["result"], "incomplete", "{what}: {status:#}");
    assert!(status["pass"]["problem"].as_str().unwrap().contains(what), "{what}: {status:#}");
    assert!(daemon.log().lines().any(|line| line.contains(" ERROR ") && line.contains(what)), "{what}: {}", daemon.log());
    repair();
    daemon.wait(|daemon| daemon.node("c5-1").0.ends_with("POWERED_DOWN") && site.live().len() == 1);
    site.assert_settled();
}

#[test]
fn m16_half_an_answer_of_scontrol_destroys_nothing() {
    let site = trouble(Behaviour::default());
    let whole = fs::read_to_string(site.path("bin/scontrol.nodes")).unwrap();
    site.scontrol("nodes", &whole[..whole.len() - 60]);
    nothing_until(&site, "cut short", || site.scontrol("nodes", &whole));
}

/// B87.
#[test]
fn m16_no_answer_of_scontrol_destroys_nothing() {
    let site = trouble(Behaviour::default());
    site.scontrol("fail.show", "1\nslurm_load_node error: Access/permission denied\n");
    nothing_until(&site, "permission denied", || fs::remove_file(site.path("bin/scontrol.fail.show")).unwrap());
    let site = trouble(Behaviour::default());
    let whole = fs::read_to_string(site.path("bin/scontrol.nodes")).unwrap();
    site.scontrol("nodes", "");
    nothing_until(&site, "shows no node at all", || site.scontrol("nodes", &whole));
}

/// B87.
#[test]
fn an_ec2_that_fails_destroys_nothing() {
    for rule in [
        Rule::on("DescribeInstances").error("UnauthorizedOperation", 403),
        Rule::on("DescribeInstances").error("RequestLimitExceeded", 503),
        Rule::on("DescribeInstances").garbage(),
    ] {
        let site = trouble(Behaviour::default());
        let config = fs::read_to_string(site.path("slurm-ec2.toml")).unwrap();
        site.write("slurm-ec2.toml", &config.replace("[aws]\n", "[aws]\nattempts = 1\n"));
        site.ec2.add_rules([rule]);
        nothing_until(&site, "DescribeInstances", || site.ec2.behave(Behaviour::default()));
    }
}

/// B106. An answer that does not come keeps neither the heartbeat nor a SIGTERM.
#[test]
fn a_slow_ec2_keeps_neither_the_heartbeat_nor_the_end() {
    let site = trouble(Behaviour::default());
    site.ec2.add_rules([Rule::on("DescribeInstances").hold("slow")]);
    let mut daemon = Daemon::start(&site);
    assert!(site.ec2.wait_held("slow", PATIENCE));
    for _ in 0..2 {
        let beat = heartbeat(&site);
        daemon.wait(|_| heartbeat(&site) != beat);
    }
    let log = daemon.end_at_once();
    assert!(log.contains("SIGTERM"), "{log}");
}

/// M09: EC2 does not show everything at once.
#[test]
fn m09_an_instance_that_ec2_hides_for_a_while_keeps_its_node() {
    let site = site(Behaviour::default());
    assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(0));
    site.scontrol("nodes", &nodes_of(&site, "ALLOCATED+CLOUD"));
    let before = site.updates().len();
    let (_, hidden) = site.running()[0].clone();
    site.ec2.change(&hidden, InstanceChange { hidden: Some(true), ..InstanceChange::default() });
    let mut daemon = Daemon::start(&site);
    daemon.passes(4);
    site.ec2.change(&hidden, InstanceChange { hidden: Some(false), ..InstanceChange::default() });
    daemon.passes(2);
    assert_eq!((site.updates().len(), site.running().len(), site.live().len()), (before, 2, 2), "{}", daemon.log());
}

/// B88. Compare and set: what is not as it was seen is left to the next pass.
#[test]
fn a_node_that_changes_after_the_look_is_left_alone() {
    let site = trouble_with(Behaviour::default(), STEP_BY_STEP);
    let whole = fs::read_to_string(site.path("bin/scontrol.nodes")).unwrap();
    // The last question before the actions.
    site.ec2.add_rules([Rule::on("DescribeInstanceStatus").nth(1).hold("look")]);
    let before = site.updates().len();
    let mut daemon = Daemon::start(&site);
    assert!(site.ec2.wait_held("look", PATIENCE));
    site.scontrol("nodes", &whole.replacen("State=IDLE+CLOUD", "State=MIXED+CLOUD", 1));
    site.ec2.release("look");
    daemon.step();
    assert_eq!((site.updates().len(), site.running().len()), (before, 2), "{}", daemon.log());
    assert!(daemon.log().contains("its state in Slurm has changed"), "{}", daemon.log());
    daemon.step();
    assert!(daemon.node("c5-1").0.ends_with("POWERED_DOWN"), "{}", daemon.log());
}

/// The same for the mapping: another program has freed the node meanwhile and launched for it.
#[test]
fn a_node_whose_mapping_changes_after_the_look_is_left_alone() {
    let site = trouble_with(Behaviour::default(), STEP_BY_STEP);
    site.ec2.add_rules([Rule::on("DescribeInstanceStatus").nth(1).hold("look")]);
    let mut daemon = Daemon::start(&site);
    assert!(site.ec2.wait_held("look", PATIENCE));
    fs::remove_file(site.path("bin/scontrol.live")).unwrap();
    let shown = fs::read_to_string(site.path("bin/scontrol.nodes")).unwrap();
    assert_eq!(site.run("slurm_suspend", &["c5-1"]).code, Some(0));
    assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(0));
    let (mapped, updates) = (site.running(), site.updates().len());
    site.scontrol("nodes", &shown);
    site.ec2.release("look");
    daemon.step();
    assert_eq!((site.running(), site.updates().len()), (mapped, updates), "{}", daemon.log());
    assert!(daemon.log().contains("its mapping entry has changed"), "{}", daemon.log());
}

/// B97. Launches of static nodes are in the background.
#[test]
fn a_launch_that_takes_long_holds_no_pass_up() {
    let site = site_with(Behaviour::with_rules(vec![Rule::on("RunInstances").hold("launch")]), STATIC);
    site.scontrol("nodes", &["c5-1", "c5-2"].map(|name| node(name, "IDLE+CLOUD+POWERED_DOWN", None)).concat());
    let mut daemon = Daemon::start(&site);
    assert!(site.ec2.wait_held("launch", PATIENCE));
    daemon.passes(3);
    assert_eq!(site.ec2.count("RunInstances"), 1, "one launch, however many passes: {}", daemon.log());
    site.ec2.release("launch");
    daemon.wait(|_| site.running().len() == 2);
    site.assert_settled();
}

/// An instance that nobody may terminate is an error now and then, not in every pass.
#[test]
fn a_protected_instance_is_one_error_in_many_passes() {
    let site = trouble_with(Behaviour::default(), STEP_BY_STEP);
    let orphan = site.ec2.live_instances().into_iter().find(|it| !it.tags.contains_key("slurm-ec2:launch")).unwrap();
    site.ec2.change(&orphan.id, InstanceChange { protected: Some(true), ..InstanceChange::default() });
    let mut daemon = Daemon::start(&site);
    // An orphan by the second look, and tried again in the tenth pass after that.
    (0..8).for_each(|_| daemon.step());
    assert_eq!(daemon.log().matches("termination protection is on").count(), 1, "{}", daemon.log());
    assert_eq!(site.condemned().len(), 1);
}

/// M19: one node that slurmctld refuses keeps none of the others.
#[test]
fn m19_one_bad_node_keeps_no_other() {
    let site = site(Behaviour::default());
    assert_eq!(site.run("slurm_resume", &["c5-[1-10]"]).code, Some(0));
    site.scontrol("nodes", &nodes_of(&site, "DOWN+CLOUD+NOT_RESPONDING"));
    site.scontrol("refuse", "c5-3\n");
    let mut daemon = Daemon::start(&site);
    daemon.wait(|daemon| daemon.node("c5-10").0 == "IDLE+CLOUD+POWERED_DOWN");
    daemon.passes(3);
    for number in [1, 2, 4, 5, 6, 7, 8, 9, 10] {
        assert_eq!(daemon.node(&format!("c5-{number}")).0, "IDLE+CLOUD+POWERED_DOWN", "{number}: {}", daemon.log());
    }
    let refused = |line: &&str| line.contains(" ERROR ") && line.contains("\"c5-3\"") && line.contains("slurmctld refuses it");
    assert_eq!(daemon.log().lines().filter(refused).count(), 1, "{}", daemon.log());
    assert_eq!(daemon.status()["pass"]["result"], "complete", "{:#}", daemon.status());
    assert!(site.live().is_empty());
}

/// M27, M23: 600 of 5,000 nodes lose their instances: a handful of calls, a handful of lines.
#[test]
fn m27_m23_thousands_of_nodes_are_a_few_calls_and_lines() {
    let site = site(Behaviour { full_size: false, ..Behaviour::default() });
    // The endpoint of the tests is no fast one.
    let config = fs::read_to_string(site.path("slurm-ec2.toml")).unwrap();
    let patient = "[aws]\nattempt_timeout = \"4m\"\noperation_timeout = \"4m\"\n";
    site.write("slurm-ec2.toml", &config.replace("[aws]\n", patient));
    assert_eq!(site.run("slurm_resume", &["c5-[1-5000]"]).code, Some(0));
    site.scontrol("nodes", &nodes_of(&site, "IDLE+CLOUD"));
    let running = site.running();
    for (_, id) in running.iter().take(600) {
        site.ec2.change(id, InstanceChange { state: Some(State::Terminated), ..InstanceChange::default() });
    }
    let (updates, terminations) = (site.updates().len(), site.ec2.count("TerminateInstances"));
    let mut daemon = Daemon::start(&site);
    // A small file: to read the mapping again and again takes the processor from the endpoint.
    daemon.wait(|daemon| daemon.status()["nodes"]["IDLE+CLOUD+POWERED_DOWN"] == 600);
    daemon.passes(2);
    assert_eq!(site.running().len(), 4400, "{}", daemon.log());
    let calls = site.updates().len() - updates;
    assert!((3..=6).contains(&calls), "{calls} calls for 600 nodes");
    assert!(site.ec2.count("TerminateInstances") - terminations <= 3);
    let lines = daemon.log().lines().filter(|line| !line.contains(" DEBUG ")).count();
    assert!(lines < 30, "{lines} lines");
    site.assert_settled();
}
