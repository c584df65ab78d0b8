//! Calls of one kind each, beside those about nodes: a question about everything of a kind, and one change to one named thing.

use std::fmt::Display;
use std::time::Instant;

use super::scontrol::{Error, FIRST_PAUSE, Scontrol, rest, sort};

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
        loop {
            let error = match self.run(&args, None, self.limit(deadline)).await {
                Ok(ran) if !ran.success => sort(command.to_owned(), &ran),
                Ok(ran) => {
                    let unreadable = |error: E| Error::Unreadable { command: command.to_owned(), why: error.to_string() };
                    return read(&ran.stdout).map_err(unreadable);
                }
                Err(error) => error,
            };
            if !error.is_passing() || !rest(&mut pause, deadline).await {
                return Err(error);
            }
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
    use super::*;

    #[test]
    fn names_of_one_thing() {
        for name in ["q1", "pcluster-cr-0123456789abcdef0", "long.queue_2", "ALL"] {
            assert!(is_one_name(name), "{name}");
        }
        for name in ["", "a b", "a,b", "a=b", "a\nb", "a[1-2]", "\"a\""] {
            assert!(!is_one_name(name), "{name}");
        }
    }
}
