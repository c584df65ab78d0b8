//! The keys of `[slurm_resume]`, of which other sections have many too, of `[slurm_suspend]` and of our `[slurm_ec2]`: typed keys in,
//! [`Settings`] out. Defaults are the package's (aws-facts B.3, B.4); what it has no key for stays as it comes.

use std::path::PathBuf;
use std::time::Duration;

use super::keys::Keys;
use crate::config::checks::{
    check_domain, check_host, check_instance_id, check_ip, check_name, check_region, check_table, check_url, check_zone,
};
use crate::config::sections_launch::built_in_policy;
use crate::config::settings::{Dns, LogFormat, NodeAddress, NodeTable, ParallelCluster, PublishSettings, Settings, StoreKind};
use crate::config::words::choices;
use crate::model::policy::{Daemon, LaunchPolicy, ScaleBy, Strategy};

/// Instances or nodes in one call or step; a fleet has 10,000 at most (aws-facts A.2).
const MAX_BATCH: u64 = 10_000;
/// TerminateInstances takes 1000 ids at most (aws-facts A.4).
const MAX_TERMINATE: u64 = 1000;
/// A run is over long before.
const DAY: u64 = 86_400;
/// Retries beyond this outlast the run.
const MAX_RETRIES: u64 = 19;
/// The package's clustermgtd terminates instances that belong to no node 300 s after their launch (aws-facts B.5,
/// `orphaned_instance_timeout`), so a run must be over before.
const MAX_DEADLINE: u64 = 240;
/// Of the package's retries the most that any of its services gets: Route 53's (aws-facts B.3).
const LEAST_RETRIES: u64 = 4;

/// What holds on every ParallelCluster head node, also when its file cannot be read.
pub(crate) fn without_file(settings: &mut Settings) {
    settings.slurm.bin_dir = PathBuf::from("/opt/slurm/bin");
    settings.state_dir = PathBuf::from("/var/lib/slurm-ec2");
    settings.log.dir = PathBuf::from("/var/log/parallelcluster");
    settings.log.format = LogFormat::ParallelCluster;
    settings.run.daemon = Daemon::Yes;
    settings.run.requeue_now = false;
    settings.run.deadline = settings.run.deadline.min(Duration::from_secs(MAX_DEADLINE));
}

/// What `[slurm_resume]` and `[clustermgtd]` have in common, but heartbeat, logging and JSON files.
pub(crate) fn common(keys: &Keys<'_>, settings: &mut Settings) {
    settings.region = keys.required("region", "eu-west-1", check_region);
    settings.cluster = keys.required("cluster_name", "hpc", |text| check_name(text, 128));
    settings.aws.proxy = proxy(keys);
    settings.aws.attempts = attempts(keys, 1, &mut settings.warnings);
    settings.publish = publish(keys, &mut settings.slurm.node_address, &mut settings.warnings);
    let warnings = &mut settings.warnings;
    // 0: the package asks once.
    let timeout = keys.capped("instance_info_retrieval_timeout", 90, 0..=DAY, "a run is over before", warnings).max(1);
    settings.run.address_timeout = Duration::from_secs(timeout);
    settings.run.terminate_batch_size = terminate_batch_size(keys, warnings);
}

/// What `[slurm_resume]` alone has.
pub(crate) fn scaling(keys: &Keys<'_>, settings: &mut Settings) {
    settings.run.scale_by = if keys.boolean("job_level_scaling", true) { ScaleBy::Job } else { ScaleBy::Call };
    settings.run.strategy = strategy(keys, &mut settings.warnings);
}

/// Tries of one API call; `retries` is the program's default.
pub(super) fn attempts(keys: &Keys<'_>, retries: u64, warnings: &mut Vec<String>) -> u32 {
    let retries = keys.capped("boto3_retry", retries, 0..=MAX_RETRIES, "more would outlast the run", warnings).max(LEAST_RETRIES);
    u32::try_from(retries + 1).unwrap_or(u32::MAX)
}

pub(super) fn terminate_batch_size(keys: &Keys<'_>, warnings: &mut Vec<String>) -> usize {
    let why = "TerminateInstances takes no more at once";
    size(keys.capped("terminate_max_batch_size", 1000, 1..=MAX_TERMINATE, why, warnings))
}

/// The launch policy of every compute resource.
pub(crate) fn launch_policy(keys: &Keys<'_>, settings: &mut Settings) -> LaunchPolicy {
    let why = "CreateFleet takes no more at once";
    LaunchPolicy {
        strategy: settings.run.strategy,
        batch_size: size(keys.capped("launch_max_batch_size", 500, 1..=MAX_BATCH, why, &mut settings.warnings)),
        ..built_in_policy()
    }
}

/// The heartbeat of `[slurm_suspend]` or `[slurm_resume]`; the head node's id is in the latter.
pub(crate) fn heartbeat(keys: &Keys<'_>, resume: &Keys<'_>, warnings: &mut Vec<String>) -> ParallelCluster {
    let example = "/opt/slurm/etc/pcluster/.slurm_plugin/clustermgtd_heartbeat";
    ParallelCluster {
        heartbeat: PathBuf::from(keys.required("clustermgtd_heartbeat_file_path", example, super::keys::absolute)),
        heartbeat_timeout: Duration::from_secs(keys.capped("clustermgtd_timeout", 300, 0..=DAY, "that is a day", warnings)),
        instance_id: resume.text("instance_id", check_instance_id).unwrap_or_else(|| "unknown".to_owned()),
    }
}

/// Its keys.
const OURS: [&str; 8] =
    ["state_dir", "log_dir", "endpoint_url", "ca_bundle", "request_bucket", "mapping_store", "mapping_table", "deadline"];

/// `[slurm_ec2]` but `log_dir` and the keys `more`, which the program has besides.
pub(crate) fn ours(keys: &Keys<'_>, more: &[&str], settings: &mut Settings) {
    keys.refuse_others(&[&OURS, more].concat());
    settings.aws.ca_bundle = keys.path("ca_bundle");
    if let Some(dir) = keys.path("state_dir") {
        settings.state_dir = dir;
    }
    if let Some(url) = keys.text("endpoint_url", check_url) {
        settings.aws.endpoint_url = Some(url.clone());
        settings.aws.dynamodb_endpoint_url = Some(url.clone());
        settings.aws.route53_endpoint_url = Some(url);
    }
    if !keys.boolean("request_bucket", true) {
        settings.run.bucket = None;
    }
    settings.run.deadline = keys.seconds("deadline", settings.run.deadline.as_secs(), 1..=MAX_DEADLINE);
    store(keys, settings);
}

fn store(keys: &Keys<'_>, settings: &mut Settings) {
    let check = |text: &str| match text {
        "file" | "dynamodb" => Ok(()),
        other => Err((format!("is {other:?}"), format!("write {}", choices(["file", "dynamodb"])))),
    };
    let in_table = keys.text("mapping_store", check).is_some_and(|word| word == "dynamodb");
    if !in_table {
        if keys.is_set("mapping_table") {
            let help = "write mapping_store = dynamodb, or drop the line";
            keys.mistake("mapping_table", keys.place("mapping_table"), "is for mapping_store = dynamodb", help);
        }
        return;
    }
    let table = keys.required("mapping_table", "slurm-ec2-mapping", check_table);
    if settings.publish.node_table.as_ref().is_some_and(|nodes| nodes.table == table) {
        let message = "is the same as dynamodb_table: its items would be overwritten";
        keys.mistake("mapping_table", keys.place("mapping_table"), message, "make a table of its own for the mapping");
    }
    settings.store = StoreKind::DynamoDb { table };
}

/// `NONE`, or a proxy with or without `http://`, as botocore takes it.
pub(super) fn proxy(keys: &Keys<'_>) -> Option<String> {
    let whole =
        |text: &str| if text.contains("://") { text.to_owned() } else { format!("http://{}", text.trim_start_matches("//")) };
    let is_none = |text: &str| text.eq_ignore_ascii_case("none");
    let check = |text: &str| if is_none(text) { Ok(()) } else { check_url(&whole(text)) };
    keys.text("proxy", check).filter(|text| !is_none(text)).map(|text| whole(&text))
}

/// Anything unknown counts as all-or-nothing, as in the package.
fn strategy(keys: &Keys<'_>, warnings: &mut Vec<String>) -> Strategy {
    let Some(word) = keys.text("scaling_strategy", |_| Ok(())) else { return Strategy::AllOrNothing };
    match word.to_lowercase().as_str() {
        "all-or-nothing" => Strategy::AllOrNothing,
        "greedy-all-or-nothing" => Strategy::GreedyAllOrNothing,
        "best-effort" => Strategy::BestEffort,
        _ => {
            let known = choices(["all-or-nothing", "greedy-all-or-nothing", "best-effort"]);
            warnings.push(format!("scaling_strategy {word:?} is unknown and counts as all-or-nothing; write {known}"));
            Strategy::AllOrNothing
        }
    }
}

fn publish(keys: &Keys<'_>, address: &mut NodeAddress, warnings: &mut Vec<String>) -> PublishSettings {
    let table = NodeTable {
        table: keys.required("dynamodb_table", "parallelcluster-slurm-hpc", check_table),
        head_node_private_ip: keys.required("head_node_private_ip", "10.0.0.10", check_ip),
        head_node_hostname: keys.required("head_node_hostname", "ip-10-0-0-10.eu-west-1.compute.internal", check_host),
    };
    let zone = keys.text("hosted_zone", |text| check_zone(bare(text)));
    let domain = keys.text("dns_domain", check_domain);
    let (has_zone, has_domain) = (keys.is_set("hosted_zone"), keys.is_set("dns_domain"));
    if has_zone != has_domain {
        let (has, lacks) = if has_zone { ("hosted_zone", "dns_domain") } else { ("dns_domain", "hosted_zone") };
        warnings.push(format!("{has} is set and {lacks} is not, so no DNS records are written"));
    }
    let hostname = keys.boolean("use_private_hostname", false);
    let why = "more would be told in one step";
    let batch_size = size(keys.capped("assign_node_max_batch_size", 500, 1..=MAX_BATCH, why, warnings));
    if !keys.boolean("update_node_address", true) {
        *address = NodeAddress::None;
        return PublishSettings { batch_size, node_table: None, dns: None, hostname: false };
    }
    *address = NodeAddress::Scontrol;
    let dns = zone.zip(domain).map(|(zone, domain)| Dns { hosted_zone: bare(&zone).to_owned(), domain });
    PublishSettings { batch_size, node_table: Some(table), dns, hostname }
}

/// The SDK of the package takes a zone's id with its path as well.
fn bare(zone: &str) -> &str {
    zone.strip_prefix("/hostedzone/").unwrap_or(zone)
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
