//! The beginning of a resume: looks at what is there, decides for each node, and in one locked write takes the claims, writes the
//! launch record and finishes what dead runs left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::task::JoinSet;

use super::context::{Context, RECORD_SLACK};
use super::decision::Decision;
use super::exit::Stopped;
use super::launching::Work;
use super::ordering::Wishes;
use super::recovery::ToFinish;
use super::survey::Survey;
use super::telling::{self, Failed};
use super::{rebuild, recovery};
use crate::clock;
use crate::error::chain;
use crate::model::failure::Backoff;
use crate::model::instance::Instance;
use crate::model::mapping::{NodeEntry, NodeState};
use crate::model::policy::{ScaleBy, Strategy};
use crate::model::recipe::LaunchTemplate;
use crate::model::time::Timestamp;
use crate::plan::claim::{self, InstanceView, NodeFacts, SlurmView, Verdict};
use crate::plan::launch::{Ask, Batch, LaunchContext, batch};
use crate::plan::recover::Relaunch;
use crate::store::door::Draft;
use crate::store::error::StoreError;
use crate::store::launch_record::{self, LiveRecord, RecordBatch, RecordEvent, RecordHeader};

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
    /// The decisions that `work` begins to carry out.
    pub(super) decisions: Vec<Decision>,
    /// Batches in the record.
    pub(super) recorded: usize,
    /// What the launch templates' symbolic versions stand for.
    pub(super) versions: BTreeMap<LaunchTemplate, String>,
}

/// Looks, decides, and claims. Looks again when a node changed in between.
///
/// `jobs` are the resume file's, `None` without a usable one.
pub(super) async fn claim_all(
    context: &Arc<Context>,
    nodes: &[String],
    jobs: Option<&[(u64, Vec<String>)]>,
) -> Result<Claimed, Stopped> {
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
        if let Some(claimed) = claim_once(context, nodes, jobs, &versions, &mut survey, tries >= 5)? {
            return Ok(Claimed { versions, ..claimed });
        }
    }
}

/// One change of the mapping; `None` = a mapped node changed since the survey and `last` is not set.
fn claim_once(
    context: &Context,
    nodes: &[String],
    jobs: Option<&[(u64, Vec<String>)]>,
    versions: &BTreeMap<LaunchTemplate, String>,
    survey: &mut Survey,
    last: bool,
) -> Result<Option<Claimed>, StoreError> {
    let now = clock::now();
    let backoffs = match context.settings.parallelcluster {
        // Its clustermgtd does that.
        Some(_) => BTreeMap::new(),
        None => context.backoffs().active(now).unwrap_or_else(|error| {
            tracing::warn!("the back-offs cannot be read, launching as if there were none: {}", chain(&error));
            BTreeMap::new()
        }),
    };
    let changed = {
        let scene = Scene { context, nodes, jobs, versions, survey, last, backoffs, now };
        context.store.change(context.lock_wait(), now, |draft| decide(&scene, draft))?
    };
    let Some(((mut claimed, finish), record)) = changed else { return Ok(None) };
    claimed.record = record;
    recovery::settle(survey, &finish);
    Ok(Some(claimed))
}

/// What the decision stands on.
struct Scene<'a> {
    context: &'a Context,
    nodes: &'a [String],
    jobs: Option<&'a [(u64, Vec<String>)]>,
    versions: &'a BTreeMap<LaunchTemplate, String>,
    survey: &'a Survey,
    last: bool,
    backoffs: BTreeMap<String, Backoff>,
    now: Timestamp,
}

/// Decides for each node, and changes the draft accordingly.
fn decide(scene: &Scene<'_>, draft: &mut Draft) -> Option<(Claimed, ToFinish)> {
    let Scene { context, nodes, jobs, versions, survey, last, ref backoffs, now } = *scene;
    let called: BTreeSet<String> = nodes.iter().cloned().collect();
    let live = live_launches(draft, survey);
    let mut claimed = Claimed::default();
    let mapping = &mut draft.mapping;
    for node in nodes {
        let (then, now) = (survey.mapping.nodes.get(node), mapping.nodes.get(node));
        if !last && now.is_some_and(|entry| entry.state == NodeState::Running) && !same_instance(then, now) {
            return None;
        }
    }
    let finish = recovery::apply(mapping, survey, &called, true, now);
    let mut wanted = Wishes::new(context.settings.run.scale_by);
    for node in nodes {
        let Some(group) = context.settings.group_of(node) else {
            let failure = telling::unknown_node(&context.settings, node);
            if context.settings.run.scale_by == ScaleBy::Job && jobs.is_some() {
                wanted.add_outside(node, context.settings.groups.first(), failure.clone());
            }
            claimed.failed.push(Failed { node: node.clone(), group: None, failure });
            continue;
        };
        let entry = mapping.nodes.get(node);
        let requested = requested(context, entry);
        let verdict = claim::verdict(&NodeFacts {
            entry,
            // One whose run another program recovers is as free as any dead run's: that program leaves a changed claim alone.
            claim_is_live: entry.is_some_and(|entry| draft.live.contains(&entry.launch)),
            instance: entry.map_or(InstanceView::Unknown, |entry| survey.instance_of(entry)),
            slurm: entry.map_or(SlurmView::Unknown, |entry| survey.slurm_view(node, entry)),
            backoff: backoffs.get(&group.name),
            on_existing: group.launch.on_existing,
            requested,
        });
        match verdict {
            Verdict::Launch => wanted.add(node, group, requested, None, &mut claimed),
            Verdict::Replace(why) => {
                tracing::info!(
                    node,
                    instance = entry.and_then(|entry| entry.instance_id.as_deref()),
                    "replacing the mapped instance: {why}"
                );
                recovery::take_down(mapping, node, now, why);
                wanted.add(node, group, requested, backoffs.get(&group.name), &mut claimed);
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
                wanted.add(node, group, requested, Some(&backoff), &mut claimed);
            }
        }
    }
    // Nodes of a dead run that this call does not name: launched group by group, whatever units the call has.
    let mut others = Wishes::new(ScaleBy::Batch);
    for Relaunch { node, group, requested } in &finish.relaunch {
        // A group that left the configuration meanwhile: its node is failed like any other outside every group.
        match context.settings.groups.iter().find(|known| known.name == *group) {
            Some(known) => others.add(node, known, *requested, backoffs.get(&known.name), &mut claimed),
            None => {
                let failure = telling::unknown_node(&context.settings, node);
                claimed.failed.push(Failed { node: node.clone(), group: None, failure });
            }
        }
    }
    let launch_context = LaunchContext {
        cluster: &context.settings.cluster,
        state_id: context.store.state_id(),
        launch: &context.launch,
        versions,
    };
    let run = &context.settings.run;
    let ordered =
        [wanted.order(jobs, run, &launch_context, &mut claimed), others.order(None, run, &launch_context, &mut claimed)];
    let (mut claims, mut later) = (Vec::new(), Vec::new());
    for one in ordered {
        claims.extend(one.claims);
        later.extend(one.later);
    }
    for replay in &finish.replay {
        let nodes = replay.nodes.iter().map(|one| one.node.clone()).collect();
        let group = &replay.request.group;
        claims.extend(replay.nodes.iter().map(|one| (one.node.clone(), group.clone(), one.requested)));
        let batch = Batch { nodes, request: replay.request.clone() };
        claimed.work.push(Work { index: claimed.work.len(), order: None, batch, sent: Some(replay.sent) });
    }
    claimed.publish.extend(finish.publish.iter().cloned());
    let known: BTreeSet<String> = claimed.publish.iter().map(|(node, _)| node.clone()).collect();
    claimed.publish.extend(recovery::unpublished(mapping, &live).into_iter().filter(|(node, _)| !known.contains(node)));
    for (node, group, requested) in claims {
        let entry = claim_entry(&group, &context.launch, requested, now);
        mapping.nodes.insert(node, entry);
    }
    if !claimed.work.is_empty() {
        let record = |batch: &Batch| RecordBatch { nodes: batch.nodes.clone(), request: batch.request.clone() };
        let mut batches: Vec<RecordBatch> = claimed.work.iter().map(|work| record(&work.batch)).collect();
        // Nodes whose turn comes later are in the record from the beginning: should this run die, the next program launches them.
        for (group, nodes) in later {
            let ask = Ask { group, recipe: &group.recipe, strategy: Strategy::BestEffort, names_node: false };
            batches.push(record(&batch(ask, nodes, &launch_context, batches.len())));
        }
        claimed.recorded = batches.len();
        let header = RecordHeader {
            version: launch_record::VERSION,
            cluster: context.settings.cluster.clone(),
            launch: context.launch.clone(),
            program: context.program.to_owned(),
            pid: std::process::id(),
            requested: context.begun,
            expires: now + context.limits.left() + RECORD_SLACK,
            batches,
        };
        // A repeated request is as old as its first sending, for whoever has to finish this run too.
        let sent: Vec<_> =
            claimed.work.iter().filter_map(|work| Some(RecordEvent::Sent { batch: work.index, at: work.sent? })).collect();
        draft.record = Some((header, sent));
    }
    Some((claimed, finish))
}

/// Launch ids that a run or another program is at work on; those whose records the survey holds are dead.
pub(super) fn live_launches(draft: &Draft, survey: &Survey) -> BTreeSet<String> {
    let ours: BTreeSet<&str> = survey.dead.iter().map(|dead| dead.launch.as_str()).collect();
    draft.live.union(&draft.recovered).filter(|launch| !ours.contains(launch.as_str())).cloned().collect()
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

/// Template versions as numbers, so that a repeated request is the same request even if somebody edits the template in between.
async fn resolve_templates(context: &Arc<Context>, nodes: &[String]) -> BTreeMap<LaunchTemplate, String> {
    // ParallelCluster's role may not look (aws-facts B.13), and its requests say `$Latest`.
    if context.settings.parallelcluster.is_some() {
        return BTreeMap::new();
    }
    let groups: BTreeSet<&str> =
        nodes.iter().filter_map(|node| context.settings.group_of(node)).map(|group| group.name.as_str()).collect();
    let groups = context.settings.groups.iter().filter(|group| groups.contains(group.name.as_str()));
    let templates: BTreeSet<&LaunchTemplate> = groups
        .flat_map(|group| std::iter::once(&group.recipe).chain(&group.fallbacks))
        .map(|recipe| &recipe.launch_template)
        .filter(|template| template.version.starts_with('$'))
        .collect();
    let mut tasks = JoinSet::new();
    for template in templates {
        let (context, template) = (Arc::clone(context), template.clone());
        tasks.spawn(async move {
            match context.ask("DescribeLaunchTemplates", context.ec2.template_version(&template)).await {
                Ok(version) => Some((template, version.as_str().to_owned())),
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
    tasks.join_all().await.into_iter().flatten().collect()
}
