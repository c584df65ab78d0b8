//! `[launch] scale_by = "job"`: the units are the jobs of the resume file, with the three strategies.

use slurm_ec2_testkit::ec2::{Behaviour, Capacity};

use crate::site::{GROUP, Site};

fn site(strategy: &str, capacity: u32) -> Site {
    let launch = format!("request_bucket = \"off\"\nscale_by = \"job\"\nstrategy = \"{strategy}\"\n");
    Site::with(Behaviour::with_capacity(vec![Capacity::limit("*", "*", capacity)]), &launch, GROUP)
}

/// A resume file of these jobs: id and nodes.
pub fn file(jobs: &[(u32, &str)]) -> String {
    let all: Vec<_> = jobs.iter().map(|(_, nodes)| *nodes).collect();
    let jobs: Vec<_> = jobs
        .iter()
        .map(|(id, nodes)| {
            format!("{{\"job_id\":{id},\"nodes_resume\":\"{nodes}\",\"nodes_alloc\":\"{nodes}\",\"partition\":\"p\"}}")
        })
        .collect();
    format!("{{\"all_nodes_resume\":\"{}\",\"jobs\":[{}]}}", all.join(","), jobs.join(","))
}

fn running(site: &Site) -> Vec<String> {
    let mut nodes: Vec<_> = site.running().into_iter().map(|(node, _)| node).collect();
    nodes.sort();
    nodes
}

fn counts(site: &Site) -> Vec<(String, String)> {
    let calls = site.ec2.requests_of("RunInstances");
    calls.iter().map(|call| (call.param("MinCount").unwrap().to_owned(), call.param("MaxCount").unwrap().to_owned())).collect()
}

fn pairs(list: &[(u32, u32)]) -> Vec<(String, String)> {
    list.iter().map(|(min, max)| (min.to_string(), max.to_string())).collect()
}

/// Nodes of the update whose reason carries `code`.
fn failed(site: &Site, code: &str) -> String {
    let update = site.updates().into_iter().find(|line| line.contains(&format!("(Code:{code})"))).unwrap_or_default();
    update.split_whitespace().find_map(|word| word.strip_prefix("nodename=")).unwrap_or_default().to_owned()
}

const TWO_JOBS: [(u32, &str); 2] = [(1, "c5-[1-3]"), (2, "c5-[4-7]")];

#[test]
fn b51_all_or_nothing_gives_a_job_all_its_nodes_or_none() {
    let site = site("all-or-nothing", 5);
    assert_eq!(site.resume("c5-[1-7]", &file(&TWO_JOBS)).code, Some(1), "{}", site.log("slurm_resume"));
    assert_eq!(counts(&site), pairs(&[(7, 7), (3, 3), (4, 4)]));
    assert_eq!(running(&site), ["c5-1", "c5-2", "c5-3"]);
    assert_eq!(site.live().len(), 3, "nothing is launched for a job that cannot start");
    assert_eq!(failed(&site, "InsufficientInstanceCapacity"), "c5-4,c5-5,c5-6,c5-7");
    site.assert_settled();
}

#[test]
fn greedy_launches_what_there_is_and_releases_what_makes_no_job_whole() {
    let site = site("greedy-all-or-nothing", 5);
    assert_eq!(site.resume("c5-[1-7]", &file(&TWO_JOBS)).code, Some(1), "{}", site.log("slurm_resume"));
    assert_eq!(counts(&site), pairs(&[(1, 7)]));
    assert_eq!(running(&site), ["c5-1", "c5-2", "c5-3"]);
    assert_eq!((site.ec2.instances().len(), site.live().len()), (5, 3), "two are terminated in the same run");
    assert_eq!(failed(&site, "LimitedInstanceCapacity"), "c5-4,c5-5,c5-6,c5-7");
    site.assert_settled();
}

#[test]
fn best_effort_uses_every_instance() {
    let site = site("best-effort", 5);
    assert_eq!(site.resume("c5-[1-7]", &file(&TWO_JOBS)).code, Some(1), "{}", site.log("slurm_resume"));
    assert_eq!(running(&site).len(), 5);
    assert_eq!(failed(&site, "LimitedInstanceCapacity"), "c5-6,c5-7");
    site.assert_settled();
}

#[test]
fn r12_a_later_job_takes_what_an_earlier_one_could_not_use() {
    let site = site("greedy-all-or-nothing", 5);
    assert_eq!(site.resume("c5-[1-9]", &file(&[(1, "c5-[1-6]"), (2, "c5-[7-9]")])).code, Some(1), "{}", site.log("slurm_resume"));
    assert_eq!(running(&site), ["c5-7", "c5-8", "c5-9"]);
    assert_eq!(site.live().len(), 3);
    site.assert_settled();
}

#[test]
fn r13_two_jobs_on_one_node_are_one_launch() {
    let site = site("all-or-nothing", 3);
    assert_eq!(site.resume("c5-[1-4]", &file(&[(1, "c5-[1-3]"), (2, "c5-[2-4]")])).code, Some(1), "{}", site.log("slurm_resume"));
    assert_eq!(counts(&site), pairs(&[(4, 4), (3, 3), (1, 1)]));
    assert_eq!(running(&site), ["c5-1", "c5-2", "c5-3"]);
    assert_eq!(failed(&site, "InsufficientInstanceCapacity"), "c5-4");
    site.assert_settled();
}

#[test]
fn b50_nodes_powered_up_by_hand_are_launched_beside_the_jobs() {
    let site = site("all-or-nothing", 100);
    assert_eq!(site.resume("c5-[1-3,9]", &file(&[(1, "c5-[1-3]")])).code, Some(0), "{}", site.log("slurm_resume"));
    assert_eq!(running(&site), ["c5-1", "c5-2", "c5-3", "c5-9"]);
    site.assert_settled();
}

#[test]
fn r15_without_a_resume_file_the_call_is_the_unit() {
    let site = site("all-or-nothing", 5);
    assert_eq!(site.run("slurm_resume", &["c5-[1-7]"]).code, Some(1), "{}", site.log("slurm_resume"));
    assert_eq!(counts(&site), pairs(&[(7, 7)]));
    assert!(running(&site).is_empty() && site.live().is_empty());
    site.assert_settled();
}

#[test]
fn b54_one_job_in_several_groups_is_all_or_nothing_as_a_whole() {
    let groups = "[[group]]\nname = \"c5\"\nnodes = \"c5-[1-9]\"\nlaunch_template = { name = \"hpc-c5\", version = \"1\" }\n\
                  [[group]]\nname = \"m5\"\nnodes = \"m5-[1-9]\"\nlaunch_template = { name = \"hpc-m5\", version = \"1\" }\ninstance_types = [\"m5.large\"]\n";
    let launch = "request_bucket = \"off\"\nscale_by = \"job\"\nstrategy = \"all-or-nothing\"\n";
    let site = Site::with(Behaviour::with_capacity(vec![Capacity::limit("m5.large", "*", 1)]), launch, groups);
    let ran = site.resume("c5-[1-3],m5-[1-2]", &file(&[(1, "c5-[1-3],m5-[1-2]")]));
    assert_eq!(ran.code, Some(1), "{}", site.log("slurm_resume"));
    assert!(running(&site).is_empty() && site.live().is_empty(), "the c5 instances go in the same run");
    assert_eq!(failed(&site, "InsufficientInstanceCapacity"), "m5-1,m5-2");
    assert_eq!(failed(&site, "LimitedInstanceCapacity"), "c5-1,c5-2,c5-3");
    site.assert_settled();
}
