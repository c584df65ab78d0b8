//! The properties of plan/mod.rs for random calls, whatever EC2 answers and in whatever order.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::{Strategy as Generator, any, prop_assert, prop_assert_eq, prop_oneof, proptest};

use super::simulated::{Capacity, Ended, SHORTAGE, failure, group_of, groups};
use super::{Answer, Order, Request, Round, Scaling, Wanted};
use crate::model::failure::codes;
use crate::model::instance::InstanceState;
use crate::model::policy::{ScaleBy, Strategy};
use crate::model::recipe::Group;

/// A random call.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) nodes: Vec<String>,
    pub(super) jobs: Vec<Vec<String>>,
    pub(super) refused: BTreeSet<String>,
    pub(super) scale_by: ScaleBy,
    pub(super) strategy: Strategy,
    pub(super) batch_size: usize,
    seed: u64,
}

pub(super) const GROUPS: [&str; 4] = ["a", "b", "c", "d"];

impl Case {
    pub(super) fn groups(&self) -> BTreeMap<String, Group> {
        groups(&GROUPS, self.batch_size, self.strategy)
    }

    pub(super) fn request<'a>(&self, groups: &'a BTreeMap<String, Group>) -> Request<'a> {
        let wanted = |node: &String| Wanted {
            node: node.clone(),
            group: group_of(groups, node),
            refused: self.refused.contains(node).then(|| failure("Resting")),
        };
        let jobs = self.jobs.iter().enumerate().map(|(at, nodes)| (at as u64 + 1, nodes.clone()));
        Request {
            nodes: self.nodes.iter().map(wanted).collect(),
            jobs: Some(jobs.collect()),
            scale_by: self.scale_by,
            strategy: self.strategy,
        }
    }
}

fn node() -> impl Generator<Value = String> {
    (0usize..GROUPS.len(), 1usize..9).prop_map(|(group, n)| format!("{}-{n}", GROUPS[group]))
}

pub(super) fn case() -> impl Generator<Value = Case> {
    let nodes = proptest::collection::vec(node(), 0..24);
    let jobs = proptest::collection::vec(proptest::collection::vec(node(), 1..7), 0..8);
    let refused =
        prop_oneof![3 => proptest::collection::btree_set(node(), 0..1), 1 => proptest::collection::btree_set(node(), 0..3)];
    let scale_by = prop_oneof![
        1 => proptest::strategy::Just(ScaleBy::Batch),
        1 => proptest::strategy::Just(ScaleBy::Call),
        4 => proptest::strategy::Just(ScaleBy::Job),
    ];
    let strategy = prop_oneof![
        proptest::strategy::Just(Strategy::AllOrNothing),
        proptest::strategy::Just(Strategy::GreedyAllOrNothing),
        proptest::strategy::Just(Strategy::BestEffort),
    ];
    (nodes, jobs, refused, scale_by, strategy, 1usize..7, any::<u64>()).prop_map(
        |(mut nodes, jobs, refused, scale_by, strategy, batch_size, seed)| {
            // Most jobs' nodes are in the call.
            nodes.extend(jobs.iter().flatten().filter(|node| !node.ends_with('8')).cloned());
            Case { nodes, jobs, refused, scale_by, strategy, batch_size, seed }
        },
    )
}

/// Answers at random: by the seed, the group and how many orders the group had before.
struct World<'a> {
    case: &'a Case,
    capacity: Capacity,
    asked: BTreeMap<String, u64>,
    /// Ids of all instances that exist, and of those that cannot be used.
    launched: BTreeSet<String>,
    unusable: BTreeSet<String>,
    /// Nodes that were cancelled before they ended.
    cancelled: BTreeSet<String>,
    /// Every order is answered in full.
    generous: bool,
    waiting: Vec<(Order, Answer)>,
    ended: Ended,
}

impl<'a> World<'a> {
    fn new(case: &'a Case) -> Self {
        let capacity = Capacity::of(&GROUPS.map(|group| (group, usize::MAX)));
        Self {
            case,
            capacity,
            asked: BTreeMap::new(),
            launched: BTreeSet::new(),
            unusable: BTreeSet::new(),
            cancelled: BTreeSet::new(),
            generous: false,
            waiting: Vec::new(),
            ended: Ended::default(),
        }
    }

    fn answer(&mut self, order: &Order) -> Answer {
        let count = self.asked.entry(order.group.clone()).or_default();
        *count += 1;
        let place = order.group.bytes().map(u64::from).sum::<u64>();
        let mut random = fastrand::Rng::with_seed(self.case.seed ^ place.wrapping_mul(0x9e37_79b9) ^ (*count << 40));
        let most = order.nodes.len();
        if self.generous {
            let instances = self.capacity.give(&order.group, most);
            self.launched.extend(instances.iter().map(|instance| instance.id.clone()));
            return Answer { instances, failure: None };
        }
        let given = match random.u8(0..10) {
            0..4 => most,
            4..6 => 0,
            6 => most + 1,
            _ if order.strategy == Strategy::AllOrNothing && random.u8(0..4) > 0 => 0,
            _ => random.usize(0..=most),
        };
        let mut instances = self.capacity.give(&order.group, given);
        for instance in &mut instances {
            self.launched.insert(instance.id.clone());
            match random.u8(0..12) {
                0 => instance.private_ip = None,
                1 => instance.state = InstanceState::ShuttingDown,
                _ => continue,
            }
            self.unusable.insert(instance.id.clone());
        }
        random.shuffle(&mut instances);
        let code = [SHORTAGE, "VcpuLimitExceeded", codes::LIMITED, codes::DEADLINE][random.usize(0..4)];
        Answer { failure: (given < most && random.bool()).then(|| failure(code)), instances }
    }

    fn has_ended(&self, node: &String) -> bool {
        self.ended.backed.contains_key(node) || self.ended.failed.contains_key(node)
    }

    fn cancel(&mut self, scaling: &mut Scaling, node: &str) {
        scaling.cancel(node);
        let node = node.to_owned();
        if self.case.nodes.contains(&node) && !self.has_ended(&node) {
            self.cancelled.insert(node);
        }
    }

    fn take(&mut self, round: Round) {
        self.ended.take(&round);
        for order in round.launch {
            assert!(!order.nodes.is_empty() && order.nodes.len() <= self.case.batch_size);
            let twice = self.waiting.iter().any(|(other, _)| other.nodes.iter().any(|node| order.nodes.contains(node)));
            assert!(!twice, "two orders for a node are out at once: {order:?}");
            let done = |node: &String| self.has_ended(node) || self.cancelled.contains(node) || self.case.refused.contains(node);
            assert!(!order.nodes.iter().any(done), "{order:?}");
            let answer = self.answer(&order);
            self.waiting.push((order, answer));
        }
    }

    /// Performs all that is left, the answers in the order of the orders.
    fn finish(&mut self, scaling: &mut Scaling) {
        self.take(scaling.next_round());
        while !self.waiting.is_empty() {
            let (order, answer) = self.waiting.remove(0);
            scaling.record(order.id, answer);
            self.take(scaling.next_round());
        }
        assert!(scaling.is_finished() && !scaling.holds_instances(), "P4");
    }

    /// Everything ended exactly once.
    fn check(&self) {
        let wanted: BTreeSet<&String> = self.case.nodes.iter().filter(|&node| !self.cancelled.contains(node)).collect();
        assert_eq!(self.ended.backed.keys().chain(self.ended.failed.keys()).collect::<BTreeSet<_>>(), wanted, "P1");
        let backing: BTreeSet<String> = self.ended.backed.values().cloned().collect();
        assert_eq!(backing.len(), self.ended.backed.len(), "an instance backs two nodes");
        assert!(backing.is_disjoint(&self.ended.released) && backing.is_disjoint(&self.unusable), "P2");
        assert_eq!(backing.union(&self.ended.released).cloned().collect::<BTreeSet<_>>(), self.launched, "P2");
    }
}

/// Runs a case; the answers arrive in the order that `arrival` makes. `give_up`: after so many answers.
fn play(case: &Case, arrival: u64, give_up: Option<usize>) -> Ended {
    let mut world = World::new(case);
    play_in(&mut world, arrival, give_up, &[]);
    world.ended
}

/// As [`play`]. `cancels`: after so many answers (or none, before the first round), this node.
fn play_in(world: &mut World<'_>, arrival: u64, give_up: Option<usize>, cancels: &[(usize, String)]) {
    let groups = world.case.groups();
    let mut scaling = Scaling::new(world.case.request(&groups));
    let mut random = fastrand::Rng::with_seed(arrival);
    let mut answered = 0;
    let mut cancels = cancels.to_vec();
    loop {
        let now: Vec<_> = cancels.extract_if(.., |(after, _)| *after == answered).collect();
        if answered == 0 && random.bool() {
            world.take(scaling.next_round());
        }
        for (_, node) in &now {
            world.cancel(&mut scaling, node);
        }
        if give_up == Some(answered) {
            let round = scaling.give_up(failure("Deadline"));
            assert!(round.launch.is_empty());
            world.take(round);
            assert!(scaling.is_finished() && !scaling.holds_instances());
            // What comes late is released.
            for (order, answer) in std::mem::take(&mut world.waiting) {
                scaling.record(order.id, answer);
            }
            world.take(scaling.next_round());
            break;
        }
        // Several answers may come before anybody looks.
        if answered == 0 || world.waiting.is_empty() || random.bool() {
            world.take(scaling.next_round());
        }
        if world.waiting.is_empty() {
            break;
        }
        let (order, answer) = world.waiting.swap_remove(random.usize(0..world.waiting.len()));
        scaling.record(order.id, answer);
        answered += 1;
    }
    assert!(scaling.next_round().is_empty() && scaling.is_finished() && !scaling.holds_instances(), "P4");
    world.check();
}

/// A unit that must be whole is all backed or not at all, where no other unit has a node of it.
fn check_whole(case: &Case, ended: &Ended) {
    check_whole_but(case, ended, &BTreeSet::new());
}

/// As [`check_whole`], for what remains of the unit.
fn check_whole_but(case: &Case, ended: &Ended, cancelled: &BTreeSet<String>) {
    if case.strategy == Strategy::BestEffort || case.scale_by == ScaleBy::Batch {
        return;
    }
    let units: Vec<BTreeSet<&String>> = if case.scale_by == ScaleBy::Call || case.jobs.is_empty() {
        vec![case.nodes.iter().collect()]
    } else {
        let shared = |node: &String| case.jobs.iter().filter(|job| job.contains(node)).count() > 1;
        case.jobs
            .iter()
            .filter(|job| !job.iter().any(shared))
            .map(|job| job.iter().filter(|node| case.nodes.contains(node)).collect())
            .collect()
    };
    for mut unit in units {
        unit.retain(|node| !cancelled.contains(*node));
        let backed = unit.iter().filter(|node| ended.backed.contains_key(**node)).count();
        assert!(backed == 0 || backed == unit.len(), "half assigned: {unit:?}");
    }
}

proptest! {
    #[test]
    fn p1_p2_p3_p6_whatever_ec2_answers_in_whatever_order(case in case(), one in any::<u64>(), other in any::<u64>()) {
        let ended = play(&case, one, None);
        check_whole(&case, &ended);
        prop_assert_eq!(&ended, &play(&case, one, None), "P6");
        prop_assert_eq!(&ended, &play(&case, other, None), "the order of the answers does not matter");
        // Only what really failed is said, and the catch-all and "nothing came" where nothing was said.
        let known = [SHORTAGE, "VcpuLimitExceeded", codes::LIMITED, codes::DEADLINE, "Resting"];
        prop_assert!(ended.failed.values().all(|failure| known.contains(&failure.code.as_str())));
    }

    #[test]
    fn p5_giving_up_at_any_moment_accounts_for_everything(case in case(), arrival in any::<u64>(), after in 0usize..12) {
        let ended = play(&case, arrival, Some(after));
        check_whole(&case, &ended);
    }

    #[test]
    fn cancelling_at_any_moment_accounts_for_everything(
        case in case(),
        arrival in any::<u64>(),
        cancels in cancels(),
        give_up in proptest::option::weighted(0.2, 0usize..12),
    ) {
        let mut world = World::new(&case);
        play_in(&mut world, arrival, give_up, &cancels);
        check_whole_but(&case, &world.ended, &world.cancelled);
    }

    #[test]
    fn where_everything_is_launched_cancelling_costs_nobody_an_instance(
        case in case(),
        arrival in any::<u64>(),
        cancels in cancels(),
    ) {
        let mut world = World::new(&case);
        world.generous = true;
        play_in(&mut world, arrival, None, &cancels);
        let failed = &world.ended.failed;
        prop_assert!(!case.refused.is_empty() || failed.is_empty(), "{failed:?}");
        prop_assert!(failed.values().all(|failure| failure.code == "Resting"), "{failed:?}");
    }

    #[test]
    fn what_is_cancelled_before_the_first_round_is_as_if_never_asked_for(
        mut case in case(),
        arrival in any::<u64>(),
        gone in proptest::collection::btree_set(node(), 0..12),
    ) {
        if case.scale_by == ScaleBy::Job {
            case.scale_by = ScaleBy::Call;
        }
        let mut without = case.clone();
        without.nodes.retain(|node| !gone.contains(node));
        let groups = case.groups();
        let mut world = World::new(&case);
        let mut scaling = Scaling::new(case.request(&groups));
        for node in &gone {
            world.cancel(&mut scaling, node);
        }
        world.finish(&mut scaling);
        world.check();
        prop_assert_eq!(world.ended, play(&without, arrival, None));
    }
}

fn cancels() -> impl Generator<Value = Vec<(usize, String)>> {
    proptest::collection::vec((0usize..6, node()), 0..16)
}
