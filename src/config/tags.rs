//! A group's `tags`: a table in, names and values out, every mistake noted.

use std::collections::BTreeMap;

use toml::de::DeValue;

use super::checks::Complaint;
use super::reader::{Reader, Section};
use crate::model::instance::tag;

/// EC2 takes 50 tags per resource; eight are kept for our own.
const MAX_TAGS: usize = 50 - 8;
/// Characters of a tag's key and value (EC2 user guide, tag restrictions).
const MAX_TAG_KEY: usize = 128;
const MAX_TAG_VALUE: usize = 256;

/// The tags of instances and volumes (R34).
pub(super) fn tags<'t>(reader: &Reader<'t>, section: &Section<'_, 't>) -> BTreeMap<String, String> {
    let mut tags = BTreeMap::new();
    let Some(value) = section.value("tags", "{}") else { return tags };
    let DeValue::Table(table) = value.get_ref() else {
        section.wrong_type("tags", value, "a table", "write tags = { project = \"blue\" }");
        return tags;
    };
    for (key, value) in table.iter() {
        let name = &**key.get_ref();
        let DeValue::String(text) = value.get_ref() else {
            if let Err((message, help)) = check_tag(name, "") {
                reader.mistake(key.span(), message, help);
            } else {
                section.text_of("tags", value, "\"blue\"");
            }
            continue;
        };
        match check_tag(name, text) {
            Ok(()) => {
                tags.insert(name.to_owned(), text.to_string());
            }
            Err((message, help)) => {
                let place = if check_tag(name, "").is_err() { key.span() } else { value.span() };
                reader.mistake(place, message, help);
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

/// Can this be a tag? The whole message, unlike those of `checks.rs`: it may be about the key or the value.
pub(super) fn check_tag(name: &str, value: &str) -> Result<(), Complaint> {
    let lower = name.to_ascii_lowercase();
    let reserved = [("aws:", "EC2"), (tag::PREFIX, "these programs")].into_iter().find(|(prefix, _)| lower.starts_with(prefix));
    if let Some((prefix, owner)) = reserved {
        let message = format!("tag {name:?} is reserved: {owner} write the tags that begin with {prefix}");
        return Err((message, "choose another key".to_owned()));
    }
    let plain = |text: &str, most: usize| text.chars().count() <= most && !text.contains(char::is_control);
    if name.is_empty() || !plain(name, MAX_TAG_KEY) {
        return Err(("a tag's key is plain text".to_owned(), format!("write 1 to {MAX_TAG_KEY} characters")));
    }
    // Unlike other strings, a tag's value may be empty or have blanks around it.
    if !plain(value, MAX_TAG_VALUE) {
        let message = format!("the value of tag {name:?} is too long or no plain text");
        return Err((message, format!("write at most {MAX_TAG_VALUE} characters")));
    }
    Ok(())
}
