//! slurm.conf, as far as we need it: path in, [`SlurmConf`] out.
//!
//! Reads files (the one named and those it includes) and nothing else: never asks slurmctld, never judges a value it does not
//! use. The grammar is that of Slurm's src/common/parse_config.c: `Key=value` pairs, several on a line, keys in any case,
//! values in double quotes or up to the next blank, `#` to the end of the line unless written `\#`, a line that ends in `\`
//! goes on, `Include file`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `ResumeTimeout` and its like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timeout {
    After(Duration),
    Infinite,
}

/// Nodes of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PartitionNodes {
    All,
    /// As written: host lists with commas.
    List(String),
    /// Given by something that only slurmctld can resolve (a node set by feature), or in a form we do not know.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Partition {
    pub(crate) name: String,
    pub(crate) nodes: PartitionNodes,
    /// Its own; absent where the cluster's counts.
    pub(crate) resume_timeout: Option<Timeout>,
    pub(crate) suspend_timeout: Option<Timeout>,
    pub(crate) suspend_time: Option<Timeout>,
}

/// A `NodeName=` line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeLine {
    /// As written: a host list.
    pub(crate) names: String,
    /// `CLOUD`, in capitals; absent where the line (and `NodeName=DEFAULT`) has none.
    pub(crate) state: Option<String>,
    pub(crate) addr: Option<String>,
}

impl NodeLine {
    pub(crate) fn is_cloud(&self) -> bool {
        self.state.as_deref().is_some_and(|state| state.split('+').any(|word| word == "CLOUD"))
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SlurmConf {
    pub(crate) slurm_user: Option<String>,
    pub(crate) resume_timeout: Option<Timeout>,
    pub(crate) suspend_timeout: Option<Timeout>,
    pub(crate) suspend_time: Option<Timeout>,
    pub(crate) resume_program: Option<String>,
    pub(crate) suspend_program: Option<String>,
    pub(crate) resume_fail_program: Option<String>,
    /// Parts between commas, as written.
    pub(crate) slurmctld_parameters: Vec<String>,
    pub(crate) private_data: Vec<String>,
    pub(crate) partitions: Vec<Partition>,
    pub(crate) nodes: Vec<NodeLine>,
    /// The files that were read, the named one first.
    pub(crate) files: Vec<PathBuf>,
    /// Every single value of the file, by key in lower case; the last one counts.
    values: BTreeMap<String, String>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}:{line}: {includes} files include each other", path.display())]
    TooDeep { path: PathBuf, line: usize, includes: usize },
    #[error("{}:{line}: {key}={value} is no number of seconds and not INFINITE", path.display())]
    Seconds { path: PathBuf, line: usize, key: String, value: String },
    #[error("{} is larger than {limit} bytes", path.display())]
    TooLarge { path: PathBuf, limit: u64 },
}

/// Slurm's own default (slurm-facts F).
pub(crate) const DEFAULT_RESUME_TIMEOUT: Duration = Duration::from_secs(60);

/// Files that include each other in a row.
const MAX_DEPTH: usize = 16;

/// Bytes of one file: a whole cluster's nodes one by one are some megabytes.
const MAX_FILE: u64 = 64 << 20;

/// Reads the file and those it includes.
pub(crate) fn read(path: &Path) -> Result<SlurmConf, ConfError> {
    let mut reader = Reader::default();
    reader.file(path, path, 0)?;
    Ok(reader.finish())
}

impl SlurmConf {
    /// A single value by its key, in any case. Lines of nodes, partitions and the like are not values.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.values.get(&key.to_ascii_lowercase()).map(String::as_str)
    }

    /// Is this word in SlurmctldParameters (with or without `=…`)?
    pub(crate) fn has_slurmctld_parameter(&self, word: &str) -> bool {
        self.slurmctld_parameters
            .iter()
            .any(|part| part.split('=').next().is_some_and(|name| name.trim().eq_ignore_ascii_case(word)))
    }

    pub(crate) fn has_private_data(&self, word: &str) -> bool {
        self.private_data.iter().any(|part| part.eq_ignore_ascii_case(word))
    }

    /// The smallest ResumeTimeout that may hold for one of these nodes: of the partitions they are in, else the cluster's;
    /// a partition whose nodes cannot be told counts. `Duration::MAX` when it is INFINITE.
    pub(crate) fn smallest_resume_timeout(&self, nodes: &[String]) -> Duration {
        let cluster = self.resume_timeout.unwrap_or(Timeout::After(DEFAULT_RESUME_TIMEOUT));
        let concerned = self.partitions.iter().filter(|partition| match &partition.nodes {
            PartitionNodes::All | PartitionNodes::Unknown => true,
            PartitionNodes::List(list) => may_contain(list, nodes),
        });
        let smallest = concerned.map(|partition| partition.resume_timeout.unwrap_or(cluster)).map(as_duration).min();
        smallest.unwrap_or_else(|| as_duration(cluster))
    }
}

fn as_duration(timeout: Timeout) -> Duration {
    match timeout {
        Timeout::After(time) => time,
        Timeout::Infinite => Duration::MAX,
    }
}

/// `key=value` pairs of one line.
type Pairs = Vec<(String, String)>;

#[derive(Default)]
struct Reader {
    conf: SlurmConf,
    /// `PartitionName=DEFAULT` so far, by key in lower case.
    partition_defaults: BTreeMap<String, String>,
    node_defaults: BTreeMap<String, String>,
    /// NodeSet → its host list; `None` when it is made of features.
    node_sets: BTreeMap<String, Option<String>>,
}

impl Reader {
    fn file(&mut self, main: &Path, path: &Path, depth: usize) -> Result<(), ConfError> {
        let fail = |source| ConfError::Read { path: path.to_owned(), source };
        self.conf.files.push(path.to_owned());
        let length = std::fs::metadata(path).map_err(fail)?.len();
        if length > MAX_FILE {
            return Err(ConfError::TooLarge { path: path.to_owned(), limit: MAX_FILE });
        }
        let bytes = std::fs::read(path).map_err(fail)?;
        let text = String::from_utf8_lossy(&bytes);
        let mut lines = text.lines().enumerate();
        while let Some((index, line)) = lines.next() {
            let number = index + 1;
            let mut whole = without_comment(line);
            while let Some(start) = whole.strip_suffix('\\') {
                whole = start.to_owned();
                match lines.next() {
                    Some((_, next)) => whole.push_str(&without_comment(next)),
                    None => break,
                }
            }
            if let Some(target) = include(&whole) {
                if depth >= MAX_DEPTH {
                    return Err(ConfError::TooDeep { path: path.to_owned(), line: number, includes: depth + 1 });
                }
                let target = self.include_path(main, target);
                self.file(main, &target, depth + 1)?;
            } else {
                self.line(&pairs(&whole), path, number)?;
            }
        }
        Ok(())
    }

    /// A relative name is beside slurm.conf; `%c` is the cluster's name.
    fn include_path(&self, main: &Path, target: &str) -> PathBuf {
        let target = target.replace("%c", self.conf.get("ClusterName").unwrap_or_default());
        main.parent().unwrap_or(Path::new("/")).join(target)
    }

    fn line(&mut self, pairs: &Pairs, path: &Path, line: usize) -> Result<(), ConfError> {
        let Some((first, name)) = pairs.first() else { return Ok(()) };
        let rest = || pairs[1..].iter().map(|(key, value)| (key.to_ascii_lowercase(), value.clone()));
        let seconds = |key: &str, value: &str| {
            timeout(value).ok_or_else(|| ConfError::Seconds {
                path: path.to_owned(),
                line,
                key: key.to_owned(),
                value: value.to_owned(),
            })
        };
        match first.to_ascii_lowercase().as_str() {
            "partitionname" if name.eq_ignore_ascii_case("default") => self.partition_defaults.extend(rest()),
            "partitionname" => {
                let mut own = self.partition_defaults.clone();
                own.extend(rest());
                let time = |key: &str| own.get(key).map(|value| seconds(key, value)).transpose();
                self.conf.partitions.push(Partition {
                    name: name.clone(),
                    // Resolved at the end: node sets may come later.
                    nodes: PartitionNodes::List(own.get("nodes").cloned().unwrap_or_default()),
                    resume_timeout: time("resumetimeout")?,
                    suspend_timeout: time("suspendtimeout")?,
                    suspend_time: time("suspendtime")?,
                });
            }
            "nodename" if name.eq_ignore_ascii_case("default") => self.node_defaults.extend(rest()),
            "nodename" => {
                let mut own = self.node_defaults.clone();
                own.extend(rest());
                let state = own.get("state").map(|state| state.to_ascii_uppercase());
                self.conf.nodes.push(NodeLine { names: name.clone(), state, addr: own.get("nodeaddr").cloned() });
            }
            "nodeset" => {
                let own: BTreeMap<String, String> = rest().collect();
                let list = if own.contains_key("feature") { None } else { own.get("nodes").cloned() };
                self.node_sets.insert(name.to_ascii_lowercase(), list);
            }
            // Lines whose further keys belong to the first one.
            "downnodes" | "frontendname" | "switchname" | "poweraction" | "slurmctldhost" => {}
            _ => {
                for (key, value) in pairs {
                    self.value(key, value, &seconds)?;
                }
            }
        }
        Ok(())
    }

    fn value(
        &mut self,
        key: &str,
        value: &str,
        seconds: &dyn Fn(&str, &str) -> Result<Timeout, ConfError>,
    ) -> Result<(), ConfError> {
        let conf = &mut self.conf;
        let key = key.to_ascii_lowercase();
        let list = || value.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect();
        match key.as_str() {
            "slurmuser" => conf.slurm_user = Some(value.to_owned()),
            "resumetimeout" => conf.resume_timeout = Some(seconds("ResumeTimeout", value)?),
            "suspendtimeout" => conf.suspend_timeout = Some(seconds("SuspendTimeout", value)?),
            "suspendtime" => conf.suspend_time = Some(seconds("SuspendTime", value)?),
            "resumeprogram" => conf.resume_program = Some(value.to_owned()),
            "suspendprogram" => conf.suspend_program = Some(value.to_owned()),
            "resumefailprogram" => conf.resume_fail_program = Some(value.to_owned()),
            "slurmctldparameters" => conf.slurmctld_parameters = list(),
            "privatedata" => conf.private_data = list(),
            _ => {}
        }
        conf.values.insert(key, value.to_owned());
        Ok(())
    }

    fn finish(mut self) -> SlurmConf {
        for partition in &mut self.conf.partitions {
            if let PartitionNodes::List(list) = &partition.nodes {
                partition.nodes = resolve(list, &self.node_sets);
            }
        }
        self.conf
    }
}

/// `Nodes=` of a partition: node sets replaced by their lists.
fn resolve(list: &str, node_sets: &BTreeMap<String, Option<String>>) -> PartitionNodes {
    let mut resolved = Vec::new();
    let Some(items) = items(list) else { return PartitionNodes::Unknown };
    for item in items {
        if item.eq_ignore_ascii_case("all") {
            return PartitionNodes::All;
        }
        if item.contains(['{', '}', '(', '!', '/', '^']) {
            return PartitionNodes::Unknown;
        }
        match node_sets.get(&item.to_ascii_lowercase()) {
            None => resolved.push(item),
            Some(Some(nodes)) if nodes.eq_ignore_ascii_case("all") => return PartitionNodes::All,
            Some(Some(nodes)) => resolved.push(nodes),
            Some(None) => return PartitionNodes::Unknown,
        }
    }
    PartitionNodes::List(resolved.join(","))
}

/// Up to the first `#` that is not written `\#`, without blanks at the end.
fn without_comment(line: &str) -> String {
    let mut kept = String::with_capacity(line.len());
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '#' => break,
            '\\' if chars.peek() == Some(&'#') => {
                chars.next();
                kept.push('#');
            }
            c => kept.push(c),
        }
    }
    kept.truncate(kept.trim_end().len());
    kept
}

/// The file of an `Include file` line.
fn include(line: &str) -> Option<&str> {
    let line = line.trim();
    let (word, rest) = line.split_once([' ', '\t'])?;
    let target = rest.trim();
    (word.eq_ignore_ascii_case("include") && !target.starts_with('=') && !target.is_empty()).then_some(target)
}

/// The `key=value` pairs of a line. What is no pair is passed over: slurmctld, not we, refuses a bad file.
fn pairs(line: &str) -> Pairs {
    let mut pairs = Pairs::new();
    let mut rest = line.trim_start();
    while let Some(equals) = rest.find('=') {
        // Operators before the sign (`+=`) and blanks around it are Slurm's grammar.
        let key = rest[..equals].trim_end().trim_end_matches(['-', '*', '+', '/']).trim_end();
        let key = key.rsplit(char::is_whitespace).next().unwrap_or_default();
        let after = rest[equals + 1..].trim_start();
        let (value, next) = match after.strip_prefix('"').and_then(|quoted| quoted.split_once('"')) {
            Some((value, next)) => (value, next),
            None => after.split_at(after.find(char::is_whitespace).unwrap_or(after.len())),
        };
        if !key.is_empty() {
            pairs.push((key.to_owned(), value.to_owned()));
        }
        rest = next.trim_start();
    }
    pairs
}

fn timeout(value: &str) -> Option<Timeout> {
    if value.eq_ignore_ascii_case("infinite") || value == "-1" {
        return Some(Timeout::Infinite);
    }
    value.parse().ok().map(|seconds| Timeout::After(Duration::from_secs(seconds)))
}

/// Could one of the nodes be in this list? Without writing the list out; what cannot be read counts as yes.
fn may_contain(list: &str, nodes: &[String]) -> bool {
    let Some(items) = items(list) else { return true };
    let (ranged, plain): (Vec<&str>, Vec<&str>) = items.into_iter().partition(|item| item.contains('['));
    let plain: std::collections::HashSet<&str> = plain.into_iter().collect();
    let mut patterns = Vec::with_capacity(ranged.len());
    for item in ranged {
        match pattern(item) {
            Some(pattern) => patterns.push(pattern),
            None => return true,
        }
    }
    nodes.iter().any(|node| plain.contains(node.as_str()) || patterns.iter().any(|pattern| matches(pattern, node)))
}

/// Parts between commas and blanks outside brackets; `None` when the brackets do not match.
fn items(list: &str) -> Option<Vec<&str>> {
    let mut found = Vec::new();
    let (mut start, mut inside) = (0, false);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'[' if inside => return None,
            b'[' => inside = true,
            b']' if !inside => return None,
            b']' => inside = false,
            b',' | b' ' | b'\t' if !inside => {
                found.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(&list[start..]);
    found.retain(|item| !item.is_empty());
    (!inside).then_some(found)
}

/// A piece of `rack[0-1]node[01-20]`.
enum Piece<'a> {
    Text(&'a str),
    /// Width of the low end, low, high.
    Ranges(Vec<(usize, u64, u64)>),
}

fn pattern(item: &str) -> Option<Vec<Piece<'_>>> {
    let mut pieces = Vec::new();
    let mut rest = item;
    while let Some(open) = rest.find('[') {
        pieces.push(Piece::Text(&rest[..open]));
        let close = rest.find(']')?;
        let mut ranges = Vec::new();
        for range in rest.get(open + 1..close)?.split(',') {
            let (low, high) = range.split_once('-').unwrap_or((range, range));
            let number =
                |text: &str| if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse::<u64>().ok() } else { None };
            ranges.push((low.len(), number(low)?, number(high)?));
        }
        pieces.push(Piece::Ranges(ranges));
        rest = &rest[close + 1..];
    }
    pieces.push(Piece::Text(rest));
    Some(pieces)
}

fn matches(pieces: &[Piece<'_>], name: &str) -> bool {
    match pieces.split_first() {
        None => name.is_empty(),
        Some((Piece::Text(text), rest)) => name.strip_prefix(text).is_some_and(|name| matches(rest, name)),
        Some((Piece::Ranges(ranges), rest)) => {
            let digits = name.bytes().take_while(u8::is_ascii_digit).count();
            (1..=digits).any(|length| {
                let (number, name) = name.split_at(length);
                let Ok(value) = number.parse::<u64>() else { return false };
                // Zeros in front only as far as the low end is wide.
                let fits = |(width, low, high): &(usize, u64, u64)| {
                    (*low..=*high).contains(&value) && length == decimal_digits(value).max(*width)
                };
                ranges.iter().any(fits) && matches(rest, name)
            })
        }
    }
}

fn decimal_digits(value: u64) -> usize {
    value.checked_ilog10().map_or(1, |log| log as usize + 1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use super::*;

    fn conf(files: &[(&str, &str)]) -> Result<SlurmConf, ConfError> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        read(&dir.path().join("slurm.conf"))
    }

    fn secs(seconds: u64) -> Option<Timeout> {
        Some(Timeout::After(Duration::from_secs(seconds)))
    }

    #[test]
    fn the_recommended_file() {
        let conf = conf(&[(
            "slurm.conf",
            "ClusterName=hpc\n\
             SlurmUser=slurm   # the owner\n\
             SlurmctldParameters=idle_on_node_suspend,power_save_interval=1        # 22.05: ,cloud_reg_addrs\n\
             ResumeProgram=/opt/x/bin/resume\n\
             suspendprogram = \"/opt/x y/bin/suspend\"\n\
             ResumeTimeout=600        SuspendTimeout=120     SuspendTime=INFINITE\n\
             PrivateData=cloud\n\
             NodeName=DEFAULT State=CLOUD\n\
             NodeName=q1-dy-c5-[1-100] CPUs=2 \\\n   RealMemory=1 NodeAddr=192.0.2.1\n\
             NodeName=head State=unknown\n\
             #ResumeFailProgram=/no\n\
             PartitionName=q1 Nodes=q1-dy-c5-[1-100] Default=YES SuspendTime=600 ResumeTimeout=300\n",
        )])
        .unwrap();
        assert_eq!(conf.slurm_user.as_deref(), Some("slurm"));
        assert_eq!(
            (conf.resume_timeout, conf.suspend_timeout, conf.suspend_time),
            (secs(600), secs(120), Some(Timeout::Infinite))
        );
        assert_eq!(conf.suspend_program.as_deref(), Some("/opt/x y/bin/suspend"));
        assert_eq!(conf.resume_fail_program, None);
        assert!(conf.has_slurmctld_parameter("idle_on_node_suspend") && conf.has_slurmctld_parameter("Power_Save_Interval"));
        assert!(!conf.has_slurmctld_parameter("cloud_reg_addrs") && conf.has_private_data("cloud"));
        assert_eq!(conf.get("clustername"), Some("hpc"));
        assert_eq!(conf.get("NodeName"), None);
        assert!(conf.nodes[0].is_cloud() && !conf.nodes[1].is_cloud());
        assert_eq!(conf.nodes[0].addr.as_deref(), Some("192.0.2.1"));
        let q1 = &conf.partitions[0];
        assert_eq!((q1.resume_timeout, q1.suspend_time, q1.suspend_timeout), (secs(300), secs(600), None));
        assert_eq!(q1.nodes, PartitionNodes::List("q1-dy-c5-[1-100]".into()));
    }

    #[test]
    fn included_files_and_their_limits() {
        let good = conf(&[
            ("slurm.conf", "ClusterName=hpc\ninclude %c-nodes.conf\n  INCLUDE\tmore.conf # here\nResumeTimeout=5\n"),
            ("hpc-nodes.conf", "ResumeTimeout=600\nPartitionName=a Nodes=ALL\n"),
            ("more.conf", "SuspendTimeout=7\n"),
        ])
        .unwrap();
        assert_eq!((good.resume_timeout, good.suspend_timeout, good.partitions.len()), (secs(5), secs(7), 1));
        assert!(matches!(conf(&[("slurm.conf", "Include slurm.conf\n")]), Err(ConfError::TooDeep { .. })));
        let error = conf(&[("slurm.conf", "Include gone.conf\n")]).unwrap_err().to_string();
        assert!(error.contains("gone.conf"), "{error}");
        let error = conf(&[("slurm.conf", "A=1\nResumeTimeout=ten\n")]).unwrap_err().to_string();
        assert!(error.contains("slurm.conf:2: ResumeTimeout=ten"), "{error}");
    }

    #[test]
    fn comments_and_quotes() {
        assert_eq!(without_comment(r"A=b\#c #d"), "A=b#c");
        assert_eq!(
            pairs("A=1 B = 2 C+=3 D=\"x = y\" junk E="),
            [("A", "1"), ("B", "2"), ("C", "3"), ("D", "x = y"), ("E", "")].map(|(k, v)| (k.to_owned(), v.to_owned()))
        );
        assert_eq!(pairs("Gres=gpu:a=b,c Next=1")[0].1, "gpu:a=b,c");
        assert_eq!(include("IncludeThis=1"), None);
        assert_eq!(include("Include = x"), None);
    }

    #[test]
    fn the_smallest_timeout_of_the_nodes_partitions() {
        let conf = conf(&[(
            "slurm.conf",
            "ResumeTimeout=600\n\
             PartitionName=DEFAULT ResumeTimeout=500\n\
             PartitionName=a Nodes=a-[1-10]\n\
             PartitionName=b Nodes=b-[01-10],extra ResumeTimeout=100\n\
             PartitionName=c Nodes=set ResumeTimeout=50\n\
             PartitionName=d Nodes=d1 ResumeTimeout=INFINITE\n\
             NodeSet=set Nodes=c[1-3]\n",
        )])
        .unwrap();
        let of = |nodes: &[&str]| {
            conf.smallest_resume_timeout(&nodes.iter().map(|node| (*node).to_owned()).collect::<Vec<_>>()).as_secs()
        };
        assert_eq!(of(&["a-1"]), 500);
        assert_eq!(of(&["a-10", "b-07"]), 100);
        assert_eq!(of(&["b-7"]), 600, "in no partition");
        assert_eq!(of(&["extra"]), 100);
        assert_eq!(of(&["c2"]), 50);
        assert_eq!(of(&["d1"]), Duration::MAX.as_secs());
        assert_eq!(of(&["d1", "a-2"]), 500);
    }

    #[test]
    fn what_cannot_be_resolved_counts() {
        let by_feature =
            conf(&[("slurm.conf", "PartitionName=a Nodes=gpus ResumeTimeout=40\nNodeSet=gpus Feature=gpu\n")]).unwrap();
        assert_eq!(by_feature.partitions[0].nodes, PartitionNodes::Unknown);
        assert_eq!(by_feature.smallest_resume_timeout(&["x".into()]).as_secs(), 40);
        for nodes in ["x[1-", "x[a-b]"] {
            let odd = conf(&[("slurm.conf", &format!("PartitionName=a Nodes={nodes} ResumeTimeout=40\n"))]).unwrap();
            assert_eq!(odd.smallest_resume_timeout(&["z".into()]).as_secs(), 40, "{nodes}");
        }
        // Nothing said at all: Slurm's default.
        assert_eq!(conf(&[("slurm.conf", "")]).unwrap().smallest_resume_timeout(&["x".into()]), DEFAULT_RESUME_TIMEOUT);
    }

    #[test]
    fn names_are_matched_as_slurm_writes_them_out() {
        for (list, name, is_in) in [
            ("rack[0-1]node[1-2]", "rack1node2", true),
            ("rack[0-1]node[1-2]", "rack2node2", false),
            ("n[1-3]-ib", "n2-ib", true),
            ("n[1-3]4", "n34", true),
            ("n[08-12]", "n9", false),
            ("n[08-12]", "n09", true),
            ("n[1-010]", "n7", true),
            ("n[1-010]", "n007", false),
            ("n[9-11]", "n10", true),
            ("a,n[1,3] b", "n2", false),
            ("a,n[1,3] b", "b", true),
            ("n[0-0]", "n0", true),
        ] {
            assert_eq!(may_contain(list, &[name.to_owned()]), is_in, "{name} in {list}");
        }
    }
}
