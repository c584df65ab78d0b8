//! computemgtd and EC2's notices: the jobs requeued once, before the instance goes, and metadata asked as it must be.

use std::fs;

use slurm_ec2_testkit::imds::Fault;

use crate::compute_node::{NODE, NOTICE, Node};

/// B123.
#[test]
fn w06_w07_a_spot_notice_requeues_once() {
    let node = Node::new();
    // Early in the boot the service stumbles.
    node.imds.fail_tokens([Fault::Status(503), Fault::Status(503)]);
    node.imds.set("spot/instance-action", NOTICE);
    let daemon = node.start();
    node.until("both updates", || node.site.updates().len() >= 2);
    let seen = node.imds.count("spot/instance-action");
    node.until("further looks", || node.imds.count("spot/instance-action") >= seen + 3);
    let reason = "reason=EC2 spot notice: terminate at 2026-11-29T12:02:00Z";
    assert_eq!(
        node.site.updates(),
        [
            format!("update nodename={NODE} state=drain {reason}"),
            // Not without the first: with ReturnToService=2 the node would be back in milliseconds.
            format!("update nodename={NODE} state=down {reason}"),
        ]
    );
    assert_eq!(node.imds.without_token(), 0, "{:?}", node.imds.requests());
    assert_eq!(node.lines_with("EC2 takes this instance away"), 1);
    assert!(node.recorded("hook").is_empty());
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn w07_the_hook_runs_once_between_drain_and_down_and_is_bounded() {
    let node = Node::new();
    node.configure(&format!("spot_hook = \"{}\"\n", node.site.path("bin/hook").display()));
    node.site.write("bin/hook.copy", &node.site.path("bin/scontrol.log").display().to_string());
    // The notice's time is long past, so that the hook gets five seconds; it wants a minute.
    node.site.write("bin/hook.hang", "");
    node.imds.set("spot/instance-action", r#"{"action":"stop","time":"2020-01-01T00:00:00Z"}"#);
    let _daemon = node.start();
    node.until("both updates", || node.site.updates().len() >= 2);
    assert_eq!(node.recorded("hook"), [format!("stop 2020-01-01T00:00:00Z {NODE}")]);
    let before = fs::read_to_string(node.site.path("bin/hook.copied")).unwrap();
    assert!(before.contains("state=drain") && !before.contains("state=down"), "{before}");
    assert_eq!(node.lines_with("did not end within 5 s"), 1, "{}", node.log());
    node.until("two more looks", || node.imds.count("spot/instance-action") >= 3);
    assert_eq!(node.recorded("hook").len(), 1);
}

#[test]
fn w07_what_slurmctld_may_not_be_told_is_said_once() {
    let node = Node::new();
    node.site.scontrol("fail.update", "1\nslurm_update error: Access/permission denied\n");
    node.imds.set("spot/instance-action", NOTICE);
    let _daemon = node.start();
    node.until("the error", || node.log().contains("nothing more is tried"));
    let seen = node.imds.count("spot/instance-action");
    node.until("further looks", || node.imds.count("spot/instance-action") >= seen + 3);
    assert_eq!(node.site.updates().len(), 1, "{:?}", node.site.updates());
    assert_eq!(node.lines_with("nothing more is tried"), 1);
}

#[test]
fn w07_a_slurmctld_that_does_not_answer_is_told_later() {
    let node = Node::new();
    node.site.scontrol("fail.update", "1\nslurm_update error: Unable to contact slurm controller (connect failure)\n");
    node.imds.set("spot/instance-action", NOTICE);
    let _daemon = node.start();
    node.until("a try", || !node.site.updates().is_empty());
    fs::remove_file(node.site.path("bin/scontrol.fail.update")).unwrap();
    node.until("success", || node.log().contains("set down, so that its jobs are requeued"));
    assert_eq!(node.site.updates().iter().filter(|update| update.contains("state=down")).count(), 1);
}

#[test]
fn w07_a_rebalance_recommendation_is_logged_and_drains_only_if_wanted() {
    let recommendation = r#"{"noticeTime": "2026-11-29T12:00:00Z"}"#;
    for drains in [false, true] {
        let node = Node::with(&format!("drain_on_rebalance = {drains}\n"));
        node.imds.set("events/recommendations/rebalance", recommendation);
        let _daemon = node.start();
        node.until("the recommendation", || node.log().contains("EC2 recommends to move away"));
        let seen = node.imds.count("events/recommendations/rebalance");
        node.until("further looks", || node.imds.count("events/recommendations/rebalance") >= seen + 3);
        assert_eq!(node.lines_with("EC2 recommends to move away"), 1, "{}", node.log());
        let drain = format!("update nodename={NODE} state=drain reason=EC2 rebalance recommendation of 2026-11-29T12:00:00Z");
        assert_eq!(node.site.updates(), if drains { vec![drain] } else { vec![] });
    }
}

#[test]
fn without_instance_metadata_there_is_one_warning() {
    let node = Node::new();
    node.imds.fail_tokens([Fault::Drop; 6]);
    let _daemon = node.start();
    let again = "instance metadata answers again";
    node.until("metadata", || node.log().contains(again));
    let log = node.log();
    // On a machine that stands still metadata may fall silent once more after that.
    let before = log.split_once(again).unwrap().0;
    assert_eq!(before.matches("spot notices cannot be seen").count(), 1, "{log}");
}

/// By ParallelCluster's own file, with the package's log.
#[test]
fn w07_as_parallelclusters_computemgtd() {
    let node = Node::new();
    let root = node.site.dir.path().display().to_string();
    let imds = node.imds.url();
    node.site.write(
        "parallelcluster_computemgtd.conf",
        &format!(
            "[computemgtd]\ncluster_name = orchard\nregion = eu-central-1\nproxy = NONE\n\
             clustermgtd_heartbeat_file_path = {root}/heartbeat\ndynamodb_table = parallelcluster-slurm-orchard\n\
             slurm_nodename_file = {root}/node-name\n[slurm_ec2]\nmetadata_endpoint = {imds}\nspot_poll = 1\nlog_dir = {root}/log\n"
        ),
    );
    node.imds.set("spot/instance-action", NOTICE);
    let mut command = node.command("");
    command.env_remove("SLURM_EC2_CONFIG").env("CONFIG_FILE", node.site.path("parallelcluster_computemgtd.conf"));
    command.env("SLURM_BINARIES_DIR", node.site.path("bin"));
    let daemon = node.start_as(command);
    node.until("both updates", || node.site.updates().len() >= 2);
    assert!(node.site.updates()[0].starts_with(&format!("update nodename={NODE} state=drain")));
    assert_eq!(daemon.end(), Some(0));
    let log = fs::read_to_string(node.site.path("log/computemgtd")).unwrap();
    let line = log.lines().find(|line| line.contains("EC2 takes this instance away")).unwrap();
    assert!(line.contains(" - WARNING - "), "{line}");
}
