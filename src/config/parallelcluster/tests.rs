//! From ParallelCluster's files to settings, field by field.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::config::file::ConfigError;
use crate::config::settings::{
    Dns, LogFormat, NodeAddress, NodeTable, ParallelCluster, PublishSettings, Settings, SlurmSettings, StoreKind,
};
use crate::config::source::{Place, load};
use crate::model::policy::{Daemon, LaunchPolicy, OnExisting, RunPolicy, ScaleBy, Strategy};
use crate::model::recipe::{Api, Capacity, Group, GroupNodes, LaunchTemplate, Recipe};

pub(super) const RESUME: &str = include_str!("../../../tests/data/parallelcluster/parallelcluster_slurm_resume.conf");
const ALL: &str = include_str!("../../../tests/data/parallelcluster/parallelcluster_slurm_resume.all-options.conf");
pub(super) const SUSPEND: &str = include_str!("../../../tests/data/parallelcluster/parallelcluster_slurm_suspend.conf");
pub(super) const FLEET: &str = include_str!("../../../tests/data/parallelcluster/fleet-config.json");
const RUN_INSTANCES: &str = include_str!("../../../tests/data/parallelcluster/run_instances_overrides.json");
const CREATE_FLEET: &str = include_str!("../../../tests/data/parallelcluster/create_fleet_overrides.json");

/// A head node's folder of files.
pub(super) struct Head {
    pub(super) dir: TempDir,
}

impl Head {
    /// The fixture: fleet, overrides, and the three program files whose JSON paths lead here.
    pub(super) fn new() -> Self {
        let head = Self { dir: tempfile::tempdir().unwrap() };
        head.write("fleet-config.json", FLEET);
        head.write("run_instances_overrides.json", RUN_INSTANCES);
        head.write("create_fleet_overrides.json", CREATE_FLEET);
        head.resume(RESUME);
        head.write("parallelcluster_slurm_suspend.conf", SUSPEND);
        head
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Writes slurm_resume's file, with the JSON files of this folder.
    pub(super) fn resume(&self, text: &str) {
        let own: Vec<&str> = text.lines().filter(|line| !line.contains(".json")).collect();
        let root = self.dir.path().display();
        let paths = format!(
            "[slurm_resume]\nfleet_config_file = {root}/fleet-config.json\n\
             run_instances_overrides = {root}/run_instances_overrides.json\n\
             create_fleet_overrides = {root}/create_fleet_overrides.json"
        );
        self.write("parallelcluster_slurm_resume.conf", &(own.join("\n").replacen("[slurm_resume]", &paths, 1) + "\n"));
    }

    pub(super) fn place(&self, name: &str) -> Place {
        Place {
            path: self.path(name),
            slurm_bin_dir: None,
            ca_bundle: None,
            home: None,
            pki_dir: None,
            sudo: None,
            plugin_dir: self.path("nowhere"),
            is_copy: false,
        }
    }

    pub(super) fn load(&self) -> Settings {
        load("slurm_resume", &self.place("parallelcluster_slurm_resume.conf")).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Each mistake as `file:line: message | help`.
    pub(super) fn mistakes(&self, program: &str, name: &str) -> Vec<String> {
        let Err(ConfigError::Mistakes(mistakes)) = load(program, &self.place(name)) else { panic!("no mistakes") };
        let file =
            |path: &Path| path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into());
        mistakes.iter().map(|m| format!("{}:{}: {} | {}", file(&m.path), m.line, m.message, m.help)).collect()
    }
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn group<'s>(settings: &'s Settings, node: &str) -> &'s Group {
    settings.group_of(node).unwrap_or_else(|| panic!("{node}: {}", settings.why_not(node)))
}

#[test]
fn the_files_of_a_head_node_field_by_field() {
    let head = Head::new();
    let settings = head.load();
    assert_eq!(settings.path, head.path("parallelcluster_slurm_resume.conf"));
    assert_eq!((settings.cluster.as_str(), settings.region.as_str()), ("orchard", "eu-central-1"));
    assert_eq!(
        settings.slurm,
        SlurmSettings {
            bin_dir: "/opt/slurm/bin".into(),
            conf: "/opt/slurm/etc/slurm.conf".into(),
            sudo: None,
            node_address: NodeAddress::Scontrol,
            nodes_per_call: 10_000,
            command_timeout: Duration::from_secs(20),
        }
    );
    assert_eq!(
        settings.publish,
        PublishSettings {
            batch_size: 500,
            node_table: Some(NodeTable {
                table: "parallelcluster-slurm-orchard".into(),
                head_node_private_ip: "10.40.0.17".into(),
                head_node_hostname: "ip-10-40-0-17.eu-central-1.compute.internal".into(),
            }),
            dns: Some(Dns { hosted_zone: "Z0PRIVATE1ORCHARD".into(), domain: "orchard.pcluster.".into() }),
            hostname: false,
        }
    );
    assert_eq!(
        settings.parallelcluster,
        Some(ParallelCluster {
            heartbeat: "/opt/slurm/etc/pcluster/.slurm_plugin/clustermgtd_heartbeat".into(),
            heartbeat_timeout: Duration::from_secs(300),
            instance_id: "i-0a11e57000c0ffee1".into(),
        })
    );
    let RunPolicy { scale_by, strategy, requeue_now, terminate_batch_size, bucket, deadline, daemon, address_timeout, .. } =
        settings.run.clone();
    assert_eq!((scale_by, strategy, daemon), (ScaleBy::Job, Strategy::AllOrNothing, Daemon::Yes));
    assert_eq!((requeue_now, terminate_batch_size), (false, 1000));
    assert_eq!((deadline, address_timeout), (Duration::from_secs(120), Duration::from_secs(90)));
    let bucket = bucket.unwrap();
    assert_eq!((bucket.burst, bucket.per_second), (5, 2.0));
    assert_eq!((settings.aws.attempts, settings.aws.proxy.clone()), (5, None));
    assert_eq!((settings.aws.endpoint_url.clone(), settings.aws.ca_bundle.clone()), (None, None));
    assert_eq!(settings.store, StoreKind::File);
    assert_eq!(settings.state_dir, PathBuf::from("/var/lib/slurm-ec2"));
    assert_eq!((settings.log.dir.clone(), settings.log.file.clone()), ("/var/log/parallelcluster".into(), None));
    assert_eq!((settings.log.level, settings.log.format), (tracing::Level::INFO, LogFormat::ParallelCluster));
    assert_eq!(settings.warnings, Vec::<String>::new());
    assert_eq!(settings.broken(), Vec::<&str>::new());
}

#[test]
fn every_key_has_its_effect() {
    let head = Head::new();
    head.write(
        "logging.conf",
        "[logger_root]\nlevel = DEBUG\nhandlers = f\n[handler_f]\nclass = FileHandler\nargs = ('/logs/r.txt',)\n",
    );
    let logging = head.path("logging.conf");
    head.resume(&ALL.replace("/etc/parallelcluster/slurm_plugin/resume-logging.conf", &logging.display().to_string()));
    let settings = head.load();
    assert_eq!(settings.aws.proxy.as_deref(), Some("http://10.40.0.9:3128"));
    assert_eq!(settings.aws.attempts, 5);
    assert!(settings.publish.hostname);
    assert_eq!(settings.publish.batch_size, 300);
    assert_eq!(settings.parallelcluster.as_ref().unwrap().heartbeat_timeout, Duration::from_secs(240));
    assert_eq!(settings.run.terminate_batch_size, 400);
    assert_eq!((settings.run.scale_by, settings.run.strategy), (ScaleBy::Job, Strategy::GreedyAllOrNothing));
    assert_eq!(settings.run.address_timeout, Duration::from_secs(45));
    assert_eq!((settings.log.dir.clone(), settings.log.file.clone()), ("/logs".into(), Some("/logs/r.txt".into())));
    assert_eq!(settings.log.level, tracing::Level::DEBUG);
    let launch = &group(&settings, "apple-dy-core-1").launch;
    assert_eq!((launch.strategy, launch.batch_size), (Strategy::GreedyAllOrNothing, 250));
    assert_eq!(settings.warnings, Vec::<String>::new());

    head.resume(
        &ALL.replace("update_node_address = yes", "update_node_address = no").replace("boto3_retry = 4", "boto3_retry = 7"),
    );
    let settings = head.load();
    assert_eq!(settings.slurm.node_address, NodeAddress::None);
    assert_eq!(settings.publish, PublishSettings { batch_size: 300, node_table: None, dns: None, hostname: false });
    assert_eq!(settings.aws.attempts, 8);
    // The logging configuration that ALL names is not there.
    assert!(settings.warnings[0].contains("resume-logging.conf is not used"), "{:?}", settings.warnings);
}

#[test]
fn a_group_for_each_compute_resource() {
    let head = Head::new();
    let settings = head.load();
    let names: Vec<&str> = settings.groups.iter().map(|group| group.name.as_str()).collect();
    assert_eq!(names, ["apple/core", "apple/peel-small", "gpu/block", "pear-2/mixod", "pear-2/mixspot", "pear-2/onetype2az"]);
    let launch = LaunchPolicy {
        strategy: Strategy::AllOrNothing,
        batch_size: 500,
        on_existing: OnExisting::Replace,
        node_tags: false,
        ..settings.groups[0].launch.clone()
    };
    let overrides = |text: &str, queue: &str, name: &str| {
        serde_json::from_str::<serde_json::Value>(text).unwrap()[queue][name].as_object().cloned().unwrap_or_default()
    };
    let expected = |queue: &str, name: &str, recipe: Recipe| Group {
        name: format!("{queue}/{name}"),
        nodes: GroupNodes::Queue { queue: queue.into(), resource: name.into() },
        recipe: Recipe {
            launch_template: LaunchTemplate {
                name: Some(format!("orchard-{queue}-{name}")),
                id: None,
                version: "$Latest".into(),
            },
            ..recipe
        },
        fallbacks: Vec::new(),
        launch: launch.clone(),
        capacity_reservation: None,
    };
    let template = Recipe {
        api: Api::RunInstances,
        launch_template: LaunchTemplate { name: None, id: None, version: String::new() },
        instance_types: Vec::new(),
        subnets: Vec::new(),
        capacity: Capacity::Template,
        allocation_strategy: None,
        max_price: None,
        tags: Default::default(),
        tag_instances_only: true,
        overrides: serde_json::Map::new(),
    };
    assert_eq!(group(&settings, "apple-st-core-2"), &expected("apple", "core", template.clone()));
    let peel = Recipe { overrides: overrides(RUN_INSTANCES, "apple", "peel-small"), ..template.clone() };
    assert_eq!(peel.overrides.len(), 3);
    assert_eq!(group(&settings, "apple-dy-peel-small-64"), &expected("apple", "peel-small", peel));
    // The block is in the launch template.
    let block = Group { capacity_reservation: Some("cr-0fee1900d00000042".into()), ..expected("gpu", "block", template.clone()) };
    assert_eq!(group(&settings, "gpu-st-block-4"), &block);
    let fleet = |capacity, types: &[&str], subnets: &[&str], strategy: &str| Recipe {
        api: Api::CreateFleet,
        capacity,
        instance_types: strings(types),
        subnets: strings(subnets),
        allocation_strategy: Some(strategy.into()),
        ..template.clone()
    };
    let (a, b) = ("subnet-0aaa000000000001a", "subnet-0bbb000000000002b");
    let spot = fleet(Capacity::Spot, &["c5.4xlarge", "c5a.4xlarge", "c5d.4xlarge"], &[a], "price-capacity-optimized");
    let spot = Recipe { max_price: Some(0.41), ..spot };
    assert_eq!(group(&settings, "pear-2-dy-mixspot-1"), &expected("pear-2", "mixspot", spot));
    let od = fleet(Capacity::OnDemand, &["m5.8xlarge", "m5n.8xlarge"], &[a, b], "lowest-price");
    let od = Recipe { overrides: overrides(CREATE_FLEET, "pear-2", "mixod"), ..od };
    assert_eq!(od.overrides.len(), 1);
    assert_eq!(group(&settings, "pear-2-dy-mixod-1"), &expected("pear-2", "mixod", od));
    let one = fleet(Capacity::OnDemand, &["r6i.4xlarge"], &[a, b], "prioritized");
    assert_eq!(group(&settings, "pear-2-dy-onetype2az-3"), &expected("pear-2", "onetype2az", one));
}

#[test]
fn suspend_takes_the_rest_from_the_file_beside_its_own() {
    let head = Head::new();
    head.write(
        "parallelcluster_slurm_suspend.conf",
        "[slurm_suspend]\nclustermgtd_heartbeat_file_path = /other\nclustermgtd_timeout = 7\n",
    );
    for program in ["slurm_suspend", "slurm_resume_fail"] {
        let settings = load(program, &head.place("parallelcluster_slurm_suspend.conf")).unwrap();
        assert_eq!(
            settings.parallelcluster,
            Some(ParallelCluster {
                heartbeat: "/other".into(),
                heartbeat_timeout: Duration::from_secs(7),
                instance_id: "i-0a11e57000c0ffee1".into(),
            })
        );
        assert_eq!((settings.cluster.as_str(), settings.groups.len()), ("orchard", 6));
    }
    // Where nothing is beside it, the usual folder is looked into.
    let far = tempfile::tempdir().unwrap();
    fs::copy(head.path("parallelcluster_slurm_suspend.conf"), far.path().join("own.conf")).unwrap();
    let place = Place { path: far.path().join("own.conf"), plugin_dir: head.dir.path().to_owned(), ..head.place("x") };
    assert_eq!(load("slurm_suspend", &place).unwrap().cluster, "orchard");
}

#[test]
fn one_file_may_have_both_sections() {
    let head = Head::new();
    head.resume(&format!("{RESUME}[slurm_suspend]\nclustermgtd_heartbeat_file_path = /s\n"));
    let heartbeat = |program| {
        let settings = load(program, &head.place("parallelcluster_slurm_resume.conf")).unwrap();
        settings.parallelcluster.unwrap().heartbeat
    };
    assert_eq!(heartbeat("slurm_suspend"), PathBuf::from("/s"));
    assert!(heartbeat("slurm_resume").ends_with("clustermgtd_heartbeat"));
    // Without a section of its own slurm_suspend goes by slurm_resume's.
    head.resume(RESUME);
    assert!(heartbeat("slurm_suspend").ends_with("clustermgtd_heartbeat"));
}

#[test]
fn inherited_interpolated_and_unknown_keys() {
    let head = Head::new();
    let text = RESUME
        .replace("region = eu-central-1", "Region : %(Where)s")
        .replace("scaling_strategy = all-or-nothing", "scaling_strategy = Best-Effort\nnext_years_key = 7%");
    head.resume(&format!("[DEFAULT]\nwhere = eu-north-1\nboto3_retry = 6\n{text}[somebody_elses]\nkey = value\n"));
    let settings = head.load();
    assert_eq!((settings.region.as_str(), settings.aws.attempts), ("eu-north-1", 7));
    assert_eq!(settings.run.strategy, Strategy::BestEffort);
    assert_eq!(group(&settings, "apple-dy-core-1").launch.strategy, Strategy::BestEffort);
}

#[test]
fn values_that_switch_something_off() {
    let head = Head::new();
    for (from, to, dns, warned) in [
        ("hosted_zone = Z0PRIVATE1ORCHARD", "hosted_zone =", false, true),
        ("dns_domain = orchard.pcluster.", "dns_domain =", false, true),
        ("hosted_zone = Z0PRIVATE1ORCHARD\ndns_domain = orchard.pcluster.", "hosted_zone =\ndns_domain =", false, false),
        ("hosted_zone = Z0PRIVATE1ORCHARD\ndns_domain = orchard.pcluster.", "", false, false),
        ("hosted_zone = Z", "hosted_zone = /hostedzone/Z", true, false),
    ] {
        head.resume(&RESUME.replace(from, to));
        let settings = head.load();
        assert_eq!((settings.publish.dns.is_some(), !settings.warnings.is_empty()), (dns, warned), "{to}");
    }
    for (proxy, expected) in [("NONE", None), ("none", None), ("", None), ("proxy:3128", Some("http://proxy:3128"))] {
        head.resume(&RESUME.replace("proxy = NONE", &format!("proxy = {proxy}")));
        assert_eq!(head.load().aws.proxy.as_deref(), expected);
    }
    head.resume(&RESUME.replace("scaling_strategy", "job_level_scaling = FALSE\nscaling_strategy"));
    assert_eq!(head.load().run.scale_by, ScaleBy::Call);
}

#[test]
fn p06_where_the_ca_bundle_is() {
    let head = Head::new();
    fs::create_dir_all(head.path("pki/eu-central-1/certs")).unwrap();
    head.write("pki/eu-central-1/certs/ca-bundle.pem", "");
    let name = "parallelcluster_slurm_resume.conf";
    let place = Place { pki_dir: Some(head.path("pki")), ..head.place(name) };
    let bundle = |place: &Place| load("slurm_resume", place).unwrap().aws.ca_bundle;
    assert_eq!(bundle(&place), Some(head.path("pki/eu-central-1/certs/ca-bundle.pem")));
    fs::create_dir(head.path(".aws")).unwrap();
    head.write(".aws/config", "[default]\nca_bundle = /home.pem\n");
    let place = Place { home: Some(head.dir.path().to_owned()), ..place };
    assert_eq!(bundle(&place), Some("/home.pem".into()));
    let place = Place { ca_bundle: Some("/environment.pem".into()), ..place };
    assert_eq!(bundle(&place), Some("/environment.pem".into()));
    // slurm_suspend takes it from the same section.
    head.resume(&format!("{RESUME}[slurm_ec2]\nca_bundle = /ours.pem\n"));
    assert_eq!(bundle(&place), Some("/ours.pem".into()));
    let suspend = Place { path: head.path("parallelcluster_slurm_suspend.conf"), ..place };
    assert_eq!(load("slurm_suspend", &suspend).unwrap().aws.ca_bundle, Some("/ours.pem".into()));
}

#[test]
fn an_unknown_strategy_counts_as_all_or_nothing_and_is_warned_of() {
    let head = Head::new();
    head.resume(&RESUME.replace("= all-or-nothing", "= bogus"));
    let settings = head.load();
    assert_eq!(settings.run.strategy, Strategy::AllOrNothing);
    assert!(settings.warnings[0].contains("scaling_strategy \"bogus\" is unknown"), "{:?}", settings.warnings);
}

#[test]
fn environment_and_user_decide_the_rest() {
    let head = Head::new();
    let place = Place {
        slurm_bin_dir: Some("/sw/slurm/bin".into()),
        ca_bundle: Some("/etc/iso.pem".into()),
        sudo: Some("/usr/bin/sudo".into()),
        ..head.place("parallelcluster_slurm_resume.conf")
    };
    let settings = load("slurm_resume", &place).unwrap();
    assert_eq!(settings.slurm.bin_dir, PathBuf::from("/sw/slurm/bin"));
    assert_eq!(settings.slurm.conf, PathBuf::from("/sw/slurm/etc/slurm.conf"));
    assert_eq!(settings.slurm.sudo, Some("/usr/bin/sudo".into()));
    assert_eq!(settings.aws.ca_bundle, Some("/etc/iso.pem".into()));
    let place = Place { slurm_bin_dir: Some("slurm/bin".into()), ..place };
    let error = load("slurm_resume", &place).unwrap_err().to_string();
    assert!(error.starts_with("$SLURM_BINARIES_DIR:1:1: \"slurm/bin\" is no absolute path"), "{error}");
}

#[test]
fn our_own_section() {
    let head = Head::new();
    let ours = "[slurm_ec2]\nstate_dir = /srv/state\nlog_dir = /srv/log\nendpoint_url = http://127.0.0.1:5000\n\
                request_bucket = off\nmapping_store = dynamodb\nmapping_table = orchard-mapping\ndeadline = 200\n";
    head.resume(&format!("{RESUME}{ours}"));
    let settings = head.load();
    assert_eq!(settings.state_dir, PathBuf::from("/srv/state"));
    assert_eq!(settings.log.dir, PathBuf::from("/srv/log"));
    let url = Some("http://127.0.0.1:5000");
    let aws = &settings.aws;
    for endpoint in [&aws.endpoint_url, &aws.dynamodb_endpoint_url, &aws.route53_endpoint_url] {
        assert_eq!(endpoint.as_deref(), url);
    }
    assert_eq!(settings.run.bucket, None);
    assert_eq!(settings.store, StoreKind::DynamoDb { table: "orchard-mapping".into() });
    assert_eq!(settings.run.deadline, Duration::from_secs(200));
}
