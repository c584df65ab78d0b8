//! Which nodes a group has: `nodes`, or `queue` and `compute_resource`, in; the names or ParallelCluster's rule out, every
//! mistake noted.

use toml::de::DeValue;

use super::checks::check_queue;
use super::reader::{NONE, REQUIRED, Reader, Section};
use crate::model::hostlist;
use crate::model::recipe::GroupNodes;

/// The nodes of one group.
pub(super) struct Nodes {
    pub(super) nodes: GroupNodes,
    /// The names behind a host list; empty after a mistake, and for a queue.
    pub(super) names: Vec<String>,
    /// The key to point at.
    pub(super) key: &'static str,
}

/// `None`: the group has no nodes, or it is not certain which; noted.
pub(super) fn read(reader: &Reader<'_>, section: &Section<'_, '_>, parallelcluster: bool, limit: usize) -> Option<Nodes> {
    let queue = section.checked("queue", NONE, "\"compute\"", check_queue);
    let resource = section.checked("compute_resource", NONE, "\"c5\"", check_queue);
    let (queue_span, resource_span) = (section.key_span("queue"), section.key_span("compute_resource"));
    let listed = section.value("nodes", REQUIRED);
    let Some(span) = queue_span.clone().or(resource_span.clone()) else {
        let text = listed.and_then(|value| value.get_ref().as_str()).map(str::to_owned);
        let names = expand(reader, section, parallelcluster, limit);
        return Some(Nodes { nodes: GroupNodes::List(text?), names, key: "nodes" });
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
    if queue_span.is_none() {
        section.require("queue", "add queue = \"compute\"");
    }
    if resource_span.is_none() {
        section.require("compute_resource", "add compute_resource = \"c5\"");
    }
    Some(Nodes { nodes: GroupNodes::Queue { queue: queue?, resource: resource? }, names: Vec::new(), key: "queue" })
}

/// The names behind `nodes`; empty after a mistake.
fn expand(reader: &Reader<'_>, section: &Section<'_, '_>, parallelcluster: bool, limit: usize) -> Vec<String> {
    let example = "\"c5-[1-100]\"";
    let Some(value) = section.value("nodes", REQUIRED) else {
        let or = if parallelcluster { ", or queue and compute_resource" } else { "" };
        section.require("nodes", format!("add nodes = {example}{or}"));
        return Vec::new();
    };
    if value.get_ref().is_array() {
        section.wrong_type("nodes", value, "a string", "write one host list: \"a-[1-10],b-[1-10]\"");
        return Vec::new();
    }
    // Blanks around a host list and line breaks in it are the host list's own affair.
    let DeValue::String(text) = value.get_ref() else {
        section.wrong_type("nodes", value, "a string", format!("write a host list such as {example}"));
        return Vec::new();
    };
    match hostlist::expand(text, limit) {
        Ok(expansion) if expansion.names.is_empty() => {
            section.mistake("nodes", value.span(), "nodes names no node", format!("write a host list such as {example}"));
            Vec::new()
        }
        Ok(expansion) => {
            if let Some(twice) = expansion.duplicates.first() {
                let more = match expansion.duplicates.len() {
                    1 => String::new(),
                    count => format!(" and {} more", count - 1),
                };
                section.mistake(
                    "nodes",
                    value.span(),
                    format!("nodes names {twice}{more} more than once"),
                    "name each node once",
                );
            }
            expansion.names
        }
        Err(error) => {
            let at = reader.inside(&value.span(), error.position);
            section.mistake(
                "nodes",
                at..at + 1,
                format!("nodes: {}", error.problem),
                format!("write a host list such as {example}"),
            );
            Vec::new()
        }
    }
}
