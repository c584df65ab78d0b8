//! The stage of a crash: where a program is stopped and killed, what becomes of what it had under way, which program comes next,
//! and what must hold afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::Value;
use slurm_ec2_testkit::ec2::{Behaviour, Rule};

use crate::site::{Ran, Site, finished};

/// The nodes of the killed program, other nodes, and nodes nobody else uses.
pub const SAME: &str = "c5-[1-3]";
pub const OTHERS: &str = "c5-[11-12]";
const LATER: &str = "c5-20";

/// What a test waits for must come; this is only the end of a test that fails.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Gate at which a request of the program that is to be killed waits.
const GATE: &str = "stop";

pub const POWERING_UP: &str = "IDLE+CLOUD+NOT_RESPONDING+POWERING_UP";
pub const POWERED_DOWN: &str = "IDLE+CLOUD+POWERED_DOWN";

pub const PLAIN: &str = "request_bucket = \"off\"\n";
pub const TAGGING: &str = "request_bucket = \"off\"\nnode_tags = true\n";
/// The version is resolved first.
pub const RUN_INSTANCES: &str = "[[group]]\nname = \"c5\"\nnodes = \"c5-[1-2000]\"\nlaunch_template = \"hpc-c5\"\n";
pub const CREATE_FLEET: &str = "[[group]]\nname = \"c5\"\nnodes = \"c5-[1-2000]\"\nlaunch_template = \"hpc-c5\"\napi = \"create-fleet\"\n\
     instance_types = [\"c5.large\", \"c5.xlarge\"]\n";

/// What becomes of the request that was out when the program died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Carried out before the next program begins.
    Early,
    /// Carried out after the next program has ended.
    Late,
    /// It never arrives.
    Never,
}

/// Where the program is stopped.
#[derive(Debug, Clone, Copy)]
pub enum Stop {
    /// At its n-th request of this action (from 1), before or after the endpoint has carried it out.
    Before(&'static str, u32, Fate),
    After(&'static str, u32),
    /// At its n-th update of Slurm, before or after slurmctld's change.
    BeforeUpdate(usize),
    AfterUpdate(usize),
    /// At any call of this verb of scontrol.
    Scontrol(&'static str),
}

impl Stop {
    /// Makes the next program stop there.
    pub fn arm(self, site: &Site) -> Armed<'_> {
        let rule = match self {
            Self::Before(action, nth, Fate::Never) => Some(Rule::on(action).nth(nth).hold(GATE).drop_before()),
            Self::Before(action, nth, _) => Some(Rule::on(action).nth(nth).hold(GATE)),
            Self::After(action, nth) => Some(Rule::on(action).nth(nth).hold(GATE).after()),
            _ => None,
        };
        site.ec2.add_rules(rule);
        // The stand-in counts the updates of its whole life.
        let number =
            |nth: usize| site.scontrol_calls().iter().filter(|line| line.starts_with("update ") || *line == "-").count() + nth;
        let file = match self {
            Self::BeforeUpdate(nth) => Some(("hold", "held", number(nth).to_string())),
            Self::AfterUpdate(nth) => Some(("after", "done", number(nth).to_string())),
            Self::Scontrol(verb) => Some(("hold", "held", verb.to_owned())),
            Self::Before(..) | Self::After(..) => None,
        };
        let file = file.map(|(hold, mark, what)| (format!("{hold}.{what}"), format!("bin/scontrol.{mark}.{what}")));
        if let Some((hold, _)) = &file {
            site.scontrol(hold, "");
        }
        Armed { site, stop: self, file }
    }
}

/// A site where the next program will stop.
pub struct Armed<'a> {
    site: &'a Site,
    stop: Stop,
    file: Option<(String, String)>,
}

impl Armed<'_> {
    /// Starts the program, waits until it stands there, kills it. A call of scontrol that is held goes on without it; one that it has under
    /// way while EC2 is held goes with it, as when slurmctld kills: it could tell Slurm an old address after a new one.
    #[track_caller]
    pub fn kill(&self, program: &str, args: &[&str]) {
        let mut child = spawn_group(self.site, program, args);
        self.wait(program, &mut child);
        if self.file.is_some() { kill(&mut child) } else { kill_group(&mut child) }
    }

    #[track_caller]
    pub fn wait(&self, program: &str, child: &mut Child) {
        let begun = Instant::now();
        loop {
            let there = match &self.file {
                Some((_, mark)) => self.site.path(mark).exists(),
                None => self.site.ec2.wait_held(GATE, Duration::from_millis(20)),
            };
            if there {
                return;
            }
            if self.file.is_some() {
                std::thread::sleep(Duration::from_millis(5));
            }
            let ended = child.try_wait().unwrap();
            assert!(
                ended.is_none() && begun.elapsed() < PATIENCE,
                "{program} never came to {:?}: {ended:?}\n{}\n{:?}",
                self.stop,
                self.site.log(program),
                self.site.scontrol_calls()
            );
        }
    }

    /// Lets go what was held, and waits until it is done.
    #[track_caller]
    pub fn let_go(&self) {
        match &self.file {
            Some((hold, _)) => {
                fs::remove_file(self.site.path(&format!("bin/scontrol.{hold}"))).unwrap();
                wait_for_scontrol(self.site);
            }
            None => {
                self.site.ec2.release(GATE);
                // A request still at work has no answer yet; one whose client is gone gets one all the same.
                let all = |snapshot: &slurm_ec2_testkit::ec2::Snapshot| {
                    snapshot.requests.iter().all(|request| !request.answer.is_empty())
                };
                assert!(self.site.ec2.wait_until(PATIENCE, all), "{:?}", self.site.ec2.requests());
            }
        }
    }

    pub fn is_late(&self) -> bool {
        matches!(self.stop, Stop::Before(_, _, Fate::Late))
    }
}

pub fn kill(child: &mut Child) {
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert!(status.signal() == Some(9) || status.code().is_some(), "{status:?}");
}

/// Starts a program in a process group of its own.
pub fn spawn_group(site: &Site, program: &str, args: &[&str]) -> Child {
    site.command(program, args).process_group(0).spawn().unwrap()
}

/// Kills such a program with all that it has started, as slurmctld does.
pub fn kill_group(child: &mut Child) {
    let group = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    // Not reaped yet, so the number is still its own.
    nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL).unwrap();
    kill(child);
}

/// The program after the crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    ResumeOthers,
    ResumeSame,
    SuspendSame,
    SuspendOthers,
    FailSame,
}

impl Next {
    pub const ALL: [Self; 5] = [Self::ResumeOthers, Self::ResumeSame, Self::SuspendSame, Self::SuspendOthers, Self::FailSame];

    /// Its nodes are those of the killed program, and they are taken down.
    pub fn takes_down(self) -> bool {
        matches!(self, Self::SuspendSame | Self::FailSame)
    }

    #[track_caller]
    pub fn run(self, site: &Site) {
        let (program, nodes) = match self {
            Self::ResumeOthers => ("slurm_resume", OTHERS),
            Self::ResumeSame => ("slurm_resume", SAME),
            Self::SuspendSame => ("slurm_suspend", SAME),
            Self::SuspendOthers => ("slurm_suspend", OTHERS),
            Self::FailSame => ("slurm_resume_fail", SAME),
        };
        succeed(site, program, nodes);
        match self {
            Self::ResumeOthers => assert_backed(site, &["c5-11", "c5-12"]),
            Self::ResumeSame => assert_backed(site, &["c5-1", "c5-2", "c5-3"]),
            Self::SuspendSame | Self::FailSame => assert_free(site, &["c5-1", "c5-2", "c5-3"]),
            Self::SuspendOthers => assert_free(site, &["c5-11", "c5-12"]),
        }
    }
}

/// A new site whose stand-in notes what Slurm was told.
pub fn site(behaviour: Behaviour, launch: &str, groups: &str) -> Site {
    let site = Site::with(behaviour, launch, groups);
    site.scontrol("applied", "");
    site
}

#[track_caller]
pub fn succeed(site: &Site, program: &str, nodes: &str) -> Ran {
    let ran = site.run(program, &[nodes]);
    assert_eq!(ran.code, Some(0), "{program} {nodes}: {}\n{}\nmapping {:#}", ran.stderr, site.log(program), site.mapping());
    ran
}

/// The nodes have instances of their own, which live, and Slurm has their addresses.
#[track_caller]
pub fn assert_backed(site: &Site, nodes: &[&str]) {
    let running: BTreeMap<String, String> = site.running().into_iter().collect();
    let (live, told, mapping) = (site.live(), told(site), site.mapping());
    for node in nodes {
        let id = running.get(*node).unwrap_or_else(|| panic!("{node} has no instance: {mapping:#}\n{}", logs(site)));
        assert!(live.contains(id), "{node} stands on {id}, which does not live\n{}", logs(site));
        let ip = mapping["nodes"][node]["private_ip"].as_str().unwrap();
        assert_eq!(told.get(*node).map(String::as_str), Some(ip), "Slurm has another address of {node}\n{}", logs(site));
    }
}

#[track_caller]
pub fn assert_free(site: &Site, nodes: &[&str]) {
    let mapping = site.mapping();
    for node in nodes {
        assert!(mapping["nodes"].get(node).is_none(), "{node} is still mapped: {mapping:#}");
    }
}

/// The address of each node as Slurm has it.
pub fn told(site: &Site) -> BTreeMap<String, String> {
    let text = fs::read_to_string(site.path("bin/scontrol.applied")).unwrap_or_default();
    let mut told = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let node = words.next().unwrap();
        if let Some(address) = words.find_map(|word| word.strip_prefix("nodeaddr=")) {
            told.insert(node.to_owned(), address.to_owned());
        }
    }
    told
}

/// What holds at any moment: the files are whole, no instance has two nodes, and each live instance stands behind a node, is
/// condemned, or can be found through the record of its launch.
#[track_caller]
pub fn assert_sound(site: &Site) {
    let running = site.running();
    let mapped: BTreeSet<&String> = running.iter().map(|(_, id)| id).collect();
    assert_eq!(mapped.len(), running.len(), "two nodes share an instance: {running:?}\n{}", logs(site));
    let condemned = site.condemned();
    assert!(
        mapped.iter().all(|id| !condemned.contains(*id)),
        "an instance with a node is condemned: {:#}\n{}",
        site.mapping(),
        logs(site)
    );
    let launches = recorded_launches(site);
    for instance in site.ec2.live_instances() {
        let known = mapped.contains(&instance.id) || condemned.contains(&instance.id);
        let found = instance.tags.get("slurm-ec2:launch").is_some_and(|launch| launches.contains(launch));
        assert!(known || found, "{} ({:?}) is lost: {:#}\n{}", instance.id, instance.tags, site.mapping(), logs(site));
    }
    for record in site.records() {
        whole_lines(&record);
    }
}

/// The launch ids under which the batches of all records went out. Each record is whole but for a line its writer did not end.
fn recorded_launches(site: &Site) -> BTreeSet<String> {
    let mut launches = BTreeSet::new();
    for record in site.records() {
        for line in whole_lines(&record) {
            let requests =
                line["batches"].as_array().into_iter().flatten().map(|batch| &batch["request"]).chain([&line["request"]]);
            let tags = requests.flat_map(|request| request["tags"].as_array().cloned().unwrap_or_default());
            launches.extend(tags.filter(|tag| tag[0] == "slurm-ec2:launch").map(|tag| tag[1].as_str().unwrap().to_owned()));
        }
    }
    launches
}

fn whole_lines(record: &Path) -> Vec<Value> {
    let text = fs::read_to_string(record).unwrap();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{}: {error}: {line}", record.display())))
        .collect()
}

/// Six minutes pass: all that the state folder holds is as much older, so that instances of interrupted launches count as visible.
pub fn age(site: &Site) {
    for record in site.records() {
        let mut lines = whole_lines(&record);
        lines.iter_mut().for_each(age_value);
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        fs::write(&record, text).unwrap();
    }
    let mut mapping = site.mapping();
    age_value(&mut mapping);
    if site.path("state/mapping.json").exists() {
        site.write("state/mapping.json", &mapping.to_string());
    }
}

fn age_value(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Ok(time) = humantime::parse_rfc3339(text) {
                *text = humantime::format_rfc3339_millis(time - Duration::from_secs(360)).to_string();
            }
        }
        Value::Array(values) => values.iter_mut().for_each(age_value),
        Value::Object(fields) => fields.values_mut().for_each(age_value),
        _ => {}
    }
}

/// Programs go on being called, and time passes. Then nothing is left of the crash: no record, no claim, nothing condemned, every
/// live instance behind a node that Slurm has been told of, no temporary file.
#[track_caller]
pub fn settle(site: &Site) {
    // What one of them gives up or finds late, a client token or an instance, is looked after for minutes more by those that follow. The
    // last has an instance that has not registered and so writes the count of boot failures anew: temporary files go with the next
    // write of their file.
    for program in ["slurm_resume", "slurm_suspend", "slurm_resume", "slurm_resume_fail"] {
        age(site);
        succeed(site, program, LATER);
        assert_sound(site);
    }
    assert_clean(site);
}

#[track_caller]
pub fn assert_clean(site: &Site) {
    site.assert_settled();
    assert!(site.records().is_empty(), "records stay: {:?}\n{}", site.records(), logs(site));
    let mapping = site.mapping();
    assert!(site.condemned().is_empty(), "{mapping:#}\n{}", logs(site));
    for (node, entry) in mapping["nodes"].as_object().unwrap() {
        assert_eq!(entry["state"], "running", "a claim of {node} stays: {mapping:#}\n{}", logs(site));
        assert_backed(site, &[node.as_str()]);
        assert_ne!(entry["unpublished"], true, "{mapping:#}");
    }
    let names = |dir: &str| -> Vec<String> {
        fs::read_dir(site.path(dir)).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let litter: Vec<String> =
        names("state").into_iter().filter(|name| name.starts_with('.')).chain(names("state/launches")).collect();
    assert!(litter.is_empty(), "left in the state folder: {litter:?}");
}

pub fn logs(site: &Site) -> String {
    ["slurm_resume", "slurm_suspend", "slurm_resume_fail"].map(|program| site.log(program)).concat()
}

/// Waits for programs that were started at the same time, which all succeed.
#[track_caller]
pub fn join(site: &Site, children: Vec<Child>) {
    for child in children {
        let ran = finished(child.wait_with_output().unwrap());
        assert_eq!(ran.code, Some(0), "{}\n{}", ran.stderr, logs(site));
    }
}

/// Waits until something is so.
#[track_caller]
pub fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the calls of scontrol that a killed program began have ended: else an old address could reach Slurm after a new one. One
/// that has not become scontrol yet is known by its folder, which it has from the program.
#[track_caller]
pub fn wait_for_scontrol(site: &Site) {
    let ours = site.path("bin").display().to_string();
    let is_ours = |process: &Path| {
        fs::read_link(process.join("cwd")).is_ok_and(|folder| folder == site.dir.path())
            || fs::read(process.join("cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).contains(&ours))
    };
    wait_until("scontrol ends", || {
        !fs::read_dir("/proc").unwrap().filter_map(Result::ok).any(|process| is_ours(&process.path()))
    });
}

/// Runs each case on a site of its own, a few at the same time, and names those that fail, with what they said: the last lines of a
/// long output are what is read first.
pub fn each<C: std::fmt::Debug + Send + Sync>(cases: &[C], test: impl Fn(&C) + Sync) {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let failed = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                    if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(case))) {
                        eprintln!("^^^ in {case:?}\n");
                        failed.lock().unwrap().push(format!("{case:?}: {}", said(&*panic)));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} of {} cases failed:\n{}", failed.len(), cases.len(), failed.join("\n"));
}

/// The first lines of a failed assertion; the logs that follow them stand above.
fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    let lines: Vec<&str> = text.unwrap_or("a panic without a text").lines().take(3).collect();
    lines.join("\n").chars().take(1500).collect()
}
