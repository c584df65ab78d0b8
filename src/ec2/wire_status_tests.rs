//! The real SDK against a local HTTP server and the fake EC2: what is wrong with instances, and the states of Capacity Blocks.

#![allow(clippy::unwrap_used)]

use slurm_ec2_testkit::ec2::{Behaviour, CapacityReservation, Endpoint, Event, InstanceChange, Rule, Seed, State};

use super::sdk::Ec2;
use super::wire_tests::list;
use crate::aws::responder::{Responder, error, ok, settings};
use crate::model::cluster::{Ailment, CapacityBlock, Check};
use crate::model::failure::ErrorClass;
use crate::model::time::Timestamp;

/// Milliseconds of a whole second, as EC2 prints its times.
const T: u64 = 1_795_969_000_000;

async fn connect(endpoint: &Endpoint) -> Ec2 {
    let mut aws = settings();
    aws.endpoint_url = Some(endpoint.url());
    Ec2::connect(&aws, "eu-west-1").await.unwrap()
}

fn ailing(id: &str, check: Check, since: Option<u64>, text: &str) -> (String, Ailment) {
    (id.to_owned(), Ailment { check, since: since.map(|ms| Timestamp::from_secs(ms / 1000)), text: text.to_owned() })
}

/// An endpoint with so many instances of ours, and one of somebody else's that is impaired.
fn endpoint(count: usize) -> (Endpoint, Vec<String>) {
    let endpoint = Endpoint::start(Behaviour { cidr: "127.16.0.0/12".to_owned(), ..Behaviour::default() });
    let ids = endpoint.seed(&Seed { count, ..Seed::default() });
    let other = endpoint.seed(&Seed::default()).remove(0);
    let impaired = InstanceChange { status: Some("impaired".to_owned()), ..InstanceChange::default() };
    endpoint.change(&other, impaired);
    (endpoint, ids)
}

fn event(code: &str, description: &str) -> Event {
    Event { code: code.to_owned(), description: description.to_owned(), not_before_ms: T }
}

/// Makes some of them ail in every way, and gives what is to be seen of it, in the order of ids.
fn make_ail(endpoint: &Endpoint, ids: &[String]) -> Vec<(String, Ailment)> {
    let change = |id: &str, change: InstanceChange| endpoint.change(id, change);
    let impaired = || Some("impaired".to_owned());
    let none = InstanceChange::default;
    change(&ids[1], InstanceChange { instance_status: impaired(), impaired_since_ms: Some(T), ..none() });
    change(&ids[2], InstanceChange { system_status: impaired(), ..none() });
    let events = vec![
        event("system-reboot", "[Completed] The instance is scheduled for a reboot"),
        event("instance-retirement", "runs on <old> hardware"),
        event("instance-stop", ""),
    ];
    change(&ids[3], InstanceChange { status: impaired(), impaired_since_ms: Some(T), events: Some(events), ..none() });
    let over = vec![event("system-maintenance", "[Completed] x"), event("instance-stop", "[Canceled] y")];
    change(&ids[4], InstanceChange { events: Some(over), ..none() });
    change(&ids[5], InstanceChange { status: Some("initializing".to_owned()), ..none() });
    // One that is stopped has no checks that count.
    change(&ids[6], InstanceChange { state: Some(State::Stopped), status: impaired(), ..none() });
    vec![
        ailing(&ids[1], Check::Instance, Some(T), "instance reachability failed"),
        ailing(&ids[2], Check::System, None, "system reachability failed"),
        ailing(&ids[3], Check::Instance, Some(T), "instance reachability failed"),
        ailing(&ids[3], Check::System, Some(T), "system reachability failed"),
        ailing(&ids[3], Check::Event, None, "instance-retirement 2026-11-29T16:16:40Z: runs on <old> hardware"),
        ailing(&ids[3], Check::Event, None, "instance-stop 2026-11-29T16:16:40Z"),
    ]
}

#[tokio::test]
async fn a_few_instances_are_named_and_only_what_is_wrong_comes_back() {
    let (endpoint, ids) = endpoint(250);
    let expected = make_ail(&endpoint, &ids);
    let ec2 = connect(&endpoint).await;
    let mut asked = ids.clone();
    asked.push(ids[3].clone());
    assert_eq!(ec2.describe_status(&asked).await.unwrap(), expected);
    let requests = endpoint.requests_of("DescribeInstanceStatus");
    assert_eq!(requests.len(), 3);
    for request in &requests {
        let named = request.params.iter().filter(|(key, _)| key.starts_with("InstanceId.")).count();
        assert!((1..=100).contains(&named), "{named} ids in one call");
        assert!(request.param("MaxResults").is_none() && request.param("Filter.1.Name").is_none());
    }
    assert_eq!(ec2.describe_status(&[]).await.unwrap(), []);
    assert_eq!(endpoint.count("DescribeInstanceStatus"), 3, "nobody's status is not asked for");
}

#[tokio::test]
async fn many_instances_are_found_by_what_ails_and_others_are_left_out() {
    let (endpoint, ids) = endpoint(501);
    let expected = make_ail(&endpoint, &ids);
    // Every page of two instances.
    endpoint.adjust(|behaviour| behaviour.page_size = Some(2));
    let ec2 = connect(&endpoint).await;
    assert_eq!(ec2.describe_status(&ids).await.unwrap(), expected);
    let requests = endpoint.requests_of("DescribeInstanceStatus");
    let filters = |name: &str| requests.iter().filter(|request| request.param("Filter.1.Name") == Some(name)).count();
    assert_eq!(filters("instance-status.status"), 2, "ours and the stranger's are three instances");
    assert_eq!(filters("system-status.status"), 2);
    assert_eq!(filters("event.code"), 1);
    assert_eq!(requests.len(), 5, "never without a filter: {requests:?}");
    assert!(requests.iter().all(|request| request.param("InstanceId.1").is_none()));
    let codes: Vec<&str> = (1..=6)
        .filter_map(|at| {
            let events = requests.iter().find(|request| request.param("Filter.1.Name") == Some("event.code")).unwrap();
            events.param(&format!("Filter.1.Value.{at}"))
        })
        .collect();
    assert_eq!(codes, ["instance-reboot", "system-reboot", "system-maintenance", "instance-retirement", "instance-stop"]);
}

#[tokio::test]
async fn an_instance_that_is_gone_hides_no_other() {
    let (endpoint, ids) = endpoint(20);
    let expected = make_ail(&endpoint, &ids);
    let ec2 = connect(&endpoint).await;
    let mut asked = ids.clone();
    asked.extend(list(&["i-00000000000000001", "i-00000000000000002", "not-an-id"]));
    assert_eq!(ec2.describe_status(&asked).await.unwrap(), expected);
    assert_eq!(endpoint.count("DescribeInstanceStatus"), 3, "the malformed one, the unknown ones, the rest");
    // Where EC2 does not say which one it is.
    let server = Responder::new(|asked| {
        let bad = asked.form.values().any(|value| value == "i-5");
        let item = "<item><instanceId>i-3</instanceId><systemStatus><status>impaired</status></systemStatus></item>";
        match (bad, asked.form.values().any(|value| value == "i-3")) {
            (true, _) => error(400, "InvalidInstanceID.NotFound", "One of them does not exist"),
            (false, true) => ok("DescribeInstanceStatus", &format!("<instanceStatusSet>{item}</instanceStatusSet>")),
            (false, false) => ok("DescribeInstanceStatus", "<instanceStatusSet/>"),
        }
    })
    .await;
    let ids: Vec<String> = (1..=8).map(|at| format!("i-{at}")).collect();
    let found = server.ec2(|_| {}).await.describe_status(&ids).await.unwrap();
    assert_eq!(found, [ailing("i-3", Check::System, None, "system check impaired")]);
}

#[tokio::test]
async fn status_that_cannot_be_had_is_an_error_and_not_good_health() {
    let (endpoint, ids) = endpoint(150);
    endpoint.add_rules([Rule::on("DescribeInstanceStatus").nth(2).error("RequestLimitExceeded", 503)]);
    let failed = connect(&endpoint).await.describe_status(&ids).await.unwrap_err();
    assert_eq!((failed.operation, failed.class), ("DescribeInstanceStatus", ErrorClass::Throttled));
    // A filter that is not honoured: what is wrong is read from the answer.
    let item = "<item><instanceId>i-1</instanceId><instanceStatus><status>ok</status></instanceStatus></item>";
    let page = format!("<instanceStatusSet>{item}</instanceStatusSet><nextToken>t</nextToken>");
    let server = Responder::new(move |asked| match asked.get("NextToken") {
        "" => ok("DescribeInstanceStatus", &page),
        _ => ok("DescribeInstanceStatus", "<instanceStatusSet/>"),
    })
    .await;
    let ids: Vec<String> = (1..=501).map(|at| format!("i-{at}")).collect();
    assert_eq!(server.ec2(|_| {}).await.describe_status(&ids).await.unwrap(), []);
    assert_eq!(server.asked().len(), 6);
    let endless = Responder::new(|_| ok("DescribeInstanceStatus", "<instanceStatusSet/><nextToken>t</nextToken>")).await;
    assert!(endless.ec2(|_| {}).await.describe_status(&ids).await.is_err());
}

#[tokio::test]
async fn capacity_blocks_and_their_states() {
    let reservations = vec![CapacityReservation::new("cr-1", "scheduled"), CapacityReservation::new("cr-2", "active")];
    let endpoint = Endpoint::start(Behaviour { capacity_reservations: reservations, ..Behaviour::default() });
    let ec2 = connect(&endpoint).await;
    let block = |id: &str, state: &str| CapacityBlock { id: id.to_owned(), state: state.to_owned() };
    let both = list(&["cr-2", "cr-1", "cr-2"]);
    assert_eq!(ec2.describe_capacity_reservations(&both).await.unwrap(), [block("cr-1", "scheduled"), block("cr-2", "active")]);
    assert_eq!(endpoint.count("DescribeCapacityReservations"), 1);
    endpoint.set_reservation("cr-1", "active");
    // A word that the SDK does not know is kept.
    endpoint.set_reservation("cr-3", "dreaming");
    assert_eq!(
        ec2.describe_capacity_reservations(&list(&["cr-1", "cr-3"])).await.unwrap(),
        [block("cr-1", "active"), block("cr-3", "dreaming")]
    );
    // One unknown id and one that is none hide nothing.
    let asked = list(&["cr-1", "cr-9", "x"]);
    assert_eq!(ec2.describe_capacity_reservations(&asked).await.unwrap(), [block("cr-1", "active")]);
    assert_eq!(endpoint.count("DescribeCapacityReservations"), 6);
    assert_eq!(ec2.describe_capacity_reservations(&list(&["cr-9"])).await.unwrap(), []);
    assert_eq!(endpoint.count("DescribeCapacityReservations"), 7, "a single one is not asked for twice");
    assert_eq!(ec2.describe_capacity_reservations(&[]).await.unwrap(), []);
    assert_eq!(endpoint.count("DescribeCapacityReservations"), 7);
    // What fails otherwise fails the whole question: half an answer would look like blocks that EC2 does not know.
    endpoint.add_rules([Rule::on("DescribeCapacityReservations").nth(2).error("RequestLimitExceeded", 503)]);
    let failed = ec2.describe_capacity_reservations(&asked).await.unwrap_err();
    assert_eq!(failed.class, ErrorClass::Throttled);
}
