//! One node group of partitions.json: what it asks of CreateFleet in, a [`Recipe`] that asks the same out, every mistake noted.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::json::At;
use crate::config::checks::{check_allocation, check_subnet, check_template_name, check_type, is_template_id};
use crate::config::groups::no_recipe;
use crate::config::tags::check_tag;
use crate::model::recipe::{Api, Capacity, LaunchTemplate, Recipe};

/// What the plugin puts in the place of these words in a tag's value.
const PLACEHOLDERS: [&str; 3] = ["{ip_address}", "{node_name}", "{hostname}"];

/// The recipe of a node group; of use only when nothing was noted.
pub(super) fn recipe(group: &At<'_>) -> Recipe {
    let mut recipe = Recipe { api: Api::CreateFleet, ..no_recipe(false) };
    if let Some(option) = group.required("PurchasingOption") {
        match option.text() {
            Some("spot") => recipe.capacity = Capacity::Spot,
            Some("on-demand") | None => {}
            Some(other) => option.mistake(format!("{other:?} does not exist"), "write \"spot\" or \"on-demand\""),
        }
    }
    if let Some(template) = group.required("LaunchTemplateSpecification") {
        recipe.launch_template = launch_template(&template);
    }
    options(group, &mut recipe);
    let subnets = group.required("SubnetIds").map(|subnets| subnets.elements()).unwrap_or_default();
    for subnet in &subnets {
        if let Some(id) = subnet.checked(check_subnet) {
            if recipe.subnets.iter().any(|known| known == id) {
                subnet.mistake(format!("{id:?} is named twice"), "keep one of them");
            }
            recipe.subnets.push(id.to_owned());
        }
    }
    if let Some(overrides) = group.required("LaunchTemplateOverrides") {
        launch_overrides(group, &overrides, &mut recipe);
    }
    if let Some(list) = group.get("Tags") {
        recipe.tags = tags(&list);
    }
    recipe
}

fn launch_template(at: &At<'_>) -> LaunchTemplate {
    at.only(&["LaunchTemplateId", "LaunchTemplateName", "Version"]);
    let name = at.get("LaunchTemplateName").and_then(|name| {
        name.checked(|text| check_template_name(text).map_err(|(message, help)| (format!("{text:?} {message}"), help)))
            .map(str::to_owned)
    });
    let id = at.get("LaunchTemplateId").and_then(|id| {
        let wrong =
            |text: &str| (format!("{text:?} is no launch template id"), "write lt- and its hexadecimal digits".to_owned());
        id.checked(|text| if is_template_id(text) { Ok(()) } else { Err(wrong(text)) }).map(str::to_owned)
    });
    match (at.get("LaunchTemplateName").is_some(), at.get("LaunchTemplateId").is_some()) {
        (false, false) if at.object().is_some() => {
            at.mistake("neither LaunchTemplateName nor LaunchTemplateId is there", "add one of them");
        }
        (true, true) => at.mistake("both LaunchTemplateName and LaunchTemplateId are there", "keep one of them"),
        _ => {}
    }
    let version = at.get("Version").map(|version| {
        let text = version.value.as_str().map_or_else(|| version.value.to_string(), str::to_owned);
        let is_number = text.parse::<u64>().is_ok_and(|number| number > 0);
        if !is_number && !matches!(text.as_str(), "$Default" | "$Latest") {
            version.mistake(format!("{text} is no version"), "write a number from 1, \"$Default\" or \"$Latest\"");
        }
        text
    });
    LaunchTemplate { name, id, version: version.unwrap_or_else(|| "$Default".to_owned()) }
}

/// OnDemandOptions or SpotOptions, by what is bought. An allocation strategy has a key; anything more is kept whole.
fn options(group: &At<'_>, recipe: &mut Recipe) {
    let (used, unused) = match recipe.capacity {
        Capacity::Spot => ("SpotOptions", "OnDemandOptions"),
        _ => ("OnDemandOptions", "SpotOptions"),
    };
    if let Some(unused) = group.get(unused) {
        unused.note("not used: it is for another PurchasingOption");
    }
    let Some(options) = group.get(used) else { return };
    let Some(object) = options.object() else { return };
    let strategy = options.get("AllocationStrategy");
    let strategy = strategy.and_then(|strategy| strategy.checked(check_allocation).map(str::to_owned));
    // The plugin sets it to terminate whatever is written, and so does every launch here.
    if object.keys().all(|key| matches!(key.as_str(), "AllocationStrategy" | "InstanceInterruptionBehavior")) {
        recipe.allocation_strategy = strategy;
        return;
    }
    let mut whole = object.clone();
    if recipe.capacity == Capacity::Spot {
        whole.insert("InstanceInterruptionBehavior".into(), "terminate".into());
    }
    recipe.overrides.insert(used.into(), Value::Object(whole));
    options.note("kept whole, under overrides");
}

/// The instance types. Where there is more to one than its name, the list goes into the request as the plugin makes it.
fn launch_overrides(group: &At<'_>, list: &At<'_>, recipe: &mut Recipe) {
    let elements = list.elements();
    let mut types: Vec<(f64, String)> = Vec::new();
    let mut prices: Vec<Option<f64>> = Vec::new();
    let mut plain = true;
    for element in &elements {
        let Some(object) = element.object() else { continue };
        // The plugin overwrites the subnet and the weight.
        const PLAIN: [&str; 5] = ["InstanceType", "MaxPrice", "Priority", "SubnetId", "WeightedCapacity"];
        plain &= object.contains_key("InstanceType") && object.keys().all(|key| PLAIN.contains(&key.as_str()));
        let priority = element.get("Priority").and_then(|priority| number(&priority));
        prices.push(element.get("MaxPrice").and_then(|price| number(&price)));
        let Some(name) = element.get("InstanceType") else { continue };
        let Some(text) = name.checked(check_type) else { continue };
        if types.iter().any(|(_, known)| known == text) && plain {
            name.mistake(format!("{text:?} is named twice"), "keep one of them");
        }
        types.push((priority.unwrap_or(f64::MAX), text.to_owned()));
    }
    plain &= prices.windows(2).all(|pair| pair[0] == pair[1]);
    if matches!(recipe.allocation_strategy.as_deref(), Some("prioritized" | "capacity-optimized-prioritized")) {
        // What has no priority comes last, in its order.
        types.sort_by(|a, b| a.0.total_cmp(&b.0));
        plain &= types.windows(2).all(|pair| pair[0].0 < pair[1].0 || pair[0].0 == f64::MAX);
    }
    if !plain {
        recipe.overrides.insert("LaunchTemplateConfigs".into(), configs(group, &elements, &recipe.launch_template));
        recipe.subnets.clear();
        list.note("has more than types and one price, so it is kept whole, with the subnets, under overrides");
        return;
    }
    recipe.instance_types = types.into_iter().map(|(_, name)| name).collect();
    let price = prices.first().copied().flatten();
    if recipe.capacity == Capacity::Spot {
        recipe.max_price = price;
    } else if price.is_some() {
        list.note("MaxPrice is not used: it is for spot instances");
    }
}

/// A number, or one in a string, as the API has prices.
fn number(at: &At<'_>) -> Option<f64> {
    let number = match at.value {
        Value::String(text) => text.parse().ok(),
        other => other.as_f64(),
    };
    let number = number.filter(|number: &f64| number.is_finite());
    if number.is_none() {
        at.mistake(format!("{} is no number", at.value), "write one such as \"0.35\"");
    }
    number
}

/// Each element in each subnet, every instance counting as one node.
fn configs(group: &At<'_>, elements: &[At<'_>], template: &LaunchTemplate) -> Value {
    let subnets = group.get("SubnetIds").and_then(|subnets| subnets.value.as_array()).cloned().unwrap_or_default();
    let mut overrides = Vec::new();
    for element in elements {
        for subnet in &subnets {
            let mut one = element.value.as_object().cloned().unwrap_or_default();
            one.insert("SubnetId".into(), subnet.clone());
            one.insert("WeightedCapacity".into(), json!(1));
            overrides.push(Value::Object(one));
        }
    }
    let mut specification = json!({ "Version": template.version });
    for (key, value) in [("LaunchTemplateName", &template.name), ("LaunchTemplateId", &template.id)] {
        if let Some(value) = value {
            specification[key] = json!(value);
        }
    }
    json!([{ "LaunchTemplateSpecification": specification, "Overrides": overrides }])
}

fn tags(list: &At<'_>) -> BTreeMap<String, String> {
    let mut tags = BTreeMap::new();
    for element in list.elements() {
        let (Some(key), Some(value)) = (element.required("Key"), element.required("Value")) else { continue };
        let Some(name) = key.text() else { continue };
        let Some(text) = value.value.as_str() else {
            value.text();
            continue;
        };
        if let Some(word) = PLACEHOLDERS.iter().find(|word| text.contains(**word)) {
            value.mistake(
                format!("{word} differs from node to node, and the tags of a group are the same for all its nodes"),
                "drop the tag; slurm-ec2:node has the node's name",
            );
        } else if let Err((message, help)) = check_tag(name, text) {
            key.mistake(message, help);
        } else {
            tags.insert(name.to_owned(), text.to_owned());
        }
    }
    tags
}
