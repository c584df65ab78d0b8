//! Who hears of a node's instance, and in which order: what an instance needs for its boot first, Slurm last.

use std::collections::BTreeSet;

use super::context::{Context, LOCK_WAIT};
use super::telling::{version, why};
use crate::config::settings::NodeAddress;
use crate::error::chain;
use crate::model::failure::{ErrorClass, Failure, codes};
use crate::model::instance::Instance;
use crate::slurm::scontrol::Applied;
use crate::slurm::update::{self, NodeUpdate};

/// What became of telling everybody; each node is in one of the lists.
#[derive(Debug, Default)]
pub(crate) struct Published {
    pub(crate) done: Vec<String>,
    /// For good: these nodes are failed, and their instances go.
    pub(crate) refused: Vec<(String, Failure)>,
    /// Not told in time; the next program repeats it.
    pub(crate) unknown: Vec<String>,
    /// The last reason for `unknown`.
    pub(crate) why_unknown: Option<String>,
}

/// Tells everybody which instance stands behind which node.
pub(crate) async fn publish(context: &Context, pairs: &[(String, Instance)]) -> Published {
    let applied = tell_slurm(context, pairs).await;
    let refuse = |(node, text): (String, String)| {
        let failure = Failure {
            code: codes::REFUSED.to_owned(),
            class: ErrorClass::Other,
            sentence: format!("slurmctld refused the node's address: {text}"),
            request_id: None,
        };
        (node, failure)
    };
    let why_unknown = (!applied.unknown.is_empty()).then(|| why(&applied));
    Published {
        done: applied.done,
        refused: applied.refused.into_iter().map(refuse).collect(),
        unknown: applied.unknown,
        why_unknown,
    }
}

/// Tells Slurm which instance stands behind which node, as `[slurm] node_address` says.
async fn tell_slurm(context: &Context, pairs: &[(String, Instance)]) -> Applied {
    let mode = context.settings.slurm.node_address;
    if pairs.is_empty() || mode == NodeAddress::None {
        return Applied { done: pairs.iter().map(|(node, _)| node.clone()).collect(), ..Applied::default() };
    }
    let version = version(context).await;
    let updates: Vec<NodeUpdate> = pairs
        .iter()
        .map(|(node, instance)| NodeUpdate {
            node: node.clone(),
            addr: if mode == NodeAddress::Scontrol { instance.private_ip.clone() } else { None },
            hostname: None,
            instance_id: version.takes_instance_id().then(|| instance.id.clone()),
        })
        .collect();
    let calls = update::publish_args(&updates, &version, context.settings.slurm.nodes_per_call);
    if calls.is_empty() {
        return Applied { done: pairs.iter().map(|(node, _)| node.clone()).collect(), ..Applied::default() };
    }
    context.apply(calls).await
}

/// Notes in the mapping that Slurm knows these nodes' addresses.
pub(crate) fn mark_published(context: &Context, pairs: &[(String, Instance)], published: &Published) {
    let done: BTreeSet<&String> = published.done.iter().collect();
    let result = context.store.update(LOCK_WAIT, |mapping| {
        for (node, instance) in pairs.iter().filter(|(node, _)| done.contains(node)) {
            if let Some(entry) = mapping.nodes.get_mut(node).filter(|entry| entry.instance_id.as_deref() == Some(&instance.id)) {
                entry.unpublished = false;
            }
        }
    });
    if let Err(error) = result {
        tracing::warn!("the mapping cannot be marked as told to Slurm, the next program tells it again: {}", chain(&error));
    }
}

