//! TerminateInstances, RebootInstances, GetConsoleOutput, CreateTags: what happens to instances that are there.

use std::fmt::Write as _;

use super::instances::State;
use super::params::Params;
use super::state::{World, not_found, returned};
use super::xml::{ApiError, base64, element, time};

impl World {
    pub(crate) fn terminate_instances(&mut self, params: &Params) -> Result<String, ApiError> {
        let ids = params.list("InstanceId");
        if ids.is_empty() {
            return Err(ApiError::client("MissingParameter", "The request must contain the parameter InstanceId"));
        }
        if ids.len() > 1000 {
            let text = format!("The number of instance ids, {}, is above the limit of 1000.", ids.len());
            return Err(ApiError::client("InvalidParameterValue", text));
        }
        let now = self.clock.now_ms();
        let found = self.find(&ids);
        if self.behaviour.hidden_from_terminate {
            let invisible = |id: &&str| match self.index.get(*id) {
                Some(at) => self.machines[*at].hidden.covers(now),
                None => true,
            };
            let missing: Vec<&str> = ids.iter().copied().filter(invisible).collect();
            if found.is_ok() && !missing.is_empty() {
                return Err(not_found(&missing));
            }
        }
        let mut found = found?;
        found.sort_unstable();
        found.dedup();

        // One protected instance spares its zone, and the call fails; instances of other zones go all the same.
        let protected: Vec<usize> = found
            .iter()
            .copied()
            .filter(|at| self.machines[*at].seen.protected && self.machines[*at].state(now).is_live())
            .collect();
        let spared: Vec<String> = protected.iter().map(|at| self.machines[*at].seen.zone.clone()).collect();
        let ending = now + self.behaviour.shutting_down_ms;
        let mut out = String::from("<instancesSet>");
        for machine in found.iter().map(|at| (*at, &self.machines[*at].seen.zone)).collect::<Vec<_>>() {
            if spared.contains(machine.1) {
                continue;
            }
            write_change(&mut out, self.machines[machine.0].id(), self.machines[machine.0].state(now));
        }
        for at in found {
            let machine = &mut self.machines[at];
            if !spared.contains(&machine.seen.zone) && machine.ending.is_none() {
                machine.forced = None;
                machine.ending = Some((now, ending));
            }
        }
        out.push_str("</instancesSet>");
        match protected.first() {
            None => Ok(out),
            Some(at) => Err(ApiError::client(
                "OperationNotPermitted",
                format!(
                    "The instance '{}' may not be terminated. Modify its 'disableApiTermination' instance attribute \
                     and try again.",
                    self.machines[*at].id()
                ),
            )),
        }
    }

    pub(crate) fn reboot_instances(&mut self, params: &Params) -> Result<String, ApiError> {
        let now = self.clock.now_ms();
        let found = self.find(&params.list("InstanceId"))?;
        if let Some(at) = found.iter().find(|at| !self.machines[**at].state(now).is_live()) {
            let text = format!("The instance '{}' is not in a state from which it can be rebooted.", self.machines[*at].id());
            return Err(ApiError::client("IncorrectInstanceState", text));
        }
        for at in found {
            self.machines[at].seen.reboots += 1;
        }
        Ok(returned())
    }

    pub(crate) fn get_console_output(&mut self, params: &Params) -> Result<String, ApiError> {
        let at = self.find(&[params.require("InstanceId")?])?[0];
        let machine = &self.machines[at];
        let text = machine.console.as_ref().unwrap_or(&self.behaviour.console);
        let mut out = String::new();
        element(&mut out, "instanceId", machine.id());
        element(&mut out, "timestamp", &time(self.clock.now_ms()));
        if !text.is_empty() {
            element(&mut out, "output", &base64(text.as_bytes()));
        }
        Ok(out)
    }

    pub(crate) fn create_tags(&mut self, params: &Params) -> Result<String, ApiError> {
        let resources = params.list("ResourceId");
        let tags = params.tags("Tag");
        if resources.is_empty() || tags.is_empty() {
            return Err(ApiError::client("MissingParameter", "CreateTags needs ResourceId and Tag."));
        }
        let instances: Vec<&str> = resources.into_iter().filter(|r| r.starts_with("i-")).collect();
        let found = self.find(&instances)?;
        for at in &found {
            let have = &self.machines[*at].seen.tags;
            let new = tags.iter().filter(|(k, _)| !have.contains_key(k)).count();
            if have.keys().filter(|k| !k.starts_with("aws:")).count() + new > 50 {
                return Err(ApiError::client("TagLimitExceeded", "A resource can have at most 50 tags."));
            }
        }
        for at in found {
            self.machines[at].seen.tags.extend(tags.iter().cloned());
        }
        Ok(returned())
    }
}

fn write_change(out: &mut String, id: &str, before: State) {
    let (code, name, old) = match before {
        State::Terminated => (48, "terminated", 48),
        State::ShuttingDown => (32, "shutting-down", 32),
        State::Pending => (32, "shutting-down", 0),
        State::Running => (32, "shutting-down", 16),
        State::Stopping => (32, "shutting-down", 64),
        State::Stopped => (32, "shutting-down", 80),
    };
    let _ = write!(
        out,
        "<item><instanceId>{id}</instanceId><currentState><code>{code}</code><name>{name}</name></currentState>\
         <previousState><code>{old}</code><name>{}</name></previousState></item>",
        before.name()
    );
}
