//! What becomes of each node that resume is asked for, given what is known of it (architecture.md "A node that is already mapped
//! when resume is called").

use crate::model::failure::Backoff;
use crate::model::instance::Instance;
use crate::model::mapping::{NodeEntry, NodeState};
use crate::model::policy::OnExisting;
use crate::model::time::Timestamp;

/// What Slurm says of a node, as far as this decision needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlurmView {
    /// slurmctld did not say.
    Unknown,
    /// Not powering up and not powered down: its slurmd has registered.
    Registered,
    /// Powering up or powered down; `registered_before` = slurmd registered from the mapped instance at some time.
    Waiting { registered_before: bool },
}

/// What EC2 says of the mapped instance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum InstanceView<'a> {
    /// EC2 was not asked, or did not answer.
    Unknown,
    /// EC2 does not know the id (any more, or not yet).
    NotFound,
    Found(&'a Instance),
}

/// All that is known of one requested node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeFacts<'a> {
    pub(crate) entry: Option<&'a NodeEntry>,
    /// The run that holds the claim is alive.
    pub(crate) claim_is_live: bool,
    pub(crate) instance: InstanceView<'a>,
    pub(crate) slurm: SlurmView,
    pub(crate) backoff: Option<&'a Backoff>,
    pub(crate) on_existing: OnExisting,
    /// When Slurm asked for the node: now, or for a call by hand on a node already asked for, then.
    pub(crate) requested: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// No instance stands behind it: launch.
    Launch,
    /// A live run is launching it: stamp `requested`, leave it.
    LeaveToRun,
    /// Backed and fine; tell Slurm its address again if that was never done.
    Leave(&'static str),
    /// Condemn the mapped instance, launch anew.
    Replace(&'static str),
    /// Reboot the mapped instance and keep it.
    Reboot,
    /// The group is left alone for now.
    Refuse(Backoff),
}

/// Decides for one node.
pub(crate) fn verdict(facts: &NodeFacts<'_>) -> Verdict {
    let fresh = || match facts.backoff {
        Some(backoff) => Verdict::Refuse(backoff.clone()),
        None => Verdict::Launch,
    };
    let Some(entry) = facts.entry else { return fresh() };
    if entry.state == NodeState::Launching {
        // A claim whose run is gone is free; what that run launched is found by its record.
        return if facts.claim_is_live { Verdict::LeaveToRun } else { fresh() };
    }
    match (facts.instance, facts.slurm) {
        (InstanceView::Found(instance), _) if !instance.state.is_usable() => Verdict::Replace("its instance is gone or stopping"),
        (_, SlurmView::Registered) => Verdict::Leave("it has registered"),
        // A wrong guess could end a running job; ResumeTimeout is the lesser evil.
        (_, SlurmView::Unknown) => Verdict::Leave("slurmctld did not say whether it has registered"),
        (InstanceView::NotFound, _) if entry.launched.is_some_and(|at| at >= facts.requested) => {
            Verdict::Leave("its instance was launched after this request and is not visible yet")
        }
        (InstanceView::NotFound, _) => Verdict::Replace("EC2 does not know its instance"),
        (InstanceView::Found(_), _) if entry.launched.is_some_and(|at| at >= facts.requested) => {
            Verdict::Leave("its instance was launched after this request")
        }
        (InstanceView::Unknown, _) if entry.launched.is_some_and(|at| at >= facts.requested) => {
            Verdict::Leave("its instance was launched after this request")
        }
        // Whatever EC2 would say: slurmctld does not let it in.
        (InstanceView::Unknown, _) => Verdict::Replace("its instance booted before this request, so Slurm would ignore it"),
        (InstanceView::Found(_), SlurmView::Waiting { registered_before: true }) if facts.on_existing == OnExisting::Reboot => {
            Verdict::Reboot
        }
        (InstanceView::Found(_), _) => Verdict::Replace("its instance booted before this request, so Slurm would ignore it"),
    }
}

/// May an instance whose launch was sent at `launched` serve a node that Slurm asked for at `requested`? Both by the head node's
/// clock. slurmctld ignores a registration from a machine that booted before its request (slurm-facts I "Boot gate").
pub(crate) fn passes_boot_gate(launched: Timestamp, requested: Timestamp) -> bool {
    launched >= requested
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::failure::BackoffKind;
    use crate::model::instance::InstanceState;
    use crate::plan::test_support::{instance, running};

    const WAITING: SlurmView = SlurmView::Waiting { registered_before: false };

    fn facts<'a>(entry: Option<&'a NodeEntry>, instance: InstanceView<'a>, slurm: SlurmView) -> NodeFacts<'a> {
        NodeFacts {
            entry,
            claim_is_live: false,
            instance,
            slurm,
            backoff: None,
            on_existing: OnExisting::Replace,
            requested: Timestamp::from_secs(1000),
        }
    }

    #[test]
    fn every_case_of_a_mapped_node() {
        let old = running("i-1", 900);
        let young = running("i-1", 1000);
        let live = instance("i-1");
        let mut gone = instance("i-1");
        gone.state = InstanceState::Terminated;
        let mut stopped = instance("i-1");
        stopped.state = InstanceState::Stopped;
        let replace = |v: Verdict| matches!(v, Verdict::Replace(_));
        let leave = |v: Verdict| matches!(v, Verdict::Leave(_));
        assert!(leave(verdict(&facts(Some(&old), InstanceView::Found(&live), SlurmView::Registered))));
        assert!(replace(verdict(&facts(Some(&old), InstanceView::Found(&live), WAITING))));
        assert!(leave(verdict(&facts(Some(&young), InstanceView::Found(&live), WAITING))));
        assert!(leave(verdict(&facts(Some(&young), InstanceView::NotFound, WAITING))));
        assert!(replace(verdict(&facts(Some(&old), InstanceView::NotFound, WAITING))));
        for dead in [&gone, &stopped] {
            for slurm in [WAITING, SlurmView::Registered, SlurmView::Unknown] {
                assert!(replace(verdict(&facts(Some(&young), InstanceView::Found(dead), slurm))));
            }
        }
        assert!(leave(verdict(&facts(Some(&old), InstanceView::Found(&live), SlurmView::Unknown))));
        assert!(replace(verdict(&facts(Some(&old), InstanceView::Unknown, WAITING))));
        assert!(leave(verdict(&facts(Some(&young), InstanceView::Unknown, WAITING))));
        assert!(leave(verdict(&facts(Some(&old), InstanceView::Unknown, SlurmView::Registered))));
    }

    #[test]
    fn reboot_only_what_has_registered_before() {
        let old = running("i-1", 900);
        let live = instance("i-1");
        let mut facts = facts(Some(&old), InstanceView::Found(&live), WAITING);
        facts.on_existing = OnExisting::Reboot;
        assert!(matches!(verdict(&facts), Verdict::Replace(_)));
        facts.slurm = SlurmView::Waiting { registered_before: true };
        assert_eq!(verdict(&facts), Verdict::Reboot);
    }

    #[test]
    fn claims_and_back_off() {
        let mut claim = running("i-1", 900);
        claim.state = NodeState::Launching;
        let mut facts = facts(Some(&claim), InstanceView::Unknown, WAITING);
        assert_eq!(verdict(&facts), Verdict::Launch, "the claim of a dead run is free");
        facts.claim_is_live = true;
        assert_eq!(verdict(&facts), Verdict::LeaveToRun);
        let backoff = Backoff {
            code: "X".into(),
            kind: BackoffKind::Capacity,
            sentence: "none left".into(),
            until: Timestamp::from_secs(2000),
        };
        facts.entry = None;
        facts.backoff = Some(&backoff);
        assert_eq!(verdict(&facts), Verdict::Refuse(backoff.clone()));
    }
}
