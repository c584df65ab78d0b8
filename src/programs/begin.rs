//! The common beginning of the three programs that slurmctld calls: from argv and environment to a [`Context`] with its nodes.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use super::args::{Common, Environment};
use super::context::{Context, new_launch_id};
use super::exit::Exit;
use super::{preview, publishing, startup};
use crate::clock;
use crate::config::settings::Settings;
use crate::config::source;
use crate::ec2::sdk::Ec2;
use crate::error::chain;
use crate::model::resume_file::Job;
use crate::model::time::Timestamp;
use crate::slurm::scontrol::Scontrol;
use crate::store::door::Store;

/// Why a program cannot work at all, as far as it got.
pub(crate) enum Unusable {
    Config {
        /// What the file says all the same.
        settings: Box<Settings>,
        error: String,
    },
    /// The state folder or the client of an AWS service.
    State { settings: Box<Settings>, nodes: Vec<String>, error: String },
}

/// Which story is told.
pub(crate) trait Story {
    const PROGRAM: &'static str;

    /// Everything is ready.
    fn run(self, context: Arc<Context>, nodes: Vec<String>) -> impl Future<Output = Exit>;

    /// The story cannot be told; may still tell Slurm.
    fn unusable(&self, env: &Environment, common: &Common, what: Unusable) -> impl Future<Output = Exit>;

    /// Job ids for the start line; reads what it holds with the limit of the configuration.
    fn jobs(&mut self, _limit: usize) -> &[Job] {
        &[]
    }

    /// A look at the node list before the story begins.
    fn check(&self, _nodes: &[String]) {}
}

/// Runs a program from its command line to its exit status.
pub(crate) fn program<S: Story>(mut story: S, common: &Common, env: &Environment, begun: (Timestamp, Instant)) -> ExitCode {
    let (begun, begun_at) = begun;
    let place = startup::config_place(S::PROGRAM, common.config.as_deref(), env);
    let Some(runtime) = runtime() else { return Exit::TempFail.into() };
    let settings = match source::load(S::PROGRAM, &place) {
        Ok(settings) => settings,
        Err(error) => {
            let error = error.to_string();
            startup::complain(S::PROGRAM, &error);
            let settings = Box::new(source::as_far_as_it_goes(S::PROGRAM, &place));
            if !common.dry_run {
                // slurmctld keeps nothing of what its programs say on stderr (R20).
                crate::log::note(S::PROGRAM, &settings.log, env.tz.as_deref(), &error);
            }
            let exit = runtime.block_on(story.unusable(env, common, Unusable::Config { settings, error }));
            return exit.into();
        }
    };
    if common.dry_run {
        return match startup::nodes(common, settings.hostlist_limit) {
            Ok(nodes) => preview::show(S::PROGRAM, &settings, &nodes).into(),
            Err(error) => {
                startup::complain(S::PROGRAM, &error);
                Exit::Usage.into()
            }
        };
    }
    let conf = crate::slurm::conf::read(env.slurm_conf.as_deref().unwrap_or(&settings.slurm.conf));
    let owner = startup::become_owner(&settings, conf.as_ref().ok().and_then(|conf| conf.slurm_user.as_deref()));
    crate::log::start(S::PROGRAM, &settings.log, common.verbose, env.tz.as_deref());
    let nodes = match startup::nodes(common, settings.hostlist_limit) {
        Ok(nodes) => nodes,
        Err(error) => {
            tracing::error!("{error}");
            return Exit::Usage.into();
        }
    };
    let launch = match new_launch_id(begun) {
        Ok(launch) => launch,
        Err(error) => {
            tracing::error!("{error}");
            return Exit::TempFail.into();
        }
    };
    let span = tracing::info_span!("run", pid = std::process::id(), launch = %launch);
    let _entered = span.enter();
    let conf =
        conf.inspect_err(|error| tracing::warn!("slurm.conf cannot be read, a short time limit is used: {}", chain(error))).ok();
    let limit = startup::time_limit(&settings, conf.as_ref(), &nodes);
    let jobs = super::telling::list(&story.jobs(settings.hostlist_limit).iter().map(|job| job.id).collect::<Vec<_>>());
    let hostlist = startup::shorten(&common.hostlist.join(","));
    tracing::info!(%hostlist, nodes = nodes.len(), jobs, limit_s = limit.as_secs(), "started");
    for warning in &settings.warnings {
        tracing::warn!("configuration: {warning}");
    }
    for why in settings.broken() {
        tracing::warn!("configuration: some nodes cannot be launched: {why}");
    }
    story.check(&nodes);
    let exit = runtime.block_on(async {
        let opened = owner
            .map_err(|error| (error, false))
            .and_then(|()| Store::open(&settings).map_err(|error| (chain(&error), error.is_temporary())));
        let store = match opened {
            Ok(store) => store,
            Err((error, temporary)) => {
                let exit = story.unusable(env, common, Unusable::State { settings: Box::new(settings), nodes, error }).await;
                return if temporary { Exit::TempFail } else { exit };
            }
        };
        let slurm = scontrol(&settings, env);
        let ec2 = match Ec2::connect(&settings.aws, &settings.region).await {
            Ok(ec2) => ec2,
            Err(error) => {
                let error = chain(&error);
                return story.unusable(env, common, Unusable::State { settings: Box::new(settings), nodes, error }).await;
            }
        };
        let (dynamodb, route53) = match publishing::doors(&settings).await {
            Ok(doors) => doors,
            Err(error) => {
                let error = chain(&error);
                return story.unusable(env, common, Unusable::State { settings: Box::new(settings), nodes, error }).await;
            }
        };
        let limits = startup::Limits::start(begun_at, limit);
        let interactive = startup::interactive();
        let program = S::PROGRAM;
        let context =
            Context { program, settings, store, ec2, dynamodb, route53, slurm, limits, launch, begun, begun_at, interactive };
        story.run(Arc::new(context), nodes).await
    });
    // A thread that still waits for an outside system must not keep the program.
    runtime.shutdown_background();
    exit.into()
}

/// scontrol as configured; slurmctld's own SLURM_CONF goes before the configuration's.
pub(crate) fn scontrol(settings: &Settings, env: &Environment) -> Scontrol {
    let conf = env.slurm_conf.as_deref().unwrap_or(&settings.slurm.conf);
    let made = Scontrol::new(&settings.slurm.bin_dir, conf, settings.slurm.command_timeout);
    made.all_nodes_within(settings.clustermgtd.show_timeout).through(settings.slurm.sudo.as_deref())
}

/// One thread: the programs wait, they do not compute.
pub(crate) fn runtime() -> Option<tokio::runtime::Runtime> {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => Some(runtime),
        Err(error) => {
            startup::complain("slurm-ec2", &format!("the runtime cannot start: {error}"));
            None
        }
    }
}

/// When this run began, on both clocks.
pub(crate) fn now() -> (Timestamp, Instant) {
    (clock::now(), Instant::now())
}
