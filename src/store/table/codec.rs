//! Items as the mapping and the launch records, and the other way round. Strict, as the file's reader is: an item that is not what
//! these programs write is refused, so that nothing of it is lost.
//!
//! ```text
//! state-id                 id = the state id
//! clustermgtd              host, who, until: the daemon that looks after the cluster
//! mapping                  version; there from the first change on
//! node#<node>              a node's entry, a field an attribute
//! condemned#<instance id>  as in mapping.json
//! launch#<launch id>       header (JSON); ended = its run left it; recovered_by and recovered_until while a program recovers it
//! launch#<id>#b<number>    batch (JSON), one an item
//! launch#<id>#e<number>    events (JSON), in the order written
//! ```

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::items::Item;
use crate::model::mapping::{Condemned, Mapping, NodeEntry, VERSION};
use crate::model::time::Timestamp;
use crate::store::document;
use crate::store::launch_record::{self, FoundRecord, RecordBatch, RecordEvent, RecordHeader, fold};

pub(super) const STATE_ID: &str = "state-id";
pub(super) const MARKER: &str = "mapping";
pub(super) const LEASE: &str = "clustermgtd";
const NODE: &str = "node#";
const CONDEMNED: &str = "condemned#";
const LAUNCH: &str = "launch#";

const HEADER: &str = "header";
const BATCH: &str = "batch";
const EVENTS: &str = "events";
const ENDED: &str = "ended";
const RECOVERED_BY: &str = "recovered_by";
const RECOVERED_UNTIL: &str = "recovered_until";

/// Events in one item at most. An item holds 400 KB, the events that come by the thousand (sent, done) have less than 100 bytes.
pub(super) const EVENTS_PER_ITEM: usize = 1000;

/// Fields of an item.
pub(super) type Fields = Map<String, Value>;

/// An item that cannot be understood.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) item: String,
    pub(super) why: String,
}

/// Everything in the partition.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) mapping: Mapping,
    /// The mapping was begun.
    pub(super) existed: bool,
    /// By launch id.
    pub(super) launches: BTreeMap<String, Launch>,
}

/// The items of one launch record.
#[derive(Debug, Default)]
pub(super) struct Launch {
    /// `None` = what is left of a record that was removed.
    pub(super) header: Option<Item>,
    /// Batches and events by item name.
    pub(super) rest: BTreeMap<String, Item>,
}

/// The header of a record.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) header: RecordHeader,
    /// Its run ended by itself and left the record.
    pub(super) ended: bool,
    pub(super) recoverer: Option<Recoverer>,
}

/// Who recovers a record, and until when at the longest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Recoverer {
    pub(super) who: String,
    pub(super) until: Timestamp,
}

pub(super) fn node_name(node: &str) -> String {
    format!("{NODE}{node}")
}

pub(super) fn condemned_name(instance: &str) -> String {
    format!("{CONDEMNED}{instance}")
}

pub(super) fn header_name(launch: &str) -> String {
    format!("{LAUNCH}{launch}")
}

pub(super) fn event_name(launch: &str, number: u32) -> String {
    format!("{LAUNCH}{launch}#e{number:06}")
}

/// Does the item belong to a launch record?
pub(super) fn is_of_record(name: &str) -> bool {
    name.starts_with(LAUNCH)
}

fn batch_name(launch: &str, number: usize) -> String {
    format!("{LAUNCH}{launch}#b{number:05}")
}

/// Sorts the items; reads mapping and marker, and leaves the records as they are, so that a bad record keeps nobody from working.
pub(super) fn read(items: &BTreeMap<String, Item>, cluster: &str) -> Result<Content, Problem> {
    let mut content = Content { mapping: Mapping::new(cluster), existed: false, launches: BTreeMap::new() };
    for (name, item) in items {
        let problem = |why: String| Problem { item: name.clone(), why };
        let fields = || Value::Object(item.fields.clone());
        if let Some(node) = name.strip_prefix(NODE) {
            content.mapping.nodes.insert(node.to_owned(), document::entry(fields()).map_err(problem)?);
        } else if let Some(instance) = name.strip_prefix(CONDEMNED) {
            content.mapping.condemned.insert(instance.to_owned(), document::condemned(fields()).map_err(problem)?);
        } else if let Some(rest) = name.strip_prefix(LAUNCH) {
            match rest.split_once('#') {
                None => content.launches.entry(rest.to_owned()).or_default().header = Some(item.clone()),
                Some((launch, _)) => {
                    content.launches.entry(launch.to_owned()).or_default().rest.insert(name.clone(), item.clone());
                }
            }
        } else if name == MARKER {
            content.existed = true;
            if item.fields != marker() {
                let version = item.fields.get("version").cloned().unwrap_or_default();
                return Err(problem(format!("it is of version {version}, and this program knows version {VERSION} only")));
            }
        } else if name != STATE_ID && name != LEASE {
            return Err(problem("this program does not know what it is".to_owned()));
        }
    }
    Ok(content)
}

pub(super) fn marker() -> Fields {
    fields(json!({"version": VERSION}))
}

pub(super) fn state_id(id: &str) -> Fields {
    fields(json!({"id": id}))
}

/// The id in a `state-id` item.
pub(super) fn state_id_of(item: &Item) -> Option<&str> {
    item.fields.get("id").and_then(Value::as_str)
}

/// Who looks after the cluster, from which machine, and until when at the longest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Lease {
    pub(super) host: String,
    pub(super) who: String,
    pub(super) until: Timestamp,
}

pub(super) fn lease(lease: &Lease) -> Fields {
    flat(lease)
}

pub(super) fn lease_of(item: &Item) -> Result<Lease, String> {
    serde_json::from_value(Value::Object(item.fields.clone())).map_err(|error| error.to_string())
}

pub(super) fn entry(entry: &NodeEntry) -> Fields {
    flat(entry)
}

pub(super) fn condemned(condemned: &Condemned) -> Fields {
    flat(condemned)
}

/// The items of a record that is begun, header first.
pub(super) fn record(header: &RecordHeader, events: &[RecordEvent]) -> serde_json::Result<Vec<(String, Fields)>> {
    let launch = &header.launch;
    let bare = RecordHeader { batches: Vec::new(), ..header.clone() };
    let mut items = vec![(header_name(launch), fields(json!({HEADER: serde_json::to_string(&bare)?})))];
    for (number, batch) in header.batches.iter().enumerate() {
        items.push((batch_name(launch, number), fields(json!({BATCH: serde_json::to_string(batch)?}))));
    }
    for (number, part) in (0..).zip(events.chunks(EVENTS_PER_ITEM)) {
        items.push((event_name(launch, number), self::events(part)?));
    }
    Ok(items)
}

pub(super) fn events(events: &[RecordEvent]) -> serde_json::Result<Fields> {
    Ok(fields(json!({EVENTS: serde_json::to_string(events)?})))
}

/// How many items hold so many events.
pub(super) fn items_of(events: usize) -> u32 {
    u32::try_from(events.div_ceil(EVENTS_PER_ITEM)).unwrap_or(u32::MAX)
}

pub(super) fn header(launch: &str, item: &Item) -> Result<Head, String> {
    let header: RecordHeader = parse(item, HEADER)?;
    if header.version != launch_record::VERSION {
        let known = launch_record::VERSION;
        return Err(format!("it is of version {}, and this program knows version {known} only", header.version));
    }
    if header.launch != launch {
        return Err(format!("it is the record of launch {:?} under another name", header.launch));
    }
    let text = |field| item.fields.get(field).and_then(Value::as_str);
    let recoverer = match (text(RECOVERED_BY), text(RECOVERED_UNTIL)) {
        (Some(who), Some(until)) => {
            let until = until.parse().map_err(|error| format!("{RECOVERED_UNTIL} is no time: {error}"))?;
            Some(Recoverer { who: who.to_owned(), until })
        }
        _ => None,
    };
    let ended = item.fields.get(ENDED).and_then(Value::as_bool).unwrap_or(false);
    Ok(Head { header, ended, recoverer })
}

/// A header's fields when its run leaves the record to others.
pub(super) fn ended(header: &Fields) -> Fields {
    let mut fields = header.clone();
    fields.insert(ENDED.to_owned(), Value::Bool(true));
    fields
}

/// A header's fields with another recoverer, or with none.
pub(super) fn recovered(header: &Item, recoverer: Option<&Recoverer>) -> Fields {
    let mut fields = header.fields.clone();
    fields.remove(RECOVERED_BY);
    fields.remove(RECOVERED_UNTIL);
    if let Some(Recoverer { who, until }) = recoverer {
        fields.insert(RECOVERED_BY.to_owned(), Value::String(who.clone()));
        fields.insert(RECOVERED_UNTIL.to_owned(), Value::String(until.to_string()));
    }
    fields
}

/// The whole record.
pub(super) fn found(launch: &str, items: &Launch, header: RecordHeader) -> Result<FoundRecord, String> {
    let prefix = header_name(launch);
    let mut all = Vec::new();
    for (name, item) in &items.rest {
        let part = name.strip_prefix(&prefix).unwrap_or(name);
        let in_part = |why: String| format!("item {part}: {why}");
        if let Some(number) = part.strip_prefix("#b") {
            let batch = number.parse().map_err(|error| in_part(format!("no number: {error}")))?;
            let RecordBatch { nodes, request } = parse(item, BATCH).map_err(in_part)?;
            all.push(RecordEvent::NewBatch { batch, nodes, request });
        } else {
            all.extend(parse::<Vec<RecordEvent>>(item, EVENTS).map_err(in_part)?);
        }
    }
    fold(header, all)
}

/// The number after the last event.
pub(super) fn next_event(launch: &str, items: &Launch) -> u32 {
    let prefix = format!("{}#e", header_name(launch));
    let numbers = items.rest.keys().filter_map(|name| name.strip_prefix(&prefix)?.parse::<u32>().ok());
    numbers.max().map_or(0, |last| last.saturating_add(1))
}

fn parse<T: serde::de::DeserializeOwned>(item: &Item, field: &str) -> Result<T, String> {
    let text = item.fields.get(field).and_then(Value::as_str).ok_or_else(|| format!("{field} is missing"))?;
    serde_json::from_str(text).map_err(|error| format!("{field}: {error}"))
}

/// A value whose fields are strings, booleans and numbers.
fn flat<T: Serialize>(value: &T) -> Fields {
    // Structs of plain fields: serializing them cannot fail.
    serde_json::to_value(value).map(fields).unwrap_or_default()
}

fn fields(value: Value) -> Fields {
    match value {
        Value::Object(fields) => fields,
        _ => Fields::new(),
    }
}
