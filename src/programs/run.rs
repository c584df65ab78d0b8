//! A resume after its claims: everything that goes on at the same time (launches, updates of Slurm, terminations), each batch
//! committed as it completes, until nothing is under way any more.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::commit::{Committed, Ended, Writer};
use super::context::Context;
use super::exit::Exit;
use super::launching::{End, Launcher, Outcome, Work, cannot_record, time_is_up};
use super::release::{self, Released};
use super::requeue;
use super::resume::PROGRAM;
use super::telling::{self, Failed, Jobs};
use super::publishing::{self, Published};
use super::{beside, recovery, startup};
use crate::clock;
use crate::error::chain;
use crate::model::failure::{ErrorClass, Failure};
use crate::model::hostlist;
use crate::model::instance::{Instance, tag};
use crate::plan::launch::Ask;
use crate::plan::scaling::{Answer, Order, Round, Scaling};

enum Event {
    Launched(Box<Outcome>),
    Published(Vec<(String, Instance)>, Published),
    Told(Vec<String>),
    Released(Released),
}

/// The run after the claims: everything that happens at the same time, and what came of it.
pub(super) struct Run {
    context: Arc<Context>,
    jobs: Arc<Jobs>,
    launcher: Option<Arc<Launcher>>,
    scaling: Option<Scaling>,
    /// Orders whose answer is out.
    awaited: usize,
    /// Orders that are answered: instances in the pool may still come from them.
    ended: BTreeMap<usize, Ended>,
    tasks: JoinSet<Event>,
    releasing: bool,
    tried: BTreeSet<String>,
    backed: Vec<(String, String)>,
    failed: Vec<Failed>,
    left: Vec<(String, &'static str)>,
    untold: Vec<String>,
    unreleased: Vec<(String, String)>,
    /// Everything this run began is accounted for: its record may go.
    certain: bool,
    /// A given-up client token may have launched something: the record stays, though nothing is open.
    look_again: bool,
    launching: usize,
    launched_after: Duration,
    published_after: Duration,
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
            scaling: None,
            awaited: 0,
            ended: BTreeMap::new(),
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

    pub(super) fn launch(&mut self, launcher: Arc<Launcher>, work: Vec<Work>, scaling: Option<Scaling>) -> Arc<Launcher> {
        self.launcher = Some(Arc::clone(&launcher));
        self.scaling = scaling;
        self.awaited = work.iter().filter(|work| work.order.is_some()).count();
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
                    Failed { node, group, failure: failure.clone(), resting: false }
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
        let mut progress = tokio::time::interval(Duration::from_millis(500));
        loop {
            let event = tokio::select! {
                event = self.tasks.join_next() => event,
                _ = progress.tick(), if self.context.interactive => {
                    self.show_progress();
                    continue;
                }
            };
            let Some(event) = event else { break };
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
                self.commit(outcomes);
            }
        }
        if self.context.interactive {
            let _ = std::io::stderr().write_all(b"\r\x1b[K");
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

    /// Batches that ended: what the scaling decision makes of them, into the mapping under the lock, compare and set; then Slurm, and
    /// the launches that follow from it.
    fn commit(&mut self, outcomes: Vec<Outcome>) {
        let mut alone = Vec::new();
        let mut scaling = self.scaling.take();
        for outcome in outcomes {
            self.launching = self.launching.saturating_sub(outcome.work.batch.nodes.len());
            self.certain &= !matches!(outcome.end, End::Unknown(_));
            self.look_again |= outcome.unsure;
            match (outcome.work.order, &mut scaling) {
                (Some(order), Some(scaling)) => {
                    self.awaited -= 1;
                    let sent = outcome.work.sent.unwrap_or_else(clock::now);
                    self.ended.insert(order, Ended { batch: outcome.work.batch, sent });
                    scaling.record(order, match outcome.end {
                        End::Answered { instances, short } => Answer { instances, failure: short },
                        End::Failed(failure) | End::Unknown(failure) => Answer { instances: Vec::new(), failure: Some(failure) },
                    });
                }
                _ => alone.push(outcome),
            }
        }
        let (round, next) = scaling.as_mut().map_or_else(Default::default, |scaling| self.decide(scaling));
        self.scaling = scaling;
        if self.write(&round, &alone) {
            for work in next {
                self.spawn(work);
            }
        }
    }

    /// The decision after the latest answers: what is to be written, and the further launches, each recorded.
    fn decide(&mut self, scaling: &mut Scaling) -> (Round, Vec<Work>) {
        let (mut all, mut next) = (Round::default(), Vec::new());
        let mut take = |round: Round| {
            all.assign.extend(round.assign);
            all.fail.extend(round.fail);
            all.release.extend(round.release);
            round.launch
        };
        loop {
            let round = scaling.next_round();
            if round.is_empty() {
                break;
            }
            for order in take(round) {
                match self.record(&order) {
                    Ok(work) => {
                        self.awaited += 1;
                        next.push(work);
                    }
                    Err(failure) => scaling.record(order.id, Answer { instances: Vec::new(), failure: Some(failure) }),
                }
            }
        }
        if self.awaited == 0 && !scaling.is_finished() {
            take(scaling.give_up(time_is_up()));
        }
        (all, next)
    }

    /// A further order of this run, recorded before anything is sent.
    fn record(&self, order: &Order) -> Result<Work, Failure> {
        let group = self.context.settings.groups.iter().find(|group| group.name == order.group);
        let (Some(launcher), Some(group), true) = (&self.launcher, group, self.context.limits.may_launch()) else {
            return Err(time_is_up());
        };
        let ask = Ask { group, recipe: &group.recipe, strategy: order.strategy };
        let work = launcher.add(ask, order.nodes.clone()).map_err(|error| cannot_record(&error))?;
        Ok(Work { order: Some(order.id), ..work })
    }

    /// One locked write of what has been decided; false when it failed.
    fn write(&mut self, round: &Round, alone: &[Outcome]) -> bool {
        let (context, ended) = (Arc::clone(&self.context), &self.ended);
        let writer = Writer { launch: &context.launch, now: clock::now(), may_launch: context.limits.may_launch() };
        let result = context.store.update(context.lock_wait(), |mapping| {
            let mut step = Committed::default();
            writer.commit_round(mapping, round, ended, &mut step);
            for outcome in alone {
                writer.commit_one(mapping, outcome, &mut step);
            }
            step
        });
        let step = match result {
            Ok(step) => step,
            Err(error) => {
                tracing::error!(
                    "the mapping cannot be written; the instances of this launch are left to the next program: {}",
                    chain(&error)
                );
                self.certain = false;
                return false;
            }
        };
        if let Some(launcher) = self.launcher.clone() {
            for (batch, nodes) in step.again {
                tracing::info!(
                    nodes = hostlist::compress_sorted(&nodes),
                    "what was launched cannot serve these nodes: launching anew"
                );
                match launcher.renew(&batch, nodes) {
                    Ok(work) => self.spawn(work),
                    Err(error) => {
                        tracing::error!("the launch record cannot be written, the claim is left to the next program: {error}");
                        self.certain = false;
                    }
                }
            }
        }
        for (node, why) in &step.lost {
            tracing::info!(node, "its instance is not needed any more: {why}");
        }
        self.publish(step.publish);
        self.fail(step.failed);
        if step.condemned {
            self.release();
        }
        true
    }

    fn published(&mut self, pairs: &[(String, Instance)], published: &Published) {
        self.published_after = self.context.begun_at.elapsed();
        let refused: BTreeMap<&String, &Failure> = published.refused.iter().map(|(node, failure)| (node, failure)).collect();
        let unknown: BTreeSet<&String> = published.unknown.iter().collect();
        publishing::mark_published(&self.context, pairs, published);
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
            tracing::info!(nodes = hostlist::compress_sorted(&done), count = done.len(), "backed by instances, slurmctld knows");
        }
        for (node, instance) in pairs {
            tracing::debug!(node, instance = instance.id, ip = instance.private_ip, "assigned");
        }
        if refused.is_empty() {
            return;
        }
        // Slurm does not want these nodes: their instances go in this same run.
        let now = clock::now();
        let mut failed = Vec::new();
        let result = self.context.store.update(self.context.lock_wait(), |mapping| {
            failed.clear();
            for (node, instance) in pairs {
                let Some(failure) = refused.get(node).copied() else { continue };
                if mapping.nodes.get(node).is_some_and(|entry| entry.instance_id.as_ref() == Some(&instance.id)) {
                    let entry = recovery::take_down(mapping, node, now, "the node could not be told");
                    let failure = failure.clone();
                    failed.push(Failed { node: node.clone(), group: entry.map(|entry| entry.group), failure, resting: false });
                }
            }
        });
        if let Err(error) = result {
            tracing::error!("the mapping cannot be written: {}", chain(&error));
            self.certain = false;
        }
        self.fail(failed);
        self.release();
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

    pub(super) async fn finish(self, claimed_after: Duration) -> Exit {
        self.tag_nodes().await;
        beside::note_failures(&self.context, &self.failed);
        let failed: Vec<&str> = self.failed.iter().map(|one| one.node.as_str()).collect();
        requeue::requeue_now(&self.context, &self.jobs.ids(&failed)).await;
        let calls = self.context.calls();
        tracing::info!(
            launched = self.backed.len(),
            failed = self.failed.len(),
            left = self.left.len(),
            claimed_ms = millis(claimed_after),
            launched_ms = millis(self.launched_after),
            published_ms = millis(self.published_after),
            total_ms = millis(self.context.begun_at.elapsed()),
            calls = %calls,
            "ended"
        );
        if self.context.interactive {
            self.summary();
        }
        if !self.untold.is_empty() || !self.certain {
            Exit::TempFail
        } else if !self.failed.is_empty() || !self.unreleased.is_empty() {
            Exit::SomeFailed
        } else {
            Exit::Done
        }
    }

    /// Each node's name on its instance, where the group asks for it: paced, best effort, after everything else.
    async fn tag_nodes(&self) {
        for (node, id) in &self.backed {
            let wanted =
                self.context.settings.group_of(node).is_some_and(|group| group.launch.node_tags && group.launch.batch_size > 1);
            if !wanted || self.context.limits.stopping() || self.context.limits.left() < Duration::from_secs(2) {
                continue;
            }
            let tags = [(tag::NODE.to_owned(), node.clone())];
            let tagging = self.context.ec2.tag(std::slice::from_ref(id), &tags);
            if let Err(error) = self.context.ask("CreateTags", tagging).await {
                tracing::warn!(node, instance = id, "its name tag was not written: {}", chain(&error));
                if error.class == ErrorClass::Identity || error.class.is_retryable() {
                    return;
                }
            }
        }
    }

    fn summary(&self) {
        let names = |nodes: Vec<&String>| hostlist::compress_sorted(&nodes);
        startup::say(&format!(
            "launched {:>6}  {}",
            self.backed.len(),
            names(self.backed.iter().map(|(node, _)| node).collect())
        ));
        if !self.left.is_empty() {
            startup::say(&format!(
                "left     {:>6}  {}",
                self.left.len(),
                names(self.left.iter().map(|(node, _)| node).collect())
            ));
        }
        let mut reasons: BTreeMap<String, Vec<&String>> = BTreeMap::new();
        for one in &self.failed {
            reasons.entry(format!("{}: {}", one.failure.code, one.failure.sentence)).or_default().push(&one.node);
        }
        for (reason, nodes) in reasons {
            startup::say(&format!("failed   {:>6}  {}  {reason}", nodes.len(), names(nodes)));
        }
        for (id, why) in &self.unreleased {
            startup::say(&format!("not terminated  {id}  {why}"));
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
