//! Who hears of a node's instance, and ParallelCluster's ground: the sections `[publish]`, `[node_table]`, `[dns]` and
//! `[parallelcluster]` in, their settings out, every mistake noted.

use super::checks::{Complaint, check_domain, check_host, check_instance_id, check_ip, check_table, check_zone};
use super::reader::{REQUIRED, Section};
use super::sections::{HOUR, SECOND, required, size};
use super::settings::{Dns, NodeTable, ParallelCluster, PublishSettings};

pub(super) fn publish(root: &Section<'_, '_>) -> PublishSettings {
    let section = root.table("publish");
    let batch_size = size(section.integer("batch_size", 10_000, 1..=100_000));
    let hostname = section.boolean("hostname", false);
    section.finish();
    PublishSettings { batch_size, node_table: node_table(&root.table("node_table")), dns: dns(&root.table("dns")), hostname }
}

fn node_table(section: &Section<'_, '_>) -> Option<NodeTable> {
    let table = NodeTable {
        table: when_written(section, "table", "\"parallelcluster-slurm-hpc\"", check_table),
        head_node_private_ip: when_written(section, "head_node_private_ip", "\"10.0.0.10\"", check_ip),
        head_node_hostname: when_written(
            section,
            "head_node_hostname",
            "\"ip-10-0-0-10.eu-west-1.compute.internal\"",
            check_host,
        ),
    };
    section.finish();
    section.is_written().then_some(table)
}

fn dns(section: &Section<'_, '_>) -> Option<Dns> {
    let dns = Dns {
        hosted_zone: when_written(section, "hosted_zone", "\"Z0123456789ABCDEFGHIJ\"", check_zone),
        domain: when_written(section, "domain", "\"hpc.pcluster.\"", check_domain),
    };
    section.finish();
    section.is_written().then_some(dns)
}

pub(super) fn parallelcluster(section: &Section<'_, '_>) -> Option<ParallelCluster> {
    const KEY: &str = "heartbeat";
    let example = "\"/opt/slurm/etc/pcluster/.slurm_plugin/clustermgtd_heartbeat\"";
    let heartbeat = section.absolute_path(KEY, None, example);
    section.value(KEY, REQUIRED);
    if heartbeat.is_none() && section.is_written() && !section.is_bad(KEY) {
        section.require(KEY, format!("add heartbeat = {example}"));
    }
    let settings = ParallelCluster {
        heartbeat: heartbeat.unwrap_or_default(),
        heartbeat_timeout: section.duration("heartbeat_timeout", 300 * SECOND, SECOND..=24 * HOUR),
        instance_id: section
            .checked("instance_id", "\"unknown\"", "\"i-0123456789abcdef0\"", check_instance_id)
            .unwrap_or_else(|| "unknown".to_owned()),
    };
    section.finish();
    section.is_written().then_some(settings)
}

/// A required string of a section that is off unless it is written.
fn when_written(
    section: &Section<'_, '_>,
    key: &'static str,
    example: &str,
    check: impl Fn(&str) -> Result<(), Complaint>,
) -> String {
    if section.is_written() {
        required(section, key, example, check)
    } else {
        section.value(key, REQUIRED);
        String::new()
    }
}
