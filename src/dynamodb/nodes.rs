//! ParallelCluster's table of nodes (aws-facts B.13): node and instance in, items out, and back.
//!
//! A compute node asks this table at boot which node it is, so the item must be there before that. The head node's role may
//! write and read items by their key and nothing else: no query, no scan, no change or removal of a part.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::types::{AttributeValue, KeysAndAttributes, PutRequest, WriteRequest};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{DynamoDb, SERVICE};
use crate::aws::again::{Pauses, Tries};
use crate::aws::error::AwsError;
use crate::aws::written::Written;
use crate::config::settings::NodeTable;
use crate::error::chain;
use crate::model::failure::ErrorClass;

/// Items in one BatchWriteItem, and keys in one BatchGetItem: DynamoDB's own limits.
const ITEMS_PER_WRITE: usize = 25;
const KEYS_PER_READ: usize = 100;

/// Writes in flight: a thousand nodes are 40 calls of some milliseconds.
const AT_ONCE: usize = 8;

/// Pauses after unprocessed items, throttling and faults.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A read that gives nothing new for so long is given up.
const READ_LIMIT: Duration = Duration::from_secs(30);

const WRITE: &str = "BatchWriteItem";
const READ: &str = "BatchGetItem";

/// DynamoDB refuses all items of a call for the sake of one and does not name it: the call is halved until it stands alone.
const INVALID: &str = "ValidationException";

/// The table's attributes.
const ID: &str = "Id";
const INSTANCE_ID: &str = "InstanceId";
const HEAD_IP: &str = "HeadNodePrivateIp";
const HEAD_NAME: &str = "HeadNodeHostname";

/// Node → instance id.
type Items = BTreeMap<String, String>;

impl DynamoDb {
    /// Writes one item per pair of node and instance id; an older item of the node is replaced. A node named twice gets the last.
    /// What is not written at once is repeated until `until`.
    pub(crate) async fn put_nodes(&self, table: &NodeTable, pairs: &[(String, String)], until: Instant) -> Written {
        // One call must not name a key twice, and calls in flight together must not write it both.
        let items: Items = pairs.iter().cloned().collect();
        let names: Vec<String> = items.keys().cloned().collect();
        let gate = Arc::new(Semaphore::new(AT_ONCE));
        let table = Arc::new(table.clone());
        let mut writes = JoinSet::new();
        for chunk in names.chunks(ITEMS_PER_WRITE) {
            let chunk: Items =
                chunk.iter().filter_map(|node| items.get_key_value(node)).map(|(n, i)| (n.clone(), i.clone())).collect();
            let (dynamodb, table, gate) = (self.clone(), table.clone(), gate.clone());
            writes.spawn(async move {
                let _pass = gate.acquire().await;
                dynamodb.put_chunk(&table, chunk, until).await
            });
        }
        let mut all = Written::default();
        let mut settled = BTreeSet::new();
        while let Some(written) = writes.join_next().await {
            let written = written.unwrap_or_default();
            settled
                .extend(written.done.iter().chain(&written.unknown).chain(written.refused.iter().map(|(node, _)| node)).cloned());
            all.absorb(written);
        }
        // Only a panic in a task can have lost a node.
        let lost: Vec<String> = names.into_iter().filter(|node| !settled.contains(node)).collect();
        if !lost.is_empty() {
            all.give_up(lost, Some("the write was not finished".to_owned()));
        }
        all
    }

    async fn put_chunk(&self, table: &NodeTable, chunk: Items, until: Instant) -> Written {
        let mut written = Written::default();
        let mut tries = Tries::new(Pauses::new(FIRST_PAUSE, LONGEST_PAUSE, until));
        let mut waiting = vec![chunk];
        while let Some(mut left) = waiting.pop() {
            let requests = left.iter().filter_map(|(node, instance)| request(table, node, instance)).collect();
            let call = self.client().batch_write_item().request_items(&table.table, requests).send();
            let error = match tries.answer(SERVICE, WRITE, call).await {
                Ok(answer) => {
                    let missed: BTreeSet<String> =
                        answer.unprocessed_items.unwrap_or_default().into_values().flatten().filter_map(node_of).collect();
                    let all = std::mem::take(&mut left);
                    let (again, done): (Vec<_>, Vec<_>) = all.into_iter().partition(|(node, _)| missed.contains(node));
                    written.done.extend(done.into_iter().map(|(node, _)| node));
                    left = again.into_iter().collect();
                    if left.is_empty() {
                        continue;
                    }
                    let why = format!("table {} did not take {} items", table.table, left.len());
                    AwsError::new(SERVICE, WRITE, "UnprocessedItems", ErrorClass::Throttled, why)
                }
                Err(error) if error.class.is_retryable() => error,
                Err(error) if error.code == INVALID && left.len() > 1 => {
                    let middle = left.keys().nth(left.len() / 2).cloned().unwrap_or_default();
                    let second = left.split_off(&middle);
                    waiting.extend([second, left]);
                    continue;
                }
                Err(error) => {
                    written.refuse(left.into_keys(), &error.to_failure(&format!("table {}", table.table)));
                    continue;
                }
            };
            waiting.push(left);
            if let Err(error) = tries.again(error).await {
                written.give_up(waiting.drain(..).flat_map(Items::into_keys), Some(chain(&error)));
            }
        }
        written
    }

    /// The instance behind each of the nodes, as the table says; nodes without an item are left out.
    pub(crate) async fn instances_of(&self, table: &str, nodes: &[String]) -> Result<BTreeMap<String, String>, AwsError> {
        let names: Vec<String> = nodes.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect();
        let mut found = BTreeMap::new();
        for chunk in names.chunks(KEYS_PER_READ) {
            let mut pauses = Pauses::new(FIRST_PAUSE, LONGEST_PAUSE, Instant::now() + READ_LIMIT);
            let mut keys = Some(keys(chunk)?);
            while let Some(wanted) = keys.take() {
                let answer = self.client().batch_get_item().request_items(table, wanted).send().await;
                let answer = answer.map_err(|error| AwsError::from_sdk(SERVICE, READ, &error))?;
                found.extend(answer.responses.unwrap_or_default().into_values().flatten().filter_map(|item| pair(&item)));
                keys = answer.unprocessed_keys.unwrap_or_default().remove(table).filter(|left| !left.keys().is_empty());
                if let Some(left) = &keys
                    && !pauses.wait().await
                {
                    let why = format!("table {table} left {} keys unread", left.keys().len());
                    return Err(AwsError::new(SERVICE, READ, "UnprocessedKeys", ErrorClass::Throttled, why));
                }
            }
        }
        Ok(found)
    }
}

fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

fn request(table: &NodeTable, node: &str, instance: &str) -> Option<WriteRequest> {
    let put = PutRequest::builder()
        .item(ID, text(node))
        .item(INSTANCE_ID, text(instance))
        .item(HEAD_IP, text(&table.head_node_private_ip))
        .item(HEAD_NAME, text(&table.head_node_hostname))
        .build();
    // Fails only without an item.
    put.ok().map(|put| WriteRequest::builder().put_request(put).build())
}

fn node_of(request: WriteRequest) -> Option<String> {
    request.put_request?.item.remove(ID).and_then(|id| match id {
        AttributeValue::S(node) => Some(node),
        _ => None,
    })
}

fn keys(nodes: &[String]) -> Result<KeysAndAttributes, AwsError> {
    let mut keys = KeysAndAttributes::builder().consistent_read(true).projection_expression(format!("{ID},{INSTANCE_ID}"));
    for node in nodes {
        keys = keys.keys([(ID.to_owned(), text(node))].into());
    }
    // Fails only without keys, and a chunk is never empty.
    keys.build().map_err(|error| AwsError::configuration(SERVICE, chain(&error)))
}

fn pair(item: &std::collections::HashMap<String, AttributeValue>) -> Option<(String, String)> {
    let get = |name: &str| item.get(name).and_then(|value| value.as_s().ok()).cloned();
    Some((get(ID)?, get(INSTANCE_ID)?))
}
