//! From sections to [`Settings`]: what each program goes by, in the order in which later values need earlier ones. Mistakes are noted in
//! the files; those that lie in none of the INI files are returned.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::fleet::{self, Files, Queues};
use super::keys::{self, Keys};
use super::programs::Role;
use super::sources::Sources;
use super::{bundle, daemons, json, logs, partitions, sections, slips};
use crate::config::cite::{Mistake, Source};
use crate::config::sections_daemons::{self, Daemons};
use crate::config::settings::{NodeIndex, Settings};
use crate::config::source::Place;
use crate::model::policy::{ScaleBy, Strategy};

const FLEET_CONFIG: &str = "/etc/parallelcluster/slurm_plugin/fleet-config.json";
const RUN_INSTANCES_OVERRIDES: &str = "/opt/slurm/etc/pcluster/run_instances_overrides.json";
const CREATE_FLEET_OVERRIDES: &str = "/opt/slurm/etc/pcluster/create_fleet_overrides.json";

/// Settings of use only without mistakes.
pub(super) fn settings(program: &str, place: &Place, sources: &Sources<'_>) -> (Settings, Vec<Mistake>) {
    let role = Role::of(program);
    let mut mistakes = Vec::new();
    // The defaults of everything that the package has no key for are those of the TOML file.
    let (mut settings, ..) = crate::config::file::read(&place.path, "");
    sections::without_file(&mut settings);
    cluster(role, sources, &mut settings);
    settings.files.extend_from_slice(sources.paths);
    let more: &[&str] = if role == Role::Computemgtd { &daemons::OURS_HERE } else { &[] };
    sections::ours(&sources.ours, more, &mut settings);
    heartbeat(role, sources, &mut settings);
    surroundings(place, &mut settings, &mut mistakes);
    for_daemons(role, sources, &mut settings);
    logs::log(program, &sources.own, sources.ours.path("log_dir"), &mut settings);
    for file in &sources.files {
        settings.warnings.extend(slips::warnings(file));
    }
    if let Some(main) = sources.main {
        groups(program, place, &main, &mut settings, &mut mistakes);
    }
    if sources.daemon.is_some() {
        settings.clustermgtd.partitions = partitions::of(place, &mut settings);
    }
    (settings, mistakes)
}

/// Whose cluster it is, and how it is launched.
fn cluster(role: Role, sources: &Sources<'_>, settings: &mut Settings) {
    if let Some(main) = &sources.main {
        sections::common(main, settings);
        if matches!(role, Role::Clustermgtd | Role::Fleet(_)) {
            // What the daemon launches are static nodes, of no job; each that there is counts (aws-facts D.3).
            (settings.run.scale_by, settings.run.strategy) = (ScaleBy::Batch, Strategy::BestEffort);
        } else {
            sections::scaling(main, settings);
        }
    }
    match role {
        Role::Fleet(_) if sources.own.is_written() => daemons::own(&sources.own, sources.main.as_ref(), settings),
        Role::Computemgtd if sources.own.is_written() => daemons::compute_node(&sources.own, settings),
        _ => {}
    }
}

/// The heartbeat of clustermgtd, by the program's own words.
fn heartbeat(role: Role, sources: &Sources<'_>, settings: &mut Settings) {
    let Sources { own, main, resume, .. } = sources;
    let warnings = &mut settings.warnings;
    settings.parallelcluster = match (role, main) {
        (Role::Clustermgtd | Role::Fleet(_), Some(main)) => Some(daemons::heartbeat(main)),
        (Role::Resume | Role::Admin | Role::Suspend, _) if own.is_written() => {
            Some(sections::heartbeat(own, resume.as_ref().unwrap_or(own), warnings))
        }
        (Role::Computemgtd, _) if own.is_written() => Some(daemons::heartbeat_here(own, warnings)),
        _ => None,
    };
    if let (Role::Clustermgtd, Some(written), Some(resume)) = (role, &settings.parallelcluster, resume)
        && let Some(read) = resume.text("clustermgtd_heartbeat_file_path", |_| Ok(()))
    {
        warnings.extend(two_heartbeats(&written.heartbeat, Path::new(&read)));
    }
}

/// What to say of a clustermgtd that writes another heartbeat than slurm_resume goes by.
fn two_heartbeats(written: &Path, read: &Path) -> Option<String> {
    let text = format!(
        "clustermgtd writes the heartbeat {} and slurm_resume looks at {}: nothing is launched unless they are the same file",
        written.display(),
        read.display()
    );
    (written != read).then_some(text)
}

/// What the daemons go by.
fn for_daemons(role: Role, sources: &Sources<'_>, settings: &mut Settings) {
    let Daemons { clustermgtd, fleet, computemgtd } =
        sections_daemons::defaults(&settings.cluster, settings.parallelcluster.as_ref());
    (settings.clustermgtd, settings.fleet, settings.computemgtd) = (clustermgtd, fleet, computemgtd);
    if let Some(daemon) = &sources.daemon {
        daemons::clustermgtd(daemon, settings);
    }
    if let (Role::Admin, Some(daemon)) = (role, &sources.daemon) {
        // Its own programs' is slurm_resume's.
        let written = daemons::heartbeat(daemon).heartbeat;
        let read = settings.parallelcluster.as_ref().map(|parallelcluster| parallelcluster.heartbeat.as_path());
        settings.warnings.extend(read.and_then(|read| two_heartbeats(&written, read)));
        settings.computemgtd.heartbeat = Some(written.clone());
        settings.clustermgtd.heartbeat = Some(written);
    }
    if let Some(status) = &sources.status {
        daemons::fleet(status, matches!(role, Role::Fleet(section) if section == status.name()), settings);
    }
    if role == Role::Computemgtd {
        daemons::computemgtd(&sources.own, &sources.ours, settings);
    }
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

/// The compute resources, by the three JSON files that `keys` name.
fn groups(program: &str, place: &Place, keys: &Keys<'_>, settings: &mut Settings, mistakes: &mut Vec<Mistake>) {
    let ends_instances = Role::of(program).ends_instances();
    let mut path = |key, usual| {
        let path = located(keys.path_or(key, usual), place, &mut settings.warnings);
        if key != "fleet_config_file" && !ends_instances && keys.is_set(key) && is_missing(&path) {
            let text = format!("{key} {} is named but not there; nothing is overridden", path.display());
            settings.warnings.push(keys.file().warning(keys.place(key), &text));
        }
        path
    };
    let (fleet, run_instances, create_fleet) = (
        path("fleet_config_file", FLEET_CONFIG),
        path("run_instances_overrides", RUN_INSTANCES_OVERRIDES),
        path("create_fleet_overrides", CREATE_FLEET_OVERRIDES),
    );
    settings.files.extend([&fleet, &run_instances, &create_fleet].map(Clone::clone));
    let launch = sections::launch_policy(keys, settings);
    let mut wrong = Vec::new();
    let mut queues = |key, path, required| json::queues(key, path, keys.is_set(key), required, &mut wrong);
    let mut files = Files {
        fleet: queues("fleet_config_file", fleet, true),
        run_instances: queues("run_instances_overrides", run_instances, false),
        create_fleet: queues("create_fleet_overrides", create_fleet, false),
    };
    if ends_instances && !wrong.is_empty() {
        // What is to be terminated, the mapping says.
        settings.warnings.extend(wrong.iter().map(|wrong| format!("{wrong}; {program} goes on without any queue")));
        let path = files.fleet.path;
        files = Files { fleet: Queues { path, ..Queues::default() }, ..Files::default() };
    } else {
        wrong.into_iter().for_each(|wrong| wrong.note(keys, mistakes));
    }
    let fleet = fleet::read(&files, &settings.cluster, &launch);
    settings.groups = fleet.groups;
    settings.node_group = NodeIndex::Queues(fleet.index);
    settings.warnings.extend(fleet.warnings);
}

/// Is there certainly no such file?
fn is_missing(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Where a JSON file is: in a copy of the folder perhaps beside the file that names it.
pub(super) fn located(path: PathBuf, place: &Place, warnings: &mut Vec<String>) -> PathBuf {
    let Some(name) = path.file_name().filter(|_| place.is_copy && !path.exists()) else { return path };
    let beside = place.path.with_file_name(name);
    if !beside.exists() {
        return path;
    }
    warnings.push(format!("{} is not there; {} is taken", path.display(), beside.display()));
    beside
}
