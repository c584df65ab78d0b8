//! Which node is this machine? What a place knows of all nodes goes in, the one name, or why there is none, comes out. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::model::node::SlurmNode;

/// Who this machine is, as far as it knows by itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Identity {
    /// `i-…`
    pub(super) instance: Option<String>,
    /// Its private addresses.
    pub(super) addresses: BTreeSet<String>,
    /// Instance metadata has told the address; until then it is asked again.
    pub(super) is_told: bool,
}

impl Identity {
    /// For messages.
    pub(super) fn list(&self) -> String {
        if self.addresses.is_empty() { "none".to_owned() } else { self.addresses.iter().cloned().collect::<Vec<_>>().join(", ") }
    }
}

/// By NodeAddr. A node that is off keeps its last address on Slurm 22.05 and 23.02, and EC2 gives addresses to others again: such nodes
/// are passed over, and so is one that Slurm says is another instance's. Of the rest one that is powering up is the better claim, for the
/// same reason. One that is down and off comes last: clustermgtd launches static nodes that way, but one that missed ResumeTimeout looks
/// the same. Never guesses between two.
pub(super) fn by_address(nodes: &[SlurmNode], own: &Identity) -> Result<String, String> {
    let is_anothers = |node: &SlurmNode| own.instance.is_some() && node.instance_id.is_some() && node.instance_id != own.instance;
    let going = nodes.iter().filter(|node| own.addresses.contains(&node.addr) && !is_anothers(node));
    let (off, up): (Vec<_>, Vec<_>) =
        going.filter(|node| !node.state.is_powering_down()).partition(|node| node.state.is_powered_down());
    let down: Vec<_> = off.into_iter().filter(|node| node.state.is_down()).collect();
    let (rising, others): (Vec<_>, Vec<_>) = up.into_iter().partition(|node| node.state.is_powering_up());
    match (&rising[..], &others[..], &down[..]) {
        ([one], ..) | ([], [one], _) | ([], [], [one]) => Ok(one.name.clone()),
        ([], [], []) => Err(format!("no node that is up or coming up has NodeAddr of ({})", own.list())),
        _ => {
            let names: Vec<&str> = rising.iter().chain(&others).chain(&down).map(|node| node.name.as_str()).collect();
            Err(format!("several nodes have NodeAddr of ({}): {}", own.list(), names.join(", ")))
        }
    }
}

/// What is read of a mapping; a newer one may hold more.
#[derive(Debug, Deserialize)]
struct Mapping {
    nodes: BTreeMap<String, Entry>,
}

#[derive(Debug, Deserialize)]
struct Entry {
    instance_id: Option<String>,
    private_ip: Option<String>,
}

/// By the mapping: the instance id, else an address whose entry names no instance. An entry that names one is never taken by its address
/// alone: EC2 gives addresses to others again, and metadata may only not answer yet.
pub(super) fn by_mapping(bytes: &[u8], own: &Identity) -> Result<String, String> {
    let mapping: Mapping = serde_json::from_slice(bytes).map_err(|error| format!("it is no mapping: {error}"))?;
    let by_id = |entry: &Entry| own.instance.is_some() && entry.instance_id == own.instance;
    let by_ip = |entry: &Entry| {
        let same = entry.private_ip.as_ref().is_some_and(|ip| own.addresses.contains(ip));
        same && entry.instance_id.is_none()
    };
    let names = |matches: &dyn Fn(&Entry) -> bool| -> Vec<String> {
        mapping.nodes.iter().filter(|(_, entry)| matches(entry)).map(|(name, _)| name.clone()).collect()
    };
    let found = names(&by_id);
    let found = if found.is_empty() { names(&by_ip) } else { found };
    only(found, || format!("none of its {} nodes has this instance", mapping.nodes.len()))
}

/// The one name there is.
pub(super) fn only(mut names: Vec<String>, none: impl FnOnce() -> String) -> Result<String, String> {
    match (names.pop(), names.is_empty()) {
        (None, _) => Err(none()),
        (Some(name), true) => checked(name),
        (Some(name), false) => Err(format!("it has several nodes for this instance: {}, {name}", names.join(", "))),
    }
}

/// A name that slurmd can be given: one word that stands for one node.
pub(super) fn checked(name: String) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if !name.is_empty()
        && name.len() <= MAX_NAME
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(plain)
    {
        Ok(name)
    } else {
        Err(format!("{name:?} is no name of a node"))
    }
}

/// Bytes; Slurm's own names are far shorter.
const MAX_NAME: usize = 255;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::slurm::show;

    const UP: &str = "IDLE+CLOUD+NOT_RESPONDING+POWERING_UP";
    const OFF: &str = "IDLE+CLOUD+POWERED_DOWN";
    const ADDRESS: &str = "10.0.0.5";

    fn own(instance: Option<&str>) -> Identity {
        Identity { instance: instance.map(str::to_owned), addresses: [ADDRESS.to_owned()].into(), is_told: true }
    }

    fn nodes(list: &[(&str, &str, &str)]) -> Vec<SlurmNode> {
        let text: String = list
            .iter()
            .map(|(name, addr, state)| {
                format!("NodeName={name} CoresPerSocket=1 \n   NodeAddr={addr} NodeHostName={name} \n   State={state} \n\n")
            })
            .collect();
        show::parse(&text, None).unwrap().nodes
    }

    #[test]
    fn the_node_with_this_address_that_is_up_or_on_its_way() {
        for (what, list, expected) in [
            ("one", vec![("c5-1", "10.0.0.50", UP), ("c5-2", ADDRESS, UP)], Ok("c5-2")),
            ("off, address kept", vec![("old", ADDRESS, OFF), ("new", ADDRESS, UP)], Ok("new")),
            ("going off", vec![("old", ADDRESS, "IDLE+CLOUD+POWERING_DOWN"), ("new", ADDRESS, UP)], Ok("new")),
            ("powering up goes before up", vec![("a", ADDRESS, "IDLE+CLOUD"), ("b", ADDRESS, UP)], Ok("b")),
            ("slurmd starts anew", vec![("a", ADDRESS, "ALLOCATED+CLOUD")], Ok("a")),
            (
                "only one that is off",
                vec![("old", ADDRESS, OFF)],
                Err("no node that is up or coming up has NodeAddr of (10.0.0.5)"),
            ),
            ("static, launched by clustermgtd", vec![("st", ADDRESS, "DOWN+CLOUD+POWERED_DOWN")], Ok("st")),
            ("down and off comes last", vec![("st", ADDRESS, "DOWN+CLOUD+POWERED_DOWN"), ("a", ADDRESS, "IDLE+CLOUD")], Ok("a")),
            (
                "two that are down and off",
                vec![("a", ADDRESS, "DOWN+CLOUD+POWERED_DOWN"), ("b", ADDRESS, "DOWN+CLOUD+POWERED_DOWN")],
                Err("several nodes have NodeAddr of (10.0.0.5): a, b"),
            ),
            ("two", vec![("a", ADDRESS, UP), ("b", ADDRESS, UP)], Err("several nodes have NodeAddr of (10.0.0.5): a, b")),
            (
                "longer addresses",
                vec![("a", "110.0.0.5", UP), ("b", "10.0.0.55", UP)],
                Err("no node that is up or coming up has NodeAddr of (10.0.0.5)"),
            ),
        ] {
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(by_address(&nodes(&list), &own(None)), expected, "{what}");
        }
    }

    #[test]
    fn a_node_of_another_instance_is_not_taken_by_its_address() {
        let mut list = nodes(&[("old", ADDRESS, "ALLOCATED+CLOUD"), ("new", ADDRESS, "DOWN+CLOUD+POWERED_DOWN")]);
        list[0].instance_id = Some("i-1".to_owned());
        list[1].instance_id = Some("i-2".to_owned());
        assert_eq!(by_address(&list, &own(Some("i-2"))), Ok("new".to_owned()));
    }

    #[test]
    fn the_mapping_goes_by_id_and_else_by_address() {
        let mapping = br#"{"version": 9, "cluster": "hpc", "new": 1, "nodes": {
            "c5-1": {"state": "running", "instance_id": "i-1", "private_ip": "10.0.0.5", "newer": true},
            "c5-2": {"state": "running", "instance_id": "i-2", "private_ip": "10.0.0.5"},
            "c5-3": {"state": "launching"},
            "c5-4": {"state": "running", "private_ip": "10.0.0.9"}}, "condemned": {}}"#;
        assert_eq!(by_mapping(mapping, &own(Some("i-2"))).unwrap(), "c5-2");
        // Its address was another's: that entry is not this machine's.
        let error = by_mapping(mapping, &own(Some("i-3"))).unwrap_err();
        assert!(error.contains("none of its 4 nodes"), "{error}");
        // Metadata does not answer (yet): an entry that names an instance may be another's with this address.
        let error = by_mapping(mapping, &own(None)).unwrap_err();
        assert!(error.contains("none of its 4 nodes"), "{error}");
        let ninth = Identity { addresses: ["10.0.0.9".to_owned()].into(), ..own(Some("i-3")) };
        assert_eq!(by_mapping(mapping, &ninth).unwrap(), "c5-4");
        assert!(by_mapping(b"{", &own(None)).unwrap_err().starts_with("it is no mapping"));
    }

    #[test]
    fn a_name_is_one_word_for_one_node() {
        for name in ["c5-1", "apple-dy-core-7", "rack_1.example"] {
            assert_eq!(checked(name.to_owned()).unwrap(), name);
        }
        for name in ["", "-D", "a b", "c5-[1-2]", "a,b", "$(reboot)", "a\nb", "é", &"x".repeat(300)] {
            assert!(checked(name.to_owned()).is_err(), "{name}");
        }
    }
}
