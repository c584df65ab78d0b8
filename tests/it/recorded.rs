//! The resume files that real slurmctlds of three versions wrote (tests/data/resume-files), each through the real programs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;
use slurm_ec2_testkit::ec2::Behaviour;

use crate::site::{Site, finished};

/// The cluster they were recorded on.
const GROUPS: &str = "[[group]]\nname = \"q1\"\nnodes = \"q1-dy-[1-1000],q1-st-[1-9]\"\nlaunch_template = { name = \"hpc-q1\", version = \"1\" }\n\
                      [[group]]\nname = \"q2\"\nnodes = \"q2-dy-[01-99]\"\nlaunch_template = { name = \"hpc-q2\", version = \"1\" }\n";

#[test]
fn b10_every_recorded_resume_file_wakes_its_nodes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/resume-files");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "json"));
    paths.sort();
    assert_eq!(paths.len(), 59);
    for path in paths {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let file: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let list = file.get("all_nodes_resume").or_else(|| file.get("all_nodes")).unwrap().as_str().unwrap();
        let jobs: BTreeSet<String> =
            file["jobs"].as_array().unwrap().iter().map(|job| job["job_id"].as_u64().unwrap().to_string()).collect();
        let site = Site::with(Behaviour { full_size: false, ..Behaviour::default() }, "request_bucket = \"off\"\n", GROUPS);

        let expanded = site.run("slurm-ec2", &["expand", list]);
        let nodes: BTreeSet<&str> = expanded.stdout.lines().collect();
        assert!(!nodes.is_empty(), "{name}: {}", expanded.stderr);

        let dry = site.command("slurm_resume", &["--dry-run", list]).env("SLURM_RESUME_FILE", &path).output().unwrap();
        let dry = finished(dry);
        assert_eq!((dry.code, dry.stderr.as_str()), (Some(0), ""), "{name}");
        let planned: usize =
            dry.stdout.lines().map(|line| line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap()).sum();
        assert!(planned == nodes.len() && dry.stdout.lines().all(|line| line.starts_with("launch")), "{name}: {}", dry.stdout);

        let ran = site.command("slurm_resume", &[list]).env("SLURM_RESUME_FILE", &path).output().unwrap();
        let log = site.log("slurm_resume");
        assert_eq!(finished(ran).code, Some(0), "{name}: {log}");
        assert!(!log.contains(" WARN "), "{name}: {log}");
        let running = site.running();
        assert_eq!(running.iter().map(|(node, _)| node.as_str()).collect::<BTreeSet<_>>(), nodes, "{name}");
        let started = log.lines().find(|line| line.contains("started")).unwrap();
        let told = started.split("jobs=\"").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!(told.split(',').filter(|id| !id.is_empty()).map(str::to_owned).collect::<BTreeSet<_>>(), jobs, "{name}");
    }
}
