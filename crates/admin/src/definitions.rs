//! A cache of compiled definitions by job and version. A version's definition never changes, so no entry can be stale.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rondel_core::calendar::{Calendar, Rule};
use rondel_core::run::RunJob;
use rondel_core::{AppId, FieldError, Job, JobId, JobSpec, NamespaceId, Timestamp};
use rondel_store::catalog::Definition;
use rondel_store::{Store, StoreError};

use crate::metrics::{JobSeries, JobSeriesTable, LabelledCounts, LabelledRuns, NamespaceCounts, Namespaces};

/// Maximum number of entries of the young generation; the whole cache holds up to twice this number.
const YOUNG_COUNT_MAX: usize = 50_000;

/// A job and the version of its definition.
pub(crate) type DefinitionKey = (JobId, i64);

pub(crate) type CompiledDefinitions = HashMap<DefinitionKey, Arc<CompiledDefinition>>;

/// A definition, ready for the engine.
#[derive(Debug)]
pub(crate) struct CompiledDefinition {
    pub(crate) id: JobId,
    pub(crate) version: i64,
    pub(crate) namespace: NamespaceId,
    pub(crate) namespace_name: String,
    pub(crate) app: AppId,
    /// When this version was saved, by the clock of the server that received it.
    pub(crate) saved_at: Timestamp,
    /// The instant from which fixed rates count.
    pub(crate) anchor: Timestamp,
    pub(crate) job: Job,
    /// The counters of the job's namespace, which count the job's fires and runs.
    pub(crate) counts: Arc<NamespaceCounts>,
    /// The job's own series of metrics; `None` if it has none.
    pub(crate) job_series: Option<Arc<JobSeries>>,
    /// The counters of the job's runs by its label values; `None` if no label key is configured.
    pub(crate) labelled_counts: Option<Arc<LabelledCounts>>,
}

impl CompiledDefinition {
    /// The fields that all runs of this definition share.
    pub(crate) const fn run_job(&self) -> RunJob {
        RunJob { namespace: self.namespace, job: self.id, job_version: self.version, app: self.app }
    }
}

/// A bounded cache of two generations. An entry that is used moves to the young generation. When the young generation is full, it becomes the
/// old one, and the previous old generation is dropped.
#[derive(Debug, Default)]
pub(crate) struct Definitions {
    generations: Mutex<Generations>,
    calendars: Mutex<HashMap<String, Vec<Weak<Calendar>>>>,
    pub(crate) namespaces: Namespaces,
    pub(crate) job_series: JobSeriesTable,
    pub(crate) labelled_runs: LabelledRuns,
}

#[derive(Debug, Default)]
struct Generations {
    young: CompiledDefinitions,
    old: CompiledDefinitions,
}

impl Definitions {
    /// An empty cache; up to `series_count_max` jobs get their own series, and runs are counted by the labels with these keys.
    pub(crate) fn new(series_count_max: usize, label_keys: Vec<String>) -> Self {
        Self {
            job_series: JobSeriesTable::new(series_count_max),
            labelled_runs: LabelledRuns::new(label_keys),
            ..Self::default()
        }
    }

    /// The definitions with these keys. Definitions that do not exist or cannot be read are omitted.
    pub(crate) async fn load(
        &self,
        store: &dyn Store,
        keys: impl IntoIterator<Item = DefinitionKey>,
    ) -> Result<CompiledDefinitions, StoreError> {
        let (mut definitions, missing_keys) = self.cached_definitions(keys);
        let read_definitions = self.read(store, &missing_keys).await?;
        for (key, compiled) in &read_definitions {
            self.put(*key, Arc::clone(compiled));
        }
        definitions.extend(read_definitions);
        Ok(definitions)
    }

    /// Like [`load`](Self::load), but does not add definitions to the cache.
    pub(crate) async fn load_uncached(
        &self,
        store: &dyn Store,
        keys: impl IntoIterator<Item = DefinitionKey>,
    ) -> Result<CompiledDefinitions, StoreError> {
        let (mut definitions, missing_keys) = self.cached_definitions(keys);
        definitions.extend(self.read(store, &missing_keys).await?);
        Ok(definitions)
    }

    /// The cached definitions, and the keys of the others.
    fn cached_definitions(
        &self,
        keys: impl IntoIterator<Item = DefinitionKey>,
    ) -> (CompiledDefinitions, Vec<DefinitionKey>) {
        let (mut definitions, mut missing_keys) = (HashMap::new(), Vec::new());
        for key in keys {
            if definitions.contains_key(&key) {
                continue;
            }
            match self.get(key) {
                Some(compiled) => drop(definitions.insert(key, compiled)),
                None => missing_keys.push(key),
            }
        }
        missing_keys.sort_unstable();
        missing_keys.dedup();
        (definitions, missing_keys)
    }

    async fn read(
        &self,
        store: &dyn Store,
        missing_keys: &[DefinitionKey],
    ) -> Result<Vec<(DefinitionKey, Arc<CompiledDefinition>)>, StoreError> {
        let mut definitions = Vec::with_capacity(missing_keys.len());
        for chunk in missing_keys.chunks(500) {
            for definition in store.definitions(chunk).await? {
                if let Some(compiled) = self.compile(definition) {
                    definitions.push(((compiled.id, compiled.version), compiled));
                }
            }
        }
        Ok(definitions)
    }

    fn get(&self, key: DefinitionKey) -> Option<Arc<CompiledDefinition>> {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(compiled) = generations.young.get(&key) {
            return Some(Arc::clone(compiled));
        }
        let compiled = generations.old.remove(&key)?;
        generations.young.insert(key, Arc::clone(&compiled));
        Some(compiled)
    }

    fn put(&self, key: DefinitionKey, compiled: Arc<CompiledDefinition>) {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        if generations.young.len() >= YOUNG_COUNT_MAX {
            generations.old = std::mem::take(&mut generations.young);
        }
        generations.young.insert(key, compiled);
    }

    fn compile(&self, definition: Definition) -> Option<Arc<CompiledDefinition>> {
        match self.compile_job(&definition.spec, definition.calendar.as_ref()) {
            Ok(job) => {
                let namespace = (definition.namespace, definition.namespace_name.as_str());
                Some(Arc::new(CompiledDefinition {
                    id: definition.job,
                    version: definition.version,
                    counts: self.namespaces.of(namespace.0, namespace.1),
                    job_series: self.job_series.of(definition.job, namespace.1),
                    labelled_counts: self.labelled_runs.of(namespace.1, &job.app, &definition.spec.labels),
                    namespace: definition.namespace,
                    namespace_name: definition.namespace_name,
                    app: definition.app,
                    saved_at: definition.saved_at,
                    anchor: definition.anchor,
                    job,
                }))
            }
            Err(errors) => {
                // A newer server may have saved the definition. This server cannot run the job, and must not act as if it could.
                let error = errors.first().map(ToString::to_string).unwrap_or_default();
                tracing::error!(job = %definition.spec.name, job_id = %definition.job, error, "unreadable definition of job");
                None
            }
        }
    }

    /// Compiles a definition with the rule of its calendar; fails if the definition uses a calendar and the rule is missing.
    pub(crate) fn compile_job(&self, spec: &JobSpec, rule: Option<&Rule>) -> Result<Job, Vec<FieldError>> {
        let calendar = match (&spec.calendar, rule) {
            (None, _) => None,
            (Some(used), Some(rule)) => Some(self.intern_calendar(Calendar::of_rule(&used.name, rule)?)),
            // Without its calendar, the job would fire on days that the calendar excludes.
            (Some(used), None) => {
                let message = format!("the calendar {:?} did not come with the definition", used.name);
                return Err(vec![FieldError::new("/calendar", message)]);
            }
        };
        spec.compile_with(calendar)
    }

    /// Returns an equal calendar that other definitions use, or `calendar` itself if there is none. Definitions share calendars, since a
    /// calendar may list thousands of days.
    fn intern_calendar(&self, calendar: Calendar) -> Arc<Calendar> {
        let mut calendars = self.calendars.lock().unwrap_or_else(PoisonError::into_inner);
        if !calendars.contains_key(calendar.name()) {
            calendars.retain(|_, copies| copies.iter().any(|copy| copy.strong_count() > 0));
        }
        let same_named_calendars = calendars.entry(calendar.name().to_owned()).or_default();
        same_named_calendars.retain(|copy| copy.strong_count() > 0);
        if let Some(kept_calendar) =
            same_named_calendars.iter().filter_map(Weak::upgrade).find(|copy| **copy == calendar)
        {
            return kept_calendar;
        }
        let calendar = Arc::new(calendar);
        same_named_calendars.push(Arc::downgrade(&calendar));
        calendar
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn definition(id: i64, days: Option<&Value>) -> Definition {
        let spec = json!({
            "name": "j", "app": "a", "handler": "h", "schedule": {"cron": "0 0 9 * * ?"},
            "calendar": {"name": "holidays", "rule": "except"},
        });
        Definition {
            job: JobId::new(id),
            version: 1,
            namespace: NamespaceId::new(1),
            namespace_name: "default".to_owned(),
            app: AppId::new(1),
            spec: serde_json::from_value(spec).unwrap(),
            saved_at: Timestamp::EPOCH,
            anchor: Timestamp::EPOCH,
            calendar: days.map(|days| serde_json::from_value(json!({ "days": days })).unwrap()),
        }
    }

    #[test]
    fn a_job_is_planned_by_its_calendar() {
        let compiled = Definitions::default().compile(definition(1, Some(&json!(["2026-10-02"])))).unwrap();
        let after = "2026-10-01T10:00:00Z".parse().unwrap();
        let next = compiled.job.timetable.next_after(compiled.anchor, after).map(|fire| fire.at.to_string());
        assert_eq!(next.as_deref(), Some("2026-10-03T09:00:00Z"));
    }

    #[test]
    fn a_job_whose_calendar_did_not_come_does_not_fire_as_if_it_had_none() {
        assert!(Definitions::default().compile(definition(1, None)).is_none());
    }

    #[test]
    fn equal_calendars_are_kept_once_and_not_for_ever() {
        let definitions = Definitions::default();
        let calendar = |id, day: &str| {
            let compiled = definitions.compile(definition(id, Some(&json!([day])))).unwrap();
            Arc::clone(&compiled.job.timetable.calendar.as_ref().unwrap().calendar)
        };
        let (first, same, other) = (calendar(1, "2026-10-02"), calendar(2, "2026-10-02"), calendar(3, "2026-10-03"));
        assert!(Arc::ptr_eq(&first, &same) && !Arc::ptr_eq(&first, &other));
        drop((first, same, other));
        let kept = calendar(4, "2026-10-04");
        assert_eq!(definitions.calendars.lock().unwrap()["holidays"].len(), 1, "{}", kept.name());
    }
}
