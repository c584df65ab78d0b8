//! What is known before anything is decided: the mapping, the launch records, and what EC2 and Slurm say of the nodes and
//! instances in question. Changes nothing; holds the records of dead runs, so that only one program recovers them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::context::{Context, RECORD_SLACK};
use crate::clock;
use crate::ec2::error::Ec2Error;
use crate::error::chain;
use crate::model::instance::{Instance, tag};
use crate::model::mapping::{Mapping, NodeEntry, NodeState};
use crate::model::node::SlurmNode;
use crate::model::time::Timestamp;
use crate::plan::claim::{InstanceView, SlurmView};
use crate::plan::recover::{DeadBatch, Key, Wanted};
use crate::store::error::StoreError;
use crate::store::launch_record::{DeadRecord, RecordState};

/// A run that died, with what EC2 shows of its launch. Its record stays locked by us until this is dropped.
pub(crate) struct Dead {
    pub(crate) record: DeadRecord,
    pub(crate) launch: String,
    pub(crate) requested: Timestamp,
    pub(crate) batches: Vec<DeadBatch>,
    pub(crate) instances: Vec<Instance>,
}

impl Dead {
    /// The launch ids that its batches went out under.
    fn launches(&self) -> BTreeSet<String> {
        self.batches.iter().map(|batch| batch.key().launch().to_owned()).collect()
    }
}

pub(crate) struct Survey {
    pub(crate) mapping: Arc<Mapping>,
    /// mapping.json was there.
    pub(crate) mapping_existed: bool,
    /// Batches that live runs answer for.
    pub(crate) covered: BTreeSet<Key>,
    pub(crate) dead: Vec<Dead>,
    /// The instances asked for by id; `None` = EC2 did not answer.
    instances: Option<BTreeMap<String, Instance>>,
    /// EC2 answered for the launches of dead runs.
    pub(crate) dead_answered: bool,
    /// The nodes asked for; `None` = slurmctld did not answer.
    slurm: Option<BTreeMap<String, SlurmNode>>,
    /// Nodes that somebody wants up although slurmctld does not wait for them: clustermgtd's static ones, which are down by its word.
    pub(crate) wanted_besides: BTreeSet<String>,
}

impl Survey {
    /// Looks at everything that concerns `nodes` (called or suspended now) and the runs that died.
    pub(crate) async fn take(context: &Context, nodes: &[String]) -> Result<Self, StoreError> {
        let (mapping, mapping_existed, covered, mut dead) = read_state(context)?;
        let mapped: Vec<(&String, &NodeEntry)> = nodes
            .iter()
            .filter_map(|node| mapping.nodes.get_key_value(node))
            .filter(|(_, entry)| entry.state == NodeState::Running)
            .collect();
        let ids: Vec<String> = mapped.iter().filter_map(|(_, entry)| entry.instance_id.clone()).collect();
        let mut ask: BTreeSet<String> = mapped.iter().map(|(node, _)| (*node).clone()).collect();
        ask.extend(
            dead.iter().flat_map(|dead| dead.batches.iter().filter(|batch| !batch.done).flat_map(|batch| batch.nodes.clone())),
        );
        let ask: Vec<String> = ask.into_iter().collect();
        // A run that finished another one has batches under that one's launch id too.
        let of_each: Vec<BTreeSet<String>> = dead.iter().map(Dead::launches).collect();
        let launches: Vec<String> = of_each.iter().flatten().cloned().collect::<BTreeSet<_>>().into_iter().collect();
        let (instances, launched, slurm) =
            tokio::join!(describe(context, &ids), describe_launches(context, &launches), show(context, &ask));
        let dead_answered = launched.is_some();
        for instance in launched.unwrap_or_default() {
            let launch = instance.tags.get(tag::LAUNCH).map(String::as_str).unwrap_or_default();
            for (dead, launches) in dead.iter_mut().zip(&of_each) {
                if dead.launch == launch || launches.contains(launch) {
                    dead.instances.push(instance.clone());
                }
            }
        }
        let wanted_besides = BTreeSet::new();
        Ok(Self { mapping, mapping_existed, covered, dead, instances, dead_answered, slurm, wanted_besides })
    }

    /// What EC2 says of a mapped node's instance.
    pub(crate) fn instance_of(&self, entry: &NodeEntry) -> InstanceView<'_> {
        match (&self.instances, &entry.instance_id) {
            (None, _) => InstanceView::Unknown,
            (Some(instances), Some(id)) => instances.get(id).map_or(InstanceView::NotFound, InstanceView::Found),
            (Some(_), None) => InstanceView::NotFound,
        }
    }

    /// What Slurm says of a mapped node.
    pub(crate) fn slurm_view(&self, node: &str, entry: &NodeEntry) -> SlurmView {
        let Some(node) = self.slurm.as_ref().and_then(|nodes| nodes.get(node)) else { return SlurmView::Unknown };
        let state = &node.state;
        if state.is_powering_up() || state.is_powered_down() || state.is_powering_down() {
            let launched = entry.launched.map_or(u64::MAX, Timestamp::secs);
            let registered_before = node.slurmd_start_time.is_some_and(|start| start >= launched);
            SlurmView::Waiting { registered_before }
        } else {
            SlurmView::Registered
        }
    }

    pub(crate) fn slurm_answered(&self) -> bool {
        self.slurm.is_some()
    }

    /// Does Slurm, or somebody besides, still want these nodes of dead runs to come up?
    pub(crate) fn wanted(&self) -> BTreeMap<String, Wanted> {
        let Some(nodes) = &self.slurm else { return BTreeMap::new() };
        let wanted =
            |node: &SlurmNode| node.state.is_awaited() || (node.state.is_down() && self.wanted_besides.contains(&node.name));
        nodes.iter().map(|(name, node)| (name.clone(), if wanted(node) { Wanted::Yes } else { Wanted::No })).collect()
    }
}

type State = (Arc<Mapping>, bool, BTreeSet<Key>, Vec<Dead>);

fn read_state(context: &Context) -> Result<State, StoreError> {
    let now = clock::now();
    let look = context.store.look(context.lock_wait(), now, now + context.limits.left() + RECORD_SLACK)?;
    let (mut covered, mut dead) = (BTreeSet::new(), Vec::new());
    for state in look.records {
        match state {
            RecordState::Live { record, recovered_by } => {
                if let Some(who) = recovered_by {
                    tracing::debug!(of = record.header.launch, "an interrupted launch is being finished by {who}");
                }
                covered.extend(record.batches.iter().map(|batch| Key::of_request(&batch.request)));
            }
            RecordState::Dead(record) => dead.push(dead_run(record)),
            RecordState::Unreadable { name, why } => {
                tracing::error!(
                    record = name,
                    "launch record cannot be read and is left alone: {why}; look for instances with no node \
                     (tag slurm-ec2:launch = the record's name), then remove it"
                );
            }
        }
    }
    // The newest first: a later run may have taken over what an earlier one sent. Launch ids of one second do not tell which.
    dead.sort_by(|a, b| b.requested.cmp(&a.requested).then_with(|| b.launch.cmp(&a.launch)));
    Ok((look.mapping, look.existed, covered, dead))
}

fn dead_run(record: DeadRecord) -> Dead {
    let found = &record.record;
    let batches = found
        .batches
        .iter()
        .map(|batch| DeadBatch {
            index: batch.batch,
            nodes: batch.nodes.clone(),
            request: batch.request.clone(),
            sent: batch.sent,
            last_sent: batch.last_sent,
            done: batch.done,
        })
        .collect();
    let (launch, requested) = (found.header.launch.clone(), found.header.requested);
    Dead { record, launch, requested, batches, instances: Vec::new() }
}

async fn describe(context: &Context, ids: &[String]) -> Option<BTreeMap<String, Instance>> {
    if ids.is_empty() {
        return Some(BTreeMap::new());
    }
    answer(
        context.ask("DescribeInstances", context.ec2.describe_ids(ids)).await,
        "EC2 does not tell the state of mapped instances",
    )
    .map(Context::by_id)
}

async fn describe_launches(context: &Context, launches: &[String]) -> Option<Vec<Instance>> {
    if launches.is_empty() {
        return Some(Vec::new());
    }
    let filters = [(tag::LAUNCH.to_owned(), launches.to_vec())];
    let found = answer(
        context.ask("DescribeInstances", context.ec2.describe_tagged(&filters, true)).await,
        "EC2 does not tell the instances of interrupted launches",
    )?;
    Some(found.into_iter().filter(|instance| context.is_ours(instance)).collect())
}

fn answer<T>(result: Result<T, Ec2Error>, what: &str) -> Option<T> {
    result.inspect_err(|error| tracing::warn!("{what}: {}", chain(error))).ok()
}

/// A slurmctld that is down must not cost the time for what can be done without it: the longest for a question about nodes by name.
const SHOW_LIMIT: Duration = Duration::from_secs(15);

/// The most of a program's time that a question about all nodes may take, where that is more.
const SHARE: u32 = 4;

/// Slurm's view of `nodes` by name; `None` when slurmctld did not answer.
pub(crate) async fn show(context: &Context, nodes: &[String]) -> Option<BTreeMap<String, SlurmNode>> {
    if nodes.is_empty() {
        return Some(BTreeMap::new());
    }
    let shown = context.slurm.show_nodes(nodes, show_until(context, Some(nodes))).await;
    by_name(shown, || format!("{} nodes", nodes.len()))
}

/// Slurm's view of every node, for where no configuration names them.
pub(crate) async fn show_all(context: &Context) -> Option<BTreeMap<String, SlurmNode>> {
    by_name(context.slurm.show_all_nodes(show_until(context, None)).await, || "the nodes".to_owned())
}

fn show_until(context: &Context, nodes: Option<&[String]>) -> Instant {
    let limits = &context.limits;
    limits.end.min(Instant::now() + patience(context.slurm.all_nodes_limit(nodes), limits.left()))
}

/// `all`: the limit of a question about all nodes, where it is one.
fn patience(all: Option<Duration>, left: Duration) -> Duration {
    all.map_or(SHOW_LIMIT, |limit| limit.min(left / SHARE).max(SHOW_LIMIT))
}

fn by_name(
    shown: Result<Vec<SlurmNode>, crate::slurm::scontrol::Error>,
    whose: impl FnOnce() -> String,
) -> Option<BTreeMap<String, SlurmNode>> {
    match shown {
        Ok(nodes) => Some(nodes.into_iter().map(|node| (node.name.clone(), node)).collect()),
        Err(error) => {
            tracing::warn!("slurmctld does not tell the state of {}: {}", whose(), chain(&error));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m27_a_question_about_all_nodes_gets_its_own_time_and_no_more_than_a_share_of_what_there_is() {
        let secs = Duration::from_secs;
        for (all, left, expected) in [
            (None, 900, 15),
            (Some(60), 900, 60),
            (Some(60), 200, 50),
            // slurm.conf's own ResumeTimeout of a minute, halved.
            (Some(60), 30, 15),
            (Some(5), 900, 15),
        ] {
            assert_eq!(patience(all.map(secs), secs(left)), secs(expected), "{all:?} {left}");
        }
    }
}
