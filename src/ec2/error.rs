//! A failed EC2 call: what the SDK says in, code and class out.

use std::error::Error;
use std::fmt;

use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;

use super::codes::classify;
use super::sentence::sentence;
use crate::aws::error::{Told, told};
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
        let Told { code, class, message, request_id } = told(error, classify);
        Self { operation, code, class, message, request_id }
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

#[cfg(test)]
mod tests {
    use aws_credential_types::provider::error::CredentialsError;
    use aws_sdk_ec2::operation::run_instances::RunInstancesError;
    use aws_smithy_runtime_api::box_error::BoxError;
    use aws_smithy_runtime_api::client::result::ConnectorError;

    use super::*;
    use crate::aws::http::{Broken, NotSent};

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
