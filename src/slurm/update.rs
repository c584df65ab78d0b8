//! Changes to nodes as `scontrol update` calls: nodes and values in, argument vectors out. Pure; `scontrol.rs` runs them.
//!
//! Rules of slurm-facts D kept here:
//! - names are written out, sorted, never compressed: 22.05.5 to 22.05.7 mix up name and address of unsorted lists;
//! - there are exactly as many addresses as names, else slurmctld refuses the call;
//! - a call is cut before one argument reaches the kernel's limit of 128 KiB;
//! - `state=future` is never written: it makes a node vanish;
//! - `state=resume` of nodes that are neither down nor drained is answered with an error, and the others of the call are resumed all the
//!   same: no failure (slurm-facts D.3).

use std::collections::BTreeMap;
use std::time::Duration;

use super::version::Version;
use crate::model::failure::UNSAID;

/// Bytes of one argument. The kernel takes 131,071.
const MAX_ARGUMENT: usize = 100_000;

/// Lines of one call on stdin: each is a request of its own to slurmctld, about 0.9 ms (slurm-facts D.2).
const MAX_LINES: usize = 500;

/// What Slurm is to be told about a node that got an instance. Absent = not told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeUpdate {
    pub(crate) node: String,
    pub(crate) addr: Option<String>,
    pub(crate) hostname: Option<String>,
    pub(crate) instance_id: Option<String>,
}

/// A field of an update: `key=value`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    /// The same for all nodes of the call.
    Same(String),
    /// One for each node, in the nodes' order.
    Each(Vec<String>),
}

/// One run of scontrol, for one or many nodes. Can be halved, to find the node that Slurm refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    /// Sorted, without duplicates.
    nodes: Vec<String>,
    fields: Vec<(&'static str, Value)>,
    /// One `update` line per node on standard input instead of one update for all.
    lines: bool,
}

impl Call {
    pub(crate) fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// scontrol's arguments, without the program itself. Empty when the call goes through standard input.
    pub(crate) fn args(&self) -> Vec<String> {
        if self.lines {
            return Vec::new();
        }
        let mut args = vec!["update".to_owned(), format!("nodename={}", self.nodes.join(","))];
        for (key, value) in &self.fields {
            args.push(match value {
                Value::Same(value) => format!("{key}={value}"),
                Value::Each(values) => format!("{key}={}", values.join(",")),
            });
        }
        args
    }

    /// What goes to scontrol's standard input, if anything. Values hold no blanks there: only InstanceId is sent so.
    pub(crate) fn input(&self) -> Option<String> {
        if !self.lines {
            return None;
        }
        let mut text = String::new();
        for (index, node) in self.nodes.iter().enumerate() {
            text.push_str("update nodename=");
            text.push_str(node);
            for (key, value) in &self.fields {
                let value = match value {
                    Value::Same(value) => value,
                    Value::Each(values) => &values[index],
                };
                text.push(' ');
                text.push_str(key);
                text.push('=');
                text.push_str(value);
            }
            text.push('\n');
        }
        Some(text)
    }

    /// The same change for the nodes that `keep` names, and for the others. Either may have no nodes.
    pub(crate) fn partition(&self, mut keep: impl FnMut(&str) -> bool) -> (Self, Self) {
        let kept: Vec<bool> = self.nodes.iter().map(|node| keep(node)).collect();
        (self.select(|index| kept[index]), self.select(|index| !kept[index]))
    }

    /// Two calls of about half the nodes each; `None` for a single node.
    pub(crate) fn halves(&self) -> Option<(Self, Self)> {
        if self.nodes.len() < 2 {
            return None;
        }
        let middle = self.nodes.len() / 2;
        Some((self.select(|index| index < middle), self.select(|index| index >= middle)))
    }

    fn select(&self, keep: impl Fn(usize) -> bool) -> Self {
        let pick = |values: &[String]| {
            values.iter().enumerate().filter(|(index, _)| keep(*index)).map(|(_, value)| value.clone()).collect()
        };
        let fields = self.fields.iter().map(|(key, value)| {
            let value = match value {
                Value::Same(value) => Value::Same(value.clone()),
                Value::Each(values) => Value::Each(pick(values)),
            };
            (*key, value)
        });
        Self { nodes: pick(&self.nodes), fields: fields.collect(), lines: self.lines }
    }

    /// Does slurmctld's refusal say no more than that some of the nodes need none of this? Everything else of the call is done then.
    pub(super) fn is_settled_by(&self, refusal: &str) -> bool {
        let resumes = self.fields.iter().any(|(key, value)| *key == "state" && *value == Value::Same(RESUME.to_owned()));
        // "specified" up to 25.11, "transition" on 26.05.
        resumes && refusal.contains("Invalid node state")
    }

    /// For log lines: `nodeaddr, nodehostname of 40 nodes, c5-1 to c5-9`.
    pub(crate) fn describe(&self) -> String {
        let keys: Vec<&str> = self.fields.iter().map(|(key, _)| *key).collect();
        match &self.nodes[..] {
            [] => "nothing".to_owned(),
            [one] => format!("{} of {one}", keys.join(", ")),
            [first, .., last] => format!("{} of {} nodes, {first} to {last}", keys.join(", "), self.nodes.len()),
        }
    }
}

/// Tells Slurm where the nodes are. A node named twice is told what was said last. Nodes for which nothing is to be told are left out.
///
/// InstanceId is told as far as `version` takes it: a list with the addresses from 25.11.6 on, one line per node before that. Those
/// lines go first: a clustermgtd that ties instances to nodes by InstanceId alone takes an address without it for a lost instance.
pub(crate) fn publish_args(updates: &[NodeUpdate], version: &Version, nodes_per_call: usize) -> Vec<Call> {
    let by_name: BTreeMap<&str, &NodeUpdate> = updates.iter().map(|update| (update.node.as_str(), update)).collect();
    let list = version.takes_instance_id_list();
    let mut calls = Vec::new();
    if version.takes_instance_id() && !list {
        let with_id = by_name.values().filter(|update| update.instance_id.is_some());
        let (nodes, ids) = with_id.filter_map(|update| Some((update.node.clone(), update.instance_id.clone()?))).unzip();
        cut(
            Call { nodes, fields: vec![("instanceid", Value::Each(ids))], lines: true },
            nodes_per_call.min(MAX_LINES),
            &mut calls,
        );
    }
    // Nodes that are told the same fields go together: as many values as names.
    let mut shapes: BTreeMap<Vec<&'static str>, Vec<&NodeUpdate>> = BTreeMap::new();
    for update in by_name.values() {
        let mut shape = Vec::new();
        if update.addr.is_some() {
            shape.push("nodeaddr");
        }
        if update.hostname.is_some() {
            shape.push("nodehostname");
        }
        if list && update.instance_id.is_some() {
            shape.push("instanceid");
        }
        if !shape.is_empty() {
            shapes.entry(shape).or_default().push(update);
        }
    }
    for (shape, updates) in shapes {
        let nodes = updates.iter().map(|update| update.node.clone()).collect();
        let fields = shape.into_iter().map(|key| {
            let values = updates.iter().filter_map(|update| match key {
                "nodeaddr" => update.addr.clone(),
                "nodehostname" => update.hostname.clone(),
                _ => update.instance_id.clone(),
            });
            (key, Value::Each(values.collect()))
        });
        cut(Call { nodes, fields: fields.collect(), lines: false }, nodes_per_call, &mut calls);
    }
    calls
}

/// Gives nodes up that are still powering up: requeues their jobs, runs SuspendProgram, ends in `idle~` (slurm-facts I).
///
/// Where the version asks for it each node gets an address from 192.0.2.0/24 (RFC 5737, never a machine) before: an update goes
/// from node to node, and the first one's requeues a job whose other nodes must have theirs by then (docs/slurm-notes.md).
pub(crate) fn power_down_force_args(nodes: &[String], reason: &str, version: &Version, nodes_per_call: usize) -> Vec<Call> {
    let mut calls = dummy_address_args(nodes, version, nodes_per_call);
    calls.extend(power_down_force_at_once_args(nodes, reason, nodes_per_call));
    calls
}

/// The same without a look at addresses: for nodes that have one, or that no job waits for.
pub(crate) fn power_down_force_at_once_args(nodes: &[String], reason: &str, nodes_per_call: usize) -> Vec<Call> {
    let fields = vec![("state", Value::Same("power_down_force".to_owned())), ("reason", Value::Same(one_line(reason)))];
    all(sorted(nodes), fields, nodes_per_call)
}

/// The addresses that [`power_down_force_args`] gives first, for nodes that get several updates with different reasons: all of them
/// need theirs before the first such update. No call where the version does not ask for it.
pub(crate) fn dummy_address_args(nodes: &[String], version: &Version, nodes_per_call: usize) -> Vec<Call> {
    if !version.needs_dummy_address() {
        return Vec::new();
    }
    let nodes = sorted(nodes);
    let dummies = (0..nodes.len()).map(|index| format!("192.0.2.{}", index % 254 + 1)).collect();
    all(nodes, vec![("nodeaddr", Value::Each(dummies))], nodes_per_call)
}

/// Sets nodes down. Slurm asks for a reason. `resume_after` (whole seconds, at least one) only where
/// [`Version::takes_resume_after`]: older ones refuse the whole update. On a node that is POWERING_UP Slurm loses it (slurm-facts I).
pub(crate) fn down_args(nodes: &[String], reason: &str, resume_after: Option<Duration>, nodes_per_call: usize) -> Vec<Call> {
    let mut fields = vec![("state", Value::Same("down".to_owned())), ("reason", Value::Same(one_line(reason)))];
    if let Some(after) = resume_after {
        fields.push(("resumeafter", Value::Same(after.as_secs().clamp(1, MAX_RESUME_AFTER).to_string())));
    }
    all(sorted(nodes), fields, nodes_per_call)
}

/// Drains nodes: what runs goes on, nothing new starts. Slurm asks for a reason.
pub(crate) fn drain_args(nodes: &[String], reason: &str, nodes_per_call: usize) -> Vec<Call> {
    let fields = vec![("state", Value::Same("drain".to_owned())), ("reason", Value::Same(one_line(reason)))];
    all(sorted(nodes), fields, nodes_per_call)
}

const RESUME: &str = "resume";

/// Ends DOWN and DRAIN, and POWERING_DOWN (aws-facts D.8); nodes that are nothing of this stay as they are and count as done.
pub(crate) fn resume_args(nodes: &[String], nodes_per_call: usize) -> Vec<Call> {
    all(sorted(nodes), vec![("state", Value::Same(RESUME.to_owned()))], nodes_per_call)
}

/// Seconds: ResumeAfter is a 32-bit number whose highest values mean "infinite" and "not set".
const MAX_RESUME_AFTER: u64 = 0xffff_fff0;

/// Powers nodes down once nothing runs on them. Brings a `down~` node back to `idle~` by way of SuspendProgram.
pub(crate) fn power_down_args(nodes: &[String], reason: Option<&str>, nodes_per_call: usize) -> Vec<Call> {
    let mut fields = vec![("state", Value::Same("power_down".to_owned()))];
    if let Some(reason) = reason {
        fields.push(("reason", Value::Same(one_line(reason))));
    }
    all(sorted(nodes), fields, nodes_per_call)
}

/// Takes addresses back: NodeAddr and NodeHostName become the node's name again. Slurm does so itself from 23.11 on, where this is no call.
///
/// Not for nodes that were given up: on 22.05 an update without a state clears the reason of a node that is not down
/// (docs/slurm-notes.md), and its address from 192.0.2.0/24 is what keeps slurmctld from freezing.
pub(crate) fn reset_address_args(nodes: &[String], version: &Version, nodes_per_call: usize) -> Vec<Call> {
    if version.registration_sets_address() { Vec::new() } else { own_address_args(nodes, nodes_per_call) }
}

/// NodeAddr and NodeHostName become the node's name, at once and on every version: beside ParallelCluster's clustermgtd, which takes
/// any other address for an instance that must be there, it is not left to Slurm (slurm-facts D.4: only once SuspendTimeout is over).
pub(crate) fn own_address_args(nodes: &[String], nodes_per_call: usize) -> Vec<Call> {
    let nodes = sorted(nodes);
    let fields = vec![("nodeaddr", Value::Each(nodes.clone())), ("nodehostname", Value::Each(nodes.clone()))];
    all(nodes, fields, nodes_per_call)
}

fn sorted(nodes: &[String]) -> Vec<String> {
    let mut nodes = nodes.to_vec();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

fn all(nodes: Vec<String>, fields: Vec<(&'static str, Value)>, nodes_per_call: usize) -> Vec<Call> {
    let mut calls = Vec::new();
    cut(Call { nodes, fields, lines: false }, nodes_per_call, &mut calls);
    calls
}

/// Cuts a call so that no part has more than `most` nodes (at least one) or an argument over [`MAX_ARGUMENT`].
fn cut(call: Call, most: usize, calls: &mut Vec<Call>) {
    let most = most.max(1);
    let mut start = 0;
    while start < call.nodes.len() {
        let mut end = start;
        // Bytes of nodename and of each field, with the comma behind each value.
        let mut bytes = vec![0; call.fields.len() + 1];
        while end < call.nodes.len() && end - start < most {
            let lengths = std::iter::once(call.nodes[end].len()).chain(call.fields.iter().map(|(_, value)| match value {
                Value::Same(_) => 0,
                Value::Each(values) => values[end].len(),
            }));
            let next: Vec<usize> = bytes.iter().zip(lengths).map(|(sum, length)| sum + length + 1).collect();
            if end > start && next.iter().any(|sum| *sum > MAX_ARGUMENT) {
                break;
            }
            bytes = next;
            end += 1;
        }
        calls.push(call.select(|index| (start..end).contains(&index)));
        start = end;
    }
}

/// Slurm takes any bytes as a reason, strips one quote at each end and prints further lines in a way that others misread
/// (slurm-facts D.3): one line, no quotes, never empty.
fn one_line(reason: &str) -> String {
    let clean: String = reason.chars().map(|c| if c.is_control() || c == '"' { ' ' } else { c }).collect();
    let clean = clean.trim();
    if clean.is_empty() { UNSAID.to_owned() } else { clean.to_owned() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    const V22: Version = Version::new(22, 5, 8);
    const V24: Version = Version::new(24, 11, 5);
    const V25: Version = Version::new(25, 11, 6);
    const V26: Version = Version::new(26, 5, 5);

    fn update(node: &str, addr: &str, hostname: &str, id: &str) -> NodeUpdate {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        NodeUpdate { node: node.to_owned(), addr: some(addr), hostname: some(hostname), instance_id: some(id) }
    }

    fn names(nodes: &[&str]) -> Vec<String> {
        nodes.iter().map(|node| (*node).to_owned()).collect()
    }

    /// Arguments joined by blanks, or the input's lines.
    fn shown(calls: &[Call]) -> Vec<String> {
        calls.iter().map(|call| call.input().unwrap_or_else(|| call.args().join(" "))).collect()
    }

    #[test]
    fn publishing_by_version() {
        let two = [update("b", "10.0.0.2", "ip-2", "i-2"), update("a", "10.0.0.1", "ip-1", "i-1")];
        let addresses = "update nodename=a,b nodeaddr=10.0.0.1,10.0.0.2 nodehostname=ip-1,ip-2";
        let lines = "update nodename=a instanceid=i-1\nupdate nodename=b instanceid=i-2\n";
        for (version, expected) in [
            (V22, vec![addresses.to_owned()]),
            (Version::new(23, 2, 9), vec![addresses.to_owned()]),
            (Version::new(23, 11, 0), vec![lines.to_owned(), addresses.to_owned()]),
            (V24, vec![lines.to_owned(), addresses.to_owned()]),
            (Version::new(25, 11, 5), vec![lines.to_owned(), addresses.to_owned()]),
            (V25, vec![format!("{addresses} instanceid=i-1,i-2")]),
            (V26, vec![format!("{addresses} instanceid=i-1,i-2")]),
        ] {
            assert_eq!(shown(&publish_args(&two, &version, 1000)), expected, "{version}");
        }
    }

    #[test]
    fn only_what_is_given_is_told() {
        let ids = [update("a", "", "", "i-1"), update("b", "", "", "i-2")];
        assert!(publish_args(&ids, &V22, 10).is_empty());
        assert_eq!(shown(&publish_args(&ids, &V26, 10)), ["update nodename=a,b instanceid=i-1,i-2"]);
        // Nodes that are told different fields are never in one list.
        let mixed = [update("a", "1.1.1.1", "", ""), update("b", "1.1.1.2", "h", ""), update("c", "", "", "")];
        assert_eq!(
            shown(&publish_args(&mixed, &V26, 10)),
            ["update nodename=a nodeaddr=1.1.1.1", "update nodename=b nodeaddr=1.1.1.2 nodehostname=h"]
        );
        // Twice the same node: the last word counts.
        let twice = [update("a", "1.1.1.1", "", ""), update("a", "1.1.1.2", "", "")];
        assert_eq!(shown(&publish_args(&twice, &V26, 10)), ["update nodename=a nodeaddr=1.1.1.2"]);
        assert!(publish_args(&[], &V26, 10).is_empty());
    }

    #[test]
    fn giving_up_by_version() {
        let nodes = names(&["b", "a", "b"]);
        let forced = "update nodename=a,b state=power_down_force reason=(Code:X) no room";
        for (version, expected) in
            [(V22, &["update nodename=a,b nodeaddr=192.0.2.1,192.0.2.2", forced][..]), (V24, &[forced]), (V26, &[forced])]
        {
            assert_eq!(shown(&power_down_force_args(&nodes, "(Code:X) no room", &version, 100)), expected, "{version}");
        }
        let many: Vec<String> = (0..600).map(|index| format!("n{index:03}")).collect();
        let call = &power_down_force_args(&many, "r", &V22, 1000)[0].args()[2];
        let addresses: Vec<&str> = call.strip_prefix("nodeaddr=").unwrap().split(',').collect();
        assert_eq!(
            (addresses.len(), addresses[0], addresses[253], addresses[254]),
            (600, "192.0.2.1", "192.0.2.254", "192.0.2.1")
        );
    }

    #[test]
    fn the_other_changes() {
        let nodes = names(&["b", "a"]);
        for (calls, expected) in [
            (down_args(&nodes, "x", None, 9), vec!["update nodename=a,b state=down reason=x"]),
            (
                down_args(&nodes, "x", Some(Duration::from_millis(90_900)), 9),
                vec!["update nodename=a,b state=down reason=x resumeafter=90"],
            ),
            (
                down_args(&nodes, "x", Some(Duration::ZERO), 1),
                vec![
                    "update nodename=a state=down reason=x resumeafter=1",
                    "update nodename=b state=down reason=x resumeafter=1",
                ],
            ),
            (power_down_args(&nodes, None, 9), vec!["update nodename=a,b state=power_down"]),
            (power_down_args(&nodes, Some("late"), 9), vec!["update nodename=a,b state=power_down reason=late"]),
            (reset_address_args(&nodes, &V22, 9), vec!["update nodename=a,b nodeaddr=a,b nodehostname=a,b"]),
            (reset_address_args(&nodes, &V24, 9), vec![]),
            (own_address_args(&nodes, 9), vec!["update nodename=a,b nodeaddr=a,b nodehostname=a,b"]),
            (down_args(&[], "x", None, 9), vec![]),
            (
                drain_args(&nodes, "failing\nchecks", 1),
                vec![
                    "update nodename=a state=drain reason=failing checks",
                    "update nodename=b state=drain reason=failing checks",
                ],
            ),
            (resume_args(&nodes, 9), vec!["update nodename=a,b state=resume"]),
        ] {
            assert_eq!(shown(&calls), expected);
        }
    }

    #[test]
    fn a_reason_is_one_argument_and_one_line() {
        let call = &down_args(&names(&["a"]), " \"quoted\"\nNodeName=evil ", None, 9)[0];
        assert_eq!(call.args()[3], "reason=quoted  NodeName=evil");
        assert_eq!(call.args().len(), 4);
        assert_eq!(down_args(&names(&["a"]), "\n", None, 9)[0].args()[3], "reason=slurm-ec2");
    }

    #[test]
    fn cut_by_bytes_and_by_number() {
        let many: Vec<NodeUpdate> = (0..10_000)
            .map(|index| update(&format!("queue-dy-resource-{index}"), &format!("10.0.{}.{}", index / 250, index % 250), "", ""))
            .collect();
        let calls = publish_args(&many, &V24, usize::MAX);
        assert_eq!(calls.len(), 3, "227 KB of names");
        assert!(calls.iter().flat_map(Call::args).all(|arg| arg.len() <= MAX_ARGUMENT + "nodehostname=".len()));
        assert_eq!(publish_args(&many, &V24, 1_000).len(), 10);
        assert_eq!(publish_args(&many, &V24, 0).len(), 10_000, "never an endless loop");
        // A single value that is too long is not held back: Slurm says no, not we.
        assert_eq!(down_args(&["n".repeat(MAX_ARGUMENT + 9)], "x", None, 5).len(), 1);
    }

    proptest! {
        /// However the calls are cut and halved: every node once, with its own address.
        #[test]
        fn pairs_stay_together(count in 1usize..200, most in 1usize..50, seed in any::<u64>()) {
            let mut updates: Vec<NodeUpdate> = (0..count).map(|index| update(&format!("n{index}"), &format!("10.0.0.{index}"), &format!("h{index}"), &format!("i-{index}"))).collect();
            // Any order.
            let mut state = seed | 1;
            for index in (1..updates.len()).rev() {
                state ^= state << 13; state ^= state >> 7; state ^= state << 17;
                updates.swap(index, usize::try_from(state % (index as u64 + 1)).unwrap());
            }
            let mut waiting = publish_args(&updates, &V26, most);
            let mut singles = Vec::new();
            while let Some(call) = waiting.pop() {
                prop_assert!(call.nodes().len() <= most);
                prop_assert!(call.nodes().is_sorted());
                match call.halves() {
                    Some((first, second)) => waiting.extend([first, second]),
                    None => singles.push(call.args().join(" ")),
                }
            }
            singles.sort();
            let mut expected: Vec<String> = (0..count).map(|i| format!("update nodename=n{i} nodeaddr=10.0.0.{i} nodehostname=h{i} instanceid=i-{i}")).collect();
            expected.sort();
            prop_assert_eq!(singles, expected);
        }
    }
}
