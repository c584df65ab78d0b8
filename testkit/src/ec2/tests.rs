//! The endpoint as a client on the wire sees it: hand-written requests over a socket.

#![allow(clippy::unwrap_used)]

use super::*;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);
const SIGNED: &str = "AWS4-HMAC-SHA256 Credential=AKIDTEST/20261129/eu-west-1/ec2/aws4_request, \
                      SignedHeaders=host, Signature=00";

pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: String,
}

impl Answer {
    /// The text of every element of this name.
    pub(super) fn all(&self, name: &str) -> Vec<String> {
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        let parts = self.body.split(open.as_str()).skip(1);
        parts.map(|p| p.split(close.as_str()).next().unwrap().to_owned()).collect()
    }

    pub(super) fn code(&self) -> String {
        self.all("Code").pop().unwrap_or_default()
    }
}

fn send(ec2: &Endpoint, method: &str, path: &str, authorization: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(ec2.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: ec2\r\nConnection: close\r\nAuthorization: {authorization}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

/// None: the connection ended without a whole answer.
fn receive(mut stream: TcpStream) -> Option<Answer> {
    let mut text = Vec::new();
    stream.read_to_end(&mut text).ok()?;
    let text = String::from_utf8(text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n")?;
    let head = head.to_ascii_lowercase();
    let length: usize = head.split("content-length: ").nth(1)?.split("\r\n").next()?.parse().unwrap();
    let status = head.split(' ').nth(1)?.parse().unwrap();
    (body.len() == length).then(|| Answer { status, body: body.to_owned() })
}

fn ask(ec2: &Endpoint, query: &str) -> Option<Answer> {
    receive(send(ec2, "POST", "/", SIGNED, query))
}

pub(super) fn call(ec2: &Endpoint, query: &str) -> Answer {
    ask(ec2, query).unwrap_or_else(|| panic!("no answer to {query}"))
}

pub(super) fn run(min: u32, max: u32, more: &str) -> String {
    format!("Action=RunInstances&MinCount={min}&MaxCount={max}&LaunchTemplate.LaunchTemplateName=hpc{more}")
}

pub(super) fn control(ec2: &Endpoint, method: &str, path: &str, body: &str) -> Answer {
    receive(send(ec2, method, &format!("/_control/{path}"), "", body)).unwrap()
}

pub(super) fn ids(instances: &[Instance]) -> Vec<String> {
    instances.iter().map(|i| i.id.clone()).collect()
}

pub(super) fn named(action: &str, ids: &[String]) -> String {
    let ids = ids.iter().enumerate().map(|(n, id)| format!("&InstanceId.{}={id}", n + 1));
    format!("Action={action}{}", ids.collect::<String>())
}

#[test]
fn launches_as_many_as_capacity_allows_between_min_and_max() {
    let ec2 = Endpoint::start(Behaviour::with_capacity(vec![Capacity::limit("c5.*", "subnet-0000000b", 3)]));
    let there = "&SubnetId=subnet-0000000b";
    let answer = call(&ec2, &run(1, 5, there));
    assert_eq!((answer.status, answer.all("instanceId").len()), (200, 3));
    assert_eq!(answer.all("amiLaunchIndex"), ["0", "1", "2"]);
    let short = call(&ec2, &run(1, 1, there));
    assert_eq!((short.status, short.code().as_str()), (500, "InsufficientInstanceCapacity"));
    // Another subnet or type has its own; so has whoever does not say where.
    assert_eq!(call(&ec2, &run(2, 2, "&SubnetId=subnet-0000000a")).status, 200);
    assert_eq!(call(&ec2, &run(1, 1, &format!("{there}&InstanceType=m5.large"))).status, 200);
    // What ends gives its place back.
    let first = ids(&ec2.instances()[..1]);
    assert_eq!(call(&ec2, &named("TerminateInstances", &first)).status, 200);
    assert_eq!(call(&ec2, &run(1, 5, there)).all("instanceId").len(), 1);
    assert_eq!(ec2.live_instances().len(), 6);
}

#[test]
fn below_min_nothing_is_launched_and_counts_are_checked() {
    let ec2 = Endpoint::start(Behaviour::with_capacity(vec![Capacity::limit("*", "*", 2).code("VcpuLimitExceeded", 400)]));
    assert_eq!(call(&ec2, &run(3, 3, "")).code(), "VcpuLimitExceeded");
    assert!(ec2.instances().is_empty());
    assert_eq!(call(&ec2, &run(0, 1, "")).code(), "InvalidParameterValue");
    assert_eq!(call(&ec2, &run(2, 1, "")).code(), "InvalidParameterValue");
    assert_eq!(call(&ec2, "Action=RunInstances&MaxCount=1").code(), "MissingParameter");
    assert_eq!(call(&ec2, "Action=FlyToTheMoon").code(), "InvalidAction");
    let dry = call(&ec2, &run(1, 1, "&DryRun=true"));
    assert_eq!((dry.status, dry.code().as_str()), (412, "DryRunOperation"));
    assert!(ec2.instances().is_empty());
}

#[test]
fn an_instance_has_tags_address_template_and_real_size() {
    let ec2 = Endpoint::start(Behaviour {
        templates: vec![Template { name: "hpc".to_owned(), latest_version: 7, ..Template::default() }],
        ..Behaviour::default()
    });
    let tags = "&LaunchTemplate.Version=%24Latest&TagSpecification.1.ResourceType=instance&TagSpecification.1.Tag.1.Key=a%26b\
                &TagSpecification.1.Tag.1.Value=%3C1%3E&TagSpecification.2.ResourceType=volume\
                &TagSpecification.2.Tag.1.Key=disk&TagSpecification.2.Tag.1.Value=x&ClientToken=t-1";
    let answer = call(&ec2, &run(10, 10, tags));
    let size = answer.body.len() / 10;
    assert!((2200..2900).contains(&size), "{size} bytes per instance");
    assert!(answer.body.contains("<key>a&amp;b</key><value>&lt;1&gt;</value>"));
    let one = &ec2.instances()[0];
    assert_eq!(one.tags.get("a&b").map(String::as_str), Some("<1>"));
    assert!(!one.tags.contains_key("disk"));
    assert_eq!(one.private_ip.to_string(), "127.20.0.4");
    assert_eq!(one.hostname, "ip-127-20-0-4.eu-west-1.compute.internal");
    assert_eq!((one.template.as_deref(), one.template_version), (Some("hpc"), Some(7)));
    assert_eq!((one.client_token.as_str(), one.zone.as_str()), ("t-1", "eu-west-1a"));
    assert_eq!(answer.all("privateIpAddress")[0], "127.20.0.4");
    assert_eq!(call(&ec2, &run(1, 1, "&LaunchTemplate.Version=8")).code(), "InvalidLaunchTemplateId.VersionNotFound");
    ec2.adjust(|b| (b.full_size, b.bad_templates) = (false, vec!["hpc".to_owned()]));
    assert!(call(&ec2, "Action=DescribeInstances").body.len() < answer.body.len() * 2 / 3);
    assert_eq!(call(&ec2, &run(1, 1, "")).code(), "InvalidLaunchTemplateName.NotFoundException");
    assert_eq!(call(&ec2, &run(1, 1, "&SubnetId=subnet-9")).code(), "InvalidLaunchTemplateName.NotFoundException");
    ec2.adjust(|b| b.bad_templates.clear());
    assert_eq!(call(&ec2, &run(1, 1, "&SubnetId=subnet-9")).code(), "InvalidSubnetID.NotFound");
}

#[test]
fn a_client_token_stands_for_one_launch() {
    let ec2 = Endpoint::start(Behaviour::default());
    let first = call(&ec2, &run(2, 2, "&ClientToken=t"));
    let again = call(&ec2, &run(2, 2, "&ClientToken=t"));
    assert_eq!(first.all("reservationId"), again.all("reservationId"));
    assert_eq!(first.all("instanceId"), again.all("instanceId"));
    assert!(first.body.contains("<name>pending</name>") && again.body.contains("<name>running</name>"));
    assert_eq!(call(&ec2, &run(1, 2, "&ClientToken=t")).code(), "IdempotentParameterMismatch");
    // Known per zone.
    assert_eq!(call(&ec2, &run(1, 2, "&ClientToken=t&SubnetId=subnet-0000000b")).status, 200);
    assert_eq!(call(&ec2, &run(1, 1, &format!("&ClientToken={}", "x".repeat(65)))).code(), "InvalidClientToken");
    assert_eq!(ec2.instances().len(), 4);
    let all = first.all("instanceId");
    call(&ec2, &named("TerminateInstances", &all[..1]));
    assert_eq!(call(&ec2, &run(2, 2, "&ClientToken=t")).all("instanceId"), all);
    call(&ec2, &named("TerminateInstances", &all));
    assert_eq!(call(&ec2, &run(2, 2, "&ClientToken=t")).code(), "IdempotentInstanceTerminated");
    assert_eq!(ec2.instances().len(), 4);
}

const FLEET: &str = "Action=CreateFleet&Type=instant&LaunchTemplateConfigs.1.LaunchTemplateSpecification.LaunchTemplateName=hpc\
    &LaunchTemplateConfigs.1.LaunchTemplateSpecification.Version=1\
    &LaunchTemplateConfigs.1.Overrides.1.InstanceType=c5.large&LaunchTemplateConfigs.1.Overrides.1.SubnetId=subnet-0000000a\
    &LaunchTemplateConfigs.1.Overrides.2.InstanceType=c6i.large&LaunchTemplateConfigs.1.Overrides.2.SubnetId=subnet-0000000a\
    &LaunchTemplateConfigs.1.Overrides.3.InstanceType=c5.large&LaunchTemplateConfigs.1.Overrides.3.SubnetId=subnet-0000000b\
    &TargetCapacitySpecification.DefaultTargetCapacityType=on-demand";

fn fleet(total: u32, more: &str) -> String {
    format!("{FLEET}&TargetCapacitySpecification.TotalTargetCapacity={total}{more}")
}

fn scarce() -> Behaviour {
    Behaviour::with_capacity(vec![
        Capacity::limit("c5.large", "subnet-0000000a", 2),
        Capacity::limit("c6i.large", "*", 1),
        Capacity::limit("c5.large", "subnet-0000000b", 3),
    ])
}

#[test]
fn a_fleet_takes_override_after_override() {
    let ec2 = Endpoint::start(scarce());
    let answer = call(&ec2, &fleet(5, "&ClientToken=f"));
    assert_eq!(answer.status, 200);
    let counted: Vec<_> = ec2.instances().iter().map(|i| format!("{}@{}", i.instance_type, i.zone)).collect();
    assert_eq!(
        counted,
        ["c5.large@eu-west-1a", "c5.large@eu-west-1a", "c6i.large@eu-west-1a", "c5.large@eu-west-1b", "c5.large@eu-west-1b"]
    );
    assert_eq!(answer.all("instanceIds").len(), 3);
    for id in ids(&ec2.instances()) {
        assert!(answer.body.contains(&format!("<item>{id}</item>")), "{id}");
    }
    assert!(!answer.body.contains("privateIpAddress"));
    assert_eq!(answer.all("errorCode"), ["InsufficientInstanceCapacity"; 2]);
    assert_eq!(call(&ec2, &fleet(5, "&ClientToken=f")).all("fleetId"), answer.all("fleetId"));
    assert_eq!(call(&ec2, &fleet(6, "&ClientToken=f")).code(), "IdempotentParameterMismatch");
    assert_eq!(ec2.instances().len(), 5);
    let rest = call(&ec2, &fleet(9, ""));
    assert_eq!((ec2.instances().len(), rest.all("errorCode").len()), (6, 3));
    let none = call(&ec2, &fleet(1, ""));
    assert_eq!((none.status, none.all("instanceIds").len(), none.all("errorCode").len()), (200, 0, 3));
}

#[test]
fn a_fleet_with_a_minimum_launches_that_or_nothing() {
    let ec2 = Endpoint::start(scarce());
    let minimum = |n: u32, how: &str| format!("&OnDemandOptions.MinTargetCapacity={n}&OnDemandOptions.{how}=true");
    assert_eq!(call(&ec2, &fleet(2, "&OnDemandOptions.MinTargetCapacity=2")).code(), "InvalidParameterCombination");
    let none = call(&ec2, &fleet(6, &minimum(6, "SingleInstanceType")));
    assert_eq!((none.status, ec2.instances().len()), (200, 0));
    assert!(!none.all("errorCode").is_empty());
    call(&ec2, &fleet(5, &minimum(5, "SingleInstanceType")));
    assert!(ec2.instances().len() == 5 && ec2.instances().iter().all(|i| i.instance_type == "c5.large"));
    let ec2 = Endpoint::start(scarce());
    call(&ec2, &fleet(3, &minimum(3, "SingleAvailabilityZone")));
    assert!(ec2.instances().len() == 3 && ec2.instances().iter().all(|i| i.zone == "eu-west-1a"));
}

#[test]
fn overrides_that_share_a_limit_do_not_get_it_twice() {
    let ec2 = Endpoint::start(Behaviour::with_capacity(vec![Capacity::limit("*", "*", 4)]));
    call(&ec2, &fleet(10, ""));
    assert_eq!(ec2.instances().len(), 4);
}

#[test]
fn describe_filters() {
    let ec2 = Endpoint::start(Behaviour::default());
    let tag = |v: &str| {
        format!("&TagSpecification.1.ResourceType=instance&TagSpecification.1.Tag.1.Key=node&TagSpecification.1.Tag.1.Value={v}")
    };
    call(&ec2, &run(1, 1, &format!("{}&ClientToken=one", tag("c5-1"))));
    call(&ec2, &run(2, 2, &format!("{}&ClientToken=two", tag("c5-2"))));
    let all = ids(&ec2.instances());
    call(&ec2, &named("TerminateInstances", &all[2..]));
    let found = |filters: &[(&str, &str)]| {
        let filters = filters.iter().enumerate();
        let text = filters.map(|(n, (k, v))| format!("&Filter.{0}.Name={k}&Filter.{0}.Value.1={v}", n + 1));
        call(&ec2, &format!("Action=DescribeInstances{}", text.collect::<String>())).all("instanceId")
    };
    assert_eq!(found(&[("tag:node", "c5-2")]), all[1..]);
    assert_eq!(found(&[("tag:node", "c5-*"), ("instance-state-name", "running")]), all[..2]);
    assert_eq!(found(&[("client-token", "one")]), all[..1]);
    assert_eq!(found(&[("private-ip-address", "127.20.0.5")]), all[1..2]);
    assert_eq!(found(&[("private-ip-address", "127.20.0.6")]), [""; 0]); // terminated: its address is gone
    assert_eq!(found(&[("instance-id", &all[1]), ("client-token", "one")]), [""; 0]);
    assert_eq!(call(&ec2, "Action=DescribeInstances&Filter.1.Name=colour&Filter.1.Value.1=red").code(), "InvalidParameterValue");
}

#[test]
fn describe_pages_and_refuses_ids_with_pages() {
    let ec2 = Endpoint::start(Behaviour { full_size: false, ..Behaviour::default() });
    call(&ec2, &run(12, 12, ""));
    let all = ids(&ec2.instances());
    let (mut seen, mut token, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = call(&ec2, &format!("Action=DescribeInstances&MaxResults=5{token}"));
        seen.extend(page.all("instanceId"));
        pages += 1;
        match page.all("nextToken").pop() {
            Some(next) => token = format!("&NextToken={next}"),
            None => break,
        }
    }
    assert_eq!((pages, seen), (3, all.clone()));
    assert_eq!(call(&ec2, &format!("{}&MaxResults=5", named("DescribeInstances", &all))).code(), "InvalidParameterCombination");
    assert_eq!(call(&ec2, "Action=DescribeInstances&MaxResults=4").code(), "InvalidParameterValue");
    assert_eq!(call(&ec2, "Action=DescribeInstances&MaxResults=5&NextToken=x").code(), "InvalidNextToken");
    ec2.adjust(|b| (b.page_size, b.shuffle_order) = (Some(7), true));
    let page = call(&ec2, "Action=DescribeInstances&MaxResults=1000").all("instanceId");
    assert_ne!(page, all[..7]);
    assert_eq!(page.iter().collect::<std::collections::BTreeSet<_>>(), all[..7].iter().collect());
}

#[test]
fn unknown_ids_are_all_named() {
    let ec2 = Endpoint::start(Behaviour::default());
    call(&ec2, &run(1, 1, ""));
    let good = ec2.instances()[0].id.clone();
    let (b1, b2) = ("i-0123456789abcdef0".to_owned(), "i-0123456789abcdef1".to_owned());
    for action in ["DescribeInstances", "TerminateInstances"] {
        let answer = call(&ec2, &named(action, &[b1.clone(), good.clone(), b2.clone()]));
        assert_eq!((answer.status, answer.code().as_str()), (400, "InvalidInstanceID.NotFound"));
        assert_eq!(answer.all("Message"), [format!("The instance IDs '{b1}, {b2}' do not exist")]);
    }
    let one = call(&ec2, &named("DescribeInstances", std::slice::from_ref(&b1)));
    assert_eq!(one.all("Message"), [format!("The instance ID '{b1}' does not exist")]);
    assert_eq!(call(&ec2, &named("TerminateInstances", &["i-12".to_owned()])).code(), "InvalidInstanceID.Malformed");
    assert_eq!(ec2.live_instances().len(), 1);
}

#[test]
fn visibility_and_addresses_come_late() {
    let ec2 = Endpoint::start(Behaviour {
        hidden_describes: 2,
        no_ip_describes: 1,
        never_ip: vec![2],
        hidden_from_terminate: true,
        ..Behaviour::default()
    });
    let launch = call(&ec2, &run(2, 2, ""));
    let all = ids(&ec2.instances());
    assert!(launch.body.contains(">127.20.0.4<") && !launch.body.contains(">127.20.0.5<"));
    let by_id = named("DescribeInstances", &all);
    assert_eq!(call(&ec2, &named("TerminateInstances", &all)).code(), "InvalidInstanceID.NotFound");
    assert_eq!(call(&ec2, &by_id).code(), "InvalidInstanceID.NotFound");
    assert!(call(&ec2, "Action=DescribeInstances").all("instanceId").is_empty());
    let bare = call(&ec2, &by_id);
    assert_eq!((bare.all("instanceId").len(), bare.all("privateIpAddress").len()), (2, 0));
    for _ in 0..3 {
        let shown = call(&ec2, &by_id);
        assert!(shown.body.contains(">127.20.0.4<") && !shown.body.contains(">127.20.0.5<"));
    }
    assert_eq!(call(&ec2, &named("TerminateInstances", &all)).status, 200);
}

#[test]
fn times_rule_states() {
    let ec2 = Endpoint::start(Behaviour {
        boot_ms: 3_600_000,
        hidden_ms: 3_600_000,
        shutting_down_ms: 3_600_000,
        ..Behaviour::default()
    });
    call(&ec2, &run(1, 1, ""));
    let all = ids(&ec2.instances());
    assert_eq!(ec2.instances()[0].state, State::Pending);
    assert_eq!(call(&ec2, &named("DescribeInstances", &all)).code(), "InvalidInstanceID.NotFound");
    ec2.change(&all[0], InstanceChange { hidden: Some(false), ..InstanceChange::default() });
    assert_eq!(call(&ec2, &named("DescribeInstances", &all)).status, 200);
    for _ in 0..2 {
        assert!(call(&ec2, &named("TerminateInstances", &all)).body.contains("<currentState><code>32</code>"));
    }
    assert_eq!(ec2.instances()[0].state, State::ShuttingDown);
    ec2.change(&all[0], InstanceChange { state: Some(State::Terminated), ..InstanceChange::default() });
    assert!(call(&ec2, &named("DescribeInstances", &all)).body.contains("<name>terminated</name>"));
    ec2.adjust(|b| b.forget_terminated_ms = Some(0));
    assert_eq!(call(&ec2, &named("DescribeInstances", &all)).code(), "InvalidInstanceID.NotFound");
}

#[test]
fn terminate_spares_the_zone_of_a_protected_instance() {
    let ec2 = Endpoint::start(Behaviour { protected: vec![1], ..Behaviour::default() });
    call(&ec2, &run(2, 2, "&SubnetId=subnet-0000000a"));
    call(&ec2, &run(2, 2, "&SubnetId=subnet-0000000b"));
    let all = ids(&ec2.instances());
    let answer = call(&ec2, &named("TerminateInstances", &all));
    assert_eq!((answer.status, answer.code().as_str()), (400, "OperationNotPermitted"));
    assert!(answer.all("Message")[0].contains(&all[0]));
    assert_eq!(ids(&ec2.live_instances()), all[..2]);
    assert_eq!(call(&ec2, &named("TerminateInstances", &all[1..])).all("instanceId").len(), 3);
    assert_eq!(ids(&ec2.live_instances()), all[..1]);
    let many: Vec<String> = (0..1001).map(|_| all[1].clone()).collect();
    assert_eq!(call(&ec2, &named("TerminateInstances", &many)).code(), "InvalidParameterValue");
}

#[test]
fn other_actions() {
    let ec2 = Endpoint::start(Behaviour { console: "boot\n".to_owned(), ..Behaviour::default() });
    call(&ec2, &run(2, 2, ""));
    let all = ids(&ec2.instances());
    assert_eq!(call(&ec2, &format!("Action=GetConsoleOutput&InstanceId={}", all[0])).all("output"), ["Ym9vdAo="]);
    assert_eq!(call(&ec2, &named("RebootInstances", &all[1..])).all("return"), ["true"]);
    assert_eq!(ec2.instances()[1].reboots, 1);
    let tags = format!("Action=CreateTags&ResourceId.1={}&Tag.1.Key=Name&Tag.1.Value=c5-1", all[0]);
    assert_eq!(call(&ec2, &tags).status, 200);
    assert_eq!(ec2.instances()[0].tags["Name"], "c5-1");
    ec2.change(&all[1], InstanceChange { status: Some("impaired".to_owned()), ..InstanceChange::default() });
    let status = call(&ec2, "Action=DescribeInstanceStatus&Filter.1.Name=instance-status.status&Filter.1.Value.1=impaired");
    assert_eq!(status.all("instanceId"), all[1..]);
    assert_eq!(call(&ec2, "Action=DescribeSubnets&SubnetId.1=subnet-0000000b").all("availabilityZone"), ["eu-west-1b"]);
    let template = call(&ec2, "Action=DescribeLaunchTemplates&LaunchTemplateName.1=any");
    let id = template.all("launchTemplateId").remove(0);
    let version = format!("Action=DescribeLaunchTemplateVersions&LaunchTemplateId={id}&LaunchTemplateVersion.1=%24Default");
    let version = call(&ec2, &version);
    assert_eq!((version.all("launchTemplateName"), version.all("versionNumber")), (vec!["any".to_owned()], vec!["1".to_owned()]));
}

#[test]
fn network_cards_in_any_order() {
    let ec2 = Endpoint::start(Behaviour { network_cards: 3, shuffle_cards: true, ..Behaviour::default() });
    let answer = call(&ec2, &run(1, 1, ""));
    assert_eq!(answer.all("networkCardIndex"), ["2", "1", "0"]);
    assert_eq!(answer.all("deviceIndex"), ["1", "1", "0"]);
    let last = answer.body.rsplit("<networkInterfaceId>").next().unwrap();
    assert!(last.contains(&format!(">{}<", ec2.instances()[0].private_ip)));
}

#[test]
fn addresses_run_out_and_can_be_used_again() {
    let ec2 = Endpoint::start(Behaviour { cidr: "127.30.0.0/28".to_owned(), reuse_addresses: true, ..Behaviour::default() });
    call(&ec2, &run(11, 11, ""));
    assert_eq!(call(&ec2, &run(1, 1, "")).code(), "InsufficientFreeAddressesInSubnet");
    let third = ec2.instances()[2].clone();
    call(&ec2, &named("TerminateInstances", &[third.id]));
    call(&ec2, &run(1, 1, ""));
    assert_eq!(ec2.instances()[11].private_ip, third.private_ip);
}

#[test]
fn errors_drops_and_broken_answers() {
    let ec2 = Endpoint::start(Behaviour::with_rules(vec![
        Rule::on("RunInstances").times(1).error("Unavailable", 503).after(),
        Rule::on("RunInstances").times(1).drop_before(),
        Rule::on("RunInstances").times(1).drop_after(),
        Rule::on("RunInstances").times(1).garbage(),
        Rule::on("RunInstances").times(1).cut(),
        Rule::on("RunInstances").times(1).error_text("InternalError", 500, "oops"),
    ]));
    let error = call(&ec2, &run(1, 1, ""));
    assert_eq!((error.status, error.code().as_str(), ec2.instances().len()), (503, "Unavailable", 1));
    assert!(ask(&ec2, &run(1, 1, "")).is_none());
    assert_eq!(ec2.instances().len(), 1);
    assert!(ask(&ec2, &run(1, 1, "")).is_none());
    assert_eq!(ec2.instances().len(), 2);
    let garbage = call(&ec2, &run(1, 1, ""));
    assert!(garbage.status == 200 && garbage.body.starts_with("<html>"));
    assert!(ask(&ec2, &run(1, 1, "")).is_none());
    assert_eq!(ec2.instances().len(), 4);
    assert_eq!(call(&ec2, &run(1, 1, "")).all("Message"), ["oops"]);
    assert_eq!(call(&ec2, &run(1, 1, "")).status, 200);
    let log: Vec<_> = ec2.requests().into_iter().map(|r| (r.answer, r.processed)).collect();
    let expected = [
        ("Unavailable", true),
        ("dropped", false),
        ("dropped", true),
        ("garbage", true),
        ("cut", true),
        ("InternalError", false),
        ("ok", true),
    ];
    assert_eq!(log, expected.map(|(a, p)| (a.to_owned(), p)));
    assert_eq!(ec2.requests()[0].access_key, "AKIDTEST");
}

#[test]
fn a_held_request_is_carried_out_although_its_client_died() {
    let ec2 = Endpoint::start(Behaviour::with_rules(vec![
        Rule::on("RunInstances").times(1).hold("before"),
        Rule::on("RunInstances").times(1).hold("after").after(),
    ]));
    let stream = send(&ec2, "POST", "/", SIGNED, &run(1, 1, ""));
    assert!(ec2.wait_held("before", PATIENCE));
    assert!(ec2.instances().is_empty());
    drop(stream);
    ec2.release("before");
    assert!(ec2.wait_until(PATIENCE, |s| s.live.len() == 1));
    let stream = send(&ec2, "POST", "/", SIGNED, &run(1, 1, ""));
    assert!(ec2.wait_held("after", PATIENCE));
    assert_eq!(ec2.live_instances().len(), 2);
    ec2.release_all();
    assert_eq!(receive(stream).unwrap().status, 200);
    assert!(ec2.snapshot().held.is_empty());
}

#[test]
fn a_hook_file_stops_the_request_until_it_is_removed() {
    let path = std::env::temp_dir().join(format!("fake-ec2-hook-{}", std::process::id()));
    let ec2 = Endpoint::start(Behaviour::with_rules(vec![Rule::on("*").hook(&path).after()]));
    let stream = send(&ec2, "POST", "/", SIGNED, &run(1, 1, ""));
    assert!(ec2.wait_until(PATIENCE, |_| path.exists()));
    assert_eq!(ec2.instances().len(), 1);
    assert_eq!(ec2.requests()[0].answer, "");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(receive(stream).unwrap().status, 200);
    let nowhere = Rule::on("*").hook(path.join("no/such/folder"));
    ec2.behave(Behaviour::with_rules(vec![nowhere]));
    assert_eq!(call(&ec2, &run(1, 1, "")).code(), "HookFailed");
}

#[test]
fn a_hanging_request_does_not_keep_the_endpoint_from_stopping() {
    // An address of its own: on 127.0.0.1 another test's endpoint may get the port as soon as it is free.
    let own = std::net::SocketAddr::from(([127, 0, 77, 1], 0));
    let ec2 = Endpoint::start_on(own, Behaviour::with_rules(vec![Rule::on("*").hang().after()])).unwrap();
    let stream = send(&ec2, "POST", "/", SIGNED, &run(1, 1, ""));
    assert!(ec2.wait_until(PATIENCE, |s| s.requests.iter().any(|r| r.answer == "hung")));
    assert_eq!(ec2.live_instances().len(), 1);
    let address = ec2.address();
    drop(ec2);
    assert!(receive(stream).is_none());
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn throttled_and_unsigned_requests_do_nothing() {
    let throttle = Throttle { action: "RunInstances".to_owned(), burst: 2.0, per_second: 0.0001 };
    let ec2 = Endpoint::start(Behaviour { throttle: vec![throttle], ..Behaviour::default() });
    let statuses: Vec<u16> = (0..3).map(|_| call(&ec2, &run(1, 1, "")).status).collect();
    assert_eq!(statuses, [200, 200, 503]);
    assert_eq!(call(&ec2, &run(1, 1, "")).code(), "RequestLimitExceeded");
    let unsigned = receive(send(&ec2, "POST", "/", "Basic x", "Action=DescribeInstances")).unwrap();
    assert_eq!((unsigned.status, unsigned.code().as_str()), (401, "AuthFailure"));
    assert_eq!(ec2.instances().len(), 2);
    assert_eq!(ec2.counters()["RunInstances"], 4);
}

#[test]
fn a_launch_takes_its_time() {
    let latency = Latency { base_ms: 30, per_instance_ms: 10, other_ms: 0 };
    let ec2 = Endpoint::start(Behaviour { latency, ..Behaviour::default() });
    call(&ec2, &run(3, 3, ""));
    assert!(ec2.requests()[0].took_ms.unwrap() >= 60.0);
}

#[test]
fn everything_from_another_process() {
    let ec2 = Endpoint::start(Behaviour::default());
    let behaviour = r#"{"capacity": [{"limit": 1}], "rules": [{"action": "RunInstances", "nth": 1,
        "effects": [{"kind": "hold", "name": "g", "after": true}]}]}"#;
    assert_eq!(control(&ec2, "POST", "behaviour", behaviour).status, 200);
    let stream = send(&ec2, "POST", "/", SIGNED, &run(1, 1, ""));
    assert!(ec2.wait_held("g", PATIENCE));
    let state: Snapshot = serde_json::from_str(&control(&ec2, "GET", "state", "").body).unwrap();
    assert_eq!((state.held["g"], state.live.len(), state.counters["RunInstances"]), (1, 1, 1));
    assert_eq!(state.requests[0].param("MaxCount"), Some("1"));
    assert_eq!(control(&ec2, "POST", "release", r#"{"name": "g"}"#).status, 200);
    assert_eq!(receive(stream).unwrap().status, 200);
    let id = state.live[0].clone();
    let change = format!(r#"{{"id": "{id}", "change": {{"state": "terminated"}}}}"#);
    assert_eq!(control(&ec2, "POST", "instance", &change).status, 200);
    assert_eq!(control(&ec2, "GET", "live", "").body, "[]");
    let rules = r#"[{"action": "*", "effects": [{"kind": "error", "code": "X", "status": 418}]}]"#;
    assert_eq!(control(&ec2, "POST", "rules", rules).status, 200);
    assert_eq!(call(&ec2, "Action=DescribeInstances").status, 418);
    let seeded = control(&ec2, "POST", "seed", r#"{"count": 2, "tags": {"a": "b"}, "age_ms": 60000}"#);
    assert_eq!(serde_json::from_str::<Vec<String>>(&seeded.body).unwrap().len(), 2);
    assert_eq!(control(&ec2, "POST", "reset", "").status, 200);
    assert!(ec2.instances().is_empty() && ec2.requests().is_empty());
    for (path, body) in
        [("behaviour", r#"{"colour": 1}"#), ("rules", "[{}]"), ("behaviour", r#"{"cidr": "10/99"}"#), ("release", "{")]
    {
        let refused = control(&ec2, "POST", path, body);
        assert!(refused.status == 400 && refused.body.contains("error"), "{path}: {}", refused.body);
    }
    assert_eq!(control(&ec2, "GET", "nothing", "").status, 404);
}
