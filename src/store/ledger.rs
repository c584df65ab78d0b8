//! A small JSON file beside the mapping, with a lock of its own: a change in, the file replaced.
//!
//! What is kept this way helps but may be lost, so a file that cannot be understood never stops a launch: the reader gets the error
//! for its log, and the next writer moves the file aside (`<name>.bad`) and begins anew. Never used for the mapping.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::StoreError;
use super::file::{io_error, read_regular};
use super::lock::Lock;
use super::{atomic, document};
use crate::clock::limit;

/// The lock is held for one small read and write; a second is ten times what a slow disk needs.
const WAIT: Duration = limit(2);

/// What such a file holds.
pub(crate) trait Document: Default + Serialize + DeserializeOwned {
    /// The only version this program reads and writes.
    const VERSION: u32;
    /// Must a change survive a power cut?
    const DURABLE: bool;

    fn version(&self) -> u32;
}

#[derive(Debug, Clone)]
pub(crate) struct Ledger {
    path: PathBuf,
    lock: PathBuf,
}

impl Ledger {
    /// `<dir>/<name>.json`, guarded by `<dir>/<name>.lock`.
    pub(crate) fn new(dir: &Path, name: &str) -> Self {
        Self { path: dir.join(format!("{name}.json")), lock: dir.join(format!("{name}.lock")) }
    }

    /// The content as of now, without the lock; `None` if there is no file.
    pub(crate) fn read<T: Document>(&self) -> Result<Option<T>, StoreError> {
        let Some(bytes) = read_regular(&self.path)? else { return Ok(None) };
        let content = |position, why| StoreError::Content {
            path: self.path.clone(),
            position,
            why,
            advice: "it counts as empty; the next program that writes it moves it aside",
        };
        let value: T = serde_json::from_slice(&bytes).map_err(|error| {
            let problem = document::problem(&error);
            content(problem.position, problem.why)
        })?;
        if value.version() == T::VERSION {
            Ok(Some(value))
        } else {
            Err(content(
                None,
                format!("it is of version {}, and this program knows version {} only", value.version(), T::VERSION),
            ))
        }
    }

    /// Changes the content under the lock. No file, or one that cannot be understood, is changed from `T::default()`.
    pub(crate) fn update<T: Document, R>(&self, change: impl FnOnce(&mut T) -> R) -> Result<R, StoreError> {
        let _lock = Lock::acquire(&self.lock, WAIT)?;
        let mut value = self.read_to_write()?;
        let result = change(&mut value);
        self.write(&value, T::DURABLE)?;
        Ok(result)
    }

    /// The content for one who is about to write it and keeps others from writing: a file that cannot be understood is moved aside, with
    /// a warning, and counts as none.
    pub(super) fn read_to_write<T: Document>(&self) -> Result<T, StoreError> {
        match self.read() {
            Ok(found) => Ok(found.unwrap_or_default()),
            Err(broken @ StoreError::Content { .. }) => {
                let aside = self.aside();
                fs::rename(&self.path, &aside).map_err(|error| io_error("move aside", &self.path, error))?;
                tracing::warn!(kept_as = %aside.display(), "started anew: {broken}");
                Ok(T::default())
            }
            Err(error) => Err(error),
        }
    }

    /// Replaces the content, whatever it was, for one who keeps others from writing.
    pub(super) fn write(&self, value: &impl Serialize, durable: bool) -> Result<(), StoreError> {
        let mut bytes = serde_json::to_vec_pretty(value).map_err(|error| io_error("write", &self.path, error.into()))?;
        bytes.push(b'\n');
        let replace = if durable { atomic::replace } else { atomic::replace_unsynced };
        replace(&self.path, &bytes, atomic::FILE_MODE).map_err(|error| io_error("write", &self.path, error))
    }

    fn aside(&self) -> PathBuf {
        let mut name = OsString::from(&self.path);
        name.push(".bad");
        PathBuf::from(name)
    }
}
