//! Command line and environment, as values.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;

/// What the programs take from their environment. slurmctld gives the first two only (slurm-facts A.1).
#[derive(Debug, Clone, Default)]
pub(crate) struct Environment {
    pub(crate) slurm_conf: Option<PathBuf>,
    pub(crate) resume_file: Option<PathBuf>,
    pub(crate) config: Option<PathBuf>,
}

impl Environment {
    pub(crate) fn read() -> Self {
        let path = |name: &str| {
            #[expect(clippy::disallowed_methods, reason = "this is the module that reads it")]
            let value: Option<OsString> = std::env::var_os(name);
            value.filter(|value| !value.is_empty()).map(PathBuf::from)
        };
        Self { slurm_conf: path("SLURM_CONF"), resume_file: path("SLURM_RESUME_FILE"), config: path("SLURM_EC2_CONFIG") }
    }
}

const AFTER: &str = "Exit status: 0 done; 1 done, but some nodes failed; 2 usage; 75 EC2 or slurmctld did not answer; \
78 configuration or state folder unusable.";

/// What the three programs of slurm.conf share.
#[derive(Debug, Clone, Parser)]
pub(crate) struct Common {
    /// Nodes, as Slurm writes them: c5-[1-10,12],gpu-1
    #[arg(value_name = "HOSTLIST", required = true)]
    pub(crate) hostlist: Vec<String>,

    /// Configuration file [default: $SLURM_EC2_CONFIG, else /etc/slurm-ec2/slurm-ec2.toml]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Print what would be done and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Log to stderr too; twice for debug
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// Launch EC2 instances for Slurm nodes (ResumeProgram)
#[derive(Debug, Parser)]
#[command(name = "slurm_resume", version, after_help = AFTER)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Terminate the EC2 instances behind Slurm nodes (SuspendProgram)
#[derive(Debug, Parser)]
#[command(name = "slurm_suspend", version, after_help = AFTER)]
pub(crate) struct SuspendArgs {
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Clean up after nodes that did not register before ResumeTimeout (ResumeFailProgram)
#[derive(Debug, Parser)]
#[command(name = "slurm_resume_fail", version, after_help = AFTER)]
pub(crate) struct ResumeFailArgs {
    #[command(flatten)]
    pub(crate) common: Common,
}
