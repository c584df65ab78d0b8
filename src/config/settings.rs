//! The configuration as meant: what `file.rs` makes of the TOML, and `parallelcluster/` of ParallelCluster's files. After this nothing is checked again.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use super::queues::QueueIndex;
use crate::model::policy::{RunPolicy, Upkeep};
use crate::model::recipe::Group;

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The file it came from, for messages.
    pub(crate) path: PathBuf,
    /// Other files that it was made from, there or not: a daemon looks whether they change.
    pub(crate) files: Vec<PathBuf>,
    pub(crate) cluster: String,
    pub(crate) region: String,
    /// Most names that one host list may stand for.
    pub(crate) hostlist_limit: usize,
    pub(crate) aws: AwsSettings,
    pub(crate) slurm: SlurmSettings,
    pub(crate) state_dir: PathBuf,
    pub(crate) log: LogSettings,
    pub(crate) run: RunPolicy,
    pub(crate) store: StoreKind,
    pub(crate) publish: PublishSettings,
    /// Beside ParallelCluster's own daemons, by its rules.
    pub(crate) parallelcluster: Option<ParallelCluster>,
    pub(crate) clustermgtd: ClustermgtdSettings,
    pub(crate) fleet: FleetSettings,
    pub(crate) computemgtd: ComputemgtdSettings,
    pub(crate) groups: Vec<Group>,
    /// Nodes that clustermgtd keeps up all the time, where the configuration lists them; ParallelCluster's names say it themselves.
    pub(crate) static_nodes: BTreeSet<String>,
    /// Node name → index into `groups`. Filled for every configured node.
    pub(crate) node_group: NodeIndex,
    /// What is odd in the files and stops nothing; for the log.
    pub(crate) warnings: Vec<String>,
}

impl Settings {
    /// The group a node belongs to; `None` for a node outside every group.
    pub(crate) fn group_of(&self, node: &str) -> Option<&Group> {
        self.node_group.get(node).map(|index| &self.groups[index])
    }

    /// Is this node to be up all the time?
    pub(crate) fn is_static(&self, node: &str) -> bool {
        match &self.node_group {
            NodeIndex::Names(_) => self.static_nodes.contains(node),
            NodeIndex::Queues(queues) => queues.is_static(node),
        }
    }

    /// The warnings for people, who did not name the file just before: each begins with it.
    pub(crate) fn placed_warnings(&self) -> impl Iterator<Item = String> {
        let file = self.path.display().to_string();
        self.warnings.iter().map(move |text| if text.starts_with(&file) { text.clone() } else { format!("{file}: {text}") })
    }

    /// Why a node has no group, for a reason or the log: lower case, no full stop. Of use for such a node only.
    pub(crate) fn why_not(&self, node: &str) -> String {
        match &self.node_group {
            NodeIndex::Names(_) => format!("no [[group]] of {} names this node", self.path.display()),
            NodeIndex::Queues(queues) => match queues.get(node) {
                Err(error) => error.to_string(),
                Ok(_) => "it has a group".to_owned(),
            },
        }
    }

    /// What is so wrong that some nodes cannot be launched, the others can: one text each, naming file and key.
    pub(crate) fn broken(&self) -> Vec<&str> {
        match &self.node_group {
            NodeIndex::Names(_) => Vec::new(),
            NodeIndex::Queues(queues) => queues.broken().collect(),
        }
    }
}

/// Node name → index into the groups.
#[derive(Debug, Clone)]
pub(crate) enum NodeIndex {
    /// Every configured name.
    Names(HashMap<String, u32>),
    /// By ParallelCluster's rule for names, which has no list of them.
    Queues(QueueIndex),
}

impl Default for NodeIndex {
    fn default() -> Self {
        Self::Names(HashMap::new())
    }
}

impl NodeIndex {
    pub(crate) fn get(&self, node: &str) -> Option<usize> {
        match self {
            Self::Names(names) => names.get(node).map(|index| *index as usize),
            Self::Queues(queues) => queues.get(node).ok(),
        }
    }

    /// Every configured name; empty where names follow a rule.
    pub(crate) fn names(&self) -> Vec<String> {
        match self {
            Self::Names(names) => names.keys().cloned().collect(),
            Self::Queues(_) => Vec::new(),
        }
    }
}

/// Where our mapping is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreKind {
    /// In the state folder.
    File,
    /// In a DynamoDB table, for several head nodes; what concerns one machine alone stays in the state folder.
    DynamoDb { table: String },
}

/// Who hears of a node's instance, besides Slurm: DynamoDB first, then DNS, then Slurm (aws-facts B.13).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PublishSettings {
    /// Nodes told at once at most.
    pub(crate) batch_size: usize,
    pub(crate) node_table: Option<NodeTable>,
    pub(crate) dns: Option<Dns>,
    /// Slurm's NodeHostName becomes EC2's private name (its first label).
    pub(crate) hostname: bool,
}

/// ParallelCluster's table of nodes (aws-facts B.13), which its compute nodes ask for their name at boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeTable {
    pub(crate) table: String,
    pub(crate) head_node_private_ip: String,
    pub(crate) head_node_hostname: String,
}

/// A Route 53 zone that gets an A record for each node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dns {
    pub(crate) hosted_zone: String,
    /// `orchard.pcluster.`
    pub(crate) domain: String,
}

/// What only a ParallelCluster head node has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ParallelCluster {
    /// The heartbeat of its clustermgtd (aws-facts B.11).
    pub(crate) heartbeat: PathBuf,
    /// Older than this, and nothing is launched.
    pub(crate) heartbeat_timeout: Duration,
    /// The head node's own instance, for the events.
    pub(crate) instance_id: String,
}

/// `[aws]`
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AwsSettings {
    /// EC2's; the next two are DynamoDB's and Route 53's.
    pub(crate) endpoint_url: Option<String>,
    pub(crate) dynamodb_endpoint_url: Option<String>,
    pub(crate) route53_endpoint_url: Option<String>,
    pub(crate) profile: Option<String>,
    /// Absolute: the programs have no HOME (aws-facts A.10).
    pub(crate) config_file: Option<PathBuf>,
    pub(crate) credentials_file: Option<PathBuf>,
    /// For EC2 only; instance metadata never goes through it.
    pub(crate) proxy: Option<String>,
    pub(crate) no_proxy: Vec<String>,
    pub(crate) ca_bundle: Option<PathBuf>,
    /// Tries of one API call, the first included.
    pub(crate) attempts: u32,
    pub(crate) connect_timeout: Duration,
    /// One try.
    pub(crate) attempt_timeout: Duration,
    /// All tries of one call.
    pub(crate) operation_timeout: Duration,
}

/// How Slurm learns a node's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeAddress {
    /// `scontrol update nodeaddr=…`
    Scontrol,
    /// slurmd's registration sets it (23.11+); InstanceId is still told where the version takes it.
    Registration,
    /// Nothing is told.
    None,
}

/// `[slurm]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlurmSettings {
    pub(crate) bin_dir: PathBuf,
    pub(crate) conf: PathBuf,
    /// Run scontrol through this sudo (`/usr/bin/sudo`), as another user must on a ParallelCluster head node.
    pub(crate) sudo: Option<PathBuf>,
    pub(crate) node_address: NodeAddress,
    /// Nodes in one scontrol call at most; argument bytes cut earlier.
    pub(crate) nodes_per_call: usize,
    pub(crate) command_timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Text,
    Json,
    /// As the Python package writes its log (aws-facts B.17), for the filters that people have on it.
    ParallelCluster,
}

/// Where ParallelCluster's events go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EventsFile {
    /// `slurm_resume.events` in the folder of the log; those of clustermgtd are always named.
    Usual,
    Named(PathBuf),
    Off,
}

/// `[log]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogSettings {
    pub(crate) dir: PathBuf,
    /// The program's log, where the configuration names the whole file; else it is `<dir>/<program>.log`.
    pub(crate) file: Option<PathBuf>,
    pub(crate) level: tracing::Level,
    pub(crate) format: LogFormat,
    pub(crate) events: EventsFile,
}

impl LogSettings {
    /// The file of the events; `None`: they are not wanted.
    pub(crate) fn events_path(&self) -> Option<PathBuf> {
        match &self.events {
            EventsFile::Usual => Some(self.dir.join("slurm_resume.events")),
            EventsFile::Named(path) => Some(path.clone()),
            EventsFile::Off => None,
        }
    }

    /// Does a program run for long, under a supervisor?
    pub(crate) fn is_daemon(program: &str) -> bool {
        matches!(program, "clustermgtd" | "clusterstatusmgtd" | "computemgtd")
    }

    /// What ParallelCluster calls the log of a program (aws-facts B.1).
    pub(crate) fn parallelcluster_name(program: &str) -> String {
        if Self::is_daemon(program) { program.to_owned() } else { format!("{program}.log") }
    }

    /// Gives the files of a ParallelCluster daemon the names that they have there, where nothing else names them.
    pub(super) fn name_of_daemon(&mut self, program: &str) {
        if Self::is_daemon(program) && self.file.is_none() {
            self.file = Some(self.dir.join(Self::parallelcluster_name(program)));
        }
        if program == "clustermgtd" && self.events == EventsFile::Usual {
            self.events = EventsFile::Named(self.dir.join("clustermgtd.events"));
        }
    }
}

/// `[clustermgtd]`
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClustermgtdSettings {
    /// From the beginning of one pass to that of the next.
    pub(crate) loop_time: Duration,
    /// The file whose writing says that the daemon lives. Standalone `heartbeat` in the state folder, and besides it where compute nodes
    /// can read it, if they are to (`[clustermgtd] heartbeat`).
    pub(crate) heartbeat: Option<PathBuf>,
    /// One question to scontrol about all nodes.
    pub(crate) show_timeout: Duration,
    /// Names of the partitions that are looked after; empty = those that the configuration's nodes alone are in.
    pub(crate) partitions: Vec<String>,
    pub(crate) upkeep: Upkeep,
}

/// `[fleet]`: where the compute fleet's status is, and how its starts and stops go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FleetSettings {
    pub(crate) store: FleetStore,
    /// Between two looks at the status.
    pub(crate) poll: Duration,
    /// The longest that a stop waits for nodes and instances to be gone, or a start for partitions.
    pub(crate) timeout: Duration,
    /// ParallelCluster's `computefleet-status.json`, written when a transition begins.
    pub(crate) status_file: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FleetStore {
    /// `fleet-status.json` in the state folder.
    File,
    /// Item `COMPUTE_FLEET` of ParallelCluster's status table (aws-facts B.13).
    Table { table: String },
}

/// `[computemgtd]`, on a compute node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ComputemgtdSettings {
    pub(crate) loop_time: Duration,
    /// Where clustermgtd's heartbeat can be read, mostly on NFS.
    pub(crate) heartbeat: Option<PathBuf>,
    /// A heartbeat whose content has not changed for as long is stale (`clustermgtd_timeout`).
    pub(crate) heartbeat_timeout: Duration,
    /// Never shut down (`disable_computemgtd_actions`).
    pub(crate) disabled: bool,
    /// Holds the node's name (`slurm_nodename_file`).
    pub(crate) node_name_file: PathBuf,
    /// Run with `-h now`: `/sbin/shutdown`.
    pub(crate) shutdown: PathBuf,
    /// Instance metadata, for tests; else EC2's own address.
    pub(crate) metadata_endpoint: Option<String>,
    /// Between two looks for a spot notice.
    pub(crate) spot_poll: Duration,
    /// Run once at a spot notice, with the notice as arguments.
    pub(crate) spot_hook: Option<PathBuf>,
    /// Drain on a rebalance recommendation too, instead of only logging it.
    pub(crate) drain_on_rebalance: bool,
    /// The longest that `slurm-ec2 node-name` waits for the name.
    pub(crate) node_name_timeout: Duration,
    /// The mapping on a folder that compute nodes can read, for `node-name`.
    pub(crate) shared_mapping: Option<PathBuf>,
}
