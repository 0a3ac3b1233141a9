//! The edges between jobs, by the newest definitions.

use rondel_core::graph::Edge;
use rondel_core::{FieldError, JobId, JobSpec, NamespaceId};

use crate::mem::State;
use crate::parents::check;

impl State {
    pub(super) fn check_parents(
        &self,
        job: JobId,
        namespace: NamespaceId,
        spec: &JobSpec,
    ) -> Result<Vec<Edge>, Vec<FieldError>> {
        let living_jobs = || self.living_jobs().filter(|record| record.namespace == namespace);
        let ids = living_jobs().map(|record| (record.spec.name.clone(), record.id)).collect();
        check(job, spec, &ids, self.parents.clone()).map_err(|error| {
            let names = living_jobs().map(|record| (record.id, record.spec.name)).collect();
            error.errors(job, spec, &names)
        })
    }

    pub(super) fn edges(&self, namespace: NamespaceId) -> Vec<Edge> {
        let is_of_living_job =
            |edge: &&Edge| self.living_jobs().any(|job| job.id == edge.child && job.namespace == namespace);
        let mut edges: Vec<Edge> = self.parents.iter().filter(is_of_living_job).copied().collect();
        edges.sort_by_key(|edge| (edge.child, edge.parent));
        edges
    }

    pub(super) fn write_parents(&mut self, job: JobId, edges: Vec<Edge>) {
        self.parents.retain(|edge| edge.child != job);
        self.parents.extend(edges);
    }

    /// Removes the edges to all jobs that follow from this one.
    pub(super) fn detach_followers(&mut self, job: JobId) {
        self.parents.retain(|edge| edge.parent != job);
    }

    /// Sorted names of the jobs that follow directly from a job.
    pub(super) fn child_names(&self, job: JobId) -> Vec<String> {
        let children = self.parents.iter().filter(|edge| edge.parent == job);
        let mut names: Vec<String> =
            children.filter_map(|edge| Some(self.jobs.get(&edge.child)?.record.spec.name.clone())).collect();
        names.sort();
        names
    }
}
