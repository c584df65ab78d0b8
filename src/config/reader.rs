//! Walks a TOML document: sections and keys in, typed values out; whatever is wrong is noted with its place, a usable value is given
//! back, and the reading goes on. Knows no key by name: the keys that are asked for are the keys that exist.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::cite::{Mistake, Source};
use super::words::{choices, nearest};

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
        Section { reader: self, name, table, span, inherits: Cell::new(false), asked: RefCell::default(), bad: RefCell::default() }
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
            let header = self.source.text.lines().enumerate().any(|(at, line)| line.trim_start().starts_with('[') && lines.contains(&(at + 1)));
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
        "group" => "in [[group]]".to_owned(),
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
    /// The defaults are another section's values: the documentation says `[launch]`.
    pub(crate) inherits: Cell<bool>,
    asked: RefCell<BTreeSet<&'static str>>,
    bad: RefCell<BTreeSet<&'static str>>,
}

impl<'r, 't> Section<'r, 't> {
    /// The value as written, whatever its type; `default` is for the documentation.
    pub(crate) fn value(&self, key: &'static str, default: impl Into<String>) -> Option<&'r Value<'t>> {
        self.asked.borrow_mut().insert(key);
        self.reader.asked.borrow_mut().insert((self.name, key), default.into());
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

    /// Where a key is written.
    pub(crate) fn key_span(&self, key: &str) -> Option<Span> {
        self.table.and_then(|table| table.get_key_value(key)).map(|(key, _)| key.span())
    }

    /// Where a key's value is written.
    pub(crate) fn value_span(&self, key: &str) -> Option<Span> {
        self.table.and_then(|table| table.get(key)).map(Spanned::span)
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

    /// Notes that a key must be there.
    pub(crate) fn require(&self, key: &'static str, help: impl Into<String>) {
        self.bad.borrow_mut().insert(key);
        let place = if self.name.is_empty() { String::new() } else { format!(" {}", place(self.name)) };
        self.reader.missing(self.span.clone(), format!("{key} is missing{place}"), help);
    }

    /// Notes every key that is written and was not asked for.
    pub(crate) fn finish(&self) {
        let asked = self.asked.borrow();
        for (key, _) in self.table.into_iter().flat_map(DeTable::iter) {
            if !asked.contains(&**key.get_ref()) {
                self.reader.unknown.borrow_mut().push((self.name, key.get_ref().to_string(), key.span()));
            }
        }
    }

    /// Notes that a value has another type than it should.
    pub(crate) fn wrong_type(&self, key: &'static str, value: &Value<'t>, wanted: &str, help: impl Into<String>) {
        let found = match value.get_ref() {
            DeValue::Datetime(_) => "a date",
            DeValue::Integer(_) => "an integer",
            DeValue::Array(_) => "an array",
            DeValue::String(_) => "a string",
            DeValue::Float(_) => "a number",
            DeValue::Boolean(_) => "a boolean",
            DeValue::Table(_) => "a table",
        };
        self.mistake(key, value.span(), format!("{key} must be {wanted}, not {found}"), help);
    }

    /// A string that is not empty and holds no control characters.
    pub(crate) fn text(&self, key: &'static str, default: impl Into<String>, example: &str) -> Option<(String, Span)> {
        let value = self.value(key, default)?;
        self.text_of(key, value, example)
    }

    /// The same for a value at hand: an element of an array, or the value of a table.
    pub(crate) fn text_of(&self, key: &'static str, value: &Value<'t>, example: &str) -> Option<(String, Span)> {
        let DeValue::String(text) = value.get_ref() else {
            let help = match value.get_ref() {
                DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_) => {
                    let written = self.reader.source.text.get(value.span()).unwrap_or_default();
                    format!("put it in quotes: {written:?}")
                }
                _ => format!("write a string such as {example}"),
            };
            self.wrong_type(key, value, "a string", help);
            return None;
        };
        if text.trim().is_empty() {
            self.mistake(key, value.span(), format!("{key} is empty"), format!("write something like {example}"));
            return None;
        }
        if let Some(at) = text.find(char::is_control) {
            let at = self.reader.inside(&value.span(), at);
            self.mistake(key, at..at + 1, format!("{key} holds a control character"), "remove it; a value is one line of plain text");
            return None;
        }
        if text.trim().len() != text.len() {
            self.mistake(key, value.span(), format!("{key} begins or ends with a blank"), format!("write {:?}", text.trim()));
            return None;
        }
        Some((text.to_string(), value.span()))
    }

    /// A string that `check` accepts; it answers with a message about the value and what to write.
    pub(crate) fn checked(
        &self,
        key: &'static str,
        default: impl Into<String>,
        example: &str,
        check: impl Fn(&str) -> Result<(), (String, String)>,
    ) -> Option<String> {
        let (text, span) = self.text(key, default, example)?;
        match check(&text) {
            Ok(()) => Some(text),
            Err((message, help)) => {
                self.mistake(key, span, format!("{key} {message}"), help);
                None
            }
        }
    }

    /// An array of strings, each given once and accepted by `check`.
    pub(crate) fn texts(&self, key: &'static str, example: &str, check: impl Fn(&str) -> Result<(), (String, String)>) -> Vec<String> {
        let Some(value) = self.value(key, "[]") else { return Vec::new() };
        let DeValue::Array(array) = value.get_ref() else {
            let help = match value.get_ref() {
                DeValue::String(text) => format!("write {key} = [{text:?}]"),
                _ => format!("write something like {key} = [{example}]"),
            };
            self.wrong_type(key, value, "an array of strings", help);
            return Vec::new();
        };
        let mut texts: Vec<String> = Vec::new();
        for element in array.iter() {
            let Some((text, span)) = self.text_of(key, element, example) else { continue };
            if let Err((message, help)) = check(&text) {
                self.mistake(key, span, format!("{key}: {text:?} {message}"), help);
            } else if texts.contains(&text) {
                self.mistake(key, span, format!("{key} names {text:?} twice"), "keep one of them");
            } else {
                texts.push(text);
            }
        }
        texts
    }

    /// A path that does not depend on the current folder: slurmctld's calls start in one that nobody chose.
    pub(crate) fn absolute_path(&self, key: &'static str, default: Option<&str>, example: &str) -> Option<PathBuf> {
        let shown = default.map_or(NONE.to_owned(), |path| format!("{path:?}"));
        let text = self.checked(key, shown, example, |text| {
            if text.starts_with('/') {
                Ok(())
            } else if text.starts_with('~') {
                Err((format!("{text:?} begins with ~, but slurmctld gives its programs no HOME"), format!("write the whole path, such as {example}")))
            } else {
                Err((format!("{text:?} is not an absolute path"), format!("begin with /, such as {example}")))
            }
        });
        text.map(PathBuf::from).or_else(|| default.map(PathBuf::from))
    }

    /// One of several words.
    pub(crate) fn choice<T: Copy + PartialEq>(&self, key: &'static str, base: T, words: &[(&str, T)]) -> T {
        let default = words.iter().find(|(_, value)| *value == base).map_or("", |(word, _)| word);
        let Some(value) = self.value(key, self.shown(format!("{default:?}"))) else { return base };
        let all = || words.iter().map(|(word, _)| *word);
        let DeValue::String(text) = value.get_ref() else {
            self.wrong_type(key, value, "a string", format!("write {}", choices(all())));
            return base;
        };
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == &**text) {
            return *value;
        }
        let help = match nearest(text, all()) {
            Some(near) => format!("write {near:?}"),
            None => format!("write {}", choices(all())),
        };
        self.mistake(key, value.span(), format!("{key} is {text:?}; it must be {}", choices(all())), help);
        base
    }

    pub(crate) fn boolean(&self, key: &'static str, base: bool) -> bool {
        let Some(value) = self.value(key, self.shown(base.to_string())) else { return base };
        let DeValue::Boolean(boolean) = value.get_ref() else {
            self.wrong_type(key, value, "true or false", format!("write {key} = true or {key} = false, without quotes"));
            return base;
        };
        *boolean
    }

    /// A whole number within a range.
    pub(crate) fn integer(&self, key: &'static str, base: u64, range: RangeInclusive<u64>) -> u64 {
        let Some(value) = self.value(key, self.shown(base.to_string())) else { return base };
        let help = format!("write a number from {} to {}, such as {key} = {base}", range.start(), range.end());
        let DeValue::Integer(integer) = value.get_ref() else {
            self.wrong_type(key, value, "a whole number", help);
            return base;
        };
        match i128::from_str_radix(integer.as_str(), integer.radix()).ok().and_then(|number| u64::try_from(number).ok()) {
            Some(number) if range.contains(&number) => number,
            _ => {
                let side = if integer.as_str().starts_with('-') || number_below(integer.as_str(), integer.radix(), *range.start()) {
                    format!("at least {}", range.start())
                } else {
                    format!("at most {}", range.end())
                };
                self.mistake(key, value.span(), format!("{key} is {integer}; it must be {side}"), help);
                base
            }
        }
    }

    /// A number, with or without a decimal point, above `above` and at most `most`. `base` is for the documentation.
    pub(crate) fn number(&self, key: &'static str, base: Option<f64>, above: f64, most: f64) -> Option<f64> {
        let value = self.value(key, base.map_or(NONE.to_owned(), |base| format!("{base:?}")))?;
        let help = format!("write a number above {above} and up to {most}, such as {key} = {:?}", base.unwrap_or(1.5));
        let number: f64 = match value.get_ref() {
            DeValue::Float(float) => float.as_str().parse().unwrap_or(f64::NAN),
            DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str().parse().unwrap_or(f64::NAN),
            _ => {
                self.wrong_type(key, value, "a number", help);
                return None;
            }
        };
        if number > above && number <= most {
            return Some(number);
        }
        self.mistake(key, value.span(), format!("{key} is {number}; it must be above {above} and at most {most}"), help);
        None
    }

    /// A duration such as "30s", "5m" or "1h 30m", within a range.
    pub(crate) fn duration(&self, key: &'static str, base: Duration, range: RangeInclusive<Duration>) -> Duration {
        let example = format!("{:?}", show_duration(base));
        let Some(value) = self.value(key, self.shown(example.clone())) else { return base };
        let text = match value.get_ref() {
            DeValue::String(text) => text,
            DeValue::Integer(number) => {
                let help = if number.as_str().starts_with('-') {
                    off(key, &range, &example)
                } else {
                    format!("give the unit: \"{number}s\" for seconds, \"{number}m\" for minutes")
                };
                self.wrong_type(key, value, "a duration in quotes", help);
                return base;
            }
            _ => {
                self.wrong_type(key, value, "a duration in quotes", format!("write {key} = {example}"));
                return base;
            }
        };
        match humantime::parse_duration(text) {
            Ok(duration) if range.contains(&duration) => duration,
            Ok(duration) => {
                let (side, limit) =
                    if duration < *range.start() { ("at least", range.start()) } else { ("at most", range.end()) };
                self.mistake(
                    key,
                    value.span(),
                    format!("{key} is {text:?}; it must be {side} {}", show_duration(*limit)),
                    format!("write a duration from {} to {}", show_duration(*range.start()), show_duration(*range.end())),
                );
                base
            }
            Err(error) => {
                use humantime::DurationError as E;
                let span = value.span();
                let (place, why) = match error {
                    E::UnknownUnit { unit, .. } if unit.is_empty() => (span, "has no unit".to_owned()),
                    E::UnknownUnit { start, end, unit, .. } => {
                        (self.reader.inside(&span, start)..self.reader.inside(&span, end), format!("has the unknown unit {unit:?}"))
                    }
                    E::InvalidCharacter(at) | E::NumberExpected(at) => {
                        let at = self.reader.inside(&span, at);
                        (at..at + 1, "is no duration".to_owned())
                    }
                    E::NumberOverflow => (span, "is too large or too fine".to_owned()),
                    E::Empty => (span, "is empty".to_owned()),
                };
                let help = if text.trim_start().starts_with('-') {
                    off(key, &range, &example)
                } else {
                    format!("write a number and a unit (ms, s, m, h), such as {key} = {example}")
                };
                self.mistake(key, place, format!("{key} {text:?} {why}"), help);
                base
            }
        }
    }

    fn shown(&self, default: String) -> String {
        if self.inherits.get() { "as `[launch]`".to_owned() } else { default }
    }
}

/// Somebody wrote -1 to switch a time off (C04).
fn off(key: &str, range: &RangeInclusive<Duration>, example: &str) -> String {
    if range.start().is_zero() {
        format!("a duration cannot be negative; to switch it off write {key} = \"0s\"")
    } else {
        format!("a duration cannot be negative; write something like {key} = {example}")
    }
}

fn number_below(digits: &str, radix: u32, least: u64) -> bool {
    i128::from_str_radix(digits, radix).is_ok_and(|number| number < i128::from(least))
}

/// The shortest way to write it: whole hours, minutes, seconds or milliseconds.
pub(crate) fn show_duration(duration: Duration) -> String {
    let (secs, millis) = (duration.as_secs(), duration.subsec_millis());
    if millis != 0 {
        format!("{}ms", duration.as_millis())
    } else if secs != 0 && secs.is_multiple_of(3600) {
        format!("{}h", secs / 3600)
    } else if secs != 0 && secs.is_multiple_of(60) {
        format!("{}m", secs / 60)
    } else {
        format!("{secs}s")
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

    #[test]
    fn durations_are_shown_as_they_are_written() {
        for (millis, text) in [(0, "0s"), (250, "250ms"), (100_000, "100s"), (90_000, "90s"), (600_000, "10m"), (7_200_000, "2h")] {
            assert_eq!(show_duration(Duration::from_millis(millis)), text);
            assert_eq!(humantime::parse_duration(text), Ok(Duration::from_millis(millis)));
        }
    }
}
