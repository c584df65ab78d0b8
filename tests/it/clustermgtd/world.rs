//! A site with a daemon in it.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::Value;
use slurm_ec2_testkit::ec2::Behaviour;

use crate::site::{Ran, Site, finished};

/// Nodes and a daemon that looks every second.
pub const GROUP: &str = "[clustermgtd]\nloop_time = \"1s\"\n\
    [[group]]\nname = \"c5\"\nnodes = \"c5-[1-5000]\"\nlaunch_template = { name = \"hpc-c5\", version = \"1\" }\n";

/// The same, but it looks once and then only when it is told to (`Daemon::step`): for what is to be seen between two passes.
pub const STEP_BY_STEP: &str = "[clustermgtd]\nloop_time = \"1h\"\n\
    [[group]]\nname = \"c5\"\nnodes = \"c5-[1-5000]\"\nlaunch_template = { name = \"hpc-c5\", version = \"1\" }\n";

/// The same as the first with nodes that are always up.
pub const STATIC: &str = "[clustermgtd]\nloop_time = \"1s\"\n\
    [[group]]\nname = \"c5\"\nnodes = \"c5-[1-20]\"\nstatic_nodes = \"c5-[1-2]\"\n\
    launch_template = { name = \"hpc-c5\", version = \"1\" }\n";

/// Nothing here takes longer; a failing test waits so long.
pub const PATIENCE: Duration = Duration::from_secs(300);

pub fn site(behaviour: Behaviour) -> Site {
    site_with(behaviour, GROUP)
}

pub fn site_with(behaviour: Behaviour, groups: &str) -> Site {
    let site = Site::with(behaviour, "request_bucket = \"off\"\n", groups);
    site.scontrol("live", "");
    site.scontrol("partitions", "PartitionName=q1\n   AllowGroups=ALL\n   State=UP TotalCPUs=1\n\n");
    site
}

/// One node as scontrol shows it.
pub fn node(name: &str, state: &str, address: Option<&str>) -> String {
    let address = address.unwrap_or(name);
    // Started long ago, used a moment ago: no grace and no idle time.
    format!(
        "NodeName={name} CoresPerSocket=1 \n   NodeAddr={address} NodeHostName={name} \n   State={state} \n   Partitions=q1 \n   \
         BootTime=1700000000 SlurmdStartTime=1700000000\n\n"
    )
}

/// The mapped nodes, at their instances' addresses.
pub fn nodes_of(site: &Site, state: &str) -> String {
    let mapping = site.mapping();
    let address = |name: &str| mapping["nodes"][name]["private_ip"].as_str().map(str::to_owned);
    site.running().iter().map(|(name, _)| node(name, state, address(name).as_deref())).collect()
}

pub struct Daemon<'a> {
    site: &'a Site,
    child: Option<Child>,
    steps: usize,
    /// The last pass whose end a step has waited for; before the first step an earlier daemon's.
    stepped: Value,
}

impl<'a> Daemon<'a> {
    pub fn start(site: &'a Site) -> Self {
        Self::with(site, site.command("clustermgtd", &[]))
    }

    pub fn with(site: &'a Site, mut command: Command) -> Self {
        let mut daemon = Self { site, child: None, steps: 0, stepped: Value::Null };
        daemon.stepped = daemon.began();
        daemon.child = Some(command.spawn().unwrap());
        daemon
    }

    /// One pass, and no more: waits for the end of the first one, later sets one off. Only with [`STEP_BY_STEP`].
    #[track_caller]
    pub fn step(&mut self) {
        if self.steps > 0 {
            self.signal(nix::sys::signal::Signal::SIGHUP);
        }
        self.steps += 1;
        let before = std::mem::take(&mut self.stepped);
        self.wait(|daemon| daemon.began() != before);
        self.stepped = self.began();
    }

    pub fn pid(&self) -> nix::unistd::Pid {
        nix::unistd::Pid::from_raw(self.child.as_ref().unwrap().id().cast_signed())
    }

    /// Waits for the end of so many passes that are not over yet.
    #[track_caller]
    pub fn passes(&mut self, count: usize) {
        let mut seen = self.began();
        let mut left = count;
        self.wait(|daemon| {
            let began = daemon.began();
            if began != seen {
                seen = began;
                left -= 1;
            }
            left == 0
        });
    }

    /// Waits until it is so.
    #[track_caller]
    pub fn wait(&mut self, mut is_so: impl FnMut(&Self) -> bool) {
        let begun = Instant::now();
        let mut looked = begun;
        while !is_so(self) {
            // A look that costs much (thousands of nodes) must not take all of the processor.
            let pause = looked.elapsed().max(Duration::from_millis(20));
            assert!(begun.elapsed() < PATIENCE, "it does not become so; {}\n{}", self.status(), self.log());
            if let Some(child) = &mut self.child {
                let ended = child.try_wait().unwrap();
                assert!(ended.is_none(), "it ended: {ended:?}\n{}", self.log());
            }
            std::thread::sleep(pause);
            looked = Instant::now();
        }
    }

    /// When the last pass that is over began.
    fn began(&self) -> Value {
        self.status()["pass"]["began"].clone()
    }

    /// The status file; null before the first pass is over.
    pub fn status(&self) -> Value {
        let text = fs::read(self.site.path("state/clustermgtd-status.json")).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or(Value::Null)
    }

    pub fn log(&self) -> String {
        self.site.log("clustermgtd")
    }

    /// State and address of a node in the stand-in.
    pub fn node(&self, name: &str) -> (String, String) {
        let text = fs::read_to_string(self.site.path("bin/scontrol.nodes")).unwrap();
        let record = text.split("\n\n").find(|record| record.starts_with(&format!("NodeName={name} "))).unwrap();
        let field = |key: &str| record.split_whitespace().find_map(|word| word.strip_prefix(key)).unwrap().to_owned();
        (field("State="), field("NodeAddr="))
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(self.pid(), signal).unwrap();
    }

    /// SIGTERM, and what it said and how it ended.
    #[track_caller]
    pub fn end(mut self) -> Ran {
        self.signal(nix::sys::signal::Signal::SIGTERM);
        finished(self.child.take().unwrap().wait_with_output().unwrap())
    }

    /// SIGTERM while it waits for something that does not come: it must not wait for that, nor for the time limit, which it would tell
    /// of. Gives the log.
    #[track_caller]
    pub fn end_at_once(self) -> String {
        let site = self.site;
        let ran = self.end();
        let log = site.log("clustermgtd");
        assert_eq!(ran.code, Some(0), "{log}");
        let (_, after) = log.split_once("SIGTERM: ending").unwrap_or_else(|| panic!("{log}"));
        assert!(!after.contains(" ERROR ") && !after.contains(" WARN "), "{log}");
        log
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
