//! The `[launch]` section: a table in, the policy of a run and the one that groups start from out, every mistake noted.

use std::time::Duration;

use toml::de::DeValue;

use super::reader::{Reader, Section};
use super::sections::{HOUR, INSTANT, SECOND, size};
use crate::model::failure::BackoffTimes;
use crate::model::policy::{Bucket, Daemon, LaunchPolicy, OnExisting, RunPolicy, ScaleBy, Strategy};

/// A fleet has 10,000 instances at most (aws-facts A.2).
const MAX_BATCH: u64 = 10_000;
/// Longer than a week is a mistake: a group that is to stay off is taken out.
const MAX_BACKOFF: Duration = Duration::from_hours(7 * 24);
/// TerminateInstances takes 1000 ids at most (aws-facts A.3).
const MAX_TERMINATE: u64 = 1000;
/// ParallelCluster's clustermgtd terminates instances that belong to no node 300 s after their launch (aws-facts B.5,
/// `orphaned_instance_timeout`); a run that is over before that never loses one it still means to use.
const PARALLELCLUSTER_DEADLINE: Duration = Duration::from_secs(240);

/// EC2's own bucket for RunInstances: 5 calls at once, then 2 a second (aws-facts A.7).
const BUCKET: Bucket = Bucket { burst: 5, per_second: 2.0 };

pub(super) const STRATEGIES: [(&str, Strategy); 3] = [
    ("best-effort", Strategy::BestEffort),
    ("all-or-nothing", Strategy::AllOrNothing),
    ("greedy-all-or-nothing", Strategy::GreedyAllOrNothing),
];
pub(super) const SCALE_BY: [(&str, ScaleBy); 3] = [("batch", ScaleBy::Batch), ("call", ScaleBy::Call), ("job", ScaleBy::Job)];
pub(super) const ON_EXISTING: [(&str, OnExisting); 2] = [("replace", OnExisting::Replace), ("reboot", OnExisting::Reboot)];
pub(super) const DAEMON: [(&str, Daemon); 3] = [("auto", Daemon::Auto), ("yes", Daemon::Yes), ("no", Daemon::No)];

/// The built-in values of what `[launch]` and a group may set. CreateFleet and RunInstances are fastest in calls of some hundreds
/// (aws-facts A.1); the back-off times are those of the architecture: capacity comes back in minutes, a wrong template does not.
pub(super) fn built_in_policy() -> LaunchPolicy {
    LaunchPolicy {
        strategy: Strategy::BestEffort,
        batch_size: 500,
        on_existing: OnExisting::Replace,
        node_tags: false,
        backoff: BackoffTimes {
            capacity: Duration::from_mins(10),
            quota: Duration::from_mins(5),
            configuration: Duration::from_mins(30),
        },
    }
}

/// The whole section.
pub(super) fn read<'t>(reader: &Reader<'t>, section: &Section<'_, 't>, parallelcluster: bool) -> (RunPolicy, LaunchPolicy) {
    let policy = launch_policy(section, &built_in_policy());
    let run = run_policy(reader, section, policy.strategy, parallelcluster);
    if parallelcluster {
        beside_clustermgtd(section, &run);
    }
    section.finish();
    (run, policy)
}

/// The launch settings, of `[launch]` (over the built-in ones) or of a group (over those of `[launch]`).
pub(super) fn launch_policy(section: &Section<'_, '_>, base: &LaunchPolicy) -> LaunchPolicy {
    let backoff = |key, base| section.duration(key, base, Duration::ZERO..=MAX_BACKOFF);
    LaunchPolicy {
        strategy: section.choice("strategy", base.strategy, &STRATEGIES),
        batch_size: size(section.integer("batch_size", base.batch_size as u64, 1..=MAX_BATCH)),
        on_existing: section.choice("on_existing", base.on_existing, &ON_EXISTING),
        node_tags: section.boolean("node_tags", base.node_tags),
        backoff: BackoffTimes {
            capacity: backoff("backoff_capacity", base.backoff.capacity),
            quota: backoff("backoff_quota", base.backoff.quota),
            configuration: backoff("backoff_configuration", base.backoff.configuration),
        },
    }
}

/// What `[launch]` has and a group has not.
fn run_policy<'t>(reader: &Reader<'t>, section: &Section<'_, 't>, strategy: Strategy, parallelcluster: bool) -> RunPolicy {
    let daemon = if parallelcluster { Daemon::Yes } else { Daemon::Auto };
    RunPolicy {
        scale_by: section.choice("scale_by", ScaleBy::Batch, &SCALE_BY),
        strategy,
        requeue_now: section.boolean("requeue_now", false),
        terminate_batch_size: size(section.integer("terminate_batch_size", MAX_TERMINATE, 1..=MAX_TERMINATE)),
        concurrency: size(section.integer("concurrency", 64, 1..=1000)),
        bucket: request_bucket(reader, section),
        deadline: section.duration("deadline", 120 * SECOND, SECOND..=HOUR),
        daemon: section.choice("daemon", daemon, &DAEMON),
        address_timeout: section.duration("address_timeout", 90 * SECOND, INSTANT..=600 * SECOND),
    }
}

/// What cannot be had beside ParallelCluster's own daemon.
fn beside_clustermgtd(section: &Section<'_, '_>, run: &RunPolicy) {
    if run.deadline > PARALLELCLUSTER_DEADLINE
        && let Some(span) = section.value_span("deadline")
    {
        section.mistake(
            "deadline",
            span,
            "deadline is too long for [parallelcluster]: its clustermgtd terminates instances that have no node after 5m",
            "write \"4m\" or less",
        );
    }
    if run.requeue_now
        && let Some(span) = section.value_span("requeue_now")
    {
        section.mistake(
            "requeue_now",
            span,
            "requeue_now cannot be used with [parallelcluster]: its clustermgtd decides when nodes may be used again",
            "drop requeue_now",
        );
    }
}

/// `"off"`, or a table; `None` = off.
fn request_bucket<'t>(reader: &Reader<'t>, section: &Section<'_, 't>) -> Option<Bucket> {
    const KEY: &str = "request_bucket";
    let Bucket { burst, per_second } = BUCKET;
    let example = format!("{{ burst = {burst}, per_second = {per_second:?} }}");
    let value = section.value(KEY, example.clone());
    let mut off = false;
    let table = match value.map(|value| (value, value.get_ref())) {
        None => None,
        Some((_, DeValue::Table(table))) => Some(table),
        Some((_, DeValue::String(text))) if text == "off" => {
            off = true;
            None
        }
        Some((value, _)) => {
            section.mistake(
                KEY,
                value.span(),
                "request_bucket must be \"off\" or a table",
                format!("write \"off\" or {example}"),
            );
            None
        }
    };
    let inner = reader.section("launch.request_bucket", table, section.value_span(KEY).unwrap_or_default());
    let bucket = Bucket {
        burst: u32::try_from(inner.integer("burst", u64::from(burst), 1..=1000)).unwrap_or(burst),
        per_second: inner.number("per_second", Some(per_second), 0.0, 1000.0).unwrap_or(per_second),
    };
    inner.finish();
    (!off).then_some(bucket)
}
