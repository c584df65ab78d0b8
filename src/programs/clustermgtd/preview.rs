//! One pass without its actions, for `slurm-ec2 reconcile --dry-run`: what the daemon would do now, and why. Writes nothing, takes no
//! lock, and may run beside the daemon.

use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::doors;
use super::policy::HIDDEN;
use super::shared::Shared;
use super::snapshot::{self, Eyes, Incomplete, Seen};
use crate::clock;
use crate::config::settings::Settings;
use crate::error::chain;
use crate::plan::reconcile::{self, Action, Memory, Note};
use crate::programs::args::Environment;
use crate::programs::startup::Limits;
use crate::slurm::conf;
use crate::store::daemon_memory;
use crate::store::door::{Kept, Store};
use crate::store::fleet_status::FleetStatusStore;

/// A person waits.
const LIMIT: Duration = Duration::from_mins(3);

/// What a pass would come to.
pub(in crate::programs) struct Preview {
    pub(in crate::programs) actions: Vec<Action>,
    pub(in crate::programs) notes: Vec<Note>,
    /// What is to be known besides: why there is nothing, or what the daemon does before it decides.
    pub(in crate::programs) remarks: Vec<String>,
}

/// The error says what could not be seen.
pub(in crate::programs) async fn preview(settings: Settings, env: &Environment) -> Result<Preview, String> {
    let mut remarks = Vec::new();
    if settings.clustermgtd.upkeep.disabled {
        remarks.push("all cluster management is switched off".to_owned());
    }
    let conf_path = env.slurm_conf.clone().unwrap_or_else(|| settings.slurm.conf.clone());
    let conf =
        conf::read(&conf_path).inspect_err(|error| remarks.push(format!("slurm.conf cannot be read: {}", chain(error)))).ok();
    let fleet = FleetStatusStore::open(&settings).await.map_err(|error| chain(&error))?;
    let fleet = fleet.read().await.map_err(|error| chain(&error))?.status;
    let store = Store::open_read_only(&settings).map_err(|error| chain(&error))?;
    let (_stop, stop) = watch::channel(None);
    let (begun, begun_at) = (clock::now(), Instant::now());
    let context = doors::with(settings, env, store, Limits::under(begun_at, LIMIT, stop), (begun, begun_at)).await?;
    let (instances, strangers) = snapshot::list(&context).await.map_err(text)?;
    if strangers > 0 {
        remarks.push(format!("{strangers} instances of this cluster's name belong to another state folder: left alone"));
    }
    let peek = context.store.peek().map_err(|error| chain(&error))?;
    if !peek.existed {
        remarks.push("the mapping is missing: the daemon makes it anew first, and terminates nothing in that pass".to_owned());
    }
    if !peek.recorded.is_empty() {
        remarks.push(format!("{} launch records are there: taken as if their launches went on", peek.recorded.len()));
    }
    let kept = Kept { mapping: peek.mapping, live: peek.recorded.clone(), recorded: peek.recorded };
    let memory = daemon_memory::peek(context.store.dir()).unwrap_or_else(|error| {
        remarks.push(format!("what the daemon remembers cannot be read: {}", chain(&error)));
        Memory::default()
    });
    let shared = Shared::new();
    let (conf, memory) = (conf.as_ref(), &memory);
    let eyes = Eyes { context: &context, shared: &shared, conf, memory, is_first: true, ailments: None };
    let Seen { snapshot, policy } = eyes.complete(instances, kept, fleet, !peek.existed).await.map_err(text)?;
    let decision = reconcile::reconcile(&snapshot, memory, &policy);
    if policy.hides_off_nodes {
        remarks.push(HIDDEN.to_owned());
    }
    if !fleet.is_running() {
        remarks.push(format!("the fleet is {fleet}"));
    }
    Ok(Preview { actions: decision.actions, notes: decision.notes, remarks })
}

fn text(Incomplete(what): Incomplete) -> String {
    what
}
