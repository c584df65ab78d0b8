//! The door to DynamoDB: our words in, our words out. Only this folder names its SDK. No policy.
//!
//! `nodes.rs` writes and reads ParallelCluster's table of nodes, `items.rs` the table of our own mapping, `fleet.rs` the status of the
//! compute fleet, `boot.rs` is what a compute node asks at boot.

mod boot;
pub(crate) mod fleet;
pub(crate) mod items;
mod nodes;

#[cfg(test)]
mod fleet_wire_tests;
#[cfg(test)]
mod wire_tests;

use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::Builder;

use crate::aws::calls::{CallCounts, Counter};
use crate::aws::error::{AwsError, Service};
use crate::aws::{client, http};
use crate::config::settings::AwsSettings;

/// The service in messages.
pub(crate) const SERVICE: &Service = &Service { name: "DynamoDB", unreachable: "DynamoDbUnreachable" };

/// The first pause between the tries that the SDK makes by itself; it doubles. DynamoDB answers in milliseconds.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// A connection to DynamoDB in one region. Cheap to clone; the clones share connections, credentials and counts.
#[derive(Debug, Clone)]
pub(crate) struct DynamoDb {
    client: Client,
    counter: Counter,
}

impl DynamoDb {
    /// Nothing is sent, read or resolved yet: that waits for the first call. An error here is a setting that cannot be used.
    pub(crate) async fn connect(aws: &AwsSettings, region: &str) -> Result<Self, AwsError> {
        let endpoint = aws.dynamodb_endpoint_url.as_deref();
        http::check(aws, "dynamodb_endpoint_url", endpoint).map_err(|why| AwsError::configuration(SERVICE, why))?;
        let counter = Counter::default();
        let builder = Builder::from(&client::shared(aws, region, endpoint))
            .retry_config(client::retries(aws).with_initial_backoff(FIRST_PAUSE))
            .interceptor(counter.clone());
        Ok(Self { client: Client::from_conf(builder.build()), counter })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Every try so far, and the slowest.
    pub(crate) fn calls(&self) -> CallCounts {
        self.counter.counts()
    }
}
