//! TerminateInstances that one bad id cannot stop: ids in, and out what became of each, every id exactly once.
//!
//! EC2 fails a whole call for one unknown, protected or forbidden id (and may still have terminated some of the others).
//! Named ids are set aside and the rest is asked again; where EC2 names none, the call is cut in two until it is found.
//! Terminating twice is harmless, so nothing has to be looked up in between.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use aws_sdk_ec2::operation::terminate_instances::TerminateInstancesOutput;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::answer;
use super::codes;
use super::error::Ec2Error;
use super::sdk::Ec2;
use crate::model::failure::{ErrorClass, Failure};
use crate::model::instance::InstanceState;

/// Ids in one call: EC2's own limit.
const PER_CALL: usize = 1000;

/// Calls in flight: five may go out in a second for long, a hundred at once.
const AT_ONCE: usize = 4;

/// So many ids refused one by one without a single success: it is not about one of them, the rest is given up.
const REFUSED_ALONE: usize = 8;

/// So many protected ids are found one by one; with more, somebody means it, and the rest is reported with EC2's refusal.
const PROTECTED_ALONE: usize = 64;

const OPERATION: &str = "TerminateInstances";

/// What became of each id.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Terminated {
    /// EC2 says shutting-down or terminated.
    pub(crate) gone: Vec<String>,
    /// EC2 does not know the id: gone for long, or too young to be seen everywhere.
    pub(crate) not_found: Vec<String>,
    /// Has termination protection; a person has to lift it.
    pub(crate) protected: Vec<String>,
    /// Not done, and why.
    pub(crate) failed: Vec<(String, Failure)>,
}

impl Terminated {
    fn absorb(&mut self, mut other: Self) {
        self.gone.append(&mut other.gone);
        self.not_found.append(&mut other.not_found);
        self.protected.append(&mut other.protected);
        self.failed.append(&mut other.failed);
    }

    fn fail(&mut self, ids: impl IntoIterator<Item = String>, error: &Ec2Error) {
        self.failed.extend(ids.into_iter().map(|id| {
            let failure = error.to_failure(&id);
            (id, failure)
        }));
    }
}

impl Ec2 {
    /// Ends the instances. Repeated ids count once.
    pub(crate) async fn terminate(&self, ids: &[String]) -> Terminated {
        let ids: Vec<String> = ids.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect();
        let gate = Arc::new(Semaphore::new(AT_ONCE));
        let mut asked = JoinSet::new();
        for chunk in ids.chunks(PER_CALL) {
            let (ec2, gate, chunk) = (self.clone(), gate.clone(), chunk.to_vec());
            asked.spawn(async move {
                let _pass = gate.acquire().await;
                ec2.terminate_chunk(chunk).await
            });
        }
        let mut all = Terminated::default();
        while let Some(chunk) = asked.join_next().await {
            all.absorb(chunk.unwrap_or_default());
        }
        // Only a panic in a task can have lost an id.
        let lost = lost(&ids, &all);
        all.fail(lost, &Ec2Error::new(OPERATION, codes::UNREADABLE, ErrorClass::Ambiguous, "the call was not finished"));
        all
    }

    async fn terminate_chunk(&self, ids: Vec<String>) -> Terminated {
        let mut done = Terminated::default();
        let mut refused_alone = 0;
        let mut open = VecDeque::from([ids]);
        while let Some(mut ids) = open.pop_front() {
            if ids.is_empty() {
                continue;
            }
            let sent = self.client().terminate_instances().set_instance_ids(Some(ids.clone())).send().await;
            let error = match sent {
                Ok(answer) => {
                    settle(&mut done, ids, answer);
                    continue;
                }
                Err(error) => Ec2Error::from_sdk(OPERATION, &error),
            };
            let kind = Refusal::of(&error);
            let give_up = match kind {
                Refusal::Unknown => false,
                Refusal::Protected => done.protected.len() >= PROTECTED_ALONE,
                Refusal::Each => refused_alone >= REFUSED_ALONE && done.gone.is_empty(),
                Refusal::Whole => true,
            };
            if give_up {
                done.fail(ids, &error);
                continue;
            }
            let mut named = ids_in(&error.message, &ids);
            if named.is_empty() && ids.len() == 1 {
                named.append(&mut ids);
            }
            if named.is_empty() {
                let second = ids.split_off(ids.len() / 2);
                open.push_front(second);
                open.push_front(ids);
                continue;
            }
            ids.retain(|id| !named.contains(id));
            open.push_front(ids);
            match kind {
                Refusal::Unknown => done.not_found.append(&mut named),
                Refusal::Protected => done.protected.append(&mut named),
                Refusal::Each | Refusal::Whole => {
                    refused_alone += named.len();
                    done.fail(named, &error);
                }
            }
        }
        done
    }
}

/// What a failed call says about its ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// Some are unknown.
    Unknown,
    /// Some are protected.
    Protected,
    /// Some are refused for a reason of their own.
    Each,
    /// It is not about an id.
    Whole,
}

impl Refusal {
    fn of(error: &Ec2Error) -> Self {
        match codes::bare(&error.code) {
            // A malformed id names no instance, so none is left running by forgetting it.
            "InvalidInstanceID.NotFound" | "InvalidInstanceID.Malformed" => Self::Unknown,
            "OperationNotPermitted" => Self::Protected,
            "UnauthorizedOperation" => Self::Each,
            _ => match error.class {
                ErrorClass::Split | ErrorClass::Other | ErrorClass::Configuration | ErrorClass::ZoneOrType => Self::Each,
                _ => Self::Whole,
            },
        }
    }
}

fn settle(done: &mut Terminated, ids: Vec<String>, answer: TerminateInstancesOutput) {
    let mut open: BTreeSet<String> = ids.into_iter().collect();
    for change in answer.terminating_instances.unwrap_or_default() {
        let Some(id) = change.instance_id.and_then(|id| open.take(&id)) else { continue };
        let now = change.current_state.and_then(|state| state.name).map_or(InstanceState::Unknown, |name| answer::state(&name));
        if now.is_live() {
            let message = format!("EC2 took the call and says {}", now.as_str());
            done.fail([id], &Ec2Error::new(OPERATION, "NotTerminated", ErrorClass::Other, message));
        } else {
            done.gone.push(id);
        }
    }
    done.fail(open, &Ec2Error::new(OPERATION, codes::UNREADABLE, ErrorClass::Ambiguous, "EC2's answer does not name it"));
}

/// Those of `ids` that the message names as whole words.
pub(super) fn ids_in(message: &str, ids: &[String]) -> Vec<String> {
    let words: BTreeSet<&str> = message.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').collect();
    ids.iter().filter(|id| words.contains(id.as_str())).cloned().collect()
}

fn lost(ids: &[String], all: &Terminated) -> Vec<String> {
    let failed = all.failed.iter().map(|(id, _)| id);
    let seen: BTreeSet<&String> = all.gone.iter().chain(&all.not_found).chain(&all.protected).chain(failed).collect();
    ids.iter().filter(|id| !seen.contains(id)).cloned().collect()
}
