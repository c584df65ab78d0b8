//! The HTTP/1.1 side: connections in, requests to `serve.rs` or `control.rs`, replies out.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::serve::{Reply, serve};
use super::{Shared, control};

/// Accepts connections for ever.
pub(crate) async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, most likely; others will be closed.
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = hyper::service::service_fn(|request| handle(request, Arc::clone(&shared)));
            // A connection that breaks is the client's affair, or the fault script's.
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// Why hyper closes the connection without an answer.
#[derive(Debug)]
struct Broken;

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("broken on purpose")
    }
}

impl std::error::Error for Broken {}

async fn handle(request: Request<Incoming>, shared: Arc<Shared>) -> Result<Response<Content>, Broken> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Broken)?.to_bytes();
    if let Some(path) = head.uri.path().strip_prefix("/_control/") {
        let (status, text) = control::handle(&shared, head.method.as_str(), path, &body);
        return Ok(respond(status, "application/json", text, None));
    }
    let authorization = head.headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok()).map(str::to_owned);
    // A task of its own: when the client goes away hyper drops this future, and the request must still be served.
    let reply = tokio::spawn(serve(shared, body.to_vec(), authorization)).await.map_err(|_| Broken)?;
    match reply {
        Reply::Answer { status, body, request_id } => Ok(respond(status, "text/xml;charset=UTF-8", body, Some(request_id))),
        Reply::Cut { body } => {
            let length = body.len() as u64;
            let half = Bytes::from(body).slice(..(length / 2) as usize);
            Ok(Response::new(Content { data: Some(half), declared: length.max(1) }))
        }
        Reply::Drop => Err(Broken),
        Reply::Hang => std::future::pending().await,
    }
}

fn respond(status: u16, kind: &'static str, text: String, request_id: Option<String>) -> Response<Content> {
    let declared = text.len() as u64;
    let data = (!text.is_empty()).then(|| Bytes::from(text));
    let mut response = Response::new(Content { data, declared });
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    if let Some(value) = request_id.and_then(|id| header::HeaderValue::from_str(&id).ok()) {
        response.headers_mut().insert("x-amzn-requestid", value);
    }
    response
}

/// A body whose declared length it may fall short of; then it ends in an error, and hyper breaks the connection.
struct Content {
    data: Option<Bytes>,
    declared: u64,
}

impl Body for Content {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        if let Some(data) = self.data.take() {
            self.declared -= data.len() as u64;
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        Poll::Ready((self.declared > 0).then_some(Err(Broken)))
    }

    fn is_end_stream(&self) -> bool {
        self.declared == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.declared)
    }
}
