//! Error codes of DynamoDB and Route 53, sorted: code and HTTP status in, what the error asks of us out. EC2's own table, much
//! longer, is in `model/ec2_codes.rs`.
//!
//! Source of the codes: the services' API references, and what the SDK itself repeats (aws-facts A.8).

use crate::model::ec2_codes::look_up;
use crate::model::failure::ErrorClass;
pub(crate) use crate::model::failure::codes::NO_CREDENTIALS;

use ErrorClass::{Ambiguous, Configuration, Identity, Other, Throttled, Transient};

/// An answer that cannot be read, or without a code. Our own word.
pub(crate) const UNREADABLE: &str = "UnreadableAnswer";

/// The first row that matches counts. `*` at the end or the beginning stands for any text.
const TABLE: &[(&str, ErrorClass)] = &[
    // Too many calls; Route 53 takes one change of a zone after the other.
    ("Throttl*", Throttled),
    ("ProvisionedThroughputExceeded*", Throttled),
    ("RequestLimitExceeded", Throttled),
    ("RequestThrottled*", Throttled),
    ("TooManyRequests*", Throttled),
    ("SlowDown", Throttled),
    ("PriorRequestNotComplete", Throttled),
    // The service stumbled.
    ("InternalServerError", Transient),
    ("InternalError", Transient),
    ("InternalFailure", Transient),
    ("ServiceUnavailable*", Transient),
    ("Unavailable", Transient),
    ("RequestTimeout*", Transient),
    ("TransactionInProgressException", Transient),
    ("TransactionConflictException", Transient),
    // Who asks, and may they?
    ("AccessDenied*", Identity),
    ("NotAuthorized", Identity),
    ("UnrecognizedClientException", Identity),
    ("InvalidClientTokenId", Identity),
    ("InvalidSignature*", Identity),
    ("SignatureDoesNotMatch", Identity),
    ("IncompleteSignature*", Identity),
    ("MissingAuthenticationToken*", Identity),
    ("ExpiredToken*", Identity),
    ("RequestExpired", Identity),
    ("RequestTimeTooSkewed", Identity),
    (NO_CREDENTIALS, Identity),
    // Somebody else was faster: the caller decides.
    ("ConditionalCheckFailedException", Other),
    ("TransactionCanceledException", Other),
    // Until a person changes something.
    ("ResourceNotFoundException", Configuration),
    ("ValidationException", Configuration),
    ("InaccessibleEncryptionKeyException", Configuration),
    ("NoSuchHostedZone", Configuration),
    ("InvalidChangeBatch", Configuration),
    ("InvalidInput", Configuration),
    ("InvalidDomainName", Configuration),
    ("InvalidAction", Configuration),
    ("OptInRequired", Configuration),
];

/// What the error asks of us.
pub(crate) fn classify(code: &str, http_status: Option<u16>) -> ErrorClass {
    with_status(look_up(TABLE, code), http_status)
}

/// What a code's class in its table, if it is there, comes to with the answer's status; that is `None` for an error inside a good answer.
///
/// A 5xx means that the request arrived: unless the code says that nothing was done, its fate is unknown.
pub(crate) fn with_status(known: Option<ErrorClass>, http_status: Option<u16>) -> ErrorClass {
    match (known, http_status) {
        (Some(Transient), Some(500..=599)) => Ambiguous,
        (Some(class), _) => class,
        (None, Some(429)) => Throttled,
        (None, Some(408 | 500..=599)) => Ambiguous,
        (None, _) => Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_codes_have_their_class() {
        for (class, codes) in [
            (
                Throttled,
                "Throttling ThrottlingException ProvisionedThroughputExceededException RequestLimitExceeded \
                 PriorRequestNotComplete TooManyRequestsException",
            ),
            (Transient, "InternalServerError ServiceUnavailable TransactionInProgressException RequestTimeoutException"),
            (
                Identity,
                "AccessDenied AccessDeniedException ExpiredTokenException UnrecognizedClientException InvalidSignatureException",
            ),
            (Configuration, "ResourceNotFoundException ValidationException NoSuchHostedZone InvalidChangeBatch InvalidInput"),
            (Other, "ConditionalCheckFailedException TransactionCanceledException NeverHeardOf"),
        ] {
            for code in codes.split_whitespace() {
                assert_eq!(classify(code, Some(400)), class, "{code}");
            }
        }
    }

    #[test]
    fn a_server_fault_after_sending_is_ambiguous() {
        assert_eq!(classify("InternalServerError", Some(500)), Ambiguous);
        assert_eq!(classify("", Some(502)), Ambiguous);
        assert_eq!(classify("", Some(429)), Throttled);
        assert_eq!(classify("Throttling", Some(503)), Throttled);
    }
}
