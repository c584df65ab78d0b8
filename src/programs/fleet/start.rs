//! Everything ready for jobs: what a stop, or a failure before it, left on the nodes of inactive partitions is cleared away, then the
//! partitions start jobs again.
//!
//! Nodes first: a partition that is still inactive is what tells a start that is made again which nodes it has to look at. They get a
//! bounded time; what is not fit by then is clustermgtd's, and keeps no job from the other nodes. Where none runs, the start itself stays
//! for those that a person had drained and slurmctld has not begun to power down: they could be lost to a job later.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::crew::{Crew, Look};
use super::empty::{self, Whose};
use crate::clock;
use crate::error::chain;
use crate::model::hostlist;
use crate::model::instance::Instance;
use crate::model::node::SlurmNode;
use crate::plan::fleet_status::{Orders, Seen, for_start, is_inactive, is_left_by_a_stop};
use crate::plan::reasons;
use crate::slurm::partitions::PartitionChange;
use crate::store::daemon_lock;
use crate::store::failures::BootFailures;

const REASON: &str = reasons::INACTIVE;

/// How long nodes are worked at: a power-down takes two scans of slurmctld until it can be ended by a resume.
const NODES_LIMIT: Duration = Duration::from_secs(45);

pub(super) async fn start(crew: &mut Crew<'_>) -> Result<(), String> {
    let not_started = |why: String| format!("the fleet is not started: {why}");
    let begun = Instant::now();
    let left = loop {
        let (seen, orders) = round(crew).await.map_err(not_started)?;
        crew.progress.say(format!("{} nodes to be made ready", orders.all_open().count()));
        let given_up = crew.given_up(&orders);
        let is_over = orders.all_open().all(|node| given_up.contains_key(node)) || begun.elapsed() >= NODES_LIMIT;
        if is_over || !crew.rest(orders.all_open().count()).await {
            tell_of_others(&orders);
            count_anew(crew);
            let trouble = crew.set_partitions(&seen.partitions, PartitionChange::Up).await;
            if !trouble.is_empty() {
                return Err(not_started(trouble.join("; ")));
            }
            break orders;
        }
    };
    let open: Vec<&String> = left.all_open().collect();
    if !open.is_empty() {
        tracing::warn!(
            nodes = hostlist::compress_sorted(&open),
            count = open.len(),
            "these nodes could not be made ready in time; clustermgtd goes on with them"
        );
    }
    let upkeep = &crew.context.settings.clustermgtd.upkeep;
    if !upkeep.disabled && daemon_lock::clustermgtd_runs(crew.context.store.dir()) {
        return Ok(());
    }
    drain_the_rest(crew, left).await.map_err(not_started)
}

/// Stays until what a stop was to drain again is so. The partitions are up: no other node is looked at any more.
async fn drain_the_rest(crew: &mut Crew<'_>, mut orders: Orders) -> Result<(), String> {
    loop {
        let given_up = crew.given_up(&orders);
        let marked: Vec<&String> = orders.all_open().filter(|node| orders.reasons.contains_key(*node)).collect();
        if marked.is_empty() {
            return Ok(());
        }
        let nodes = hostlist::compress_sorted(&marked);
        let open = marked.iter().filter(|node| !given_up.contains_key(**node)).count();
        crew.progress.say(format!("{open} nodes to be drained again"));
        if open == 0 || !crew.rest(open).await {
            if crew.context.limits.stopping() {
                return Err(format!("ended before these nodes were drained again: {nodes}"));
            }
            tracing::warn!(
                nodes,
                "not drained again, as a person had them before the fleet was stopped: not powered down in time"
            );
            return Ok(());
        }
        orders = round(crew).await?.1;
    }
}

/// What failed before the start must not bring protected mode back. clustermgtd clears what it remembers itself when it sees that there was
/// a start, for a stop and a start may both fall between two of its passes. Before the partitions are up: what fails after that counts.
fn count_anew(crew: &Crew<'_>) {
    if let Err(error) = BootFailures::in_folder(crew.context.store.dir()).start_anew(clock::now()) {
        tracing::warn!("boot failures from before the start still count: {}", chain(&error));
    }
}

/// Nodes drained by people stay so.
fn tell_of_others(orders: &Orders) {
    if !orders.left.is_empty() {
        let nodes = hostlist::compress_sorted(&orders.left);
        tracing::info!(nodes, "left drained, for a reason of somebody's own");
    }
}

/// One look and its orders, given; the orders as they were before those that were given a moment ago were held back.
async fn round(crew: &mut Crew<'_>) -> Result<(Look, Orders), String> {
    let seen = crew.look().await?;
    // A slurmctld that was restarted has forgotten which partitions a stop had set inactive; it keeps the nodes' Reasons.
    let is_concerned = |node: &&SlurmNode| is_inactive(node, &seen.partitions) || is_left_by_a_stop(node);
    let concerned: Vec<&SlurmNode> = seen.nodes.iter().filter(is_concerned).collect();
    let backed = backed(crew, &concerned).await?;
    let nodes = concerned.iter().map(|node| Seen { node, is_backed: backed.contains(node.name.as_str()) });
    let all = for_start(nodes);
    let mut orders = all.clone();
    crew.hold_back(&mut orders);
    crew.take_off(&orders, REASON).await;
    let freed = orders.freed();
    if !freed.is_empty() {
        // Before they may start jobs: what stood behind them goes, and no old mapping meets the next launch.
        empty::empty(crew.context, Whose::Of(&freed), &[], REASON, &BTreeSet::new()).await?;
    }
    crew.bring_back(&orders).await;
    Ok((seen, all))
}

/// The nodes among these that have an instance or are getting one; those of which that is not known count too.
async fn backed<'n>(crew: &Crew<'_>, nodes: &[&'n SlurmNode]) -> Result<BTreeSet<&'n str>, String> {
    let awake: Vec<&&SlurmNode> = nodes.iter().filter(|node| !node.state.is_powered_down()).collect();
    if awake.is_empty() {
        return Ok(BTreeSet::new());
    }
    let context = crew.context;
    let instances = match empty::ours(context).await {
        Ok(instances) => instances,
        Err(error) => {
            tracing::warn!("nodes that are up are left alone: {error}");
            return Ok(nodes.iter().map(|node| node.name.as_str()).collect());
        }
    };
    let mapping = context.store.read().map_err(|error| chain(&error))?;
    let usable = instances.iter().filter(|found| found.state.is_usable() && !mapping.condemned.contains_key(&found.id));
    let usable: Vec<&Instance> = usable.collect();
    let by_id: BTreeSet<&str> = usable.iter().map(|found| found.id.as_str()).collect();
    let by_ip: BTreeMap<&str, &str> =
        usable.iter().filter_map(|found| Some((found.private_ip.as_deref()?, found.id.as_str()))).collect();
    let is_backed = |node: &&&SlurmNode| {
        mapping.nodes.contains_key(&node.name)
            || node.instance_id.as_deref().is_some_and(|id| by_id.contains(id))
            || by_ip.contains_key(node.addr.as_str())
    };
    Ok(awake.into_iter().filter(is_backed).map(|node| node.name.as_str()).collect())
}
