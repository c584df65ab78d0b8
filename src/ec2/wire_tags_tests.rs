//! The real SDK against a local HTTP server and the fake EC2: one tag of one instance.

#![allow(clippy::unwrap_used)]

use slurm_ec2_testkit::ec2::{Behaviour, Endpoint, InstanceChange, Rule, Seed};

use super::sdk::Ec2;
use crate::aws::responder::{Responder, error, ok, settings};
use crate::model::failure::ErrorClass;
use crate::model::instance::tag::NODE;

async fn connect(endpoint: &Endpoint) -> Ec2 {
    let mut aws = settings();
    aws.endpoint_url = Some(endpoint.url());
    Ec2::connect(&aws, "eu-west-1").await.unwrap()
}

fn seed(endpoint: &Endpoint, tags: &[(&str, &str)]) -> String {
    let tags = tags.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    endpoint.seed(&Seed { tags, ..Seed::default() }).remove(0)
}

fn tag(id: &str, key: &str, value: &str) -> String {
    format!(
        "<item><resourceId>{id}</resourceId><resourceType>instance</resourceType><key>{key}</key><value>{value}</value></item>"
    )
}

#[tokio::test]
async fn one_tag_is_asked_for_and_nothing_else() {
    let endpoint = Endpoint::start(Behaviour::default());
    let others = seed(&endpoint, &[(NODE, "c5-1")]);
    let own = seed(&endpoint, &[(NODE, "c5-2"), ("slurm-ec2:cluster", "hpc")]);
    let ec2 = connect(&endpoint).await;
    assert_eq!(ec2.tag_of(&own, NODE).await.unwrap().as_deref(), Some("c5-2"));
    let requests = endpoint.requests_of("DescribeTags");
    let expected = [("resource-id", own.as_str()), ("key", NODE)];
    for (at, (name, value)) in expected.into_iter().enumerate() {
        let param = |what: &str| requests[0].param(&format!("Filter.{}.{what}", at + 1));
        assert_eq!((param("Name"), param("Value.1"), param("Value.2")), (Some(name), Some(value), None));
    }
    assert!(requests[0].param("Filter.3.Name").is_none());
    assert_eq!((requests.len(), endpoint.count("DescribeInstances")), (1, 0));
    assert_eq!(ec2.tag_of(&others, "slurm-ec2:cluster").await.unwrap(), None, "another instance's");
    assert_eq!(ec2.tag_of("i-0ec2000000000ffff", NODE).await.unwrap(), None, "an unknown instance");
}

#[tokio::test]
async fn a_tag_that_is_not_to_be_seen_yet_is_none_and_then_there() {
    let endpoint = Endpoint::start(Behaviour::default());
    let id = seed(&endpoint, &[]);
    let ec2 = connect(&endpoint).await;
    assert_eq!(ec2.tag_of(&id, NODE).await.unwrap(), None);
    let change = |hidden| InstanceChange {
        tags: Some([(NODE.to_owned(), "c5-3".to_owned())].into()),
        hidden: Some(hidden),
        ..InstanceChange::default()
    };
    endpoint.change(&id, change(true));
    assert_eq!(ec2.tag_of(&id, NODE).await.unwrap(), None);
    endpoint.change(&id, change(false));
    assert_eq!(ec2.tag_of(&id, NODE).await.unwrap().as_deref(), Some("c5-3"));
}

#[tokio::test]
async fn the_answer_counts_and_not_the_filter_and_a_page_may_be_empty() {
    let strangers = format!("<tagSet>{}{}</tagSet><nextToken>t</nextToken>", tag("i-2", NODE, "c5-2"), tag("i-1", "Name", "x"));
    let own = format!("<tagSet>{}</tagSet>", tag("i-1", NODE, "c5-1"));
    let server = Responder::new(move |asked| match asked.get("NextToken") {
        "" => ok("DescribeTags", &strangers),
        "t" => ok("DescribeTags", "<tagSet/><nextToken>u</nextToken>"),
        _ => ok("DescribeTags", &own),
    })
    .await;
    assert_eq!(server.ec2(|_| {}).await.tag_of("i-1", NODE).await.unwrap().as_deref(), Some("c5-1"));
    assert_eq!(server.asked().len(), 3);
    let endless = Responder::new(|_| ok("DescribeTags", "<tagSet/><nextToken>t</nextToken>")).await;
    assert!(endless.ec2(|_| {}).await.tag_of("i-1", NODE).await.is_err());
}

#[tokio::test]
async fn what_ec2_does_not_tell_is_an_error_and_not_an_absent_tag() {
    let endpoint = Endpoint::start(Behaviour::default());
    let id = seed(&endpoint, &[(NODE, "c5-1")]);
    endpoint.add_rules([Rule::on("DescribeTags").error("RequestLimitExceeded", 503)]);
    let failed = connect(&endpoint).await.tag_of(&id, NODE).await.unwrap_err();
    assert_eq!((failed.operation, failed.class), ("DescribeTags", ErrorClass::Throttled));
    let message = "You are not authorized to perform this operation. User: arn:aws:sts::1:assumed-role/node/i-1 is not authorized to \
                   perform: ec2:DescribeTags because no identity-based policy allows the ec2:DescribeTags action";
    let server = Responder::new(move |_| error(403, "UnauthorizedOperation", message)).await;
    let failed = server.ec2(|_| {}).await.tag_of(&id, NODE).await.unwrap_err();
    assert_eq!((failed.code.as_str(), failed.class), ("UnauthorizedOperation", ErrorClass::Identity));
    assert_eq!(failed.to_failure("").sentence, "the credentials in use lack the permission ec2:DescribeTags");
}
