//! Which Capacity Block a group's nodes run in: `capacity_reservation_id`, or what the API parameters name, in; the reservation's id out,
//! every mistake noted. What launches them into it is the launch template; this is for clustermgtd, which asks EC2 for the block's state.

use serde_json::{Map, Value};

use super::checks::check_reservation;
use super::reader::{NONE, Section};
use crate::model::recipe::{Capacity, Recipe};

const KEY: &str = "capacity_reservation_id";

pub(super) fn reservation(section: &Section<'_, '_>, recipe: &Recipe) -> Option<String> {
    let written = section.checked(KEY, NONE, "\"cr-0123456789abcdef0\"", check_reservation);
    let named = named_in(&recipe.overrides).filter(|_| recipe.capacity == Capacity::CapacityBlock);
    let Some(span) = section.value_span(KEY) else { return named };
    if matches!(recipe.capacity, Capacity::OnDemand | Capacity::Spot) && !section.is_bad("capacity") {
        let help = "add capacity = \"capacity-block\", or drop it";
        section.mistake(KEY, span, format!("{KEY} is for Capacity Blocks only"), help);
        return None;
    }
    if let (Some(written), Some(named)) = (&written, &named)
        && written != named
    {
        section.mistake(KEY, span, format!("{KEY} is {written}, and overrides names {named}"), "name one of them");
    }
    written
}

/// The reservation that parameters of an API call name.
pub(super) fn named_in(overrides: &Map<String, Value>) -> Option<String> {
    let target = overrides.get("CapacityReservationSpecification")?.get("CapacityReservationTarget")?;
    target.get("CapacityReservationId")?.as_str().filter(|id| !id.is_empty()).map(str::to_owned)
}
