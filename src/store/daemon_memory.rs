//! `clustermgtd.json`: what clustermgtd remembers over its own restarts. A value in, the file replaced; the file in, the value out.
//!
//! Does not know what is remembered (that is `plan/reconcile/memory.rs`), only that it can be written as JSON. It helps but may be lost:
//! a file that cannot be understood is moved aside with a warning, and the daemon begins with nothing remembered.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::StoreError;
use super::ledger::{Document, Ledger};
use super::lock::Lock;

const NAME: &str = "clustermgtd";

/// Of the one who looks after this cluster: holds the lock of `daemon_lock::clustermgtd`, so that nobody else writes.
#[derive(Debug)]
pub(crate) struct DaemonMemory {
    ledger: Ledger,
    _held: Lock,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MemoryFile<M> {
    version: u32,
    memory: M,
}

const VERSION: u32 = 1;

impl<M: Default> Default for MemoryFile<M> {
    fn default() -> Self {
        Self { version: VERSION, memory: M::default() }
    }
}

impl<M: Default + Serialize + DeserializeOwned> Document for MemoryFile<M> {
    const VERSION: u32 = VERSION;
    /// A failed launch that is forgotten is counted anew; a replacement that is forgotten is launched twice.
    const DURABLE: bool = true;

    fn version(&self) -> u32 {
        self.version
    }
}

impl DaemonMemory {
    pub(crate) fn in_folder(dir: &Path, held: Lock) -> Self {
        Self { ledger: Ledger::new(dir, NAME), _held: held }
    }

    /// What was last kept; nothing where there is no file or none that can be understood (which is moved aside).
    pub(crate) fn load<M: Default + Serialize + DeserializeOwned>(&self) -> Result<M, StoreError> {
        Ok(self.ledger.read_to_write::<MemoryFile<M>>()?.memory)
    }

    /// Keeps `memory` instead of what was kept before.
    pub(crate) fn save<M: Serialize>(&self, memory: &M) -> Result<(), StoreError> {
        self.ledger.write(&MemoryFile { version: VERSION, memory }, true)
    }
}

/// What a daemon has kept, for one who only looks. On an error: tell it and go on as if there were nothing.
pub(crate) fn peek<M: Default + Serialize + DeserializeOwned>(dir: &Path) -> Result<M, StoreError> {
    Ok(Ledger::new(dir, NAME).read::<MemoryFile<M>>()?.unwrap_or_default().memory)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use std::collections::BTreeMap;
    use std::fs;

    use super::super::daemon_lock;
    use super::*;

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Remembered {
        orphans: BTreeMap<String, u64>,
    }

    fn memory(dir: &Path) -> DaemonMemory {
        DaemonMemory::in_folder(dir, daemon_lock::clustermgtd(dir).unwrap())
    }

    fn one() -> Remembered {
        Remembered { orphans: BTreeMap::from([("i-1".to_owned(), 7)]) }
    }

    #[test]
    fn a_restart_finds_what_was_kept() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(memory(dir.path()).load::<Remembered>().unwrap(), Remembered::default());
        assert!(!dir.path().join("clustermgtd.json").exists(), "reading writes nothing");
        memory(dir.path()).save(&one()).unwrap();
        assert_eq!(memory(dir.path()).load::<Remembered>().unwrap(), one());
        assert_eq!(peek::<Remembered>(dir.path()).unwrap(), one());
        // As long as there is a writer there is no other one.
        let writer = memory(dir.path());
        assert!(matches!(daemon_lock::clustermgtd(dir.path()), Err(StoreError::Taken { .. })));
        writer.save(&Remembered::default()).unwrap();
        assert_eq!(peek::<Remembered>(dir.path()).unwrap(), Remembered::default());
    }

    #[test]
    fn a_broken_file_is_moved_aside_by_the_daemon_and_by_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clustermgtd.json");
        for broken in [
            "",
            "{\"version\": 1, \"memory\": {\"orphans\": 3}}",
            "{\"version\": 1, \"memory\": {\"new\": 3}}",
            "{\"version\": 9, \"memory\": {}}",
        ] {
            fs::write(&path, broken).unwrap();
            let error = peek::<Remembered>(dir.path()).unwrap_err();
            assert!(error.to_string().contains("clustermgtd.json"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), broken, "looking changes nothing");
            assert_eq!(memory(dir.path()).load::<Remembered>().unwrap(), Remembered::default());
            assert_eq!(fs::read_to_string(dir.path().join("clustermgtd.json.bad")).unwrap(), broken);
            assert!(!path.exists());
        }
        memory(dir.path()).save(&one()).unwrap();
        assert_eq!(memory(dir.path()).load::<Remembered>().unwrap(), one());
    }
}
