//! Which configuration there is: command line, environment and usual places in, [`Settings`] from TOML or from ParallelCluster's files
//! out. What kind a file is, its text says.

use std::fs;
use std::path::{Path, PathBuf};

use super::file::{self, ConfigError, Need};
use super::parallelcluster;
use super::settings::Settings;

/// Where the package keeps its files.
pub(crate) const PLUGIN_DIR: &str = "/etc/parallelcluster/slurm_plugin";
/// Here ParallelCluster's images have a region's CA bundle, as `<region>/certs/ca-bundle.pem`.
pub(crate) const PKI_DIR: &str = "/etc/pki";

/// The file, and what else ParallelCluster's programs go by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    /// `$SLURM_BINARIES_DIR`
    pub(crate) slurm_bin_dir: Option<PathBuf>,
    /// `$AWS_CA_BUNDLE`
    pub(crate) ca_bundle: Option<PathBuf>,
    /// `$HOME`, whose `.aws/config` may name a CA bundle.
    pub(crate) home: Option<PathBuf>,
    /// [`PKI_DIR`], which has the CA bundles of isolated regions; `None`: not looked into.
    pub(crate) pki_dir: Option<PathBuf>,
    /// Through this program scontrol becomes root; `None` where that is not needed or not there.
    pub(crate) sudo: Option<PathBuf>,
    /// [`PLUGIN_DIR`]
    pub(crate) plugin_dir: PathBuf,
    /// The file lies in a copy of its folder: JSON files that are not where it says are taken from there, with a warning.
    pub(crate) is_copy: bool,
}

/// What names a file, the first that does so first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Named<'p> {
    /// `--config`
    pub(crate) given: Option<&'p Path>,
    /// `$SLURM_EC2_CONFIG`
    pub(crate) ours: Option<&'p Path>,
    /// `$CONFIG_FILE`, the package's
    pub(crate) package: Option<&'p Path>,
}

/// The file of `program`: the one that is named, else the usual TOML file if it exists, else the package's if that exists, else the
/// usual TOML file, whose absence is then reported.
pub(crate) fn choose(program: &str, named: Named<'_>, toml: &Path, plugin_dir: &Path) -> PathBuf {
    if let Some(path) = named.given.or(named.ours).or(named.package) {
        return path.to_owned();
    }
    let package = parallelcluster::usual_file(program, plugin_dir);
    if !toml.exists() && package.exists() { package } else { toml.to_owned() }
}

/// Reads the configuration of `program`. Errors: a file cannot be read, or it holds mistakes.
pub(crate) fn load(program: &str, place: &Place) -> Result<Settings, ConfigError> {
    let text = file::text(&place.path)?;
    if !parallelcluster::is_one(&text) {
        return match parallelcluster::neither(&place.path, &text) {
            Some(mistake) => Err(ConfigError::Mistakes(vec![mistake])),
            None => file::parse_for(&place.path, &text, need(program)).map(|settings| as_there(program, settings)),
        };
    }
    let (settings, mistakes) = parallelcluster::read(program, place, &text);
    if mistakes.is_empty() { Ok(settings) } else { Err(ConfigError::Mistakes(mistakes)) }
}

/// A compute node's own file says nothing of launches.
fn need(program: &str) -> Need {
    if program == parallelcluster::COMPUTEMGTD { Need::Nothing } else { Need::Groups }
}

/// On ParallelCluster's ground the daemons' logs have its names, whatever kind of file says so.
fn as_there(program: &str, mut settings: Settings) -> Settings {
    if settings.parallelcluster.is_some() {
        settings.log.name_of_daemon(program);
    }
    settings
}

/// What files that were refused still say, mistaken values replaced by their defaults: only for finding scontrol and the log when
/// Slurm and the administrator are to hear of the mistakes.
pub(crate) fn as_far_as_it_goes(program: &str, place: &Place) -> Settings {
    let bytes = fs::read(&place.path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    // A file that cannot be read is of the kind that its name says.
    let named_so = place.path.file_name().is_some_and(|name| {
        let name = name.to_string_lossy();
        name.starts_with("parallelcluster_") || name == "clusterstatusmgtd.conf"
    });
    if parallelcluster::is_one(&text) || (bytes.is_empty() && named_so) {
        parallelcluster::read(program, place, &text).0
    } else {
        as_there(program, file::as_far_as_it_goes(&place.path))
    }
}
