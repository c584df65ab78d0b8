//! Every mistake that ParallelCluster's INI files can hold, and what is left of a file that is refused.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs;
use std::time::Duration;

use super::tests::{Head, RESUME, SUSPEND};
use crate::config::settings::LogFormat;
use crate::config::source::{Place, as_far_as_it_goes, load};

const CLUSTERMGTD: &str = include_str!("../../../tests/data/parallelcluster/parallelcluster_clustermgtd.conf");

#[test]
fn mistakes_in_our_own_section() {
    let head = Head::new();
    let wrong = |lines: &str| {
        head.resume(&format!("{RESUME}[slurm_ec2]\n{lines}\n"));
        head.mistakes("slurm_resume", "parallelcluster_slurm_resume.conf").join("\n")
    };
    for (lines, part) in [
        ("statedir = /srv", "[slurm_ec2] statedir is unknown | write state_dir"),
        ("deadline = 241", "[slurm_ec2] deadline is 241; it must be from 1 to 240"),
        ("mapping_store = dynamodb", "[slurm_ec2] mapping_table is missing"),
        ("mapping_store = s3", "[slurm_ec2] mapping_store is \"s3\" | write \"file\" or \"dynamodb\""),
        ("mapping_table = some-table", "[slurm_ec2] mapping_table is for mapping_store = dynamodb"),
        ("mapping_store = dynamodb\nmapping_table = parallelcluster-slurm-orchard", "is the same as dynamodb_table"),
        ("state_dir = state", "[slurm_ec2] state_dir \"state\" is no absolute path"),
        ("ca_bundle = ca.pem", "[slurm_ec2] ca_bundle \"ca.pem\" is no absolute path"),
    ] {
        let found = wrong(lines);
        assert!(found.contains(part), "{lines}: {found}");
    }
    // One place for it: the programs would disagree.
    head.resume(RESUME);
    head.write("parallelcluster_slurm_suspend.conf", &format!("{SUSPEND}[slurm_ec2]\nstate_dir = /elsewhere\n"));
    let found = head.mistakes("slurm_suspend", "parallelcluster_slurm_suspend.conf");
    assert!(found[0].contains("section [slurm_ec2] is not read here | move it to "), "{found:?}");
}

#[test]
fn all_mistakes_at_once_with_file_line_section_and_key() {
    let head = Head::new();
    head.write("f.json", "{\"apple\": {\n  \"core\": }\n}");
    head.write("o.json", "[]");
    let root = head.dir.path().display();
    head.write(
        "parallelcluster_slurm_resume.conf",
        &format!(
            "[slurm_resume]\ncluster_name = or chard\nregion = eu-central-1a\nproxy = ftp://x\ndynamodb_table = t\n\
             hosted_zone = z 1\ndns_domain = a..b\nuse_private_hostname = maybe\nhead_node_private_ip = ten\nboto3_retry = 1.5\n\
             head_node_hostname =\nlaunch_max_batch_size = 0\nterminate_max_batch_size = -1\nclustermgtd_timeout = soon\n\
             instance_id = me\nlogging_config = here\nfleet_config_file = {root}/f.json\n\
             run_instances_overrides = {root}/o.json\ncreate_fleet_overrides = {root}\nscaling_strategy = 100%\n"
        ),
    );
    let found = head.mistakes("slurm_resume", "parallelcluster_slurm_resume.conf");
    let expected = [
        ("slurm_resume.conf:1", "[slurm_resume] clustermgtd_heartbeat_file_path is missing"),
        ("slurm_resume.conf:2", "[slurm_resume] cluster_name \"or chard\" holds ' '"),
        ("slurm_resume.conf:3", "[slurm_resume] region \"eu-central-1a\" is an availability zone"),
        ("slurm_resume.conf:4", "[slurm_resume] proxy does not begin with http://"),
        ("slurm_resume.conf:5", "[slurm_resume] dynamodb_table \"t\" cannot be a table's name"),
        ("slurm_resume.conf:6", "[slurm_resume] hosted_zone \"z 1\" is no zone id"),
        ("slurm_resume.conf:7", "[slurm_resume] dns_domain \"a..b\" is no domain"),
        ("slurm_resume.conf:8", "[slurm_resume] use_private_hostname is \"maybe\", neither yes nor no"),
        ("slurm_resume.conf:9", "[slurm_resume] head_node_private_ip \"ten\" is no IP address"),
        ("slurm_resume.conf:10", "[slurm_resume] boto3_retry is \"1.5\", which is no whole number"),
        ("slurm_resume.conf:11", "[slurm_resume] head_node_hostname is empty"),
        ("slurm_resume.conf:12", "[slurm_resume] launch_max_batch_size is 0; it must be from 1 to 10000"),
        ("slurm_resume.conf:13", "[slurm_resume] terminate_max_batch_size is -1;"),
        ("slurm_resume.conf:14", "[slurm_resume] clustermgtd_timeout is \"soon\""),
        ("slurm_resume.conf:15", "[slurm_resume] instance_id \"me\" is no instance id"),
        ("slurm_resume.conf:16", "[slurm_resume] logging_config \"here\" is no absolute path"),
        ("slurm_resume.conf:19", "[slurm_resume] create_fleet_overrides "),
        ("slurm_resume.conf:20", "[slurm_resume] scaling_strategy has a single %"),
        ("f.json:2", "fleet_config_file is no JSON: expected value"),
        ("o.json:1", "run_instances_overrides is no object of queues"),
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, (place, part)) in found.iter().zip(expected) {
        assert!(found.contains(&format!("{place}:")) && found.contains(part), "{part}: {found}");
    }
}

#[test]
fn values_that_the_package_takes_are_cut_with_a_warning() {
    let head = Head::new();
    let keys = "boto3_retry = 50\nclustermgtd_timeout = 1_000_000\nlaunch_max_batch_size = 20000\n\
                assign_node_max_batch_size = 99999999999999999999\nterminate_max_batch_size = 5000\n\
                proxy = NONE";
    let timeout = "instance_info_retrieval_timeout = 90";
    let text = RESUME.replace("proxy = NONE", keys).replace(timeout, "instance_info_retrieval_timeout = 100000");
    head.resume(&text);
    let settings = head.load();
    assert_eq!((settings.aws.attempts, settings.publish.batch_size), (20, 10_000));
    assert_eq!(settings.run.terminate_batch_size, 1000);
    assert_eq!(settings.run.address_timeout, Duration::from_secs(86_400));
    assert_eq!(settings.parallelcluster.as_ref().unwrap().heartbeat_timeout, Duration::from_secs(86_400));
    assert_eq!(settings.group_of("apple-dy-core-1").unwrap().launch.batch_size, 10_000);
    for part in [
        "[slurm_resume] boto3_retry 50 is cut to 19: ",
        "[slurm_resume] clustermgtd_timeout 1_000_000 is cut to 86400: ",
        "[slurm_resume] launch_max_batch_size 20000 is cut to 10000: ",
        "[slurm_resume] assign_node_max_batch_size 99999999999999999999 is cut to 10000: ",
        "[slurm_resume] terminate_max_batch_size 5000 is cut to 1000: ",
        "[slurm_resume] instance_info_retrieval_timeout 100000 is cut to 86400: ",
    ] {
        assert!(settings.warnings.iter().any(|warning| warning.starts_with(part)), "{part}: {:?}", settings.warnings);
    }
    // No time at all: the package looks once, and finds every heartbeat too old.
    head.resume(&RESUME.replace(timeout, "clustermgtd_timeout = 0\ninstance_info_retrieval_timeout = 0"));
    let settings = head.load();
    assert_eq!(settings.run.address_timeout, Duration::from_secs(1));
    assert_eq!(settings.parallelcluster.unwrap().heartbeat_timeout, Duration::ZERO);
}

#[test]
fn what_could_be_launched_keeps_nobody_from_terminating() {
    let name = "parallelcluster_slurm_suspend.conf";
    for (file, text) in [
        ("fleet-config.json", None),
        ("fleet-config.json", Some("{]")),
        ("run_instances_overrides.json", Some("[]")),
        ("create_fleet_overrides.json", Some("{\"pear-2\": ")),
    ] {
        let head = Head::new();
        match text {
            None => fs::remove_file(head.path(file)).unwrap(),
            Some(text) => head.write(file, text),
        }
        for program in ["slurm_suspend", "slurm_resume_fail"] {
            let settings = load(program, &head.place(name)).unwrap_or_else(|error| panic!("{file}: {error}"));
            assert_eq!((settings.groups.len(), settings.broken()), (0, Vec::new()), "{file}");
            let [warning] = settings.warnings.as_slice() else { panic!("{:?}", settings.warnings) };
            assert!(warning.contains(&head.path(file).display().to_string()), "{warning}");
            assert!(warning.ends_with(&format!("; {program} goes on without any queue")), "{warning}");
        }
        let found = head.mistakes("slurm_resume", "parallelcluster_slurm_resume.conf");
        assert!(found.len() == 1 && found[0].contains(file), "{found:?}");
        // What the INI file itself says wrongly is one for every program.
        head.resume(&RESUME.replace("region = eu-central-1", "region = eu-central-1a"));
        let found = head.mistakes("slurm_suspend", name);
        assert!(found.len() == 1 && found[0].contains("[slurm_resume] region"), "{found:?}");
    }
}

#[test]
fn files_that_are_missing() {
    let head = Head::new();
    fs::remove_file(head.path("fleet-config.json")).unwrap();
    let found = head.mistakes("slurm_resume", "parallelcluster_slurm_resume.conf");
    assert!(
        found[0].contains("[slurm_resume] fleet_config_file ") && found[0].contains("cannot be read: No such file"),
        "{found:?}"
    );
    // Overrides need not be there.
    let head = Head::new();
    fs::remove_file(head.path("run_instances_overrides.json")).unwrap();
    fs::remove_file(head.path("create_fleet_overrides.json")).unwrap();
    assert!(head.load().groups.iter().all(|group| group.recipe.overrides.is_empty()));
    // slurm_suspend's own file says next to nothing.
    fs::remove_file(head.path("parallelcluster_slurm_resume.conf")).unwrap();
    let found = head.mistakes("slurm_suspend", "parallelcluster_slurm_suspend.conf");
    assert!(found[0].starts_with("parallelcluster_slurm_suspend.conf:1: everything but the heartbeat is in"), "{found:?}");
    head.write("parallelcluster_clustermgtd.conf", CLUSTERMGTD);
    let found = head.mistakes("slurm_resume", "parallelcluster_clustermgtd.conf");
    assert!(found[0].contains("there is no section [slurm_resume]"), "{found:?}");
}

#[test]
fn a_default_that_is_missing_and_a_named_override_that_is() {
    let head = Head::new();
    let name = "parallelcluster_slurm_resume.conf";
    head.write(name, RESUME);
    let found = head.mistakes("slurm_resume", name);
    let text =
        "fleet_config_file /etc/parallelcluster/slurm_plugin/fleet-config.json (its default; the key is not set) cannot be read";
    assert!(found.len() == 1 && found[0].contains(text), "{found:?}");
    head.resume(RESUME);
    fs::remove_file(head.path("create_fleet_overrides.json")).unwrap();
    let expected = format!(
        "{}:4:1: create_fleet_overrides {} is named but not there; nothing is overridden",
        head.path(name).display(),
        head.path("create_fleet_overrides.json").display()
    );
    assert_eq!(head.load().warnings, [expected]);
    assert_eq!(load("slurm_suspend", &head.place("parallelcluster_slurm_suspend.conf")).unwrap().warnings, Vec::<String>::new());
}

#[test]
fn a_logging_configuration_that_is_not_used_names_the_log_that_is() {
    let head = Head::new();
    let warned = |program: &str, ours: &str| {
        head.resume(&format!("{}{ours}", RESUME.replace("proxy = NONE", "logging_config = /nonexistent/log.conf")));
        let settings = load(program, &head.place("parallelcluster_slurm_resume.conf")).unwrap();
        settings.warnings.join("\n")
    };
    let ours = "[slurm_ec2]\nlog_dir = /srv/log\n";
    for (program, section, log) in [
        ("slurm_resume", "", "/var/log/parallelcluster/slurm_resume.log"),
        ("slurm_suspend", "", "/var/log/parallelcluster/slurm_suspend.log"),
        ("slurm-ec2", "", "/var/log/parallelcluster/slurm_resume.log"),
        ("slurm-ec2", ours, "/srv/log/slurm_resume.log"),
    ] {
        let found = warned(program, section);
        assert!(found.starts_with("logging_config /nonexistent/log.conf is not used: "), "{found}");
        assert!(found.ends_with(&format!("; the log is {log}")), "{log}: {found}");
    }
}

#[test]
fn slips_in_either_file_are_warned_of_once() {
    let head = Head::new();
    head.resume(&format!("{}[slurm-ec2]\nlog_dir = /x\n", RESUME.replace("proxy =", "proxi =")));
    head.write("parallelcluster_slurm_suspend.conf", &format!("{SUSPEND}clustermgtd_time_out = 3\n"));
    let name = |file: &str| head.path(file).display().to_string();
    let resume = name("parallelcluster_slurm_resume.conf");
    let lines = fs::read_to_string(&resume).unwrap();
    let line = |part: &str| lines.lines().position(|line| line.starts_with(part)).unwrap() + 1;
    let mut expected = vec![
        format!("{resume}:{}:1: section [slurm-ec2] is not read; write [slurm_ec2]", line("[slurm-ec2]")),
        format!("{resume}:{}:1: unknown key proxi is ignored; did you mean proxy?", line("proxi")),
    ];
    let settings = head.load();
    assert_eq!(settings.warnings, expected);
    assert_eq!(settings.placed_warnings().collect::<Vec<_>>(), expected, "the file is named once");
    let suspend = name("parallelcluster_slurm_suspend.conf");
    expected.push(format!("{suspend}:3:1: unknown key clustermgtd_time_out is ignored; did you mean clustermgtd_timeout?"));
    let settings = load("slurm_suspend", &head.place("parallelcluster_slurm_suspend.conf")).unwrap();
    assert_eq!(settings.warnings, expected);
}

#[test]
fn a_misspelt_section_is_one_mistake() {
    let head = Head::new();
    head.write("x.conf", &RESUME.replace("[slurm_resume]", "[slurm_resum]"));
    let found = head.mistakes("slurm_resume", "x.conf");
    assert!(found.len() == 1 && found[0].starts_with("x.conf:1: this is neither our TOML nor"), "{found:?}");
}

#[test]
fn what_a_refused_file_still_says() {
    let head = Head::new();
    head.resume(&format!("{}[slurm_ec2]\nlog_dir = /srv/log\n", RESUME.replace("region = eu-central-1", "region =")));
    let place = Place { slurm_bin_dir: Some("/sw/bin".into()), ..head.place("parallelcluster_slurm_resume.conf") };
    let settings = as_far_as_it_goes("slurm_resume", &place);
    assert_eq!((settings.slurm.bin_dir, settings.log.dir), ("/sw/bin".into(), "/srv/log".into()));
    // Not even there, but its name tells the kind.
    let missing = Place { path: head.path("parallelcluster_x.conf"), ..place };
    let settings = as_far_as_it_goes("slurm_resume", &missing);
    assert_eq!((settings.slurm.bin_dir, settings.log.format), ("/sw/bin".into(), LogFormat::ParallelCluster));
}

#[test]
fn which_texts_are_parallelclusters() {
    for text in ["[slurm_resume]\n", "# x\n  [slurm_suspend] # y\r\n", "\u{feff}[clustermgtd]\n", CLUSTERMGTD, RESUME] {
        assert!(super::is_one(text), "{text:?}");
    }
    for text in ["", "cluster = \"hpc\"\n[slurm]\n", "# [slurm_resume]\n", "[slurm_resume\n", "[[slurm_resume]]\n"] {
        assert!(!super::is_one(text), "{text:?}");
    }
}
