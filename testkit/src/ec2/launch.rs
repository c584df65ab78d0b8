//! RunInstances, and what it shares with CreateFleet: templates, capacity, tokens, making instances.

use std::collections::BTreeMap;

use super::behaviour::Subnet;
use super::instance_xml::{Show, write_instance};
use super::instances::{Instance, Machine, State, Veil};
use super::params::{Params, glob};
use super::state::{Done, Launch, World};
use super::xml::{ApiError, element};

/// What the instances of one launch have in common.
pub(crate) struct Recipe {
    pub(crate) instance_type: String,
    pub(crate) subnet: Subnet,
    pub(crate) tags: BTreeMap<String, String>,
    pub(crate) token: String,
    pub(crate) spot: bool,
    pub(crate) fleet: Option<String>,
    pub(crate) template: Option<(String, u32)>,
}

/// The place where a client token is known: zonal if the request says where, else the region.
pub(crate) type TokenKey = (String, String, String);

impl World {
    pub(crate) fn run_instances(&mut self, params: &Params) -> Result<Done, ApiError> {
        let template = self.template_of("LaunchTemplate", params)?;
        let least = required_count(params, "MinCount")?;
        let most = required_count(params, "MaxCount")?;
        if least > most {
            return Err(ApiError::client("InvalidParameterValue", "MinCount must not be greater than MaxCount"));
        }
        let instance_type =
            self.type_of(params.get("InstanceType"), template.as_ref().and_then(|t| t.0.instance_type.as_deref()))?;
        let interface = params.groups("NetworkInterface").iter().find_map(|g| g.get("SubnetId").map(str::to_owned));
        let wanted = params.get("SubnetId").map(str::to_owned).or(interface);
        let wanted = wanted.or(template.as_ref().and_then(|t| t.0.subnet.clone()));
        let subnet = wanted.map(|id| self.known_subnet(&id)).transpose()?;

        let key = token_key("RunInstances", subnet.as_ref().map(|s| s.zone.as_str()), params)?;
        if let Some(launch) = self.repeated(key.as_ref(), params)? {
            let inner = self.reservation(&launch.id, &launch.machines, true);
            return Ok(Done { inner, launched: 0 });
        }
        if self.behaviour.max_per_call.is_some_and(|limit| least > limit) {
            let text = format!("The requested number of instances, {least}, is too large for one call.");
            return Err(ApiError::client("ResourceCountExceeded", text));
        }
        let subnet = subnet.unwrap_or_else(|| self.roomiest_subnet(&instance_type, most));
        let (room, shortage) = self.room(&instance_type, &subnet, most);
        if room < least {
            return Err(shortage.unwrap_or_else(|| ApiError::new(500, "InsufficientInstanceCapacity", "")));
        }
        let mut tags = template.as_ref().map(|t| t.0.tags.clone()).unwrap_or_default();
        tags.extend(requested_tags(params));
        let spot = params.get("InstanceMarketOptions.MarketType") == Some("spot");
        let template = template.map(|(t, version)| (t.name, version));
        let token = params.get("ClientToken").unwrap_or_default().to_owned();
        let recipe = Recipe { instance_type, subnet, tags, token, spot, fleet: None, template };
        let reservation = self.next_reservation("r");
        let machines = self.make(&recipe, room as usize, &reservation)?;
        let inner = self.reservation(&reservation, &machines, false);
        let launched = machines.len();
        self.remember(key, params, Launch { fingerprint: String::new(), machines, id: reservation, errors: String::new() });
        Ok(Done { inner, launched })
    }

    fn reservation(&mut self, id: &str, machines: &[usize], repeated: bool) -> String {
        let now = self.clock.now_ms();
        let size = if self.behaviour.full_size { 2900 } else { 1300 };
        let mut out = String::with_capacity(machines.len() * size + 256);
        element(&mut out, "reservationId", id);
        out.push_str("<ownerId>123456789012</ownerId><groupSet/><instancesSet>");
        for machine in machines.iter().map(|at| &self.machines[*at]) {
            let state = if repeated { machine.state(now) } else { State::Pending };
            let address = self.behaviour.ip_in_launch_answer && machine.no_ip.until != u64::MAX;
            write_instance(&mut out, machine, Show { state, address, full: self.behaviour.full_size });
        }
        out.push_str("</instancesSet>");
        out
    }

    /// What a token already stands for, if the request is the same and its instances are not all gone.
    pub(crate) fn repeated(&self, key: Option<&TokenKey>, params: &Params) -> Result<Option<Launch>, ApiError> {
        let Some(launch) = key.and_then(|key| self.launches.get(key)) else {
            return Ok(None);
        };
        if launch.fingerprint != params.fingerprint() {
            let text = "Arguments on this idempotent request are inconsistent with arguments used in previous request(s).";
            return Err(ApiError::client("IdempotentParameterMismatch", text));
        }
        let now = self.clock.now_ms();
        let gone = |at: &usize| matches!(self.machines[*at].state(now), State::ShuttingDown | State::Terminated);
        if !launch.machines.is_empty() && launch.machines.iter().all(gone) {
            let text = "The instances of the previous request with this client token have been terminated.";
            return Err(ApiError::client("IdempotentInstanceTerminated", text));
        }
        Ok(Some(launch.clone()))
    }

    pub(crate) fn remember(&mut self, key: Option<TokenKey>, params: &Params, launch: Launch) {
        if let Some(key) = key {
            self.launches.insert(key, Launch { fingerprint: params.fingerprint(), ..launch });
        }
    }

    pub(crate) fn type_of(&self, asked: Option<&str>, template: Option<&str>) -> Result<String, ApiError> {
        let name = asked.or(template).unwrap_or(&self.behaviour.default_type);
        if self.behaviour.bad_types.iter().any(|bad| bad == name) {
            return Err(ApiError::client("InvalidParameterValue", format!("Invalid value '{name}' for InstanceType.")));
        }
        Ok(name.to_owned())
    }

    pub(crate) fn known_subnet(&self, id: &str) -> Result<Subnet, ApiError> {
        self.behaviour
            .subnet(id)
            .cloned()
            .ok_or_else(|| ApiError::client("InvalidSubnetID.NotFound", format!("The subnet ID '{id}' does not exist")))
    }

    /// Nobody said where: the first subnet that has room for all, else the one with most room.
    pub(crate) fn roomiest_subnet(&self, instance_type: &str, most: u32) -> Subnet {
        let subnets = &self.behaviour.subnets;
        let rooms = subnets.iter().map(|s| self.room(instance_type, s, most).0);
        let best = rooms.enumerate().rev().max_by_key(|(_, room)| *room).map_or(0, |(at, _)| at);
        subnets[best].clone()
    }

    /// How many of `wanted` instances fit, and the error of the limit that stands in the way of more.
    pub(crate) fn room(&self, instance_type: &str, subnet: &Subnet, wanted: u32) -> (u32, Option<ApiError>) {
        let now = self.clock.now_ms();
        let matching = self.behaviour.capacity.iter();
        let matching = matching.filter(|c| glob(&c.instance_type, instance_type) && glob(&c.subnet, &subnet.id));
        let mut room = (wanted, None);
        for limit in matching {
            let living = self.machines.iter().filter(|m| {
                m.state(now).is_live() && glob(&limit.instance_type, &m.seen.instance_type) && glob(&limit.subnet, &m.seen.subnet)
            });
            let left = limit.limit.saturating_sub(living.count() as u32);
            if left < room.0 {
                let text = format!(
                    "We currently do not have sufficient {instance_type} capacity in the Availability Zone you \
                     requested ({}). Our system will be working on provisioning additional capacity.",
                    subnet.zone
                );
                room = (left, Some(ApiError::new(limit.status, &limit.code, text)));
            }
        }
        room
    }

    /// Makes instances; what they hide, and for how long, is the behaviour's at this moment.
    pub(crate) fn make(&mut self, recipe: &Recipe, count: usize, reservation: &str) -> Result<Vec<usize>, ApiError> {
        let cards = self.behaviour.network_cards.max(1) as usize;
        let cidr = recipe.subnet.cidr.clone().unwrap_or_else(|| self.behaviour.cidr.clone());
        let addresses = self.take_addresses(&cidr, count * cards)?;
        let now = self.clock.now_ms();
        let first = self.machines.len();
        for (launch_index, addresses) in addresses.chunks(cards).enumerate() {
            let ordinal = self.machines.len() as u64 + 1;
            let b = &self.behaviour;
            let [o1, o2, o3, o4] = addresses[0].octets();
            let mut tags = recipe.tags.clone();
            if let Some((name, version)) = &recipe.template {
                tags.insert("aws:ec2launchtemplate:id".to_owned(), self.template_named(name).id);
                tags.insert("aws:ec2launchtemplate:version".to_owned(), version.to_string());
            }
            if let Some(fleet) = &recipe.fleet {
                tags.insert("aws:ec2:fleet-id".to_owned(), fleet.clone());
            }
            let seen = Instance {
                id: format!("i-0ec2{ordinal:013x}"),
                ordinal,
                state: State::Pending,
                instance_type: recipe.instance_type.clone(),
                subnet: recipe.subnet.id.clone(),
                zone: recipe.subnet.zone.clone(),
                private_ip: addresses[0],
                hostname: format!("ip-{o1}-{o2}-{o3}-{o4}.{}.compute.internal", b.region),
                launch_time_ms: now,
                tags,
                client_token: recipe.token.clone(),
                reservation: reservation.to_owned(),
                fleet: recipe.fleet.clone(),
                spot: recipe.spot,
                template: recipe.template.as_ref().map(|t| t.0.clone()),
                template_version: recipe.template.as_ref().map(|t| t.1),
                reboots: 0,
                protected: b.protected.contains(&ordinal),
            };
            let never = b.never_ip.contains(&ordinal);
            let machine = Machine {
                running_at: now + b.boot_ms,
                ending: None,
                forced: None,
                hidden: Veil { looks: b.hidden_describes, until: now + b.hidden_ms },
                no_ip: if never { Veil::for_ever() } else { Veil { looks: b.no_ip_describes, until: now + b.no_ip_ms } },
                console: None,
                instance_status: None,
                system_status: None,
                impaired_since: None,
                events: Vec::new(),
                more_addresses: addresses[1..].to_vec(),
                shuffle_cards: b.shuffle_cards,
                launch_index: launch_index as u32,
                seen,
            };
            self.index.insert(machine.seen.id.clone(), self.machines.len());
            self.machines.push(machine);
        }
        Ok((first..self.machines.len()).collect())
    }
}

/// Tags for instances in a launch request.
pub(crate) fn requested_tags(params: &Params) -> Vec<(String, String)> {
    let specifications = params.groups("TagSpecification").into_iter();
    specifications.filter(|g| g.get("ResourceType") == Some("instance")).flat_map(|g| g.tags("Tag")).collect()
}

pub(crate) fn token_key(action: &str, zone: Option<&str>, params: &Params) -> Result<Option<TokenKey>, ApiError> {
    let Some(token) = params.get("ClientToken").filter(|t| !t.is_empty()) else {
        return Ok(None);
    };
    if token.len() > 64 || !token.is_ascii() {
        let text = "The client token must have at most 64 ASCII characters.";
        return Err(ApiError::client("InvalidClientToken", text));
    }
    Ok(Some((action.to_owned(), zone.unwrap_or("region").to_owned(), token.to_owned())))
}

fn required_count(params: &Params, key: &str) -> Result<u32, ApiError> {
    params.require(key)?;
    params
        .number(key)?
        .filter(|n| *n >= 1)
        .ok_or_else(|| ApiError::client("InvalidParameterValue", format!("Value for {key} must be at least 1.")))
}
