//! `slurm_resume.events` and `clustermgtd.events`: one JSON object per line, as the Python package writes them, for the CloudWatch metric
//! filters that people have on them (aws-facts B.17). Here what all events share, and the failed launches: failed nodes with their codes in,
//! lines out; the appending is here too. Keys, their order, the blanks between them and the words are the package's: filters and dashboards
//! compare them. `pass.rs` has clustermgtd's own.

pub(crate) mod pass;

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::Serialize;
use serde::ser::SerializeMap;

use crate::model::ec2_codes;
use crate::model::hostlist;
use crate::model::time::Timestamp;

/// Nodes that one event names at most; its count is the true one.
const NODES: usize = 100;

/// Who writes: the package's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Component {
    Resume,
    Clustermgtd,
}

/// What all events of a run have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) component: Component,
    pub(crate) cluster: &'a str,
    /// The head node's own instance.
    pub(crate) instance_id: &'a str,
    pub(crate) at: Timestamp,
}

/// A node whose launch failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FailedNode<'a> {
    pub(crate) name: &'a str,
    /// Always on (`st`), as opposed to one that Slurm calls for (`dy`).
    pub(crate) is_static: bool,
    pub(crate) code: &'a str,
}

/// The words for kinds of failure, in the order in which their events are written.
const TYPES: [&str; 5] = ["ice-failures", "vcpu-limit-failures", "volume-limit-failures", "iam-policy-errors", "other-failures"];

fn failure_type(code: &str) -> &'static str {
    match code {
        _ if ec2_codes::is_ice(code) => "ice-failures",
        "VcpuLimitExceeded" => "vcpu-limit-failures",
        "VolumeLimitExceeded" | "InsufficientVolumeCapacity" => "volume-limit-failures",
        "UnauthorizedOperation" => "iam-policy-errors",
        _ => "other-failures",
    }
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Event<'a, D> {
    datetime: String,
    version: u8,
    scheduler: &'static str,
    cluster_name: &'a str,
    node_role: &'static str,
    component: &'static str,
    level: &'static str,
    instance_id: &'a str,
    event_type: &'static str,
    message: &'static str,
    detail: D,
}

impl Source<'_> {
    /// One event as a line.
    fn event<D: Serialize>(&self, level: &'static str, event_type: &'static str, message: &'static str, detail: D) -> String {
        line(&Event {
            datetime: datetime(self.at),
            version: 0,
            scheduler: "slurm",
            cluster_name: self.cluster,
            node_role: "HeadNode",
            component: match self.component {
                Component::Resume => "slurm-resume",
                Component::Clustermgtd => "clustermgtd",
            },
            level,
            instance_id: self.instance_id,
            event_type,
            message,
            detail,
        })
    }
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Detail<'a> {
    failure_type: &'static str,
    count: usize,
    error_details: Codes<'a>,
}

#[derive(Serialize)]
struct Node<'a> {
    name: &'a str,
}

/// Nodes by code.
struct Codes<'a>(BTreeMap<&'a str, Vec<&'a str>>);

impl Serialize for Codes<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Nodes<'a> {
            count: usize,
            nodes: Vec<Node<'a>>,
        }
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (code, names) in &self.0 {
            let nodes = names.iter().take(NODES).map(|name| Node { name }).collect();
            map.serialize_entry(code, &Nodes { count: names.len(), nodes })?;
        }
        map.end()
    }
}

/// `node-launch-failure-count`, one line for each kind of failure that happened; dynamic and static nodes apart, so that each message is
/// true of all its nodes (R22). The counts of a kind add up to the package's single one. A node counts once, by its first code.
pub(crate) fn launch_failures(source: &Source<'_>, failed: &[FailedNode<'_>]) -> Vec<String> {
    let mut by_node: BTreeMap<&str, FailedNode<'_>> = BTreeMap::new();
    for node in failed {
        by_node.entry(node.name).or_insert(*node);
    }
    let mut names: Vec<&str> = by_node.keys().copied().collect();
    hostlist::sort(&mut names);
    let mut lines = Vec::new();
    for kind in TYPES {
        for is_static in [false, true] {
            let mut codes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
            for node in names.iter().filter_map(|name| by_node.get(name)) {
                if node.is_static == is_static && failure_type(node.code) == kind {
                    codes.entry(node.code).or_default().push(node.name);
                }
            }
            if codes.is_empty() {
                continue;
            }
            let count = codes.values().map(Vec::len).sum();
            let message = if is_static {
                "Number of static nodes that failed to launch a backing instance"
            } else {
                "Number of dynamic nodes that failed to launch a backing instance"
            };
            let detail = Detail { failure_type: kind, count, error_details: Codes(codes) };
            lines.push(source.event("WARNING", "node-launch-failure-count", message, detail));
        }
    }
    lines
}

/// UTC with milliseconds: `2026-03-14T15:09:26.535+00:00`.
fn datetime(at: Timestamp) -> String {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_millis(at.millis());
    let text = humantime::format_rfc3339_millis(time).to_string();
    format!("{}+00:00", text.trim_end_matches('Z'))
}

/// One line, with Python's blanks behind commas and colons.
fn line<D: Serialize>(event: &Event<'_, D>) -> String {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, Blanks);
    // Writing to memory and keys that are texts cannot fail.
    let written = event.serialize(&mut serializer);
    bytes.push(b'\n');
    match (written, String::from_utf8(bytes)) {
        (Ok(()), Ok(text)) => text,
        _ => String::new(),
    }
}

struct Blanks;

impl serde_json::ser::Formatter for Blanks {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

/// Appends each line with one write, so that lines of several programs never mix. The file is opened anew each time: it may have been
/// rotated meanwhile, by renaming or by truncation.
pub(crate) fn append(path: &Path, lines: &[String]) -> io::Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    let mut file = OpenOptions::new().create(true).append(true).mode(0o644).open(path)?;
    lines.iter().try_for_each(|line| file.write_all(line.as_bytes()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const EXAMPLE: &str = include_str!("../../tests/data/parallelcluster/event_node_launch_failure.json");

    fn source() -> Source<'static> {
        let at = "2026-03-14T15:09:26.535Z".parse().unwrap();
        Source { component: Component::Resume, cluster: "orchard", instance_id: "i-0a11e57000c0ffee1", at }
    }

    fn dynamic<'a>(name: &'a str, code: &'a str) -> FailedNode<'a> {
        FailedNode { name, is_static: false, code }
    }

    #[test]
    fn r22_an_event_is_the_packages_byte_for_byte() {
        let code = "InsufficientInstanceCapacity";
        let lines = launch_failures(&source(), &[dynamic("apple-dy-core-4", code), dynamic("apple-dy-core-3", code)]);
        assert_eq!(lines.concat().trim_end(), EXAMPLE.trim_end());
        assert!(lines[0].ends_with("}\n") && lines[0].matches('\n').count() == 1);
    }

    #[test]
    fn r22_dynamic_and_static_nodes_are_called_what_they_are() {
        let fixed = FailedNode { name: "apple-st-core-1", is_static: true, code: "VcpuLimitExceeded" };
        let lines = launch_failures(&source(), &[fixed, dynamic("apple-dy-core-1", "VcpuLimitExceeded")]);
        let seen: Vec<(String, u64, String)> = lines
            .iter()
            .map(|line| {
                let event: serde_json::Value = serde_json::from_str(line).unwrap();
                let nodes = event["detail"]["error-details"]["VcpuLimitExceeded"]["nodes"].to_string();
                (event["message"].as_str().unwrap().to_owned(), event["detail"]["count"].as_u64().unwrap(), nodes)
            })
            .collect();
        let message = |kind: &str| format!("Number of {kind} nodes that failed to launch a backing instance");
        assert_eq!(
            seen,
            [
                (message("dynamic"), 1, r#"[{"name":"apple-dy-core-1"}]"#.to_owned()),
                (message("static"), 1, r#"[{"name":"apple-st-core-1"}]"#.to_owned())
            ]
        );
    }

    #[test]
    fn each_kind_of_failure_has_its_own_event() {
        let codes = [
            ("LimitedInstanceCapacity", "ice-failures"),
            ("SpotMaxPriceTooLow", "ice-failures"),
            ("VcpuLimitExceeded", "vcpu-limit-failures"),
            ("VolumeLimitExceeded", "volume-limit-failures"),
            ("InsufficientVolumeCapacity", "volume-limit-failures"),
            ("UnauthorizedOperation", "iam-policy-errors"),
            ("InvalidNodenameError", "other-failures"),
            ("InsufficientFreeAddressesInSubnet", "other-failures"),
        ];
        for (code, kind) in codes {
            assert_eq!(failure_type(code), kind, "{code}");
        }
        let names: Vec<String> = (0..codes.len()).map(|n| format!("q-dy-r-{n}")).collect();
        let failed: Vec<FailedNode<'_>> = names.iter().zip(codes).map(|(name, (code, _))| dynamic(name, code)).collect();
        let lines = launch_failures(&source(), &failed);
        assert_eq!(lines.len(), TYPES.len());
        let counts = lines.iter().map(|line| {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            event["detail"]["count"].as_u64().unwrap()
        });
        assert_eq!(counts.collect::<Vec<_>>(), [2, 1, 2, 1, 2]);
        assert!(launch_failures(&source(), &[]).is_empty());
    }

    #[test]
    fn long_lists_are_cut_and_counts_are_true() {
        let names: Vec<String> = (1..=250).map(|n| format!("q-dy-r-{n}")).collect();
        let mut failed: Vec<FailedNode<'_>> = names.iter().map(|name| dynamic(name, "Unsupported")).collect();
        // Told twice: counted once.
        failed.push(dynamic("q-dy-r-7", "Unsupported"));
        let lines = launch_failures(&source(), &failed);
        let event: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
        let code = &event["detail"]["error-details"]["Unsupported"];
        assert_eq!((event["detail"]["count"].as_u64(), code["count"].as_u64()), (Some(250), Some(250)));
        let nodes = code["nodes"].as_array().unwrap();
        assert_eq!((nodes.len(), nodes[99]["name"].as_str()), (100, Some("q-dy-r-100")), "in the order of their numbers");
    }

    #[test]
    fn lines_are_appended_and_a_rotated_file_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slurm_resume.events");
        append(&path, &[]).unwrap();
        assert!(!path.exists());
        append(&path, &["a\n".to_owned()]).unwrap();
        std::fs::rename(&path, dir.path().join("slurm_resume.events.1")).unwrap();
        append(&path, &["b\n".to_owned(), "c\n".to_owned()]).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "b\nc\n");
    }
}
