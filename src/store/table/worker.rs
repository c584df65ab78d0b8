//! DynamoDB for plain code: a call in, its answer out, waited for within bounds.
//!
//! The programs run on one thread and use the store from plain code in the middle of it, where a runtime must not be entered a
//! second time. So the client lives in a thread of its own with a small runtime of its own, which goes on with timeouts and
//! connections while the program's thread waits. Waiting costs the program what waiting for the file's lock would: a few round trips.

use std::pin::Pin;
use std::sync::mpsc as answers;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::aws::error::AwsError;
use crate::config::settings::AwsSettings;
use crate::dynamodb::{DynamoDb, SERVICE};

type Job = Box<dyn FnOnce(DynamoDb) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// An answer on its way between the threads, on a machine that has much to do.
const HANDOVER: Duration = Duration::from_secs(1);

/// The thread, which ends with this value.
#[derive(Debug)]
pub(super) struct Worker {
    jobs: mpsc::UnboundedSender<Job>,
}

impl Worker {
    /// Sends nothing yet; an error is a setting that cannot be used, or a thread that cannot be made.
    pub(super) fn start(aws: AwsSettings, region: String) -> Result<Self, AwsError> {
        let (jobs, mut inbox) = mpsc::unbounded_channel::<Job>();
        let (started, starting) = answers::channel();
        let serve = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => {
                    let _ = started.send(Err(AwsError::configuration(SERVICE, format!("no runtime for it: {error}"))));
                    return;
                }
            };
            runtime.block_on(async move {
                let dynamodb = match DynamoDb::connect(&aws, &region).await {
                    Ok(dynamodb) => dynamodb,
                    Err(error) => {
                        let _ = started.send(Err(error));
                        return;
                    }
                };
                let _ = started.send(Ok(()));
                while let Some(job) = inbox.recv().await {
                    tokio::spawn(job(dynamodb.clone()));
                }
            });
        };
        let thread = std::thread::Builder::new().name("dynamodb".to_owned()).spawn(serve);
        thread.map_err(|error| AwsError::configuration(SERVICE, format!("no thread for it: {error}")))?;
        match starting.recv() {
            Ok(result) => result.map(|()| Self { jobs }),
            Err(_) => Err(AwsError::configuration(SERVICE, "its thread ended")),
        }
    }

    /// One call that ends by itself at `until`. `None` = it did not, and nothing is known of it.
    pub(super) fn call<T, F>(&self, until: Instant, call: impl FnOnce(DynamoDb) -> F + Send + 'static) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (sender, answer) = answers::channel();
        let job: Job = Box::new(move |dynamodb| {
            Box::pin(async move {
                let _ = sender.send(call(dynamodb).await);
            })
        });
        self.jobs.send(job).ok()?;
        answer.recv_timeout(until.saturating_duration_since(Instant::now()) + HANDOVER).ok()
    }
}
