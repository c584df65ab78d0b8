//! clustermgtd: one pass over a cluster whose nodes are all up with their instances; the first, start-up included, and the mean of those
//! after it. Slurm's answer is the text of
//! `scontrol show nodes` (24.11's form) from a file, EC2 is the endpoint on the same machine, answering at once; its CPU and scontrol's do
//! not count. A pass that finds anything to do is an error: the figures would mean nothing.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use slurm_ec2_testkit::ec2::{Behaviour, Endpoint, Seed};

use crate::measure::SoFar;
use crate::site::Site;
use crate::table::{Table, median, mib, ms, target};

const SIZES: [usize; 3] = [1_000, 10_000, 50_000];

/// The id that every instance of this state folder is tagged with.
const STATE_ID: &str = "00112233445566aa";

/// Passes after the first that are measured together.
const LATER: u32 = 3;

/// The longest that one pass is waited for.
const LIMIT: Duration = Duration::from_mins(5);

struct Run {
    /// Of the first pass, from the start of the program.
    first: SoFar,
    /// CPU time of one of the passes after it.
    later: Duration,
    /// Of all of them.
    peak_kib: i64,
    bytes: f64,
    /// Seconds in the parser of `scontrol show nodes`.
    parse: f64,
}

pub(crate) fn table(programs: &Path, runs: usize, largest: usize, note: &mut dyn FnMut(&str)) -> Result<Table, String> {
    let heads =
        ["nodes", "first ms", "first cpu ms", "later cpu ms", "peak MiB", "scontrol MB", "parser ms", "parser MB/s", "target"];
    let mut table =
        Table::new("clustermgtd: a pass over nodes that are all up; the first with start-up, and a later one", &heads);
    for nodes in SIZES.into_iter().filter(|nodes| *nodes <= largest) {
        note(&format!("clustermgtd's pass over {nodes} nodes"));
        let all: Vec<Run> = (0..runs).map(|_| once(programs, nodes)).collect::<Result<_, _>>()?;
        let middle = |of: &dyn Fn(&Run) -> f64| median(all.iter().map(of)).unwrap_or_default();
        let cpu = [middle(&|run| run.first.cpu.as_secs_f64()), middle(&|run| run.later.as_secs_f64())];
        let peak = median(all.iter().map(|run| run.peak_kib)).unwrap_or_default();
        let (bytes, parse) = (middle(&|run| run.bytes), middle(&|run| run.parse));
        let mut targets = Vec::new();
        if nodes == 10_000 {
            targets.push(target("first cpu", cpu[0] * 1000.0, 250.0, "ms"));
            targets.push(target("later cpu", cpu[1] * 1000.0, 250.0, "ms"));
            #[expect(clippy::cast_precision_loss, reason = "KiB of a process")]
            targets.push(target("peak", peak as f64 / 1024.0, 120.0, "MiB"));
            targets.push(target("parser", parse * 1000.0, bytes / 100e6 * 1000.0, "ms"));
        }
        table.row(vec![
            nodes.to_string(),
            ms(Duration::from_secs_f64(middle(&|run| run.first.wall.as_secs_f64()))),
            ms(Duration::from_secs_f64(cpu[0])),
            ms(Duration::from_secs_f64(cpu[1])),
            mib(peak),
            format!("{:.1}", bytes / 1e6),
            format!("{:.1}", parse * 1000.0),
            format!("{:.0}", bytes / 1e6 / parse.max(1e-9)),
            targets.join("; "),
        ]);
    }
    Ok(table)
}

fn once(programs: &Path, nodes: usize) -> Result<Run, String> {
    let ec2 = Endpoint::start(Behaviour { cidr: "10.64.0.0/12".to_owned(), ..Behaviour::default() });
    let tags = [("cluster", "hpc"), ("state", STATE_ID), ("launch", "20260101T000000Z-00000001"), ("group", "q0")];
    let ids = ec2.seed(&Seed {
        count: nodes,
        tags: tags.map(|(key, value)| (format!("slurm-ec2:{key}"), value.to_owned())).into(),
        age_ms: 3_600_000,
        ..Seed::default()
    });
    let site = Site::new(&ec2.url(), nodes, 1, true)?;
    let config = site.read("slurm-ec2.toml").replace("/log\"\n", "/log\"\nlevel = \"debug\"\n");
    // Passes follow one another as fast as they may.
    let config = format!("{config}[clustermgtd]\nloop_time = \"1s\"\n");
    site.write("slurm-ec2.toml", config.as_bytes())?;
    let addresses: Vec<String> = ec2.instances().iter().map(|instance| instance.private_ip.to_string()).collect();
    site.write("state/state-id", format!("{STATE_ID}\n").as_bytes())?;
    site.write("state/mapping.json", &mapping(&ids, &addresses))?;
    site.write("bin/scontrol.nodes", shown(&ids, &addresses).as_bytes())?;
    site.write("bin/scontrol.partitions", b"PartitionName=q0\n   State=UP TotalCPUs=1 TotalNodes=1\n\n")?;
    let running = site.clustermgtd(programs)?;
    let mut ended = String::new();
    let mut pass = || next_pass(&site, &mut ended);
    if !pass() {
        return Err(format!("no pass over {nodes} nodes in {LIMIT:?}: {}", running.stop()?));
    }
    let first = running.so_far()?;
    if !(0..LATER).all(|_| pass()) {
        return Err(format!("no {LATER} further passes over {nodes} nodes in {LIMIT:?} each: {}", running.stop()?));
    }
    let later = running.so_far()?.cpu.saturating_sub(first.cpu) / LATER;
    let cost = running.terminate()?;
    let (status, log) = (site.read("state/clustermgtd-status.json"), site.read("log/clustermgtd.log"));
    let status: serde_json::Value = serde_json::from_str(&status).map_err(|error| format!("clustermgtd-status.json: {error}"))?;
    let done = &status["actions"];
    if status["pass"]["result"] != "complete" || status["instances"] != nodes || done["done"] != 0 || done["left"] != 0 {
        return Err(format!("a pass over {nodes} healthy nodes was not a quiet one, these figures mean nothing: {status}"));
    }
    let (bytes, parse) = (number(&log, "bytes=")?, number(&log, "us=")? / 1e6);
    Ok(Run { first, later, peak_kib: cost.peak_kib, bytes, parse })
}

/// Waits for the end of a pass other than the one that ended at `ended`; `false`: there was none for too long.
fn next_pass(site: &Site, ended: &mut String) -> bool {
    let began = Instant::now();
    while began.elapsed() < LIMIT {
        let status: serde_json::Value = serde_json::from_str(&site.read("state/clustermgtd-status.json")).unwrap_or_default();
        if let Some(now) = status["pass"]["ended"].as_str().filter(|now| now != ended) {
            now.clone_into(ended);
            return true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}

/// A number of the log's line about what scontrol showed.
fn number(log: &str, key: &str) -> Result<f64, String> {
    let line = log.lines().find(|line| line.contains("nodes read")).ok_or("the log does not say how nodes were read")?;
    let word = line.split_whitespace().find_map(|word| word.strip_prefix(key));
    word.and_then(|word| word.parse().ok()).ok_or_else(|| format!("no {key} in {line:?}"))
}

fn mapping(ids: &[String], addresses: &[String]) -> Vec<u8> {
    let since = "2026-01-01T00:00:00Z";
    let entry = |(number, (id, ip)): (usize, (&String, &String))| {
        let entry = serde_json::json!({
            "state": "running", "group": "q0", "launch": "20260101T000000Z-00000001", "requested": since, "since": since,
            "launched": since, "instance_id": id, "private_ip": ip, "hostname": format!("ip-{}", ip.replace('.', "-")),
            "instance_type": "c5.large", "zone": "eu-west-1a",
        });
        (format!("q0-dy-c5large-{}", number + 1), entry)
    };
    let nodes: serde_json::Map<String, serde_json::Value> = ids.iter().zip(addresses).enumerate().map(entry).collect();
    serde_json::json!({"version": 1, "cluster": "hpc", "nodes": nodes, "condemned": {}}).to_string().into_bytes()
}

/// `scontrol show nodes` of Slurm 24.11, all nodes busy.
fn shown(ids: &[String], addresses: &[String]) -> String {
    let mut text = String::new();
    for (number, (id, ip)) in ids.iter().zip(addresses).enumerate() {
        let _ = write!(
            text,
            "NodeName=q0-dy-c5large-{} Arch=x86_64 CoresPerSocket=1 \n   CPUAlloc=2 CPUEfctv=2 CPUTot=2 CPULoad=1.99\n   \
             AvailableFeatures=dynamic,c5.large\n   ActiveFeatures=dynamic,c5.large\n   Gres=(null)\n   \
             NodeAddr={ip} NodeHostName=ip-{} Port=6818 Version=24.11.5\n   \
             OS=Linux 6.1.0-31-cloud-amd64 #1 SMP PREEMPT_DYNAMIC Debian 6.1.128-1 (2025-02-07) \n   \
             RealMemory=3891 AllocMem=0 FreeMem=3210 Sockets=2 Boards=1\n   \
             State=ALLOCATED+CLOUD ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A\n   Partitions=q0 \n   \
             BootTime=1795969266 SlurmdStartTime=1795969270\n   LastBusyTime=1795969266 ResumeAfterTime=None\n   \
             CfgTRES=cpu=2,mem=3891M,billing=2\n   AllocTRES=cpu=2\n   CurrentWatts=0 AveWatts=0\n   \n   \
             InstanceId={id} InstanceType=c5.large\n\n",
            number + 1,
            ip.replace('.', "-"),
        );
    }
    text
}
