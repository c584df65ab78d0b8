//! Launch records: what a run is about to ask of EC2, written down before it asks, so that any later program can finish it.
//!
//! A record has a header with every batch's complete request (client token included), and events that are added later. It belongs to
//! its run as long as that lives; a dead run's record is there to be recovered, by one program at a time. How a store keeps records
//! and how it knows the dead is its own matter: `journal.rs` for the state folder, `table/` for DynamoDB.
//!
//! Never deletes a record that it cannot read: instances may hang on it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use serde::{Deserialize, Serialize};

use super::error::StoreError;
use super::journal::{Recovered, Running};
use super::table::records;
use crate::model::instance::tag;
use crate::model::round::LaunchRequest;
use crate::model::time::Timestamp;

/// The only version of a record this program reads and writes.
pub(crate) const VERSION: u32 = 1;

/// The beginning of a record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecordHeader {
    pub(crate) version: u32,
    pub(crate) cluster: String,
    /// The launch id, also the record's name.
    pub(crate) launch: String,
    /// The program that launches, and its process.
    pub(crate) program: String,
    pub(crate) pid: u32,
    /// When Slurm asked.
    pub(crate) requested: Timestamp,
    /// From here on the run does nothing any more: its hard deadline and 60 s.
    pub(crate) expires: Timestamp,
    pub(crate) batches: Vec<RecordBatch>,
}

/// One launch request and the nodes it is for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecordBatch {
    pub(crate) nodes: Vec<String>,
    pub(crate) request: LaunchRequest,
}

/// What is added to a record later. `batch` is the batch's number: its place in the header, or what `NewBatch` gave.
#[expect(clippy::large_enum_variant, reason = "a handful per run, and most are written and dropped at once")]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum RecordEvent {
    /// The request is about to go out. Kept before it does.
    Sent { batch: usize, at: Timestamp },
    /// A deliberately new attempt (fallback, split, spent token) with a new client token, under a number not used before.
    NewBatch { batch: usize, nodes: Vec<String>, request: LaunchRequest },
    /// Every instance of the batch is in the mapping, as a node's or as condemned, or the request is known to have made none.
    Done { batch: usize },
    /// A recoverer looked for instances of this launch; clean = it found none that was not accounted for.
    Swept { at: Timestamp, clean: bool },
}

/// A record with its events folded in.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FoundRecord {
    pub(crate) header: RecordHeader,
    /// By batch number, the header's and the new ones.
    pub(crate) batches: Vec<FoundBatch>,
    /// In the order written.
    pub(crate) sweeps: Vec<(Timestamp, bool)>,
}

impl FoundRecord {
    /// Its launch id, and those that its batches went out under: a run that finished another one repeats that one's requests.
    pub(crate) fn launches(&self) -> BTreeSet<String> {
        let sent = self.batches.iter().flat_map(|batch| &batch.request.tags).filter(|(key, _)| key == tag::LAUNCH);
        sent.map(|(_, launch)| launch.clone()).chain([self.header.launch.clone()]).collect()
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FoundBatch {
    pub(crate) batch: usize,
    pub(crate) nodes: Vec<String>,
    pub(crate) request: LaunchRequest,
    /// When the request went out first: from here its client token ages.
    pub(crate) sent: Option<Timestamp>,
    /// When it went out last: instances may still appear from here.
    pub(crate) last_sent: Option<Timestamp>,
    pub(crate) done: bool,
}

/// What becomes of a record that is found.
#[derive(Debug)]
pub(crate) enum RecordState {
    /// Its run is at work: hands off its nodes. Or a recoverer is (`recovered_by` says who): hands off its instances.
    Live { record: FoundRecord, recovered_by: Option<String> },
    /// Ours to recover, as long as the value lives.
    Dead(DeadRecord),
    /// To be reported; left as it is.
    Unreadable { name: String, why: String },
}

impl RecordState {
    /// The launch ids that it answers for; of one that cannot be read, its name's.
    pub(crate) fn launches(&self) -> BTreeSet<String> {
        match self {
            Self::Live { record, .. } => record.launches(),
            Self::Dead(dead) => dead.record.launches(),
            Self::Unreadable { name, .. } => {
                let stem = std::path::Path::new(name).file_stem().map(|stem| stem.to_string_lossy().into_owned());
                stem.into_iter().collect()
            }
        }
    }
}

/// The record of the run that is going on. Dropped without [`LiveRecord::finish`] (or killed), it stays to be recovered.
#[derive(Debug)]
pub(crate) enum LiveRecord {
    File(Running),
    Table(records::Running),
}

impl LiveRecord {
    /// Adds an event; when this returns `Ok` it is kept. An error means: do not do what the event announces.
    pub(crate) fn append(&self, event: &RecordEvent) -> io::Result<()> {
        match self {
            Self::File(record) => record.append(std::slice::from_ref(event)),
            Self::Table(record) => record.append(std::slice::from_ref(event)),
        }
    }

    /// Removes the record: the run is done and nothing is left to recover. Needs no lock, and may be called under the mapping's.
    pub(crate) fn finish(self) -> Result<(), StoreError> {
        match self {
            Self::File(record) => record.finish(),
            Self::Table(record) => record.finish(),
        }
    }
}

/// A record to be recovered; nobody else recovers it until this is dropped.
#[derive(Debug)]
pub(crate) struct DeadRecord {
    pub(crate) record: FoundRecord,
    pub(super) hold: Hold,
}

/// What keeps other recoverers away.
#[derive(Debug)]
pub(super) enum Hold {
    File(Recovered),
    Table(records::Recovered),
}

impl DeadRecord {
    /// Adds events with one write, kept when this returns `Ok`.
    pub(crate) fn append(&mut self, events: &[RecordEvent]) -> io::Result<()> {
        match &mut self.hold {
            Hold::File(record) => record.append(events),
            Hold::Table(record) => record.append(events),
        }
    }

    /// Removes the record: everything it stands for is accounted for.
    pub(crate) fn delete(self) -> Result<(), StoreError> {
        match self.hold {
            Hold::File(record) => record.delete(),
            Hold::Table(record) => record.delete(),
        }
    }

    /// Leaves the record to the next program.
    #[cfg(test)]
    pub(crate) fn release(self) {
        drop(self);
    }
}

pub(super) fn fold(header: RecordHeader, events: Vec<RecordEvent>) -> Result<FoundRecord, String> {
    let fresh = |batch, nodes, request| FoundBatch { batch, nodes, request, sent: None, last_sent: None, done: false };
    let mut batches: BTreeMap<usize, FoundBatch> = header
        .batches
        .iter()
        .enumerate()
        .map(|(number, batch)| (number, fresh(number, batch.nodes.clone(), batch.request.clone())))
        .collect();
    let mut sweeps = Vec::new();
    for event in events {
        match event {
            RecordEvent::Sent { batch, at } => {
                let found = batches.get_mut(&batch).ok_or_else(|| format!("it speaks of batch {batch}, which is not in it"))?;
                found.sent = Some(found.sent.map_or(at, |first| first.min(at)));
                found.last_sent = Some(found.last_sent.map_or(at, |last| last.max(at)));
            }
            RecordEvent::Done { batch } => {
                batches.get_mut(&batch).ok_or_else(|| format!("it speaks of batch {batch}, which is not in it"))?.done = true;
            }
            RecordEvent::NewBatch { batch, nodes, request } => {
                if batches.insert(batch, fresh(batch, nodes, request)).is_some() {
                    return Err(format!("it has batch {batch} twice"));
                }
            }
            RecordEvent::Swept { at, clean } => sweeps.push((at, clean)),
        }
    }
    Ok(FoundRecord { header, batches: batches.into_values().collect(), sweeps })
}

/// Launch ids are file names and parts of item names.
pub(super) fn is_name(launch: &str) -> bool {
    (1..=64).contains(&launch.len()) && launch.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}
