//! The HTTP client behind the SDK: rustls with ring, the host's CA bundle, our own name resolution, the configured proxy.
//!
//! It is built with the first request, not before: a program that is told to do nothing pays nothing. The CA bundle is read
//! only for https. Errors leave with a mark that says whether a connection stood, because only then can EC2 have acted.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};
use aws_smithy_http_client::{Connector, ConnectorBuilder};
use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::connection::CaptureSmithyConnection;
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpClient, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;

use super::hosts::Hosts;
use super::roots;
use crate::config::settings::AwsSettings;

/// Metadata and container credentials live on the link itself; no proxy can reach them for us.
const NEVER_PROXIED: &str = "169.254.169.254,169.254.170.2,fd00:ec2::254";

/// No connection was made: the other side has seen nothing of the request.
#[derive(Debug, thiserror::Error)]
#[error("no connection")]
pub(crate) struct NotSent(#[source] pub(crate) BoxError);

/// A connection stood, and no answer came over it: the request may have arrived.
#[derive(Debug, thiserror::Error)]
#[error("the connection broke before the answer")]
pub(crate) struct Broken(#[source] pub(crate) BoxError);

/// The proxy answered, and lets no connection through to the host that is asked for.
#[derive(Debug, thiserror::Error)]
#[error("the proxy {proxy} refuses the connection")]
pub(crate) struct ProxyRefuses {
    /// Its address without credentials.
    proxy: String,
    source: BoxError,
}

/// What one client may use on its way.
#[derive(Debug, Clone, Default)]
struct Way {
    proxy: Option<String>,
    no_proxy: Vec<String>,
    /// Read the CA bundle: this one, or the host's.
    https: bool,
    ca_bundle: Option<PathBuf>,
}

/// Are endpoint (`key` of `[aws]`) and proxy addresses that can be used at all? Nothing is looked up.
pub(crate) fn check(aws: &AwsSettings, key: &str, endpoint: Option<&str>) -> Result<(), String> {
    match endpoint {
        Some(url) if !url.starts_with("http://") && !url.starts_with("https://") => {
            Err(format!("[aws] {key} {url:?} must begin with http:// or https://"))
        }
        _ => proxy(&way(aws)).map(drop),
    }
}

/// Can the certificate authorities be read by which AWS is to be known? Opens the bundle: the configured one, or the host's where a
/// connection needs it.
pub(crate) fn check_roots(aws: &AwsSettings) -> Result<(), String> {
    let endpoints = [&aws.endpoint_url, &aws.dynamodb_endpoint_url, &aws.route53_endpoint_url];
    let https = |url: &Option<String>| url.as_deref().is_none_or(|url| !url.starts_with("http://"));
    if aws.ca_bundle.is_none() && !endpoints.into_iter().any(https) {
        return Ok(());
    }
    roots::load(aws.ca_bundle.as_deref()).map(drop).map_err(|error| error.to_string())
}

/// The client for a service at `endpoint`, or where the SDK knows it to be.
pub(crate) fn for_service(aws: &AwsSettings, endpoint: Option<&str>, hosts: &Hosts) -> SharedHttpClient {
    let plain = |url: &str| url.starts_with("http://");
    let proxy_is_plain = aws.proxy.as_deref().is_none_or(plain);
    let https = !(endpoint.is_some_and(plain) && proxy_is_plain);
    client(Way { https, ..way(aws) }, hosts)
}

/// The client for STS, where a profile assumes a role: as for a service, always https.
pub(crate) fn for_sts(aws: &AwsSettings, hosts: &Hosts) -> SharedHttpClient {
    client(Way { https: true, ..way(aws) }, hosts)
}

/// The client for instance metadata: plain HTTP, never a proxy.
pub(crate) fn for_metadata(hosts: &Hosts) -> SharedHttpClient {
    client(Way::default(), hosts)
}

fn way(aws: &AwsSettings) -> Way {
    Way { proxy: aws.proxy.clone(), no_proxy: aws.no_proxy.clone(), https: false, ca_bundle: aws.ca_bundle.clone() }
}

fn client(way: Way, hosts: &Hosts) -> SharedHttpClient {
    SharedHttpClient::new(Lazy { way, hosts: hosts.clone(), made: OnceLock::new() })
}

/// One connector with its pool of connections, made when the first request comes. Its settings (the connect timeout) are
/// those of the client's configuration, the same for every request.
#[derive(Debug)]
struct Lazy {
    way: Way,
    hosts: Hosts,
    made: OnceLock<SharedHttpConnector>,
}

impl HttpClient for Lazy {
    fn http_connector(&self, settings: &HttpConnectorSettings, components: &RuntimeComponents) -> SharedHttpConnector {
        let make = || match self.connector(settings, components) {
            Ok(connector) => {
                let proxy = self.way.proxy.as_deref().map(without_credentials);
                SharedHttpConnector::new(Marking { connector, proxy })
            }
            Err(why) => SharedHttpConnector::new(Unusable(why.into())),
        };
        self.made.get_or_init(make).clone()
    }
}

impl Lazy {
    fn connector(&self, settings: &HttpConnectorSettings, components: &RuntimeComponents) -> Result<Connector, String> {
        let trust = if self.way.https {
            let pem = roots::load(self.way.ca_bundle.as_deref()).map_err(|error| error.to_string())?;
            TrustStore::empty().with_pem_certificate(pem)
        } else {
            TrustStore::empty()
        };
        let context = TlsContext::builder().with_trust_store(trust).build().map_err(|error| crate::error::chain(&error))?;
        let mut builder: ConnectorBuilder<_> = Connector::builder()
            .tls_provider(Provider::Rustls(CryptoMode::Ring))
            .tls_context(context)
            .connector_settings(settings.clone());
        builder.set_sleep_impl(components.sleep_impl());
        builder.set_proxy_config(Some(proxy(&self.way)?));
        Ok(builder.build_with_resolver(self.hosts.clone()))
    }
}

fn proxy(way: &Way) -> Result<ProxyConfig, String> {
    let Some(url) = &way.proxy else { return Ok(ProxyConfig::disabled()) };
    let config = ProxyConfig::all(url.as_str())
        .map_err(|error| format!("[aws] proxy is no usable address: {}", crate::error::chain(&error)))?;
    let mut exempt = way.no_proxy.join(",");
    if !exempt.is_empty() {
        exempt.push(',');
    }
    exempt.push_str(NEVER_PROXIED);
    Ok(config.no_proxy(exempt))
}

/// `http://user:password@proxy:3128` → `http://proxy:3128`
fn without_credentials(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let host = rest[..end].rsplit_once('@').map_or(&rest[..end], |(_, host)| host);
    format!("{scheme}://{host}")
}

/// Marks each error with whether a connection stood.
#[derive(Debug)]
struct Marking {
    connector: Connector,
    /// For messages.
    proxy: Option<String>,
}

impl HttpConnector for Marking {
    fn call(&self, mut request: HttpRequest) -> HttpConnectorFuture {
        let seen = match request.extension::<CaptureSmithyConnection>() {
            Some(seen) => seen.clone(),
            None => {
                let seen = CaptureSmithyConnection::new();
                request.add_extension(seen.clone());
                seen
            }
        };
        let answer = self.connector.call(request);
        let proxy = self.proxy.clone();
        HttpConnectorFuture::new(async move {
            answer.await.map_err(|error| {
                let connected = seen.get().is_some();
                mark(error, connected, proxy)
            })
        })
    }
}

/// The same kind of error, so that the SDK repeats what it would have repeated, with the mark around its source. A failure
/// before the connection stood counts as input/output: repeating it is always safe.
fn mark(error: ConnectorError, connected: bool, proxy: Option<String>) -> ConnectorError {
    let (timeout, user) = (error.is_timeout(), error.is_user());
    let mut source = error.into_source();
    // hyper-util's words for an answer to CONNECT that is no 200; it keeps the status to itself.
    if let Some(proxy) = proxy
        && ["tunnel error: unsuccessful", "tunnel error: proxy authorization required"]
            .iter()
            .any(|words| crate::error::chain(&*source).contains(words))
    {
        source = Box::new(ProxyRefuses { proxy, source });
    }
    let marked: BoxError = if connected { Box::new(Broken(source)) } else { Box::new(NotSent(source)) };
    match (timeout, user) {
        (true, _) => ConnectorError::timeout(marked),
        (_, true) => ConnectorError::user(marked),
        _ => ConnectorError::io(marked),
    }
}

/// Stands in for a connector that could not be made.
#[derive(Debug)]
struct Unusable(Arc<str>);

impl HttpConnector for Unusable {
    fn call(&self, _: HttpRequest) -> HttpConnectorFuture {
        HttpConnectorFuture::ready(Err(ConnectorError::user(BoxError::from(&*self.0))))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn p05_a_proxys_credentials_are_left_out() {
        for (url, expected) in [
            ("http://user:p@ss@proxy:3128/", "http://proxy:3128"),
            ("https://proxy", "https://proxy"),
            ("http://[2001:db8::1]:3128/a@b", "http://[2001:db8::1]:3128"),
        ] {
            assert_eq!(without_credentials(url), expected);
        }
    }

    #[test]
    fn an_unusable_proxy_is_named() {
        let way = Way { proxy: Some("http://[oops".into()), ..Way::default() };
        assert!(proxy(&way).unwrap_err().contains("[aws] proxy"));
        assert!(proxy(&Way::default()).unwrap().is_disabled());
    }
}
