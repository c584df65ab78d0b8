//! Terminates the condemned: every program finishes what is on that list. An instance leaves it only when EC2 shows it
//! shutting-down or terminated, or does not know an id that is old enough to be visible.

use std::collections::BTreeSet;
use std::time::Duration;

use super::context::{Context, LOCK_WAIT, YOUNG};
use super::exit::Exit;
use super::telling;
use crate::clock;
use crate::error::chain;
use crate::model::hostlist;

/// What became of the condemned.
#[derive(Debug, Default)]
pub(crate) struct Released {
    pub(crate) gone: Vec<String>,
    /// Still on the list, with the reason.
    pub(crate) left: Vec<(String, String)>,
    /// EC2 did not answer for some of them.
    pub(crate) unanswered: bool,
}

impl Released {
    pub(crate) fn exit(&self) -> Exit {
        match (self.unanswered, self.left.is_empty()) {
            (true, _) => Exit::TempFail,
            (false, false) => Exit::SomeFailed,
            (false, true) => Exit::Done,
        }
    }
}

/// Asks EC2 to terminate all that is condemned; `skip` names ids that were tried already in this run.
pub(crate) async fn release(context: &Context, skip: &BTreeSet<String>) -> Released {
    let condemned = match context.store.read() {
        Ok(mapping) => mapping.condemned,
        Err(error) => {
            tracing::error!("instances to terminate cannot be read: {}", chain(&error));
            return Released { left: vec![("?".to_owned(), error.to_string())], ..Released::default() };
        }
    };
    let ids: Vec<String> = condemned.keys().filter(|id| !skip.contains(*id)).cloned().collect();
    if ids.is_empty() {
        return Released::default();
    }
    let limit = context.limits.left().max(Duration::from_millis(1));
    let Ok(answer) = tokio::time::timeout(limit, context.ec2.terminate(&ids)).await else {
        tracing::error!(instances = telling::list(&ids), "time is up before EC2 confirmed the termination; the next program repeats it");
        let left = ids.into_iter().map(|id| (id, "no answer in time".to_owned())).collect();
        return Released { gone: Vec::new(), left, unanswered: true };
    };
    let now = clock::now();
    let mut released = Released { gone: answer.gone, ..Released::default() };
    for id in answer.not_found {
        let launched = condemned.get(&id).map(|one| one.launched.unwrap_or(one.since));
        if launched.is_some_and(|launched| now.since(launched) < YOUNG) {
            released.unanswered = true;
            released.left.push((id, "not visible at EC2 yet".to_owned()));
        } else {
            tracing::info!(instance = id, "EC2 does not know it any more, nothing to terminate");
            released.gone.push(id);
        }
    }
    for id in answer.protected {
        tracing::error!(instance = id, "termination protection is on: take it off, or it stays on and costs money");
        released.left.push((id, "termination protection is on".to_owned()));
    }
    for (id, failure) in answer.failed {
        tracing::error!(
            instance = id,
            code = failure.code,
            request_id = failure.request_id,
            "not terminated, the next program tries again: {}",
            failure.sentence
        );
        released.unanswered |= failure.class.is_retryable();
        released.left.push((id, failure.code));
    }
    let nodes: Vec<String> =
        released.gone.iter().filter_map(|id| condemned.get(id)).filter_map(|one| one.node.clone()).collect();
    if !released.gone.is_empty() {
        for id in &released.gone {
            tracing::debug!(instance = id, why = condemned.get(id).map(|one| one.why.as_str()), "terminated");
        }
        tracing::info!(
            instances = telling::list(&released.gone),
            nodes = hostlist::compress_sorted(&nodes),
            count = released.gone.len(),
            "terminated"
        );
        let gone: BTreeSet<&String> = released.gone.iter().collect();
        if let Err(error) = context.store.update(LOCK_WAIT, |mapping| mapping.condemned.retain(|id, _| !gone.contains(id))) {
            tracing::warn!("terminated instances stay on the list for now: {}", chain(&error));
        }
    }
    released
}
