//! The shipped systemd units: that systemd understands them, that what they start is built or shipped, that the daemons among them are
//! held to what they need. And that the daemons speak to systemd as their units say.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::compute_node::Node;

/// The next message to the service manager.
pub fn heard(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 4096];
    loop {
        match socket.recv(&mut buffer) {
            Ok(length) => return String::from_utf8_lossy(&buffer[..length]).into_owned(),
            // A process that was stopped for a moment gets this where a wait has its limit.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("no message: {error}"),
        }
    }
}

const DAEMONS: [&str; 3] = ["clustermgtd", "clusterstatusmgtd", "computemgtd"];

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Name and text of every unit.
fn units() -> BTreeMap<String, String> {
    let folder = here("packaging/usr/lib/systemd/system");
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap())).collect()
}

/// Values of a key, in the order of the file.
fn values<'u>(unit: &'u str, key: &str) -> Vec<&'u str> {
    unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
}

#[test]
fn what_the_units_start_is_built_or_shipped() {
    let units = units();
    for daemon in DAEMONS {
        assert!(units.contains_key(&format!("{daemon}.service")), "{daemon}");
    }
    for (name, unit) in &units {
        let starts = values(unit, "ExecStart");
        assert_eq!(starts.len(), 1, "{name}");
        let words = starts[0].split([' ', '(', '\'']).filter(|word| word.starts_with("/usr/"));
        for word in words.filter(|word| !word.starts_with("/usr/sbin/slurmd")) {
            match word.strip_prefix("/usr/bin/") {
                Some(program) => assert!(here(&format!("src/bin/{program}.rs")).exists(), "{name}: {word} is not built"),
                None => assert!(here(&format!("packaging{word}")).exists(), "{name}: {word} is not shipped"),
            }
        }
        assert!(values(unit, "WantedBy") == ["multi-user.target"], "{name}");
        assert!(values(unit, "Restart") == ["on-failure"], "{name}");
    }
}

#[test]
fn the_daemons_are_held_to_what_they_need() {
    let units = units();
    for daemon in DAEMONS {
        let unit = &units[&format!("{daemon}.service")];
        let one = |key: &str| -> &str {
            let found = values(unit, key);
            assert_eq!(found.len(), 1, "{daemon}: {key}");
            found[0]
        };
        for (key, value) in [
            ("Type", "notify"),
            ("NotifyAccess", "main"),
            ("RestartPreventExitStatus", "2 78"),
            ("StartLimitIntervalSec", "0"),
            ("ProtectSystem", "strict"),
            ("ProtectHome", "yes"),
            ("PrivateTmp", "yes"),
            ("PrivateDevices", "yes"),
            ("NoNewPrivileges", "yes"),
            ("ProtectKernelModules", "yes"),
            ("RestrictNamespaces", "yes"),
            ("RestrictSUIDSGID", "yes"),
            ("SystemCallFilter", "@system-service"),
            ("RestrictAddressFamilies", "AF_INET AF_INET6 AF_UNIX AF_NETLINK"),
            ("ExecReload", "/bin/kill -HUP $MAINPID"),
        ] {
            assert_eq!(one(key), value, "{daemon}: {key}");
        }
        let written: Vec<&str> = one("ReadWritePaths").split(' ').map(|path| path.trim_start_matches('-')).collect();
        assert_eq!(written, ["/var/lib/slurm-ec2", "/var/log/slurm-ec2"], "{daemon}");
        assert!(one("WatchdogSec").ends_with("min"), "{daemon}");
        // The head node's need no right of root's; a compute node's shuts the machine down, and looks at all processes.
        let (user, rights) =
            if daemon == "computemgtd" { ("root", "CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_SYS_BOOT") } else { ("slurm", "") };
        assert_eq!((one("User"), one("CapabilityBoundingSet")), (user, rights), "{daemon}");
        assert_eq!(values(unit, "ProtectProc").is_empty(), daemon == "computemgtd");
    }
}

#[test]
fn systemd_understands_the_units() {
    let there = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !there("systemd-analyze") {
        eprintln!("there is no systemd-analyze here: the units are not shown to it");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, unit) in units() {
        // It looks for the programs, which are not installed here.
        let lines = unit.lines().map(|line| if line.starts_with("ExecStart=") { "ExecStart=/bin/true" } else { line });
        let path = dir.path().join(&name);
        fs::write(&path, lines.map(|line| format!("{line}\n")).collect::<String>()).unwrap();
        let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        // What it says of other units is not ours.
        let ours: Vec<&str> = said.lines().filter(|line| line.contains(&name)).collect();
        assert!(ours.is_empty(), "{name}: {ours:?}");
    }
}

#[test]
fn computemgtd_tells_systemd_that_it_is_ready_works_and_ends() {
    let node = Node::new();
    let path = node.site.path("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let next = || heard(&socket).trim().to_owned();
    // Half a second: it says so several times in that.
    let mut command = node.command("");
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "500000");
    let daemon = node.start_as(command);
    assert_eq!(next(), "READY=1");
    let mut seen = Vec::new();
    while seen.iter().filter(|message| *message == "WATCHDOG=1").count() < 4
        || !seen.iter().any(|message: &String| message.starts_with("STATUS=the heartbeat"))
    {
        seen.push(next());
    }
    let reader = std::thread::scope(|scope| {
        let last = scope.spawn(|| while next() != "STOPPING=1" {});
        let code = daemon.end();
        last.join().unwrap();
        code
    });
    assert_eq!(reader, Some(0));
    // Without a limit of systemd's nothing is told of it.
    let mut command = node.command("");
    command.env("NOTIFY_SOCKET", &path);
    let daemon = node.start_as(command);
    assert_eq!(next(), "READY=1");
    assert!(next().starts_with("STATUS="));
    assert_eq!(daemon.end(), Some(0));
}

/// As systemd hands it to the shell: `$$` is a `$`.
#[test]
fn slurmd_is_started_under_the_name_or_the_unit_fails_as_node_name_does() {
    let unit = &units()["slurm-ec2-slurmd.service"];
    let line = values(unit, "ExecStart")[0].strip_prefix("/bin/sh -c '").unwrap().strip_suffix('\'').unwrap().replace("$$", "$");
    let options = values(unit, "Environment")[0].trim_matches('"').strip_prefix("SLURMD_OPTIONS=").unwrap();
    let run = |asked: &str| {
        let line = line.replace("/usr/bin/slurm-ec2 node-name", asked).replace("/usr/sbin/slurmd", "echo slurmd");
        let ran = Command::new("/bin/sh").args(["-c", &line]).env("SLURMD_OPTIONS", options).output().unwrap();
        (ran.status.code(), String::from_utf8(ran.stdout).unwrap())
    };
    assert_eq!(run("echo c5-3"), (Some(0), "slurmd -N c5-3 -D\n".to_owned()));
    for status in [75, 78, 2] {
        assert_eq!(run(&format!("exit {status}")), (Some(status), String::new()));
    }
}
