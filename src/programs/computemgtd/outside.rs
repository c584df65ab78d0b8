//! The two programs besides scontrol that the daemon starts: shutdown, and the person's hook for a spot notice. No shell, an absolute
//! path, an environment of its own, a time limit.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, geteuid};
use tokio::io::AsyncReadExt;

use crate::config::settings::Settings;
use crate::programs::slow::block_on;

/// shutdown only hands the wish to systemd.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(30);

/// Bytes of a program's output that are kept for the log.
const MAX_OUTPUT: u64 = 4096;

/// For the rest of its words, when a program has ended.
const REST: Duration = Duration::from_secs(1);

/// Where sudo is, for a daemon that is not root's and has no other configured.
const SUDO: &str = "/usr/bin/sudo";

/// Why a program did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    #[error("cannot run {}: {why}", path.display())]
    Start { path: PathBuf, why: String },
    #[error("{} ended with {status}: {output}", path.display())]
    Status { path: PathBuf, status: String, output: String },
    #[error("{} did not end within {} s", path.display(), limit.as_secs_f64().round())]
    Late { path: PathBuf, limit: Duration },
}

/// What is to be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Command {
    program: PathBuf,
    arguments: Vec<String>,
    limit: Duration,
    /// Ended with its children when it is over its time.
    kill: bool,
}

/// `shutdown -h now`, through sudo where one is configured or this is not root.
pub(super) fn shutdown(settings: &Settings) -> Command {
    let sudo = settings.slurm.sudo.clone().or_else(|| (!geteuid().is_root()).then(|| PathBuf::from(SUDO)));
    let program = settings.computemgtd.shutdown.clone();
    let words = ["-h".to_owned(), "now".to_owned()];
    match sudo {
        None => Command { program, arguments: words.to_vec(), limit: SHUTDOWN_LIMIT, kill: false },
        Some(sudo) => {
            let before = ["-n".to_owned(), program.display().to_string()];
            Command { program: sudo, arguments: before.into_iter().chain(words).collect(), limit: SHUTDOWN_LIMIT, kill: false }
        }
    }
}

/// The hook with its arguments.
pub(super) fn hook(program: &Path, arguments: &[&str], limit: Duration) -> Command {
    let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
    Command { program: program.to_owned(), arguments, limit, kill: true }
}

impl Command {
    /// Runs it to its end. Blocks, where the file system of the program hangs for ever: for a thread that may be left behind.
    pub(super) fn run(&self) -> Result<(), Failure> {
        let no_runtime = || Failure::Start { path: self.program.clone(), why: "no runtime".to_owned() };
        block_on(self.run_to_end()).unwrap_or_else(|| Err(no_runtime()))
    }

    async fn run_to_end(&self) -> Result<(), Failure> {
        let path = self.program.clone();
        #[expect(clippy::disallowed_methods, reason = "what is started here is no scontrol; scontrol.rs starts that")]
        let mut command = tokio::process::Command::new(&self.program);
        command
            .args(&self.arguments)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // A group of its own, so that its children can be ended with it.
            .process_group(0);
        let mut child = command.spawn().map_err(|error| Failure::Start { path: path.clone(), why: error.to_string() })?;
        let group = child.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw);
        let stderr = child.stderr.take();
        let work = async {
            let mut said = Vec::new();
            let status = {
                let mut reading = std::pin::pin!(read(stderr, &mut said));
                tokio::select! {
                    () = &mut reading => child.wait().await,
                    status = child.wait() => {
                        // What it has left running in the background may hold this end open for ever.
                        let _ = tokio::time::timeout(REST, reading).await;
                        status
                    }
                }
            };
            match status {
                Ok(status) if status.success() => Ok(()),
                Ok(status) => Err(Failure::Status { path: path.clone(), status: status.to_string(), output: told(&said) }),
                Err(error) => Err(Failure::Start { path: path.clone(), why: error.to_string() }),
            }
        };
        match tokio::time::timeout(self.limit, work).await {
            Ok(ended) => ended,
            Err(_) => {
                if let Some(group) = group.filter(|_| self.kill) {
                    let _ = killpg(group, Signal::SIGKILL);
                }
                Err(Failure::Late { path, limit: self.limit })
            }
        }
    }
}

/// The beginning of what comes, to the end of all of it.
async fn read(source: Option<tokio::process::ChildStderr>, said: &mut Vec<u8>) {
    let Some(mut source) = source else { return };
    // What cannot be read is not told.
    let _ = (&mut source).take(MAX_OUTPUT).read_to_end(said).await;
    let _ = tokio::io::copy(&mut source, &mut tokio::io::sink()).await;
}

/// The last line that is no blank.
fn told(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing").trim().to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A hook may begin something that goes on behind it, with the same stderr.
    #[test]
    fn a_program_is_done_when_it_has_ended_itself() {
        let run = |script: &str| hook(Path::new("/bin/sh"), &["-c", script], Duration::from_secs(20)).run();
        assert_eq!(run("sleep 30 & exit 0"), Ok(()));
        let failure = run("echo first >&2; echo no room >&2; sleep 30 & exit 3").unwrap_err();
        assert_eq!(failure.to_string(), "/bin/sh ended with exit status: 3: no room");
    }
}
