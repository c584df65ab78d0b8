//! The doors and limits of one run, handed to every step of a story.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::startup::Limits;
use crate::aws::calls::CallCounts;
use crate::clock;
use crate::config::settings::Settings;
use crate::dynamodb::DynamoDb;
use crate::ec2::error::Ec2Error;
use crate::ec2::sdk::Ec2;
use crate::model::instance::{Instance, tag};
use crate::model::policy::Daemon;
use crate::model::time::Timestamp;
use crate::route53::Route53;
use crate::slurm::scontrol::{Applied, Scontrol};
use crate::slurm::update::Call;
use crate::store::backoff::Backoffs;
use crate::store::door::Store;
use crate::store::heartbeat::heartbeat_age;

/// The longest a program waits for the mapping's lock; it is held for milliseconds.
const LOCK_WAIT: Duration = Duration::from_secs(20);

/// A record may outlive its run's end by this much before others take it over although its run seems to live.
pub(crate) const RECORD_SLACK: Duration = Duration::from_mins(1);

/// The same after a signal.
const STOPPING_WAIT: Duration = Duration::from_secs(3);

/// The longest a question to EC2 may take.
const ASK_LIMIT: Duration = Duration::from_secs(30);

/// A heartbeat older than this means that no clustermgtd runs (its loop is one minute).
const HEARTBEAT_FRESH: Duration = Duration::from_mins(3);

/// An instance id that EC2 does not know is believed gone only at this age: a younger one may just not be visible yet.
pub(crate) const YOUNG: Duration = Duration::from_mins(10);

pub(crate) struct Context {
    /// Who runs: in launch records and events.
    pub(crate) program: &'static str,
    pub(crate) settings: Settings,
    pub(crate) store: Store,
    pub(crate) ec2: Ec2,
    /// Only where a table of DynamoDB is configured.
    pub(crate) dynamodb: Option<DynamoDb>,
    /// Only where a DNS zone is configured.
    pub(crate) route53: Option<Route53>,
    pub(crate) slurm: Scontrol,
    pub(crate) limits: Limits,
    /// This run's id: tag, log field, name of its record.
    pub(crate) launch: String,
    /// When this run was asked, by our clock.
    pub(crate) begun: Timestamp,
    pub(crate) begun_at: Instant,
    pub(crate) interactive: bool,
}

impl Context {
    /// How long to wait for the mapping's lock: no longer than the run may last, but always for one try.
    pub(crate) fn lock_wait(&self) -> Duration {
        let most = if self.limits.stopping() { STOPPING_WAIT } else { LOCK_WAIT };
        most.min(self.limits.left()).max(Duration::from_millis(100))
    }

    /// Is there a clustermgtd that brings failed nodes back? Beside ParallelCluster there is always one meant to: resume has looked at
    /// its heartbeat, and what the others leave to it waits for its return.
    pub(crate) fn daemon_runs(&self) -> bool {
        if self.settings.parallelcluster.is_some() {
            return true;
        }
        match self.settings.run.daemon {
            Daemon::Yes => true,
            Daemon::No => false,
            Daemon::Auto => heartbeat_age(&self.settings.state_dir, clock::now()).is_some_and(|age| age <= HEARTBEAT_FRESH),
        }
    }

    pub(crate) fn backoffs(&self) -> Backoffs {
        Backoffs::in_folder(self.store.dir())
    }

    /// Launched by this state folder (or table)? Others' instances are never touched.
    ///
    /// Beside ParallelCluster its own daemons launch for this cluster too, without our tags; which node such an instance belongs to is
    /// looked up before it is touched (`unmapped.rs`).
    pub(crate) fn is_ours(&self, instance: &Instance) -> bool {
        self.has_our_tags(instance) || self.is_parallelclusters(instance)
    }

    pub(crate) fn has_our_tags(&self, instance: &Instance) -> bool {
        has(instance, tag::CLUSTER, &self.settings.cluster) && has(instance, tag::STATE, self.store.state_id())
    }

    /// A compute node of the ParallelCluster that this head node belongs to, whoever launched it?
    fn is_parallelclusters(&self, instance: &Instance) -> bool {
        self.settings.parallelcluster.is_some()
            && has(instance, tag::PARALLELCLUSTER_NAME, &self.settings.cluster)
            && has(instance, tag::PARALLELCLUSTER_TYPE, tag::PARALLELCLUSTER_COMPUTE)
    }

    /// A call that is not the run's main business: at most [`ASK_LIMIT`] and half of what is left, so that what has to be done
    /// without its answer is still done in time.
    pub(crate) async fn ask<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, Ec2Error>>,
    ) -> Result<T, Ec2Error> {
        tokio::select! {
            biased;
            answer = call => answer,
            () = tokio::time::sleep(ASK_LIMIT.min(self.limits.left() / 2)) => Err(Ec2Error::late(operation)),
            () = self.limits.stopped() => Err(Ec2Error::late(operation)),
        }
    }

    /// Updates of Slurm, until the run's end or the grace after a signal; then nothing is known of them (they may have been
    /// applied), and the next program repeats what has to be.
    pub(crate) async fn apply(&self, calls: Vec<Call>) -> Applied {
        let nodes: BTreeSet<String> = calls.iter().flat_map(|call| call.nodes().iter().cloned()).collect();
        tokio::select! {
            biased;
            applied = self.slurm.apply_all(calls, self.limits.end) => applied,
            // The end itself is apply_all's: it still knows what was done.
            () = self.limits.stopped() => Applied { unknown: nodes.into_iter().collect(), ..Applied::default() },
        }
    }

    /// The calls of all AWS services so far.
    pub(crate) fn calls(&self) -> CallCounts {
        let mut calls = self.ec2.calls();
        let others = [self.dynamodb.as_ref().map(DynamoDb::calls), self.route53.as_ref().map(Route53::calls)];
        others.into_iter().flatten().for_each(|other| calls.add(other));
        calls
    }

    /// EC2's answer by id.
    pub(crate) fn by_id(instances: Vec<Instance>) -> BTreeMap<String, Instance> {
        instances.into_iter().map(|instance| (instance.id.clone(), instance)).collect()
    }
}

fn has(instance: &Instance, key: &str, value: &str) -> bool {
    instance.tags.get(key).map(String::as_str) == Some(value)
}

/// `20261129T120000Z-1f2e3d4c`: sorts by time, unique for ever.
pub(crate) fn new_launch_id(now: Timestamp) -> Result<String, String> {
    let mut random = [0u8; 4];
    getrandom::fill(&mut random).map_err(|error| format!("no randomness from the kernel: {error}"))?;
    let time: String = Timestamp::from_secs(now.secs()).to_string().chars().filter(|c| !matches!(c, '-' | ':')).collect();
    Ok(format!("{time}-{:08x}", u32::from_le_bytes(random)))
}
