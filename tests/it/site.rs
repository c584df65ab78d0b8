//! One site for one test: a state folder, a configuration, a scontrol stand-in, an EC2 endpoint of its own.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use slurm_ec2_testkit::ec2::{Behaviour, Endpoint};
use tempfile::TempDir;

/// What a program left and said.
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

pub struct Site {
    pub dir: TempDir,
    pub ec2: Endpoint,
}

/// The group of most tests.
pub const GROUP: &str =
    "[[group]]\nname = \"c5\"\nnodes = \"c5-[1-2000]\"\nlaunch_template = { name = \"hpc-c5\", version = \"1\" }\n";

const SLURM_CONF: &str = "ClusterName=hpc\nSlurmUser=root\nResumeTimeout=600\nSuspendTimeout=120\n";

impl Site {
    /// A site with one group `c5` (nodes `c5-[1-2000]`), best effort, no request bucket.
    pub fn new(behaviour: Behaviour) -> Self {
        Self::with(behaviour, "request_bucket = \"off\"\n", GROUP)
    }

    /// `launch` are the lines of `[launch]`, `groups` the `[[group]]` tables.
    pub fn with(behaviour: Behaviour, launch: &str, groups: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let site = Self { dir, ec2: Endpoint::start(behaviour) };
        fs::create_dir(site.path("bin")).unwrap();
        let stand_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bin/scontrol");
        std::os::unix::fs::symlink(stand_in, site.path("bin/scontrol")).unwrap();
        site.patience();
        site.write("credentials", "[default]\naws_access_key_id = AKIDEXAMPLE\naws_secret_access_key = secret\n");
        site.configure(launch, groups);
        site
    }

    pub fn configure(&self, launch: &str, groups: &str) {
        let root = self.dir.path().display();
        let url = self.ec2.url();
        self.write(
            "slurm-ec2.toml",
            &format!(
                "cluster = \"hpc\"\nregion = \"eu-west-1\"\n\
                 [aws]\nendpoint_url = \"{url}\"\ncredentials_file = \"{root}/credentials\"\nconfig_file = \"{root}/aws-config\"\n\
                 [slurm]\nbin_dir = \"{root}/bin\"\nconf = \"{root}/slurm.conf\"\n\
                 [state]\ndir = \"{root}/state\"\n[log]\ndir = \"{root}/log\"\nlevel = \"debug\"\n\
                 [launch]\n{launch}\n{groups}"
            ),
        );
        self.write("aws-config", "");
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Replaces the file whole: a program that reads it at this moment finds the old text or the new one.
    pub fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        let next = path.with_file_name(format!(".{}.next", path.file_name().unwrap().to_str().unwrap()));
        fs::write(&next, text).unwrap();
        fs::rename(next, path).unwrap();
    }

    /// For what is to hang or never to work: slurm.conf leaves the programs this many seconds (half of ResumeTimeout), of which a launch may
    /// take three quarters. Whatever is to succeed runs before it, or after [`Self::patience`].
    pub fn limit(&self, seconds: u32) {
        self.write("slurm.conf", &format!("ClusterName=hpc\nSlurmUser=root\nResumeTimeout={}\n", 2 * seconds));
    }

    /// So little that what hangs is given up soon. All that has to be done before that takes a loaded machine a fraction.
    pub fn hurry(&self) {
        self.limit(12);
    }

    /// As much time as a new site has.
    pub fn patience(&self) {
        self.write("slurm.conf", SLURM_CONF);
    }

    /// A setting of the scontrol stand-in (see the top of tests/bin/scontrol).
    pub fn scontrol(&self, name: &str, text: &str) {
        self.write(&format!("bin/scontrol.{name}"), text);
    }

    /// The arguments of each scontrol call so far.
    pub fn scontrol_calls(&self) -> Vec<String> {
        fs::read_to_string(self.path("bin/scontrol.log")).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// The update calls so far.
    pub fn updates(&self) -> Vec<String> {
        self.scontrol_calls().into_iter().filter(|line| line.contains("update")).collect()
    }

    /// Ready to start, as slurmctld starts it: nothing in the environment but what it gives.
    pub fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program_path(program));
        command
            .args(args)
            .env_clear()
            .env("SLURM_EC2_CONFIG", self.path("slurm-ec2.toml"))
            .env("SLURM_CONF", self.path("slurm.conf"));
        command.current_dir(self.dir.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn run(&self, program: &str, args: &[&str]) -> Ran {
        finished(self.command(program, args).output().unwrap())
    }

    /// With a resume file.
    pub fn resume(&self, hostlist: &str, resume_file: &str) -> Ran {
        self.write("resume.json", resume_file);
        finished(self.command("slurm_resume", &[hostlist]).env("SLURM_RESUME_FILE", self.path("resume.json")).output().unwrap())
    }

    pub fn spawn(&self, program: &str, args: &[&str]) -> Child {
        self.command(program, args).spawn().unwrap()
    }

    pub fn log(&self, program: &str) -> String {
        fs::read_to_string(self.path(&format!("log/{program}.log"))).unwrap_or_default()
    }

    /// mapping.json; an empty mapping when it is not there.
    pub fn mapping(&self) -> Value {
        match fs::read(self.path("state/mapping.json")) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap(),
            Err(_) => serde_json::json!({"nodes": {}, "condemned": {}}),
        }
    }

    /// Node → instance of all running entries.
    pub fn running(&self) -> Vec<(String, String)> {
        let mapping = self.mapping();
        let nodes = mapping["nodes"].as_object().unwrap();
        nodes
            .iter()
            .filter(|(_, entry)| entry["state"] == "running")
            .map(|(node, entry)| (node.clone(), entry["instance_id"].as_str().unwrap().to_owned()))
            .collect()
    }

    pub fn condemned(&self) -> BTreeSet<String> {
        self.mapping()["condemned"].as_object().unwrap().keys().cloned().collect()
    }

    pub fn live(&self) -> BTreeSet<String> {
        self.ec2.live_instances().into_iter().map(|instance| instance.id).collect()
    }

    pub fn records(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.path("state/launches")) else { return Vec::new() };
        let mut records: Vec<_> =
            entries.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|e| e == "jsonl")).collect();
        records.sort();
        records
    }

    /// I1 and I2 once everything has settled: every live instance stands behind exactly one node or is condemned, and every mapped
    /// instance lives.
    #[track_caller]
    pub fn assert_settled(&self) {
        let running = self.running();
        let mapped: BTreeSet<String> = running.iter().map(|(_, id)| id.clone()).collect();
        assert_eq!(mapped.len(), running.len(), "two nodes share an instance: {running:?}");
        let live = self.live();
        let accounted: BTreeSet<String> = mapped.union(&self.condemned()).cloned().collect();
        assert!(
            live.is_subset(&accounted),
            "instances nobody knows: {:?}\nmapping {:#}",
            live.difference(&accounted),
            self.mapping()
        );
        assert!(mapped.is_subset(&live), "mapped but gone: {:?}", mapped.difference(&live));
    }
}

pub fn finished(output: Output) -> Ran {
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A file that is to be run, copied by a process of its own: this one's descriptor would go to whatever another test starts at this moment,
/// and until that has begun the copy is "busy".
pub fn copy_to_run(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success(), "{} cannot be copied", from.display());
}

/// The static release binaries where `$SLURM_EC2_BIN_DIR` names their folder (as `make test` does), else those of this build.
pub fn program_path(program: &str) -> PathBuf {
    match std::env::var_os("SLURM_EC2_BIN_DIR") {
        Some(dir) => PathBuf::from(dir).join(program),
        None => Path::new(env!("CARGO_BIN_EXE_slurm_resume")).with_file_name(program),
    }
}
