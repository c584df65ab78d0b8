//! What may happen to a world besides: to its instances, by people's hands, to the daemon itself.

use std::time::Duration;

use proptest::prelude::{Just, Strategy as Generator, any, prop_oneof};
use proptest::sample::select;

use crate::model::cluster::{Ailment, Check, PartitionState};
use crate::model::fleet::FleetStatus;
use crate::model::instance::InstanceState;
use crate::plan::reconcile::Order;
use crate::plan::reconcile::world::{Cluster, Machine};

#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    Kill(usize),
    Stop(usize),
    /// EC2 does not show it in this pass.
    Hide(usize),
    SlurmdDies(usize),
    Ail(usize),
    Job(usize, Option<u64>),
    /// `scontrol update` by a person.
    ByHand(usize, Order),
    PowerUp(usize),
    LoseEntry(usize),
    LoseIdle(usize),
    Capacity(bool),
    Boots(bool),
    Partition(u8, PartitionState),
    /// Stopped, or started again.
    Fleet(bool),
    Rebuilt,
    /// The daemon is killed after so many actions of this pass, before or after the memory was written.
    Crash(usize, bool),
}

pub(super) fn event() -> impl Generator<Value = Event> {
    let orders = select(&[Order::Down, Order::Drain, Order::PowerDown, Order::PowerDownForce, Order::Resume][..]);
    let partition = select(&[PartitionState::Up, PartitionState::Up, PartitionState::Inactive][..]);
    let node = 0usize..12;
    prop_oneof![
        2 => node.clone().prop_map(Event::Kill),
        1 => node.clone().prop_map(Event::Stop),
        2 => node.clone().prop_map(Event::Hide),
        1 => node.clone().prop_map(Event::SlurmdDies),
        1 => node.clone().prop_map(Event::Ail),
        6 => (node.clone(), prop_oneof![Just(None), (0u64..900).prop_map(Some)]).prop_map(|(node, ends)| Event::Job(node, ends)),
        4 => (node.clone(), orders).prop_map(|(node, order)| Event::ByHand(node, order)),
        1 => node.clone().prop_map(Event::PowerUp),
        1 => node.clone().prop_map(Event::LoseEntry),
        1 => node.prop_map(Event::LoseIdle),
        1 => any::<bool>().prop_map(Event::Capacity),
        1 => any::<bool>().prop_map(Event::Boots),
        1 => (0u8..2, partition).prop_map(|(queue, state)| Event::Partition(queue, state)),
        1 => any::<bool>().prop_map(Event::Fleet),
        1 => Just(Event::Rebuilt),
        4 => (0usize..12, any::<bool>()).prop_map(|(actions, remembers)| Event::Crash(actions, remembers)),
    ]
}

/// What is no trouble.
pub(super) fn everyday() -> impl Generator<Value = Event> {
    let node = 0usize..12;
    prop_oneof![
        3 => (node.clone(), 0u64..900).prop_map(|(node, ends)| Event::Job(node, Some(ends))),
        1 => node.clone().prop_map(Event::PowerUp),
        1 => node.prop_map(Event::Hide),
    ]
}

/// What happens to the world besides; a crash is given back.
pub(super) fn happen(cluster: &mut Cluster, event: Event) -> Option<(usize, bool)> {
    let names: Vec<String> = cluster.nodes.keys().cloned().collect();
    let name = |at: usize| names.get(at % names.len().max(1)).cloned().unwrap_or_default();
    let ids: Vec<String> = cluster.machines.keys().cloned().collect();
    let now = cluster.now;
    let mut machine = |at: usize, change: &dyn Fn(&mut Machine)| {
        if let Some(machine) = ids.get(at % ids.len().max(1)).and_then(|id| cluster.machines.get_mut(id)) {
            change(machine);
        }
    };
    match event {
        Event::Kill(at) => {
            if let Some(id) = ids.get(at % ids.len().max(1)) {
                cluster.terminate(id);
            }
        }
        Event::Stop(at) => machine(at, &|machine| {
            if machine.instance.state.is_usable() {
                machine.instance.state = InstanceState::Stopping;
                machine.registered = None;
            }
        }),
        // EC2 misses what is there in one look, not in the next ones too.
        Event::Hide(at) => machine(at, &|machine| {
            machine.is_hidden = machine.hidden.is_none_or(|last| now.since(last) > Duration::from_mins(5));
            machine.hidden = Some(now);
        }),
        Event::SlurmdDies(at) => machine(at, &|machine| (machine.boots, machine.registered) = (false, None)),
        Event::Ail(at) => machine(at, &|machine| {
            machine.ailments = vec![Ailment { check: Check::System, since: Some(now), text: "impaired".to_owned() }];
        }),
        _ if names.is_empty() => {}
        Event::Job(at, ends) => cluster.start_job(&name(at), ends.map(Duration::from_secs)),
        Event::ByHand(at, order) => {
            let reason = matches!(order, Order::Down | Order::Drain).then_some("by hand");
            cluster.update(&name(at), order, reason);
        }
        Event::PowerUp(at) => {
            let node = cluster.nodes.get_mut(&name(at)).expect("a name");
            if node.base == "IDLE" && node.has("POWERED_DOWN") {
                node.flags.insert("POWER_UP".to_owned());
            }
        }
        Event::LoseEntry(at) => drop(cluster.mapping.nodes.remove(&name(at))),
        Event::LoseIdle(at) => cluster.nodes.get_mut(&name(at)).expect("a name").idle_is_lost = true,
        Event::Capacity(has) => cluster.has_capacity = has,
        Event::Boots(boots) => cluster.boots = boots,
        Event::Partition(queue, state) => drop(cluster.partitions.insert(format!("q{queue}"), state)),
        Event::Fleet(false) => cluster.fleet = FleetStatus::Stopped,
        Event::Fleet(true) => {
            cluster.fleet = FleetStatus::Running;
            cluster.partitions.values_mut().for_each(|state| *state = PartitionState::Up);
        }
        Event::Rebuilt => cluster.rebuilt = true,
        Event::Crash(actions, remembers) => return Some((actions, remembers)),
    }
    None
}
