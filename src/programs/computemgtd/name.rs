//! Which node this machine is: the name under which slurmd runs, else the file that says it, else the host's name. The file may have come
//! with the disk from another instance; slurmd's name is the one that slurmctld knows.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use super::steps;
use crate::config::settings::Settings;
use crate::programs::slow::Slow;

/// A file on a local disk; some have it on NFS.
const LIMIT: Duration = Duration::from_secs(10);

/// A name has 64 bytes at most; the file may have more lines.
const MAX_BYTES: u64 = 4096;

/// A name, and how good it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) node: String,
    /// Somebody said that this is a node; the host's name may be another one than Slurm's.
    pub(super) is_sure: bool,
    /// The same, or slurmd runs here. A login or head node from the same image has a host name too.
    pub(super) is_node: bool,
}

/// The name, as soon as there is one. Shared by the parts of the daemon.
#[derive(Debug)]
pub(super) struct OwnName(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    reading: Slow<Option<Name>>,
    known: Option<Name>,
}

impl OwnName {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Inner { reading: Slow::new("node-name"), known: None })))
    }

    /// The name; looked for until somebody has said it, then kept. `None`: the machine has no name at all, or it cannot be read in time.
    pub(super) async fn get(&self, settings: &Settings) -> Option<Name> {
        let mut inner = self.0.lock().await;
        if let Some(known) = inner.known.as_ref().filter(|name| name.is_sure) {
            return Some(known.clone());
        }
        let file = settings.computemgtd.node_name_file.clone();
        if let Some(found) = inner.reading.run(LIMIT, move || look(Path::new(steps::PROC), &file)).await.into_any().flatten() {
            if inner.known.as_ref() != Some(&found) {
                tracing::info!(node = found.node, sure = found.is_sure, "this machine's node");
            }
            inner.known = Some(found);
        }
        inner.known.clone()
    }
}

/// `proc` is where the machine's processes are seen.
fn look(proc: &Path, file: &Path) -> Option<Name> {
    let slurmd = steps::slurmd(proc);
    let is_node = slurmd.is_some();
    if let Some(node) = said(slurmd.and_then(|slurmd| slurmd.name), in_file(file).ok().flatten(), file) {
        return Some(Name { node, is_sure: true, is_node: true });
    }
    let host = nix::unistd::gethostname().ok()?;
    let host = host.to_string_lossy();
    // As Slurm does: without the domain.
    let node = host.split('.').next().unwrap_or_default().to_owned();
    (!node.is_empty()).then_some(Name { node, is_sure: false, is_node })
}

/// The name that somebody has said.
fn said(slurmd: Option<String>, written: Option<String>, file: &Path) -> Option<String> {
    if let (Some(slurmd), Some(written)) = (&slurmd, &written)
        && slurmd != written
    {
        tracing::warn!(node = slurmd, file = %file.display(), "slurmd runs as another node than the file says ({written}): slurmd's name counts");
    }
    slurmd.or(written)
}

/// The first word of the file.
pub(super) fn in_file(path: &Path) -> io::Result<Option<String>> {
    let mut text = String::new();
    fs::File::open(path)?.take(MAX_BYTES).read_to_string(&mut text)?;
    Ok(text.split_whitespace().next().map(str::to_owned))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use super::*;

    #[test]
    fn slurmds_name_goes_before_the_files() {
        let said = |slurmd: Option<&str>, written: Option<&str>| {
            said(slurmd.map(str::to_owned), written.map(str::to_owned), Path::new("f"))
        };
        assert_eq!(said(Some("a"), Some("b")).as_deref(), Some("a"), "the file came with another machine's disk");
        assert_eq!((said(None, Some("b")).as_deref(), said(None, None)), (Some("b"), None));
    }

    #[test]
    fn the_file_goes_before_the_hosts_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("node-name");
        // No process at all: a slurmd may run on the machine of this test.
        let look = |file: &Path| look(dir.path(), file);
        let found = look(&file).unwrap();
        assert!(!found.node.contains('.') && !found.is_sure && !found.is_node, "{found:?}");
        for text in ["apple-dy-core-7", "apple-dy-core-7\n", "\napple-dy-core-7 \n# a remark\n"] {
            fs::write(&file, text).unwrap();
            let name = Name { node: "apple-dy-core-7".to_owned(), is_sure: true, is_node: true };
            assert_eq!(look(&file), Some(name), "{text:?}");
        }
        fs::write(&file, "\n").unwrap();
        assert_eq!(in_file(&file).unwrap(), None);
        fs::create_dir(dir.path().join("7")).unwrap();
        fs::write(dir.path().join("7/comm"), "slurmd\n").unwrap();
        fs::write(dir.path().join("7/cmdline"), "/usr/sbin/slurmd\0-D\0").unwrap();
        assert_eq!(look(&file), Some(Name { is_node: true, ..found }), "a node, under the host's name as far as is known");
    }
}
