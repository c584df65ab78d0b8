//! The whole way from text to settings or mistakes.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::Duration;

use super::file::{ConfigError, parse, text, unreadable};
use super::settings::{LogFormat, NodeAddress, Settings};
use super::tests_page::examples;
use crate::model::policy::{Bucket, Daemon, OnExisting, Strategy};
use crate::model::recipe::{Api, Capacity};

/// The least that is accepted; `group` goes on in the last group.
pub(super) const LEAST: &str =
    "cluster = \"hpc\"\nregion = \"eu-west-1\"\n[[group]]\nname = \"c5\"\nnodes = \"c5-[1-10]\"\nlaunch_template = \"hpc-c5\"\n";

fn load(path: &Path) -> Result<Settings, ConfigError> {
    text(path).and_then(|text| parse(path, &text))
}

pub(super) fn good(text: &str) -> Settings {
    parse(Path::new("x.toml"), text).unwrap_or_else(|error| panic!("{error}"))
}

/// Each mistake as `line:column: message | help`.
pub(super) fn mistakes(text: &str) -> Vec<String> {
    let Err(ConfigError::Mistakes(mistakes)) = parse(Path::new("x.toml"), text) else { panic!("no mistake in {text}") };
    mistakes.iter().map(|m| format!("{}:{}: {} | {}", m.line, m.column, m.message, m.help)).collect()
}

/// What is wrong with `lines` in the group of `LEAST`; line 7 is their first.
pub(super) fn in_group(lines: &str) -> Vec<String> {
    mistakes(&format!("{LEAST}{lines}"))
}

/// What is wrong with `lines` of a section that stands before the group; line 4 is their first.
pub(super) fn in_section(section: &str, lines: &str) -> Vec<String> {
    mistakes(&LEAST.replace("[[group]]", &format!("[{section}]\n{lines}\n[[group]]")))
}

#[test]
fn the_smallest_file_and_every_default() {
    let settings = good(LEAST);
    assert_eq!((settings.cluster.as_str(), settings.region.as_str(), settings.hostlist_limit), ("hpc", "eu-west-1", 1_000_000));
    assert_eq!(settings.slurm.bin_dir, Path::new("/usr/bin"));
    assert_eq!(settings.slurm.conf, Path::new("/etc/slurm/slurm.conf"));
    assert_eq!(settings.slurm.node_address, NodeAddress::Scontrol);
    assert_eq!(settings.state_dir, Path::new("/var/lib/slurm-ec2"));
    assert_eq!(settings.log.dir, Path::new("/var/log/slurm-ec2"));
    assert_eq!((settings.log.level, settings.log.format), (tracing::Level::INFO, LogFormat::Text));
    let run = &settings.run;
    assert_eq!((run.concurrency, run.daemon, run.deadline), (64, Daemon::Auto, Duration::from_secs(120)));
    assert_eq!(run.bucket, Some(Bucket { burst: 5, per_second: 2.0 }));
    assert_eq!(run.address_timeout, Duration::from_secs(90));
    let aws = &settings.aws;
    assert_eq!(
        (aws.attempts, aws.connect_timeout, aws.attempt_timeout, aws.operation_timeout),
        (5, Duration::from_secs(3), Duration::from_secs(60), Duration::from_secs(100))
    );
    assert_eq!((&aws.endpoint_url, &aws.proxy, &aws.ca_bundle), (&None, &None, &None));
    let [group] = settings.groups.as_slice() else { panic!("{:?}", settings.groups) };
    assert_eq!((group.launch.strategy, group.launch.batch_size), (Strategy::BestEffort, 500));
    assert_eq!((group.launch.on_existing, group.launch.node_tags), (OnExisting::Replace, false));
    let backoff = group.launch.backoff;
    assert_eq!(
        (backoff.capacity, backoff.quota, backoff.configuration),
        (Duration::from_mins(10), Duration::from_mins(5), Duration::from_mins(30))
    );
    assert_eq!((group.recipe.api, group.recipe.capacity), (Api::RunInstances, Capacity::OnDemand));
    assert_eq!(group.recipe.launch_template.name.as_deref(), Some("hpc-c5"));
    assert_eq!(group.recipe.launch_template.version, "$Default");
    assert_eq!(settings.group_of("c5-10").unwrap().name, "c5");
    assert!(settings.group_of("c5-11").is_none());
}

#[test]
fn all_mistakes_at_once_each_with_its_place() {
    let text = "\
clustr = \"hpc\"
region = \"eu-west-1a\"
[aws]
ca_bundle = \"certs/ca.pem\"
attempts = 0
[launch]
batch-size = 400
strategy = \"best-efort\"
deadline = 120
[[group]]
name = \"c5\"
nodes = \"c5-[1-10\"
launch_template = \"hpc-c5\"
max_price = 0.5
";
    assert_eq!(
        mistakes(text),
        [
            "1:1: unknown key \"clustr\" at the top of the file | write cluster",
            "1:1: cluster is missing | add cluster = \"hpc\"",
            "2:10: region \"eu-west-1a\" is an availability zone | write its region, \"eu-west-1\"",
            "4:13: ca_bundle \"certs/ca.pem\" is not an absolute path | begin with /, such as \"/etc/pki/tls/certs/ca-bundle.crt\"",
            "5:12: attempts is 0; it must be at least 1 | write a number from 1 to 20, such as attempts = 5",
            "7:1: unknown key \"batch-size\" in [launch] | write batch_size",
            "8:12: strategy is \"best-efort\"; it must be \"best-effort\", \"all-or-nothing\" or \"greedy-all-or-nothing\" | write \"best-effort\"",
            "9:12: deadline must be a duration in quotes, not an integer | give the unit: \"120s\" for seconds, \"120m\" for minutes",
            "12:13: nodes: the bracket opened here is never closed; expected \"]\" after its last number | write a host list such as \"c5-[1-100]\"",
            "14:13: max_price is for spot instances only | add capacity = \"spot\", or drop max_price",
        ]
    );
}

#[test]
fn the_report_shows_file_line_and_caret() {
    let error = parse(Path::new("/etc/x.toml"), &format!("{LEAST}nods = 1\n")).unwrap_err();
    assert_eq!(error.to_string(), "/etc/x.toml:7:1: unknown key \"nods\" in [[group]]\n  nods = 1\n  ^^^^\n  help: write nodes");
}

#[test]
fn unknown_keys_are_told_where_they_belong() {
    assert_eq!(in_section("slurm", "profile = \"x\""), ["4:1: unknown key \"profile\" in [slurm] | profile belongs in [aws]"]);
    assert_eq!(in_group("concurency = 3"), ["7:1: unknown key \"concurency\" in [[group]] | write concurrency in [launch]"]);
    assert_eq!(
        in_section("log", "colour = 1"),
        ["4:1: unknown key \"colour\" in [log] | drop it; the keys in [log] are: dir, format, level"]
    );
    assert_eq!(in_section("loging", ""), ["3:2: unknown key \"loging\" at the top of the file | write log"]);
    assert_eq!(
        in_section("launch", "request_bucket = { brust = 3 }"),
        ["4:20: unknown key \"brust\" in [launch.request_bucket] | write burst"]
    );
}

#[test]
fn a_host_list_is_pointed_into() {
    let with = |nodes: &str| mistakes(&LEAST.replace("\"c5-[1-10]\"", nodes)).remove(0);
    // `nodes = ` is eight characters, so the string's first letter is in column 10.
    assert!(with("\"c5-[3-1]\"").starts_with("5:14: nodes: range 3-1 runs backwards"), "{}", with("\"c5-[3-1]\""));
    assert!(with("'c5-[1-]'").starts_with("5:"), "{}", with("'c5-[1-]'"));
    assert!(with("\"\\u00635-[3-1]\"").starts_with("5:19: "), "an escape counts as written: {}", with("\"\\u00635-[3-1]\""));
    assert!(with("\"\"").contains("names no node"), "{}", with("\"\""));
    assert!(with("[\"a\", \"b\"]").contains("write one host list"), "{}", with("[\"a\", \"b\"]"));
    assert!(with("\"n[1-3],n2\"").contains("nodes names n2 more than once"), "{}", with("\"n[1-3],n2\""));
    assert!(with("\"n[1-1000001]\"").contains("at most 1000000"), "{}", with("\"n[1-1000001]\""));
}

#[test]
fn overlapping_groups_are_named_with_some_nodes() {
    let text = format!("{LEAST}[[group]]\nname = \"all\"\nnodes = \"c5-[6-20]\"\nlaunch_template = \"hpc-all\"\n");
    assert_eq!(
        mistakes(&text),
        [
            "9:9: groups \"c5\" and \"all\" both have c5-6, c5-7, c5-8 and 2 more | a node belongs to one group: take it out of one of them (\"c5\" is in line 5)"
        ]
    );
}

#[test]
fn two_groups_with_one_name() {
    let text = format!("{LEAST}[[group]]\nname = \"c5\"\nnodes = \"d5-[6-20]\"\nlaunch_template = \"hpc-all\"\n");
    assert_eq!(
        mistakes(&text),
        ["8:8: two groups are called \"c5\"; the other is in line 4 | give each group a name of its own"]
    );
}

#[test]
fn what_must_be_there() {
    assert_eq!(
        mistakes(""),
        [
            "1:1: cluster is missing | add cluster = \"hpc\"",
            "1:1: region is missing | add region = \"eu-west-1\"",
            "1:1: group is missing | add a [[group]] section with name, nodes and launch_template; a compute node's own file needs none",
        ]
    );
    let group = mistakes("cluster = \"a\"\nregion = \"eu-west-1\"\n[[group]]\n");
    assert_eq!(group.len(), 3, "{group:?}");
    assert!(group.iter().all(|mistake| mistake.starts_with("3:1: ") && mistake.contains("is missing in [[group]]")), "{group:?}");
    assert_eq!(
        mistakes(&LEAST.replace("[[group]]", "[group]")),
        ["3:1: group must be an array of tables, not a table | write [[group]] with two brackets"]
    );
    assert_eq!(mistakes(&LEAST.replace("\"hpc\"", "\"\"")), ["1:11: cluster is empty | write something like \"hpc\""]);
    assert_eq!(mistakes(&LEAST.replace("\"hpc\"", "\"h*\"")).len(), 1, "a wildcard would match other clusters' tags");
}

#[test]
fn durations() {
    for (text, part) in [
        ("\"5\"", "has no unit"),
        ("\"5x\"", "unknown unit \"x\""),
        ("\"\"", "is empty"),
        ("\"0s\"", "must be at least 1s"),
        ("\"2h\"", "must be at most 1h"),
        ("\"soon\"", "is no duration"),
        ("true", "not a boolean"),
        ("2.5", "not a number"),
    ] {
        let found = in_section("launch", &format!("deadline = {text}"));
        assert!(found.len() == 1 && found[0].contains(part), "{text}: {found:?}");
    }
    assert_eq!(in_section("launch", "deadline = \"5x\"")[0].split(':').nth(1), Some("14"), "the unit is pointed at");
    let settings = good(&LEAST.replace("[[group]]", "[launch]\ndeadline = \"1m 30s\"\nbackoff_quota = \"0s\"\n[[group]]"));
    assert_eq!(settings.run.deadline, Duration::from_secs(90));
    assert_eq!(settings.groups[0].launch.backoff.quota, Duration::ZERO);
}

#[test]
fn c04_minus_one_switches_nothing_off() {
    for line in ["backoff_capacity = -1", "backoff_capacity = \"-1\"", "backoff_capacity = \"-1s\"", "backoff_capacity = -2"] {
        let found = in_section("launch", line);
        assert!(found.len() == 1 && found[0].contains("backoff_capacity = \"0s\""), "{line}: {found:?}");
    }
    for line in ["batch_size = -1", "concurrency = -1", "batch_size = 0", "concurrency = 0", "request_bucket = { burst = 0 }"] {
        let found = in_section("launch", line);
        assert!(found.len() == 1 && found[0].contains("at least 1"), "{line}: {found:?}");
    }
    for line in
        ["request_bucket = { per_second = 0 }", "request_bucket = { per_second = -1.0 }", "request_bucket = { per_second = nan }"]
    {
        assert_eq!(in_section("launch", line).len(), 1, "{line}");
    }
    assert_eq!(in_section("launch", "batch_size = 99999999999999999999999").len(), 1);
}

#[test]
fn the_bucket_is_off_by_that_word_only() {
    let bucket =
        |value: &str| good(&LEAST.replace("[[group]]", &format!("[launch]\nrequest_bucket = {value}\n[[group]]"))).run.bucket;
    assert_eq!(bucket("\"off\""), None);
    assert_eq!(bucket("{ burst = 20 }"), Some(Bucket { burst: 20, per_second: 2.0 }));
    assert_eq!(bucket("{ burst = 1, per_second = 0.5 }"), Some(Bucket { burst: 1, per_second: 0.5 }));
    assert_eq!(in_section("launch", "request_bucket = false").len(), 1);
    let own_header = good(&LEAST.replace("[[group]]", "[launch.request_bucket]\nburst = 7\n[[group]]"));
    assert_eq!(own_header.run.bucket.unwrap().burst, 7);
}

#[test]
fn a_wrong_value_does_not_cause_a_second_complaint() {
    assert_eq!(in_group("capacity = \"sopt\"\nmax_price = 0.5").len(), 1);
    assert_eq!(in_group("api = \"fleet\"\ninstance_types = [\"c5.large\", \"c6i.large\"]").len(), 1);
}

#[test]
fn c02_the_same_subnet_twice() {
    let found = in_group("api = \"create-fleet\"\nsubnets = [\"subnet-1\", \"subnet-2\", \"subnet-1\"]");
    assert_eq!(found, ["8:36: subnets names \"subnet-1\" twice | keep one of them"]);
}

#[test]
fn arrays_and_strings() {
    assert!(in_group("subnets = \"subnet-1\"")[0].ends_with("write subnets = [\"subnet-1\"]"));
    assert!(in_group("subnets = [\"eu-west-1a\"]")[0].contains("is no subnet id"));
    assert!(in_group("instance_types = [1]")[0].contains("must be a string, not an integer"));
    assert!(in_group("node_tags = \"yes\"")[0].contains("write node_tags = true or node_tags = false, without quotes"));
    assert!(in_section("aws", "profile = \" hpc\"\nconfig_file = \"/x\"")[0].contains("begins or ends with a blank"));
    assert!(in_section("aws", "profile = \"h\\tpc\"\nconfig_file = \"/x\"")[0].contains("control character"));
    assert!(in_section("state", "dir = \"~/state\"")[0].contains("no HOME"));
    assert!(mistakes(&format!("slurm = 3\n{LEAST}"))[0].contains("write [slurm] on a line of its own"));
    assert!(in_section("launch", "daemon = true")[0].contains("write \"auto\", \"yes\" or \"no\""));
}

#[test]
fn p05_p06_endpoint_and_proxy() {
    let settings = good(&LEAST.replace(
        "[[group]]",
        "[aws]\nendpoint_url = \"http://127.0.0.1:5000\"\nproxy = \"http://p:3128\"\nca_bundle = \"/ca.pem\"\n[[group]]",
    ));
    assert_eq!(settings.aws.endpoint_url.as_deref(), Some("http://127.0.0.1:5000"));
    assert_eq!(settings.aws.proxy.as_deref(), Some("http://p:3128"));
    assert!(in_section("aws", "proxy = \"p:3128\"")[0].ends_with("write http://p:3128 or https://p:3128"));
    assert!(in_section("aws", "proxy = \"socks5://p\"")[0].contains("does not begin with http"));
}

#[test]
fn aws_settings_that_cannot_work_together() {
    assert!(in_section("aws", "profile = \"hpc\"")[0].contains("no HOME"));
    assert!(
        in_section("aws", "attempt_timeout = \"50s\"\noperation_timeout = \"40s\"")[0]
            .starts_with("4:19: attempt_timeout is longer")
    );
    good(&LEAST.replace("[[group]]", "[aws]\noperation_timeout = \"40s\"\n[[group]]"));
}

#[test]
fn syntax_errors_come_with_the_other_mistakes_that_are_certain() {
    let found = mistakes(&LEAST.replace("[[group]]", "[launch]\nbatch_size = \nstrategy = \"x\"\n[[group]]"));
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("4:") && found[1].starts_with("5:12: strategy is \"x\""), "{found:?}");
    let found = mistakes(&LEAST.replace("[[group]]", "[launch\nbatch_size = 3\n[[group]]"));
    assert!(found.iter().all(|mistake| !mistake.contains("unknown key") && !mistake.contains("missing in")), "{found:?}");
    let found = mistakes(&format!("{LEAST}name = \"again\"\n"));
    assert!(found.len() == 1 && found[0].starts_with("7:1: duplicate key"), "{found:?}");
    assert!(!mistakes("\u{0}").is_empty() && !mistakes("[[[").is_empty() && !mistakes("a = \"\"\"").is_empty());
}

#[test]
fn a_byte_order_mark_and_dos_line_ends_are_no_mistake() {
    good(&format!("\u{feff}{}", LEAST.replace('\n', "\r\n")));
}

#[test]
fn a_hundred_thousand_nodes() {
    let lists: String =
        (0..10).map(|n| format!("[[group]]\nname = \"g{n}\"\nnodes = \"g{n}-[1-10000]\"\nlaunch_template = \"hpc\"\n")).collect();
    let settings = good(&format!("cluster = \"hpc\"\nregion = \"eu-west-1\"\n{lists}"));
    assert_eq!(settings.node_group.names().len(), 100_000);
    assert_eq!(settings.group_of("g9-10000").unwrap().name, "g9");
}

#[test]
fn a_file_that_is_not_there_or_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slurm-ec2.toml");
    let text = load(&path).unwrap_err().to_string();
    assert!(text.contains(path.to_str().unwrap()) && text.contains("as user ") && text.contains("--config"), "{text}");
    let text = load(folder.path()).unwrap_err().to_string();
    assert!(text.contains("mode 0"), "{text}");
    let copy = |bytes: &[u8]| {
        let mut file = std::fs::File::create(&path).unwrap();
        std::io::Write::write_all(&mut file, bytes).unwrap();
    };
    copy(b"cluster = \"h\xff\"\n");
    let text = load(&path).unwrap_err().to_string();
    assert!(text.contains(":1:13: this is not UTF-8"), "{text}");
    copy(LEAST.as_bytes());
    assert_eq!(load(&path).unwrap().path, path);
}

#[test]
fn p01_what_cannot_be_read_is_named_with_mode_and_user() {
    use std::os::unix::fs::PermissionsExt;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o600)).unwrap();
    // Root, as which tests may run, reads everything: the refusal is given instead of met.
    let refusal = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
    let text = unreadable(file.path(), refusal).to_string();
    let uid = nix::unistd::geteuid();
    for part in
        [file.path().to_str().unwrap(), "mode 0600", &format!("owner {uid}:"), &format!("as user {uid}"), "permission denied"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains('\n'), "one line for Slurm's reason and the log");
}

proptest::proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "[\\[\\]{}=\",.'#\\\\ \n\ta-z0-9$é-]{0,200}") {
        let _ = parse(Path::new("x.toml"), &text);
    }

    /// Real text with something cut out or put in: closer to what people get wrong.
    #[test]
    fn no_damage_makes_it_panic(at in 0usize..4000, drop in 0usize..40, put in "[\\[\\]{}=\",'\\\\\n a-z0-9]{0,5}") {
        let full = examples()[1];
        let mut at = at.min(full.len());
        while !full.is_char_boundary(at) { at -= 1; }
        let mut end = (at + drop).min(full.len());
        while !full.is_char_boundary(end) { end -= 1; }
        let damaged = format!("{}{put}{}", &full[..at], &full[end.max(at)..]);
        if let Err(error) = parse(Path::new("x.toml"), &damaged) {
            let _ = error.to_string();
        }
    }
}
