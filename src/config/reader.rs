//! Walks a TOML document: sections and keys in, values with their places out (`values.rs` gives them types). Notes every mistake and
//! goes on. Knows no key by name: the keys that are asked for are the keys that exist.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::cite::{Mistake, Source};
use super::words::nearest;

/// A value as it stands in the file.
pub(crate) type Value<'t> = Spanned<DeValue<'t>>;

/// (section, key) → default, as the documentation writes it.
pub(crate) type Asked = BTreeMap<(&'static str, &'static str), String>;

/// How a required or absent value shows in the `default` column of the documentation.
pub(crate) const REQUIRED: &str = "required";
pub(crate) const NONE: &str = "none";
/// The same for a key that is a section: it has a table of its own there.
pub(crate) const SECTION: &str = "section";

/// A place in the file, bytes.
pub(crate) type Span = Range<usize>;

/// Collects what one reading of a file finds.
pub(crate) struct Reader<'t> {
    source: Source<'t>,
    mistakes: RefCell<Vec<(Span, Mistake)>>,
    /// Keys that are missing: no place in the file is wrong.
    missing: RefCell<Vec<(Span, Mistake)>>,
    unknown: RefCell<Vec<(&'static str, String, Span)>>,
    asked: RefCell<Asked>,
}

impl<'t> Reader<'t> {
    pub(crate) fn new(source: Source<'t>) -> Self {
        Self {
            source,
            mistakes: RefCell::default(),
            missing: RefCell::default(),
            unknown: RefCell::default(),
            asked: RefCell::default(),
        }
    }

    /// Notes a mistake at a place.
    pub(crate) fn mistake(&self, span: Span, message: impl Into<String>, help: impl Into<String>) {
        let mistake = self.source.cite(span.clone(), message, help);
        self.mistakes.borrow_mut().push((span, mistake));
    }

    /// Notes that something is not there; `span` is where it was looked for.
    pub(crate) fn missing(&self, span: Span, message: impl Into<String>, help: impl Into<String>) {
        let mistake = self.source.cite(span.clone(), message, help);
        self.missing.borrow_mut().push((span, mistake));
    }

    /// The line of a place, from 1.
    pub(crate) fn line(&self, span: &Span) -> usize {
        self.source.cite(span.clone(), "", "").line
    }

    /// A section that may be absent; every key of an absent section is absent.
    pub(crate) fn section<'r>(&'r self, name: &'static str, table: Option<&'r DeTable<'t>>, span: Span) -> Section<'r, 't> {
        Section { reader: self, name, table, span, inherits: Cell::new(None), asked: RefCell::default(), bad: RefCell::default() }
    }

    /// Where byte `offset` of the string value at `span` stands in the file: behind the quote, escapes counted as written.
    pub(crate) fn inside(&self, span: &Span, offset: usize) -> usize {
        let Some(raw) = self.source.text.get(span.clone()) else { return span.start };
        let last = span.end.saturating_sub(1).max(span.start);
        (span.start + raw_offset(raw, offset)).min(last)
    }

    /// All mistakes in the order of the file. `syntax` are those of the TOML parser.
    ///
    /// After a syntax error the rest is read as well as it can be: what is missing may be hidden by the error, and a broken header
    /// moves keys into the wrong section, so neither is reported then.
    pub(crate) fn finish(self, syntax: Vec<(Span, Mistake)>) -> (Vec<Mistake>, Asked) {
        let asked = self.asked.into_inner();
        let mut all = self.mistakes.into_inner();
        for (section, key, span) in self.unknown.into_inner() {
            let (message, help) = unknown(section, &key, &asked);
            let mistake = self.source.cite(span.clone(), message, help);
            all.push((span, mistake));
        }
        if syntax.is_empty() {
            all.extend(self.missing.into_inner());
        } else {
            let lines: BTreeSet<usize> = syntax.iter().map(|(_, mistake)| mistake.line).collect();
            let header = self
                .source
                .text
                .lines()
                .enumerate()
                .any(|(at, line)| line.trim_start().starts_with('[') && lines.contains(&(at + 1)));
            all.retain(|(_, mistake)| !header && !lines.contains(&mistake.line));
            all.extend(syntax);
        }
        all.sort_by_key(|(span, _)| span.start);
        (all.into_iter().map(|(_, mistake)| mistake).collect(), asked)
    }
}

/// What to say about a key that nobody asked for.
fn unknown(section: &'static str, key: &str, asked: &Asked) -> (String, String) {
    let here = || asked.keys().filter(|(name, _)| *name == section).map(|(_, key)| *key);
    let message = format!("unknown key {key:?} {}", place(section));
    let elsewhere: Vec<&str> = asked.keys().filter(|(_, known)| *known == key).map(|(name, _)| *name).collect();
    let help = if !elsewhere.is_empty() {
        let places: Vec<String> = elsewhere.into_iter().map(place).collect();
        format!("{key} belongs {}", places.join(" or "))
    } else if let Some(near) = nearest(key, here()) {
        format!("write {near}")
    } else if let Some((name, near)) = asked.keys().find(|(_, known)| nearest(key, [*known]).is_some()) {
        format!("write {near} {}", place(name))
    } else {
        format!("drop it; the keys {} are: {}", place(section), here().collect::<Vec<_>>().join(", "))
    };
    (message, help)
}

/// `in [aws]`
fn place(section: &str) -> String {
    match section {
        "" => "at the top of the file".to_owned(),
        "group" | "group.fallback" => format!("in [[{section}]]"),
        name => format!("in [{name}]"),
    }
}

/// Byte offset in the raw text (quotes included) of byte `offset` of the decoded string.
fn raw_offset(raw: &str, offset: usize) -> usize {
    let multi = raw.starts_with("\"\"\"") || raw.starts_with("'''");
    let mut at = if multi { 3 } else { 1 };
    if multi {
        // A line break right behind the opening quotes is not part of the string.
        at += raw[at..].strip_prefix("\r\n").map_or_else(|| usize::from(raw[at..].starts_with('\n')), |_| 2);
    }
    let escapes = raw.starts_with('"');
    let mut decoded = 0;
    while decoded < offset {
        let Some(c) = raw[at..].chars().next() else { break };
        if !(escapes && c == '\\') {
            at += c.len_utf8();
            decoded += c.len_utf8();
            continue;
        }
        let digits = match raw[at + 1..].chars().next() {
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some('\n' | '\r' | ' ' | '\t') => {
                // A backslash at the end of a line swallows all blanks up to the next word.
                let rest = &raw[at + 1..];
                at += 1 + rest.len() - rest.trim_start_matches(['\n', '\r', ' ', '\t']).len();
                continue;
            }
            _ => 0,
        };
        let code = raw.get(at + 2..at + 2 + digits).and_then(|hex| u32::from_str_radix(hex, 16).ok());
        decoded += code.and_then(char::from_u32).map_or(1, char::len_utf8);
        at = (at + 2 + digits).min(raw.len());
    }
    at
}

/// One table of the file. Every getter notes its key as known, with its default.
pub(crate) struct Section<'r, 't> {
    reader: &'r Reader<'t>,
    name: &'static str,
    table: Option<&'r DeTable<'t>>,
    /// Its header, or where it would be.
    pub(crate) span: Span,
    /// What the documentation says instead of defaults where another section's values are the defaults.
    pub(crate) inherits: Cell<Option<&'static str>>,
    asked: RefCell<BTreeSet<&'static str>>,
    bad: RefCell<BTreeSet<&'static str>>,
}

impl<'r, 't> Section<'r, 't> {
    /// The value as written, whatever its type; `default` is for the documentation.
    pub(crate) fn value(&self, key: &'static str, default: impl Into<String>) -> Option<&'r Value<'t>> {
        self.asked.borrow_mut().insert(key);
        let default = self.inherits.get().map_or_else(|| default.into(), str::to_owned);
        self.reader.asked.borrow_mut().insert((self.name, key), default);
        self.table.and_then(|table| table.get(key))
    }

    /// A sub-table under its own header; after another type it counts as absent.
    pub(crate) fn table(&self, key: &'static str) -> Section<'r, 't> {
        let table = self.value(key, SECTION).and_then(|value| match value.get_ref() {
            DeValue::Table(table) => Some((table, value.span())),
            DeValue::Array(_) => {
                self.wrong_type(key, value, "one table", format!("write [{key}] with single brackets, once"));
                None
            }
            _ => {
                self.wrong_type(key, value, "a table", format!("write [{key}] on a line of its own, and its keys below"));
                None
            }
        });
        let (table, span) = table.map_or((None, self.span.clone()), |(table, span)| (Some(table), span));
        self.reader.section(key, table, span)
    }

    /// Is it in the file?
    pub(crate) fn is_written(&self) -> bool {
        self.table.is_some()
    }

    /// Is there nothing in it?
    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_none_or(DeTable::is_empty)
    }

    /// Where a key is written.
    pub(crate) fn key_span(&self, key: &str) -> Option<Span> {
        self.table.and_then(|table| table.get_key_value(key)).map(|(key, _)| key.span())
    }

    /// Where a key's value is written.
    pub(crate) fn value_span(&self, key: &str) -> Option<Span> {
        self.table.and_then(|table| table.get(key)).map(Spanned::span)
    }

    /// A place, as it stands in the file.
    pub(crate) fn written(&self, span: &Span) -> &'t str {
        self.reader.source.text.get(span.clone()).unwrap_or_default()
    }

    /// Where byte `offset` of the string value at `span` stands in the file.
    pub(crate) fn inside(&self, span: &Span, offset: usize) -> usize {
        self.reader.inside(span, offset)
    }

    /// Notes a mistake about a key's value.
    pub(crate) fn mistake(&self, key: &'static str, span: Span, message: impl Into<String>, help: impl Into<String>) {
        self.bad.borrow_mut().insert(key);
        self.reader.mistake(span, message, help);
    }

    /// Has a mistake been noted about this key's value?
    pub(crate) fn is_bad(&self, key: &str) -> bool {
        self.bad.borrow().contains(key)
    }

    /// Has a mistake been noted about any key's value, or is there a key that nobody asked for?
    pub(crate) fn has_mistakes(&self) -> bool {
        !self.bad.borrow().is_empty() || self.unknown().next().is_some()
    }

    /// Keys that are written and were not asked for.
    fn unknown(&self) -> impl Iterator<Item = &'r Spanned<DeString<'t>>> {
        let asked = self.asked.borrow().clone();
        self.table.into_iter().flat_map(DeTable::iter).map(|(key, _)| key).filter(move |key| !asked.contains(&**key.get_ref()))
    }

    /// Notes that a key must be there.
    pub(crate) fn require(&self, key: &'static str, help: impl Into<String>) {
        self.bad.borrow_mut().insert(key);
        let place = if self.name.is_empty() { String::new() } else { format!(" {}", place(self.name)) };
        self.reader.missing(self.span.clone(), format!("{key} is missing{place}"), help);
    }

    /// Notes every key that is written and was not asked for.
    pub(crate) fn finish(&self) {
        let unknown = self.unknown().map(|key| (self.name, key.get_ref().to_string(), key.span()));
        self.reader.unknown.borrow_mut().extend(unknown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_inside_strings_count_what_is_written() {
        for (raw, offset, expected) in [
            ("\"abc\"", 0, 1),
            ("\"abc\"", 2, 3),
            ("'a\\b'", 2, 3),
            (r#""a\tb""#, 2, 4),
            (r#""\u00e9b""#, 2, 7),
            (r#""\x41b""#, 1, 5),
            ("\"\"\"\nabc\"\"\"", 1, 5),
            ("'''\r\nabc'''", 0, 5),
            ("\"\"\"a\\\n   b\"\"\"", 1, 4),
            ("\"abc\"", 99, 5),
        ] {
            assert_eq!(raw_offset(raw, offset), expected, "{raw} {offset}");
        }
    }
}
