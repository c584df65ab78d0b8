//! The door to Route 53: nodes and addresses in, A records out. Only this folder names its SDK. No policy.
//!
//! `upsert.rs` is the one call that is made, `pace.rs` its pace, `refusal.rs` reads which record of many was refused.

mod pace;
mod refusal;
mod upsert;

#[cfg(test)]
mod wire_tests;

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_route53::Client;
use aws_sdk_route53::config::Builder;
use aws_smithy_types::retry::RetryConfig;

pub(crate) use pace::CALLS_PER_SECOND;
use pace::Pace;

use crate::aws::calls::{CallCounts, Counter};
use crate::aws::error::{AwsError, Service};
use crate::aws::{client, http};
use crate::config::settings::AwsSettings;

/// The service in messages.
const SERVICE: &Service = &Service { name: "Route 53", unreachable: "Route53Unreachable" };

/// A connection to Route 53. Cheap to clone; the clones share connections, credentials, pace and counts.
#[derive(Debug, Clone)]
pub(crate) struct Route53 {
    client: Client,
    counter: Counter,
    pace: Arc<Pace>,
}

impl Route53 {
    /// Nothing is sent, read or resolved yet: that waits for the first call. `region` is any of the right partition; the service
    /// itself is global. An error here is a setting that cannot be used.
    pub(crate) async fn connect(aws: &AwsSettings, region: &str) -> Result<Self, AwsError> {
        let endpoint = aws.route53_endpoint_url.as_deref();
        http::check(aws, "route53_endpoint_url", endpoint).map_err(|why| AwsError::configuration(SERVICE, why))?;
        let counter = Counter::default();
        let builder = Builder::from(&client::shared(aws, region, endpoint))
            // Every try is paced, so the tries are upsert.rs's.
            .retry_config(RetryConfig::disabled())
            .interceptor(counter.clone());
        Ok(Self { client: Client::from_conf(builder.build()), counter, pace: Arc::default() })
    }

    /// Keeps to a pace that other programs keep too: `shared` takes one call's turn and says how long to wait for it, or `None`,
    /// with no turn taken, if that is longer than the time it is given.
    pub(crate) fn paced(mut self, shared: impl Fn(Duration) -> Option<Duration> + Send + Sync + 'static) -> Self {
        self.pace = Arc::new(Pace::with(shared));
        self
    }

    /// Every try so far, and the slowest.
    pub(crate) fn calls(&self) -> CallCounts {
        self.counter.counts()
    }
}
