//! Local time as others write it: the value of TZ or the machine's /etc/localtime in, civil times out, and back. Read in Rust, since a
//! static glibc must not load anything. Never reads the clock or the environment: both arrive as values.

use std::fmt;

use tz::timezone::TimeZone;
use tz::{DateTime, UtcDateTime};

use crate::model::time::Timestamp;

/// The rules of a place's clock.
#[derive(Debug, Clone)]
pub(crate) struct Zone(TimeZone);

/// `2026-11-29 12:00:00,250`: how Python's logging writes a time, in local time (aws-facts B.17).
pub(crate) struct PythonTime(i64, u8, u8, u8, u8, u8, u64);

impl Zone {
    /// What `TZ` says (a name such as `Europe/Berlin`, a rule such as `CET-1CEST,M3.5.0,M10.5.0/3`); without one the machine's zone.
    /// UTC where neither can be read, as the C library has it.
    pub(crate) fn of(tz: Option<&str>) -> Self {
        match tz {
            None => Self::machine(),
            Some("") => Self(TimeZone::utc()),
            Some(rule) => Self(TimeZone::from_posix_tz(rule).unwrap_or_else(|_| TimeZone::utc())),
        }
    }

    /// /etc/localtime.
    pub(crate) fn machine() -> Self {
        Self(TimeZone::local().unwrap_or_else(|_| TimeZone::utc()))
    }

    /// A moment as Python's logging writes it.
    pub(crate) fn python(&self, time: Timestamp) -> PythonTime {
        let secs = i64::try_from(time.secs()).unwrap_or(i64::MAX);
        let local = DateTime::from_timespec(secs, 0, self.0.as_ref()).or_else(|_| {
            // A zone whose rules end: UTC from there on.
            UtcDateTime::from_timespec(secs, 0).and_then(|utc| utc.project(TimeZone::utc().as_ref()))
        });
        let millis = time.millis() % 1000;
        match local {
            Ok(local) => PythonTime(
                i64::from(local.year()),
                local.month(),
                local.month_day(),
                local.hour(),
                local.minute(),
                local.second(),
                millis,
            ),
            Err(_) => PythonTime(1970, 1, 1, 0, 0, 0, millis),
        }
    }

    /// Seconds since 1970 of a local time as scontrol prints it, `2026-11-29T12:00:00`. Of the two moments that a clock set back shows
    /// alike, the earlier; `None` for other texts, and for times that the clock never shows.
    pub(crate) fn seconds_of(&self, text: &str) -> Option<u64> {
        let (date, time) = text.split_once('T')?;
        let (year, month, day) = three(date, '-')?;
        let (hour, minute, second) = three(time, ':')?;
        let small = |number: u32| u8::try_from(number).ok();
        let found = DateTime::find(
            i32::try_from(year).ok()?,
            small(month)?,
            small(day)?,
            small(hour)?,
            small(minute)?,
            small(second)?,
            0,
            self.0.as_ref(),
        );
        found.ok()?.earliest().and_then(|found| u64::try_from(found.unix_time()).ok())
    }
}

fn three(text: &str, between: char) -> Option<(u32, u32, u32)> {
    let mut parts = text.split(between).map(|part| part.parse::<u32>().ok());
    let all = (parts.next()??, parts.next()??, parts.next()??);
    parts.next().is_none().then_some(all)
}

impl fmt::Display for PythonTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(year, month, day, hour, minute, second, millis) = self;
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02},{millis:03}")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Berlin's rule, without the zone files.
    const BERLIN: &str = "CET-1CEST,M3.5.0,M10.5.0/3";

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn times_as_python_writes_them() {
        let zone = Zone::of(Some(BERLIN));
        assert_eq!(zone.python(at("2026-11-29T12:00:00.050Z")).to_string(), "2026-11-29 13:00:00,050");
        assert_eq!(zone.python(at("2026-07-01T23:59:59Z")).to_string(), "2026-07-02 01:59:59,000");
        assert_eq!(Zone::of(Some("")).python(at("2026-07-01T23:59:59Z")).to_string(), "2026-07-01 23:59:59,000");
        // What is no zone is UTC.
        assert_eq!(Zone::of(Some("No/Such_Place")).python(at("2026-07-01T01:02:03Z")).to_string(), "2026-07-01 01:02:03,000");
    }

    #[test]
    fn scontrols_local_times_become_moments() {
        let zone = Zone::of(Some(BERLIN));
        assert_eq!(zone.seconds_of("2026-11-29T13:00:00"), Some(at("2026-11-29T12:00:00Z").secs()));
        assert_eq!(zone.seconds_of("2026-07-02T01:59:59"), Some(at("2026-07-01T23:59:59Z").secs()));
        // Shown twice in the night of the 25th of October: the first time; never shown in that of the 29th of March.
        assert_eq!(zone.seconds_of("2026-10-25T02:30:00"), Some(at("2026-10-25T00:30:00Z").secs()));
        assert_eq!(zone.seconds_of("2026-10-25T03:30:00"), Some(at("2026-10-25T02:30:00Z").secs()));
        for text in ["None", "Unknown", "", "2026-11-29", "2026-11-29T13:00", "2026-13-29T13:00:00", "2026-11-29T13:00:00:00"] {
            assert_eq!(zone.seconds_of(text), None, "{text}");
        }
    }
}
