//! Does a clustermgtd live? The age of the file it touches. Only the modification time counts; the content is not read.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::model::time::Timestamp;

/// How long ago `<dir>/heartbeat` was last written; `None` if there is none or it cannot be looked at. A time ahead of `now`
/// (clock set back) counts as just now.
pub(crate) fn heartbeat_age(dir: &Path, now: Timestamp) -> Option<Duration> {
    let written = fs::metadata(dir.join("heartbeat")).ok()?.modified().ok()?;
    Some(now.since(Timestamp::from_system(written)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::UNIX_EPOCH;

    #[test]
    fn the_age_is_the_files() {
        let dir = tempfile::tempdir().unwrap();
        let now = Timestamp::from_secs(1_800_000_100);
        assert_eq!(heartbeat_age(dir.path(), now), None);
        let file = fs::File::create(dir.path().join("heartbeat")).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1_800_000_000)).unwrap();
        assert_eq!(heartbeat_age(dir.path(), now), Some(Duration::from_secs(100)));
        assert_eq!(heartbeat_age(dir.path(), Timestamp::from_secs(1)), Some(Duration::ZERO));
    }
}
