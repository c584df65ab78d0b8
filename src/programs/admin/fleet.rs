//! `slurm-ec2 fleet start|stop|status`: asks for a start or stop of the compute fleet, or shows what it is.
//!
//! A request is carried out by clusterstatusmgtd. Where none runs on this machine the command does it itself and says so; it holds the
//! fleet's lock meanwhile, so that a daemon elsewhere in the state folder, or another call, only ever follows. In a ParallelCluster the
//! command only ever asks: the cluster's own clusterstatusmgtd takes the request from the table, and two that carried it out at once would
//! wait for each other.

use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use tokio::sync::watch;

use super::{PROGRAM, fleet_report};
use crate::config::settings::{FleetStore, Settings};
use crate::error::chain;
use crate::model::fleet::FleetStatus;
use crate::plan::fleet_status::{Came, Due, Transition, came, due};
use crate::programs::args::Environment;
use crate::programs::exit::Exit;
use crate::programs::fleet::request::{self, Put};
use crate::programs::fleet::{self, Site};
use crate::programs::{begin, startup};
use crate::store::fleet_status::{FleetStatusStore, Reading};

/// Between two looks at the status while the daemon works.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Over the transition's own limit: until it is noticed, and for the lock.
const OVER: Duration = Duration::from_mins(1);

#[derive(Debug, Clone, Args)]
pub(super) struct FleetArgs {
    action: Action,

    /// Wait until it is done
    #[arg(long)]
    wait: bool,

    /// The longest to wait, or to work where no clusterstatusmgtd runs here [default: [fleet] timeout and a minute]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,

    /// Print the status as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Action {
    /// Let jobs run: also ends protected mode
    Start,
    /// Terminate all instances, requeue what runs, start nothing
    Stop,
    /// Print what the fleet is doing, and why
    Status,
}

/// Exit status: 0 done or asked for; 1 not done, or somebody asked for the opposite; 75 not done in time; 78 configuration.
pub(super) fn fleet(settings: &Settings, args: &FleetArgs, env: &Environment) -> Exit {
    let transition = match args.action {
        Action::Start => Transition::Start,
        Action::Stop => Transition::Stop,
        Action::Status => return with_store(settings, async |store| fleet_report::print(settings, &store, args.json).await),
    };
    let conf = crate::slurm::conf::read(env.slurm_conf.as_deref().unwrap_or(&settings.slurm.conf));
    if let Err(error) = startup::become_owner(settings, conf.ok().and_then(|conf| conf.slurm_user).as_deref()) {
        startup::complain(PROGRAM, &error);
        return Exit::Config;
    }
    crate::log::start(PROGRAM, &settings.log, 0, env.tz.as_deref());
    // Makes the folder where it is missing, for the request and for the locks.
    if let Err(error) = crate::store::door::Store::open(settings) {
        startup::complain(PROGRAM, &chain(&error));
        return Exit::from(&error);
    }
    with_store(settings, async |store| ask(settings, &store, transition, args, env).await)
}

fn with_store(settings: &Settings, work: impl AsyncFnOnce(FleetStatusStore) -> Exit) -> Exit {
    let Some(runtime) = begin::runtime() else { return Exit::TempFail };
    let exit = runtime.block_on(async {
        match FleetStatusStore::open(settings).await {
            Ok(store) => work(store).await,
            Err(error) => {
                startup::complain(PROGRAM, &chain(&error));
                Exit::from(&error)
            }
        }
    });
    runtime.shutdown_background();
    exit
}

/// Puts the request, and sees to it that somebody carries it out.
async fn ask(settings: &Settings, store: &FleetStatusStore, transition: Transition, args: &FleetArgs, env: &Environment) -> Exit {
    let put = match request::put(store, transition).await {
        Ok(Put::Already) if transition == Transition::Start => start_again(settings, store, env).await,
        result => result,
    };
    match put {
        Ok(Put::Already) => {
            startup::say(&format!("the fleet is {} already", transition.done()));
            return Exit::Done;
        }
        Ok(Put::UnderWay(status)) => startup::say(&format!("asked for already, the status is {status}")),
        Ok(Put::Taken(before)) => startup::say(&format!("{} is now {} (was {before})", store, transition.requested())),
        Err(error) => {
            startup::complain(PROGRAM, &error);
            return Exit::SomeFailed;
        }
    }
    request::touch(&settings.state_dir);
    let until = Instant::now() + args.timeout.unwrap_or(settings.fleet.timeout + OVER);
    match request::daemon(&settings.state_dir) {
        Ok(Some(holder)) => {
            startup::say(&format!("carried out by {holder}"));
            if args.wait { wait(store, transition, until).await } else { Exit::Done }
        }
        Err(error) => {
            startup::complain(PROGRAM, &chain(&error));
            Exit::from(&error)
        }
        Ok(None) if is_anothers(settings) => {
            startup::say(&format!("carried out by the cluster's clusterstatusmgtd, which takes it from {store}"));
            if args.wait { wait(store, transition, until).await } else { Exit::Done }
        }
        Ok(None) => {
            startup::say(
                "no clusterstatusmgtd runs here: carried out by this command; it can be called again if it is interrupted",
            );
            carry_out(settings, store, transition, until, env).await
        }
    }
}

/// Does ParallelCluster's own daemon carry requests out? It sees those in its table.
fn is_anothers(settings: &Settings) -> bool {
    settings.parallelcluster.is_some() && matches!(settings.fleet.store, FleetStore::Table { .. })
}

/// The fleet runs by its status, which tells nothing of a partition that was set inactive, or stayed so: then it is started all the same.
async fn start_again(settings: &Settings, store: &FleetStatusStore, env: &Environment) -> Result<Put, String> {
    match fleet::inactive_partition(settings, env).await {
        Ok(None) => Ok(Put::Already),
        Ok(Some(partition)) => {
            startup::say(&format!("the fleet is {}, and partition {partition} is inactive", Transition::Start.done()));
            request::put_again(store, Transition::Start).await
        }
        Err(error) => Err(format!(
            "the fleet is {} already, and whether a partition is inactive cannot be seen: {error}",
            Transition::Start.done()
        )),
    }
}

/// Looks until the daemon has done it.
async fn wait(store: &FleetStatusStore, transition: Transition, until: Instant) -> Exit {
    let mut shown = None;
    loop {
        match store.read().await {
            Ok(Reading { status, .. }) => {
                if shown.replace(status) != Some(status) {
                    startup::say(&format!("the fleet is {status}"));
                }
                match came(transition, status) {
                    Came::Done => return Exit::Done,
                    Came::Overtaken => return overtaken(status),
                    Came::Waiting => {}
                }
            }
            Err(error) => startup::complain(PROGRAM, &chain(&error)),
        }
        if Instant::now() + LOOK_EVERY >= until {
            startup::complain(PROGRAM, "not done in time; clusterstatusmgtd goes on with it, its log says what it waits for");
            return Exit::TempFail;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn overtaken(status: FleetStatus) -> Exit {
    startup::complain(PROGRAM, &format!("somebody asked for something else since: the fleet is {status}"));
    Exit::SomeFailed
}

/// Does the work in this process.
async fn carry_out(
    settings: &Settings,
    store: &FleetStatusStore,
    transition: Transition,
    until: Instant,
    env: &Environment,
) -> Exit {
    // Nobody sends: Ctrl-C ends the command, and the next call does the work again.
    let stop = watch::Sender::<Option<Instant>>::new(None);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut settings = settings.clone();
        settings.fleet.timeout = settings.fleet.timeout.min(left);
        let status = match store.read().await {
            Ok(reading) => reading.status,
            Err(error) => {
                startup::complain(PROGRAM, &chain(&error));
                return Exit::from(&error);
            }
        };
        match came(transition, status) {
            Came::Done => {
                startup::say(&format!("the fleet is {status}"));
                return Exit::Done;
            }
            Came::Overtaken => return overtaken(status),
            Came::Waiting => {}
        }
        if due(status) == Due::Nothing || left.is_zero() {
            return Exit::TempFail;
        }
        let site = Site { settings: &settings, env, stop: stop.subscribe(), lock_wait: left, shows_progress: true };
        if let Err(error) = fleet::carry_out(&site, store, transition).await {
            startup::complain(PROGRAM, &format!("{error}; call it again to go on"));
            return Exit::TempFail;
        }
    }
}
