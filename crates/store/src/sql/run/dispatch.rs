//! The trait `Dispatch` in SQL: turns waiting runs into pending ones, marks them, records them as running, and expands
//! broadcasts.

use std::collections::{HashMap, HashSet};

use async_trait::async_trait;
use rondel_core::run::ROOT_SHARD;
use rondel_core::{Run, RunId, RunStatus, Timestamp};

use crate::ledger::{MarkToRemove, NotedWait, RunAtExecutor, WaitPlace};
use crate::settle::{clean_name, wait_of_unsent};
use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement, read_ids};
use crate::sql::rows::{self, noted_detail, run_columns};
use crate::sql::{SqlStore, Tx, failure, transact};
use crate::{Dispatch, LeaseToken, Result};

pub(in crate::sql) const FIND_WAITING_RUNS: Statement = Statement {
    name: "find_waiting",
    text: "SELECT id FROM open_run WHERE node_id = ? AND status = 'waiting' AND node_epoch = ? AND due_at_ms <= ? \
           ORDER BY due_at_ms LIMIT ?",
};
const LOCK_WAITING_RUNS: Statement = Statement {
    name: "lock_waiting",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM run WHERE id {in_list} AND {check}node_id = ? AND node_epoch = ? AND status = 'waiting' \
         AND due_at_ms <= ?{end} ORDER BY id {skip_locked}"
    ),
};
const WAKE_WAITING_RUNS: Statement = Statement {
    name: "wake_waiting",
    text: "UPDATE run SET status = 'pending' WHERE id {in_list} AND {check}status = 'waiting'{end}",
};
const LOCK_OWN_PENDING_RUNS: Statement = Statement {
    name: "lock_own_pending",
    text: "SELECT id, attempt, marked_at_ms FROM run WHERE id {in_list} AND {check}node_id = ? AND node_epoch = ? \
           AND status = 'pending'{end} ORDER BY id {for_update}",
};
/// Locks runs that are marked, or that were recorded as running while they still waited at their executor.
const LOCK_OWN_RUNS_IN_HAND: Statement = Statement {
    name: "lock_own_in_hand",
    text: "SELECT id, attempt, marked_at_ms FROM run WHERE id {in_list} AND {check}node_id = ? AND node_epoch = ? \
           AND status IN ('pending', 'running') AND executor_id IS NOT NULL{end} ORDER BY id {for_update}",
};
const MARK_RUNS: Statement = Statement {
    name: "mark_runs",
    text: "UPDATE {join:iiti}run SET executor_id = v.column2, executor = v.column3, marked_at_ms = v.column4 \
           {from:iiti} WHERE {of_rows:run.id} AND {check}run.status = 'pending' AND run.marked_at_ms IS NULL{end}",
};
const UNMARK_RUNS: Statement = Statement {
    name: "unmark_runs",
    text: "UPDATE run SET status = 'pending', started_at_ms = NULL, marked_at_ms = NULL, executor = NULL, executor_id = NULL \
           WHERE id {in_list} AND {check}status IN ('pending', 'running'){end}",
};
/// Keeps the name of the executor that the shard of a broadcast is meant for.
const UNMARK_SHARDS: Statement = Statement {
    name: "unmark_shards",
    text: "UPDATE run SET status = 'pending', started_at_ms = NULL, marked_at_ms = NULL, executor_id = NULL \
           WHERE id {in_list} AND {check}status IN ('pending', 'running'){end}",
};
/// Reads in the order of the index. In the order of ids, each page would require reading all pending runs.
pub(in crate::sql) const READ_OWN_PENDING_RUNS: Statement = Statement {
    name: "read_own_pending",
    text: "SELECT id, due_at_ms FROM open_run WHERE node_id = ? AND node_epoch = ? AND status = 'pending' \
           AND due_at_ms >= ? AND (due_at_ms > ? OR id > ?) ORDER BY due_at_ms, id LIMIT ?",
};
/// The executor of a shard, or of the previous attempt, is kept. (MySQL assigns in the order of the text, so `marked_at_ms` comes last.)
const SHELVE_RUNS: Statement = Statement {
    name: "shelve_runs",
    text: concat!(
        "UPDATE run SET ",
        noted_detail!(),
        ", status = 'waiting', executor = CASE WHEN marked_at_ms IS NULL THEN executor ELSE NULL END, \
         executor_id = CASE WHEN marked_at_ms IS NULL THEN executor_id ELSE NULL END, marked_at_ms = NULL \
         WHERE id {in_list} AND {check}status = 'pending'{end}"
    ),
};
/// Locks runs that are pending, or were adopted as running without a start. A run that awaits its children is left out: it is `running`,
/// but its own work has ended.
const LOCK_OWN_RUNS_NOT_BEGUN: Statement = Statement {
    name: "lock_own_not_begun",
    text: "SELECT id, attempt, marked_at_ms FROM run WHERE id {in_list} AND {check}node_id = ? AND node_epoch = ? \
           AND status IN ('pending', 'running') AND started_at_ms IS NULL AND open_children IS NULL{end} \
           ORDER BY id {for_update}",
};
const NOTE_RUNNING: Statement = Statement {
    name: "note_running",
    text: "UPDATE {join:iiti}run SET status = 'running', executor_id = v.column2, executor = v.column3, \
           started_at_ms = v.column4 {from:iiti} WHERE {of_rows:run.id} \
           AND {check}run.status IN ('pending', 'running') AND run.started_at_ms IS NULL{end}",
};
/// Records that runs wait in the queue of an executor. If the given executor is NULL, the row keeps the one that it names.
const NOTE_QUEUED: Statement = Statement {
    name: "note_queued",
    text: "UPDATE {join:iitit}run SET status = 'pending', executor_id = COALESCE(v.column2, run.executor_id), \
           executor = COALESCE(v.column3, run.executor), marked_at_ms = COALESCE(run.marked_at_ms, v.column4), \
           detail = v.column5 {from:iitit} WHERE {of_rows:run.id} \
           AND {check}run.status IN ('pending', 'running') AND run.started_at_ms IS NULL{end}",
};
const NOTE_WAITS: Statement = Statement {
    name: "note_waits",
    text: "UPDATE {join:it}run SET detail = v.column2 {from:it} WHERE {of_rows:run.id} \
           AND {check}run.status = 'pending'{end}",
};
const EXPAND_RUN: Statement = Statement {
    name: "expand_run",
    text: "UPDATE run SET shard_total = ?, open_shards = ?, status = 'running', started_at_ms = {now} \
           WHERE id = ? AND node_id = ? AND node_epoch = ? AND shard_index = ? AND shard_total IS NULL \
           AND status = 'pending'",
};

#[async_trait]
impl Dispatch for SqlStore {
    async fn take_waiting(&self, token: LeaseToken, until: Timestamp, limit: u32) -> Result<Vec<Run>> {
        transact!(self, "take_waiting", |tx| {
            let query = Query::new(&FIND_WAITING_RUNS).int(token.node.get()).int(token.epoch);
            let mut found_ids = read_ids(&tx.rows(query.at(until).int(limit.into())).await?, "open_run", "id")?;
            found_ids.sort_unstable();
            let mut runs = Vec::with_capacity(found_ids.len());
            for chunk in found_ids.chunks(CHUNK_MAX) {
                let query = Query::new(&LOCK_WAITING_RUNS).list(chunk.iter().copied());
                let query = query.int(token.node.get()).int(token.epoch).at(until);
                let waiting_runs = rows::runs(&tx.rows(query).await?)?;
                let ids: Vec<i64> = waiting_runs.iter().map(|run| run.id.get()).collect();
                if !ids.is_empty() {
                    tx.execute_all(Query::new(&WAKE_WAITING_RUNS).list(ids.iter().copied()), ids.len()).await?;
                    tx.write_open_rows(&ids).await?;
                }
                runs.extend(waiting_runs.into_iter().map(|run| Run { status: RunStatus::Pending, ..run }));
            }
            runs.sort_by_key(|run| (run.due_at, run.id));
            Ok(runs)
        })
    }

    async fn mark(&self, token: LeaseToken, runs: &[RunAtExecutor]) -> Result<Vec<RunId>> {
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        transact!(self, "mark", |tx| {
            let marked_runs = tx.lock_own_runs(&LOCK_OWN_PENDING_RUNS, token, runs, |is_marked| !is_marked).await?;
            tx.write_executors(&MARK_RUNS, &marked_runs).await?;
            Ok(marked_runs.iter().map(|run| run.run).collect())
        })
    }

    async fn unmark(&self, token: LeaseToken, marks: &[MarkToRemove]) -> Result<()> {
        let marks_by_id: HashMap<i64, &MarkToRemove> = marks.iter().map(|mark| (mark.run.get(), mark)).collect();
        let mut ids: Vec<i64> = marks_by_id.keys().copied().collect();
        ids.sort_unstable();
        if ids.is_empty() {
            return Ok(());
        }
        transact!(self, "unmark", |tx| {
            for chunk in ids.chunks(CHUNK_MAX) {
                let mut locked_ids = Vec::with_capacity(chunk.len());
                for (id, attempt, _) in tx.lock_own_open_runs(&LOCK_OWN_RUNS_IN_HAND, token, chunk).await? {
                    if marks_by_id.get(&id).is_some_and(|mark| mark.attempt == attempt) {
                        locked_ids.push(id);
                    }
                }
                let keeps_executor = |id: &i64| marks_by_id.get(id).is_some_and(|mark| mark.keeps_executor);
                let (shard_ids, run_ids): (Vec<i64>, Vec<i64>) = locked_ids.iter().copied().partition(keeps_executor);
                for (statement, ids) in [(&UNMARK_RUNS, run_ids), (&UNMARK_SHARDS, shard_ids)] {
                    if !ids.is_empty() {
                        tx.execute_all(Query::new(statement).list(ids.iter().copied()), ids.len()).await?;
                    }
                }
                if !locked_ids.is_empty() {
                    tx.write_open_rows(&locked_ids).await?;
                }
            }
            Ok(())
        })
    }

    async fn shelve(&self, token: LeaseToken, in_hand: &[RunId]) -> Result<u64> {
        let in_hand_ids: HashSet<i64> = in_hand.iter().map(|run| run.get()).collect();
        let wait_json = wait_of_unsent().to_json();
        let page_len = i64::try_from(CHUNK_MAX).unwrap_or(i64::MAX);
        let (mut after_row, mut shelved_count) = ((Timestamp::EPOCH, 0), 0);
        loop {
            let (due_at, id) = after_row;
            let query = Query::new(&READ_OWN_PENDING_RUNS).int(token.node.get()).int(token.epoch);
            let rows = self.rows(query.at(due_at).at(due_at).int(id).int(page_len)).await?;
            let Some(last_row) = rows.last() else { return Ok(shelved_count) };
            let mut columns = Reader::new(last_row, "open_run");
            after_row = (columns.at("due_at_ms")?, columns.int("id")?);
            let mut ids = read_ids(&rows, "open_run", "id")?;
            ids.retain(|id| !in_hand_ids.contains(id));
            if !ids.is_empty() {
                shelved_count += transact!(self, "shelve", |tx| tx.shelve(token, &ids, wait_json.as_deref()).await)?;
            }
        }
    }

    async fn note_running(&self, token: LeaseToken, runs: &[RunAtExecutor]) -> Result<()> {
        if runs.is_empty() {
            return Ok(());
        }
        transact!(self, "note_running", |tx| {
            let own_runs = tx.lock_own_runs(&LOCK_OWN_RUNS_NOT_BEGUN, token, runs, |_| true).await?;
            tx.write_executors(&NOTE_RUNNING, &own_runs).await?;
            let ids: Vec<i64> = own_runs.iter().map(|run| run.run.get()).collect();
            tx.write_open_rows(&ids).await
        })
    }

    async fn note_waits(&self, token: LeaseToken, waits: &[NotedWait]) -> Result<()> {
        if waits.is_empty() {
            return Ok(());
        }
        let (queued_waits, unsent_waits): (Vec<&NotedWait>, Vec<&NotedWait>) =
            waits.iter().partition(|wait| matches!(wait.place, WaitPlace::Executor(_)));
        transact!(self, "note_waits", |tx| {
            tx.note_waits(token, &unsent_waits, &LOCK_OWN_PENDING_RUNS, &NOTE_WAITS).await?;
            let queued_ids = tx.note_waits(token, &queued_waits, &LOCK_OWN_RUNS_NOT_BEGUN, &NOTE_QUEUED).await?;
            tx.write_open_rows(&queued_ids).await
        })
    }

    async fn expand(&self, token: LeaseToken, run: RunId, shards: &[Run]) -> Result<bool> {
        if shards.is_empty() {
            return Ok(false);
        }
        let shard_total = i64::try_from(shards.len()).unwrap_or(i64::MAX);
        let shards: Vec<&Run> = shards.iter().collect();
        let rows_max = self.failed_batches.rows_max("expand", run.get());
        let expand_result = transact!(self, "expand", at most rows_max, |tx| {
            let query = Query::new(&EXPAND_RUN)
                .int(shard_total)
                .int(shard_total)
                .int(run.get())
                .int(token.node.get())
                .int(token.epoch)
                .int(ROOT_SHARD.into());
            if tx.execute(query).await? == 0 {
                return Ok(false);
            }
            tx.write_open_rows(&[run.get()]).await?;
            match tx.insert_runs(&shards).await?.is_empty() {
                true => Ok(true),
                false => Err(failure::refused("expand", "a shard of the broadcast exists already")),
            }
        });
        match &expand_result {
            Ok(_) => self.failed_batches.record_success("expand", run.get()),
            // Either all shards are written or none, so a failure makes the statements smaller, but not the transaction.
            Err(error) => drop(self.record_failure("expand", run.get(), shards.len(), error).await),
        }
        expand_result
    }
}

impl Tx<'_> {
    /// Locks open runs of the lease `token`, in the order of their ids. Returns each with its attempt and whether it is
    /// marked.
    async fn lock_own_open_runs(
        &mut self,
        statement: &'static Statement,
        token: LeaseToken,
        ids: &[i64],
    ) -> Result<Vec<(i64, i32, bool)>> {
        let query = Query::new(statement).list(ids.iter().copied()).int(token.node.get()).int(token.epoch);
        let mut locked_runs = Vec::with_capacity(ids.len());
        for row in self.rows(query).await? {
            let mut columns = Reader::new(&row, "run");
            let id = columns.int("id")?;
            locked_runs.push((id, columns.int32("attempt")?, columns.opt_int("marked_at_ms")?.is_some()));
        }
        Ok(locked_runs)
    }

    /// Locks those of `runs` that the lease `token` owns and the statement selects. Returns those that are still in the given attempt and
    /// for which `is_eligible` is true. The argument of `is_eligible` is whether the run is marked.
    async fn lock_own_runs<'r>(
        &mut self,
        statement: &'static Statement,
        token: LeaseToken,
        runs: &'r [RunAtExecutor],
        is_eligible: impl Fn(bool) -> bool,
    ) -> Result<Vec<&'r RunAtExecutor>> {
        let runs_by_id: HashMap<i64, &RunAtExecutor> = runs.iter().map(|run| (run.run.get(), run)).collect();
        let mut ids: Vec<i64> = runs_by_id.keys().copied().collect();
        ids.sort_unstable();
        let mut won_runs = Vec::with_capacity(ids.len());
        for chunk in ids.chunks(CHUNK_MAX) {
            for (id, attempt, is_marked) in self.lock_own_open_runs(statement, token, chunk).await? {
                won_runs.extend(runs_by_id.get(&id).filter(|run| run.attempt == attempt && is_eligible(is_marked)));
            }
        }
        Ok(won_runs)
    }

    /// Turns those of these runs that are still pending under the lease `token` into waiting ones. Returns their number.
    async fn shelve(&mut self, token: LeaseToken, ids: &[i64], wait_json: Option<&str>) -> Result<u64> {
        let own_runs = self.lock_own_open_runs(&LOCK_OWN_PENDING_RUNS, token, ids).await?;
        let own_ids: Vec<i64> = own_runs.into_iter().map(|(id, ..)| id).collect();
        if own_ids.is_empty() {
            return Ok(0);
        }
        let query = Query::new(&SHELVE_RUNS).opt_text(wait_json).list(own_ids.iter().copied());
        self.execute_all(query, own_ids.len()).await?;
        self.write_open_rows(&own_ids).await?;
        Ok(u64::try_from(own_ids.len()).unwrap_or(u64::MAX))
    }

    /// Writes the waits of the runs that the statement `lock_statement` locks. All of these runs wait in the same kind of place. Returns these
    /// runs.
    async fn note_waits(
        &mut self,
        token: LeaseToken,
        waits: &[&NotedWait],
        lock_statement: &'static Statement,
        write_statement: &'static Statement,
    ) -> Result<Vec<i64>> {
        let mut noted_ids = Vec::with_capacity(waits.len());
        let waits_by_id: HashMap<i64, &NotedWait> = waits.iter().map(|wait| (wait.run.get(), *wait)).collect();
        let mut ids: Vec<i64> = waits_by_id.keys().copied().collect();
        ids.sort_unstable();
        for chunk in ids.chunks(CHUNK_MAX) {
            let own_runs = self.lock_own_open_runs(lock_statement, token, chunk).await?;
            let is_same_attempt = |wait: &&NotedWait, attempt: i32| wait.attempt == attempt;
            let own_waits: Vec<&NotedWait> = own_runs
                .into_iter()
                .filter_map(|(id, attempt, _)| {
                    waits_by_id.get(&id).copied().filter(|wait| is_same_attempt(wait, attempt))
                })
                .collect();
            for (query, _) in self.size.queries(write_statement, &own_waits, |query, wait| add_wait(query, wait)) {
                self.execute(query).await?;
            }
            noted_ids.extend(own_waits.iter().map(|wait| wait.run.get()));
        }
        Ok(noted_ids)
    }

    async fn write_executors(&mut self, statement: &'static Statement, runs: &[&RunAtExecutor]) -> Result<()> {
        for chunk in runs.chunks(CHUNK_MAX) {
            let query = Query::new(statement).rows(chunk, |query, run| {
                let name = clean_name(&run.executor);
                query.int(run.run.get()).int(run.executor_id.get()).text(&name).at(run.at)
            });
            self.execute_all(query, chunk.len()).await?;
        }
        Ok(())
    }
}

/// Adds the columns of a waiting run, which depend on its place.
fn add_wait(query: Query, wait: &NotedWait) -> Query {
    let query = query.int(wait.run.get());
    let query = match &wait.place {
        WaitPlace::Server => query,
        WaitPlace::Executor(run_at_executor) => {
            let run_at_executor = run_at_executor.as_ref();
            let name = run_at_executor.map(|run_at_executor| clean_name(&run_at_executor.executor));
            query
                .opt_int(run_at_executor.map(|run_at_executor| run_at_executor.executor_id.get()))
                .opt_text(name.as_deref())
                .opt_at(run_at_executor.map(|run_at_executor| run_at_executor.at))
        }
    };
    query.opt_text(wait.detail.to_json().as_deref())
}
