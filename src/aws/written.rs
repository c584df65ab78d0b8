//! What became of telling an AWS service about many nodes.

use crate::model::failure::Failure;

/// Each node is in exactly one of the lists.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Written {
    pub(crate) done: Vec<String>,
    /// For good: repeating would not help.
    pub(crate) refused: Vec<(String, Failure)>,
    /// Time ran out first; it may have been written. Repeating does no harm.
    pub(crate) unknown: Vec<String>,
    /// The last reason for `unknown`.
    pub(crate) why_unknown: Option<String>,
}

impl Written {
    pub(crate) fn absorb(&mut self, mut other: Self) {
        self.done.append(&mut other.done);
        self.refused.append(&mut other.refused);
        self.unknown.append(&mut other.unknown);
        self.why_unknown = other.why_unknown.or(self.why_unknown.take());
    }

    pub(crate) fn refuse(&mut self, nodes: impl IntoIterator<Item = String>, failure: &Failure) {
        self.refused.extend(nodes.into_iter().map(|node| (node, failure.clone())));
    }

    /// Time is up; `last` is the last thing that went wrong, if anything did.
    pub(crate) fn give_up(&mut self, nodes: impl IntoIterator<Item = String>, last: Option<String>) {
        self.unknown.extend(nodes);
        self.why_unknown = Some(last.unwrap_or_else(|| "no time was left".to_owned()));
    }
}
