//! Edits of a job: its definition and its unsent rows change in one transaction.

use async_trait::async_trait;
use rondel_core::edit::{EditContext, EditPlan, FutureRow, look_back_period, plan_edit};
use rondel_core::maintenance::SKIPPED_AHEAD_MAX;
use rondel_core::plan::{join_all_spans, spans_without_rows};
use rondel_core::run::ROOT_SHARD;
use rondel_core::{Job, JobId, Reason, Run, RunId, RunStatus, Timestamp};

use crate::catalog::{JobChange, JobDeleted, JobDeletion, JobRecord, JobSaved};
use crate::mem::{MemStore, State, StoredNode, StoredVersion, key};
use crate::parents;
use crate::settle::{NO_NODE, clean_name, shard_of, skipped_row};
use crate::{ChangeJobs, Result};

#[async_trait]
impl ChangeJobs for MemStore {
    async fn change_job(&self, change: JobChange<'_>) -> Result<JobSaved> {
        let read_at = self.now().max(change.reached);
        let mut state = self.state();
        let Some(record) = state.living_job(change.id) else { return Ok(JobSaved::NotFound) };
        if change.expected_version.is_some_and(|version| version != record.version) {
            return Ok(JobSaved::Conflict(record.version));
        }
        if state.job(record.namespace, &change.spec.name).is_some_and(|other| other.id != change.id) {
            return Ok(JobSaved::NameTaken);
        }
        let children = state.child_names(change.id);
        if change.spec.name != record.spec.name && !children.is_empty() {
            return Ok(JobSaved::IsParent(children));
        }
        let mut new_edges = None;
        if !parents::have_same_parents(change.spec, &record.spec) {
            match state.check_parents(change.id, record.namespace, change.spec) {
                Ok(edges) => new_edges = Some(edges),
                Err(errors) => return Ok(JobSaved::BadParents(errors)),
            }
        }
        if !state.has_calendar(change.calendar) {
            return Ok(JobSaved::NoCalendar);
        }
        if let Some(channel) = state.missing_channel(record.namespace, change.spec, Some(&record.spec)) {
            return Ok(JobSaved::NoChannel(channel));
        }
        if let Some(script) = state.missing_script(record.namespace, change.spec, Some(&record.spec)) {
            return Ok(JobSaved::NoScript(script));
        }
        if let Some(edges) = new_edges {
            state.write_parents(change.id, edges);
        }
        Ok(state.apply_change(&record, &change, read_at))
    }

    async fn delete_job(&self, deletion: JobDeletion<'_>) -> Result<JobDeleted> {
        let JobDeletion { id, expected_version, before, skipped_row_id, now, reached, detaches_followers, drops } =
            deletion;
        let read_at = self.now().max(reached);
        let mut state = self.state();
        let Some(record) = state.living_job(id) else { return Ok(JobDeleted::NotFound) };
        if expected_version.is_some_and(|version| version != record.version) {
            return Ok(JobDeleted::Conflict(record.version));
        }
        let children = state.child_names(id);
        if !children.is_empty() && !detaches_followers {
            return Ok(JobDeleted::IsParent(children));
        }
        state.detach_followers(id);
        state.write_parents(id, Vec::new());
        let plan = state.plan(&record, (None, before), (now, now, read_at));
        state.skip_rows(&plan.skipped_rows, plan.reason, now);
        state.write_skipped_row(skipped_row(&record, before, &plan, skipped_row_id, now));
        if let Some(drops) = drops {
            state.drop_queued(id, Reason::Deleted, drops);
        }
        state.due.remove(&id);
        state.pump_items.remove(&id);
        state.alert_rows.write_expect_checks((record.namespace, id), (Some(&record.spec), None), now);
        if let Some(stored_job) = state.jobs.get_mut(&id) {
            stored_job.is_deleted = true;
            stored_job.record.updated_at = now;
        }
        Ok(JobDeleted::Done)
    }
}

impl State {
    /// Plans an edit. `after` is the definition after the edit, `before` the definition that it replaces. `now` is the caller's current
    /// time, `checked_at` the instant at which the new definition was validated, and `read_at` the store's current time.
    pub(in crate::mem) fn plan(
        &self,
        record: &JobRecord,
        (after, before): (Option<&Job>, Option<&Job>),
        (now, checked_at, read_at): (Timestamp, Timestamp, Timestamp),
    ) -> EditPlan {
        let from = now - look_back_period(before, after);
        let awaited_run = self.due.get(&record.id).and_then(|due| due.awaited_run).filter(|run| self.is_open(*run));
        let rows = self.future_rows(record.id, from, now);
        let mut plan = plan_edit(
            after,
            EditContext {
                job: record.id,
                anchor: record.anchor,
                now,
                checked_at,
                read_at,
                rows: &rows,
                before,
                next_fire_at: record.next_fire_at,
                awaited_run,
            },
        );
        if let Some((span, job)) = plan.skipped_span.zip(before) {
            let range = (span.first - SKIPPED_AHEAD_MAX, span.last);
            let stored = self.fires_with_rows(record.id, range);
            plan.skipped_span = join_all_spans(spans_without_rows(job, record.anchor, span, &stored));
        }
        plan
    }

    /// Whether this run exists and has no verdict.
    pub(in crate::mem) fn is_open(&self, run: RunId) -> bool {
        self.runs.get(&run).is_some_and(|run| !run.status.is_terminal())
    }

    /// The rows that an edit concerns. Rows that are marked or have a later attempt are left out, because they may have been sent.
    fn future_rows(&self, job: JobId, from: Timestamp, now: Timestamp) -> Vec<FutureRow> {
        let is_unsent = |run: &&Run| match run.status {
            RunStatus::Pending | RunStatus::Waiting => run.marked_at.is_none(),
            RunStatus::Skipped => matches!(run.reason, Some(Reason::Changed | Reason::Paused)),
            _ => false,
        };
        let is_ahead = |run: &&Run| run.fire_at > from && (run.fire_at > now || run.due_at > now);
        let is_own = |run: &&Run| {
            let is_not_shard = run.shard_index == 0 || run.shard_index == ROOT_SHARD;
            run.job == job && run.cause == 0 && run.parent.is_none() && run.attempt == 1 && is_not_shard
        };
        let to_future_row = |run: &Run| FutureRow {
            id: run.id,
            fire_at: run.fire_at,
            due_at: run.due_at,
            status: run.status,
            is_span: run.node == NO_NODE,
        };
        self.runs.values().filter(is_own).filter(is_ahead).filter(is_unsent).map(to_future_row).collect()
    }

    pub(in crate::mem) fn skip_rows(&mut self, runs: &[RunId], reason: Reason, now: Timestamp) {
        for id in runs {
            self.cancels.remove(id);
            if let Some(run) = self.runs.get_mut(id) {
                (run.status, run.reason, run.finished_at) = (RunStatus::Skipped, Some(reason), Some(now));
            }
        }
    }

    /// Writes the row that records the past fires that an edit skips.
    fn write_skipped_row(&mut self, row: Option<Run>) {
        let Some(row) = row.filter(|row| !self.keys.contains_key(&key(row))) else { return };
        self.keys.insert(key(&row), row.id);
        self.runs.insert(row.id, row);
    }

    pub(in crate::mem) fn apply_change(
        &mut self,
        record: &JobRecord,
        change: &JobChange<'_>,
        read_at: Timestamp,
    ) -> JobSaved {
        let job: &Job = change.job;
        let version = record.version + 1;
        if job.pump.is_some() {
            self.pumps.insert(record.id);
        }
        let plan = self.plan(record, (Some(job), Some(change.before)), (change.now, change.checked_at, read_at));
        self.skip_rows(&plan.skipped_rows, plan.reason, change.now);
        self.write_skipped_row(skipped_row(record, Some(change.before), &plan, change.skipped_row_id, change.now));
        for id in plan.skipped_rows.iter().chain(plan.skipped_span.map(|_| &change.skipped_row_id)) {
            self.add_alert_event(*id);
        }
        for row in plan.kept_rows.iter().chain(&plan.reopened_rows) {
            let Some(run) = self.runs.get_mut(&row.id) else { continue };
            self.keys.remove(&key(run));
            (run.job_version, run.app, run.due_at) = (version, change.app, row.due_at);
            (run.shard_index, run.shard_total) = shard_of(job);
            self.keys.insert(key(run), row.id);
        }
        let reopened_runs = self.reopen_rows(change.id, &plan);
        let specs = (Some(&record.spec), Some(change.spec));
        self.alert_rows.write_expect_checks((record.namespace, change.id), specs, change.now);
        if let Some(due) = self.due.get_mut(&change.id) {
            (due.next_fire_at, due.version) = (plan.next_fire_at, version);
            (due.is_over, due.awaited_run) = (plan.next_fire_at.is_none(), plan.awaited_run);
            due.held_from = None;
            due.delay = job.timetable.delay().filter(|_| job.enabled);
        }
        if let Some(drops) = change.drops.filter(|_| record.spec.enabled && !change.spec.enabled) {
            self.drop_queued(change.id, Reason::Paused, drops);
        }
        let saved_job = JobRecord {
            app: change.app,
            version,
            spec: change.spec.clone(),
            calendar: change.calendar,
            next_fire_at: plan.next_fire_at,
            updated_at: change.now,
            ..record.clone()
        };
        if let Some(stored_job) = self.jobs.get_mut(&change.id) {
            stored_job.record = saved_job.clone();
            let stored_version = StoredVersion {
                app: change.app,
                spec: change.spec.clone(),
                calendar: change.calendar,
                author: clean_name(change.author).into_owned(),
                created_at: change.now,
            };
            stored_job.versions.insert(version, stored_version);
        }
        JobSaved::Saved(Box::new(saved_job), reopened_runs)
    }

    /// Reopens settled rows, and makes the job's home their owner.
    fn reopen_rows(&mut self, job: JobId, plan: &EditPlan) -> Vec<Run> {
        let home = self.due.get(&job).and_then(|due| self.nodes.get(&due.home)).map(StoredNode::lease_of_home);
        let mut reopened_runs = Vec::new();
        for row in &plan.reopened_rows {
            let Some(run) = self.runs.get_mut(&row.id) else { continue };
            (run.status, run.reason, run.finished_at) = (RunStatus::Pending, None, None);
            (run.cancel_by, run.cancel_reason) = (None, None);
            self.alert_rows.events.remove(&row.id);
            if let Some(home) = home {
                (run.node, run.node_epoch) = (home.node, home.epoch);
            }
            reopened_runs.push(run.clone());
        }
        reopened_runs.sort_by_key(|run| (run.due_at, run.id));
        reopened_runs
    }
}
