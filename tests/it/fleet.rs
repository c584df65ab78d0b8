//! CreateFleet: what its answers and errors make of the nodes.

use std::collections::BTreeSet;
use std::time::Duration;

use slurm_ec2_testkit::ec2::{Behaviour, Capacity, Request};

use crate::site::{Site, finished};

const OFF: &str = "request_bucket = \"off\"\n";
const TEMPLATE: &str = "api = \"create-fleet\"\nlaunch_template = { name = \"hpc-c5\", version = \"1\" }\n";

/// A fleet group of two types and two subnets, and further lines.
fn two_by_two(lines: &str) -> String {
    format!(
        "[[group]]\nname = \"c5\"\nnodes = \"c5-[1-2000]\"\n{TEMPLATE}instance_types = [\"c5.large\", \"c6i.large\"]\n\
         subnets = [\"subnet-0000000a\", \"subnet-0000000b\"]\n{lines}"
    )
}

fn site(behaviour: Behaviour, launch: &str, group: &str) -> Site {
    Site::with(behaviour, &format!("{OFF}{launch}"), group)
}

fn reason(site: &Site, node: &str) -> String {
    let lines = site.updates();
    lines.into_iter().find(|line| line.contains("reason=") && line.contains(node)).unwrap_or_default()
}

fn tokens(calls: &[Request]) -> BTreeSet<String> {
    calls.iter().map(|call| call.param("ClientToken").unwrap().to_owned()).collect()
}

/// No instance, and an error list in which throttling stands beside a lack of capacity.
fn throttled_and_empty() -> Behaviour {
    Behaviour::with_capacity(vec![
        Capacity::limit("c6i.*", "*", 0),
        Capacity::limit("c5.*", "*", 0).code("RequestLimitExceeded", 503),
    ])
}

#[test]
fn r01_throttling_beside_other_errors_is_not_a_shortage() {
    let site = site(throttled_and_empty(), "", &two_by_two(""));
    let child = site.spawn("slurm_resume", &["c5-[1-3]"]);
    let tried = |snapshot: &slurm_ec2_testkit::ec2::Snapshot| snapshot.counters.get("CreateFleet").is_some_and(|n| *n >= 2);
    assert!(site.ec2.wait_until(Duration::from_secs(120), tried), "{}", site.log("slurm_resume"));
    site.ec2.adjust(|behaviour| behaviour.capacity.clear());
    assert_eq!(finished(child.wait_with_output().unwrap()).code, Some(0), "{}", site.log("slurm_resume"));
    let calls = site.ec2.requests_of("CreateFleet");
    assert_eq!(tokens(&calls).len(), calls.len(), "the token of an empty answer stands for that answer");
    assert_eq!((site.running().len(), site.live().len()), (3, 3));
    assert_eq!(reason(&site, "c5-"), "");
    assert!(!site.path("state/backoff.json").exists());
    site.assert_settled();
}

#[test]
fn r01_throttled_to_the_end_names_throttling_and_rests_nobody() {
    let site = site(throttled_and_empty(), "", &two_by_two(""));
    // A quarter of it is for telling Slurm.
    site.limit(24);
    let ran = site.run("slurm_resume", &["c5-[1-3]"]);
    // 75 when the time is up while a call is under way (what became of it is not known), 1 when it is between two.
    assert!(matches!(ran.code, Some(1 | 75)), "{:?} {}", ran.code, site.log("slurm_resume"));
    let reason = reason(&site, "c5-1");
    assert!(reason.contains("(Code:RequestLimitExceeded)"), "{reason}");
    assert!(!site.path("state/backoff.json").exists(), "the next call tries again");
    assert!(site.mapping()["nodes"].as_object().unwrap().is_empty());
    site.assert_settled();
}

#[test]
fn b14_an_exhausted_fleet_is_asked_once() {
    let site = site(Behaviour::with_capacity(vec![Capacity::limit("*", "*", 0)]), "", &two_by_two(""));
    assert_eq!(site.run("slurm_resume", &["c5-[1-3]"]).code, Some(1));
    assert_eq!(site.ec2.count("CreateFleet"), 1);
    assert!(reason(&site, "c5-1").contains("(Code:InsufficientInstanceCapacity)"), "{:?}", site.updates());
    assert!(site.records().is_empty());
}

#[test]
fn r08_part_of_a_fleet_gives_ec2s_own_code() {
    let behaviour = Behaviour::with_capacity(vec![
        Capacity::limit("*", "subnet-0000000b", 0).code("VcpuLimitExceeded", 400),
        Capacity::limit("c6i.*", "*", 0).code("VcpuLimitExceeded", 400),
        Capacity::limit("c5.*", "*", 2).code("VcpuLimitExceeded", 400),
    ]);
    let site = site(behaviour, "", &two_by_two(""));
    assert_eq!(site.run("slurm_resume", &["c5-[1-3]"]).code, Some(1), "{}", site.log("slurm_resume"));
    assert_eq!(site.running().iter().map(|(node, _)| node.as_str()).collect::<Vec<_>>(), ["c5-1", "c5-2"]);
    assert!(reason(&site, "c5-3").contains("(Code:VcpuLimitExceeded)"), "{:?}", site.updates());
    site.assert_settled();
}

#[test]
fn r28_a_full_subnet_leaves_it_to_the_other() {
    let full = Capacity::limit("*", "subnet-0000000a", 0).code("InsufficientFreeAddressesInSubnet", 400);
    let site = site(Behaviour::with_capacity(vec![full]), "", &two_by_two(""));
    assert_eq!(site.run("slurm_resume", &["c5-[1-3]"]).code, Some(0), "{}", site.log("slurm_resume"));
    assert!(site.ec2.live_instances().iter().all(|instance| instance.subnet == "subnet-0000000b"));
    assert_eq!((site.running().len(), reason(&site, "c5-")), (3, String::new()));
    assert!(!site.path("state/backoff.json").exists());
}

#[test]
fn r24_addresses_of_a_fleet_are_those_of_the_first_card() {
    let behaviour =
        Behaviour { network_cards: 3, shuffle_cards: true, shuffle_order: true, no_ip_describes: 1, ..Behaviour::default() };
    let site = site(behaviour, "", &two_by_two(""));
    assert_eq!(site.run("slurm_resume", &["c5-[1-4]"]).code, Some(0), "{}", site.log("slurm_resume"));
    let mapping = site.mapping();
    let told = site.updates().into_iter().find(|line| line.contains("nodeaddr=")).unwrap();
    let mut addresses = Vec::new();
    for (node, id) in site.running() {
        let instance = site.ec2.live_instances().into_iter().find(|instance| instance.id == id).unwrap();
        let entry = &mapping["nodes"][&node];
        assert_eq!(entry["private_ip"], instance.private_ip.to_string(), "{node}");
        assert_eq!(entry["hostname"], instance.hostname.split('.').next().unwrap(), "{node}");
        addresses.push(instance.private_ip.to_string());
    }
    assert!(told.contains("nodename=c5-1,c5-2,c5-3,c5-4") && told.contains(&addresses.join(",")), "{told}");
}

#[test]
fn r34_a_fleets_instances_carry_the_tags() {
    let site = site(Behaviour::default(), "", &two_by_two("tags = { project = \"blue\", \"cost center\" = \"4711\" }\n"));
    assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(0), "{}", site.log("slurm_resume"));
    for instance in site.ec2.live_instances() {
        assert_eq!((instance.tags["project"].as_str(), instance.tags["cost center"].as_str()), ("blue", "4711"));
        assert_eq!((instance.tags["slurm-ec2:cluster"].as_str(), instance.tags["slurm-ec2:group"].as_str()), ("hpc", "c5"));
    }
}

#[test]
fn r12_an_all_or_nothing_fleet_leaves_nothing() {
    let group = format!(
        "[[group]]\nname = \"c5\"\nnodes = \"c5-[1-2000]\"\n{TEMPLATE}instance_types = [\"c5.large\"]\n\
         subnets = [\"subnet-0000000a\", \"subnet-0000000b\"]\nstrategy = \"all-or-nothing\"\n"
    );
    let site = site(Behaviour::with_capacity(vec![Capacity::limit("*", "*", 2)]), "", &group);
    assert_eq!(site.run("slurm_resume", &["c5-[1-3]"]).code, Some(1), "{}", site.log("slurm_resume"));
    assert_eq!(site.ec2.requests_of("CreateFleet")[0].param("OnDemandOptions.MinTargetCapacity"), Some("3"));
    assert!(site.ec2.instances().is_empty() && site.running().is_empty());
    assert!(reason(&site, "c5-2").contains("(Code:InsufficientInstanceCapacity)"), "{:?}", site.updates());
}

#[test]
fn a_spot_fleet_asks_for_spot_and_its_price() {
    let lines = "capacity = \"spot\"\nallocation_strategy = \"capacity-optimized-prioritized\"\nmax_price = 0.25\n";
    let site = site(Behaviour::default(), "", &two_by_two(lines));
    assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(0), "{}", site.log("slurm_resume"));
    let call = site.ec2.requests_of("CreateFleet")[0].clone();
    for (key, value) in [
        ("TargetCapacitySpecification.DefaultTargetCapacityType", "spot"),
        ("TargetCapacitySpecification.TotalTargetCapacity", "2"),
        ("SpotOptions.AllocationStrategy", "capacity-optimized-prioritized"),
        ("LaunchTemplateConfigs.1.Overrides.4.MaxPrice", "0.25"),
        ("LaunchTemplateConfigs.1.Overrides.1.Priority", "0"),
        ("LaunchTemplateConfigs.1.Overrides.4.Priority", "3"),
    ] {
        let found = call.param(key).unwrap_or("-");
        assert!(found == value || found.trim_end_matches(".0") == value, "{key}={found}");
    }
    assert!(site.ec2.live_instances().iter().all(|instance| instance.spot));
}

/// R05 in full: ids unknown at first, two that become complete, one that never does.
#[test]
fn r05_no_id_of_a_fleet_is_neither_mapped_nor_terminated() {
    let behaviour = Behaviour { hidden_describes: 2, hidden_from_terminate: true, never_ip: vec![1], ..Behaviour::default() };
    let site = site(behaviour, "address_timeout = \"10s\"\n", &two_by_two(""));
    assert_eq!(site.run("slurm_resume", &["c5-[1-3]"]).code, Some(1), "{}", site.log("slurm_resume"));
    let mapped: BTreeSet<String> = site.running().into_iter().map(|(_, id)| id).collect();
    let terminated = site.ec2.requests_of("TerminateInstances");
    for instance in site.ec2.instances() {
        let ended = terminated.iter().any(|call| call.params.iter().any(|(_, value)| *value == instance.id));
        assert!(mapped.contains(&instance.id) != ended, "{}: {}", instance.id, site.mapping());
    }
    assert_eq!(mapped.len(), 2);
    site.assert_settled();
}
