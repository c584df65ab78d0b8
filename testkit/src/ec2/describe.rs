//! DescribeInstances: filters, pages, and what is not visible yet. Filters and pages are also those of `status.rs`, `tags.rs` and `blocks.rs`.

use std::collections::BTreeMap;

use super::instance_xml::{Show, write_instance};
use super::instances::{Machine, State, Whose};
use super::params::{Params, glob};
use super::state::{World, not_found};
use super::xml::{ApiError, element};

/// A filter: any of the values, wildcards allowed.
pub(super) struct Filter {
    pub(super) name: String,
    pub(super) values: Vec<String>,
}

impl World {
    pub(crate) fn describe_instances(&mut self, params: &Params) -> Result<String, ApiError> {
        let ids = params.list("InstanceId");
        let filters = read_filters(params, &FILTERS)?;
        let (limit, from) = page(params, &ids, 5)?;
        let now = self.clock.now_ms();
        let limit = match (ids.is_empty(), self.behaviour.page_size) {
            (true, Some(size)) => Some(limit.unwrap_or(usize::MAX).min(size.max(1) as usize)),
            _ => limit,
        };

        let candidates: Vec<usize> = if ids.is_empty() {
            (from..self.machines.len()).filter(|at| !self.is_forgotten(&self.machines[*at])).collect()
        } else {
            self.visible(&ids)?
        };
        let mut chosen = Vec::new();
        let mut next = None;
        for at in candidates {
            let machine = &mut self.machines[at];
            let state = machine.state(now);
            if !filters.iter().all(|f| f.holds(machine, state, now)) {
                continue;
            }
            if limit.is_some_and(|limit| chosen.len() == limit) {
                next = Some(at);
                break;
            }
            if ids.is_empty() && machine.hidden.look(now) {
                continue;
            }
            chosen.push(at);
        }
        Ok(self.reservations(&chosen, next))
    }

    fn reservations(&mut self, chosen: &[usize], next: Option<usize>) -> String {
        let now = self.clock.now_ms();
        let full = self.behaviour.full_size;
        let mut by_reservation: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for at in chosen {
            by_reservation.entry(self.machines[*at].seen.reservation.clone()).or_default().push(*at);
        }
        let mut out = String::with_capacity(chosen.len() * if full { 2900 } else { 1300 } + 256);
        out.push_str("<reservationSet>");
        let mut groups: Vec<_> = by_reservation.into_iter().collect();
        if self.behaviour.shuffle_order {
            groups.reverse();
            groups.iter_mut().for_each(|(_, members)| shuffle(members));
        }
        for (reservation, members) in groups {
            out.push_str("<item>");
            element(&mut out, "reservationId", &reservation);
            out.push_str("<ownerId>123456789012</ownerId><groupSet/><instancesSet>");
            for at in members {
                let machine = &mut self.machines[at];
                let show = Show { state: machine.state(now), address: !machine.no_ip.look(now), full };
                write_instance(&mut out, machine, show);
            }
            out.push_str("</instancesSet></item>");
        }
        out.push_str("</reservationSet>");
        if let Some(at) = next {
            element(&mut out, "nextToken", &format!("page-{at}"));
        }
        out
    }

    /// Positions of ids that were asked for by name; those not visible yet are as missing as unknown ones.
    fn visible(&mut self, ids: &[&str]) -> Result<Vec<usize>, ApiError> {
        let now = self.clock.now_ms();
        let known = self.find(ids);
        let mut hidden = Vec::new();
        for id in ids {
            if let Some(at) = self.index.get(*id)
                && self.machines[*at].hidden.look(now)
            {
                hidden.push(*id);
            }
        }
        match known {
            Err(error) if error.code.ends_with("Malformed") => Err(error),
            Ok(found) if hidden.is_empty() => {
                Ok(found.into_iter().collect::<std::collections::BTreeSet<_>>().into_iter().collect())
            }
            _ => {
                let missing = |id: &&str| hidden.contains(id) || self.find(&[*id]).is_err();
                Err(not_found(&ids.iter().copied().filter(missing).collect::<Vec<_>>()))
            }
        }
    }
}

/// Page length and the position it begins at.
pub(super) fn page(params: &Params, ids: &[&str], smallest: u32) -> Result<(Option<usize>, usize), ApiError> {
    let limit = params.number("MaxResults")?;
    if limit.is_some() && !ids.is_empty() {
        let text = "The parameter instancesSet cannot be used with the parameter maxResults";
        return Err(ApiError::client("InvalidParameterCombination", text));
    }
    if limit.is_some_and(|n| !(smallest..=1000).contains(&n)) {
        let text = format!(
            "Value ( {} ) for parameter maxResults is invalid. Expecting a value between 5 and 1000.",
            limit.unwrap_or(0)
        );
        return Err(ApiError::client("InvalidParameterValue", text));
    }
    let from = match params.get("NextToken").filter(|t| !t.is_empty()) {
        None => 0,
        Some(token) => token
            .strip_prefix("page-")
            .and_then(|n| n.parse().ok())
            .ok_or_else(|| ApiError::client("InvalidNextToken", format!("The token '{token}' is not one of this service.")))?,
    };
    Ok((limit.map(|n| n as usize), from))
}

/// The filters of a request; only those of `known` exist, where `tag:` stands for every filter by tag.
pub(super) fn read_filters(params: &Params, known: &[&str]) -> Result<Vec<Filter>, ApiError> {
    let groups = params.groups("Filter");
    let mut filters = Vec::new();
    for group in &groups {
        let name = group.require("Name")?.to_owned();
        let values: Vec<String> = group.list("Value").into_iter().map(str::to_owned).collect();
        if values.len() > 200 || groups.len() > 50 {
            let text = "At most 50 filters with 200 values each may be given.";
            return Err(ApiError::client("FilterLimitExceeded", text));
        }
        let by_tag = name.starts_with("tag:") && known.contains(&"tag:");
        if !by_tag && !known.contains(&name.as_str()) {
            return Err(ApiError::client("InvalidParameterValue", format!("The filter '{name}' is invalid")));
        }
        filters.push(Filter { name, values });
    }
    Ok(filters)
}

const FILTERS: [&str; 16] = [
    "instance-state-name",
    "instance-id",
    "private-ip-address",
    "network-interface.addresses.private-ip-address",
    "private-dns-name",
    "client-token",
    "instance-type",
    "subnet-id",
    "network-interface.subnet-id",
    "availability-zone",
    "reservation-id",
    "vpc-id",
    "tag-key",
    "instance-lifecycle",
    "launch-time",
    "tag:",
];

impl Filter {
    pub(super) fn holds(&self, machine: &Machine, state: State, now: u64) -> bool {
        let i = &machine.seen;
        let any = |text: &str| self.values.iter().any(|v| glob(v, text));
        let addressed = state != State::Terminated && !machine.no_ip.covers(now);
        match self.name.as_str() {
            "instance-state-name" => any(state.name()),
            "instance-id" => any(&i.id),
            "private-ip-address" => addressed && any(&i.private_ip.to_string()),
            "network-interface.addresses.private-ip-address" => {
                addressed && machine.more_addresses.iter().chain([&i.private_ip]).any(|a| any(&a.to_string()))
            }
            "private-dns-name" => addressed && any(&i.hostname),
            "client-token" => any(&i.client_token),
            "instance-type" => any(&i.instance_type),
            "subnet-id" | "network-interface.subnet-id" => state != State::Terminated && any(&i.subnet),
            "availability-zone" => any(&i.zone),
            "reservation-id" => any(&i.reservation),
            "vpc-id" => state != State::Terminated && any("vpc-0123456789abcdef0"),
            "tag-key" => i.tags.keys().any(|k| any(k)),
            "instance-lifecycle" => i.spot && any("spot"),
            "instance-status.status" => any(machine.check(Whose::Instance, state)),
            "system-status.status" => any(machine.check(Whose::System, state)),
            "event.code" => machine.events.iter().any(|event| any(&event.code)),
            "launch-time" => any(&super::xml::time(i.launch_time_ms)),
            tag => tag.strip_prefix("tag:").and_then(|key| i.tags.get(key)).is_some_and(|value| any(value)),
        }
    }
}

/// Another order, the same each time.
fn shuffle(members: &mut [usize]) {
    members.reverse();
    let middle = members.len() / 2;
    members.rotate_left(middle);
}
