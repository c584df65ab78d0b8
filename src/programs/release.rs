//! Terminates the condemned: every program finishes what is on that list. An instance leaves it only when EC2 shows it
//! shutting-down or terminated, or does not know an id that is old enough to be visible.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::context::{Context, YOUNG};
use super::exit::Exit;
use super::telling;
use crate::clock;
use crate::error::chain;
use crate::model::hostlist;
use crate::model::mapping::Condemned;

/// What became of the condemned.
#[derive(Debug, Default)]
pub(crate) struct Released {
    pub(crate) gone: Vec<String>,
    /// Still on the list, with the reason.
    pub(crate) left: Vec<(String, String)>,
    /// Those of them that EC2 refuses to terminate: the next try will go the same way, until a person does something.
    pub(crate) refused: Vec<String>,
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

/// Pauses between tries for an id that EC2 does not know although its launch is young: it mostly appears within seconds.
const YOUNG_PAUSES: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];

/// Time that is left for whatever comes after the release.
const SPARE: Duration = Duration::from_secs(5);

/// Asks EC2 to terminate all that is condemned; `skip` names ids that were tried already in this run.
pub(crate) async fn release(context: &Context, skip: &BTreeSet<String>) -> Released {
    let condemned = match context.store.read() {
        Ok(mapping) => mapping.condemned.clone(),
        Err(error) => {
            tracing::error!("instances to terminate cannot be read: {}", chain(&error));
            return Released { left: vec![("?".to_owned(), error.to_string())], ..Released::default() };
        }
    };
    let mut ids: Vec<String> = condemned.keys().filter(|id| !skip.contains(*id)).cloned().collect();
    let mut released = Released::default();
    let mut pauses = YOUNG_PAUSES.iter();
    while !ids.is_empty() {
        let young = once(context, &ids, &condemned, &mut released).await;
        match pauses.next() {
            Some(pause) if !young.is_empty() && !context.limits.stopping() && context.limits.left() > *pause + SPARE => {
                tracing::debug!(instances = telling::list(&young), "not visible at EC2 yet, asking again");
                tokio::time::sleep(*pause).await;
                ids = young;
            }
            _ => {
                for id in young {
                    tracing::warn!(instance = id, "not visible at EC2 yet; the next program terminates it");
                    released.unanswered = true;
                    released.left.push((id, "not visible at EC2 yet".to_owned()));
                }
                break;
            }
        }
    }
    released
}

/// One call for `ids`. What is gone leaves the list at once; returned are ids that EC2 does not know and that are young.
async fn once(
    context: &Context,
    ids: &[String],
    condemned: &BTreeMap<String, Condemned>,
    released: &mut Released,
) -> Vec<String> {
    let answer = tokio::select! {
        biased;
        answer = context.ec2.terminate(ids) => Some(answer),
        () = context.limits.over() => None,
    };
    let Some(answer) = answer else {
        tracing::error!(
            instances = telling::list(ids),
            "time is up before EC2 confirmed the termination; the next program repeats it"
        );
        released.left.extend(ids.iter().map(|id| (id.clone(), "no answer in time".to_owned())));
        released.unanswered = true;
        return Vec::new();
    };
    let now = clock::now();
    let launched = |id: &String| condemned.get(id).map(|one| one.launched.unwrap_or(one.since));
    let (young, old): (Vec<String>, Vec<String>) =
        answer.not_found.into_iter().partition(|id| launched(id).is_some_and(|launched| now.since(launched) < YOUNG));
    if !old.is_empty() {
        tracing::info!(instances = telling::list(&old), "EC2 does not know them any more, nothing to terminate");
    }
    for id in answer.protected {
        tracing::error!(
            instance = id,
            "termination protection is on: switch it off (aws ec2 modify-instance-attribute --no-disable-api-termination), or the instance runs on and costs money"
        );
        released.refused.push(id.clone());
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
        if !failure.class.is_retryable() {
            released.refused.push(id.clone());
        }
        released.left.push((id, failure.code));
    }
    if !answer.gone.is_empty() {
        for id in &answer.gone {
            tracing::debug!(instance = id, why = condemned.get(id).map(|one| one.why.as_str()), "terminated");
        }
        let nodes: Vec<String> =
            answer.gone.iter().filter_map(|id| condemned.get(id)).filter_map(|one| one.node.clone()).collect();
        tracing::info!(
            instances = telling::list(&answer.gone),
            nodes = hostlist::compress_sorted(&nodes),
            count = answer.gone.len(),
            "terminated"
        );
    }
    let gone: BTreeSet<&String> = answer.gone.iter().chain(&old).collect();
    if !gone.is_empty()
        && let Err(error) =
            context.store.update(context.lock_wait(), |mapping| mapping.condemned.retain(|id, _| !gone.contains(id)))
    {
        tracing::warn!("terminated instances stay on the list for now: {}", chain(&error));
    }
    released.gone.extend(gone.into_iter().cloned());
    young
}
