//! What a person drained stays drained when the fleet stops: nodes in, the Reasons to tell Slurm out.
//!
//! Slurm drops DRAIN when it powers a node down. It keeps the Reason, until `state=resume` takes that away (docs/slurm-notes.md). So the
//! order that takes such a node off says in its Reason that the node was drained, and why; whoever finds that Reason on a node that goes
//! off or is off drains it again, with what the person said. Nothing else remembers it: order and mark come into Slurm as one, whatever
//! ends a program in between, and a person who resumes the node has taken the mark away.

use crate::model::node::SlurmNode;
use crate::plan::reasons::{self, STOPPING};
use crate::plan::reconcile::state::is_rebooting;

/// Between the stop's own word and the person's.
const WAS_DRAINED: &str = ", was drained: ";

/// The Reason with which a node is to be taken off, so that it can be drained again; `None`: nobody drained it.
pub(super) fn marked(node: &SlurmNode) -> Option<String> {
    let reason = node.reason.as_deref()?.trim();
    if what_was_said(Some(reason)).is_some() {
        return Some(reason.to_owned());
    }
    let is_drained = node.state.has("DRAIN") && !is_rebooting(&node.state) && reasons::is_a_persons(Some(reason));
    is_drained.then(|| format!("{STOPPING}{WAS_DRAINED}{reason}"))
}

/// What the person said who drained the node that a stop has since taken off; `None`: there is no such mark.
pub(crate) fn what_was_said(reason: Option<&str>) -> Option<&str> {
    let said = reason?.trim().strip_prefix(STOPPING)?.strip_prefix(WAS_DRAINED)?;
    (!said.is_empty()).then_some(said)
}
