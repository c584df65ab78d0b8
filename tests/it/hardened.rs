//! Cases in which an earlier version lost an instance or left a node hanging.

use slurm_ec2_testkit::ec2::{Behaviour, Capacity, Rule};

use crate::crash::stage::{self, Fate, Stop, assert_backed, assert_free, join, succeed};
use crate::site::{GROUP, Site};

fn up(nodes: &str) -> Site {
    let site = Site::new(Behaviour::default());
    assert_eq!(site.run("slurm_resume", &[nodes]).code, Some(0), "{}", site.log("slurm_resume"));
    site
}

/// The answer is lost, then EC2 does not take the token any more: the first launch is looked for by its tags.
#[test]
fn b13_b40_a_token_given_up_after_a_lost_answer_is_not_forgotten() {
    for code in ["IdempotentParameterMismatch", "ResourceCountExceeded"] {
        let site = Site::new(Behaviour::with_rules(vec![
            Rule::on("RunInstances").nth(1).drop_after(),
            Rule::on("RunInstances").nth(1).error(code, 400),
        ]));
        let ran = site.run("slurm_resume", &["c5-[1-2]"]);
        assert_eq!(ran.code, Some(0), "{code}: {}", site.log("slurm_resume"));
        assert_eq!((site.running().len(), site.live().len()), (2, 4), "{code}");
        assert_eq!(site.records().len(), 1);
        assert_eq!(site.run("slurm_suspend", &["c5-9"]).code, Some(0), "{}", site.log("slurm_suspend"));
        assert_eq!((site.running().len(), site.live().len()), (2, 2), "{code}: {}", site.log("slurm_suspend"));
        site.assert_settled();
    }
}

#[test]
fn b32_suspend_rebuilds_a_missing_mapping_before_it_writes_one() {
    let site = up("c5-[1-3]");
    let running = site.running();
    let mapping = site.mapping();
    let mut shown = String::new();
    for (node, _) in &running {
        let address = mapping["nodes"][node]["private_ip"].as_str().unwrap();
        shown.push_str(&format!("NodeName={node} CoresPerSocket=1\n   NodeAddr={address} NodeHostName={node}\n   State=ALLOCATED+CLOUD ThreadsPerCore=1\n\n"));
    }
    site.scontrol("nodes", &shown);
    std::fs::remove_file(site.path("state/mapping.json")).unwrap();
    assert_eq!(site.run("slurm_suspend", &["c5-9"]).code, Some(0), "{}", site.log("slurm_suspend"));
    assert_eq!(site.running(), running);
    assert_eq!(site.live().len(), 3);
    site.assert_settled();
}

/// A suspend that hangs in its questions must not end what a newer resume launched.
#[test]
fn s03_b15_a_slow_suspend_leaves_a_newer_resume_alone() {
    let site = up("c5-1");
    // A dead record, so that suspend asks EC2 first.
    site.ec2.add_rules([Rule::on("RunInstances").nth(1).hold("dead")]);
    let mut dead = site.spawn("slurm_resume", &["c5-7"]);
    assert!(site.ec2.wait_held("dead", std::time::Duration::from_secs(120)));
    dead.kill().unwrap();
    dead.wait().unwrap();
    site.ec2.release("dead");
    site.ec2.add_rules([Rule::on("DescribeInstances").nth(1).hold("look")]);
    let suspend = site.spawn("slurm_suspend", &["c5-1"]);
    assert!(site.ec2.wait_held("look", std::time::Duration::from_secs(120)));
    let ran = site.run("slurm_resume", &["c5-1"]);
    assert_eq!(ran.code, Some(0), "{}", site.log("slurm_resume"));
    let newer = site.running().into_iter().find(|(node, _)| node == "c5-1").unwrap().1;
    site.ec2.release("look");
    suspend.wait_with_output().unwrap();
    assert!(site.live().contains(&newer), "{}", site.log("slurm_suspend"));
    assert!(site.running().iter().any(|(node, id)| node == "c5-1" && *id == newer));
}

/// A resume-fail that hangs in its questions neither ends what a newer resume launched nor gives its node back.
#[test]
fn b34_b15_a_slow_resume_fail_leaves_a_newer_resume_alone() {
    let site = stage::site(Behaviour::default(), stage::PLAIN, GROUP);
    succeed(&site, "slurm_resume", "c5-[1-2]");
    // A dead record, so that it asks EC2 after it has asked Slurm.
    let armed = Stop::Before("RunInstances", 1, Fate::Early).arm(&site);
    armed.kill("slurm_resume", &["c5-7"]);
    armed.let_go();
    site.ec2.add_rules([Rule::on("DescribeInstances").nth(1).hold("look")]);
    let failing = site.spawn("slurm_resume_fail", &["c5-[1-2]"]);
    assert!(site.ec2.wait_held("look", stage::PATIENCE));
    succeed(&site, "slurm_resume", "c5-1");
    let newer = site.running().into_iter().find(|(node, _)| node == "c5-1").unwrap().1;
    site.ec2.release("look");
    join(&site, vec![failing]);
    assert!(site.live().contains(&newer), "{}", site.log("slurm_resume_fail"));
    assert_backed(&site, &["c5-1"]);
    assert_free(&site, &["c5-2"]);
    let back: Vec<String> = site.updates().into_iter().filter(|line| line.contains("state=power_down")).collect();
    assert!(matches!(&back[..], [one] if one.contains("nodename=c5-2 ")), "{back:?}");
    let failures: serde_json::Value = serde_json::from_slice(&std::fs::read(site.path("state/failures.json")).unwrap()).unwrap();
    assert_eq!(failures["groups"]["c5"]["nodes"][0]["node"], "c5-2", "{failures}");
    assert_eq!(failures["groups"]["c5"]["count"], 1, "{failures}");
}

/// A busy node is not powered down because a person's call failed.
#[test]
fn b11_b20_only_nodes_that_wait_are_told_of_a_failure_that_is_not_theirs() {
    let site = Site::new(Behaviour::default());
    site.scontrol("state", "ALLOCATED+CLOUD\n");
    assert_eq!(site.run("slurm_resume", &["onprem-1"]).code, Some(1));
    site.write("slurm-ec2.toml", "cluster = 3\n");
    assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(78));
    assert!(site.updates().is_empty(), "{:?}", site.updates());
}

/// slurmctld hangs; EC2 does not: the instance goes.
#[test]
fn b30_a_hanging_slurmctld_does_not_keep_instances_on() {
    let site = up("c5-[1-2]");
    let mapping = site.mapping().to_string().replacen("\"state\":\"running\"", "\"state\":\"running\",\"unpublished\":true", 2);
    site.write("state/mapping.json", &mapping);
    site.hurry();
    site.scontrol("hang.update", "");
    site.run("slurm_suspend", &["c5-1"]);
    assert_eq!(site.live().len(), 1, "{}", site.log("slurm_suspend"));
}

/// A failure that slurmctld could not be told.
#[test]
fn b20_b21_an_untold_failure_is_told_by_the_next_resume() {
    let site = Site::with(Behaviour::with_capacity(vec![Capacity::limit("*", "*", 0)]), "request_bucket = \"off\"\n", GROUP);
    site.hurry();
    site.scontrol("fail.update", "1\nslurm_update error: Unable to contact slurm controller (connect failure)\n");
    assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(75), "{}", site.log("slurm_resume"));
    std::fs::remove_file(site.path("bin/scontrol.fail.update")).unwrap();
    site.patience();
    let updates = site.updates().len();
    assert_ne!(site.run("slurm_resume", &["c5-2"]).code, Some(0), "{}", site.log("slurm_resume"));
    let told = site.updates()[updates..].join("\n");
    assert!(told.contains("c5-1") && told.contains("c5-2") && told.contains("state=power_down_force"), "{told}");
}

/// EC2 cannot be asked about an older instance: slurmctld would not let it in anyway.
#[test]
fn b19_an_older_instance_is_replaced_even_if_ec2_may_not_be_asked() {
    let site = up("c5-1");
    let first = site.running();
    site.ec2.add_rules([Rule::on("DescribeInstances").error("UnauthorizedOperation", 403)]);
    assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(0), "{}", site.log("slurm_resume"));
    assert_ne!(site.running(), first);
    assert_eq!(site.live().len(), 1);
}
