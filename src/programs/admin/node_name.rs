//! `slurm-ec2 node-name`: which node is this instance? For the unit that starts `slurmd -N "$(slurm-ec2 node-name)"` at boot, since a
//! batch launch cannot carry names.
//!
//! Every place that may know is asked, in the order of what it costs, again and again until one knows or the time is over: the launch may
//! not have got as far yet. Then it says what was asked and what each said. Works without a configuration, by the tag or slurmctld.
//! Never guesses, changes nothing but the file that `--save` writes.

mod pick;
mod places;

use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;

use self::pick::Identity;
use self::places::{Asker, Place};
use crate::config::file::ConfigError;
use crate::config::settings::Settings;
use crate::config::source;
use crate::error::chain;
use crate::programs::args::Environment;
use crate::programs::computemgtd;
use crate::programs::exit::Exit;
use crate::programs::slow::Slow;
use crate::programs::{begin, startup};
use crate::store::atomic;

use super::PROGRAM;

/// For the configuration, which may lie on a shared folder.
const READ_LIMIT: Duration = Duration::from_secs(30);

/// Between two lines about what is waited for.
const SAY_EVERY: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Args)]
pub(super) struct NodeName {
    /// The longest to wait for the name (30s, 5m) [default: node_name_timeout of the configuration, 5m]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    /// A private address of this machine, instead of looking for them; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    address: Vec<String>,
    /// Write the name into computemgtd's node_name_file as well
    #[arg(long)]
    save: bool,
}

/// Prints the name.
pub(super) fn node_name(args: &NodeName, given: Option<&Path>, env: &Environment) -> Exit {
    let Some(runtime) = begin::runtime() else { return Exit::TempFail };
    let exit = runtime.block_on(async {
        match settings(given, env).await {
            Ok(settings) => look(args, settings, env).await,
            Err(exit) => exit,
        }
    });
    // What hangs is left behind.
    runtime.shutdown_background();
    exit
}

/// computemgtd's configuration: it is the one of compute nodes. Where there is none and none is named, the defaults.
async fn settings(given: Option<&Path>, env: &Environment) -> Result<Settings, Exit> {
    let named = given.or(env.config.as_deref()).or(env.config_file.as_deref());
    let (is_named, shown) = (named.is_some(), named.map_or_else(String::new, |path| format!(" {}", path.display())));
    let (given, env) = (given.map(Path::to_owned), env.clone());
    let read = move || {
        // Where no file is named, looking for one may hang as well.
        let place = startup::config_place(computemgtd::PROGRAM, given.as_deref(), &env);
        match source::load(computemgtd::PROGRAM, &place) {
            Err(ConfigError::Unreadable { source, .. }) if source.kind() == std::io::ErrorKind::NotFound && !is_named => {
                Ok(source::as_far_as_it_goes(computemgtd::PROGRAM, &place))
            }
            read => read,
        }
    };
    match Slow::new("config").run(READ_LIMIT, read).await.into_any() {
        Some(Ok(settings)) => Ok(settings),
        Some(Err(error)) => {
            startup::complain(PROGRAM, &error.to_string());
            // A file on NFS may not be there yet, so early in the boot: the unit is to ask again.
            Err(if matches!(error, ConfigError::Unreadable { .. }) { Exit::TempFail } else { Exit::Config })
        }
        None => {
            startup::complain(PROGRAM, &format!("the configuration{shown} cannot be read: its file system does not answer"));
            Err(Exit::TempFail)
        }
    }
}

async fn look(args: &NodeName, settings: Settings, env: &Environment) -> Exit {
    let begun = Instant::now();
    let until = begun + args.timeout.unwrap_or(settings.computemgtd.node_name_timeout);
    let file = settings.computemgtd.node_name_file.clone();
    let mut places = Place::all(&settings, until);
    let mut own = Identity { addresses: args.address.iter().cloned().collect(), ..Identity::default() };
    let mut asker = Asker::new(settings, env.slurm_conf.as_deref());
    let mut said_at: Option<Instant> = None;
    loop {
        // Asked again: early in the boot neither metadata nor the network may be up.
        asker.look_at_self(&mut own, !args.address.is_empty()).await;
        for place in &mut places {
            if place.is_due()
                && let Some(name) = place.ask(&mut asker, &own, until).await
            {
                startup::complain(PROGRAM, &format!("this instance is node {name}, by {}", place.kind));
                startup::say(&name);
                return if args.save { save(&file, &name) } else { Exit::Done };
            }
        }
        let Some(next) = places.iter().filter_map(Place::next).min() else { break };
        if said_at.is_none_or(|at| at.elapsed() >= SAY_EVERY) {
            said_at = Some(Instant::now());
            say(
                &places,
                &own,
                &format!("no name yet, asking on for up to {} s", until.saturating_duration_since(Instant::now()).as_secs()),
            );
        }
        tokio::time::sleep_until(next.into()).await;
    }
    say(&places, &own, &format!("no name found in {} s", begun.elapsed().as_secs()));
    startup::complain(
        PROGRAM,
        "check that slurm_resume has launched this instance for a node (its log on the head node), and that one of the above can know it",
    );
    Exit::TempFail
}

/// One line for all, one for each place.
fn say(places: &[Place], own: &Identity, what: &str) {
    let instance = own.instance.as_deref().unwrap_or("unknown");
    startup::complain(PROGRAM, &format!("{what}; this instance: {instance}, addresses: {}", own.list()));
    for Place { kind, said, tries, .. } in places {
        startup::complain(PROGRAM, &format!("{kind} (asked {tries} times): {said}"));
    }
}

/// For computemgtd. The name is printed already; a file that cannot be written is a failure all the same.
fn save(file: &Path, name: &str) -> Exit {
    match atomic::replace(file, format!("{name}\n").as_bytes(), 0o644) {
        Ok(()) => Exit::Done,
        Err(error) => {
            startup::complain(PROGRAM, &format!("cannot write {}: {}", file.display(), chain(&error)));
            Exit::SomeFailed
        }
    }
}
