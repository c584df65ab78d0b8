//! A table in memory: transactions are carried out one after the other, each handle may be held up, interrupted and killed before any
//! of them, and after each one it is checked that no instance got lost and no claim is without its record.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use serde_json::Value;

use super::items::{Act, Expect, Item, Items, Transaction};
use crate::aws::error::AwsError;
use crate::dynamodb::SERVICE;
use crate::model::failure::ErrorClass;

/// What all handles share.
#[derive(Debug, Default)]
pub(super) struct Table {
    items: Mutex<BTreeMap<String, Item>>,
    turns: Mutex<Turns>,
    moved: Condvar,
}

/// Whose turn it is; without a schedule everybody's.
#[derive(Debug, Default)]
struct Turns {
    schedule: Vec<usize>,
    next: usize,
    ended: BTreeSet<usize>,
}

impl Table {
    pub(super) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(super) fn schedule(&self, schedule: Vec<usize>) {
        *self.turns.lock().unwrap() = Turns { schedule, ..Turns::default() };
    }

    /// Waits for the turn of `who`. Who has ended is passed over.
    fn turn(&self, who: usize) {
        let mut turns = self.turns.lock().unwrap();
        loop {
            while turns.schedule.get(turns.next).is_some_and(|next| turns.ended.contains(next)) {
                turns.next += 1;
            }
            match turns.schedule.get(turns.next) {
                Some(next) if *next != who => turns = self.moved.wait(turns).unwrap(),
                _ => break,
            }
        }
        turns.next += 1;
        self.moved.notify_all();
    }

    /// Ends `who`'s turns when it is dropped, by a panic too.
    pub(super) fn ends(&self, who: usize) -> impl Drop + '_ {
        Ends { table: self, who }
    }

    pub(super) fn items(&self) -> BTreeMap<String, Item> {
        self.items.lock().unwrap().clone()
    }

    pub(super) fn insert(&self, name: &str, fields: Value) {
        let Value::Object(fields) = fields else { panic!("no fields") };
        self.items.lock().unwrap().insert(name.to_owned(), Item { rev: format!("by-hand-{name}"), fields });
    }

    pub(super) fn put(&self, name: &str, item: Item) {
        self.items.lock().unwrap().insert(name.to_owned(), item);
    }

    pub(super) fn remove(&self, name: &str) {
        self.items.lock().unwrap().remove(name);
    }

    fn carry_out(&self, transaction: &Transaction) -> bool {
        let mut items = self.items.lock().unwrap();
        let names: BTreeSet<&String> = transaction.iter().map(|write| &write.name).collect();
        assert_eq!(names.len(), transaction.len(), "DynamoDB takes an item once: {transaction:?}");
        let as_expected = transaction.iter().all(|write| match &write.expect {
            Expect::Absent => !items.contains_key(&write.name),
            Expect::Rev(rev) => items.get(&write.name).is_some_and(|item| item.rev == *rev),
            Expect::Anything => true,
        });
        if !as_expected {
            return false;
        }
        let (mapped, condemned) = instances(&items);
        let before: BTreeSet<String> = mapped.keys().cloned().chain(condemned).collect();
        let mut released = BTreeSet::new();
        for write in transaction {
            match &write.act {
                Act::Put(item) => drop(items.insert(write.name.clone(), item.clone())),
                Act::Delete => {
                    released.extend(write.name.strip_prefix("condemned#").map(str::to_owned));
                    items.remove(&write.name);
                }
                Act::Check => {}
            }
        }
        let (mapped, condemned) = instances(&items);
        let after: BTreeSet<String> = mapped.keys().cloned().chain(condemned.clone()).collect();
        let lost: Vec<_> = before.difference(&after).filter(|id| !released.contains(*id)).collect();
        assert!(lost.is_empty(), "lost {lost:?} by {transaction:?}");
        for (id, nodes) in &mapped {
            assert_eq!(*nodes, 1, "{id} stands behind several nodes after {transaction:?}");
            assert!(!condemned.contains(id), "{id} is condemned and behind a node after {transaction:?}");
        }
        for (name, item) in items.iter().filter(|(name, _)| name.starts_with("node#")) {
            let launch = item.fields["launch"].as_str().unwrap();
            let recorded = item.fields["state"] != "launching" || items.contains_key(&format!("launch#{launch}"));
            assert!(recorded, "the claim of {name} is without record after {transaction:?}");
        }
        true
    }
}

struct Ends<'a> {
    table: &'a Table,
    who: usize,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if let Ok(mut turns) = self.table.turns.lock() {
            turns.ended.insert(self.who);
        }
        self.table.moved.notify_all();
    }
}

/// Mapped instances with the number of their nodes, and condemned ones.
fn instances(items: &BTreeMap<String, Item>) -> (BTreeMap<String, u32>, BTreeSet<String>) {
    let mut mapped = BTreeMap::new();
    for (_, item) in items.iter().filter(|(name, _)| name.starts_with("node#")) {
        if let Some(id) = item.fields.get("instance_id").and_then(Value::as_str) {
            *mapped.entry(id.to_owned()).or_default() += 1;
        }
    }
    let condemned = items.keys().filter_map(|name| name.strip_prefix("condemned#")).map(str::to_owned).collect();
    (mapped, condemned)
}

type Hook = Box<dyn FnMut(usize) + Send>;

/// The table as one program reaches it.
pub(super) struct Handle {
    table: Arc<Table>,
    who: usize,
    /// Actions in one transaction.
    actions: usize,
    /// Called before each transaction with its number, from 0.
    before: Mutex<Option<Hook>>,
    done: Mutex<usize>,
    /// Dead once so many transactions were carried out.
    killed_after: Option<usize>,
    /// The answer to this transaction is lost, and its repetition refused.
    lost: Option<usize>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "handle {}", self.who)
    }
}

impl Handle {
    pub(super) fn new(table: &Arc<Table>) -> Self {
        let (before, done) = (Mutex::new(None), Mutex::new(0));
        Self { table: Arc::clone(table), who: 0, actions: 4, before, done, killed_after: None, lost: None }
    }

    pub(super) fn who(self, who: usize) -> Self {
        Self { who, ..self }
    }

    pub(super) fn killed_after(self, transactions: usize) -> Self {
        Self { killed_after: Some(transactions), ..self }
    }

    pub(super) fn lost(self, transaction: usize) -> Self {
        Self { lost: Some(transaction), ..self }
    }

    pub(super) fn before(self, hook: impl FnMut(usize) + Send + 'static) -> Self {
        Self { before: Mutex::new(Some(Box::new(hook))), ..self }
    }

    fn alive(&self) -> Result<(), AwsError> {
        if self.killed_after.is_some_and(|limit| *self.done.lock().unwrap() >= limit) {
            return Err(AwsError::new(SERVICE, "Killed", "Killed", ErrorClass::Other, "the program is dead"));
        }
        Ok(())
    }
}

impl Items for Handle {
    fn actions(&self) -> usize {
        self.actions
    }

    fn all(&self, _until: Instant) -> Result<BTreeMap<String, Item>, AwsError> {
        self.alive()?;
        self.table.turn(self.who);
        Ok(self.table.items())
    }

    fn get(&self, name: &str, _until: Instant) -> Result<Option<Item>, AwsError> {
        self.alive()?;
        self.table.turn(self.who);
        Ok(self.table.items().remove(name))
    }

    fn write(&self, transactions: Vec<Transaction>, _until: Instant) -> Vec<Result<bool, AwsError>> {
        let one = |transaction| {
            self.alive()?;
            let number = *self.done.lock().unwrap();
            // Taken out while it runs, since it may use this very handle's table.
            let hook = self.before.lock().unwrap().take();
            if let Some(mut hook) = hook {
                hook(number);
                *self.before.lock().unwrap() = Some(hook);
            }
            self.table.turn(self.who);
            let answer = self.table.carry_out(&transaction);
            *self.done.lock().unwrap() += 1;
            Ok(answer && self.lost != Some(number))
        };
        transactions.into_iter().map(one).collect()
    }
}
