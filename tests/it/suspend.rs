//! slurm_suspend and slurm_resume_fail.

use slurm_ec2_testkit::ec2::{Behaviour, Capacity, Rule, Seed};

use crate::site::{GROUP, Site};

fn up(behaviour: Behaviour, nodes: &str) -> Site {
    let site = Site::new(behaviour);
    assert_eq!(site.run("slurm_resume", &[nodes]).code, Some(0), "{}", site.log("slurm_resume"));
    site
}

#[test]
fn b30_instances_go_at_once() {
    let site = up(Behaviour::default(), "c5-[1-3]");
    let ran = site.run("slurm_suspend", &["c5-[1-2]"]);
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (Some(0), "", ""), "{}", site.log("slurm_suspend"));
    assert_eq!((site.live().len(), site.running().len(), site.condemned().len()), (1, 1, 0));
    // Again: nothing to do, and no fuss about it.
    assert_eq!(site.run("slurm_suspend", &["c5-[1-2]"]).code, Some(0));
    assert_eq!(site.live().len(), 1);
}

#[test]
fn b30_more_than_a_call_takes() {
    let site = up(Behaviour { full_size: false, ..Behaviour::default() }, "c5-[1-1200]");
    assert_eq!(site.run("slurm_suspend", &["c5-[1-1200]"]).code, Some(0), "{}", site.log("slurm_suspend"));
    assert!(site.live().is_empty() && site.condemned().is_empty());
    assert!(site.ec2.requests_of("TerminateInstances").len() >= 2);
}

#[test]
fn b30_a_protected_instance_does_not_keep_the_others() {
    let site = up(Behaviour { protected: vec![2], ..Behaviour::default() }, "c5-[1-4]");
    let ran = site.run("slurm_suspend", &["c5-[1-4]"]);
    assert_eq!(ran.code, Some(1));
    assert_eq!(site.live().len(), 1);
    assert_eq!(site.condemned(), site.live(), "it stays on the list");
    assert!(ran.stderr.contains("termination protection"), "{}", ran.stderr);
    let id = site.live().into_iter().next().unwrap();
    site.ec2.change(&id, slurm_ec2_testkit::ec2::InstanceChange { protected: Some(false), ..Default::default() });
    // Any next program finishes it.
    assert_eq!(site.run("slurm_suspend", &["c5-9"]).code, Some(0));
    assert!(site.live().is_empty() && site.condemned().is_empty());
}

#[test]
fn b31_an_id_that_ec2_forgot_is_dropped_only_when_it_is_old() {
    let site = up(Behaviour { forget_terminated_ms: Some(0), ..Behaviour::default() }, "c5-[1-2]");
    for instance in site.ec2.live_instances() {
        let terminated = slurm_ec2_testkit::ec2::InstanceChange {
            state: Some(slurm_ec2_testkit::ec2::State::Terminated),
            ..Default::default()
        };
        site.ec2.change(&instance.id, terminated);
    }
    // Young: it could just not be visible.
    let ran = site.run("slurm_suspend", &["c5-[1-2]"]);
    assert_eq!(ran.code, Some(75), "{}", site.log("slurm_suspend"));
    assert_eq!(site.condemned().len(), 2);
    let mapping = std::fs::read_to_string(site.path("state/mapping.json")).unwrap();
    let year = &mapping[mapping.find("\"launched\": \"").or_else(|| mapping.find("\"launched\":\"")).unwrap()..];
    let year = year.split('"').nth(3).unwrap();
    site.write("state/mapping.json", &mapping.replace(year, "2020-01-01T00:00:00Z"));
    assert_eq!(site.run("slurm_suspend", &["c5-9"]).code, Some(0), "{}", site.log("slurm_suspend"));
    assert!(site.condemned().is_empty());
}

#[test]
fn s04_what_is_not_terminated_stays_on_the_list() {
    let site = up(Behaviour::default(), "c5-[1-2]");
    site.ec2.add_rules([Rule::on("TerminateInstances").error("UnauthorizedOperation", 403)]);
    let ran = site.run("slurm_suspend", &["c5-[1-2]"]);
    assert_eq!(ran.code, Some(1));
    assert!(site.live().iter().all(|id| ran.stderr.contains(id.as_str())), "{}", ran.stderr);
    assert_eq!(site.condemned(), site.live());
    assert!(site.running().is_empty());
}

#[test]
fn s05_b30_no_daemon_is_needed() {
    let site = up(Behaviour::default(), "c5-1");
    assert!(!site.path("state/heartbeat").exists());
    assert_eq!(site.run("slurm_suspend", &["c5-1"]).code, Some(0));
    assert!(site.live().is_empty());
}

#[test]
fn b32_a_node_without_mapping_is_looked_up_in_slurm() {
    for by_id in [false, true] {
        let site = up(Behaviour::default(), "c5-[1-2]");
        let first = site.ec2.live_instances()[0].clone();
        // The mapping lost the node; Slurm still knows.
        let mut mapping = site.mapping();
        let node = site.running().into_iter().find(|(_, id)| *id == first.id).unwrap().0;
        mapping["nodes"].as_object_mut().unwrap().remove(&node);
        site.write("state/mapping.json", &mapping.to_string());
        let (address, id) =
            if by_id { (node.clone(), first.id.clone()) } else { (first.private_ip.to_string(), "(null)".to_owned()) };
        site.scontrol(
            "nodes",
            &format!("NodeName={node} CoresPerSocket=1\n   NodeAddr={address} NodeHostName={node}\n   State=IDLE+CLOUD+POWERING_DOWN ThreadsPerCore=1\n   InstanceId={id} InstanceType=(null)\n\n"),
        );
        assert_eq!(site.run("slurm_suspend", &[&node]).code, Some(0), "{}", site.log("slurm_suspend"));
        assert!(!site.live().contains(&first.id), "by_id {by_id}: {}", site.log("slurm_suspend"));
        assert_eq!(site.live().len(), 1);
        site.assert_settled();
    }
}

#[test]
fn s02_b32_two_instances_of_one_name() {
    let site = Site::with(Behaviour::default(), "request_bucket = \"off\"\nnode_tags = true\n", GROUP);
    assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(0));
    let tags = site.ec2.live_instances()[0].tags.clone();
    assert_eq!(tags["slurm-ec2:node"], "c5-1");
    let mut twin = tags.clone();
    twin.insert("slurm-ec2:launch".to_owned(), "20200101T000000Z-00000000".to_owned());
    site.ec2.seed(&Seed { tags: twin, ..Default::default() });
    assert_eq!(site.live().len(), 2);
    assert_eq!(site.run("slurm_suspend", &["c5-1"]).code, Some(0));
    assert!(site.live().is_empty(), "{}", site.log("slurm_suspend"));
    assert!(site.log("slurm_suspend").contains("WARN"));
}

#[test]
fn b20_a_failed_group_rests_in_slurm_too() {
    for (version, expected) in [("24.11.5", true), ("22.05.8", false)] {
        let site = Site::new(Behaviour::with_capacity(vec![Capacity::limit("*", "*", 0)]));
        site.scontrol("version", version);
        assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(1));
        site.scontrol("state", "IDLE+CLOUD+POWERING_DOWN\n");
        let before = site.updates().len();
        assert_eq!(site.run("slurm_suspend", &["c5-[1-2]"]).code, Some(0));
        let updates = site.updates()[before..].join("\n");
        assert_eq!(updates.to_lowercase().contains("resumeafter="), expected, "{version}: {updates}");
        assert_eq!(updates.contains("state=down"), expected, "{version}: {updates}");
    }
}

/// The end of the rest would be the end of the drain.
#[test]
fn b126_a_node_that_a_person_drained_does_not_rest_with_its_group() {
    let site = Site::new(Behaviour::with_capacity(vec![Capacity::limit("*", "*", 0)]));
    site.scontrol("version", "24.11.5");
    assert_eq!(site.run("slurm_resume", &["c5-[1-3]"]).code, Some(1));
    let record = |(node, state, reason): (&str, &str, &str)| {
        format!("NodeName={node} CoresPerSocket=1\n   State={state}\n   Reason={reason} [root@2026-11-29T12:00:00]\n\n")
    };
    let nodes = [
        ("c5-1", "IDLE+CLOUD+POWERING_DOWN", "stopping cluster, was drained: bad disk"),
        ("c5-2", "IDLE+CLOUD+DRAIN+POWERING_DOWN", "bad disk"),
        ("c5-3", "IDLE+CLOUD+POWERING_DOWN", "stopping cluster"),
    ];
    site.scontrol("nodes", &nodes.map(record).concat());
    let before = site.updates().len();
    assert_eq!(site.run("slurm_suspend", &["c5-[1-3]"]).code, Some(0));
    let updates = &site.updates()[before..];
    let down: Vec<&String> = updates.iter().filter(|update| update.contains("state=down")).collect();
    assert!(matches!(down[..], [one] if one.contains("nodename=c5-3 ")), "{updates:?}");
}

#[test]
fn r11_b20_old_slurm_gets_an_address_that_resolves() {
    for (version, expected) in [("22.05.8", true), ("26.05.5", false)] {
        let site = Site::new(Behaviour::with_capacity(vec![Capacity::limit("*", "*", 0)]));
        site.scontrol("version", version);
        assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(1));
        let updates = site.updates().join("\n");
        assert!(updates.contains("state=power_down_force"), "{updates}");
        assert_eq!(updates.contains("nodeaddr=192.0.2."), expected, "{version}: {updates}");
    }
}

#[test]
fn instance_id_as_the_version_takes_it() {
    for (version, expected) in [("22.05.8", 0), ("24.11.5", 2), ("26.05.5", 1)] {
        let site = Site::new(Behaviour::default());
        site.scontrol("version", version);
        assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(0), "{}", site.log("slurm_resume"));
        let calls = site.scontrol_calls().into_iter().filter(|line| line.to_lowercase().contains("instanceid=")).count();
        assert_eq!(calls, expected, "{version}: {:?}", site.scontrol_calls());
    }
}

/// slurmctld calls for a node whose launch failed, too: it waits on for the ResumeTimeout of one that was set down meanwhile.
#[test]
fn m25_a_node_that_was_never_launched_has_not_failed_to_boot() {
    let site = up(Behaviour::default(), "c5-1");
    site.scontrol("state", "DOWN+CLOUD+POWERED_DOWN\n");
    assert_eq!(site.run("slurm_resume_fail", &["c5-[1-3]"]).code, Some(0), "{}", site.log("slurm_resume_fail"));
    let failures: serde_json::Value = serde_json::from_slice(&std::fs::read(site.path("state/failures.json")).unwrap()).unwrap();
    assert_eq!(failures["groups"]["c5"]["count"], 1, "{failures}");
    assert_eq!(failures["groups"]["c5"]["nodes"][0]["node"], "c5-1", "{failures}");
    site.assert_settled();
}

#[test]
fn f01_f02_b34_resume_fail_brings_the_node_back() {
    let site = up(Behaviour::default(), "c5-[1-3]");
    site.scontrol("state", "DOWN+CLOUD+POWERED_DOWN\n");
    site.scontrol("version", "22.05.8");
    let before = site.updates().len();
    let ran = site.run("slurm_resume_fail", &["c5-[1-2]"]);
    assert_eq!(ran.code, Some(0), "{}", site.log("slurm_resume_fail"));
    assert_eq!(site.live().len(), 1);
    let updates = site.updates()[before..].join("\n");
    assert!(updates.contains("nodeaddr=c5-1,c5-2") && updates.contains("nodehostname=c5-1,c5-2"), "{updates}");
    assert!(updates.contains("state=power_down") && !updates.to_lowercase().contains("state=resume"), "{updates}");
    let log = site.log("slurm_resume_fail");
    assert!(log.contains("| [    2.113000] cloud-init: finished"), "{log}");
    let failures: serde_json::Value = serde_json::from_slice(&std::fs::read(site.path("state/failures.json")).unwrap()).unwrap();
    assert_eq!(failures["groups"]["c5"]["count"], 2, "{failures}");
    site.assert_settled();
}

#[test]
fn b34_a_node_that_is_up_after_all_is_left_alone() {
    let site = up(Behaviour::default(), "c5-1");
    site.scontrol("state", "IDLE+CLOUD\n");
    let before = site.updates().len();
    assert_eq!(site.run("slurm_resume_fail", &["c5-1"]).code, Some(0));
    assert_eq!(site.live().len(), 1);
    assert_eq!(site.updates().len(), before);
}

#[test]
fn f01_an_error_of_ec2_does_not_stop_the_rest() {
    let site = up(Behaviour::default(), "c5-[1-2]");
    site.scontrol("state", "DOWN+CLOUD+POWERED_DOWN\n");
    site.ec2.add_rules([
        Rule::on("TerminateInstances").error("UnauthorizedOperation", 403),
        Rule::on("GetConsoleOutput").error("UnauthorizedOperation", 403),
    ]);
    let ran = site.run("slurm_resume_fail", &["c5-[1-2]"]);
    assert_eq!(ran.code, Some(1), "{}", site.log("slurm_resume_fail"));
    assert_eq!(site.condemned(), site.live());
    assert!(site.updates().iter().any(|line| line.contains("state=power_down")), "the nodes come back all the same");
}

#[test]
fn f01_resume_fail_brings_the_nodes_back_without_a_usable_configuration() {
    let site = up(Behaviour::default(), "c5-[1-2]");
    site.scontrol("state", "DOWN+CLOUD+POWERED_DOWN\n");
    let before = site.updates().len();
    let toml = std::fs::read_to_string(site.path("slurm-ec2.toml")).unwrap();
    site.write("slurm-ec2.toml", &toml.replace("[launch]\n", "[launch]\nbatchsize = 3\n"));
    let ran = site.run("slurm_resume_fail", &["c5-[1-2]"]);
    assert_eq!(ran.code, Some(78));
    assert!(ran.stderr.contains("batchsize"), "{}", ran.stderr);
    let updates = &site.updates()[before..];
    assert!(updates.iter().any(|line| line.contains("nodename=c5-1,c5-2 state=power_down")), "{updates:?}");
}

#[test]
fn c05_nodes_that_slurm_does_not_show_stop_nothing() {
    let site = Site::new(Behaviour::default());
    assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(0), "{}", site.log("slurm_resume"));
    // c5-2 and c5-3 are FUTURE by now: scontrol tells of c5-1 alone, with status 1.
    let shown = "NodeName=c5-1 Arch=x86_64\n   NodeAddr=127.20.0.4 NodeHostName=c5-1\n   State=IDLE+CLOUD+POWERING_DOWN\n   Partitions=p\n\n";
    site.scontrol("nodes", shown);
    assert_eq!(site.run("slurm_suspend", &["c5-[1-3]"]).code, Some(0), "{}", site.log("slurm_suspend"));
    assert!(site.live().is_empty());
    assert_eq!(site.run("slurm_resume", &["c5-[1-3]"]).code, Some(0), "{}", site.log("slurm_resume"));
    assert_eq!(site.live().len(), 3);
}

/// Nothing is newer than this call only because the head node's clock was an hour ahead when it was launched.
#[test]
fn b127_what_a_clock_that_was_ahead_requested_is_ended_all_the_same() {
    for program in ["slurm_suspend", "slurm_resume_fail"] {
        let site = Site::new(Behaviour::default());
        assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(0));
        let ahead = humantime::format_rfc3339_millis(std::time::SystemTime::now() + std::time::Duration::from_secs(3600));
        let mut mapping = site.mapping();
        mapping["nodes"]["c5-1"]["requested"] = ahead.to_string().into();
        site.write("state/mapping.json", &mapping.to_string());
        let ran = site.run(program, &["c5-1"]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert!(site.live().is_empty(), "{}", site.log(program));
    }
}
