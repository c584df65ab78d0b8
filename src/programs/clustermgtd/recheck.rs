//! A second look just before anything is destroyed or launched, and before a node is resumed or drained, which would undo what a person has
//! said of it since: the nodes in question as Slurm shows them now, and their mapping entries. What is not as in the snapshot is left to
//! the next pass.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::perform::Scene;
use crate::error::chain;
use crate::model::node::SlurmNode;
use crate::plan::reconcile::{Action, Order, What};

/// What changed, with how.
#[derive(Debug, Default)]
pub(super) struct Changed {
    pub(super) nodes: BTreeMap<String, &'static str>,
    /// Instances without a node that are somebody's after all.
    pub(super) instances: BTreeMap<String, &'static str>,
}

/// Looks again at what those of `actions` concern that destroy or launch something, or tell Slurm of a node. An error means that nothing of
/// it may be done.
pub(super) async fn changed(scene: &Scene<'_>, actions: &[Action]) -> Result<Changed, String> {
    let nodes = concerned(actions);
    let alone: Vec<&str> = actions
        .iter()
        .filter_map(|action| match &action.what {
            What::Terminate { instance, node: None } => Some(instance.as_str()),
            _ => None,
        })
        .collect();
    if nodes.is_empty() && alone.is_empty() {
        return Ok(Changed::default());
    }
    let shown = look(scene, &nodes, !alone.is_empty()).await?;
    scene.shared.step();
    let mapping = scene.context.store.read().map_err(|error| chain(&error))?;
    let mut changed = Changed::default();
    let drained = only_drained(actions);
    for node in nodes {
        let then = scene.snapshot.nodes.get(node).map(|member| &member.slurm);
        let is_same = if drained.contains(node) { is_as_far_from_drained } else { is_as_it_was };
        if !is_same(then, shown.get(node)) {
            changed.nodes.insert(node.to_owned(), "its state in Slurm has changed");
        } else if mapping.nodes.get(node) != scene.snapshot.mapping.nodes.get(node) {
            changed.nodes.insert(node.to_owned(), "its mapping entry has changed");
        }
    }
    for id in alone {
        let address = scene.snapshot.instances.get(id).and_then(|instance| instance.private_ip.as_deref());
        if shown.values().any(|node| is_behind(id, address, node)) {
            changed.instances.insert(id.to_owned(), "Slurm says that it stands behind a node");
        }
    }
    Ok(changed)
}

/// The nodes of which Slurm is told something, that lose something, or get an instance that costs money.
fn concerned(actions: &[Action]) -> BTreeSet<&str> {
    let whats = actions.iter().map(|action| &action.what);
    let concerns = |what: &&What| what.is_destructive() || matches!(what, What::Node { .. } | What::Launch { .. });
    whats.filter(concerns).filter_map(What::node).collect()
}

/// Nodes that are drained and nothing else.
fn only_drained(actions: &[Action]) -> BTreeSet<&str> {
    let is_drain = |what: &What| matches!(what, What::Node { order: Order::Drain, .. });
    let (drained, others): (Vec<_>, Vec<_>) = actions.iter().map(|action| &action.what).partition(|what| is_drain(what));
    let others: BTreeSet<&str> = others.into_iter().filter_map(What::node).collect();
    drained.into_iter().filter_map(What::node).filter(|node| !others.contains(node)).collect()
}

async fn look(scene: &Scene<'_>, nodes: &BTreeSet<&str>, all: bool) -> Result<BTreeMap<String, SlurmNode>, String> {
    let until = scene.context.limits.end.min(Instant::now() + scene.context.settings.clustermgtd.show_timeout);
    let shown = if all {
        scene.context.slurm.show_all_nodes(until).await
    } else {
        let nodes: Vec<String> = nodes.iter().map(|node| (*node).to_owned()).collect();
        scene.context.slurm.show_nodes(&nodes, until).await
    };
    match shown {
        Ok(shown) => Ok(shown.into_iter().map(|node| (node.name.clone(), node)).collect()),
        Err(error) => Err(chain(&error)),
    }
}

/// State, Reason, address and instance are what the decision went by.
fn is_as_it_was(then: Option<&SlurmNode>, now: Option<&SlurmNode>) -> bool {
    match (then, now) {
        (Some(then), Some(now)) => then.state == now.state && is_the_same_one(then, now),
        (None, None) => true,
        _ => false,
    }
}

/// A drain waits for the end of what runs: that short jobs come and go must not put it off from pass to pass.
fn is_as_far_from_drained(then: Option<&SlurmNode>, now: Option<&SlurmNode>) -> bool {
    let said = |node: &SlurmNode| (node.state.has("DRAIN"), node.state.is_down(), node.state.is_powered_down());
    match (then, now) {
        (Some(then), Some(now)) => said(then) == said(now) && is_the_same_one(then, now),
        _ => false,
    }
}

fn is_the_same_one(then: &SlurmNode, now: &SlurmNode) -> bool {
    then.reason == now.reason && then.addr == now.addr && then.instance_id == now.instance_id
}

/// Does Slurm name the instance for a node that is not powered down?
fn is_behind(id: &str, address: Option<&str>, node: &SlurmNode) -> bool {
    !node.state.is_powered_down()
        && (node.instance_id.as_deref() == Some(id) || address.is_some_and(|address| address == node.addr))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::node::State;

    /// A node that nobody waits for any more gets no instance, and one that a person has drained since is not resumed.
    #[test]
    fn nodes_are_looked_at_again_before_they_are_launched_for_or_resumed() {
        let node = |node: &str, order| What::Node { node: node.to_owned(), order, reason: None };
        let whats = [
            What::Launch { node: "c5-1".to_owned() },
            node("c5-2", Order::Down),
            node("c5-3", Order::Resume),
            What::Console { node: "c5-4".to_owned(), instance: "i-4".to_owned() },
            What::Terminate { instance: "i-5".to_owned(), node: None },
        ];
        let actions = whats.map(|what| Action { what, why: String::new() });
        assert_eq!(concerned(&actions), BTreeSet::from(["c5-1", "c5-2", "c5-3"]));
    }

    #[test]
    fn what_a_person_says_of_a_node_meanwhile_counts() {
        let down = SlurmNode { reason: Some("Not responding".to_owned()), ..SlurmNode::named("c5-1", "DOWN+CLOUD") };
        assert!(is_as_it_was(Some(&down), Some(&down.clone())));
        let drained = SlurmNode { state: State::parse("DOWN+CLOUD+DRAIN"), ..down.clone() };
        let said = SlurmNode { reason: Some("bad disk, do not touch".to_owned()), ..down.clone() };
        let moved = SlurmNode { addr: "10.0.0.1".to_owned(), ..down.clone() };
        let other = SlurmNode { instance_id: Some("i-2".to_owned()), ..down.clone() };
        for now in [&drained, &said, &moved, &other] {
            assert!(!is_as_it_was(Some(&down), Some(now)), "{now:?}");
        }
        assert!(!is_as_it_was(Some(&down), None));
    }

    #[test]
    fn short_jobs_put_no_drain_off() {
        let node = |state: &str| SlurmNode::named("c5-1", state);
        let busy = node("MIXED+CLOUD");
        for now in ["IDLE+CLOUD", "ALLOCATED+CLOUD", "IDLE+CLOUD+COMPLETING"] {
            assert!(is_as_far_from_drained(Some(&busy), Some(&node(now))), "{now}");
            assert!(!is_as_it_was(Some(&busy), Some(&node(now))), "{now}");
        }
        for now in ["MIXED+CLOUD+DRAIN", "DOWN+CLOUD", "IDLE+CLOUD+POWERED_DOWN"] {
            assert!(!is_as_far_from_drained(Some(&busy), Some(&node(now))), "{now}");
        }
        let said = SlurmNode { reason: Some("mine".to_owned()), ..busy.clone() };
        assert!(!is_as_far_from_drained(Some(&busy), Some(&said)) && !is_as_far_from_drained(Some(&busy), None));

        let order = |node: &str, order| What::Node { node: node.to_owned(), order, reason: None };
        let whats = [order("c5-1", Order::Drain), order("c5-2", Order::Drain), order("c5-2", Order::Down)];
        let actions = whats.map(|what| Action { what, why: String::new() });
        assert_eq!(only_drained(&actions), BTreeSet::from(["c5-1"]));
    }
}
