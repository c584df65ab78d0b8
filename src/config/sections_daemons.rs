//! The keys of `[clustermgtd]`, `[fleet]` and `[computemgtd]`: tables in, the daemons' settings out, every mistake noted. Defaults that
//! ParallelCluster has too are the package's (aws-facts B.5 to B.7); on its machines some paths are usual ones of its own.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::checks::{Complaint, check_table, check_url};
use super::reader::{NONE, Section};
use super::sections::{HOUR, INSTANT, SECOND, size};
use super::settings::{
    ClustermgtdSettings, ComputemgtdSettings, FleetSettings, FleetStore, ParallelCluster, PublishSettings, StoreKind,
};
use crate::model::policy::Upkeep;

pub(super) const DAY: Duration = Duration::from_hours(24);
/// A daemon that looks less often is no help to a job that waits.
pub(super) const MAX_LOOP: Duration = HOUR;
/// More passes without an instance are a day and longer.
pub(super) const MAX_MISSING: u64 = 1000;
/// Consoles in one pass, a call each.
pub(super) const MAX_CONSOLES: u64 = 1000;
/// More failures than nodes that anybody has.
pub(super) const MAX_FAILURES: u64 = 1_000_000;
/// Longer than a week is a mistake: what is to stay off is taken out.
pub(super) const MAX_SHORTAGE: Duration = Duration::from_hours(7 * 24);
/// The package's rest after a shortage (aws-facts B.5, `insufficient_capacity_timeout`).
pub(super) const SHORTAGE: Duration = Duration::from_mins(10);

/// What the three sections say.
pub(super) struct Daemons {
    pub(super) clustermgtd: ClustermgtdSettings,
    pub(super) fleet: FleetSettings,
    pub(super) computemgtd: ComputemgtdSettings,
}

/// What holds where nothing is said. On ParallelCluster's ground the heartbeat is the one that its programs read, the status is in its
/// table, and a compute node has its paths.
pub(super) fn defaults(cluster: &str, parallelcluster: Option<&ParallelCluster>) -> Daemons {
    let heartbeat = parallelcluster.map(|parallelcluster| parallelcluster.heartbeat.clone());
    let either = |theirs: &str, ours: &str| PathBuf::from(if parallelcluster.is_some() { theirs } else { ours });
    Daemons {
        clustermgtd: ClustermgtdSettings {
            loop_time: Duration::from_secs(60),
            heartbeat: heartbeat.clone(),
            show_timeout: Duration::from_secs(60),
            partitions: Vec::new(),
            upkeep: upkeep(parallelcluster.map(|_| SHORTAGE)),
        },
        fleet: FleetSettings {
            store: match parallelcluster {
                Some(_) => FleetStore::Table { table: status_table(cluster) },
                None => FleetStore::File,
            },
            poll: Duration::from_secs(5),
            timeout: Duration::from_mins(10),
            status_file: None,
        },
        computemgtd: ComputemgtdSettings {
            loop_time: Duration::from_secs(60),
            heartbeat,
            heartbeat_timeout: Duration::from_mins(10),
            disabled: false,
            node_name_file: either("/etc/parallelcluster/slurm_plugin/slurm_nodename", "/etc/slurm-ec2/node-name"),
            // The one that ParallelCluster's sudo rules name (aws-facts B.1).
            shutdown: either("/usr/sbin/shutdown", "/sbin/shutdown"),
            metadata_endpoint: None,
            spot_poll: Duration::from_secs(5),
            spot_hook: None,
            drain_on_rebalance: false,
            node_name_timeout: Duration::from_mins(5),
            shared_mapping: None,
        },
    }
}

fn upkeep(shortage_timeout: Option<Duration>) -> Upkeep {
    Upkeep {
        disabled: false,
        terminate_drain_nodes: true,
        terminate_down_nodes: true,
        orphan_timeout: Duration::from_mins(5),
        missing_grace: Duration::from_mins(2),
        missing_max_count: 0,
        replacement_timeout: Duration::from_mins(30),
        check_instances: true,
        check_events: true,
        check_timeout: Duration::from_mins(3),
        check_grace: Duration::from_mins(3),
        protected_count: Some(10),
        shortage_timeout,
        manage_blocks: true,
        consoles: true,
        consoles_most: Some(1),
        console_wait: Duration::from_mins(5),
    }
}

/// ParallelCluster's table of statuses (aws-facts B.13).
pub(super) fn status_table(cluster: &str) -> String {
    format!("parallelcluster-{cluster}")
}

/// The three sections of the file's top. `tables` are those that other sections name.
pub(super) fn read(
    root: &Section<'_, '_>,
    cluster: &str,
    parallelcluster: Option<&ParallelCluster>,
    tables: (&StoreKind, &PublishSettings),
) -> Daemons {
    let base = defaults(cluster, parallelcluster);
    let clustermgtd = clustermgtd(&root.table("clustermgtd"), &base.clustermgtd);
    // Where the one writes, the other reads.
    let read = ComputemgtdSettings { heartbeat: clustermgtd.heartbeat.clone(), ..base.computemgtd };
    Daemons {
        fleet: fleet(&root.table("fleet"), &base.fleet, tables),
        computemgtd: computemgtd(&root.table("computemgtd"), &read),
        clustermgtd,
    }
}

fn clustermgtd(section: &Section<'_, '_>, base: &ClustermgtdSettings) -> ClustermgtdSettings {
    let example = "\"/opt/slurm/shared/clustermgtd-heartbeat\"";
    let settings = ClustermgtdSettings {
        loop_time: section.duration("loop_time", base.loop_time, SECOND..=MAX_LOOP),
        heartbeat: section.absolute_path("heartbeat", None, example).or_else(|| base.heartbeat.clone()),
        show_timeout: section.duration("show_timeout", base.show_timeout, INSTANT..=600 * SECOND),
        partitions: section.texts("partitions", "\"compute\"", check_partition),
        upkeep: read_upkeep(section, &base.upkeep),
    };
    section.finish();
    settings
}

fn read_upkeep(section: &Section<'_, '_>, base: &Upkeep) -> Upkeep {
    let time = |key, base, range: RangeInclusive<Duration>| section.duration(key, base, range);
    Upkeep {
        disabled: section.boolean("disabled", base.disabled),
        terminate_drain_nodes: section.boolean("terminate_drain_nodes", base.terminate_drain_nodes),
        terminate_down_nodes: section.boolean("terminate_down_nodes", base.terminate_down_nodes),
        orphan_timeout: time("orphan_timeout", base.orphan_timeout, SECOND..=DAY),
        missing_grace: time("missing_grace", base.missing_grace, Duration::ZERO..=HOUR),
        missing_max_count: u32::try_from(section.integer(
            "missing_max_count",
            u64::from(base.missing_max_count),
            0..=MAX_MISSING,
        ))
        .unwrap_or(u32::MAX),
        replacement_timeout: time("replacement_timeout", base.replacement_timeout, SECOND..=DAY),
        check_instances: section.boolean("check_instances", base.check_instances),
        check_events: section.boolean("check_events", base.check_events),
        check_timeout: time("check_timeout", base.check_timeout, Duration::ZERO..=DAY),
        check_grace: time("check_grace", base.check_grace, Duration::ZERO..=DAY),
        protected_count: unless_zero(section, "protected_failure_count", base.protected_count, MAX_FAILURES),
        shortage_timeout: shortage_timeout(section, base.shortage_timeout),
        manage_blocks: section.boolean("manage_blocks", base.manage_blocks),
        consoles: section.boolean("consoles", base.consoles),
        consoles_most: unless_zero(section, "consoles_most", base.consoles_most.map(|most| most as u64), MAX_CONSOLES).map(size),
        console_wait: time("console_wait", base.console_wait, Duration::ZERO..=HOUR),
    }
}

/// A number of which 0 means that there is none.
fn unless_zero(section: &Section<'_, '_>, key: &'static str, base: Option<u64>, most: u64) -> Option<u64> {
    Some(section.integer(key, base.unwrap_or_default(), 0..=most)).filter(|number| *number > 0)
}

/// Absent it depends on the ground: the groups' own times, or ParallelCluster's one.
fn shortage_timeout(section: &Section<'_, '_>, base: Option<Duration>) -> Option<Duration> {
    const KEY: &str = "shortage_timeout";
    let time = section.duration(KEY, SHORTAGE, Duration::ZERO..=MAX_SHORTAGE);
    section.value(KEY, NONE);
    if section.key_span(KEY).is_some() { Some(time) } else { base }
}

fn fleet(section: &Section<'_, '_>, base: &FleetSettings, tables: (&StoreKind, &PublishSettings)) -> FleetSettings {
    let table = section.checked("table", NONE, "\"parallelcluster-hpc\"", check_table);
    let settings = FleetSettings {
        store: table.map_or_else(|| base.store.clone(), |table| FleetStore::Table { table }),
        poll: section.duration("poll", base.poll, SECOND..=HOUR),
        timeout: section.duration("timeout", base.timeout, SECOND..=DAY),
        status_file: section.absolute_path("status_file", None, "\"/opt/parallelcluster/shared/computefleet-status.json\""),
    };
    three_tables(section, &settings.store, tables);
    section.finish();
    settings
}

/// Notes a status table that is another section's: what is written there has other keys and other readers.
fn three_tables(section: &Section<'_, '_>, store: &FleetStore, (state, publish): (&StoreKind, &PublishSettings)) {
    let (FleetStore::Table { table }, Some(span)) = (store, section.value_span("table")) else { return };
    let of_state = matches!(state, StoreKind::DynamoDb { table: mapping } if mapping == table);
    let of_nodes = publish.node_table.as_ref().is_some_and(|nodes| nodes.table == *table);
    if let Some(other) = of_state.then_some("[state]").or(of_nodes.then_some("[node_table]")) {
        let message = format!("table is the same as in {other}, which holds nodes");
        section.mistake("table", span, message, "name the table of the fleet's status, such as \"parallelcluster-hpc\"");
    }
}

fn computemgtd(section: &Section<'_, '_>, base: &ComputemgtdSettings) -> ComputemgtdSettings {
    let path = |key, base: &Path, example| {
        let shown = base.to_str();
        section.absolute_path(key, shown, example).unwrap_or_else(|| base.to_owned())
    };
    let heartbeat = section.absolute_path("heartbeat", None, "\"/opt/slurm/shared/clustermgtd-heartbeat\"");
    section.value("heartbeat", "as `[clustermgtd]`");
    let settings = ComputemgtdSettings {
        loop_time: section.duration("loop_time", base.loop_time, SECOND..=MAX_LOOP),
        heartbeat: heartbeat.or_else(|| base.heartbeat.clone()),
        heartbeat_timeout: section.duration("heartbeat_timeout", base.heartbeat_timeout, SECOND..=DAY),
        disabled: section.boolean("disabled", base.disabled),
        node_name_file: path("node_name_file", &base.node_name_file, "\"/etc/slurm-ec2/node-name\""),
        shutdown: path("shutdown", &base.shutdown, "\"/sbin/shutdown\""),
        metadata_endpoint: section.checked("metadata_endpoint", NONE, "\"http://127.0.0.1:1338\"", check_url),
        spot_poll: section.duration("spot_poll", base.spot_poll, SECOND..=60 * SECOND),
        spot_hook: section.absolute_path("spot_hook", None, "\"/etc/slurm-ec2/spot-hook\""),
        drain_on_rebalance: section.boolean("drain_on_rebalance", base.drain_on_rebalance),
        node_name_timeout: section.duration("node_name_timeout", base.node_name_timeout, SECOND..=HOUR),
        shared_mapping: section.absolute_path("shared_mapping", None, "\"/opt/slurm/shared/mapping.json\""),
    };
    section.finish();
    settings
}

/// The name of a partition, as slurm.conf has it.
fn check_partition(text: &str) -> Result<(), Complaint> {
    if text.contains(|c: char| c.is_whitespace() || ",=\"'[]".contains(c)) {
        return Err(("is no partition's name".to_owned(), "give each partition a string of its own".to_owned()));
    }
    match text.to_ascii_uppercase().as_str() {
        "DEFAULT" | "ALL" => Err(("names no partition of slurm.conf".to_owned(), "write its PartitionName".to_owned())),
        _ => Ok(()),
    }
}
