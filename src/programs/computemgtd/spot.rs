//! The watch for EC2's notices about this instance: a spot instance's end in two minutes, and the recommendation to move away.
//!
//! At a spot notice the node is drained with the reason, so that nothing new starts; then the person's hook runs, if there is one, while
//! the jobs still do; then the node is set down, which requeues its jobs. Both steps are needed: with ReturnToService=2 slurmctld takes a
//! node that is only set down back as soon as slurmd answers, some milliseconds later, and may give it the very job again (22.05.8);
//! drained it stays out. A node that is only drained keeps its jobs to the end, which the instance will not see.
//!
//! Each notice is handled once. What slurmctld cannot be told at once is told in the next look; what it refuses is said once.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch::Receiver;

use super::name::OwnName;
use super::outside::{self, Failure};
use super::watch::scontrol;
use crate::clock;
use crate::config::settings::Settings;
use crate::error::chain;
use crate::imds::{self, Metadata, SpotNotice};
use crate::plan::reasons::{REBALANCE, SPOT};
use crate::programs::slow::{Slow, block_on};
use crate::slurm::scontrol::{Applied, Error};
use crate::slurm::update::{self, Call};

/// One change in Slurm, all tries.
const TELL_LIMIT: Duration = Duration::from_secs(15);

/// What is added for a scontrol that does not come back.
const MARGIN: Duration = Duration::from_secs(5);

/// The hook's time: not more than this, and not so long that the jobs are not requeued before the instance goes.
const HOOK_LIMIT: Duration = Duration::from_secs(60);
const HOOK_LEAST: Duration = Duration::from_secs(5);
const BEFORE_THE_END: Duration = Duration::from_secs(30);

/// How far a notice has been handled.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Handled {
    notice: SpotNotice,
    drained: Step,
    hooked: bool,
    down: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Open,
    Done,
    /// slurmctld, or sudo, does not let us.
    Refused,
}

pub(super) struct Spot {
    settings: Receiver<Arc<Settings>>,
    name: Arc<OwnName>,
    /// `$SLURM_CONF`
    conf: Option<PathBuf>,
    /// With the address it was made for.
    metadata: Option<(Option<String>, Metadata)>,
    telling: Slow<Option<Applied>>,
    hooking: Slow<Result<(), Failure>>,
    handled: Option<Handled>,
    /// The recommendation that was told of.
    rebalance: Option<String>,
    rebalance_drained: Step,
    /// Metadata did not answer, which was said.
    silent: bool,
    /// The last trouble with telling slurmctld, which was said.
    trouble: Option<String>,
}

impl Spot {
    pub(super) fn new(settings: Receiver<Arc<Settings>>, name: Arc<OwnName>, conf: Option<PathBuf>) -> Self {
        Self {
            settings,
            name,
            conf,
            metadata: None,
            telling: Slow::new("scontrol"),
            hooking: Slow::new("spot-hook"),
            handled: None,
            rebalance: None,
            rebalance_drained: Step::Done,
            silent: false,
            trouble: None,
        }
    }

    /// Looks for ever.
    pub(super) async fn run(&mut self) {
        loop {
            let begun = Instant::now();
            let settings = Arc::clone(&self.settings.borrow());
            self.look(&settings).await;
            tokio::time::sleep_until((begun + settings.computemgtd.spot_poll).into()).await;
        }
    }

    /// One look, and what follows from it.
    pub(super) async fn look(&mut self, settings: &Arc<Settings>) {
        // Each by itself: what metadata says of the one must not wait for the other.
        let seen = self.handled.as_ref().map(|handled| handled.notice.clone());
        let spot = self.notice(settings, async |metadata| metadata.spot_notice().await).await;
        match &spot {
            Ok(notice) => self.spot_notice(settings, notice.clone()).await,
            // A notice that was seen is still to be handled.
            Err(_) if seen.is_some() => self.spot_notice(settings, seen).await,
            Err(_) => {}
        }
        let rebalance = self.notice(settings, async |metadata| metadata.rebalance_notice().await).await;
        if let Ok(notice) = &rebalance {
            self.rebalance_notice(settings, notice.clone()).await;
        }
        match spot.err().or(rebalance.err()) {
            None if self.silent => {
                self.silent = false;
                tracing::info!("instance metadata answers again");
            }
            Some(error) if !self.silent => {
                self.silent = true;
                tracing::warn!("spot notices cannot be seen (told once): {}", chain(&error));
            }
            _ => {}
        }
    }

    /// One question to instance metadata.
    async fn notice<T>(
        &mut self,
        settings: &Settings,
        ask: impl AsyncFnOnce(&Metadata) -> Result<Option<T>, imds::Error>,
    ) -> Result<Option<T>, imds::Error> {
        let endpoint = &settings.computemgtd.metadata_endpoint;
        if self.metadata.as_ref().is_none_or(|(made_for, _)| made_for != endpoint) {
            self.metadata = Some((endpoint.clone(), Metadata::new(endpoint.as_deref())?));
        }
        let Some((_, metadata)) = &self.metadata else { return Ok(None) };
        ask(metadata).await
    }

    async fn spot_notice(&mut self, settings: &Arc<Settings>, notice: Option<SpotNotice>) {
        let Some(notice) = notice else {
            // Taken back: a new one would be another.
            self.handled = None;
            return;
        };
        let mut handled = match self.handled.take() {
            Some(handled) => handled,
            None => {
                tracing::warn!(action = notice.action, time = notice.time, "spot notice: EC2 takes this instance away");
                if settings.computemgtd.disabled {
                    tracing::warn!("nothing is done about it: the daemon's actions are switched off");
                }
                let step = if settings.computemgtd.disabled { Step::Refused } else { Step::Open };
                Handled { notice, drained: step, hooked: step == Step::Refused, down: step }
            }
        };
        let reason = reason(&handled.notice);
        if handled.drained == Step::Open {
            let call = |node: &[String]| update::drain_args(node, &reason, 1);
            handled.drained = self.tell(settings, call, "drained, so that nothing new starts here").await;
        }
        if !handled.hooked {
            handled.hooked = true;
            self.hook(settings, &handled.notice).await;
        }
        // Set down without being drained it would come back at once.
        if handled.down == Step::Open && handled.drained != Step::Open {
            handled.down = match handled.drained {
                Step::Done => {
                    let call = |node: &[String]| update::down_args(node, &reason, None, 1);
                    self.tell(settings, call, "set down, so that its jobs are requeued").await
                }
                other => other,
            };
        }
        self.handled = Some(handled);
    }

    async fn rebalance_notice(&mut self, settings: &Arc<Settings>, notice: Option<String>) {
        let Some(notice) = notice else {
            self.rebalance = None;
            return;
        };
        let own = &settings.computemgtd;
        if self.rebalance.as_ref() != Some(&notice) {
            let drains = own.drain_on_rebalance && !own.disabled;
            tracing::warn!(
                time = notice,
                drains,
                "EC2 recommends to move away from this instance: it is at risk of being taken away"
            );
            self.rebalance_drained = if drains { Step::Open } else { Step::Done };
        }
        if self.rebalance_drained == Step::Open {
            let reason = format!("{REBALANCE} of {notice}");
            let call = |node: &[String]| update::drain_args(node, &reason, 1);
            self.rebalance_drained = self.tell(settings, call, "drained: its jobs go on, nothing new starts here").await;
        }
        self.rebalance = Some(notice);
    }

    /// One change of this node.
    async fn tell(&mut self, settings: &Arc<Settings>, call: impl Fn(&[String]) -> Vec<Call>, done: &str) -> Step {
        let Some(name) = self.name.get(settings).await else { return Step::Open };
        let node = name.node;
        let calls = call(std::slice::from_ref(&node));
        let (conf, settings) = (self.conf.clone(), Arc::clone(settings));
        let work = move || {
            let (slurm, ..) = scontrol(&settings, conf.as_deref());
            block_on(slurm.apply_all(calls, Instant::now() + TELL_LIMIT))
        };
        let applied = self.telling.run(TELL_LIMIT + MARGIN, work).await.into_any().flatten();
        let (step, trouble) = outcome(applied, name.is_sure);
        match trouble {
            None => {
                tracing::info!(node, "{done}");
                self.trouble = None;
            }
            Some(why) if self.trouble.as_ref() != Some(&why) => {
                let then = if step == Step::Refused { "; nothing more is tried" } else { "; tried again" };
                tracing::error!(node, "the node cannot be {}: {why}{then}", done.split([',', ':']).next().unwrap_or_default());
                self.trouble = Some(why);
            }
            Some(_) => {}
        }
        step
    }

    /// Waits for the hook, while the jobs still run: it may save their state.
    async fn hook(&mut self, settings: &Arc<Settings>, notice: &SpotNotice) {
        let Some(program) = settings.computemgtd.spot_hook.clone() else { return };
        let node = self.name.get(settings).await.map(|name| name.node).unwrap_or_default();
        let limit = hook_limit(notice.at().map(|at| at.since(clock::now())));
        let command = outside::hook(&program, &[&notice.action, &notice.time, &node], limit);
        tracing::info!(hook = %program.display(), limit_s = limit.as_secs(), "the hook for spot notices begins");
        match self.hooking.run(limit + MARGIN, move || command.run()).await.into_any() {
            Some(Ok(())) => tracing::info!(hook = %program.display(), "the hook for spot notices is done"),
            Some(Err(failure)) => tracing::error!("the hook for spot notices failed: {failure}"),
            None => tracing::error!(hook = %program.display(), "the hook for spot notices does not come back"),
        }
    }
}

/// For Slurm and everybody who looks at the node.
fn reason(notice: &SpotNotice) -> String {
    format!("{SPOT}: {} at {}", notice.action, notice.time)
}

/// `left` until the instance goes, if that is known.
fn hook_limit(left: Option<Duration>) -> Duration {
    left.map_or(HOOK_LIMIT, |left| left.saturating_sub(BEFORE_THE_END)).clamp(HOOK_LEAST, HOOK_LIMIT)
}

/// What came of telling slurmctld, and what went wrong. Only its own no to the name that somebody has said is final: a scontrol on NFS may
/// be back in a moment, and the host's name may be replaced by a better one. `is_sure`: that of the node's name.
fn outcome(applied: Option<Applied>, is_sure: bool) -> (Step, Option<String>) {
    let Some(applied) = applied else { return (Step::Open, Some("scontrol does not come back".to_owned())) };
    if let Some((_, text)) = applied.refused.first() {
        return (if is_sure { Step::Refused } else { Step::Open }, Some(text.clone()));
    }
    match applied.why_unknown {
        None => (Step::Done, None),
        Some(error @ Error::Denied { .. }) => (Step::Refused, Some(chain(&error))),
        Some(error) => (Step::Open, Some(chain(&error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::reasons::is_a_persons;

    #[test]
    fn only_a_no_to_a_sure_name_is_final() {
        let refused = || Applied { refused: vec![("n".to_owned(), "no".to_owned())], ..Applied::default() };
        let missing = Error::NotExecutable { path: "scontrol".into(), source: std::io::ErrorKind::NotFound.into() };
        let unknown = Applied { unknown: vec!["n".to_owned()], why_unknown: Some(missing), ..Applied::default() };
        assert_eq!(outcome(Some(refused()), true).0, Step::Refused);
        assert_eq!(outcome(Some(refused()), false).0, Step::Open);
        assert_eq!(outcome(Some(unknown), true).0, Step::Open, "a scontrol on NFS may come back");
        assert_eq!(outcome(None, true).0, Step::Open);
        assert_eq!(outcome(Some(Applied::default()), true).0, Step::Done);
    }

    #[test]
    fn a_reason_says_what_ec2_said_and_is_nobody_elses() {
        let notice = SpotNotice { action: "terminate".to_owned(), time: "2026-11-29T12:02:00Z".to_owned() };
        assert_eq!(reason(&notice), "EC2 spot notice: terminate at 2026-11-29T12:02:00Z");
        assert!(!is_a_persons(Some(&reason(&notice))));
    }

    #[test]
    fn the_hook_leaves_time_to_requeue() {
        let secs = Duration::from_secs;
        for (left, limit) in [(None, 60), (Some(120), 60), (Some(70), 40), (Some(33), 5), (Some(0), 5)] {
            assert_eq!(hook_limit(left.map(secs)), secs(limit), "{left:?}");
        }
    }
}
