//! The chain of a group's recipes: what one did not give is asked of the next, in the same run, when another type, zone or kind of
//! capacity may do what this one could not.

use super::launching::{End, Launcher, Outcome, Work, cannot_record};
use crate::model::failure::Failure;
use crate::model::hostlist;
use crate::model::instance::Instance;
use crate::model::recipe::{Capacity, Group, Recipe};
use crate::plan::launch::{Ask, describe};

impl Launcher {
    /// Launches one batch: by its recipe, and for what that did not give by the group's fallbacks in their order.
    pub(crate) async fn launch(&self, work: Work) -> Outcome {
        // A request of a dead run is repeated as it was.
        let fallbacks = match self.group(&work.batch.request.group) {
            Some(group) if work.sent.is_none() => group.fallbacks.as_slice(),
            _ => &[],
        };
        let order = work.order;
        let (nodes, mut have, mut chain, mut sent) = (work.batch.nodes.clone(), Vec::new(), Chain::default(), None);
        let mut outcome = self.launch_once(work).await;
        for fallback in fallbacks {
            sent = sent.or(outcome.work.sent);
            let Some(failure) = next_may_help(&outcome).filter(|_| self.context.limits.may_launch()) else { break };
            let step = format!("{}: {}", brief(&outcome.work.batch.request.recipe, fallbacks), failure.code);
            chain.failed(failure.clone(), step.clone());
            if let End::Answered { instances, .. } = &mut outcome.end {
                have.append(instances);
            }
            let left = nodes.get(have.len()..).unwrap_or_default().to_vec();
            let next = match self.fall_back(&outcome.work, fallback, left) {
                Ok(next) => next,
                Err(error) => {
                    outcome.end = End::Failed(cannot_record(&error));
                    break;
                }
            };
            tracing::warn!(
                group = next.batch.request.group,
                batch = next.index,
                nodes = hostlist::compress_sorted(&next.batch.nodes),
                jobs = self.jobs.of(&next.batch.nodes),
                "falling back to {} after {step}",
                describe(&next.batch.request)
            );
            let unsure = outcome.unsure;
            outcome = self.launch_once(next).await;
            outcome.unsure |= unsure;
        }
        let last = brief(&outcome.work.batch.request.recipe, fallbacks);
        outcome.work.sent = sent.or(outcome.work.sent);
        outcome.work.batch.nodes = nodes;
        outcome.work.order = order;
        together(outcome, have, &chain, &last)
    }

    fn group(&self, name: &str) -> Option<&Group> {
        self.context.settings.groups.iter().find(|group| group.name == name)
    }

    /// A new attempt for `nodes` by another recipe, recorded before anything is sent.
    fn fall_back(&self, like: &Work, recipe: &Recipe, nodes: Vec<String>) -> std::io::Result<Work> {
        let request = &like.batch.request;
        let Some(group) = self.group(&request.group) else {
            return Err(std::io::Error::other(format!("group {} is not configured", request.group)));
        };
        self.add(Ask { group, recipe, strategy: request.strategy, names_node: false }, nodes)
    }
}

/// What sets a recipe apart from the others of its chain, for a reason that must be short.
fn brief(recipe: &Recipe, fallbacks: &[Recipe]) -> String {
    let differs = |field: fn(&Recipe, &Recipe) -> bool| fallbacks.iter().any(|other| field(recipe, other));
    let mut parts = Vec::new();
    if differs(|a, b| a.launch_template.label() != b.launch_template.label()) {
        parts.push(recipe.launch_template.label().to_owned());
    }
    parts.extend((!recipe.instance_types.is_empty()).then(|| recipe.instance_types.join("/")));
    if differs(|a, b| a.subnets != b.subnets) {
        parts.push(recipe.subnets.join("/"));
    }
    parts.extend((recipe.capacity == Capacity::Spot).then(|| "spot".to_owned()));
    if parts.is_empty() { recipe.launch_template.label().to_owned() } else { parts.join(" ") }
}

/// The failure after which another recipe may do better: of capacity, quota or zone, and nothing in doubt.
fn next_may_help(outcome: &Outcome) -> Option<&Failure> {
    if outcome.in_doubt {
        return None;
    }
    let failure = match &outcome.end {
        End::Answered { instances, short: Some(failure) } if instances.len() < outcome.work.batch.nodes.len() => failure,
        End::Failed(failure) => failure,
        _ => return None,
    };
    failure.class.lets_fall_back().then_some(failure)
}

/// What went wrong on the way through a chain.
#[derive(Default)]
struct Chain {
    /// Code and class are the first recipe's: what it lacks is what the group lacks.
    first: Option<Failure>,
    /// `recipe: code` of those after it.
    others: Vec<String>,
}

impl Chain {
    fn failed(&mut self, failure: Failure, step: String) {
        match self.first {
            None => self.first = Some(failure),
            Some(_) => self.others.push(step),
        }
    }

    /// The failure of the whole chain, whose last recipe ended with `failure`.
    fn in_all(&self, failure: Failure, last: &str) -> Failure {
        let Some(first) = self.first.clone() else { return failure };
        let mut others = self.others.clone();
        others.push(format!("{last}: {}", failure.code));
        Failure { sentence: format!("{} (also tried {})", first.sentence, others.join(", ")), ..first }
    }
}

/// The end of a chain of recipes: what all of them launched, and why it is not enough.
fn together(mut outcome: Outcome, have: Vec<Instance>, chain: &Chain, last: &str) -> Outcome {
    outcome.end = match outcome.end {
        End::Answered { mut instances, short } => {
            instances.splice(0..0, have);
            End::Answered { instances, short: short.map(|failure| chain.in_all(failure, last)) }
        }
        End::Failed(failure) if have.is_empty() => End::Failed(chain.in_all(failure, last)),
        End::Failed(failure) => End::Answered { instances: have, short: Some(chain.in_all(failure, last)) },
        End::Unknown(failure) if have.is_empty() => End::Unknown(chain.in_all(failure, last)),
        // What may have been launched last is in the record, under its own token: the next program finds it.
        End::Unknown(failure) => {
            outcome.unsure = true;
            End::Answered { instances: have, short: Some(chain.in_all(failure, last)) }
        }
    };
    outcome
}
