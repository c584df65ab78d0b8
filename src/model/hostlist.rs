//! Slurm's host lists: `c5-[1-3,07]-ib,login` in, node names out, and back.
//!
//! In: the text slurmctld or a person wrote. Out: the names in the order written, each once, with what was written
//! twice told beside them; or an error that says where the text goes wrong. Nothing is cut, guessed or clamped: a name
//! that is not what the writer meant would launch, or terminate, the wrong machine.
//!
//! Grammar (what `scontrol show hostnames` of Slurm 26.05 accepts): items divided by commas or white space, empty items
//! skipped; an item is text with any number of brackets in it, each `[range,range,…]`, a range being `7` or `7-12`. The
//! low end gives the width: `[08-12]` is 08…12, `[8-012]` is 8…12. Several brackets give the product, the left one
//! turning slowest. There is no syntax for exclusion. Two kinds of text that Slurm takes are refused: oddities inside
//! brackets (`[1-]`, blanks, signs, dots, `,m[`) and numbers above 2^64-1 in brackets, which Slurm quietly replaces.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use thiserror::Error;

#[cfg(test)]
mod tests;

/// Names one list may expand to, duplicates counted. Far above any real cluster, and about 60 MB of short names.
pub(crate) const DEFAULT_LIMIT: usize = 1_000_000;

/// Bytes all names of one list may have together. The number of names alone does not bound memory: one long prefix or
/// one wide zero padding, times a million, would.
const MAX_BYTES: u64 = 256 * 1024 * 1024;

/// What a host list stands for.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Expansion {
    /// Each name once, in the order of its first appearance.
    pub(crate) names: Vec<String>,
    /// The names that appeared more than once, each told once, in the order in which they were repeated.
    pub(crate) duplicates: Vec<String>,
}

/// Why a text is no host list, and where.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{excerpt:?}: column {column}: {problem}")]
pub(crate) struct HostlistError {
    /// Byte offset in the text, from 0.
    pub(crate) position: usize,
    /// The same place for a reader: characters, from 1.
    pub(crate) column: usize,
    /// The item at fault; only the part around `position` when it is long.
    pub(crate) excerpt: String,
    pub(crate) problem: Problem,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum Problem {
    #[error("the bracket opened here is never closed; expected \"]\" after its last number")]
    Unclosed,
    #[error("a number is missing; expected one such as 7, or a range such as 1-9")]
    Missing,
    #[error("range {first}- has no end; expected a number after \"-\"")]
    NoEnd { first: u64 },
    #[error("unexpected {found:?}; expected {expected}")]
    Unexpected { found: char, expected: &'static str },
    #[error("range {first}-{last} runs backwards; expected first <= last")]
    Backwards { first: u64, last: u64 },
    #[error("number {number} is too large; expected at most {}", u64::MAX)]
    TooLarge { number: String },
    #[error("up to here the list has {names} names; expected at most {limit} in all")]
    TooMany { names: u64, limit: usize },
    #[error("up to here the names take {bytes} bytes; expected at most {MAX_BYTES} in all")]
    TooLong { bytes: u64 },
}

/// Expands a host list. An empty or blank text gives no names; whether that is a mistake is the caller's to say.
///
/// # Errors
/// Text that is no host list, or one of more than `limit` names (found before any name is made).
pub(crate) fn expand(text: &str, limit: usize) -> Result<Expansion, HostlistError> {
    // Twice over the text, so that a list that is wrong or too large is known to be so before it costs memory.
    let mut total = Total::new(limit);
    let mut items = Items::new(text);
    while items.advance()? {
        total.add(&items)?;
    }

    let mut collector = Collector::new(total.names, !total.cannot_repeat());
    let mut items = Items::new(text);
    let mut odometer = Odometer::default();
    while items.advance()? {
        odometer.run(&items, &mut collector);
    }
    Ok(collector.expansion)
}

/// Writes names as a host list, as `scontrol show hostlist` does: order and duplicates kept, only neighbours merged, at
/// most one bracket per item, at the end of the name. Empty names are passed over.
pub(crate) fn compress<S: AsRef<str>>(names: &[S]) -> String {
    let mut writer = Writer::default();
    for name in names {
        writer.name(Split::of(name.as_ref()));
    }
    writer.finish()
}

/// Like [`compress`], with the names sorted first as `scontrol show hostlistsorted` does: by the text before the last
/// number (numbers in it by value), then by width, then by number. The shortest form, for logs and for Slurm.
pub(crate) fn compress_sorted<S: AsRef<str>>(names: &[S]) -> String {
    let mut splits: Vec<Split<'_>> = names.iter().map(|name| Split::of(name.as_ref())).collect();
    splits.sort_unstable_by(Split::slurm_order);
    let mut writer = Writer::default();
    for split in splits {
        writer.name(split);
    }
    writer.finish()
}

/// The order of [`compress_sorted`]: `c5-9` before `c5-10`.
pub(crate) fn sort<S: AsRef<str>>(names: &mut [S]) {
    names.sort_by(|a, b| Split::of(a.as_ref()).slurm_order(&Split::of(b.as_ref())));
}

// ---- reading -------------------------------------------------------------------------------------------------------

/// `first..=last`, written at least `width` digits wide.
#[derive(Debug, Clone, Copy)]
struct NumberRange {
    first: u64,
    last: u64,
    width: usize,
}

impl NumberRange {
    fn count(self) -> u64 {
        (self.last - self.first).saturating_add(1)
    }

    /// Digits of its longest number.
    fn longest(self) -> usize {
        self.width.max(decimal_len(self.last))
    }

    /// Digits of its shortest number.
    fn shortest(self) -> usize {
        self.width.max(decimal_len(self.first))
    }
}

#[derive(Debug, Clone, Copy)]
enum Part<'t> {
    Text(&'t str),
    /// A slice of `Items::ranges`; never empty.
    Bracket {
        from: usize,
        to: usize,
    },
}

/// Reads one item after the other; holds the present one. The two lists are reused, so that a million plain names cost
/// no memory beside the text.
struct Items<'t> {
    text: &'t str,
    /// Next byte to read.
    at: usize,
    /// First byte of the present item.
    start: usize,
    parts: Vec<Part<'t>>,
    ranges: Vec<NumberRange>,
}

impl<'t> Items<'t> {
    fn new(text: &'t str) -> Self {
        Self { text, at: 0, start: 0, parts: Vec::new(), ranges: Vec::new() }
    }

    /// Goes on to the next item; false at the end of the text.
    fn advance(&mut self) -> Result<bool, HostlistError> {
        self.parts.clear();
        self.ranges.clear();
        while self.peek().is_some_and(is_separator) {
            self.at += 1;
        }
        self.start = self.at;
        let mut literal = self.at;
        while let Some(byte) = self.peek() {
            match byte {
                b'[' => {
                    self.push_text(literal);
                    self.bracket()?;
                    literal = self.at;
                }
                _ if is_separator(byte) => break,
                // No node can be called so, and it would garble logs and command lines.
                _ if byte.is_ascii_control() => return Err(self.unexpected("a printable character")),
                _ => self.at += 1,
            }
        }
        self.push_text(literal);
        Ok(!self.parts.is_empty())
    }

    fn push_text(&mut self, from: usize) {
        if from < self.at {
            self.parts.push(Part::Text(&self.text[from..self.at]));
        }
    }

    /// Reads `[…]`, standing on its `[`.
    fn bracket(&mut self) -> Result<(), HostlistError> {
        let open = self.at;
        let from = self.ranges.len();
        loop {
            // Over "[" or ",".
            self.at += 1;
            let start = self.at;
            let Some(first) = self.number()? else {
                return Err(match self.peek() {
                    None => self.error(open, Problem::Unclosed),
                    Some(b',' | b']') => self.error(start, Problem::Missing),
                    Some(_) => self.unexpected("a digit"),
                });
            };
            let width = self.at - start;
            let mut last = first;
            let ranged = self.peek() == Some(b'-');
            if ranged {
                self.at += 1;
                last = match self.number()? {
                    Some(last) => last,
                    None => {
                        return Err(match self.peek() {
                            None => self.error(open, Problem::Unclosed),
                            Some(b',' | b']') => self.error(start, Problem::NoEnd { first }),
                            Some(_) => self.unexpected("a digit"),
                        });
                    }
                };
                if last < first {
                    return Err(self.error(start, Problem::Backwards { first, last }));
                }
            }
            self.ranges.push(NumberRange { first, last, width });
            match self.peek() {
                Some(b',') => {}
                Some(b']') => break,
                None => return Err(self.error(open, Problem::Unclosed)),
                Some(_) if ranged => return Err(self.unexpected("a digit, \",\" or \"]\"")),
                Some(_) => return Err(self.unexpected("a digit, \"-\", \",\" or \"]\"")),
            }
        }
        self.at += 1;
        self.parts.push(Part::Bracket { from, to: self.ranges.len() });
        Ok(())
    }

    /// Reads digits; `None` where there are none.
    fn number(&mut self) -> Result<Option<u64>, HostlistError> {
        let start = self.at;
        let mut value = Some(0_u64);
        while let Some(byte @ b'0'..=b'9') = self.peek() {
            value = value.and_then(|value| value.checked_mul(10)?.checked_add(u64::from(byte - b'0')));
            self.at += 1;
        }
        if self.at == start {
            return Ok(None);
        }
        match value {
            Some(value) => Ok(Some(value)),
            None => {
                let number = shorten(&self.text[start..self.at], 0, 40).into_owned();
                Err(self.error(start, Problem::TooLarge { number }))
            }
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Of the character at `at`, which lies on a boundary: only ASCII is ever stepped over one byte at a time and stopped behind.
    fn unexpected(&self, expected: &'static str) -> HostlistError {
        let found = self.text[self.at..].chars().next().unwrap_or(char::REPLACEMENT_CHARACTER);
        self.error(self.at, Problem::Unexpected { found, expected })
    }

    fn error(&self, position: usize, problem: Problem) -> HostlistError {
        let end = self.item_end();
        let item = self.text[self.start..end].trim_end();
        HostlistError {
            position,
            column: self.text[..position].chars().count() + 1,
            excerpt: shorten(item, position - self.start, 80).into_owned(),
            problem,
        }
    }

    /// The end of the item at `start`: the first separator outside a bracket. One never closed goes on to the end.
    fn item_end(&self) -> usize {
        let mut inside = false;
        let end = self.text.as_bytes()[self.start..].iter().position(|&byte| {
            inside = byte == b'[' || (inside && byte != b']');
            !inside && is_separator(byte)
        });
        end.map_or(self.text.len(), |end| self.start + end)
    }
}

/// Carriage returns too: lists come out of files that were edited elsewhere.
fn is_separator(byte: u8) -> bool {
    matches!(byte, b',' | b' ' | b'\t' | b'\n' | b'\r')
}

/// At most about `room` bytes of `text`, those around `focus`, with dots where something is left out.
fn shorten(text: &str, focus: usize, room: usize) -> Cow<'_, str> {
    if text.len() <= room {
        return Cow::Borrowed(text);
    }
    let from = text.floor_char_boundary(focus.saturating_sub(room / 2));
    let to = text.floor_char_boundary(from + room);
    let (before, after) = (if from > 0 { "…" } else { "" }, if to < text.len() { "…" } else { "" });
    Cow::Owned(format!("{before}{}{after}", &text[from..to]))
}

// ---- counting, and whether a name can come twice -------------------------------------------------------------------

/// What the first pass learns.
struct Total<'t> {
    limit: usize,
    names: u64,
    bytes: u64,
    items: usize,
    /// The only item so far cannot give a name twice.
    single_is_distinct: bool,
    /// The spans so far; `None` once an item does not divide into them.
    spans: Option<Spans<'t>>,
}

/// The list as spans: text before the number, first and last number. See [`Total::cannot_repeat`].
#[derive(Default)]
struct Spans<'t> {
    /// Each span so far lies behind the one before it, which is how Slurm writes them.
    ascending: bool,
    last: Option<(&'t str, u64)>,
    /// All of them, to be sorted if they do not ascend; given up once there are too many for that to be worth it.
    all: Vec<(&'t str, u64, u64)>,
    room: usize,
}

impl<'t> Spans<'t> {
    fn push(&mut self, text: &'t str, first: u64, last: u64) {
        self.ascending &= self.last.is_none_or(|before| before < (text, first));
        self.last = Some((text, last));
        if self.all.len() < self.room {
            self.all.push((text, first, last));
        } else {
            self.all = Vec::new();
            self.room = 0;
        }
    }
}

impl<'t> Total<'t> {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            names: 0,
            bytes: 0,
            items: 0,
            single_is_distinct: true,
            spans: Some(Spans { ascending: true, room: limit / 8, ..Spans::default() }),
        }
    }

    fn add(&mut self, item: &Items<'t>) -> Result<(), HostlistError> {
        let mut names = 1_u64;
        let mut longest = 0_u64;
        for part in &item.parts {
            match *part {
                Part::Text(text) => longest = longest.saturating_add(text.len() as u64),
                Part::Bracket { from, to } => {
                    let ranges = &item.ranges[from..to];
                    let count = ranges.iter().fold(0_u64, |sum, range| sum.saturating_add(range.count()));
                    names = names.saturating_mul(count);
                    longest = longest.saturating_add(ranges.iter().map(|range| range.longest() as u64).max().unwrap_or(0));
                }
            }
        }
        self.names = self.names.saturating_add(names);
        self.bytes = self.bytes.saturating_add(names.saturating_mul(longest));
        if self.names > self.limit as u64 {
            return Err(item.error(item.start, Problem::TooMany { names: self.names, limit: self.limit }));
        }
        if self.bytes > MAX_BYTES {
            return Err(item.error(item.start, Problem::TooLong { bytes: self.bytes }));
        }

        self.items += 1;
        self.single_is_distinct = self.items == 1 && is_distinct(item);
        self.note_spans(item);
        Ok(())
    }

    fn note_spans(&mut self, item: &Items<'t>) {
        let Some(spans) = &mut self.spans else { return };
        let fits = match *item.parts.as_slice() {
            [Part::Text(name)] => {
                let split = Split::of(name);
                spans.push(split.prefix, split.value, split.value);
                true
            }
            [Part::Bracket { from, to }] => {
                item.ranges[from..to].iter().for_each(|range| spans.push("", range.first, range.last));
                true
            }
            // Digits right before the bracket would be part of the number.
            [Part::Text(prefix), Part::Bracket { from, to }] if !prefix.ends_with(|c: char| c.is_ascii_digit()) => {
                item.ranges[from..to].iter().for_each(|range| spans.push(prefix, range.first, range.last));
                true
            }
            _ => false,
        };
        if !fits {
            self.spans = None;
        }
    }

    /// Proof, without a look at the names, that none comes twice. False means only that they must be looked at.
    ///
    /// Every name divides in one way into a text that does not end in a digit and a number behind it; names whose texts
    /// or whose numbers' values differ are different. Ranges that do not overlap therefore have no name in common. (A
    /// plain name whose number is too large for a range counts as all text: no range can make it.)
    fn cannot_repeat(&mut self) -> bool {
        if self.items <= 1 && self.single_is_distinct {
            return true;
        }
        let Some(Spans { ascending, all: spans, .. }) = &mut self.spans else { return false };
        if *ascending {
            return true;
        }
        // With more spans than this, sorting them costs more than it saves.
        if spans.is_empty() || spans.len() as u64 > self.names / 8 {
            return false;
        }
        spans.sort_unstable();
        spans.windows(2).all(|pair| match *pair {
            [(text, _, last), (next_text, next_first, _)] => text != next_text || last < next_first,
            _ => true,
        })
    }
}

/// True if the item's product cannot hold a name twice: in every bracket the ranges ascend without overlap, and where a
/// bracket's numbers end in the name can be told, since they are all of one length or no digit can follow them.
fn is_distinct(item: &Items<'_>) -> bool {
    item.parts.iter().enumerate().all(|(index, part)| {
        let Part::Bracket { from, to } = *part else { return true };
        let ranges = &item.ranges[from..to];
        let ascending = ranges.is_sorted_by(|a, b| a.last < b.first);
        let ends_clearly = match item.parts.get(index + 1) {
            None => true,
            Some(Part::Text(text)) if !text.starts_with(|c: char| c.is_ascii_digit()) => true,
            Some(_) => {
                let width = ranges.first().map(|range| range.shortest());
                ranges.iter().all(|range| Some(range.shortest()) == width && Some(range.longest()) == width)
            }
        };
        ascending && ends_clearly
    })
}

// ---- making names --------------------------------------------------------------------------------------------------

/// Gathers names, each once.
struct Collector {
    expansion: Expansion,
    seen: Option<Seen>,
}

impl Collector {
    /// `names` is the number that will come at most; `watch` says whether one may come twice.
    fn new(names: u64, watch: bool) -> Self {
        let names = names as usize;
        Self {
            expansion: Expansion { names: Vec::with_capacity(names), duplicates: Vec::new() },
            seen: watch.then(|| Seen::new(names)),
        }
    }

    fn push(&mut self, name: &str) {
        let Expansion { names, duplicates } = &mut self.expansion;
        if let Some(seen) = &mut self.seen
            && let Some(earlier) = seen.find_or_note(name, names)
        {
            if seen.told.insert(earlier) {
                duplicates.push(name.to_owned());
            }
            return;
        }
        names.push(name.to_owned());
    }
}

/// A hash table of indices into the list of names: 8 bytes a slot, where a set of strings would hold each name again.
struct Seen {
    /// 0 is free; else the upper half of the hash, and the index plus one. A power of two, at most half full.
    slots: Vec<u64>,
    hasher: RandomState,
    /// Indices of the names already told as duplicates.
    told: HashSet<usize>,
}

impl Seen {
    fn new(names: usize) -> Self {
        let slots = names.saturating_mul(2).next_power_of_two();
        Self { slots: vec![0; slots], hasher: RandomState::new(), told: HashSet::new() }
    }

    /// The index of `name` if it is in `names`; else notes it as the one that is pushed next.
    fn find_or_note(&mut self, name: &str, names: &[String]) -> Option<usize> {
        const LOW: u64 = 0xffff_ffff;
        let hash = self.hasher.hash_one(name);
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            let held = self.slots[slot];
            if held == 0 {
                // The index fits: MAX_BYTES keeps the number of names below 2^32.
                self.slots[slot] = (hash & !LOW) | (names.len() as u64 + 1);
                return None;
            }
            if held & !LOW == hash & !LOW {
                let index = (held & LOW) as usize - 1;
                if names[index] == name {
                    return Some(index);
                }
            }
            slot = (slot + 1) & mask;
        }
    }
}

/// Runs through the product of an item's brackets, the right one turning fastest. Keeps the name in one buffer and
/// rewrites only what is right of the number that changed. No recursion: the depth is the text's to choose.
#[derive(Default)]
struct Odometer {
    name: String,
    wheels: Vec<Wheel>,
}

/// One bracket's present number.
struct Wheel {
    /// Index of the bracket among the item's parts.
    part: usize,
    /// Index among the item's ranges.
    range: usize,
    value: u64,
    /// Where the number begins in the name.
    start: usize,
}

impl Odometer {
    fn run(&mut self, item: &Items<'_>, collector: &mut Collector) {
        self.name.clear();
        self.wheels.clear();
        self.write_from(item, 0);
        collector.push(&self.name);
        while self.turn(item) {
            collector.push(&self.name);
        }
    }

    /// Writes the parts from `part` on, every bracket at its first number.
    fn write_from(&mut self, item: &Items<'_>, part: usize) {
        for (index, part) in item.parts.iter().enumerate().skip(part) {
            match *part {
                Part::Text(text) => self.name.push_str(text),
                Part::Bracket { from, .. } => {
                    let NumberRange { first, width, .. } = item.ranges[from];
                    self.wheels.push(Wheel { part: index, range: from, value: first, start: self.name.len() });
                    push_number(&mut self.name, first, width);
                }
            }
        }
    }

    /// Goes on to the next name; false after the last.
    fn turn(&mut self, item: &Items<'_>) -> bool {
        while let Some(wheel) = self.wheels.last_mut() {
            let Part::Bracket { to, .. } = item.parts[wheel.part] else { return false };
            if wheel.value < item.ranges[wheel.range].last {
                wheel.value += 1;
            } else if wheel.range + 1 < to {
                wheel.range += 1;
                wheel.value = item.ranges[wheel.range].first;
            } else {
                self.wheels.pop();
                continue;
            }
            let (next, width) = (wheel.part + 1, item.ranges[wheel.range].width);
            self.name.truncate(wheel.start);
            push_number(&mut self.name, wheel.value, width);
            self.write_from(item, next);
            return true;
        }
        false
    }
}

/// Appends `value` with zeros up to `width`. By hand: `write!` is several times slower, and this is the inner loop.
fn push_number(name: &mut String, mut value: u64, width: usize) {
    let mut digits = [b'0'; 20];
    let mut from = digits.len();
    loop {
        from -= 1;
        digits[from] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    let digits = &digits[from..];
    name.extend(std::iter::repeat_n('0', width.saturating_sub(digits.len())));
    name.extend(digits.iter().copied().map(char::from));
}

fn decimal_len(value: u64) -> usize {
    value.checked_ilog10().map_or(1, |log| log as usize + 1)
}

// ---- writing -------------------------------------------------------------------------------------------------------

/// A name divided before its last number.
#[derive(Debug, Clone, Copy)]
struct Split<'n> {
    prefix: &'n str,
    /// Empty if the name does not end in a digit, or if its number is too large for a bracket.
    digits: &'n str,
    value: u64,
}

impl<'n> Split<'n> {
    fn of(name: &'n str) -> Self {
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = &name[prefix.len()..];
        match digits.parse() {
            Ok(value) => Self { prefix, digits, value },
            Err(_) => Self { prefix: name, digits: "", value: 0 },
        }
    }

    /// As Slurm's `hostrange_cmp` orders, except for prefixes that mix zero-padded and plain numbers, where Slurm's is
    /// no order at all. Comparing lengths, then digits, is "width, then number": 9 before 10 before 002.
    fn slurm_order(&self, other: &Self) -> Ordering {
        natural_order(self.prefix, other.prefix)
            .then_with(|| self.digits.len().cmp(&other.digits.len()))
            .then_with(|| self.digits.cmp(other.digits))
    }
}

/// Orders by text, but numbers inside it by value: `rack2node` before `rack10node`.
fn natural_order(a: &str, b: &str) -> Ordering {
    if a == b {
        return Ordering::Equal;
    }
    let (mut left, mut right) = (a.as_bytes(), b.as_bytes());
    while let (Some(&l), Some(&r)) = (left.first(), right.first()) {
        if l.is_ascii_digit() && r.is_ascii_digit() {
            let (l_number, l_rest) = take_number(left);
            let (r_number, r_rest) = take_number(right);
            let order = l_number.len().cmp(&r_number.len()).then_with(|| l_number.cmp(r_number));
            if order.is_ne() {
                return order;
            }
            (left, right) = (l_rest, r_rest);
        } else if l == r {
            (left, right) = (&left[1..], &right[1..]);
        } else {
            return l.cmp(&r);
        }
    }
    // One is at its end, or they differ only in zeros before a number.
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

/// The digits at the start without leading zeros, and the rest.
fn take_number(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    let zeros = number.iter().take_while(|&&byte| byte == b'0').count();
    (&number[zeros..], rest)
}

/// Writes names one by one, holding back only the run of neighbours that may still grow.
#[derive(Default)]
struct Writer<'n> {
    out: String,
    run: Option<Run<'n>>,
    /// The bracket of the run's prefix is open: runs were written before it.
    open: bool,
}

/// Names with one prefix and numbers without a gap, from `first` to `last`.
#[derive(Clone, Copy)]
struct Run<'n> {
    prefix: &'n str,
    first: &'n str,
    last: &'n str,
    value: u64,
}

impl Run<'_> {
    /// True if `next` is what `[first-next]` would go on with, its padding included.
    fn goes_on_with(&self, next: &Split<'_>) -> bool {
        self.value.checked_add(1) == Some(next.value) && next.digits.len() == self.first.len().max(decimal_len(next.value))
    }
}

impl<'n> Writer<'n> {
    fn name(&mut self, name: Split<'n>) {
        if name.digits.is_empty() {
            self.end_prefix();
            if !name.prefix.is_empty() {
                self.start_item(name.prefix);
            }
            return;
        }
        match &mut self.run {
            Some(run) if run.prefix == name.prefix => {
                if run.goes_on_with(&name) {
                    run.last = name.digits;
                    run.value = name.value;
                    return;
                }
                let run = *run;
                self.out.push(if self.open { ',' } else { '[' });
                self.open = true;
                self.numbers(run);
            }
            _ => {
                self.end_prefix();
                self.start_item(name.prefix);
            }
        }
        self.run = Some(Run { prefix: name.prefix, first: name.digits, last: name.digits, value: name.value });
    }

    fn finish(mut self) -> String {
        self.end_prefix();
        self.out
    }

    fn start_item(&mut self, text: &str) {
        if !self.out.is_empty() {
            self.out.push(',');
        }
        self.out.push_str(text);
    }

    /// Writes the run that was held back, and closes the bracket.
    fn end_prefix(&mut self) {
        let Some(run) = self.run.take() else { return };
        let bracket = self.open || run.first != run.last;
        if bracket {
            self.out.push(if self.open { ',' } else { '[' });
        }
        self.numbers(run);
        if bracket {
            self.out.push(']');
        }
        self.open = false;
    }

    fn numbers(&mut self, run: Run<'n>) {
        self.out.push_str(run.first);
        if run.first != run.last {
            self.out.push('-');
            self.out.push_str(run.last);
        }
    }
}
