//! CreateFleet of type `instant`: one shot over launch template overrides.
//!
//! Overrides are served in the order given (by `Priority` where they have one), each as far as its capacity goes;
//! every one that could not give what was still missing adds an entry to `errorSet`. Weights count as 1.

use std::fmt::Write as _;

use super::behaviour::Subnet;
use super::launch::{Recipe, requested_tags, token_key};
use super::params::Params;
use super::state::{Done, Launch, World};
use super::xml::{ApiError, element, escape};

/// How many instances each override gives, and the error of each that fell short.
type Shares = (Vec<u32>, Vec<(usize, ApiError)>);

struct Override {
    instance_type: String,
    subnet: Result<Subnet, (String, ApiError)>,
    template: (String, u32),
    priority: f64,
}

impl Override {
    fn describe(&self, out: &mut String) {
        let subnet = match &self.subnet {
            Ok(subnet) => &subnet.id,
            Err((id, _)) => id,
        };
        let _ = write!(
            out,
            "<launchTemplateAndOverrides><launchTemplateSpecification><launchTemplateName>{}</launchTemplateName>\
             <version>{}</version></launchTemplateSpecification><overrides><instanceType>{}</instanceType>\
             <subnetId>{}</subnetId></overrides></launchTemplateAndOverrides>",
            escape(&self.template.0),
            self.template.1,
            escape(&self.instance_type),
            escape(subnet)
        );
    }
}

impl World {
    pub(crate) fn create_fleet(&mut self, params: &Params) -> Result<Done, ApiError> {
        if params.get("Type") != Some("instant") {
            return Err(ApiError::client("InvalidParameterValue", "This endpoint serves fleets of type instant only."));
        }
        let total = params
            .number("TargetCapacitySpecification.TotalTargetCapacity")?
            .filter(|n| *n >= 1)
            .ok_or_else(|| ApiError::client("InvalidParameterValue", "TotalTargetCapacity must be at least 1."))?;
        let spot = params.get("TargetCapacitySpecification.DefaultTargetCapacityType") == Some("spot");
        let options = if spot { "SpotOptions" } else { "OnDemandOptions" };
        let least = params.number(&format!("{options}.MinTargetCapacity"))?.unwrap_or(0);
        let one_type = params.flag(&format!("{options}.SingleInstanceType"));
        let one_zone = params.flag(&format!("{options}.SingleAvailabilityZone"));
        check_least(least, total, one_type || one_zone)?;
        let overrides = self.overrides(params, total)?;

        let key = token_key("CreateFleet", None, params)?;
        if let Some(launch) = self.repeated(key.as_ref(), params)? {
            return Ok(Done::from(self.fleet_answer(&launch, &overrides)));
        }
        let (shares, mut errors) = self.share_out(&overrides, total, (one_type, one_zone));
        let launchable: u32 = shares.iter().sum();
        let fleet = self.next_reservation("fleet");
        let mut launch = Launch { fingerprint: String::new(), machines: Vec::new(), id: fleet.clone(), errors: String::new() };
        if launchable >= least.max(1) {
            for (at, count) in shares.iter().enumerate().filter(|(_, n)| **n > 0) {
                let (Ok(subnet), template) = (overrides[at].subnet.clone(), overrides[at].template.clone()) else {
                    continue;
                };
                let mut tags = self.template_named(&template.0).tags;
                tags.extend(requested_tags(params));
                let recipe = Recipe {
                    instance_type: overrides[at].instance_type.clone(),
                    subnet,
                    tags,
                    token: params.get("ClientToken").unwrap_or_default().to_owned(),
                    spot,
                    fleet: Some(fleet.clone()),
                    template: Some(template),
                };
                let reservation = self.next_reservation("r");
                match self.make(&recipe, *count as usize, &reservation) {
                    Ok(machines) => launch.machines.extend(machines),
                    Err(error) => errors.push((at, error)),
                }
            }
        }
        for (at, error) in errors {
            launch.errors.push_str("<item>");
            overrides[at].describe(&mut launch.errors);
            element(&mut launch.errors, "lifecycle", if spot { "spot" } else { "on-demand" });
            element(&mut launch.errors, "errorCode", &error.code);
            element(&mut launch.errors, "errorMessage", &error.message);
            launch.errors.push_str("</item>");
        }
        let done = Done { inner: self.fleet_answer(&launch, &overrides), launched: launch.machines.len() };
        self.remember(key, params, launch);
        Ok(done)
    }

    /// Every template × override of the request; an unknown subnet is that override's own error.
    fn overrides(&mut self, params: &Params, total: u32) -> Result<Vec<Override>, ApiError> {
        let mut found = Vec::new();
        for config in params.groups("LaunchTemplateConfigs") {
            let Some((template, version)) = self.template_of("LaunchTemplateSpecification", &config)? else {
                return Err(ApiError::client("MissingParameter", "LaunchTemplateSpecification is missing."));
            };
            let mut listed = config.groups("Overrides");
            if listed.is_empty() {
                listed.push(Params::default());
            }
            for entry in listed {
                let instance_type = self.type_of(entry.get("InstanceType"), template.instance_type.as_deref())?;
                let subnet = match entry.get("SubnetId").or(template.subnet.as_deref()) {
                    Some(id) => self.known_subnet(id).map_err(|e| (id.to_owned(), e)),
                    None => Ok(self.roomiest_subnet(&instance_type, total)),
                };
                let priority = entry.get("Priority").and_then(|p| p.parse().ok()).unwrap_or(f64::MAX);
                found.push(Override { instance_type, subnet, template: (template.name.clone(), version), priority });
            }
        }
        if found.is_empty() {
            return Err(ApiError::client("MissingParameter", "LaunchTemplateConfigs is missing."));
        }
        found.sort_by(|a, b| a.priority.total_cmp(&b.priority));
        Ok(found)
    }

    /// How many instances each override gives, and what the others answered.
    fn share_out(&self, overrides: &[Override], total: u32, (one_type, one_zone): (bool, bool)) -> Shares {
        let place = |o: &Override| {
            let zone = o.subnet.as_ref().map(|s| s.zone.clone()).unwrap_or_default();
            (if one_type { o.instance_type.clone() } else { String::new() }, if one_zone { zone } else { String::new() })
        };
        let mut best: Option<Shares> = None;
        let mut tried = Vec::new();
        let mut all_errors = Vec::new();
        for choice in overrides.iter().map(place) {
            if tried.contains(&choice) {
                continue;
            }
            let mut shares = vec![0; overrides.len()];
            let mut errors = Vec::new();
            let mut missing = total;
            for (at, o) in overrides.iter().enumerate().filter(|(_, o)| place(o) == choice) {
                match &o.subnet {
                    _ if missing == 0 => break,
                    Err((_, error)) => errors.push((at, error.clone())),
                    Ok(subnet) => {
                        // Two overrides may draw on one limit: what is promised to earlier ones counts as taken.
                        let promised: u32 = (0..at).filter(|b| shares_limit(self, &overrides[*b], o)).map(|b| shares[b]).sum();
                        let (room, error) = self.room(&o.instance_type, subnet, missing + promised);
                        shares[at] = room.saturating_sub(promised).min(missing);
                        missing -= shares[at];
                        errors.extend(error.filter(|_| missing > 0).map(|e| (at, e)));
                    }
                }
            }
            tried.push(choice);
            all_errors.extend(errors.iter().cloned());
            let given: u32 = shares.iter().sum();
            if best.as_ref().is_none_or(|(b, _)| given > b.iter().sum()) {
                best = Some((shares, errors));
            }
            if given == total {
                break;
            }
        }
        let (shares, errors) = best.unwrap_or_default();
        let nothing = shares.iter().all(|n| *n == 0);
        (shares, if nothing { all_errors } else { errors })
    }

    fn fleet_answer(&self, launch: &Launch, overrides: &[Override]) -> String {
        let mut out = String::new();
        element(&mut out, "fleetId", &launch.id);
        let _ = write!(out, "<errorSet>{}</errorSet><fleetInstanceSet>", launch.errors);
        let machines: Vec<_> = launch.machines.iter().map(|at| &self.machines[*at].seen).collect();
        for group in machines.chunk_by(|a, b| a.reservation == b.reservation) {
            out.push_str("<item>");
            let used = overrides
                .iter()
                .find(|o| o.instance_type == group[0].instance_type && o.subnet.as_ref().is_ok_and(|s| s.id == group[0].subnet));
            if let Some(used) = used {
                used.describe(&mut out);
            }
            element(&mut out, "lifecycle", if group[0].spot { "spot" } else { "on-demand" });
            out.push_str("<instanceIds>");
            group.iter().for_each(|m| element(&mut out, "item", &m.id));
            out.push_str("</instanceIds>");
            element(&mut out, "instanceType", &group[0].instance_type);
            out.push_str("</item>");
        }
        out.push_str("</fleetInstanceSet>");
        out
    }
}

/// Whether some limit of the behaviour covers both overrides.
fn shares_limit(world: &World, a: &Override, b: &Override) -> bool {
    let covers = |c: &super::behaviour::Capacity, o: &Override| {
        super::params::glob(&c.instance_type, &o.instance_type)
            && o.subnet.as_ref().is_ok_and(|s| super::params::glob(&c.subnet, &s.id))
    };
    world.behaviour.capacity.iter().any(|c| covers(c, a) && covers(c, b))
}

fn check_least(least: u32, total: u32, single: bool) -> Result<(), ApiError> {
    if least == 0 {
        return Ok(());
    }
    if !single {
        let text = "MinTargetCapacity needs SingleInstanceType or SingleAvailabilityZone.";
        return Err(ApiError::client("InvalidParameterCombination", text));
    }
    if least > 1000 || least > total {
        let text = format!("MinTargetCapacity {least} is above 1000 or above the total target capacity {total}.");
        return Err(ApiError::client("InvalidParameterValue", text));
    }
    Ok(())
}
