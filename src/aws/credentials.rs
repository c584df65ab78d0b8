//! Who we are to AWS: the configured profile, else the environment, else the instance's role. Asked with the first call.
//!
//! Started by slurmctld a program has no HOME and no AWS variables, so `~/.aws` is never looked for unless a profile is
//! configured; a configured profile that does not work is an error and not a reason to try somewhere else.

use std::sync::Arc;

use aws_config::environment::EnvironmentVariableCredentialsProvider;
use aws_config::imds::credentials::ImdsCredentialsProvider;
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{self, ProvideCredentials, SharedCredentialsProvider, future};
use aws_sdk_ec2::config::{BehaviorVersion, Region};
use aws_smithy_async::rt::sleep::TokioSleep;
use tokio::sync::OnceCell;

use super::hosts::Hosts;
use super::http;
use crate::config::settings::AwsSettings;

/// Made in full only when a request has to be signed.
#[derive(Debug)]
pub(crate) struct LazyCredentials {
    aws: Arc<AwsSettings>,
    region: Region,
    hosts: Hosts,
    made: OnceCell<Source>,
}

#[derive(Debug)]
enum Source {
    Profile(Box<ProfileFileCredentialsProvider>),
    Environment(EnvironmentVariableCredentialsProvider),
    Metadata(Box<ImdsCredentialsProvider>),
}

impl LazyCredentials {
    pub(crate) fn shared(aws: Arc<AwsSettings>, region: Region, hosts: Hosts) -> SharedCredentialsProvider {
        SharedCredentialsProvider::new(Self { aws, region, hosts, made: OnceCell::new() })
    }

    async fn load(&self) -> provider::Result {
        match self.made.get_or_init(|| self.source()).await {
            Source::Profile(provider) => provider.provide_credentials().await,
            Source::Environment(provider) => provider.provide_credentials().await,
            Source::Metadata(provider) => provider.provide_credentials().await.map_err(|error| match error {
                CredentialsError::CredentialsNotLoaded(_) => CredentialsError::not_loaded(NothingFound(Box::new(error))),
                error => error,
            }),
        }
    }

    async fn source(&self) -> Source {
        if self.aws.profile.is_some() || self.aws.config_file.is_some() || self.aws.credentials_file.is_some() {
            return Source::Profile(Box::new(self.profile()));
        }
        let environment = EnvironmentVariableCredentialsProvider::new();
        match environment.provide_credentials().await {
            // Half a pair of variables is a mistake to be shown, not a reason to become somebody else.
            Err(CredentialsError::CredentialsNotLoaded(_)) => Source::Metadata(Box::new(self.metadata())),
            _ => Source::Environment(environment),
        }
    }

    fn metadata(&self) -> ImdsCredentialsProvider {
        let config = provider_config(&self.region).with_http_client(http::for_metadata(&self.hosts));
        ImdsCredentialsProvider::builder().configure(&config).build()
    }

    #[expect(deprecated, reason = "aws-config's own builder takes this alias; its new home is a crate of internals")]
    fn profile(&self) -> ProfileFileCredentialsProvider {
        use aws_config::profile::profile_file::{ProfileFileKind, ProfileFiles};

        let (config, credentials) = (&self.aws.config_file, &self.aws.credentials_file);
        // A file that is not configured is looked for at its usual place only where neither is.
        let neither = config.is_none() && credentials.is_none();
        let mut files = ProfileFiles::builder().include_default_config_file(neither).include_default_credentials_file(neither);
        if let Some(path) = config {
            files = files.with_file(ProfileFileKind::Config, path);
        }
        if let Some(path) = credentials {
            files = files.with_file(ProfileFileKind::Credentials, path);
        }
        let provider = provider_config(&self.region).with_http_client(http::for_sts(&self.aws, &self.hosts));
        let mut builder = ProfileFileCredentialsProvider::builder()
            .configure(&provider)
            .with_custom_provider("Ec2InstanceMetadata", self.metadata())
            .profile_files(files.build());
        if let Some(profile) = &self.aws.profile {
            builder = builder.profile_name(profile);
        }
        builder.build()
    }
}

fn provider_config(region: &Region) -> ProviderConfig {
    ProviderConfig::empty()
        .with_region(Some(region.clone()))
        .with_sleep_impl(TokioSleep::new())
        .with_behavior_version(Some(BehaviorVersion::latest()))
}

/// Says where was looked, above what the last place answered.
#[derive(Debug, thiserror::Error)]
#[error("none configured in [aws], none in the environment, and no instance role")]
struct NothingFound(#[source] Box<CredentialsError>);

impl ProvideCredentials for LazyCredentials {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.load())
    }

    fn fallback_on_interrupt(&self) -> Option<Credentials> {
        match self.made.get()? {
            Source::Metadata(provider) => provider.fallback_on_interrupt(),
            Source::Profile(_) | Source::Environment(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::aws::responder::{Reply, Responder, settings};

    fn credentials(aws: AwsSettings) -> LazyCredentials {
        let hosts = Hosts::from_files(Path::new("/nowhere"), Path::new("/nowhere"));
        LazyCredentials { aws: Arc::new(aws), region: Region::new("eu-west-1"), hosts, made: OnceCell::new() }
    }

    #[tokio::test]
    async fn the_configured_files_count_and_home_does_not() {
        let found = credentials(settings()).provide_credentials().await.unwrap();
        assert_eq!(found.access_key_id(), "test");

        let mut aws = settings();
        aws.credentials_file = Some("/nowhere/credentials".into());
        assert!(credentials(aws).provide_credentials().await.is_err());
    }

    #[tokio::test]
    async fn metadata_is_asked_with_a_token_and_without_the_proxy() {
        let server = Responder::new(|asked| match asked.line.split_whitespace().nth(1).unwrap_or_default() {
            "/latest/api/token" => Reply::Token("token-1".into()),
            "/latest/meta-data/iam/security-credentials/" => Reply::Text(200, "head-node".into()),
            "/latest/meta-data/iam/security-credentials/head-node" => Reply::Text(
                200,
                r#"{"Code":"Success","Type":"AWS-HMAC","AccessKeyId":"AKID","SecretAccessKey":"S","Token":"T",
                    "Expiration":"2099-01-01T00:00:00Z","LastUpdated":"2026-11-29T12:00:00Z"}"#
                    .into(),
            ),
            other => panic!("{other}"),
        })
        .await;
        let mut aws = settings();
        aws.proxy = Some("http://127.0.0.1:1".into());
        let maker = credentials(aws);
        let config = provider_config(&maker.region).with_http_client(http::for_metadata(&maker.hosts));
        let client = aws_config::imds::Client::builder().configure(&config).endpoint(&server.url).unwrap();
        // Its own limits are a second each, which a machine at work may stand still for.
        let long = Duration::from_secs(60);
        let client =
            client.connect_timeout(long).read_timeout(long).operation_attempt_timeout(long).operation_timeout(long).build();
        let provider = ImdsCredentialsProvider::builder().configure(&config).imds_client(client).build();
        assert_eq!(provider.provide_credentials().await.unwrap().access_key_id(), "AKID");
        let lines: Vec<String> = server.asked().into_iter().map(|asked| asked.line).collect();
        assert!(lines[0].starts_with("PUT /latest/api/token"), "{lines:?}");
        assert_eq!(lines.len(), 3, "{lines:?}");
    }
}
