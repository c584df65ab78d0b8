//! Where a program of ParallelCluster's logs, and how much: its `logging_config` in, the settings of the log out. A wrong one is no reason
//! not to work: it is only warned of.

use std::fs;
use std::path::{Path, PathBuf};

use super::keys::Keys;
use super::logging;
use super::programs::Role;
use crate::config::settings::{EventsFile, LogSettings, Settings};

/// The log file and level of the package's logging configuration; `log_dir` wins over its files.
pub(super) fn log(program: &str, keys: &Keys<'_>, log_dir: Option<PathBuf>, settings: &mut Settings) {
    logging_config(program, keys, log_dir.as_deref(), settings);
    let log = &mut settings.log;
    if let Some(dir) = log_dir {
        log.dir = dir;
        log.file = None;
        if let EventsFile::Named(_) = log.events {
            log.events = EventsFile::Usual;
        }
    }
    log.name_of_daemon(program);
}

fn logging_config(program: &str, keys: &Keys<'_>, dir: Option<&Path>, settings: &mut Settings) {
    let Some(path) = keys.path("logging_config") else { return };
    settings.files.push(path.clone());
    let (log, warnings) = (&mut settings.log, &mut settings.warnings);
    // slurm-ec2 has no log; what it says is of slurm_resume's.
    let writer = if Role::of(program) == Role::Admin { "slurm_resume" } else { program };
    let usual = dir.unwrap_or(&log.dir).join(LogSettings::parallelcluster_name(writer));
    let read = fs::read_to_string(&path).map_err(|error| error.to_string()).and_then(|text| logging::read(&text));
    match read {
        Ok(logging::Logging { file, level, events }) => {
            // The package's daemons log to stdout, which supervisord writes into the usual file.
            if file.is_none() && !LogSettings::is_daemon(program) {
                warnings.push(format!("logging_config {} names no file; the log is {}", path.display(), usual.display()));
            }
            if let Some(dir) = file.as_deref().and_then(Path::parent) {
                log.dir = dir.to_owned();
            }
            log.file = file;
            log.events = events;
            log.level = level.unwrap_or(log.level);
        }
        Err(why) => {
            warnings.push(format!("logging_config {} is not used: {why}; the log is {}", path.display(), usual.display()));
        }
    }
}
