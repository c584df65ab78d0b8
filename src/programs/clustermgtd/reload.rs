//! Has the configuration changed on disk? The files it came from in, yes or no out; and what is read anew when it has.
//!
//! A file that cannot be used leaves the old configuration in force, with one error for each change of the files, however many passes
//! go by.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::config::settings::Settings;
use crate::config::source::{self, Place};
use crate::error::chain;
use crate::slurm::conf::{self, SlurmConf};

/// What a file was when it was looked at; `None` = it was not there.
type Stamp = Option<(u64, u64, i64, i64)>;

/// The files behind a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Watch {
    files: Vec<(PathBuf, Stamp)>,
}

impl Watch {
    /// To be made before the files are read: a change in between is then seen as one.
    fn of<'p>(paths: impl IntoIterator<Item = &'p Path>) -> Self {
        let mut files: Vec<(PathBuf, Stamp)> = paths.into_iter().map(|path| (path.to_owned(), stamp(path))).collect();
        files.sort();
        files.dedup();
        Self { files }
    }

    /// The files of settings and slurm.conf.
    pub(super) fn of_all(settings: &Settings, conf_path: &Path, conf: Option<&SlurmConf>) -> Self {
        let included = conf.map(|conf| conf.files.as_slice()).unwrap_or_default();
        let paths = settings.files.iter().chain(included).map(PathBuf::as_path);
        Self::of(paths.chain([settings.path.as_path(), conf_path]))
    }

    pub(super) fn has_changed(&self) -> bool {
        self.files.iter().any(|(path, then)| stamp(path) != *then)
    }

    /// The same files as they are now.
    pub(super) fn renewed(&self) -> Self {
        Self::of(self.files.iter().map(|(path, _)| path.as_path()))
    }
}

fn stamp(path: &Path) -> Stamp {
    let meta = fs::metadata(path).ok()?;
    Some((meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec()))
}

/// Reads the configuration; the error is a text of one line or, where there are mistakes, of several.
pub(super) fn read(program: &str, place: &Place) -> Result<Settings, String> {
    source::load(program, place).map_err(|error| error.to_string())
}

/// Reads slurm.conf; without one the daemon knows no SuspendTime and launches under a short limit.
pub(super) fn read_conf(path: &Path) -> Result<SlurmConf, String> {
    conf::read(path).map_err(|error| chain(&error))
}

/// What a running daemon cannot take over: whose instances are whose depends on it.
pub(super) fn needs_restart(old: &Settings, new: &Settings) -> Option<&'static str> {
    if old.cluster != new.cluster {
        return Some("another cluster");
    }
    if old.state_dir != new.state_dir {
        return Some("another state folder");
    }
    if old.store != new.store {
        return Some("another store");
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn replace(path: &Path, text: &str) {
        crate::store::atomic::replace(path, text.as_bytes(), 0o644).unwrap();
    }

    #[test]
    fn a_changed_a_new_and_a_removed_file_are_seen_once() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        replace(&one, "1");
        let watch = Watch::of([one.as_path(), two.as_path()]);
        assert!(!watch.has_changed());
        for change in
            [&|| replace(&one, "2") as _, &|| replace(&two, "new"), &|| fs::remove_file(&two).unwrap()] as [&dyn Fn(); 3]
        {
            let watch = watch.renewed();
            change();
            assert!(watch.has_changed());
            assert!(!watch.renewed().has_changed());
        }
    }
}
