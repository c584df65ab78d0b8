//! As a person calls: on a terminal, through a pipe, to see what would happen. The terminal is a pseudo-terminal of Python's.

use std::path::Path;
use std::process::{Command, Stdio};

use slurm_ec2_testkit::ec2::{Behaviour, Capacity, Latency};

use crate::site::{GROUP, Site, program_path};

/// Runs a program on a terminal of its own; returns its exit status and all that the terminal showed.
fn on_a_terminal(site: &Site, program: &str, args: &[&str]) -> (Option<i32>, String) {
    const SCRIPT: &str = "import os, pty, sys\n\
                          status = pty.spawn(sys.argv[1:])\n\
                          sys.exit(os.waitstatus_to_exitcode(status))\n";
    let output = Command::new("python3")
        .args(["-c", SCRIPT])
        .arg(program_path(program))
        .args(args)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("SLURM_EC2_CONFIG", site.path("slurm-ec2.toml"))
        .env("SLURM_CONF", site.path("slurm.conf"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_terminal_shows_progress_and_a_summary() {
    let behaviour = Behaviour { latency: Latency { base_ms: 1200, ..Latency::default() }, ..Behaviour::default() };
    let site = Site::new(Behaviour { capacity: vec![Capacity::limit("*", "*", 2)], ..behaviour });
    let (code, text) = on_a_terminal(&site, "slurm_resume", &["c5-[1-3],stray"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("slurm_resume: 3 launching, 0 up"), "progress: {text}");
    for line in ["launched      2  c5-[1-2]", "c5-3  LimitedInstanceCapacity: ", "stray  NodeNotConfigured: "] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    let (code, text) = on_a_terminal(&site, "slurm_suspend", &["c5-[1-3]"]);
    assert!(code == Some(0) && text.contains("terminated 2, not terminated 0"), "{code:?} {text}");
}

/// A person who repeats the call does not move the time at which Slurm asked; slurmctld's own call does.
#[test]
fn b19_a_call_repeated_by_hand_leaves_what_is_on_its_way() {
    let site = Site::new(Behaviour::default());
    assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(0));
    let first = site.running();
    // The stand-in shows them powering up.
    let (code, text) = on_a_terminal(&site, "slurm_resume", &["c5-[1-2]"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("left          2  c5-[1-2]"), "{text}");
    assert_eq!((site.running(), site.ec2.count("RunInstances")), (first.clone(), 1));
    assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(0));
    assert!(site.running().iter().zip(&first).all(|(new, old)| new.1 != old.1), "slurmctld asked anew");
    site.assert_settled();
}

/// `| head` closes the pipe early: no panic, no error.
#[test]
fn a_reader_that_goes_away_is_no_error() {
    let site = Site::new(Behaviour::default());
    let script = "\"$1\" expand 'n[1-300000]' | head -n 1; exit 0";
    let output = Command::new("/bin/bash")
        .args(["-o", "pipefail", "-c", script, "bash"])
        .arg(program_path("slurm-ec2"))
        .current_dir(site.dir.path())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "n1\n");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn dry_runs_show_and_change_nothing() {
    let site = Site::new(Behaviour::default());
    assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(0));
    site.ec2.adjust(|behaviour| behaviour.capacity = vec![Capacity::limit("*", "*", 0)]);
    assert_eq!(site.run("slurm_resume", &["c5-3"]).code, Some(1));
    let id = site.running()[0].1.clone();
    let before = (site.mapping(), site.ec2.requests().len(), site.scontrol_calls().len(), site.log("slurm_resume"));
    let resume = site.run("slurm_resume", &["--dry-run", "c5-[1,4],other"]);
    assert_eq!((resume.code, resume.stderr.as_str()), (Some(0), ""));
    let [resting, mapped, unknown] = resume.stdout.lines().collect::<Vec<_>>()[..] else { panic!("{}", resume.stdout) };
    assert!(
        resting.starts_with("fail") && resting.contains("c5-4") && resting.contains("InsufficientInstanceCapacity"),
        "{resting}"
    );
    assert!(mapped.starts_with("look") && mapped.contains(&id), "{mapped}");
    assert!(unknown.starts_with("fail") && unknown.contains("other"), "{unknown}");
    for program in ["slurm_suspend", "slurm_resume_fail"] {
        let ran = site.run(program, &["--dry-run", "c5-[1,9]"]);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{program}");
        assert!(
            ran.stdout.contains(&format!("terminate  c5-1  {id}")) && ran.stdout.contains("c5-9"),
            "{program}: {}",
            ran.stdout
        );
    }
    assert_eq!(before, (site.mapping(), site.ec2.requests().len(), site.scontrol_calls().len(), site.log("slurm_resume")));
    assert!(!site.path("log/slurm_suspend.log").exists());
}

#[test]
fn the_configuration_named_on_the_command_line_goes_first() {
    let site = Site::new(Behaviour::default());
    let other = std::fs::read_to_string(site.path("slurm-ec2.toml")).unwrap().replace("c5-[1-2000]", "d5-[1-9]");
    site.write("other.toml", &other);
    let path = site.path("other.toml");
    let ran = site.run("slurm_resume", &["--dry-run", "--config", path.to_str().unwrap(), "d5-1"]);
    assert!(ran.code == Some(0) && ran.stdout.starts_with("launch"), "{} {}", ran.stdout, ran.stderr);
    let missing = site.run("slurm_suspend", &["--config", "/nonexistent/x.toml", "c5-1"]);
    assert!(missing.code == Some(78) && missing.stderr.contains("/nonexistent/x.toml"), "{}", missing.stderr);
    // Without both, the usual place.
    let mut command = site.command("slurm_suspend", &["c5-1"]);
    command.env_remove("SLURM_EC2_CONFIG");
    let usual = Path::new("/etc/slurm-ec2/slurm-ec2.toml");
    if !usual.exists() {
        let ran = crate::site::finished(command.output().unwrap());
        assert!(ran.code == Some(78) && ran.stderr.contains("/etc/slurm-ec2/slurm-ec2.toml"), "{}", ran.stderr);
    }
}

#[test]
fn usage_errors_are_told_and_touch_nothing() {
    let site = Site::with(Behaviour::default(), "", GROUP);
    for args in [&["--no-such-option", "c5-1"][..], &["--config"], &[]] {
        for program in ["slurm_resume", "slurm_suspend", "slurm_resume_fail"] {
            let ran = site.run(program, args);
            assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{program} {args:?}");
            assert!(ran.stderr.contains("--help"), "{program} {args:?}: {}", ran.stderr);
        }
    }
    assert!(site.ec2.requests().is_empty() && site.scontrol_calls().is_empty() && !site.path("state").exists());
}
