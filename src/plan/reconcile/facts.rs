//! Each node of ours with what stands behind it: Slurm's node, the mapping's entry and EC2's instance brought together.
//!
//! An instance stands behind one node at most: the one whose entry names it, else the one whose InstanceId does, else the one with its
//! address, and a node that is off comes last everywhere. So an old address that EC2 gave to another node's instance meanwhile is never
//! a reason to terminate that one. Indexes are made once; every look-up is one step.

use std::collections::HashMap;

use super::{Member, Policy, Snapshot};
use crate::model::instance::{Instance, InstanceState};
use crate::model::mapping::{NodeEntry, NodeState};
use crate::model::node::{Base, SlurmNode};
use crate::model::time::Timestamp;

/// One node of ours.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts<'a> {
    pub(crate) name: &'a str,
    pub(crate) node: &'a SlurmNode,
    /// Index into the policy's groups.
    pub(crate) group: usize,
    pub(crate) is_static: bool,
    pub(crate) entry: Option<&'a NodeEntry>,
    pub(crate) backing: Backing<'a>,
    /// When what stands behind the node was launched: as the mapping knows it, else as EC2 tells; `None` = not known.
    pub(crate) launched: Option<Timestamp>,
    /// What is named behind the node will not come (back): ended, or neither shown nor heard for longer than `missing.rs` allows.
    pub(crate) is_gone: bool,
}

/// What stands behind a node: by the mapping, else by Slurm's InstanceId, else by its address (aws-facts B.15).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backing<'a> {
    /// Nobody names an instance, and no address is set; or Slurm names one of earlier (`is_left_over`).
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
}

impl<'a> Facts<'a> {
    /// The id of the instance that stands behind the node or is named for it, whatever EC2 shows of it.
    pub(crate) fn instance_id(&self) -> Option<&'a str> {
        match self.backing {
            Backing::Instance(instance) | Backing::Ended(instance) => Some(instance.id.as_str()),
            Backing::Nothing | Backing::Claimed | Backing::Missing => {
                self.entry.and_then(|entry| entry.instance_id.as_deref()).or(self.node.instance_id.as_deref())
            }
        }
    }

    /// The node is claimed by a launch that is at work or that a recovery will finish.
    pub(crate) fn has_live_claim(&self, snapshot: &Snapshot) -> bool {
        let claim = self.entry.filter(|entry| entry.state == NodeState::Launching);
        claim.is_some_and(|entry| snapshot.live.contains(&entry.launch) || snapshot.launches.contains(&entry.launch))
    }

    pub(crate) fn has_address(&self) -> bool {
        has_address(self.node)
    }
}

/// The address of a node that has none of its own: its name, or the one that a failed launch leaves on Slurm 22.05 (RFC 5737).
pub(crate) fn has_address(node: &SlurmNode) -> bool {
    node.addr != node.name
        && !node.addr.parse::<std::net::Ipv4Addr>().is_ok_and(|ip| ip.is_documentation() || ip.is_unspecified())
}

/// What somebody wrote down as past; `None`: it lies ahead, so that clock was wrong then, and counting from it nothing would happen until
/// that time comes.
pub(super) fn believed(at: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
    at.filter(|at| !at.is_ahead_of(now))
}

fn launched(entry: Option<&NodeEntry>, backing: &Backing<'_>, now: Timestamp) -> Option<Timestamp> {
    let by_ec2 = || backing.instance().and_then(|instance| instance.launch_time);
    believed(entry.and_then(|entry| entry.launched), now).or_else(|| believed(by_ec2(), now))
}

/// Who stands before which instance.
#[derive(Debug, Default)]
pub(super) struct Owners<'a> {
    by_instance: HashMap<&'a str, Owner<'a>>,
    by_address: HashMap<&'a str, &'a Instance>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Owner<'a> {
    pub(super) node: &'a str,
    /// The mapping says so; else Slurm does.
    pub(super) is_mapped: bool,
    /// Slurm says so of a node that is off: it is not that node's any more.
    pub(super) is_off: bool,
}

impl<'a> Owners<'a> {
    pub(super) fn of(snapshot: &'a Snapshot) -> Self {
        let mut owners = Self {
            by_instance: HashMap::with_capacity(snapshot.instances.len()),
            by_address: HashMap::with_capacity(snapshot.instances.len()),
        };
        let live = snapshot.instances.values().filter(|instance| instance.state.is_live());
        owners.by_address.extend(live.filter_map(|instance| Some((instance.private_ip.as_deref()?, instance))));
        for (node, entry) in &snapshot.mapping.nodes {
            if let Some(id) = mapped(Some(entry)) {
                owners.add(id, Owner { node, is_mapped: true, is_off: false });
            }
        }
        let unmapped: Vec<(&SlurmNode, Owner<'_>)> = with_entries(snapshot)
            .filter(|(_, _, entry)| mapped(*entry).is_none())
            .filter(|(_, member, _)| member.slurm.instance_id.is_some() || has_address(&member.slurm))
            .map(|(node, Member { slurm, .. }, _)| {
                (slurm, Owner { node, is_mapped: false, is_off: slurm.state.is_powered_down() })
            })
            .collect();
        for off in [false, true] {
            let those = || unmapped.iter().filter(|(_, owner)| owner.is_off == off);
            for (node, owner) in those() {
                if let Some(instance) = known(snapshot, node) {
                    owners.add(&instance.id, *owner);
                }
            }
            for (node, owner) in those() {
                if let Some(instance) = owners.at_address(node) {
                    owners.add(&instance.id, *owner);
                }
            }
        }
        owners
    }

    /// The first word counts.
    fn add(&mut self, id: &'a str, owner: Owner<'a>) {
        self.by_instance.entry(id).or_insert(owner);
    }

    pub(super) fn get(&self, instance: &str) -> Option<Owner<'a>> {
        self.by_instance.get(instance).copied()
    }

    fn at_address(&self, node: &SlurmNode) -> Option<&'a Instance> {
        if !has_address(node) {
            return None;
        }
        self.by_address.get(node.addr.as_str()).copied()
    }

    fn is(&self, node: &str, instance: &Instance) -> bool {
        self.get(&instance.id).is_some_and(|owner| owner.node == node)
    }

    fn backing(&self, snapshot: &'a Snapshot, node: &'a SlurmNode, entry: Option<&'a NodeEntry>) -> Backing<'a> {
        if entry.is_some_and(|entry| entry.state == NodeState::Launching) {
            return Backing::Claimed;
        }
        if entry.is_none() && is_left_over(snapshot, node) {
            return Backing::Nothing;
        }
        let named = match mapped(entry) {
            Some(id) => snapshot.instances.get(id),
            // An InstanceId that EC2 does not know may be a list of ids that Slurm before 25.11.6 took for one (aws-facts B.15).
            None => known(snapshot, node).or_else(|| self.at_address(node)),
        };
        match named {
            Some(instance) if !self.is(&node.name, instance) => Backing::Missing,
            Some(instance) if has_ended(instance.state) => Backing::Ended(instance),
            Some(instance) => Backing::Instance(instance),
            None if mapped(entry).is_some() || node.instance_id.is_some() || has_address(node) => Backing::Missing,
            None => Backing::Nothing,
        }
    }
}

/// Slurm's nodes with their entries. Both are sorted by name, so one walk along both finds all pairs.
fn with_entries(snapshot: &Snapshot) -> impl Iterator<Item = (&String, &Member, Option<&NodeEntry>)> {
    let mut entries = snapshot.mapping.nodes.iter().peekable();
    snapshot.nodes.iter().map(move |(name, member)| {
        while entries.next_if(|(node, _)| *node < name).is_some() {}
        let entry = entries.next_if(|(node, _)| *node == name);
        (name, member, entry.map(|(_, entry)| entry))
    })
}

/// Does not come up again by itself. A state of EC2's that is not known here is none of an end.
fn has_ended(state: InstanceState) -> bool {
    !state.is_usable() && state != InstanceState::Unknown
}

/// The instance that the mapping names for a node.
fn mapped(entry: Option<&NodeEntry>) -> Option<&str> {
    entry.filter(|entry| entry.state == NodeState::Running)?.instance_id.as_deref()
}

/// The instance that Slurm names for a node by its id, if EC2 shows it.
fn known<'a>(snapshot: &'a Snapshot, node: &SlurmNode) -> Option<&'a Instance> {
    snapshot.instances.get(node.instance_id.as_ref()?)
}

/// Slurm forgets an InstanceId when it powers the node down, and a static one is only set down: what it names for a node that is down and
/// has its own address is an instance of earlier, unless that still lives.
fn is_left_over(snapshot: &Snapshot, node: &SlurmNode) -> bool {
    let lives = || known(snapshot, node).is_some_and(|instance| instance.state.is_live());
    node.state.is_down() && !has_address(node) && !lives()
}

/// The nodes of ours, in the order of names. Nodes in a base state that is none of service (FUTURE, UNKNOWN, ERROR) or that is not
/// known here are left out: no rule may touch them.
pub(super) fn of<'a>(snapshot: &'a Snapshot, policy: &Policy, owners: &Owners<'a>) -> Vec<Facts<'a>> {
    let ours = with_entries(snapshot).filter_map(|(name, member, entry)| Some((name, member, member.group?, entry)));
    ours.filter(|(_, _, group, _)| *group < policy.groups.len())
        .filter(|(_, member, ..)| matches!(member.slurm.state.base, Base::Idle | Base::Allocated | Base::Mixed | Base::Down))
        .map(|(name, member, group, entry)| {
            let backing = owners.backing(snapshot, &member.slurm, entry);
            let (is_gone, launched) = (matches!(backing, Backing::Ended(_)), launched(entry, &backing, snapshot.now));
            Facts { name, node: &member.slurm, group, is_static: member.is_static, entry, backing, launched, is_gone }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::test_support::World;
    use super::*;

    /// Slurm may not show a node that the mapping has, and the other way round, anywhere in the order of names.
    #[test]
    fn every_node_finds_its_own_entry() {
        let mut world = World::new();
        world.snapshot.nodes.clear();
        for node in ["c5-1", "c5-10", "c5-2", "c5-30", "c5-4"] {
            world.node(node, "IDLE+CLOUD");
        }
        for entry in ["a", "c5-1", "c5-15", "c5-16", "c5-30", "c5-300"] {
            world.entry(entry, Some(&format!("i-{entry}")), 100);
        }
        for (name, _, entry) in with_entries(&world.snapshot) {
            assert_eq!(entry, world.snapshot.mapping.nodes.get(name), "{name}");
        }
        let found: Vec<&str> =
            with_entries(&world.snapshot).filter(|(.., entry)| entry.is_some()).map(|(name, ..)| name.as_str()).collect();
        assert_eq!((found, with_entries(&world.snapshot).count()), (vec!["c5-1", "c5-30"], 5));
    }
}
