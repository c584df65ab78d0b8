//! The keys of one section of an INI file, with types: text in, values out, every mistake noted with file, line, section and key.
//! Unknown keys are nobody's mistake here; a section of our own asks for them.

use std::cell::RefCell;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::ini::{self, Found, Ini, Span};
use crate::config::checks::Complaint;
use crate::config::cite::{Mistake, Source};
use crate::config::words::nearest;

/// One file that is being read.
#[derive(Debug)]
pub(crate) struct File<'t> {
    pub(crate) source: Source<'t>,
    pub(crate) ini: Ini,
    mistakes: RefCell<Vec<(Span, Mistake)>>,
}

impl<'t> File<'t> {
    pub(crate) fn new(path: &'t Path, text: &'t str) -> Self {
        let (ini, problems) = ini::parse(text);
        let file = Self { source: Source { path, text }, ini, mistakes: RefCell::default() };
        for problem in problems {
            file.mistake(problem.span, problem.message, problem.help);
        }
        file
    }

    pub(crate) fn section(&self, name: &'static str) -> Keys<'_> {
        Keys { file: self, name }
    }

    pub(crate) fn mistake(&self, span: Span, message: impl Into<String>, help: impl Into<String>) {
        let mistake = self.source.cite(span.clone(), message, help);
        self.mistakes.borrow_mut().push((span, mistake));
    }

    /// `file:line:column: message`, for the log.
    pub(crate) fn warning(&self, span: Span, message: &str) -> String {
        let place = self.source.cite(span, message, "");
        format!("{}:{}:{}: {message}", place.path.display(), place.line, place.column)
    }

    /// All mistakes in the order of the file.
    pub(crate) fn finish(self) -> Vec<Mistake> {
        let mut all = self.mistakes.into_inner();
        all.sort_by_key(|(span, _)| span.start);
        all.into_iter().map(|(_, mistake)| mistake).collect()
    }
}

/// One section.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keys<'f> {
    file: &'f File<'f>,
    name: &'static str,
}

impl<'f> Keys<'f> {
    pub(crate) fn file(&self) -> &'f File<'f> {
        self.file
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Is the section in the file?
    pub(crate) fn is_written(&self) -> bool {
        self.file.ini.has_section(self.name)
    }
}

impl Keys<'_> {
    /// The value, even if it is empty.
    fn found(&self, key: &str) -> Option<Found> {
        match self.file.ini.get(self.name, key)? {
            Ok(found) => Some(found),
            Err(problem) => {
                self.file.mistake(problem.span, problem.message, problem.help);
                None
            }
        }
    }

    /// Notes what is wrong with a key; `message` goes behind its name.
    pub(crate) fn mistake(&self, key: &str, span: Span, message: impl Display, help: impl Into<String>) {
        self.file.mistake(span, format!("[{}] {key} {message}", self.name), help);
    }

    /// Where a key stands, or its section's header.
    pub(crate) fn place(&self, key: &str) -> Span {
        self.file.ini.key_span(self.name, key).unwrap_or_else(|| self.file.ini.header(self.name))
    }

    /// Is there a value that is not empty?
    pub(crate) fn is_set(&self, key: &str) -> bool {
        matches!(self.file.ini.get(self.name, key), Some(Ok(found)) if !found.text.is_empty())
    }

    /// A checked value; an empty one counts as absent.
    pub(crate) fn text(&self, key: &str, check: impl Fn(&str) -> Result<(), Complaint>) -> Option<String> {
        let found = self.found(key).filter(|found| !found.text.is_empty())?;
        match check(&found.text) {
            Ok(()) => Some(found.text),
            Err((message, help)) => {
                self.mistake(key, found.span, message, help);
                None
            }
        }
    }

    /// A checked value that must be there; empty after a mistake.
    pub(crate) fn required(&self, key: &str, example: &str, check: impl Fn(&str) -> Result<(), Complaint>) -> String {
        match self.file.ini.get(self.name, key) {
            None => self.mistake(key, self.file.ini.header(self.name), "is missing", format!("add {key} = {example}")),
            Some(Ok(found)) if found.text.is_empty() => {
                self.mistake(key, found.span, "is empty", format!("write {key} = {example}"));
            }
            Some(_) => {}
        }
        self.text(key, check).unwrap_or_default()
    }

    /// A whole path.
    pub(crate) fn path(&self, key: &str) -> Option<PathBuf> {
        self.text(key, absolute).map(PathBuf::from)
    }

    /// A whole path that has a usual place.
    pub(crate) fn path_or(&self, key: &str, usual: &str) -> PathBuf {
        if let Some(Ok(found)) = self.file.ini.get(self.name, key)
            && found.text.is_empty()
        {
            self.mistake(key, found.span, "is empty", format!("write {key} = {usual}, or drop the line"));
        }
        self.path(key).unwrap_or_else(|| PathBuf::from(usual))
    }

    /// A whole number as Python's `int` reads it, within a range.
    pub(crate) fn integer(&self, key: &str, default: u64, range: RangeInclusive<u64>) -> u64 {
        let Some(found) = self.found(key) else { return default };
        let (least, most) = (range.start(), range.end());
        match int(&found.text) {
            Some(number) if u64::try_from(number).is_ok_and(|number| range.contains(&number)) => {
                u64::try_from(number).unwrap_or(default)
            }
            Some(number) => {
                let message = format!("is {number}; it must be from {least} to {most}");
                self.mistake(key, found.span, message, format!("write something like {key} = {default}"));
                default
            }
            None => {
                let message = format!("is {:?}, which is no whole number", found.text);
                self.mistake(key, found.span, message, format!("write something like {key} = {default}"));
                default
            }
        }
    }

    pub(crate) fn seconds(&self, key: &str, default: u64, range: RangeInclusive<u64>) -> Duration {
        Duration::from_secs(self.integer(key, default, range))
    }

    /// A whole number of the package's that is `least` or more. What is above `most` is cut to it, with a warning that ends in `why`: the
    /// package takes it, so it must not stop the cluster.
    pub(crate) fn capped(
        &self,
        key: &str,
        default: u64,
        range: RangeInclusive<u64>,
        why: &str,
        warnings: &mut Vec<String>,
    ) -> u64 {
        let most = *range.end();
        if let Some(Ok(found)) = self.file.ini.get(self.name, key)
            && let Some(number) = int(&found.text)
            && u64::try_from(number).is_ok_and(|number| number > most)
        {
            warnings.push(format!("[{}] {key} {} is cut to {most}: {why}", self.name, found.text));
            return most;
        }
        self.integer(key, default, range)
    }

    /// Is there a whole number below 0?
    pub(crate) fn is_negative(&self, key: &str) -> bool {
        matches!(self.file.ini.get(self.name, key), Some(Ok(found)) if int(&found.text).is_some_and(|number| number < 0))
    }

    /// A number as Python's `float` reads it.
    pub(crate) fn float(&self, key: &str, default: f64) -> f64 {
        let Some(found) = self.found(key) else { return default };
        float(&found.text).unwrap_or_else(|| {
            let message = format!("is {:?}, which is no number", found.text);
            self.mistake(key, found.span, message, format!("write something like {key} = {default}"));
            default
        })
    }

    /// One of ConfigParser's words for yes and no.
    pub(crate) fn boolean(&self, key: &str, default: bool) -> bool {
        let Some(found) = self.found(key) else { return default };
        match found.text.to_lowercase().as_str() {
            "1" | "yes" | "true" | "on" => true,
            "0" | "no" | "false" | "off" => false,
            _ => {
                self.mistake(key, found.span, format!("is {:?}, neither yes nor no", found.text), "write true or false");
                default
            }
        }
    }

    /// Notes every key of the section itself that is not among `known`: for a section that is ours alone.
    pub(crate) fn refuse_others(&self, known: &[&str]) {
        for (key, span) in self.file.ini.written(self.name).filter(|(key, _)| !known.contains(key)) {
            let help = match nearest(key, known.iter().copied()) {
                Some(near) => format!("write {near}"),
                None => format!("drop it; the keys in [{}] are: {}", self.name, known.join(", ")),
            };
            self.mistake(key, span, "is unknown", help);
        }
    }
}

/// `+3`, `1_000`: what Python's `int` takes. A number that is larger than ours can be counts as the largest, or smallest.
fn int(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let well_formed = digits.split('_').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
    let plain = text.strip_prefix('+').unwrap_or(text).replace('_', "");
    let endless = if text.starts_with('-') { i64::MIN } else { i64::MAX };
    // Well-formed digits fail for their number alone.
    well_formed.then(|| plain.parse().unwrap_or(endless))
}

/// `1_0.5`, `.5`, `1e3`, `inf`: what Python's `float` takes, but for `nan`, which is no length of time.
fn float(text: &str) -> Option<f64> {
    let is_digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
    let joined = text
        .char_indices()
        .filter(|(_, c)| *c == '_')
        .all(|(at, _)| is_digit(text[..at].chars().next_back()) && is_digit(text[at + 1..].chars().next()));
    let number: f64 = text.replace('_', "").parse().ok()?;
    (joined && !number.is_nan()).then_some(number)
}

/// slurmctld's programs run in a folder that nobody chose, so a path must be whole.
pub(crate) fn absolute(text: &str) -> Result<(), Complaint> {
    if text.starts_with('/') && !text.contains(['\n', '\0']) {
        return Ok(());
    }
    Err((format!("{text:?} is no absolute path"), "write the whole path, from /".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_as_python_writes_them() {
        for (text, number) in [("5", Some(5)), ("+5", Some(5)), ("-1", Some(-1)), ("1_000", Some(1000)), ("007", Some(7))] {
            assert_eq!(int(text), number, "{text}");
        }
        for (text, number) in [("99999999999999999999", i64::MAX), ("-99999999999999999999", i64::MIN)] {
            assert_eq!(int(text), Some(number), "{text}");
        }
        for text in ["", "+", "1.5", "0x10", "_1", "1_", "1__0", "five", "1 0", "--1"] {
            assert_eq!(int(text), None, "{text}");
        }
    }

    #[test]
    fn numbers_as_python_writes_them() {
        for (text, number) in
            [("420.5", 420.5), ("600", 600.0), ("-1", -1.0), ("1e3", 1000.0), (".5", 0.5), ("1_000.2_5", 1000.25), ("+7.", 7.0)]
        {
            assert_eq!(float(text), Some(number), "{text}");
        }
        assert_eq!(float("inf"), Some(f64::INFINITY));
        for text in ["", "nan", "soon", "1,5", "_1", "1_", "1_.5", "1__0", "0x10"] {
            assert_eq!(float(text), None, "{text}");
        }
    }

    #[test]
    fn words_for_yes_and_no_in_any_case() {
        for (word, expected) in
            [("1", true), ("Yes", true), ("TRUE", true), ("on", true), ("0", false), ("nO", false), ("OFF", false)]
        {
            let text = format!("[a]\nk = {word}\n");
            let file = File::new(Path::new("/c"), &text);
            assert_eq!(file.section("a").boolean("k", !expected), expected, "{word}");
            assert_eq!(file.finish(), []);
        }
    }
}
