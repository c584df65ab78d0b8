//! What the decision promises (B89), whatever the world it finds (`world.rs`): any states of nodes, any instances behind them or behind
//! none, any events, programs that do not run, a daemon killed between any two actions.
//!
//! P1 it reaches "nothing to do", with every node as it should be · P2 it never ends a healthy node that runs a job, and never takes an
//! instance from a healthy node · P3 a healthy world yields no action · P4 an instance that backs no node is gone in the end · P5 the pass
//! that rebuilt the mapping terminates nothing · P6 same input, same output.

mod chance;
mod events;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::{ProptestConfig, proptest};

use super::world::{Cluster, Machine, Node};
use super::{Decision, Order, What, reconcile};
use crate::model::cluster::PartitionState;
use crate::model::fleet::FleetStatus;
use crate::plan::reasons::is_a_persons;
use chance::{build, case, well};
use events::happen;

/// Passes after which nothing may be left to do, and those after them that show it: longer than every timeout of the rules together.
const SETTLED: usize = 60;
const QUIET: usize = 30;
/// Launches that a node may need to get there: one came too late for a ResumeTimeout, the next is there.
const LAUNCHES: i32 = 2;

/// The node is up, its slurmd answers from an instance that is really there, and mapping and Slurm agree on it. Where a check of the
/// instance fails it may be drained, no more.
fn is_healthy(cluster: &Cluster, node: &Node) -> bool {
    let unwell = ["FAIL", "INVALID_REG", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_UP"];
    let mapped = |id: &str| {
        let entry = cluster.mapping.nodes.get(&node.name);
        entry.is_none_or(|entry| entry.instance_id.as_deref() == Some(id))
            && node.instance_id.as_deref().is_none_or(|named| named == id)
    };
    let is_well = |machine: &Machine| {
        let id = machine.instance.id.as_str();
        mapped(id) && !cluster.mapping.condemned.contains_key(id)
    };
    !node.is_odd()
        && !node.is_down()
        && !unwell.iter().any(|flag| node.has(flag))
        && cluster.answering(&node.name).is_some_and(is_well)
}

/// P2, P4's second half and P5: what this decision must not do.
fn judge(cluster: &Cluster, decision: &Decision) {
    let is_stopped = cluster.fleet == FleetStatus::Stopped;
    let mut seen = BTreeSet::new();
    for action in &decision.actions {
        assert!(seen.insert(action.what.to_string()), "twice: {}", action.what);
        assert!(!action.why.is_empty());
        if let What::Terminate { instance, .. } = &action.what {
            assert!(!cluster.rebuilt, "P5: {} after the mapping was rebuilt", action.what);
            let behind = cluster
                .nodes
                .values()
                .find(|node| cluster.answering(&node.name).is_some_and(|machine| machine.instance.id == *instance));
            let spared = behind.filter(|node| is_healthy(cluster, node) && !node.has("DRAIN") && !is_inactive(cluster, node));
            assert!(is_stopped || spared.is_none(), "P4: {} stands behind {:?} ({})", action.what, spared, action.why);
        }
        let Some(node) = action.what.node().and_then(|name| cluster.nodes.get(name)) else { continue };
        let is_update = matches!(action.what, What::Node { .. });
        assert!(!node.is_odd() || (is_stopped && !is_update), "{} is not for {}", action.what, node.state());
        let is_order = |orders: &[Order]| matches!(&action.what, What::Node { order, .. } if orders.contains(order));
        let is_harmless = matches!(action.what, What::Console { .. }) || is_order(&[Order::Resume, Order::Drain]);
        if is_stopped || is_harmless || !is_healthy(cluster, node) {
            continue;
        }
        let is_busy = node.has_job() || node.has("COMPLETING");
        assert!(!is_busy, "P2: {} ({}) on {}", action.what, action.why, node.state());
        let is_idle_for_long = !node.is_static && cluster.now.since(node.busy) > Duration::from_secs(600);
        let may_go = node.has("DRAIN") || is_inactive(cluster, node) || (is_order(&[Order::PowerDown]) && is_idle_for_long);
        assert!(may_go, "P2: {} ({}) on {}", action.what, action.why, node.state());
    }
}

fn is_inactive(cluster: &Cluster, node: &Node) -> bool {
    cluster.partitions[&node.queue] == PartitionState::Inactive
}

/// One pass, judged; `crash` = carried out so far only, and whether the new memory was written.
fn pass(cluster: &mut Cluster, crash: Option<(usize, bool)>) -> Decision {
    let snapshot = cluster.snapshot();
    let decision = reconcile(&snapshot, &cluster.memory, &cluster.policy);
    // Read back as after a restart.
    let text = serde_json::to_string(&cluster.memory).expect("JSON");
    let again = reconcile(&snapshot, &serde_json::from_str(&text).expect("JSON"), &cluster.policy);
    assert!(decision.actions == again.actions && decision.memory == again.memory, "P6");
    assert!(decision.notes == again.notes && decision.report == again.report, "P6");
    judge(cluster, &decision);
    let (most, remembers) = crash.unwrap_or((usize::MAX, true));
    cluster.carry_out(&decision, most, remembers);
    decision
}

/// Everything as it should be: P1's end and P4's first half.
fn check_end(cluster: &Cluster) {
    let is_stopped = cluster.fleet == FleetStatus::Stopped;
    for node in cluster.nodes.values().filter(|node| !node.is_odd()) {
        let (state, name) = (node.state().to_string(), &node.name);
        let is_up = is_healthy(cluster, node);
        let is_off = node.base == "IDLE"
            && node.has("POWERED_DOWN")
            && !["POWERING_UP", "POWERING_DOWN", "POWER_UP", "POWER_DOWN"].iter().any(|flag| node.has(flag))
            // Repaired when the node is used again.
            && (!node.has("NOT_RESPONDING") || node.has("DRAIN") || is_inactive(cluster, node))
            && node.addr == *name
            && !cluster.mapping.nodes.contains_key(name);
        let is_kept = node.is_static && !is_inactive(cluster, node) && !is_stopped;
        let is_down_and_off =
            node.is_down() && node.has("POWERED_DOWN") && node.addr == *name && !cluster.mapping.nodes.contains_key(name);
        // A person has set it so.
        let may_be_kept_out = node.has("FAIL")
            || ((is_off || is_down_and_off) && node.has("DRAIN") && is_a_persons(node.reason.as_deref()))
            || (node.is_down() && !cluster.policy.upkeep.terminate_down_nodes)
            || (node.has("DRAIN") && !cluster.policy.upkeep.terminate_drain_nodes);
        let is_well = if node.has_job() && !is_stopped {
            is_up
        } else if is_kept {
            is_up && !node.has("DRAIN")
        } else {
            is_off || (is_up && ["RESERVED", "MAINTENANCE"].iter().any(|flag| node.has(flag)))
        };
        assert!(
            is_well || may_be_kept_out,
            "P1: {name} ends as {state} at {} ({:?}), {:?}",
            node.addr,
            node.reason,
            cluster.mapping.nodes.get(name)
        );
    }
    for (id, machine) in cluster.machines.iter().filter(|(_, machine)| machine.instance.state.is_live()) {
        let named = |node: &&Node| {
            let entry = cluster.mapping.nodes.get(&node.name).and_then(|entry| entry.instance_id.as_ref());
            entry == Some(id) || node.instance_id.as_ref() == Some(id) || Some(&node.addr) == machine.instance.private_ip.as_ref()
        };
        // Left to a person: found loose when the mapping was rebuilt.
        let is_unbound = cluster.memory.unbound.contains_key(id);
        let is_named = !is_stopped && cluster.nodes.values().any(|node| named(&node));
        assert!(is_named || is_unbound, "P4: {id} stands behind no node");
    }
    let claimed =
        cluster.mapping.nodes.iter().filter(|(name, entry)| entry.instance_id.is_none() && !cluster.nodes[*name].is_odd());
    assert_eq!(claimed.count(), 0, "claims of nobody");
    assert!(cluster.mapping.condemned.is_empty());
    let memory = &cluster.memory;
    // Left to a person, to the partition's return, or to the end of a job.
    let is_left = |node: &Node| node.has("FAIL") || is_inactive(cluster, node) || (node.has_job() && node.has("POWER_DOWN"));
    let is_over = memory.replacing.keys().all(|node| is_left(&cluster.nodes[node]));
    assert!(is_over && memory.orphans.is_empty() && memory.shortages.is_empty(), "{memory:?}");
}

/// Left to itself: room and boots for everybody, and nobody interferes.
fn settle(cluster: &mut Cluster) {
    (cluster.has_capacity, cluster.boots) = (true, true);
    let mut launches = BTreeMap::new();
    for _ in 0..SETTLED {
        for action in pass(cluster, None).actions {
            if let What::Launch { node } = action.what {
                *launches.entry(node).or_insert(0) += 1;
            }
        }
    }
    assert!(launches.values().all(|count| *count <= LAUNCHES), "P1: {launches:?}");
    for _ in 0..QUIET {
        let decision = pass(cluster, None);
        assert!(decision.actions.is_empty(), "P1: still {:#?}", decision.actions);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]

    #[test]
    fn p1_p2_p4_p5_p6(case in case()) {
        let mut cluster = build(&case);
        for events in &case.events {
            let crashes: Vec<_> = events.iter().filter_map(|event| happen(&mut cluster, *event)).collect();
            pass(&mut cluster, crashes.first().copied());
        }
        settle(&mut cluster);
        check_end(&cluster);
    }

    #[test]
    fn p3_a_healthy_world_yields_no_action((case, events) in well()) {
        let mut cluster = build(&case);
        for event in events {
            event.map(|event| happen(&mut cluster, event));
            let mut decision = pass(&mut cluster, None);
            // Slurm 22.05 leaves the address of a node that it has powered down.
            let is_address = |what: &What| matches!(what, What::Node { order: Order::ResetAddress, .. });
            decision.actions.retain(|action| case.ways.new_slurm || !is_address(&action.what));
            assert!(decision.actions.is_empty() && decision.notes.is_empty(), "P3: {:#?}", (decision.actions, decision.notes));
        }
    }
}
