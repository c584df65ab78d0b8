//! May a job that Slurm has just requeued start at once? The job, the nodes and which groups rest in; yes, not yet, or no with its
//! reason out.
//!
//! Slurm makes a requeued batch job wait for the lifetime of a credential and a second (121 s by default) before it looks at it
//! again. That helps nobody when other nodes would take the job. It does when none would: the job would go to the next node of
//! the group that has just failed. So the wait is lifted only for as many jobs as there are free nodes that are not in back-off;
//! and only so often for one job, since Slurm alone chooses its nodes and may take those of a resting group again.

use std::collections::BTreeSet;

/// What a job asks for, and where it stands.
#[derive(Debug, Clone, Default)]
pub(crate) struct Waiting {
    /// `PENDING`, …
    pub(crate) state: String,
    pub(crate) reason: String,
    pub(crate) restarts: u32,
    /// Seconds since 1970.
    pub(crate) submitted: Option<u64>,
    pub(crate) eligible: Option<u64>,
    pub(crate) partitions: Vec<String>,
    pub(crate) node_count: u32,
    pub(crate) required: BTreeSet<String>,
    pub(crate) excluded: BTreeSet<String>,
    pub(crate) features: Option<String>,
    pub(crate) reservation: Option<String>,
    pub(crate) heterogeneous: bool,
}

/// A node that a job might go to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Candidate {
    pub(crate) name: String,
    pub(crate) partitions: Vec<String>,
    pub(crate) features: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// These free nodes could take it.
    Lift(Vec<String>),
    /// Slurm has not requeued it yet; ask again in a moment.
    NotYet,
    Leave(String),
}

/// Seconds from a requeue to its begin time: the default lifetime of a credential (120 s), a second, and some for slow clocks. A
/// begin time beyond that is not the requeue's.
const LONGEST_WAIT: u64 = 125;

/// Restarts after which Slurm's own wait is left: whatever fails that often fails for long.
const MOST_RESTARTS: u32 = 5;

/// `begun` is when this run began (seconds since 1970); `free` are the nodes that Slurm could give a job now or once they are
/// powered up, without those of resting groups and those that an earlier job of this run was promised.
pub(crate) fn judge(job: &Waiting, begun: u64, partitions_up: &BTreeSet<String>, free: &[Candidate]) -> Verdict {
    let leave = |why: String| Verdict::Leave(why);
    if job.heterogeneous {
        return leave("a heterogeneous job starts only as a whole".to_owned());
    }
    match job.state.as_str() {
        "PENDING" => {}
        "CONFIGURING" | "RUNNING" | "COMPLETING" | "REQUEUED" | "SUSPENDED" | "STOPPED" | "SIGNALING" => return Verdict::NotYet,
        ended => return leave(format!("it is {ended}")),
    }
    // Two seconds for the two clocks' rounding.
    let requeued = job.submitted.filter(|at| *at + 2 >= begun && job.restarts > 0);
    let (Some(requeued), Some(eligible)) = (requeued, job.eligible) else {
        return leave("it waits for another reason than this run's failure".to_owned());
    };
    if !matches!(job.reason.as_str(), "None" | "BeginTime") {
        return leave(format!("it waits for {}", job.reason));
    }
    if eligible <= requeued || eligible - requeued > LONGEST_WAIT {
        return leave("its begin time is not that of the requeue".to_owned());
    }
    if job.restarts > MOST_RESTARTS {
        return leave(format!("it was restarted {} times already", job.restarts));
    }
    if let Some(reservation) = &job.reservation {
        return leave(format!("it runs in the reservation {reservation} alone"));
    }
    let Some(features) = Constraint::parse(job.features.as_deref()) else {
        return leave(format!("its constraint {} is not understood here", job.features.as_deref().unwrap_or_default()));
    };
    let fits = |node: &&Candidate| !job.excluded.contains(&node.name) && features.holds(&node.features);
    // A job starts in one partition, on required nodes first.
    let best = job.partitions.iter().filter(|name| partitions_up.contains(*name)).find_map(|partition| {
        let (required, others): (Vec<_>, Vec<_>) = free
            .iter()
            .filter(fits)
            .filter(|node| node.partitions.contains(partition))
            .map(|node| node.name.clone())
            .partition(|name| job.required.contains(name));
        let wanted = usize::try_from(job.node_count.max(1)).unwrap_or(usize::MAX);
        if required.len() < job.required.len() || required.len() + others.len() < wanted {
            return None;
        }
        let missing = wanted.saturating_sub(required.len());
        Some(required.into_iter().chain(others.into_iter().take(missing)).collect::<Vec<_>>())
    });
    match best {
        Some(nodes) => Verdict::Lift(nodes),
        None => leave("too few free nodes would take it that are not in back-off".to_owned()),
    }
}

/// Names of features with `&` (or `,`) and `|` between them, which Slurm goes through from left to right. Counts, brackets and
/// parentheses choose nodes together and are not judged here.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Constraint {
    /// Each with whether it is joined to what stands before by "or".
    terms: Vec<(bool, String)>,
}

impl Constraint {
    fn parse(text: Option<&str>) -> Option<Self> {
        let Some(text) = text else { return Some(Self { terms: Vec::new() }) };
        if text.contains(['[', ']', '(', ')', '*', '{', '}', '!']) || text.ends_with(['&', ',', '|']) {
            return None;
        }
        let (mut terms, mut or) = (Vec::new(), false);
        for part in text.split_inclusive(['&', ',', '|']) {
            let name = part.trim_end_matches(['&', ',', '|']);
            if name.is_empty() {
                return None;
            }
            terms.push((or, name.to_owned()));
            or = part.ends_with('|');
        }
        Some(Self { terms })
    }

    fn holds(&self, features: &[String]) -> bool {
        self.terms.iter().fold(true, |so_far, (or, name)| {
            let has = features.contains(name);
            if *or { so_far || has } else { so_far && has }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGUN: u64 = 1000;

    fn job() -> Waiting {
        Waiting {
            state: "PENDING".into(),
            reason: "BeginTime".into(),
            restarts: 1,
            submitted: Some(1001),
            eligible: Some(1122),
            partitions: vec!["full".into(), "free".into()],
            node_count: 2,
            ..Waiting::default()
        }
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn nodes() -> Vec<Candidate> {
        let node = |name: &str, partitions: &[&str], features: &[&str]| Candidate {
            name: name.into(),
            partitions: partitions.iter().map(|name| (*name).to_owned()).collect(),
            features: features.iter().map(|name| (*name).to_owned()).collect(),
        };
        vec![
            node("a-1", &["free"], &["spot", "intel"]),
            node("a-2", &["free", "full"], &["spot"]),
            node("a-3", &["free"], &["intel"]),
            node("b-1", &["other"], &["spot", "intel"]),
        ]
    }

    fn verdict(job: &Waiting) -> Verdict {
        judge(job, BEGUN, &names(&["full", "free", "other"]), &nodes())
    }

    #[track_caller]
    fn lifted(change: impl Fn(&mut Waiting), expected: &[&str]) {
        let mut job = job();
        change(&mut job);
        assert_eq!(verdict(&job), Verdict::Lift(expected.iter().map(|name| (*name).to_owned()).collect()), "{job:?}");
    }

    #[track_caller]
    fn left(change: impl Fn(&mut Waiting), why: &str) {
        let mut job = job();
        change(&mut job);
        match verdict(&job) {
            Verdict::Leave(text) => assert!(text.contains(why), "{text}"),
            other => panic!("{other:?} for {job:?}"),
        }
    }

    #[test]
    fn b85_goes_where_enough_nodes_of_one_partition_are_free() {
        lifted(|_| {}, &["a-1", "a-2"]);
        lifted(|job| job.node_count = 3, &["a-1", "a-2", "a-3"]);
        // The partition that stands first is the one Slurm tries first.
        lifted(|job| job.node_count = 1, &["a-2"]);
        left(|job| job.node_count = 4, "too few free nodes");
        left(|job| job.partitions = vec!["full".into()], "too few free nodes");
        left(|job| job.partitions = vec!["unknown".into()], "too few free nodes");
    }

    #[test]
    fn a_partition_that_starts_nothing_does_not_count() {
        let judged = judge(&job(), BEGUN, &names(&["full", "other"]), &nodes());
        assert!(matches!(judged, Verdict::Leave(_)), "{judged:?}");
    }

    #[test]
    fn nodes_that_the_job_names() {
        lifted(|job| job.required = names(&["a-3"]), &["a-3", "a-1"]);
        left(|job| job.required = names(&["a-9"]), "too few");
        lifted(|job| job.excluded = names(&["a-1"]), &["a-2", "a-3"]);
        left(|job| job.excluded = names(&["a-1", "a-2"]), "too few");
    }

    #[test]
    fn constraints() {
        let with = |text: &'static str| move |job: &mut Waiting| job.features = Some(text.to_owned());
        lifted(with("spot"), &["a-1", "a-2"]);
        lifted(with("spot|intel"), &["a-1", "a-2"]);
        left(with("spot&intel"), "too few");
        left(with("spot,intel"), "too few");
        left(with("gpu"), "too few");
        // From left to right: (gpu and spot) or intel; (gpu or spot) and intel.
        lifted(with("gpu&spot|intel"), &["a-1", "a-3"]);
        left(with("gpu|spot&intel"), "too few");
        for complicated in ["[spot*1&intel*1]", "spot*2", "(spot|intel)&spot", "spot&", "[spot|intel]"] {
            left(with(complicated), "not understood");
        }
    }

    #[test]
    fn b85_only_the_wait_that_this_runs_failure_brought() {
        lifted(|job| job.reason = "None".into(), &["a-1", "a-2"]);
        lifted(|job| job.submitted = Some(998), &["a-1", "a-2"]);
        left(|job| job.submitted = Some(997), "another reason than this run's failure");
        left(|job| job.restarts = 0, "another reason than this run's failure");
        left(|job| job.submitted = None, "another reason");
        left(|job| job.eligible = None, "another reason");
        // A begin time that its owner has set since.
        left(|job| job.eligible = Some(1127), "not that of the requeue");
        left(|job| job.eligible = Some(1001), "not that of the requeue");
        left(|job| job.reason = "JobHeldUser".into(), "JobHeldUser");
        left(|job| job.reservation = Some("maint".into()), "maint");
        left(|job| job.heterogeneous = true, "heterogeneous");
        lifted(|job| job.restarts = 5, &["a-1", "a-2"]);
        left(|job| job.restarts = 6, "6 times");
    }

    #[test]
    fn slurm_may_need_a_moment_and_some_jobs_never_come_back() {
        for state in ["CONFIGURING", "COMPLETING", "RUNNING"] {
            assert_eq!(verdict(&Waiting { state: state.into(), ..job() }), Verdict::NotYet, "{state}");
        }
        for state in ["NODE_FAIL", "CANCELLED", "FAILED", "COMPLETED", "TIMEOUT"] {
            left(|job| job.state = state.into(), state);
        }
    }
}
