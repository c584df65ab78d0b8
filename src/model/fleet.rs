//! The compute fleet: may nodes run at all? The words and transitions are ParallelCluster's (aws-facts B.7, D.8), standalone too.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What the fleet is doing, or was asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum FleetStatus {
    Running,
    Stopped,
    Starting,
    Stopping,
    StartRequested,
    StopRequested,
    /// Running, but queues whose nodes fail at boot again and again are inactive. Ends by a start request.
    Protected,
    /// A word that this version does not know: nothing is done because of it.
    Unknown,
}

impl FleetStatus {
    pub(crate) const ALL: [Self; 7] = [
        Self::Running,
        Self::Stopped,
        Self::Starting,
        Self::Stopping,
        Self::StartRequested,
        Self::StopRequested,
        Self::Protected,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Running => "RUNNING",
            Self::Stopped => "STOPPED",
            Self::Starting => "STARTING",
            Self::Stopping => "STOPPING",
            Self::StartRequested => "START_REQUESTED",
            Self::StopRequested => "STOP_REQUESTED",
            Self::Protected => "PROTECTED",
            Self::Unknown => "UNKNOWN",
        }
    }

    pub(crate) fn parse(text: &str) -> Self {
        Self::ALL.into_iter().find(|status| status.as_str() == text.trim()).unwrap_or(Self::Unknown)
    }

    /// May clustermgtd keep nodes and instances as they should be while the fleet runs?
    pub(crate) fn is_running(self) -> bool {
        matches!(self, Self::Running | Self::Protected)
    }
}

impl fmt::Display for FleetStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
