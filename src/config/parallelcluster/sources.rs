//! Where the parts of a program's configuration stand: its own file in; the other files that it goes by, and the sections to be read, out.
//! A file that must be there and cannot be read is noted in the program's own.

use std::fs;
use std::io;
use std::path::PathBuf;

use super::keys::{File, Keys};
use super::programs::{CLUSTERMGTD, CLUSTERMGTD_CONF, OURS, RESUME, RESUME_CONF, Role, STATUS, STATUS_CONF, in_usual_folder};
use crate::config::cite::Mistake;
use crate::config::source::Place;

/// A file besides the program's own.
struct Companion {
    path: PathBuf,
    text: String,
}

impl Companion {
    fn file(&self) -> File<'_> {
        File::new(&self.path, &self.text)
    }
}

/// Those files, as far as they are wanted.
#[derive(Default)]
pub(super) struct Texts {
    /// Has the section with cluster and launches.
    main: Option<Companion>,
    /// Of slurm_resume: what it says to all programs.
    resume: Option<Companion>,
    /// Of clustermgtd, for `slurm-ec2`.
    daemon: Option<Companion>,
    /// Of clusterstatusmgtd.
    status: Option<Companion>,
    /// Where they are or could be.
    paths: Vec<PathBuf>,
}

/// The same, taken apart.
pub(super) struct Files<'t> {
    paths: &'t [PathBuf],
    main: Option<File<'t>>,
    resume: Option<File<'t>>,
    daemon: Option<File<'t>>,
    status: Option<File<'t>>,
}

/// The sections that a program goes by.
pub(super) struct Sources<'f> {
    /// The program's own, which names its log.
    pub(super) own: Keys<'f>,
    /// Cluster, launches, JSON files; absent where no file has the section, and on a compute node.
    pub(super) main: Option<Keys<'f>>,
    /// `[slurm_resume]`, where the file that has it is known.
    pub(super) resume: Option<Keys<'f>>,
    /// `[clustermgtd]`, where the daemon's settings are wanted.
    pub(super) daemon: Option<Keys<'f>>,
    /// `[clusterstatusmgtd]`, where the fleet's settings are wanted.
    pub(super) status: Option<Keys<'f>>,
    /// `[slurm_ec2]`
    pub(super) ours: Keys<'f>,
    /// Those that are to be looked through for slips.
    pub(super) files: Vec<&'f File<'f>>,
    /// Where the files besides the program's own are, or would be.
    pub(super) paths: &'f [PathBuf],
}

/// Reads what a program needs besides its own file.
pub(super) fn read(role: Role, place: &Place, own: &File<'_>) -> Texts {
    let has = |section| own.ini.has_section(section);
    if !has(role.section()) && !matches!(role, Role::Suspend | Role::Clustermgtd) {
        let (section, name) = (role.section(), role.file_name());
        own.mistake(0..0, format!("there is no section [{section}]"), format!("name the file of {section}, {name}"));
    }
    let mut texts = Texts::default();
    if let Some((section, name)) = role.main()
        && !has(section)
    {
        let path = texts.find(place, name).unwrap_or_else(|| in_usual_folder(name, &place.plugin_dir));
        texts.main = if path == place.path { None } else { main(role, own, path, name) };
    }
    let main_has = |section: &str| texts.main.as_ref().is_some_and(|main| main.file().ini.has_section(section));
    if matches!(role, Role::Clustermgtd | Role::Fleet(_)) && !has(RESUME) && !main_has(RESUME) {
        texts.resume = texts.find(place, RESUME_CONF).and_then(|path| optional(own, path));
    }
    if role == Role::Admin && !has(CLUSTERMGTD) {
        texts.daemon = texts.find(place, CLUSTERMGTD_CONF).and_then(|path| optional(own, path));
    }
    if matches!(role, Role::Admin | Role::Clustermgtd | Role::Fleet(_)) && !has(STATUS) {
        // What it says has a default.
        let found = texts.find(place, STATUS_CONF);
        texts.status = found.and_then(|path| Some(Companion { text: fs::read_to_string(&path).ok()?, path }));
    }
    texts
}

/// The file with the section that a program cannot do without.
fn main(role: Role, own: &File<'_>, path: PathBuf, name: &str) -> Option<Companion> {
    match fs::read_to_string(&path) {
        Ok(text) => Some(Companion { path, text }),
        Err(error) => {
            let what =
                if role.main() == Role::Suspend.main() { "everything but the heartbeat is" } else { "cluster and nodes are" };
            let message = format!("{what} in {}, which cannot be read: {error}", path.display());
            let help = format!("write {name} beside this file, readable for this user");
            own.mistake(own.ini.header(role.section()), message, help);
            None
        }
    }
}

/// A file that need not be there; one that is there must be readable, for the programs must agree.
fn optional(own: &File<'_>, path: PathBuf) -> Option<Companion> {
    match fs::read_to_string(&path) {
        Ok(text) => Some(Companion { path, text }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            let message = format!("{} cannot be read: {error}", path.display());
            own.mistake(0..0, message, "make it readable for this user: this program goes by it too");
            None
        }
    }
}

impl Texts {
    /// Where a file is, in the folder of the program's own or else in its usual one; `None`: it is in neither.
    fn find(&mut self, place: &Place, name: &str) -> Option<PathBuf> {
        let places = [place.path.with_file_name(name), in_usual_folder(name, &place.plugin_dir)];
        let found = places.iter().find(|path| path.exists()).cloned();
        for path in places {
            if path != place.path && !self.paths.contains(&path) {
                self.paths.push(path);
            }
        }
        found
    }

    pub(super) fn files(&self) -> Files<'_> {
        Files {
            paths: &self.paths,
            main: self.main.as_ref().map(Companion::file),
            resume: self.resume.as_ref().map(Companion::file),
            daemon: self.daemon.as_ref().map(Companion::file),
            status: self.status.as_ref().map(Companion::file),
        }
    }
}

impl Files<'_> {
    /// Notes sections that are missing, or written where nobody reads them.
    pub(super) fn sources<'f>(&'f self, role: Role, own: &'f File<'f>) -> Sources<'f> {
        let main = self.main.as_ref().unwrap_or(own);
        let of = |file: &'f File<'f>, section: &'static str| file.ini.has_section(section).then(|| file.section(section));
        let first =
            |section| [Some(own), Some(main), self.resume.as_ref()].into_iter().flatten().find_map(|file| of(file, section));
        let main_section = role.main().map(|(section, _)| section);
        if let (Some(file), Some(section)) = (&self.main, main_section)
            && !file.source.text.is_empty()
            && !file.ini.has_section(section)
        {
            file.mistake(0..0, format!("there is no section [{section}]"), format!("this must be the file of {section}"));
        }
        let resume = first(RESUME).filter(|_| role != Role::Computemgtd);
        let mut files = vec![main];
        for file in [Some(own), self.resume.as_ref(), self.daemon.as_ref()].into_iter().flatten() {
            if !files.iter().any(|known| std::ptr::eq(*known, file)) {
                files.push(file);
            }
        }
        // All programs of the head node must agree on it, so it has one place.
        let shared = resume.map_or(main, |keys| keys.file());
        for other in &files {
            if !std::ptr::eq(*other, shared) && other.ini.has_section(OURS) {
                let help = format!("move it to {}: all programs must agree on it", shared.source.path.display());
                other.mistake(other.ini.header(OURS), format!("section [{OURS}] is not read here"), help);
            }
        }
        let daemon = match role {
            Role::Clustermgtd | Role::Fleet(_) => of(main, CLUSTERMGTD),
            Role::Admin => [Some(own), self.daemon.as_ref()].into_iter().flatten().find_map(|file| of(file, CLUSTERMGTD)),
            Role::Resume | Role::Suspend | Role::Computemgtd => None,
        };
        Sources {
            own: of(own, role.section()).unwrap_or_else(|| main.section(main_section.unwrap_or(role.section()))),
            main: main_section.and_then(|section| of(main, section)),
            resume,
            daemon,
            status: [Some(own), self.status.as_ref()].into_iter().flatten().find_map(|file| of(file, STATUS)),
            ours: shared.section(OURS),
            files,
            paths: self.paths,
        }
    }

    /// All mistakes, file by file; those of clusterstatusmgtd's, by which only a few values go that have defaults, as warnings.
    pub(super) fn finish(self) -> (Vec<Mistake>, Vec<String>) {
        let mistakes = [self.main, self.resume, self.daemon].into_iter().flatten().flat_map(File::finish).collect();
        let warnings = self.status.into_iter().flat_map(File::finish);
        let told = |Mistake { path, line, column, message, .. }: Mistake| {
            format!("{}:{line}:{column}: {message}; its default is taken", path.display())
        };
        (mistakes, warnings.map(told).collect())
    }
}
