//! The real SDK against a local HTTP server: what goes over the wire, what is repeated, how each failure is sorted.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::Duration;

use super::sdk::Ec2;
use crate::aws::responder::{Asked, Reply, Responder, error, ok, settings};
use crate::config::settings::AwsSettings;
use crate::model::failure::ErrorClass;
use crate::model::policy::Strategy;
use crate::model::recipe::{Api, Capacity, LaunchTemplate, Recipe};
use crate::model::round::{LaunchRequest, Launched};

pub(super) fn request(api: Api, count: u32) -> LaunchRequest {
    LaunchRequest {
        group: "c5".into(),
        recipe: Recipe {
            api,
            launch_template: LaunchTemplate { name: Some("hpc-c5".into()), id: None, version: "7".into() },
            instance_types: Vec::new(),
            subnets: Vec::new(),
            capacity: Capacity::OnDemand,
            allocation_strategy: None,
            max_price: None,
            tags: BTreeMap::new(),
            tag_instances_only: false,
            overrides: serde_json::Map::new(),
        },
        strategy: Strategy::BestEffort,
        count,
        client_token: "token-1".into(),
        tags: vec![("slurm-ec2:cluster".into(), "hpc".into()), ("team".into(), "a & b".into())],
    }
}

pub(super) fn list(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

pub(super) fn launched(ids: &[&str]) -> Reply {
    let items: String = ids
        .iter()
        .map(|id| {
            format!(
                "<item><instanceId>{id}</instanceId><instanceState><code>0</code><name>pending</name></instanceState>\
                 <privateIpAddress>10.0.0.5</privateIpAddress><privateDnsName>ip-10-0-0-5.ec2.internal</privateDnsName>\
                 <instanceType>c5.large</instanceType><launchTime>2026-11-29T12:00:00.000Z</launchTime>\
                 <placement><availabilityZone>eu-west-1a</availabilityZone></placement><subnetId>subnet-1</subnetId>\
                 <tagSet><item><key>team</key><value>a</value></item></tagSet></item>"
            )
        })
        .collect();
    ok("RunInstances", &format!("<reservationId>r-1</reservationId><instancesSet>{items}</instancesSet>"))
}

fn form(asked: &Asked) -> Vec<String> {
    asked.form.iter().filter(|(key, _)| !matches!(key.as_str(), "Version")).map(|(key, value)| format!("{key}={value}")).collect()
}

#[tokio::test]
async fn run_instances_as_ec2_wants_it() {
    let server = Responder::listing([launched(&["i-1", "i-2"])]).await;
    let ec2 = server.ec2(|_| {}).await;
    let answer = ec2.launch(&request(Api::RunInstances, 3)).await.unwrap();
    assert_eq!(
        form(&server.asked()[0]),
        [
            "Action=RunInstances",
            "ClientToken=token-1",
            "LaunchTemplate.LaunchTemplateName=hpc-c5",
            "LaunchTemplate.Version=7",
            "MaxCount=3",
            "MinCount=1",
            "TagSpecification.1.ResourceType=instance",
            "TagSpecification.1.Tag.1.Key=slurm-ec2:cluster",
            "TagSpecification.1.Tag.1.Value=hpc",
            "TagSpecification.1.Tag.2.Key=team",
            "TagSpecification.1.Tag.2.Value=a & b",
            "TagSpecification.2.ResourceType=volume",
            "TagSpecification.2.Tag.1.Key=slurm-ec2:cluster",
            "TagSpecification.2.Tag.1.Value=hpc",
            "TagSpecification.2.Tag.2.Key=team",
            "TagSpecification.2.Tag.2.Value=a & b",
        ]
    );
    assert_eq!(answer.request_id.as_deref(), Some("req-1"));
    assert_eq!(answer.instances.len(), 2);
    let first = &answer.instances[0];
    assert_eq!((first.private_ip.as_deref(), first.hostname.as_deref()), (Some("10.0.0.5"), Some("ip-10-0-0-5")));
    assert_eq!((first.zone.as_deref(), first.subnet.as_deref()), (Some("eu-west-1a"), Some("subnet-1")));
    assert_eq!(first.launch_time.unwrap().to_string(), "2026-11-29T12:00:00Z");
    assert_eq!(first.tags.get("team").map(String::as_str), Some("a"));
    assert_eq!(ec2.calls().to_string(), "RunInstances=1");
}

#[tokio::test]
async fn run_instances_spot_and_capacity_block() {
    let server = Responder::new(|_| launched(&["i-1"])).await;
    let ec2 = server.ec2(|_| {}).await;
    let mut spot = request(Api::RunInstances, 4);
    spot.strategy = Strategy::AllOrNothing;
    spot.recipe.capacity = Capacity::Spot;
    spot.recipe.max_price = Some(0.05);
    spot.recipe.instance_types = list(&["c5.large"]);
    spot.recipe.subnets = list(&["subnet-1"]);
    ec2.launch(&spot).await.unwrap();
    let mut block = request(Api::RunInstances, 4);
    block.recipe.capacity = Capacity::CapacityBlock;
    block.recipe.launch_template = LaunchTemplate { name: None, id: Some("lt-1".into()), version: "$Latest".into() };
    ec2.launch(&block).await.unwrap();
    let asked = server.asked();
    assert_eq!((asked[0].get("MinCount"), asked[0].get("MaxCount")), ("4", "4"));
    assert_eq!((asked[0].get("InstanceType"), asked[0].get("SubnetId")), ("c5.large", "subnet-1"));
    assert_eq!(asked[0].get("InstanceMarketOptions.MarketType"), "spot");
    assert_eq!(asked[0].get("InstanceMarketOptions.SpotOptions.MaxPrice"), "0.05");
    assert_eq!(asked[0].get("InstanceMarketOptions.SpotOptions.SpotInstanceType"), "one-time");
    assert_eq!(asked[0].get("InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior"), "terminate");
    assert_eq!(asked[1].get("InstanceMarketOptions.MarketType"), "capacity-block");
    assert_eq!((asked[1].get("LaunchTemplate.LaunchTemplateId"), asked[1].get("LaunchTemplate.Version")), ("lt-1", "$Latest"));
}

const FLEET: &str = "<fleetId>fleet-1</fleetId><fleetInstanceSet><item><instanceType>c5.large</instanceType><lifecycle>on-demand\
    </lifecycle><launchTemplateAndOverrides><overrides><subnetId>subnet-2</subnetId></overrides></launchTemplateAndOverrides>\
    <instanceIds><item>i-1</item><item>i-2</item></instanceIds></item></fleetInstanceSet>";

pub(super) fn fleet() -> Reply {
    ok("CreateFleet", FLEET)
}

#[tokio::test]
async fn create_fleet_type_major_with_priorities() {
    let server = Responder::new(|_| fleet()).await;
    let ec2 = server.ec2(|_| {}).await;
    let mut wanted = request(Api::CreateFleet, 2);
    wanted.recipe.instance_types = list(&["c5.large", "m5.large"]);
    wanted.recipe.subnets = list(&["subnet-1", "subnet-2"]);
    wanted.recipe.allocation_strategy = Some("prioritized".into());
    let answer = ec2.launch(&wanted).await.unwrap();
    let ids: Vec<&str> = answer.instances.iter().map(|instance| instance.id.as_str()).collect();
    assert_eq!(ids, ["i-1", "i-2"]);
    assert_eq!(answer.instances[0].subnet.as_deref(), Some("subnet-2"));
    assert_eq!(answer.instances[0].tags.get("slurm-ec2:cluster").map(String::as_str), Some("hpc"));
    let asked = &server.asked()[0];
    let overrides: Vec<String> = (1..=4)
        .map(|at| {
            let part = |name: &str| asked.get(&format!("LaunchTemplateConfigs.1.Overrides.{at}.{name}")).to_owned();
            format!("{} {} {}", part("InstanceType"), part("SubnetId"), part("Priority").parse::<f64>().unwrap())
        })
        .collect();
    assert_eq!(overrides, ["c5.large subnet-1 0", "c5.large subnet-2 1", "m5.large subnet-1 2", "m5.large subnet-2 3"]);
    assert_eq!((asked.get("Type"), asked.get("ClientToken")), ("instant", "token-1"));
    assert_eq!(asked.get("TargetCapacitySpecification.TotalTargetCapacity"), "2");
    assert_eq!(asked.get("TargetCapacitySpecification.DefaultTargetCapacityType"), "on-demand");
    assert_eq!(asked.get("OnDemandOptions.AllocationStrategy"), "prioritized");
    assert_eq!(asked.get("OnDemandOptions.CapacityReservationOptions.UsageStrategy"), "use-capacity-reservations-first");
    // Several types and several zones: EC2 takes no minimum.
    assert_eq!(asked.get("OnDemandOptions.MinTargetCapacity"), "");
    assert_eq!(
        (asked.get("TagSpecification.1.ResourceType"), asked.get("TagSpecification.2.ResourceType")),
        ("fleet", "instance")
    );
    assert_eq!(asked.get("TagSpecification.3.ResourceType"), "");
}

#[tokio::test]
async fn create_fleet_spot_all_or_nothing() {
    let server = Responder::new(|_| fleet()).await;
    let ec2 = server.ec2(|_| {}).await;
    let mut wanted = request(Api::CreateFleet, 2);
    wanted.strategy = Strategy::AllOrNothing;
    wanted.recipe.capacity = Capacity::Spot;
    wanted.recipe.max_price = Some(1.5);
    wanted.recipe.instance_types = list(&["c5.large", "m5.large"]);
    wanted.recipe.subnets = list(&["subnet-1"]);
    wanted.recipe.allocation_strategy = Some("price-capacity-optimized".into());
    ec2.launch(&wanted).await.unwrap();
    let asked = &server.asked()[0];
    assert_eq!(asked.get("LaunchTemplateConfigs.1.Overrides.2.MaxPrice"), "1.5");
    assert_eq!(asked.get("LaunchTemplateConfigs.1.Overrides.2.Priority"), "");
    assert_eq!(asked.get("SpotOptions.AllocationStrategy"), "price-capacity-optimized");
    assert_eq!((asked.get("SpotOptions.MinTargetCapacity"), asked.get("SpotOptions.SingleAvailabilityZone")), ("2", "true"));
    assert_eq!(asked.get("SpotOptions.SingleInstanceType"), "false");
    assert_eq!(asked.get("TargetCapacitySpecification.DefaultTargetCapacityType"), "spot");
}

fn fleet_errors(codes: &[&str]) -> Reply {
    let item = |code: &&str| format!("<item><errorCode>{code}</errorCode><errorMessage>about {code}</errorMessage></item>");
    let items: String = codes.iter().map(item).collect();
    ok("CreateFleet", &format!("<fleetId>f</fleetId><errorSet>{items}</errorSet><fleetInstanceSet/>"))
}

#[tokio::test]
async fn r01_a_fleet_of_nothing_tells_of_the_throttled_request() {
    let server = Responder::listing([
        fleet_errors(&["InsufficientInstanceCapacity", "RequestLimitExceeded"]),
        fleet_errors(&["InsufficientInstanceCapacity", "InsufficientInstanceCapacity", "UnfulfillableCapacity"]),
    ])
    .await;
    let ec2 = server.ec2(|_| {}).await;
    let classes = |launched: &Launched| launched.errors.iter().map(|failure| failure.class).collect::<Vec<_>>();
    let empty = ec2.launch(&request(Api::CreateFleet, 2)).await.unwrap();
    assert!(empty.instances.is_empty());
    assert_eq!(classes(&empty), [ErrorClass::Capacity, ErrorClass::Throttled]);
    let short = ec2.launch(&request(Api::CreateFleet, 2)).await.unwrap();
    let codes: Vec<&str> = short.errors.iter().map(|failure| failure.code.as_str()).collect();
    assert!(short.instances.is_empty());
    assert_eq!(codes, ["InsufficientInstanceCapacity", "UnfulfillableCapacity"]);
    assert_eq!(classes(&short), [ErrorClass::Capacity, ErrorClass::Capacity]);
    assert_eq!(short.errors[0].request_id.as_deref(), Some("req-1"));
}

#[tokio::test]
async fn what_must_not_be_repeated_is_sent_once() {
    for (status, code, class) in [
        (500, "InsufficientInstanceCapacity", ErrorClass::Capacity),
        (503, "InsufficientHostCapacity", ErrorClass::Capacity),
        (400, "VcpuLimitExceeded", ErrorClass::Quota),
        (400, "InvalidLaunchTemplateName.NotFoundException", ErrorClass::Configuration),
        (403, "UnauthorizedOperation", ErrorClass::Identity),
        (400, "IdempotentParameterMismatch", ErrorClass::TokenSpent),
        (400, "ResourceCountExceeded", ErrorClass::Split),
    ] {
        let server = Responder::new(move |_| error(status, code, "no")).await;
        let ec2 = server.ec2(|aws| aws.attempts = 4).await;
        let error = ec2.launch(&request(Api::RunInstances, 1)).await.unwrap_err();
        assert_eq!((error.code.as_str(), error.class), (code, class));
        assert_eq!(error.request_id, Some(format!("req-{code}")));
        assert_eq!(server.asked().len(), 1, "{code}");
    }
}

#[tokio::test]
async fn what_may_be_repeated_keeps_its_token() {
    for first in [
        error(503, "RequestLimitExceeded", "Request limit exceeded."),
        error(400, "EC2ThrottledException", ""),
        error(500, "InternalError", "oops"),
        Reply::Text(502, "<html>Bad Gateway</html>".into()),
        Reply::Text(200, "<html>what?</html>".into()),
        Reply::HangUp,
        Reply::Half,
    ] {
        let label = format!("{first:?}");
        let server = Responder::listing([first, launched(&["i-1"])]).await;
        let ec2 = server.ec2(|aws| aws.attempts = 2).await;
        let answer = ec2.launch(&request(Api::RunInstances, 1)).await.unwrap_or_else(|error| panic!("{label}: {error}"));
        assert_eq!(answer.instances.len(), 1);
        let tokens: Vec<String> = server.asked().iter().map(|asked| asked.get("ClientToken").to_owned()).collect();
        assert_eq!(tokens, ["token-1", "token-1"], "{label}");
        assert_eq!(ec2.calls().by_operation["RunInstances"], 2);
    }
}

#[tokio::test]
async fn lost_answers_are_ambiguous() {
    for lost in [Reply::HangUp, Reply::Half, Reply::Silence, Reply::Text(200, "<html/>".into()), error(500, "InternalError", "")]
    {
        let label = format!("{lost:?}");
        let is_silent = matches!(lost, Reply::Silence);
        let server = Responder::listing([lost]).await;
        let wait = |aws: &mut AwsSettings| {
            if is_silent {
                aws.attempt_timeout = Duration::from_secs(5);
            }
        };
        let ec2 = server.ec2(wait).await;
        let error = ec2.launch(&request(Api::RunInstances, 1)).await.unwrap_err();
        assert_eq!(error.class, ErrorClass::Ambiguous, "{label}: {error}");
        assert_eq!(server.asked().len(), 1);
        let failure = error.to_failure("group c5");
        assert!(!failure.sentence.is_empty() && !failure.code.is_empty(), "{label}");
    }
}

#[tokio::test]
async fn an_unreachable_endpoint_is_transient() {
    let mut aws = settings();
    // Nobody listens there, nor will another test.
    aws.endpoint_url = Some("http://127.0.0.1:1".into());
    let error = Ec2::connect(&aws, "eu-west-1").await.unwrap().launch(&request(Api::RunInstances, 1)).await.unwrap_err();
    assert_eq!((error.code.as_str(), error.class), ("Ec2Unreachable", ErrorClass::Transient), "{error}");
    assert!(error.message.contains("refused"), "{error}");

    // With the last dot, or a machine whose resolv.conf has `search` would ask its name servers.
    aws.endpoint_url = Some("http://no-such-host.invalid.".into());
    let error = Ec2::connect(&aws, "eu-west-1").await.unwrap().launch(&request(Api::RunInstances, 1)).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Transient, "{error}");
    assert!(error.message.contains("no-such-host.invalid"), "{error}");
}

#[tokio::test]
async fn missing_credentials_and_bundles_are_named() {
    let server = Responder::new(|_| launched(&["i-1"])).await;
    let ec2 = server.ec2(|aws| aws.profile = Some("absent".into())).await;
    let error = ec2.launch(&request(Api::RunInstances, 1)).await.unwrap_err();
    assert_eq!((error.code.as_str(), error.class), ("NoCredentials", ErrorClass::Identity), "{error}");
    assert!(error.message.contains("absent"), "{error}");

    for change in [
        |aws: &mut AwsSettings| aws.proxy = Some("http://[oops".into()),
        |aws: &mut AwsSettings| aws.endpoint_url = Some("ec2".into()),
    ] {
        let mut aws = settings();
        change(&mut aws);
        let error = Ec2::connect(&aws, "eu-west-1").await.unwrap_err();
        assert!(error.class == ErrorClass::Configuration && error.message.contains("[aws]"), "{error}");
    }

    let mut aws = settings();
    aws.ca_bundle = Some("/nowhere/bundle.pem".into());
    let error = Ec2::connect(&aws, "eu-west-1").await.unwrap().launch(&request(Api::RunInstances, 1)).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Configuration, "{error}");
    assert!(error.message.contains("/nowhere/bundle.pem"), "{error}");
    assert!(server.asked().is_empty());
}

/// Roots that cannot be parsed would end the program, so the host's own bundle is tried as well, where there is one.
#[tokio::test]
async fn https_reads_the_bundle_and_a_broken_handshake_is_transient() {
    let server = Responder::new(|_| Reply::HangUp).await;
    for bundle in [Some(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/ec2/root.pem").into()), None] {
        let ec2 = server.ec2(|aws| {
            aws.endpoint_url = Some(server.url.replace("http:", "https:"));
            aws.ca_bundle = bundle.clone();
            // The server waits for a request and says nothing to TLS.
            aws.connect_timeout = Duration::from_secs(1);
        });
        let error = ec2.await.launch(&request(Api::RunInstances, 1)).await.unwrap_err();
        match error.class {
            ErrorClass::Transient => {}
            ErrorClass::Configuration if bundle.is_none() => assert!(error.message.contains("no CA bundle found"), "{error}"),
            _ => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn p05_a_proxy_that_refuses_is_named_without_its_credentials() {
    for status in [403, 407] {
        let proxy = Responder::new(move |_| Reply::Text(status, "no".into())).await;
        let ec2 = proxy.ec2(|aws| {
            aws.endpoint_url = Some("https://ec2.eu-west-1.amazonaws.com".into());
            aws.ca_bundle = Some(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/ec2/root.pem").into());
            aws.proxy = Some(proxy.url.replace("http://", "http://user:secret@"));
        });
        let error = ec2.await.launch(&request(Api::RunInstances, 1)).await.unwrap_err();
        assert_eq!(error.class, ErrorClass::Transient, "{error}");
        let sentence = error.to_failure("group c5").sentence;
        assert!(sentence.contains(&format!("the proxy {} refuses", proxy.url)) && !sentence.contains("secret"), "{sentence}");
        assert!(proxy.asked()[0].line.starts_with("CONNECT ec2.eu-west-1.amazonaws.com:443"), "{}", proxy.asked()[0].line);
    }
}

#[tokio::test]
async fn the_proxy_is_for_ec2_and_not_for_the_exempt() {
    let proxy = Responder::new(|_| launched(&["i-1"])).await;
    let server = Responder::new(|_| launched(&["i-2"])).await;
    let url = proxy.url.clone();
    let through = server.ec2(|aws| aws.proxy = Some(url.clone())).await;
    assert_eq!(through.launch(&request(Api::RunInstances, 1)).await.unwrap().instances[0].id, "i-1");
    assert!(proxy.asked()[0].line.starts_with(&format!("POST {}/", server.url)), "{}", proxy.asked()[0].line);
    let around = server
        .ec2(|aws| {
            aws.proxy = Some(url.clone());
            aws.no_proxy = vec!["example.org".into(), "127.0.0.1".into()];
        })
        .await;
    assert_eq!(around.launch(&request(Api::RunInstances, 1)).await.unwrap().instances[0].id, "i-2");
    assert_eq!(proxy.asked().len(), 1);
}

/// P06: the SDK's rules know each partition; nothing of ours names amazonaws.com.
#[tokio::test]
async fn p06_every_partition_has_its_own_host() {
    for (region, host) in [
        ("eu-west-1", "ec2.eu-west-1.amazonaws.com"),
        ("cn-north-1", "ec2.cn-north-1.amazonaws.com.cn"),
        ("us-gov-west-1", "ec2.us-gov-west-1.amazonaws.com"),
        ("us-iso-east-1", "ec2.us-iso-east-1.c2s.ic.gov"),
        ("us-isob-east-1", "ec2.us-isob-east-1.sc2s.sgov.gov"),
        ("eusc-de-east-1", "ec2.eusc-de-east-1.amazonaws.eu"),
        ("eu-west-99", "ec2.eu-west-99.amazonaws.com"),
    ] {
        use aws_sdk_ec2::config::endpoint::{DefaultResolver, Params, ResolveEndpoint};
        let params = Params::builder().region(region).build().unwrap();
        let endpoint = DefaultResolver::new().resolve_endpoint(&params).await.unwrap();
        assert_eq!(endpoint.url(), format!("https://{host}"), "{region}");
    }
}
