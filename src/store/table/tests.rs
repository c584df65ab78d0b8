//! Several programs on one table: every interleaving gives what one after the other would, and one that is killed anywhere leaves
//! nothing unaccounted for. `memory.rs` checks the latter after each transaction.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use serde_json::json;

use super::memory::{Handle, Table};
use super::*;
use crate::model::failure::ErrorClass;
use crate::model::mapping::{Condemned, NodeEntry};
use crate::store::launch_record::{DeadRecord, FoundRecord, RecordBatch, RecordEvent, RecordHeader, RecordState};
use crate::store::tests::{entry as running_entry, header as record_header, request};

/// Long enough for any machine and any order of turns, the pauses between them included; a test that passes never waits for it.
const WAIT: Duration = Duration::from_mins(10);
const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
/// The run's own end and the skew of clocks.
const FREE: Timestamp = Timestamp::from_secs(1_800_000_180 + 60 + 1);
/// Until when a recoverer holds a record.
const UNTIL: Timestamp = Timestamp::from_secs(1_800_000_600);

// Who looks after the cluster.

/// As another machine's daemon wrote it.
fn lease_of_another(table: &Table, until: Timestamp) {
    let fields = json!({"host": "head-2", "who": "process 7 (clustermgtd) on head-2", "until": until});
    table.put("clustermgtd", Item { rev: until.to_string(), fields: fields.as_object().unwrap().clone() });
}

#[test]
fn one_daemon_looks_after_a_cluster_and_another_takes_over_when_its_time_is_over() {
    let table = Table::new();
    let ours = store(Handle::new(&table));
    let later = |seconds| NOW + Duration::from_secs(seconds);
    assert_eq!(ours.lease(NOW, later(600)).unwrap(), None);
    // Renewed, also by one that was started anew on this machine.
    assert_eq!(store(Handle::new(&table)).lease(later(60), later(660)).unwrap(), None);
    assert_eq!(ours.read().unwrap(), Mapping::new("hpc"), "it is no part of the mapping");
    ours.end_lease();
    assert!(!table.items().contains_key("clustermgtd"));

    lease_of_another(&table, later(600));
    let holder = ours.lease(later(660), later(1200)).unwrap();
    assert_eq!(holder.as_deref(), Some("process 7 (clustermgtd) on head-2"), "the clocks may differ by a minute");
    ours.end_lease();
    assert!(table.items().contains_key("clustermgtd"), "only the holder lets go");
    assert_eq!(ours.lease(later(661), later(1200)).unwrap(), None);
}

/// Two machines at the same moment.
#[test]
fn of_two_daemons_that_take_over_one_gets_the_cluster() {
    let table = Table::new();
    lease_of_another(&table, NOW);
    let other = Arc::clone(&table);
    let late = NOW + Duration::from_secs(100);
    let hook = move |number| {
        if number == 0 {
            lease_of_another(&other, late + Duration::from_secs(600));
        }
    };
    let ours = store(Handle::new(&table).before(hook));
    assert!(ours.lease(late, late + Duration::from_secs(600)).unwrap().is_some());
}

// Changes that meet.

/// Two programs claim the same nodes, the second between any two writes of the first.
#[test]
fn a_node_is_claimed_by_one_of_two() {
    for at in 0..12 {
        let table = Table::new();
        let theirs = Arc::new(Mutex::new(None));
        let (other, result) = (Arc::clone(&table), Arc::clone(&theirs));
        let hook = move |number| {
            if number == at {
                *result.lock().unwrap() = Some(claim(&store(Handle::new(&other)), "b", &names(4..10)));
            }
        };
        let first = store(Handle::new(&table).before(hook));
        let (ours, record) = claim(&first, "a", &names(0..7));
        // It would let go of it through the same handle, with the other claim before that.
        std::mem::forget(record);
        let theirs = theirs.lock().unwrap().take();
        let (theirs, _record) = theirs.unwrap_or_else(|| claim(&store(Handle::new(&table)), "b", &names(4..10)));
        let both: BTreeSet<_> = ours.iter().chain(&theirs).cloned().collect();
        assert_eq!((both.len(), ours.len() + theirs.len()), (10, 10), "{at}: {ours:?} {theirs:?}");
        let mapping = first.read().unwrap();
        for (launch, nodes) in [("a", ours), ("b", theirs)] {
            assert!(nodes.iter().all(|node| mapping.nodes[node].launch == launch), "{at}: {mapping:?}");
            let batches = self::record(&first, launch, NOW).batches;
            let recorded: BTreeSet<_> = batches.into_iter().flat_map(|batch| batch.nodes).collect();
            assert_eq!(recorded, nodes, "{at}");
        }
    }
}

/// Suspend frees nodes while a run commits their instances, between any two writes.
#[test]
fn a_suspended_node_gets_no_instance_and_the_instance_is_condemned() {
    for at in 0..8 {
        let table = Table::new();
        let setup = store(Handle::new(&table));
        let (_, _record) = claim(&setup, "a", &names(0..6));
        let other = Arc::clone(&table);
        let hook = move |number| {
            if number == at {
                suspend(&store(Handle::new(&other)), &names(2..6));
            }
        };
        let run = store(Handle::new(&table).before(hook));
        let assigned = commit(&run, "a", &(0..6).map(|n| (node(n), format!("i-{n}"))).collect::<Vec<_>>());
        let mapping = run.read().unwrap();
        assert!(assigned.contains("n0") && assigned.contains("n1"), "{at}");
        let mapped = mapping.nodes.values().filter_map(|entry| entry.instance_id.clone());
        let all: Vec<String> = mapped.chain(mapping.condemned.keys().cloned()).collect();
        assert_eq!(all.len(), 6, "{at}: {mapping:?}");
        if !assigned.contains("n2") {
            assert!(!mapping.nodes.contains_key("n2") && mapping.condemned.contains_key("i-2"), "{at}");
        }
    }
}

/// An instance that another program condemned while it is given to a node.
#[test]
fn an_instance_is_not_condemned_and_given_to_a_node() {
    let table = Table::new();
    let setup = store(Handle::new(&table));
    let (_, _record) = claim(&setup, "a", &names(0..1));
    let other = Arc::clone(&table);
    let hook = move |number| {
        if number == 0 {
            let stranger = store(Handle::new(&other));
            stranger.update(WAIT, |mapping| condemn(mapping, "i-0", None)).unwrap();
        }
    };
    let run = store(Handle::new(&table).before(hook));
    let assigned = commit(&run, "a", &[("n0".to_owned(), "i-0".to_owned())]);
    assert!(assigned.is_empty());
    assert!(run.read().unwrap().condemned.contains_key("i-0"));
}

/// The other way round: what is condemned as the instance of a node is not if the node has got it by then.
#[test]
fn what_a_node_has_got_meanwhile_is_not_condemned() {
    let table = Table::new();
    let setup = store(Handle::new(&table));
    let (_, _record) = claim(&setup, "a", &names(0..1));
    let other = Arc::clone(&table);
    let hook = move |number| {
        if number == 0 {
            commit(&store(Handle::new(&other)), "a", &[("n0".to_owned(), "i-0".to_owned())]);
        }
    };
    let stranger = store(Handle::new(&table).before(hook));
    stranger
        .update(WAIT, |mapping| {
            if !mapping.nodes.values().any(|entry| entry.instance_id.as_deref() == Some("i-0")) {
                condemn(mapping, "i-0", Some("n0"));
            }
        })
        .unwrap();
    assert!(stranger.read().unwrap().condemned.is_empty());
}

/// A change that gives up on its second look takes back what it wrote before.
#[test]
fn a_change_that_gives_up_leaves_nothing() {
    let table = Table::new();
    let other = Arc::clone(&table);
    let hook = move |number| {
        if number == 2 {
            let stranger = store(Handle::new(&other));
            stranger.update(WAIT, |mapping| mapping.nodes.insert("n6".into(), running_on("z", "i-z"))).unwrap();
        }
    };
    let run = store(Handle::new(&table).before(hook));
    let mut looks = 0;
    let changed = run.change(WAIT, NOW, |draft| {
        looks += 1;
        if draft.mapping.nodes.contains_key("n6") {
            return None;
        }
        for node in names(0..7) {
            draft.mapping.nodes.insert(node, launching("a"));
        }
        draft.record = Some((header("a", &names(0..7)), Vec::new()));
        Some(())
    });
    assert!(changed.unwrap().is_none());
    assert_eq!(looks, 2);
    assert_eq!(table.items().keys().collect::<Vec<_>>(), ["mapping", "node#n6"]);
}

/// A write was carried out, its answer lost, and its repetition refused, since the item is not as read any more.
#[test]
fn a_lost_answer_is_found_out() {
    for lost in 0..4 {
        let table = Table::new();
        let setup = store(Handle::new(&table));
        setup.update(WAIT, |mapping| mapping.nodes.insert("n7".into(), running_on("old", "i-7"))).unwrap();
        let run = store(Handle::new(&table).lost(lost));
        let (claimed, record) = claim(&run, "a", &names(0..7));
        assert_eq!(claimed, names(0..7), "{lost}");
        record.append(&RecordEvent::Sent { batch: 0, at: NOW }).unwrap();
    }
}

/// Somebody changes the same node before every single write.
#[test]
fn endless_contention_ends_in_time_with_an_error_that_is_temporary() {
    let table = Table::new();
    let other = Arc::clone(&table);
    let hook = move |number| {
        let entry = running_on(&format!("z{number}"), "i-z");
        other.put("node#n0", Item { rev: format!("z{number}"), fields: codec::entry(&entry) });
    };
    let run = store(Handle::new(&table).before(hook));
    let error =
        run.update(Duration::from_millis(100), |mapping| mapping.nodes.insert("n0".into(), running_on("a", "i-z"))).unwrap_err();
    assert!(matches!(error, StoreError::Contended { .. }) && error.is_temporary(), "{error}");
}

#[test]
fn written_only_when_changed_and_begun_when_asked() {
    let table = Table::new();
    let ours = store(Handle::new(&table));
    ours.update(WAIT, |_| ()).unwrap();
    assert!(table.items().is_empty(), "nothing changed, nothing written");
    assert!(!ours.look(WAIT, NOW, UNTIL).unwrap().existed);
    ours.change(WAIT, NOW, |_| Some(())).unwrap();
    assert!(ours.look(WAIT, NOW, UNTIL).unwrap().existed);
    ours.update(WAIT, |mapping| mapping.nodes.insert("n0".into(), running_on("a", "i-0"))).unwrap();
    let before = table.items();
    ours.update(WAIT, |mapping| mapping.nodes.insert("n0".into(), running_on("a", "i-0"))).unwrap();
    assert_eq!(table.items(), before);
}

// Whatever the interleaving.

/// What a program does to some nodes.
#[derive(Debug, Clone)]
enum Op {
    Claim(Vec<usize>),
    /// The instances are this program's own and new.
    Commit(Vec<usize>),
    Suspend(Vec<usize>),
    /// Condemns the instance and claims the node.
    Replace(Vec<usize>),
    /// What is condemned is gone.
    Release,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let nodes = || prop::collection::btree_set(0..6usize, 1..5).prop_map(|nodes| nodes.into_iter().collect::<Vec<_>>());
    let op = prop_oneof![
        3 => nodes().prop_map(Op::Claim),
        4 => nodes().prop_map(Op::Commit),
        2 => nodes().prop_map(Op::Suspend),
        2 => nodes().prop_map(Op::Replace),
        1 => Just(Op::Release),
    ];
    prop::collection::vec(op, 1..5)
}

/// What came of a program's changes.
#[derive(Debug, Default)]
struct Came {
    /// Instances that it brought into the mapping, and those it took out.
    brought: BTreeSet<String>,
    released: BTreeSet<String>,
}

/// Runs the changes; ends with the first error (the program was killed).
fn program(store: &TableStore, who: usize, ops: &[Op]) -> Came {
    let mut came = Came::default();
    let launch = format!("p{who}");
    let mut record = None;
    for (step, op) in ops.iter().enumerate() {
        match op {
            Op::Claim(nodes) | Op::Replace(nodes) => {
                let replace = matches!(op, Op::Replace(_));
                let begin = record.is_none();
                let changed = store.change(WAIT, NOW, |draft| {
                    for number in nodes {
                        let name = node(*number);
                        let has = draft.mapping.nodes.get(&name).and_then(|entry| entry.instance_id.clone());
                        if replace && let Some(id) = has {
                            condemn(&mut draft.mapping, &id, Some(&name));
                            draft.mapping.nodes.insert(name, launching(&launch));
                        } else {
                            draft.mapping.nodes.entry(name).or_insert_with(|| launching(&launch));
                        }
                    }
                    draft.record = begin.then(|| (header(&launch, &nodes.iter().map(|n| node(*n)).collect()), Vec::new()));
                    Some(())
                });
                let Ok(Some(((), made))) = changed else { return came };
                record = record.or(made);
            }
            Op::Commit(nodes) => {
                let pairs: Vec<_> = nodes.iter().map(|n| (node(*n), format!("i-{who}-{step}-{n}"))).collect();
                let changed = store.update(WAIT, |mapping| {
                    for (node, id) in &pairs {
                        give(mapping, &launch, node, id);
                    }
                });
                // Killed in the middle some of them may be there; what is there is checked by the table itself.
                if changed.is_err() {
                    return came;
                }
                came.brought.extend(pairs.into_iter().map(|(_, id)| id));
            }
            Op::Suspend(nodes) => {
                if store.update(WAIT, |mapping| nodes.iter().for_each(|n| take_down(mapping, &node(*n)))).is_err() {
                    return came;
                }
            }
            Op::Release => {
                let Ok(seen) = store.read() else { return came };
                let changed = store.update(WAIT, |mapping| {
                    mapping.condemned.retain(|id, _| !seen.condemned.contains_key(id));
                });
                if changed.is_err() {
                    return came;
                }
                came.released.extend(seen.condemned.into_keys());
            }
        }
    }
    came
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Two programs, every read and write of theirs in any order.
    #[test]
    fn two_programs_lose_no_update(ops in [ops(), ops()], schedule in prop::collection::vec(0..2usize, 0..120)) {
        let table = Table::new();
        table.schedule(schedule);
        let came: Vec<Came> = std::thread::scope(|scope| {
            let threads: Vec<_> = ops
                .iter()
                .enumerate()
                .map(|(who, ops)| {
                    let table = &table;
                    scope.spawn(move || {
                        let _ends = table.ends(who);
                        program(&store(Handle::new(table).who(who)), who, ops)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mapping = store(Handle::new(&table).who(2)).read().unwrap();
        let mapped: Vec<String> = mapping.nodes.values().filter_map(|entry| entry.instance_id.clone()).collect();
        let there: BTreeSet<String> = mapped.iter().cloned().chain(mapping.condemned.keys().cloned()).collect();
        prop_assert_eq!(there.len(), mapped.len() + mapping.condemned.len(), "once each: {:?}", mapping);
        let brought: BTreeSet<String> = came.iter().flat_map(|came| came.brought.clone()).collect();
        let released: BTreeSet<String> = came.iter().flat_map(|came| came.released.clone()).collect();
        let kept: BTreeSet<String> = brought.difference(&released).cloned().collect();
        prop_assert!(kept.is_subset(&there) && there.is_subset(&brought), "{:?} {:?} {:?}", kept, there, brought);
        // What was released between two tries of the change that condemned it is condemned once more: to EC2 that is nothing.
        prop_assert!(mapped.iter().all(|id| !released.contains(id)), "{:?} {:?}", mapped, released);
    }

    /// One program is killed after any write while another works, and the other goes on.
    #[test]
    fn a_killed_program_leaves_nothing_unaccounted(
        ops in [ops(), ops()],
        schedule in prop::collection::vec(0..2usize, 0..120),
        kill in 0..20usize,
    ) {
        let table = Table::new();
        table.schedule(schedule);
        std::thread::scope(|scope| {
            for (who, ops) in ops.iter().enumerate() {
                let table = &table;
                scope.spawn(move || {
                    let _ends = table.ends(who);
                    let handle = Handle::new(table).who(who);
                    let handle = if who == 0 { handle.killed_after(kill) } else { handle };
                    program(&store(handle), who, ops);
                });
            }
        });
        // The table has checked every state on the way. The records are there for the next program, once their time is over.
        let next = store(Handle::new(&table).who(2));
        let launching: BTreeSet<String> = next.read().unwrap().nodes.into_values()
            .filter(|entry| entry.state == NodeState::Launching).map(|entry| entry.launch).collect();
        let dead: BTreeSet<String> = next.look(WAIT, FREE, UNTIL).unwrap().records.into_iter()
            .map(|state| match state {
                RecordState::Dead(dead) => dead.record.header.launch.clone(),
                other => panic!("{other:?}"),
            })
            .collect();
        prop_assert!(launching.is_subset(&dead), "{:?} {:?}", launching, dead);
    }
}

/// Killed after every single write of a change that begins a record, replaces instances and claims nodes.
#[test]
fn killed_anywhere_the_old_or_what_is_accounted_for() {
    let mut complete = false;
    for kill in 0.. {
        let table = Table::new();
        let setup = store(Handle::new(&table));
        setup
            .update(WAIT, |mapping| {
                for n in 0..5 {
                    mapping.nodes.insert(node(n), running_on("old", &format!("i-{n}")));
                }
            })
            .unwrap();
        let run = store(Handle::new(&table).killed_after(kill));
        let ended = run.change(WAIT, NOW, |draft| {
            for n in 0..9 {
                let name = node(n);
                take_down(&mut draft.mapping, &name);
                draft.mapping.nodes.insert(name, launching("a"));
            }
            draft.record = Some((header("a", &names(0..9)), vec![RecordEvent::Sent { batch: 1, at: NOW }]));
            Some(())
        });
        let look = setup.look(WAIT, NOW, UNTIL).unwrap();
        for n in 0..5 {
            let (behind, condemned) = (&look.mapping.nodes[&node(n)], look.mapping.condemned.get(&format!("i-{n}")));
            assert_eq!(behind.instance_id.is_none(), condemned.is_some(), "{kill}");
        }
        let claims = look.mapping.nodes.values().filter(|entry| entry.state == NodeState::Launching).count();
        match look.records.as_slice() {
            [] => assert_eq!(claims, 0, "{kill}"),
            [RecordState::Live { record, recovered_by: None }] => {
                // A claim's batch is in the record, or nobody could find what was launched for it.
                assert!(claims == 0 || record.batches.iter().flat_map(|batch| &batch.nodes).count() == 9, "{kill}");
            }
            other => panic!("{other:?}"),
        }
        complete = ended.is_ok();
        if complete {
            assert_eq!(claims, 9);
            break;
        }
    }
    assert!(complete);
}

// Records.

#[test]
fn a_record_from_start_to_end() {
    let table = Table::new();
    let store = store(Handle::new(&table));
    let (_, live) = begin(&store, "a", vec![RecordEvent::Sent { batch: 1, at: NOW }]);
    let again = store.change(WAIT, NOW, |draft| {
        draft.record = Some((record_header("a"), Vec::new()));
        Some(())
    });
    assert!(matches!(again, Err(StoreError::Launch { .. })));
    live.append(&RecordEvent::NewBatch { batch: 5, nodes: vec!["n2".into()], request: request("new") }).unwrap();
    live.append(&RecordEvent::Sent { batch: 5, at: NOW }).unwrap();
    live.append(&RecordEvent::Done { batch: 0 }).unwrap();
    let found = record(&store, "a", NOW);
    let batches: Vec<_> =
        found.batches.iter().map(|b| (b.batch, b.request.client_token.as_str(), b.sent.is_some(), b.done)).collect();
    assert_eq!(batches, [(0, "token-0", false, true), (1, "token-1", true, false), (5, "new", true, false)]);
    assert_eq!(found.header, RecordHeader { batches: Vec::new(), ..record_header("a") });
    live.finish().unwrap();
    assert_eq!(table.items().keys().collect::<Vec<_>>(), ["mapping"]);
}

#[test]
fn a_run_is_left_alone_until_it_must_have_ended() {
    let table = Table::new();
    let store = store(Handle::new(&table));
    let (_, live) = begin(&store, "a", Vec::new());
    let skewed = FREE + Duration::ZERO;
    let last = Timestamp::from_secs(skewed.secs() - 1);
    let look = store.look(WAIT, last, UNTIL).unwrap();
    assert!(matches!(look.records.as_slice(), [RecordState::Live { recovered_by: None, .. }]), "{:?}", look.records);
    assert_eq!(seen_live(&store, last), BTreeSet::from(["a".to_owned()]));
    assert!(seen_live(&store, FREE).is_empty());
    let mut dead = dead(&store, FREE);
    // The run comes to life again: it may announce nothing.
    assert!(live.append(&RecordEvent::Sent { batch: 0, at: NOW }).is_err());
    assert!(matches!(
        store.look(WAIT, FREE, UNTIL).unwrap().records.as_slice(),
        [RecordState::Live { recovered_by: Some(who), .. }] if who.contains(" on ")
    ));
    assert!(seen_live(&store, FREE).is_empty());
    assert_eq!(seen_recovered(&store, FREE), BTreeSet::from(["a".to_owned()]), "its recoverer is at work");
    dead.append(&[RecordEvent::Swept { at: FREE, clean: true }]).unwrap();
    live.finish().unwrap();
    assert!(table.items().contains_key("launch#a"), "it is the recoverer's by now");
    // Let go, it is there for the next one at once.
    drop(dead);
    let again = self::dead(&store, FREE);
    assert_eq!(again.record.sweeps, [(FREE, true)]);
    again.delete().unwrap();
    assert_eq!(table.items().keys().collect::<Vec<_>>(), ["mapping"]);
}

#[test]
fn a_run_that_ends_by_itself_leaves_its_record_to_the_next_program() {
    let table = Table::new();
    let store = store(Handle::new(&table));
    let (_, live) = begin(&store, "a", vec![RecordEvent::Sent { batch: 1, at: NOW }]);
    assert_eq!(seen_live(&store, NOW), BTreeSet::from(["a".to_owned()]));
    drop(live);
    assert!(seen_live(&store, NOW).is_empty());
    let dead = dead(&store, NOW);
    assert_eq!(dead.record.batches[1].sent, Some(NOW));
    assert!(seen_live(&store, NOW).is_empty());
    assert_eq!(seen_recovered(&store, NOW), BTreeSet::from(["a".to_owned()]), "its recoverer is at work");
    drop(dead);
    assert!(seen_recovered(&store, NOW).is_empty());
    self::dead(&store, NOW).delete().unwrap();
    assert_eq!(table.items().keys().collect::<Vec<_>>(), ["mapping"]);
}

/// More than an item holds, and more items than a transaction.
#[test]
fn events_by_the_thousand() {
    let table = Table::new();
    let store = store(Handle::new(&table));
    let sent: Vec<RecordEvent> =
        (0..4500).map(|n| RecordEvent::Sent { batch: n % 2, at: Timestamp::from_secs(NOW.secs() + n as u64) }).collect();
    let (_, live) = begin(&store, "a", sent);
    live.append(&RecordEvent::Done { batch: 0 }).unwrap();
    let found = record(&store, "a", NOW);
    let last: Vec<_> = found.batches.iter().map(|batch| batch.last_sent.unwrap().secs() - NOW.secs()).collect();
    assert_eq!(last, [4498, 4499]);
    assert_eq!(found.batches.iter().map(|batch| batch.done).collect::<Vec<_>>(), [true, false]);
    drop(live);
    let mut dead = dead(&store, NOW);
    let before = table.items().len();
    let sweeps: Vec<RecordEvent> = (0..4500).map(|n| RecordEvent::Swept { at: FREE, clean: n % 2 == 0 }).collect();
    dead.append(&sweeps).unwrap();
    assert_eq!(table.items().len(), before + 5);
    dead.append(&[]).unwrap();
    drop(dead);
    let again = self::dead(&store, NOW);
    assert_eq!(again.record.sweeps.len(), 4500);
    again.delete().unwrap();
    assert_eq!(table.items().keys().collect::<Vec<_>>(), ["mapping"]);
}

#[test]
fn one_of_many_recovers_and_a_killed_recoverer_not_for_ever() {
    let table = Table::new();
    let setup = store(Handle::new(&table));
    let _live = begin(&setup, "a", Vec::new());
    let dead: Vec<DeadRecord> = std::thread::scope(|scope| {
        let look = || store(Handle::new(&table).killed_after(1)).look(WAIT, FREE, UNTIL).unwrap().records;
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(look)).collect();
        let states = threads.into_iter().flat_map(|thread| thread.join().unwrap());
        states.filter_map(|state| if let RecordState::Dead(dead) = state { Some(dead) } else { None }).collect()
    });
    assert_eq!(dead.len(), 1);
    // Killed: it cannot let go.
    drop(dead);
    let until = UNTIL + records::SKEW;
    assert!(matches!(setup.look(WAIT, until, UNTIL).unwrap().records.as_slice(), [RecordState::Live { .. }]));
    self::dead(&setup, until + Duration::from_secs(1)).delete().unwrap();
}

#[test]
fn what_is_left_of_a_removed_record_is_swept_up() {
    let table = Table::new();
    let setup = store(Handle::new(&table));
    let (_, live) = begin(&setup, "a", Vec::new());
    drop(live);
    table.remove("launch#a");
    assert!(setup.look(WAIT, NOW, UNTIL).unwrap().records.is_empty());
    assert_eq!(table.items().keys().collect::<Vec<_>>(), ["mapping"]);
}

#[test]
fn a_record_that_cannot_be_read_is_reported_and_kept() {
    let good = serde_json::to_string(&RecordHeader { batches: Vec::new(), ..record_header("a") }).unwrap();
    for (name, fields, part) in [
        ("launch#a", json!({}), "header is missing"),
        ("launch#a", json!({"header": "{}"}), "header"),
        ("launch#a", json!({"header": good.replace("\"version\":1", "\"version\":2")}), "version 2"),
        ("launch#b", json!({"header": good}), "\"a\""),
        ("launch#a#b00000", json!({"batch": "x"}), "#b00000"),
        ("launch#a#e000000", json!({"events": "[{\"event\":\"dance\"}]"}), "#e000000"),
    ] {
        let table = Table::new();
        table.insert("launch#a", json!({"header": good}));
        if name == "launch#b" {
            table.remove("launch#a");
        }
        table.insert(name, fields);
        let before = table.items();
        let look = store(Handle::new(&table)).look(WAIT, FREE, UNTIL).unwrap();
        assert!(
            matches!(look.records.as_slice(), [RecordState::Unreadable { why, .. }] if why.contains(part)),
            "{:?}",
            look.records
        );
        assert_eq!(table.items(), before, "{name}");
    }
}

// The table.

#[test]
fn foreign_items_are_refused_and_left_alone() {
    let node = serde_json::to_value(running_on("a", "i-0")).unwrap();
    let with = |key: &str, value: serde_json::Value| {
        let mut node = node.clone();
        node[key] = value;
        node
    };
    for (name, fields, part) in [
        ("Id", json!({}), "does not know"),
        ("pool#x", json!({}), "does not know"),
        ("mapping", json!({"version": 2}), "version 2"),
        ("node#n0", json!({}), "missing field"),
        ("node#n0", with("rack", json!("r1")), "rack"),
        ("node#n0", with("state", json!("idle")), "idle"),
        ("condemned#i-1", json!({"why": 3}), "condemned#i-1"),
    ] {
        let table = Table::new();
        table.insert(name, fields);
        let before = table.items();
        let store = store(Handle::new(&table));
        for error in [
            store.read().unwrap_err(),
            store.update(WAIT, |mapping| mapping.nodes.clear()).unwrap_err(),
            store.look(WAIT, NOW, UNTIL).unwrap_err(),
        ] {
            let text = error.to_string();
            assert!(text.contains(part) && text.contains(name) && text.contains("table t"), "{text}");
        }
        assert_eq!(table.items(), before);
    }
}

#[test]
fn head_nodes_agree_on_the_state_id() {
    let table = Table::new();
    let ids: BTreeSet<(String, bool)> = std::thread::scope(|scope| {
        let open = || {
            let dir = tempfile::tempdir().unwrap();
            let store = opened(&table, dir.path());
            assert_eq!(std::fs::read_to_string(dir.path().join("state-id")).unwrap().trim(), store.state_id());
            (store.state_id().to_owned(), store.is_new())
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(ids.iter().map(|(id, _)| id).collect::<BTreeSet<_>>().len(), 1, "{ids:?}");
    assert!(ids.iter().any(|(_, is_new)| *is_new));
}

#[test]
fn a_site_that_had_a_state_folder_keeps_its_instances() {
    let (table, dir) = (Table::new(), tempfile::tempdir().unwrap());
    let folder = crate::store::file::FileStore::open(dir.path(), "hpc").unwrap();
    let store = opened(&table, dir.path());
    assert_eq!((store.state_id(), store.is_new()), (folder.state_id(), false));
    // A table that was made anew gets the same one again.
    let store = opened(&Table::new(), dir.path());
    assert_eq!(store.state_id(), folder.state_id());
    table.insert("state-id", json!({"id": "nonsense"}));
    let bare = tempfile::tempdir().unwrap();
    let error = store_in(Handle::new(&table), bare.path()).opened(Instant::now() + WAIT).unwrap_err();
    assert!(error.to_string().contains("state-id"), "{error}");
}

#[test]
fn a_failed_call_says_what_to_do() {
    let error = |code: &str, class, message: &str| {
        StoreError::table(
            "read",
            "slurm-ec2-hpc",
            "eu-west-1",
            AwsError::new(crate::dynamodb::SERVICE, "Query", code, class, message),
        )
    };
    let denied = error("AccessDeniedException", ErrorClass::Identity, "no");
    assert!(!denied.is_temporary());
    for part in ["slurm-ec2-hpc", "eu-west-1", "dynamodb:GetItem", "docs/mapping.md"] {
        assert!(denied.to_string().contains(part), "{denied}");
    }
    let missing = error("ResourceNotFoundException", ErrorClass::Configuration, "no");
    assert!(!missing.is_temporary() && missing.to_string().contains("create-table"), "{missing}");
    let keys = error("ValidationException", ErrorClass::Configuration, "The provided key element does not match the schema");
    assert!(keys.to_string().contains("keys: cluster, item"), "{keys}");
    for (code, class) in [
        ("NoCredentials", ErrorClass::Identity),
        ("DynamoDbUnreachable", ErrorClass::Transient),
        ("ThrottlingException", ErrorClass::Throttled),
    ] {
        let error = error(code, class, "");
        assert!(error.is_temporary() && !error.to_string().contains("docs"), "{error}");
    }
}

fn store(handle: Handle) -> TableStore {
    store_in(handle, Path::new("/nowhere"))
}

fn store_in(handle: Handle, dir: &Path) -> TableStore {
    TableStore { least_wait: Duration::ZERO, ..TableStore::over(Arc::new(handle), "t", "eu-west-1", dir, "hpc").unwrap() }
}

fn opened(table: &Arc<Table>, dir: &Path) -> TableStore {
    store_in(Handle::new(table), dir).opened(Instant::now() + WAIT).unwrap()
}

fn node(number: usize) -> String {
    format!("n{number}")
}

fn names(range: std::ops::Range<usize>) -> BTreeSet<String> {
    range.map(node).collect()
}

/// Claims those of the nodes that are free.
fn claim(store: &TableStore, launch: &str, nodes: &BTreeSet<String>) -> (BTreeSet<String>, LiveRecord) {
    let changed = store.change(WAIT, NOW, |draft| {
        let free: BTreeSet<String> = nodes.iter().filter(|node| !draft.mapping.nodes.contains_key(*node)).cloned().collect();
        for node in &free {
            draft.mapping.nodes.insert(node.clone(), launching(launch));
        }
        draft.record = Some((header(launch, &free), Vec::new()));
        Some(free)
    });
    let (claimed, record) = changed.unwrap().unwrap();
    (claimed, record.unwrap())
}

/// Gives nodes their instances; those that are not the launch's any more lose theirs.
fn commit(store: &TableStore, launch: &str, pairs: &[(String, String)]) -> BTreeSet<String> {
    let change = |mapping: &mut Mapping| {
        let mut assigned = BTreeSet::new();
        for (node, id) in pairs {
            if give(mapping, launch, node, id) {
                assigned.insert(node.clone());
            }
        }
        assigned
    };
    store.update(WAIT, change).unwrap()
}

fn give(mapping: &mut Mapping, launch: &str, node: &str, id: &str) -> bool {
    if mapping.condemned.contains_key(id) {
        return false;
    }
    let ours = |entry: &NodeEntry| entry.state == NodeState::Launching && entry.launch == launch;
    if mapping.nodes.get(node).is_some_and(ours) {
        mapping.nodes.insert(node.to_owned(), running_on(launch, id));
        return true;
    }
    condemn(mapping, id, Some(node));
    false
}

fn suspend(store: &TableStore, nodes: &BTreeSet<String>) {
    store.update(WAIT, |mapping| nodes.iter().for_each(|node| take_down(mapping, node))).unwrap();
}

fn take_down(mapping: &mut Mapping, node: &str) {
    if let Some(id) = mapping.nodes.remove(node).and_then(|entry| entry.instance_id) {
        condemn(mapping, &id, Some(node));
    }
}

fn condemn(mapping: &mut Mapping, id: &str, node: Option<&str>) {
    let condemned =
        Condemned { node: node.map(str::to_owned), launch: "a".to_owned(), since: NOW, launched: None, why: "a test".to_owned() };
    mapping.condemned.entry(id.to_owned()).or_insert(condemned);
}

fn launching(launch: &str) -> NodeEntry {
    NodeEntry { state: NodeState::Launching, instance_id: None, launched: None, ..running_entry(launch) }
}

fn running_on(launch: &str, id: &str) -> NodeEntry {
    NodeEntry { instance_id: Some(id.to_owned()), ..running_entry(launch) }
}

/// A record with a batch for each pair of nodes.
fn header(launch: &str, nodes: &BTreeSet<String>) -> RecordHeader {
    let nodes: Vec<String> = nodes.iter().cloned().collect();
    let batch = |nodes: &[String]| RecordBatch { nodes: nodes.to_vec(), request: request("token") };
    RecordHeader { batches: nodes.chunks(2).map(batch).collect(), ..record_header(launch) }
}

fn begin(store: &TableStore, launch: &str, events: Vec<RecordEvent>) -> ((), LiveRecord) {
    let changed = store.change(WAIT, NOW, |draft| {
        draft.record = Some((record_header(launch), events.clone()));
        Some(())
    });
    let (value, record) = changed.unwrap().unwrap();
    (value, record.unwrap())
}

fn seen_live(store: &TableStore, now: Timestamp) -> BTreeSet<String> {
    store.change(WAIT, now, |draft| Some(draft.live.clone())).unwrap().unwrap().0
}

fn seen_recovered(store: &TableStore, now: Timestamp) -> BTreeSet<String> {
    store.change(WAIT, now, |draft| Some(draft.recovered.clone())).unwrap().unwrap().0
}

/// The record of a launch that is at work.
fn record(store: &TableStore, launch: &str, now: Timestamp) -> FoundRecord {
    let mut records: BTreeMap<String, FoundRecord> = BTreeMap::new();
    for state in store.look(WAIT, now, UNTIL).unwrap().records {
        match state {
            RecordState::Live { record, .. } => drop(records.insert(record.header.launch.clone(), record)),
            other => panic!("{other:?}"),
        }
    }
    records.remove(launch).unwrap()
}

fn dead(store: &TableStore, now: Timestamp) -> DeadRecord {
    match store.look(WAIT, now, UNTIL).unwrap().records.pop() {
        Some(RecordState::Dead(dead)) => dead,
        other => panic!("{other:?}"),
    }
}
