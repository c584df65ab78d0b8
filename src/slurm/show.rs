//! What Slurm says about its nodes: text of `scontrol show nodes` in (the form of many lines, or `-o`), nodes out.
//!
//! Written for speed (a cluster may have 65,536 nodes of half a kilobyte each): one pass over the bytes, only the
//! lines that matter are looked into. Unknown keys and states are kept or passed over, never an error: every Slurm
//! release adds some. Never asks Slurm; that is `scontrol.rs`.
//!
//! The layout is that of `slurm_sprint_node_table` in Slurm's src/api/node_info.c, the same from 22.05 to 26.05 for
//! the keys read here; which keys are on a line changes, so keys are looked for, not columns.

use crate::model::node::{SlurmNode, State};
use crate::zone::Zone;

/// What one answer held.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    /// In Slurm's order.
    pub(crate) nodes: Vec<SlurmNode>,
    /// Names of the lines `Node x not found`.
    pub(crate) not_found: Vec<String>,
}

/// The text is not what `scontrol show nodes` prints, or not all of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ShowError {
    #[error("the record of node {node} has no State; the answer is cut short or of an unknown form")]
    NoState { node: String },
    #[error("the answer is cut short at node {node:?}")]
    Truncated { node: String },
    #[error("the answer holds no node and does not say that there is none")]
    Nothing,
}

/// Reads a whole answer. A record without its end is an error, so that half an answer never looks like a small cluster. `zone` is that of
/// the local times in it, where there are any.
pub(crate) fn parse(text: &str, zone: Option<&Zone>) -> Result<Shown, ShowError> {
    let mut shown = Shown::default();
    let mut current: Option<Draft<'_>> = None;
    let mut none = false;
    let mut rest = text;
    while !rest.is_empty() {
        let end = memchr::memchr(b'\n', rest.as_bytes());
        let complete = end.is_some();
        let line = rest[..end.unwrap_or(rest.len())].trim_end_matches('\r');
        rest = end.map_or("", |end| &rest[end + 1..]);
        if let Some(rest) = line.strip_prefix("NodeName=") {
            finish(&mut shown, current.take())?;
            let mut draft = Draft::new(rest, zone);
            draft.read_head(rest);
            current = Some(draft);
        } else if line.is_empty() {
            finish(&mut shown, current.take())?;
        } else if let Some(inner) = line.strip_prefix("   ") {
            if let Some(draft) = &mut current {
                draft.long = true;
                draft.read_line(inner);
            }
        } else if let Some(name) = line.strip_prefix("Node ").and_then(|rest| rest.strip_suffix(" not found")) {
            finish(&mut shown, current.take())?;
            shown.not_found.push(name.to_owned());
        } else {
            none |= line.starts_with("No nodes in the system");
        }
        if !complete {
            let node = current.map_or("", |draft| draft.name).to_owned();
            return Err(ShowError::Truncated { node });
        }
    }
    // The long form ends each record with an empty line.
    if let Some(draft) = &current
        && draft.long
    {
        return Err(ShowError::Truncated { node: draft.name.to_owned() });
    }
    finish(&mut shown, current)?;
    if shown.nodes.is_empty() && shown.not_found.is_empty() && !none {
        return Err(ShowError::Nothing);
    }
    Ok(shown)
}

fn finish(shown: &mut Shown, draft: Option<Draft<'_>>) -> Result<(), ShowError> {
    let Some(draft) = draft else { return Ok(()) };
    let Some(state) = draft.state else { return Err(ShowError::NoState { node: draft.name.to_owned() }) };
    shown.nodes.push(SlurmNode {
        name: draft.name.to_owned(),
        addr: draft.addr.unwrap_or(draft.name).to_owned(),
        hostname: draft.hostname.unwrap_or(draft.name).to_owned(),
        instance_id: draft.instance_id.filter(|id| !id.is_empty() && *id != "(null)").map(str::to_owned),
        state: State::parse(state),
        reason: draft.reason,
        boot_time: draft.boot_time,
        slurmd_start_time: draft.slurmd_start_time,
        partitions: names(draft.partitions),
        features: names(draft.features),
        last_busy: draft.last_busy,
        reservation: draft.reservation.filter(|name| *name != "(null)").map(str::to_owned),
    });
    Ok(())
}

/// `a,b`; none for `(null)`.
fn names(list: Option<&str>) -> Vec<String> {
    let Some(list) = list.filter(|list| !list.is_empty() && *list != "(null)") else { return Vec::new() };
    // Counted first: a vector that grows takes room for four.
    let mut names = Vec::with_capacity(list.bytes().filter(|byte| *byte == b',').count() + 1);
    names.extend(list.split(',').filter(|name| !name.is_empty()).map(str::to_owned));
    names
}

/// A record as far as it has been read.
struct Draft<'a> {
    name: &'a str,
    addr: Option<&'a str>,
    hostname: Option<&'a str>,
    instance_id: Option<&'a str>,
    state: Option<&'a str>,
    reason: Option<String>,
    boot_time: Option<u64>,
    slurmd_start_time: Option<u64>,
    partitions: Option<&'a str>,
    features: Option<&'a str>,
    last_busy: Option<u64>,
    reservation: Option<&'a str>,
    in_reason: bool,
    zone: Option<&'a Zone>,
    /// More than one line of it was seen.
    long: bool,
}

impl<'a> Draft<'a> {
    fn new(rest: &'a str, zone: Option<&'a Zone>) -> Self {
        Self {
            name: word(rest),
            addr: None,
            hostname: None,
            instance_id: None,
            state: None,
            reason: None,
            boot_time: None,
            slurmd_start_time: None,
            partitions: None,
            features: None,
            last_busy: None,
            reservation: None,
            in_reason: false,
            zone,
            long: false,
        }
    }

    /// The first line. In the `-o` form it is the whole record, with free text (reason, comment, extra) towards the end.
    fn read_head(&mut self, rest: &'a str) {
        // Everything before the free text is words without blanks, except OS=, whose words hold no key of ours.
        let (fixed, tail) = rest.split_at(free_text(rest));
        for token in fixed.split_ascii_whitespace().skip(1) {
            self.read_token(token);
        }
        if tail.is_empty() {
            return;
        }
        let (text, behind) = split_off_behind(tail);
        for token in behind.split_ascii_whitespace() {
            self.read_token(token);
        }
        if let Some(reason) = text.strip_prefix("Reason=") {
            let end = stamp_end(reason).unwrap_or_else(|| {
                [" Comment=", " Extra="].iter().filter_map(|key| reason.find(key)).min().unwrap_or(reason.len())
            });
            // Further lines of the reason follow the stamp behind seven blanks.
            let rest = &reason[end..];
            let rest = if rest.starts_with("        ") {
                &rest[..[" Comment=", " Extra="].iter().filter_map(|key| rest.find(key)).min().unwrap_or(rest.len())]
            } else {
                ""
            };
            let mut whole = without_stamp(&reason[..end]).to_owned();
            for part in rest.split("        ").map(str::trim).filter(|part| !part.is_empty()) {
                whole.push(' ');
                whole.push_str(part);
            }
            self.reason = Some(whole);
        }
    }

    /// A line of the long form, without its indent of three.
    fn read_line(&mut self, line: &'a str) {
        match line.as_bytes().first() {
            // Reasons of several lines go on behind seven more blanks.
            Some(b' ') if self.in_reason => {
                if let Some(reason) = &mut self.reason {
                    reason.push(' ');
                    reason.push_str(line.trim());
                }
                return;
            }
            Some(b'R') if line.starts_with("Reason=") => {
                self.reason = Some(without_stamp(&line["Reason=".len()..]).to_owned());
                self.in_reason = true;
                return;
            }
            // The lines that begin with a key of ours. Comment= and Extra=, which are free text, do not begin so.
            Some(b'A' | b'B' | b'I' | b'L' | b'N' | b'P' | b'R' | b'S') => {
                line.split_ascii_whitespace().for_each(|token| self.read_token(token));
            }
            _ => {}
        }
        self.in_reason = false;
    }

    /// Seconds since 1970, or a local time where the zone is known.
    fn time(&self, text: &str) -> Option<u64> {
        text.parse().ok().or_else(|| self.zone?.seconds_of(text))
    }

    fn read_token(&mut self, token: &'a str) {
        // The first letter tells of most that they are of no interest.
        let Some(b'A' | b'B' | b'I' | b'L' | b'N' | b'P' | b'R' | b'S') = token.as_bytes().first() else { return };
        let Some(at) = token.bytes().position(|byte| byte == b'=') else { return };
        let (key, value) = (&token[..at], &token[at + 1..]);
        match key {
            "NodeAddr" => self.addr = Some(value),
            "NodeHostName" => self.hostname = Some(value),
            "State" => self.state = Some(value),
            "Partitions" => self.partitions = Some(value),
            "ActiveFeatures" => self.features = Some(value),
            "BootTime" => self.boot_time = self.time(value),
            "SlurmdStartTime" => self.slurmd_start_time = self.time(value),
            "InstanceId" => self.instance_id = Some(value),
            "LastBusyTime" => self.last_busy = self.time(value),
            "ReservationName" => self.reservation = Some(value),
            _ => {}
        }
    }
}

/// Up to the first blank.
fn word(text: &str) -> &str {
    text.split_ascii_whitespace().next().unwrap_or_default()
}

/// Where the free text of a one-line record begins: at the first word that begins with one of its keys; the end where there is none.
fn free_text(record: &str) -> usize {
    let mut words = std::iter::once(0).chain(memchr::memchr_iter(b' ', record.as_bytes()).map(|blank| blank + 1));
    let is_free = |at: &usize| ["Reason=", "Comment=", "Extra="].iter().any(|key| record[*at..].starts_with(key));
    words.find(is_free).unwrap_or(record.len())
}

/// What Slurm prints behind the free text of a one-line record: the words at its end that begin with one of these keys, each once.
/// Free text that ends in such a word itself cannot be told from them.
fn split_off_behind(tail: &str) -> (&str, &str) {
    let mut keys = vec!["InstanceId=", "InstanceType=", "ReservationName="];
    let mut end = tail.trim_end().len();
    while let Some(at) = tail[..end].rfind(' ') {
        let Some(key) = keys.iter().position(|key| tail[at + 1..end].starts_with(key)) else { break };
        keys.truncate(key);
        // Two blanks follow an InstanceId without a type.
        end = tail[..at].trim_end().len();
    }
    tail.split_at(end)
}

/// `text [user@time]` → `text`.
fn without_stamp(reason: &str) -> &str {
    let reason = reason.trim_end();
    let Some(open) = reason.rfind(" [") else { return reason };
    if reason.ends_with(']') && reason[open..].contains('@') && !reason[open + 2..].contains(' ') {
        &reason[..open]
    } else {
        reason
    }
}

/// End of the first `[user@time]` in a one-line record's reason.
fn stamp_end(reason: &str) -> Option<usize> {
    reason.match_indices(" [").find_map(|(open, _)| {
        let inner = &reason[open + 2..];
        let close = inner.find(']')?;
        (inner[..close].contains('@') && !inner[..close].contains(' ')).then_some(open + 2 + close + 1)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::model::node::Base;

    const LONG_22: &str = include_str!("../../tests/data/scontrol/22.05.8/show-nodes-1.txt");
    const LINE_22: &str = include_str!("../../tests/data/scontrol/22.05.8/show-nodes-oneline-1.txt");
    const UNKNOWN_22: &str = include_str!("../../tests/data/scontrol/22.05.8/show-nodes-unknown-name.txt");
    const LOCAL_22: &str = include_str!("../../tests/data/scontrol/22.05.8/show-node-local-time.txt");
    const RESERVED_22: &str = include_str!("../../tests/data/scontrol/22.05.8/show-node-reserved-down.txt");
    const LONG_24: &str = include_str!("../../tests/data/scontrol/24.11.5/show-nodes-by-the-facts.txt");
    const LINE_24: &str = include_str!("../../tests/data/scontrol/24.11.5/show-nodes-oneline-by-the-facts.txt");
    const LONG_26: &str = include_str!("../../tests/data/scontrol/26.05.5/show-nodes-by-the-facts.txt");

    fn parse(text: &str) -> Result<Shown, ShowError> {
        super::parse(text, None)
    }

    fn node<'a>(shown: &'a Shown, name: &str) -> &'a SlurmNode {
        shown.nodes.iter().find(|node| node.name == name).unwrap()
    }

    #[test]
    fn free_text_begins_at_a_word() {
        for (record, at) in [
            ("n1 State=IDLE Reason=x", 14),
            ("n1 XReason=y  Extra=Reason=z", 14),
            ("Comment=", 0),
            ("n1 State=IDLE", 13),
            ("", 0),
        ] {
            assert_eq!(free_text(record), at, "{record}");
        }
    }

    #[test]
    fn both_forms_say_the_same() {
        for (long, line) in [(LONG_22, LINE_22), (LONG_24, LINE_24)] {
            let (long, mut line) = (parse(long).unwrap(), parse(line).unwrap());
            assert!(!long.nodes.is_empty());
            // Between the two recordings this node went from POWER_DOWN to POWERING_DOWN.
            for (long, line) in long.nodes.iter().zip(&mut line.nodes).filter(|(long, _)| long.name == "q2-3") {
                assert!(long.state.power_down_requested() && line.state.is_powering_down() && !line.state.power_down_requested());
                line.state = long.state.clone();
            }
            assert_eq!(long, line);
        }
    }

    #[test]
    fn recorded_from_22_05() {
        let shown = parse(LONG_22).unwrap();
        assert_eq!(shown.nodes.len(), 12);
        let up = node(&shown, "q1-dy-c5-1");
        assert_eq!((up.addr.as_str(), up.hostname.as_str()), ("10.0.0.1", "ip-10-0-0-1"));
        assert!(
            up.state.is_powering_up()
                && up.state.has("NOT_RESPONDING")
                && !up.state.is_powered_down()
                && !up.state.has("POWER_UP")
        );
        assert_eq!((up.boot_time, up.slurmd_start_time, up.instance_id.as_deref()), (None, None, None));
        assert_eq!(up.partitions, ["q1", "q2"]);
        assert!(!up.addr.is_empty() && up.addr != up.name);

        let running = node(&shown, "q1-dy-c5-3");
        assert_eq!(running.state.to_string(), "IDLE+CLOUD");
        assert!(running.boot_time.unwrap() > 1_700_000_000 && running.slurmd_start_time.unwrap() >= running.boot_time.unwrap());

        let off = node(&shown, "q1-dy-c5-8");
        assert!(off.state.is_powered_down() && !off.state.power_down_requested() && off.state.base == Base::Idle);
        assert!(off.addr == off.name && off.reason.is_none());

        let asked = node(&shown, "q2-1");
        assert!(asked.state.power_down_requested() && asked.state.is_powering_up() && !asked.state.is_powered_down());
        let forced = node(&shown, "q2-3");
        assert!(forced.state.power_down_requested() && !forced.state.is_powering_up());
        assert_eq!(forced.reason.as_deref(), Some("(Code:InsufficientInstanceCapacity) nothing left"));
    }

    #[test]
    fn m28_when_a_node_was_last_busy() {
        for (shown, name, busy) in [
            (LONG_22, "q1-dy-c5-3", Some(1_795_969_497)),
            (LONG_22, "q1-dy-c5-1", None), // Unknown
            (LINE_22, "q1-dy-c5-3", Some(1_795_969_497)),
            (LONG_24, "q1-dy-c5-1", Some(1_795_969_266)),
            (LINE_24, "q1-dy-c5-1", Some(1_795_969_266)),
            (LONG_26, "q1-dy-c5-1", Some(1_795_969_266)),
        ] {
            assert_eq!(node(&parse(shown).unwrap(), name).last_busy, busy, "{name}");
        }
        let zone = Zone::of(Some("UTC0"));
        let reserved = super::parse(RESERVED_22, Some(&zone)).unwrap();
        let at = "2026-11-29T22:34:18Z".parse::<crate::model::time::Timestamp>().unwrap().secs();
        assert_eq!((reserved.nodes[0].last_busy, reserved.nodes[0].slurmd_start_time), (Some(at), Some(at)));
    }

    #[test]
    fn the_reservation_that_holds_a_node() {
        for text in [LONG_24, LINE_24] {
            let shown = parse(text).unwrap();
            let held: Vec<Option<&str>> = shown.nodes.iter().map(|node| node.reservation.as_deref()).collect();
            assert_eq!(held, [None, None, Some("maint")]);
        }
        // 22.05 tells by flags alone that there is one.
        let shown = parse(RESERVED_22).unwrap();
        let state = &shown.nodes[0].state;
        assert!(state.has("RESERVED") && state.has("MAINTENANCE") && state.is_down() && shown.nodes[0].reservation.is_none());
        assert_eq!(shown.nodes[0].reason.as_deref(), Some("x"));
        // Behind free text, which may look like it.
        let line = "NodeName=a State=IDLE Reason=b [root@1] Comment=ReservationName=no InstanceId=i-no x InstanceId=i-1 InstanceType=c5.large \
                    ReservationName=maint\nNodeName=b State=IDLE Reason=b [root@1] Extra=x InstanceId=i-2  ReservationName=maint\n";
        let shown = parse(line).unwrap();
        let seen = |name| {
            let node = node(&shown, name);
            (node.instance_id.as_deref(), node.reservation.as_deref(), node.reason.as_deref())
        };
        assert_eq!(seen("a"), (Some("i-1"), Some("maint"), Some("b")));
        assert_eq!(seen("b"), (Some("i-2"), Some("maint"), Some("b")));
    }

    #[test]
    fn m27_fifteen_thousand_nodes_are_a_few_megabytes() {
        let one = LONG_24.split_inclusive("\n\n").next().unwrap();
        let many: String =
            (0..15_000).map(|index| one.replace("q1-dy-c5-1", &format!("queue1-dy-compute-resource-1-{index}"))).collect();
        let shown = parse(&many).unwrap();
        assert_eq!(shown.nodes.len(), 15_000);
        let bytes: usize = shown.nodes.iter().map(size).sum();
        assert!(bytes <= 15_000 * 700, "{bytes}");
    }

    /// Bytes that a node takes, without what the allocator adds.
    fn size(node: &SlurmNode) -> usize {
        let list = |list: &Vec<String>| list.capacity() * size_of::<String>() + list.iter().map(String::capacity).sum::<usize>();
        let texts = [Some(&node.name), Some(&node.addr), Some(&node.hostname), node.instance_id.as_ref(), node.reason.as_ref()];
        let texts: usize = texts.into_iter().flatten().map(String::capacity).sum();
        size_of::<SlurmNode>() + texts + list(&node.partitions) + list(&node.features) + list(&node.state.unknown)
    }

    #[test]
    fn free_text_is_never_taken_for_a_key() {
        let shown = parse(LONG_22).unwrap();
        let failed = node(&shown, "q2-2");
        assert!(failed.state.is_down() && failed.state.is_powering_up());
        let reason = failed.reason.as_deref();
        assert_eq!(reason, Some("(Code:InsufficientInstanceCapacity) no c5.large in eu-west-1a; State=UP NodeName=x"));
        // A reason of two lines, the second one looking like a record.
        let drained = node(&shown, "q1-dy-c5-5");
        assert_eq!(drained.reason.as_deref(), Some("a NodeName=evil State=IDLE"));
        assert!(drained.state.has("DRAIN"));
        let quoted = node(&shown, "q1-dy-c5-6");
        assert_eq!(quoted.reason.as_deref(), Some(r#"a "quoted" word"#));
        assert_eq!((quoted.instance_id.as_deref(), quoted.state.base.clone()), (None, Base::Down));
    }

    #[test]
    fn newer_versions_carry_the_instance() {
        let shown = parse(LONG_24).unwrap();
        let up = node(&shown, "q1-dy-c5-1");
        assert_eq!(up.instance_id.as_deref(), Some("i-0123456789abcdef0"));
        assert_eq!((up.addr.as_str(), up.boot_time), ("10.0.0.1", Some(1_795_969_266)));
        let noted = node(&shown, "q1-dy-c5-2");
        assert_eq!(noted.instance_id.as_deref(), Some("i-0123456789abcdef1"));
        assert_eq!(noted.reason.as_deref(), Some("pd : ResumeTimeout reached"));
        let shown = parse(LONG_26).unwrap();
        assert_eq!(node(&shown, "q1-dy-c5-1").instance_id.as_deref(), Some("i-0123456789abcdef0"));
        // A flag that we do not know is kept.
        let state = &node(&shown, "q1-dy-c5-2").state;
        assert!(state.has("EXTERNAL_THING") && state.is_powered_down());
        assert_eq!(state.unknown, ["EXTERNAL_THING"]);
    }

    #[test]
    fn unknown_names_do_not_hide_the_others() {
        let shown = parse(UNKNOWN_22).unwrap();
        let names: Vec<_> = shown.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["q1-dy-c5-1", "q2-1"]);
        assert_eq!(shown.not_found, ["nope"]);
    }

    #[test]
    fn local_times_are_not_guessed() {
        let shown = parse(LOCAL_22).unwrap();
        assert_eq!((shown.nodes[0].boot_time, shown.nodes[0].slurmd_start_time), (None, None));
        let shown = super::parse(LOCAL_22, Some(&Zone::of(Some("CET-1CEST,M3.5.0,M10.5.0/3")))).unwrap();
        let times = (shown.nodes[0].boot_time, shown.nodes[0].slurmd_start_time);
        let at = "2026-11-29T15:24:57Z".parse::<crate::model::time::Timestamp>().unwrap().secs();
        assert_eq!(times, (Some(at), Some(at)));
    }

    #[test]
    fn half_an_answer_is_an_error() {
        // Cut anywhere: an error, or whole records, or nothing but the first records with their ends.
        let whole = parse(LONG_22).unwrap();
        for cut in 1..LONG_22.len() {
            if let Ok(part) = parse(&LONG_22[..cut]) {
                assert_eq!(part.nodes, whole.nodes[..part.nodes.len()], "cut at {cut}");
                let ends = LONG_22[..cut].ends_with("\n\n") || LONG_22[..cut].ends_with("\n\n\n");
                assert!(ends || LONG_22[..cut].ends_with("CoresPerSocket=1 \n"), "cut at {cut}: {:?}", &LONG_22[..cut]);
            }
        }
        assert!(matches!(parse("NodeName=a CoresPerSocket=1 \n"), Err(ShowError::NoState { .. })));
        assert_eq!(parse(""), Err(ShowError::Nothing), "a cluster without nodes says so");
        assert_eq!(parse("No nodes in the system\n"), Ok(Shown::default()));
    }

    #[test]
    fn words_are_compared_whole() {
        let state = State::parse("DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING");
        assert!(state.is_down() && state.is_powered_down() && state.has("NOT_RESPONDING") && state.has("CLOUD"));
        assert!(!state.power_down_requested() && !state.is_powering_down() && !state.is_powering_up());
        let state = State::parse("IDLE+CLOUD+POWER_UP+POWERED_DOWN");
        assert!(state.has("POWER_UP") && state.is_powered_down() && !state.is_powering_up());
        assert!(State::parse("IDLE+CLOUD+POWERING_DOWN").is_powering_down());
        assert_eq!(State::parse("NEWBASE+CLOUD").base, Base::Other("NEWBASE".into()));
    }
}
