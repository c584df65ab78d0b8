//! The whole file: a parsed document in, [`Settings`] out, every mistake noted. Here and in the modules for `[launch]`, for what
//! is published, for the daemons and for `[[group]]` are the keys, their defaults and their ranges; `docs/configuration.md` says
//! the same in tables, and a test compares the two.
//!
//! Never looks at anything but the document.

use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::DeTable;
use tracing::Level;

use super::checks::{Complaint, check_name, check_no_proxy, check_region, check_table, check_url};
use super::file::Need;
use super::groups::{self, Context};
use super::reader::{NONE, REQUIRED, Reader, Section};
use super::settings::{
    AwsSettings, EventsFile, LogFormat, LogSettings, NodeAddress, PublishSettings, Settings, SlurmSettings, StoreKind,
};
use super::{sections_daemons, sections_launch, sections_publish};
use crate::model::hostlist;

pub(super) const SECOND: Duration = Duration::from_secs(1);
/// The shortest time limit that is a limit and no typing error.
pub(super) const INSTANT: Duration = Duration::from_millis(100);
pub(super) const HOUR: Duration = Duration::from_hours(1);

pub(super) const NODE_ADDRESS: [(&str, NodeAddress); 3] =
    [("scontrol", NodeAddress::Scontrol), ("registration", NodeAddress::Registration), ("none", NodeAddress::None)];
pub(super) const LEVELS: [(&str, Level); 5] =
    [("error", Level::ERROR), ("warn", Level::WARN), ("info", Level::INFO), ("debug", Level::DEBUG), ("trace", Level::TRACE)];
pub(super) const FORMATS: [(&str, LogFormat); 3] =
    [("text", LogFormat::Text), ("json", LogFormat::Json), ("parallelcluster", LogFormat::ParallelCluster)];

/// The whole document. After a mistake a value that fits stands in, so that the reading goes on.
pub(super) fn settings<'t>(reader: &Reader<'t>, path: &Path, document: &DeTable<'t>, need: Need) -> Settings {
    let root = reader.section("", Some(document), 0..0);
    let cluster = required(&root, "cluster", "\"hpc\"", |text| check_name(text, 128));
    let region = required(&root, "region", "\"eu-west-1\"", check_region);
    let hostlist_limit = size(root.integer("hostlist_limit", hostlist::DEFAULT_LIMIT as u64, 1..=100_000_000));
    let aws = aws(&root.table("aws"));
    let slurm = slurm(&root.table("slurm"));
    let state_section = root.table("state");
    let (state_dir, store) = state(&state_section);
    let publish = sections_publish::publish(&root);
    two_tables(&state_section, &store, &publish);
    let parallelcluster = sections_publish::parallelcluster(&root.table("parallelcluster"));
    let log = log(&root.table("log"), parallelcluster.is_some());
    let (run, base) = sections_launch::read(reader, &root.table("launch"), parallelcluster.is_some());
    let context =
        Context { base: &base, scale_by: run.scale_by, parallelcluster: parallelcluster.is_some(), limit: hostlist_limit };
    let groups::Groups { groups, node_group, static_nodes } = groups::read(reader, &root, &context, need);
    let daemons = sections_daemons::read(&root, &cluster, parallelcluster.as_ref(), (&store, &publish));
    root.finish();
    Settings {
        path: path.to_owned(),
        files: Vec::new(),
        cluster,
        region,
        hostlist_limit,
        aws,
        slurm,
        state_dir,
        log,
        run,
        store,
        publish,
        parallelcluster,
        clustermgtd: daemons.clustermgtd,
        fleet: daemons.fleet,
        computemgtd: daemons.computemgtd,
        groups,
        static_nodes,
        node_group,
        warnings: Vec::new(),
    }
}

/// A checked string that must be there.
pub(super) fn required(
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
        dynamodb_endpoint_url: section.checked("dynamodb_endpoint_url", NONE, "\"https://dynamodb.example.com\"", check_url),
        route53_endpoint_url: section.checked("route53_endpoint_url", NONE, "\"https://route53.example.com\"", check_url),
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
        sudo: section.absolute_path("sudo", None, "\"/usr/bin/sudo\""),
        conf: section.absolute_path("conf", Some("/etc/slurm/slurm.conf"), "\"/etc/slurm/slurm.conf\"").unwrap_or_default(),
        node_address: section.choice("node_address", NodeAddress::Scontrol, &NODE_ADDRESS),
        nodes_per_call: size(section.integer("nodes_per_call", 10_000, 1..=100_000)),
        // slurmctld down costs scontrol 10 s by itself (slurm-facts); more than that and something else is wrong.
        command_timeout: section.duration("command_timeout", 20 * SECOND, INSTANT..=600 * SECOND),
    };
    section.finish();
    settings
}

fn state(section: &Section<'_, '_>) -> (PathBuf, StoreKind) {
    #[derive(Clone, Copy, PartialEq)]
    enum Store {
        File,
        DynamoDb,
    }
    const KEY: &str = "table";
    let dir = section.absolute_path("dir", Some("/var/lib/slurm-ec2"), "\"/var/lib/slurm-ec2\"");
    let store = section.choice("store", Store::File, &[("file", Store::File), ("dynamodb", Store::DynamoDb)]);
    let table = section.checked(KEY, NONE, "\"slurm-ec2-hpc\"", check_table);
    match store {
        Store::DynamoDb if section.key_span(KEY).is_none() => section.require(KEY, "add table = \"slurm-ec2-hpc\""),
        Store::File if !section.is_bad("store") => {
            if let Some(span) = section.key_span(KEY) {
                section.mistake(
                    KEY,
                    span,
                    "table is for a mapping that is kept in DynamoDB",
                    "add store = \"dynamodb\", or drop table",
                );
            }
        }
        _ => {}
    }
    section.finish();
    let store = match store {
        Store::File => StoreKind::File,
        Store::DynamoDb => StoreKind::DynamoDb { table: table.unwrap_or_default() },
    };
    (dir.unwrap_or_default(), store)
}

/// Both tables have the node's name as their key, so one would overwrite the other's items.
fn two_tables(section: &Section<'_, '_>, store: &StoreKind, publish: &PublishSettings) {
    if let (StoreKind::DynamoDb { table }, Some(nodes), Some(span)) = (store, &publish.node_table, section.value_span("table"))
        && *table == nodes.table
    {
        section.mistake(
            "table",
            span,
            "table is the same as in [node_table]: its items would be overwritten",
            "make a table of its own for the mapping",
        );
    }
}

fn log(section: &Section<'_, '_>, parallelcluster: bool) -> LogSettings {
    let settings = LogSettings {
        dir: section.absolute_path("dir", Some("/var/log/slurm-ec2"), "\"/var/log/slurm-ec2\"").unwrap_or_default(),
        file: None,
        level: section.choice("level", Level::INFO, &LEVELS),
        format: section.choice("format", if parallelcluster { LogFormat::ParallelCluster } else { LogFormat::Text }, &FORMATS),
        events: EventsFile::Usual,
    };
    section.finish();
    settings
}

/// A number whose range has been checked, as a size.
pub(super) fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
