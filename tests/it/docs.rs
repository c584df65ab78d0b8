//! The pages say what is there.

mod operations;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use slurm_ec2_testkit::ec2::Behaviour;

use crate::site::Site;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files below `folder` with one of these endings.
fn files(folder: &str, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if endings.iter().any(|ending| path.to_string_lossy().ends_with(ending)) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The page's headings as links name them.
fn headings(page: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(page).unwrap().to_lowercase();
    let titles = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let kept = |c: char| c.is_alphanumeric() || "-_ ".contains(c);
    titles.map(|title| title.chars().filter(|c| kept(*c)).collect::<String>().replace(' ', "-")).collect()
}

#[test]
fn every_link_of_the_pages_leads_somewhere() {
    let mut pages = files("docs", &[".md"]);
    pages.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root().join(name)));
    let mut links = 0;
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        for part in text.split("](").skip(1) {
            let target = part.split(')').next().unwrap();
            if target.contains("://") {
                continue;
            }
            links += 1;
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(file.exists(), "{}: {target} is not there", page.display());
            if !heading.is_empty() {
                assert!(headings(&file).contains(heading), "{}: {target} is no heading", page.display());
            }
        }
    }
    assert!(links > 10, "only {links} links found: does the search still work?");
}

#[test]
fn the_readmes_configuration_is_fine() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let block = readme.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let toml: Vec<&str> = block.lines().map(|line| line.strip_prefix("   ").unwrap_or(line)).collect();
    let site = Site::new(Behaviour::default());
    site.write("slurm-ec2.toml", &toml.join("\n"));
    let mut command = site.command("slurm-ec2", &["check"]);
    let ran = crate::site::finished(command.env("SLURM_CONF", "/nonexistent/slurm.conf").output().unwrap());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("1 groups, 1000 nodes"), "{}", ran.stdout);
}

#[test]
fn every_promise_has_a_test_that_carries_its_number() {
    let page = fs::read_to_string(root().join("docs/behaviour.md")).unwrap();
    let promised: BTreeSet<&str> =
        page.split("**").filter(|part| part.starts_with('B') && part[1..].parse::<u32>().is_ok()).collect();
    assert!(promised.len() > 15, "{promised:?}");
    let mut sources: String = String::new();
    for folder in ["tests/it", "src", "testkit/lab"] {
        for path in files(folder, &[".rs", ".py"]).into_iter().filter(|path| !path.ends_with("it/docs.rs")) {
            sources.push_str(&fs::read_to_string(path).unwrap());
        }
    }
    let carried = |number: &str| {
        let lower = number.to_lowercase();
        sources.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == number || word == lower)
    };
    let missing: Vec<_> = promised.iter().filter(|number| !carried(number)).collect();
    assert!(missing.is_empty(), "no test carries {missing:?}");
}

/// The rows of the project's list of known failures that concern the programs and their configuration.
const KNOWN: &str = "R01 R03 R04 R05 R06 R08 R09 R10 R11 R12 R13 R14 R15 R16 R17 R18 R19 R20 R21 R22 R24 R25 R26 R27 R28 R29 R30 R31 \
                     R32 R33 R34 S02 S03 S04 S05 F01 F02 F03 M01 M02 M04 M05 M06 M07 M09 M12 M13 M14 M15 M16 M17 M18 M19 M21 M23 \
                     M24 M25 M26 M27 M28 M29 W02 W03 W04 W05 W06 W07 Z01 Z02 Z04 C02 C03 C04 C05 C06 P01 P05 P06 P08 P09 D01";

#[test]
fn every_test_that_the_known_failures_name_is_there() {
    let page = fs::read_to_string(root().join("docs/known-failures.md")).unwrap();
    let mut sources = String::new();
    for folder in ["tests/it", "src"] {
        for path in files(folder, &[".rs"]) {
            sources.push_str(&fs::read_to_string(path).unwrap().to_lowercase());
        }
    }
    let (mut rows, mut named) = (0, 0);
    for row in page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| id")) {
        rows += 1;
        let cell = row.split('|').nth(3).unwrap();
        assert!(cell.contains('`') || cell.contains("later"), "no test and no word why: {row}");
        for name in cell.split('`').skip(1).step_by(2).filter(|name| !name.contains('/') && *name != "use_private_hostname") {
            named += 1;
            let found =
                if name.len() > 3 { sources.contains(&format!("fn {name}(")) } else { sources.contains(&format!("{name}_")) };
            assert!(found, "{name} is no test: {row}");
        }
    }
    let scenarios = fs::read_to_string(root().join("testkit/lab/e2e.py")).unwrap();
    for name in page.split("lab: ").skip(1).filter_map(|rest| rest.split(|c: char| c.is_whitespace() || ";,".contains(c)).next())
    {
        assert!(scenarios.contains(&format!("\"{name}\":")), "{name} is no scenario of the lab");
    }
    assert!(named >= 100, "{rows} rows, {named} tests");
    for id in KNOWN.split_whitespace() {
        assert!(page.contains(&format!("\n| {id} |")), "{id} is not listed");
    }
    assert_eq!(rows, KNOWN.split_whitespace().count(), "each row once");
}
