//! Runs scontrol: calls in, answers sorted into done, refused and unknown out.
//!
//! No shell, an absolute path, an environment of four variables, and a time limit on every run: scontrol waits 59 s for a
//! missing slurm.conf and 9 s for a slurmctld that is down. The child stays in our process group, so that whoever ends us
//! ends it too. What an answer means: *refused* is slurmctld's own "no"; anything else that goes wrong leaves the update
//! *unknown*, for it may have been applied, and repeating it does no harm. Never decides what becomes of a node.
//!
//! Through sudo, where it must be another user's (`sudo.rs`): scontrol goes by its own slurm.conf then. A sudo that is over its time
//! cannot be ended by us and is left to itself; scontrol ends by its own limits.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::unistd::AccessFlags;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::sync::OnceCell;

use super::show;
use super::sudo::{self, Sudo};
use super::update::Call;
use super::version::Version;
use crate::model::node::SlurmNode;
use crate::zone::Zone;

/// Bytes of output that are kept. 65,536 nodes (Slurm's limit) at 1 KB are 64 MiB.
const MAX_OUTPUT: u64 = 256 << 20;

/// Bytes of error text that are kept: some lines.
const MAX_ERROR_TEXT: u64 = 64 << 10;

/// More names than this are not listed to `show nodes`; all nodes are asked for and filtered here.
const MAX_SHOWN_BY_NAME: usize = 2_000;

/// Bytes of names for `show nodes`: one argument (the kernel takes 131,071).
const MAX_NAMES: usize = 100_000;

/// Pause before a call is repeated, and its limit as it doubles.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// slurmctld did not answer, or scontrol could not get as far as asking. Passing: worth repeating.
    #[error("slurmctld did not answer {command}: {stderr}")]
    Unreachable { command: String, stderr: String },
    /// slurmctld answered no.
    #[error("slurmctld refused {command}: {stderr}")]
    Refused { command: String, stderr: String },
    /// slurmctld answered that this user may not. Says nothing about the nodes.
    #[error("slurmctld does not let this user do {command}: {stderr}; run it as SlurmUser or root")]
    Denied { command: String, stderr: String },
    /// sudo did not run it. Says nothing about the nodes.
    #[error("sudo does not let this user run {}: {stderr}; sudoers needs a line such as: USER ALL = (root) NOPASSWD: {}", path.display(), path.display())]
    Sudo { path: PathBuf, stderr: String },
    #[error("cannot run {}: {source}; [slurm] sudo must name the sudo program", path.display())]
    NoSudo { path: PathBuf, source: std::io::Error },
    #[error("{command} did not end within {} s; slurmctld may be down or slurm.conf missing", limit.as_secs_f64().round())]
    Timeout { command: String, limit: Duration },
    #[error("cannot run {}: {source}; [slurm] bin_dir (with ParallelCluster's files SLURM_BINARIES_DIR) must name the folder that holds scontrol", path.display())]
    NotExecutable { path: PathBuf, source: std::io::Error },
    #[error("cannot talk to {command}: {source}")]
    Io { command: String, source: std::io::Error },
    #[error("{command} printed what cannot be read: {why}")]
    Unreadable { command: String, why: String },
}

impl Error {
    /// May the same call succeed a moment later?
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Timeout { .. } | Self::Io { .. })
    }
}

/// What became of many calls. Each node of the calls is in exactly one list, in the order in which it was settled; a node is
/// done only if every call that names it was.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    pub(crate) done: Vec<String>,
    /// With slurmctld's words.
    pub(crate) refused: Vec<(String, String)>,
    /// Not known whether it was applied; to be repeated by whoever runs next.
    pub(crate) unknown: Vec<String>,
    /// Why nodes are unknown: the last error, see [`telling`].
    pub(crate) why_unknown: Option<Error>,
}

/// The door to slurmctld.
#[derive(Debug)]
pub(crate) struct Scontrol {
    bin: PathBuf,
    conf: PathBuf,
    sudo: Option<Sudo>,
    timeout: Duration,
    all_nodes_timeout: Duration,
    version: OnceCell<Version>,
}

/// How a run ended.
pub(super) struct Ran {
    pub(super) success: bool,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Scontrol {
    /// `bin_dir` is the folder of scontrol, `conf` the slurm.conf, `timeout` the limit of one run.
    pub(crate) fn new(bin_dir: &Path, conf: &Path, timeout: Duration) -> Self {
        let (bin, conf) = (bin_dir.join("scontrol"), conf.to_owned());
        Self { bin, conf, sudo: None, timeout, all_nodes_timeout: timeout, version: OnceCell::new() }
    }

    /// With a limit of its own for a question about all nodes: tens of thousands of them take longer than any other.
    pub(crate) fn all_nodes_within(self, limit: Duration) -> Self {
        Self { all_nodes_timeout: limit, ..self }
    }

    /// Through this sudo, if any.
    pub(crate) fn through(self, sudo: Option<&Path>) -> Self {
        Self { sudo: sudo.map(Sudo::new), ..self }
    }

    /// Is there a scontrol to run at all? Looks at the disk, starts nothing.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let may_run = |path: &Path| {
            nix::unistd::access(path, AccessFlags::X_OK).map_err(|errno| std::io::Error::from_raw_os_error(errno as i32))
        };
        let not_there = |source| Error::NotExecutable { path: self.bin.clone(), source };
        let Some(sudo) = &self.sudo else { return may_run(&self.bin).map_err(not_there) };
        may_run(&sudo.path).map_err(|source| Error::NoSudo { path: sudo.path.clone(), source })?;
        match may_run(&self.bin) {
            // Root may run what we may not.
            Err(source) if source.kind() != std::io::ErrorKind::PermissionDenied => Err(not_there(source)),
            _ => Ok(()),
        }
    }

    /// Asked once, then remembered: a few milliseconds.
    pub(crate) async fn version(&self) -> Result<Version, Error> {
        self.version
            .get_or_try_init(|| async {
                let ran = self.run(&["--version".to_owned()], None, self.timeout).await?;
                let command = "scontrol --version".to_owned();
                if !ran.success {
                    return Err(sort(command, &ran));
                }
                Version::parse(&ran.stdout)
                    .ok_or_else(|| Error::Unreadable { command, why: format!("no version in {:?}", short(&ran.stdout)) })
            })
            .await
            .copied()
    }

    /// These nodes, as far as Slurm knows and shows them (22.05 hides powered-down ones without `PrivateData=cloud`), in Slurm's
    /// order. Repeated while slurmctld does not answer, until `deadline`.
    pub(crate) async fn show_nodes(&self, nodes: &[String], deadline: Instant) -> Result<Vec<SlurmNode>, Error> {
        let plain = plain_names(nodes);
        if plain.is_empty() {
            return Ok(Vec::new());
        }
        if are_too_many(&plain) {
            let wanted: HashSet<&str> = plain.into_iter().collect();
            let mut all = self.show_all_nodes(deadline).await?;
            all.retain(|node| wanted.contains(node.name.as_str()));
            return Ok(all);
        }
        self.show(Some(&plain), deadline).await
    }

    /// Every node that Slurm shows.
    pub(crate) async fn show_all_nodes(&self, deadline: Instant) -> Result<Vec<SlurmNode>, Error> {
        self.show(None, deadline).await
    }

    /// The limit of one run where showing these nodes is a question about all of them, as so many names make it; `None`: it is not.
    pub(crate) fn all_nodes_limit(&self, nodes: Option<&[String]>) -> Option<Duration> {
        nodes.is_none_or(|nodes| are_too_many(&plain_names(nodes))).then_some(self.all_nodes_timeout)
    }

    async fn show(&self, names: Option<&[&str]>, deadline: Instant) -> Result<Vec<SlurmNode>, Error> {
        // --all: nodes of hidden partitions too; --local: never those of a federation's other clusters.
        let mut args = vec!["--all".to_owned(), "--local".to_owned(), "show".to_owned(), "nodes".to_owned()];
        args.extend(names.map(|names| names.join(",")));
        let mut pause = FIRST_PAUSE;
        let mut earlier = None;
        loop {
            let whole = if names.is_some() { self.timeout } else { self.all_nodes_timeout };
            let limit = whole.min(deadline.saturating_duration_since(Instant::now()));
            let error = match self.show_once(&args, names, limit).await {
                Ok(nodes) => return Ok(nodes),
                Err(error) => telling(error, earlier, limit < whole),
            };
            if !error.is_passing() || !rest(&mut pause, deadline).await {
                return Err(error);
            }
            earlier = Some(error);
        }
    }

    async fn show_once(&self, args: &[String], names: Option<&[&str]>, limit: Duration) -> Result<Vec<SlurmNode>, Error> {
        let ran = self.run(args, None, limit).await?;
        let command = "scontrol show nodes".to_owned();
        let began = Instant::now();
        let shown = match show::parse(&ran.stdout, self.zone()) {
            Ok(shown) => {
                let us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
                tracing::debug!(bytes = ran.stdout.len(), nodes = shown.nodes.len(), us, "nodes read");
                shown
            }
            // The reason for a broken answer is in the error text, if there is one.
            Err(_) if !ran.success && !ran.stderr.trim().is_empty() => return Err(sort(command, &ran)),
            Err(error) => return Err(Error::Unreadable { command, why: error.to_string() }),
        };
        // scontrol ends with 1 when a name is not found; the others are shown all the same.
        let complete =
            names.is_some_and(|names| shown.nodes.len() + shown.not_found.len() >= names.iter().collect::<HashSet<_>>().len());
        if ran.success || (complete && !shown.not_found.is_empty()) { Ok(shown.nodes) } else { Err(sort(command, &ran)) }
    }

    /// One run of one call.
    pub(crate) async fn apply(&self, call: &Call, timeout: Duration) -> Result<(), Error> {
        let command = format!("scontrol update ({})", call.describe());
        // ALL, node sets' functions and the like would change other nodes than the one that is meant.
        if let Some(node) = call.nodes().iter().find(|node| !is_plain_name(node)) {
            return Err(Error::Refused { command, stderr: format!("{node:?} is no name of a node") });
        }
        if call.nodes().is_empty() {
            return Ok(());
        }
        let ran = self.run(&call.args(), call.input().as_deref(), timeout).await?;
        if ran.success { Ok(()) } else { Err(sort(command, &ran)) }
    }

    /// All calls, one after another in this order, each until it is settled or `deadline` has come.
    ///
    /// A refused call is taken apart until exactly the refused nodes are known: slurmctld has changed the nodes before the bad one
    /// and not those after it, and does not name it. The other nodes' update is repeated, which changes nothing more.
    pub(crate) async fn apply_all(&self, calls: Vec<Call>, deadline: Instant) -> Applied {
        let mut settled = Settled::default();
        for call in calls {
            self.settle(call, deadline, &mut settled).await;
        }
        settled.into_applied()
    }

    async fn settle(&self, call: Call, deadline: Instant, settled: &mut Settled) {
        let mut looked = false;
        let mut pause = FIRST_PAUSE;
        let mut earlier = None;
        let mut waiting = vec![call];
        while let Some(call) = waiting.pop() {
            if call.nodes().is_empty() {
                continue;
            }
            let limit = self.limit(deadline);
            let error = if limit.is_zero() {
                Error::Timeout { command: format!("scontrol update ({})", call.describe()), limit }
            } else {
                match self.apply(&call, limit).await {
                    Ok(()) => {
                        (pause, earlier) = (FIRST_PAUSE, None);
                        settled.done(&call);
                        continue;
                    }
                    Err(error) => error,
                }
            };
            let is_cut = self.is_cut(limit);
            match telling(error, earlier.take(), is_cut) {
                Error::Refused { stderr, .. } if call.is_settled_by(&stderr) => settled.done(&call),
                Error::Refused { stderr, .. } if call.nodes().len() == 1 => settled.refused(&call, &stderr),
                Error::Refused { .. } => {
                    // One look tells most of the bad names; what Slurm does not show may still exist (hidden on 22.05), so it is tried
                    // all the same, but apart from the many good ones.
                    let mut parts = (call, None);
                    if !looked {
                        looked = true;
                        parts = self.apart(parts.0, deadline).await;
                    }
                    match parts {
                        (seen, Some(unseen)) => {
                            waiting.push(unseen);
                            waiting.push(seen);
                        }
                        (call, None) => {
                            if let Some((first, second)) = call.halves() {
                                waiting.push(second);
                                waiting.push(first);
                            }
                        }
                    }
                }
                error if error.is_passing() && rest(&mut pause, deadline).await => {
                    earlier = Some(error);
                    waiting.push(call);
                }
                error => settled.unknown(&call, error, is_cut),
            }
        }
    }

    /// The call for the nodes that Slurm shows, and for those it does not; `None` when that parts nothing.
    async fn apart(&self, call: Call, deadline: Instant) -> (Call, Option<Call>) {
        let Ok(shown) = self.show_nodes(call.nodes(), deadline).await else { return (call, None) };
        let names: HashSet<String> = shown.into_iter().map(|node| node.name).collect();
        let (seen, unseen) = call.partition(|node| names.contains(node));
        if seen.nodes().is_empty() || unseen.nodes().is_empty() { (call, None) } else { (seen, Some(unseen)) }
    }

    /// In which times are printed; `None`: as seconds since 1970.
    pub(super) fn zone(&self) -> Option<&Zone> {
        self.sudo.as_ref().map(|sudo| &sudo.zone)
    }

    /// Is it less than a run may take?
    pub(super) fn is_cut(&self, limit: Duration) -> bool {
        limit < self.timeout
    }

    /// Time for the next run.
    pub(super) fn limit(&self, deadline: Instant) -> Duration {
        self.timeout.min(deadline.saturating_duration_since(Instant::now()))
    }

    pub(super) async fn run(&self, args: &[String], input: Option<&str>, limit: Duration) -> Result<Ran, Error> {
        let command = || format!("scontrol {}", args.iter().take(2).map(|arg| short(arg)).collect::<Vec<_>>().join(" "));
        match tokio::time::timeout(limit, self.run_to_end(args, input)).await {
            Ok(Ok(ran)) if self.sudo.is_some() && !ran.success => match sudo::own_refusal(&ran.stderr) {
                Some(text) => Err(Error::Sudo { path: self.bin.clone(), stderr: short(text) }),
                None => Ok(ran),
            },
            Ok(Ok(ran)) => Ok(ran),
            // Anything but the program itself being absent or unusable can pass: no memory, too many processes, being replaced.
            Ok(Err(Failed::Start(source))) if is_lasting(&source) => Err(match &self.sudo {
                None => Error::NotExecutable { path: self.bin.clone(), source },
                Some(sudo) => Error::NoSudo { path: sudo.path.clone(), source },
            }),
            Ok(Err(Failed::Start(source) | Failed::Talk(source))) => Err(Error::Io { command: command(), source }),
            // Dropping the run has killed the child.
            Err(_) => Err(Error::Timeout { command: command(), limit }),
        }
    }

    async fn run_to_end(&self, args: &[String], input: Option<&str>) -> Result<Ran, Failed> {
        let program = self.sudo.as_ref().map_or(&self.bin, |sudo| &sudo.path);
        #[expect(clippy::disallowed_methods, reason = "this is the module that starts programs")]
        let mut command = tokio::process::Command::new(program);
        if let Some(sudo) = &self.sudo {
            command.args(sudo.args(&self.bin));
        }
        command
            .args(args)
            .env_clear()
            .env("SLURM_CONF", &self.conf)
            // Seconds since 1970 instead of the head node's local time (slurm-notes.md).
            .env("SLURM_TIME_FORMAT", "%s")
            .env("PATH", "/usr/bin:/bin")
            .env("LC_ALL", "C")
            .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        // std clears the child's signal mask and sets SIGPIPE back: slurmctld 22.05 hands us a dozen blocked signals.
        let mut child = command.spawn().map_err(Failed::Start)?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let write = async {
            if let (Some(mut stdin), Some(input)) = (stdin, input) {
                // scontrol may end before it has read all; its status tells.
                let _ = stdin.write_all(input.as_bytes()).await;
                let _ = stdin.shutdown().await;
            }
        };
        let ((), stdout, stderr, status) =
            tokio::join!(write, read(stdout, MAX_OUTPUT), read(stderr, MAX_ERROR_TEXT), child.wait());
        let (stdout, stderr, status) =
            (stdout.map_err(Failed::Talk)?, stderr.map_err(Failed::Talk)?, status.map_err(Failed::Talk)?);
        Ok(Ran { success: status.success(), stdout, stderr })
    }
}

fn plain_names(nodes: &[String]) -> Vec<&str> {
    nodes.iter().map(String::as_str).filter(|node| is_plain_name(node)).collect()
}

/// To be named in one call.
fn are_too_many(names: &[&str]) -> bool {
    names.len() > MAX_SHOWN_BY_NAME || names.iter().map(|name| name.len() + 1).sum::<usize>() > MAX_NAMES
}

enum Failed {
    Start(std::io::Error),
    Talk(std::io::Error),
}

fn is_lasting(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ArgumentListTooLong, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied};
    // ENOEXEC (8): no program at all.
    matches!(error.kind(), NotFound | PermissionDenied | NotADirectory | IsADirectory | InvalidInput | ArgumentListTooLong)
        || error.raw_os_error() == Some(8)
}

/// Everything up to `most` bytes; the rest is read and dropped, so that the writer never blocks.
async fn read(source: Option<impl AsyncRead + Unpin>, most: u64) -> std::io::Result<String> {
    let Some(mut source) = source else { return Ok(String::new()) };
    let mut bytes = Vec::new();
    (&mut source).take(most).read_to_end(&mut bytes).await?;
    tokio::io::copy(&mut source, &mut tokio::io::sink()).await?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Why a repeated call failed: a try that was cut short by the deadline says less than the one before it.
pub(crate) fn telling(error: Error, earlier: Option<Error>, is_cut: bool) -> Error {
    match earlier {
        Some(earlier) if is_cut && matches!(error, Error::Timeout { .. }) => earlier,
        _ => error,
    }
}

/// Waits before the next try; `false`, at once, when the deadline would be over by then.
pub(super) async fn rest(pause: &mut Duration, deadline: Instant) -> bool {
    if Instant::now() + *pause >= deadline {
        return false;
    }
    tokio::time::sleep(*pause).await;
    *pause = (*pause * 2).min(LONGEST_PAUSE);
    true
}

/// What a failed run means, by its words (Slurm's src/common/slurm_errno.c).
pub(super) fn sort(command: String, ran: &Ran) -> Error {
    // A slurmctld that was not reached. Its texts change little from version to version; compared in lower case.
    const NOT_REACHED: [&str; 17] = [
        "fatal:",
        "unable to contact",
        "communication connection",
        "communication shutdown",
        "message send failure",
        "message receive failure",
        "timed out",
        "zero bytes",
        "authentication",
        "munge",
        "standby",
        "connection refused",
        "insane message",
        "unexpected message",
        "header lengths",
        "rate limit",
        "temporarily unavailable",
    ];
    const DENIED: [&str; 3] = ["access/permission denied", "invalid user id", "access denied"];
    // An answer of slurmctld, or scontrol's own no to the words of the request.
    const ANSWERED: [&str; 9] = [
        "slurm_update error",
        "error creating the reservation",
        "error updating the reservation",
        "delete_reservation",
        "update of this parameter is not supported",
        "request denied",
        "request aborted",
        "invalid input",
        "invalid node",
    ];
    let text = short(if ran.stderr.trim().is_empty() { &ran.stdout } else { &ran.stderr });
    // The line with the outcome, where there is one: the others may be warnings about slurm.conf, which every command repeats.
    let outcome = ran.stderr.lines().rfind(|line| line.contains("slurm_update error") || line.contains("slurm_load_node error"));
    let lower = outcome.unwrap_or(&ran.stderr).to_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    if says(&NOT_REACHED) {
        Error::Unreachable { command, stderr: text }
    } else if says(&DENIED) {
        Error::Denied { command, stderr: text }
    } else if says(&ANSWERED) {
        Error::Refused { command, stderr: outcome.map_or(text, short) }
    } else {
        // Killed, "fatal:" about slurm.conf, silence: nobody has answered.
        Error::Unreachable {
            command,
            stderr: if text.is_empty() { "it ended with an error and no message".to_owned() } else { text },
        }
    }
}

/// Some words for a message: lines joined, `scontrol: error: ` left out, 300 bytes.
fn short(text: &str) -> String {
    let mut joined = String::new();
    for line in text.lines() {
        let line = line.trim().trim_start_matches("scontrol: ").trim_start_matches("error: ");
        if line.is_empty() {
            continue;
        }
        if !joined.is_empty() {
            joined.push_str("; ");
        }
        joined.push_str(line);
        if joined.len() > 300 {
            let mut cut = 297;
            while !joined.is_char_boundary(cut) {
                cut -= 1;
            }
            joined.truncate(cut);
            joined.push_str("...");
            break;
        }
    }
    joined
}

/// One node's name and nothing that scontrol would take for more: `ALL`, lists, brackets, `feature{…}`, `key=value`; `localhost` means
/// the machine that scontrol runs on.
fn is_plain_name(node: &str) -> bool {
    !node.is_empty()
        && !node.eq_ignore_ascii_case("all")
        && !node.eq_ignore_ascii_case("localhost")
        && node.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// Nodes as they are settled, in order.
#[derive(Default)]
struct Settled {
    order: Vec<String>,
    verdict: std::collections::HashMap<String, Verdict>,
    why_unknown: Option<Error>,
}

enum Verdict {
    Done,
    Refused(String),
    Unknown,
}

impl Settled {
    fn done(&mut self, call: &Call) {
        for node in call.nodes() {
            self.note(node, Verdict::Done);
        }
    }

    fn refused(&mut self, call: &Call, text: &str) {
        for node in call.nodes() {
            self.note(node, Verdict::Refused(text.to_owned()));
        }
    }

    /// `is_cut`: by the deadline. Then it is the same story as that of a call before it, which knew more.
    fn unknown(&mut self, call: &Call, error: Error, is_cut: bool) {
        for node in call.nodes() {
            self.note(node, Verdict::Unknown);
        }
        self.why_unknown = Some(telling(error, self.why_unknown.take(), is_cut));
    }

    /// The worst of several calls counts: a refusal is certain, so it outweighs what is not known.
    fn note(&mut self, node: &str, verdict: Verdict) {
        match self.verdict.get_mut(node) {
            None => {
                self.order.push(node.to_owned());
                self.verdict.insert(node.to_owned(), verdict);
            }
            Some(known) => match (&known, &verdict) {
                (Verdict::Refused(_), _) | (_, Verdict::Done) | (Verdict::Unknown, Verdict::Unknown) => {}
                _ => *known = verdict,
            },
        }
    }

    fn into_applied(mut self) -> Applied {
        let mut applied = Applied { why_unknown: self.why_unknown, ..Applied::default() };
        for node in self.order {
            match self.verdict.remove(&node) {
                Some(Verdict::Refused(text)) => applied.refused.push((node, text)),
                Some(Verdict::Unknown) => applied.unknown.push(node),
                Some(Verdict::Done) | None => applied.done.push(node),
            }
        }
        applied
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use std::fs;

    use super::super::update::{NodeUpdate, down_args, power_down_args, publish_args, resume_args};
    use super::*;

    /// A folder with the stand-in of tests/bin, which its files steer (described at its top).
    struct Bench {
        dir: tempfile::TempDir,
    }

    impl Bench {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let stand_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bin/scontrol");
            std::os::unix::fs::symlink(stand_in, dir.path().join("scontrol")).unwrap();
            Self { dir }
        }

        fn scontrol(&self) -> Scontrol {
            Scontrol::new(self.dir.path(), Path::new("/etc/slurm/test.conf"), Duration::from_secs(60))
        }

        fn set(&self, name: &str, text: &str) -> &Self {
            fs::write(self.dir.path().join(format!("scontrol.{name}")), text).unwrap();
            self
        }

        fn get(&self, name: &str) -> String {
            fs::read_to_string(self.dir.path().join(format!("scontrol.{name}"))).unwrap_or_default()
        }

        fn log(&self) -> Vec<String> {
            self.get("log").lines().map(str::to_owned).collect()
        }
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    /// Some tests make dozens of calls; one that passes never waits for it.
    fn soon() -> Instant {
        Instant::now() + Duration::from_mins(5)
    }

    fn nodes(count: usize) -> Vec<String> {
        (0..count).map(|index| format!("n{index:03}")).collect()
    }

    fn owned(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn refused_names(applied: &Applied) -> Vec<&str> {
        let mut names: Vec<&str> = applied.refused.iter().map(|(node, _)| node.as_str()).collect();
        names.sort_unstable();
        names
    }

    const UNREACHABLE: &str = "1\nslurm_update error: Unable to contact slurm controller (connect failure)\n";

    #[test]
    fn the_version_is_asked_once() {
        let bench = Bench::new();
        bench.set("version", "22.05.8\n");
        let scontrol = bench.scontrol();
        run(async {
            assert_eq!(scontrol.version().await.unwrap(), Version::new(22, 5, 8));
            assert_eq!(scontrol.version().await.unwrap(), Version::new(22, 5, 8));
        });
        assert_eq!(bench.log(), ["--version"]);
        bench.set("version", "of no form\n");
        assert!(matches!(run(bench.scontrol().version()), Err(Error::Unreadable { .. })));
    }

    #[test]
    fn the_environment_is_ours_alone() {
        let bench = Bench::new();
        bench.set("env", "");
        run(bench.scontrol().version()).unwrap();
        let text = bench.get("env");
        let mut lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("PWD=") && !line.starts_with("_=")).collect();
        lines.sort_unstable();
        assert_eq!(lines, ["LC_ALL=C", "PATH=/usr/bin:/bin", "SLURM_CONF=/etc/slurm/test.conf", "SLURM_TIME_FORMAT=%s"]);
    }

    #[test]
    fn all_nodes_in_one_call_when_nothing_is_wrong() {
        let bench = Bench::new();
        bench.set("applied", "");
        let calls = down_args(&nodes(50), "no room", None, 100);
        let applied = run(bench.scontrol().apply_all(calls, soon()));
        assert_eq!(applied.done, nodes(50));
        assert!(applied.refused.is_empty() && applied.unknown.is_empty() && applied.why_unknown.is_none());
        assert_eq!(bench.log().len(), 1);
        assert!(bench.get("applied").starts_with("n000 state=down reason=no room\n"));
        // Nothing to do: nothing is started (R14).
        assert!(run(bench.scontrol().apply_all(Vec::new(), soon())).done.is_empty());
        assert_eq!(bench.log().len(), 1);
    }

    #[test]
    fn exactly_the_bad_nodes_are_refused() {
        for bad in [vec![0], vec![23], vec![0, 1, 2], vec![7, 11, 12, 20], (0..24).collect()] {
            let all = nodes(24);
            let refused: Vec<&str> = bad.iter().map(|index| all[*index].as_str()).collect();
            // Once Slurm shows the bad ones as unknown, once it shows all nodes and refuses some of them all the same.
            for hidden in [true, false] {
                let bench = Bench::new();
                bench.set("refuse", &refused.join("\n")).set("applied", "");
                if hidden {
                    let shown = all.iter().filter(|node| !refused.contains(&node.as_str()));
                    bench.set(
                        "nodes",
                        &shown
                            .map(|node| format!("NodeName={node} CoresPerSocket=1 \n   State=IDLE+CLOUD \n\n"))
                            .collect::<String>(),
                    );
                }
                let updates: Vec<NodeUpdate> = all
                    .iter()
                    .map(|node| NodeUpdate {
                        node: node.clone(),
                        addr: Some(format!("10.{}", &node[1..])),
                        hostname: None,
                        instance_id: None,
                    })
                    .collect();
                let applied = run(bench.scontrol().apply_all(publish_args(&updates, &Version::new(22, 5, 8), 1000), soon()));
                assert_eq!(refused_names(&applied), refused, "hidden: {hidden}");
                assert_eq!(applied.done.len(), 24 - bad.len());
                assert!(applied.unknown.is_empty());
                assert!(applied.refused.iter().all(|(_, text)| text.contains("Invalid node name specified")));
                // Whoever was changed got its own address and nobody else was changed.
                let text = bench.get("applied");
                for line in text.lines() {
                    let (node, change) = line.split_once(' ').unwrap();
                    assert_eq!(change, format!("nodeaddr=10.{}", &node[1..]));
                    assert!(!refused.contains(&node));
                }
                for node in &applied.done {
                    assert!(text.contains(&format!("{node} ")), "{node} was never changed");
                }
                if hidden && bad.len() == 4 {
                    // The whole, one look, the good ones at once, the bad ones (4 + 2 halvings + 4 singles at most).
                    assert!(bench.log().len() <= 10, "{:?}", bench.log());
                }
            }
        }
    }

    #[test]
    fn instance_ids_go_line_by_line() {
        let bench = Bench::new();
        bench.set("applied", "").set("refuse", "n001\n");
        let updates: Vec<NodeUpdate> = nodes(3)
            .into_iter()
            .map(|node| NodeUpdate { instance_id: Some(format!("i-{node}")), node, addr: None, hostname: None })
            .collect();
        let applied = run(bench.scontrol().apply_all(publish_args(&updates, &Version::new(24, 11, 5), 1000), soon()));
        assert_eq!(refused_names(&applied), ["n001"]);
        assert_eq!(applied.done, ["n000", "n002"]);
        assert_eq!(bench.log()[..2], ["-", "< update nodename=n000 instanceid=i-n000"]);
        assert!(bench.get("applied").contains("n002 instanceid=i-n002"));
    }

    #[test]
    fn a_node_is_done_only_if_all_its_calls_were() {
        let bench = Bench::new();
        bench.set("refuse", "b\n");
        let mut calls = power_down_args(&owned(&["a"]), None, 10);
        calls.extend(down_args(&owned(&["a", "b"]), "x", None, 10));
        calls.extend(power_down_args(&owned(&["c"]), None, 10));
        let applied = run(bench.scontrol().apply_all(calls, soon()));
        assert_eq!((applied.done, applied.refused.len()), (owned(&["a", "c"]), 1));
    }

    #[test]
    fn z02_nodes_that_need_no_resume_are_no_failure() {
        for text in ["Invalid node state specified", "Invalid node state transition"] {
            let bench = Bench::new();
            bench.set("fail.update", &format!("1\nslurm_update error: {text}\n"));
            let applied = run(bench.scontrol().apply_all(resume_args(&nodes(3), 10), soon()));
            assert_eq!((applied.done, applied.refused.len()), (nodes(3), 0), "{text}");
            assert_eq!(bench.log(), ["update nodename=n000,n001,n002 state=resume"], "neither repeated nor taken apart");
            // Of any other change it is a refusal.
            let applied = run(bench.scontrol().apply_all(down_args(&nodes(1), "x", None, 10), soon()));
            assert_eq!((applied.done.len(), refused_names(&applied)), (0, vec!["n000"]));
        }
        let bench = Bench::new();
        bench.set("refuse", "n001\n");
        let applied = run(bench.scontrol().apply_all(resume_args(&nodes(3), 10), soon()));
        assert_eq!((applied.done.len(), refused_names(&applied)), (2, vec!["n001"]));
    }

    #[test]
    fn not_reached_is_repeated() {
        let bench = Bench::new();
        bench.set("fail.once", UNREACHABLE);
        let applied = run(bench.scontrol().apply_all(down_args(&nodes(3), "x", None, 10), soon()));
        assert_eq!(applied.done, nodes(3));
        assert_eq!(bench.log().len(), 2);
    }

    #[test]
    fn never_reached_is_unknown_and_not_refused() {
        for (file, text) in [
            ("fail.update", UNREACHABLE),
            ("fail.update", "1\nslurm_update error: Protocol authentication error\n"),
            ("fail.update", "1\nscontrol: fatal: Unable to process configuration file\n"),
            ("fail.update", "1\n"),
            ("fail.update", "1\nslurm_update error: Slurm backup controller in standby mode\n"),
            ("fail.update", "1\nslurm_update error: Access/permission denied\n"),
        ] {
            let bench = Bench::new();
            bench.set(file, text);
            let deadline = Instant::now() + Duration::from_millis(300);
            let applied = run(bench.scontrol().apply_all(down_args(&nodes(3), "x", None, 10), deadline));
            assert_eq!((applied.unknown, applied.done.len(), applied.refused.len()), (nodes(3), 0, 0), "{text}");
            assert!(applied.why_unknown.is_some());
        }
    }

    /// The first call is refused the connection, and its repetition hangs; those behind it are not even begun.
    #[test]
    fn what_the_end_of_the_time_cuts_short_hides_no_reason() {
        let bench = Bench::new();
        bench.set("fail.once", UNREACHABLE).set("hold.2", "");
        let calls = down_args(&nodes(3), "x", None, 1);
        assert_eq!(calls.len(), 3);
        let applied = run(bench.scontrol().apply_all(calls, Instant::now() + Duration::from_secs(2)));
        assert_eq!((applied.unknown, applied.done.len(), applied.refused.len()), (nodes(3), 0, 0));
        // On a slow machine the first run itself may be cut short: then there is no other reason.
        let heard = bench.log().len() > 1;
        assert!(matches!(applied.why_unknown, Some(Error::Unreachable { .. })) || !heard, "{:?}", applied.why_unknown);

        let (mut settled, call) = (Settled::default(), &down_args(&nodes(1), "x", None, 1)[0]);
        let late = || Error::Timeout { command: "x".into(), limit: Duration::ZERO };
        settled.unknown(call, Error::Unreachable { command: "x".into(), stderr: "connect failure".into() }, false);
        settled.unknown(call, late(), true);
        assert!(matches!(settled.why_unknown, Some(Error::Unreachable { .. })), "it was not begun");
        settled.unknown(call, late(), false);
        assert!(matches!(settled.why_unknown, Some(Error::Timeout { .. })), "it hung for all the time that a run has");
    }

    #[test]
    fn past_the_deadline_nothing_is_started() {
        let bench = Bench::new();
        let applied = run(bench.scontrol().apply_all(down_args(&nodes(3), "x", None, 10), Instant::now()));
        assert_eq!(applied.unknown, nodes(3));
        assert!(matches!(applied.why_unknown, Some(Error::Timeout { .. })));
        assert!(bench.log().is_empty());
    }

    #[test]
    fn a_hanging_scontrol_is_killed() {
        let bench = Bench::new();
        bench.set("hang", "");
        run(async {
            let scontrol = Scontrol::new(bench.dir.path(), Path::new("/x"), Duration::from_millis(200));
            let call = &down_args(&nodes(1), "x", None, 1)[0];
            assert!(matches!(scontrol.apply(call, Duration::from_millis(200)).await, Err(Error::Timeout { .. })));
            assert!(matches!(scontrol.version().await, Err(Error::Timeout { .. })));
            // Both children are gone, not only asked to go: none is left as a zombie or alive.
            let mut left = children();
            for _ in 0..3000 {
                if left.is_empty() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
                left = children();
            }
            assert_eq!(left, Vec::<String>::new());

            fn children() -> Vec<String> {
                let me = std::process::id().to_string();
                let stats =
                    fs::read_dir("/proc").unwrap().filter_map(|entry| fs::read_to_string(entry.ok()?.path().join("stat")).ok());
                // `pid (name) state parent …`; the hanging stand-in is `sleep`.
                stats
                    .filter(|stat| {
                        stat.contains("(sleep)") && stat.rsplit(") ").next().unwrap().split(' ').nth(1) == Some(me.as_str())
                    })
                    .collect()
            }
        });
    }

    #[test]
    fn a_missing_program_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let scontrol = Scontrol::new(dir.path(), Path::new("/x"), Duration::from_secs(9));
        let error = run(scontrol.version()).unwrap_err();
        assert!(matches!(&error, Error::NotExecutable { path, .. } if path.ends_with("scontrol")), "{error}");
        assert!(!error.is_passing() && error.to_string().contains("bin_dir"));
        let applied = run(scontrol.apply_all(down_args(&nodes(2), "x", None, 10), soon()));
        assert_eq!(applied.unknown, nodes(2));
        fs::write(dir.path().join("scontrol"), "").unwrap();
        assert!(matches!(run(scontrol.version()), Err(Error::NotExecutable { .. })), "not executable");
    }

    #[test]
    fn names_that_mean_more_than_one_node_are_never_sent() {
        let bench = Bench::new();
        let names = ["ALL", "a[1-2]", "a,b", "feature{x}", "a=b", "a b", "", "a\nb"];
        let applied = run(bench.scontrol().apply_all(down_args(&owned(&names), "x", None, 100), soon()));
        assert_eq!(applied.refused.len(), names.len());
        assert!(bench.log().is_empty(), "{:?}", bench.log());
        let applied = run(bench.scontrol().apply_all(down_args(&owned(&["ALL", "n-1.x_y"]), "x", None, 100), soon()));
        assert_eq!(applied.done, ["n-1.x_y"]);
        assert!(!bench.get("log").contains("ALL"));
    }

    #[test]
    fn showing_nodes() {
        let bench = Bench::new();
        bench.set("nodes", include_str!("../../tests/data/scontrol/22.05.8/show-nodes-1.txt"));
        let scontrol = bench.scontrol();
        let names = |nodes: Vec<SlurmNode>| nodes.into_iter().map(|node| node.name).collect::<Vec<_>>();
        run(async {
            let some = scontrol.show_nodes(&owned(&["q2-1", "nope", "q1-dy-c5-3"]), soon()).await.unwrap();
            assert_eq!(names(some), ["q2-1", "q1-dy-c5-3"]);
            assert_eq!(names(scontrol.show_nodes(&owned(&["nope", "ALL"]), soon()).await.unwrap()), Vec::<String>::new());
            assert_eq!(scontrol.show_all_nodes(soon()).await.unwrap().len(), 12);
            // Too many to name: all are asked for, and only these are given.
            let mut many = nodes(MAX_SHOWN_BY_NAME);
            many.push("q2-2".into());
            assert_eq!(names(scontrol.show_nodes(&many, soon()).await.unwrap()), ["q2-2"]);
            assert!(scontrol.show_nodes(&[], soon()).await.unwrap().is_empty());
        });
        assert_eq!(
            bench.log(),
            [
                "--all --local show nodes q2-1,nope,q1-dy-c5-3",
                "--all --local show nodes nope",
                "--all --local show nodes",
                "--all --local show nodes"
            ]
        );
    }

    #[test]
    fn half_an_answer_is_no_answer() {
        let text = include_str!("../../tests/data/scontrol/22.05.8/show-nodes-1.txt");
        let bench = Bench::new();
        bench.set("nodes", &text[..text.len() / 2]);
        assert!(matches!(run(bench.scontrol().show_all_nodes(soon())), Err(Error::Unreadable { .. })));
        bench.set("fail.show", "1\nslurm_load_node error: Unable to contact slurm controller (connect failure)\n");
        let once = run(bench.scontrol().show_once(&owned(&["show", "nodes"]), None, Duration::from_secs(60)));
        assert!(matches!(once, Err(Error::Unreachable { .. })), "{once:?}");
        // Again and again until the time is over, which may cut the last run short; on a slow machine it is the first.
        let before = bench.log().len();
        let error = run(bench.scontrol().show_all_nodes(Instant::now() + Duration::from_secs(1))).unwrap_err();
        let heard = bench.log().len() > before + 1;
        assert!(matches!(error, Error::Unreachable { .. }) || (!heard && matches!(error, Error::Timeout { .. })), "{error}");
    }

    #[test]
    fn the_try_before_the_one_that_is_cut_short_says_why() {
        let late = || Error::Timeout { command: "x".into(), limit: Duration::ZERO };
        let away = || Some(Error::Unreachable { command: "x".into(), stderr: "connect failure".into() });
        assert!(matches!(telling(late(), away(), true), Error::Unreachable { .. }));
        assert!(matches!(telling(late(), away(), false), Error::Timeout { .. }), "it hung for all the time that a run has");
        assert!(matches!(telling(late(), None, true), Error::Timeout { .. }));
    }

    #[test]
    fn words_of_slurm_and_what_they_mean() {
        let sorted = |stderr: &str| sort("x".into(), &Ran { success: false, stdout: String::new(), stderr: stderr.into() });
        for refused in [
            "slurm_update error: Invalid node name specified",
            "slurm_update error: Invalid node state specified",
            "slurm_update error: Invalid node state transition",
            "Update of this parameter is not supported: instanceid=i-1\nRequest aborted",
            "You must specify a reason when DOWNING or DRAINING a node. Request denied",
        ] {
            assert!(matches!(sorted(refused), Error::Refused { .. }), "{refused}");
        }
        // A warning that 24.11 repeats with every command, before the outcome.
        let warned =
            "scontrol: error: CommunicationParameters=NoAddrCache is defunct\nslurm_update error: Invalid node name specified\n";
        let Error::Refused { stderr, .. } = sorted(warned) else { panic!("{warned}") };
        assert_eq!(stderr, "slurm_update error: Invalid node name specified");
        let munge = "scontrol: error: If munged is up, restart with --num-threads=10\nscontrol: error: Munge encode failed: Failed to access \"/x\": No such file\n";
        let Error::Unreachable { stderr, .. } = sorted(munge) else { panic!("{munge}") };
        assert!(stderr.starts_with("If munged is up, restart with --num-threads=10; Munge encode failed"), "{stderr}");
        assert!(matches!(sorted("slurm_update error: Access/permission denied"), Error::Denied { .. }));
        assert!(matches!(sorted("slurm_update error: Socket timed out on send/recv operation"), Error::Unreachable { .. }));
        assert!(short(&"x".repeat(1000)).len() <= 300);
    }
}
