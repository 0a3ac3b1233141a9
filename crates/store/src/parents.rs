//! Checks the parents that a definition names against the jobs of its namespace. Every store uses these checks.

use std::collections::{BTreeSet, HashMap};

use rondel_core::graph::{BadGraph, DEPTH_MAX, Edge, Graph};
use rondel_core::spec::AfterWhat;
use rondel_core::{FieldError, JobId, JobSpec};

#[derive(Debug)]
pub(crate) enum ParentError {
    /// Some parents do not exist.
    Missing(Vec<FieldError>),
    /// The parents would close a cycle, or make the graph too deep. The message needs the names of the jobs along the path.
    Graph(BadGraph),
}

/// Whether a definition names the same parents as `before`, the definition that it replaces. Then the job keeps its edges. A parent that
/// was deleted meanwhile does not prevent a pause, and another job that now has the name of the deleted parent does not become a parent.
pub(crate) fn have_same_parents(spec: &JobSpec, before: &JobSpec) -> bool {
    parent_names(spec) == parent_names(before)
}

fn parent_names(spec: &JobSpec) -> BTreeSet<(&str, &'static str)> {
    spec.parents().into_iter().map(|parent| (parent.name, parent.on.as_str())).collect()
}

/// Resolves and checks the parents of a job. `ids` are the ids of the namespace's jobs, keyed by their names, and `edges` are all edges of
/// the namespace. The job itself need not exist yet.
pub(crate) fn check(
    job: JobId,
    spec: &JobSpec,
    ids: &HashMap<String, JobId>,
    edges: Vec<Edge>,
) -> Result<Vec<Edge>, ParentError> {
    let parents = resolve_parents(job, spec, ids)?;
    Graph::new(edges).replace(job, &parents).map_err(ParentError::Graph)?;
    Ok(parents.into_iter().map(|(parent, on)| Edge { child: job, parent, on }).collect())
}

/// Like [`check`], for new jobs, each of which may follow from those before it. Returns the edges of all these jobs, or `None` if one of
/// the jobs is refused. The graph is checked once for all jobs.
pub(crate) fn check_all<'a>(
    jobs: impl IntoIterator<Item = (JobId, &'a JobSpec)>,
    mut ids: HashMap<String, JobId>,
    edges: Vec<Edge>,
) -> Option<Vec<Edge>> {
    let (mut graph, mut added_edges, mut new_jobs) = (Graph::new(edges), Vec::new(), Vec::new());
    for (job, spec) in jobs {
        let parents = resolve_parents(job, spec, &ids).ok()?;
        added_edges.extend(parents.into_iter().map(|(parent, on)| Edge { child: job, parent, on }));
        ids.insert(spec.name.clone(), job);
        new_jobs.push(job);
    }
    added_edges.iter().for_each(|edge| graph.add(*edge));
    graph.check(&new_jobs).ok()?;
    Some(added_edges)
}

fn resolve_parents(
    job: JobId,
    spec: &JobSpec,
    ids: &HashMap<String, JobId>,
) -> Result<Vec<(JobId, AfterWhat)>, ParentError> {
    let mut parents: Vec<(JobId, AfterWhat)> = Vec::new();
    let mut missing_errors = Vec::new();
    for parent in spec.parents() {
        let own_id = (parent.name == spec.name).then_some(job);
        match own_id.or_else(|| ids.get(parent.name).copied().filter(|id| *id != job)) {
            Some(id) => parents.push((id, parent.on)),
            None => {
                let message = format!("there is no job {:?} in this namespace; create it first", parent.name);
                missing_errors.push(FieldError::new(parent.pointer, message));
            }
        }
    }
    if missing_errors.is_empty() { Ok(parents) } else { Err(ParentError::Missing(missing_errors)) }
}

impl ParentError {
    /// The jobs whose names [`errors`](Self::errors) needs.
    pub(crate) fn path(&self) -> &[JobId] {
        match self {
            Self::Missing(_) => &[],
            Self::Graph(BadGraph::Cycle(path) | BadGraph::TooDeep(path)) => path,
        }
    }

    /// The errors, with the names of the jobs on the path. The name of `job` itself comes from its definition.
    pub(crate) fn errors(&self, job: JobId, spec: &JobSpec, names: &HashMap<JobId, String>) -> Vec<FieldError> {
        let name = |id: &JobId| if *id == job { Some(spec.name.as_str()) } else { names.get(id).map(String::as_str) };
        let path = self.path().iter().map(|id| name(id).unwrap_or("?")).collect::<Vec<_>>();
        let job_names = || path.iter().map(|name| (*name).to_owned()).collect();
        let pointer = |parent: Option<&str>| {
            let parent_spec = spec.parents().into_iter().find(|parent_spec| Some(parent_spec.name) == parent);
            parent_spec.map_or_else(|| "/schedule".to_owned(), |parent_spec| parent_spec.pointer)
        };
        match self {
            Self::Missing(errors) => errors.clone(),
            Self::Graph(BadGraph::Cycle(_)) => {
                let error = FieldError::new(pointer(path.first().copied()), "would run after itself");
                vec![error.with_jobs(job_names())]
            }
            Self::Graph(BadGraph::TooDeep(_)) => {
                let own_index = path.iter().position(|name| *name == spec.name);
                let parent = own_index.and_then(|own_index| path.get(own_index.checked_sub(1)?));
                let message = format!(
                    "makes a chain of {} jobs, of which at most {DEPTH_MAX} may follow from each other",
                    path.len()
                );
                vec![FieldError::new(pointer(parent.copied()), message).with_jobs(job_names())]
            }
        }
    }
}
