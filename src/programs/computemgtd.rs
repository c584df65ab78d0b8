//! `computemgtd`: on each compute node, by systemd. Watches over the head node and shuts this machine down when nobody wants it any more
//! (`watch.rs`); sees EC2's notice before a spot instance is taken away, and has Slurm requeue the jobs (`spot.rs`).
//!
//! Everything that it reads may lie on a file system of the head node, which may be gone: each such read and each program from there has
//! a thread of its own that is left behind when it hangs (`slow.rs`). One thread waits for all of it, and ends at once at a SIGTERM.
//! Never launches, terminates or changes another machine.

mod config;
mod name;
mod outside;
mod spot;
mod steps;
mod watch;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::Parser;
use tokio::signal::unix::Signal;
use tokio::sync::watch as channel;

use self::config::Config;
use self::name::OwnName;
use self::spot::Spot;
use self::watch::Watchdog;
use super::args::Environment;
use super::daemon::{self, Options, Signals};
use super::exit::{Exit, Stopped};
use super::{begin, startup, systemd};
use crate::config::settings::Settings;

pub(super) const PROGRAM: &str = "computemgtd";

/// Watch over the head node from a compute node, and for EC2's spot notices
#[derive(Debug, Parser)]
#[command(
    name = "computemgtd",
    version,
    after_help = "Exit status: 0 ended by a signal; 2 usage; 75 configuration not there yet; 78 configuration unusable."
)]
struct Args {
    #[command(flatten)]
    options: Options,
}

/// The program.
pub fn main() -> ExitCode {
    startup::unblock_signals();
    let env = Environment::read();
    let args = match startup::parse_args::<Args>() {
        Ok(args) => args,
        Err(exit) => return exit.into(),
    };
    let Some(runtime) = begin::runtime() else { return Exit::TempFail.into() };
    let exit = runtime.block_on(run(&args, env));
    // What hangs is left behind.
    runtime.shutdown_background();
    exit.into()
}

async fn run(args: &Args, env: Environment) -> Exit {
    let mut signals = match Signals::listen() {
        Ok(signals) => signals,
        Err(error) => {
            startup::complain(PROGRAM, &format!("signals cannot be caught: {error}"));
            return Exit::TempFail;
        }
    };
    let config = tokio::select! {
        config = read(args, &env) => config,
        _ = signals.end.next() => return Exit::Done,
    };
    let config = match config {
        Ok(config) => config,
        Err(exit) => return exit,
    };
    let settings = config.settings();
    let supervised = settings.parallelcluster.is_some();
    crate::log::start_daemon(PROGRAM, &settings.log, args.options.verbose, env.tz.as_deref(), supervised);
    greet(&settings);
    tokio::select! {
        () = watch_on(config, env, &mut signals.hangup) => Exit::Done,
        name = signals.end.next() => {
            systemd::stopping();
            tracing::info!("ended by {name}");
            Exit::Done
        }
    }
}

/// The configuration; what is wrong with it has been told.
async fn read(args: &Args, env: &Environment) -> Result<Config, Exit> {
    // One that is not there yet is systemd's to wait for.
    let later = |Stopped { error, exit }: Stopped| {
        startup::complain(PROGRAM, &error);
        exit
    };
    let place = config::place(PROGRAM, args.options.config.as_deref(), env).await.map_err(later)?;
    Config::read(PROGRAM, place.clone()).await.map_err(|stopped| match stopped {
        Stopped { error, exit: Exit::Config } => {
            daemon::refuse(PROGRAM, &place, env, &error);
            Exit::Config
        }
        stopped => later(stopped),
    })
}

fn greet(settings: &Settings) {
    let own = &settings.computemgtd;
    let heartbeat = own.heartbeat.as_ref().map_or("none".to_owned(), |path| path.display().to_string());
    tracing::info!(
        heartbeat,
        timeout_s = own.heartbeat_timeout.as_secs(),
        loop_s = own.loop_time.as_secs(),
        disabled = own.disabled,
        "started"
    );
    for warning in &settings.warnings {
        tracing::warn!("configuration: {warning}");
    }
}

/// The daemon's work, for ever.
async fn watch_on(mut config: Config, env: Environment, hangup: &mut Signal) {
    let name = OwnName::new();
    let (tell, settings) = channel::channel(config.settings());
    let mut watchdog = Watchdog::new(PROGRAM, Arc::clone(&name), env.slurm_conf.clone());
    let mut spot = Spot::new(settings, name, env.slurm_conf);
    let watch = async {
        loop {
            let begun = Instant::now();
            if config.refresh().await {
                tell.send_replace(config.settings());
            }
            let settings = config.settings();
            watchdog.look(&settings).await;
            systemd::status(&watchdog.status());
            let next = begun + settings.computemgtd.loop_time;
            tokio::select! {
                () = tokio::time::sleep_until(next.into()) => {}
                // The configuration is looked at now.
                _ = hangup.recv() => {}
            }
        }
    };
    systemd::ready();
    tokio::select! {
        () = watch => {}
        () = spot.run() => {}
        () = alive() => {}
    }
}

/// Says that this thread still gets round; every wait of it is bounded.
async fn alive() {
    let Some(interval) = systemd::watchdog() else { return std::future::pending().await };
    loop {
        systemd::alive();
        tokio::time::sleep(interval).await;
    }
}
