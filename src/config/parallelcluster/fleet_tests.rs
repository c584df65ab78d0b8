//! Compute resources with mistakes: their own nodes fail, with file and key, and no others.
#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::tests::Head;
use crate::config::settings::Settings;

/// The settings when compute resource `apple/core` reads like this.
fn with(resource: Value) -> (Head, Settings) {
    let head = Head::new();
    head.write("fleet-config.json", &json!({"apple": {"core": resource, "seed": {"Api": "run-instances"}}}).to_string());
    head.write("create_fleet_overrides.json", "{}");
    head.write("run_instances_overrides.json", "{}");
    let settings = head.load();
    (head, settings)
}

fn fleet() -> Value {
    json!({
        "Api": "create-fleet", "CapacityType": "on-demand", "Instances": [{"InstanceType": "c5.large"}],
        "Networking": {"SubnetIds": ["subnet-0a1"]}
    })
}

/// `fleet()` with one key changed; `null` takes it away.
fn changed(key: &str, value: Value) -> Value {
    let mut resource = fleet();
    resource[key] = value;
    resource
}

#[test]
fn a_resource_with_mistakes_fails_its_own_nodes_with_file_and_key() {
    for (resource, part) in [
        (json!({}), "apple.core.Api is missing; it must be \"run-instances\" or \"create-fleet\""),
        (json!({"Api": 7}), "apple.core.Api is a number, not a string"),
        (json!({"Api": "run-instance"}), "apple.core.Api is \"run-instance\"; it must be"),
        (json!("run-instances"), "apple.core is a string, not an object"),
        (json!({"Api": "run-instances", "Instances": {}}), "apple.core.Instances is an object, not a list"),
        (changed("CapacityType", Value::Null), "apple.core.CapacityType is missing"),
        (changed("CapacityType", json!("ondemand")), "apple.core.CapacityType is \"ondemand\""),
        (changed("Instances", json!([])), "apple.core.Instances is missing or empty"),
        (changed("Instances", json!([{}])), "apple.core.Instances[0].InstanceType is missing"),
        (
            changed("Instances", json!([{"InstanceType": "big"}])),
            "apple.core.Instances[0].InstanceType \"big\" is no instance type",
        ),
        (changed("Networking", Value::Null), "apple.core.Networking.SubnetIds is missing"),
        (changed("Networking", json!({"SubnetIds": "subnet-1"})), "apple.core.Networking.SubnetIds is a string, not a list"),
        (changed("Networking", json!({"SubnetIds": [1]})), "apple.core.Networking.SubnetIds[0] is a number"),
        (changed("Networking", json!({"SubnetIds": ["vpc-1"]})), "apple.core.Networking.SubnetIds[0] \"vpc-1\" is no subnet id"),
        (
            changed("AllocationStrategy", json!("cheapest")),
            "apple.core.AllocationStrategy is \"cheapest\", which EC2 does not know",
        ),
        (changed("MaxPrice", json!(0)), "apple.core.MaxPrice is 0; it must be above 0.001"),
        (changed("MaxPrice", json!("dear")), "apple.core.MaxPrice is no number"),
        (changed("CapacityReservationId", json!(["cr-1"])), "apple.core.CapacityReservationId is a list, not a string"),
    ] {
        let (head, settings) = with(resource);
        let why = settings.why_not("apple-dy-core-1");
        assert!(why.contains(&format!("{}: {part}", head.path("fleet-config.json").display())), "{part}: {why}");
        assert!(settings.group_of("apple-dy-core-1").is_none());
        assert_eq!(settings.group_of("apple-dy-seed-1").unwrap().name, "apple/seed");
        assert_eq!(settings.broken(), [why]);
    }
}

#[test]
fn c03_a_reservation_has_one_instance_type() {
    let mut resource = changed("Instances", json!([{"InstanceType": "c5.large"}, {"InstanceType": "c5a.large"}]));
    resource["CapacityReservationId"] = json!("cr-0a1");
    let (_, settings) = with(resource);
    let why = settings.why_not("apple-st-core-1");
    assert!(why.contains("apple.core.CapacityReservationId is for one instance type, and Instances has 2"), "{why}");
    assert!(settings.group_of("apple-dy-seed-1").is_some());
    let (_, settings) = with(changed("CapacityReservationId", json!("cr-0a1")));
    assert!(settings.group_of("apple-dy-core-1").is_some(), "{}", settings.why_not("apple-dy-core-1"));
}

#[test]
fn all_that_is_wrong_with_a_resource_is_told() {
    let (_, settings) = with(json!({"Api": "create-fleet", "MaxPrice": true}));
    let why = settings.why_not("apple-dy-core-1");
    for key in ["CapacityType", "Instances", "Networking.SubnetIds", "MaxPrice"] {
        assert!(why.contains(&format!("apple.core.{key} is ")), "{key}: {why}");
    }
}

#[test]
fn keys_of_the_future_and_prices_of_others_are_left_alone() {
    let mut resource = changed("MaxPrice", json!("0.5"));
    resource["Next"] = json!({"year": 1});
    let (_, settings) = with(resource.clone());
    assert_eq!(settings.group_of("apple-dy-core-1").unwrap().recipe.max_price, None, "on-demand has no price");
    resource["CapacityType"] = json!("spot");
    let (_, settings) = with(resource);
    assert_eq!(settings.group_of("apple-dy-core-1").unwrap().recipe.max_price, Some(0.5));
}

#[test]
fn a_queue_that_is_no_object_fails_alone() {
    let head = Head::new();
    head.write("fleet-config.json", &json!({"apple": [], "pear": {"core": {"Api": "run-instances"}}}).to_string());
    let settings = head.load();
    assert!(
        settings.why_not("apple-dy-core-1").ends_with("fleet-config.json: apple is a list, not an object of compute resources")
    );
    assert!(settings.group_of("pear-st-core-1").is_some());
    let why = settings.why_not("plum-dy-core-1");
    assert!(why.ends_with("fleet-config.json has no queue plum"), "{why}");
    let why = settings.why_not("pear-dy-stone-1");
    assert!(why.ends_with("fleet-config.json has no compute resource stone in queue pear"), "{why}");
    assert!(settings.why_not("login-1").starts_with("the node's name is not of the form"));
}

#[test]
fn wrong_overrides_fail_their_own_nodes_with_file_and_key() {
    let head = Head::new();
    head.write(
        "run_instances_overrides.json",
        &json!({"apple": {"core": {"NoSuchParameter": 1, "EbsOptimized": "maybe"}, "peel-small": ["InstanceType"]}}).to_string(),
    );
    head.write("create_fleet_overrides.json", &json!({"pear-2": 7}).to_string());
    let settings = head.load();
    let why = settings.why_not("apple-dy-core-1");
    for part in
        ["run_instances_overrides.json: apple.core.NoSuchParameter", "run_instances_overrides.json: apple.core.EbsOptimized"]
    {
        assert!(why.contains(part), "{part}: {why}");
    }
    assert!(settings.why_not("apple-dy-peel-small-1").contains("apple.peel-small is a list, not an object of API parameters"));
    assert!(settings.why_not("pear-2-dy-mixod-1").contains("create_fleet_overrides.json: pear-2 is a number"));
    assert!(settings.group_of("gpu-st-block-1").is_some());
}

#[test]
fn overrides_for_nothing_are_warned_of() {
    let head = Head::new();
    let api = json!({"EbsOptimized": true});
    head.write(
        "run_instances_overrides.json",
        &json!({"plum": {"core": api}, "apple": {"pip": api}, "pear-2": {"mixod": api}}).to_string(),
    );
    let settings = head.load();
    assert_eq!(settings.warnings.len(), 3, "{:?}", settings.warnings);
    for part in ["plum is no queue", "apple.pip is no compute resource", "pear-2.mixod is launched by the other API"] {
        assert!(settings.warnings.iter().any(|warning| warning.contains(part)), "{part}: {:?}", settings.warnings);
    }
    assert_eq!(settings.broken(), Vec::<&str>::new());
    // A slip in the fleet says nothing of the override.
    let (head, _) = with(json!({"Api": "run-instance"}));
    head.write("run_instances_overrides.json", &json!({"apple": {"core": api}}).to_string());
    let settings = head.load();
    assert_eq!((settings.warnings.clone(), settings.broken().len()), (Vec::new(), 1));
}

#[test]
fn names_that_fit_twice_are_warned_of_and_fail() {
    let head = Head::new();
    let one = json!({"Api": "run-instances"});
    head.write("fleet-config.json", &json!({"a": {"b-dy-c": one, "d": one}, "a-dy-b": {"c": one}}).to_string());
    let settings = head.load();
    assert!(
        settings.warnings.iter().any(|warning| warning.contains("nodes like a-dy-b-dy-c-1 cannot be launched")),
        "{:?}",
        settings.warnings
    );
    assert!(settings.why_not("a-dy-b-dy-c-7").contains("it can be read as queue a with compute resource b-dy-c and as"));
    assert!(settings.group_of("a-dy-d-1").is_some());
}

#[test]
fn batches_that_a_fleet_cannot_guarantee_are_cut() {
    let head = Head::new();
    let text = std::fs::read_to_string(head.path("parallelcluster_slurm_resume.conf")).unwrap();
    head.write("parallelcluster_slurm_resume.conf", &text.replace("proxy = NONE", "launch_max_batch_size = 2000"));
    let settings = head.load();
    let batch = |node: &str| settings.group_of(node).unwrap().launch.batch_size;
    // One subnet; one type; neither, so that EC2 is asked for no minimum; RunInstances.
    let sizes = ["pear-2-dy-mixspot-1", "pear-2-dy-onetype2az-1", "pear-2-dy-mixod-1", "apple-dy-core-1"].map(batch);
    assert_eq!(sizes, [1000, 1000, 2000, 2000]);
    assert_eq!(settings.warnings.len(), 2, "{:?}", settings.warnings);
}
