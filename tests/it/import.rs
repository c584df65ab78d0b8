//! `slurm-ec2 import`: other systems' files in, a configuration that `slurm-ec2 check` accepts out.

use std::fs;
use std::path::Path;

use slurm_ec2_testkit::ec2::Behaviour;

use crate::site::{Ran, Site};

fn data(folder: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(folder)
}

/// A copy of a head node's folder: its files name each other by the paths of that machine.
fn copy_of_a_head_node(site: &Site) {
    for entry in fs::read_dir(data("parallelcluster")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), site.path(&entry.file_name().to_string_lossy())).unwrap();
    }
}

fn import(site: &Site, args: &[&str]) -> Ran {
    site.run("slurm-ec2", &[&["import"], args].concat())
}

/// Is the printed file accepted, and what does `check` say of it?
fn checked(site: &Site, text: &str) -> String {
    site.write("slurm-ec2.toml", text);
    let mut command = site.command("slurm-ec2", &["check"]);
    let ran = crate::site::finished(command.env("SLURM_CONF", "/nonexistent/slurm.conf").output().unwrap());
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{text}");
    ran.stdout
}

#[test]
fn a_parallelcluster_head_node() {
    let site = Site::new(Behaviour::default());
    copy_of_a_head_node(&site);
    let ran = import(&site, &["parallelcluster", site.dir.path().to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("note: ") && ran.stderr.contains("fleet-config.json is not there; "), "{}", ran.stderr);
    for line in [
        "cluster = \"orchard\"",
        "scale_by = \"job\"",
        "sudo = \"/usr/bin/sudo\"",
        "queue = \"apple\"",
        "[parallelcluster]",
        "table = \"parallelcluster-slurm-orchard\"",
        // Of the daemons.
        "[clustermgtd]",
        "replacement_timeout = \"25m\"",
        "partitions = [\"apple\", \"gpu\", \"pear-2\"]",
        "status_file = \"/opt/parallelcluster/shared/computefleet-status.json\"",
        "capacity_reservation_id = \"cr-0fee1900d00000042\"",
    ] {
        assert!(ran.stdout.lines().any(|printed| printed == line), "{line}\n{}", ran.stdout);
    }
    assert!(ran.stdout.contains("CapacityReservationSpecification"), "the override files are in it: {}", ran.stdout);
    assert!(checked(&site, &ran.stdout).contains("6 compute resources"), "{}", ran.stdout);
    // The file itself, or another one of the folder, is as good, and so is one with a name of its own.
    fs::copy(site.path("parallelcluster_slurm_resume.conf"), site.path("mine.conf")).unwrap();
    for name in ["parallelcluster_slurm_resume.conf", "parallelcluster_slurm_suspend.conf", "mine.conf"] {
        let again = import(&site, &["parallelcluster", site.path(name).to_str().unwrap()]);
        let (from, text) = again.stdout.split_once('\n').unwrap();
        assert_eq!(text, ran.stdout.split_once('\n').unwrap().1, "{}", again.stderr);
        assert_eq!(from.contains("mine.conf"), name == "mine.conf", "{from}");
    }
    // The plan finds a node by ParallelCluster's rule.
    let plan = site.run("slurm-ec2", &["plan", "pear-2-dy-mixod-[1-3]"]);
    assert!(plan.code == Some(0) && plan.stdout.contains("pear-2/mixod"), "{} {}", plan.stdout, plan.stderr);
}

#[test]
fn what_is_taken_of_two_heartbeats_is_said_and_the_environment_is_not_asked() {
    let site = Site::new(Behaviour::default());
    copy_of_a_head_node(&site);
    let dir = site.dir.path().to_str().unwrap().to_owned();
    let ran = import(&site, &["parallelcluster", &dir]);
    assert!(ran.code == Some(0) && !ran.stderr.contains("the heartbeat of"), "{}", ran.stderr);
    site.write(
        "parallelcluster_slurm_suspend.conf",
        "[slurm_suspend]\nclustermgtd_heartbeat_file_path = /elsewhere/beat\nclustermgtd_timeout = 70\n",
    );
    fs::create_dir(site.path(".aws")).unwrap();
    site.write(".aws/config", "[default]\nca_bundle = /home.pem\n");
    let with = |text: &str| {
        let conf = site.path("parallelcluster_slurm_resume.conf");
        let old = fs::read_to_string(&conf).unwrap();
        fs::write(&conf, old + text).unwrap();
        let mut command = site.command("slurm-ec2", &["import", "parallelcluster", &dir]);
        command.env("AWS_CA_BUNDLE", "/environment.pem").env("HOME", site.dir.path());
        crate::site::finished(command.output().unwrap())
    };
    let ran = with("");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(!ran.stdout.contains("ca_bundle"), "{}", ran.stdout);
    for part in [
        "note: $AWS_CA_BUNDLE (/environment.pem) is not taken over",
        "note: the heartbeat of [slurm_resume] (/opt/slurm/etc/pcluster/.slurm_plugin/clustermgtd_heartbeat, 300 s) is taken",
        "parallelcluster_slurm_suspend.conf has /elsewhere/beat, 70 s",
    ] {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
    let ran = with("[slurm_ec2]\nca_bundle = /ours.pem\n");
    assert!(ran.stdout.lines().any(|line| line == "ca_bundle = \"/ours.pem\""), "{} {}", ran.stdout, ran.stderr);
}

#[test]
fn what_clustermgtds_file_says_otherwise_is_said() {
    let site = Site::new(Behaviour::default());
    copy_of_a_head_node(&site);
    let dir = site.dir.path().to_str().unwrap().to_owned();
    let notes = || {
        let ran = import(&site, &["parallelcluster", &dir]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        ran.stderr
    };
    assert!(!notes().contains("parallelcluster_clustermgtd.conf"), "{}", notes());
    fs::copy(site.path("parallelcluster_clustermgtd.all-options.conf"), site.path("parallelcluster_clustermgtd.conf")).unwrap();
    let said = notes();
    assert!(said.contains("clustermgtd writes the heartbeat /run/orchard/heartbeat and slurm_resume looks at "), "{said}");
    let other = "has other values of proxy, dynamodb_table and who hears of instances, launch_max_batch_size, \
                 terminate_max_batch_size, instance_info_retrieval_timeout";
    assert!(said.contains(other), "{said}");
    fs::remove_file(site.path("parallelcluster_clustermgtd.conf")).unwrap();
    assert!(notes().contains("parallelcluster_clustermgtd.conf is not there: [clustermgtd] has the usual values"), "{}", notes());
}

#[test]
fn what_is_wrong_at_a_head_node_is_named_and_nothing_is_printed() {
    let site = Site::new(Behaviour::default());
    let dir = site.dir.path().to_str().unwrap().to_owned();
    let ran = import(&site, &["parallelcluster", &dir]);
    assert!(ran.code == Some(78) && ran.stdout.is_empty(), "{}", ran.stdout);
    let advice = format!("{dir} holds no parallelcluster_slurm_resume.conf; name the folder that does");
    assert!(ran.stderr.contains(&advice), "{}", ran.stderr);
    copy_of_a_head_node(&site);
    let fleet = fs::read_to_string(site.path("fleet-config.json")).unwrap();
    site.write("fleet-config.json", &fleet.replace("run-instances", "run-instance").replace("lowest-price", "cheapest"));
    let ran = import(&site, &["parallelcluster", &dir]);
    assert!(ran.code == Some(78) && ran.stdout.is_empty(), "{}", ran.stdout);
    for part in ["fleet-config.json: apple.core.Api", "fleet-config.json: pear-2.mixod.AllocationStrategy"] {
        assert!(ran.stderr.contains(part), "{part} is not named in {}", ran.stderr);
    }
}

#[test]
fn the_aws_plugin() {
    let site = Site::new(Behaviour::default());
    let folder = data("aws-plugin");
    let (config, partitions) = (folder.join("config.json"), folder.join("partitions.json"));
    let files = [config.to_str().unwrap(), partitions.to_str().unwrap()];
    let ran = import(&site, &["aws-plugin", "--cluster", "orchard", files[0], files[1]]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for line in [
        "#   ResumeProgram=/usr/bin/slurm_resume    (was /opt/slurm/etc/aws/resume.py)",
        "#   NodeName=burst-cheap-[0-199] State=CLOUD CPUs=8 Weight=2",
        "nodes = \"burst-cheap-[0-199]\"",
        "instance_types = [\"c6i.2xlarge\", \"c6a.2xlarge\"]",
        "max_price = 0.21",
        "node_tags = true",
    ] {
        assert!(ran.stdout.lines().any(|printed| printed == line), "{line}\n{}", ran.stdout);
    }
    let state = "note: /var/lib/slurm-ec2 has to be there, writable for the user who runs the programs";
    assert!(ran.stderr.contains(state), "{}", ran.stderr);
    assert!(checked(&site, &ran.stdout).contains("3 groups, 213 nodes"), "{}", ran.stdout);
}

#[test]
fn all_that_the_aws_plugin_has_and_cannot_be_carried_over() {
    let site = Site::new(Behaviour::default());
    let folder = data("aws-plugin");
    let partitions = fs::read_to_string(folder.join("partitions.json")).unwrap();
    let partitions = partitions.replacen("eu-central-1", "eu-west-1", 1).replacen("\"orchard\"", "\"{node_name}\"", 1);
    site.write("partitions.json", &partitions);
    site.write("config.json", &fs::read_to_string(folder.join("config.json")).unwrap());
    let files = [site.path("config.json"), site.path("partitions.json")].map(|path| path.to_str().unwrap().to_owned());
    let ran = import(&site, &["aws-plugin", &files[0], &files[1]]);
    assert!(ran.code == Some(78) && ran.stdout.is_empty(), "{}", ran.stdout);
    for part in ["give slurm.conf's ClusterName with --cluster", "NodeGroups[1].Region: ", "Tags[0].Value: {node_name}"] {
        assert!(ran.stderr.contains(part), "{part} is not named in {}", ran.stderr);
    }
    // A line break in a value stays inside its comment.
    let config = fs::read_to_string(folder.join("config.json")).unwrap().replace("\"TreeWidth\"", "\"A\\nregion = 1\\nB\"");
    site.write("config.json", &config);
    site.write("partitions.json", &fs::read_to_string(folder.join("partitions.json")).unwrap());
    let ran = import(&site, &["aws-plugin", "--cluster", "o", &files[0], &files[1]]);
    assert!(ran.code == Some(0) && !ran.stdout.contains("\nregion = 1"), "{} {}", ran.stdout, ran.stderr);
    let ran = import(&site, &["aws-plugin", "/nowhere/c.json", "/nowhere/p.json"]);
    assert!(
        ran.code == Some(78) && ran.stderr.contains("/nowhere/c.json") && ran.stderr.contains("/nowhere/p.json"),
        "{}",
        ran.stderr
    );
    assert_eq!(import(&site, &["nothing"]).code, Some(2));
}
