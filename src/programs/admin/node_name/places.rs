//! Where the name may be found, each asked with its own pace: this machine's tag, the mapping on a shared folder, ParallelCluster's table,
//! slurmctld, EC2. An answer, or what the place said instead, comes out. Changes nothing anywhere.

use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::pick::{self, Identity};
use crate::aws::again::Pauses;
use crate::config::settings::Settings;
use crate::dynamodb::DynamoDb;
use crate::ec2::sdk::{Ec2, Ec2Error};
use crate::error::chain;
use crate::imds::Metadata;
use crate::model::instance::tag;
use crate::programs::slow::{Slow, block_on};
use crate::slurm::scontrol::Scontrol;

/// One question to one place.
const LIMIT: Duration = Duration::from_secs(20);

/// What this machine is, which it must know before it asks others.
const METADATA_LIMIT: Duration = Duration::from_secs(5);

/// Even when the time is nearly over.
const LEAST: Duration = Duration::from_secs(1);

/// A thousand instances boot together, and EC2 lets an account ask some 20 times a second, launches' own questions included: it is asked
/// late and seldom.
const EC2_AFTER: Duration = Duration::from_secs(15);

/// EC2's code for it.
const NOT_ALLOWED: &str = "UnauthorizedOperation";

type Answer = Result<String, String>;

/// A place, and what it said last.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) kind: Kind,
    pub(super) said: String,
    pub(super) tries: u32,
    /// When it is asked next; `None`: there is no time left for that.
    due: Option<Instant>,
    pauses: Pauses,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Tag,
    Mapping(PathBuf),
    Table(String),
    Slurmctld,
    Ec2,
}

impl Place {
    /// The places that there are by the configuration, those that cost least first. `until` is the end of all waiting.
    pub(super) fn all(settings: &Settings, until: Instant) -> Vec<Self> {
        let now = Instant::now();
        let mut kinds = vec![Kind::Tag];
        kinds.extend(settings.computemgtd.shared_mapping.clone().map(Kind::Mapping));
        let table = settings.publish.node_table.as_ref().map(|table| table.table.clone());
        // A compute node's file does not name it (aws-facts B.13).
        let usual = settings.parallelcluster.as_ref().map(|_| format!("parallelcluster-slurm-{}", settings.cluster));
        kinds.extend(table.or(usual).map(Kind::Table));
        kinds.extend([Kind::Slurmctld, Kind::Ec2]);
        let place = |kind: Kind| {
            let (first, longest, after) = kind.pace();
            // Each instance a little sooner or later; with little time it is asked all the same.
            let wait = after.mul_f64(0.5 + fastrand::f64());
            let due = Some(now + wait.min(until.saturating_duration_since(now) / 2));
            Self { said: "not asked yet".to_owned(), tries: 0, due, pauses: Pauses::new(first, longest, until), kind }
        };
        kinds.into_iter().map(place).collect()
    }

    /// Is it this place's turn?
    pub(super) fn is_due(&self) -> bool {
        self.due.is_some_and(|due| Instant::now() >= due)
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.due
    }

    /// Asks.
    pub(super) async fn ask(&mut self, asker: &mut Asker, own: &Identity, until: Instant) -> Option<String> {
        self.tries += 1;
        let limit = LIMIT.min(until.saturating_duration_since(Instant::now())).max(LEAST);
        let answer = tokio::time::timeout(limit, asker.ask(&self.kind, own)).await;
        self.due = self.pauses.next().map(|pause| Instant::now() + pause);
        match answer {
            Ok(Ok(name)) => return Some(name),
            Ok(Err(said)) => self.said = said,
            // Cut short by the end of all waiting it says less than the answer before it.
            Err(_) if self.tries > 1 && limit < LIMIT => {}
            Err(_) => self.said = format!("no answer within {:.1} s", limit.as_secs_f64()),
        }
        None
    }
}

impl Kind {
    /// The first pause between two questions, the longest, and the wait before the first question.
    fn pace(&self) -> (Duration, Duration, Duration) {
        let secs = Duration::from_secs;
        match self {
            Self::Tag | Self::Mapping(_) => (secs(1), secs(5), Duration::ZERO),
            Self::Table(_) => (secs(2), secs(15), Duration::ZERO),
            // All nodes' records, each time.
            Self::Slurmctld => (secs(2), secs(10), Duration::ZERO),
            Self::Ec2 => (secs(20), secs(60), EC2_AFTER),
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tag => write!(f, "tag {} in instance metadata", tag::NODE),
            Self::Mapping(path) => write!(f, "mapping {}", path.display()),
            Self::Table(table) => write!(f, "table {table}"),
            Self::Slurmctld => f.write_str("slurmctld, by NodeAddr"),
            Self::Ec2 => write!(f, "tag {} in EC2", tag::NODE),
        }
    }
}

/// The doors to the places.
pub(super) struct Asker {
    settings: Settings,
    /// The slurm.conf for scontrol.
    conf: PathBuf,
    metadata: Result<Metadata, String>,
    reading: Slow<std::io::Result<Vec<u8>>>,
    asking: Slow<Answer>,
}

impl Asker {
    pub(super) fn new(settings: Settings, conf: Option<&Path>) -> Self {
        let metadata = Metadata::new(settings.computemgtd.metadata_endpoint.as_deref()).map_err(|error| chain(&error));
        let conf = conf.unwrap_or(&settings.slurm.conf).to_owned();
        Self { metadata, conf, settings, reading: Slow::new("mapping"), asking: Slow::new("scontrol") }
    }

    /// Learns what is not known yet.
    pub(super) async fn look_at_self(&self, own: &mut Identity, addresses_given: bool) {
        if own.instance.is_none() {
            own.instance = self.metadata("instance-id").await.ok().flatten();
        }
        if !addresses_given && !own.is_told {
            let told = self.metadata("local-ipv4").await.ok().flatten();
            own.is_told = told.is_some();
            own.addresses.extend(told);
            own.addresses.extend(outgoing_address());
        }
    }

    async fn metadata(&self, path: &str) -> Result<Option<String>, String> {
        let metadata = self.metadata.as_ref().map_err(Clone::clone)?;
        let answer = tokio::time::timeout(METADATA_LIMIT, metadata.get(path)).await.map_err(|_| "no answer".to_owned())?;
        answer.map(|text| text.map(|text| text.trim().to_owned())).map_err(|error| chain(&error))
    }

    async fn ask(&mut self, kind: &Kind, own: &Identity) -> Answer {
        match kind {
            Kind::Tag => self.tag().await,
            Kind::Mapping(path) => self.mapping(path.clone(), own).await,
            Kind::Table(table) => self.table(table, own).await,
            Kind::Slurmctld => self.slurmctld(own).await,
            Kind::Ec2 => self.ec2(own).await,
        }
    }

    async fn tag(&self) -> Answer {
        let metadata = self.metadata.as_ref().map_err(Clone::clone)?;
        match metadata.tag(tag::NODE).await.map_err(|error| chain(&error))? {
            Some(name) => pick::checked(name.trim().to_owned()),
            None => Err("not there; the instance must show its tags in its metadata (InstanceMetadataTags=enabled) and have it \
                         (node_tags = true in [launch] on the head node)"
                .to_owned()),
        }
    }

    async fn mapping(&mut self, path: PathBuf, own: &Identity) -> Answer {
        match self.reading.run(LIMIT / 2, move || fs::read(path)).await.into_any() {
            Some(Ok(bytes)) => pick::by_mapping(&bytes, own),
            Some(Err(error)) => Err(format!("it cannot be read: {error}")),
            None => Err("its file system does not answer".to_owned()),
        }
    }

    async fn table(&self, table: &str, own: &Identity) -> Answer {
        let instance = own.instance.as_deref().ok_or("this machine does not know its instance id")?;
        let region = self.region().await?;
        let dynamodb = DynamoDb::connect(&self.settings.aws, &region).await.map_err(|error| chain(&error))?;
        let names = dynamodb.nodes_of(table, instance).await.map_err(|error| chain(&error))?;
        pick::only(names, || format!("it has no item with InstanceId {instance}"))
    }

    async fn slurmctld(&mut self, own: &Identity) -> Answer {
        if own.addresses.is_empty() {
            return Err("this machine knows no address of its own".to_owned());
        }
        let slurm = &self.settings.slurm;
        let scontrol = Scontrol::new(&slurm.bin_dir, &self.conf, slurm.command_timeout).through(slurm.sudo.as_deref());
        let (own, conf) = (own.clone(), self.conf.clone());
        let work = move || {
            // Its folder may be on a file system that hangs.
            scontrol.check().map_err(|error| chain(&error))?;
            // Without it scontrol waits for a minute.
            fs::metadata(&conf).map_err(|error| format!("{}: {error}", conf.display()))?;
            let shown = block_on(scontrol.show_all_nodes(Instant::now() + LIMIT / 2));
            let nodes = shown.ok_or("no runtime")?.map_err(|error| chain(&error))?;
            pick::by_address(&nodes, &own)
        };
        self.asking.run(LIMIT, work).await.into_any().unwrap_or_else(|| Err("scontrol does not come back".to_owned()))
    }

    async fn ec2(&self, own: &Identity) -> Answer {
        let instance = own.instance.clone().ok_or("this machine does not know its instance id")?;
        let region = self.region().await?;
        let ec2 = Ec2::connect(&self.settings.aws, &region).await.map_err(|error| chain(&error))?;
        let name = ec2.tag_of(&instance, tag::NODE).await.map_err(|error| refused(&error))?;
        let none = "the instance has no such tag (yet); slurm_resume writes it with node_tags = true in [launch]";
        name.map_or_else(|| Err(none.to_owned()), pick::checked)
    }

    /// The configuration's, else this instance's.
    async fn region(&self) -> Result<String, String> {
        if !self.settings.region.is_empty() {
            return Ok(self.settings.region.clone());
        }
        let found = self.metadata("placement/region").await?;
        found.ok_or_else(|| "the region is neither configured nor in instance metadata".to_owned())
    }
}

/// EC2's own words do not always name what the role may not do.
fn refused(error: &Ec2Error) -> String {
    let said = chain(error);
    if error.code == NOT_ALLOWED { format!("the permission ec2:{} is missing: {said}", error.operation) } else { said }
}

/// The address that this machine would send from; nothing is sent.
fn outgoing_address() -> Option<String> {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
    // Any address beyond the link will do: it is the way there that counts.
    socket.connect(("192.0.2.1", 9)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then(|| address.to_string())
}

#[cfg(test)]
mod tests;
