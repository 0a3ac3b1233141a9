//! The tables of Quartz 2: each trigger becomes a definition, whose handler is the class of its job.

mod fields;
mod properties;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use rondel_store::foreign::{self, ForeignError};

use crate::exit::Failure;
use crate::import::dump::Row;
use crate::import::found::{Entry, Found};

/// Columns with Java objects, which are read as hexadecimal digits and not as text.
const BYTES: [&str; 2] = ["job_data", "blob_data"];

/// The rows of the tables.
#[derive(Debug, Default)]
pub(super) struct Tables {
    jobs: Vec<Row>,
    triggers: Vec<Row>,
    crons: Vec<Row>,
    simples: Vec<Row>,
}

impl Tables {
    pub(super) async fn read(url: &str, prefix: &str) -> Result<Self, Failure> {
        let wrong = |error: ForeignError| Failure::of("cannot read the database of Quartz", &error);
        let mut database = foreign::Database::open(url, true).await.map_err(wrong)?;
        let (job, trigger) = (["sched_name", "job_group", "job_name"], ["sched_name", "trigger_group", "trigger_name"]);
        let mut rows = async |table: &str, key: &[&str]| {
            database.rows(&format!("{prefix}{table}"), key, &[], &BYTES).await.map_err(wrong)
        };
        Ok(Self {
            jobs: rows("JOB_DETAILS", &job).await?,
            triggers: rows("TRIGGERS", &trigger).await?,
            crons: rows("CRON_TRIGGERS", &trigger).await?,
            simples: rows("SIMPLE_TRIGGERS", &trigger).await?,
        })
    }
}

/// A scheduler, a group and a name.
type Key = (String, String, String);

fn key(row: &Row, what: &str) -> Key {
    let of = |column: &str| row.get(column).cloned().unwrap_or_default();
    (of("sched_name"), of(&format!("{what}_group")), of(&format!("{what}_name")))
}

/// The definitions, in an app; cron expressions without their own zone are read in `zone`.
pub(super) fn convert(tables: &Tables, app: &str, zone: &str) -> Found {
    let mut found = Found::default();
    let crons: BTreeMap<Key, &Row> = tables.crons.iter().map(|row| (key(row, "trigger"), row)).collect();
    let simples: BTreeMap<Key, &Row> = tables.simples.iter().map(|row| (key(row, "trigger"), row)).collect();
    let mut triggers: BTreeMap<Key, Vec<&Row>> = BTreeMap::new();
    for row in &tables.triggers {
        triggers.entry(key(row, "job")).or_default().push(row);
    }
    for job in &tables.jobs {
        let key_of_job = key(job, "job");
        let own = triggers.remove(&key_of_job).unwrap_or_default();
        if own.is_empty() {
            fields::add(&fields::Source { job, trigger: None, timing: None, app, zone }, &mut found);
        }
        for trigger in own {
            let key = key(trigger, "trigger");
            let timing = crons.get(&key).or_else(|| simples.get(&key)).copied();
            fields::add(&fields::Source { job, trigger: Some(trigger), timing, app, zone }, &mut found);
        }
    }
    for row in triggers.into_values().flatten() {
        let (_, group, name) = key(row, "trigger");
        found.leave_out(Entry::new(format!("trigger {group}.{name}"), name), "its job is not there");
    }
    found.remarks.push("not read: CALENDARS, SIMPROP_TRIGGERS, BLOB_TRIGGERS (Java objects, and triggers of kinds that are left out), FIRED_TRIGGERS, \
                        PAUSED_TRIGGER_GRPS, SCHEDULER_STATE, LOCKS (the state of the running scheduler)".to_owned());
    found
}
