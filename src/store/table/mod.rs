//! The DynamoDB store: the mapping of a cluster as items of a table, for several head nodes (architecture.md "The mapping").
//!
//! A table of our own (hash key `cluster`, range key `item`, both strings), never ParallelCluster's node table. Reads are
//! consistent, every write is conditional on the revision that was read, and there is no lock: see `change.rs`. Launch records:
//! see `records.rs`. What is in the items: see `codec.rs`. What concerns one machine alone (request bucket, back-offs, boot
//! failures) stays in the state folder.

mod change;
mod codec;
mod items;
mod lease;
mod plan;
pub(crate) mod records;
mod worker;

#[cfg(test)]
mod memory;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::codec::Content;
use self::items::{Act, Expect, Item, Items, Remote, Write};
use self::worker::Worker;
use super::atomic::random_hex;
use super::door::{Draft, Kept, Look, Peek};
use super::error::StoreError;
use super::file;
use super::launch_record::LiveRecord;
use crate::aws::error::AwsError;
use crate::config::settings::Settings;
use crate::dynamodb::items::Partition;
use crate::model::mapping::{Mapping, NodeState};
use crate::model::time::Timestamp;

/// How long `open` waits for the table. Credentials and the first connection are in it.
const OPEN_WAIT: Duration = Duration::from_secs(15);

/// The least that a change or a look gets: it is a handful of round trips where the file's lock is one try. A run may overrun its
/// end by so much, since its record expires a minute later.
const LEAST_WAIT: Duration = Duration::from_secs(3);

/// How long a mere look is waited for.
const READ_WAIT: Duration = Duration::from_secs(15);

/// One cluster's part of a table.
#[derive(Debug)]
pub(crate) struct TableStore {
    items: Arc<dyn Items>,
    table: String,
    region: String,
    /// The state folder, for what is this machine's own.
    dir: PathBuf,
    cluster: String,
    state_id: String,
    is_new: bool,
    read_only: bool,
    /// [`LEAST_WAIT`]; tests have less patience.
    least_wait: Duration,
    /// Makes the revisions that this process writes its own.
    run_id: String,
}

impl TableStore {
    /// Opens the table and the state folder, and makes sure of what a launch needs later: a table of our form, the right to read
    /// and write it, a state id.
    pub(crate) fn open(settings: &Settings, table: &str) -> Result<Self, StoreError> {
        file::prepare(&settings.state_dir)?;
        Self::remote(settings, table)?.opened(Instant::now() + OPEN_WAIT)
    }

    /// For a dry run: creates and writes nothing.
    pub(crate) fn open_read_only(settings: &Settings, table: &str) -> Result<Self, StoreError> {
        let mut store = Self::remote(settings, table)?;
        store.read_only = true;
        store.state_id = store.read_state_id(Instant::now() + OPEN_WAIT)?.unwrap_or_default();
        Ok(store)
    }

    fn remote(settings: &Settings, table: &str) -> Result<Self, StoreError> {
        let connect = |source| StoreError::table("connect to", table, &settings.region, source);
        let worker = Worker::start(settings.aws.clone(), settings.region.clone()).map_err(connect)?;
        let partition = Partition { table: table.to_owned(), cluster: settings.cluster.clone() };
        let items = Arc::new(Remote { worker, partition });
        Self::over(items, table, &settings.region, &settings.state_dir, &settings.cluster)
    }

    fn over(items: Arc<dyn Items>, table: &str, region: &str, dir: &Path, cluster: &str) -> Result<Self, StoreError> {
        let run_id =
            random_hex(8).map_err(|source| StoreError::Io { what: "make a random id for", path: table.into(), source })?;
        Ok(Self {
            items,
            table: table.to_owned(),
            region: region.to_owned(),
            dir: dir.to_owned(),
            cluster: cluster.to_owned(),
            state_id: String::new(),
            is_new: false,
            read_only: false,
            least_wait: LEAST_WAIT,
            run_id,
        })
    }

    /// The state id is the table's, shared by all head nodes. A table that has none yet gets the state folder's, if that has one:
    /// so the instances of a site that changes from the file store, or makes its table anew, stay its own.
    fn opened(mut self, until: Instant) -> Result<Self, StoreError> {
        let folders = file::read_state_id(&self.dir)?;
        if let Some(id) = self.read_state_id(until)? {
            self.state_id = id;
        } else {
            let made = match &folders {
                Some(id) => id.clone(),
                None => file::new_state_id().map_err(|source| self.io("make a random id for", source))?,
            };
            let rev = random_hex(8).map_err(|source| self.io("make a random id for", source))?;
            let act = Act::Put(Item { rev, fields: codec::state_id(&made) });
            let write = Write { name: codec::STATE_ID.to_owned(), expect: Expect::Absent, act };
            let answer = self.items.write(vec![vec![write]], until).pop().unwrap_or(Ok(false));
            let written = answer.map_err(|error| self.error("write to", error))?;
            self.is_new = written && folders.is_none();
            // Another head node may have been faster.
            self.state_id = if written { made } else { self.read_state_id(until)?.unwrap_or_default() };
        }
        match folders {
            None => file::keep_state_id(&self.dir, &self.state_id)?,
            Some(id) if id != self.state_id => tracing::warn!(
                table = self.table,
                state_id = self.state_id,
                "the state folder {} has another state id ({id}): instances launched under it are left alone",
                self.dir.display()
            ),
            Some(_) => {}
        }
        Ok(self)
    }

    fn read_state_id(&self, until: Instant) -> Result<Option<String>, StoreError> {
        let Some(item) = self.items.get(codec::STATE_ID, until).map_err(|error| self.error("read", error))? else {
            return Ok(None);
        };
        match codec::state_id_of(&item).filter(|id| file::is_state_id(id)) {
            Some(id) => Ok(Some(id.to_owned())),
            None => Err(self.refused(codec::STATE_ID, "it does not hold 16 hexadecimal digits".to_owned())),
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn state_id(&self) -> &str {
        &self.state_id
    }

    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    pub(crate) fn read(&self) -> Result<Mapping, StoreError> {
        let items = self.items.all(Instant::now() + READ_WAIT).map_err(|error| self.error("read", error))?;
        self.content(&items).map(|content| content.mapping)
    }

    pub(crate) fn update<T>(&self, wait: Duration, mut change: impl FnMut(&mut Mapping) -> T) -> Result<T, StoreError> {
        // No record is begun or looked at: the time does not matter.
        let changed = self.run(wait, Timestamp::from_secs(0), false, |draft| Some(change(&mut draft.mapping)))?;
        changed.map(|(value, _)| value).ok_or_else(|| self.contended(wait))
    }

    pub(crate) fn change<T>(
        &self,
        wait: Duration,
        now: Timestamp,
        change: impl FnMut(&mut Draft) -> Option<T>,
    ) -> Result<Option<(T, Option<LiveRecord>)>, StoreError> {
        let changed = self.run(wait, now, true, change)?;
        Ok(changed.map(|(value, record)| (value, record.map(LiveRecord::Table))))
    }

    pub(crate) fn look(&self, wait: Duration, now: Timestamp, until: Timestamp) -> Result<Look, StoreError> {
        self.check_writable()?;
        let limit = Instant::now() + wait.max(self.least_wait);
        let content = self.content(&self.fetch(limit)?)?;
        let records = self.records(&content.launches, now, until, limit)?;
        Ok(Look { mapping: Arc::new(content.mapping), existed: content.existed, records })
    }

    pub(crate) fn peek(&self) -> Result<Peek, StoreError> {
        let content = self.content(&self.fetch(Instant::now() + READ_WAIT)?)?;
        let recorded = records::recorded(&content.launches);
        Ok(Peek { mapping: Arc::new(content.mapping), existed: content.existed, recorded })
    }

    /// See [`Store::see`](super::door::Store::see).
    pub(crate) fn see(&self, wait: Duration, now: Timestamp) -> Result<Kept, StoreError> {
        let mut seen = None;
        self.run(wait, now, true, |draft| {
            let mapping = Arc::clone(&draft.mapping.0);
            let (live, recorded) = (std::mem::take(&mut draft.live), std::mem::take(&mut draft.recorded));
            seen = Some(Kept { mapping, live, recorded });
            None::<()>
        })?;
        seen.ok_or_else(|| self.contended(wait))
    }

    /// Everything, with the header of each launch that holds a claim: records are there before claims but are read before them, so a
    /// launch that began in between is asked for by name.
    fn fetch(&self, until: Instant) -> Result<BTreeMap<String, Item>, StoreError> {
        let mut items = self.items.all(until).map_err(|error| self.error("read", error))?;
        let content = self.content(&items)?;
        let claims = content.mapping.nodes.values().filter(|entry| entry.state == NodeState::Launching);
        let mut unseen: Vec<&String> =
            claims.map(|entry| &entry.launch).filter(|launch| !content.launches.contains_key(*launch)).collect();
        unseen.sort_unstable();
        unseen.dedup();
        for launch in unseen {
            let name = codec::header_name(launch);
            if let Some(item) = self.items.get(&name, until).map_err(|error| self.error("read", error))? {
                items.insert(name, item);
            }
        }
        Ok(items)
    }

    fn content(&self, items: &BTreeMap<String, Item>) -> Result<Content, StoreError> {
        codec::read(items, &self.cluster).map_err(|problem| self.refused(&problem.item, problem.why))
    }

    fn check_writable(&self) -> Result<(), StoreError> {
        if self.read_only { Err(StoreError::ReadOnly { path: self.table.clone().into() }) } else { Ok(()) }
    }

    fn error(&self, what: &'static str, source: AwsError) -> StoreError {
        StoreError::table(what, &self.table, &self.region, source)
    }

    fn refused(&self, item: &str, why: String) -> StoreError {
        StoreError::Item { table: self.table.clone(), cluster: self.cluster.clone(), item: item.to_owned(), why }
    }

    fn contended(&self, waited: Duration) -> StoreError {
        StoreError::Contended { table: self.table.clone(), waited }
    }

    fn io(&self, what: &'static str, source: io::Error) -> StoreError {
        StoreError::Io { what, path: self.table.clone().into(), source }
    }
}
