//! Groups that are left alone for a while because launches failed: a group's name in, why and until when out.
//!
//! Decides nothing about how long. A file that cannot be understood counts as empty (the launch is tried, at worst in vain); the
//! reader gets the error for its log, the next writer keeps the file as `backoff.json.bad`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::StoreError;
use super::ledger::{Document, Ledger};
use crate::model::failure::Backoff;
use crate::model::time::Timestamp;

/// `backoff.json`
#[derive(Debug, Clone)]
pub(crate) struct Backoffs {
    ledger: Ledger,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BackoffFile {
    version: u32,
    groups: BTreeMap<String, Backoff>,
}

impl Default for BackoffFile {
    fn default() -> Self {
        Self { version: Self::VERSION, groups: BTreeMap::new() }
    }
}

impl Document for BackoffFile {
    const VERSION: u32 = 1;
    const DURABLE: bool = true;

    fn version(&self) -> u32 {
        self.version
    }
}

impl Backoffs {
    pub(crate) fn in_folder(dir: &Path) -> Self {
        Self { ledger: Ledger::new(dir, "backoff") }
    }

    /// The groups in back-off at `now`. On an error: log it and go on as if there were none.
    pub(crate) fn active(&self, now: Timestamp) -> Result<BTreeMap<String, Backoff>, StoreError> {
        let mut groups = self.ledger.read::<BackoffFile>()?.unwrap_or_default().groups;
        groups.retain(|_, backoff| backoff.until > now);
        Ok(groups)
    }

    /// Puts a group into back-off. Where it is in one already, the one that lasts longer stays.
    pub(crate) fn note(&self, group: &str, backoff: Backoff, now: Timestamp) -> Result<(), StoreError> {
        self.ledger.update(|file: &mut BackoffFile| {
            file.groups.retain(|_, kept| kept.until > now);
            match file.groups.get_mut(group) {
                Some(kept) if kept.until > backoff.until => {}
                Some(kept) => *kept = backoff,
                None => {
                    file.groups.insert(group.to_owned(), backoff);
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use super::*;
    use crate::model::failure::BackoffKind;

    fn backoff(code: &str, until: u64) -> Backoff {
        Backoff {
            code: code.into(),
            kind: BackoffKind::Capacity,
            sentence: "none left".into(),
            until: Timestamp::from_secs(until),
        }
    }

    #[test]
    fn lasts_until_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let store = Backoffs::in_folder(dir.path());
        let at = Timestamp::from_secs;
        assert!(store.active(at(1)).unwrap().is_empty());
        assert!(!dir.path().join("backoff.json").exists());
        store.note("a", backoff("A", 100), at(1)).unwrap();
        store.note("b", backoff("B", 200), at(1)).unwrap();
        store.note("a", backoff("shorter", 50), at(1)).unwrap();
        assert_eq!(store.active(at(99)).unwrap()["a"].code, "A");
        assert_eq!(store.active(at(100)).unwrap().into_keys().collect::<Vec<_>>(), ["b"]);
        store.note("c", backoff("C", 300), at(150)).unwrap();
        let text = std::fs::read_to_string(dir.path().join("backoff.json")).unwrap();
        assert!(!text.contains("\"a\""), "what is over is dropped: {text}");
        assert_eq!(store.active(at(200)).unwrap().into_keys().collect::<Vec<_>>(), ["c"]);
        assert!(store.active(at(300)).unwrap().is_empty());
    }

    #[test]
    fn a_broken_file_is_reported_and_kept_aside() {
        let dir = tempfile::tempdir().unwrap();
        let store = Backoffs::in_folder(dir.path());
        let path = dir.path().join("backoff.json");
        for broken in ["", "{\"version\": 1, \"groups\": {\"a\": 3}}", "{\"version\": 9, \"groups\": {}}"] {
            std::fs::write(&path, broken).unwrap();
            let error = store.active(Timestamp::from_secs(1)).unwrap_err();
            assert!(error.to_string().contains("backoff.json"), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), broken, "reading changes nothing");
            store.note("a", backoff("A", 100), Timestamp::from_secs(1)).unwrap();
            assert_eq!(std::fs::read_to_string(dir.path().join("backoff.json.bad")).unwrap(), broken);
            assert_eq!(store.active(Timestamp::from_secs(1)).unwrap().len(), 1);
        }
    }

    #[test]
    fn writers_at_the_same_moment_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for n in 0..16 {
                let store = Backoffs::in_folder(dir.path());
                scope.spawn(move || store.note(&format!("g{n}"), backoff("A", 100), Timestamp::from_secs(1)).unwrap());
            }
        });
        assert_eq!(Backoffs::in_folder(dir.path()).active(Timestamp::from_secs(1)).unwrap().len(), 16);
    }
}
