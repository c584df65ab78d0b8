//! One look at the world: whole, or an error that says what is missing. Changes nothing.
//!
//! EC2 is asked first, then mapping and launch records together, then Slurm, so that what Slurm shows is the newest (architecture.md
//! "The mapping"); last, by their ids, the instances that mapping or Slurm name and that the first question did not show.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};

use super::doubt::none_is_shown;
use super::policy;
use super::shared::Shared;
use crate::clock;
use crate::config::settings::Settings;
use crate::ec2::error::Ec2Error;
use crate::error::chain;
use crate::model::cluster::{Ailment, CapacityBlock, Reservation};
use crate::model::fleet::FleetStatus;
use crate::model::instance::{Instance, tag};
use crate::model::mapping::Mapping;
use crate::model::node::SlurmNode;
use crate::model::time::Timestamp;
use crate::plan::reconcile::{self, Member, Memory, Policy, Snapshot};
use crate::programs::context::Context;
use crate::programs::telling::OLDEST;
use crate::slurm::conf::SlurmConf;
use crate::slurm::scontrol::Error as SlurmError;
use crate::store::door::Kept;
use crate::store::error::StoreError;
use crate::store::failures::{BootFailures, Noted};

/// The longest that EC2 may take to list the cluster's instances, and to tell those that are asked for by id: 50,000 instances are a
/// hundred pages.
const LIST_LIMIT: Duration = Duration::from_mins(2);

/// What could not be seen: a sentence for the log.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Incomplete(pub(super) String);

impl From<Ec2Error> for Incomplete {
    fn from(error: Ec2Error) -> Self {
        Self(format!("EC2 does not tell the cluster's instances: {}", chain(&error)))
    }
}

impl From<StoreError> for Incomplete {
    fn from(error: StoreError) -> Self {
        Self(chain(&error))
    }
}

impl From<SlurmError> for Incomplete {
    fn from(error: SlurmError) -> Self {
        Self(chain(&error))
    }
}

/// What looking takes besides the doors.
pub(super) struct Eyes<'a> {
    pub(super) context: &'a Context,
    pub(super) shared: &'a Shared,
    pub(super) conf: Option<&'a SlurmConf>,
    pub(super) memory: &'a Memory,
    /// The daemon's first look: everything is asked for.
    pub(super) is_first: bool,
    /// What was last known to ail: where EC2 does not tell anew, that counts. `None`: it has not told yet.
    pub(super) ailments: Option<&'a BTreeMap<String, Vec<Ailment>>>,
}

/// What was seen, and what the decision on it goes by.
pub(super) struct Seen {
    pub(super) snapshot: Snapshot,
    pub(super) policy: Policy,
}

impl Eyes<'_> {
    /// Looks at everything. `rebuilt`: the mapping was missing and has just been made anew.
    pub(super) async fn look(&self, fleet: FleetStatus, rebuilt: bool) -> Result<Seen, Incomplete> {
        let (instances, strangers) = list(self.context).await?;
        if strangers > 0 {
            tracing::debug!(count = strangers, "instances of the cluster's name that another state folder launched: left alone");
        }
        self.shared.step();
        let kept = kept(self.context)?;
        self.shared.step();
        self.complete(instances, kept, fleet, rebuilt).await
    }

    /// What comes after the mapping: Slurm, the instances that were not shown, and what ails.
    pub(super) async fn complete(
        &self,
        mut instances: BTreeMap<String, Instance>,
        kept: Kept,
        fleet: FleetStatus,
        rebuilt: bool,
    ) -> Result<Seen, Incomplete> {
        let (context, settings) = (self.context, &self.context.settings);
        let until = context.limits.end.min(Instant::now() + settings.clustermgtd.show_timeout);
        let (nodes, partitions, hides_off_nodes) =
            tokio::join!(context.slurm.show_all_nodes(until), context.slurm.show_partitions(until), self.hides_off_nodes());
        let (nodes, partitions) = (members(settings, nodes?)?, partitions?);
        self.shared.step();
        let unseen = unseen(&kept.mapping, &nodes, &instances);
        for instance in within(context, "DescribeInstances", context.ec2.describe_ids(&unseen)).await? {
            instances.insert(instance.id.clone(), plain(instance));
        }
        self.shared.step();
        none_is_shown(&kept.mapping, &nodes, &instances)?;
        let policy = Policy { hides_off_nodes, ..policy::of(settings, self.conf, &nodes) };
        let now = clock::now();
        let reservations = self.reservations(&policy).await;
        self.shared.step();
        let ailments = self.ailments(&instances).await;
        let blocks = self.blocks(&policy, now).await;
        self.shared.step();
        let noted = noted(context);
        let strangers = instances.values().filter(|instance| !context.is_ours(instance)).map(|instance| instance.id.clone());
        let snapshot = Snapshot {
            strangers: strangers.collect(),
            now,
            fleet,
            nodes,
            partitions: partitions.into_iter().map(|partition| (partition.name.clone(), partition)).collect(),
            reservations,
            instances,
            mapping: kept.mapping,
            rebuilt,
            launches: kept.recorded,
            live: kept.live,
            ailments_told: ailments.is_some(),
            ailments: ailments.unwrap_or_default(),
            blocks,
            started: noted.started,
            boot_failures: noted.nodes,
        };
        Ok(Seen { snapshot, policy })
    }

    async fn hides_off_nodes(&self) -> bool {
        if !policy::hides_off_nodes(OLDEST, self.conf) {
            return false;
        }
        // Asked only where it matters.
        policy::hides_off_nodes(self.context.slurm.version().await.unwrap_or(OLDEST), self.conf)
    }

    /// Slurm's reservations, where they are of interest; the rest of the pass does without an answer.
    async fn reservations(&self, policy: &Policy) -> Option<Vec<Reservation>> {
        if !reconcile::need_reservations(policy, self.memory) {
            return None;
        }
        let until = self.context.limits.end.min(Instant::now() + self.context.settings.clustermgtd.show_timeout);
        match self.context.slurm.show_reservations(until).await {
            Ok(reservations) => Some(reservations),
            Err(error) => {
                tracing::warn!("the reservations of Capacity Blocks are left to the next pass: {}", chain(&error));
                None
            }
        }
    }

    /// What EC2's checks and events say of our instances; `None`: it has never told. No answer takes nothing away from what was known: a
    /// check that fails does so for minutes before it counts.
    async fn ailments(&self, instances: &BTreeMap<String, Instance>) -> Option<BTreeMap<String, Vec<Ailment>>> {
        let upkeep = &self.context.settings.clustermgtd.upkeep;
        if !upkeep.check_instances && !upkeep.check_events {
            return Some(BTreeMap::new());
        }
        let running = instances.values().filter(|instance| instance.state.is_usable());
        let ids: Vec<String> = running.map(|instance| instance.id.clone()).collect();
        match within(self.context, "DescribeInstanceStatus", self.context.ec2.describe_status(&ids)).await {
            Ok(found) => {
                let mut ailments: BTreeMap<String, Vec<Ailment>> = BTreeMap::new();
                for (id, ailment) in found {
                    ailments.entry(id).or_default().push(ailment);
                }
                Some(ailments)
            }
            Err(error) => {
                tracing::warn!("EC2 does not tell the status of the instances: {}", chain(&error));
                self.ailments.cloned()
            }
        }
    }

    /// The Capacity Blocks of the configuration, when they are due; the rest of the pass does without an answer.
    async fn blocks(&self, policy: &Policy, now: Timestamp) -> Option<BTreeMap<String, CapacityBlock>> {
        let ids: BTreeSet<&String> = policy.groups.iter().filter_map(|group| group.block.as_ref()).collect();
        let due = reconcile::blocks_are_due(policy, self.memory, now) || self.is_first && policy.upkeep.manage_blocks;
        if ids.is_empty() || !due {
            return None;
        }
        let ids: Vec<String> = ids.into_iter().cloned().collect();
        let asked = self.context.ec2.describe_capacity_reservations(&ids);
        match within(self.context, "DescribeCapacityReservations", asked).await {
            Ok(found) => Some(found.into_iter().map(|block| (block.id.clone(), block)).collect()),
            Err(error) => {
                tracing::warn!(blocks = ids.join(","), "EC2 does not tell the state of the Capacity Blocks: {}", chain(&error));
                None
            }
        }
    }
}

/// The live instances of the cluster that are ours, and how many others bear its name.
pub(super) async fn list(context: &Context) -> Result<(BTreeMap<String, Instance>, usize), Incomplete> {
    let cluster = || vec![context.settings.cluster.clone()];
    let filters = match context.settings.parallelcluster {
        // Whoever launched them: the package's programs did not tag them with ours.
        Some(_) => vec![
            (tag::PARALLELCLUSTER_NAME.to_owned(), cluster()),
            (tag::PARALLELCLUSTER_TYPE.to_owned(), vec![tag::PARALLELCLUSTER_COMPUTE.to_owned()]),
        ],
        None => vec![(tag::CLUSTER.to_owned(), cluster())],
    };
    let all = within(context, "DescribeInstances", context.ec2.describe_tagged(&filters, true)).await?;
    let shown = all.len();
    let ours: BTreeMap<String, Instance> = all
        .into_iter()
        .filter(|instance| context.is_ours(instance))
        .map(|instance| (instance.id.clone(), plain(instance)))
        .collect();
    let strangers = shown - ours.len();
    Ok((ours, strangers))
}

/// Of the tags the decision needs those that say whose an instance is; ten others on each of 10,000 are megabytes.
fn plain(mut instance: Instance) -> Instance {
    const KEPT: [&str; 6] =
        [tag::CLUSTER, tag::STATE, tag::LAUNCH, tag::NODE, tag::PARALLELCLUSTER_NAME, tag::PARALLELCLUSTER_TYPE];
    instance.tags.retain(|key, _| KEPT.contains(&key.as_str()));
    instance
}

/// Mapping and records in one step, without a change.
pub(super) fn kept(context: &Context) -> Result<Kept, Incomplete> {
    Ok(context.store.see(context.lock_wait(), clock::now())?)
}

/// The nodes with their place in the configuration.
fn members(settings: &Settings, nodes: Vec<SlurmNode>) -> Result<BTreeMap<String, Member>, Incomplete> {
    if nodes.is_empty() {
        // Taken for the truth it would make every instance one without a node (M16).
        return Err(Incomplete("slurmctld shows no node at all".to_owned()));
    }
    let member = |slurm: SlurmNode| {
        let group = settings.node_group.get(&slurm.name);
        let is_static = group.is_some() && settings.is_static(&slurm.name);
        (slurm.name.clone(), Member { slurm, group, is_static })
    };
    Ok(nodes.into_iter().map(member).collect())
}

/// Ids that the mapping or a node of ours names and that were not shown.
fn unseen(mapping: &Mapping, nodes: &BTreeMap<String, Member>, shown: &BTreeMap<String, Instance>) -> Vec<String> {
    let mapped = mapping.nodes.values().filter_map(|entry| entry.instance_id.as_ref());
    let named = nodes.values().filter(|member| member.group.is_some()).filter_map(|member| member.slurm.instance_id.as_ref());
    // Two questions for each node: a hash answers them at a quarter of the map's cost.
    let shown: HashSet<&String> = shown.keys().collect();
    let unseen: BTreeSet<&String> = mapped.chain(named).filter(|id| !shown.contains(id)).collect();
    unseen.into_iter().cloned().collect()
}

/// A question that may take longer than one about a few instances: bounded by itself and by the pass.
async fn within<T>(
    context: &Context,
    operation: &'static str,
    call: impl Future<Output = Result<T, Ec2Error>>,
) -> Result<T, Ec2Error> {
    match tokio::time::timeout(LIST_LIMIT.min(context.limits.left()), call).await {
        Ok(answer) => answer,
        Err(_) => Err(Ec2Error::late(operation)),
    }
}

/// What slurm_resume_fail, slurm_suspend and starts of the fleet have noted. A file that cannot be understood counts as empty: at worst a
/// queue is not protected in time.
fn noted(context: &Context) -> Noted {
    BootFailures::in_folder(context.store.dir()).noted().unwrap_or_else(|error| {
        tracing::warn!("the boot failures that other programs noted cannot be read: {}", chain(&error));
        Noted::default()
    })
}
