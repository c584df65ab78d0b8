//! Host name in, addresses out, without the C library: a static binary cannot load the host's NSS modules.
//!
//! Addresses written as such need no look-up; then /etc/hosts; then the name servers of /etc/resolv.conf. Nothing is read
//! before a name has to be resolved, so that start-up stays free of it.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_smithy_runtime_api::client::dns::{DnsFuture, ResolveDns, ResolveDnsError};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ResolveHosts, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::system_conf::parse_resolv_conf;
use tokio::sync::OnceCell;

/// Shared by all connections of a program.
#[derive(Clone)]
pub(crate) struct Hosts(Arc<Inner>);

struct Inner {
    hosts: PathBuf,
    resolv_conf: PathBuf,
    resolver: OnceCell<TokioResolver>,
}

/// A name that has no address. Names the file or servers asked.
#[derive(Debug, thiserror::Error)]
#[error("cannot resolve host name {name}: {why}")]
struct Unresolved {
    name: String,
    why: String,
}

impl Hosts {
    pub(crate) fn system() -> Self {
        Self::from_files(Path::new("/etc/hosts"), Path::new("/etc/resolv.conf"))
    }

    pub(crate) fn from_files(hosts: &Path, resolv_conf: &Path) -> Self {
        Self(Arc::new(Inner { hosts: hosts.into(), resolv_conf: resolv_conf.into(), resolver: OnceCell::new() }))
    }

    /// IPv4 addresses first, as listed otherwise; at least one.
    async fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, String> {
        if let Ok(address) = name.trim_start_matches('[').trim_end_matches(']').parse() {
            return Ok(vec![address]);
        }
        // A missing or unreadable /etc/hosts is no reason not to ask the name servers.
        if let Ok(bytes) = fs::read(&self.0.hosts) {
            let found = in_hosts_file(&String::from_utf8_lossy(&bytes), name);
            if !found.is_empty() {
                return Ok(found);
            }
        }
        let resolver = self.0.resolver.get_or_try_init(|| async { self.resolver() }).await?;
        let found = resolver
            .lookup_ip(name)
            .await
            .map_err(|error| format!("{} (name servers of {})", crate::error::chain(&error), self.0.resolv_conf.display()))?;
        let mut found: Vec<IpAddr> = found.iter().collect();
        found.sort_by_key(IpAddr::is_ipv6);
        if found.is_empty() { Err("no address".into()) } else { Ok(found) }
    }

    fn resolver(&self) -> Result<TokioResolver, String> {
        let path = self.0.resolv_conf.display();
        let text = fs::read(&self.0.resolv_conf).map_err(|error| format!("cannot read {path}: {error}"))?;
        let (config, mut options): (ResolverConfig, _) =
            parse_resolv_conf(text).map_err(|error| format!("cannot use {path}: {}", crate::error::chain(&error)))?;
        // Already looked at, above.
        options.use_hosts_file = ResolveHosts::Never;
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        builder.build().map_err(|error| format!("cannot use {path}: {}", crate::error::chain(&error)))
    }
}

impl std::fmt::Debug for Hosts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hosts").field("hosts", &self.0.hosts).field("resolv_conf", &self.0.resolv_conf).finish()
    }
}

impl ResolveDns for Hosts {
    fn resolve_dns<'a>(&'a self, name: &'a str) -> DnsFuture<'a> {
        DnsFuture::new(async move {
            self.addresses(name).await.map_err(|why| ResolveDnsError::new(Unresolved { name: name.to_owned(), why }))
        })
    }
}

/// hosts(5): address, names, comments after `#`; names in any case. A scoped address (`fe80::1%eth0`) is passed over.
fn in_hosts_file(text: &str, name: &str) -> Vec<IpAddr> {
    let name = name.trim_end_matches('.');
    let mut found: Vec<IpAddr> = Vec::new();
    for line in text.lines() {
        let mut fields = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(address) = fields.next().and_then(|field| field.parse().ok()) else { continue };
        if fields.any(|field| field.trim_end_matches('.').eq_ignore_ascii_case(name)) && !found.contains(&address) {
            found.push(address);
        }
    }
    found.sort_by_key(IpAddr::is_ipv6);
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::Ipv4Addr;

    use super::*;

    const HOSTS: &str =
        "127.0.0.1 localhost # loopback\n::1 localhost\n\n#10.0.0.1 off\n10.1.2.3\tec2.Example.com ec2\nnonsense here\n";

    #[test]
    fn the_hosts_file_as_hosts_5_says() {
        assert_eq!(in_hosts_file(HOSTS, "EC2.example.COM."), ["10.1.2.3".parse::<IpAddr>().unwrap()]);
        assert_eq!(in_hosts_file(HOSTS, "localhost").len(), 2);
        assert!(in_hosts_file(HOSTS, "localhost")[0].is_ipv4());
        assert!(in_hosts_file(HOSTS, "off").is_empty() && in_hosts_file(HOSTS, "here").is_empty());
    }

    #[tokio::test]
    async fn literals_and_the_hosts_file_need_no_name_server() {
        let dir = tempfile::tempdir().unwrap();
        let hosts = dir.path().join("hosts");
        std::fs::File::create(&hosts).and_then(|mut file| std::io::Write::write_all(&mut file, HOSTS.as_bytes())).unwrap();
        let resolver = Hosts::from_files(&hosts, &dir.path().join("absent"));
        assert_eq!(resolver.addresses("127.0.0.9").await.unwrap(), [IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9))]);
        assert!(resolver.addresses("::1").await.unwrap()[0].is_ipv6());
        assert_eq!(resolver.addresses("ec2").await.unwrap(), ["10.1.2.3".parse::<IpAddr>().unwrap()]);
        assert!(resolver.0.resolver.get().is_none());
        let error = resolver.resolve_dns("nowhere.example").await.unwrap_err();
        let text = crate::error::chain(&error);
        assert!(text.contains("nowhere.example") && text.contains("absent"), "{text}");
    }
}
