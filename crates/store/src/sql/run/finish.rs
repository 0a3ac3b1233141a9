//! The end of attempts and everything that follows from it, in one transaction per batch.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use rondel_core::outcome::NextStep;
use rondel_core::run::{ROOT_SHARD, attempt_may_have_begun};
use rondel_core::{ExecutorId, JobId, NodeId, Reason, RunId, RunStatus, Timestamp, Trigger};
use rondel_failpoint as failpoint;
use sqlx::any::AnyRow;

use crate::follow::EndedRun;
use crate::ledger::{AttemptEnd, EndOutcome, Ends, Finisher};
use crate::outbox::may_be_reported;
use crate::rollups::decides_failing;
use crate::settle::{self, CleanEnd, Judgement, RunRow};
use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement};
use crate::sql::run::attempts::EndedAttempt;
use crate::sql::run::broadcast::{FireKey, ShardChange};
use crate::sql::run::delay::Delays;
use crate::sql::run::follow::FollowResult;
use crate::sql::run::read::EarlierAttempts;
use crate::sql::{Tx, rows};
use crate::{LeaseToken, Result};

pub(in crate::sql) const LOCK_RUNS: Statement = Statement {
    name: "lock_runs",
    text: "SELECT id, attempt, status, reason, lost_attempt_count, marked_at_ms, cancel_by, cancel_reason, parent_id, job_id, fire_at_ms, cause, \
           shard_index, executor_id, executor, started_at_ms, trigger_kind, open_children, node_id, node_epoch, due_at_ms, shard_total FROM run WHERE id {in_list} ORDER BY id {for_update}",
};
/// A run that is cancelled while it awaits its children keeps the result of its handler.
const SETTLE_RUNS: Statement = Statement {
    name: "settle_runs",
    text: "UPDATE {join:iittitiitttt}run SET status = v.column3, reason = v.column4, executor_id = v.column5, \
           executor = v.column6, started_at_ms = v.column7, finished_at_ms = v.column8, message = v.column9, \
           result = COALESCE(v.column10, run.result), detail = COALESCE(v.column11, run.detail), trace = v.column12 {from:iittitiitttt} WHERE {of_rows:run.id} \
           AND {check}run.attempt = v.column2 AND run.status IN ('pending', 'waiting', 'running'){end}",
};
/// A late result corrects the verdict of its run.
const CORRECT_RUNS: Statement = Statement {
    name: "correct_runs",
    text: "UPDATE {join:iittitiittt}run SET status = v.column3, reason = v.column4, executor_id = v.column5, \
           executor = v.column6, started_at_ms = v.column7, finished_at_ms = v.column8, message = v.column9, \
           result = v.column10, detail = COALESCE(v.column11, run.detail) {from:iittitiittt} WHERE {of_rows:run.id} AND {check}run.attempt = v.column2 \
           AND run.status IN ('unknown', 'skipped', 'failed', 'cancelled'){end}",
};
/// The name of the executor is kept, without its incarnation, so that the next attempt can go to another executor if one is free. A request
/// to drop the run, which has no `cancel_by`, is removed if an executor had the attempt, because it concerns only queued runs.
const RETRY_RUNS: Statement = Statement {
    name: "retry_runs",
    text: "UPDATE {join:iiititt}run SET status = 'waiting', attempt = run.attempt + 1, due_at_ms = v.column3, \
           reason = v.column4, lost_attempt_count = v.column5, executor = v.column6, executor_id = NULL, marked_at_ms = NULL, \
           started_at_ms = NULL, message = NULL, detail = v.column7, \
           cancel_reason = CASE WHEN run.cancel_by IS NULL AND v.column4 <> 'not_received' THEN NULL ELSE run.cancel_reason END \
           {from:iiititt} WHERE {of_rows:run.id} AND {check}run.attempt = v.column2 \
           AND run.status IN ('pending', 'waiting', 'running'){end}",
};

/// A locked row, with the changes that the batch has made to it so far.
#[derive(Clone, Debug)]
struct LockedRun {
    row: RunRow,
    parent: Option<RunId>,
    key: FireKey,
    shard_index: i32,
    trigger: Trigger,
    executor_id: Option<ExecutorId>,
    executor: Option<String>,
    started_at: Option<Timestamp>,
    /// Whether a row in `run_cancel` requests to cancel or to drop the run.
    has_request: bool,
    /// Whether a change of this row is collected but not written yet.
    is_dirty: bool,
}

impl LockedRun {
    fn ended_run(&self, attempt_end: &AttemptEnd, status: RunStatus) -> EndedRun {
        EndedRun {
            run: attempt_end.run,
            job: JobId::new(self.key.job),
            cause: self.key.cause,
            trigger: self.trigger,
            awaits_children: attempt_end.policy.awaits_children && status == RunStatus::Succeeded,
        }
    }
}

struct Verdict<'f> {
    clean_end: &'f CleanEnd<'f>,
    status: RunStatus,
    reason: Option<Reason>,
    executor_id: Option<ExecutorId>,
    executor: Option<Cow<'f, str>>,
    started_at: Option<Timestamp>,
}

struct Retry<'f> {
    run: RunId,
    attempt: i32,
    due_at: Timestamp,
    reason: Reason,
    lost_count: i32,
    executor: Option<Cow<'f, str>>,
    detail: Option<&'f str>,
    /// The index of the [`EndOutcome`] that receives the run.
    outcome_index: usize,
}

/// A batch of results, and the changes that are collected for it.
#[derive(Default)]
pub(super) struct Batch<'f> {
    locked_runs: HashMap<RunId, LockedRun>,
    outcomes: Vec<EndOutcome>,
    verdicts: Vec<Verdict<'f>>,
    /// Verdicts from late results, which replace stored ones.
    corrections: Vec<Verdict<'f>>,
    retries: Vec<Retry<'f>>,
    /// Attempts that are followed by another one.
    ended_attempts: Vec<EndedAttempt<'f>>,
    /// Results of attempts that were given up earlier.
    superseded_attempts: Vec<EndedAttempt<'f>>,
    /// Ended runs whose rows in `run_cancel` are deleted.
    cancels_to_delete: Vec<i64>,
    broadcasts: BTreeMap<RunId, ShardChange>,
    /// Runs that failed or were skipped. Some of these are reported.
    failed_or_skipped_runs: Vec<RunId>,
    /// Runs whose corrected verdict is not a failure. They are no longer dead letters.
    runs_no_longer_dead: Vec<RunId>,
    /// Runs whose end was stored before, and that await their children.
    awaiting_runs: Vec<(JobId, RunId)>,
    delays: Delays,
    /// Rows that got their verdict, each with the row of the broadcast of which it may be a shard.
    decided_runs: Vec<(EndedRun, Option<(RunId, FireKey)>)>,
    counted_broadcasts: HashSet<(RunId, FireKey)>,
}

impl<'f> Batch<'f> {
    /// Locks the runs of the batch, decides what each result means, and writes the decisions and everything that follows from them.
    pub(super) async fn execute(
        mut self,
        tx: &mut Tx<'_>,
        finisher: Finisher<'_>,
        part: &'f [CleanEnd<'f>],
    ) -> Result<Ends> {
        self.delays = Delays::lock(tx, part).await?;
        let mut ids: Vec<i64> = part.iter().map(|clean_end| clean_end.end.run.get()).collect();
        ids.sort_unstable();
        ids.dedup();
        self.locked_runs.reserve(ids.len());
        for chunk in ids.chunks(CHUNK_MAX) {
            for row in tx.rows(Query::new(&LOCK_RUNS).list(chunk.iter().copied())).await? {
                let (id, locked_run) = locked_run(&row)?;
                self.locked_runs.insert(id, locked_run);
            }
        }
        self.count_earlier_attempts(tx, part).await?;
        for clean_end in part {
            // If a batch has two results of one run, the second must see the effect of the first.
            if self.locked_runs.get(&clean_end.end.run).is_some_and(|locked_run| locked_run.is_dirty) {
                self.write(tx).await?;
                self.count_earlier_attempts(tx, std::slice::from_ref(clean_end)).await?;
            }
            self.decide(clean_end);
        }
        self.write(tx).await?;
        // A crash here must leave the runs open. If they had a verdict but no children, the children would never be created.
        failpoint::pass("finish.settled");
        let FollowResult { released_runs, mut awaiting_runs, ended_parents, failed_runs } =
            tx.follow_runs(finisher, &self.ended_runs()).await?;
        awaiting_runs.append(&mut self.awaiting_runs);
        self.delays.adjust_for_children(tx, &awaiting_runs, &ended_parents).await?;
        self.failed_or_skipped_runs.extend(failed_runs);
        tx.insert_failure_records(&self.failed_or_skipped_runs).await?;
        tx.delete_dead_letters(&self.runs_no_longer_dead).await?;
        let due_at = self.delays.write(tx).await?;
        Ok(Ends { outcomes: self.outcomes, due_at, released_runs, awaiting_runs, ended_parents })
    }

    /// Counts the attempts before those that end, where the verdict depends on them.
    async fn count_earlier_attempts(&mut self, tx: &mut Tx<'_>, part: &[CleanEnd<'_>]) -> Result<()> {
        let needs_earlier_attempts = |clean_end: &&CleanEnd<'_>| {
            let is_later = self.locked_runs.get(&clean_end.end.run).is_some_and(|run| run.row.attempt > 1);
            is_later && settle::must_count_earlier_attempts(clean_end.end.outcome)
        };
        let later_attempts: Vec<RunId> =
            part.iter().filter(needs_earlier_attempts).map(|clean_end| clean_end.end.run).collect();
        for EarlierAttempts { run, may_have_begun, unreceived_count } in tx.earlier_attempts(&later_attempts).await? {
            if let Some(locked_run) = self.locked_runs.get_mut(&run) {
                (locked_run.row.may_have_begun, locked_run.row.unreceived_count) = (may_have_begun, unreceived_count);
            }
        }
        Ok(())
    }

    /// The rows that got a verdict and are not shards.
    fn ended_runs(&self) -> Vec<EndedRun> {
        let is_shard =
            |parent: &Option<(RunId, FireKey)>| parent.is_some_and(|parent| self.counted_broadcasts.contains(&parent));
        self.decided_runs.iter().filter(|(_, parent)| !is_shard(parent)).map(|(ended_run, _)| *ended_run).collect()
    }

    fn decide(&mut self, clean_end: &'f CleanEnd<'f>) {
        let end = clean_end.end;
        let Some(locked_run) = self.locked_runs.get_mut(&end.run) else {
            return self.outcomes.push(EndOutcome::NoSuchRun);
        };
        let executor = || match &clean_end.executor {
            Some(name) => (clean_end.executor_id, Some(name.clone())),
            None => (locked_run.executor_id, locked_run.executor.clone().map(Cow::Owned)),
        };
        match settle::judge(locked_run.row, end) {
            Judgement::NoSuchRun => self.outcomes.push(EndOutcome::NoSuchRun),
            Judgement::Duplicate => {
                if locked_run.row.awaits_children && !locked_run.row.status.is_terminal() {
                    self.awaiting_runs.push((JobId::new(locked_run.key.job), end.run));
                }
                self.outcomes.push(EndOutcome::Duplicate);
            }
            Judgement::NotOwner => self.outcomes.push(EndOutcome::NotOwner),
            Judgement::UnderWay => self.outcomes.push(EndOutcome::UnderWay),
            Judgement::Superseded => {
                // The servers gave this attempt up, so only an executor knows how it ended.
                if end.owner.is_none() {
                    locked_run.is_dirty = true;
                    self.superseded_attempts.push(EndedAttempt {
                        clean_end,
                        status: settle::attempt_status(end.outcome),
                        reason: None,
                        executor_id: clean_end.executor_id,
                        executor: clean_end.executor.clone(),
                        started_at: clean_end.started_at,
                    });
                }
                self.outcomes.push(EndOutcome::Superseded);
            }
            Judgement::Late(status, reason) => {
                let (executor_id, executor) = executor();
                let started_at = clean_end.started_at.or(locked_run.started_at);
                self.corrections.push(Verdict { clean_end, status, reason, executor_id, executor, started_at });
                if locked_run.row.status == RunStatus::Skipped {
                    // The edit that skipped this run did not release the runs that follow from it.
                    let ended_run = EndedRun { awaits_children: false, ..locked_run.ended_run(end, status) };
                    self.decided_runs.push((ended_run, locked_run.parent.map(|parent| (parent, locked_run.key))));
                    self.failed_or_skipped_runs.extend(may_be_reported(status).then_some(end.run));
                }
                self.runs_no_longer_dead.extend((decides_failing(status) != Some(true)).then_some(end.run));
                (locked_run.row.status, locked_run.row.reason) = (status, reason);
                locked_run.is_dirty = true;
                count_shard(&mut self.broadcasts, locked_run, 0, end);
                self.outcomes.push(EndOutcome::Late);
            }
            Judgement::Ends(next_step @ NextStep::Verdict { status, reason }) => {
                let (executor_id, executor) = executor();
                let started_at = clean_end.started_at.or(locked_run.started_at);
                self.verdicts.push(Verdict { clean_end, status, reason, executor_id, executor, started_at });
                if locked_run.has_request {
                    self.cancels_to_delete.push(end.run.get());
                }
                (locked_run.row.status, locked_run.row.reason) = (status, reason);
                locked_run.is_dirty = true;
                let ended_run = locked_run.ended_run(end, status);
                self.decided_runs.push((ended_run, locked_run.parent.map(|parent| (parent, locked_run.key))));
                count_shard(&mut self.broadcasts, locked_run, 1, end);
                self.delays.on_verdict(end.run, Timestamp::from_millis(locked_run.key.fire_at), end.finished_at);
                if may_be_reported(status) {
                    self.failed_or_skipped_runs.push(end.run);
                }
                self.outcomes.push(EndOutcome::Stored(next_step, None));
            }
            Judgement::Ends(next_step @ NextStep::Retry { due_at, reason, lost_count }) => {
                let (executor_id, executor) = executor();
                self.ended_attempts.push(EndedAttempt {
                    clean_end,
                    status: settle::attempt_status(end.outcome),
                    reason: Some(reason),
                    executor_id,
                    executor: executor.clone(),
                    started_at: clean_end.started_at.or(locked_run.started_at),
                });
                if locked_run.has_request
                    && locked_run.row.cancel_request_reason.is_none()
                    && reason != Reason::NotReceived
                {
                    self.cancels_to_delete.push(end.run.get());
                    locked_run.has_request = false;
                }
                let (run, attempt, outcome_index) = (end.run, end.attempt, self.outcomes.len());
                locked_run.executor = executor.clone().map(Cow::into_owned);
                let detail = clean_end.detail.as_deref();
                self.retries.push(Retry { run, attempt, due_at, reason, lost_count, executor, detail, outcome_index });
                locked_run.row = RunRow {
                    due_at,
                    attempt: attempt + 1,
                    status: RunStatus::Waiting,
                    reason: Some(reason),
                    lost_count,
                    unreceived_count: locked_run.row.unreceived_count + i32::from(reason == Reason::NotReceived),
                    is_marked: false,
                    may_have_begun: locked_run.row.may_have_begun
                        || attempt_may_have_begun(settle::attempt_status(end.outcome), Some(reason)),
                    cancel_request_reason: locked_run.row.cancel_request_reason,
                    awaits_children: false,
                    is_unexpanded: locked_run.row.is_unexpanded,
                    owner: locked_run.row.owner,
                };
                (locked_run.executor_id, locked_run.started_at) = (None, None);
                locked_run.is_dirty = true;
                self.outcomes.push(EndOutcome::Stored(next_step, None));
            }
        }
    }

    /// Writes the collected changes.
    async fn write(&mut self, tx: &mut Tx<'_>) -> Result<()> {
        let size = tx.size;
        let add =
            |query, verdict: &Verdict<'_>| add_verdict(query, verdict).opt_text(verdict.clean_end.trace.as_deref());
        for (query, chunk) in size.queries(&SETTLE_RUNS, &self.verdicts, add) {
            tx.execute_all(query, chunk.len()).await?;
        }
        tx.sync_rows(&statuses(&self.verdicts)).await?;
        for (query, chunk) in size.queries(&CORRECT_RUNS, &self.corrections, add_verdict) {
            tx.execute_all(query, chunk.len()).await?;
        }
        tx.sync_corrected_rows(&statuses(&self.corrections)).await?;
        self.verdicts.clear();
        self.corrections.clear();
        tx.insert_attempts(&self.ended_attempts).await?;
        self.ended_attempts.clear();
        tx.correct_attempts(&self.superseded_attempts).await?;
        self.superseded_attempts.clear();
        self.write_retries(tx).await?;
        self.write_broadcasts(tx).await?;
        for chunk in self.cancels_to_delete.chunks(CHUNK_MAX) {
            tx.execute(Query::new(&rows::DELETE_CANCELS).list(chunk.iter().copied())).await?;
        }
        self.cancels_to_delete.clear();
        Ok(())
    }

    async fn write_retries(&mut self, tx: &mut Tx<'_>) -> Result<()> {
        let add = |query: Query, retry: &Retry<'_>| {
            query
                .int(retry.run.get())
                .int(retry.attempt.into())
                .at(retry.due_at)
                .text(retry.reason.as_str())
                .int(retry.lost_count.into())
                .opt_text(retry.executor.as_deref())
                .opt_text(retry.detail)
        };
        for (query, chunk) in tx.size.queries(&RETRY_RUNS, &self.retries, add) {
            tx.execute_all(query, chunk.len()).await?;
            let ids: Vec<i64> = chunk.iter().map(|retry| retry.run.get()).collect();
            tx.write_open_rows(&ids).await?;
            let query = Query::new(&rows::READ_RUNS).list(ids.into_iter());
            let mut retried_runs: HashMap<RunId, _> = HashMap::with_capacity(chunk.len());
            for row in tx.rows(query).await? {
                let run = rows::run(&row)?;
                retried_runs.insert(run.id, run);
            }
            for retry in chunk {
                if let EndOutcome::Stored(_, run) = &mut self.outcomes[retry.outcome_index] {
                    *run = retried_runs.remove(&retry.run).map(Box::new);
                }
            }
        }
        self.retries.clear();
        Ok(())
    }

    /// Counts down the open shards of broadcasts, and decides the verdict of each broadcast whose last shard has ended.
    async fn write_broadcasts(&mut self, tx: &mut Tx<'_>) -> Result<()> {
        let changes: Vec<(RunId, ShardChange)> = std::mem::take(&mut self.broadcasts).into_iter().collect();
        for chunk in changes.chunks(CHUNK_MAX) {
            for broadcast in tx.count_shards(chunk).await? {
                self.counted_broadcasts.insert((broadcast.id, broadcast.key));
                if let Some(locked_run) = self.locked_runs.get_mut(&broadcast.id) {
                    (locked_run.row.status, locked_run.row.reason) = (broadcast.status, broadcast.reason);
                }
                let Some(derived_verdict) = &broadcast.derived_verdict else { continue };
                if derived_verdict.is_first {
                    self.decided_runs.push((broadcast.ended_run(), None));
                }
                if derived_verdict.is_first && may_be_reported(broadcast.status) {
                    self.failed_or_skipped_runs.push(broadcast.id);
                }
                if !derived_verdict.is_first && decides_failing(broadcast.status) != Some(true) {
                    self.runs_no_longer_dead.push(broadcast.id);
                }
                let finished_at = broadcast.finished_at.unwrap_or(Timestamp::MAX);
                self.delays.on_verdict(broadcast.id, Timestamp::from_millis(broadcast.key.fire_at), finished_at);
                if broadcast.has_request {
                    self.cancels_to_delete.push(broadcast.id.get());
                }
            }
        }
        Ok(())
    }
}

fn count_shard(
    broadcasts: &mut BTreeMap<RunId, ShardChange>,
    locked_run: &LockedRun,
    closed_count: i32,
    attempt_end: &AttemptEnd,
) {
    if let Some(parent) = locked_run.parent.filter(|_| locked_run.shard_index != ROOT_SHARD) {
        let new_change = ShardChange {
            key: locked_run.key,
            closed_count: 0,
            trigger: locked_run.trigger,
            awaits_children: attempt_end.policy.awaits_children,
        };
        let change = broadcasts.entry(parent).or_insert(new_change);
        change.closed_count += closed_count;
    }
}

fn locked_run(row: &AnyRow) -> Result<(RunId, LockedRun)> {
    let mut columns = Reader::new(row, "run");
    let id = RunId::new(columns.int("id")?);
    let (attempt, status, reason) = (columns.int32("attempt")?, columns.word("status")?, columns.opt_word("reason")?);
    let (lost_count, marked_at) = (columns.int32("lost_attempt_count")?, columns.opt_int("marked_at_ms")?);
    let (cancel_by, cancel_reason) = (columns.opt_text("cancel_by")?, columns.opt_word("cancel_reason")?);
    let mut locked_run = LockedRun {
        row: RunRow {
            due_at: Timestamp::EPOCH,
            attempt,
            status,
            reason,
            lost_count,
            unreceived_count: 0,
            is_marked: marked_at.is_some(),
            may_have_begun: false,
            // A request to drop the run also has a reason, but it names no caller.
            cancel_request_reason: cancel_by.is_some().then(|| cancel_reason.unwrap_or(Reason::Requested)),
            awaits_children: false,
            is_unexpanded: false,
            owner: LeaseToken { node: NodeId::new(0), epoch: 0 },
        },
        parent: columns.opt_int("parent_id")?.map(RunId::new),
        key: FireKey { job: columns.int("job_id")?, fire_at: columns.int("fire_at_ms")?, cause: columns.int("cause")? },
        shard_index: columns.int32("shard_index")?,
        executor_id: columns.opt_int("executor_id")?.map(ExecutorId::new),
        executor: columns.opt_text("executor")?,
        started_at: columns.opt_at("started_at_ms")?,
        trigger: columns.word("trigger_kind")?,
        has_request: cancel_by.is_some() || cancel_reason.is_some(),
        is_dirty: false,
    };
    locked_run.row.awaits_children = columns.opt_int("open_children")?.is_some();
    locked_run.row.owner = LeaseToken { node: NodeId::new(columns.int("node_id")?), epoch: columns.int("node_epoch")? };
    locked_run.row.due_at = columns.at("due_at_ms")?;
    locked_run.row.is_unexpanded = locked_run.shard_index == ROOT_SHARD && columns.opt_int("shard_total")?.is_none();
    Ok((id, locked_run))
}

fn statuses(verdicts: &[Verdict<'_>]) -> Vec<(RunId, RunStatus)> {
    verdicts.iter().map(|verdict| (verdict.clean_end.end.run, verdict.status)).collect()
}

fn add_verdict(query: Query, verdict: &Verdict<'_>) -> Query {
    query
        .int(verdict.clean_end.end.run.get())
        .int(verdict.clean_end.end.attempt.into())
        .text(verdict.status.as_str())
        .opt_text(verdict.reason.map(Reason::as_str))
        .opt_int(verdict.executor_id.map(ExecutorId::get))
        .opt_text(verdict.executor.as_deref())
        .opt_at(verdict.started_at)
        .at(verdict.clean_end.end.finished_at)
        .opt_text(verdict.clean_end.message.as_deref())
        .opt_text(verdict.clean_end.result.as_deref())
        .opt_text(verdict.clean_end.detail.as_deref())
}
