//! Nodes in, batches out: per group, in order, each with its request.

use std::collections::BTreeMap;

use crate::model::instance::tag;
use crate::model::recipe::{Capacity, Group, LaunchTemplate};
use crate::model::round::LaunchRequest;

/// One launch call and the nodes it is for. As many nodes as `request.count`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Batch {
    pub(crate) nodes: Vec<String>,
    pub(crate) request: LaunchRequest,
}

/// What all batches of one run share.
#[derive(Debug, Clone)]
pub(crate) struct LaunchContext<'a> {
    pub(crate) cluster: &'a str,
    pub(crate) state_id: &'a str,
    pub(crate) launch: &'a str,
    /// The launch template's resolved version by group name; a group that is not named keeps its own.
    pub(crate) versions: &'a BTreeMap<String, String>,
}

/// Cuts `nodes` (all of one group, in order) into batches of at most `batch_size`; `first` is the index of the first batch in
/// the launch record, from which the client tokens are made.
pub(crate) fn batches(group: &Group, nodes: &[String], context: &LaunchContext<'_>, first: usize) -> Vec<Batch> {
    nodes
        .chunks(group.launch.batch_size.max(1))
        .enumerate()
        .map(|(index, nodes)| batch(group, nodes.to_vec(), context, first + index, 0))
        .collect()
}

/// One batch. `attempt` counts deliberately new attempts: each has a token of its own.
pub(crate) fn batch(group: &Group, nodes: Vec<String>, context: &LaunchContext<'_>, index: usize, attempt: u32) -> Batch {
    let mut recipe = group.recipe.clone();
    if let Some(version) = context.versions.get(&group.name) {
        recipe.launch_template = LaunchTemplate { version: version.clone(), ..recipe.launch_template };
    }
    let mut tags = vec![
        (tag::CLUSTER.to_owned(), context.cluster.to_owned()),
        (tag::STATE.to_owned(), context.state_id.to_owned()),
        (tag::LAUNCH.to_owned(), context.launch.to_owned()),
        (tag::GROUP.to_owned(), group.name.clone()),
        (tag::BATCH.to_owned(), index.to_string()),
    ];
    if group.launch.node_tags
        && let [node] = nodes.as_slice()
    {
        tags.push((tag::NODE.to_owned(), node.clone()));
    }
    tags.extend(recipe.tags.iter().map(|(key, value)| (key.clone(), value.clone())));
    let request = LaunchRequest {
        group: group.name.clone(),
        recipe,
        strategy: group.launch.strategy,
        count: u32::try_from(nodes.len()).unwrap_or(u32::MAX),
        client_token: token(context.launch, index, attempt),
        tags,
    };
    Batch { nodes, request }
}

/// `<launch>-<batch>-<attempt>`: unique for ever because the launch id is (aws-facts A.1: a token must not outlive its launch).
fn token(launch: &str, index: usize, attempt: u32) -> String {
    format!("{launch}-{index}-{attempt}")
}

/// What a batch asks for, in one phrase for logs and reasons.
pub(crate) fn describe(request: &LaunchRequest) -> String {
    let recipe = &request.recipe;
    let mut text = format!("template {} version {}", recipe.launch_template.label(), recipe.launch_template.version);
    if !recipe.instance_types.is_empty() {
        text.push_str(&format!(", type {}", recipe.instance_types.join("/")));
    }
    if !recipe.subnets.is_empty() {
        text.push_str(&format!(", subnet {}", recipe.subnets.join("/")));
    }
    match recipe.capacity {
        Capacity::OnDemand | Capacity::Template => {}
        Capacity::Spot => text.push_str(", spot"),
        Capacity::CapacityBlock => text.push_str(", capacity block"),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::test_support::{group, names};

    #[test]
    fn r04_a_thousand_nodes_are_two_calls() {
        let group = group("c5", 500);
        let versions = BTreeMap::from([("c5".to_owned(), "7".to_owned())]);
        let context = LaunchContext { cluster: "hpc", state_id: "s", launch: "abc", versions: &versions };
        let nodes = names("c5-", 1000);
        let batches = batches(&group, &nodes, &context, 3);
        assert_eq!(batches.len(), 2);
        assert_eq!(batches.iter().flat_map(|b| b.nodes.clone()).collect::<Vec<_>>(), nodes);
        assert_eq!(batches[0].request.client_token, "abc-3-0");
        assert_eq!(batches[1].request.client_token, "abc-4-0");
        assert!(batches.iter().all(|b| b.request.count == 500 && b.request.recipe.launch_template.version == "7"));
    }

    #[test]
    fn r34_requests_carry_our_tags_and_the_configs() {
        let mut group = group("c5", 2);
        group.launch.node_tags = true;
        group.recipe.tags.insert("project".into(), "blue".into());
        let versions = BTreeMap::new();
        let context = LaunchContext { cluster: "hpc", state_id: "s1", launch: "abc", versions: &versions };
        let batches = batches(&group, &names("c5-", 3), &context, 0);
        let tags = |i: usize| batches[i].request.tags.iter().cloned().collect::<BTreeMap<_, _>>();
        for (key, value) in
            [(tag::CLUSTER, "hpc"), (tag::STATE, "s1"), (tag::LAUNCH, "abc"), (tag::GROUP, "c5"), ("project", "blue")]
        {
            assert_eq!(tags(0).get(key).map(String::as_str), Some(value));
        }
        assert_eq!(tags(0).get(tag::NODE), None, "a call for two nodes cannot carry a name");
        assert_eq!(tags(1).get(tag::NODE).map(String::as_str), Some("c5-3"));
    }
}
