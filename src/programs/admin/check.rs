//! `slurm-ec2 check`: the configuration by itself, then against slurm.conf, then what this machine has for it (`machine.rs`). Changes
//! nothing and asks nobody but `scontrol --version`.

use std::collections::HashSet;
use std::io;

use super::daemons;
use super::machine::{self, Found};
use crate::config::settings::{NodeIndex, Settings};
use crate::error::chain;
use crate::model::hostlist;
use crate::model::recipe::GroupNodes;
use crate::programs::args::Environment;
use crate::programs::exit::Exit;
use crate::programs::{begin, startup};
use crate::slurm::conf::{self, ConfError, SlurmConf, Timeout};
use crate::slurm::scontrol::Error;
use crate::slurm::version::Version;

/// Reports on all of it; exit status 78 when slurm.conf lacks what power saving needs, or when the programs could not work here.
pub(super) fn check(settings: &Settings, env: &Environment) -> Exit {
    let file = settings.path.display();
    for warning in settings.placed_warnings() {
        startup::complain(super::PROGRAM, &warning);
    }
    let broken = settings.broken();
    for why in &broken {
        startup::complain(super::PROGRAM, &format!("some nodes cannot be launched: {why}"));
    }
    let groups = settings.groups.len();
    match (&settings.node_group, broken.len()) {
        (NodeIndex::Names(names), _) => startup::say(&format!("{file}: fine; {groups} groups, {} nodes", names.len())),
        (NodeIndex::Queues(_), 0) => startup::say(&format!("{file}: fine; {groups} compute resources")),
        (NodeIndex::Queues(_), bad) => startup::say(&format!("{file}: {groups} compute resources can be used, {bad} cannot")),
    }
    let own = if broken.is_empty() { Exit::Done } else { Exit::Config };
    let path = env.slurm_conf.as_deref().unwrap_or(&settings.slurm.conf);
    let slurm_conf = match conf::read(path) {
        Ok(conf) => conf,
        // Elsewhere a configuration may be looked at all the same.
        Err(ConfError::Read { path: missing, source }) if missing == path && source.kind() == io::ErrorKind::NotFound => {
            startup::say(&format!("slurm.conf not checked, and this machine neither: cannot read {}: {source}", path.display()));
            // Of a head node this is no small thing, of a copy of its files it is.
            return own;
        }
        Err(error) => {
            startup::say(&format!("slurm.conf not checked: {}", chain(&error)));
            return worse(own, report_machine(settings, &SlurmConf::default(), version(settings, env).map(drop)));
        }
    };
    let version = version(settings, env);
    let problems = problems(settings, &slurm_conf, version.as_ref().ok().copied());
    for problem in &problems {
        startup::complain(super::PROGRAM, &format!("{}: {problem}", path.display()));
    }
    if problems.is_empty() {
        startup::say(&format!("{}: fine", path.display()));
    }
    for warning in daemons::slurm_conf(settings, &slurm_conf) {
        startup::complain(super::PROGRAM, &format!("warning: {}: {warning}", path.display()));
    }
    if never_suspends(&slurm_conf) {
        let text = "SuspendTime is -1 or INFINITE, and no partition has another: power saving is off, as that asks for; \
                    Slurm powers nodes neither up nor down by itself";
        startup::say(&format!("{}: {text}", path.display()));
    }
    let machine = report_machine(settings, &slurm_conf, version.map(drop));
    worse(if problems.is_empty() { own } else { Exit::Config }, machine)
}

fn worse(one: Exit, other: Exit) -> Exit {
    if matches!(one, Exit::Done) { other } else { one }
}

/// Reports what this machine lacks for the programs.
fn report_machine(settings: &Settings, conf: &SlurmConf, scontrol: Result<(), String>) -> Exit {
    let Found { mut errors, warnings } = machine::look(settings, conf);
    errors.extend(scontrol.err());
    for text in &errors {
        startup::complain(super::PROGRAM, text);
    }
    for text in &warnings {
        startup::complain(super::PROGRAM, &format!("warning: {text}"));
    }
    if errors.is_empty() {
        startup::say("state folder, CA bundle and scontrol can be used");
        Exit::Done
    } else {
        Exit::Config
    }
}

/// What scontrol says of itself, as the programs would run it.
fn version(settings: &Settings, env: &Environment) -> Result<Version, String> {
    let runtime = begin::runtime().ok_or("scontrol cannot be run")?;
    let version = runtime.block_on(begin::scontrol(settings, env).version());
    // A child that hangs must not keep the program.
    runtime.shutdown_background();
    version.map_err(|error: Error| chain(&error))
}

fn is_finite(time: &Option<Timeout>) -> bool {
    matches!(time, Some(Timeout::After(_)))
}

/// Does somebody want nodes never to be suspended (C04)?
fn never_suspends(conf: &SlurmConf) -> bool {
    let written = matches!(conf.suspend_time, Some(Timeout::Infinite));
    written && !conf.partitions.iter().any(|partition| is_finite(&partition.suspend_time))
}

/// What slurm.conf lacks for nodes to come and go (slurm-facts F), each with what to write.
fn problems(settings: &Settings, conf: &SlurmConf, version: Option<Version>) -> Vec<String> {
    let mut problems = Vec::new();
    let programs = [
        ("ResumeProgram", &conf.resume_program, "slurm_resume", "no node is ever started"),
        ("SuspendProgram", &conf.suspend_program, "slurm_suspend", "power saving is off without it"),
        ("ResumeFailProgram", &conf.resume_fail_program, "slurm_resume_fail", "a node that does not come up stays down for ever"),
    ];
    for (key, value, ours, why) in programs {
        if value.is_none() {
            problems.push(format!("{key} is not set: {why}; write {key}=/usr/bin/{ours}"));
        }
    }
    if conf.suspend_time.is_none() && !conf.partitions.iter().any(|partition| is_finite(&partition.suspend_time)) {
        problems.push("SuspendTime is not set: power saving is off; write SuspendTime=600".to_owned());
    }
    if conf.resume_timeout.is_none() && conf.partitions.iter().all(|partition| partition.resume_timeout.is_none()) {
        problems.push("ResumeTimeout is not set: its default of 60 s is too short for EC2; write ResumeTimeout=600".to_owned());
    }
    if !conf.has_slurmctld_parameter("idle_on_node_suspend") {
        problems.push(
            "SlurmctldParameters lacks idle_on_node_suspend: nodes that were set down stay down when they are powered off"
                .to_owned(),
        );
    }
    if version.is_some_and(Version::hides_powered_down_nodes) && !conf.has_private_data("cloud") {
        problems.push(
            "PrivateData lacks cloud: this Slurm hides powered-off nodes from scontrol; write PrivateData=cloud".to_owned(),
        );
    }
    let cloud: HashSet<String> = conf
        .nodes
        .iter()
        .filter(|line| line.is_cloud())
        .filter_map(|line| hostlist::expand(&line.names, settings.hostlist_limit).ok())
        .flat_map(|expansion| expansion.names)
        .collect();
    for group in &settings.groups {
        let GroupNodes::List(list) = &group.nodes else {
            if !cloud.iter().any(|node| settings.group_of(node).is_some_and(|known| known.name == group.name)) {
                problems.push(format!("no NodeName line with State=CLOUD has nodes {}", group.nodes));
            }
            continue;
        };
        let names = hostlist::expand(list, settings.hostlist_limit).map(|expansion| expansion.names).unwrap_or_default();
        let missing: Vec<String> = names.into_iter().filter(|node| !cloud.contains(node)).collect();
        if !missing.is_empty() {
            let list = startup::shorten(&hostlist::compress_sorted(&missing));
            problems.push(format!(
                "{} nodes of group {} have no NodeName line with State=CLOUD: {list}",
                missing.len(),
                group.name
            ));
        }
    }
    problems
}
