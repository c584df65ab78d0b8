//! Predicates of a node: what its state means for us (aws-facts D.2). `tests_state.rs` proves them by the 90 rows of
//! `node-state-truth-table.csv`, those columns that are put together of several included.
//!
//! Each asks for the flags that it needs and the flags that forbid it, never for an exact set: PLANNED, RESERVED, MAINTENANCE and words
//! of newer Slurm versions break nothing.

use super::facts::Facts;
use crate::model::node::{Base, State};
use crate::model::policy::Upkeep;

/// A reboot that Slurm was asked for: the node is healthy and comes back by itself (M14).
pub(crate) fn is_rebooting(state: &State) -> bool {
    state.has("REBOOT_ISSUED") || state.has("REBOOT_REQUESTED")
}

/// Down, and nobody is bringing it back: not on its way off, except where the request stands beside a node that is off already (M05).
pub(crate) fn is_down(state: &State) -> bool {
    state.base == Base::Down && !state.is_powering_down() && (!state.power_down_requested() || state.is_powered_down())
}

/// Drained to the end: no job, no epilog (M07).
pub(crate) fn is_drained(state: &State) -> bool {
    state.has("DRAIN") && (state.base == Base::Idle || is_down(state)) && !state.has("COMPLETING")
}

/// `idle~`: off, with nobody about to change that. A power-down that was asked for besides does not (M05), nor does NOT_RESPONDING.
pub(crate) fn is_off(state: &State) -> bool {
    state.base == Base::Idle
        && state.is_powered_down()
        && !["POWER_UP", "POWERING_UP", "POWERING_DOWN", "COMPLETING"].iter().any(|flag| state.has(flag))
}

/// SuspendProgram was called for it. POWER_DOWN alone is a request, and a job may still run (M06).
pub(crate) fn is_powering_down(state: &State) -> bool {
    state.is_powering_down() && !state.is_powering_up()
}

/// A job or its end is on it, whether its node is up or not.
pub(crate) fn has_job(state: &State) -> bool {
    matches!(state.base, Base::Allocated | Base::Mixed) || state.has("COMPLETING")
}

/// The job really runs: its node is neither booting nor about to be called for.
pub(crate) fn runs_job(state: &State) -> bool {
    has_job(state) && !state.is_powering_up() && !state.is_powered_down()
}

/// Registered and in service: nothing about power, no doubt.
pub(crate) fn is_online(state: &State) -> bool {
    const NOT_NOW: [&str; 12] = [
        "POWER_UP",
        "POWER_DOWN",
        "POWERED_DOWN",
        "POWERING_UP",
        "POWERING_DOWN",
        "DRAIN",
        "FAIL",
        "INVALID_REG",
        "NOT_RESPONDING",
        "REBOOT_ISSUED",
        "REBOOT_REQUESTED",
        "BLOCKED",
    ];
    matches!(state.base, Base::Idle | Base::Allocated | Base::Mixed) && !NOT_NOW.iter().any(|flag| state.has(flag))
}

/// slurmctld hears from its slurmd: a machine is there, whatever EC2 shows. Drained, marked, or about to be powered down: it answers.
pub(crate) fn is_heard(state: &State) -> bool {
    const NOT_HEARD: [&str; 6] = ["POWER_UP", "POWERED_DOWN", "POWERING_UP", "POWERING_DOWN", "NOT_RESPONDING", "REBOOT_ISSUED"];
    matches!(state.base, Base::Idle | Base::Allocated | Base::Mixed) && !NOT_HEARD.iter().any(|flag| state.has(flag))
}

/// ResumeTimeout has passed: `DOWN+POWERED_DOWN`, with NOT_RESPONDING on Slurm 22.05 (aws-facts B.15), until somebody powers it down.
pub(crate) fn is_resume_timeout(state: &State) -> bool {
    state.base == Base::Down
        && state.is_powered_down()
        && !["POWER_UP", "POWERING_UP", "POWER_DOWN", "POWERING_DOWN"].iter().any(|flag| state.has(flag))
}

/// slurmd registered with less than slurm.conf promises, and nobody is taking the node away yet.
pub(crate) fn is_invalid_registration(state: &State) -> bool {
    state.has("INVALID_REG") && !state.power_down_requested() && !state.is_powering_down()
}

/// Neither down nor drained as far as the configuration calls that unhealthy. Static nodes that are being replaced are exempt:
/// ask for them with `is_replacing`.
pub(crate) fn is_state_healthy(state: &State, upkeep: &Upkeep, is_replacing: bool) -> bool {
    if is_rebooting(state) || is_replacing {
        return true;
    }
    let drained = upkeep.terminate_drain_nodes && is_drained(state) && !state.power_down_requested();
    let down = upkeep.terminate_down_nodes && is_down(state);
    !drained && !down
}

impl Facts<'_> {
    /// In an inactive partition something of the node is to be cleared away; of a static one only its address.
    pub(crate) fn needs_reset_when_inactive(&self) -> bool {
        let state = &self.node.state;
        self.has_address() || (!self.is_static && !is_off(state) && !state.is_powering_down() && !is_down(state))
    }
}
