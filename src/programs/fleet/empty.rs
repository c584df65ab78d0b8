//! The mapping freed and instances terminated, whole or for some nodes. A launch that is going on loses its claims by this, and so
//! condemns its instances itself.

use std::collections::{BTreeMap, BTreeSet};

use crate::clock;
use crate::error::chain;
use crate::model::instance::{Instance, tag};
use crate::model::mapping::NodeState;
use crate::programs::context::Context;
use crate::programs::{recovery, release};

/// What was found and done.
#[derive(Debug, Default)]
pub(super) struct Emptied {
    /// Nodes that were mapped.
    pub(super) freed: usize,
    /// Claims of launches that were going on.
    pub(super) cancelled: usize,
    /// Instances that were put on the list of those that go.
    pub(super) condemned: usize,
    /// On that list afterwards, with what keeps each there as far as it is known.
    pub(super) left: BTreeMap<String, String>,
}

/// Which nodes are freed.
pub(super) enum Whose<'a> {
    All,
    Of(&'a BTreeSet<String>),
}

/// Frees nodes in the mapping, condemns their instances and `strays`, and asks EC2 to terminate all that is condemned but `stuck`.
pub(super) async fn empty(
    context: &Context,
    whose: Whose<'_>,
    strays: &[Instance],
    why: &str,
    stuck: &BTreeSet<String>,
) -> Result<Emptied, String> {
    let now = clock::now();
    let changed = context.store.update(context.lock_wait(), |mapping| {
        let mut emptied = Emptied::default();
        let is_meant = |node: &&String| match whose {
            Whose::All => true,
            Whose::Of(nodes) => nodes.contains(*node),
        };
        let nodes: Vec<String> = mapping.nodes.keys().filter(is_meant).cloned().collect();
        let before = mapping.condemned.len();
        for node in nodes {
            if let Some(entry) = recovery::take_down(mapping, &node, now, why) {
                emptied.freed += 1;
                emptied.cancelled += usize::from(entry.state == NodeState::Launching);
            }
        }
        for stray in strays {
            let launch = stray.tags.get(tag::LAUNCH).cloned().unwrap_or_default();
            recovery::condemn(mapping, &stray.id, None, &launch, stray.launch_time, now, why);
        }
        emptied.condemned = mapping.condemned.len() - before;
        emptied.left = mapping.condemned.keys().map(|id| (id.clone(), String::new())).collect();
        emptied
    });
    let mut emptied = changed.map_err(|error| format!("the mapping cannot be written: {}", chain(&error)))?;
    if emptied.left.keys().any(|id| !stuck.contains(id)) {
        let released = release::release(context, stuck).await;
        for id in &released.gone {
            emptied.left.remove(id);
        }
        emptied.left.extend(released.left);
    }
    Ok(emptied)
}

/// Every instance of ours that EC2 shows alive. Others' instances under the same name are not ours to stop.
pub(super) async fn ours(context: &Context) -> Result<Vec<Instance>, String> {
    let cluster = || vec![context.settings.cluster.clone()];
    let mut found = BTreeMap::new();
    let keys = [Some(tag::CLUSTER), context.settings.parallelcluster.as_ref().map(|_| tag::PARALLELCLUSTER_NAME)];
    for key in keys.into_iter().flatten() {
        let filters = [(key.to_owned(), cluster())];
        let answer = context.ask("DescribeInstances", context.ec2.describe_tagged(&filters, true)).await;
        let instances = answer.map_err(|error| format!("EC2 does not tell which instances there are: {}", chain(&error)))?;
        found.extend(instances.into_iter().filter(|instance| context.is_ours(instance)).map(|found| (found.id.clone(), found)));
    }
    Ok(found.into_values().filter(|instance| instance.state.is_live()).collect())
}
