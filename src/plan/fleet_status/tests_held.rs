//! Nodes that people drained or set down: what a stop and a start ask of each, and that both end with what the person had said, wherever
//! one is left.

#![allow(clippy::unwrap_used)]

use super::tests::{all_states, node, scanned, told};
use super::*;
use crate::model::node::{SlurmNode, State};

/// A person's, with what Slurm may have put behind it.
const SAID: &str = "bad disk, ticket 4711 : Not responding";
const MARK: &str = "stopping cluster, was drained: bad disk, ticket 4711 : Not responding";
/// The same of a node that they set down.
const FAN: &str = "fan, ticket 4712";
const DOWN: &str = "stopping cluster, was down: fan, ticket 4712";

/// The one order with the Reason that it carries.
fn order(orders: &Orders) -> (&'static str, Option<&str>) {
    let lists =
        [("down", &orders.down), ("force", &orders.force), ("power_down", &orders.power_down), ("resume", &orders.resume)];
    let more = [("drain", &orders.drain), ("reset", &orders.reset), ("waiting", &orders.waiting), ("left", &orders.left)];
    let found: Vec<&str> = lists.into_iter().chain(more).filter(|(_, list)| !list.is_empty()).map(|(name, _)| name).collect();
    let name = if found.is_empty() { "-" } else { found[0] };
    assert!(found.len() < 2, "{orders:?}");
    (name, orders.reasons.get("c5-1").map(String::as_str))
}

#[test]
fn what_a_stop_tells_of_nodes_that_people_drained() {
    for (state, reason, expected) in [
        ("IDLE+CLOUD+DRAIN", SAID, ("force", Some(MARK))),
        ("IDLE+CLOUD+DRAIN+NOT_RESPONDING", SAID, ("force", Some(MARK))),
        ("ALLOCATED+CLOUD+DRAIN", SAID, ("down", Some(MARK))),
        ("ALLOCATED+CLOUD+DRAIN+NOT_RESPONDING+POWERING_UP", SAID, ("down", Some(MARK))),
        ("DOWN+CLOUD+DRAIN", SAID, ("power_down", Some(MARK))),
        // Somebody else has asked for it, without the mark.
        ("IDLE+CLOUD+DRAIN+POWER_DOWN", SAID, ("force", Some(MARK))),
        ("DOWN+CLOUD+DRAIN+POWER_DOWN", SAID, ("power_down", Some(MARK))),
        ("DOWN+CLOUD+DRAIN+POWER_DOWN", MARK, ("waiting", Some(MARK))),
        // The mark is made once.
        ("IDLE+CLOUD+DRAIN+POWER_DOWN", MARK, ("force", Some(MARK))),
        ("ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP", MARK, ("down", Some(MARK))),
        // DRAIN is gone, or about to be put right.
        ("IDLE+CLOUD+POWERING_DOWN", MARK, ("drain", Some(SAID))),
        ("IDLE+CLOUD+POWERED_DOWN", MARK, ("drain", Some(SAID))),
        ("IDLE+CLOUD+DRAIN+POWERED_DOWN", MARK, ("drain", Some(SAID))),
        ("DOWN+CLOUD+POWERED_DOWN", MARK, ("drain", Some(SAID))),
        // Done.
        ("IDLE+CLOUD+DRAIN+POWERING_DOWN", SAID, ("waiting", None)),
        ("IDLE+CLOUD+DRAIN+POWERED_DOWN", SAID, ("-", None)),
        // Resumed since.
        ("IDLE+CLOUD+POWERING_DOWN", "", ("waiting", None)),
        ("IDLE+CLOUD+POWERED_DOWN", "", ("-", None)),
        ("IDLE+CLOUD+POWER_DOWN+NOT_RESPONDING", "", ("force", None)),
        // Powered down by somebody else, which ended it: what is left of a reason drains nobody.
        ("IDLE+CLOUD+POWERING_DOWN", SAID, ("waiting", None)),
        ("IDLE+CLOUD+POWERED_DOWN", SAID, ("-", None)),
        // Not drained, not by a person, or for a reboot alone.
        ("DOWN+CLOUD", SAID, ("power_down", None)),
        ("IDLE+CLOUD", SAID, ("force", None)),
        ("IDLE+CLOUD+DRAIN", "", ("force", None)),
        ("IDLE+CLOUD+DRAIN", "Kill task failed", ("force", None)),
        // `state=power_down_asap`, whose DRAIN is to end with the power-down, and an update of ParallelCluster's.
        ("ALLOCATED+CLOUD+DRAIN+POWER_DOWN", "POWER_DOWN_ASAP", ("down", None)),
        ("ALLOCATED+CLOUD+DRAIN", "updating node state during cluster update", ("down", None)),
        ("IDLE+CLOUD+DRAIN", "Node failing ec2_health_check", ("force", None)),
        ("IDLE+CLOUD+DRAIN+REBOOT_REQUESTED", SAID, ("force", None)),
        ("IDLE+CLOUD+POWERED_DOWN", "stopping cluster", ("-", None)),
        ("IDLE+CLOUD+POWERED_DOWN", "stopping cluster, was drained: ", ("-", None)),
    ] {
        let reason = Some(reason).filter(|reason| !reason.is_empty());
        assert_eq!(order(&for_stop([&node("c5-1", state, "c5-1", reason)])), expected, "{state} {reason:?}");
    }
}

/// B126.
#[test]
fn what_a_stop_tells_of_nodes_that_people_set_down() {
    for (state, reason, expected) in [
        ("DOWN+CLOUD", FAN, ("power_down", Some(DOWN))),
        ("DOWN+CLOUD+NOT_RESPONDING", FAN, ("power_down", Some(DOWN))),
        ("DOWN+CLOUD+NOT_RESPONDING+POWERING_UP", FAN, ("power_down", Some(DOWN))),
        // Off, it would end as DOWN all the same; clustermgtd takes that away from a node.
        ("DOWN+CLOUD+POWERED_DOWN", FAN, ("power_down", Some(DOWN))),
        ("DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING", FAN, ("power_down", Some(DOWN))),
        // Held already: drained while its group rests, or by a stop where `idle_on_node_suspend` is not set.
        ("DOWN+CLOUD+DRAIN+POWERED_DOWN", SAID, ("-", None)),
        ("DOWN+CLOUD+POWERING_DOWN", DOWN, ("drain", Some(FAN))),
        ("DOWN+CLOUD+POWERED_DOWN", DOWN, ("drain", Some(FAN))),
        // Asked for, on old and new versions.
        ("DOWN+CLOUD+POWER_DOWN+NOT_RESPONDING", DOWN, ("waiting", Some(DOWN))),
        ("DOWN+CLOUD+POWER_DOWN+POWERED_DOWN", DOWN, ("waiting", Some(DOWN))),
        ("DOWN+CLOUD", DOWN, ("power_down", Some(DOWN))),
        ("IDLE+CLOUD+POWERING_DOWN", DOWN, ("drain", Some(FAN))),
        ("IDLE+CLOUD+POWERED_DOWN", DOWN, ("drain", Some(FAN))),
        // Somebody powers it down as well: it is to come back.
        ("DOWN+CLOUD+POWER_DOWN", FAN, ("waiting", None)),
        ("DOWN+CLOUD+POWER_DOWN+POWERED_DOWN", FAN, ("-", None)),
        // By slurmctld or a program, whatever else the Reason says.
        ("DOWN+CLOUD", "fan : Not responding", ("power_down", None)),
        ("DOWN+CLOUD+POWERED_DOWN", "pd : ResumeTimeout reached", ("-", None)),
        ("DOWN+CLOUD+POWERED_DOWN", "ResumeTimeout reached", ("-", None)),
        ("DOWN+CLOUD", "Scheduler health check failed", ("power_down", None)),
        ("DOWN+CLOUD", "EC2 spot notice: terminate", ("power_down", None)),
        ("DOWN+CLOUD", "NHC: check_fs_mount failed", ("power_down", None)),
        ("DOWN+CLOUD", "", ("power_down", None)),
        ("DOWN+CLOUD+REBOOT_ISSUED", FAN, ("power_down", None)),
        // Resumed since, or never down.
        ("IDLE+CLOUD", FAN, ("force", None)),
        ("IDLE+CLOUD+POWERED_DOWN", FAN, ("-", None)),
    ] {
        let reason = Some(reason).filter(|reason| !reason.is_empty());
        assert_eq!(order(&for_stop([&node("c5-1", state, "c5-1", reason)])), expected, "{state} {reason:?}");
    }
}

/// B126. A start leaves what is down as it is; what a stop has marked it drains, or waits for.
#[test]
fn what_a_start_does_about_nodes_that_people_set_down() {
    for (state, reason, expected) in [
        ("DOWN+CLOUD", FAN, ("left", None)),
        ("DOWN+CLOUD+POWERED_DOWN", FAN, ("left", None)),
        ("DOWN+CLOUD", DOWN, ("power_down", Some(DOWN))),
        ("DOWN+CLOUD+POWER_DOWN+NOT_RESPONDING", DOWN, ("waiting", Some(DOWN))),
        ("DOWN+CLOUD+POWER_DOWN+POWERED_DOWN", DOWN, ("waiting", Some(DOWN))),
        ("IDLE+CLOUD+POWERING_DOWN", DOWN, ("drain", Some(FAN))),
        ("IDLE+CLOUD+POWERED_DOWN", DOWN, ("drain", Some(FAN))),
    ] {
        let node = node("c5-1", state, "c5-1", Some(reason));
        assert_eq!(order(&for_start([Seen { node: &node, is_backed: false }])), expected, "{state} {reason}");
        assert_eq!(is_left_by_a_stop(&node), reason == DOWN, "{state} {reason}");
    }
}

#[test]
fn what_a_start_does_about_nodes_that_a_stop_was_to_drain_again() {
    for (state, reason, expected) in [
        ("IDLE+CLOUD+POWERING_DOWN", MARK, ("drain", Some(SAID))),
        ("IDLE+CLOUD+POWERED_DOWN", MARK, ("drain", Some(SAID))),
        ("IDLE+CLOUD+DRAIN+POWERED_DOWN", MARK, ("drain", Some(SAID))),
        ("IDLE+CLOUD+DRAIN+POWERED_DOWN", SAID, ("left", None)),
        ("IDLE+CLOUD+DRAIN+POWERING_DOWN", SAID, ("left", None)),
        // Told, and not yet carried out: jobs must not get there first.
        ("IDLE+CLOUD+DRAIN+POWER_DOWN", MARK, ("force", Some(MARK))),
        ("DOWN+CLOUD+DRAIN", MARK, ("power_down", Some(MARK))),
        ("DOWN+CLOUD+DRAIN+POWER_DOWN", MARK, ("waiting", Some(MARK))),
        // Resumed since.
        ("IDLE+CLOUD+POWERED_DOWN", "", ("-", None)),
        ("IDLE+CLOUD+POWERING_DOWN", "", ("resume", None)),
    ] {
        let reason = Some(reason).filter(|reason| !reason.is_empty());
        let node = node("c5-1", state, "c5-1", reason);
        for is_backed in [true, false] {
            assert_eq!(order(&for_start([Seen { node: &node, is_backed }])), expected, "{state} {reason:?} {is_backed}");
        }
    }
    // Not drained, and up for a job: what is left of a reason.
    let up = node("c5-1", "ALLOCATED+CLOUD", "c5-1", Some(MARK));
    assert_eq!(order(&for_start([Seen { node: &up, is_backed: true }])), ("-", None));
    assert!(!is_left_by_a_stop(&up));
    let off = node("c5-1", "IDLE+CLOUD+POWERED_DOWN", "c5-1", Some(MARK));
    assert_eq!(for_start([Seen { node: &off, is_backed: false }]).freed().len(), 1, "what stood behind it goes");
}

#[test]
fn nodes_with_the_same_reason_are_told_together() {
    let of = |name: &str, reason| SlurmNode { hostname: name.to_owned(), ..node(name, "IDLE+CLOUD+DRAIN", name, reason) };
    let nodes = [of("c5-1", Some("fan")), of("c5-2", None), of("c5-3", Some("fan")), of("c5-4", Some("disk"))];
    let orders = for_stop(&nodes);
    let told: Vec<(Option<&str>, String)> =
        orders.by_reason(&orders.force).into_iter().map(|(reason, nodes)| (reason, nodes.join(","))).collect();
    let expected = [
        (None, "c5-2"),
        (Some("stopping cluster, was drained: disk"), "c5-4"),
        (Some("stopping cluster, was drained: fan"), "c5-1,c5-3"),
    ];
    assert_eq!(told, expected.map(|(reason, nodes)| (reason, nodes.to_owned())));
}

/// One node of slurmctld's.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Kept {
    state: String,
    reason: Option<String>,
    /// Without `idle_on_node_suspend`, a power-down leaves DOWN as it is.
    stays_down: bool,
}

impl Kept {
    fn new(state: &str, reason: &str, stays_down: bool) -> Self {
        Self { state: state.to_owned(), reason: Some(reason.to_owned()), stays_down }
    }

    /// The state that comes of it.
    fn becomes(&mut self, next: String) {
        let is_suspended = State::parse(&next).is_powering_down() && !State::parse(&self.state).is_powering_down();
        let stays = self.stays_down && is_suspended && self.state.starts_with("DOWN");
        self.state = if stays { next.replacen("IDLE", "DOWN", 1) } else { next };
    }

    fn as_node(&self) -> SlurmNode {
        node("c5-1", &self.state, "c5-1", self.reason.as_deref())
    }

    fn tell(&mut self, what: What, reason: Option<&str>) {
        self.becomes(told(&self.state, what));
        match (what, reason) {
            (What::Resume, _) => self.reason = None,
            (_, Some(reason)) => self.reason = Some(reason.to_owned()),
            // An update without a state takes the reason of a node that is neither down nor drained.
            (What::Reset, None) if !State::parse(&self.state).has("DRAIN") && !self.state.starts_with("DOWN") => {
                self.reason = None;
            }
            _ => {}
        }
    }

    /// A round; false: nothing was to be done. `carried_out` updates go through before the program is killed.
    fn round(&mut self, orders: &Orders, word: &str, mut carried_out: usize) -> bool {
        let own = orders.reasons.get("c5-1").map(String::as_str);
        let mut tell = |what, reason| {
            if carried_out > 0 {
                carried_out -= 1;
                self.tell(what, reason);
            }
        };
        match order(orders).0 {
            "down" => {
                tell(What::Down, Some(own.unwrap_or(word)));
                tell(What::PowerDown, None);
            }
            "force" => tell(What::Force, Some(own.unwrap_or(word))),
            "power_down" => tell(What::PowerDown, own),
            "resume" => tell(What::Resume, None),
            "drain" => {
                tell(What::Drain, own);
                tell(What::Reset, None);
            }
            "reset" => tell(What::Reset, None),
            _ => return !orders.is_settled(),
        }
        true
    }

    /// slurmctld's next scan: a power-down that was asked for begins, or the one that began is over. DRAIN goes as it begins.
    fn scan(&mut self) {
        let state = State::parse(&self.state);
        if state.is_powering_down() {
            self.state = self.state.replace("POWERING_DOWN", "POWERED_DOWN");
        } else if state.power_down_requested() && !self.state.starts_with("ALLOCATED") && !self.state.contains("COMPLETING") {
            self.becomes("IDLE+CLOUD+POWERING_DOWN".to_owned());
        } else {
            self.becomes(scanned(&self.state));
        }
    }
}

fn stop_word(kept: &mut Kept, rounds: usize, carried_out: usize) {
    for _ in 0..rounds {
        if !kept.round(&for_stop([&kept.as_node()]), "stopping cluster", carried_out) {
            return;
        }
        kept.scan();
    }
}

fn start_word(kept: &mut Kept, rounds: usize) {
    for _ in 0..rounds {
        let node = kept.as_node();
        if !kept.round(&for_start([Seen { node: &node, is_backed: false }]), "inactive partition", usize::MAX) {
            return;
        }
        kept.scan();
    }
}

/// B126. Ended after any round and any update of it, by whom else goes on: a stop again, or a start.
#[test]
fn every_state_that_a_person_drained_or_set_down_ends_off_and_drained_with_their_reason() {
    let states = all_states().into_iter().filter(|state| {
        let parsed = State::parse(state);
        // A power-down that somebody else has asked for ends it at any moment.
        (parsed.has("DRAIN") || parsed.is_down())
            && !parsed.power_down_requested()
            && !parsed.is_powering_down()
            && !crate::plan::reconcile::state::is_rebooting(&parsed)
    });
    let more = ["ALLOCATED+CLOUD+DRAIN", "IDLE+CLOUD+COMPLETING+DRAIN", "DOWN+CLOUD+DRAIN"];
    for state in states.chain(more.map(str::to_owned)) {
        let said = if state.contains("DRAIN") { SAID } else { FAN };
        let is_held = |kept: &Kept| kept.state.contains("DRAIN") || kept.state.starts_with("DOWN");
        for (rounds, stays_down) in (0..5).flat_map(|rounds| [(rounds, false), (rounds, true)]) {
            for carried_out in 0..3 {
                for starts in [false, true] {
                    let mut kept = Kept::new(&state, said, stays_down);
                    stop_word(&mut kept, rounds, usize::MAX);
                    stop_word(&mut kept, 1, carried_out);
                    if starts {
                        start_word(&mut kept, 10);
                        // Nobody had told it yet.
                        if kept.state == state || !State::parse(&kept.state).is_powered_down() {
                            assert!(is_held(&kept) && kept.reason.as_deref() == Some(said), "{state}: {kept:?}");
                            continue;
                        }
                    } else {
                        stop_word(&mut kept, 10, usize::MAX);
                        // The stop comes to its end.
                        assert_eq!(order(&for_stop([&kept.as_node()])), ("-", None), "{state} {rounds} {carried_out}: {kept:?}");
                    }
                    let story = format!("{state} {rounds} {carried_out} {starts}: {kept:?}");
                    let parsed = State::parse(&kept.state);
                    assert!(parsed.is_powered_down() && parsed.has("DRAIN"), "{story}");
                    assert_eq!(kept.reason.as_deref(), Some(said), "{story}");
                    start_word(&mut kept, 10);
                    assert!(kept.state.contains("DRAIN") && kept.reason.as_deref() == Some(said), "{story}");
                }
            }
        }
    }
}

/// A person who resumes the node at any point of a stop has the last word.
#[test]
fn what_a_person_resumes_while_the_fleet_stops_is_not_drained_again() {
    for state in ["IDLE+CLOUD+DRAIN", "ALLOCATED+CLOUD+DRAIN", "DOWN+CLOUD+DRAIN"] {
        for rounds in 0..6 {
            let mut kept = Kept::new(state, SAID, false);
            stop_word(&mut kept, rounds, usize::MAX);
            kept.state = kept.state.replace("+DRAIN", "").replace("DOWN+CLOUD", "IDLE+CLOUD");
            kept.reason = None;
            stop_word(&mut kept, 10, usize::MAX);
            start_word(&mut kept, 10);
            assert_eq!(kept.state, "IDLE+CLOUD+POWERED_DOWN", "{state} {rounds}");
        }
    }
}
