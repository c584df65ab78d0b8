//! computemgtd as systemd starts it on a compute node, against a heartbeat file, the scontrol stand-in, a metadata service of the test's
//! own, and a shutdown that only writes down that it was called.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use slurm_ec2_testkit::ec2::Behaviour;
use slurm_ec2_testkit::imds::{Endpoint, Fault};

use crate::site::{Site, program_path};

const NODE: &str = "c5-7";

const UNREACHABLE: &str = "1\nslurm_load_node error: Unable to contact slurm controller (connect failure)\n";

/// A compute node with its own folder.
pub struct Node {
    pub site: Site,
    imds: Endpoint,
}

impl Node {
    pub fn new() -> Self {
        Self::with("")
    }

    /// `more` are further lines of `[computemgtd]`.
    fn with(more: &str) -> Self {
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

    fn configure(&self, more: &str) {
        self.site.write("slurm-ec2.toml", &self.config(more, ""));
    }

    fn config(&self, more: &str, slurm: &str) -> String {
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

    fn start(&self) -> Daemon<'_> {
        self.adopt(self.site.spawn("computemgtd", &[]))
    }

    /// A daemon that was started in some way of the test's own.
    pub fn adopt(&self, child: Child) -> Daemon<'_> {
        Daemon { node: self, child }
    }

    /// With processes of its own, which /proc shows alone, and one more of them started by `beside`.
    fn start_apart(&self, beside: &str) -> Daemon<'_> {
        let script = format!("{beside}\nexec {}", program_path("computemgtd").display());
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--map-root-user", "sh", "-c", &script]);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("SLURM_EC2_CONFIG", self.site.path("slurm-ec2.toml"));
        self.adopt(command.spawn().unwrap())
    }

    fn log(&self) -> String {
        self.site.log("computemgtd")
    }

    fn lines_with(&self, text: &str) -> usize {
        self.log().lines().filter(|line| line.contains(text)).count()
    }

    fn recorded(&self, name: &str) -> Vec<String> {
        let path = self.site.path("bin").join(format!("{name}.log"));
        fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn shutdowns(&self) -> Vec<String> {
        self.recorded("shutdown")
    }

    /// Waits until it is so.
    #[track_caller]
    fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < end, "not in a minute: {what}\n{}\n{:?}", self.log(), self.site.scontrol_calls());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for whole loops from now on: each new content of the configuration is told of before the look that follows.
    #[track_caller]
    fn loops(&self, count: usize) {
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
    fn beat(&self, text: &str) {
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
    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([format!("-{name}"), self.pid().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    fn entries(&self, folder: &str) -> usize {
        fs::read_dir(format!("/proc/{}/{folder}", self.pid())).unwrap().count()
    }

    /// Its exit status after a SIGTERM.
    #[track_caller]
    pub fn end(mut self) -> Option<i32> {
        self.signal("TERM");
        let end = Instant::now() + Duration::from_secs(30);
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

#[test]
fn w03_a_stale_heartbeat_and_a_node_that_is_off_shut_it_down_once() {
    for state in ["IDLE+CLOUD+POWERED_DOWN", "IDLE+CLOUD+POWERING_DOWN", "DOWN+CLOUD+SOMETHING_NEW"] {
        let node = Node::new();
        node.site.scontrol("state", &format!("{state}\n"));
        // What the log held when shutdown began.
        node.site.write("bin/shutdown.copy", &node.site.path("log/computemgtd.log").display().to_string());
        let daemon = node.start();
        node.until("a shutdown", || !node.shutdowns().is_empty());
        let before = fs::read_to_string(node.site.path("bin/shutdown.copied")).unwrap();
        assert!(before.contains("this node shuts itself down") && before.contains(state), "{before}");
        node.loops(3);
        assert_eq!(node.shutdowns(), ["-h now"]);
        assert_eq!(node.lines_with("this node shuts itself down"), 1);
        assert_eq!(daemon.end(), Some(0));
    }
}

#[test]
fn w03_a_heartbeat_that_changes_keeps_the_node_on() {
    let node = Node::with("heartbeat_timeout = \"20s\"\n");
    node.site.scontrol("state", "IDLE+CLOUD+POWERED_DOWN\n");
    let _daemon = node.start();
    for beat in 0..6 {
        node.beat(&format!("2026-03-14 15:09:{beat:02}.535897+0000"));
        node.loops(1);
    }
    assert!(node.shutdowns().is_empty(), "{}", node.log());
    // Neither is slurmctld troubled.
    assert_eq!(node.site.scontrol_calls(), Vec::<String>::new());
}

#[test]
fn w03_a_healthy_node_runs_on_without_clustermgtd() {
    for state in ["ALLOCATED+CLOUD", "IDLE+CLOUD+DRAIN", "MIXED+CLOUD+SOMETHING_NEW", "DOWN+CLOUD+REBOOT_ISSUED"] {
        let node = Node::new();
        node.site.scontrol("state", &format!("{state}\n"));
        let _daemon = node.start();
        node.until("a decision", || node.log().contains("the heartbeat is stale"));
        node.loops(2);
        assert!(node.shutdowns().is_empty(), "{state}: {}", node.log());
        assert_eq!(node.lines_with("the heartbeat is stale"), 1, "told on change alone: {}", node.log());
        assert!(node.site.updates().is_empty());
    }
}

/// The whole time-out, and no job here; a job runs for as long as it likes (aws-facts D.9 #20).
#[test]
fn w03_a_silent_slurmctld_shuts_down_an_idle_node_and_no_busy_one() {
    // Not a step: slurmd's own, that holds its cgroup.
    let holder = "ln -s /usr/bin/sleep slurmstepd; ./slurmstepd infinity &";
    let job = "ln -s /usr/bin/sleep slurmstepd; ./slurmstepd 1000 &";
    for (beside, busy) in [(holder, false), (job, true)] {
        let node = Node::new();
        node.site.scontrol("fail.show", UNREACHABLE);
        let folder = node.site.path("steps");
        fs::create_dir(&folder).unwrap();
        let _daemon = node.start_apart(&format!("cd {}; {beside}", folder.display()));
        if busy {
            node.until("a decision", || node.log().contains("but a job runs here"));
            node.loops(2);
            assert!(node.shutdowns().is_empty(), "{}", node.log());
            fs::remove_file(node.site.path("bin/scontrol.fail.show")).unwrap();
            node.until("an answer", || node.log().contains("slurmctld answers again"));
        } else {
            node.until("a shutdown", || !node.shutdowns().is_empty());
            assert!(node.log().contains("slurmctld does not answer since"), "{}", node.log());
        }
    }
}

#[test]
fn w02_a_heartbeat_that_hangs_does_not_stop_the_watch() {
    let node = Node::new();
    fs::remove_file(node.site.path("heartbeat")).unwrap();
    // Opening it waits for a writer, who never comes.
    assert!(Command::new("mkfifo").arg(node.site.path("heartbeat")).status().unwrap().success());
    let daemon = node.start();
    node.until("some looks", || node.site.scontrol_calls().len() >= 4);
    assert!(node.shutdowns().is_empty(), "{}", node.log());
    // One thread waits for the FIFO, not one for each look.
    let threads = daemon.entries("task");
    node.loops(3);
    assert!(daemon.entries("task") <= threads && threads <= 4, "{threads} and more threads");
    assert_eq!(node.lines_with("the heartbeat cannot be read"), 1, "{}", node.log());
    node.site.scontrol("state", "IDLE+CLOUD+POWERED_DOWN\n");
    node.until("a shutdown", || !node.shutdowns().is_empty());
    assert_eq!(daemon.end(), Some(0), "with a thread that hangs");
}

#[test]
fn w02_a_hanging_scontrol_or_configuration_does_not_keep_it_from_ending() {
    let node = Node::new();
    node.site.scontrol("hang.show", "");
    let daemon = node.start();
    node.until("a question", || !node.site.scontrol_calls().is_empty());
    fs::remove_file(node.site.path("slurm-ec2.toml")).unwrap();
    assert!(Command::new("mkfifo").arg(node.site.path("slurm-ec2.toml")).status().unwrap().success());
    daemon.signal("HUP");
    assert_eq!(daemon.end(), Some(0));
    assert!(node.shutdowns().is_empty());
}

#[test]
fn w04_time_zones_and_the_head_nodes_clock_play_no_part() {
    for zone in ["UTC", "America/Los_Angeles", "Asia/Kolkata"] {
        let node = Node::new();
        // An hour that Los Angeles does not have, long ago and far ahead.
        for time in ["2026-03-08 02:30:00.000000-0800", "1999-01-01 00:00:00.000000+0000", "2099-01-01 00:00:00.000000+0530"] {
            node.beat(time);
        }
        node.site.scontrol("state", "IDLE+CLOUD+POWERED_DOWN\n");
        let child = node.site.command("computemgtd", &[]).env("TZ", zone).spawn().unwrap();
        let _daemon = node.adopt(child);
        node.until("a shutdown", || !node.shutdowns().is_empty());
        let log = node.log();
        let line = log.lines().find(|line| line.contains("this node shuts itself down")).unwrap();
        let age: u64 = line.split("has not changed for ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert!((2..60).contains(&age), "{zone}: {line}");
    }
}

#[test]
fn w05_a_thousand_looks_leave_no_descriptor_open() {
    let node =
        Node::with("loop_time = \"1m\"\n".replace("loop_time", "spot_hook").replace("\"1m\"", "\"/nonexistent\"").as_str());
    let daemon = node.start();
    // Stale, so that each look asks scontrol as well.
    node.until("a question", || !node.site.scontrol_calls().is_empty());
    let look = |count: usize| {
        for _ in 0..count {
            let asked = node.site.scontrol_calls().len();
            daemon.signal("HUP");
            node.until("a look", || node.site.scontrol_calls().len() > asked);
        }
        // The last scontrol may still be at work.
        node.until("quiet", || daemon.entries("task") == 1);
        daemon.entries("fd")
    };
    let early = look(10);
    let late = look(1000);
    assert!(late <= early + 2, "{early} descriptors have become {late}");
    assert!(node.shutdowns().is_empty());
}

#[test]
fn w05_a_bad_configuration_is_told_once_and_the_last_good_one_counts() {
    let node = Node::new();
    let good = fs::read_to_string(node.site.path("slurm-ec2.toml")).unwrap();
    let _daemon = node.start();
    node.until("the start", || node.log().contains("started"));
    let refused = "the configuration has changed and cannot be used";
    for (count, bad) in [(1, "cluster = 3\n"), (2, ""), (3, "[computemgtd\n")] {
        node.site.write("slurm-ec2.toml", bad);
        node.until("the error", || node.lines_with(refused) >= count);
        let asked = node.site.scontrol_calls().len();
        node.until("two looks", || node.site.scontrol_calls().len() >= asked + 2);
        assert_eq!(node.lines_with(refused), count, "{}", node.log());
    }
    fs::remove_file(node.site.path("slurm-ec2.toml")).unwrap();
    node.until("the error", || node.lines_with(refused) == 4);
    node.site.write("slurm-ec2.toml", &good);
    node.until("the change", || node.log().contains("the configuration has changed and counts"));
    // By the last good one, all the time.
    node.site.write("slurm-ec2.toml", "garbage");
    node.site.scontrol("state", "DOWN+CLOUD\n");
    node.until("a shutdown", || !node.shutdowns().is_empty());
}

#[test]
fn w05_a_configuration_that_is_bad_or_absent_at_the_start_ends_it() {
    let node = Node::new();
    node.site.write("slurm-ec2.toml", "cluster = 3\n");
    let ran = node.site.run("computemgtd", &[]);
    assert!(ran.code == Some(78) && ran.stderr.contains("slurm-ec2.toml:1:"), "{:?} {}", ran.code, ran.stderr);
    // On NFS it may only not be there yet: systemd starts the daemon again.
    fs::remove_file(node.site.path("slurm-ec2.toml")).unwrap();
    assert_eq!(node.site.run("computemgtd", &[]).code, Some(75));
    assert_eq!(node.site.run("computemgtd", &["--nonsense"]).code, Some(2));
}

#[test]
fn a_shutdown_that_fails_is_tried_again_and_told_once() {
    let node = Node::new();
    node.site.scontrol("state", "DOWN+CLOUD\n");
    node.site.write("bin/shutdown.fail", "1\nFailed to connect to bus\n");
    let _daemon = node.start();
    node.until("three tries", || node.shutdowns().len() >= 3);
    assert_eq!(node.lines_with("Failed to connect to bus"), 1, "{}", node.log());
    fs::remove_file(node.site.path("bin/shutdown.fail")).unwrap();
    node.until("success", || node.log().contains("the shutdown has been accepted"));
    let count = node.shutdowns().len();
    node.loops(2);
    assert_eq!(node.shutdowns().len(), count);
}

#[test]
fn w03_through_sudo_as_parallelcluster_has_it() {
    let node = Node::new();
    let sudo = format!("sudo = \"{}\"\n", node.site.path("bin/sudo").display());
    node.site.write("slurm-ec2.toml", &node.config("", &sudo));
    node.site.scontrol("state", "DOWN+CLOUD\n");
    let _daemon = node.start();
    node.until("a shutdown", || !node.shutdowns().is_empty());
    let bin = node.site.path("bin").display().to_string();
    let calls = node.recorded("sudo");
    assert!(
        calls.iter().any(|call| call.starts_with(&format!("-n {bin}/scontrol --all --local show nodes {NODE}"))),
        "{calls:?}"
    );
    assert_eq!(calls.iter().filter(|call| **call == format!("-n {bin}/shutdown -h now")).count(), 1, "{calls:?}");
}

#[test]
fn switched_off_it_only_watches() {
    let node = Node::with("disabled = true\nspot_hook = \"/nonexistent/hook\"\n");
    node.site.scontrol("state", "DOWN+CLOUD\n");
    node.imds.set("spot/instance-action", NOTICE);
    let _daemon = node.start();
    node.until("both", || node.log().contains("shutting down is switched off") && node.log().contains("spot notice"));
    let seen = node.imds.count("spot/instance-action");
    node.until("further looks", || node.imds.count("spot/instance-action") >= seen + 2);
    assert!(node.shutdowns().is_empty() && node.site.scontrol_calls().is_empty(), "{}", node.log());
    assert!(!node.log().contains("hook"), "{}", node.log());
}

#[test]
fn a_host_name_that_slurm_does_not_know_shuts_nothing_down() {
    let node = Node::new();
    fs::remove_file(node.site.path("node-name")).unwrap();
    // Every name is unknown.
    node.site.scontrol("nodes", "NodeName=other CoresPerSocket=1 \n   State=DOWN+CLOUD \n\n");
    let _daemon = node.start_apart("");
    node.until("a decision", || node.log().contains("slurmctld knows no node"));
    node.loops(4);
    assert!(node.shutdowns().is_empty(), "{}", node.log());
}

const NOTICE: &str = r#"{"action":"terminate","time":"2026-11-29T12:02:00Z"}"#;

#[test]
fn w06_w07_a_spot_notice_requeues_once() {
    let node = Node::new();
    // Early in the boot the service stumbles.
    node.imds.fail_tokens([Fault::Status(503), Fault::Status(503)]);
    node.imds.set("spot/instance-action", NOTICE);
    let daemon = node.start();
    node.until("both updates", || node.site.updates().len() >= 2);
    let seen = node.imds.count("spot/instance-action");
    node.until("further looks", || node.imds.count("spot/instance-action") >= seen + 3);
    let reason = "reason=EC2 spot notice: terminate at 2026-11-29T12:02:00Z";
    assert_eq!(
        node.site.updates(),
        [
            format!("update nodename={NODE} state=drain {reason}"),
            // Not without the first: with ReturnToService=2 the node would be back in milliseconds.
            format!("update nodename={NODE} state=down {reason}"),
        ]
    );
    assert_eq!(node.imds.without_token(), 0, "{:?}", node.imds.requests());
    assert_eq!(node.lines_with("EC2 takes this instance away"), 1);
    assert!(node.recorded("hook").is_empty());
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn w07_the_hook_runs_once_between_drain_and_down_and_is_bounded() {
    let node = Node::new();
    node.configure(&format!("spot_hook = \"{}\"\n", node.site.path("bin/hook").display()));
    node.site.write("bin/hook.copy", &node.site.path("bin/scontrol.log").display().to_string());
    // The notice's time is long past, so that the hook gets five seconds; it wants a minute.
    node.site.write("bin/hook.hang", "");
    node.imds.set("spot/instance-action", r#"{"action":"stop","time":"2020-01-01T00:00:00Z"}"#);
    let _daemon = node.start();
    node.until("both updates", || node.site.updates().len() >= 2);
    assert_eq!(node.recorded("hook"), [format!("stop 2020-01-01T00:00:00Z {NODE}")]);
    let before = fs::read_to_string(node.site.path("bin/hook.copied")).unwrap();
    assert!(before.contains("state=drain") && !before.contains("state=down"), "{before}");
    assert_eq!(node.lines_with("did not end within 5 s"), 1, "{}", node.log());
    node.until("two more looks", || node.imds.count("spot/instance-action") >= 3);
    assert_eq!(node.recorded("hook").len(), 1);
}

#[test]
fn w07_what_slurmctld_may_not_be_told_is_said_once() {
    let node = Node::new();
    node.site.scontrol("fail.update", "1\nslurm_update error: Access/permission denied\n");
    node.imds.set("spot/instance-action", NOTICE);
    let _daemon = node.start();
    node.until("the error", || node.log().contains("nothing more is tried"));
    let seen = node.imds.count("spot/instance-action");
    node.until("further looks", || node.imds.count("spot/instance-action") >= seen + 3);
    assert_eq!(node.site.updates().len(), 1, "{:?}", node.site.updates());
    assert_eq!(node.lines_with("nothing more is tried"), 1);
}

#[test]
fn w07_a_slurmctld_that_does_not_answer_is_told_later() {
    let node = Node::new();
    node.site.scontrol("fail.update", "1\nslurm_update error: Unable to contact slurm controller (connect failure)\n");
    node.imds.set("spot/instance-action", NOTICE);
    let _daemon = node.start();
    node.until("a try", || !node.site.updates().is_empty());
    fs::remove_file(node.site.path("bin/scontrol.fail.update")).unwrap();
    node.until("success", || node.log().contains("set down, so that its jobs are requeued"));
    assert_eq!(node.site.updates().iter().filter(|update| update.contains("state=down")).count(), 1);
}

#[test]
fn w07_a_rebalance_recommendation_is_logged_and_drains_only_if_wanted() {
    let recommendation = r#"{"noticeTime": "2026-11-29T12:00:00Z"}"#;
    for drains in [false, true] {
        let node = Node::with(&format!("drain_on_rebalance = {drains}\n"));
        node.imds.set("events/recommendations/rebalance", recommendation);
        let _daemon = node.start();
        node.until("looks", || node.imds.count("events/recommendations/rebalance") >= 4);
        assert_eq!(node.lines_with("EC2 recommends to move away"), 1, "{}", node.log());
        let drain = format!("update nodename={NODE} state=drain reason=EC2 rebalance recommendation of 2026-11-29T12:00:00Z");
        assert_eq!(node.site.updates(), if drains { vec![drain] } else { vec![] });
    }
}

#[test]
fn without_instance_metadata_there_is_one_warning() {
    let node = Node::new();
    node.imds.fail_tokens([Fault::Drop; 6]);
    let _daemon = node.start();
    node.until("metadata", || node.log().contains("instance metadata answers again"));
    assert_eq!(node.lines_with("spot notices cannot be seen"), 1, "{}", node.log());
}

/// By ParallelCluster's own file, with the package's log.
#[test]
fn w07_as_parallelclusters_computemgtd() {
    let node = Node::new();
    let root = node.site.dir.path().display().to_string();
    let imds = node.imds.url();
    node.site.write(
        "parallelcluster_computemgtd.conf",
        &format!(
            "[computemgtd]\ncluster_name = orchard\nregion = eu-central-1\nproxy = NONE\n\
             clustermgtd_heartbeat_file_path = {root}/heartbeat\ndynamodb_table = parallelcluster-slurm-orchard\n\
             slurm_nodename_file = {root}/node-name\n[slurm_ec2]\nmetadata_endpoint = {imds}\nspot_poll = 1\nlog_dir = {root}/log\n"
        ),
    );
    node.imds.set("spot/instance-action", NOTICE);
    let mut command = node.site.command("computemgtd", &[]);
    command.env_remove("SLURM_EC2_CONFIG").env("CONFIG_FILE", node.site.path("parallelcluster_computemgtd.conf"));
    command.env("SLURM_BINARIES_DIR", node.site.path("bin"));
    let daemon = node.adopt(command.spawn().unwrap());
    node.until("both updates", || node.site.updates().len() >= 2);
    assert!(node.site.updates()[0].starts_with(&format!("update nodename={NODE} state=drain")));
    assert_eq!(daemon.end(), Some(0));
    let log = fs::read_to_string(node.site.path("log/computemgtd")).unwrap();
    let line = log.lines().find(|line| line.contains("EC2 takes this instance away")).unwrap();
    assert!(line.contains(" - WARNING - "), "{line}");
}
