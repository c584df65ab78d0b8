//! Queues that a pass sets inactive for protected mode. A queue that is protected and up looks as if somebody had started the fleet since
//! (`plan/reconcile/protected.rs`), and its failures are forgotten then: so it is remembered only when slurmctld has set it inactive.
//! What a pass decided in; what may be written down before it acts, and after, out.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::time::Timestamp;
use crate::plan::reconcile::{Action, What};

/// Queues with the time from which they are protected.
pub(super) type Protected = BTreeMap<String, Timestamp>;

/// Takes out of `decided` the queues that `actions` set inactive and that were not protected `before`.
pub(super) fn hold_back(decided: &mut Protected, before: &Protected, actions: &[Action]) -> Protected {
    let mut held = Protected::new();
    for action in actions {
        if let What::Inactivate { partition } = &action.what
            && !before.contains_key(partition)
            && let Some(since) = decided.remove(partition)
        {
            held.insert(partition.clone(), since);
        }
    }
    held
}

/// Those of them that are inactive now.
pub(super) fn done(held: Protected, inactivated: &BTreeSet<String>) -> Protected {
    held.into_iter().filter(|(queue, _)| inactivated.contains(queue)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Killed in between, the next clustermgtd finds the failures, and the queue as it is.
    #[test]
    fn a_queue_counts_as_protected_when_slurmctld_has_set_it_inactive() {
        let of = |queues: &[&str]| -> Protected { queues.iter().map(|it| ((*it).to_owned(), Timestamp::from_secs(7))).collect() };
        let inactivate = |queue: &str| {
            let what = What::Inactivate { partition: queue.to_owned() };
            Action { what, why: "failures".to_owned() }
        };
        let before = of(&["old"]);
        let actions = ["old", "new", "refused", "stopped"].map(inactivate);
        let mut decided = of(&["old", "new", "refused", "found-inactive"]);
        let held = hold_back(&mut decided, &before, &actions);
        assert_eq!((decided, &held), (of(&["old", "found-inactive"]), &of(&["new", "refused"])));
        let inactivated = BTreeSet::from(["old".to_owned(), "new".to_owned()]);
        assert_eq!(done(held, &inactivated), of(&["new"]));
    }
}
