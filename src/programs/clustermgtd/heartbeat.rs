//! The daemon's heartbeat: files that say when it last lived, replaced whole. A thread of its own, since a file on NFS may hang and EC2
//! may be slow: neither must make the other programs believe that nobody is there.
//!
//! It stops when no pass has come to an end for long: whoever reads it is to know that nobody looks after the cluster.

use std::path::PathBuf;
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
    Passed,
    Rhythm(Rhythm),
}

/// The other end of the thread. Dropped, it stops.
pub(super) struct Heart {
    tell: Sender<Told>,
}

impl Heart {
    /// Begins to beat, at once.
    pub(super) fn start(rhythm: Rhythm) -> std::io::Result<Self> {
        let (tell, told) = mpsc::channel();
        std::thread::Builder::new().name("heartbeat".to_owned()).spawn(move || beat_on(rhythm, &told))?;
        Ok(Self { tell })
    }

    /// A pass came to an end, whatever it saw.
    pub(super) fn passed(&self) {
        let _ = self.tell.send(Told::Passed);
    }

    /// The configuration changed.
    pub(super) fn set(&self, rhythm: Rhythm) {
        let _ = self.tell.send(Told::Rhythm(rhythm));
    }
}

fn beat_on(mut rhythm: Rhythm, told: &Receiver<Told>) {
    let mut files = open(&rhythm);
    let mut passed = Instant::now();
    let mut trouble = Trouble::default();
    let mut silent = false;
    loop {
        if passed.elapsed() < rhythm.patience {
            trouble.note(beat(&files));
            silent = false;
        } else if !silent {
            silent = true;
            let minutes = passed.elapsed().as_secs() / 60;
            tracing::error!("no pass has come to an end for {minutes} minutes: the heartbeat stops");
        }
        match told.recv_timeout(rhythm.interval) {
            Ok(Told::Passed) => passed = Instant::now(),
            Ok(Told::Rhythm(new)) => {
                files = open(&new);
                rhythm = new;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn open(rhythm: &Rhythm) -> Vec<Heartbeat> {
    rhythm.files.iter().map(|path| Heartbeat::at(path)).collect()
}

/// Writes all files; what went wrong.
fn beat(files: &[Heartbeat]) -> Option<String> {
    let now = clock::now();
    let failed = files.iter().filter_map(|file| file.beat(now).err().map(|error| chain(&error)));
    let all: Vec<String> = failed.collect();
    (!all.is_empty()).then(|| all.join("; "))
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

    #[test]
    fn every_file_is_written_and_a_bad_one_keeps_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let files = [dir.path().join("nowhere/heartbeat"), dir.path().join("heartbeat")];
        let trouble = beat(&files.each_ref().map(|path| Heartbeat::at(path))).unwrap();
        assert!(trouble.contains("nowhere"), "{trouble}");
        assert!(crate::store::heartbeat::read_heartbeat(&files[1]).is_ok());
    }
}
