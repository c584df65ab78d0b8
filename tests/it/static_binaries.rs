//! A file to copy: each binary runs in a folder that holds nothing but itself, a configuration, a CA bundle, resolv.conf, hosts and
//! two devices, and finds EC2 by host name there.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use slurm_ec2_testkit::ec2::{Behaviour, Endpoint};

use crate::moto::Moto;
use crate::site::{copy_to_run, program_path};

const PROGRAMS: [&str; 8] = [
    "slurm_resume",
    "slurm_suspend",
    "slurm_resume_fail",
    "slurm-ec2",
    "clustermgtd",
    "clusterstatusmgtd",
    "slurm_fleet_status_manager",
    "computemgtd",
];

#[test]
fn no_program_needs_a_library() {
    for program in PROGRAMS {
        let path = program_path(program);
        let output = Command::new("readelf").args(["--dynamic", "--program-headers", "--wide"]).arg(&path).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("LOAD"), "{}: {text}", path.display());
        assert!(!text.contains("NEEDED") && !text.contains("INTERP"), "{} wants the host's libraries:\n{text}", path.display());
    }
}

#[test]
fn each_program_works_in_an_otherwise_empty_root() {
    let ec2 = Endpoint::start(Behaviour::default());
    let root = tempfile::tempdir().unwrap();
    let port = ec2.address().port();
    furnish(root.path(), port);
    let config = "/etc/slurm-ec2/slurm-ec2.toml";
    let check = chroot(root.path(), &["/slurm-ec2", "check"]);
    assert!(check.status.success(), "{}", text(&check));
    assert!(text(&check).contains("1 groups, 10 nodes"), "{}", text(&check));

    let resume = chroot(root.path(), &["/slurm_resume", "--config", config, "c5-[1-3]"]);
    assert!(resume.status.success(), "{}\n{}", text(&resume), log(root.path(), "slurm_resume"));
    assert_eq!(ec2.live_instances().len(), 3);
    let host = ec2.requests_of("RunInstances")[0].clone();
    assert_eq!(host.param("MaxCount"), Some("3"));

    let suspend = chroot(root.path(), &["/slurm_suspend", "--config", config, "c5-[1-2]"]);
    assert!(suspend.status.success(), "{}\n{}", text(&suspend), log(root.path(), "slurm_suspend"));
    assert_eq!(ec2.live_instances().len(), 1);

    // There is no scontrol to bring the node back with, which it says; the instance goes all the same.
    let fail = chroot(root.path(), &["/slurm_resume_fail", "--config", config, "c5-3"]);
    assert_eq!(fail.status.code(), Some(1), "{}\n{}", text(&fail), log(root.path(), "slurm_resume_fail"));
    assert_eq!(ec2.live_instances().len(), 0);
    let mapping = fs::read_to_string(root.path().join("var/lib/slurm-ec2/mapping.json")).unwrap();
    assert!(!mapping.contains("i-0"), "{mapping}");
}

#[test]
fn moto_is_reached_by_host_name() {
    let moto = Moto::start();
    moto.call(
        "Action=CreateLaunchTemplate&LaunchTemplateName=hpc-c5&LaunchTemplateData.ImageId=ami-12c6146b&LaunchTemplateData.InstanceType=t3.micro",
    );
    let root = tempfile::tempdir().unwrap();
    furnish(root.path(), moto.port);
    // Without it a program has half a minute, and moto reads its data on instances first.
    fs::create_dir(root.path().join("etc/slurm")).unwrap();
    fs::write(root.path().join("etc/slurm/slurm.conf"), "ResumeTimeout=600\n").unwrap();
    let resume = chroot(root.path(), &["/slurm_resume", "c5-[1-2]"]);
    assert_eq!(resume.status.code(), Some(0), "{}\n{}", text(&resume), log(root.path(), "slurm_resume"));
    let found = moto.call("Action=DescribeInstances");
    assert_eq!(found.matches("<name>running</name>").count(), 2, "{found}");
    let suspend = chroot(root.path(), &["/slurm_suspend", "c5-[1-2]"]);
    assert!(suspend.status.success(), "{}", text(&suspend));
    let found = moto.call("Action=DescribeInstances");
    assert_eq!(found.matches("<name>running</name>").count(), 0, "{found}");
}

/// Everything that is in the root.
fn furnish(root: &Path, port: u16) {
    for folder in ["etc/slurm-ec2", "etc/ssl/certs", "dev", "var/lib", "var/log"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    for program in PROGRAMS {
        copy_to_run(&program_path(program), &root.join(program));
    }
    fs::copy("/etc/ssl/certs/ca-certificates.crt", root.join("etc/ssl/certs/ca-certificates.crt")).unwrap();
    fs::write(root.join("etc/resolv.conf"), "nameserver 127.0.0.1\n").unwrap();
    fs::write(root.join("etc/hosts"), "127.0.0.1 localhost\n127.0.0.1 ec2.example.test\n").unwrap();
    for (device, minor) in [("null", "3"), ("urandom", "9")] {
        let made = Command::new("mknod").arg(root.join("dev").join(device)).args(["c", "1", minor]).status();
        // Not root: a user namespace may not make devices. The programs do without.
        let _ = made;
    }
    fs::write(root.join("etc/slurm-ec2/credentials"), "[default]\naws_access_key_id = A\naws_secret_access_key = B\n").unwrap();
    fs::write(
        root.join("etc/slurm-ec2/slurm-ec2.toml"),
        format!(
            "cluster = \"hpc\"\nregion = \"eu-west-1\"\n[aws]\nendpoint_url = \"http://ec2.example.test:{port}\"\n\
             credentials_file = \"/etc/slurm-ec2/credentials\"\n[slurm]\nnode_address = \"none\"\n\
             [[group]]\nname = \"c5\"\nnodes = \"c5-[1-10]\"\nlaunch_template = \"hpc-c5\"\nstrategy = \"all-or-nothing\"\n"
        ),
    )
    .unwrap();
}

fn chroot(root: &Path, args: &[&str]) -> Output {
    let mut command = if nix_is_root() { Command::new("chroot") } else { Command::new("unshare") };
    if !nix_is_root() {
        command.args(["--map-root-user", "chroot"]);
    }
    command.arg(root).args(args).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").output().unwrap()
}

fn nix_is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn log(root: &Path, program: &str) -> String {
    fs::read_to_string(root.join(format!("var/log/slurm-ec2/{program}.log"))).unwrap_or_default()
}
