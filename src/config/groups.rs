//! The `[[group]]` tables: the array in, groups and their nodes out, every mistake noted. What EC2 does not take together is
//! `combinations.rs`' to say; this module points at it.

use std::collections::BTreeMap;
use std::time::Duration;

use toml::de::{DeTable, DeValue};

use super::checks::{check_allocation, check_name, check_subnet, check_type};
use super::combinations::conflicts;
use super::index::index;
use super::reader::{REQUIRED, Reader, SECTION, Section, Span};
use super::settings::NodeIndex;
use super::template::launch_template;
use crate::model::failure::BackoffTimes;
use crate::model::hostlist;
use crate::model::instance::tag;
use crate::model::policy::{LaunchPolicy, OnExisting, Strategy};
use crate::model::recipe::{Api, Capacity, Group, GroupNodes, LaunchTemplate, Recipe};

/// A fleet has 10,000 instances at most (aws-facts A.2).
const MAX_BATCH: u64 = 10_000;
/// Longer than a week is a mistake: a group that is to stay off is taken out.
const MAX_BACKOFF: Duration = Duration::from_hours(7 * 24);
/// EC2 takes 50 tags per resource; eight are kept for our own.
const MAX_TAGS: usize = 50 - 8;
/// Characters of a tag's key and value (EC2 user guide, tag restrictions).
const MAX_TAG_KEY: usize = 128;
const MAX_TAG_VALUE: usize = 256;
/// CreateFleet refuses a spot price of 0.001 or less (aws-facts A.2).
const LEAST_PRICE: f64 = 0.001;
/// US dollars an hour; above every list price, so more is a slip of the decimal point.
const MOST_PRICE: f64 = 1000.0;

const NO_GROUP: &str = "add a [[group]] section with name, nodes and launch_template";

/// Reads `[[group]]`; the groups that are whole, and which node belongs to which.
pub(crate) fn read<'t>(
    reader: &Reader<'t>,
    root: &Section<'_, 't>,
    base: &LaunchPolicy,
    limit: usize,
) -> (Vec<Group>, NodeIndex) {
    let mut groups = Vec::new();
    let mut lists = Vec::new();
    let mut names: Vec<(String, Span)> = Vec::new();
    let mut places = Vec::new();
    for (table, span) in tables(root) {
        let section = reader.section("group", Some(table), span.clone());
        let read = group(reader, &section, base);
        let nodes_span = section.value_span("nodes").unwrap_or(span);
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
        let list = expand(reader, &section, limit);
        section.finish();
        let Some(group) = read else { continue };
        groups.push(group);
        lists.push(list);
        places.push(nodes_span);
    }
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
    (groups, node_group)
}

/// The tables of the array, each with its place.
fn tables<'r, 't>(root: &Section<'r, 't>) -> Vec<(&'r DeTable<'t>, Span)> {
    let Some(value) = root.value("group", SECTION) else {
        root.require("group", NO_GROUP);
        return Vec::new();
    };
    match value.get_ref() {
        DeValue::Array(array) if array.iter().all(|element| element.get_ref().is_table()) => {
            if array.is_empty() {
                root.require("group", NO_GROUP);
            }
            array.iter().filter_map(|element| Some((element.get_ref().as_table()?, element.span()))).collect()
        }
        DeValue::Table(table) => {
            root.wrong_type("group", value, "an array of tables", "write [[group]] with two brackets");
            // Its keys are looked at all the same.
            vec![(table, value.span())]
        }
        _ => {
            root.wrong_type("group", value, "an array of tables", "write a [[group]] section for each group");
            Vec::new()
        }
    }
}

/// The name without a judgement, for the comparison with other groups.
fn name(section: &Section<'_, '_>) -> Option<(String, Span)> {
    let value = section.value("name", REQUIRED)?;
    Some((value.get_ref().as_str()?.to_owned(), value.span()))
}

fn group<'t>(reader: &Reader<'t>, section: &Section<'_, 't>, base: &LaunchPolicy) -> Option<Group> {
    let name = section.checked("name", REQUIRED, "\"c5\"", |text| check_name(text, 100));
    if name.is_none() && !section.is_bad("name") {
        section.require("name", "add name = \"c5\"");
    }
    let launch_template = launch_template(reader, section);
    let recipe = Recipe {
        api: section.choice(
            "api",
            Api::RunInstances,
            &[("run-instances", Api::RunInstances), ("create-fleet", Api::CreateFleet)],
        ),
        launch_template: launch_template.clone().unwrap_or_else(no_template),
        instance_types: section.texts("instance_types", "\"c5.large\"", check_type),
        subnets: section.texts("subnets", "\"subnet-0123456789abcdef0\"", check_subnet),
        capacity: section.choice(
            "capacity",
            Capacity::OnDemand,
            &[("on-demand", Capacity::OnDemand), ("spot", Capacity::Spot), ("capacity-block", Capacity::CapacityBlock)],
        ),
        allocation_strategy: section.checked("allocation_strategy", "EC2's own", "\"lowest-price\"", check_allocation),
        max_price: section.number("max_price", None, LEAST_PRICE, MOST_PRICE),
        tags: tags(reader, section),
        tag_instances_only: false,
        overrides: serde_json::Map::new(),
    };
    section.inherits.set(true);
    let launch = launch_policy(section, base);
    section.inherits.set(false);
    for conflict in conflicts(&recipe, &launch) {
        if conflict.keys.iter().any(|key| section.is_bad(key)) {
            continue; // the conflict may be with a default that stands in for a wrong value
        }
        let span = conflict.keys.iter().find_map(|key| section.value_span(key)).unwrap_or_else(|| section.span.clone());
        reader.mistake(span, conflict.message, conflict.help);
    }
    // An incomplete group takes part in nothing else; its mistakes are noted.
    let nodes = section.value("nodes", REQUIRED)?.get_ref().as_str()?.to_owned();
    Some(Group { name: name.unwrap_or_else(|| "?".to_owned()), nodes: GroupNodes::List(nodes), recipe, fallbacks: Vec::new(), launch })
}

fn no_template() -> LaunchTemplate {
    LaunchTemplate { name: None, id: None, version: String::new() }
}

/// The launch settings, of `[launch]` (over the built-in ones) or of a group (over those of `[launch]`).
pub(crate) fn launch_policy(section: &Section<'_, '_>, base: &LaunchPolicy) -> LaunchPolicy {
    let backoff = |key, base| section.duration(key, base, Duration::ZERO..=MAX_BACKOFF);
    LaunchPolicy {
        strategy: section.choice(
            "strategy",
            base.strategy,
            &[("best-effort", Strategy::BestEffort), ("all-or-nothing", Strategy::AllOrNothing)],
        ),
        batch_size: size(section.integer("batch_size", base.batch_size as u64, 1..=MAX_BATCH)),
        on_existing: section.choice(
            "on_existing",
            base.on_existing,
            &[("replace", OnExisting::Replace), ("reboot", OnExisting::Reboot)],
        ),
        node_tags: section.boolean("node_tags", base.node_tags),
        backoff: BackoffTimes {
            capacity: backoff("backoff_capacity", base.backoff.capacity),
            quota: backoff("backoff_quota", base.backoff.quota),
            configuration: backoff("backoff_configuration", base.backoff.configuration),
        },
    }
}

/// A number whose range has been checked, as a size.
pub(crate) fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// The names behind `nodes`; empty after a mistake.
fn expand(reader: &Reader<'_>, section: &Section<'_, '_>, limit: usize) -> Vec<String> {
    let example = "\"c5-[1-100]\"";
    let Some(value) = section.value("nodes", REQUIRED) else {
        section.require("nodes", format!("add nodes = {example}"));
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

/// The tags of instances and volumes (R34).
fn tags<'t>(reader: &Reader<'t>, section: &Section<'_, 't>) -> BTreeMap<String, String> {
    let mut tags = BTreeMap::new();
    let Some(value) = section.value("tags", "{}") else { return tags };
    let DeValue::Table(table) = value.get_ref() else {
        section.wrong_type("tags", value, "a table", "write tags = { project = \"blue\" }");
        return tags;
    };
    for (key, value) in table.iter() {
        let name = &**key.get_ref();
        let lower = name.to_ascii_lowercase();
        let reserved =
            [("aws:", "EC2"), (tag::PREFIX, "these programs")].into_iter().find(|(prefix, _)| lower.starts_with(prefix));
        if let Some((prefix, owner)) = reserved {
            reader.mistake(
                key.span(),
                format!("tag {name:?} is reserved: {owner} write the tags that begin with {prefix}"),
                "choose another key",
            );
            continue;
        }
        if name.is_empty() || name.chars().count() > MAX_TAG_KEY || name.contains(char::is_control) {
            reader.mistake(key.span(), "a tag's key is plain text", format!("write 1 to {MAX_TAG_KEY} characters"));
            continue;
        }
        match value.get_ref() {
            // Unlike other strings, a tag may be empty or have blanks around it.
            DeValue::String(text) if text.chars().count() <= MAX_TAG_VALUE && !text.contains(char::is_control) => {
                tags.insert(name.to_owned(), text.to_string());
            }
            DeValue::String(_) => {
                reader.mistake(
                    value.span(),
                    format!("the value of tag {name:?} is too long or no plain text"),
                    format!("write at most {MAX_TAG_VALUE} characters"),
                );
            }
            _ => {
                section.text_of("tags", value, "\"blue\"");
            }
        }
    }
    if table.len() > MAX_TAGS {
        section.mistake(
            "tags",
            section.key_span("tags").unwrap_or_else(|| value.span()),
            format!("{} tags are too many; EC2 takes 50 for an instance and 8 are kept for these programs", table.len()),
            format!("keep at most {MAX_TAGS}"),
        );
    }
    tags
}
