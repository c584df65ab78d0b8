//! The decisions: plain functions of values. No I/O, no clock, no environment, nothing whose order depends on a hash map.
//! Imports `model` alone.
//!
//! Properties, checked by the property tests of the modules:
//! P1 each requested node ends once, backed or failed with a code · P2 each launched instance ends once, assigned or released ·
//! P3 an all-or-nothing batch is never half assigned · P4 asking again after success yields nothing to launch ·
//! P5 stop after any action and run again: nothing lost, nothing doubled · P6 same input, same output, same order.

pub(crate) mod assign;
pub(crate) mod claim;
pub(crate) mod fleet_status;
pub(crate) mod launch;
pub(crate) mod reasons;
pub(crate) mod reconcile;
pub(crate) mod recover;
pub(crate) mod requeue;
pub(crate) mod scaling;
pub(crate) mod watchdog;

#[cfg(test)]
pub(crate) mod test_support {
    //! Values for the tests of the decisions.

    use std::collections::BTreeMap;
    use std::time::Duration;

    use crate::model::failure::BackoffTimes;
    use crate::model::instance::{Instance, InstanceState};
    use crate::model::mapping::{NodeEntry, NodeState};
    use crate::model::policy::{LaunchPolicy, OnExisting, Strategy};
    use crate::model::recipe::{Api, Capacity, Group, GroupNodes, LaunchTemplate, Recipe};
    use crate::model::time::Timestamp;

    pub(crate) fn names(prefix: &str, count: usize) -> Vec<String> {
        (1..=count).map(|n| format!("{prefix}{n}")).collect()
    }

    pub(crate) fn group(name: &str, batch_size: usize) -> Group {
        Group {
            name: name.to_owned(),
            nodes: GroupNodes::List(format!("{name}-[1-1000]")),
            recipe: Recipe {
                api: Api::RunInstances,
                launch_template: LaunchTemplate { name: Some("t".into()), id: None, version: "$Default".into() },
                instance_types: Vec::new(),
                subnets: Vec::new(),
                capacity: Capacity::OnDemand,
                allocation_strategy: None,
                max_price: None,
                tags: BTreeMap::new(),
                tag_instances_only: false,
                overrides: serde_json::Map::new(),
            },
            fallbacks: Vec::new(),
            capacity_reservation: None,
            launch: LaunchPolicy {
                strategy: Strategy::BestEffort,
                batch_size,
                on_existing: OnExisting::Replace,
                node_tags: false,
                backoff: BackoffTimes {
                    capacity: Duration::from_mins(10),
                    quota: Duration::from_mins(5),
                    configuration: Duration::from_mins(30),
                },
            },
        }
    }

    pub(crate) fn instance(id: &str) -> Instance {
        Instance {
            id: id.to_owned(),
            state: InstanceState::Running,
            private_ip: Some("10.0.0.1".to_owned()),
            hostname: Some("ip-10-0-0-1".to_owned()),
            instance_type: None,
            zone: None,
            subnet: None,
            launch_time: None,
            tags: BTreeMap::new(),
        }
    }

    /// A running entry whose launch was sent at `launched` (Unix seconds).
    pub(crate) fn running(id: &str, launched: u64) -> NodeEntry {
        NodeEntry {
            state: NodeState::Running,
            group: "c5".into(),
            launch: "abc".into(),
            requested: Timestamp::from_secs(launched),
            since: Timestamp::from_secs(launched),
            launched: Some(Timestamp::from_secs(launched)),
            instance_id: Some(id.to_owned()),
            private_ip: Some("10.0.0.1".to_owned()),
            hostname: None,
            instance_type: None,
            zone: None,
            unpublished: false,
        }
    }
}
