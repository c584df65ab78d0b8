//! The file store: a state folder in, its mapping out; a change in, the mapping replaced whole.
//!
//! Everything that reads and rewrites the mapping or the launches folder does so under one `flock`, held for that moment only,
//! never during a call to EC2 or Slurm. A mapping that cannot be read is refused and left as it is: the instances it speaks of are
//! somebody's money. Only a missing file counts as empty, and the caller is told, since the mapping may have to be rebuilt.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::door::{Draft, Kept, Look, Peek, Shared};
use super::error::StoreError;
use super::launch_record::{LiveRecord, RecordState};
use super::lock::Lock;
use super::{atomic, document, filesystem, journal};
use crate::model::mapping::Mapping;
use crate::model::time::Timestamp;

/// Mode of the folder and of `launches`: nothing in it is for others.
const DIR_MODE: u32 = 0o750;

/// Bytes of the random state id; hexadecimal in the file.
const STATE_ID_BYTES: usize = 8;

/// How long `open` waits for the lock, when it has to make the state id.
const OPEN_WAIT: Duration = Duration::from_secs(10);

/// One state folder.
#[derive(Debug, Clone)]
pub(crate) struct FileStore {
    dir: PathBuf,
    cluster: String,
    state_id: String,
    is_new: bool,
    read_only: bool,
    seen: Last,
}

/// Launch ids, as in [`Draft`].
#[derive(Default)]
struct Launches {
    live: BTreeSet<String>,
    recovered: BTreeSet<String>,
    recorded: BTreeSet<String>,
}

/// The mapping as this process last read or wrote it, with the file it is the content of. The open file keeps its inode number from
/// being given to another one, and files are replaced and never changed, so the same inode is the same content; length and time are
/// compared for the sake of a person with an editor. Saves the parsing, 1 to 2 ms per 1,000 nodes.
type Last = Arc<Mutex<Option<(File, Metadata, Arc<Mapping>)>>>;

impl FileStore {
    /// Opens the folder, made with mode 0750 where missing, and makes sure of what a launch needs later: a local file system,
    /// the right to write, a state id. To be called before anything is asked of EC2.
    pub(crate) fn open(dir: &Path, cluster: &str) -> Result<Self, StoreError> {
        prepare(dir)?;
        let launches = dir.join("launches");
        create_dir(&launches).map_err(|error| explain(&launches, "create", error))?;
        check_writable(&launches)?;
        let mut store = Self::at(dir, cluster, false);
        (store.state_id, store.is_new) = make_state_id(dir)?;
        Ok(store)
    }

    /// Opens the folder for a dry run: creates and writes nothing. A folder that does not exist is an empty one.
    pub(crate) fn open_read_only(dir: &Path, cluster: &str) -> Result<Self, StoreError> {
        refuse_network(dir)?;
        let mut store = Self::at(dir, cluster, true);
        store.state_id = read_state_id(dir)?.unwrap_or_default();
        Ok(store)
    }

    fn at(dir: &Path, cluster: &str, read_only: bool) -> Self {
        let (dir, cluster) = (dir.to_owned(), cluster.to_owned());
        Self { dir, cluster, state_id: String::new(), is_new: false, read_only, seen: Last::default() }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The random id of this folder, 16 hexadecimal digits. Empty only in a dry run on a folder that was never used.
    pub(crate) fn state_id(&self) -> &str {
        &self.state_id
    }

    /// Was the state id made by this very call of `open`? Then no instance carries it yet.
    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    pub(crate) fn cluster(&self) -> &str {
        &self.cluster
    }

    pub(crate) fn mapping_path(&self) -> PathBuf {
        self.dir.join("mapping.json")
    }

    pub(crate) fn launches_dir(&self) -> PathBuf {
        self.dir.join("launches")
    }

    /// Is there no mapping file at all? With instances of ours alive that means: rebuild, terminate nothing.
    #[cfg(test)]
    pub(crate) fn mapping_missing(&self) -> Result<bool, StoreError> {
        Ok(read_regular(&self.mapping_path())?.is_none())
    }

    /// The mapping as of now, without the lock: the file is replaced whole, so this is never half of anything. Empty if missing.
    pub(crate) fn read(&self) -> Result<Arc<Mapping>, StoreError> {
        Ok(self.load()?.unwrap_or_else(|| self.empty()))
    }

    fn empty(&self) -> Arc<Mapping> {
        Arc::new(Mapping::new(&self.cluster))
    }

    /// Changes the mapping under the lock, waiting for that at most `wait`. Written only if `change` left it different.
    /// Never held across an await: `change` is plain code.
    pub(crate) fn update<T>(&self, wait: Duration, change: impl FnOnce(&mut Mapping) -> T) -> Result<T, StoreError> {
        let mut locked = self.locked(wait)?;
        let value = change(Arc::make_mut(&mut locked.mapping));
        if locked.existed() || *locked.mapping != Mapping::new(&self.cluster) {
            locked.commit()?;
        }
        Ok(value)
    }

    /// See [`Store::look`](super::door::Store::look).
    pub(super) fn look(&self, wait: Duration, now: Timestamp) -> Result<Look, StoreError> {
        let locked = self.locked(wait)?;
        // Told of and lived with: a node must not wait for a folder.
        let unlisted = |error: StoreError| {
            vec![RecordState::Unreadable { name: self.launches_dir().display().to_string(), why: crate::error::chain(&error) }]
        };
        let records = locked.records(now).unwrap_or_else(unlisted);
        Ok(Look { existed: locked.existed(), mapping: locked.mapping, records })
    }

    /// See [`Store::peek`](super::door::Store::peek).
    pub(super) fn peek(&self) -> Result<Peek, StoreError> {
        let found = self.load()?;
        let launches = self.launches_dir();
        let recorded = journal::names(&launches).map_err(|error| io_error("list", &launches, error))?;
        Ok(Peek { existed: found.is_some(), mapping: found.unwrap_or_else(|| self.empty()), recorded })
    }

    /// See [`Store::see`](super::door::Store::see).
    pub(super) fn see(&self, wait: Duration, now: Timestamp) -> Result<Kept, StoreError> {
        let locked = self.locked(wait)?;
        // Of somebody who ends what nobody knows of.
        let Launches { live, recorded, .. } = locked.launches(now)?;
        Ok(Kept { mapping: Arc::clone(&locked.mapping), live, recorded })
    }

    /// See [`Store::change`](super::door::Store::change).
    pub(super) fn change<T>(
        &self,
        wait: Duration,
        now: Timestamp,
        mut change: impl FnMut(&mut Draft) -> Option<T>,
    ) -> Result<Option<(T, Option<LiveRecord>)>, StoreError> {
        let mut locked = self.locked(wait)?;
        // As in a look.
        let Launches { live, recovered, recorded } = locked.launches(now).unwrap_or_default();
        let mut draft = Draft { mapping: Shared(Arc::clone(&locked.mapping)), live, recovered, recorded, record: None };
        let Some(value) = change(&mut draft) else { return Ok(None) };
        locked.mapping = draft.mapping.0;
        // The record is there before the claims that point at it.
        let record = match draft.record {
            None => None,
            Some((header, events)) => Some(LiveRecord::File(locked.create(&header, &events)?)),
        };
        locked.commit()?;
        Ok(Some((value, record)))
    }

    /// Takes the lock and reads the mapping, for a change that also reads or writes launch records.
    pub(crate) fn locked(&self, wait: Duration) -> Result<Locked<'_>, StoreError> {
        if self.read_only {
            return Err(StoreError::ReadOnly { path: self.dir.clone() });
        }
        let lock = Lock::acquire(&self.dir.join("lock"), wait)?;
        let found = self.load()?;
        let mapping = found.clone().unwrap_or_else(|| self.empty());
        Ok(Locked { store: self, mapping, found, _lock: lock })
    }

    /// What the file holds, `None` = no file.
    fn load(&self) -> Result<Option<Arc<Mapping>>, StoreError> {
        let path = self.mapping_path();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, then, mapping)) = &*seen
            && let Ok(now) = fs::symlink_metadata(&path)
            && is_same(then, &now)
        {
            return Ok(Some(Arc::clone(mapping)));
        }
        *seen = None;
        let Some((file, meta, bytes)) = open_regular(&path)? else { return Ok(None) };
        let mapping = document::parse(&bytes, &self.cluster).map_err(|problem| StoreError::Content {
            path,
            position: problem.position,
            why: problem.why,
            advice: "look at the file; restore it from a copy, or move it away to have it rebuilt from Slurm and EC2",
        })?;
        let mapping = Arc::new(mapping);
        *seen = Some((file, meta, Arc::clone(&mapping)));
        Ok(Some(mapping))
    }
}

/// Neither replaced nor changed.
fn is_same(a: &Metadata, b: &Metadata) -> bool {
    let key = |meta: &Metadata| (meta.dev(), meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec());
    key(a) == key(b)
}

/// The folder's state id, and whether it was made now.
fn make_state_id(dir: &Path) -> Result<(String, bool), StoreError> {
    if let Some(id) = read_state_id(dir)? {
        return Ok((id, false));
    }
    let _lock = Lock::acquire(&dir.join("lock"), OPEN_WAIT)?;
    // Another program may have made it while this one waited.
    if let Some(id) = read_state_id(dir)? {
        return Ok((id, false));
    }
    let path = state_id_path(dir);
    let id = new_state_id().map_err(|error| io_error("make a random id for", &path, error))?;
    write_state_id(dir, &id)?;
    Ok((id, true))
}

pub(super) fn new_state_id() -> io::Result<String> {
    atomic::random_hex(STATE_ID_BYTES)
}

/// Gives a folder that has none the state id of somewhere else.
pub(super) fn keep_state_id(dir: &Path, id: &str) -> Result<(), StoreError> {
    let _lock = Lock::acquire(&dir.join("lock"), OPEN_WAIT)?;
    if read_state_id(dir)?.is_none() { write_state_id(dir, id) } else { Ok(()) }
}

fn write_state_id(dir: &Path, id: &str) -> Result<(), StoreError> {
    let path = state_id_path(dir);
    atomic::replace(&path, format!("{id}\n").as_bytes(), atomic::FILE_MODE).map_err(|error| io_error("write", &path, error))
}

/// The folder's state id, if it has one.
pub(super) fn read_state_id(dir: &Path) -> Result<Option<String>, StoreError> {
    let path = state_id_path(dir);
    let Some(bytes) = read_regular(&path)? else { return Ok(None) };
    let id = String::from_utf8_lossy(bytes.trim_ascii()).into_owned();
    if is_state_id(&id) {
        return Ok(Some(id));
    }
    Err(StoreError::Content {
        path,
        position: None,
        why: "it does not hold 16 hexadecimal digits".to_owned(),
        advice: "restore it from the tag slurm-ec2:state of the cluster's instances; without any instance, remove it",
    })
}

pub(super) fn is_state_id(id: &str) -> bool {
    id.len() == STATE_ID_BYTES * 2 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn state_id_path(dir: &Path) -> PathBuf {
    dir.join("state-id")
}

/// The mapping and the launches folder while the lock is held. Dropped without [`Locked::commit`], nothing is written.
#[derive(Debug)]
pub(crate) struct Locked<'a> {
    pub(super) store: &'a FileStore,
    mapping: Arc<Mapping>,
    /// What the file holds as of now, `None` = no file.
    found: Option<Arc<Mapping>>,
    _lock: Lock,
}

impl Locked<'_> {
    #[cfg(test)]
    pub(crate) fn mapping_mut(&mut self) -> &mut Mapping {
        Arc::make_mut(&mut self.mapping)
    }

    /// The launches of the records, by what becomes of them.
    fn launches(&self, now: Timestamp) -> Result<Launches, StoreError> {
        let mut launches = Launches::default();
        for state in self.records(now)? {
            launches.recorded.extend(state.launches());
            if let RecordState::Live { record, recovered_by } = state {
                let at_work = if recovered_by.is_some() { &mut launches.recovered } else { &mut launches.live };
                at_work.insert(record.header.launch);
            }
        }
        Ok(launches)
    }

    /// Was there a mapping file?
    pub(crate) fn existed(&self) -> bool {
        self.found.is_some()
    }

    /// Writes the mapping if it differs from the file, or if there is no file, and keeps the lock. True = written.
    pub(crate) fn commit(&mut self) -> Result<bool, StoreError> {
        if self.found.as_ref().is_some_and(|found| Arc::ptr_eq(found, &self.mapping) || *found == self.mapping) {
            return Ok(false);
        }
        let path = self.store.mapping_path();
        let bytes = document::render(&self.mapping).map_err(|error| io_error("write", &path, error.into()))?;
        let file = atomic::replace_and_keep(&path, &bytes, atomic::FILE_MODE).map_err(|error| io_error("write", &path, error))?;
        self.found = Some(Arc::clone(&self.mapping));
        let seen = file.metadata().ok().map(|meta| (file, meta, Arc::clone(&self.mapping)));
        *self.store.seen.lock().unwrap_or_else(PoisonError::into_inner) = seen;
        Ok(true)
    }
}

/// The content of a regular file, `None` if there is none at that path. A link, a folder, a pipe are refused: the file is going to
/// be replaced by a rename, which would put a file in the place of whatever is there.
pub(super) fn read_regular(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    Ok(open_regular(path)?.map(|(_, _, bytes)| bytes))
}

/// The file too, and what it was when it was opened.
fn open_regular(path: &Path) -> Result<Option<(File, Metadata, Vec<u8>)>, StoreError> {
    let file = OpenOptions::new()
        .read(true)
        // Neither follows a link nor waits for the other end of a pipe.
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
        .open(path);
    let irregular = |why: &str| StoreError::Content {
        path: path.to_owned(),
        position: None,
        why: why.to_owned(),
        advice: "move it away, or put the file itself here",
    };
    let mut file = match file {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(nix::libc::ELOOP) => {
            return Err(irregular("it is a symbolic link, and the file is replaced by rename"));
        }
        Err(error) => return Err(explain(path, "read", error)),
    };
    let meta = file.metadata().map_err(|error| io_error("look at", path, error))?;
    if meta.is_dir() {
        return Err(irregular("it is a folder"));
    }
    if !meta.is_file() {
        return Err(irregular("it is not a regular file"));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or(0).saturating_add(1));
    file.read_to_end(&mut bytes).map_err(|error| io_error("read", path, error))?;
    Ok(Some((file, meta, bytes)))
}

/// An error about a path; where rights are the matter, it says whose the file is and who we are.
pub(super) fn explain(path: &Path, what: &'static str, source: io::Error) -> StoreError {
    if !matches!(source.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) {
        return io_error(what, path, source);
    }
    let existing = path.ancestors().find_map(|part| fs::metadata(part).ok().map(|meta| (part, meta)));
    let about = match existing {
        Some((part, meta)) => format!(
            "{}belongs to uid {}, mode {:04o}, and this program runs as uid {}",
            if part == path { String::new() } else { format!("is in {}, which ", part.display()) },
            meta.uid(),
            meta.mode() & 0o7777,
            nix::unistd::geteuid()
        ),
        None => format!("cannot be reached by uid {}", nix::unistd::geteuid()),
    };
    StoreError::NotWritable { path: path.to_owned(), about, source }
}

pub(super) fn io_error(what: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::Io { what, path: path.to_owned(), source }
}

/// Makes sure of the folder itself: there, ours, on a local file system.
pub(super) fn prepare(dir: &Path) -> Result<(), StoreError> {
    refuse_network(dir)?;
    create_dir(dir).map_err(|error| explain(dir, "create", error))?;
    check_writable(dir)
}

fn refuse_network(dir: &Path) -> Result<(), StoreError> {
    let existing = dir.ancestors().find(|part| fs::metadata(part).is_ok()).unwrap_or(Path::new("/"));
    match filesystem::network(existing) {
        Ok(None) => Ok(()),
        Ok(Some(kind)) => Err(StoreError::NetworkFileSystem { path: dir.to_owned(), kind }),
        Err(error) => Err(explain(existing, "ask for the file system of", error)),
    }
}

/// Makes the folder with its mode whatever the umask; one that exists keeps the mode it has.
fn create_dir(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent() {
        DirBuilder::new().recursive(true).mode(DIR_MODE).create(parent)?;
    }
    match DirBuilder::new().mode(DIR_MODE).create(dir) {
        Ok(()) => fs::set_permissions(dir, fs::Permissions::from_mode(DIR_MODE)),
        // Two first runs at the same moment.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Does what every later write does: a file made and removed. Named after the mapping, so that a leftover goes with the next write.
fn check_writable(dir: &Path) -> Result<(), StoreError> {
    match atomic::Temp::create(&dir.join("mapping.json"), atomic::FILE_MODE) {
        Ok(temp) => {
            drop(temp);
            Ok(())
        }
        Err(error) => Err(explain(dir, "write in", error)),
    }
}
