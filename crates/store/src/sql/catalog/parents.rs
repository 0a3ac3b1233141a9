//! The edges from parent jobs to their children, by the newest definitions.

use std::collections::HashMap;

use rondel_core::graph::Edge;
use rondel_core::{FieldError, JobId, JobSpec, NamespaceId};
use sqlx::any::AnyRow;

use crate::Result;
use crate::parents::check;
use crate::sql::Tx;
use crate::sql::catalog::namespaces::LOCK_NAMESPACE;
use crate::sql::catalog::read::READ_JOB_NAMES;
use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement};

const FIND_JOBS: Statement = Statement {
    name: "find_jobs",
    text: "SELECT id, name FROM job WHERE namespace_id = ? AND retired = 0 AND name IN ({words})",
};
pub(super) const READ_GRAPH: Statement = Statement {
    name: "read_graph",
    text: "SELECT job_parent.child_id, job_parent.parent_id, job_parent.on_what FROM job_parent \
           JOIN job ON job.id = job_parent.child_id WHERE job.namespace_id = ? AND job.retired = 0 \
           ORDER BY job_parent.child_id, job_parent.parent_id",
};
const DELETE_PARENTS: Statement =
    Statement { name: "delete_parents", text: "DELETE FROM job_parent WHERE child_id = ?" };
const DELETE_CHILDREN: Statement =
    Statement { name: "delete_children", text: "DELETE FROM job_parent WHERE parent_id = ?" };
pub(super) const INSERT_PARENTS: Statement = Statement {
    name: "insert_parents",
    text: "INSERT {ignore} INTO job_parent (child_id, parent_id, on_what) {values:iit} {or_ignore}",
};
/// The limit is the number of names that a message shows.
pub(super) const READ_CHILD_NAMES: Statement = Statement {
    name: "read_child_names",
    text: "SELECT job.id, job.name FROM job_parent JOIN job ON job.id = job_parent.child_id \
           WHERE job_parent.parent_id = ? AND job.retired = 0 ORDER BY job.name LIMIT 100",
};

impl Tx<'_> {
    /// Locks the edges of the namespace's jobs: no other transaction changes them until this one ends. Must be the first lock of the
    /// transaction.
    pub(super) async fn lock_graph(&mut self, namespace: NamespaceId) -> Result<()> {
        self.row(Query::new(&LOCK_NAMESPACE).int(namespace.get())).await.map(drop)
    }

    pub(super) async fn job_ids_by_name(
        &mut self,
        namespace: NamespaceId,
        names: &[&str],
    ) -> Result<HashMap<String, JobId>> {
        let mut ids = HashMap::new();
        for chunk in names.chunks(CHUNK_MAX) {
            for row in self.rows(Query::new(&FIND_JOBS).int(namespace.get()).words(chunk)).await? {
                let mut columns = Reader::new(&row, "job");
                let id = JobId::new(columns.int("id")?);
                ids.insert(columns.text("name")?, id);
            }
        }
        Ok(ids)
    }

    pub(super) async fn edges(&mut self, namespace: NamespaceId) -> Result<Vec<Edge>> {
        self.rows(Query::new(&READ_GRAPH).int(namespace.get())).await?.iter().map(edge).collect()
    }

    /// Checks the parents that a definition names, in a namespace whose graph is locked.
    pub(super) async fn check_parents(
        &mut self,
        job: JobId,
        namespace: NamespaceId,
        spec: &JobSpec,
    ) -> Result<std::result::Result<Vec<Edge>, Vec<FieldError>>> {
        let parents = spec.parents();
        if parents.is_empty() {
            return Ok(Ok(Vec::new()));
        }
        let parent_names: Vec<&str> = parents.iter().map(|parent| parent.name).collect();
        let ids = self.job_ids_by_name(namespace, &parent_names).await?;
        let edges = self.edges(namespace).await?;
        let error = match check(job, spec, &ids, edges) {
            Ok(edges) => return Ok(Ok(edges)),
            Err(error) => error,
        };
        let mut names = HashMap::new();
        if !error.path().is_empty() {
            let query = Query::new(&READ_JOB_NAMES).list(error.path().iter().map(|id| id.get()));
            for row in self.rows(query).await? {
                let mut columns = Reader::new(&row, "job");
                names.insert(JobId::new(columns.int("id")?), columns.text("name")?);
            }
        }
        Ok(Err(error.errors(job, spec, &names)))
    }

    pub(super) async fn write_parents(&mut self, job: JobId, edges: &[Edge]) -> Result<()> {
        self.execute(Query::new(&DELETE_PARENTS).int(job.get())).await?;
        if edges.is_empty() {
            return Ok(());
        }
        let insert = Query::new(&INSERT_PARENTS)
            .rows(edges, |query, edge| query.int(edge.child.get()).int(edge.parent.get()).text(edge.on.as_str()));
        self.execute(insert).await.map(drop)
    }

    /// Removes the edges to all jobs that follow from this one.
    pub(super) async fn detach_followers(&mut self, job: JobId) -> Result<()> {
        self.execute(Query::new(&DELETE_CHILDREN).int(job.get())).await.map(drop)
    }

    /// Sorted names of the jobs that follow directly from a job.
    pub(super) async fn child_names(&mut self, job: JobId) -> Result<Vec<String>> {
        names(&self.rows(Query::new(&READ_CHILD_NAMES).int(job.get())).await?)
    }
}

pub(super) fn edge(row: &AnyRow) -> Result<Edge> {
    let mut columns = Reader::new(row, "job_parent");
    let (child, parent) = (JobId::new(columns.int("child_id")?), JobId::new(columns.int("parent_id")?));
    Ok(Edge { child, parent, on: columns.word("on_what")? })
}

pub(super) fn names(rows: &[AnyRow]) -> Result<Vec<String>> {
    let name = |row| {
        let mut columns = Reader::new(row, "job");
        columns.int("id")?;
        columns.text("name")
    };
    rows.iter().map(name).collect()
}
