//! The partitions that ParallelCluster looks after (aws-facts B.10): the keys of a JSON file beside slurm.conf, where it is there; else the
//! queues. What is wrong with it is only warned of: the queues are nearly always the same.

use std::fs;
use std::io;

use serde_json::Value;

use super::assemble::located;
use crate::config::settings::{NodeIndex, Settings};
use crate::config::source::Place;

const MAPPING: &str = "pcluster/parallelcluster_partition_nodelist_mapping.json";

pub(super) fn of(place: &Place, settings: &mut Settings) -> Vec<String> {
    let folder = settings.slurm.conf.parent().unwrap_or(&settings.slurm.conf);
    let path = located(folder.join(MAPPING), place, &mut settings.warnings);
    settings.files.push(path.clone());
    let queues = || match &settings.node_group {
        NodeIndex::Queues(queues) => queues.queues().map(str::to_owned).collect(),
        NodeIndex::Names(_) => Vec::new(),
    };
    let read = fs::read(&path).map(|bytes| serde_json::from_slice::<Value>(&bytes));
    let why = match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return queues(),
        Ok(Ok(Value::Object(partitions))) if !partitions.is_empty() => {
            return partitions.into_iter().map(|(name, _)| name).collect();
        }
        Ok(Ok(_)) => "it is no object of partitions".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    let queues = queues();
    settings.warnings.push(format!("{} is not used: {why}; the partitions are the queues", path.display()));
    queues
}
