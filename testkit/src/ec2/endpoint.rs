//! The endpoint as a test holds it: started, looked at, steered, dropped.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::{Behaviour, CapacityReservation, Instance, InstanceChange, Request, Rule, Shared, Snapshot, http};
use crate::http::Server;

/// A running endpoint, on a thread and a runtime of its own. Dropped = stopped; requests at work are cut off.
#[derive(Debug)]
pub struct Endpoint {
    server: Server,
    shared: Arc<Shared>,
}

/// Instances that nobody asked for: another cluster's, or those of a run long dead.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Seed {
    pub count: usize,
    pub instance_type: String,
    /// Empty: the first subnet.
    pub subnet: String,
    pub tags: BTreeMap<String, String>,
    pub client_token: String,
    /// Launched this long ago.
    pub age_ms: u64,
}

impl Default for Seed {
    fn default() -> Self {
        Seed {
            count: 1,
            instance_type: "c5.large".to_owned(),
            subnet: String::new(),
            tags: BTreeMap::new(),
            client_token: String::new(),
            age_ms: 0,
        }
    }
}

impl Endpoint {
    /// Starts on a free port of 127.0.0.1.
    ///
    /// # Panics
    /// If the behaviour makes no sense or there is no port; a test cannot go on without its endpoint.
    pub fn start(behaviour: Behaviour) -> Self {
        match Self::start_on(SocketAddr::from(([127, 0, 0, 1], 0)), behaviour) {
            Ok(endpoint) => endpoint,
            Err(error) => panic!("cannot start the EC2 endpoint: {error}"),
        }
    }

    /// Starts on the given address; port 0 takes a free one.
    ///
    /// # Errors
    /// Names the address that cannot be used, or what is wrong with the behaviour.
    pub fn start_on(address: SocketAddr, behaviour: Behaviour) -> std::io::Result<Self> {
        behaviour.check().map_err(std::io::Error::other)?;
        let at = |e: std::io::Error| std::io::Error::new(e.kind(), format!("{address}: {e}"));
        let shared = Arc::new(Shared::new(behaviour));
        let served = Arc::clone(&shared);
        let server =
            Server::start("fake-ec2", address, move |head, body| http::answer(Arc::clone(&served), head, body)).map_err(at)?;
        Ok(Endpoint { server, shared })
    }

    /// `http://127.0.0.1:PORT`, for `endpoint_url`.
    pub fn url(&self) -> String {
        self.server.url()
    }

    pub fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// Everything at one moment.
    pub fn snapshot(&self) -> Snapshot {
        self.shared.change_quietly(|world| world.snapshot())
    }

    /// All instances ever, in launch order.
    pub fn instances(&self) -> Vec<Instance> {
        self.shared.change_quietly(|world| world.instances())
    }

    /// Instances that are pending, running or stopped: those that must belong to somebody.
    pub fn live_instances(&self) -> Vec<Instance> {
        self.instances().into_iter().filter(|i| i.state.is_live()).collect()
    }

    /// All requests, in order of arrival.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.change_quietly(|world| world.requests.clone())
    }

    /// The requests of one action.
    pub fn requests_of(&self, action: &str) -> Vec<Request> {
        self.requests().into_iter().filter(|r| r.action == action).collect()
    }

    /// How many requests of an action have arrived, whatever became of them.
    pub fn count(&self, action: &str) -> usize {
        self.shared.change_quietly(|world| world.requests.iter().filter(|r| r.action == action).count())
    }

    /// Requests per action.
    pub fn counters(&self) -> BTreeMap<String, u64> {
        self.snapshot().counters
    }

    /// Replaces the behaviour; instances, tokens and requests stay, rules and buckets begin anew.
    ///
    /// # Panics
    /// If it makes no sense.
    pub fn behave(&self, behaviour: Behaviour) {
        if let Err(why) = behaviour.check() {
            panic!("{why}");
        }
        self.shared.change(|world| world.behave(behaviour));
    }

    /// Changes parts of the behaviour; instances, tokens and requests stay. Rules and buckets are not touched by it:
    /// `rules` and `throttle` change with [`behave`](Self::behave) and [`add_rules`](Self::add_rules).
    pub fn adjust(&self, change: impl FnOnce(&mut Behaviour)) {
        self.shared.change(|world| change(&mut world.behaviour));
    }

    /// Adds rules to the end of the script.
    pub fn add_rules(&self, rules: impl IntoIterator<Item = Rule>) {
        self.shared.change(|world| world.script.add(rules.into_iter().collect()));
    }

    /// Lets all requests go that wait at this gate. Later ones wait again if the rule still applies.
    pub fn release(&self, gate: &str) {
        self.shared.open_gates(Some(gate));
    }

    /// Opens all gates once.
    pub fn release_all(&self) {
        self.shared.open_gates(None);
    }

    /// Waits until a request stands at the gate; false if none came in time.
    #[must_use = "a test must not go on as if the request were there"]
    pub fn wait_held(&self, gate: &str, at_most: Duration) -> bool {
        self.shared.wait(at_most, |world| world.held().contains_key(gate))
    }

    /// Waits until something is true of the endpoint; false if it did not become so in time.
    #[must_use = "a test must not go on as if it were so"]
    pub fn wait_until(&self, at_most: Duration, is_so: impl Fn(&Snapshot) -> bool) -> bool {
        self.shared.wait(at_most, |world| is_so(&world.snapshot()))
    }

    /// Changes an instance behind the client's back.
    ///
    /// # Panics
    /// If there is no such instance.
    pub fn change(&self, id: &str, change: InstanceChange) {
        if let Err(why) = self.shared.change(|world| world.change(id, change)) {
            panic!("{why}");
        }
    }

    /// Makes a capacity reservation, or changes the state of one.
    pub fn set_reservation(&self, id: &str, state: &str) {
        self.shared.change(|world| world.set_reservation(CapacityReservation::new(id, state)));
    }

    /// Makes instances nobody asked for, capacity or not; returns their ids.
    ///
    /// # Panics
    /// If the subnet does not exist or has no address left.
    pub fn seed(&self, seed: &Seed) -> Vec<String> {
        match self.shared.seed(seed) {
            Ok(ids) => ids,
            Err(why) => panic!("{why}"),
        }
    }

    /// Forgets instances, requests and tokens; the behaviour stays and its rules begin anew.
    pub fn reset(&self) {
        self.shared.reset();
    }
}
