//! The keys of `[clustermgtd]`, `[fleet]` and `[computemgtd]`, with their defaults. Those that ParallelCluster has too are the package's
//! (aws-facts B.5 to B.7).

use std::path::PathBuf;
use std::time::Duration;

use super::settings::{ClustermgtdSettings, ComputemgtdSettings, FleetSettings, FleetStore};
use crate::model::policy::Upkeep;

pub(super) fn clustermgtd() -> ClustermgtdSettings {
    ClustermgtdSettings {
        loop_time: Duration::from_secs(60),
        heartbeat: None,
        show_timeout: Duration::from_secs(60),
        partitions: Vec::new(),
        upkeep: Upkeep {
            disabled: false,
            terminate_drain_nodes: true,
            terminate_down_nodes: true,
            orphan_timeout: Duration::from_secs(300),
            missing_grace: Duration::from_secs(120),
            missing_max_count: 0,
            replacement_timeout: Duration::from_secs(1800),
            check_instances: true,
            check_events: true,
            check_timeout: Duration::from_secs(180),
            check_grace: Duration::from_secs(180),
            protected_count: Some(10),
            shortage_timeout: None,
            manage_blocks: true,
            consoles: true,
            consoles_most: Some(1),
            console_wait: Duration::from_secs(300),
        },
    }
}

pub(super) fn fleet() -> FleetSettings {
    FleetSettings { store: FleetStore::File, poll: Duration::from_secs(5), timeout: Duration::from_mins(10), status_file: None }
}

pub(super) fn computemgtd() -> ComputemgtdSettings {
    ComputemgtdSettings {
        loop_time: Duration::from_secs(60),
        heartbeat: None,
        heartbeat_timeout: Duration::from_secs(600),
        disabled: false,
        node_name_file: PathBuf::from("/etc/slurm-ec2/node-name"),
        shutdown: PathBuf::from("/sbin/shutdown"),
        metadata_endpoint: None,
        spot_poll: Duration::from_secs(5),
        spot_hook: None,
        drain_on_rebalance: false,
        node_name_timeout: Duration::from_mins(5),
        shared_mapping: None,
    }
}
