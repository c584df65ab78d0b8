//! EC2's error codes, sorted: code and HTTP status in, what the error asks of us out. Never looks at the message.
//!
//! Source of the codes: the EC2 API reference's list of error codes; AWS counts the shortage codes among the server
//! errors (5xx), so the code decides before the status does.

use crate::model::failure::ErrorClass;

use ErrorClass::{
    Capacity, Configuration, Identity, Other, Quota, Reservation, Split, Throttled, TokenSpent, Transient, ZoneOrType,
};

use crate::aws::codes::class_in;
pub(crate) use crate::aws::codes::{NO_CREDENTIALS, UNREADABLE};

/// The first row that matches counts. `*` at the end or the beginning stands for any text.
const TABLE: &[(&str, ErrorClass)] = &[
    // No capacity now.
    ("InsufficientInstanceCapacity", Capacity),
    ("InsufficientHostCapacity", Capacity),
    ("InsufficientReservedInstanceCapacity", Capacity),
    ("InsufficientReservedInstancesCapacity", Capacity),
    ("InsufficientCapacity", Capacity),
    ("InsufficientCapacityOnHost", Capacity),
    ("UnfulfillableCapacity", Capacity),
    ("SpotMaxPriceTooLow", Capacity),
    ("ReservationCapacityExceeded", Capacity),
    ("InsufficientAddressCapacity", Capacity),
    ("InsufficientVolumeCapacity", Capacity),
    // A limit of the account or of a subnet.
    ("VcpuLimitExceeded", Quota),
    ("InstanceLimitExceeded", Quota),
    ("MaxSpotInstanceCountExceeded", Quota),
    ("MaxSpotFleetRequestCountExceeded", Quota),
    ("VolumeLimitExceeded", Quota),
    ("MaxIOPSLimitExceeded", Quota),
    ("NetworkInterfaceLimitExceeded", Quota),
    ("InsufficientFreeAddressesInSubnet", Quota),
    ("ResourceLimitExceeded", Quota),
    ("TagLimitExceeded", Quota),
    // Too many for one call.
    ("ResourceCountExceeded", Split),
    ("RequestResourceCountExceeded", Split),
    // Too many calls.
    ("RequestLimitExceeded", Throttled),
    ("EC2ThrottledException", Throttled),
    ("Throttl*", Throttled),
    ("RequestThrottled*", Throttled),
    ("TooManyRequestsException", Throttled),
    ("BandwidthLimitExceeded", Throttled),
    ("SlowDown", Throttled),
    // The service stumbled.
    ("InternalError", Transient),
    ("InternalFailure", Transient),
    ("ServerInternal", Transient),
    ("ServiceUnavailable", Transient),
    ("Unavailable", Transient),
    ("RequestTimeout*", Transient),
    ("RetryableError", Transient),
    // This pair of type and zone.
    ("Unsupported", ZoneOrType),
    ("InvalidZone.NotFound", ZoneOrType),
    ("VolumeTypeNotAvailableInZone", ZoneOrType),
    // Capacity Blocks and reservations.
    ("InvalidCapacityReservationState*", Reservation),
    ("InvalidCapacityReservationId*", Reservation),
    ("CapacityReservation*", Reservation),
    // The client token is used up.
    ("IdempotentParameterMismatch", TokenSpent),
    ("IdempotentInstanceTerminated", TokenSpent),
    ("InvalidClientToken", TokenSpent),
    // Who asks, and may they?
    ("UnauthorizedOperation", Identity),
    ("AuthFailure*", Identity),
    ("InvalidClientTokenId", Identity),
    ("SignatureDoesNotMatch", Identity),
    ("RequestExpired", Identity),
    ("RequestTimeTooSkewed", Identity),
    ("ExpiredToken*", Identity),
    ("AccessDenied*", Identity),
    ("UnrecognizedClientException", Identity),
    ("IncompleteSignature*", Identity),
    ("MissingAuthenticationToken*", Identity),
    (NO_CREDENTIALS, Identity),
    // About an instance, not about a launch.
    ("InvalidInstanceID*", Other),
    // Until a person changes something.
    ("InvalidLaunchTemplate*", Configuration),
    ("*VersionNotFound", Configuration),
    ("*VersionNotFoundException", Configuration),
    ("*Malformed", Configuration),
    ("InvalidAMIID*", Configuration),
    ("InvalidSubnet*", Configuration),
    ("InvalidGroup*", Configuration),
    ("InvalidSecurityGroup*", Configuration),
    ("InvalidKeyPair*", Configuration),
    ("InvalidBlockDeviceMapping", Configuration),
    ("InvalidPlacementGroup*", Configuration),
    ("InvalidParameter*", Configuration),
    ("InvalidInstanceType", Configuration),
    ("MissingParameter", Configuration),
    ("UnknownParameter", Configuration),
    ("UnsupportedOperation", Configuration),
    ("InvalidAction", Configuration),
    ("OptInRequired", Configuration),
    ("PendingVerification", Configuration),
    ("Blocked", Configuration),
    ("AccountDisabled", Configuration),
    ("TagPolicyViolation", Configuration),
    ("VPCIdNotSpecified", Configuration),
    ("*.NotFound", Configuration),
];

/// What the error asks of us. `http_status` is `None` for an error inside a good answer (CreateFleet's list).
pub(crate) fn classify(code: &str, http_status: Option<u16>) -> ErrorClass {
    class_in(TABLE, bare(code), http_status)
}

/// Without the side that CloudTrail and some messages put in front.
pub(crate) fn bare(code: &str) -> &str {
    code.strip_prefix("Client.").or_else(|| code.strip_prefix("Server.")).unwrap_or(code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ErrorClass::Ambiguous;

    /// Every code that EC2's documentation names and that a launch, a look or a termination can meet.
    const KNOWN: &[(ErrorClass, &str)] = &[
        (
            Capacity,
            "InsufficientInstanceCapacity InsufficientHostCapacity InsufficientReservedInstanceCapacity InsufficientCapacity \
             InsufficientCapacityOnHost InsufficientReservedInstancesCapacity UnfulfillableCapacity SpotMaxPriceTooLow \
             ReservationCapacityExceeded InsufficientAddressCapacity InsufficientVolumeCapacity",
        ),
        (
            Quota,
            "VcpuLimitExceeded InstanceLimitExceeded MaxSpotInstanceCountExceeded MaxSpotFleetRequestCountExceeded \
             VolumeLimitExceeded MaxIOPSLimitExceeded NetworkInterfaceLimitExceeded InsufficientFreeAddressesInSubnet \
             ResourceLimitExceeded TagLimitExceeded",
        ),
        (Split, "ResourceCountExceeded RequestResourceCountExceeded"),
        (
            Throttled,
            "RequestLimitExceeded EC2ThrottledException Throttling ThrottlingException ThrottledException \
             TooManyRequestsException BandwidthLimitExceeded",
        ),
        (
            Transient,
            "InternalError InternalFailure ServerInternal ServiceUnavailable Unavailable RequestTimeout \
             RequestTimeoutException RetryableError",
        ),
        (ZoneOrType, "Unsupported InvalidZone.NotFound VolumeTypeNotAvailableInZone"),
        (
            Reservation,
            "InvalidCapacityReservationState.PendingActivation InvalidCapacityReservationId.NotFound \
             InvalidCapacityReservationId.Malformed CapacityReservationNotActive",
        ),
        (
            Configuration,
            "InvalidLaunchTemplateName.NotFoundException InvalidLaunchTemplateId.NotFound \
             InvalidLaunchTemplateId.VersionNotFound InvalidLaunchTemplateId.Malformed \
             InvalidLaunchTemplateName.MalformedException InvalidAMIID.NotFound InvalidAMIID.Malformed \
             InvalidAMIID.Unavailable InvalidSubnetID.NotFound InvalidGroup.NotFound InvalidKeyPair.NotFound \
             InvalidBlockDeviceMapping InvalidPlacementGroup.Unknown InvalidParameter InvalidParameterValue \
             InvalidParameterCombination MissingParameter UnknownParameter UnsupportedOperation InvalidInstanceType \
             OptInRequired PendingVerification Blocked AccountDisabled TagPolicyViolation VPCIdNotSpecified",
        ),
        (
            Identity,
            "UnauthorizedOperation AuthFailure AuthFailure.ServiceLinkedRoleCreationNotPermitted InvalidClientTokenId \
             SignatureDoesNotMatch RequestExpired",
        ),
        (TokenSpent, "IdempotentParameterMismatch IdempotentInstanceTerminated InvalidClientToken"),
        (Other, "InvalidInstanceID.NotFound InvalidInstanceID.Malformed OperationNotPermitted SomethingNew"),
    ];

    #[test]
    fn every_known_code_has_its_class() {
        for (class, codes) in KNOWN {
            for code in codes.split_whitespace() {
                assert_eq!(classify(code, None), *class, "{code}");
                assert_eq!(classify(&format!("Client.{code}"), Some(400)), *class, "{code} with a prefix");
            }
        }
    }

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
