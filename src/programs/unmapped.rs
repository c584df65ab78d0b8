//! Instances behind nodes that the mapping does not know: by Slurm's InstanceId and NodeAddr, then by node tags. (Launch records
//! are looked through by the recovery before.)

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use super::context::{Context, LOCK_WAIT};
use super::{recovery, survey};
use crate::clock;
use crate::error::chain;
use crate::model::instance::{Instance, tag};
use crate::model::mapping::NodeState;
use crate::slurm::show::SlurmNode;

/// Condemns what is found behind `unmapped` nodes, and every further instance that carries the name of one of `nodes`. Returns
/// how many. EC2 or Slurm not answering is logged; what is on runs on until somebody asks again.
pub(crate) async fn condemn(context: &Context, unmapped: &[String], nodes: &[String]) -> usize {
    let shown = survey::show(context, unmapped).await.unwrap_or_default();
    let mut found: BTreeMap<String, (String, Instance)> = BTreeMap::new();
    by_slurm(context, &shown, &mut found).await;
    by_tag(context, nodes, &mut found).await;
    if found.is_empty() {
        return 0;
    }
    let now = clock::now();
    let result = context.store.update(LOCK_WAIT, |mapping| {
        let backing: BTreeSet<&String> = mapping.nodes.values().filter_map(|entry| entry.instance_id.as_ref()).collect();
        // A launch that is going on answers for its own instances.
        let launches: BTreeSet<&String> =
            mapping.nodes.values().filter(|entry| entry.state == NodeState::Launching).map(|entry| &entry.launch).collect();
        let free: Vec<_> = found
            .into_values()
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
        free.len()
    });
    result.unwrap_or_else(|error| {
        tracing::error!("the mapping cannot be written: {}", chain(&error));
        0
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
        let ours = [(tag::CLUSTER.to_owned(), vec![context.settings.cluster.clone()])];
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
