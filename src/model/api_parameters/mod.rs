//! The parameters of RunInstances and CreateFleet, by name and type: overrides as an admin writes them in, problems or the pairs
//! of EC2's query protocol out. Knows nothing of what a value means to EC2, apart from the few that launches here depend on.
//!
//! `table.rs` reads `parameters.txt`, which `scripts/api-parameters` makes. Why a table: docs/decisions/api-parameters.md.
//! Protocol: <https://smithy.io/2.0/aws/protocols/aws-ec2-query-protocol.html>.

mod table;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

use self::table::{Kind, Member};
use super::instance::tag;
use super::recipe::Api;
use super::time::Timestamp;
use super::words::nearest;

/// The call's name in the API.
pub(crate) fn operation(api: Api) -> &'static str {
    match api {
        Api::RunInstances => "RunInstances",
        Api::CreateFleet => "CreateFleet",
    }
}

/// What is wrong with `overrides` as parameters of `api`: one text per problem, each beginning with the parameter's path
/// (`LaunchTemplateConfigs[0].Overrides[2].MaxPrice: …`). Empty = they can be sent; whether EC2 likes the values is EC2's to say.
///
/// MinCount, MaxCount and TargetCapacitySpecification may be overridden, as in ParallelCluster. The answer then has fewer or more
/// instances than the batch has nodes: nodes without one fail, instances without a node are released.
pub(crate) fn check(api: Api, overrides: &Map<String, Value>) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, value) in overrides {
        if let Some(why) = not_to_be_set(api, name, value) {
            problems.push(format!("{name}: {why}"));
        } else if let Some(member) = table::member(operation(api), name) {
            check_member(name, member, value, &mut problems);
        } else {
            problems.push(unknown(api, name));
        }
    }
    check_tags(overrides, &mut problems);
    problems
}

/// The overrides as key and value of a request's form, in the order of the parameters' names. An empty list or structure has
/// no pair: it takes the parameter away. Takes what [`check`] passes; anything else goes out as it is written, for EC2 to refuse.
pub(crate) fn query(api: Api, overrides: &Map<String, Value>) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    for (name, value) in overrides {
        flatten(query_name(api, name).to_owned(), table::member(operation(api), name), value, &mut pairs);
    }
    pairs
}

/// A parameter's name in a request: its key, or what its keys begin with before the first dot.
pub(crate) fn query_name(api: Api, name: &str) -> &str {
    table::member(operation(api), name).map_or(name, |member| member.query)
}

/// The parameters that launches here rest on.
fn not_to_be_set(api: Api, name: &str, value: &Value) -> Option<&'static str> {
    match (api, name) {
        (_, "ClientToken") => Some("slurm-ec2 makes its own for each launch, so that a repeated call launches nothing twice"),
        (_, "DryRun") => Some("launches nothing, and its answer is an error"),
        (Api::CreateFleet, "Type") if value != "instant" => {
            Some("write \"instant\" or leave it out: any other fleet answers without instances and launches them later")
        }
        _ => None,
    }
}

fn unknown(api: Api, name: &str) -> String {
    let near = nearest(name, table::members(operation(api)).iter().map(|member| member.name));
    let other = match api {
        Api::RunInstances => Api::CreateFleet,
        Api::CreateFleet => Api::RunInstances,
    };
    let help = match near {
        Some(near) => format!("; write {near:?}"),
        None if table::member(operation(other), name).is_some() => format!(", only {} has", operation(other)),
        None => String::new(),
    };
    format!("{name}: {} has no such parameter{help}", operation(api))
}

fn check_member(path: &str, member: &Member, value: &Value, problems: &mut Vec<String>) {
    match value {
        Value::Array(items) if member.is_list => {
            for (at, item) in items.iter().enumerate() {
                check_value(&format!("{path}[{at}]"), member.kind, item, problems);
            }
        }
        _ if member.is_list => problems.push(format!("{path}: expected a list, not {}", shown(value))),
        _ => check_value(path, member.kind, value, problems),
    }
}

fn check_value(path: &str, kind: Kind, value: &Value, problems: &mut Vec<String>) {
    let expected = match (kind, value) {
        (Kind::Structure(title), Value::Object(fields)) => return check_fields(path, title, fields, problems),
        (Kind::Structure(_), _) => "an object",
        (Kind::String, Value::String(_)) | (Kind::Double, Value::Number(_)) | (Kind::Boolean, Value::Bool(_)) => return,
        (Kind::Integer, Value::Number(number)) if number.as_i64().is_some_and(|whole| i32::try_from(whole).is_ok()) => return,
        (Kind::Timestamp, Value::String(text)) if text.parse::<Timestamp>().is_ok() => return,
        (Kind::Timestamp, Value::Number(number)) if number.is_u64() => return,
        (Kind::String, _) => "a string",
        (Kind::Integer, _) => "a whole number of at most 2147483647",
        (Kind::Double, _) => "a number",
        (Kind::Boolean, _) => "true or false",
        (Kind::Timestamp, _) => "a time such as \"2030-12-31T23:59:59Z\"",
    };
    let help = match (kind, value) {
        (_, Value::Null) => "; leave it out".to_owned(),
        (Kind::String, Value::Number(_) | Value::Bool(_)) => format!("; write it in quotes, \"{value}\""),
        (Kind::Integer | Kind::Double | Kind::Boolean, Value::String(text)) if !text.is_empty() => {
            "; write it without quotes".to_owned()
        }
        _ => String::new(),
    };
    problems.push(format!("{path}: expected {expected}, not {}{help}", shown(value)));
}

fn check_fields(path: &str, title: &str, fields: &Map<String, Value>, problems: &mut Vec<String>) {
    let members = table::members(title);
    for (name, value) in fields {
        if let Some(member) = table::member(title, name) {
            check_member(&format!("{path}.{name}"), member, value, problems);
            continue;
        }
        let names = || members.iter().map(|member| member.name);
        let help = match nearest(name, names()) {
            Some(near) => format!("; write {near:?}"),
            None => format!("; known here: {}", names().collect::<Vec<_>>().join(", ")),
        };
        problems.push(format!("{path}.{name}: the API has no such parameter{help}"));
    }
    for member in members.iter().filter(|member| member.is_required && !fields.contains_key(member.name)) {
        problems.push(format!("{path}: {} must be given with it", member.name));
    }
}

/// Tags that are not the admin's to write.
fn check_tags(overrides: &Map<String, Value>, problems: &mut Vec<String>) {
    let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    for (at, entry) in list(overrides.get("TagSpecifications")).iter().enumerate() {
        for (index, pair) in list(entry.get("Tags")).iter().enumerate() {
            let Some(key) = pair.get("Key").and_then(Value::as_str) else { continue };
            let owner = [("aws:", "EC2"), (tag::PREFIX, "slurm-ec2")];
            if let Some((prefix, owner)) = owner.into_iter().find(|(prefix, _)| key.to_lowercase().starts_with(prefix)) {
                problems.push(format!(
                    "TagSpecifications[{at}].Tags[{index}].Key: {key:?} is reserved: what begins with {prefix} is {owner}'s"
                ));
            }
        }
    }
}

fn flatten(key: String, member: Option<&Member>, value: &Value, pairs: &mut Vec<(String, String)>) {
    match value {
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                flatten(format!("{key}.{}", at + 1), member, item, pairs);
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                let inner = member.and_then(|member| match member.kind {
                    Kind::Structure(title) => table::member(title, name),
                    _ => None,
                });
                flatten(format!("{key}.{}", inner.map_or(name.as_str(), |inner| inner.query)), inner, value, pairs);
            }
        }
        Value::Null => {}
        Value::String(text) => pairs.push((key, text.clone())),
        Value::Number(secs) if member.is_some_and(|member| member.kind == Kind::Timestamp) => {
            pairs.push((key, secs.as_u64().map_or_else(|| secs.to_string(), |secs| Timestamp::from_secs(secs).to_string())));
        }
        Value::Bool(_) | Value::Number(_) => pairs.push((key, value.to_string())),
    }
}

/// A value in a message.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => value.to_string(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) if text.chars().count() > 40 => "a long string".to_owned(),
        Value::String(text) => format!("{text:?}"),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}
