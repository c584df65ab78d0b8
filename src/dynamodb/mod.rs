//! The door to DynamoDB: our words in, our words out. Only this folder names its SDK. No policy.
//!
//! `nodes.rs` writes and reads ParallelCluster's table of nodes, `items.rs` the table of our own mapping.

pub(crate) mod items;
mod nodes;

#[cfg(test)]
mod wire_tests;

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{AppName, BehaviorVersion, Config, IdentityCache, Region, StalledStreamProtectionConfig};
use aws_smithy_async::rt::sleep::TokioSleep;
use aws_smithy_types::retry::RetryConfig;
use aws_smithy_types::timeout::TimeoutConfig;

use crate::aws::calls::{CallCounts, Counter};
use crate::aws::credentials::LazyCredentials;
use crate::aws::error::{AwsError, Service};
use crate::aws::hosts::Hosts;
use crate::aws::http;
use crate::config::settings::AwsSettings;

/// The service in messages.
pub(crate) const SERVICE: &Service = &Service { name: "DynamoDB", unreachable: "DynamoDbUnreachable" };

/// The first pause between the tries that the SDK makes by itself; it doubles. DynamoDB answers in milliseconds.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The most that credentials may take, as for EC2.
const CREDENTIALS_WAIT: Duration = Duration::from_secs(15);

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
        let region = Region::new(region.to_owned());
        let hosts = Hosts::system();
        let counter = Counter::default();
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(aws.connect_timeout)
            .operation_attempt_timeout(aws.attempt_timeout)
            .operation_timeout(aws.operation_timeout)
            .build();
        let retries = RetryConfig::standard().with_max_attempts(aws.attempts.max(1)).with_initial_backoff(FIRST_PAUSE);
        let mut builder = Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(region.clone())
            .credentials_provider(LazyCredentials::shared(Arc::new(aws.clone()), region, hosts.clone()))
            .http_client(http::for_service(aws, endpoint, &hosts))
            .sleep_impl(TokioSleep::new())
            .retry_config(retries)
            .timeout_config(timeouts)
            // The timeout of a try covers a stalled answer.
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .identity_cache(IdentityCache::lazy().load_timeout(CREDENTIALS_WAIT).build())
            .interceptor(counter.clone());
        builder.set_app_name(AppName::new("slurm-ec2").ok());
        builder.set_endpoint_url(endpoint.map(str::to_owned));
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
