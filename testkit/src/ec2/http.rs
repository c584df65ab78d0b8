//! Requests of the HTTP side to `serve.rs` or `control.rs`.

use std::sync::Arc;

use hyper::http::request::Parts;

use super::serve::serve;
use super::{Shared, control};
use crate::http::{self, Reply};

pub(crate) async fn answer(shared: Arc<Shared>, head: Parts, body: Vec<u8>) -> Reply {
    if let Some(path) = head.uri.path().strip_prefix("/_control/") {
        let (status, body) = control::handle(&shared, head.method.as_str(), path, &body);
        return Reply::Answer { status, kind: "application/json", body, request_id: None };
    }
    let authorization = http::header(&head, "authorization");
    serve(shared, body, authorization).await
}
