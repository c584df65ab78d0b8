//! `slurm_resume_fail`: nodes that did not register before ResumeTimeout. Their console output goes into the log, their instances go,
//! the failure is counted, and Slurm gets the nodes back: it would leave them down for ever (slurm-facts 0 #9).

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::args::{Common, Environment, ResumeFailArgs};
use super::begin::{self, Story, Unusable};
use super::context::Context;
use super::exit::Exit;
use super::suspend::{free, publish_rest};
use super::{release, startup, survey, telling, timed_out, unmapped, unusable};
use crate::model::hostlist;
use crate::model::node::SlurmNode;
use crate::slurm::scontrol::Scontrol;
use crate::slurm::update;

const PROGRAM: &str = "slurm_resume_fail";

/// Time for Slurm when nothing else can be done.
const ALONE: Duration = Duration::from_secs(20);

/// The program.
pub fn main() -> ExitCode {
    let begun = begin::now();
    startup::unblock_signals();
    let env = Environment::read();
    match startup::parse_args::<ResumeFailArgs>() {
        Ok(args) => begin::program(ResumeFail, &args.common, &env, begun),
        Err(exit) => exit.into(),
    }
}

struct ResumeFail;

impl Story for ResumeFail {
    const PROGRAM: &'static str = PROGRAM;

    async fn run(self, context: Arc<Context>, nodes: Vec<String>) -> Exit {
        resume_fail(context, nodes).await
    }

    async fn unusable(&self, env: &Environment, common: &Common, what: Unusable) -> Exit {
        // The nodes come back all the same, or they would stay down for ever; where a clustermgtd does that, it is left to it.
        match what {
            Unusable::State { settings, nodes, error } => {
                tracing::error!(nodes = nodes.len(), "instances are left to the suspend that follows: {error}");
                if settings.parallelcluster.is_none() {
                    let until = Instant::now() + ALONE;
                    bring_back(&begin::scontrol(&settings, env), &nodes, settings.slurm.nodes_per_call, until).await;
                }
            }
            Unusable::Config { settings, .. } if settings.parallelcluster.is_none() && !common.dry_run => {
                if let Some((slurm, nodes)) = unusable::without_settings(PROGRAM, env, common, &settings) {
                    bring_back(&slurm, &nodes, unusable::MANY, Instant::now() + ALONE).await;
                }
            }
            Unusable::Config { .. } => {}
        }
        Exit::Config
    }
}

async fn resume_fail(context: Arc<Context>, nodes: Vec<String>) -> Exit {
    let Failed { nodes, up, shown } = still_failed(&context, nodes).await;
    let freed = match free(&context, &nodes, &nodes).await {
        Ok(freed) => freed,
        Err(stopped) => {
            tracing::error!(nodes = nodes.len(), "instances are left to the suspend that follows: {}", stopped.error);
            give_back(&context, &nodes).await;
            return stopped.exit;
        }
    };
    // What a newer call has launched would be powered down with its node.
    let nodes: Vec<String> = nodes.into_iter().filter(|node| !freed.left_alone.contains(node)).collect();
    // Before Slurm forgets the addresses.
    let found = unmapped::condemn(&context, &freed, &nodes, shown.as_ref()).await;
    let consoles = timed_out::Consoles::of(&nodes, &freed, &found);
    timed_out::count(&context, &consoles.launched(&nodes));
    // Slurm at once: nobody else would bring the nodes back if this run were killed now; and EC2 at once, in case Slurm hangs. The
    // consoles stay readable after a termination.
    let none = BTreeSet::new();
    let (refused, released, (), ()) = tokio::join!(
        async {
            tokio::select! {
                refused = give_back(&context, &nodes) => refused,
                () = context.limits.stopped() => nodes.len(),
            }
        },
        release::release(&context, &none),
        consoles.log(&context),
        publish_rest(&context, &freed.publish)
    );
    tracing::info!(
        nodes = nodes.len(),
        up = up.len(),
        condemned = freed.condemned + found.len(),
        terminated = released.gone.len(),
        left = released.left.len(),
        not_brought_back = refused,
        total_ms = u64::try_from(context.begun_at.elapsed().as_millis()).unwrap_or(u64::MAX),
        calls = %context.calls(),
        "ended"
    );
    if context.interactive {
        startup::say(&format!("cleaned up {}, up after all {}, terminated {}", nodes.len(), up.len(), released.gone.len()));
    }
    match released.exit() {
        Exit::Done if refused > 0 => Exit::SomeFailed,
        exit => exit,
    }
}

/// Gives Slurm the nodes back, except where ParallelCluster's clustermgtd does so after it has counted them. Returns how many are not.
async fn give_back(context: &Context, nodes: &[String]) -> usize {
    if context.settings.parallelcluster.is_some() {
        return 0;
    }
    bring_back(&context.slurm, nodes, context.settings.slurm.nodes_per_call, context.limits.end).await
}

/// What this was called for, sorted.
struct Failed {
    nodes: Vec<String>,
    /// slurmd registered after all: too late for Slurm's timeout, but a job may run there now.
    up: Vec<String>,
    /// What Slurm said of all of them; absent when it did not answer.
    shown: Option<BTreeMap<String, SlurmNode>>,
}

async fn still_failed(context: &Context, nodes: Vec<String>) -> Failed {
    let Some(shown) = survey::show(context, &nodes).await else { return Failed { nodes, up: Vec::new(), shown: None } };
    let (up, nodes): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|node| {
        shown.get(node).is_some_and(|node| {
            let state = &node.state;
            !state.is_down() && !state.is_powering_up() && !state.is_powered_down() && !state.is_powering_down()
        })
    });
    if !up.is_empty() {
        tracing::warn!(
            nodes = hostlist::compress_sorted(&up),
            "up after all, left alone; to take a node down: scontrol update nodename=... state=power_down"
        );
    }
    Failed { nodes, up, shown: Some(shown) }
}

/// `state=power_down`: SuspendProgram runs for the nodes and they end in `idle~`; never `resume`, which leaves flags behind (F02).
async fn bring_back(slurm: &Scontrol, nodes: &[String], per_call: usize, until: Instant) -> usize {
    if nodes.is_empty() {
        return 0;
    }
    let version = slurm.version().await.unwrap_or(telling::OLDEST);
    let mut calls = update::reset_address_args(nodes, &version, per_call);
    calls.extend(update::power_down_args(nodes, None, per_call));
    let applied = slurm.apply_all(calls, until).await;
    for (node, text) in &applied.refused {
        tracing::error!(node, "slurmctld refuses to power it down: {text}");
    }
    if !applied.unknown.is_empty() {
        tracing::error!(
            nodes = hostlist::compress_sorted(&applied.unknown),
            "these nodes stay down; scontrol update nodename=... state=power_down brings them back: {}",
            telling::why(&applied)
        );
    }
    applied.refused.len() + applied.unknown.len()
}
