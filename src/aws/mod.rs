//! What every AWS service shares: the way to an endpoint (HTTP client, names, CA bundle, credentials), the reading of errors
//! and the count of calls. Calls no service.

pub(crate) mod again;
pub(crate) mod calls;
pub(crate) mod client;
pub(crate) mod codes;
pub(crate) mod credentials;
pub(crate) mod error;
pub(crate) mod hosts;
pub(crate) mod http;
mod roots;
pub(crate) mod written;

#[cfg(test)]
pub(crate) mod responder;
