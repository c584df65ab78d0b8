//! The beginning of a resume: looks at what is there, decides for each node, and in one locked write takes the claims, writes the
//! launch record and finishes what dead runs left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::task::JoinSet;

use super::context::{Context, RECORD_SLACK};
use super::exit::Stopped;
use super::launching::Work;
use super::resume::PROGRAM;
use super::survey::Survey;
use super::telling::{self, Failed};
use super::recovery::ToFinish;
use super::{rebuild, recovery};
use crate::clock;
use crate::error::chain;
use crate::model::failure::Backoff;
use crate::model::instance::Instance;
use crate::model::mapping::{NodeEntry, NodeState};
use crate::model::policy::{ScaleBy, Strategy};
use crate::model::recipe::{Group, LaunchTemplate};
use crate::model::time::Timestamp;
use crate::plan::claim::{self, InstanceView, NodeFacts, SlurmView, Verdict};
use crate::plan::launch::{Ask, Batch, LaunchContext, batch};
use crate::plan::recover::Relaunch;
use crate::plan::scaling::{Request, Round, Scaling, Wanted};
use crate::store::error::StoreError;
use crate::store::door::Draft;
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
    /// The decision that `work` begins to carry out.
    pub(super) scaling: Option<Scaling>,
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

/// The nodes to launch.
#[derive(Default)]
struct Wishes<'a> {
    by_batch: bool,
    nodes: Vec<Wanted<'a>>,
    requested_at: BTreeMap<String, Timestamp>,
}

impl<'a> Wishes<'a> {
    /// A node of a group in back-off fails; where units are made up of several nodes, its unit must know.
    fn add(
        &mut self,
        node: &str,
        group: &'a Group,
        requested: Timestamp,
        backoff: Option<&Backoff>,
        claimed: &mut Claimed,
    ) {
        let refused = match backoff {
            Some(backoff) if self.by_batch => {
                claimed.failed.push(resting(node, &group.name, backoff));
                return;
            }
            Some(backoff) => Some(telling::backoff_failure(backoff)),
            None => None,
        };
        self.requested_at.insert(node.to_owned(), requested);
        self.nodes.push(Wanted { node: node.to_owned(), group, refused });
    }
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
    let mut wanted = Wishes { by_batch: context.settings.run.scale_by == ScaleBy::Batch, ..Wishes::default() };
    for node in nodes {
        let Some(group) = context.settings.group_of(node) else {
            let failure = telling::unknown_node(&context.settings, node);
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
    for Relaunch { node, group, requested } in &finish.relaunch {
        // A group that left the configuration meanwhile: its node is failed like any other outside every group.
        match context.settings.groups.iter().find(|known| known.name == *group) {
            Some(known) => wanted.add(node, known, *requested, backoffs.get(&known.name), &mut claimed),
            None => {
                let failure = telling::unknown_node(&context.settings, node);
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
    let Wishes { nodes: wishes, mut requested_at, .. } = wanted;
    let groups: BTreeMap<&str, &Group> = wishes.iter().map(|wish| (wish.group.name.as_str(), wish.group)).collect();
    let names: Vec<(String, &Group)> = wishes.iter().map(|wish| (wish.node.clone(), wish.group)).collect();
    let mut scaling = Scaling::new(Request {
        nodes: wishes,
        jobs: jobs.map(<[_]>::to_vec),
        scale_by: context.settings.run.scale_by,
        strategy: context.settings.run.strategy,
    });
    let Round { launch: orders, fail, .. } = scaling.next_round();
    let mut open: BTreeMap<&str, &Group> = names.iter().map(|(node, group)| (node.as_str(), *group)).collect();
    for (node, failure) in fail {
        let group = open.remove(node.as_str()).map(|group| group.name.clone());
        claimed.failed.push(Failed { node, group, failure, resting: true });
    }
    let mut waiting = open.clone();
    for order in orders {
        let Some(group) = groups.get(order.group.as_str()) else { continue };
        for node in &order.nodes {
            waiting.remove(node.as_str());
        }
        let ask = Ask { group, recipe: &group.recipe, strategy: order.strategy };
        let index = claimed.work.len();
        let batch = batch(ask, order.nodes, &launch_context, index);
        claimed.work.push(Work { index, order: Some(order.id), batch, sent: None });
    }
    let claims: Vec<(String, String)> = open.iter().map(|(node, group)| ((*node).to_owned(), group.name.clone())).collect();
    claimed.scaling = (!claims.is_empty()).then_some(scaling);
    for replay in &finish.replay {
        let nodes = replay.nodes.iter().map(|one| one.node.clone()).collect();
        requested_at.extend(replay.nodes.iter().map(|one| (one.node.clone(), one.requested)));
        let batch = Batch { nodes, request: replay.request.clone() };
        claimed.work.push(Work { index: claimed.work.len(), order: None, batch, sent: Some(replay.sent) });
    }
    claimed.publish.extend(finish.publish.iter().cloned());
    let known: BTreeSet<String> = claimed.publish.iter().map(|(node, _)| node.clone()).collect();
    claimed.publish.extend(recovery::unpublished(mapping, &live).into_iter().filter(|(node, _)| !known.contains(node)));
    let replayed = claimed.work.iter().filter(|work| work.order.is_none()).map(|work| &work.batch);
    let replayed = replayed.flat_map(|batch| batch.nodes.iter().map(|node| (node.clone(), batch.request.group.clone())));
    for (node, group) in claims.into_iter().chain(replayed) {
        let requested = requested_at.get(&node).copied().unwrap_or(now);
        let entry = claim_entry(&group, &context.launch, requested, now);
        mapping.nodes.insert(node, entry);
    }
    if !claimed.work.is_empty() {
        let record = |batch: &Batch| RecordBatch { nodes: batch.nodes.clone(), request: batch.request.clone() };
        let mut batches: Vec<RecordBatch> = claimed.work.iter().map(|work| record(&work.batch)).collect();
        // Nodes whose turn comes later are in the record from the beginning: should this run die, the next program launches them.
        let mut later: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (node, group) in waiting {
            later.entry(group.name.as_str()).or_default().push(node.to_owned());
        }
        for (group, nodes) in later {
            let Some(group) = groups.get(group) else { continue };
            let ask = Ask { group, recipe: &group.recipe, strategy: Strategy::BestEffort };
            batches.push(record(&batch(ask, nodes, &launch_context, batches.len())));
        }
        claimed.recorded = batches.len();
        let header = RecordHeader {
            version: launch_record::VERSION,
            cluster: context.settings.cluster.clone(),
            launch: context.launch.clone(),
            program: PROGRAM.to_owned(),
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

/// Launch ids whose run is alive; those whose records the survey holds are dead.
pub(super) fn live_launches(draft: &Draft, survey: &Survey) -> BTreeSet<String> {
    let ours: BTreeSet<&str> = survey.dead.iter().map(|dead| dead.launch.as_str()).collect();
    draft.live.iter().filter(|launch| !ours.contains(launch.as_str())).cloned().collect()
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
