//! What starts and stops share: a look at Slurm, orders told to it, and progress told to people.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::time::{Duration, Instant};

use crate::config::settings::Settings;
use crate::error::chain;
use crate::model::cluster::{Partition, PartitionState};
use crate::model::hostlist;
use crate::model::node::SlurmNode;
use crate::plan::fleet_status::{self, Orders, Transition, What};
use crate::programs::context::Context;
use crate::programs::{systemd, telling};
use crate::slurm::partitions::PartitionChange;
use crate::slurm::scontrol::{Applied, Error, Scontrol, telling};
use crate::slurm::update::{self, Call};

/// The longest that one look at Slurm may take; a slurmctld that restarts is back sooner.
const LOOK_LIMIT: Duration = Duration::from_secs(60);

/// An order is given again when it has had no effect for so long.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// A node whose orders were refused so often is given up.
const REFUSALS: u32 = 2;

/// The first pause between two rounds, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What Slurm shows of ours.
pub(super) struct Look {
    pub(super) nodes: Vec<SlurmNode>,
    /// Those that may be touched.
    pub(super) partitions: Vec<Partition>,
}

/// The nodes and partitions of ours as of now.
pub(super) async fn look(settings: &Settings, slurm: &Scontrol, end: Instant) -> Result<Look, Error> {
    let now = Instant::now();
    // Half of the time that is left at most: where slurmctld does not answer, instances go all the same.
    let until = now + LOOK_LIMIT.min(end.saturating_duration_since(now) / 2);
    let nodes = slurm.show_all_nodes(until).await?;
    let partitions = slurm.show_partitions(until).await?;
    let is_ours = |node: &SlurmNode| settings.group_of(&node.name).is_some();
    let named = &settings.clustermgtd.partitions;
    let ours = fleet_status::partitions(named, nodes.iter().map(|node| (node, is_ours(node))));
    Ok(Look {
        nodes: nodes.into_iter().filter(is_ours).collect(),
        partitions: partitions.into_iter().filter(|partition| ours.contains(&partition.name)).collect(),
    })
}

/// One transition at work.
pub(super) struct Crew<'a> {
    pub(super) context: &'a Context,
    pub(super) progress: Progress,
    /// When each node was last told what.
    told: BTreeMap<(String, What), Instant>,
    /// How often each node's orders were refused, and slurmctld's last words.
    refused: BTreeMap<String, (u32, String)>,
    /// Why the last look failed.
    unseen: Option<Error>,
    pause: Duration,
    /// Nodes that were open when the last round ended.
    open: usize,
}

impl<'a> Crew<'a> {
    pub(super) fn new(context: &'a Context, transition: Transition, shows_progress: bool) -> Self {
        let progress = Progress { transition, shows: shows_progress, said: String::new(), logged: Instant::now() };
        let (told, refused) = (BTreeMap::new(), BTreeMap::new());
        Self { context, progress, told, refused, unseen: None, pause: FIRST_PAUSE, open: 0 }
    }

    /// The nodes and partitions of ours as of now. The looks become short as the end comes near: one that it cuts short says less than
    /// the one before it.
    pub(super) async fn look(&mut self) -> Result<Look, String> {
        let context = self.context;
        let is_cut = context.limits.left() / 2 < LOOK_LIMIT;
        let earlier = self.unseen.take();
        look(&context.settings, &context.slurm, context.limits.end).await.map_err(|error| {
            let error = telling(error, earlier, is_cut);
            let text = chain(&error);
            self.unseen = Some(error);
            text
        })
    }

    /// Sets the partitions that are not so; what went wrong.
    pub(super) async fn set_partitions(&self, partitions: &[Partition], change: PartitionChange) -> Vec<String> {
        let is_due = |partition: &&Partition| match change {
            PartitionChange::Up => partition.state == PartitionState::Inactive,
            PartitionChange::Inactive => partition.state != PartitionState::Inactive,
        };
        let mut trouble = Vec::new();
        for partition in partitions.iter().filter(is_due) {
            let until = self.context.limits.end.min(Instant::now() + LOOK_LIMIT);
            match self.context.slurm.set_partition(&partition.name, change, until).await {
                Ok(()) => {
                    let state = if change == PartitionChange::Up { "UP" } else { "INACTIVE" };
                    tracing::info!(partition = partition.name, "partition is now {state}");
                }
                Err(error) => trouble.push(format!("partition {}: {}", partition.name, chain(&error))),
            }
        }
        trouble
    }

    /// Of the orders, those that are worth giving now.
    pub(super) fn hold_back(&self, orders: &mut Orders) {
        let is_fresh =
            |node: &str, what| self.told.get(&(node.to_owned(), what)).is_some_and(|told| told.elapsed() < AGAIN_AFTER);
        orders.hold_back(is_fresh);
    }

    /// The orders that take nodes away from what they do: before their instances go.
    pub(super) async fn take_off(&mut self, orders: &Orders, reason: &str) {
        let per_call = self.context.settings.slurm.nodes_per_call;
        if !orders.down.is_empty() || !orders.force.is_empty() {
            let version = telling::version(self.context).await;
            // All of them before the first: one node's update requeues a job that waits for others too (docs/slurm-notes.md).
            let nodes: Vec<String> = orders.down.iter().chain(&orders.force).cloned().collect();
            self.context.apply(update::dummy_address_args(&nodes, &version, per_call)).await;
            let groups = orders.by_reason(&orders.force).into_iter();
            let calls =
                groups.flat_map(|(own, nodes)| update::power_down_force_at_once_args(&nodes, own.unwrap_or(reason), per_call));
            self.tell(calls.collect(), What::Force).await;
        }
        let groups = orders.by_reason(&orders.down).into_iter();
        let calls = groups.flat_map(|(own, nodes)| update::down_args(&nodes, own.unwrap_or(reason), None, per_call));
        let down = self.tell(calls.collect(), What::Down).await;
        // With the Reason that they have got.
        let mut calls = update::power_down_args(&down, None, per_call);
        for (own, nodes) in orders.by_reason(&orders.power_down) {
            calls.extend(update::power_down_args(&nodes, own, per_call));
        }
        self.tell(calls, What::PowerDown).await;
    }

    /// The orders that make nodes fit again, or drain them as they were: after their instances were condemned.
    pub(super) async fn bring_back(&mut self, orders: &Orders) {
        let per_call = self.context.settings.slurm.nodes_per_call;
        let groups = orders.by_reason(&orders.drain).into_iter();
        let calls = groups.filter_map(|(said, nodes)| Some(update::drain_args(&nodes, said?, per_call))).flatten();
        let drained = self.tell(calls.collect(), What::Drain).await;
        if !drained.is_empty() {
            let nodes = hostlist::compress_sorted(&drained);
            tracing::info!(nodes, "drained again, with the reason that a person gave before the fleet was stopped");
        }
        self.tell(update::resume_args(&orders.resume, per_call), What::Resume).await;
        // Of a node that is not drained yet this would take the Reason away (docs/slurm-notes.md).
        let own: Vec<String> = orders.resume.iter().chain(&orders.reset).chain(&drained).cloned().collect();
        self.tell(update::own_address_args(&own, per_call), What::Reset).await;
    }

    /// Tells Slurm, and remembers what came of it; the nodes that were told.
    async fn tell(&mut self, calls: Vec<Call>, what: What) -> Vec<String> {
        if calls.is_empty() {
            return Vec::new();
        }
        let Applied { done, refused, unknown, why_unknown } = self.context.apply(calls).await;
        let now = Instant::now();
        for (node, text) in refused {
            let entry = self.refused.entry(node.clone()).or_default();
            *entry = (entry.0 + 1, text);
            if entry.0 == 1 {
                tracing::warn!(node, "slurmctld refuses its {}: {}", what.name(), entry.1);
            }
            self.told.insert((node, what), now);
        }
        if !unknown.is_empty() {
            let why = why_unknown.map_or_else(|| "no time was left".to_owned(), |error| chain(&error));
            let nodes = hostlist::compress_sorted(&unknown);
            tracing::warn!(nodes, "slurmctld did not take the {} in time, to be repeated: {why}", what.name());
        }
        for node in &done {
            self.told.insert((node.clone(), what), now);
        }
        done
    }

    /// Nodes that Slurm refuses to change, among these, with its words.
    pub(super) fn given_up(&self, orders: &Orders) -> BTreeMap<String, String> {
        let open: BTreeSet<&String> = orders.all_open().collect();
        let given_up = self.refused.iter().filter(|(node, (times, _))| *times >= REFUSALS && open.contains(node));
        given_up.map(|(node, (_, text))| (node.clone(), text.clone())).collect()
    }

    /// Until the next round, sooner when the number of `open` nodes has changed since the last; false when there is no time for one.
    pub(super) async fn rest(&mut self, open: usize) -> bool {
        if std::mem::replace(&mut self.open, open) != open {
            self.pause = FIRST_PAUSE;
        }
        let limits = &self.context.limits;
        if limits.stopping() || limits.left() <= self.pause {
            return false;
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        true
    }
}

/// How far it is, for whoever watches.
pub(super) struct Progress {
    transition: Transition,
    shows: bool,
    said: String,
    logged: Instant,
}

/// Between two lines about progress in the log.
const LOG_EVERY: Duration = Duration::from_secs(15);

impl Progress {
    /// Says it where it has changed.
    pub(super) fn say(&mut self, text: String) {
        if text == self.said {
            return;
        }
        let line = format!("{} the fleet: {text}", self.transition.doing());
        systemd::status(&line);
        if self.shows {
            let _ = writeln!(std::io::stderr(), "{line}");
        }
        if self.said.is_empty() || self.logged.elapsed() >= LOG_EVERY {
            tracing::info!("{line}");
            self.logged = Instant::now();
        }
        self.said = text;
    }

    pub(super) fn end(&self) {
        systemd::status("waiting for requests");
    }
}
