//! The doors and limits of a pass or of a launch, opened from the configuration.

use std::time::Instant;

use crate::config::settings::Settings;
use crate::ec2::sdk::Ec2;
use crate::error::chain;
use crate::model::time::Timestamp;
use crate::programs::args::Environment;
use crate::programs::context::{Context, new_launch_id};
use crate::programs::startup::Limits;
use crate::programs::{begin, publishing};
use crate::store::door::Store;

/// A context of its own; its launch id is one that nobody else has. Nothing is asked of AWS yet.
pub(super) async fn open(
    settings: Settings,
    env: &Environment,
    limits: Limits,
    (begun, begun_at): (Timestamp, Instant),
) -> Result<Context, String> {
    let store = Store::open(&settings).map_err(|error| chain(&error))?;
    with(settings, env, store, limits, (begun, begun_at)).await
}

/// With a store that is open already.
pub(super) async fn with(
    settings: Settings,
    env: &Environment,
    store: Store,
    limits: Limits,
    (begun, begun_at): (Timestamp, Instant),
) -> Result<Context, String> {
    let ec2 = Ec2::connect(&settings.aws, &settings.region).await.map_err(|error| chain(&error))?;
    let (dynamodb, route53) = publishing::doors(&settings).await.map_err(|error| chain(&error))?;
    let slurm = begin::scontrol(&settings, env);
    let launch = new_launch_id(begun)?;
    let (program, interactive) = (super::PROGRAM, false);
    Ok(Context { program, settings, store, ec2, dynamodb, route53, slurm, limits, launch, begun, begun_at, interactive })
}
