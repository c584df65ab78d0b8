//! DynamoDB, as far as the programs need it: items by key, conditions, transactions, queries, in its JSON protocol.
//!
//! `table` keeps items, `actions` carries out one action each, `expression` says whether a condition holds and what an update
//! makes of an item. Reads see everything at once; there are no indexes, no streams and no capacity.

mod actions;
mod expression;
mod table;
#[cfg(test)]
mod tests;

use std::time::Duration;

use hyper::http::request::Parts;
use serde_json::{Value, json};

pub use table::{Item, Table};

use crate::ec2::Rule;
use crate::host::{Answer, Asked, Host, Request, Service};

/// What the endpoint does well or badly.
#[derive(Clone, Debug, Default)]
pub struct Behaviour {
    pub tables: Vec<Table>,
    /// Of 100 items in batch calls so many come back unprocessed, evenly spread.
    pub unprocessed_percent: u32,
    /// Time to answer, per call.
    pub latency_ms: u64,
    pub rules: Vec<Rule>,
}

/// A running endpoint; dropped = stopped.
#[derive(Debug)]
pub struct Endpoint(Host<DynamoDb>);

impl Endpoint {
    /// Starts on a free port of 127.0.0.1.
    ///
    /// # Panics
    /// If there is no port; a test cannot go on without its endpoint.
    pub fn start(behaviour: Behaviour) -> Self {
        let Behaviour { tables, unprocessed_percent, latency_ms, rules } = behaviour;
        let service = DynamoDb { tables, unprocessed_percent, latency_ms, share: 0 };
        match Host::start("fake-dynamodb", service, rules) {
            Ok(host) => Endpoint(host),
            Err(error) => panic!("cannot start the DynamoDB endpoint: {error}"),
        }
    }

    /// For `dynamodb_endpoint_url`.
    pub fn url(&self) -> String {
        self.0.url()
    }

    /// All items of a table, in the order of their keys, as DynamoDB writes them: `{"Id": {"S": "c5-1"}}`.
    pub fn items(&self, table: &str) -> Vec<Item> {
        self.0.with(|service| service.tables.iter().find(|found| found.name == table).map(Table::items).unwrap_or_default())
    }

    /// Puts an item behind everybody's back.
    ///
    /// # Panics
    /// If there is no such table or the item lacks a key.
    pub fn put(&self, table: &str, item: Item) {
        let put = self.0.with(|service| service.table(table).and_then(|table| table.put(item)));
        if let Err(Failure { message, .. }) = put {
            panic!("{message}");
        }
    }

    /// All requests, in order of arrival.
    pub fn requests(&self) -> Vec<Request> {
        self.0.requests()
    }

    /// How many requests of an action have arrived, whatever became of them.
    pub fn count(&self, action: &str) -> usize {
        self.requests().iter().filter(|request| request.operation == action).count()
    }

    pub fn add_rules(&self, rules: impl IntoIterator<Item = Rule>) {
        self.0.add_rules(rules);
    }

    /// From now on so many of 100 items in batch calls come back unprocessed.
    pub fn leave_unprocessed(&self, percent: u32) {
        self.0.with(|service| service.unprocessed_percent = percent);
    }

    /// Lets all requests go that wait at this gate. Later ones wait again if the rule still applies.
    pub fn release(&self, gate: &str) {
        self.0.release(gate);
    }

    /// Waits until a request stands at the gate; false if none came in time.
    #[must_use = "a test must not go on as if the request were there"]
    pub fn wait_held(&self, gate: &str, at_most: Duration) -> bool {
        self.0.wait_held(gate, at_most)
    }
}

/// An error as DynamoDB answers it, always with HTTP 400.
#[derive(Debug)]
pub(crate) struct Failure {
    code: &'static str,
    message: String,
    /// Further members of the answer.
    more: Value,
}

impl Failure {
    fn new(code: &'static str, message: impl Into<String>) -> Self {
        Failure { code, message: message.into(), more: json!({}) }
    }

    fn validation(message: impl Into<String>) -> Self {
        Failure::new("ValidationException", message)
    }
}

pub(crate) struct DynamoDb {
    tables: Vec<Table>,
    unprocessed_percent: u32,
    latency_ms: u64,
    /// Percents collected so far; at 100 an item stays unprocessed.
    share: u32,
}

impl DynamoDb {
    fn table(&mut self, name: &str) -> Result<&mut Table, Failure> {
        let found = self.tables.iter_mut().find(|table| table.name == name);
        found.ok_or_else(|| {
            Failure::new("ResourceNotFoundException", format!("Requested resource not found: Table: {name} not found"))
        })
    }

    /// Is this item one of those that a batch call leaves out?
    fn leaves_out(&mut self) -> bool {
        self.share += self.unprocessed_percent;
        let full = self.share >= 100;
        self.share -= if full { 100 } else { 0 };
        full
    }
}

impl Service for DynamoDb {
    const KIND: &'static str = "application/x-amz-json-1.0";

    fn operation(head: &Parts) -> String {
        let target = crate::http::header(head, "x-amz-target").unwrap_or_default();
        target.rsplit('.').next().unwrap_or_default().to_owned()
    }

    fn perform(&mut self, operation: &str, asked: &Asked, request_id: &str) -> Answer {
        let done = serde_json::from_str(&asked.body)
            .map_err(|error| Failure::new("SerializationException", error.to_string()))
            .and_then(|input: Value| self.act(operation, &input));
        match done {
            Ok(output) => Answer { status: 200, body: output.to_string() },
            Err(Failure { code, message, more }) => {
                let mut answer = self.error(400, code, &message, request_id);
                if let (Ok(Value::Object(mut body)), Value::Object(more)) = (serde_json::from_str(&answer.body), more) {
                    body.extend(more);
                    answer.body = Value::Object(body).to_string();
                }
                answer
            }
        }
    }

    fn error(&self, status: u16, code: &str, message: &str, _: &str) -> Answer {
        let space = match code {
            "ValidationException" => "com.amazon.coral.validate",
            "AccessDeniedException" | "UnrecognizedClientException" | "MissingAuthenticationToken" => "com.amazon.coral.service",
            _ => "com.amazonaws.dynamodb.v20120810",
        };
        let body = json!({ "__type": format!("{space}#{code}"), "message": message });
        Answer { status, body: body.to_string() }
    }

    fn latency(&self, _: &str) -> Duration {
        Duration::from_millis(self.latency_ms)
    }
}
