//! Everything off: partitions inactive, nodes powered down and with their own addresses, no instance of ours alive.
//!
//! In rounds, each from a fresh look, until a look finds nothing to do. Slurm is told first, so that jobs are requeued before their
//! machines go; where slurmctld does not answer the instances go all the same, for that is what costs money, and the nodes are told in a
//! later round or at the next try.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::crew::{Crew, Look};
use super::empty::{self, Emptied, Whose};
use crate::model::cluster::PartitionState;
use crate::model::hostlist;
use crate::model::instance::Instance;
use crate::model::node::SlurmNode;
use crate::plan::fleet_status::{Orders, for_stop};
use crate::plan::reasons;
use crate::programs::telling;
use crate::slurm::partitions::PartitionChange;

const REASON: &str = reasons::STOPPING;

/// Instances are known by their tags, nodes by the configuration alone.
const NOBODY_TOLD: &str = "the fleet is not stopped: its instances are terminated, but no node was told, for the configuration has no \
                           node; its warnings say why";

/// EC2 is asked for all instances at first, when all else is done, and so often in between.
const ASK_EVERY: Duration = Duration::from_secs(30);

/// What a round found and did.
#[derive(Default)]
struct Round {
    /// What could not be found out or done.
    trouble: Vec<String>,
    orders: Orders,
    /// Nodes of which Slurm said that they will not be changed.
    given_up: BTreeMap<String, String>,
    emptied: Emptied,
    /// Instances that EC2 showed; `None`: not asked in this round.
    alive: Option<usize>,
}

impl Round {
    fn is_last(&self) -> bool {
        self.trouble.is_empty() && self.is_quiet() && self.alive == Some(0)
    }

    /// Slurm's and the mapping's part is done.
    fn is_quiet(&self) -> bool {
        self.orders.is_settled() && self.emptied.freed == 0 && self.emptied.left.is_empty()
    }

    /// Nothing will change any more without a person: what keeps the stop from its end.
    fn is_stuck(&self, stuck: &BTreeSet<String>) -> bool {
        let nodes = self.orders.all_open().all(|node| self.given_up.contains_key(node));
        let instances = self.emptied.left.keys().all(|id| stuck.contains(id));
        let is_something_left = !self.orders.is_settled() || !self.emptied.left.is_empty();
        self.trouble.is_empty() && nodes && instances && is_something_left
    }

    /// For the log and the one who waits.
    fn what_is_left(&self) -> String {
        let mut parts = self.trouble.clone();
        let open: Vec<&String> = self.orders.all_open().collect();
        if let Some((node, text)) = self.given_up.iter().next() {
            parts.push(format!("{} nodes that slurmctld refuses to change, {node} first: {text}", self.given_up.len()));
        }
        if !open.is_empty() {
            parts.push(format!("{} nodes are not off: {}", open.len(), hostlist::compress_sorted(&open)));
        }
        if !self.emptied.left.is_empty() {
            let ids: Vec<String> = self.emptied.left.keys().cloned().collect();
            let why: BTreeSet<&str> = self.emptied.left.values().map(String::as_str).filter(|why| !why.is_empty()).collect();
            let why = why.into_iter().collect::<Vec<_>>().join(", ");
            parts.push(format!("{} instances are not terminated ({why}): {}", ids.len(), telling::list(&ids)));
        }
        if let Some(alive @ 1..) = self.alive {
            parts.push(format!("EC2 shows {alive} instances alive"));
        }
        parts.join("; ")
    }

    fn progress(&self) -> String {
        let alive = self.alive.map_or_else(String::new, |alive| format!(", {alive} instances alive"));
        format!("{} nodes not off yet{alive}", self.orders.all_open().count())
    }
}

pub(super) async fn stop(crew: &mut Crew<'_>) -> Result<(), String> {
    let mut asked: Option<Instant> = None;
    let mut quiet = false;
    let mut stuck = BTreeSet::new();
    let mut warned = false;
    loop {
        let ask = quiet || asked.is_none_or(|asked| asked.elapsed() >= ASK_EVERY);
        let round = round(crew, ask, &stuck, &mut warned).await;
        if ask {
            asked = Some(Instant::now());
        }
        if round.is_last() {
            return if crew.context.settings.groups.is_empty() { Err(NOBODY_TOLD.to_owned()) } else { Ok(()) };
        }
        crew.progress.say(round.progress());
        stuck.extend(round.emptied.left.iter().filter(|(_, why)| is_lasting(why)).map(|(id, _)| id.clone()));
        // Only EC2 has to be asked yet: at once.
        quiet = round.is_quiet();
        if quiet && round.alive.is_none() && round.trouble.is_empty() {
            continue;
        }
        if round.is_stuck(&stuck) || !crew.rest(round.orders.all_open().count()).await {
            return Err(format!("the fleet is not stopped: {}", round.what_is_left()));
        }
    }
}

/// Termination protection stays until a person takes it away; everything else may pass.
fn is_lasting(why: &str) -> bool {
    why.contains("protection")
}

async fn round(crew: &mut Crew<'_>, ask: bool, stuck: &BTreeSet<String>, warned: &mut bool) -> Round {
    let mut round = Round::default();
    match look(crew, &mut round.trouble).await {
        Ok(seen) => {
            if !std::mem::replace(warned, true) {
                warn_of_others(&seen, !crew.context.settings.clustermgtd.partitions.is_empty());
            }
            round.orders = for_stop(&seen.nodes);
            let mut orders = round.orders.clone();
            crew.hold_back(&mut orders);
            crew.take_off(&orders, REASON).await;
            round.given_up = crew.given_up(&round.orders);
            crew.bring_back(&orders).await;
        }
        Err(error) => round.trouble.push(error),
    }
    let strays = if ask { alive(crew, &mut round).await } else { Vec::new() };
    match empty::empty(crew.context, Whose::All, &strays, REASON, stuck).await {
        Ok(emptied) => {
            if emptied.freed + emptied.condemned > 0 {
                tracing::info!(
                    nodes = emptied.freed,
                    cancelled = emptied.cancelled,
                    condemned = emptied.condemned,
                    "nodes are freed, their instances go"
                );
            }
            round.emptied = emptied;
        }
        Err(error) => round.trouble.push(error),
    }
    round
}

/// The partitions first, so that no job starts on what is taken away; nodes are looked at again after that.
async fn look(crew: &mut Crew<'_>, trouble: &mut Vec<String>) -> Result<Look, String> {
    let seen = crew.look().await?;
    let problems = crew.set_partitions(&seen.partitions, PartitionChange::Inactive).await;
    let all_were_so = seen.partitions.iter().all(|partition| partition.state == PartitionState::Inactive);
    trouble.extend(problems);
    if all_were_so { Ok(seen) } else { crew.look().await }
}

/// The instances of ours that EC2 shows alive and that are not on their way out already.
async fn alive(crew: &Crew<'_>, round: &mut Round) -> Vec<Instance> {
    match empty::ours(crew.context).await {
        Ok(instances) => {
            round.alive = Some(instances.len());
            instances
        }
        Err(error) => {
            round.trouble.push(error);
            Vec::new()
        }
    }
}

/// Nodes of ours that jobs can still reach through a partition that holds others' nodes too.
fn warn_of_others(seen: &Look, named: bool) {
    let ours: BTreeSet<&String> = seen.partitions.iter().map(|partition| &partition.name).collect();
    let reached = |node: &&SlurmNode| node.partitions.iter().any(|partition| !ours.contains(partition));
    let nodes: Vec<&String> = seen.nodes.iter().filter(reached).map(|node| &node.name).collect();
    if !nodes.is_empty() {
        let why = if named { "is not among those that are looked after" } else { "holds nodes of no group too" };
        tracing::warn!(
            nodes = hostlist::compress_sorted(&nodes),
            "a partition of theirs {why} and stays as it is: jobs may start them again; name it in [clustermgtd] partitions to have it \
             stopped"
        );
    }
}
