//! The compute fleet's status in ParallelCluster's status table (aws-facts B.13): the item out, one conditional change of it in. What the
//! words mean is `plan::fleet_status`'s.
//!
//! The item is `{"Id": "COMPUTE_FLEET", "Data": {"status", "lastStatusUpdatedTime", …}}`; clusters older than 3.2 keep plain attributes
//! `Status` and `LastUpdatedTime` instead. The head node's role may get, put and update items here, by their key.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::{Map, Value};

use super::{DynamoDb, SERVICE};
use crate::aws::again::{Pauses, Tries};
use crate::aws::error::AwsError;

const KEY: &str = "Id";
const ITEM: &str = "COMPUTE_FLEET";

const GET: &str = "GetItem";
const UPDATE: &str = "UpdateItem";

/// DynamoDB's word for an item that is not as the condition says.
const CONDITION: &str = "ConditionalCheckFailedException";

/// Pauses after throttling and faults.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How the item holds the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// In the map `Data`.
    Data,
    /// As attributes of its own, before ParallelCluster 3.2.
    Plain,
}

impl Form {
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Data => ("status", "lastStatusUpdatedTime"),
            Self::Plain => ("Status", "LastUpdatedTime"),
        }
    }

    /// All names are given by placeholders: `Data` and `Status` are words of DynamoDB's own language.
    fn expressions(self) -> (&'static str, &'static str) {
        match self {
            Self::Data => ("SET #data.#status = :to, #data.#updated = :updated", "#data.#status = :from"),
            Self::Plain => ("SET #status = :to, #updated = :updated", "#status = :from"),
        }
    }
}

/// What the table says of the fleet.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FleetItem {
    pub(crate) status: String,
    /// Free text; empty where there is none.
    pub(crate) updated: String,
    /// The whole map, status and time among it, by ParallelCluster's newer names.
    pub(crate) data: Map<String, Value>,
    form: Form,
}

impl DynamoDb {
    /// The fleet's item as of now (a strongly consistent read); `None` if there is none, or none that holds a status.
    pub(crate) async fn fleet_item(&self, table: &str, until: Instant) -> Result<Option<FleetItem>, AwsError> {
        let mut tries = Tries::new(Pauses::new(FIRST_PAUSE, LONGEST_PAUSE, until));
        loop {
            let call = self.client().get_item().table_name(table).key(KEY, text(ITEM)).consistent_read(true).send();
            match tries.answer(SERVICE, GET, call).await {
                Ok(answer) => return Ok(answer.item.and_then(|item| read(&item))),
                Err(error) => tries.again(error).await?,
            }
        }
    }

    /// Changes status and time if the status is still `from`: true = done. Everything else in the item stays as it is.
    ///
    /// `updated` must be this change's own: when the answer to a change that was made gets lost and the repeat finds the condition
    /// broken, it tells that the change was ours.
    pub(crate) async fn set_fleet_status(
        &self,
        table: &str,
        from: &str,
        to: &str,
        updated: &str,
        until: Instant,
    ) -> Result<bool, AwsError> {
        if self.update_fleet(table, Form::Data, (from, to), updated, until).await? {
            return Ok(true);
        }
        match self.fleet_item(table, until).await? {
            Some(item) if item.status == to && item.updated == updated => Ok(true),
            Some(item) if item.form == Form::Plain && item.status == from => {
                let done = self.update_fleet(table, Form::Plain, (from, to), updated, until).await?;
                let ours = |item: FleetItem| item.status == to && item.updated == updated;
                Ok(done || self.fleet_item(table, until).await?.is_some_and(ours))
            }
            _ => Ok(false),
        }
    }

    /// One conditional change in this form; false = the item is not so.
    async fn update_fleet(
        &self,
        table: &str,
        form: Form,
        (from, to): (&str, &str),
        updated: &str,
        until: Instant,
    ) -> Result<bool, AwsError> {
        let (status, time) = form.names();
        let (update, condition) = form.expressions();
        let mut names = HashMap::from([("#status", status), ("#updated", time)]);
        if form == Form::Data {
            names.insert("#data", "Data");
        }
        let names: HashMap<String, String> = names.into_iter().map(|(key, name)| (key.to_owned(), name.to_owned())).collect();
        let values = [(":from", from), (":to", to), (":updated", updated)].map(|(key, value)| (key.to_owned(), text(value)));
        let mut tries = Tries::new(Pauses::new(FIRST_PAUSE, LONGEST_PAUSE, until));
        loop {
            let call = self.client().update_item().table_name(table).key(KEY, text(ITEM));
            let call = call.update_expression(update).condition_expression(condition);
            let call = call.set_expression_attribute_names(Some(names.clone()));
            let call = call.set_expression_attribute_values(Some(HashMap::from(values.clone()))).send();
            match tries.answer(SERVICE, UPDATE, call).await {
                Ok(_) => return Ok(true),
                Err(error) if error.code == CONDITION => return Ok(false),
                Err(error) => tries.again(error).await?,
            }
        }
    }
}

fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

/// The item in either form.
fn read(item: &HashMap<String, AttributeValue>) -> Option<FleetItem> {
    let of = |value: Option<&AttributeValue>| value.and_then(|value| value.as_s().ok()).cloned();
    if let Some(AttributeValue::M(map)) = item.get("Data") {
        let (status, updated) = Form::Data.names();
        let found = FleetItem {
            status: of(map.get(status))?,
            updated: of(map.get(updated)).unwrap_or_default(),
            data: object(map),
            form: Form::Data,
        };
        return Some(found);
    }
    let (status, updated) = Form::Plain.names();
    let (status, updated) = (of(item.get(status))?, of(item.get(updated)).unwrap_or_default());
    let (as_status, as_updated) = Form::Data.names();
    let data = [(as_status, &status), (as_updated, &updated)];
    let data = data.into_iter().map(|(key, value)| (key.to_owned(), Value::String(value.clone()))).collect();
    Some(FleetItem { status, updated, data, form: Form::Plain })
}

fn object(map: &HashMap<String, AttributeValue>) -> Map<String, Value> {
    map.iter().map(|(key, value)| (key.clone(), plain(value))).collect()
}

/// An attribute as plain JSON; kinds that JSON does not have (bytes, sets) are null.
fn plain(value: &AttributeValue) -> Value {
    match value {
        AttributeValue::S(text) => Value::String(text.clone()),
        AttributeValue::N(number) => number.parse::<serde_json::Number>().map_or(Value::Null, Value::Number),
        AttributeValue::Bool(bool) => Value::Bool(*bool),
        AttributeValue::M(map) => Value::Object(object(map)),
        AttributeValue::L(list) => Value::Array(list.iter().map(plain).collect()),
        _ => Value::Null,
    }
}
