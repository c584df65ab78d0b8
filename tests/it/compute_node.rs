//! A compute node for one test: its own folder, a heartbeat file, the scontrol stand-in, a metadata service, a shutdown that only writes
//! down that it was called, and computemgtd as systemd starts it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use slurm_ec2_testkit::ec2::Behaviour;
use slurm_ec2_testkit::imds::Endpoint;

use crate::site::{Site, program_path};

/// What a test waits for must come; this is only the end of a test that fails.
const PATIENCE: Duration = Duration::from_secs(120);

pub const NODE: &str = "c5-7";

/// What EC2 says two minutes before the end.
pub const NOTICE: &str = r#"{"action":"terminate","time":"2026-11-29T12:02:00Z"}"#;

/// Between two signals to a daemon that is to look again and again.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// A compute node with its own folder.
pub struct Node {
    pub site: Site,
    pub imds: Endpoint,
    /// The daemon that was started last.
    pid: Mutex<Option<Pid>>,
}

impl Node {
    pub fn new() -> Self {
        Self::with("")
    }

    /// `more` are further lines of `[computemgtd]`.
    ///
    /// A question to slurmctld may take as long as a loop, and two that are not answered in time are silence. So a loop is long here, for
    /// a scontrol that a loaded machine keeps waiting, and tests that wait for looks have the daemon look (`looking`).
    pub fn with(more: &str) -> Self {
        let node = Self { site: Site::new(Behaviour::default()), imds: Endpoint::start(), pid: Mutex::default() };
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
        let unless_given = |key: &str, value: &str| match more.contains(key) {
            true => String::new(),
            false => format!("{key} = \"{value}\"\n"),
        };
        let times = unless_given("heartbeat_timeout", "2s") + &unless_given("loop_time", "1m");
        format!(
            "cluster = \"hpc\"\nregion = \"eu-west-1\"\n\
             [slurm]\nbin_dir = \"{root}/bin\"\nconf = \"{root}/slurm.conf\"\n{slurm}\
             [log]\ndir = \"{root}/log\"\nlevel = \"debug\"\n\
             [computemgtd]\nheartbeat = \"{root}/heartbeat\"\nnode_name_file = \"{root}/node-name\"\nshutdown = \"{root}/bin/shutdown\"\n\
             metadata_endpoint = \"{imds}\"\nspot_poll = \"1s\"\n{times}{more}\
             [[group]]\nname = \"c5\"\nnodes = \"c5-[1-9]\"\nlaunch_template = {{ name = \"hpc-c5\", version = \"1\" }}\n"
        )
    }

    pub fn start(&self) -> Daemon<'_> {
        self.start_as(self.command(""))
    }

    /// The daemon with processes of its own, which /proc shows alone: a slurmd of this machine would tell it another name. `beside` starts
    /// more of them.
    pub fn command(&self, beside: &str) -> Command {
        let script = format!("{beside}\nexec {}", program_path("computemgtd").display());
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--map-root-user", "sh", "-c", &script]);
        command.env_clear().env("PATH", "/usr/bin:/bin");
        command.env("SLURM_EC2_CONFIG", self.site.path("slurm-ec2.toml")).env("SLURM_CONF", self.site.path("slurm.conf"));
        command.current_dir(self.site.dir.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// As [`Self::command`] has made it and the test has changed it.
    pub fn start_as(&self, mut command: Command) -> Daemon<'_> {
        let daemon = Daemon { node: self, child: command.spawn().unwrap() };
        self.until("the daemon's process", || daemon.found().is_some());
        *self.pid.lock().unwrap() = daemon.found();
        daemon
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
        self.wait(what, || {}, is_so);
    }

    /// Waits until it is so, and has the daemon look again and again meanwhile.
    #[track_caller]
    pub fn looking(&self, what: &str, is_so: impl Fn() -> bool) {
        self.wait(what, || self.look(), is_so);
    }

    #[track_caller]
    fn wait(&self, what: &str, now_and_then: impl Fn(), is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        let mut done: Option<Instant> = None;
        while !is_so() {
            assert!(begun.elapsed() < PATIENCE, "not in two minutes: {what}\n{}\n{:?}", self.log(), self.site.scontrol_calls());
            if done.is_none_or(|at| at.elapsed() >= LOOK_AGAIN) {
                now_and_then();
                done = Some(Instant::now());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Has the daemon look. Not before it listens, for the signal would end it.
    fn look(&self) {
        if let Some(pid) = self.pid.lock().unwrap().filter(|_| self.log().contains("started")) {
            kill(pid, Signal::SIGHUP).unwrap();
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
            self.looking("a loop", || self.lines_with("the configuration has changed and counts") > seen);
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
    /// unshare, which ends with the daemon's exit status.
    child: Child,
}

impl Daemon<'_> {
    /// The one child of unshare.
    fn found(&self) -> Option<Pid> {
        let parent = self.child.id().to_string();
        let is_it = |pid: &i32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // Behind the name, which may hold anything: state, parent.
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.split(' ').nth(1) == Some(parent.as_str()))
        };
        let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.find(is_it).map(Pid::from_raw)
    }

    fn pid(&self) -> Pid {
        self.node.pid.lock().unwrap().unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    pub fn entries(&self, folder: &str) -> usize {
        fs::read_dir(format!("/proc/{}/{folder}", self.pid())).unwrap().count()
    }

    /// Its exit status after a SIGTERM.
    #[track_caller]
    pub fn end(mut self) -> Option<i32> {
        self.signal(Signal::SIGTERM);
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
