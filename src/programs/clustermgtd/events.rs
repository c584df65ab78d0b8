//! The package's events of a pass, on a ParallelCluster head node (aws-facts B.17): what the pass saw in, lines in `clustermgtd.events` out.

use crate::clock;
use crate::config::settings::Settings;
use crate::events::pass::{self, IdleNode, Pass};
use crate::events::{self, Component, Source};
use crate::plan::reconcile::Report;

/// Appends them; `report` is that of a complete pass. A file that cannot be written is an error for the log.
pub(super) fn write(settings: &Settings, report: Option<&Report>) -> std::io::Result<()> {
    let (Some(parallelcluster), Some(path)) = (&settings.parallelcluster, settings.log.events_path()) else { return Ok(()) };
    let source = Source {
        component: Component::Clustermgtd,
        cluster: &settings.cluster,
        instance_id: &parallelcluster.instance_id,
        at: clock::now(),
    };
    let mut lines = report.map(|report| pass::lines(&source, &of(report))).unwrap_or_default();
    lines.push(pass::heartbeat(&source));
    events::append(&path, &lines)
}

fn of(report: &Report) -> Pass<'_> {
    Pass {
        failing_checks: Some(&report.failing_checks),
        invalid_backing: &report.invalid_backing,
        not_responding: &report.not_responding,
        boot_failures: Some(&report.boot_failures),
        idle: report
            .idle
            .each_ref()
            .map(|idle| idle.as_ref().map(|idle| IdleNode { name: &idle.node, seconds: idle.seconds, count: idle.count })),
    }
}
