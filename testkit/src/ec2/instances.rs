//! An instance: what the endpoint knows of it, and what a test sees of it. How EC2 prints it is `instance_xml.rs`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// EC2's instance states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    Pending,
    Running,
    ShuttingDown,
    Terminated,
    Stopping,
    Stopped,
}

impl State {
    /// As in answers and filters.
    pub fn name(self) -> &'static str {
        match self {
            State::Pending => "pending",
            State::Running => "running",
            State::ShuttingDown => "shutting-down",
            State::Terminated => "terminated",
            State::Stopping => "stopping",
            State::Stopped => "stopped",
        }
    }

    pub(crate) fn code(self) -> u8 {
        match self {
            State::Pending => 0,
            State::Running => 16,
            State::ShuttingDown => 32,
            State::Terminated => 48,
            State::Stopping => 64,
            State::Stopped => 80,
        }
    }

    /// Whether it costs money and nobody has given it back.
    pub fn is_live(self) -> bool {
        matches!(self, State::Pending | State::Running | State::Stopping | State::Stopped)
    }
}

/// What a test sees: every instance ever launched, hidden ones included, with its true state and address.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Instance {
    pub id: String,
    /// 1 = first instance of this endpoint's life.
    pub ordinal: u64,
    pub state: State,
    pub instance_type: String,
    pub subnet: String,
    pub zone: String,
    pub private_ip: Ipv4Addr,
    /// `ip-a-b-c-d.REGION.compute.internal`
    pub hostname: String,
    /// Milliseconds since the epoch, exact; answers show whole seconds, cut off.
    pub launch_time_ms: u64,
    pub tags: BTreeMap<String, String>,
    pub client_token: String,
    pub reservation: String,
    /// Set for instances of CreateFleet.
    pub fleet: Option<String>,
    pub spot: bool,
    /// Name or id of the launch template, as the request gave it.
    pub template: Option<String>,
    pub template_version: Option<u32>,
    pub reboots: u32,
    pub protected: bool,
}

/// What can be done to an instance behind the client's back; fields not given stay as they are.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InstanceChange {
    /// From now on it is in this state (a spot loss is `terminated`).
    pub state: Option<State>,
    pub protected: Option<bool>,
    /// Never (true) or at once (false) shows its private address.
    pub no_ip: Option<bool>,
    /// Absent from describes (true) or shown at once (false).
    pub hidden: Option<bool>,
    pub launch_time_ms: Option<u64>,
    pub console: Option<String>,
    /// `ok`, `impaired`, `initializing`, … of both checks of DescribeInstanceStatus.
    pub status: Option<String>,
    /// The same of one check alone.
    pub instance_status: Option<String>,
    pub system_status: Option<String>,
    /// Since when its checks fail; shown while one is `impaired`.
    pub impaired_since_ms: Option<u64>,
    /// Its scheduled events, instead of those it had.
    pub events: Option<Vec<Event>>,
    /// Added to its tags.
    pub tags: Option<BTreeMap<String, String>>,
}

/// A scheduled event of an instance, as DescribeInstanceStatus shows it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Event {
    /// `instance-retirement`, `system-reboot`, …
    pub code: String,
    /// Begins with `[Completed]` or `[Canceled]` when it is over.
    pub description: String,
    pub not_before_ms: u64,
}

/// Whose status check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    Instance,
    System,
}

/// An instance as the endpoint keeps it.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// Its `state` is out of date; [`Machine::state`] knows.
    pub(crate) seen: Instance,
    pub(crate) running_at: u64,
    /// When it was asked to end, and when that was done.
    pub(crate) ending: Option<(u64, u64)>,
    pub(crate) forced: Option<State>,
    pub(crate) hidden: Veil,
    pub(crate) no_ip: Veil,
    pub(crate) console: Option<String>,
    pub(crate) instance_status: Option<String>,
    pub(crate) system_status: Option<String>,
    pub(crate) impaired_since: Option<u64>,
    pub(crate) events: Vec<Event>,
    /// Addresses of the interfaces on further network cards.
    pub(crate) more_addresses: Vec<Ipv4Addr>,
    pub(crate) shuffle_cards: bool,
    pub(crate) launch_index: u32,
}

/// Something that cannot be seen yet: for a number of looks, for a time, or for ever.
#[derive(Clone, Debug, Default)]
pub(crate) struct Veil {
    pub(crate) looks: u32,
    pub(crate) until: u64,
}

impl Veil {
    pub(crate) fn for_ever() -> Self {
        Veil { looks: 0, until: u64::MAX }
    }

    pub(crate) fn set(yes: bool) -> Self {
        if yes { Veil::for_ever() } else { Veil::default() }
    }

    /// Whether it is still covered; does not count as a look.
    pub(crate) fn covers(&self, now: u64) -> bool {
        self.looks > 0 || now < self.until
    }

    /// Looks once: whether it was covered.
    pub(crate) fn look(&mut self, now: u64) -> bool {
        let covered = self.covers(now);
        self.looks = self.looks.saturating_sub(1);
        covered
    }
}

impl Machine {
    pub(crate) fn state(&self, now: u64) -> State {
        match (self.forced, self.ending) {
            (Some(state), _) => state,
            (None, Some((_, end))) if now >= end => State::Terminated,
            (None, Some(_)) => State::ShuttingDown,
            (None, None) if now >= self.running_at => State::Running,
            (None, None) => State::Pending,
        }
    }

    pub(crate) fn snapshot(&self, now: u64) -> Instance {
        Instance { state: self.state(now), ..self.seen.clone() }
    }

    /// The word of one of its two status checks.
    pub(crate) fn check(&self, whose: Whose, state: State) -> &str {
        let set = match whose {
            Whose::Instance => &self.instance_status,
            Whose::System => &self.system_status,
        };
        match (set, state) {
            (Some(word), _) => word,
            (None, State::Running) => "ok",
            (None, State::Pending) => "initializing",
            (None, _) => "not-applicable",
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.seen.id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_veil_counts_looks() {
        let mut veil = Veil { looks: 2, until: 0 };
        assert!(veil.covers(5));
        assert_eq!([veil.look(5), veil.look(5), veil.look(5)], [true, true, false]);
        let mut timed = Veil { looks: 0, until: 10 };
        assert_eq!([timed.look(9), timed.look(10)], [true, false]);
        assert!(Veil::for_ever().look(1 << 60));
    }
}
