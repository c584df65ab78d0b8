//! Consoles of instances that failed to boot: read in the background some time after the failure, when EC2 has the end of them, and
//! appended to `compute_console_output.log`. Best effort and bounded: one console tells what is wrong, a thousand tell no more.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::shared::Shared;
use crate::clock;
use crate::config::settings::{LogFormat, Settings};
use crate::ec2::sdk::Ec2;
use crate::error::chain;
use crate::model::time::Timestamp;
use crate::programs::begin;
use crate::zone::Zone;

/// Consoles that wait or are read at the same time, over all passes (the package's `worker_pool_max_backlog`).
const BACKLOG: usize = 100;

/// The longest that EC2 may take for one.
const LIMIT: Duration = Duration::from_secs(30);

const FILE: &str = "compute_console_output.log";

pub(super) struct Consoles {
    shared: Arc<Shared>,
    tz: Option<String>,
    waiting: Arc<AtomicUsize>,
}

impl Consoles {
    pub(super) fn new(shared: Arc<Shared>, tz: Option<String>) -> Self {
        Self { shared, tz, waiting: Arc::default() }
    }

    /// Reads the consoles of these nodes' instances after `[clustermgtd] compute_console_wait_time`, as many as are wanted at once.
    pub(super) fn read(&self, mut of: Vec<(String, String)>, settings: &Settings) {
        let upkeep = &settings.clustermgtd.upkeep;
        of.truncate(upkeep.consoles_most.unwrap_or(BACKLOG));
        of.truncate(BACKLOG.saturating_sub(self.waiting.load(Ordering::Relaxed)));
        if of.is_empty() || !upkeep.consoles {
            return;
        }
        let backlog = Backlog::of(&self.waiting, of.len());
        let (shared, wait) = (Arc::clone(&self.shared), upkeep.console_wait);
        let file = File { path: settings.log.dir.join(FILE), zone: self.zone(settings) };
        let (aws, region) = (settings.aws.clone(), settings.region.clone());
        let read = move || {
            let _backlog = backlog;
            if let Some(runtime) = begin::runtime() {
                runtime.block_on(async {
                    tokio::select! {
                        () = shared.stopped() => {}
                        () = async {
                            tokio::time::sleep(wait).await;
                            match Ec2::connect(&aws, &region).await {
                                Ok(ec2) => all(&ec2, of, &file).await,
                                Err(error) => tracing::warn!("consoles cannot be read: {}", chain(&error)),
                            }
                        } => {}
                    }
                });
            }
        };
        if let Err(error) = std::thread::Builder::new().name("console".to_owned()).spawn(read) {
            tracing::warn!("no thread for consoles: {error}");
        }
    }

    fn zone(&self, settings: &Settings) -> Option<Zone> {
        (settings.log.format == LogFormat::ParallelCluster).then(|| Zone::of(self.tz.as_deref()))
    }
}

/// Consoles that wait or are read. Dropped, also by a thread that could not begin or broke, it makes room for others.
struct Backlog {
    waiting: Arc<AtomicUsize>,
    count: usize,
}

impl Backlog {
    fn of(waiting: &Arc<AtomicUsize>, count: usize) -> Self {
        waiting.fetch_add(count, Ordering::Relaxed);
        Self { waiting: Arc::clone(waiting), count }
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.count, Ordering::Relaxed);
    }
}

async fn all(ec2: &Ec2, of: Vec<(String, String)>, file: &File) {
    for (node, id) in of {
        let text = match tokio::time::timeout(LIMIT, ec2.console_output(&id)).await {
            Ok(Ok(Some(text))) => text,
            Ok(Ok(None)) => {
                tracing::info!(node, instance = id, "EC2 has no console output of it");
                continue;
            }
            Ok(Err(error)) => {
                tracing::warn!(node, instance = id, "its console cannot be read: {}", chain(&error));
                continue;
            }
            Err(_) => {
                tracing::warn!(node, instance = id, "its console cannot be read: EC2 does not answer");
                continue;
            }
        };
        match file.append(&node, &id, &text) {
            Ok(()) => tracing::info!(node, instance = id, "its console output is in {}", file.path.display()),
            Err(error) => tracing::warn!(node, "console output cannot be written to {}: {error}", file.path.display()),
        }
    }
}

/// Opened anew for each console, so it may be rotated in any way.
struct File {
    path: PathBuf,
    /// For the package's form of time; else UTC.
    zone: Option<Zone>,
}

impl File {
    fn append(&self, node: &str, id: &str, text: &str) -> std::io::Result<()> {
        let line = line(self.zone.as_ref(), clock::now(), node, id, text);
        open(&self.path)?.write_all(line.as_bytes())
    }
}

fn open(path: &Path) -> std::io::Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new().create(true).append(true).mode(0o640).open(path)
}

/// One record on one line, as the package writes it: line ends inside are carriage returns (aws-facts B.17).
fn line(zone: Option<&Zone>, now: Timestamp, node: &str, id: &str, text: &str) -> String {
    let time = zone.map_or_else(|| now.to_string(), |zone| zone.python(now).to_string());
    let text: String = text.trim_end().replace("\r\n", "\n").chars().map(|c| if c == '\n' { '\r' } else { c }).collect();
    format!("{time} - Console output for node {node} (Instance Id {id} from Slurm):\r{text}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_never_began_takes_no_room() {
        let waiting = Arc::default();
        let backlog = Backlog::of(&waiting, 7);
        let never_run = move || drop(backlog);
        assert_eq!(waiting.load(Ordering::Relaxed), 7);
        drop(never_run);
        assert_eq!(waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_console_is_one_line() {
        let text = line(None, Timestamp::from_secs(1_800_000_000), "c5-1", "i-1", "boot\r\nfailed\nhere\n");
        assert_eq!(
            text,
            "2027-01-15T08:00:00Z - Console output for node c5-1 (Instance Id i-1 from Slurm):\rboot\rfailed\rhere\n"
        );
    }
}
