//! docs/configuration.md and the code say the same.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use super::file::read;
use super::reader::SECTION;
use super::source::{Place, load};
use super::tests::good;
use crate::model::policy::{OnExisting, Strategy};
use crate::model::recipe::{Api, Capacity};
use crate::store::atomic;

const PAGE: &str = include_str!("../../docs/configuration.md");

/// The TOML files of the page: the smallest, a full one, a ParallelCluster head node's, a compute node's.
pub(super) fn examples() -> Vec<&'static str> {
    PAGE.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

#[test]
fn the_examples_of_the_page_are_accepted() {
    let examples = examples();
    assert_eq!(examples.len(), 4);
    good(examples[0]);
    let full = good(examples[1]);
    assert_eq!(full.hostlist_limit, 200_000);
    assert_eq!(full.aws.no_proxy, [".example.com", "10.0.0.0/8"]);
    let (mpi, spot) = (&full.groups[0], &full.groups[1]);
    assert_eq!(
        (mpi.launch.strategy, mpi.launch.on_existing, mpi.launch.node_tags),
        (Strategy::AllOrNothing, OnExisting::Reboot, true)
    );
    assert_eq!(mpi.recipe.launch_template.version, "7");
    assert_eq!(mpi.recipe.tags.get("cost center").map(String::as_str), Some("4711"));
    assert_eq!(spot.launch.batch_size, 500, "from [launch]");
    assert_eq!((spot.recipe.api, spot.recipe.capacity, spot.recipe.max_price), (Api::CreateFleet, Capacity::Spot, Some(0.35)));
    assert_eq!(spot.recipe.launch_template.id.as_deref(), Some("lt-0123456789abcdef0"));
    assert_eq!(full.group_of("burst-50").unwrap().name, "spot");
    assert_eq!(full.group_of("mpi-001").unwrap().name, "mpi");
}

/// (section, key) → default, from the tables of the page.
fn documented() -> BTreeMap<(String, String), String> {
    let mut keys = BTreeMap::new();
    let mut section = None;
    for line in PAGE.lines() {
        if line.starts_with('#') {
            let name = line.split('`').nth(1).filter(|name| name.starts_with('['));
            section = name.map(|name| name.trim_matches(['[', ']']).to_owned());
        }
        let Some(row) = line.strip_prefix("| `") else { continue };
        let section = section.clone().unwrap_or_else(|| panic!("a table of keys under no section: {line}"));
        let key = row.split('`').next().unwrap().to_owned();
        let default = line.split(" | ").nth(2).unwrap().trim();
        let default = if default.starts_with("as ") { default.to_owned() } else { default.trim_matches('`').to_owned() };
        assert!(keys.insert((section, key), default).is_none(), "twice: {line}");
    }
    keys
}

#[test]
fn page_and_code_name_the_same_keys_and_defaults() {
    let (_, mistakes, asked) = read(Path::new("x.toml"), examples()[1]);
    assert_eq!(mistakes, []);
    let code: BTreeMap<(String, String), String> = asked
        .into_iter()
        .filter(|(_, default)| default != SECTION)
        .map(|((section, key), default)| ((section.to_owned(), key.to_owned()), default))
        .collect();
    let page = documented();
    for (key, default) in &code {
        assert_eq!(page.get(key), Some(default), "docs/configuration.md on {key:?}");
    }
    for key in page.keys() {
        assert!(code.contains_key(key), "docs/configuration.md has {key:?}, the code has not");
    }
    assert!(code.len() > 50, "{code:?}");
}

#[test]
fn the_full_example_has_every_key() {
    let (_, _, asked) = read(Path::new("x.toml"), examples()[1]);
    // What is for ParallelCluster alone is in the example after it.
    let text = format!("{}{}", examples()[1], examples()[2]);
    for (section, key) in asked.keys() {
        assert!(
            text.contains(&format!("{key} ")) || text.contains(&format!("[{key}]")) || text.contains(&format!("{key}]]")),
            "[{section}] {key} is missing in the full example"
        );
    }
}

/// Nothing is launched from a compute node.
#[test]
fn a_compute_nodes_own_file_needs_no_group_and_no_other_program_takes_it() {
    let text = examples()[3];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("slurm-ec2.toml");
    let load = |program: &str, text: &str| {
        atomic::replace(&path, text.as_bytes(), 0o644).unwrap();
        let place = Place {
            path: path.clone(),
            slurm_bin_dir: None,
            ca_bundle: None,
            home: None,
            pki_dir: None,
            sudo: None,
            plugin_dir: dir.path().to_owned(),
            is_copy: false,
        };
        load(program, &place).map_err(|error| error.to_string())
    };
    let settings = load("computemgtd", text).unwrap();
    assert!(settings.groups.is_empty() && settings.computemgtd.heartbeat.is_some());
    for program in ["slurm_resume", "slurm_suspend", "slurm_resume_fail", "clustermgtd", "clusterstatusmgtd", "slurm-ec2"] {
        let error = load(program, text).unwrap_err();
        assert!(error.contains(":1:1: group is missing"), "{program}: {error}");
    }
    // What is there is read, and everything else must be right.
    for (bad, said) in [
        ("[[group]]\nname = \"c5\"\nlaunch_template = \"hpc-c5\"\n", "nodes is missing in [[group]]"),
        ("[group]\nname = \"c5\"\n", "group must be an array of tables"),
        ("hartbeat = \"/h\"\n", "unknown key \"hartbeat\" in [computemgtd]"),
    ] {
        let error = load("computemgtd", &format!("{text}{bad}")).unwrap_err();
        assert!(error.contains(said), "{bad}: {error}");
    }
    assert!(load("computemgtd", &text.replace("cluster =", "# ")).unwrap_err().contains("cluster is missing"));
}
