//! Walks a JSON document: values in, typed values out, every mistake noted with its file and key
//! (`Partitions[0].NodeGroups[2].Region`).

use std::cell::RefCell;
use std::path::Path;

use serde_json::{Map, Value};

use crate::config::checks::Complaint;

/// What one reading finds.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// What must be put right.
    pub(super) mistakes: RefCell<Vec<String>>,
    /// What is different afterwards, or not used.
    pub(super) notes: RefCell<Vec<String>>,
}

/// A value and its place.
#[derive(Clone)]
pub(super) struct At<'j> {
    file: &'j Path,
    /// Empty for the document itself.
    pub(super) key: String,
    pub(super) value: &'j Value,
    found: &'j Found,
}

impl<'j> At<'j> {
    pub(super) fn root(file: &'j Path, value: &'j Value, found: &'j Found) -> Self {
        Self { file, key: String::new(), value, found }
    }

    pub(super) fn mistake(&self, message: impl AsRef<str>, help: impl AsRef<str>) {
        let text = format!("{}: {}{}; {}", self.file.display(), self.place(), message.as_ref(), help.as_ref());
        self.found.mistakes.borrow_mut().push(text);
    }

    pub(super) fn note(&self, text: impl AsRef<str>) {
        let text = format!("{}: {}{}", self.file.display(), self.place(), text.as_ref());
        self.found.notes.borrow_mut().push(text);
    }

    fn place(&self) -> String {
        if self.key.is_empty() { String::new() } else { format!("{}: ", self.key) }
    }

    fn wrong_type(&self, wanted: &str) {
        let found = match self.value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "an array",
            Value::Object(_) => "an object",
        };
        self.mistake(format!("this is {found}"), format!("write {wanted}"));
    }

    /// A member that may be absent.
    pub(super) fn get(&self, key: &str) -> Option<Self> {
        let value = self.value.as_object()?.get(key)?;
        let key = if self.key.is_empty() { key.to_owned() } else { format!("{}.{key}", self.key) };
        Some(Self { key, value, ..self.clone() })
    }

    /// A member that must be there.
    pub(super) fn required(&self, key: &str) -> Option<Self> {
        let member = self.get(key);
        if member.is_none() && self.object().is_some() {
            self.mistake(format!("{key} is missing"), format!("add {key:?}"));
        }
        member
    }

    pub(super) fn object(&self) -> Option<&'j Map<String, Value>> {
        let object = self.value.as_object();
        if object.is_none() {
            self.wrong_type("an object");
        }
        object
    }

    /// The elements of an array.
    pub(super) fn elements(&self) -> Vec<Self> {
        let Some(array) = self.value.as_array() else {
            self.wrong_type("an array");
            return Vec::new();
        };
        array.iter().enumerate().map(|(at, value)| Self { key: format!("{}[{at}]", self.key), value, ..self.clone() }).collect()
    }

    pub(super) fn text(&self) -> Option<&'j str> {
        let text = self.value.as_str();
        match text {
            None => self.wrong_type("a string"),
            Some("") => self.mistake("this is empty", "write a string"),
            Some(_) => return text,
        }
        None
    }

    /// A string that `check` accepts.
    pub(super) fn checked(&self, check: impl Fn(&str) -> Result<(), Complaint>) -> Option<&'j str> {
        let text = self.text()?;
        match check(text) {
            Ok(()) => Some(text),
            Err((message, help)) => {
                // Some messages begin with the value, some go on behind its name.
                let message = if message.contains(text) { message } else { format!("{text:?} {message}") };
                self.mistake(message, help);
                None
            }
        }
    }

    /// A whole number from `least`.
    pub(super) fn integer(&self, least: u64) -> Option<u64> {
        match self.value.as_u64().filter(|number| *number >= least) {
            None => {
                self.mistake(format!("{} is no such number", self.value), format!("write a whole number from {least}"));
                None
            }
            number => number,
        }
    }

    /// Notes every member that is not among `known`.
    pub(super) fn only(&self, known: &[&str]) {
        for key in self.value.as_object().into_iter().flat_map(Map::keys).filter(|key| !known.contains(&key.as_str())) {
            self.note(format!("{key} is unknown and not used"));
        }
    }
}

/// `Key=value`, as generate_conf.py writes it into slurm.conf.
pub(super) fn pairs(object: &Map<String, Value>) -> impl Iterator<Item = String> {
    object.iter().map(|(key, value)| match value {
        Value::String(text) => format!("{key}={text}"),
        other => format!("{key}={other}"),
    })
}
