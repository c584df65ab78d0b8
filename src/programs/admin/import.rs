//! `slurm-ec2 import`: the files of ParallelCluster or of the AWS sample plugin in, on stdout the TOML file that means the same,
//! on stderr what is different, or all mistakes and exit status 78. Writes no file and asks nobody.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Subcommand;

use crate::config::render;
use crate::config::settings::{EventsFile, ParallelCluster, Settings};
use crate::config::source::{self, PLUGIN_DIR, Place};
use crate::config::{aws_plugin, file};
use crate::programs::args::Environment;
use crate::programs::exit::Exit;
use crate::programs::{resume, startup};

/// Through this, ParallelCluster's user becomes root for scontrol (aws-facts B.1).
const SUDO: &str = "/usr/bin/sudo";

/// Of slurm_resume and of clustermgtd, in ParallelCluster's folder.
const RESUME_CONF: &str = "parallelcluster_slurm_resume.conf";
const CLUSTERMGTD_CONF: &str = "parallelcluster_clustermgtd.conf";

/// Whose files they are.
#[derive(Debug, Subcommand)]
pub(super) enum From {
    /// The files of a ParallelCluster head node
    Parallelcluster {
        /// Folder with parallelcluster_slurm_resume.conf, or that file; JSON files that are not where that says are looked for here too
        #[arg(value_name = "DIR", default_value = PLUGIN_DIR)]
        dir: PathBuf,
    },
    /// The files of the AWS sample plugin for Slurm, version 2
    AwsPlugin {
        /// Its config.json
        #[arg(value_name = "CONFIG")]
        config: PathBuf,
        /// Its partitions.json
        #[arg(value_name = "PARTITIONS")]
        partitions: PathBuf,
        /// slurm.conf's ClusterName, which the plugin does not know
        #[arg(long, value_name = "NAME")]
        cluster: Option<String>,
    },
}

pub(super) fn import(from: &From, env: &Environment) -> Exit {
    let imported = match from {
        From::Parallelcluster { dir } => parallelcluster(dir, env),
        From::AwsPlugin { config, partitions, cluster } => plugin(config, partitions, cluster.as_deref()),
    };
    match imported.and_then(Imported::text) {
        Ok((text, notes)) => {
            for note in notes {
                startup::complain(super::PROGRAM, &format!("note: {note}"));
            }
            startup::say(text.trim_end());
            Exit::Done
        }
        Err(mistakes) => {
            for mistake in mistakes {
                startup::complain(super::PROGRAM, &mistake);
            }
            Exit::Config
        }
    }
}

/// What is to be printed.
struct Imported {
    settings: Settings,
    /// Above the file, as comments.
    comments: Vec<String>,
    notes: Vec<String>,
}

impl Imported {
    /// The file and the notes. Errors: what was meant cannot be said in TOML.
    fn text(self) -> Result<(String, Vec<String>), Vec<String>> {
        // A line break in a value must not end the comment.
        let plain = |line: &String| format!("# {}", line.replace(char::is_control, " "));
        let comments: String = self.comments.iter().map(|line| format!("{}\n", plain(line).trim_end())).collect();
        let text = comments + "#\n" + &render::toml(&self.settings);
        match file::parse(Path::new("the file that would be printed"), &text) {
            Ok(_) => Ok((text, self.notes)),
            Err(error) => Err(vec![error.to_string()]),
        }
    }
}

/// The folder, and slurm_resume's file in it. `given` is the folder or a file of it. Errors: there is no such file.
fn located(given: &Path) -> Result<(&Path, PathBuf), String> {
    let is_file = given.is_file();
    let parent = given.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = if is_file { parent } else { given };
    // A file with a name of its own is meant itself.
    let is_renamed = is_file && given.file_name().is_some_and(|name| !name.to_string_lossy().starts_with("parallelcluster_"));
    let path = if is_renamed { given.to_owned() } else { dir.join(RESUME_CONF) };
    // A folder that cannot be entered is told of by the reading.
    match path.try_exists() {
        Ok(false) => Err(format!("{} holds no {RESUME_CONF}; name the folder that does", dir.display())),
        _ => Ok((dir, path)),
    }
}

fn parallelcluster(given: &Path, env: &Environment) -> Result<Imported, Vec<String>> {
    let (dir, path) = located(given).map_err(|why| vec![why])?;
    let place = Place {
        path,
        slurm_bin_dir: env.slurm_bin_dir.clone(),
        // What the importing person has set or has at home need not hold for the programs.
        ca_bundle: None,
        home: None,
        pki_dir: (dir == Path::new(PLUGIN_DIR)).then(|| PathBuf::from(source::PKI_DIR)),
        sudo: Some(PathBuf::from(SUDO)),
        plugin_dir: dir.to_owned(),
        is_copy: true,
    };
    // With what its daemons go by.
    let settings = source::load(super::PROGRAM, &place).map_err(|error| vec![error.to_string()])?;
    let broken: Vec<String> = settings.broken().into_iter().map(str::to_owned).collect();
    if !broken.is_empty() {
        return Err(broken);
    }
    let mut notes: Vec<String> = settings.placed_warnings().collect();
    let usual = settings.log.dir.join(format!("{}.log", resume::PROGRAM));
    if let Some(log) = settings.log.file.as_ref().filter(|log| **log != usual) {
        notes.push(format!("slurm_resume's log will be {} instead of {}", usual.display(), log.display()));
    }
    if settings.log.events != EventsFile::Usual {
        notes.push("slurm_resume.events will be beside the log, whatever logging_config says of the events".to_owned());
    }
    notes.push(state_dir(&settings));
    notes.extend(of_suspend(&place, &settings));
    notes.extend(of_clustermgtd(&place, &settings));
    if let Some(bundle) = env.ca_bundle.as_ref().filter(|bundle| settings.aws.ca_bundle.as_ref() != Some(*bundle)) {
        let text =
            format!("$AWS_CA_BUNDLE ({}) is not taken over: write [aws] ca_bundle where the programs need it", bundle.display());
        notes.push(text);
    }
    let comments = vec![format!("From {} and the files that it names.", place.path.display())];
    Ok(Imported { settings, comments, notes })
}

fn state_dir(settings: &Settings) -> String {
    format!("{} has to be there, writable for the user who runs the programs", settings.state_dir.display())
}

/// The heartbeat of slurm_suspend's own file, where it is another one: a TOML file has one for all programs.
fn of_suspend(place: &Place, settings: &Settings) -> Option<String> {
    let place = Place { path: place.path.with_file_name("parallelcluster_slurm_suspend.conf"), ..place.clone() };
    if !place.path.exists() {
        return None;
    }
    let file = place.path.display();
    let taken = settings.parallelcluster.as_ref()?;
    let other = match source::load("slurm_suspend", &place) {
        Ok(other) => other.parallelcluster?,
        Err(error) => return Some(format!("the heartbeat of {file} is not looked at: {error}")),
    };
    if (&other.heartbeat, other.heartbeat_timeout) == (&taken.heartbeat, taken.heartbeat_timeout) {
        return None;
    }
    let shown = |one: &ParallelCluster| format!("{}, {} s", one.heartbeat.display(), one.heartbeat_timeout.as_secs());
    Some(format!("the heartbeat of [slurm_resume] ({}) is taken for all programs; {file} has {}", shown(taken), shown(&other)))
}

/// What clustermgtd's own file says otherwise than slurm_resume's: a TOML file has one value for both.
fn of_clustermgtd(place: &Place, settings: &Settings) -> Option<String> {
    let place = Place { path: place.path.with_file_name(CLUSTERMGTD_CONF), ..place.clone() };
    let file = place.path.display();
    if !place.path.exists() {
        return Some(format!("{file} is not there: [clustermgtd] has the usual values"));
    }
    let other = match source::load("clustermgtd", &place) {
        Ok(other) => other,
        Err(error) => return Some(format!("{file} is not looked at: {error}")),
    };
    let batch = |settings: &Settings| settings.groups.first().map(|group| group.launch.batch_size);
    let differing: Vec<&str> = [
        ("proxy", settings.aws.proxy != other.aws.proxy),
        ("boto3_retry", settings.aws.attempts != other.aws.attempts),
        ("dynamodb_table and who hears of instances", settings.publish != other.publish),
        ("launch_max_batch_size", batch(settings) != batch(&other)),
        ("terminate_max_batch_size", settings.run.terminate_batch_size != other.run.terminate_batch_size),
        ("instance_info_retrieval_timeout", settings.run.address_timeout != other.run.address_timeout),
    ]
    .into_iter()
    .filter_map(|(what, differs)| differs.then_some(what))
    .collect();
    (!differing.is_empty()).then(|| {
        format!("what [slurm_resume] says is taken for all programs; {file} has other values of {}", differing.join(", "))
    })
}

fn plugin(config: &Path, partitions: &Path, cluster: Option<&str>) -> Result<Imported, Vec<String>> {
    let mut mistakes = Vec::new();
    let mut text = |path: &Path| match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            mistakes.push(format!("{} cannot be read: {error}", path.display()));
            String::new()
        }
    };
    let (config_text, partitions_text) = (text(config), text(partitions));
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let plugin = aws_plugin::read((config, &config_text), (partitions, &partitions_text), cluster)?;
    let mut comments = vec![format!("From {} and {}.", config.display(), partitions.display()), String::new()];
    comments.extend(plugin.slurm_conf);
    let mut notes = plugin.notes;
    notes.push(state_dir(&plugin.settings));
    Ok(Imported { settings: plugin.settings, comments, notes })
}
