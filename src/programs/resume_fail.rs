//! `slurm_resume_fail`: nodes that did not register before ResumeTimeout. Their console output goes into the log, their instances go,
//! the failure is counted, and Slurm gets the nodes back: it would leave them down for ever (slurm-facts 0 #9).

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::args::{Common, Environment, ResumeFailArgs};
use super::begin::{self, Story, Unusable};
use super::context::Context;
use super::exit::Exit;
use super::suspend::{Freed, free, publish_rest};
use super::{release, startup, survey, telling, unmapped};
use crate::clock;
use crate::error::chain;
use crate::model::hostlist;
use crate::slurm::scontrol::Scontrol;
use crate::slurm::update;
use crate::store::failures::BootFailures;

const PROGRAM: &str = "slurm_resume_fail";

/// Consoles asked for at most, in one run: one tells what is wrong, a thousand tell no more.
const CONSOLES: usize = 10;
/// Lines and bytes of a console that are logged.
const CONSOLE_LINES: usize = 40;
const CONSOLE_BYTES: usize = 8 * 1024;
/// Time for Slurm when nothing else can be done.
const ALONE: Duration = Duration::from_secs(20);
/// Best effort: the nodes must not wait for it.
const CONSOLE_LIMIT: Duration = Duration::from_secs(10);

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

    async fn unusable(&self, env: &Environment, _common: &Common, what: Unusable) -> Exit {
        // The nodes come back all the same, or they would stay down for ever.
        if let Unusable::State { settings, nodes, error } = what {
            tracing::error!(nodes = nodes.len(), "instances are left to the suspend that follows: {error}");
            let until = Instant::now() + ALONE;
            bring_back(&begin::scontrol(&settings, env), &nodes, settings.slurm.nodes_per_call, until).await;
        }
        Exit::Config
    }
}

async fn resume_fail(context: Arc<Context>, nodes: Vec<String>) -> Exit {
    let (nodes, up) = still_failed(&context, nodes).await;
    let freed = match free(&context, &nodes, "not registered before ResumeTimeout").await {
        Ok(freed) => freed,
        Err(stopped) => {
            tracing::error!(nodes = nodes.len(), "instances are left to the suspend that follows: {}", stopped.error);
            bring_back(&context.slurm, &nodes, context.settings.slurm.nodes_per_call, context.limits.end).await;
            return stopped.exit;
        }
    };
    count(&context, &nodes);
    // Before Slurm forgets the addresses.
    let found = unmapped::condemn(&context, &freed.unmapped, &nodes).await;
    // Slurm at once: nobody else would bring the nodes back if this run were killed now; and EC2 at once, in case Slurm hangs. The
    // consoles stay readable after a termination.
    let (none, per_call) = (BTreeSet::new(), context.settings.slurm.nodes_per_call);
    let (refused, released, (), ()) = tokio::join!(
        async {
            tokio::select! {
                refused = bring_back(&context.slurm, &nodes, per_call, context.limits.end) => refused,
                () = context.limits.stopped() => nodes.len(),
            }
        },
        release::release(&context, &none),
        consoles(&context, &freed),
        publish_rest(&context, &freed.publish)
    );
    tracing::info!(
        nodes = nodes.len(),
        up = up.len(),
        condemned = freed.condemned + found,
        terminated = released.gone.len(),
        left = released.left.len(),
        not_brought_back = refused,
        total_ms = u64::try_from(context.begun_at.elapsed().as_millis()).unwrap_or(u64::MAX),
        calls = %context.ec2.calls(),
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

/// Without those whose slurmd registered after all: too late for Slurm's timeout, but a job may run there now.
async fn still_failed(context: &Context, nodes: Vec<String>) -> (Vec<String>, Vec<String>) {
    let Some(shown) = survey::show(context, &nodes).await else { return (nodes, Vec::new()) };
    let (up, failed): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|node| {
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
    (failed, up)
}

/// The tail of some consoles, into the log.
async fn consoles(context: &Arc<Context>, freed: &Freed) {
    let mut tasks = JoinSet::new();
    for (node, _, id) in freed.instances.iter().filter(|(_, _, id)| id.is_some()).take(CONSOLES) {
        let (context, node, id) = (Arc::clone(context), node.clone(), id.clone().unwrap_or_default());
        tasks.spawn(async move {
            let output = context.ec2.console_output(&id).await;
            (node, id, output)
        });
    }
    let all = async {
        while let Some(done) = tasks.join_next().await {
            match done {
                Ok((node, id, Ok(Some(output)))) => {
                    tracing::error!(
                        node,
                        instance = id,
                        "did not register before ResumeTimeout; end of its console output follows"
                    );
                    for line in tail(&output) {
                        tracing::error!(node, "| {line}");
                    }
                }
                Ok((node, id, Ok(None))) => {
                    tracing::error!(node, instance = id, "did not register before ResumeTimeout; no console output yet")
                }
                Ok((node, id, Err(error))) => {
                    tracing::error!(
                        node,
                        instance = id,
                        "did not register before ResumeTimeout; no console output: {}",
                        chain(&error)
                    );
                }
                Err(error) => tracing::warn!("reading a console ended abnormally: {error}"),
            }
        }
    };
    if tokio::time::timeout(CONSOLE_LIMIT.min(context.limits.left() / 3), all).await.is_err() {
        tracing::warn!("not every console output came in time");
    }
    for node in freed.unmapped.iter().take(CONSOLES) {
        tracing::error!(node, "did not register before ResumeTimeout; the mapping knows no instance of it");
    }
}

/// The last lines, readable: control characters (cursor movements, colours) gone.
fn tail(output: &str) -> Vec<String> {
    let mut start = output.len().saturating_sub(CONSOLE_BYTES);
    while !output.is_char_boundary(start) {
        start += 1;
    }
    let lines: Vec<String> =
        output[start..].lines().map(|line| strip_escapes(line).trim_end().to_owned()).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(CONSOLE_LINES)..].to_vec()
}

/// Drops ANSI sequences (`ESC [ … letter`) and other control characters.
fn strip_escapes(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            if chars.next_if_eq(&'[').is_some() {
                while chars.next_if(|c| !c.is_ascii_alphabetic()).is_some() {}
                chars.next();
            }
        } else if c == '\t' {
            out.push(' ');
        } else if !c.is_control() {
            out.push(c);
        }
    }
    out
}

/// Counts the failure for each group, for later use.
fn count(context: &Context, nodes: &[String]) {
    let mut by_group: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for node in nodes {
        if let Some(group) = context.settings.group_of(node) {
            by_group.entry(&group.name).or_default().push(node.clone());
        }
    }
    for (group, nodes) in by_group {
        match BootFailures::in_folder(context.store.dir()).note(group, &nodes, clock::now()) {
            Ok(count) => tracing::warn!(group, nodes = nodes.len(), count, "boot failures of the group so far"),
            Err(error) => tracing::warn!(group, "boot failures cannot be counted: {}", chain(&error)),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_console_is_bounded_and_readable() {
        let mut text = "x".repeat(20_000);
        text.push_str("\n\u{1b}[1;32m[  OK  ]\u{1b}[0m Started\tfoo\r\n\r\n\u{7}panic: é\n");
        let lines = tail(&text);
        assert_eq!(lines[lines.len() - 2..], ["[  OK  ] Started foo".to_owned(), "panic: é".to_owned()]);
        assert!(lines.iter().map(String::len).sum::<usize>() <= CONSOLE_BYTES);
        assert_eq!(tail(&"line\n".repeat(500)).len(), CONSOLE_LINES);
        assert!(tail("").is_empty());
    }
}
