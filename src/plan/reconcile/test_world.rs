//! What becomes of a [`World`] when a decision is carried out and Slurm and EC2 go on: Slurm 23.11 and later with
//! `idle_on_node_suspend` (slurm-facts D.3, D.4, E), slurm_suspend as SuspendProgram, an EC2 with room for everything. No failures: those
//! are for the tests to put in.

use super::test_support::{LOOP, World};
use super::{Action, Order, What};
use crate::model::cluster::PartitionState;
use crate::model::instance::InstanceState;
use crate::model::node::State;

impl World {
    /// Pass after pass, each carried out, until one has nothing to do; returns how many had. More than `most` is a test's failure.
    pub(crate) fn settle(&mut self, most: usize) -> usize {
        // What slurmctld and EC2 still have underway may be nobody's business for some passes.
        const QUIET: usize = 4;
        let (mut acting, mut quiet) = (0, 0);
        while quiet < QUIET {
            let decision = self.pass();
            if decision.actions.is_empty() {
                quiet += 1;
            } else {
                (acting, quiet) = (acting + 1, 0);
                assert!(acting <= most, "still something to do after {most} passes: {:#?}", decision.actions);
            }
            self.perform(&decision.actions);
            self.go_on();
        }
        acting
    }

    /// What the actions do at once.
    pub(crate) fn perform(&mut self, actions: &[Action]) {
        for action in actions {
            match &action.what {
                What::Node { node, order, reason } => self.update(node, *order, reason.as_deref()),
                What::Terminate { instance, node } => {
                    self.end_instance(instance);
                    if let Some(node) = node {
                        self.mapping_mut().nodes.remove(node);
                    }
                }
                What::Forget { node } => drop(self.mapping_mut().nodes.remove(node)),
                What::Launch { node } => self.launch(node),
                What::Inactivate { partition } => drop(self.partition(partition, PartitionState::Inactive)),
                What::Fleet { to, .. } => self.snapshot.fleet = *to,
                What::Console { .. } | What::Reservation(_) => {}
            }
        }
    }

    /// What Slurm does in the [`LOOP`] between two passes: one step of each node's way off.
    pub(crate) fn go_on(&mut self) {
        let names: Vec<String> = self.snapshot.nodes.keys().cloned().collect();
        for name in names {
            let state = self.slurm(&name).state.clone();
            let has_job = state.to_string().starts_with("MIXED") || state.to_string().starts_with("ALLOCATED");
            if state.is_powering_down() {
                let slurm = self.slurm(&name);
                slurm.instance_id = None;
                slurm.state = State::parse("IDLE+CLOUD+POWERED_DOWN");
                self.update(&name, Order::ResetAddress, None);
            } else if state.power_down_requested() && !has_job {
                self.suspend(&name);
            }
        }
    }

    /// SuspendProgram was called for the node, and it did its work.
    fn suspend(&mut self, name: &str) {
        self.slurm(name).state = State::parse("IDLE+CLOUD+POWERING_DOWN");
        let entry = self.mapping_mut().nodes.remove(name);
        let id = entry.and_then(|entry| entry.instance_id).or_else(|| self.slurm(name).instance_id.clone());
        if let Some(id) = id {
            self.end_instance(&id);
        }
    }

    fn end_instance(&mut self, id: &str) {
        if let Some(instance) = self.snapshot.instances.get_mut(id) {
            instance.state = InstanceState::Terminated;
            instance.private_ip = None;
        }
    }

    /// slurm_resume has launched and told Slurm, the instance has booted and slurmd has registered.
    fn launch(&mut self, name: &str) {
        let number = self.snapshot.instances.len();
        self.back(name, &format!("i-new{number}"), InstanceState::Running, 0);
        let at = self.snapshot.now.secs();
        let slurm = self.slurm(name);
        (slurm.boot_time, slurm.slurmd_start_time, slurm.last_busy) = (Some(at), Some(at), Some(at));
        slurm.state = State::parse("IDLE+CLOUD");
    }

    fn update(&mut self, name: &str, order: Order, reason: Option<&str>) {
        let slurm = self.slurm(name);
        if let Some(reason) = reason {
            slurm.reason = Some(reason.to_owned());
        }
        let text = slurm.state.to_string();
        let (base, flags) = text.split_once('+').unwrap_or((&text, ""));
        let without = |dropped: &[&str]| -> String {
            flags.split('+').filter(|flag| !flag.is_empty() && !dropped.contains(flag)).map(|flag| format!("+{flag}")).collect()
        };
        let text = match order {
            Order::Down => format!("DOWN{}", without(&["COMPLETING"])),
            Order::Drain => format!("{base}{}+DRAIN", without(&["DRAIN"])),
            Order::PowerDown => format!("{base}{}+POWER_DOWN", without(&["POWER_DOWN"])),
            Order::PowerDownForce if base == "DOWN" => format!("DOWN{}+POWER_DOWN", without(&["POWER_DOWN"])),
            Order::PowerDownForce => format!("IDLE{}+POWER_DOWN", without(&["POWER_DOWN", "COMPLETING"])),
            Order::Resume => format!("IDLE{}", without(&["DRAIN", "POWER_DOWN"])),
            Order::ResetAddress => {
                slurm.addr.clone_from(&slurm.name);
                slurm.hostname.clone_from(&slurm.name);
                return;
            }
        };
        slurm.state = State::parse(&text);
    }
}

#[test]
fn the_way_off_of_this_model_is_slurms() {
    let mut world = World::new();
    world.up("q1-dy-c1-1", "ALLOCATED+CLOUD", "i-1");
    let mut shown = vec![];
    world.update("q1-dy-c1-1", Order::Down, Some("r"));
    world.update("q1-dy-c1-1", Order::PowerDown, None);
    for _ in 0..3 {
        shown.push(world.slurm("q1-dy-c1-1").state.to_string());
        world.go_on();
    }
    assert_eq!(shown, ["DOWN+CLOUD+POWER_DOWN", "IDLE+CLOUD+POWERING_DOWN", "IDLE+CLOUD+POWERED_DOWN"]);
    assert_eq!(world.snapshot.instances["i-1"].state, InstanceState::Terminated);
    assert!(world.snapshot.mapping.nodes.is_empty() && world.slurm("q1-dy-c1-1").addr == "q1-dy-c1-1");
    assert_eq!(LOOP.as_secs(), 60);
}
