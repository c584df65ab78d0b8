//! Files replaced whole: bytes in, and a reader sees the old file or the new one, never a part or an empty file.
//!
//! Temporary file in the same folder, fsync, rename, fsync of the folder. Never follows a link at the target: rename replaces it.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Mode of every file in the state folder: the owner writes, the group reads, whatever the umask of the caller says.
pub(crate) const FILE_MODE: u32 = 0o640;

const TEMP_SUFFIX: &str = ".tmp";

/// Replaces `path`; when this returns `Ok` the new content survives a power cut.
///
/// The caller holds the lock under which `path` is written: a temporary file found for it belongs to a dead writer and is removed.
/// After an error the old content is in place, except when the last step, the fsync of the folder, failed.
pub(crate) fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    replace_and_keep(path, bytes, mode).map(drop)
}

/// As [`replace`], and gives the new file.
pub(crate) fn replace_and_keep(path: &Path, bytes: &[u8], mode: u32) -> io::Result<File> {
    let (dir, name) = split(path)?;
    remove_leftovers(dir, Some(name))?;
    let mut temp = Temp::create(path, mode)?;
    temp.file.write_all(bytes)?;
    temp.file.sync_all()?;
    let file = temp.rename_to(path)?;
    sync_dir(dir)?;
    Ok(file)
}

/// As [`replace`], without waiting for the disk: for values that may be lost in a power cut, never for the mapping.
pub(crate) fn replace_unsynced(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let (dir, name) = split(path)?;
    remove_leftovers(dir, Some(name))?;
    let mut temp = Temp::create(path, mode)?;
    temp.file.write_all(bytes)?;
    temp.rename_to(path).map(drop)
}

/// A file on its way to its name; removed on drop unless it got there.
pub(crate) struct Temp {
    pub(crate) file: File,
    path: Option<PathBuf>,
}

impl Temp {
    /// An empty file beside `target`, open for reading and appending.
    pub(crate) fn create(target: &Path, mode: u32) -> io::Result<Self> {
        let (dir, name) = split(target)?;
        let mut temp_name = std::ffi::OsString::from(".");
        temp_name.push(name);
        temp_name.push(format!(".{}-{}{TEMP_SUFFIX}", std::process::id(), random_hex(8)?));
        let path = dir.join(temp_name);
        let file = OpenOptions::new().read(true).append(true).create_new(true).mode(mode).open(&path)?;
        let temp = Self { file, path: Some(path) };
        temp.file.set_permissions(Permissions::from_mode(mode))?;
        Ok(temp)
    }

    /// Gives the file its name and keeps it open. The caller fsyncs the folder.
    pub(crate) fn rename_to(mut self, target: &Path) -> io::Result<File> {
        let file = self.file.try_clone()?;
        if let Some(path) = &self.path {
            fs::rename(path, target)?;
        }
        self.path = None;
        Ok(file)
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}

/// Removes temporary files in `dir`, of one target or of all. Only while holding the lock under which they are written.
pub(crate) fn remove_leftovers(dir: &Path, target: Option<&OsStr>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if is_temp(&entry.file_name(), target) {
            match fs::remove_file(entry.path()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

fn is_temp(name: &OsStr, target: Option<&OsStr>) -> bool {
    let name = name.as_encoded_bytes();
    let Some(middle) = name.strip_prefix(b".").and_then(|rest| rest.strip_suffix(TEMP_SUFFIX.as_bytes())) else {
        return false;
    };
    // `<target>.<pid>-<16 hex digits>`
    let Some(dot) = middle.iter().rposition(|byte| *byte == b'.') else { return false };
    let (of, unique) = (&middle[..dot], &middle[dot + 1..]);
    let Some(dash) = unique.iter().position(|byte| *byte == b'-') else { return false };
    let (pid, random) = (&unique[..dash], &unique[dash + 1..]);
    !pid.is_empty()
        && pid.iter().all(u8::is_ascii_digit)
        && random.len() == 16
        && random.iter().all(u8::is_ascii_hexdigit)
        && target.is_none_or(|target| target.as_encoded_bytes() == of)
}

/// Makes renames and removals in `dir` survive a power cut.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Is the file at `path` the one behind this descriptor, and not a later one of the same name?
pub(crate) fn is_same_file(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(there) => Ok(there.dev() == ours.dev() && there.ino() == ours.ino()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Random bytes from the system call, as hexadecimal digits (two a byte).
pub(crate) fn random_hex(bytes: usize) -> io::Result<String> {
    let mut buffer = vec![0_u8; bytes];
    getrandom::fill(&mut buffer).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(buffer.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn split(path: &Path) -> io::Result<(&Path, &OsStr)> {
    match (path.parent(), path.file_name()) {
        (Some(dir), Some(name)) => Ok((if dir.as_os_str().is_empty() { Path::new(".") } else { dir }, name)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "no file name")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// known-failures P08.
    #[test]
    fn p08_a_reader_never_sees_a_short_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mapping.json");
        let text = |n: usize| format!("{n:04}{}{n:04}", "x".repeat(n * 7 % 5000));
        replace(&path, text(0).as_bytes(), FILE_MODE).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                // Also when this thread comes to run only at the end.
                loop {
                    let seen = fs::read_to_string(&path).unwrap();
                    let n: usize = seen.get(..4).unwrap().parse().unwrap();
                    assert_eq!(seen, text(n), "torn file");
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            for n in 0..1000 {
                if n % 2 == 0 {
                    replace(&path, text(n).as_bytes(), FILE_MODE).unwrap();
                } else {
                    replace_unsynced(&path, text(n).as_bytes(), FILE_MODE).unwrap();
                }
            }
            done.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "leftover temporary files");
    }

    #[test]
    fn mode_is_set_whatever_the_umask_and_dead_writers_files_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        let dead = dir.path().join(".a.json.77-0123456789abcdef.tmp");
        let others = [".b.json.77-0123456789abcdef.tmp", ".a.json.swp", "a.json.tmp", ".a.json.my-notes.tmp"];
        fs::write(&dead, "half").unwrap();
        for name in others {
            fs::write(dir.path().join(name), "").unwrap();
        }
        replace(&path, b"1", 0o666).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
        assert!(!dead.exists());
        for name in others {
            assert!(dir.path().join(name).exists(), "{name}");
        }
        remove_leftovers(dir.path(), None).unwrap();
        assert!(!dir.path().join(others[0]).exists());
        assert!(dir.path().join(others[1]).exists() && dir.path().join(others[3]).exists());
    }

    #[test]
    fn a_failed_replacement_leaves_the_old_file_and_no_litter() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("taken");
        fs::create_dir(&path).unwrap();
        assert!(replace(&path, b"1", FILE_MODE).is_err());
        assert!(path.is_dir());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
