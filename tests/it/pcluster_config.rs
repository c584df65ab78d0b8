//! ParallelCluster's files as the programs meet them: which file is taken, what is said of mistakes, and by whom it is heard.

use std::fs;
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
    fs::create_dir(site.path("etc")).unwrap();
    site
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
    assert!(ran.code == Some(78) && ran.stderr.contains("missing.conf"), "{}", ran.stderr);
}

#[test]
fn b71_check_names_compute_resources_that_cannot_be_used() {
    let site = head(("NONE", "NONE"));
    site.write(
        "slurm.conf",
        "ResumeProgram=/a\nSuspendProgram=/b\nResumeFailProgram=/b\nSuspendTime=300\nResumeTimeout=600\n\
         SlurmctldParameters=idle_on_node_suspend\nNodeName=apple-st-core-[1-2],apple-dy-peel-small-[1-64] State=CLOUD\n\
         NodeName=pear-2-dy-mixspot-1,pear-2-dy-mixod-1,pear-2-dy-onetype2az-1,gpu-st-block-[1-4] State=CLOUD\n",
    );
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
