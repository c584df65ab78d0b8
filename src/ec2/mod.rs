//! The door to EC2: our words in, our words out. Only this folder names the AWS SDK. No policy.
//!
//! `sdk.rs` is the door itself; `request.rs`, `overrides.rs` and `answer.rs` translate, `instances.rs` reads the
//! long answers, `codes.rs` says what an error asks of us.

mod answer;
mod blocks;
pub(crate) mod codes;
mod describe;
pub(crate) mod error;
mod instances;
mod overrides;
mod question;
mod request;
mod retry;
pub(crate) mod sdk;
mod sentence;
mod status;
mod tags;
pub(crate) mod terminate;
mod xml;

#[cfg(test)]
mod wire_instance_tests;
#[cfg(test)]
mod wire_request_tests;
#[cfg(test)]
mod wire_status_tests;
#[cfg(test)]
mod wire_tags_tests;
#[cfg(test)]
mod wire_tests;
