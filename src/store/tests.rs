//! The state folder as several processes use it: races, killed holders, foreign content.
//!
//! A child process is this test binary again, running the ignored test `child` with a role in its environment.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use super::door::Draft;
use super::error::StoreError;
use super::file::FileStore;
use super::journal::Running;
use super::launch_record::{DeadRecord, FoundRecord, Hold, RecordBatch, RecordEvent, RecordHeader, RecordState, VERSION};
use crate::model::mapping::{Condemned, Mapping, NodeEntry, NodeState};
use crate::model::policy::Strategy;
use crate::model::recipe::{Api, Capacity, LaunchTemplate, Recipe};
use crate::model::round::LaunchRequest;
use crate::model::time::Timestamp;

/// Long enough for any machine; a test that passes never waits for it.
const WAIT: Duration = Duration::from_secs(60);
const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
const EXPIRES: Timestamp = Timestamp::from_secs(1_800_000_180);
const LATER: Timestamp = Timestamp::from_secs(1_800_000_181);

// The mapping.

#[test]
fn a_new_folder() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("var/state");
    let store = FileStore::open(&path, "hpc").unwrap();
    for folder in [path.clone(), path.join("launches")] {
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o7777, 0o750);
    }
    assert!(store.is_new());
    assert_eq!(store.state_id().len(), 16);
    let again = FileStore::open(&path, "hpc").unwrap();
    assert_eq!((again.state_id(), again.is_new()), (store.state_id(), false));
    assert_eq!(FileStore::open_read_only(&path, "hpc").unwrap().state_id(), store.state_id());
    assert!(store.mapping_missing().unwrap());
    assert_eq!(*store.read().unwrap(), Mapping::new("hpc"));
    store.update(WAIT, |_| ()).unwrap();
    assert!(store.mapping_missing().unwrap(), "nothing changed, nothing written");
    store.update(WAIT, |mapping| mapping.nodes.insert("n1".into(), entry("a"))).unwrap();
    assert_eq!(fs::metadata(store.mapping_path()).unwrap().permissions().mode() & 0o7777, 0o640);
    assert!(store.locked(WAIT).unwrap().existed());
    assert_eq!(store.read().unwrap().nodes["n1"], entry("a"));
}

#[test]
fn many_first_runs_agree_on_the_state_id() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let ids: BTreeSet<String> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..12).map(|_| scope.spawn(|| FileStore::open(&path, "hpc").unwrap().state_id().to_owned())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(ids.len(), 1);
}

#[test]
fn a_dry_run_creates_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let store = FileStore::open_read_only(&path, "hpc").unwrap();
    assert_eq!((store.state_id(), &*store.read().unwrap()), ("", &Mapping::new("hpc")));
    assert!(matches!(store.update(WAIT, |_| ()), Err(StoreError::ReadOnly { .. })));
    assert!(!path.exists());
}

#[test]
fn a_change_that_changes_nothing_copies_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path(), "hpc").unwrap();
    store.update(WAIT, |mapping| mapping.nodes.insert("n1".into(), entry("a"))).unwrap();
    let before = store.read().unwrap();
    let shared = |draft: &mut Draft| Some(draft.mapping.nodes.len() == 1 && Arc::ptr_eq(&draft.mapping.0, &before));
    assert!(store.change(WAIT, NOW, shared).unwrap().unwrap().0);
    assert!(Arc::ptr_eq(&store.read().unwrap(), &before));
    // What somebody has read stays as it was.
    store.change(WAIT, NOW, |draft| draft.mapping.nodes.remove("n1")).unwrap().unwrap();
    assert_eq!((before.nodes.len(), store.read().unwrap().nodes.len()), (1, 0));
}

#[test]
fn written_only_when_changed() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path(), "hpc").unwrap();
    store.update(WAIT, |mapping| mapping.nodes.insert("n1".into(), entry("a"))).unwrap();
    let before = inode(&store.mapping_path());
    store.update(WAIT, |mapping| mapping.nodes.insert("n1".into(), entry("a"))).unwrap();
    assert_eq!(inode(&store.mapping_path()), before);
    let mut locked = store.locked(WAIT).unwrap();
    locked.mapping_mut().nodes.clear();
    drop(locked);
    assert_eq!(store.read().unwrap().nodes.len(), 1, "dropped without commit");
    let mut locked = store.locked(WAIT).unwrap();
    locked.mapping_mut().nodes.clear();
    assert!(locked.commit().unwrap());
    assert!(!locked.commit().unwrap());
    assert!(matches!(store.locked(Duration::ZERO), Err(StoreError::Busy { .. })), "commit keeps the lock");
}

/// What this process remembers of the file counts only as long as it is that file.
#[test]
fn what_others_write_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (FileStore::open(dir.path(), "hpc").unwrap(), FileStore::open(dir.path(), "hpc").unwrap());
    // Of one length, as fast as it goes.
    for round in 0..200 {
        let launch = format!("{round:04}");
        theirs.update(WAIT, |mapping| mapping.nodes.insert("n1".into(), entry(&launch))).unwrap();
        assert_eq!(ours.read().unwrap().nodes["n1"].launch, launch);
        let launch = format!("{:04}", round + 5000);
        ours.update(WAIT, |mapping| mapping.nodes.insert("n1".into(), entry(&launch))).unwrap();
        assert_eq!(ours.read().unwrap().nodes["n1"].launch, launch);
        assert_eq!(theirs.read().unwrap().nodes["n1"].launch, launch);
    }
    // By hand, in place.
    let text = fs::read_to_string(ours.mapping_path()).unwrap();
    fs::write(ours.mapping_path(), format!("{text}\n").replace("5199", "77")).unwrap();
    assert_eq!(ours.read().unwrap().nodes["n1"].launch, "77");
    fs::write(ours.mapping_path(), "").unwrap();
    assert!(ours.read().is_err());
    fs::remove_file(ours.mapping_path()).unwrap();
    assert_eq!(*ours.read().unwrap(), Mapping::new("hpc"));
    assert!(ours.mapping_missing().unwrap());
}

#[test]
fn an_empty_mapping_can_be_written_on_purpose() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path(), "hpc").unwrap();
    let mut locked = store.locked(WAIT).unwrap();
    assert!(!locked.existed());
    assert!(locked.commit().unwrap());
    assert!(!store.mapping_missing().unwrap());
}

/// Whatever stands there, it is reported with its path and not touched.
#[test]
fn foreign_content_is_left_alone() {
    let good = r#"{"version": 1, "cluster": "hpc", "nodes": {}, "condemned": {}}"#;
    let cases: BTreeMap<&str, &[u8]> = BTreeMap::from([
        ("empty", &b""[..]),
        ("text", b"node1 i-123\n"),
        ("cut short", &good.as_bytes()[..30]),
        ("another version", br#"{"version": 3, "cluster": "hpc"}"#),
        ("another cluster", br#"{"version": 1, "cluster": "other"}"#),
        ("wrong type", br#"{"version": 1, "cluster": "hpc", "nodes": []}"#),
        ("a field of tomorrow", br#"{"version": 1, "cluster": "hpc", "pools": {}}"#),
        ("zeroes", &[0; 4096]),
    ]);
    for (name, content) in cases {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mapping.json");
        fs::write(&path, content).unwrap();
        let store = FileStore::open(dir.path(), "hpc").unwrap();
        for error in [
            store.read().unwrap_err(),
            store.update(WAIT, |mapping| mapping.nodes.clear()).unwrap_err(),
            store.locked(WAIT).map(drop).unwrap_err(),
        ] {
            let text = error.to_string();
            assert!(matches!(error, StoreError::Content { .. }) && text.contains(path.to_str().unwrap()), "{name}: {text}");
        }
        assert_eq!(fs::read(&path).unwrap(), content, "{name}");
        assert!(!store.mapping_missing().unwrap(), "{name}");
    }
}

#[test]
fn what_is_no_file_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path(), "hpc").unwrap();
    let path = store.mapping_path();
    let elsewhere = dir.path().join("elsewhere");
    let check = |what: &str| {
        for error in [store.read().unwrap_err(), store.update(WAIT, |mapping| mapping.nodes.clear()).unwrap_err()] {
            assert!(matches!(error, StoreError::Content { .. }), "{what}: {error}");
        }
        assert!(store.mapping_missing().is_err(), "{what}: not the same as missing");
    };
    symlink(&elsewhere, &path).unwrap();
    check("link to nowhere");
    fs::write(&elsewhere, r#"{"version": 1, "cluster": "hpc"}"#).unwrap();
    check("link to a file");
    assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    check("folder");
    fs::remove_dir(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    check("pipe");
}

#[test]
fn a_bad_state_id_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for bad in ["", "0123", "0123456789ABCDEF", "0123456789abcdeg"] {
        fs::write(dir.path().join("state-id"), bad).unwrap();
        assert!(matches!(FileStore::open(dir.path(), "hpc"), Err(StoreError::Content { .. })), "{bad:?}");
    }
    fs::write(dir.path().join("state-id"), "0123456789abcdef").unwrap();
    assert_eq!(FileStore::open(dir.path(), "hpc").unwrap().state_id(), "0123456789abcdef");
}

#[test]
fn a_folder_that_cannot_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(FileStore::open(&file, "hpc").unwrap_err().to_string().contains("file"));
    assert!(FileStore::open(&file.join("below"), "hpc").is_err());
    // Not even root may write in /proc/self.
    assert!(FileStore::open(Path::new("/proc/self/state"), "hpc").is_err());
    if !nix::unistd::geteuid().is_root() {
        let locked = dir.path().join("locked");
        fs::create_dir(&locked).unwrap();
        fs::set_permissions(&locked, fs::Permissions::from_mode(0o550)).unwrap();
        let error = FileStore::open(&locked, "hpc").unwrap_err();
        assert!(matches!(error, StoreError::NotWritable { .. }), "{error}");
    }
}

#[test]
fn threads_lose_no_update() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path(), "hpc").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let store = &store;
            scope.spawn(move || add_nodes(store, &format!("t{thread}"), 25));
        }
    });
    assert_eq!(store.read().unwrap().nodes.len(), 200);
}

#[test]
fn processes_lose_no_update() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path(), "hpc").unwrap();
    let mut children: Vec<Process> = (0..4).map(|n| Process::start("add-nodes", dir.path(), &format!("p{n}"))).collect();
    add_nodes(&store, "own", 25);
    for child in &mut children {
        child.ends_well();
    }
    assert_eq!(store.read().unwrap().nodes.len(), 125);
}

#[test]
fn killed_while_writing_leaves_a_whole_mapping() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path(), "hpc").unwrap();
    for round in 0..12_usize {
        let mut child = Process::start("write-for-ever", dir.path(), &format!("r{round}"));
        child.ready();
        // Some different progress each time.
        while store.read().unwrap().nodes.len() < (round * 13) % 40 {}
        child.kill();
        let before = store.read().unwrap();
        store.update(WAIT, |mapping| assert_eq!(*mapping, *before)).unwrap();
    }
    store.update(WAIT, |mapping| mapping.nodes.insert("last".into(), entry("z"))).unwrap();
    let names: Vec<String> =
        fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(!names.iter().any(|name| name.ends_with(".tmp")), "{names:?}");
}

#[test]
fn the_lock_goes_with_its_holder_who_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path(), "hpc").unwrap();
    let mut child = Process::start("hold-lock", dir.path(), "");
    child.ready();
    let error = store.update(Duration::from_millis(20), |_| ()).unwrap_err();
    assert!(error.is_temporary() && error.to_string().contains(&format!("process {} (", child.pid())), "{error}");
    assert_eq!(*store.read().unwrap(), Mapping::new("hpc"), "reading needs no lock");
    child.kill();
    store.update(WAIT, |mapping| mapping.nodes.insert("n1".into(), entry("a"))).unwrap();
}

// Launch records.

#[test]
fn a_record_from_start_to_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path(), "hpc").unwrap();
    let locked = store.locked(WAIT).unwrap();
    let record = Running::create(&locked, &header("a1")).unwrap();
    assert!(matches!(Running::create(&locked, &header("a1")), Err(StoreError::Launch { .. })));
    for bad in ["", "..", "a/b", ".hidden", "a b"] {
        assert!(Running::create(&locked, &header(bad)).is_err(), "{bad:?}");
    }
    drop(locked);
    record.append(&[RecordEvent::Sent { batch: 0, at: NOW }]).unwrap();
    record
        .append(&[
            RecordEvent::NewBatch { batch: 5, nodes: vec!["n2".into()], request: request("new") },
            RecordEvent::Sent { batch: 5, at: NOW + Duration::from_secs(3) },
            RecordEvent::Sent { batch: 5, at: NOW + Duration::from_secs(9) },
            RecordEvent::Done { batch: 0 },
        ])
        .unwrap();
    let found = live(&store);
    assert_eq!((found.header.clone(), found.sweeps.len()), (header("a1"), 0));
    let batches: Vec<_> =
        found.batches.iter().map(|b| (b.batch, b.request.client_token.as_str(), b.sent.is_some(), b.done)).collect();
    assert_eq!(batches, [(0, "token-0", true, true), (1, "token-1", false, false), (5, "new", true, false)]);
    assert_eq!(found.batches[2].sent, Some(NOW + Duration::from_secs(3)));
    assert_eq!(found.batches[2].last_sent, Some(NOW + Duration::from_secs(9)));
    record.finish().unwrap();
    assert!(store.locked(WAIT).unwrap().records(NOW).unwrap().is_empty());
    assert_eq!(fs::read_dir(store.launches_dir()).unwrap().count(), 0);
}

#[test]
fn a_killed_run_frees_its_record() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path(), "hpc").unwrap();
    let mut child = Process::start("hold-record", dir.path(), "a1");
    child.ready();
    assert_eq!(live(&store).header.pid, child.pid());
    child.kill();
    let mut dead = dead(&store, NOW);
    assert!(owner_is_gone(&dead));
    assert_eq!(dead.record.batches[0].sent, Some(NOW));
    // While it is ours nobody else gets it, before and after it expires.
    for now in [NOW, LATER] {
        match states(&store, now).as_slice() {
            [RecordState::Live { recovered_by: Some(who), .. }] => {
                assert!(who.contains(&format!("process {} ", std::process::id())), "{who}");
            }
            other => panic!("{other:?}"),
        }
    }
    dead.append(&[RecordEvent::Swept { at: NOW, clean: true }]).unwrap();
    dead.release();
    let again = self::dead(&store, NOW);
    assert_eq!(again.record.sweeps, [(NOW, true)]);
    again.delete().unwrap();
    assert!(states(&store, NOW).is_empty());
    assert_eq!(fs::read_dir(store.launches_dir()).unwrap().count(), 0);
}

/// A change tells runs that are at work from those that are over and are being recovered.
#[test]
fn a_run_that_is_being_recovered_is_not_at_work() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path(), "hpc").unwrap();
    let seen = || store.change(WAIT, NOW, |draft| Some((draft.live.clone(), draft.recovered.clone()))).unwrap().unwrap().0;
    let (none, one) = (BTreeSet::new(), BTreeSet::from(["a1".to_owned()]));
    let record = Running::create(&store.locked(WAIT).unwrap(), &header("a1")).unwrap();
    assert_eq!(seen(), (one.clone(), none.clone()));
    drop(record);
    assert_eq!(seen(), (none.clone(), none.clone()), "it is over, and nobody has it");
    let dead = dead(&store, NOW);
    assert_eq!(seen(), (none.clone(), one));
    dead.release();
    assert_eq!(seen(), (none.clone(), none));
}

#[test]
fn a_stuck_run_is_recovered_by_one_only() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path(), "hpc").unwrap();
    let mut child = Process::start("hold-record", dir.path(), "a1");
    child.ready();
    assert_eq!(live(&store).header.pid, child.pid());
    assert!(matches!(states(&store, EXPIRES).as_slice(), [RecordState::Live { .. }]), "not yet");
    let mut ours = dead(&store, LATER);
    assert!(!owner_is_gone(&ours));
    assert!(matches!(states(&store, LATER).as_slice(), [RecordState::Live { recovered_by: Some(_), .. }]));
    // The stuck run dies, its lock is free: still only one recovers.
    child.kill();
    assert!(matches!(states(&store, LATER).as_slice(), [RecordState::Live { recovered_by: Some(_), .. }]));
    ours.append(&[RecordEvent::Swept { at: LATER, clean: false }]).unwrap();
    ours.release();
    let again = dead(&store, LATER);
    assert!(owner_is_gone(&again));
    assert_eq!(again.record.sweeps, [(LATER, false)]);
}

#[test]
fn a_run_whose_record_was_finished_by_another_may_announce_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path(), "hpc").unwrap();
    let record = Running::create(&store.locked(WAIT).unwrap(), &header("a1")).unwrap();
    dead(&store, LATER).delete().unwrap();
    assert!(record.append(&[RecordEvent::Sent { batch: 1, at: LATER }]).is_err());
    record.finish().unwrap();
}

#[test]
fn one_of_many_recovers() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path(), "hpc").unwrap();
    drop(Running::create(&store.locked(WAIT).unwrap(), &header("a1")).unwrap());
    let barrier = std::sync::Barrier::new(8);
    let winners: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let states = states(&store, LATER);
                    barrier.wait();
                    states.iter().filter(|state| matches!(state, RecordState::Dead(_))).count()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(winners, 1);
}

#[test]
fn a_killed_recoverer_frees_it_too() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path(), "hpc").unwrap();
    drop(Running::create(&store.locked(WAIT).unwrap(), &header("a1")).unwrap());
    let mut child = Process::start("recover", dir.path(), "");
    child.ready();
    assert!(matches!(states(&store, NOW).as_slice(), [RecordState::Live { recovered_by: Some(_), .. }]));
    child.kill();
    assert!(store.launches_dir().join("a1.claim").exists());
    dead(&store, NOW).delete().unwrap();
    assert_eq!(fs::read_dir(store.launches_dir()).unwrap().count(), 0);
}

#[test]
fn a_torn_last_line_is_ignored_and_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path(), "hpc").unwrap();
    let record = Running::create(&store.locked(WAIT).unwrap(), &header("a1")).unwrap();
    record.append(&[RecordEvent::Sent { batch: 0, at: NOW }]).unwrap();
    let path = record.path();
    drop(record);
    let whole = fs::read(&path).unwrap();
    let torn = serde_json::to_vec(&RecordEvent::Done { batch: 0 }).unwrap();
    // Cut anywhere, the last one whole but for its end of line; or zeroes, as after a power cut.
    let tails = (1..=torn.len()).map(|length| torn[..length].to_vec()).chain([vec![0; 50]]);
    for tail in tails {
        fs::write(&path, [whole.clone(), tail].concat()).unwrap();
        let mut dead = dead(&store, NOW);
        assert_eq!((dead.record.batches[0].sent, dead.record.batches[0].done), (Some(NOW), false));
        dead.append(&[RecordEvent::Swept { at: NOW, clean: true }]).unwrap();
        dead.release();
        let again = self::dead(&store, NOW);
        assert_eq!((again.record.sweeps.len(), again.record.batches[0].done), (1, false));
    }
}

#[test]
fn a_record_that_cannot_be_read_is_reported_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path(), "hpc").unwrap();
    drop(Running::create(&store.locked(WAIT).unwrap(), &header("good")).unwrap());
    let text = fs::read_to_string(store.launches_dir().join("good.jsonl")).unwrap();
    let bad = [
        ("empty", String::new(), "no whole line"),
        ("half", text[..text.len() / 2].to_owned(), "no whole line"),
        ("nonsense", "{}\n".to_owned(), "line 1"),
        ("renamed", text.clone(), "\"good\""),
        ("newer", text.replace("good", "newer").replace("\"version\":1", "\"version\":2"), "version 2"),
        ("foreign", text.replace("good", "foreign").replace("\"hpc\"", "\"other\""), "\"other\""),
        ("event", format!("{}{}\n", text.replace("good", "event"), r#"{"event":"dance"}"#), "line 2"),
        ("number", format!("{}{}\n", text.replace("good", "number"), r#"{"event":"done","batch":7}"#), "batch 7"),
    ];
    for (name, content, _) in &bad {
        fs::write(store.launches_dir().join(format!("{name}.jsonl")), content).unwrap();
    }
    fs::create_dir(store.launches_dir().join("folder.jsonl")).unwrap();
    symlink("nowhere", store.launches_dir().join("link.jsonl")).unwrap();
    fs::write(store.launches_dir().join("notes.txt"), "").unwrap();
    let found = states(&store, LATER);
    assert_eq!(found.len(), bad.len() + 3);
    let mut why: BTreeMap<String, String> = found
        .iter()
        .filter_map(|state| match state {
            RecordState::Unreadable { name, why } => Some((Path::new(name).file_stem()?.to_str()?.to_owned(), why.clone())),
            _ => None,
        })
        .collect();
    for (name, content, part) in &bad {
        let why = why.remove(*name).unwrap();
        assert!(why.contains(part), "{name}: {why}");
        assert_eq!(fs::read_to_string(store.launches_dir().join(format!("{name}.jsonl"))).unwrap(), *content);
    }
    assert_eq!(why.into_keys().collect::<Vec<_>>(), ["folder", "link"]);
    assert!(found.iter().any(|state| matches!(state, RecordState::Dead(dead) if dead.record.header.launch == "good")));
}

/// Who ends what nobody knows of must not take "nothing can be read" for "nothing is at work"; who launches goes on.
#[test]
fn a_folder_of_records_that_cannot_be_listed_hides_no_launch_at_work() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path(), "hpc").unwrap();
    let _live = Running::create(&store.locked(WAIT).unwrap(), &header("live")).unwrap();
    assert_eq!(store.see(WAIT, NOW).unwrap().live.len(), 1);
    let launches = store.launches_dir();
    let aside = launches.with_extension("aside");
    fs::rename(&launches, &aside).unwrap();
    fs::write(&launches, "").unwrap();
    let error = store.see(WAIT, NOW).unwrap_err();
    assert!(error.to_string().contains("launches"), "{error}");
    let look = store.look(WAIT, NOW).unwrap();
    assert!(
        matches!(look.records.as_slice(), [RecordState::Unreadable { name, .. }] if name.ends_with("launches")),
        "{:?}",
        look.records
    );
    fs::remove_file(&launches).unwrap();
    fs::rename(&aside, &launches).unwrap();
    assert_eq!(store.see(WAIT, NOW).unwrap().live.len(), 1);
}

#[test]
fn leftovers_of_killed_programs_go() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path(), "hpc").unwrap();
    let at = |name: &str| store.launches_dir().join(name);
    for name in [".a1.jsonl.77-0123456789abcdef.tmp", "gone.claim"] {
        fs::write(at(name), "x").unwrap();
    }
    assert!(states(&store, NOW).is_empty());
    assert_eq!(fs::read_dir(store.launches_dir()).unwrap().count(), 0);
}

/// Not run by itself: what the child processes do.
#[test]
#[ignore = "a part of other tests"]
fn child() {
    let Some(dir) = std::env::var_os("STORE_TEST_DIR") else { return };
    let (role, arg) = (std::env::var("STORE_TEST_ROLE").unwrap(), std::env::var("STORE_TEST_ARG").unwrap());
    let store = FileStore::open(Path::new(&dir), "hpc").unwrap();
    let ready = || {
        let mut out = std::io::stdout();
        writeln!(out, "\nready").unwrap();
        out.flush().unwrap();
    };
    // Ends when the parent does.
    let wait = || std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    match role.as_str() {
        "add-nodes" => add_nodes(&store, &arg, 25),
        "write-for-ever" => {
            ready();
            for n in 0.. {
                let change = |mapping: &mut Mapping| mapping.nodes.insert(format!("{arg}-{n}"), entry(&arg));
                store.update(WAIT, change).unwrap();
            }
        }
        "hold-lock" => {
            let _locked = store.locked(WAIT).unwrap();
            ready();
            wait();
        }
        "hold-record" => {
            let record = Running::create(&store.locked(WAIT).unwrap(), &header(&arg)).unwrap();
            record.append(&[RecordEvent::Sent { batch: 0, at: NOW }]).unwrap();
            ready();
            wait();
        }
        "recover" => {
            let _states = store.locked(WAIT).unwrap().records(NOW).unwrap();
            ready();
            wait();
        }
        other => panic!("{other}"),
    }
}

struct Process {
    child: Child,
}

impl Process {
    fn start(role: &str, dir: &Path, arg: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["store::tests::child", "--exact", "--ignored", "--nocapture"])
            .env("STORE_TEST_ROLE", role)
            .env("STORE_TEST_DIR", dir)
            .env("STORE_TEST_ARG", arg)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns when the child has said so.
    fn ready(&mut self) {
        let out = BufReader::new(self.child.stdout.take().unwrap());
        assert!(out.lines().any(|line| line.unwrap() == "ready"), "the child ended early");
    }

    fn ends_well(&mut self) {
        assert!(self.child.wait().unwrap().success());
    }

    /// SIGKILL.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn add_nodes(store: &FileStore, prefix: &str, count: usize) {
    for n in 0..count {
        store
            .update(WAIT, |mapping| {
                mapping.nodes.insert(format!("{prefix}-{n}"), entry(prefix));
                mapping.condemned.insert(format!("i-{prefix}-{n}"), condemned());
            })
            .unwrap();
    }
}

fn states(store: &FileStore, now: Timestamp) -> Vec<RecordState> {
    store.locked(WAIT).unwrap().records(now).unwrap()
}

fn live(store: &FileStore) -> FoundRecord {
    match states(store, NOW).pop() {
        Some(RecordState::Live { record, recovered_by: None }) => record,
        other => panic!("{other:?}"),
    }
}

fn dead(store: &FileStore, now: Timestamp) -> DeadRecord {
    match states(store, now).pop() {
        Some(RecordState::Dead(dead)) => dead,
        other => panic!("{other:?}"),
    }
}

fn owner_is_gone(dead: &DeadRecord) -> bool {
    match &dead.hold {
        Hold::File(record) => record.owner_is_gone(),
        Hold::Table(_) => unreachable!("a file store"),
    }
}

fn inode(path: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap())
}

pub(super) fn entry(launch: &str) -> NodeEntry {
    NodeEntry {
        state: NodeState::Running,
        group: "c5".into(),
        launch: launch.into(),
        requested: NOW,
        since: NOW,
        launched: Some(NOW),
        instance_id: Some("i-0123456789abcdef0".into()),
        private_ip: Some("10.0.0.5".into()),
        hostname: Some("ip-10-0-0-5".into()),
        instance_type: Some("c5.large".into()),
        zone: Some("eu-west-1a".into()),
        unpublished: false,
    }
}

fn condemned() -> Condemned {
    Condemned { node: Some("n".into()), launch: "a".into(), since: NOW, launched: None, why: "suspended".into() }
}

pub(super) fn header(launch: &str) -> RecordHeader {
    let batch = |n: u32| RecordBatch { nodes: vec![format!("n{n}")], request: request(&format!("token-{n}")) };
    RecordHeader {
        version: VERSION,
        cluster: "hpc".into(),
        launch: launch.into(),
        program: "slurm_resume".into(),
        pid: std::process::id(),
        requested: NOW,
        expires: EXPIRES,
        batches: vec![batch(0), batch(1)],
    }
}

/// Of every JSON type: a record must give them back as they were.
fn overrides() -> serde_json::Map<String, serde_json::Value> {
    let text = r#"{"SubnetId": "subnet-1", "EbsOptimized": false, "CpuOptions": {"CoreCount": 4},
        "LaunchTemplateConfigs": [{"Overrides": [{"Priority": 1.0, "WeightedCapacity": 0.3}]}], "SecurityGroupIds": []}"#;
    serde_json::from_str(text).unwrap()
}

pub(super) fn request(token: &str) -> LaunchRequest {
    LaunchRequest {
        group: "c5".into(),
        recipe: Recipe {
            api: Api::RunInstances,
            launch_template: LaunchTemplate { name: Some("hpc-c5".into()), id: None, version: "7".into() },
            instance_types: vec!["c5.large".into()],
            subnets: Vec::new(),
            capacity: Capacity::Spot,
            allocation_strategy: None,
            max_price: Some(0.25),
            tags: BTreeMap::from([("team".into(), "a\nb".into())]),
            tag_instances_only: false,
            overrides: overrides(),
        },
        strategy: Strategy::AllOrNothing,
        count: 1,
        client_token: token.into(),
        tags: vec![("slurm-ec2:cluster".into(), "hpc".into())],
    }
}

/// How long the mapping takes at size; run by hand: `cargo test --release -- --ignored --nocapture mapping_at_size`.
#[test]
#[ignore = "a measurement, it asserts nothing about time"]
fn mapping_at_size() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path(), "hpc").unwrap();
    store
        .update(WAIT, |mapping| {
            for n in 0..10_000 {
                mapping.nodes.insert(format!("c5-{n}"), entry("a1"));
            }
        })
        .unwrap();
    let mut out = std::io::stdout();
    for round in 0..5 {
        let started = std::time::Instant::now();
        store.update(WAIT, |mapping| mapping.nodes.get_mut("c5-5").unwrap().launch = format!("b{round}")).unwrap();
        let update = started.elapsed();
        let started = std::time::Instant::now();
        assert_eq!(store.read().unwrap().nodes.len(), 10_000);
        writeln!(out, "10,000 nodes: update {update:?}, read {:?}", started.elapsed()).unwrap();
    }
}
