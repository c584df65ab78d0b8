//! `[clustermgtd]`, `[fleet]`, `[computemgtd]`, static nodes and Capacity Blocks: text to settings or mistakes.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::settings::{ClustermgtdSettings, ComputemgtdSettings, FleetSettings, FleetStore, NodeIndex, Settings};
use super::tests::{LEAST, good, in_group, in_section, mistakes};
use super::tests_page::examples;
use crate::model::policy::Upkeep;

const BESIDE: &str = "[parallelcluster]\nheartbeat = \"/h\"\n";

/// `LEAST` with more sections before its group; line 3 is their first.
fn with(sections: &str) -> Settings {
    good(&LEAST.replace("[[group]]", &format!("{sections}\n[[group]]")))
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[test]
fn without_the_sections_the_packages_defaults_count() {
    let settings = with("");
    let expected = Upkeep {
        disabled: false,
        terminate_drain_nodes: true,
        terminate_down_nodes: true,
        orphan_timeout: secs(300),
        missing_grace: secs(120),
        missing_max_count: 0,
        replacement_timeout: secs(1800),
        check_instances: true,
        check_events: true,
        check_timeout: secs(180),
        check_grace: secs(180),
        protected_count: Some(10),
        shortage_timeout: None,
        manage_blocks: true,
        consoles: true,
        consoles_most: Some(1),
        console_wait: secs(300),
    };
    let daemon = &settings.clustermgtd;
    assert_eq!(daemon.upkeep, expected);
    assert_eq!((daemon.loop_time, daemon.show_timeout, &daemon.heartbeat), (secs(60), secs(60), &None));
    assert!(daemon.partitions.is_empty() && settings.static_nodes.is_empty());
    let fleet = FleetSettings { store: FleetStore::File, poll: secs(5), timeout: secs(600), status_file: None };
    assert_eq!(settings.fleet, fleet);
    let compute = &settings.computemgtd;
    assert_eq!((compute.loop_time, compute.heartbeat_timeout, &compute.heartbeat), (secs(60), secs(600), &None));
    assert_eq!((compute.spot_poll, compute.node_name_timeout), (secs(5), secs(300)));
    assert_eq!(compute.node_name_file, Path::new("/etc/slurm-ec2/node-name"));
    assert_eq!(compute.shutdown, Path::new("/sbin/shutdown"));
    assert!(!compute.disabled && !compute.drain_on_rebalance && compute.spot_hook.is_none());
}

#[test]
fn on_parallelclusters_ground_they_are_its_own() {
    let settings = with(BESIDE);
    assert_eq!(settings.clustermgtd.heartbeat, Some("/h".into()));
    assert_eq!(settings.clustermgtd.upkeep.shortage_timeout, Some(secs(600)));
    assert_eq!(settings.fleet.store, FleetStore::Table { table: "parallelcluster-hpc".into() });
    let compute = &settings.computemgtd;
    assert_eq!(compute.heartbeat, Some("/h".into()));
    assert_eq!(compute.node_name_file, Path::new("/etc/parallelcluster/slurm_plugin/slurm_nodename"));
    assert_eq!(compute.shutdown, Path::new("/usr/sbin/shutdown"));
    assert_eq!(settings.warnings, Vec::<String>::new());
    let own =
        with(&format!("{BESIDE}[fleet]\ntable = \"my-fleet\"\n[clustermgtd]\nshortage_timeout = \"0s\"\nheartbeat = \"/i\""));
    assert_eq!(own.fleet.store, FleetStore::Table { table: "my-fleet".into() });
    assert_eq!(own.clustermgtd.upkeep.shortage_timeout, Some(Duration::ZERO));
    assert_eq!(own.computemgtd.heartbeat, Some("/i".into()));
    assert_eq!(own.warnings, Vec::<String>::new(), "it writes both");
}

#[test]
fn every_key_has_its_effect() {
    let settings = good(examples()[1]);
    let upkeep = Upkeep {
        disabled: false,
        terminate_drain_nodes: true,
        terminate_down_nodes: true,
        orphan_timeout: secs(600),
        missing_grace: secs(180),
        missing_max_count: 1,
        replacement_timeout: secs(1200),
        check_instances: true,
        check_events: false,
        check_timeout: secs(300),
        check_grace: secs(600),
        protected_count: Some(20),
        shortage_timeout: Some(secs(900)),
        manage_blocks: true,
        consoles: true,
        consoles_most: Some(3),
        console_wait: secs(240),
    };
    let shared = PathBuf::from("/opt/slurm/shared");
    assert_eq!(
        settings.clustermgtd,
        ClustermgtdSettings {
            loop_time: secs(30),
            heartbeat: Some(shared.join("clustermgtd-heartbeat")),
            show_timeout: secs(90),
            partitions: vec!["compute".into(), "spot".into()],
            upkeep,
        }
    );
    assert_eq!(
        settings.fleet,
        FleetSettings {
            store: FleetStore::Table { table: "slurm-ec2-fleet".into() },
            poll: secs(10),
            timeout: secs(900),
            status_file: Some(shared.join("fleet-status.json")),
        }
    );
    assert_eq!(
        settings.computemgtd,
        ComputemgtdSettings {
            loop_time: secs(30),
            heartbeat: Some(shared.join("clustermgtd-heartbeat")),
            heartbeat_timeout: secs(900),
            disabled: false,
            node_name_file: "/etc/slurm-ec2/node-name".into(),
            shutdown: "/usr/sbin/shutdown".into(),
            metadata_endpoint: Some("http://127.0.0.1:1338".into()),
            spot_poll: secs(2),
            spot_hook: Some("/etc/slurm-ec2/spot-hook".into()),
            drain_on_rebalance: true,
            node_name_timeout: secs(600),
            shared_mapping: Some(shared.join("mapping.json")),
        }
    );
    let switched = with(
        "[clustermgtd]\ndisabled = true\nterminate_drain_nodes = false\nterminate_down_nodes = false\ncheck_instances = false\n\
         manage_blocks = false\nconsoles = false\n[computemgtd]\ndisabled = true",
    );
    let upkeep = &switched.clustermgtd.upkeep;
    assert!(upkeep.disabled && !upkeep.terminate_drain_nodes && !upkeep.terminate_down_nodes && !upkeep.check_instances);
    assert!(upkeep.check_events && !upkeep.manage_blocks && !upkeep.consoles && switched.computemgtd.disabled);
}

#[test]
fn nought_switches_off_where_there_is_something_to_switch() {
    let off = with(
        "[clustermgtd]\nprotected_failure_count = 0\nconsoles_most = 0\nshortage_timeout = \"0s\"\nmissing_grace = \"0s\"\n\
         check_timeout = \"0s\"\ncheck_grace = \"0s\"\nconsole_wait = \"0s\"",
    );
    let upkeep = &off.clustermgtd.upkeep;
    assert_eq!((upkeep.protected_count, upkeep.consoles_most), (None, None));
    assert_eq!((upkeep.shortage_timeout, upkeep.missing_grace), (Some(Duration::ZERO), Duration::ZERO));
    assert_eq!((upkeep.check_timeout, upkeep.check_grace), (Duration::ZERO, Duration::ZERO));
}

#[test]
fn c04_no_time_and_no_number_is_negative_or_none_at_all() {
    for (section, key) in [
        ("clustermgtd", "loop_time"),
        ("clustermgtd", "orphan_timeout"),
        ("clustermgtd", "replacement_timeout"),
        ("clustermgtd", "show_timeout"),
        ("fleet", "poll"),
        ("fleet", "timeout"),
        ("computemgtd", "heartbeat_timeout"),
        ("computemgtd", "spot_poll"),
        ("computemgtd", "node_name_timeout"),
    ] {
        for value in ["-1", "\"-1s\"", "\"0s\"", "60"] {
            let found = in_section(section, &format!("{key} = {value}"));
            assert!(found.len() == 1 && found[0].starts_with("4:") && found[0].contains(key), "{key} = {value}: {found:?}");
        }
    }
    for (key, value, part) in [
        ("shortage_timeout", "-1", "write shortage_timeout = \"0s\""),
        ("protected_failure_count", "-1", "at least 0"),
        ("consoles_most", "-2", "at least 0"),
        ("missing_max_count", "1001", "at most 1000"),
        ("loop_time", "\"2h\"", "at most 1h"),
    ] {
        let found = in_section("clustermgtd", &format!("{key} = {value}"));
        assert!(found.len() == 1 && found[0].contains(part), "{key} = {value}: {found:?}");
    }
}

#[test]
fn all_mistakes_of_the_sections_at_once() {
    let text = LEAST.replace(
        "[[group]]",
        "[clustermgtd]\nloop_tme = \"30s\"\nheartbeat = \"h\"\npartitions = [\"a b\", \"q\", \"q\", \"ALL\"]\n\
         protected_failure_count = \"10\"\n[fleet]\ntable = \"a/b\"\nstatus_file = \"~/s\"\n\
         [computemgtd]\nspot_hook = \"hook\"\nmetadata_endpoint = \"127.0.0.1\"\ndisabled = \"no\"\n[[group]]",
    );
    let found: Vec<String> = mistakes(&text).iter().map(|mistake| mistake.split(" | ").next().unwrap().to_owned()).collect();
    assert_eq!(
        found,
        [
            "4:1: unknown key \"loop_tme\" in [clustermgtd]",
            "5:13: heartbeat \"h\" is not an absolute path",
            "6:15: partitions: \"a b\" is no partition's name",
            "6:27: partitions names \"q\" twice",
            "6:32: partitions: \"ALL\" names no partition of slurm.conf",
            "7:27: protected_failure_count must be a whole number, not a string",
            "9:9: table \"a/b\" cannot be a table's name",
            "10:15: status_file \"~/s\" begins with ~, but slurmctld gives its programs no HOME",
            "12:13: spot_hook \"hook\" is not an absolute path",
            "13:21: metadata_endpoint does not begin with http:// or https://",
            "14:12: disabled must be true or false, not a string",
        ]
    );
}

#[test]
fn the_status_is_in_no_table_of_nodes() {
    let store = "[state]\nstore = \"dynamodb\"\ntable = \"abc\"\n";
    let found = mistakes(&LEAST.replace("[[group]]", &format!("{store}[fleet]\ntable = \"abc\"\n[[group]]")));
    assert!(found.len() == 1 && found[0].starts_with("7:9: table is the same as in [state]"), "{found:?}");
    let nodes = "[node_table]\ntable = \"abc\"\nhead_node_private_ip = \"10.0.0.1\"\nhead_node_hostname = \"h\"\n";
    let found = mistakes(&LEAST.replace("[[group]]", &format!("{nodes}[fleet]\ntable = \"abc\"\n[[group]]")));
    assert!(found.len() == 1 && found[0].starts_with("8:9: table is the same as in [node_table]"), "{found:?}");
}

#[test]
fn static_nodes_are_some_of_the_groups_own() {
    let settings = good(&format!("{LEAST}static_nodes = \"c5-[2-3],c5-7\"\n"));
    for (node, is_static) in [("c5-1", false), ("c5-2", true), ("c5-3", true), ("c5-7", true), ("c5-11", false)] {
        assert_eq!(settings.is_static(node), is_static, "{node}");
    }
    for (line, expected) in [
        (
            "static_nodes = \"c5-[9-14]\"",
            "7:16: static_nodes names c5-11, c5-12, c5-13 and 1 more, which the group's nodes have not",
        ),
        ("static_nodes = \"c5-1,c5-1\"", "7:16: static_nodes names c5-1 more than once"),
        ("static_nodes = \"c5-[1\"", "7:20: static_nodes: "),
        ("static_nodes = \"\"", "7:16: static_nodes names no node"),
        ("static_nodes = 2", "7:16: static_nodes must be a string, not an integer"),
        ("static_nodes = [\"c5-1\"]", "7:16: static_nodes must be a string, not an array"),
    ] {
        let found = in_group(line);
        assert!(found.len() == 1 && found[0].starts_with(expected), "{line}: {found:?}");
    }
    // What is wrong with the nodes is told once.
    let found = mistakes(&format!("{}static_nodes = \"c5-1\"\n", LEAST.replace("c5-[1-10]", "c5-[1-10")));
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn a_queues_names_say_which_are_static() {
    let queue = "[[group]]\nname = \"g\"\nqueue = \"q\"\ncompute_resource = \"r\"\nlaunch_template = \"o-q-r\"\n";
    let text = format!("cluster = \"o\"\nregion = \"eu-west-1\"\n{BESIDE}{queue}");
    let settings = good(&text);
    assert!(settings.is_static("q-st-r-1") && !settings.is_static("q-dy-r-1"));
    assert!(matches!(settings.node_group, NodeIndex::Queues(_)));
    let found = mistakes(&format!("{text}static_nodes = \"q-st-r-1\"\n"));
    assert!(found.len() == 1 && found[0].starts_with("10:16: static_nodes is for groups with nodes"), "{found:?}");
}

#[test]
fn c03_a_block_names_its_reservation_itself_or_by_its_parameters() {
    let reservation = |lines: &str| good(&format!("{LEAST}{lines}\n")).groups[0].capacity_reservation.clone();
    let id = "capacity_reservation_id = \"cr-0fee1900d00000042\"";
    let overrides =
        "overrides = { CapacityReservationSpecification = { CapacityReservationTarget = { CapacityReservationId = \"cr-1\" } } }";
    assert_eq!(reservation(""), None);
    for capacity in ["capacity-block", "template"] {
        assert_eq!(reservation(&format!("capacity = {capacity:?}\n{id}")).as_deref(), Some("cr-0fee1900d00000042"));
    }
    assert_eq!(reservation(&format!("capacity = \"capacity-block\"\n{overrides}")).as_deref(), Some("cr-1"));
    assert_eq!(reservation(overrides), None, "a reservation that is no block is always active");
    for (lines, part) in [
        (id.to_owned(), "7:27: capacity_reservation_id is for Capacity Blocks only"),
        (format!("capacity = \"spot\"\n{id}"), "8:27: capacity_reservation_id is for Capacity Blocks only"),
        (
            format!("capacity = \"capacity-block\"\n{overrides}\n{id}"),
            "9:27: capacity_reservation_id is cr-0fee1900d00000042, and overrides names cr-1",
        ),
        (
            "capacity = \"capacity-block\"\ncapacity_reservation_id = \"0fee\"".to_owned(),
            "8:27: capacity_reservation_id is no capacity reservation's id",
        ),
    ] {
        let found = in_group(&lines);
        assert!(found.len() == 1 && found[0].starts_with(part), "{lines}: {found:?}");
    }
    assert_eq!(in_group(&format!("capacity = \"blok\"\n{id}")).len(), 1, "one slip, one complaint");
}
