//! What follows from the state of a block, and what from what is remembered.

use super::*;
use crate::model::cluster::CapacityBlock;
use crate::plan::reconcile::test_support::{NOW, World, lines, notes};

const CREATE: &str = "reserve pcluster-cr-1";
const UPDATE: &str = "update-reservation pcluster-cr-1";
const DELETE: &str = "delete-reservation pcluster-cr-1";

/// Two groups in one block and one in none, all nodes off; the block's are q1-dy-p5-1, q1-dy-p5-2, q2-dy-p5-1.
fn world() -> World {
    let mut world = World::new();
    world.nodes("q1-dy-p5-", 2, "IDLE+CLOUD+POWERED_DOWN").node("q2-dy-p5-1", "IDLE+CLOUD+POWERED_DOWN");
    world.node("q2-dy-c5-1", "IDLE+CLOUD+POWERED_DOWN");
    world.policy.groups[0].block = Some("cr-1".to_owned());
    world.policy.groups[1].block = Some("cr-1".to_owned());
    world
}

fn told(states: &[(&str, &str)]) -> Option<BTreeMap<String, CapacityBlock>> {
    let block =
        |(id, state): &(&str, &str)| ((*id).to_owned(), CapacityBlock { id: (*id).to_owned(), state: (*state).to_owned() });
    Some(states.iter().map(block).collect())
}

fn reservation(name: &str, nodes: &[&str]) -> Reservation {
    Reservation { name: name.to_owned(), nodes: nodes.iter().map(|node| (*node).to_owned()).collect() }
}

const NODES: [&str; 3] = ["q1-dy-p5-1", "q1-dy-p5-2", "q2-dy-p5-1"];

/// B101.
#[test]
fn a_reservation_follows_the_state_of_its_block() {
    for (state, reserved, expected) in [
        ("scheduled", None, vec![CREATE]),
        ("payment-pending", None, vec![CREATE]),
        ("expired", None, vec![CREATE]),
        ("scheduled", Some(&NODES[..]), vec![]),
        ("scheduled", Some(&["q2-dy-p5-1", "q1-dy-p5-1", "q1-dy-p5-2"]), vec![]),
        ("scheduled", Some(&NODES[..2]), vec![UPDATE]),
        ("active", None, vec![]),
        ("active", Some(&NODES[..]), vec![DELETE]),
    ] {
        let mut world = world();
        world.snapshot.blocks = told(&[("cr-1", state)]);
        shown(&mut world).extend(reserved.map(|nodes| reservation("pcluster-cr-1", nodes)));
        let decision = world.decide();
        assert_eq!(lines(&decision.actions), expected, "{state} {reserved:?}");
        for action in &decision.actions {
            if let What::Reservation(ReservationOrder::Create { nodes, .. } | ReservationOrder::Update { nodes, .. }) =
                &action.what
            {
                assert_eq!(nodes, &NODES, "all nodes of the block and no others");
            }
        }
        world.memory = decision.memory;
        let draft = Draft::new(&world.snapshot, &world.memory, &world.policy);
        assert_eq!([is_waiting(&draft, 0), is_waiting(&draft, 1)], [state != "active"; 2]);
        assert!(!is_waiting(&draft, 2), "no block");
    }
}

#[test]
fn an_update_that_failed_is_made_again_without_asking_ec2_again() {
    for (state, reserved, expected) in
        [("scheduled", None, CREATE), ("scheduled", Some(&NODES[..2]), UPDATE), ("active", Some(&NODES[..]), DELETE)]
    {
        let mut world = world();
        world.snapshot.blocks = told(&[("cr-1", state)]);
        shown(&mut world).extend(reserved.map(|nodes| reservation("pcluster-cr-1", nodes)));
        assert_eq!(world.pass_lines(), [expected]);
        world.snapshot.blocks = None;
        assert_eq!(world.pass_lines(), [expected]);
        shown(&mut world).clear();
        if state != "active" {
            shown(&mut world).push(reservation("pcluster-cr-1", &NODES));
        }
        assert_eq!(world.pass_lines(), [""; 0], "it has worked");
        assert_eq!(world.pass_lines(), [""; 0]);
    }
}

fn shown(world: &mut World) -> &mut Vec<Reservation> {
    world.snapshot.reservations.get_or_insert_default()
}

#[test]
fn ec2_is_asked_every_ten_minutes_and_not_only_every_eleven() {
    let mut world = world();
    let due = |world: &World| are_due(&world.policy, &world.memory, world.snapshot.now);
    assert!(due(&world), "never asked");
    world.snapshot.blocks = told(&[("cr-1", "active")]);
    world.pass();
    world.snapshot.blocks = None;
    for _ in 0..8 {
        world.pass();
        assert!(!due(&world));
    }
    world.pass();
    assert_eq!(world.snapshot.now, NOW + Duration::from_mins(10));
    assert!(due(&world));
    world.pass();
    assert!(due(&world), "it was not answered");
    world.policy.upkeep.manage_blocks = false;
    assert!(!due(&world), "not wanted");
    world.policy.upkeep.manage_blocks = true;
    world.policy.groups.iter_mut().for_each(|group| group.block = None);
    assert!(!due(&world), "no blocks");
}

#[test]
fn one_bad_id_hides_no_other_block() {
    let mut world = world();
    world.policy.groups[2].block = Some("cr-2".to_owned());
    world.snapshot.blocks = told(&[("cr-1", "scheduled")]);
    shown(&mut world).push(reservation("pcluster-cr-2", &["q2-dy-c5-1"]));
    let decision = world.pass();
    assert_eq!(lines(&decision.actions), [CREATE], "what is there for the unknown one stays");
    assert!(notes(&decision).contains(&"capacity block cr-2 is in the configuration, but EC2 does not know it"));
    let draft = Draft::new(&world.snapshot, &world.memory, &world.policy);
    assert!(is_waiting(&draft, 0) && !is_waiting(&draft, 2));
    assert!(notes(&world.pass()).is_empty(), "said once");
}

#[test]
fn a_known_block_that_ec2_does_not_show_once_stays_as_it_was() {
    let mut world = world();
    world.snapshot.blocks = told(&[("cr-1", "scheduled")]);
    world.pass();
    world.snapshot.blocks = told(&[]);
    assert_eq!(world.pass_lines(), [CREATE]);
}

#[test]
fn reservations_of_blocks_that_are_no_longer_configured_go() {
    let mut world = world();
    let names = ["pcluster-cr-1", "pcluster-cr-9", "pcluster-maintenance", "cr-9", "maintenance"];
    world.snapshot.reservations = Some(names.map(|name| reservation(name, &NODES)).to_vec());
    world.snapshot.blocks = told(&[("cr-1", "scheduled")]);
    assert_eq!(world.pass_lines(), ["delete-reservation pcluster-cr-9"]);
    // The last block leaves the configuration: its reservation goes, until it is gone.
    world.policy.groups.iter_mut().for_each(|group| group.block = None);
    world.snapshot.blocks = None;
    shown(&mut world).retain(|it| it.name != "pcluster-cr-9");
    assert_eq!(world.pass_lines(), [DELETE]);
    assert_eq!(world.pass_lines(), [DELETE]);
    shown(&mut world).retain(|it| it.name != "pcluster-cr-1");
    assert_eq!(world.pass_lines(), [""; 0]);
    // Never had blocks, as far as anybody remembers: such reservations are somebody else's.
    shown(&mut world).push(reservation("pcluster-cr-9", &NODES));
    assert_eq!(world.pass_lines(), [""; 0]);
}

/// Slurm does not tell them: what is remembered stays, and the rest of the pass goes on.
#[test]
fn reservations_that_are_not_known_are_neither_made_nor_forgotten() {
    let mut world = world();
    assert!(need_reservations(&world.policy, &world.memory));
    world.snapshot.blocks = told(&[("cr-1", "scheduled")]);
    assert_eq!(world.pass_lines(), [CREATE]);
    let remembered = world.memory.blocks_waiting.clone();
    world.snapshot.reservations = None;
    assert_eq!(world.pass_lines(), [""; 0]);
    world.policy.groups.iter_mut().for_each(|group| group.block = None);
    assert_eq!(world.pass_lines(), [""; 0]);
    assert_eq!(world.memory.blocks_waiting, remembered);
    assert!(need_reservations(&world.policy, &world.memory), "one may be left");
    world.memory.blocks_waiting.clear();
    assert!(!need_reservations(&world.policy, &world.memory));
}

#[test]
fn nothing_is_done_where_blocks_are_not_to_be_managed() {
    let mut world = world();
    world.snapshot.blocks = told(&[("cr-1", "scheduled")]);
    world.pass();
    world.policy.upkeep.manage_blocks = false;
    world.snapshot.reservations = Some(vec![reservation("pcluster-cr-9", &NODES)]);
    let decision = world.pass();
    assert!(decision.actions.is_empty());
    let draft = Draft::new(&world.snapshot, &world.memory, &world.policy);
    assert!(!is_waiting(&draft, 0));
}
