//! The log: one file per program in `[log] dir`, text or JSON, every line with time and pid. Short-lived programs write
//! synchronously (they may be killed at any time). A folder that cannot be written means stderr, never a failure.

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tracing::Level;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormattedFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry};

use crate::clock;
use crate::config::settings::{LogFormat, LogSettings};
use crate::zone::Zone;

mod parallelcluster;
mod reopening;

/// Starts logging for `program`. `verbose` also writes to stderr (1 = info, 2 = debug); errors go to stderr in any case. `tz` is the
/// value of TZ, for the format that has local times.
pub(crate) fn start(program: &'static str, settings: &LogSettings, verbose: u8, tz: Option<&str>) {
    let path = path(program, settings);
    let file = open(&path).map(|file| Box::new(file) as Box<dyn Write + Send>);
    install(program, settings, verbose, tz, Target { path: &path, file, stderr: true });
}

/// As [`start`], for a program that runs for long: its log may be rotated by renaming. `supervised`: whoever started it keeps what it
/// prints, on a ParallelCluster head node supervisord in the very file of the log. Then nothing goes to stderr as well, and where the
/// file is not ours to write the lines go to stdout.
pub(crate) fn start_daemon(program: &'static str, settings: &LogSettings, verbose: u8, tz: Option<&str>, supervised: bool) {
    let path = path(program, settings);
    let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    let file = folder.and_then(|()| reopening::Reopening::open(path.clone())).map(|file| Box::new(file) as Box<dyn Write + Send>);
    let file = match file {
        Err(_) if supervised => Ok(Box::new(Forgiving(io::stdout())) as Box<dyn Write + Send>),
        file => file,
    };
    install(program, settings, verbose, tz, Target { path: &path, file, stderr: !supervised });
}

/// Where the lines go.
struct Target<'a> {
    path: &'a Path,
    file: io::Result<Box<dyn Write + Send>>,
    /// To stderr as well.
    stderr: bool,
}

fn install(program: &'static str, settings: &LogSettings, verbose: u8, tz: Option<&str>, target: Target<'_>) {
    let Target { path, file, stderr } = target;
    let stderr_level = match (verbose, &file) {
        (0, Ok(_)) => Level::ERROR,
        (0, Err(_)) => settings.level,
        (1, _) => Level::INFO,
        _ => Level::DEBUG,
    };
    let level = settings.level.max(if verbose > 1 { Level::DEBUG } else { settings.level });
    let problem = file.as_ref().err().map(|error| format!("{}: {error}", path.display()));
    let file_layer = file.ok().map(|file| {
        let writer = std::sync::Mutex::new(file);
        match settings.format {
            LogFormat::Text => tracing_subscriber::fmt::layer()
                .event_format(Line)
                .with_ansi(false)
                .with_writer(writer)
                .with_filter(LevelFilter::from_level(level))
                .boxed(),
            LogFormat::ParallelCluster => tracing_subscriber::fmt::layer()
                .event_format(parallelcluster::Line::new(program, Zone::of(tz)))
                .with_ansi(false)
                .with_writer(writer)
                .with_filter(LevelFilter::from_level(level))
                .boxed(),
            LogFormat::Json => tracing_subscriber::fmt::layer()
                .json()
                .flatten_event(true)
                .with_target(false)
                .with_span_list(false)
                .with_timer(Rfc3339)
                .with_writer(writer)
                .with_filter(LevelFilter::from_level(level))
                .boxed(),
        }
    });
    let stderr_layer = tracing_subscriber::fmt::layer()
        .event_format(Line)
        .with_ansi(false)
        .with_writer(|| Forgiving(io::stderr()))
        .with_filter(if stderr { LevelFilter::from_level(stderr_level) } else { LevelFilter::OFF });
    let only_ours = tracing_subscriber::filter::filter_fn(|meta| {
        // The SDK and the HTTP stack log much at debug; theirs only from warnings up.
        meta.target().starts_with("slurm_ec2") || *meta.level() <= Level::WARN
    });
    let mut layers: Vec<Box<dyn Layer<Registry> + Send + Sync>> = vec![stderr_layer.boxed()];
    layers.extend(file_layer);
    let subscriber = Registry::default().with(layers.with_filter(only_ours));
    // A second start (tests) keeps the first.
    let _ = tracing::subscriber::set_global_default(subscriber);
    if let Some(problem) = problem {
        tracing::warn!("log folder cannot be written, logging to stderr: {problem}");
    }
}

/// `<dir>/<program>.log`, unless the configuration names the whole file.
fn path(program: &str, settings: &LogSettings) -> PathBuf {
    settings.file.clone().unwrap_or_else(|| settings.dir.join(format!("{program}.log")))
}

/// To be appended to; its folder is made when it is missing. Every run opens the file anew, so it may be rotated by renaming.
fn open(path: &Path) -> io::Result<tracing_appender::rolling::RollingFileAppender> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not the path of a file"));
    };
    std::fs::create_dir_all(folder)?;
    // The appender prints its own text and falls back in its own way: find out first.
    std::fs::OpenOptions::new().create(true).append(true).open(path)?;
    tracing_appender::rolling::Builder::new()
        .rotation(tracing_appender::rolling::Rotation::NEVER)
        .filename_prefix(name)
        .build(folder)
        .map_err(io::Error::other)
}

/// Brings what was logged to the disk, for a line that may be the last one of this machine. Blocks for as long as the disk does.
pub(crate) fn to_disk(program: &str, settings: &LogSettings) {
    // Nothing to be done where this fails: the line is written.
    let _ = std::fs::File::open(path(program, settings)).and_then(|file| file.sync_all());
}

/// One error before there is a configuration to log by: appended to the log if its folder is there, else nothing. A file that this
/// makes belongs to the folder's owner, so that a call by root does not shut slurmctld's user out.
pub(crate) fn note(program: &'static str, settings: &LogSettings, tz: Option<&str>, text: &str) {
    let path = path(program, settings);
    let Some(Ok(folder)) = path.parent().map(std::fs::metadata) else { return };
    let is_new = !path.exists();
    let Ok(mut file) = std::fs::OpenOptions::new().create(true).append(true).open(path) else { return };
    if is_new {
        // Only root may give files away; for others it is their own already.
        let _ = std::os::unix::fs::fchown(&file, Some(folder.uid()), Some(folder.gid()));
    }
    let (now, pid) = (millis(clock::now()), std::process::id());
    let line = match settings.format {
        LogFormat::Text => format!("{now} ERROR [pid={pid}] {text}\n"),
        LogFormat::ParallelCluster => {
            let line = parallelcluster::Line::new(program, Zone::of(tz));
            format!("{}{text}\n", line.head(clock::now(), "begin", &tracing::Level::ERROR))
        }
        LogFormat::Json => {
            let fields =
                serde_json::json!({"timestamp": now.to_string(), "level": "ERROR", "message": text, "span": {"pid": pid}});
            format!("{fields}\n")
        }
    };
    let _ = file.write_all(line.as_bytes());
}

/// A closed stderr is not an error (22.05 starts programs without one).
struct Forgiving<W>(W);

impl<W: Write> Write for Forgiving<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        Ok(self.0.write(buf).unwrap_or(buf.len()))
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = self.0.flush();
        Ok(())
    }
}

struct Rfc3339;

impl tracing_subscriber::fmt::time::FormatTime for Rfc3339 {
    fn format_time(&self, w: &mut Writer<'_>) -> std::fmt::Result {
        write!(w, "{}", millis(clock::now()))
    }
}

/// Always three digits, so that columns line up.
fn millis(now: crate::model::time::Timestamp) -> impl std::fmt::Display {
    humantime::format_rfc3339_millis(std::time::UNIX_EPOCH + std::time::Duration::from_millis(now.millis()))
}

/// `2026-11-29T12:00:00.000Z INFO  [pid=4711 launch=…] message key=value`
struct Line;

impl<S, N> FormatEvent<S, N> for Line
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &tracing::Event<'_>) -> std::fmt::Result {
        write!(writer, "{} {:5} [", millis(clock::now()), event.metadata().level())?;
        let mut named = false;
        for span in ctx.event_scope().into_iter().flat_map(tracing_subscriber::registry::Scope::from_root) {
            let extensions = span.extensions();
            if let Some(fields) = extensions.get::<FormattedFields<N>>().filter(|fields| !fields.is_empty()) {
                write!(writer, "{fields}")?;
                named = true;
            }
        }
        if !named {
            write!(writer, "pid={}", std::process::id())?;
        }
        write!(writer, "] ")?;
        ctx.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}
