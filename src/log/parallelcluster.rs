//! A log line as the Python package writes it: `2026-11-29 12:00:00,250 - 4711 - [slurm_resume:launching] - ERROR - JobID 17 - text`
//! (aws-facts B.17), for the CloudWatch filters that people have on it. An event in, one line out; what the event's fields say besides
//! stands behind the text as `key=value`.
//!
//! Differences that readers of the package's log will see: in the brackets stand our program and module instead of Python's module and
//! function, and the lines end in the run's id.

use std::fmt::{self, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

use crate::clock;
use crate::model::time::Timestamp;
use crate::zone::Zone;

/// The format for one program.
pub(super) struct Line {
    program: &'static str,
    zone: Zone,
    /// Resume's lines have it, those of the other programs have not.
    pid: Option<u32>,
}

impl Line {
    pub(super) fn new(program: &'static str, zone: Zone) -> Self {
        let pid = (program == "slurm_resume").then(std::process::id);
        Self { program, zone, pid }
    }

    /// Everything before the message.
    pub(super) fn head(&self, now: Timestamp, module: &str, level: &Level) -> String {
        let level = match *level {
            Level::ERROR => "ERROR",
            Level::WARN => "WARNING",
            Level::INFO => "INFO",
            Level::DEBUG | Level::TRACE => "DEBUG",
        };
        let pid = self.pid.map(|pid| format!(" - {pid}")).unwrap_or_default();
        format!("{}{pid} - [{}:{module}] - {level} - ", self.zone.python(now), self.program)
    }
}

/// The module's own name: `slurm_ec2::programs::run` → `run`.
fn module(path: Option<&str>) -> &str {
    path.and_then(|path| path.rsplit("::").next()).unwrap_or("slurm_ec2")
}

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        let mut parts = Parts::default();
        event.record(&mut parts);
        writer.write_str(&self.head(clock::now(), module(metadata.module_path()), metadata.level()))?;
        if !parts.jobs.is_empty() {
            write!(writer, "JobID {} - ", parts.jobs)?;
        }
        write!(writer, "{}{}", parts.message, parts.fields)?;
        for span in ctx.event_scope().into_iter().flat_map(tracing_subscriber::registry::Scope::from_root) {
            let extensions = span.extensions();
            let fields = extensions.get::<FormattedFields<N>>().map(|fields| fields.fields.as_str()).unwrap_or_default();
            for field in fields.split_ascii_whitespace().filter(|field| !field.starts_with("pid=")) {
                write!(writer, " {field}")?;
            }
        }
        writeln!(writer)
    }
}

/// An event taken apart.
#[derive(Debug, Default)]
struct Parts {
    /// `17` or `17,18`: whose nodes the line is about.
    jobs: String,
    message: String,
    /// ` key=value key=value`
    fields: String,
}

impl Visit for Parts {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message.push_str(value),
            "job" | "jobs" => self.job(field.name(), value),
            // An empty text says nothing.
            _ if value.is_empty() => {}
            name => {
                let _ = write!(self.fields, " {name}={value:?}");
            }
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => {
                let _ = write!(self.message, "{value:?}");
            }
            "job" | "jobs" => self.job(field.name(), &format!("{value:?}")),
            name => {
                let _ = write!(self.fields, " {name}={value:?}");
            }
        }
    }
}

impl Parts {
    /// A list that was cut for its length is no prefix.
    fn job(&mut self, name: &str, ids: &str) {
        if ids.bytes().all(|byte| byte.is_ascii_digit() || byte == b',') {
            ids.clone_into(&mut self.jobs);
        } else {
            let _ = write!(self.fields, " {name}={ids:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// What is written behind the time, per line.
    fn lines(program: &'static str, log: impl FnOnce()) -> Vec<String> {
        let buffer = Buffer::default();
        let sink = buffer.clone();
        let layer = tracing_subscriber::fmt::layer()
            .event_format(Line::new(program, Zone::of(Some(""))))
            .with_ansi(false)
            .with_writer(move || sink.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), log);
        let text = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| line[23..].to_owned()).collect()
    }

    #[test]
    fn r21_a_line_has_the_packages_form() {
        let pid = std::process::id();
        let head = format!(" - {pid} - [slurm_resume:tests] - ");
        let seen = lines("slurm_resume", || {
            let span = tracing::info_span!("run", pid, launch = %"20261129T120000Z-1f2e3d4c");
            let _entered = span.enter();
            tracing::info!(nodes = 4, jobs = "", "started");
            tracing::error!(code = "VcpuLimitExceeded", nodes = "q-dy-r-[1-2]", jobs = "17", "launch failed: {}", "no vCPUs");
            tracing::warn!(jobs = "17,18", request_id = None::<&str>, "slow");
            tracing::debug!(jobs = "1,2,... (60 in all)", "many");
        });
        let expected = [
            "INFO - started nodes=4",
            "ERROR - JobID 17 - launch failed: no vCPUs code=\"VcpuLimitExceeded\" nodes=\"q-dy-r-[1-2]\"",
            "WARNING - JobID 17,18 - slow",
            "DEBUG - many jobs=\"1,2,... (60 in all)\"",
        ];
        let expected = expected.map(|text| format!("{head}{text} launch=20261129T120000Z-1f2e3d4c"));
        assert_eq!(seen, expected);
    }

    #[test]
    fn suspend_has_no_pid() {
        assert_eq!(lines("slurm_suspend", || tracing::info!("ended")), [" - [slurm_suspend:tests] - INFO - ended"]);
    }

    #[test]
    fn the_time_is_local_and_has_pythons_comma() {
        let line = Line { program: "slurm_resume", zone: Zone::of(Some("CET-1CEST,M3.5.0,M10.5.0/3")), pid: Some(7) };
        let head = line.head("2026-11-29T12:00:00.250Z".parse().unwrap(), "run", &Level::WARN);
        assert_eq!(head, "2026-11-29 13:00:00,250 - 7 - [slurm_resume:run] - WARNING - ");
    }
}
