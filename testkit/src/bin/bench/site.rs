//! A head node for one run: configuration, state folder, the recording scontrol of tests/bin. Removed when it is dropped.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::measure::{self, Running};

/// ParallelCluster's table of nodes.
pub(crate) const NODE_TABLE: &str = "parallelcluster-slurm-hpc";

pub(crate) struct Site {
    dir: PathBuf,
    hostlist: String,
}

impl Site {
    /// `nodes` nodes, evenly in `groups` groups that are named q0, q1, … ; everything else by the program's own defaults.
    pub(crate) fn new(ec2_url: &str, nodes: usize, groups: usize, bucket: bool) -> Result<Self, String> {
        Self::with(nodes, groups, |site, lists| site.configuration(ec2_url, lists, bucket))
    }

    /// The same on a ParallelCluster head node whose clustermgtd is alive: all-or-nothing by job, 500 nodes in a launch call and in
    /// a step of assignment, and its table of nodes; without the bucket and without DNS.
    pub(crate) fn parallelcluster(ec2_url: &str, dynamodb_url: &str, nodes: usize, groups: usize) -> Result<Self, String> {
        let site = Self::with(nodes, groups, |site, lists| site.parallelcluster_configuration(ec2_url, dynamodb_url, lists))?;
        let now = Command::new("date")
            .args(["-u", "+%Y-%m-%d %H:%M:%S.%6N+0000"])
            .output()
            .map_err(|error| format!("date: {error}"))?;
        let now = String::from_utf8_lossy(&now.stdout).trim().to_owned();
        fs::write(site.dir.join("clustermgtd_heartbeat"), now).map_err(|error| format!("the heartbeat: {error}"))?;
        Ok(site)
    }

    fn with(nodes: usize, groups: usize, configuration: impl FnOnce(&Self, &[String]) -> String) -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("slurm-ec2-bench-{}-{number}", std::process::id()));
        fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let each = nodes / groups;
        let lists: Vec<String> = (0..groups).map(|group| format!("q{group}-dy-c5large-[1-{each}]")).collect();
        let site = Site { dir, hostlist: lists.join(",") };
        site.fill(&lists, &configuration(&site, &lists)).map_err(|error| format!("{}: {error}", site.dir.display()))?;
        Ok(site)
    }

    fn fill(&self, lists: &[String], configuration: &str) -> std::io::Result<()> {
        fs::create_dir(self.dir.join("bin"))?;
        std::os::unix::fs::symlink(repository().join("tests/bin/scontrol"), self.dir.join("bin/scontrol"))?;
        let slurm_conf = "ClusterName=hpc\nSlurmUser=root\nResumeTimeout=600\nSuspendTimeout=120\n";
        fs::write(self.dir.join("slurm.conf"), slurm_conf)?;
        let keys = "[default]\naws_access_key_id = AKIDEXAMPLE\naws_secret_access_key = secret\n";
        fs::write(self.dir.join("credentials"), keys)?;
        fs::write(self.dir.join("slurm-ec2.toml"), configuration)?;
        fs::write(self.dir.join("resume.json"), resume_file(lists))
    }

    fn configuration(&self, ec2_url: &str, lists: &[String], bucket: bool) -> String {
        let root = self.dir.display();
        let mut text = format!(
            "cluster = \"hpc\"\nregion = \"eu-west-1\"\n\
             [aws]\nendpoint_url = \"{ec2_url}\"\ncredentials_file = \"{root}/credentials\"\n\
             [slurm]\nbin_dir = \"{root}/bin\"\nconf = \"{root}/slurm.conf\"\n\
             [state]\ndir = \"{root}/state\"\n[log]\ndir = \"{root}/log\"\n"
        );
        if !bucket {
            text.push_str("[launch]\nrequest_bucket = \"off\"\n");
        }
        for (number, nodes) in lists.iter().enumerate() {
            let _ = write!(text, "[[group]]\nname = \"q{number}\"\nnodes = \"{nodes}\"\nlaunch_template = \"hpc-q{number}\"\n");
        }
        text
    }

    fn parallelcluster_configuration(&self, ec2_url: &str, dynamodb_url: &str, lists: &[String]) -> String {
        let root = self.dir.display();
        let mut text = format!(
            "cluster = \"hpc\"\nregion = \"eu-west-1\"\n\
             [aws]\nendpoint_url = \"{ec2_url}\"\ndynamodb_endpoint_url = \"{dynamodb_url}\"\ncredentials_file = \"{root}/credentials\"\n\
             [slurm]\nbin_dir = \"{root}/bin\"\nconf = \"{root}/slurm.conf\"\n\
             [state]\ndir = \"{root}/state\"\n[log]\ndir = \"{root}/log\"\n\
             [launch]\nrequest_bucket = \"off\"\nscale_by = \"job\"\nstrategy = \"all-or-nothing\"\nbatch_size = 500\n\
             [publish]\nbatch_size = 500\n\
             [node_table]\ntable = \"{NODE_TABLE}\"\nhead_node_private_ip = \"10.40.0.17\"\nhead_node_hostname = \"head\"\n\
             [parallelcluster]\nheartbeat = \"{root}/clustermgtd_heartbeat\"\n"
        );
        for number in 0..lists.len() {
            let _ = write!(
                text,
                "[[group]]\nname = \"q{number}.c5large\"\nqueue = \"q{number}\"\ncompute_resource = \"c5large\"\n\
                 launch_template = \"hpc-q{number}-c5large\"\ncapacity = \"template\"\n"
            );
        }
        text
    }

    /// Starts `slurm_resume` for all nodes, as slurmctld does: a resume file, two variables, no standard streams.
    pub(crate) fn resume(&self, programs: &Path) -> Result<Running, String> {
        let (config, conf, file) = (self.dir.join("slurm-ec2.toml"), self.dir.join("slurm.conf"), self.dir.join("resume.json"));
        let env = [("SLURM_EC2_CONFIG", &*config), ("SLURM_CONF", &*conf), ("SLURM_RESUME_FILE", &*file)];
        measure::start(&programs.join("slurm_resume"), &[&self.hostlist], &env, &self.dir)
    }

    /// Starts clustermgtd.
    pub(crate) fn clustermgtd(&self, programs: &Path) -> Result<Running, String> {
        let (config, conf) = (self.dir.join("slurm-ec2.toml"), self.dir.join("slurm.conf"));
        let env = [("SLURM_EC2_CONFIG", &*config), ("SLURM_CONF", &*conf)];
        measure::start(&programs.join("clustermgtd"), &[], &env, &self.dir)
    }

    /// Writes a file below the site's folder; folders are made.
    pub(crate) fn write(&self, path: &str, text: &[u8]) -> Result<(), String> {
        let path = self.dir.join(path);
        let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
        folder.and_then(|()| fs::write(&path, text)).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// A file below the site's folder; empty when it is not there.
    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.dir.join(path)).unwrap_or_default()
    }

    /// How often scontrol was called. Lines with a mark in front are what came on its standard input.
    pub(crate) fn scontrol_calls(&self) -> usize {
        let log = fs::read_to_string(self.dir.join("bin/scontrol.log")).unwrap_or_default();
        log.lines().filter(|line| !line.starts_with("< ")).count()
    }

    /// Nodes that mapping.json ties to an instance.
    pub(crate) fn mapped(&self) -> usize {
        let text = fs::read(self.dir.join("state/mapping.json")).unwrap_or_default();
        let mapping: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
        mapping["nodes"].as_object().map_or(0, |nodes| nodes.values().filter(|entry| entry["state"] == "running").count())
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

pub(crate) fn repository() -> &'static Path {
    let testkit = Path::new(env!("CARGO_MANIFEST_DIR"));
    testkit.parent().unwrap_or(testkit)
}

/// One job per group, as Slurm 24.11 writes them.
fn resume_file(lists: &[String]) -> String {
    let job = |(number, nodes): (usize, &String)| {
        serde_json::json!({
            "extra": null, "features": null, "job_id": 1000 + number, "nodes_alloc": nodes, "nodes_resume": nodes,
            "oversubscribe": "OK", "partition": format!("q{number}"), "reservation": null,
        })
    };
    let jobs: Vec<serde_json::Value> = lists.iter().enumerate().map(job).collect();
    serde_json::json!({"all_nodes_resume": lists.join(","), "jobs": jobs}).to_string()
}
