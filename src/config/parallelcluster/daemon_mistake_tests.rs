//! Every mistake that the daemons' files can hold, and which kind of file a text is.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs;
use std::time::Duration;

use super::daemon_tests::{CLUSTERMGTD, COMPUTEMGTD, CONF, MANAGER, STATUS, daemon, head};
use super::tests::{Head, RESUME};
use crate::config::source::{Place, as_far_as_it_goes, load};

const RESUME_CONF: &str = "parallelcluster_slurm_resume.conf";
const MANAGER_CONF: &str = "parallelcluster_slurm_fleet_status_manager.conf";

/// Each of `expected` is the begin of a place, and what is said there.
fn all(found: &[String], expected: &[(&str, &str)]) {
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, (place, part)) in found.iter().zip(expected) {
        assert!(found.contains(&format!("{place}:")) && found.contains(part), "{part}: {found}");
    }
}

#[test]
fn all_mistakes_of_clustermgtd_at_once() {
    let head = head();
    let root = head.dir.path().display();
    head.write(
        CONF,
        &format!(
            "[clustermgtd]\ncluster_name = orchard\nregion =\nproxy = NONE\nheartbeat_file_path = beat\n\
             dynamodb_table = parallelcluster-slurm-orchard\nhead_node_private_ip = 10.40.0.17\nloop_time = 0\n\
             node_replacement_timeout = -1\nterminate_drain_nodes = maybe\norphaned_instance_timeout = 5m\n\
             ec2_instance_missing_max_count = -1\nhealth_check_timeout = 1.5\nprotected_failure_count = ten\n\
             insufficient_capacity_timeout = soon\ncompute_console_logging_max_sample_size = 1.0\n\
             compute_console_wait_time = -300\ninstance_id = me\nfleet_config_file = {root}/fleet-config.json\n\
             run_instances_overrides = {root}/run_instances_overrides.json\ncreate_fleet_overrides = {root}/nowhere.json\n\
             disable_capacity_blocks_management = perhaps\nhealth_check_timeout_after_slurmdstarttime = 100%\n"
        ),
    );
    all(
        &head.mistakes("clustermgtd", CONF),
        &[
            ("clustermgtd.conf:1", "[clustermgtd] head_node_hostname is missing"),
            ("clustermgtd.conf:3", "[clustermgtd] region is empty"),
            ("clustermgtd.conf:5", "[clustermgtd] heartbeat_file_path \"beat\" is no absolute path"),
            ("clustermgtd.conf:8", "[clustermgtd] loop_time is 0; it must be from 1 to 3600"),
            ("clustermgtd.conf:9", "[clustermgtd] node_replacement_timeout is -1; it must be from 0"),
            ("clustermgtd.conf:10", "[clustermgtd] terminate_drain_nodes is \"maybe\", neither yes nor no"),
            ("clustermgtd.conf:11", "[clustermgtd] orphaned_instance_timeout is \"5m\", which is no whole number"),
            ("clustermgtd.conf:12", "[clustermgtd] ec2_instance_missing_max_count is -1"),
            ("clustermgtd.conf:13", "[clustermgtd] health_check_timeout is \"1.5\""),
            ("clustermgtd.conf:14", "[clustermgtd] protected_failure_count is \"ten\""),
            ("clustermgtd.conf:15", "[clustermgtd] insufficient_capacity_timeout is \"soon\", which is no number"),
            ("clustermgtd.conf:16", "[clustermgtd] compute_console_logging_max_sample_size is \"1.0\""),
            ("clustermgtd.conf:17", "[clustermgtd] compute_console_wait_time is -300"),
            ("clustermgtd.conf:18", "[clustermgtd] instance_id \"me\" is no instance id"),
            ("clustermgtd.conf:22", "[clustermgtd] disable_capacity_blocks_management is \"perhaps\""),
            ("clustermgtd.conf:23", "[clustermgtd] health_check_timeout_after_slurmdstarttime has a single %"),
        ],
    );
    // The same mistakes are found by who looks after all files.
    let found = head.mistakes("slurm-ec2", RESUME_CONF);
    assert!(found.iter().any(|mistake| mistake.contains("clustermgtd.conf:14")), "{found:#?}");
    // But not by slurm_resume, which has nothing to do with them.
    assert!(load("slurm_resume", &head.place(RESUME_CONF)).is_ok());
}

#[test]
fn values_that_the_package_takes_are_cut_with_a_warning() {
    let head = head();
    let keys = "loop_time = 7200\nnode_replacement_timeout = 1_000_000\nprotected_failure_count = 99999999999999999999\n\
                insufficient_capacity_timeout = inf\nec2_instance_missing_max_count = 5000";
    let text = CLUSTERMGTD
        .replace("node_replacement_timeout = 1500\n", "")
        .replace("insufficient_capacity_timeout = 600\n", "")
        .replace("proxy = NONE", keys);
    daemon(&head, &text);
    let settings = load("clustermgtd", &head.place(CONF)).unwrap();
    let upkeep = &settings.clustermgtd.upkeep;
    assert_eq!((settings.clustermgtd.loop_time, upkeep.protected_count), (Duration::from_hours(1), Some(1_000_000)));
    assert_eq!((upkeep.replacement_timeout, upkeep.missing_max_count), (Duration::from_hours(24), 1000));
    assert_eq!(upkeep.shortage_timeout, Some(Duration::from_hours(168)));
    for part in ["loop_time 7200", "node_replacement_timeout 1_000_000", "insufficient_capacity_timeout inf"] {
        let begin = format!("[clustermgtd] {part} is cut to ");
        assert!(settings.warnings.iter().any(|warning| warning.starts_with(&begin)), "{part}: {:?}", settings.warnings);
    }
    assert_eq!(settings.warnings.len(), 5, "{:?}", settings.warnings);
}

#[test]
fn mistakes_of_the_other_daemons() {
    let head = head();
    head.write(
        "clusterstatusmgtd.conf",
        "[clusterstatusmgtd]\nregion = eu-central-1\ncluster_name = plum\nloop_time = fast\ndynamodb_table = a/b\n",
    );
    all(
        &head.mistakes("clusterstatusmgtd", "clusterstatusmgtd.conf"),
        &[
            ("clusterstatusmgtd.conf:1", "[clusterstatusmgtd] computefleet_status_path is missing"),
            ("clusterstatusmgtd.conf:3", "[clusterstatusmgtd] cluster_name is \"plum\", but "),
            ("clusterstatusmgtd.conf:4", "[clusterstatusmgtd] loop_time is \"fast\""),
            ("clusterstatusmgtd.conf:5", "[clusterstatusmgtd] dynamodb_table \"a/b\""),
        ],
    );
    head.write(MANAGER_CONF, &MANAGER.replace("region = eu-central-1", "terminate_max_batch_size = 0"));
    all(
        &head.mistakes("slurm_fleet_status_manager", MANAGER_CONF),
        &[
            ("manager.conf:1", "[slurm_fleet_status_manager] region is missing"),
            ("manager.conf:3", "[slurm_fleet_status_manager] terminate_max_batch_size is 0"),
        ],
    );
    head.write(
        "computemgtd.conf",
        "[computemgtd]\nregion = x y\ncluster_name = orchard\nloop_time = -1\n[slurm_ec2]\nspot_hok = /x\n",
    );
    all(
        &head.mistakes("computemgtd", "computemgtd.conf"),
        &[
            ("computemgtd.conf:1", "[computemgtd] clustermgtd_heartbeat_file_path is missing"),
            ("computemgtd.conf:2", "[computemgtd] region \"x y\" is no region"),
            ("computemgtd.conf:4", "[computemgtd] loop_time is -1"),
            ("computemgtd.conf:6", "[slurm_ec2] spot_hok is unknown | write spot_hook"),
        ],
    );
    // A head node has no use for a hook.
    head.resume(&format!("{RESUME}[slurm_ec2]\nspot_hook = /x\n"));
    let found = head.mistakes("clustermgtd", CONF);
    assert!(found.len() == 1 && found[0].contains("[slurm_ec2] spot_hook is unknown"), "{found:?}");
}

#[test]
fn files_that_are_missing_or_another_programs() {
    let head = head();
    for (program, name, section) in [
        ("clusterstatusmgtd", CONF, "clusterstatusmgtd"),
        ("slurm_fleet_status_manager", RESUME_CONF, "slurm_fleet_status_manager"),
        ("computemgtd", RESUME_CONF, "computemgtd"),
    ] {
        let found = head.mistakes(program, name);
        assert!(found[0].contains(&format!("there is no section [{section}] | name the file of {section}, ")), "{found:?}");
    }
    fs::remove_file(head.path(CONF)).unwrap();
    for (program, name, place) in [
        ("clustermgtd", RESUME_CONF, "parallelcluster_slurm_resume.conf:1: "),
        ("clusterstatusmgtd", "clusterstatusmgtd.conf", "clusterstatusmgtd.conf:1: "),
        ("slurm_fleet_status_manager", MANAGER_CONF, "manager.conf:1: "),
    ] {
        let found = head.mistakes(program, name);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(place) && found[0].contains("cluster and nodes are in "), "{found:?}");
        assert!(found[0].contains("which cannot be read: No such file") && found[0].contains(CONF), "{found:?}");
    }
    // One that is there and has nothing of the kind.
    head.write(CONF, "[clustermgd]\n");
    let found = head.mistakes("clusterstatusmgtd", "clusterstatusmgtd.conf");
    assert!(found.len() == 1 && found[0].contains("clustermgtd.conf:1: there is no section [clustermgtd]"), "{found:?}");
}

#[test]
fn all_programs_agree_on_our_section() {
    let head = head();
    let told = |found: &[String], name: &str| {
        let part = format!("{name}:");
        found
            .iter()
            .any(|mistake| mistake.contains(&part) && mistake.contains("section [slurm_ec2] is not read here | move it to "))
    };
    daemon(&head, &format!("{CLUSTERMGTD}[slurm_ec2]\nstate_dir = /elsewhere\n"));
    for (program, name) in [("clustermgtd", CONF), ("slurm-ec2", RESUME_CONF), ("clusterstatusmgtd", "clusterstatusmgtd.conf")] {
        let found = head.mistakes(program, name);
        assert!(found.len() == 1 && told(&found, CONF), "{program}: {found:?}");
    }
    daemon(&head, CLUSTERMGTD);
    head.write("clusterstatusmgtd.conf", &format!("{STATUS}[slurm_ec2]\nstate_dir = /elsewhere\n"));
    let found = head.mistakes("clusterstatusmgtd", "clusterstatusmgtd.conf");
    assert!(found.len() == 1 && told(&found, "clusterstatusmgtd.conf"), "{found:?}");
}

#[test]
fn s05_what_could_be_launched_keeps_nobody_from_stopping_the_fleet() {
    let head = head();
    head.write("fleet-config.json", "{]");
    for (program, name) in [("clusterstatusmgtd", "clusterstatusmgtd.conf"), ("slurm_fleet_status_manager", MANAGER_CONF)] {
        let settings = load(program, &head.place(name)).unwrap_or_else(|error| panic!("{error}"));
        assert!(settings.groups.is_empty());
        let said = settings.warnings.join("\n");
        assert!(said.contains(&format!("; {program} goes on without any queue")), "{said}");
    }
    assert!(head.mistakes("clustermgtd", CONF)[0].contains("fleet-config.json"));
}

#[test]
fn slips_in_the_daemons_files() {
    let head = head();
    let text =
        CLUSTERMGTD.replace("proxy = NONE", "disable_capacity_block_management = true\nnext_years_key = 1\nworker_pool_size = 3");
    daemon(&head, &text);
    let settings = load("clustermgtd", &head.place(CONF)).unwrap();
    let [warning] = settings.warnings.as_slice() else { panic!("{:?}", settings.warnings) };
    assert!(
        warning.ends_with(
            "unknown key disable_capacity_block_management is ignored; did you mean disable_capacity_blocks_management?"
        ),
        "{warning}"
    );
    assert_eq!(load("slurm-ec2", &head.place(RESUME_CONF)).unwrap().warnings, settings.warnings);
    head.write("computemgtd.conf", &COMPUTEMGTD.replace("proxy", "proxi"));
    let settings = load("computemgtd", &head.place("computemgtd.conf")).unwrap();
    assert!(settings.warnings[0].ends_with("unknown key proxi is ignored; did you mean proxy?"), "{:?}", settings.warnings);
}

#[test]
fn sections_that_our_file_has_too() {
    for text in [CLUSTERMGTD, COMPUTEMGTD, STATUS, MANAGER, "# x\n\n[computemgtd]\nregion: x\n", "\u{feff}[clustermgtd]\n"] {
        assert!(super::is_one(text), "{text:?}");
    }
    for text in [
        "cluster = \"hpc\"\nregion = \"eu-west-1\"\n[clustermgtd]\nloop_time = \"30s\"\n",
        "# ours\n\n  cluster = \"hpc\"\n[computemgtd]\n",
        "[clustermgtd]\nloop_time = \"30s\"\n[[group]]\n",
        "[fleet]\n",
    ] {
        assert!(!super::is_one(text), "{text:?}");
    }
    // Nor does a slip in it make it one that is neither.
    let head = Head::new();
    head.write("x.toml", "cluster = \"hpc\"\nregion = eu-west-1\n[clustermgtd]\nloop_time = \"30s\"\n[[group]]\nname = \"g\"\n");
    let found = head.mistakes("clustermgtd", "x.toml");
    assert!(found.iter().any(|mistake| mistake.starts_with("x.toml:2: ")), "{found:?}");
    assert!(!found.iter().any(|mistake| mistake.contains("neither")), "{found:?}");
    head.write("y.conf", "[clusterstatusmgd]\nregion = x\n");
    let found = head.mistakes("clusterstatusmgtd", "y.conf");
    assert!(found.len() == 1 && found[0].contains("did you mean [clusterstatusmgtd]?"), "{found:?}");
}

#[test]
fn what_a_refused_file_still_says() {
    let head = head();
    daemon(&head, &CLUSTERMGTD.replace("region = eu-central-1", "region ="));
    head.resume(&format!("{RESUME}[slurm_ec2]\nlog_dir = /srv/log\n"));
    let settings = as_far_as_it_goes("clustermgtd", &head.place(CONF));
    assert_eq!(settings.log.file, Some("/srv/log/clustermgtd".into()));
    let missing = Place { path: head.path("nowhere/clusterstatusmgtd.conf"), ..head.place(CONF) };
    let settings = as_far_as_it_goes("clusterstatusmgtd", &missing);
    assert_eq!(settings.log.file, Some("/var/log/parallelcluster/clusterstatusmgtd".into()));
    // On such a head node also where our own file says it.
    let text = "cluster = \"hpc\"\nregion = \"eu-west-1\"\n[parallelcluster]\nheartbeat = \"/h\"\n[log]\ndir = \"/logs\"\n\
                [[group]]\nname = \"g\"\nnodes = \"g-1\"\nlaunch_template = \"abc\"\n";
    head.write("x.toml", text);
    let log = load("clustermgtd", &head.place("x.toml")).unwrap().log;
    assert_eq!(
        (log.file.clone(), log.events_path()),
        (Some("/logs/clustermgtd".into()), Some("/logs/clustermgtd.events".into()))
    );
    assert_eq!(load("slurm_resume", &head.place("x.toml")).unwrap().log.file, None);
}
