//! Each rule by a table, and over all that can be seen and heard by a property.

use proptest::prelude::*;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(600);
const LOOP: Duration = Duration::from_secs(60);
const RULES: Rules = Rules { heartbeat: true, timeout: TIMEOUT, loop_time: LOOP, disabled: false };

fn at(secs: u64) -> Moment {
    Duration::from_secs(secs)
}

fn state(text: &str) -> Answer {
    Answer::State(State::parse(text))
}

/// A watch whose heartbeat last changed at its start, and the answer at `now`.
fn heard(answer: Answer, now: Moment) -> Watch {
    let mut watch = Watch::new(at(0));
    watch.heard(answer, now);
    watch
}

fn shuts_down(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::ShutDown(_))
}

#[test]
fn w03_slurms_word_counts_once_the_heartbeat_is_stale() {
    // (state, goes off)
    for (text, off) in [
        ("IDLE+CLOUD+POWERED_DOWN", true),
        ("IDLE+CLOUD+POWERING_DOWN", true),
        ("DOWN+CLOUD", true),
        ("DOWN+CLOUD+DRAIN", true),
        ("DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING", true),
        ("DOWN+CLOUD+NOT_RESPONDING+POWERING_UP", true),
        ("MIXED+CLOUD+POWERED_DOWN", true),
        // Flags that nobody knows yet change nothing.
        ("IDLE+CLOUD+POWERED_DOWN+PLANNED+SOMETHING_NEW", true),
        ("DOWN+CLOUD+SOMETHING_NEW", true),
        ("IDLE+CLOUD", false),
        ("ALLOCATED+CLOUD", false),
        ("MIXED+CLOUD+SOMETHING_NEW", false),
        ("IDLE+CLOUD+DRAIN", false),
        ("IDLE+CLOUD+NOT_RESPONDING", false),
        ("ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP", false),
        // Asked for; jobs go on until then.
        ("ALLOCATED+CLOUD+POWER_DOWN", false),
        ("DOWN+CLOUD+REBOOT_ISSUED", false),
        ("IDLE+CLOUD+POWERING_DOWN+REBOOT_REQUESTED", false),
        ("UNKNOWN+CLOUD+POWERED_DOWN", false),
        ("FUTURE+POWERED_DOWN", false),
        ("NEWBASE+CLOUD+POWERED_DOWN", false),
    ] {
        let watch = heard(state(text), at(601));
        for jobs in [Jobs::None, Jobs::Some, Jobs::Unknown] {
            let verdict = watch.decide(jobs, at(601), &RULES);
            assert_eq!(shuts_down(&verdict), off, "{text}: {verdict:?}");
            assert_eq!(watch.decide(jobs, at(600), &RULES), Verdict::Keep(Why::Fresh), "{text}");
        }
    }
}

#[test]
fn the_reason_names_age_and_state() {
    let watch = heard(state("IDLE+CLOUD+POWERED_DOWN"), at(700));
    let Verdict::ShutDown(reason) = watch.decide(Jobs::None, at(700), &RULES) else { panic!("stays on") };
    assert_eq!(
        reason.to_string(),
        "the heartbeat has not changed for 700 s and slurmctld has this node as IDLE+CLOUD+POWERED_DOWN"
    );
}

#[test]
fn w02_silence_counts_after_its_own_time_and_without_a_job() {
    for (answer, lost) in [(Answer::Silence, Lost::Silent), (Answer::NotShown, Lost::NotShown)] {
        let mut watch = Watch::new(at(0));
        for now in (180..=780).step_by(60) {
            watch.heard(answer.clone(), at(now));
        }
        // Silent since 180.
        let decide = |jobs, now| watch.decide(jobs, at(now), &RULES);
        assert_eq!(decide(Jobs::None, 779), Verdict::Keep(Why::NotLongEnough(lost)));
        let reason = Reason { age: at(780), cause: Cause::Lost(lost, at(600)) };
        assert_eq!(decide(Jobs::None, 780), Verdict::ShutDown(reason));
        // aws-facts D.9 #20: the package ends the job.
        assert_eq!(decide(Jobs::Some, 100_000), Verdict::Keep(Why::JobRuns(lost)));
        let unknown = decide(Jobs::Unknown, 100_000);
        assert_eq!(unknown, Verdict::Keep(Why::JobMayRun(lost)));
        let Verdict::Keep(why) = unknown else { panic!("goes off") };
        assert!(why.to_string().ends_with("but whether a job runs here cannot be seen in /proc"), "{why}");
        // One answer in between and the time begins anew.
        watch.heard(state("IDLE+CLOUD"), at(781));
        assert!(!shuts_down(&watch.decide(Jobs::None, at(781), &RULES)));
        watch.heard(answer, at(840));
        assert_eq!(watch.decide(Jobs::None, at(1439), &RULES), Verdict::Keep(Why::NotLongEnough(lost)));
        assert!(shuts_down(&watch.decide(Jobs::None, at(1440), &RULES)));
    }
}

#[test]
fn a_heartbeat_that_comes_back_ends_everything_that_was_heard() {
    let mut watch = Watch::new(at(0));
    watch.saw(b"1", at(60));
    watch.heard(Answer::Silence, at(200));
    watch.saw(b"2", at(900));
    assert_eq!(watch.decide(Jobs::None, at(900), &RULES), Verdict::Keep(Why::Fresh));
    // Stale again, and nothing was heard since.
    assert_eq!(watch.decide(Jobs::None, at(1501), &RULES), Verdict::Keep(Why::Unclear));
}

#[test]
fn only_a_change_counts_as_a_beat() {
    let mut watch = Watch::new(at(100));
    assert_eq!(watch.age(at(160)), at(60));
    // The first content may be days old.
    watch.saw(b"1", at(400));
    assert_eq!(watch.age(at(400)), at(300));
    watch.saw(b"1", at(460));
    assert_eq!(watch.age(at(460)), at(360));
    // Emptied, then written: the package writes it so.
    watch.saw(b"", at(520));
    watch.saw(b"2", at(521));
    assert_eq!(watch.age(at(521)), at(0));
}

#[test]
fn slurmctld_is_left_alone_while_the_heartbeat_changes() {
    let watch = Watch::new(at(0));
    assert!(!watch.wants_answer(at(120), &RULES));
    assert!(watch.wants_answer(at(121), &RULES));
    // A short time-out comes before two loops.
    assert!(watch.wants_answer(at(11), &Rules { timeout: at(10), ..RULES }));
    assert!(!watch.wants_answer(at(9999), &Rules { disabled: true, ..RULES }));
    assert!(!watch.wants_answer(at(9999), &Rules { heartbeat: false, ..RULES }));
}

#[test]
fn switched_off_or_without_a_heartbeat_nothing_is_shut_down() {
    let watch = heard(state("DOWN+CLOUD"), at(9999));
    let decide = |rules: &Rules| watch.decide(Jobs::None, at(9999), rules);
    assert_eq!(decide(&Rules { disabled: true, ..RULES }), Verdict::Keep(Why::Disabled));
    assert_eq!(decide(&Rules { heartbeat: false, ..RULES }), Verdict::Keep(Why::NoHeartbeat));
    assert!(shuts_down(&decide(&RULES)));
}

#[derive(Debug, Clone)]
enum Seen {
    Beat(u8),
    Heard(Answer),
}

fn seen() -> impl Strategy<Value = Seen> {
    let states = ["IDLE+CLOUD", "DOWN+CLOUD", "IDLE+CLOUD+POWERED_DOWN", "ALLOCATED+CLOUD", "DOWN+CLOUD+REBOOT_ISSUED"];
    prop_oneof![
        any::<u8>().prop_map(Seen::Beat),
        prop::sample::select(states.to_vec()).prop_map(|text| Seen::Heard(state(text))),
        Just(Seen::Heard(Answer::Silence)),
        Just(Seen::Heard(Answer::Silence)),
        Just(Seen::Heard(Answer::NotShown)),
        Just(Seen::Heard(Answer::Unclear)),
    ]
}

proptest! {
    /// Whatever was seen and heard, in whatever order: a heartbeat that changed within the time-out keeps the node on, and so does a
    /// job unless slurmctld itself says that the node is off.
    #[test]
    fn w03_a_fresh_heartbeat_never_shuts_down_nor_silence_a_job(
        story in prop::collection::vec((0u64..400, seen()), 0..30), wait in 0u64..2000,
    ) {
        let mut watch = Watch::new(at(0));
        let (mut now, mut last, mut changed) = (0, None, 0);
        for (pause, seen) in story {
            now += pause;
            match seen {
                Seen::Beat(content) => {
                    watch.saw(&[content], at(now));
                    if last.is_some_and(|last| last != content) {
                        changed = now;
                    }
                    last = Some(content);
                }
                Seen::Heard(answer) => watch.heard(answer, at(now)),
            }
        }
        now += wait;
        for jobs in [Jobs::None, Jobs::Some, Jobs::Unknown] {
            let verdict = watch.decide(jobs, at(now), &RULES);
            if now - changed <= 600 {
                prop_assert_eq!(&verdict, &Verdict::Keep(Why::Fresh));
            }
            if let Verdict::ShutDown(reason) = verdict {
                prop_assert!(reason.age == at(now - changed) && reason.age > TIMEOUT);
                match reason.cause {
                    Cause::State(state) => prop_assert!(state.is_down() || state.is_powered_down()),
                    Cause::Lost(_, since) => prop_assert!(jobs == Jobs::None && since >= TIMEOUT),
                }
            }
        }
    }
}
