//! `clustermgtd`: the cloud and the scheduler are kept in agreement, pass by pass.
//!
//! A pass (`passes.rs`) is one snapshot (`snapshot.rs`), a decision (`plan/reconcile`), its actions carried out (`perform.rs`) and a
//! report (`status.rs`). The passes have a thread, each heartbeat file has one, and launches have theirs. The first thread only listens: to
//! signals and to systemd's watchdog. So a SIGTERM ends the daemon within a second whatever EC2, slurmctld or a disk makes it wait for;
//! being killed anywhere is what every write here is made for.

mod console;
mod doors;
mod doubt;
mod events;
mod freeing;
mod heartbeat;
mod launches;
mod news;
mod orders;
mod passes;
mod perform;
pub(super) mod policy;
mod preview;
mod queues;
mod recheck;
mod reload;
mod shared;
mod snapshot;
mod status;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use tokio::sync::oneshot;

use self::heartbeat::{Heart, Rhythm};
use self::passes::{Last, Passes};
use self::reload::Watch;
use self::shared::Shared;
use super::args::Environment;
use super::daemon::{self, Asked, Options, Signals};
use super::exit::{Exit, Stopped};
use super::startup::Limits;
use super::{begin, startup, systemd};
use crate::clock;
use crate::config::settings::Settings;
use crate::config::source::Place;
use crate::error::chain;
use crate::plan::reconcile::Memory;
use crate::slurm::conf::{self, SlurmConf};
use crate::store::daemon_lock;
use crate::store::daemon_memory::DaemonMemory;
use crate::store::door::Store;
use crate::store::fleet_status::FleetStatusStore;
use crate::store::lock::Lock;

pub(super) use self::preview::{Preview, preview};

pub(super) const PROGRAM: &str = "clustermgtd";

/// How long the passes may take to end after a SIGTERM; then the daemon ends without them.
const PATIENCE: Duration = Duration::from_millis(700);

/// Without a step of the passes for so long something hangs, and the watchdog is not told any more that the daemon works: a whole pass may
/// take five minutes.
const STEP_LIMIT: Duration = Duration::from_mins(6);

/// Keep the cloud and the scheduler in agreement (a daemon)
#[derive(Debug, Parser)]
#[command(
    name = "clustermgtd",
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

/// From the configuration to the running threads.
fn start(args: &Args, env: Environment) -> Exit {
    let place = startup::config_place(PROGRAM, args.options.config.as_deref(), &env);
    let settings = match daemon::load(PROGRAM, &place, &env) {
        Ok(settings) => settings,
        Err(exit) => return exit,
    };
    let conf_path = env.slurm_conf.clone().unwrap_or_else(|| settings.slurm.conf.clone());
    let conf = conf::read(&conf_path);
    let watch = Watch::of_all(&settings, &conf_path, conf.as_ref().ok());
    let owner = startup::become_owner(&settings, conf.as_ref().ok().and_then(|conf| conf.slurm_user.as_deref()));
    crate::log::start_daemon(PROGRAM, &settings.log, args.options.verbose, env.tz.as_deref(), settings.parallelcluster.is_some());
    if let Err(error) = owner {
        tracing::error!("{error}");
        return Exit::Config;
    }
    let (store, lock) = match only_one(&settings) {
        Ok(opened) => opened,
        Err(Stopped { error, exit }) => {
            tracing::error!("{error}");
            return exit;
        }
    };
    let conf = conf
        .inspect_err(|error| tracing::warn!("slurm.conf cannot be read, its SuspendTime is not known: {}", chain(error)))
        .ok();
    for warning in &settings.warnings {
        tracing::warn!("configuration: {warning}");
    }
    for why in settings.broken() {
        tracing::warn!("configuration: some nodes cannot be launched: {why}");
    }
    tracing::info!(version = env!("CARGO_PKG_VERSION"), pid = std::process::id(), "started");
    let Some(runtime) = begin::runtime() else { return Exit::TempFail };
    let exit = runtime.block_on(live(Beginning { settings, place, env, conf_path, conf, watch, store, lock }));
    runtime.shutdown_background();
    exit
}

/// The state, and the lock that keeps a second clustermgtd away.
fn only_one(settings: &Settings) -> Result<(Store, Lock), Stopped> {
    let store = Store::open(settings)?;
    let lock = daemon_lock::clustermgtd(store.dir())?;
    match store.lease(clock::now(), passes::lease_until(settings))? {
        None => Ok((store, lock)),
        Some(who) => {
            Err(Stopped { error: format!("a clustermgtd looks after this cluster already: {who}"), exit: Exit::TempFail })
        }
    }
}

/// What the threads begin with.
struct Beginning {
    settings: Settings,
    place: Place,
    env: Environment,
    conf_path: PathBuf,
    conf: Option<SlurmConf>,
    watch: Watch,
    store: Store,
    lock: Lock,
}

/// Starts the threads and listens until the end.
async fn live(beginning: Beginning) -> Exit {
    let mut signals = match Signals::listen() {
        Ok(signals) => signals,
        Err(error) => {
            tracing::error!("signals cannot be caught: {error}");
            return Exit::TempFail;
        }
    };
    let shared = Arc::new(Shared::new());
    let (ended, mut end) = oneshot::channel();
    let passing = {
        let shared = Arc::clone(&shared);
        move || {
            let exit = pass_by_pass(beginning, shared);
            let _ = ended.send(exit);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("passes".to_owned()).spawn(passing) {
        tracing::error!("no thread for the passes: {error}");
        return Exit::TempFail;
    }
    systemd::ready();
    let watchdog = systemd::watchdog();
    loop {
        tokio::select! {
            biased;
            asked = signals.next() => match asked {
                Asked::End(name) => {
                    tracing::info!("{name}: ending; launches under way are left to their record");
                    systemd::stopping();
                    shared.stop();
                    let _ = tokio::time::timeout(PATIENCE, &mut end).await;
                    return Exit::Done;
                }
                Asked::Reload => shared.ask_for_reload(),
            },
            // An error here: the thread broke.
            exit = &mut end => return exit.unwrap_or(Exit::TempFail),
            () = tokio::time::sleep(watchdog.unwrap_or_default()), if watchdog.is_some() => {
                if shared.since_step() < STEP_LIMIT {
                    systemd::alive();
                }
            }
        }
    }
}

/// The thread of the passes.
fn pass_by_pass(beginning: Beginning, shared: Arc<Shared>) -> Exit {
    let Some(runtime) = begin::runtime() else { return Exit::TempFail };
    let exit = runtime.block_on(async {
        match passes(beginning, shared).await {
            Ok(passes) => {
                passes.run().await;
                Exit::Done
            }
            Err(Stopped { error, exit }) => {
                tracing::error!("{error}");
                exit
            }
        }
    });
    runtime.shutdown_background();
    exit
}

async fn passes(beginning: Beginning, shared: Arc<Shared>) -> Result<Passes, Stopped> {
    let Beginning { settings, place, env, conf_path, conf, watch, store, lock } = beginning;
    let config = |error: String| Stopped { error, exit: Exit::Config };
    let memory_file = DaemonMemory::in_folder(store.dir(), lock);
    let memory: Memory = memory_file.load().map_err(|error| config(chain(&error)))?;
    let fleet = FleetStatusStore::open(&settings).await.map_err(|error| config(chain(&error)))?;
    let begun = begin::now();
    let limits = Limits::under(begun.1, Duration::ZERO, shared.stop_signal());
    let rhythm = Rhythm::of(&settings);
    let context = doors::with(settings, &env, store, limits, begun).await.map_err(config)?;
    // Last: a daemon that ends before it can work, and is started again and again, must not look alive.
    let heart = Heart::start(&rhythm).map_err(|error| config(format!("no thread for the heartbeat: {error}")))?;
    Ok(Passes {
        launches: launches::Launches::new(Arc::clone(&shared), env.clone()),
        consoles: console::Consoles::new(Arc::clone(&shared), env.tz.clone()),
        shared,
        place,
        env,
        context,
        fleet,
        conf_path,
        conf,
        watch,
        refused: None,
        memory_file,
        saved: memory.clone(),
        memory,
        heart,
        stubborn: std::collections::BTreeMap::new(),
        last: Last::default(),
        news: news::News::default(),
    })
}
