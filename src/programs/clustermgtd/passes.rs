//! The passes, one after the other: look, decide, act, report; in a thread of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::console::Consoles;
use super::heartbeat::{Heart, Rhythm};
use super::launches::Launches;
use super::perform::{Performed, Scene, perform};
use super::reload::{self, Watch};
use super::shared::Shared;
use super::snapshot::{Eyes, Incomplete, Seen};
use super::status::{self, Actions, Ended};
use super::{PROGRAM, doors, events};
use crate::clock;
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
use crate::programs::suspend;
use crate::programs::systemd;
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

/// Without news the log says so often that the daemon is there.
const SIGN_OF_LIFE: Duration = Duration::from_hours(1);

/// What a pass came to.
enum Pass {
    Done(Box<Done>),
    /// Nothing was to be done, and why.
    Resting(FleetStatus, String),
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
    pub(super) memory_file: DaemonMemory,
    pub(super) memory: Memory,
    pub(super) heart: Heart,
    pub(super) launches: Launches,
    pub(super) consoles: Consoles,
    /// Condemned instances that EC2 refused to terminate, and the passes to wait until the next try.
    pub(super) stubborn: BTreeMap<String, u32>,
    pub(super) last: Last,
}

/// What was last told, so that only news are.
#[derive(Default)]
pub(super) struct Last {
    line: String,
    at: Option<Instant>,
    problem: Option<String>,
    report: Report,
    /// What ends protected mode.
    command: String,
    ailments: BTreeMap<String, Vec<Ailment>>,
    /// A whole look has been taken.
    looked: bool,
}

impl Passes {
    /// Until the daemon is to end.
    pub(super) async fn run(mut self) {
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
        if self.context.settings.clustermgtd.upkeep.disabled {
            return Ok(Pass::Resting(FleetStatus::Unknown, "all cluster management is switched off".to_owned()));
        }
        let fleet = self.status().await?;
        if !is_ours_to_act(fleet) {
            return Ok(Pass::Resting(fleet, format!("the fleet is {fleet}")));
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
            ailments: &self.last.ailments,
        };
        let seen = eyes.look(fleet, rebuilt).await?;
        self.last.looked = true;
        // From here on nobody starts or stops the fleet.
        let _fleet = match daemon_lock::fleet(self.context.store.dir(), Duration::ZERO) {
            Ok(lock) => lock,
            Err(error) if error.is_temporary() => return Ok(Pass::Resting(fleet, chain(&error))),
            Err(error) => return Err(error.into()),
        };
        let now = self.status().await?;
        if now != fleet {
            return Ok(Pass::Resting(now, format!("the fleet has just become {now}")));
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
        Ok(reading.status)
    }

    /// Finishes what dead runs left, and tells Slurm what it was not told yet. True = the mapping was missing and has been rebuilt.
    async fn finish_interrupted(&self) -> Result<bool, Incomplete> {
        let freed = suspend::free(&self.context, &[], &[]).await.map_err(|stopped| Incomplete(stopped.error))?;
        self.shared.step();
        suspend::publish_rest(&self.context, &freed.publish).await;
        self.shared.step();
        Ok(freed.rebuilt)
    }

    /// Decides and acts.
    async fn act(&mut self, seen: Seen) -> Done {
        let Seen { snapshot, policy } = seen;
        let decision = reconcile::reconcile(&snapshot, &self.memory, &policy);
        decision.notes.iter().for_each(tell);
        // Before anything is done: a restart in the middle finds what was begun.
        self.memory = decision.memory;
        self.save();
        self.last.command = reconcile::way_out(&policy, &self.context.settings.cluster);
        let slurm_user = self.conf.as_ref().and_then(|conf| conf.slurm_user.as_deref()).unwrap_or("root");
        let stubborn: BTreeSet<String> = self.stubborn.keys().cloned().collect();
        let (context, shared, snapshot, fleet) = (&self.context, &*self.shared, &snapshot, &self.fleet);
        let scene = Scene { context, shared, snapshot, fleet, stubborn: &stubborn, slurm_user };
        let mut performed = perform(&scene, &decision.actions).await;
        let launching = self.launches.start(std::mem::take(&mut performed.launch), &self.context.settings, self.conf.as_ref());
        self.consoles.read(std::mem::take(&mut performed.consoles), &self.context.settings);
        self.remember_stubborn(&performed.refused);
        let fleet = snapshot.fleet;
        self.last.ailments.clone_from(&snapshot.ailments);
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

    fn save(&self) {
        if let Err(error) = self.memory_file.save(&self.memory) {
            tracing::error!("what this daemon remembers cannot be kept over a restart: {}", chain(&error));
        }
    }

    fn report(&mut self, began: Timestamp, begun_at: Instant, pass: Result<Pass, Incomplete>) {
        let mut actions = Actions::default();
        let (result, fleet, problem) = match pass {
            Ok(Pass::Done(done)) => {
                let Done { fleet, report, performed, launching } = *done;
                actions = Actions { done: performed.done, left: performed.left, launching };
                self.last.report = report;
                (status::Result::Complete, Some(fleet), performed.trouble)
            }
            Ok(Pass::Resting(fleet, why)) => (status::Result::Resting, Some(fleet), Some(why)),
            Err(Incomplete(what)) => (status::Result::Incomplete, None, Some(what)),
        };
        self.log(result, fleet, problem.as_deref(), actions, begun_at);
        let settings = &self.context.settings;
        let ended =
            Ended { began, ended: clock::now(), result, problem: problem.as_deref(), fleet, report: &self.last.report, actions };
        let threshold = settings.clustermgtd.upkeep.protected_count;
        let written = status::write(self.context.store.dir(), &settings.cluster, &ended, &self.memory, threshold, &self.last.command);
        if let Err(error) = written {
            tracing::warn!("the status file cannot be written: {error}");
        }
        let seen = (result == status::Result::Complete).then_some(&self.last.report);
        if let Err(error) = events::write(settings, seen) {
            tracing::warn!("events cannot be written: {error}");
        }
    }

    /// At most one line, and only where there is news (M29).
    fn log(
        &mut self,
        result: status::Result,
        fleet: Option<FleetStatus>,
        problem: Option<&str>,
        actions: Actions,
        begun_at: Instant,
    ) {
        let ms = u64::try_from(begun_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        if result == status::Result::Incomplete {
            let what = problem.unwrap_or("something is missing");
            tracing::error!(ms, "this pass saw not everything, nothing was done: {what}");
            systemd::status(&format!("incomplete pass: {what}"));
            self.last.problem = Some(what.to_owned());
            self.last.line.clear();
            return;
        }
        let counts: Vec<String> = self.last.report.states.iter().map(|(state, count)| format!("{state} {count}")).collect();
        let line = match result {
            status::Result::Resting => format!("resting: {}", problem.unwrap_or_default()),
            _ => format!(
                "fleet {}, nodes: {}; instances: {}",
                fleet.map_or("?", FleetStatus::as_str),
                counts.join(", "),
                self.last.report.instances
            ),
        };
        systemd::status(&line);
        let recovered = self.last.problem.take().is_some();
        let acted = actions != Actions::default();
        let silent_for_long = self.last.at.is_none_or(|at| at.elapsed() >= SIGN_OF_LIFE);
        if acted || recovered || silent_for_long || line != self.last.line {
            tracing::info!(done = actions.done, left = actions.left, launching = actions.launching, ms, "pass: {line}");
            self.last.at = Some(Instant::now());
        } else {
            tracing::debug!(ms, "pass: {line}");
        }
        self.last.line = line;
    }

    /// Reads the configuration anew if it has changed, or if somebody asked for it.
    async fn reload(&mut self, asked: bool) {
        if !asked && !self.watch.has_changed() {
            return;
        }
        // Taken first: a change while the files are read is seen in the next pass.
        let watch = self.watch.renewed();
        match self.read_again().await {
            Ok(()) => tracing::info!("configuration read again"),
            Err(error) => {
                self.watch = watch;
                tracing::error!("the old configuration stays in force: {error}");
            }
        }
        self.shared.step();
    }

    async fn read_again(&mut self) -> Result<(), String> {
        let settings = reload::read(PROGRAM, &self.place)?;
        if let Some(what) = reload::needs_restart(&self.context.settings, &settings) {
            return Err(format!("{what} needs a restart"));
        }
        let conf_path = self.env.slurm_conf.clone().unwrap_or_else(|| settings.slurm.conf.clone());
        let watch = Watch::of_all(&settings, &conf_path, self.conf.as_ref());
        let conf = reload::read_conf(&conf_path)?;
        let watch = if watch.has_changed() { watch } else { Watch::of_all(&settings, &conf_path, Some(&conf)) };
        let limits = self.context.limits.clone();
        let rhythm = Rhythm::of(&settings);
        let fleet = FleetStatusStore::open(&settings).await.map_err(|error| chain(&error))?;
        let context = doors::open(settings, &self.env, limits, begin::now()).await?;
        context.settings.warnings.iter().for_each(|warning| tracing::warn!("configuration: {warning}"));
        (self.context, self.fleet, self.conf, self.conf_path, self.watch) = (context, fleet, Some(conf), conf_path, watch);
        self.heart.set(rhythm);
        Ok(())
    }
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
