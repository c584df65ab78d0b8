//! Each node of ours with what stands behind it: Slurm's node, the mapping's entry and EC2's instance brought together.

use std::collections::BTreeMap;

use super::{Policy, Snapshot};
use crate::model::instance::Instance;
use crate::model::mapping::{NodeEntry, NodeState};
use crate::model::node::SlurmNode;

/// One node of ours.
#[derive(Debug, Clone)]
pub(crate) struct Facts<'a> {
    pub(crate) name: &'a str,
    pub(crate) node: &'a SlurmNode,
    /// Index into the policy's groups.
    pub(crate) group: usize,
    pub(crate) is_static: bool,
    pub(crate) entry: Option<&'a NodeEntry>,
    pub(crate) backing: Backing<'a>,
}

/// What stands behind a node: by the mapping, else by Slurm's InstanceId, else by its address (aws-facts B.15).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backing<'a> {
    /// Nobody names an instance, and no address is set.
    Nothing,
    /// A run is launching one.
    Claimed,
    /// Its instance, pending or running.
    Instance(&'a Instance),
    /// Its instance, stopping, stopped, shutting down or terminated.
    Ended(&'a Instance),
    /// An instance or address is named, and EC2 shows none: gone, or too young to be seen.
    Missing,
}

impl<'a> Backing<'a> {
    /// An instance that EC2 shows, whatever its state, and that may still cost money.
    pub(crate) fn instance(&self) -> Option<&'a Instance> {
        match self {
            Self::Instance(instance) => Some(instance),
            Self::Ended(instance) => instance.state.is_live().then_some(*instance),
            Self::Nothing | Self::Claimed | Self::Missing => None,
        }
    }

    /// Something is named and nothing usable is there.
    pub(crate) fn is_invalid(&self) -> bool {
        matches!(self, Self::Ended(_) | Self::Missing)
    }
}

/// The address of a node that has none of its own: its name, or the one that a failed launch leaves on Slurm 22.05 (RFC 5737).
pub(crate) fn has_address(node: &SlurmNode) -> bool {
    node.addr != node.name
        && !node.addr.parse::<std::net::Ipv4Addr>().is_ok_and(|ip| ip.is_documentation() || ip.is_unspecified())
}

/// The nodes of ours, in the order of names.
pub(super) fn of<'a>(snapshot: &'a Snapshot, policy: &'a Policy) -> Vec<Facts<'a>> {
    let by_address: BTreeMap<&str, &Instance> = snapshot
        .instances
        .values()
        .filter(|instance| instance.state.is_live())
        .filter_map(|instance| Some((instance.private_ip.as_deref()?, instance)))
        .collect();
    let ours = snapshot.nodes.iter().filter_map(|(name, member)| Some((name, member, member.group?)));
    ours.filter(|(_, _, group)| *group < policy.groups.len())
        .map(|(name, member, group)| {
            let entry = snapshot.mapping.nodes.get(name);
            let backing = backing(snapshot, &member.slurm, entry, &by_address);
            Facts { name, node: &member.slurm, group, is_static: member.is_static, entry, backing }
        })
        .collect()
}

fn backing<'a>(
    snapshot: &'a Snapshot,
    node: &'a SlurmNode,
    entry: Option<&'a NodeEntry>,
    by_address: &BTreeMap<&str, &'a Instance>,
) -> Backing<'a> {
    let known = |id: &str| match snapshot.instances.get(id) {
        Some(instance) if instance.state.is_usable() => Backing::Instance(instance),
        Some(instance) => Backing::Ended(instance),
        None => Backing::Missing,
    };
    match entry {
        Some(entry) if entry.state == NodeState::Launching => return Backing::Claimed,
        Some(NodeEntry { instance_id: Some(id), .. }) => return known(id),
        Some(_) | None => {}
    }
    if let Some(id) = &node.instance_id {
        return known(id);
    }
    if !has_address(node) {
        return Backing::Nothing;
    }
    match by_address.get(node.addr.as_str()) {
        Some(instance) if instance.state.is_usable() => Backing::Instance(instance),
        Some(instance) => Backing::Ended(instance),
        None => Backing::Missing,
    }
}
