//! ParallelCluster's `computefleet-status.json` (aws-facts B.7, D.8): what the table says, with the request as status, for whoever goes by
//! it on the head node. Its own clusterstatusmgtd writes it when a transition begins, for the recipe that it then runs; ours does the
//! work itself and writes it for others alone. So a file that cannot be written stops nothing.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Map, Value};

use crate::error::chain;
use crate::plan::fleet_status::Transition;
use crate::store::atomic;
use crate::store::fleet_status::FleetStatusStore;

/// Mode of a file that is not there yet: nothing in it is secret.
const MODE: u32 = 0o644;

/// Writes the file as the transition begins.
pub(super) async fn write(path: &Path, store: &FleetStatusStore, transition: Transition) {
    let data = match store.read().await {
        Ok(reading) => reading.data,
        Err(error) => {
            tracing::warn!("{} is not written: {}", path.display(), chain(&error));
            return;
        }
    };
    if let Err(error) = replace(path, &content(data, transition)) {
        tracing::warn!("{} cannot be written: {error}", path.display());
    }
}

/// The table's map, its status replaced by the request.
fn content(mut data: Map<String, Value>, transition: Transition) -> String {
    data.insert("status".to_owned(), transition.requested().as_str().into());
    Value::Object(data).to_string()
}

/// Whole, with the mode that it has; in place where the folder is not ours, as ParallelCluster's is not.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mode = fs::metadata(path).map_or(MODE, |meta| meta.permissions().mode() & 0o7777);
    match atomic::replace_unsynced(path, text.as_bytes(), mode) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            OpenOptions::new().write(true).truncate(true).open(path)?.write_all(text.as_bytes())
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// computefleet-status.json of the ParallelCluster fixtures.
    const FILE: &str = include_str!("../../../tests/data/parallelcluster/computefleet-status.json");

    #[test]
    fn the_tables_map_with_the_request() {
        let data = serde_json::json!({
            "status": "STOPPING", "lastStatusUpdatedTime": "2026-03-14 15:09:26.535897+00:00"
        });
        let Value::Object(data) = data else { unreachable!() };
        let made: Value = serde_json::from_str(&content(data, Transition::Stop)).unwrap();
        assert_eq!(made, serde_json::from_str::<Value>(FILE).unwrap());
    }

    #[test]
    fn its_mode_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("computefleet-status.json");
        replace(&path, "{}").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        replace(&path, FILE).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(fs::read_to_string(&path).unwrap(), FILE);
    }
}
