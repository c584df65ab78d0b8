//! docs/operations.md and the log: every warning and error of the programs has its row, and every row is a line that they write.

use std::fs;

use super::{files, root};

/// So many characters of a line's own words tell it from others.
const LEAST: usize = 12;
/// And so many need to be in the page: the end of a long line may be left out there.
const MOST: usize = 24;
/// What the page shows where the source has a placeholder, besides `…` and words in capitals.
const FILLED: [&str; 10] = [
    "pass:",
    "resting:",
    "fleet.lock",
    "starting",
    "stopping",
    "holds nodes of no group too",
    "slurmctld does not answer",
    "the heartbeat has not changed for",
    "this node shuts itself down",
    "it has registered",
];

/// Warnings and errors without words of their own: file, message, how often, and why no row can be asked for.
const WORDLESS: [(&str, &str, usize, &str); 11] = [
    ("programs/begin.rs", "{error}", 2, "the command line, the clock"),
    ("programs/clustermgtd/mod.rs", "{error}", 3, "why it does not start: errors that have rows"),
    ("programs/clustermgtd/passes.rs", "{}", 3, "the notes of plan/reconcile, and PrivateData: below"),
    ("programs/clustermgtd/perform.rs", "not done, {what}: {error}", 1, "too short: below"),
    ("programs/clusterstatusmgtd.rs", "{error}", 3, "why it does not start, or the fleet does not: below"),
    ("programs/computemgtd/watch.rs", "{why}", 2, "why the node stays on: below"),
    ("programs/fleet_status_manager.rs", "{error}", 1, "why the fleet is not started or stopped: below"),
    ("programs/launching.rs", "{what}: {}", 1, "what is wrong with a launch call: below"),
    ("programs/survey.rs", "{what}: {}", 1, "what EC2 does not tell: below"),
    ("programs/timed_out.rs", "| {line}", 1, "a line of a console"),
    ("plan/reconcile/forgotten.rs", "{text} {passes} passes: {nodes}", 1, "below"),
];

/// Lines that are put together elsewhere than where they are logged, and lines of information that people ask about: file and words.
const BESIDES: [(&str, &str); 46] = [
    ("plan/reconcile/forgotten.rs", "launched now: slurmctld waits for them, and ResumeProgram did not come for them in"),
    ("plan/reconcile/protected.rs", "boot failures, the threshold is"),
    ("plan/reconcile/protected.rs", "is set inactive: "),
    ("plan/reconcile/statics.rs", "static nodes replaced: "),
    ("plan/reconcile/statics.rs", "SuspendExcNodes of slurm.conf does not name them"),
    ("plan/watchdog.rs", "the heartbeat is stale; shutting down is switched off"),
    ("plan/watchdog.rs", "the heartbeat is stale; slurmctld has this node as"),
    ("plan/watchdog.rs", "the heartbeat is stale; this node is being rebooted"),
    ("plan/watchdog.rs", "but not for long enough yet"),
    ("plan/watchdog.rs", "but a job runs here"),
    ("plan/watchdog.rs", "the heartbeat is stale; slurmctld says nothing of use about this node"),
    ("plan/watchdog.rs", "no heartbeat is configured"),
    ("plan/watchdog.rs", "the heartbeat has not changed for"),
    ("programs/clustermgtd/news.rs", "pass: "),
    ("programs/clustermgtd/news.rs", "resting: "),
    ("programs/clustermgtd/passes.rs", "all cluster management is switched off"),
    ("programs/clustermgtd/policy.rs", "PrivateData in slurm.conf lacks cloud"),
    ("programs/clustermgtd/orders.rs", "nodes set down"),
    ("programs/clustermgtd/orders.rs", "nodes drained"),
    ("programs/clustermgtd/orders.rs", "nodes powered down"),
    ("programs/clustermgtd/orders.rs", "nodes powered down by force"),
    ("programs/clustermgtd/orders.rs", "nodes resumed"),
    ("programs/clustermgtd/orders.rs", "addresses taken back"),
    ("programs/clustermgtd/perform.rs", "not done, "),
    ("programs/clustermgtd/perform.rs", "instance given up"),
    ("programs/clustermgtd/perform.rs", "mapping entry dropped"),
    ("programs/clustermgtd/perform.rs", "partition set inactive"),
    ("programs/clustermgtd/perform.rs", "fleet status changed"),
    ("programs/clustermgtd/perform.rs", "reservation made"),
    ("programs/clustermgtd/perform.rs", "reservation changed"),
    ("programs/clustermgtd/perform.rs", "reservation removed"),
    ("programs/clustermgtd/reload.rs", "configuration read again"),
    ("programs/clustermgtd/reload.rs", "needs a restart"),
    ("programs/fleet/start.rs", "the fleet is not started: "),
    ("programs/fleet/stop.rs", "the fleet is not stopped: "),
    ("programs/launching.rs", "launch call failed, repeating it with the same client token"),
    ("programs/launching.rs", "client token is spent, repeating with a new one"),
    ("programs/launching.rs", "request is too large for EC2, halving it"),
    ("programs/launching.rs", "EC2 launched only part of the fleet"),
    ("programs/survey.rs", "EC2 does not tell the instances of interrupted launches"),
    ("store/error.rs", "is still locked after"),
    ("store/error.rs", "looks after this cluster already: "),
    ("store/error.rs", "cannot write in the state folder: "),
    ("store/error.rs", "is on a network file system"),
    ("store/error.rs", "nothing was changed: "),
    ("store/error.rs", "was changed by other programs again and again"),
];

/// How a text is made that is logged in the next lines.
const MADE: &str = "let text = format!(";

/// A file below `src/` without its tests.
struct Source {
    name: String,
    text: String,
}

/// A line of the log as the source has it, placeholders and all.
struct Message<'s> {
    source: &'s Source,
    line: usize,
    text: String,
}

fn sources() -> Vec<Source> {
    let src = root().join("src");
    let source = |path: &std::path::PathBuf| Source {
        name: path.strip_prefix(&src).unwrap().to_string_lossy().into_owned(),
        text: fs::read_to_string(path).unwrap().split("#[cfg(test)]\nmod tests {").next().unwrap().to_owned(),
    };
    files("src", &[".rs"]).iter().map(source).collect()
}

/// The string literals of a call, from behind its opening bracket on.
fn literals(call: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (mut depth, mut rest) = (1, call.chars().peekable());
    while let Some(c) = rest.next() {
        match c {
            '(' => depth += 1,
            ')' if depth == 1 => break,
            ')' => depth -= 1,
            // A character, which may be a quote; else a lifetime.
            '\'' => {
                let mut ahead = rest.clone();
                let first = ahead.next();
                if first == Some('\\') || ahead.next() == Some('\'') {
                    rest.by_ref().find(|c| *c == '\'');
                }
            }
            '"' => {
                let mut text = String::new();
                while let Some(c) = rest.next().filter(|c| *c != '"') {
                    if c != '\\' {
                        text.push(c);
                    } else if rest.next() == Some('\n') {
                        while rest.next_if(|c| c.is_whitespace()).is_some() {}
                    }
                }
                found.push(text);
            }
            _ => {}
        }
    }
    found
}

/// What these macros or functions are called with: of each call the longest text in it, else of the `text` that was made before it.
fn messages<'s>(sources: &'s [Source], openings: &[&str]) -> Vec<Message<'s>> {
    let mut found = Vec::new();
    for source in sources {
        for opening in openings {
            for (at, _) in source.text.match_indices(opening) {
                let longest = |from: usize| literals(&source.text[from..]).into_iter().max_by_key(String::len);
                let made_before = || source.text[..at].rfind(MADE).and_then(|at| longest(at + MADE.len()));
                let text = longest(at + opening.len()).or_else(made_before);
                let line = source.text[..at].matches('\n').count() + 1;
                found.push(Message { source, line, text: text.unwrap_or_default() });
            }
        }
    }
    found
}

fn trimmed(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || ":;,.()".contains(c))
}

/// The first words between placeholders that are enough to tell the line from others.
fn own_words(text: &str) -> Option<String> {
    let parts = text.split(['{', '}']).step_by(2);
    let words = parts.map(trimmed).find(|part| part.len() >= LEAST)?;
    Some(words.chars().take(MOST).collect::<String>().trim_end().to_owned())
}

/// The first cells of the page's tables of lines.
fn rows() -> Vec<String> {
    let page = fs::read_to_string(root().join("docs/operations.md")).unwrap();
    let mut rows = Vec::new();
    let mut is_of_lines = false;
    for line in page.lines() {
        let Some(row) = line.strip_prefix("| ") else {
            is_of_lines &= line.starts_with('|');
            continue;
        };
        let cell = row.split(" | ").next().unwrap();
        match cell == "line" || cell.starts_with("reason ") {
            true => is_of_lines = true,
            false if is_of_lines => rows.push(cell.to_owned()),
            false => {}
        }
    }
    assert!(rows.len() > 50, "{} rows: does the search still work?", rows.len());
    rows
}

#[test]
fn every_warning_and_error_has_its_row() {
    let (rows, sources) = (rows(), sources());
    let has_row = |words: &str| rows.iter().any(|row| row.contains(words));
    let mut wordless: Vec<(&str, &str, usize)> = WORDLESS.iter().map(|(file, text, times, _)| (*file, *text, *times)).collect();
    let mut missing = Vec::new();
    let mut lines = messages(&sources, &["tracing::warn!(", "tracing::error!("]);
    lines.extend(messages(&sources, &["draft.note("]));
    assert!(lines.len() > 100, "{} lines: does the search still work?", lines.len());
    for Message { source, line, text } in &lines {
        let place = format!("src/{}:{line}", source.name);
        match own_words(text) {
            Some(words) if has_row(&words) => {}
            Some(words) => missing.push(format!("{place}: no row has {words:?}")),
            None => match wordless.iter_mut().find(|(file, known, _)| *file == source.name && known == text) {
                Some((_, _, times @ 1..)) => *times -= 1,
                _ => missing.push(format!("{place}: {text:?} has no words of its own")),
            },
        }
    }
    let gone = wordless.iter().filter(|(_, _, times)| *times > 0);
    missing.extend(gone.map(|(file, text, _)| format!("src/{file}: {text:?} is there no more")));
    for (file, words) in BESIDES {
        let is_there = sources.iter().any(|source| source.name == file && plain(&source.text).contains(words));
        if !is_there {
            missing.push(format!("src/{file}: {words:?} is there no more"));
        } else if !has_row(trimmed(words)) {
            missing.push(format!("src/{file}: no row has {words:?}"));
        }
    }
    assert!(missing.is_empty(), "docs/operations.md:\n{}", missing.join("\n"));
}

/// Without line ends in texts, placeholders as the page shows them.
fn plain(text: &str) -> String {
    let mut joined = String::new();
    for line in text.lines() {
        joined.push_str(line.trim_start().trim_end_matches('\\'));
        joined.push_str(if line.ends_with('\\') { "" } else { "\n" });
    }
    let mut plain = String::new();
    let mut rest = joined.as_str();
    while let Some((before, after)) = rest.split_once('{') {
        plain.push_str(before);
        let end = after.find(|c: char| !(c.is_alphanumeric() || "_.:?#>".contains(c))).unwrap_or(after.len());
        if after[end..].starts_with('}') {
            plain.push('…');
            rest = &after[end + 1..];
        } else {
            plain.push('{');
            rest = after;
        }
    }
    plain + rest
}

#[test]
fn every_row_is_a_line_of_the_programs() {
    let all: String = sources().iter().map(|source| plain(&source.text)).collect();
    let mut unknown = Vec::new();
    for row in rows() {
        for span in row.split('`').skip(1).step_by(2) {
            let words = span.split(' ').filter(|word| !word.contains('='));
            let is_capitals = |word: &str| word.len() > 1 && trimmed(word).chars().all(|c| c.is_ascii_uppercase() || c == '_');
            let shown: Vec<&str> = words.map(|word| if is_capitals(word) { "…" } else { word }).collect();
            let shown = FILLED.iter().fold(shown.join(" "), |shown, filled| shown.replace(filled, "…"));
            for part in shown.split('…').map(trimmed).filter(|part| part.len() >= LEAST) {
                if !all.contains(part) {
                    unknown.push(format!("{part:?} in {span:?}"));
                }
            }
        }
    }
    assert!(unknown.is_empty(), "docs/operations.md has lines that nothing writes:\n{}", unknown.join("\n"));
}
