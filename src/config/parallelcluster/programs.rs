//! Which program goes by which of ParallelCluster's files: a name in, its role and the usual place of its file out (aws-facts B.2).

use std::path::{Path, PathBuf};

/// Where the package looks when nothing names another file.
pub(super) const RESUME_CONF: &str = "parallelcluster_slurm_resume.conf";
pub(super) const SUSPEND_CONF: &str = "parallelcluster_slurm_suspend.conf";
pub(super) const CLUSTERMGTD_CONF: &str = "parallelcluster_clustermgtd.conf";
pub(super) const FLEET_MANAGER_CONF: &str = "parallelcluster_slurm_fleet_status_manager.conf";
/// In the folder above the others.
pub(super) const STATUS_CONF: &str = "clusterstatusmgtd.conf";
/// On compute nodes, from the head node by NFS.
const COMPUTEMGTD_CONF: &str = "/opt/slurm/etc/pcluster/.slurm_plugin/parallelcluster_computemgtd.conf";

/// The sections, which are called as the programs are.
pub(super) const RESUME: &str = "slurm_resume";
pub(super) const SUSPEND: &str = "slurm_suspend";
pub(super) const CLUSTERMGTD: &str = "clustermgtd";
pub(super) const STATUS: &str = "clusterstatusmgtd";
pub(super) const FLEET_MANAGER: &str = "slurm_fleet_status_manager";
pub(crate) const COMPUTEMGTD: &str = "computemgtd";
/// Our own: what the package has no key for.
pub(super) const OURS: &str = "slurm_ec2";

/// What a program needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// What can be launched.
    Resume,
    /// The same, and what the daemons go by: `slurm-ec2` shows and does the work of each of them.
    Admin,
    /// Which instances are to go.
    Suspend,
    Clustermgtd,
    /// Starts and stops the fleet; the program's own section is called so.
    Fleet(&'static str),
    /// Lives on a compute node, where nothing but its own file is.
    Computemgtd,
}

impl Role {
    /// The package calls one program for suspend and resume-fail.
    pub(super) fn of(program: &str) -> Self {
        match program {
            "slurm-ec2" => Self::Admin,
            "slurm_suspend" | "slurm_resume_fail" => Self::Suspend,
            CLUSTERMGTD => Self::Clustermgtd,
            STATUS => Self::Fleet(STATUS),
            FLEET_MANAGER => Self::Fleet(FLEET_MANAGER),
            COMPUTEMGTD => Self::Computemgtd,
            _ => Self::Resume,
        }
    }

    /// Does it terminate instances and launch none? It must not be kept from that by a file of what could be launched.
    pub(super) fn ends_instances(self) -> bool {
        matches!(self, Self::Suspend | Self::Fleet(_))
    }

    /// Its own section.
    pub(super) fn section(self) -> &'static str {
        match self {
            Self::Resume | Self::Admin => RESUME,
            Self::Suspend => SUSPEND,
            Self::Clustermgtd => CLUSTERMGTD,
            Self::Fleet(section) => section,
            Self::Computemgtd => COMPUTEMGTD,
        }
    }

    /// The section with the cluster and its launches, and the file that has it where its own has not. A compute node has neither.
    pub(super) fn main(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Resume | Self::Admin | Self::Suspend => Some((RESUME, RESUME_CONF)),
            Self::Clustermgtd | Self::Fleet(_) => Some((CLUSTERMGTD, CLUSTERMGTD_CONF)),
            Self::Computemgtd => None,
        }
    }

    /// The name of its own file.
    pub(super) fn file_name(self) -> &'static str {
        match self {
            Self::Resume | Self::Admin => RESUME_CONF,
            Self::Suspend => SUSPEND_CONF,
            Self::Clustermgtd => CLUSTERMGTD_CONF,
            Self::Fleet(STATUS) => STATUS_CONF,
            Self::Fleet(_) => FLEET_MANAGER_CONF,
            Self::Computemgtd => "parallelcluster_computemgtd.conf",
        }
    }
}

/// Where a program's file is when nothing names another.
pub(crate) fn usual_file(program: &str, plugin_dir: &Path) -> PathBuf {
    match Role::of(program) {
        Role::Computemgtd => PathBuf::from(COMPUTEMGTD_CONF),
        role => in_usual_folder(role.file_name(), plugin_dir),
    }
}

/// The usual place of one of the head node's files.
pub(super) fn in_usual_folder(name: &str, plugin_dir: &Path) -> PathBuf {
    let folder = if name == STATUS_CONF { plugin_dir.parent().unwrap_or(plugin_dir) } else { plugin_dir };
    folder.join(name)
}
