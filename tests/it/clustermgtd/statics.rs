//! Nodes that are always up, standalone.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use slurm_ec2_testkit::ec2::{Behaviour, Capacity, InstanceChange, State};

use super::world::{Daemon, STATIC, node, site_with};
use crate::site::Site;

const OFF: &str = "IDLE+CLOUD+POWERED_DOWN";

fn both_off(behaviour: Behaviour, groups: &str) -> Site {
    let site = site_with(behaviour, groups);
    site.scontrol("nodes", &["c5-1", "c5-2"].map(|name| node(name, OFF, None)).concat());
    site
}

/// slurmd of all nodes has just registered.
fn register(site: &Site) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + 5;
    let shown = fs::read_to_string(site.path("bin/scontrol.nodes")).unwrap();
    site.scontrol("nodes", &shown.replace("SlurmdStartTime=1700000000", &format!("SlurmdStartTime={now}")));
}

/// Down by the daemon's word until the new instance has registered; then up, and replaced when its instance goes.
#[test]
fn a_static_node_comes_up_and_is_replaced_when_its_instance_goes() {
    let site = both_off(Behaviour::default(), STATIC);
    let mut daemon = Daemon::start(&site);
    daemon.wait(|daemon| daemon.node("c5-1").1 != "c5-1" && daemon.node("c5-2").1 != "c5-2");
    daemon.passes(3);
    assert_eq!((daemon.node("c5-1").0.as_str(), site.ec2.count("RunInstances")), ("DOWN+CLOUD", 1), "{}", daemon.log());
    assert_eq!(daemon.status()["replacing"].as_object().unwrap().len(), 2, "{:#}", daemon.status());
    register(&site);
    daemon.wait(|daemon| daemon.node("c5-1").0 == "IDLE+CLOUD" && daemon.node("c5-2").0 == "IDLE+CLOUD");
    let before = site.updates().len();
    daemon.passes(3);
    assert_eq!((site.updates().len(), site.live().len()), (before, 2), "{}", daemon.log());
    assert!(daemon.status()["replacing"].as_object().unwrap().is_empty(), "{:#}", daemon.status());

    let (lost, id) = site.running()[0].clone();
    site.ec2.change(&id, InstanceChange { state: Some(State::Terminated), ..InstanceChange::default() });
    daemon.wait(|_| site.running().len() == 2 && site.running()[0].1 != id);
    assert!(site.updates()[before..].iter().all(|line| !line.contains("c5-2")), "{lost} alone: {:?}", &site.updates()[before..]);
    site.assert_settled();
}

/// A shortage is no circle of launches.
#[test]
fn m25_a_static_node_without_capacity_waits_for_its_groups_rest() {
    let site = both_off(Behaviour::with_capacity(vec![Capacity::limit("*", "*", 0)]), STATIC);
    let mut daemon = Daemon::start(&site);
    daemon.wait(|daemon| !daemon.status()["shortages"].as_object().is_none_or(serde_json::Map::is_empty));
    daemon.passes(4);
    assert_eq!(site.ec2.count("RunInstances"), 1, "{}", daemon.log());
    let status = daemon.status();
    assert_eq!(status["shortages"]["c5"]["code"], "InsufficientInstanceCapacity", "{status:#}");
    assert!(status["queues"].as_object().unwrap().is_empty(), "no boot failure: {status:#}");
}

/// The console of an instance that never came up, before it is forgotten.
#[test]
fn the_console_of_a_failed_boot_is_kept() {
    let groups =
        STATIC.replace("loop_time = \"1s\"\n", "loop_time = \"1s\"\nreplacement_timeout = \"3s\"\nconsole_wait = \"0s\"\n");
    let site = both_off(Behaviour::default(), &groups);
    let mut daemon = Daemon::start(&site);
    let path = site.path("log/compute_console_output.log");
    daemon.wait(|_| path.exists());
    daemon.wait(|_| fs::read_to_string(&path).unwrap().ends_with('\n'));
    let text = fs::read_to_string(&path).unwrap();
    let line = text.lines().next().unwrap();
    assert!(line.contains("c5-") && line.contains("i-0ec2") && line.contains("cloud-init: finished"), "{line}");
}
