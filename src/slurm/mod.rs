//! The door to Slurm: its configuration file, `scontrol` text in and argument vectors out. No shell, absolute path, bounded time.

mod calls;
pub(crate) mod conf;
pub(crate) mod jobs;
pub(crate) mod partitions;
pub(crate) mod reservations;
pub(crate) mod scontrol;
pub(crate) mod show;
mod sudo;
pub(crate) mod update;
pub(crate) mod version;
