//! A change of the mapping where there is no lock: read, run the change, write each item only if it is still as read.
//!
//! Where somebody else was faster, everything is read again and the change runs again. What it wrote itself by then, and nobody
//! touched since, it sees as it was before, so that it decides the same for it; all the rest it sees as it is, and a node that
//! another run claimed in between is theirs. What already is as wanted is not written again. So in the end the table is as if the
//! change had run once, at the end, under a lock.
//!
//! Killed, or out of time, in the middle: see `plan.rs` for the order of the writes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::TableStore;
use super::codec::{self, Fields};
use super::items::{Act, Item, Transaction};
use super::plan::{self, There, Wanted};
use super::records::{self, Journal, Running};
use crate::aws::again::Pauses;
use crate::model::time::Timestamp;
use crate::store::atomic::random_hex;
use crate::store::door::{Draft, Shared};
use crate::store::error::StoreError;

/// Pauses before a change runs again.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What this change has written so far.
#[derive(Debug, Default)]
struct Own(BTreeMap<String, Written>);

#[derive(Debug)]
struct Written {
    /// What was there before the change; `None` = nothing.
    old: Option<Item>,
    /// The revisions it may have been written with, the last one last; `None` = removed.
    revs: Vec<Option<String>>,
}

impl Own {
    /// Takes what was written; `done` = certainly, else perhaps (an answer that was lost, and a repetition that came too late):
    /// then the next look tells, since no revision is given twice.
    fn note(&mut self, there: &BTreeMap<String, Item>, transaction: &Transaction, done: bool) {
        for write in transaction {
            let rev = match &write.act {
                Act::Put(item) => Some(item.rev.clone()),
                Act::Delete if done => None,
                // That it is gone does not tell who removed it.
                Act::Delete | Act::Check => continue,
            };
            let new = || Written { old: there.get(&write.name).cloned(), revs: Vec::new() };
            self.0.entry(write.name.clone()).or_insert_with(new).revs.push(rev);
        }
    }

    /// Forgets what somebody else has written since.
    fn forget_touched(&mut self, there: &BTreeMap<String, Item>) {
        self.0.retain(|name, written| {
            let now = there.get(name).map(|item| item.rev.clone());
            let ours = written.revs.contains(&now);
            written.revs = vec![now];
            ours
        });
    }

    /// The revision that an item was last written with.
    fn rev(&self, name: &str) -> Option<String> {
        self.0.get(name)?.revs.last()?.clone()
    }

    /// The items as they would be without this change.
    fn undone(&self, there: &BTreeMap<String, Item>) -> BTreeMap<String, Item> {
        let mut items = there.clone();
        for (name, written) in &self.0 {
            match &written.old {
                Some(old) => drop(items.insert(name.clone(), old.clone())),
                None => drop(items.remove(name)),
            }
        }
        items
    }
}

impl TableStore {
    /// Runs `change` until what it wants is written. `begin`: the mapping exists afterwards, whatever the change was.
    pub(super) fn run<T>(
        &self,
        wait: Duration,
        now: Timestamp,
        begin: bool,
        mut change: impl FnMut(&mut Draft) -> Option<T>,
    ) -> Result<Option<(T, Option<Running>)>, StoreError> {
        self.check_writable()?;
        let until = Instant::now() + wait.max(self.least_wait);
        let mut pauses = Pauses::new(FIRST_PAUSE, LONGEST_PAUSE, until);
        let mut own = Own::default();
        loop {
            let there = self.fetch(until)?;
            own.forget_touched(&there);
            let content = self.content(&own.undone(&there))?;
            let (live, recovered) = records::at_work(&content.launches, now);
            let before = Shared(Arc::new(content.mapping));
            let recorded = records::recorded(&content.launches);
            let mut draft = Draft { mapping: before.clone(), live, recovered, recorded, record: None };
            let value = change(&mut draft);
            if value.is_none() {
                // Taken back, as far as an earlier try wrote anything.
                (draft.mapping, draft.record) = (before, None);
            }
            let record = self.record_items(&draft, &there, &own)?;
            let written: Vec<String> = own.0.keys().filter(|name| codec::is_of_record(name)).cloned().collect();
            let mapping = self.content(&there)?.mapping;
            let wanted = Wanted { mapping: &draft.mapping, record: &record, written: &written, begin: begin && value.is_some() };
            let random = random_hex(4).map_err(|source| self.io("make a random id for", source))?;
            let mut count = 0;
            let mut rev = || {
                count += 1;
                format!("{}-{random}-{count}", self.run_id)
            };
            let stages = plan::stages(There { items: &there, mapping: &mapping }, wanted, self.items.actions(), &mut rev);
            if self.write(stages, &there, &mut own, until)? {
                let Some(value) = value else { return Ok(None) };
                let running = draft.record.map(|(begun, events)| {
                    let rev = own.rev(&codec::header_name(&begun.launch)).unwrap_or_default();
                    let header = record.first().map(|(_, fields)| fields.clone()).unwrap_or_default();
                    let names = record.into_iter().map(|(name, _)| name).collect();
                    let journal = Journal::new(self, &begun.launch, rev, codec::items_of(events.len()), names);
                    Running::new(journal, header)
                });
                return Ok(Some((value, running)));
            }
            match pauses.next() {
                Some(pause) => std::thread::sleep(pause),
                None => return Err(self.contended(wait)),
            }
        }
    }

    fn record_items(
        &self,
        draft: &Draft,
        there: &BTreeMap<String, Item>,
        own: &Own,
    ) -> Result<Vec<(String, Fields)>, StoreError> {
        let Some((header, events)) = &draft.record else { return Ok(Vec::new()) };
        let refuse = |why| StoreError::Launch { launch: header.launch.clone(), why };
        if !crate::store::launch_record::is_name(&header.launch) {
            return Err(refuse("must be 1 to 64 letters, digits, - or _"));
        }
        let name = codec::header_name(&header.launch);
        if there.contains_key(&name) && !own.0.contains_key(&name) {
            return Err(refuse("is in use: a launch record of that name exists"));
        }
        codec::record(header, events).map_err(|error| self.io("write a launch record to", error.into()))
    }

    /// `false` = something was not as read; stages after that did not go out.
    fn write(
        &self,
        stages: Vec<Vec<Transaction>>,
        there: &BTreeMap<String, Item>,
        own: &mut Own,
        until: Instant,
    ) -> Result<bool, StoreError> {
        for stage in stages {
            let answers = self.items.write(stage.clone(), until);
            let mut all = true;
            let mut failed = None;
            for (transaction, answer) in stage.iter().zip(answers) {
                match answer {
                    Ok(done) => {
                        own.note(there, transaction, done);
                        all &= done;
                    }
                    Err(error) => failed = Some(error),
                }
            }
            if let Some(error) = failed {
                return Err(self.error("write to", error));
            }
            if !all {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
