//! The configuration while the daemon runs: read again when the file's content has changed, the last good one kept. The file may lie on
//! NFS and hang; it may be in the middle of being rewritten. Each bad content is told of once.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::config::file::ConfigError;
use crate::config::settings::Settings;
use crate::config::source::{self, Place};
use crate::error::chain;
use crate::programs::args::Environment;
use crate::programs::exit::{Exit, Stopped};
use crate::programs::slow::Slow;
use crate::programs::startup;

/// For the file and those that it names.
const LIMIT: Duration = Duration::from_secs(30);

/// What the file, and each that it names, held when it was last looked at, or why it cannot be read.
type Content = Vec<Result<Vec<u8>, String>>;

#[derive(Debug)]
enum Reading {
    /// As it was.
    Same,
    Good(Content, Box<Settings>),
    Bad(Content, ConfigError),
}

/// The file and what is made of it.
#[derive(Debug)]
pub(super) struct Config {
    program: &'static str,
    place: Arc<Place>,
    reading: Slow<Reading>,
    content: Content,
    settings: Arc<Settings>,
    /// The last reading did not come to an end.
    hangs: bool,
}

/// Where the file is. Without one that is named, looking for it may hang as well: ParallelCluster has it on NFS.
pub(super) async fn place(program: &'static str, given: Option<&Path>, env: &Environment) -> Result<Place, Stopped> {
    let (given, env) = (given.map(Path::to_owned), env.clone());
    let found = Slow::new("config").run(LIMIT, move || startup::config_place(program, given.as_deref(), &env)).await.into_any();
    let error = || "the configuration cannot be looked for: its file system does not answer".to_owned();
    found.ok_or_else(|| Stopped { error: error(), exit: Exit::TempFail })
}

impl Config {
    /// The first reading. Errors: mistakes in the file, which waiting does not mend; a file that cannot be read (yet).
    pub(super) async fn read(program: &'static str, place: Place) -> Result<Self, Stopped> {
        let place = Arc::new(place);
        let mut reading = Slow::new("config");
        let (content, settings) = match reading.run(LIMIT, work(program, &place, &[], None)).await.into_any() {
            Some(Reading::Good(content, settings)) => (content, Arc::new(*settings)),
            Some(Reading::Bad(_, error)) => {
                // A file on NFS may not be there yet, so early in the boot.
                let exit = if matches!(error, ConfigError::Unreadable { .. }) { Exit::TempFail } else { Exit::Config };
                return Err(Stopped { error: chain(&error), exit });
            }
            Some(Reading::Same) | None => {
                let error = format!("the configuration {} cannot be read: its file system does not answer", place.path.display());
                return Err(Stopped { error, exit: Exit::TempFail });
            }
        };
        Ok(Self { program, place, reading, content, settings, hangs: false })
    }

    pub(super) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings)
    }

    /// Looks at the file; true if there are new settings.
    pub(super) async fn refresh(&mut self) -> bool {
        let path = self.place.path.clone();
        let work = work(self.program, &self.place, &self.settings.files, Some(self.content.clone()));
        let read = self.reading.run(LIMIT, work).await.into_any();
        if self.hangs != read.is_none() {
            self.hangs = read.is_none();
            match self.hangs {
                true => {
                    tracing::warn!(path = %path.display(), "the configuration's file system does not answer; the last good one counts")
                }
                false => tracing::info!(path = %path.display(), "the configuration can be read again"),
            }
        }
        match read {
            Some(Reading::Good(content, settings)) => {
                self.content = content;
                self.settings = Arc::new(*settings);
                tracing::info!(path = %path.display(), "the configuration has changed and counts from now on");
                for warning in &self.settings.warnings {
                    tracing::warn!("configuration: {warning}");
                }
                true
            }
            Some(Reading::Bad(content, error)) => {
                self.content = content;
                tracing::error!("the configuration has changed and cannot be used, the last good one counts: {}", chain(&error));
                false
            }
            Some(Reading::Same) | None => false,
        }
    }
}

fn work(
    program: &'static str,
    place: &Arc<Place>,
    others: &[PathBuf],
    last: Option<Content>,
) -> impl FnOnce() -> Reading + Send + 'static {
    let (place, others) = (Arc::clone(place), others.to_vec());
    move || {
        let content = content(&place.path, &others);
        if last.as_ref() == Some(&content) {
            return Reading::Same;
        }
        // Read once more by whoever understands it. Rewritten in between, the next look finds another content.
        match source::load(program, &place) {
            // It may name other files than before.
            Ok(settings) if settings.files != others => {
                Reading::Good(self::content(&place.path, &settings.files), Box::new(settings))
            }
            Ok(settings) => Reading::Good(content, Box::new(settings)),
            Err(error) => Reading::Bad(content, error),
        }
    }
}

fn content(path: &Path, others: &[PathBuf]) -> Content {
    let read = |path: &Path| fs::read(path).map_err(|error| error.to_string());
    std::iter::once(path).chain(others.iter().map(PathBuf::as_path)).map(read).collect()
}
