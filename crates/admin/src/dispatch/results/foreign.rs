//! Results of runs that this node does not have in memory: runs of another node, or of an earlier epoch. Any node with a living lease may
//! store them.
//!
//! These results have a separate queue that is bounded for each session. The sessions are served in turns, so that results of runs that do
//! not exist delay neither the dispatcher's steps nor the results of other apps. A result that finds no room, or that cannot be judged yet,
//! is not answered, so that the executor sends it again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use rondel_core::error_chain::chain;
use rondel_core::run::Attempt;
use rondel_core::{ExecutorId, Run, RunId, RunStatus};
use rondel_store::ledger::EndOutcome;
use rondel_store::{LeaseToken, Store, StoreError};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::counters::Count;
use crate::dispatch::event::{Event, IncomingResult};
use crate::dispatch::results::reporter::{ReportedRun, Reporter, ResultDecision, SIBLING_COUNT_MAX};
use crate::metrics::CountedRun;
use crate::node::Shared;
use crate::turn_queue::{Bounds, Source, TurnQueue};

/// The bounds of the queue. A result counts one, and one more for each KiB of its text.
const BOUNDS: Bounds = Bounds { session: 2_000, app: 20_000, all: 100_000 };
/// The size of one batch, counted in the same way.
const BATCH: usize = 500;
/// Maximum number of results of one message that are judged in one turn of its session.
const JUDGED_PER_TURN_MAX: usize = 100;
/// Maximum number of runs in one batch whose earlier attempts are read. Results of further runs are not answered, and come again.
const EARLIER_RUN_COUNT_MAX: usize = 50;
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// From which executors this node expects the results of the runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedFrom {
    /// This node does not know the runs.
    Unknown,
    /// This node expects the results from other executors. A result of this reporter is refused immediately, unless the row of its run proves this
    /// node wrong or shows another home.
    OtherExecutors,
}

type ReportedResults = (Reporter, ExpectedFrom, Vec<IncomingResult>);

/// The queue, as the dispatcher uses it.
#[derive(Debug)]
pub(crate) struct ForeignQueue(TurnQueue<ReportedResults>);

impl Default for ForeignQueue {
    fn default() -> Self {
        Self(TurnQueue::new(BOUNDS))
    }
}

impl ForeignQueue {
    /// Queues as many of these results as there is room for.
    pub(crate) fn offer(&self, reporter: &Reporter, mut results: Vec<IncomingResult>, expected_from: ExpectedFrom) {
        let source = Source { app: reporter.app, session: reporter.session.number };
        while !results.is_empty() {
            let later_results = results.split_off(JUDGED_PER_TURN_MAX.min(results.len()));
            let weight = results.iter().map(weight).sum();
            if self.0.offer(source, weight, (reporter.clone(), expected_from, results)).is_err() {
                tracing::debug!(executor_id = %reporter.session.executor, "too many results wait; some will come again");
                return;
            }
            results = later_results;
        }
    }
}

fn weight(result: &IncomingResult) -> usize {
    let bytes: usize = [&result.message, &result.result].into_iter().flatten().map(String::len).sum();
    1 + bytes / 1024
}

/// Judges the queued results.
pub(crate) struct ForeignLoop {
    shared: Arc<Shared>,
    events: mpsc::Sender<Event>,
}

impl ForeignLoop {
    pub(crate) const fn new(shared: Arc<Shared>, events: mpsc::Sender<Event>) -> Self {
        Self { shared, events }
    }

    pub(crate) async fn run(self, stop: CancellationToken) {
        while let Some(reported_results) = stop.run_until_cancelled(self.shared.foreign.0.take(BATCH)).await {
            if let Err(error) = self.judge(reported_results).await {
                tracing::warn!(error = %chain(&error), "results of runs of other nodes were not judged; they will come again");
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }

    async fn judge(&self, reported_results: Vec<ReportedResults>) -> Result<(), StoreError> {
        let results = || reported_results.iter().flat_map(|(.., results)| results);
        let mut ids: Vec<RunId> = results().map(|result| result.run).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut runs: HashMap<RunId, Run> = HashMap::new();
        for part in ids.chunks(BATCH) {
            runs.extend(self.shared.store.runs(part).await?.into_iter().map(|run| (run.id, run)));
        }
        let earlier_results =
            results().filter(|result| runs.get(&result.run).is_some_and(|run| result.attempt < run.attempt));
        let mut earlier_runs: Vec<RunId> = earlier_results.map(|result| result.run).collect();
        earlier_runs.sort_unstable();
        earlier_runs.dedup();
        let mut attempts: BTreeMap<RunId, Vec<Attempt>> = BTreeMap::new();
        for run in earlier_runs.into_iter().take(EARLIER_RUN_COUNT_MAX) {
            attempts.insert(run, self.shared.store.attempts(run).await?);
        }
        let keys = runs.values().map(|run| (run.job, run.job_version));
        let definitions = self.shared.definitions.load(self.shared.store.as_ref(), keys).await?;
        let own_lease = self.shared.membership.token();
        for (mut reporter, expected_from, results) in reported_results {
            let decide = |reporter: &Reporter, result: &IncomingResult| {
                let run = runs.get(&result.run);
                match self.judge_one(reporter, result, run, &attempts) {
                    ResultDecision::Deferred if is_known_here(run, expected_from, own_lease) => ResultDecision::Refused,
                    decision => decision,
                }
            };
            let is_refused = |result| decide(&reporter, result) == ResultDecision::Refused;
            let has_refused = results.iter().any(is_refused);
            let has_new_siblings = has_refused && self.add_siblings(&mut reporter).await?;
            for result in results {
                let run = runs.get(&result.run);
                let definition = run.and_then(|run| definitions.get(&(run.job, run.job_version)));
                let decision = match decide(&reporter, &result) {
                    // The result comes again, and the dispatcher then judges it with the siblings in the lineage.
                    ResultDecision::Refused if has_new_siblings => ResultDecision::Deferred,
                    decision => decision,
                };
                match (decision, run, definition) {
                    (ResultDecision::Taken, Some(run), Some(definition)) => {
                        let attempt_end =
                            result.into_attempt_end(run, definition.job.next_step_policy, reporter.as_executor());
                        let (counted_run, session) = (CountedRun::of(run, definition), reporter.session.clone());
                        self.shared.results.submit(attempt_end, counted_run, Some(session)).await;
                    }
                    // This server cannot read the definition. The result comes again, and a server that can read the definition stores it.
                    (ResultDecision::Taken, Some(_), None) | (ResultDecision::Deferred, ..) => {}
                    _ => {
                        if expected_from == ExpectedFrom::OtherExecutors {
                            self.warn_of_foreign_result(&reporter, &result);
                        }
                        let is_known = run.is_some_and(|run| (1..=run.attempt).contains(&result.attempt));
                        let counter = if is_known { Count::ResultsRefused } else { Count::ResultsUnknown };
                        self.shared.counters.add(counter, 1);
                        let answer = match run {
                            Some(run) if was_cancelled_without_executor(run, &result, &reporter) => {
                                EndOutcome::Duplicate
                            }
                            _ => EndOutcome::NoSuchRun,
                        };
                        self.shared.results.refuse(&reporter.session, (result.run, result.attempt), &answer);
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds the reporter's siblings that were stored since its hello was read, to the reporter and to its stream. Returns whether there are any.
    async fn add_siblings(&self, reporter: &mut Reporter) -> Result<bool, StoreError> {
        let new_siblings =
            new_siblings(self.shared.store.as_ref(), reporter.session.executor, &reporter.lineage).await?;
        if new_siblings.is_empty() {
            return Ok(false);
        }
        reporter.lineage = reporter.lineage.iter().copied().chain(new_siblings).collect();
        let event = Event::LineageGrew(reporter.session.clone(), Arc::clone(&reporter.lineage));
        drop(self.events.send(event).await);
        Ok(true)
    }

    fn warn_of_foreign_result(&self, reporter: &Reporter, result: &IncomingResult) {
        if let Some(count) = self.shared.log_limit.count("results", reporter.session.executor.get()) {
            let (run, attempt) = (result.run, result.attempt);
            tracing::warn!(run_id = %run, attempt, executor = reporter.name, count, "an executor reported a run that is not its own; further cases are logged once a minute");
        }
    }

    fn judge_one(
        &self,
        reporter: &Reporter,
        result: &IncomingResult,
        run: Option<&Run>,
        attempts: &BTreeMap<RunId, Vec<Attempt>>,
    ) -> ResultDecision {
        let Some(run) = run else { return ResultDecision::Refused };
        let is_earlier = (1..run.attempt).contains(&result.attempt);
        let stored_attempts = attempts.get(&result.run);
        if is_earlier && stored_attempts.is_none() {
            return ResultDecision::Deferred;
        }
        let ended_attempt =
            stored_attempts.and_then(|known| known.iter().find(|attempt| attempt.attempt == result.attempt));
        let sent_attempt = self.shared.sent_runs.get(result.run).filter(|(attempt, _)| *attempt == result.attempt);
        let reported_run = ReportedRun { run, ended_attempt, sent_to: sent_attempt.map(|(_, executor)| executor) };
        let (token, lost_after) = (self.shared.membership.token(), self.shared.config.lost_after);
        let now = self.shared.clock.now();
        reporter.judge_result((result.attempt, result.finished_at), &reported_run, (token, lost_after), now)
    }
}

/// The processes that proved the same predecessor as this executor and are not in its lineage yet.
///
/// A server that was suspended may read the hello of a dead process at the same time as that of the next process in its data directory, and find
/// the journal's results in both. The server may then expect the results from the dead process, but only the next process still reports them.
async fn new_siblings(
    store: &dyn Store,
    executor: ExecutorId,
    lineage: &[ExecutorId],
) -> Result<Vec<ExecutorId>, StoreError> {
    let Some(predecessor) = lineage.first() else { return Ok(Vec::new()) };
    let mut siblings = store.executor_successors(*predecessor, SIBLING_COUNT_MAX).await?;
    siblings.retain(|sibling| *sibling != executor && !lineage.contains(sibling));
    Ok(siblings)
}

/// Whether this node knows that other executors have the run. If the row shows another home, the run was taken over, and may have been sent
/// to the reporter since.
fn is_known_here(run: Option<&Run>, expected_from: ExpectedFrom, own_lease: LeaseToken) -> bool {
    let is_home = run.is_some_and(|run| (run.node, run.node_epoch) == (own_lease.node, own_lease.epoch));
    expected_from == ExpectedFrom::OtherExecutors && is_home
}

/// Whether the run was cancelled while no executor was named for it. The reporter may have had the run, so the answer "no such run" would be
/// untrue. The result comes too late in any case.
fn was_cancelled_without_executor(run: &Run, result: &IncomingResult, reporter: &Reporter) -> bool {
    let is_of_reporter = run.app == reporter.app && run.attempt == result.attempt && !run.is_root();
    is_of_reporter && run.status == RunStatus::Cancelled && run.executor_id.is_none()
}

#[cfg(test)]
mod tests {
    use rondel_core::outcome::Outcome;
    use rondel_core::{ExecutorId, Timestamp};

    use super::*;
    use crate::dispatch::tests_support::{executor, run_due_at};

    fn result(attempt: i32) -> IncomingResult {
        let now = Timestamp::from_secs(9);
        IncomingResult {
            run: RunId::new(1_000),
            attempt,
            outcome: Outcome::Succeeded,
            message: None,
            result: None,
            started_at: None,
            finished_at: now,
            received_at: now,
            silent_ms: None,
            is_shutting_down: false,
            is_unfinished: false,
            memory: None,
        }
    }

    /// A run that was cancelled before an executor was named for it is not unknown, so its late result is answered as a duplicate.
    #[test]
    fn a_result_comes_too_late_for_a_run_that_was_cancelled_without_a_name() {
        let (session, online, _stream) = executor(7, 1);
        let reporter = Reporter { session, app: online.app, name: online.name, lineage: [].into() };
        let cancelled = Run { status: RunStatus::Cancelled, ..run_due_at(Timestamp::from_secs(1)) };
        for (name, run, attempt, expected) in [
            ("cancelled", cancelled.clone(), 1, true),
            ("another attempt", cancelled.clone(), 2, false),
            ("named", Run { executor_id: Some(ExecutorId::new(8)), ..cancelled.clone() }, 1, false),
            ("of another app", Run { app: rondel_core::AppId::new(2), ..cancelled.clone() }, 1, false),
            ("a whole broadcast", cancelled.clone().for_all_shards(), 1, false),
            ("it succeeded", Run { status: RunStatus::Succeeded, ..cancelled }, 1, false),
        ] {
            assert_eq!(was_cancelled_without_executor(&run, &result(attempt), &reporter), expected, "{name}");
        }
    }

    /// A run that another server has taken over may have been sent to an executor that this server does not expect.
    #[test]
    fn only_the_home_of_a_run_knows_which_executors_do_not_have_it() {
        use ExpectedFrom::{OtherExecutors, Unknown};
        let run = run_due_at(Timestamp::from_secs(1));
        let home = LeaseToken { node: run.node, epoch: run.node_epoch };
        let later = LeaseToken { epoch: home.epoch + 1, ..home };
        for (run, expected_from, this, expected) in [
            (Some(&run), OtherExecutors, home, true),
            (Some(&run), OtherExecutors, later, false),
            (Some(&run), Unknown, home, false),
            (None, OtherExecutors, home, false),
        ] {
            assert_eq!(is_known_here(run, expected_from, this), expected, "{expected_from:?} {this:?}");
        }
    }

    /// The sessions take turns, so no message delays the other sessions for long.
    #[tokio::test]
    async fn the_results_of_one_message_are_judged_in_parts() {
        let (session, online, _stream) = executor(7, 1);
        let reporter = Reporter { session, app: online.app, name: online.name, lineage: [].into() };
        let queue = ForeignQueue::default();
        for (count, expected) in [(1, vec![1]), (100, vec![100]), (250, vec![100, 100, 50])] {
            queue.offer(&reporter, (0..count).map(|_| result(1)).collect(), ExpectedFrom::Unknown);
            let parts = queue.0.take(BATCH).await;
            assert_eq!(parts.iter().map(|(.., results)| results.len()).collect::<Vec<_>>(), expected);
        }
    }

    /// The weight of a result is 1, plus 1 for each KiB of its text.
    #[test]
    fn a_result_weighs_as_much_as_its_text() {
        for (message, text, expected) in [(0, 0, 1), (1_023, 0, 1), (1_000, 24, 2), (0, 2_048, 3)] {
            let words = |length: usize| Some("x".repeat(length));
            let result = IncomingResult { message: words(message), result: words(text), ..result(1) };
            assert_eq!(weight(&result), expected, "{message} {text}");
        }
    }
}
