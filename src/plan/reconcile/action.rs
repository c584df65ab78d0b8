//! What a pass may do, as values: `slurm-ec2 reconcile --dry-run` prints the very same list that clustermgtd carries out.

use std::fmt;

use crate::model::fleet::FleetStatus;

/// One thing to do, and why: a sentence for the log, lower case, no full stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Action {
    pub(crate) what: What,
    pub(crate) why: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    /// Tells Slurm something about one node.
    Node {
        node: String,
        order: Order,
        /// The node's Reason; needed for `Down` and `Drain`.
        reason: Option<String>,
    },
    /// Condemns and terminates an instance; frees the node that is mapped to it.
    Terminate {
        instance: String,
        node: Option<String>,
    },
    /// Drops the mapping's entry of a node whose instance is gone or whose claim nobody holds.
    Forget {
        node: String,
    },
    /// Launches an instance for the node as slurm_resume does; in the background. Nodes of one pass go together.
    Launch {
        node: String,
    },
    /// Reads the end of the console of an instance that failed to boot, before it goes; in the background, sampled and bounded.
    Console {
        node: String,
        instance: String,
    },
    /// Takes a partition out of service (protected mode, a stopped fleet).
    Inactivate {
        partition: String,
    },
    Reservation(ReservationOrder),
    /// Changes the fleet's status, if it is still `from`.
    Fleet {
        from: FleetStatus,
        to: FleetStatus,
    },
}

/// `scontrol update nodename=… state=…`
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Order {
    /// `state=down`: jobs are requeued.
    Down,
    /// `state=drain`: what runs goes on, nothing new starts.
    Drain,
    /// `state=power_down`
    PowerDown,
    /// `state=power_down_force`: requeues what runs, then powers down.
    PowerDownForce,
    /// `state=resume`
    Resume,
    /// NodeAddr and NodeHostName become the node's own name.
    ResetAddress,
}

/// Slurm's reservations that keep jobs off nodes of a Capacity Block that is not active.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReservationOrder {
    Create { name: String, nodes: Vec<String> },
    Update { name: String, nodes: Vec<String> },
    Delete { name: String },
}

impl What {
    /// The node it concerns, if it is about one.
    pub(crate) fn node(&self) -> Option<&str> {
        match self {
            Self::Node { node, .. } | Self::Forget { node } | Self::Launch { node } | Self::Console { node, .. } => Some(node),
            Self::Terminate { node, .. } => node.as_deref(),
            Self::Inactivate { .. } | Self::Reservation(_) | Self::Fleet { .. } => None,
        }
    }

    /// Ends a job, an instance or what is known of one: never done on a guess.
    pub(crate) fn is_destructive(&self) -> bool {
        match self {
            Self::Node { order, .. } => !matches!(order, Order::Resume | Order::Drain),
            Self::Terminate { .. } | Self::Forget { .. } | Self::Inactivate { .. } => true,
            Self::Launch { .. } | Self::Console { .. } | Self::Reservation(_) | Self::Fleet { .. } => false,
        }
    }
}

impl Order {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Drain => "drain",
            Self::PowerDown => "power_down",
            Self::PowerDownForce => "power_down_force",
            Self::Resume => "resume",
            Self::ResetAddress => "reset-address",
        }
    }
}

impl fmt::Display for What {
    /// One line of `slurm-ec2 reconcile --dry-run`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node { node, order, reason: None } => write!(f, "{:<16} {node}", order.as_str()),
            Self::Node { node, order, reason: Some(reason) } => write!(f, "{:<16} {node}  reason {reason:?}", order.as_str()),
            Self::Terminate { instance, node: None } => write!(f, "{:<16} {instance}", "terminate"),
            Self::Terminate { instance, node: Some(node) } => write!(f, "{:<16} {instance}  of {node}", "terminate"),
            Self::Forget { node } => write!(f, "{:<16} {node}", "forget"),
            Self::Launch { node } => write!(f, "{:<16} {node}", "launch"),
            Self::Console { node, instance } => write!(f, "{:<16} {instance}  of {node}", "console"),
            Self::Inactivate { partition } => write!(f, "{:<16} partition {partition}", "inactive"),
            Self::Reservation(ReservationOrder::Create { name, .. }) => write!(f, "{:<16} {name}", "reserve"),
            Self::Reservation(ReservationOrder::Update { name, .. }) => write!(f, "{:<16} {name}", "update-reservation"),
            Self::Reservation(ReservationOrder::Delete { name }) => write!(f, "{:<16} {name}", "delete-reservation"),
            Self::Fleet { from, to } => write!(f, "{:<16} {from} to {to}", "fleet"),
        }
    }
}
