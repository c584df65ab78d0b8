//! One call after the other, and not more than Route 53 takes: five in a second for the whole account.

use std::fmt;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, MutexGuard};

/// A little below the account's limit of five (aws-facts A.7), for calls do not travel at an even pace.
pub(crate) const CALLS_PER_SECOND: f64 = 4.5;

type Shared = Box<dyn Fn(Duration) -> Option<Duration> + Send + Sync>;

/// The pace of one program, and with `shared` of several.
#[derive(Default)]
pub(super) struct Pace {
    shared: Option<Shared>,
    /// When the next call may go out; held while one is on its way, because Route 53 refuses a change of a zone while it still
    /// works on the one before.
    next: Mutex<Option<Instant>>,
}

/// Leave to make one call; the next one waits until this is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a>(#[expect(dead_code, reason = "held for its drop")] MutexGuard<'a, Option<Instant>>);

impl Pace {
    pub(super) fn with(shared: impl Fn(Duration) -> Option<Duration> + Send + Sync + 'static) -> Self {
        Self { shared: Some(Box::new(shared)), next: Mutex::default() }
    }

    /// Waits for its turn; `None` if that would not come before `until`.
    pub(super) async fn turn(&self, until: Instant) -> Option<Turn<'_>> {
        let mut next = tokio::time::timeout_at(until.into(), self.next.lock()).await.ok()?;
        let now = Instant::now();
        let at_most = until.saturating_duration_since(now);
        let own = next.map_or(Duration::ZERO, |next| next.saturating_duration_since(now));
        let wait = match &self.shared {
            Some(shared) => shared(at_most)?.max(own),
            None => own,
        };
        if wait >= at_most {
            return None;
        }
        *next = Some(now + wait + Duration::from_secs_f64(1.0 / CALLS_PER_SECOND));
        tokio::time::sleep(wait).await;
        Some(Turn(next))
    }
}

impl fmt::Debug for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pace").field("shared", &self.shared.is_some()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn turns_come_one_after_the_other_and_end_in_time() {
        let pace = Pace::default();
        let (begun, soon) = (Instant::now(), || Instant::now() + Duration::from_secs(60));
        drop(pace.turn(soon()).await.unwrap());
        let second = pace.turn(Instant::now() + Duration::from_millis(50)).await.is_some();
        // A fifth of a second after the first one, if it could be waited for no longer than that.
        assert!(!second || begun.elapsed() >= Duration::from_millis(150), "the second turn came at once");
        let held = pace.turn(soon()).await.unwrap();
        assert!(pace.turn(Instant::now() + Duration::from_millis(50)).await.is_none(), "one is on its way");
        drop(held);
    }

    #[tokio::test]
    async fn r30_no_second_sees_more_than_five_calls() {
        let pace = Arc::new(Pace::default());
        let begun = Instant::now();
        let until = Instant::now() + Duration::from_secs(60);
        let mut turns = tokio::task::JoinSet::new();
        for _ in 0..7 {
            let pace = pace.clone();
            turns.spawn(async move {
                let _turn = pace.turn(until).await.unwrap();
                Instant::now()
            });
        }
        let mut turns = turns.join_all().await;
        turns.sort_unstable();
        // Timers are never early, and a late one moves those after it: each five turns take a second at least.
        for (turn, at) in (0..).zip(&turns) {
            assert!(*at - begun >= turn * Duration::from_millis(200), "{turn}: {turns:?}");
        }
    }

    #[tokio::test]
    async fn others_are_waited_for_and_no_turn_is_taken_in_vain() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let pace = Pace::with(move |at_most| {
            count.fetch_add(1, Ordering::Relaxed);
            (at_most > Duration::from_secs(1)).then_some(Duration::ZERO)
        });
        assert!(pace.turn(Instant::now() + Duration::from_millis(500)).await.is_none());
        assert!(pace.turn(Instant::now() + Duration::from_secs(60)).await.is_some());
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }
}
