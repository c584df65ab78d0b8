//! The real SDK against a local Route 53: records, pace, refusals.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use slurm_ec2_testkit::ec2::Rule;
use slurm_ec2_testkit::route53::{Behaviour, Endpoint, Record, Zone};

use super::Route53;
use crate::aws::responder::settings;
use crate::config::settings::Dns;

const ZONE: &str = "Z0123456789";

fn served(change: impl FnOnce(&mut Behaviour)) -> Endpoint {
    let mut behaviour = Behaviour { zones: vec![Zone::new(ZONE, "orchard.pcluster.")], ..Behaviour::default() };
    change(&mut behaviour);
    Endpoint::start(behaviour)
}

async fn client(server: &Endpoint) -> Route53 {
    let mut settings = settings();
    settings.route53_endpoint_url = Some(server.url());
    Route53::connect(&settings, "eu-central-1").await.unwrap()
}

fn dns() -> Dns {
    Dns { hosted_zone: ZONE.into(), domain: "orchard.pcluster.".into() }
}

fn records(count: usize) -> Vec<(String, String)> {
    (1..=count).map(|n| (format!("apple-dy-core-{n}"), format!("10.40.{}.{}", n / 250, n % 250))).collect()
}

/// Calls keep a pace: not so soon after all.
fn soon() -> Instant {
    Instant::now() + Duration::from_mins(5)
}

#[tokio::test]
async fn one_a_record_for_each_node_at_most_500_a_call() {
    let server = served(|_| {});
    let mut wanted = records(1100);
    wanted.push(("apple-dy-core-7".into(), "10.40.9.9".into()));
    let written = client(&server).await.upsert(&dns(), &wanted, soon()).await;
    assert_eq!((written.done.len(), written.refused.len(), written.unknown.len()), (1100, 0, 0));
    assert_eq!(server.sizes(), [500, 500, 100]);
    let kept = server.records(ZONE);
    let expected = Record { kind: "A".into(), ttl: 120, values: vec!["10.40.9.9".into()] };
    assert_eq!((kept.len(), &kept["apple-dy-core-7.orchard.pcluster."]), (1100, &expected));
}

#[tokio::test]
async fn r30_throttled_twice_then_written() {
    let server = served(|behaviour| {
        behaviour.rules = vec![
            Rule::on("*").times(2).error("Throttling", 400),
            Rule::on("*").times(1).error("PriorRequestNotComplete", 400),
            Rule::on("*").times(1).error("ServiceUnavailable", 503),
        ];
    });
    let written = client(&server).await.upsert(&dns(), &records(3), soon()).await;
    assert_eq!((written.done.len(), server.records(ZONE).len(), server.requests().len()), (3, 3, 5));
}

#[tokio::test]
async fn r30_calls_of_many_steps_do_not_get_in_each_others_way() {
    let server = served(|behaviour| {
        behaviour.latency_ms = 5;
        // The pace has its own test; a slow machine must not fail this one.
        behaviour.calls_per_second = 0;
    });
    let route53 = client(&server).await;
    // Several steps at once, as when batches complete together.
    let mut steps = tokio::task::JoinSet::new();
    for step in 0..7 {
        let route53 = route53.clone();
        steps.spawn(async move {
            let records = [(format!("apple-dy-core-{step}"), format!("10.40.0.{step}"))];
            route53.upsert(&dns(), &records, soon()).await.done.len()
        });
    }
    assert_eq!(steps.join_all().await, [1; 7]);
    // The endpoint takes one at a time.
    assert!(server.requests().iter().all(|request| request.status == Some(200)), "{:?}", server.requests());
}

#[tokio::test]
async fn r30_a_record_that_is_named_fails_alone() {
    for old_refusals in [false, true] {
        let server = served(|behaviour| {
            behaviour.old_refusals = old_refusals;
            behaviour.refused = (1..=9).map(|n| format!("apple-dy-core-{n}.orchard.pcluster.")).collect();
        });
        let written = client(&server).await.upsert(&dns(), &records(40), soon()).await;
        let refused: Vec<&str> = written.refused.iter().map(|(node, _)| node.as_str()).collect();
        assert_eq!(refused, (1..=9).map(|n| format!("apple-dy-core-{n}")).collect::<Vec<_>>());
        assert_eq!((written.done.len(), written.refused[0].1.code.as_str()), (31, "InvalidChangeBatch"));
        assert!(written.refused[0].1.sentence.contains("record apple-dy-core-1.orchard.pcluster. of zone Z0123456789"));
        assert_eq!(server.sizes(), [40, 31]);
    }
}

#[tokio::test]
async fn r30_a_record_that_is_not_named_is_found() {
    let server = served(|behaviour| {
        behaviour.names_refused = false;
        behaviour.calls_per_second = 0;
        behaviour.refused = vec!["apple-dy-core-3.orchard.pcluster.".into()];
    });
    let written = client(&server).await.upsert(&dns(), &records(8), soon()).await;
    assert_eq!(written.refused.iter().map(|(node, _)| node.as_str()).collect::<Vec<_>>(), ["apple-dy-core-3"]);
    assert_eq!((written.done.len(), server.records(ZONE).len()), (7, 7));
}

#[tokio::test]
async fn when_every_record_is_refused_the_search_ends() {
    let server = served(|behaviour| {
        behaviour.names_refused = false;
        behaviour.calls_per_second = 0;
        behaviour.refused = records(64).into_iter().map(|(node, _)| format!("{node}.orchard.pcluster.")).collect();
    });
    let written = client(&server).await.upsert(&dns(), &records(64), soon()).await;
    assert_eq!((written.done.len(), written.refused.len(), written.unknown.len()), (0, 64, 0));
    assert!(server.requests().len() < 30, "{}", server.requests().len());
    // A domain that is not the zone's is told of each name: one call.
    let server = served(|_| {});
    let elsewhere = Dns { domain: "meadow.pcluster.".into(), ..dns() };
    let written = client(&server).await.upsert(&elsewhere, &records(64), soon()).await;
    assert_eq!((written.refused.len(), server.requests().len()), (64, 1));
}

#[tokio::test]
async fn r30_no_zone_and_no_permission_are_told_as_such() {
    let server = served(|_| {});
    let gone = Dns { hosted_zone: "Z9".into(), ..dns() };
    let written = client(&server).await.upsert(&gone, &records(2), soon()).await;
    assert_eq!(written.refused[1].1.code, "NoSuchHostedZone");
    assert!(written.refused[1].1.sentence.contains("zone Z9"), "{}", written.refused[1].1.sentence);
    let message = "User: arn:aws:sts::1:assumed-role/head/i-0 is not authorized to perform: route53:ChangeResourceRecordSets on resource: x";
    server.add_rules([Rule::on("*").error_text("AccessDenied", 403, message)]);
    let written = client(&server).await.upsert(&dns(), &records(2), soon()).await;
    let (_, failure) = &written.refused[0];
    assert_eq!(failure.code, "AccessDenied");
    assert_eq!(
        failure.sentence,
        "the credentials in use lack the permission route53:ChangeResourceRecordSets for zone Z0123456789"
    );
    assert_eq!(server.requests().len(), 2, "neither is asked again");
}

#[tokio::test]
async fn what_is_not_written_in_time_is_unknown() {
    let server = served(|_| {});
    let route53 = client(&server).await;
    // Credentials and connection take none of the time that is to run out.
    assert_eq!(route53.upsert(&dns(), &records(1), soon()).await.done.len(), 1);
    server.add_rules([Rule::on("*").error("PriorRequestNotComplete", 400)]);
    let until = Instant::now() + Duration::from_secs(3);
    let written = route53.upsert(&dns(), &records(2), until).await;
    assert_eq!((written.done.len(), written.refused.len(), written.unknown.len()), (0, 0, 2));
    let why = written.why_unknown.unwrap();
    // Who asks a second time has heard the first answer; on a slow machine there is none.
    assert!(why.contains("PriorRequestNotComplete") || server.requests().len() < 3, "{why}");
    // Others hold every turn for longer than there is time.
    let busy = client(&server).await.paced(|_| None);
    let written = busy.upsert(&dns(), &records(2), soon()).await;
    assert_eq!((written.unknown.len(), written.why_unknown.as_deref()), (2, Some("no time was left")));
}
