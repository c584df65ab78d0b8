//! Is a string what it should be? A name, an id, a URL in; nothing or (what is wrong with it, what to write) out. The first part
//! is put behind the key.

use super::combinations::ALLOCATION_STRATEGIES;
use super::words::{choices, nearest};

/// What is wrong, and what to write instead.
pub(super) type Complaint = (String, String);

/// Names that go into tags, tag filters, reasons and file names: no blank, no wildcard, no slash.
pub(super) fn check_name(text: &str, most: usize) -> Result<(), Complaint> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if let Some(bad) = text.chars().find(|c| !allowed(*c)) {
        return Err((format!("{text:?} holds {bad:?}"), "write letters, digits, '.', '_' and '-' only".to_owned()));
    }
    if !text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err((format!("{text:?} does not begin with a letter or digit"), "begin with a letter or digit".to_owned()));
    }
    if text.len() > most {
        return Err((format!("has {} characters", text.len()), format!("write at most {most}")));
    }
    Ok(())
}

/// The name of a group; one that is a ParallelCluster compute resource may be called `queue/resource`.
pub(super) fn check_group(text: &str, is_queue: bool) -> Result<(), Complaint> {
    match text.split_once('/') {
        Some((queue, resource)) if is_queue && text.len() <= 100 => {
            check_name(queue, 100)?;
            check_name(resource, 100)
        }
        _ => check_name(text, 100),
    }
}

pub(super) fn check_type(text: &str) -> Result<(), Complaint> {
    let part = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    match text.split_once('.') {
        Some((family, size)) if part(family) && part(size) => Ok(()),
        _ => Err(("is no instance type".to_owned(), "write a family and a size in lower case, such as \"c5.large\"".to_owned())),
    }
}

pub(super) fn check_subnet(text: &str) -> Result<(), Complaint> {
    match text.strip_prefix("subnet-") {
        Some(id) if !id.is_empty() && id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()) => Ok(()),
        _ => Err(("is no subnet id".to_owned(), "write an id such as \"subnet-0123456789abcdef0\"".to_owned())),
    }
}

pub(super) fn check_reservation(text: &str) -> Result<(), Complaint> {
    match text.strip_prefix("cr-") {
        Some(id) if !id.is_empty() && id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()) => Ok(()),
        _ => Err(("is no capacity reservation's id".to_owned(), "write an id such as \"cr-0123456789abcdef0\"".to_owned())),
    }
}

pub(super) fn check_allocation(text: &str) -> Result<(), Complaint> {
    if ALLOCATION_STRATEGIES.contains(&text) {
        return Ok(());
    }
    let help = match nearest(text, ALLOCATION_STRATEGIES) {
        Some(near) => format!("write {near:?}"),
        None => format!("write {}", choices(ALLOCATION_STRATEGIES)),
    };
    Err((format!("is {text:?}, which EC2 does not know"), help))
}

pub(super) fn is_template_id(text: &str) -> bool {
    text.strip_prefix("lt-")
        .is_some_and(|id| id.len() >= 8 && id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)))
}

/// 3 to 128 letters, digits and `( ) . - / _` (EC2 API, CreateLaunchTemplate).
pub(super) fn check_template_name(text: &str) -> Result<(), Complaint> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "()./_-".contains(c);
    if (3..=128).contains(&text.len()) && text.chars().all(allowed) {
        return Ok(());
    }
    Err(("cannot be a launch template's name".to_owned(), "write 3 to 128 letters, digits and ( ) . - / _".to_owned()))
}

/// Any region, also one that is younger than this program (P06); a zone is a likely slip.
pub(super) fn check_region(text: &str) -> Result<(), Complaint> {
    if !text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
        return Err((
            format!("{text:?} is no region"),
            "write lower case letters, digits and -, such as \"eu-west-1\"".to_owned(),
        ));
    }
    let zone = text.strip_suffix(|c: char| c.is_ascii_lowercase()).filter(|rest| rest.ends_with(|c: char| c.is_ascii_digit()));
    match zone {
        Some(region) if text.contains('-') => {
            Err((format!("{text:?} is an availability zone"), format!("write its region, {region:?}")))
        }
        _ => Ok(()),
    }
}

/// `http://` or `https://`, a host, perhaps a port; the rest is free.
pub(super) fn check_url(text: &str) -> Result<(), Complaint> {
    let Some(rest) = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")) else {
        let help = match text.split_once("://") {
            Some((_, rest)) => format!("write http://{rest} or https://{rest}"),
            None => format!("write http://{text} or https://{text}"),
        };
        return Err(("does not begin with http:// or https://".to_owned(), help));
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host_port = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (host, port) = match host_port.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, "")) => (address, None),
        Some((address, port)) => (address, port.strip_prefix(':').or(Some(""))),
        None => host_port.split_once(':').map_or((host_port, None), |(host, port)| (host, Some(port))),
    };
    let is_host = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%'));
    if !is_host || text.contains(char::is_whitespace) {
        return Err(("has no valid host name".to_owned(), "write something like https://host.example.com:8443".to_owned()));
    }
    match port.map(str::parse::<u16>) {
        Some(Err(_) | Ok(0)) => Err(("has no valid port".to_owned(), "write a port from 1 to 65535".to_owned())),
        _ => Ok(()),
    }
}

pub(super) fn check_no_proxy(text: &str) -> Result<(), Complaint> {
    if text.contains([',', ' ', '/']) && !text.contains("://") {
        // 10.0.0.0/8 is a network and fine.
        let network = text.split_once('/').is_some_and(|(_, bits)| bits.parse::<u8>().is_ok());
        if !network {
            return Err(("is no host".to_owned(), "give each host, domain or network a string of its own".to_owned()));
        }
    }
    if text.contains("://") {
        return Err(("is a URL".to_owned(), "write the host alone".to_owned()));
    }
    Ok(())
}

/// A queue or compute resource of ParallelCluster: part of a node's name.
pub(super) fn check_queue(text: &str) -> Result<(), Complaint> {
    if text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
        return Ok(());
    }
    Err((format!("{text:?} is no part of a node's name"), "write lower case letters, digits and '-' only".to_owned()))
}

/// A DynamoDB table (DynamoDB API, CreateTable).
pub(super) fn check_table(text: &str) -> Result<(), Complaint> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if (3..=255).contains(&text.len()) && text.bytes().all(allowed) {
        return Ok(());
    }
    Err((format!("{text:?} cannot be a table's name"), "write 3 to 255 letters, digits, '.', '_' and '-'".to_owned()))
}

/// The id of a hosted zone (Route 53 API).
pub(super) fn check_zone(text: &str) -> Result<(), Complaint> {
    if text.len() <= 32 && text.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit()) {
        return Ok(());
    }
    let help = match text.strip_prefix("/hostedzone/") {
        Some(id) => format!("write {id:?}"),
        None => "write the zone's id, such as \"Z0123456789ABCDEFGHIJ\"".to_owned(),
    };
    Err((format!("{text:?} is no zone id"), help))
}

/// A domain with or without the dot at its end; a node's name and a dot go before it.
pub(super) fn check_domain(text: &str) -> Result<(), Complaint> {
    let label = |label: &str| {
        (1..=63).contains(&label.len()) && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    if text.len() <= 255 && text.strip_suffix('.').unwrap_or(text).split('.').all(label) {
        return Ok(());
    }
    Err((format!("{text:?} is no domain"), "write something like \"hpc.pcluster.\"".to_owned()))
}

pub(super) fn check_ip(text: &str) -> Result<(), Complaint> {
    match text.parse::<std::net::IpAddr>() {
        Ok(_) => Ok(()),
        Err(_) => Err((format!("{text:?} is no IP address"), "write something like \"10.0.0.10\"".to_owned())),
    }
}

pub(super) fn check_host(text: &str) -> Result<(), Complaint> {
    check_domain(text)
        .map_err(|_| (format!("{text:?} is no host name"), "write something like \"ip-10-0-0-10.ec2.internal\"".to_owned()))
}

pub(super) fn check_instance_id(text: &str) -> Result<(), Complaint> {
    let is_id = |id: &str| !id.is_empty() && id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    if text == "unknown" || text.strip_prefix("i-").is_some_and(is_id) {
        return Ok(());
    }
    Err((format!("{text:?} is no instance id"), "write the head node's own id, i- and its digits".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_names_and_types() {
        assert!(is_template_id("lt-0123456789abcdef0") && !is_template_id("lt-mine") && !is_template_id("lt-"));
        for good in ["c5.large", "u-6tb1.112xlarge", "c7gn.metal-48xl"] {
            assert!(check_type(good).is_ok(), "{good}");
        }
        for bad in ["c5", "C5.large", "c5.", ".large", "c5.large, c5.xlarge"] {
            assert!(check_type(bad).is_err(), "{bad}");
        }
        assert!(check_subnet("subnet-0a1b").is_ok() && check_subnet("eu-west-1a").is_err() && check_subnet("subnet-").is_err());
        for (name, good) in
            [("c5", true), ("gpu_2.a-b", true), ("", false), ("-a", false), ("a*", false), ("a/b", false), ("é", false)]
        {
            assert_eq!(check_name(name, 100).is_ok(), good, "{name}");
        }
    }

    #[test]
    fn p06_any_region_but_no_zone() {
        for good in ["eu-west-1", "cn-north-1", "us-gov-west-1", "us-iso-east-1", "eusc-de-east-1", "xx-new-9"] {
            assert!(check_region(good).is_ok(), "{good}");
        }
        for bad in ["eu-west-1a", "EU-WEST-1", "eu west", "eu-west-1*"] {
            assert!(check_region(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn urls() {
        for good in ["http://127.0.0.1:5000", "https://ec2.example.com", "http://me:s3cret@proxy:3128/", "http://[::1]:80/x"] {
            assert!(check_url(good).is_ok(), "{good}");
        }
        for bad in [
            "proxy:3128",
            "socks5://proxy:1080",
            "http://",
            "http://:80",
            "http://host:",
            "http://host:99999",
            "http://a b",
            "http://[::1]80",
        ] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn hosts_without_a_proxy() {
        for good in ["example.com", ".example.com", "10.0.0.0/8", "*", "::1"] {
            assert!(check_no_proxy(good).is_ok(), "{good}");
        }
        for bad in ["a,b", "http://a", "a/b"] {
            assert!(check_no_proxy(bad).is_err(), "{bad}");
        }
    }
}
