//! The passes, one after the other: look, decide, act, report; in a thread of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::console::Consoles;
use super::events;
use super::heartbeat::Heart;
use super::launches::Launches;
use super::news::News;
use super::perform::{Performed, Scene, perform};
use super::reload::Watch;
use super::shared::Shared;
use super::snapshot::{Eyes, Incomplete, Seen};
use super::status::{self, Actions, Ended, Outcome};
use super::{policy, queues};
use crate::clock;
use crate::config::settings::Settings;
use crate::config::source::Place;
use crate::error::chain;
use crate::model::cluster::Ailment;
use crate::model::fleet::FleetStatus;
use crate::model::time::Timestamp;
use crate::plan::reconcile::{self, Level, Memory, Note, Report};
use crate::programs::args::Environment;
use crate::programs::begin;
use crate::programs::context::Context;
use crate::programs::startup::Limits;
use crate::programs::{rebuild, suspend};
use crate::slurm::conf::SlurmConf;
use crate::store::daemon_lock;
use crate::store::daemon_memory::DaemonMemory;
use crate::store::fleet_status::FleetStatusStore;

/// The longest that a pass may take, whatever EC2 and slurmctld do; nothing in it waits as long.
const LIMIT: Duration = Duration::from_mins(5);

/// Between two passes at least, however long the first one took.
const PAUSE: Duration = Duration::from_secs(1);

/// Between two signs of life while nothing is to be done.
const BREATH: Duration = Duration::from_secs(10);

/// A condemned instance that EC2 would not terminate is tried again after so many passes.
const STUBBORN: u32 = 10;

/// What a pass came to.
enum Pass {
    Done(Box<Done>),
    /// Nothing was to be done, and why.
    Resting(Option<FleetStatus>, String),
}

struct Done {
    fleet: FleetStatus,
    report: Report,
    performed: Performed,
    launching: usize,
}

/// Everything that lives longer than a pass.
pub(super) struct Passes {
    pub(super) shared: Arc<Shared>,
    pub(super) place: Place,
    pub(super) env: Environment,
    pub(super) context: Context,
    pub(super) fleet: FleetStatusStore,
    pub(super) conf_path: PathBuf,
    pub(super) conf: Option<SlurmConf>,
    pub(super) watch: Watch,
    /// Why a changed configuration is not in force.
    pub(super) refused: Option<String>,
    pub(super) memory_file: DaemonMemory,
    pub(super) memory: Memory,
    /// What of it is on disk.
    pub(super) saved: Memory,
    pub(super) heart: Heart,
    pub(super) launches: Launches,
    pub(super) consoles: Consoles,
    /// Condemned instances that EC2 refused to terminate, and the passes to wait until the next try.
    pub(super) stubborn: BTreeMap<String, u32>,
    pub(super) last: Last,
    pub(super) news: News,
}

/// What was seen last.
#[derive(Default)]
pub(super) struct Last {
    /// Of the last pass that was complete.
    report: Report,
    /// What was not done.
    failures: BTreeSet<String>,
    /// What ends protected mode.
    command: String,
    ailments: Option<BTreeMap<String, Vec<Ailment>>>,
    /// A whole look has been taken.
    looked: bool,
    /// It was told that Slurm hides nodes.
    hidden: bool,
}

impl Passes {
    /// Until the daemon is to end.
    pub(super) async fn run(mut self) {
        self.pass_by_pass().await;
        self.context.store.end_lease();
    }

    async fn pass_by_pass(&mut self) {
        let shared = Arc::clone(&self.shared);
        loop {
            let begun = Instant::now();
            let next = tokio::select! {
                biased;
                () = shared.stopped() => return,
                next = self.once(begun) => next,
            };
            tokio::select! {
                biased;
                () = shared.stopped() => return,
                () = shared.reload_asked() => self.reload(true).await,
                () = pause(&shared, next.max(Instant::now() + PAUSE)) => self.reload(false).await,
            }
        }
    }

    /// One pass and its report; when the next one is due.
    async fn once(&mut self, begun_at: Instant) -> Instant {
        let began = clock::now();
        self.context.limits = Limits::under(begun_at, LIMIT, self.shared.stop_signal());
        (self.context.begun, self.context.begun_at) = (began, begun_at);
        // Its version is asked anew: Slurm may have been upgraded.
        self.context.slurm = begin::scontrol(&self.context.settings, &self.env);
        self.shared.step();
        let pass = self.pass().await;
        self.heart.passed();
        self.report(began, begun_at, pass);
        self.shared.step();
        begun_at + self.context.settings.clustermgtd.loop_time
    }

    async fn pass(&mut self) -> Result<Pass, Incomplete> {
        let settings = &self.context.settings;
        if let Some(who) = self.context.store.lease(clock::now(), lease_until(settings))? {
            return Ok(Pass::Resting(None, format!("{who} looks after the cluster by now")));
        }
        if self.context.settings.clustermgtd.upkeep.disabled {
            return Ok(Pass::Resting(None, "all cluster management is switched off".to_owned()));
        }
        let fleet = self.status().await?;
        if !is_ours_to_act(fleet) {
            return Ok(Pass::Resting(Some(fleet), format!("the fleet is {fleet}")));
        }
        let rebuilt = self.finish_interrupted().await?;
        // Before the look: what ends after it is seen in the next pass.
        let under_way = self.launches.under_way();
        let eyes = Eyes {
            context: &self.context,
            shared: &self.shared,
            conf: self.conf.as_ref(),
            memory: &self.memory,
            is_first: !self.last.looked,
            ailments: self.last.ailments.as_ref(),
        };
        let seen = eyes.look(fleet, rebuilt).await?;
        self.last.looked = true;
        let hidden = seen.policy.hides_off_nodes;
        if hidden && !std::mem::replace(&mut self.last.hidden, hidden) {
            tracing::error!("{}", policy::HIDDEN);
        }
        self.last.hidden = hidden;
        // From here on nobody starts or stops the fleet.
        let _fleet = match daemon_lock::fleet(self.context.store.dir(), Duration::ZERO) {
            Ok(lock) => lock,
            // By a program that starts or stops the fleet.
            Err(error) if error.is_temporary() => return Ok(Pass::Resting(Some(fleet), chain(&error))),
            Err(error) => return Err(error.into()),
        };
        let now = self.status().await?;
        if now != fleet {
            return Ok(Pass::Resting(Some(now), format!("the fleet has just become {now}")));
        }
        self.note_answers(&seen, &under_way);
        Ok(Pass::Done(Box::new(self.act(seen).await)))
    }

    /// The decision waits a while for the claim of a launch that it has asked for, since it cannot know what became of it. Here that is
    /// known: what is not under way, and has left no claim, has failed or died with an earlier clustermgtd.
    fn note_answers(&mut self, seen: &Seen, under_way: &BTreeSet<String>) {
        let mapped = &seen.snapshot.mapping.nodes;
        for (node, replacement) in &mut self.memory.replacing {
            if !under_way.contains(node) && !mapped.contains_key(node) {
                replacement.asked = Timestamp::default();
            }
        }
    }

    async fn status(&self) -> Result<FleetStatus, Incomplete> {
        let reading = self.fleet.read().await?;
        self.shared.step();
        if reading.status == FleetStatus::Unknown {
            // To rest is for what somebody else ends; this ends by a person alone.
            let (store, word) = (&self.fleet, reading.word);
            return Err(Incomplete(format!("{store} says {word:?}, a status of the fleet that this version does not know")));
        }
        Ok(reading.status)
    }

    /// Finishes what dead runs left, and tells Slurm what it was not told yet. True = the mapping was missing and has been rebuilt.
    async fn finish_interrupted(&self) -> Result<bool, Incomplete> {
        let wanted = self.memory.replacing.keys().cloned().collect();
        let freed = suspend::finish_interrupted(&self.context, &wanted).await.map_err(|stopped| Incomplete(stopped.error))?;
        self.shared.step();
        suspend::publish_rest(&self.context, &freed.publish).await;
        self.shared.step();
        // slurm_resume or slurm_suspend may have done it.
        Ok(freed.rebuilt || rebuild::has_mark(&self.context))
    }

    /// Decides and acts.
    async fn act(&mut self, seen: Seen) -> Done {
        let Seen { snapshot, policy } = seen;
        let decision = reconcile::reconcile(&snapshot, &self.memory, &policy);
        decision.notes.iter().for_each(tell);
        // Before anything is done: a restart in the middle finds what was begun.
        let before = std::mem::replace(&mut self.memory, decision.memory);
        let held = queues::hold_back(&mut self.memory.protected, &before.protected, &decision.actions);
        self.save();
        if snapshot.rebuilt {
            rebuild::remove_mark(&self.context);
        }
        self.last.command = reconcile::way_out(&policy, &self.context.settings.cluster);
        let slurm_user = self.conf.as_ref().and_then(|conf| conf.slurm_user.as_deref()).unwrap_or("root");
        let stubborn: BTreeSet<String> = self.stubborn.keys().cloned().collect();
        let (context, shared, snapshot, fleet) = (&self.context, &*self.shared, &snapshot, &self.fleet);
        let scene = Scene { context, shared, snapshot, fleet, stubborn: &stubborn, failures: &self.last.failures, slurm_user };
        let mut performed = perform(&scene, &decision.actions).await;
        self.memory.protected.extend(queues::done(held, &performed.inactivated));
        self.save();
        let launching = self.launches.start(std::mem::take(&mut performed.launch), &self.context.settings, self.conf.as_ref());
        self.consoles.read(std::mem::take(&mut performed.consoles), &self.context.settings);
        self.remember_stubborn(&performed.refused);
        self.last.failures = std::mem::take(&mut performed.failures);
        let fleet = snapshot.fleet;
        self.last.ailments = snapshot.ailments_told.then(|| snapshot.ailments.clone());
        Done { fleet, report: decision.report, performed, launching }
    }

    /// An instance that cannot be terminated (termination protection) is one error in ten passes.
    fn remember_stubborn(&mut self, refused: &[String]) {
        self.stubborn.retain(|_, passes| {
            *passes -= 1;
            *passes > 0
        });
        for id in refused {
            self.stubborn.insert(id.clone(), STUBBORN);
        }
    }

    fn save(&mut self) {
        if self.memory == self.saved {
            return;
        }
        match self.memory_file.save(&self.memory) {
            Ok(()) => self.saved.clone_from(&self.memory),
            Err(error) => tracing::error!("what this daemon remembers cannot be kept over a restart: {}", chain(&error)),
        }
    }

    /// The truth about the pass: log, systemd, status file, events.
    fn report(&mut self, began: Timestamp, begun_at: Instant, pass: Result<Pass, Incomplete>) {
        let mut actions = Actions::default();
        let (outcome, fleet, problem) = match pass {
            Ok(Pass::Done(done)) => {
                let Done { fleet, report, performed, launching } = *done;
                actions = Actions { done: performed.done, left: performed.left, launching };
                self.last.report = report;
                (Outcome::Complete, Some(fleet), performed.trouble)
            }
            Ok(Pass::Resting(fleet, why)) => (Outcome::Resting, fleet, Some(why)),
            Err(Incomplete(what)) => (Outcome::Incomplete, None, Some(what)),
        };
        let (ended, problem, report) = (clock::now(), problem.as_deref(), &self.last.report);
        let ended = Ended { began, ended, outcome, problem, fleet, report, actions };
        self.news.tell(&ended, begun_at.elapsed());
        let settings = &self.context.settings;
        let threshold = settings.clustermgtd.upkeep.protected_count;
        let dir = self.context.store.dir();
        if let Err(error) = status::write(dir, &settings.cluster, &ended, &self.memory, threshold, &self.last.command) {
            tracing::warn!("the status file cannot be written in {}: {error}", dir.display());
        }
        if let Err(error) = events::write(settings, (outcome == Outcome::Complete).then_some(report)) {
            tracing::warn!("events cannot be written: {error}");
        }
    }
}

/// Until when a clustermgtd keeps those of other machines away: past the longest pass and the pause after it.
pub(super) fn lease_until(settings: &Settings) -> Timestamp {
    clock::now() + LIMIT + settings.clustermgtd.loop_time
}

/// Waits, and shows meanwhile that it does.
async fn pause(shared: &Shared, until: Instant) {
    while Instant::now() < until {
        shared.step();
        tokio::time::sleep_until(until.min(Instant::now() + BREATH).into()).await;
    }
}

/// Looks this daemon after a fleet in this state? Whatever is on its way to another one is somebody else's.
fn is_ours_to_act(fleet: FleetStatus) -> bool {
    fleet.is_running() || fleet == FleetStatus::Stopped
}

fn tell(note: &Note) {
    match note.level {
        Level::Info => tracing::info!("{}", note.text),
        Level::Warn => tracing::warn!("{}", note.text),
        Level::Error => tracing::error!("{}", note.text),
    }
}
