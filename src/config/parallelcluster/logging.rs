//! The Python package's logging configuration: the text of a `fileConfig` file in, the log file, the level and the file of the events
//! out. Formatters and every other handler are left alone: the programs' line is fixed.

use std::path::PathBuf;

use tracing::Level;

use super::ini::{self, Ini};
use crate::config::settings::EventsFile;

/// The package's handler of `slurm_resume.events`.
const EVENTS: &str = "eventsHandler";

/// What the file says of the root logger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Logging {
    /// Of its first handler that writes to a file.
    pub(crate) file: Option<PathBuf>,
    /// The stricter one of the logger's and that handler's.
    pub(crate) level: Option<Level>,
    /// The events are warnings (aws-facts B.17).
    pub(crate) events: EventsFile,
}

/// Errors: what is wrong, for a warning.
pub(crate) fn read(text: &str) -> Result<Logging, String> {
    let (ini, problems) = ini::parse(text);
    if let Some(problem) = problems.first() {
        return Err(problem.message.clone());
    }
    if !ini.has_section("logger_root") {
        return Err("it has no section [logger_root]".to_owned());
    }
    let handlers = value(&ini, "logger_root", "handlers")?.unwrap_or_default();
    let mut found = Logging { file: None, level: level(&ini, "logger_root")?, events: events(&ini)? };
    for name in handlers.split(',').map(str::trim).filter(|name| !name.is_empty() && *name != EVENTS) {
        let section = format!("handler_{name}");
        if !ini.has_section(&section) {
            return Err(format!("it has no section [{section}]"));
        }
        let Some(file) = file_of(&ini, &section)? else { continue };
        found.file = Some(file);
        // Level::ERROR is the least.
        found.level = [found.level, level(&ini, &section)?].into_iter().flatten().min();
        break;
    }
    Ok(found)
}

/// Where the events go; a level above a warning's switches them off.
fn events(ini: &Ini) -> Result<EventsFile, String> {
    let section = format!("handler_{EVENTS}");
    if !ini.has_section(&section) {
        return Ok(EventsFile::Usual);
    }
    if level(ini, &section)? == Some(Level::ERROR) {
        return Ok(EventsFile::Off);
    }
    Ok(file_of(ini, &section)?.map_or(EventsFile::Usual, EventsFile::Named))
}

/// The file that a handler writes to, if it is one that does.
fn file_of(ini: &Ini, section: &str) -> Result<Option<PathBuf>, String> {
    if !value(ini, section, "class")?.is_some_and(|class| class.ends_with("FileHandler")) {
        return Ok(None);
    }
    let args = value(ini, section, "args")?.unwrap_or_default();
    let kwargs = value(ini, section, "kwargs")?.unwrap_or_default();
    let file = literal(args.trim_start_matches(['(', '[', ' ', '\n'])).or_else(|| {
        let (_, behind) = kwargs.split_once("'filename'").or_else(|| kwargs.split_once("\"filename\""))?;
        literal(behind.trim_start_matches([':', ' ', '\n']))
    });
    match file {
        None => Err(format!("[{section}] args does not begin with a file's name in quotes")),
        Some(file) if !file.starts_with('/') => Err(format!("[{section}] args: {file:?} is no absolute path")),
        Some(file) => Ok(Some(PathBuf::from(file))),
    }
}

fn value(ini: &Ini, section: &str, key: &str) -> Result<Option<String>, String> {
    match ini.get(section, key) {
        None => Ok(None),
        Some(Ok(found)) => Ok(Some(found.text)),
        Some(Err(problem)) => Err(problem.message),
    }
}

/// `None`: the file leaves it open.
fn level(ini: &Ini, section: &str) -> Result<Option<Level>, String> {
    let Some(word) = value(ini, section, "level")? else { return Ok(None) };
    Ok(Some(match word.as_str() {
        "CRITICAL" | "FATAL" | "ERROR" => Level::ERROR,
        "WARNING" | "WARN" => Level::WARN,
        "INFO" => Level::INFO,
        "DEBUG" => Level::DEBUG,
        "NOTSET" | "" => return Ok(None),
        other => return Err(format!("[{section}] level {other:?} is unknown")),
    }))
}

/// The Python string that a text begins with; one with escapes in it is not read.
fn literal(text: &str) -> Option<String> {
    let text = text.strip_prefix(['r', 'u', 'R', 'U']).unwrap_or(text);
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let (inside, _) = text[1..].split_once(quote)?;
    (!inside.is_empty() && !inside.contains('\\')).then(|| inside.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "[loggers]\nkeys = root\n[handlers]\nkeys = screen, file\n[formatters]\nkeys = line\n";

    fn of(rest: &str) -> Result<Logging, String> {
        read(&format!("{HEAD}{rest}[formatter_line]\nformat = %(asctime)s - %(message)s\n"))
    }

    #[test]
    fn the_roots_first_file_and_the_stricter_level() {
        let screen = "[handler_screen]\nclass = StreamHandler\nargs = (sys.stdout,)\n";
        for (root, class, level, args, expected) in [
            ("INFO", "FileHandler", "WARNING", "('/var/log/a.log',)", Level::WARN),
            ("DEBUG", "logging.handlers.WatchedFileHandler", "NOTSET", "(\"/var/log/a.log\", \"a\")", Level::DEBUG),
            ("CRITICAL", "handlers.RotatingFileHandler", "DEBUG", "( '/var/log/a.log', 'a', 1000, 2 )", Level::ERROR),
        ] {
            let text = format!(
                "{screen}[logger_root]\nlevel = {root}\nhandlers = screen, file\n\
                 [handler_file]\nclass = {class}\nlevel = {level}\nargs = {args}\n"
            );
            assert_eq!(
                of(&text),
                Ok(Logging { file: Some("/var/log/a.log".into()), level: Some(expected), events: EventsFile::Usual })
            );
        }
        let keywords = "[logger_root]\nhandlers = file\n[handler_file]\nclass = FileHandler\nkwargs = {'filename': '/x.log'}\n";
        assert_eq!(of(keywords), Ok(Logging { file: Some("/x.log".into()), level: None, events: EventsFile::Usual }));
        let none = format!("{screen}[logger_root]\nlevel = INFO\nhandlers = screen\n");
        assert_eq!(of(&none), Ok(Logging { file: None, level: Some(Level::INFO), events: EventsFile::Usual }));
    }

    #[test]
    fn the_events_have_a_handler_of_their_own() {
        let head = "[logger_root]\nhandlers = eventsHandler, file\n[handler_file]\nclass = FileHandler\nargs = ('/a.log',)\n";
        for (level, expected) in [
            ("WARNING", EventsFile::Named("/e.jsonl".into())),
            ("DEBUG", EventsFile::Named("/e.jsonl".into())),
            ("ERROR", EventsFile::Off),
            ("CRITICAL", EventsFile::Off),
        ] {
            let events = format!("[handler_eventsHandler]\nclass = FileHandler\nlevel = {level}\nargs = ('/e.jsonl',)\n");
            let found = of(&format!("{head}{events}")).expect(level);
            assert_eq!((found.file, found.events), (Some("/a.log".into()), expected), "{level}");
        }
        let stream = format!("{head}[handler_eventsHandler]\nclass = StreamHandler\nargs = (sys.stdout,)\n");
        assert_eq!(of(&stream).map(|found| found.events), Ok(EventsFile::Usual));
    }

    #[test]
    fn what_cannot_be_used_says_why() {
        for (text, part) in [
            ("", "no section [logger_root]"),
            ("[logger_root]\nhandlers = file\n", "no section [handler_file]"),
            ("[logger_root]\nlevel = LOUD\n", "level \"LOUD\" is unknown"),
            ("[logger_root]\nhandlers = file\n[handler_file]\nclass = FileHandler\nargs = (name,)\n", "does not begin with"),
            ("[logger_root]\nhandlers = file\n[handler_file]\nclass = FileHandler\nargs = ('x.log',)\n", "no absolute path"),
            (
                "[logger_root]\nhandlers = file\n[handler_file]\nclass = FileHandler\nargs = ('%(where)s',)\n",
                "refers to \"where\"",
            ),
            ("[logger_root]\n[logger_root]\n", "twice"),
        ] {
            let error = of(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
