//! The real SDK against a local HTTP server, for the calls about instances that exist: look, terminate, read, tag.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use super::sdk::TemplateVersion;
use super::wire_tests::list;
use crate::aws::responder::{Asked, Reply, Responder, error, ok};
use crate::model::failure::ErrorClass;
use crate::model::recipe::LaunchTemplate;

#[tokio::test]
async fn unknown_ids_are_absent_and_pages_are_followed() {
    let page = |ids: &[&str], next: &str| {
        let items: String = ids.iter().map(|id| format!("<item><instanceId>{id}</instanceId></item>")).collect();
        ok(
            "DescribeInstances",
            &format!(
                "<reservationSet><item><instancesSet>{items}</instancesSet></item></reservationSet><nextToken>{next}</nextToken>"
            ),
        )
    };
    let server = Responder::listing([page(&["i-1"], "more"), page(&["i-2"], "")]).await;
    let ec2 = server.ec2(|_| {}).await;
    let found = ec2.describe_tagged(&[("slurm-ec2:cluster".into(), vec!["h*c".into()])], true).await.unwrap();
    assert_eq!(found.len(), 2);
    let asked = server.asked();
    assert_eq!((asked[0].get("Filter.1.Name"), asked[0].get("Filter.1.Value.1")), ("tag:slurm-ec2:cluster", r"h\*c"));
    assert_eq!((asked[0].get("Filter.2.Name"), asked[0].get("Filter.2.Value.4")), ("instance-state-name", "stopped"));
    assert_eq!((asked[0].get("NextToken"), asked[1].get("NextToken")), ("", "more"));

    let server = Responder::new(move |_| page(&["i-0"], "")).await;
    let ids: Vec<String> = (0..450).map(|at| format!("i-{at}")).collect();
    server.ec2(|_| {}).await.describe_ids(&ids).await.unwrap();
    let asked = server.asked();
    let values = |asked: &Asked| asked.form.keys().filter(|key| key.starts_with("Filter.1.Value.")).count();
    assert_eq!(asked.len(), 3);
    assert_eq!(asked.iter().map(values).sum::<usize>(), 450);
    assert!(asked.iter().all(|one| one.get("InstanceId.1").is_empty() && !one.get("MaxResults").is_empty()));
}

fn ids_of(asked: &Asked) -> Vec<String> {
    (1..).map_while(|at| asked.form.get(&format!("InstanceId.{at}")).cloned()).collect()
}

fn terminating(ids: &[String]) -> Reply {
    let item = |id: &String| {
        format!(
            "<item><instanceId>{id}</instanceId><currentState><code>32</code><name>shutting-down</name></currentState></item>"
        )
    };
    let items: String = ids.iter().map(item).collect();
    ok("TerminateInstances", &format!("<instancesSet>{items}</instancesSet>"))
}

#[tokio::test]
async fn terminate_sets_unknown_and_protected_ids_aside() {
    let server = Responder::new(|asked| {
        let ids = ids_of(asked);
        let unknown: Vec<&str> = ids.iter().filter(|id| id.starts_with("i-dead")).map(String::as_str).collect();
        if !unknown.is_empty() {
            return error(400, "InvalidInstanceID.NotFound", &format!("The instance IDs '{}' do not exist", unknown.join(", ")));
        }
        match ids.iter().find(|id| id.starts_with("i-safe")) {
            Some(id) => {
                error(400, "OperationNotPermitted", &format!("The instance '{id}' may not be terminated. Modify its attribute."))
            }
            None => terminating(&ids),
        }
    })
    .await;
    let ids = list(&["i-1", "i-dead1", "i-safe1", "i-2", "i-dead2", "i-safe2", "i-2"]);
    let done = server.ec2(|_| {}).await.terminate(&ids).await;
    assert_eq!((done.gone, done.not_found), (list(&["i-1", "i-2"]), list(&["i-dead1", "i-dead2"])));
    assert_eq!(done.protected, list(&["i-safe1", "i-safe2"]));
    assert!(done.failed.is_empty());
    assert_eq!(server.asked().len(), 4);
}

#[tokio::test]
async fn terminate_finds_the_one_that_nobody_names() {
    let server = Responder::new(|asked| {
        let ids = ids_of(asked);
        if ids.iter().any(|id| id == "i-613") {
            error(403, "UnauthorizedOperation", "You are not authorized.")
        } else {
            terminating(&ids)
        }
    })
    .await;
    let ids: Vec<String> = (0..1000).map(|at| format!("i-{at}")).collect();
    let done = server.ec2(|_| {}).await.terminate(&ids).await;
    assert_eq!(done.gone.len(), 999);
    assert_eq!(done.failed.len(), 1);
    assert_eq!((done.failed[0].0.as_str(), done.failed[0].1.class), ("i-613", ErrorClass::Identity));
    assert!(server.asked().len() <= 21, "{} calls", server.asked().len());
}

#[tokio::test]
async fn terminate_does_not_ask_a_thousand_times_what_is_never_allowed() {
    let server = Responder::new(|_| error(403, "UnauthorizedOperation", "You are not authorized.")).await;
    let ids: Vec<String> = (0..1000).map(|at| format!("i-{at}")).collect();
    let done = server.ec2(|_| {}).await.terminate(&ids).await;
    assert_eq!(done.failed.len(), 1000);
    assert!(server.asked().len() < 50, "{} calls", server.asked().len());

    let server = Responder::new(|_| error(503, "RequestLimitExceeded", "slow down")).await;
    let done = server.ec2(|_| {}).await.terminate(&ids).await;
    assert_eq!((done.failed.len(), server.asked().len()), (1000, 1));
    assert_eq!(done.failed[0].1.class, ErrorClass::Throttled);
}

#[tokio::test]
async fn terminate_believes_only_what_the_answer_confirms() {
    let server = Responder::new(|_| terminating(&list(&["i-1"]))).await;
    let done = server.ec2(|_| {}).await.terminate(&list(&["i-1", "i-2"])).await;
    assert_eq!(done.gone, list(&["i-1"]));
    assert_eq!(done.failed.len(), 1);
    assert!(server.ec2(|_| {}).await.terminate(&[]).await.gone.is_empty());
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn console_template_tags_and_reboot() {
    let versions = "<launchTemplates><item><latestVersionNumber>12</latestVersionNumber><defaultVersionNumber>3</defaultVersionNumber>\
                    </item></launchTemplates>";
    let server = Responder::listing([
        ok("GetConsoleOutput", "<instanceId>i-1</instanceId><output>aGVsbG8g\nd29ybGQ=</output>"),
        ok("GetConsoleOutput", "<instanceId>i-1</instanceId><output/>"),
        ok("DescribeLaunchTemplates", versions),
        ok("DescribeLaunchTemplates", versions),
        error(403, "UnauthorizedOperation", "no"),
        ok("CreateTags", "<return>true</return>"),
        ok("RebootInstances", "<return>true</return>"),
    ])
    .await;
    let ec2 = server.ec2(|_| {}).await;
    assert_eq!(ec2.console_output("i-1").await.unwrap().as_deref(), Some("hello world"));
    assert_eq!(ec2.console_output("i-1").await.unwrap(), None);
    let template = |version: &str| LaunchTemplate { name: Some("t".into()), id: None, version: version.into() };
    assert_eq!(ec2.template_version(&template("$Latest")).await.unwrap(), TemplateVersion::Number("12".into()));
    assert_eq!(ec2.template_version(&template("$Default")).await.unwrap(), TemplateVersion::Number("3".into()));
    assert_eq!(ec2.template_version(&template("$Latest")).await.unwrap(), TemplateVersion::Symbolic("$Latest".into()));
    assert_eq!(ec2.template_version(&template("5")).await.unwrap().as_str(), "5");
    ec2.tag(&list(&["i-1"]), &[("slurm-ec2:node".into(), "c5-1".into())]).await.unwrap();
    ec2.reboot(&list(&["i-1"])).await.unwrap();
    let asked = server.asked();
    assert_eq!((asked[5].get("ResourceId.1"), asked[5].get("Tag.1.Value")), ("i-1", "c5-1"));
    assert_eq!(asked[6].get("InstanceId.1"), "i-1");
    assert_eq!(ec2.calls().to_string(), "CreateTags=1 DescribeLaunchTemplates=3 GetConsoleOutput=2 RebootInstances=1");
    assert!(ec2.calls().slowest > Duration::ZERO);
}
