//! A moment as the project stores and compares it: whole milliseconds of Unix time, written as RFC 3339 in UTC.
//!
//! Values only: the reading of a clock is `crate::clock`'s.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Milliseconds since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Timestamp(u64);

/// The end of the year 9999, the last that RFC 3339 can write.
const LAST: u64 = 253_402_300_799_000;

/// Two clocks that are right may lie apart by so much.
const APART: Duration = Duration::from_mins(2);

impl Timestamp {
    #[cfg(test)]
    pub(crate) const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    pub(crate) const fn from_secs(secs: u64) -> Self {
        Self(secs * 1000)
    }

    pub(crate) fn from_system(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    pub(crate) const fn millis(self) -> u64 {
        self.0
    }

    /// Whole seconds: the precision in which Slurm and EC2 give their times.
    pub(crate) const fn secs(self) -> u64 {
        self.0 / 1000
    }

    /// How long ago `earlier` was; zero when it lies ahead.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// Written down as past by a clock that was ahead then: who counts from it would do nothing until that time comes.
    pub(crate) fn is_ahead_of(self, now: Self) -> bool {
        self > now + APART
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX)).min(LAST))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = UNIX_EPOCH + Duration::from_millis(self.0);
        if self.0.is_multiple_of(1000) {
            write!(f, "{}", humantime::format_rfc3339_seconds(time))
        } else {
            write!(f, "{}", humantime::format_rfc3339_millis(time))
        }
    }
}

impl std::str::FromStr for Timestamp {
    type Err = humantime::TimestampError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        humantime::parse_rfc3339(text).map(Self::from_system)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Text)
    }
}

/// Reads a moment where its text stands: a mapping holds three for each node.
struct Text;

impl de::Visitor<'_> for Text {
    type Value = Timestamp;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Timestamp, E> {
        text.parse().map_err(|error| E::custom(format!("{text:?} is no RFC 3339 time: {error}")))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn written_and_read_back() {
        for text in ["2026-11-29T12:00:00Z", "2026-11-29T12:00:00.250Z"] {
            let time: Timestamp = text.parse().unwrap();
            assert_eq!(time.to_string(), text);
        }
    }

    #[test]
    fn since_never_underflows() {
        let (a, b) = (Timestamp::from_secs(5), Timestamp::from_secs(9));
        assert_eq!(a.since(b), Duration::ZERO);
        assert_eq!(b.since(a), Duration::from_secs(4));
    }
}
