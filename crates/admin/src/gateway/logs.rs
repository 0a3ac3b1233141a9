//! Writes the logs of runs to the store: in batches, acknowledged when they are durable.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use rondel_core::backoff::backoff;
use rondel_core::run::Attempt;
use rondel_core::{AppId, RunId, Timestamp};
use rondel_proto::v1;
use rondel_proto::v1::server_message;
use rondel_store::StoreError;
use rondel_store::logs::{LogChunk, LogLine};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::log_rights::{ChunkDecision, HeldAttempt, LogRights, RUN_BYTES_MAX, RunFacts};
use crate::dispatch::SessionHandle;
use crate::metrics::{add, to_u64};
use crate::node::Shared;
use crate::turn_queue::{Bounds, Source, TurnQueue};
use rondel_core::error_chain::chain;

/// Capacity of the queue, in KiB. Each chunk counts one KiB in addition to its size.
const BOUNDS: Bounds = Bounds { session: 4 * 1024, app: 8 * 1024, all: 32 * 1024 };
/// Size of one batch, in the same unit.
const BATCH: usize = 4 * 1024;
/// Overhead of a line in addition to its text, in bytes.
const LINE_OVERHEAD: usize = 64;
/// Overhead of a chunk in addition to its lines, in bytes.
const CHUNK_OVERHEAD: usize = 256;
/// How many runs' earlier attempts are read at the same time, so that a batch with many of them delays the next one little.
const CONCURRENT_READ_COUNT: usize = 4;
/// Maximum number of chunks that one call of the store writes, and of runs that one call reads.
const PART_CHUNKS_MAX: usize = 500;
const RETRY_DELAY_MIN: Duration = Duration::from_millis(50);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(2);

/// The log chunks of one message.
#[derive(Debug)]
pub(crate) struct LogItem {
    pub(crate) chunks: Vec<LogChunk>,
    /// Memory that the message takes, in KiB.
    pub(crate) kib: u32,
    pub(crate) app: AppId,
    pub(crate) session: SessionHandle,
    pub(crate) pending_guard: PendingGuard,
}

/// Counts the log messages of one stream that are not durable yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingLogs(Arc<PendingState>);

#[derive(Debug, Default)]
struct PendingState {
    count: AtomicUsize,
    /// Notified when the count falls.
    count_decreased: Notify,
    /// Set when a wait has reached its limit, and cleared once all messages are durable.
    is_behind: AtomicBool,
}

/// A counted log message; it counts until this guard is dropped.
#[derive(Debug)]
pub(crate) struct PendingGuard(PendingLogs);

impl PendingLogs {
    pub(super) fn begin(&self) -> PendingGuard {
        self.0.count.fetch_add(1, Ordering::AcqRel);
        PendingGuard(self.clone())
    }

    /// Waits until every message counted so far is durable, up to a limit. Once a wait has reached the limit, further calls return immediately
    /// until all messages are durable, so that the heartbeats behind many results are answered in time.
    pub(super) async fn wait(&self, limit: Duration) {
        let PendingState { count, count_decreased, is_behind } = &*self.0;
        let all_durable = async {
            loop {
                let notified = count_decreased.notified();
                if count.load(Ordering::Acquire) == 0 {
                    return;
                }
                notified.await;
            }
        };
        let limit = if is_behind.load(Ordering::Relaxed) { Duration::ZERO } else { limit };
        // After the limit, the result continues: a late log is better than a late verdict.
        let is_late = tokio::time::timeout(limit, all_durable).await.is_err();
        is_behind.store(is_late, Ordering::Relaxed);
    }
}

impl Drop for PendingGuard {
    fn drop(&mut self) {
        let PendingState { count, count_decreased, is_behind } = &*self.0.0;
        if count.fetch_sub(1, Ordering::AcqRel) == 1 {
            is_behind.store(false, Ordering::Relaxed);
        }
        count_decreased.notify_waiters();
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

    /// The message's share of the queue's capacity, in KiB: its size, and one more for each chunk, since the chunk's run may have to be read.
    fn weight(&self) -> usize {
        usize::try_from(self.kib).unwrap_or(usize::MAX).saturating_add(self.chunks.len())
    }

    /// Queues the message if there is room within `wait_max`; otherwise returns its chunks.
    pub(super) async fn enqueue(self, queue: &LogQueue, wait_max: Duration) -> Result<(), Vec<LogChunk>> {
        let (source, weight) = (self.source(), self.weight());
        queue.offer_within(wait_max, source, weight, self).await.map_err(|item| item.chunks)
    }
}

/// A batch on its way into the store. A further try continues where the last try failed.
#[derive(Default)]
struct Batch {
    /// The messages whose chunks are not judged yet.
    items: Vec<LogItem>,
    /// The accepted chunks that are not stored yet.
    chunks: Vec<LogChunk>,
    /// The messages count as pending until these are dropped.
    pending_guards: Vec<PendingGuard>,
    /// The acknowledgements for each session, sent when everything is stored.
    acks: BTreeMap<u64, (SessionHandle, Vec<v1::LogAck>)>,
}

impl Batch {
    /// Lets the results behind these logs continue, and acknowledges the chunks: one message for each session.
    fn acknowledge(self) {
        drop(self.pending_guards);
        for (session, acks) in self.acks.into_values() {
            session.send(server_message::Body::LogAcks(v1::LogAcks { acks }));
        }
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
        while let Some(items) = stop.run_until_cancelled(self.queue.take(BATCH)).await {
            let mut batch = Batch { items, ..Batch::default() };
            let mut failed_count = 0_u32;
            // An acknowledgement covers all earlier chunks of its attempt, so the next batch waits until this batch is stored.
            while let Err(error) = self.write(&mut batch).await {
                failed_count = failed_count.saturating_add(1);
                if failed_count == 1 {
                    tracing::warn!(error = %chain(&error), "logs wait for the database");
                }
                let delay = backoff(RETRY_DELAY_MIN, RETRY_DELAY_MAX, failed_count);
                if stop.run_until_cancelled(tokio::time::sleep(delay)).await.is_none() {
                    return;
                }
            }
            batch.acknowledge();
        }
    }

    /// Stores the rest of the batch.
    async fn write(&mut self, batch: &mut Batch) -> Result<(), StoreError> {
        self.learn_rights(&batch.items).await?;
        for item in std::mem::take(&mut batch.items) {
            self.judge(item, batch);
        }
        while let Some(part) = batch.chunks.chunks(PART_CHUNKS_MAX).next() {
            self.append(part).await?;
            let count = part.len();
            batch.chunks.drain(..count);
        }
        Ok(())
    }

    /// Decides which chunks of a message are stored. Rejected chunks are acknowledged as well, so that the executor stops sending them.
    fn judge(&mut self, item: LogItem, batch: &mut Batch) {
        let LogItem { chunks, session, pending_guard: pending, .. } = item;
        let (_, acks) = batch.acks.entry(session.number).or_insert_with(|| (session.clone(), Vec::new()));
        for chunk in chunks {
            acks.push(log_ack(&chunk));
            let line_bytes: usize = chunk.lines.iter().map(|line| line.text.len() + LINE_OVERHEAD).sum();
            match self.rights.decide(&held_attempt(&session, &chunk), line_bytes + CHUNK_OVERHEAD) {
                ChunkDecision::Accepted => batch.chunks.push(chunk),
                ChunkDecision::FullNotice => batch.chunks.push(full_notice(&chunk)),
                ChunkDecision::Dropped => add(&self.shared.metrics.log_lines_dropped, to_u64(chunk.lines.len())),
            }
        }
        batch.pending_guards.push(pending);
    }

    /// Stores chunks. If the database refuses them because of the content of one chunk, each chunk is stored separately.
    async fn append(&self, chunks: &[LogChunk]) -> Result<(), StoreError> {
        match self.shared.store.append_logs(chunks).await {
            Ok(()) => self.note_stored(chunks),
            Err(error) if error.is_transient() => return Err(error),
            Err(_) => {
                for chunk in chunks {
                    self.append_one(chunk).await?;
                }
            }
        }
        Ok(())
    }

    /// Stores a chunk, or drops it if the database refuses it. A retry would be refused again, and no other log could be stored meanwhile.
    async fn append_one(&self, chunk: &LogChunk) -> Result<(), StoreError> {
        match self.shared.store.append_logs(std::slice::from_ref(chunk)).await {
            Ok(()) => self.note_stored(std::slice::from_ref(chunk)),
            Err(error) if error.is_transient() => return Err(error),
            Err(error) => {
                let (run, attempt, lines) = (chunk.run, chunk.attempt, chunk.lines.len());
                add(&self.shared.metrics.log_lines_dropped, to_u64(lines));
                if let Some(count) = self.shared.log_limit.count("refused logs", 0) {
                    tracing::error!(run_id = %run, attempt, lines, count, error = %chain(&error), "the database refuses a part of a log; its lines are dropped");
                }
            }
        }
        Ok(())
    }

    fn note_stored(&self, chunks: &[LogChunk]) {
        let lines = chunks.iter().flat_map(|chunk| &chunk.lines);
        add(&self.shared.metrics.log_bytes, lines.map(|line| to_u64(line.text.len())).sum());
        self.shared.log_readers.poke(chunks.iter().map(|chunk| chunk.run));
    }

    /// Reads from the rows which executors hold the runs of these lines, and caches which attempts may log.
    async fn learn_rights(&mut self, batch: &[LogItem]) -> Result<(), StoreError> {
        let now = self.shared.clock.now();
        let attempts_and_apps = batch
            .iter()
            .flat_map(|item| item.chunks.iter().map(|chunk| (held_attempt(&item.session, chunk), item.app)));
        let apps: HashMap<HeldAttempt, AppId> = attempts_and_apps.collect();
        let unchecked_attempts = self.rights.attempts_to_check(apps.keys(), now);
        let mut ids: Vec<RunId> = unchecked_attempts.iter().map(|(run, ..)| *run).collect();
        ids.dedup();
        let mut runs = HashMap::new();
        for part in ids.chunks(PART_CHUNKS_MAX) {
            let rows = empty_if_refused(self.shared.store.runs(part).await)?;
            runs.extend(rows.into_iter().map(|run| (run.id, run)));
        }
        let is_earlier = |held_attempt: &&HeldAttempt| {
            let run = runs.get(&held_attempt.0).filter(|run| apps.get(*held_attempt) == Some(&run.app));
            run.is_some_and(|run| held_attempt.1 < run.attempt)
        };
        let wanted_attempts: BTreeSet<(RunId, i32)> =
            unchecked_attempts.iter().filter(is_earlier).map(|(run, attempt, _)| (*run, *attempt)).collect();
        let earlier_attempts = self.read_earlier_attempts(&wanted_attempts).await?;
        for held_attempt in unchecked_attempts {
            let Some(app) = apps.get(&held_attempt) else { continue };
            let run = runs.get(&held_attempt.0);
            let attempts = earlier_attempts.get(&held_attempt.0).map(Vec::as_slice).unwrap_or_default();
            let own_node = self.shared.membership.token().node;
            let sent_attempt = |run| self.shared.sent_runs.sent_attempt_for(run, held_attempt.2, own_node);
            let facts = run.map(|run| RunFacts { run, attempts, sent_attempt: sent_attempt(run) });
            if !self.rights.check_and_cache(*app, held_attempt, facts.as_ref(), now)
                && let Some(count) = self.shared.log_limit.count("foreign logs", held_attempt.2.get())
            {
                let (run, attempt, executor) = held_attempt;
                tracing::warn!(run_id = %run, attempt, executor_id = %executor, count, "an executor logs into a run that it does not have; the lines are dropped; further cases are logged once a minute");
            }
        }
        Ok(())
    }

    /// Those of these attempts that have ended and were followed by another one, by run.
    async fn read_earlier_attempts(
        &self,
        wanted_attempts: &BTreeSet<(RunId, i32)>,
    ) -> Result<HashMap<RunId, Vec<Attempt>>, StoreError> {
        let store = &self.shared.store;
        let read =
            |run: RunId| async move { empty_if_refused(store.attempts(run).await).map(|attempts| (run, attempts)) };
        let ids: BTreeSet<RunId> = wanted_attempts.iter().map(|(run, _)| *run).collect();
        let reads: Vec<_> = ids.into_iter().map(read).collect();
        let mut results = stream::iter(reads).buffered(CONCURRENT_READ_COUNT);
        let mut earlier_attempts = HashMap::new();
        while let Some(result) = results.next().await {
            let (run, mut attempts) = result?;
            // A run can have many other attempts, each with a long message.
            attempts.retain(|attempt| wanted_attempts.contains(&(run, attempt.attempt)));
            earlier_attempts.insert(run, attempts);
        }
        Ok(earlier_attempts)
    }
}

/// The rows that were read; an empty list if the database refuses the read, because a retry would be refused again.
fn empty_if_refused<T>(result: Result<Vec<T>, StoreError>) -> Result<Vec<T>, StoreError> {
    match result {
        Err(error) if !error.is_transient() => {
            tracing::error!(error = %chain(&error), "cannot read the runs of logs; their lines are dropped");
            Ok(Vec::new())
        }
        result => result,
    }
}

fn held_attempt(session: &SessionHandle, chunk: &LogChunk) -> HeldAttempt {
    (chunk.run, chunk.attempt, session.executor)
}

/// A chunk with one line that replaces the first chunk over the limit.
fn full_notice(chunk: &LogChunk) -> LogChunk {
    let at = chunk.lines.first().map_or(Timestamp::EPOCH, |line| line.at);
    let text = format!("… this log is full ({} MiB): what follows is dropped", RUN_BYTES_MAX / (1024 * 1024));
    LogChunk { lines: vec![LogLine { at, level: "warn".to_owned(), text }], ..*chunk }
}

pub(super) fn log_ack(chunk: &LogChunk) -> v1::LogAck {
    v1::LogAck { run_id: chunk.run.get(), attempt: chunk.attempt, sequence: chunk.sequence }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn results_wait_once_for_logs_that_the_store_does_not_take() {
        let (pending, limit) = (PendingLogs::default(), Duration::from_secs(2));
        let wait = async || {
            let began = Instant::now();
            pending.wait(limit).await;
            began.elapsed()
        };
        let (first, second) = (pending.begin(), pending.begin());
        assert!(wait().await >= limit);
        assert!(wait().await < limit / 10, "it waited already");
        drop(first);
        assert!(wait().await < limit / 10, "one is not durable yet");
        drop(second);
        let _third = pending.begin();
        assert!(wait().await >= limit, "all were durable meanwhile");
    }
}
