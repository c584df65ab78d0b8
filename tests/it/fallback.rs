//! `[[group.fallback]]`: what the recipe did not give is asked of the next one, in the same run.

use slurm_ec2_testkit::ec2::{Behaviour, Capacity, Rule};

use crate::site::Site;

const OFF: &str = "request_bucket = \"off\"\n";

/// A group of c5.large with a chain: another type, then spot, then another template.
const CHAIN: &str = "[[group]]\nname = \"c5\"\nnodes = \"c5-[1-2000]\"\nlaunch_template = { name = \"hpc-c5\", version = \"1\" }\n\
instance_types = [\"c5.large\"]\n\
[[group.fallback]]\ninstance_types = [\"c6i.large\"]\n\
[[group.fallback]]\ninstance_types = [\"m5.large\"]\ncapacity = \"spot\"\n\
[[group.fallback]]\nlaunch_template = { name = \"hpc-other\", version = \"1\" }\n";

fn site(capacity: Vec<Capacity>, launch: &str) -> Site {
    Site::with(Behaviour::with_capacity(capacity), &format!("{OFF}{launch}"), CHAIN)
}

fn types(site: &Site) -> Vec<String> {
    let mut types: Vec<_> = site.ec2.live_instances().iter().map(|instance| instance.instance_type.clone()).collect();
    types.sort();
    types
}

#[test]
fn b57_the_rest_comes_from_the_next_recipe() {
    let site = site(vec![Capacity::limit("c5.large", "*", 3), Capacity::limit("c6i.large", "*", 2)], "");
    let ran = site.run("slurm_resume", &["c5-[1-6]"]);
    assert_eq!(ran.code, Some(0), "{}", site.log("slurm_resume"));
    assert_eq!(types(&site), ["c5.large", "c5.large", "c5.large", "c6i.large", "c6i.large", "m5.large"]);
    assert_eq!(site.running().len(), 6);
    let log = site.log("slurm_resume");
    assert_eq!(log.matches("falling back to").count(), 2, "{log}");
    let spot =
        site.ec2.requests_of("RunInstances").into_iter().find(|call| call.param("InstanceType") == Some("m5.large")).unwrap();
    assert_eq!(spot.param("InstanceMarketOptions.MarketType"), Some("spot"));
    assert_eq!((spot.param("MinCount"), spot.param("MaxCount")), (Some("1"), Some("1")));
    site.assert_settled();
}

#[test]
fn all_or_nothing_asks_each_recipe_for_all() {
    let site = site(vec![Capacity::limit("c5.large", "*", 3)], "strategy = \"all-or-nothing\"\n");
    assert_eq!(site.run("slurm_resume", &["c5-[1-6]"]).code, Some(0), "{}", site.log("slurm_resume"));
    assert_eq!(types(&site), vec!["c6i.large"; 6]);
    for call in site.ec2.requests_of("RunInstances") {
        assert_eq!((call.param("MinCount"), call.param("MaxCount")), (Some("6"), Some("6")));
    }
    site.assert_settled();
}

#[test]
fn the_reason_names_everything_that_was_tried() {
    let site = site(vec![Capacity::limit("*", "*", 0)], "");
    assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(1));
    assert_eq!(site.ec2.count("RunInstances"), 4);
    let update = site.updates().into_iter().find(|line| line.contains("reason=")).unwrap();
    assert!(update.contains("(Code:InsufficientInstanceCapacity)"), "{update}");
    let log = site.log("slurm_resume");
    let line = log.lines().find(|line| line.contains("launch failed")).unwrap();
    for tried in [
        "type c5.large",
        "also tried hpc-c5 c6i.large: InsufficientInstanceCapacity",
        "hpc-c5 m5.large spot: Ins",
        "hpc-other c5.large: Ins",
    ] {
        assert!(line.contains(tried), "{tried} in {line}");
    }
    assert!(update.contains("also tried hpc-c5 c6i.large"), "{update}");
    site.assert_settled();
}

#[test]
fn r28_a_full_subnet_falls_back_to_another() {
    let group = "[[group]]\nname = \"c5\"\nnodes = \"c5-[1-9]\"\nlaunch_template = { name = \"hpc-c5\", version = \"1\" }\n\
                 subnets = [\"subnet-0000000a\"]\n[[group.fallback]]\nsubnets = [\"subnet-0000000b\"]\n";
    let full = Rule::on("RunInstances").subnet("subnet-0000000a").error("InsufficientFreeAddressesInSubnet", 400);
    let site = Site::with(Behaviour { rules: vec![full], ..Behaviour::default() }, OFF, group);
    assert_eq!(site.run("slurm_resume", &["c5-[1-3]"]).code, Some(0), "{}", site.log("slurm_resume"));
    assert!(site.ec2.live_instances().iter().all(|instance| instance.subnet == "subnet-0000000b"));
    site.assert_settled();
}

#[test]
fn other_failures_do_not_fall_back() {
    let denied = Rule::on("RunInstances").error("UnauthorizedOperation", 403);
    let site = Site::with(Behaviour { rules: vec![denied], ..Behaviour::default() }, OFF, CHAIN);
    assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(1));
    assert_eq!(site.ec2.count("RunInstances"), 1);
    site.assert_settled();
}

#[test]
fn a_type_that_the_zone_does_not_have_falls_back() {
    let unsupported = Rule::on("RunInstances").instance_type("c5.large").error("Unsupported", 400);
    let site = Site::with(Behaviour { rules: vec![unsupported], ..Behaviour::default() }, OFF, CHAIN);
    assert_eq!(site.run("slurm_resume", &["c5-[1-3]"]).code, Some(0), "{}", site.log("slurm_resume"));
    assert_eq!(types(&site), vec!["c6i.large"; 3]);
    site.assert_settled();
}

#[test]
fn beside_parallelcluster_through_our_file_too() {
    let group = "[[group]]\nname = \"q1/cr1\"\nqueue = \"q1\"\ncompute_resource = \"cr1\"\n\
                 launch_template = { name = \"hpc-c5\", version = \"1\" }\ninstance_types = [\"c5.large\"]\n\
                 [[group.fallback]]\ninstance_types = [\"c6i.large\"]\n";
    let site = site(vec![Capacity::limit("c5.large", "*", 2)], "");
    let heartbeat = site.path("heartbeat");
    let section = format!("[parallelcluster]\nheartbeat = \"{}\"\ninstance_id = \"i-0head\"\n", heartbeat.display());
    site.configure(&format!("{OFF}scale_by = \"job\"\nstrategy = \"best-effort\"\n"), &format!("{section}{group}"));
    let now = std::process::Command::new("date").args(["-u", "+%Y-%m-%d %H:%M:%S.000000+0000"]).output().unwrap();
    std::fs::write(&heartbeat, String::from_utf8(now.stdout).unwrap().trim_end()).unwrap();
    let ran = site.run("slurm_resume", &["q1-dy-cr1-[1-3],q1-st-cr1-1"]);
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stderr, site.log("slurm_resume"));
    assert_eq!(types(&site), ["c5.large", "c5.large", "c6i.large", "c6i.large"]);
    site.assert_settled();
}

#[test]
fn c03_a_reservation_that_is_gone_costs_its_own_group_alone() {
    let groups = "[[group]]\nname = \"block\"\nnodes = \"block-[1-9]\"\nlaunch_template = { name = \"hpc-block\", version = \"1\" }\n\
                  [[group]]\nname = \"c5\"\nnodes = \"c5-[1-9]\"\nlaunch_template = { name = \"hpc-c5\", version = \"1\" }\n";
    let words = "The capacity reservation ID 'cr-0fee1900d00000042' does not exist";
    let gone = Rule::on("RunInstances").template("hpc-block").error_text("InvalidCapacityReservationId.NotFound", 400, words);
    let site = Site::with(Behaviour { rules: vec![gone], ..Behaviour::default() }, OFF, groups);
    assert_eq!(site.run("slurm_resume", &["block-[1-2],c5-[1-3]"]).code, Some(1), "{}", site.log("slurm_resume"));
    assert_eq!(site.running().into_iter().map(|(node, _)| node).collect::<Vec<_>>(), ["c5-1", "c5-2", "c5-3"]);
    let update = site.updates().into_iter().find(|line| line.contains("reason=")).unwrap();
    assert!(update.contains("nodename=block-1,block-2") && update.contains("cr-0fee1900d00000042"), "{update}");
    site.assert_settled();
}
