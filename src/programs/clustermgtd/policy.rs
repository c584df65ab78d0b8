//! What the decision goes by: configuration and slurm.conf in, [`Policy`] out, and whose each node is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::config::settings::Settings;
use crate::model::hostlist;
use crate::plan::fleet_status;
use crate::plan::reconcile::{GroupView, Member, Policy, SuspendRules};
use crate::slurm::conf::{SlurmConf, Timeout};
use crate::slurm::version::Version;

/// `nodes` are all that Slurm shows. Whether those are all that it has, [`hides_off_nodes`] tells, for whoever knows the version.
pub(super) fn of(settings: &Settings, conf: Option<&SlurmConf>, nodes: &BTreeMap<String, Member>) -> Policy {
    Policy {
        upkeep: settings.clustermgtd.upkeep.clone(),
        groups: settings.groups.iter().map(view).collect(),
        partitions: fleet_status::partitions(
            &settings.clustermgtd.partitions,
            nodes.values().map(|member| (&member.slurm, member.group.is_some())),
        ),
        parallelcluster: settings.parallelcluster.is_some(),
        suspend: conf.map(|conf| suspend_rules(conf, settings.hostlist_limit)).unwrap_or_default(),
        hides_off_nodes: false,
    }
}

/// Slurm shows no nodes that are off (slurm-facts F). Of a slurm.conf that could not be read the worse is believed.
pub(super) fn hides_off_nodes(version: Version, conf: Option<&SlurmConf>) -> bool {
    version.hides_powered_down_nodes() && !conf.is_some_and(|conf| conf.has_private_data("cloud"))
}

/// What is to be said then.
pub(super) const HIDDEN: &str = "PrivateData in slurm.conf lacks cloud: this Slurm does not show the nodes that are powered off, so \
                                 they cannot be looked after; write PrivateData=cloud and restart slurmctld";

fn view(group: &crate::model::recipe::Group) -> GroupView {
    GroupView { name: group.name.clone(), backoff: group.launch.backoff, block: group.capacity_reservation.clone() }
}

/// What slurm.conf says about powering idle nodes down. Lists that cannot be read exclude nothing by name; a node that is excluded in
/// truth then at worst gets a request to power down that slurmctld does not carry out while it is busy.
pub(in crate::programs) fn suspend_rules(conf: &SlurmConf, limit: usize) -> SuspendRules {
    let words = |key: &str| -> Vec<String> {
        let list = conf.get(key).unwrap_or_default();
        list.split(',').map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect()
    };
    let own = conf.partitions.iter().filter_map(|partition| Some((partition.name.clone(), finite(partition.suspend_time?))));
    SuspendRules {
        time: conf.suspend_time.and_then(finite),
        partitions: own.collect(),
        excluded_nodes: excluded(conf.get("SuspendExcNodes").unwrap_or_default(), limit),
        excluded_partitions: words("SuspendExcParts").into_iter().collect(),
        excluded_states: words("SuspendExcStates").iter().map(|word| word.to_lowercase()).collect(),
    }
}

fn finite(time: Timeout) -> Option<Duration> {
    match time {
        Timeout::After(time) => Some(time),
        Timeout::Infinite => None,
    }
}

/// The names of `SuspendExcNodes`: host lists, each perhaps with a count behind a colon, which stands for all of it here.
fn excluded(text: &str, limit: usize) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for part in outside_brackets(text) {
        let list = part.rsplit_once(':').map_or(part, |(list, _)| list);
        match hostlist::expand(list, limit) {
            Ok(expansion) => names.extend(expansion.names),
            Err(_) => drop(names.insert(list.to_owned())),
        }
    }
    names
}

/// The parts between commas that stand in no bracket.
fn outside_brackets(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (at, c) in text.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn excluded_nodes_with_and_without_a_count() {
        let names = excluded("c5-[1-2,4],gpu-1:1,big-[7-8]:2", 100);
        assert_eq!(names.iter().map(String::as_str).collect::<Vec<_>>(), ["big-7", "big-8", "c5-1", "c5-2", "c5-4", "gpu-1"]);
        assert!(excluded("", 100).is_empty());
    }

    #[test]
    fn nodes_that_are_off_are_hidden_by_old_versions_without_private_data() {
        let (dir, version) = (tempfile::tempdir().unwrap(), |major, minor| Version { major, minor, patch: 8 });
        let path = dir.path().join("slurm.conf");
        for (text, old) in [("PrivateData=jobs,cloud\n", false), ("PrivateData=jobs\n", true), ("SuspendTime=600\n", true)] {
            crate::store::atomic::replace(&path, text.as_bytes(), 0o644).unwrap();
            let conf = crate::slurm::conf::read(&path).unwrap();
            assert_eq!(hides_off_nodes(version(22, 5), Some(&conf)), old, "{text}");
            assert!(!hides_off_nodes(version(23, 2), Some(&conf)), "{text}");
        }
        assert!(hides_off_nodes(version(22, 5), None));
    }

    #[test]
    fn m28_times_of_the_cluster_and_of_partitions() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slurm.conf");
        let text = "SuspendTime=600\nSuspendExcParts=a,b\nSuspendExcStates=DOWN,PLANNED\nSuspendExcNodes=c5-1\n\
                    PartitionName=q Nodes=c5-1 SuspendTime=INFINITE\nPartitionName=p Nodes=c5-1 SuspendTime=60\nPartitionName=r Nodes=c5-1\n";
        crate::store::atomic::replace(&path, text.as_bytes(), 0o644).unwrap();
        let rules = suspend_rules(&crate::slurm::conf::read(&path).unwrap(), 100);
        assert_eq!(rules.time, Some(Duration::from_secs(600)));
        assert_eq!(rules.partitions, BTreeMap::from([("q".to_owned(), None), ("p".to_owned(), Some(Duration::from_secs(60)))]));
        assert!(rules.excluded_partitions.contains("b") && rules.excluded_states.contains("planned"));
        assert!(rules.excluded_nodes.contains("c5-1"));
    }
}
