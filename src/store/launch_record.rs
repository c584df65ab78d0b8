//! Launch records: what a run is about to ask of EC2, written down before it asks, so that any later program can finish it.
//!
//! `launches/<launch id>.jsonl` is a journal. The first line is the header with every batch's complete request (client token
//! included), later lines are events; a line that was being written when its writer died has no end and is ignored.
//!
//! **Whose it is.** The run holds a `flock` on the record itself as long as it lives. A record whose lock is free belongs to a dead
//! run, one past `expires` to a run that has no business left; both are there to be recovered.
//!
//! **One recoverer at a time.** The record's lock cannot settle that, since a stuck run may hold it. So every recoverer takes a
//! second lock, on `launches/<launch id>.claim`, and keeps it while it works; it also keeps the record's own lock where that was
//! free. Both are tried without waiting, under the mapping's lock, and count only if the file at the path is still the one locked.
//! A killed recoverer's locks go with it. The claim file holds who recovers and nothing else.
//!
//! Never deletes a record that it cannot read: instances may hang on it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::error::StoreError;
use super::file::{Locked, explain, io_error};
use super::{atomic, document, lock};
use crate::model::round::LaunchRequest;
use crate::model::time::Timestamp;

/// The only version of a record this program reads and writes.
pub(crate) const VERSION: u32 = 1;

const SUFFIX: &str = ".jsonl";
const CLAIM_SUFFIX: &str = ".claim";

/// First line of a record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecordHeader {
    pub(crate) version: u32,
    pub(crate) cluster: String,
    /// The launch id, also the file's name.
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

/// A later line of a record. `batch` is the batch's number: its place in the header, or what `NewBatch` gave.
#[expect(clippy::large_enum_variant, reason = "a handful per run, and most are written and dropped at once")]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum RecordEvent {
    /// The request is about to go out. On disk before it does.
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
    pub(crate) path: PathBuf,
    pub(crate) header: RecordHeader,
    /// By batch number, the header's and the new ones.
    pub(crate) batches: Vec<FoundBatch>,
    /// In the order written.
    pub(crate) sweeps: Vec<(Timestamp, bool)>,
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

/// What stands in the launches folder.
#[derive(Debug)]
pub(crate) enum RecordState {
    /// Its run is at work, or a recoverer is (`recovered_by` says who): hands off its nodes.
    Live { record: FoundRecord, recovered_by: Option<String> },
    /// Ours to recover, as long as the value lives.
    Dead(DeadRecord),
    /// To be reported; left as it is.
    Unreadable { path: PathBuf, why: String },
}

/// The record of the run that is going on. Dropped without [`LiveRecord::finish`] (or killed), it stays to be recovered.
#[derive(Debug)]
pub(crate) struct LiveRecord {
    journal: Mutex<Journal>,
}

impl LiveRecord {
    /// Puts the record into the launches folder: whole, on disk and locked by this process from the moment it is seen.
    pub(crate) fn create(locked: &Locked<'_>, header: &RecordHeader) -> Result<Self, StoreError> {
        let dir = locked.store.launches_dir();
        let refuse = |why| StoreError::Launch { launch: header.launch.clone(), why };
        if !is_file_name(&header.launch) {
            return Err(refuse("must be 1 to 64 letters, digits, - or _"));
        }
        let path = dir.join(format!("{}{SUFFIX}", header.launch));
        if fs::symlink_metadata(&path).is_ok() {
            return Err(refuse("is in use: a launch record of that name exists"));
        }
        let make = || -> io::Result<File> {
            let mut temp = atomic::Temp::create(&path, atomic::FILE_MODE)?;
            let mut line = serde_json::to_vec(header)?;
            line.push(b'\n');
            temp.file.write_all(&line)?;
            temp.file.sync_all()?;
            if !lock::try_lock(&temp.file)? {
                return Err(io::Error::other("somebody else locked the new file"));
            }
            let file = temp.rename_to(&path)?;
            atomic::sync_dir(&dir)?;
            Ok(file)
        };
        let file = make().map_err(|error| explain(&path, "write", error))?;
        Ok(Self { journal: Mutex::new(Journal { path, file }) })
    }

    #[cfg(test)]
    pub(crate) fn path(&self) -> PathBuf {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner).path.clone()
    }

    /// Adds an event; when this returns `Ok` it is on disk. An error means: do not do what the event announces.
    pub(crate) fn append(&self, event: &RecordEvent) -> io::Result<()> {
        self.append_all(std::slice::from_ref(event))
    }

    /// Adds several events with one write and one fsync.
    pub(crate) fn append_all(&self, events: &[RecordEvent]) -> io::Result<()> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner).append(events)
    }

    /// Removes the record: the run is done and nothing is left to recover. Needs no lock, and may be called under the mapping's.
    pub(crate) fn finish(self) -> Result<(), StoreError> {
        self.journal.into_inner().unwrap_or_else(PoisonError::into_inner).remove()
    }
}

/// A record to be recovered; nobody else recovers it until this is dropped or released.
#[derive(Debug)]
pub(crate) struct DeadRecord {
    pub(crate) record: FoundRecord,
    /// Its run is gone (the lock was free); false = the run is past its `expires` but still there.
    pub(crate) owner_is_gone: bool,
    journal: Journal,
    /// Held, not used; last, so that the record's own lock goes before it.
    _claim: Claim,
}

impl DeadRecord {
    /// Adds an event, on disk when this returns `Ok`. The half line of the dead run, if there is one, goes first.
    pub(crate) fn append(&mut self, event: &RecordEvent) -> io::Result<()> {
        let whole = self.journal.whole_lines()?;
        if whole < self.journal.file.metadata()?.len() {
            if !self.owner_is_gone {
                return Err(io::Error::other("its run is still there and in the middle of a line"));
            }
            self.journal.file.set_len(whole)?;
        }
        self.journal.append(std::slice::from_ref(event))
    }

    /// Removes the record: everything it stands for is accounted for.
    pub(crate) fn delete(self) -> Result<(), StoreError> {
        self.journal.remove()
    }

    /// Leaves the record to the next program.
    #[cfg(test)]
    pub(crate) fn release(self) {
        drop(self);
    }
}

impl Locked<'_> {
    /// All records, by file name, with those that are to be recovered taken for this process.
    ///
    /// Leftovers of killed programs (temporary files, claims without a record) are removed on the way.
    pub(crate) fn records(&self, now: Timestamp) -> Vec<RecordState> {
        let dir = self.store.launches_dir();
        match record_ids(&dir) {
            Ok(launches) => launches
                .iter()
                .filter_map(|launch| {
                    let path = dir.join(format!("{launch}{SUFFIX}"));
                    classify(&path, launch, self.store.cluster(), now)
                        .unwrap_or_else(|why| Some(RecordState::Unreadable { path, why }))
                })
                .collect(),
            Err(error) => vec![RecordState::Unreadable { path: dir, why: format!("the folder cannot be listed: {error}") }],
        }
    }
}

/// The open record: every line whole, on disk, and in a file that can still be found.
#[derive(Debug)]
struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    fn append(&mut self, events: &[RecordEvent]) -> io::Result<()> {
        let mut lines = Vec::new();
        for event in events {
            serde_json::to_writer(&mut lines, event)?;
            lines.push(b'\n');
        }
        let before = self.file.metadata()?.len();
        if let Err(error) = self.file.write_all(&lines).and_then(|()| self.file.sync_data()) {
            // A line that may or may not be there must not be glued to the next one.
            let _ = self.file.set_len(before);
            return Err(error);
        }
        if self.file.metadata()?.nlink() == 0 {
            return Err(io::Error::other("the launch record was finished by another program and is gone"));
        }
        Ok(())
    }

    /// Length of the file up to the end of its last whole line.
    fn whole_lines(&mut self) -> io::Result<u64> {
        let mut bytes = Vec::new();
        self.file.seek(SeekFrom::Start(0))?;
        self.file.read_to_end(&mut bytes)?;
        Ok(bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at as u64 + 1))
    }

    /// Removes the file, unless another one has taken its place or it is gone already.
    fn remove(self) -> Result<(), StoreError> {
        let remove = || -> io::Result<()> {
            if atomic::is_same_file(&self.file, &self.path)? {
                fs::remove_file(&self.path)?;
                if let Some(dir) = self.path.parent() {
                    atomic::sync_dir(dir)?;
                }
            }
            Ok(())
        };
        match remove() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error("remove", &self.path, error)),
            _ => Ok(()),
        }
    }
}

/// The lock among recoverers.
#[derive(Debug)]
struct Claim {
    path: PathBuf,
    file: File,
}

impl Claim {
    /// One try. `Err(None)` = somebody else has it.
    fn take(path: PathBuf) -> Result<Self, Option<io::Error>> {
        // A claim file is removed by the one who held it; then the next try makes a new one.
        for _ in 0..100 {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(atomic::FILE_MODE)
                .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
                .open(&path)
                .map_err(Some)?;
            if !lock::try_lock(&file).map_err(Some)? {
                return Err(None);
            }
            if atomic::is_same_file(&file, &path).map_err(Some)? {
                lock::write_holder(&file);
                return Ok(Self { path, file });
            }
        }
        Err(None)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Removed while still locked, so that the name never stands for a lock of somebody else.
        if atomic::is_same_file(&self.file, &self.path).unwrap_or(false) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// `None` = the record went away while it was looked at; `Err` = why it cannot be read.
fn classify(path: &Path, launch: &str, cluster: &str, now: Timestamp) -> Result<Option<RecordState>, String> {
    let Some(mut file) = open(path)? else { return Ok(None) };
    let owner_is_gone = lock::try_lock(&file).map_err(|error| format!("it cannot be locked: {error}"))?;
    // Its run may have finished it between the two calls, and the lock would be one on a file that nobody finds.
    if !atomic::is_same_file(&file, path).map_err(|error| format!("it cannot be looked at: {error}"))? {
        return Ok(None);
    }
    let record = read(&mut file, path, launch, cluster)?;
    if !owner_is_gone && now <= record.header.expires {
        // Its own run, or the recoverer that holds its lock.
        let recovered_by = recoverer(path);
        return Ok(Some(RecordState::Live { record, recovered_by }));
    }
    match Claim::take(path.with_extension(&CLAIM_SUFFIX[1..])) {
        Ok(claim) => {
            let journal = Journal { path: path.to_owned(), file };
            Ok(Some(RecordState::Dead(DeadRecord { record, owner_is_gone, journal, _claim: claim })))
        }
        Err(None) => Ok(Some(RecordState::Live { record, recovered_by: recoverer(path) })),
        Err(Some(error)) => Err(format!("it cannot be claimed for recovery: {error}")),
    }
}

/// Who recovers the record, if anybody does.
fn recoverer(path: &Path) -> Option<String> {
    let claim = path.with_extension(&CLAIM_SUFFIX[1..]);
    let file = File::open(&claim).ok()?;
    // A free lock is a leftover; the try is undone when the descriptor closes.
    (!lock::try_lock(&file).ok()?).then(|| lock::holder(&claim))
}

fn open(path: &Path) -> Result<Option<File>, String> {
    let file = OpenOptions::new().read(true).append(true).custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK).open(path);
    match file {
        Ok(file) if file.metadata().is_ok_and(|meta| meta.is_file()) => Ok(Some(file)),
        Ok(_) => Err("it is not a regular file".to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("it cannot be opened: {error}")),
    }
}

fn read(file: &mut File, path: &Path, launch: &str, cluster: &str) -> Result<FoundRecord, String> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|error| format!("it cannot be read: {error}"))?;
    let (header, events) = parse(&bytes)?;
    if header.cluster != cluster {
        return Err(format!("it belongs to the cluster {:?}, and this is {cluster:?}", header.cluster));
    }
    if header.launch != launch {
        return Err(format!("it is the record of launch {:?} under another name", header.launch));
    }
    fold(path, header, events)
}

/// Header and events; what follows the last line end is ignored.
fn parse(bytes: &[u8]) -> Result<(RecordHeader, Vec<RecordEvent>), String> {
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let mut lines = bytes[..whole].split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
    let Some((_, first)) = lines.next() else { return Err("it has no whole line".to_owned()) };
    let header: RecordHeader = serde_json::from_slice(first).map_err(|error| in_line(0, &error))?;
    if header.version != VERSION {
        return Err(format!("it is of version {}, and this program knows version {VERSION} only", header.version));
    }
    let events = lines
        .map(|(number, line)| serde_json::from_slice(line).map_err(|error| in_line(number, &error)))
        .collect::<Result<_, _>>()?;
    Ok((header, events))
}

fn in_line(number: usize, error: &serde_json::Error) -> String {
    let problem = document::problem(error);
    let column = problem.position.map_or(1, |(_, column)| column);
    format!("line {}, column {column}: {}", number + 1, problem.why)
}

fn fold(path: &Path, header: RecordHeader, events: Vec<RecordEvent>) -> Result<FoundRecord, String> {
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
    Ok(FoundRecord { path: path.to_owned(), header, batches: batches.into_values().collect(), sweeps })
}

/// The launch ids of all records, sorted. Removes temporary files and claims that belong to no record: both are made under the lock
/// that the caller holds, so whoever made them is dead.
fn record_ids(dir: &Path) -> io::Result<Vec<String>> {
    let (mut records, mut claims) = (BTreeSet::new(), BTreeSet::new());
    atomic::remove_leftovers(dir, None)?;
    for entry in fs::read_dir(dir)? {
        let Ok(name) = entry?.file_name().into_string() else { continue };
        if let Some(launch) = name.strip_suffix(SUFFIX) {
            records.insert(launch.to_owned());
        } else if let Some(launch) = name.strip_suffix(CLAIM_SUFFIX) {
            claims.insert(launch.to_owned());
        }
    }
    for orphan in claims.difference(&records) {
        let _ = fs::remove_file(dir.join(format!("{orphan}{CLAIM_SUFFIX}")));
    }
    Ok(records.into_iter().collect())
}

fn is_file_name(launch: &str) -> bool {
    (1..=64).contains(&launch.len()) && launch.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}
