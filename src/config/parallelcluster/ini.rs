//! Python's ConfigParser dialect, as the Python package reads its files: a text in, sections with keys, values and places out, and
//! *all* its mistakes (docs/decisions/ini-dialect.md). Knows no key by name.
//!
//! `=` or `:` between key and value; keys in any case; `#` and `;` begin a comment at the begin of a line only; deeper indented lines
//! go on with the value; `[DEFAULT]` is inherited by every section; `%(key)s` stands for another key's value and `%%` for a `%`; no
//! section and no key twice (aws-facts B.2).

use std::collections::BTreeMap;
use std::ops::Range;

/// A place in the file, bytes.
pub(crate) type Span = Range<usize>;

/// The section that the others inherit.
const DEFAULTS: &str = "DEFAULT";
/// `%(a)s` within `%(b)s` within …: ConfigParser gives up below this.
const MAX_DEPTH: usize = 10;

/// One file.
#[derive(Debug, Default)]
pub(crate) struct Ini {
    defaults: BTreeMap<String, Entry>,
    sections: BTreeMap<String, Section>,
}

#[derive(Debug, Default)]
struct Section {
    header: Span,
    keys: BTreeMap<String, Entry>,
}

/// A key as written.
#[derive(Debug, Default)]
struct Entry {
    /// The lines of the value, not yet interpolated.
    raw: String,
    key: Span,
    /// The value's first line.
    value: Span,
}

/// A value with `%` resolved, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) text: String,
    /// The value, or the key when the value is empty.
    pub(crate) span: Span,
}

/// What is wrong at a place, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) span: Span,
    pub(crate) message: String,
    pub(crate) help: String,
}

impl Ini {
    pub(crate) fn has_section(&self, section: &str) -> bool {
        self.sections.contains_key(section)
    }

    pub(crate) fn sections(&self) -> impl Iterator<Item = &str> {
        self.sections.keys().map(String::as_str)
    }

    /// Where a section's header is; the begin of the file for one that is not there.
    pub(crate) fn header(&self, section: &str) -> Span {
        self.sections.get(section).map_or(0..0, |section| section.header.clone())
    }

    /// The keys that are written in a section itself, with their places.
    pub(crate) fn written(&self, section: &str) -> impl Iterator<Item = (&str, Span)> {
        let keys = self.sections.get(section).into_iter().flat_map(|section| &section.keys);
        keys.map(|(key, entry)| (key.as_str(), entry.key.clone()))
    }

    /// Where a key is written, in the section or in `[DEFAULT]`.
    pub(crate) fn key_span(&self, section: &str, key: &str) -> Option<Span> {
        self.entry(section, key).map(|entry| entry.key.clone())
    }

    /// The value of a key (lower case), interpolated; `None` when neither the section nor `[DEFAULT]` has it.
    pub(crate) fn get(&self, section: &str, key: &str) -> Option<Result<Found, Problem>> {
        let entry = self.entry(section, key)?;
        let span = if entry.value.is_empty() { entry.key.clone() } else { entry.value.clone() };
        let mut text = String::with_capacity(entry.raw.len());
        Some(match self.interpolate(section, &entry.raw, &mut text, 1) {
            Ok(()) => Ok(Found { text, span }),
            Err((message, help)) => Err(Problem { span, message: format!("[{section}] {key} {message}"), help }),
        })
    }

    /// The value as written: for keys in which `%` is meant otherwise.
    fn entry(&self, section: &str, key: &str) -> Option<&Entry> {
        self.sections.get(section)?.keys.get(key).or_else(|| self.defaults.get(key))
    }

    fn interpolate(&self, section: &str, mut rest: &str, text: &mut String, depth: usize) -> Result<(), (String, String)> {
        if depth > MAX_DEPTH {
            return Err((
                format!("refers to itself, or through more than {MAX_DEPTH} other keys"),
                "write the value itself".to_owned(),
            ));
        }
        while let Some((before, behind)) = rest.split_once('%') {
            text.push_str(before);
            if let Some(behind) = behind.strip_prefix('%') {
                text.push('%');
                rest = behind;
                continue;
            }
            let Some(open) = behind.strip_prefix('(') else {
                return Err(("has a single %".to_owned(), "write %% for a percent sign".to_owned()));
            };
            let Some((name, behind)) = open.split_once(')').and_then(|(name, rest)| Some((name, rest.strip_prefix('s')?))) else {
                return Err(("has a %( without its )s".to_owned(), "write %(key)s, or %% for a percent sign".to_owned()));
            };
            if name.is_empty() {
                return Err(("has %()s, which names no key".to_owned(), "write %(key)s".to_owned()));
            }
            let Some(entry) = self.entry(section, &name.to_lowercase()) else {
                return Err((
                    format!("refers to {name:?}, which is neither in [{section}] nor in [{DEFAULTS}]"),
                    "add that key, or write the value itself".to_owned(),
                ));
            };
            if entry.raw.contains('%') {
                self.interpolate(section, &entry.raw, text, depth + 1)?;
            } else {
                text.push_str(&entry.raw);
            }
            rest = behind;
        }
        text.push_str(rest);
        Ok(())
    }
}

/// Where the next line belongs.
#[derive(Default)]
struct Cursor {
    /// Of the open section; `None` before the first header.
    section: Option<String>,
    /// The key that deeper indented lines go on with.
    key: Option<String>,
    /// Blanks before the last key or header.
    indent: usize,
}

/// Reads a text, as far as it can be read, with every mistake.
pub(crate) fn parse(text: &str) -> (Ini, Vec<Problem>) {
    let (mut ini, mut problems, mut at, mut headless) = (Ini::default(), Vec::new(), Cursor::default(), false);
    for (start, line) in lines(text) {
        let value = line.trim_matches(is_blank);
        if value.starts_with(['#', ';']) {
            continue;
        }
        if value.is_empty() {
            // Blank lines inside a value stay; those at its end are cut below.
            if let Some(entry) = ini.current(&at) {
                entry.raw.push('\n');
            }
            continue;
        }
        let indent = line.chars().take_while(|c| is_blank(*c)).count();
        let begin = start + (line.len() - line.trim_start_matches(is_blank).len());
        let span = begin..begin + value.len();
        if indent > at.indent
            && let Some(entry) = ini.current(&at)
        {
            entry.raw.push('\n');
            entry.raw.push_str(value);
            continue;
        }
        at.indent = indent;
        if let Some(name) = header(value) {
            open(&mut ini, &mut problems, name, &span);
            at.section = Some(name.to_owned());
            at.key = None;
        } else if at.section.is_none() {
            // Said once: the rest of the head is as lost.
            if !headless {
                problems.push(no_header(span, value));
            }
            headless = true;
        } else {
            key_line(&mut ini, &mut problems, &mut at, value, span);
        }
    }
    for entry in ini.sections.values_mut().flat_map(|section| section.keys.values_mut()).chain(ini.defaults.values_mut()) {
        entry.raw.truncate(entry.raw.trim_end_matches(is_blank).len());
    }
    (ini, problems)
}

impl Ini {
    fn keys(&mut self, section: &str) -> Option<&mut BTreeMap<String, Entry>> {
        if section == DEFAULTS { Some(&mut self.defaults) } else { self.sections.get_mut(section).map(|found| &mut found.keys) }
    }

    /// The value that a continuation line belongs to.
    fn current(&mut self, at: &Cursor) -> Option<&mut Entry> {
        self.keys(at.section.as_deref()?)?.get_mut(at.key.as_deref()?)
    }
}

fn open(ini: &mut Ini, problems: &mut Vec<Problem>, name: &str, span: &Span) {
    if name == DEFAULTS {
        return; // may come in parts
    }
    if ini.has_section(name) {
        problems.push(Problem {
            span: span.clone(),
            message: format!("section [{name}] is there twice"),
            help: "keep one of them".to_owned(),
        });
        return;
    }
    ini.sections.insert(name.to_owned(), Section { header: span.clone(), keys: BTreeMap::new() });
}

/// `value` is a line of an open section that is neither header nor continuation.
fn key_line(ini: &mut Ini, problems: &mut Vec<Problem>, at: &mut Cursor, value: &str, span: Span) {
    let Some(section) = at.section.clone() else { return };
    let Some(cut) = value.find(['=', ':']) else {
        problems.push(Problem {
            span,
            message: format!("this line of [{section}] has no = and goes on with no value"),
            help: "write key = value, or indent the line deeper than the key it belongs to".to_owned(),
        });
        return;
    };
    let (name, behind) = (value[..cut].trim_end_matches(is_blank), &value[cut + 1..]);
    let key_span = span.start..span.start + name.len();
    if name.is_empty() {
        problems.push(Problem {
            span,
            message: format!("this line of [{section}] has no key"),
            help: "write key = value".to_owned(),
        });
        at.key = None;
        return;
    }
    let key = name.to_lowercase();
    let raw = behind.trim_matches(is_blank);
    let begin = span.end - behind.trim_start_matches(is_blank).len();
    let entry = Entry { raw: raw.to_owned(), key: key_span.clone(), value: begin..begin + raw.len() };
    let Some(keys) = ini.keys(&section) else { return };
    if keys.contains_key(&key) {
        problems.push(Problem {
            span: key_span,
            message: format!("[{section}] {key} is there twice"),
            help: "keep one of them".to_owned(),
        });
    }
    keys.insert(key.clone(), entry);
    at.key = Some(key);
}

/// `[name]`; what stands behind the last bracket is not looked at.
fn header(value: &str) -> Option<&str> {
    let name = &value.strip_prefix('[')?[..value.rfind(']')?.checked_sub(1)?];
    (!name.is_empty()).then_some(name)
}

fn no_header(span: Span, value: &str) -> Problem {
    let help = if value.starts_with('\u{feff}') {
        "save the file without a byte order mark"
    } else {
        "begin the file with its section, such as [slurm_resume]"
    };
    Problem { span, message: "this stands before the first [section]".to_owned(), help: help.to_owned() }
}

/// Each line without its end, and where it begins; a lone carriage return ends a line too.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let rest = text.get(start..).filter(|rest| !rest.is_empty())?;
        let (line, end) = match rest.find(['\n', '\r']) {
            Some(at) => (&rest[..at], at + if rest[at..].starts_with("\r\n") { 2 } else { 1 }),
            None => (rest, rest.len()),
        };
        let begin = start;
        start += end;
        Some((begin, line))
    })
}

/// What Python's `str.strip` takes away: Unicode's blanks and four separators.
fn is_blank(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Texts and what Python made of them: sections with values, or that it refused the file or the value.
    #[test]
    fn as_python_reads_it() {
        let cases: Value =
            serde_json::from_str(include_str!("../../../tests/data/parallelcluster/ini-cases.json")).expect("JSON");
        let cases = cases["cases"].as_array().expect("cases");
        assert!(cases.len() > 80, "{}", cases.len());
        for case in cases {
            let text = case["text"].as_str().expect("text");
            let (ini, problems) = parse(text);
            if let Some(error) = case["error"].as_str() {
                assert!(!problems.is_empty(), "Python says {error}: {text:?}");
                continue;
            }
            assert_eq!(problems, [], "{text:?}");
            let sections = case["sections"].as_object().expect("sections");
            assert_eq!(ini.sections.keys().collect::<Vec<_>>(), sections.keys().collect::<Vec<_>>(), "{text:?}");
            for (section, keys) in sections {
                let expected = keys.as_object().expect("keys");
                let mut names: Vec<&String> = ini.sections[section].keys.keys().chain(ini.defaults.keys()).collect();
                names.sort();
                names.dedup();
                assert_eq!(names, expected.keys().collect::<Vec<_>>(), "{text:?}");
                for (key, value) in expected {
                    let got = ini.get(section, key).expect("it is there");
                    match value {
                        Value::String(value) => {
                            assert_eq!(got.map(|found| found.text).as_deref(), Ok(value.as_str()), "{text:?}")
                        }
                        error => assert!(got.is_err(), "Python says {error}: {text:?} {got:?}"),
                    }
                }
            }
        }
    }

    #[test]
    fn values_know_their_places() {
        let text = "# head\r\n[a]\r\n  Key : one\r\n     two\r\nempty =\r\n";
        let (ini, problems) = parse(text);
        assert_eq!(problems, []);
        let place = |span: Span| &text[span];
        let found = ini.get("a", "key").expect("there").expect("fine");
        assert_eq!((found.text.as_str(), place(found.span)), ("one\ntwo", "one"));
        assert_eq!(ini.key_span("a", "key").map(place), Some("Key"));
        assert_eq!(place(ini.header("a")), "[a]");
        assert_eq!(ini.get("a", "empty").expect("there").expect("fine").span, ini.key_span("a", "empty").expect("there"));
    }

    #[test]
    fn every_mistake_is_found() {
        let text = "lost = 1\n[a]\nx = 1\nx = 2\nno key value\n= 3\n[b]\n[a]\ny: 4\n";
        let (ini, problems) = parse(text);
        let places: Vec<(&str, &str)> = problems.iter().map(|p| (&text[p.span.clone()], p.message.as_str())).collect();
        assert_eq!(
            places,
            [
                ("lost = 1", "this stands before the first [section]"),
                ("x", "[a] x is there twice"),
                ("no key value", "this line of [a] has no = and goes on with no value"),
                ("= 3", "this line of [a] has no key"),
                ("[a]", "section [a] is there twice"),
            ]
        );
        assert_eq!(ini.get("a", "y").expect("there").expect("fine").text, "4");
    }

    #[test]
    fn a_wrong_reference_names_key_and_section() {
        let (ini, _) = parse("[a]\nx = %(y)s\nz = 100%\nw = %(w)s\nv = %(x\n");
        let message = |key| ini.get("a", key).expect("there").expect_err("wrong").message;
        assert_eq!(message("x"), "[a] x refers to \"y\", which is neither in [a] nor in [DEFAULT]");
        assert_eq!(message("z"), "[a] z has a single %");
        assert_eq!(message("w"), "[a] w refers to itself, or through more than 10 other keys");
        assert_eq!(message("v"), "[a] v has a %( without its )s");
    }

    proptest::proptest! {
        /// Whatever a file holds: every place lies in it, and nothing panics.
        #[test]
        fn any_text_can_be_read(text in "([\\[\\]a-c=:%()s#; \\t\\r\\n\\\\é\u{feff}\u{a0}]|\\[a\\]\n|%\\(a\\)s){0,60}") {
            let (ini, problems) = parse(&text);
            for problem in problems {
                assert!(text.get(problem.span.clone()).is_some_and(|place| !place.is_empty()), "{problem:?}");
            }
            for (section, found) in &ini.sections {
                assert!(text.get(found.header.clone()).is_some());
                for key in found.keys.keys().chain(ini.defaults.keys()) {
                    let span = match ini.get(section, key).expect("it is there") {
                        Ok(found) => found.span,
                        Err(problem) => problem.span,
                    };
                    assert!(text.get(span).is_some(), "{section} {key}");
                }
            }
        }
    }
}
