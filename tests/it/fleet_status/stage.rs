//! A site with a fleet that can be stopped: nodes whose states follow the updates, a partition, and instances behind the nodes.

use std::fs;
use std::process::Child;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use slurm_ec2_testkit::ec2::Behaviour;

use crate::site::{GROUP, Ran, Site, finished};

/// What a test waits for must come; this is only the end of a test that fails.
pub const PATIENCE: Duration = Duration::from_secs(300);

pub const OFF: &str = "IDLE+CLOUD+POWERED_DOWN";
pub const BOOTING: &str = "ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP";

pub struct Fleet {
    pub site: Site,
}

impl Fleet {
    pub fn new(behaviour: Behaviour) -> Self {
        Self::with(behaviour, "[fleet]\npoll = \"1s\"\ntimeout = \"5m\"\n")
    }

    /// `sections` goes before the group.
    pub fn with(behaviour: Behaviour, sections: &str) -> Self {
        let site = Site::with(behaviour, "request_bucket = \"off\"\n", &format!("{sections}{GROUP}"));
        site.scontrol("live", "steps\n");
        site.scontrol("partitions", "PartitionName=q1\n   AllowGroups=ALL\n   State=UP TotalCPUs=1\n\n");
        Self { site }
    }

    /// From now on a start or stop gets so long.
    pub fn give(&self, before: &str, now: &str) {
        let text = fs::read_to_string(self.site.path("slurm-ec2.toml")).unwrap();
        let line = |time: &str| format!("\ntimeout = \"{time}\"\n");
        assert!(text.contains(&line(before)));
        self.site.write("slurm-ec2.toml", &text.replacen(&line(before), &line(now), 1));
    }

    /// Instances behind the nodes, by slurm_resume; then the nodes are in these states, at their instances' addresses.
    pub fn up(&self, nodes: &[(&str, &str)]) {
        let names: Vec<&str> = nodes.iter().map(|(name, _)| *name).collect();
        let booting: Vec<(&str, &str)> = names.iter().map(|name| (*name, BOOTING)).collect();
        self.show(&booting);
        let ran = self.site.run("slurm_resume", &[&names.join(",")]);
        assert_eq!(ran.code, Some(0), "{}", self.site.log("slurm_resume"));
        self.show(nodes);
        fs::remove_file(self.site.path("bin/scontrol.log")).unwrap();
    }

    /// What Slurm shows.
    pub fn show(&self, nodes: &[(&str, &str)]) {
        let mapping = self.site.mapping();
        let record = |(name, state): &(&str, &str)| {
            let address = mapping["nodes"][*name]["private_ip"].as_str().unwrap_or(name);
            format!(
                "NodeName={name} CoresPerSocket=1 \n   NodeAddr={address} NodeHostName={name} \n   State={state} \n   Partitions=q1 \n   \
                 BootTime=1700000000 SlurmdStartTime=1700000000\n\n"
            )
        };
        self.site.scontrol("nodes", &nodes.iter().map(record).collect::<String>());
    }

    /// Name, state and address of every node.
    pub fn nodes(&self) -> Vec<(String, String, String)> {
        let text = fs::read_to_string(self.site.path("bin/scontrol.nodes")).unwrap();
        let field = |record: &str, key: &str| {
            record.split_whitespace().find_map(|word| word.strip_prefix(key)).unwrap_or_default().to_owned()
        };
        let records = text.split("\n\n").filter(|record| !record.trim().is_empty());
        records.map(|record| (field(record, "NodeName="), field(record, "State="), field(record, "NodeAddr="))).collect()
    }

    /// A person drains the node.
    pub fn drain(&self, node: &str, reason: &str) {
        let ran = self.scontrol(&["update", &format!("nodename={node}"), "state=drain", &format!("reason={reason}")]);
        assert!(ran.status.success());
    }

    /// A person does something with scontrol.
    pub fn scontrol(&self, args: &[&str]) -> std::process::Output {
        std::process::Command::new(self.site.path("bin/scontrol")).args(args).output().unwrap()
    }

    /// The node's state, and its reason without the stamp.
    pub fn state_and_reason(&self, node: &str) -> (String, Option<String>) {
        let text = fs::read_to_string(self.site.path("bin/scontrol.nodes")).unwrap();
        let record = text.split("\n\n").find(|record| record.trim_start().starts_with(&format!("NodeName={node} "))).unwrap();
        let line = |key: &str| record.lines().find_map(|line| line.trim().strip_prefix(key));
        let reason = line("Reason=").map(|reason| reason.split(" [").next().unwrap().to_owned());
        (line("State=").unwrap().trim().to_owned(), reason)
    }

    pub fn partition(&self) -> String {
        let text = fs::read_to_string(self.site.path("bin/scontrol.partitions")).unwrap();
        text.split_whitespace().find_map(|word| word.strip_prefix("State=")).unwrap().to_owned()
    }

    pub fn status(&self) -> String {
        match fs::read(self.site.path("state/fleet-status.json")) {
            Ok(bytes) => serde_json::from_slice::<Value>(&bytes).unwrap()["status"].as_str().unwrap().to_owned(),
            Err(_) => "RUNNING".to_owned(),
        }
    }

    pub fn set_status(&self, status: &str) {
        fs::create_dir_all(self.site.path("state")).unwrap();
        self.site.write("state/fleet-status.json", &json!({ "status": status }).to_string());
    }

    pub fn fleet(&self, args: &[&str]) -> Ran {
        finished(self.command(args).output().unwrap())
    }

    pub fn command(&self, args: &[&str]) -> std::process::Command {
        let mut all = vec!["fleet"];
        all.extend(args);
        self.site.command("slurm-ec2", &all)
    }

    #[track_caller]
    pub fn wait(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(
                begun.elapsed() < PATIENCE,
                "{what} does not come: {} {:?}\n{}\n{}",
                self.status(),
                self.nodes(),
                self.site.log("clusterstatusmgtd"),
                self.site.log("slurm-ec2")
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Everything is off and nothing is left.
    #[track_caller]
    pub fn assert_stopped(&self) {
        let log = || format!("{}\n{}", self.site.log("slurm-ec2"), self.site.log("clusterstatusmgtd"));
        for (name, state, address) in self.nodes() {
            assert_eq!((state.as_str(), &address), (OFF, &name), "{}", log());
        }
        assert_eq!(self.partition(), "INACTIVE");
        assert!(self.site.live().is_empty(), "{:?}\n{}", self.site.live(), log());
        assert_eq!(self.site.mapping()["nodes"], json!({}));
        assert!(self.site.condemned().is_empty());
    }

    pub fn daemon(&self) -> Daemon<'_> {
        fs::create_dir_all(self.site.path("log")).unwrap();
        self.site.write("log/clusterstatusmgtd.log", "");
        let daemon = Daemon { fleet: self, child: self.site.spawn("clusterstatusmgtd", &[]) };
        self.wait("the daemon", || self.site.log("clusterstatusmgtd").contains("started"));
        daemon
    }
}

/// clusterstatusmgtd; killed when dropped.
pub struct Daemon<'a> {
    fleet: &'a Fleet,
    child: Child,
}

impl Daemon<'_> {
    /// Ends it as systemd does; its exit status.
    pub fn end(mut self) -> Option<i32> {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM).unwrap();
        self.child.wait().unwrap().code()
    }

    /// The same for one that may not end; `None`: it did not.
    pub fn end_in_time(mut self) -> Option<i32> {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM).unwrap();
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn log(&self) -> String {
        self.fleet.site.log("clusterstatusmgtd")
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
