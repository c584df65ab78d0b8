//! `slurm-ec2 check`: what of this machine would keep the programs from their work. Settings in; errors, which stop everything, and
//! warnings out. Changes nothing, and asks nobody but the disk.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::unistd::{AccessFlags, geteuid};

use super::daemons;
use crate::aws::http;
use crate::clock;
use crate::config::settings::{ParallelCluster, Settings, StoreKind};
use crate::error::chain;
use crate::programs::startup::{self, PARALLELCLUSTER_USER};
use crate::slurm::conf::SlurmConf;
use crate::store::file::FileStore;
use crate::store::heartbeat;

/// The longest the heartbeat is waited for: it is on NFS, which may hang for ever.
const HEARTBEAT_WAIT: Duration = Duration::from_secs(10);

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Nothing can be launched or terminated.
    pub(super) errors: Vec<String>,
    pub(super) warnings: Vec<String>,
}

/// Looks at folders, heartbeats and CA bundle as the user who runs this; for root, as the user who runs the programs.
pub(super) fn look(settings: &Settings, conf: &SlurmConf) -> Found {
    let user = User::of(settings, conf);
    let mut found = Found::default();
    found.errors.extend(state(settings, &user));
    found.errors.extend(http::check_roots(&settings.aws).err());
    found.warnings.extend(logs(settings, &user));
    found.warnings.extend(settings.parallelcluster.as_ref().and_then(stale));
    found.warnings.extend(daemons::folders(settings, &user));
    found
}

/// Whose the folders are to be.
pub(super) struct User {
    /// Who runs the programs.
    name: String,
    /// Who has to be able to write. `None`: root looks, and the user is not in /etc/passwd.
    uid: Option<u32>,
}

impl User {
    pub(super) fn of(settings: &Settings, conf: &SlurmConf) -> Self {
        let name = if settings.parallelcluster.is_some() {
            PARALLELCLUSTER_USER
        } else {
            // Slurm's own default.
            conf.slurm_user.as_deref().unwrap_or("root")
        };
        let own = geteuid();
        let uid = match name {
            _ if !own.is_root() => Some(own.as_raw()),
            "root" => Some(0),
            name => startup::lookup_user(Path::new("/etc/passwd"), name).ok().map(|(uid, _)| uid),
        };
        Self { name: name.to_owned(), uid }
    }

    /// May this user write there? Root asks for somebody else, so only the owner and what everybody may are looked at then.
    pub(super) fn may_write(&self, path: &Path, meta: &Metadata) -> bool {
        let own = geteuid();
        if !own.is_root() {
            let what = if meta.is_dir() { AccessFlags::W_OK | AccessFlags::X_OK } else { AccessFlags::W_OK };
            return nix::unistd::access(path, what).is_ok();
        }
        // A group may give the right too.
        self.uid.is_none_or(|uid| uid == 0 || uid == meta.uid()) || meta.mode() & 0o022 != 0
    }

    /// Advice for somebody who is neither root nor the user who runs the programs.
    fn other_than_meant(&self) -> String {
        let meant = startup::lookup_user(Path::new("/etc/passwd"), &self.name).ok().map(|(uid, _)| uid);
        let own = geteuid();
        if own.is_root() || meant == Some(own.as_raw()) {
            return String::new();
        }
        format!(" (where it is already: run this check as {} or root)", self.name)
    }

    /// `slurm (uid 64030)`, `this user (uid 1000)`
    pub(super) fn shown(&self) -> String {
        match self.uid {
            Some(uid) if geteuid().is_root() => format!("{} (uid {uid})", self.name),
            _ => format!("this user (uid {})", geteuid()),
        }
    }
}

/// The nearest part of a path that is there.
fn existing(path: &Path) -> Option<(&Path, Metadata)> {
    path.ancestors().find_map(|part| fs::metadata(part).ok().map(|meta| (part, meta)))
}

/// What is wrong with the state folder, if anything.
fn state(settings: &Settings, user: &User) -> Option<String> {
    let dir = &settings.state_dir;
    let shown = dir.display();
    let install = format!("as root: install -d -o {0} -g {0} -m 750 {shown}{1}", user.name, user.other_than_meant());
    let meta = match fs::metadata(dir) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // The programs make it where they may.
            let (parent, meta) = existing(dir)?;
            let why = if user.may_write(parent, &meta) { return None } else { parent.display() };
            return Some(format!(
                "the state folder {shown} is missing, and {} may not make it in {why}; {install}",
                user.shown()
            ));
        }
        Err(error) => return Some(format!("the state folder {shown} cannot be looked at: {error}; {install}")),
    };
    if !meta.is_dir() {
        return Some(format!("the state folder {shown} is no folder; move it away, then {install}"));
    }
    for path in [dir.clone(), dir.join("launches"), dir.join("mapping.json")] {
        // Files are replaced, not written; but one that cannot be written is most likely somebody else's altogether.
        if let Ok(meta) = fs::metadata(&path)
            && !user.may_write(&path, &meta)
        {
            return Some(format!(
                "{} cannot write in the state folder: {} belongs to uid {}, mode {:04o}; chown -R {} {shown}, or {install}",
                user.shown(),
                path.display(),
                meta.uid(),
                meta.mode() & 0o7777,
                user.name,
            ));
        }
    }
    if settings.store != StoreKind::File {
        return None;
    }
    FileStore::open_read_only(dir, &settings.cluster).and_then(|store| store.read()).err().map(|error| chain(&error))
}

/// The logs that cannot be written.
fn logs(settings: &Settings, user: &User) -> Vec<String> {
    let dir = &settings.log.dir;
    let mut paths =
        vec![settings.log.file.clone().unwrap_or_else(|| dir.join("slurm_resume.log")), dir.join("slurm_suspend.log")];
    if settings.parallelcluster.is_some() {
        paths.extend(settings.log.events_path());
    } else {
        paths.push(dir.join("slurm_resume_fail.log"));
    }
    let closed = |path: &PathBuf| {
        let (part, meta) = existing(path)?;
        (!user.may_write(part, &meta)).then(|| (path.display().to_string(), part.display().to_string(), meta.uid()))
    };
    let closed: Vec<_> = paths.iter().filter_map(closed).collect();
    // One line for a folder that keeps out all.
    let whole = closed.len() == paths.len() && closed.iter().all(|(_, part, _)| *part == closed[0].1);
    let named = if whole { &closed[..1] } else { &closed[..] };
    let told = |(path, part, uid): &(String, String, u32)| {
        let what = if whole { format!("the log folder {}", dir.display()) } else { format!("the log {path}") };
        let of = if path == part { "it".to_owned() } else { part.clone() };
        format!(
            "{what} cannot be written by {}: {of} belongs to uid {uid}; what is logged goes to stderr, which slurmctld drops",
            user.shown()
        )
    };
    named.iter().map(told).collect()
}

/// What is wrong with clustermgtd's heartbeat: nothing is launched without it.
fn stale(parallelcluster: &ParallelCluster) -> Option<String> {
    let ParallelCluster { heartbeat: path, heartbeat_timeout: limit, .. } = parallelcluster;
    let (sender, receiver) = mpsc::channel();
    let read = path.clone();
    // Left behind where it hangs.
    thread::spawn(move || sender.send(heartbeat::read_heartbeat(&read)));
    let why = match receiver.recv_timeout(HEARTBEAT_WAIT) {
        Ok(Ok(written)) => {
            let age = clock::now().since(written);
            // At its limit it is stale, as the package has it.
            if age < *limit {
                return None;
            }
            let age = humantime::format_duration(Duration::from_secs(age.as_secs()));
            format!(
                "the heartbeat {} is {age} old, it must be younger than {}",
                path.display(),
                humantime::format_duration(*limit)
            )
        }
        Ok(Err(error)) => chain(&error),
        Err(_) => {
            format!("the heartbeat {} could not be read within {} s", path.display(), HEARTBEAT_WAIT.as_secs())
        }
    };
    Some(format!("nothing is launched while clustermgtd is down: {why}"))
}
