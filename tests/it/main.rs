//! The one integration binary (the EC2 crate links slowly): the real programs against the fault-injecting EC2 endpoint and a
//! recording scontrol. The end-to-end tests on a real Slurm are in testkit/lab.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stderr, reason = "tests")]

mod admin;
mod batches;
mod called;
mod clustermgtd;
mod compute_node;
mod computemgtd;
mod crash;
mod docs;
mod dynamodb_store;
mod fallback;
mod fleet;
mod fleet_status;
mod hardened;
mod import;
mod jobs;
mod jobs_meanwhile;
mod launch;
mod moto;
mod node_name;
mod parallelcluster_page;
mod pcluster;
mod pcluster_config;
mod person;
mod publishing;
mod recorded;
mod recoverers;
mod resume;
mod site;
mod spot;
mod static_binaries;
mod surroundings;
mod suspend;
mod units;
