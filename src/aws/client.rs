//! What the clients of all services have in common: settings in, the SDK's shared configuration out. Retries and interceptors beyond
//! it are each service's own.

use std::sync::Arc;
use std::time::Duration;

use aws_config::identity::IdentityCache;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::{AppName, BehaviorVersion, Region, SdkConfig};
use aws_smithy_async::rt::sleep::TokioSleep;
use aws_smithy_types::retry::RetryConfig;
use aws_smithy_types::timeout::TimeoutConfig;

use super::credentials::LazyCredentials;
use super::hosts::Hosts;
use super::http;
use crate::config::settings::AwsSettings;

/// The most that credentials may take: instance metadata answers in milliseconds, and has its own tries of a second.
const CREDENTIALS_WAIT: Duration = Duration::from_secs(15);

/// Nothing is sent, read or resolved by this: credentials, CA bundle and name servers wait for the first call.
pub(crate) fn shared(aws: &AwsSettings, region: &str, endpoint: Option<&str>) -> SdkConfig {
    let region = Region::new(region.to_owned());
    let hosts = Hosts::system();
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(aws.connect_timeout)
        .operation_attempt_timeout(aws.attempt_timeout)
        .operation_timeout(aws.operation_timeout)
        .build();
    let mut builder = SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(region.clone())
        .credentials_provider(LazyCredentials::shared(Arc::new(aws.clone()), region, hosts.clone()))
        .http_client(http::for_service(aws, endpoint, &hosts))
        .sleep_impl(TokioSleep::new())
        .retry_config(retries(aws))
        .timeout_config(timeouts)
        // The timeout of a try covers a stalled answer.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .identity_cache(IdentityCache::lazy().load_timeout(CREDENTIALS_WAIT).build());
    builder.set_app_name(AppName::new("slurm-ec2").ok());
    builder.set_endpoint_url(endpoint.map(str::to_owned));
    builder.build()
}

/// The tries that the SDK makes by itself.
pub(crate) fn retries(aws: &AwsSettings) -> RetryConfig {
    RetryConfig::standard().with_max_attempts(aws.attempts.max(1))
}
