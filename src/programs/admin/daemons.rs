//! `slurm-ec2 check`: what would keep the daemons from their work, or make them do it in vain. Settings and slurm.conf in, warnings out:
//! not every cluster runs them. Changes nothing, and asks nobody but the disk.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::machine::User;
use crate::config::settings::{NodeIndex, Settings};
use crate::model::hostlist;
use crate::programs::clustermgtd::policy::suspend_rules;
use crate::programs::startup;
use crate::slurm::conf::{PartitionNodes, SlurmConf, Timeout};

/// The longest that a folder is waited for: heartbeats are on NFS, which may hang for ever.
const FOLDER_WAIT: Duration = Duration::from_secs(10);

/// What slurm.conf says against them.
pub(super) fn slurm_conf(settings: &Settings, conf: &SlurmConf) -> Vec<String> {
    let mut warnings = Vec::new();
    let statics = powered_down_statics(settings, conf);
    if !statics.is_empty() {
        let list = hostlist::compress_sorted(&statics);
        warnings.push(format!(
            "{} static nodes are not in SuspendExcNodes: {}; Slurm powers them down when they are idle and clustermgtd starts them \
             again and again; add them there",
            statics.len(),
            startup::shorten(&list)
        ));
    }
    let known = |name: &&String| conf.partitions.iter().any(|partition| partition.name == **name);
    let partitions = &settings.clustermgtd.partitions;
    let strangers: Vec<&str> = partitions.iter().filter(|name| !known(name)).map(String::as_str).collect();
    if !strangers.is_empty() && !conf.partitions.is_empty() {
        warnings.push(format!("clustermgtd is to look after partitions that slurm.conf has not: {}", strangers.join(", ")));
    }
    warnings
}

/// The static nodes that Slurm powers down by itself.
fn powered_down_statics(settings: &Settings, conf: &SlurmConf) -> Vec<String> {
    let is_on = |time: &Option<Timeout>| matches!(time, Some(Timeout::After(_)));
    if !is_on(&conf.suspend_time) && !conf.partitions.iter().any(|partition| is_on(&partition.suspend_time)) {
        return Vec::new();
    }
    let limit = settings.hostlist_limit;
    let names = |list: &str| hostlist::expand(list, limit).map(|expansion| expansion.names).unwrap_or_default();
    let statics: BTreeSet<String> = match &settings.node_group {
        NodeIndex::Names(_) => settings.static_nodes.clone(),
        NodeIndex::Queues(_) => {
            let cloud = conf.nodes.iter().filter(|line| line.is_cloud()).flat_map(|line| names(&line.names));
            cloud.filter(|node| settings.is_static(node) && settings.group_of(node).is_some()).collect()
        }
    };
    let rules = suspend_rules(conf, limit);
    let mut excluded = rules.excluded_nodes;
    for partition in conf.partitions.iter().filter(|partition| rules.excluded_partitions.contains(&partition.name)) {
        match &partition.nodes {
            PartitionNodes::List(list) => excluded.extend(names(list)),
            // Which nodes it has, slurmctld alone knows.
            PartitionNodes::All | PartitionNodes::Unknown => return Vec::new(),
        }
    }
    statics.difference(&excluded).cloned().collect()
}

/// The folders in which they could not write their files.
pub(super) fn folders(settings: &Settings, user: &User) -> Vec<String> {
    let of_others = settings.parallelcluster.as_ref().map(|parallelcluster| &parallelcluster.heartbeat);
    let heartbeats: BTreeSet<&PathBuf> = settings.clustermgtd.heartbeat.iter().chain(of_others).collect();
    let files = heartbeats.into_iter().map(|path| ("clustermgtd's heartbeat", path));
    let files = files.chain(settings.fleet.status_file.iter().map(|path| ("the copy of the fleet's status", path)));
    files.filter_map(|(what, path)| closed(path, user).map(|why| format!("{what} cannot be written: {why}"))).collect()
}

/// Why no file can be made there; `None`: it can.
fn closed(path: &Path, user: &User) -> Option<String> {
    let folder = path.parent()?.to_owned();
    let (sender, receiver) = mpsc::channel();
    let looked = folder.clone();
    // Left behind where it hangs.
    thread::spawn(move || drop(sender.send(fs::metadata(looked))));
    match receiver.recv_timeout(FOLDER_WAIT) {
        Err(_) => Some(format!("{} does not answer within {} s", folder.display(), FOLDER_WAIT.as_secs())),
        Ok(Err(error)) => Some(format!("{}: {error}", folder.display())),
        Ok(Ok(meta)) if !meta.is_dir() => Some(format!("{} is no folder", folder.display())),
        Ok(Ok(meta)) => {
            (!user.may_write(&folder, &meta)).then(|| format!("{} may not make a file in {}", user.shown(), folder.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::file::parse;
    use crate::slurm::conf;

    const FILE: &str = "cluster = \"hpc\"\nregion = \"eu-west-1\"\n[[group]]\nname = \"c5\"\nnodes = \"c5-[1-4]\"\n\
                        static_nodes = \"c5-[1-3]\"\nlaunch_template = \"abc\"\n";
    const POWER: &str = "SuspendTime=600\nNodeName=c5-[1-4] State=CLOUD\nPartitionName=p Nodes=c5-[1-4]\n";

    fn settings(more: &str) -> Settings {
        parse(Path::new("x.toml"), &FILE.replace("[[group]]", &format!("{more}\n[[group]]"))).unwrap()
    }

    fn warned(settings: &Settings, text: &str) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slurm.conf");
        crate::store::atomic::replace(&path, text.as_bytes(), 0o644).unwrap();
        slurm_conf(settings, &conf::read(&path).unwrap())
    }

    #[test]
    fn static_nodes_that_slurm_would_power_down() {
        let settings = settings("");
        let told = |lines: &str| warned(&settings, &format!("{POWER}{lines}")).join("\n");
        assert!(told("").starts_with("3 static nodes are not in SuspendExcNodes: \"c5-[1-3]\"; "), "{}", told(""));
        assert!(told("SuspendExcNodes=c5-[1-2]\n").starts_with("1 static nodes are not in SuspendExcNodes: \"c5-3\"; "));
        assert_eq!(told("SuspendExcNodes=c5-[1-3]\n"), "");
        assert_eq!(told("SuspendExcParts=p\n"), "");
        assert_eq!(told("PartitionName=q Nodes=ALL\nSuspendExcParts=q\n"), "");
        // Nothing is powered down at all.
        assert_eq!(warned(&settings, &POWER.replace("600", "-1")), Vec::<String>::new());
        let of_a_partition = POWER.replace("600", "-1") + "PartitionName=q Nodes=c5-1 SuspendTime=60\n";
        assert_eq!(warned(&settings, &of_a_partition).len(), 1);
    }

    #[test]
    fn in_parallelcluster_the_names_say_which_are_static() {
        let text = "cluster = \"o\"\nregion = \"eu-west-1\"\n[parallelcluster]\nheartbeat = \"/h\"\n[[group]]\nname = \"q/r\"\nqueue = \"q\"\n\
                    compute_resource = \"r\"\nlaunch_template = \"abc\"\n";
        let settings = parse(Path::new("x.toml"), text).unwrap();
        let conf = "SuspendTime=600\nNodeName=q-st-r-[1-2],q-dy-r-[1-9],x-st-y-1 State=CLOUD\nNodeName=q-st-r-9\n";
        let [warning] = &warned(&settings, conf)[..] else { panic!("{:?}", warned(&settings, conf)) };
        assert!(warning.starts_with("2 static nodes are not in SuspendExcNodes: \"q-st-r-[1-2]\"; "), "{warning}");
        assert!(warned(&settings, &format!("{conf}SuspendExcNodes=q-st-r-[1-2]\n")).is_empty());
    }

    #[test]
    fn partitions_that_are_not_there() {
        let settings = settings("[clustermgtd]\npartitions = [\"p\", \"q\", \"r\"]");
        let text = format!("{POWER}SuspendExcNodes=c5-[1-3]\nPartitionName=q Nodes=c5-1\n");
        assert_eq!(warned(&settings, &text), ["clustermgtd is to look after partitions that slurm.conf has not: r"]);
    }

    #[test]
    fn folders_that_are_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().display();
        let settings = settings(&format!(
            "[clustermgtd]\nheartbeat = \"{root}/heartbeat\"\n[fleet]\nstatus_file = \"{root}/nowhere/status.json\""
        ));
        let user = User::of(&settings, &SlurmConf::default());
        let found = folders(&settings, &user);
        assert_eq!(found.len(), 1, "{found:?}");
        let begin = format!("the copy of the fleet's status cannot be written: {root}/nowhere: No such file");
        assert!(found[0].starts_with(&begin), "{found:?}");
    }
}
