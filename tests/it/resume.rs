//! slurm_resume on the plain path.

use slurm_ec2_testkit::ec2::Behaviour;

use crate::site::Site;

#[test]
fn nodes_get_instances_and_slurm_the_addresses() {
    let site = Site::new(Behaviour::default());
    let ran = site.resume("c5-[1-3]", r#"{"all_nodes_resume":"c5-[1-3]","jobs":[{"job_id":17,"nodes_resume":"c5-[1-3]"}]}"#);
    assert_eq!((ran.code, ran.stderr.as_str(), ran.stdout.as_str()), (Some(0), "", ""), "{}", site.log("slurm_resume"));
    site.assert_settled();
    assert_eq!(site.running().len(), 3);
    let updates = site.updates();
    let told = updates.iter().find(|update| update.contains("nodeaddr=")).unwrap();
    assert!(told.contains("nodename=c5-1,c5-2,c5-3"), "{updates:?}");
    let mapping = site.mapping();
    let ips: Vec<_> = (1..=3).map(|n| mapping["nodes"][format!("c5-{n}")]["private_ip"].as_str().unwrap().to_owned()).collect();
    assert!(told.contains(&format!("nodeaddr={}", ips.join(","))), "{updates:?}");
    assert!(site.records().is_empty());
    let log = site.log("slurm_resume");
    assert!(log.contains("jobs=\"17\"") && log.contains("launched=3"), "{log}");
}

#[test]
fn without_scontrol_nothing_is_launched() {
    let site = Site::new(Behaviour::default());
    std::fs::remove_file(site.path("bin/scontrol")).unwrap();
    let ran = site.run("slurm_resume", &["c5-[1-3]"]);
    assert_eq!(ran.code, Some(78), "{}", ran.stderr);
    assert!(site.ec2.requests().is_empty() && site.live().is_empty());
    let path = site.path("bin/scontrol").display().to_string();
    assert!(ran.stderr.contains(&path) && site.log("slurm_resume").contains(&path), "{}", ran.stderr);
}

#[test]
fn r33_a_malformed_host_list_is_quoted_once() {
    let site = Site::new(Behaviour::default());
    let ran = site.run("slurm_resume", &["c5-[3-1]"]);
    assert_eq!((ran.code, ran.stderr.matches("c5-[3-1]").count()), (Some(2), 1), "{}", ran.stderr);
}
