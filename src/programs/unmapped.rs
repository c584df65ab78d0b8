//! Instances behind nodes that the mapping does not know: by Slurm's InstanceId and NodeAddr, then by node tags, then by ParallelCluster's
//! table of nodes. (Launch records are looked through by the recovery before.)

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use super::context::Context;
use super::{rebuild, recovery, survey};
use crate::clock;
use crate::error::chain;
use crate::model::instance::{Instance, tag};
use crate::model::mapping::NodeState;
use crate::slurm::show::SlurmNode;

/// Condemns what is found behind `unmapped` nodes, and every further instance that carries the name of one of `nodes`. Returns node
/// and instance of each. EC2 or Slurm not answering is logged; what is on runs on until somebody asks again.
pub(crate) async fn condemn(context: &Context, unmapped: &[String], nodes: &[String]) -> Vec<(String, String)> {
    let shown = survey::show(context, unmapped).await.unwrap_or_default();
    let mut found: BTreeMap<String, (String, Instance)> = BTreeMap::new();
    by_slurm(context, &shown, &mut found).await;
    by_tag(context, nodes, &mut found).await;
    by_table(context, unmapped, &mut found).await;
    others_stay(context, &mut found).await;
    if found.is_empty() {
        return Vec::new();
    }
    let now = clock::now();
    let result = context.store.update(context.lock_wait(), |mapping| {
        let backing: BTreeSet<&String> = mapping.nodes.values().filter_map(|entry| entry.instance_id.as_ref()).collect();
        // A launch that is going on answers for its own instances.
        let launches: BTreeSet<&String> =
            mapping.nodes.values().filter(|entry| entry.state == NodeState::Launching).map(|entry| &entry.launch).collect();
        let free: Vec<_> = found
            .values()
            .filter(|(_, instance)| {
                !backing.contains(&instance.id) && !instance.tags.get(tag::LAUNCH).is_some_and(|launch| launches.contains(launch))
            })
            .collect();
        for (node, instance) in &free {
            tracing::warn!(node, instance = instance.id, "the mapping does not know this instance of the node: terminating it");
            let launch = instance.tags.get(tag::LAUNCH).cloned().unwrap_or_default();
            recovery::condemn(
                mapping,
                &instance.id,
                Some(node),
                &launch,
                instance.launch_time,
                now,
                "found behind a node without mapping",
            );
        }
        free.into_iter().map(|(node, instance)| (node.clone(), instance.id.clone())).collect()
    });
    result.unwrap_or_else(|error| {
        tracing::error!("the mapping cannot be written: {}", chain(&error));
        Vec::new()
    })
}

/// The address that a failed launch leaves on Slurm 22.05 is nobody's (RFC 5737).
fn real_address(node: &SlurmNode) -> Option<String> {
    let address: Ipv4Addr = node.addr.parse().ok()?;
    (!address.is_documentation() && !address.is_unspecified()).then(|| node.addr.clone())
}

async fn by_slurm(context: &Context, shown: &BTreeMap<String, SlurmNode>, found: &mut BTreeMap<String, (String, Instance)>) {
    let ids: BTreeMap<&String, &String> =
        shown.values().filter_map(|node| Some((node.instance_id.as_ref()?, &node.name))).collect();
    let ips: BTreeMap<String, &String> = shown.values().filter_map(|node| Some((real_address(node)?, &node.name))).collect();
    let mut instances = Vec::new();
    if !ids.is_empty() {
        let list: Vec<String> = ids.keys().map(|id| (*id).clone()).collect();
        match context.ask("DescribeInstances", context.ec2.describe_ids(&list)).await {
            Ok(found) => instances.extend(found),
            Err(error) => tracing::error!("EC2 does not tell the instances that Slurm names: {}", chain(&error)),
        }
    }
    if !ips.is_empty() {
        let list: Vec<String> = ips.keys().cloned().collect();
        // All of this cluster's; whose they are is looked at below.
        let key = if context.settings.parallelcluster.is_some() { tag::PARALLELCLUSTER_NAME } else { tag::CLUSTER };
        let ours = [(key.to_owned(), vec![context.settings.cluster.clone()])];
        match context.ask("DescribeInstances", context.ec2.describe_ips(&list, &ours)).await {
            Ok(found) => instances.extend(found),
            Err(error) => tracing::error!("EC2 does not tell the instances at the nodes' addresses: {}", chain(&error)),
        }
    }
    for instance in instances.into_iter().filter(|instance| instance.state.is_live() && context.is_ours(instance)) {
        let node = ids.get(&instance.id).or_else(|| instance.private_ip.as_ref().and_then(|ip| ips.get(ip)));
        if let Some(node) = node {
            found.insert(instance.id.clone(), ((*node).clone(), instance));
        }
    }
}

/// EC2 takes 200 values a filter (aws-facts A.5); the adapter cuts.
async fn by_tag(context: &Context, nodes: &[String], found: &mut BTreeMap<String, (String, Instance)>) {
    let named: Vec<String> = nodes
        .iter()
        .filter(|node| context.settings.group_of(node).is_some_and(|group| group.launch.node_tags))
        .cloned()
        .collect();
    if named.is_empty() {
        return;
    }
    let filters = [(tag::NODE.to_owned(), named)];
    match context.ask("DescribeInstances", context.ec2.describe_tagged(&filters, true)).await {
        Ok(instances) => {
            for instance in instances.into_iter().filter(|instance| context.is_ours(instance)) {
                if let Some(node) = instance.tags.get(tag::NODE).cloned() {
                    found.insert(instance.id.clone(), (node, instance));
                }
            }
        }
        Err(error) => tracing::error!("EC2 does not tell the instances by node tag: {}", chain(&error)),
    }
}

/// ParallelCluster's table still names the last instance of a node when Slurm has forgotten it.
async fn by_table(context: &Context, unmapped: &[String], found: &mut BTreeMap<String, (String, Instance)>) {
    let (Some(dynamodb), Some(table)) = (&context.dynamodb, &context.settings.publish.node_table) else { return };
    let known: BTreeSet<&String> = found.values().map(|(node, _)| node).collect();
    let nodes: Vec<String> = unmapped.iter().filter(|node| !known.contains(node)).cloned().collect();
    if nodes.is_empty() {
        return;
    }
    let asked = tokio::select! {
        biased;
        answer = dynamodb.instances_of(&table.table, &nodes) => answer.map_err(|error| chain(&error)),
        () = tokio::time::sleep(TABLE_LIMIT.min(context.limits.left() / 4)) => Err("no answer in time".to_owned()),
    };
    let ids: BTreeMap<String, String> = match asked {
        Ok(items) => items.into_iter().map(|(node, id)| (id, node)).collect(),
        Err(error) => {
            tracing::warn!("table {} does not tell the nodes' instances: {error}", table.table);
            return;
        }
    };
    if ids.is_empty() {
        return;
    }
    let list: Vec<String> = ids.keys().cloned().collect();
    match context.ask("DescribeInstances", context.ec2.describe_ids(&list)).await {
        Ok(instances) => {
            for instance in instances.into_iter().filter(|instance| instance.state.is_live() && context.is_ours(instance)) {
                if let Some(node) = ids.get(&instance.id) {
                    found.insert(instance.id.clone(), (node.clone(), instance));
                }
            }
        }
        Err(error) => tracing::error!("EC2 does not tell the instances that table {} names: {}", table.table, chain(&error)),
    }
}

/// The longest the table is waited for.
const TABLE_LIMIT: Duration = Duration::from_secs(10);

/// Takes out what ParallelCluster's own daemons launched and another node may have by now: addresses are used again, and nobody's
/// mapping holds these instances. When Slurm does not answer, all of them stay.
async fn others_stay(context: &Context, found: &mut BTreeMap<String, (String, Instance)>) {
    found.retain(|_, (node, instance)| {
        let newer = instance.launch_time.is_some_and(|at| at > context.begun) && !context.has_our_tags(instance);
        if newer {
            tracing::info!(node, instance = instance.id, "left alone: launched since for the node");
        }
        !newer
    });
    if found.values().all(|(_, instance)| context.has_our_tags(instance)) {
        return;
    }
    let Some(all) = survey::show_all(context).await else {
        tracing::warn!("whose the instances are that ParallelCluster launched is not known now, they are left alone");
        found.retain(|_, (_, instance)| context.has_our_tags(instance));
        return;
    };
    found.retain(|_, (node, instance)| {
        let other = all.values().find(|other| other.name != *node && rebuild::stands_behind(other, instance));
        if let Some(other) = other.filter(|_| !context.has_our_tags(instance)) {
            tracing::warn!(node, instance = instance.id, "left alone: Slurm says that it is node {}'s", other.name);
            return false;
        }
        true
    });
}
