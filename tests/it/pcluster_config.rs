//! ParallelCluster's files as the programs meet them: which file is taken, what is said of mistakes, and by whom it is heard.

use std::fs;
use std::io::Write;
use std::process::Command;

use slurm_ec2_testkit::ec2::Behaviour;

use crate::site::{Ran, Site, finished};

const RESUME: &str = include_str!("../data/parallelcluster/parallelcluster_slurm_resume.conf");
const SUSPEND: &str = include_str!("../data/parallelcluster/parallelcluster_slurm_suspend.conf");
const FLEET: &str = include_str!("../data/parallelcluster/fleet-config.json");

const RESUME_CONF: &str = "parallelcluster_slurm_resume.conf";
const SUSPEND_CONF: &str = "parallelcluster_slurm_suspend.conf";

/// A site with the package's files beside the TOML; `change` is made in slurm_resume's.
fn head(change: (&str, &str)) -> Site {
    let site = Site::new(Behaviour::default());
    let root = site.dir.path().display();
    assert!(RESUME.contains(change.0), "{}", change.0);
    let text = RESUME.replace(change.0, change.1).replace(
        "[slurm_resume]",
        &format!("[slurm_resume]\nfleet_config_file = {root}/fleet-config.json\nrun_instances_overrides = {root}/run.json\ncreate_fleet_overrides = {root}/fleet.json"),
    );
    let url = site.ec2.url();
    site.write(
        RESUME_CONF,
        &format!("{text}[slurm_ec2]\nstate_dir = {root}/state\nlog_dir = {root}/log\nendpoint_url = {url}\n"),
    );
    site.write(SUSPEND_CONF, SUSPEND);
    site.write("fleet-config.json", FLEET);
    site.write("run.json", "{}");
    site.write("fleet.json", "{}");
    fs::create_dir(site.path("etc")).unwrap();
    site
}

/// A slurm.conf that `check` finds nothing missing in.
const SLURM_CONF: &str = "ResumeProgram=/a\nSuspendProgram=/b\nResumeFailProgram=/b\nSuspendTime=300\nResumeTimeout=600\n\
    SlurmctldParameters=idle_on_node_suspend\nNodeName=apple-st-core-[1-2],apple-dy-peel-small-[1-64] State=CLOUD\n\
    NodeName=pear-2-dy-mixspot-1,pear-2-dy-mixod-1,pear-2-dy-onetype2az-1,gpu-st-block-[1-4] State=CLOUD\n\
    SuspendExcNodes=apple-st-core-[1-2],gpu-st-block-[1-4]\n";

/// A head node on which `check` finds nothing wrong: state folder, heartbeat, scontrol through sudo.
fn sound() -> Site {
    let site = head(("NONE", "NONE"));
    let root = site.dir.path().display();
    let text = fs::read_to_string(site.path(RESUME_CONF)).unwrap();
    let own: Vec<&str> = text.lines().filter(|line| !line.starts_with("clustermgtd_heartbeat_file_path")).collect();
    let heartbeat = format!("[slurm_resume]\nclustermgtd_heartbeat_file_path = {root}/heartbeat");
    site.write(RESUME_CONF, &(own.join("\n").replacen("[slurm_resume]", &heartbeat, 1) + "\n"));
    site.write("heartbeat", &heartbeat_now());
    site.write("slurm.conf", SLURM_CONF);
    fs::create_dir(site.path("state")).unwrap();
    site
}

/// As clustermgtd writes it.
fn heartbeat_now() -> String {
    let now = humantime::format_rfc3339_micros(std::time::SystemTime::now()).to_string();
    now.replace('T', " ").replace('Z', "+0000")
}

/// The program as slurmctld starts it there: `$CONFIG_FILE` and `$SLURM_BINARIES_DIR`, and nothing of ours.
fn command(site: &Site, conf: &str, program: &str, args: &[&str]) -> Command {
    let mut command = site.command(program, args);
    command.env_remove("SLURM_EC2_CONFIG").env("CONFIG_FILE", site.path(conf)).env("SLURM_BINARIES_DIR", site.path("bin"));
    command
}

fn run(site: &Site, conf: &str, program: &str, args: &[&str]) -> Ran {
    finished(command(site, conf, program, args).output().unwrap())
}

#[test]
fn a_plan_from_the_packages_files() {
    let site = head(("NONE", "NONE"));
    let ran = run(
        &site,
        RESUME_CONF,
        "slurm_resume",
        &["--dry-run", "apple-dy-core-[1-3],apple-st-core-1,pear-2-dy-mixod-2,plum-dy-x-1"],
    );
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for part in ["group apple/core", "group pear-2/mixod", "orchard-pear-2-mixod", "fleet-config.json has no queue plum"] {
        assert!(ran.stdout.contains(part), "{part}: {}", ran.stdout);
    }
}

#[test]
fn mistakes_are_heard_by_the_caller_the_log_and_slurm() {
    let site = head(("region = eu-central-1", "region = eu-central-1a\nboto3_retry = often"));
    fs::create_dir(site.path("log")).unwrap();
    let ran = run(&site, RESUME_CONF, "slurm_resume", &["apple-dy-core-1"]);
    assert_eq!(ran.code, Some(78), "{}", ran.stderr);
    let log = site.log("slurm_resume");
    for part in [
        &format!("{}:6:10: [slurm_resume] region \"eu-central-1a\" is an availability zone", site.path(RESUME_CONF).display()),
        "[slurm_resume] boto3_retry is \"often\", which is no whole number",
    ] {
        assert!(ran.stderr.contains(part) && log.contains(part), "{part}: {}\n{log}", ran.stderr);
    }
    let told = site.updates().join("\n");
    assert!(told.contains("apple-dy-core-1") && told.contains("(Code:"), "{told}");
    assert!(site.ec2.requests().is_empty());
    // slurm_suspend reads the same file beside its own.
    let ran = run(&site, SUSPEND_CONF, "slurm_suspend", &["apple-dy-core-1"]);
    assert!(ran.code == Some(78) && ran.stderr.contains(RESUME_CONF) && ran.stderr.contains("region"), "{}", ran.stderr);
}

#[test]
fn b70_the_file_that_is_named_first_is_taken() {
    let site = head(("NONE", "NONE"));
    let plan = |command: &mut Command| finished(command.output().unwrap()).stdout;
    let nodes = ["--dry-run", "c5-1,apple-dy-core-1"];
    // $CONFIG_FILE alone, then $SLURM_EC2_CONFIG before it, then --config before both.
    let first = plan(&mut command(&site, RESUME_CONF, "slurm_resume", &nodes));
    assert!(first.contains("group apple/core"), "{first}");
    let second = plan(command(&site, RESUME_CONF, "slurm_resume", &nodes).env("SLURM_EC2_CONFIG", site.path("slurm-ec2.toml")));
    assert!(second.contains("group c5") && !second.contains("group apple/core"), "{second}");
    let conf = site.path(RESUME_CONF);
    let third = plan(&mut site.command("slurm_resume", &["--config", conf.to_str().unwrap(), nodes[0], nodes[1]]));
    assert!(third.contains("group apple/core"), "{third}");
    let ran = run(&site, "missing.conf", "slurm_resume", &["--dry-run", "c5-1"]);
    assert!(ran.stderr.contains("or name another with --config, $SLURM_EC2_CONFIG or $CONFIG_FILE"), "{}", ran.stderr);
    assert!(ran.code == Some(78) && ran.stderr.contains("missing.conf"), "{}", ran.stderr);
}

#[test]
fn b71_check_names_compute_resources_that_cannot_be_used() {
    let site = sound();
    let ran = run(&site, RESUME_CONF, "slurm-ec2", &["check"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{}", ran.stdout);
    assert!(ran.stdout.contains("fine; 6 compute resources"), "{}", ran.stdout);
    site.write("fleet-config.json", &FLEET.replacen("\"Api\": \"run-instances\"", "\"Api\": \"run\"", 1));
    site.write("run.json", "{\"plum\": {}}");
    let ran = run(&site, RESUME_CONF, "slurm-ec2", &["check"]);
    assert_eq!(ran.code, Some(78), "{}", ran.stderr);
    for part in ["some nodes cannot be launched: ", "fleet-config.json: apple.core.Api is \"run\"", "run.json: plum is no queue"]
    {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
    assert!(ran.stdout.contains("5 compute resources can be used, 1 cannot"), "{}", ran.stdout);
    // A resource that slurm.conf has no nodes of.
    site.write("fleet-config.json", FLEET);
    site.write(
        "slurm.conf",
        &fs::read_to_string(site.path("slurm.conf")).unwrap().replace("gpu-st-block-[1-4]", "gpu-st-blocks-1"),
    );
    let ran = run(&site, RESUME_CONF, "slurm-ec2", &["check"]);
    assert!(ran.code == Some(78) && ran.stderr.contains("gpu-(st|dy)-block-N"), "{}", ran.stderr);
}

#[test]
fn d01_check_says_what_of_this_machine_would_stop_everything() {
    let site = sound();
    let check = || run(&site, RESUME_CONF, "slurm-ec2", &["check"]);
    let ran = check();
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{}", ran.stdout);
    assert!(ran.stdout.contains("state folder, CA bundle and scontrol can be used"), "{}", ran.stdout);
    // A heartbeat can come back by itself: a warning.
    site.write("heartbeat", "2020-01-01 00:00:00.000000+0000");
    let ran = check();
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for part in
        ["slurm-ec2: warning: nothing is launched while clustermgtd is down: the heartbeat ", " old, it must be younger than 5m"]
    {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
    fs::remove_file(site.path("heartbeat")).unwrap();
    let ran = check();
    assert!(ran.code == Some(0) && ran.stderr.contains("cannot read the heartbeat"), "{}", ran.stderr);
    site.write("heartbeat", &heartbeat_now());
    // The CA bundle.
    let text = fs::read_to_string(site.path(RESUME_CONF)).unwrap();
    site.write(RESUME_CONF, &format!("{text}ca_bundle = {}\n", site.path("ca.pem").display()));
    let ran = check();
    assert!(ran.code == Some(78) && ran.stderr.contains("cannot read the CA bundle"), "{}", ran.stderr);
    site.write("ca.pem", "no certificate");
    let ran = check();
    assert!(ran.code == Some(78) && ran.stderr.contains("ca.pem holds no usable certificate"), "{}", ran.stderr);
    site.write("ca.pem", include_str!("../data/ec2/root.pem"));
    assert_eq!((check().code, check().stderr.as_str()), (Some(0), ""));
    // scontrol.
    site.scontrol("fail.version", "1\nscontrol: error: Could not establish a configuration source");
    let ran = check();
    assert!(ran.code == Some(78) && ran.stderr.contains("Could not establish a configuration source"), "{}", ran.stderr);
    fs::remove_file(site.path("bin/scontrol.fail.version")).unwrap();
    fs::remove_file(site.path("bin/scontrol")).unwrap();
    let ran = check();
    assert!(ran.code == Some(78) && ran.stderr.contains("SLURM_BINARIES_DIR"), "{}", ran.stderr);
    // A state folder that is none, or holds what cannot be read.
    fs::remove_dir(site.path("state")).unwrap();
    site.write("state", "");
    let ran = check();
    let install = format!("install -d -o pcluster-admin -g pcluster-admin -m 750 {}", site.path("state").display());
    assert!(ran.code == Some(78) && ran.stderr.contains("is no folder") && ran.stderr.contains(&install), "{}", ran.stderr);
    fs::remove_file(site.path("state")).unwrap();
    fs::create_dir(site.path("state")).unwrap();
    site.write("state/mapping.json", "{");
    let ran = check();
    assert!(ran.code == Some(78) && ran.stderr.contains("mapping.json:1:"), "{}", ran.stderr);
    // Nothing was made or changed by all this, and EC2 was not asked.
    assert_eq!(fs::read_dir(site.path("state")).unwrap().count(), 1);
    assert!(!site.path("log").exists() && site.ec2.requests().is_empty());
}

#[test]
fn d01_check_looks_at_what_the_daemons_go_by() {
    let site = sound();
    let check = || run(&site, RESUME_CONF, "slurm-ec2", &["check"]);
    let root = site.dir.path().display();
    let daemon = include_str!("../data/parallelcluster/parallelcluster_clustermgtd.conf").replace(
        "heartbeat_file_path = /opt/slurm/etc/pcluster/.slurm_plugin/clustermgtd_heartbeat",
        &format!("heartbeat_file_path = {root}/heartbeat"),
    );
    site.write("parallelcluster_clustermgtd.conf", &daemon);
    site.write(
        "slurm.conf",
        &(SLURM_CONF.to_owned() + "PartitionName=apple Nodes=ALL\nPartitionName=gpu\nPartitionName=pear-2\n"),
    );
    let ran = check();
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{}", ran.stdout);
    // Slurm would power static nodes down; a queue without a partition is not looked after; nobody can write the status.
    site.write(
        "slurm.conf",
        &SLURM_CONF.replace("apple-st-core-[1-2],gpu", "gpu").replace("SuspendExc", "PartitionName=gpu\nSuspendExc"),
    );
    let status = include_str!("../data/parallelcluster/clusterstatusmgtd.conf");
    site.write("clusterstatusmgtd.conf", &status.replace("/opt/parallelcluster/shared", "/nonexistent/shared"));
    let ran = check();
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for part in [
        "2 static nodes are not in SuspendExcNodes: \"apple-st-core-[1-2]\"",
        "partitions that slurm.conf has not: apple, pear-2",
        "the copy of the fleet's status cannot be written: /nonexistent/shared: No such file",
    ] {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
    // A mistake in the daemon's file is one.
    site.write("parallelcluster_clustermgtd.conf", &daemon.replace("proxy = NONE", "loop_time = fast"));
    let ran = check();
    assert!(ran.code == Some(78) && ran.stderr.contains("[clustermgtd] loop_time is \"fast\""), "{}", ran.stderr);
}

#[test]
fn c04_suspend_time_minus_one_is_accepted_with_a_note() {
    let site = sound();
    for word in ["-1", "INFINITE"] {
        site.write("slurm.conf", &SLURM_CONF.replace("SuspendTime=300", &format!("SuspendTime={word}")));
        let ran = run(&site, RESUME_CONF, "slurm-ec2", &["check"]);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{}", ran.stdout);
        assert!(ran.stdout.contains("SuspendTime is -1 or INFINITE"), "{}", ran.stdout);
    }
    // A partition that has its own switches power saving on; without either it is forgotten, not meant.
    let text = SLURM_CONF.replace("SuspendTime=300", "SuspendTime=-1") + "PartitionName=p Nodes=ALL SuspendTime=60\n";
    site.write("slurm.conf", &text);
    let ran = run(&site, RESUME_CONF, "slurm-ec2", &["check"]);
    assert!(ran.code == Some(0) && !ran.stdout.contains("SuspendTime is"), "{} {}", ran.stdout, ran.stderr);
    site.write("slurm.conf", &SLURM_CONF.replace("SuspendTime=300\n", ""));
    let ran = run(&site, RESUME_CONF, "slurm-ec2", &["check"]);
    assert!(ran.code == Some(78) && ran.stderr.contains("SuspendTime is not set"), "{}", ran.stderr);
}

/// Launches one node, then breaks a JSON file; the programs that end instances go on.
#[test]
fn s05_a_broken_fleet_config_keeps_nobody_from_terminating() {
    for (file, program) in
        [("fleet-config.json", "slurm_suspend"), ("fleet.json", "slurm_suspend"), ("run.json", "slurm_resume_fail")]
    {
        let site = sound();
        let text = fs::read_to_string(site.path(RESUME_CONF)).unwrap();
        site.write(RESUME_CONF, &text.replacen("[slurm_resume]", "[slurm_resume]\nupdate_node_address = false", 1));
        let keys = [("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"), ("AWS_SECRET_ACCESS_KEY", "secret")];
        let run = |conf, program, nodes| finished(command(&site, conf, program, &[nodes]).envs(keys).output().unwrap());
        let ran = run(RESUME_CONF, "slurm_resume", "apple-dy-core-1");
        assert_eq!(site.live().len(), 1, "{}\n{}", ran.stderr, site.log("slurm_resume"));
        site.write(file, "{\"apple\": {]");
        let ran = run(SUSPEND_CONF, program, "apple-dy-core-1");
        assert_eq!(ran.code, Some(0), "{file}: {}", ran.stderr);
        assert!(site.live().is_empty(), "{file}");
        let log = site.log(program);
        let told = format!("{}:1:12: ", site.path(file).display());
        assert!(log.contains(&told) && log.contains(&format!("{program} goes on without any queue")), "{file}: {log}");
        // slurm_resume cannot do without.
        let ran = run(RESUME_CONF, "slurm_resume", "apple-dy-core-2");
        assert!(ran.code == Some(78) && ran.stderr.contains(&told), "{file}: {}", ran.stderr);
    }
}

/// The first reading gets half of it, by way of a FIFO that has another file's name by then: the second gets the whole.
#[test]
fn a_fleet_config_that_is_just_being_rewritten_is_waited_for() {
    let site = sound();
    let path = site.path("fleet-config.json");
    fs::remove_file(&path).unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    fs::hard_link(&path, site.path("half")).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            // Waits for a reader.
            let mut half = fs::OpenOptions::new().write(true).open(site.path("half")).unwrap();
            site.write("fleet-config.json", FLEET);
            half.write_all(&FLEET.as_bytes()[..FLEET.len() / 2]).unwrap();
        });
        let ran = run(&site, RESUME_CONF, "slurm_resume", &["--dry-run", "apple-dy-core-1"]);
        if !writer.is_finished() {
            // Whoever waits for a reader that did not come has one now.
            drop(fs::OpenOptions::new().read(true).write(true).open(site.path("half")));
        }
        assert!(ran.code == Some(0) && ran.stdout.contains("group apple/core"), "{} {}", ran.stdout, ran.stderr);
    });
}
