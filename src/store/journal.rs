//! Launch records in the state folder: `launches/<launch id>.jsonl` is a journal. The first line is the header, later lines are
//! events; a line that was being written when its writer died has no end and is ignored.
//!
//! **Whose it is.** The run holds a `flock` on the record itself as long as it lives. A record whose lock is free belongs to a dead
//! run, one past `expires` to a run that has no business left; both are there to be recovered.
//!
//! **One recoverer at a time.** The record's lock cannot settle that, since a stuck run may hold it. So every recoverer takes a
//! second lock, on `launches/<launch id>.claim`, and keeps it while it works; it also keeps the record's own lock where that was
//! free. Both are tried without waiting, under the mapping's lock, and count only if the file at the path is still the one locked.
//! A killed recoverer's locks go with it. The claim file holds who recovers and nothing else.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::error::StoreError;
use super::file::{Locked, explain, io_error};
use super::launch_record::{DeadRecord, FoundRecord, Hold, RecordEvent, RecordHeader, RecordState, VERSION, fold, is_name};
use super::{atomic, document, lock};
use crate::model::time::Timestamp;

const SUFFIX: &str = ".jsonl";
const CLAIM_SUFFIX: &str = ".claim";

/// The file of the run that is going on.
#[derive(Debug)]
pub(crate) struct Running {
    journal: Mutex<Journal>,
}

impl Running {
    /// Puts the record into the launches folder: whole, on disk and locked by this process from the moment it is seen.
    pub(super) fn create(locked: &Locked<'_>, header: &RecordHeader) -> Result<Self, StoreError> {
        let dir = locked.store.launches_dir();
        let refuse = |why| StoreError::Launch { launch: header.launch.clone(), why };
        if !is_name(&header.launch) {
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
    pub(super) fn path(&self) -> PathBuf {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner).path.clone()
    }

    /// Adds events with one write and one fsync.
    pub(super) fn append(&self, events: &[RecordEvent]) -> io::Result<()> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner).append(events)
    }

    pub(super) fn finish(self) -> Result<(), StoreError> {
        self.journal.into_inner().unwrap_or_else(PoisonError::into_inner).remove()
    }
}

/// The file of a dead run, with the locks that make it ours.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// Its run is gone (the lock was free); false = the run is past its `expires` but still there.
    owner_is_gone: bool,
    journal: Journal,
    /// Held, not used; last, so that the record's own lock goes before it.
    _claim: Claim,
}

impl Recovered {
    #[cfg(test)]
    pub(super) fn owner_is_gone(&self) -> bool {
        self.owner_is_gone
    }

    /// The half line of the dead run, if there is one, goes first.
    pub(super) fn append(&mut self, events: &[RecordEvent]) -> io::Result<()> {
        let whole = self.journal.whole_lines()?;
        if whole < self.journal.file.metadata()?.len() {
            if !self.owner_is_gone {
                return Err(io::Error::other("its run is still there and in the middle of a line"));
            }
            self.journal.file.set_len(whole)?;
        }
        self.journal.append(events)
    }

    pub(super) fn delete(self) -> Result<(), StoreError> {
        self.journal.remove()
    }
}

impl Locked<'_> {
    /// Puts a record into the launches folder, for the run that is going on.
    pub(super) fn create(&self, header: &RecordHeader, events: &[RecordEvent]) -> Result<Running, StoreError> {
        let record = Running::create(self, header)?;
        if !events.is_empty() {
            record.append(events).map_err(|source| io_error("write", &self.store.launches_dir(), source))?;
        }
        Ok(record)
    }

    /// All records, by file name, with those that are to be recovered taken for this process.
    ///
    /// Leftovers of killed programs (temporary files, claims without a record) are removed on the way. Errors: the folder cannot be
    /// listed, so that nothing is known of any.
    pub(crate) fn records(&self, now: Timestamp) -> Result<Vec<RecordState>, StoreError> {
        let dir = self.store.launches_dir();
        let launches = record_ids(&dir).map_err(|error| io_error("list", &dir, error))?;
        let state = |launch: &String| {
            let path = dir.join(format!("{launch}{SUFFIX}"));
            classify(&path, launch, self.store.cluster(), now)
                .unwrap_or_else(|why| Some(RecordState::Unreadable { name: path.display().to_string(), why }))
        };
        Ok(launches.iter().filter_map(state).collect())
    }
}

/// The open record: every line whole, on disk, and in a file that can still be found. Its lock, if it is ours, goes on drop.
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

impl Drop for Journal {
    fn drop(&mut self) {
        lock::let_go(&self.file);
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
        lock::let_go(&self.file);
    }
}

/// `None` = the record went away while it was looked at; `Err` = why it cannot be read.
fn classify(path: &Path, launch: &str, cluster: &str, now: Timestamp) -> Result<Option<RecordState>, String> {
    let Some(file) = open(path)? else { return Ok(None) };
    let mut journal = Journal { path: path.to_owned(), file };
    let owner_is_gone = lock::try_lock(&journal.file).map_err(|error| format!("it cannot be locked: {error}"))?;
    // Its run may have finished it between the two calls, and the lock would be one on a file that nobody finds.
    if !atomic::is_same_file(&journal.file, path).map_err(|error| format!("it cannot be looked at: {error}"))? {
        return Ok(None);
    }
    let record = read(&mut journal.file, launch, cluster)?;
    if !owner_is_gone && now <= record.header.expires {
        // Its own run, or the recoverer that holds its lock.
        let recovered_by = recoverer(path);
        if recovered_by.is_none() && lock::try_lock(&journal.file).map_err(|error| format!("it cannot be locked: {error}"))? {
            // Whoever had it let go between the two looks; a recoverer is not to be taken for the run.
            drop(journal);
            return classify(path, launch, cluster, now);
        }
        return Ok(Some(RecordState::Live { record, recovered_by }));
    }
    match Claim::take(path.with_extension(&CLAIM_SUFFIX[1..])) {
        Ok(claim) => {
            let hold = Hold::File(Recovered { owner_is_gone, journal, _claim: claim });
            Ok(Some(RecordState::Dead(DeadRecord { record, hold })))
        }
        Err(None) => {
            let recovered_by = Some(recoverer(path).unwrap_or_else(|| "another program, just now".to_owned()));
            Ok(Some(RecordState::Live { record, recovered_by }))
        }
        Err(Some(error)) => Err(format!("it cannot be claimed for recovery: {error}")),
    }
}

/// Who recovers the record, if anybody does.
fn recoverer(path: &Path) -> Option<String> {
    let claim = path.with_extension(&CLAIM_SUFFIX[1..]);
    let file = File::open(&claim).ok()?;
    // A free lock is a leftover.
    if lock::try_lock(&file).ok()? {
        lock::let_go(&file);
        return None;
    }
    Some(lock::holder(&claim))
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

fn read(file: &mut File, launch: &str, cluster: &str) -> Result<FoundRecord, String> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|error| format!("it cannot be read: {error}"))?;
    let (header, events) = parse(&bytes)?;
    if header.cluster != cluster {
        return Err(format!("it belongs to the cluster {:?}, and this is {cluster:?}", header.cluster));
    }
    if header.launch != launch {
        return Err(format!("it is the record of launch {:?} under another name", header.launch));
    }
    fold(header, events)
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

/// The launch ids of all records; a folder that is not there has none.
pub(super) fn names(dir: &Path) -> io::Result<BTreeSet<String>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        entries => entries?,
    };
    let mut names = BTreeSet::new();
    for entry in entries {
        let Ok(name) = entry?.file_name().into_string() else { continue };
        names.extend(name.strip_suffix(SUFFIX).map(str::to_owned));
    }
    Ok(names)
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
