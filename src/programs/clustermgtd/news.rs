//! What the log says of passes: a line where there is news, and now and then one all the same; never more than one for a pass without
//! actions (M29). systemd hears the same.

use std::time::{Duration, Instant};

use super::status::{Actions, Ended, Outcome};
use crate::model::fleet::FleetStatus;
use crate::programs::systemd;

/// Without news the log says so often that the daemon is there.
const SIGN_OF_LIFE: Duration = Duration::from_hours(1);

/// What was last told.
#[derive(Default)]
pub(super) struct News {
    line: String,
    left: usize,
    at: Option<Instant>,
    was_incomplete: bool,
}

impl News {
    pub(super) fn tell(&mut self, ended: &Ended<'_>, took: Duration) {
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let problem = ended.problem.unwrap_or("something is missing");
        if ended.outcome == Outcome::Incomplete {
            tracing::error!(ms, "this pass did not see everything, so nothing was done: {problem}");
            systemd::status(&format!("incomplete pass: {problem}"));
            self.was_incomplete = true;
            return;
        }
        let line = if ended.outcome == Outcome::Resting { format!("resting: {problem}") } else { counts(ended) };
        systemd::status(&line);
        let Actions { done, left, launching } = ended.actions;
        let acted = done > 0 || launching > 0 || left != std::mem::replace(&mut self.left, left);
        let silent_for_long = self.at.is_none_or(|at| at.elapsed() >= SIGN_OF_LIFE);
        if acted || silent_for_long || std::mem::take(&mut self.was_incomplete) || line != self.line {
            tracing::info!(done, left, launching, ms, "pass: {line}");
            self.at = Some(Instant::now());
        } else {
            tracing::debug!(ms, "pass: {line}");
        }
        self.line = line;
    }
}

/// `fleet RUNNING, nodes: IDLE+CLOUD 3; instances: 3`
fn counts(ended: &Ended<'_>) -> String {
    let states: Vec<String> = ended.report.states.iter().map(|(state, count)| format!("{state} {count}")).collect();
    let fleet = ended.fleet.map_or("?", FleetStatus::as_str);
    format!("fleet {fleet}, nodes: {}; instances: {}", states.join(", "), ended.report.instances)
}
