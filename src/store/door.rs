//! The store as the programs see it, whichever kind it is: the mapping and the launch records behind one door.
//!
//! A change is plain code on a [`Draft`]. The file store runs it once, under its lock; the DynamoDB store has no lock and runs it
//! again when somebody else changed the same items meanwhile. So a change must give the same for the same draft: it clones what it
//! consumes, takes the time as a value, and what it notes down outside it notes down anew each time.

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::error::StoreError;
use super::file::FileStore;
use super::launch_record::{LiveRecord, RecordEvent, RecordHeader, RecordState};
use super::table::TableStore;
use crate::config::settings::{Settings, StoreKind};
use crate::model::mapping::Mapping;
use crate::model::time::Timestamp;

/// Where the mapping is.
#[derive(Debug)]
pub(crate) enum Store {
    File(FileStore),
    DynamoDb(TableStore),
}

/// What is there, all of one moment.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) mapping: Arc<Mapping>,
    /// Was there a mapping at all? If not while instances of ours are alive: rebuild, terminate nothing.
    pub(crate) existed: bool,
    pub(crate) records: Vec<RecordState>,
}

/// What is there, for a look that takes no lock and writes nothing.
#[derive(Debug)]
pub(crate) struct Peek {
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) existed: bool,
    /// Launch ids of the records, whoever they belong to.
    pub(crate) recorded: BTreeSet<String>,
}

/// Mapping and records of one moment, for a decision about all of them; takes no record.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) mapping: Arc<Mapping>,
    /// See [`Draft::live`].
    pub(crate) live: BTreeSet<String>,
    /// See [`Draft::recorded`].
    pub(crate) recorded: BTreeSet<String>,
}

/// What a change works on.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) mapping: Shared,
    /// Launch ids whose run is at work: their claims are theirs.
    pub(crate) live: BTreeSet<String>,
    /// Launch ids that a program recovers: their run is over, and a claim of theirs may be taken by whoever needs the node.
    pub(crate) recovered: BTreeSet<String>,
    /// Launch ids of every record that is there, whoever it belongs to, and those that its batches went out under: they answer for
    /// their instances.
    pub(crate) recorded: BTreeSet<String>,
    /// Set by the change: the record of the launch it claims nodes for, with its first events. There before the claims are.
    pub(crate) record: Option<(RecordHeader, Vec<RecordEvent>)>,
}

/// The mapping of a draft. It is the store's own until somebody changes it: only then is it copied, which for 10,000 nodes takes 6 ms.
/// A look that takes it as `&mut` without need counts as a change.
#[derive(Debug, Clone)]
pub(crate) struct Shared(pub(super) Arc<Mapping>);

impl Deref for Shared {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        &self.0
    }
}

impl DerefMut for Shared {
    fn deref_mut(&mut self) -> &mut Mapping {
        Arc::make_mut(&mut self.0)
    }
}

impl Store {
    /// Opens what `[state]` names and makes sure of what a launch needs later: the right to write, a state id. To be called before
    /// anything is asked of EC2.
    pub(crate) fn open(settings: &Settings) -> Result<Self, StoreError> {
        match &settings.store {
            StoreKind::File => FileStore::open(&settings.state_dir, &settings.cluster).map(Self::File),
            StoreKind::DynamoDb { table } => TableStore::open(settings, table).map(Self::DynamoDb),
        }
    }

    /// Opens it for a dry run: creates and writes nothing.
    pub(crate) fn open_read_only(settings: &Settings) -> Result<Self, StoreError> {
        match &settings.store {
            StoreKind::File => FileStore::open_read_only(&settings.state_dir, &settings.cluster).map(Self::File),
            StoreKind::DynamoDb { table } => TableStore::open_read_only(settings, table).map(Self::DynamoDb),
        }
    }

    /// What concerns this machine alone (request bucket, back-offs, boot failures, heartbeat) is in here, with every kind of store.
    pub(crate) fn dir(&self) -> &Path {
        match self {
            Self::File(store) => store.dir(),
            Self::DynamoDb(store) => store.dir(),
        }
    }

    /// The random id that every launch is tagged with, 16 hexadecimal digits. Empty only in a dry run where there is none yet.
    pub(crate) fn state_id(&self) -> &str {
        match self {
            Self::File(store) => store.state_id(),
            Self::DynamoDb(store) => store.state_id(),
        }
    }

    /// Was the state id made by this very program? Then no instance carries it yet.
    pub(crate) fn is_new(&self) -> bool {
        match self {
            Self::File(store) => store.is_new(),
            Self::DynamoDb(store) => store.is_new(),
        }
    }

    /// The mapping as of now; empty if there is none.
    pub(crate) fn read(&self) -> Result<Arc<Mapping>, StoreError> {
        match self {
            Self::File(store) => store.read(),
            Self::DynamoDb(store) => store.read().map(Arc::new),
        }
    }

    /// Changes the mapping, waiting for others at most `wait`. Written only if `change` left it different.
    pub(crate) fn update<T>(&self, wait: Duration, change: impl FnMut(&mut Mapping) -> T) -> Result<T, StoreError> {
        match self {
            Self::File(store) => store.update(wait, change),
            Self::DynamoDb(store) => store.update(wait, change),
        }
    }

    /// Mapping and launch records; those of dead runs are taken for this program, at the longest until `until`, when it has ended
    /// (which matters where a store cannot see that its holder died).
    pub(crate) fn look(&self, wait: Duration, now: Timestamp, until: Timestamp) -> Result<Look, StoreError> {
        match self {
            Self::File(store) => store.look(wait, now),
            Self::DynamoDb(store) => store.look(wait, now, until),
        }
    }

    /// Makes this clustermgtd the one that looks after the cluster until `until`, or keeps it so; `Some` = another machine's is, in words.
    /// Where the mapping is this machine's own, the lock in the state folder has settled that.
    pub(crate) fn lease(&self, now: Timestamp, until: Timestamp) -> Result<Option<String>, StoreError> {
        match self {
            Self::File(_) => Ok(None),
            Self::DynamoDb(store) => store.lease(now, until),
        }
    }

    /// Lets another machine's clustermgtd look after the cluster.
    pub(crate) fn end_lease(&self) {
        if let Self::DynamoDb(store) = self {
            store.end_lease();
        }
    }

    /// The mapping and which launches are at work or recorded, of one moment.
    pub(crate) fn see(&self, wait: Duration, now: Timestamp) -> Result<Kept, StoreError> {
        match self {
            Self::File(store) => store.see(wait, now),
            Self::DynamoDb(store) => store.see(wait, now),
        }
    }

    /// The mapping and which launch records there are, for a dry run.
    pub(crate) fn peek(&self) -> Result<Peek, StoreError> {
        match self {
            Self::File(store) => store.peek(),
            Self::DynamoDb(store) => store.peek(),
        }
    }

    /// Changes the mapping and may begin a launch record in the same step. Where `change` gives `None`, nothing is written.
    pub(crate) fn change<T>(
        &self,
        wait: Duration,
        now: Timestamp,
        change: impl FnMut(&mut Draft) -> Option<T>,
    ) -> Result<Option<(T, Option<LiveRecord>)>, StoreError> {
        match self {
            Self::File(store) => store.change(wait, now, change),
            Self::DynamoDb(store) => store.change(wait, now, change),
        }
    }
}
