//! The control path, for programs that are not in this process: `/_control/…`, JSON in and out.
//!
//! | request | body | does |
//! |---|---|---|
//! | GET state | | everything: [`Snapshot`](super::Snapshot) |
//! | GET live | | the list of ids of living instances |
//! | POST behaviour | a [`Behaviour`] | replaces it; what exists stays |
//! | POST rules | a list of [`Rule`] | adds them to the script's end |
//! | POST release | `{"name": "gate"}` or nothing | opens that gate, or all |
//! | POST instance | `{"id": "i-…", "change": {…}}` | see [`InstanceChange`] |
//! | POST reservation | `{"id": "cr-…", "state": "active"}` | makes that capacity reservation, or changes its state |
//! | POST seed | a [`Seed`] | makes instances nobody asked for; answers their ids |
//! | POST reset | | forgets instances, requests and tokens; keeps the behaviour |

use serde::{Deserialize, Serialize};

use super::behaviour::{Behaviour, CapacityReservation};
use super::instances::InstanceChange;
use super::rules::Rule;
use super::{Seed, Shared};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Release {
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    id: String,
    change: InstanceChange,
}

/// HTTP status and JSON text for a control request.
pub(crate) fn handle(shared: &Shared, method: &str, path: &str, body: &[u8]) -> (u16, String) {
    match run(shared, method, path, body) {
        Ok(text) => (200, text),
        Err((status, why)) => (status, serde_json::json!({ "error": why }).to_string()),
    }
}

type Fault = (u16, String);

fn run(shared: &Shared, method: &str, path: &str, body: &[u8]) -> Result<String, Fault> {
    let text = std::str::from_utf8(body).map_err(|e| (400, format!("the body is not UTF-8: {e}")))?;
    match (method, path) {
        ("GET", "state") => json(&shared.change_quietly(|world| world.snapshot())),
        ("GET", "live") => json(&shared.change_quietly(|world| world.snapshot().live)),
        ("POST", "behaviour") => {
            let behaviour = Behaviour::from_json(text).map_err(|e| (400, e))?;
            shared.change(|world| world.behave(behaviour));
            done()
        }
        ("POST", "rules") => {
            let rules: Vec<Rule> = parse(text)?;
            rules.iter().try_for_each(Rule::check).map_err(|e| (400, e))?;
            shared.change(|world| world.script.add(rules));
            done()
        }
        ("POST", "release") if text.trim().is_empty() => {
            shared.open_gates(None);
            done()
        }
        ("POST", "release") => {
            let release: Release = parse(text)?;
            shared.open_gates(Some(&release.name));
            done()
        }
        ("POST", "instance") => {
            let change: Change = parse(text)?;
            shared.change(|world| world.change(&change.id, change.change)).map_err(|e| (404, e))?;
            done()
        }
        ("POST", "reservation") => {
            let reservation: CapacityReservation = parse(text)?;
            shared.change(|world| world.set_reservation(reservation));
            done()
        }
        ("POST", "seed") => {
            let seed: Seed = parse(text)?;
            json(&shared.seed(&seed).map_err(|e| (400, e))?)
        }
        ("POST", "reset") => {
            shared.reset();
            done()
        }
        _ => Err((404, format!("there is no {method} /_control/{path}"))),
    }
}

fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Fault> {
    serde_json::from_str(text).map_err(|e| (400, e.to_string()))
}

fn json<T: Serialize>(value: &T) -> Result<String, Fault> {
    serde_json::to_string(value).map_err(|e| (500, e.to_string()))
}

fn done() -> Result<String, Fault> {
    Ok("{}".to_owned())
}
