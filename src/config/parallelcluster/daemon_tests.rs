//! From the daemons' files to settings, field by field.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::tests::{Head, RESUME};
use crate::config::settings::{
    EventsFile, FleetSettings, FleetStore, LogFormat, NodeAddress, ParallelCluster, Settings, StoreKind,
};
use crate::config::source::{Place, choose, load};
use crate::model::policy::{Daemon, ScaleBy, Strategy, Upkeep};

pub(super) const CLUSTERMGTD: &str = include_str!("../../../tests/data/parallelcluster/parallelcluster_clustermgtd.conf");
const ALL: &str = include_str!("../../../tests/data/parallelcluster/parallelcluster_clustermgtd.all-options.conf");
pub(super) const COMPUTEMGTD: &str = include_str!("../../../tests/data/parallelcluster/parallelcluster_computemgtd.conf");
pub(super) const STATUS: &str = include_str!("../../../tests/data/parallelcluster/clusterstatusmgtd.conf");
pub(super) const MANAGER: &str =
    include_str!("../../../tests/data/parallelcluster/parallelcluster_slurm_fleet_status_manager.conf");
const PARTITIONS: &str = include_str!("../../../tests/data/parallelcluster/parallelcluster_partition_nodelist_mapping.json");

pub(super) const CONF: &str = "parallelcluster_clustermgtd.conf";
const HEARTBEAT: &str = "/opt/slurm/etc/pcluster/.slurm_plugin/clustermgtd_heartbeat";

/// A head node's folder with the daemons' files in it.
pub(super) fn head() -> Head {
    let head = Head::new();
    daemon(&head, CLUSTERMGTD);
    head.write("clusterstatusmgtd.conf", STATUS);
    head.write("parallelcluster_slurm_fleet_status_manager.conf", MANAGER);
    head
}

/// Writes clustermgtd's file, with the JSON files of the folder.
pub(super) fn daemon(head: &Head, text: &str) {
    let own: Vec<&str> = text.lines().filter(|line| !line.contains(".json")).collect();
    let root = head.dir.path().display();
    let paths = format!(
        "[clustermgtd]\nfleet_config_file = {root}/fleet-config.json\n\
         run_instances_overrides = {root}/run_instances_overrides.json\n\
         create_fleet_overrides = {root}/create_fleet_overrides.json"
    );
    head.write(CONF, &(own.join("\n").replacen("[clustermgtd]", &paths, 1) + "\n"));
}

/// `$SLURM_BINARIES_DIR` leads into the folder, where `etc` is beside it.
fn place(head: &Head, name: &str) -> Place {
    Place { slurm_bin_dir: Some(head.path("slurm/bin")), ..head.place(name) }
}

fn of(head: &Head, program: &str, name: &str) -> Settings {
    load(program, &place(head, name)).unwrap_or_else(|error| panic!("{error}"))
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[test]
fn clustermgtds_file_field_by_field() {
    let head = head();
    let settings = of(&head, "clustermgtd", CONF);
    assert_eq!((settings.cluster.as_str(), settings.region.as_str()), ("orchard", "eu-central-1"));
    assert_eq!(
        settings.parallelcluster,
        Some(ParallelCluster {
            heartbeat: HEARTBEAT.into(),
            heartbeat_timeout: secs(300),
            instance_id: "i-0a11e57000c0ffee1".into(),
        })
    );
    let daemon = &settings.clustermgtd;
    assert_eq!((daemon.loop_time, daemon.heartbeat.as_deref()), (secs(60), Some(Path::new(HEARTBEAT))));
    assert_eq!(
        daemon.upkeep,
        Upkeep {
            disabled: false,
            terminate_drain_nodes: true,
            terminate_down_nodes: true,
            orphan_timeout: secs(300),
            missing_grace: secs(120),
            missing_max_count: 0,
            replacement_timeout: secs(1500),
            check_instances: true,
            check_events: true,
            check_timeout: secs(180),
            check_grace: secs(180),
            protected_count: Some(10),
            shortage_timeout: Some(secs(600)),
            manage_blocks: true,
            consoles: true,
            consoles_most: Some(1),
            console_wait: secs(300),
        }
    );
    // What it launches belongs to no job.
    assert_eq!((settings.run.scale_by, settings.run.strategy), (ScaleBy::Batch, Strategy::BestEffort));
    assert_eq!((settings.run.daemon, settings.aws.attempts), (Daemon::Yes, 5));
    assert_eq!(settings.publish.node_table.as_ref().unwrap().table, "parallelcluster-slurm-orchard");
    assert_eq!(settings.publish.dns.as_ref().unwrap().domain, "orchard.pcluster.");
    assert_eq!(settings.groups.len(), 6);
    assert!(settings.groups.iter().all(|group| group.launch.strategy == Strategy::BestEffort));
    assert!(settings.is_static("gpu-st-block-1") && !settings.is_static("apple-dy-core-1"));
    assert_eq!(settings.group_of("gpu-st-block-1").unwrap().capacity_reservation.as_deref(), Some("cr-0fee1900d00000042"));
    assert_eq!(settings.fleet.store, FleetStore::Table { table: "parallelcluster-orchard".into() });
    let log = &settings.log;
    assert_eq!((log.file.clone(), log.format), (Some("/var/log/parallelcluster/clustermgtd".into()), LogFormat::ParallelCluster));
    assert_eq!(log.events_path(), Some("/var/log/parallelcluster/clustermgtd.events".into()));
    assert_eq!(settings.warnings, Vec::<String>::new());
}

#[test]
fn every_key_of_clustermgtd_has_its_effect() {
    let head = head();
    head.write(
        "logging.conf",
        "[logger_root]\nlevel = DEBUG\nhandlers = s\n[handler_s]\nclass = StreamHandler\nargs = (sys.stdout,)\n",
    );
    let logging = head.path("logging.conf").display().to_string();
    daemon(&head, &ALL.replace("/etc/orchard/logging.conf", &logging));
    let settings = of(&head, "clustermgtd", CONF);
    assert_eq!((settings.aws.proxy.as_deref(), settings.aws.attempts), (Some("http://10.40.0.9:3128"), 5));
    let daemon_settings = &settings.clustermgtd;
    assert_eq!((daemon_settings.loop_time, daemon_settings.heartbeat.clone()), (secs(20), Some("/run/orchard/heartbeat".into())));
    assert_eq!((settings.publish.batch_size, settings.run.terminate_batch_size), (125, 200));
    assert_eq!(settings.run.address_timeout, secs(60));
    assert_eq!(settings.group_of("apple-dy-core-1").unwrap().launch.batch_size, 125);
    assert_eq!(
        daemon_settings.upkeep,
        Upkeep {
            disabled: false,
            terminate_drain_nodes: false,
            terminate_down_nodes: true,
            orphan_timeout: secs(120),
            missing_grace: secs(120),
            missing_max_count: 2,
            replacement_timeout: secs(900),
            check_instances: true,
            check_events: false,
            check_timeout: secs(150),
            check_grace: secs(200),
            protected_count: Some(6),
            shortage_timeout: Some(Duration::from_millis(420_500)),
            manage_blocks: true,
            consoles: true,
            consoles_most: Some(3),
            console_wait: secs(240),
        }
    );
    assert_eq!((settings.log.level, settings.log.dir.clone()), (tracing::Level::DEBUG, "/var/log/parallelcluster".into()));
    // It logs to stdout, which supervisord writes into the usual file: nothing to warn of. But slurm_resume reads another heartbeat.
    assert_eq!(settings.log.file, Some("/var/log/parallelcluster/clustermgtd".into()));
    let expected = format!("clustermgtd writes the heartbeat /run/orchard/heartbeat and slurm_resume looks at {HEARTBEAT}: ");
    assert!(settings.warnings.len() == 1 && settings.warnings[0].starts_with(&expected), "{:?}", settings.warnings);
    daemon(
        &head,
        &CLUSTERMGTD.replace(
            "proxy = NONE",
            "disable_all_cluster_management = yes\nterminate_down_nodes = off\ndisable_capacity_blocks_management = 1\n\
             update_node_address = no",
        ),
    );
    let settings = of(&head, "clustermgtd", CONF);
    let upkeep = &settings.clustermgtd.upkeep;
    assert!(upkeep.disabled && !upkeep.terminate_down_nodes && !upkeep.manage_blocks);
    assert_eq!(settings.slurm.node_address, NodeAddress::None);
}

#[test]
fn nought_and_less_switch_off_what_can_be() {
    let head = head();
    let upkeep = |lines: &str| {
        let text = CLUSTERMGTD
            .replace("insufficient_capacity_timeout = 600\n", "")
            .replace("compute_console_logging_max_sample_size = 1\n", "");
        daemon(&head, &format!("{text}{lines}\n"));
        of(&head, "clustermgtd", CONF).clustermgtd.upkeep
    };
    for value in ["0", "-1", "-2"] {
        assert_eq!(upkeep(&format!("protected_failure_count = {value}")).protected_count, None, "{value}");
        assert_eq!(upkeep(&format!("compute_console_logging_max_sample_size = {value}")).consoles_most, None, "{value}");
    }
    for value in ["0", "0.0", "-1", "-0.5", "-inf"] {
        let upkeep = upkeep(&format!("insufficient_capacity_timeout = {value}"));
        assert_eq!(upkeep.shortage_timeout, Some(Duration::ZERO), "{value}");
    }
    assert_eq!(upkeep("").shortage_timeout, Some(secs(600)));
    for (lines, instances, events) in [
        ("disable_ec2_health_check = true", false, true),
        ("disable_scheduled_event_health_check = true", true, false),
        ("disable_all_health_checks = true", false, false),
        (
            "disable_ec2_health_check = true\ndisable_scheduled_event_health_check = true\ndisable_all_health_checks = no",
            false,
            false,
        ),
    ] {
        let upkeep = upkeep(lines);
        assert_eq!((upkeep.check_instances, upkeep.check_events), (instances, events), "{lines}");
    }
}

#[test]
fn our_section_is_slurm_resumes() {
    let head = head();
    head.resume(&format!(
        "{RESUME}[slurm_ec2]\nstate_dir = /srv/state\nlog_dir = /srv/log\nendpoint_url = http://127.0.0.1:5000\n"
    ));
    for (program, name) in [
        ("clustermgtd", CONF),
        ("clusterstatusmgtd", "clusterstatusmgtd.conf"),
        ("slurm_fleet_status_manager", "parallelcluster_slurm_fleet_status_manager.conf"),
    ] {
        let settings = of(&head, program, name);
        assert_eq!(settings.state_dir, PathBuf::from("/srv/state"), "{program}");
        assert_eq!(settings.log.dir, PathBuf::from("/srv/log"), "{program}");
        assert_eq!(settings.aws.dynamodb_endpoint_url.as_deref(), Some("http://127.0.0.1:5000"), "{program}");
        assert_eq!(settings.store, StoreKind::File);
        let log = if program == "slurm_fleet_status_manager" { None } else { Some(PathBuf::from("/srv/log").join(program)) };
        assert_eq!(settings.log.file, log);
    }
    // One file may have all of them; and where slurm_resume has none, it is clustermgtd's.
    head.resume(RESUME);
    let both = fs::read_to_string(head.path("parallelcluster_slurm_resume.conf")).unwrap();
    head.write(CONF, &format!("{}{both}[slurm_ec2]\nstate_dir = /all\n", fs::read_to_string(head.path(CONF)).unwrap()));
    assert_eq!(of(&head, "clustermgtd", CONF).state_dir, PathBuf::from("/all"));
    fs::remove_file(head.path("parallelcluster_slurm_resume.conf")).unwrap();
    daemon(&head, &format!("{CLUSTERMGTD}[slurm_ec2]\nstate_dir = /alone\n"));
    assert_eq!(of(&head, "clustermgtd", CONF).state_dir, PathBuf::from("/alone"));
}

#[test]
fn the_partitions_are_those_of_the_mapping_else_the_queues() {
    let head = head();
    let partitions = |head: &Head| of(head, "clustermgtd", CONF).clustermgtd.partitions;
    assert_eq!(partitions(&head), ["apple", "gpu", "pear-2"], "the queues");
    fs::create_dir_all(head.path("slurm/etc/pcluster")).unwrap();
    let path = "slurm/etc/pcluster/parallelcluster_partition_nodelist_mapping.json";
    head.write(path, PARTITIONS);
    assert_eq!(partitions(&head), ["apple", "gpu", "pear-2"]);
    head.write(path, "{\"plum\": \"plum-dy-x-1\"}");
    assert_eq!(partitions(&head), ["plum"]);
    for (text, part) in [("{", "EOF while parsing"), ("[]", "no object of partitions"), ("{}", "no object of partitions")] {
        head.write(path, text);
        let settings = of(&head, "clustermgtd", CONF);
        assert_eq!(settings.clustermgtd.partitions, ["apple", "gpu", "pear-2"], "{text}");
        let [warning] = settings.warnings.as_slice() else { panic!("{:?}", settings.warnings) };
        assert!(warning.contains(part) && warning.ends_with("; the partitions are the queues"), "{warning}");
    }
}

#[test]
fn the_status_table_has_a_usual_name() {
    let head = head();
    let fleet = |head: &Head| of(head, "clustermgtd", CONF).fleet;
    head.write("clusterstatusmgtd.conf", &STATUS.replace("parallelcluster-orchard", "elsewhere-orchard"));
    assert_eq!(fleet(&head).store, FleetStore::Table { table: "elsewhere-orchard".into() });
    head.write("clusterstatusmgtd.conf", &STATUS.replace("parallelcluster-orchard", "a/b"));
    let settings = of(&head, "clustermgtd", CONF);
    assert_eq!(settings.fleet.store, FleetStore::Table { table: "parallelcluster-orchard".into() });
    let [warning] = settings.warnings.as_slice() else { panic!("{:?}", settings.warnings) };
    assert!(warning.contains("clusterstatusmgtd.conf:5:18: [clusterstatusmgtd] dynamodb_table \"a/b\""), "{warning}");
    fs::remove_file(head.path("clusterstatusmgtd.conf")).unwrap();
    assert_eq!(fleet(&head).store, FleetStore::Table { table: "parallelcluster-orchard".into() });
}

#[test]
fn clusterstatusmgtds_file_and_the_nodes_of_clustermgtds() {
    let head = head();
    let settings = of(&head, "clusterstatusmgtd", "clusterstatusmgtd.conf");
    assert_eq!(
        settings.fleet,
        FleetSettings {
            store: FleetStore::Table { table: "parallelcluster-orchard".into() },
            // More often than the package: a start is waited for.
            poll: secs(5),
            timeout: secs(900),
            status_file: Some("/opt/parallelcluster/shared/computefleet-status.json".into()),
        }
    );
    assert_eq!((settings.groups.len(), settings.aws.attempts), (6, 6));
    assert_eq!(settings.clustermgtd.partitions, ["apple", "gpu", "pear-2"]);
    assert_eq!(settings.clustermgtd.upkeep.replacement_timeout, secs(1500));
    assert_eq!(settings.log.file, Some("/var/log/parallelcluster/clusterstatusmgtd".into()));
    head.write(
        "clusterstatusmgtd.conf",
        &STATUS.replace("proxy = NONE", "proxy = p:3128\nboto3_retry = 9\nloop_time = 30\nupdate_event_timeout_minutes = 3"),
    );
    let settings = of(&head, "clusterstatusmgtd", "clusterstatusmgtd.conf");
    assert_eq!((settings.fleet.poll, settings.fleet.timeout), (secs(30), secs(180)));
    assert_eq!((settings.aws.proxy.as_deref(), settings.aws.attempts), (Some("http://p:3128"), 10));
    assert_eq!(settings.warnings, Vec::<String>::new());
    // In the usual folders it is one above the others.
    let near = head.dir.path().join("slurm_plugin");
    fs::create_dir(&near).unwrap();
    fs::rename(head.path(CONF), near.join(CONF)).unwrap();
    let place = Place { plugin_dir: near.clone(), ..head.place("clusterstatusmgtd.conf") };
    assert_eq!(load("clusterstatusmgtd", &place).unwrap().fleet.poll, secs(30));
    let place = Place { path: near.join(CONF), ..place };
    assert_eq!(load("clustermgtd", &place).unwrap().fleet.poll, secs(30));
}

#[test]
fn the_fleet_managers_file() {
    let head = head();
    let name = "parallelcluster_slurm_fleet_status_manager.conf";
    let settings = of(&head, "slurm_fleet_status_manager", name);
    assert_eq!((settings.cluster.as_str(), settings.groups.len()), ("orchard", 6));
    assert_eq!((settings.aws.attempts, settings.run.terminate_batch_size), (6, 1000));
    assert_eq!(settings.fleet.store, FleetStore::Table { table: "parallelcluster-orchard".into() });
    head.write(name, &format!("{MANAGER}terminate_max_batch_size = 50\nboto3_retry = 0\n"));
    let settings = of(&head, "slurm_fleet_status_manager", name);
    assert_eq!((settings.aws.attempts, settings.run.terminate_batch_size), (5, 50));
    let log = &settings.log;
    assert_eq!((log.dir.clone(), log.file.clone()), ("/var/log/parallelcluster".into(), None));
    assert_eq!(log.events, EventsFile::Usual);
}

#[test]
fn a_compute_node_has_nothing_but_its_own_file() {
    let folder = tempfile::tempdir().unwrap();
    let place = |text: &str| {
        let path = folder.path().join("parallelcluster_computemgtd.conf");
        fs::write(&path, text).unwrap();
        let head = Head { dir: tempfile::tempdir().unwrap() };
        Place { path, ..head.place("x") }
    };
    let settings = load("computemgtd", &place(COMPUTEMGTD)).unwrap();
    assert_eq!((settings.cluster.as_str(), settings.region.as_str()), ("orchard", "eu-central-1"));
    let own = &settings.computemgtd;
    assert_eq!((own.loop_time, own.heartbeat_timeout, own.disabled), (secs(60), secs(600), false));
    assert_eq!(own.heartbeat.as_deref(), Some(Path::new(HEARTBEAT)));
    assert_eq!(own.node_name_file, Path::new("/etc/parallelcluster/slurm_plugin/slurm_nodename"));
    assert_eq!(own.shutdown, Path::new("/usr/sbin/shutdown"));
    assert_eq!(settings.log.file, Some("/var/log/parallelcluster/computemgtd".into()));
    assert_eq!(settings.slurm.bin_dir, Path::new("/opt/slurm/bin"));
    assert!(settings.groups.is_empty() && settings.is_static("a-st-b-1") && !settings.is_static("a-dy-b-1"));
    assert_eq!(settings.warnings, Vec::<String>::new());
    let own = "loop_time = 30\nclustermgtd_timeout = 90\ndisable_computemgtd_actions = on\nslurm_nodename_file = /n\n\
               [slurm_ec2]\nmetadata_endpoint = http://127.0.0.1:1338\nspot_hook = /hook\ndrain_on_rebalance = yes\nspot_poll = 2\n\
               log_dir = /srv/log\n";
    let settings = load("computemgtd", &place(&format!("{COMPUTEMGTD}{own}"))).unwrap();
    let own = &settings.computemgtd;
    assert_eq!((own.loop_time, own.heartbeat_timeout, own.disabled), (secs(30), secs(90), true));
    assert_eq!((own.node_name_file.as_path(), own.spot_hook.as_deref()), (Path::new("/n"), Some(Path::new("/hook"))));
    assert_eq!((own.metadata_endpoint.as_deref(), own.spot_poll), (Some("http://127.0.0.1:1338"), secs(2)));
    assert!(own.drain_on_rebalance);
    assert_eq!(settings.log.file, Some("/srv/log/computemgtd".into()));
}

#[test]
fn slurm_ec2_sees_what_the_daemons_go_by() {
    let head = head();
    daemon(&head, &CLUSTERMGTD.replace("proxy = NONE", "protected_failure_count = 3\nlaunch_max_batch_size = 7"));
    let settings = of(&head, "slurm-ec2", "parallelcluster_slurm_resume.conf");
    assert_eq!(settings.clustermgtd.upkeep.protected_count, Some(3));
    assert_eq!(settings.clustermgtd.partitions, ["apple", "gpu", "pear-2"]);
    assert_eq!(settings.fleet.status_file, Some("/opt/parallelcluster/shared/computefleet-status.json".into()));
    // What is launched is slurm_resume's to say.
    let launch = &settings.group_of("apple-dy-core-1").unwrap().launch;
    assert_eq!((launch.batch_size, launch.strategy), (500, Strategy::AllOrNothing));
    assert_eq!(settings.warnings, Vec::<String>::new());
    for name in [CONF, "clusterstatusmgtd.conf"] {
        fs::remove_file(head.path(name)).unwrap();
    }
    let settings = of(&head, "slurm-ec2", "parallelcluster_slurm_resume.conf");
    assert_eq!(settings.clustermgtd.upkeep.protected_count, Some(10));
    assert_eq!(settings.fleet.store, FleetStore::Table { table: "parallelcluster-orchard".into() });
    assert_eq!(settings.clustermgtd.heartbeat.as_deref(), Some(Path::new(HEARTBEAT)));
}

#[test]
fn clustermgtd_finds_its_file_beside_another() {
    let head = head();
    let settings = of(&head, "clustermgtd", "parallelcluster_slurm_resume.conf");
    assert_eq!(settings.clustermgtd.upkeep.replacement_timeout, secs(1500));
}

#[test]
fn each_file_that_counts_is_looked_at_for_changes() {
    let head = head();
    let settings = of(&head, "clustermgtd", CONF);
    for name in [
        "parallelcluster_slurm_resume.conf",
        "clusterstatusmgtd.conf",
        "fleet-config.json",
        "run_instances_overrides.json",
        "create_fleet_overrides.json",
        "slurm/etc/pcluster/parallelcluster_partition_nodelist_mapping.json",
    ] {
        assert!(settings.files.contains(&head.path(name)), "{name}: {:?}", settings.files);
    }
    assert!(!settings.files.contains(&settings.path), "it is there already");
}

#[test]
fn where_the_programs_look() {
    let none = crate::config::source::Named { given: None, ours: None, package: None };
    let folder = tempfile::tempdir().unwrap();
    let plugin = folder.path().join("slurm_plugin");
    fs::create_dir(&plugin).unwrap();
    let toml = folder.path().join("slurm-ec2.toml");
    for (program, path) in [
        ("clustermgtd", plugin.join(CONF)),
        ("slurm_fleet_status_manager", plugin.join("parallelcluster_slurm_fleet_status_manager.conf")),
        ("clusterstatusmgtd", folder.path().join("clusterstatusmgtd.conf")),
        ("slurm-ec2", plugin.join("parallelcluster_slurm_resume.conf")),
    ] {
        assert_eq!(choose(program, none, &toml, &plugin), toml);
        fs::write(&path, "").unwrap();
        assert_eq!(choose(program, none, &toml, &plugin), path);
        fs::remove_file(path).unwrap();
    }
    let usual = super::usual_file("computemgtd", &plugin);
    assert_eq!(usual, Path::new("/opt/slurm/etc/pcluster/.slurm_plugin/parallelcluster_computemgtd.conf"));
}
