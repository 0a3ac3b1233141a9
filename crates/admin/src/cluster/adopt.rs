//! Adoption, a standing query: own runs that are overdue and not in memory, runs of leases that are over, and requests
//! to cancel. Whatever a crash, a lost answer or a late commit left behind is found here within a second.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rondel_core::{Run, RunId, RunStatus, Timestamp};
use rondel_store::ledger::Adopted;
use rondel_store::{LeaseToken, StoreError};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::cluster::Held;
use crate::dispatch::{CalledRun, Event, Ready};
use crate::engine::{Shared, chain};

const PERIOD: Duration = Duration::from_secs(1);
/// How overdue an own run must be to be looked for in memory.
const STRAY_AFTER: Duration = Duration::from_secs(1);
const PAGE: u32 = 1_000;

pub(crate) struct AdoptLoop {
    shared: Arc<Shared>,
}

impl AdoptLoop {
    pub(crate) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut period = interval(PERIOD);
        period.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut complained = false;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = period.tick() => {}
                () = self.shared.adopt_poke.notified() => {}
            }
            match self.tick().await {
                Ok(()) => complained = false,
                Err(error) => {
                    if !std::mem::replace(&mut complained, true) {
                        tracing::warn!(error = %chain(&error), "cannot look for runs to adopt; trying on");
                    }
                }
            }
        }
    }

    async fn tick(&mut self) -> Result<(), StoreError> {
        let Some(held) = self.shared.membership.held() else { return Ok(()) };
        self.adopt(&held).await?;
        self.take_strays(&held).await?;
        let cancels = self.shared.store.cancels(held.token).await?;
        if !cancels.is_empty() {
            drop(self.shared.events.send(Event::Cancels(cancels)).await);
        }
        Ok(())
    }

    async fn adopt(&self, held: &Held) -> Result<(), StoreError> {
        let shared = &self.shared;
        let now = shared.clock.now();
        let dead = shared.membership.adoptable(now, shared.config.lease);
        loop {
            let adopted = shared.store.adopt(held.token, &dead, PAGE).await?;
            if adopted.is_empty() {
                return Ok(());
            }
            tracing::info!(count = adopted.len(), "took over open runs of a lease that is over");
            let (unsent, maybe_sent) = sort(adopted, |token| shared.membership.was_this_process(token));
            shared.put(unsent).await;
            self.call_roll(maybe_sent).await?;
        }
    }

    /// Runs that may have been sent wait for the roll call; none of them is a stray from here on.
    async fn call_roll(&self, maybe_sent: Vec<Adopted>) -> Result<(), StoreError> {
        let shared = &self.shared;
        let owners: HashMap<RunId, LeaseToken> = maybe_sent.iter().map(|a| (a.run.id, a.from)).collect();
        let runs = shared.in_memory.admit(maybe_sent.into_iter().map(|adopted| adopted.run).collect());
        let Some(oldest) = runs.iter().map(|run| run.due_at).min() else { return Ok(()) };
        let keys = runs.iter().map(|run| (run.job, run.job_version));
        let definitions = shared.definitions.load(shared.store.as_ref(), keys).await?;
        // Whoever may have been sent something since the oldest of these runs was due.
        let since = Timestamp::min(oldest, shared.clock.now()) - shared.config.lost_after;
        let witnesses = shared.store.sessions(since).await?;
        let called = runs.into_iter().filter_map(|run| {
            let definition = Arc::clone(definitions.get(&(run.job, run.job_version))?);
            let from = *owners.get(&run.id)?;
            Some(CalledRun { ready: Ready { run, definition }, from })
        });
        drop(shared.events.send(Event::RollCall(called.collect(), witnesses)).await);
        Ok(())
    }

    /// An own run that is overdue and not in memory: its claim's answer was lost, or it was dropped with a lease.
    async fn take_strays(&self, held: &Held) -> Result<(), StoreError> {
        let before = self.shared.clock.now() - STRAY_AFTER;
        let overdue = self.shared.store.overdue(held.token, before, PAGE).await?;
        self.shared.put(overdue).await;
        Ok(())
    }
}

/// Which adopted runs cannot have been sent, and which may have been. Waiting ones are found by the scan.
fn sort(adopted: Vec<Adopted>, was_this_process: impl Fn(LeaseToken) -> bool) -> (Vec<Run>, Vec<Adopted>) {
    let (mut unsent, mut maybe_sent) = (Vec::new(), Vec::new());
    for adopted in adopted {
        match adopted.run.status {
            RunStatus::Pending if adopted.run.is_root() => unsent.push(adopted.run),
            RunStatus::Pending if was_this_process(adopted.from) || adopted.run.due_at > adopted.from_ended_at => {
                unsent.push(adopted.run);
            }
            RunStatus::Pending | RunStatus::Running if !adopted.run.is_root() => maybe_sent.push(adopted),
            _ => {}
        }
    }
    (unsent, maybe_sent)
}
