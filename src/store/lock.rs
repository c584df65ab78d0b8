//! A lock between processes: `flock` on a file of its own, waited for within bounds, let go on drop.
//!
//! The holder writes its pid and program into the file, so that one who waited in vain can say for whom. That text is a hint:
//! the lock is the kernel's, and goes with the process. Never removes the lock file.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::atomic;
use super::error::StoreError;

/// Held until dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        let_go(&self.file);
    }
}

/// First and longest pause between two tries; ten programs that start at once are through in a few pauses.
const PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// Between two tries of one who has other things to do.
const CALM_PAUSE: Duration = Duration::from_millis(100);

/// Bytes of the holder's text; always written whole, so that no reader sees half of it.
const HOLDER_BYTES: usize = 80;

impl Lock {
    /// Takes the lock at `path` (created where missing), trying again for at most `wait`; zero = one try.
    pub(crate) fn acquire(path: &Path, wait: Duration) -> Result<Self, StoreError> {
        let started = Instant::now();
        let mut pause = PAUSE;
        loop {
            let file = open(path)?;
            if try_lock(&file).map_err(|source| StoreError::Io { what: "lock", path: path.to_owned(), source })? {
                // Removed or replaced by a person meanwhile: the lock on a file that nobody finds is no lock.
                if atomic::is_same_file(&file, path).map_err(|source| io_error("look at", path, source))? {
                    write_holder(&file);
                    return Ok(Self { file });
                }
                continue;
            }
            let waited = started.elapsed();
            if waited >= wait {
                return Err(StoreError::Busy { path: path.to_owned(), waited: wait, holder: holder(path) });
            }
            // Half of it random, so that waiters do not march in step.
            let nap = pause.mul_f64(0.5 + fastrand::f64() / 2.0).min(wait - waited);
            std::thread::sleep(nap);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Waits for a lock without holding up the other tasks of the program; `acquire` is one try.
pub(crate) async fn patiently(wait: Duration, acquire: impl Fn() -> Result<Lock, StoreError>) -> Result<Lock, StoreError> {
    let until = Instant::now() + wait;
    loop {
        match acquire() {
            Err(StoreError::Busy { path, holder, .. }) if Instant::now() + CALM_PAUSE >= until => {
                return Err(StoreError::Busy { path, waited: wait, holder });
            }
            Err(StoreError::Busy { .. }) => tokio::time::sleep(CALM_PAUSE).await,
            result => return result,
        }
    }
}

/// One try for an exclusive `flock` on this descriptor: true = held until [`let_go`].
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    loop {
        match fs2::FileExt::try_lock_exclusive(file) {
            Ok(()) => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() == fs2::lock_contended_error().raw_os_error() => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

/// Lets go of what [`try_lock`] took, at once. Closing the descriptor alone would not: a child that is being started at this moment (a
/// scontrol) has a copy of it until its exec, and the lock is free only when both are closed.
pub(crate) fn let_go(file: &File) {
    let _ = fs2::FileExt::unlock(file);
}

/// Writes who holds the lock; failing to is no reason not to hold it.
pub(crate) fn write_holder(file: &File) {
    let mut text = format!("{} {}", std::process::id(), program()).into_bytes();
    text.resize(HOLDER_BYTES - 1, b' ');
    text.push(b'\n');
    let _ = file.write_at(&text, 0);
}

/// This process in the same words as [`holder`]'s.
pub(crate) fn this_process() -> String {
    format!("process {} ({})", std::process::id(), program())
}

/// Who holds the lock at `path`, in words; `None`: nobody does. Asks for a moment's shared lock, so that of two who ask at once neither
/// takes the other for a holder. Makes no file and writes nothing.
pub(crate) fn held_by(path: &Path) -> Result<Option<String>, StoreError> {
    let opened = OpenOptions::new().read(true).custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(io_error("look at", path, source)),
    };
    loop {
        match fs2::FileExt::try_lock_shared(&file) {
            Ok(()) => {
                let_go(&file);
                return Ok(None);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() == fs2::lock_contended_error().raw_os_error() => return Ok(Some(holder(path))),
            Err(source) => return Err(io_error("look at", path, source)),
        }
    }
}

fn program() -> String {
    let path = std::env::args_os().next();
    path.and_then(|path| Path::new(&path).file_name().map(|name| name.to_string_lossy().into_owned())).unwrap_or_default()
}

/// Who holds the lock at `path`, in words, as far as the file says.
pub(crate) fn holder(path: &Path) -> String {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(HOLDER_BYTES as u64).read_to_string(&mut text));
    match (read, text.trim().split_once(' ')) {
        (Ok(_), Some((pid, program))) => format!("process {pid} ({})", program.trim()),
        _ => "a process that has not written its name".to_owned(),
    }
}

fn open(path: &Path) -> Result<File, StoreError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(atomic::FILE_MODE)
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
        .open(path)
        .map_err(|source| super::file::explain(path, "open", source))
}

fn io_error(what: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::Io { what, path: PathBuf::from(path), source }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn one_at_a_time_and_the_one_who_waits_learns_for_whom() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = Lock::acquire(&path, Duration::ZERO).unwrap();
        let error = Lock::acquire(&path, Duration::from_millis(5)).unwrap_err();
        assert!(error.is_temporary());
        assert!(error.to_string().contains(&format!("process {} (", std::process::id())), "{error}");
        drop(held);
        Lock::acquire(&path, Duration::ZERO).unwrap();
    }

    /// What a child has that is between its fork and its exec.
    #[test]
    fn a_copy_of_the_descriptor_does_not_keep_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = Lock::acquire(&path, Duration::ZERO).unwrap();
        let _copy = held.file.try_clone().unwrap();
        assert!(Lock::acquire(&path, Duration::ZERO).is_err());
        drop(held);
        Lock::acquire(&path, Duration::ZERO).unwrap();
    }

    #[test]
    fn who_only_asks_holds_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert_eq!(held_by(&path).unwrap(), None);
        assert!(!path.exists(), "asking makes no file");
        let held = Lock::acquire(&path, Duration::ZERO).unwrap();
        assert!(held_by(&path).unwrap().unwrap().contains(&format!("process {} (", std::process::id())));
        drop(held);
        // Another one who asks, for as long as this stands still.
        let asks = File::open(&path).unwrap();
        fs2::FileExt::try_lock_shared(&asks).unwrap();
        assert_eq!(held_by(&path).unwrap(), None);
    }

    #[test]
    fn a_lock_file_that_was_removed_is_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let _held = Lock::acquire(&path, Duration::ZERO).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _second = Lock::acquire(&path, Duration::ZERO).unwrap();
        assert!(Lock::acquire(&path, Duration::ZERO).is_err(), "the new file is locked");
    }

    #[test]
    fn a_link_in_place_of_the_lock_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        std::os::unix::fs::symlink(dir.path().join("nowhere"), &path).unwrap();
        assert!(matches!(Lock::acquire(&path, Duration::ZERO), Err(StoreError::Io { .. })));
        assert!(!dir.path().join("nowhere").exists());
    }
}
