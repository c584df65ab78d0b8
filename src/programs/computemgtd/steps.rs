//! What Slurm runs on this machine, by /proc: job steps, and the name under which slurmd was started. A folder in, what is in it out.
//!
//! A step is a `slurmstepd` process, which is there from before a job's first program to after its last one; asking slurmd instead would
//! need slurmctld's help. `slurmstepd infinity` is no step: slurmd keeps one to hold its cgroup (22.05 and later with cgroup v2).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::plan::watchdog::Jobs;

/// Where processes are.
pub(super) const PROC: &str = "/proc";

/// ESRCH: the process ended while it was looked at.
const GONE: i32 = 3;

/// Does a job run here? [`Jobs::Unknown`] where other users' processes are hidden.
pub(super) fn jobs(proc: &Path) -> Jobs {
    let mut hidden = !proc.join("1").exists();
    let Ok(processes) = named(proc, "slurmstepd", &mut hidden) else { return Jobs::Unknown };
    if processes.iter().any(|process| is_step(&process.arguments)) {
        return Jobs::Some;
    }
    if hidden { Jobs::Unknown } else { Jobs::None }
}

/// A slurmd that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slurmd {
    /// The name behind its `-N`, if it was started with one.
    pub(super) name: Option<String>,
}

/// The slurmd of this machine. One in a container may be of another cluster: it counts where none runs outside.
pub(super) fn slurmd(proc: &Path) -> Option<Slurmd> {
    let processes = named(proc, "slurmd", &mut false).ok()?;
    let (inside, outside): (Vec<_>, Vec<_>) = processes.into_iter().partition(|process| is_in_a_container(&process.folder));
    let processes = if outside.is_empty() { inside } else { outside };
    let name = processes.iter().find_map(|process| {
        let text = String::from_utf8_lossy(&process.arguments);
        let mut words = text.split('\0').skip(1);
        let name = words.find_map(|word| word.strip_prefix("-N").map(str::to_owned))?;
        if name.is_empty() { words.next().map(str::to_owned) } else { Some(name) }
    });
    (!processes.is_empty()).then_some(Slurmd { name })
}

/// It has a process id of its own in a namespace below the one that `/proc` shows (proc(5), `NSpid`).
fn is_in_a_container(folder: &Path) -> bool {
    let status = fs::read_to_string(folder.join("status")).unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    ids.is_some_and(|ids| ids.split_whitespace().count() > 1)
}

struct Process {
    /// In `/proc`.
    folder: PathBuf,
    /// Each with a zero byte at its end.
    arguments: Vec<u8>,
}

/// All processes of this name. `hidden` is set if one cannot be looked at.
fn named(proc: &Path, name: &str, hidden: &mut bool) -> io::Result<Vec<Process>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(proc)? {
        let folder = entry?.path();
        let is_process = folder.file_name().is_some_and(|name| name.as_encoded_bytes().iter().all(u8::is_ascii_digit));
        if !is_process {
            continue;
        }
        match fs::read(folder.join("comm")).and_then(|comm| {
            let ours = comm.trim_ascii_end() == name.as_bytes();
            if ours { fs::read(folder.join("cmdline")).map(Some) } else { Ok(None) }
        }) {
            Ok(arguments) => found.extend(arguments.map(|arguments| Process { folder, arguments })),
            Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(GONE) => {}
            Err(_) => *hidden = true,
        }
    }
    Ok(found)
}

/// `slurmstepd: [4711.batch]`; before it has given itself that title, the program's path alone. A dead one has no arguments.
fn is_step(arguments: &[u8]) -> bool {
    let text = String::from_utf8_lossy(arguments);
    let text = text.trim_end_matches(['\0', ' ']);
    !text.is_empty() && !text.ends_with("infinity")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use super::*;

    fn proc(processes: &[(u32, &str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sys")).unwrap();
        for (pid, comm, arguments) in processes {
            let folder = dir.path().join(pid.to_string());
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("comm"), format!("{comm}\n")).unwrap();
            fs::write(folder.join("cmdline"), arguments.replace(' ', "\0")).unwrap();
        }
        dir
    }

    const INIT: (u32, &str, &str) = (1, "systemd", "/sbin/init ");

    #[test]
    fn steps_are_jobs_and_nothing_else_is() {
        let none: [&[(u32, &str, &str)]; 4] = [
            &[INIT],
            &[INIT, (7, "slurmd", "/usr/sbin/slurmd -D ")],
            &[INIT, (7, "slurmstepd", "/usr/sbin/slurmstepd infinity ")],
            // A zombie.
            &[INIT, (7, "slurmstepd", "")],
        ];
        for processes in none {
            assert_eq!(jobs(proc(processes).path()), Jobs::None, "{processes:?}");
        }
        for arguments in ["slurmstepd: [1.batch] ", "slurmstepd: [12.extern] ", "/usr/sbin/slurmstepd "] {
            let processes = [INIT, (6, "slurmstepd", "/usr/sbin/slurmstepd infinity "), (7, "slurmstepd", arguments)];
            assert_eq!(jobs(proc(&processes).path()), Jobs::Some, "{arguments}");
        }
    }

    #[test]
    fn where_processes_are_hidden_nothing_is_known() {
        assert_eq!(jobs(proc(&[(7, "computemgtd", "computemgtd ")]).path()), Jobs::Unknown, "hidepid=2");
        assert_eq!(jobs(Path::new("/nonexistent")), Jobs::Unknown);
        let dir = proc(&[INIT, (7, "slurmstepd", "slurmstepd: [1.batch] ")]);
        // As unreadable as a file can be made for root, too.
        fs::remove_file(dir.path().join("7/comm")).unwrap();
        fs::create_dir(dir.path().join("7/comm")).unwrap();
        assert_eq!(jobs(dir.path()), Jobs::Unknown, "hidepid=1");
    }

    #[test]
    fn the_name_is_the_one_that_slurmd_was_given() {
        for (arguments, name) in [
            ("/usr/sbin/slurmd -D -N c5-7 ", Some("c5-7")),
            ("slurmd -Nc5-7 -D ", Some("c5-7")),
            ("/usr/sbin/slurmd -D ", None),
            ("slurmd -N", None),
        ] {
            let dir = proc(&[INIT, (7, "slurmd", arguments), (8, "slurmstepd", "slurmstepd: [1.0] ")]);
            assert_eq!(slurmd(dir.path()), Some(Slurmd { name: name.map(str::to_owned) }), "{arguments}");
        }
    }

    #[test]
    fn a_slurmd_in_a_container_counts_where_there_is_no_other() {
        let dir = proc(&[INIT, (7, "slurmd", "slurmd -N inner-1 "), (8, "slurmd", "slurmd -D -N c5-7 ")]);
        fs::write(dir.path().join("7/status"), "Name:\tslurmd\nNSpid:\t7\t1\nUid:\t0\n").unwrap();
        fs::write(dir.path().join("8/status"), "Name:\tslurmd\nNSpid:\t8\n").unwrap();
        let name = || slurmd(dir.path()).unwrap().name;
        assert_eq!(name().as_deref(), Some("c5-7"));
        // The machine's own has none: its host name counts, not the container's.
        fs::write(dir.path().join("8/cmdline"), "slurmd\0-D\0").unwrap();
        assert_eq!(name(), None);
        fs::remove_file(dir.path().join("8/comm")).unwrap();
        assert_eq!(name().as_deref(), Some("inner-1"));
        fs::remove_file(dir.path().join("7/comm")).unwrap();
        assert_eq!(slurmd(dir.path()), None);
    }
}
