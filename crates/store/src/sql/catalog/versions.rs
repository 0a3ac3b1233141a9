//! The versions of a definition.

use rondel_core::{AppId, JobId, JobSpec, Timestamp};

use crate::Result;
use crate::catalog::{Declared, PinnedCalendar};
use crate::settle::clean_name;
use crate::sql::calendars::bind_pin;
use crate::sql::query::{Query, Reader, Statement};
use crate::sql::{Tx, failure};

const INSERT_VERSION: Statement = Statement {
    name: "insert_version",
    text: "INSERT INTO job_version (job_id, version, app_id, spec, author, created_at_ms, calendar_id, \
           calendar_version) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
};

/// A definition to save.
pub(super) struct NewVersion<'a> {
    pub(super) job: JobId,
    pub(super) version: i64,
    pub(super) app: AppId,
    pub(super) spec: &'a JobSpec,
    pub(super) calendar: Option<PinnedCalendar>,
    pub(super) author: &'a str,
    pub(super) now: Timestamp,
}

impl Tx<'_> {
    pub(super) async fn insert_version(&mut self, new_version: NewVersion<'_>) -> Result<()> {
        let insert = Query::new(&INSERT_VERSION)
            .int(new_version.job.get())
            .int(new_version.version)
            .int(new_version.app.get())
            .text(&json(new_version.spec)?)
            .text(&clean_name(new_version.author))
            .at(new_version.now);
        self.execute_all(bind_pin(insert, new_version.calendar), 1).await?;
        if new_version.spec.pump.is_some() {
            self.insert_pump_jobs(&[new_version.job]).await?;
        }
        Ok(())
    }
}

pub(in crate::sql) fn json(spec: &JobSpec) -> Result<String> {
    serde_json::to_string(spec).map_err(|error| failure::refused("write_spec", &error.to_string()))
}

/// The declaration of a job in code, from its three columns.
pub(in crate::sql) fn declared(columns: &mut Reader<'_>) -> Result<Option<Declared>> {
    let spec = columns.opt_json("declared")?;
    let (declared_at, undeclared_at) = (columns.opt_at("declared_at_ms")?, columns.opt_at("undeclared_at_ms")?);
    let to_declared = |(spec, declared_at)| Declared { spec, declared_at, undeclared_at };
    Ok(spec.zip(declared_at).map(to_declared))
}
