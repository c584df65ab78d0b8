//! Requests of the HTTP side to `serve.rs` or `control.rs`.

use std::sync::Arc;

use tokio::net::TcpListener;

use super::serve::serve;
use super::{Shared, control};
use crate::http::{self, Reply};

/// Serves for ever.
pub(crate) async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    http::accept(listener, move |head, body| {
        let shared = Arc::clone(&shared);
        async move {
            if let Some(path) = head.uri.path().strip_prefix("/_control/") {
                let (status, body) = control::handle(&shared, head.method.as_str(), path, &body);
                return Reply::Answer { status, kind: "application/json", body, request_id: None };
            }
            let authorization = http::header(&head, "authorization");
            serve(shared, body, authorization).await
        }
    })
    .await;
}
