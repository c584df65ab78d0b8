//! What an error of EC2 asks of us: code and HTTP status in, class out. The codes themselves are in `model/ec2_codes.rs`, where a decision
//! can ask for them too. Never looks at the message.
//!
//! AWS counts the shortage codes among the server errors (5xx), so the code decides before the status does.

use crate::aws::codes::with_status;
pub(crate) use crate::aws::codes::{NO_CREDENTIALS, UNREADABLE};
pub(crate) use crate::model::ec2_codes::bare;
use crate::model::ec2_codes::class_of;
use crate::model::failure::ErrorClass;

/// `http_status` is `None` for an error inside a good answer (CreateFleet's list).
pub(crate) fn classify(code: &str, http_status: Option<u16>) -> ErrorClass {
    with_status(class_of(code), http_status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ErrorClass::{Ambiguous, Capacity, Other, Throttled};

    #[test]
    fn a_shortage_stays_a_shortage_whatever_the_status() {
        for code in ["InsufficientInstanceCapacity", "InsufficientCapacity"] {
            assert_eq!(classify(code, Some(500)), Capacity);
            assert_eq!(classify(code, Some(503)), Capacity);
        }
        assert_eq!(classify("RequestLimitExceeded", Some(503)), Throttled);
    }

    #[test]
    fn a_server_fault_after_sending_is_ambiguous() {
        assert_eq!(classify("InternalError", Some(500)), Ambiguous);
        assert_eq!(classify("Unavailable", Some(503)), Ambiguous);
        assert_eq!(classify("NeverHeardOf", Some(502)), Ambiguous);
        assert_eq!(classify("", Some(504)), Ambiguous);
        assert_eq!(classify("NeverHeardOf", Some(400)), Other);
        assert_eq!(classify("NeverHeardOf", Some(429)), Throttled);
    }
}
