//! Which nodes a group has, and which of them are always up: `nodes` and `static_nodes`, or `queue` and `compute_resource`, in; the
//! names or ParallelCluster's rule out, every mistake noted.

use std::collections::HashSet;

use toml::de::DeValue;

use super::checks::check_queue;
use super::reader::{NONE, REQUIRED, Reader, Section, Value};
use crate::model::hostlist;
use crate::model::recipe::GroupNodes;

/// The nodes of one group.
pub(super) struct Nodes {
    pub(super) nodes: GroupNodes,
    /// The names behind a host list; empty after a mistake, and for a queue.
    pub(super) names: Vec<String>,
    /// Those of them that are to be up all the time.
    pub(super) static_names: Vec<String>,
    /// The key to point at.
    pub(super) key: &'static str,
}

/// `None`: the group has no nodes, or it is not certain which; noted.
pub(super) fn read(reader: &Reader<'_>, section: &Section<'_, '_>, parallelcluster: bool, limit: usize) -> Option<Nodes> {
    let queue = section.checked("queue", NONE, "\"compute\"", check_queue);
    let resource = section.checked("compute_resource", NONE, "\"c5\"", check_queue);
    let (queue_span, resource_span) = (section.key_span("queue"), section.key_span("compute_resource"));
    let listed = section.value(NODES, REQUIRED);
    let statics = section.value(STATIC, NONE);
    let Some(span) = queue_span.clone().or(resource_span.clone()) else {
        let text = listed.and_then(|value| value.get_ref().as_str()).map(str::to_owned);
        let names = listed_nodes(reader, section, parallelcluster, limit);
        let static_names = static_nodes(reader, section, &names, limit);
        return Some(Nodes { nodes: GroupNodes::List(text?), names, static_names, key: NODES });
    };
    if !parallelcluster {
        reader.mistake(
            span,
            "queue and compute_resource are ParallelCluster's, and there is no [parallelcluster] section",
            "write nodes = \"c5-[1-100]\" instead, or add [parallelcluster]",
        );
        return None;
    }
    if listed.is_some() {
        reader.mistake(span, "the group has both nodes and a queue", "keep nodes, or queue and compute_resource");
        return None;
    }
    if let Some(statics) = statics {
        let message = "static_nodes is for groups with nodes: those of a queue say it by their names";
        section.mistake(STATIC, statics.span(), message, "drop it: every node QUEUE-st-RESOURCE-N is a static one");
    }
    if queue_span.is_none() {
        section.require("queue", "add queue = \"compute\"");
    }
    if resource_span.is_none() {
        section.require("compute_resource", "add compute_resource = \"c5\"");
    }
    let nodes = GroupNodes::Queue { queue: queue?, resource: resource? };
    Some(Nodes { nodes, names: Vec::new(), static_names: Vec::new(), key: "queue" })
}

const NODES: &str = "nodes";
const STATIC: &str = "static_nodes";
/// Names that a mistake shows.
const SHOWN: usize = 3;

/// The names behind `nodes`; empty after a mistake.
fn listed_nodes(reader: &Reader<'_>, section: &Section<'_, '_>, parallelcluster: bool, limit: usize) -> Vec<String> {
    let example = "\"c5-[1-100]\"";
    let Some(value) = section.value(NODES, REQUIRED) else {
        let or = if parallelcluster { ", or queue and compute_resource" } else { "" };
        section.require(NODES, format!("add nodes = {example}{or}"));
        return Vec::new();
    };
    expand(reader, section, (NODES, value), example, limit)
}

/// The names behind `static_nodes`, all of them the group's; empty after a mistake.
fn static_nodes(reader: &Reader<'_>, section: &Section<'_, '_>, names: &[String], limit: usize) -> Vec<String> {
    let Some(value) = section.value(STATIC, NONE) else { return Vec::new() };
    let statics = expand(reader, section, (STATIC, value), "\"c5-[1-2]\"", limit);
    if section.is_bad(NODES) {
        return Vec::new();
    }
    let known: HashSet<&String> = names.iter().collect();
    let strangers: Vec<&str> = statics.iter().filter(|name| !known.contains(name)).map(String::as_str).collect();
    if strangers.is_empty() {
        return statics;
    }
    let more = match strangers.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let shown = strangers[..strangers.len().min(SHOWN)].join(", ");
    let message = format!("static_nodes names {shown}{more}, which the group's nodes have not");
    section.mistake(STATIC, value.span(), message, "name some of the group's own nodes");
    Vec::new()
}

/// The names behind a host list; empty after a mistake.
fn expand<'t>(
    reader: &Reader<'_>,
    section: &Section<'_, 't>,
    (key, value): (&'static str, &Value<'t>),
    example: &str,
    limit: usize,
) -> Vec<String> {
    if value.get_ref().is_array() {
        section.wrong_type(key, value, "a string", "write one host list: \"a-[1-10],b-[1-10]\"");
        return Vec::new();
    }
    // Blanks around a host list and line breaks in it are the host list's own affair.
    let DeValue::String(text) = value.get_ref() else {
        section.wrong_type(key, value, "a string", format!("write a host list such as {example}"));
        return Vec::new();
    };
    match hostlist::expand(text, limit) {
        Ok(expansion) if expansion.names.is_empty() => {
            section.mistake(key, value.span(), format!("{key} names no node"), format!("write a host list such as {example}"));
            Vec::new()
        }
        Ok(expansion) => {
            if let Some(twice) = expansion.duplicates.first() {
                let more = match expansion.duplicates.len() {
                    1 => String::new(),
                    count => format!(" and {} more", count - 1),
                };
                section.mistake(key, value.span(), format!("{key} names {twice}{more} more than once"), "name each node once");
            }
            expansion.names
        }
        Err(error) => {
            let at = reader.inside(&value.span(), error.position);
            section.mistake(key, at..at + 1, format!("{key}: {}", error.problem), format!("write a host list such as {example}"));
            Vec::new()
        }
    }
}
