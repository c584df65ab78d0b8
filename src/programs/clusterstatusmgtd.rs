//! `clusterstatusmgtd`: starts and stops the compute fleet when its status asks for it.
//!
//! In ParallelCluster's hands the daemon of this name takes the request, writes `computefleet-status.json` and runs a cinc recipe, which
//! stops clustermgtd, runs `slurm_fleet_status_manager` and starts clustermgtd again (aws-facts D.8). This one does the work itself, in
//! its own process: clustermgtd goes on running and leaves the fleet alone while `fleet.lock` is held or the status says that it is being
//! started or stopped, so it keeps what it remembers and no root is needed. The file is written all the same.
//!
//! The status is looked at every `[fleet] poll`, and within a second of a request by `slurm-ec2 fleet` on this machine. A transition that
//! fails is made again after a while; one that a crash or a SIGTERM ended is taken up at the next start.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use tokio::sync::watch;

use super::args::Environment;
use super::daemon::{self, Asked, Options, Signals};
use super::exit::{Exit, Stopped};
use super::fleet::request::{self, Watch};
use super::fleet::{self, Ended, Site};
use super::{begin, startup, systemd};
use crate::config::settings::Settings;
use crate::config::source::{self, Place};
use crate::error::chain;
use crate::plan::fleet_status::{Due, Transition, due};
use crate::store::error::StoreError;
use crate::store::fleet_status::FleetStatusStore;
use crate::store::lock::Lock;

const PROGRAM: &str = "clusterstatusmgtd";

/// Between two looks at the file that a request on this machine touches.
const TICK: Duration = Duration::from_secs(1);

/// How long a transition that failed is left alone, unless a request comes.
const RETRY: Duration = Duration::from_secs(30);

/// clustermgtd holds the fleet's lock for as long as a pass acts. A wait that ends is an error like others: the request stays.
const LOCK_WAIT: Duration = Duration::from_mins(2);

/// Start and stop the compute fleet on request (a daemon)
#[derive(Debug, Parser)]
#[command(
    name = "clusterstatusmgtd",
    version,
    after_help = "Signals: TERM ends it within a second, HUP reads the configuration again.\n\
                  Exit status: 0 ended by a signal; 2 usage; 75 not now; 78 configuration or state folder unusable, or another one runs."
)]
struct Args {
    #[command(flatten)]
    options: Options,
}

/// The program.
pub fn main() -> ExitCode {
    startup::unblock_signals();
    let env = Environment::read();
    match startup::parse_args::<Args>() {
        Ok(args) => start(&args, env).into(),
        Err(exit) => exit.into(),
    }
}

fn start(args: &Args, env: Environment) -> Exit {
    let place = startup::config_place(PROGRAM, args.options.config.as_deref(), &env);
    let settings = match daemon::load(PROGRAM, &place, &env) {
        Ok(settings) => settings,
        Err(exit) => return exit,
    };
    let conf = crate::slurm::conf::read(env.slurm_conf.as_deref().unwrap_or(&settings.slurm.conf));
    let owner = startup::become_owner(&settings, conf.ok().and_then(|conf| conf.slurm_user).as_deref());
    crate::log::start_daemon(PROGRAM, &settings.log, args.options.verbose, env.tz.as_deref(), settings.parallelcluster.is_some());
    let lock = owner.map_err(|error| Stopped { error, exit: Exit::Config }).and_then(|()| only_one(&settings));
    let lock = match lock {
        Ok(lock) => lock,
        Err(Stopped { error, exit }) => {
            tracing::error!("{error}");
            return exit;
        }
    };
    for warning in &settings.warnings {
        tracing::warn!("configuration: {warning}");
    }
    let Some(runtime) = begin::runtime() else { return Exit::TempFail };
    let exit = runtime.block_on(async {
        match Daemon::new(settings, place, env, lock).await {
            Ok(daemon) => daemon.run().await,
            Err(error) => {
                tracing::error!("{error}");
                Exit::Config
            }
        }
    });
    // A call that still waits for an outside system must not keep the daemon.
    runtime.shutdown_background();
    exit
}

/// The state folder, and the lock that says that a clusterstatusmgtd is there.
fn only_one(settings: &Settings) -> Result<Lock, Stopped> {
    crate::store::door::Store::open(settings)?;
    request::daemon_lock(&settings.state_dir).map_err(|error| match error {
        StoreError::Busy { path, holder, .. } => Stopped {
            error: format!("a clusterstatusmgtd is there for this cluster already: {holder}, which holds {}", path.display()),
            exit: Exit::Config,
        },
        error => error.into(),
    })
}

struct Daemon {
    settings: Settings,
    place: Place,
    env: Environment,
    store: FleetStatusStore,
    watch: Watch,
    stop: watch::Sender<Option<Instant>>,
    /// What is wrong with the look at the status; told when it changes.
    trouble: Option<String>,
    /// A transition that failed, or whose request could not be taken, and when it is tried again.
    failed: Option<(Transition, Instant)>,
    /// What it failed of; told when it changes.
    failure: Option<String>,
    _lock: Lock,
}

impl Daemon {
    async fn new(settings: Settings, place: Place, env: Environment, lock: Lock) -> Result<Self, String> {
        let store = FleetStatusStore::open(&settings).await.map_err(|error| chain(&error))?;
        let watch = Watch::new(&settings.state_dir);
        let stop = watch::Sender::new(None);
        Ok(Self { settings, place, env, store, watch, stop, trouble: None, failed: None, failure: None, _lock: lock })
    }

    /// Until a signal. A transition under way is dropped where it is: being killed anywhere is what it is made for.
    async fn run(mut self) -> Exit {
        let mut signals = match Signals::listen() {
            Ok(signals) => signals,
            Err(error) => {
                tracing::error!("signals cannot be caught: {error}");
                return Exit::TempFail;
            }
        };
        tracing::info!(version = env!("CARGO_PKG_VERSION"), pid = std::process::id(), status = %self.store, "started");
        systemd::ready();
        let mut next_look = Instant::now();
        loop {
            match self.turn_or_signal(&mut signals, &mut next_look).await {
                Some(Asked::End(name)) => {
                    tracing::info!("{name}: ending; a start or stop that is under way is taken up by the next one");
                    systemd::stopping();
                    return Exit::Done;
                }
                Some(Asked::Reload) => self.reload().await,
                None => {}
            }
        }
    }

    /// One turn. The end is at once, a reload after what is under way.
    async fn turn_or_signal(&mut self, signals: &mut Signals, next_look: &mut Instant) -> Option<Asked> {
        let turn = self.turn(next_look);
        tokio::pin!(turn);
        let mut reload = None;
        loop {
            tokio::select! {
                biased;
                asked = signals.next() => match asked {
                    Asked::End(name) => return Some(Asked::End(name)),
                    Asked::Reload => reload = Some(Asked::Reload),
                },
                () = &mut turn => return reload,
            }
        }
    }

    /// Waits for the next second, looks if it is time to, and does what is due.
    async fn turn(&mut self, next_look: &mut Instant) {
        systemd::alive();
        // Signals are seen by the runtime alone, which nothing else here need ever wait for.
        tokio::task::yield_now().await;
        let touched = self.watch.is_touched();
        if !touched && Instant::now() < *next_look {
            tokio::time::sleep(TICK.min(next_look.saturating_duration_since(Instant::now()))).await;
            return;
        }
        if touched {
            self.failed = None;
        }
        *next_look = Instant::now() + self.settings.fleet.poll;
        let transition = match self.store.read().await {
            Ok(reading) => {
                self.note(None);
                match due(reading.status) {
                    Due::Nothing => {
                        (self.failed, self.failure) = (None, None);
                        return;
                    }
                    Due::Begin(transition) | Due::GoOn(transition) => transition,
                }
            }
            Err(error) => return self.note(Some(&error)),
        };
        // The opposite request need not wait for the end of this one's pause.
        if let Some((_, at)) = self.failed.filter(|(failed, at)| *failed == transition && Instant::now() < *at) {
            *next_look = at.min(*next_look);
            return;
        }
        self.reload().await;
        // What was asked for meanwhile is next.
        *next_look = match self.carry_out(transition).await {
            Ok(()) => Instant::now(),
            Err(retry_at) => retry_at.min(Instant::now() + self.settings.fleet.poll),
        };
    }

    /// An error says when to try again.
    async fn carry_out(&mut self, transition: Transition) -> Result<(), Instant> {
        let site = Site {
            settings: &self.settings,
            env: &self.env,
            stop: self.stop.subscribe(),
            lock_wait: LOCK_WAIT,
            shows_progress: false,
        };
        let watchdog = systemd::watchdog();
        let work = fleet::carry_out(&site, &self.store, transition);
        tokio::pin!(work);
        let result = loop {
            tokio::select! {
                biased;
                result = &mut work => break result,
                // The work is bounded by its own limits.
                () = tokio::time::sleep(watchdog.unwrap_or_default()), if watchdog.is_some() => systemd::alive(),
            }
        };
        match result {
            Ok(Ended::Done | Ended::Changed) => {
                (self.failed, self.failure) = (None, None);
                Ok(())
            }
            Err(error) => {
                let retry_at = Instant::now() + RETRY;
                self.failed = Some((transition, retry_at));
                if self.failure.as_ref() == Some(&error) {
                    tracing::debug!(again_in_s = RETRY.as_secs(), "as before: {error}");
                } else {
                    tracing::error!(again_in_s = RETRY.as_secs(), "{error}");
                    self.failure = Some(error);
                }
                Err(retry_at)
            }
        }
    }

    /// What is wrong is told once, and again when it is over or something else.
    fn note(&mut self, trouble: Option<&StoreError>) {
        // Without its causes, whose text has the number of the request.
        let now = trouble.map(StoreError::to_string);
        match trouble {
            Some(error) if self.trouble != now => {
                tracing::error!("the fleet's status cannot be read, requests wait: {}", chain(error));
            }
            None if self.trouble.is_some() => tracing::info!("the fleet's status can be read again"),
            _ => {}
        }
        self.trouble = now;
    }

    /// The configuration as it is now; one with mistakes leaves the old one in force.
    async fn reload(&mut self) {
        let read = match source::load(PROGRAM, &self.place) {
            Ok(settings) => settings,
            Err(error) => return tracing::error!("the old configuration stays in force: {error}"),
        };
        if read.state_dir != self.settings.state_dir || read.cluster != self.settings.cluster {
            return tracing::error!("another cluster or state folder needs a restart; the old configuration stays in force");
        }
        match FleetStatusStore::open(&read).await {
            Ok(store) => (self.store, self.settings) = (store, read),
            Err(error) => tracing::error!("the old configuration stays in force: {}", chain(&error)),
        }
    }
}
