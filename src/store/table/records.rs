//! Launch records as items: begun with their claims, added to while the run lives, taken over when it is certain to be over.
//!
//! **Whose it is.** There is no lock that goes with a process. A record belongs to its run until `expires`, and to a program that
//! recovers it until `recovered_until`, unless they let go of it before; only [`SKEW`] after that may somebody else take it, by a
//! conditional write of the header. Head nodes' clocks differ by less than that, and a run ends itself at its deadline, by a clock
//! that is never set.
//!
//! Whatever is added to a record is one transaction with a look at the header's revision, which every change of hands renews: a run
//! whose record was taken or removed cannot announce anything more.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::TableStore;
use super::codec::{self, Fields, Head, Launch, Recoverer};
use super::items::{Act, Expect, Item, Items, Transaction, Write};
use crate::error::chain;
use crate::model::time::Timestamp;
use crate::store::atomic::random_hex;
use crate::store::error::StoreError;
use crate::store::launch_record::{DeadRecord, FoundRecord, Hold, RecordEvent, RecordState};

/// How far the clocks of head nodes may lie apart.
pub(super) const SKEW: Duration = Duration::from_secs(60);

/// How long a change of a record is waited for; the file's fsync has no limit at all.
const WAIT: Duration = Duration::from_secs(10);

/// How long letting go of a record is waited for; without it the next program takes it at `recovered_until`.
const RELEASE_WAIT: Duration = Duration::from_secs(2);

const GONE: &str = "the launch record was finished or taken over by another program";

/// A record that may be written to.
#[derive(Debug)]
pub(super) struct Journal {
    items: Arc<dyn Items>,
    launch: String,
    /// The header's revision as long as the record is ours.
    rev: String,
    next_event: u32,
    /// All of its items.
    names: Vec<String>,
}

impl Journal {
    pub(super) fn new(store: &TableStore, launch: &str, rev: String, next_event: u32, names: Vec<String>) -> Self {
        Self { items: Arc::clone(&store.items), launch: launch.to_owned(), rev, next_event, names }
    }

    fn append(&mut self, events: &[RecordEvent]) -> io::Result<()> {
        let mut puts = Vec::new();
        for part in events.chunks(codec::EVENTS_PER_ITEM) {
            let name = codec::event_name(&self.launch, self.next_event);
            let item = Item { rev: random_hex(8)?, fields: codec::events(part)? };
            // Never used again, whatever becomes of this one.
            self.next_event += 1;
            self.names.push(name.clone());
            puts.push(Write { name, expect: Expect::Absent, act: Act::Put(item) });
        }
        for part in puts.chunks(self.items.actions() - 1) {
            let expect = Expect::Rev(self.rev.clone());
            let check = Write { name: codec::header_name(&self.launch), expect, act: Act::Check };
            let transaction = std::iter::once(check).chain(part.iter().cloned()).collect();
            if !self.send(transaction, WAIT)? {
                return Err(io::Error::other(GONE));
            }
        }
        Ok(())
    }

    /// Removes the record, header first; if somebody else has it by now, it is theirs.
    fn remove(&self) -> io::Result<()> {
        let header = codec::header_name(&self.launch);
        let mut writes = vec![Write { name: header.clone(), expect: Expect::Rev(self.rev.clone()), act: Act::Delete }];
        let rest = self.names.iter().filter(|name| **name != header);
        writes.extend(rest.map(|name| Write { name: name.clone(), expect: Expect::Anything, act: Act::Delete }));
        for transaction in writes.chunks(self.items.actions()) {
            if !self.send(transaction.to_vec(), WAIT)? {
                break;
            }
        }
        Ok(())
    }

    /// The last thing that is done with it; nobody can be told if that fails.
    fn let_go(&self, header: Fields) {
        if let Ok(rev) = random_hex(8) {
            let (expect, act) = (Expect::Rev(self.rev.clone()), Act::Put(Item { rev, fields: header }));
            let _ = self.send(vec![Write { name: codec::header_name(&self.launch), expect, act }], RELEASE_WAIT);
        }
    }

    fn send(&self, transaction: Transaction, wait: Duration) -> io::Result<bool> {
        let answer = self.items.write(vec![transaction], Instant::now() + wait).pop();
        answer.unwrap_or(Ok(false)).map_err(|error| io::Error::other(chain(&error)))
    }
}

/// The record of the run that is going on.
#[derive(Debug)]
pub(crate) struct Running {
    journal: Mutex<Journal>,
    /// The header's fields as they were written.
    header: Fields,
    removed: bool,
}

impl Running {
    pub(super) fn new(journal: Journal, header: Fields) -> Self {
        Self { journal: Mutex::new(journal), header, removed: false }
    }

    pub(in crate::store) fn append(&self, events: &[RecordEvent]) -> io::Result<()> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner).append(events)
    }

    pub(in crate::store) fn finish(mut self) -> Result<(), StoreError> {
        self.removed = true;
        let journal = self.journal.get_mut().unwrap_or_else(PoisonError::into_inner);
        journal.remove().map_err(|source| cannot_remove(&journal.launch, source))
    }
}

impl Drop for Running {
    /// A run that ends and leaves its record says so: the next program need not wait for `expires`.
    fn drop(&mut self) {
        if !self.removed {
            let journal = self.journal.get_mut().unwrap_or_else(PoisonError::into_inner);
            journal.let_go(codec::ended(&self.header));
        }
    }
}

/// A dead run's record, taken over.
#[derive(Debug)]
pub(crate) struct Recovered {
    journal: Journal,
    /// The header's fields without a recoverer.
    header: Fields,
    removed: bool,
}

impl Recovered {
    pub(in crate::store) fn append(&mut self, events: &[RecordEvent]) -> io::Result<()> {
        self.journal.append(events)
    }

    pub(in crate::store) fn delete(mut self) -> Result<(), StoreError> {
        self.removed = true;
        self.journal.remove().map_err(|source| cannot_remove(&self.journal.launch, source))
    }
}

impl Drop for Recovered {
    /// Lets go, so that the next program need not wait for `recovered_until`.
    fn drop(&mut self) {
        if !self.removed {
            self.journal.let_go(self.header.clone());
        }
    }
}

fn cannot_remove(launch: &str, source: io::Error) -> StoreError {
    StoreError::Io { what: "remove launch record", path: launch.into(), source }
}

/// Launch ids whose run may be at work, and those that a program may be recovering.
pub(super) fn at_work(launches: &BTreeMap<String, Launch>, now: Timestamp) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut live, mut recovered) = (BTreeSet::new(), BTreeSet::new());
    for (launch, items) in launches {
        let Some(head) = items.header.as_ref().and_then(|item| codec::header(launch, item).ok()) else { continue };
        if head.recoverer.as_ref().is_some_and(|recoverer| recoverer.may_work(now)) {
            recovered.insert(launch.clone());
        } else if head.run_may_work(now) {
            live.insert(launch.clone());
        }
    }
    (live, recovered)
}

/// Launch ids of all records, and those that their batches went out under.
pub(super) fn recorded(launches: &BTreeMap<String, Launch>) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (launch, items) in launches {
        let Some(header) = &items.header else { continue };
        all.insert(launch.clone());
        let found = codec::header(launch, header).and_then(|head| codec::found(launch, items, head.header));
        all.extend(found.iter().flat_map(FoundRecord::launches));
    }
    all
}

impl Recoverer {
    fn may_work(&self, now: Timestamp) -> bool {
        now <= self.until + SKEW
    }
}

impl Head {
    fn run_may_work(&self, now: Timestamp) -> bool {
        !self.ended && now <= self.header.expires + SKEW
    }
}

/// A dead run's record that is there to be taken.
struct Free<'a> {
    launch: &'a str,
    items: &'a Launch,
    record: FoundRecord,
    header: &'a Item,
}

impl TableStore {
    /// All records, with those of dead runs taken for this program until `until`. Sweeps up what is left of removed ones.
    pub(super) fn records(
        &self,
        launches: &BTreeMap<String, Launch>,
        now: Timestamp,
        until: Timestamp,
        limit: Instant,
    ) -> Result<Vec<RecordState>, StoreError> {
        let (mut states, mut free, mut litter) = (Vec::new(), Vec::new(), Vec::new());
        for (launch, items) in launches {
            let Some(header) = &items.header else {
                litter.extend(sweep(launch, items, self.items.actions()));
                continue;
            };
            let read = codec::header(launch, header).and_then(|head| {
                let run_may_work = head.run_may_work(now);
                let recovered_by = head.recoverer.filter(|recoverer| recoverer.may_work(now)).map(|recoverer| recoverer.who);
                let at_work = run_may_work || recovered_by.is_some();
                Ok((codec::found(launch, items, head.header)?, at_work, recovered_by))
            });
            match read {
                Err(why) => {
                    let name = format!("{} of table {}", codec::header_name(launch), self.table);
                    states.push(RecordState::Unreadable { name, why });
                }
                Ok((record, true, recovered_by)) => states.push(RecordState::Live { record, recovered_by }),
                Ok((record, false, _)) => free.push(Free { launch, items, record, header }),
            }
        }
        self.items.write(litter, limit);
        states.extend(self.take(free, until, limit)?);
        Ok(states)
    }

    /// Each by a conditional write of its header: one program gets it.
    fn take(&self, free: Vec<Free<'_>>, until: Timestamp, limit: Instant) -> Result<Vec<RecordState>, StoreError> {
        let recoverer = Recoverer { who: who(), until };
        let mut transactions = Vec::new();
        let mut revs = Vec::new();
        for Free { launch, header, .. } in &free {
            let rev = random_hex(8).map_err(|source| self.io("make a random id for", source))?;
            let item = Item { rev: rev.clone(), fields: codec::recovered(header, Some(&recoverer)) };
            let expect = Expect::Rev(header.rev.clone());
            transactions.push(vec![Write { name: codec::header_name(launch), expect, act: Act::Put(item) }]);
            revs.push(rev);
        }
        let answers = self.items.write(transactions, limit);
        let mut states = Vec::new();
        for ((free, rev), answer) in free.into_iter().zip(revs).zip(answers) {
            let Free { launch, items, record, header } = free;
            if answer.map_err(|error| self.error("write to", error))? {
                let names = items.rest.keys().cloned().collect();
                let journal = Journal::new(self, launch, rev, codec::next_event(launch, items), names);
                let header = codec::recovered(header, None);
                let hold = Hold::Table(Recovered { journal, header, removed: false });
                states.push(RecordState::Dead(DeadRecord { record, hold }));
            } else {
                let recovered_by = Some("another program, just now".to_owned());
                states.push(RecordState::Live { record, recovered_by });
            }
        }
        Ok(states)
    }
}

/// Removes what has no header, if it really has none: names are read one after the other.
fn sweep(launch: &str, items: &Launch, actions: usize) -> Vec<Transaction> {
    let writes: Vec<Write> = items
        .rest
        .iter()
        .map(|(name, item)| Write { name: name.clone(), expect: Expect::Rev(item.rev.clone()), act: Act::Delete })
        .collect();
    let with_check = |writes: &[Write]| {
        let check = Write { name: codec::header_name(launch), expect: Expect::Absent, act: Act::Check };
        std::iter::once(check).chain(writes.iter().cloned()).collect()
    };
    writes.chunks(actions - 1).map(with_check).collect()
}

/// This program, for others' messages.
pub(super) fn who() -> String {
    format!("{} on {}", crate::store::lock::this_process(), host())
}

/// This machine's name.
pub(super) fn host() -> String {
    nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
