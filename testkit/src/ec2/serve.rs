//! One EC2 request from arrival to answer: recorded, throttled, met by its faults, carried out, delayed.
//!
//! This is where waiting happens. The lock is never held across a wait.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Shared;
use super::params::Params;
use super::rules::Effect;
use super::state::Request;
use super::xml::{self, ApiError};
use crate::http::{Reply, access_key};

/// EC2's content type.
const XML: &str = "text/xml;charset=UTF-8";

/// How a hook file is watched; there is nobody to wake us.
const HOOK_POLL: Duration = Duration::from_millis(5);

struct Call {
    shared: Arc<Shared>,
    number: usize,
    arrived: Instant,
    request_id: String,
}

/// Serves one request. Runs to its end even if the client is gone by then, as EC2 would.
pub(crate) async fn serve(shared: Arc<Shared>, body: Vec<u8>, authorization: Option<String>) -> Reply {
    let params = Params::parse(&body);
    drop(body);
    let action = params.get("Action").unwrap_or_default().to_owned();
    let access_key = authorization.as_deref().and_then(access_key);
    let (number, arrived, admitted, effects) = shared.change(|world| {
        // One moment on both clocks: together they say when the answer went out.
        let arrived = Instant::now();
        world.requests.push(Request {
            action: action.clone(),
            params: params.pairs().to_vec(),
            arrived_ms: world.clock.at_ms(arrived),
            took_ms: None,
            status: None,
            answer: String::new(),
            processed: false,
            access_key: access_key.clone().unwrap_or_default(),
        });
        let admitted = access_key.is_some() && world.admit(&action);
        let effects = if admitted { world.script.pick(&action, &params) } else { Vec::new() };
        (world.first_request + world.requests.len() - 1, arrived, admitted, effects)
    });
    let call = Call { shared, number, arrived, request_id: request_id(number) };
    if access_key.is_none() {
        let text = "AWS was not able to validate the provided access credentials";
        return call.error(&ApiError::new(401, "AuthFailure", text));
    }
    if !admitted {
        return call.error(&ApiError::new(503, "RequestLimitExceeded", "Request limit exceeded."));
    }
    for effect in effects.iter().filter(|e| !e.is_after()) {
        if let Some(reply) = call.play(effect, "").await {
            return reply;
        }
    }
    let done = call.shared.change(|world| {
        let done = world.call(&action, &params);
        if let Some(request) = world.request(number) {
            request.processed = done.is_ok();
        }
        done
    });
    let (status, answer, body, launched) = match &done {
        Ok(done) => (200, "ok", xml::answer(&action, &call.request_id, &done.inner), done.launched),
        Err(error) => (error.status, error.code.as_str(), error.body(&call.request_id), 0),
    };
    call.take_time(&action, launched).await;
    for effect in effects.iter().filter(|e| e.is_after()) {
        if let Some(reply) = call.play(effect, &body).await {
            return reply;
        }
    }
    call.answer(status, answer, body)
}

impl Call {
    /// Plays an effect; some end the call.
    async fn play(&self, effect: &Effect, body: &str) -> Option<Reply> {
        match effect {
            Effect::Delay { ms, .. } => tokio::time::sleep(Duration::from_millis(*ms)).await,
            Effect::Hold { name, .. } => self.shared.wait_at_gate(name).await,
            Effect::Hook { path, .. } => {
                if let Err(error) = wait_for_removal(path).await {
                    let text = format!("cannot use hook file {}: {error}", path.display());
                    return Some(self.error(&ApiError::new(500, "HookFailed", text)));
                }
            }
            Effect::Error { code, status, message, .. } => {
                let message = if message.is_empty() { default_message(code) } else { message };
                return Some(self.error(&ApiError::new(*status, code, message)));
            }
            Effect::Drop { .. } => {
                self.record(None, "dropped");
                return Some(Reply::Drop);
            }
            Effect::Hang { .. } => {
                self.record(None, "hung");
                return Some(Reply::Hang);
            }
            Effect::Garbage { body, status } => return Some(self.answer(*status, "garbage", body.clone())),
            Effect::Cut {} => {
                self.record(Some(200), "cut");
                return Some(Reply::Cut { body: body.to_owned() });
            }
        }
        None
    }

    async fn take_time(&self, action: &str, launched: usize) {
        let latency = self.shared.change_quietly(|world| world.behaviour.latency.clone());
        let ms = match action {
            "RunInstances" | "CreateFleet" => latency.base_ms + latency.per_instance_ms * launched as u64,
            _ => latency.other_ms,
        };
        if ms > 0 {
            tokio::time::sleep_until((self.arrived + Duration::from_millis(ms)).into()).await;
        }
    }

    fn error(&self, error: &ApiError) -> Reply {
        self.answer(error.status, &error.code, error.body(&self.request_id))
    }

    fn answer(&self, status: u16, answer: &str, body: String) -> Reply {
        self.record(Some(status), answer);
        Reply::Answer { status, kind: XML, body, request_id: Some(self.request_id.clone()) }
    }

    fn record(&self, status: Option<u16>, answer: &str) {
        let took = self.arrived.elapsed().as_secs_f64() * 1000.0;
        self.shared.change(|world| {
            if let Some(request) = world.request(self.number) {
                request.took_ms = Some(took);
                request.status = status;
                request.answer = answer.to_owned();
            }
        });
    }
}

fn default_message(code: &str) -> &'static str {
    match code {
        "RequestLimitExceeded" => "Request limit exceeded.",
        "InsufficientInstanceCapacity" => "We currently do not have sufficient capacity for the requested instance type.",
        "UnauthorizedOperation" => "You are not authorized to perform this operation.",
        "InternalError" => "An internal error has occurred",
        _ => "As the fault script has it.",
    }
}

/// Makes the file and waits until somebody removes it.
pub(crate) async fn wait_for_removal(path: &Path) -> std::io::Result<()> {
    std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    while path.try_exists()? {
        tokio::time::sleep(HOOK_POLL).await;
    }
    Ok(())
}

fn request_id(number: usize) -> String {
    format!("ec2fa4e0-0000-4000-8000-{:012x}", number + 1)
}
