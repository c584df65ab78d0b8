//! Instance metadata (IMDSv2) on 127.0.0.1: texts by path in, answers with session tokens out. A request without a token is refused, and
//! kept as what it is.
//!
//! ```
//! use slurm_ec2_testkit::imds::{Endpoint, Fault};
//!
//! let imds = Endpoint::start();
//! imds.set("spot/instance-action", r#"{"action":"terminate","time":"2026-11-29T12:00:00Z"}"#);
//! imds.fail_tokens([Fault::Status(503), Fault::Drop]);   // the next two requests for a token
//! // … run a program with metadata_endpoint = imds.url() …
//! assert_eq!(imds.without_token(), 0);
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::http::{self, LOCAL, Reply, Server};
use hyper::http::request::Parts;

/// A request that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Status(u16),
    /// The connection is closed without an answer.
    Drop,
    /// No answer, for ever.
    Hang,
}

/// A request that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    /// `/latest/meta-data/instance-id`
    pub path: String,
    /// Did it carry a token that counts?
    pub token: bool,
}

#[derive(Debug, Default)]
struct World {
    /// Behind `/latest/meta-data/`.
    texts: BTreeMap<String, String>,
    token_faults: VecDeque<Fault>,
    faults: VecDeque<Fault>,
    /// Those given out that still count.
    tokens: BTreeSet<String>,
    given: usize,
    requests: Vec<Request>,
}

/// A running endpoint, on a thread of its own. Dropped = stopped.
#[derive(Debug)]
pub struct Endpoint {
    server: Server,
    world: Arc<Mutex<World>>,
}

impl Endpoint {
    /// Starts on a free port of 127.0.0.1, with an instance id and nothing else.
    ///
    /// # Panics
    /// If there is no port; a test cannot go on without its endpoint.
    pub fn start() -> Self {
        let texts = BTreeMap::from([("instance-id".to_owned(), "i-0ec20000000000001".to_owned())]);
        let world = Arc::new(Mutex::new(World { texts, ..World::default() }));
        let served = Arc::clone(&world);
        match Server::start("fake-imds", LOCAL, move |head, _| std::future::ready(answer(&served, &head))) {
            Ok(server) => Endpoint { server, world },
            Err(error) => panic!("cannot start the metadata endpoint: {error}"),
        }
    }

    /// For `metadata_endpoint`.
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// From now on this is at `path`, behind `/latest/meta-data/`.
    pub fn set(&self, path: &str, text: &str) {
        self.lock().texts.insert(path.to_owned(), text.to_owned());
    }

    pub fn remove(&self, path: &str) {
        self.lock().texts.remove(path);
    }

    /// What becomes of the next requests for a token.
    pub fn fail_tokens(&self, faults: impl IntoIterator<Item = Fault>) {
        self.lock().token_faults.extend(faults);
    }

    /// What becomes of the next requests for a text.
    pub fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.lock().faults.extend(faults);
    }

    /// No token given out so far counts any more.
    pub fn expire_tokens(&self) {
        self.lock().tokens.clear();
    }

    /// All requests, in order of arrival.
    pub fn requests(&self) -> Vec<Request> {
        self.lock().requests.clone()
    }

    /// How many requests for `path` have arrived.
    pub fn count(&self, path: &str) -> usize {
        let path = format!("{PREFIX}{path}");
        self.requests().iter().filter(|request| request.path == path).count()
    }

    /// How many requests for a text came without a token, or with one that never counted.
    pub fn without_token(&self) -> usize {
        self.requests().iter().filter(|request| request.method != "PUT" && !request.token).count()
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }
}

fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

const PREFIX: &str = "/latest/meta-data/";
const TTL: &str = "x-aws-ec2-metadata-token-ttl-seconds";

fn answer(world: &Mutex<World>, head: &Parts) -> Reply {
    let mut world = lock(world);
    let path = head.uri.path().to_owned();
    let token = http::header(head, "x-aws-ec2-metadata-token");
    let known = token.as_ref().is_some_and(|token| world.tokens.contains(token));
    let was_given = token.is_some_and(|token| token.starts_with(TOKEN));
    world.requests.push(Request { method: head.method.to_string(), path: path.clone(), token: was_given });
    let is_put = head.method == "PUT";
    let fault = if is_put { world.token_faults.pop_front() } else { world.faults.pop_front() };
    match fault {
        Some(Fault::Status(status)) => return plain(status, "a fault of the test's own".to_owned()),
        Some(Fault::Drop) => return Reply::Drop,
        Some(Fault::Hang) => return Reply::Hang,
        None => {}
    }
    if is_put && path == "/latest/api/token" {
        let Some(ttl) = http::header(head, TTL) else { return plain(400, String::new()) };
        world.given += 1;
        let token = format!("{TOKEN}{}", world.given);
        world.tokens.insert(token.clone());
        return Reply::Headed { header: (TTL, ttl), body: token };
    }
    if !known {
        return plain(401, "Unauthorized".to_owned());
    }
    match path.strip_prefix(PREFIX).and_then(|path| world.texts.get(path)) {
        Some(text) => plain(200, text.clone()),
        None => plain(404, "Not Found".to_owned()),
    }
}

const TOKEN: &str = "token-";

fn plain(status: u16, body: String) -> Reply {
    Reply::Answer { status, kind: "text/plain", body, request_id: None }
}
