//! The keys of `[clustermgtd]`, `[clusterstatusmgtd]`, `[slurm_fleet_status_manager]` and `[computemgtd]` that `[slurm_resume]` has not:
//! typed keys in, [`Settings`] out. Defaults are the package's (aws-facts B.5 to B.7); what it has no key for stays as it comes.
//!
//! What is longer or more than can be of use is cut with a warning, since the package takes it. `worker_pool_size` and
//! `worker_pool_max_backlog` are about its own threads and not read.

use std::path::PathBuf;
use std::time::Duration;

use super::keys::{Keys, absolute};
use super::programs::FLEET_MANAGER;
use super::sections;
use crate::config::checks::{check_instance_id, check_name, check_region, check_table, check_url};
use crate::config::sections_daemons::{DAY, MAX_CONSOLES, MAX_FAILURES, MAX_LOOP, MAX_MISSING, MAX_SHORTAGE, SHORTAGE};
use crate::config::settings::{FleetStore, NodeIndex, ParallelCluster, Settings};
use crate::model::policy::Upkeep;

/// Retries of the two programs that start and stop the fleet.
const RETRIES: u64 = 5;
/// The package's clustermgtd has no limit of its own for the heartbeat: this is slurm_resume's.
const HEARTBEAT_LIMIT: Duration = Duration::from_secs(300);
const HEARTBEAT: &str = "/opt/slurm/etc/pcluster/.slurm_plugin/clustermgtd_heartbeat";

/// `[clustermgtd]`: the heartbeat that it writes.
pub(super) fn heartbeat(keys: &Keys<'_>) -> ParallelCluster {
    ParallelCluster {
        heartbeat: PathBuf::from(keys.required("heartbeat_file_path", HEARTBEAT, absolute)),
        heartbeat_timeout: HEARTBEAT_LIMIT,
        instance_id: keys.text("instance_id", check_instance_id).unwrap_or_else(|| "unknown".to_owned()),
    }
}

/// `[clustermgtd]` but its heartbeat and what it has of `[slurm_resume]`.
pub(super) fn clustermgtd(keys: &Keys<'_>, settings: &mut Settings) {
    let warnings = &mut settings.warnings;
    settings.clustermgtd.loop_time = loop_time(keys, settings.clustermgtd.loop_time, warnings);
    let upkeep = &mut settings.clustermgtd.upkeep;
    *upkeep = Upkeep {
        disabled: keys.boolean("disable_all_cluster_management", upkeep.disabled),
        terminate_drain_nodes: keys.boolean("terminate_drain_nodes", upkeep.terminate_drain_nodes),
        terminate_down_nodes: keys.boolean("terminate_down_nodes", upkeep.terminate_down_nodes),
        orphan_timeout: time(keys, "orphaned_instance_timeout", upkeep.orphan_timeout, warnings),
        missing_grace: upkeep.missing_grace,
        missing_max_count: missing(keys, upkeep.missing_max_count, warnings),
        replacement_timeout: time(keys, "node_replacement_timeout", upkeep.replacement_timeout, warnings),
        check_timeout: time(keys, "health_check_timeout", upkeep.check_timeout, warnings),
        check_grace: time(keys, "health_check_timeout_after_slurmdstarttime", upkeep.check_grace, warnings),
        protected_count: count(
            keys,
            "protected_failure_count",
            upkeep.protected_count.unwrap_or_default(),
            MAX_FAILURES,
            warnings,
        ),
        shortage_timeout: Some(shortage(keys, warnings)),
        manage_blocks: !keys.boolean("disable_capacity_blocks_management", !upkeep.manage_blocks),
        consoles: keys.boolean("compute_console_logging_enabled", upkeep.consoles),
        consoles_most: consoles_most(keys, upkeep.consoles_most, warnings),
        console_wait: time(keys, "compute_console_wait_time", upkeep.console_wait, warnings),
        ..*upkeep
    };
    let (no_instances, no_events) =
        (keys.boolean("disable_ec2_health_check", false), keys.boolean("disable_scheduled_event_health_check", false));
    let none = keys.boolean("disable_all_health_checks", no_instances && no_events);
    (upkeep.check_instances, upkeep.check_events) = (!(none || no_instances), !(none || no_events));
}

fn loop_time(keys: &Keys<'_>, base: Duration, warnings: &mut Vec<String>) -> Duration {
    let why = "a job would wait for as long";
    Duration::from_secs(keys.capped("loop_time", base.as_secs(), 1..=MAX_LOOP.as_secs(), why, warnings))
}

/// Whole seconds, from 0.
fn time(keys: &Keys<'_>, key: &str, base: Duration, warnings: &mut Vec<String>) -> Duration {
    Duration::from_secs(keys.capped(key, base.as_secs(), 0..=DAY.as_secs(), "that is a day", warnings))
}

fn missing(keys: &Keys<'_>, base: u32, warnings: &mut Vec<String>) -> u32 {
    let passes = keys.capped("ec2_instance_missing_max_count", base.into(), 0..=MAX_MISSING, "that is most of a day", warnings);
    u32::try_from(passes).unwrap_or(u32::MAX)
}

/// A number of which 0 and less mean that there is none.
fn count(keys: &Keys<'_>, key: &str, base: u64, most: u64, warnings: &mut Vec<String>) -> Option<u64> {
    if keys.is_negative(key) {
        return None;
    }
    Some(keys.capped(key, base, 0..=most, "it is never reached", warnings)).filter(|number| *number > 0)
}

fn consoles_most(keys: &Keys<'_>, base: Option<usize>, warnings: &mut Vec<String>) -> Option<usize> {
    let base = u64::try_from(base.unwrap_or_default()).unwrap_or_default();
    let most = count(keys, "compute_console_logging_max_sample_size", base, MAX_CONSOLES, warnings);
    most.map(|most| usize::try_from(most).unwrap_or(usize::MAX))
}

/// Of whole or broken seconds 0 and less mean that shortages are not handled apart.
fn shortage(keys: &Keys<'_>, warnings: &mut Vec<String>) -> Duration {
    const KEY: &str = "insufficient_capacity_timeout";
    let seconds = keys.float(KEY, SHORTAGE.as_secs_f64());
    let most = MAX_SHORTAGE.as_secs_f64();
    if seconds > most {
        warnings.push(format!("[{}] {KEY} {seconds} is cut to {most}: that is a week", keys.name()));
    }
    Duration::from_secs_f64(seconds.clamp(0.0, most))
}

/// What the two programs that start and stop the fleet have in their own files; the nodes are in clustermgtd's, `main`.
pub(super) fn own(keys: &Keys<'_>, main: Option<&Keys<'_>>, settings: &mut Settings) {
    let others = std::mem::take(&mut settings.cluster);
    settings.region = keys.required("region", "eu-west-1", check_region);
    settings.cluster = keys.required("cluster_name", "hpc", |text| check_name(text, 128));
    if let Some(main) = main
        && ![&settings.cluster, &others].into_iter().any(String::is_empty)
        && others != settings.cluster
    {
        // Instances are known by it.
        let message = format!("is {:?}, but {} has {others:?}", settings.cluster, main.file().source.path.display());
        keys.mistake("cluster_name", keys.place("cluster_name"), message, "name one cluster in both files");
    }
    settings.aws.proxy = sections::proxy(keys);
    settings.aws.attempts = sections::attempts(keys, RETRIES, &mut settings.warnings);
    if keys.name() == FLEET_MANAGER {
        settings.run.terminate_batch_size = sections::terminate_batch_size(keys, &mut settings.warnings);
    }
}

/// `[clusterstatusmgtd]`; in its own file, `is_own`, the table and the path of the status must be there.
///
/// It looks each `loop_time` where that is written; else more often than the package, whose users wait a minute for a start.
pub(super) fn fleet(keys: &Keys<'_>, is_own: bool, settings: &mut Settings) {
    let (table, status_file) = ("dynamodb_table", "computefleet_status_path");
    if is_own {
        keys.required(table, "parallelcluster-hpc", |_| Ok(()));
        keys.required(status_file, "/opt/parallelcluster/shared/computefleet-status.json", |_| Ok(()));
    }
    let fleet = &mut settings.fleet;
    if let Some(table) = keys.text(table, check_table) {
        fleet.store = FleetStore::Table { table };
    }
    fleet.status_file = keys.path(status_file);
    fleet.poll = loop_time(keys, fleet.poll, &mut settings.warnings);
    let why = "that is a day";
    let minutes = keys.capped("update_event_timeout_minutes", 15, 1..=DAY.as_secs() / 60, why, &mut settings.warnings);
    fleet.timeout = Duration::from_secs(minutes * 60);
}

/// `[computemgtd]`: whose node it is.
pub(super) fn compute_node(keys: &Keys<'_>, settings: &mut Settings) {
    settings.region = keys.required("region", "eu-west-1", check_region);
    settings.cluster = keys.required("cluster_name", "hpc", |text| check_name(text, 128));
    settings.aws.proxy = sections::proxy(keys);
    // Its nodes are known by their names alone.
    settings.node_group = NodeIndex::Queues(Default::default());
}

/// `[computemgtd]`: the heartbeat that it reads.
pub(super) fn heartbeat_here(keys: &Keys<'_>, warnings: &mut Vec<String>) -> ParallelCluster {
    let limit = keys.capped("clustermgtd_timeout", 600, 0..=DAY.as_secs(), "that is a day", warnings);
    ParallelCluster {
        heartbeat: PathBuf::from(keys.required("clustermgtd_heartbeat_file_path", HEARTBEAT, absolute)),
        heartbeat_timeout: Duration::from_secs(limit),
        instance_id: "unknown".to_owned(),
    }
}

/// Keys of `[slurm_ec2]` that only a compute node has.
pub(super) const OURS_HERE: [&str; 4] = ["metadata_endpoint", "spot_hook", "drain_on_rebalance", "spot_poll"];

/// `[computemgtd]` and what `[slurm_ec2]` says of compute nodes.
pub(super) fn computemgtd(keys: &Keys<'_>, ours: &Keys<'_>, settings: &mut Settings) {
    let daemon = &mut settings.computemgtd;
    daemon.loop_time = loop_time(keys, daemon.loop_time, &mut settings.warnings);
    if let Some(parallelcluster) = &settings.parallelcluster {
        daemon.heartbeat_timeout = parallelcluster.heartbeat_timeout;
    }
    daemon.disabled = keys.boolean("disable_computemgtd_actions", daemon.disabled);
    if let Some(path) = keys.path("slurm_nodename_file") {
        daemon.node_name_file = path;
    }
    daemon.metadata_endpoint = ours.text("metadata_endpoint", check_url);
    daemon.spot_hook = ours.path("spot_hook");
    daemon.drain_on_rebalance = ours.boolean("drain_on_rebalance", daemon.drain_on_rebalance);
    daemon.spot_poll = ours.seconds("spot_poll", daemon.spot_poll.as_secs(), 1..=60);
}
