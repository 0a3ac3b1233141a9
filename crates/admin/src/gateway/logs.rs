//! Writes the logs of runs to the store: in batches, acknowledged when they are durable.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rondel_core::{AppId, RunId, Timestamp};
use rondel_proto::v1;
use rondel_proto::v1::server_message;
use rondel_store::StoreError;
use rondel_store::logs::{LogChunk, LogLine};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::log_rights::{ChunkDecision, HeldAttempt, LogRights, RUN_BYTES_MAX, RunFacts};
use crate::dispatch::SessionHandle;
use crate::metrics::{add, size};
use crate::node::Shared;
use crate::turn_queue::{Bounds, Source, TurnQueue};
use rondel_core::error_chain::chain;

/// Capacity of the queue in KiB; each chunk counts as one more.
const BOUNDS: Bounds = Bounds { session: 4 * 1024, app: 8 * 1024, all: 32 * 1024 };
/// Size of one batch, in the same unit.
const BATCH: usize = 4 * 1024;
/// Overhead of a line in addition to its text, in bytes.
const LINE_OVERHEAD: usize = 64;
/// Overhead of a chunk in addition to its lines, in bytes.
const CHUNK_OVERHEAD: usize = 256;
/// For how many runs of one batch the earlier attempts are read.
const EARLIER_COUNT_MAX: usize = 500;

/// The content of one message.
#[derive(Debug)]
pub(crate) struct LogItem {
    pub(crate) chunks: Vec<LogChunk>,
    /// Memory taken by the message.
    pub(crate) kib: u32,
    pub(crate) app: AppId,
    pub(crate) session: SessionHandle,
    pub(crate) pending: PendingGuard,
}

/// Counts the log messages of one stream that are not durable yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingLogs(Arc<(AtomicUsize, Notify)>);

/// A counted log message; it counts until this guard is dropped.
#[derive(Debug)]
pub(crate) struct PendingGuard(PendingLogs);

impl PendingLogs {
    pub(super) fn begin(&self) -> PendingGuard {
        self.0.0.fetch_add(1, Ordering::AcqRel);
        PendingGuard(self.clone())
    }

    /// Waits until every message counted so far is durable, up to a limit.
    pub(super) async fn wait(&self, limit: Duration) {
        let all_durable = async {
            loop {
                let notified = self.0.1.notified();
                if self.0.0.load(Ordering::Acquire) == 0 {
                    return;
                }
                notified.await;
            }
        };
        // After the limit the result is sent on: a late log is better than a late verdict.
        tokio::time::timeout(limit, all_durable).await.ok();
    }
}

impl Drop for PendingGuard {
    fn drop(&mut self) {
        self.0.0.0.fetch_sub(1, Ordering::AcqRel);
        self.0.0.1.notify_waiters();
    }
}

/// The logs that wait for the store, in turns of apps and sessions, so that one executor cannot delay another app's logs.
pub(crate) type LogQueue = Arc<TurnQueue<LogItem>>;

pub(crate) fn log_queue() -> LogQueue {
    Arc::new(TurnQueue::new(BOUNDS))
}

impl LogItem {
    fn source(&self) -> Source {
        Source { app: self.app, session: self.session.number }
    }

    /// In KiB, and one more for each chunk, since its run may have to be read.
    fn weight(&self) -> usize {
        usize::try_from(self.kib).unwrap_or(usize::MAX).saturating_add(self.chunks.len())
    }

    /// Queues the message if there is room by the deadline; otherwise it is dropped and acknowledged.
    pub(super) async fn enqueue(self, queue: &LogQueue, patience: Duration, shared: &Shared) -> bool {
        let (source, weight) = (self.source(), self.weight());
        let Err(dropped) = queue.offer_within(patience, source, weight, self).await else { return true };
        let lines: usize = dropped.chunks.iter().map(|chunk| chunk.lines.len()).sum();
        add(&shared.metrics.log_lines_dropped, size(lines));
        let executor = dropped.session.executor;
        if let Some(count) = shared.log_limit.count("logs", executor.get()) {
            tracing::warn!(executor_id = %executor, lines, count, "an executor logs more than its share while the store is behind; lines are dropped");
        }
        let acks = dropped.chunks.iter().map(log_ack).collect();
        dropped.session.send(server_message::Body::LogAcks(v1::LogAcks { acks }));
        false
    }
}

pub(crate) struct LogLoop {
    shared: Arc<Shared>,
    queue: LogQueue,
    rights: LogRights,
}

impl LogLoop {
    pub(crate) fn new(shared: Arc<Shared>, queue: LogQueue) -> Self {
        Self { shared, queue, rights: LogRights::default() }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        while let Some(batch) = stop.run_until_cancelled(self.queue.take(BATCH)).await {
            if let Err(error) = self.write(batch).await {
                // Not acknowledged: the executors keep these chunks and send them again.
                tracing::warn!(error = %chain(&error), "logs were not stored");
            }
        }
    }

    async fn write(&mut self, batch: Vec<LogItem>) -> Result<(), StoreError> {
        self.learn_rights(&batch).await?;
        let mut chunks = Vec::new();
        let mut acks = Vec::new();
        let mut guards = Vec::new();
        for item in batch {
            for chunk in item.chunks {
                // Rejected chunks are acknowledged as well, so that the executor stops sending them.
                acks.push((item.session.clone(), log_ack(&chunk)));
                let lines: usize = chunk.lines.iter().map(|line| line.text.len() + LINE_OVERHEAD).sum();
                match self.rights.decide(&held_attempt(&item.session, &chunk), lines + CHUNK_OVERHEAD) {
                    ChunkDecision::Whole => chunks.push(chunk),
                    ChunkDecision::LastWord => chunks.push(full(&chunk)),
                    ChunkDecision::Nothing => {
                        let count = u64::try_from(chunk.lines.len()).unwrap_or(u64::MAX);
                        add(&self.shared.metrics.log_lines_dropped, count);
                    }
                }
            }
            guards.push(item.pending);
        }
        for part in chunks.chunks(500) {
            self.shared.store.append_logs(part).await?;
        }
        let lines = chunks.iter().flat_map(|chunk| &chunk.lines);
        add(&self.shared.metrics.log_bytes, lines.map(|line| size(line.text.len())).sum());
        self.shared.log_readers.poke(chunks.iter().map(|chunk| chunk.run));
        drop(guards);
        for (session, ack) in acks {
            session.send(server_message::Body::LogAcks(v1::LogAcks { acks: vec![ack] }));
        }
        Ok(())
    }

    /// Reads from the rows which executors hold the runs of these lines.
    async fn learn_rights(&mut self, batch: &[LogItem]) -> Result<(), StoreError> {
        let now = self.shared.clock.now();
        let items = batch
            .iter()
            .flat_map(|item| item.chunks.iter().map(|chunk| (held_attempt(&item.session, chunk), item.app)));
        let apps: HashMap<HeldAttempt, AppId> = items.collect();
        let unknown = self.rights.unknown(apps.keys(), now);
        let mut ids: Vec<RunId> = unknown.iter().map(|(run, ..)| *run).collect();
        ids.dedup();
        let mut runs = HashMap::new();
        for part in ids.chunks(500) {
            runs.extend(self.shared.store.runs(part).await?.into_iter().map(|run| (run.id, run)));
        }
        let mut left = EARLIER_COUNT_MAX;
        for hand in unknown {
            let Some(app) = apps.get(&hand) else { continue };
            let run = runs.get(&hand.0);
            let attempts = match run.filter(|run| run.app == *app && hand.1 < run.attempt && left > 0) {
                Some(run) => {
                    left -= 1;
                    self.shared.store.attempts(run.id).await?
                }
                None => Vec::new(),
            };
            let sent = self.shared.sent_runs.get(hand.0);
            let facts = run.map(|run| RunFacts { run, attempts: &attempts, sent });
            if !self.rights.learn(*app, hand, facts.as_ref(), now)
                && let Some(count) = self.shared.log_limit.count("foreign logs", hand.2.get())
            {
                let (run, attempt, executor) = hand;
                tracing::warn!(run_id = %run, attempt, executor_id = %executor, count, "an executor logs into a run that it does not have; the lines are dropped; further cases are logged once a minute");
            }
        }
        Ok(())
    }
}

fn held_attempt(session: &SessionHandle, chunk: &LogChunk) -> HeldAttempt {
    (chunk.run, chunk.attempt, session.executor)
}

/// The line that replaces the first lines over the limit.
fn full(chunk: &LogChunk) -> LogChunk {
    let at = chunk.lines.first().map_or(Timestamp::EPOCH, |line| line.at);
    let text = format!("… this log is full ({} MiB): what follows is dropped", RUN_BYTES_MAX / (1024 * 1024));
    LogChunk { lines: vec![LogLine { at, level: "warn".to_owned(), text }], ..*chunk }
}

pub(super) fn log_ack(chunk: &LogChunk) -> v1::LogAck {
    v1::LogAck { run_id: chunk.run.get(), attempt: chunk.attempt, sequence: chunk.sequence }
}
