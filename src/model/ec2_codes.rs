//! EC2's error codes, sorted by what they ask of us: code in, class out. Never looks at a message; what an HTTP status adds is
//! `ec2/codes.rs`'s.
//!
//! A node's Reason carries such a code from the run that failed to launch it to the daemon that decides how long its group rests.
//!
//! Source of the codes: the EC2 API reference's list of error codes.

use super::failure::codes::{LIMITED, NO_CREDENTIALS};
use super::failure::{BackoffKind, ErrorClass};

use ErrorClass::{
    Capacity, Configuration, Identity, Other, Quota, Reservation, Split, Throttled, TokenSpent, Transient, ZoneOrType,
};

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

/// The codes by which the Python package knows a lack of capacity (aws-facts B.17).
const ICE: [&str; 8] = [
    "InsufficientInstanceCapacity",
    "InsufficientHostCapacity",
    "InsufficientReservedInstanceCapacity",
    "MaxSpotInstanceCountExceeded",
    "Unsupported",
    "SpotMaxPriceTooLow",
    "UnfulfillableCapacity",
    "InsufficientCapacity",
];

/// What the code asks of us; `None` for one that the table does not have.
pub(crate) fn class_of(code: &str) -> Option<ErrorClass> {
    look_up(TABLE, bare(code))
}

/// What `table` (pattern → class) says of a code.
pub(crate) fn look_up(table: &[(&str, ErrorClass)], code: &str) -> Option<ErrorClass> {
    table.iter().find(|(pattern, _)| matches(pattern, code)).map(|(_, class)| *class)
}

/// Without the side that CloudTrail and some messages put in front.
pub(crate) fn bare(code: &str) -> &str {
    code.strip_prefix("Client.").or_else(|| code.strip_prefix("Server.")).unwrap_or(code)
}

/// Is it a lack of capacity by the package's words, a part that is missing (D.9 #5) among them?
pub(crate) fn is_ice(code: &str) -> bool {
    ICE.contains(&code) || code == LIMITED
}

/// How a group rests whose node failed with this code; `None`: it does not, and the node may be tried again.
///
/// Beside ParallelCluster (`package`) the package's own codes count and no others: it has one time for all, for a lack of capacity alone
/// (aws-facts D.6).
pub(crate) fn rest_of(code: &str, package: bool) -> Option<BackoffKind> {
    if package {
        return is_ice(code).then_some(BackoffKind::Capacity);
    }
    if code == LIMITED { Some(BackoffKind::Capacity) } else { class_of(code)?.backoff_kind() }
}

/// Does the code match a row of a table? `*` at the end or the beginning stands for any text.
fn matches(pattern: &str, code: &str) -> bool {
    if let Some(start) = pattern.strip_suffix('*') {
        code.starts_with(start)
    } else if let Some(end) = pattern.strip_prefix('*') {
        code.ends_with(end)
    } else {
        code == pattern
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        (Other, "InvalidInstanceID.NotFound InvalidInstanceID.Malformed"),
    ];

    #[test]
    fn every_known_code_has_its_class() {
        for (class, codes) in KNOWN {
            for code in codes.split_whitespace() {
                assert_eq!(class_of(code), Some(*class), "{code}");
                assert_eq!(class_of(&format!("Client.{code}")), Some(*class), "{code} with a prefix");
            }
        }
        for code in ["OperationNotPermitted", "SomethingNew", LIMITED, ""] {
            assert_eq!(class_of(code), None, "{code}");
        }
    }

    #[test]
    fn a_code_alone_says_how_a_group_rests() {
        let (capacity, quota, configuration) =
            (Some(BackoffKind::Capacity), Some(BackoffKind::Quota), Some(BackoffKind::Configuration));
        for (code, own, package) in [
            ("InsufficientInstanceCapacity", capacity, capacity),
            ("InsufficientCapacity", capacity, capacity),
            (LIMITED, capacity, capacity),
            ("Unsupported", capacity, capacity),
            ("MaxSpotInstanceCountExceeded", quota, capacity),
            // Shortages that the package does not know.
            ("InsufficientCapacityOnHost", capacity, None),
            ("InvalidCapacityReservationState.PendingActivation", capacity, None),
            ("VcpuLimitExceeded", quota, None),
            ("RequestResourceCountExceeded", quota, None),
            ("InvalidLaunchTemplateName.NotFoundException", configuration, None),
            ("UnauthorizedOperation", configuration, None),
            (NO_CREDENTIALS, configuration, None),
            // Tried again at once.
            ("RequestLimitExceeded", None, None),
            ("InternalError", None, None),
            ("IdempotentParameterMismatch", None, None),
            ("NoPrivateAddress", None, None),
            ("LaunchDeadline", None, None),
            ("ConfigurationError", None, None),
            ("SomethingNew", None, None),
        ] {
            assert_eq!((rest_of(code, false), rest_of(code, true)), (own, package), "{code}");
        }
    }
}
