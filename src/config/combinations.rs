//! What EC2 does not take together: a group's recipe and launch policy in, every conflict out. Knows no file format; a conflict
//! names keys, and the reader of the file points at them.

use crate::model::policy::{LaunchPolicy, ScaleBy, Strategy};
use crate::model::recipe::{Api, Capacity, Recipe};

/// `MinTargetCapacity` of CreateFleet (aws-facts A.2).
const MAX_FLEET_MINIMUM: usize = 1000;

const ON_DEMAND_STRATEGIES: [&str; 2] = ["lowest-price", "prioritized"];
const SPOT_STRATEGIES: [&str; 5] =
    ["price-capacity-optimized", "capacity-optimized", "capacity-optimized-prioritized", "lowest-price", "diversified"];

/// Every allocation strategy that some capacity takes (the SDK's `FleetOnDemandAllocationStrategy`, `SpotAllocationStrategy`).
pub(crate) const ALLOCATION_STRATEGIES: [&str; 6] = [
    "lowest-price",
    "prioritized",
    "price-capacity-optimized",
    "capacity-optimized",
    "capacity-optimized-prioritized",
    "diversified",
];

/// Settings of one group that exclude each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Conflict {
    /// The keys that take part, the one to point at first.
    pub(crate) keys: &'static [&'static str],
    pub(crate) message: String,
    pub(crate) help: String,
}

fn conflict(keys: &'static [&'static str], message: impl Into<String>, help: impl Into<String>) -> Conflict {
    Conflict { keys, message: message.into(), help: help.into() }
}

/// Every conflict of one group, in a fixed order. A whole job or call ([`ScaleBy`]) is held together by these programs, not by EC2.
pub(crate) fn conflicts(recipe: &Recipe, launch: &LaunchPolicy, scale_by: ScaleBy) -> Vec<Conflict> {
    let mut found = Vec::new();
    let (types, subnets) = (recipe.instance_types.len(), recipe.subnets.len());
    let block = recipe.capacity == Capacity::CapacityBlock;

    // A block is one instance type in one zone; the template names its reservation.
    if block && types > 1 {
        found.push(conflict(
            &["instance_types", "capacity"],
            format!("a capacity block has one instance type, not {types}"),
            "keep the block's own type, or make a group for each block",
        ));
    }
    if block && subnets > 1 {
        found.push(conflict(
            &["subnets", "capacity"],
            format!("a capacity block lies in one zone; {subnets} subnets are given"),
            "keep the subnet of the block's zone, or make a group for each block",
        ));
    }
    match recipe.api {
        Api::RunInstances => run_instances(recipe, block, &mut found),
        Api::CreateFleet => create_fleet(recipe, launch, scale_by, block, &mut found),
    }
    if let (Some(word), Api::CreateFleet) = (&recipe.allocation_strategy, recipe.api)
        && recipe.capacity != Capacity::Template
    {
        let (capacity, allowed): (_, &[&str]) = match recipe.capacity {
            Capacity::OnDemand => ("on-demand", &ON_DEMAND_STRATEGIES),
            Capacity::Spot => ("spot", &SPOT_STRATEGIES),
            Capacity::CapacityBlock | Capacity::Template => ("capacity-block", &[]),
        };
        if allowed.is_empty() {
            found.push(conflict(
                &["allocation_strategy", "capacity"],
                "a capacity block leaves nothing to choose, so allocation_strategy cannot be used with it",
                "drop allocation_strategy",
            ));
        } else if !allowed.contains(&word.as_str()) {
            found.push(conflict(
                &["allocation_strategy", "capacity"],
                format!("allocation_strategy {word:?} does not exist for {capacity} capacity"),
                format!("write {}", super::words::choices(allowed.iter().copied())),
            ));
        }
    }
    if recipe.max_price.is_some() && recipe.capacity != Capacity::Spot {
        found.push(conflict(
            &["max_price", "capacity"],
            "max_price is for spot instances only",
            "add capacity = \"spot\", or drop max_price",
        ));
    }
    found
}

fn run_instances(recipe: &Recipe, block: bool, found: &mut Vec<Conflict>) {
    if recipe.instance_types.len() > 1 && !block {
        found.push(conflict(
            &["instance_types", "api"],
            format!("RunInstances takes one instance type, not {}", recipe.instance_types.len()),
            "add api = \"create-fleet\" to let EC2 choose among them, or keep one",
        ));
    }
    if recipe.subnets.len() > 1 && !block {
        found.push(conflict(
            &["subnets", "api"],
            format!("RunInstances takes one subnet, not {}", recipe.subnets.len()),
            "add api = \"create-fleet\" to let EC2 choose among them, or keep one",
        ));
    }
    if recipe.allocation_strategy.is_some() {
        found.push(conflict(
            &["allocation_strategy", "api"],
            "RunInstances has no allocation strategy",
            "add api = \"create-fleet\", or drop allocation_strategy",
        ));
    }
}

fn create_fleet(recipe: &Recipe, launch: &LaunchPolicy, scale_by: ScaleBy, block: bool, found: &mut Vec<Conflict>) {
    if recipe.capacity == Capacity::Template {
        found.push(conflict(
            &["capacity", "api"],
            "CreateFleet does not take what is bought from the launch template",
            "write capacity = \"on-demand\", \"spot\" or \"capacity-block\", or api = \"run-instances\"",
        ));
    }
    if launch.strategy != Strategy::AllOrNothing {
        return;
    }
    let (types, subnets) = (recipe.instance_types.len(), recipe.subnets.len());
    let no_minimum = types > 1 && subnets > 1 && !block;
    if no_minimum && scale_by != ScaleBy::Batch {
        return;
    }
    if no_minimum {
        found.push(conflict(
            &["strategy", "instance_types", "subnets", "api"],
            format!(
                "all-or-nothing cannot be had from CreateFleet over {types} instance types and {subnets} subnets: its \
                 MinTargetCapacity needs a single type or a single zone"
            ),
            "keep one instance type or one subnet, or write strategy = \"greedy-all-or-nothing\" or \"best-effort\" in this group",
        ));
    }
    if launch.batch_size > MAX_FLEET_MINIMUM {
        found.push(conflict(
            &["batch_size", "strategy", "api"],
            format!(
                "CreateFleet guarantees at most {MAX_FLEET_MINIMUM} instances all-or-nothing (MinTargetCapacity), batch_size is {}",
                launch.batch_size
            ),
            format!("write batch_size = {MAX_FLEET_MINIMUM} or less in this group, or strategy = \"best-effort\""),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::test_support::group;

    /// The keys of each conflict, for a group that `change` has changed.
    fn found(change: impl FnOnce(&mut Recipe, &mut LaunchPolicy)) -> Vec<&'static [&'static str]> {
        let mut group = group("c5", 500);
        change(&mut group.recipe, &mut group.launch);
        conflicts(&group.recipe, &group.launch, ScaleBy::Batch).iter().map(|conflict| conflict.keys).collect()
    }

    fn list(count: usize) -> Vec<String> {
        (0..count).map(|n| n.to_string()).collect()
    }

    #[test]
    fn what_goes_together() {
        assert!(found(|_, _| {}).is_empty());
        for (types, subnets) in [(0, 0), (0, 3), (1, 3), (3, 1), (3, 0)] {
            let none = found(|recipe, launch| {
                recipe.api = Api::CreateFleet;
                recipe.instance_types = list(types);
                recipe.subnets = list(subnets);
                launch.strategy = Strategy::AllOrNothing;
                launch.batch_size = 1000;
            });
            assert!(none.is_empty(), "{types} types, {subnets} subnets: {none:?}");
        }
        assert!(
            found(|recipe, launch| {
                recipe.api = Api::CreateFleet;
                recipe.capacity = Capacity::Spot;
                recipe.max_price = Some(0.5);
                recipe.allocation_strategy = Some("diversified".into());
                recipe.instance_types = list(3);
                recipe.subnets = list(3);
                launch.batch_size = 5000;
            })
            .is_empty()
        );
    }

    #[test]
    fn all_or_nothing_fleets_have_limits() {
        let fleet = |types, subnets, batch| {
            found(|recipe, launch| {
                recipe.api = Api::CreateFleet;
                recipe.instance_types = list(types);
                recipe.subnets = list(subnets);
                launch.strategy = Strategy::AllOrNothing;
                launch.batch_size = batch;
            })
        };
        assert_eq!(fleet(2, 2, 500), [["strategy", "instance_types", "subnets", "api"]]);
        assert_eq!(fleet(1, 2, 1001), [["batch_size", "strategy", "api"]]);
        assert_eq!(fleet(2, 2, 1001).len(), 2);
    }

    #[test]
    fn run_instances_takes_one_of_each() {
        assert_eq!(
            found(|recipe, _| {
                recipe.instance_types = list(2);
                recipe.subnets = list(2);
                recipe.allocation_strategy = Some("lowest-price".into());
            }),
            [["instance_types", "api"], ["subnets", "api"], ["allocation_strategy", "api"]]
        );
    }

    #[test]
    fn strategies_and_prices_belong_to_a_capacity() {
        for (capacity, word, conflicts) in [
            (Capacity::OnDemand, "prioritized", 0),
            (Capacity::OnDemand, "capacity-optimized", 1),
            (Capacity::Spot, "prioritized", 1),
            (Capacity::Spot, "price-capacity-optimized", 0),
            (Capacity::CapacityBlock, "lowest-price", 1),
        ] {
            let found = found(|recipe, _| {
                recipe.api = Api::CreateFleet;
                recipe.capacity = capacity;
                recipe.allocation_strategy = Some(word.into());
            });
            assert_eq!(found.len(), conflicts, "{capacity:?} {word}");
        }
        assert_eq!(found(|recipe, _| recipe.max_price = Some(1.0)), [["max_price", "capacity"]]);
    }

    #[test]
    fn a_capacity_block_is_one_type_in_one_zone() {
        for api in [Api::RunInstances, Api::CreateFleet] {
            let found = found(|recipe, _| {
                recipe.api = api;
                recipe.capacity = Capacity::CapacityBlock;
                recipe.instance_types = list(2);
                recipe.subnets = list(2);
                recipe.max_price = Some(1.0);
            });
            assert_eq!(found, [["instance_types", "capacity"], ["subnets", "capacity"], ["max_price", "capacity"]]);
        }
    }
}
