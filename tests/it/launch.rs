//! What EC2 answers to a launch, and what becomes of the nodes.

use slurm_ec2_testkit::ec2::{Behaviour, Capacity, Rule};

use crate::site::{GROUP, Site};

const OFF: &str = "request_bucket = \"off\"\n";
const FLEET: &str = "[[group]]\nname = \"c5\"\nnodes = \"c5-[1-2000]\"\napi = \"create-fleet\"\nlaunch_template = { name = \"hpc-c5\", version = \"1\" }\n\
                     instance_types = [\"c5.large\", \"c6i.large\"]\nsubnets = [\"subnet-0000000a\", \"subnet-0000000b\"]\n";

/// The reason that was given for `node`, if any.
fn reason(site: &Site, node: &str) -> Option<String> {
    site.updates().into_iter().find(|line| line.contains("reason=") && line.contains(node))
}

#[test]
fn b14_capacity_is_not_asked_for_twice_in_place() {
    let site = Site::new(Behaviour::with_capacity(vec![Capacity::limit("*", "*", 0)]));
    let ran = site.run("slurm_resume", &["c5-[1-3]"]);
    assert_eq!(ran.code, Some(1), "{}", site.log("slurm_resume"));
    assert_eq!(site.ec2.count("RunInstances"), 1);
    let reason = reason(&site, "c5-1").unwrap();
    assert!(reason.contains("(Code:InsufficientInstanceCapacity)") && reason.contains("state=power_down_force"), "{reason}");
    assert!(site.mapping()["nodes"].as_object().unwrap().is_empty() && site.records().is_empty());
}

#[test]
fn r08_best_effort_takes_what_there_is() {
    let site = Site::new(Behaviour::with_capacity(vec![Capacity::limit("*", "*", 2)]));
    let ran = site.run("slurm_resume", &["c5-[1-3]"]);
    assert_eq!(ran.code, Some(1));
    assert_eq!(site.running().iter().map(|(node, _)| node.as_str()).collect::<Vec<_>>(), ["c5-1", "c5-2"]);
    assert!(reason(&site, "c5-3").unwrap().contains("(Code:LimitedInstanceCapacity)"));
    site.assert_settled();
}

#[test]
fn r12_all_or_nothing_leaves_nothing() {
    let site = Site::with(
        Behaviour::with_capacity(vec![Capacity::limit("*", "*", 2)]),
        "request_bucket = \"off\"\nstrategy = \"all-or-nothing\"\n",
        GROUP,
    );
    assert_eq!(site.run("slurm_resume", &["c5-[1-3]"]).code, Some(1));
    assert!(site.live().is_empty() && site.running().is_empty());
    assert_eq!(site.ec2.requests_of("RunInstances")[0].param("MinCount"), Some("3"));
    assert!(reason(&site, "c5-2").unwrap().contains("InsufficientInstanceCapacity"));
}

#[test]
fn r03_b13_throttled_is_repeated_with_the_same_token() {
    let site = Site::new(Behaviour::with_rules(vec![Rule::on("RunInstances").times(2).error("RequestLimitExceeded", 503)]));
    let ran = site.run("slurm_resume", &["c5-[1-3]"]);
    assert_eq!(ran.code, Some(0), "{}", site.log("slurm_resume"));
    let calls = site.ec2.requests_of("RunInstances");
    assert_eq!(calls.len(), 3);
    assert!(calls.iter().all(|call| call.param("ClientToken") == calls[0].param("ClientToken")));
    assert_eq!(site.live().len(), 3);
    assert!(reason(&site, "c5-1").is_none());
}

#[test]
fn b13_a_lost_answer_launches_once() {
    for rule in [
        Rule::on("RunInstances").nth(1).drop_after(),
        Rule::on("RunInstances").nth(1).garbage(),
        Rule::on("RunInstances").nth(1).error("InternalError", 500).after(),
    ] {
        let site = Site::new(Behaviour::with_rules(vec![rule]));
        let ran = site.run("slurm_resume", &["c5-[1-3]"]);
        assert_eq!(ran.code, Some(0), "{}", site.log("slurm_resume"));
        assert_eq!((site.live().len(), site.running().len()), (3, 3));
        assert!(site.ec2.count("RunInstances") >= 2);
        site.assert_settled();
    }
}

#[test]
fn r26_a_missing_template_fails_only_its_group() {
    let groups = format!("{GROUP}[[group]]\nname = \"gpu\"\nnodes = \"gpu-[1-9]\"\nlaunch_template = \"hpc-gpu\"\n");
    let site = Site::with(Behaviour { bad_templates: vec!["hpc-gpu".to_owned()], ..Behaviour::default() }, OFF, &groups);
    let ran = site.run("slurm_resume", &["c5-1,gpu-[1-2]"]);
    assert_eq!(ran.code, Some(1));
    assert_eq!(site.running().len(), 1);
    let reason = reason(&site, "gpu-1").unwrap();
    assert!(reason.contains("(Code:InvalidLaunchTemplateName.NotFoundException)") && reason.contains("hpc-gpu"), "{reason}");
    assert_eq!(
        site.ec2.requests_of("RunInstances").iter().filter(|call| call.answer.contains("LaunchTemplate")).count(),
        1,
        "no retry storm"
    );
    // B21: the group rests, the next call does not ask EC2 for it.
    let before = site.ec2.requests().len();
    assert_eq!(site.run("slurm_resume", &["gpu-3"]).code, Some(1));
    assert_eq!(site.ec2.requests().iter().skip(before).filter(|call| call.action == "RunInstances").count(), 0);
    let last = site.updates().pop().unwrap();
    assert!(
        last.contains("gpu-3")
            && last.contains("InvalidLaunchTemplateName.NotFoundException")
            && last.contains("not tried again before"),
        "{last}"
    );
}

#[test]
fn b21_a_rest_ends_by_itself() {
    let site = Site::with(
        Behaviour::with_capacity(vec![Capacity::limit("*", "*", 0)]),
        "request_bucket = \"off\"\nbackoff_capacity = \"1s\"\n",
        GROUP,
    );
    assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(1));
    site.ec2.adjust(|behaviour| behaviour.capacity.clear());
    // The end of the rest is on disk: no sleeping longer than needed.
    let backoff: serde_json::Value = serde_json::from_slice(&std::fs::read(site.path("state/backoff.json")).unwrap()).unwrap();
    assert_eq!(backoff["groups"]["c5"]["code"], "InsufficientInstanceCapacity", "{backoff}");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(0), "{}", site.log("slurm_resume"));
}

#[test]
fn r06_quota_gives_its_own_code() {
    let site = Site::new(Behaviour::with_rules(vec![Rule::on("RunInstances").error_text(
        "VcpuLimitExceeded",
        400,
        "You have requested more vCPU capacity than your current vCPU limit of 32",
    )]));
    assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(1));
    assert_eq!(site.ec2.count("RunInstances"), 1);
    assert!(reason(&site, "c5-1").unwrap().contains("(Code:VcpuLimitExceeded)"));
    let log = site.log("slurm_resume");
    assert!(log.contains("group=\"c5\"") && log.contains("VcpuLimitExceeded"), "{log}");
}

#[test]
fn a_request_too_large_is_halved() {
    let site = Site::new(Behaviour { max_per_call: Some(2), ..Behaviour::default() });
    site.configure("request_bucket = \"off\"\nstrategy = \"all-or-nothing\"\n", GROUP);
    let ran = site.run("slurm_resume", &["c5-[1-4]"]);
    assert_eq!(ran.code, Some(0), "{}", site.log("slurm_resume"));
    assert_eq!((site.running().len(), site.live().len()), (4, 4));
    site.assert_settled();
}

#[test]
fn fleets_name_every_type_in_every_subnet() {
    let site = Site::with(Behaviour::default(), OFF, FLEET);
    let ran = site.run("slurm_resume", &["c5-[1-3]"]);
    assert_eq!(ran.code, Some(0), "{}", site.log("slurm_resume"));
    let call = site.ec2.requests_of("CreateFleet")[0].clone();
    let pairs: Vec<_> = (1..=4)
        .map(|n| {
            let get =
                |field: &str| call.param(&format!("LaunchTemplateConfigs.1.Overrides.{n}.{field}")).unwrap_or("-").to_owned();
            (get("InstanceType"), get("SubnetId"))
        })
        .collect();
    let expected = [("c5.large", "a"), ("c5.large", "b"), ("c6i.large", "a"), ("c6i.large", "b")];
    assert_eq!(pairs, expected.map(|(kind, zone)| (kind.to_owned(), format!("subnet-0000000{zone}"))));
    assert_eq!(site.running().len(), 3);
    site.assert_settled();
}

#[test]
fn r05_b18_an_instance_without_address_is_terminated() {
    let behaviour = Behaviour { hidden_describes: 1, no_ip_describes: 1, never_ip: vec![2], ..Behaviour::default() };
    let site = Site::with(behaviour, "request_bucket = \"off\"\naddress_timeout = \"10s\"\n", FLEET);
    let ran = site.run("slurm_resume", &["c5-[1-3]"]);
    assert_eq!(ran.code, Some(1), "{}", site.log("slurm_resume"));
    assert_eq!(site.running().len(), 2);
    assert_eq!(site.live().len(), 2, "the third is terminated in the same run");
    assert!(reason(&site, "c5-3").unwrap().contains("(Code:NoPrivateAddress)"));
    site.assert_settled();
}

#[test]
fn r01_a_fleet_that_throttling_left_empty_is_repeated() {
    let site =
        Site::with(Behaviour::with_rules(vec![Rule::on("CreateFleet").times(2).error("RequestLimitExceeded", 503)]), OFF, FLEET);
    let ran = site.run("slurm_resume", &["c5-[1-3]"]);
    assert_eq!(ran.code, Some(0), "{}", site.log("slurm_resume"));
    assert_eq!(site.running().len(), 3);
    assert!(!site.path("state/backoff.json").exists(), "throttling makes no group rest");
}

#[test]
fn r24_address_and_name_of_the_first_card() {
    let site = Site::new(Behaviour { network_cards: 3, shuffle_cards: true, ..Behaviour::default() });
    assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(0));
    let instance = site.ec2.live_instances()[0].clone();
    let entry = site.mapping()["nodes"]["c5-1"].clone();
    assert_eq!(entry["private_ip"], instance.private_ip.to_string());
    assert_eq!(entry["hostname"], instance.hostname.split('.').next().unwrap());
}

#[test]
fn b11_nodes_outside_every_group_do_not_stop_the_others() {
    let site = Site::new(Behaviour::default());
    let ran = site.run("slurm_resume", &["c5-1,stray-[1-2]"]);
    assert_eq!(ran.code, Some(1));
    assert_eq!(site.running().len(), 1);
    let update = reason(&site, "stray-1").unwrap();
    assert!(update.contains("state=down") && update.contains("(Code:NodeNotConfigured)"), "{update}");
}

#[test]
fn b20_with_a_daemon_the_node_is_set_down() {
    for (launch, heartbeat, state) in [
        ("daemon = \"yes\"\n", false, "state=down"),
        ("", true, "state=down"),
        ("daemon = \"no\"\n", true, "state=power_down_force"),
    ] {
        let site = Site::with(Behaviour::with_capacity(vec![Capacity::limit("*", "*", 0)]), &format!("{OFF}{launch}"), GROUP);
        std::fs::create_dir(site.path("state")).unwrap();
        if heartbeat {
            site.write("state/heartbeat", "now");
        }
        assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(1));
        let reason = reason(&site, "c5-1").unwrap();
        assert!(reason.contains(state), "{launch:?} {heartbeat}: {reason}");
        assert_eq!(site.path("state/backoff.json").exists(), state != "state=down", "with a daemon the rest is its work");
    }
}

#[test]
fn b17_a_node_that_slurm_refuses_loses_its_instance() {
    let site = Site::new(Behaviour::default());
    site.scontrol("refuse", "c5-2\n");
    let ran = site.run("slurm_resume", &["c5-[1-3]"]);
    assert_eq!(ran.code, Some(1), "{}", site.log("slurm_resume"));
    assert_eq!(site.running().iter().map(|(node, _)| node.as_str()).collect::<Vec<_>>(), ["c5-1", "c5-3"]);
    assert_eq!(site.live().len(), 2);
    site.assert_settled();
}

#[test]
fn b16_slurmctld_unreachable_leaves_it_to_the_next_program() {
    let site = Site::new(Behaviour::default());
    site.hurry();
    site.scontrol("fail.update", "1\nslurm_update error: Unable to contact slurm controller (connect failure)\n");
    let ran = site.run("slurm_resume", &["c5-[1-2]"]);
    assert_eq!(ran.code, Some(75), "{}", site.log("slurm_resume"));
    assert_eq!((site.live().len(), site.running().len()), (2, 2));
    assert_eq!(site.mapping()["nodes"]["c5-1"]["unpublished"], true);
    std::fs::remove_file(site.path("bin/scontrol.fail.update")).unwrap();
    site.patience();
    let before = site.updates().len();
    assert_eq!(site.run("slurm_suspend", &["c5-9"]).code, Some(0));
    assert!(site.updates()[before..].iter().any(|line| line.contains("nodename=c5-1,c5-2")), "{:?}", site.updates());
    assert!(site.mapping()["nodes"]["c5-1"].get("unpublished").is_none());
}

#[test]
fn b19_a_mapped_node_is_left_or_replaced() {
    let site = Site::new(Behaviour::default());
    assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(0));
    let first = site.running();
    // Registered: left alone.
    site.scontrol("state", "IDLE+CLOUD\n");
    assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(0));
    assert_eq!(site.running(), first);
    assert_eq!(site.ec2.count("RunInstances"), 1);
    // Still powering up, asked for again: Slurm would ignore the older machine.
    site.scontrol("state", "IDLE+CLOUD+NOT_RESPONDING+POWERING_UP\n");
    assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(0), "{}", site.log("slurm_resume"));
    assert_eq!(site.live().len(), 2);
    assert!(site.running().iter().zip(&first).all(|(new, old)| new.1 != old.1));
    site.assert_settled();
}

#[test]
fn b42_b15_the_deadline_comes_before_slurms() {
    let site = Site::new(Behaviour::with_rules(vec![Rule::on("RunInstances").hang()]));
    // A quarter of it is for telling Slurm.
    site.limit(24);
    let ran = site.run("slurm_resume", &["c5-[1-2]"]);
    assert_eq!(ran.code, Some(75), "{}", site.log("slurm_resume"));
    assert!(reason(&site, "c5-1").is_some(), "Slurm hears of it");
    assert_eq!(site.records().len(), 1, "instances may exist: the record stays");
    assert!(site.mapping()["nodes"].as_object().unwrap().is_empty());
}

#[test]
fn b44_instances_of_another_state_folder_are_reported_only() {
    let site = Site::new(Behaviour::default());
    site.ec2.seed(&slurm_ec2_testkit::ec2::Seed {
        tags: [("slurm-ec2:cluster", "hpc"), ("slurm-ec2:state", "0123456789abcdef")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into(),
        ..Default::default()
    });
    assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(0));
    assert_eq!(site.run("slurm_suspend", &["c5-[1-9]"]).code, Some(0));
    assert_eq!(site.live().len(), 1);
    assert!(site.log("slurm_resume").contains("another state folder"));
}

#[test]
fn b12_claim_record_and_sent_mark_come_before_the_call() {
    let site = Site::new(Behaviour::with_rules(vec![Rule::on("RunInstances").hold("launch")]));
    let mut child = site.spawn("slurm_resume", &["c5-[1-2]"]);
    assert!(site.ec2.wait_held("launch", std::time::Duration::from_secs(120)));
    let mapping = site.mapping();
    let record = std::fs::read_to_string(&site.records()[0]).unwrap();
    site.ec2.release("launch");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(mapping["nodes"]["c5-2"]["state"], "launching");
    let mut lines = record.lines();
    let header: serde_json::Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    assert_eq!(header["batches"][0]["request"]["client_token"], site.ec2.live_instances()[0].client_token.as_str());
    assert_eq!(header["batches"][0]["nodes"], serde_json::json!(["c5-1", "c5-2"]));
    assert!(lines.next().unwrap().contains("\"sent\""), "{record}");
}

#[test]
fn r27_a_missing_service_linked_role_names_the_permission() {
    let site = Site::new(Behaviour::with_rules(vec![
        Rule::on("RunInstances").error("AuthFailure.ServiceLinkedRoleCreationNotPermitted", 403),
    ]));
    assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(1));
    assert_eq!(site.ec2.count("RunInstances"), 1);
    assert!(reason(&site, "c5-1").unwrap().contains("(Code:AuthFailure.ServiceLinkedRoleCreationNotPermitted)"));
    assert!(site.log("slurm_resume").contains("iam:CreateServiceLinkedRole"), "{}", site.log("slurm_resume"));
}

#[test]
fn r04_a_thousand_nodes_take_two_calls_and_few_updates() {
    let site = Site::new(Behaviour { full_size: false, ..Behaviour::default() });
    site.scontrol("version", "26.05.5");
    assert_eq!(site.run("slurm_resume", &["c5-[1-1000]"]).code, Some(0), "{}", site.log("slurm_resume"));
    assert_eq!(site.ec2.count("RunInstances"), 2);
    assert_eq!(site.running().len(), 1000);
    assert!(site.updates().len() <= 4, "{}", site.updates().len());
}

#[test]
fn r13_a_node_of_two_jobs_is_launched_once() {
    let site = Site::new(Behaviour::default());
    let file = r#"{"all_nodes_resume":"c5-1","jobs":[{"job_id":1,"nodes_resume":"c5-1"},{"job_id":2,"nodes_resume":"c5-1"}]}"#;
    assert_eq!(site.resume("c5-1", file).code, Some(0));
    assert_eq!((site.live().len(), site.ec2.count("RunInstances")), (1, 1));
    assert!(site.log("slurm_resume").contains("jobs=\"1,2\""));
}

#[test]
fn r17_nothing_is_left_in_the_temporary_folder() {
    let site = Site::new(Behaviour::default());
    std::fs::create_dir(site.path("tmp")).unwrap();
    for n in 1..=5 {
        site.write("resume.json", &format!("{{\"all_nodes_resume\":\"c5-{n}\",\"jobs\":[]}}"));
        let mut command = site.command("slurm_resume", &[&format!("c5-{n}")]);
        command.env("SLURM_RESUME_FILE", site.path("resume.json")).env("TMPDIR", site.path("tmp"));
        assert!(command.output().unwrap().status.success());
    }
    assert_eq!(std::fs::read_dir(site.path("tmp")).unwrap().count(), 0);
}

#[test]
fn r19_it_does_not_wait_for_nodes_to_boot() {
    // Instances stay pending for an hour: the program is done all the same.
    let site = Site::new(Behaviour { boot_ms: 3_600_000, full_size: false, ..Behaviour::default() });
    assert_eq!(site.run("slurm_resume", &["c5-[1-500]"]).code, Some(0));
    assert_eq!(site.running().len(), 500);
}

#[test]
fn r34_tags_go_on_instances_and_volumes() {
    let groups = format!("{GROUP}tags = {{ project = \"blue\" }}\n");
    let site = Site::with(Behaviour::default(), OFF, &groups);
    assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(0), "{}", site.log("slurm_resume"));
    let instance = site.ec2.live_instances()[0].clone();
    assert_eq!(instance.tags["project"], "blue");
    assert_eq!(instance.tags["slurm-ec2:group"], "c5");
    let call = site.ec2.requests_of("RunInstances")[0].clone();
    let kinds: Vec<_> = (1..=2).filter_map(|n| call.param(&format!("TagSpecification.{n}.ResourceType"))).collect();
    assert!(kinds.contains(&"instance") && kinds.contains(&"volume"), "{:?}", call.params);
}
