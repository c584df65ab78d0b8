//! `slurm_resume`: nodes in, instances out.
//!
//! The resume file first (it is a descriptor of slurmctld and soon gone); then what is there already; then, in one locked write, the
//! claims and the launch record; then EC2, all groups at once; each batch committed to the mapping as it completes, then told to
//! Slurm; failures told with their reason; what nobody needs terminated. Killed anywhere, the next program finishes the rest.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use super::args::{Common, Environment, ResumeArgs};
use super::begin::{self, Story, Unusable};
use super::claiming::{Claimed, claim_all};
use super::context::Context;
use super::exit::Exit;
use super::launching::Launcher;
use super::run::Run;
use super::telling::Jobs;
use super::unusable::{without_config, without_state};
use super::{beside, startup};
use crate::error::chain;
use crate::model::hostlist;
use crate::model::resume_file::{self, Job, ResumeFile};

pub(super) const PROGRAM: &str = "slurm_resume";

/// The program.
pub fn main() -> ExitCode {
    let begun = begin::now();
    startup::unblock_signals();
    let env = Environment::read();
    // Before anything that can wait: the file lives only as long as slurmctld cares (slurm-facts B).
    let unread = env.resume_file.as_deref().map(|path| (path.to_owned(), std::fs::read(path)));
    match startup::parse_args::<ResumeArgs>() {
        Ok(args) => begin::program(Resume { unread, file: None }, &args.common, &env, begun),
        Err(exit) => exit.into(),
    }
}

struct Resume {
    unread: Option<(PathBuf, std::io::Result<Vec<u8>>)>,
    file: Option<ResumeFile>,
}

impl Story for Resume {
    const PROGRAM: &'static str = PROGRAM;

    async fn run(self, context: Arc<Context>, nodes: Vec<String>) -> Exit {
        let jobs = Jobs::new(self.file.as_ref().map(|file| file.jobs.as_slice()).unwrap_or_default());
        resume(context, nodes, jobs).await
    }

    async fn unusable(&self, env: &Environment, common: &Common, what: Unusable) -> Exit {
        match what {
            Unusable::Config { settings, error } => without_config(env, common, &settings, &error).await,
            Unusable::State { settings, nodes, error } => {
                without_state(&settings, &begin::scontrol(&settings, env), &nodes, &error).await
            }
        }
    }

    fn jobs(&mut self, limit: usize) -> &[Job] {
        self.file = read_resume_file(self.unread.take(), limit);
        self.file.as_ref().map(|file| file.jobs.as_slice()).unwrap_or_default()
    }

    fn check(&self, nodes: &[String]) {
        check_same_nodes(nodes, self.file.as_ref());
    }
}

/// The story.
async fn resume(context: Arc<Context>, nodes: Vec<String>, jobs: Jobs) -> Exit {
    if let Err(exit) = beside::ready(&context, &nodes).await {
        return exit;
    }
    launch(context, nodes, jobs).await
}

/// Launches instances for the nodes, for clustermgtd too.
pub(super) async fn launch(context: Arc<Context>, nodes: Vec<String>, jobs: Jobs) -> Exit {
    let claimed = match claim_all(&context, &nodes, jobs.units()).await {
        Ok(claimed) => claimed,
        Err(stopped) => {
            without_state(&context.settings, &context.slurm, &nodes, &stopped.error).await;
            return stopped.exit;
        }
    };
    let claimed_after = context.begun_at.elapsed();
    let Claimed { work, record, publish, failed, left, reboot, decisions, recorded, versions } = claimed;
    let jobs = Arc::new(jobs);
    let mut run = Run::new(Arc::clone(&context), Arc::clone(&jobs), left);
    run.reboot(reboot).await;
    run.publish(publish);
    run.fail(failed);
    run.release();
    if let Some(record) = record {
        let launcher = Arc::new(Launcher::new(Arc::clone(&context), record, jobs, recorded, versions));
        let launcher = run.launch(launcher, work, decisions);
        run.drive().await;
        run.end_record(launcher);
    } else {
        run.drive().await;
    }
    run.finish(claimed_after).await
}

/// Missing, empty or broken: one warning, and the host list alone counts (R15).
fn read_resume_file(read: Option<(PathBuf, std::io::Result<Vec<u8>>)>, limit: usize) -> Option<ResumeFile> {
    let (path, bytes) = read?;
    let file = bytes
        .map_err(|error| error.to_string())
        .and_then(|bytes| resume_file::parse(&bytes, limit).map_err(|error| chain(&error)));
    match file {
        Ok(file) => {
            for warning in &file.warnings {
                tracing::warn!(path = %path.display(), "SLURM_RESUME_FILE: {warning}");
            }
            Some(file)
        }
        Err(error) => {
            tracing::warn!(path = %path.display(), "SLURM_RESUME_FILE cannot be used, going by the host list alone: {error}");
            None
        }
    }
}

/// argv and the file name the same set, though not the same text (slurm-facts B); if not, the host list counts.
fn check_same_nodes(nodes: &[String], file: Option<&ResumeFile>) {
    let Some(file) = file.filter(|file| !file.all_nodes.is_empty()) else { return };
    let (argv, listed): (BTreeSet<_>, BTreeSet<_>) = (nodes.iter().collect(), file.all_nodes.iter().collect());
    if argv != listed {
        let only = |a: &BTreeSet<&String>, b: &BTreeSet<&String>| hostlist::compress_sorted(&a.difference(b).collect::<Vec<_>>());
        tracing::warn!(
            only_argv = only(&argv, &listed),
            only_file = only(&listed, &argv),
            "the host list and SLURM_RESUME_FILE name different nodes: the host list says which nodes, the file which jobs"
        );
    }
}
