//! From what is there and what is wanted to the writes, in stages: a later stage goes out only when the one before is written, so
//! that a program killed at any moment leaves nothing that nobody accounts for. Pure.
//!
//! 1. the launch record's header, 2. its batches and events: before the claims that point at it;
//! 3. nodes and condemned instances, an instance in the same transaction as the node it stood behind: there is no moment at which
//!    it is neither behind its node nor condemned, and none at which it is condemned and its node kept;
//! 4. what goes: condemned instances that are gone, parts of a record that are not wanted any more.

use std::collections::{BTreeMap, BTreeSet};

use super::codec::{self, Fields};
use super::items::{Act, Expect, Item, Transaction, Write};
use crate::model::mapping::{Condemned, Mapping, NodeEntry};

/// Bytes in one transaction; DynamoDB's limit is 4 MB, and it counts a little differently.
const BYTES: usize = 2_000_000;

/// What the table holds now.
#[derive(Clone, Copy)]
pub(super) struct There<'a> {
    pub(super) items: &'a BTreeMap<String, Item>,
    /// The same, read.
    pub(super) mapping: &'a Mapping,
}

/// What it shall hold.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) mapping: &'a Mapping,
    /// The items of the launch record that is begun, header first; empty = none.
    pub(super) record: &'a [(String, Fields)],
    /// Items of such a record that an earlier try wrote.
    pub(super) written: &'a [String],
    /// Begin the mapping even if there is nothing else to write.
    pub(super) begin: bool,
}

/// Stages of transactions; those of one stage may go out together. `rev` gives each written item its new revision.
/// No transaction has more than `actions`.
pub(super) fn stages(
    there: There<'_>,
    wanted: Wanted<'_>,
    actions: usize,
    rev: &mut dyn FnMut() -> String,
) -> Vec<Vec<Transaction>> {
    let mut header = Vec::new();
    let mut rest = Vec::new();
    for (index, (name, fields)) in wanted.record.iter().enumerate() {
        if there.differs(name, fields) {
            let write = there.put(name, fields.clone(), rev);
            if index == 0 { header.push(write) } else { rest.push(vec![write]) }
        }
    }
    let units = units(there, wanted.mapping, rev);
    let gone = there.mapping.condemned.keys().filter(|id| !wanted.mapping.condemned.contains_key(*id));
    let mut removed: BTreeSet<String> = gone.map(|id| codec::condemned_name(id)).collect();
    let kept: BTreeSet<&str> = wanted.record.iter().map(|(name, _)| name.as_str()).collect();
    removed.extend(wanted.written.iter().filter(|name| !kept.contains(name.as_str())).cloned());
    let removed: Vec<_> = removed
        .into_iter()
        .filter(|name| there.items.contains_key(name))
        .map(|name| vec![Write { expect: there.expect(&name), name, act: Act::Delete }])
        .collect();
    let something = !(header.is_empty() && rest.is_empty() && units.is_empty() && removed.is_empty());
    if (something || wanted.begin) && !there.items.contains_key(codec::MARKER) {
        header.push(there.put(codec::MARKER, codec::marker(), rev));
    }
    let header = if header.is_empty() { Vec::new() } else { vec![header] };
    [header, rest, units, removed].into_iter().map(|units| pack(units, actions)).filter(|stage| !stage.is_empty()).collect()
}

impl There<'_> {
    /// As it is now.
    fn expect(&self, name: &str) -> Expect {
        self.items.get(name).map_or(Expect::Absent, |item| Expect::Rev(item.rev.clone()))
    }

    fn differs(&self, name: &str, fields: &Fields) -> bool {
        self.items.get(name).is_none_or(|item| item.fields != *fields)
    }

    fn put(&self, name: &str, fields: Fields, rev: &mut dyn FnMut() -> String) -> Write {
        Write { name: name.to_owned(), expect: self.expect(name), act: Act::Put(Item { rev: rev(), fields }) }
    }

    fn check(&self, name: String) -> Write {
        Write { expect: self.expect(&name), name, act: Act::Check }
    }
}

/// What must be written together: each changed node with the instances that it is about.
fn units(there: There<'_>, wanted: &Mapping, rev: &mut dyn FnMut() -> String) -> Vec<Vec<Write>> {
    let nodes: BTreeSet<&String> = there.mapping.nodes.keys().chain(wanted.nodes.keys()).collect();
    let changed: BTreeMap<&str, Option<&NodeEntry>> = nodes
        .into_iter()
        .map(|node| (node.as_str(), there.mapping.nodes.get(node), wanted.nodes.get(node)))
        .filter(|(_, old, new)| old != new)
        .map(|(node, _, new)| (node, new))
        .collect();
    let freed_from: BTreeMap<&str, &str> =
        changed.keys().filter_map(|node| Some((there.mapping.nodes.get(*node)?.instance_id.as_deref()?, *node))).collect();
    let condemned: Vec<(&String, &Condemned)> =
        wanted.condemned.iter().filter(|(id, condemned)| there.mapping.condemned.get(*id) != Some(*condemned)).collect();
    // By the node, or by the instance where no node is known.
    let mut units: BTreeMap<String, Vec<Write>> = BTreeMap::new();
    for (id, condemned) in condemned {
        let name = codec::condemned_name(id);
        let node = freed_from.get(id.as_str()).copied().or(condemned.node.as_deref());
        let unit = units.entry(node.map_or_else(|| name.clone(), codec::node_name)).or_default();
        unit.push(there.put(&name, codec::condemned(condemned), rev));
        // A node that is left as it is must still be that when its supposed instance goes.
        if let Some(node) = node.filter(|node| !changed.contains_key(node)) {
            unit.push(there.check(codec::node_name(node)));
        }
    }
    for (node, entry) in changed {
        let name = codec::node_name(node);
        let unit = units.entry(name.clone()).or_default();
        match entry {
            None => unit.push(Write { expect: there.expect(&name), name, act: Act::Delete }),
            Some(entry) => {
                // Nobody may have condemned the instance in the meantime.
                let before = there.mapping.nodes.get(node).and_then(|entry| entry.instance_id.as_ref());
                if let Some(id) = entry.instance_id.as_ref().filter(|id| before != Some(*id)) {
                    unit.push(there.check(codec::condemned_name(id)));
                }
                unit.push(there.put(&name, codec::entry(entry), rev));
            }
        }
    }
    units.into_values().collect()
}

/// Units into transactions, each whole in one of them as long as DynamoDB's limits allow it.
fn pack(units: Vec<Vec<Write>>, actions: usize) -> Vec<Transaction> {
    let mut transactions = Vec::new();
    let (mut open, mut names, mut bytes): (Transaction, BTreeMap<String, bool>, usize) = Default::default();
    for unit in units {
        let weight: usize = unit.iter().map(weight).sum();
        // An item comes once in a transaction; a second look at it is none.
        let clash = unit.iter().any(|write| names.get(&write.name).is_some_and(|check| !(*check && write.act == Act::Check)));
        if !open.is_empty() && (clash || open.len() + unit.len() > actions || bytes + weight > BYTES) {
            transactions.push(std::mem::take(&mut open));
            names.clear();
            bytes = 0;
        }
        for write in unit {
            let check = write.act == Act::Check;
            if check && names.contains_key(&write.name) {
                continue;
            }
            // Only a unit that is larger than any transaction gets here: dozens of instances behind one node.
            if open.len() == actions {
                transactions.push(std::mem::take(&mut open));
                names.clear();
            }
            names.insert(write.name.clone(), check);
            open.push(write);
        }
        bytes += weight;
    }
    if !open.is_empty() {
        transactions.push(open);
    }
    transactions
}

fn weight(write: &Write) -> usize {
    let fields = match &write.act {
        Act::Put(item) => item.fields.iter().map(|(name, value)| name.len() + value.as_str().map_or(8, str::len)).sum(),
        Act::Delete | Act::Check => 0,
    };
    write.name.len() + fields + 100
}
