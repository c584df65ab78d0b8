//! DescribeInstances by filter: ids, tags or addresses in, the instances that EC2 knows out. An unknown id is simply absent.
//!
//! Filters and not the id list: one unknown id in the list fails the whole call, and the list cannot be paged.
//! Limits (EC2 User Guide, "Filtering"): 200 values in one filter, 1,000 instances on a page.

use aws_sdk_ec2::types::Filter;

use super::answer;
use super::error::Ec2Error;
use super::instances::Reading;
use super::question::{Asked, next_page};
use super::sdk::Ec2;
use crate::model::instance::Instance;

const VALUES_PER_FILTER: usize = 200;

/// Half of what EC2 allows: a page is 2.5 KB per instance, and as much again once parsed.
const PAGE: i32 = 500;

/// Calls of one question in flight: a hundred may burst, but others of this account want to ask, too.
const AT_ONCE: usize = 8;

/// Every state that costs money or may come back.
const LIVE: [&str; 4] = ["pending", "running", "stopping", "stopped"];

const OPERATION: &str = "DescribeInstances";

/// Name and values; an instance must match one value of every filter.
type Question = Vec<(String, Vec<String>)>;

impl Ec2 {
    /// The instances among `ids` that EC2 knows, in any state, in no particular order.
    pub(crate) async fn describe_ids(&self, ids: &[String]) -> Result<Vec<Instance>, Ec2Error> {
        self.ask(vec![("instance-id".into(), ids.to_vec())]).await
    }

    /// The instances that carry, for each tag key, one of its values.
    pub(crate) async fn describe_tagged(
        &self,
        filters: &[(String, Vec<String>)],
        live_only: bool,
    ) -> Result<Vec<Instance>, Ec2Error> {
        self.ask(by_tags(filters, live_only)).await
    }

    /// The live instances with one of these private addresses and these tags.
    pub(crate) async fn describe_ips(
        &self,
        ips: &[String],
        filters: &[(String, Vec<String>)],
    ) -> Result<Vec<Instance>, Ec2Error> {
        let mut question = by_tags(filters, true);
        question.push(("private-ip-address".into(), ips.to_vec()));
        self.ask(question).await
    }

    async fn ask(&self, question: Question) -> Result<Vec<Instance>, Ec2Error> {
        let mut asked = Asked::new(OPERATION, AT_ONCE);
        for part in parts(&question) {
            let ec2 = self.clone();
            asked.call(async move { ec2.pages(part).await });
        }
        asked.all().await
    }

    async fn pages(&self, question: Question) -> Result<Vec<Instance>, Ec2Error> {
        let filters: Vec<Filter> =
            question.into_iter().map(|(name, values)| Filter::builder().name(name).set_values(Some(values)).build()).collect();
        let mut found = Vec::new();
        let mut next: Option<String> = None;
        loop {
            let call = self.client().describe_instances().set_filters(Some(filters.clone())).max_results(PAGE);
            let reading = Reading::default();
            let page = call.set_next_token(next.clone()).customize().interceptor(reading.clone()).send().await;
            let page = page.map_err(|error| Ec2Error::from_sdk(OPERATION, &error))?;
            found.append(&mut reading.taken());
            let reservations = page.reservations.unwrap_or_default().into_iter();
            found.extend(
                reservations.flat_map(|reservation| reservation.instances.unwrap_or_default()).filter_map(answer::instance),
            );
            next = next_page(OPERATION, next.as_ref(), page.next_token)?;
            if next.is_none() {
                return Ok(found);
            }
        }
    }
}

fn by_tags(filters: &[(String, Vec<String>)], live_only: bool) -> Question {
    let mut question: Question =
        filters.iter().map(|(key, values)| (format!("tag:{key}"), values.iter().map(|value| literal(value)).collect())).collect();
    if live_only {
        question.push(("instance-state-name".into(), LIVE.map(str::to_owned).to_vec()));
    }
    question
}

/// EC2 reads `*` and `?` in a filter as wildcards, and a backslash before them as an escape.
fn literal(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for c in value.chars() {
        if matches!(c, '*' | '?' | '\\') {
            text.push('\\');
        }
        text.push(c);
    }
    text
}

/// The question in parts of at most 200 values per filter; none where a filter has no value, since nothing matches it.
fn parts(question: &Question) -> Vec<Question> {
    let mut made: Vec<Question> = vec![Vec::new()];
    for (name, values) in question {
        let chunks: Vec<&[String]> = values.chunks(VALUES_PER_FILTER).collect();
        let longer = |part: Question| {
            chunks.iter().map(move |chunk| {
                let mut part = part.clone();
                part.push((name.clone(), chunk.to_vec()));
                part
            })
        };
        made = made.into_iter().flat_map(longer).collect();
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|at| format!("v{at}")).collect()
    }

    #[test]
    fn no_filter_has_more_than_200_values_and_no_value_is_lost() {
        let made = parts(&vec![("a".into(), names(450)), ("b".into(), names(201))]);
        assert_eq!(made.len(), 6);
        assert!(made.iter().flatten().all(|(_, values)| (1..=200).contains(&values.len())));
        let pairs: usize = made.iter().map(|part| part[0].1.len() * part[1].1.len()).sum();
        assert_eq!(pairs, 450 * 201);
    }

    #[test]
    fn nothing_is_asked_about_nothing() {
        assert!(parts(&vec![("instance-id".into(), Vec::new())]).is_empty());
        assert!(parts(&vec![("a".into(), names(3)), ("b".into(), Vec::new())]).is_empty());
    }

    #[test]
    fn a_value_is_no_pattern() {
        assert_eq!(literal(r"a*b?c\d"), r"a\*b\?c\\d");
    }
}
