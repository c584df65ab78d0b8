//! What a daemon tells the service manager (`Type=notify`): that it is ready, what it does, that it works, that it ends. Without one
//! (`NOTIFY_SOCKET` is not set) nothing happens; a message that cannot be sent is no reason to stop.

use std::time::Duration;

use sd_notify::NotifyState;

pub(super) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// One line for `systemctl status`.
pub(super) fn status(text: &str) {
    tell(&[NotifyState::Status(text)]);
}

/// For the watchdog: still at work.
pub(super) fn alive() {
    tell(&[NotifyState::Watchdog]);
}

pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// How often [`alive`] is to be told: half of what the unit's `WatchdogSec=` allows; `None` without it.
pub(super) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|limit| limit / 2).filter(|limit| !limit.is_zero())
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!("the service manager cannot be told: {error}");
    }
}
