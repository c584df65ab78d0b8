//! fleet-config.json and the two override files (aws-facts B.8, B.9): JSON in, a group for each compute resource out. A compute resource
//! with mistakes takes its own nodes out of service and no others.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::config::block;
use crate::config::checks::{Complaint, check_allocation, check_subnet, check_type};
use crate::config::queues::{NotANode, QueueIndex};
use crate::model::api_parameters;
use crate::model::policy::{LaunchPolicy, Strategy};
use crate::model::recipe::{Api, Capacity, Group, GroupNodes, LaunchTemplate, Recipe};

/// `MinTargetCapacity` of CreateFleet (aws-facts A.2).
const MAX_FLEET_MINIMUM: usize = 1000;
/// CreateFleet refuses a spot price of 0.001 or less (aws-facts A.2).
const LEAST_PRICE: f64 = 0.001;
/// The words of `Api`.
const APIS: [(&str, Api); 2] = [("run-instances", Api::RunInstances), ("create-fleet", Api::CreateFleet)];

/// A JSON file with queues and compute resources.
#[derive(Debug, Clone, Default)]
pub(crate) struct Queues {
    pub(crate) path: PathBuf,
    pub(crate) queues: Map<String, Value>,
}

/// The three files.
#[derive(Debug, Default)]
pub(crate) struct Files {
    pub(crate) fleet: Queues,
    pub(crate) run_instances: Queues,
    pub(crate) create_fleet: Queues,
}

/// What they say.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    pub(crate) groups: Vec<Group>,
    pub(crate) index: QueueIndex,
    pub(crate) warnings: Vec<String>,
}

/// The groups of a cluster. `launch` holds for each of them.
pub(crate) fn read(files: &Files, cluster: &str, launch: &LaunchPolicy) -> Fleet {
    let mut fleet = Fleet { index: QueueIndex::of(&files.fleet.path), ..Fleet::default() };
    for (queue, resources) in &files.fleet.queues {
        let Value::Object(resources) = resources else {
            let why =
                format!("{}: {queue} is {}, not an object of compute resources", files.fleet.path.display(), kind(resources));
            fleet.index.insert_broken_queue(queue, why);
            continue;
        };
        for (name, value) in resources {
            match group(files, cluster, launch, (queue, name), value) {
                Ok(group) => {
                    fleet.index.insert(queue, name, u32::try_from(fleet.groups.len()).unwrap_or(u32::MAX));
                    if group.launch.batch_size < launch.batch_size {
                        fleet.warnings.push(format!(
                            "launch_max_batch_size {} is cut to {MAX_FLEET_MINIMUM} for {}: CreateFleet guarantees no more at once",
                            launch.batch_size, group.name
                        ));
                    }
                    fleet.groups.push(group);
                }
                Err(problems) => fleet.index.insert_broken(queue, name, problems.join("; ")),
            }
        }
    }
    fleet.warnings.extend(ambiguous(&fleet));
    for (overrides, api) in [(&files.run_instances, "run-instances"), (&files.create_fleet, "create-fleet")] {
        fleet.warnings.extend(unused(overrides, api, &files.fleet.queues));
    }
    fleet
}

/// Names that more than one compute resource could have.
fn ambiguous(fleet: &Fleet) -> Vec<String> {
    let mut warnings = Vec::new();
    for group in &fleet.groups {
        let GroupNodes::Queue { queue, resource } = &group.nodes else { continue };
        for node in [format!("{queue}-st-{resource}-1"), format!("{queue}-dy-{resource}-1")] {
            if let Err(error @ NotANode::Ambiguous(..)) = fleet.index.get(&node) {
                warnings.push(format!("nodes like {node} cannot be launched: {error}"));
            }
        }
    }
    warnings.dedup();
    warnings
}

/// Overrides for what the fleet does not have: most likely left over from a queue that is gone, or a slip.
fn unused(overrides: &Queues, api: &str, fleet: &Map<String, Value>) -> Vec<String> {
    let warning = |what: String| format!("{}: {what}, so nothing is overridden", overrides.path.display());
    let mut warnings = Vec::new();
    for (queue, resources) in &overrides.queues {
        let Some(known) = fleet.get(queue) else {
            warnings.push(warning(format!("{queue} is no queue of the fleet")));
            continue;
        };
        for name in resources.as_object().into_iter().flat_map(Map::keys) {
            match known.get(name).map(|resource| resource.get("Api").and_then(Value::as_str)) {
                None => warnings.push(warning(format!("{queue}.{name} is no compute resource of the fleet"))),
                // Any other word is a mistake of the compute resource, told with it.
                Some(Some(other)) if other != api && APIS.iter().any(|(word, _)| *word == other) => {
                    warnings.push(warning(format!("{queue}.{name} is launched by the other API, {other}")));
                }
                Some(_) => {}
            }
        }
    }
    warnings
}

/// One compute resource. Errors: everything that is wrong with it, each naming file and key.
fn group(
    files: &Files,
    cluster: &str,
    launch: &LaunchPolicy,
    (queue, name): (&str, &str),
    value: &Value,
) -> Result<Group, Vec<String>> {
    let mut resource = Resource { path: &files.fleet.path, at: format!("{queue}.{name}"), value, problems: Vec::new() };
    let Some(recipe) = resource.recipe(format!("{cluster}-{queue}-{name}")) else { return Err(resource.problems) };
    let block = resource.block();
    let mut problems = resource.problems;
    let file = match recipe.api {
        Api::RunInstances => &files.run_instances,
        Api::CreateFleet => &files.create_fleet,
    };
    let overrides = overrides(file, (queue, name), recipe.api).unwrap_or_else(|found| {
        problems.extend(found);
        Map::new()
    });
    if !problems.is_empty() {
        return Err(problems);
    }
    let mut launch = launch.clone();
    let one = recipe.instance_types.len() == 1 || recipe.subnets.len() == 1;
    if recipe.api == Api::CreateFleet && one && launch.strategy == Strategy::AllOrNothing {
        launch.batch_size = launch.batch_size.min(MAX_FLEET_MINIMUM);
    }
    Ok(Group {
        capacity_reservation: block.map(|named| named.or_else(|| block::named_in(&overrides))).unwrap_or_default(),
        name: format!("{queue}/{name}"),
        nodes: GroupNodes::Queue { queue: queue.to_owned(), resource: name.to_owned() },
        recipe: Recipe { overrides, ..recipe },
        fallbacks: Vec::new(),
        launch,
    })
}

/// The parameters that replace those of one compute resource.
fn overrides(file: &Queues, (queue, name): (&str, &str), api: Api) -> Result<Map<String, Value>, Vec<String>> {
    let path = file.path.display();
    match file.queues.get(queue) {
        None => Ok(Map::new()),
        Some(Value::Object(resources)) => match resources.get(name) {
            None => Ok(Map::new()),
            Some(Value::Object(parameters)) => {
                let problems = api_parameters::check(api, parameters);
                if problems.is_empty() {
                    return Ok(parameters.clone());
                }
                Err(problems.into_iter().map(|problem| format!("{path}: {queue}.{name}.{problem}")).collect())
            }
            Some(other) => Err(vec![format!("{path}: {queue}.{name} is {}, not an object of API parameters", kind(other))]),
        },
        Some(other) => Err(vec![format!("{path}: {queue} is {}, not an object of compute resources", kind(other))]),
    }
}

/// Reads one compute resource and notes what is wrong.
struct Resource<'a> {
    path: &'a Path,
    /// `queue.resource`
    at: String,
    value: &'a Value,
    problems: Vec<String>,
}

impl Resource<'_> {
    fn problem(&mut self, key: &str, what: &str) {
        self.problems.push(format!("{}: {}.{key} {what}", self.path.display(), self.at));
    }

    /// `None` when not even the API is known.
    fn recipe(&mut self, template: String) -> Option<Recipe> {
        if !self.value.is_object() {
            self.problems.push(format!("{}: {} is {}, not an object", self.path.display(), self.at, kind(self.value)));
            return None;
        }
        let api = self.word("Api", &APIS);
        let types = self.types(api);
        if let (Some(_), true) = (self.text("CapacityReservationId"), types.len() > 1) {
            self.problem("CapacityReservationId", &format!("is for one instance type, and Instances has {}", types.len()));
        }
        let api = api?;
        let mut recipe = Recipe {
            api,
            launch_template: LaunchTemplate { name: Some(template), id: None, version: "$Latest".to_owned() },
            instance_types: Vec::new(),
            subnets: Vec::new(),
            // Its launch template says everything (aws-facts B.8).
            capacity: Capacity::Template,
            allocation_strategy: None,
            max_price: None,
            tags: BTreeMap::new(),
            tag_instances_only: true,
            overrides: Map::new(),
        };
        if api == Api::CreateFleet {
            let words =
                [("on-demand", Capacity::OnDemand), ("spot", Capacity::Spot), ("capacity-block", Capacity::CapacityBlock)];
            recipe.capacity = self.word("CapacityType", &words).unwrap_or(Capacity::OnDemand);
            recipe.instance_types = types;
            recipe.subnets = self.subnets();
            recipe.allocation_strategy = self.text("AllocationStrategy");
            if let Some(word) = &recipe.allocation_strategy {
                let word = word.clone();
                self.check("AllocationStrategy", &word, check_allocation);
            }
            // On-demand has no price to set; the package leaves it out as well.
            recipe.max_price = self.price().filter(|_| recipe.capacity == Capacity::Spot);
        }
        Some(recipe)
    }

    /// The reservation's id of a Capacity Block, as far as it is there; `None`: it is none.
    fn block(&self) -> Option<Option<String>> {
        let text = |key| self.value.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        (text("CapacityType") == Some("capacity-block")).then(|| text("CapacityReservationId").map(str::to_owned))
    }

    /// A string; `null` and the empty string count as absent.
    fn text(&mut self, key: &str) -> Option<String> {
        match self.value.get(key) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text.clone()).filter(|text| !text.is_empty()),
            Some(other) => {
                self.problem(key, &format!("is {}, not a string", kind(other)));
                None
            }
        }
    }

    /// One of some words, which must be there.
    fn word<T: Copy>(&mut self, key: &str, words: &[(&str, T)]) -> Option<T> {
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let wanted = crate::config::words::choices(known);
        let before = self.problems.len();
        let Some(text) = self.text(key) else {
            if self.problems.len() == before {
                self.problem(key, &format!("is missing; it must be {wanted}"));
            }
            return None;
        };
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        if found.is_none() {
            self.problem(key, &format!("is {text:?}; it must be {wanted}"));
        }
        found
    }

    fn check(&mut self, key: &str, text: &str, check: impl Fn(&str) -> Result<(), Complaint>) {
        if let Err((message, _)) = check(text) {
            let quoted = if message.contains(text) { String::new() } else { format!("{text:?} ") };
            self.problem(key, &format!("{quoted}{message}"));
        }
    }

    /// The names in `Instances`. RunInstances takes the type from the launch template, so there they may be missing.
    fn types(&mut self, api: Option<Api>) -> Vec<String> {
        const KEY: &str = "Instances";
        let list = match self.value.get(KEY) {
            Some(Value::Array(list)) if !list.is_empty() => list,
            None | Some(Value::Null | Value::Array(_)) => {
                if api == Some(Api::CreateFleet) {
                    self.problem(KEY, "is missing or empty; create-fleet needs an instance type");
                }
                return Vec::new();
            }
            Some(other) => {
                self.problem(KEY, &format!("is {}, not a list", kind(other)));
                return Vec::new();
            }
        };
        let mut types = Vec::new();
        for (at, element) in list.iter().enumerate() {
            match element.get("InstanceType").and_then(Value::as_str) {
                Some(name) => {
                    self.check(&format!("{KEY}[{at}].InstanceType"), name, check_type);
                    types.push(name.to_owned());
                }
                None => self.problem(&format!("{KEY}[{at}].InstanceType"), "is missing or no string"),
            }
        }
        types
    }

    fn subnets(&mut self) -> Vec<String> {
        const KEY: &str = "Networking.SubnetIds";
        let list = match self.value.get("Networking").and_then(|networking| networking.get("SubnetIds")) {
            Some(Value::Array(list)) if !list.is_empty() => list,
            None | Some(Value::Null | Value::Array(_)) => {
                self.problem(KEY, "is missing or empty; create-fleet needs a subnet");
                return Vec::new();
            }
            Some(other) => {
                self.problem(KEY, &format!("is {}, not a list", kind(other)));
                return Vec::new();
            }
        };
        let mut subnets = Vec::new();
        for (at, element) in list.iter().enumerate() {
            match element.as_str() {
                Some(name) => {
                    self.check(&format!("{KEY}[{at}]"), name, check_subnet);
                    subnets.push(name.to_owned());
                }
                None => self.problem(&format!("{KEY}[{at}]"), &format!("is {}, not a string", kind(element))),
            }
        }
        subnets
    }

    /// A number, or a string that is one.
    fn price(&mut self) -> Option<f64> {
        const KEY: &str = "MaxPrice";
        let number = match self.value.get(KEY) {
            None | Some(Value::Null) => return None,
            Some(Value::Number(number)) => number.as_f64(),
            Some(Value::String(text)) => text.parse().ok(),
            Some(_) => None,
        };
        match number {
            Some(price) if price.is_finite() && price > LEAST_PRICE => Some(price),
            Some(price) => {
                self.problem(KEY, &format!("is {price}; it must be above {LEAST_PRICE}"));
                None
            }
            None => {
                self.problem(KEY, "is no number");
                None
            }
        }
    }
}

/// `a number`
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
