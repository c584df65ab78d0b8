//! What the SDK may repeat by itself: only what our own table calls retryable, always with the same client token.
//!
//! The SDK repeats every 5xx, and EC2 reports a shortage as a 5xx, so a shortage would cost the wait of all tries.

use aws_smithy_runtime_api::client::interceptors::context::InterceptorContext;
use aws_smithy_runtime_api::client::retries::classifiers::{ClassifyRetry, RetryAction, RetryClassifierPriority};

use super::codes::classify;
use crate::aws::error::text_between;
use crate::model::failure::ErrorClass;

/// Runs after the SDK's own classifiers; a refusal of ours wins over them.
#[derive(Debug)]
pub(super) struct OnlyOurs;

impl ClassifyRetry for OnlyOurs {
    fn classify_retry(&self, context: &InterceptorContext) -> RetryAction {
        let (Some(Err(_)), Some(response)) = (context.output_or_error(), context.response()) else {
            return RetryAction::NoActionIndicated;
        };
        let status = response.status().as_u16();
        if status < 300 {
            // A success that cannot be read: the launch may have happened, the same token finds out.
            return RetryAction::server_error();
        }
        let code = response.body().bytes().map(code_in).unwrap_or_default();
        if matches!(code.as_str(), "RequestExpired" | "RequestTimeTooSkewed") {
            // The SDK corrects its idea of the time from the answer and may try once more.
            return RetryAction::NoActionIndicated;
        }
        match classify(&code, Some(status)) {
            ErrorClass::Throttled => RetryAction::throttling_error(),
            ErrorClass::Transient | ErrorClass::Ambiguous => RetryAction::server_error(),
            _ => RetryAction::RetryForbidden,
        }
    }

    fn name(&self) -> &'static str {
        "slurm-ec2's table of codes"
    }

    fn priority(&self) -> RetryClassifierPriority {
        RetryClassifierPriority::run_after(RetryClassifierPriority::transient_error_classifier())
    }
}

/// `<Code>` of EC2's error body; empty when there is none.
fn code_in(body: &[u8]) -> String {
    text_between(body, "<Code>", "</Code>").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_is_found_in_the_body() {
        let body =
            b"<?xml version=\"1.0\"?><Response><Errors><Error><Code> InsufficientInstanceCapacity</Code><Message>no</Message>";
        assert_eq!(code_in(body), "InsufficientInstanceCapacity");
        assert_eq!(code_in(b"<html>502 Bad Gateway</html>"), "");
    }
}
