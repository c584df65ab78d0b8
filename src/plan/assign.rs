//! Instances × nodes in, assignments and leftovers out. Order is by instance id and by the batch's node order: the same answer
//! gives the same pairs, whatever order EC2 lists its instances in (aws-facts A.5).

use crate::model::instance::Instance;
use crate::model::policy::Strategy;
use crate::model::round::Assignment;

/// How a batch's nodes and instances come together.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Pairing {
    pub(crate) assigned: Vec<Assignment>,
    /// Nodes without an instance.
    pub(crate) unbacked: Vec<String>,
    /// Instances without a node, or without an address.
    pub(crate) surplus: Vec<Instance>,
}

/// Pairs `nodes` with `instances`. An instance without a private address is surplus. With all-or-nothing (greedy or not) a shortage leaves every
/// node unbacked and every instance surplus (P3).
pub(crate) fn pair(nodes: &[String], mut instances: Vec<Instance>, strategy: Strategy) -> Pairing {
    instances.sort_by(|a, b| a.id.cmp(&b.id));
    instances.dedup_by(|a, b| a.id == b.id);
    let (usable, mut surplus): (Vec<_>, Vec<_>) =
        instances.into_iter().partition(|instance| instance.private_ip.is_some() && instance.state.is_usable());
    if strategy != Strategy::BestEffort && usable.len() < nodes.len() {
        surplus.extend(usable);
        return Pairing { assigned: Vec::new(), unbacked: nodes.to_vec(), surplus };
    }
    let mut usable = usable.into_iter();
    let mut pairing = Pairing::default();
    for node in nodes {
        match usable.next() {
            Some(instance) => pairing.assigned.push(Assignment { node: node.clone(), instance }),
            None => pairing.unbacked.push(node.clone()),
        }
    }
    surplus.extend(usable);
    pairing.surplus = surplus;
    pairing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::test_support::{instance, names};
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn p1_p2_p3_p6(nodes in 0usize..20, ids in proptest::collection::vec((0u32..30, any::<bool>()), 0..30), all in any::<bool>()) {
            let nodes = names("n", nodes);
            let strategy = if all { Strategy::AllOrNothing } else { Strategy::BestEffort };
            let instances: Vec<_> = ids.iter().map(|(id, ip)| {
                let mut one = instance(&format!("i-{id}"));
                if !ip { one.private_ip = None; }
                one
            }).collect();
            let pairing = pair(&nodes, instances.clone(), strategy);
            // P1: each node once
            let mut ended: Vec<_> = pairing.assigned.iter().map(|a| a.node.clone()).chain(pairing.unbacked.clone()).collect();
            ended.sort();
            let mut wanted = nodes.clone();
            wanted.sort();
            prop_assert_eq!(ended, wanted);
            // P2: each instance once
            let out: Vec<_> = pairing.assigned.iter().map(|a| a.instance.id.clone()).chain(pairing.surplus.iter().map(|i| i.id.clone())).collect();
            let set: BTreeSet<_> = out.iter().cloned().collect();
            prop_assert_eq!(out.len(), set.len());
            prop_assert_eq!(set, instances.iter().map(|i| i.id.clone()).collect::<BTreeSet<_>>());
            // P3
            if all { prop_assert!(pairing.assigned.is_empty() || pairing.unbacked.is_empty()); }
            prop_assert!(pairing.assigned.iter().all(|a| a.instance.private_ip.is_some()));
        }

        #[test]
        fn p6_order_of_the_answer_does_not_matter(ids in proptest::collection::btree_set(0u32..1000, 0..20), seed in any::<u64>()) {
            let nodes = names("n", 10);
            let instances: Vec<_> = ids.iter().map(|id| instance(&format!("i-{id:04}"))).collect();
            let mut shuffled = instances.clone();
            let mut random = fastrand::Rng::with_seed(seed);
            random.shuffle(&mut shuffled);
            prop_assert_eq!(pair(&nodes, instances, Strategy::BestEffort), pair(&nodes, shuffled, Strategy::BestEffort));
        }
    }
}
