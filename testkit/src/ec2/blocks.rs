//! DescribeCapacityReservations: ids and states. One id that does not exist fails the call, as it does at EC2.

use std::fmt::Write as _;

use super::behaviour::CapacityReservation;
use super::describe::{page, read_filters};
use super::params::{Params, glob};
use super::state::World;
use super::xml::{ApiError, element, escape};

impl World {
    pub(crate) fn set_reservation(&mut self, reservation: CapacityReservation) {
        let all = &mut self.behaviour.capacity_reservations;
        match all.iter_mut().find(|there| there.id == reservation.id) {
            Some(there) => *there = reservation,
            None => all.push(reservation),
        }
    }

    pub(crate) fn describe_capacity_reservations(&mut self, params: &Params) -> Result<String, ApiError> {
        let ids = params.list("CapacityReservationId");
        if let Some(bad) = ids.iter().find(|id| !id.starts_with("cr-")) {
            let text = format!("Invalid id: \"{bad}\" (expecting \"cr-...\")");
            return Err(ApiError::client("InvalidCapacityReservationId.Malformed", text));
        }
        let (limit, from) = page(params, &[], 1)?;
        // Only one filter is known, which nobody here uses: a request that has one is a mistake.
        read_filters(params, &[])?;
        let all = &self.behaviour.capacity_reservations;
        if let Some(unknown) = ids.iter().find(|id| !all.iter().any(|there| there.id == **id)) {
            let text = format!("The capacity reservation ID '{unknown}' does not exist");
            return Err(ApiError::client("InvalidCapacityReservationId.NotFound", text));
        }
        let wanted = all.iter().filter(|there| ids.is_empty() || ids.iter().any(|id| glob(id, &there.id)));
        let wanted: Vec<&CapacityReservation> = wanted.collect();
        let limit = limit.unwrap_or(usize::MAX);
        let mut out = String::from("<capacityReservationSet>");
        for reservation in wanted.iter().skip(from).take(limit) {
            let _ = write!(
                out,
                "<item><capacityReservationId>{}</capacityReservationId><ownerId>123456789012</ownerId>\
                 <instanceType>p5.48xlarge</instanceType><instancePlatform>Linux/UNIX</instancePlatform>\
                 <totalInstanceCount>4</totalInstanceCount><availableInstanceCount>4</availableInstanceCount>\
                 <state>{}</state><reservationType>capacity-block</reservationType></item>",
                escape(&reservation.id),
                escape(&reservation.state)
            );
        }
        out.push_str("</capacityReservationSet>");
        if wanted.len() > from.saturating_add(limit) {
            element(&mut out, "nextToken", &format!("page-{}", from + limit));
        }
        Ok(out)
    }
}
