//! Where a ParallelCluster head node has the certificate authorities of its region: in isolated regions (`us-iso…`) they are none that the
//! host itself trusts. The places where the Python package's SDK finds them in; a path, or none for the host's own bundle, out.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::ini;
use crate::config::source::Place;

/// `$AWS_CA_BUNDLE`, else what the default profile of `$HOME/.aws/config` names, else `<pki>/<region>/certs/ca-bundle.pem` if it is
/// there. What is wrong with the profile's is only warned of.
pub(super) fn find(place: &Place, region: &str, warnings: &mut Vec<String>) -> Option<PathBuf> {
    if let Some(bundle) = &place.ca_bundle {
        return Some(bundle.clone());
    }
    if let Some(home) = &place.home {
        let path = home.join(".aws/config");
        match of_profile(&path) {
            Ok(Some(bundle)) => return Some(bundle),
            Ok(None) => {}
            Err(why) => warnings.push(format!("ca_bundle of {} is not used: {why}", path.display())),
        }
    }
    let usual = place.pki_dir.as_ref().filter(|_| !region.is_empty())?.join(region).join("certs/ca-bundle.pem");
    usual.exists().then_some(usual)
}

/// `ca_bundle` of the default profile.
fn of_profile(path: &Path) -> Result<Option<PathBuf>, String> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    // What is wrong elsewhere in it is not ours to judge.
    let (ini, _) = ini::parse(&text);
    let found = ["default", "profile default"].into_iter().find_map(|section| ini.get(section, "ca_bundle"));
    match found {
        None => Ok(None),
        Some(Err(problem)) => Err(problem.message),
        Some(Ok(found)) if found.text.is_empty() => Ok(None),
        Some(Ok(found)) if !found.text.starts_with('/') => Err(format!("{:?} is no absolute path", found.text)),
        Some(Ok(found)) => Ok(Some(PathBuf::from(found.text))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use super::*;

    const REGION: &str = "us-iso-east-1";

    fn place(root: &Path) -> Place {
        Place {
            path: root.join("parallelcluster_slurm_resume.conf"),
            slurm_bin_dir: None,
            ca_bundle: None,
            home: Some(root.join("home")),
            pki_dir: Some(root.join("pki")),
            sudo: None,
            plugin_dir: root.to_owned(),
            is_copy: false,
        }
    }

    #[test]
    fn p06_the_first_place_that_names_one_is_taken() {
        let root = tempfile::tempdir().unwrap();
        let mut place = place(root.path());
        let mut warnings = Vec::new();
        let mut found = |place: &Place| find(place, REGION, &mut warnings);
        assert_eq!(found(&place), None);
        let usual = root.path().join("pki").join(REGION).join("certs");
        fs::create_dir_all(&usual).unwrap();
        fs::write(usual.join("ca-bundle.pem"), "").unwrap();
        assert_eq!(found(&place), Some(usual.join("ca-bundle.pem")));
        fs::create_dir_all(root.path().join("home/.aws")).unwrap();
        let config = root.path().join("home/.aws/config");
        for (text, expected) in [
            ("[default]\nregion = us-iso-east-1\nca_bundle = /iso.pem\n[profile x]\nca_bundle = /x.pem\n", "/iso.pem"),
            ("[profile default]\nCA_Bundle=/d.pem\n[default]\n", "/d.pem"),
        ] {
            fs::write(&config, text).unwrap();
            assert_eq!(found(&place), Some(expected.into()), "{text}");
        }
        fs::write(&config, "[profile x]\nca_bundle = /x.pem\n[default]\nca_bundle =\n").unwrap();
        assert_eq!(found(&place), Some(usual.join("ca-bundle.pem")));
        place.ca_bundle = Some("/env.pem".into());
        assert_eq!(found(&place), Some("/env.pem".into()));
        assert_eq!(find(&Place { ca_bundle: None, home: None, pki_dir: None, ..place }, REGION, &mut Vec::new()), None);
        assert_eq!(warnings, Vec::<String>::new());
    }

    #[test]
    fn p06_what_the_profile_says_wrongly_is_warned_of() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("home/.aws/config")).unwrap();
        let mut warnings = Vec::new();
        assert_eq!(find(&place(root.path()), REGION, &mut warnings), None);
        fs::remove_dir(root.path().join("home/.aws/config")).unwrap();
        fs::write(root.path().join("home/.aws/config"), "[default]\nca_bundle = ~/ca.pem\n").unwrap();
        assert_eq!(find(&place(root.path()), REGION, &mut warnings), None);
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings.iter().all(|warning| warning.contains("home/.aws/config is not used: ")), "{warnings:?}");
        assert!(warnings[1].contains("\"~/ca.pem\" is no absolute path"), "{warnings:?}");
    }
}
