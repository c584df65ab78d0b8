//! Overrides as people write them.

use serde_json::json;

use super::*;

fn problems(api: Api, overrides: Value) -> Vec<String> {
    check(api, overrides.as_object().unwrap())
}

fn pairs(api: Api, overrides: Value) -> Vec<String> {
    let overrides = overrides.as_object().unwrap();
    assert_eq!(check(api, overrides), Vec::<String>::new());
    query(api, overrides).into_iter().map(|(key, value)| format!("{key}={value}")).collect()
}

#[test]
fn parameters_by_their_names_in_the_protocol() {
    let given = json!({
        "BlockDeviceMappings": [
            {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 40, "Encrypted": true, "KmsKeyId": "k"}},
            {"DeviceName": "/dev/sdb", "NoDevice": ""},
        ],
        "NetworkInterfaces": [{"DeviceIndex": 0, "Groups": ["sg-1"], "Ipv6Addresses": [{"Ipv6Address": "::1"}]}],
        "IamInstanceProfile": {"Name": "node"},
        "SecurityGroups": ["a", "b"],
        "EbsOptimized": false,
        "LicenseSpecifications": [],
        "Placement": {},
    });
    assert_eq!(
        pairs(Api::RunInstances, given),
        [
            "BlockDeviceMapping.1.DeviceName=/dev/sda1",
            "BlockDeviceMapping.1.Ebs.Encrypted=true",
            "BlockDeviceMapping.1.Ebs.KmsKeyId=k",
            "BlockDeviceMapping.1.Ebs.VolumeSize=40",
            "BlockDeviceMapping.2.DeviceName=/dev/sdb",
            "BlockDeviceMapping.2.NoDevice=",
            "EbsOptimized=false",
            "IamInstanceProfile.Name=node",
            "NetworkInterface.1.DeviceIndex=0",
            "NetworkInterface.1.SecurityGroupId.1=sg-1",
            "NetworkInterface.1.Ipv6Addresses.1.Ipv6Address=::1",
            "SecurityGroup.1=a",
            "SecurityGroup.2=b",
        ]
    );
    let given = json!({
        "LaunchTemplateConfigs": [{"Overrides": [{"Priority": 1.0, "WeightedCapacity": 2, "MaxPrice": "0.41"}]}],
        "TargetCapacitySpecification": {"TotalTargetCapacity": 4},
        "Type": "instant",
        "ValidUntil": 1_893_456_000,
        "ValidFrom": "2029-12-31T00:00:00Z",
    });
    assert_eq!(
        pairs(Api::CreateFleet, given),
        [
            "LaunchTemplateConfigs.1.Overrides.1.MaxPrice=0.41",
            "LaunchTemplateConfigs.1.Overrides.1.Priority=1.0",
            "LaunchTemplateConfigs.1.Overrides.1.WeightedCapacity=2",
            "TargetCapacitySpecification.TotalTargetCapacity=4",
            "Type=instant",
            "ValidFrom=2029-12-31T00:00:00Z",
            "ValidUntil=2030-01-01T00:00:00Z",
        ]
    );
    assert_eq!(query_name(Api::RunInstances, "TagSpecifications"), "TagSpecification");
    assert_eq!(query_name(Api::CreateFleet, "LaunchTemplateConfigs"), "LaunchTemplateConfigs");
}

#[test]
fn r32_an_override_that_the_api_does_not_know_is_named() {
    for (api, given, expected) in [
        (
            Api::RunInstances,
            json!({"Instancetype": "c5.large"}),
            "Instancetype: RunInstances has no such parameter; write \"InstanceType\"",
        ),
        (
            Api::RunInstances,
            json!({"TagSpecification": []}),
            "TagSpecification: RunInstances has no such parameter; write \"TagSpecifications\"",
        ),
        (Api::CreateFleet, json!({"SubnetId": "subnet-1"}), "SubnetId: CreateFleet has no such parameter, only RunInstances has"),
        (Api::RunInstances, json!({"Colour": 1}), "Colour: RunInstances has no such parameter"),
        (
            Api::CreateFleet,
            json!({"LaunchTemplateConfigs": [{"Overrides": [{}, {"SubnetID": "subnet-1"}]}]}),
            "LaunchTemplateConfigs[0].Overrides[1].SubnetID: the API has no such parameter; write \"SubnetId\"",
        ),
        (
            Api::RunInstances,
            json!({"LaunchTemplate": {"Colour": "red"}}),
            "LaunchTemplate.Colour: the API has no such parameter; known here: LaunchTemplateId, LaunchTemplateName, Version",
        ),
    ] {
        assert_eq!(problems(api, given), [expected]);
    }
}

#[test]
fn values_of_another_type_are_named_with_what_was_expected() {
    let given = json!({
        "CpuOptions": {"CoreCount": "2", "ThreadsPerCore": 1.5},
        "EbsOptimized": "true",
        "ImageId": null,
        "InstanceMarketOptions": {"SpotOptions": {"MaxPrice": 0.41, "ValidUntil": "tomorrow"}},
        "KeyName": ["a"],
        "Monitoring": {},
        "Placement": "zone-a",
        "PrivateIpAddress": true,
        "SecurityGroupIds": "sg-1",
    });
    assert_eq!(
        problems(Api::RunInstances, given),
        [
            "CpuOptions.CoreCount: expected a whole number of at most 2147483647, not \"2\"; write it without quotes",
            "CpuOptions.ThreadsPerCore: expected a whole number of at most 2147483647, not the number 1.5",
            "EbsOptimized: expected true or false, not \"true\"; write it without quotes",
            "ImageId: expected a string, not null; leave it out",
            "InstanceMarketOptions.SpotOptions.MaxPrice: expected a string, not the number 0.41; write it in quotes, \"0.41\"",
            "InstanceMarketOptions.SpotOptions.ValidUntil: expected a time such as \"2030-12-31T23:59:59Z\", not \"tomorrow\"",
            "KeyName: expected a string, not a list",
            "Monitoring: Enabled must be given with it",
            "Placement: expected an object, not \"zone-a\"",
            "PrivateIpAddress: expected a string, not true; write it in quotes, \"true\"",
            "SecurityGroupIds: expected a list, not \"sg-1\"",
        ]
    );
}

#[test]
fn what_launches_rest_on_stays() {
    for api in [Api::RunInstances, Api::CreateFleet] {
        let found = problems(api, json!({"ClientToken": "x", "DryRun": false}));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("ClientToken: slurm-ec2 makes its own"), "{found:?}");
        assert!(found[1].starts_with("DryRun: "), "{found:?}");
    }
    let found = problems(Api::CreateFleet, json!({"Type": "maintain"}));
    assert!(found.len() == 1 && found[0].starts_with("Type: write \"instant\""), "{found:?}");
    assert!(problems(Api::RunInstances, json!({"MinCount": 1, "MaxCount": 2})).is_empty());
}

#[test]
fn r34_reserved_tags_in_an_override_are_named() {
    let tag = |key: &str| json!({"Key": key, "Value": "v"});
    let given = json!({"TagSpecifications": [
        {"ResourceType": "instance", "Tags": [tag("fine"), tag("Slurm-ec2:node")]},
        {"ResourceType": "volume", "Tags": [tag("aws:x")]},
    ]});
    assert_eq!(
        problems(Api::RunInstances, given),
        [
            "TagSpecifications[0].Tags[1].Key: \"Slurm-ec2:node\" is reserved: what begins with slurm-ec2: is slurm-ec2's",
            "TagSpecifications[1].Tags[0].Key: \"aws:x\" is reserved: what begins with aws: is EC2's",
        ]
    );
}

/// The launch record keeps a recipe as JSON; a run that dies must find the very same overrides there.
#[test]
fn a_recorded_recipe_leads_to_the_same_request() {
    use crate::model::recipe::{Capacity, LaunchTemplate, Recipe};
    let overrides = json!({
        "SubnetId": "subnet-1",
        "CpuOptions": {"ThreadsPerCore": 1},
        "NetworkInterfaces": [{"DeviceIndex": 0, "AssociatePublicIpAddress": false}],
    });
    let recipe = Recipe {
        api: Api::RunInstances,
        launch_template: LaunchTemplate { name: Some("hpc-c5".into()), id: None, version: "7".into() },
        instance_types: Vec::new(),
        subnets: Vec::new(),
        capacity: Capacity::Template,
        allocation_strategy: None,
        max_price: None,
        tags: std::collections::BTreeMap::new(),
        tag_instances_only: true,
        overrides: overrides.as_object().unwrap().clone(),
    };
    let read: Recipe = serde_json::from_str(&serde_json::to_string(&recipe).unwrap()).unwrap();
    assert_eq!(read, recipe);
    assert_eq!(query(Api::RunInstances, &read.overrides), query(Api::RunInstances, &recipe.overrides));
    // A record of a version before there were overrides has none.
    let mut old = serde_json::to_value(&recipe).unwrap();
    old.as_object_mut().unwrap().retain(|key, _| key != "overrides" && key != "tag_instances_only");
    let old: Recipe = serde_json::from_value(old).unwrap();
    assert!(old.overrides.is_empty() && !old.tag_instances_only);
}
