//! A compute node for one test: its own folder, a heartbeat file, the scontrol stand-in, a metadata service, a shutdown that only writes
//! down that it was called, and computemgtd as systemd starts it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use slurm_ec2_testkit::ec2::Behaviour;
use slurm_ec2_testkit::imds::Endpoint;

use crate::site::{Site, program_path};

/// What a test waits for must come; this is only the end of a test that fails.
const PATIENCE: Duration = Duration::from_secs(120);

pub const NODE: &str = "c5-7";

/// What EC2 says two minutes before the end.
pub const NOTICE: &str = r#"{"action":"terminate","time":"2026-11-29T12:02:00Z"}"#;

/// A compute node with its own folder.
pub struct Node {
    pub site: Site,
    pub imds: Endpoint,
}

impl Node {
    pub fn new() -> Self {
        Self::with("")
    }

    /// `more` are further lines of `[computemgtd]`.
    pub fn with(more: &str) -> Self {
        let node = Self { site: Site::new(Behaviour::default()), imds: Endpoint::start() };
        let recorder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bin/recorder");
        for name in ["shutdown", "hook"] {
            symlink(&recorder, node.site.path("bin").join(name)).unwrap();
        }
        symlink(recorder.with_file_name("sudo"), node.site.path("bin/sudo")).unwrap();
        node.site.write("node-name", NODE);
        node.site.write("heartbeat", "2026-03-14 15:09:26.535897+0000");
        node.site.scontrol("state", "IDLE+CLOUD\n");
        node.configure(more);
        node
    }

    pub fn configure(&self, more: &str) {
        self.site.write("slurm-ec2.toml", &self.config(more, ""));
    }

    pub fn config(&self, more: &str, slurm: &str) -> String {
        let root = self.site.dir.path().display();
        let imds = self.imds.url();
        let timeout = if more.contains("heartbeat_timeout") { "" } else { "heartbeat_timeout = \"2s\"\n" };
        format!(
            "cluster = \"hpc\"\nregion = \"eu-west-1\"\n\
             [slurm]\nbin_dir = \"{root}/bin\"\nconf = \"{root}/slurm.conf\"\n{slurm}\
             [log]\ndir = \"{root}/log\"\nlevel = \"debug\"\n\
             [computemgtd]\nheartbeat = \"{root}/heartbeat\"\nnode_name_file = \"{root}/node-name\"\nshutdown = \"{root}/bin/shutdown\"\n\
             metadata_endpoint = \"{imds}\"\nspot_poll = \"1s\"\nloop_time = \"1s\"\n{timeout}{more}\
             [[group]]\nname = \"c5\"\nnodes = \"c5-[1-9]\"\nlaunch_template = {{ name = \"hpc-c5\", version = \"1\" }}\n"
        )
    }

    pub fn start(&self) -> Daemon<'_> {
        self.adopt(self.site.spawn("computemgtd", &[]))
    }

    /// A daemon that was started in some way of the test's own.
    pub fn adopt(&self, child: Child) -> Daemon<'_> {
        Daemon { node: self, child }
    }

    /// With processes of its own, which /proc shows alone, and one more of them started by `beside`.
    pub fn start_apart(&self, beside: &str) -> Daemon<'_> {
        let script = format!("{beside}\nexec {}", program_path("computemgtd").display());
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--map-root-user", "sh", "-c", &script]);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("SLURM_EC2_CONFIG", self.site.path("slurm-ec2.toml"));
        self.adopt(command.spawn().unwrap())
    }

    pub fn log(&self) -> String {
        self.site.log("computemgtd")
    }

    pub fn lines_with(&self, text: &str) -> usize {
        self.log().lines().filter(|line| line.contains(text)).count()
    }

    pub fn recorded(&self, name: &str) -> Vec<String> {
        let path = self.site.path("bin").join(format!("{name}.log"));
        fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    pub fn shutdowns(&self) -> Vec<String> {
        self.recorded("shutdown")
    }

    /// Waits until it is so.
    #[track_caller]
    pub fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < end, "not in two minutes: {what}\n{}\n{:?}", self.log(), self.site.scontrol_calls());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for whole loops from now on: each new content of the configuration is told of before the look that follows.
    #[track_caller]
    pub fn loops(&self, count: usize) {
        self.until("the start", || self.log().contains("started"));
        for number in 0..count {
            let seen = self.lines_with("the configuration has changed and counts");
            let path = self.site.path("slurm-ec2.toml");
            let text = fs::read_to_string(&path).unwrap();
            let next = self.site.path("next.toml");
            fs::write(&next, format!("# loop {number} of {seen}\n{text}")).unwrap();
            fs::rename(next, path).unwrap();
            self.until("a loop", || self.lines_with("the configuration has changed and counts") > seen);
        }
    }

    /// Replaces the heartbeat whole, as clustermgtd does.
    pub fn beat(&self, text: &str) {
        fs::write(self.site.path("heartbeat.new"), text).unwrap();
        fs::rename(self.site.path("heartbeat.new"), self.site.path("heartbeat")).unwrap();
    }
}

/// The daemon; ended with this value.
pub struct Daemon<'n> {
    node: &'n Node,
    child: Child,
}

impl Daemon<'_> {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([format!("-{name}"), self.pid().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    pub fn entries(&self, folder: &str) -> usize {
        fs::read_dir(format!("/proc/{}/{folder}", self.pid())).unwrap().count()
    }

    /// Its exit status after a SIGTERM.
    #[track_caller]
    pub fn end(mut self) -> Option<i32> {
        self.signal("TERM");
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < end, "it does not end\n{}", self.node.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
