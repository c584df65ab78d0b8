//! The table itself: `parameters.txt` in, the members of a structure out.
//!
//! A line without indentation names an operation or a structure, the indented ones below it are its members:
//!
//! ```text
//!   name[!] type [name in the query protocol, where it is another]
//! ```
//!
//! `!` = must be given; `[type]` = a list; a type that is no scalar's is a structure of the file.

use std::collections::HashMap;
use std::sync::LazyLock;

const TEXT: &str = include_str!("parameters.txt");

/// Read when the first override is looked at: most installations have none.
static TABLE: LazyLock<HashMap<&'static str, Vec<Member>>> = LazyLock::new(|| read(TEXT));

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Member {
    /// As boto3 and the API's documentation spell it.
    pub(super) name: &'static str,
    /// As it is spelled in a request.
    pub(super) query: &'static str,
    pub(super) kind: Kind,
    /// Of `kind`, any number of them.
    pub(super) is_list: bool,
    pub(super) is_required: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    String,
    /// 32 bits, signed.
    Integer,
    Double,
    Boolean,
    Timestamp,
    Structure(&'static str),
}

/// The members of an operation's request or of a structure, in the API's own order.
pub(super) fn members(title: &str) -> &'static [Member] {
    TABLE.get(title).map_or(&[], Vec::as_slice)
}

pub(super) fn member(title: &str, name: &str) -> Option<&'static Member> {
    members(title).iter().find(|member| member.name == name)
}

fn read(text: &'static str) -> HashMap<&'static str, Vec<Member>> {
    let mut table = HashMap::new();
    let mut title = "";
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match line.strip_prefix("  ") {
            None => title = line,
            Some(words) => table.entry(title).or_insert_with(Vec::new).extend(read_member(words)),
        }
    }
    table
}

fn read_member(line: &'static str) -> Option<Member> {
    let mut words = line.split(' ');
    let (name, kind) = (words.next()?, words.next()?);
    let (name, is_required) = name.strip_suffix('!').map_or((name, false), |name| (name, true));
    let (kind, is_list) =
        kind.strip_prefix('[').and_then(|kind| kind.strip_suffix(']')).map_or((kind, false), |kind| (kind, true));
    let kind = match kind {
        "string" => Kind::String,
        "integer" => Kind::Integer,
        "double" => Kind::Double,
        "boolean" => Kind::Boolean,
        "timestamp" => Kind::Timestamp,
        structure => Kind::Structure(structure),
    };
    Some(Member { name, query: words.next().unwrap_or(name), kind, is_list, is_required })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_read_and_every_structure_is_there() {
        let lines = TEXT.lines().filter(|line| line.starts_with("  ")).count();
        assert_eq!(TABLE.values().map(Vec::len).sum::<usize>(), lines);
        assert!(lines > 250, "{lines}");
        for (title, members) in &*TABLE {
            for (at, member) in members.iter().enumerate() {
                if let Kind::Structure(name) = member.kind {
                    assert!(TABLE.contains_key(name), "{title}.{} is a {name}, which is not in the file", member.name);
                }
                let same = |other: &Member| other.name == member.name || other.query == member.query;
                assert!(!members[at + 1..].iter().any(same), "{title} has {} twice", member.name);
                for word in [member.name, member.query] {
                    assert!(word.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{title}.{word}");
                }
            }
        }
    }
}
