//! Instances behind nodes that the mapping does not know: by Slurm's InstanceId and NodeAddr, then by node tags, then by ParallelCluster's
//! table of nodes. (Launch records are looked through by the recovery before.)
//!
//! Beside ParallelCluster the mapping may also know an instance that is not the node's any more: clustermgtd replaces static nodes, and the
//! package may have been at work between two times of ours. There the nodes that were mapped are looked through as well.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use super::context::Context;
use super::suspend::{Freed, Was};
use super::{rebuild, recovery, survey};
use crate::clock;
use crate::error::chain;
use crate::model::instance::{Instance, tag};
use crate::model::mapping::NodeState;
use crate::model::node::SlurmNode;

/// Condemns what is found behind the nodes that were freed without an instance, and every further instance that carries the name of one of
/// `nodes`; beside ParallelCluster also what stands behind the others instead of, or besides, the mapped one. Returns node and instance of
/// each. EC2 or Slurm not answering is logged; what is on runs on until somebody asks again.
///
/// `shown` is what Slurm said of the nodes already, as long ago as this run.
pub(super) async fn condemn(
    context: &Context,
    freed: &Freed,
    nodes: &[String],
    shown: Option<&BTreeMap<String, SlurmNode>>,
) -> Vec<(String, String)> {
    let mut was: BTreeMap<&String, Option<&Was>> = freed.unmapped.iter().map(|node| (node, None)).collect();
    if context.settings.parallelcluster.is_some() {
        was.extend(freed.instances.iter().map(|was| (&was.node, Some(was))));
    }
    let condemned: BTreeSet<&String> = freed.instances.iter().filter_map(|was| was.instance_id.as_ref()).collect();
    let asked;
    let shown = match shown {
        Some(shown) => shown,
        None => {
            asked = survey::show(context, &freed.unmapped).await.unwrap_or_default();
            &asked
        }
    };
    let search = Search { context, was, condemned };
    let mut found: BTreeMap<String, (String, Instance)> = BTreeMap::new();
    let confirmed = search.by_slurm(shown, &mut found).await;
    by_tag(context, nodes, &mut found).await;
    search.by_table(&confirmed, &mut found).await;
    found.retain(|id, _| !search.condemned.contains(id));
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
            let why = if search.was.get(node).is_some_and(Option::is_some) {
                "found behind a node whose mapping named another"
            } else {
                "found behind a node without mapping"
            };
            recovery::condemn(mapping, &instance.id, Some(node), &launch, instance.launch_time, now, why);
        }
        free.into_iter().map(|(node, instance)| (node.clone(), instance.id.clone())).collect()
    });
    result.unwrap_or_else(|error| {
        tracing::error!("the mapping cannot be written: {}", chain(&error));
        Vec::new()
    })
}

/// The nodes in question.
struct Search<'a> {
    context: &'a Context,
    /// With what the mapping said of each.
    was: BTreeMap<&'a String, Option<&'a Was>>,
    /// Instances that go already.
    condemned: BTreeSet<&'a String>,
}

/// The address that a failed launch leaves on Slurm 22.05 is nobody's (RFC 5737).
fn real_address(node: &SlurmNode) -> Option<String> {
    let address: Ipv4Addr = node.addr.parse().ok()?;
    (!address.is_documentation() && !address.is_unspecified()).then(|| node.addr.clone())
}

impl Search<'_> {
    /// Looks where Slurm points to something else than the mapping did. Returns the nodes for which both said the same.
    async fn by_slurm(
        &self,
        shown: &BTreeMap<String, SlurmNode>,
        found: &mut BTreeMap<String, (String, Instance)>,
    ) -> BTreeSet<String> {
        let context = self.context;
        let (mut ids, mut ips, mut confirmed) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        for (node, was) in &self.was {
            let Some(shown) = shown.get(*node) else { continue };
            let (id, ip) = (shown.instance_id.as_ref(), real_address(shown));
            let (mapped_id, mapped_ip) = was.map_or((None, None), |was| (was.instance_id.as_ref(), was.private_ip.as_ref()));
            let same_ip = ip.is_some() && ip.as_ref() == mapped_ip;
            if id.map_or(same_ip, |id| mapped_id == Some(id)) {
                confirmed.insert((*node).clone());
            }
            if let Some(id) = id.filter(|id| !self.condemned.contains(id)) {
                ids.insert(id, *node);
            }
            if let Some(ip) = ip.filter(|_| !same_ip) {
                ips.insert(ip, *node);
            }
        }
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
        confirmed
    }

    /// ParallelCluster's table still names the last instance of a node when Slurm has forgotten it.
    async fn by_table(&self, confirmed: &BTreeSet<String>, found: &mut BTreeMap<String, (String, Instance)>) {
        let context = self.context;
        let (Some(dynamodb), Some(table)) = (&context.dynamodb, &context.settings.publish.node_table) else { return };
        let known: BTreeSet<&String> = found.values().map(|(node, _)| node).collect();
        let open = self.was.keys().filter(|node| !known.contains(**node) && !confirmed.contains(**node));
        let nodes: Vec<String> = open.map(|node| (*node).clone()).collect();
        if nodes.is_empty() {
            return;
        }
        let asked = tokio::select! {
            biased;
            answer = dynamodb.instances_of(&table.table, &nodes) => answer.map_err(|error| chain(&error)),
            () = tokio::time::sleep(TABLE_LIMIT.min(context.limits.left() / 4)) => Err("no answer in time".to_owned()),
        };
        let ids: BTreeMap<String, String> = match asked {
            Ok(items) => items.into_iter().filter(|(_, id)| !self.condemned.contains(id)).map(|(node, id)| (id, node)).collect(),
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
