//! An answer of EC2's that cannot be about this cluster, before a pass goes by it: mapping, nodes and instances in, a sentence out.

use std::collections::BTreeMap;

use super::snapshot::Incomplete;
use crate::model::instance::Instance;
use crate::model::mapping::{Mapping, NodeState};
use crate::plan::reconcile::Member;
use crate::plan::reconcile::state::is_heard;

/// Of so many mapped instances EC2 shows at least one, or it was asked for the wrong ones.
const ENOUGH: usize = 3;

/// EC2 knows none of the mapped instances, not even ended ones, while slurmctld hears from their nodes: that is an answer about another
/// account, region or endpoint. Taken for the truth it would end the whole cluster.
pub(super) fn none_is_shown(
    mapping: &Mapping,
    nodes: &BTreeMap<String, Member>,
    shown: &BTreeMap<String, Instance>,
) -> Result<(), Incomplete> {
    let running = mapping.nodes.iter().filter(|(_, entry)| entry.state == NodeState::Running);
    let mapped: Vec<(&String, &String)> = running.filter_map(|(node, entry)| Some((node, entry.instance_id.as_ref()?))).collect();
    if mapped.len() < ENOUGH || mapped.iter().any(|(_, id)| shown.contains_key(*id)) {
        return Ok(());
    }
    let heard = mapped.iter().filter(|(node, _)| nodes.get(*node).is_some_and(|member| is_heard(&member.slurm.state))).count();
    if heard == 0 {
        return Ok(());
    }
    let all = mapped.len();
    Err(Incomplete(format!(
        "EC2 shows none of the {all} instances of the mapping, and yet slurmctld hears from {heard} of their nodes: are region, account \
         and endpoint the right ones?"
    )))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::model::instance::InstanceState;
    use crate::model::node::SlurmNode;

    /// So many mapped nodes in this state.
    fn world(count: usize, state: &str) -> (Mapping, BTreeMap<String, Member>) {
        let (mut mapping, mut nodes) = (Mapping::new("hpc"), BTreeMap::new());
        for number in 1..=count {
            let name = format!("c5-{number}");
            let entry = format!(
                r#"{{"state": "running", "group": "c5", "launch": "l", "requested": "{0}", "since": "{0}", "instance_id": "i-{number}"}}"#,
                "2027-01-15T08:00:00Z"
            );
            mapping.nodes.insert(name.clone(), serde_json::from_str(&entry).unwrap());
            let slurm = SlurmNode::named(&name, state);
            nodes.insert(name, Member { slurm, group: Some(0), is_static: false });
        }
        (mapping, nodes)
    }

    fn instance(id: &str) -> BTreeMap<String, Instance> {
        let instance = Instance {
            id: id.to_owned(),
            state: InstanceState::Terminated,
            private_ip: None,
            hostname: None,
            instance_type: None,
            zone: None,
            subnet: None,
            launch_time: None,
            tags: BTreeMap::new(),
        };
        BTreeMap::from([(id.to_owned(), instance)])
    }

    #[test]
    fn an_ec2_that_knows_nothing_of_nodes_that_are_heard_is_not_believed() {
        for state in ["ALLOCATED+CLOUD", "IDLE+CLOUD", "MIXED+CLOUD+DRAIN"] {
            let (mapping, nodes) = world(3, state);
            let text = none_is_shown(&mapping, &nodes, &BTreeMap::new()).unwrap_err().to_string();
            assert!(text.contains("none of the 3 instances") && text.contains("from 3 of their nodes"), "{text}");
            // One that has ended is an answer about the right ones.
            assert!(none_is_shown(&mapping, &nodes, &instance("i-2")).is_ok(), "{state}");
            let (mapping, nodes) = world(2, state);
            assert!(none_is_shown(&mapping, &nodes, &BTreeMap::new()).is_ok(), "two may be gone");
        }
        for state in [
            "DOWN+CLOUD",
            "IDLE+CLOUD+NOT_RESPONDING",
            "IDLE+CLOUD+POWERED_DOWN",
            "ALLOCATED+CLOUD+POWERING_UP",
            "IDLE+POWERING_DOWN",
        ] {
            let (mapping, nodes) = world(5, state);
            assert!(none_is_shown(&mapping, &nodes, &BTreeMap::new()).is_ok(), "{state}");
        }
    }
}
