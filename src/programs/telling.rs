//! What Slurm is told: addresses of nodes that got an instance, and failures of those that did not. Batched; after a failure is
//! told the run touches the node no more (suspend may already be at work on it).

use std::collections::BTreeMap;
use std::time::Duration;

use super::context::Context;
use super::{beside, survey};
use crate::clock;
use crate::config::queues::NotANode;
use crate::config::settings::{NodeIndex, Settings};
use crate::error::chain;
use crate::model::failure::{Backoff, Failure, codes};
use crate::model::hostlist;
use crate::slurm::scontrol::Applied;
use crate::slurm::update;
use crate::slurm::version::Version;

/// A node that is given up.
#[derive(Debug, Clone)]
pub(crate) struct Failed {
    pub(crate) node: String,
    /// `None` for a node outside every group.
    pub(crate) group: Option<String>,
    pub(crate) failure: Failure,
}

/// When scontrol does not tell its version, the oldest supported one is assumed: its updates work everywhere.
pub(super) const OLDEST: Version = Version { major: 22, minor: 5, patch: 0 };

pub(crate) async fn version(context: &Context) -> Version {
    context.slurm.version().await.unwrap_or_else(|error| {
        tracing::warn!("scontrol does not tell its version, going by the oldest supported: {}", chain(&error));
        OLDEST
    })
}

/// Why some nodes of an update are unknown, for the log.
pub(crate) fn why(applied: &Applied) -> String {
    applied.why_unknown.as_ref().map_or_else(|| "no time was left".to_owned(), |error| chain(error))
}

/// Tells Slurm that launches failed, one update per reason, and puts groups into back-off. Returns the nodes of which slurmctld
/// could not be told.
pub(crate) async fn tell_failed(context: &Context, failed: &[Failed], jobs: &Jobs) -> Vec<String> {
    let daemon = context.daemon_runs();
    let mut by_reason: BTreeMap<(Option<&str>, String), Vec<&Failed>> = BTreeMap::new();
    for one in failed {
        let next = next(context, one, daemon);
        let reason = match context.settings.parallelcluster {
            Some(_) => beside::reason(&one.failure, &next),
            None => one.failure.reason(&next),
        };
        by_reason.entry((one.group.as_deref(), reason)).or_default().push(one);
    }
    let version = version(context).await;
    let per_call = context.settings.slurm.nodes_per_call;
    if by_reason.len() > 1 && !daemon {
        // A job may wait for nodes that fail for different reasons: the first update requeues it.
        let nodes: Vec<String> = failed.iter().filter(|one| one.group.is_some()).map(|one| one.node.clone()).collect();
        context.apply(update::dummy_address_args(&nodes, &version, per_call)).await;
    }
    let mut untold = Vec::new();
    for ((group, reason), failed) in by_reason {
        let mut nodes: Vec<String> = failed.iter().map(|one| one.node.clone()).collect();
        let Some(first) = failed.first() else { continue };
        let failure = &first.failure;
        tracing::error!(
            group,
            code = failure.code,
            nodes = hostlist::compress_sorted(&nodes),
            count = nodes.len(),
            jobs = jobs.of(&nodes),
            request_id = failure.request_id,
            "launch failed: {}",
            failure.sentence
        );
        note_backoff(context, first, daemon);
        if first.group.is_none() {
            // Not our nodes: a person may have called for ones that run jobs.
            let shown = survey::show(context, &nodes).await.unwrap_or_default();
            nodes.retain(|node| shown.get(node).is_some_and(|node| node.state.is_awaited()));
            if nodes.is_empty() {
                continue;
            }
        }
        // A node outside every group stays down until a person has put that right: the next launch would fail alike.
        let calls = if daemon || first.group.is_none() {
            update::down_args(&nodes, &reason, None, per_call)
        } else {
            update::power_down_force_args(&nodes, &reason, &version, per_call)
        };
        let applied = context.apply(calls).await;
        for (node, text) in &applied.refused {
            tracing::error!(node, "slurmctld refuses to set the node down: {text}");
        }
        if !applied.unknown.is_empty() {
            tracing::error!(
                nodes = hostlist::compress_sorted(&applied.unknown),
                "slurmctld did not take the failure in time; the nodes run into ResumeTimeout: {}",
                why(&applied)
            );
            untold.extend(applied.unknown);
        }
    }
    untold
}

/// The end of the reason: what happens next.
fn next(context: &Context, failed: &Failed, daemon: bool) -> String {
    if failed.group.is_none() {
        return "tell the administrator".to_owned();
    }
    match backoff_time(context, failed) {
        Some(time) if !daemon => {
            format!("group {} rests {}", failed.group.as_deref().unwrap_or(""), humantime::format_duration(time))
        }
        _ => String::new(),
    }
}

fn backoff_time(context: &Context, failed: &Failed) -> Option<Duration> {
    let group = context.settings.groups.iter().find(|group| Some(&group.name) == failed.group.as_ref())?;
    let kind = failed.failure.class.backoff_kind()?;
    Some(group.launch.backoff.of(kind)).filter(|time| !time.is_zero())
}

fn note_backoff(context: &Context, failed: &Failed, daemon: bool) {
    // With a daemon the back-off is its work.
    if daemon {
        return;
    }
    let (Some(group), Some(kind), Some(time)) =
        (&failed.group, failed.failure.class.backoff_kind(), backoff_time(context, failed))
    else {
        return;
    };
    let backoff = Backoff {
        code: failed.failure.code.clone(),
        kind,
        sentence: failed.failure.sentence.clone(),
        until: clock::now() + time,
    };
    tracing::warn!(group, code = backoff.code, until = %backoff.until, "the group is left alone until then");
    if let Err(error) = context.backoffs().note(group, backoff, clock::now()) {
        tracing::warn!("the back-off cannot be kept, the next call tries again at once: {}", chain(&error));
    }
}

/// The failure of a node whose group is in back-off; of no class that earns one, or the rest would prolong itself.
pub(crate) fn backoff_failure(backoff: &Backoff) -> Failure {
    Failure {
        code: backoff.code.clone(),
        class: crate::model::failure::ErrorClass::Other,
        sentence: format!("{} (not tried again before {})", backoff.sentence, backoff.until),
        request_id: None,
    }
}

/// The failure of a node that no group of the configuration names.
pub(crate) fn unknown_node(settings: &Settings, node: &str) -> Failure {
    let is_no_name = matches!(&settings.node_group, NodeIndex::Queues(queues) if queues.get(node) == Err(NotANode::Form));
    Failure {
        code: if is_no_name { codes::INVALID_NAME } else { codes::UNKNOWN_NODE }.to_owned(),
        class: crate::model::failure::ErrorClass::Configuration,
        sentence: settings.why_not(node),
        request_id: None,
    }
}

/// Which jobs wait for which node: for the log.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    by_node: BTreeMap<String, Vec<u64>>,
    /// Id and nodes of each, in the file's order.
    units: Vec<(u64, Vec<String>)>,
}

impl Jobs {
    /// Id and nodes of each job; `None` where the resume file tells of none.
    pub(crate) fn units(&self) -> Option<&[(u64, Vec<String>)]> {
        (!self.units.is_empty()).then_some(self.units.as_slice())
    }

    pub(crate) fn new(jobs: &[crate::model::resume_file::Job]) -> Self {
        let mut by_node: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for job in jobs {
            for node in &job.nodes {
                by_node.entry(node.clone()).or_default().push(job.id);
            }
        }
        Self { by_node, units: jobs.iter().map(|job| (job.id, job.nodes.clone())).collect() }
    }

    /// The jobs that wait for any of `nodes`: `17,18`, at most 50.
    pub(crate) fn of(&self, nodes: &[String]) -> String {
        list(&self.ids(nodes))
    }

    /// The jobs that wait for any of `nodes`, each once.
    pub(crate) fn ids<S: AsRef<str>>(&self, nodes: &[S]) -> Vec<u64> {
        let mut ids: Vec<u64> = nodes.iter().filter_map(|node| self.by_node.get(node.as_ref())).flatten().copied().collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

/// Job or instance ids for a log field, at most 50 of them.
pub(crate) fn list<T: std::fmt::Display>(ids: &[T]) -> String {
    const SHOWN: usize = 50;
    let mut text = ids.iter().take(SHOWN).map(T::to_string).collect::<Vec<_>>().join(",");
    if ids.len() > SHOWN {
        text.push_str(&format!(",... ({} in all)", ids.len()));
    }
    text
}
