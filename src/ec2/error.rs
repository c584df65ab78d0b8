//! A failed EC2 call: what the SDK says in, code and class out.

use std::error::Error;
use std::fmt;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_ec2::operation::RequestId;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;

use super::codes::{self, classify};
use crate::aws::http::{Broken, NotSent};
use super::sentence::sentence;
use crate::error::chain;
use crate::model::failure::{ErrorClass, Failure, codes as own};

/// One EC2 call that failed, all tries of the SDK included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ec2Error {
    /// EC2's name of the call (`RunInstances`).
    pub(crate) operation: &'static str,
    /// EC2's code, or one of ours where EC2 gave none.
    pub(crate) code: String,
    pub(crate) class: ErrorClass,
    pub(crate) message: String,
    pub(crate) request_id: Option<String>,
}

impl Ec2Error {
    pub(super) fn new(operation: &'static str, code: &str, class: ErrorClass, message: impl Into<String>) -> Self {
        Self { operation, code: code.into(), class, message: message.into(), request_id: None }
    }

    /// The caller's time was up before EC2 answered.
    pub(crate) fn late(operation: &'static str) -> Self {
        Self::new(operation, own::UNREACHABLE, ErrorClass::Ambiguous, "no answer in the time that was left for it")
    }

    /// For Slurm's reason and the log; `context` says what was asked for ("group c5, template hpc-c5").
    pub(crate) fn to_failure(&self, context: &str) -> Failure {
        Failure {
            code: self.code.clone(),
            class: self.class,
            sentence: sentence(&self.code, self.class, &self.message, context),
            request_id: self.request_id.clone(),
        }
    }

    pub(super) fn from_sdk<E>(operation: &'static str, error: &SdkError<E, HttpResponse>) -> Self
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        let mut made = match error {
            SdkError::ServiceError(service) => {
                let status = service.raw().status().as_u16();
                match service.err().code() {
                    Some(code) => {
                        Self::new(operation, code, classify(code, Some(status)), service.err().message().unwrap_or_default())
                    }
                    // An answer whose body is not what it should be: a cut success, a proxy's page.
                    None if status < 300 => Self::new(operation, codes::UNREADABLE, ErrorClass::Ambiguous, said(error)),
                    None => Self::new(operation, codes::UNREADABLE, classify("", Some(status)), format!("HTTP status {status}")),
                }
            }
            SdkError::ResponseError(_) => Self::new(operation, codes::UNREADABLE, ErrorClass::Ambiguous, said(error)),
            SdkError::TimeoutError(_) => {
                Self::new(operation, own::UNREACHABLE, ErrorClass::Ambiguous, "no answer within the configured time")
            }
            _ => Self::without_answer(operation, error),
        };
        if let Some(raw) = error.raw_response() {
            // EC2 gives it in the head and in the body; what stands between may keep only the body.
            let in_body = || raw.body().bytes().and_then(|body| text_between(body, "<RequestID>", "</RequestID>"));
            made.request_id = error.request_id().map(str::to_owned).or_else(in_body);
        }
        made
    }

    /// Nothing came back: what kept the request from going out, or the connection from holding?
    fn without_answer(operation: &'static str, error: &(dyn Error + 'static)) -> Self {
        if let Some(credentials) = find::<CredentialsError>(error) {
            // A provider that broke while it answered may answer the next time; nothing was sent to EC2.
            let class = match credentials {
                CredentialsError::ProviderTimedOut(_) | CredentialsError::ProviderError(_) => ErrorClass::Transient,
                _ => ErrorClass::Identity,
            };
            return Self::new(operation, codes::NO_CREDENTIALS, class, chain(credentials));
        }
        if let Some(not_sent) = find::<NotSent>(error) {
            let why = chain(not_sent);
            // rustls' words. No pause changes a certificate or the bundle it is held against.
            if why.contains("invalid peer certificate") {
                let why = format!("{why}; set [aws] ca_bundle to the authorities of the endpoint or its proxy");
                return Self::new(operation, own::CONFIGURATION, ErrorClass::Configuration, why);
            }
            return Self::new(operation, own::UNREACHABLE, ErrorClass::Transient, why);
        }
        if let Some(broken) = find::<Broken>(error) {
            return Self::new(operation, own::UNREACHABLE, ErrorClass::Ambiguous, chain(broken));
        }
        // Neither of the two marks of http.rs: the request never reached the connector (no endpoint, no CA bundle, …).
        Self::new(operation, own::CONFIGURATION, ErrorClass::Configuration, said(error))
    }
}

impl fmt::Display for Ec2Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.operation, self.code)?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        match &self.request_id {
            Some(id) => write!(f, " (request {id})"),
            None => Ok(()),
        }
    }
}

impl Error for Ec2Error {}

/// The causes below the SDK's own headline ("dispatch failure").
fn said(error: &(dyn Error + 'static)) -> String {
    error.source().map_or_else(|| error.to_string(), chain)
}

/// The text between two marks of an XML body.
pub(super) fn text_between(body: &[u8], begin: &str, end: &str) -> Option<String> {
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

#[cfg(test)]
mod tests {
    use aws_sdk_ec2::operation::run_instances::RunInstancesError;
    use aws_smithy_runtime_api::box_error::BoxError;
    use aws_smithy_runtime_api::client::result::ConnectorError;

    use super::*;

    fn of(source: BoxError) -> Ec2Error {
        let error: SdkError<RunInstancesError, HttpResponse> = SdkError::dispatch_failure(ConnectorError::io(source));
        Ec2Error::from_sdk("RunInstances", &error)
    }

    #[test]
    fn only_an_unsent_request_is_surely_undone() {
        assert_eq!(of(Box::new(NotSent("refused".into()))).class, ErrorClass::Transient);
        assert_eq!(of(Box::new(Broken("reset".into()))).class, ErrorClass::Ambiguous);
    }

    #[test]
    fn a_certificate_that_nobody_trusts_is_no_passing_fault() {
        let error = of(Box::new(NotSent("TLS handshake failed: invalid peer certificate: UnknownIssuer".into())));
        assert_eq!(error.class, ErrorClass::Configuration);
        let sentence = error.to_failure("group c5").sentence;
        assert!(sentence.starts_with("EC2 cannot be called: ") && sentence.contains("ca_bundle"), "{sentence}");
    }

    #[test]
    fn credentials_that_broke_may_come_back_and_missing_ones_do_not() {
        assert_eq!(of(Box::new(CredentialsError::provider_error("500"))).class, ErrorClass::Transient);
        assert_eq!(of(Box::new(CredentialsError::not_loaded("none"))).class, ErrorClass::Identity);
    }
}
