//! ParallelCluster's node names, `{queue}-{st|dy}-{resource}-{n}`, resolved against the queues and resources that are configured, so that
//! names which contain `-st-` or `-dy-` themselves cannot be misread (aws-facts B.10).

use std::collections::BTreeMap;

/// Queue and resource → index into the groups.
#[derive(Debug, Clone, Default)]
pub(crate) struct QueueIndex {
    groups: BTreeMap<(String, String), u32>,
}

/// Why a name belongs to no group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotANode {
    #[error("it is not of the form queue-st-resource-N or queue-dy-resource-N")]
    Form,
    #[error("the configuration has no {0}")]
    Unknown(String),
    #[error("it can be read as {0} and as {1}: rename one of them")]
    Ambiguous(String, String),
}

impl QueueIndex {
    /// Adds a compute resource.
    pub(crate) fn insert(&mut self, queue: &str, resource: &str, group: u32) {
        self.groups.insert((queue.to_owned(), resource.to_owned()), group);
    }

    /// The group of a node.
    pub(crate) fn get(&self, node: &str) -> Result<usize, NotANode> {
        let mut readings = readings(node).peekable();
        if readings.peek().is_none() {
            return Err(NotANode::Form);
        }
        let mut unknown = Vec::new();
        let mut found: Option<(usize, String)> = None;
        for (queue, resource) in readings {
            let label = format!("queue {queue} with compute resource {resource}");
            match (self.groups.get(&(queue.to_owned(), resource.to_owned())), &found) {
                (Some(_), Some((_, first))) => return Err(NotANode::Ambiguous(first.clone(), label)),
                (Some(group), None) => found = Some((*group as usize, label)),
                (None, _) => unknown.push(label),
            }
        }
        found.map(|(group, _)| group).ok_or_else(|| NotANode::Unknown(unknown.join(", nor ")))
    }
}

/// Is this node static (`st`)? By the reading that is configured, else the last possible one.
pub(crate) fn readings(node: &str) -> impl Iterator<Item = (&str, &str)> {
    let stem = node.rsplit_once('-').filter(|(_, n)| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit())).map(|(stem, _)| stem);
    let stem = stem.unwrap_or_default();
    (0..stem.len()).filter_map(move |at| {
        let rest = stem.get(at..)?;
        let resource = rest.strip_prefix("-st-").or_else(|| rest.strip_prefix("-dy-"))?;
        let queue = &stem[..at];
        (!queue.is_empty() && !resource.is_empty()).then_some((queue, resource))
    })
}
