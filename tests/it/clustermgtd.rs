//! The daemon as a process: what it does to instances and nodes, and how it begins, goes on and ends. What it decides is tested in
//! `plan/reconcile`; here the actions are carried out, on a stand-in that changes its nodes as slurmctld does.

mod drop_in;
mod faults;
mod life;
mod statics;
mod truth;
mod world;

use std::collections::BTreeMap;

use slurm_ec2_testkit::ec2::{Behaviour, InstanceChange, Seed, State};

use self::world::{Daemon, STEP_BY_STEP, node, nodes_of, site, site_with};

/// B91. A node whose instance was terminated behind Slurm's back.
#[test]
fn a_gone_instance_brings_its_node_back() {
    let site = site(Behaviour::default());
    assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(0));
    site.scontrol("nodes", &nodes_of(&site, "ALLOCATED+CLOUD"));
    site.ec2.change(&site.running()[0].1, InstanceChange { state: Some(State::Terminated), ..InstanceChange::default() });
    let mut daemon = Daemon::start(&site);
    daemon.passes(2);
    assert_eq!(daemon.node("c5-1"), ("IDLE+CLOUD+POWERED_DOWN".to_owned(), "c5-1".to_owned()), "{}", daemon.log());
    assert_eq!(daemon.node("c5-2").0, "ALLOCATED+CLOUD");
    assert_eq!(site.running().len(), 1);
    let updates = site.updates();
    let at = |word: &str| updates.iter().position(|line| line.contains("c5-1") && line.contains(word)).unwrap();
    assert!(at("state=down") < at("state=power_down"), "{updates:?}");
    assert!(updates.iter().any(|line| line.contains("reason=Scheduler health check failed")), "{updates:?}");
    site.assert_settled();
}

/// M15: by the age of the launch, and only after a second look.
#[test]
fn m15_an_orphan_goes_and_a_young_one_stays() {
    let site = site_with(Behaviour::default(), STEP_BY_STEP);
    // Makes the state folder and its id.
    assert_eq!(site.run("slurm_suspend", &["c5-9"]).code, Some(0));
    let state = std::fs::read_to_string(site.path("state/state-id")).unwrap();
    let tags = BTreeMap::from(
        [("slurm-ec2:cluster", "hpc"), ("slurm-ec2:state", state.trim()), ("slurm-ec2:launch", "old"), ("slurm-ec2:group", "c5")]
            .map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    let others =
        BTreeMap::from([("slurm-ec2:cluster".to_owned(), "hpc".to_owned()), ("slurm-ec2:state".to_owned(), "0123".to_owned())]);
    let old = site.ec2.seed(&Seed { tags: tags.clone(), age_ms: 301_000, ..Seed::default() });
    let young = site.ec2.seed(&Seed { tags, age_ms: 60_000, ..Seed::default() });
    let strange = site.ec2.seed(&Seed { tags: others, age_ms: 900_000, ..Seed::default() });
    site.scontrol("nodes", &node("c5-1", "IDLE+CLOUD+POWERED_DOWN", None));
    let mut daemon = Daemon::start(&site);
    daemon.step();
    assert_eq!(site.live().len(), 3, "nothing at first sight: {}", daemon.log());
    daemon.step();
    let live = site.live();
    assert!(!live.contains(&old[0]) && live.contains(&young[0]) && live.contains(&strange[0]), "{live:?} {}", daemon.log());
}

/// B109, M21, M29: nor a node that is not ours.
#[test]
fn m29_an_idle_cluster_gets_no_update_and_few_lines() {
    let site = site(Behaviour::default());
    assert_eq!(site.run("slurm_resume", &["c5-[1-3]"]).code, Some(0));
    site.scontrol("nodes", &(nodes_of(&site, "IDLE+CLOUD") + &node("head01", "IDLE", Some("10.0.0.1"))));
    let before = site.updates().len();
    let mut daemon = Daemon::start(&site);
    daemon.passes(4);
    assert_eq!(site.updates().len(), before, "{:?}", site.updates());
    assert_eq!(site.live().len(), 3);
    let infos = daemon.log().lines().filter(|line| line.contains(" INFO ") && line.contains("pass: ")).count();
    assert_eq!(infos, 1, "{}", daemon.log());
    assert!(daemon.log().lines().all(|line| !line.contains(" WARN ") && !line.contains(" ERROR ")), "{}", daemon.log());
    let status = daemon.status();
    assert_eq!((status["pass"]["result"].as_str(), status["instances"].as_u64()), (Some("complete"), Some(3)), "{status:#}");
    assert_eq!(daemon.end().code, Some(0));
}
