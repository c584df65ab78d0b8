//! The package's ways (aws-facts C.3 to C.5), told as plainly as they can be: one call after the other. Ours must back the same
//! nodes for any jobs and any capacity, and give the same codes.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::{prop_assert_eq, proptest};

use super::properties::{Case, GROUPS, case};
use super::simulated::{Capacity, SHORTAGE, run};
use crate::model::failure::codes;
use crate::model::policy::{ScaleBy, Strategy};

#[derive(Default)]
struct Package {
    batch_size: usize,
    left: BTreeMap<String, usize>,
    pool: BTreeMap<String, usize>,
    backed: BTreeSet<String>,
    codes: BTreeMap<String, &'static str>,
}

type Parts = Vec<(String, Vec<String>)>;

impl Package {
    fn parts(&self, nodes: &[String]) -> Parts {
        let mut parts: Parts = Vec::new();
        for node in nodes.iter().filter(|node| !self.backed.contains(*node)) {
            let group = node.split('-').next().unwrap();
            match parts.iter_mut().find(|(name, _)| name == group) {
                Some((_, nodes)) if nodes.contains(node) => {}
                Some((_, nodes)) => nodes.push(node.clone()),
                None => parts.push((group.to_owned(), vec![node.clone()])),
            }
        }
        parts
    }

    /// One launch pass: how many instances each group has. `ask`: `None` = from the pool alone.
    fn pass(&mut self, parts: &Parts, ask: Option<Strategy>, for_a_job: bool) -> BTreeMap<String, usize> {
        let mut launched = BTreeMap::new();
        for (group, nodes) in parts {
            let pool = self.pool.entry(group.clone()).or_default();
            let taken = nodes.len().min(*pool);
            *pool -= taken;
            let mut got = taken;
            let mut stop = false;
            for batch in nodes[taken..].chunks(self.batch_size).take_while(|_| ask.is_some()) {
                let all = ask == Some(Strategy::AllOrNothing);
                let left = self.left.entry(group.clone()).or_default();
                let given = if *left < if all { batch.len() } else { 1 } { 0 } else { batch.len().min(*left) };
                *left -= given;
                got += given;
                if given == 0 {
                    self.codes.extend(batch.iter().map(|node| (node.clone(), SHORTAGE)));
                }
                stop = for_a_job && all && given < batch.len();
                if stop {
                    break;
                }
            }
            launched.insert(group.clone(), got);
            if stop {
                break;
            }
        }
        launched
    }

    fn assign(&mut self, parts: &Parts, launched: &BTreeMap<String, usize>, whole: bool) {
        let got = |group: &String| launched.get(group).copied().unwrap_or(0);
        let some = parts.iter().any(|(group, _)| got(group) > 0);
        let all = parts.iter().all(|(group, nodes)| got(group) >= nodes.len());
        for (group, nodes) in parts {
            let bound = if whole && !all { 0 } else { got(group) };
            if whole && !all && got(group) >= nodes.len() {
                // Ours: an older code says nothing of a group that gave all that the unit needs.
                self.codes.retain(|node, _| !nodes.contains(node));
            }
            for (at, node) in nodes.iter().enumerate() {
                if at < bound {
                    self.backed.insert(node.clone());
                    self.codes.remove(node);
                } else {
                    self.codes.entry(node.clone()).or_insert(if some { codes::LIMITED } else { SHORTAGE });
                }
            }
            *self.pool.entry(group.clone()).or_default() += got(group) - bound;
        }
    }

    fn group_of_nodes(&mut self, nodes: &[String], ask: Strategy, whole: bool) {
        let parts = self.parts(nodes);
        let launched = self.pass(&parts, Some(ask), false);
        self.assign(&parts, &launched, whole);
    }

    fn run(case: &Case, left: &BTreeMap<String, usize>) -> Self {
        let mut package = Self { batch_size: case.batch_size, left: left.clone(), ..Self::default() };
        let jobs: Vec<(usize, Vec<String>)> = case
            .jobs
            .iter()
            .map(|job| (job.len(), job.iter().filter(|node| case.nodes.contains(node)).cloned().collect::<Vec<_>>()))
            .filter(|(_, nodes)| !nodes.is_empty())
            .collect();
        let whole = case.strategy != Strategy::BestEffort;
        if case.scale_by == ScaleBy::Call || case.jobs.is_empty() {
            package.group_of_nodes(&case.nodes, case.strategy, whole);
            return package;
        }
        // Ours: a node of no job counts as a single one.
        let mut singles: Vec<String> = jobs.iter().filter(|(len, _)| *len == 1).flat_map(|(_, nodes)| nodes.clone()).collect();
        singles.extend(case.nodes.iter().filter(|node| !case.jobs.iter().any(|job| job.contains(node))).cloned());
        package.group_of_nodes(&singles, Strategy::BestEffort, false);
        let multi: Vec<&Vec<String>> = jobs.iter().filter(|(len, _)| *len > 1).map(|(_, nodes)| nodes).collect();
        if case.strategy != Strategy::AllOrNothing || multi.len() > 1 {
            let parts = package.parts(&multi.iter().copied().flatten().cloned().collect::<Vec<_>>());
            for (group, got) in package.pass(&parts, Some(case.strategy), false) {
                *package.pool.entry(group).or_default() += got;
            }
        }
        for nodes in multi {
            let parts = package.parts(nodes);
            let more = (case.strategy == Strategy::AllOrNothing).then_some(Strategy::AllOrNothing);
            let launched = package.pass(&parts, more, true);
            package.assign(&parts, &launched, whole);
        }
        package
    }
}

proptest! {
    #[test]
    fn the_same_nodes_are_backed_and_the_same_codes_given(
        mut case in case(),
        left in proptest::collection::vec(0usize..12, GROUPS.len()),
    ) {
        case.refused.clear();
        if case.scale_by == ScaleBy::Batch {
            case.scale_by = ScaleBy::Job;
        }
        let left: BTreeMap<String, usize> = GROUPS.iter().map(|&group| group.to_owned()).zip(left).collect();
        let groups = case.groups();
        let ours = run(case.request(&groups), &mut Capacity { left: left.clone(), ..Capacity::default() });
        let package = Package::run(&case, &left);
        prop_assert_eq!(ours.backed.keys().cloned().collect::<BTreeSet<_>>(), package.backed.clone());
        let failed: BTreeMap<&str, &str> = package.codes.iter().map(|(node, code)| (node.as_str(), *code)).collect();
        if case.strategy == Strategy::AllOrNothing && case.scale_by == ScaleBy::Job {
            // What a pass launches too many lies in our pool: a later job may lack other nodes, and with other codes.
            prop_assert_eq!(ours.codes().into_keys().collect::<Vec<_>>(), failed.into_keys().collect::<Vec<_>>());
        } else {
            prop_assert_eq!(ours.codes(), failed);
        }
    }
}
