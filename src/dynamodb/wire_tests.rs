//! The real SDK against a local DynamoDB: what goes over the wire, what is repeated, who is refused.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slurm_ec2_testkit::dynamodb::{Behaviour, Endpoint, Table};
use slurm_ec2_testkit::ec2::Rule;

use super::DynamoDb;
use crate::aws::responder::settings;
use crate::config::settings::NodeTable;
use crate::model::failure::ErrorClass;

const TABLE: &str = "parallelcluster-slurm-orchard";

/// What a head node's role may do with the table (aws-facts B.13).
const ROLE: [&str; 4] = ["PutItem", "BatchWriteItem", "GetItem", "BatchGetItem"];

fn served(change: impl FnOnce(&mut Behaviour)) -> Endpoint {
    let mut behaviour = Behaviour { tables: vec![Table::new(TABLE, "Id").only(&ROLE)], ..Behaviour::default() };
    change(&mut behaviour);
    Endpoint::start(behaviour)
}

async fn client(server: &Endpoint) -> DynamoDb {
    let mut settings = settings();
    settings.dynamodb_endpoint_url = Some(server.url());
    DynamoDb::connect(&settings, "eu-central-1").await.unwrap()
}

fn table() -> NodeTable {
    NodeTable {
        table: TABLE.into(),
        head_node_private_ip: "10.40.0.17".into(),
        head_node_hostname: "ip-10-40-0-17.eu-central-1.compute.internal".into(),
    }
}

fn pairs(count: usize) -> Vec<(String, String)> {
    (1..=count).map(|n| (format!("apple-dy-core-{n}"), format!("i-0c0de{n:012x}"))).collect()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// For a time that is to run out. Far more than an answer takes to a client that is connected already, and not for ever.
fn short() -> Instant {
    Instant::now() + Duration::from_secs(3)
}

#[tokio::test]
async fn an_item_as_compute_nodes_look_for_it() {
    let server = served(|_| {});
    let pairs = [("apple-dy-core-7".to_owned(), "i-0c0de0000000000a7".to_owned())];
    let written = client(&server).await.put_nodes(&table(), &pairs, soon()).await;
    assert_eq!(written.done, ["apple-dy-core-7"]);
    // ddb_node_item.json of the ParallelCluster fixtures.
    let expected = json!({
        "Id": {"S": "apple-dy-core-7"},
        "InstanceId": {"S": "i-0c0de0000000000a7"},
        "HeadNodePrivateIp": {"S": "10.40.0.17"},
        "HeadNodeHostname": {"S": "ip-10-40-0-17.eu-central-1.compute.internal"}
    });
    assert_eq!(server.items(TABLE).into_iter().map(Value::Object).collect::<Vec<_>>(), [expected]);
}

#[tokio::test]
async fn unprocessed_items_are_written_again_and_no_call_is_too_big() {
    let server = served(|behaviour| behaviour.unprocessed_percent = 30);
    let dynamodb = client(&server).await;
    let mut wanted = pairs(260);
    // Named twice: the last counts, and DynamoDB must not see the key twice in one call.
    wanted.push(("apple-dy-core-1".into(), "i-later".into()));
    let written = dynamodb.put_nodes(&table(), &wanted, soon()).await;
    assert_eq!((written.done.len(), written.refused.len(), written.unknown.len()), (260, 0, 0));
    assert_eq!(server.items(TABLE).len(), 260);
    assert_eq!(server.items(TABLE)[0]["InstanceId"]["S"], "i-later");
    let sizes: Vec<usize> = server.requests().iter().map(|request| request.body.matches("PutRequest").count()).collect();
    assert!(sizes.iter().all(|size| *size <= 25), "{sizes:?}");
    // Nothing is written a second time.
    assert!(sizes.iter().sum::<usize>() < 2 * 260, "{sizes:?}");
    assert!(server.requests().iter().all(|request| request.status == Some(200)));
}

#[tokio::test]
async fn r30_throttling_and_faults_pass() {
    let server = served(|behaviour| {
        behaviour.rules = vec![
            Rule::on("BatchWriteItem").times(2).error("ProvisionedThroughputExceededException", 400),
            Rule::on("BatchWriteItem").times(1).error("InternalServerError", 500),
            Rule::on("BatchWriteItem").times(1).drop_after(),
        ];
    });
    let written = client(&server).await.put_nodes(&table(), &pairs(3), soon()).await;
    assert_eq!((written.done.len(), written.refused.len(), written.unknown.len()), (3, 0, 0));
    assert_eq!(server.count("BatchWriteItem"), 5);
}

#[tokio::test]
async fn r30_a_batch_refused_for_good_leaves_the_others_alone() {
    let server = served(|behaviour| {
        behaviour.rules = vec![Rule::on("BatchWriteItem").nth(2).error("ResourceNotFoundException", 400)];
    });
    let written = client(&server).await.put_nodes(&table(), &pairs(75), soon()).await;
    assert_eq!((written.done.len(), written.refused.len(), written.unknown.len()), (50, 25, 0));
    assert_eq!((server.items(TABLE).len(), server.count("BatchWriteItem")), (50, 3));
    let (_, failure) = &written.refused[0];
    assert_eq!((failure.code.as_str(), failure.class), ("ResourceNotFoundException", ErrorClass::Configuration));
    assert!(failure.request_id.is_some());
}

#[tokio::test]
async fn r30_an_item_refused_for_good_leaves_its_batch_alone() {
    // DynamoDB takes no empty key; all the calls that hold one are refused as a whole.
    let server = served(|_| {});
    let mut wanted = pairs(74);
    wanted.push((String::new(), "i-nobodys".to_owned()));
    let written = client(&server).await.put_nodes(&table(), &wanted, soon()).await;
    let refused: Vec<(&str, &str)> =
        written.refused.iter().map(|(node, failure)| (node.as_str(), failure.code.as_str())).collect();
    assert_eq!((refused, written.done.len(), written.unknown.len()), (vec![("", "ValidationException")], 74, 0));
    assert_eq!(server.items(TABLE).len(), 74);
    // Two whole ones, and 25 items halved down to one: five times at most.
    assert!(server.count("BatchWriteItem") <= 2 + 1 + 2 * 5, "{}", server.count("BatchWriteItem"));

    // Where every item is refused, every node is, and the halving ends.
    let server = served(|behaviour| behaviour.rules = vec![Rule::on("BatchWriteItem").error("ValidationException", 400)]);
    let written = client(&server).await.put_nodes(&table(), &pairs(25), soon()).await;
    assert_eq!((written.done.len(), written.refused.len(), written.unknown.len()), (0, 25, 0));
    assert_eq!(server.count("BatchWriteItem"), 49);

    // Time runs out in between: nobody is forgotten.
    let server = served(|behaviour| {
        behaviour.rules =
            vec![Rule::on("BatchWriteItem").times(1).error("ValidationException", 400), Rule::on("BatchWriteItem").hang()];
    });
    let written = client(&server).await.put_nodes(&table(), &pairs(25), short()).await;
    assert_eq!((written.done.len(), written.refused.len(), written.unknown.len()), (0, 0, 25));
}

#[tokio::test]
async fn r30_the_missing_permission_is_named_with_the_table() {
    let server = served(|behaviour| behaviour.tables = vec![Table::new(TABLE, "Id").only(&["PutItem"])]);
    let written = client(&server).await.put_nodes(&table(), &pairs(2), soon()).await;
    let (_, failure) = &written.refused[0];
    assert_eq!(failure.code, "AccessDeniedException");
    assert_eq!(failure.sentence, format!("the credentials in use lack the permission dynamodb:BatchWriteItem for table {TABLE}"));
    let mut gone = table();
    gone.table = "deleted".into();
    let written = client(&server).await.put_nodes(&gone, &pairs(1), soon()).await;
    assert_eq!(written.refused[0].1.code, "ResourceNotFoundException");
    assert!(written.refused[0].1.sentence.contains("table deleted"), "{}", written.refused[0].1.sentence);
    assert_eq!(server.count("BatchWriteItem"), 2, "neither is asked again");
}

#[tokio::test]
async fn what_is_not_written_in_time_is_unknown() {
    let server = served(|_| {});
    let dynamodb = client(&server).await;
    // Credentials and connection take none of the short time.
    assert_eq!(dynamodb.put_nodes(&table(), &pairs(1), soon()).await.done.len(), 1);
    server.leave_unprocessed(100);
    let written = dynamodb.put_nodes(&table(), &pairs(2), short()).await;
    assert_eq!((written.done.len(), written.refused.len(), written.unknown.len()), (0, 0, 2));
    let why = written.why_unknown.unwrap();
    // Who asks a second time has heard the first answer; on a slow machine there is none.
    assert!(why.contains(TABLE) || server.count("BatchWriteItem") < 3, "{why}");
    server.add_rules([Rule::on("*").hang()]);
    // However far the calls have got by then, if they went out at all.
    let until = Instant::now() + Duration::from_millis(200);
    let written = dynamodb.put_nodes(&table(), &pairs(30), until).await;
    assert_eq!((written.done.len(), written.refused.len(), written.unknown.len()), (0, 0, 30));
    assert!(written.why_unknown.is_some());
}

#[tokio::test]
async fn instances_are_read_by_key_alone() {
    let server = served(|_| {});
    let dynamodb = client(&server).await;
    dynamodb.put_nodes(&table(), &pairs(230), soon()).await;
    server.leave_unprocessed(20);
    let mut nodes: Vec<String> = pairs(230).into_iter().map(|(node, _)| node).collect();
    nodes.extend(["apple-dy-core-1".to_owned(), "apple-dy-core-999".to_owned()]);
    let found = dynamodb.instances_of(TABLE, &nodes).await.unwrap();
    assert_eq!(found, pairs(230).into_iter().collect());
    let used: BTreeSet<String> = server.requests().into_iter().map(|request| request.operation).collect();
    assert!(used.iter().all(|action| ROLE.contains(&action.as_str())), "{used:?}");
    let error = dynamodb.instances_of("deleted", &nodes).await.unwrap_err();
    assert_eq!((error.code.as_str(), error.operation), ("ResourceNotFoundException", "BatchGetItem"));
    assert!(dynamodb.calls().by_operation.contains_key("BatchGetItem"));
}

#[tokio::test]
async fn a_service_that_is_away_is_named() {
    let mut settings = settings();
    settings.dynamodb_endpoint_url = Some("http://127.0.0.1:1".into());
    let dynamodb = DynamoDb::connect(&settings, "eu-central-1").await.unwrap();
    let error = dynamodb.instances_of(TABLE, &["a".to_owned()]).await.unwrap_err();
    assert_eq!((error.code.as_str(), error.class), ("DynamoDbUnreachable", ErrorClass::Transient));
    assert!(error.to_failure("").sentence.starts_with("DynamoDB did not answer"), "{error}");
    settings.dynamodb_endpoint_url = Some("dynamodb.example".into());
    let error = DynamoDb::connect(&settings, "eu-central-1").await.unwrap_err();
    assert!(error.message.contains("[aws] dynamodb_endpoint_url"), "{error}");
}
