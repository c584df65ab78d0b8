//! Calls of one kind each, beside those about nodes: a question about everything of a kind, and one change to one named thing.

use std::fmt::Display;
use std::time::Instant;

use super::scontrol::{Error, FIRST_PAUSE, Scontrol, rest, sort, telling};

impl Scontrol {
    /// Asks and reads the whole answer; `command` names it in errors. Repeated while slurmctld does not answer, until `deadline`.
    pub(super) async fn ask<T, E: Display>(
        &self,
        command: &str,
        args: &[&str],
        deadline: Instant,
        read: impl Fn(&str) -> Result<T, E>,
    ) -> Result<T, Error> {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        let mut pause = FIRST_PAUSE;
        let mut earlier = None;
        loop {
            let limit = self.limit(deadline);
            let error = match self.run(&args, None, limit).await {
                Ok(ran) if !ran.success => sort(command.to_owned(), &ran),
                Ok(ran) => {
                    let unreadable = |error: E| Error::Unreadable { command: command.to_owned(), why: error.to_string() };
                    return read(&ran.stdout).map_err(unreadable);
                }
                Err(error) => error,
            };
            let error = telling(error, earlier, self.is_cut(limit));
            if !error.is_passing() || !rest(&mut pause, deadline).await {
                return Err(error);
            }
            earlier = Some(error);
        }
    }

    /// One change to the thing called `name`, in one run.
    pub(super) async fn tell(&self, command: String, name: &str, args: &[&str], deadline: Instant) -> Result<(), Error> {
        if !is_one_name(name) {
            return Err(Error::Refused { command, stderr: format!("{name:?} is no name of one thing") });
        }
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        let ran = self.run(&args, None, self.limit(deadline)).await?;
        if ran.success { Ok(()) } else { Err(sort(command, &ran)) }
    }
}

/// No list, no further `key=value`, nothing that scontrol would take apart.
fn is_one_name(name: &str) -> bool {
    !name.is_empty()
        && name.chars().all(|c| !c.is_whitespace() && !c.is_control() && !matches!(c, ',' | '=' | '"' | '\'' | '[' | ']'))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    use super::super::partitions::PartitionChange;
    use super::*;
    use crate::model::cluster::PartitionState;

    /// A folder with the stand-in of tests/bin, which its files steer (described at its top).
    struct Bench(tempfile::TempDir);

    impl Bench {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let stand_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bin/scontrol");
            std::os::unix::fs::symlink(stand_in, dir.path().join("scontrol")).unwrap();
            Self(dir)
        }

        fn scontrol(&self) -> Scontrol {
            self.limited(Duration::from_secs(30))
        }

        fn limited(&self, timeout: Duration) -> Scontrol {
            Scontrol::new(self.0.path(), Path::new("/etc/slurm/test.conf"), timeout)
        }

        fn set(&self, name: &str, text: &str) {
            fs::write(self.0.path().join(format!("scontrol.{name}")), text).unwrap();
        }

        /// The calls since the last look.
        fn log(&self) -> Vec<String> {
            let path = self.0.path().join("scontrol.log");
            let text = fs::read_to_string(&path).unwrap_or_default();
            let _ = fs::remove_file(&path);
            text.lines().map(str::to_owned).collect()
        }
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn refused(text: &str) -> String {
        format!("1\n{text}\n")
    }

    #[test]
    fn names_of_one_thing() {
        for name in ["q1", "pcluster-cr-0123456789abcdef0", "long.queue_2", "ALL"] {
            assert!(is_one_name(name), "{name}");
        }
        for name in ["", "a b", "a,b", "a=b", "a\nb", "a[1-2]", "\"a\""] {
            assert!(!is_one_name(name), "{name}");
        }
    }

    #[test]
    fn partitions_are_asked_for_and_told() {
        let bench = Bench::new();
        bench.set("partitions", include_str!("../../tests/data/scontrol/22.05.8/show-partitions-inactive.txt"));
        bench.set("fail.once", &refused("slurm_load_partitions error: Unable to contact slurm controller (connect failure)"));
        let scontrol = bench.scontrol();
        let shown = run(scontrol.show_partitions(soon())).unwrap();
        assert_eq!((shown.len(), shown[1].state), (2, PartitionState::Inactive));
        assert_eq!(bench.log(), ["--all --local show partitions"; 2], "repeated while slurmctld does not answer");
        run(async {
            scontrol.set_partition("q1", PartitionChange::Inactive, soon()).await.unwrap();
            scontrol.set_partition("q1", PartitionChange::Up, soon()).await.unwrap();
            let error = scontrol.set_partition("q1,q2", PartitionChange::Up, soon()).await.unwrap_err();
            assert!(matches!(error, Error::Refused { .. }), "{error}");
        });
        assert_eq!(bench.log(), ["update partitionname=q1 state=inactive", "update partitionname=q1 state=up"]);
        bench.set("fail.update", &refused("slurm_update error: Invalid partition name specified"));
        let error = run(scontrol.set_partition("q9", PartitionChange::Up, soon())).unwrap_err();
        assert!(error.to_string().contains("partitionname=q9 state=up: ") && !error.is_passing(), "{error}");
    }

    #[test]
    fn m16_an_answer_that_is_cut_is_an_error() {
        let bench = Bench::new();
        let whole = include_str!("../../tests/data/scontrol/22.05.8/show-partitions-inactive.txt");
        bench.set("partitions", &whole[..whole.len() / 2]);
        bench.set("reservations", "");
        bench.set("nodes", "\n");
        let scontrol = bench.scontrol();
        run(async {
            for error in [
                scontrol.show_partitions(soon()).await.map(drop).unwrap_err(),
                scontrol.show_reservations(soon()).await.map(drop).unwrap_err(),
                scontrol.show_all_nodes(soon()).await.map(drop).unwrap_err(),
            ] {
                assert!(matches!(error, Error::Unreadable { .. }), "{error}");
            }
        });
    }

    #[test]
    fn reservations_are_made_changed_and_removed() {
        let bench = Bench::new();
        let scontrol = bench.scontrol();
        let nodes: Vec<String> = ["q-st-block-2", "q-st-block-10", "q-st-block-1"].map(str::to_owned).to_vec();
        run(async {
            assert_eq!(scontrol.show_reservations(soon()).await.unwrap(), []);
            scontrol.create_reservation("pcluster-cr-1", &nodes, "slurm", soon()).await.unwrap();
            scontrol.update_reservation("pcluster-cr-1", &nodes[..1], soon()).await.unwrap();
            scontrol.delete_reservation("pcluster-cr-1", soon()).await.unwrap();
            // Without nodes slurmctld would choose some by itself.
            assert!(scontrol.update_reservation("pcluster-cr-1", &[], soon()).await.is_err());
            assert!(scontrol.create_reservation("pcluster-cr-1", &[], "slurm", soon()).await.is_err());
            assert!(scontrol.delete_reservation("pcluster-cr-1 all", soon()).await.is_err());
        });
        assert_eq!(
            bench.log(),
            [
                "--all --local show reservations",
                "create reservation reservationname=pcluster-cr-1 starttime=now duration=infinite user=slurm \
                 flags=maint,ignore_jobs nodes=q-st-block-[1-2,10]",
                "update reservationname=pcluster-cr-1 nodes=q-st-block-2",
                "delete reservationname=pcluster-cr-1",
            ]
        );
    }

    #[test]
    fn a_reservation_that_is_there_gets_the_nodes_and_one_that_is_gone_stays_gone() {
        let bench = Bench::new();
        let scontrol = bench.scontrol();
        let nodes = vec!["q-st-block-2".to_owned()];
        bench.set("fail.create", &refused("Error creating the reservation: Duplicate reservation name"));
        run(scontrol.create_reservation("r", &nodes, "slurm", soon())).unwrap();
        assert_eq!(bench.log()[1..], ["update reservationname=r nodes=q-st-block-2"]);
        bench.set("fail.delete", &refused("delete_reservation reservationname=r: Requested reservation is invalid"));
        run(scontrol.delete_reservation("r", soon())).unwrap();
        for (file, text, passing) in [
            ("fail.create", "Error creating the reservation: Requested nodes are busy", false),
            ("fail.create", "Error creating the reservation: Unable to contact slurm controller (connect failure)", true),
        ] {
            bench.set(file, &refused(text));
            let error = run(scontrol.create_reservation("r", &nodes, "slurm", soon())).unwrap_err();
            assert_eq!(error.is_passing(), passing, "{error}");
            assert!(error.to_string().contains(text), "{error}");
        }
        bench.set("fail.delete", &refused("delete_reservation reservationname=r: Requested reservation is in use"));
        assert!(matches!(run(scontrol.delete_reservation("r", soon())), Err(Error::Refused { .. })));
    }

    #[test]
    fn m27_all_nodes_have_a_time_limit_of_their_own() {
        let bench = Bench::new();
        bench.set("nodes", include_str!("../../tests/data/scontrol/22.05.8/show-nodes-1.txt"));
        bench.set("hold.show", "");
        let scontrol = bench.limited(Duration::from_millis(200));
        let late = Instant::now() + Duration::from_millis(300);
        assert!(matches!(run(scontrol.show_all_nodes(late)), Err(Error::Timeout { .. })));
        // The same slowness, longer than the usual limit: let go when that is over.
        let (hold, held) = (bench.0.path().join("scontrol.hold.show"), bench.0.path().join("scontrol.held.show"));
        // It may have been ended before it came so far.
        let _ = fs::remove_file(&held);
        let letting_go = std::thread::spawn(move || {
            while !held.exists() {
                std::thread::sleep(Duration::from_millis(10));
            }
            std::thread::sleep(Duration::from_millis(400));
            fs::remove_file(hold).unwrap();
        });
        // So it is with more names than a call takes.
        let names: Vec<String> = (0..3000).map(|number| format!("n{number}")).chain(["q2-2".to_owned()]).collect();
        let patient = bench.limited(Duration::from_millis(200)).all_nodes_within(Duration::from_secs(50));
        let shown = run(patient.show_nodes(&names, soon())).unwrap();
        assert_eq!(shown.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["q2-2"]);
        assert_eq!(run(patient.show_all_nodes(soon())).unwrap().len(), 12);
        let all = Some(Duration::from_secs(50));
        let limits =
            [Some(&names[..2000]), Some(&names[..2001]), Some(&names[..1]), None].map(|some| patient.all_nodes_limit(some));
        assert_eq!(limits, [None, all, None, all]);
        assert_eq!(patient.all_nodes_limit(Some(&vec!["n".repeat(300); 400])), all, "more than one argument takes");
        letting_go.join().unwrap();
    }
}
