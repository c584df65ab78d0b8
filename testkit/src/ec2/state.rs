//! Everything the endpoint remembers: instances, requests, tokens, gates. One value behind one lock.
//!
//! Actions (`launch.rs`, `fleet.rs`, `describe.rs`, `tags.rs`, `terminate.rs`, `catalogue.rs`) are methods on [`World`]; they
//! are quick and never wait. Waiting is `serve.rs`.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant, UNIX_EPOCH};

use super::behaviour::{Behaviour, parse_cidr};
use super::faults::{Bucket, Script};
use super::instances::{Instance, InstanceChange, Machine, State, Veil};
use super::params::Params;
use super::xml::{self, ApiError};

/// A request as it was received.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    pub action: String,
    /// Decoded form parameters in the order sent, `Action` and `Version` included.
    pub params: Vec<(String, String)>,
    /// Milliseconds since the epoch.
    pub arrived_ms: u64,
    /// Milliseconds from arrival to the moment the answer was handed to the connection; none while it is at work.
    pub took_ms: Option<f64>,
    /// Status of the answer; none while at work, and when the connection was dropped or left hanging.
    pub status: Option<u16>,
    /// `ok`, an error code, `dropped`, `hung`, `garbage`, `cut`; empty while at work.
    pub answer: String,
    /// Whether the action itself was carried out and succeeded, whatever the client got to hear.
    pub processed: bool,
    /// The access key in the signature.
    pub access_key: String,
}

impl Request {
    /// The value of a form parameter.
    pub fn param(&self, key: &str) -> Option<&str> {
        self.params.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }
}

/// What `GET /_control/state` answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    pub instances: Vec<Instance>,
    pub requests: Vec<Request>,
    /// Requests per action.
    pub counters: BTreeMap<String, u64>,
    /// Ids of living instances.
    pub live: Vec<String>,
    /// Gates at which requests are waiting, with their number.
    pub held: BTreeMap<String, u32>,
}

/// Wall clock time that never goes backwards while the endpoint lives.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    started: Instant,
    epoch_ms: u64,
}

impl Clock {
    #[allow(clippy::disallowed_methods, reason = "a server outside of the product; launch times must be real ones")]
    pub(crate) fn start() -> Self {
        let since = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Clock { started: Instant::now(), epoch_ms: since.as_millis() as u64 }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.at_ms(Instant::now())
    }

    pub(crate) fn at_ms(&self, moment: Instant) -> u64 {
        self.epoch_ms + moment.saturating_duration_since(self.started).as_millis() as u64
    }
}

/// A gate at which requests wait; it lets through those that came before its last opening.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    pub(crate) opened: u64,
    pub(crate) waiting: u32,
}

/// What a client token stands for.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) fingerprint: String,
    pub(crate) machines: Vec<usize>,
    /// Reservation id of RunInstances; fleet id of CreateFleet.
    pub(crate) id: String,
    /// The rest of CreateFleet's answer.
    pub(crate) errors: String,
}

/// What an action gives back: the inside of the answer, and how many instances it launched.
pub(crate) struct Done {
    pub(crate) inner: String,
    pub(crate) launched: usize,
}

impl From<String> for Done {
    fn from(inner: String) -> Self {
        Done { inner, launched: 0 }
    }
}

pub(crate) struct World {
    pub(crate) behaviour: Behaviour,
    pub(crate) script: Script,
    pub(crate) buckets: Vec<Bucket>,
    pub(crate) clock: Clock,
    /// In launch order: ordinal 1 is the first.
    pub(crate) machines: Vec<Machine>,
    pub(crate) index: HashMap<String, usize>,
    /// By action, scope (zone or region) and token.
    pub(crate) launches: HashMap<(String, String, String), Launch>,
    pub(crate) requests: Vec<Request>,
    /// Number of the first of `requests`; not 0 after a reset.
    pub(crate) first_request: usize,
    pub(crate) gates: BTreeMap<String, Gate>,
    /// Names of templates that were asked for, by their derived ids.
    pub(crate) template_names: HashMap<String, String>,
    next_address: HashMap<String, u32>,
    reservations: u64,
}

impl World {
    pub(crate) fn new(behaviour: Behaviour) -> Self {
        let mut world = World {
            behaviour: Behaviour::default(),
            script: Script::default(),
            buckets: Vec::new(),
            clock: Clock::start(),
            machines: Vec::new(),
            index: HashMap::new(),
            launches: HashMap::new(),
            requests: Vec::new(),
            first_request: 0,
            gates: BTreeMap::new(),
            template_names: HashMap::new(),
            next_address: HashMap::new(),
            reservations: 0,
        };
        world.behave(behaviour);
        world
    }

    /// Another behaviour for what is there; rules and buckets begin anew.
    pub(crate) fn behave(&mut self, behaviour: Behaviour) {
        let now = self.clock.now_ms();
        self.script = Script::new(behaviour.rules.clone());
        self.buckets = behaviour.throttle.iter().map(|t| Bucket::new(t.clone(), now)).collect();
        self.behaviour = behaviour;
    }

    /// Takes a token from every bucket in front of the action; false: throttled.
    pub(crate) fn admit(&mut self, action: &str) -> bool {
        let now = self.clock.now_ms();
        self.buckets.iter_mut().all(|b| b.take(action, now))
    }

    /// Carries an action out.
    pub(crate) fn call(&mut self, action: &str, params: &Params) -> Result<Done, ApiError> {
        if params.flag("DryRun") {
            let text = "Request would have succeeded, but DryRun flag is set.";
            return Err(ApiError::new(412, "DryRunOperation", text));
        }
        match action {
            "RunInstances" => self.run_instances(params),
            "CreateFleet" => self.create_fleet(params),
            "DescribeInstances" => self.describe_instances(params).map(Done::from),
            "DescribeInstanceStatus" => self.describe_instance_status(params).map(Done::from),
            "TerminateInstances" => self.terminate_instances(params).map(Done::from),
            "RebootInstances" => self.reboot_instances(params).map(Done::from),
            "GetConsoleOutput" => self.get_console_output(params).map(Done::from),
            "DescribeTags" => self.describe_tags(params).map(Done::from),
            "CreateTags" => self.create_tags(params).map(Done::from),
            "DescribeLaunchTemplates" => self.describe_launch_templates(params).map(Done::from),
            "DescribeLaunchTemplateVersions" => self.describe_launch_template_versions(params).map(Done::from),
            "DescribeSubnets" => self.describe_subnets(params).map(Done::from),
            "DescribeCapacityReservations" => self.describe_capacity_reservations(params).map(Done::from),
            other => Err(ApiError::client("InvalidAction", format!("The action {other} is not valid for this web service."))),
        }
    }

    /// A request by its number; none if a reset has forgotten it.
    pub(crate) fn request(&mut self, number: usize) -> Option<&mut Request> {
        self.requests.get_mut(number.checked_sub(self.first_request)?)
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let instances = self.instances();
        let mut counters = BTreeMap::new();
        for request in &self.requests {
            *counters.entry(request.action.clone()).or_insert(0) += 1;
        }
        Snapshot {
            live: instances.iter().filter(|i| i.state.is_live()).map(|i| i.id.clone()).collect(),
            instances,
            requests: self.requests.clone(),
            counters,
            held: self.held(),
        }
    }

    pub(crate) fn instances(&self) -> Vec<Instance> {
        let now = self.clock.now_ms();
        self.machines.iter().map(|m| m.snapshot(now)).collect()
    }

    pub(crate) fn held(&self) -> BTreeMap<String, u32> {
        let waiting = self.gates.iter().filter(|(_, gate)| gate.waiting > 0);
        waiting.map(|(name, gate)| (name.clone(), gate.waiting)).collect()
    }

    pub(crate) fn change(&mut self, id: &str, change: InstanceChange) -> Result<(), String> {
        let at = *self.index.get(id).ok_or_else(|| format!("there is no instance {id}"))?;
        let machine = &mut self.machines[at];
        machine.forced = change.state.or(machine.forced);
        if change.state == Some(State::Terminated) {
            let now = self.clock.now_ms();
            machine.ending = Some(machine.ending.map_or((now, now), |(asked, end)| (asked, end.min(now))));
        }
        machine.seen.protected = change.protected.unwrap_or(machine.seen.protected);
        machine.seen.launch_time_ms = change.launch_time_ms.unwrap_or(machine.seen.launch_time_ms);
        machine.seen.tags.extend(change.tags.unwrap_or_default());
        machine.console = change.console.or(machine.console.take());
        let (instance, system) = (change.instance_status.or(change.status.clone()), change.system_status.or(change.status));
        machine.instance_status = instance.or(machine.instance_status.take());
        machine.system_status = system.or(machine.system_status.take());
        machine.impaired_since = change.impaired_since_ms.or(machine.impaired_since);
        if let Some(events) = change.events {
            machine.events = events;
        }
        if let Some(yes) = change.no_ip {
            machine.no_ip = Veil::set(yes);
        }
        if let Some(yes) = change.hidden {
            machine.hidden = Veil::set(yes);
        }
        Ok(())
    }

    pub(crate) fn next_reservation(&mut self, prefix: &str) -> String {
        self.reservations += 1;
        format!("{prefix}-0ec2{:013x}", self.reservations)
    }

    /// Free addresses for `count` instances of `cards` cards each in a subnet, or EC2's error.
    pub(crate) fn take_addresses(&mut self, cidr: &str, count: usize) -> Result<Vec<Ipv4Addr>, ApiError> {
        let (first, size) = parse_cidr(cidr).unwrap_or((0, 0)); // checked when the behaviour was given
        let now = self.clock.now_ms();
        let living = self.machines.iter().filter(|m| m.state(now) != State::Terminated);
        let used: BTreeSet<u32> =
            living.flat_map(|m| m.more_addresses.iter().chain([&m.seen.private_ip])).map(|a| u32::from(*a)).collect();
        let from = if self.behaviour.reuse_addresses { 0 } else { *self.next_address.get(cidr).unwrap_or(&0) };
        let mut found = Vec::with_capacity(count);
        for step in 0..size {
            if found.len() == count {
                break;
            }
            let offset = (from + step) % size;
            if !used.contains(&(first + offset)) {
                found.push(Ipv4Addr::from(first + offset));
                self.next_address.insert(cidr.to_owned(), offset + 1);
            }
        }
        if found.len() < count {
            return Err(ApiError::client(
                "InsufficientFreeAddressesInSubnet",
                "There are not enough free addresses in the subnet to satisfy the requested number of instances.",
            ));
        }
        Ok(found)
    }

    /// Positions of these ids; `InvalidInstanceID` errors name all that are malformed or missing.
    pub(crate) fn find(&self, ids: &[&str]) -> Result<Vec<usize>, ApiError> {
        if let Some(bad) = ids.iter().find(|id| !well_formed(id)) {
            return Err(ApiError::client("InvalidInstanceID.Malformed", format!("Invalid id: \"{bad}\"")));
        }
        let missing: Vec<&str> = ids.iter().copied().filter(|id| self.lookup(id).is_none()).collect();
        if !missing.is_empty() {
            return Err(not_found(&missing));
        }
        Ok(ids.iter().filter_map(|id| self.lookup(id)).collect())
    }

    fn lookup(&self, id: &str) -> Option<usize> {
        let at = *self.index.get(id)?;
        (!self.is_forgotten(&self.machines[at])).then_some(at)
    }

    /// Terminated so long ago that EC2 does not show it any more.
    pub(crate) fn is_forgotten(&self, machine: &Machine) -> bool {
        match (machine.ending, self.behaviour.forget_terminated_ms) {
            (Some((_, end)), Some(after)) => self.clock.now_ms() >= end.saturating_add(after),
            _ => false,
        }
    }
}

/// `InvalidInstanceID.NotFound` with all missing ids in its text, as EC2 writes it.
pub(crate) fn not_found(missing: &[&str]) -> ApiError {
    let text = match missing {
        [one] => format!("The instance ID '{one}' does not exist"),
        many => format!("The instance IDs '{}' do not exist", many.join(", ")),
    };
    ApiError::client("InvalidInstanceID.NotFound", text)
}

fn well_formed(id: &str) -> bool {
    id.strip_prefix("i-").is_some_and(|hex| {
        (hex.len() == 8 || hex.len() == 17) && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

/// `<return>true</return>`, the whole answer of several actions.
pub(crate) fn returned() -> String {
    let mut out = String::new();
    xml::element(&mut out, "return", "true");
    out
}
