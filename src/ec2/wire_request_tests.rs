//! Whole requests over the wire: what ParallelCluster's files lead to, and what an override changes.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::wire_tests::{fleet, launched, request};
use crate::aws::responder::{Asked, Responder, error};
use crate::config::settings::Settings;
use crate::config::source::{Place, load};
use crate::model::api_parameters::{check, query};
use crate::model::policy::Strategy;
use crate::model::recipe::{Api, Capacity};
use crate::model::round::LaunchRequest;
use crate::plan::launch::{Ask, LaunchContext, batch};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/parallelcluster");

fn object(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

/// What slurm_resume reads on a head node with these files.
fn settings() -> Settings {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("parallelcluster_slurm_resume.conf");
    let text = format!(
        "[slurm_resume]\ncluster_name = orchard\nregion = eu-central-1\ndynamodb_table = nodes\nhead_node_private_ip = 10.0.0.1\n\
         head_node_hostname = head\nclustermgtd_heartbeat_file_path = /nowhere\nfleet_config_file = {FOLDER}/fleet-config.json\n\
         run_instances_overrides = {FOLDER}/run_instances_overrides.json\n\
         create_fleet_overrides = {FOLDER}/create_fleet_overrides.json\n"
    );
    std::fs::write(&path, text).unwrap();
    let plugin_dir = folder.path().to_owned();
    let place =
        Place { path, slurm_bin_dir: None, ca_bundle: None, home: None, pki_dir: None, sudo: None, plugin_dir, is_copy: false };
    load("slurm_resume", &place).unwrap()
}

/// The form without what every request of ours has, each value as itself (a priority of 0 may be written 0.0).
fn plain(pairs: impl IntoIterator<Item = (String, String)>) -> BTreeMap<String, String> {
    let ours = ["Action", "Version", "ClientToken", "TagSpecification"];
    let others = pairs.into_iter().filter(|(key, _)| !ours.contains(&key.split('.').next().unwrap()));
    let value =
        |key: &str, text: String| if key.ends_with(".Priority") { text.parse::<f64>().unwrap().to_string() } else { text };
    others.map(|(key, text)| (key.clone(), value(&key, text))).collect()
}

/// `instance cost-centre=orchard-7`
fn tags(pairs: &BTreeMap<String, String>) -> BTreeSet<String> {
    let entries = pairs.iter().filter_map(|(key, tag)| Some((key.strip_suffix(".Key")?, tag)));
    let entries = entries.filter(|(at, _)| at.starts_with("TagSpecification."));
    let kind = |at: &str| pairs[&format!("{}.ResourceType", at.split(".Tag.").next().unwrap())].clone();
    entries.map(|(at, tag)| format!("{} {tag}={}", kind(at), pairs[&format!("{at}.Value")])).collect()
}

#[tokio::test]
async fn requests_of_parallelclusters_files() {
    let wanted: Value = serde_json::from_slice(&std::fs::read(format!("{FOLDER}/launch-requests.json")).unwrap()).unwrap();
    let wanted = wanted.as_array().unwrap();
    assert_eq!(wanted.len(), 12);
    let (settings, versions) = (settings(), BTreeMap::new());
    let context = LaunchContext { cluster: "orchard", state_id: "s1", launch: "abc", versions: &versions };
    let server = Responder::new(|asked| if asked.get("Action") == "CreateFleet" { fleet() } else { launched(&["i-1"]) }).await;
    let ec2 = server.ec2(|_| {}).await;
    for (index, wanted) in wanted.iter().enumerate() {
        let (queue, resource) = (wanted["queue"].as_str().unwrap(), wanted["compute_resource"].as_str().unwrap());
        let nodes: Vec<String> = (1..=wanted["count"].as_u64().unwrap()).map(|n| format!("{queue}-dy-{resource}-{n}")).collect();
        let group = settings.group_of(&nodes[0]).unwrap();
        let expected: BTreeMap<_, _> = query(group.recipe.api, &object(&wanted["request"])).into_iter().collect();
        // Greedy asks as best effort does: its jobs are made whole from what came.
        let strategies: &[Strategy] = match wanted["launch_all_or_nothing"] == true {
            true => &[Strategy::AllOrNothing],
            false => &[Strategy::BestEffort, Strategy::GreedyAllOrNothing],
        };
        for &strategy in strategies {
            let ask = Ask { group, recipe: &group.recipe, strategy, names_node: false };
            ec2.launch(&batch(ask, nodes.clone(), &context, index).request).await.unwrap();
            let asked = server.asked().pop().unwrap();
            let case = format!("{queue} {resource} {strategy:?}");
            assert_eq!(asked.get("ClientToken"), format!("abc-{index}"));
            assert_eq!(plain(asked.form.clone()), plain(expected.clone()), "{case}");
            let mut expected = tags(&expected);
            let ours = [
                ("cluster", "orchard"),
                ("state", "s1"),
                ("launch", "abc"),
                ("group", &group.name),
                ("batch", &index.to_string()),
            ];
            expected.extend(ours.map(|(key, value)| format!("instance slurm-ec2:{key}={value}")));
            assert_eq!(tags(&asked.form), expected, "{case}");
        }
    }
}

fn overriding(api: Api, overrides: &Value) -> LaunchRequest {
    let mut request = request(api, 3);
    request.recipe.overrides = object(overrides);
    assert_eq!(check(api, &request.recipe.overrides), Vec::<String>::new());
    request
}

#[tokio::test]
async fn an_override_replaces_its_parameter_in_every_try() {
    let replies = [error(503, "RequestLimitExceeded", ""), launched(&["i-1", "i-2"])];
    let server = Responder::listing(replies).await;
    let ec2 = server.ec2(|aws| aws.attempts = 2).await;
    let mut wanted = overriding(
        Api::RunInstances,
        &json!({
            "LaunchTemplate": {"LaunchTemplateId": "lt-2", "Version": "3"},
            "InstanceMarketOptions": {},
            "SecurityGroupIds": ["sg-1", "sg-2"],
            "EbsOptimized": false,
            "UserData": "#!/bin/sh\necho \"a & b\"\n",
        }),
    );
    wanted.recipe.capacity = Capacity::Spot;
    wanted.recipe.subnets = vec!["subnet-1".to_owned()];
    let answer = ec2.launch(&wanted).await.unwrap();
    assert_eq!(answer.instances.len(), 2);
    assert_eq!(answer.instances[0].private_ip.as_deref(), Some("10.0.0.5"));
    let asked = server.asked();
    assert_eq!(asked.len(), 2);
    for asked in asked {
        let below = |name: &str| -> Vec<String> {
            let pairs = asked.form.iter().filter(|(key, _)| key.split('.').next() == Some(name));
            pairs.map(|(key, value)| format!("{key}={value}")).collect()
        };
        assert_eq!(below("LaunchTemplate"), ["LaunchTemplate.LaunchTemplateId=lt-2", "LaunchTemplate.Version=3"]);
        assert_eq!(below("InstanceMarketOptions"), Vec::<String>::new());
        assert_eq!(below("SecurityGroupId"), ["SecurityGroupId.1=sg-1", "SecurityGroupId.2=sg-2"]);
        assert_eq!((asked.get("EbsOptimized"), asked.get("SubnetId")), ("false", "subnet-1"));
        // As boto3 does; EC2 takes user data encoded.
        assert_eq!(asked.get("UserData"), "IyEvYmluL3NoCmVjaG8gImEgJiBiIgo=");
        assert_eq!((asked.get("Action"), asked.get("ClientToken")), ("RunInstances", "token-1"));
        assert_eq!((asked.get("MinCount"), asked.get("MaxCount")), ("1", "3"));
        assert_eq!(asked.get("TagSpecification.2.Tag.2.Value"), "a & b");
    }
}

#[tokio::test]
async fn r34_overridden_tags_of_a_fleet_keep_ours() {
    let server = Responder::new(|_| fleet()).await;
    let ec2 = server.ec2(|_| {}).await;
    let given = json!({"TagSpecifications": [
        {"ResourceType": "fleet", "Tags": [{"Key": "cost", "Value": "7"}]},
        {"ResourceType": "instance", "Tags": [{"Key": "cost", "Value": "8"}]},
    ]});
    ec2.launch(&overriding(Api::CreateFleet, &given)).await.unwrap();
    let asked = &server.asked()[0];
    assert_eq!(
        tags(&asked.form),
        ["fleet cost=7", "instance cost=8", "instance slurm-ec2:cluster=hpc"].map(str::to_owned).into()
    );
}

#[tokio::test]
async fn r34_instances_alone_are_tagged_where_the_role_may_tag_no_more() {
    let server = Responder::new(|asked| if asked.get("Action") == "CreateFleet" { fleet() } else { launched(&["i-1"]) }).await;
    let ec2 = server.ec2(|_| {}).await;
    for api in [Api::RunInstances, Api::CreateFleet] {
        let mut wanted = request(api, 1);
        wanted.recipe.tag_instances_only = true;
        ec2.launch(&wanted).await.unwrap();
        let expected = ["instance slurm-ec2:cluster=hpc", "instance team=a & b"].map(str::to_owned);
        assert_eq!(tags(&server.asked().pop().unwrap().form), expected.into());
    }
}

#[tokio::test]
async fn a_fleet_of_the_templates_own_type_is_tied_when_it_is_all_or_nothing() {
    let server = Responder::new(|_| fleet()).await;
    let ec2 = server.ec2(|_| {}).await;
    for (strategy, expected) in [(Strategy::BestEffort, ["", "", ""]), (Strategy::AllOrNothing, ["true", "true", "3"])] {
        let mut wanted = request(Api::CreateFleet, 3);
        wanted.strategy = strategy;
        ec2.launch(&wanted).await.unwrap();
        let asked: Asked = server.asked().pop().unwrap();
        let told = ["SingleInstanceType", "SingleAvailabilityZone", "MinTargetCapacity"];
        assert_eq!(told.map(|name| asked.get(&format!("OnDemandOptions.{name}")).to_owned()), expected);
    }
}
