//! From the request to orders and lanes: which nodes are units, which are each for itself (aws-facts C.3).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::lane::{Lane, Unit};
use super::{Alone, Fate, GroupState, NodeState, Request, Round, Scaling, Wanted};
use crate::model::policy::{ScaleBy, Strategy};

/// A job's nodes in this call, by their places.
struct JobNodes {
    job: usize,
    nodes: Vec<usize>,
    /// Slurm powers up one node for it.
    single: bool,
}

pub(super) fn build(request: Request<'_>) -> Scaling {
    let Request { nodes, jobs, scale_by, strategy } = request;
    let mut scaling = Scaling {
        groups: Vec::new(),
        nodes: Vec::with_capacity(nodes.len()),
        places: BTreeMap::new(),
        jobs: Vec::new(),
        orders: Vec::new(),
        lanes: Vec::new(),
        alone: None,
        answered: Vec::new(),
        ready: BTreeSet::new(),
        lanes_left: 0,
        outstanding: 0,
        held: 0,
        seen: BTreeSet::new(),
        round: Round::default(),
        given_up: None,
        by_batch: scale_by == ScaleBy::Batch,
    };
    scaling.add_nodes(nodes);
    let jobs = scaling.add_jobs(jobs.unwrap_or_default());
    let all: Vec<usize> = (0..scaling.nodes.len()).collect();
    match (scale_by, strategy) {
        (ScaleBy::Batch, _) => scaling.set_alone(all, None),
        (ScaleBy::Job, _) if !scaling.jobs.is_empty() => scaling.build_jobs(&jobs, strategy),
        (_, Strategy::BestEffort) => scaling.set_alone(all, Some(strategy)),
        (_, Strategy::AllOrNothing | Strategy::GreedyAllOrNothing) => {
            let unit = scaling.unit(None, all);
            scaling.add_lane(vec![unit], Some(strategy), strategy);
        }
    }
    scaling
}

impl Scaling {
    fn add_nodes(&mut self, nodes: Vec<Wanted<'_>>) {
        let mut groups = BTreeMap::new();
        for Wanted { node, group, refused } in nodes {
            if self.places.contains_key(&node) {
                continue;
            }
            let group = *groups.entry(group.name.as_str()).or_insert_with(|| {
                self.groups.push(GroupState {
                    name: group.name.clone(),
                    batch_size: group.launch.batch_size.max(1),
                    strategy: group.launch.strategy,
                    pool: VecDeque::new(),
                    inflow: Vec::new(),
                    merged: 0,
                    left_out: 0,
                    short: VecDeque::new(),
                    cause: None,
                });
                self.groups.len() - 1
            });
            self.places.insert(node.clone(), self.nodes.len());
            self.nodes.push(NodeState {
                name: node,
                group,
                jobs: Vec::new(),
                units: Vec::new(),
                fate: Fate::Open,
                refused: refused.is_some(),
                asked: false,
                counted_short: false,
                chances: 0,
                why: refused.map(Arc::new),
                held_back: false,
            });
        }
    }

    /// Jobs with the nodes that this call is to launch; a job without any is of no interest here.
    fn add_jobs(&mut self, jobs: Vec<(u64, Vec<String>)>) -> Vec<JobNodes> {
        let mut of_this_call = Vec::new();
        for (id, names) in jobs {
            let job = self.jobs.len();
            self.jobs.push(id);
            let mut nodes = Vec::with_capacity(names.len());
            for name in &names {
                let Some(&node) = self.places.get(name) else { continue };
                let of_node = &mut self.nodes[node].jobs;
                if of_node.last() != Some(&job) {
                    of_node.push(job);
                    nodes.push(node);
                }
            }
            if !nodes.is_empty() {
                of_this_call.push(JobNodes { job, nodes, single: names.len() == 1 });
            }
        }
        of_this_call
    }

    fn set_alone(&mut self, mut nodes: Vec<usize>, strategy: Option<Strategy>) {
        nodes.retain(|&node| !self.nodes[node].refused);
        for &node in &nodes {
            self.nodes[node].chances += 1;
        }
        self.alone = Some(Alone { nodes, strategy });
    }

    /// Nodes by group; groups in the order in which the nodes name them first.
    pub(super) fn by_group(&self, nodes: &[usize]) -> Vec<(usize, Vec<usize>)> {
        let mut parts: Vec<(usize, Vec<usize>)> = Vec::new();
        let mut place = BTreeMap::new();
        for &node in nodes {
            let group = self.nodes[node].group;
            let at = *place.entry(group).or_insert_with(|| {
                parts.push((group, Vec::new()));
                parts.len() - 1
            });
            parts[at].1.push(node);
        }
        parts
    }

    /// Single nodes are each for itself, jobs of several are units. Nodes of no job count as single ones.
    fn build_jobs(&mut self, jobs: &[JobNodes], strategy: Strategy) {
        let multi: Vec<&JobNodes> = jobs.iter().filter(|job| !job.single).collect();
        // One multi-node job alone is launched for itself where that asks EC2 for the whole of it.
        let inflow = (strategy != Strategy::AllOrNothing || multi.len() > 1).then_some(strategy);
        for jobs in self.components(&multi) {
            let units: Vec<Unit> = jobs.into_iter().map(|job| self.unit(Some(job.job), job.nodes.clone())).collect();
            self.add_lane(units, inflow, strategy);
        }
        let (mut alone, mut named) = (Vec::new(), vec![false; self.nodes.len()]);
        let singles = jobs.iter().filter(|job| job.single).flat_map(|job| job.nodes.iter().copied());
        let of_no_job = (0..self.nodes.len()).filter(|&node| self.nodes[node].jobs.is_empty());
        for node in singles.chain(of_no_job) {
            if !std::mem::replace(&mut named[node], true) {
                alone.push(node);
            }
        }
        let only_one_job = jobs.iter().filter(|job| job.single).count() == 1 && alone.len() == 1;
        let strategy = if only_one_job { strategy } else { Strategy::BestEffort };
        self.set_alone(alone, Some(strategy));
    }

    /// Jobs that share a group, directly or through others, in the file's order; the components by their first job.
    fn components<'a>(&self, jobs: &[&'a JobNodes]) -> Vec<Vec<&'a JobNodes>> {
        let mut parent: Vec<usize> = (0..self.groups.len()).collect();
        fn root(parent: &mut [usize], mut group: usize) -> usize {
            while parent[group] != group {
                parent[group] = parent[parent[group]];
                group = parent[group];
            }
            group
        }
        let groups: Vec<BTreeSet<usize>> = jobs.iter().map(|job| self.groups_of(&job.nodes)).collect();
        for of_job in &groups {
            let Some(&first) = of_job.first() else { continue };
            let first = root(&mut parent, first);
            for &group in of_job {
                let other = root(&mut parent, group);
                parent[other] = first;
            }
        }
        let (mut components, mut place) = (Vec::<Vec<&JobNodes>>::new(), BTreeMap::new());
        for (&job, of_job) in jobs.iter().zip(&groups) {
            // A job that needs no instance waits for nobody.
            let key = of_job.first().map_or(Err(job.job), |&group| Ok(root(&mut parent, group)));
            let at = *place.entry(key).or_insert_with(|| {
                components.push(Vec::new());
                components.len() - 1
            });
            components[at].push(job);
        }
        components
    }

    fn unit(&mut self, job: Option<usize>, nodes: Vec<usize>) -> Unit {
        for &node in &nodes {
            self.nodes[node].chances += 1;
        }
        let refused = nodes.iter().position(|&node| self.nodes[node].refused);
        Unit { job, nodes, refused }
    }

    /// The groups that instances are needed of.
    fn groups_of(&self, nodes: &[usize]) -> BTreeSet<usize> {
        nodes.iter().filter(|&&node| !self.nodes[node].refused).map(|&node| self.nodes[node].group).collect()
    }

    fn add_lane(&mut self, units: Vec<Unit>, inflow: Option<Strategy>, strategy: Strategy) {
        let lane = self.lanes.len();
        self.ready.insert(lane);
        self.lanes_left += 1;
        for (place, unit) in units.iter().enumerate() {
            for &node in &unit.nodes {
                self.nodes[node].units.push((lane, place));
            }
        }
        let groups: BTreeSet<usize> = units.iter().flat_map(|unit| self.groups_of(&unit.nodes)).collect();
        self.lanes.push(Lane::new(units, groups.into_iter().collect(), inflow, strategy));
    }

    /// Refused nodes that are in no unit have failed already.
    pub(super) fn fail_hopeless(&mut self) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].chances == 0 {
                self.nodes[node].chances = 1;
                self.settle(node);
            }
        }
    }
}
