//! Launches in the background: the story of slurm_resume in a thread of its own, with a launch id and limits of its own, so that passes
//! and heartbeat go on however long EC2 takes.
//!
//! When the daemon ends, they are left to their launch record, as those of a slurm_resume that is killed: the next program finishes them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use super::doors;
use super::shared::Shared;
use crate::config::settings::Settings;
use crate::model::hostlist;
use crate::model::policy::{ScaleBy, Strategy};
use crate::programs::args::Environment;
use crate::programs::startup::{self, Limits};
use crate::programs::telling::Jobs;
use crate::programs::{begin, resume};
use crate::slurm::conf::SlurmConf;

/// Launches at the same time. Each pass makes one, so with more than these EC2 has not answered for minutes.
const MOST: usize = 4;

/// Nodes whose launches are under way, and how many launches these are.
#[derive(Debug, Default)]
struct Busy {
    nodes: BTreeSet<String>,
    launches: usize,
}

pub(super) struct Launches {
    shared: Arc<Shared>,
    env: Environment,
    busy: Arc<Mutex<Busy>>,
}

impl Launches {
    pub(super) fn new(shared: Arc<Shared>, env: Environment) -> Self {
        Self { shared, env, busy: Arc::default() }
    }

    /// The nodes whose launches are under way.
    pub(super) fn under_way(&self) -> BTreeSet<String> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner).nodes.clone()
    }

    /// Launches instances for those of the nodes for which none is under way. Returns how many these are.
    pub(super) fn start(&self, nodes: Vec<String>, settings: &Settings, conf: Option<&SlurmConf>) -> usize {
        let nodes = {
            let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
            let nodes: Vec<String> = nodes.into_iter().filter(|node| !busy.nodes.contains(node)).collect();
            if nodes.is_empty() || busy.launches >= MOST {
                return 0;
            }
            busy.nodes.extend(nodes.iter().cloned());
            busy.launches += 1;
            nodes
        };
        let count = nodes.len();
        let limit = startup::time_limit(settings, conf, &nodes);
        let under_way = UnderWay { busy: Arc::clone(&self.busy), nodes };
        let (settings, env, stop) = (each_for_itself(settings), self.env.clone(), self.shared.stop_signal());
        let launch = move || {
            let (begun, begun_at) = begin::now();
            let Some(runtime) = begin::runtime() else { return };
            let nodes = under_way.nodes.clone();
            runtime.block_on(async {
                let limits = Limits::under(begun_at, limit, stop);
                match doors::open(settings, &env, limits, (begun, begun_at)).await {
                    Ok(context) => {
                        let span = tracing::info_span!("run", pid = std::process::id(), launch = %context.launch);
                        let launching = resume::launch(Arc::new(context), nodes, Jobs::default());
                        tracing::Instrument::instrument(launching, span).await;
                    }
                    Err(error) => tracing::error!(nodes = hostlist::compress_sorted(&nodes), "nothing launched: {error}"),
                }
            });
            runtime.shutdown_background();
        };
        if let Err(error) = std::thread::Builder::new().name("launch".to_owned()).spawn(launch) {
            tracing::error!("no thread for launches, the next pass tries again: {error}");
            return 0;
        }
        count
    }
}

/// The nodes of a pass have nothing in common, so one that EC2 has no instance for keeps none from the others, whatever the strategy of
/// jobs is (aws-facts D.3, "static unhealthy").
fn each_for_itself(settings: &Settings) -> Settings {
    let mut settings = settings.clone();
    settings.run.scale_by = ScaleBy::Batch;
    settings.run.strategy = Strategy::BestEffort;
    settings.groups.iter_mut().for_each(|group| group.launch.strategy = Strategy::BestEffort);
    settings
}

/// Dropped, also by a thread that could not begin or broke, it makes way for the next launch of the nodes.
struct UnderWay {
    busy: Arc<Mutex<Busy>>,
    nodes: Vec<String>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        for node in &self.nodes {
            busy.nodes.remove(node);
        }
        busy.launches = busy.launches.saturating_sub(1);
    }
}
