//! Stores the sets of jobs that executors' code declares, and the declarations of single jobs.

use async_trait::async_trait;
use rondel_core::{AppId, JobId, Timestamp};
use sqlx::any::AnyRow;

use crate::catalog::Declared;
use crate::declarations::{DeclaredSet, DeclaredSetHeader};
use crate::sql::SqlStore;
use crate::sql::catalog::versions::json;
use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement};
use crate::{Declarations, Result};

const DECLARE_JOB: Statement = Statement {
    name: "declare_job",
    text: "UPDATE job SET declared = ?, declared_at_ms = ?, undeclared_at_ms = ? WHERE id = ? AND retired = 0",
};
const UNDECLARE_JOBS: Statement = Statement {
    name: "undeclare_jobs",
    text: "UPDATE job SET undeclared_at_ms = ? WHERE id {in_list} AND retired = 0 AND declared IS NOT NULL \
           AND undeclared_at_ms IS NULL",
};
const UPDATE_SET_SEEN: Statement = Statement {
    name: "see_set",
    text: "UPDATE declared_set SET last_seen_at_ms = ? WHERE app_id = ? AND hash = ? AND last_seen_at_ms < ?",
};
const INSERT_SET: Statement = Statement {
    name: "insert_set",
    text: "INSERT {ignore} INTO declared_set (app_id, hash, specs, first_seen_at_ms, last_seen_at_ms) \
           VALUES (?, ?, ?, ?, ?) {or_ignore}",
};
pub(super) const READ_HEADERS: Statement = Statement {
    name: "read_marks",
    text: "SELECT app_id, hash, first_seen_at_ms, last_seen_at_ms FROM declared_set WHERE last_seen_at_ms >= ?",
};
const READ_SETS: Statement = Statement {
    name: "read_sets",
    text: "SELECT app_id, hash, first_seen_at_ms, last_seen_at_ms, specs FROM declared_set WHERE app_id = ? \
           ORDER BY last_seen_at_ms DESC, hash",
};
const DELETE_SET: Statement = Statement {
    name: "delete_set",
    text: "DELETE FROM declared_set WHERE app_id = ? AND hash = ? AND last_seen_at_ms <= ?",
};

#[async_trait]
impl Declarations for SqlStore {
    async fn declare_job(&self, id: JobId, declared: &Declared) -> Result<bool> {
        let query = Query::new(&DECLARE_JOB)
            .text(&json(&declared.spec)?)
            .at(declared.declared_at)
            .opt_at(declared.undeclared_at)
            .int(id.get());
        Ok(self.execute(query).await? > 0)
    }

    async fn undeclare_jobs(&self, ids: &[JobId], since: Timestamp) -> Result<u64> {
        let mut ids = ids.to_vec();
        // The order is the same on all servers, so that two servers with the same ids do not deadlock.
        ids.sort_unstable();
        let mut count = 0;
        for chunk in ids.chunks(CHUNK_MAX) {
            let query = Query::new(&UNDECLARE_JOBS).at(since).list(chunk.iter().map(|id| id.get()));
            count += self.execute(query).await?;
        }
        Ok(count)
    }

    async fn record_declared_set(&self, app: AppId, hash: &str, specs: &str, now: Timestamp) -> Result<()> {
        let query = Query::new(&UPDATE_SET_SEEN).at(now).int(app.get()).text(hash).at(now);
        if self.execute(query).await? == 0 {
            // The set is new, or another node has already recorded it in this millisecond.
            let insert = Query::new(&INSERT_SET).int(app.get()).text(hash).text(specs).at(now).at(now);
            self.execute(insert).await?;
        }
        Ok(())
    }

    async fn declared_set_headers(&self, since: Timestamp) -> Result<Vec<DeclaredSetHeader>> {
        let rows = self.rows(Query::new(&READ_HEADERS).at(since)).await?;
        let mut headers =
            rows.iter().map(|row| header(&mut Reader::new(row, "declared_set"))).collect::<Result<Vec<_>>>()?;
        headers.sort_by(|a, b| (a.app, &a.hash).cmp(&(b.app, &b.hash)));
        Ok(headers)
    }

    async fn declared_sets(&self, app: AppId) -> Result<Vec<DeclaredSet>> {
        self.rows(Query::new(&READ_SETS).int(app.get())).await?.iter().map(set).collect()
    }

    async fn forget_declared_set(&self, header: &DeclaredSetHeader) -> Result<()> {
        self.execute(Query::new(&DELETE_SET).int(header.app.get()).text(&header.hash).at(header.last_seen_at)).await?;
        Ok(())
    }
}

fn header(columns: &mut Reader<'_>) -> Result<DeclaredSetHeader> {
    Ok(DeclaredSetHeader {
        app: AppId::new(columns.int("app_id")?),
        hash: columns.text("hash")?,
        first_seen_at: columns.at("first_seen_at_ms")?,
        last_seen_at: columns.at("last_seen_at_ms")?,
    })
}

fn set(row: &AnyRow) -> Result<DeclaredSet> {
    let mut columns = Reader::new(row, "declared_set");
    Ok(DeclaredSet { header: header(&mut columns)?, specs: columns.text("specs")? })
}
