//! The AWS sample plugin for Slurm, version 2 (github.com/aws-samples/aws-plugin-for-slurm): its config.json and partitions.json
//! in, the same [`Settings`] and what changes in slurm.conf out, or all mistakes. Its node names, `partition-group-0` and so on,
//! stay.
//!
//! `json.rs` knows places in a document, `recipe.rs` what a node group asks of EC2. Reads nothing but the two texts.

mod json;
mod recipe;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use serde_json::Value;
use tracing::Level;

use self::json::{At, Found, pairs};
use super::checks::{Complaint, check_name, check_region};
use super::combinations::conflicts;
use super::file;
use super::sections_launch::built_in_policy;
use super::settings::Settings;
use super::words::choices;
use crate::model::api_parameters;
use crate::model::policy::{LaunchPolicy, ScaleBy};
use crate::model::recipe::{Group, GroupNodes};

/// What the plugin's files say, in our words.
#[derive(Debug)]
pub(crate) struct Plugin {
    /// `node_group` is left empty: it follows from the groups.
    pub(crate) settings: Settings,
    /// Lines for slurm.conf, and words about them.
    pub(crate) slurm_conf: Vec<String>,
    /// What is different afterwards, or not used; one line each.
    pub(crate) notes: Vec<String>,
}

/// A file's name and text.
pub(crate) type Named<'t> = (&'t Path, &'t str);

/// Where the profile is expected: slurmctld gives its programs no HOME, so `~/.aws` is of no use.
const CREDENTIALS: &str = "/etc/slurm-ec2/aws-credentials";

const LEVELS: [(&str, Level); 5] = [
    ("CRITICAL", Level::ERROR),
    ("ERROR", Level::ERROR),
    ("WARNING", Level::WARN),
    ("INFO", Level::INFO),
    ("DEBUG", Level::DEBUG),
];

/// Both files. `cluster` names the cluster, which the plugin does not, unless its SlurmConf has ClusterName. Errors: every mistake of
/// both files, each naming file and key.
pub(crate) fn read(config: Named<'_>, partitions: Named<'_>, cluster: Option<&str>) -> Result<Plugin, Vec<String>> {
    let found = Found::default();
    let (mut settings, ..) = file::read(config.0, "");
    settings.publish.hostname = true; // as the plugin's NodeHostName
    let config_json = parsed(config, &found);
    let partitions_json = parsed(partitions, &found);
    let mut slurm_conf = Vec::new();
    if let Some(value) = &config_json {
        general(&At::root(config.0, value, &found), cluster, &mut settings, &mut slurm_conf);
    }
    if let Some(value) = &partitions_json {
        groups(&At::root(partitions.0, value, &found), &mut settings, &mut slurm_conf);
    }
    let mistakes = found.mistakes.into_inner();
    if mistakes.is_empty() { Ok(Plugin { settings, slurm_conf, notes: found.notes.into_inner() }) } else { Err(mistakes) }
}

fn parsed((path, text): Named<'_>, found: &Found) -> Option<Value> {
    serde_json::from_str(text)
        .map_err(|error| found.mistakes.borrow_mut().push(format!("{}: this is no JSON: {error}", path.display())))
        .ok()
}

/// config.json.
fn general(root: &At<'_>, cluster: Option<&str>, settings: &mut Settings, slurm_conf: &mut Vec<String>) {
    root.only(&["LogLevel", "LogFileName", "SlurmBinPath", "SlurmConf"]);
    if let Some(level) = root.get("LogLevel") {
        let text = level.text().unwrap_or("INFO");
        match LEVELS.iter().find(|(word, _)| *word == text) {
            Some((_, level)) => settings.log.level = *level,
            None => level.mistake(format!("{text:?} does not exist"), format!("write {}", choices(LEVELS.map(|(word, _)| word)))),
        }
    }
    if let Some(file) = root.get("LogFileName") {
        match file.text().map(Path::new).filter(|path| path.is_absolute()).and_then(Path::parent) {
            // There the programs of slurmctld's user could make no file.
            Some(dir) if dir == Path::new("/var/log") => {
                let dir = settings.log.dir.display();
                file.note(format!(
                    "in /var/log itself, so logs go to {dir}, which has to be there, writable for slurmctld's user"
                ));
            }
            Some(dir) => settings.log.dir = dir.to_owned(),
            None => file.note(format!("not absolute, so logs go to {}", settings.log.dir.display())),
        }
    }
    if let Some(bin) = root.required("SlurmBinPath")
        && let Some(text) = bin.checked(absolute)
    {
        let trimmed = text.trim_end_matches('/');
        settings.slurm.bin_dir = PathBuf::from(if trimmed.is_empty() { "/" } else { trimmed });
    }
    let conf = root.required("SlurmConf");
    let own = conf.as_ref().and_then(|conf| conf.get("ClusterName"));
    match (cluster, &own) {
        (Some(name), _) => name.clone_into(&mut settings.cluster),
        (None, Some(own)) => {
            if let Some(name) = own.checked(|text| check_name(text, 128)) {
                name.clone_into(&mut settings.cluster);
            }
        }
        (None, None) => root.mistake("the plugin has no name for the cluster", "give slurm.conf's ClusterName with --cluster"),
    }
    if let Some(conf) = conf {
        changes(&conf, slurm_conf);
    }
}

fn absolute(text: &str) -> Result<(), Complaint> {
    if text.starts_with('/') { Ok(()) } else { Err((format!("{text:?} is not an absolute path"), "begin with /".to_owned())) }
}

/// What changes in slurm.conf, and what stays.
fn changes(conf: &At<'_>, lines: &mut Vec<String>) {
    let Some(object) = conf.object() else { return };
    let text = |key: &str| object.get(key).map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    let was = |key: &str| text(key).map_or_else(String::new, |value| format!("    (was {value})"));
    lines.push("What changes in slurm.conf:".to_owned());
    lines.push(format!("  ResumeProgram=/usr/bin/slurm_resume{}", was("ResumeProgram")));
    lines.push(format!("  SuspendProgram=/usr/bin/slurm_suspend{}", was("SuspendProgram")));
    lines
        .push("  ResumeFailProgram=/usr/bin/slurm_resume_fail    (instead of change_state.py: take that out of cron)".to_owned());
    let parameters = text("SlurmctldParameters").unwrap_or_default();
    if !parameters.split(',').any(|word| word.trim() == "idle_on_node_suspend") {
        let more = if parameters.is_empty() { String::new() } else { format!(",{parameters}") };
        lines.push(format!("  SlurmctldParameters=idle_on_node_suspend{more}{}", was("SlurmctldParameters")));
    }
    for key in ["ResumeRate", "SuspendRate"] {
        if text(key).is_some_and(|value| value != "0") {
            lines.push(format!("  {key}=0{}    (these programs pace their calls by themselves)", was(key)));
        }
    }
    let returns = text("ReturnToService").is_some_and(|value| value == "2");
    if !returns {
        let why = "(a node that was down and registers again is used again)";
        lines.push(format!("  ReturnToService=2{}    {why}", was("ReturnToService")));
    }
    lines.push("What stays:".to_owned());
    let changed = ["ResumeProgram", "SuspendProgram", "ResumeFailProgram", "SlurmctldParameters", "ResumeRate", "SuspendRate"];
    lines.extend(
        pairs(object)
            .filter(|pair| !changed.iter().any(|key| pair.starts_with(&format!("{key}="))))
            .filter(|pair| returns || !pair.starts_with("ReturnToService="))
            .map(|pair| format!("  {pair}")),
    );
}

/// partitions.json.
fn groups(root: &At<'_>, settings: &mut Settings, slurm_conf: &mut Vec<String>) {
    root.only(&["Partitions"]);
    let launch = LaunchPolicy { node_tags: true, ..built_in_policy() };
    let mut places = Places::default();
    let partitions = root.required("Partitions").map(|list| list.elements()).unwrap_or_default();
    for partition in partitions {
        partition.only(&["PartitionName", "NodeGroups", "PartitionOptions"]);
        let name = partition.required("PartitionName").and_then(|name| name.checked(word)).unwrap_or("?");
        let mut ranges = Vec::new();
        for group in partition.required("NodeGroups").map(|list| list.elements()).unwrap_or_default() {
            let Some((read, specifications)) = node_group(name, &group, &launch) else { continue };
            places.note(&group);
            if settings.groups.iter().any(|other| other.name == read.name) {
                group.mistake(format!("the name {} is given twice", read.name), "give each node group a name of its own");
            }
            ranges.push(read.nodes.to_string());
            slurm_conf.push(format!("  NodeName={} State=CLOUD{specifications}", read.nodes));
            settings.groups.push(read);
        }
        let options = partition.get("PartitionOptions");
        let options = options.and_then(|options| options.object().cloned()).unwrap_or_default();
        let options: String = pairs(&options).map(|pair| format!(" {pair}")).collect();
        slurm_conf.push(format!("  PartitionName={name} Nodes={} MaxTime=INFINITE State=UP{options}", ranges.join(",")));
    }
    if let Some((region, _)) = places.region {
        settings.region = region;
    }
    if let Some((Some(profile), at)) = places.profile {
        root.note(format!("{at}.ProfileName: copy profile {profile} of ~/.aws to {CREDENTIALS}, readable for slurmctld's user"));
        settings.aws.profile = Some(profile);
        settings.aws.credentials_file = Some(PathBuf::from(CREDENTIALS));
    }
    if settings.groups.is_empty() {
        root.mistake("there is no node group", "add one");
    } else {
        root.note(
            "instances have their node's name in the tag slurm-ec2:node instead of Name: slurmd's start script has to read \
             tags/instance/slurm-ec2:node from the instance metadata",
        );
    }
}

/// The one region and the one profile that there can be, each with the key that named it first.
#[derive(Default)]
struct Places {
    region: Option<(String, String)>,
    profile: Option<(Option<String>, String)>,
}

impl Places {
    fn note(&mut self, group: &At<'_>) {
        if let Some(region) = group.required("Region")
            && let Some(text) = region.checked(check_region)
        {
            let (first, at) = self.region.get_or_insert_with(|| (text.to_owned(), group.key.clone()));
            if first != text {
                region.mistake(
                    format!("{text} is another region than {first}, which {at} has"),
                    "a configuration is for one region: import the node groups of each region by themselves",
                );
            }
        }
        let profile = group.get("ProfileName").and_then(|profile| profile.text().map(str::to_owned));
        let (first, at) = self.profile.get_or_insert_with(|| (profile.clone(), group.key.clone()));
        if *first != profile {
            let shown =
                |profile: &Option<String>| profile.as_ref().map_or("no profile".to_owned(), |name| format!("profile {name}"));
            group.mistake(
                format!("ProfileName: {} here, and {} in {at}", shown(&profile), shown(first)),
                "a configuration is for one account: import the node groups of each profile by themselves",
            );
        }
    }
}

/// A partition or node group: part of a node's name.
fn word(text: &str) -> Result<(), Complaint> {
    if text.bytes().all(|byte| byte.is_ascii_alphanumeric()) && text.len() <= 49 {
        return Ok(());
    }
    Err((format!("{text:?} is no part of a node's name"), "write at most 49 letters and digits".to_owned()))
}

/// A node group, and its Slurm specifications as slurm.conf has them.
fn node_group(partition: &str, group: &At<'_>, launch: &LaunchPolicy) -> Option<(Group, String)> {
    group.object()?;
    group.only(&[
        "NodeGroupName",
        "MaxNodes",
        "Region",
        "ProfileName",
        "SlurmSpecifications",
        "PurchasingOption",
        "OnDemandOptions",
        "SpotOptions",
        "LaunchTemplateSpecification",
        "LaunchTemplateOverrides",
        "SubnetIds",
        "Tags",
    ]);
    let name = group.required("NodeGroupName").and_then(|name| name.checked(word)).unwrap_or("?");
    let name = format!("{partition}-{name}");
    let nodes = match group.required("MaxNodes").and_then(|most| most.integer(1)).unwrap_or(1) {
        1 => format!("{name}-0"),
        most => format!("{name}-[0-{}]", most - 1),
    };
    let recipe = recipe::recipe(group);
    for conflict in conflicts(&recipe, launch, ScaleBy::Batch) {
        group.mistake(conflict.message, conflict.help);
    }
    for problem in api_parameters::check(recipe.api, &recipe.overrides) {
        group.mistake(problem, format!("see {} in EC2's API reference", api_parameters::operation(recipe.api)));
    }
    let specifications = group.get("SlurmSpecifications");
    let specifications = specifications.and_then(|specifications| specifications.object().cloned()).unwrap_or_default();
    let specifications = pairs(&specifications).map(|pair| format!(" {pair}")).collect();
    let nodes = GroupNodes::List(nodes);
    let group = Group { name, nodes, recipe, fallbacks: Vec::new(), launch: launch.clone(), capacity_reservation: None };
    Some((group, specifications))
}
