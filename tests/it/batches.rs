//! Several launch calls of one run: what they share and what each has for itself.

use std::collections::BTreeSet;
use std::time::Duration;

use slurm_ec2_testkit::ec2::{Behaviour, InstanceChange, Latency, Request, Rule, State, Throttle};

use crate::site::{GROUP, Site, finished};

const OFF: &str = "request_bucket = \"off\"\n";

/// What a test waits for must come; this is only the end of a test that fails.
const PATIENCE: Duration = Duration::from_secs(120);

fn tokens(calls: &[Request]) -> BTreeSet<String> {
    calls.iter().map(|call| call.param("ClientToken").unwrap().to_owned()).collect()
}

fn nodes(site: &Site) -> Vec<String> {
    site.running().into_iter().map(|(node, _)| node).collect()
}

/// A site whose `[aws]` has further lines.
fn with_aws(behaviour: Behaviour, aws: &str) -> Site {
    let site = Site::new(behaviour);
    let config = std::fs::read_to_string(site.path("slurm-ec2.toml")).unwrap();
    site.write("slurm-ec2.toml", &config.replace("[aws]\n", &format!("[aws]\n{aws}")));
    site
}

#[test]
fn a_batch_that_fails_does_not_stop_the_others() {
    let rules = vec![Rule::on("RunInstances").nth(2).error("InvalidParameterValue", 400)];
    let site = Site::with(Behaviour::with_rules(rules), &format!("{OFF}batch_size = 2\n"), GROUP);
    assert_eq!(site.run("slurm_resume", &["c5-[1-6]"]).code, Some(1), "{}", site.log("slurm_resume"));
    assert_eq!((site.ec2.count("RunInstances"), site.running().len(), site.live().len()), (3, 4, 4));
    let failed: Vec<String> = (1..=6).map(|n| format!("c5-{n}")).filter(|node| !nodes(&site).contains(node)).collect();
    let told = site.updates().into_iter().find(|line| line.contains("(Code:InvalidParameterValue)")).unwrap();
    assert!(told.contains(&format!("nodename={}", failed.join(","))), "{failed:?}: {told}");
    site.assert_settled();
}

#[test]
fn at_most_the_configured_calls_are_in_flight() {
    let latency = Latency { base_ms: 120, ..Latency::default() };
    let rules = vec![Rule::on("RunInstances").times(3).hold("first")];
    let site = Site::with(
        Behaviour { latency, rules, full_size: false, ..Behaviour::default() },
        &format!("{OFF}batch_size = 1\nconcurrency = 3\n"),
        GROUP,
    );
    let child = site.spawn("slurm_resume", &["c5-[1-12]"]);
    let three = |snapshot: &slurm_ec2_testkit::ec2::Snapshot| snapshot.held.get("first") == Some(&3);
    assert!(site.ec2.wait_until(PATIENCE, three), "{}", site.log("slurm_resume"));
    site.ec2.release("first");
    assert_eq!(finished(child.wait_with_output().unwrap()).code, Some(0), "{}", site.log("slurm_resume"));
    // From arrival to answer as the endpoint saw them; a millisecond less, since arrivals are cut to whole ones.
    let spans: Vec<(f64, f64)> = site
        .ec2
        .requests_of("RunInstances")
        .iter()
        .map(|call| (call.arrived_ms as f64 + 1.0, call.arrived_ms as f64 + call.took_ms.unwrap() - 1.0))
        .collect();
    let most = spans.iter().map(|(at, _)| spans.iter().filter(|(from, to)| from <= at && at < to).count()).max().unwrap();
    // That three are in flight together has been seen at the gate.
    assert!(spans.len() == 12 && most <= 3, "{most} of {}: {spans:?}", spans.len());
}

/// Three runs of three calls each against EC2's own limit: the shared bucket keeps them below it.
#[test]
fn r01_the_bucket_is_shared_by_all_runs_of_the_machine() {
    // More than the bucket has, so that calls which a loaded machine holds up and then sends together pass: eight would have to come within
    // a second, which are the bucket's of five. Three buckets of their own would send nine at once.
    let throttle = Throttle { burst: 7.0, per_second: 1.0, ..Throttle::run_instances() };
    let behaviour = Behaviour { throttle: vec![throttle], full_size: false, ..Behaviour::default() };
    let launch = "batch_size = 1\nrequest_bucket = { burst = 3, per_second = 1.0 }\n";
    let site = Site::with(behaviour, launch, GROUP);
    let children: Vec<_> = (0..3).map(|n| site.spawn("slurm_resume", &[&format!("c5-[{}-{}]", 3 * n + 1, 3 * n + 3)])).collect();
    for child in children {
        assert_eq!(finished(child.wait_with_output().unwrap()).code, Some(0), "{}", site.log("slurm_resume"));
    }
    assert_eq!(site.running().len(), 9);
    let refused = site.ec2.requests_of("RunInstances").iter().filter(|call| call.status != Some(200)).count();
    assert_eq!((site.ec2.count("RunInstances"), refused), (9, 0), "no call was throttled");
}

#[test]
fn b13_an_answer_that_does_not_come_is_asked_for_again() {
    for rule in [Rule::on("RunInstances").nth(1).hang(), Rule::on("RunInstances").nth(1).hang().after()] {
        let site = with_aws(Behaviour::with_rules(vec![rule]), "attempt_timeout = \"5s\"\n");
        assert_eq!(site.run("slurm_resume", &["c5-[1-3]"]).code, Some(0), "{}", site.log("slurm_resume"));
        let calls = site.ec2.requests_of("RunInstances");
        assert!(calls.len() >= 2 && tokens(&calls).len() == 1, "{calls:?}");
        assert_eq!((site.ec2.instances().len(), site.running().len()), (3, 3));
        site.assert_settled();
    }
}

/// The answer is lost and, before the repeat, somebody ends the instances: the token stands for dead ones from then on.
#[test]
fn b13_a_token_whose_instances_are_gone_is_replaced() {
    let lost =
        Rule::on("RunInstances").nth(1).hold("launched").after().effect(slurm_ec2_testkit::ec2::Effect::Drop { after: true });
    let site = Site::new(Behaviour::with_rules(vec![lost]));
    let child = site.spawn("slurm_resume", &["c5-[1-2]"]);
    assert!(site.ec2.wait_held("launched", PATIENCE));
    for instance in site.ec2.live_instances() {
        site.ec2.change(&instance.id, InstanceChange { state: Some(State::Terminated), ..InstanceChange::default() });
    }
    site.ec2.release("launched");
    assert_eq!(finished(child.wait_with_output().unwrap()).code, Some(0), "{}", site.log("slurm_resume"));
    let calls = site.ec2.requests_of("RunInstances");
    assert!(calls.iter().any(|call| call.answer.contains("IdempotentInstanceTerminated")), "{}", site.log("slurm_resume"));
    assert_eq!(tokens(&calls).len(), 2);
    assert_eq!((site.live().len(), site.running().len()), (2, 2));
    site.assert_settled();
}

/// R13: the first attempt fails in passing, the second works, and nobody calls the node failed.
#[test]
fn r13_a_passing_fault_leaves_no_trace_at_the_node() {
    let site = Site::new(Behaviour::with_rules(vec![Rule::on("RunInstances").nth(1).error("InternalError", 500)]));
    let file = r#"{"all_nodes_resume":"c5-1","jobs":[{"job_id":1,"nodes_resume":"c5-1"},{"job_id":2,"nodes_resume":"c5-1"}]}"#;
    let ran = site.resume("c5-1", file);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{}", site.log("slurm_resume"));
    assert_eq!((site.live().len(), site.running().len()), (1, 1));
    assert!(site.updates().iter().all(|line| !line.contains("reason=")), "{:?}", site.updates());
    assert!(site.log("slurm_resume").contains("failed=0"));
}

#[test]
fn b18_an_instance_of_run_instances_without_address_is_terminated() {
    let behaviour = Behaviour { ip_in_launch_answer: false, never_ip: vec![1], ..Behaviour::default() };
    let site = Site::with(behaviour, &format!("{OFF}address_timeout = \"6s\"\n"), GROUP);
    assert_eq!(site.run("slurm_resume", &["c5-[1-3]"]).code, Some(1), "{}", site.log("slurm_resume"));
    assert_eq!((site.running().len(), site.live().len()), (2, 2));
    assert!(site.updates().iter().any(|line| line.contains("(Code:NoPrivateAddress)")), "{:?}", site.updates());
    site.assert_settled();
}

/// One version for the whole run, asked for once, whatever the number of batches.
#[test]
fn a_templates_version_is_resolved_once() {
    let group = "[[group]]\nname = \"c5\"\nnodes = \"c5-[1-2000]\"\nbatch_size = 1\nlaunch_template = { name = \"hpc-c5\", version = \"$Latest\" }\n";
    let template = slurm_ec2_testkit::ec2::Template {
        name: "hpc-c5".to_owned(),
        default_version: 3,
        latest_version: 7,
        ..slurm_ec2_testkit::ec2::Template::default()
    };
    let site = Site::with(Behaviour { templates: vec![template], ..Behaviour::default() }, OFF, group);
    assert_eq!(site.run("slurm_resume", &["c5-[1-3]"]).code, Some(0), "{}", site.log("slurm_resume"));
    assert_eq!(site.ec2.count("DescribeLaunchTemplates"), 1);
    for call in site.ec2.requests_of("RunInstances") {
        assert_eq!(call.param("LaunchTemplate.Version"), Some("7"));
    }
}
