//! The package's own route: a file says what is asked for, the exit status whether it was done.

use slurm_ec2_testkit::ec2::Behaviour;

use super::stage::{Fleet, OFF};
use crate::site::Ran;

fn manager(fleet: &Fleet, option: &str, text: &str) -> Ran {
    fleet.site.write("computefleet-status.json", text);
    fleet.site.run("slurm_fleet_status_manager", &[option, "computefleet-status.json"])
}

#[test]
fn it_stops_and_starts_and_leaves_the_status_to_others() {
    let fleet = Fleet::new(Behaviour::default());
    fleet.up(&[("c5-1", "ALLOCATED+CLOUD"), ("c5-2", "IDLE+CLOUD")]);
    let ran =
        manager(&fleet, "-cf", r#"{"status": "STOP_REQUESTED", "lastStatusUpdatedTime": "2026-03-14 15:09:26.535897+00:00"}"#);
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stderr, fleet.site.log("slurm_fleet_status_manager"));
    fleet.assert_stopped();
    assert!(!fleet.site.path("state/fleet-status.json").exists());
    let ran = manager(&fleet, "--computefleet-status-data", r#"{"status": "START_REQUESTED"}"#);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!((fleet.partition().as_str(), fleet.nodes()[0].1.as_str()), ("UP", OFF));
}

#[test]
fn z04_a_status_that_is_no_request_fails_with_the_allowed_words() {
    let fleet = Fleet::new(Behaviour::default());
    fleet.up(&[("c5-1", "IDLE+CLOUD")]);
    let ran = manager(&fleet, "-cf", r#"{"status": "STOPPED"}"#);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("START_REQUESTED") && ran.stderr.contains("STOP_REQUESTED"), "{}", ran.stderr);
    assert_eq!((fleet.site.live().len(), fleet.partition().as_str()), (1, "UP"));
    assert_eq!(manager(&fleet, "-cf", r#"{"status": "UNKNOWN"}"#).code, Some(0), "nothing was asked for yet");
    assert_eq!(fleet.site.live().len(), 1);
}

#[test]
fn what_was_not_done_is_1() {
    let fleet = Fleet::with(Behaviour::default(), "[fleet]\ntimeout = \"2s\"\n");
    fleet.up(&[("c5-1", "IDLE+CLOUD")]);
    fleet.site.scontrol("fail.update", "1\nslurm_update error: Invalid user id\n");
    let ran = manager(&fleet, "-cf", r#"{"status": "STOP_REQUESTED"}"#);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("not stopped"), "{}", ran.stderr);
}
