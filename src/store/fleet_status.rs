//! The compute fleet's status: read, and changed if it is still what it was. In a file of the state folder, or in ParallelCluster's
//! status table. Which changes make sense is `plan::fleet_status`'s.
//!
//! `fleet-status.json` is written as the table's map is, `{"status": "RUNNING", "lastStatusUpdatedTime": "2026-11-29 12:00:00.000000+00:00"}`;
//! other keys in it are kept. Without the file the fleet is RUNNING: a site that never stops it has none. A file that cannot be
//! understood is an error and stays as it is: taken for RUNNING it would start a fleet that somebody stopped.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use super::error::StoreError;
use super::file::{io_error, read_regular};
use super::lock::{self, Lock};
use super::{atomic, document};
use crate::aws::codes::NO_CREDENTIALS;
use crate::aws::error::AwsError;
use crate::clock::limit;
use crate::config::settings::{FleetStore, Settings};
use crate::dynamodb::DynamoDb;
use crate::dynamodb::fleet::FleetItem;
use crate::model::failure::ErrorClass;
use crate::model::fleet::FleetStatus;
use crate::model::time::Timestamp;

/// The lock is held for one small read and write, which a disk under load may keep for seconds.
const LOCK_WAIT: Duration = limit(10);

/// The longest that one question to the table takes, all tries included.
const TABLE_WAIT: Duration = limit(10);

const STATUS: &str = "status";
const UPDATED: &str = "lastStatusUpdatedTime";

/// Where the status is kept.
#[derive(Debug, Clone)]
pub(crate) enum FleetStatusStore {
    File { path: PathBuf, lock: PathBuf },
    Table { dynamodb: DynamoDb, table: String, region: String },
}

/// What is there.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reading {
    pub(crate) status: FleetStatus,
    /// The word as it stands there, of use where the status is `Unknown`.
    pub(crate) word: String,
    /// When it was last changed, as text in nobody's fixed form; empty where nothing says so.
    pub(crate) updated: String,
    /// Everything that stands beside it, status and time among it.
    pub(crate) data: Map<String, Value>,
}

impl FleetStatusStore {
    /// What `[fleet]` names. Sends, reads and creates nothing yet; an error is a setting that cannot be used.
    pub(crate) async fn open(settings: &Settings) -> Result<Self, StoreError> {
        match &settings.fleet.store {
            FleetStore::File => Ok(Self::in_folder(&settings.state_dir)),
            FleetStore::Table { table } => {
                let (table, region) = (table.clone(), settings.region.clone());
                match DynamoDb::connect(&settings.aws, &region).await {
                    Ok(dynamodb) => Ok(Self::Table { dynamodb, table, region }),
                    Err(source) => Err(table_error("connect to", &table, &region, source)),
                }
            }
        }
    }

    pub(crate) fn in_folder(dir: &Path) -> Self {
        Self::File { path: dir.join("fleet-status.json"), lock: dir.join("fleet-status.lock") }
    }

    /// The status as of now; RUNNING where the file is absent. Cancel-safe: it may be dropped at any time.
    pub(crate) async fn read(&self) -> Result<Reading, StoreError> {
        match self {
            Self::File { path, .. } => read_file(path),
            Self::Table { dynamodb, table, region } => {
                let found = dynamodb.fleet_item(table, Instant::now() + TABLE_WAIT).await;
                match found.map_err(|source| table_error("read", table, region, source))? {
                    Some(item) => Ok(item.into()),
                    None => Err(missing(table, region)),
                }
            }
        }
    }

    /// Makes the status `to` if it is still `from`, changed at `now`: true = done. Dropped before its end, it may or may not have been
    /// made.
    pub(crate) async fn compare_and_set(&self, from: FleetStatus, to: FleetStatus, now: Timestamp) -> Result<bool, StoreError> {
        match self {
            Self::File { path, lock: held } => {
                let _lock = lock::patiently(LOCK_WAIT, || Lock::acquire(held, Duration::ZERO)).await?;
                let mut reading = read_file(path)?;
                if reading.status != from {
                    return Ok(false);
                }
                reading.data.insert(STATUS.to_owned(), to.as_str().into());
                reading.data.insert(UPDATED.to_owned(), time_text(now, 0).into());
                write_file(path, &reading.data).map(|()| true)
            }
            Self::Table { dynamodb, table, region } => {
                // Below the milliseconds of our clock by chance, so that two changes never bear the same time.
                let updated = time_text(now, fastrand::u16(0..1000));
                let until = Instant::now() + TABLE_WAIT;
                let done = dynamodb.set_fleet_status(table, from.as_str(), to.as_str(), &updated, until).await;
                done.map_err(|source| table_error("write to", table, region, source))
            }
        }
    }
}

impl fmt::Display for FleetStatusStore {
    /// Where a person finds it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, .. } => path.display().fmt(f),
            Self::Table { table, .. } => write!(f, "item COMPUTE_FLEET of table {table}"),
        }
    }
}

impl From<FleetItem> for Reading {
    fn from(item: FleetItem) -> Self {
        let FleetItem { status, updated, data, .. } = item;
        Self { status: FleetStatus::parse(&status), word: status, updated, data }
    }
}

fn read_file(path: &Path) -> Result<Reading, StoreError> {
    let Some(bytes) = read_regular(path)? else {
        let word = FleetStatus::Running.as_str().to_owned();
        return Ok(Reading { status: FleetStatus::Running, word, updated: String::new(), data: Map::new() });
    };
    let content = |position, why| StoreError::Content {
        path: path.to_owned(),
        position,
        why,
        advice: "put it right, or remove it, which makes the fleet RUNNING",
    };
    let data: Map<String, Value> = serde_json::from_slice(&bytes).map_err(|error| {
        let problem = document::problem(&error);
        content(problem.position, problem.why)
    })?;
    let text = |key: &str| data.get(key).and_then(Value::as_str).map(str::to_owned);
    let Some(word) = text(STATUS) else { return Err(content(None, format!("it has no text under {STATUS:?}"))) };
    Ok(Reading { status: FleetStatus::parse(&word), word, updated: text(UPDATED).unwrap_or_default(), data })
}

fn write_file(path: &Path, data: &Map<String, Value>) -> Result<(), StoreError> {
    let mut bytes = serde_json::to_vec(data).map_err(|error| io_error("write", path, error.into()))?;
    bytes.push(b'\n');
    atomic::replace(path, &bytes, atomic::FILE_MODE).map_err(|error| io_error("write", path, error))
}

/// `YYYY-MM-DD HH:MM:SS.ffffff+00:00`, as the package writes it (aws-facts B.13); `micros` stand below the milliseconds.
fn time_text(now: Timestamp, micros: u16) -> String {
    let seconds = Timestamp::from_secs(now.secs()).to_string();
    let seconds = seconds.trim_end_matches('Z').replace('T', " ");
    format!("{seconds}.{:03}{micros:03}+00:00", now.millis() % 1000)
}

/// ParallelCluster makes the item when it makes the cluster.
fn missing(table: &str, region: &str) -> StoreError {
    let source = AwsError::new(
        crate::dynamodb::SERVICE,
        "GetItem",
        "NoFleetStatus",
        ErrorClass::Configuration,
        "it holds no item COMPUTE_FLEET with a status",
    );
    table_error("find the fleet's status in", table, region, source)
}

/// A failed call, with what to do about it.
fn table_error(what: &'static str, table: &str, region: &str, source: AwsError) -> StoreError {
    let advice = match source.code.as_str() {
        NO_CREDENTIALS => "",
        "ResourceNotFoundException" => "; ParallelCluster's status table is named after the stack: parallelcluster-STACK",
        _ if source.class == ErrorClass::Identity => {
            "; this needs a role that may use dynamodb:GetItem and UpdateItem on it, as a ParallelCluster head node's does"
        }
        _ => "",
    };
    let advice = advice.to_owned();
    StoreError::Table { what, table: table.to_owned(), region: region.to_owned(), advice, source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use super::*;

    use FleetStatus::{Protected, Running, StopRequested, Stopped, Stopping, Unknown};

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn without_a_file_the_fleet_runs_and_can_be_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let store = FleetStatusStore::in_folder(dir.path());
        let reading = store.read().await.unwrap();
        assert_eq!((reading.status, reading.updated.as_str()), (Running, ""));
        assert!(!dir.path().join("fleet-status.json").exists(), "reading makes nothing");
        assert!(!store.compare_and_set(Stopped, Running, at("2026-11-29T12:00:00Z")).await.unwrap());
        assert!(!dir.path().join("fleet-status.json").exists());
        assert!(store.compare_and_set(Running, StopRequested, at("2026-11-29T12:00:00.25Z")).await.unwrap());
        let reading = store.read().await.unwrap();
        assert_eq!((reading.status, reading.updated.as_str()), (StopRequested, "2026-11-29 12:00:00.250000+00:00"));
        assert!(!store.compare_and_set(Running, Stopping, at("2026-11-29T12:00:01Z")).await.unwrap());
        assert_eq!(store.read().await.unwrap(), reading, "a lost comparison changes nothing");
    }

    #[tokio::test]
    async fn what_stands_beside_the_status_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fleet-status.json");
        std::fs::write(&path, r#"{"queues": {"q": {"status": "x"}}, "status": "PROTECTED"}"#).unwrap();
        let store = FleetStatusStore::in_folder(dir.path());
        assert!(store.compare_and_set(Protected, StopRequested, at("2026-11-29T12:00:00Z")).await.unwrap());
        let reading = store.read().await.unwrap();
        assert_eq!(reading.data["queues"]["q"]["status"], "x");
        assert_eq!(reading.data["status"], "STOP_REQUESTED");
    }

    #[tokio::test]
    async fn a_word_of_another_version_is_kept_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("fleet-status.json"), r#"{"status": "HIBERNATED"}"#).unwrap();
        let reading = FleetStatusStore::in_folder(dir.path()).read().await.unwrap();
        assert_eq!((reading.status, reading.word.as_str()), (Unknown, "HIBERNATED"));
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_understood_never_starts_a_fleet() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fleet-status.json");
        let store = FleetStatusStore::in_folder(dir.path());
        for text in ["", "{", "[]", "{}", r#"{"status": 3}"#] {
            std::fs::write(&path, text).unwrap();
            for error in [
                store.read().await.unwrap_err(),
                store.compare_and_set(Running, Stopping, at("2026-11-29T12:00:00Z")).await.unwrap_err(),
            ] {
                assert!(error.to_string().contains("fleet-status.json") && error.to_string().contains("remove it"), "{error}");
            }
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn of_many_at_once_one_wins() {
        let dir = tempfile::tempdir().unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..16 {
            let store = FleetStatusStore::in_folder(dir.path());
            tasks.spawn(async move { store.compare_and_set(Running, Stopping, Timestamp::from_secs(1)).await.unwrap() });
        }
        let won = tasks.join_all().await.into_iter().filter(|won| *won).count();
        assert_eq!(won, 1);
    }

    #[test]
    fn times_are_written_as_the_package_does() {
        assert_eq!(time_text(at("2026-03-14T15:09:26.535Z"), 897), "2026-03-14 15:09:26.535897+00:00");
        assert_eq!(time_text(at("2026-03-14T15:09:26Z"), 0), "2026-03-14 15:09:26.000000+00:00");
    }
}
