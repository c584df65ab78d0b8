//! A launch in EC2's words: `LaunchRequest` in, the parameters of RunInstances or CreateFleet out. Sends nothing. The recipe's
//! overrides come later, in `overrides.rs`.

use aws_sdk_ec2::operation::create_fleet::builders::CreateFleetFluentBuilder;
use aws_sdk_ec2::operation::run_instances::builders::RunInstancesFluentBuilder;
use aws_sdk_ec2::types::{
    CapacityReservationOptionsRequest, DefaultTargetCapacityType, FleetCapacityReservationUsageStrategy,
    FleetLaunchTemplateConfigRequest, FleetLaunchTemplateOverridesRequest, FleetLaunchTemplateSpecificationRequest,
    FleetOnDemandAllocationStrategy, FleetType, InstanceInterruptionBehavior, InstanceMarketOptionsRequest, InstanceType,
    LaunchTemplateSpecification, MarketType, OnDemandOptionsRequest, ResourceType, SpotAllocationStrategy, SpotInstanceType,
    SpotMarketOptions, SpotOptionsRequest, Tag, TagSpecification, TargetCapacitySpecificationRequest,
};

use crate::model::policy::Strategy;
use crate::model::recipe::{Capacity, Recipe};
use crate::model::round::LaunchRequest;

/// RunInstances: MinCount by strategy; type, subnet and market only where the recipe names them, else the template's.
pub(super) fn run_instances(call: RunInstancesFluentBuilder, request: &LaunchRequest) -> RunInstancesFluentBuilder {
    let recipe = &request.recipe;
    let template = LaunchTemplateSpecification::builder()
        .set_launch_template_name(recipe.launch_template.name.clone())
        .set_launch_template_id(recipe.launch_template.id.clone())
        .version(&recipe.launch_template.version)
        .build();
    call.min_count(whole(request.min_count()))
        .max_count(whole(request.count))
        .launch_template(template)
        .client_token(&request.client_token)
        .set_instance_type(recipe.instance_types.first().map(|name| InstanceType::from(name.as_str())))
        .set_subnet_id(recipe.subnets.first().cloned())
        .set_instance_market_options(market(recipe))
        .set_tag_specifications(tagged(request, &[ResourceType::Instance, ResourceType::Volume]))
}

/// CreateFleet, type instant: one override per type and subnet, all subnets of the first type first.
pub(super) fn create_fleet(call: CreateFleetFluentBuilder, request: &LaunchRequest) -> CreateFleetFluentBuilder {
    let recipe = &request.recipe;
    let template = FleetLaunchTemplateSpecificationRequest::builder()
        .set_launch_template_name(recipe.launch_template.name.clone())
        .set_launch_template_id(recipe.launch_template.id.clone())
        .version(&recipe.launch_template.version)
        .build();
    let overrides = overrides(recipe);
    let config = FleetLaunchTemplateConfigRequest::builder()
        .launch_template_specification(template)
        .set_overrides((!overrides.is_empty()).then_some(overrides))
        .build();
    let target = TargetCapacitySpecificationRequest::builder()
        .total_target_capacity(whole(request.count))
        .default_target_capacity_type(match recipe.capacity {
            Capacity::OnDemand => DefaultTargetCapacityType::OnDemand,
            Capacity::Spot => DefaultTargetCapacityType::Spot,
            Capacity::CapacityBlock => DefaultTargetCapacityType::CapacityBlock,
            // Refused with the configuration: a fleet must say.
            Capacity::Template => DefaultTargetCapacityType::OnDemand,
        })
        .build();
    let input = call
        .client_token(&request.client_token)
        .r#type(FleetType::Instant)
        .launch_template_configs(config)
        .target_capacity_specification(target)
        .set_tag_specifications(tagged(request, &[ResourceType::Fleet, ResourceType::Instance]));
    match recipe.capacity {
        Capacity::Spot => input.spot_options(spot_options(request)),
        Capacity::OnDemand | Capacity::CapacityBlock | Capacity::Template => input.on_demand_options(on_demand_options(request)),
    }
}

/// EC2 counts in 32 signed bits; a launch beyond them is refused by EC2 itself.
fn whole(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn market(recipe: &Recipe) -> Option<InstanceMarketOptionsRequest> {
    match recipe.capacity {
        Capacity::OnDemand | Capacity::Template => None,
        Capacity::Spot => {
            let spot = SpotMarketOptions::builder()
                .set_max_price(price(recipe))
                .spot_instance_type(SpotInstanceType::OneTime)
                .instance_interruption_behavior(InstanceInterruptionBehavior::Terminate)
                .build();
            Some(InstanceMarketOptionsRequest::builder().market_type(MarketType::Spot).spot_options(spot).build())
        }
        Capacity::CapacityBlock => Some(InstanceMarketOptionsRequest::builder().market_type(MarketType::CapacityBlock).build()),
    }
}

fn price(recipe: &Recipe) -> Option<String> {
    recipe.max_price.filter(|_| recipe.capacity == Capacity::Spot).map(|price| price.to_string())
}

fn overrides(recipe: &Recipe) -> Vec<FleetLaunchTemplateOverridesRequest> {
    // An empty list stands for the template's own choice: one round without that field.
    let all = |list: &[String]| -> Vec<Option<String>> {
        if list.is_empty() { vec![None] } else { list.iter().cloned().map(Some).collect() }
    };
    let (types, subnets, price) = (all(&recipe.instance_types), all(&recipe.subnets), price(recipe));
    if recipe.instance_types.is_empty() && recipe.subnets.is_empty() && price.is_none() {
        return Vec::new();
    }
    let mut list = Vec::with_capacity(types.len() * subnets.len());
    for instance_type in &types {
        for subnet in &subnets {
            let rank = has_priorities(recipe).then_some(list.len() as f64);
            list.push(
                FleetLaunchTemplateOverridesRequest::builder()
                    .set_instance_type(instance_type.as_deref().map(InstanceType::from))
                    .set_subnet_id(subnet.clone())
                    .set_max_price(price.clone())
                    .set_priority(rank)
                    .build(),
            );
        }
    }
    list
}

/// The strategies that read an override's priority (0 is tried first).
fn has_priorities(recipe: &Recipe) -> bool {
    matches!(
        (recipe.capacity, recipe.allocation_strategy.as_deref()),
        (Capacity::OnDemand, Some("prioritized")) | (Capacity::Spot, Some("capacity-optimized-prioritized"))
    )
}

/// What ties a fleet to one type or one zone, and the least it must give. EC2 takes a minimum only with such a tie.
struct Ties {
    single_type: Option<bool>,
    single_zone: Option<bool>,
    min: Option<i32>,
}

fn ties(request: &LaunchRequest) -> Ties {
    let recipe = &request.recipe;
    let single = |list: &[String]| match list.len() {
        // All or nothing without a list is the template's one type and one subnet; the minimum needs that said.
        0 => (request.strategy == Strategy::AllOrNothing).then_some(true),
        count => Some(count == 1),
    };
    let (single_type, single_zone) = (single(&recipe.instance_types), single(&recipe.subnets));
    let is_tied = single_type == Some(true) || single_zone == Some(true);
    Ties { single_type, single_zone, min: is_tied.then(|| whole(request.min_count())) }
}

fn spot_options(request: &LaunchRequest) -> SpotOptionsRequest {
    let ties = ties(request);
    SpotOptionsRequest::builder()
        .set_allocation_strategy(request.recipe.allocation_strategy.as_deref().map(SpotAllocationStrategy::from))
        .set_single_instance_type(ties.single_type)
        .set_single_availability_zone(ties.single_zone)
        .set_min_target_capacity(ties.min)
        .build()
}

fn on_demand_options(request: &LaunchRequest) -> OnDemandOptionsRequest {
    let ties = ties(request);
    let reservations = CapacityReservationOptionsRequest::builder()
        .usage_strategy(FleetCapacityReservationUsageStrategy::UseCapacityReservationsFirst)
        .build();
    OnDemandOptionsRequest::builder()
        .set_allocation_strategy(request.recipe.allocation_strategy.as_deref().map(FleetOnDemandAllocationStrategy::from))
        .capacity_reservation_options(reservations)
        .set_single_instance_type(ties.single_type)
        .set_single_availability_zone(ties.single_zone)
        .set_min_target_capacity(ties.min)
        .build()
}

fn tagged(request: &LaunchRequest, kinds: &[ResourceType]) -> Option<Vec<TagSpecification>> {
    let tags = tags(&request.tags);
    if tags.is_empty() {
        return None;
    }
    let kinds = if request.recipe.tag_instances_only { &[ResourceType::Instance] } else { kinds };
    let one = |kind: &ResourceType| TagSpecification::builder().resource_type(kind.clone()).set_tags(Some(tags.clone())).build();
    Some(kinds.iter().map(one).collect())
}

pub(super) fn tags(pairs: &[(String, String)]) -> Vec<Tag> {
    pairs.iter().map(|(key, value)| Tag::builder().key(key).value(value).build()).collect()
}
