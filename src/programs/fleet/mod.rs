//! Starting and stopping the compute fleet, the same for clusterstatusmgtd, `slurm_fleet_status_manager` and `slurm-ec2 fleet`.
//!
//! One transition at a time: `fleet.lock` in the state folder is held from the first change of the status to the last. Whatever ends a
//! transition in its middle leaves the status STARTING or STOPPING, and the next look at it does the work again from its beginning.

mod crew;
mod empty;
pub(super) mod request;
mod start;
mod status_file;
mod stop;

use std::path::Path;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::args::Environment;
use super::context::{Context, new_launch_id};
use super::{begin, startup};
use crate::clock;
use crate::config::settings::Settings;
use crate::ec2::sdk::Ec2;
use crate::error::chain;
use crate::model::cluster::PartitionState;
use crate::plan::fleet_status::{Due, Transition, due};
use crate::store::daemon_lock;
use crate::store::door::Store;
use crate::store::error::StoreError;
use crate::store::fleet_status::FleetStatusStore;
use crate::store::lock::{self, Lock};

/// What a transition works with.
pub(super) struct Site<'a> {
    pub(super) settings: &'a Settings,
    pub(super) env: &'a Environment,
    /// Holds when the program is to end.
    pub(super) stop: watch::Receiver<Option<Instant>>,
    /// The longest that somebody else's work on the fleet is waited for.
    pub(super) lock_wait: Duration,
    /// Is a person watching? Then progress goes to stderr.
    pub(super) shows_progress: bool,
}

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The fleet is started or stopped, and the status says so.
    Done,
    /// The status was changed by somebody else, before the work or during it: look again.
    Changed,
}

/// Carries a transition out that is due: takes the request if it is one, does the work, sets the status. An error says what is left
/// undone; the status then still asks for it.
pub(super) async fn carry_out(site: &Site<'_>, store: &FleetStatusStore, transition: Transition) -> Result<Ended, String> {
    let _lock = hold(&site.settings.state_dir, site.lock_wait).await.map_err(|error| chain(&error))?;
    let reading = store.read().await.map_err(|error| chain(&error))?;
    match due(reading.status) {
        Due::GoOn(found) if found == transition => {
            tracing::warn!("{} the fleet was begun before and not ended: doing it again", transition.doing());
        }
        Due::Begin(found) if found == transition => {
            let set = store.compare_and_set(transition.requested(), transition.under_way(), clock::now()).await;
            if !set.map_err(|error| chain(&error))? {
                tracing::warn!("the fleet's status changed while the request {} was taken", transition.requested());
                return Ok(Ended::Changed);
            }
            tracing::info!("{} the fleet: {} is now {}", transition.doing(), store, transition.under_way());
        }
        _ => return Ok(Ended::Changed),
    }
    if let Some(path) = &site.settings.fleet.status_file {
        status_file::write(path, store, transition).await;
    }
    work(site, transition).await?;
    let set = store.compare_and_set(transition.under_way(), transition.done(), clock::now()).await;
    if set.map_err(|error| chain(&error))? {
        tracing::info!("{} the fleet is done: {} is now {}", transition.doing(), store, transition.done());
        Ok(Ended::Done)
    } else {
        tracing::warn!("the fleet's status changed while it was {}: looking again", transition.under_way());
        Ok(Ended::Changed)
    }
}

/// The work alone, for the package's route, where somebody else keeps the status.
pub(super) async fn do_work(site: &Site<'_>, transition: Transition) -> Result<(), String> {
    let _lock = hold(&site.settings.state_dir, site.lock_wait).await.map_err(|error| chain(&error))?;
    work(site, transition).await
}

async fn work(site: &Site<'_>, transition: Transition) -> Result<(), String> {
    let context = context(site).await?;
    let mut crew = crew::Crew::new(&context, transition, site.shows_progress);
    let result = match transition {
        Transition::Stop => stop::stop(&mut crew).await,
        Transition::Start => start::start(&mut crew).await,
    };
    crew.progress.end();
    result
}

/// A partition of the fleet that starts no job; `None`: there is none. An error says why they could not be looked at.
pub(super) async fn inactive_partition(settings: &Settings, env: &Environment) -> Result<Option<String>, String> {
    let end = Instant::now() + settings.fleet.timeout;
    let seen = crew::look(settings, &begin::scontrol(settings, env), end).await.map_err(|error| chain(&error))?;
    Ok(seen.partitions.into_iter().find(|found| found.state == PartitionState::Inactive).map(|found| found.name))
}

/// The doors and limits of one transition.
async fn context(site: &Site<'_>) -> Result<Context, String> {
    let (begun, begun_at) = begin::now();
    let settings = site.settings.clone();
    let store = Store::open(&settings).map_err(|error| chain(&error))?;
    let ec2 = Ec2::connect(&settings.aws, &settings.region).await.map_err(|error| chain(&error))?;
    let slurm = begin::scontrol(&settings, site.env);
    let limits = startup::Limits::under(begun_at, settings.fleet.timeout, site.stop.clone());
    let launch = new_launch_id(begun)?;
    let (program, dynamodb, route53, interactive) = ("fleet", None, None, false);
    Ok(Context { program, settings, store, ec2, dynamodb, route53, slurm, limits, launch, begun, begun_at, interactive })
}

/// The fleet's lock, waited for without blocking the other tasks of the program.
async fn hold(dir: &Path, wait: Duration) -> Result<Lock, StoreError> {
    lock::patiently(wait, || daemon_lock::fleet(dir, Duration::ZERO)).await
}
