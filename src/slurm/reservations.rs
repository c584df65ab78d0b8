//! What Slurm says about reservations: text of `scontrol show reservations` in (the form of many lines, or `-o`), reservations out; and
//! making, changing and removing one. clustermgtd keeps jobs off the nodes of a Capacity Block with them while it is not active.
//!
//! Every answer is whole or an error. The layout is that of Slurm's src/api/reservation_info.c.

use std::time::Instant;

use super::scontrol::{Error, Scontrol};
use crate::model::cluster::Reservation;
use crate::model::hostlist;

/// Slurm has no more nodes than this (its MAX_NODE_COUNT).
const MAX_NODES: usize = 65_536;

/// The text is not what `scontrol show reservations` prints, or not all of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReservationsError {
    #[error("the answer holds no reservation and does not say that there is none")]
    Nothing,
    #[error("the answer is cut short at reservation {name:?}")]
    Truncated { name: String },
    #[error("the record of reservation {name} has no Nodes; the answer is of an unknown form")]
    NoNodes { name: String },
    #[error("the nodes of reservation {name} cannot be read: {source}")]
    Nodes { name: String, source: hostlist::HostlistError },
}

/// The reservations of a whole answer, in Slurm's order.
pub(crate) fn parse(text: &str) -> Result<Vec<Reservation>, ReservationsError> {
    let mut reservations = Vec::new();
    let mut current: Option<Draft<'_>> = None;
    let mut none = false;
    for line in text.split_inclusive('\n') {
        let complete = line.ends_with('\n');
        let line = line.trim_end_matches(['\n', '\r']);
        if let Some(rest) = line.strip_prefix("ReservationName=") {
            finish(&mut reservations, current.take())?;
            let name = rest.split(' ').next().unwrap_or_default();
            // With `-o` the whole record is on this line.
            current = Some(Draft { name, nodes: nodes_in(rest), long: false });
        } else if line.is_empty() {
            finish(&mut reservations, current.take())?;
        } else if let (Some(draft), Some(inner)) = (&mut current, line.strip_prefix("   ")) {
            draft.long = true;
            draft.nodes = draft.nodes.or_else(|| nodes_in(inner));
        } else {
            none |= line.starts_with("No reservations in the system");
        }
        if !complete {
            return Err(truncated(current.as_ref()));
        }
    }
    // The long form ends each record with an empty line.
    if current.as_ref().is_some_and(|draft| draft.long) {
        return Err(truncated(current.as_ref()));
    }
    finish(&mut reservations, current)?;
    if reservations.is_empty() && !none { Err(ReservationsError::Nothing) } else { Ok(reservations) }
}

/// A record as far as it has been read.
struct Draft<'a> {
    name: &'a str,
    nodes: Option<&'a str>,
    /// More than one line of it was seen.
    long: bool,
}

/// The first counts: a comment, which is free text, comes last.
fn nodes_in(line: &str) -> Option<&str> {
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix("Nodes="))
}

fn truncated(draft: Option<&Draft<'_>>) -> ReservationsError {
    ReservationsError::Truncated { name: draft.map_or("", |draft| draft.name).to_owned() }
}

fn finish(reservations: &mut Vec<Reservation>, draft: Option<Draft<'_>>) -> Result<(), ReservationsError> {
    let Some(Draft { name, nodes, .. }) = draft else { return Ok(()) };
    let name = name.to_owned();
    let nodes = match nodes {
        None => return Err(ReservationsError::NoNodes { name }),
        Some("(null)") => Vec::new(),
        Some(list) => match hostlist::expand(list, MAX_NODES) {
            Ok(expansion) => expansion.names,
            Err(source) => return Err(ReservationsError::Nodes { name, source }),
        },
    };
    reservations.push(Reservation { name, nodes });
    Ok(())
}

impl Scontrol {
    /// Every reservation. Repeated while slurmctld does not answer, until `deadline`.
    pub(crate) async fn show_reservations(&self, deadline: Instant) -> Result<Vec<Reservation>, Error> {
        self.ask("scontrol show reservations", &["--all", "--local", "show", "reservations"], deadline, parse).await
    }

    /// Reserves the nodes from now on without an end for `user` (slurm.conf's SlurmUser), so that no job starts there. One that
    /// exists under this name gets these nodes.
    ///
    /// `ignore_jobs`, which the package leaves out: without it slurmctld refuses the whole reservation while a job runs on one of
    /// the nodes, and that job goes on either way.
    pub(crate) async fn create_reservation(
        &self,
        name: &str,
        nodes: &[String],
        user: &str,
        deadline: Instant,
    ) -> Result<(), Error> {
        let command = format!("scontrol create reservation {name}");
        let list = list(nodes, &command)?;
        let named = format!("reservationname={name}");
        let (user, nodes_arg) = (format!("user={user}"), format!("nodes={list}"));
        let args =
            ["create", "reservation", &named, "starttime=now", "duration=infinite", &user, "flags=maint,ignore_jobs", &nodes_arg];
        match self.tell(command, name, &args, deadline).await {
            Err(Error::Refused { stderr, .. }) if stderr.contains("Duplicate reservation name") => {
                self.update_reservation(name, nodes, deadline).await
            }
            result => result,
        }
    }

    /// Gives a reservation that exists these nodes instead of those that it has.
    pub(crate) async fn update_reservation(&self, name: &str, nodes: &[String], deadline: Instant) -> Result<(), Error> {
        let command = format!("scontrol update reservation {name}");
        let list = list(nodes, &command)?;
        self.tell(command, name, &["update", &format!("reservationname={name}"), &format!("nodes={list}")], deadline).await
    }

    /// Removes a reservation; one that is not there is no mistake.
    pub(crate) async fn delete_reservation(&self, name: &str, deadline: Instant) -> Result<(), Error> {
        let command = format!("scontrol delete reservation {name}");
        match self.tell(command, name, &["delete", &format!("reservationname={name}")], deadline).await {
            Err(Error::Refused { stderr, .. }) if stderr.contains("Requested reservation is invalid") => Ok(()),
            result => result,
        }
    }
}

/// The nodes as one host list. Never empty: slurmctld would choose nodes by itself then (seen on 22.05.8).
fn list(nodes: &[String], command: &str) -> Result<String, Error> {
    let list = hostlist::compress_sorted(nodes);
    if list.is_empty() {
        return Err(Error::Refused { command: command.to_owned(), stderr: "a reservation needs nodes".to_owned() });
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const TWO: &str = include_str!("../../tests/data/scontrol/22.05.8/show-reservations-two.txt");
    const TWO_NODES: &str = include_str!("../../tests/data/scontrol/22.05.8/show-reservation-two-nodes.txt");
    const LINE: &str = include_str!("../../tests/data/scontrol/22.05.8/show-reservations-one-oneline.txt");
    const NONE: &str = include_str!("../../tests/data/scontrol/22.05.8/show-reservations-none.txt");

    fn reservation(name: &str, nodes: &[&str]) -> Reservation {
        Reservation { name: name.to_owned(), nodes: nodes.iter().map(|&node| node.to_owned()).collect() }
    }

    #[test]
    fn recorded_from_22_05() {
        assert_eq!(parse(TWO).unwrap(), [reservation("pcluster-cr-0abc", &["q-1"]), reservation("second", &["q-3"])]);
        assert_eq!(parse(TWO_NODES).unwrap(), [reservation("pcluster-cr-0abc", &["q-1", "q-2"])]);
        assert_eq!(parse(LINE).unwrap(), [reservation("pcluster-cr-0abc", &["q-1"])]);
        assert_eq!(parse(NONE).unwrap(), []);
    }

    #[test]
    fn a_reservation_of_cores_a_licence_or_with_a_comment() {
        let text = "ReservationName=r StartTime=1 EndTime=2 Duration=00:00:01\n   Nodes=n-1 NodeCnt=1 Flags=\n     NodeName=n-1 CoreIDs=0\n   \
                    TRES=cpu=1\n   MaxStartDelay=(null)\n   Comment=Nodes=n-9\n\n\
                    ReservationName=l StartTime=1 EndTime=2 Duration=00:00:01\n   Nodes=(null) NodeCnt=0 Flags=\n\n";
        assert_eq!(parse(text).unwrap(), [reservation("r", &["n-1"]), reservation("l", &[])]);
        let error = parse("ReservationName=r StartTime=1 Nodes=n-[1- NodeCnt=1\n").unwrap_err();
        assert!(error.to_string().starts_with("the nodes of reservation r cannot be read: "), "{error}");
    }

    #[test]
    fn m16_no_part_of_an_answer_is_taken_for_one() {
        let ends: Vec<usize> = TWO.match_indices("\n\n").map(|(at, _)| at + 2).collect();
        for cut in 0..TWO.len() {
            assert_eq!(parse(&TWO[..cut]).is_ok(), ends.contains(&cut), "cut at {cut}");
        }
        for cut in 0..LINE.len() {
            assert!(parse(&LINE[..cut]).is_err(), "cut at {cut}");
        }
        assert_eq!(parse(""), Err(ReservationsError::Nothing));
        assert_eq!(parse("ReservationName=r\n"), Err(ReservationsError::NoNodes { name: "r".to_owned() }));
    }
}
