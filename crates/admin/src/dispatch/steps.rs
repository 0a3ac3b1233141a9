//! What must be durable before the dispatcher goes on: broadcasts fixed, at-most-once runs marked, long runs noted.
//! One loop, in order, in batches; it answers with events.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rondel_core::outcome::{LATER_RUN, Outcome, cancelled_by};
use rondel_core::{AppId, NodeId, Run, RunId};
use rondel_store::StoreError;
use rondel_store::ledger::{InHand, LimitName};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Event, IncomingResult, Ready, SessionHandle, finish_unsent};
use crate::engine::{Shared, chain};

/// Steps that may wait; a step that finds no room is tried again by the dispatcher.
pub(crate) const STEP_CAPACITY: usize = 1_024;
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// Something to make durable.
#[derive(Debug)]
pub(crate) enum Step {
    /// Fix the total of a broadcast and insert its shards.
    Expand(Box<Ready>, Vec<Run>),
    /// Mark at-most-once runs before they are sent.
    Mark(Vec<InHand>),
    /// Take the mark off runs that were not received.
    Unmark(Vec<(RunId, i32)>),
    /// Note runs that live longer than about a second.
    NoteRunning(Vec<InHand>),
    /// Results of runs that this node does not have in memory.
    Foreign(SessionHandle, AppId, Vec<IncomingResult>),
    /// Ask runs to make room for a later one of their job.
    Cover(Vec<RunId>),
    /// Find out who counts for limits.
    LimitHomes(Vec<LimitName>),
    /// Give runs that were never sent to another node.
    HandOver(Vec<RunId>, NodeId),
    /// Cancel runs that this node does not have in memory.
    CancelStray(Vec<RunId>),
}

/// Whether a broadcast was expanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// Now.
    Now,
    /// Before, by somebody else.
    Before,
    /// Not: the database did not answer.
    Not,
}

pub(crate) struct StepLoop {
    shared: Arc<Shared>,
    steps: mpsc::Receiver<Step>,
    events: mpsc::Sender<Event>,
}

impl StepLoop {
    pub(crate) const fn new(shared: Arc<Shared>, steps: mpsc::Receiver<Step>, events: mpsc::Sender<Event>) -> Self {
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
            if let Err(error) = self.take(step).await {
                tracing::warn!(error = %chain(&error), "a step of the dispatch was not made durable");
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }

    async fn take(&self, step: Step) -> Result<(), StoreError> {
        let token = self.shared.membership.token();
        let store = &self.shared.store;
        match step {
            Step::Expand(root, shards) => {
                let expanded = store.expand(token, root.run.id, &shards).await;
                let done = match expanded {
                    Ok(true) => Done::Now,
                    Ok(false) => Done::Before,
                    Err(_) => Done::Not,
                };
                self.tell(Event::Expanded(*root, shards, done)).await;
                expanded.map(drop)
            }
            Step::Mark(runs) => {
                let asked = runs.iter().map(|run| run.run).collect();
                let won = store.mark(token, &runs).await;
                self.tell(Event::Marked(asked, won.as_ref().cloned().unwrap_or_default())).await;
                won.map(drop)
            }
            Step::Unmark(runs) => store.unmark(token, &runs).await,
            Step::NoteRunning(runs) => store.note_running(token, &runs).await,
            Step::Foreign(session, app, results) => self.foreign(session, app, results).await,
            Step::LimitHomes(limits) => {
                let homes = store.limit_homes(token, &limits).await?;
                self.tell(Event::LimitHomes(limits.into_iter().zip(homes).collect())).await;
                Ok(())
            }
            Step::HandOver(runs, to) => {
                let given = store.hand_over(token, &runs, to).await?;
                self.tell(Event::HandedOver(given)).await;
                Ok(())
            }
            Step::Cover(runs) => self.cover(runs).await,
            Step::CancelStray(runs) => self.cancel(&runs).await,
        }
    }

    async fn tell(&self, event: Event) {
        drop(self.events.send(event).await);
    }

    /// Results of runs of another node, or of an epoch before: any node with a living lease may store them. Only runs
    /// of the executor's own app are taken from it.
    async fn foreign(
        &self,
        session: SessionHandle,
        app: AppId,
        results: Vec<IncomingResult>,
    ) -> Result<(), StoreError> {
        let ids: Vec<RunId> = results.iter().map(|result| result.run).collect();
        let runs: HashMap<RunId, Run> =
            self.shared.store.runs(&ids).await?.into_iter().map(|run| (run.id, run)).collect();
        let keys = runs.values().map(|run| (run.job, run.job_version));
        let definitions = self.shared.definitions.load(self.shared.store.as_ref(), keys).await?;
        let name = self.shared.registry.get(session.executor).map(|online| online.name).unwrap_or_default();
        for result in results {
            let run = runs.get(&result.run).filter(|run| run.app == app);
            let definition = run.and_then(|run| definitions.get(&(run.job, run.job_version)));
            match (run, definition) {
                (Some(run), Some(definition)) => {
                    let finish = result.into_finish(run.job, definition.job.after, (session.executor, name.clone()));
                    self.shared.results.submit(finish, Some(session.clone())).await;
                }
                _ => self.shared.results.refuse(&session, result.run, result.attempt),
            }
        }
        Ok(())
    }

    /// Notes the request before anybody hears of it: whatever crashes then, the run ends and its successor waits for it.
    async fn cover(&self, runs: Vec<RunId>) -> Result<(), StoreError> {
        let now = self.shared.clock.now();
        self.shared.store.ask_cancels(&runs, LATER_RUN, now).await?;
        let cancels = runs.iter().map(|run| (*run, LATER_RUN.to_owned())).collect();
        self.tell(Event::Covered(runs, cancels)).await;
        Ok(())
    }

    /// A broadcast is cancelled by cancelling its shards, those among them that came into being after the request.
    async fn cancel_shards(&self, root: &Run) -> Result<(), StoreError> {
        let by = root.cancel_by.as_deref().unwrap_or_default();
        let open = self.shared.open_shards(root).await?;
        let new: Vec<RunId> = open.iter().filter(|shard| shard.cancel_by.is_none()).map(|shard| shard.id).collect();
        if new.is_empty() {
            return Ok(());
        }
        self.shared.store.ask_cancels(&new, by, self.shared.clock.now()).await?;
        self.tell(Event::Cancels(new.into_iter().map(|shard| (shard, by.to_owned())).collect())).await;
        Ok(())
    }

    async fn cancel(&self, ids: &[RunId]) -> Result<(), StoreError> {
        let runs = self.shared.store.runs(ids).await?;
        for root in runs.iter().filter(|run| run.is_root() && run.status == rondel_core::RunStatus::Running) {
            self.cancel_shards(root).await?;
        }
        let keys = runs.iter().map(|run| (run.job, run.job_version));
        let definitions = self.shared.definitions.load(self.shared.store.as_ref(), keys).await?;
        let now = self.shared.clock.now();
        let is_nowhere = |run: &&Run| run.status == rondel_core::RunStatus::Waiting || run.awaits_children();
        for run in runs.iter().filter(is_nowhere) {
            if let Some(definition) = definitions.get(&(run.job, run.job_version)) {
                let message = run.cancel_by.as_deref().map(cancelled_by);
                let finish = finish_unsent(run, definition, Outcome::Cancelled, now, message);
                self.shared.results.submit(finish, None).await;
            }
        }
        Ok(())
    }
}
