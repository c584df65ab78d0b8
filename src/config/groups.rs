//! The `[[group]]` tables: the array in, groups and their nodes out, every mistake noted. `nodes.rs`, `recipe.rs` and
//! `sections_launch.rs` have most of the keys.

use std::collections::{BTreeMap, BTreeSet};

use toml::de::{DeTable, DeValue};

use super::block;
use super::checks::check_group;
use super::file::Need;
use super::index::index;
use super::nodes::{self, Nodes};
use super::queues::{NotANode, QueueIndex};
use super::reader::{REQUIRED, Reader, SECTION, Section, Span};
use super::recipe::{fallbacks, point_at_conflicts, recipe};
use super::sections_launch::launch_policy;
use super::settings::NodeIndex;
use super::tags::tags;
use crate::model::policy::{LaunchPolicy, ScaleBy};
use crate::model::recipe::{Api, Capacity, Group, GroupNodes, LaunchTemplate, Recipe};

const NO_GROUP: &str = "add a [[group]] section with name, nodes and launch_template; a compute node's own file needs none";

/// What the rest of the file says to every group.
pub(super) struct Context<'a> {
    /// `[launch]`.
    pub(super) base: &'a LaunchPolicy,
    pub(super) scale_by: ScaleBy,
    /// Is there a `[parallelcluster]` section?
    pub(super) parallelcluster: bool,
    /// Most names of one host list.
    pub(super) limit: usize,
}

/// What they say.
pub(super) struct Groups {
    /// Those that are whole.
    pub(super) groups: Vec<Group>,
    /// Which node belongs to which.
    pub(super) node_group: NodeIndex,
    /// Nodes of lists that are to be up all the time.
    pub(super) static_nodes: BTreeSet<String>,
}

/// Reads `[[group]]`; that there is none is a mistake where groups are needed.
pub(super) fn read<'t>(reader: &Reader<'t>, root: &Section<'_, 't>, context: &Context<'_>, need: Need) -> Groups {
    let required = (need == Need::Groups).then_some(NO_GROUP);
    let mut groups = Vec::new();
    let mut static_nodes = BTreeSet::new();
    let mut lists = Vec::new();
    let mut names: Vec<(String, Span)> = Vec::new();
    let mut places = Vec::new();
    for (table, span) in tables(root, "group", "[[group]]", required) {
        let section = reader.section("group", Some(table), span.clone());
        let read = group(reader, &section, context);
        if let Some((name, span)) = name(&section) {
            match names.iter().find(|(other, _)| *other == name) {
                Some((_, other)) => {
                    let line = reader.line(other);
                    reader.mistake(
                        span,
                        format!("two groups are called {name:?}; the other is in line {line}"),
                        "give each group a name of its own",
                    );
                }
                None => names.push((name, span)),
            }
        }
        section.finish();
        let Some((group, nodes)) = read else { continue };
        groups.push(group);
        lists.push(nodes.names);
        static_nodes.extend(nodes.static_names);
        places.push(section.value_span(nodes.key).unwrap_or(span));
    }
    let is_queue = |group: &Group| matches!(group.nodes, GroupNodes::Queue { .. });
    if let Some(first) = groups.first()
        && let Some(other) = groups.iter().position(|group| is_queue(group) != is_queue(first))
    {
        reader.mistake(
            places[other].clone(),
            format!(
                "some groups have nodes and some a queue; group {:?} has the other in line {}",
                first.name,
                reader.line(&places[0])
            ),
            "write nodes in all groups, or queue and compute_resource in all",
        );
    }
    let node_group =
        if groups.iter().any(is_queue) { queues(reader, &groups, &places) } else { listed(reader, &groups, lists, &places) };
    Groups { groups, node_group, static_nodes }
}

/// The index of groups that list their nodes.
fn listed(reader: &Reader<'_>, groups: &[Group], lists: Vec<Vec<String>>, places: &[Span]) -> NodeIndex {
    let (node_group, overlaps) = index(lists);
    for overlap in overlaps {
        let (first, second) = (&groups[overlap.first].name, &groups[overlap.second].name);
        reader.mistake(
            places[overlap.second].clone(),
            format!("groups {first:?} and {second:?} both have {}", overlap.shown()),
            format!(
                "a node belongs to one group: take it out of one of them ({first:?} is in line {})",
                reader.line(&places[overlap.first])
            ),
        );
    }
    node_group
}

/// The index of groups that are ParallelCluster's compute resources.
fn queues(reader: &Reader<'_>, groups: &[Group], places: &[Span]) -> NodeIndex {
    let mut index = QueueIndex::default();
    let mut seen: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (at, group) in groups.iter().enumerate() {
        let GroupNodes::Queue { queue, resource } = &group.nodes else { continue };
        if let Some(first) = seen.get(&(queue.as_str(), resource.as_str())) {
            reader.mistake(
                places[at].clone(),
                format!(
                    "queue {queue} with compute resource {resource} has two groups; the other is in line {}",
                    reader.line(&places[*first])
                ),
                "keep one of them",
            );
            continue;
        }
        seen.insert((queue, resource), at);
        index.insert(queue, resource, u32::try_from(at).unwrap_or(u32::MAX));
    }
    for ((queue, resource), at) in seen {
        for kind in ["st", "dy"] {
            if let Err(NotANode::Ambiguous(one, other)) = index.get(&format!("{queue}-{kind}-{resource}-1")) {
                reader.mistake(
                    places[at].clone(),
                    format!("a node {queue}-{kind}-{resource}-1 can be of {one} and of {other}"),
                    "rename one of them",
                );
            }
        }
    }
    NodeIndex::Queues(index)
}

/// The tables of an array, each with its place; `required` says what to write when there is none.
pub(super) fn tables<'r, 't>(
    section: &Section<'r, 't>,
    key: &'static str,
    header: &str,
    required: Option<&str>,
) -> Vec<(&'r DeTable<'t>, Span)> {
    let Some(value) = section.value(key, SECTION) else {
        if let Some(help) = required {
            section.require(key, help);
        }
        return Vec::new();
    };
    match value.get_ref() {
        DeValue::Array(array) if array.iter().all(|element| element.get_ref().is_table()) => {
            if array.is_empty()
                && let Some(help) = required
            {
                section.require(key, help);
            }
            array.iter().filter_map(|element| Some((element.get_ref().as_table()?, element.span()))).collect()
        }
        DeValue::Table(table) => {
            section.wrong_type(key, value, "an array of tables", format!("write {header} with two brackets"));
            // Its keys are looked at all the same.
            vec![(table, value.span())]
        }
        _ => {
            section.wrong_type(key, value, "an array of tables", format!("write a {header} section for each {key}"));
            Vec::new()
        }
    }
}

/// The name without a judgement, for the comparison with other groups.
fn name(section: &Section<'_, '_>) -> Option<(String, Span)> {
    let value = section.value("name", REQUIRED)?;
    Some((value.get_ref().as_str()?.to_owned(), value.span()))
}

/// `None`: incomplete, so it takes part in nothing else; its mistakes are noted.
fn group<'t>(reader: &Reader<'t>, section: &Section<'_, 't>, context: &Context<'_>) -> Option<(Group, Nodes)> {
    let is_queue = section.key_span("queue").is_some();
    let name = section.checked("name", REQUIRED, "\"c5\"", |text| check_group(text, is_queue));
    if name.is_none() && !section.is_bad("name") {
        section.require("name", "add name = \"c5\"");
    }
    let nothing = Recipe { tags: tags(reader, section), ..no_recipe(context.parallelcluster) };
    let recipe = recipe(reader, section, &nothing);
    section.inherits.set(Some("as `[launch]`"));
    let launch = launch_policy(section, context.base);
    section.inherits.set(None);
    point_at_conflicts(reader, section, &recipe, &launch, context.scale_by);
    if context.scale_by != ScaleBy::Batch
        && let Some(span) = section.key_span("strategy")
    {
        section.mistake(
            "strategy",
            span,
            "a group cannot have a strategy of its own: with scale_by a job or call is launched as a whole, over its groups",
            "set it in [launch], or write scale_by = \"batch\" there",
        );
    }
    let fallbacks = fallbacks(reader, section, &recipe, &launch, context.scale_by);
    let capacity_reservation = block::reservation(section, &recipe);
    let nodes = nodes::read(reader, section, context.parallelcluster, context.limit)?;
    let name = name.unwrap_or_else(|| "?".to_owned());
    Some((Group { name, nodes: nodes.nodes.clone(), recipe, fallbacks, launch, capacity_reservation }, nodes))
}

/// What a group without any of the keys asks for.
pub(super) fn no_recipe(tag_instances_only: bool) -> Recipe {
    Recipe {
        api: Api::RunInstances,
        launch_template: LaunchTemplate { name: None, id: None, version: String::new() },
        instance_types: Vec::new(),
        subnets: Vec::new(),
        capacity: Capacity::OnDemand,
        allocation_strategy: None,
        max_price: None,
        tags: BTreeMap::new(),
        tag_instances_only,
        overrides: serde_json::Map::new(),
    }
}
