//! `[group.overrides]`: parameters of the API call as a TOML table in, the same as JSON out, every mistake noted. Which
//! parameters the call has, `model/api_parameters` knows.

use serde_json::{Map, Number, Value as Json};
use toml::de::{DeTable, DeValue};

use super::reader::{Reader, Section, Value};
use crate::model::api_parameters::{check, operation};
use crate::model::recipe::Api;

/// Empty when the key is absent.
pub(super) fn overrides<'t>(reader: &Reader<'t>, section: &Section<'_, 't>, api: Api) -> Map<String, Json> {
    const KEY: &str = "overrides";
    let Some(value) = section.value(KEY, "{}") else { return Map::new() };
    let DeValue::Table(table) = value.get_ref() else {
        section.wrong_type(KEY, value, "a table", "write overrides = { EbsOptimized = true }");
        return Map::new();
    };
    let mut parameters = Map::new();
    for (key, value) in table.iter() {
        let Some(value) = json(reader, value) else { continue };
        let one = Map::from_iter([(key.get_ref().to_string(), value)]);
        for problem in if section.is_bad("api") { Vec::new() } else { check(api, &one) } {
            section.mistake(KEY, key.span(), problem, format!("see {} in EC2's API reference", operation(api)));
        }
        parameters.extend(one);
    }
    parameters
}

fn object<'t>(reader: &Reader<'t>, table: &DeTable<'t>) -> Map<String, Json> {
    table.iter().filter_map(|(key, value)| Some((key.get_ref().to_string(), json(reader, value)?))).collect()
}

/// Times become strings in RFC 3339, as JSON has them.
fn json<'t>(reader: &Reader<'t>, value: &Value<'t>) -> Option<Json> {
    Some(match value.get_ref() {
        DeValue::String(text) => Json::String(text.to_string()),
        DeValue::Boolean(boolean) => Json::Bool(*boolean),
        DeValue::Datetime(time) => Json::String(time.to_string()),
        DeValue::Array(array) => Json::Array(array.iter().filter_map(|element| json(reader, element)).collect()),
        DeValue::Table(table) => Json::Object(object(reader, table)),
        DeValue::Integer(integer) => {
            let number = i64::from_str_radix(integer.as_str(), integer.radix()).ok();
            let Some(number) = number else {
                reader.mistake(value.span(), "the number is too large", "the API takes no number above 9223372036854775807");
                return None;
            };
            Json::Number(number.into())
        }
        DeValue::Float(float) => {
            let number = float.as_str().parse().ok().and_then(Number::from_f64);
            let Some(number) = number else {
                reader.mistake(value.span(), format!("the API takes no number {}", float.as_str()), "write a finite number");
                return None;
            };
            Json::Number(number)
        }
    })
}
