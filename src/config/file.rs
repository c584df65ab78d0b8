//! The TOML file as written: a path in, [`Settings`] or all mistakes with line and column out. The keys are in `sections.rs` and `groups.rs`.
//!
//! Never looks at anything but that one file: whether a folder exists or a subnet is real is for `slurm-ec2 check` to find out.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use toml::de::DeTable;

use super::cite::{Mistake, Source};
use super::reader::{Asked, Reader};
use super::sections;
use super::settings::Settings;

/// Where the file is when neither `--config` nor `$SLURM_EC2_CONFIG` names one.
pub(crate) fn default_path() -> &'static str {
    "/etc/slurm-ec2/slurm-ec2.toml"
}

/// Why there are no [`Settings`].
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The cause is part of the text, since this is told on its own to people and to Slurm.
    #[error("cannot read the configuration {}{}: {source}; {advice}", path.display(), facts(*mode, *owner, user))]
    Unreadable {
        path: PathBuf,
        /// Permission bits, if the file can be looked at.
        mode: Option<u32>,
        /// User and group of the file.
        owner: Option<(u32, u32)>,
        /// Who tried: number and, if known, name.
        user: String,
        advice: String,
        #[source]
        source: io::Error,
    },
    /// All of them, in the order of the file.
    #[error("{}", Listed(.0))]
    Mistakes(Vec<Mistake>),
}

/// ` (mode 0600, owner 0:0) as user 64030 (slurm)`
fn facts(mode: Option<u32>, owner: Option<(u32, u32)>, user: &str) -> String {
    match (mode, owner) {
        (Some(mode), Some((uid, gid))) => format!(" (mode {mode:04o}, owner {uid}:{gid}) as user {user}"),
        _ => format!(" as user {user}"),
    }
}

struct Listed<'m>(&'m [Mistake]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, mistake) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{mistake}")?;
        }
        Ok(())
    }
}

/// A file's text. Errors: it cannot be read, or is no UTF-8.
pub(super) fn text(path: &Path) -> Result<String, ConfigError> {
    let bytes = fs::read(path).map_err(|source| unreadable(path, source))?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let text = String::from_utf8_lossy(error.as_bytes());
        let source = Source { path, text: &text };
        ConfigError::Mistakes(vec![source.cite(at..at + 1, "this is not UTF-8", "save the file as UTF-8")])
    })
}

/// What a file that was refused still says, mistaken values replaced by their defaults: only for finding scontrol and the log when
/// Slurm and the administrator are to hear of the mistakes.
pub(crate) fn as_far_as_it_goes(path: &Path) -> Settings {
    let bytes = fs::read(path).unwrap_or_default();
    read(path, &String::from_utf8_lossy(&bytes)).0
}

/// What is known about a file that cannot be read (P01).
pub(super) fn unreadable(path: &Path, source: io::Error) -> ConfigError {
    let meta = fs::metadata(path).ok();
    let advice = match source.kind() {
        io::ErrorKind::NotFound => {
            "write it (docs/configuration.md has a short one), or name another with --config, $SLURM_EC2_CONFIG or $CONFIG_FILE"
                .to_owned()
        }
        io::ErrorKind::PermissionDenied if meta.is_none() => {
            // The deepest folder that can be looked at is the one that cannot be entered.
            let closed = path.ancestors().skip(1).find_map(|folder| Some((folder, fs::metadata(folder).ok()?)));
            match closed {
                Some((folder, meta)) => format!(
                    "the folder {} (mode {:04o}, owner {}:{}) does not let that user in",
                    folder.display(),
                    meta.mode() & 0o7777,
                    meta.uid(),
                    meta.gid()
                ),
                None => "slurmctld's user needs the right to enter every folder above it".to_owned(),
            }
        }
        io::ErrorKind::PermissionDenied => {
            "slurmctld's user must be able to read it: give it that user's group and mode 0640".to_owned()
        }
        io::ErrorKind::IsADirectory => "name the file in it".to_owned(),
        _ => "see that the file system is in order".to_owned(),
    };
    ConfigError::Unreadable {
        path: path.to_owned(),
        mode: meta.as_ref().map(|meta| meta.mode() & 0o7777),
        owner: meta.as_ref().map(|meta| (meta.uid(), meta.gid())),
        user: user(geteuid().as_raw()),
        advice,
        source,
    }
}

/// `64030 (slurm)`. A static glibc has no getpwuid, so /etc/passwd is read here.
fn user(uid: u32) -> String {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    });
    name.map_or_else(|| uid.to_string(), |name| format!("{uid} ({name})"))
}

/// Is this text TOML, whatever its keys are?
pub(super) fn is_toml(text: &str) -> bool {
    DeTable::parse_recoverable(text).1.is_empty()
}

/// Must there be a `[[group]]`?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    Groups,
    /// Of the programs of a compute node, which launch nothing. A group that is there is read all the same.
    Nothing,
}

/// The settings behind `text`; `path` is for the messages.
pub(crate) fn parse(path: &Path, text: &str) -> Result<Settings, ConfigError> {
    parse_for(path, text, Need::Groups)
}

/// As [`parse`], of the file of a program with this need.
pub(super) fn parse_for(path: &Path, text: &str, need: Need) -> Result<Settings, ConfigError> {
    let (settings, mistakes, _) = read_for(path, text, need);
    if mistakes.is_empty() { Ok(settings) } else { Err(ConfigError::Mistakes(mistakes)) }
}

/// Settings (of use only without mistakes), the mistakes, and every key that was looked for.
pub(super) fn read(path: &Path, text: &str) -> (Settings, Vec<Mistake>, Asked) {
    read_for(path, text, Need::Groups)
}

fn read_for(path: &Path, text: &str, need: Need) -> (Settings, Vec<Mistake>, Asked) {
    let source = Source { path, text };
    let (document, errors) = DeTable::parse_recoverable(text);
    let reader = Reader::new(source);
    let settings = sections::settings(&reader, path, document.get_ref(), need);
    let syntax = errors
        .into_iter()
        .map(|error| {
            let span = error.span().unwrap_or(text.len()..text.len());
            let help = if error.message().starts_with("duplicate key") {
                "keep one of them"
            } else {
                "see https://toml.io for the form of the file"
            };
            (span.clone(), source.cite(span, error.message(), help))
        })
        .collect();
    let (mistakes, asked) = reader.finish(syntax);
    (settings, mistakes, asked)
}
