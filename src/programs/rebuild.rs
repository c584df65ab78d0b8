//! The mapping is missing: on a first start that is normal; else it is rebuilt from what Slurm and EC2 show, and nothing is
//! terminated by it. Instances of our cluster's name that another state folder launched are reported and never touched.

use super::context::Context;
use super::exit::{Exit, Stopped};
use super::recovery;
use super::survey;
use crate::clock;
use crate::error::chain;
use crate::model::instance::{Instance, tag};
use crate::model::node::SlurmNode;
use crate::store::atomic;

/// `true` = entries were made. An error means that nothing may be launched: without EC2's and Slurm's answers a node could get a
/// second instance.
pub(crate) async fn rebuild(context: &Context) -> Result<bool, Stopped> {
    let stopped = |error: String| Stopped { error, exit: Exit::TempFail };
    let filters = [(tag::CLUSTER.to_owned(), vec![context.settings.cluster.clone()])];
    let instances = match context.ask("DescribeInstances", context.ec2.describe_tagged(&filters, true)).await {
        Ok(instances) => instances,
        // Not allowed, or not there: a launch would tell. A first start has nothing to rebuild from.
        Err(error) if context.store.is_new() => {
            tracing::warn!("EC2 does not tell whether the cluster has instances already: {}", chain(&error));
            return Ok(false);
        }
        Err(error) => {
            return Err(stopped(format!(
                "the mapping is missing and EC2 does not tell which instances there are: {}",
                chain(&error)
            )));
        }
    };
    let (ours, others): (Vec<_>, Vec<_>) = instances.into_iter().partition(|instance| context.is_ours(instance));
    if !others.is_empty() {
        let ids: Vec<&str> = others.iter().map(|instance| instance.id.as_str()).take(20).collect();
        tracing::warn!(
            count = others.len(),
            instances = ids.join(","),
            "instances of cluster {} were launched by another state folder: they are left alone; terminate them by hand if nobody uses them",
            context.settings.cluster
        );
    }
    if ours.is_empty() {
        return Ok(false);
    }
    let names = {
        let mut names = context.settings.node_group.names();
        names.sort_unstable();
        names
    };
    // ParallelCluster's names follow a rule; Slurm knows which of them there are.
    let shown = if names.is_empty() { survey::show_all(context).await } else { survey::show(context, &names).await };
    let Some(nodes) = shown else {
        let text = "the mapping is missing while instances run, and slurmctld does not tell which nodes they are";
        return Err(stopped(text.to_owned()));
    };
    let now = clock::now();
    let made = context
        .store
        .update(context.lock_wait(), |mapping| {
            let mut made = 0usize;
            for instance in &ours {
                let Some(node) = nodes.values().find(|node| stands_behind(node, instance)) else { continue };
                let Some(group) = context.settings.group_of(&node.name) else { continue };
                if mapping.nodes.contains_key(&node.name) {
                    continue;
                }
                let launch = instance.tags.get(tag::LAUNCH).cloned().unwrap_or_default();
                let launched = instance.launch_time.unwrap_or(now);
                let mut entry = recovery::running(&group.name, &launch, instance, launched, launched, now);
                entry.unpublished = false;
                mapping.nodes.insert(node.name.clone(), entry);
                made += 1;
            }
            made
        })
        .map_err(Stopped::from)?;
    leave_mark(context);
    tracing::warn!(
        instances = ours.len(),
        nodes = made,
        "the mapping was missing and is rebuilt from Slurm and EC2; nothing was terminated"
    );
    Ok(true)
}

/// In the state folder: the mapping was rebuilt, and clustermgtd has not had a pass since. Instances that stand behind no node then may be
/// somebody's all the same.
const MARK: &str = "rebuilt";

fn leave_mark(context: &Context) {
    let path = context.store.dir().join(MARK);
    if let Err(error) = atomic::replace(&path, format!("{}\n", clock::now()).as_bytes(), atomic::FILE_MODE) {
        tracing::warn!("that the mapping was rebuilt cannot be noted in {}: {error}", path.display());
    }
}

/// Has any program rebuilt the mapping since [`remove_mark`]?
pub(super) fn has_mark(context: &Context) -> bool {
    context.store.dir().join(MARK).exists()
}

/// A pass has remembered what stood behind no node.
pub(super) fn remove_mark(context: &Context) {
    let path = context.store.dir().join(MARK);
    if let Err(error) = std::fs::remove_file(&path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!("{} cannot be removed: {error}", path.display());
    }
}

/// Does Slurm say that this instance is the node's, and is the node not powered down?
pub(super) fn stands_behind(node: &SlurmNode, instance: &Instance) -> bool {
    if node.state.is_powered_down() {
        return false;
    }
    node.instance_id.as_ref() == Some(&instance.id) || instance.private_ip.as_ref().is_some_and(|ip| *ip == node.addr)
}
