//! A boot that failed: counted, and the console of its instance asked for, before another one takes its place. A node of ours in, one count
//! and at most one action for each launch out.

use super::facts::Backing;
use super::report::Bootstrap;
use super::{Draft, What, protected};

/// Counts a boot failure of the node `draft.facts[index]` as [`protected::count_failure`] does. Where it was not counted before and EC2
/// shows the instance, in whatever state, its console is to be read.
pub(super) fn failed(draft: &mut Draft<'_>, index: usize, kind: Bootstrap, why: &str) {
    let told = |draft: &Draft<'_>| draft.report.boot_failures.get(kind.event()).map_or(0, Vec::len);
    let before = told(draft);
    protected::count_failure(draft, index, kind, why);
    let facts = draft.facts[index];
    let (Backing::Instance(instance) | Backing::Ended(instance)) = facts.backing else { return };
    if told(draft) > before && draft.policy.upkeep.consoles {
        draft.act(What::Console { node: facts.name.to_owned(), instance: instance.id.clone() }, why);
    }
}
