//! Has the configuration changed on disk? The files it came from in, yes or no out; and what is read anew when it has.
//!
//! A file that cannot be used leaves the old configuration in force, with one error for each change of the files, however many passes
//! go by. It is tried again in each of them: what it names besides, or a file system, may be there by then, and is not watched yet.

use std::path::{Path, PathBuf};

use super::heartbeat::Rhythm;
use super::passes::Passes;
use super::{PROGRAM, doors};
use crate::config::settings::Settings;
use crate::config::source;
use crate::error::chain;
use crate::programs::begin;
use crate::programs::stamp::Stamp;
use crate::slurm::conf::{self, SlurmConf};
use crate::store::fleet_status::FleetStatusStore;

/// The files behind a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Watch {
    files: Vec<(PathBuf, Stamp)>,
}

impl Watch {
    /// To be made before the files are read: a change in between is then seen as one.
    fn of<'p>(paths: impl IntoIterator<Item = &'p Path>) -> Self {
        let mut files: Vec<(PathBuf, Stamp)> = paths.into_iter().map(|path| (path.to_owned(), Stamp::of(path))).collect();
        files.sort();
        files.dedup();
        Self { files }
    }

    /// The files of settings and slurm.conf.
    pub(super) fn of_all(settings: &Settings, conf_path: &Path, conf: Option<&SlurmConf>) -> Self {
        let included = conf.map(|conf| conf.files.as_slice()).unwrap_or_default();
        let paths = settings.files.iter().chain(included).map(PathBuf::as_path);
        Self::of(paths.chain([settings.path.as_path(), conf_path]))
    }

    fn has_changed(&self) -> bool {
        self.files.iter().any(|(path, then)| Stamp::of(path) != *then)
    }

    /// The same files; of those that `earlier` knows, as they were then.
    fn since(mut self, earlier: &Self) -> Self {
        for (path, stamp) in &mut self.files {
            if let Ok(index) = earlier.files.binary_search_by(|(known, _)| known.cmp(path)) {
                *stamp = earlier.files[index].1;
            }
        }
        self
    }

    /// The same files as they are now.
    fn renewed(&self) -> Self {
        Self::of(self.files.iter().map(|(path, _)| path.as_path()))
    }
}

/// A configuration of which some file changes while it is read is read again at once, so often in all.
const READS: usize = 3;

/// Reads until no file has changed meanwhile: else the next pass would find the change that was read already, and tell of it a second time.
async fn undisturbed<R>(mut read: impl AsyncFnMut() -> (R, Watch)) -> R {
    let mut reads = 1;
    loop {
        let (result, watch) = read().await;
        if reads == READS || !watch.has_changed() {
            return result;
        }
        reads += 1;
    }
}

impl Passes {
    /// Reads the configuration anew if it has changed, or if somebody asked for it.
    pub(super) async fn reload(&mut self, asked: bool) {
        let has_changed = asked || self.watch.has_changed();
        if !has_changed && self.refused.is_none() {
            return;
        }
        match undisturbed(async || self.read_once().await).await {
            Ok(()) => {
                self.refused = None;
                tracing::info!("configuration read again");
            }
            Err(error) => {
                if has_changed || self.refused.as_ref() != Some(&error) {
                    tracing::error!("the old configuration stays in force: {error}");
                }
                self.refused = Some(error);
            }
        }
        self.shared.step();
    }

    /// With the files as they were before.
    async fn read_once(&mut self) -> (Result<(), String>, Watch) {
        let watch = self.watch.renewed();
        let read = self.read_again().await;
        if read.is_err() {
            self.watch = watch;
        }
        (read, self.watch.clone())
    }

    async fn read_again(&mut self) -> Result<(), String> {
        // A file that changes while it is read is then seen as changed.
        let before = self.watch.renewed();
        let settings = source::load(PROGRAM, &self.place).map_err(|error| error.to_string())?;
        if let Some(what) = needs_restart(&self.context.settings, &settings) {
            return Err(format!("{what} needs a restart"));
        }
        let conf_path = self.env.slurm_conf.clone().unwrap_or_else(|| settings.slurm.conf.clone());
        let conf = conf::read(&conf_path).map_err(|error| chain(&error))?;
        let watch = Watch::of_all(&settings, &conf_path, Some(&conf)).since(&before);
        let limits = self.context.limits.clone();
        let rhythm = Rhythm::of(&settings);
        let fleet = FleetStatusStore::open(&settings).await.map_err(|error| chain(&error))?;
        let context = doors::open(settings, &self.env, limits, begin::now()).await?;
        context.settings.warnings.iter().for_each(|warning| tracing::warn!("configuration: {warning}"));
        (self.context, self.fleet, self.conf, self.conf_path, self.watch) = (context, fleet, Some(conf), conf_path, watch);
        self.heart.set(&rhythm);
        Ok(())
    }
}

/// What a running daemon cannot take over: whose instances are whose depends on it.
fn needs_restart(old: &Settings, new: &Settings) -> Option<&'static str> {
    if old.cluster != new.cluster {
        return Some("another cluster");
    }
    if old.state_dir != new.state_dir {
        return Some("another state folder");
    }
    if old.store != new.store {
        return Some("another store");
    }
    // Asked with another identity or elsewhere, EC2 shows other instances or none: they would count as gone.
    if old.region != new.region {
        return Some("another region");
    }
    let whom = |settings: &Settings| {
        let aws = &settings.aws;
        let endpoints = [&aws.endpoint_url, &aws.dynamodb_endpoint_url, &aws.route53_endpoint_url].map(Clone::clone);
        (endpoints, aws.profile.clone(), aws.config_file.clone(), aws.credentials_file.clone())
    };
    (whom(old) != whom(new)).then_some("another AWS endpoint, profile or file of credentials")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;

    fn replace(path: &Path, text: &str) {
        crate::store::atomic::replace(path, text.as_bytes(), 0o644).unwrap();
    }

    #[test]
    fn other_instances_and_another_identity_need_a_restart() {
        let text = "cluster = \"hpc\"\nregion = \"eu-west-1\"\n\
                    [[group]]\nname = \"c5\"\nnodes = \"c5-[1-2]\"\nlaunch_template = { name = \"hpc-c5\", version = \"1\" }\n";
        let old = crate::config::file::parse(Path::new("slurm-ec2.toml"), text).unwrap();
        let after = |change: fn(&mut Settings)| {
            let mut new = old.clone();
            change(&mut new);
            needs_restart(&old, &new)
        };
        assert_eq!(after(|new| new.aws.attempts += 1), None);
        assert_eq!(after(|new| new.region = "eu-west-2".to_owned()), Some("another region"));
        let changes: [fn(&mut Settings); 5] = [
            |new| new.aws.endpoint_url = Some("http://127.0.0.1:1".to_owned()),
            |new| new.aws.dynamodb_endpoint_url = Some("http://127.0.0.1:1".to_owned()),
            |new| new.aws.profile = Some("hpc".to_owned()),
            |new| new.aws.config_file = Some(PathBuf::from("/etc/aws/config")),
            |new| new.aws.credentials_file = Some(PathBuf::from("/etc/aws/credentials")),
        ];
        for change in changes {
            assert_eq!(after(change), Some("another AWS endpoint, profile or file of credentials"));
        }
    }

    #[test]
    fn a_changed_a_new_and_a_removed_file_are_seen_once() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        replace(&one, "1");
        let watch = Watch::of([one.as_path(), two.as_path()]);
        assert!(!watch.has_changed());
        for change in
            [&|| replace(&one, "2") as _, &|| replace(&two, "new"), &|| fs::remove_file(&two).unwrap()] as [&dyn Fn(); 3]
        {
            let watch = watch.renewed();
            change();
            assert!(watch.has_changed());
            assert!(!watch.renewed().has_changed());
            assert!(watch.renewed().since(&watch).has_changed(), "changed while it was read");
        }
    }

    /// B107: a bad file is one error, also when it comes between the look at its time and the reading.
    #[tokio::test]
    async fn a_file_that_changes_while_it_is_read_is_read_again_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slurm.conf");
        replace(&path, "0");
        for (changes, expected) in [(0, ("0", 1)), (1, ("1", 2)), (9, ("3", READS))] {
            let mut reads = 0;
            let text = undisturbed(async || {
                let watch = Watch::of([path.as_path()]);
                if reads < changes {
                    replace(&path, &(reads + 1).to_string());
                }
                reads += 1;
                (fs::read_to_string(&path).unwrap(), watch)
            })
            .await;
            assert_eq!((text.as_str(), reads), expected);
            replace(&path, "0");
        }
    }
}
