//! The package's own route: a file says what is asked for, the exit status whether it was done.

use std::fs;

use serde_json::json;
use slurm_ec2_testkit::ec2::{Behaviour, Seed};

use super::stage::{Fleet, OFF};
use crate::site::{Ran, finished};

fn manager(fleet: &Fleet, option: &str, text: &str) -> Ran {
    fleet.site.write("computefleet-status.json", text);
    fleet.site.run("slurm_fleet_status_manager", &[option, "computefleet-status.json"])
}

#[test]
fn it_stops_and_starts_and_leaves_the_status_to_others() {
    let fleet = Fleet::new(Behaviour::default());
    fleet.up(&[("c5-1", "ALLOCATED+CLOUD"), ("c5-2", "IDLE+CLOUD")]);
    let ran =
        manager(&fleet, "-cf", r#"{"status": "STOP_REQUESTED", "lastStatusUpdatedTime": "2026-03-14 15:09:26.535897+00:00"}"#);
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stderr, fleet.site.log("slurm_fleet_status_manager"));
    fleet.assert_stopped();
    assert!(!fleet.site.path("state/fleet-status.json").exists());
    let ran = manager(&fleet, "--computefleet-status-data", r#"{"status": "START_REQUESTED"}"#);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!((fleet.partition().as_str(), fleet.nodes()[0].1.as_str()), ("UP", OFF));
}

#[test]
fn z04_a_status_that_is_no_request_fails_with_the_allowed_words() {
    let fleet = Fleet::new(Behaviour::default());
    fleet.up(&[("c5-1", "IDLE+CLOUD")]);
    let ran = manager(&fleet, "-cf", r#"{"status": "STOPPED"}"#);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("START_REQUESTED") && ran.stderr.contains("STOP_REQUESTED"), "{}", ran.stderr);
    assert_eq!((fleet.site.live().len(), fleet.partition().as_str()), (1, "UP"));
    assert_eq!(manager(&fleet, "-cf", r#"{"status": "UNKNOWN"}"#).code, Some(0), "nothing was asked for yet");
    assert_eq!(fleet.site.live().len(), 1);
}

#[test]
fn what_was_not_done_is_1() {
    let fleet = Fleet::with(Behaviour::default(), "[fleet]\ntimeout = \"8s\"\n");
    fleet.up(&[("c5-1", "IDLE+CLOUD")]);
    fleet.site.scontrol("fail.update", "1\nslurm_update error: Invalid user id\n");
    let ran = manager(&fleet, "-cf", r#"{"status": "STOP_REQUESTED"}"#);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("not stopped"), "{}", ran.stderr);
}

/// By ParallelCluster's files, with an instance that its own daemons launched: nothing in it but the launch template's tags.
#[test]
fn z01_on_a_parallelcluster_head_node() {
    let fleet = Fleet::new(Behaviour::default());
    let site = &fleet.site;
    fs::remove_file(site.path("slurm-ec2.toml")).unwrap();
    let root = site.dir.path().display();
    let ours = format!("[slurm_ec2]\nstate_dir = {root}/state\nlog_dir = {root}/log\nendpoint_url = {}\n", site.ec2.url());
    site.write(
        "parallelcluster_slurm_fleet_status_manager.conf",
        "[slurm_fleet_status_manager]\ncluster_name = orchard\nregion = eu-west-1\nproxy = NONE\n",
    );
    site.write(
        "parallelcluster_clustermgtd.conf",
        &format!(
            "[clustermgtd]\ncluster_name = orchard\nregion = eu-west-1\nproxy = NONE\n\
             dynamodb_table = parallelcluster-slurm-orchard\nhosted_zone =\ndns_domain =\nuse_private_hostname = false\n\
             head_node_private_ip = 10.40.0.17\nhead_node_hostname = ip-10-40-0-17\nheartbeat_file_path = {root}/heartbeat\n\
             fleet_config_file = {root}/fleet-config.json\nrun_instances_overrides = {root}/none.json\n\
             create_fleet_overrides = {root}/none.json\n{ours}"
        ),
    );
    let core = json!({"Api": "run-instances", "CapacityType": "on-demand", "Instances": [{"InstanceType": "c5.large"}]});
    site.write("fleet-config.json", &json!({"apple": {"core": core}}).to_string());
    let seed = |cluster: &str| {
        let tags = [("parallelcluster:cluster-name", cluster), ("parallelcluster:node-type", "Compute")];
        Seed { tags: tags.map(|(key, value)| (key.to_owned(), value.to_owned())).into(), ..Seed::default() }
    };
    site.ec2.seed(&seed("orchard"));
    let others = site.ec2.seed(&seed("another"));
    fleet.show(&[("apple-dy-core-1", "ALLOCATED+CLOUD"), ("apple-st-core-1", "IDLE+CLOUD")]);
    for name in ["bin/scontrol.nodes", "bin/scontrol.partitions"] {
        site.write(name, &fs::read_to_string(site.path(name)).unwrap().replace("q1", "apple"));
    }
    site.write("computefleet-status.json", r#"{"status": "STOP_REQUESTED"}"#);
    let mut command = site.command("slurm_fleet_status_manager", &["-cf", "computefleet-status.json"]);
    command
        .env_remove("SLURM_EC2_CONFIG")
        .env("CONFIG_FILE", site.path("parallelcluster_slurm_fleet_status_manager.conf"))
        .env("SLURM_BINARIES_DIR", site.path("bin"))
        .env("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
        .env("AWS_SECRET_ACCESS_KEY", "secret");
    let ran = finished(command.output().unwrap());
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stderr, site.log("slurm_fleet_status_manager"));
    assert_eq!(site.live().into_iter().collect::<Vec<_>>(), others);
    assert_eq!(fleet.partition(), "INACTIVE");
    assert!(fleet.nodes().iter().all(|(name, state, address)| state == OFF && name == address), "{:?}", fleet.nodes());
    assert!(site.updates().iter().any(|update| update.contains("reason=stopping cluster")));
    // Without the nodes' names the machines go all the same, and nobody is told that it is done.
    site.ec2.seed(&seed("orchard"));
    site.write("fleet-config.json", "{");
    let ran = finished(command.output().unwrap());
    assert_eq!(ran.code, Some(1), "{}", site.log("slurm_fleet_status_manager"));
    assert!(ran.stderr.contains("no node was told"), "{}", ran.stderr);
    assert_eq!(site.live().into_iter().collect::<Vec<_>>(), others);
}
