//! What log and status file say when the daemon does less than it should.

use std::fs;

use slurm_ec2_testkit::ec2::{Behaviour, InstanceChange, Rule, State};

use super::world::{Daemon, PATIENCE, STEP_BY_STEP, nodes_of, site_with};

/// B115 is for what somebody else ends. A word that nobody knows would otherwise be an info line an hour, for ever.
#[test]
fn a_fleet_status_that_nobody_knows_is_an_error() {
    let site = site_with(Behaviour::default(), STEP_BY_STEP);
    assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(0));
    site.scontrol("nodes", &nodes_of(&site, "IDLE+CLOUD"));
    site.write("state/fleet-status.json", "{\"status\": \"running\"}\n");
    let mut daemon = Daemon::start(&site);
    daemon.step();
    let (status, log) = (daemon.status(), daemon.log());
    assert_eq!(status["pass"]["result"], "incomplete", "{status:#}");
    let says = |line: &&str| line.contains(" ERROR ") && line.contains("fleet-status.json") && line.contains("running");
    assert_eq!(log.lines().filter(says).count(), 1, "{log}");
    fs::remove_file(site.path("state/fleet-status.json")).unwrap();
    daemon.step();
    assert_eq!(daemon.status()["pass"]["result"], "complete", "{}", daemon.log());
}

/// B88. What was left because it changed after the look is left, in the counts too.
#[test]
fn what_changes_after_the_look_is_counted_as_left() {
    let site = site_with(Behaviour::default(), STEP_BY_STEP);
    assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(0));
    site.scontrol("nodes", &nodes_of(&site, "IDLE+CLOUD"));
    site.ec2.change(&site.running()[0].1, InstanceChange { state: Some(State::Terminated), ..InstanceChange::default() });
    let whole = fs::read_to_string(site.path("bin/scontrol.nodes")).unwrap();
    // The last question before the actions.
    site.ec2.add_rules([Rule::on("DescribeInstanceStatus").nth(1).hold("look")]);
    let mut daemon = Daemon::start(&site);
    assert!(site.ec2.wait_held("look", PATIENCE));
    site.scontrol("nodes", &whole.replacen("State=IDLE+CLOUD", "State=MIXED+CLOUD", 1));
    site.ec2.release("look");
    daemon.step();
    let actions = daemon.status()["actions"].clone();
    assert_eq!((actions["done"].as_u64(), actions["left"].as_u64()), (Some(0), Some(1)), "{}", daemon.log());
    daemon.step();
    let actions = daemon.status()["actions"].clone();
    assert!(actions["done"].as_u64() > Some(0) && actions["left"] == 0, "{actions} {}", daemon.log());
}
