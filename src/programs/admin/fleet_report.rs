//! `slurm-ec2 fleet status`: the fleet's status, and what clustermgtd's last pass says about queues that protected mode keeps inactive, for
//! people or as JSON. Changes nothing.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::PROGRAM;
use crate::config::settings::Settings;
use crate::error::chain;
use crate::model::fleet::FleetStatus;
use crate::programs::exit::Exit;
use crate::programs::fleet::request;
use crate::programs::startup;
use crate::store::fleet_status::{FleetStatusStore, Reading};

/// What clustermgtd writes after each pass, in the state folder.
const PASS: &str = "clustermgtd-status.json";

/// Prints what the status is, and what clustermgtd says about it.
pub(super) async fn print(settings: &Settings, store: &FleetStatusStore, as_json: bool) -> Exit {
    let reading = match store.read().await {
        Ok(reading) => reading,
        Err(error) => {
            startup::complain(PROGRAM, &chain(&error));
            return Exit::from(&error);
        }
    };
    let daemon = match request::daemon(&settings.state_dir) {
        Ok(holder) => holder,
        Err(error) => {
            startup::complain(PROGRAM, &chain(&error));
            None
        }
    };
    let pass = last_pass(&settings.state_dir);
    let text = if as_json {
        in_json(&reading, store, daemon.as_deref(), &pass).to_string()
    } else {
        in_words(&reading, store, daemon.as_deref(), &pass, command(settings))
    };
    startup::say(&text);
    Exit::Done
}

/// Ends protected mode, as people of either kind know it.
fn command(settings: &Settings) -> &'static str {
    if settings.parallelcluster.is_some() {
        "pcluster update-compute-fleet --status START_REQUESTED"
    } else {
        "slurm-ec2 fleet start"
    }
}

/// What clustermgtd wrote last; nothing where it never did.
fn last_pass(dir: &Path) -> Value {
    std::fs::read(dir.join(PASS)).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or(Value::Null)
}

/// The queues that protected mode keeps inactive come first.
fn queues(pass: &Value) -> Vec<(&String, &Value)> {
    let mut queues: Vec<_> = pass["queues"].as_object().into_iter().flatten().collect();
    queues.sort_by_key(|(name, queue)| (queue["protected_since"].is_null(), *name));
    queues
}

fn in_json(reading: &Reading, store: &FleetStatusStore, daemon: Option<&str>, pass: &Value) -> Value {
    let queues: Map<String, Value> = queues(pass).into_iter().map(|(name, queue)| (name.clone(), queue.clone())).collect();
    json!({
        "status": reading.word,
        "lastStatusUpdatedTime": reading.updated,
        "kept_in": store.to_string(),
        "clusterstatusmgtd": daemon,
        "queues": queues,
        "last_pass": pass["pass"],
    })
}

fn in_words(reading: &Reading, store: &FleetStatusStore, daemon: Option<&str>, pass: &Value, command: &str) -> String {
    let word = &reading.word;
    let mut text = match reading.updated.as_str() {
        "" => format!("{word} ({store})"),
        updated => format!("{word} since {updated} ({store})"),
    };
    if reading.status == FleetStatus::Unknown {
        text.push_str("\n  this version does not know the word: nothing is done because of it");
    }
    for (name, queue) in queues(pass) {
        let failures = queue["failures"].as_u64().unwrap_or_default();
        let limit = queue["threshold"].as_u64().map_or_else(String::new, |limit| format!(", the limit is {limit}"));
        let _ = match queue["protected_since"].as_str() {
            Some(since) => write!(text, "\nqueue {name}: inactive since {since}, {failures} nodes failed to boot{limit}"),
            None if failures > 0 => write!(text, "\nqueue {name}: {failures} nodes failed to boot{limit}"),
            None => continue,
        };
        for failure in queue["last"].as_array().into_iter().flatten() {
            let part = |key: &str| failure[key].as_str().unwrap_or("?");
            let _ = write!(text, "\n  {}  {}  {}", part("at"), part("node"), part("why"));
        }
        if !queue["protected_since"].is_null() {
            let _ = write!(text, "\n  when it is put right: {}", queue["command"].as_str().unwrap_or(command));
        }
    }
    if let Some(problem) = pass["pass"]["problem"].as_str() {
        let _ = write!(text, "\nclustermgtd, last pass at {}: {problem}", pass["pass"]["ended"].as_str().unwrap_or("?"));
    }
    match daemon {
        Some(holder) => text.push_str(&format!("\nrequests are carried out by {holder}")),
        None => text.push_str("\nno clusterstatusmgtd runs here: `slurm-ec2 fleet` carries requests out itself"),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(word: &str, updated: &str) -> Reading {
        Reading { status: FleetStatus::parse(word), word: word.to_owned(), updated: updated.to_owned(), data: Map::new() }
    }

    #[test]
    fn m24_a_protected_queue_with_its_failures_and_the_way_out() {
        let pass = json!({
            "pass": {"ended": "2026-11-29T12:00:00Z", "problem": "scontrol show nodes failed"},
            "queues": {
                "b": {"failures": 2, "threshold": 10, "last": []},
                "q": {"failures": 10, "threshold": 10, "protected_since": "2026-11-29T11:00:00Z", "command": "do this",
                      "last": [{"node": "q-1", "at": "2026-11-29T10:59:00Z", "why": "never registered"}]},
                "quiet": {"failures": 0}
            }
        });
        let store = FleetStatusStore::in_folder(Path::new("/s"));
        let text =
            in_words(&reading("PROTECTED", "2026-11-29 11:00:00.000000+00:00"), &store, None, &pass, "slurm-ec2 fleet start");
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            [
                "PROTECTED since 2026-11-29 11:00:00.000000+00:00 (/s/fleet-status.json)",
                "queue q: inactive since 2026-11-29T11:00:00Z, 10 nodes failed to boot, the limit is 10",
                "  2026-11-29T10:59:00Z  q-1  never registered",
                "  when it is put right: do this",
                "queue b: 2 nodes failed to boot, the limit is 10",
                "clustermgtd, last pass at 2026-11-29T12:00:00Z: scontrol show nodes failed",
                "no clusterstatusmgtd runs here: `slurm-ec2 fleet` carries requests out itself",
            ]
        );
        let json = in_json(&reading("PROTECTED", "x"), &store, Some("process 7 (clusterstatusmgtd)"), &pass);
        assert_eq!((&json["status"], &json["lastStatusUpdatedTime"]), (&json!("PROTECTED"), &json!("x")));
        assert_eq!(json["queues"]["q"]["last"][0]["node"], "q-1");
    }

    #[test]
    fn without_a_clustermgtd_the_status_stands_alone() {
        let store = FleetStatusStore::in_folder(Path::new("/s"));
        let text = in_words(&reading("ASLEEP", ""), &store, Some("process 7 (clusterstatusmgtd)"), &Value::Null, "-");
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            [
                "ASLEEP (/s/fleet-status.json)",
                "  this version does not know the word: nothing is done because of it",
                "requests are carried out by process 7 (clusterstatusmgtd)"
            ]
        );
    }
}
