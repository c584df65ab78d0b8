//! One batch from its request to its instances: paced, recorded before it is sent, repeated with the same client token until EC2
//! has answered for good or the time is up. Knows nothing of the mapping or of Slurm.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::context::Context;
use super::decision::OrderId;
use super::telling::Jobs;
use crate::clock;
use crate::ec2::error::Ec2Error;
use crate::error::chain;
use crate::model::failure::{ErrorClass, Failure, codes};
use crate::model::hostlist;
use crate::model::instance::Instance;
use crate::model::recipe::LaunchTemplate;
use crate::model::round::Launched;
use crate::model::time::Timestamp;
use crate::plan::launch::{Ask, Batch, LaunchContext, batch, describe, token};
use crate::store::bucket::TokenBucket;
use crate::store::launch_record::{LiveRecord, RecordEvent};

/// First pause before a request is repeated; doubles, with jitter, up to [`PAUSE_MOST`].
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MOST: Duration = Duration::from_secs(20);

/// A batch on its way.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    /// Its index in this run's launch record.
    pub(crate) index: usize,
    /// The order of the scaling decision that it carries out; `None` = it stands for itself.
    pub(crate) order: Option<OrderId>,
    pub(crate) batch: Batch,
    /// When a request with this client token was first sent.
    pub(crate) sent: Option<Timestamp>,
}

/// How a batch ended.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    pub(crate) work: Work,
    pub(crate) end: End,
    /// A client token was given up under which instances may exist (the SDK repeats by itself, so an answer may have been lost
    /// unseen): the record stays for the next programs to look.
    pub(crate) unsure: bool,
    /// A part of it was never answered.
    pub(crate) in_doubt: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum End {
    /// EC2 answered. `short` says why there are fewer usable instances than nodes, if there are.
    Answered { instances: Vec<Instance>, short: Option<Failure> },
    /// Nothing was launched.
    Failed(Failure),
    /// The time was up while the answer was still out: instances may exist. The record stays for the next program.
    Unknown(Failure),
}

/// What launches share.
pub(crate) struct Launcher {
    pub(crate) context: Arc<Context>,
    pub(crate) record: LiveRecord,
    pub(crate) slots: Semaphore,
    pub(crate) jobs: Arc<Jobs>,
    /// Index of the next batch that is recorded beyond the first ones.
    next: std::sync::atomic::AtomicUsize,
    /// What the launch templates' symbolic versions stand for in this run.
    versions: BTreeMap<LaunchTemplate, String>,
}

impl Launcher {
    pub(crate) fn new(
        context: Arc<Context>,
        record: LiveRecord,
        jobs: Arc<Jobs>,
        batches: usize,
        versions: BTreeMap<LaunchTemplate, String>,
    ) -> Self {
        let slots = Semaphore::new(context.settings.run.concurrency.max(1));
        Self { context, record, slots, jobs, next: std::sync::atomic::AtomicUsize::new(batches), versions }
    }

    /// Records a deliberately new attempt for `nodes`: a new token, on disk before anything is sent.
    pub(crate) fn renew(&self, like: &Batch, nodes: Vec<String>) -> std::io::Result<Work> {
        let index = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut request = like.request.clone();
        request.count = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        request.client_token = token(&self.context.launch, index);
        use crate::model::instance::tag;
        for (key, value) in &mut request.tags {
            match key.as_str() {
                tag::BATCH => *value = index.to_string(),
                tag::LAUNCH => value.clone_from(&self.context.launch),
                _ => {}
            }
        }
        self.record.append(&RecordEvent::NewBatch { batch: index, nodes: nodes.clone(), request: request.clone() })?;
        Ok(Work { index, order: None, batch: Batch { nodes, request }, sent: None })
    }

    /// Records a further batch of this run, on disk before anything is sent.
    pub(crate) fn add(&self, ask: Ask<'_>, nodes: Vec<String>) -> std::io::Result<Work> {
        let index = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let context = LaunchContext {
            cluster: &self.context.settings.cluster,
            state_id: self.context.store.state_id(),
            launch: &self.context.launch,
            versions: &self.versions,
        };
        let batch = batch(ask, nodes, &context, index);
        let event = RecordEvent::NewBatch { batch: index, nodes: batch.nodes.clone(), request: batch.request.clone() };
        self.record.append(&event)?;
        Ok(Work { index, order: None, batch, sent: None })
    }

    /// Launches one batch by its own recipe.
    pub(super) async fn launch_once(&self, mut work: Work) -> Outcome {
        let mut pause = PAUSE_FIRST;
        // An earlier try, of this run or of the one it finishes, may have launched although its answer was lost.
        let mut unsure = work.sent.is_some();
        // One of this run.
        let mut own_unsure = false;
        let mut lost = false;
        let mut last: Option<Failure> = None;
        loop {
            let Ok(_slot) = self.slots.acquire().await else {
                return ended(work, unsure || lost, last.unwrap_or_else(time_is_up));
            };
            if !self.wait_for_token().await {
                return ended(work, unsure || lost, last.unwrap_or_else(|| self.too_many_calls()));
            }
            if !self.context.limits.may_launch() {
                return ended(work, unsure || lost, last.unwrap_or_else(time_is_up));
            }
            // A clock that was set back must not make the launch older than the call that asked for it.
            let now = clock::now().max(self.context.begun);
            if let Err(error) = self.record.append(&RecordEvent::Sent { batch: work.index, at: now }) {
                return ended(work, unsure || lost, cannot_record(&error));
            }
            work.sent.get_or_insert(now);
            let answer = tokio::select! {
                answer = self.context.ec2.launch(&work.batch.request) => answer,
                () = self.context.limits.launches_over() => {
                    let failure = last.unwrap_or_else(|| self.no_answer());
                    return Outcome { work, end: End::Unknown(failure), unsure: true, in_doubt: true };
                }
            };
            drop(_slot);
            let error = match answer {
                Ok(launched) => match throttled_fleet(&launched) {
                    // Its token stands for the empty answer: a new one.
                    Some(failure) => Retry { failure, new_token: true },
                    None => return self.answered(work, launched, lost).await,
                },
                Err(error) => match self.next_step(&work, error) {
                    Step::Retry(retry) => retry,
                    // Had a dead run's try launched anything, EC2 would have answered this one with it (aws-facts A.1). A try that is
                    // still on its way is found by that run's own record, which stays long enough for it.
                    Step::Give(failure) => return ended(work, own_unsure || lost, failure),
                    Step::Split(halves) => {
                        let (one, other) = *halves;
                        let (one, other) = tokio::join!(Box::pin(self.launch_once(one)), Box::pin(self.launch_once(other)));
                        return joined(work, one, other);
                    }
                },
            };
            let class = error.failure.class;
            own_unsure |= class == ErrorClass::Ambiguous;
            unsure |= own_unsure;
            last = Some(error.failure);
            if error.new_token {
                // What the old token may have launched is found by its tags, from the record.
                lost |= unsure || class == ErrorClass::TokenSpent;
                (unsure, own_unsure) = (false, false);
                match self.renew(&work.batch, work.batch.nodes.clone()) {
                    Ok(renewed) => work = renewed,
                    Err(error) => return ended(work, unsure || lost, cannot_record(&error)),
                }
            }
            if !self.context.limits.pause(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await {
                return ended(work, unsure || lost, last.unwrap_or_else(time_is_up));
            }
            pause = (pause * 2).min(PAUSE_MOST);
        }
    }

    /// Takes a token of the machine's shared bucket; `false` when the time is up first.
    async fn wait_for_token(&self) -> bool {
        let Some(bucket) = &self.context.settings.run.bucket else { return true };
        let left = self.context.limits.launch_until.saturating_duration_since(std::time::Instant::now());
        match TokenBucket::in_folder(self.context.store.dir()).take(bucket, clock::now(), left) {
            Ok(Some(wait)) if wait.is_zero() => true,
            Ok(Some(wait)) => self.context.limits.pause(wait).await,
            Ok(None) => false,
            Err(error) => {
                // EC2 throttles by itself; better that than a job that never starts.
                tracing::warn!("the shared request bucket cannot be used, launching without it: {}", chain(&error));
                true
            }
        }
    }

    fn too_many_calls(&self) -> Failure {
        Failure {
            code: codes::DEADLINE.to_owned(),
            class: ErrorClass::Other,
            sentence:
                "too many launch calls wait for the request bucket ([launch] request_bucket), this one's turn came too late"
                    .to_owned(),
            request_id: None,
        }
    }

    fn no_answer(&self) -> Failure {
        let settings = &self.context.settings;
        let place = settings.aws.endpoint_url.clone().unwrap_or_else(|| format!("region {}", settings.region));
        Failure {
            code: codes::UNREACHABLE.to_owned(),
            class: ErrorClass::Other,
            sentence: format!("EC2 ({place}) did not answer the launch call in time"),
            request_id: None,
        }
    }

    fn next_step(&self, work: &Work, error: Ec2Error) -> Step {
        let failure = error.to_failure(&describe(&work.batch.request));
        let nodes = &work.batch.nodes;
        match failure.class {
            class if class.is_retryable() => {
                self.note(work, &failure, "launch call failed, repeating it with the same client token");
                Step::Retry(Retry { failure, new_token: false })
            }
            ErrorClass::TokenSpent => {
                self.note(work, &failure, "client token is spent, repeating with a new one");
                Step::Retry(Retry { failure, new_token: true })
            }
            ErrorClass::Split if nodes.len() > 1 => {
                self.note(work, &failure, "request is too large for EC2, halving it");
                let (left, right) = nodes.split_at(nodes.len() / 2);
                match (self.renew(&work.batch, left.to_vec()), self.renew(&work.batch, right.to_vec())) {
                    (Ok(left), Ok(right)) => Step::Split(Box::new((left, right))),
                    (Err(error), _) | (_, Err(error)) => Step::Give(cannot_record(&error)),
                }
            }
            _ => Step::Give(failure),
        }
    }

    fn note(&self, work: &Work, failure: &Failure, what: &str) {
        tracing::warn!(
            group = work.batch.request.group,
            batch = work.index,
            code = failure.code,
            nodes = hostlist::compress_sorted(&work.batch.nodes),
            jobs = self.jobs.of(&work.batch.nodes),
            request_id = failure.request_id,
            "{what}: {}",
            failure.sentence
        );
    }

    /// EC2 launched: waits for missing addresses, sorts out why there are fewer than asked.
    async fn answered(&self, work: Work, launched: Launched, unsure: bool) -> Outcome {
        let Launched { mut instances, errors, request_id } = launched;
        for failure in &errors {
            self.note(&work, failure, "EC2 launched only part of the fleet");
        }
        let asked = work.batch.nodes.len();
        let count = instances.len();
        let no_address = self.fetch_addresses(&mut instances).await;
        let short = if count < asked {
            // The catch-all only where EC2 gave no code at all (R08).
            Some(errors.into_iter().next().unwrap_or_else(|| Failure {
                code: codes::LIMITED.to_owned(),
                class: ErrorClass::Capacity,
                sentence: format!("EC2 launched {count} of {asked} instances ({})", describe(&work.batch.request)),
                request_id,
            }))
        } else {
            no_address
        };
        Outcome { work, end: End::Answered { instances, short }, unsure, in_doubt: false }
    }

    /// CreateFleet gives ids only, and an instance may be unknown or without address for some seconds (R05).
    async fn fetch_addresses(&self, instances: &mut [Instance]) -> Option<Failure> {
        let started = std::time::Instant::now();
        let mut pause = Duration::from_millis(250);
        loop {
            // What is gone by now (a repeated request still names it) never shows one.
            let lacks = |instance: &Instance| instance.private_ip.is_none() && instance.state.is_usable();
            let missing: Vec<String> = instances.iter().filter(|one| lacks(one)).map(|instance| instance.id.clone()).collect();
            if missing.is_empty() {
                return None;
            }
            match self.context.ask("DescribeInstances", self.context.ec2.describe_ids(&missing)).await {
                Ok(found) => {
                    for seen in found {
                        if let Some(instance) = instances.iter_mut().find(|instance| instance.id == seen.id) {
                            *instance = seen;
                        }
                    }
                }
                Err(error) => tracing::warn!("EC2 does not tell the addresses, asking again: {}", chain(&error)),
            }
            if !instances.iter().any(lacks) {
                return None;
            }
            let waited = started.elapsed();
            if waited + pause > self.context.settings.run.address_timeout || !self.context.limits.pause(pause).await {
                tracing::error!(instances = super::telling::list(&missing), "no private address after {} s", waited.as_secs());
                return Some(Failure {
                    code: codes::NO_ADDRESS.to_owned(),
                    class: ErrorClass::Other,
                    sentence: format!("its instance showed no private address within {} s and is terminated", waited.as_secs()),
                    request_id: None,
                });
            }
            pause = (pause * 2).min(Duration::from_secs(3));
        }
    }
}

/// A request that was launched in two halves.
fn joined(work: Work, one: Outcome, other: Outcome) -> Outcome {
    // The token of the whole is given up too.
    let work = Work { sent: work.sent.or(one.work.sent), ..work };
    let end = match (one.end, other.end) {
        (End::Failed(failure), End::Failed(_)) => End::Failed(failure),
        (End::Failed(failure) | End::Unknown(failure), End::Failed(_) | End::Unknown(_)) => End::Unknown(failure),
        (one, other) => {
            let (mut all, mut short) = (Vec::new(), None);
            for end in [one, other] {
                match end {
                    End::Answered { instances, short: why } => {
                        all.extend(instances);
                        short = short.or(why);
                    }
                    End::Failed(failure) | End::Unknown(failure) => short = short.or(Some(failure)),
                }
            }
            End::Answered { instances: all, short }
        }
    };
    Outcome { work, end, unsure: true, in_doubt: one.in_doubt || other.in_doubt }
}

struct Retry {
    failure: Failure,
    new_token: bool,
}

enum Step {
    Retry(Retry),
    Give(Failure),
    /// EC2 wants smaller requests: two, each already recorded with a token of its own.
    Split(Box<(Work, Work)>),
}

fn ended(work: Work, unsure: bool, failure: Failure) -> Outcome {
    let end = if unsure { End::Unknown(failure) } else { End::Failed(failure) };
    Outcome { work, end, unsure, in_doubt: unsure }
}

/// A fleet that launched nothing because of throttling, whatever else its error list names (R01).
fn throttled_fleet(launched: &Launched) -> Option<Failure> {
    if !launched.instances.is_empty() {
        return None;
    }
    launched.errors.iter().find(|failure| failure.class == ErrorClass::Throttled).cloned()
}

pub(super) fn time_is_up() -> Failure {
    Failure {
        code: codes::DEADLINE.to_owned(),
        class: ErrorClass::Other,
        sentence: "the launch was not done in time".to_owned(),
        request_id: None,
    }
}

pub(super) fn cannot_record(error: &std::io::Error) -> Failure {
    Failure {
        code: codes::STATE.to_owned(),
        class: ErrorClass::Other,
        sentence: format!("the launch record cannot be written, so nothing is launched: {error}"),
        request_id: None,
    }
}
