//! The beginning of a resume: looks at what is there, decides for each node, and in one locked write takes the claims, writes the
//! launch record and finishes what dead runs left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::context::{Context, LOCK_WAIT};
use super::exit::Stopped;
use super::launching::Work;
use super::resume::PROGRAM;
use super::survey::Survey;
use super::telling::{self, Failed};
use super::{rebuild, recovery};
use crate::clock;
use crate::error::chain;
use crate::model::failure::Backoff;
use crate::model::instance::Instance;
use crate::model::mapping::{NodeEntry, NodeState};
use crate::model::recipe::LaunchTemplate;
use crate::model::time::Timestamp;
use crate::plan::claim::{self, InstanceView, NodeFacts, SlurmView, Verdict};
use crate::plan::launch::{Batch, LaunchContext, batches};
use crate::plan::recover::Relaunch;
use crate::store::error::StoreError;
use crate::store::file::Locked;
use crate::store::launch_record::{self, LiveRecord, RecordBatch, RecordEvent, RecordHeader, RecordState};

/// A record may outlive its run's end by this much before others take it over although its lock is held.
const RECORD_SLACK: Duration = Duration::from_mins(1);

/// What the locked write of the beginning gave.
#[derive(Default)]
pub(super) struct Claimed {
    pub(super) work: Vec<Work>,
    pub(super) record: Option<LiveRecord>,
    /// Backed already, but Slurm may not know.
    pub(super) publish: Vec<(String, Instance)>,
    pub(super) failed: Vec<Failed>,
    /// Nodes that need nothing, with the reason.
    pub(super) left: Vec<(String, &'static str)>,
    /// Node and instance.
    pub(super) reboot: Vec<(String, String)>,
}

/// Looks, decides, and claims. Looks again when a node changed in between.
pub(super) async fn claim_all(context: &Arc<Context>, nodes: &[String]) -> Result<Claimed, Stopped> {
    let (versions, first) = tokio::join!(resolve_templates(context, nodes), Survey::take(context, nodes));
    let mut first = Some(first);
    let mut tries = 0;
    loop {
        let survey = match first.take() {
            Some(survey) => survey,
            None => Survey::take(context, nodes).await,
        };
        let mut survey = survey?;
        tries += 1;
        if !survey.mapping_existed && tries == 1 && rebuild::rebuild(context).await? {
            continue;
        }
        if let Some(claimed) = claim_once(context, nodes, &versions, &mut survey, tries >= 5)? {
            return Ok(claimed);
        }
    }
}

/// One locked write; `None` = a mapped node changed since the survey and `last` is not set.
fn claim_once(
    context: &Context,
    nodes: &[String],
    versions: &BTreeMap<String, String>,
    survey: &mut Survey,
    last: bool,
) -> Result<Option<Claimed>, StoreError> {
    let now = clock::now();
    let backoffs = context.backoffs().active(now).unwrap_or_else(|error| {
        tracing::warn!("the back-offs cannot be read, launching as if there were none: {}", chain(&error));
        BTreeMap::new()
    });
    let called: BTreeSet<String> = nodes.iter().cloned().collect();
    let mut locked = context.store.locked(LOCK_WAIT)?;
    let live = live_launches(&locked, now, survey);
    let mut claimed = Claimed::default();
    let mapping = locked.mapping_mut();
    for node in nodes {
        let (then, now) = (survey.mapping.nodes.get(node), mapping.nodes.get(node));
        if !last && now.is_some_and(|entry| entry.state == NodeState::Running) && !same_instance(then, now) {
            return Ok(None);
        }
    }
    let finish = recovery::apply(mapping, survey, &called, true);
    let mut by_group: BTreeMap<&str, Vec<(String, Timestamp)>> = BTreeMap::new();
    for node in nodes {
        let Some(group) = context.settings.group_of(node) else {
            let failure = telling::unknown_node(&context.settings.path);
            claimed.failed.push(Failed { node: node.clone(), group: None, failure, resting: false });
            continue;
        };
        let entry = mapping.nodes.get(node);
        let requested = requested(context, entry);
        let verdict = claim::verdict(&NodeFacts {
            entry,
            claim_is_live: entry.is_some_and(|entry| live.contains(&entry.launch)),
            instance: entry.map_or(InstanceView::Unknown, |entry| survey.instance_of(entry)),
            slurm: entry.map_or(SlurmView::Unknown, |entry| survey.slurm_view(node, entry)),
            backoff: backoffs.get(&group.name),
            on_existing: group.launch.on_existing,
            requested,
        });
        match verdict {
            Verdict::Launch => by_group.entry(&group.name).or_default().push((node.clone(), requested)),
            Verdict::Replace(why) => {
                tracing::info!(
                    node,
                    instance = entry.and_then(|entry| entry.instance_id.as_deref()),
                    "replacing the mapped instance: {why}"
                );
                recovery::take_down(mapping, node, now, why);
                match backoffs.get(&group.name) {
                    Some(backoff) => claimed.failed.push(resting(node, &group.name, backoff)),
                    None => by_group.entry(&group.name).or_default().push((node.clone(), requested)),
                }
            }
            Verdict::LeaveToRun => {
                if let Some(entry) = mapping.nodes.get_mut(node) {
                    entry.requested = entry.requested.max(requested);
                }
                claimed.left.push((node.clone(), "another run is launching it"));
            }
            Verdict::Leave(why) => {
                if let Some(entry) = mapping.nodes.get_mut(node) {
                    entry.requested = entry.requested.max(requested);
                    if entry.unpublished {
                        claimed.publish.extend(recovery::as_instance(entry).map(|instance| (node.clone(), instance)));
                    }
                }
                claimed.left.push((node.clone(), why));
            }
            Verdict::Reboot => {
                if let Some(entry) = mapping.nodes.get_mut(node) {
                    entry.requested = requested;
                    entry.launched = Some(now);
                    claimed.reboot.extend(entry.instance_id.clone().map(|id| (node.clone(), id)));
                    claimed.publish.extend(recovery::as_instance(entry).map(|instance| (node.clone(), instance)));
                }
            }
            Verdict::Refuse(backoff) => {
                mapping.nodes.remove(node);
                claimed.failed.push(resting(node, &group.name, &backoff));
            }
        }
    }
    for Relaunch { node, group, requested } in &finish.relaunch {
        // A group that left the configuration meanwhile: its node is failed like any other outside every group.
        match context.settings.groups.iter().find(|known| known.name == *group) {
            Some(known) => match backoffs.get(&known.name) {
                Some(backoff) => claimed.failed.push(resting(node, &known.name, backoff)),
                None => by_group.entry(&known.name).or_default().push((node.clone(), *requested)),
            },
            None => {
                let failure = telling::unknown_node(&context.settings.path);
                claimed.failed.push(Failed { node: node.clone(), group: None, failure, resting: false });
            }
        }
    }
    let launch_context = LaunchContext {
        cluster: &context.settings.cluster,
        state_id: context.store.state_id(),
        launch: &context.launch,
        versions,
    };
    let mut requested_at = BTreeMap::new();
    for group in &context.settings.groups {
        let Some(wanted) = by_group.remove(group.name.as_str()) else { continue };
        let names: Vec<String> = wanted.iter().map(|(node, _)| node.clone()).collect();
        requested_at.extend(wanted);
        for batch in batches(group, &names, &launch_context, claimed.work.len()) {
            claimed.work.push(Work { index: claimed.work.len(), batch, sent: None });
        }
    }
    for replay in &finish.replay {
        let nodes = replay.nodes.iter().map(|one| one.node.clone()).collect();
        requested_at.extend(replay.nodes.iter().map(|one| (one.node.clone(), one.requested)));
        let batch = Batch { nodes, request: replay.request.clone() };
        claimed.work.push(Work { index: claimed.work.len(), batch, sent: Some(replay.sent) });
    }
    claimed.publish.extend(finish.publish.iter().cloned());
    let known: BTreeSet<String> = claimed.publish.iter().map(|(node, _)| node.clone()).collect();
    claimed.publish.extend(recovery::unpublished(mapping, &live).into_iter().filter(|(node, _)| !known.contains(node)));
    for work in &claimed.work {
        for node in &work.batch.nodes {
            let requested = requested_at.get(node).copied().unwrap_or(now);
            mapping.nodes.insert(node.clone(), claim_entry(&work.batch.request.group, &context.launch, requested, now));
        }
    }
    if !claimed.work.is_empty() {
        let batch = |work: &Work| RecordBatch { nodes: work.batch.nodes.clone(), request: work.batch.request.clone() };
        let header = RecordHeader {
            version: launch_record::VERSION,
            cluster: context.settings.cluster.clone(),
            launch: context.launch.clone(),
            program: PROGRAM.to_owned(),
            pid: std::process::id(),
            requested: context.begun,
            expires: now + context.limits.left() + RECORD_SLACK,
            batches: claimed.work.iter().map(batch).collect(),
        };
        // The record is there before the claims that point at it.
        let record = LiveRecord::create(&locked, &header)?;
        // A repeated request is as old as its first sending, for whoever has to finish this run too.
        let sent: Vec<_> =
            claimed.work.iter().filter_map(|work| Some(RecordEvent::Sent { batch: work.index, at: work.sent? })).collect();
        if !sent.is_empty() {
            let path = context.store.launches_dir();
            record.append_all(&sent).map_err(|source| StoreError::Io { what: "write", path, source })?;
        }
        claimed.record = Some(record);
    }
    locked.commit()?;
    drop(locked);
    recovery::settle(survey, &finish);
    Ok(Some(claimed))
}

/// Launch ids whose run is alive, under the lock that is held; those whose records the survey holds are dead.
pub(super) fn live_launches(locked: &Locked<'_>, now: Timestamp, survey: &Survey) -> BTreeSet<String> {
    let ours: BTreeSet<&str> = survey.dead.iter().map(|dead| dead.launch.as_str()).collect();
    let live = |state| match state {
        RecordState::Live { record, .. } => Some(record.header.launch).filter(|launch| !ours.contains(launch.as_str())),
        RecordState::Dead(_) | RecordState::Unreadable { .. } => None,
    };
    locked.records(now).into_iter().filter_map(live).collect()
}

/// When Slurm asked for a node: now. A person who repeats the call by hand for a node that is on its way does not move Slurm's boot
/// gate, so the time of the first call stays.
fn requested(context: &Context, entry: Option<&NodeEntry>) -> Timestamp {
    match entry {
        Some(entry) if context.interactive && entry.state == NodeState::Running => entry.requested,
        _ => context.begun,
    }
}

fn same_instance(a: Option<&NodeEntry>, b: Option<&NodeEntry>) -> bool {
    a.map(|entry| (&entry.state, &entry.instance_id)) == b.map(|entry| (&entry.state, &entry.instance_id))
}

fn claim_entry(group: &str, launch: &str, requested: Timestamp, now: Timestamp) -> NodeEntry {
    NodeEntry {
        state: NodeState::Launching,
        group: group.to_owned(),
        launch: launch.to_owned(),
        requested,
        since: now,
        launched: None,
        instance_id: None,
        private_ip: None,
        hostname: None,
        instance_type: None,
        zone: None,
        unpublished: false,
    }
}

fn resting(node: &str, group: &str, backoff: &Backoff) -> Failed {
    Failed { node: node.to_owned(), group: Some(group.to_owned()), failure: telling::backoff_failure(backoff), resting: true }
}

/// Template versions as numbers, so that a repeated request is the same request even if somebody edits the template in between.
async fn resolve_templates(context: &Arc<Context>, nodes: &[String]) -> BTreeMap<String, String> {
    let groups: BTreeSet<&str> =
        nodes.iter().filter_map(|node| context.settings.group_of(node)).map(|group| group.name.as_str()).collect();
    let groups: Vec<_> = context.settings.groups.iter().filter(|group| groups.contains(group.name.as_str())).collect();
    let mut templates: Vec<&LaunchTemplate> = Vec::new();
    for group in &groups {
        let template = &group.recipe.launch_template;
        if template.version.starts_with('$') && !templates.contains(&template) {
            templates.push(template);
        }
    }
    let mut tasks = JoinSet::new();
    for template in templates {
        let (context, template) = (Arc::clone(context), template.clone());
        tasks.spawn(async move {
            match context.ask("DescribeLaunchTemplates", context.ec2.template_version(&template)).await {
                Ok(version) => Some((template, version)),
                Err(error) => {
                    // The launch itself gives the code that the nodes' reason carries.
                    let (name, why) = (template.label(), chain(&error));
                    tracing::warn!(
                        template = name,
                        "launching with version {}, which cannot be resolved: {why}",
                        template.version
                    );
                    None
                }
            }
        });
    }
    let resolved: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    groups
        .iter()
        .filter_map(|group| {
            let (_, version) =
                resolved.iter().find(|(template, _): &&(LaunchTemplate, _)| *template == group.recipe.launch_template)?;
            Some((group.name.clone(), version.as_str().to_owned()))
        })
        .collect()
}
