//! Nodes that did not register before ResumeTimeout: why, as far as their consoles tell, and how often. Both go into the log; what
//! becomes of the nodes is `resume_fail.rs`'s, and beside ParallelCluster `suspend.rs`'s.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::context::Context;
use super::suspend::Freed;
use crate::clock;
use crate::error::chain;
use crate::store::failures::BootFailures;

/// Consoles asked for at most, in one run: one tells what is wrong, a thousand tell no more.
const CONSOLES: usize = 10;
/// Lines and bytes of a console that are logged.
const CONSOLE_LINES: usize = 40;
const CONSOLE_BYTES: usize = 8 * 1024;
/// Best effort: the nodes must not wait for it.
const CONSOLE_LIMIT: Duration = Duration::from_secs(10);

/// Whose consoles are read.
#[derive(Debug, Default)]
pub(super) struct Consoles {
    /// Node and instance.
    instances: Vec<(String, String)>,
    /// Nodes of which nobody knows an instance.
    without: BTreeSet<String>,
}

impl Consoles {
    /// Those of `nodes`, among all that were freed and found.
    pub(super) fn of(nodes: &[String], freed: &Freed, found: &[(String, String)]) -> Self {
        let nodes: BTreeSet<&String> = nodes.iter().collect();
        let mapped = freed.instances.iter().filter_map(|was| Some((was.node.clone(), was.instance_id.clone()?)));
        let instances: Vec<_> = mapped.chain(found.iter().cloned()).filter(|(node, _)| nodes.contains(node)).collect();
        let known: BTreeSet<&String> = instances.iter().map(|(node, _)| node).collect();
        // Failed launches, and claims of launches that never came to an end.
        let claimed = freed.instances.iter().filter(|was| was.instance_id.is_none()).map(|was| &was.node);
        let without = freed.unmapped.iter().chain(claimed);
        let without = without.filter(|node| nodes.contains(node) && !known.contains(node)).cloned().collect();
        Self { instances, without }
    }

    /// Those of `nodes` for which something was launched: slurmctld runs into ResumeTimeout with a node whose launch has failed, too, and
    /// 22.05 drops the code from its Reason then.
    pub(super) fn launched(&self, nodes: &[String]) -> Vec<String> {
        nodes.iter().filter(|node| !self.without.contains(*node)).cloned().collect()
    }

    /// The tail of some consoles, into the log.
    pub(super) async fn log(self, context: &Arc<Context>) {
        let mut tasks = JoinSet::new();
        for (node, id) in self.instances.into_iter().take(CONSOLES) {
            let context = Arc::clone(context);
            tasks.spawn(async move {
                let output = context.ec2.console_output(&id).await;
                (node, id, output)
            });
        }
        let all = async {
            while let Some(done) = tasks.join_next().await {
                match done {
                    Ok((node, id, Ok(Some(output)))) => {
                        tracing::error!(
                            node,
                            instance = id,
                            "did not register before ResumeTimeout; end of its console output follows"
                        );
                        for line in tail(&output) {
                            tracing::error!(node, "| {line}");
                        }
                    }
                    Ok((node, id, Ok(None))) => {
                        tracing::error!(node, instance = id, "did not register before ResumeTimeout; no console output yet")
                    }
                    Ok((node, id, Err(error))) => {
                        tracing::error!(
                            node,
                            instance = id,
                            "did not register before ResumeTimeout; no console output: {}",
                            chain(&error)
                        );
                    }
                    Err(error) => tracing::warn!("reading a console ended abnormally: {error}"),
                }
            }
        };
        if tokio::time::timeout(CONSOLE_LIMIT.min(context.limits.left() / 3), all).await.is_err() {
            tracing::warn!("not every console output came in time");
        }
        for node in self.without.iter().take(CONSOLES) {
            tracing::error!(node, "did not register before ResumeTimeout; the mapping knows no instance of it");
        }
    }
}

/// The last lines, readable: control characters (cursor movements, colours) gone.
fn tail(output: &str) -> Vec<String> {
    let mut start = output.len().saturating_sub(CONSOLE_BYTES);
    while !output.is_char_boundary(start) {
        start += 1;
    }
    let lines: Vec<String> =
        output[start..].lines().map(|line| strip_escapes(line).trim_end().to_owned()).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(CONSOLE_LINES)..].to_vec()
}

/// Drops ANSI sequences (`ESC [ … letter`) and other control characters.
fn strip_escapes(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            if chars.next_if_eq(&'[').is_some() {
                while chars.next_if(|c| !c.is_ascii_alphabetic()).is_some() {}
                chars.next();
            }
        } else if c == '\t' {
            out.push(' ');
        } else if !c.is_control() {
            out.push(c);
        }
    }
    out
}

/// Counts the failure to boot for each group, for later use.
pub(super) fn count(context: &Context, nodes: &[String]) {
    let mut by_group: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for node in nodes {
        if let Some(group) = context.settings.group_of(node) {
            by_group.entry(&group.name).or_default().push(node.clone());
        }
    }
    for (group, nodes) in by_group {
        match BootFailures::in_folder(context.store.dir()).note(group, &nodes, clock::now()) {
            Ok(count) => tracing::warn!(group, nodes = nodes.len(), count, "boot failures of the group so far"),
            Err(error) => tracing::warn!(group, "boot failures cannot be counted: {}", chain(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::suspend::Was;

    #[test]
    fn only_what_was_launched_has_failed_to_boot() {
        let text = |text: &str| text.to_owned();
        let was = |node: &str, id: Option<&str>| Was { node: text(node), instance_id: id.map(text), private_ip: None };
        let instances = vec![was("c5-1", Some("i-1")), was("c5-2", None), was("c5-3", None)];
        let freed = Freed { unmapped: vec![text("c5-4"), text("c5-5")], instances, ..Freed::default() };
        let nodes: Vec<String> = ["c5-1", "c5-2", "c5-3", "c5-4", "c5-5", "c5-6"].map(text).into();
        let consoles = Consoles::of(&nodes, &freed, &[(text("c5-3"), text("i-3")), (text("c5-5"), text("i-5"))]);
        // c5-6 is another call's by now and was not freed.
        assert_eq!(consoles.launched(&nodes), ["c5-1", "c5-3", "c5-5", "c5-6"]);
    }

    #[test]
    fn a_console_is_bounded_and_readable() {
        let mut text = "x".repeat(20_000);
        text.push_str("\n\u{1b}[1;32m[  OK  ]\u{1b}[0m Started\tfoo\r\n\r\n\u{7}panic: é\n");
        let lines = tail(&text);
        assert_eq!(lines[lines.len() - 2..], ["[  OK  ] Started foo".to_owned(), "panic: é".to_owned()]);
        assert!(lines.iter().map(String::len).sum::<usize>() <= CONSOLE_BYTES);
        assert_eq!(tail(&"line\n".repeat(500)).len(), CONSOLE_LINES);
        assert!(tail("").is_empty());
    }
}
