//! The HTTP/1.1 side of every endpoint: connections in, requests to whoever serves them, replies out, broken ones included.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// What goes to the connection.
pub(crate) enum Reply {
    Answer {
        status: u16,
        /// Content type.
        kind: &'static str,
        body: String,
        request_id: Option<String>,
    },
    /// Status 200 and this text, with one more header.
    Headed {
        header: (&'static str, String),
        body: String,
    },
    /// The first half of the answer, then a broken connection.
    Cut {
        body: String,
    },
    Drop,
    Hang,
}

/// A listening port with a thread and a runtime of its own. Dropped = stopped; requests at work are cut off.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Any free port of this machine alone.
pub(crate) const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

impl Server {
    /// `name` is the thread's; port 0 is any free one.
    pub(crate) fn start<S, F>(name: &str, address: SocketAddr, serve: S) -> std::io::Result<Self>
    where
        S: Fn(Parts, Vec<u8>) -> F + Clone + Send + 'static,
        F: Future<Output = Reply> + Send + 'static,
    {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            runtime.block_on(async {
                match TcpListener::from_std(listener) {
                    Ok(listener) => tokio::select! {
                        () = accept(listener, serve) => {}
                        _ = stopped => {}
                    },
                    Err(error) => panic!("the runtime does not take the listener: {error}"),
                }
            });
        })?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }

    /// `http://127.0.0.1:PORT`
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Accepts connections for ever. `serve` runs to its end even if the client is gone by then, as a service would.
async fn accept<S, F>(listener: TcpListener, serve: S)
where
    S: Fn(Parts, Vec<u8>) -> F + Clone + Send + 'static,
    F: Future<Output = Reply> + Send + 'static,
{
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, most likely; others will be closed.
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let serve = serve.clone();
        tokio::spawn(async move {
            let service = hyper::service::service_fn(move |request| handle(request, serve.clone()));
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

async fn handle<S, F>(request: Request<Incoming>, serve: S) -> Result<Response<Content>, Broken>
where
    S: Fn(Parts, Vec<u8>) -> F + Send,
    F: Future<Output = Reply> + Send + 'static,
{
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Broken)?.to_bytes();
    // A task of its own: when the client goes away hyper drops this future, and the request must still be served.
    match tokio::spawn(serve(head, body.to_vec())).await.map_err(|_| Broken)? {
        Reply::Answer { status, kind, body, request_id } => Ok(respond(status, kind, body, request_id)),
        Reply::Headed { header: (name, value), body } => {
            let mut response = respond(200, "text/plain", body, None);
            if let Ok(value) = header::HeaderValue::from_str(&value) {
                response.headers_mut().insert(name, value);
            }
            Ok(response)
        }
        Reply::Cut { body } => {
            let length = body.len() as u64;
            let half = Bytes::from(body).slice(..(length / 2) as usize);
            Ok(Response::new(Content { data: Some(half), declared: length.max(1) }))
        }
        Reply::Drop => Err(Broken),
        Reply::Hang => std::future::pending().await,
    }
}

/// One header as text.
pub(crate) fn header(head: &Parts, name: &str) -> Option<String> {
    head.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
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

/// The key id of a Signature Version 4 header; the signature itself is not verified.
pub(crate) fn access_key(authorization: &str) -> Option<String> {
    let rest = authorization.strip_prefix("AWS4-HMAC-SHA256 ")?;
    let part = |name: &str| rest.split(',').find_map(|p| p.trim().strip_prefix(name));
    part("SignedHeaders=").and(part("Signature="))?;
    let key = part("Credential=")?.split('/').next()?;
    (!key.is_empty()).then(|| key.to_owned())
}
