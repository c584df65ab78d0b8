//! What the endpoint is told to be: plain values, the same in Rust and in the JSON behaviour file.
//!
//! Every field has a default, so a file or a struct literal names only what a test is about. Unknown keys are
//! refused. Nothing here acts; `state.rs`, `launch.rs` and `faults.rs` read it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::rules::Rule;

/// The world as this endpoint plays it. Times are milliseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Behaviour {
    /// Part of host names and of the default zones.
    pub region: String,
    /// Subnets that exist; any other id is `InvalidSubnetID.NotFound`. Default: [`DEFAULT_SUBNETS`] in zones a, b, c.
    pub subnets: Vec<Subnet>,
    /// Private addresses come from here unless the subnet has a CIDR of its own. 127.0.0.0/8 can be reached on loopback.
    pub cidr: String,
    /// Take the lowest address no living instance has, instead of a fresh one each time.
    pub reuse_addresses: bool,
    /// Launch templates with properties of their own. One that is not listed exists as well, with version 1.
    pub templates: Vec<Template>,
    /// Names or ids of launch templates that do not exist.
    pub bad_templates: Vec<String>,
    /// Instance types that do not exist.
    pub bad_types: Vec<String>,
    /// Instance type when neither request nor template names one.
    pub default_type: String,
    /// Limits on living instances; a launch gets the smallest room that any matching limit leaves.
    pub capacity: Vec<Capacity>,
    /// A launch call that asks for more at least (MinCount) is refused with `ResourceCountExceeded`.
    pub max_per_call: Option<u32>,
    /// Instances in answers have all the fields that EC2 sends (about 2.5 KB each), not only those anyone reads.
    pub full_size: bool,
    /// Network interfaces per instance, one per card; card 0, device 0 is the primary one.
    pub network_cards: u32,
    /// Put the primary interface last instead of first.
    pub shuffle_cards: bool,
    /// Instances in describe answers come in another order than they were launched in.
    pub shuffle_order: bool,
    /// How long an instance is `pending`. At 0 the launch answer says pending, and whoever looks next sees running.
    pub boot_ms: u64,
    /// How long an instance is `shutting-down`. At 0 the terminate answer says so, and whoever looks next sees terminated.
    pub shutting_down_ms: u64,
    /// After this long a terminated instance is not found any more; none: it stays visible.
    pub forget_terminated_ms: Option<u64>,
    /// A new instance is absent from this many DescribeInstances calls that ask for it.
    pub hidden_describes: u32,
    /// A new instance is absent from DescribeInstances for this long.
    pub hidden_ms: u64,
    /// While an instance is hidden, TerminateInstances does not find it either.
    pub hidden_from_terminate: bool,
    /// A new instance is shown without private address in this many DescribeInstances answers.
    pub no_ip_describes: u32,
    /// A new instance is shown without private address for this long.
    pub no_ip_ms: u64,
    /// Which launched instances (1 = first of this endpoint's life) never show a private address.
    pub never_ip: Vec<u64>,
    /// Whether RunInstances itself answers with the private addresses, as EC2 normally does.
    pub ip_in_launch_answer: bool,
    /// Which launched instances (1 = first) are protected from termination.
    pub protected: Vec<u64>,
    /// At most this many instances on a page of DescribeInstances, whatever MaxResults says.
    pub page_size: Option<u32>,
    /// Capacity reservations (Capacity Blocks among them); no other exists.
    pub capacity_reservations: Vec<CapacityReservation>,
    /// Console text of every instance; empty: GetConsoleOutput has none.
    pub console: String,
    /// How long calls take.
    pub latency: Latency,
    /// Token buckets, one per entry; an empty bucket answers `RequestLimitExceeded`.
    pub throttle: Vec<Throttle>,
    /// The fault script, see [`Rule`].
    pub rules: Vec<Rule>,
}

/// The subnets of a default [`Behaviour`], in zones a, b and c of its region.
pub const DEFAULT_SUBNETS: [&str; 3] = ["subnet-0000000a", "subnet-0000000b", "subnet-0000000c"];

impl Default for Behaviour {
    fn default() -> Self {
        let region = "eu-west-1";
        let subnets = DEFAULT_SUBNETS.iter().zip(["a", "b", "c"]).map(|(id, zone)| Subnet {
            id: (*id).to_owned(),
            zone: format!("{region}{zone}"),
            cidr: None,
        });
        Behaviour {
            region: region.to_owned(),
            subnets: subnets.collect(),
            cidr: "127.20.0.0/16".to_owned(),
            reuse_addresses: false,
            templates: Vec::new(),
            bad_templates: Vec::new(),
            bad_types: Vec::new(),
            default_type: "c5.large".to_owned(),
            capacity: Vec::new(),
            max_per_call: None,
            full_size: true,
            network_cards: 1,
            shuffle_cards: false,
            shuffle_order: false,
            boot_ms: 0,
            shutting_down_ms: 0,
            forget_terminated_ms: None,
            hidden_describes: 0,
            hidden_ms: 0,
            hidden_from_terminate: false,
            no_ip_describes: 0,
            no_ip_ms: 0,
            never_ip: Vec::new(),
            ip_in_launch_answer: true,
            protected: Vec::new(),
            page_size: None,
            capacity_reservations: Vec::new(),
            console: "[    0.000000] Linux version 6.1.0\n[    2.113000] cloud-init: finished\n".to_owned(),
            latency: Latency::default(),
            throttle: Vec::new(),
            rules: Vec::new(),
        }
    }
}

impl Behaviour {
    /// Default behaviour with the given fault script.
    pub fn with_rules(rules: Vec<Rule>) -> Self {
        Behaviour { rules, ..Behaviour::default() }
    }

    /// Default behaviour with the given limits on living instances.
    pub fn with_capacity(capacity: Vec<Capacity>) -> Self {
        Behaviour { capacity, ..Behaviour::default() }
    }

    /// Reads a behaviour file.
    ///
    /// # Errors
    /// Says where the JSON is wrong, or which key, CIDR or reference makes no sense.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let behaviour: Behaviour = serde_json::from_str(text).map_err(|e| e.to_string())?;
        behaviour.check()?;
        Ok(behaviour)
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        if self.subnets.is_empty() {
            return Err("behaviour: `subnets` is empty, nothing could be launched".to_owned());
        }
        let cidrs = self.subnets.iter().filter_map(|s| s.cidr.as_ref()).chain([&self.cidr]);
        for cidr in cidrs {
            parse_cidr(cidr).ok_or_else(|| format!("behaviour: `{cidr}` is not an IPv4 CIDR of /8 to /30"))?;
        }
        for template in &self.templates {
            if let Some(subnet) = &template.subnet {
                self.subnet(subnet)
                    .ok_or_else(|| format!("behaviour: template `{}` names unknown subnet `{subnet}`", template.name))?;
            }
        }
        for bucket in &self.throttle {
            if !(bucket.burst >= 1.0 && bucket.per_second > 0.0) {
                return Err(format!("behaviour: throttle of `{}` needs burst >= 1 and per_second > 0", bucket.action));
            }
        }
        self.rules.iter().try_for_each(Rule::check)
    }

    pub(crate) fn subnet(&self, id: &str) -> Option<&Subnet> {
        self.subnets.iter().find(|s| s.id == id)
    }
}

/// First usable address and number of usable ones, leaving out the first four and the last, as a VPC does.
pub(crate) fn parse_cidr(cidr: &str) -> Option<(u32, u32)> {
    let (address, bits) = cidr.split_once('/')?;
    let address: std::net::Ipv4Addr = address.parse().ok()?;
    let bits: u32 = bits.parse().ok().filter(|b| (8..=30).contains(b))?;
    let size = 1u32 << (32 - bits);
    let base = u32::from(address) & !(size - 1);
    // A /29 or /30 is for tests that want to run out of addresses: one address is kept even there.
    Some((base + 4.min(size - 2), (size - 1).saturating_sub(4).max(1)))
}

/// A subnet and the zone it is in.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subnet {
    pub id: String,
    pub zone: String,
    /// Addresses of this subnet; none: those of [`Behaviour::cidr`].
    #[serde(default)]
    pub cidr: Option<String>,
}

/// A launch template with properties of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Template {
    pub name: String,
    /// Empty: derived from the name.
    pub id: String,
    pub default_version: u32,
    pub latest_version: u32,
    pub instance_type: Option<String>,
    pub subnet: Option<String>,
    /// Tags of its instances; tags of the request win.
    pub tags: BTreeMap<String, String>,
}

impl Default for Template {
    fn default() -> Self {
        Template {
            name: String::new(),
            id: String::new(),
            default_version: 1,
            latest_version: 1,
            instance_type: None,
            subnet: None,
            tags: BTreeMap::new(),
        }
    }
}

/// "At most `limit` living instances of this type in this subnet, beyond it this error". `*` and `?` are wildcards.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Capacity {
    pub instance_type: String,
    pub subnet: String,
    pub limit: u32,
    pub code: String,
    pub status: u16,
}

impl Default for Capacity {
    fn default() -> Self {
        Capacity {
            instance_type: "*".to_owned(),
            subnet: "*".to_owned(),
            limit: 0,
            code: "InsufficientInstanceCapacity".to_owned(),
            status: 500,
        }
    }
}

impl Capacity {
    /// At most `limit` living instances; beyond: `InsufficientInstanceCapacity`, HTTP 500.
    pub fn limit(instance_type: &str, subnet: &str, limit: u32) -> Self {
        Capacity { instance_type: instance_type.to_owned(), subnet: subnet.to_owned(), limit, ..Capacity::default() }
    }

    /// Answers with another code, for example `VcpuLimitExceeded` or `Unsupported` with 400.
    #[must_use]
    pub fn code(self, code: &str, status: u16) -> Self {
        Capacity { code: code.to_owned(), status, ..self }
    }
}

/// A capacity reservation and the state that EC2 tells of it: `scheduled`, `payment-pending`, `active`, `expired`, …
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CapacityReservation {
    /// `cr-…`
    pub id: String,
    pub state: String,
}

impl CapacityReservation {
    pub fn new(id: &str, state: &str) -> Self {
        CapacityReservation { id: id.to_owned(), state: state.to_owned() }
    }
}

/// How long calls take, from arrival to answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Latency {
    /// RunInstances and CreateFleet: for the call.
    pub base_ms: u64,
    /// RunInstances and CreateFleet: for each instance launched.
    pub per_instance_ms: u64,
    /// Every other call.
    pub other_ms: u64,
}

impl Latency {
    /// The benchmark's EC2: 1.5 s and 5 ms per instance for a launch call, nothing for others.
    pub fn bench() -> Self {
        Latency { base_ms: 1500, per_instance_ms: 5, other_ms: 0 }
    }
}

/// A token bucket in front of an action (`*`: in front of all).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Throttle {
    pub action: String,
    pub burst: f64,
    pub per_second: f64,
}

impl Throttle {
    /// What EC2 documents for RunInstances: 5 at once, then 2 a second.
    pub fn run_instances() -> Self {
        Throttle { action: "RunInstances".to_owned(), burst: 5.0, per_second: 2.0 }
    }
}
