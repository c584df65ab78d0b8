//! The sections of the file but `[[group]]`: a parsed document in, [`Settings`] out, every mistake noted. Here are the keys, their
//! defaults and their ranges; `docs/configuration.md` says the same in tables, and a test compares the two.
//!
//! Never looks at anything but the document.

use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::{DeTable, DeValue};

use super::checks::{Complaint, check_name, check_no_proxy, check_region, check_url};
use super::groups::{self, launch_policy, size};
use super::reader::{NONE, REQUIRED, Reader, Section};
use super::settings::{AwsSettings, LogFormat, LogSettings, NodeAddress, PublishSettings, Settings, SlurmSettings, StoreKind};
use crate::model::failure::BackoffTimes;
use crate::model::hostlist;
use crate::model::policy::{Bucket, Daemon, LaunchPolicy, OnExisting, RunPolicy, ScaleBy, Strategy};

/// The built-in values of what `[launch]` and a group may set. CreateFleet and RunInstances are fastest in calls of some hundreds
/// (aws-facts A.1); the back-off times are those of the architecture: capacity comes back in minutes, a wrong template does not.
fn built_in_policy() -> LaunchPolicy {
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

/// EC2's own bucket for RunInstances: 5 calls at once, then 2 a second (aws-facts A.7).
const BUCKET: Bucket = Bucket { burst: 5, per_second: 2.0 };

const SECOND: Duration = Duration::from_secs(1);
/// The shortest time limit that is a limit and no typing error.
const INSTANT: Duration = Duration::from_millis(100);
const HOUR: Duration = Duration::from_hours(1);

/// The whole document. After a mistake a value that fits stands in, so that the reading goes on.
pub(super) fn settings<'t>(reader: &Reader<'t>, path: &Path, document: &DeTable<'t>) -> Settings {
    let root = reader.section("", Some(document), 0..0);
    let cluster = required(&root, "cluster", "\"hpc\"", |text| check_name(text, 128));
    let region = required(&root, "region", "\"eu-west-1\"", check_region);
    let hostlist_limit = size(root.integer("hostlist_limit", hostlist::DEFAULT_LIMIT as u64, 1..=100_000_000));
    let aws = aws(&root.table("aws"));
    let slurm = slurm(&root.table("slurm"));
    let state_dir = state_dir(&root.table("state"));
    let log = log(&root.table("log"));
    let launch = root.table("launch");
    let policy = launch_policy(&launch, &built_in_policy());
    let run = run_policy(reader, &launch);
    launch.finish();
    let (groups, node_group) = groups::read(reader, &root, &policy, hostlist_limit);
    root.finish();
    let publish = PublishSettings { batch_size: 10_000, node_table: None, dns: None, hostname: false };
    Settings { path: path.to_owned(), cluster, region, hostlist_limit, aws, slurm, state_dir, log, run, store: StoreKind::File, publish, parallelcluster: None, groups, node_group }
}

/// A checked string that must be there.
fn required(
    section: &Section<'_, '_>,
    key: &'static str,
    example: &str,
    check: impl Fn(&str) -> Result<(), Complaint>,
) -> String {
    let text = section.checked(key, REQUIRED, example, check);
    if text.is_none() && !section.is_bad(key) {
        section.require(key, format!("add {key} = {example}"));
    }
    text.unwrap_or_default()
}

fn aws(section: &Section<'_, '_>) -> AwsSettings {
    let settings = AwsSettings {
        endpoint_url: section.checked("endpoint_url", NONE, "\"https://ec2.example.com\"", check_url),
        dynamodb_endpoint_url: None,
        route53_endpoint_url: None,
        profile: section.text("profile", NONE, "\"hpc\"").map(|(text, _)| text),
        config_file: section.absolute_path("config_file", None, "\"/etc/slurm-ec2/aws-config\""),
        credentials_file: section.absolute_path("credentials_file", None, "\"/etc/slurm-ec2/aws-credentials\""),
        proxy: section.checked("proxy", NONE, "\"http://proxy.example.com:3128\"", check_url),
        no_proxy: section.texts("no_proxy", "\".example.com\"", check_no_proxy),
        ca_bundle: section.absolute_path("ca_bundle", None, "\"/etc/pki/tls/certs/ca-bundle.crt\""),
        attempts: u32::try_from(section.integer("attempts", 5, 1..=20)).unwrap_or(1),
        connect_timeout: section.duration("connect_timeout", 3 * SECOND, INSTANT..=60 * SECOND),
        attempt_timeout: section.duration("attempt_timeout", 60 * SECOND, INSTANT..=600 * SECOND),
        operation_timeout: section.duration("operation_timeout", 100 * SECOND, INSTANT..=HOUR),
    };
    if settings.profile.is_some()
        && section.key_span("config_file").is_none()
        && section.key_span("credentials_file").is_none()
        && let Some(span) = section.value_span("profile")
    {
        section.mistake(
            "profile",
            span,
            "profile cannot be found: slurmctld gives its programs no HOME, so ~/.aws is not looked at",
            "add config_file or credentials_file with the whole path",
        );
    }
    // Against a default the smaller one simply comes first; two written ones contradict each other.
    let times = [
        ("connect_timeout", settings.connect_timeout),
        ("attempt_timeout", settings.attempt_timeout),
        ("operation_timeout", settings.operation_timeout),
    ];
    for pair in times.windows(2) {
        let [(inner, short), (outer, long)] = pair else { continue };
        if let (Some(span), Some(_)) = (section.value_span(inner), section.value_span(outer))
            && short > long
            && !section.is_bad(inner)
            && !section.is_bad(outer)
        {
            section.mistake(
                inner,
                span,
                format!("{inner} is longer than {outer}"),
                format!("make {outer} the longer one: it contains the other"),
            );
        }
    }
    section.finish();
    settings
}

fn slurm(section: &Section<'_, '_>) -> SlurmSettings {
    let settings = SlurmSettings {
        bin_dir: section.absolute_path("bin_dir", Some("/usr/bin"), "\"/usr/bin\"").unwrap_or_default(),
        sudo: None,
        conf: section.absolute_path("conf", Some("/etc/slurm/slurm.conf"), "\"/etc/slurm/slurm.conf\"").unwrap_or_default(),
        node_address: section.choice(
            "node_address",
            NodeAddress::Scontrol,
            &[("scontrol", NodeAddress::Scontrol), ("registration", NodeAddress::Registration), ("none", NodeAddress::None)],
        ),
        nodes_per_call: size(section.integer("nodes_per_call", 10_000, 1..=100_000)),
        // slurmctld down costs scontrol 10 s by itself (slurm-facts); more than that and something else is wrong.
        command_timeout: section.duration("command_timeout", 20 * SECOND, INSTANT..=600 * SECOND),
    };
    section.finish();
    settings
}

fn state_dir(section: &Section<'_, '_>) -> PathBuf {
    let dir = section.absolute_path("dir", Some("/var/lib/slurm-ec2"), "\"/var/lib/slurm-ec2\"");
    section.finish();
    dir.unwrap_or_default()
}

fn log(section: &Section<'_, '_>) -> LogSettings {
    use tracing::Level;
    let settings = LogSettings {
        dir: section.absolute_path("dir", Some("/var/log/slurm-ec2"), "\"/var/log/slurm-ec2\"").unwrap_or_default(),
        level: section.choice(
            "level",
            Level::INFO,
            &[
                ("error", Level::ERROR),
                ("warn", Level::WARN),
                ("info", Level::INFO),
                ("debug", Level::DEBUG),
                ("trace", Level::TRACE),
            ],
        ),
        format: section.choice("format", LogFormat::Text, &[("text", LogFormat::Text), ("json", LogFormat::Json)]),
    };
    section.finish();
    settings
}

/// What `[launch]` has and a group has not.
fn run_policy<'t>(reader: &Reader<'t>, section: &Section<'_, 't>) -> RunPolicy {
    RunPolicy {
        scale_by: ScaleBy::Batch,
        strategy: Strategy::BestEffort,
        requeue_now: false,
        terminate_batch_size: 1000,
        concurrency: size(section.integer("concurrency", 64, 1..=1000)),
        bucket: request_bucket(reader, section),
        deadline: section.duration("deadline", 120 * SECOND, SECOND..=HOUR),
        daemon: section.choice("daemon", Daemon::Auto, &[("auto", Daemon::Auto), ("yes", Daemon::Yes), ("no", Daemon::No)]),
        address_timeout: section.duration("address_timeout", 90 * SECOND, INSTANT..=600 * SECOND),
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
