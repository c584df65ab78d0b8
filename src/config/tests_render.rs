//! What is written means the same when it is read again.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::file::{parse, read};
use super::render::toml;
use super::settings::{EventsFile, LogSettings, NodeIndex, Settings};
use super::source::{Place, load};
use super::tests::{LEAST, good};
use super::tests_page::examples;

/// Everything but the path, the index and what the file has no key for.
fn meaning(settings: &Settings) -> String {
    let same = Settings {
        path: PathBuf::new(),
        files: Vec::new(),
        node_group: NodeIndex::default(),
        warnings: Vec::new(),
        log: LogSettings { file: None, events: EventsFile::Usual, ..settings.log.clone() },
        ..settings.clone()
    };
    format!("{same:#?}")
}

fn nodes(settings: &Settings) -> Vec<(String, Option<String>)> {
    let mut names = settings.node_group.names();
    names.extend(["apple-dy-core-1", "apple-st-core-2", "q1-dy-c5-1", "nowhere"].map(str::to_owned));
    names.sort();
    names.into_iter().map(|node| (node.clone(), settings.group_of(&node).map(|group| group.name.clone()))).collect()
}

/// The text of the settings, which has been read again.
fn round_trip(settings: &Settings) -> String {
    let text = toml(settings);
    let again = parse(Path::new("again.toml"), &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(meaning(&again), meaning(settings), "{text}");
    assert_eq!(nodes(&again), nodes(settings), "{text}");
    assert_eq!(toml(&again), text, "written again");
    text
}

#[test]
fn the_examples_of_the_page() {
    // The last one is a compute node's, which nobody writes from anything.
    for example in &examples()[..3] {
        round_trip(&good(example));
    }
}

#[test]
fn the_least_stays_the_least() {
    assert_eq!(
        round_trip(&good(LEAST)),
        "# docs/configuration.md says what each key means and what holds where it is absent.\n\n\
         cluster = \"hpc\"\nregion = \"eu-west-1\"\n\n\
         [[group]]\nname = \"c5\"\nnodes = \"c5-[1-10]\"\nlaunch_template = \"hpc-c5\"\n"
    );
}

#[test]
fn what_all_groups_say_is_said_once() {
    let group =
        |name: &str, more: &str| format!("[[group]]\nname = {name:?}\nnodes = {name:?}\nlaunch_template = \"abc\"\n{more}");
    let text = |a: &str, b: &str| format!("cluster = \"o\"\nregion = \"eu-west-1\"\n{}{}", group("a", a), group("b", b));
    let written =
        round_trip(&good(&text("batch_size = 7\nnode_tags = true\n", "batch_size = 7\nstrategy = \"all-or-nothing\"\n")));
    assert!(written.contains("[launch]\nbatch_size = 7\n"), "{written}");
    assert!(written.contains("\"abc\"\nnode_tags = true\n") && written.ends_with("strategy = \"all-or-nothing\"\n"), "{written}");
    let written = round_trip(&good(&text("backoff_quota = \"1500ms\"\n", "backoff_quota = \"90s 5us\"\n")));
    assert!(written.contains("backoff_quota = \"1500ms\"") && written.contains("backoff_quota = \"1m 30s 5us\""), "{written}");
}

#[test]
fn odd_texts_are_written_as_toml_has_them() {
    let written = round_trip(&good(&format!(
        "{LEAST}tags = {{ \"a.b c\" = 'x \"y\" \\z', \"é'\" = \"\", plain = \"#no\" }}\n\
         overrides = {{ UserData = \"a\\n\\\"b\\\"\\t\\u0001\", EbsOptimized = true, MinCount = -0, CreditSpecification = {{ CpuCredits = 'a\"b' }} }}\n"
    )));
    assert!(written.contains("tags = {") && !written.contains("[group.tags]"), "{written}");
}

#[test]
fn fallbacks_say_what_differs_from_the_group() {
    let written = round_trip(&good(&format!(
        "{LEAST}api = \"create-fleet\"\ncapacity = \"spot\"\nmax_price = 0.5\noverrides = {{ Context = \"x\" }}\n\
         [[group.fallback]]\ncapacity = \"on-demand\"\n\
         [[group.fallback]]\noverrides = {{}}\ninstance_types = [\"c5.large\"]\n\
         [[group.fallback]]\napi = \"run-instances\"\nmax_price = 0.5\nlaunch_template = {{ id = \"lt-0123456789abcdef0\", version = 3 }}\n"
    )));
    assert!(written.contains("[[group.fallback]]\ncapacity = \"on-demand\"\n\n"), "{written}");
    assert!(written.contains("instance_types = [\"c5.large\"]\noverrides = {}\n"), "{written}");
}

#[test]
fn parallelclusters_files() {
    let folder = tempfile::tempdir().unwrap();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/parallelcluster");
    for name in ["parallelcluster_slurm_resume.conf", "parallelcluster_slurm_resume.all-options.conf"] {
        let text = fs::read_to_string(data.join(name)).unwrap();
        let own: Vec<&str> = text.lines().filter(|line| !line.contains(".json")).collect();
        let mut files = String::from("[slurm_resume]\n");
        for (key, file) in [
            ("fleet_config_file", "fleet-config.json"),
            ("run_instances_overrides", "run_instances_overrides.json"),
            ("create_fleet_overrides", "create_fleet_overrides.json"),
        ] {
            files.push_str(&format!("{key} = {}\n", data.join(file).display()));
        }
        let path = folder.path().join(name);
        fs::write(&path, own.join("\n").replacen("[slurm_resume]", &files, 1)).unwrap();
        let sudo = Some("/usr/bin/sudo".into());
        let place = Place {
            path,
            slurm_bin_dir: None,
            ca_bundle: None,
            home: None,
            pki_dir: None,
            sudo,
            plugin_dir: data.clone(),
            is_copy: false,
        };
        let settings = load("slurm_resume", &place).unwrap_or_else(|error| panic!("{error}"));
        assert!(settings.groups.len() > 1 && settings.groups.iter().any(|group| !group.recipe.overrides.is_empty()));
        let text = round_trip(&settings);
        assert!(text.contains("[parallelcluster]\nheartbeat = ") && text.contains("[node_table]\n"), "{text}");
        assert!(!text.contains("daemon =") && !text.contains("format ="), "defaults of such a head node: {text}");
    }
}

#[test]
fn parallelclusters_daemons() {
    let folder = tempfile::tempdir().unwrap();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/parallelcluster");
    for entry in fs::read_dir(&data).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let path = folder.path().join("parallelcluster_slurm_resume.conf");
    let plugin_dir = folder.path().to_owned();
    let place =
        Place { path, slurm_bin_dir: None, ca_bundle: None, home: None, pki_dir: None, sudo: None, plugin_dir, is_copy: true };
    let load = || load("slurm-ec2", &place).unwrap_or_else(|error| panic!("{error}"));
    let text = round_trip(&load());
    for line in [
        "[clustermgtd]",
        "partitions = [\"apple\", \"gpu\", \"pear-2\"]",
        "replacement_timeout = \"25m\"",
        "timeout = \"15m\"",
        "status_file = \"/opt/parallelcluster/shared/computefleet-status.json\"",
        "capacity_reservation_id = \"cr-0fee1900d00000042\"",
    ] {
        assert!(text.lines().any(|written| written == line), "{line}: {text}");
    }
    assert!(!text.contains("shortage_timeout") && !text.contains("\ntable = \"parallelcluster-orchard\""), "usual there: {text}");
    fs::copy(data.join("parallelcluster_clustermgtd.all-options.conf"), folder.path().join("parallelcluster_clustermgtd.conf"))
        .unwrap();
    let text = round_trip(&load());
    for line in ["heartbeat = \"/run/orchard/heartbeat\"", "shortage_timeout = \"420500ms\"", "protected_failure_count = 6"] {
        assert!(text.lines().any(|written| written == line), "{line}: {text}");
    }
}

#[test]
fn what_is_off_stays_off() {
    let off = "[clustermgtd]\nprotected_failure_count = 0\nconsoles_most = 0\nshortage_timeout = \"0s\"\n";
    let written = round_trip(&good(&LEAST.replace("[[group]]", &format!("{off}[[group]]"))));
    assert!(written.contains("protected_failure_count = 0\nconsoles_most = 0\n"), "{written}");
}

#[test]
fn static_nodes_and_blocks() {
    let overrides =
        "overrides = { CapacityReservationSpecification = { CapacityReservationTarget = { CapacityReservationId = \"cr-1\" } } }";
    let second = "[[group]]\nname = \"g\"\nnodes = \"g-1,c5-[11-12]\"\nstatic_nodes = \"c5-12\"\nlaunch_template = \"abc\"\n";
    let written = round_trip(&good(&format!(
        "{LEAST}static_nodes = \"c5-3,c5-[1-2]\"\n{second}capacity = \"capacity-block\"\n{overrides}\n"
    )));
    assert!(written.contains("static_nodes = \"c5-[1-3]\"") && written.contains("static_nodes = \"c5-12\""), "{written}");
    assert!(!written.contains("capacity_reservation_id"), "the parameters name it: {written}");
    let named = round_trip(&good(&format!("{LEAST}capacity = \"template\"\ncapacity_reservation_id = \"cr-2\"\n")));
    assert!(named.contains("capacity_reservation_id = \"cr-2\""), "{named}");
}

/// A value for some keys of the file, as TOML.
fn launch_lines() -> impl Strategy<Value = String> {
    let words = |key: &'static str, words: &'static [&'static str]| {
        proptest::option::of(proptest::sample::select(words))
            .prop_map(move |word| word.map_or(String::new(), |word| format!("{key} = {word:?}\n")))
    };
    let time = |key: &'static str| {
        proptest::option::of(100u64..400_000).prop_map(move |ms| ms.map_or(String::new(), |ms| format!("{key} = \"{ms}ms\"\n")))
    };
    (
        words("strategy", &["best-effort", "all-or-nothing", "greedy-all-or-nothing"]),
        words("scale_by", &["batch", "call", "job"]),
        words("on_existing", &["replace", "reboot"]),
        time("backoff_capacity"),
        time("address_timeout"),
        proptest::option::of(1u32..1000),
        proptest::option::of(0.001f64..1000.0),
    )
        .prop_map(|(strategy, scale, existing, backoff, address, batch, rate)| {
            let batch = batch.map_or(String::new(), |batch| format!("batch_size = {batch}\n"));
            let rate = rate.map_or(String::new(), |rate| format!("request_bucket = {{ per_second = {rate:?} }}\n"));
            format!("{strategy}{scale}{existing}{backoff}{address}{batch}{rate}")
        })
}

fn group_lines() -> impl Strategy<Value = String> {
    let tag = ("[a-zA-Z0-9 .'\"\\\\=é]{1,20}", "[ -~é\\\\\"]{0,20}");
    (
        proptest::option::of(1u32..1000),
        proptest::option::of(any::<bool>()),
        proptest::collection::btree_map(tag.0, tag.1, 0..4),
        proptest::collection::vec(proptest::sample::select(&["c5.large", "c6i.large", "m5.xlarge"][..]), 0..2),
        proptest::option::of(0.01f64..5.0),
    )
        .prop_map(|(batch, tags, pairs, types, price)| {
            let mut table = toml::Table::new();
            if let Some(batch) = batch {
                table.insert("batch_size".into(), i64::from(batch).into());
            }
            if let Some(tags) = tags {
                table.insert("node_tags".into(), tags.into());
            }
            if let Some(price) = price {
                table.insert("max_price".into(), price.into());
                table.insert("capacity".into(), "spot".into());
            }
            let types: Vec<toml::Value> = types.into_iter().map(toml::Value::from).collect();
            table.insert("instance_types".into(), types.into());
            table.insert("tags".into(), toml::Value::Table(pairs.into_iter().map(|(key, value)| (key, value.into())).collect()));
            toml::to_string(&table).unwrap()
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_file_that_is_accepted(launch in launch_lines(), groups in proptest::collection::vec(group_lines(), 1..4)) {
        let mut text = format!("cluster = \"hpc\"\nregion = \"eu-west-1\"\n[launch]\n{launch}");
        for (at, group) in groups.iter().enumerate() {
            let (keys, tags) = group.split_once("[tags]").unwrap_or((group, ""));
            text.push_str(&format!("[[group]]\nname = \"g{at}\"\nnodes = \"g{at}-[1-3]\"\nlaunch_template = \"abc\"\n{keys}[group.tags]{tags}\n"));
        }
        let (settings, mistakes, _) = read(Path::new("x.toml"), &text);
        prop_assert!(mistakes.is_empty(), "{mistakes:?}\n{text}");
        round_trip(&settings);
    }
}
