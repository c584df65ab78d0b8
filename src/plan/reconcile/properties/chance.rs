//! Worlds at random.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::{Just, Strategy as Generator, any, prop_oneof};
use proptest::sample::select;

use super::events::{Event, event, everyday};
use crate::model::cluster::PartitionState;
use crate::model::instance::{Instance, InstanceState};
use crate::model::time::Timestamp;
use crate::plan::reconcile::Policy;
use crate::plan::reconcile::test_support::{NOW, World};
use crate::plan::reconcile::world::{Cluster, Node, Ways};

const STATES: &[&str] = &[
    "ALLOCATED",
    "ALLOCATED+COMPLETING",
    "ALLOCATED+DRAIN",
    "ALLOCATED+DRAIN+POWER_DOWN",
    "ALLOCATED+NEW_FLAG+PLANNED",
    "ALLOCATED+NOT_RESPONDING",
    "ALLOCATED+NOT_RESPONDING+POWERING_UP",
    "ALLOCATED+NOT_RESPONDING+POWERING_UP+POWER_DOWN",
    "ALLOCATED+POWERED_DOWN",
    "ALLOCATED+POWER_DOWN",
    "DOWN",
    "DOWN+DRAIN",
    "DOWN+DRAIN+POWERED_DOWN",
    "DOWN+INVALID_REG",
    "DOWN+NEW_FLAG+NOT_RESPONDING",
    "DOWN+NOT_RESPONDING+POWERED_DOWN",
    "DOWN+NOT_RESPONDING+POWERED_DOWN+POWER_DOWN",
    "DOWN+NOT_RESPONDING+POWERING_UP",
    "DOWN+NOT_RESPONDING+POWER_DOWN",
    "DOWN+POWERED_DOWN",
    "DOWN+POWERED_DOWN+POWER_DOWN",
    "DOWN+POWERING_DOWN",
    "DOWN+REBOOT_ISSUED",
    "ERROR",
    "FUTURE",
    "FUTURE+POWERED_DOWN",
    "IDLE",
    "IDLE+COMPLETING",
    "IDLE+COMPLETING+DRAIN",
    "IDLE+COMPLETING+POWER_DOWN",
    "IDLE+DRAIN",
    "IDLE+DRAIN+INVALID_REG",
    "IDLE+DRAIN+POWERED_DOWN",
    "IDLE+DRAIN+POWERING_DOWN",
    "IDLE+DRAIN+POWER_DOWN",
    "IDLE+DRAIN+REBOOT_REQUESTED",
    "IDLE+FAIL",
    "IDLE+MAINTENANCE+RESERVED",
    "IDLE+NEW_FLAG+POWERED_DOWN",
    "IDLE+NOT_RESPONDING",
    "IDLE+NOT_RESPONDING+POWERED_DOWN",
    "IDLE+NOT_RESPONDING+POWERING_UP",
    "IDLE+NOT_RESPONDING+POWERING_UP+POWER_DOWN",
    "IDLE+POWERED_DOWN",
    "IDLE+POWERED_DOWN+POWER_DOWN",
    "IDLE+POWERED_DOWN+POWER_UP",
    "IDLE+POWERED_DOWN+RESERVED",
    "IDLE+POWERING_DOWN",
    "IDLE+POWERING_UP",
    "IDLE+POWER_DOWN",
    "IDLE+REBOOT_ISSUED",
    "MIXED",
    "MIXED+BLOCKED",
    "MIXED+COMPLETING+DRAIN",
    "MIXED+POWERED_DOWN",
    "MIXED+POWERED_DOWN+POWERING_UP",
    "UNKNOWN",
    "WEIRD+DRAIN",
];

/// Who knows of the instance.
#[derive(Debug, Clone, Copy)]
pub(super) enum Behind {
    Nothing,
    /// A launch is at work, or is not and was recorded or not.
    Claimed {
        live: bool,
        recorded: bool,
    },
    /// The mapping and Slurm, one of them, or nobody but the address.
    Instance {
        state: InstanceState,
        mapped: bool,
        named: bool,
        addressed: bool,
    },
    /// Named, and EC2 does not show it.
    Missing {
        mapped: bool,
    },
}

#[derive(Debug, Clone)]
pub(super) struct Seed {
    queue: u8,
    resource: u8,
    is_static: bool,
    state: &'static str,
    behind: Behind,
    /// Of instance, entry and state.
    age: u64,
    job: Option<u64>,
    reason: Option<&'static str>,
}

#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) seeds: Vec<Seed>,
    /// Age of instances that stand behind nothing.
    pub(super) strays: Vec<u64>,
    pub(super) ways: Ways,
    pub(super) parallelcluster: bool,
    pub(super) drain_is_unhealthy: bool,
    pub(super) down_is_unhealthy: bool,
    pub(super) protected_count: Option<u64>,
    pub(super) inactive: bool,
    /// Before the world is left to itself, one list a pass.
    pub(super) events: Vec<Vec<Event>>,
}

fn behind() -> impl Generator<Value = Behind> {
    use InstanceState::{Pending, Running, ShuttingDown, Stopped, Stopping, Terminated, Unknown};
    let states = select(&[Running, Running, Running, Pending, Stopping, Stopped, ShuttingDown, Terminated, Unknown][..]);
    let instance = (states, any::<bool>(), any::<bool>(), any::<bool>())
        .prop_map(|(state, mapped, named, addressed)| Behind::Instance { state, mapped, named, addressed });
    prop_oneof![
        3 => Just(Behind::Nothing),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(live, recorded)| Behind::Claimed { live, recorded }),
        4 => select(&[Running, Pending][..]).prop_map(|state| Behind::Instance { state, mapped: true, named: true, addressed: true }),
        3 => instance,
        1 => any::<bool>().prop_map(|mapped| Behind::Missing { mapped }),
    ]
}

fn seed() -> impl Generator<Value = Seed> {
    let reasons = select(
        &[
            None,
            Some("bad disk"),
            Some("Not responding"),
            Some("ResumeTimeout reached"),
            Some("(Code:InsufficientInstanceCapacity)no room"),
            Some("Scheduler health check failed"),
        ][..],
    );
    let ages = select(&[0, 30, 100, 200, 400, 1000, 4000][..]);
    let place = (0u8..2, 0u8..2, any::<bool>());
    let jobs = prop_oneof![Just(None), (0u64..2000).prop_map(Some)];
    (place, select(STATES), behind(), ages, jobs, reasons).prop_map(|(place, state, behind, age, job, reason)| {
        let (queue, resource, is_static) = place;
        Seed { queue, resource, is_static, state, behind, age, job, reason }
    })
}

fn ways() -> impl Generator<Value = Ways> {
    let often = || prop_oneof![4 => Just(true), 1 => Just(false)];
    (any::<bool>(), often(), 0u8..3, often(), often(), often()).prop_map(
        |(new_slurm, idle_on_suspend, return_to_service, resume_runs, suspend_runs, resume_fail_runs)| Ways {
            new_slurm,
            idle_on_suspend,
            return_to_service,
            resume_runs,
            suspend_runs,
            resume_fail_runs,
        },
    )
}

pub(super) fn case() -> impl Generator<Value = Case> {
    let often = || prop_oneof![5 => Just(true), 1 => Just(false)];
    let events = proptest::collection::vec(proptest::collection::vec(event(), 0..4), 0..25);
    let protected = select(&[Some(10), Some(2), None][..]);
    let strays = proptest::collection::vec(0u64..1000, 0..3);
    let toggles = (any::<bool>(), often(), often(), often());
    (proptest::collection::vec(seed(), 0..8), strays, ways(), toggles, protected, events).prop_map(
        |(seeds, strays, ways, (parallelcluster, drain, down, active), protected_count, events)| Case {
            seeds,
            strays,
            ways,
            parallelcluster,
            drain_is_unhealthy: drain,
            down_is_unhealthy: down,
            protected_count,
            inactive: !active,
            events,
        },
    )
}

fn policy(case: &Case) -> Policy {
    let mut world = World::new();
    for queue in ["q0", "q1"] {
        for resource in ["r0", "r1"] {
            world.group(queue, resource);
        }
    }
    let mut policy = world.policy;
    policy.parallelcluster = case.parallelcluster;
    policy.upkeep.terminate_drain_nodes = case.drain_is_unhealthy;
    policy.upkeep.terminate_down_nodes = case.down_is_unhealthy;
    policy.upkeep.protected_count = case.protected_count;
    policy
}

pub(super) fn build(case: &Case) -> Cluster {
    let mut cluster = Cluster::new(NOW, policy(case), case.ways);
    cluster.partitions.insert("q0".to_owned(), PartitionState::Up);
    cluster.partitions.insert("q1".to_owned(), if case.inactive { PartitionState::Inactive } else { PartitionState::Up });
    for (number, seed) in case.seeds.iter().enumerate() {
        plant(&mut cluster, number, seed);
    }
    for age in &case.strays {
        let launched = ago(*age);
        cluster.machine(InstanceState::Running, "launch-old", launched);
    }
    cluster
}

fn plant(cluster: &mut Cluster, number: usize, seed: &Seed) {
    let kind = if seed.is_static { "st" } else { "dy" };
    let name = format!("q{}-{kind}-r{}-{number}", seed.queue, seed.resource);
    let at = ago(seed.age);
    let mut node = Node {
        name: name.clone(),
        queue: format!("q{}", seed.queue),
        group: usize::from(seed.queue * 2 + seed.resource),
        is_static: seed.is_static,
        base: String::new(),
        flags: BTreeSet::new(),
        reason: seed.reason.map(str::to_owned),
        addr: name.clone(),
        instance_id: None,
        boot: None,
        slurmd: None,
        busy: at,
        job_ends: seed.job.map(|ends| NOW + Duration::from_secs(ends)),
        power_since: at,
        silent: 0,
        idle_is_lost: false,
    };
    node.set(seed.state);
    let is_off = ["POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "NOT_RESPONDING"].iter().any(|flag| node.has(flag));
    cluster.nodes.insert(name.clone(), node);
    match seed.behind {
        Behind::Nothing => {}
        Behind::Claimed { live, recorded } => {
            let launch = format!("launch-{name}");
            cluster.entry(&name, None, &launch, at);
            if live {
                cluster.live.insert(launch, vec![name]);
            } else if recorded {
                cluster.records.insert(launch, NOW + Duration::from_mins(5));
            }
        }
        Behind::Instance { state, mapped, named, addressed } => {
            let instance = cluster.machine(state, &format!("launch-{name}"), at);
            if mapped {
                cluster.entry(&name, Some(&instance), &format!("launch-{name}"), at);
            }
            name_it(cluster, &name, &instance, named && cluster.ways.new_slurm, addressed || !named);
            if !is_off && state == InstanceState::Running && (addressed || !named) {
                cluster.machines.entry(instance.id).and_modify(|machine| machine.registered = Some(name));
            }
        }
        Behind::Missing { mapped } => {
            let instance = cluster.machine(InstanceState::Running, "launch-old", at);
            cluster.machines.remove(&instance.id);
            if mapped {
                cluster.entry(&name, Some(&instance), "launch-old", at);
            }
            name_it(cluster, &name, &instance, cluster.ways.new_slurm, true);
        }
    }
}

fn name_it(cluster: &mut Cluster, name: &str, instance: &Instance, named: bool, addressed: bool) {
    let node = cluster.nodes.get_mut(name).expect("planted");
    if named {
        node.instance_id = Some(instance.id.clone());
    }
    if addressed {
        node.addr = instance.private_ip.clone().unwrap_or_default();
    }
}

fn ago(seconds: u64) -> Timestamp {
    Timestamp::from_secs(NOW.secs() - seconds)
}

/// A world in which all is well, with what may happen in it: jobs, nodes powered up by hand, one look of EC2's that misses something.
pub(super) fn well() -> impl Generator<Value = (Case, Vec<Option<Event>>)> {
    let running = |age: u64, state| {
        let behind = Behind::Instance { state: InstanceState::Running, mapped: true, named: true, addressed: true };
        (state, behind, age)
    };
    let up = (100u64..400, select(&["IDLE", "ALLOCATED", "MIXED+PLANNED", "IDLE+NEW_FLAG"][..]))
        .prop_map(move |(age, state)| running(age, state));
    let off = Just(("IDLE+POWERED_DOWN", Behind::Nothing, 0));
    let booting = Just(("ALLOCATED+NOT_RESPONDING+POWERING_UP", Behind::Claimed { live: true, recorded: true }, 0));
    let dynamic = prop_oneof![2 => up.clone(), 3 => off, 1 => booting].prop_map(|what| (what, false));
    let node = prop_oneof![3 => dynamic, 1 => up.prop_map(|what| (what, true))];
    let seed = (0u8..2, 0u8..2, node, 0u64..900).prop_map(|(queue, resource, ((state, behind, age), is_static), job)| Seed {
        queue,
        resource,
        is_static,
        state,
        behind,
        age,
        job: Some(job),
        reason: None,
    });
    let ways = (any::<bool>(), any::<bool>(), 0u8..3).prop_map(|(new_slurm, idle_on_suspend, return_to_service)| Ways {
        new_slurm,
        idle_on_suspend,
        return_to_service,
        resume_runs: true,
        suspend_runs: true,
        resume_fail_runs: true,
    });
    let events = proptest::collection::vec(proptest::option::of(everyday()), 60);
    (proptest::collection::vec(seed, 1..10), ways, any::<bool>(), events).prop_map(|(seeds, ways, parallelcluster, events)| {
        let case = Case {
            seeds,
            strays: Vec::new(),
            ways,
            parallelcluster,
            drain_is_unhealthy: true,
            down_is_unhealthy: true,
            protected_count: Some(1),
            inactive: false,
            events: Vec::new(),
        };
        (case, events)
    })
}
