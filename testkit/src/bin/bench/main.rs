//! `make bench`: how long the programs take and what they need, as tables. Nothing is asserted but that the programs did
//! their work; the last column compares with the targets the project has set itself.
//!
//! Usage: see [`USAGE`]. Each figure is the median of the runs. What is measured how is told in `measure.rs`.
#![expect(clippy::disallowed_methods, reason = "a bench starts programs, and makes the files they read")]

mod measure;
mod parallelcluster;
mod pass;
mod resume;
mod site;
mod table;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use measure::{Cost, SoFar};
use table::{Table, median, mib, ms, target};

const USAGE: &str = "usage: bench [--bin-dir DIR] [--runs N] [--largest NODES] [start] [hostlist] [resume] [parallelcluster] [pass]\n\n\
    Prints tables of times; without a name of a table, all of them.\n\
    --bin-dir DIR    where the programs are (else $SLURM_EC2_BIN_DIR, else the release build)\n\
    --runs N         runs of each measurement, 5 by default; the median counts\n\
    --largest NODES  leaves out resumes and passes of more nodes\n";

const PROGRAMS: [&str; 7] =
    ["slurm_resume", "slurm_suspend", "slurm_resume_fail", "slurm-ec2", "clustermgtd", "clusterstatusmgtd", "computemgtd"];

type FirstByte = fn(&Path) -> Result<SoFar, String>;

struct Options {
    programs: PathBuf,
    runs: usize,
    largest: usize,
    tables: Vec<String>,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    if arguments.next_if(|argument| argument == measure::MEASURE).is_some() {
        return measure::starter(arguments);
    }
    let arguments: Vec<String> = arguments.map(|argument| argument.to_string_lossy().into_owned()).collect();
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        say(USAGE);
        return ExitCode::SUCCESS;
    }
    let result = options(arguments.into_iter()).and_then(|options| bench(&options));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "bench: {why}");
            ExitCode::FAILURE
        }
    }
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let programs = match std::env::var_os("SLURM_EC2_BIN_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => site::repository().join("target/x86_64-unknown-linux-gnu/release"),
    };
    let mut options = Options { programs, runs: 5, largest: usize::MAX, tables: Vec::new() };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value\n\n{USAGE}"));
        let number = |text: String| match text.parse() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(format!("{text:?} is not a number from 1 on\n\n{USAGE}")),
        };
        match argument.as_str() {
            "--bin-dir" => options.programs = PathBuf::from(value()?),
            "--runs" => options.runs = number(value()?)?,
            "--largest" => options.largest = number(value()?)?,
            "start" | "hostlist" | "resume" | "parallelcluster" | "pass" => options.tables.push(argument),
            _ => return Err(format!("{argument:?} is neither an option nor a table\n\n{USAGE}")),
        }
    }
    let dir = &options.programs;
    options.programs = dir.canonicalize().map_err(|error| format!("{}: {error} (`make build` first)", dir.display()))?;
    Ok(options)
}

fn bench(options: &Options) -> Result<(), String> {
    let wanted = |table: &str| options.tables.is_empty() || options.tables.iter().any(|name| name == table);
    say(&format!("programs in {}, median of {} runs\n\n", options.programs.display(), options.runs));
    if wanted("start") {
        say(&start(options)?.to_string());
    }
    if wanted("hostlist") {
        say(&hostlist(options)?.to_string());
    }
    if wanted("resume") {
        say(&resume::table(&options.programs, options.runs, options.largest, &mut note)?.to_string());
    }
    if wanted("parallelcluster") {
        say(&parallelcluster::table(&options.programs, options.runs, options.largest, &mut note)?.to_string());
    }
    if wanted("pass") {
        say(&pass::table(&options.programs, options.runs, options.largest, &mut note)?.to_string());
    }
    Ok(())
}

fn start(options: &Options) -> Result<Table, String> {
    let mut table = Table::new("start-up", &["program", "wall ms", "cpu ms", "peak MiB", "target"]);
    for program in PROGRAMS {
        let cost = repeated(options, program, &["--version"])?;
        table.row(vec![format!("{program} --version"), ms(cost.wall), ms(cost.cpu), mib(cost.peak_kib), String::new()]);
    }
    let firsts: [(&str, FirstByte); 2] = [("http", resume::first_byte), ("https", resume::first_tls_byte)];
    for (way, first_byte) in firsts {
        let name = format!("slurm_resume to first EC2 byte, {way}");
        note(&name);
        let all: Vec<SoFar> = (0..options.runs).map(|_| first_byte(&options.programs)).collect::<Result<_, _>>()?;
        let middle = |of: &dyn Fn(&SoFar) -> Duration| median(all.iter().map(of)).unwrap_or_default();
        let (wall, cpu) = (middle(&|run| run.wall), middle(&|run| run.cpu));
        let target = target("cpu", cpu.as_secs_f64() * 1000.0, 15.0, "ms");
        table.row(vec![name, ms(wall), ms(cpu), String::new(), target]);
    }
    Ok(table)
}

/// Whole programs, start-up included; what start-up costs is the difference between the two kinds of columns.
fn hostlist(options: &Options) -> Result<Table, String> {
    let heads = ["slurm-ec2 ...", "wall ms", "cpu ms", "less start-up: wall ms", "cpu ms", "peak MiB", "target"];
    let mut table = Table::new("host lists, output to /dev/null; compress expands its argument first", &heads);
    let empty = repeated(options, "slurm-ec2", &["--version"])?;
    for names in [10_000, 100_000, 1_000_000] {
        for command in ["expand", "compress"] {
            let list = format!("n[0-{}]", names - 1);
            let cost = repeated(options, "slurm-ec2", &[command, &list])?;
            let target = match (command, names) {
                ("expand", 1_000_000) => target("wall", cost.wall.as_secs_f64() * 1000.0, 150.0, "ms"),
                _ => String::new(),
            };
            table.row(vec![
                format!("{command} {list}"),
                ms(cost.wall),
                ms(cost.cpu),
                ms(cost.wall.saturating_sub(empty.wall)),
                ms(cost.cpu.saturating_sub(empty.cpu)),
                mib(cost.peak_kib),
                target,
            ]);
        }
    }
    Ok(table)
}

/// Runs a program that needs no site, and takes the median of each figure.
fn repeated(options: &Options, program: &str, args: &[&str]) -> Result<Cost, String> {
    note(&format!("{program} {}", args.join(" ")));
    let path = options.programs.join(program);
    let once = || measure::start(&path, args, &[], Path::new("/")).and_then(measure::Running::end);
    let all: Vec<Cost> = (0..options.runs).map(|_| once()).collect::<Result<_, _>>()?;
    let time = |of: &dyn Fn(&Cost) -> Duration| median(all.iter().map(of)).unwrap_or_default();
    Ok(Cost {
        wall: time(&|cost| cost.wall),
        cpu: time(&|cost| cost.cpu),
        children: time(&|cost| cost.children),
        peak_kib: median(all.iter().map(|cost| cost.peak_kib)).unwrap_or_default(),
        code: Some(0),
    })
}

/// A table to standard output; whoever closed it does not want the rest.
fn say(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
    let _ = std::io::stdout().flush();
}

/// What is being measured now, for somebody who watches.
fn note(what: &str) {
    use std::io::IsTerminal as _;
    if std::io::stderr().is_terminal() {
        let _ = writeln!(std::io::stderr(), "{what} ...");
    }
}
