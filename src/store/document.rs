//! `mapping.json` as text: bytes in, a [`Mapping`] out that loses nothing when it is written back, and the other way round.
//!
//! Strict on purpose. A field this version does not know, a key that comes twice, another version or another cluster are refused:
//! rewriting such a file would drop what somebody else put there. One line per node, for people and for grep.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use crate::model::mapping::{Condemned, Mapping, NodeEntry, NodeState, VERSION};
use crate::model::time::Timestamp;

/// Why the text is no mapping of this cluster.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Line and column, from 1.
    pub(crate) position: Option<(usize, usize)>,
    pub(crate) why: String,
}

/// Reads the document, which must be of this version and of this cluster.
pub(crate) fn parse(bytes: &[u8], cluster: &str) -> Result<Mapping, Problem> {
    let plain = |why: String| Problem { position: None, why };
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(plain("it is empty".to_owned()));
    }
    let StrictMapping(mapping) = serde_json::from_slice(bytes).map_err(|error| {
        // A document of another version fails on some field: its version is the better message.
        match serde_json::from_slice::<VersionOnly>(bytes) {
            Ok(VersionOnly { version }) if version != VERSION => plain(other_version(version)),
            _ => problem(&error),
        }
    })?;
    if mapping.version != VERSION {
        return Err(plain(other_version(mapping.version)));
    }
    if mapping.cluster != cluster {
        return Err(plain(format!("it belongs to the cluster {:?}, and this is {cluster:?}", mapping.cluster)));
    }
    Ok(mapping)
}

/// Writes the document; `parse` gives the same mapping back.
pub(crate) fn render(mapping: &Mapping) -> serde_json::Result<Vec<u8>> {
    // Named one by one, so that a new field cannot be forgotten here.
    let Mapping { version, cluster, nodes, condemned } = mapping;
    let mut out = Vec::with_capacity(256 + nodes.len() * 400 + condemned.len() * 200);
    out.extend_from_slice(b"{\n\"version\": ");
    serde_json::to_writer(&mut out, version)?;
    out.extend_from_slice(b",\n\"cluster\": ");
    serde_json::to_writer(&mut out, cluster)?;
    out.extend_from_slice(b",\n\"nodes\": ");
    lines(&mut out, nodes)?;
    out.extend_from_slice(b",\n\"condemned\": ");
    lines(&mut out, condemned)?;
    out.extend_from_slice(b"\n}\n");
    Ok(out)
}

/// One node's entry, read as strictly; where the mapping is not one document.
pub(super) fn entry(value: serde_json::Value) -> Result<NodeEntry, String> {
    StrictEntry::deserialize(value).map(NodeEntry::from).map_err(|error| error.to_string())
}

/// One condemned instance.
pub(super) fn condemned(value: serde_json::Value) -> Result<Condemned, String> {
    StrictCondemned::deserialize(value).map(Condemned::from).map_err(|error| error.to_string())
}

fn lines<T: serde::Serialize>(out: &mut Vec<u8>, map: &BTreeMap<String, T>) -> serde_json::Result<()> {
    out.push(b'{');
    for (index, (key, value)) in map.iter().enumerate() {
        out.extend_from_slice(if index == 0 { b"\n" } else { b",\n" });
        serde_json::to_writer(&mut *out, key)?;
        out.extend_from_slice(b": ");
        serde_json::to_writer(&mut *out, value)?;
    }
    out.extend_from_slice(if map.is_empty() { b"}" } else { b"\n}" });
    Ok(())
}

/// serde_json's message ends with the position, which is told apart here.
pub(crate) fn problem(error: &serde_json::Error) -> Problem {
    let text = error.to_string();
    let why = text.rsplit_once(" at line ").map_or(text.as_str(), |(why, _)| why).to_owned();
    Problem { position: (error.line() > 0).then(|| (error.line(), error.column())), why }
}

fn other_version(version: u32) -> String {
    format!("it is of version {version}, and this program knows version {VERSION} only")
}

#[derive(serde::Deserialize)]
struct VersionOnly {
    version: u32,
}

// The strict reading of the model's types. `remote` makes the compiler check that the fields are all there.

struct StrictMapping(Mapping);

impl<'de> Deserialize<'de> for StrictMapping {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        MappingDef::deserialize(deserializer).map(Self)
    }
}

#[derive(serde::Deserialize)]
#[serde(remote = "Mapping", deny_unknown_fields)]
struct MappingDef {
    version: u32,
    cluster: String,
    #[serde(default, deserialize_with = "entries::<StrictEntry, _, _>")]
    nodes: BTreeMap<String, NodeEntry>,
    #[serde(default, deserialize_with = "entries::<StrictCondemned, _, _>")]
    condemned: BTreeMap<String, Condemned>,
}

struct StrictEntry(NodeEntry);

impl<'de> Deserialize<'de> for StrictEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        NodeEntryDef::deserialize(deserializer).map(Self)
    }
}

impl From<StrictEntry> for NodeEntry {
    fn from(strict: StrictEntry) -> Self {
        strict.0
    }
}

#[derive(serde::Deserialize)]
#[serde(remote = "NodeEntry", deny_unknown_fields)]
struct NodeEntryDef {
    state: NodeState,
    group: String,
    launch: String,
    requested: Timestamp,
    since: Timestamp,
    #[serde(default)]
    launched: Option<Timestamp>,
    #[serde(default)]
    instance_id: Option<String>,
    #[serde(default)]
    private_ip: Option<String>,
    #[serde(default)]
    hostname: Option<String>,
    #[serde(default)]
    instance_type: Option<String>,
    #[serde(default)]
    zone: Option<String>,
    #[serde(default)]
    unpublished: bool,
}

struct StrictCondemned(Condemned);

impl<'de> Deserialize<'de> for StrictCondemned {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        CondemnedDef::deserialize(deserializer).map(Self)
    }
}

impl From<StrictCondemned> for Condemned {
    fn from(strict: StrictCondemned) -> Self {
        strict.0
    }
}

#[derive(serde::Deserialize)]
#[serde(remote = "Condemned", deny_unknown_fields)]
struct CondemnedDef {
    #[serde(default)]
    node: Option<String>,
    launch: String,
    since: Timestamp,
    #[serde(default)]
    launched: Option<Timestamp>,
    why: String,
}

/// A map in which no key comes twice.
fn entries<'de, S, T, D>(deserializer: D) -> Result<BTreeMap<String, T>, D::Error>
where
    S: Deserialize<'de> + Into<T>,
    D: Deserializer<'de>,
{
    struct Entries<S, T>(PhantomData<(S, T)>);

    impl<'de, S: Deserialize<'de> + Into<T>, T> Visitor<'de> for Entries<S, T> {
        type Value = BTreeMap<String, T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object with one entry per name")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
            let mut found: Vec<(String, T)> = Vec::new();
            while let Some((key, value)) = access.next_entry::<String, S>()? {
                found.push((key, value.into()));
            }
            // They are mostly in order already, and a whole list of them makes a map at a third of the cost.
            found.sort_by(|(a, _), (b, _)| a.cmp(b));
            if let Some([(key, _), _]) = found.array_windows::<2>().find(|[(a, _), (b, _)]| a == b) {
                return Err(A::Error::custom(format!("{key:?} comes twice")));
            }
            Ok(found.into_iter().collect())
        }
    }

    deserializer.deserialize_map(Entries::<S, T>(PhantomData))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The example of architecture.md, completed with the fields that a claim always has.
    const EXAMPLE: &str = r#"{"version": 1, "cluster": "hpc", "nodes": {"c5-1": {"state": "running", "group": "c5", "launch": "a1",
        "requested": "2026-11-29T11:59:50Z", "instance_id": "i-1", "private_ip": "10.0.0.5", "hostname": "ip-10-0-0-5",
        "instance_type": "c5.large", "zone": "eu-west-1a", "since": "2026-11-29T12:00:00Z"}},
        "condemned": {"i-2": {"node": "c5-7", "launch": "a0", "since": "2026-11-29T12:00:00.250Z", "why": "suspended"}}}"#;

    #[test]
    fn read_and_written_back() {
        let mapping = parse(EXAMPLE.as_bytes(), "hpc").unwrap();
        assert_eq!(mapping.nodes["c5-1"].instance_id.as_deref(), Some("i-1"));
        assert_eq!(mapping.condemned["i-2"].node.as_deref(), Some("c5-7"));
        let text = render(&mapping).unwrap();
        assert_eq!(parse(&text, "hpc").unwrap(), mapping);
        let text = String::from_utf8(text).unwrap();
        assert!(text.lines().any(|line| line.starts_with(r#""c5-1": {"state":"running","#)), "{text}");
        let empty = Mapping::new("hpc");
        assert_eq!(parse(&render(&empty).unwrap(), "hpc").unwrap(), empty);
    }

    #[test]
    fn every_field_and_odd_names_survive() {
        let mut mapping = parse(EXAMPLE.as_bytes(), "hpc").unwrap();
        mapping.cluster = "h\"p\nc é".to_owned();
        let entry = mapping.nodes.get_mut("c5-1").unwrap();
        entry.launched = Some(Timestamp::from_millis(1_800_000_000_123));
        entry.unpublished = true;
        entry.state = NodeState::Launching;
        mapping.nodes.insert("ü\"\\".to_owned(), mapping.nodes["c5-1"].clone());
        mapping.condemned.get_mut("i-2").unwrap().launched = Some(Timestamp::from_secs(7));
        assert_eq!(parse(&render(&mapping).unwrap(), &mapping.cluster).unwrap(), mapping);
    }

    #[test]
    fn refused_with_the_place() {
        let why = |text: &str| parse(text.as_bytes(), "hpc").unwrap_err();
        assert_eq!(why(""), Problem { position: None, why: "it is empty".into() });
        assert_eq!(why(" \n").why, "it is empty");
        assert!(why("nonsense").position.is_some());
        assert!(why(&EXAMPLE[..EXAMPLE.len() / 2]).position.is_some(), "cut short");
        assert!(why(&format!("{EXAMPLE}x")).why.contains("trailing"));
        assert!(why("[]").position.is_some());
        assert!(why("null").position.is_some());
        let unknown = why(&EXAMPLE.replace("\"zone\"", "\"rack\""));
        assert!(unknown.why.contains("unknown field `rack`"), "{unknown:?}");
        assert_eq!(unknown.position.unwrap().0, 3);
        assert!(why(&EXAMPLE.replace("\"why\"", "\"reason\"")).why.contains("unknown field `reason`"));
        assert!(why(&EXAMPLE.replace("\"condemned\"", "\"extra\"")).why.contains("unknown field `extra`"));
        assert!(why(&EXAMPLE.replace("\"running\"", "\"idle\"")).why.contains("idle"));
        assert!(why(&EXAMPLE.replace("\"i-1\"", "7")).why.contains("invalid type"));
        assert!(why(&EXAMPLE.replace("11:59:50Z", "nine")).why.contains("RFC 3339"));
        assert_eq!(why(&EXAMPLE.replace("\"version\": 1", "\"version\": 2")).why.matches("version 2").count(), 1);
        let newer = r#"{"version": 2, "cluster": "hpc", "machines": []}"#;
        assert!(why(newer).why.contains("of version 2"), "{:?}", why(newer));
        assert!(parse(EXAMPLE.as_bytes(), "other").unwrap_err().why.contains("\"hpc\""));
        let twice = r#"{"version": 1, "cluster": "hpc", "condemned": {
            "i-1": {"launch": "a", "since": "2026-11-29T12:00:00Z", "why": "x"},
            "i-1": {"launch": "b", "since": "2026-11-29T12:00:00Z", "why": "y"}}}"#;
        assert!(why(twice).why.contains("\"i-1\" comes twice"));
        assert!(parse(b"{\"version\": 1, \"cluster\": \"\xff\"}", "hpc").is_err());
    }
}
