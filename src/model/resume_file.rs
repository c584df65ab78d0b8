//! The file slurmctld hands to ResumeProgram in `SLURM_RESUME_FILE`: which jobs the nodes are for.
//!
//! In: its bytes. Out: the nodes of the call and the jobs, in one form for all Slurm versions, with warnings for what
//! could not be used. It never decides what is launched (argv does that; the file only says for whom), so a record that
//! cannot be read costs that record and nothing else.
//!
//! Keys by version (shown on 22.05.8, 24.11.5 and 26.05.5): 22.05 has `all_nodes` and per job `nodes`; 23.02 on has
//! `all_nodes_resume`, `nodes_resume`, `nodes_alloc` and more. Keys not named here are ignored: each version adds some.

use serde_json::{Map, Value};
use thiserror::Error;

use super::hostlist::{self, HostlistError, Problem};

/// What slurmctld says about one call of ResumeProgram.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct ResumeFile {
    /// The nodes of this call. May hold nodes that no job names (powered up by hand).
    pub(crate) all_nodes: Vec<String>,
    /// In the file's order. Several may name the same node; array tasks and components of a het job stand alone.
    pub(crate) jobs: Vec<Job>,
    /// One sentence for each part that could not be used.
    pub(crate) warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) id: u64,
    /// Nodes to start for it in this call; not those that are up already, nor those a later call will bring.
    pub(crate) nodes: Vec<String>,
    /// The whole allocation; 22.05 does not tell it.
    pub(crate) nodes_alloc: Option<Vec<String>>,
    pub(crate) partition: Option<String>,
    /// The raw expression, such as `dyn&spot` or `[dyn*1&st*1]`.
    pub(crate) features: Option<String>,
    pub(crate) extra: Option<String>,
    pub(crate) reservation: Option<String>,
    /// No other job can come to its nodes while it runs. False where the version does not say (22.05).
    pub(crate) exclusive: bool,
}

/// Why the whole file is of no use.
#[derive(Debug, Error)]
pub(crate) enum ResumeFileError {
    #[error("resume file is empty")]
    Empty,
    #[error("resume file is not JSON")]
    Json(#[from] serde_json::Error),
    #[error("resume file holds {found}; expected an object with {ALL_NODES_KEYS} and \"jobs\"")]
    NotAnObject { found: &'static str },
    #[error("resume file has neither {ALL_NODES_KEYS} nor \"jobs\"; no Slurm version writes it so")]
    NoKnownKey,
    #[error("resume file names no node that can be read: {}", reasons.join("; "))]
    NothingUsable { reasons: Vec<String> },
}

const ALL_NODES_KEYS: &str = "\"all_nodes_resume\" (22.05: \"all_nodes\")";

/// The jobs' lists together may hold this many times the limit of one list: many jobs may name the same nodes, twice
/// each, but a short file must not be able to ask for unbounded memory.
const JOBS_SHARE: usize = 4;

/// Reads a resume file. `limit` is the number of names one host list may have (see [`hostlist::expand`]).
///
/// # Errors
/// Bytes that are no JSON object of a known form, or one in which nothing can be used. The caller warns once and goes
/// on with the host list of argv alone.
pub(crate) fn parse(bytes: &[u8], limit: usize) -> Result<ResumeFile, ResumeFileError> {
    if bytes.trim_ascii().is_empty() {
        return Err(ResumeFileError::Empty);
    }
    let root: Map<String, Value> = match serde_json::from_slice(bytes)? {
        Value::Object(root) => root,
        other => return Err(ResumeFileError::NotAnObject { found: kind(&other) }),
    };
    let all_nodes = first_of(&root, ["all_nodes_resume", "all_nodes"]);
    let jobs = root.get("jobs");
    if all_nodes.is_none() && jobs.is_none() {
        return Err(ResumeFileError::NoKnownKey);
    }

    let mut reader = Reader { limit, left: limit.saturating_mul(JOBS_SHARE), warnings: Vec::new() };
    let jobs = reader.jobs(jobs);
    let all_nodes = match reader.all_nodes(all_nodes) {
        Some(nodes) => nodes,
        None if jobs.is_empty() => return Err(ResumeFileError::NothingUsable { reasons: reader.warnings }),
        None => union_of_jobs(&jobs),
    };
    Ok(ResumeFile { all_nodes, jobs, warnings: reader.warnings })
}

struct Reader {
    /// Names one list may have.
    limit: usize,
    /// Names the jobs still to come may have together.
    left: usize,
    warnings: Vec<String>,
}

impl Reader {
    /// `None`, with a warning, if the key is missing or its list cannot be read.
    fn all_nodes(&mut self, found: Option<(&str, &Value)>) -> Option<Vec<String>> {
        let reason = match found {
            None => format!("{ALL_NODES_KEYS} is missing"),
            Some((_, Value::Null)) => return Some(Vec::new()),
            Some((key, Value::String(text))) => match hostlist::expand(text, self.limit) {
                Ok(expansion) => return Some(expansion.names),
                Err(error) => format!("{key}: {error}"),
            },
            Some((key, other)) => format!("{key} is {}; expected a host list", kind(other)),
        };
        self.warnings.push(format!("{reason}; the nodes of the jobs are taken instead"));
        None
    }

    fn jobs(&mut self, value: Option<&Value>) -> Vec<Job> {
        let records = match value {
            Some(Value::Array(records)) => records,
            // A version without any job might leave it out or write null.
            Some(Value::Null) => return Vec::new(),
            None => {
                self.warnings.push("\"jobs\" is missing; the nodes' jobs are not known".to_owned());
                return Vec::new();
            }
            Some(other) => {
                self.warnings.push(format!("\"jobs\" is {}; expected a list; the nodes' jobs are not known", kind(other)));
                return Vec::new();
            }
        };
        let mut jobs = Vec::with_capacity(records.len());
        for (index, record) in records.iter().enumerate() {
            match self.job(record) {
                Ok(job) => jobs.push(job),
                Err(reason) => {
                    let name = match record.get("job_id").and_then(job_id) {
                        Some(id) => format!("job {id}"),
                        None => format!("jobs[{index}]"),
                    };
                    self.warnings.push(format!("{name}: {reason}; this record is left out"));
                }
            }
        }
        jobs
    }

    /// # Errors
    /// The reason why the record cannot be used.
    fn job(&mut self, record: &Value) -> Result<Job, String> {
        let Value::Object(record) = record else {
            return Err(format!("is {}; expected an object", kind(record)));
        };
        let id = match record.get("job_id") {
            None => return Err("job_id is missing".to_owned()),
            Some(value) => job_id(value).ok_or_else(|| format!("job_id is {value}; expected a whole number"))?,
        };
        let nodes = match first_of(record, ["nodes_resume", "nodes"]) {
            None => return Err("nodes_resume (22.05: nodes) is missing".to_owned()),
            Some((key, value)) => self.nodes(key, value)?,
        };
        let nodes_alloc = match record.get("nodes_alloc") {
            None | Some(Value::Null) => None,
            Some(value) => match self.nodes("nodes_alloc", value) {
                Ok(nodes) => Some(nodes),
                Err(reason) => {
                    self.warnings.push(format!("job {id}: {reason}; its whole allocation is not known"));
                    None
                }
            },
        };
        Ok(Job {
            id,
            nodes,
            nodes_alloc,
            partition: self.text(id, record, "partition"),
            features: self.text(id, record, "features"),
            extra: self.text(id, record, "extra"),
            reservation: self.text(id, record, "reservation"),
            exclusive: is_exclusive(record),
        })
    }

    fn nodes(&mut self, key: &str, value: &Value) -> Result<Vec<String>, String> {
        let text = match value {
            Value::String(text) => text,
            Value::Null => return Ok(Vec::new()),
            other => return Err(format!("{key} is {}; expected a host list", kind(other))),
        };
        let limit = self.limit.min(self.left);
        match hostlist::expand(text, limit) {
            Ok(expansion) => {
                self.left -= expansion.names.len().min(self.left);
                Ok(expansion.names)
            }
            Err(HostlistError { problem: Problem::TooMany { .. }, .. }) if limit < self.limit => Err(format!(
                "{key}: with it the jobs of this file name more than {} nodes in all",
                self.limit.saturating_mul(JOBS_SHARE)
            )),
            Err(error) => Err(format!("{key}: {error}")),
        }
    }

    /// A text that is not empty. Slurm writes null where there is none.
    fn text(&mut self, id: u64, record: &Map<String, Value>, key: &str) -> Option<String> {
        match record.get(key)? {
            Value::String(text) => Some(text.clone()).filter(|text| !text.is_empty()),
            Value::Null => None,
            other => {
                self.warnings.push(format!("job {id}: {key} is {}; expected a text; it is ignored", kind(other)));
                None
            }
        }
    }
}

/// Whether the job has its nodes alone. 26.05 says so in `exclusive` and has changed what `oversubscribe` means: `NO`
/// is there for every job that does not share CPUs. Before, in versions without the key, `NO` meant alone.
fn is_exclusive(record: &Map<String, Value>) -> bool {
    match record.get("exclusive") {
        // USER and MCS let other jobs of the same user or label in; TOPO keeps everybody out of a larger place.
        Some(value) => value.as_str().is_some_and(|value| ["NODE", "TOPO"].iter().any(|alone| value.eq_ignore_ascii_case(alone))),
        None => record.get("oversubscribe").and_then(Value::as_str).is_some_and(|value| value.eq_ignore_ascii_case("NO")),
    }
}

fn job_id(value: &Value) -> Option<u64> {
    value.as_u64()
}

/// The first key that is there, newest name first, with its value.
fn first_of<'a, 'k>(map: &'a Map<String, Value>, keys: [&'k str; 2]) -> Option<(&'k str, &'a Value)> {
    keys.into_iter().find_map(|key| map.get(key).map(|value| (key, value)))
}

fn union_of_jobs(jobs: &[Job]) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    jobs.iter().flat_map(|job| &job.nodes).filter(|node| seen.insert(node.as_str())).cloned().collect()
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> ResumeFile {
        parse(text.as_bytes(), hostlist::DEFAULT_LIMIT).unwrap()
    }

    fn refused(bytes: &[u8]) -> String {
        parse(bytes, hostlist::DEFAULT_LIMIT).unwrap_err().to_string()
    }

    fn sample(name: &str) -> ResumeFile {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/resume-files").join(format!("{name}.json"));
        parse(&std::fs::read(path).unwrap(), hostlist::DEFAULT_LIMIT).unwrap()
    }

    fn names(list: &str) -> Vec<String> {
        hostlist::expand(list, 1000).unwrap().names
    }

    #[test]
    fn every_recorded_file_is_read_whole() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/resume-files");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let bytes = std::fs::read(&path).unwrap();
            let file = parse(&bytes, hostlist::DEFAULT_LIMIT).unwrap();
            let name = path.file_name().unwrap().to_str().unwrap();
            let old = name.starts_with("22.05");
            assert_eq!(file.warnings, Vec::<String>::new(), "{name}");
            assert!(!file.all_nodes.is_empty(), "{name}");
            assert_eq!(file.jobs.is_empty(), name.contains("no-job"), "{name}");
            // The jobs by another way than ours: the raw values.
            let raw: Value = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(file.jobs.len(), raw["jobs"].as_array().unwrap().len(), "{name}");
            for (job, raw) in file.jobs.iter().zip(raw["jobs"].as_array().unwrap()) {
                assert_eq!(raw["job_id"].as_u64(), Some(job.id), "{name}");
                assert!(!job.nodes.is_empty(), "{name}");
                assert!(job.nodes.iter().all(|node| file.all_nodes.contains(node)), "{name}");
                assert_eq!(job.nodes_alloc.is_none(), old, "{name}");
                if let Some(all) = &job.nodes_alloc {
                    assert!(job.nodes.iter().all(|node| all.contains(node)), "{name}");
                }
                assert_eq!(job.partition.as_deref(), raw["partition"].as_str(), "{name}");
                assert_eq!(job.features.as_deref(), raw["features"].as_str(), "{name}");
                assert_eq!(job.extra.as_deref(), raw["extra"].as_str(), "{name}");
                assert_eq!(job.reservation.as_deref(), raw["reservation"].as_str(), "{name}");
            }
            count += 1;
        }
        assert_eq!(count, 59);
    }

    #[test]
    fn one_file_of_each_age_in_full() {
        assert_eq!(
            read(r#"{"all_nodes":"q1-dy-[1-2],q2","jobs":[{"job_id":7,"nodes":"q1-dy-[1-2]"}]}"#),
            ResumeFile {
                all_nodes: names("q1-dy-1,q1-dy-2,q2"),
                jobs: vec![Job {
                    id: 7,
                    nodes: names("q1-dy-1,q1-dy-2"),
                    nodes_alloc: None,
                    partition: None,
                    features: None,
                    extra: None,
                    reservation: None,
                    exclusive: false,
                }],
                warnings: vec![],
            }
        );
        assert_eq!(
            sample("26.05.5-partly-up-1"),
            ResumeFile {
                all_nodes: names("q1-dy-[2-3]"),
                jobs: vec![Job {
                    id: 1,
                    nodes: names("q1-dy-[2-3]"),
                    nodes_alloc: Some(names("q1-dy-[1-3]")),
                    partition: Some("q1".to_owned()),
                    features: None,
                    extra: None,
                    reservation: None,
                    exclusive: true,
                }],
                warnings: vec![],
            }
        );
        assert_eq!(sample("26.05.5-extra-1").jobs[0].extra.as_deref(), Some("arch=x86,zone=b"));
        assert_eq!(sample("24.11.5-reservation-1").jobs[0].reservation.as_deref(), Some("res1"));
        assert_eq!(sample("24.11.5-manual-power-up-no-job-1").jobs, []);
    }

    /// Jobs 1 (partition with OverSubscribe=EXCLUSIVE) and 2 (--exclusive) are alone, 3 (--exclusive=user) and 4
    /// (--oversubscribe) are not, whatever the version calls it. A plain job is not alone either.
    #[test]
    fn exclusive_means_the_same_in_every_version() {
        for version in ["24.11.5", "26.05.5"] {
            let file = sample(&format!("{version}-exclusive-variants-1"));
            let alone: Vec<(u64, bool)> = file.jobs.iter().map(|job| (job.id, job.exclusive)).collect();
            assert_eq!(alone, [(1, true), (2, true), (3, false), (4, false)], "{version}");
            assert!(!sample(&format!("{version}-single-1")).jobs[0].exclusive, "{version}");
        }
        let job = |keys: &str| {
            read(&format!(r#"{{"all_nodes_resume":"n","jobs":[{{"job_id":1,"nodes_resume":"n"{keys}}}]}}"#)).jobs[0].exclusive
        };
        assert!(!job(""));
        assert!(job(r#","oversubscribe":"NO""#));
        assert!(!job(r#","oversubscribe":"NO","exclusive":"NO""#));
        assert!(!job(r#","oversubscribe":"NO","exclusive":"MCS""#));
        assert!(!job(r#","oversubscribe":"NO","exclusive":null"#));
        assert!(job(r#","oversubscribe":"NO","exclusive":"TOPO""#));
    }

    #[test]
    fn unknown_keys_are_ignored_and_newer_names_win() {
        let file = read(
            r#"{"new":{"a":[1]},"all_nodes":"old","all_nodes_resume":"n1",
                "jobs":[{"job_id":1,"nodes":"old","nodes_resume":"n1","later":[{}]}]}"#,
        );
        assert_eq!((file.all_nodes, file.jobs[0].nodes.clone(), file.warnings), (names("n1"), names("n1"), vec![]));
    }

    #[test]
    fn r15_empty_or_broken_file_is_an_error_that_says_so() {
        assert_eq!(refused(b""), "resume file is empty");
        assert_eq!(refused(b" \n"), "resume file is empty");
        for broken in [&b"{"[..], b"not json", b"{\"all_nodes\":\"n1\"", b"{\"all_nodes\":\"n\xff\"}", b"\0", b"{} {}"] {
            assert_eq!(refused(broken), "resume file is not JSON", "{broken:?}");
        }
        // Nesting without end is refused, not followed into the end of the stack.
        assert_eq!(refused("[".repeat(100_000).as_bytes()), "resume file is not JSON");
        assert!(refused(b"[]").starts_with("resume file holds a list; expected an object"));
        assert!(refused(b"{}").contains("neither"));
    }

    #[test]
    fn r15_file_without_a_readable_node_is_an_error_with_the_reasons() {
        let text = refused(br#"{"all_nodes_resume":"n[1-","jobs":[{"job_id":5,"nodes_resume":"n[3-1]"}]}"#);
        assert!(text.contains(r#"job 5: nodes_resume: "n[3-1]": column 3: range 3-1 runs backwards"#), "{text}");
        assert!(text.contains(r#"all_nodes_resume: "n[1-": column 2"#), "{text}");
    }

    #[test]
    fn r15_one_bad_record_does_not_cost_the_others() {
        let file = read(
            r#"{"all_nodes_resume":"n[1-3]","jobs":[
                {"job_id":1,"nodes_resume":"n1"},
                {"job_id":2,"nodes_resume":"n[2-1]"},
                {"nodes_resume":"n2"},
                {"job_id":-4,"nodes_resume":"n2"},
                {"job_id":5},
                {"job_id":6,"nodes_resume":["n2"]},
                17,
                {"job_id":8,"nodes_resume":"n3","nodes_alloc":"n[","partition":3}]}"#,
        );
        assert_eq!(file.all_nodes, names("n[1-3]"));
        assert_eq!(file.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [1, 8]);
        assert_eq!((&file.jobs[1].nodes_alloc, &file.jobs[1].partition), (&None, &None));
        let starts = [
            "job 2: nodes_resume: \"n[2-1]\": column 3",
            "jobs[2]: job_id is missing",
            "jobs[3]: job_id is -4",
            "job 5: nodes_resume (22.05: nodes) is missing",
            "job 6: nodes_resume is a list",
            "jobs[6]: is a number",
            "job 8: nodes_alloc: \"n[\": column 2",
            "job 8: partition is a number",
        ];
        assert_eq!(file.warnings.len(), starts.len(), "{:#?}", file.warnings);
        for (warning, start) in file.warnings.iter().zip(starts) {
            assert!(warning.starts_with(start), "{warning}");
        }
    }

    #[test]
    fn nodes_of_the_jobs_stand_in_for_a_list_of_all_that_cannot_be_read() {
        for all in ["", r#""all_nodes_resume":"n[","#, r#""all_nodes_resume":5,"#, r#""all_nodes_resume":"x[1-2000000]","#] {
            let file = read(&format!(
                r#"{{{all}"jobs":[{{"job_id":1,"nodes_resume":"n[1-2]"}},{{"job_id":2,"nodes_resume":"n[2-3]"}}]}}"#
            ));
            assert_eq!(file.all_nodes, names("n[1-3]"), "{all}");
            assert_eq!(file.warnings.len(), 1, "{all}");
        }
        // And the other way round.
        for jobs in ["", r#","jobs":{}"#] {
            let file = read(&format!(r#"{{"all_nodes_resume":"n1"{jobs}}}"#));
            assert_eq!((file.all_nodes, file.jobs, file.warnings.len()), (names("n1"), vec![], 1));
        }
    }

    #[test]
    fn a_small_file_cannot_ask_for_unbounded_memory() {
        let job = r#"{"job_id":1,"nodes_resume":"n[1-100]","nodes_alloc":"n[1-100]"}"#;
        let file =
            parse(format!(r#"{{"all_nodes_resume":"n[1-100]","jobs":[{}]}}"#, [job; 50].join(",")).as_bytes(), 100).unwrap();
        // 400 names: two each for two jobs.
        assert_eq!(file.jobs.len(), 2);
        assert_eq!(file.warnings.len(), 48);
        assert!(file.warnings[0].contains("more than 400 nodes in all"), "{}", file.warnings[0]);
        // A list over the limit of one list is told as such.
        let file = parse(br#"{"all_nodes_resume":"n1","jobs":[{"job_id":1,"nodes_resume":"n[1-101]"}]}"#, 100).unwrap();
        assert!(file.warnings[0].contains("101 names; expected at most 100"), "{}", file.warnings[0]);
    }

    fn json() -> impl Strategy<Value = Value> {
        let key = prop::sample::select(vec![
            "jobs",
            "all_nodes",
            "all_nodes_resume",
            "job_id",
            "nodes",
            "nodes_resume",
            "nodes_alloc",
            "exclusive",
            "x",
        ]);
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[n0-9,\\[\\]-]{0,9}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::vec((key.clone(), inner), 0..6)
                    .prop_map(|pairs| Value::Object(pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes, 1000);
        }

        #[test]
        fn no_json_makes_it_panic(value in json()) {
            if let Ok(file) = parse(value.to_string().as_bytes(), 1000) {
                prop_assert!(file.all_nodes.len() <= 4000);
            }
        }
    }
}
