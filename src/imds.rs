//! Instance metadata: paths in, what EC2 says about this very instance out. IMDSv2 alone: no request ever goes out without a token (W06),
//! and none through a proxy.
//!
//! Tries of its own are few and short, since whoever asks asks again: server errors are repeated by the SDK's client, a connection that
//! does not stand is not. Never decides anything.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aws_config::BehaviorVersion;
use aws_config::imds::Client;
use aws_config::imds::client::error::ImdsError;
use aws_config::provider_config::ProviderConfig;
use aws_smithy_async::rt::sleep::TokioSleep;
use serde::Deserialize;

use crate::aws::hosts::Hosts;
use crate::aws::http;
use crate::clock::limit;
use crate::error::chain;
use crate::model::time::Timestamp;

/// Where EC2 has it, on every instance.
const ENDPOINT: &str = "http://169.254.169.254";

/// It is on the link itself and answers in a millisecond; early in the boot it may not be there yet.
const CONNECT_LIMIT: Duration = limit(1);
const READ_LIMIT: Duration = limit(2);
/// Tries after a server's error, the first included.
const TRIES: u32 = 3;
/// One question with its token and all tries.
const LIMIT: Duration = limit(10);

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{endpoint:?} is no address of a metadata service: {why}")]
    Endpoint { endpoint: String, why: String },
    /// No connection, no token, no answer in time: not on EC2, switched off, or too early in the boot.
    #[error("instance metadata at {endpoint} does not answer: {why}")]
    Silent { endpoint: String, why: String },
    #[error("instance metadata at {endpoint} answered {path} with status {status}")]
    Status { endpoint: String, path: String, status: u16 },
    #[error("instance metadata at {endpoint} answered {path} with what cannot be read: {why}")]
    Unreadable { endpoint: String, path: String, why: String },
}

/// The instance is to be taken away (`spot/instance-action`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SpotNotice {
    /// `terminate`, `stop` or `hibernate`.
    pub(crate) action: String,
    /// When, as EC2 wrote it.
    pub(crate) time: String,
}

impl SpotNotice {
    /// When, if it is a time.
    pub(crate) fn at(&self) -> Option<Timestamp> {
        self.time.parse().ok()
    }
}

/// The door to this instance's metadata.
#[derive(Debug)]
pub(crate) struct Metadata {
    endpoint: String,
    /// Holds the session token; made anew when that is not taken any more.
    client: Mutex<Client>,
}

impl Metadata {
    /// At `endpoint`, else at EC2's own address. Nothing is sent yet.
    pub(crate) fn new(endpoint: Option<&str>) -> Result<Self, Error> {
        let endpoint = endpoint.unwrap_or(ENDPOINT).to_owned();
        let client = Mutex::new(client(&endpoint)?);
        Ok(Self { endpoint, client })
    }

    /// What is at `path`, behind `/latest/meta-data/`; `None` where there is nothing.
    pub(crate) async fn get(&self, path: &str) -> Result<Option<String>, Error> {
        let client = self.client.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match client.get(format!("/latest/meta-data/{path}")).await {
            Ok(text) => Ok(Some(text.as_ref().to_owned())),
            Err(error) => self.failed(path, &error).map_or(Ok(None), Err),
        }
    }

    /// The error to tell; `None` where there simply is nothing.
    fn failed(&self, path: &str, error: &ImdsError) -> Option<Error> {
        let endpoint = self.endpoint.clone();
        let ImdsError::ErrorResponse(answer) = error else {
            return Some(Error::Silent { endpoint, why: chain(error) });
        };
        let status = answer.response().status().as_u16();
        if status == 404 {
            return None;
        }
        // A token that is not taken: the client would keep it until the clock says that it is over, and the clock may have jumped.
        if status == 401
            && let Ok(fresh) = client(&self.endpoint)
        {
            *self.client.lock().unwrap_or_else(PoisonError::into_inner) = fresh;
        }
        Some(Error::Status { endpoint, path: path.to_owned(), status })
    }

    /// The notice that a spot instance gets two minutes before its end.
    pub(crate) async fn spot_notice(&self) -> Result<Option<SpotNotice>, Error> {
        #[derive(Deserialize)]
        struct Notice {
            action: String,
            #[serde(default)]
            time: String,
        }
        let found: Option<Notice> = self.json("spot/instance-action").await?;
        Ok(found.map(|Notice { action, time }| SpotNotice { action, time }))
    }

    /// When EC2 recommended to move away, if it did.
    pub(crate) async fn rebalance_notice(&self) -> Result<Option<String>, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Notice {
            notice_time: String,
        }
        let found: Option<Notice> = self.json("events/recommendations/rebalance").await?;
        Ok(found.map(|notice| notice.notice_time))
    }

    async fn json<T: for<'de> Deserialize<'de>>(&self, path: &str) -> Result<Option<T>, Error> {
        let Some(text) = self.get(path).await? else { return Ok(None) };
        let read = serde_json::from_str(&text).map(Some);
        read.map_err(|error| Error::Unreadable { endpoint: self.endpoint.clone(), path: path.to_owned(), why: error.to_string() })
    }

    /// A tag of this instance, if the instance shows its tags here (`InstanceMetadataTags`) and has it.
    pub(crate) async fn tag(&self, key: &str) -> Result<Option<String>, Error> {
        self.get(&format!("tags/instance/{key}")).await
    }
}

fn client(endpoint: &str) -> Result<Client, Error> {
    let bad = |why: String| Error::Endpoint { endpoint: endpoint.to_owned(), why };
    let config = ProviderConfig::empty()
        .with_sleep_impl(TokioSleep::new())
        .with_behavior_version(Some(BehaviorVersion::latest()))
        .with_http_client(http::for_metadata(&Hosts::system()));
    let builder = Client::builder().configure(&config).endpoint(endpoint).map_err(|error| bad(chain(&*error)))?;
    let client =
        builder.max_attempts(TRIES).connect_timeout(CONNECT_LIMIT).read_timeout(READ_LIMIT).operation_timeout(LIMIT).build();
    Ok(client)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use slurm_ec2_testkit::imds::{Endpoint, Fault};

    use super::*;

    fn metadata(imds: &Endpoint) -> Metadata {
        Metadata::new(Some(&imds.url())).unwrap()
    }

    /// B124.
    #[tokio::test]
    async fn w06_a_token_that_fails_early_is_asked_for_again_and_nothing_without_one() {
        let imds = Endpoint::start();
        imds.fail_tokens([Fault::Status(503), Fault::Status(500)]);
        let metadata = metadata(&imds);
        assert_eq!(metadata.get("instance-id").await.unwrap().as_deref(), Some("i-0ec20000000000001"));
        // One connection that breaks is one answer less, and the next question is answered.
        imds.expire_tokens();
        imds.fail([Fault::Drop]);
        assert!(matches!(metadata.get("instance-id").await, Err(Error::Silent { .. })));
        assert_eq!(imds.without_token(), 0);
        let methods: Vec<String> = imds.requests().into_iter().map(|request| request.method).collect();
        assert_eq!(methods, ["PUT", "PUT", "PUT", "GET", "GET"], "one token for all questions");
    }

    #[tokio::test]
    async fn w06_a_service_that_gives_no_token_is_asked_nothing_else() {
        let imds = Endpoint::start();
        imds.fail_tokens([Fault::Status(403), Fault::Drop, Fault::Status(404)]);
        let metadata = metadata(&imds);
        for _ in 0..3 {
            assert!(matches!(metadata.get("instance-id").await, Err(Error::Silent { .. })));
        }
        assert!(imds.requests().iter().all(|request| request.method == "PUT"));
    }

    #[tokio::test]
    async fn w06_a_token_that_is_not_taken_any_more_is_replaced() {
        let imds = Endpoint::start();
        let metadata = metadata(&imds);
        assert!(metadata.get("instance-id").await.unwrap().is_some());
        imds.expire_tokens();
        assert!(matches!(metadata.get("instance-id").await, Err(Error::Status { status: 401, .. })));
        assert!(metadata.get("instance-id").await.unwrap().is_some());
    }

    #[tokio::test]
    async fn what_is_not_there_is_no_error() {
        let imds = Endpoint::start();
        let metadata = metadata(&imds);
        assert_eq!(metadata.spot_notice().await.unwrap(), None);
        assert_eq!(metadata.rebalance_notice().await.unwrap(), None);
        assert_eq!(metadata.tag("slurm-ec2:node").await.unwrap(), None);
        imds.set("tags/instance/slurm-ec2:node", "c5-1");
        assert_eq!(metadata.tag("slurm-ec2:node").await.unwrap().as_deref(), Some("c5-1"));
    }

    #[tokio::test]
    async fn w07_notices_as_ec2_writes_them() {
        let imds = Endpoint::start();
        let metadata = metadata(&imds);
        imds.set("spot/instance-action", r#"{"action": "terminate", "time": "2026-11-29T12:02:00Z"}"#);
        imds.set("events/recommendations/rebalance", r#"{"noticeTime": "2026-11-29T12:00:00Z"}"#);
        let notice = metadata.spot_notice().await.unwrap().unwrap();
        assert_eq!((notice.action.as_str(), notice.at()), ("terminate", "2026-11-29T12:02:00Z".parse().ok()));
        assert_eq!(metadata.rebalance_notice().await.unwrap().as_deref(), Some("2026-11-29T12:00:00Z"));
        // A hibernation begins at once; the time may be left out.
        imds.set("spot/instance-action", r#"{"action":"hibernate"}"#);
        assert_eq!(metadata.spot_notice().await.unwrap().unwrap().at(), None);
        imds.set("spot/instance-action", "<html>");
        assert!(matches!(metadata.spot_notice().await, Err(Error::Unreadable { .. })));
    }

    #[tokio::test]
    async fn not_on_ec2_is_said_soon_and_with_the_address() {
        let error = Metadata::new(Some("http://127.0.0.1:1")).unwrap().get("instance-id").await.unwrap_err().to_string();
        assert!(error.contains("http://127.0.0.1:1 does not answer"), "{error}");
        assert!(Metadata::new(Some("http://[oops")).is_err());
    }
}
