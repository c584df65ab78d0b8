//! What Slurm says about partitions: text of `scontrol show partitions` in (the form of many lines, or `-o`), partitions out; and the
//! one change to them that is ever asked for: whether they start jobs.
//!
//! Every answer is whole or an error: a partition that is missing from half an answer would look as if it were not ours. The layout
//! is that of Slurm's src/api/partition_info.c; which keys stand on a line changes, so keys are looked for, not columns.

use std::collections::BTreeSet;
use std::time::Instant;

use super::scontrol::{Error, Scontrol};
use crate::model::cluster::{Partition, PartitionState};

/// The text is not what `scontrol show partitions` prints, or not all of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PartitionsError {
    #[error("the answer holds no partition and does not say that there is none")]
    Nothing,
    #[error("the answer is cut short at partition {name:?}")]
    Truncated { name: String },
    #[error("the record of partition {name} has no State; the answer is of an unknown form")]
    NoState { name: String },
}

/// What a partition may be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartitionChange {
    Up,
    /// No new jobs, none started; what runs goes on.
    Inactive,
}

impl PartitionChange {
    fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Inactive => "inactive",
        }
    }
}

/// The partitions of a whole answer, in Slurm's order.
pub(crate) fn parse(text: &str) -> Result<Vec<Partition>, PartitionsError> {
    let mut partitions = Vec::new();
    let mut current: Option<Draft<'_>> = None;
    let mut none = false;
    for line in text.split_inclusive('\n') {
        let complete = line.ends_with('\n');
        let line = line.trim_end_matches(['\n', '\r']);
        if let Some(rest) = line.strip_prefix("PartitionName=") {
            finish(&mut partitions, current.take())?;
            let mut draft = Draft { name: rest.split(' ').next().unwrap_or_default(), state: None, long: false };
            draft.read(rest);
            current = Some(draft);
        } else if line.is_empty() {
            finish(&mut partitions, current.take())?;
        } else if let (Some(draft), Some(inner)) = (&mut current, line.strip_prefix("   ")) {
            draft.long = true;
            draft.read(inner);
        } else {
            none |= line.starts_with("No partitions in the system");
        }
        if !complete {
            return Err(truncated(current.as_ref()));
        }
    }
    // The long form ends each record with an empty line.
    if current.as_ref().is_some_and(|draft| draft.long) {
        return Err(truncated(current.as_ref()));
    }
    finish(&mut partitions, current)?;
    if partitions.is_empty() && !none { Err(PartitionsError::Nothing) } else { Ok(partitions) }
}

/// A record as far as it has been read.
struct Draft<'a> {
    name: &'a str,
    state: Option<&'a str>,
    /// More than one line of it was seen.
    long: bool,
}

impl<'a> Draft<'a> {
    fn read(&mut self, line: &'a str) {
        if self.state.is_none() {
            self.state = line.split_ascii_whitespace().find_map(|word| word.strip_prefix("State="));
        }
    }
}

fn truncated(draft: Option<&Draft<'_>>) -> PartitionsError {
    PartitionsError::Truncated { name: draft.map_or("", |draft| draft.name).to_owned() }
}

fn finish(partitions: &mut Vec<Partition>, draft: Option<Draft<'_>>) -> Result<(), PartitionsError> {
    let Some(Draft { name, state, .. }) = draft else { return Ok(()) };
    let Some(state) = state else { return Err(PartitionsError::NoState { name: name.to_owned() }) };
    partitions.push(Partition { name: name.to_owned(), state: state_of(state) });
    Ok(())
}

fn state_of(word: &str) -> PartitionState {
    match word {
        "UP" => PartitionState::Up,
        "DOWN" => PartitionState::Down,
        "DRAIN" => PartitionState::Drain,
        "INACTIVE" => PartitionState::Inactive,
        _ => PartitionState::Other,
    }
}

fn up(partitions: Vec<Partition>) -> BTreeSet<String> {
    partitions.into_iter().filter(|partition| partition.state == PartitionState::Up).map(|partition| partition.name).collect()
}

impl Scontrol {
    /// Every partition, hidden ones too. Repeated while slurmctld does not answer, until `deadline`.
    pub(crate) async fn show_partitions(&self, deadline: Instant) -> Result<Vec<Partition>, Error> {
        self.ask("scontrol show partitions", &["--all", "--local", "show", "partitions"], deadline, parse).await
    }

    /// Names of the partitions that start jobs.
    pub(crate) async fn partitions_up(&self, deadline: Instant) -> Result<BTreeSet<String>, Error> {
        Ok(up(self.show_partitions(deadline).await?))
    }

    /// Lets a partition start jobs, or no more. One run, not repeated; doing it twice does no harm.
    pub(crate) async fn set_partition(&self, name: &str, to: PartitionChange, deadline: Instant) -> Result<(), Error> {
        let command = format!("scontrol update partitionname={name} state={}", to.as_str());
        self.tell(command, name, &["update", &format!("partitionname={name}"), &format!("state={}", to.as_str())], deadline).await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const LONG: &str = include_str!("../../tests/data/scontrol/22.05.8/show-partitions-inactive.txt");
    const LINE: &str = include_str!("../../tests/data/scontrol/22.05.8/show-partitions-oneline.txt");

    fn partition(name: &str, state: PartitionState) -> Partition {
        Partition { name: name.to_owned(), state }
    }

    #[test]
    fn both_forms() {
        assert_eq!(parse(LONG).unwrap(), [partition("q", PartitionState::Up), partition("p", PartitionState::Inactive)]);
        assert_eq!(parse(LINE).unwrap(), [partition("q", PartitionState::Up), partition("p", PartitionState::Up)]);
    }

    #[test]
    fn partitions_that_start_jobs() {
        assert_eq!(up(parse(LINE).unwrap()).into_iter().collect::<Vec<_>>(), ["p", "q"]);
        assert_eq!(up(parse(LONG).unwrap()).into_iter().collect::<Vec<_>>(), ["q"]);
    }

    #[test]
    fn states_known_and_new() {
        for (word, state) in [
            ("UP", PartitionState::Up),
            ("DOWN", PartitionState::Down),
            ("DRAIN", PartitionState::Drain),
            ("INACTIVE", PartitionState::Inactive),
            ("ASLEEP", PartitionState::Other),
        ] {
            let text = format!("PartitionName=x\n   PreemptMode=OFF\n   State={word} TotalCPUs=1\n\n");
            assert_eq!(parse(&text).unwrap(), [partition("x", state)]);
        }
    }

    #[test]
    fn m16_no_part_of_an_answer_is_taken_for_one() {
        // Records end at these places; a cut right there cannot be told from a cluster of fewer partitions.
        for text in [LONG, LINE] {
            let mut ends: Vec<usize> = text.match_indices("\n\n").map(|(at, _)| at + 2).collect();
            if ends.is_empty() {
                ends = text.match_indices('\n').map(|(at, _)| at + 1).collect();
            }
            for cut in 0..text.len() {
                assert_eq!(parse(&text[..cut]).is_ok(), ends.contains(&cut), "cut at {cut}");
            }
        }
        assert_eq!(parse(""), Err(PartitionsError::Nothing));
        assert_eq!(parse("slurm_load_partitions: nothing\n"), Err(PartitionsError::Nothing));
        assert_eq!(parse("No partitions in the system\n").unwrap(), []);
        assert_eq!(parse("PartitionName=x\n\n"), Err(PartitionsError::NoState { name: "x".to_owned() }));
    }
}
