//! docs/parallelcluster.md: its commands are run on a head node of a temporary folder, its keys are read by the programs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use slurm_ec2_testkit::ec2::Behaviour;

use crate::site::{Ran, Site, copy_to_run, finished, program_path};

const PAGE: &str = include_str!("../../docs/parallelcluster.md");
const VENV: &str = "opt/parallelcluster/pyenv/versions/3.12.8/envs/node_virtualenv/bin";
const COOKBOOK: &str = "opt/parallelcluster/pyenv/versions/3.12.8/envs/cookbook_virtualenv/bin";
const STATUS_SCRIPT: &str = "opt/parallelcluster/scripts/clusterstatusmgtd.py";

/// The package's programs in its virtual environment.
const PACKAGE: [&str; 5] = ["clustermgtd", "computemgtd", "slurm_fleet_status_manager", "slurm_resume", "slurm_suspend"];

/// The page's blocks of a language.
fn blocks(language: &str) -> Vec<&'static str> {
    PAGE.split(&format!("```{language}\n")).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

fn block(first_line: &str) -> &'static str {
    blocks("sh").into_iter().find(|block| block.starts_with(first_line)).unwrap()
}

/// A folder that stands for `/`, with the package's programs where its virtual environment has them. supervisorctl notes what it is told.
fn head_node() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for folder in [VENV, COOKBOOK, "opt/parallelcluster/scripts", "var/lib", "usr/local/bin"] {
        fs::create_dir_all(root.path().join(folder)).unwrap();
    }
    for program in PACKAGE {
        fs::write(root.path().join(VENV).join(program), format!("#!python\n# {program} of the package\n")).unwrap();
    }
    fs::write(root.path().join(STATUS_SCRIPT), "#!python\n# clusterstatusmgtd of the cookbook\n").unwrap();
    let supervisorctl = root.path().join("supervisorctl");
    fs::write(&supervisorctl, format!("#!/bin/sh\necho \"$*\" >>{}/supervisorctl.log\n", root.path().display())).unwrap();
    fs::set_permissions(&supervisorctl, fs::Permissions::from_mode(0o755)).unwrap();
    copy_to_run(&supervisorctl, &root.path().join(COOKBOOK).join("supervisorctl"));
    root
}

/// What supervisorctl was told since the last time.
fn supervised(root: &Path) -> String {
    let path = root.join("supervisorctl.log");
    let told = fs::read_to_string(&path).unwrap_or_default();
    let _ = fs::remove_file(path);
    told
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

/// Is it our program of that name?
fn is_ours(program: &str, command: &mut Command) -> bool {
    let version = command.arg("--version").output().unwrap();
    String::from_utf8_lossy(&version.stdout).starts_with(&format!("{program} "))
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

/// Runs a block twice: the second run must lose nothing. Ours are then these, with the package's beside them.
fn put(root: &Path, first_line: &str, ours: &[&str]) {
    let bin = root.join(VENV);
    for _ in 0..2 {
        let ran = run(root, block(first_line));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        for program in ours {
            assert!(is_ours(program, &mut Command::new(bin.join(program))), "{program} is not ours");
            assert_eq!(fs::metadata(bin.join(program)).unwrap().permissions().mode() & 0o777, 0o755);
            assert!(package(bin.join(format!("{program}.package"))), "a second run lost the package's {program}");
        }
    }
}

/// Everything is the package's again, and nothing else is left.
fn gone_back(root: &Path) {
    assert_eq!(names(&root.join(VENV)), PACKAGE);
    assert!(PACKAGE.iter().all(|program| package(root.join(VENV).join(program))));
    assert_eq!(names(&root.join("opt/parallelcluster/scripts")), ["clusterstatusmgtd.py"]);
    assert!(package(root.join(STATUS_SCRIPT)));
    assert!(!root.join("var/lib/slurm-ec2").exists(), "a later take-over would find stale entries");
}

#[test]
fn its_commands_put_the_programs_in_place_and_back() {
    let root = head_node();
    put(root.path(), "# put in place", &["slurm_resume", "slurm_suspend"]);
    assert!(package(root.path().join(VENV).join("clustermgtd")));
    assert!(root.path().join("usr/local/bin/slurm-ec2").exists());
    assert_eq!(fs::metadata(root.path().join("var/lib/slurm-ec2")).unwrap().permissions().mode() & 0o777, 0o750);
    fs::write(root.path().join("var/lib/slurm-ec2/mapping.json"), "{}").unwrap();
    for _ in 0..2 {
        let ran = run(root.path(), block("# go back"));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        gone_back(root.path());
    }
    assert_eq!(supervised(root.path()), "", "nothing that supervisord starts has changed");
}

#[test]
fn its_commands_put_the_daemons_in_place_and_back() {
    let root = head_node();
    put(root.path(), "# put in place", &["slurm_resume", "slurm_suspend"]);
    put(root.path(), "# put the daemons in place", &["clustermgtd", "slurm_fleet_status_manager", "slurm_resume"]);
    assert_eq!(supervised(root.path()), "restart clustermgtd clusterstatusmgtd\n".repeat(2));
    // As supervisord starts it.
    assert!(is_ours("clusterstatusmgtd", Command::new("python3").arg(root.path().join(STATUS_SCRIPT))));
    assert!(package(root.path().join(format!("{STATUS_SCRIPT}.package"))));
    assert!(package(root.path().join(VENV).join("computemgtd")), "that is a compute node's");
    for told in ["restart clustermgtd clusterstatusmgtd\n", ""] {
        let ran = run(root.path(), block("# go back"));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        gone_back(root.path());
        assert_eq!(supervised(root.path()), told);
    }
}

#[test]
fn its_commands_take_the_daemons_back_alone() {
    let root = head_node();
    put(root.path(), "# put in place", &["slurm_resume", "slurm_suspend"]);
    put(root.path(), "# put the daemons in place", &["clustermgtd"]);
    let sentence = PAGE.split("To go back with the daemons alone, write ").nth(1).unwrap();
    let [instead, of] = [1, 3].map(|part| sentence.split('`').nth(part).unwrap());
    let back = block("# go back").replace(of, instead).replace("rm -rf /var/lib/slurm-ec2", "");
    let ran = run(root.path(), &back);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let bin = root.path().join(VENV);
    assert!(["clustermgtd", "slurm_fleet_status_manager"].iter().all(|program| package(bin.join(program))));
    assert!(package(root.path().join(STATUS_SCRIPT)));
    assert!(is_ours("slurm_resume", &mut Command::new(bin.join("slurm_resume"))));
    assert!(root.path().join("var/lib/slurm-ec2").exists());
}

#[test]
fn its_commands_for_a_compute_node() {
    let root = head_node();
    put(root.path(), "# on a compute node", &["computemgtd"]);
    assert_eq!(supervised(root.path()), "restart computemgtd\n".repeat(2));
    assert!(package(root.path().join(VENV).join("slurm_resume")));
    let ran = run(root.path(), block("# go back"));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    gone_back(root.path());
    assert_eq!(supervised(root.path()), "restart computemgtd\n");
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
    assert_eq!(shown, 6, "does the search still work?");
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

/// supervisord's files of these daemons' output are root's: the daemons print what they would log.
#[test]
fn daemons_print_the_packages_lines_where_the_log_is_not_theirs() {
    let site = Site::new(Behaviour::default());
    let root = site.dir.path().display().to_string();
    let common = "cluster_name = orchard\nregion = eu-west-1\nproxy = NONE\n";
    // Not even root can open these.
    for daemon in ["clustermgtd", "clusterstatusmgtd"] {
        fs::create_dir_all(site.path("log").join(daemon)).unwrap();
    }
    site.write("fleet-config.json", "{}");
    site.write("state", "no folder");
    site.write(
        "parallelcluster_clustermgtd.conf",
        &format!(
            "[clustermgtd]\n{common}dynamodb_table = parallelcluster-slurm-orchard\nhead_node_private_ip = 10.40.0.17\n\
             head_node_hostname = ip-10-40-0-17\nheartbeat_file_path = {root}/heartbeat\nfleet_config_file = {root}/fleet-config.json\n\
             [slurm_ec2]\nstate_dir = {root}/state\nlog_dir = {root}/log\nendpoint_url = http://127.0.0.1:9\n"
        ),
    );
    site.write(
        "clusterstatusmgtd.conf",
        &format!(
            "[clusterstatusmgtd]\n{common}dynamodb_table = parallelcluster-orchard\ncomputefleet_status_path = {root}/status\n"
        ),
    );
    for (daemon, conf) in [("clustermgtd", "parallelcluster_clustermgtd.conf"), ("clusterstatusmgtd", "clusterstatusmgtd.conf")] {
        let mut command = site.command(daemon, &[]);
        command.env_remove("SLURM_EC2_CONFIG").env("CONFIG_FILE", site.path(conf)).env("SLURM_BINARIES_DIR", site.path("bin"));
        let ran = finished(command.output().unwrap());
        assert_eq!(ran.code, Some(78), "{daemon}: {}{}", ran.stdout, ran.stderr);
        assert_eq!(ran.stderr, "", "{daemon}: supervisord puts it into the same file");
        let head = format!(" - [{daemon}:");
        let is_package = |line: &str| line.get(23..).is_some_and(|rest| rest.starts_with(&head)) && line.contains("] - ");
        assert!(!ran.stdout.is_empty() && ran.stdout.lines().all(is_package), "{daemon}: {}", ran.stdout);
    }
}
