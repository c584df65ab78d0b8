//! The watch over the head node: heartbeat and slurmctld looked at in each loop, `plan::watchdog` asked, and the machine shut down when
//! it says so, once, after the reason is in the log and the log on the disk.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::name::{Name, OwnName};
use super::outside::{self, Failure};
use super::steps;
use crate::config::settings::Settings;
use crate::error::chain;
use crate::model::node::SlurmNode;
use crate::plan::watchdog::{Answer, Jobs, Moment, Rules, Verdict, Watch, Why};
use crate::programs::slow::{Got, Slow, block_on};
use crate::slurm::scontrol::{Error, Scontrol};

/// The heartbeat has 31 bytes.
const MAX_BYTES: u64 = 4096;

/// The longest that the heartbeat is waited for: NFS answers in milliseconds, or its server is gone.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// The longest that shutdown is waited for, its own limit included.
const ORDER_LIMIT: Duration = Duration::from_secs(40);

/// All tries of one question to slurmctld: when it is down scontrol takes 10 s to say so (slurm-facts D.3), so about three.
const ASK_LIMIT: Duration = Duration::from_secs(30);

/// What is added for a question that does not come back from its thread.
const MARGIN: Duration = Duration::from_secs(5);

/// The log's way to the disk.
const SYNC_LIMIT: Duration = Duration::from_secs(10);

/// What slurmctld's answer, or the lack of one, was.
type Asked = Result<Vec<SlurmNode>, Error>;

pub(super) struct Watchdog {
    program: &'static str,
    started: Instant,
    watch: Watch,
    name: Arc<OwnName>,
    /// Somebody has said so, slurmd or slurmctld too. The silence of a slurmctld concerns no other machine: not its own, nor a login node.
    is_node: bool,
    /// `$SLURM_CONF`, which goes before the configuration's.
    conf: Option<PathBuf>,
    heartbeat: Slow<io::Result<Vec<u8>>>,
    asking: Slow<Option<Asked>>,
    processes: Slow<Jobs>,
    syncing: Slow<()>,
    ordering: Slow<Result<(), Failure>>,
    /// The shutdown was taken: nothing is left to do.
    ordered: bool,
    /// Told already; again only when it is something else.
    why: Option<Why>,
    trouble: Trouble,
}

/// What went wrong in the last loop, so that it is told once.
#[derive(Default)]
struct Trouble {
    heartbeat: Option<String>,
    slurm: Option<String>,
    shutdown: Option<String>,
}

impl Watchdog {
    pub(super) fn new(program: &'static str, name: Arc<OwnName>, conf: Option<PathBuf>) -> Self {
        Self {
            program,
            started: Instant::now(),
            watch: Watch::new(Moment::ZERO),
            name,
            is_node: false,
            conf,
            heartbeat: Slow::new("heartbeat"),
            asking: Slow::new("scontrol"),
            processes: Slow::new("processes"),
            syncing: Slow::new("log"),
            ordering: Slow::new("shutdown"),
            ordered: false,
            why: None,
            trouble: Trouble::default(),
        }
    }

    /// One look, and what follows from it. Takes a minute at most, whatever hangs.
    pub(super) async fn look(&mut self, settings: &Arc<Settings>) {
        if self.ordered {
            return;
        }
        let rules = rules(settings);
        if let Some(path) = &settings.computemgtd.heartbeat {
            self.read_heartbeat(path.clone(), settings.computemgtd.loop_time.min(READ_LIMIT)).await;
        }
        let mut jobs = Jobs::Unknown;
        if self.watch.wants_answer(self.now(), &rules) {
            if let Some(answer) = self.ask(settings).await {
                self.watch.heard(answer, self.now());
            }
            let scan = || steps::jobs(Path::new(steps::PROC));
            if let Got::Now(found) = self.processes.run(READ_LIMIT, scan).await {
                jobs = found;
            }
        }
        match self.watch.decide(jobs, self.now(), &rules) {
            Verdict::Keep(why) => self.tell(why),
            Verdict::ShutDown(reason) => self.shut_down(settings, &reason.to_string()).await,
        }
    }

    /// For the service manager: what the last look found.
    pub(super) fn status(&self) -> String {
        match &self.why {
            _ if self.ordered => "shutting this node down".to_owned(),
            None | Some(Why::Fresh) => format!("the heartbeat changed {} s ago", self.watch.age(self.now()).as_secs()),
            Some(why) => why.to_string(),
        }
    }

    fn now(&self) -> Moment {
        self.started.elapsed()
    }

    async fn read_heartbeat(&mut self, path: PathBuf, limit: Duration) {
        let shown = path.display().to_string();
        let read = self.heartbeat.run(limit, move || read(&path)).await.into_any();
        let now = self.now();
        let trouble = match read {
            Some(Ok(content)) => {
                self.watch.saw(&content, now);
                None
            }
            Some(Err(error)) => Some(error.to_string()),
            None => Some("it does not answer, most likely because its file system does not".to_owned()),
        };
        if self.trouble.heartbeat != trouble {
            match &trouble {
                Some(why) => tracing::warn!(path = shown, "the heartbeat cannot be read: {why}"),
                None => tracing::info!(path = shown, "the heartbeat can be read again"),
            }
            self.trouble.heartbeat = trouble;
        }
    }

    /// What slurmctld says of this node; `None`: this machine does not know its own name.
    async fn ask(&mut self, settings: &Arc<Settings>) -> Option<Answer> {
        let Name { node, is_sure, is_node } = self.name.get(settings).await?;
        self.is_node |= is_node;
        let limit = settings.computemgtd.loop_time.min(ASK_LIMIT);
        let (conf, settings, wanted) = (self.conf.clone(), Arc::clone(settings), node.clone());
        let work = move || {
            let (slurm, bin_dir, conf) = scontrol(&settings, conf.as_deref());
            // Where these hang, scontrol would, and one behind sudo could not even be ended: so nothing is started.
            for file in [bin_dir.join("scontrol"), conf] {
                let _ = File::open(file).map(|mut file| file.read(&mut [0]));
            }
            block_on(slurm.show_nodes(&[wanted], Instant::now() + limit))
        };
        let asked = match self.asking.run(limit + MARGIN, work).await {
            Got::Now(asked) => asked,
            // It was asked too long ago to shut anything down by it.
            Got::Late(_) | Got::Nothing => None,
        };
        let (answer, trouble) = match asked {
            Some(Ok(nodes)) => match nodes.into_iter().find(|found| found.name == node) {
                Some(found) => (Answer::State(found.state), None),
                None if is_sure => (Answer::NotShown, None),
                None => (
                    Answer::Unclear,
                    Some(format!("slurmctld knows no node {node}; write the node's name to the node name file")),
                ),
            },
            Some(Err(error)) => (meaning(&error), Some(chain(&error))),
            None => (Answer::Silence, Some("scontrol does not come back".to_owned())),
        };
        self.is_node |= matches!(answer, Answer::State(_));
        let (answer, trouble) = match (answer, trouble) {
            (Answer::Silence, Some(why)) if !self.is_node => (
                Answer::Unclear,
                Some(format!(
                    "{why}; and nobody has said that this machine is a node: no slurmd runs, there is no node name file, and slurmctld \
                     has never known it as {node}. It stays on"
                )),
            ),
            other => other,
        };
        if self.trouble.slurm != trouble {
            match &trouble {
                Some(why) => tracing::warn!(node, "slurmctld says nothing about this node: {why}"),
                None => tracing::info!(node, "slurmctld answers again"),
            }
            self.trouble.slurm = trouble;
        }
        Some(answer)
    }

    fn tell(&mut self, why: Why) {
        if self.why.as_ref() == Some(&why) {
            return;
        }
        match (&why, &self.why) {
            (Why::Fresh, None) => {}
            (Why::Fresh, Some(_)) => tracing::info!("{why}"),
            (Why::NoHeartbeat, _) => tracing::warn!("{why}"),
            _ => tracing::warn!(unchanged_s = self.watch.age(self.now()).as_secs(), "{why}"),
        }
        self.why = Some(why);
    }

    /// The reason first, on the disk as well: nobody can ask this machine afterwards.
    async fn shut_down(&mut self, settings: &Arc<Settings>, reason: &str) {
        let node = self.name.get(settings).await.map(|name| name.node).unwrap_or_default();
        if self.trouble.shutdown.is_none() {
            tracing::error!(node, "this node shuts itself down: {reason}");
            let (program, log) = (self.program, settings.log.clone());
            self.syncing.run(SYNC_LIMIT, move || crate::log::to_disk(program, &log)).await;
        }
        let command = outside::shutdown(settings);
        match self.ordering.run(ORDER_LIMIT, move || command.run()).await.into_any() {
            Some(Ok(())) => {
                self.ordered = true;
                tracing::info!(node, "the shutdown has been accepted");
            }
            Some(Err(failure)) => self.not_shut_down(failure.to_string()),
            None => self.not_shut_down("the program does not come back".to_owned()),
        }
    }

    fn not_shut_down(&mut self, why: String) {
        if self.trouble.shutdown.as_ref() != Some(&why) {
            tracing::error!("the shutdown failed and is tried again in every loop: {why}");
            self.trouble.shutdown = Some(why);
        }
    }
}

fn rules(settings: &Settings) -> Rules {
    let own = &settings.computemgtd;
    Rules { heartbeat: own.heartbeat.is_some(), timeout: own.heartbeat_timeout, loop_time: own.loop_time, disabled: own.disabled }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(MAX_BYTES).read_to_end(&mut content)?;
    Ok(content)
}

/// scontrol as configured, its folder and its slurm.conf.
pub(super) fn scontrol(settings: &Settings, conf: Option<&Path>) -> (Scontrol, PathBuf, PathBuf) {
    let slurm = &settings.slurm;
    let conf = conf.unwrap_or(&slurm.conf).to_owned();
    let made = Scontrol::new(&slurm.bin_dir, &conf, slurm.command_timeout).through(slurm.sudo.as_deref());
    (made, slurm.bin_dir.clone(), conf)
}

/// What a question without an answer says about slurmctld. A scontrol that is not there (its file system is the head node's) is as good
/// as a slurmctld that is silent; one that was answered with something else shows that slurmctld lives.
fn meaning(error: &Error) -> Answer {
    match error {
        Error::Unreachable { .. }
        | Error::Timeout { .. }
        | Error::Io { .. }
        | Error::NotExecutable { .. }
        | Error::NoSudo { .. }
        | Error::Sudo { .. } => Answer::Silence,
        Error::Refused { .. } | Error::Denied { .. } | Error::Unreadable { .. } => Answer::Unclear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shutting down for want of an answer needs that there was none.
    #[test]
    fn w03_only_a_slurmctld_that_has_not_answered_is_silent() {
        let text = String::new;
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        for error in [
            Error::Unreachable { command: text(), stderr: text() },
            Error::Timeout { command: text(), limit: Duration::ZERO },
            Error::Io { command: text(), source: gone() },
            Error::NotExecutable { path: PathBuf::new(), source: gone() },
            Error::NoSudo { path: PathBuf::new(), source: gone() },
            Error::Sudo { path: PathBuf::new(), stderr: text() },
        ] {
            assert_eq!(meaning(&error), Answer::Silence, "{error:?}");
        }
        for error in [
            Error::Refused { command: text(), stderr: text() },
            Error::Denied { command: text(), stderr: text() },
            Error::Unreadable { command: text(), why: text() },
        ] {
            assert_eq!(meaning(&error), Answer::Unclear, "{error:?}");
        }
    }
}
