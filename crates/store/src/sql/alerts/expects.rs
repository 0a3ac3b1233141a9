//! When the expectations of jobs are checked.

use rondel_core::alert::expect::ExpectKind;
use rondel_core::{JobId, JobSpec, NamespaceId, Timestamp};
use sqlx::any::AnyRow;

use super::chunks;
use crate::Result;
use crate::alerts::{ExpectCheck, OpenRunExpectations, PAGE_MAX, first_checks};
use crate::sql::query::{Query, Reader, Statement};
use crate::sql::{SqlStore, Tx};

pub(in crate::sql) const LIST_DUE_EXPECTS: Statement = Statement {
    name: "list_due_expectations",
    text: "SELECT job_id, kind, look_at_ms FROM job_expect WHERE namespace_id = ? AND look_at_ms <= ? \
           ORDER BY look_at_ms LIMIT ?",
};
const READ_EXPECTS: Statement =
    Statement { name: "read_expects", text: "SELECT job_id, kind, look_at_ms FROM job_expect WHERE job_id {in_list}" };
const READ_OPEN_RUNS_CHECK: Statement =
    Statement { name: "read_open_look", text: "SELECT open_look_at_ms FROM alert_space WHERE namespace_id = ?" };
pub(in crate::sql) const FIND_EXPECT: Statement = Statement {
    name: "find_expect",
    text: "SELECT job_id FROM job_expect WHERE namespace_id = ? AND kind = ? LIMIT 1",
};
const DELETE_EXPECTS: Statement = Statement { name: "delete_expects", text: "DELETE FROM job_expect WHERE job_id = ?" };
const INSERT_EXPECTS: Statement = Statement {
    name: "insert_expects",
    text: "INSERT INTO job_expect (job_id, kind, namespace_id, look_at_ms) {values:itii}",
};
const MOVE_EXPECTS: Statement = Statement {
    name: "move_expects",
    text: "UPDATE {join:iti}job_expect SET look_at_ms = v.column3 {from:iti} WHERE {of_rows:job_expect.job_id} \
           AND job_expect.kind = v.column2",
};
const SET_OPEN_RUNS_CHECK: Statement =
    Statement { name: "set_open_look", text: "UPDATE alert_space SET open_look_at_ms = ? WHERE namespace_id = ?" };

impl SqlStore {
    pub(super) async fn read_due_expectations(
        &self,
        namespace: NamespaceId,
        now: Timestamp,
        limit: u32,
    ) -> Result<Vec<ExpectCheck>> {
        let query = Query::new(&LIST_DUE_EXPECTS).int(namespace.get()).at(now).int(limit.min(PAGE_MAX).into());
        self.rows(query).await?.iter().map(expect_check).collect()
    }

    pub(super) async fn read_expects_of(&self, jobs: &[JobId]) -> Result<Vec<ExpectCheck>> {
        let mut expect_checks = Vec::new();
        for chunk in chunks(jobs) {
            for row in self.rows(Query::new(&READ_EXPECTS).list(chunk.iter().map(|job| job.get()))).await? {
                expect_checks.push(expect_check(&row)?);
            }
        }
        expect_checks.sort_by_key(|check| (check.job, check.kind));
        expect_checks.dedup();
        Ok(expect_checks)
    }

    pub(super) async fn read_open_run_expects(&self, namespace: NamespaceId) -> Result<OpenRunExpectations> {
        let row = self.row(Query::new(&READ_OPEN_RUNS_CHECK).int(namespace.get())).await?;
        let at = row.map(|row| Reader::new(&row, "alert_space").opt_at("open_look_at_ms")).transpose()?.flatten();
        let mut kinds = Vec::new();
        for kind in ExpectKind::ALL.iter().filter(|kind| at.is_some() && kind.is_about_open_runs()) {
            let query = Query::new(&FIND_EXPECT).int(namespace.get()).text(kind.as_str());
            if self.row(query).await?.is_some() {
                kinds.push(*kind);
            }
        }
        Ok(OpenRunExpectations { at, kinds })
    }
}

impl Tx<'_> {
    /// Replaces the expectations of a job that is saved now. `before` is its previous definition; `None` for a new job.
    pub(in crate::sql) async fn write_expect_checks(
        &mut self,
        (namespace, job): (NamespaceId, JobId),
        (before, spec): (Option<&JobSpec>, &JobSpec),
        now: Timestamp,
    ) -> Result<()> {
        if before.is_none() && spec.expectations().is_none() {
            return Ok(());
        }
        // Alert decisions that are based on the previous definition become void. From here until the commit, no other transaction changes
        // the job's checks.
        self.raise_alert_version(namespace).await?;
        let mut old_checks = Vec::new();
        if before.is_some() {
            let rows = self.rows(Query::new(&READ_EXPECTS).list([job.get()].into_iter())).await?;
            old_checks = rows.iter().map(expect_check).collect::<Result<Vec<_>>>()?;
            self.delete_expects(job).await?;
        }
        let expect_checks = first_checks(job, (before.map(|before| (before, old_checks.as_slice())), spec), now);
        if expect_checks.is_empty() {
            return Ok(());
        }
        let insert = Query::new(&INSERT_EXPECTS).rows(&expect_checks, |query, check| {
            query.int(check.job.get()).text(check.kind.as_str()).int(namespace.get()).opt_at(check.at)
        });
        self.execute(insert).await?;
        if expect_checks.iter().any(|check| check.kind.is_about_open_runs()) {
            self.set_open_runs_check(namespace, Some(now)).await?;
        }
        Ok(())
    }

    pub(in crate::sql) async fn delete_expects(&mut self, job: JobId) -> Result<()> {
        self.execute(Query::new(&DELETE_EXPECTS).int(job.get())).await.map(drop)
    }

    pub(super) async fn set_open_runs_check(&mut self, namespace: NamespaceId, at: Option<Timestamp>) -> Result<()> {
        self.execute(Query::new(&SET_OPEN_RUNS_CHECK).opt_at(at).int(namespace.get())).await.map(drop)
    }

    pub(super) async fn move_expects(&mut self, expect_checks: &[ExpectCheck]) -> Result<()> {
        for chunk in chunks(expect_checks) {
            let query = Query::new(&MOVE_EXPECTS)
                .rows(chunk, |query, check| query.int(check.job.get()).text(check.kind.as_str()).opt_at(check.at));
            self.execute(query).await?;
        }
        Ok(())
    }
}

fn expect_check(row: &AnyRow) -> Result<ExpectCheck> {
    let mut columns = Reader::new(row, "job_expect");
    let job = JobId::new(columns.int("job_id")?);
    Ok(ExpectCheck { job, kind: columns.word("kind")?, at: columns.opt_at("look_at_ms")? })
}
