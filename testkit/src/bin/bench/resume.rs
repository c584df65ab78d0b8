//! Resumes against the in-project EC2, whose launch calls take 1.5 s and 5 ms for each instance and answer at real size
//! (about 2.5 KB for each instance).

use std::io::Read as _;
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use slurm_ec2_testkit::ec2::{Behaviour, Endpoint, Latency, Rule};

use crate::measure::{Cost, SoFar};
use crate::site::Site;
use crate::table::{Table, median, mib, ms, s, target};

/// From that many nodes on one run is enough: such a run takes long, and its waits outweigh its noise.
const ONE_RUN_FROM: usize = 5000;

/// How long `slurm_resume` may take to its first request before something is wrong with it.
const FIRST_REQUEST: Duration = Duration::from_secs(20);

/// Nodes and groups of the rows, each with the bucket off and on.
const SIZES: [(usize, usize); 7] = [(1, 1), (100, 1), (1000, 1), (5000, 1), (100, 10), (1000, 10), (5000, 10)];

struct Run {
    cost: Cost,
    slowest: Duration,
    api_calls: usize,
    scontrol_calls: usize,
}

/// Start to the first byte that EC2 sees, over plain HTTP: all of the first request is there then.
pub(crate) fn first_byte(programs: &Path) -> Result<SoFar, String> {
    const GATE: &str = "first";
    let ec2 = Endpoint::start(Behaviour::with_rules(vec![Rule::on("*").nth(1).hold(GATE)]));
    let site = Site::new(&ec2.url(), 1, 1, true)?;
    let running = site.resume(programs)?;
    if !ec2.wait_held(GATE, FIRST_REQUEST) {
        return Err(format!("slurm_resume sent no request in {FIRST_REQUEST:?}: {:?}", running.stop()));
    }
    let so_far = running.so_far()?;
    ec2.release(GATE);
    running.end()?;
    Ok(so_far)
}

/// The same over TLS, as to the real EC2: with the host's CA bundle read, up to the first byte of the handshake. Nobody
/// answers; the program is stopped then.
pub(crate) fn first_tls_byte(programs: &Path) -> Result<SoFar, String> {
    let text = |error: std::io::Error| format!("the listener for TLS: {error}");
    let listener = TcpListener::bind("127.0.0.1:0").map_err(text)?;
    let url = format!("https://{}", listener.local_addr().map_err(text)?);
    let site = Site::new(&url, 1, 1, true)?;
    let (send, first) = mpsc::channel();
    let accept = std::thread::spawn(move || {
        if let Ok((mut stream, _)) = listener.accept()
            && stream.read(&mut [0; 1]).is_ok_and(|bytes| bytes == 1)
        {
            let _ = send.send(stream);
        }
    });
    let running = site.resume(programs)?;
    let Ok(_stream) = first.recv_timeout(FIRST_REQUEST) else {
        return Err(format!("slurm_resume began no handshake in {FIRST_REQUEST:?}: {:?}", running.stop()));
    };
    let so_far = running.so_far()?;
    running.stop()?;
    let _ = accept.join();
    Ok(so_far)
}

pub(crate) fn table(programs: &Path, runs: usize, largest: usize, note: &mut dyn FnMut(&str)) -> Result<Table, String> {
    let heads = [
        "nodes",
        "groups",
        "bucket",
        "runs",
        "wall s",
        "slowest call s",
        "ratio",
        "cpu ms",
        "peak MiB",
        "API calls",
        "scontrol",
        "its cpu ms",
        "target",
    ];
    let title =
        "slurm_resume: launch calls of 1.5 s + 5 ms per instance, 2.5 KB of answer per instance; cpu and peak are its own";
    let mut table = Table::new(title, &heads);
    let mut hundred_in_one = None;
    for (nodes, groups) in SIZES.into_iter().filter(|(nodes, _)| *nodes <= largest) {
        for bucket in [false, true] {
            let word = if bucket { "on" } else { "off" };
            note(&format!("resume of {nodes} nodes in {groups} groups, bucket {word}"));
            let runs = if nodes >= ONE_RUN_FROM { 1 } else { runs };
            let all: Vec<Run> = (0..runs).map(|_| once(programs, nodes, groups, bucket)).collect::<Result<_, _>>()?;
            let middle = |of: &dyn Fn(&Run) -> Duration| median(all.iter().map(of)).unwrap_or_default();
            let (wall, cpu) = (middle(&|run| run.cost.wall), middle(&|run| run.cost.cpu));
            let (slowest, children) = (middle(&|run| run.slowest), middle(&|run| run.cost.children));
            let peak = median(all.iter().map(|run| run.cost.peak_kib)).unwrap_or_default();
            if (nodes, groups, bucket) == (100, 1, false) {
                hundred_in_one = Some(wall);
            }
            let mut targets = Vec::new();
            if nodes == 1000 {
                targets.push(target("cpu", cpu.as_secs_f64() * 1000.0, 60.0, "ms"));
                targets.push(target("peak", peak as f64 / 1024.0, 25.0, "MiB"));
            }
            if (nodes, groups, bucket) == (1000, 1, false) {
                let most = slowest.as_secs_f64() * 1.15 + children.as_secs_f64();
                targets.push(target("wall", wall.as_secs_f64(), most, "s"));
            }
            match (nodes, groups, bucket, hundred_in_one) {
                (1000, 10, false, Some(one)) => targets.push(target("wall", wall.as_secs_f64(), one.as_secs_f64() * 1.3, "s")),
                (1000, 10, true, _) => targets.push(target("wall", wall.as_secs_f64(), 5.2, "s")),
                _ => {}
            }
            table.row(vec![
                nodes.to_string(),
                groups.to_string(),
                word.to_owned(),
                runs.to_string(),
                s(wall),
                s(slowest),
                format!("{:.3}", wall.as_secs_f64() / slowest.as_secs_f64()),
                ms(cpu),
                mib(peak),
                median(all.iter().map(|run| run.api_calls)).unwrap_or_default().to_string(),
                median(all.iter().map(|run| run.scontrol_calls)).unwrap_or_default().to_string(),
                ms(children),
                targets.join("; "),
            ]);
        }
    }
    Ok(table)
}

fn once(programs: &Path, nodes: usize, groups: usize, bucket: bool) -> Result<Run, String> {
    let behaviour = Behaviour { latency: Latency::bench(), ..Behaviour::default() };
    let ec2 = Endpoint::start(behaviour);
    let site = Site::new(&ec2.url(), nodes, groups, bucket)?;
    let cost = site.resume(programs)?.end()?;
    let requests = ec2.requests();
    let (live, mapped) = (ec2.live_instances().len(), site.mapped());
    if live != nodes || mapped != nodes {
        return Err(format!("of {nodes} nodes {mapped} are mapped and {live} instances live: these figures mean nothing"));
    }
    let slowest = requests.iter().filter_map(|request| request.took_ms).fold(0.0, f64::max);
    Ok(Run {
        cost,
        slowest: Duration::from_secs_f64(slowest / 1000.0),
        api_calls: requests.len(),
        scontrol_calls: site.scontrol_calls(),
    })
}
