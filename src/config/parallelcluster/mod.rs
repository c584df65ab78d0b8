//! ParallelCluster's files (aws-facts B.2 to B.4, B.8, B.9): the INI file of a program in, the same [`Settings`] as from TOML or all
//! mistakes out. Its unknown keys and sections are left alone; one section, `[slurm_ec2]`, is our own.
//!
//! `ini.rs` knows the dialect, `keys.rs` types and mistakes, `json.rs` and `fleet.rs` the JSON files, `logging.rs` the logging
//! configuration, `bundle.rs` where the CA bundle is, `sections.rs` the keys by name, `slips.rs` names that are nearly right. Reads those files and nothing else.

mod bundle;
mod fleet;
#[cfg(test)]
mod fleet_tests;
mod ini;
mod json;
mod keys;
mod logging;
#[cfg(test)]
mod mistake_tests;
mod sections;
mod slips;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use self::fleet::{Files, Queues};
use self::keys::{File, Keys};
pub(crate) use self::slips::neither;
use super::cite::{Mistake, Source};
use super::settings::{EventsFile, LogSettings, NodeIndex, Settings};
use super::source::Place;

/// Where the package looks when nothing names another file.
const RESUME_CONF: &str = "parallelcluster_slurm_resume.conf";
const SUSPEND_CONF: &str = "parallelcluster_slurm_suspend.conf";
const FLEET_CONFIG: &str = "/etc/parallelcluster/slurm_plugin/fleet-config.json";
const RUN_INSTANCES_OVERRIDES: &str = "/opt/slurm/etc/pcluster/run_instances_overrides.json";
const CREATE_FLEET_OVERRIDES: &str = "/opt/slurm/etc/pcluster/create_fleet_overrides.json";

/// The sections that make a file one of ParallelCluster's.
const SECTIONS: [&str; 3] = [RESUME, SUSPEND, "clustermgtd"];
const RESUME: &str = "slurm_resume";
const SUSPEND: &str = "slurm_suspend";
/// Our own: what the package has no key for.
const OURS: &str = "slurm_ec2";

/// Is this text one of ParallelCluster's files?
pub(crate) fn is_one(text: &str) -> bool {
    text.lines().any(|line| {
        let behind = line.trim_start_matches('\u{feff}').trim_start().strip_prefix('[');
        behind.and_then(|behind| behind.split_once(']')).is_some_and(|(name, _)| SECTIONS.contains(&name))
    })
}

/// The name of a program's file. The package calls one program for suspend and resume-fail.
pub(crate) fn file_name(program: &str) -> &'static str {
    if ends_instances(program) { SUSPEND_CONF } else { RESUME_CONF }
}

/// Does this program terminate instances and launch none? It must not be kept from that by a file of what could be launched.
fn ends_instances(program: &str) -> bool {
    matches!(program, "slurm_suspend" | "slurm_resume_fail")
}

/// Settings (of use only without mistakes) and the mistakes of all files.
pub(crate) fn read(program: &str, place: &Place, text: &str) -> (Settings, Vec<Mistake>) {
    let own = File::new(&place.path, text);
    if own.ini.has_section(RESUME) {
        let (settings, mut mistakes) = with(program, place, &own, &own);
        mistakes.splice(0..0, own.finish());
        return (settings, mistakes);
    }
    if file_name(program) == RESUME_CONF {
        let help = format!("name the file of slurm_resume, {RESUME_CONF}");
        own.mistake(0..0, format!("there is no section [{RESUME}]"), help);
    }
    // The file of slurm_suspend says next to nothing; the rest is in the other one.
    let beside = place.path.with_file_name(RESUME_CONF);
    let path = if beside.exists() { beside } else { place.plugin_dir.join(RESUME_CONF) };
    let text = fs::read_to_string(&path).unwrap_or_else(|error| {
        let message = format!("everything but the heartbeat is in {}, which cannot be read: {error}", path.display());
        own.mistake(own.ini.header(SUSPEND), message, format!("write {RESUME_CONF} beside this file, readable for this user"));
        String::new()
    });
    let resume = File::new(&path, &text);
    if !text.is_empty() && !resume.ini.has_section(RESUME) {
        resume.mistake(0..0, format!("there is no section [{RESUME}]"), "this must be the file of slurm_resume");
    }
    if own.ini.has_section(OURS) {
        let help = format!("move it to {}: all programs must agree on it", path.display());
        own.mistake(own.ini.header(OURS), format!("section [{OURS}] is not read here"), help);
    }
    let (settings, more) = with(program, place, &own, &resume);
    let mut mistakes = own.finish();
    mistakes.extend(resume.finish());
    mistakes.extend(more);
    (settings, mistakes)
}

/// What cannot be pointed at in one of the two INI files is returned.
fn with(program: &str, place: &Place, own: &File<'_>, resume: &File<'_>) -> (Settings, Vec<Mistake>) {
    let mut mistakes = Vec::new();
    let keys = resume.section(RESUME);
    let has_resume = resume.ini.has_section(RESUME);
    // The defaults of everything that the package has no key for are those of the TOML file.
    let (mut settings, ..) = super::file::read(&place.path, "");
    if has_resume {
        sections::resume(&keys, &mut settings);
        sections::ours(&resume.section(OURS), &mut settings);
    } else {
        sections::without_file(&mut settings);
    }
    let suspends = file_name(program) == SUSPEND_CONF && own.ini.has_section(SUSPEND);
    let heartbeat = if suspends { own.section(SUSPEND) } else { keys };
    if suspends || has_resume {
        settings.parallelcluster = Some(sections::heartbeat(&heartbeat, &keys, &mut settings.warnings));
    }
    let log_dir = resume.section(OURS).path("log_dir");
    log(program, &heartbeat, log_dir, &mut settings.log, &mut settings.warnings);
    settings.warnings.extend(slips::warnings(resume));
    if !std::ptr::eq(own, resume) {
        settings.warnings.extend(slips::warnings(own));
    }
    surroundings(place, &mut settings, &mut mistakes);
    if has_resume {
        let mut path = |key, usual| {
            let path = located(keys.path_or(key, usual), place, &mut settings.warnings);
            if key != "fleet_config_file" && !ends_instances(program) && keys.is_set(key) && is_missing(&path) {
                let text = format!("{key} {} is named but not there; nothing is overridden", path.display());
                settings.warnings.push(resume.warning(keys.place(key), &text));
            }
            path
        };
        let (fleet, run_instances, create_fleet) = (
            path("fleet_config_file", FLEET_CONFIG),
            path("run_instances_overrides", RUN_INSTANCES_OVERRIDES),
            path("create_fleet_overrides", CREATE_FLEET_OVERRIDES),
        );
        let launch = sections::launch_policy(&keys, &mut settings);
        let mut wrong = Vec::new();
        let mut queues = |key, path, required| json::queues(key, path, keys.is_set(key), required, &mut wrong);
        let mut files = Files {
            fleet: queues("fleet_config_file", fleet, true),
            run_instances: queues("run_instances_overrides", run_instances, false),
            create_fleet: queues("create_fleet_overrides", create_fleet, false),
        };
        if ends_instances(program) && !wrong.is_empty() {
            // What is to be terminated, the mapping says.
            settings.warnings.extend(wrong.iter().map(|wrong| format!("{wrong}; {program} goes on without any queue")));
            let path = files.fleet.path;
            files = Files { fleet: Queues { path, ..Queues::default() }, ..Files::default() };
        } else {
            wrong.into_iter().for_each(|wrong| wrong.note(&keys, &mut mistakes));
        }
        let fleet = fleet::read(&files, &settings.cluster, &launch);
        settings.groups = fleet.groups;
        settings.node_group = NodeIndex::Queues(fleet.index);
        settings.warnings.extend(fleet.warnings);
    }
    (settings, mistakes)
}

/// What does not come from a file.
fn surroundings(place: &Place, settings: &mut Settings, mistakes: &mut Vec<Mistake>) {
    if let Some(dir) = &place.slurm_bin_dir {
        let text = dir.display().to_string();
        if let Err((message, help)) = keys::absolute(&text) {
            let source = Source { path: Path::new("$SLURM_BINARIES_DIR"), text: &text };
            mistakes.push(source.cite(0..text.len(), message, help));
        } else {
            settings.slurm.bin_dir.clone_from(dir);
        }
    }
    let root = settings.slurm.bin_dir.parent().unwrap_or_else(|| Path::new("/"));
    settings.slurm.conf = root.join("etc/slurm.conf");
    settings.slurm.sudo.clone_from(&place.sudo);
    if settings.aws.ca_bundle.is_none() {
        settings.aws.ca_bundle = bundle::find(place, &settings.region, &mut settings.warnings);
    }
}

/// The log file and level of the package's logging configuration; `log_dir` wins over its files. A wrong one is no reason not to work:
/// it is only warned of.
fn log(program: &str, keys: &Keys<'_>, log_dir: Option<PathBuf>, log: &mut LogSettings, warnings: &mut Vec<String>) {
    logging_config(program, keys, log_dir.as_deref(), log, warnings);
    if let Some(dir) = log_dir {
        log.dir = dir;
        log.file = None;
        if let EventsFile::Named(_) = log.events {
            log.events = EventsFile::Usual;
        }
    }
}

fn logging_config(program: &str, keys: &Keys<'_>, dir: Option<&Path>, log: &mut LogSettings, warnings: &mut Vec<String>) {
    let Some(path) = keys.path("logging_config") else { return };
    // slurm-ec2 has no log; what it says is of slurm_resume's.
    let writer = if ends_instances(program) { program } else { "slurm_resume" };
    let usual = dir.unwrap_or(&log.dir).join(format!("{writer}.log"));
    let read = fs::read_to_string(&path).map_err(|error| error.to_string()).and_then(|text| logging::read(&text));
    match read {
        Ok(logging::Logging { file, level, events }) => {
            if file.is_none() {
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

/// Is there certainly no such file?
fn is_missing(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Where a JSON file is: in a copy of the folder perhaps beside the file that names it.
fn located(path: PathBuf, place: &Place, warnings: &mut Vec<String>) -> PathBuf {
    let Some(name) = path.file_name().filter(|_| place.is_copy && !path.exists()) else { return path };
    let beside = place.path.with_file_name(name);
    if !beside.exists() {
        return path;
    }
    warnings.push(format!("{} is not there; {} is taken", path.display(), beside.display()));
    beside
}
