//! slurm-ec2: the programs that Slurm's power saving calls, for Amazon EC2.
//!
//! Read `programs/resume.rs` first: it is the story; `plan/` decides, `ec2/`, `dynamodb/`, `route53/`, `slurm/` and
//! `store/` are the doors to the outside.

mod aws;
mod clock;
mod config;
mod dynamodb;
mod ec2;
mod error;
mod events;
mod imds;
mod log;
mod model;
mod plan;
mod programs;
mod route53;
mod settled;
mod slurm;
mod store;
mod zone;

pub use programs::{
    admin_main, clustermgtd_main, clusterstatusmgtd_main, computemgtd_main, fleet_status_manager_main, resume_fail_main,
    resume_main, suspend_main,
};
