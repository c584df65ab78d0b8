//! Has a file been changed, replaced, made or taken away since it was last looked at? Never reads it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What a file was: inode, length, and when it was last changed; `None` = it was not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stamp(Option<(u64, u64, i64, i64)>);

impl Stamp {
    pub(super) fn of(path: &Path) -> Self {
        Self(fs::metadata(path).ok().map(|meta| (meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec())))
    }

    pub(super) fn is_there(self) -> bool {
        self.0.is_some()
    }
}
