//! Counts what goes out to AWS: every try of every call, and how long the slowest took.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::Intercept;
use aws_smithy_runtime_api::client::interceptors::context::{
    BeforeTransmitInterceptorContextRef, FinalizerInterceptorContextRef,
};
use aws_smithy_runtime_api::client::orchestrator::Metadata;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::config_bag::{ConfigBag, Storable, StoreReplace};

/// Tries per operation, and the slowest single one: for the log's last line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CallCounts {
    pub(crate) by_operation: BTreeMap<String, u64>,
    pub(crate) slowest: Duration,
}

impl CallCounts {
    /// Adds another service's.
    pub(crate) fn add(&mut self, other: Self) {
        for (operation, count) in other.by_operation {
            *self.by_operation.entry(operation).or_default() += count;
        }
        self.slowest = self.slowest.max(other.slowest);
    }
}

/// `DescribeInstances=2 RunInstances=1`
impl fmt::Display for CallCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (operation, count)) in self.by_operation.iter().enumerate() {
            let gap = if at == 0 { "" } else { " " };
            write!(f, "{gap}{operation}={count}")?;
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Counter(Arc<Mutex<CallCounts>>);

impl Counter {
    pub(crate) fn counts(&self) -> CallCounts {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// When this try went out.
#[derive(Debug, Clone, Copy)]
struct Sent(Instant);

impl Storable for Sent {
    type Storer = StoreReplace<Self>;
}

impl Intercept for Counter {
    fn name(&self) -> &'static str {
        "slurm-ec2's call counter"
    }

    fn read_before_transmit(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        cfg: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let operation = cfg.load::<Metadata>().map_or("?", Metadata::name).to_owned();
        cfg.interceptor_state().store_put(Sent(Instant::now()));
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.by_operation.entry(operation).or_default() += 1;
        Ok(())
    }

    fn read_after_attempt(
        &self,
        _: &FinalizerInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        cfg: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if let Some(Sent(sent)) = cfg.load::<Sent>() {
            let took = sent.elapsed();
            let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            counts.slowest = counts.slowest.max(took);
        }
        Ok(())
    }
}
