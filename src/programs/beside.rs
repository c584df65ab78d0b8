//! Beside ParallelCluster's own clustermgtd: what its rules change in the ways of the programs (aws-facts B.11, B.16, D). Nothing here
//! happens where `settings.parallelcluster` is absent, except that a scontrol that is not there is found before anything is launched.
//!
//! That daemon brings failed nodes back, counts boot failures by seeing `DOWN+CLOUD+POWERED_DOWN` with an address, and may terminate the
//! same instances and reset the same addresses as we do at the same time; so nodes' states are left to it, and the addresses of those that
//! missed ResumeTimeout. Nodes that power down get theirs back from us: it takes an address without an instance for a failed node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::clustermgtd;
use super::context::Context;
use super::exit::Exit;
use super::recovery;
use super::survey;
use super::suspend::Freed;
use super::telling::{self, Failed};
use crate::clock;
use crate::config::settings::{NodeAddress, NodeIndex, ParallelCluster};
use crate::error::chain;
use crate::events::{self, Component, FailedNode, Source};
use crate::model::failure::Failure;
use crate::model::hostlist;
use crate::model::instance::Instance;
use crate::model::mapping::NodeState;
use crate::model::node::{SlurmNode, State};
use crate::plan::fleet_status::what_was_said;
use crate::plan::reasons::NOT_RESUMED;
use crate::slurm::update;
use crate::store::heartbeat;

/// What people know from the package's reasons and search for.
const RESUME_FAILED: &str = "Failure when resuming nodes - Check the slurm_resume log for EC2 error codes";

/// The longest a heartbeat is waited for: it is on NFS, which may hang for ever (R29).
const HEARTBEAT_WAIT: Duration = Duration::from_secs(10);

/// May this resume launch at all? `Err` = no; Slurm has been told what it could be told.
pub(super) async fn ready(context: &Context, nodes: &[String]) -> Result<(), Exit> {
    if context.settings.slurm.node_address != NodeAddress::None
        && let Err(error) = context.slurm.check()
    {
        // Instances would come up for nodes whose address nobody tells.
        tracing::error!(nodes = nodes.len(), "nothing launched, the nodes run into ResumeTimeout: {}", chain(&error));
        return Err(Exit::Config);
    }
    let Some(parallelcluster) = &context.settings.parallelcluster else { return Ok(()) };
    let Err(why) = fresh(context, parallelcluster).await else { return Ok(()) };
    tracing::error!(nodes = hostlist::compress_sorted(nodes), count = nodes.len(), "nothing launched: {why}");
    set_down(context, nodes).await;
    Err(Exit::TempFail)
}

/// Slurm's nodes without anybody who looks after them: down, so that nothing waits for ResumeTimeout.
async fn set_down(context: &Context, nodes: &[String]) {
    // A person may have called for nodes that run jobs: only those that wait are told.
    let Some(shown) = survey::show(context, nodes).await else {
        tracing::error!("slurmctld could not be told either; the nodes run into ResumeTimeout");
        return;
    };
    let waiting: Vec<String> =
        nodes.iter().filter(|node| shown.get(*node).is_none_or(|node| node.state.is_awaited())).cloned().collect();
    if waiting.is_empty() {
        return;
    }
    let applied = context.apply(update::down_args(&waiting, NOT_RESUMED, None, context.settings.slurm.nodes_per_call)).await;
    for (node, text) in &applied.refused {
        tracing::error!(node, "slurmctld refuses to set the node down: {text}");
    }
    if !applied.unknown.is_empty() {
        tracing::error!(
            nodes = hostlist::compress_sorted(&applied.unknown),
            "slurmctld did not take it in time; the nodes run into ResumeTimeout: {}",
            telling::why(&applied)
        );
    }
}

/// One warning when nobody looks after the cluster; a suspend goes on all the same (S05).
pub(super) async fn warn_if_stale(context: &Context) {
    if let Some(parallelcluster) = &context.settings.parallelcluster
        && let Err(why) = fresh(context, parallelcluster).await
    {
        tracing::warn!("{why}; terminating all the same");
    }
}

/// Does clustermgtd live? The error says how old its heartbeat is and which file was looked at.
async fn fresh(context: &Context, parallelcluster: &ParallelCluster) -> Result<(), String> {
    let ParallelCluster { heartbeat: path, heartbeat_timeout: limit, .. } = parallelcluster;
    let wait = HEARTBEAT_WAIT.min(context.limits.left() / 4);
    let reading = {
        let path = path.clone();
        tokio::task::spawn_blocking(move || heartbeat::read_heartbeat(&path))
    };
    let written = match tokio::time::timeout(wait, reading).await {
        Ok(Ok(Ok(written))) => written,
        Ok(Ok(Err(error))) => return Err(format!("clustermgtd may be down: {}", chain(&error))),
        Ok(Err(error)) => return Err(format!("clustermgtd may be down: reading {} failed: {error}", path.display())),
        Err(_) => {
            let wait = humantime::format_duration(Duration::from_secs(wait.as_secs()));
            return Err(format!("clustermgtd may be down: {} could not be read within {wait}", path.display()));
        }
    };
    let age = clock::now().since(written);
    if lives(age, *limit) {
        return Ok(());
    }
    Err(format!(
        "clustermgtd seems to be down: its heartbeat {} is {} old, it must be younger than {}",
        path.display(),
        humantime::format_duration(Duration::from_secs(age.as_secs())),
        humantime::format_duration(*limit)
    ))
}

/// At its limit a heartbeat is stale, as the package has it.
fn lives(age: Duration, limit: Duration) -> bool {
    age < limit
}

/// The `Reason` of a node whose launch failed: clustermgtd parses the code, people know the words; behind them our own sentence.
pub(super) fn reason(failure: &Failure, next: &str) -> String {
    Failure { sentence: format!("{RESUME_FAILED}: {}", failure.sentence), ..failure.clone() }.reason(next)
}

/// Writes the run's launch failures to `slurm_resume.events`, at its end.
pub(super) fn note_failures(context: &Context, failed: &[Failed]) {
    let settings = &context.settings;
    let Some(parallelcluster) = &settings.parallelcluster else { return };
    let nodes: Vec<FailedNode<'_>> = failed
        .iter()
        .map(|one| {
            let is_static = is_static(&settings.node_group, &one.node);
            FailedNode { name: &one.node, is_static, code: &one.failure.code }
        })
        .collect();
    // clustermgtd launches static nodes as slurm_resume does; its settings name its own file.
    let component = if context.program == clustermgtd::PROGRAM { Component::Clustermgtd } else { Component::Resume };
    let at = clock::now();
    let source = Source { component, cluster: &settings.cluster, instance_id: &parallelcluster.instance_id, at };
    let Some(path) = settings.log.events_path() else { return };
    if let Err(error) = events::append(&path, &events::launch_failures(&source, &nodes)) {
        tracing::warn!("events cannot be written to {}: {error}", path.display());
    }
}

fn is_static(index: &NodeIndex, node: &str) -> bool {
    match index {
        NodeIndex::Queues(queues) => queues.is_static(node),
        NodeIndex::Names(_) => crate::config::queues::readings(node).next_back().is_some_and(|reading| reading.is_static),
    }
}

/// What slurm_suspend was called for. ParallelCluster's slurm.conf names that program as ResumeFailProgram too, and nothing but the
/// nodes' states tells the two apart.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Called {
    /// Their instances go: all but `up`.
    pub(super) nodes: Vec<String>,
    /// Of these, those that did not register before ResumeTimeout.
    pub(super) timed_out: Vec<String>,
    /// Of these, those that power down or are down, for no failure.
    pub(super) going_down: Vec<String>,
    /// Up after all, though too late for ResumeTimeout: a job may run there.
    pub(super) up: Vec<String>,
    /// What Slurm said of all of them; absent where it was not asked or did not answer.
    pub(super) shown: Option<BTreeMap<String, SlurmNode>>,
}

/// Sorts what a suspend is called for; without ParallelCluster, or when slurmctld does not answer, all of it is to be suspended.
pub(super) async fn called(context: &Context, nodes: &[String]) -> Called {
    let all = || Called { nodes: nodes.to_vec(), ..Called::default() };
    if context.settings.parallelcluster.is_none() {
        return all();
    }
    let Some(shown) = survey::show(context, nodes).await else { return all() };
    let states: BTreeMap<&String, &State> = shown.iter().map(|(name, node)| (name, &node.state)).collect();
    let mut called = sort(nodes, &states);
    called.shown = Some(shown);
    if !called.timed_out.is_empty() {
        tracing::error!(
            nodes = hostlist::compress_sorted(&called.timed_out),
            count = called.timed_out.len(),
            "not registered before ResumeTimeout; clustermgtd brings the nodes back"
        );
    }
    if !called.up.is_empty() {
        tracing::warn!(
            nodes = hostlist::compress_sorted(&called.up),
            "up after all, left alone; to take a node down: scontrol update nodename=... state=power_down"
        );
    }
    called
}

fn sort(nodes: &[String], states: &BTreeMap<&String, &State>) -> Called {
    let mut called = Called::default();
    for node in nodes {
        let state = states.get(node);
        if state.is_some_and(|state| is_up(state)) {
            called.up.push(node.clone());
            continue;
        }
        if state.is_some_and(|state| has_timed_out(state)) {
            called.timed_out.push(node.clone());
        }
        if state.is_some_and(|state| goes_down(state)) {
            called.going_down.push(node.clone());
        }
        called.nodes.push(node.clone());
    }
    called
}

/// Registered, and nobody has asked to power it down. slurmctld marks nodes before it calls SuspendProgram for them.
pub(super) fn is_up(state: &State) -> bool {
    !state.is_down()
        && !state.is_powering_up()
        && !state.is_powered_down()
        && !state.is_powering_down()
        && !state.power_down_requested()
}

/// What ResumeTimeout leaves: `DOWN+CLOUD+POWERED_DOWN`, on 22.05 with NOT_RESPONDING (aws-facts B.15).
fn has_timed_out(state: &State) -> bool {
    state.is_down() && state.is_powered_down() && !state.is_powering_down() && !state.is_powering_up()
}

/// What SuspendProgram is called for; not what Slurm has asked for again since.
fn goes_down(state: &State) -> bool {
    !state.is_powering_up() && (state.is_powering_down() || state.is_powered_down() && !state.is_down())
}

/// The longest that terminations wait for slurmctld to take addresses back.
const ADDRESS_LIMIT: Duration = Duration::from_secs(5);

/// Takes back the addresses of nodes that go down, before their instances go: clustermgtd would take what is left for failed nodes, warn,
/// and power them down by force (aws-facts D.2). Returns the nodes of which Slurm may have been told.
///
/// Nodes that a newer resume has claimed meanwhile keep theirs; for the moment in between see [`claimed_since`].
pub(super) async fn take_addresses_back(context: &Context, called: &Called, freed: &Freed) -> Vec<String> {
    let Some(shown) = &called.shown else { return Vec::new() };
    // A run that was just committed may be telling its nodes' addresses now, so what Slurm shows is not all.
    let had: BTreeSet<&String> = freed.instances.iter().map(|was| &was.node).collect();
    let moved = |node: &&String| {
        had.contains(node) || shown.get(*node).is_some_and(|shown| shown.addr != shown.name || shown.hostname != shown.name)
    };
    // The stop of a fleet that drains a node again goes by the Reason, which this would take away (docs/slurm-notes.md); it resets the address.
    let is_stops = |node: &&String| shown.get(*node).is_some_and(|shown| what_was_said(shown.reason.as_deref()).is_some());
    let mut nodes: Vec<String> = called.going_down.iter().filter(|node| moved(node) && !is_stops(node)).cloned().collect();
    if nodes.is_empty() {
        return nodes;
    }
    match context.store.read() {
        Ok(mapping) => nodes.retain(|node| !mapping.nodes.contains_key(node)),
        Err(error) => {
            tracing::warn!("addresses are left to clustermgtd, the mapping cannot be read: {}", chain(&error));
            return Vec::new();
        }
    }
    let calls = update::own_address_args(&nodes, context.settings.slurm.nodes_per_call);
    let until = Instant::now() + ADDRESS_LIMIT.min(context.limits.left() / 4);
    let applied = tokio::select! {
        biased;
        applied = context.slurm.apply_all(calls, until) => applied,
        () = context.limits.stopped() => return nodes,
    };
    for (node, text) in &applied.refused {
        tracing::warn!(node, "slurmctld refuses to take its address back: {text}");
    }
    if !applied.unknown.is_empty() {
        tracing::warn!(
            nodes = hostlist::compress_sorted(&applied.unknown),
            "slurmctld did not take the addresses back in time, clustermgtd does it later: {}",
            telling::why(&applied)
        );
    }
    nodes
}

/// Of the nodes whose addresses were taken back, those that another run has tied to an instance since: Slurm may have heard that first, so
/// it is told again. A run that ties a node after this tells Slurm after it, too.
pub(super) fn claimed_since(context: &Context, taken: &[String]) -> Vec<(String, Instance)> {
    if taken.is_empty() {
        return Vec::new();
    }
    let Ok(mapping) = context.store.read() else { return Vec::new() };
    let entry = |node: &String| mapping.nodes.get(node).filter(|entry| entry.state == NodeState::Running);
    taken.iter().filter_map(|node| Some((node.clone(), recovery::as_instance(entry(node)?)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::failure::ErrorClass;

    #[test]
    fn the_reason_is_the_packages_with_our_sentence() {
        let failure = Failure {
            code: "VcpuLimitExceeded".to_owned(),
            class: ErrorClass::Quota,
            sentence: "the account may have 64 vCPUs".to_owned(),
            request_id: None,
        };
        assert_eq!(
            reason(&failure, ""),
            "(Code:VcpuLimitExceeded)Failure when resuming nodes - Check the slurm_resume log for EC2 error codes: the account may \
             have 64 vCPUs"
        );
        let long = Failure { sentence: "x".repeat(1000), ..failure };
        let reason = reason(&long, "");
        assert!(reason.starts_with("(Code:VcpuLimitExceeded)Failure when resuming") && reason.len() <= 300, "{reason}");
    }

    #[test]
    fn at_its_limit_a_heartbeat_is_stale() {
        let limit = Duration::from_secs(300);
        let ages = [0, 299_999, 300_000, 300_001].map(|millis| lives(Duration::from_millis(millis), limit));
        assert_eq!(ages, [true, true, false, false]);
    }

    /// Whether its instance goes, whether it timed out, whether its address is taken back.
    #[test]
    fn the_states_tell_a_suspend_from_a_timeout() {
        let states = [
            ("IDLE+CLOUD+POWERING_DOWN", (true, false, true)),
            ("DOWN+CLOUD+POWERING_DOWN", (true, false, true)),
            ("DOWN+CLOUD+POWERED_DOWN+POWERING_DOWN", (true, false, true)),
            ("IDLE+CLOUD+POWERED_DOWN", (true, false, true)),
            ("IDLE+CLOUD+NOT_RESPONDING+POWERING_UP", (true, false, false)),
            ("IDLE+CLOUD+POWERING_DOWN+POWERING_UP", (true, false, false)),
            ("DOWN+CLOUD+POWERED_DOWN", (true, true, false)),
            ("DOWN+CLOUD+NOT_RESPONDING+POWERED_DOWN", (true, true, false)),
            ("DOWN+CLOUD+DRAIN+POWERED_DOWN+RESERVED", (true, true, false)),
            ("IDLE+CLOUD", (false, false, false)),
            ("ALLOCATED+CLOUD+DRAIN", (false, false, false)),
            ("IDLE+CLOUD+POWER_DOWN", (true, false, false)),
        ];
        for (text, (goes, timed_out, down)) in states {
            let (name, state) = ("n".to_owned(), State::parse(text));
            let called = sort(std::slice::from_ref(&name), &BTreeMap::from([(&name, &state)]));
            let is = [&called.nodes, &called.timed_out, &called.going_down].map(|list| list.len() == 1);
            assert_eq!(is, [goes, timed_out, down], "{text}");
            assert_eq!(called.up.is_empty(), goes, "{text}");
        }
        // Slurm does not show it: to be suspended.
        let unknown = sort(&["x".to_owned()], &BTreeMap::new());
        assert_eq!(unknown.nodes, ["x"]);
    }
}
