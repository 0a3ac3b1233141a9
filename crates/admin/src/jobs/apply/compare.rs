//! Compares a list of definitions with the existing jobs. Existing jobs are read in batches, since a list can be long and definitions can
//! be large: only the list itself and the results that the caller keeps are in memory as a whole.

use crate::jobs::apply::graph;
use crate::jobs::{self, checks};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use rondel_core::ahead::{self, FireChanges, fire_changes};
use rondel_core::declared::parents_first;
use rondel_core::diff::changes;
use rondel_core::spec::Mode;
use rondel_core::{FieldError, JobId, JobSpec, NamespaceId, Timestamp};
use rondel_store::StoreError;
use rondel_store::catalog::{JobQuery, JobRecord, ListedJob};

use super::{Action, ApplyError, ApplyRequest, PlannedEdit, PlannedJob, duplicate_name_errors, list_index, with_index};
use crate::definitions::{CompiledDefinitions, DefinitionKey};
use crate::fires;
use crate::jobs::checks::{FoundCalendar, FoundCalendars};
use crate::jobs::scripts::{self, FoundScripts};
use crate::jobs::{JobError, JobWarning};
use crate::node::Node;

/// How far ahead fires are compared.
const COMPARED_AHEAD: std::time::Duration = std::time::Duration::from_secs(7 * 86_400);
/// Maximum number of fires that one comparison reads, over all jobs of a list.
const FIRE_COUNT_MAX: u32 = 200_000;
/// Number of jobs that are read and compared in one batch.
const BATCH: usize = 200;
/// Number of jobs of an app that one statement reads.
const PAGE: u32 = 200;

/// The calendars that the definitions of a list use; `None` for a calendar that does not exist.
type Calendars = HashMap<String, Option<FoundCalendar>>;

/// The error for a job whose present definition this server cannot read.
const UNREADABLE: &str =
    "this server cannot read the present definition of the job, which a newer server saved; upgrade this server";

/// A comparison in progress.
struct Comparison {
    node: Node,
    namespace: NamespaceId,
    now: Timestamp,
    calendars: Arc<Calendars>,
    /// The names of the channels of the namespace; empty if no definition in the list uses any.
    channels: Arc<BTreeSet<String>>,
    /// The scripts that the definitions in the list use.
    scripts: Arc<FoundScripts>,
    /// The ids of the jobs in the list that exist.
    ids: HashMap<String, JobId>,
    errors: Vec<FieldError>,
    /// How many more fires the comparison may read.
    fires_left: u32,
}

/// The existing jobs with which a batch is compared.
struct ExistingJobs {
    now: Timestamp,
    records_by_name: HashMap<String, JobRecord>,
    definitions: CompiledDefinitions,
}

struct BatchPlan {
    jobs: Vec<(PlannedJob, PlannedEdit)>,
    errors: Vec<FieldError>,
    /// How many more fires the comparison may read after this batch.
    fires_left: u32,
}

/// Compares a list with the existing jobs. `report` gets the jobs in the order of the list, then the jobs to be removed. If an error is
/// returned, the reported jobs must be discarded. Returns the names of the jobs in the list, parents first.
pub(super) async fn compare(
    node: &Node,
    mut request: ApplyRequest,
    mut report: impl FnMut(PlannedJob, PlannedEdit) + Send,
) -> Result<Vec<String>, ApplyError> {
    let namespace = request.namespace;
    let graph_specs = graph_specs(&mut request.specs);
    let mut comparison = Comparison {
        node: node.clone(),
        namespace,
        now: node.now(),
        calendars: Arc::new(calendars_named(node, namespace, &graph_specs).await?),
        channels: Arc::new(checks::channels_named(node, namespace, &graph_specs).await?),
        scripts: Arc::new(scripts::find_named(node, namespace, &request.specs).await?),
        ids: HashMap::new(),
        errors: Vec::new(),
        fires_left: FIRE_COUNT_MAX,
    };
    let mut specs = request.specs.into_iter().enumerate();
    loop {
        let batch: Vec<(usize, JobSpec)> = specs.by_ref().take(BATCH).collect();
        if batch.is_empty() {
            break;
        }
        for (job, edit) in comparison.plan_batch(batch).await? {
            report(job, edit);
        }
    }
    let mut removed_jobs = BTreeSet::new();
    if let Some(app) = request.prune {
        let names: BTreeSet<&str> = graph_specs.iter().map(|spec| spec.name.as_str()).collect();
        let mut query = JobQuery { app: Some(app), limit: PAGE, ..JobQuery::default() };
        while let Some(page) = unlisted_jobs(node, namespace, &mut query, &names).await? {
            removed_jobs.extend(page.iter().map(|record| record.id));
            for (job, edit) in comparison.plan_removals(page).await? {
                report(job, edit);
            }
        }
    }
    comparison.finish(graph_specs, removed_jobs).await
}

async fn calendars_named(node: &Node, namespace: NamespaceId, specs: &[JobSpec]) -> Result<Calendars, StoreError> {
    let applied_names = specs.iter().filter_map(|spec| spec.calendar.as_ref()).map(|used| used.name.as_str());
    let names: BTreeSet<&str> = applied_names.chain(specs.iter().filter_map(checks::expected_calendar)).collect();
    let mut calendars = HashMap::new();
    for name in names {
        calendars.insert(name.to_owned(), checks::find_calendar(node, namespace, name).await?);
    }
    Ok(calendars)
}

/// The next page of jobs of an app that are not in the list and that no code declares; `None` at the end. A job that this server cannot read is
/// left out, and so is not removed.
async fn unlisted_jobs(
    node: &Node,
    namespace: NamespaceId,
    query: &mut JobQuery,
    names: &BTreeSet<&str>,
) -> Result<Option<Vec<JobRecord>>, StoreError> {
    let page = node.store().listed_jobs(namespace, query).await?;
    let Some(last_job) = page.last() else { return Ok(None) };
    query.after_name = Some(last_job.name().to_owned());
    let mut page: Vec<JobRecord> = page.into_iter().filter_map(ListedJob::into_record).collect();
    let is_declared = |job: &JobRecord| job.declared.as_ref().is_some_and(|declared| declared.undeclared_at.is_none());
    page.retain(|job| !names.contains(job.spec.name.as_str()) && !is_declared(job));
    Ok(Some(page))
}

fn plan_job(
    node: &Node,
    (namespace, index): (NamespaceId, usize),
    mut spec: JobSpec,
    references: (FoundCalendars, &BTreeSet<String>, &FoundScripts),
    (record, now): (Option<JobRecord>, Timestamp),
) -> Result<(PlannedJob, PlannedEdit), JobError> {
    let (version, app) = (record.as_ref().map(|record| record.version), record.as_ref().map(|record| record.app));
    let name = spec.name.clone();
    let planned_job = |action, changes, warnings| PlannedJob {
        index: Some(index),
        name,
        action,
        version,
        app,
        changes,
        fires: None,
        warnings,
    };
    let Some(mut record) = record else {
        spec.replace_past_instants(checks::instant_after(now), None);
        let definition = checks::check_with(node, namespace, spec, now, None, references)?;
        let warnings = jobs::warnings(node, namespace, &definition.spec, jobs::first_fire(&definition.job, now, now));
        return Ok((planned_job(Action::Create, Vec::new(), warnings), PlannedEdit::Create(Box::new(definition))));
    };
    jobs::keep_run_instants(node, &mut spec, &record.spec);
    spec.keep_mode_from(&record.spec);
    if spec == record.spec {
        return Ok((planned_job(Action::Keep, Vec::new(), Vec::new()), PlannedEdit::Keep));
    }
    spec.replace_past_instants(checks::instant_after(now), Some(&record.spec));
    let definition = checks::check_with(node, namespace, spec, now, Some(&record.spec), references)?;
    let [old_document, new_document] =
        [&record.spec, &definition.spec].map(|spec| serde_json::to_value(spec.document()).unwrap_or_default());
    let mut warnings = jobs::warnings(node, namespace, &definition.spec, jobs::first_fire(&definition.job, now, now));
    if record.spec.mode == Mode::Shadow && definition.spec.mode == Mode::Active {
        warnings.push(JobWarning::LeavesShadow);
    }
    if record.spec.app != definition.spec.app {
        warnings.push(JobWarning::MovesApp { from: record.spec.app.clone(), to: definition.spec.app.clone() });
    }
    let job = planned_job(Action::Change, changes(&old_document, &new_document), warnings);
    record.spec.params = serde_json::Value::Null;
    Ok((job, PlannedEdit::Change(Box::new((record, definition)))))
}

impl Comparison {
    /// Reads the jobs with the names of a batch, and plans the batch. Returns no jobs once there is an error.
    async fn plan_batch(&mut self, batch: Vec<(usize, JobSpec)>) -> Result<Vec<(PlannedJob, PlannedEdit)>, StoreError> {
        // Text that cannot be a name is not looked up, so that unchecked text of a caller never reaches the database.
        let names: BTreeSet<&str> = batch.iter().map(|(_, spec)| spec.name.as_str()).collect();
        let names: Vec<&str> = names.into_iter().filter(|name| rondel_core::name::check(name).is_ok()).collect();
        let jobs = self.node.store().listed_jobs_named(self.namespace, &names).await?;
        let (records, unreadable_jobs) = ListedJob::split(jobs);
        for job in unreadable_jobs {
            let index = batch.iter().find(|(_, spec)| spec.name == job.name).map_or(0, |(index, _)| *index);
            self.errors.push(FieldError::new(format!("/{index}/name"), UNREADABLE));
        }
        let records_by_name: HashMap<String, JobRecord> =
            records.into_iter().map(|record| (record.spec.name.clone(), record)).collect();
        self.ids.extend(records_by_name.iter().map(|(name, record)| (name.clone(), record.id)));
        let changed_records =
            batch.iter().filter_map(|(_, spec)| records_by_name.get(&spec.name).filter(|record| record.spec != *spec));
        let keys: Vec<DefinitionKey> = changed_records.map(|record| (record.id, record.version)).collect();
        let definitions = self.node.definitions_once(keys).await?;
        let existing_jobs = ExistingJobs { now: self.now, records_by_name, definitions };
        let (node, calendars) = (self.node.clone(), Arc::clone(&self.calendars));
        let (channels, scripts) = (Arc::clone(&self.channels), Arc::clone(&self.scripts));
        let (namespace, fires_left, is_refused) = (self.namespace, self.fires_left, !self.errors.is_empty());
        let compute_plan = move || {
            plan(&node, (namespace, batch), (existing_jobs, &calendars, &channels, &scripts), (fires_left, is_refused))
        };
        let BatchPlan { jobs, errors, fires_left } = fires::compute(compute_plan).await?;
        self.errors.extend(errors);
        self.fires_left = fires_left;
        Ok(if self.errors.is_empty() { jobs } else { Vec::new() })
    }

    async fn plan_removals(&mut self, records: Vec<JobRecord>) -> Result<Vec<(PlannedJob, PlannedEdit)>, StoreError> {
        let definitions =
            self.node.definitions_once(records.iter().map(|record| (record.id, record.version)).collect()).await?;
        let existing_jobs = ExistingJobs { now: self.now, records_by_name: HashMap::new(), definitions };
        let mut fires_left = self.fires_left;
        let compute_plan = move || {
            let removals = records.into_iter().map(plan_removal);
            let removals_with_fires = removals.map(|(job, edit)| {
                let fires = existing_jobs.fires(&edit, &mut fires_left);
                (PlannedJob { fires, ..job }, edit)
            });
            (removals_with_fires.collect(), fires_left)
        };
        let (jobs, fires_left) = fires::compute(compute_plan).await;
        self.fires_left = fires_left;
        Ok(jobs)
    }

    /// Returns all errors, or the names with parents first. The graph of a long list is checked on a separate thread.
    async fn finish(self, graph_specs: Vec<JobSpec>, removed: BTreeSet<JobId>) -> Result<Vec<String>, ApplyError> {
        let Self { node, namespace, ids, errors, .. } = self;
        let neighbours = graph::neighbours(&node, namespace, &graph_specs, (ids, removed)).await?;
        let check_graph = move || {
            let mut all_errors = duplicate_name_errors(&graph_specs);
            let ordered_specs = parents_first(graph_specs.clone());
            all_errors.extend(
                neighbours.map(|neighbours| neighbours.check(&graph_specs, &ordered_specs)).unwrap_or_default(),
            );
            all_errors.extend(errors);
            match all_errors.is_empty() {
                true => Ok(ordered_specs.into_iter().map(|spec| spec.name).collect()),
                false => {
                    all_errors.sort_by_key(|error| list_index(&error.pointer));
                    Err(ApplyError::Invalid(all_errors))
                }
            }
        };
        fires::compute(check_graph).await
    }
}

/// Plans a batch from the data that was read. It does not await anything.
fn plan(
    node: &Node,
    (namespace, batch): (NamespaceId, Vec<(usize, JobSpec)>),
    (existing_jobs, calendars, channels, scripts): (ExistingJobs, &Calendars, &BTreeSet<String>, &FoundScripts),
    (mut fires_left, is_refused): (u32, bool),
) -> Result<BatchPlan, StoreError> {
    let (mut jobs, mut errors) = (Vec::with_capacity(batch.len()), Vec::new());
    for (index, spec) in batch {
        let calendar = |name: &str| calendars.get(name).cloned().flatten();
        let named_calendars = FoundCalendars {
            applied_calendar: spec.calendar.as_ref().and_then(|used| calendar(&used.name)),
            expected_calendar: checks::expected_calendar(&spec).and_then(calendar),
        };
        // Cloned, since a name may be in the list twice.
        let record = existing_jobs.records_by_name.get(&spec.name).cloned();
        match plan_job(
            node,
            (namespace, index),
            spec,
            (named_calendars, channels, scripts),
            (record, existing_jobs.now),
        ) {
            Ok((mut job, edit)) => {
                if errors.is_empty() && !is_refused {
                    job.fires = existing_jobs.fires(&edit, &mut fires_left);
                    jobs.push((job, edit));
                }
            }
            Err(JobError::Store(error)) => return Err(error),
            Err(JobError::Invalid(found_errors)) => {
                errors.extend(found_errors.into_iter().map(|error| with_index(index, error)))
            }
            Err(other) => errors.push(FieldError::new(format!("/{index}"), other.to_string())),
        }
    }
    Ok(BatchPlan { jobs, errors, fires_left })
}

impl ExistingJobs {
    /// The changes that the edit makes to the fires of the next week; `None` if all fires were compared and none changes.
    fn fires(&self, edit: &PlannedEdit, fires_left: &mut u32) -> Option<FireChanges> {
        let anchored_definition = |record: &JobRecord| {
            let definition = self.definitions.get(&(record.id, record.version))?;
            Some((definition, record.anchor))
        };
        let (old_job, new_job) = match edit {
            PlannedEdit::Keep => return None,
            PlannedEdit::Create(checked) => (None, Some((&checked.job, self.now.ceil_second()))),
            PlannedEdit::Change(change) => (anchored_definition(&change.0), Some((&change.1.job, change.0.anchor))),
            PlannedEdit::Remove(record) => (anchored_definition(record), None),
        };
        let old_job = old_job.map(|(definition, anchor)| ahead::AnchoredJob { job: &definition.job, anchor });
        let new_job = new_job.map(|(job, anchor)| ahead::AnchoredJob { job, anchor });
        let fires = fire_changes(old_job, new_job, (self.now, self.now.saturating_add(COMPARED_AHEAD)), fires_left);
        (!fires.is_empty() || !fires.is_whole).then_some(fires)
    }
}

fn plan_removal(mut record: JobRecord) -> (PlannedJob, PlannedEdit) {
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
    record.spec.params = serde_json::Value::Null;
    (job, PlannedEdit::Remove(Box::new(record)))
}

/// Copies of the definitions without their large parts, which do not affect the graph of jobs.
fn graph_specs(specs: &mut [JobSpec]) -> Vec<JobSpec> {
    let without_large_parts = |spec: &mut JobSpec| {
        let (params, description) = (spec.params.take(), std::mem::take(&mut spec.description));
        let small_spec = spec.clone();
        (spec.params, spec.description) = (params, description);
        small_spec
    };
    specs.iter_mut().map(without_large_parts).collect()
}
