//! Whether the parents that a list names exist when it is applied, and make no circle with those that are there.

use std::collections::{BTreeSet, HashMap};

use rondel_core::declared::parents_first;
use rondel_core::graph::{BadGraph, DEPTH_MAX, Edge, Graph};
use rondel_core::{FieldError, JobId, JobSpec};
use rondel_store::StoreError;

use super::{Application, Present};
use crate::engine::Engine;

/// The jobs by name as they will be, and the edges between those that the list does not touch.
struct Standing<'a> {
    ids: HashMap<&'a str, JobId>,
    edges: Vec<Edge>,
    gone: BTreeSet<JobId>,
}

impl Engine {
    pub(super) async fn check_graph(
        &self,
        wanted: &Application,
        present: &Present,
    ) -> Result<Vec<FieldError>, StoreError> {
        let named: BTreeSet<&str> = wanted.specs.iter().map(|spec| spec.name.as_str()).collect();
        let parents: BTreeSet<&str> =
            wanted.specs.iter().flat_map(|spec| spec.parents()).map(|parent| parent.name).collect();
        if parents.is_empty() && present.removed.is_empty() {
            return Ok(Vec::new());
        }
        let elsewhere: Vec<&str> = parents.difference(&named).copied().collect();
        let elsewhere: Vec<&str> =
            elsewhere.into_iter().filter(|name| rondel_core::name::check(name).is_ok()).collect();
        let others = self.store().jobs_named(wanted.namespace, &elsewhere).await?;
        let all = self.store().edges(wanted.namespace).await?;
        let gone: BTreeSet<JobId> = present.removed.iter().map(|job| job.id).collect();
        let own: BTreeSet<JobId> = present.named.values().map(|job| job.id).collect();
        let mut ids: HashMap<&str, JobId> = named
            .iter()
            .map(|name| (*name, present.named.get(*name).map_or_else(|| JobId::new(self.new_id()), |job| job.id)))
            .collect();
        let staying = others.iter().filter(|job| !gone.contains(&job.id));
        ids.extend(staying.map(|job| (job.spec.name.as_str(), job.id)));
        let edges = all.into_iter().filter(|edge| !own.contains(&edge.child) && !gone.contains(&edge.child)).collect();
        let standing = Standing { ids, edges, gone };
        let mut errors = standing.missing(&wanted.specs);
        if errors.is_empty() {
            errors.extend(standing.bad(&wanted.specs));
        }
        errors.extend(self.orphans(&standing).await?);
        Ok(errors)
    }

    /// Jobs outside of the list that follow from one that is to go.
    async fn orphans(&self, standing: &Standing<'_>) -> Result<Vec<FieldError>, StoreError> {
        let lost: Vec<Edge> =
            standing.edges.iter().filter(|edge| standing.gone.contains(&edge.parent)).copied().collect();
        let ids: BTreeSet<JobId> = lost.iter().flat_map(|edge| [edge.child, edge.parent]).collect();
        let names: HashMap<JobId, String> =
            self.store().job_names(&ids.into_iter().collect::<Vec<_>>()).await?.into_iter().collect();
        let name = |id: JobId| names.get(&id).map_or("?", String::as_str);
        let error = |edge: &Edge| {
            let parent = name(edge.parent);
            let message = format!("{parent:?} is not in the list and would be removed, but a job follows from it");
            FieldError::new("", message).with_jobs([edge.parent, edge.child].map(|id| name(id).to_owned()).to_vec())
        };
        Ok(lost.iter().map(error).collect())
    }
}

impl Standing<'_> {
    fn missing(&self, specs: &[JobSpec]) -> Vec<FieldError> {
        let mut errors = Vec::new();
        for (index, spec) in specs.iter().enumerate() {
            for parent in spec.parents().into_iter().filter(|parent| !self.ids.contains_key(parent.name)) {
                let message = format!("there is no job {:?} in this namespace, nor in the list", parent.name);
                errors.push(FieldError::new(format!("/{index}{}", parent.pointer), message));
            }
        }
        errors
    }

    /// The first job of the list that would follow from itself, or make too long a chain.
    fn bad(&self, specs: &[JobSpec]) -> Option<FieldError> {
        let mut graph = Graph::new(self.edges.iter().copied());
        for spec in parents_first(specs.to_vec()) {
            let id = self.ids.get(spec.name.as_str())?;
            let parents: Vec<_> =
                spec.parents().iter().filter_map(|parent| Some((*self.ids.get(parent.name)?, parent.on))).collect();
            let Err(bad) = graph.replace(*id, &parents) else { continue };
            let index = specs.iter().position(|one| one.name == spec.name).unwrap_or_default();
            return Some(FieldError::new(format!("/{index}/schedule"), self.sentence(&bad)));
        }
        None
    }

    fn sentence(&self, bad: &BadGraph) -> String {
        let names: HashMap<JobId, &str> = self.ids.iter().map(|(name, id)| (*id, *name)).collect();
        let shown = |path: &[JobId]| {
            path.iter().map(|id| names.get(id).copied().unwrap_or("…")).collect::<Vec<_>>().join(" -> ")
        };
        match bad {
            BadGraph::Cycle(path) => format!("would run after itself: {}", shown(path)),
            BadGraph::TooDeep(path) => format!(
                "makes a chain of {} jobs, of which at most {DEPTH_MAX} may follow from each other: {}",
                path.len(),
                shown(path)
            ),
        }
    }
}
