//! The state folder: mapping, claims, launch records, back-off, token bucket, failure counts. One door, path in, values out.
//! Never decides what is done about what it reads.
//!
//! ```text
//! <state dir>/               0750
//!   mapping.json             which instance stands behind which node; replaced whole
//!   lock                     flock: held while the mapping or the launches folder is read and rewritten, never during EC2 calls
//!   state-id                 random id of this folder, a tag on every instance
//!   launches/<id>.jsonl      one launch record per run; its flock lives as long as the run
//!   launches/<id>.claim      flock: who recovers that record now; gone when nobody does
//!   backoff.json             groups left alone for a while; backoff.lock guards it
//!   failures.json            boot failures counted per group; failures.lock guards it
//!   bucket.json              token bucket of launch calls; bucket.lock guards it
//!   route53-bucket.json      token bucket of Route 53 calls; route53-bucket.lock guards it
//!   clustermgtd.json         what clustermgtd remembers; clustermgtd.lock guards it
//!   clustermgtd.lock         flock: held by the one clustermgtd as long as it runs
//!   *.json.bad               one of those five that could not be understood, kept for a person to look at
//!   .*.tmp                   a file being written; one left by a killed program goes with the next write
//!   heartbeat                written by clustermgtd while it lives; 0644
//!   fleet-status.json        status of the compute fleet, if it was ever stopped; fleet-status.lock guards it
//!   fleet.lock               flock: held by whoever starts or stops the fleet, and by clustermgtd while it acts
//!   clusterstatusmgtd.lock   flock: held by clusterstatusmgtd for as long as it lives
//!   fleet-request            touched when the status was changed here, so that clusterstatusmgtd looks at once
//! ```
//!
//! With `[state] store = "dynamodb"` the mapping, the state id and the launch records are items of a table (`table/`), and the rest is
//! in the folder as before. `door.rs` is the same for both.
//!
//! All other files are 0640. Opening `mapping.json` for reading is enough for other programs: it is replaced whole.

pub(crate) mod atomic;
pub(crate) mod backoff;
pub(crate) mod bucket;
pub(crate) mod daemon_lock;
pub(crate) mod daemon_memory;
mod document;
pub(crate) mod door;
pub(crate) mod error;
pub(crate) mod failures;
pub(crate) mod file;
mod filesystem;
pub(crate) mod fleet_status;
pub(crate) mod heartbeat;
mod journal;
pub(crate) mod launch_record;
mod ledger;
pub(crate) mod lock;
mod table;

#[cfg(test)]
mod tests;
