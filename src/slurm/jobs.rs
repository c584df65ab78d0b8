//! What Slurm says about jobs: text of `scontrol show job` in, jobs out, and the one change to a job that is ever asked for: that it
//! may start now.
//!
//! Read line by line in the form of many lines: a job's name, comment and command are free text and may look like fields, but
//! each begins at a fixed place of its record (Slurm's src/api/job_info.c, the same from 22.05 to 26.05 for the keys read here),
//! and the first value of a key counts. Decides nothing; that is `plan/requeue.rs`.

use std::time::Instant;

use super::scontrol::{Error, Scontrol, sort};
use crate::zone::Zone;

/// One job, as far as we use it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SlurmJob {
    pub(crate) id: u64,
    /// The array it belongs to and its number there; `None` for other jobs and for the record of several pending tasks.
    pub(crate) array_task: Option<(u64, u64)>,
    /// Part of an array, alone or as a record of several tasks.
    pub(crate) in_array: bool,
    /// A component of a heterogeneous job.
    pub(crate) heterogeneous: bool,
    /// `PENDING`, `CONFIGURING`, `NODE_FAIL`, …
    pub(crate) state: String,
    /// Why it waits: `None`, `BeginTime`, `JobHeldUser`, …
    pub(crate) reason: String,
    pub(crate) restarts: u32,
    /// Seconds since 1970. A requeue sets it to its own time.
    pub(crate) submitted: Option<u64>,
    /// Seconds since 1970 from which on it may start.
    pub(crate) eligible: Option<u64>,
    pub(crate) partitions: Vec<String>,
    /// The fewest nodes it can start with.
    pub(crate) node_count: Option<u32>,
    /// Host lists, as written.
    pub(crate) required_nodes: Option<String>,
    pub(crate) excluded_nodes: Option<String>,
    /// `--constraint`, as written.
    pub(crate) features: Option<String>,
    pub(crate) reservation: Option<String>,
}

impl SlurmJob {
    /// How `scontrol update jobid=` must name it so that no other job is meant: the last task of an array carries the array's own
    /// id, and that id stands for all its tasks there.
    pub(crate) fn name(&self) -> Option<String> {
        match (self.in_array, self.array_task) {
            (false, _) => Some(self.id.to_string()),
            (true, Some((array, task))) => Some(format!("{array}_{task}")),
            (true, None) => None,
        }
    }
}

/// The jobs of an answer. A record without the fields that every job has is left out: half an answer must not look like a job
/// that waits for nothing. `zone` is that of local times, as scontrol prints them without `SLURM_TIME_FORMAT=%s`.
pub(crate) fn parse(text: &str, zone: Option<&Zone>) -> Vec<SlurmJob> {
    let mut jobs = Vec::new();
    let mut current: Option<SlurmJob> = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("JobId=") {
            jobs.extend(current.take().filter(is_whole));
            current = Some(head(rest));
        } else if let (Some(job), Some(inner)) = (&mut current, line.strip_prefix("   ")) {
            read_line(job, inner, zone);
        }
    }
    jobs.extend(current.filter(is_whole));
    jobs
}

fn is_whole(job: &SlurmJob) -> bool {
    job.id != 0 && !job.state.is_empty() && !job.partitions.is_empty() && job.node_count.is_some()
}

/// `6 ArrayJobId=4 ArrayTaskId=1 JobName=…`: what stands before the name is ours.
fn head(rest: &str) -> SlurmJob {
    let fixed = rest.split(" JobName=").next().unwrap_or_default();
    let mut words = fixed.split_ascii_whitespace();
    let mut job = SlurmJob { id: words.next().and_then(|word| word.parse().ok()).unwrap_or(0), ..SlurmJob::default() };
    let (mut array, mut task) = (None, None);
    for word in words {
        match word.split_once('=') {
            Some(("ArrayJobId", value)) => {
                job.in_array = true;
                array = value.parse().ok();
            }
            Some(("ArrayTaskId", value)) => task = value.parse().ok(),
            Some(("HetJobId" | "HetJobOffset" | "PackJobId", _)) => job.heterogeneous = true,
            _ => {}
        }
    }
    job.array_task = array.zip(task);
    job
}

fn read_line(job: &mut SlurmJob, line: &str, zone: Option<&Zone>) {
    // Only lines whose first key is one of these hold fields of ours; free text has lines of its own.
    const FIRST: [&str; 9] = [
        "JobState=",
        "Requeue=",
        "SubmitTime=",
        "Partition=",
        "ReqNodeList=",
        "NumNodes=",
        "Features=",
        "Reservation=",
        "HetJobId=",
    ];
    if !FIRST.iter().any(|key| line.starts_with(key)) {
        return;
    }
    for (key, value) in line.split_ascii_whitespace().filter_map(|word| word.split_once('=')) {
        let time = || value.parse().ok().or_else(|| zone?.seconds_of(value));
        let text = || Some(value.to_owned()).filter(|value| !value.is_empty() && value != "(null)");
        match key {
            "JobState" if job.state.is_empty() => value.clone_into(&mut job.state),
            "Reason" if job.reason.is_empty() => value.clone_into(&mut job.reason),
            "Restarts" => job.restarts = value.parse().unwrap_or(u32::MAX),
            "SubmitTime" if job.submitted.is_none() => job.submitted = time(),
            "EligibleTime" if job.eligible.is_none() => job.eligible = time(),
            "Partition" if job.partitions.is_empty() => {
                job.partitions = value.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
            }
            // `2`, `2-4`; a `K` or a word never stands there.
            "NumNodes" if job.node_count.is_none() => job.node_count = value.split('-').next().and_then(|low| low.parse().ok()),
            "ReqNodeList" if job.required_nodes.is_none() => job.required_nodes = text(),
            "ExcNodeList" if job.excluded_nodes.is_none() => job.excluded_nodes = text(),
            "Features" if job.features.is_none() => job.features = text(),
            "Reservation" if job.reservation.is_none() => job.reservation = text(),
            "HetJobId" => job.heterogeneous = true,
            _ => {}
        }
    }
}

impl Scontrol {
    /// One job; `None` when slurmctld does not know it (any more). One run, not repeated.
    pub(crate) async fn show_job(&self, id: u64, deadline: Instant) -> Result<Option<SlurmJob>, Error> {
        let args = ["--all", "--local", "show", "job"].map(str::to_owned).into_iter().chain([id.to_string()]).collect::<Vec<_>>();
        let ran = self.run(&args, None, self.limit(deadline)).await?;
        if !ran.success {
            return if ran.stderr.contains("Invalid job id") {
                Ok(None)
            } else {
                Err(sort(format!("scontrol show job {id}"), &ran))
            };
        }
        Ok(parse(&ran.stdout, self.zone()).into_iter().find(|job| job.id == id))
    }

    /// Lifts a job's begin time. `job` is from [`SlurmJob::name`].
    pub(crate) async fn start_now(&self, job: &str, deadline: Instant) -> Result<(), Error> {
        let args = ["update".to_owned(), format!("jobid={job}"), "starttime=now".to_owned()];
        let ran = self.run(&args, None, self.limit(deadline)).await?;
        if ran.success { Ok(()) } else { Err(sort(format!("scontrol update jobid={job} starttime=now"), &ran)) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use super::*;

    const REQUEUED: &str = include_str!("../../tests/data/scontrol/22.05.8/show-job-requeued.txt");
    const ARRAY: &str = include_str!("../../tests/data/scontrol/22.05.8/show-job-array-and-het.txt");

    fn job(text: &str, id: u64) -> SlurmJob {
        parse(text, None).into_iter().find(|job| job.id == id).unwrap()
    }

    #[test]
    fn a_requeued_job_and_one_with_a_begin_time_of_its_own() {
        let jobs = parse(REQUEUED, None);
        assert_eq!(jobs.len(), 5);
        assert_eq!(
            jobs[1],
            SlurmJob {
                id: 2,
                state: "PENDING".into(),
                reason: "BeginTime".into(), // its name ends in Reason=x
                restarts: 1,
                submitted: Some(1_795_979_912),
                eligible: Some(1_795_980_033),
                partitions: vec!["bad".into(), "c5".into()],
                node_count: Some(2),
                ..SlurmJob::default()
            }
        );
        let own = job(REQUEUED, 1);
        assert_eq!((own.restarts, own.node_count, own.eligible), (0, Some(1), Some(1_795_983_511)));
        assert_eq!(job(REQUEUED, 3).features.as_deref(), Some("a|b&c"));
    }

    #[test]
    fn what_a_job_names_and_what_its_comment_says() {
        let job = job(ARRAY, 2);
        assert_eq!(job.required_nodes.as_deref(), Some("bad-3"));
        assert_eq!(job.excluded_nodes.as_deref(), Some("bad-[1-2]"));
        assert_eq!(job.features.as_deref(), Some("a|b"));
        assert_eq!((job.state.as_str(), &job.partitions[..]), ("PENDING", &["bad".to_owned()][..]));
    }

    #[test]
    fn the_last_task_of_an_array_is_not_taken_for_the_array() {
        assert_eq!(job(ARRAY, 1).name().as_deref(), Some("1_2"));
        assert_eq!(job(ARRAY, 5).name().as_deref(), Some("1_1"));
        assert_eq!(job(ARRAY, 2).name().as_deref(), Some("2"));
        let several = job(REQUEUED, 4);
        assert_eq!((several.in_array, several.array_task, several.name()), (true, None, None));
    }

    #[test]
    fn components_of_a_heterogeneous_job() {
        assert!(job(ARRAY, 3).heterogeneous && job(ARRAY, 4).heterogeneous);
        assert!(!job(ARRAY, 2).heterogeneous && !job(ARRAY, 5).heterogeneous);
    }

    #[test]
    fn local_times_of_a_known_zone() {
        let text = REQUEUED.replace("1795979912", "2026-11-29T20:18:32").replace("1795980033", "2026-11-29T20:20:33");
        let zone = Zone::of(Some("CET-1CEST,M3.5.0,M10.5.0/3"));
        let times =
            |zone| parse(&text, zone).into_iter().find(|job| job.id == 2).map(|job| (job.submitted, job.eligible)).unwrap();
        assert_eq!(times(Some(&zone)), (Some(1_795_979_912), Some(1_795_980_033)));
        assert_eq!(times(None), (None, None));
    }

    #[test]
    fn half_an_answer_holds_no_job() {
        let whole = ARRAY.split("\n\n").next().unwrap();
        assert_eq!(parse(whole, None).len(), 1);
        let cut = whole.find("NumNodes").unwrap();
        assert_eq!(parse(&whole[..cut], None), []);
        assert_eq!(parse("", None), []);
    }
}
