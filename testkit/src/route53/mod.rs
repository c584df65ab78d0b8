//! Route 53, as far as records of nodes go: ChangeResourceRecordSets with UPSERTs of A records, in its own XML.
//!
//! A change is carried out as a whole or not at all. Nothing is ever pending for long, and nothing resolves these names.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hyper::http::request::Parts;

use crate::ec2::{Rule, escape};
use crate::host::{Answer, Asked, Host, Request, Service};

const XMLNS: &str = "xmlns=\"https://route53.amazonaws.com/doc/2013-04-01/\"";

/// Changes in one call; an UPSERT counts twice.
const MOST_UPSERTS: usize = 500;

/// A hosted zone.
#[derive(Clone, Debug)]
pub struct Zone {
    pub id: String,
    /// With the last dot.
    pub domain: String,
}

impl Zone {
    pub fn new(id: &str, domain: &str) -> Self {
        Zone { id: id.to_owned(), domain: domain.to_owned() }
    }
}

/// What the endpoint does well or badly.
#[derive(Clone, Debug)]
pub struct Behaviour {
    pub zones: Vec<Zone>,
    /// Complete names, with the last dot: a change with one of them is refused (`InvalidChangeBatch`).
    pub refused: Vec<String>,
    /// Does a refusal say which names it is about?
    pub names_refused: bool,
    /// A refused change in the older form of the answer, with a root of its own.
    pub old_refusals: bool,
    /// Calls in any second; more are answered `Throttling`. 0: no limit.
    pub calls_per_second: usize,
    /// A change that comes while one of the same zone is at work (for `latency_ms`) is answered `PriorRequestNotComplete`.
    pub one_at_a_time: bool,
    pub latency_ms: u64,
    pub rules: Vec<Rule>,
}

impl Default for Behaviour {
    fn default() -> Self {
        Behaviour {
            zones: Vec::new(),
            refused: Vec::new(),
            names_refused: true,
            old_refusals: false,
            calls_per_second: 5,
            one_at_a_time: true,
            latency_ms: 0,
            rules: Vec::new(),
        }
    }
}

/// A record as it stands in a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub kind: String,
    pub ttl: u32,
    pub values: Vec<String>,
}

/// A running endpoint; dropped = stopped.
#[derive(Debug)]
pub struct Endpoint(Host<Route53>);

impl Endpoint {
    /// Starts on a free port of 127.0.0.1.
    ///
    /// # Panics
    /// If there is no port; a test cannot go on without its endpoint.
    pub fn start(behaviour: Behaviour) -> Self {
        let rules = behaviour.rules.clone();
        let service = Route53 { behaviour, records: BTreeMap::new(), arrivals: Vec::new(), busy: BTreeMap::new() };
        match Host::start("fake-route53", service, rules) {
            Ok(host) => Endpoint(host),
            Err(error) => panic!("cannot start the Route 53 endpoint: {error}"),
        }
    }

    /// For `route53_endpoint_url`.
    pub fn url(&self) -> String {
        self.0.url()
    }

    /// The records of a zone by name (with the last dot).
    pub fn records(&self, zone: &str) -> BTreeMap<String, Record> {
        self.0.with(|service| service.records.get(zone).cloned().unwrap_or_default())
    }

    /// All requests, in order of arrival.
    pub fn requests(&self) -> Vec<Request> {
        self.0.requests()
    }

    /// How many records each request was to change, in order of arrival.
    pub fn sizes(&self) -> Vec<usize> {
        self.requests().iter().map(|request| request.body.matches("<Change>").count()).collect()
    }

    pub fn add_rules(&self, rules: impl IntoIterator<Item = Rule>) {
        self.0.add_rules(rules);
    }

    /// Changes the behaviour, except for its rules.
    pub fn adjust(&self, change: impl FnOnce(&mut Behaviour)) {
        self.0.with(|service| change(&mut service.behaviour));
    }
}

struct Route53 {
    behaviour: Behaviour,
    records: BTreeMap<String, BTreeMap<String, Record>>,
    arrivals: Vec<Instant>,
    /// Until when a zone's last change is at work.
    busy: BTreeMap<String, Instant>,
}

impl Service for Route53 {
    const KIND: &'static str = "text/xml";

    fn operation(head: &Parts) -> String {
        let path = head.uri.path().trim_end_matches('/');
        match (head.method.as_str(), path.ends_with("/rrset")) {
            ("POST", true) => "ChangeResourceRecordSets".to_owned(),
            (method, _) => format!("{method} {path}"),
        }
    }

    fn perform(&mut self, operation: &str, asked: &Asked, request_id: &str) -> Answer {
        match self.change(operation, asked) {
            Ok(id) => Answer {
                status: 200,
                body: format!(
                    "<?xml version=\"1.0\"?>\n<ChangeResourceRecordSetsResponse {XMLNS}><ChangeInfo><Id>/change/{id}</Id>\
                     <Status>PENDING</Status><SubmittedAt>2026-11-29T12:00:00.000Z</SubmittedAt></ChangeInfo>\
                     </ChangeResourceRecordSetsResponse>"
                ),
            },
            Err((status, code, message)) => self.error(status, code, &message, request_id),
        }
    }

    fn error(&self, status: u16, code: &str, message: &str, request_id: &str) -> Answer {
        let (code, message) = (escape(code), escape(message));
        let body = match code == "InvalidChangeBatch" && self.behaviour.old_refusals {
            true => format!(
                "<?xml version=\"1.0\"?>\n<InvalidChangeBatch {XMLNS}><Messages><Message>{message}</Message></Messages>\
                 <RequestId>{request_id}</RequestId></InvalidChangeBatch>"
            ),
            false => format!(
                "<?xml version=\"1.0\"?>\n<ErrorResponse {XMLNS}><Error><Type>Sender</Type><Code>{code}</Code>\
                 <Message>{message}</Message></Error><RequestId>{request_id}</RequestId></ErrorResponse>"
            ),
        };
        Answer { status, body }
    }

    fn latency(&self, _: &str) -> Duration {
        Duration::from_millis(self.behaviour.latency_ms)
    }
}

type Fault = (u16, &'static str, String);

impl Route53 {
    /// The number of the change, or status, code and message.
    fn change(&mut self, operation: &str, asked: &Asked) -> Result<String, Fault> {
        if operation != "ChangeResourceRecordSets" {
            return Err((404, "UnknownOperationException", format!("{operation} is not served here")));
        }
        let now = Instant::now();
        let limit = self.behaviour.calls_per_second;
        self.arrivals.retain(|arrived| now.duration_since(*arrived) < Duration::from_secs(1));
        if limit > 0 && self.arrivals.len() >= limit {
            return Err((400, "Throttling", "Rate exceeded".to_owned()));
        }
        self.arrivals.push(now);
        let id = asked.path.trim_end_matches('/').trim_end_matches("/rrset").rsplit('/').next().unwrap_or_default().to_owned();
        let Some(zone) = self.behaviour.zones.iter().find(|zone| zone.id == id) else {
            return Err((404, "NoSuchHostedZone", format!("No hosted zone found with ID: {id}")));
        };
        if self.behaviour.one_at_a_time && self.busy.get(&id).is_some_and(|until| *until > now) {
            let message = "The request was rejected because Route 53 was still processing a prior request.";
            return Err((400, "PriorRequestNotComplete", message.to_owned()));
        }
        let changes = changes(&asked.body)?;
        if changes.len() > MOST_UPSERTS {
            return Err((400, "InvalidChangeBatch", format!("Number of changes exceeds {}", 2 * MOST_UPSERTS)));
        }
        let outside = changes.iter().filter(|(name, _)| !name.ends_with(&format!(".{}", zone.domain)));
        let outside = outside.map(|(name, _)| format!("RRSet with DNS name {name} is not permitted in zone {}", zone.domain));
        let refused = changes.iter().filter(|(name, _)| self.behaviour.refused.contains(name));
        let refused = refused.map(|(name, _)| match self.behaviour.names_refused {
            true => format!("Tried to create resource record set [name='{name}', type='A'] but it is not permitted"),
            false => "The request contains an invalid set of changes for a resource record set".to_owned(),
        });
        let wrong: Vec<String> = outside.chain(refused).collect();
        if !wrong.is_empty() {
            return Err((400, "InvalidChangeBatch", format!("[{}]", wrong.join(", "))));
        }
        self.busy.insert(id.clone(), now + Duration::from_millis(self.behaviour.latency_ms));
        let records = self.records.entry(id).or_default();
        records.extend(changes);
        Ok(format!("C{:012}", records.len()))
    }
}

/// Name and record of each UPSERT.
fn changes(body: &str) -> Result<Vec<(String, Record)>, Fault> {
    let invalid = |what: &str| (400, "InvalidInput", format!("Invalid XML ; {what}"));
    let part = |text: &str, name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        Some(rest.split_once(&format!("</{name}>"))?.0.to_owned())
    };
    body.split("<Change>")
        .skip(1)
        .map(|change| {
            if part(change, "Action").as_deref() != Some("UPSERT") {
                return Err(invalid("only UPSERT is served here"));
            }
            let name = part(change, "Name").ok_or_else(|| invalid("no Name"))?.to_ascii_lowercase();
            let name = if name.ends_with('.') { name } else { format!("{name}.") };
            let ttl = part(change, "TTL").and_then(|ttl| ttl.parse().ok()).ok_or_else(|| invalid("no TTL"))?;
            let values = change.split("<Value>").skip(1).filter_map(|value| value.split_once("</Value>"));
            let values: Vec<String> = values.map(|(value, _)| value.to_owned()).collect();
            let kind = part(change, "Type").ok_or_else(|| invalid("no Type"))?;
            if values.is_empty() || values.iter().any(|value| value.parse::<std::net::Ipv4Addr>().is_err()) {
                return Err((
                    400,
                    "InvalidChangeBatch",
                    format!("[Invalid Resource Record: FATAL problem: ARRDATAIllegalIPv4Address in {name}]"),
                ));
            }
            Ok((name, Record { kind, ttl, values }))
        })
        .collect()
}
