//! Points at the place in a text: a byte span in, `file:line:col: message` with the line and a caret out.
//!
//! Never judges what is written there.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Characters of a line that are shown at most: a host list can be 100 KB long.
const MAX_SHOWN: usize = 120;
/// Of those, the characters before the caret.
const SHOWN_BEFORE: usize = 50;

/// A file's name and text, to be pointed into.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'t> {
    pub(crate) path: &'t Path,
    pub(crate) text: &'t str,
}

/// One mistake, with everything that its report needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mistake {
    pub(crate) path: PathBuf,
    /// From 1.
    pub(crate) line: usize,
    /// From 1, in characters.
    pub(crate) column: usize,
    /// The line, or the part of it around the place.
    excerpt: String,
    /// Blanks and carets, to be printed under `excerpt`.
    carets: String,
    /// Lower case, no full stop.
    pub(crate) message: String,
    /// What to write instead.
    pub(crate) help: String,
}

impl Source<'_> {
    /// The mistake at `span` (bytes of the text). A span over several lines is cut at the end of its first; one that is empty or
    /// lies behind the end still gets a caret.
    pub(crate) fn cite(&self, span: Range<usize>, message: impl Into<String>, help: impl Into<String>) -> Mistake {
        let start = floor(self.text, span.start);
        let line_start = self.text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = self.text[start..].find('\n').map_or(self.text.len(), |at| start + at);
        let line = self.text[line_start..line_end].trim_end_matches('\r');
        // A byte order mark is no character that an editor shows or counts.
        let (line_start, line) = match line.strip_prefix('\u{feff}') {
            Some(rest) => (line_start + '\u{feff}'.len_utf8(), rest),
            None => (line_start, line),
        };
        let before = floor(line, start.saturating_sub(line_start));
        let end = floor(line, span.end.saturating_sub(line_start)).max(before);
        let column = line[..before].chars().count();
        let width = line[before..end].chars().count().max(1);
        let (excerpt, carets) = excerpt(line, column, width);
        Mistake {
            path: self.path.to_owned(),
            line: self.text[..start].matches('\n').count() + 1,
            column: column + 1,
            excerpt,
            carets,
            message: message.into(),
            help: help.into(),
        }
    }
}

/// The nearest character boundary at or before `at`.
fn floor(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// The part of the line that is shown, and the carets below it.
fn excerpt(line: &str, column: usize, width: usize) -> (String, String) {
    let length = line.chars().count();
    let first = if length <= MAX_SHOWN { 0 } else { column.saturating_sub(SHOWN_BEFORE) };
    let mut shown = String::new();
    let mut carets = String::new();
    if first > 0 {
        shown.push_str("...");
        carets.push_str("   ");
    }
    for (at, c) in line.chars().enumerate().skip(first).take(MAX_SHOWN) {
        // Control characters would let a file speak to the reader's terminal.
        shown.push(if c.is_control() && c != '\t' { '\u{fffd}' } else { c });
        if at < column {
            carets.push(if c == '\t' { '\t' } else { ' ' });
        }
    }
    if first + MAX_SHOWN < length {
        shown.push_str("...");
    }
    let visible = (first + MAX_SHOWN).saturating_sub(column).max(1);
    carets.push_str(&"^".repeat(width.min(visible)));
    (shown, carets)
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:{}:{}: {}", self.path.display(), self.line, self.column, self.message)?;
        writeln!(f, "  {}", self.excerpt)?;
        write!(f, "  {}", self.carets)?;
        if !self.help.is_empty() {
            write!(f, "\n  help: {}", self.help)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cite(text: &str, span: Range<usize>) -> Mistake {
        Source { path: Path::new("/etc/x.toml"), text }.cite(span, "this is wrong", "write that")
    }

    #[test]
    fn the_whole_report() {
        let report = cite("a = 1\n\tb = \"été\" # c\nd = 2\n", 11..18).to_string();
        assert_eq!(report, "/etc/x.toml:2:6: this is wrong\n  \tb = \"été\" # c\n  \t    ^^^^^\n  help: write that");
    }

    #[test]
    fn columns_are_characters_and_a_byte_order_mark_is_none() {
        let text = "\u{feff}é = 1";
        let at = text.find('1').unwrap_or_default();
        assert_eq!(cite(text, at..at + 1).column, 5);
    }

    #[test]
    fn spans_at_and_behind_the_end_and_over_several_lines() {
        for (text, span, line, column, carets) in [
            ("", 0..0, 1, 1, "^"),
            ("a\n", 2..2, 2, 1, "^"),
            ("abc", 9..12, 1, 4, "   ^"),
            ("abc\ndef\n", 1..6, 1, 2, " ^^"),
            ("abc\r\ndef", 1..7, 1, 2, " ^^"),
            ("é", 1..1, 1, 1, "^"),
        ] {
            let mistake = cite(text, span);
            assert_eq!((mistake.line, mistake.column, mistake.carets.as_str()), (line, column, carets), "{text:?}");
        }
    }

    #[test]
    fn a_long_line_is_shown_around_the_place() {
        let text = format!("nodes = \"{}!{}\"", "n".repeat(50_000), "m".repeat(50_000));
        let mistake = cite(&text, 50_009..50_010);
        assert_eq!(mistake.column, 50_010);
        assert!(mistake.excerpt.len() < 140, "{}", mistake.excerpt);
        let caret = mistake.carets.find('^').unwrap_or_default();
        assert_eq!(mistake.excerpt.as_bytes()[caret], b'!');
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert!(!cite("a = \u{1b}[31m", 4..5).to_string().contains('\u{1b}'));
    }
}
