//! The configuration: a file in, [`settings::Settings`] or *all* its mistakes out. Touches nothing else.
//!
//! `file.rs` is the story of a TOML file and `sections.rs` with its neighbours have its keys; `reader.rs` and `cite.rs` know TOML
//! and positions; `combinations.rs` and `index.rs` know neither, so that another kind of file can be held to the same rules.
//! `render.rs` is the way back. `parallelcluster/` and `aws_plugin/` read other systems' files.

pub(crate) mod aws_plugin;
mod block;
mod checks;
pub(crate) mod cite;
mod combinations;
pub(crate) mod file;
mod groups;
mod index;
mod nodes;
mod overrides;
mod parallelcluster;
pub(crate) mod queues;
mod reader;
mod recipe;
pub(crate) mod render;
mod render_daemons;
mod sections;
mod sections_daemons;
mod sections_launch;
mod sections_publish;
pub(crate) mod settings;
pub(crate) mod source;
mod tags;
mod template;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_daemons;
#[cfg(test)]
mod tests_page;
#[cfg(test)]
mod tests_recipes;
#[cfg(test)]
mod tests_render;
#[cfg(test)]
mod tests_sections;
mod values;

use crate::model::words;
