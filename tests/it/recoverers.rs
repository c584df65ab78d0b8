//! What a program does while another one finishes what a killed run left, and what EC2 refuses to it.

use std::time::{Duration, Instant};

use slurm_ec2_testkit::ec2::{Behaviour, Capacity, Rule};

use crate::crash::stage::{
    self, Fate, POWERED_DOWN, RUN_INSTANCES, SAME, Stop, age, assert_backed, assert_free, assert_sound, each, join, logs, settle,
    succeed,
};
use crate::site::Site;

const VICTIMS: [&str; 3] = ["c5-1", "c5-2", "c5-3"];

/// Two groups of different types, so that EC2 can lack one and have the other.
const TWO: &str = "[[group]]\nname = \"c5\"\nnodes = \"c5-[1-99]\"\nlaunch_template = { name = \"hpc-c5\", version = \"1\" }\n\
                   instance_types = [\"c5.large\"]\n\
                   [[group]]\nname = \"m5\"\nnodes = \"m5-[1-99]\"\nlaunch_template = { name = \"hpc-m5\", version = \"1\" }\n\
                   instance_types = [\"m5.large\"]\n";

/// What the recoverer waits for when the other call comes.
#[derive(Debug, Clone, Copy)]
enum WaitsFor {
    Ec2,
    Slurm,
}

/// A run is killed with its claims held, a program for other nodes takes its record and waits, and slurmctld (restarted, say) asks for
/// the nodes again: that call launches them, whatever the recoverer makes of its old view.
#[test]
fn b40_a_called_node_is_not_left_to_a_program_that_only_recovers() {
    let killed = [Stop::Before("RunInstances", 1, Fate::Never), Stop::After("RunInstances", 1)];
    let recoverers = ["slurm_suspend", "slurm_resume"];
    let mut cases = Vec::new();
    for stop in killed {
        for recoverer in recoverers {
            cases.extend([WaitsFor::Ec2, WaitsFor::Slurm].map(|waits| (stop, recoverer, waits)));
        }
    }
    each(&cases, |(stop, recoverer, waits)| {
        let site = stage::site(Behaviour::default(), stage::PLAIN, RUN_INSTANCES);
        let armed = stop.arm(&site);
        armed.kill("slurm_resume", &[SAME]);
        armed.let_go();
        let old = site.live();
        let hold = match waits {
            WaitsFor::Ec2 => Stop::After("DescribeInstances", 1),
            WaitsFor::Slurm => Stop::Scontrol("show"),
        };
        let armed = hold.arm(&site);
        let mut recovering = site.spawn(recoverer, &["c5-30"]);
        armed.wait(recoverer, &mut recovering);
        succeed(&site, "slurm_resume", SAME);
        assert_backed(&site, &VICTIMS);
        assert!(site.live().is_superset(&old), "the recoverer answers for them");
        armed.let_go();
        join(&site, vec![recovering]);
        assert_sound(&site);
        assert_backed(&site, &VICTIMS);
        assert!(site.live().is_disjoint(&old), "they boot too early for the second call: {old:?}\n{}", logs(&site));
        settle(&site);
        assert_backed(&site, &VICTIMS);
    });
}

/// As above, and the second call is killed too while the recoverer still waits.
#[test]
fn b40_the_second_call_is_killed_while_the_first_is_recovered() {
    let stops = [Stop::Before("RunInstances", 1, Fate::Never), Stop::After("RunInstances", 1), Stop::BeforeUpdate(1)];
    each(&stops, |stop| {
        let site = stage::site(Behaviour::default(), stage::PLAIN, RUN_INSTANCES);
        let armed = Stop::After("RunInstances", 1).arm(&site);
        armed.kill("slurm_resume", &[SAME]);
        armed.let_go();
        site.ec2.add_rules([Rule::on("DescribeInstances").nth(1).hold("look")]);
        let recovering = site.spawn("slurm_resume", &["c5-30"]);
        wait_held(&site, "look");
        let armed = stop.arm(&site);
        armed.kill("slurm_resume", &[SAME]);
        site.ec2.release("look");
        join(&site, vec![recovering]);
        armed.let_go();
        stage::wait_for_scontrol(&site);
        assert_sound(&site);
        settle(&site);
        assert_backed(&site, &[VICTIMS.as_slice(), &["c5-30"]].concat());
    });
}

/// EC2 answers a repeated request with a refusal. Nothing was launched by it, and by the killed run only if its request is still on
/// its way: that run's record stays for it.
#[test]
fn b13_b40_a_refused_repetition_is_a_plain_failure() {
    each(&[Fate::Never, Fate::Late], |fate| {
        let site = stage::site(Behaviour::default(), stage::PLAIN, TWO);
        let armed = Stop::Before("RunInstances", 1, *fate).arm(&site);
        armed.kill("slurm_resume", &[SAME]);
        if *fate == Fate::Never {
            armed.let_go();
        }
        let dead = site.records();
        site.ec2.adjust(|behaviour| behaviour.capacity = vec![Capacity::limit("c5.large", "*", 0)]);
        let ran = site.run("slurm_resume", &["m5-[1-2]"]);
        assert_eq!(ran.code, Some(1), "{}", logs(&site));
        assert_backed(&site, &["m5-1", "m5-2"]);
        assert_free(&site, &VICTIMS);
        let told = site.updates().join("\n");
        assert!(told.contains("(Code:InsufficientInstanceCapacity)") && told.contains("c5-"), "{told}");
        assert_eq!(site.records(), dead, "its own record is gone, the killed run's stays\n{}", logs(&site));
        site.ec2.adjust(|behaviour| behaviour.capacity = Vec::new());
        site.scontrol("state", POWERED_DOWN);
        if *fate == Fate::Late {
            armed.let_go();
            assert_eq!(site.live().len(), 5, "the killed run's request has arrived");
            assert_sound(&site);
        }
        age(&site);
        for _ in 0..3 {
            succeed(&site, "slurm_suspend", "c5-50");
            assert_sound(&site);
        }
        assert_eq!(site.live().len(), 2, "{}", logs(&site));
        assert!(site.records().is_empty() && site.condemned().is_empty(), "{}", logs(&site));
    });
}

fn wait_held(site: &Site, gate: &str) {
    let begun = Instant::now();
    while !site.ec2.wait_held(gate, Duration::from_millis(20)) {
        assert!(begun.elapsed() < stage::PATIENCE, "{}", logs(site));
    }
}
