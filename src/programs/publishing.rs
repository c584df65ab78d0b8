//! Who hears of a node's instance, and in which order: what an instance needs for its boot first, Slurm last.
//!
//! Nodes go through in steps of `[publish] batch_size`, and each stage takes up the next step while the stage after it works on the
//! one before: item in the node table, DNS record, Slurm. A node that is refused at one stage, or about which nothing is known
//! there, does not reach the next; the others do.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::mpsc;

use super::context::Context;
use super::recovery;
use super::telling::{version, why};
use crate::aws::error::AwsError;
use crate::aws::written::Written;
use crate::clock;
use crate::config::settings::{NodeAddress, Settings, StoreKind};
use crate::dynamodb::DynamoDb;
use crate::error::chain;
use crate::model::failure::{ErrorClass, Failure, codes};
use crate::model::hostlist;
use crate::model::instance::Instance;
use crate::model::mapping::{NodeEntry, NodeState};
use crate::model::policy::Bucket;
use crate::route53::{self, Route53};
use crate::slurm::scontrol::Applied;
use crate::slurm::update::{self, NodeUpdate};
use crate::store::bucket::TokenBucket;

/// Steps that wait between two stages.
const STEPS_BETWEEN: usize = 1;

/// `route53-bucket.json` in the state folder: all programs of this machine keep one pace.
const DNS_BUCKET: &str = "route53-bucket";

/// Calls are spread evenly, for a burst would be refused.
const DNS_PACE: Bucket = Bucket { burst: 1, per_second: route53::CALLS_PER_SECOND };

/// What became of telling everybody; each node is in one of the lists.
#[derive(Debug, Default)]
pub(crate) struct Published {
    pub(crate) done: Vec<String>,
    /// For good: these nodes are failed, and their instances go.
    pub(crate) refused: Vec<(String, Failure)>,
    /// Not told in time; the next program repeats it.
    pub(crate) unknown: Vec<String>,
    /// The last reason for `unknown`.
    pub(crate) why_unknown: Option<String>,
}

/// Nodes with their instances, on their way through the stages.
type Step = Vec<(String, Instance)>;

/// The services that are to be told, as configured: without a table no DynamoDB, without a zone no Route 53.
pub(crate) async fn doors(settings: &Settings) -> Result<(Option<DynamoDb>, Option<Route53>), AwsError> {
    let stores = matches!(settings.store, StoreKind::DynamoDb { .. });
    let dynamodb = match stores || settings.publish.node_table.is_some() {
        true => Some(DynamoDb::connect(&settings.aws, &settings.region).await?),
        false => None,
    };
    let route53 = match &settings.publish.dns {
        Some(_) => Some(Route53::connect(&settings.aws, &settings.region).await?.paced(dns_turns(settings))),
        None => None,
    };
    Ok((dynamodb, route53))
}

/// Turns of Route 53 calls, shared with the other programs on this machine.
fn dns_turns(settings: &Settings) -> impl Fn(Duration) -> Option<Duration> + Send + Sync + 'static {
    let bucket = TokenBucket::named(&settings.state_dir, DNS_BUCKET);
    move |at_most| {
        bucket.take(&DNS_PACE, clock::now(), at_most).unwrap_or_else(|error| {
            tracing::warn!("Route 53 calls are paced within this program alone: {}", chain(&error));
            Some(Duration::ZERO)
        })
    }
}

/// Tells everybody which instance stands behind which node, and notes it in the mapping.
///
/// Where another run has tied the node to a newer instance meanwhile, that one is told again: the last word must be the right one. A run
/// that ties a node after this tells Slurm after it, too.
pub(crate) async fn publish(context: &Context, pairs: &[(String, Instance)]) -> Published {
    let published = tell_all(context, pairs).await;
    let mut since = mark_published(context, pairs, &published);
    while !since.is_empty() {
        let nodes: Vec<&String> = since.iter().map(|(node, _)| node).collect();
        tracing::info!(nodes = hostlist::compress_sorted(&nodes), "launched anew meanwhile: the newer instances are told again");
        let told = tell_all(context, &since).await;
        since = mark_published(context, &since, &told);
    }
    published
}

async fn tell_all(context: &Context, pairs: &[(String, Instance)]) -> Published {
    let (to_dns, mut at_dns) = mpsc::channel::<Step>(STEPS_BETWEEN);
    let (to_slurm, mut at_slurm) = mpsc::channel::<Step>(STEPS_BETWEEN);
    let table = async move {
        let mut all = Written::default();
        for step in pairs.chunks(context.settings.publish.batch_size.max(1)) {
            let written = tell_table(context, step).await;
            let rest = go_on(step.to_vec(), written, &mut all);
            // Closed only if the other stages are gone, which they outlive.
            let _ = to_dns.send(rest).await;
        }
        all
    };
    let dns = async move {
        let mut all = Written::default();
        while let Some(step) = at_dns.recv().await {
            let written = tell_dns(context, &step).await;
            let rest = go_on(step, written, &mut all);
            let _ = to_slurm.send(rest).await;
        }
        all
    };
    let slurm = async {
        let mut published = Published::default();
        while let Some(step) = at_slurm.recv().await {
            add(&mut published, tell_slurm(context, &step).await);
        }
        published
    };
    let (table, dns, mut published) = tokio::join!(table, dns, slurm);
    for Written { refused, unknown, why_unknown, .. } in [table, dns] {
        published.refused.extend(refused);
        published.unknown.extend(unknown);
        published.why_unknown = published.why_unknown.take().or(why_unknown);
    }
    published
}

/// The nodes of a step for the next stage; the others stay behind in `all`. `None` = this stage has nothing to do.
fn go_on(step: Step, written: Option<Written>, all: &mut Written) -> Step {
    let Some(mut written) = written else { return step };
    let done: BTreeSet<String> = written.done.drain(..).collect();
    all.absorb(written);
    step.into_iter().filter(|(node, _)| done.contains(node)).collect()
}

/// The items of the node table, which instances ask for their name at boot.
async fn tell_table(context: &Context, step: &[(String, Instance)]) -> Option<Written> {
    let (Some(dynamodb), Some(table)) = (&context.dynamodb, &context.settings.publish.node_table) else { return None };
    if step.is_empty() {
        return Some(Written::default());
    }
    let pairs: Vec<(String, String)> = step.iter().map(|(node, instance)| (node.clone(), instance.id.clone())).collect();
    Some(in_time(context, step, dynamodb.put_nodes(table, &pairs, context.limits.end)).await)
}

/// The nodes' DNS records.
async fn tell_dns(context: &Context, step: &[(String, Instance)]) -> Option<Written> {
    let (Some(route53), Some(dns)) = (&context.route53, &context.settings.publish.dns) else { return None };
    let (records, without) = records(step);
    let mut written = match records.is_empty() {
        true => Written::default(),
        false => in_time(context, step, route53.upsert(dns, &records, context.limits.end)).await,
    };
    let failure = Failure {
        code: codes::NO_ADDRESS.to_owned(),
        class: ErrorClass::Other,
        sentence: format!("its instance has no private address for a record in zone {}", dns.hosted_zone),
        request_id: None,
    };
    written.refuse(without, &failure);
    Some(written)
}

/// Node and address of each, and the nodes that have none.
fn records(step: &[(String, Instance)]) -> (Vec<(String, String)>, Vec<String>) {
    let mut records = Vec::new();
    let mut without = Vec::new();
    for (node, instance) in step {
        match &instance.private_ip {
            Some(ip) => records.push((node.clone(), ip.clone())),
            None => without.push(node.clone()),
        }
    }
    (records, without)
}

/// A write, unless a signal's grace ends first; then nothing is known of it.
async fn in_time(context: &Context, step: &[(String, Instance)], write: impl Future<Output = Written>) -> Written {
    tokio::select! {
        biased;
        written = write => written,
        // The end itself is the write's: it still knows what was done.
        () = context.limits.stopped() => {
            let mut written = Written::default();
            written.give_up(step.iter().map(|(node, _)| node.clone()), Some("the program was told to stop".to_owned()));
            written
        }
    }
}

/// slurmctld's answer, added to what is known.
fn add(published: &mut Published, applied: Applied) {
    if !applied.unknown.is_empty() {
        published.why_unknown = Some(why(&applied));
    }
    let refuse = |(node, text): (String, String)| {
        let failure = Failure {
            code: codes::REFUSED.to_owned(),
            class: ErrorClass::Other,
            sentence: format!("slurmctld refused the node's address: {text}"),
            request_id: None,
        };
        (node, failure)
    };
    published.done.extend(applied.done);
    published.refused.extend(applied.refused.into_iter().map(refuse));
    published.unknown.extend(applied.unknown);
}

/// Tells Slurm which instance stands behind which node, as `[slurm] node_address` says.
async fn tell_slurm(context: &Context, pairs: &[(String, Instance)]) -> Applied {
    let mode = context.settings.slurm.node_address;
    if pairs.is_empty() || mode == NodeAddress::None {
        return Applied { done: pairs.iter().map(|(node, _)| node.clone()).collect(), ..Applied::default() };
    }
    let version = version(context).await;
    let hostname = context.settings.publish.hostname;
    let updates: Vec<NodeUpdate> =
        pairs.iter().map(|(node, instance)| node_update(node, instance, mode, hostname, version.takes_instance_id())).collect();
    let calls = update::publish_args(&updates, &version, context.settings.slurm.nodes_per_call);
    let told: BTreeSet<String> = calls.iter().flat_map(|call| call.nodes().iter().cloned()).collect();
    let mut applied = if calls.is_empty() { Applied::default() } else { context.apply(calls).await };
    // Of these there is nothing to tell.
    applied.done.extend(pairs.iter().map(|(node, _)| node).filter(|node| !told.contains(*node)).cloned());
    applied
}

/// What Slurm is told of one node. Its NodeHostName is the node's own name as long as nothing else is said.
fn node_update(node: &str, instance: &Instance, mode: NodeAddress, hostname: bool, instance_id: bool) -> NodeUpdate {
    let scontrol = mode == NodeAddress::Scontrol;
    NodeUpdate {
        node: node.to_owned(),
        addr: instance.private_ip.clone().filter(|_| scontrol),
        hostname: instance.hostname.clone().filter(|_| scontrol && hostname),
        instance_id: instance_id.then(|| instance.id.clone()),
    }
}

/// The instance that another run has tied to the node since Slurm was told of `told`.
fn newer(entry: &NodeEntry, told: &Instance) -> Option<Instance> {
    let entry = Some(entry).filter(|entry| entry.state == NodeState::Running);
    entry.and_then(recovery::as_instance).filter(|newer| newer.id != told.id)
}

/// Notes in the mapping that Slurm knows these nodes' addresses. Returns those of the nodes that another run has tied to an instance since,
/// with that instance: Slurm may have heard of it first, so it counts as not told.
fn mark_published(context: &Context, pairs: &[(String, Instance)], published: &Published) -> Step {
    let done: BTreeSet<&String> = published.done.iter().collect();
    let result = context.store.update(context.lock_wait(), |mapping| {
        let mut since = Step::new();
        for (node, instance) in pairs {
            let Some(entry) = mapping.nodes.get_mut(node) else { continue };
            if let Some(newer) = newer(entry, instance) {
                entry.unpublished = true;
                since.push((node.clone(), newer));
            } else if entry.instance_id.as_ref() == Some(&instance.id) && done.contains(node) {
                entry.unpublished = false;
            }
        }
        since
    });
    result.unwrap_or_else(|error| {
        tracing::warn!("the mapping cannot be marked as told to Slurm, the next program tells it again: {}", chain(&error));
        // As far as that can be read.
        let Ok(mapping) = context.store.read() else { return Step::new() };
        let since = |(node, told): &(String, Instance)| Some((node.clone(), newer(mapping.nodes.get(node)?, told)?));
        pairs.iter().filter_map(since).collect()
    })
}
