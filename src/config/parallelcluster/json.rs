//! The JSON files that slurm_resume's INI file names: a path in, its queues out, or what is wrong with it.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::fleet::Queues;
use super::keys::Keys;
use crate::config::cite::{Mistake, Source};
use crate::settled;

/// Why a file gives no queues.
#[derive(Debug)]
pub(super) enum Wrong {
    /// Not there or not readable: the key that names it is to be pointed at.
    Unreadable {
        key: &'static str,
        message: String,
    },
    Content(Mistake),
}

impl Wrong {
    /// Notes it as a mistake: with the key's own file, or among `mistakes`.
    pub(super) fn note(self, keys: &Keys<'_>, mistakes: &mut Vec<Mistake>) {
        match self {
            Self::Unreadable { key, message } => {
                keys.mistake(key, keys.place(key), message, "name the file there is, readable for this user");
            }
            Self::Content(mistake) => mistakes.push(mistake),
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { key, message } => write!(f, "{key} {message}"),
            Self::Content(Mistake { path, line, column, message, .. }) => {
                write!(f, "{}:{line}:{column}: {message}", path.display())
            }
        }
    }
}

/// The queues of the file that `key` names, or that is its default where it is not set; empty when it is not there and need not be,
/// and when something is wrong.
pub(super) fn queues(key: &'static str, path: PathBuf, is_set: bool, required: bool, wrong: &mut Vec<Wrong>) -> Queues {
    let queues = match settled(&path, settled::pause) {
        Ok((_, Ok(Value::Object(queues)))) => queues,
        Err(error) if error.kind() == io::ErrorKind::NotFound && !required => serde_json::Map::new(),
        Err(error) => {
            let default = if is_set { "" } else { " (its default; the key is not set)" };
            wrong.push(Wrong::Unreadable { key, message: format!("{}{default} cannot be read: {error}", path.display()) });
            serde_json::Map::new()
        }
        Ok((bytes, parsed)) => {
            let text = String::from_utf8_lossy(&bytes);
            let source = Source { path: &path, text: &text };
            wrong.push(Wrong::Content(match parsed {
                Ok(_) => {
                    let help = "write { \"queue\": { \"compute-resource\": { } } }";
                    source.cite(0..0, format!("{key} is no object of queues"), help)
                }
                Err(error) => {
                    let line: usize = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
                    let at = line + error.column().saturating_sub(1);
                    let shown = error.to_string();
                    let what = shown.split(" at line ").next().unwrap_or_default();
                    source.cite(at..at + 1, format!("{key} is no JSON: {what}"), "repair the file")
                }
            }));
            serde_json::Map::new()
        }
    };
    Queues { path, queues }
}

/// The file's content and what it says. It is rewritten in place by `pcluster update-cluster` and by people with editors, and may be caught
/// half-way: empty, or ending early.
fn settled(path: &Path, pause: impl FnMut()) -> io::Result<(Vec<u8>, serde_json::Result<Value>)> {
    let read = || {
        let bytes = fs::read(path)?;
        let parsed = serde_json::from_slice(&bytes);
        Ok((bytes, parsed))
    };
    settled::settled(read, |read| matches!(read, Ok((_, Err(error))) if error.is_eof()), pause)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use super::*;

    const WHOLE: &str = "{\"apple\": {\"core\": {\"Api\": \"run-instances\"}}}";

    fn read(path: &Path) -> (usize, Vec<String>) {
        let mut wrong = Vec::new();
        let queues = queues("fleet_config_file", path.to_owned(), true, true, &mut wrong);
        (queues.queues.len(), wrong.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_file_that_is_being_rewritten_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fleet-config.json");
        for begun in ["", "{\"apple\": {", "{\"apple\": {\"core\": {\"Api\": \"run-\u{e9}"] {
            // Also cut in the middle of a character.
            fs::write(&path, &begun.as_bytes()[..begun.len().saturating_sub(1)]).unwrap();
            let mut pauses = 0;
            let (bytes, parsed) = settled(&path, || {
                pauses += 1;
                if pauses == 2 {
                    fs::write(&path, WHOLE).unwrap();
                }
            })
            .unwrap();
            assert_eq!((bytes, parsed.is_ok(), pauses), (WHOLE.as_bytes().to_vec(), true, 2), "{begun:?}");
            assert_eq!(read(&path), (1, Vec::new()), "{begun:?}");
        }
    }

    #[test]
    fn one_that_stays_cut_is_a_mistake_and_so_is_any_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fleet-config.json");
        for (bytes, part) in [
            (&b""[..], ":1:1: fleet_config_file is no JSON: EOF while parsing a value"),
            (b"{\n\"apple\": {", ":2:10: fleet_config_file is no JSON: EOF while parsing an object"),
            (b"{]", ":1:2: fleet_config_file is no JSON: "),
            (b"\"\xff\"", "fleet_config_file is no JSON: invalid unicode code point"),
            (b"[]", ":1:1: fleet_config_file is no object of queues"),
        ] {
            fs::write(&path, bytes).unwrap();
            let (queues, wrong) = read(&path);
            assert!(queues == 0 && wrong.len() == 1 && wrong[0].contains(part), "{part}: {wrong:?}");
        }
        fs::remove_file(&path).unwrap();
        assert!(read(&path).1[0].contains("cannot be read: No such file"));
    }
}
