//! Instance status and capacity reservations as a client on the wire sees them.

#![allow(clippy::unwrap_used)]

use super::tests::{call, control, ids, named, run};
use super::*;

fn filtered(name: &str, value: &str) -> String {
    format!("Action=DescribeInstanceStatus&Filter.1.Name={name}&Filter.1.Value.1={value}")
}

#[test]
fn checks_fail_since_a_time_and_each_by_itself() {
    let ec2 = Endpoint::start(Behaviour::default());
    call(&ec2, &run(3, 3, ""));
    let all = ids(&ec2.instances());
    let well = call(&ec2, &named("DescribeInstanceStatus", &all));
    assert_eq!((well.all("instanceId").len(), well.all("impairedSince").len(), well.all("eventsSet").len()), (3, 0, 0));
    let change = InstanceChange {
        system_status: Some("impaired".to_owned()),
        impaired_since_ms: Some(1_795_969_000_000),
        ..InstanceChange::default()
    };
    ec2.change(&all[1], change);
    let ill = call(&ec2, &filtered("system-status.status", "impaired"));
    assert_eq!(
        (ill.all("instanceId"), ill.all("impairedSince")),
        (all[1..2].to_vec(), vec!["2026-11-29T16:16:40.000Z".to_owned()])
    );
    assert!(
        ill.body
            .contains("<systemStatus><status>impaired</status><details><item><name>reachability</name><status>failed</status>")
    );
    assert!(
        ill.body.contains("<instanceStatus><status>ok</status><details><item><name>reachability</name><status>passed</status>")
    );
    assert!(call(&ec2, &filtered("instance-status.status", "impaired")).all("instanceId").is_empty());
    // The endpoint's other way in.
    let body = format!(
        "{{\"id\": \"{}\", \"change\": {{\"events\": [{{\"code\": \"instance-stop\", \"description\": \"a & b\", \"not_before_ms\": 1795969000000}}]}}}}",
        all[2]
    );
    assert_eq!(control(&ec2, "POST", "instance", &body).status, 200);
    let coming = call(&ec2, &filtered("event.code", "instance-stop"));
    assert_eq!((coming.all("instanceId"), coming.all("description")), (all[2..].to_vec(), vec!["a &amp; b".to_owned()]));
    assert_eq!(coming.all("notBefore"), ["2026-11-29T16:16:40.000Z"]);
    ec2.change(&all[2], InstanceChange { events: Some(Vec::new()), ..InstanceChange::default() });
    assert!(call(&ec2, &filtered("event.code", "instance-stop")).all("instanceId").is_empty());
}

#[test]
fn status_has_ec2s_limits() {
    let ec2 = Endpoint::start(Behaviour { cidr: "127.40.0.0/16".to_owned(), ..Behaviour::default() });
    call(&ec2, &run(101, 101, ""));
    let all = ids(&ec2.instances());
    assert_eq!(call(&ec2, &named("DescribeInstanceStatus", &all)).code(), "InvalidParameterValue");
    assert_eq!(call(&ec2, &named("DescribeInstanceStatus", &all[..100])).all("instanceId").len(), 100);
    let both = format!("{}&MaxResults=100", named("DescribeInstanceStatus", &all[..2]));
    assert_eq!(call(&ec2, &both).code(), "InvalidParameterCombination");
    assert_eq!(call(&ec2, &filtered("tag:Name", "x")).code(), "InvalidParameterValue", "there is no filter by tag");
    let page = call(&ec2, "Action=DescribeInstanceStatus&MaxResults=60");
    assert_eq!(page.all("instanceId").len(), 60);
    let rest = format!("Action=DescribeInstanceStatus&MaxResults=60&NextToken={}", page.all("nextToken")[0]);
    assert_eq!(call(&ec2, &rest).all("instanceId").len(), 41);
    // Those that do not run are absent unless they are asked for; those that do not exist fail the call.
    ec2.change(&all[0], InstanceChange { state: Some(State::Stopped), ..InstanceChange::default() });
    ec2.change(&all[1], InstanceChange { hidden: Some(true), ..InstanceChange::default() });
    assert_eq!(call(&ec2, &named("DescribeInstanceStatus", &[all[0].clone(), all[2].clone()])).all("instanceId"), all[2..3]);
    let with = format!("{}&IncludeAllInstances=true", named("DescribeInstanceStatus", &all[..1]));
    assert!(call(&ec2, &with).body.contains("<name>stopped</name>"));
    let missing = call(&ec2, &named("DescribeInstanceStatus", &all[..3]));
    assert_eq!(missing.code(), "InvalidInstanceID.NotFound");
    assert!(missing.body.contains(&all[1]) && !missing.body.contains(&all[2]));
}

#[test]
fn capacity_reservations_are_made_and_changed() {
    let reservations = vec![CapacityReservation::new("cr-1", "scheduled")];
    let ec2 = Endpoint::start(Behaviour { capacity_reservations: reservations, ..Behaviour::default() });
    assert_eq!(control(&ec2, "POST", "reservation", "{\"id\": \"cr-2\", \"state\": \"active\"}").status, 200);
    let asked = "Action=DescribeCapacityReservations&CapacityReservationId.1=cr-2";
    assert_eq!(call(&ec2, asked).all("state"), ["active"]);
    ec2.set_reservation("cr-2", "expired");
    assert_eq!(call(&ec2, asked).all("state"), ["expired"]);
    assert_eq!(call(&ec2, "Action=DescribeCapacityReservations").all("capacityReservationId"), ["cr-1", "cr-2"]);
    let page = call(&ec2, "Action=DescribeCapacityReservations&MaxResults=1");
    assert_eq!((page.all("capacityReservationId"), page.all("nextToken")), (vec!["cr-1".to_owned()], vec!["page-1".to_owned()]));
    let unknown = call(&ec2, &format!("{asked}&CapacityReservationId.2=cr-9"));
    assert_eq!(unknown.code(), "InvalidCapacityReservationId.NotFound");
    let none = call(&ec2, &format!("{asked}&CapacityReservationId.2=i-1"));
    assert_eq!(none.code(), "InvalidCapacityReservationId.Malformed");
}
