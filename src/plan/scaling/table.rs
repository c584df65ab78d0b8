//! All rows of ParallelCluster's scaling examples (aws-facts C): calls, assigned nodes, codes and the number of terminated
//! instances. Where we differ, `OURS` says in which rows, why, and what is seen instead.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::simulated::{Capacity, Ended, run};
use super::{Request, Wanted};
use crate::model::hostlist;
use crate::model::policy::{ScaleBy, Strategy};
use crate::model::recipe::Group;
use crate::plan::test_support;

const EXAMPLES: &str = include_str!("../../../tests/data/parallelcluster/scaling-examples.json");

/// What we do instead of the package. `calls`: `None` = the same.
struct Ours {
    rows: &'static [u64],
    why: &'static str,
    assigned: &'static str,
    failed: &'static [(&'static str, &'static str)],
    terminated: usize,
    calls: Option<&'static [&'static str]>,
}

const REAL_CODE: &str = "real codes kept: CreateFleet said why it gave less than asked";
const AT_ONCE: &str = "the orders of a job go out together: what follows the one that failed is launched too, and terminated";
const NOT_TOLD: &str = "only the node that could not be told fails, its instance goes in the same run, the others stay";
const BY_HAND: &str = "a node of no job was powered up by hand or by a reservation: it is launched as well";
const NO_FILE: &str = "without a resume file the nodes of the call are launched";

/// The code that the simulated publishing fails with.
const REFUSED: &str = "SlurmRefusedNode";

const OURS: &[Ours] = &[
    Ours {
        rows: &[6],
        why: AT_ONCE,
        assigned: "",
        failed: &[("InsufficientInstanceCapacity", "q1-dy-cr1-[1-3],q1-dy-cr2-[1-2]")],
        terminated: 2,
        calls: Some(&["RunInstances q1/cr1 3-3 InsufficientInstanceCapacity", "RunInstances q1/cr2 2-2 2"]),
    },
    Ours {
        rows: &[13],
        why: AT_ONCE,
        assigned: "",
        failed: &[("InsufficientInstanceCapacity", "q1-dy-cr1-[11-20]"), ("LimitedInstanceCapacity", "q1-dy-cr1-[1-10,21-25]")],
        terminated: 15,
        calls: Some(&[
            "RunInstances q1/cr1 10-10 10",
            "RunInstances q1/cr1 10-10 InsufficientInstanceCapacity",
            "RunInstances q1/cr1 5-5 5",
        ]),
    },
    Ours {
        rows: &[25, 51, 52],
        why: REAL_CODE,
        assigned: "",
        failed: &[("InsufficientInstanceCapacity", "q1-dy-cr1-[1-4]")],
        terminated: 3,
        calls: None,
    },
    Ours {
        rows: &[78, 79],
        why: REAL_CODE,
        assigned: "q1-dy-cr1-[1-3]",
        failed: &[("InsufficientInstanceCapacity", "q1-dy-cr1-4")],
        terminated: 0,
        calls: None,
    },
    Ours {
        rows: &[27, 54, 81],
        why: REAL_CODE,
        assigned: "",
        failed: &[("MaxSpotInstanceCountExceeded", "q1-dy-cr1-[1-4]")],
        terminated: 0,
        calls: None,
    },
    Ours {
        rows: &[19, 46, 73],
        why: NOT_TOLD,
        assigned: "q1-dy-cr1-[1,3]",
        failed: &[(REFUSED, "q1-dy-cr1-2")],
        terminated: 1,
        calls: None,
    },
    Ours {
        rows: &[20, 47, 74],
        why: NOT_TOLD,
        assigned: "",
        failed: &[(REFUSED, "q1-dy-cr1-[1-3]")],
        terminated: 3,
        calls: None,
    },
    Ours {
        rows: &[89, 98, 107],
        why: NOT_TOLD,
        assigned: "q1-dy-cr1-[1-2,4-5]",
        failed: &[(REFUSED, "q1-dy-cr1-3")],
        terminated: 1,
        calls: None,
    },
    Ours {
        rows: &[21],
        why: BY_HAND,
        assigned: "q1-dy-cr1-[1-2,9]",
        failed: &[],
        terminated: 0,
        calls: Some(&["RunInstances q1/cr1 1-1 1", "RunInstances q1/cr1 2-2 2"]),
    },
    Ours {
        rows: &[48, 75],
        why: BY_HAND,
        assigned: "q1-dy-cr1-[1-2,9]",
        failed: &[],
        terminated: 0,
        calls: Some(&["RunInstances q1/cr1 1-1 1", "RunInstances q1/cr1 1-2 2"]),
    },
    Ours {
        rows: &[22],
        why: NO_FILE,
        assigned: "q1-dy-cr1-[1-2]",
        failed: &[],
        terminated: 0,
        calls: Some(&["RunInstances q1/cr1 2-2 2"]),
    },
    Ours {
        rows: &[49, 76],
        why: NO_FILE,
        assigned: "q1-dy-cr1-[1-2]",
        failed: &[],
        terminated: 0,
        calls: Some(&["RunInstances q1/cr1 1-2 2"]),
    },
];

#[derive(Deserialize)]
struct Examples {
    examples: Vec<Example>,
}

#[derive(Deserialize)]
struct Example {
    id: u64,
    name: String,
    api: String,
    instance_types: usize,
    subnets: usize,
    strategy: String,
    job_level_scaling: bool,
    launch_max_batch_size: usize,
    resume_file_present: bool,
    jobs: Vec<Job>,
    argv_nodes: String,
    capacity: BTreeMap<String, usize>,
    api_errors: BTreeMap<String, String>,
    fleet_errors: BTreeMap<String, Vec<String>>,
    node_update_fails_for: Vec<String>,
    node_table_write_fails: bool,
    expect: Expect,
    peer_defect: Option<String>,
}

#[derive(Deserialize)]
struct Job {
    job_id: u64,
    nodes_resume: String,
}

#[derive(Deserialize)]
struct Expect {
    calls: Vec<Call>,
    assigned: String,
    failed: BTreeMap<String, String>,
    terminated_count: usize,
}

#[derive(Deserialize)]
struct Call {
    op: String,
    compute_resource: String,
    min: Option<usize>,
    max: Option<usize>,
    launched: Option<usize>,
    error: Option<String>,
    min_target: Option<usize>,
    total: Option<usize>,
    #[serde(default)]
    errors: Vec<String>,
}

impl Call {
    fn line(&self) -> String {
        let Call { op, compute_resource, .. } = self;
        match (self.min, self.max, self.total) {
            (Some(min), Some(max), _) => {
                let came = self.launched.map(|n| n.to_string()).or(self.error.clone());
                format!("{op} {compute_resource} {min}-{max} {}", came.unwrap())
            }
            (_, _, total) => {
                let (min, launched) = (self.min_target, self.launched.unwrap());
                format!("{op} {compute_resource} {min:?} {} {launched} {:?}", total.unwrap(), self.errors)
            }
        }
    }
}

fn expand(list: &str) -> Vec<String> {
    if list.is_empty() { Vec::new() } else { hostlist::expand(list, 10_000).unwrap().names }
}

/// `q1-dy-cr1-7` is of `q1/cr1`.
fn group_of<'a>(groups: &'a BTreeMap<String, Group>, node: &str) -> &'a Group {
    let parts: Vec<&str> = node.split('-').collect();
    &groups[&format!("{}/{}", parts[0], parts[2])]
}

impl Example {
    fn play(&self) -> (Ended, Vec<String>) {
        let group = |name: &String| (name.clone(), test_support::group(name, self.launch_max_batch_size));
        let groups: BTreeMap<String, Group> = self.capacity.keys().chain(self.api_errors.keys()).map(group).collect();
        let wanted = |node: String| Wanted { group: group_of(&groups, &node), node, refused: None };
        let request = Request {
            nodes: expand(&self.argv_nodes).into_iter().map(wanted).collect(),
            jobs: self.resume_file_present.then(|| self.jobs.iter().map(|job| (job.job_id, expand(&job.nodes_resume))).collect()),
            scale_by: if self.job_level_scaling { ScaleBy::Job } else { ScaleBy::Call },
            // An unknown word means all-or-nothing, case does not matter (aws-facts C.8, 29).
            strategy: match self.strategy.to_lowercase().as_str() {
                "best-effort" => Strategy::BestEffort,
                "greedy-all-or-nothing" => Strategy::GreedyAllOrNothing,
                _ => Strategy::AllOrNothing,
            },
        };
        let mut capacity = Capacity {
            left: self.capacity.clone(),
            api_errors: self.api_errors.clone(),
            fleet_errors: (self.api == "create-fleet").then(|| self.fleet_errors.clone()),
            no_minimum: self.instance_types > 1 && self.subnets > 1,
            ..Capacity::default()
        };
        let mut ended = run(request, &mut capacity);
        self.publish(&mut ended);
        (ended, capacity.calls)
    }

    /// What programs/ does with a node that it cannot tell: that node fails, its instance goes.
    fn publish(&self, ended: &mut Ended) {
        let refused = |node: &String| self.node_table_write_fails || self.node_update_fails_for.contains(node);
        for node in ended.backed.keys().filter(|&node| refused(node)).cloned().collect::<Vec<_>>() {
            ended.released.extend(ended.backed.remove(&node));
            ended.failed.insert(node, super::simulated::failure(REFUSED));
        }
    }

    fn check(&self) -> Result<(), String> {
        let (ended, calls) = self.play();
        let ours = OURS.iter().find(|ours| ours.rows.contains(&self.id));
        let set = |list: &str| expand(list).into_iter().collect::<BTreeSet<_>>();
        let theirs: Vec<(&str, &str)> = self.expect.failed.iter().map(|(code, list)| (code.as_str(), list.as_str())).collect();
        let (assigned, failed, terminated, why) = match ours {
            Some(ours) => (ours.assigned, ours.failed.to_vec(), ours.terminated, ours.why),
            None => (self.expect.assigned.as_str(), theirs, self.expect.terminated_count, "as the package"),
        };
        let mut want = String::new();
        let mut seen = String::new();
        let codes: BTreeMap<String, String> =
            failed.iter().flat_map(|(code, list)| set(list).into_iter().map(|node| (node, (*code).to_owned()))).collect();
        want.push_str(&format!("{:?}\n{codes:?}\nterminated {terminated}\n", set(assigned)));
        let codes = ended.codes();
        let backed: BTreeSet<&String> = ended.backed.keys().collect();
        seen.push_str(&format!("{backed:?}\n{codes:?}\nterminated {}\n", ended.released.len()));
        match ours.and_then(|ours| ours.calls) {
            Some(calls) => want.push_str(&calls.join("\n")),
            None => {
                // The launcher absorbs throttling.
                let lines = self.expect.calls.iter().filter(|call| call.error.as_deref() != Some("RequestLimitExceeded"));
                want.push_str(&lines.map(Call::line).collect::<Vec<_>>().join("\n"));
            }
        }
        seen.push_str(&calls.join("\n"));
        let Self { id, name, strategy, .. } = self;
        if want == seen { Ok(()) } else { Err(format!("row {id} ({name}, {strategy}): {why}\nwant {want}\nseen {seen}\n")) }
    }
}

fn examples() -> Vec<Example> {
    serde_json::from_str::<Examples>(EXAMPLES).unwrap().examples
}

#[test]
fn r08_r12_r13_all_rows_of_the_package_or_ours_for_a_reason() {
    let examples = examples();
    assert_eq!(examples.len(), 110);
    let wrong: Vec<String> = examples.iter().filter_map(|example| example.check().err()).collect();
    assert!(wrong.is_empty(), "{} rows\n{}", wrong.len(), wrong.join("\n"));
}

/// Nobody's outcome is changed without need: each flagged row is named, and the others only for the two reasons.
#[test]
fn each_defect_of_the_package_has_an_outcome_of_ours() {
    for example in examples() {
        let ours = OURS.iter().find(|ours| ours.rows.contains(&example.id));
        match (&example.peer_defect, ours.map(|ours| ours.why)) {
            (Some(_), Some(NOT_TOLD | BY_HAND | NO_FILE)) | (None, Some(REAL_CODE | AT_ONCE) | None) => {}
            (defect, ours) => panic!("row {}: {defect:?} and {ours:?}", example.id),
        }
    }
}
