//! Typed values of a section: a key in; a string, number, duration, path or one of several words out. A wrong value is noted with its
//! place and the default stands in for it.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use toml::de::DeValue;

use super::checks::Complaint;
use super::reader::{NONE, Section, Span, Value};
use super::words::{choices, nearest};

impl<'t> Section<'_, 't> {
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
                    format!("put it in quotes: {:?}", self.written(&value.span()))
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
            let at = self.inside(&value.span(), at);
            self.mistake(
                key,
                at..at + 1,
                format!("{key} holds a control character"),
                "remove it; a value is one line of plain text",
            );
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
        check: impl Fn(&str) -> Result<(), Complaint>,
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
    pub(crate) fn texts(&self, key: &'static str, example: &str, check: impl Fn(&str) -> Result<(), Complaint>) -> Vec<String> {
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
                Err((
                    format!("{text:?} begins with ~, but slurmctld gives its programs no HOME"),
                    format!("write the whole path, such as {example}"),
                ))
            } else {
                Err((format!("{text:?} is not an absolute path"), format!("begin with /, such as {example}")))
            }
        });
        text.map(PathBuf::from).or_else(|| default.map(PathBuf::from))
    }

    /// One of several words.
    pub(crate) fn choice<T: Copy + PartialEq>(&self, key: &'static str, base: T, words: &[(&str, T)]) -> T {
        let default = words.iter().find(|(_, value)| *value == base).map_or("", |(word, _)| word);
        let Some(value) = self.value(key, format!("{default:?}")) else { return base };
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
        let Some(value) = self.value(key, base.to_string()) else { return base };
        let DeValue::Boolean(boolean) = value.get_ref() else {
            self.wrong_type(key, value, "true or false", format!("write {key} = true or {key} = false, without quotes"));
            return base;
        };
        *boolean
    }

    /// A whole number within a range.
    pub(crate) fn integer(&self, key: &'static str, base: u64, range: RangeInclusive<u64>) -> u64 {
        let Some(value) = self.value(key, base.to_string()) else { return base };
        let help = format!("write a number from {} to {}, such as {key} = {base}", range.start(), range.end());
        let DeValue::Integer(integer) = value.get_ref() else {
            self.wrong_type(key, value, "a whole number", help);
            return base;
        };
        // Digits that do not even fit here are far outside on the side of their sign.
        let outside = if integer.as_str().starts_with('-') { i128::MIN } else { i128::MAX };
        let number = i128::from_str_radix(integer.as_str(), integer.radix()).unwrap_or(outside);
        if let Ok(number) = u64::try_from(number)
            && range.contains(&number)
        {
            return number;
        }
        let limit = if number < i128::from(*range.start()) {
            format!("at least {}", range.start())
        } else {
            format!("at most {}", range.end())
        };
        self.mistake(key, value.span(), format!("{key} is {integer}; it must be {limit}"), help);
        base
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
        let Some(value) = self.value(key, example.clone()) else { return base };
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
                        (self.inside(&span, start)..self.inside(&span, end), format!("has the unknown unit {unit:?}"))
                    }
                    E::InvalidCharacter(at) | E::NumberExpected(at) => {
                        let at = self.inside(&span, at);
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
}

/// Somebody wrote -1 to switch a time off (C04).
fn off(key: &str, range: &RangeInclusive<Duration>, example: &str) -> String {
    if range.start().is_zero() {
        format!("a duration cannot be negative; to switch it off write {key} = \"0s\"")
    } else {
        format!("a duration cannot be negative; write something like {key} = {example}")
    }
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
    fn durations_are_shown_as_they_are_written() {
        for (millis, text) in [(0, "0s"), (250, "250ms"), (100_000, "100s"), (90_000, "90s"), (600_000, "10m"), (7_200_000, "2h")]
        {
            assert_eq!(show_duration(Duration::from_millis(millis)), text);
            assert_eq!(humantime::parse_duration(text), Ok(Duration::from_millis(millis)));
        }
    }
}
