//! The door to EC2: our words in, our words out. Only this folder names the AWS SDK. No policy.
//!
//! `sdk.rs` is the door itself; `request.rs` and `answer.rs` translate, `codes.rs` says what an error asks of us,
//! `http.rs`, `hosts.rs`, `roots.rs` and `credentials.rs` are the way to the endpoint.

mod answer;
mod calls;
pub(crate) mod codes;
mod credentials;
mod describe;
pub(crate) mod error;
pub(crate) mod hosts;
pub(crate) mod http;
mod request;
mod retry;
mod roots;
pub(crate) mod sdk;
mod sentence;
mod slim;
pub(crate) mod terminate;

#[cfg(test)]
mod responder;
#[cfg(test)]
mod wire_instance_tests;
#[cfg(test)]
mod wire_tests;
