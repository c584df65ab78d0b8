//! The items of one cluster, for plain code: what the table store needs of a table and nothing more.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

use super::worker::Worker;
use crate::aws::error::AwsError;
use crate::dynamodb::SERVICE;
use crate::dynamodb::items::ACTIONS;
use crate::dynamodb::items::Partition;
pub(super) use crate::dynamodb::items::{Act, Expect, Item, Write};
use crate::store::atomic::random_hex;

/// Written whole or not at all, and only if every expectation in it holds.
pub(super) type Transaction = Vec<Write>;

/// A partition of a table. Calls wait until `until` at most, repeating what is worth it.
pub(super) trait Items: fmt::Debug + Send + Sync {
    /// Actions in one transaction at most.
    fn actions(&self) -> usize {
        ACTIONS
    }

    /// Every item by name. Each is as of the moment it was read; names are read in their order.
    fn all(&self, until: Instant) -> Result<BTreeMap<String, Item>, AwsError>;

    fn get(&self, name: &str, until: Instant) -> Result<Option<Item>, AwsError>;

    /// Carries transactions out in no order; an answer for each: true = done, false = an expectation did not hold.
    fn write(&self, transactions: Vec<Transaction>, until: Instant) -> Vec<Result<bool, AwsError>>;
}

/// A table of DynamoDB.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) worker: Worker,
    pub(super) partition: Partition,
}

impl Items for Remote {
    fn all(&self, until: Instant) -> Result<BTreeMap<String, Item>, AwsError> {
        let of = self.partition.clone();
        let answer = self.worker.call(until, move |dynamodb| async move { dynamodb.items(&of, until).await });
        answer.unwrap_or_else(|| Err(AwsError::late(SERVICE, "Query")))
    }

    fn get(&self, name: &str, until: Instant) -> Result<Option<Item>, AwsError> {
        let (of, name) = (self.partition.clone(), name.to_owned());
        let answer = self.worker.call(until, move |dynamodb| async move { dynamodb.item(&of, &name, until).await });
        answer.unwrap_or_else(|| Err(AwsError::late(SERVICE, "GetItem")))
    }

    fn write(&self, transactions: Vec<Transaction>, until: Instant) -> Vec<Result<bool, AwsError>> {
        if transactions.is_empty() {
            return Vec::new();
        }
        let late = || Err(AwsError::late(SERVICE, "TransactWriteItems"));
        let nothing: Vec<_> = transactions.iter().map(|_| late()).collect();
        let mut with_tokens = Vec::with_capacity(transactions.len());
        for transaction in transactions {
            match random_hex(16) {
                Ok(token) => with_tokens.push((token, transaction)),
                Err(error) => {
                    let error = AwsError::configuration(SERVICE, format!("no randomness from the kernel: {error}"));
                    return nothing.into_iter().map(|_: Result<bool, _>| Err(error.clone())).collect();
                }
            }
        }
        let of = self.partition.clone();
        let answer = self.worker.call(until, move |dynamodb| async move { dynamodb.transact(&of, with_tokens, until).await });
        answer.unwrap_or(nothing)
    }
}
