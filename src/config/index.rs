//! Which node belongs to which group: the groups' expanded names in, the index and every overlap out.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::settings::NodeIndex;

/// Node names that a report of an overlap shows.
const SHOWN: usize = 3;

/// Two groups that claim the same nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Overlap {
    /// Indexes of the groups, in the order of the file.
    pub(crate) first: usize,
    pub(crate) second: usize,
    /// The first few of the nodes.
    pub(crate) nodes: Vec<String>,
    pub(crate) count: usize,
}

impl Overlap {
    /// `c5-3, c5-4, c5-5 and 95 more`
    pub(crate) fn shown(&self) -> String {
        let names = self.nodes.join(", ");
        match self.count - self.nodes.len() {
            0 => names,
            more => format!("{names} and {more} more"),
        }
    }
}

/// One entry for every name. `lists[i]` belongs to group i; a name keeps the first group that has it.
pub(crate) fn index(lists: Vec<Vec<String>>) -> (NodeIndex, Vec<Overlap>) {
    let mut index: HashMap<String, u32> = HashMap::with_capacity(lists.iter().map(Vec::len).sum());
    let mut overlaps: Vec<Overlap> = Vec::new();
    for (second, names) in lists.into_iter().enumerate() {
        for name in names {
            match index.entry(name) {
                Entry::Vacant(free) => {
                    free.insert(u32::try_from(second).unwrap_or(u32::MAX));
                }
                Entry::Occupied(taken) => {
                    let first = *taken.get() as usize;
                    if first == second {
                        continue;
                    }
                    match overlaps.iter_mut().rfind(|overlap| overlap.first == first && overlap.second == second) {
                        Some(overlap) => {
                            overlap.count += 1;
                            if overlap.nodes.len() < SHOWN {
                                overlap.nodes.push(taken.key().clone());
                            }
                        }
                        None => overlaps.push(Overlap { first, second, nodes: vec![taken.key().clone()], count: 1 }),
                    }
                }
            }
        }
    }
    (NodeIndex::Names(index), overlaps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(from: usize, to: usize) -> Vec<String> {
        (from..=to).map(|n| format!("n{n}")).collect()
    }

    #[test]
    fn every_name_finds_its_group() {
        let (index, overlaps) = index(vec![names(1, 10), Vec::new(), names(11, 20)]);
        assert_eq!(overlaps, []);
        assert_eq!((index.get("n1"), index.get("n11"), index.get("n21")), (Some(0), Some(2), None));
    }

    #[test]
    fn each_pair_that_overlaps_is_reported_once_with_its_count() {
        let (_, overlaps) = index(vec![names(1, 10), names(6, 12), names(10, 11)]);
        let found: Vec<_> = overlaps.iter().map(|o| (o.first, o.second, o.count, o.shown())).collect();
        assert_eq!(
            found,
            [(0, 1, 5, "n6, n7, n8 and 2 more".to_owned()), (0, 2, 1, "n10".to_owned()), (1, 2, 1, "n11".to_owned()),]
        );
    }
}
