//! Is this compute node to go off? What computemgtd has seen goes in, keep running or shut down, with the reason, comes out. No clock, no
//! I/O: moments are times since the daemon's start, on its own monotonic clock, so that neither the head node's clock nor a time zone
//! nor a change of summer time plays a part.
//!
//! The heartbeat's age is the time since its content was last seen to change. A clustermgtd that is dead is no reason to go off; what
//! else must hold is that nobody wants the node: Slurm has it down or in power saving, or slurmctld has not answered for the whole time
//! either, and no job runs here (the package shuts down then even with a job, aws-facts D.9 #20).

use std::fmt;
use std::time::Duration;

use crate::model::node::{Base, State};

/// Time since the daemon's start.
pub(crate) type Moment = Duration;

/// The configuration, as far as it plays a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rules {
    /// `false`: there is no heartbeat to go by.
    pub(crate) heartbeat: bool,
    /// A heartbeat that has not changed for longer is stale, and slurmctld must have been silent for as long.
    pub(crate) timeout: Duration,
    /// From one look to the next.
    pub(crate) loop_time: Duration,
    /// Nothing is ever shut down.
    pub(crate) disabled: bool,
}

/// What came of asking slurmctld about this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    State(State),
    /// It answered, and does not know the node: unknown, or off and hidden (22.05 without `PrivateData=cloud`).
    NotShown,
    /// It did not answer.
    Silence,
    /// It answered something that says nothing about this node.
    Unclear,
}

/// Do jobs run on this node?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Jobs {
    None,
    Some,
    /// Cannot be told; counts as if one ran.
    Unknown,
}

/// What is to be done, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Keep(Why),
    ShutDown(Reason),
}

/// Why the node stays on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Why {
    NoHeartbeat,
    Fresh,
    Disabled,
    /// Slurm counts on it.
    Wanted(State),
    /// It is being rebooted, and will be wanted.
    Rebooting(State),
    /// slurmctld has been silent, or has not known the node, for too short a time.
    NotLongEnough(Lost),
    JobRuns(Lost),
    /// Whether one does cannot be told.
    JobMayRun(Lost),
    Unclear,
}

/// How slurmctld is of no help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    Silent,
    NotShown,
}

/// Why the node goes off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reason {
    /// Age of the heartbeat.
    pub(crate) age: Duration,
    pub(crate) cause: Cause,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Slurm has it so.
    State(State),
    /// For so long, and no job runs here.
    Lost(Lost, Duration),
}

/// What has been seen so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Watch {
    /// The heartbeat's last content.
    content: Option<Vec<u8>>,
    changed: Moment,
    answer: Option<Answer>,
    /// Since when slurmctld has been silent or has not known the node, without an answer of another kind in between.
    lost_since: Option<Moment>,
}

impl Watch {
    /// At the daemon's start the heartbeat counts as just changed.
    pub(crate) fn new(now: Moment) -> Self {
        Self { content: None, changed: now, answer: None, lost_since: None }
    }

    /// The heartbeat was read. The first content says nothing: it may be old.
    pub(crate) fn saw(&mut self, content: &[u8], now: Moment) {
        if self.content.as_deref() == Some(content) {
            return;
        }
        if self.content.is_some() {
            self.changed = now;
            self.answer = None;
            self.lost_since = None;
        }
        self.content = Some(content.to_owned());
    }

    /// How long the heartbeat has not changed.
    pub(crate) fn age(&self, now: Moment) -> Duration {
        now.saturating_sub(self.changed)
    }

    /// Is slurmctld to be asked? Not while clustermgtd lives: thousands of nodes do this. Before the heartbeat is stale all the same, so
    /// that it is known by then since when slurmctld has been silent.
    pub(crate) fn wants_answer(&self, now: Moment, rules: &Rules) -> bool {
        rules.heartbeat && !rules.disabled && self.age(now) > rules.timeout.min(MISSED * rules.loop_time)
    }

    /// slurmctld was asked.
    pub(crate) fn heard(&mut self, answer: Answer, now: Moment) {
        self.lost_since = match answer {
            Answer::Silence | Answer::NotShown => self.lost_since.or(Some(now)),
            Answer::State(_) | Answer::Unclear => None,
        };
        self.answer = Some(answer);
    }

    /// The decision, after everything has been seen and heard.
    pub(crate) fn decide(&self, jobs: Jobs, now: Moment, rules: &Rules) -> Verdict {
        if !rules.heartbeat {
            return Verdict::Keep(Why::NoHeartbeat);
        }
        let age = self.age(now);
        if age <= rules.timeout {
            return Verdict::Keep(Why::Fresh);
        }
        if rules.disabled {
            return Verdict::Keep(Why::Disabled);
        }
        let lost = match &self.answer {
            Some(Answer::State(state)) => return by_state(state, age),
            Some(Answer::Silence) => Lost::Silent,
            Some(Answer::NotShown) => Lost::NotShown,
            Some(Answer::Unclear) | None => return Verdict::Keep(Why::Unclear),
        };
        let since = self.lost_since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        if since < rules.timeout {
            return Verdict::Keep(Why::NotLongEnough(lost));
        }
        match jobs {
            Jobs::None => Verdict::ShutDown(Reason { age, cause: Cause::Lost(lost, since) }),
            Jobs::Some => Verdict::Keep(Why::JobRuns(lost)),
            Jobs::Unknown => Verdict::Keep(Why::JobMayRun(lost)),
        }
    }
}

/// Loops without a change of the heartbeat after which slurmctld is asked: clustermgtd beats at least once in one.
const MISSED: u32 = 2;

/// Predicates ask for the flags they need: a flag that this version does not know changes nothing (aws-facts D.9 #19).
fn by_state(state: &State, age: Duration) -> Verdict {
    if state.has("REBOOT_ISSUED") || state.has("REBOOT_REQUESTED") {
        return Verdict::Keep(Why::Rebooting(state.clone()));
    }
    let off = state.is_down() || state.is_powered_down() || state.is_powering_down();
    // Of these nothing is known.
    let known = !matches!(state.base, Base::Future | Base::Unknown | Base::Error | Base::Other(_));
    match off && known {
        true => Verdict::ShutDown(Reason { age, cause: Cause::State(state.clone()) }),
        false => Verdict::Keep(Why::Wanted(state.clone())),
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHeartbeat => f.write_str("no heartbeat is configured, so this node never shuts itself down"),
            Self::Fresh => f.write_str("the heartbeat changes"),
            Self::Disabled => f.write_str("the heartbeat is stale; shutting down is switched off"),
            Self::Wanted(state) => write!(f, "the heartbeat is stale; slurmctld has this node as {state}, so it stays on"),
            Self::Rebooting(state) => write!(f, "the heartbeat is stale; this node is being rebooted ({state})"),
            Self::NotLongEnough(lost) => write!(f, "the heartbeat is stale and {lost}, but not for long enough yet"),
            Self::JobRuns(lost) => write!(f, "the heartbeat is stale and {lost}, but a job runs here"),
            Self::JobMayRun(lost) => {
                write!(f, "the heartbeat is stale and {lost}, but whether a job runs here cannot be seen in /proc")
            }
            Self::Unclear => f.write_str("the heartbeat is stale; slurmctld says nothing of use about this node, so it stays on"),
        }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Silent => "slurmctld does not answer",
            Self::NotShown => "slurmctld does not show this node",
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the heartbeat has not changed for {} s and ", self.age.as_secs())?;
        match &self.cause {
            Cause::State(state) => write!(f, "slurmctld has this node as {state}"),
            Cause::Lost(lost, since) => write!(f, "{lost} since {} s ago, and no job runs here", since.as_secs()),
        }
    }
}

#[cfg(test)]
mod tests;
