//! Resumes as on a ParallelCluster head node: each node's item is in DynamoDB, 8 ms a batch of 25, before Slurm hears of the node.
//! EC2 is that of `resume.rs`.

use std::path::Path;
use std::time::Duration;

use slurm_ec2_testkit::dynamodb::{self, Table as NodeTable};
use slurm_ec2_testkit::ec2::{Behaviour, Endpoint, Latency};

use crate::measure::Cost;
use crate::site::{NODE_TABLE, Site};
use crate::table::{Table, median, mib, ms, s, target};

/// Nodes and groups of the rows, and the seconds that the Python package's `slurm_resume` 3.16.1 needs for the same against an EC2 and a
/// DynamoDB of the same speed (measured once, on another machine of two processors).
const SIZES: [(usize, usize, f64); 3] = [(100, 1, 2.9), (1000, 1, 9.7), (1000, 10, 22.0)];

/// What a role on the head node may do with the table.
const ALLOWED: [&str; 4] = ["PutItem", "BatchWriteItem", "GetItem", "BatchGetItem"];

/// Milliseconds of each DynamoDB call.
const DYNAMODB_MS: u64 = 8;

struct Run {
    cost: Cost,
    slowest: Duration,
    launches: usize,
    batches: usize,
    scontrol_calls: usize,
}

pub(crate) fn table(programs: &Path, runs: usize, largest: usize, note: &mut dyn FnMut(&str)) -> Result<Table, String> {
    let heads = [
        "nodes",
        "groups",
        "wall s",
        "slowest launch s",
        "after it s",
        "cpu ms",
        "peak MiB",
        "launch calls",
        "DynamoDB calls",
        "scontrol",
        "package wall s",
        "target",
    ];
    let title =
        "slurm_resume as on a ParallelCluster head node: launches as above, 500 nodes a call; 8 ms a DynamoDB batch of 25";
    let mut table = Table::new(title, &heads);
    for (nodes, groups, package) in SIZES.into_iter().filter(|(nodes, ..)| *nodes <= largest) {
        note(&format!("ParallelCluster resume of {nodes} nodes in {groups} groups"));
        let all: Vec<Run> = (0..runs).map(|_| once(programs, nodes, groups)).collect::<Result<_, _>>()?;
        let middle = |of: &dyn Fn(&Run) -> Duration| median(all.iter().map(of)).unwrap_or_default();
        let count = |of: &dyn Fn(&Run) -> usize| median(all.iter().map(of)).unwrap_or_default().to_string();
        let (wall, slowest) = (middle(&|run| run.cost.wall), middle(&|run| run.slowest));
        table.row(vec![
            nodes.to_string(),
            groups.to_string(),
            s(wall),
            s(slowest),
            s(wall.saturating_sub(slowest)),
            ms(middle(&|run| run.cost.cpu)),
            mib(median(all.iter().map(|run| run.cost.peak_kib)).unwrap_or_default()),
            count(&|run| run.launches),
            count(&|run| run.batches),
            count(&|run| run.scontrol_calls),
            format!("{package:.1}"),
            target("wall", wall.as_secs_f64(), slowest.as_secs_f64() * 1.15, "s"),
        ]);
    }
    Ok(table)
}

fn once(programs: &Path, nodes: usize, groups: usize) -> Result<Run, String> {
    let ec2 = Endpoint::start(Behaviour { latency: Latency::bench(), ..Behaviour::default() });
    let dynamodb = dynamodb::Endpoint::start(dynamodb::Behaviour {
        tables: vec![NodeTable::new(NODE_TABLE, "Id").only(&ALLOWED)],
        latency_ms: DYNAMODB_MS,
        ..dynamodb::Behaviour::default()
    });
    let site = Site::parallelcluster(&ec2.url(), &dynamodb.url(), nodes, groups)?;
    let cost = site.resume(programs)?.end()?;
    let (live, mapped, items) = (ec2.live_instances().len(), site.mapped(), dynamodb.items(NODE_TABLE).len());
    if live != nodes || mapped != nodes || items != nodes {
        return Err(format!(
            "of {nodes} nodes {mapped} are mapped, {items} in the table and {live} instances live: these figures mean nothing"
        ));
    }
    let requests = ec2.requests();
    let slowest = requests.iter().filter_map(|request| request.took_ms).fold(0.0, f64::max);
    Ok(Run {
        cost,
        slowest: Duration::from_secs_f64(slowest / 1000.0),
        launches: ec2.count("RunInstances"),
        batches: dynamodb.requests().len(),
        scontrol_calls: site.scontrol_calls(),
    })
}
