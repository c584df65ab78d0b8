//! How the daemon begins, goes on and ends.

use std::fs;
use std::os::unix::net::UnixDatagram;

use nix::sys::signal::Signal;
use slurm_ec2_testkit::ec2::{Behaviour, Rule};

use super::world::{Daemon, GROUP, PATIENCE, STATIC, STEP_BY_STEP, node, nodes_of, site, site_with};
use crate::site::{Site, finished};

const OFF: &str = "IDLE+CLOUD+POWERED_DOWN";

fn idle(groups: &str) -> Site {
    let site = site_with(Behaviour::default(), groups);
    site.scontrol("nodes", &["c5-1", "c5-2"].map(|name| node(name, OFF, None)).concat());
    site
}

/// B108.
#[test]
fn a_second_one_ends_and_says_who_is_there() {
    let site = idle(GROUP);
    let mut daemon = Daemon::start(&site);
    daemon.passes(1);
    let second = site.run("clustermgtd", &[]);
    assert_eq!(second.code, Some(78), "{}", second.stderr);
    let first = format!("process {} (clustermgtd)", daemon.pid());
    assert!(second.stderr.contains(&first), "{first}: {}", second.stderr);
    daemon.passes(1);
    assert_eq!(daemon.end().code, Some(0));
    // Its lock went with it.
    Daemon::start(&site).passes(1);
}

/// B108.
#[test]
fn sigterm_ends_it_while_scontrol_hangs() {
    let site = idle(GROUP);
    site.scontrol("hang.show", "");
    let mut daemon = Daemon::start(&site);
    daemon.wait(|_| site.scontrol_calls().iter().any(|call| call.contains("show nodes")));
    daemon.end_at_once();
}

/// B107. By the files' times and by SIGHUP; a file that cannot be used is one error, and the old configuration stays.
#[test]
fn the_configuration_is_read_again() {
    let site = idle(GROUP);
    let mut daemon = Daemon::start(&site);
    daemon.passes(1);
    let config = fs::read_to_string(site.path("slurm-ec2.toml")).unwrap();
    site.write("slurm-ec2.toml", &config.replace("loop_time", "lop_time"));
    daemon.wait(|daemon| daemon.log().contains("the old configuration stays in force"));
    daemon.passes(3);
    assert_eq!(daemon.log().matches("stays in force").count(), 1, "{}", daemon.log());
    assert!(daemon.log().contains("lop_time"), "{}", daemon.log());
    // Another mistake is another error.
    site.write("slurm-ec2.toml", &config.replace("loop_time = \"1s\"", "loop_time = \"soon\""));
    daemon.wait(|daemon| daemon.log().matches("stays in force").count() == 2);
    // Nodes 1 and 2 are static from now on.
    site.write("slurm-ec2.toml", &config.replace("[[group]]", "[[group]]\nstatic_nodes = \"c5-[1-2]\""));
    daemon.wait(|_| site.running().len() == 2);
    assert!(daemon.log().contains("configuration read again"), "{}", daemon.log());
    // A daemon that looks once an hour reads it at once when it is told to.
    site.write("slurm-ec2.toml", &config.replace("\"1s\"", "\"1h\""));
    daemon.wait(|daemon| daemon.log().matches("configuration read again").count() == 2);
    site.write("slurm-ec2.toml", &config);
    daemon.signal(Signal::SIGHUP);
    daemon.wait(|daemon| daemon.log().matches("configuration read again").count() == 3);
    daemon.passes(2);
    // A changed slurm.conf counts, too.
    let conf = fs::read_to_string(site.path("slurm.conf")).unwrap();
    site.write("slurm.conf", &format!("{conf}SuspendTime=600\n"));
    daemon.wait(|daemon| daemon.log().matches("configuration read again").count() == 4);
    // A file that it names and that comes later counts when it is there.
    site.write("slurm.conf", &format!("{conf}Include more.conf\n"));
    daemon.wait(|daemon| daemon.log().matches("stays in force").count() == 3);
    daemon.passes(2);
    site.write("more.conf", "SuspendTime=600\n");
    daemon.wait(|daemon| daemon.log().matches("configuration read again").count() == 5);
    assert_eq!(daemon.log().matches("stays in force").count(), 3, "told once: {}", daemon.log());
    // What the state hangs on does not change under a running daemon.
    site.write("slurm-ec2.toml", &config.replace("cluster = \"hpc\"", "cluster = \"other\""));
    daemon.wait(|daemon| daemon.log().contains("another cluster needs a restart"));
}

#[test]
fn a_broken_configuration_is_told_and_ends_it() {
    let site = idle(GROUP);
    let config = fs::read_to_string(site.path("slurm-ec2.toml")).unwrap();
    site.write("slurm-ec2.toml", &config.replace("loop_time", "lop_time"));
    let ran = site.run("clustermgtd", &[]);
    assert!(ran.code == Some(78) && ran.stderr.contains("lop_time"), "{:?} {}", ran.code, ran.stderr);
}

/// Type=notify with a watchdog.
#[test]
fn systemd_hears_that_it_is_ready_works_and_ends() {
    let site = idle(GROUP);
    let socket = UnixDatagram::bind(site.path("notify")).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = site.command("clustermgtd", &[]);
    command.env("NOTIFY_SOCKET", site.path("notify")).env("WATCHDOG_USEC", "200000");
    let mut child = command.spawn().unwrap();
    let mut heard = String::new();
    let mut hear_until = |words: &[&str]| {
        while !words.iter().all(|word| heard.contains(word)) {
            heard.push_str(&crate::units::heard(&socket));
        }
    };
    hear_until(&["READY=1", "WATCHDOG=1", "STATUS=fleet RUNNING"]);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
    hear_until(&["STOPPING=1"]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_renamed_log_goes_on_under_its_name() {
    let site = idle(GROUP);
    let mut daemon = Daemon::start(&site);
    daemon.passes(1);
    fs::rename(site.path("log/clustermgtd.log"), site.path("log/clustermgtd.log.1")).unwrap();
    daemon.signal(Signal::SIGUSR1);
    daemon.wait(|daemon| daemon.log().contains("pass"));
}

/// B105. An orphan is one by the second look, also when the daemon was killed in between.
#[test]
fn what_it_remembers_survives_a_kill() {
    let site = idle(STEP_BY_STEP);
    assert_eq!(site.run("slurm_resume", &["c5-1"]).code, Some(0));
    let mut mapping = site.mapping();
    mapping["nodes"] = serde_json::json!({});
    site.write("state/mapping.json", &mapping.to_string());
    let id = site.live().into_iter().next().unwrap();
    site.ec2
        .change(&id, slurm_ec2_testkit::ec2::InstanceChange { launch_time_ms: Some(1_700_000_000_000), ..Default::default() });
    site.scontrol("nodes", &node("c5-1", OFF, None));
    let mut daemon = Daemon::start(&site);
    daemon.step();
    assert_eq!(site.live().len(), 1, "{}", daemon.log());
    daemon.kill();
    let remembered = fs::read_to_string(site.path("state/clustermgtd.json")).unwrap();
    assert!(remembered.contains(&id), "{remembered}");
    let mut daemon = Daemon::start(&site);
    daemon.step();
    assert!(site.live().is_empty(), "{}", daemon.log());
}

/// B105. Killed while EC2 launches for static nodes, before or after it has: each node ends with one instance, and none is lost.
#[test]
fn killed_while_it_launches() {
    let rule = || Rule::on("RunInstances").nth(1).hold("stop");
    for (rule, launched) in [(rule(), None), (rule().after(), Some(2))] {
        let site = site_with(Behaviour::with_rules(vec![rule]), STATIC);
        site.scontrol("nodes", &["c5-1", "c5-2"].map(|name| node(name, OFF, None)).concat());
        let daemon = Daemon::start(&site);
        assert!(site.ec2.wait_held("stop", PATIENCE), "{}", daemon.log());
        daemon.kill();
        site.ec2.release_all();
        let mut daemon = Daemon::start(&site);
        daemon.wait(|_| site.running().len() == 2 && site.live().len() == 2 && site.condemned().is_empty());
        site.assert_settled();
        daemon.wait(|daemon| daemon.node("c5-1").1 != "c5-1" && daemon.node("c5-2").1 != "c5-2");
        if let Some(launched) = launched {
            assert_eq!(site.ec2.instances().len(), launched, "what EC2 had launched is taken over: {}", daemon.log());
        }
        assert_eq!(daemon.end().code, Some(0));
    }
}

/// Killed between the mapping's write and EC2's answer: what is condemned goes.
#[test]
fn killed_while_it_terminates() {
    for rule in [Rule::on("TerminateInstances").nth(1).hold("stop"), Rule::on("TerminateInstances").nth(1).hold("stop").after()] {
        let site = site(Behaviour::default());
        assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(0));
        site.scontrol("nodes", &nodes_of(&site, "IDLE+CLOUD").replacen("State=IDLE+CLOUD", "State=DOWN+CLOUD+NOT_RESPONDING", 1));
        site.ec2.add_rules([rule]);
        let daemon = Daemon::start(&site);
        assert!(site.ec2.wait_held("stop", PATIENCE), "{}", daemon.log());
        daemon.kill();
        site.ec2.release_all();
        let mut daemon = Daemon::start(&site);
        daemon.wait(|daemon| daemon.node("c5-1").0 == OFF && site.live().len() == 1 && site.condemned().is_empty());
        site.assert_settled();
        assert_eq!(daemon.node("c5-2").0, "IDLE+CLOUD");
    }
}

/// B115. While the fleet is started or stopped the daemon does nothing, and says so.
#[test]
fn it_never_fights_with_a_start_or_stop_of_the_fleet() {
    let site = site(Behaviour::default());
    assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(0));
    site.scontrol("nodes", &nodes_of(&site, "IDLE+CLOUD").replacen("State=IDLE+CLOUD", "State=DOWN+CLOUD+NOT_RESPONDING", 1));
    let before = site.updates().len();
    // As whoever stops the fleet holds it.
    let lock = fs::File::create(site.path("state/fleet.lock")).unwrap();
    let held = nix::fcntl::Flock::lock(lock, nix::fcntl::FlockArg::LockExclusive).unwrap();
    let mut daemon = Daemon::start(&site);
    daemon.passes(2);
    assert_eq!((daemon.status()["pass"]["result"].as_str(), site.updates().len()), (Some("resting"), before), "{}", daemon.log());
    let status = |word: &str| {
        site.write("state/fleet-status.json", &format!("{{\"status\": \"{word}\", \"lastStatusUpdatedTime\": \"\"}}"));
    };
    // Before the lock is let go: a pass that found the fleet running would work.
    status("STOP_REQUESTED");
    drop(held);
    for word in ["STOP_REQUESTED", "STOPPING", "STARTING"] {
        status(word);
        daemon.passes(2);
        assert!(daemon.status()["pass"]["problem"].as_str().unwrap().contains(word), "{:#}", daemon.status());
    }
    assert_eq!((site.updates().len(), site.live().len()), (before, 2), "{}", daemon.log());
    status("STOPPED");
    daemon.wait(|daemon| site.live().is_empty() && daemon.node("c5-2").0 == OFF);
    assert!(site.updates().iter().any(|line| line.contains("partitionname=q1 state=inactive")), "{:?}", site.updates());
}

/// B86. The same list as the daemon's, and nothing is done.
#[test]
fn a_dry_run_prints_the_actions_and_does_none() {
    let site = site(Behaviour::default());
    assert_eq!(site.run("slurm_resume", &["c5-[1-2]"]).code, Some(0));
    site.scontrol("nodes", &nodes_of(&site, "IDLE+CLOUD").replacen("State=IDLE+CLOUD", "State=DOWN+CLOUD+NOT_RESPONDING", 1));
    let files = || {
        let mut names: Vec<_> = fs::read_dir(site.path("state")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        (names, fs::read_to_string(site.path("state/mapping.json")).unwrap())
    };
    let before = (files(), site.updates().len(), site.live());
    let ran = finished(site.command("slurm-ec2", &["reconcile", "--dry-run"]).output().unwrap());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for words in ["terminate", "c5-1", "because"] {
        assert!(ran.stdout.contains(words), "{}", ran.stdout);
    }
    assert!(!ran.stdout.contains("c5-2"), "{}", ran.stdout);
    assert_eq!((files(), site.updates().len(), site.live()), before);
    assert_eq!(site.run("slurm-ec2", &["reconcile"]).code, Some(2));
    // What cannot be seen is not guessed.
    site.scontrol("fail.show", "1\nUnable to contact slurm controller (connect failure)\n");
    let config = fs::read_to_string(site.path("slurm-ec2.toml")).unwrap();
    site.write("slurm-ec2.toml", &config.replace("[clustermgtd]\n", "[clustermgtd]\nshow_timeout = \"1s\"\n"));
    let ran = site.run("slurm-ec2", &["reconcile", "--dry-run"]);
    assert!(ran.code == Some(75) && ran.stderr.contains("not everything could be seen"), "{:?} {}", ran.code, ran.stderr);
}
