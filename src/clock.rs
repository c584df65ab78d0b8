//! The one place that reads the clock.

use std::time::SystemTime;

use crate::model::time::Timestamp;

/// Wall-clock time: for records, reasons and comparisons with what Slurm and EC2 say. Deadlines use `Instant`.
pub(crate) fn now() -> Timestamp {
    #[expect(clippy::disallowed_methods, reason = "this is the module that reads it")]
    Timestamp::from_system(SystemTime::now())
}
