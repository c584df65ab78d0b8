//! Is this compute node to go off? What computemgtd has seen goes in, keep running or shut down, with the reason, comes out. No clock, no
//! I/O: moments are times since the daemon's start, on its own monotonic clock, so that neither the head node's clock nor a time zone
//! nor a change of summer time plays a part.
//!
//! The heartbeat's age is the time since its content was last seen to change. A clustermgtd that is dead is no reason to go off; what
//! else must hold is that nobody wants the node: Slurm has it down or in power saving, or slurmctld has not answered for the whole time
//! either, and no job runs here (the package shuts down then even with a job, aws-facts D.9 #20).

use std::fmt;
use std::time::Duration;

use crate::model::node::{Base, State};

/// Time since the daemon's start.
pub(crate) type Moment = Duration;

/// The configuration, as far as it plays a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rules {
    /// `false`: there is no heartbeat to go by.
    pub(crate) heartbeat: bool,
    /// A heartbeat that has not changed for longer is stale, and slurmctld must have been silent for as long.
    pub(crate) timeout: Duration,
    /// From one look to the next.
    pub(crate) loop_time: Duration,
    /// Nothing is ever shut down.
    pub(crate) disabled: bool,
}

/// What came of asking slurmctld about this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    State(State),
    /// It answered, and does not know the node: unknown, or off and hidden (22.05 without `PrivateData=cloud`).
    NotShown,
    /// It did not answer.
    Silence,
    /// It answered something that says nothing about this node.
    Unclear,
}

/// Do jobs run on this node?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Jobs {
    None,
    Some,
    /// Cannot be told; counts as if one ran.
    Unknown,
}

/// What is to be done, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Keep(Why),
    ShutDown(Reason),
}

/// Why the node stays on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Why {
    NoHeartbeat,
    Fresh,
    Disabled,
    /// Slurm counts on it.
    Wanted(State),
    /// It is being rebooted, and will be wanted.
    Rebooting(State),
    /// slurmctld has been silent, or has not known the node, for too short a time.
    NotLongEnough(Lost),
    JobRuns(Lost),
    Unclear,
}

/// How slurmctld is of no help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    Silent,
    NotShown,
}

/// Why the node goes off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reason {
    /// Age of the heartbeat.
    pub(crate) age: Duration,
    pub(crate) cause: Cause,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Slurm has it so.
    State(State),
    /// For so long, and no job runs here.
    Lost(Lost, Duration),
}

/// What has been seen so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Watch {
    /// The heartbeat's last content.
    content: Option<Vec<u8>>,
    changed: Moment,
    answer: Option<Answer>,
    /// Since when slurmctld has been silent or has not known the node, without an answer of another kind in between.
    lost_since: Option<Moment>,
}

impl Watch {
    /// At the daemon's start the heartbeat counts as just changed.
    pub(crate) fn new(now: Moment) -> Self {
        Self { content: None, changed: now, answer: None, lost_since: None }
    }

    /// The heartbeat was read. The first content says nothing: it may be old.
    pub(crate) fn saw(&mut self, content: &[u8], now: Moment) {
        if self.content.as_deref() == Some(content) {
            return;
        }
        if self.content.is_some() {
            self.changed = now;
            self.answer = None;
            self.lost_since = None;
        }
        self.content = Some(content.to_owned());
    }

    /// How long the heartbeat has not changed.
    pub(crate) fn age(&self, now: Moment) -> Duration {
        now.saturating_sub(self.changed)
    }

    /// Is slurmctld to be asked? Not while clustermgtd lives: thousands of nodes do this. Before the heartbeat is stale all the same, so
    /// that it is known by then since when slurmctld has been silent.
    pub(crate) fn wants_answer(&self, now: Moment, rules: &Rules) -> bool {
        rules.heartbeat && !rules.disabled && self.age(now) > rules.timeout.min(MISSED * rules.loop_time)
    }

    /// slurmctld was asked.
    pub(crate) fn heard(&mut self, answer: Answer, now: Moment) {
        self.lost_since = match answer {
            Answer::Silence | Answer::NotShown => self.lost_since.or(Some(now)),
            Answer::State(_) | Answer::Unclear => None,
        };
        self.answer = Some(answer);
    }

    /// The decision, after everything has been seen and heard.
    pub(crate) fn decide(&self, jobs: Jobs, now: Moment, rules: &Rules) -> Verdict {
        if !rules.heartbeat {
            return Verdict::Keep(Why::NoHeartbeat);
        }
        let age = self.age(now);
        if age <= rules.timeout {
            return Verdict::Keep(Why::Fresh);
        }
        if rules.disabled {
            return Verdict::Keep(Why::Disabled);
        }
        let lost = match &self.answer {
            Some(Answer::State(state)) => return by_state(state, age),
            Some(Answer::Silence) => Lost::Silent,
            Some(Answer::NotShown) => Lost::NotShown,
            Some(Answer::Unclear) | None => return Verdict::Keep(Why::Unclear),
        };
        let since = self.lost_since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        if since < rules.timeout {
            return Verdict::Keep(Why::NotLongEnough(lost));
        }
        match jobs {
            Jobs::None => Verdict::ShutDown(Reason { age, cause: Cause::Lost(lost, since) }),
            Jobs::Some | Jobs::Unknown => Verdict::Keep(Why::JobRuns(lost)),
        }
    }
}

/// Loops without a change of the heartbeat after which slurmctld is asked: clustermgtd beats at least once in one.
const MISSED: u32 = 2;

/// Predicates ask for the flags they need: a flag that this version does not know changes nothing (aws-facts D.9 #19).
fn by_state(state: &State, age: Duration) -> Verdict {
    if state.has("REBOOT_ISSUED") || state.has("REBOOT_REQUESTED") {
        return Verdict::Keep(Why::Rebooting(state.clone()));
    }
    let off = state.is_down() || state.is_powered_down() || state.is_powering_down();
    // Of these nothing is known.
    let known = !matches!(state.base, Base::Future | Base::Unknown | Base::Error | Base::Other(_));
    match off && known {
        true => Verdict::ShutDown(Reason { age, cause: Cause::State(state.clone()) }),
        false => Verdict::Keep(Why::Wanted(state.clone())),
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHeartbeat => f.write_str("no heartbeat is configured, so this node never shuts itself down"),
            Self::Fresh => f.write_str("the heartbeat changes"),
            Self::Disabled => f.write_str("the heartbeat is stale; shutting down is switched off"),
            Self::Wanted(state) => write!(f, "the heartbeat is stale; slurmctld has this node as {state}, so it stays on"),
            Self::Rebooting(state) => write!(f, "the heartbeat is stale; this node is being rebooted ({state})"),
            Self::NotLongEnough(lost) => write!(f, "the heartbeat is stale and {lost}, but not for long enough yet"),
            Self::JobRuns(lost) => write!(f, "the heartbeat is stale and {lost}, but a job runs here"),
            Self::Unclear => f.write_str("the heartbeat is stale; slurmctld says nothing of use about this node, so it stays on"),
        }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Silent => "slurmctld does not answer",
            Self::NotShown => "slurmctld does not show this node",
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the heartbeat has not changed for {} s and ", self.age.as_secs())?;
        match &self.cause {
            Cause::State(state) => write!(f, "slurmctld has this node as {state}"),
            Cause::Lost(lost, since) => write!(f, "{lost} since {} s ago, and no job runs here", since.as_secs()),
        }
    }
}

#[cfg(test)]
mod tests {
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
            assert_eq!(decide(Jobs::Unknown, 100_000), Verdict::Keep(Why::JobRuns(lost)));
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
}
