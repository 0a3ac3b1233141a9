//! Stores results and their consequences, in batches and in lanes by job, and then acknowledges the results. While the database does not
//! answer, results wait here, in bounded memory, and on the executors.

pub(crate) mod foreign;
pub(crate) mod reporter;
pub(crate) mod verdicts;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rondel_core::backoff::backoff;
use rondel_core::outcome::NextStep;
use rondel_core::{JobId, RunId, RunStatus};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_proto::v1;
use rondel_store::ledger::{AttemptEnd, EndOutcome, Ends, Finisher};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::counters::Count;
use crate::dispatch::event::{Event, SessionHandle, SettledAttempt};
use crate::dispatch::messages::ack;
use crate::metrics::CountedRun;
use crate::node::Shared;
use rondel_core::error_chain::chain;

/// Maximum number of results that wait in one lane.
const LANE_CAPACITY: usize = 20_000;
/// Maximum size of the texts of all results in one lane, in bytes.
const LANE_BYTES_MAX: usize = 64 * 1024 * 1024;
const RETRY_DELAY_MIN: Duration = Duration::from_millis(50);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(2);
/// The delay between two checks of the lease while it does not hold.
const LEASE_DELAY: Duration = Duration::from_millis(100);

/// The end of an attempt that is being stored, and the stream that gets the answer; `None` if the server decided the end.
#[derive(Debug)]
pub(crate) struct QueuedEnd {
    attempt_end: AttemptEnd,
    counted_run: CountedRun,
    reply_to: Option<SessionHandle>,
    texts: CountedTexts,
}

/// The sending ends of the lanes.
#[derive(Debug)]
pub(crate) struct ResultLanes {
    lanes: Vec<Lane>,
}

#[derive(Debug)]
struct Lane {
    items: mpsc::Sender<QueuedEnd>,
    /// The total size of the texts of its results.
    bytes: Arc<AtomicUsize>,
}

/// The size of the texts of one result. The lane counts these bytes until this value is dropped.
#[derive(Debug)]
struct CountedTexts {
    bytes: usize,
    /// The count of the lane, [`Lane::bytes`].
    lane_bytes: Arc<AtomicUsize>,
}

impl Lane {
    fn count_texts(&self, attempt_end: &AttemptEnd) -> CountedTexts {
        let bytes = [&attempt_end.message, &attempt_end.result].into_iter().flatten().map(String::len).sum();
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
        CountedTexts { bytes, lane_bytes: Arc::clone(&self.bytes) }
    }
}

impl Drop for CountedTexts {
    fn drop(&mut self) {
        self.lane_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl ResultLanes {
    pub(crate) fn new(count: usize) -> (Self, Vec<mpsc::Receiver<QueuedEnd>>) {
        let lane = |_| {
            let (items, receiver) = mpsc::channel(LANE_CAPACITY);
            (Lane { items, bytes: Arc::default() }, receiver)
        };
        let (lanes, receivers) = (0..count.max(1)).map(lane).unzip();
        (Self { lanes }, receivers)
    }

    /// Puts the end of an attempt into its lane; false if there is no room. A result that finds no room is not answered, so the executor sends it
    /// again.
    pub(crate) fn try_submit(
        &self,
        attempt_end: AttemptEnd,
        counted_run: CountedRun,
        reply_to: Option<SessionHandle>,
    ) -> bool {
        let lane = self.lane(attempt_end.job);
        let texts = lane.count_texts(&attempt_end);
        // Verdicts of the server itself have almost no text, so the byte limit of the lane does not apply to them.
        let is_too_much = reply_to.is_some() && lane.bytes.load(Ordering::Acquire) > LANE_BYTES_MAX;
        !is_too_much && lane.items.try_send(QueuedEnd { attempt_end, counted_run, reply_to, texts }).is_ok()
    }

    /// Puts the end of an attempt into its lane, and waits for room. No lane may ever wait for this caller in turn: that would be a deadlock.
    pub(crate) async fn submit(
        &self,
        attempt_end: AttemptEnd,
        counted_run: CountedRun,
        reply_to: Option<SessionHandle>,
    ) {
        // A closed lane means that the process is ending. The run's row is still open, and the next lease holder finds it.
        let lane = self.lane(attempt_end.job);
        let texts = lane.count_texts(&attempt_end);
        drop(lane.items.send(QueuedEnd { attempt_end, counted_run, reply_to, texts }).await);
    }

    pub(crate) async fn submit_unsent(&self, ended_runs: Vec<(AttemptEnd, CountedRun)>) {
        for (attempt_end, counted) in ended_runs {
            self.submit(attempt_end, counted, None).await;
        }
    }

    /// Answers a result that is refused: `Duplicate` if the attempt has ended without it, else `NoSuchRun`.
    pub(crate) fn refuse(&self, session: &SessionHandle, (run, attempt): (RunId, i32), answer: &EndOutcome) {
        send_acks(session, vec![ack(run, attempt, answer)]);
    }

    fn lane(&self, job: JobId) -> &Lane {
        &self.lanes[job.lane(self.lanes.len())]
    }
}

/// Handles one lane: gathers results, writes them in batches, and answers the executors.
pub(crate) struct ResultLoop {
    shared: Arc<Shared>,
    items: mpsc::Receiver<QueuedEnd>,
    events: mpsc::Sender<Event>,
}

impl ResultLoop {
    pub(crate) const fn new(
        shared: Arc<Shared>,
        items: mpsc::Receiver<QueuedEnd>,
        events: mpsc::Sender<Event>,
    ) -> Self {
        Self { shared, items, events }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            let batch_max = self.shared.config.result_batch.max(1);
            let mut batch = Vec::with_capacity(batch_max);
            let count = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                count = self.items.recv_many(&mut batch, batch_max) => count,
            };
            if count == 0 {
                return;
            }
            if batch.len() < batch_max {
                tokio::time::sleep(self.shared.config.result_linger).await;
                while batch.len() < batch_max {
                    let Ok(item) = self.items.try_recv() else { break };
                    batch.push(item);
                }
            }
            self.write(batch, &stop).await;
        }
    }

    /// Stores a batch of ends, and only then acknowledges them to their executors and reports them to the dispatcher.
    async fn write(&self, batch: Vec<QueuedEnd>, stop: &CancellationToken) {
        let (mut attempt_ends, mut counted_runs, mut replies, mut texts) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for item in batch {
            texts.push(item.texts);
            attempt_ends.push(item.attempt_end);
            counted_runs.push(item.counted_run);
            replies.push(item.reply_to);
        }
        if mutant::on(Mutant::AckBeforeCommit) {
            acknowledge_early(&attempt_ends, &replies);
        }
        let write_start = Instant::now();
        let Some(ends) = self.finish(&attempt_ends, stop).await else { return };
        self.shared.metrics.results_written.observe(write_start.elapsed());
        let Ends { outcomes: end_outcomes, released_runs, due_at, awaiting_runs, ended_parents } = ends;
        self.count_outcomes(&end_outcomes);
        Self::log_ends(&attempt_ends, &end_outcomes);
        for ((attempt_end, counted_run), end_outcome) in attempt_ends.iter().zip(&counted_runs).zip(&end_outcomes) {
            self.shared.metrics.count_end(attempt_end, counted_run, end_outcome);
            if let Some((namespace, job, fire_at)) = counted_run.expected_success(end_outcome, &awaiting_runs) {
                self.shared.noted_successes.add(namespace, job, fire_at);
            }
            if let Some(job) = counted_run.pump_job() {
                self.shared.pumps.note_ended(job);
            }
        }
        if let Some(at) = due_at {
            self.shared.note_due(at);
        }
        self.shared.put_own(released_runs).await;
        let awaiting_ids: HashSet<RunId> = awaiting_runs.iter().map(|(_, run)| *run).collect();
        if !awaiting_runs.is_empty() {
            // Sent before `Settled`, which makes runs leave their gates: these runs must keep their places there.
            drop(self.events.send(Event::Awaiting(awaiting_runs)).await);
        }
        let mut acks: BTreeMap<u64, (SessionHandle, Vec<v1::ResultAck>)> = BTreeMap::new();
        for ((attempt_end, reply), end_outcome) in attempt_ends.iter().zip(replies).zip(&end_outcomes) {
            if let Some(session) = reply {
                let (_, acks) = acks.entry(session.number).or_insert_with(|| (session, Vec::new()));
                acks.push(ack(attempt_end.run, attempt_end.attempt, end_outcome));
            }
        }
        for (session, acks) in acks.into_values() {
            send_acks(&session, acks);
        }
        drop(texts);
        rondel_failpoint::pass("acknowledge.sent");
        drop(self.events.send(Event::Settled(ends_to_report(attempt_ends, end_outcomes, &awaiting_ids))).await);
        if !ended_parents.is_empty() {
            drop(self.events.send(Event::AwaitingEnded(ended_parents)).await);
        }
    }

    /// Logs the ends of attempts at the debug level.
    fn log_ends(attempt_ends: &[AttemptEnd], end_outcomes: &[EndOutcome]) {
        for (attempt_end, end_outcome) in attempt_ends.iter().zip(end_outcomes) {
            let EndOutcome::Stored(next_step, _) = end_outcome else { continue };
            let (run_id, job_id, attempt) = (attempt_end.run, attempt_end.job, attempt_end.attempt);
            match next_step {
                NextStep::Verdict { status, .. } => {
                    tracing::debug!(%run_id, %job_id, attempt, %status, "a run has its verdict");
                }
                NextStep::Retry { reason, .. } => {
                    tracing::debug!(%run_id, %job_id, attempt, %reason, "a run is tried again");
                }
            }
        }
    }

    fn count_outcomes(&self, end_outcomes: &[EndOutcome]) {
        for end_outcome in end_outcomes {
            let counter = match end_outcome {
                EndOutcome::Superseded => Count::ResultsSuperseded,
                EndOutcome::Late => Count::ResultsLate,
                EndOutcome::NoSuchRun => Count::ResultsUnknown,
                EndOutcome::NotOwner | EndOutcome::UnderWay => Count::StatementsRefused,
                EndOutcome::Stored(..) | EndOutcome::Duplicate | EndOutcome::Unwritable => continue,
            };
            self.shared.counters.add(counter, 1);
        }
    }

    /// Tries until the database has stored the batch; `None` if `stop` is cancelled first. If the store takes only a first part of the batch, the
    /// rest is sent next.
    async fn finish(&self, batch: &[AttemptEnd], stop: &CancellationToken) -> Option<Ends> {
        let mut failed_count = 0_u32;
        let mut ends_in_order = Ends::default();
        loop {
            let batch = &batch[ends_in_order.outcomes.len()..];
            // Without a lease nothing is written, and nothing acknowledged: the results wait here and with the executors.
            let Some(lease) = self.shared.membership.held_lease() else {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return None,
                    () = tokio::time::sleep(LEASE_DELAY) => {}
                }
                continue;
            };
            match self.shared.store.finish(Finisher { token: lease.token, ids: &lease.ids }, batch).await {
                Ok(ends) => {
                    let is_all_stored = ends.outcomes.len() >= batch.len();
                    let has_answers = !ends.outcomes.is_empty();
                    ends_in_order.extend(ends);
                    if is_all_stored {
                        return Some(ends_in_order);
                    }
                    if has_answers {
                        failed_count = 0;
                        continue;
                    }
                    failed_count = failed_count.saturating_add(1);
                }
                Err(error) => {
                    failed_count = failed_count.saturating_add(1);
                    if failed_count == 1 {
                        tracing::warn!(count = batch.len(), error = %chain(&error), "results wait for the database");
                    }
                }
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return None,
                () = tokio::time::sleep(backoff(RETRY_DELAY_MIN, RETRY_DELAY_MAX, failed_count)) => {}
            }
        }
    }
}

/// The ends to report to the dispatcher. If a run awaits its children, only the first end of an attempt is reported: the run keeps its place at its
/// gate for one end, and a second end would free the place.
fn ends_to_report(
    attempt_ends: Vec<AttemptEnd>,
    end_outcomes: Vec<EndOutcome>,
    awaiting_runs: &HashSet<RunId>,
) -> Vec<SettledAttempt> {
    let (mut reported_attempts, mut ends) = (HashSet::new(), Vec::with_capacity(attempt_ends.len()));
    for (AttemptEnd { run, attempt, owner, .. }, end_outcome) in attempt_ends.into_iter().zip(end_outcomes) {
        let has_ended = matches!(end_outcome, EndOutcome::Stored(..) | EndOutcome::Duplicate);
        let is_repeated = has_ended && awaiting_runs.contains(&run) && !reported_attempts.insert((run, attempt));
        if !is_repeated {
            ends.push(SettledAttempt { run, attempt, owner, end_outcome });
        }
    }
    ends
}

/// The behaviour of [`Mutant::AckBeforeCommit`].
fn acknowledge_early(attempt_ends: &[AttemptEnd], replies: &[Option<SessionHandle>]) {
    let success = EndOutcome::Stored(NextStep::Verdict { status: RunStatus::Succeeded, reason: None }, None);
    for (attempt_end, session) in attempt_ends.iter().zip(replies) {
        if let Some(session) = session {
            send_acks(session, vec![ack(attempt_end.run, attempt_end.attempt, &success)]);
        }
    }
}

fn send_acks(session: &SessionHandle, acks: Vec<v1::ResultAck>) {
    // A lost answer does no harm: the executor sends the result again, which is then a duplicate.
    session.send(v1::server_message::Body::ResultAcks(v1::ResultAcks { acks }));
}

#[cfg(test)]
mod tests {
    use rondel_core::Timestamp;
    use rondel_core::outcome::Outcome;
    use serde_json::json;

    use super::*;
    use crate::dispatch::end_of_unsent;
    use crate::dispatch::tests_support::{definition, ready};

    /// A run that awaits its children keeps its place for one end: a repeated one would free it.
    #[test]
    fn a_repeated_end_of_a_run_that_awaits_its_children_is_not_reported() {
        let definition = definition(&json!({}));
        let end = |second, attempt| {
            let run = ready(second, &definition).run;
            let end = end_of_unsent(&run, &definition, Outcome::Succeeded, Timestamp::from_secs(9), None);
            AttemptEnd { attempt, ..end }
        };
        let stored = || EndOutcome::Stored(NextStep::Verdict { status: RunStatus::Succeeded, reason: None }, None);
        let attempt_ends = vec![end(1, 1), end(1, 2), end(1, 2), end(2, 1), end(2, 1)];
        let finished = vec![EndOutcome::Superseded, stored(), EndOutcome::Duplicate, stored(), EndOutcome::Duplicate];
        let reported = ends_to_report(attempt_ends, finished, &HashSet::from([RunId::new(1_000)]));
        let reported: Vec<(i64, i32)> = reported.iter().map(|end| (end.run.get() / 1_000, end.attempt)).collect();
        assert_eq!(reported, [(1, 1), (1, 2), (2, 1), (2, 1)]);
    }
}
