//! The status in ParallelCluster's table.

use std::fs;

use serde_json::{Value, json};
use slurm_ec2_testkit::dynamodb::{self, Table};
use slurm_ec2_testkit::ec2::{Behaviour, Rule};

use super::stage::Fleet;
use crate::moto::Moto;

const TABLE: &str = "parallelcluster-orchard";

/// The item as ParallelCluster makes it.
fn item(status: &str) -> Value {
    json!({"Id": {"S": "COMPUTE_FLEET"}, "Data": {"M": {
        "status": {"S": status}, "lastStatusUpdatedTime": {"S": "2026-03-14 15:09:26 UTC"}}}})
}

fn fleet(url: &str) -> Fleet {
    let fleet = Fleet::with(Behaviour::default(), "");
    let text = fs::read_to_string(fleet.site.path("slurm-ec2.toml")).unwrap();
    let root = fleet.site.dir.path().display();
    let text = text.replacen("[aws]\n", &format!("[aws]\ndynamodb_endpoint_url = \"{url}\"\n"), 1)
        + &format!("[fleet]\ntable = \"{TABLE}\"\npoll = \"1s\"\nstatus_file = \"{root}/computefleet-status.json\"\n");
    // A table behind the groups would be one of the last group's.
    let (head, tail) = text.split_once("[[group]]").unwrap();
    let (group, sections) = tail.split_once("[fleet]").unwrap();
    fleet.site.write("slurm-ec2.toml", &format!("{head}[fleet]{sections}[[group]]{group}"));
    fleet
}

struct Served {
    fleet: Fleet,
    tables: dynamodb::Endpoint,
}

impl Served {
    fn new(status: &str) -> Self {
        let table = Table::new(TABLE, "Id").only(&["UpdateItem", "PutItem", "GetItem", "BatchGetItem"]);
        let tables = dynamodb::Endpoint::start(dynamodb::Behaviour { tables: vec![table], ..dynamodb::Behaviour::default() });
        tables.put(TABLE, item(status).as_object().unwrap().clone());
        Self { fleet: fleet(&tables.url()), tables }
    }

    fn data(&self) -> Value {
        Value::Object(self.tables.items(TABLE).pop().unwrap())["Data"]["M"].clone()
    }

    fn status(&self) -> String {
        self.data()["status"]["S"].as_str().unwrap().to_owned()
    }

    /// As `pcluster update-compute-fleet` does.
    fn ask(&self, status: &str) {
        self.tables.put(TABLE, item(status).as_object().unwrap().clone());
    }
}

#[test]
fn a_request_in_the_table_is_carried_out_and_the_file_says_what_was_asked_for() {
    let served = Served::new("RUNNING");
    let fleet = &served.fleet;
    fleet.up(&[("c5-1", "ALLOCATED+CLOUD"), ("c5-2", "IDLE+CLOUD")]);
    let file = || -> Value { serde_json::from_slice(&fs::read(fleet.site.path("computefleet-status.json")).unwrap()).unwrap() };
    let _daemon = fleet.daemon();
    served.ask("STOP_REQUESTED");
    fleet.wait("the stop", || served.status() == "STOPPED");
    fleet.assert_stopped();
    assert_eq!(file()["status"], "STOP_REQUESTED");
    let updated = served.data()["lastStatusUpdatedTime"]["S"].as_str().unwrap().to_owned();
    assert!(updated.len() == 32 && updated.ends_with("+00:00") && updated.as_bytes()[19] == b'.', "{updated}");
    served.ask("START_REQUESTED");
    fleet.wait("the start", || served.status() == "RUNNING");
    assert_eq!(file()["status"], "START_REQUESTED");
    assert_eq!(fleet.partition(), "UP");
}

/// The condition of the last step fails: the other's request is what counts.
#[test]
fn a_status_that_somebody_else_changed_meanwhile_is_looked_at_again() {
    let served = Served::new("STOP_REQUESTED");
    let fleet = &served.fleet;
    fleet.up(&[("c5-1", "IDLE+CLOUD")]);
    served.tables.add_rules([Rule::on("UpdateItem").nth(2).hold("done")]);
    let daemon = fleet.daemon();
    assert!(served.tables.wait_held("done", super::PATIENCE), "{}", daemon.log());
    assert_eq!(served.status(), "STOPPING");
    served.ask("START_REQUESTED");
    served.tables.release("done");
    fleet.wait("the start", || served.status() == "RUNNING");
    assert!(fleet.site.live().is_empty());
    assert_eq!(fleet.partition(), "UP");
    let log = daemon.log();
    assert!(log.contains("status changed while it was STOPPING"), "{log}");
}

#[test]
fn a_table_that_cannot_be_read_is_told_once_and_asked_on() {
    let served = Served::new("STOP_REQUESTED");
    let fleet = &served.fleet;
    fleet.up(&[("c5-1", "IDLE+CLOUD")]);
    served.tables.add_rules([Rule::on("GetItem").times(3).error("AccessDeniedException", 400)]);
    let daemon = fleet.daemon();
    fleet.wait("the stop", || served.status() == "STOPPED");
    let log = daemon.log();
    assert_eq!(log.matches("cannot be read").count(), 1, "{log}");
    assert!(log.contains("dynamodb:GetItem") && log.contains("can be read again"), "{log}");
}

#[test]
fn the_item_and_its_changes_as_moto_has_them() {
    let moto = Moto::start();
    let table = json!({"TableName": TABLE, "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [{"AttributeName": "Id", "AttributeType": "S"}],
        "KeySchema": [{"AttributeName": "Id", "KeyType": "HASH"}]});
    moto.dynamodb("CreateTable", &table.to_string());
    moto.dynamodb("PutItem", &json!({"TableName": TABLE, "Item": item("RUNNING")}).to_string());
    let fleet = fleet(&moto.url());
    fleet.up(&[("c5-1", "IDLE+CLOUD")]);
    let status = || {
        let answer = moto.dynamodb("GetItem", &json!({"TableName": TABLE, "Key": {"Id": {"S": "COMPUTE_FLEET"}}}).to_string());
        let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        body["Item"]["Data"]["M"].clone()
    };
    let ran = fleet.fleet(&["stop"]);
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stderr, fleet.site.log("slurm-ec2"));
    assert_eq!(status()["status"]["S"], "STOPPED");
    fleet.assert_stopped();
    let ran = fleet.fleet(&["status", "--json"]);
    let shown: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&shown["status"], &shown["lastStatusUpdatedTime"]), (&json!("STOPPED"), &status()["lastStatusUpdatedTime"]["S"]));
    assert_eq!(fleet.fleet(&["start"]).code, Some(0));
    assert_eq!(status()["status"]["S"], "RUNNING");
}
