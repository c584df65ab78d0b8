//! Capacity Blocks: while one is not active, a reservation of Slurm's keeps jobs off its nodes (aws-facts D.3). The blocks' states, as far
//! as EC2 was asked, and Slurm's reservations in; reservations to make, change and delete out.
//!
//! What EC2 said is remembered and compared with Slurm's reservations in every pass, so an update that failed is made again in the next
//! one, and a block that EC2 does not know keeps nothing from the others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Draft, Level, Memory, Policy, ReservationOrder, What};
use crate::model::cluster::Reservation;
use crate::model::time::Timestamp;

/// EC2 is asked for the blocks' states as often: the package's time, which it stretches to 11 minutes.
const EVERY: Duration = Duration::from_mins(10);

/// Reservations are named by their block, as the package names them; `cr-` begins every id, so that a site's own `pcluster-something`
/// is not meant.
const PREFIX: &str = "pcluster-";
const ID: &str = "cr-";

/// The state of a block that EC2 does not know; nothing is done because of it.
const UNKNOWN: &str = "unknown";
const ACTIVE: &str = "active";

/// Are Slurm's reservations to be asked for? Without blocks, now or earlier, none of them is of interest.
pub(crate) fn need_reservations(policy: &Policy, memory: &Memory) -> bool {
    policy.upkeep.manage_blocks && (ids(policy).next().is_some() || !memory.blocks_waiting.is_empty())
}

/// Is EC2 to be asked for the blocks' states in this pass? The program's first pass asks whatever this says.
pub(crate) fn are_due(policy: &Policy, memory: &Memory, now: Timestamp) -> bool {
    // A look ahead of now was taken while the clock was wrong: the next one would be as far away.
    let is_due = now.since(memory.blocks_checked) >= EVERY || memory.blocks_checked > now;
    policy.upkeep.manage_blocks && ids(policy).next().is_some() && is_due
}

/// Do the group's nodes wait for their block to become active? They are reserved and nothing about them counts as unhealthy.
pub(super) fn is_waiting(draft: &Draft<'_>, group: usize) -> bool {
    let block = draft.policy.groups[group].block.as_ref();
    block.and_then(|id| draft.memory.blocks_waiting.get(id)).is_some_and(|state| waits(state))
}

fn waits(state: &str) -> bool {
    state != ACTIVE && state != UNKNOWN
}

pub(super) fn blocks(draft: &mut Draft<'_>) {
    if !draft.policy.upkeep.manage_blocks {
        draft.memory.blocks_waiting.clear();
        return;
    }
    remember(draft);
    // What is reserved is not known: in the next pass.
    let Some(shown) = &draft.snapshot.reservations else { return };
    let nodes = nodes_of_blocks(draft);
    let reservations: BTreeMap<&str, &[String]> = shown.iter().map(|it| (it.name.as_str(), it.nodes.as_slice())).collect();
    for (id, nodes) in &nodes {
        let name = format!("{PREFIX}{id}");
        let state = draft.memory.blocks_waiting.get(*id).cloned();
        match (state.as_deref(), reservations.get(name.as_str())) {
            (Some(ACTIVE), Some(_)) => {
                order(draft, ReservationOrder::Delete { name }, format!("capacity block {id} is active"));
            }
            // Nothing is left to be deleted.
            (Some(ACTIVE), None) => drop(draft.memory.blocks_waiting.remove(*id)),
            (Some(state), None) if waits(state) && !nodes.is_empty() => {
                let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
                order(draft, ReservationOrder::Create { name, nodes }, format!("capacity block {id} is {state}"));
            }
            (Some(state), Some(reserved)) if waits(state) && !nodes.is_empty() && !same(reserved, nodes) => {
                let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
                let why = format!("capacity block {id} is {state}, and its nodes are no longer those that are reserved");
                order(draft, ReservationOrder::Update { name, nodes }, why);
            }
            _ => {}
        }
    }
    forget_others(draft, shown, &nodes);
}

/// Takes in what EC2 said. A block that it does not know stays as it was remembered.
fn remember(draft: &mut Draft<'_>) {
    let Some(told) = &draft.snapshot.blocks else { return };
    draft.memory.blocks_checked = draft.snapshot.now;
    for id in ids(draft.policy) {
        let before = draft.memory.blocks_waiting.get(id).cloned();
        match told.get(id) {
            Some(block) => {
                let state = if block.is_active() { ACTIVE } else { block.state.as_str() };
                if before.as_deref() != Some(state) && state != ACTIVE {
                    draft.note(
                        Level::Info,
                        format!("capacity block {id} is {state}: no jobs start on its nodes until it is active"),
                    );
                }
                draft.memory.blocks_waiting.insert(id.to_owned(), state.to_owned());
            }
            None if before.is_none() => {
                draft.note(Level::Warn, format!("capacity block {id} is in the configuration, but EC2 does not know it"));
                draft.memory.blocks_waiting.insert(id.to_owned(), UNKNOWN.to_owned());
            }
            None => {}
        }
    }
}

/// Block → the nodes of its groups, in the order of names.
fn nodes_of_blocks<'a>(draft: &Draft<'a>) -> BTreeMap<&'a str, Vec<&'a str>> {
    let mut nodes: BTreeMap<&str, Vec<&str>> = ids(draft.policy).map(|id| (id, Vec::new())).collect();
    for facts in &draft.facts {
        if let Some(id) = &draft.policy.groups[facts.group].block {
            nodes.entry(id).or_default().push(facts.name);
        }
    }
    nodes
}

/// Reservations of blocks that the configuration no longer has. Where it has no blocks and never had, there is nothing of ours.
fn forget_others(draft: &mut Draft<'_>, shown: &[Reservation], configured: &BTreeMap<&str, Vec<&str>>) {
    if configured.is_empty() && draft.memory.blocks_waiting.is_empty() {
        return;
    }
    let mut reserved = BTreeSet::new();
    for reservation in shown {
        let Some(id) = reservation.name.strip_prefix(PREFIX).filter(|id| id.starts_with(ID)) else { continue };
        reserved.insert(id);
        if !configured.contains_key(id) {
            let why = format!("capacity block {id} is no longer in the configuration");
            order(draft, ReservationOrder::Delete { name: reservation.name.clone() }, why);
        }
    }
    draft.memory.blocks_waiting.retain(|id, _| configured.contains_key(id.as_str()) || reserved.contains(id.as_str()));
}

/// The blocks of the configuration, each as often as groups have it.
fn ids(policy: &Policy) -> impl Iterator<Item = &str> {
    policy.groups.iter().filter_map(|group| group.block.as_deref())
}

fn order(draft: &mut Draft<'_>, order: ReservationOrder, why: String) {
    draft.act(What::Reservation(order), why);
}

fn same(reserved: &[String], nodes: &[&str]) -> bool {
    let reserved: BTreeSet<&str> = reserved.iter().map(String::as_str).collect();
    reserved == nodes.iter().copied().collect()
}

#[cfg(test)]
mod tests;
