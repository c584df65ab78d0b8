//! What can go wrong with the state folder: each error names the path and says what to do about it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("cannot {what} {}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },

    /// The folder is there but this user may not work in it.
    #[error(
        "cannot write in the state folder: {} {about}; give the folder and everything in it to slurm.conf's SlurmUser \
         (chown -R), or name another folder in [state] dir",
        path.display()
    )]
    NotWritable { path: PathBuf, about: String, source: io::Error },

    #[error(
        "the state folder {} is on a network file system ({kind}), where locks and replaced files cannot be relied on; \
         put [state] dir on a local disk (for several head nodes a `dynamodb` store is planned)",
        path.display()
    )]
    NetworkFileSystem { path: PathBuf, kind: String },

    /// Somebody else held the lock for the whole of the wait.
    #[error("{} is still locked after {waited:?}, by {holder}; if that process hangs, end it and try again", path.display())]
    Busy { path: PathBuf, waited: Duration, holder: String },

    /// The file's content is not what this program writes; nothing was changed.
    #[error("{}: {why}; nothing was changed: {advice}", at(path, *position))]
    Content {
        path: PathBuf,
        /// Line and column, from 1, where the trouble has a place.
        position: Option<(usize, usize)>,
        why: String,
        advice: &'static str,
    },

    /// A dry run's store was asked to write.
    #[error("the state folder {} was opened for reading only", path.display())]
    ReadOnly { path: PathBuf },

    /// A launch id that cannot be a file name, or is in use.
    #[error("launch id {launch:?} {why}")]
    Launch { launch: String, why: &'static str },
}

impl StoreError {
    /// Will the same call probably work a little later, without anybody changing anything?
    pub(crate) fn is_temporary(&self) -> bool {
        matches!(self, Self::Busy { .. })
    }
}

fn at(path: &std::path::Path, position: Option<(usize, usize)>) -> String {
    match position {
        Some((line, column)) => format!("{}:{line}:{column}", path.display()),
        None => path.display().to_string(),
    }
}
