//! Work that may hang for ever: a file on NFS whose server is gone, a FIFO that nobody writes, a program on such a file system. It goes
//! to a thread of its own, is waited for as long as the caller likes, and is then left behind. Never more than one such thread for one
//! kind of work: a mount that hangs must not collect them.

use std::future::Future;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

/// One kind of work.
#[derive(Debug)]
pub(super) struct Slow<T> {
    /// Of the thread, for people who look at the process.
    name: &'static str,
    /// What was left behind and has not been seen to end.
    left: Option<oneshot::Receiver<T>>,
}

/// What came of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Got<T> {
    /// Of this call.
    Now(T),
    /// Of an earlier call that had been given up; nothing was begun.
    Late(T),
    /// Not in time.
    Nothing,
}

impl<T> Got<T> {
    pub(super) fn into_any(self) -> Option<T> {
        match self {
            Self::Now(value) | Self::Late(value) => Some(value),
            Self::Nothing => None,
        }
    }
}

impl<T: Send + 'static> Slow<T> {
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, left: None }
    }

    /// Does the work on a thread, unless the last one still has not come back; waits for at most `limit` either way.
    pub(super) async fn run(&mut self, limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> Got<T> {
        let until = Instant::now() + limit;
        if let Some(left) = &mut self.left {
            match tokio::time::timeout_at(until, left).await {
                Ok(Ok(value)) => {
                    self.left = None;
                    return Got::Late(value);
                }
                // The thread ended without a word: it panicked.
                Ok(Err(_)) => self.left = None,
                Err(_) => return Got::Nothing,
            }
        }
        let (tell, mut told) = oneshot::channel();
        let thread = std::thread::Builder::new().name(self.name.to_owned()).spawn(move || {
            // Nobody listens any more if the daemon ends.
            let _ = tell.send(work());
        });
        if let Err(error) = thread {
            tracing::warn!(work = self.name, "no thread can be started: {error}");
            return Got::Nothing;
        }
        match tokio::time::timeout_at(until, &mut told).await {
            Ok(Ok(value)) => Got::Now(value),
            Ok(Err(_)) => Got::Nothing,
            Err(_) => {
                self.left = Some(told);
                Got::Nothing
            }
        }
    }
}

/// Runs a future to its end on the thread that calls: for work that starts programs, which blocks where the program's file hangs.
/// `None`: no runtime can be had.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> Option<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.inspect_err(|error| tracing::warn!("a runtime cannot start: {error}")).ok().map(|runtime| runtime.block_on(future))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(1);

    #[tokio::test]
    async fn w02_what_hangs_is_left_behind_once() {
        let mut slow = Slow::new("test");
        assert_eq!(slow.run(LONG, || 1).await, Got::Now(1));
        let (go, gate) = mpsc::channel::<()>();
        let hang = move || {
            let _ = gate.recv();
            2
        };
        assert_eq!(slow.run(SHORT, hang).await, Got::Nothing);
        // Nothing is begun beside it, however often.
        for _ in 0..10 {
            assert_eq!(slow.run(SHORT, || panic!("a second thread")).await, Got::Nothing);
        }
        drop(go);
        assert_eq!(slow.run(LONG, || 3).await, Got::Late(2));
        assert_eq!(slow.run(LONG, || 4).await, Got::Now(4));
    }

    #[tokio::test]
    async fn a_panic_is_no_answer_and_no_end() {
        let mut slow = Slow::new("test");
        let fail = || -> u8 { std::panic::resume_unwind(Box::new("on purpose")) };
        assert_eq!(slow.run(LONG, fail).await, Got::Nothing);
        assert_eq!(slow.run(LONG, || 5).await, Got::Now(5));
    }
}
