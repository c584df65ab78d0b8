//! One program from start to end, and what it cost. A command in, [`Cost`] out; whether the program did its work is the
//! caller's to look at.
//!
//! The figures are exact where the kernel allows it:
//!
//! - **CPU of its own**: the program's CPU-time clock (nanoseconds, all its threads, user and system, no children), read
//!   while it has ended and is not yet reaped. `wait4` would add the children it waited for, and counts in ticks.
//! - **Children**: what `getrusage(RUSAGE_CHILDREN)` counts more than that: the calls of scontrol.
//! - **Peak memory**: `ru_maxrss`. A child that starts inherits its parent's high-water mark until exec replaces it, and
//!   keeps it in `ru_maxrss` afterwards; this process holds an EC2 endpoint with thousands of instances. So the program is
//!   started by a small second process, this binary called as `bench measure PROGRAM ARGS`, which has nothing else to do.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::sys::time::TimeValLike;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// The first argument that makes this binary the starter of one program.
pub(crate) const MEASURE: &str = "measure";

/// What one run of a program cost.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Cost {
    /// From just before it was started until it had ended.
    pub(crate) wall: Duration,
    /// User and system time of the program itself, without its children.
    pub(crate) cpu: Duration,
    /// User and system time of the programs it started and waited for.
    pub(crate) children: Duration,
    /// Peak resident memory, in KiB.
    pub(crate) peak_kib: i64,
    /// Exit status; none: killed by a signal.
    pub(crate) code: Option<i32>,
}

/// A moment of a program under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SoFar {
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
}

/// A program that has been started by [`start`].
pub(crate) struct Running {
    starter: Child,
    answers: BufReader<ChildStdout>,
    program: String,
    pid: Pid,
    /// On the monotonic clock, which all processes share.
    started: Duration,
}

/// Starts a program with nothing in its environment but `env`, standard input and output at /dev/null.
pub(crate) fn start(program: &Path, args: &[&str], env: &[(&str, &Path)], folder: &Path) -> Result<Running, String> {
    let name = program.display().to_string();
    let failed = |what: &str, error: &dyn std::fmt::Display| format!("{name}: {what}: {error}");
    let own = std::env::current_exe().map_err(|error| failed("the bench does not find its own binary", &error))?;
    let mut command = Command::new(own);
    command.arg(MEASURE).arg(program).args(args).env_clear().envs(env.iter().copied()).current_dir(folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut starter = command.spawn().map_err(|error| failed("cannot be started", &error))?;
    let stdout = starter.stdout.take().ok_or_else(|| failed("cannot be started", &"no pipe"))?;
    let mut answers = BufReader::new(stdout);
    let first: Option<(i32, Duration)> = line(&mut answers);
    match first {
        Some((pid, started)) => Ok(Running { starter, answers, program: name, pid: Pid::from_raw(pid), started }),
        None => Err(failed("cannot be started", &said(&mut starter))),
    }
}

impl Running {
    /// What it has cost up to now. For a program that waits for an answer, this is what it cost up to its question.
    pub(crate) fn so_far(&self) -> Result<SoFar, String> {
        let cpu = cpu_of(self.pid).map_err(|error| format!("{}: its CPU clock cannot be read: {error}", self.program))?;
        Ok(SoFar { wall: monotonic()?.saturating_sub(self.started), cpu })
    }

    /// Kills it. What it says is of no more interest, so it is returned for a message only.
    pub(crate) fn stop(mut self) -> Result<String, String> {
        kill(self.pid, Signal::SIGKILL).map_err(|error| format!("{}: cannot be killed: {error}", self.program))?;
        Ok(said(&mut self.starter))
    }

    /// Asks it to end (SIGTERM), for a daemon; then as [`Running::end`].
    pub(crate) fn terminate(self) -> Result<Cost, String> {
        kill(self.pid, Signal::SIGTERM).map_err(|error| format!("{}: cannot be asked to end: {error}", self.program))?;
        self.end()
    }

    /// Waits for its end. An exit status other than 0 is an error, with what it wrote to standard error.
    pub(crate) fn end(mut self) -> Result<Cost, String> {
        let cost: Option<Cost> = line(&mut self.answers);
        let said = said(&mut self.starter);
        match cost {
            Some(cost) if cost.code == Some(0) => Ok(cost),
            Some(cost) => {
                let code = cost.code.map_or("a signal".to_owned(), |code| format!("exit status {code}"));
                Err(format!("{} ended with {code}, so its figures mean nothing: {said}", self.program))
            }
            None => Err(format!("{} could not be measured: {said}", self.program)),
        }
    }
}

fn line<T: serde::de::DeserializeOwned>(answers: &mut BufReader<ChildStdout>) -> Option<T> {
    let mut text = String::new();
    answers.read_line(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// What it wrote to standard error, to its end.
fn said(starter: &mut Child) -> String {
    let mut text = String::new();
    if let Some(mut stderr) = starter.stderr.take() {
        let _ = stderr.read_to_string(&mut text);
    }
    let _ = starter.wait();
    text.trim().to_owned()
}

/// The second process: starts the program, says `[pid, start]` at once and the [`Cost`] at the end, each a line of JSON.
pub(crate) fn starter(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let result = match arguments.next() {
        Some(program) => measured(&program, arguments),
        None => Err(format!("usage: bench {MEASURE} PROGRAM [ARGUMENT...]")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "{why}");
            ExitCode::FAILURE
        }
    }
}

fn measured(program: &OsString, arguments: impl Iterator<Item = OsString>) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let started = monotonic()?;
    let mut command = Command::new(program);
    let mut child = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).spawn().map_err(|e| text(&e))?;
    let pid = i32::try_from(child.id()).map_err(|e| text(&e))?;
    say(&(pid, started))?;
    let pid = Pid::from_raw(pid);
    // Ended, but its clock is there until it is reaped.
    waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).map_err(|e| text(&e))?;
    let wall = monotonic()?.saturating_sub(started);
    let cpu = cpu_of(pid).map_err(|e| text(&e))?;
    let code = child.wait().map_err(|e| text(&e))?.code();
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).map_err(|e| text(&e))?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    let all = Duration::from_micros(u64::try_from(micros).unwrap_or_default());
    say(&Cost { wall, cpu, children: all.saturating_sub(cpu), peak_kib: usage.max_rss(), code })
}

fn say(value: &impl Serialize) -> Result<(), String> {
    let mut text = serde_json::to_vec(value).map_err(|error| error.to_string())?;
    text.push(b'\n');
    std::io::stdout().write_all(&text).map_err(|error| error.to_string())
}

fn cpu_of(pid: Pid) -> nix::Result<Duration> {
    Ok(clock_gettime(clock_getcpuclockid(pid)?)?.into())
}

fn monotonic() -> Result<Duration, String> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_err(|error| format!("the monotonic clock cannot be read: {error}"))?;
    Ok(now.into())
}
