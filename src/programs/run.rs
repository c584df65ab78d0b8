//! A resume after its claims: everything that goes on at the same time (launches, updates of Slurm, terminations), each batch
//! committed as it completes, until nothing is under way any more.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::commit::{Committed, Writer};
use super::context::Context;
use super::decision::{Decision, OrderId};
use super::launching::{End, Launcher, Outcome, Work, cannot_record, time_is_up};
use super::publishing::{self, Published};
use super::recovery;
use super::release::{self, Released};
use super::resume::PROGRAM;
use super::telling::{self, Failed, Jobs};
use crate::clock;
use crate::config::settings::NodeAddress;
use crate::error::chain;
use crate::model::failure::Failure;
use crate::model::hostlist;
use crate::model::instance::Instance;
use crate::model::mapping::{Mapping, NodeState};
use crate::model::policy::ScaleBy;
use crate::plan::launch::Ask;
use crate::plan::scaling::{Order, Request, Round, Scaling, Wanted};

enum Event {
    Launched(Box<Outcome>),
    Published(Vec<(String, Instance)>, Published),
    Told(Vec<String>),
    Released(Released),
}

/// What the next locked write brings into the mapping.
#[derive(Default)]
struct Unwritten {
    /// By the place of their decision.
    rounds: Vec<(usize, Round)>,
    /// Batches that stand for themselves.
    alone: Vec<Outcome>,
    /// Nodes of which somebody who must know them did not want to hear.
    refused: Vec<(String, Instance, Failure)>,
    /// Claims that nothing is launched for.
    failed: Vec<(String, Failure)>,
}

impl Unwritten {
    fn is_empty(&self) -> bool {
        self.rounds.is_empty() && self.alone.is_empty() && self.refused.is_empty() && self.failed.is_empty()
    }
}

/// Tries of a write that the run's end still waits for, and the pause between them.
const LAST_TRIES: usize = 5;
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// The run after the claims: everything that happens at the same time, and what came of it.
pub(super) struct Run {
    pub(super) context: Arc<Context>,
    pub(super) jobs: Arc<Jobs>,
    launcher: Option<Arc<Launcher>>,
    decisions: Vec<Decision>,
    /// Decided, and not in the mapping yet.
    unwritten: Unwritten,
    tasks: JoinSet<Event>,
    releasing: bool,
    tried: BTreeSet<String>,
    pub(super) backed: Vec<(String, String)>,
    pub(super) failed: Vec<Failed>,
    pub(super) left: Vec<(String, &'static str)>,
    pub(super) untold: Vec<String>,
    pub(super) unreleased: Vec<(String, String)>,
    /// Everything this run began is accounted for: its record may go.
    pub(super) certain: bool,
    /// A given-up client token may have launched something: the record stays, though nothing is open.
    look_again: bool,
    launching: usize,
    pub(super) launched_after: Duration,
    pub(super) published_after: Duration,
}

impl Run {
    pub(super) fn new(context: Arc<Context>, jobs: Arc<Jobs>, left: Vec<(String, &'static str)>) -> Self {
        for (node, why) in &left {
            tracing::info!(node, "left alone: {why}");
        }
        Self {
            context,
            jobs,
            launcher: None,
            decisions: Vec::new(),
            unwritten: Unwritten::default(),
            tasks: JoinSet::new(),
            releasing: false,
            tried: BTreeSet::new(),
            backed: Vec::new(),
            failed: Vec::new(),
            left,
            untold: Vec::new(),
            unreleased: Vec::new(),
            certain: true,
            look_again: false,
            launching: 0,
            launched_after: Duration::ZERO,
            published_after: Duration::ZERO,
        }
    }

    pub(super) fn launch(&mut self, launcher: Arc<Launcher>, work: Vec<Work>, decisions: Vec<Decision>) -> Arc<Launcher> {
        self.launcher = Some(Arc::clone(&launcher));
        self.decisions = decisions;
        for work in work {
            self.spawn(work);
        }
        launcher
    }

    fn spawn(&mut self, work: Work) {
        let Some(launcher) = self.launcher.clone() else { return };
        self.launching += work.batch.nodes.len();
        self.tasks.spawn(async move { Event::Launched(Box::new(launcher.launch(work).await)) });
    }

    pub(super) async fn reboot(&mut self, reboot: Vec<(String, String)>) {
        if reboot.is_empty() {
            return;
        }
        let ids: Vec<String> = reboot.iter().map(|(_, id)| id.clone()).collect();
        match self.context.ask("RebootInstances", self.context.ec2.reboot(&ids)).await {
            Ok(()) => {
                for (node, id) in reboot {
                    tracing::info!(node, instance = id, "rebooted: it had registered before, Slurm lets it in after a new boot");
                    self.backed.push((node, id));
                }
            }
            Err(error) => {
                let failure = error.to_failure("rebooting the instance behind the node");
                let now = clock::now();
                let result = self.context.store.update(self.context.lock_wait(), |mapping| {
                    for (node, id) in &reboot {
                        if mapping.nodes.get(node).is_some_and(|entry| entry.instance_id.as_ref() == Some(id)) {
                            recovery::take_down(mapping, node, now, "it could not be rebooted");
                        }
                    }
                });
                if let Err(error) = result {
                    tracing::error!("the mapping cannot be written: {}", chain(&error));
                }
                let failed = reboot.into_iter().map(|(node, _)| {
                    let group = self.context.settings.group_of(&node).map(|group| group.name.clone());
                    Failed { node, group, failure: failure.clone() }
                });
                let failed: Vec<_> = failed.collect();
                self.fail(failed);
            }
        }
    }

    pub(super) fn publish(&mut self, pairs: Vec<(String, Instance)>) {
        if pairs.is_empty() {
            return;
        }
        let context = Arc::clone(&self.context);
        self.tasks.spawn(async move {
            let published = publishing::publish(&context, &pairs).await;
            Event::Published(pairs, published)
        });
    }

    pub(super) fn fail(&mut self, failed: Vec<Failed>) {
        if failed.is_empty() {
            return;
        }
        self.failed.extend(failed.iter().cloned());
        let (context, jobs) = (Arc::clone(&self.context), Arc::clone(&self.jobs));
        self.tasks.spawn(async move { Event::Told(telling::tell_failed(&context, &failed, &jobs).await) });
    }

    /// Terminates what is condemned by now; one such task at a time.
    pub(super) fn release(&mut self) {
        if self.releasing {
            return;
        }
        self.releasing = true;
        let (context, tried) = (Arc::clone(&self.context), self.tried.clone());
        self.tasks.spawn(async move { Event::Released(release::release(&context, &tried).await) });
    }

    /// Until nothing is under way any more.
    pub(super) async fn drive(&mut self) {
        self.until_quiet().await;
        for _ in 0..LAST_TRIES {
            if self.unwritten.is_empty() || self.context.limits.left() < 2 * LAST_PAUSE || self.context.limits.stopping() {
                break;
            }
            tokio::time::sleep(LAST_PAUSE).await;
            self.write();
            self.until_quiet().await;
        }
        self.certain &= self.unwritten.is_empty();
        if self.context.interactive {
            let _ = std::io::stderr().write_all(b"\r\x1b[K");
        }
    }

    async fn until_quiet(&mut self) {
        let mut progress = tokio::time::interval(Duration::from_millis(500));
        loop {
            let event = tokio::select! {
                event = self.tasks.join_next() => event,
                _ = progress.tick(), if self.context.interactive => {
                    self.show_progress();
                    continue;
                }
            };
            let Some(event) = event else { return };
            let mut events = vec![event];
            while let Some(event) = self.tasks.try_join_next() {
                events.push(event);
            }
            let mut outcomes = Vec::new();
            for event in events {
                match event {
                    Ok(Event::Launched(outcome)) => outcomes.push(*outcome),
                    Ok(Event::Published(pairs, published)) => self.published(&pairs, &published),
                    Ok(Event::Told(untold)) => {
                        // The record stays: the next resume finds the nodes still waiting, and tells or launches.
                        self.certain &= untold.is_empty();
                        self.untold.extend(untold);
                    }
                    Ok(Event::Released(released)) => self.released(released),
                    Err(error) => {
                        tracing::error!("a part of the run ended abnormally, the next program finishes it: {error}");
                        self.certain = false;
                    }
                }
            }
            if !outcomes.is_empty() {
                self.launched_after = self.context.begun_at.elapsed();
                self.answered(outcomes);
            }
            self.write();
        }
    }

    fn show_progress(&self) {
        let line = format!(
            "\r\x1b[K{}: {} launching, {} up, {} failed, {} s",
            PROGRAM,
            self.launching,
            self.backed.len(),
            self.failed.len(),
            self.context.begun_at.elapsed().as_secs()
        );
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    /// Batches that ended: what the decisions make of them, and the launches that follow.
    fn answered(&mut self, outcomes: Vec<Outcome>) {
        let now = clock::now();
        let mut touched = BTreeSet::new();
        for outcome in outcomes {
            self.launching = self.launching.saturating_sub(outcome.work.batch.nodes.len());
            self.certain &= !matches!(outcome.end, End::Unknown(_));
            self.look_again |= outcome.unsure;
            match outcome.work.order {
                Some(OrderId { decision, order }) if decision < self.decisions.len() => {
                    self.decisions[decision].record(order, outcome, now);
                    touched.insert(decision);
                }
                _ => self.unwritten.alone.push(outcome),
            }
        }
        if self.context.settings.run.scale_by != ScaleBy::Batch && !touched.is_empty() {
            // A unit does not wait for nodes that were suspended meanwhile, nor take instances for them.
            if let Ok(mapping) = self.context.store.read() {
                let ours = |mapping: &Mapping, node: &str| {
                    mapping
                        .nodes
                        .get(node)
                        .is_some_and(|entry| entry.state == NodeState::Launching && entry.launch == self.context.launch)
                };
                for decision in &touched {
                    self.decisions[*decision].let_go(&mapping, ours);
                }
            }
        }
        for decision in touched {
            self.decide(decision);
        }
    }

    /// What a decision says now: its further orders go out, the rest is to be written.
    fn decide(&mut self, place: usize) {
        let mut next = Vec::new();
        let (context, launcher) = (Arc::clone(&self.context), self.launcher.clone());
        let send = |order: &Order| {
            let work = further(&context, launcher.as_deref(), order)?;
            next.push(Work { order: Some(OrderId { decision: place, order: order.id }), ..work });
            Ok(())
        };
        let round = self.decisions[place].decide(send, time_is_up());
        if !round.is_empty() {
            self.unwritten.rounds.push((place, round));
        }
        for work in next {
            self.spawn(work);
        }
    }

    /// One locked write of everything that has been decided, compare and set; then Slurm, and launches anew. What cannot be written
    /// stays for the next try.
    fn write(&mut self) {
        if self.unwritten.is_empty() {
            return;
        }
        let context = Arc::clone(&self.context);
        let writer = Writer { launch: &context.launch, now: clock::now(), may_launch: context.limits.may_launch() };
        let (unwritten, decisions) = (&self.unwritten, &self.decisions);
        let result = context.store.update(context.lock_wait(), |mapping| {
            let mut step = Committed::default();
            for (place, round) in &unwritten.rounds {
                writer.commit_round(mapping, round, &decisions[*place].ended, &mut step);
            }
            for outcome in &unwritten.alone {
                writer.commit_one(mapping, outcome, &mut step);
            }
            for (node, instance, failure) in &unwritten.refused {
                writer.take_back(mapping, node, instance, failure, &mut step);
            }
            for (node, failure) in &unwritten.failed {
                writer.fail(mapping, node, None, failure, &mut step);
            }
            step
        });
        match result {
            Ok(step) => {
                self.unwritten = Unwritten::default();
                self.written(step);
            }
            Err(error) => tracing::error!(
                "the mapping cannot be written, to be tried again; what this run does not get to is left to the next program: {}",
                chain(&error)
            ),
        }
    }

    fn written(&mut self, step: Committed) {
        for (batch, nodes) in step.again {
            tracing::info!(
                nodes = hostlist::compress_sorted(&nodes),
                "what was launched cannot serve these nodes: launching anew"
            );
            let renewed = self.launcher.as_ref().map(|launcher| launcher.renew(&batch, nodes.clone()));
            match renewed {
                Some(Ok(work)) => self.spawn(work),
                Some(Err(error)) => {
                    let failure = cannot_record(&error);
                    self.unwritten.failed.extend(nodes.into_iter().map(|node| (node, failure.clone())));
                }
                None => self.certain = false,
            }
        }
        if !step.units_again.is_empty() {
            self.launch_units_again(step.units_again);
        }
        for (node, why) in &step.lost {
            tracing::info!(node, "its instance is not needed any more: {why}");
        }
        self.publish(step.publish);
        self.fail(step.failed);
        if step.condemned {
            self.release();
        }
    }

    /// Slurm asked for these nodes again after their instances were launched: a decision of their own, by their jobs as before.
    fn launch_units_again(&mut self, nodes: Vec<String>) {
        tracing::info!(nodes = hostlist::compress_sorted(&nodes), "what was launched cannot serve these nodes: launching anew");
        let context = Arc::clone(&self.context);
        let wanted = nodes
            .iter()
            .filter_map(|node| Some(Wanted { node: node.clone(), group: context.settings.group_of(node)?, refused: None }));
        let scaling = Scaling::new(Request {
            nodes: wanted.collect(),
            jobs: self.jobs.units().map(<[_]>::to_vec),
            scale_by: context.settings.run.scale_by,
            strategy: context.settings.run.strategy,
        });
        self.decisions.push(Decision::new(scaling, nodes.into_iter().collect(), 0));
        self.decide(self.decisions.len() - 1);
        self.write();
    }

    fn published(&mut self, pairs: &[(String, Instance)], published: &Published) {
        self.published_after = self.context.begun_at.elapsed();
        let refused: BTreeMap<&String, &Failure> = published.refused.iter().map(|(node, failure)| (node, failure)).collect();
        let unknown: BTreeSet<&String> = published.unknown.iter().collect();
        for (node, instance) in pairs {
            if unknown.contains(node) {
                tracing::error!(
                    node,
                    instance = instance.id,
                    "not told in time; the next program tells its address: {}",
                    published.why_unknown.as_deref().unwrap_or("no time was left")
                );
                self.untold.push(node.clone());
            }
            if !refused.contains_key(node) {
                self.backed.push((node.clone(), instance.id.clone()));
            }
        }
        let done: Vec<&String> =
            pairs.iter().map(|(node, _)| node).filter(|node| !refused.contains_key(node) && !unknown.contains(node)).collect();
        if !done.is_empty() {
            let told = match self.context.settings.slurm.node_address {
                NodeAddress::None => "backed by instances (node_address = none: slurmctld is not told)",
                _ => "backed by instances, slurmctld knows",
            };
            tracing::info!(nodes = hostlist::compress_sorted(&done), count = done.len(), "{told}");
        }
        for (node, instance) in pairs {
            tracing::debug!(node, instance = instance.id, ip = instance.private_ip, "assigned");
        }
        // Who is not told would wait for ever: the instances of these nodes go in this same run.
        for (node, instance) in pairs {
            if let Some(failure) = refused.get(node).copied() {
                self.unwritten.refused.push((node.clone(), instance.clone(), failure.clone()));
            }
        }
    }

    fn released(&mut self, released: Released) {
        self.releasing = false;
        self.tried.extend(released.gone);
        self.tried.extend(released.left.iter().map(|(id, _)| id.clone()));
        self.unreleased.extend(released.left);
        let more = match self.context.store.read() {
            Ok(mapping) => mapping.condemned.keys().any(|id| !self.tried.contains(id)),
            Err(_) => false,
        };
        if more && !self.context.limits.left().is_zero() {
            self.release();
        }
    }

    /// Nothing is open any more: the record goes. Else it stays, and the next program looks after what is open.
    pub(super) fn end_record(&mut self, launcher: Arc<Launcher>) {
        self.launcher = None;
        let Some(launcher) = Arc::into_inner(launcher) else { return };
        if self.certain && self.look_again {
            tracing::info!("the launch record stays: the next programs look whether a given-up client token launched anything");
            return;
        }
        if !self.certain {
            tracing::warn!("the launch record stays: the next program looks for instances whose launch was not answered");
            return;
        }
        if let Err(error) = launcher.record.finish() {
            tracing::warn!("the launch record cannot be removed, the next program does it: {}", chain(&error));
        }
    }
}

/// A further order of a run, recorded before anything is sent.
fn further(context: &Context, launcher: Option<&Launcher>, order: &Order) -> Result<Work, Failure> {
    let group = context.settings.groups.iter().find(|group| group.name == order.group);
    let (Some(launcher), Some(group), true) = (launcher, group, context.limits.may_launch()) else {
        return Err(time_is_up());
    };
    let ask = Ask { group, recipe: &group.recipe, strategy: order.strategy, names_node: false };
    launcher.add(ask, order.nodes.clone()).map_err(|error| cannot_record(&error))
}
