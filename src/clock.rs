//! The one place that reads the clock; and how long is waited for what takes a moment.

use std::time::{Duration, SystemTime};

use crate::model::time::Timestamp;

/// Wall-clock time: for records, reasons and comparisons with what Slurm and EC2 say. Deadlines use `Instant`.
pub(crate) fn now() -> Timestamp {
    #[expect(clippy::disallowed_methods, reason = "this is the module that reads it")]
    Timestamp::from_system(SystemTime::now())
}

/// So many seconds for what takes a moment; a minute in unit tests, since the machine that runs them may stand still for seconds.
pub(crate) const fn limit(seconds: u64) -> Duration {
    Duration::from_secs(if cfg!(test) { 60 } else { seconds })
}
