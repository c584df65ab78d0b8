//! What the threads of the daemon share: whether it is to end, whether the configuration is to be read again, and when the passes last
//! got on.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

pub(super) struct Shared {
    /// When a signal asked for the end.
    stop: watch::Sender<Option<Instant>>,
    /// Somebody asked to read the configuration again.
    reload: Notify,
    /// The last step of a pass.
    step: Mutex<Instant>,
}

impl Shared {
    pub(super) fn new() -> Self {
        Self { stop: watch::Sender::new(None), reload: Notify::new(), step: Mutex::new(Instant::now()) }
    }

    pub(super) fn stop(&self) {
        self.stop.send_replace(Some(Instant::now()));
    }

    /// Holds when the end was asked for; for the limits of what is done.
    pub(super) fn stop_signal(&self) -> watch::Receiver<Option<Instant>> {
        self.stop.subscribe()
    }

    /// Ends when the end is asked for.
    pub(super) async fn stopped(&self) {
        // The sender is here: it cannot be gone.
        let _ = self.stop.subscribe().wait_for(Option::is_some).await;
    }

    pub(super) fn ask_for_reload(&self) {
        self.reload.notify_one();
    }

    /// Ends when the configuration is to be read again.
    pub(super) async fn reload_asked(&self) {
        self.reload.notified().await;
    }

    /// A pass got on by one step.
    pub(super) fn step(&self) {
        *self.step.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// For how long no step was made.
    pub(super) fn since_step(&self) -> Duration {
        self.step.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}
