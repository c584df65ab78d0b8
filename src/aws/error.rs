//! A failed AWS call: what the SDK says in; code, class and message out. The same for every service; what a code asks of us
//! is the service's own table.

use std::error::Error;
use std::fmt;

use aws_credential_types::provider::error::CredentialsError;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;

use super::codes::{self, NO_CREDENTIALS, UNREADABLE};
use super::http::{Broken, NotSent, ProxyRefuses};
use crate::error::chain;
use crate::model::failure::{ErrorClass, Failure, codes as own};

/// Characters kept of the service's own words in a sentence.
const MAX_WORDS: usize = 180;

/// A service as messages name it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Service {
    /// As people know it: `DynamoDB`.
    pub(crate) name: &'static str,
    /// Our code for a service that does not answer.
    pub(crate) unreachable: &'static str,
}

/// One call of DynamoDB or Route 53 that failed, all tries of the SDK included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AwsError {
    pub(crate) service: &'static Service,
    /// The service's name of the call (`BatchWriteItem`).
    pub(crate) operation: &'static str,
    /// The service's code, or one of ours where it gave none.
    pub(crate) code: String,
    pub(crate) class: ErrorClass,
    pub(crate) message: String,
    pub(crate) request_id: Option<String>,
}

impl AwsError {
    pub(crate) fn new(
        service: &'static Service,
        operation: &'static str,
        code: &str,
        class: ErrorClass,
        message: impl Into<String>,
    ) -> Self {
        Self { service, operation, code: code.into(), class, message: message.into(), request_id: None }
    }

    /// The caller's time was up before the service answered; whether the call was carried out is not known.
    pub(crate) fn late(service: &'static Service, operation: &'static str) -> Self {
        let message = "no answer in the time that was left for it";
        Self::new(service, operation, service.unreachable, ErrorClass::Ambiguous, message)
    }

    /// A setting that keeps every call from going out.
    pub(crate) fn configuration(service: &'static Service, why: impl Into<String>) -> Self {
        Self::new(service, "connect", own::CONFIGURATION, ErrorClass::Configuration, why)
    }

    pub(crate) fn from_sdk<E>(service: &'static Service, operation: &'static str, error: &SdkError<E, HttpResponse>) -> Self
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        let Told { mut code, class, message, request_id } = told(error, codes::classify);
        if code == own::UNREACHABLE {
            code = service.unreachable.to_owned();
        }
        Self { service, operation, code, class, message, request_id }
    }

    /// For Slurm's reason and the log; `context` says what the call was about ("table parallelcluster-slurm-orchard").
    pub(crate) fn to_failure(&self, context: &str) -> Failure {
        let what = if context.is_empty() { String::new() } else { format!(" for {context}") };
        let said = words(&self.message);
        let rest = if said.is_empty() { String::new() } else { format!(": {said}") };
        let service = self.service.name;
        let sentence = match (self.code.as_str(), self.class) {
            (NO_CREDENTIALS, _) => format!("no AWS credentials for {service}{rest}"),
            (own::CONFIGURATION, _) => format!("{service} cannot be called{what}{rest}"),
            (code, _) if code == self.service.unreachable => format!("{service} did not answer{what}{rest}"),
            (_, ErrorClass::Identity) => match permission(&self.message) {
                Some(action) => format!("the credentials in use lack the permission {action}{what}"),
                None => format!("{service} refused the credentials in use{what}{rest}"),
            },
            (_, ErrorClass::Throttled) => format!("{service} takes no more requests at the moment{what}"),
            (_, ErrorClass::Transient | ErrorClass::Ambiguous) => format!("{service} had a fault of its own{what}{rest}"),
            (code, _) if said.is_empty() => format!("{service} answered {code} to {}{what}", self.operation),
            _ => format!("{service} refused {}{what}{rest}", self.operation),
        };
        Failure { code: self.code.clone(), class: self.class, sentence, request_id: self.request_id.clone() }
    }
}

impl fmt::Display for AwsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.service.name, self.operation, self.code)?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        match &self.request_id {
            Some(id) => write!(f, " (request {id})"),
            None => Ok(()),
        }
    }
}

impl Error for AwsError {}

/// What the SDK's error tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) code: String,
    pub(crate) class: ErrorClass,
    pub(crate) message: String,
    pub(crate) request_id: Option<String>,
}

impl Told {
    fn new(code: &str, class: ErrorClass, message: impl Into<String>) -> Self {
        Self { code: code.into(), class, message: message.into(), request_id: None }
    }
}

/// Reads the SDK's error; `classify` is the service's table: code (empty if there is none) and HTTP status in, class out.
pub(crate) fn told<E>(error: &SdkError<E, HttpResponse>, classify: fn(&str, Option<u16>) -> ErrorClass) -> Told
where
    E: ProvideErrorMetadata + Error + 'static,
{
    let mut told = match error {
        SdkError::ServiceError(service) => {
            let status = service.raw().status().as_u16();
            match service.err().code() {
                Some(code) => Told::new(code, classify(code, Some(status)), service.err().message().unwrap_or_default()),
                // An answer whose body is not what it should be: a cut success, a proxy's page.
                None if status < 300 => Told::new(UNREADABLE, ErrorClass::Ambiguous, said(error)),
                None => Told::new(UNREADABLE, classify("", Some(status)), format!("HTTP status {status}")),
            }
        }
        SdkError::ResponseError(_) => Told::new(UNREADABLE, ErrorClass::Ambiguous, said(error)),
        SdkError::TimeoutError(_) => Told::new(own::UNREACHABLE, ErrorClass::Ambiguous, "no answer within the configured time"),
        _ => without_answer(error),
    };
    if let Some(raw) = error.raw_response() {
        // It stands in the head, with some services also in the body; what stands between may keep only the body.
        let in_head = ["x-amzn-requestid", "x-amz-request-id"].into_iter().find_map(|name| raw.headers().get(name));
        let in_body = || {
            let body = raw.body().bytes()?;
            let marks = [("<RequestID>", "</RequestID>"), ("<RequestId>", "</RequestId>")];
            marks.into_iter().find_map(|(begin, end)| text_between(body, begin, end))
        };
        told.request_id = in_head.map(str::to_owned).or_else(in_body);
    }
    told
}

/// Nothing came back: what kept the request from going out, or the connection from holding?
fn without_answer(error: &(dyn Error + 'static)) -> Told {
    if let Some(credentials) = find::<CredentialsError>(error) {
        // A provider that broke while it answered may answer the next time; nothing was sent to the service.
        let class = match credentials {
            CredentialsError::ProviderTimedOut(_) | CredentialsError::ProviderError(_) => ErrorClass::Transient,
            _ => ErrorClass::Identity,
        };
        return Told::new(NO_CREDENTIALS, class, chain(credentials));
    }
    if let Some(not_sent) = find::<NotSent>(error) {
        // Its rules or its credentials, most likely, but it may only stumble: what it answered is not known here.
        if let Some(refused) = find::<ProxyRefuses>(not_sent) {
            let why = format!("{}; make it let AWS's endpoints through, or change the configured proxy", chain(refused));
            return Told::new(own::UNREACHABLE, ErrorClass::Transient, why);
        }
        let why = chain(not_sent);
        // rustls' words. No pause changes a certificate or the bundle it is held against.
        if why.contains("invalid peer certificate") {
            let why = format!(
                "{why}; set [aws] ca_bundle (in ParallelCluster's file [slurm_ec2] ca_bundle) to the authorities of the endpoint or its proxy"
            );
            return Told::new(own::CONFIGURATION, ErrorClass::Configuration, why);
        }
        return Told::new(own::UNREACHABLE, ErrorClass::Transient, why);
    }
    if let Some(broken) = find::<Broken>(error) {
        return Told::new(own::UNREACHABLE, ErrorClass::Ambiguous, chain(broken));
    }
    // Neither of the two marks of http.rs: the request never reached the connector (no endpoint, no CA bundle, …).
    Told::new(own::CONFIGURATION, ErrorClass::Configuration, said(error))
}

/// The causes below the SDK's own headline ("dispatch failure").
fn said(error: &(dyn Error + 'static)) -> String {
    error.source().map_or_else(|| error.to_string(), chain)
}

/// The text between two marks of an XML body.
pub(crate) fn text_between(body: &[u8], begin: &str, end: &str) -> Option<String> {
    let text = String::from_utf8_lossy(body);
    let (inner, _) = text.split_once(begin)?.1.split_once(end)?;
    Some(inner.trim().to_owned())
}

fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<T>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// The permission that IAM misses, from its message.
fn permission(message: &str) -> Option<&str> {
    let (_, tail) = message.split_once("not authorized to perform: ")?;
    tail.split_whitespace().next().map(|action| action.trim_end_matches(['.', ',']))
}

/// The service's words: one line, bounded.
fn words(message: &str) -> String {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_WORDS) {
        Some((cut, _)) => format!("{}...", &line[..cut]),
        None => line.trim_end_matches('.').to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DYNAMODB: &Service = &Service { name: "DynamoDB", unreachable: "DynamoDbUnreachable" };

    #[test]
    fn the_missing_permission_and_the_table_are_named() {
        let message = "User: arn:aws:sts::1:assumed-role/head/i-0 is not authorized to perform: dynamodb:BatchWriteItem on \
                       resource: arn:aws:dynamodb:eu-west-1:1:table/t because no identity-based policy allows the action";
        let error = AwsError::new(DYNAMODB, "BatchWriteItem", "AccessDeniedException", ErrorClass::Identity, message);
        let failure = error.to_failure("table t");
        assert_eq!(failure.sentence, "the credentials in use lack the permission dynamodb:BatchWriteItem for table t");
        assert_eq!((failure.code.as_str(), failure.class), ("AccessDeniedException", ErrorClass::Identity));
    }

    #[test]
    fn each_class_gives_one_bounded_line() {
        for (code, class) in [
            (NO_CREDENTIALS, ErrorClass::Identity),
            (own::CONFIGURATION, ErrorClass::Configuration),
            (DYNAMODB.unreachable, ErrorClass::Transient),
            ("Throttling", ErrorClass::Throttled),
            ("InternalServerError", ErrorClass::Ambiguous),
            ("ValidationException", ErrorClass::Configuration),
            ("SomethingNew", ErrorClass::Other),
        ] {
            let error = AwsError::new(DYNAMODB, "GetItem", code, class, "long\n".repeat(100));
            let sentence = error.to_failure("table t").sentence;
            assert!(sentence.contains("DynamoDB") && !sentence.contains('\n') && sentence.len() < 300, "{sentence}");
        }
        let error = AwsError::new(DYNAMODB, "GetItem", "SomethingNew", ErrorClass::Other, "");
        assert_eq!(error.to_failure("table t").sentence, "DynamoDB answered SomethingNew to GetItem for table t");
        assert_eq!(error.to_string(), "DynamoDB GetItem: SomethingNew");
    }
}
