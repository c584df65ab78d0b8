//! The whole path from text to settings or mistakes.
#![allow(clippy::unwrap_used)]
