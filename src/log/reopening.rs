//! A log file that may be rotated by renaming while a daemon has it open: whatever is written goes into the file that bears the name.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

use crate::store::atomic::is_same_file;

/// Appends to the file at `path`; one that was renamed or removed is replaced by a new one with the next line.
pub(super) struct Reopening {
    path: PathBuf,
    file: File,
}

impl Reopening {
    /// Makes the file where it is missing.
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let file = append(&path)?;
        Ok(Self { path, file })
    }
}

fn append(path: &std::path::Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

impl Write for Reopening {
    /// A line comes in one piece, so that none is torn by a rotation.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A look costs a microsecond, and a daemon writes a few lines a minute. Where no new file can be made the old one goes on.
        if !is_same_file(&self.file, &self.path).unwrap_or(true)
            && let Ok(file) = append(&self.path)
        {
            self.file = file;
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;

    #[test]
    fn a_renamed_or_removed_log_goes_on_under_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clustermgtd.log");
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        let mut log = Reopening::open(path.clone()).unwrap();
        log.write_all(b"one\n").unwrap();
        fs::rename(&path, dir.path().join("clustermgtd.log.1")).unwrap();
        log.write_all(b"two\n").unwrap();
        fs::remove_file(&path).unwrap();
        log.write_all(b"three\n").unwrap();
        // As `copytruncate` leaves it.
        fs::copy(&path, dir.path().join("clustermgtd.log.2")).unwrap();
        OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
        log.write_all(b"four\n").unwrap();
        assert_eq!((read("clustermgtd.log.1").as_str(), read("clustermgtd.log.2").as_str()), ("one\n", "three\n"));
        assert_eq!(read("clustermgtd.log"), "four\n");
    }
}
