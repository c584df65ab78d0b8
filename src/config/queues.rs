//! ParallelCluster's node names, `{queue}-{st|dy}-{resource}-{n}`, resolved against the queues and resources that are configured, so that
//! names which contain `-st-` or `-dy-` themselves cannot be misread (aws-facts B.10).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Queue and resource → index into the groups, or why there is none.
#[derive(Debug, Clone, Default)]
pub(crate) struct QueueIndex {
    groups: BTreeMap<(String, String), Entry>,
    queues: BTreeSet<String>,
    /// Queues that cannot be read at all, with the reason.
    broken_queues: BTreeMap<String, String>,
    /// Where the queues are written, when that is not the configuration itself.
    file: Option<PathBuf>,
}

#[derive(Debug, Clone)]
enum Entry {
    Group(u32),
    /// Configured, but not so that its nodes could be launched.
    Broken(String),
}

/// Why a name belongs to no group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotANode {
    #[error("the node's name is not of the form queue-st-resource-N or queue-dy-resource-N")]
    Form,
    #[error("{0}")]
    Unknown(String),
    #[error("it can be read as {0} and as {1}: rename one of them")]
    Ambiguous(String, String),
    /// Its compute resource has mistakes; the text names file and key.
    #[error("{0}")]
    Broken(String),
}

/// One way to read a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading<'n> {
    pub(crate) queue: &'n str,
    pub(crate) resource: &'n str,
    pub(crate) is_static: bool,
}

impl QueueIndex {
    /// For the queues of a file of their own.
    pub(crate) fn of(file: &Path) -> Self {
        Self { file: Some(file.to_owned()), ..Self::default() }
    }

    /// Adds a compute resource.
    pub(crate) fn insert(&mut self, queue: &str, resource: &str, group: u32) {
        self.queues.insert(queue.to_owned());
        self.groups.insert((queue.to_owned(), resource.to_owned()), Entry::Group(group));
    }

    /// Adds a compute resource whose nodes cannot be launched; the others can.
    pub(crate) fn insert_broken(&mut self, queue: &str, resource: &str, why: String) {
        self.queues.insert(queue.to_owned());
        self.groups.insert((queue.to_owned(), resource.to_owned()), Entry::Broken(why));
    }

    /// Adds a queue none of whose nodes can be launched.
    pub(crate) fn insert_broken_queue(&mut self, queue: &str, why: String) {
        self.queues.insert(queue.to_owned());
        self.broken_queues.insert(queue.to_owned(), why);
    }

    /// Every queue that is configured, in order.
    pub(crate) fn queues(&self) -> impl Iterator<Item = &str> {
        self.queues.iter().map(String::as_str)
    }

    /// Why some nodes cannot be launched: one text for each such queue and compute resource.
    pub(crate) fn broken(&self) -> impl Iterator<Item = &str> {
        let resources = self.groups.values().filter_map(|entry| match entry {
            Entry::Broken(why) => Some(why.as_str()),
            Entry::Group(_) => None,
        });
        self.broken_queues.values().map(String::as_str).chain(resources)
    }

    /// The group of a node.
    pub(crate) fn get(&self, node: &str) -> Result<usize, NotANode> {
        let mut possible = readings(node).peekable();
        if possible.peek().is_none() {
            return Err(NotANode::Form);
        }
        let mut unknown: Vec<String> = Vec::new();
        let mut found: Option<(Result<u32, NotANode>, String)> = None;
        let mut in_broken_queue = None;
        for reading in possible {
            let Some(entry) = self.entry(&reading) else {
                match self.broken_queues.get(reading.queue) {
                    Some(why) => in_broken_queue = in_broken_queue.or(Some(why)),
                    None => unknown.push(self.missing(&reading)),
                }
                continue;
            };
            let label = format!("queue {} with compute resource {}", reading.queue, reading.resource);
            if let Some((_, first)) = found {
                return Err(NotANode::Ambiguous(first, label));
            }
            found = Some((entry, label));
        }
        match (found, in_broken_queue) {
            (Some((entry, _)), _) => entry.map(|group| group as usize),
            (None, Some(why)) => Err(NotANode::Broken(why.clone())),
            (None, None) => {
                unknown.dedup();
                let file = self.file.as_ref().map_or_else(|| "the configuration".to_owned(), |file| file.display().to_string());
                Err(NotANode::Unknown(format!("{file} has no {}", unknown.join(", nor "))))
            }
        }
    }

    /// Is this a static node (`st`)? By the reading that is configured, else by the last one that is possible, as the Python package
    /// reads names.
    pub(crate) fn is_static(&self, node: &str) -> bool {
        let configured = readings(node).find(|reading| self.entry(reading).is_some());
        let possible = || readings(node).find(|reading| self.broken_queues.contains_key(reading.queue));
        configured.or_else(possible).or_else(|| readings(node).last()).is_some_and(|reading| reading.is_static)
    }

    /// A compute resource that is configured. A queue that cannot be read may have this one or not, so it does not make a name
    /// ambiguous.
    fn entry(&self, reading: &Reading<'_>) -> Option<Result<u32, NotANode>> {
        Some(match self.groups.get(&(reading.queue.to_owned(), reading.resource.to_owned()))? {
            Entry::Group(group) => Ok(*group),
            Entry::Broken(why) => Err(NotANode::Broken(why.clone())),
        })
    }

    /// What a reading asks for and the configuration has not.
    fn missing(&self, reading: &Reading<'_>) -> String {
        let Reading { queue, resource, .. } = reading;
        if self.queues.contains(*queue) {
            format!("compute resource {resource} in queue {queue}")
        } else {
            format!("queue {queue}")
        }
    }
}

/// Every way to read a name, from the left.
pub(crate) fn readings(node: &str) -> impl DoubleEndedIterator<Item = Reading<'_>> {
    let stem =
        node.rsplit_once('-').filter(|(_, n)| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit())).map(|(stem, _)| stem);
    let stem = stem.unwrap_or_default();
    (0..stem.len()).filter_map(move |at| {
        let rest = stem.get(at..)?;
        let (is_static, resource) = match (rest.strip_prefix("-st-"), rest.strip_prefix("-dy-")) {
            (Some(resource), _) => (true, resource),
            (None, Some(resource)) => (false, resource),
            (None, None) => return None,
        };
        let queue = &stem[..at];
        (!queue.is_empty() && !resource.is_empty()).then_some(Reading { queue, resource, is_static })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(names: &[(&str, &str)]) -> QueueIndex {
        let mut index = QueueIndex::default();
        for (group, (queue, resource)) in names.iter().enumerate() {
            index.insert(queue, resource, u32::try_from(group).expect("small"));
        }
        index
    }

    fn why(index: &QueueIndex, node: &str) -> String {
        index.get(node).expect_err("no node").to_string()
    }

    #[test]
    fn names_that_contain_st_or_dy_find_their_queue() {
        let index = index(&[("q-dy", "dy"), ("a", "st-b"), ("x-st-y", "z"), ("apple", "core")]);
        for (node, group, is_static) in [
            ("q-dy-dy-dy-1", 0, false),
            ("q-dy-st-dy-12", 0, true),
            ("a-dy-st-b-3", 1, false),
            ("a-st-st-b-3", 1, true),
            ("x-st-y-dy-z-7", 2, false),
            ("apple-st-core-2", 3, true),
            ("apple-dy-core-18", 3, false),
        ] {
            assert_eq!(index.get(node), Ok(group), "{node}");
            assert_eq!(index.is_static(node), is_static, "{node}");
        }
    }

    #[test]
    fn a_name_that_fits_twice_is_refused_and_says_which() {
        let index = index(&[("a", "b-dy-c"), ("a-dy-b", "c")]);
        assert_eq!(
            why(&index, "a-dy-b-dy-c-1"),
            "it can be read as queue a with compute resource b-dy-c and as queue a-dy-b with compute resource c: rename one of them"
        );
        // With st in the middle only one fits.
        assert_eq!(index.get("a-st-b-dy-c-1"), Ok(0));
        assert_eq!(index.get("a-dy-b-st-c-1"), Ok(1));
    }

    #[test]
    fn an_unknown_name_says_what_is_missing() {
        assert_eq!(why(&QueueIndex::of(Path::new("/f.json")), "a-dy-b-1"), "/f.json has no queue a");
        let index = index(&[("apple", "core"), ("q-dy", "dy")]);
        assert_eq!(why(&index, "apple-dy-seed-1"), "the configuration has no compute resource seed in queue apple");
        assert_eq!(why(&index, "pear-dy-core-1"), "the configuration has no queue pear");
        assert_eq!(why(&index, "p-dy-q-st-r-1"), "the configuration has no queue p, nor queue p-dy-q");
        for node in
            ["apple-xx-core-1", "apple-dy-core-", "apple-dy-core", "-dy-core-1", "apple-dy--1", "", "1", "apple-dy-core-1x"]
        {
            assert_eq!(index.get(node), Err(NotANode::Form), "{node}");
        }
        assert!(matches!(index.get("Apple-dy-core-1"), Err(NotANode::Unknown(_))));
    }

    #[test]
    fn a_broken_resource_fails_its_own_nodes_alone() {
        let mut index = index(&[("apple", "core")]);
        index.insert_broken("apple", "seed", "/f.json: apple.seed.Api is missing".into());
        index.insert_broken_queue("pear", "/f.json: pear is no object".into());
        assert_eq!(index.get("apple-dy-core-1"), Ok(0));
        assert_eq!(why(&index, "apple-dy-seed-1"), "/f.json: apple.seed.Api is missing");
        assert_eq!(why(&index, "pear-st-any-1"), "/f.json: pear is no object");
        assert!(index.is_static("pear-st-any-1"));
        assert_eq!(index.broken().count(), 2);
    }

    #[test]
    fn a_broken_queue_takes_no_name_from_a_configured_resource() {
        let mut index = index(&[("a-dy-b", "c"), ("x", "y-st-z")]);
        index.insert_broken_queue("a", "/f.json: a is no object".into());
        index.insert_broken_queue("x-dy-y", "/f.json: x-dy-y is no object".into());
        assert_eq!(index.get("a-dy-b-st-c-1"), Ok(0));
        assert_eq!(index.get("x-dy-y-st-z-1"), Ok(1));
        assert!(index.is_static("a-dy-b-st-c-1") && !index.is_static("x-dy-y-st-z-1"));
        // What nobody else has may be the broken queue's.
        assert_eq!(why(&index, "a-dy-b-st-d-1"), "/f.json: a is no object");
        assert!(!index.is_static("a-dy-b-st-d-1"));
        // A broken compute resource is configured all the same.
        index.insert_broken("a-dy-b", "e", "/f.json: a-dy-b.e.Api is missing".into());
        assert_eq!(why(&index, "a-dy-b-dy-e-1"), "/f.json: a-dy-b.e.Api is missing");
    }

    #[test]
    fn static_or_dynamic_without_a_configured_reading_goes_by_the_last() {
        let index = QueueIndex::default();
        assert!(index.is_static("a-dy-b-st-c-1") && !index.is_static("a-st-b-dy-c-1") && !index.is_static("login-1"));
    }
}
