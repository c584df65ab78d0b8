//! What the daemons' programs share: where the configuration is and how loud they are, a configuration that is refused, and the signals.

use std::path::PathBuf;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::args::Environment;
use super::exit::Exit;
use super::startup;
use crate::config::settings::Settings;
use crate::config::source::{self, Place};

/// Options of every program that takes no host list.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Options {
    /// Configuration file [default: $SLURM_EC2_CONFIG, $CONFIG_FILE, /etc/slurm-ec2/slurm-ec2.toml, else ParallelCluster's]
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,

    /// Log to stderr too; twice for debug
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(super) verbose: u8,
}

/// The configuration. One with mistakes is told, and the `Err` is what the program ends with.
pub(super) fn load(program: &'static str, place: &Place, env: &Environment) -> Result<Settings, Exit> {
    source::load(program, place).map_err(|error| {
        refuse(program, place, env, &error.to_string());
        Exit::Config
    })
}

/// Tells of a configuration that cannot be used: the caller, and the log as far as the files say where it is.
pub(super) fn refuse(program: &'static str, place: &Place, env: &Environment, error: &str) {
    startup::complain(program, error);
    crate::log::note(program, &source::as_far_as_it_goes(program, place).log, env.tz.as_deref(), error);
}

/// The signals that the daemons know. SIGUSR1, what logrotate sends to some, does nothing: the log notices a rotation by itself.
pub(super) struct Signals {
    pub(super) end: EndSignals,
    /// Read the configuration again.
    pub(super) hangup: Signal,
    _user: Signal,
}

pub(super) struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
}

/// What a signal asks for.
pub(super) enum Asked {
    /// With the signal's name.
    End(&'static str),
    Reload,
}

impl Signals {
    pub(super) fn listen() -> std::io::Result<Self> {
        let end = EndSignals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? };
        Ok(Self { end, hangup: signal(SignalKind::hangup())?, _user: signal(SignalKind::user_defined1())? })
    }

    pub(super) async fn next(&mut self) -> Asked {
        tokio::select! {
            biased;
            name = self.end.next() => Asked::End(name),
            _ = self.hangup.recv() => Asked::Reload,
        }
    }
}

impl EndSignals {
    /// The name of the one that came.
    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
