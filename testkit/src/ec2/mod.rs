//! The fault-injecting EC2 endpoint. Start with the example at the top of the crate.
//!
//! `http` takes requests, `serve` takes a request from arrival to answer, `state` holds the world and sends each
//! action to `launch`, `fleet`, `describe`, `status`, `tags`, `blocks`, `terminate` or `catalogue`; `rules` and `faults` say what
//! goes wrong, `control` is the way in for other processes.

mod behaviour;
mod blocks;
mod catalogue;
mod control;
mod describe;
mod endpoint;
mod faults;
mod fleet;
mod http;
mod instance_xml;
mod instances;
mod launch;
mod params;
mod rules;
mod serve;
mod state;
mod status;
#[cfg(test)]
mod status_tests;
mod tags;
#[cfg(test)]
mod tags_tests;
mod terminate;
#[cfg(test)]
mod tests;
mod xml;

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

pub use behaviour::{Behaviour, Capacity, CapacityReservation, DEFAULT_SUBNETS, Latency, Subnet, Template, Throttle};
pub use endpoint::{Endpoint, Seed};
pub use instances::{Event, Instance, InstanceChange, State};
pub use rules::{Effect, Match, Rule};
pub use state::{Request, Snapshot};

pub(crate) use faults::Script;
pub(crate) use params::Params;
pub(crate) use serve::wait_for_removal;
pub(crate) use xml::escape;

use launch::Recipe;
use state::World;

/// The world behind its lock, and those who wait for it to change.
pub(crate) struct Shared {
    world: Mutex<World>,
    changed: Condvar,
    gates_opened: Notify,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

impl Shared {
    pub(crate) fn new(behaviour: Behaviour) -> Self {
        Shared { world: Mutex::new(World::new(behaviour)), changed: Condvar::new(), gates_opened: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        // A test that panicked inside `adjust` has left a world that is still whole.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on the world and wakes those who wait for a change.
    pub(crate) fn change<T>(&self, work: impl FnOnce(&mut World) -> T) -> T {
        let result = work(&mut self.lock());
        self.changed.notify_all();
        result
    }

    /// Looks at the world; nobody is woken.
    pub(crate) fn change_quietly<T>(&self, look: impl FnOnce(&World) -> T) -> T {
        look(&self.lock())
    }

    /// Blocks until something is true of the world; false if it did not become so in time.
    pub(crate) fn wait(&self, at_most: Duration, is_so: impl Fn(&World) -> bool) -> bool {
        // Some changes come with time alone (boot, shutting down), so look again now and then.
        const LOOK_AGAIN: Duration = Duration::from_millis(20);
        let end = Instant::now() + at_most;
        let mut world = self.lock();
        loop {
            if is_so(&world) {
                return true;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let woken = self.changed.wait_timeout(world, left.min(LOOK_AGAIN));
            world = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Stands at a gate until it is opened.
    pub(crate) async fn wait_at_gate(&self, name: &str) {
        let came = self.change(|world| {
            let gate = world.gates.entry(name.to_owned()).or_default();
            gate.waiting += 1;
            gate.opened
        });
        loop {
            let opened = self.gates_opened.notified();
            tokio::pin!(opened);
            // Registered before looking, or an opening in between would be missed.
            opened.as_mut().enable();
            if self.change_quietly(|world| world.gates.get(name).is_none_or(|g| g.opened > came)) {
                return;
            }
            opened.await;
        }
    }

    pub(crate) fn open_gates(&self, name: Option<&str>) {
        self.change(|world| {
            for (_, gate) in world.gates.iter_mut().filter(|(gate, _)| name.is_none_or(|n| n == *gate)) {
                gate.opened += 1;
                gate.waiting = 0;
            }
        });
        self.gates_opened.notify_waiters();
    }

    pub(crate) fn seed(&self, seed: &Seed) -> Result<Vec<String>, String> {
        self.change(|world| {
            let subnet = match seed.subnet.as_str() {
                "" => world.behaviour.subnets[0].clone(),
                id => world.known_subnet(id).map_err(|e| e.message)?,
            };
            let recipe = Recipe {
                instance_type: seed.instance_type.clone(),
                subnet,
                tags: seed.tags.clone(),
                token: seed.client_token.clone(),
                spot: false,
                fleet: None,
                template: None,
            };
            let reservation = world.next_reservation("r");
            let made = world.make(&recipe, seed.count, &reservation).map_err(|e| e.message)?;
            Ok(made
                .into_iter()
                .map(|at| {
                    let machine = &mut world.machines[at];
                    machine.seen.launch_time_ms = machine.seen.launch_time_ms.saturating_sub(seed.age_ms);
                    machine.running_at = machine.running_at.saturating_sub(seed.age_ms);
                    machine.seen.id.clone()
                })
                .collect())
        })
    }

    pub(crate) fn reset(&self) {
        self.change(|world| {
            let first_request = world.first_request + world.requests.len();
            *world = World::new(world.behaviour.clone());
            world.first_request = first_request;
        });
        self.gates_opened.notify_waiters();
    }
}
