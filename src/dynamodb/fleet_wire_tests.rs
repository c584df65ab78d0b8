//! The fleet's status in a table, by the real SDK against a local DynamoDB.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slurm_ec2_testkit::dynamodb::{Behaviour, Endpoint, Table};
use slurm_ec2_testkit::ec2::Rule;

use super::DynamoDb;
use crate::aws::responder::settings;
use crate::config::settings::FleetStore;
use crate::model::fleet::FleetStatus;
use crate::model::time::Timestamp;
use crate::store::fleet_status::FleetStatusStore;

const TABLE: &str = "parallelcluster-orchard";

/// What a head node's role may do with the table (aws-facts B.13).
const ROLE: [&str; 4] = ["UpdateItem", "PutItem", "GetItem", "BatchGetItem"];

/// ddb_fleet_status_item.json of the ParallelCluster fixtures.
const ITEM: &str = include_str!("../../tests/data/parallelcluster/ddb_fleet_status_item.json");

fn served(item: Value) -> Endpoint {
    let server = Endpoint::start(Behaviour { tables: vec![Table::new(TABLE, "Id").only(&ROLE)], ..Behaviour::default() });
    server.put(TABLE, item.as_object().unwrap().clone());
    server
}

fn made() -> Value {
    serde_json::from_str(ITEM).unwrap()
}

async fn store(server: &Endpoint) -> FleetStatusStore {
    let mut settings = crate::config::file::as_far_as_it_goes(std::path::Path::new("nowhere"));
    settings.aws = crate::config::settings::AwsSettings { dynamodb_endpoint_url: Some(server.url()), ..self::settings() };
    settings.region = "eu-central-1".to_owned();
    settings.fleet.store = FleetStore::Table { table: TABLE.to_owned() };
    FleetStatusStore::open(&settings).await.unwrap()
}

fn now() -> Timestamp {
    "2026-03-14T15:09:26.535Z".parse().unwrap()
}

fn is_time(text: &str) -> bool {
    let form = text.bytes().map(|byte| if byte.is_ascii_digit() { '9' } else { char::from(byte) }).collect::<String>();
    form == "9999-99-99 99:99:99.999999+99:99" && text.starts_with("2026-03-14 15:09:26.535") && text.ends_with("+00:00")
}

#[tokio::test]
async fn the_item_is_read_whole_and_changed_in_part() {
    let mut item = made();
    item["Data"]["M"]["queues"] = json!({"M": {"apple": {"M": {"status": {"S": "RUNNING"}}}}});
    item["More"] = json!({"N": "7"});
    let server = served(item.clone());
    let store = store(&server).await;
    let reading = store.read().await.unwrap();
    assert_eq!((reading.status, reading.updated.as_str()), (FleetStatus::Running, "2026-03-14 15:09:26 UTC"));
    assert_eq!(reading.data["queues"]["apple"]["status"], "RUNNING");
    assert!(store.compare_and_set(FleetStatus::Running, FleetStatus::StopRequested, now()).await.unwrap());
    let found = Value::Object(server.items(TABLE).pop().unwrap());
    let updated = found["Data"]["M"]["lastStatusUpdatedTime"]["S"].as_str().unwrap();
    assert!(is_time(updated), "{updated}");
    item["Data"]["M"]["status"]["S"] = "STOP_REQUESTED".into();
    item["Data"]["M"]["lastStatusUpdatedTime"]["S"] = updated.into();
    assert_eq!(found, item, "nothing else changes");
    let get = server.requests().into_iter().find(|request| request.operation == "GetItem").unwrap();
    assert_eq!(serde_json::from_str::<Value>(&get.body).unwrap()["ConsistentRead"], true);
}

#[tokio::test]
async fn a_status_that_changed_meanwhile_stays() {
    let server = served(made());
    let store = store(&server).await;
    assert!(!store.compare_and_set(FleetStatus::Stopping, FleetStatus::Stopped, now()).await.unwrap());
    assert_eq!(Value::Object(server.items(TABLE).pop().unwrap()), made());
}

#[tokio::test]
async fn clusters_older_than_3_2_keep_their_own_form() {
    let old =
        json!({"Id": {"S": "COMPUTE_FLEET"}, "Status": {"S": "STOPPED"}, "LastUpdatedTime": {"S": "2021-01-01 00:00:00 UTC"}});
    let server = served(old.clone());
    let store = store(&server).await;
    let reading = store.read().await.unwrap();
    assert_eq!((reading.status, reading.updated.as_str()), (FleetStatus::Stopped, "2021-01-01 00:00:00 UTC"));
    assert!(!store.compare_and_set(FleetStatus::Running, FleetStatus::StopRequested, now()).await.unwrap());
    assert_eq!(Value::Object(server.items(TABLE).pop().unwrap()), old);
    assert!(store.compare_and_set(FleetStatus::Stopped, FleetStatus::StartRequested, now()).await.unwrap());
    let found = Value::Object(server.items(TABLE).pop().unwrap());
    assert_eq!((&found["Status"]["S"], found.get("Data")), (&json!("START_REQUESTED"), None));
    assert!(is_time(found["LastUpdatedTime"]["S"].as_str().unwrap()), "{found}");
}

/// The answer to the change gets lost and the repeat finds the status changed: by ourselves.
#[tokio::test]
async fn a_lost_answer_is_no_lost_comparison() {
    let server = served(made());
    server.add_rules([Rule::on("UpdateItem").times(1).drop_after()]);
    let store = store(&server).await;
    assert!(store.compare_and_set(FleetStatus::Running, FleetStatus::StopRequested, now()).await.unwrap());
    assert!(server.count("UpdateItem") >= 2);
    assert_eq!(store.read().await.unwrap().status, FleetStatus::StopRequested);
}

#[tokio::test]
async fn throttling_and_faults_pass() {
    let server = served(made());
    server.add_rules([
        Rule::on("GetItem").times(2).error("ProvisionedThroughputExceededException", 400),
        Rule::on("UpdateItem").times(1).error("InternalServerError", 500),
    ]);
    let store = store(&server).await;
    assert_eq!(store.read().await.unwrap().status, FleetStatus::Running);
    assert!(store.compare_and_set(FleetStatus::Running, FleetStatus::Protected, now()).await.unwrap());
}

#[tokio::test]
async fn what_is_not_there_is_an_error_that_names_the_table() {
    let server = served(json!({"Id": {"S": "COMPUTE_FLEET"}}));
    let store = store(&server).await;
    let error = crate::error::chain(&store.read().await.unwrap_err());
    assert!(error.contains(TABLE) && error.contains("no item COMPUTE_FLEET"), "{error}");
    assert!(!store.compare_and_set(FleetStatus::Running, FleetStatus::StopRequested, now()).await.unwrap());
    server.add_rules([Rule::on("GetItem").times(1).error("AccessDeniedException", 400)]);
    let error = crate::error::chain(&store.read().await.unwrap_err());
    assert!(error.contains("dynamodb:GetItem and UpdateItem"), "{error}");
    let mut aws = settings();
    aws.dynamodb_endpoint_url = Some(server.url());
    let dynamodb = DynamoDb::connect(&aws, "eu-central-1").await.unwrap();
    let soon = Instant::now() + Duration::from_secs(60);
    assert_eq!(dynamodb.fleet_item("deleted", soon).await.unwrap_err().code, "ResourceNotFoundException");
}
