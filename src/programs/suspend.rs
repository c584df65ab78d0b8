//! `slurm_suspend`: the instances behind the nodes go, now.
//!
//! One locked write frees the nodes and condemns their instances; then EC2 terminates. A claim that a live run is still launching is
//! taken away: that run loses the compare-and-set at its commit and condemns its instance itself.
//!
//! On a ParallelCluster head node this is ResumeFailProgram too, and Slurm forgets the addresses before the instances go (`beside.rs`).

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use super::args::{Common, Environment, SuspendArgs};
use super::begin::{self, Story, Unusable};
use super::claiming::live_launches;
use super::context::Context;
use super::exit::{Exit, Stopped};
use super::survey::Survey;
use super::{beside, publishing, rebuild, recovery, release, startup, survey, telling, timed_out, unmapped};
use crate::clock;
use crate::model::failure::reason_with;
use crate::model::hostlist;
use crate::model::instance::Instance;
use crate::model::mapping::{NodeEntry, NodeState};
use crate::model::node::SlurmNode;
use crate::plan::fleet_status::what_was_said;
use crate::slurm::update;

const PROGRAM: &str = "slurm_suspend";

/// The program.
pub fn main() -> ExitCode {
    let begun = begin::now();
    startup::unblock_signals();
    let env = Environment::read();
    match startup::parse_args::<SuspendArgs>() {
        Ok(args) => begin::program(Suspend, &args.common, &env, begun),
        Err(exit) => exit.into(),
    }
}

struct Suspend;

impl Story for Suspend {
    const PROGRAM: &'static str = PROGRAM;

    async fn run(self, context: Arc<Context>, nodes: Vec<String>) -> Exit {
        suspend(&context, &nodes).await
    }

    async fn unusable(&self, _env: &Environment, _common: &Common, what: Unusable) -> Exit {
        if let Unusable::State { nodes, error, .. } = what {
            tracing::error!(nodes = nodes.len(), "nothing terminated, the instances stay on until this is put right: {error}");
        }
        Exit::Config
    }
}

async fn suspend(context: &Arc<Context>, called_for: &[String]) -> Exit {
    let called = beside::called(context, called_for).await;
    let nodes = called.nodes.as_slice();
    let freed = match free(context, nodes, &called.timed_out).await {
        Ok(freed) => freed,
        Err(stopped) => {
            tracing::error!(nodes = nodes.len(), "nothing terminated: {}", stopped.error);
            return stopped.exit;
        }
    };
    // Before Slurm forgets the addresses.
    let found = unmapped::condemn(context, &freed, nodes, called.shown.as_ref()).await;
    let consoles = timed_out::Consoles::of(&called.timed_out, &freed, &found);
    timed_out::count(context, &consoles.launched(&called.timed_out));
    let taken = beside::take_addresses_back(context, &called, &freed).await;
    let mut publish = freed.publish.clone();
    publish.extend(beside::claimed_since(context, &taken));
    // In EC2's and Slurm's time at once: the next resume of these nodes may come any moment.
    let none = BTreeSet::new();
    let (released, (), (), (), ()) = tokio::join!(
        release::release(context, &none),
        rest_groups(context, nodes),
        publish_rest(context, &publish),
        consoles.log(context),
        beside::warn_if_stale(context)
    );
    let without: Vec<&String> = freed.unmapped.iter().filter(|node| !found.iter().any(|(of, _)| of == *node)).collect();
    if !without.is_empty() {
        tracing::info!(nodes = hostlist::compress_sorted(&without), "no instance is known for these nodes");
    }
    // A person who named a node that was left alone must not take it for done; slurmctld is not concerned.
    let exit = match released.exit() {
        Exit::Done if context.interactive && !called.up.is_empty() => Exit::SomeFailed,
        exit => exit,
    };
    tracing::info!(
        condemned = freed.condemned + found.len(),
        cancelled = freed.cancelled,
        without_instance = without.len(),
        terminated = released.gone.len(),
        left = released.left.len(),
        total_ms = u64::try_from(context.begun_at.elapsed().as_millis()).unwrap_or(u64::MAX),
        calls = %context.calls(),
        "ended"
    );
    if context.interactive {
        startup::say(&format!("terminated {}, not terminated {}", released.gone.len(), released.left.len()));
        for (id, why) in &released.left {
            startup::say(&format!("not terminated  {id}  {why}"));
        }
        if !without.is_empty() {
            startup::say(&format!("no instance known  {}", hostlist::compress_sorted(&without)));
        }
        if !called.up.is_empty() {
            let nodes = hostlist::compress_sorted(&called.up);
            startup::say(&format!("up, left alone  {nodes}  (scontrol update nodename={nodes} state=power_down)"));
        }
    }
    exit
}

/// What the locked write did.
#[derive(Debug, Default)]
pub(super) struct Freed {
    /// Instances that go.
    pub(super) condemned: usize,
    /// Claims of live runs that were taken away.
    pub(super) cancelled: usize,
    /// Nodes without an entry: failed launches come here too.
    pub(super) unmapped: Vec<String>,
    /// Nodes that Slurm asked for again since this run began: a newer call's.
    pub(super) left_alone: BTreeSet<String>,
    /// What was mapped.
    pub(super) instances: Vec<Was>,
    /// Nodes whose address Slurm was not told yet.
    pub(super) publish: Vec<(String, Instance)>,
    /// The mapping was missing and has been rebuilt.
    pub(super) rebuilt: bool,
}

/// What the mapping said of a node.
#[derive(Debug)]
pub(super) struct Was {
    pub(super) node: String,
    pub(super) instance_id: Option<String>,
    pub(super) private_ip: Option<String>,
}

/// Frees `nodes` in the mapping and condemns their instances, `timed_out` among them with that reason; finishes what dead runs left on
/// the way. A node that was asked for again since this run began is left to that newer call.
pub(super) async fn free(context: &Context, nodes: &[String], timed_out: &[String]) -> Result<Freed, Stopped> {
    free_besides(context, nodes, timed_out, &BTreeSet::new()).await
}

/// Finishes what dead runs left, and nothing else. `wanted`: nodes that are wanted up although slurmctld does not wait for them.
pub(super) async fn finish_interrupted(context: &Context, wanted: &BTreeSet<String>) -> Result<Freed, Stopped> {
    free_besides(context, &[], &[], wanted).await
}

async fn free_besides(
    context: &Context,
    nodes: &[String],
    timed_out: &[String],
    wanted: &BTreeSet<String>,
) -> Result<Freed, Stopped> {
    let mut survey = Survey::take(context, &[]).await?;
    let rebuilt = !survey.mapping_existed && rebuild::rebuild(context).await?;
    if rebuilt {
        drop(survey);
        survey = Survey::take(context, &[]).await?;
    }
    survey.wanted_besides.clone_from(wanted);
    let called: BTreeSet<String> = nodes.iter().cloned().collect();
    let timed_out: BTreeSet<&String> = timed_out.iter().collect();
    let now = clock::now();
    let changed = context.store.change(context.lock_wait(), now, |draft| {
        let live = live_launches(draft, &survey);
        let mapping = &mut draft.mapping;
        // Mostly there is no dead run, and clustermgtd's passes have no nodes either: then the mapping is not copied.
        let finish = if survey.dead.is_empty() {
            recovery::ToFinish::default()
        } else {
            recovery::apply(mapping, &survey, &called, false, now)
        };
        let mut freed = Freed { rebuilt, ..Freed::default() };
        for node in nodes {
            if mapping.nodes.get(node).is_some_and(|entry| entry.requested > context.begun && !entry.requested.is_ahead_of(now)) {
                tracing::info!(node, "left alone: Slurm asked for it again since");
                freed.left_alone.insert(node.clone());
                continue;
            }
            let why = if timed_out.contains(node) { "not registered before ResumeTimeout" } else { "suspended" };
            match recovery::take_down(mapping, node, now, why) {
                Some(entry) => {
                    match (entry.state, &entry.instance_id) {
                        (NodeState::Launching, _) => {
                            freed.cancelled += 1;
                            tracing::info!(node, of = entry.launch, "its launch is cancelled");
                        }
                        (NodeState::Running, Some(_)) => freed.condemned += 1,
                        (NodeState::Running, None) => {}
                    }
                    let NodeEntry { instance_id, private_ip, .. } = entry;
                    freed.instances.push(Was { node: node.clone(), instance_id, private_ip });
                }
                None => freed.unmapped.push(node.clone()),
            }
        }
        // Those adopted just now among them.
        freed.publish = recovery::unpublished(mapping, &live);
        Some((freed, finish))
    })?;
    let Some(((freed, finish), _)) = changed else { return Ok(Freed::default()) };
    recovery::settle(&mut survey, &finish);
    Ok(freed)
}

/// Tells Slurm the addresses that it was not told yet.
pub(super) async fn publish_rest(context: &Context, publish: &[(String, Instance)]) {
    if publish.is_empty() {
        return;
    }
    let published = publishing::publish(context, publish).await;
    for (node, failure) in &published.refused {
        tracing::error!(node, code = failure.code, "an adopted instance cannot be told: {}", failure.sentence);
    }
}

/// Nodes of a group in back-off are set down until its end, so that the scheduler looks elsewhere; only while they are POWERING_DOWN
/// (slurm-facts I: other orders lose one of the two), and only where Slurm has ResumeAfter.
async fn rest_groups(context: &Context, nodes: &[String]) {
    let now = clock::now();
    let backoffs = context.backoffs().active(now).unwrap_or_default();
    if backoffs.is_empty() || context.daemon_runs() || !telling::version(context).await.takes_resume_after() {
        return;
    }
    for (group, backoff) in backoffs {
        let of_group: Vec<String> = nodes
            .iter()
            .filter(|node| context.settings.group_of(node).is_some_and(|known| known.name == group))
            .cloned()
            .collect();
        let Some(shown) = survey::show(context, &of_group).await else { continue };
        let resting: Vec<String> = of_group.into_iter().filter(|node| shown.get(node).is_some_and(may_rest)).collect();
        if resting.is_empty() {
            continue;
        }
        // Whole seconds; at least one, zero would mean never.
        let rest = Duration::from_secs(backoff.until.since(now).as_secs().max(1));
        let sentence = format!("{}; group {group} rests until {}", backoff.sentence, backoff.until);
        let reason = reason_with(&backoff.code, &sentence);
        let calls = update::down_args(&resting, &reason, Some(rest), context.settings.slurm.nodes_per_call);
        let applied = context.apply(calls).await;
        tracing::info!(
            group,
            nodes = hostlist::compress_sorted(&applied.done),
            code = backoff.code,
            until = %backoff.until,
            "set down until the group's back-off ends"
        );
        for (node, text) in &applied.refused {
            tracing::warn!(node, "slurmctld refuses to set it down with ResumeAfter: {text}");
        }
    }
}

/// Powering down, and out of service for no other reason. A node that a person drained would come back at the group's end.
fn may_rest(node: &SlurmNode) -> bool {
    let state = &node.state;
    let is_held = state.has("DRAIN") || what_was_said(node.reason.as_deref()).is_some();
    state.is_powering_down() && !state.is_powering_up() && !is_held
}
