//! What the endpoints of the smaller services share: a thread with an HTTP server, a script of faults, a record of requests.
//!
//! The rules are EC2's ([`Rule`]); of their matches only action, `nth` and `times` count here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::http::request::Parts;
use tokio::sync::Notify;

use crate::ec2::{Effect, Params, Rule, Script, wait_for_removal};
use crate::http::{self, LOCAL, Reply, Server};

/// A request as a service gets it.
pub(crate) struct Asked {
    /// `/2013-04-01/hostedzone/Z1/rrset`
    pub(crate) path: String,
    pub(crate) body: String,
}

/// What a service answers.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// One service's world and rules. Called under a lock; waiting is the host's.
pub(crate) trait Service: Send + 'static {
    /// Content type of its answers.
    const KIND: &'static str;

    /// The name of what is asked for (`BatchWriteItem`).
    fn operation(head: &Parts) -> String;

    /// Carries a request out. `request_id` is the answer's.
    fn perform(&mut self, operation: &str, asked: &Asked, request_id: &str) -> Answer;

    /// An error as the service writes it.
    fn error(&self, status: u16, code: &str, message: &str, request_id: &str) -> Answer;

    /// How long it takes to answer.
    fn latency(&self, operation: &str) -> Duration;
}

/// A request that has arrived.
#[derive(Clone, Debug)]
pub struct Request {
    /// `BatchWriteItem`, `ChangeResourceRecordSets`, …
    pub operation: String,
    pub path: String,
    pub body: String,
    /// `None`: no answer has been given.
    pub status: Option<u16>,
}

struct World<S> {
    service: S,
    script: Script,
    requests: Vec<Request>,
    /// Gate → requests that stand there, and how often it was opened.
    gates: BTreeMap<String, (usize, u64)>,
}

struct Shared<S> {
    world: Mutex<World<S>>,
    opened: Notify,
}

impl<S> Shared<S> {
    fn lock(&self) -> MutexGuard<'_, World<S>> {
        // A test that panicked while it looked has left a world that is still whole.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running endpoint, on a thread and a runtime of its own. Dropped = stopped; requests at work are cut off.
pub(crate) struct Host<S> {
    server: Server,
    shared: Arc<Shared<S>>,
}

impl<S: Service> Host<S> {
    /// Starts on a free port of 127.0.0.1.
    pub(crate) fn start(name: &str, service: S, rules: Vec<Rule>) -> std::io::Result<Self> {
        let world = World { service, script: Script::new(rules), requests: Vec::new(), gates: BTreeMap::new() };
        let shared = Arc::new(Shared { world: Mutex::new(world), opened: Notify::new() });
        let served = Arc::clone(&shared);
        let server = Server::start(name, LOCAL, move |head, body| serve(Arc::clone(&served), head, body))?;
        Ok(Host { server, shared })
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    /// Looks at the service, or changes it.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut S) -> T) -> T {
        work(&mut self.shared.lock().service)
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.shared.lock().requests.clone()
    }

    pub(crate) fn add_rules(&self, rules: impl IntoIterator<Item = Rule>) {
        self.shared.lock().script.add(rules.into_iter().collect());
    }

    /// Opens a gate once.
    pub(crate) fn release(&self, gate: &str) {
        if let Some((waiting, opened)) = self.shared.lock().gates.get_mut(gate) {
            *waiting = 0;
            *opened += 1;
        }
        self.shared.opened.notify_waiters();
    }

    /// Waits until a request stands at the gate; false if none came in time.
    pub(crate) fn wait_held(&self, gate: &str, at_most: Duration) -> bool {
        const LOOK_AGAIN: Duration = Duration::from_millis(5);
        let end = std::time::Instant::now() + at_most;
        loop {
            if self.shared.lock().gates.get(gate).is_some_and(|(waiting, _)| *waiting > 0) {
                return true;
            }
            if std::time::Instant::now() >= end {
                return false;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

impl<S> std::fmt::Debug for Host<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("address", &self.server.address).finish_non_exhaustive()
    }
}

/// One request from arrival to answer.
async fn serve<S: Service>(shared: Arc<Shared<S>>, head: Parts, body: Vec<u8>) -> Reply {
    let operation = S::operation(&head);
    let asked = Asked { path: head.uri.path().to_owned(), body: String::from_utf8_lossy(&body).into_owned() };
    let signed = http::header(&head, "authorization").as_deref().and_then(http::access_key).is_some();
    let (call, effects, latency) = {
        let mut world = shared.lock();
        let (path, body) = (asked.path.clone(), asked.body.clone());
        world.requests.push(Request { operation: operation.clone(), path, body, status: None });
        let effects = world.script.pick(&operation, &Params::default());
        let number = world.requests.len() - 1;
        let request_id = format!("fa4e0000-0000-4000-8000-{:012x}", number + 1);
        (Call { shared: Arc::clone(&shared), number, request_id }, effects, world.service.latency(&operation))
    };
    if !signed {
        let answer =
            shared.lock().service.error(403, "MissingAuthenticationToken", "the request is not signed", &call.request_id);
        return call.answer(answer);
    }
    for effect in effects.iter().filter(|effect| !effect.is_after()) {
        if let Some(reply) = call.play(effect, "").await {
            return reply;
        }
    }
    let answer = shared.lock().service.perform(&operation, &asked, &call.request_id);
    tokio::time::sleep(latency).await;
    for effect in effects.iter().filter(|effect| effect.is_after()) {
        if let Some(reply) = call.play(effect, &answer.body).await {
            return reply;
        }
    }
    call.answer(answer)
}

struct Call<S> {
    shared: Arc<Shared<S>>,
    number: usize,
    request_id: String,
}

impl<S: Service> Call<S> {
    fn answer(&self, answer: Answer) -> Reply {
        let Answer { status, body } = answer;
        if let Some(request) = self.shared.lock().requests.get_mut(self.number) {
            request.status = Some(status);
        }
        Reply::Answer { status, kind: S::KIND, body, request_id: Some(self.request_id.clone()) }
    }

    /// Plays an effect; some end the call.
    async fn play(&self, effect: &Effect, body: &str) -> Option<Reply> {
        let error = |status, code: &str, message: &str| {
            let answer = self.shared.lock().service.error(status, code, message, &self.request_id);
            self.answer(answer)
        };
        match effect {
            Effect::Delay { ms, .. } => tokio::time::sleep(Duration::from_millis(*ms)).await,
            Effect::Hold { name, .. } => self.wait_at_gate(name).await,
            Effect::Hook { path, .. } => {
                if let Err(why) = wait_for_removal(path).await {
                    return Some(error(500, "HookFailed", &format!("{}: {why}", path.display())));
                }
            }
            Effect::Error { code, status, message, .. } => return Some(error(*status, code, message)),
            Effect::Drop { .. } => return Some(Reply::Drop),
            Effect::Hang { .. } => return Some(Reply::Hang),
            Effect::Garbage { body, status } => return Some(self.answer(Answer { status: *status, body: body.clone() })),
            Effect::Cut {} => return Some(Reply::Cut { body: body.to_owned() }),
        }
        None
    }

    async fn wait_at_gate(&self, name: &str) {
        let came = {
            let mut world = self.shared.lock();
            let (waiting, opened) = world.gates.entry(name.to_owned()).or_default();
            *waiting += 1;
            *opened
        };
        loop {
            let opening = self.shared.opened.notified();
            tokio::pin!(opening);
            // Registered before looking, or an opening in between would be missed.
            opening.as_mut().enable();
            if self.shared.lock().gates.get(name).is_none_or(|(_, opened)| *opened > came) {
                return;
            }
            opening.await;
        }
    }
}
