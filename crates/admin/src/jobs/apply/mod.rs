//! A list of definitions against what is there: which jobs it creates, changes, leaves and removes, and what that does
//! to the fires ahead. Everything is checked before anything is saved.

mod graph;
mod save;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rondel_core::ahead::{FireChanges, Planned, fire_changes};
use rondel_core::declared::parents_first;
use rondel_core::diff::{Change, changes};
use rondel_core::words::counted;
use rondel_core::{AppId, FieldError, JobSpec, NamespaceId, Timestamp};
use rondel_store::StoreError;
use rondel_store::catalog::{JobQuery, JobRecord};

pub use save::{SavedJob, Saving};

use graph::Neighbours;

use super::JobError;
use super::checks::{Checked, FoundCalendar};
use super::params::JobWarning;
use crate::definitions::Key;
use crate::fires;
use crate::node::Node;

/// For how long ahead fires are compared.
const AHEAD: std::time::Duration = std::time::Duration::from_secs(7 * 86_400);
/// How many fires of all the jobs of a list are looked at for it.
const STEPS_MAX: u32 = 200_000;
/// Jobs of an app that are read at once.
const PAGE: u32 = 500;

/// A list of definitions that is to be what is there.
#[derive(Clone, Debug)]
pub struct Application {
    /// Where.
    pub namespace: NamespaceId,
    /// The definitions.
    pub specs: Vec<JobSpec>,
    /// Jobs of this app that are not in the list are removed, unless code declares them.
    pub prune: Option<AppId>,
}

/// Why nothing of a list was saved.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Some definitions are wrong: pointers begin with the position in the list.
    #[error("{} in the list, the first is {}", counted(.0.len(), "error"), .0.first().map_or_else(String::new, ToString::to_string))]
    Invalid(Vec<FieldError>),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What becomes of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It comes into being.
    Create,
    /// It gets another definition.
    Change,
    /// It is as in the list.
    Keep,
    /// It is not in the list and goes.
    Remove,
}

/// What is planned for a job.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedJob {
    /// Its place in the list; none for one that is not in it.
    pub index: Option<usize>,
    /// Its name.
    pub name: String,
    /// What becomes of it.
    pub action: Action,
    /// The version that it has now.
    pub version: Option<i64>,
    /// The app that it belongs to now.
    pub app: Option<AppId>,
    /// What changes in its definition, field by field.
    pub changes: Vec<Change>,
    /// What that does to its fires of the next week; none where the schedule stays as it is.
    pub fires: Option<FireChanges>,
    /// What its author should know.
    pub warnings: Vec<JobWarning>,
}

/// A plan that can be carried out.
#[derive(Debug)]
pub struct ApplyPlan {
    namespace: NamespaceId,
    jobs: Vec<(PlannedJob, Work)>,
    /// Names in an order in which parents come before those that follow from them.
    order: Vec<String>,
}

/// What there is to do.
#[derive(Debug)]
enum Work {
    Create(Box<Checked>),
    Change(Box<(JobRecord, Checked)>),
    Keep,
    Remove(Box<JobRecord>),
}

/// What is there.
struct Present {
    now: Timestamp,
    named: BTreeMap<String, JobRecord>,
    removed: Vec<JobRecord>,
    compiled: HashMap<Key, std::sync::Arc<crate::definitions::Compiled>>,
}

/// What a list is compared with.
struct Facts {
    present: Present,
    neighbours: Option<Neighbours>,
    /// The calendars that the list names; `None` for one that does not exist.
    calendars: HashMap<String, Option<FoundCalendar>>,
}

impl ApplyPlan {
    /// The jobs, in the order of the list, and after them those that are removed.
    pub fn jobs(&self) -> impl ExactSizeIterator<Item = &PlannedJob> {
        self.jobs.iter().map(|(job, _)| job)
    }
}

impl Node {
    /// Compares a list of definitions with what is there. Nothing is saved.
    ///
    /// # Errors
    /// [`ApplyError::Invalid`] with everything that is wrong with the list; the store's.
    pub async fn plan_jobs(&self, wanted: Application) -> Result<ApplyPlan, ApplyError> {
        let present = self.present(&wanted).await?;
        let neighbours = self.neighbours(&wanted, &present).await?;
        let mut calendars = HashMap::new();
        for used in wanted.specs.iter().filter_map(|spec| spec.calendar.as_ref()) {
            if !calendars.contains_key(&used.name) {
                calendars.insert(used.name.clone(), self.calendar(wanted.namespace, &used.name).await?);
            }
        }
        let facts = Facts { present, neighbours, calendars };
        let engine = self.clone();
        fires::compute(move || engine.plan(wanted, facts)).await
    }

    /// The plan from what was read: nothing waits here, and a long list takes long.
    fn plan(&self, wanted: Application, facts: Facts) -> Result<ApplyPlan, ApplyError> {
        let Facts { present, neighbours, calendars } = facts;
        let namespace = wanted.namespace;
        let mut errors = doubles(&wanted.specs);
        let ordered = parents_first(wanted.specs.clone());
        errors.extend(neighbours.map(|found| found.check(&wanted.specs, &ordered)).unwrap_or_default());
        let order = ordered.into_iter().map(|spec| spec.name).collect();
        let mut jobs = Vec::with_capacity(wanted.specs.len() + present.removed.len());
        for (index, spec) in wanted.specs.into_iter().enumerate() {
            let calendar = spec.calendar.as_ref().and_then(|used| calendars.get(&used.name).cloned().flatten());
            match self.plan_job((namespace, index), spec, calendar, &present) {
                Ok(planned) => jobs.push(planned),
                Err(JobError::Store(error)) => return Err(error.into()),
                Err(JobError::Invalid(found)) => errors.extend(found.into_iter().map(|error| located(index, error))),
                Err(other) => errors.push(FieldError::new(format!("/{index}"), other.to_string())),
            }
        }
        if !errors.is_empty() {
            errors.sort_by_key(|error| position(&error.pointer));
            return Err(ApplyError::Invalid(errors));
        }
        jobs.extend(present.removed.iter().map(removal));
        let mut steps = STEPS_MAX;
        for (job, work) in &mut jobs {
            job.fires = present.fires(work, &mut steps);
        }
        Ok(ApplyPlan { namespace, jobs, order })
    }

    async fn present(&self, wanted: &Application) -> Result<Present, StoreError> {
        let names: BTreeSet<&str> = wanted.specs.iter().map(|spec| spec.name.as_str()).collect();
        // What cannot be a name is not looked up: no text of the caller's reaches the database unchecked.
        let lookups: Vec<&str> = names.iter().copied().filter(|name| rondel_core::name::check(name).is_ok()).collect();
        let records = self.store().jobs_named(wanted.namespace, &lookups).await?;
        let removed = match wanted.prune {
            Some(app) => self.unlisted(wanted.namespace, app, &names).await?,
            None => Vec::new(),
        };
        let keys: Vec<Key> = records.iter().chain(&removed).map(|record| (record.id, record.version)).collect();
        let compiled = self.definitions(keys).await?;
        let named = records.into_iter().map(|record| (record.spec.name.clone(), record)).collect();
        Ok(Present { now: self.now(), named, removed, compiled })
    }

    /// The jobs of an app that no list names and no code declares.
    async fn unlisted(
        &self,
        namespace: NamespaceId,
        app: AppId,
        names: &BTreeSet<&str>,
    ) -> Result<Vec<JobRecord>, StoreError> {
        let mut found = Vec::new();
        let mut query = JobQuery { app: Some(app), limit: PAGE, ..JobQuery::default() };
        loop {
            let page = self.store().jobs(namespace, &query).await?;
            let Some(last) = page.last() else { return Ok(found) };
            query.after_name = Some(last.spec.name.clone());
            let is_declared = |job: &JobRecord| job.declared.as_ref().is_some_and(|it| it.undeclared_at.is_none());
            found.extend(page.into_iter().filter(|job| !names.contains(job.spec.name.as_str()) && !is_declared(job)));
        }
    }

    fn plan_job(
        &self,
        (namespace, index): (NamespaceId, usize),
        mut spec: JobSpec,
        calendar: Option<FoundCalendar>,
        present: &Present,
    ) -> Result<(PlannedJob, Work), JobError> {
        let record = present.named.get(&spec.name);
        let name = spec.name.clone();
        let planned = |action, changes, warnings| PlannedJob {
            index: Some(index),
            name,
            action,
            version: record.map(|record| record.version),
            app: record.map(|record| record.app),
            changes,
            fires: None,
            warnings,
        };
        let Some(record) = record else {
            let checked = self.check_with(namespace, spec, present.now, None, calendar)?;
            let warnings = self.warnings(namespace, &checked.spec);
            return Ok((planned(Action::Create, Vec::new(), warnings), Work::Create(Box::new(checked))));
        };
        spec.keep_run_instants(&record.spec, present.now);
        if spec == record.spec {
            return Ok((planned(Action::Keep, Vec::new(), Vec::new()), Work::Keep));
        }
        let checked = self.check_with(namespace, spec, present.now, Some(&record.spec), calendar)?;
        let [before, after] =
            [&record.spec, &checked.spec].map(|spec| serde_json::to_value(spec.document()).unwrap_or_default());
        let warnings = self.warnings(namespace, &checked.spec);
        let job = planned(Action::Change, changes(&before, &after), warnings);
        Ok((job, Work::Change(Box::new((record.clone(), checked)))))
    }
}

impl Present {
    /// What a piece of work does to the fires of the next week.
    fn fires(&self, work: &Work, steps: &mut u32) -> Option<FireChanges> {
        let before = |record: &JobRecord| {
            let compiled = self.compiled.get(&(record.id, record.version))?;
            Some((compiled, record.anchor))
        };
        let (old, new) = match work {
            Work::Keep => return None,
            Work::Create(checked) => (None, Some((&checked.job, self.now.ceil_second()))),
            Work::Change(both) => (before(&both.0), Some((&both.1.job, both.0.anchor))),
            Work::Remove(record) => (before(record), None),
        };
        let old = old.map(|(compiled, anchor)| Planned { job: &compiled.job, anchor });
        let new = new.map(|(job, anchor)| Planned { job, anchor });
        let fires = fire_changes(old, new, (self.now, self.now.saturating_add(AHEAD)), steps);
        (!fires.is_empty() || !fires.is_whole).then_some(fires)
    }
}

fn removal(record: &JobRecord) -> (PlannedJob, Work) {
    let job = PlannedJob {
        index: None,
        name: record.spec.name.clone(),
        action: Action::Remove,
        version: Some(record.version),
        app: Some(record.app),
        changes: Vec::new(),
        fires: None,
        warnings: Vec::new(),
    };
    (job, Work::Remove(Box::new(record.clone())))
}

/// Names that are in the list twice.
fn doubles(specs: &[JobSpec]) -> Vec<FieldError> {
    let mut first: HashMap<&str, usize> = HashMap::new();
    let mut errors = Vec::new();
    for (index, spec) in specs.iter().enumerate() {
        match first.get(spec.name.as_str()) {
            Some(before) => {
                let message = format!("{:?} is the name of /{before} too", spec.name);
                errors.push(FieldError::new(format!("/{index}/name"), message));
            }
            None => drop(first.insert(&spec.name, index)),
        }
    }
    errors
}

fn located(index: usize, error: FieldError) -> FieldError {
    FieldError { pointer: format!("/{index}{}", error.pointer), ..error }
}

/// The place in the list that a pointer begins with.
fn position(pointer: &str) -> usize {
    let first = pointer.split('/').nth(1).and_then(|index| index.parse().ok());
    first.unwrap_or(usize::MAX)
}
