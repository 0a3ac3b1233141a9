//! Makes the steps of the dispatcher durable: stores the shards of broadcasts, marks runs before they are sent, and records which handlers have
//! begun. One loop performs them in order, in batches, and answers with events.

mod hand_over;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rondel_core::outcome::{CancelRequest, Outcome, cancelled_by};
use rondel_core::queued::is_fire_ahead;
use rondel_core::{ExecutorId, NodeId, Reason, Run, RunId, RunStatus};
use rondel_store::ledger::LimitName;
use rondel_store::{LeaseToken, StoreError};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::dispatch::event::{Event, Shards};
use crate::dispatch::ready::end_of_unsent;
use crate::dispatch::step::{DecidedStep, Step};
use crate::metrics::CountedRun;
use crate::node::Shared;
use rondel_core::error_chain::chain;

/// Maximum number of steps that wait. The dispatcher repeats a step that finds no room.
pub(crate) const STEP_CAPACITY: usize = 1_024;
/// How long the store retains requests that ask other servers to send fences.
const FENCES_KEPT_FOR: Duration = Duration::from_secs(3_600);
const RETRY_DELAY: Duration = Duration::from_millis(200);

pub(crate) struct StepLoop {
    pub(crate) shared: Arc<Shared>,
    steps: mpsc::Receiver<DecidedStep>,
    events: mpsc::Sender<Event>,
}

impl StepLoop {
    pub(crate) const fn new(
        shared: Arc<Shared>,
        steps: mpsc::Receiver<DecidedStep>,
        events: mpsc::Sender<Event>,
    ) -> Self {
        Self { shared, steps, events }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            let step = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                step = self.steps.recv() => step,
            };
            let Some(step) = step else { return };
            if let Err(error) = self.perform(step).await {
                tracing::warn!(error = %chain(&error), "a dispatch step could not be stored");
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }

    /// Performs a step. Marks, notes, shards and limits are stored only under the lease under which the step was decided. The runs may belong to a
    /// later lease by now, perhaps of this server itself, and the holder of that lease may know more about them.
    async fn perform(&self, DecidedStep { token, step }: DecidedStep) -> Result<(), StoreError> {
        let store = &self.shared.store;
        match step {
            Step::Expand(root, shards) => {
                let lease = LeaseToken { node: root.node, epoch: root.node_epoch };
                let (open_shards, result) = match self.expand(lease, &root, &shards).await {
                    Ok(open_shards) => (Some(open_shards), Ok(())),
                    Err(error) => (None, Err(error)),
                };
                self.notify(Event::Expanded(root, Shards { requested_shards: shards, open_shards })).await;
                result
            }
            Step::Mark(runs) => {
                let asked_runs = runs.iter().map(|run| (run.run, run.attempt)).collect();
                let result = store.mark(token, &runs).await;
                self.notify(Event::Marked(asked_runs, result.as_ref().cloned().unwrap_or_default())).await;
                result.map(drop)
            }
            Step::NoteLeft(executor) => store.leave_sessions(executor).await,
            Step::Unmark(marks) => {
                let result = store.unmark(token, &marks).await;
                self.notify(Event::Unmarked).await;
                result
            }
            Step::NoteRunning(runs) => {
                let result = store.note_running(token, &runs).await;
                if result.is_err() {
                    // The next round repeats this step: the groups of a pump get no items until it is stored.
                    self.notify(Event::StepRefused(Step::NoteRunning(runs))).await;
                }
                result
            }
            Step::NoteWaits(waits) => {
                let result = store.note_waits(token, &waits).await;
                if result.is_err() {
                    self.notify(Event::StepRefused(Step::NoteWaits(waits))).await;
                }
                result
            }
            Step::LimitHomes(limits) => {
                let homes = store.limit_homes(token, &limits).await?;
                self.notify(Event::LimitHomes(token, limits.into_iter().zip(homes).collect())).await;
                Ok(())
            }
            Step::GiveLimits(limits, to) => self.give_limits(token, &limits, to).await,
            Step::LastHeard(executors) => self.find_last_heard(executors, token).await,
            Step::CheckRows(runs) => {
                let checks = store.check_runs(&runs).await?;
                self.notify(Event::RowsChecked(runs, checks)).await;
                Ok(())
            }
            Step::Seek(stranded) => self.seek(stranded).await,
            Step::HandOver(jobs, to) => self.hand_over(jobs, to).await,
            Step::Cover(runs) => self.cover(runs).await,
            Step::Stop(runs, request) => {
                store.ask_cancels(&runs, request, self.shared.clock.now()).await?;
                self.notify(Event::Cancels(runs.into_iter().map(|run| (run, request.by.to_owned())).collect())).await;
                Ok(())
            }
            Step::AskFences(requests) => store.ask_fences(&requests, self.shared.clock.now() - FENCES_KEPT_FOR).await,
            Step::AnswerFences(answers) => store.answer_fences(&answers, self.shared.clock.now()).await,
            Step::CancelStray(runs) => self.end_cancelled(&runs).await,
            Step::DropStray(drops) => self.skip_strays(token, &drops).await,
        }
    }

    /// Gives limits away, and retries until the database answers or the lease has ended. Until then the rows of the limits may still name this
    /// node, which no longer counts runs for them.
    async fn give_limits(
        &self,
        token: LeaseToken,
        limits: &[LimitName],
        new_home: Option<NodeId>,
    ) -> Result<(), StoreError> {
        let store = &self.shared.store;
        let kept_limits = loop {
            match store.give_limits(token, limits, new_home).await {
                Ok(kept_limits) => break kept_limits,
                Err(error) if error.is_transient() && self.shared.membership.held_lease().is_some() => {
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                Err(error) => return Err(error),
            }
        };
        if !kept_limits.is_empty() {
            let homes = store.limit_homes(token, &kept_limits).await?;
            self.notify(Event::LimitHomes(token, kept_limits.into_iter().zip(homes).collect())).await;
        }
        Ok(())
    }

    pub(crate) async fn notify(&self, event: Event) {
        drop(self.events.send(event).await);
    }

    /// Stores the shards of a broadcast. Returns the broadcast's open shards, created now or by an earlier try whose answer was lost. Empty if the
    /// broadcast belongs to another node, or has ended.
    async fn expand(&self, token: LeaseToken, root: &Run, shards: &[Run]) -> Result<Vec<Run>, StoreError> {
        if self.shared.store.expand(token, root.id, shards).await? {
            return Ok(shards.to_vec());
        }
        let current_rows = self.shared.store.runs(&[root.id]).await?;
        let mut open_shards = Vec::new();
        for root in &current_rows {
            open_shards.extend(self.shared.open_shards(root).await?);
        }
        open_shards.retain(|shard| (shard.node, shard.node_epoch) == (token.node, token.epoch));
        Ok(open_shards)
    }

    /// Finds out when other nodes last heard these executors. If the database does not answer, the dispatcher asks again.
    async fn find_last_heard(&self, executors: Vec<ExecutorId>, token: LeaseToken) -> Result<(), StoreError> {
        let heard_since = self.shared.clock.now() - self.shared.config.lost_after;
        let sessions = match self.shared.store.sessions(heard_since).await {
            Ok(sessions) => sessions,
            Err(error) => {
                self.notify(Event::Heard(Vec::new(), BTreeMap::new())).await;
                return Err(error);
            }
        };
        let mut heard_at_by_executor = BTreeMap::new();
        for session in sessions.iter().filter(|session| session.token.node != token.node) {
            let heard_at = heard_at_by_executor.entry(session.executor).or_insert(session.last_seen_at);
            *heard_at = session.last_seen_at.max(*heard_at);
        }
        self.notify(Event::Heard(executors, heard_at_by_executor)).await;
        Ok(())
    }

    /// Stores the requests to cancel runs that a later run replaces, before the requests are sent. Even after a crash, these runs then end,
    /// and the later run waits for them.
    async fn cover(&self, runs: Vec<RunId>) -> Result<(), StoreError> {
        let now = self.shared.clock.now();
        self.shared.store.ask_cancels(&runs, CancelRequest::LATER_RUN, now).await?;
        let cancels = runs.iter().map(|run| (*run, CancelRequest::LATER_RUN.by.to_owned())).collect();
        self.notify(Event::Covered(runs, cancels)).await;
        Ok(())
    }

    /// Cancels a broadcast by cancelling its open shards, including those that were created after the request.
    async fn cancel_shards(&self, root: &Run) -> Result<(), StoreError> {
        let actor = root.cancel_by.as_deref().unwrap_or_default();
        let open_shards = self.shared.open_shards(root).await?;
        let uncancelled_shards: Vec<RunId> =
            open_shards.iter().filter(|shard| shard.cancel_by.is_none()).map(|shard| shard.id).collect();
        if uncancelled_shards.is_empty() {
            return Ok(());
        }
        let reason = root.cancel_request_reason().unwrap_or(Reason::Requested);
        self.shared
            .store
            .ask_cancels(&uncancelled_shards, CancelRequest { by: actor, reason }, self.shared.clock.now())
            .await?;
        self.notify(Event::Cancels(uncancelled_shards.into_iter().map(|shard| (shard, actor.to_owned())).collect()))
            .await;
        Ok(())
    }

    /// Skips runs that are only in the store, neither in memory nor at an executor: runs that wait for their instant, and runs without room in
    /// memory. A run whose instant lies ahead is left to edits, unless the instant lies ahead only because the clock has stepped back.
    async fn skip_strays(&self, token: LeaseToken, drops: &[(RunId, Reason)]) -> Result<(), StoreError> {
        let reasons: BTreeMap<RunId, Reason> = drops.iter().copied().collect();
        let mut runs = self.shared.store.runs(&reasons.keys().copied().collect::<Vec<_>>()).await?;
        runs.retain(|run| (run.node, run.node_epoch) == (token.node, token.epoch));
        let keys = runs.iter().map(|run| (run.job, run.job_version));
        let definitions = self.shared.definitions.load(self.shared.store.as_ref(), keys).await?;
        runs.retain(|run| definitions.contains_key(&(run.job, run.job_version)));
        let now = self.shared.clock.now();
        let ahead_after = self.shared.fires_ahead_after();
        runs.retain(|run| {
            matches!(run.status, RunStatus::Waiting | RunStatus::Pending) && !is_fire_ahead(run, ahead_after)
        });
        let ending_runs = self.shared.in_memory.admit_to_end(runs);
        for run in &ending_runs {
            let (Some(definition), Some(reason)) = (definitions.get(&(run.job, run.job_version)), reasons.get(&run.id))
            else {
                continue;
            };
            let attempt_end = end_of_unsent(run, definition, Outcome::Skipped(*reason), now, None);
            self.shared.results.submit(attempt_end, CountedRun::of(run, definition), None).await;
        }
        Ok(())
    }

    /// Ends cancelled runs that are neither in the dispatcher nor at an executor. For a broadcast, requests that its shards be cancelled.
    async fn end_cancelled(&self, ids: &[RunId]) -> Result<(), StoreError> {
        let runs = self.shared.store.runs(ids).await?;
        for root in runs.iter().filter(|run| run.is_root() && run.status == RunStatus::Running) {
            self.cancel_shards(root).await?;
        }
        let keys = runs.iter().map(|run| (run.job, run.job_version));
        let definitions = self.shared.definitions.load(self.shared.store.as_ref(), keys).await?;
        let now = self.shared.clock.now();
        let is_only_in_store = |run: &&Run| run.status == RunStatus::Waiting || run.awaits_children();
        for run in runs.iter().filter(is_only_in_store) {
            if let Some(definition) = definitions.get(&(run.job, run.job_version)) {
                let message = run.cancel_by.as_deref().map(cancelled_by);
                let attempt_end = end_of_unsent(run, definition, Outcome::Cancelled, now, message);
                self.shared.results.submit(attempt_end, CountedRun::of(run, definition), None).await;
            }
        }
        let token = self.shared.membership.token();
        let is_own = |run: &Run| (run.node, run.node_epoch) == (token.node, token.epoch);
        let is_unsent = |run: &Run| run.status == RunStatus::Pending && is_own(run);
        self.shared.put_to_end(runs.into_iter().filter(is_unsent).collect()).await;
        Ok(())
    }
}
