//! Starts and stops of the compute fleet: which change of the status is due, what a request may do, and (`nodes.rs`) what each node
//! needs. Values in, values out; the status is kept by `store/fleet_status.rs`, the work done by `programs/fleet/`.
//!
//! The words and their order are ParallelCluster's (aws-facts D.8):
//!
//! ```text
//! RUNNING, PROTECTED ── STOP_REQUESTED ── STOPPING ── STOPPED
//!      STOPPED, PROTECTED ── START_REQUESTED ── STARTING ── RUNNING
//! ```
//!
//! Every step is made only if the status is still the one before it. A transition that fails, or whose program ends, leaves the status
//! where it is, and the work is done again from its beginning: so it must be fit for being done twice. A request that comes while the
//! opposite transition is under way takes the status over at once; the transition's own last step then finds it changed and is left out,
//! and the request is next. So requests are queued, and no two transitions ever mix.

mod held;
mod nodes;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_held;

use crate::model::fleet::FleetStatus;

pub(crate) use held::what_was_said;
pub(crate) use nodes::{
    Orders, Seen, What, for_start, for_stop, is_inactive, is_left_by_a_stop, partitions, to_be_drained_again,
};

/// A change of the whole fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transition {
    Start,
    Stop,
}

impl Transition {
    pub(crate) fn requested(self) -> FleetStatus {
        match self {
            Self::Start => FleetStatus::StartRequested,
            Self::Stop => FleetStatus::StopRequested,
        }
    }

    pub(crate) fn under_way(self) -> FleetStatus {
        match self {
            Self::Start => FleetStatus::Starting,
            Self::Stop => FleetStatus::Stopping,
        }
    }

    pub(crate) fn done(self) -> FleetStatus {
        match self {
            Self::Start => FleetStatus::Running,
            Self::Stop => FleetStatus::Stopped,
        }
    }

    /// The transition whose request this word is. Any other word asks for nothing.
    pub(crate) fn of_request(status: FleetStatus) -> Option<Self> {
        [Self::Start, Self::Stop].into_iter().find(|transition| transition.requested() == status)
    }

    /// For messages: `starting the fleet`.
    pub(crate) fn doing(self) -> &'static str {
        match self {
            Self::Start => "starting",
            Self::Stop => "stopping",
        }
    }
}

/// What a status asks of whoever carries transitions out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// Nothing: the fleet is where it is to be, or the word is not known.
    Nothing,
    /// Take the request (requested → under way), then do the work.
    Begin(Transition),
    /// It was begun, by whomever, and not ended: do the work again.
    GoOn(Transition),
}

pub(crate) fn due(status: FleetStatus) -> Due {
    for transition in [Transition::Start, Transition::Stop] {
        if status == transition.requested() {
            return Due::Begin(transition);
        }
        if status == transition.under_way() {
            return Due::GoOn(transition);
        }
    }
    Due::Nothing
}

/// What a request comes to, by the status it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The status is to become the request, if it is still this one.
    Put { from: FleetStatus },
    /// Somebody has asked for the same already, or it is under way.
    UnderWay,
    /// The fleet is so already.
    Already,
    /// The status is a word that this version does not know.
    Refused,
}

pub(crate) fn ask(transition: Transition, status: FleetStatus) -> Asked {
    if status == FleetStatus::Unknown {
        Asked::Refused
    } else if status == transition.done() {
        Asked::Already
    } else if status == transition.requested() || status == transition.under_way() {
        Asked::UnderWay
    } else {
        Asked::Put { from: status }
    }
}

/// What came of a request, as far as the status now tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Came {
    /// Not yet: it waits or is under way.
    Waiting,
    /// It is done.
    Done,
    /// Somebody has asked for the opposite since.
    Overtaken,
}

/// A fleet that entered protected mode as soon as it was started has been started all the same.
pub(crate) fn came(transition: Transition, status: FleetStatus) -> Came {
    if status == transition.done() || (transition == Transition::Start && status == FleetStatus::Protected) {
        Came::Done
    } else if status == transition.requested() || status == transition.under_way() {
        Came::Waiting
    } else {
        Came::Overtaken
    }
}
