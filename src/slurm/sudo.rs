//! scontrol as another user's: a sudo's path in, what it says of itself out. sudo takes our environment away, so scontrol prints local
//! times then, which are read by the machine's zone. Never asks for a password: there is nobody to answer.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::zone::Zone;

/// How scontrol becomes another user's.
#[derive(Debug)]
pub(super) struct Sudo {
    pub(super) path: PathBuf,
    /// In which scontrol prints its times then.
    pub(super) zone: Zone,
}

impl Sudo {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), zone: Zone::machine() }
    }

    /// sudo's arguments before the command's own.
    pub(super) fn args<'a>(&self, bin: &'a Path) -> [&'a OsStr; 2] {
        [OsStr::new("-n"), bin.as_os_str()]
    }
}

/// sudo's own words when it did not run the command: `sudo: a password is required`, `slurm is not in the sudoers file`.
pub(super) fn own_refusal(stderr: &str) -> Option<&str> {
    const WORDS: [&str; 6] = [
        "password is required",
        "terminal is required",
        "not in the sudoers",
        "is not allowed to",
        "command not found",
        "must be owned by uid 0",
    ];
    let own = |line: &&str| {
        let by_sudo = line.starts_with("sudo") || line.starts_with("Sorry, user ") || line.contains("not in the sudoers");
        by_sudo && WORDS.iter().any(|word| line.contains(word))
    };
    stderr.lines().find(own).map(|line| line.trim_start_matches("sudo: ").trim())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use std::fs;
    use std::time::{Duration, Instant};

    use super::super::scontrol::{Error, Scontrol};
    use super::super::update::down_args;
    use super::*;

    /// A folder with the stand-ins of tests/bin for scontrol and sudo.
    fn bench() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in ["scontrol", "sudo"] {
            let stand_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bin").join(name);
            std::os::unix::fs::symlink(stand_in, dir.path().join(name)).unwrap();
        }
        dir
    }

    fn scontrol(dir: &Path) -> Scontrol {
        Scontrol::new(dir, Path::new("/etc/slurm/test.conf"), Duration::from_secs(30)).through(Some(&dir.join("sudo")))
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn the_command_is_sudos_and_local_times_are_read() {
        let dir = bench();
        let local = "2026-11-29T16:24:57";
        fs::write(dir.path().join("scontrol.env"), "").unwrap();
        fs::write(
            dir.path().join("scontrol.nodes"),
            format!("NodeName=n1 CoresPerSocket=1 \n   State=IDLE+CLOUD \n   BootTime={local} SlurmdStartTime={local}\n\n"),
        )
        .unwrap();
        let scontrol = scontrol(dir.path());
        let shown = run(scontrol.show_nodes(&["n1".to_owned()], soon())).unwrap();
        let expected = Zone::machine().seconds_of(local);
        assert!(expected.is_some());
        assert_eq!((shown[0].boot_time, shown[0].slurmd_start_time), (expected, expected));
        let log = fs::read_to_string(dir.path().join("sudo.log")).unwrap();
        assert_eq!(log, format!("-n {} --all --local show nodes n1\n", dir.path().join("scontrol").display()));
        // Nothing relies on what sudo takes away.
        let env = fs::read_to_string(dir.path().join("scontrol.env")).unwrap();
        assert!(!env.contains("SLURM_"), "{env}");
        // Numbers are still read, for a sudo that keeps the variable.
        let applied = run(scontrol.apply_all(down_args(&["n1".to_owned()], "a reason; $(x)", None, 100), soon()));
        assert_eq!((applied.done.len(), applied.unknown.len()), (1, 0));
        let calls = fs::read_to_string(dir.path().join("scontrol.log")).unwrap();
        assert!(calls.contains("update nodename=n1 state=down reason=a reason; $(x)"), "{calls}");
    }

    #[test]
    fn a_refusal_of_sudo_names_the_missing_line() {
        let dir = bench();
        for words in [
            "sudo: a password is required",
            "sudo: unable to resolve host x: Name or service not known\nsudo: a password is required",
            "Sorry, user slurm is not allowed to execute '/opt/slurm/bin/scontrol' as root on head.",
            "slurm is not in the sudoers file.",
        ] {
            fs::write(dir.path().join("sudo.refuse"), words).unwrap();
            let error = run(scontrol(dir.path()).show_nodes(&["n1".to_owned()], soon())).unwrap_err();
            assert!(matches!(error, Error::Sudo { .. }) && !error.is_passing(), "{error}");
            let line = format!("NOPASSWD: {}", dir.path().join("scontrol").display());
            assert!(error.to_string().ends_with(&line), "{error}");
        }
        assert!(!dir.path().join("scontrol.log").exists());
        // What scontrol itself says is no word of sudo's.
        assert_eq!(own_refusal("slurm_update error: Access/permission denied"), None);
        assert_eq!(own_refusal("sudo: unable to resolve host x: Name or service not known"), None);
    }

    #[test]
    fn what_is_missing_is_found_without_running_it() {
        let dir = bench();
        assert!(scontrol(dir.path()).check().is_ok());
        let plain = Scontrol::new(dir.path(), Path::new("/x"), Duration::from_secs(30));
        assert!(plain.check().is_ok());
        fs::remove_file(dir.path().join("scontrol")).unwrap();
        for scontrol in [&scontrol(dir.path()), &plain] {
            let error = scontrol.check().unwrap_err().to_string();
            assert!(error.contains(&dir.path().join("scontrol").display().to_string()), "{error}");
        }
        fs::remove_file(dir.path().join("sudo")).unwrap();
        assert!(matches!(scontrol(dir.path()).check(), Err(Error::NoSudo { .. })));
        assert!(!dir.path().join("sudo.log").exists());
    }
}
