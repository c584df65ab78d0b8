//! ParallelCluster's files (aws-facts B.2 to B.9): the INI file of a program in, the same [`Settings`] as from TOML or all mistakes out.
//! Its unknown keys and sections are left alone; one section, `[slurm_ec2]`, is our own.
//!
//! `programs.rs` knows which program has which file, `sources.rs` where its sections are, `assemble.rs` makes settings of them;
//! `sections.rs` and `daemons.rs` have the keys by name, `keys.rs` types and mistakes, `ini.rs` the dialect; `json.rs`, `fleet.rs` and
//! `partitions.rs` the JSON files, `logs.rs` and `logging.rs` the log, `bundle.rs` where the CA bundle is, `slips.rs` names that are
//! nearly right. Reads those files and nothing else.

mod assemble;
mod bundle;
#[cfg(test)]
mod daemon_mistake_tests;
#[cfg(test)]
mod daemon_tests;
mod daemons;
mod fleet;
#[cfg(test)]
mod fleet_tests;
mod ini;
mod json;
mod keys;
mod logging;
mod logs;
#[cfg(test)]
mod mistake_tests;
mod partitions;
mod programs;
mod sections;
mod slips;
mod sources;
#[cfg(test)]
mod tests;

use self::keys::File;
use self::programs::{CLUSTERMGTD, FLEET_MANAGER, RESUME, Role, STATUS, SUSPEND};
pub(crate) use self::programs::{COMPUTEMGTD, usual_file};
pub(crate) use self::slips::neither;
use super::cite::Mistake;
use super::settings::Settings;
use super::source::Place;

/// The sections that make a file one of ParallelCluster's.
const SECTIONS: [&str; 6] = [RESUME, SUSPEND, CLUSTERMGTD, STATUS, FLEET_MANAGER, COMPUTEMGTD];
/// Those that our TOML file has too.
const SHARED: [&str; 2] = [CLUSTERMGTD, COMPUTEMGTD];

/// Is this text one of ParallelCluster's files?
///
/// Two of their sections have the names of ours. But our file begins with the cluster's name, and in theirs nothing may stand before the
/// first section.
pub(crate) fn is_one(text: &str) -> bool {
    let lines = || text.lines().map(|line| line.trim_start_matches('\u{feff}').trim_start());
    let section = |line: &str| Some(line.strip_prefix('[')?.split_once(']')?.0.to_owned());
    let mut written = lines().filter(|line| !line.is_empty() && !line.starts_with(['#', ';']));
    let is_toml = written.next().is_some_and(|first| !first.starts_with('[')) || lines().any(|line| line.starts_with("[["));
    lines().filter_map(section).any(|name| SECTIONS.contains(&name.as_str()) && !(is_toml && SHARED.contains(&name.as_str())))
}

/// Settings (of use only without mistakes) and the mistakes of all files.
pub(crate) fn read(program: &str, place: &Place, text: &str) -> (Settings, Vec<Mistake>) {
    let own = File::new(&place.path, text);
    let role = Role::of(program);
    let texts = sources::read(role, place, &own);
    let files = texts.files();
    let (mut settings, of_others) = assemble::settings(program, place, &files.sources(role, &own));
    let mut mistakes = own.finish();
    let (of_companions, warnings) = files.finish();
    mistakes.extend(of_companions);
    mistakes.extend(of_others);
    settings.warnings.extend(warnings);
    (settings, mistakes)
}
