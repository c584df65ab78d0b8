//! The end of a resume: events, jobs that need not wait, name tags, the summary, the exit status.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::exit::Exit;
use super::run::Run;
use super::{beside, requeue, startup};
use crate::error::chain;
use crate::model::failure::ErrorClass;
use crate::model::hostlist;
use crate::model::instance::tag;
use crate::model::policy::ScaleBy;

impl Run {
    pub(super) async fn finish(self, claimed_after: Duration) -> Exit {
        beside::note_failures(&self.context, &self.failed);
        let failed: Vec<&str> = self.failed.iter().map(|one| one.node.as_str()).collect();
        let groups: BTreeSet<&str> = self.failed.iter().filter_map(|one| one.group.as_deref()).collect();
        requeue::requeue_now(&self.context, &self.jobs.ids(&failed), &groups).await;
        self.tag_nodes().await;
        let calls = self.context.calls();
        tracing::info!(
            launched = self.backed.len(),
            failed = self.failed.len(),
            left = self.left.len(),
            claimed_ms = millis(claimed_after),
            launched_ms = millis(self.launched_after),
            published_ms = millis(self.published_after),
            total_ms = millis(self.context.begun_at.elapsed()),
            calls = %calls,
            "ended"
        );
        if self.context.interactive {
            self.summary();
        }
        if !self.untold.is_empty() || !self.certain {
            Exit::TempFail
        } else if !self.failed.is_empty() || !self.unreleased.is_empty() {
            Exit::SomeFailed
        } else {
            Exit::Done
        }
    }

    /// Each node's name on its instance, where the group asks for it: paced, best effort, after everything else.
    async fn tag_nodes(&self) {
        for (node, id) in &self.backed {
            let by_batch = self.context.settings.run.scale_by == ScaleBy::Batch;
            let group = self.context.settings.group_of(node);
            let wanted = group.is_some_and(|group| group.launch.node_tags && (group.launch.batch_size > 1 || !by_batch));
            if !wanted || self.context.limits.stopping() || self.context.limits.left() < Duration::from_secs(2) {
                continue;
            }
            let tags = [(tag::NODE.to_owned(), node.clone())];
            let tagging = self.context.ec2.tag(std::slice::from_ref(id), &tags);
            if let Err(error) = self.context.ask("CreateTags", tagging).await {
                tracing::warn!(node, instance = id, "its name tag was not written: {}", chain(&error));
                if error.class == ErrorClass::Identity || error.class.is_retryable() {
                    return;
                }
            }
        }
    }

    fn summary(&self) {
        let names = |nodes: Vec<&String>| hostlist::compress_sorted(&nodes);
        startup::say(&format!(
            "launched {:>6}  {}",
            self.backed.len(),
            names(self.backed.iter().map(|(node, _)| node).collect())
        ));
        if !self.left.is_empty() {
            startup::say(&format!(
                "left     {:>6}  {}",
                self.left.len(),
                names(self.left.iter().map(|(node, _)| node).collect())
            ));
        }
        let mut reasons: BTreeMap<String, Vec<&String>> = BTreeMap::new();
        for one in &self.failed {
            reasons.entry(format!("{}: {}", one.failure.code, one.failure.sentence)).or_default().push(&one.node);
        }
        for (reason, nodes) in reasons {
            startup::say(&format!("failed   {:>6}  {}  {reason}", nodes.len(), names(nodes)));
        }
        for (id, why) in &self.unreleased {
            startup::say(&format!("not terminated  {id}  {why}"));
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
