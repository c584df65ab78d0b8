//! Why a node failed: the code that Slurm's reason carries, and the class that says what to do about it.

use std::time::Duration;

/// What an error of EC2 asks of us. `ec2_codes.rs` holds the table code → class (aws-facts A.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ErrorClass {
    /// Throttled: repeat with growing pauses and the same client token.
    Throttled,
    /// A passing fault of the service before anything was done: repeat with the same client token.
    Transient,
    /// The answer was lost (timeout, broken connection, 5xx after sending): repeat with the same client token.
    Ambiguous,
    /// No capacity now: never repeated in place.
    Capacity,
    /// An account limit: lasts until usage drops or the limit rises.
    Quota,
    /// Too many instances for one request: halve and repeat.
    Split,
    /// This type or zone cannot do it; another may.
    ZoneOrType,
    /// Capacity Block not open yet, or a reservation that cannot be used.
    Reservation,
    /// Never succeeds until a person changes something.
    Configuration,
    /// Credentials or permissions.
    Identity,
    /// The client token is spent: repeat with a new one, recorded first.
    TokenSpent,
    /// Nothing known: not repeated.
    Other,
}

impl ErrorClass {
    /// Repeat the very same request (same client token)?
    pub(crate) fn is_retryable(self) -> bool {
        matches!(self, Self::Throttled | Self::Transient | Self::Ambiguous)
    }

    /// May another type, zone or kind of capacity do what this one could not?
    pub(crate) fn lets_fall_back(self) -> bool {
        matches!(self, Self::Capacity | Self::Quota | Self::ZoneOrType | Self::Reservation)
    }

    /// Key under which a group's back-off is configured and kept; `None` = no back-off for this class.
    pub(crate) fn backoff_kind(self) -> Option<BackoffKind> {
        match self {
            Self::Capacity | Self::ZoneOrType | Self::Reservation => Some(BackoffKind::Capacity),
            Self::Quota | Self::Split => Some(BackoffKind::Quota),
            Self::Configuration | Self::Identity => Some(BackoffKind::Configuration),
            Self::Throttled | Self::Transient | Self::Ambiguous | Self::TokenSpent | Self::Other => None,
        }
    }
}

/// The three back-off times of `[launch]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum BackoffKind {
    Capacity,
    Quota,
    Configuration,
}

/// Why a node is given up: what Slurm's reason and the log say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// EC2's own code where there is one (`InsufficientInstanceCapacity`), else one of ours (`codes` below).
    pub(crate) code: String,
    pub(crate) class: ErrorClass,
    /// One sentence for the job's owner, without the code.
    pub(crate) sentence: String,
    /// EC2's request id, for the log.
    pub(crate) request_id: Option<String>,
}

/// Codes of our own, for what EC2 has no word for.
pub(crate) mod codes {
    /// Fewer instances than asked and no error at all (R08: the only case for the catch-all).
    pub(crate) const LIMITED: &str = "LimitedInstanceCapacity";
    /// No credentials were found at any of the places where they may be; no service was asked.
    pub(crate) const NO_CREDENTIALS: &str = "NoCredentials";
    /// The node belongs to no configured group.
    pub(crate) const UNKNOWN_NODE: &str = "NodeNotConfigured";
    /// The node's name is not of the form that ParallelCluster's names have; the package's word.
    pub(crate) const INVALID_NAME: &str = "InvalidNodenameError";
    /// The instance never showed a private address.
    pub(crate) const NO_ADDRESS: &str = "NoPrivateAddress";
    /// slurmctld refused the update of the node's address.
    pub(crate) const REFUSED: &str = "SlurmRefusedNode";
    /// The run's deadline or a SIGTERM came before the launch was done.
    pub(crate) const DEADLINE: &str = "LaunchDeadline";
    /// EC2 could not be reached.
    pub(crate) const UNREACHABLE: &str = "Ec2Unreachable";
    /// The configuration or the state folder cannot be used.
    pub(crate) const CONFIGURATION: &str = "ConfigurationError";
    pub(crate) const STATE: &str = "StateError";
}

/// What stands before the code in a Reason, by the package's form (aws-facts B.16); the code ends with the first `)`.
pub(crate) const CODE: &str = "(Code:";

/// The Reason of a node that is given none: Slurm takes no empty one.
pub(crate) const UNSAID: &str = "slurm-ec2";

/// slurmctld's words for a node that did not register in time, and for one that is silent.
pub(crate) const RESUME_TIMEOUT: &str = "ResumeTimeout reached";
pub(crate) const NOT_RESPONDING: &str = "Not responding";

/// slurmctld puts its words behind a reason that is there already (slurm-facts E): the code is of an earlier time then.
const LATER: [&str; 2] = [RESUME_TIMEOUT, NOT_RESPONDING];

/// A node's Reason that tells a failure by its code; [`code_of`] is the way back.
pub(crate) fn reason_with(code: &str, sentence: &str) -> String {
    format!("{CODE}{code}){sentence}")
}

/// The code that a node's Reason carries, if that is still why the node is down.
pub(crate) fn code_of(reason: &str) -> Option<&str> {
    let (_, rest) = reason.split_once(CODE)?;
    let (code, sentence) = rest.split_once(')')?;
    let is_of_earlier = LATER.iter().any(|text| sentence.trim_end().ends_with(text));
    (!code.is_empty() && !is_of_earlier).then_some(code)
}

/// Around the node that is to blame, in the sentence of nodes that fail along with it.
const NEEDS: &str = " needs all of its nodes, and ";
const GOT_NONE: &str = " got no instance ";

/// The sentence of a node of `unit`, which must be whole, where `node` got no instance for `cause`; [`blamed_in`] is the way back.
pub(crate) fn along_with(unit: &str, node: &str, cause: &Failure) -> String {
    format!("{unit}{NEEDS}{node}{GOT_NONE}({}: {})", cause.code, cause.sentence)
}

/// The node that a Reason blames instead of its own: whatever code it carries says nothing about its own node.
pub(crate) fn blamed_in(reason: &str) -> Option<&str> {
    let (node, _) = reason.split_once(NEEDS)?.1.split_once(GOT_NONE)?;
    (!node.contains(' ')).then_some(node)
}

impl Failure {
    /// The text of the node's `Reason`: one short line (slurm-facts D.3), no quotes, no control characters.
    pub(crate) fn reason(&self, next: &str) -> String {
        let mut text = reason_with(&self.code, &self.sentence);
        if !next.is_empty() {
            text.push_str("; ");
            text.push_str(next);
        }
        let clean: String = text.chars().map(|c| if c.is_control() || c == '"' { ' ' } else { c }).collect();
        if clean.len() > MAX_REASON {
            let mut cut = MAX_REASON - 3;
            while !clean.is_char_boundary(cut) {
                cut -= 1;
            }
            format!("{}...", &clean[..cut])
        } else {
            clean
        }
    }
}

/// Bytes of a reason: short enough for one line of `sinfo -R`'s long form, long enough for EC2's sentence.
const MAX_REASON: usize = 300;

/// A group that is left alone for a while because launches failed (kept in the state folder).
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Backoff {
    pub(crate) code: String,
    pub(crate) kind: BackoffKind,
    pub(crate) sentence: String,
    pub(crate) until: super::time::Timestamp,
}

/// How long a group is left alone, by kind; zero = not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BackoffTimes {
    pub(crate) capacity: Duration,
    pub(crate) quota: Duration,
    pub(crate) configuration: Duration,
}

impl BackoffTimes {
    pub(crate) fn of(&self, kind: BackoffKind) -> Duration {
        match kind {
            BackoffKind::Capacity => self.capacity,
            BackoffKind::Quota => self.quota,
            BackoffKind::Configuration => self.configuration,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_short_line() {
        let failure = Failure {
            code: "InsufficientInstanceCapacity".into(),
            class: ErrorClass::Capacity,
            sentence: format!("no \"capacity\"\nin eu-west-1a {}", "é".repeat(400)),
            request_id: None,
        };
        let reason = failure.reason("tried again in 10m");
        assert!(reason.starts_with("(Code:InsufficientInstanceCapacity)no  capacity  in eu-west-1a"), "{reason}");
        assert!(reason.len() <= MAX_REASON && !reason.contains(['"', '\n']), "{reason}");
        assert_eq!(code_of(&reason), Some("InsufficientInstanceCapacity"));
    }

    #[test]
    fn a_reason_names_the_node_that_is_to_blame() {
        let cause = Failure {
            code: "Unsupported".into(),
            class: ErrorClass::ZoneOrType,
            sentence: "job 7 needs all of its nodes, and more".into(),
            request_id: None,
        };
        let along = Failure { sentence: along_with("job 17", "q2-dy-c1-1", &cause), ..cause.clone() };
        assert_eq!(blamed_in(&along.reason("")), Some("q2-dy-c1-1"), "{}", along.sentence);
        for reason in
            [cause.reason(""), String::new(), "job 1 needs all of its nodes, and some of them got no instance x".to_owned()]
        {
            assert_eq!(blamed_in(&reason), None, "{reason}");
        }
    }

    #[test]
    fn a_reason_carries_its_code_as_long_as_it_is_the_reason() {
        for (reason, code) in [
            ("(Code:InsufficientInstanceCapacity)Failure when resuming nodes", Some("InsufficientInstanceCapacity")),
            ("(Code:Unsupported)Temporarily disabling node due to insufficient capacity", Some("Unsupported")),
            ("(Code:VcpuLimitExceeded)no room (32 of 32)", Some("VcpuLimitExceeded")),
            ("x (Code:Exception)y", Some("Exception")),
            ("(Code:LimitedInstanceCapacity)2 of 4 : ResumeTimeout reached", None),
            ("(Code:LimitedInstanceCapacity)2 of 4 : Not responding", None),
            ("Failure when resuming nodes", None),
            ("(Code:)", None),
            ("(Code:Unsupported", None),
            ("", None),
        ] {
            assert_eq!(code_of(reason), code, "{reason}");
        }
    }
}
