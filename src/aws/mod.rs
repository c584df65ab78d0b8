//! What every AWS service shares: the way to an endpoint (HTTP client, names, CA bundle, credentials) and the count of calls.
//! Names no service.

pub(crate) mod calls;
pub(crate) mod credentials;
pub(crate) mod hosts;
pub(crate) mod http;
mod roots;

#[cfg(test)]
pub(crate) mod responder;
