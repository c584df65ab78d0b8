//! `--dry-run` and `slurm-ec2 plan`: what a call would do, from the configuration and the mapping alone. Asks neither EC2 nor Slurm
//! and changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::exit::Exit;
use super::{resume, startup, telling};
use crate::clock;
use crate::config::settings::{Settings, StoreKind};
use crate::error::chain;
use crate::model::failure::Backoff;
use crate::model::hostlist;
use crate::model::mapping::{Mapping, NodeState};
use crate::model::policy::ScaleBy;
use crate::model::recipe::Group;
use crate::plan::launch::{self, Ask, LaunchContext, batch, describe};
use crate::plan::scaling::{Request, Scaling, Wanted};
use crate::store::backoff::Backoffs;
use crate::store::door::Store;

/// Prints the plan of `program` for `nodes`.
pub(crate) fn show(program: &str, settings: &Settings, nodes: &[String]) -> Exit {
    let (mapping, backoffs) = match read(settings) {
        Ok(read) => read,
        Err(error) => {
            startup::complain(program, &error);
            return Exit::Config;
        }
    };
    let lines = if program == resume::PROGRAM {
        plan_resume(settings, &mapping, &backoffs, nodes)
    } else {
        plan_release(&mapping, nodes)
    };
    for line in lines {
        startup::say(&line);
    }
    Exit::Done
}

fn read(settings: &Settings) -> Result<(Arc<Mapping>, BTreeMap<String, Backoff>), String> {
    if settings.store == StoreKind::File && !settings.state_dir.exists() {
        return Ok((Arc::new(Mapping::new(&settings.cluster)), BTreeMap::new()));
    }
    let store = Store::open_read_only(settings).map_err(|error| chain(&error))?;
    let mapping = store.read().map_err(|error| chain(&error))?;
    Ok((mapping, Backoffs::in_folder(store.dir()).active(clock::now()).unwrap_or_default()))
}

fn plan_resume(settings: &Settings, mapping: &Mapping, backoffs: &BTreeMap<String, Backoff>, nodes: &[String]) -> Vec<String> {
    let (mut lines, mut unknown, mut launching) = (Vec::new(), BTreeMap::new(), Vec::new());
    let (mut running, mut resting) = (BTreeMap::new(), BTreeMap::new());
    let mut wanted = Vec::new();
    for node in nodes {
        match (settings.group_of(node), mapping.nodes.get(node)) {
            (None, _) => unknown.entry(settings.why_not(node)).or_insert_with(Vec::new).push(node),
            (Some(_), Some(entry)) if entry.state == NodeState::Running => {
                running.insert(node, entry.instance_id.clone().unwrap_or_default());
            }
            (Some(_), Some(_)) => launching.push(node),
            (Some(group), None) => {
                let refused = backoffs.get(&group.name).map(telling::backoff_failure);
                if refused.is_some() {
                    resting.entry(&group.name).or_insert_with(Vec::new).push(node.clone());
                }
                wanted.push(Wanted { node: node.clone(), group, refused });
            }
        }
    }
    for (group, names) in resting {
        let Some(backoff) = backoffs.get(group) else { continue };
        let nodes = hostlist::compress_sorted(&names);
        lines.push(format!("fail    {:>6}  {nodes}  group {group} rests until {}: {}", names.len(), backoff.until, backoff.code));
    }
    let (scale_by, strategy) = (settings.run.scale_by, settings.run.strategy);
    let groups: BTreeMap<&str, &Group> = wanted.iter().map(|wish| (wish.group.name.as_str(), wish.group)).collect();
    let refused: BTreeSet<String> = wanted.iter().filter(|wish| wish.refused.is_some()).map(|wish| wish.node.clone()).collect();
    let round = Scaling::new(Request { nodes: wanted, jobs: None, scale_by, strategy }).next_round();
    let mut dragged: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (node, failure) in round.fail.into_iter().filter(|(node, _)| !refused.contains(node)) {
        dragged.entry(format!("{}: {}", failure.code, failure.sentence)).or_default().push(node);
    }
    for (why, nodes) in dragged {
        lines.push(format!("fail    {:>6}  {}  {why}", nodes.len(), hostlist::compress_sorted(&nodes)));
    }
    let versions = BTreeMap::new();
    let context = LaunchContext { cluster: &settings.cluster, state_id: "-", launch: "-", versions: &versions };
    for order in round.launch {
        let Some(group) = groups.get(order.group.as_str()) else { continue };
        let ask = Ask { group, recipe: &group.recipe, strategy: order.strategy, names_node: false };
        let batch = batch(ask, order.nodes, &context, 0);
        lines.push(format!(
            "launch  {:>6}  {}  group {}: {} to {} instances, {}",
            batch.nodes.len(),
            hostlist::compress_sorted(&batch.nodes),
            group.name,
            batch.request.min_count(),
            batch.request.count,
            describe(&batch.request)
        ));
        for fallback in &group.fallbacks {
            let ask = Ask { group, recipe: fallback, strategy: order.strategy, names_node: false };
            let request = launch::batch(ask, Vec::new(), &context, 0).request;
            lines.push(format!("  else  {:>6}  {}", "", describe(&request)));
        }
    }
    if scale_by == ScaleBy::Job {
        lines.push(
            "note            units are the jobs of the resume file; without one, as here, the whole call is one unit".to_owned(),
        );
    }
    for (node, id) in running {
        lines.push(format!("look    {:>6}  {node}  mapped to {id}: left alone if it has registered, else replaced", 1));
    }
    if !launching.is_empty() {
        let nodes = hostlist::compress_sorted(&launching);
        lines.push(format!("wait    {:>6}  {nodes}  claimed by another run; launched if that run is dead", launching.len()));
    }
    for (why, names) in unknown {
        lines.push(format!("fail    {:>6}  {}  {why}", names.len(), hostlist::compress_sorted(&names)));
    }
    lines
}

fn plan_release(mapping: &Mapping, nodes: &[String]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut unmapped = Vec::new();
    for node in nodes {
        match mapping.nodes.get(node) {
            Some(entry) => match &entry.instance_id {
                Some(id) => lines.push(format!("terminate  {node}  {id}")),
                None => lines.push(format!("cancel     {node}  its launch {}", entry.launch)),
            },
            None => unmapped.push(node),
        }
    }
    if !unmapped.is_empty() {
        lines.push(format!(
            "look       {}  not mapped: Slurm and EC2 would be asked for an instance",
            hostlist::compress_sorted(&unmapped)
        ));
    }
    for (id, condemned) in &mapping.condemned {
        lines.push(format!("terminate  {id}  left over: {}", condemned.why));
    }
    lines
}
