//! docs/parallelcluster.md: its commands are run on a head node of a temporary folder, its keys are read by the programs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use slurm_ec2_testkit::ec2::Behaviour;

use crate::site::{Ran, Site, finished, program_path};

const PAGE: &str = include_str!("../../docs/parallelcluster.md");
const VENV: &str = "opt/parallelcluster/pyenv/versions/3.12.8/envs/node_virtualenv/bin";

/// The page's blocks of a language.
fn blocks(language: &str) -> Vec<&'static str> {
    PAGE.split(&format!("```{language}\n")).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

fn block(first_line: &str) -> &'static str {
    blocks("sh").into_iter().find(|block| block.starts_with(first_line)).unwrap()
}

/// A folder that stands for `/`, with the package's programs where its virtual environment has them.
fn head_node() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for folder in [VENV, "var/lib", "usr/local/bin"] {
        fs::create_dir_all(root.path().join(folder)).unwrap();
    }
    for program in ["slurm_resume", "slurm_suspend", "clustermgtd"] {
        fs::write(root.path().join(VENV).join(program), format!("#!python\n# {program} of the package\n")).unwrap();
    }
    root
}

/// Runs a block of the page there, as ourselves.
fn run(root: &Path, block: &str) -> Ran {
    let script = block
        .replace("/opt/", &format!("{}/opt/", root.display()))
        .replace("/var/lib/", &format!("{}/var/lib/", root.display()))
        .replace("/usr/local/", &format!("{}/usr/local/", root.display()))
        .replace("-o pcluster-admin -g pcluster-admin ", "");
    let programs = program_path("slurm_resume");
    let output = Command::new("sh").args(["-c", &script]).current_dir(programs.parent().unwrap()).output().unwrap();
    finished(output)
}

fn package(path: PathBuf) -> bool {
    fs::read(path).unwrap().starts_with(b"#!python")
}

#[test]
fn its_commands_put_the_programs_in_place_and_back() {
    let root = head_node();
    let bin = root.path().join(VENV);
    for _ in 0..2 {
        let ran = run(root.path(), block("# put in place"));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        for program in ["slurm_resume", "slurm_suspend"] {
            let version = Command::new(bin.join(program)).arg("--version").output().unwrap();
            assert!(String::from_utf8_lossy(&version.stdout).starts_with(program), "{program} is not ours: {version:?}");
            assert_eq!(fs::metadata(bin.join(program)).unwrap().permissions().mode() & 0o777, 0o755);
            assert!(package(bin.join(format!("{program}.package"))), "a second run lost the package's {program}");
        }
        assert!(package(bin.join("clustermgtd")));
        assert!(root.path().join("usr/local/bin/slurm-ec2").exists());
        assert_eq!(fs::metadata(root.path().join("var/lib/slurm-ec2")).unwrap().permissions().mode() & 0o777, 0o750);
    }
    fs::write(root.path().join("var/lib/slurm-ec2/mapping.json"), "{}").unwrap();
    for _ in 0..2 {
        let ran = run(root.path(), block("# go back"));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let mut names: Vec<_> =
            fs::read_dir(&bin).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        assert_eq!(names, ["clustermgtd", "slurm_resume", "slurm_suspend"]);
        assert!(names.iter().all(|name| package(bin.join(name))));
        assert!(!root.path().join("var/lib/slurm-ec2").exists(), "a later take-over would find stale entries");
    }
}

#[test]
fn the_commands_of_slurm_ec2_that_it_shows_are_there() {
    let mut shown = 0;
    for line in blocks("sh").iter().flat_map(|block| block.lines()) {
        let Some((_, command)) = line.split_once("slurm-ec2 ") else { continue };
        let word = command.split_whitespace().next().unwrap();
        if line.contains("install ") {
            continue;
        }
        shown += 1;
        let ran = finished(Command::new(program_path("slurm-ec2")).args([word, "--help"]).output().unwrap());
        assert_eq!(ran.code, Some(0), "slurm-ec2 {word}: {}", ran.stderr);
    }
    assert_eq!(shown, 4, "does the search still work?");
}

/// `slurm-ec2 check` of a head node whose file ends in these lines.
fn check(lines: &str) -> Ran {
    let site = Site::new(Behaviour::default());
    let root = site.dir.path().display().to_string();
    let core = json!({"Api": "run-instances", "CapacityType": "on-demand", "Instances": [{"InstanceType": "c5.large"}]});
    site.write("fleet-config.json", &json!({"apple": {"core": core}}).to_string());
    site.write(
        "parallelcluster_slurm_resume.conf",
        &format!(
            "[slurm_resume]\ncluster_name = orchard\nregion = eu-west-1\ndynamodb_table = parallelcluster-slurm-orchard\n\
             head_node_private_ip = 10.40.0.17\nhead_node_hostname = ip-10-40-0-17.eu-west-1.compute.internal\n\
             clustermgtd_heartbeat_file_path = {root}/heartbeat\nfleet_config_file = {root}/fleet-config.json\n{lines}"
        ),
    );
    let mut command = site.command("slurm-ec2", &["check"]);
    command.env_remove("SLURM_EC2_CONFIG").env("SLURM_CONF", "/nonexistent/slurm.conf");
    finished(command.env("CONFIG_FILE", site.path("parallelcluster_slurm_resume.conf")).output().unwrap())
}

#[test]
fn its_section_is_read_and_so_is_every_key_of_its_table() {
    let section = blocks("ini")[0];
    let ran = check(section);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("fine; 1 compute resources"), "{}", ran.stdout);
    let table = PAGE.split("\n| key | default | meaning |\n").nth(1).unwrap();
    let keys: Vec<&str> =
        table.lines().skip(1).take_while(|line| line.starts_with("| `")).map(|line| line.split('`').nth(1).unwrap()).collect();
    assert_eq!(keys.len(), 8, "{keys:?}");
    for line in section.lines().skip(1) {
        assert!(keys.contains(&line.split(" = ").next().unwrap()), "{line} is not in the table");
    }
    // An empty value counts as none; an unknown key is refused.
    for key in keys.iter().filter(|key| !["request_bucket", "deadline"].contains(key)) {
        let ran = check(&format!("[slurm_ec2]\n{key} =\n"));
        assert_eq!(ran.code, Some(0), "{key}: {}", ran.stderr);
    }
    assert_eq!(check("[slurm_ec2]\nstate_folder = /x\n").code, Some(78));
}
