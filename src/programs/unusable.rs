//! slurm_resume without a usable configuration or state folder: EC2 and the state are not touched, but Slurm hears of it.

use std::path::Path;
use std::time::{Duration, Instant};

use super::args::{Common, Environment};
use super::exit::Exit;
use super::resume::PROGRAM;
use super::{beside, startup, telling};
use crate::config::settings::Settings;
use crate::model::failure::{ErrorClass, Failure, codes};
use crate::model::hostlist;
use crate::slurm::scontrol::Scontrol;
use crate::slurm::update;

/// No usable configuration: EC2 and the state are not touched, but Slurm hears of it, so that nothing hangs until ResumeTimeout.
/// `settings` is what the refused file says of where scontrol is.
pub(super) async fn without_config(env: &Environment, common: &Common, settings: &Settings, error: &str) -> Exit {
    if common.dry_run {
        return Exit::Config;
    }
    if let Some((slurm, nodes)) = without_settings(PROGRAM, env, common, settings) {
        let first = error.lines().next().unwrap_or_default();
        tell_unusable(settings, &slurm, &nodes, codes::CONFIGURATION, first).await;
    }
    Exit::Config
}

/// scontrol and the nodes as far as they can be known without a configuration; what is missing has been said.
pub(super) fn without_settings(
    program: &'static str,
    env: &Environment,
    common: &Common,
    settings: &Settings,
) -> Option<(Scontrol, Vec<String>)> {
    let nodes = startup::nodes(common, hostlist::DEFAULT_LIMIT).map_err(|error| startup::complain(program, &error)).ok()?;
    let conf = env.slurm_conf.as_deref().unwrap_or(&settings.slurm.conf);
    let configured = settings.slurm.bin_dir.as_path();
    let mut dirs = std::iter::once(configured).chain(SCONTROL_DIRS.iter().map(Path::new));
    let Some(bin_dir) = dirs.find(|dir| dir.join("scontrol").exists()) else {
        let places = format!("{}, {}", configured.display(), SCONTROL_DIRS.join(", "));
        startup::complain(program, &format!("no scontrol in {places}: the nodes stay as they are"));
        return None;
    };
    Some((Scontrol::new(bin_dir, conf, TELL_LIMIT).through(settings.slurm.sudo.as_deref()), nodes))
}

/// Where Slurm is usually installed: only for telling it that our own configuration does not say.
const SCONTROL_DIRS: [&str; 4] = ["/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin"];

/// The state folder or the EC2 client cannot be used: as without a configuration.
pub(super) async fn without_state(settings: &Settings, slurm: &Scontrol, nodes: &[String], error: &str) -> Exit {
    tracing::error!(nodes = nodes.len(), "nothing launched: {error}");
    tell_unusable(settings, slurm, nodes, codes::STATE, error).await;
    Exit::Config
}

/// Nodes per call where no configuration says it; the argument's bytes cut earlier.
pub(super) const MANY: usize = 5000;

/// Time for telling Slurm when nothing else can be done.
const TELL_LIMIT: Duration = Duration::from_secs(20);

async fn tell_unusable(settings: &Settings, slurm: &Scontrol, nodes: &[String], code: &str, error: &str) {
    let failure = Failure {
        code: code.to_owned(),
        class: ErrorClass::Configuration,
        sentence: format!("slurm_resume cannot work: {error}"),
        request_id: None,
    };
    let until = Instant::now() + TELL_LIMIT;
    // A person may have called for nodes that run jobs: only those that wait are told.
    let waiting: Vec<String> = match slurm.show_nodes(nodes, until).await {
        Ok(shown) => shown.into_iter().filter(|node| node.state.is_awaited()).map(|node| node.name).collect(),
        Err(error) => {
            let text =
                format!("slurmctld could not be told either; the nodes run into ResumeTimeout: {}", crate::error::chain(&error));
            return startup::complain(PROGRAM, &text);
        }
    };
    if waiting.is_empty() {
        return;
    }
    let next = "tell the administrator";
    let calls = if settings.parallelcluster.is_some() {
        update::down_args(&waiting, &beside::reason(&failure, next), None, MANY)
    } else {
        let version = slurm.version().await.unwrap_or(telling::OLDEST);
        update::power_down_force_args(&waiting, &failure.reason(next), &version, MANY)
    };
    let applied = slurm.apply_all(calls, until).await;
    if !applied.unknown.is_empty() {
        startup::complain(PROGRAM, "slurmctld could not be told either; the nodes run into ResumeTimeout");
    }
}
