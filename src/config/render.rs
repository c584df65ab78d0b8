//! Writes a configuration: [`Settings`] in, a TOML file out that means the same, as short as it can be: what is required and what
//! differs from the defaults of `sections.rs` and its neighbours, which are asked and not repeated here.
//!
//! What the file has no key for is left out: [`Settings::warnings`], a log file of another name, and nodes that cannot be
//! launched.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use serde_json::Value as Json;
use toml::Value;

use super::block;
use super::file;
use super::recipe::{APIS, CAPACITIES, inherited};
use super::render_daemons;
use super::sections::{FORMATS, LEVELS, NODE_ADDRESS};
use super::sections_launch::{DAEMON, ON_EXISTING, SCALE_BY, STRATEGIES, built_in_policy};
use super::settings::{Settings, StoreKind};
use super::values::show_duration;
use crate::model::hostlist;
use crate::model::policy::{Bucket, LaunchPolicy, ScaleBy, Strategy};
use crate::model::recipe::{Capacity, Group, GroupNodes, LaunchTemplate, Recipe};

/// The file's text. Reading it gives the same settings, but for what the module's comment names.
pub(crate) fn toml(settings: &Settings) -> String {
    let base = defaults(settings);
    let launch = common_policy(&settings.groups, settings.run.strategy);
    let mut file =
        File { text: String::from("# docs/configuration.md says what each key means and what holds where it is absent.\n") };
    file.part("", "", |part| {
        part.set("cluster", settings.cluster.as_str());
        part.set("region", settings.region.as_str());
        part.differing("hostlist_limit", settings.hostlist_limit, base.hostlist_limit, number);
    });
    file.part("[aws]", "How AWS is reached", |part| aws(part, settings, &base));
    file.part("[slurm]", "How Slurm is reached", |part| slurm(part, settings, &base));
    file.part("[state]", "What the programs remember", |part| {
        part.differing("dir", settings.state_dir.as_path(), base.state_dir.as_path(), path);
        if let StoreKind::DynamoDb { table } = &settings.store {
            part.set("store", "dynamodb");
            part.set("table", table.as_str());
        }
    });
    publish(&mut file, settings, &base);
    file.part("[log]", "", |part| {
        part.differing("dir", settings.log.dir.as_path(), base.log.dir.as_path(), path);
        part.differing("level", settings.log.level, base.log.level, |level| word(&LEVELS, level));
        part.differing("format", settings.log.format, base.log.format, |format| word(&FORMATS, format));
    });
    file.part("[launch]", "How instances are launched", |part| {
        part.differing("scale_by", settings.run.scale_by, base.run.scale_by, |by| word(&SCALE_BY, by));
        policy(part, &launch, &built_in_policy());
        run(part, settings, &base);
    });
    render_daemons::daemons(&mut file, settings);
    for (at, group) in settings.groups.iter().enumerate() {
        groups(&mut file, group, &static_nodes(settings, at), &launch, settings.run.scale_by);
    }
    file.text
}

/// The nodes of one group that are listed as static.
fn static_nodes(settings: &Settings, group: usize) -> String {
    let of_group = settings.static_nodes.iter().filter(|node| settings.node_group.get(node) == Some(group));
    hostlist::compress_sorted(&of_group.collect::<Vec<_>>())
}

/// What a file that says nothing means; some defaults depend on `[parallelcluster]`.
fn defaults(settings: &Settings) -> Settings {
    let text = if settings.parallelcluster.is_some() { "[parallelcluster]\n" } else { "" };
    file::read(Path::new(""), text).0
}

/// What `[launch]` says to all groups: what they agree on, else the default.
fn common_policy(groups: &[Group], strategy: Strategy) -> LaunchPolicy {
    let base = built_in_policy();
    let Some((first, others)) = groups.split_first() else { return LaunchPolicy { strategy, ..base } };
    let same =
        |like: &dyn Fn(&LaunchPolicy, &LaunchPolicy) -> bool| others.iter().all(|group| like(&group.launch, &first.launch));
    let mut common = base;
    common.strategy = strategy;
    if same(&|a, b| a.batch_size == b.batch_size) {
        common.batch_size = first.launch.batch_size;
    }
    if same(&|a, b| a.on_existing == b.on_existing) {
        common.on_existing = first.launch.on_existing;
    }
    if same(&|a, b| a.node_tags == b.node_tags) {
        common.node_tags = first.launch.node_tags;
    }
    if same(&|a, b| a.backoff == b.backoff) {
        common.backoff = first.launch.backoff;
    }
    common
}

fn aws(part: &mut Part, settings: &Settings, base: &Settings) {
    let (aws, base) = (&settings.aws, &base.aws);
    for (key, value) in [
        ("endpoint_url", &aws.endpoint_url),
        ("dynamodb_endpoint_url", &aws.dynamodb_endpoint_url),
        ("route53_endpoint_url", &aws.route53_endpoint_url),
        ("profile", &aws.profile),
        ("proxy", &aws.proxy),
    ] {
        part.some(key, value.as_deref());
    }
    for (key, value) in
        [("config_file", &aws.config_file), ("credentials_file", &aws.credentials_file), ("ca_bundle", &aws.ca_bundle)]
    {
        part.some(key, value.as_deref().map(path));
    }
    if !aws.no_proxy.is_empty() {
        part.set("no_proxy", aws.no_proxy.clone());
    }
    part.differing("attempts", aws.attempts, base.attempts, |attempts| i64::from(attempts).into());
    for (key, value, base) in [
        ("connect_timeout", aws.connect_timeout, base.connect_timeout),
        ("attempt_timeout", aws.attempt_timeout, base.attempt_timeout),
        ("operation_timeout", aws.operation_timeout, base.operation_timeout),
    ] {
        part.differing(key, value, base, duration);
    }
}

fn slurm(part: &mut Part, settings: &Settings, base: &Settings) {
    let (slurm, base) = (&settings.slurm, &base.slurm);
    part.differing("bin_dir", slurm.bin_dir.as_path(), base.bin_dir.as_path(), path);
    part.differing("conf", slurm.conf.as_path(), base.conf.as_path(), path);
    part.some("sudo", slurm.sudo.as_deref().map(path));
    part.differing("node_address", slurm.node_address, base.node_address, |address| word(&NODE_ADDRESS, address));
    part.differing("nodes_per_call", slurm.nodes_per_call, base.nodes_per_call, number);
    part.differing("command_timeout", slurm.command_timeout, base.command_timeout, duration);
}

fn publish(file: &mut File, settings: &Settings, base: &Settings) {
    let (publish, base) = (&settings.publish, &base.publish);
    file.part("[publish]", "Who hears of a node's instance", |part| {
        part.differing("batch_size", publish.batch_size, base.batch_size, number);
        part.differing("hostname", publish.hostname, base.hostname, Value::from);
    });
    file.part("[node_table]", "The table that ParallelCluster's compute nodes ask for their name", |part| {
        let Some(table) = &publish.node_table else { return };
        part.set("table", table.table.as_str());
        part.set("head_node_private_ip", table.head_node_private_ip.as_str());
        part.set("head_node_hostname", table.head_node_hostname.as_str());
    });
    file.part("[dns]", "A record for each node in Route 53", |part| {
        let Some(dns) = &publish.dns else { return };
        part.set("hosted_zone", dns.hosted_zone.as_str());
        part.set("domain", dns.domain.as_str());
    });
    file.part("[parallelcluster]", "Beside ParallelCluster's own daemons, by its rules", |part| {
        let Some(cluster) = &settings.parallelcluster else { return };
        let defaults = defaults(settings).parallelcluster;
        let base = defaults.as_ref().unwrap_or(cluster);
        part.set("heartbeat", path(&cluster.heartbeat));
        part.differing("heartbeat_timeout", cluster.heartbeat_timeout, base.heartbeat_timeout, duration);
        part.differing("instance_id", cluster.instance_id.as_str(), base.instance_id.as_str(), Value::from);
    });
}

/// What `[launch]` and a group may set.
fn policy(part: &mut Part, launch: &LaunchPolicy, base: &LaunchPolicy) {
    part.differing("strategy", launch.strategy, base.strategy, |strategy| word(&STRATEGIES, strategy));
    part.differing("batch_size", launch.batch_size, base.batch_size, number);
    part.differing("on_existing", launch.on_existing, base.on_existing, |existing| word(&ON_EXISTING, existing));
    part.differing("node_tags", launch.node_tags, base.node_tags, Value::from);
    part.differing("backoff_capacity", launch.backoff.capacity, base.backoff.capacity, duration);
    part.differing("backoff_quota", launch.backoff.quota, base.backoff.quota, duration);
    part.differing("backoff_configuration", launch.backoff.configuration, base.backoff.configuration, duration);
}

fn run(part: &mut Part, settings: &Settings, base: &Settings) {
    let (run, base) = (&settings.run, &base.run);
    part.differing("requeue_now", run.requeue_now, base.requeue_now, Value::from);
    part.differing("terminate_batch_size", run.terminate_batch_size, base.terminate_batch_size, number);
    part.differing("concurrency", run.concurrency, base.concurrency, number);
    part.differing("request_bucket", run.bucket, base.bucket, |bucket| match bucket {
        None => "off".into(),
        Some(Bucket { burst, per_second }) => Value::Table(
            [("burst".to_owned(), i64::from(burst).into()), ("per_second".to_owned(), per_second.into())].into_iter().collect(),
        ),
    });
    part.differing("deadline", run.deadline, base.deadline, duration);
    part.differing("daemon", run.daemon, base.daemon, |daemon| word(&DAEMON, daemon));
    part.differing("address_timeout", run.address_timeout, base.address_timeout, duration);
}

fn groups(file: &mut File, group: &Group, static_nodes: &str, launch: &LaunchPolicy, scale_by: ScaleBy) {
    let base = super::groups::no_recipe(group.recipe.tag_instances_only);
    file.part("[[group]]", "", |part| {
        part.set("name", group.name.as_str());
        match &group.nodes {
            GroupNodes::List(list) => part.set("nodes", list.as_str()),
            GroupNodes::Queue { queue, resource } => {
                part.set("queue", queue.as_str());
                part.set("compute_resource", resource.as_str());
            }
        }
        if !static_nodes.is_empty() {
            part.set("static_nodes", static_nodes);
        }
        recipe(part, "group", &group.recipe, &base);
        // What the API parameters of a block name is known from them.
        let is_named = group.recipe.capacity == Capacity::CapacityBlock
            && group.capacity_reservation == block::named_in(&group.recipe.overrides);
        if !is_named {
            part.some("capacity_reservation_id", group.capacity_reservation.as_deref());
        }
        if !group.recipe.tags.is_empty() {
            let tags = group.recipe.tags.iter().map(|(key, value)| (key.clone(), value.as_str().into()));
            part.set("tags", Value::Table(tags.collect()));
        }
        let mut launch = launch.clone();
        if scale_by != ScaleBy::Batch {
            launch.strategy = group.launch.strategy; // the run's counts
        }
        policy(part, &group.launch, &launch);
    });
    for fallback in &group.fallbacks {
        let base = inherited(&group.recipe, fallback.api, fallback.capacity);
        file.part("[[group.fallback]]", "", |part| {
            part.differing("api", fallback.api, group.recipe.api, |api| word(&APIS, api));
            part.differing("capacity", fallback.capacity, group.recipe.capacity, |capacity| word(&CAPACITIES, capacity));
            recipe(part, "group.fallback", fallback, &base);
        });
    }
}

fn recipe(part: &mut Part, section: &str, recipe: &Recipe, base: &Recipe) {
    part.differing("launch_template", &recipe.launch_template, &base.launch_template, template);
    part.differing("api", recipe.api, base.api, |api| word(&APIS, api));
    part.differing("capacity", recipe.capacity, base.capacity, |capacity| word(&CAPACITIES, capacity));
    part.differing("instance_types", &recipe.instance_types, &base.instance_types, |types| types.clone().into());
    part.differing("subnets", &recipe.subnets, &base.subnets, |subnets| subnets.clone().into());
    if recipe.allocation_strategy != base.allocation_strategy {
        part.some("allocation_strategy", recipe.allocation_strategy.as_deref());
    }
    if recipe.max_price != base.max_price {
        part.some("max_price", recipe.max_price);
    }
    if recipe.overrides != base.overrides {
        let pairs = recipe.overrides.iter().filter_map(|(key, value)| Some((key.clone(), json(value)?)));
        part.section(section, "overrides", pairs.collect());
    }
}

fn template(template: &LaunchTemplate) -> Value {
    let LaunchTemplate { name, id, version } = template;
    let default = version == "$Default";
    if let (Some(name), true) = (name, default) {
        return name.as_str().into();
    }
    let parts = [("name", name.clone()), ("id", id.clone()), ("version", (!default).then(|| version.clone()))];
    Value::Table(parts.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.into()))).collect())
}

/// `None` for null, which TOML has not and no API parameter is.
fn json(value: &Json) -> Option<Value> {
    Some(match value {
        Json::Null => return None,
        Json::Bool(boolean) => (*boolean).into(),
        Json::String(text) => text.as_str().into(),
        Json::Number(number) => number.as_i64().map(Value::from).or_else(|| number.as_f64().map(Value::from))?,
        Json::Array(array) => Value::Array(array.iter().filter_map(json).collect()),
        Json::Object(object) => {
            Value::Table(object.iter().filter_map(|(key, value)| Some((key.clone(), json(value)?))).collect())
        }
    })
}

/// The word of a value, from the list that the reader has.
fn word<T: PartialEq>(words: &[(&str, T)], value: T) -> Value {
    words.iter().find(|(_, known)| *known == value).map_or("", |(word, _)| word).into()
}

pub(super) fn number(number: usize) -> Value {
    i64::try_from(number).unwrap_or(i64::MAX).into()
}

pub(super) fn path(path: &Path) -> Value {
    path.to_string_lossy().as_ref().into()
}

pub(super) fn duration(duration: Duration) -> Value {
    if duration.subsec_nanos().is_multiple_of(1_000_000) {
        show_duration(duration).into()
    } else {
        humantime::format_duration(duration).to_string().into()
    }
}

/// The text so far.
pub(super) struct File {
    text: String,
}

impl File {
    /// A section with the keys that `fill` sets; nothing at all when it sets none. `why` is a comment.
    pub(super) fn part(&mut self, header: &str, why: &str, fill: impl FnOnce(&mut Part)) {
        let mut part = Part { lines: String::new(), tables: String::new() };
        fill(&mut part);
        if part.lines.is_empty() {
            return;
        }
        self.text.push('\n');
        if !why.is_empty() {
            let _ = writeln!(self.text, "# {why}.");
        }
        if !header.is_empty() {
            let _ = writeln!(self.text, "{header}");
        }
        self.text.push_str(&part.lines);
        self.text.push_str(&part.tables);
    }
}

/// The lines of one section.
pub(super) struct Part {
    lines: String,
    /// Tables of its own, behind them.
    tables: String,
}

impl Part {
    pub(super) fn set(&mut self, key: &str, value: impl Into<Value>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.lines, "{key} = {}", value.into());
    }

    pub(super) fn some<V: Into<Value>>(&mut self, key: &str, value: Option<V>) {
        if let Some(value) = value {
            self.set(key, value);
        }
    }

    /// A table, under a header of its own where its keys can be written plainly.
    fn section(&mut self, section: &str, key: &str, table: toml::Table) {
        let plain = |key: &String| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if table.is_empty() || !table.keys().all(plain) {
            self.set(key, table);
            return;
        }
        let _ = writeln!(self.tables, "[{section}.{key}]");
        for (key, value) in table {
            let _ = writeln!(self.tables, "{key} = {value}");
        }
    }

    pub(super) fn differing<T: PartialEq>(&mut self, key: &str, value: T, base: T, show: impl FnOnce(T) -> Value) {
        if value != base {
            self.set(key, show(value));
        }
    }
}
