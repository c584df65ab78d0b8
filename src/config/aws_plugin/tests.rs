//! From the plugin's two files to settings, and every mistake they can hold.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use serde_json::{Value, json};

use super::{Plugin, read};
use crate::config::file::parse;
use crate::config::render::toml;
use crate::model::recipe::{Api, Capacity};

const CONFIG: &str = include_str!("../../../tests/data/aws-plugin/config.json");
const PARTITIONS: &str = include_str!("../../../tests/data/aws-plugin/partitions.json");

fn both(config: &Value, partitions: &Value, cluster: Option<&str>) -> Result<Plugin, Vec<String>> {
    read((Path::new("config.json"), &config.to_string()), (Path::new("partitions.json"), &partitions.to_string()), cluster)
}

fn config() -> Value {
    serde_json::from_str(CONFIG).unwrap()
}

fn partitions() -> Value {
    serde_json::from_str(PARTITIONS).unwrap()
}

/// The fixture with `value` in the place of what `pointer` names in partitions.json; null takes it away.
fn with(pointer: &str, value: Value) -> Result<Plugin, Vec<String>> {
    both(&config(), &changed(partitions(), pointer, value), Some("orchard"))
}

fn changed(mut document: Value, pointer: &str, value: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = document.pointer_mut(parent).unwrap();
    match (parent, value) {
        (Value::Object(object), Value::Null) => drop(object.remove(key)),
        (Value::Object(object), value) => drop(object.insert(key.to_owned(), value)),
        (Value::Array(array), value) => array[key.parse::<usize>().unwrap()] = value,
        (other, _) => panic!("{other}"),
    }
    document
}

const STEADY: &str = "/Partitions/0/NodeGroups/0";
const CHEAP: &str = "/Partitions/0/NodeGroups/1";

fn one_mistake(pointer: &str, value: Value) -> String {
    let mistakes = with(pointer, value).unwrap_err();
    assert_eq!(mistakes.len(), 1, "{pointer}: {mistakes:?}");
    mistakes.into_iter().next().unwrap()
}

#[test]
fn what_the_plugin_says_in_our_words() {
    let plugin = both(&config(), &partitions(), Some("orchard")).unwrap();
    let settings = &plugin.settings;
    assert_eq!((settings.cluster.as_str(), settings.region.as_str()), ("orchard", "eu-central-1"));
    assert_eq!(settings.slurm.bin_dir, Path::new("/opt/slurm/bin"));
    assert_eq!((settings.log.dir.as_path(), settings.log.level), (Path::new("/var/log/slurm"), tracing::Level::WARN));
    assert!(settings.publish.hostname, "the plugin sets NodeHostName to EC2's name");
    let [steady, cheap, one] = settings.groups.as_slice() else { panic!("{:?}", settings.groups) };
    assert_eq!((steady.name.as_str(), steady.nodes.to_string().as_str()), ("burst-steady", "burst-steady-[0-11]"));
    assert_eq!((cheap.nodes.to_string(), one.nodes.to_string()), ("burst-cheap-[0-199]".into(), "big-one-0".into()));
    assert!(settings.groups.iter().all(|group| group.recipe.api == Api::CreateFleet && group.launch.node_tags));
    assert_eq!(steady.recipe.capacity, Capacity::OnDemand);
    assert_eq!(steady.recipe.instance_types, ["m7i.2xlarge", "m6i.2xlarge"], "by priority");
    assert_eq!(steady.recipe.allocation_strategy.as_deref(), Some("prioritized"));
    assert_eq!(steady.recipe.subnets.len(), 2);
    assert_eq!(steady.recipe.tags.get("team").map(String::as_str), Some("orchard"));
    assert_eq!((cheap.recipe.capacity, cheap.recipe.max_price), (Capacity::Spot, Some(0.21)));
    assert_eq!(cheap.recipe.allocation_strategy.as_deref(), Some("price-capacity-optimized"));
    assert_eq!(cheap.recipe.launch_template.id.as_deref(), Some("lt-0123456789abcdef0"));
    assert_eq!(cheap.recipe.launch_template.version, "4");
    assert!(cheap.recipe.overrides.is_empty());
    // More than our keys say goes into the request as the plugin made it.
    let overrides = Value::Object(one.recipe.overrides.clone());
    assert_eq!(overrides["OnDemandOptions"]["CapacityReservationOptions"]["UsageStrategy"], "use-capacity-reservations-first");
    let fleet = overrides["LaunchTemplateConfigs"][0]["Overrides"].as_array().unwrap().clone();
    assert_eq!(fleet.len(), 2);
    assert_eq!(
        fleet[1],
        json!({ "InstanceType": "r6i.24xlarge", "Placement": { "Tenancy": "dedicated" }, "SubnetId": "subnet-0b0b0b0b0b0b0b0b2", "WeightedCapacity": 1 })
    );
    let notes = plugin.notes.join("\n");
    assert!(notes.contains("partitions.json: Partitions[0].NodeGroups[1].OnDemandOptions: not used"), "{notes}");
    assert!(notes.contains("slurm-ec2:node"), "{notes}");
}

#[test]
fn what_is_printed_can_be_used() {
    let plugin = both(&config(), &partitions(), Some("orchard")).unwrap();
    let text = toml(&plugin.settings);
    let again = parse(Path::new("x.toml"), &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(again.groups, plugin.settings.groups);
    assert_eq!(again.group_of("burst-cheap-0").unwrap().name, "burst-cheap");
    assert!(again.group_of("burst-cheap-200").is_none() && again.group_of("big-one-0").is_some());
}

#[test]
fn what_changes_in_slurm_conf() {
    let plugin = both(&config(), &partitions(), Some("orchard")).unwrap();
    let text = plugin.slurm_conf.join("\n");
    for line in [
        "  ResumeProgram=/usr/bin/slurm_resume    (was /opt/slurm/etc/aws/resume.py)",
        "  SuspendProgram=/usr/bin/slurm_suspend    (was /opt/slurm/etc/aws/suspend.py)",
        "  SlurmctldParameters=idle_on_node_suspend",
        "  ResumeRate=0    (was 100)    (these programs pace their calls by themselves)",
        "  ReturnToService=2    (a node that was down and registers again is used again)",
        "  ResumeTimeout=420",
        "  NodeName=burst-steady-[0-11] State=CLOUD CPUs=8 Weight=1",
        "  PartitionName=burst Nodes=burst-steady-[0-11],burst-cheap-[0-199] MaxTime=INFINITE State=UP Default=yes",
    ] {
        assert!(plugin.slurm_conf.iter().any(|written| written == line), "{line}\n{text}");
    }
    assert!(text.contains("slurm_resume_fail") && text.contains("change_state.py"), "{text}");
    let own = changed(config(), "/SlurmConf/SlurmctldParameters", json!("cloud_dns,idle_on_node_suspend"));
    let text = both(&own, &partitions(), Some("o")).unwrap().slurm_conf.join("\n");
    assert!(!text.contains("SlurmctldParameters"), "it has what it needs: {text}");
    for (value, line) in [(1, "  ReturnToService=2    (was 1)    ("), (2, "  ReturnToService=2")] {
        let own = changed(config(), "/SlurmConf/ReturnToService", json!(value));
        let lines = both(&own, &partitions(), Some("o")).unwrap().slurm_conf;
        let found: Vec<&String> = lines.iter().filter(|written| written.contains("ReturnToService")).collect();
        assert!(found.len() == 1 && found[0].starts_with(line), "{found:?}");
    }
}

#[test]
fn a_log_in_var_log_itself_gets_a_folder() {
    let plugin = both(&changed(config(), "/LogFileName", json!("/var/log/burst.log")), &partitions(), Some("o")).unwrap();
    let again = parse(Path::new("x.toml"), &toml(&plugin.settings)).unwrap();
    assert_eq!(again.log.dir, Path::new("/var/log/slurm-ec2"));
    let notes = plugin.notes.join("\n");
    assert!(
        notes.contains("config.json: LogFileName: in /var/log itself, so logs go to /var/log/slurm-ec2, which has to be"),
        "{notes}"
    );
}

#[test]
fn the_cluster_has_a_name() {
    let mistakes = both(&config(), &partitions(), None).unwrap_err();
    assert_eq!(mistakes, ["config.json: the plugin has no name for the cluster; give slurm.conf's ClusterName with --cluster"]);
    let named = changed(config(), "/SlurmConf/ClusterName", json!("orchard"));
    assert_eq!(both(&named, &partitions(), None).unwrap().settings.cluster, "orchard");
    assert_eq!(both(&named, &partitions(), Some("other")).unwrap().settings.cluster, "other");
}

#[test]
fn one_region_and_one_profile() {
    assert_eq!(
        one_mistake(&format!("{CHEAP}/Region"), json!("us-east-1")),
        "partitions.json: Partitions[0].NodeGroups[1].Region: us-east-1 is another region than eu-central-1, which \
         Partitions[0].NodeGroups[0] has; a configuration is for one region: import the node groups of each region by themselves"
    );
    let profile = one_mistake("/Partitions/1/NodeGroups/0/ProfileName", json!("other"));
    assert!(profile.contains("Partitions[1].NodeGroups[0]: ProfileName: profile other here, and no profile in"), "{profile}");
    let mut all = partitions();
    for pointer in [STEADY, CHEAP, "/Partitions/1/NodeGroups/0"] {
        all = changed(all, &format!("{pointer}/ProfileName"), json!("burst"));
    }
    let plugin = both(&config(), &all, Some("o")).unwrap();
    assert_eq!(plugin.settings.aws.profile.as_deref(), Some("burst"));
    assert!(plugin.settings.aws.credentials_file.is_some(), "slurmctld's programs have no HOME");
    assert!(plugin.notes.iter().any(|note| note.contains("copy profile burst")), "{:?}", plugin.notes);
}

#[test]
fn what_cannot_be_carried_over_is_named() {
    for (pointer, value, key, part) in [
        ("MaxNodes", json!(0), ".MaxNodes", "whole number from 1"),
        ("MaxNodes", json!("12"), ".MaxNodes", "whole number"),
        ("MaxNodes", Value::Null, "", "MaxNodes is missing"),
        ("NodeGroupName", json!("a-b"), ".NodeGroupName", "no part of a node's name"),
        ("Region", json!("eu-central-1a"), ".Region", "availability zone"),
        ("PurchasingOption", json!("ondemand"), ".PurchasingOption", "write \"spot\" or \"on-demand\""),
        ("OnDemandOptions", json!({ "AllocationStrategy": "diversified" }), "", "does not exist for on-demand capacity"),
        (
            "OnDemandOptions",
            json!({ "AllocationStrategy": "cheapest" }),
            ".OnDemandOptions.AllocationStrategy",
            "EC2 does not know",
        ),
        ("OnDemandOptions", json!({ "MinCapacity": 3 }), "", "MinCapacity"),
        ("LaunchTemplateSpecification", json!({ "Version": "1" }), ".LaunchTemplateSpecification", "neither"),
        (
            "LaunchTemplateSpecification",
            json!({ "LaunchTemplateName": "abc", "Version": "v1" }),
            ".LaunchTemplateSpecification.Version",
            "no version",
        ),
        (
            "LaunchTemplateOverrides",
            json!([{ "InstanceType": "m6i" }]),
            ".LaunchTemplateOverrides[0].InstanceType",
            "instance type",
        ),
        ("LaunchTemplateOverrides/0/Priority", json!("first"), ".LaunchTemplateOverrides[0].Priority", "is no number"),
        (
            "LaunchTemplateOverrides/1/InstanceType",
            json!("m6i.2xlarge"),
            ".LaunchTemplateOverrides[1].InstanceType",
            "named twice",
        ),
        ("SubnetIds/1", json!("eu-central-1a"), ".SubnetIds[1]", "is no subnet id"),
        ("SubnetIds/1", json!("subnet-0a0a0a0a0a0a0a0a1"), ".SubnetIds[1]", "named twice"),
        ("SubnetIds", json!("subnet-1"), ".SubnetIds", "write an array"),
        ("Tags/0/Value", json!("on {ip_address}"), ".Tags[0].Value", "differs from node to node"),
        ("Tags/0/Key", json!("aws:x"), ".Tags[0].Key", "reserved"),
    ] {
        let mistake = one_mistake(&format!("{STEADY}/{pointer}"), value);
        let place = format!("partitions.json: Partitions[0].NodeGroups[0]{key}: ");
        assert!(mistake.starts_with(&place) && mistake.contains(part), "{pointer}: {mistake}");
    }
    let twice = one_mistake(&format!("{CHEAP}/NodeGroupName"), json!("steady"));
    assert!(twice.contains("burst-steady is given twice"), "{twice}");
}

#[test]
fn all_mistakes_of_both_files_at_once() {
    let wrong = changed(changed(config(), "/LogLevel", json!("LOUD")), "/SlurmBinPath", json!("bin"));
    let groups =
        changed(changed(partitions(), &format!("{STEADY}/MaxNodes"), json!(-1)), &format!("{CHEAP}/SubnetIds"), Value::Null);
    let mistakes = both(&wrong, &groups, None).unwrap_err();
    assert_eq!(mistakes.len(), 5, "{mistakes:?}");
    assert!(mistakes[..3].iter().all(|text| text.starts_with("config.json: ")), "{mistakes:?}");
    assert!(mistakes[3..].iter().all(|text| text.starts_with("partitions.json: ")), "{mistakes:?}");
    let broken = read((Path::new("c.json"), "{"), (Path::new("p.json"), "[1,"), None).unwrap_err();
    assert!(broken.len() == 2 && broken[0].contains("line 1"), "{broken:?}");
    let shapes = read((Path::new("c.json"), "[]"), (Path::new("p.json"), "{\"Partitions\":[3]}"), Some("o")).unwrap_err();
    assert!(shapes.iter().any(|text| text.starts_with("c.json: this is an array")), "{shapes:?}");
    assert!(shapes.iter().any(|text| text.starts_with("p.json: Partitions[0]: this is a number")), "{shapes:?}");
}

#[test]
fn prices_that_differ_are_kept_each_with_its_type() {
    let plugin = with(&format!("{CHEAP}/LaunchTemplateOverrides/1/MaxPrice"), json!("0.3")).unwrap();
    let recipe = &plugin.settings.groups[1].recipe;
    let overrides = &recipe.overrides["LaunchTemplateConfigs"][0]["Overrides"];
    assert_eq!((overrides[0]["MaxPrice"].as_str(), overrides[1]["MaxPrice"].as_str()), (Some("0.21"), Some("0.3")));
    assert_eq!((recipe.max_price, recipe.instance_types.len()), (None, 0));
    let equal = with(&format!("{STEADY}/LaunchTemplateOverrides/1/Priority"), json!(2)).unwrap();
    assert!(equal.settings.groups[0].recipe.overrides.contains_key("LaunchTemplateConfigs"), "two firsts have no order");
}

proptest::proptest! {
    /// Any value anywhere: settings or mistakes, never a panic.
    #[test]
    fn no_value_makes_it_panic(at in 0usize..60, value in proptest::sample::select(vec![json!(null), json!(3), json!("x"), json!([]), json!({}), json!([{}])])) {
        let mut document = partitions();
        let mut pointers = Vec::new();
        collect(&document, String::new(), &mut pointers);
        let pointer = &pointers[at % pointers.len()];
        *document.pointer_mut(pointer).unwrap() = value;
        if let Ok(plugin) = both(&config(), &document, Some("o")) {
            let _ = toml(&plugin.settings);
        }
    }
}

fn collect(value: &Value, at: String, found: &mut Vec<String>) {
    found.push(at.clone());
    match value {
        Value::Object(object) => object.iter().for_each(|(key, value)| collect(value, format!("{at}/{key}"), found)),
        Value::Array(array) => array.iter().enumerate().for_each(|(n, value)| collect(value, format!("{at}/{n}"), found)),
        _ => {}
    }
}
