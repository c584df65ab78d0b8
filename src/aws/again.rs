//! The pauses between the tries of one piece of work: each about twice as long as the one before, by chance a little more or
//! less, so that programs which failed together do not come back together.

use std::time::{Duration, Instant};

use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;

use super::error::{AwsError, Service};

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

/// The tries of one call, until a moment.
#[derive(Debug)]
pub(crate) struct Tries {
    pauses: Pauses,
    /// What the last whole try heard, if that was a failure.
    heard: Option<AwsError>,
}

impl Tries {
    /// With these pauses in between.
    pub(crate) fn new(pauses: Pauses) -> Self {
        Self { pauses, heard: None }
    }

    pub(crate) fn heard(&self) -> Option<&AwsError> {
        self.heard.as_ref()
    }

    /// One try. Cut short by the end of the time it knows nothing: then the error is what the try before it heard, if there was
    /// one, since that is why there was no time left.
    pub(crate) async fn answer<T, E>(
        &mut self,
        service: &'static Service,
        operation: &'static str,
        call: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    ) -> Result<T, AwsError>
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let answer = self.in_time(service, operation, call).await?;
        // What comes after it, the next page, may be cut short for a reason of its own.
        self.heard = None;
        answer.map_err(|error| AwsError::from_sdk(service, operation, &error))
    }

    /// The same for a call whose failures the caller reads.
    pub(crate) async fn in_time<T>(
        &self,
        service: &'static Service,
        operation: &'static str,
        call: impl Future<Output = T>,
    ) -> Result<T, AwsError> {
        let answer = tokio::time::timeout_at(self.pauses.until.into(), call).await;
        answer.map_err(|_| self.heard.clone().unwrap_or_else(|| AwsError::late(service, operation)))
    }

    /// Waits before the next try; the error itself where none would help or no time is left.
    pub(crate) async fn again(&mut self, error: AwsError) -> Result<(), AwsError> {
        if error.class.is_retryable() && self.pauses.wait().await {
            self.heard = Some(error);
            Ok(())
        } else {
            Err(error)
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use aws_smithy_types::error::ErrorMetadata;

    use super::*;
    use crate::model::failure::ErrorClass;

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

    #[tokio::test]
    async fn the_try_before_the_one_that_is_cut_short_says_why() {
        const SERVICE: &Service = &Service { name: "DynamoDB", unreachable: "DynamoDbUnreachable" };
        let until = |until| Tries::new(Pauses::new(Duration::ZERO, Duration::ZERO, until));
        let in_an_hour = || Instant::now() + Duration::from_hours(1);
        let failed = |class| AwsError::new(SERVICE, "GetItem", "SomeException", class, "why");
        let cut_short = async |tries: &mut Tries| {
            tries.pauses.until = Instant::now() + Duration::from_millis(20);
            tries.in_time(SERVICE, "GetItem", std::future::pending::<()>()).await.unwrap_err().code
        };
        assert_eq!(cut_short(&mut until(in_an_hour())).await, "DynamoDbUnreachable");

        let mut tries = until(in_an_hour());
        tries.again(failed(ErrorClass::Throttled)).await.unwrap();
        assert_eq!(cut_short(&mut tries).await, "SomeException");
        // No time is left, and what no repeating helps needs none.
        assert_eq!(tries.again(failed(ErrorClass::Transient)).await.unwrap_err().class, ErrorClass::Transient);
        let mut tries = until(in_an_hour());
        assert_eq!(tries.again(failed(ErrorClass::Configuration)).await.unwrap_err().class, ErrorClass::Configuration);
        assert_eq!(tries.heard(), None);

        // A page came since: what was heard before it is over.
        tries.again(failed(ErrorClass::Throttled)).await.unwrap();
        let page = std::future::ready(Ok::<_, SdkError<ErrorMetadata, HttpResponse>>(()));
        tries.answer(SERVICE, "Query", page).await.unwrap();
        assert_eq!(cut_short(&mut tries).await, "DynamoDbUnreachable");
    }
}
