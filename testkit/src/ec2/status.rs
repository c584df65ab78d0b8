//! DescribeInstanceStatus: the two status checks and the scheduled events of instances that run.

use std::fmt::Write as _;

use super::describe::{page, read_filters};
use super::instances::{Event, Machine, State, Whose};
use super::params::Params;
use super::state::{World, not_found};
use super::xml::{ApiError, element, escape, time};

/// There is none by tag.
const FILTERS: [&str; 5] =
    ["instance-state-name", "availability-zone", "instance-status.status", "system-status.status", "event.code"];

impl World {
    pub(crate) fn describe_instance_status(&mut self, params: &Params) -> Result<String, ApiError> {
        let ids = params.list("InstanceId");
        if ids.len() > 100 {
            return Err(ApiError::client("InvalidParameterValue", "At most 100 instance ids may be named."));
        }
        let (limit, from) = page(params, &ids, 5)?;
        let limit = match (ids.is_empty(), self.behaviour.page_size) {
            (true, Some(size)) => Some(limit.unwrap_or(usize::MAX).min(size.max(1) as usize)),
            _ => limit,
        };
        let filters = read_filters(params, &FILTERS)?;
        let all = params.flag("IncludeAllInstances");
        let now = self.clock.now_ms();
        let candidates: Vec<usize> = match ids.is_empty() {
            true => (from..self.machines.len()).filter(|at| !self.is_forgotten(&self.machines[*at])).collect(),
            false => self.named(&ids)?,
        };
        let mut out = String::from("<instanceStatusSet>");
        let mut written = 0;
        let mut next = None;
        for at in candidates {
            let machine = &self.machines[at];
            let state = machine.state(now);
            let shown = (all || state == State::Running) && !machine.hidden.covers(now);
            if !shown || !filters.iter().all(|f| f.holds(machine, state, now)) {
                continue;
            }
            if limit.is_some_and(|limit| written == limit) {
                next = Some(at);
                break;
            }
            write_status(&mut out, machine, state);
            written += 1;
        }
        out.push_str("</instanceStatusSet>");
        if let Some(at) = next {
            element(&mut out, "nextToken", &format!("page-{at}"));
        }
        Ok(out)
    }

    /// Positions of ids asked for by name; those not visible yet are as missing as unknown ones. Does not count as a look.
    fn named(&self, ids: &[&str]) -> Result<Vec<usize>, ApiError> {
        let now = self.clock.now_ms();
        let missing = |id: &&str| match self.find(&[*id]) {
            Ok(at) => at.iter().any(|at| self.machines[*at].hidden.covers(now)),
            Err(_) => true,
        };
        match self.find(ids) {
            Err(error) if error.code.ends_with("Malformed") => Err(error),
            found => match ids.iter().copied().filter(missing).collect::<Vec<_>>() {
                missing if missing.is_empty() => found,
                missing => Err(not_found(&missing)),
            },
        }
    }
}

fn write_status(out: &mut String, machine: &Machine, state: State) {
    let _ = write!(
        out,
        "<item><instanceId>{}</instanceId><availabilityZone>{}</availabilityZone>\
         <instanceState><code>{}</code><name>{}</name></instanceState>",
        machine.id(),
        escape(&machine.seen.zone),
        state.code(),
        state.name()
    );
    if !machine.events.is_empty() {
        out.push_str("<eventsSet>");
        machine.events.iter().enumerate().for_each(|(at, event)| write_event(out, at, event));
        out.push_str("</eventsSet>");
    }
    for (name, whose) in [("systemStatus", Whose::System), ("instanceStatus", Whose::Instance)] {
        let word = machine.check(whose, state);
        let result = match word {
            "ok" => "passed",
            "impaired" => "failed",
            other => other,
        };
        let _ = write!(
            out,
            "<{name}><status>{}</status><details><item><name>reachability</name><status>{}</status>",
            escape(word),
            escape(result)
        );
        if let (Some(since), "impaired") = (machine.impaired_since, word) {
            element(out, "impairedSince", &time(since));
        }
        let _ = write!(out, "</item></details></{name}>");
    }
    out.push_str("</item>");
}

fn write_event(out: &mut String, at: usize, event: &Event) {
    let _ = write!(
        out,
        "<item><instanceEventId>instance-event-0ec2{at:013x}</instanceEventId><code>{}</code><description>{}</description>\
         <notBefore>{}</notBefore></item>",
        escape(&event.code),
        escape(&event.description),
        time(event.not_before_ms)
    );
}
