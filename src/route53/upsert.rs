//! One A record per node, made or replaced (aws-facts B.13). Route 53's work is not waited for: a record is known everywhere within
//! a minute, an instance boots longer.
//!
//! A change is carried out as a whole or not at all, so one bad record would keep 499 good ones out: records that Route 53 names
//! are set aside and the rest is asked again; where it names none, the change is cut in two until they are found.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use aws_sdk_route53::types::{Change, ChangeAction, ChangeBatch, ResourceRecord, ResourceRecordSet, RrType};

use super::refusal::{self, INVALID_BATCH, OPERATION};
use super::{Route53, SERVICE};
use crate::aws::again::{Pauses, Tries};
use crate::aws::error::AwsError;
use crate::aws::written::Written;
use crate::config::settings::Dns;
use crate::error::chain;

/// Changes in one call: Route 53 takes 1,000 and counts an UPSERT twice.
const RECORDS_PER_CALL: usize = 500;

/// Seconds, as ParallelCluster's own programs have it.
const TTL: i64 = 120;

/// Pauses after throttling, a change that is still at work, and faults.
const FIRST_PAUSE: Duration = Duration::from_millis(300);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// So many calls that named what they refuse, and not one that was carried out: it is not about single records, the rest is given up.
const REFUSED_ALONE: usize = 8;

impl Route53 {
    /// Makes or replaces the record `<node>.<domain>` of each pair of node and IPv4 address; a node named twice gets the last. What
    /// does not go at once is repeated until `until`.
    pub(crate) async fn upsert(&self, dns: &Dns, records: &[(String, String)], until: Instant) -> Written {
        let records: BTreeMap<String, String> = records.iter().cloned().collect();
        let records: Vec<(String, String)> = records.into_iter().collect();
        let mut written = Written::default();
        let mut refused_alone = 0;
        let mut open: VecDeque<Vec<(String, String)>> = records.chunks(RECORDS_PER_CALL).map(<[_]>::to_vec).collect();
        while let Some(batch) = open.pop_front() {
            let error = match self.change(dns, &batch, until).await {
                End::Done => {
                    written.done.extend(nodes(batch));
                    continue;
                }
                End::TimeUp(last) => {
                    written.give_up(nodes(batch), last);
                    continue;
                }
                End::Refused(error) => error,
            };
            let about = format!("zone {}", dns.hosted_zone);
            if error.code != INVALID_BATCH && error.code != "InvalidInput" {
                written.refuse(nodes(batch), &error.to_failure(&about));
                continue;
            }
            let (mut named, mut rest): (Vec<_>, Vec<_>) =
                batch.into_iter().partition(|(node, _)| refusal::names(&error.message, &name(node, &dns.domain)));
            if named.is_empty() && rest.len() == 1 {
                named.append(&mut rest);
            }
            let found = !named.is_empty();
            for (node, _) in named {
                let failure = error.to_failure(&format!("record {} of {about}", name(&node, &dns.domain)));
                written.refused.push((node, failure));
            }
            refused_alone += usize::from(found);
            if refused_alone >= REFUSED_ALONE && written.done.is_empty() {
                written.refuse(nodes(rest), &error.to_failure(&about));
                continue;
            }
            if !found {
                let second = rest.split_off(rest.len() / 2);
                open.push_front(second);
            }
            open.push_front(rest);
            open.retain(|batch| !batch.is_empty());
        }
        written
    }

    /// One change, repeated until it ends in one of three ways.
    async fn change(&self, dns: &Dns, batch: &[(String, String)], until: Instant) -> End {
        let mut tries = Tries::new(Pauses::new(FIRST_PAUSE, LONGEST_PAUSE, until));
        loop {
            let Some(turn) = self.pace.turn(until).await else { return End::TimeUp(tries.heard().map(|error| chain(error))) };
            let changes = match change_batch(dns, batch) {
                Ok(changes) => changes,
                Err(error) => return End::Refused(error),
            };
            let call = self.client.change_resource_record_sets().hosted_zone_id(&dns.hosted_zone).change_batch(changes).send();
            let error = match tries.in_time(SERVICE, OPERATION, call).await {
                Ok(Ok(_)) => return End::Done,
                Ok(Err(error)) => refusal::read(&error),
                Err(late) => late,
            };
            drop(turn);
            match tries.again(error).await {
                Ok(()) => {}
                Err(error) if error.class.is_retryable() => return End::TimeUp(Some(chain(&error))),
                Err(error) => return End::Refused(error),
            }
        }
    }
}

enum End {
    Done,
    Refused(AwsError),
    /// With the last thing that went wrong.
    TimeUp(Option<String>),
}

fn nodes(records: Vec<(String, String)>) -> impl Iterator<Item = String> {
    records.into_iter().map(|(node, _)| node)
}

/// `apple-dy-core-7.orchard.pcluster.`
fn name(node: &str, domain: &str) -> String {
    format!("{node}.{domain}")
}

fn change_batch(dns: &Dns, records: &[(String, String)]) -> Result<ChangeBatch, AwsError> {
    // Each of these fails only for a part that is not given.
    let broken = |error| AwsError::configuration(SERVICE, chain(&error));
    let mut batch = ChangeBatch::builder();
    for (node, address) in records {
        let record = ResourceRecord::builder().value(address).build().map_err(broken)?;
        let set = ResourceRecordSet::builder().name(name(node, &dns.domain)).r#type(RrType::A).ttl(TTL).resource_records(record);
        let change = Change::builder().action(ChangeAction::Upsert).resource_record_set(set.build().map_err(broken)?);
        batch = batch.changes(change.build().map_err(broken)?);
    }
    batch.build().map_err(broken)
}
