//! The token buckets that pace launch calls and Route 53's, shared by all runs on this machine (aws-facts A.7): a moment in, the wait before one
//! more call out. The token is taken at once, also when it is one of the future, so that runs queue up behind each other.
//!
//! Never waits itself. Clock jumps do no harm: back counts as no time passed, forward fills the bucket and no more.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::StoreError;
use super::ledger::{Document, Ledger};
use crate::model::policy::Bucket;
use crate::model::time::Timestamp;

/// The longest queue, in time: tokens taken by runs that were killed must not hold up the next ones for longer than this.
const LONGEST_WAIT: Duration = Duration::from_mins(2);

/// `bucket.json`, or another of its kind.
#[derive(Debug, Clone)]
pub(crate) struct TokenBucket {
    ledger: Ledger,
}

impl TokenBucket {
    pub(crate) fn in_folder(dir: &Path) -> Self {
        Self::named(dir, "bucket")
    }

    /// `<dir>/<name>.json`: the bucket of other calls.
    pub(crate) fn named(dir: &Path, name: &str) -> Self {
        Self { ledger: Ledger::new(dir, name) }
    }

    /// Takes one token for one call and says how long the caller has to wait before that call goes out; `None`, and no token taken,
    /// when that would be longer than `at_most`.
    pub(crate) fn take(&self, bucket: &Bucket, now: Timestamp, at_most: Duration) -> Result<Option<Duration>, StoreError> {
        self.ledger.update(|file: &mut BucketFile| {
            let (level, wait) = take(file.level, bucket, now);
            (wait <= at_most).then(|| {
                file.level = Some(level);
                wait
            })
        })
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BucketFile {
    version: u32,
    level: Option<Level>,
}

/// How full the bucket was at a moment. Below zero: tokens promised to calls that still wait.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Level {
    tokens: f64,
    at: Timestamp,
}

impl Default for BucketFile {
    fn default() -> Self {
        Self { version: Self::VERSION, level: None }
    }
}

impl Document for BucketFile {
    const VERSION: u32 = 1;
    // After a power cut nobody is in the queue.
    const DURABLE: bool = false;

    fn version(&self) -> u32 {
        self.version
    }
}

/// One token from a bucket that stood at `level` (`None` = never used, full). A rate of nothing, which the configuration refuses,
/// means no pacing.
fn take(level: Option<Level>, bucket: &Bucket, now: Timestamp) -> (Level, Duration) {
    let full = f64::from(bucket.burst.max(1));
    let rate = bucket.per_second;
    if !(rate.is_finite() && rate > 0.0) {
        return (Level { tokens: full, at: now }, Duration::ZERO);
    }
    let tokens = match level {
        Some(Level { tokens, at }) if tokens.is_finite() => (tokens + now.since(at).as_secs_f64() * rate).min(full),
        _ => full,
    };
    let lowest = -LONGEST_WAIT.as_secs_f64() * rate;
    let tokens = (tokens - 1.0).max(lowest);
    let wait = if tokens < 0.0 { Duration::from_secs_f64(-tokens / rate) } else { Duration::ZERO };
    (Level { tokens, at: now }, wait.min(LONGEST_WAIT))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const BUCKET: Bucket = Bucket { burst: 5, per_second: 2.0 };

    fn run(level: &mut Option<Level>, bucket: &Bucket, millis: u64) -> u64 {
        let (next, wait) = take(*level, bucket, Timestamp::from_millis(millis));
        *level = Some(next);
        u64::try_from(wait.as_millis()).unwrap()
    }

    #[test]
    fn a_burst_then_the_rate() {
        let mut level = None;
        let waits: Vec<u64> = (0..8).map(|_| run(&mut level, &BUCKET, 1_000_000)).collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 500, 1000, 1500]);
        assert_eq!(run(&mut level, &BUCKET, 1_001_500), 500, "the queue has moved on by three");
        assert_eq!(run(&mut level, &BUCKET, 1_060_000), 0, "full again");
        assert!((level.unwrap().tokens - 4.0).abs() < 1e-9, "and not more than full");
    }

    #[test]
    fn never_more_calls_than_the_bucket_allows() {
        // Any pattern of asking: in every window from the start, calls let go <= burst + rate * time.
        let mut level = None;
        let (mut now, mut gone) = (5_000_000_u64, Vec::new());
        for step in 0..400_u64 {
            now += (step * 7919) % 900;
            gone.push(now + run(&mut level, &BUCKET, now));
        }
        gone.sort_unstable();
        for (first, start) in gone.iter().enumerate() {
            for (last, end) in gone.iter().enumerate().skip(first) {
                let calls = u32::try_from(last - first + 1).unwrap();
                let seconds = Duration::from_millis(end - start + 2).as_secs_f64();
                assert!(f64::from(calls) <= 5.0 + 2.0 * seconds + 1e-6, "{calls} calls in {seconds} s");
            }
        }
    }

    #[test]
    fn clock_jumps_do_no_harm() {
        let mut level = None;
        for _ in 0..6 {
            run(&mut level, &BUCKET, 1_000_000_000);
        }
        assert_eq!(run(&mut level, &BUCKET, 1_000), 1000, "back: no time has passed");
        assert_eq!(run(&mut level, &BUCKET, 2_000), 500, "and it goes on from there");
        let mut level = Some(Level { tokens: -3.0, at: Timestamp::from_secs(1) });
        assert_eq!(run(&mut level, &BUCKET, u64::MAX / 2), 0);
        assert!(level.unwrap().tokens <= 5.0, "forward: full, no more");
    }

    #[test]
    fn odd_values() {
        let mut level = Some(Level { tokens: -1e30, at: Timestamp::from_secs(1) });
        assert_eq!(run(&mut level, &BUCKET, 1_000), 120_000, "the queue is bounded");
        assert_eq!(run(&mut level, &BUCKET, 121_000), 500);
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(run(&mut level, &Bucket { burst: 0, per_second: rate }, 1_000), 0);
        }
        let mut level = None;
        let slow = Bucket { burst: 0, per_second: 1e-300 };
        assert_eq!(run(&mut level, &slow, 1_000), 0);
        assert!(run(&mut level, &slow, 1_000) <= 120_000);
    }

    #[test]
    fn runs_share_it() {
        let dir = tempfile::tempdir().unwrap();
        let now = Timestamp::from_secs(1_800_000_000);
        let mut waits: Vec<Duration> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..10)
                .map(|_| scope.spawn(|| TokenBucket::in_folder(dir.path()).take(&BUCKET, now, Duration::MAX).unwrap()))
                .collect();
            threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
        });
        waits.sort_unstable();
        let waits: Vec<u128> = waits.iter().map(Duration::as_millis).collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 500, 1000, 1500, 2000, 2500]);
    }

    #[test]
    #[allow(clippy::disallowed_methods)]
    fn a_broken_file_stops_nobody() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("bucket.json"), "{").unwrap();
        let wait = TokenBucket::in_folder(dir.path()).take(&BUCKET, Timestamp::from_secs(1), Duration::MAX).unwrap();
        assert_eq!(wait, Some(Duration::ZERO));
        assert_eq!(std::fs::read_to_string(dir.path().join("bucket.json.bad")).unwrap(), "{");
    }

    #[test]
    fn a_wait_that_is_too_long_takes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let bucket = TokenBucket::in_folder(dir.path());
        let now = Timestamp::from_secs(100);
        let taken = (0..50).filter_map(|_| bucket.take(&BUCKET, now, Duration::from_secs(2)).unwrap()).count();
        assert!(taken < 50, "{taken}");
        // Nobody holds tokens for calls that never go out: a patient caller waits for the ones that were taken only.
        let wait = bucket.take(&BUCKET, now, Duration::MAX).unwrap().unwrap();
        assert!(wait <= Duration::from_secs(3), "{wait:?}");
    }
}
