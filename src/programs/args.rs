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
    /// Where ParallelCluster's programs are told their configuration.
    pub(crate) config_file: Option<PathBuf>,
    /// Where Slurm's commands are on a ParallelCluster head node, if not in the usual place.
    pub(crate) slurm_bin_dir: Option<PathBuf>,
    pub(crate) ca_bundle: Option<PathBuf>,
    /// Of the user who runs the program; slurmctld gives none.
    pub(crate) home: Option<PathBuf>,
    /// The time zone that whoever called us wants, if any.
    pub(crate) tz: Option<String>,
}

impl Environment {
    pub(crate) fn read() -> Self {
        let path = |name: &str| {
            #[expect(clippy::disallowed_methods, reason = "this is the module that reads it")]
            let value: Option<OsString> = std::env::var_os(name);
            value.filter(|value| !value.is_empty()).map(PathBuf::from)
        };
        #[expect(clippy::disallowed_methods, reason = "this is the module that reads it")]
        let tz = std::env::var("TZ").ok();
        Self {
            slurm_conf: path("SLURM_CONF"),
            resume_file: path("SLURM_RESUME_FILE"),
            config: path("SLURM_EC2_CONFIG"),
            config_file: path("CONFIG_FILE"),
            slurm_bin_dir: path("SLURM_BINARIES_DIR"),
            ca_bundle: path("AWS_CA_BUNDLE"),
            home: path("HOME"),
            tz,
        }
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

    /// Configuration file [default: $SLURM_EC2_CONFIG, $CONFIG_FILE, /etc/slurm-ec2/slurm-ec2.toml, else ParallelCluster's]
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
