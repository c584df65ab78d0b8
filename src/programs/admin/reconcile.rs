//! `slurm-ec2 reconcile --dry-run`: what clustermgtd would do now, and why, one action a line.

use std::path::Path;

use super::super::args::Environment;
use super::super::clustermgtd::{self, Preview};
use super::super::exit::Exit;
use super::super::{begin, startup};
use super::PROGRAM;
use crate::config::source;

/// Asks EC2 and Slurm, and prints. Without `dry_run` it does nothing: that is the daemon's work.
pub(super) fn reconcile(dry_run: bool, given: Option<&Path>, env: &Environment) -> Exit {
    if !dry_run {
        startup::complain(
            PROGRAM,
            "clustermgtd is what reconciles: systemctl start clustermgtd; --dry-run prints what it would do now",
        );
        return Exit::Usage;
    }
    // The daemon's own configuration, where it has one.
    let place = startup::config_place(clustermgtd::PROGRAM, given, env);
    let settings = match source::load(clustermgtd::PROGRAM, &place) {
        Ok(settings) => settings,
        Err(error) => {
            startup::complain(PROGRAM, &error.to_string());
            return Exit::Config;
        }
    };
    let Some(runtime) = begin::runtime() else { return Exit::TempFail };
    let seen = runtime.block_on(clustermgtd::preview(settings, env));
    runtime.shutdown_background();
    match seen {
        Ok(preview) => {
            startup::say(&text(&preview));
            Exit::Done
        }
        Err(error) => {
            startup::complain(PROGRAM, &format!("not everything could be seen, so nothing would be done: {error}"));
            Exit::TempFail
        }
    }
}

fn text(preview: &Preview) -> String {
    let mut lines: Vec<String> = preview.remarks.iter().map(|remark| format!("# {remark}")).collect();
    lines.extend(preview.actions.iter().map(|action| format!("{}  because {}", action.what, action.why)));
    lines.extend(preview.notes.iter().map(|note| format!("# log: {}", note.text)));
    if preview.actions.is_empty() {
        lines.push("nothing to do".to_owned());
    }
    lines.join("\n")
}
