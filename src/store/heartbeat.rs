//! Does a clustermgtd live? It writes the time into a file, again and again: a moment in, the file replaced; or the file in, how old it is.
//!
//! The text is that of ParallelCluster's package (aws-facts B.11). In the state folder the file's modification time counts, elsewhere the
//! time in it. Ours is replaced whole, so no reader finds it empty; the package's own is emptied before it is written.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::atomic;
use super::error::StoreError;
use crate::model::time::Timestamp;
use crate::settled;

/// Anyone may know that the daemon lives; compute nodes read the file as users of their own.
const MODE: u32 = 0o644;

/// A heartbeat that this process alone writes. Its threads may share it.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    path: PathBuf,
    /// Two replacements at once would take each other's temporary file for a dead writer's.
    writing: Mutex<()>,
}

impl Heartbeat {
    pub(crate) fn at(path: &Path) -> Self {
        Self { path: path.to_owned(), writing: Mutex::new(()) }
    }

    /// Says that the daemon lives at `now`. Does not wait for the disk: after a power cut nobody lives here.
    pub(crate) fn beat(&self, now: Timestamp) -> Result<(), StoreError> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        atomic::replace_unsynced(&self.path, render(now).as_bytes(), MODE).map_err(|source| StoreError::Io {
            what: "write the heartbeat",
            path: self.path.clone(),
            source,
        })
    }
}

/// `2026-11-29 12:00:00.250000+0000`, without a line's end, as the package writes it.
fn render(now: Timestamp) -> String {
    let seconds = Timestamp::from_secs(now.secs()).to_string();
    let seconds = seconds.trim_end_matches('Z').replace('T', " ");
    format!("{seconds}.{:03}000+0000", now.millis() % 1000)
}

/// How long ago `<dir>/heartbeat` was last written; `None` if there is none or it cannot be looked at. A time ahead of `now`
/// (clock set back) counts as just now.
pub(crate) fn heartbeat_age(dir: &Path, now: Timestamp) -> Option<Duration> {
    let written = fs::metadata(dir.join("heartbeat")).ok()?.modified().ok()?;
    Some(now.since(Timestamp::from_system(written)))
}

/// Why ParallelCluster's heartbeat tells nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HeartbeatError {
    #[error("cannot read the heartbeat {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("the heartbeat {} holds {text:?} instead of a time such as \"2026-11-29 12:00:00.000000+0000\"", path.display())]
    Text { path: PathBuf, text: String },
}

/// Bytes of a heartbeat that are looked at; it has 31.
const MAX_BYTES: usize = 4096;

/// The time in ParallelCluster's heartbeat file: its last line. Blocks for as long as the file system does, which on NFS may be for ever,
/// and for half a second when the file holds no time.
pub(crate) fn read_heartbeat(path: &Path) -> Result<Timestamp, HeartbeatError> {
    settled(path, settled::pause)
}

/// The package's clustermgtd empties the file before it writes it (aws-facts B.11), which takes microseconds on a disk and some milliseconds
/// on NFS: meanwhile it holds no time.
fn settled(path: &Path, pause: impl FnMut()) -> Result<Timestamp, HeartbeatError> {
    let read = || {
        let bytes = fs::read(path).map_err(|source| HeartbeatError::Io { path: path.to_owned(), source })?;
        let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(MAX_BYTES)..]);
        let time = text.lines().rfind(|line| !line.trim().is_empty()).and_then(parse);
        time.ok_or_else(|| HeartbeatError::Text { path: path.to_owned(), text: text.chars().take(60).collect() })
    };
    settled::settled(read, |read| matches!(read, Err(HeartbeatError::Text { .. })), pause)
}

/// `YYYY-MM-DD HH:MM:SS.ffffff+0000`. A shorter text is one that is still being written: a part of a time would be another time.
fn parse(line: &str) -> Option<Timestamp> {
    let line = line.trim();
    let at = line.len().checked_sub(5)?;
    let (time, offset) = (line.get(..at)?, line.get(at..)?);
    let (seconds, fraction) = time.split_once('.')?;
    if seconds.len() != 19 || fraction.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let millis: u64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    let (sign, digits) = offset.split_at_checked(1)?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (hours, minutes): (u64, u64) = (digits.get(..2)?.parse().ok()?, digits.get(2..)?.parse().ok()?);
    let shift = Duration::from_secs(hours * 3600 + minutes * 60);
    let local: Timestamp = format!("{}Z", seconds.replace(' ', "T")).parse().ok()?;
    let local = local + Duration::from_millis(millis);
    match sign {
        "+" => Some(Timestamp::default() + local.since(Timestamp::default() + shift)),
        "-" => Some(local + shift),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::time::UNIX_EPOCH;

    const HEARTBEAT: &[u8] = include_bytes!("../../tests/data/parallelcluster/clustermgtd_heartbeat");

    #[test]
    fn the_age_is_the_files() {
        let dir = tempfile::tempdir().unwrap();
        let now = Timestamp::from_secs(1_800_000_100);
        assert_eq!(heartbeat_age(dir.path(), now), None);
        let file = fs::File::create(dir.path().join("heartbeat")).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1_800_000_000)).unwrap();
        assert_eq!(heartbeat_age(dir.path(), now), Some(Duration::from_secs(100)));
        assert_eq!(heartbeat_age(dir.path(), Timestamp::from_secs(1)), Some(Duration::ZERO));
    }

    #[test]
    fn r29_written_whole_in_the_packages_form_for_everyone_to_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("heartbeat");
        let heartbeat = Heartbeat::at(&path);
        for millis in [1_773_500_966_535, 1_773_500_967_000, 1_773_500_968_007] {
            let now = Timestamp::from_millis(millis);
            heartbeat.beat(now).unwrap();
            let text = fs::read(&path).unwrap();
            assert_eq!(text.len(), HEARTBEAT.len());
            assert_eq!(read_heartbeat(&path).unwrap(), now);
        }
        heartbeat.beat(Timestamp::from_millis(1_773_500_966_535)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "2026-03-14 15:09:26.535000+0000");
        assert_eq!(HEARTBEAT, b"2026-03-14 15:09:26.535897+0000");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        let error = Heartbeat::at(&dir.path().join("gone/heartbeat")).beat(Timestamp::default()).unwrap_err().to_string();
        assert!(error.starts_with("cannot write the heartbeat ") && error.ends_with("gone/heartbeat"), "{error}");
    }

    #[test]
    fn r29_threads_of_one_daemon_beat_at_once_and_no_reader_sees_less_than_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("heartbeat");
        let heartbeat = Heartbeat::at(&path);
        heartbeat.beat(Timestamp::from_secs(1)).unwrap();
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..200).for_each(|n| heartbeat.beat(Timestamp::from_secs(1_800_000_000 + n)).unwrap())))
                .collect();
            while writers.iter().any(|writer| !writer.is_finished()) {
                assert!(parse(&fs::read_to_string(&path).unwrap()).is_some());
            }
        });
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "leftover temporary files");
    }

    fn replace(path: &Path, bytes: &[u8]) {
        crate::store::atomic::replace(path, bytes, 0o644).unwrap();
    }

    #[test]
    fn r29_the_time_is_the_files_last_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clustermgtd_heartbeat");
        replace(&path, HEARTBEAT);
        let expected: Timestamp = "2026-03-14T15:09:26.535Z".parse().unwrap();
        assert_eq!(read_heartbeat(&path).unwrap(), expected);
        replace(&path, b"2020-01-01 00:00:00.000000+0000\n2026-03-14 17:09:26.535897+0200\n");
        assert_eq!(read_heartbeat(&path).unwrap(), expected);
        assert_eq!(parse("2026-03-14 13:39:26.5-0130").unwrap(), "2026-03-14T15:09:26.500Z".parse().unwrap());
    }

    #[test]
    fn r29_what_is_no_time_is_an_error_that_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clustermgtd_heartbeat");
        assert!(matches!(read_heartbeat(&path), Err(HeartbeatError::Io { .. })));
        for text in ["", "\n", "yesterday", "2026-03-14 15:09:26.535897", "2026-03-14 15:09:26+0000", "2026-03-14 15:09:2"] {
            replace(&path, text.as_bytes());
            let error = read_heartbeat(&path).unwrap_err().to_string();
            assert!(error.contains("clustermgtd_heartbeat") && error.contains("instead of a time"), "{error}");
        }
    }

    #[test]
    fn r29_a_heartbeat_that_is_being_written_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clustermgtd_heartbeat");
        replace(&path, b"");
        let mut pauses = 0;
        let read = settled(&path, || {
            pauses += 1;
            if pauses == 2 {
                replace(&path, HEARTBEAT);
            }
        });
        assert!(read.is_ok() && pauses == 2, "{read:?} after {pauses} pauses");
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,40}") {
            let _ = parse(&text);
        }

        #[test]
        fn r29_no_part_of_a_time_is_taken_for_one(cut in 0usize..31) {
            proptest::prop_assert_eq!(parse(&String::from_utf8_lossy(&HEARTBEAT[..cut])), None);
        }
    }
}
