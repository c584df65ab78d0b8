//! DescribeCapacityReservations: ids of Capacity Blocks in, their states out. An unknown id is simply absent.

use std::collections::{BTreeMap, BTreeSet};

use super::codes;
use super::error::Ec2Error;
use super::question::next_page;
use super::sdk::Ec2;
use crate::model::cluster::CapacityBlock;

/// Ids in one call; a cluster has a handful.
const IDS_PER_CALL: usize = 100;

const OPERATION: &str = "DescribeCapacityReservations";

impl Ec2 {
    /// These reservations as far as EC2 knows them, in the order of ids. One unknown id fails a whole call, so each is asked for alone
    /// then; what fails for any other reason fails all.
    pub(crate) async fn describe_capacity_reservations(&self, ids: &[String]) -> Result<Vec<CapacityBlock>, Ec2Error> {
        let ids: Vec<String> = ids.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect();
        let mut found = BTreeMap::new();
        for chunk in ids.chunks(IDS_PER_CALL) {
            match self.blocks(chunk).await {
                Ok(blocks) => found.extend(blocks),
                Err(error) if is_about_an_id(&error) => {
                    // A call for one id has told already that it is the unknown one.
                    for id in chunk.iter().filter(|_| chunk.len() > 1) {
                        match self.blocks(std::slice::from_ref(id)).await {
                            Ok(blocks) => found.extend(blocks),
                            Err(error) if is_about_an_id(&error) => {}
                            Err(error) => return Err(error),
                        }
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(found.into_values().collect())
    }

    async fn blocks(&self, ids: &[String]) -> Result<BTreeMap<String, CapacityBlock>, Ec2Error> {
        let mut found = BTreeMap::new();
        let mut next: Option<String> = None;
        loop {
            let call = self.client().describe_capacity_reservations().set_capacity_reservation_ids(Some(ids.to_vec()));
            let page = call.set_next_token(next.clone()).send().await.map_err(|error| Ec2Error::from_sdk(OPERATION, &error))?;
            for told in page.capacity_reservations.unwrap_or_default() {
                let (Some(id), Some(state)) = (told.capacity_reservation_id, told.state) else { continue };
                found.insert(id.clone(), CapacityBlock { id, state: state.as_str().to_owned() });
            }
            next = next_page(OPERATION, next.as_ref(), page.next_token)?;
            if next.is_none() {
                return Ok(found);
            }
        }
    }
}

/// `.NotFound`, `.Malformed`: the id, not the call.
fn is_about_an_id(error: &Ec2Error) -> bool {
    codes::bare(&error.code).starts_with("InvalidCapacityReservationId.")
}
