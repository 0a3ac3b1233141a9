//! Carries out a plan: one transaction creates many new jobs, while each change or removal has its own transaction. If another caller
//! changed a job after the plan was made, only that job fails, and the failure is reported.

use std::collections::{HashMap, VecDeque};

use futures_util::future::join_all;
use rondel_core::{AppId, FieldError, NamespaceId};
use rondel_store::StoreError;
use rondel_store::catalog::{JobCreated, JobRecord, NewJob};

use super::{ApplyPlan, PlannedEdit, PlannedJob};
use crate::jobs::checks::CheckedDefinition;
use crate::jobs::{self, JobError, missing_calendar_error};
use crate::node::Node;
use rondel_core::error_chain::chain;

/// Maximum number of new jobs that one call of [`Saving::next`] saves.
const CHUNK_LEN: usize = 512;
/// Number of edits saved concurrently. Databases flush the commits of concurrent transactions to disk together.
const CONCURRENT_EDIT_COUNT: usize = 8;

/// Result for a planned job.
#[derive(Debug)]
pub struct SavedJob {
    /// The plan for the job.
    pub planned: PlannedJob,
    /// The job as it is stored now; `None` if it was removed or kept.
    pub result: Result<Option<JobRecord>, JobError>,
}

/// A plan being carried out. It advances only while [`next`](Self::next) is called.
#[derive(Debug)]
pub struct Saving {
    node: Node,
    namespace: NamespaceId,
    author: String,
    apps: HashMap<String, AppId>,
    /// Jobs that stay as they are.
    kept_jobs: Vec<PlannedJob>,
    /// Jobs to create, parents first.
    new_jobs: VecDeque<(PlannedJob, CheckedDefinition)>,
    /// Jobs to change, parents first, and then jobs to remove, parents last.
    other_edits: VecDeque<(PlannedJob, PlannedEdit)>,
    /// Whether the store has failed. If so, no more jobs are saved.
    is_broken: bool,
}

impl ApplyPlan {
    /// Carries out the plan as `author`.
    #[must_use]
    pub fn save(self, node: Node, author: &str) -> Saving {
        let rank_by_name: HashMap<&str, usize> =
            self.order.iter().enumerate().map(|(rank, name)| (name.as_str(), rank)).collect();
        let rank_of = |job: &PlannedJob| rank_by_name.get(job.name.as_str()).copied().unwrap_or(usize::MAX);
        let mut jobs: Vec<(usize, PlannedJob, PlannedEdit)> =
            self.jobs.into_iter().map(|(job, edit)| (rank_of(&job), job, edit)).collect();
        jobs.sort_by_key(|(rank, ..)| *rank);
        let (mut kept_jobs, mut new_jobs, mut other_edits, mut removals) =
            (Vec::new(), VecDeque::new(), VecDeque::new(), Vec::new());
        for (_, job, edit) in jobs {
            match edit {
                PlannedEdit::Keep => kept_jobs.push(job),
                PlannedEdit::Create(checked) => new_jobs.push_back((job, *checked)),
                PlannedEdit::Change(_) => other_edits.push_back((job, edit)),
                PlannedEdit::Remove(record) => removals.push((job, record)),
            }
        }
        let order =
            rondel_core::declared::parents_first(removals.iter().map(|(_, record)| record.spec.clone()).collect());
        let rank_by_name: HashMap<String, usize> =
            order.into_iter().enumerate().map(|(rank, spec)| (spec.name, rank)).collect();
        // Jobs are removed before their parents.
        removals.sort_by_key(|(job, _)| std::cmp::Reverse(rank_by_name.get(&job.name).copied()));
        other_edits.extend(removals.into_iter().map(|(job, record)| (job, PlannedEdit::Remove(record))));
        Saving {
            node,
            namespace: self.namespace,
            author: author.to_owned(),
            apps: HashMap::new(),
            kept_jobs,
            new_jobs,
            other_edits,
            is_broken: false,
        }
    }
}

impl Saving {
    /// Saves the next jobs; `None` at the end.
    pub async fn next(&mut self) -> Option<Vec<SavedJob>> {
        if !self.kept_jobs.is_empty() {
            let kept_jobs = std::mem::take(&mut self.kept_jobs);
            return Some(kept_jobs.into_iter().map(|planned| SavedJob { planned, result: Ok(None) }).collect());
        }
        if !self.new_jobs.is_empty() {
            let count = self.new_jobs.len().min(CHUNK_LEN);
            let chunk: Vec<_> = self.new_jobs.drain(..count).collect();
            return Some(self.create(chunk).await);
        }
        let batch = self.next_batch();
        if batch.is_empty() {
            return None;
        }
        if self.is_broken {
            return Some(
                batch.into_iter().map(|(planned, _)| SavedJob { planned, result: Err(not_tried_error()) }).collect(),
            );
        }
        let (planned_jobs, edits): (Vec<PlannedJob>, Vec<PlannedEdit>) = batch.into_iter().unzip();
        let results = join_all(edits.into_iter().map(|edit| Box::pin(self.carry_out(edit)))).await;
        if let Some(error) = results.iter().find_map(|result| result.as_ref().err().and_then(store_error)) {
            log_store_error(error);
            self.is_broken = true;
        }
        Some(planned_jobs.into_iter().zip(results).map(|(planned, result)| SavedJob { planned, result }).collect())
    }

    /// The next edits that can be saved concurrently: changes of jobs without parents, otherwise a single edit.
    fn next_batch(&mut self) -> Vec<(PlannedJob, PlannedEdit)> {
        let mut batch = Vec::new();
        while let Some((_, edit)) = self.other_edits.front() {
            let stands_alone = !may_save_concurrently(edit);
            if batch.len() == CONCURRENT_EDIT_COUNT || (stands_alone && !batch.is_empty()) {
                break;
            }
            batch.extend(self.other_edits.pop_front());
            if stands_alone {
                break;
            }
        }
        batch
    }

    /// Saves one edit. Does not wait for the ends of queued runs: a list may pause or remove thousands of jobs.
    async fn carry_out(&self, edit: PlannedEdit) -> Result<Option<JobRecord>, JobError> {
        match edit {
            PlannedEdit::Change(change) => {
                let (record, definition) = *change;
                let choice_and_author = (None, self.author.as_str());
                let saved_record =
                    jobs::save(&self.node, &record, definition, Some(record.version), choice_and_author).await?;
                Ok(Some(jobs::catch_up_with_calendar(&self.node, saved_record).await))
            }
            PlannedEdit::Remove(record) => {
                let choice_and_author = (None, &*self.author);
                match jobs::delete_without_wait(&self.node, &record, Some(record.version), false, choice_and_author)
                    .await?
                {
                    true => Ok(None),
                    false => Err(JobError::NotFound),
                }
            }
            PlannedEdit::Create(_) | PlannedEdit::Keep => Ok(None),
        }
    }

    async fn create(&mut self, chunk: Vec<(PlannedJob, CheckedDefinition)>) -> Vec<SavedJob> {
        let (planned_jobs, definitions): (Vec<PlannedJob>, Vec<CheckedDefinition>) = chunk.into_iter().unzip();
        let answers = if self.is_broken { None } else { self.create_all(definitions).await };
        let Some(answers) = answers else {
            return planned_jobs
                .into_iter()
                .map(|planned| SavedJob { planned, result: Err(not_tried_error()) })
                .collect();
        };
        let mut saved_jobs = Vec::with_capacity(planned_jobs.len());
        for (planned_job, created) in planned_jobs.into_iter().zip(answers) {
            let result = match created {
                Ok(record) => Ok(Some(jobs::catch_up_with_calendar(&self.node, record).await)),
                Err(error) => Err(error),
            };
            saved_jobs.push(SavedJob { planned: planned_job, result });
        }
        saved_jobs
    }

    /// Creates the jobs of a chunk; `None` if the store fails.
    async fn create_all(&mut self, chunk: Vec<CheckedDefinition>) -> Option<Vec<Result<JobRecord, JobError>>> {
        let results = self.create_chunk(chunk).await;
        if let Err(error) = &results {
            log_store_error(error);
            self.is_broken = true;
        }
        results.ok()
    }

    async fn create_chunk(
        &mut self,
        chunk: Vec<CheckedDefinition>,
    ) -> Result<Vec<Result<JobRecord, JobError>>, StoreError> {
        let (mut definitions_with_apps, mut refused_jobs) = (Vec::with_capacity(chunk.len()), Vec::new());
        for (position, checked) in chunk.into_iter().enumerate() {
            match self.app_id(&checked).await {
                Ok(app) => definitions_with_apps.push((app, checked)),
                Err(JobError::Store(error)) => return Err(error),
                Err(error) => refused_jobs.push((position, error)),
            }
        }
        let now = self.node.now();
        let new_job = |(app, checked): (AppId, CheckedDefinition)| {
            jobs::new_job(&self.node, (self.namespace, app), checked.with_save_time(now, None), &self.author, now)
        };
        let jobs: Vec<NewJob> = definitions_with_apps.into_iter().map(new_job).collect();
        let created_jobs = self.node.store().create_jobs(&jobs).await?;
        self.node.poke_scan();
        let answer = |(job, created): (NewJob, JobCreated)| match created {
            JobCreated::Saved(record) => Ok(*record),
            JobCreated::NameTaken => Err(JobError::NameTaken),
            JobCreated::NoCalendar => Err(JobError::Invalid(vec![missing_calendar_error(&job.spec)])),
            JobCreated::NoChannel(name) => {
                Err(JobError::Invalid(vec![jobs::checks::deleted_channel_error(job.spec.expect.as_deref(), &name)]))
            }
            JobCreated::NoScript(script) => Err(JobError::Invalid(vec![jobs::scripts::deleted_script_error(&script)])),
            JobCreated::BadParents(errors) => Err(JobError::Invalid(errors)),
        };
        let mut answers: Vec<_> = jobs.into_iter().zip(created_jobs).map(answer).collect();
        for (position, error) in refused_jobs {
            answers.insert(position, Err(error));
        }
        Ok(answers)
    }

    async fn app_id(&mut self, definition: &CheckedDefinition) -> Result<AppId, JobError> {
        if let Some(app) = self.apps.get(&definition.spec.app) {
            return Ok(*app);
        }
        let app = jobs::app_of(&self.node, self.namespace, &definition.spec, definition.checked_at).await?;
        self.apps.insert(definition.spec.app.clone(), app);
        Ok(app)
    }
}

/// Whether an edit can be saved in any order, because it changes no edge of the graph of jobs.
fn may_save_concurrently(edit: &PlannedEdit) -> bool {
    match edit {
        PlannedEdit::Change(change) => change.0.spec.parents().is_empty() && change.1.spec.parents().is_empty(),
        PlannedEdit::Create(_) | PlannedEdit::Keep | PlannedEdit::Remove(_) => false,
    }
}

fn store_error(error: &JobError) -> Option<&StoreError> {
    match error {
        JobError::Store(error) => Some(error),
        _ => None,
    }
}

fn log_store_error(error: &StoreError) {
    tracing::warn!(error = %chain(error), "cannot continue to apply a list of jobs");
}

fn not_tried_error() -> JobError {
    JobError::Invalid(vec![FieldError::new("", "not saved: the database failed; apply the list again")])
}
