//! Which head node's clustermgtd looks after the cluster: one among all that share the table. On one machine the lock in the state folder
//! keeps a second one away; between machines there is none, so the daemon holds an item that says until when, and renews it.
//!
//! Only [`SKEW`] after that time may another machine's take over, as with launch records. One of the same machine may at once: the lock has
//! told that the one before is gone.

use std::time::{Duration, Instant};

use super::TableStore;
use super::codec::{self, Lease};
use super::items::{Act, Expect, Item, Write};
use super::records::{SKEW, host, who};
use crate::model::time::Timestamp;
use crate::store::atomic::random_hex;
use crate::store::error::StoreError;

/// How long a look at the lease and its renewal are waited for.
const WAIT: Duration = Duration::from_secs(15);

/// The daemon ends within a second; without this another machine waits until the lease is over.
const LET_GO_WAIT: Duration = Duration::from_millis(300);

impl TableStore {
    /// Takes or renews the lease until `until`; `Some` = somebody else has it, in words.
    pub(crate) fn lease(&self, now: Timestamp, until: Timestamp) -> Result<Option<String>, StoreError> {
        self.check_writable()?;
        let limit = Instant::now() + WAIT;
        // Somebody may be faster; who, the second look tells.
        for _ in 0..2 {
            let there = self.items.get(codec::LEASE, limit).map_err(|error| self.error("read", error))?;
            if let Some(item) = &there {
                let lease = codec::lease_of(item).map_err(|why| self.refused(codec::LEASE, why))?;
                if lease.host != host() && now <= lease.until + SKEW {
                    return Ok(Some(lease.who));
                }
            }
            let expect = there.map_or(Expect::Absent, |item| Expect::Rev(item.rev));
            let mine = Lease { host: host(), who: who(), until };
            let rev = random_hex(8).map_err(|source| self.io("make a random id for", source))?;
            let act = Act::Put(Item { rev, fields: codec::lease(&mine) });
            if self.write_lease(expect, act, limit)? {
                return Ok(None);
            }
        }
        Ok(Some("another program, just now".to_owned()))
    }

    /// Lets go of it, if it is this machine's. Best effort.
    pub(crate) fn end_lease(&self) {
        let limit = Instant::now() + LET_GO_WAIT;
        if let Ok(Some(item)) = self.items.get(codec::LEASE, limit)
            && codec::lease_of(&item).is_ok_and(|lease| lease.host == host())
        {
            let _ = self.write_lease(Expect::Rev(item.rev), Act::Delete, limit);
        }
    }

    fn write_lease(&self, expect: Expect, act: Act, limit: Instant) -> Result<bool, StoreError> {
        let write = Write { name: codec::LEASE.to_owned(), expect, act };
        let answer = self.items.write(vec![vec![write]], limit).pop().unwrap_or(Ok(false));
        answer.map_err(|error| self.error("write to", error))
    }
}
