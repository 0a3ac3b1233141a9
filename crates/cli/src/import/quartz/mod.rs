//! Reads the tables of Quartz 2: each trigger becomes a definition. Its handler is the class of the trigger's job.

mod fields;
mod naming;
mod properties;
mod schedule;
mod serialized;
#[cfg(test)]
mod tests;
mod zone;

use std::collections::{BTreeMap, BTreeSet};

use rondel_core::Timestamp;
use rondel_store::foreign::{self, ForeignError};

use crate::exit::Failure;
use crate::foreign_url;
use crate::import::dump::Row;
use crate::import::result::{Entry, ImportResult};

/// Columns with Java objects, which are read as hexadecimal digits and not as text.
const BYTE_COLUMNS: [&str; 2] = ["job_data", "blob_data"];

/// The rows of the tables.
#[derive(Debug, Default)]
pub(super) struct Tables {
    jobs: Vec<Row>,
    triggers: Vec<Row>,
    cron_triggers: Vec<Row>,
    simple_triggers: Vec<Row>,
}

impl Tables {
    pub(super) async fn read(url: &str, prefix: &str) -> Result<Self, Failure> {
        let read_failure = |error: ForeignError| Failure::of("cannot read the database of Quartz", &error);
        foreign_url::check(url)?;
        let mut database = foreign::Database::open(url, true).await.map_err(read_failure)?;
        let (job, trigger) = (["sched_name", "job_group", "job_name"], ["sched_name", "trigger_group", "trigger_name"]);
        let mut rows = async |table: &str, key: &[&str]| {
            database.rows(&format!("{prefix}{table}"), key, &[], &BYTE_COLUMNS).await.map_err(read_failure)
        };
        Ok(Self {
            jobs: rows("JOB_DETAILS", &job).await?,
            triggers: rows("TRIGGERS", &trigger).await?,
            cron_triggers: rows("CRON_TRIGGERS", &trigger).await?,
            simple_triggers: rows("SIMPLE_TRIGGERS", &trigger).await?,
        })
    }
}

impl Tables {
    fn row_lists_mut(&mut self) -> [&mut Vec<Row>; 4] {
        [&mut self.jobs, &mut self.triggers, &mut self.cron_triggers, &mut self.simple_triggers]
    }

    /// The schedulers that have jobs or triggers.
    fn schedulers(&self) -> BTreeSet<&str> {
        let rows = self.jobs.iter().chain(&self.triggers);
        rows.filter_map(|row| row.get("sched_name")).map(String::as_str).collect()
    }

    /// Drops the rows of other schedulers.
    ///
    /// # Errors
    /// A sentence, if there is no such scheduler.
    pub(super) fn keep_only(&mut self, scheduler: &str) -> Result<(), String> {
        let known_schedulers = self.schedulers();
        if !known_schedulers.contains(scheduler) {
            let known_schedulers: Vec<&str> = known_schedulers.into_iter().collect();
            return Err(format!(
                "{scheduler:?} has no jobs in the tables; those of {} are there",
                name_list(&known_schedulers)
            ));
        }
        for rows in self.row_lists_mut() {
            rows.retain(|row| row.get("sched_name").is_some_and(|name| name == scheduler));
        }
        Ok(())
    }
}

fn name_list(names: &[&str]) -> String {
    if names.is_empty() { "no scheduler".to_owned() } else { names.join(", ") }
}

/// The options of an import.
#[derive(Clone, Copy, Debug)]
pub(super) struct ImportOptions<'a> {
    pub(super) app: &'a str,
    /// The zone of cron triggers without a zone of their own.
    pub(super) zone: &'a str,
    /// The prefix of the jobs' names.
    pub(super) prefix: &'a str,
    /// The current time: triggers that ended before it are left out.
    pub(super) now: Timestamp,
}

/// A scheduler, a group and a name.
type Key = (String, String, String);

fn row_key(row: &Row, column_prefix: &str) -> Key {
    let value_of = |column: &str| row.get(column).cloned().unwrap_or_default();
    (value_of("sched_name"), value_of(&format!("{column_prefix}_group")), value_of(&format!("{column_prefix}_name")))
}

/// The definitions of all triggers, and of jobs without a trigger.
pub(super) fn convert(tables: &Tables, options: &ImportOptions<'_>) -> ImportResult {
    let mut result = ImportResult::with_prefix(options.prefix);
    let cron_triggers: BTreeMap<Key, &Row> =
        tables.cron_triggers.iter().map(|row| (row_key(row, "trigger"), row)).collect();
    let simple_triggers: BTreeMap<Key, &Row> =
        tables.simple_triggers.iter().map(|row| (row_key(row, "trigger"), row)).collect();
    let mut triggers: BTreeMap<Key, Vec<&Row>> = BTreeMap::new();
    for row in &tables.triggers {
        triggers.entry(row_key(row, "job")).or_default().push(row);
    }
    for job in &tables.jobs {
        let job_triggers = triggers.remove(&row_key(job, "job")).unwrap_or_default();
        let is_complete = |row: &&&Row| row.get("trigger_state").is_some_and(|state| state == "COMPLETE");
        let is_only_trigger = job_triggers.iter().filter(|row| !is_complete(row)).count() == 1;
        let source_without_trigger = fields::Source { job, trigger: None, timing: None, is_only_trigger, options };
        if job_triggers.is_empty() {
            fields::add(&source_without_trigger, &mut result);
        }
        for trigger in job_triggers {
            let key = row_key(trigger, "trigger");
            let timing = cron_triggers.get(&key).or_else(|| simple_triggers.get(&key)).copied();
            fields::add(&fields::Source { trigger: Some(trigger), timing, ..source_without_trigger }, &mut result);
        }
    }
    for row in triggers.into_values().flatten() {
        let (_, group, name) = row_key(row, "trigger");
        result.leave_out(Entry::new(format!("trigger {group}.{name}"), name), "its job is not there");
    }
    add_remarks(tables, &mut result);
    result
}

fn add_remarks(tables: &Tables, result: &mut ImportResult) {
    let schedulers: Vec<&str> = tables.schedulers().into_iter().collect();
    if schedulers.len() > 1 {
        result.remarks.push(format!(
            "the tables have {} schedulers ({}), and all are read: --scheduler NAME reads one",
            schedulers.len(),
            schedulers.join(", ")
        ));
    }
    result.remarks.push("not read: CALENDARS, SIMPROP_TRIGGERS, BLOB_TRIGGERS (Java objects, and triggers of kinds that are left out), FIRED_TRIGGERS, \
                        PAUSED_TRIGGER_GRPS, SCHEDULER_STATE, LOCKS (the state of the running scheduler)".to_owned());
}
