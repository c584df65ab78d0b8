//! The daemon's heartbeat: files that say when it last lived, replaced whole. Each has a thread of its own, since a file on NFS may hang
//! and EC2 may be slow: neither must make the other programs believe that nobody is there.
//!
//! It stops when no pass has come to an end for long: whoever reads it is to know that nobody looks after the cluster.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use crate::clock;
use crate::config::settings::Settings;
use crate::error::chain;
use crate::store::heartbeat::Heartbeat;

/// The longest between two beats.
const INTERVAL: Duration = Duration::from_secs(30);

/// Without the end of a pass it beats for so many loops, but at least for [`LEAST_PATIENCE`].
const LOOPS: u32 = 10;
const LEAST_PATIENCE: Duration = Duration::from_mins(10);

/// Where and how often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rhythm {
    files: Vec<PathBuf>,
    interval: Duration,
    /// How long a pass may take before nothing is written any more.
    patience: Duration,
}

impl Rhythm {
    /// Beside ParallelCluster its own file; standalone the state folder's, and besides where the configuration wants it.
    pub(super) fn of(settings: &Settings) -> Self {
        let daemon = &settings.clustermgtd;
        let mut files = match &settings.parallelcluster {
            Some(parallelcluster) => vec![parallelcluster.heartbeat.clone()],
            None => vec![settings.state_dir.join("heartbeat")],
        };
        files.extend(daemon.heartbeat.clone().filter(|path| !files.contains(path)));
        let patience = (daemon.loop_time * LOOPS).max(LEAST_PATIENCE);
        Self { files, interval: daemon.loop_time.min(INTERVAL), patience }
    }
}

enum Told {
    /// A pass came to an end.
    Passed(Instant),
    Rhythm(Rhythm),
}

/// Writes one; what went wrong.
type Write = fn(&Heartbeat) -> Option<String>;

/// The other end of the threads. Dropped, they stop.
pub(super) struct Heart {
    files: BTreeMap<PathBuf, Sender<Told>>,
    write: Write,
}

impl Heart {
    /// Begins to beat, at once.
    pub(super) fn start(rhythm: &Rhythm) -> std::io::Result<Self> {
        Self::with(rhythm, |file| file.beat(clock::now()).err().map(|error| chain(&error)))
    }

    fn with(rhythm: &Rhythm, write: Write) -> std::io::Result<Self> {
        let mut heart = Self { files: BTreeMap::new(), write };
        heart.take_up(rhythm)?;
        Ok(heart)
    }

    /// A pass came to an end, whatever it saw.
    pub(super) fn passed(&self) {
        let now = Instant::now();
        for tell in self.files.values() {
            let _ = tell.send(Told::Passed(now));
        }
    }

    /// The configuration changed.
    pub(super) fn set(&mut self, rhythm: &Rhythm) {
        self.files.retain(|path, _| rhythm.files.contains(path));
        for tell in self.files.values() {
            let _ = tell.send(Told::Rhythm(rhythm.clone()));
        }
        if let Err(error) = self.take_up(rhythm) {
            tracing::error!("no thread for the heartbeat: {error}");
        }
    }

    /// A thread for each file that has none.
    fn take_up(&mut self, rhythm: &Rhythm) -> std::io::Result<()> {
        for path in &rhythm.files {
            if self.files.contains_key(path) {
                continue;
            }
            let (tell, told) = mpsc::channel();
            let (file, rhythm, write) = (path.clone(), rhythm.clone(), self.write);
            std::thread::Builder::new().name("heartbeat".to_owned()).spawn(move || beat_on(&file, rhythm, &told, write))?;
            self.files.insert(path.clone(), tell);
        }
        Ok(())
    }
}

/// The thread of one file.
fn beat_on(path: &Path, mut rhythm: Rhythm, told: &Receiver<Told>, write: Write) {
    let file = Heartbeat::at(path);
    let mut passed = Instant::now();
    let mut trouble = Trouble::default();
    let mut silent = false;
    loop {
        if passed.elapsed() < rhythm.patience {
            trouble.note(write(&file));
            silent = false;
        } else if !silent {
            silent = true;
            let minutes = passed.elapsed().as_secs() / 60;
            tracing::error!("no pass has come to an end for {minutes} minutes: the heartbeat {} stops", path.display());
        }
        let mut next = told.recv_timeout(rhythm.interval);
        // All that was told while the file hung.
        loop {
            match next {
                Ok(Told::Passed(at)) => passed = at,
                Ok(Told::Rhythm(new)) => rhythm = new,
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
            next = told.recv_timeout(Duration::ZERO);
        }
    }
}

/// What is wrong is told once, and again when it is over or something else.
#[derive(Default)]
struct Trouble(Option<String>);

impl Trouble {
    fn note(&mut self, now: Option<String>) {
        match &now {
            Some(text) if self.0.as_ref() != Some(text) => {
                tracing::error!("the heartbeat cannot be written: compute nodes may shut themselves down: {text}");
            }
            None if self.0.is_some() => tracing::info!("the heartbeat is written again"),
            _ => {}
        }
        self.0 = now;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::model::time::Timestamp;
    use crate::store::heartbeat::read_heartbeat;

    fn rhythm(files: &[PathBuf]) -> Rhythm {
        Rhythm { files: files.to_vec(), interval: Duration::from_millis(5), patience: LEAST_PATIENCE }
    }

    /// Waits for a beat that is not `before`, and gives it.
    #[track_caller]
    fn next(path: &Path, before: Option<Timestamp>) -> Option<Timestamp> {
        for _ in 0..6000 {
            let now = read_heartbeat(path).ok();
            if now.is_some() && now != before {
                return now;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{} does not change from {before:?}", path.display());
    }

    /// A file whose NFS server is gone keeps no other.
    #[test]
    fn a_file_that_hangs_stops_no_other_beat() {
        let dir = tempfile::tempdir().unwrap();
        let [hangs, other] = ["hangs", "other"].map(|name| dir.path().join(name));
        let heart = Heart::with(&rhythm(&[hangs.clone(), other.clone()]), |file| {
            if format!("{file:?}").contains("hangs") {
                // Longer than the test waits.
                std::thread::sleep(Duration::from_hours(1));
            }
            file.beat(clock::now()).err().map(|error| chain(&error))
        })
        .unwrap();
        let first = next(&other, None);
        heart.passed();
        next(&other, first);
        assert!(!hangs.exists());
    }

    /// A bad file keeps no other; one that the configuration drops or adds is left or taken up.
    #[test]
    fn every_file_has_a_beat_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let [nowhere, one, two] = ["nowhere/heartbeat", "one", "two"].map(|name| dir.path().join(name));
        let mut heart = Heart::start(&rhythm(&[nowhere, one.clone()])).unwrap();
        let first = next(&one, None);
        heart.passed();
        next(&one, first);
        heart.set(&rhythm(std::slice::from_ref(&two)));
        let first = next(&two, None);
        next(&two, first);
        assert_eq!(heart.files.keys().collect::<Vec<_>>(), [&two]);
    }
}
