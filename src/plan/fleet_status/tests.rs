//! Every status with every request, every state with its orders, and transitions under requests and crashes in any order.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::model::cluster::{Partition, PartitionState};
use crate::model::node::{SlurmNode, State};
use FleetStatus::{Protected, Running, StartRequested, Starting, StopRequested, Stopped, Stopping, Unknown};
use Transition::{Start, Stop};

#[test]
fn what_each_status_asks_for() {
    for (status, expected) in [
        (Running, Due::Nothing),
        (Stopped, Due::Nothing),
        (Protected, Due::Nothing),
        (Unknown, Due::Nothing),
        (StopRequested, Due::Begin(Stop)),
        (Stopping, Due::GoOn(Stop)),
        (StartRequested, Due::Begin(Start)),
        (Starting, Due::GoOn(Start)),
    ] {
        assert_eq!(due(status), expected, "{status}");
    }
}

#[test]
fn z04_what_each_request_comes_to() {
    let put = |from| Asked::Put { from };
    for (status, start, stop) in [
        (Running, Asked::Already, put(Running)),
        (Stopped, put(Stopped), Asked::Already),
        (Protected, put(Protected), put(Protected)),
        (Unknown, Asked::Refused, Asked::Refused),
        (StopRequested, put(StopRequested), Asked::UnderWay),
        // Queued: the transition that is under way is not cut short.
        (Stopping, put(Stopping), Asked::UnderWay),
        (StartRequested, Asked::UnderWay, put(StartRequested)),
        (Starting, Asked::UnderWay, put(Starting)),
    ] {
        assert_eq!((ask(Start, status), ask(Stop, status)), (start, stop), "{status}");
    }
}

#[test]
fn z04_only_two_words_are_requests() {
    let words: Vec<&str> = FleetStatus::ALL
        .into_iter()
        .filter(|status| Transition::of_request(*status).is_some())
        .map(FleetStatus::as_str)
        .collect();
    assert_eq!(words, ["START_REQUESTED", "STOP_REQUESTED"]);
    assert_eq!(Transition::of_request(Unknown), None);
}

#[test]
fn what_a_waiting_person_is_told() {
    for (status, start, stop) in [
        (Running, Came::Done, Came::Overtaken),
        (Protected, Came::Done, Came::Overtaken),
        (Stopped, Came::Overtaken, Came::Done),
        (StopRequested, Came::Overtaken, Came::Waiting),
        (Stopping, Came::Overtaken, Came::Waiting),
        (StartRequested, Came::Waiting, Came::Overtaken),
        (Starting, Came::Waiting, Came::Overtaken),
    ] {
        assert_eq!((came(Start, status), came(Stop, status)), (start, stop), "{status}");
    }
}

pub(super) fn node(name: &str, state: &str, addr: &str, reason: Option<&str>) -> SlurmNode {
    let (addr, reason, partitions) = (addr.to_owned(), reason.map(str::to_owned), vec!["q".to_owned()]);
    SlurmNode { addr, reason, partitions, ..SlurmNode::named(name, state) }
}

/// The list that the node is in.
fn list_of(orders: &Orders) -> &'static str {
    let lists = [
        ("down", &orders.down),
        ("force", &orders.force),
        ("power_down", &orders.power_down),
        ("resume", &orders.resume),
        ("drain", &orders.drain),
        ("reset", &orders.reset),
        ("waiting", &orders.waiting),
        ("left", &orders.left),
    ];
    let found: Vec<&str> = lists.into_iter().filter(|(_, list)| !list.is_empty()).map(|(name, _)| name).collect();
    match found[..] {
        [] => "-",
        [one] => one,
        _ => panic!("in more than one list: {orders:?}"),
    }
}

#[test]
fn z01_what_a_stop_asks_of_each_state() {
    for (state, expected) in [
        ("IDLE+CLOUD", "force"),
        ("IDLE+CLOUD+NOT_RESPONDING", "force"),
        ("IDLE+CLOUD+DRAIN", "force"),
        ("IDLE+CLOUD+PLANNED+SOMETHING_NEW", "force"),
        ("ALLOCATED+CLOUD", "down"),
        ("MIXED+CLOUD+DRAIN", "down"),
        ("IDLE+CLOUD+COMPLETING", "down"),
        ("IDLE+CLOUD+COMPLETING+POWER_DOWN", "down"),
        ("ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP", "down"),
        ("IDLE+CLOUD+NOT_RESPONDING+POWERING_UP", "down"),
        ("IDLE+CLOUD+POWER_DOWN+NOT_RESPONDING+POWERING_UP", "down"),
        ("DOWN+CLOUD+NOT_RESPONDING+POWERING_UP", "power_down"),
        ("MIXED+CLOUD+POWERED_DOWN", "down"),
        ("IDLE+CLOUD+POWER_UP+POWERED_DOWN", "force"),
        ("IDLE+CLOUD+POWER_DOWN", "force"),
        ("DOWN+CLOUD", "power_down"),
        ("DOWN+CLOUD+NOT_RESPONDING", "power_down"),
        ("DOWN+CLOUD+POWER_DOWN+NOT_RESPONDING", "waiting"),
        ("IDLE+CLOUD+POWERING_DOWN", "waiting"),
        ("DOWN+CLOUD+POWERING_DOWN", "waiting"),
        ("IDLE+CLOUD+POWERED_DOWN", "-"),
        ("IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING", "-"),
        ("IDLE+CLOUD+DRAIN+POWERED_DOWN", "-"),
        ("IDLE+CLOUD+POWER_DOWN+POWERED_DOWN", "-"),
        ("DOWN+CLOUD+POWERED_DOWN", "-"),
        ("FUTURE", "-"),
        ("UNKNOWN", "-"),
    ] {
        assert_eq!(list_of(&for_stop([&node("c5-1", state, "c5-1", None)])), expected, "{state}");
    }
    let off = node("c5-1", "IDLE+CLOUD+POWERED_DOWN", "10.0.0.1", None);
    assert_eq!(list_of(&for_stop([&off])), "reset");
}

#[test]
fn z02_what_a_start_asks_of_each_state() {
    for (state, reason, backed, not_backed) in [
        ("IDLE+CLOUD+POWERING_DOWN", None, "resume", "resume"),
        ("DOWN+CLOUD+POWERING_DOWN", None, "resume", "resume"),
        ("IDLE+CLOUD+POWERED_DOWN", None, "-", "-"),
        ("IDLE+CLOUD+POWERED_DOWN+PLANNED", None, "-", "-"),
        ("IDLE+CLOUD+POWER_DOWN+POWERED_DOWN", None, "-", "-"),
        ("IDLE+CLOUD+POWER_UP+POWERED_DOWN", None, "-", "-"),
        ("IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING", None, "force", "force"),
        ("DOWN+CLOUD+POWERED_DOWN", Some("ResumeTimeout reached"), "resume", "resume"),
        ("DOWN+CLOUD+POWERED_DOWN", Some("broken fan"), "left", "left"),
        ("DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING", Some("broken fan"), "left", "left"),
        ("IDLE+CLOUD+DRAIN+POWERING_DOWN", Some("broken fan"), "left", "left"),
        ("DOWN+CLOUD", Some("broken fan"), "left", "left"),
        ("DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING", None, "power_down", "power_down"),
        ("DOWN+CLOUD+POWER_DOWN+POWERED_DOWN", None, "power_down", "power_down"),
        ("IDLE+CLOUD+DRAIN+POWERED_DOWN", Some("stopping cluster"), "resume", "resume"),
        ("IDLE+CLOUD+DRAIN+POWERED_DOWN", Some("broken fan"), "left", "left"),
        ("DOWN+CLOUD", None, "power_down", "power_down"),
        ("DOWN+CLOUD+REBOOT_ISSUED", None, "-", "power_down"),
        ("DOWN+CLOUD+POWER_DOWN", None, "waiting", "waiting"),
        // What a stop freed and could not tell Slurm of.
        ("IDLE+CLOUD", None, "-", "force"),
        ("ALLOCATED+CLOUD", None, "-", "down"),
        ("IDLE+CLOUD+NOT_RESPONDING+POWERING_UP", None, "-", "down"),
        ("FUTURE", None, "-", "-"),
    ] {
        for (is_backed, expected) in [(true, backed), (false, not_backed)] {
            let node = node("c5-1", state, "c5-1", reason);
            assert_eq!(list_of(&for_start([Seen { node: &node, is_backed }])), expected, "{state} {reason:?} {is_backed}");
        }
    }
    let off = node("c5-1", "IDLE+CLOUD+POWERED_DOWN", "192.0.2.1", None);
    assert_eq!(list_of(&for_start([Seen { node: &off, is_backed: false }])), "reset");
}

#[test]
fn what_was_told_a_moment_ago_waits() {
    let nodes = [node("c5-1", "IDLE+CLOUD", "c5-1", None), node("c5-2", "IDLE+CLOUD", "c5-2", None)];
    let mut orders = for_stop(&nodes);
    orders.hold_back(|node, what| node == "c5-1" && what == What::Force);
    assert_eq!((orders.force.as_slice(), orders.waiting.as_slice()), (&["c5-2".to_owned()][..], &["c5-1".to_owned()][..]));
    assert_eq!((orders.all_open().count(), orders.is_settled()), (2, false));
    assert_eq!(orders.freed().into_iter().collect::<Vec<_>>(), ["c5-2"]);
}

#[test]
fn m21_only_partitions_of_our_nodes_alone_are_touched() {
    let of = |name: &str, partitions: &[&str]| SlurmNode {
        partitions: partitions.iter().map(|&partition| partition.to_owned()).collect(),
        ..node(name, "IDLE", name, None)
    };
    let (ours, also_ours, others) = (of("c5-1", &["q", "all", "own"]), of("c5-2", &["q"]), of("head", &["all", "debug"]));
    let nodes = || [(&ours, true), (&also_ours, true), (&others, false)];
    assert_eq!(partitions(&[], nodes()).into_iter().collect::<Vec<_>>(), ["own", "q"]);
    assert_eq!(partitions(&["all".to_owned()], nodes()).into_iter().collect::<Vec<_>>(), ["all"]);
}

#[test]
fn a_node_is_inactive_when_all_its_partitions_of_ours_are() {
    let partition = |name: &str, state| Partition { name: name.to_owned(), state };
    let node = SlurmNode { partitions: vec!["a".to_owned(), "b".to_owned()], ..node("c5-1", "IDLE", "c5-1", None) };
    for (states, expected) in [
        (vec![], false),
        (vec![partition("x", PartitionState::Inactive)], false),
        (vec![partition("a", PartitionState::Inactive)], true),
        (vec![partition("a", PartitionState::Inactive), partition("b", PartitionState::Up)], false),
        (vec![partition("a", PartitionState::Inactive), partition("b", PartitionState::Inactive)], true),
    ] {
        assert_eq!(is_inactive(&node, &states), expected, "{states:?}");
    }
}

/// What slurmctld makes of an order, and what comes by itself with the next scan (slurm-facts D.3, E; docs/slurm-notes.md).
pub(super) fn told(text: &str, what: What) -> String {
    let state = State::parse(text);
    let is_busy = text.starts_with("ALLOCATED") || text.starts_with("MIXED") || state.has("COMPLETING");
    let with = |flag: &str| if state.has(flag) { text.to_owned() } else { format!("{text}+{flag}") };
    let rebased = |base: &str| text.find('+').map_or(base.to_owned(), |at| format!("{base}{}", &text[at..]));
    match what {
        What::Down => rebased("DOWN").replace("+COMPLETING", ""),
        What::Force | What::PowerDown if state.is_powering_down() => text.to_owned(),
        What::Force | What::PowerDown if state.is_down() || !(is_busy || state.is_powering_up()) => OFF_SOON.to_owned(),
        // Its end is waited for, which nobody tells where the machine is gone.
        What::Force | What::PowerDown => with("POWER_DOWN"),
        What::Resume if state.is_powering_down() => OFF.to_owned(),
        What::Resume if state.is_down() || state.has("DRAIN") => {
            if state.is_powered_down() {
                OFF.to_owned()
            } else {
                "IDLE+CLOUD".to_owned()
            }
        }
        What::Drain => with("DRAIN"),
        What::Resume | What::Reset => text.to_owned(),
    }
}

const OFF: &str = "IDLE+CLOUD+POWERED_DOWN";
const OFF_SOON: &str = "IDLE+CLOUD+POWERING_DOWN";

pub(super) fn scanned(text: &str) -> String {
    let state = State::parse(text);
    if state.is_down() && state.power_down_requested() && !state.is_powering_down() {
        OFF_SOON.to_owned()
    } else {
        text.to_owned()
    }
}

/// The state when nothing is ordered any more, or after so many rounds.
fn in_the_end(text: &str, orders: impl Fn(&SlurmNode) -> Orders, suspend_timeout_ends: bool) -> String {
    let mut text = text.to_owned();
    let mut addr = "10.0.0.1".to_owned();
    for _ in 0..8 {
        let orders = orders(&SlurmNode { hostname: "c5-1".to_owned(), ..node("c5-1", &text, &addr, Some("stopping cluster")) });
        if orders.is_settled() {
            return text;
        }
        if !orders.down.is_empty() {
            text = told(&told(&text, What::Down), What::PowerDown);
        }
        for (list, what) in [(&orders.force, What::Force), (&orders.power_down, What::PowerDown), (&orders.resume, What::Resume)]
        {
            if !list.is_empty() {
                text = told(&text, what);
            }
        }
        if !orders.reset.is_empty() || !orders.resume.is_empty() {
            addr = "c5-1".to_owned();
        }
        text = scanned(&text);
        if suspend_timeout_ends {
            text = text.replace("POWERING_DOWN", "POWERED_DOWN");
        }
    }
    format!("{text}, never settled")
}

/// Every state that the package knows of, and those in which a stop finds nodes that it has told already.
pub(super) fn all_states() -> Vec<String> {
    let table = include_str!("../../../tests/data/parallelcluster/node-state-truth-table.csv");
    let mut states: Vec<String> = table.lines().skip(1).filter_map(|line| Some(line.split(',').next()?.to_owned())).collect();
    states.extend(["IDLE+CLOUD+COMPLETING+POWER_DOWN", "DOWN+CLOUD+POWER_DOWN+NOT_RESPONDING"].map(str::to_owned));
    states.sort();
    states.dedup();
    assert!(states.len() > 25, "{states:?}");
    states
}

#[test]
fn z01_every_state_ends_off_when_the_fleet_stops() {
    for state in all_states() {
        let end = in_the_end(&state, |node| for_stop([node]), true);
        let parsed = State::parse(&end);
        assert!(parsed.is_powered_down() && !end.contains("never"), "{state}: {end}");
    }
}

#[test]
fn z02_every_state_without_an_instance_ends_fit_for_jobs_when_the_fleet_starts() {
    for state in all_states() {
        // SuspendTimeout is never over: nobody waits for it.
        let end = in_the_end(&state, |node| for_start([Seen { node, is_backed: false }]), false);
        let parsed = State::parse(&end);
        // A request to power down besides does no harm (M05); a node that a person asked up is about to be so.
        let is_off = end.starts_with("IDLE") && parsed.is_powered_down() && !parsed.has("DRAIN") && !parsed.has("NOT_RESPONDING");
        let is_fit = is_off || parsed.has("POWER_UP") || crate::plan::reconcile::state::is_rebooting(&parsed);
        assert!(is_fit && !end.contains("never"), "{state}: {end}");
    }
}

/// What the nodes and instances of the fleet are, as far as starts and stops go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum World {
    Up,
    Down,
    /// A transition was left in its middle.
    Half,
}

/// The status, the world, and the program that carries out a transition now: it holds the fleet's lock.
#[derive(Debug)]
struct Model {
    status: FleetStatus,
    world: World,
    at_work: Option<Transition>,
    /// The last request that was taken.
    wanted: Option<Transition>,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Request(Transition),
    /// Somebody read this status before and only now tries to change it.
    LateRequest(Transition, usize),
    /// A daemon or command looks, and begins if something is due.
    Look,
    /// The work gets on, and succeeds if it is not ended before.
    Finish,
    Fail,
    Kill,
    /// clustermgtd finds too many boot failures.
    Protect,
}

impl Model {
    fn compare_and_set(&mut self, from: FleetStatus, to: FleetStatus) -> bool {
        let holds = self.status == from;
        if holds {
            self.status = to;
        }
        holds
    }

    fn request(&mut self, transition: Transition, seen: FleetStatus) {
        if let Asked::Put { from } = ask(transition, seen)
            && self.compare_and_set(from, transition.requested())
        {
            self.wanted = Some(transition);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Request(transition) => self.request(transition, self.status),
            Event::LateRequest(transition, seen) => self.request(transition, FleetStatus::ALL[seen % FleetStatus::ALL.len()]),
            Event::Look if self.at_work.is_none() => match due(self.status) {
                Due::Nothing => {}
                Due::Begin(transition) => {
                    assert!(self.compare_and_set(transition.requested(), transition.under_way()));
                    (self.at_work, self.world) = (Some(transition), World::Half);
                }
                Due::GoOn(transition) => (self.at_work, self.world) = (Some(transition), World::Half),
            },
            Event::Finish => {
                if let Some(transition) = self.at_work.take() {
                    self.world = if transition == Start { World::Up } else { World::Down };
                    self.compare_and_set(transition.under_way(), transition.done());
                }
            }
            Event::Fail | Event::Kill => self.at_work = None,
            Event::Protect => {
                self.compare_and_set(Running, Protected);
            }
            Event::Look => {}
        }
    }
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let transition = || prop_oneof![Just(Start), Just(Stop)];
    let event = prop_oneof![
        transition().prop_map(Event::Request),
        (transition(), 0usize..7).prop_map(|(transition, seen)| Event::LateRequest(transition, seen)),
        Just(Event::Look),
        Just(Event::Look),
        Just(Event::Finish),
        Just(Event::Fail),
        Just(Event::Kill),
        Just(Event::Protect),
    ];
    proptest::collection::vec(event, 0..40)
}

proptest! {
    /// B110. After any requests, failures and crashes the fleet ends where the last request that was taken wanted it, all of it.
    #[test]
    fn z04_every_story_ends_in_running_or_stopped(events in events()) {
        let mut model = Model { status: Running, world: World::Up, at_work: None, wanted: None };
        for event in events {
            model.happen(event);
            // The fleet says that it is at rest only when all of it is.
            match model.status {
                Running | Protected => prop_assert_eq!(model.world, World::Up),
                Stopped => prop_assert_eq!(model.world, World::Down),
                _ => {}
            }
        }
        for _ in 0..4 {
            model.happen(Event::Look);
            model.happen(Event::Finish);
        }
        let expected = match model.wanted {
            Some(Stop) => (Stopped, World::Down),
            Some(Start) | None if model.status == Protected => (Protected, World::Up),
            Some(Start) | None => (Running, World::Up),
        };
        prop_assert_eq!((model.status, model.world), expected);
    }
}
