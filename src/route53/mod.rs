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
use aws_sdk_route53::config::{AppName, BehaviorVersion, Config, IdentityCache, Region, StalledStreamProtectionConfig};
use aws_smithy_async::rt::sleep::TokioSleep;
use aws_smithy_types::retry::RetryConfig;
use aws_smithy_types::timeout::TimeoutConfig;

pub(crate) use pace::CALLS_PER_SECOND;
use pace::Pace;

use crate::aws::calls::{CallCounts, Counter};
use crate::aws::credentials::LazyCredentials;
use crate::aws::error::{AwsError, Service};
use crate::aws::hosts::Hosts;
use crate::aws::http;
use crate::config::settings::AwsSettings;

/// The service in messages.
const SERVICE: &Service = &Service { name: "Route 53", unreachable: "Route53Unreachable" };

/// The most that credentials may take, as for EC2.
const CREDENTIALS_WAIT: Duration = Duration::from_secs(15);

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
        let region = Region::new(region.to_owned());
        let hosts = Hosts::system();
        let counter = Counter::default();
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(aws.connect_timeout)
            .operation_attempt_timeout(aws.attempt_timeout)
            .operation_timeout(aws.operation_timeout)
            .build();
        let mut builder = Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(region.clone())
            .credentials_provider(LazyCredentials::shared(Arc::new(aws.clone()), region, hosts.clone()))
            .http_client(http::for_service(aws, endpoint, &hosts))
            .sleep_impl(TokioSleep::new())
            // Every try is paced, so the tries are upsert.rs's.
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts)
            // The timeout of a try covers a stalled answer.
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .identity_cache(IdentityCache::lazy().load_timeout(CREDENTIALS_WAIT).build())
            .interceptor(counter.clone());
        builder.set_app_name(AppName::new("slurm-ec2").ok());
        builder.set_endpoint_url(endpoint.map(str::to_owned));
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
