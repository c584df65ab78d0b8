//! Requests: put into the status by a person, noticed by clusterstatusmgtd.
//!
//! A request made on the same machine touches `fleet-request` in the state folder, so that the daemon need not wait for its next look at
//! the status; those made elsewhere (a table has other writers) are seen at that.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::clock;
use crate::error::chain;
use crate::model::fleet::FleetStatus;
use crate::plan::fleet_status::{Asked, Transition, ask};
use crate::programs::stamp::Stamp;
use crate::store::atomic::FILE_MODE;
use crate::store::error::StoreError;
use crate::store::fleet_status::{FleetStatusStore, Reading};
use crate::store::lock::{self, Lock};

const FILE: &str = "fleet-request";

/// Tries against a status that others change at the same time.
const TRIES: usize = 5;

/// What came of putting a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::programs) enum Put {
    /// The status is the request now; it was this before.
    Taken(FleetStatus),
    /// Somebody had asked for it, or it is under way.
    UnderWay(FleetStatus),
    /// The fleet is so.
    Already,
}

/// Makes the status a request, whatever it is, unless it is so already.
pub(in crate::programs) async fn put(store: &FleetStatusStore, transition: Transition) -> Result<Put, String> {
    for _ in 0..TRIES {
        let Reading { status, word, .. } = store.read().await.map_err(|error| chain(&error))?;
        match ask(transition, status) {
            Asked::Already => return Ok(Put::Already),
            Asked::UnderWay => return Ok(Put::UnderWay(status)),
            Asked::Refused => {
                let known = FleetStatus::ALL.map(FleetStatus::as_str).join(", ");
                return Err(format!(
                    "{store} says {word:?}, which this version does not know, and is left alone; it may be one of {known}"
                ));
            }
            Asked::Put { from } => {
                let set = store.compare_and_set(from, transition.requested(), clock::now()).await;
                if set.map_err(|error| chain(&error))? {
                    return Ok(Put::Taken(from));
                }
            }
        }
    }
    Err(format!("{store} was changed by others again and again; try again"))
}

/// The same where the fleet is so by its status, and is not so.
pub(in crate::programs) async fn put_again(store: &FleetStatusStore, transition: Transition) -> Result<Put, String> {
    let set = store.compare_and_set(transition.done(), transition.requested(), clock::now()).await;
    // Where it was changed meanwhile, that is what counts.
    if set.map_err(|error| chain(&error))? { Ok(Put::Taken(transition.done())) } else { put(store, transition).await }
}

const DAEMON_LOCK: &str = "clusterstatusmgtd.lock";

/// A command that asks whether there is a daemon has the lock for an instant, and so has the child that a killed daemon was starting.
const DAEMON_WAIT: Duration = Duration::from_secs(2);

/// Held by clusterstatusmgtd for as long as it runs. An error that is [`StoreError::Busy`] says who holds it.
pub(in crate::programs) fn daemon_lock(dir: &Path) -> Result<Lock, StoreError> {
    Lock::acquire(&dir.join(DAEMON_LOCK), DAEMON_WAIT)
}

/// The clusterstatusmgtd that runs on this machine, in words; `None`: there is none. Another command that asks at this moment is not
/// taken for one: its own work would then be left to nobody.
pub(in crate::programs) fn daemon(dir: &Path) -> Result<Option<String>, StoreError> {
    lock::held_by(&dir.join(DAEMON_LOCK))
}

/// Lets a clusterstatusmgtd of this machine look at once. Without one, or where it fails, the next look at the status does.
pub(in crate::programs) fn touch(dir: &Path) {
    let touched = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(FILE_MODE)
        .custom_flags(nix::libc::O_NOFOLLOW)
        .open(dir.join(FILE))
        .and_then(|mut file| writeln!(file, "{}", clock::now()));
    if let Err(error) = touched {
        tracing::debug!("{FILE} cannot be touched, the request is seen at the next look at the status: {error}");
    }
}

/// Sees that the file was touched.
#[derive(Debug)]
pub(in crate::programs) struct Watch {
    path: PathBuf,
    seen: Stamp,
}

impl Watch {
    pub(in crate::programs) fn new(dir: &Path) -> Self {
        let path = dir.join(FILE);
        let seen = Stamp::of(&path);
        Self { path, seen }
    }

    /// Was it touched since the last time that this was asked?
    pub(in crate::programs) fn is_touched(&mut self) -> bool {
        let now = Stamp::of(&self.path);
        let touched = now != self.seen && now.is_there();
        self.seen = now;
        touched
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use super::*;

    #[tokio::test]
    async fn z04_requests_by_what_they_find() {
        use FleetStatus::{Protected, Running, StartRequested, Starting, StopRequested, Stopped, Stopping};
        for (status, start, stop) in [
            (Running, Put::Already, Put::Taken(Running)),
            (Protected, Put::Taken(Protected), Put::Taken(Protected)),
            (Stopped, Put::Taken(Stopped), Put::Already),
            (Stopping, Put::Taken(Stopping), Put::UnderWay(Stopping)),
            (Starting, Put::UnderWay(Starting), Put::Taken(Starting)),
            (StopRequested, Put::Taken(StopRequested), Put::UnderWay(StopRequested)),
            (StartRequested, Put::UnderWay(StartRequested), Put::Taken(StartRequested)),
        ] {
            for (transition, expected) in [(Transition::Start, start), (Transition::Stop, stop)] {
                let dir = tempfile::tempdir().unwrap();
                let text = format!("{{\"status\": {:?}}}", status.as_str());
                std::fs::write(dir.path().join("fleet-status.json"), text).unwrap();
                let store = FleetStatusStore::in_folder(dir.path());
                assert_eq!(put(&store, transition).await.unwrap(), expected, "{status} {transition:?}");
                let after = store.read().await.unwrap().status;
                let is_put = matches!(expected, Put::Taken(_));
                assert_eq!(after, if is_put { transition.requested() } else { status });
            }
        }
    }

    #[tokio::test]
    async fn z04_a_word_that_is_not_known_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fleet-status.json");
        std::fs::write(&path, r#"{"status": "ASLEEP"}"#).unwrap();
        let error = put(&FleetStatusStore::in_folder(dir.path()), Transition::Stop).await.unwrap_err();
        assert!(error.contains("ASLEEP") && error.contains("RUNNING, STOPPED"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), r#"{"status": "ASLEEP"}"#);
    }

    /// B114: each would leave the work to the other.
    #[test]
    fn a_command_that_asks_at_the_same_moment_is_no_daemon() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(daemon(dir.path()).unwrap(), None);
        let running = daemon_lock(dir.path()).unwrap();
        assert!(daemon(dir.path()).unwrap().is_some());
        drop(running);
        let other = std::fs::File::open(dir.path().join(DAEMON_LOCK)).unwrap();
        fs2::FileExt::lock_shared(&other).unwrap();
        assert_eq!(daemon(dir.path()).unwrap(), None);
    }

    #[test]
    fn a_touch_is_seen_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut watch = Watch::new(dir.path());
        assert!(!watch.is_touched());
        touch(dir.path());
        assert!(watch.is_touched());
        assert!(!watch.is_touched());
        std::fs::File::open(dir.path().join(FILE)).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        assert!(watch.is_touched());
    }
}
