//! What is to become of one static node: the node with what stands behind it in, a verdict with its cause out. Changes nothing.

use std::fmt;

use super::super::facts::Backing;
use super::super::report::Bootstrap;
use super::super::{Draft, Facts, state, unhealthy};
use super::ANSWER;
use crate::model::failure::code_of;
use crate::model::instance::Instance;
use crate::plan::reasons;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It needs nothing, or what it needs is another rule's or Slurm's.
    Leave,
    /// In service.
    Up,
    /// Off and drained by a person: it comes up when they resume it.
    Kept,
    /// It comes up, and nobody touches it meanwhile.
    Wait,
    /// It comes up, and nobody remembers: the memory was lost.
    Adopt,
    /// Its instance is up; Slurm keeps the node down by our word alone.
    Registered,
    /// Somebody has asked to power it down; it will be off in a moment.
    Leaving,
    /// slurmctld still waits for a boot that failed: what is launched now would go at ResumeTimeout. Off first.
    Off(Cause),
    Replace(Cause),
}

/// Why a static node is replaced. As a text, it names no node and no instance, so that nodes alike are told in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cause {
    NoInstance,
    /// With this code.
    LaunchFailed(String),
    ClaimLeft,
    Gone,
    Down,
    Drained,
    PoweredDown,
    InvalidRegistration,
    FailingCheck,
    TimedOut,
    /// A pass came to an end before the instance could go: killed, or slurmctld or the mapping did not take it.
    OnlyBegun,
}

impl Cause {
    /// The replacement goes on: nothing of it was up, another launch is asked for.
    pub(super) fn is_another_try(&self) -> bool {
        matches!(self, Self::NoInstance | Self::LaunchFailed(_) | Self::ClaimLeft | Self::OnlyBegun)
    }

    /// Counts as a boot failure; `comes_up` = what stands behind it is its new instance ([`has_new_instance`]). A failed launch never does
    /// (M25), and who saw a failing check has counted it.
    pub(super) fn boot_failure(&self, comes_up: bool) -> Option<Bootstrap> {
        match self {
            Self::TimedOut if comes_up => Some(Bootstrap::StaticReplacementTimeout),
            Self::InvalidRegistration => Some(Bootstrap::Other),
            Self::Gone if comes_up => Some(Bootstrap::Other),
            _ => None,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoInstance => "no instance stands behind it",
            Self::LaunchFailed(code) => return write!(f, "its launch failed ({code})"),
            Self::ClaimLeft => "the run that was launching it is gone",
            Self::Gone => "its instance is gone",
            Self::Down => "it is down",
            Self::Drained => "it is drained",
            Self::PoweredDown => "it is powered down",
            Self::InvalidRegistration => "it registered with less than slurm.conf promises",
            Self::FailingCheck => "a check of its instance fails",
            Self::TimedOut => "it was not up in time",
            Self::OnlyBegun => "its replacement was only begun",
        })
    }
}

/// Judges a static node in service that no other rule has taken and that nobody reboots.
pub(super) fn judge(draft: &Draft<'_>, facts: &Facts<'_>) -> Verdict {
    let state = &facts.node.state;
    let has_job = state::has_job(state);
    let is_awaited = state.is_awaited() && !state.is_down();
    // A job was given the node a moment ago, or somebody powers it up: slurm_resume is being called.
    let is_called_for = state.has("POWER_UP") || (has_job && state.is_powered_down());
    if is_awaited || is_called_for || state.is_powering_down() {
        return Verdict::Leave;
    }
    if state.power_down_requested() {
        return if has_job { Verdict::Leave } else { Verdict::Leaving };
    }
    let verdict = backed(draft, facts, has_job);
    match verdict {
        Verdict::Replace(cause) if state.is_down() && state.is_powering_up() => Verdict::Off(cause),
        other => other,
    }
}

fn backed(draft: &Draft<'_>, facts: &Facts<'_>, has_job: bool) -> Verdict {
    let comes_up = draft.memory.replacing.contains_key(facts.name);
    if facts.is_gone {
        return Verdict::Replace(Cause::Gone);
    }
    match facts.backing {
        Backing::Claimed if facts.has_live_claim(draft.snapshot) => Verdict::Wait,
        Backing::Claimed if has_job || state::is_online(&facts.node.state) => Verdict::Leave,
        Backing::Claimed => Verdict::Replace(Cause::ClaimLeft),
        // Too young to be seen, perhaps.
        Backing::Missing if comes_up || facts.node.state.is_down() => Verdict::Wait,
        Backing::Missing => Verdict::Leave,
        Backing::Nothing if has_job => Verdict::Leave,
        Backing::Nothing if state::is_off(&facts.node.state) && unhealthy::is_kept(facts) => Verdict::Kept,
        Backing::Nothing => without_instance(draft, facts),
        Backing::Ended(_) => Verdict::Replace(Cause::Gone),
        Backing::Instance(instance) => with_instance(draft, facts, instance, has_job),
    }
}

fn without_instance(draft: &Draft<'_>, facts: &Facts<'_>) -> Verdict {
    // Whatever code the node had when its launch was asked for: our own reason took its place then.
    let code = facts.node.reason.as_deref().and_then(code_of).filter(|_| facts.node.state.is_down());
    if let Some(code) = code {
        return Verdict::Replace(Cause::LaunchFailed(code.to_owned()));
    }
    let asked = draft.memory.replacing.get(facts.name).map(|replacement| replacement.asked);
    match asked {
        Some(asked) if draft.snapshot.now.since(asked) < ANSWER => Verdict::Wait,
        _ if unhealthy::is_kept(facts) => Verdict::Kept,
        _ => Verdict::Replace(Cause::NoInstance),
    }
}

fn with_instance(draft: &Draft<'_>, facts: &Facts<'_>, instance: &Instance, has_job: bool) -> Verdict {
    let (state, upkeep) = (&facts.node.state, &draft.policy.upkeep);
    if draft.snapshot.mapping.condemned.contains_key(&instance.id) {
        return Verdict::Replace(Cause::Gone);
    }
    if state::is_online(state) {
        return Verdict::Up;
    }
    let (is_down, is_drained, is_off) = (state::is_down(state), state::is_drained(state), state::is_off(state));
    let is_invalid = state::is_invalid_registration(state);
    let has_come_up = !state.is_down() && has_registered(facts);
    if has_job || !(is_down || is_drained || is_off || is_invalid) {
        return if has_job && has_come_up { Verdict::Up } else { Verdict::Leave };
    }
    // A person has drained it as soon as it was up: that is no failure to boot.
    let is_taken_back = has_come_up && !is_invalid && !reasons::is_ours(facts.node.reason.as_deref());
    let replacing = draft.memory.replacing.get(facts.name);
    if replacing.is_some() && !has_new_instance(draft, facts) && (is_down || !is_taken_back) {
        return Verdict::Replace(Cause::OnlyBegun);
    }
    if let Some(replacement) = replacing.filter(|_| !is_taken_back) {
        let launched = facts.launched.unwrap_or(replacement.asked);
        return if draft.snapshot.now.since(launched) >= upkeep.replacement_timeout {
            Verdict::Replace(Cause::TimedOut)
        } else if is_invalid && has_booted(facts) {
            // Not the old instance's, which the node shows until the new one has registered.
            Verdict::Replace(Cause::InvalidRegistration)
        } else if has_registered(facts) && is_to_be_resumed(facts) {
            Verdict::Registered
        } else {
            Verdict::Wait
        };
    }
    if replacing.is_none() && draft.before.replacing.contains_key(facts.name) {
        return Verdict::Replace(Cause::FailingCheck);
    }
    let age = facts.launched.map(|launched| draft.snapshot.now.since(launched));
    let is_silent = state.has("NOT_RESPONDING") && has_booted(facts);
    let is_ours = facts.node.reason.as_deref() == Some(reasons::MAINTENANCE);
    if is_down && is_ours && !is_silent && age.is_some_and(|age| age < upkeep.replacement_timeout) {
        return Verdict::Adopt;
    }
    if is_invalid && upkeep.terminate_drain_nodes {
        Verdict::Replace(Cause::InvalidRegistration)
    } else if is_down {
        if upkeep.terminate_down_nodes { Verdict::Replace(Cause::Down) } else { Verdict::Leave }
    } else if is_drained {
        match upkeep.terminate_drain_nodes {
            true => Verdict::Replace(Cause::Drained),
            false if has_come_up => Verdict::Up,
            false => Verdict::Leave,
        }
    } else if is_off && age.is_some_and(|age| age < upkeep.orphan_timeout) {
        // Launched by hand, or by a resume that slurmctld has not seen yet (M15).
        Verdict::Wait
    } else {
        Verdict::Replace(Cause::PoweredDown)
    }
}

/// Is what stands behind the node, or stood, what its replacement has launched, and not still the instance that it began with?
pub(in super::super) fn has_new_instance(draft: &Draft<'_>, facts: &Facts<'_>) -> bool {
    let Some(replacement) = draft.memory.replacing.get(facts.name) else { return false };
    let by_ec2 = match facts.backing {
        Backing::Instance(instance) | Backing::Ended(instance) => instance.launch_time,
        Backing::Nothing | Backing::Claimed | Backing::Missing => None,
    };
    match facts.entry.and_then(|entry| entry.launched).or(by_ec2) {
        // EC2's clock may be another; and a beginning in the future was written by a clock that was wrong.
        Some(launched) => launched + ANSWER >= replacement.since || replacement.since > draft.snapshot.now,
        None => facts.entry.is_some(),
    }
}

/// Down or drained by our word; or down by slurmctld's, which takes a registration that it did not wait for as a reboot (slurm-facts I).
fn is_to_be_resumed(facts: &Facts<'_>) -> bool {
    let reason = facts.node.reason.as_deref();
    reasons::is_ours(reason) || (facts.node.state.is_down() && reasons::is_slurms(reason))
}

/// slurmd has registered from the instance that stands behind the node now.
fn has_registered(facts: &Facts<'_>) -> bool {
    let state = &facts.node.state;
    has_booted(facts) && !state.is_powered_down() && !state.has("NOT_RESPONDING")
}

/// Slurm knows a boot or a start of slurmd since the launch. It reckons the boot from the machine's uptime, so that clocks do not matter.
fn has_booted(facts: &Facts<'_>) -> bool {
    let Some(launched) = facts.launched else { return false };
    let times = [facts.node.boot_time, facts.node.slurmd_start_time];
    times.into_iter().flatten().any(|at| at >= launched.secs())
}
