//! The jobs of a failed launch, at the run's end: those that other nodes would take need not wait Slurm's two minutes.
//!
//! Jobs in, `scontrol update jobid=… starttime=now` for some of them out. Only with `[launch] requeue_now`. Which ones is decided in
//! `plan/requeue.rs`; here slurmctld is asked, again for a moment, since it requeues a job a little after it was told of the failure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::context::Context;
use super::telling::list;
use crate::clock;
use crate::error::chain;
use crate::model::hostlist;
use crate::model::node::{Base, SlurmNode};
use crate::plan::requeue::{Candidate, Verdict, Waiting, judge};
use crate::slurm::jobs::SlurmJob;

/// How long a job is waited for that Slurm has not requeued yet, and the pause between two looks. Slurm needs a moment; a slurmctld that
/// has to wait for a processor, or is in the middle of saving, some seconds.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(250);

/// Everything here together; a slurmctld that is slow is not loaded further.
const LONGEST: Duration = Duration::from_secs(20);

/// Jobs looked at in one run: each is two runs of scontrol (some 10 ms each) or more. The others wait as Slurm has it.
const MOST_JOBS: usize = 200;

/// Lets those of `jobs` (each with at least one node whose launch failed) start that can go to nodes outside resting groups.
///
/// `failed` are the groups whose launches failed in this run, whether they rest or not.
pub(crate) async fn requeue_now(context: &Context, jobs: &[u64], failed: &BTreeSet<&str>) {
    if !context.settings.run.requeue_now || jobs.is_empty() {
        return;
    }
    tokio::select! {
        biased;
        () = look(context, jobs, failed) => {}
        () = context.limits.stopped() => {}
    }
}

async fn look(context: &Context, jobs: &[u64], failed: &BTreeSet<&str>) {
    let deadline = context.limits.end.min(Instant::now() + LONGEST);
    let jobs: BTreeSet<u64> = jobs.iter().copied().collect();
    if jobs.len() > MOST_JOBS {
        tracing::info!(jobs = jobs.len(), "only the first {MOST_JOBS} jobs are looked at, the others wait as Slurm has it");
    }
    let Some((mut free, up)) = free_nodes(context, failed, deadline).await else { return };
    let patience = deadline.min(Instant::now() + PATIENCE);
    let mut waiting: Vec<u64> = jobs.into_iter().take(MOST_JOBS).collect();
    loop {
        let mut later = Vec::new();
        for id in waiting {
            let job = match context.slurm.show_job(id, deadline).await {
                Ok(Some(job)) => job,
                Ok(None) => continue,
                Err(error) => {
                    tracing::info!("jobs are left to Slurm's own wait: {}", chain(&error));
                    return;
                }
            };
            let wanted = match asked(&job, context.settings.hostlist_limit) {
                Ok(wanted) => wanted,
                Err(why) => {
                    tracing::info!(job = id, "left to Slurm's own wait: {why}");
                    continue;
                }
            };
            match judge(&wanted, context.begun.secs(), &up, &free) {
                Verdict::NotYet => later.push(id),
                Verdict::Leave(why) => tracing::info!(job = id, "left to Slurm's own wait: {why}"),
                Verdict::Lift(nodes) => {
                    if lift(context, &job, &nodes, deadline).await {
                        free.retain(|node| !nodes.contains(&node.name));
                    }
                }
            }
        }
        if later.is_empty() {
            return;
        }
        if Instant::now() + PAUSE >= patience {
            tracing::info!(jobs = list(&later), "Slurm has not requeued them yet; left to its own wait");
            return;
        }
        waiting = later;
        tokio::time::sleep(PAUSE).await;
    }
}

async fn lift(context: &Context, job: &SlurmJob, nodes: &[String], deadline: Instant) -> bool {
    let Some(name) = job.name() else { return false };
    match context.slurm.start_now(&name, deadline).await {
        Ok(()) => {
            tracing::info!(
                job = job.id,
                restarts = job.restarts,
                free = hostlist::compress_sorted(nodes),
                "may start now: these nodes are free and do not rest"
            );
            true
        }
        Err(error) => {
            tracing::warn!(job = job.id, "it waits for the time that Slurm has set: {}", chain(&error));
            false
        }
    }
}

/// The nodes that Slurm could give a job and that no resting group holds, and the partitions that start jobs. `None`: not known,
/// so nothing is changed.
async fn free_nodes(context: &Context, failed: &BTreeSet<&str>, deadline: Instant) -> Option<(Vec<Candidate>, BTreeSet<String>)> {
    let resting = match context.backoffs().active(clock::now()) {
        Ok(groups) => groups,
        Err(error) => {
            tracing::warn!("which groups rest cannot be read, jobs are left to Slurm's own wait: {}", chain(&error));
            return None;
        }
    };
    let asked = async {
        let nodes = context.slurm.show_all_nodes(deadline).await?;
        Ok::<_, crate::slurm::scontrol::Error>((nodes, context.slurm.partitions_up(deadline).await?))
    };
    let (nodes, up) = match asked.await {
        Ok(answers) => answers,
        Err(error) => {
            tracing::info!("jobs are left to Slurm's own wait: {}", chain(&error));
            return None;
        }
    };
    let rests: BTreeMap<&str, bool> = context
        .settings
        .groups
        .iter()
        .map(|group| (group.name.as_str(), resting.contains_key(&group.name) || failed.contains(group.name.as_str())))
        .collect();
    let free = nodes.into_iter().filter(|node| {
        let group = context.settings.group_of(&node.name);
        is_free(node, group.map(|group| rests.get(group.name.as_str()).copied().unwrap_or(false)))
    });
    Some((free.map(|node| Candidate { name: node.name, partitions: node.partitions, features: node.features }).collect(), up))
}

/// Could Slurm give a job this node now? `group_rests` is `None` for nodes that are not ours: those must be up.
fn is_free(node: &SlurmNode, group_rests: Option<bool>) -> bool {
    const TAKEN: [&str; 10] = [
        "DRAIN",
        "FAIL",
        "INVALID_REG",
        "MAINTENANCE",
        "POWER_DOWN",
        "POWERING_DOWN",
        "COMPLETING",
        "REBOOT_REQUESTED",
        "REBOOT_ISSUED",
        "BLOCKED",
    ];
    matches!(node.state.base, Base::Idle | Base::Mixed)
        && !TAKEN.iter().any(|flag| node.state.has(flag))
        && match group_rests {
            Some(rests) => !rests,
            None => !node.state.has("CLOUD") && !node.state.has("NOT_RESPONDING") && !node.state.is_powered_down(),
        }
}

/// A job in the words of the decision.
fn asked(job: &SlurmJob, limit: usize) -> Result<Waiting, String> {
    let names = |list: &Option<String>| match list {
        None => Ok(BTreeSet::new()),
        Some(text) => hostlist::expand(text, limit)
            .map(|expansion| expansion.names.into_iter().collect())
            .map_err(|error| format!("its list of nodes {text:?} cannot be read: {}", chain(&error))),
    };
    Ok(Waiting {
        state: job.state.clone(),
        reason: job.reason.clone(),
        restarts: job.restarts,
        submitted: job.submitted,
        eligible: job.eligible,
        partitions: job.partitions.clone(),
        node_count: job.node_count.unwrap_or(1),
        required: names(&job.required_nodes)?,
        excluded: names(&job.excluded_nodes)?,
        features: job.features.clone(),
        reservation: job.reservation.clone(),
        heterogeneous: job.heterogeneous || (job.in_array && job.array_task.is_none()),
    })
}
