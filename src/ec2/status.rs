//! DescribeInstanceStatus: ids of ours in, what is wrong with those instances out. An instance with nothing wrong, an unknown one and one
//! that does not run are alike: absent.
//!
//! Never asks about the whole account: a few instances are named, many are found by filters that match only what ails, in whatever
//! cluster, and sorted out here (aws-facts A.6, D.4). What is wrong is read from the answer itself and not concluded from the filter.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use aws_sdk_ec2::types::{EventCode, Filter, InstanceStatus, InstanceStatusEvent, InstanceStatusSummary, SummaryStatus};
use aws_smithy_types::DateTime;

use super::codes;
use super::error::Ec2Error;
use super::question::{Asked, next_page};
use super::sdk::Ec2;
use super::terminate::ids_in;
use crate::model::cluster::{Ailment, Check};
use crate::model::time::Timestamp;

/// Ids in one call: EC2's own limit.
const IDS_PER_CALL: usize = 100;

/// Up to so many instances are named (five calls); for more of them the three filtered questions are fewer.
const NAMED: usize = 500;

/// EC2's limit; only what ails is on the pages.
const PAGE: i32 = 1000;

/// Calls of one question in flight.
const AT_ONCE: usize = 4;

/// The events that end or stop an instance, or make it unusable for a while: all that EC2 has today.
const EVENTS: [&str; 5] = ["instance-reboot", "system-reboot", "system-maintenance", "instance-retirement", "instance-stop"];

const OPERATION: &str = "DescribeInstanceStatus";

impl Ec2 {
    /// What is wrong with these instances, in the order of ids; several entries for one that has several ailments.
    pub(crate) async fn describe_status(&self, ids: &[String]) -> Result<Vec<(String, Ailment)>, Ec2Error> {
        let wanted: BTreeSet<&str> = ids.iter().map(String::as_str).collect();
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let mut asked = Asked::new(OPERATION, AT_ONCE);
        if wanted.len() <= NAMED {
            let all: Vec<String> = wanted.iter().map(|&id| id.to_owned()).collect();
            for chunk in all.chunks(IDS_PER_CALL) {
                let (ec2, chunk) = (self.clone(), chunk.to_vec());
                asked.call(async move { ec2.status_of(chunk).await });
            }
        } else {
            let events = EVENTS.map(str::to_owned).to_vec();
            let impaired = || vec!["impaired".to_owned()];
            for (name, values) in
                [("instance-status.status", impaired()), ("system-status.status", impaired()), ("event.code", events)]
            {
                let ec2 = self.clone();
                asked.call(async move { ec2.status_where(Filter::builder().name(name).set_values(Some(values)).build()).await });
            }
        }
        // By id: one that is found by several filters is told whole by each of them.
        let mut found = BTreeMap::new();
        for status in asked.all().await? {
            let Some(id) = status.instance_id.clone().filter(|id| wanted.contains(id.as_str())) else { continue };
            found.insert(id, status);
        }
        Ok(found.into_iter().flat_map(|(id, status)| ailments(status).map(move |ailment| (id.clone(), ailment))).collect())
    }

    /// One unknown id fails the whole call: named ones are left out, and where EC2 names none the call is cut in two.
    async fn status_of(&self, ids: Vec<String>) -> Result<Vec<InstanceStatus>, Ec2Error> {
        let mut found = Vec::new();
        let mut open = VecDeque::from([ids]);
        while let Some(mut ids) = open.pop_front() {
            if ids.is_empty() {
                continue;
            }
            let sent = self.client().describe_instance_status().set_instance_ids(Some(ids.clone())).send().await;
            let error = match sent {
                Ok(answer) => {
                    found.extend(answer.instance_statuses.unwrap_or_default());
                    continue;
                }
                Err(error) => Ec2Error::from_sdk(OPERATION, &error),
            };
            if !codes::bare(&error.code).starts_with("InvalidInstanceID.") {
                return Err(error);
            }
            let unknown = ids_in(&error.message, &ids);
            if !unknown.is_empty() {
                ids.retain(|id| !unknown.contains(id));
                open.push_front(ids);
            } else if ids.len() > 1 {
                let second = ids.split_off(ids.len() / 2);
                open.extend([ids, second]);
            }
        }
        Ok(found)
    }

    async fn status_where(&self, filter: Filter) -> Result<Vec<InstanceStatus>, Ec2Error> {
        let mut found = Vec::new();
        let mut next: Option<String> = None;
        loop {
            let call = self.client().describe_instance_status().filters(filter.clone()).max_results(PAGE);
            let page = call.set_next_token(next.clone()).send().await.map_err(|error| Ec2Error::from_sdk(OPERATION, &error))?;
            found.extend(page.instance_statuses.unwrap_or_default());
            next = next_page(OPERATION, next.as_ref(), page.next_token)?;
            if next.is_none() {
                return Ok(found);
            }
        }
    }
}

/// The checks that fail, then the events that are still to come.
fn ailments(status: InstanceStatus) -> impl Iterator<Item = Ailment> {
    let instance = status.instance_status.and_then(|summary| failing(Check::Instance, "instance", summary));
    let system = status.system_status.and_then(|summary| failing(Check::System, "system", summary));
    instance.into_iter().chain(system).chain(status.events.unwrap_or_default().into_iter().filter_map(event))
}

/// `instance reachability failed`
fn failing(check: Check, whose: &str, summary: InstanceStatusSummary) -> Option<Ailment> {
    if summary.status != Some(SummaryStatus::Impaired) {
        return None;
    }
    let details = summary.details.unwrap_or_default();
    let since = details.iter().filter_map(|detail| moment(detail.impaired_since.as_ref())).min();
    let failed: Vec<String> = details
        .iter()
        .filter(|detail| detail.status.as_ref().is_none_or(|status| status.as_str() != "passed"))
        .filter_map(|detail| Some(format!("{} {}", detail.name.as_ref()?.as_str(), detail.status.as_ref()?.as_str())))
        .collect();
    let what = if failed.is_empty() { "check impaired".to_owned() } else { failed.join(", ") };
    Some(Ailment { check, since, text: format!("{whose} {what}") })
}

/// `system-reboot 2026-12-01T00:00:00Z: The instance is scheduled for a reboot`. EC2 shows an event for a week after its end; its
/// description then begins with what became of it.
fn event(event: InstanceStatusEvent) -> Option<Ailment> {
    let code = event.code.as_ref().map(EventCode::as_str).filter(|code| EVENTS.contains(code))?;
    let description = event.description.as_deref().unwrap_or_default().trim();
    let lower = description.to_lowercase();
    if ["[completed]", "[canceled]", "[cancelled]"].iter().any(|over| lower.starts_with(over)) {
        return None;
    }
    let mut text = code.to_owned();
    if let Some(time) = moment(event.not_before.as_ref()) {
        text = format!("{text} {time}");
    }
    if !description.is_empty() {
        text = format!("{text}: {description}");
    }
    Some(Ailment { check: Check::Event, since: None, text })
}

fn moment(time: Option<&DateTime>) -> Option<Timestamp> {
    time.and_then(|time| u64::try_from(time.secs()).ok()).map(Timestamp::from_secs)
}
