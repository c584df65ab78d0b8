//! `slurm_fleet_status_manager`: ParallelCluster's own route to a start or stop (aws-facts B.7, D.8). Its clusterstatusmgtd keeps the
//! status in the table; this program gets the request in a file, does the work, and says by its exit status whether it was done.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use serde_json::Value;
use tokio::sync::watch;

use super::args::Environment;
use super::daemon::Options;
use super::exit::Exit;
use super::fleet::{self, Site};
use super::{begin, startup};
use crate::config::settings::Settings;
use crate::config::source;
use crate::model::fleet::FleetStatus;
use crate::plan::fleet_status::Transition;

const PROGRAM: &str = "slurm_fleet_status_manager";

/// Start or stop the compute fleet as a computefleet-status.json asks for
#[derive(Debug, Parser)]
#[command(
    name = "slurm_fleet_status_manager",
    version,
    after_help = "Exit status: 0 done, or nothing was asked for; 1 not done; 2 usage."
)]
struct Args {
    /// The file with the request: {"status": "START_REQUESTED"} or "STOP_REQUESTED"
    #[arg(long = "computefleet-status-data", visible_alias = "cf", value_name = "FILE")]
    data: PathBuf,

    #[command(flatten)]
    options: Options,
}

/// The program. The recipe knows success and failure only: whatever goes wrong is 1.
pub fn main() -> ExitCode {
    startup::unblock_signals();
    let env = Environment::read();
    // `-cf FILE`, as the package has it, is no option of one letter.
    let args = std::env::args_os().map(|arg| if arg == "-cf" { "--computefleet-status-data".into() } else { arg });
    let args = match Args::try_parse_from(args) {
        Ok(args) => args,
        Err(error) => {
            let exit = if error.use_stderr() { Exit::Usage } else { Exit::Done };
            let _ = error.print();
            return exit.into();
        }
    };
    match run(&args, &env) {
        Ok(()) => Exit::Done.into(),
        Err(error) => {
            startup::complain(PROGRAM, &error);
            Exit::SomeFailed.into()
        }
    }
}

fn run(args: &Args, env: &Environment) -> Result<(), String> {
    let place = startup::config_place(PROGRAM, args.options.config.as_deref(), env);
    let settings = source::load(PROGRAM, &place).map_err(|error| error.to_string())?;
    let conf = crate::slurm::conf::read(env.slurm_conf.as_deref().unwrap_or(&settings.slurm.conf));
    let owner = startup::become_owner(&settings, conf.ok().and_then(|conf| conf.slurm_user).as_deref());
    crate::log::start(PROGRAM, &settings.log, args.options.verbose, env.tz.as_deref());
    owner.and_then(|()| request(&args.data)).and_then(|transition| match transition {
        Some(transition) => carry_out(&settings, env, transition),
        None => {
            tracing::info!("{} asks for nothing", args.data.display());
            Ok(())
        }
    })
}

fn carry_out(settings: &Settings, env: &Environment, transition: Transition) -> Result<(), String> {
    tracing::info!("{} the fleet", transition.doing());
    // Nobody sends: a signal ends the program, and the next run does the work again.
    let stop = watch::Sender::<Option<Instant>>::new(None);
    // Another transition may hold the lock for as long as it may take; to give up sooner would fail the recipe.
    let site = Site { settings, env, stop: stop.subscribe(), lock_wait: settings.fleet.timeout, shows_progress: false };
    let runtime = begin::runtime().ok_or("the runtime cannot start")?;
    let result = runtime.block_on(fleet::do_work(&site, transition));
    runtime.shutdown_background();
    match &result {
        Ok(()) => tracing::info!("{} the fleet is done", transition.doing()),
        Err(error) => tracing::error!("{error}"),
    }
    result
}

/// What the file asks for; `None`: nothing, as ParallelCluster has it before the first request.
fn request(path: &Path) -> Result<Option<Transition>, String> {
    let shown = path.display();
    let text = fs::read_to_string(path).map_err(|error| format!("cannot read {shown}: {error}"))?;
    let data: Value = serde_json::from_str(&text).map_err(|error| format!("{shown} is no JSON: {error}"))?;
    let Some(word) = data.get("status").and_then(Value::as_str) else {
        return Err(format!("{shown} has no status; expected {}", words()));
    };
    if word == FleetStatus::Unknown.as_str() {
        return Ok(None);
    }
    match Transition::of_request(FleetStatus::parse(word)) {
        Some(transition) => Ok(Some(transition)),
        None => Err(format!("{shown} asks for {word:?}, which is no request; expected {}", words())),
    }
}

fn words() -> String {
    format!("\"{}\" or \"{}\"", Transition::Start.requested(), Transition::Stop.requested())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use super::*;

    #[test]
    fn z04_only_requests_are_taken_and_others_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("computefleet-status.json");
        let asked = |text: &str| {
            fs::write(&path, text).unwrap();
            request(&path)
        };
        assert_eq!(asked(r#"{"status": "STOP_REQUESTED", "lastStatusUpdatedTime": "x", "more": 1}"#), Ok(Some(Transition::Stop)));
        assert_eq!(asked(r#"{"status": "START_REQUESTED"}"#), Ok(Some(Transition::Start)));
        assert_eq!(asked(r#"{"status": "UNKNOWN"}"#), Ok(None));
        for text in [r#"{"status": "STOPPED"}"#, r#"{"status": "RUNNING"}"#, r#"{"status": "stop_requested"}"#, "{}", "[]"] {
            let error = asked(text).unwrap_err();
            assert!(error.contains("\"START_REQUESTED\" or \"STOP_REQUESTED\""), "{error}");
        }
        assert!(asked("{").unwrap_err().contains("is no JSON"));
        fs::remove_file(&path).unwrap();
        assert!(request(&path).unwrap_err().contains("cannot read"));
    }
}
