//! What all descriptions share: a question in several calls, a bounded number of them at once, and answers in pages.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::codes;
use super::error::Ec2Error;
use crate::model::failure::ErrorClass;

/// The calls of one question. Dropped, it ends them.
pub(super) struct Asked<T> {
    operation: &'static str,
    gate: Arc<Semaphore>,
    calls: JoinSet<Result<Vec<T>, Ec2Error>>,
}

impl<T: Send + 'static> Asked<T> {
    /// `at_once`: calls in flight at most.
    pub(super) fn new(operation: &'static str, at_once: usize) -> Self {
        Self { operation, gate: Arc::new(Semaphore::new(at_once)), calls: JoinSet::new() }
    }

    pub(super) fn call(&mut self, call: impl Future<Output = Result<Vec<T>, Ec2Error>> + Send + 'static) {
        let gate = Arc::clone(&self.gate);
        self.calls.spawn(async move {
            // The gate is never closed; without a pass the question would still be right.
            let _pass = gate.acquire().await;
            call.await
        });
    }

    /// All answers, in no particular order. One call that fails fails the question.
    pub(super) async fn all(mut self) -> Result<Vec<T>, Ec2Error> {
        let mut found = Vec::new();
        while let Some(part) = self.calls.join_next().await {
            match part {
                Ok(part) => found.append(&mut part?),
                Err(error) => return Err(unreadable(self.operation, error.to_string())),
            }
        }
        Ok(found)
    }
}

/// The token of the next page; `None` = that was the last one. `asked`: the token that this page was asked for with.
pub(super) fn next_page(
    operation: &'static str,
    asked: Option<&String>,
    told: Option<String>,
) -> Result<Option<String>, Ec2Error> {
    let told = told.filter(|token| !token.is_empty());
    if told.is_some() && told.as_ref() == asked {
        return Err(unreadable(operation, "EC2 gave the same page twice".to_owned()));
    }
    Ok(told)
}

fn unreadable(operation: &'static str, message: String) -> Ec2Error {
    Ec2Error::new(operation, codes::UNREADABLE, ErrorClass::Ambiguous, message)
}
