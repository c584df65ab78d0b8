//! What Slurm does by itself, and our programs when it calls them.

use std::time::Duration;

use super::{Cluster, Machine, Node};
use crate::model::cluster::PartitionState;
use crate::model::instance::InstanceState;
use crate::plan::reconcile::Order;

const SUSPEND_TIME: Duration = Duration::from_secs(600);
const SUSPEND_TIMEOUT: Duration = Duration::from_secs(120);
pub(in super::super) const RESUME_TIMEOUT: Duration = Duration::from_secs(600);
/// Scans without an answer until a node is down.
const SILENT: u32 = 3;

impl Cluster {
    pub(super) fn slurm(&mut self) {
        self.register();
        for name in self.nodes.keys().cloned().collect::<Vec<_>>() {
            if !self.nodes[&name].is_odd() {
                self.scan(&name);
            }
        }
        let now = self.now;
        let dropped: Vec<String> = self.records.iter().filter(|(_, until)| **until <= now).map(|(id, _)| id.clone()).collect();
        for launch in dropped {
            self.records.remove(&launch);
            self.mapping.nodes.retain(|_, entry| entry.launch != launch || entry.instance_id.is_some());
        }
    }

    /// Machines that have booted start slurmd, for the node that has their address.
    fn register(&mut self) {
        for id in self.machines.keys().cloned().collect::<Vec<_>>() {
            let machine = &self.machines[&id];
            let launched = machine.instance.launch_time.unwrap_or_default();
            if !machine.is_running() || !machine.boots || machine.registered.is_some() || self.now.since(launched).as_secs() < 50
            {
                continue;
            }
            let ip = machine.instance.private_ip.clone().unwrap_or_default();
            let Some(node) = self.nodes.values_mut().find(|node| node.addr == ip && !node.is_odd()) else { continue };
            // The boot gate (slurm-facts I), in whole seconds.
            if node.has("POWERING_DOWN") || (node.has("POWERING_UP") && launched.secs() < node.power_since.secs()) {
                continue;
            }
            let was_booting = node.has("POWERING_UP");
            node.clear(&["POWERING_UP", "POWER_UP", "NOT_RESPONDING", "POWERED_DOWN", "INVALID_REG"]);
            (node.boot, node.slurmd, node.silent) = (Some(self.now), Some(self.now), 0);
            node.busy = self.now;
            if node.is_down() && (self.ways.return_to_service == 2 || (was_booting && self.ways.return_to_service > 0)) {
                "IDLE".clone_into(&mut node.base);
                node.reason = None;
            }
            let name = node.name.clone();
            // ParallelCluster's static nodes resume themselves (aws-facts B.13).
            if node.is_static && self.policy.parallelcluster {
                self.update(&name, Order::Resume, None);
            }
            self.machines.entry(id).and_modify(|machine| machine.registered = Some(name));
        }
    }

    /// slurmctld looks at one node.
    fn scan(&mut self, name: &str) {
        let (now, answers) = (self.now, self.answering(name).is_some());
        let queue_works = self.partitions.get(&self.nodes[name].queue) != Some(&PartitionState::Inactive);
        let Some(node) = self.nodes.get_mut(name) else { return };
        node.clear(&["REBOOT_ISSUED", "REBOOT_REQUESTED", "PLANNED", "BLOCKED"]);
        if answers || node.is_down() {
            node.clear(&["COMPLETING"]);
        }
        if node.has_job() {
            node.busy = now;
            if node.job_ends.is_some_and(|ends| ends <= now) && !node.has("POWERED_DOWN") && !node.has("POWERING_UP") {
                "IDLE".clone_into(&mut node.base);
            }
        }
        let is_off = node.has("POWERED_DOWN");
        if !queue_works && node.has_job() && is_off {
            "IDLE".clone_into(&mut node.base);
        }
        if node.has("POWER_DOWN") {
            let waits = node.has_job() || node.has("COMPLETING") || (node.has("POWERING_UP") && !node.is_down());
            if !waits {
                return self.suspend(name);
            }
            if node.has("POWERING_UP") {
                if now.since(node.power_since) > RESUME_TIMEOUT {
                    self.resume_fail(name);
                }
            } else if !answers {
                node.is_silent();
            }
        } else if node.has("POWERING_DOWN") {
            if now.since(node.power_since) >= SUSPEND_TIMEOUT {
                node.clear(&["POWERING_DOWN"]);
                node.put("POWERED_DOWN");
                if self.ways.new_slurm {
                    node.addr.clone_from(&node.name);
                    node.instance_id = None;
                }
            }
        } else if node.has("POWERING_UP") {
            if now.since(node.power_since) > RESUME_TIMEOUT {
                self.resume_fail(name);
            }
        } else if is_off {
            if !node.is_down() && (node.has("POWER_UP") || (node.has_job() && !node.has("DRAIN"))) {
                self.resume(name);
            } else if node.has_job() {
                "IDLE".clone_into(&mut node.base);
            }
        } else if !answers {
            node.is_silent();
        } else {
            node.silent = 0;
            node.clear(&["NOT_RESPONDING"]);
            let idle = node.base == "IDLE" && !node.has("DRAIN") && !node.has("COMPLETING");
            if idle && !node.is_static && !node.idle_is_lost && now.since(node.busy) >= SUSPEND_TIME {
                self.suspend(name);
            }
        }
    }

    /// SuspendProgram is called, and slurm_suspend runs if it can.
    fn suspend(&mut self, name: &str) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        node.clear(&["POWER_DOWN", "POWERED_DOWN", "NOT_RESPONDING", "COMPLETING", "POWER_UP", "INVALID_REG"]);
        if self.ways.idle_on_suspend {
            node.clear(&["DRAIN"]);
            "IDLE".clone_into(&mut node.base);
        }
        node.put("POWERING_DOWN");
        node.power_since = self.now;
        if self.ways.suspend_runs {
            self.release(name);
        }
        for machine in self.machines.values_mut().filter(|machine| machine.registered.as_deref() == Some(name)) {
            machine.registered = None;
            machine.boots = false;
        }
    }

    /// slurm_suspend and slurm_resume_fail: the instance behind the node goes, its entry too.
    fn release(&mut self, name: &str) {
        let node = &self.nodes[name];
        let by_address = || {
            let at = |id: &&String| self.machines[*id].instance.private_ip.as_deref() == Some(&node.addr);
            self.machines.keys().find(at).cloned()
        };
        let entry = self.mapping.nodes.get(name);
        let id = entry.and_then(|entry| entry.instance_id.clone()).or_else(|| node.instance_id.clone()).or_else(by_address);
        self.mapping.nodes.remove(name);
        if let Some(id) = id.filter(|id| self.machines.contains_key(id)) {
            self.condemn(&id, Some(name));
            self.terminate(&id);
        }
    }

    /// ResumeProgram is called, and slurm_resume runs if it can.
    fn resume(&mut self, name: &str) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        node.clear(&["POWERED_DOWN", "POWER_UP"]);
        node.put("POWERING_UP");
        node.put("NOT_RESPONDING");
        node.power_since = self.now;
        if self.ways.resume_runs {
            let launch = self.next_launch();
            self.claim(name, &launch);
        }
    }

    /// ResumeTimeout is over; ResumeFailProgram is called.
    fn resume_fail(&mut self, name: &str) {
        let addr = self.nodes[name].addr.as_str();
        let is_there =
            |machine: &Machine| machine.instance.state.is_live() && machine.instance.private_ip.as_deref() == Some(addr);
        let was_launched = self.mapping.nodes.contains_key(name) || self.machines.values().any(is_there);
        let Some(node) = self.nodes.get_mut(name) else { return };
        node.fall();
        node.clear(&["POWERING_UP", "POWER_DOWN"]);
        node.put("POWERED_DOWN");
        if self.ways.new_slurm {
            node.clear(&["NOT_RESPONDING"]);
            node.instance_id = None;
        }
        node.reason = Some("ResumeTimeout reached".to_owned());
        if self.ways.resume_fail_runs {
            if was_launched {
                self.boot_failures.push((name.to_owned(), self.now));
            }
            self.release(name);
            self.update(name, Order::PowerDown, None);
            self.update(name, Order::ResetAddress, None);
        }
    }

    /// A launch begins: claimed now, done before the next pass.
    pub(super) fn claim(&mut self, name: &str, launch: &str) {
        let older = self.mapping.nodes.get(name).cloned();
        match older {
            Some(entry) if self.live.contains_key(&entry.launch) => return,
            Some(entry) => {
                if let Some(id) = entry.instance_id {
                    self.condemn(&id, Some(name));
                }
            }
            None => {}
        }
        self.entry(name, None, launch, self.now);
        self.live.entry(launch.to_owned()).or_default().push(name.to_owned());
    }

    /// Launches at work come to their end: the nodes they still hold get instances, or fail.
    pub(super) fn end_launches(&mut self) {
        for (launch, nodes) in std::mem::take(&mut self.live) {
            for name in nodes {
                if self.mapping.nodes.get(&name).is_none_or(|entry| entry.launch != launch) {
                    continue;
                }
                if !self.has_capacity {
                    self.mapping.nodes.remove(&name);
                    self.update(&name, Order::Down, Some("(Code:InsufficientInstanceCapacity)no room"));
                    continue;
                }
                let at = self.now;
                let instance = self.machine(InstanceState::Pending, &launch, at);
                self.entry(&name, Some(&instance), &launch, at);
                let Some(node) = self.nodes.get_mut(&name) else { continue };
                node.addr = instance.private_ip.unwrap_or_default();
                if self.ways.new_slurm {
                    node.instance_id = Some(instance.id);
                }
            }
        }
    }

    /// A job is given to the node, if Slurm would.
    pub(in super::super) fn start_job(&mut self, name: &str, ends: Option<Duration>) {
        let works = self.partitions.get(&self.nodes[name].queue) != Some(&PartitionState::Inactive);
        let now = self.now;
        let Some(node) = self.nodes.get_mut(name) else { return };
        let may = |node: &Node| {
            node.base == "IDLE"
                && !["DRAIN", "FAIL", "POWER_DOWN", "POWERING_DOWN", "COMPLETING"].iter().any(|flag| node.has(flag))
        };
        if works && may(node) {
            "ALLOCATED".clone_into(&mut node.base);
            node.job_ends = ends.map(|ends| now + ends);
        }
    }
}

impl Node {
    /// Its slurmd does not answer a ping.
    fn is_silent(&mut self) {
        self.silent += 1;
        self.put("NOT_RESPONDING");
        if self.silent >= SILENT && !self.is_down() {
            self.fall();
            self.reason.get_or_insert_with(|| "Not responding".to_owned());
        }
    }
}
