//! The configuration: a file in, [`settings::Settings`] or *all* its mistakes out. Touches nothing else.
//!
//! `file.rs` is the story; `reader.rs` and `cite.rs` know TOML and positions; `combinations.rs` and `index.rs` know neither, so that
//! another kind of file can be held to the same rules.

mod checks;
pub(crate) mod cite;
mod combinations;
pub(crate) mod file;
mod groups;
mod index;
pub(crate) mod queues;
mod reader;
mod sections;
pub(crate) mod settings;
mod template;
#[cfg(test)]
mod tests;
mod values;
mod words;
