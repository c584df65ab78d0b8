//! Nodes in, batches out: per group, in order, each with its request.

use std::collections::BTreeMap;

use crate::model::instance::tag;
use crate::model::policy::Strategy;
use crate::model::recipe::{Capacity, Group, LaunchTemplate, Recipe};
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
    /// What a launch template's `$Latest` or `$Default` stands for in this run; one that is not named keeps its own.
    pub(crate) versions: &'a BTreeMap<LaunchTemplate, String>,
}

/// What a batch asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) group: &'a Group,
    /// The group's recipe, or one of its fallbacks.
    pub(crate) recipe: &'a Recipe,
    pub(crate) strategy: Strategy,
    /// A batch of one node may carry its name as a tag: its instance is meant for no other node.
    pub(crate) names_node: bool,
}

/// One batch; `index` is its number in the launch record, from which the client token is made.
pub(crate) fn batch(ask: Ask<'_>, nodes: Vec<String>, context: &LaunchContext<'_>, index: usize) -> Batch {
    let Ask { group, recipe, strategy, names_node } = ask;
    let mut recipe = recipe.clone();
    if let Some(version) = context.versions.get(&recipe.launch_template) {
        recipe.launch_template = LaunchTemplate { version: version.clone(), ..recipe.launch_template };
    }
    let mut tags = vec![
        (tag::CLUSTER.to_owned(), context.cluster.to_owned()),
        (tag::STATE.to_owned(), context.state_id.to_owned()),
        (tag::LAUNCH.to_owned(), context.launch.to_owned()),
        (tag::GROUP.to_owned(), group.name.clone()),
        (tag::BATCH.to_owned(), index.to_string()),
    ];
    if names_node
        && group.launch.node_tags
        && let [node] = nodes.as_slice()
    {
        tags.push((tag::NODE.to_owned(), node.clone()));
    }
    tags.extend(recipe.tags.iter().map(|(key, value)| (key.clone(), value.clone())));
    let request = LaunchRequest {
        group: group.name.clone(),
        recipe,
        strategy,
        count: u32::try_from(nodes.len()).unwrap_or(u32::MAX),
        client_token: token(context.launch, index),
        tags,
    };
    Batch { nodes, request }
}

/// `<launch>-<batch>`: unique for ever because the launch id is (aws-facts A.1: a token must not outlive its launch).
pub(crate) fn token(launch: &str, index: usize) -> String {
    format!("{launch}-{index}")
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
    if !recipe.overrides.is_empty() {
        text.push_str(&format!(", overrides {}", recipe.overrides.keys().cloned().collect::<Vec<_>>().join("/")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::test_support::{group, names};

    fn ask(group: &Group) -> Ask<'_> {
        Ask { group, recipe: &group.recipe, strategy: Strategy::BestEffort, names_node: true }
    }

    #[test]
    fn a_batch_has_its_own_token_and_the_resolved_version() {
        let group = group("c5", 500);
        let versions = BTreeMap::from([(group.recipe.launch_template.clone(), "7".to_owned())]);
        let context = LaunchContext { cluster: "hpc", state_id: "s", launch: "abc", versions: &versions };
        let batch = batch(ask(&group), names("c5-", 500), &context, 3);
        assert_eq!(batch.request.client_token, "abc-3");
        assert_eq!((batch.request.count, batch.request.recipe.launch_template.version.as_str()), (500, "7"));
    }

    #[test]
    fn overrides_are_named() {
        let mut group = group("c5", 2);
        for name in ["SubnetId", "KeyName"] {
            group.recipe.overrides.insert(name.into(), "x".into());
        }
        let versions = BTreeMap::new();
        let context = LaunchContext { cluster: "hpc", state_id: "s", launch: "abc", versions: &versions };
        let text = describe(&batch(ask(&group), names("c5-", 2), &context, 0).request);
        assert!(text.ends_with(", overrides KeyName/SubnetId"), "{text}");
    }

    #[test]
    fn r34_requests_carry_our_tags_and_the_configs() {
        let mut group = group("c5", 2);
        group.launch.node_tags = true;
        group.recipe.tags.insert("project".into(), "blue".into());
        let versions = BTreeMap::new();
        let context = LaunchContext { cluster: "hpc", state_id: "s1", launch: "abc", versions: &versions };
        let batches =
            [batch(ask(&group), names("c5-", 2), &context, 0), batch(ask(&group), vec!["c5-3".to_owned()], &context, 1)];
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
