//! One partition of a table of ours: items in, items out, each with a revision that every write renews. What the items mean is
//! `store/table`'s matter.
//!
//! Several items are written in one transaction, whole or not at all, and only if each is still as expected. A transaction whose
//! answer was lost is repeated under the same request token, so that DynamoDB tells what became of the first try.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::error::SdkError;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{AttributeValue, ConditionCheck, Delete, Put, TransactWriteItem};
use serde_json::{Map, Value};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{DynamoDb, SERVICE};
use crate::aws::again::{Pauses, Tries};
use crate::aws::error::AwsError;
use crate::model::failure::ErrorClass;

/// Key attributes of the table, both strings.
pub(crate) const HASH_KEY: &str = "cluster";
pub(crate) const RANGE_KEY: &str = "item";

/// The attribute that every write renews.
const REV: &str = "rev";

/// Actions in one transaction: DynamoDB's own limit.
pub(crate) const ACTIONS: usize = 100;

/// Transactions in flight.
const AT_ONCE: usize = 8;

/// Pauses after throttling, conflicts of two transactions, and faults.
const FIRST_PAUSE: Duration = Duration::from_millis(30);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

const QUERY: &str = "Query";
const GET: &str = "GetItem";
const WRITE: &str = "TransactWriteItems";

/// An item without its key. Fields are strings, booleans and whole numbers; an attribute of another kind is read as null.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Item {
    pub(crate) rev: String,
    pub(crate) fields: Map<String, Value>,
}

/// What must hold of an item, or nothing of its transaction is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Expect {
    Absent,
    Rev(String),
    Anything,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Act {
    Put(Item),
    Delete,
    /// The item is looked at and left as it is.
    Check,
}

/// One action of a transaction; no item comes twice in one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Write {
    pub(crate) name: String,
    pub(crate) expect: Expect,
    pub(crate) act: Act,
}

/// A partition: the items of one cluster.
#[derive(Debug, Clone)]
pub(crate) struct Partition {
    pub(crate) table: String,
    pub(crate) cluster: String,
}

impl DynamoDb {
    /// One item, as of now.
    pub(crate) async fn item(&self, of: &Partition, name: &str, until: Instant) -> Result<Option<Item>, AwsError> {
        let mut tries = Tries::new(Pauses::new(FIRST_PAUSE, LONGEST_PAUSE, until));
        loop {
            let call = self.client().get_item().table_name(&of.table).set_key(Some(of.key(name))).consistent_read(true);
            match tries.answer(SERVICE, GET, call.send()).await {
                Ok(answer) => return Ok(answer.item.map(item)),
                Err(error) => tries.again(error).await?,
            }
        }
    }

    /// Every item of the partition by name. Each is as of the moment it was read; later pages are later.
    pub(crate) async fn items(&self, of: &Partition, until: Instant) -> Result<BTreeMap<String, Item>, AwsError> {
        let mut tries = Tries::new(Pauses::new(FIRST_PAUSE, LONGEST_PAUSE, until));
        let (mut found, mut after) = (BTreeMap::new(), None);
        loop {
            let call = self.client().query().table_name(&of.table).consistent_read(true).set_exclusive_start_key(after.clone());
            let call = call.key_condition_expression("#key = :key").expression_attribute_names("#key", HASH_KEY);
            let call = call.expression_attribute_values(":key", AttributeValue::S(of.cluster.clone())).send();
            match tries.answer(SERVICE, QUERY, call).await {
                Ok(answer) => {
                    for mut attributes in answer.items.unwrap_or_default() {
                        if let Some(AttributeValue::S(name)) = attributes.remove(RANGE_KEY) {
                            found.insert(name, item(attributes));
                        }
                    }
                    after = answer.last_evaluated_key;
                    if after.is_none() {
                        return Ok(found);
                    }
                }
                Err(error) => tries.again(error).await?,
            }
        }
    }

    /// Carries transactions out, several at once and in no order; an answer for each: true = done, false = something was not as
    /// expected and nothing of it was done.
    pub(crate) async fn transact(
        &self,
        of: &Partition,
        transactions: Vec<(String, Vec<Write>)>,
        until: Instant,
    ) -> Vec<Result<bool, AwsError>> {
        let gate = Arc::new(Semaphore::new(AT_ONCE));
        let mut tasks = JoinSet::new();
        let lost = || Err(AwsError::late(SERVICE, WRITE));
        let mut answers: Vec<_> = transactions.iter().map(|_| lost()).collect();
        for (index, (token, writes)) in transactions.into_iter().enumerate() {
            let (dynamodb, of, gate) = (self.clone(), of.clone(), Arc::clone(&gate));
            tasks.spawn(async move {
                let _pass = gate.acquire().await;
                (index, dynamodb.transact_one(&of, &token, &writes, until).await)
            });
        }
        while let Some(done) = tasks.join_next().await {
            if let Ok((index, answer)) = done {
                answers[index] = answer;
            }
        }
        answers
    }

    async fn transact_one(&self, of: &Partition, token: &str, writes: &[Write], until: Instant) -> Result<bool, AwsError> {
        let mut tries = Tries::new(Pauses::new(FIRST_PAUSE, LONGEST_PAUSE, until));
        let actions = writes.iter().map(|write| action(of, write)).collect::<Result<Vec<_>, _>>()?;
        loop {
            let call = self.client().transact_write_items().client_request_token(token);
            let call = call.set_transact_items(Some(actions.clone())).send();
            let error = match tries.in_time(SERVICE, WRITE, call).await? {
                Ok(_) => return Ok(true),
                Err(error) => match refusal(&error) {
                    Some(Refusal::Expectation) => return Ok(false),
                    Some(Refusal::Busy(why)) => {
                        AwsError::new(SERVICE, WRITE, &why, ErrorClass::Throttled, "the transaction was cancelled")
                    }
                    None => AwsError::from_sdk(SERVICE, WRITE, &error),
                },
            };
            tries.again(error).await?;
        }
    }
}

impl Partition {
    fn key(&self, name: &str) -> HashMap<String, AttributeValue> {
        let text = |value: &str| AttributeValue::S(value.to_owned());
        HashMap::from([(HASH_KEY.to_owned(), text(&self.cluster)), (RANGE_KEY.to_owned(), text(name))])
    }
}

/// Why DynamoDB cancelled a transaction (API reference, CancellationReasons).
enum Refusal {
    /// An item is not as expected.
    Expectation,
    /// Another transaction on the same items, or too many writes: to be repeated.
    Busy(String),
}

fn refusal<R>(error: &SdkError<TransactWriteItemsError, R>) -> Option<Refusal> {
    let SdkError::ServiceError(service) = error else { return None };
    let TransactWriteItemsError::TransactionCanceledException(cancelled) = service.err() else { return None };
    let codes = || cancelled.cancellation_reasons().iter().filter_map(|reason| reason.code());
    if codes().any(|code| code == "ConditionalCheckFailed") {
        return Some(Refusal::Expectation);
    }
    let busy = |code: &&str| matches!(*code, "TransactionConflict" | "ThrottlingError" | "ProvisionedThroughputExceeded");
    codes().find(busy).map(|code| Refusal::Busy(code.to_owned()))
}

fn action(of: &Partition, write: &Write) -> Result<TransactWriteItem, AwsError> {
    let (condition, rev) = match &write.expect {
        Expect::Absent => (Some("attribute_not_exists(#name)"), None),
        Expect::Rev(rev) => (Some("#name = :rev"), Some(HashMap::from([(":rev".to_owned(), AttributeValue::S(rev.clone()))]))),
        Expect::Anything => (None, None),
    };
    let condition = condition.map(str::to_owned);
    let named = if rev.is_some() { REV } else { RANGE_KEY };
    let names = condition.as_ref().map(|_| HashMap::from([("#name".to_owned(), named.to_owned())]));
    let key = of.key(&write.name);
    let item = TransactWriteItem::builder();
    let made = match &write.act {
        Act::Put(new) => {
            let mut attributes = key;
            attributes.insert(REV.to_owned(), AttributeValue::S(new.rev.clone()));
            attributes.extend(new.fields.iter().filter_map(|(field, value)| Some((field.clone(), attribute(value)?))));
            let put = Put::builder().table_name(&of.table).set_item(Some(attributes)).set_condition_expression(condition);
            put.set_expression_attribute_names(names).set_expression_attribute_values(rev).build().map(|put| item.put(put))
        }
        Act::Delete => {
            let delete = Delete::builder().table_name(&of.table).set_key(Some(key)).set_condition_expression(condition);
            delete.set_expression_attribute_names(names).set_expression_attribute_values(rev).build().map(|it| item.delete(it))
        }
        Act::Check => {
            let check = ConditionCheck::builder().table_name(&of.table).set_key(Some(key)).set_condition_expression(condition);
            let check = check.set_expression_attribute_names(names).set_expression_attribute_values(rev);
            check.build().map(|check| item.condition_check(check))
        }
    };
    made.map(|item| item.build()).map_err(|error| AwsError::configuration(SERVICE, crate::error::chain(&error)))
}

fn attribute(value: &Value) -> Option<AttributeValue> {
    match value {
        Value::String(text) => Some(AttributeValue::S(text.clone())),
        Value::Bool(bool) => Some(AttributeValue::Bool(*bool)),
        Value::Number(number) => Some(AttributeValue::N(number.to_string())),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn item(mut attributes: HashMap<String, AttributeValue>) -> Item {
    attributes.remove(HASH_KEY);
    attributes.remove(RANGE_KEY);
    let rev = match attributes.remove(REV) {
        Some(AttributeValue::S(rev)) => rev,
        _ => String::new(),
    };
    let value = |attribute| match attribute {
        AttributeValue::S(text) => Value::String(text),
        AttributeValue::Bool(bool) => Value::Bool(bool),
        AttributeValue::N(number) => number.parse::<u64>().map_or(Value::Null, Value::from),
        _ => Value::Null,
    };
    Item { rev, fields: attributes.into_iter().map(|(field, attribute)| (field, value(attribute))).collect() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn fields_go_to_attributes_and_back() {
        let fields = serde_json::json!({"state": "running", "unpublished": true, "version": 1, "odd": [1]});
        let Value::Object(fields) = fields else { unreachable!() };
        let write = Write {
            name: "node#c5-1".into(),
            expect: Expect::Rev("a".into()),
            act: Act::Put(Item { rev: "b".into(), fields: fields.clone() }),
        };
        let of = Partition { table: "t".into(), cluster: "hpc".into() };
        let put = action(&of, &write).unwrap().put.unwrap();
        assert_eq!(put.condition_expression(), Some("#name = :rev"));
        assert_eq!(put.item()["cluster"], AttributeValue::S("hpc".into()));
        let mut back = item(put.item().clone());
        assert_eq!(back.rev, "b");
        back.fields.insert("odd".into(), serde_json::json!([1]));
        assert_eq!(back.fields, fields, "lists are not kept, nobody writes them");
    }
}
