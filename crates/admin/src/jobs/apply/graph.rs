//! Checks that the parents named in a list will exist, and that they form no cycle together with the existing jobs.

use std::collections::{BTreeSet, HashMap};

use rondel_core::graph::{BadGraph, DEPTH_MAX, Edge, Graph};
use rondel_core::{FieldError, JobId, JobSpec, NamespaceId};
use rondel_store::StoreError;

use crate::node::Node;

/// The ids of the jobs that exist after the save, keyed by their names, and the edges to children that the list neither contains nor removes.
pub(super) struct Neighbours {
    ids: HashMap<String, JobId>,
    edges: Vec<Edge>,
    /// Errors for jobs outside the list whose parent is to be removed.
    orphans: Vec<FieldError>,
}

/// Reads the jobs and edges against which the parents in a list are checked. `listed_jobs` has the jobs of the list that exist, `removed_jobs`
/// the jobs to be removed. Returns `None` if the list names no parent and removes no job.
pub(super) async fn neighbours(
    node: &Node,
    namespace: NamespaceId,
    specs: &[JobSpec],
    (listed_jobs, removed_jobs): (HashMap<String, JobId>, BTreeSet<JobId>),
) -> Result<Option<Neighbours>, StoreError> {
    let listed_names: BTreeSet<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
    let parents: BTreeSet<&str> = specs.iter().flat_map(|spec| spec.parents()).map(|parent| parent.name).collect();
    if parents.is_empty() && removed_jobs.is_empty() {
        return Ok(None);
    }
    let names_elsewhere = parents.difference(&listed_names).copied();
    let names_elsewhere: Vec<&str> = names_elsewhere.filter(|name| rondel_core::name::check(name).is_ok()).collect();
    let parents_elsewhere = node.store().listed_jobs_named(namespace, &names_elsewhere).await?;
    let all_edges = node.store().edges(namespace).await?;
    let listed_ids: BTreeSet<JobId> = listed_jobs.values().copied().collect();
    let id_of = |name: &str| listed_jobs.get(name).copied().unwrap_or_else(|| JobId::new(node.new_id()));
    let mut ids: HashMap<String, JobId> = listed_names.iter().map(|name| ((*name).to_owned(), id_of(name))).collect();
    let staying_parents = parents_elsewhere.iter().filter(|job| !removed_jobs.contains(&job.id()));
    ids.extend(staying_parents.map(|job| (job.name().to_owned(), job.id())));
    let edges: Vec<Edge> = all_edges
        .into_iter()
        .filter(|edge| !listed_ids.contains(&edge.child) && !removed_jobs.contains(&edge.child))
        .collect();
    let orphans = orphan_errors(node, &edges, &removed_jobs).await?;
    Ok(Some(Neighbours { ids, edges, orphans }))
}

/// An error for each job outside the list whose parent is to be removed.
async fn orphan_errors(
    node: &Node,
    edges: &[Edge],
    removed_jobs: &BTreeSet<JobId>,
) -> Result<Vec<FieldError>, StoreError> {
    let lost_edges: Vec<Edge> = edges.iter().filter(|edge| removed_jobs.contains(&edge.parent)).copied().collect();
    let ids: BTreeSet<JobId> = lost_edges.iter().flat_map(|edge| [edge.child, edge.parent]).collect();
    let names: HashMap<JobId, String> =
        node.store().job_names(&ids.into_iter().collect::<Vec<_>>()).await?.into_iter().collect();
    let name = |id: JobId| names.get(&id).map_or("?", String::as_str);
    let error = |edge: &Edge| {
        let parent = name(edge.parent);
        let message = format!("{parent:?} is not in the list and would be removed, but a job follows from it");
        FieldError::new("", message).with_jobs([edge.parent, edge.child].map(|id| name(id).to_owned()).to_vec())
    };
    Ok(lost_edges.iter().map(error).collect())
}

impl Neighbours {
    /// Returns the errors in the graph of jobs as it is after the list is applied. For a long list, the caller runs this check on a separate
    /// thread.
    pub(super) fn check(self, specs: &[JobSpec], order: &[JobSpec]) -> Vec<FieldError> {
        let mut errors = self.missing_parent_errors(specs);
        if errors.is_empty() {
            errors.extend(self.graph_error(specs, order));
        }
        errors.extend(self.orphans);
        errors
    }

    fn missing_parent_errors(&self, specs: &[JobSpec]) -> Vec<FieldError> {
        let mut errors = Vec::new();
        for (index, spec) in specs.iter().enumerate() {
            for parent in spec.parents().into_iter().filter(|parent| !self.ids.contains_key(parent.name)) {
                let message = format!("there is no job {:?} in this namespace, nor in the list", parent.name);
                errors.push(FieldError::new(format!("/{index}{}", parent.pointer), message));
            }
        }
        errors
    }

    /// The error for a job of the list that would follow from itself, or would make a chain too long. `order` has parents first.
    fn graph_error(&self, specs: &[JobSpec], order: &[JobSpec]) -> Option<FieldError> {
        let mut graph = Graph::new(self.edges.iter().copied());
        let mut jobs = Vec::with_capacity(order.len());
        for spec in order {
            let child = *self.ids.get(&spec.name)?;
            for parent in spec.parents() {
                graph.add(Edge { child, parent: *self.ids.get(parent.name)?, on: parent.on });
            }
            jobs.push(child);
        }
        let graph_error = graph.check(&jobs).err()?;
        let job_in_error = match &graph_error {
            BadGraph::Cycle(path) => path.get(1).copied(),
            BadGraph::TooDeep(path) => path.iter().rev().find(|job| jobs.contains(job)).copied(),
        };
        let index = specs.iter().position(|spec| self.ids.get(&spec.name).copied() == job_in_error).unwrap_or_default();
        Some(FieldError::new(format!("/{index}/schedule"), self.describe(&graph_error)))
    }

    fn describe(&self, graph_error: &BadGraph) -> String {
        let names: HashMap<JobId, &str> = self.ids.iter().map(|(name, id)| (*id, name.as_str())).collect();
        let path_text = |path: &[JobId]| {
            path.iter().map(|id| names.get(id).copied().unwrap_or("…")).collect::<Vec<_>>().join(" -> ")
        };
        match graph_error {
            BadGraph::Cycle(path) => format!("would run after itself: {}", path_text(path)),
            BadGraph::TooDeep(path) => format!(
                "makes a chain of {} jobs, of which at most {DEPTH_MAX} may follow from each other: {}",
                path.len(),
                path_text(path)
            ),
        }
    }
}
