//! The sections for scaling, stores, publishing and ParallelCluster: text to settings or mistakes.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::file::parse;
use super::settings::{Dns, LogFormat, NodeTable, ParallelCluster, Settings, StoreKind};
use super::tests::{LEAST, good, in_group, in_section, mistakes};
use super::tests_page::examples;
use crate::model::policy::{Daemon, ScaleBy, Strategy};
use crate::model::recipe::GroupNodes;

/// `LEAST` with more sections before its group; line 3 is their first.
fn with(sections: &str) -> String {
    LEAST.replace("[[group]]", &format!("{sections}\n[[group]]"))
}

/// The sections of a ParallelCluster head node; nothing is required but the heartbeat.
fn on_a_head_node(lines: &str, groups: &str) -> String {
    format!("cluster = \"o\"\nregion = \"eu-west-1\"\n[parallelcluster]\nheartbeat = \"/h\"\n{lines}\n{groups}")
}

const QUEUE: &str = "[[group]]\nname = \"g\"\nqueue = \"q\"\ncompute_resource = \"r\"\nlaunch_template = \"o-q-r\"\n";

#[test]
fn without_the_new_sections_nothing_is_different() {
    let settings = good(LEAST);
    assert_eq!((settings.run.scale_by, settings.run.strategy), (ScaleBy::Batch, Strategy::BestEffort));
    assert_eq!((settings.run.requeue_now, settings.run.terminate_batch_size), (false, 1000));
    assert_eq!(
        (settings.store.clone(), settings.slurm.sudo.clone(), settings.parallelcluster.clone()),
        (StoreKind::File, None, None)
    );
    let publish = &settings.publish;
    assert_eq!((publish.batch_size, &publish.node_table, &publish.dns, publish.hostname), (10_000, &None, &None, false));
    assert_eq!((&settings.aws.dynamodb_endpoint_url, &settings.aws.route53_endpoint_url), (&None, &None));
    let group = &settings.groups[0];
    assert!(group.fallbacks.is_empty() && group.recipe.overrides.is_empty() && !group.recipe.tag_instances_only);
}

#[test]
fn scaling_by_job_or_call_has_one_strategy() {
    let scaled = |by: &str, strategy: &str| good(&with(&format!("[launch]\nscale_by = \"{by}\"\nstrategy = \"{strategy}\""))).run;
    for (by, scale_by) in [("batch", ScaleBy::Batch), ("call", ScaleBy::Call), ("job", ScaleBy::Job)] {
        for (word, strategy) in [
            ("best-effort", Strategy::BestEffort),
            ("all-or-nothing", Strategy::AllOrNothing),
            ("greedy-all-or-nothing", Strategy::GreedyAllOrNothing),
        ] {
            let run = scaled(by, word);
            assert_eq!((run.scale_by, run.strategy), (scale_by, strategy));
        }
    }
    for by in ["call", "job"] {
        let found = mistakes(&format!("{}strategy = \"best-effort\"\n", with(&format!("[launch]\nscale_by = \"{by}\""))));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("9:1: a group cannot have a strategy of its own"), "{found:?}");
    }
    good(&format!("{LEAST}strategy = \"greedy-all-or-nothing\"\n"));
    assert!(in_section("launch", "scale_by = \"jobs\"")[0].ends_with("write \"job\""));
    assert_eq!(in_section("launch", "terminate_batch_size = 1001").len(), 1);
}

#[test]
fn a_fleet_over_types_and_zones_may_be_whole_by_job() {
    let group =
        "api = \"create-fleet\"\ninstance_types = [\"c5.large\", \"c6i.large\"]\nsubnets = [\"subnet-1\", \"subnet-2\"]\n";
    let text = |scale_by: &str, more: &str| {
        format!("{}{group}{more}", with(&format!("[launch]\nstrategy = \"all-or-nothing\"\nscale_by = \"{scale_by}\"")))
    };
    assert!(mistakes(&text("batch", ""))[0].contains("MinTargetCapacity"));
    good(&text("job", "batch_size = 5000\n"));
    good(&text("call", ""));
    // EC2's minimum is used where it can be, so its limit counts.
    let one_zone = text("job", "batch_size = 1001\n").replace(", \"subnet-2\"", "");
    assert!(mistakes(&one_zone)[0].contains("at most 1000"), "{:?}", mistakes(&one_zone));
}

#[test]
fn a_store_and_its_table_go_together() {
    let settings = good(&with("[state]\nstore = \"dynamodb\"\ntable = \"slurm-ec2-hpc\""));
    assert_eq!(settings.store, StoreKind::DynamoDb { table: "slurm-ec2-hpc".into() });
    assert_eq!(settings.state_dir, Path::new("/var/lib/slurm-ec2"));
    assert_eq!(in_section("state", "store = \"dynamodb\""), ["3:1: table is missing in [state] | add table = \"slurm-ec2-hpc\""]);
    assert!(in_section("state", "table = \"slurm-ec2-hpc\"")[0].contains("add store = \"dynamodb\", or drop table"));
    assert_eq!(in_section("state", "store = \"file\"\ntable = \"abc\"").len(), 1);
    assert_eq!(in_section("state", "store = \"dynamdb\"\ntable = \"abc\"").len(), 1, "one slip, one complaint");
    assert_eq!(in_section("state", "store = \"dynamodb\"\ntable = \"a/b\"").len(), 1);
    let twice = mistakes(&with(
        "[state]\nstore = \"dynamodb\"\ntable = \"abc\"\n[node_table]\ntable = \"abc\"\nhead_node_private_ip = \"10.0.0.1\"\nhead_node_hostname = \"h\"",
    ));
    assert!(twice.len() == 1 && twice[0].starts_with("5:9: table is the same as in [node_table]"), "{twice:?}");
}

#[test]
fn who_hears_of_an_instance() {
    let settings = good(&with(
        "[aws]\ndynamodb_endpoint_url = \"http://d:1\"\nroute53_endpoint_url = \"http://r:1\"\n[slurm]\nsudo = \"/usr/bin/sudo\"\n\
         [publish]\nbatch_size = 500\nhostname = true\n[dns]\nhosted_zone = \"Z123\"\ndomain = \"hpc.pcluster.\"\n\
         [node_table]\ntable = \"parallelcluster-slurm-hpc\"\nhead_node_private_ip = \"10.0.0.10\"\nhead_node_hostname = \"ip-10-0-0-10\"",
    ));
    let publish = &settings.publish;
    assert_eq!((publish.batch_size, publish.hostname), (500, true));
    assert_eq!(publish.dns, Some(Dns { hosted_zone: "Z123".into(), domain: "hpc.pcluster.".into() }));
    assert_eq!(
        publish.node_table,
        Some(NodeTable {
            table: "parallelcluster-slurm-hpc".into(),
            head_node_private_ip: "10.0.0.10".into(),
            head_node_hostname: "ip-10-0-0-10".into(),
        })
    );
    assert_eq!(settings.aws.dynamodb_endpoint_url.as_deref(), Some("http://d:1"));
    assert_eq!(settings.aws.route53_endpoint_url.as_deref(), Some("http://r:1"));
    assert_eq!(settings.slurm.sudo, Some(PathBuf::from("/usr/bin/sudo")));
    assert_eq!(in_section("node_table", "").len(), 3, "all of it is required");
    assert_eq!(in_section("dns", "domain = \"hpc.pcluster\"").len(), 1);
    assert!(in_section("dns", "domain = \"a..b\"\nhosted_zone = \"/hostedzone/Z1\"")[1].ends_with("write \"Z1\""));
    for line in ["domain = \".a\"", "domain = \"a b\"", "domain = \".\""] {
        assert!(in_section("dns", &format!("hosted_zone = \"Z1\"\n{line}"))[0].contains("is no domain"), "{line}");
    }
    assert!(
        in_section("node_table", "table = \"abc\"\nhead_node_private_ip = \"head\"\nhead_node_hostname = \"h\"")[0]
            .contains("is no IP address")
    );
    assert!(in_section("slurm", "sudo = \"sudo\"")[0].contains("is not an absolute path"));
}

fn head_node() -> Settings {
    good(examples()[2])
}

#[test]
fn a_parallelcluster_head_node() {
    let settings = head_node();
    assert_eq!(
        settings.parallelcluster,
        Some(ParallelCluster {
            heartbeat: PathBuf::from("/opt/slurm/etc/pcluster/.slurm_plugin/clustermgtd_heartbeat"),
            heartbeat_timeout: Duration::from_secs(300),
            instance_id: "i-0123456789abcdef0".into(),
        })
    );
    assert_eq!((settings.run.daemon, settings.log.format), (Daemon::Yes, LogFormat::ParallelCluster));
    let group = &settings.groups[0];
    assert_eq!(group.nodes, GroupNodes::Queue { queue: "apple".into(), resource: "c5".into() });
    assert!(group.recipe.tag_instances_only);
    assert_eq!(settings.group_of("apple-dy-c5-7").unwrap().name, "apple/c5");
    assert_eq!(settings.group_of("apple-st-c5-1").unwrap().name, "apple/c5");
    assert!(settings.group_of("apple-dy-c6-1").is_none() && settings.group_of("apple").is_none());
    let own = good(&on_a_head_node("[launch]\ndaemon = \"no\"\ndeadline = \"4m\"\n[log]\nformat = \"json\"", QUEUE));
    assert_eq!((own.run.daemon, own.log.format), (Daemon::No, LogFormat::Json));
    let defaults = own.parallelcluster.unwrap();
    assert_eq!((defaults.heartbeat_timeout, defaults.instance_id.as_str()), (Duration::from_mins(5), "unknown"));
    assert_eq!(good(&with("[log]\nformat = \"parallelcluster\"")).log.format, LogFormat::ParallelCluster);
}

#[test]
fn what_a_parallelcluster_head_node_does_not_take() {
    assert_eq!(in_section("parallelcluster", "").len(), 1, "the heartbeat is required");
    for (lines, place, part) in [
        ("[launch]\ndeadline = \"5m\"", "6:12", "terminates instances that have no node after 5m"),
        ("[launch]\nrequeue_now = true", "6:15", "cannot be used with [parallelcluster]"),
    ] {
        let found = mistakes(&on_a_head_node(lines, QUEUE));
        assert!(found.len() == 1 && found[0].starts_with(place) && found[0].contains(part), "{lines}: {found:?}");
    }
    good(&with("[launch]\ndeadline = \"5m\"\nrequeue_now = true"));
    assert!(in_section("parallelcluster", "heartbeat = \"/h\"\ninstance_id = \"head\"")[0].contains("is no instance id"));
}

#[test]
fn queues_or_nodes() {
    let found = |groups: &str| mistakes(&on_a_head_node("", groups));
    good(&on_a_head_node("", QUEUE));
    good(&on_a_head_node("", &LEAST[LEAST.find("[[group]]").unwrap()..]));
    let lone = in_group("queue = \"q\"");
    assert!(lone.len() == 1 && lone[0].starts_with("7:1: queue and compute_resource are ParallelCluster's"), "{lone:?}");
    let both = found(&format!("{QUEUE}nodes = \"a\"\n"));
    assert!(both.len() == 1 && both[0].contains("has both nodes and a queue"), "{both:?}");
    assert_eq!(
        found(&QUEUE.replace("compute_resource = \"r\"\n", "")),
        ["6:1: compute_resource is missing in [[group]] | add compute_resource = \"c5\""]
    );
    assert_eq!(found(&QUEUE.replace("queue = \"q\"\n", "")), ["6:1: queue is missing in [[group]] | add queue = \"compute\""]);
    let neither = found("[[group]]\nname = \"g\"\nlaunch_template = \"abc\"\n");
    assert!(neither.len() == 1 && neither[0].ends_with("or queue and compute_resource"), "{neither:?}");
    assert!(found(&QUEUE.replace("\"q\"", "\"Q_1\""))[0].contains("is no part of a node's name"));
    for (name, good) in [("q/r", true), ("q/", false), ("/r", false), ("q/r/s", false)] {
        let text = on_a_head_node("", &QUEUE.replace("\"g\"", &format!("{name:?}")));
        assert_eq!(parse(Path::new("x.toml"), &text).is_ok(), good, "{name}");
    }
    assert!(mistakes(&LEAST.replace("\"c5\"", "\"q/r\"")).len() == 1, "a slash is for queues");
    let mixed = found(&format!("{QUEUE}[[group]]\nname = \"n\"\nnodes = \"n1\"\nlaunch_template = \"abc\"\n"));
    assert!(mixed.len() == 1 && mixed[0].starts_with("13:9: some groups have nodes and some a queue"), "{mixed:?}");
    let twice = found(&format!("{QUEUE}{}", QUEUE.replace("\"g\"", "\"h\"")));
    assert!(twice.len() == 1 && twice[0].contains("has two groups; the other is in line 8"), "{twice:?}");
}

#[test]
fn names_that_can_be_read_in_two_ways_are_refused() {
    let group = |name: &str, queue: &str, resource: &str| {
        QUEUE
            .replace("\"g\"", &format!("{name:?}"))
            .replace("\"q\"", &format!("{queue:?}"))
            .replace("\"r\"", &format!("{resource:?}"))
    };
    let text = on_a_head_node("", &format!("{}{}", group("one", "a", "b-dy-c"), group("two", "a-st-b", "c")));
    // a-st-b-dy-c-1 is of both.
    let found = mistakes(&text);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found.iter().all(|mistake| mistake.contains("a-st-b-dy-c-1 can be of queue a with compute resource b-dy-c")),
        "{found:?}"
    );
    good(&on_a_head_node("", &format!("{}{}", group("one", "a", "b-dy-c"), group("two", "b", "c"))));
}
