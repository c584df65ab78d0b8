//! The nouns: values that every other module speaks in. Text in, values out, and back. No decisions, no I/O.

pub(crate) mod api_parameters;
pub(crate) mod cluster;
pub(crate) mod ec2_codes;
pub(crate) mod failure;
pub(crate) mod fleet;
pub(crate) mod hostlist;
pub(crate) mod instance;
pub(crate) mod mapping;
pub(crate) mod node;
pub(crate) mod policy;
pub(crate) mod recipe;
pub(crate) mod resume_file;
pub(crate) mod round;
pub(crate) mod time;
pub(crate) mod words;
