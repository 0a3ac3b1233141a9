//! Many jobs at once: what an importer or a measurement creates.

use rondel_core::time::millis;

use super::query::{CHUNK_MAX, Query, Statement};
use super::{SqlStore, failure, transact};
use crate::Result;
use crate::catalog::NewJob;

const INSERT_JOBS: Statement = Statement {
    name: "insert_jobs",
    text: "INSERT INTO job (id, namespace_id, name, app_id, version, anchor_at_ms, created_at_ms, updated_at_ms) \
           {values:iitiiiii}",
};
const INSERT_VERSIONS: Statement = Statement {
    name: "insert_versions",
    text: "INSERT INTO job_version (job_id, version, app_id, spec, author, created_at_ms) {values:iiitti}",
};
const INSERT_DUES: Statement = Statement {
    name: "insert_dues",
    text: "INSERT INTO job_due (job_id, next_fire_at_ms, is_over, delay_ms, version, home, term) {values:iiiiiii}",
};

/// Rows of one statement: a power of two, so that none is repeated to fill it up.
const CHUNK: usize = CHUNK_MAX;
const _: () = assert!(CHUNK.is_power_of_two());

impl SqlStore {
    /// Creates jobs whose apps exist and whose names are free, a few hundred to a transaction.
    ///
    /// # Errors
    /// The store's; a name that is taken is one. The transactions before it are kept. Jobs that use a calendar or that
    /// code declares are refused: they are created one by one.
    pub async fn create_jobs(&self, jobs: &[NewJob]) -> Result<()> {
        if jobs.iter().any(|job| job.calendar.is_some() || job.declared.is_some()) {
            return Err(failure::refused("create_jobs", "a job with a calendar or a declaration is created by itself"));
        }
        let mut rest = jobs;
        while !rest.is_empty() {
            let count = if rest.len() >= CHUNK { CHUNK } else { 1 << rest.len().ilog2() };
            let (chunk, tail) = rest.split_at(count);
            self.create_chunk(chunk).await?;
            rest = tail;
        }
        Ok(())
    }

    async fn create_chunk(&self, jobs: &[NewJob]) -> Result<()> {
        let mut specs = Vec::with_capacity(jobs.len());
        for job in jobs {
            let text = serde_json::to_string(&job.spec);
            specs.push((job, text.map_err(|error| failure::refused("insert_versions", &error.to_string()))?));
        }
        transact!(self, "create_jobs", |tx| {
            let insert = Query::new(&INSERT_JOBS).rows(jobs, |query, job| {
                query
                    .int(job.id.get())
                    .int(job.namespace.get())
                    .text(&job.spec.name)
                    .int(job.app.get())
                    .int(1)
                    .at(job.anchor)
                    .at(job.now)
                    .at(job.now)
            });
            tx.execute_all(insert, jobs.len()).await?;
            let insert = Query::new(&INSERT_VERSIONS).rows(&specs, |query, (job, spec)| {
                query.int(job.id.get()).int(1).int(job.app.get()).text(spec).text(&job.author).at(job.now)
            });
            tx.execute_all(insert, jobs.len()).await?;
            let insert = Query::new(&INSERT_DUES).rows(jobs, |query, job| {
                let (next, delay) = (job.next_fire_at, job.delay.map(millis));
                let due = query.int(job.id.get()).opt_at(next).int(next.is_none().into());
                due.opt_int(delay).int(1).int(0).int(0)
            });
            tx.execute_all(insert, jobs.len()).await
        })
    }
}
