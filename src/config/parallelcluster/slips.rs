//! Names that are nearly right: an INI file in, a warning for each section and key that nobody reads out; and the text of a file that
//! is neither TOML nor ParallelCluster's.

use std::path::Path;

use super::SECTIONS;
use super::keys::File;
use super::programs::{CLUSTERMGTD, COMPUTEMGTD, FLEET_MANAGER, OURS, RESUME, STATUS, SUSPEND};
use crate::config::cite::{Mistake, Source};
use crate::config::file;
use crate::config::words::nearest;

/// The package's keys (aws-facts B.3 to B.7).
const KEYS: [(&str, &[&str]); 6] = [
    (RESUME, &RESUME_KEYS),
    (SUSPEND, &SUSPEND_KEYS),
    (CLUSTERMGTD, &CLUSTERMGTD_KEYS),
    (STATUS, &STATUS_KEYS),
    (FLEET_MANAGER, &FLEET_MANAGER_KEYS),
    (COMPUTEMGTD, &COMPUTEMGTD_KEYS),
];
const RESUME_KEYS: [&str; 24] = [
    "assign_node_max_batch_size",
    "boto3_retry",
    "cluster_name",
    "clustermgtd_heartbeat_file_path",
    "clustermgtd_timeout",
    "create_fleet_overrides",
    "dns_domain",
    "dynamodb_table",
    "fleet_config_file",
    "head_node_hostname",
    "head_node_private_ip",
    "hosted_zone",
    "instance_id",
    "instance_info_retrieval_timeout",
    "job_level_scaling",
    "launch_max_batch_size",
    "logging_config",
    "proxy",
    "region",
    "run_instances_overrides",
    "scaling_strategy",
    "terminate_max_batch_size",
    "update_node_address",
    "use_private_hostname",
];
const SUSPEND_KEYS: [&str; 3] = ["clustermgtd_heartbeat_file_path", "clustermgtd_timeout", "logging_config"];
const CLUSTERMGTD_KEYS: [&str; 41] = [
    "assign_node_max_batch_size",
    "boto3_retry",
    "cluster_name",
    "compute_console_logging_enabled",
    "compute_console_logging_max_sample_size",
    "compute_console_wait_time",
    "create_fleet_overrides",
    "disable_all_cluster_management",
    "disable_all_health_checks",
    "disable_capacity_blocks_management",
    "disable_ec2_health_check",
    "disable_scheduled_event_health_check",
    "dns_domain",
    "dynamodb_table",
    "ec2_instance_missing_max_count",
    "fleet_config_file",
    "head_node_hostname",
    "head_node_private_ip",
    "health_check_timeout",
    "health_check_timeout_after_slurmdstarttime",
    "heartbeat_file_path",
    "hosted_zone",
    "instance_id",
    "instance_info_retrieval_timeout",
    "insufficient_capacity_timeout",
    "launch_max_batch_size",
    "logging_config",
    "loop_time",
    "node_replacement_timeout",
    "orphaned_instance_timeout",
    "protected_failure_count",
    "proxy",
    "region",
    "run_instances_overrides",
    "terminate_down_nodes",
    "terminate_drain_nodes",
    "terminate_max_batch_size",
    "update_node_address",
    "use_private_hostname",
    // Of the package's own threads: known, and not read.
    "worker_pool_max_backlog",
    "worker_pool_size",
];
const STATUS_KEYS: [&str; 9] = [
    "boto3_retry",
    "cluster_name",
    "computefleet_status_path",
    "dynamodb_table",
    "logging_config",
    "loop_time",
    "proxy",
    "region",
    "update_event_timeout_minutes",
];
const FLEET_MANAGER_KEYS: [&str; 6] =
    ["boto3_retry", "cluster_name", "logging_config", "proxy", "region", "terminate_max_batch_size"];
/// `dynamodb_table` is written by the cookbook and read by nobody.
const COMPUTEMGTD_KEYS: [&str; 11] = [
    "boto3_retry",
    "cluster_name",
    "clustermgtd_heartbeat_file_path",
    "clustermgtd_timeout",
    "disable_computemgtd_actions",
    "dynamodb_table",
    "logging_config",
    "loop_time",
    "proxy",
    "region",
    "slurm_nodename_file",
];

/// The sections of our TOML file, as far as they are needed to tell one.
const TOML_SECTIONS: [&str; 11] =
    ["aws", "slurm", "state", "log", "launch", "group", "publish", "parallelcluster", "clustermgtd", "fleet", "computemgtd"];

/// Warnings of one file, each with its place. What is not near to a name that is read stays silent: the package ignores it, and later
/// versions of it write more keys.
pub(super) fn warnings(file: &File<'_>) -> Vec<String> {
    let plain = |name: &str| name.to_lowercase().replace(['-', '_'], "");
    let mut warnings: Vec<String> = file
        .ini
        .sections()
        .filter(|name| *name != OURS && plain(name) == plain(OURS))
        .map(|name| file.warning(file.ini.header(name), &format!("section [{name}] is not read; write [{OURS}]")))
        .collect();
    let text = file.source.text.to_lowercase();
    for (section, known) in KEYS {
        for (key, span) in file.ini.written(section) {
            // One that another key takes its value from is read.
            if known.contains(&key) || text.contains(&format!("%({key})s")) {
                continue;
            }
            if let Some(near) = nearest(key, known.iter().copied()) {
                warnings.push(file.warning(span, &format!("unknown key {key} is ignored; did you mean {near}?")));
            }
        }
    }
    warnings
}

/// The one mistake of a text that is meant as INI, by the file's name or its first section, and is neither that nor TOML: what TOML
/// says of each of its lines would help nobody.
pub(crate) fn neither(path: &Path, text: &str) -> Option<Mistake> {
    let lines = text.split_inclusive('\n').scan(0, |at, line| {
        let start = *at;
        *at += line.len();
        Some((start, line))
    });
    let mut headers = lines.filter_map(|(start, line)| {
        let begin = start + line.len() - line.trim_start_matches(['\u{feff}', ' ', '\t']).len();
        let line = text.get(begin..start + line.len())?.trim_end();
        line.starts_with('[').then_some((begin..begin + line.len(), line))
    });
    let (span, header) = headers.next().unwrap_or((0..0, ""));
    let name = header.trim_start_matches('[').split(']').next().unwrap_or_default().trim();
    let of_toml = TOML_SECTIONS.contains(&name.split('.').next().unwrap_or_default().trim());
    let named_so = path.extension().is_some_and(|extension| extension == "conf") && !of_toml;
    let before = text.get(..span.start).unwrap_or_default().lines().map(|line| line.trim_start_matches('\u{feff}').trim());
    let is_first = before.clone().all(|line| line.is_empty() || line.starts_with(['#', ';']));
    let begun_so = header.starts_with("[slurm_")
        || (is_first && ["[clusterm", "[clusters", "[computem"].iter().any(|begin| header.starts_with(begin)));
    if !(named_so || begun_so) || file::is_toml(text) {
        return None;
    }
    let [resume, suspend, daemon, ..] = SECTIONS;
    let mut message =
        format!("this is neither our TOML nor ParallelCluster's INI: there is no section [{resume}], [{suspend}] or [{daemon}]");
    let help = match nearest(name, SECTIONS).filter(|_| !name.is_empty()) {
        Some(near) => {
            message.push_str(&format!("; did you mean [{near}]?"));
            ""
        }
        None => "name slurm-ec2's own file or ParallelCluster's",
    };
    Some(Source { path, text }.cite(span, message, help))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const ALL: &str = include_str!("../../../tests/data/parallelcluster/parallelcluster_slurm_resume.all-options.conf");

    fn of(text: &str) -> Vec<String> {
        warnings(&File::new(Path::new("/c.conf"), text))
    }

    #[test]
    fn the_keys_are_those_of_the_file_with_all_options() {
        let file = File::new(Path::new("/c.conf"), ALL);
        assert_eq!(file.ini.written(RESUME).map(|(key, _)| key).collect::<Vec<_>>(), RESUME_KEYS);
        assert_eq!(of(ALL), Vec::<String>::new());
    }

    #[test]
    fn so_are_those_of_the_daemons() {
        let text = include_str!("../../../tests/data/parallelcluster/parallelcluster_clustermgtd.all-options.conf");
        let file = File::new(Path::new("/c.conf"), text);
        assert_eq!(file.ini.written(CLUSTERMGTD).map(|(key, _)| key).collect::<Vec<_>>(), CLUSTERMGTD_KEYS);
        for (_, keys) in KEYS {
            assert!(keys.is_sorted(), "{keys:?}");
        }
    }

    #[test]
    fn our_section_written_otherwise() {
        for name in ["slurm-ec2", "Slurm_EC2", "slurmec2", "SLURM-EC2"] {
            let expected = format!("/c.conf:3:1: section [{name}] is not read; write [slurm_ec2]");
            assert_eq!(of(&format!("[slurm_resume]\nregion = x\n[{name}]\nlog_dir = /x\n")), [expected]);
        }
        assert_eq!(of("[slurm_ec2]\n[slurm_ec3]\n[somebody]\n"), Vec::<String>::new());
    }

    #[test]
    fn keys_that_are_nearly_known_and_no_others() {
        let text = "[slurm_resume]\nregoin = x\nnext_years_thing = 3\nBoto3-Retries: 3\ncluster = orchard\ncluster_name = %(Cluster)s\n\
                    [slurm_suspend]\nclustermgtd_timout = 3\nregion = x\n[other]\nregoin = x\n";
        assert_eq!(
            of(text),
            [
                "/c.conf:4:1: unknown key boto3-retries is ignored; did you mean boto3_retry?",
                "/c.conf:2:1: unknown key regoin is ignored; did you mean region?",
                "/c.conf:8:1: unknown key clustermgtd_timout is ignored; did you mean clustermgtd_timeout?",
            ]
        );
    }

    #[test]
    fn a_file_of_neither_kind() {
        let told = |path: &str, text: &str| neither(Path::new(path), text).map(|mistake| mistake.to_string());
        let said = told("/p.conf", "# x\n  [slurm_resum]\nregion = eu-west-1\ncluster_name = hpc\n").unwrap();
        assert_eq!(
            said.lines().next().unwrap(),
            "/p.conf:2:3: this is neither our TOML nor ParallelCluster's INI: there is no section [slurm_resume], \
             [slurm_suspend] or [clustermgtd]; did you mean [slurm_resume]?"
        );
        let of = |path: &str, text: &str| told(path, text).unwrap_or_else(|| panic!("{text}"));
        assert!(of("/x", "\u{feff}[clustermgd]\na = b\n").contains("did you mean [clustermgtd]?"));
        assert!(of("/x.toml", "[slurm_suspnd]\na = b\n").contains("did you mean [slurm_suspend]?"));
        let said = of("/etc/slurm/slurm.conf", "ClusterName=hpc\nSlurmctldHost=head\n");
        assert!(said.starts_with("/etc/slurm/slurm.conf:1:1: ") && !said.contains("did you mean"), "{said}");
        for (path, text) in [
            ("/x.toml", "region = eu-west-1\n"),
            ("/x.conf", "cluster = \"hpc\"\n"),
            ("/x.conf", "cluster = hpc\n[slurm]\n"),
            ("/x.conf", "cluster = hpc\n[[group]]\n"),
            ("/x.conf", ""),
            ("/x.toml", "[slurm_resum]\na = 1\n"),
        ] {
            assert_eq!(told(path, text), None, "{text}");
        }
    }
}
