//! The daemons' part of a written configuration: [`Settings`] in; `[clustermgtd]`, `[fleet]` and `[computemgtd]` out, as far as they
//! differ from what holds on that ground anyway, which `sections_daemons.rs` is asked for.

use std::path::Path;

use super::render::{File, Part, duration, number, path};
use super::sections_daemons::{Daemons, defaults};
use super::settings::{ClustermgtdSettings, ComputemgtdSettings, FleetSettings, FleetStore, Settings};
use crate::model::policy::Upkeep;

pub(super) fn daemons(file: &mut File, settings: &Settings) {
    let base = defaults(&settings.cluster, settings.parallelcluster.as_ref());
    let Daemons { clustermgtd: daemon, fleet: status, computemgtd: compute } = &base;
    file.part("[clustermgtd]", "How the cloud and the scheduler are kept in agreement", |part| {
        clustermgtd(part, &settings.clustermgtd, daemon);
    });
    file.part("[fleet]", "How the compute fleet is started and stopped", |part| fleet(part, &settings.fleet, status));
    let compute = ComputemgtdSettings { heartbeat: settings.clustermgtd.heartbeat.clone(), ..compute.clone() };
    file.part("[computemgtd]", "What a compute node looks after", |part| computemgtd(part, &settings.computemgtd, &compute));
}

fn clustermgtd(part: &mut Part, daemon: &ClustermgtdSettings, base: &ClustermgtdSettings) {
    part.differing("loop_time", daemon.loop_time, base.loop_time, duration);
    named(part, "heartbeat", daemon.heartbeat.as_deref(), base.heartbeat.as_deref());
    part.differing("show_timeout", daemon.show_timeout, base.show_timeout, duration);
    if !daemon.partitions.is_empty() {
        part.set("partitions", daemon.partitions.clone());
    }
    upkeep(part, &daemon.upkeep, &base.upkeep);
}

fn upkeep(part: &mut Part, upkeep: &Upkeep, base: &Upkeep) {
    for (key, value, base) in [
        ("disabled", upkeep.disabled, base.disabled),
        ("terminate_drain_nodes", upkeep.terminate_drain_nodes, base.terminate_drain_nodes),
        ("terminate_down_nodes", upkeep.terminate_down_nodes, base.terminate_down_nodes),
        ("check_instances", upkeep.check_instances, base.check_instances),
        ("check_events", upkeep.check_events, base.check_events),
        ("manage_blocks", upkeep.manage_blocks, base.manage_blocks),
        ("consoles", upkeep.consoles, base.consoles),
    ] {
        part.differing(key, value, base, Into::into);
    }
    for (key, value, base) in [
        ("orphan_timeout", upkeep.orphan_timeout, base.orphan_timeout),
        ("missing_grace", upkeep.missing_grace, base.missing_grace),
        ("replacement_timeout", upkeep.replacement_timeout, base.replacement_timeout),
        ("check_timeout", upkeep.check_timeout, base.check_timeout),
        ("check_grace", upkeep.check_grace, base.check_grace),
        ("console_wait", upkeep.console_wait, base.console_wait),
    ] {
        part.differing(key, value, base, duration);
    }
    if upkeep.shortage_timeout != base.shortage_timeout {
        part.some("shortage_timeout", upkeep.shortage_timeout.map(duration));
    }
    let count = |count: u32| i64::from(count).into();
    part.differing("missing_max_count", upkeep.missing_max_count, base.missing_max_count, count);
    // 0 means none.
    let failures = |count: Option<u64>| i64::try_from(count.unwrap_or_default()).unwrap_or(i64::MAX).into();
    part.differing("protected_failure_count", upkeep.protected_count, base.protected_count, failures);
    part.differing("consoles_most", upkeep.consoles_most, base.consoles_most, |most| number(most.unwrap_or_default()));
}

fn fleet(part: &mut Part, fleet: &FleetSettings, base: &FleetSettings) {
    if let FleetStore::Table { table } = &fleet.store
        && fleet.store != base.store
    {
        part.set("table", table.as_str());
    }
    part.differing("poll", fleet.poll, base.poll, duration);
    part.differing("timeout", fleet.timeout, base.timeout, duration);
    named(part, "status_file", fleet.status_file.as_deref(), base.status_file.as_deref());
}

fn computemgtd(part: &mut Part, daemon: &ComputemgtdSettings, base: &ComputemgtdSettings) {
    part.differing("loop_time", daemon.loop_time, base.loop_time, duration);
    named(part, "heartbeat", daemon.heartbeat.as_deref(), base.heartbeat.as_deref());
    part.differing("heartbeat_timeout", daemon.heartbeat_timeout, base.heartbeat_timeout, duration);
    part.differing("disabled", daemon.disabled, base.disabled, Into::into);
    part.differing("node_name_file", daemon.node_name_file.as_path(), base.node_name_file.as_path(), path);
    part.differing("shutdown", daemon.shutdown.as_path(), base.shutdown.as_path(), path);
    part.some("metadata_endpoint", daemon.metadata_endpoint.as_deref());
    part.differing("spot_poll", daemon.spot_poll, base.spot_poll, duration);
    named(part, "spot_hook", daemon.spot_hook.as_deref(), base.spot_hook.as_deref());
    part.differing("drain_on_rebalance", daemon.drain_on_rebalance, base.drain_on_rebalance, Into::into);
    part.differing("node_name_timeout", daemon.node_name_timeout, base.node_name_timeout, duration);
    named(part, "shared_mapping", daemon.shared_mapping.as_deref(), base.shared_mapping.as_deref());
}

/// A path that may be absent; one that is and should not be cannot be said.
fn named(part: &mut Part, key: &str, value: Option<&Path>, base: Option<&Path>) {
    if value != base {
        part.some(key, value.map(path));
    }
}
