//! What every program does before its story begins: signals, command line, configuration, log, the right user, a deadline.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;
use nix::sys::signal::SigSet;
use nix::unistd::{Gid, Uid, chown, geteuid, setgid, setgroups, setuid};
use tokio::sync::watch;

use super::args::{Common, Environment};
use super::exit::Exit;
use crate::config;
use crate::config::settings::Settings;
use crate::config::source::{self, Named, Place};
use crate::model::hostlist;
use crate::slurm::conf::SlurmConf;

/// Our own time limit when slurm.conf cannot be read: half of Slurm's default ResumeTimeout of 60 s.
const DEADLINE_UNKNOWN: Duration = Duration::from_secs(30);

/// 22.05 starts the programs with a dozen signals blocked, TERM and PIPE among them (slurm-facts A.1).
pub(crate) fn unblock_signals() {
    // Fails only for an invalid operation, which this is not.
    let _ = SigSet::empty().thread_set_mask();
}

/// Parses the command line; the `Err` has been printed where it belongs.
pub(crate) fn parse_args<A: Parser>() -> Result<A, Exit> {
    A::try_parse().map_err(|error| {
        let exit = if error.use_stderr() { Exit::Usage } else { Exit::Done };
        let _ = error.print();
        exit
    })
}

/// Where `program` finds its configuration, and what else ParallelCluster's programs go by.
pub(crate) fn config_place(program: &str, given: Option<&Path>, env: &Environment) -> Place {
    let plugin_dir = PathBuf::from(source::PLUGIN_DIR);
    let named = Named { given, ours: env.config.as_deref(), package: env.config_file.as_deref() };
    Place {
        path: source::choose(program, named, Path::new(config::file::default_path()), &plugin_dir),
        slurm_bin_dir: env.slurm_bin_dir.clone(),
        ca_bundle: env.ca_bundle.clone(),
        home: env.home.clone(),
        pki_dir: Some(PathBuf::from(source::PKI_DIR)),
        sudo: Some(PathBuf::from(SUDO)).filter(|sudo| !geteuid().is_root() && sudo.exists()),
        plugin_dir,
        is_copy: false,
    }
}

/// Through this, ParallelCluster's user becomes root for scontrol (aws-facts B.1).
const SUDO: &str = "/usr/bin/sudo";

/// The names behind the arguments, each once, in order. Several arguments are one list.
pub(crate) fn nodes(common: &Common, limit: usize) -> Result<Vec<String>, String> {
    let text = common.hostlist.join(",");
    // The error quotes the text itself.
    let expansion = hostlist::expand(&text, limit).map_err(|error| format!("host list {error}"))?;
    if !expansion.duplicates.is_empty() {
        tracing::warn!(
            nodes = hostlist::compress_sorted(&expansion.duplicates),
            "named more than once in the host list, counted once"
        );
    }
    if expansion.names.is_empty() {
        return Err("the host list names no node; expected something like c5-[1-10]".to_owned());
    }
    Ok(expansion.names)
}

/// For messages: the first 200 characters.
pub(crate) fn shorten(text: &str) -> String {
    if text.chars().count() <= 200 {
        return format!("{text:?}");
    }
    let head: String = text.chars().take(200).collect();
    format!("{head:?}... ({} bytes)", text.len())
}

/// An error for the person or script that called; a closed stderr is not an error.
pub(crate) fn complain(program: &str, text: &str) {
    let _ = writeln!(io::stderr(), "{program}: {text}");
}

/// A line of what was asked for.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// Is a person watching? Then summaries and progress are shown, and a call for a node on its way keeps the time of Slurm's request.
pub(crate) fn interactive() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// min(`[launch] deadline`, half the smallest ResumeTimeout of the nodes' partitions): slurmctld kills its programs at
/// max(ResumeTimeout, SuspendTimeout), with 10 ms of warning (slurm-facts 0 #4).
///
/// Beside ParallelCluster at most [`BESIDE_DAEMON`].
pub(crate) fn time_limit(settings: &Settings, conf: Option<&SlurmConf>, nodes: &[String]) -> Duration {
    let limit = match conf {
        None => DEADLINE_UNKNOWN.min(settings.run.deadline),
        Some(conf) => (conf.smallest_resume_timeout(nodes) / 2).min(settings.run.deadline),
    };
    if settings.parallelcluster.is_some() { limit.min(BESIDE_DAEMON) } else { limit }
}

/// ParallelCluster's clustermgtd terminates instances that stand behind no node 300 s after their launch (aws-facts B.5, D.1): a run
/// must have tied or released its own before.
const BESIDE_DAEMON: Duration = Duration::from_secs(240);

/// Root becomes the owner of the state folder, so that it never leaves files which slurmctld's calls cannot open. The folder is
/// made for slurm.conf's SlurmUser when it is missing.
pub(crate) fn become_owner(settings: &Settings, slurm_user: Option<&str>) -> Result<(), String> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let (uid, gid) = match fs::metadata(&settings.state_dir) {
        Ok(meta) => (meta.uid(), meta.gid()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let passwd = Path::new("/etc/passwd");
            // slurmctld's wrapper hops to this user there (aws-facts B.1).
            let hop = settings.parallelcluster.as_ref().and_then(|_| lookup_user(passwd, PARALLELCLUSTER_USER).ok());
            let (uid, gid) = match (hop, slurm_user) {
                (Some(ids), _) => ids,
                (None, None | Some("root")) => (0, 0),
                (None, Some(user)) => lookup_user(passwd, user)?,
            };
            make_folder(&settings.state_dir, 0o750, uid, gid)?;
            (uid, gid)
        }
        Err(error) => return Err(format!("state folder {}: {error}", settings.state_dir.display())),
    };
    if uid == 0 {
        return Ok(());
    }
    if !settings.log.dir.exists() {
        // Not a failure: the log falls back to stderr.
        let _ = make_folder(&settings.log.dir, 0o755, uid, gid);
    }
    let change = |what: &str, result: nix::Result<()>| {
        result.map_err(|error| format!("{what} {uid}:{gid} (owner of {}): {error}", settings.state_dir.display()))
    };
    change("cannot drop the groups for", setgroups(&[Gid::from_raw(gid)]))?;
    change("cannot become", setgid(Gid::from_raw(gid)))?;
    change("cannot become", setuid(Uid::from_raw(uid)))
}

/// Who runs the programs on a ParallelCluster head node.
pub(crate) const PARALLELCLUSTER_USER: &str = "pcluster-admin";

fn make_folder(path: &Path, mode: u32, uid: u32, gid: u32) -> Result<(), String> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .map_err(|error| format!("cannot make {}: {error}", path.display()))?;
    chown(path, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
        .map_err(|error| format!("cannot give {} to {uid}: {error}", path.display()))
}

/// A user's ids from a passwd file, read by ourselves: a static glibc must not load NSS modules. A number is itself.
pub(crate) fn lookup_user(passwd: &Path, user: &str) -> Result<(u32, u32), String> {
    let text = fs::read_to_string(passwd).map_err(|error| format!("user {user}: cannot read {}: {error}", passwd.display()))?;
    let number: Option<u32> = user.parse().ok();
    for line in text.lines() {
        let fields: Vec<_> = line.split(':').collect();
        if let [name, _, uid, gid, ..] = fields.as_slice()
            && let (Ok(uid), Ok(gid)) = (uid.parse(), gid.parse())
            && (*name == user || number == Some(uid))
        {
            return Ok((uid, gid));
        }
    }
    Err(format!("user {user} is not in {}: make the state folder by hand and give it to that user", passwd.display()))
}

/// When the run ends, and whether somebody asked it to end sooner.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// No launch call is sent or waited for after this.
    pub(crate) launch_until: Instant,
    /// No outside effect begins after this.
    pub(crate) end: Instant,
    /// When a signal came.
    stop: watch::Receiver<Option<Instant>>,
}

/// Time kept at the end for commit, scontrol and terminations.
const RESERVE: Duration = Duration::from_secs(10);

/// How long launch calls in flight are waited for after a SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// How long after a SIGTERM anything else is waited for: what the launches gave still has to be told to Slurm.
const GRACE_IN_ALL: Duration = Duration::from_secs(15);

impl Limits {
    /// Starts to listen for SIGTERM, SIGINT and SIGHUP. Needs a running tokio runtime.
    pub(crate) fn start(begun: Instant, limit: Duration) -> Self {
        let (sender, stop) = watch::channel(None);
        let end = begun + limit;
        let launch_until = end - RESERVE.min(limit / 4);
        use tokio::signal::unix::{SignalKind, signal};
        match (signal(SignalKind::terminate()), signal(SignalKind::interrupt()), signal(SignalKind::hangup())) {
            (Ok(mut term), Ok(mut int), Ok(mut hup)) => {
                tokio::spawn(async move {
                    let name =
                        tokio::select! { _ = term.recv() => "SIGTERM", _ = int.recv() => "SIGINT", _ = hup.recv() => "SIGHUP" };
                    tracing::warn!("{name}: no new launches; calls in flight are waited for up to {} s", GRACE.as_secs());
                    let _ = sender.send(Some(Instant::now()));
                    // The channel stays open as long as somebody listens.
                    sender.closed().await;
                });
            }
            _ => {
                tracing::warn!("signals cannot be caught; a SIGTERM ends the program at once and the next one finishes its work")
            }
        }
        Self { launch_until, end, stop }
    }

    /// For a part of a program that listens for signals elsewhere: `stop` holds when one came.
    pub(crate) fn under(begun: Instant, limit: Duration, stop: watch::Receiver<Option<Instant>>) -> Self {
        let end = begun + limit;
        Self { launch_until: end - RESERVE.min(limit / 4), end, stop }
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stop.borrow().is_some()
    }

    /// May another launch call go out?
    pub(crate) fn may_launch(&self) -> bool {
        !self.stopping() && Instant::now() < self.launch_until
    }

    /// Ends when no launch call may be waited for any longer: the limit, or the grace after a signal.
    pub(crate) async fn launches_over(&self) {
        tokio::select! {
            () = tokio::time::sleep_until(self.launch_until.into()) => {}
            () = self.after_signal(GRACE) => {}
        }
    }

    /// Ends when nothing at all may be waited for any longer.
    pub(crate) async fn over(&self) {
        tokio::select! {
            () = tokio::time::sleep_until(self.end.into()) => {}
            () = self.stopped() => {}
        }
    }

    /// Ends when a signal came and its grace is over; never without a signal.
    pub(crate) async fn stopped(&self) {
        self.after_signal(GRACE_IN_ALL).await;
    }

    async fn after_signal(&self, grace: Duration) {
        let mut stop = self.stop.clone();
        let signalled = stop.wait_for(Option::is_some).await.map(|at| *at);
        match signalled {
            Ok(Some(at)) => tokio::time::sleep_until((at + grace).into()).await,
            // Signals cannot be caught: they end the program by themselves.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    /// Sleeps, unless the time for launches ends sooner: then `false`.
    pub(crate) async fn pause(&self, pause: Duration) -> bool {
        if Instant::now() + pause >= self.launch_until {
            return false;
        }
        let mut stop = self.stop.clone();
        tokio::select! {
            () = tokio::time::sleep(pause) => self.may_launch(),
            Ok(_) = stop.wait_for(Option::is_some) => false,
        }
    }

    /// What is left until the end.
    pub(crate) fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_by_name_and_number() {
        let dir = tempfile::tempdir().expect("a folder");
        let passwd = dir.path().join("passwd");
        crate::store::atomic::replace(&passwd, b"root:x:0:0::/:/bin/sh\nslurm:x:64030:64031::/:/bin/false\nbad line\n", 0o644)
            .expect("written");
        assert_eq!(lookup_user(&passwd, "slurm"), Ok((64030, 64031)));
        assert_eq!(lookup_user(&passwd, "64030"), Ok((64030, 64031)));
        let error = lookup_user(&passwd, "nobody").expect_err("not there");
        assert!(error.contains("user nobody"), "{error}");
    }

    /// Orphans of 300 s go, whatever slurm.conf and `[launch] deadline` allow.
    #[test]
    fn beside_parallelcluster_a_run_ends_before_its_instances_are_orphans() {
        const BESIDE: &str = "[parallelcluster]\nheartbeat = \"/opt/slurm/etc/pcluster/.slurm_plugin/clustermgtd_heartbeat\"\n";
        let dir = tempfile::tempdir().expect("a folder");
        let conf = |resume_timeout: u32| {
            let path = dir.path().join("slurm.conf");
            let text = format!("ClusterName=hpc\nResumeTimeout={resume_timeout}\n");
            crate::store::atomic::replace(&path, text.as_bytes(), 0o644).expect("written");
            crate::slurm::conf::read(&path).expect("a slurm.conf")
        };
        let limit = |beside: &str, conf: Option<&SlurmConf>| {
            let text = format!(
                "cluster = \"hpc\"\nregion = \"eu-west-1\"\n{beside}\
                 [[group]]\nname = \"c5\"\nnodes = \"c5-[1-2]\"\nlaunch_template = {{ name = \"hpc-c5\", version = \"1\" }}\n"
            );
            let mut settings = config::file::parse(Path::new("slurm-ec2.toml"), &text).expect("a configuration");
            settings.run.deadline = Duration::from_mins(10);
            time_limit(&settings, conf, &["c5-1".to_owned()]).as_secs()
        };
        for (resume_timeout, standalone, beside) in [(1800, 600, 240), (482, 241, 240), (480, 240, 240), (60, 30, 30)] {
            let conf = conf(resume_timeout);
            assert_eq!((limit("", Some(&conf)), limit(BESIDE, Some(&conf))), (standalone, beside), "{resume_timeout}");
        }
        assert_eq!((limit("", None), limit(BESIDE, None)), (30, 30));
    }
}
