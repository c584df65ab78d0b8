//! The pauses between the tries of one piece of work: each about twice as long as the one before, by chance a little more or
//! less, so that programs which failed together do not come back together.

use std::time::{Duration, Instant};

/// Pauses until a moment, then no more.
#[derive(Debug)]
pub(crate) struct Pauses {
    next: Duration,
    longest: Duration,
    until: Instant,
}

impl Pauses {
    /// The first pause is about `first`, none is longer than `longest`, none goes on after `until`.
    pub(crate) fn new(first: Duration, longest: Duration, until: Instant) -> Self {
        Self { next: first, longest, until }
    }

    /// The next pause; `None` when there would be no time left after it.
    pub(crate) fn next(&mut self) -> Option<Duration> {
        let pause = self.next.mul_f64(0.5 + fastrand::f64() / 2.0);
        self.next = (self.next * 2).min(self.longest);
        (Instant::now() + pause < self.until).then_some(pause)
    }

    /// Waits; false, at once, when there would be no time left afterwards.
    pub(crate) async fn wait(&mut self) -> bool {
        match self.next() {
            Some(pause) => {
                tokio::time::sleep(pause).await;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_limit_and_end_in_time() {
        let (first, longest) = (Duration::from_millis(100), Duration::from_millis(1000));
        let mut pauses = Pauses::new(first, longest, Instant::now() + Duration::from_hours(1));
        for most in [100, 200, 400, 800, 1000, 1000] {
            let pause = pauses.next().unwrap_or_default().as_millis();
            assert!(pause >= most / 2 && pause <= most, "{pause} for {most}");
        }
        assert_eq!(Pauses::new(first, longest, Instant::now()).next(), None);
    }
}
