//! What a person drained or set down stays out of service when the fleet stops: nodes in, the Reasons to tell Slurm out.
//!
//! Slurm drops DRAIN and DOWN when it powers a node down. It keeps the Reason, until `state=resume` takes that away
//! (docs/slurm-notes.md). So the order that takes such a node off says in its Reason that the node was so, and why; whoever finds that
//! Reason on a node that goes off or is off drains it, with what the person said. Nothing else remembers it: order and mark come into
//! Slurm as one, whatever ends a program in between, and a person who resumes the node has taken the mark away.

use crate::model::node::SlurmNode;
use crate::plan::reasons::{self, STOPPING};
use crate::plan::reconcile::state::is_rebooting;

/// Between the stop's own word and the person's. A node that was down is drained afterwards too: DOWN would not stay.
const WAS_DRAINED: &str = ", was drained: ";
const WAS_DOWN: &str = ", was down: ";

/// The Reason with which a node is to be taken off, so that it can be drained again; `None`: nobody drained it or set it down.
pub(super) fn marked(node: &SlurmNode) -> Option<String> {
    let reason = node.reason.as_deref()?.trim();
    if what_was_said(Some(reason)).is_some() {
        return Some(reason.to_owned());
    }
    if is_rebooting(&node.state) || !reasons::is_a_persons(Some(reason)) {
        return None;
    }
    let was = if node.state.has("DRAIN") {
        WAS_DRAINED
    } else if is_down_by_a_person(node) {
        WAS_DOWN
    } else {
        return None;
    };
    Some(format!("{STOPPING}{was}{reason}"))
}

/// A person's Reason is the node's. One that slurmctld has added to may be left of an earlier time, and the node down by its word; one that
/// somebody powers down as well is to come back.
fn is_down_by_a_person(node: &SlurmNode) -> bool {
    node.state.is_down() && !node.state.power_down_requested() && !reasons::has_slurms(node.reason.as_deref())
}

/// What the person said who drained the node, or set it down, that a stop has since taken off; `None`: there is no such mark.
pub(crate) fn what_was_said(reason: Option<&str>) -> Option<&str> {
    let rest = reason?.trim().strip_prefix(STOPPING)?;
    let said = [WAS_DRAINED, WAS_DOWN].iter().find_map(|was| rest.strip_prefix(was))?;
    (!said.is_empty()).then_some(said)
}
