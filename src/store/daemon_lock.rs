//! The locks of the daemons in the state folder: the folder in, a lock that is held until dropped out, or who holds it.
//!
//! They are between processes of one machine, as everything in the state folder is.

use std::path::Path;
use std::time::Duration;

use super::error::StoreError;
use super::lock::{self, Lock};

/// One that was killed while it started a scontrol lives on in that child, which has the lock until its exec.
const LAST_BREATH: Duration = Duration::from_secs(2);

/// Held by the one clustermgtd of this folder for as long as it runs. Tried for a moment, until the last one is wholly gone.
///
/// # Errors
/// [`StoreError::Taken`], with the holder's pid and program, when there is one already.
pub(crate) fn clustermgtd(dir: &Path) -> Result<Lock, StoreError> {
    match Lock::acquire(&dir.join("clustermgtd.lock"), LAST_BREATH) {
        Err(StoreError::Busy { path, holder, .. }) => Err(StoreError::Taken { what: "clustermgtd", path, holder }),
        result => result,
    }
}

/// Does one run now? Not, as far as that cannot be found out.
pub(crate) fn clustermgtd_runs(dir: &Path) -> bool {
    lock::held_by(&dir.join("clustermgtd.lock")).is_ok_and(|holder| holder.is_some())
}

/// Held by whoever starts or stops the fleet until that is done, and by clustermgtd while it acts: so they never work against each
/// other. Waits for at most `wait`; zero = one try.
///
/// # Errors
/// [`StoreError::Busy`], with the holder's pid and program.
pub(crate) fn fleet(dir: &Path, wait: Duration) -> Result<Lock, StoreError> {
    Lock::acquire(&dir.join("fleet.lock"), wait)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_second_one_learns_who_the_first_is() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!clustermgtd_runs(dir.path()) && !dir.path().join("clustermgtd.lock").exists());
        let held = clustermgtd(dir.path()).unwrap();
        assert!(clustermgtd_runs(dir.path()));
        let error = clustermgtd(dir.path()).unwrap_err();
        let text = error.to_string();
        assert!(!error.is_temporary(), "a second daemon ends; it does not wait");
        assert!(text.starts_with("a clustermgtd looks after this cluster already: process "), "{text}");
        assert!(text.contains(&format!("process {} (", std::process::id())) && text.contains("clustermgtd.lock"), "{text}");
        // The fleet's lock is another one.
        let transition = fleet(dir.path(), Duration::ZERO).unwrap();
        let error = fleet(dir.path(), Duration::ZERO).unwrap_err();
        assert!(error.is_temporary() && error.to_string().contains("fleet.lock"), "{error}");
        drop((held, transition));
        assert!(!clustermgtd_runs(dir.path()), "the file alone is nobody");
        clustermgtd(dir.path()).unwrap();
        fleet(dir.path(), Duration::ZERO).unwrap();
    }
}
