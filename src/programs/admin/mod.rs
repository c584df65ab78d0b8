//! `slurm-ec2`: one place for an admin to look and to debug.

mod check;
mod daemons;
mod fleet;
mod fleet_report;
mod import;
mod machine;
mod node_name;
mod reconcile;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use super::args::Environment;
use super::exit::Exit;
use super::{preview, resume, startup};
use crate::config::settings::Settings;
use crate::config::source;
use crate::model::hostlist;

const PROGRAM: &str = "slurm-ec2";

/// Look after slurm-ec2: host lists, plans, configuration
#[derive(Debug, Parser)]
#[command(
    name = "slurm-ec2",
    version,
    after_help = "Exit status: 0 fine; 2 usage or malformed host list; 75 no answer or no name in time; 78 configuration unusable."
)]
struct Args {
    #[command(subcommand)]
    command: Command,

    /// Configuration file [default: $SLURM_EC2_CONFIG, $CONFIG_FILE, /etc/slurm-ec2/slurm-ec2.toml, else ParallelCluster's]
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the names behind host lists, one a line
    Expand {
        #[arg(value_name = "HOSTLIST", required = true)]
        hostlist: Vec<String>,
        /// Most names in all
        #[arg(long, value_name = "N", default_value_t = hostlist::DEFAULT_LIMIT)]
        limit: usize,
    },
    /// Print one host list for the given names or host lists
    Compress {
        #[arg(value_name = "HOSTLIST", required = true)]
        hostlist: Vec<String>,
        /// Sort the names first
        #[arg(long)]
        sorted: bool,
    },
    /// Print what slurm_resume would do for these nodes; asks neither EC2 nor Slurm
    Plan {
        #[arg(value_name = "HOSTLIST", required = true)]
        hostlist: Vec<String>,
    },
    /// Print what clustermgtd would do now, and why
    Reconcile {
        /// Do nothing; needed, since doing it is clustermgtd's
        #[arg(long)]
        dry_run: bool,
    },
    /// Start or stop the compute fleet, or print what it is doing
    Fleet(fleet::FleetArgs),
    /// Report all mistakes of the configuration, and what slurm.conf lacks for it
    Check,
    /// Print which node this instance is, for starting slurmd on it
    NodeName(node_name::NodeName),
    /// Print a configuration that means the same as another system's files
    Import {
        #[command(subcommand)]
        from: import::From,
    },
}

/// The program.
pub fn main() -> ExitCode {
    startup::unblock_signals();
    let env = Environment::read();
    match startup::parse_args::<Args>() {
        Ok(args) => run(args, &env).into(),
        Err(exit) => exit.into(),
    }
}

fn run(args: Args, env: &Environment) -> Exit {
    match args.command {
        Command::Expand { hostlist, limit } => with_names(&hostlist, limit, |names| names.join("\n")),
        Command::Compress { hostlist, sorted } => with_names(&hostlist, hostlist::DEFAULT_LIMIT, |names| {
            if sorted { hostlist::compress_sorted(names) } else { hostlist::compress(names) }
        }),
        Command::Plan { hostlist } => match load(args.config.as_deref(), env) {
            Ok(settings) => match expand(&hostlist, settings.hostlist_limit) {
                Ok(names) => preview::show(resume::PROGRAM, &settings, &names),
                Err(exit) => exit,
            },
            Err(exit) => exit,
        },
        Command::Fleet(fleet) => match load(args.config.as_deref(), env) {
            Ok(settings) => fleet::fleet(&settings, &fleet, env),
            Err(exit) => exit,
        },
        Command::Check => match load(args.config.as_deref(), env) {
            Ok(settings) => check::check(&settings, env),
            Err(exit) => exit,
        },
        Command::Reconcile { dry_run } => reconcile::reconcile(dry_run, args.config.as_deref(), env),
        Command::NodeName(args_of) => node_name::node_name(&args_of, args.config.as_deref(), env),
        Command::Import { from } => import::import(&from, env),
    }
}

fn load(given: Option<&std::path::Path>, env: &Environment) -> Result<Settings, Exit> {
    source::load(PROGRAM, &startup::config_place(PROGRAM, given, env)).map_err(|error| {
        startup::complain(PROGRAM, &error.to_string());
        Exit::Config
    })
}

fn expand(lists: &[String], limit: usize) -> Result<Vec<String>, Exit> {
    let text = lists.join(",");
    match hostlist::expand(&text, limit) {
        Ok(expansion) => {
            if !expansion.duplicates.is_empty() {
                let twice = hostlist::compress_sorted(&expansion.duplicates);
                startup::complain(PROGRAM, &format!("named more than once, counted once: {twice}"));
            }
            Ok(expansion.names)
        }
        Err(error) => {
            startup::complain(PROGRAM, &format!("host list {}: {error}", startup::shorten(&text)));
            Err(Exit::Usage)
        }
    }
}

fn with_names(lists: &[String], limit: usize, text: impl Fn(&[String]) -> String) -> Exit {
    match expand(lists, limit) {
        Ok(names) => {
            if !names.is_empty() {
                startup::say(&text(&names));
            }
            Exit::Done
        }
        Err(exit) => exit,
    }
}
