//! A launch recipe: the keys of `[[group]]` or `[[group.fallback]]` that say what is asked of EC2 in, a [`Recipe`] out, every
//! mistake noted. What EC2 does not take together is `combinations.rs`' to say; this module points at it.

use super::checks::{check_allocation, check_subnet, check_type};
use super::combinations::conflicts;
use super::groups::tables;
use super::overrides::overrides;
use super::reader::{Reader, Section};
use super::template::launch_template;
use crate::model::policy::{LaunchPolicy, ScaleBy};
use crate::model::recipe::{Api, Capacity, Recipe};

/// CreateFleet refuses a spot price of 0.001 or less (aws-facts A.2).
const LEAST_PRICE: f64 = 0.001;
/// US dollars an hour; above every list price, so more is a slip of the decimal point.
const MOST_PRICE: f64 = 1000.0;

pub(super) const APIS: [(&str, Api); 2] = [("run-instances", Api::RunInstances), ("create-fleet", Api::CreateFleet)];
pub(super) const CAPACITIES: [(&str, Capacity); 4] = [
    ("on-demand", Capacity::OnDemand),
    ("spot", Capacity::Spot),
    ("capacity-block", Capacity::CapacityBlock),
    ("template", Capacity::Template),
];

/// What is written, over `base`. What belongs to a way of buying is taken from `base` with that alone: a price and an allocation
/// strategy with the same API and capacity, API parameters with the same API.
pub(super) fn recipe<'t>(reader: &Reader<'t>, section: &Section<'_, 't>, base: &Recipe) -> Recipe {
    let api = section.choice("api", base.api, &APIS);
    let capacity = section.choice("capacity", base.capacity, &CAPACITIES);
    let template = launch_template(reader, section);
    let written = |key| section.key_span(key).is_some();
    let types = section.texts("instance_types", "\"c5.large\"", check_type);
    let subnets = section.texts("subnets", "\"subnet-0123456789abcdef0\"", check_subnet);
    let strategy = section.checked("allocation_strategy", "EC2's own", "\"lowest-price\"", check_allocation);
    let price = section.number("max_price", None, LEAST_PRICE, MOST_PRICE);
    let parameters = overrides(reader, section, api);
    let inherited = inherited(base, api, capacity);
    Recipe {
        api,
        launch_template: template.unwrap_or(inherited.launch_template),
        instance_types: if written("instance_types") { types } else { inherited.instance_types },
        subnets: if written("subnets") { subnets } else { inherited.subnets },
        capacity,
        allocation_strategy: strategy.or(inherited.allocation_strategy),
        max_price: price.or(inherited.max_price),
        tags: inherited.tags,
        tag_instances_only: inherited.tag_instances_only,
        overrides: if written("overrides") { parameters } else { inherited.overrides },
    }
}

/// What is taken from `base` for another way of buying.
pub(super) fn inherited(base: &Recipe, api: Api, capacity: Capacity) -> Recipe {
    let (same_api, same_way) = (api == base.api, api == base.api && capacity == base.capacity);
    Recipe {
        api,
        capacity,
        allocation_strategy: base.allocation_strategy.clone().filter(|_| same_way),
        max_price: base.max_price.filter(|_| same_way),
        overrides: if same_api { base.overrides.clone() } else { serde_json::Map::new() },
        ..base.clone()
    }
}

/// The `[[group.fallback]]` tables, in their order. What one does not set it takes from the group.
pub(super) fn fallbacks<'t>(
    reader: &Reader<'t>,
    group: &Section<'_, 't>,
    first: &Recipe,
    launch: &LaunchPolicy,
    scale_by: ScaleBy,
) -> Vec<Recipe> {
    let mut fallbacks: Vec<Recipe> = Vec::new();
    for (table, span) in tables(group, "fallback", "[[group.fallback]]", None) {
        let section = reader.section("group.fallback", Some(table), span.clone());
        section.inherits.set(Some("as the group"));
        let next = recipe(reader, &section, first);
        section.finish();
        if section.is_empty() {
            reader.mistake(span, "this fallback changes nothing", "say what it does otherwise, such as capacity = \"on-demand\"");
            continue;
        }
        if !section.has_mistakes() && fallbacks.last().unwrap_or(first) == &next {
            let before = if fallbacks.is_empty() { "the group itself" } else { "the fallback before it" };
            reader.mistake(span, format!("this fallback asks for the same as {before}"), "change it, or drop it");
            continue;
        }
        point_at_conflicts(reader, &section, &next, launch, scale_by);
        fallbacks.push(next);
    }
    fallbacks
}

/// Notes what the recipe asks for and EC2 does not take together.
pub(super) fn point_at_conflicts(
    reader: &Reader<'_>,
    section: &Section<'_, '_>,
    recipe: &Recipe,
    launch: &LaunchPolicy,
    scale_by: ScaleBy,
) {
    for conflict in conflicts(recipe, launch, scale_by) {
        if conflict.keys.iter().any(|key| section.is_bad(key)) {
            continue; // the conflict may be with a default that stands in for a wrong value
        }
        let span = conflict.keys.iter().find_map(|key| section.value_span(key)).unwrap_or_else(|| section.span.clone());
        reader.mistake(span, conflict.message, conflict.help);
    }
}
