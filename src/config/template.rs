//! A group's `launch_template`: a name or a table in, a [`LaunchTemplate`] out, every mistake noted.

use toml::de::DeValue;

use super::checks::{check_template_name, is_template_id};
use super::reader::{REQUIRED, Reader, Section};
use super::words::nearest;
use crate::model::recipe::LaunchTemplate;

/// A name, or a table with a name or an id, and a version. Required unless the section inherits it.
pub(super) fn launch_template<'t>(reader: &Reader<'t>, section: &Section<'_, 't>) -> Option<LaunchTemplate> {
    const KEY: &str = "launch_template";
    let example = "\"hpc-c5\", or { id = \"lt-0123456789abcdef0\", version = 3 }";
    let value = section.value(KEY, REQUIRED);
    let (table, span) = match value {
        None => {
            if section.inherits.get().is_none() {
                section.require(KEY, format!("add launch_template = {example}"));
            }
            (None, section.span.clone())
        }
        Some(value) => match value.get_ref() {
            DeValue::String(text) if is_template_id(text) => {
                section.mistake(
                    KEY,
                    value.span(),
                    format!("launch_template {text:?} is an id; a plain string is a name"),
                    format!("write {{ id = {text:?} }}"),
                );
                return None;
            }
            DeValue::String(_) => {
                let (name, span) = section.text_of(KEY, value, "\"hpc-c5\"")?;
                if let Err((message, help)) = check_template_name(&name) {
                    section.mistake(KEY, span, format!("launch_template {name:?} {message}"), help);
                    return None;
                }
                return Some(LaunchTemplate { name: Some(name), id: None, version: "$Default".to_owned() });
            }
            DeValue::Table(table) => (Some(table), value.span()),
            _ => {
                section.wrong_type(KEY, value, "a name or a table", format!("write {example}"));
                return None;
            }
        },
    };
    let inner = reader.section("group.launch_template", table, span.clone());
    let name = inner.checked("name", "one of the two", "\"hpc-c5\"", |text| {
        check_template_name(text).map_err(|(message, help)| (format!("{text:?} {message}"), help))
    });
    let id = inner.checked("id", "one of the two", "\"lt-0123456789abcdef0\"", |text| {
        if is_template_id(text) {
            return Ok(());
        }
        Err((
            format!("{text:?} is no launch template id"),
            "write lt- and its hexadecimal digits; a name goes under the key name".to_owned(),
        ))
    });
    let version = version(&inner);
    let (name_given, id_given) = (inner.key_span("name"), inner.key_span("id"));
    inner.finish();
    if table.is_some() {
        match (name_given, id_given) {
            (None, None) => reader.mistake(span, "launch_template has neither name nor id", "add name = \"hpc-c5\", or the id"),
            (Some(_), Some(id)) => reader.mistake(id, "launch_template has both name and id", "keep one of them"),
            _ => {}
        }
    }
    table?;
    Some(LaunchTemplate { name, id, version: version? })
}

/// `$Default`, `$Latest` or a number, as a string or plain.
fn version(section: &Section<'_, '_>) -> Option<String> {
    let help = "write a number from 1, \"$Default\" or \"$Latest\"";
    let Some(value) = section.value("version", "\"$Default\"") else { return Some("$Default".to_owned()) };
    let text = match value.get_ref() {
        DeValue::Integer(number) if number.radix() == 10 => number.as_str(),
        DeValue::String(text) => text,
        _ => {
            section.wrong_type("version", value, "a number or a string", help);
            return None;
        }
    };
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    if matches!(text, "$Default" | "$Latest") || (is_number && text.parse::<u64>().is_ok()) {
        return Some(text.to_owned());
    }
    let help = match nearest(text.trim_start_matches('$'), ["Default", "Latest"]) {
        Some(near) => format!("write \"${near}\""),
        None => help.to_owned(),
    };
    section.mistake("version", value.span(), format!("version {text:?} does not exist"), help);
    None
}
