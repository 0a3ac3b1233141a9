//! Which jobs follow from which: cycles and chains that are too long, found when a definition is saved, and what the ends
//! of a fire's runs mean for the jobs that wait for them.
//!
//! A fire begins with one run, its root. Every job that follows from the root's job, directly or over others, has one run
//! in that fire, which comes into being when all of its parents that belong to the same fire have ended.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::id::JobId;
use crate::run::{Reason, RunStatus};
use crate::spec::AfterWhat;

/// How many jobs a chain of parents and children may have.
pub const DEPTH_MAX: usize = 20;

/// One job follows from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The job that follows.
    pub child: JobId,
    /// The job that it follows from.
    pub parent: JobId,
    /// How that must have ended.
    pub on: AfterWhat,
}

/// Jobs and the jobs that follow from them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    parents: BTreeMap<JobId, BTreeMap<JobId, AfterWhat>>,
    children: BTreeMap<JobId, BTreeSet<JobId>>,
}

/// Why a job cannot have the parents that it names. The jobs of a path stand in the order in which they would run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadGraph {
    /// It would follow from itself. The path begins with the parent that closes the circle, and ends with it.
    Cycle(Vec<JobId>),
    /// A chain would have more than [`DEPTH_MAX`] jobs: this one.
    TooDeep(Vec<JobId>),
}

impl Graph {
    /// The graph with these edges.
    #[must_use]
    pub fn new(edges: impl IntoIterator<Item = Edge>) -> Self {
        let mut graph = Self::default();
        edges.into_iter().for_each(|edge| graph.add(edge));
        graph
    }

    /// Adds an edge.
    pub fn add(&mut self, edge: Edge) {
        self.parents.entry(edge.child).or_default().insert(edge.parent, edge.on);
        self.children.entry(edge.parent).or_default().insert(edge.child);
    }

    /// Gives a job these parents instead of those that it had, if that makes neither a circle nor a chain that is too
    /// long. What is refused is in the graph all the same: throw it away.
    ///
    /// # Errors
    /// [`BadGraph`], with the path.
    ///
    /// ```
    /// use rondel_core::JobId;
    /// use rondel_core::graph::{BadGraph, Edge, Graph};
    /// use rondel_core::spec::AfterWhat;
    ///
    /// let [a, b] = [JobId::new(1), JobId::new(2)];
    /// let mut graph = Graph::new([Edge { child: b, parent: a, on: AfterWhat::Success }]);
    /// assert_eq!(graph.replace(a, &[(b, AfterWhat::Success)]), Err(BadGraph::Cycle(vec![b, a, b])));
    /// ```
    pub fn replace(&mut self, job: JobId, parents: &[(JobId, AfterWhat)]) -> Result<(), BadGraph> {
        for parent in self.parents.remove(&job).unwrap_or_default().into_keys() {
            self.children.entry(parent).or_default().remove(&job);
        }
        for (parent, _) in parents.iter().copied() {
            if let Some(path) = self.path(job, parent) {
                return Err(BadGraph::Cycle(std::iter::once(parent).chain(path).collect()));
            }
        }
        parents.iter().for_each(|&(parent, on)| self.add(Edge { child: job, parent, on }));
        let mut chain = self.longest(job, |graph, job| graph.parents_of(job).collect(), &mut BTreeMap::new());
        chain.reverse();
        let down = self.longest(job, |graph, job| graph.children_of(job).collect(), &mut BTreeMap::new());
        chain.extend(down.into_iter().skip(1));
        if chain.len() > DEPTH_MAX { Err(BadGraph::TooDeep(chain)) } else { Ok(()) }
    }

    /// A job and all that follow from it, directly or over others.
    #[must_use]
    pub fn reach(&self, root: JobId) -> BTreeSet<JobId> {
        let mut reached = BTreeSet::from([root]);
        let mut open = vec![root];
        while let Some(job) = open.pop() {
            open.extend(self.children_of(job).filter(|child| reached.insert(*child)));
        }
        reached
    }

    /// The jobs that follow from a job directly, by id.
    pub fn children_of(&self, job: JobId) -> impl Iterator<Item = JobId> {
        self.children.get(&job).into_iter().flatten().copied()
    }

    fn parents_of(&self, job: JobId) -> impl Iterator<Item = JobId> {
        self.parents.get(&job).into_iter().flat_map(BTreeMap::keys).copied()
    }

    /// The shortest way down from one job to another.
    fn path(&self, from: JobId, to: JobId) -> Option<Vec<JobId>> {
        let mut came_from = BTreeMap::from([(from, from)]);
        let mut open = VecDeque::from([from]);
        while let Some(job) = open.pop_front() {
            if job == to {
                let mut path = vec![to];
                while let Some(before) =
                    path.last().and_then(|last| came_from.get(last)).filter(|_| path.last() != Some(&from))
                {
                    path.push(*before);
                }
                path.reverse();
                return Some(path);
            }
            for child in self.children_of(job) {
                came_from.entry(child).or_insert_with(|| {
                    open.push_back(child);
                    job
                });
            }
        }
        None
    }

    /// The longest chain that begins with a job, in a graph without circles.
    fn longest(
        &self,
        job: JobId,
        next: fn(&Self, JobId) -> Vec<JobId>,
        known: &mut BTreeMap<JobId, Vec<JobId>>,
    ) -> Vec<JobId> {
        if let Some(chain) = known.get(&job) {
            return chain.clone();
        }
        let others = next(self, job).into_iter();
        let longest = others.map(|other| self.longest(other, next, known)).max_by_key(Vec::len);
        let chain: Vec<JobId> = std::iter::once(job).chain(longest.unwrap_or_default()).collect();
        known.insert(job, chain.clone());
        chain
    }
}

/// Where a job stands in a fire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stand {
    /// How it ended for the jobs that follow from it; nothing while it is open.
    pub ended: Option<RunStatus>,
    /// Its verdict. A run that is over only with its children has ended before it has one.
    pub verdict: Option<(RunStatus, Option<Reason>)>,
}

/// What becomes of a job of a fire whose parents have all ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It runs.
    Runs,
    /// It is skipped, since this parent did not end as it wants.
    Refused(JobId),
}

/// The jobs of one fire, and where those stand that have a run in it.
#[derive(Clone, Debug)]
pub struct Fire<'g> {
    graph: &'g Graph,
    members: BTreeSet<JobId>,
    stands: BTreeMap<JobId, Stand>,
}

impl<'g> Fire<'g> {
    /// A fire with these jobs, its root among them.
    #[must_use]
    pub fn new(graph: &'g Graph, members: BTreeSet<JobId>, stands: BTreeMap<JobId, Stand>) -> Self {
        Self { graph, members, stands }
    }

    /// Where a job stands; nothing while it has no run.
    #[must_use]
    pub fn stand(&self, job: JobId) -> Option<Stand> {
        self.stands.get(&job).copied()
    }

    /// A job has a run now, or stands elsewhere.
    pub fn set(&mut self, job: JobId, stand: Stand) {
        self.stands.insert(job, stand);
    }

    /// The parents of a job that belong to this fire.
    pub fn parents_of(&self, job: JobId) -> impl Iterator<Item = JobId> {
        self.graph.parents_of(job).filter(|parent| self.members.contains(parent))
    }

    /// The jobs without a run whose parents have all ended, and what becomes of them, by id.
    #[must_use]
    pub fn turns(&self) -> Vec<(JobId, Turn)> {
        let waiting = self.members.iter().filter(|job| !self.stands.contains_key(job));
        waiting.filter_map(|job| Some((*job, self.turn(*job)?))).collect()
    }

    fn turn(&self, job: JobId) -> Option<Turn> {
        let wanted = self.graph.parents.get(&job)?;
        let mut refused = None;
        let mut count = 0;
        for (parent, on) in wanted.iter().filter(|(parent, _)| self.members.contains(parent)) {
            let ended = self.stand(*parent)?.ended?;
            count += 1;
            if !satisfies(*on, ended) {
                refused = refused.or(Some(*parent));
            }
        }
        (count > 0).then(|| refused.map_or(Turn::Runs, Turn::Refused))
    }

    /// How many of a job's children have no verdict yet.
    #[must_use]
    pub fn open_children(&self, job: JobId) -> usize {
        let is_open = |child: &JobId| self.stand(*child).is_none_or(|stand| stand.verdict.is_none());
        self.children_of(job).filter(is_open).count()
    }

    /// The first child that makes a job fail which is over with its children. A child that had no reason to run fails
    /// nobody: one whose parents did not end as it wants, and one that is paused.
    #[must_use]
    pub fn failing_child(&self, job: JobId) -> Option<(JobId, RunStatus)> {
        self.children_of(job).find_map(|child| match self.stand(child)?.verdict? {
            (RunStatus::Succeeded, _) | (RunStatus::Skipped, Some(Reason::Parent | Reason::Paused)) => None,
            (status, _) => Some((child, status)),
        })
    }

    fn children_of(&self, job: JobId) -> impl Iterator<Item = JobId> {
        self.graph.children_of(job).filter(|child| self.members.contains(child))
    }
}

/// Whether a parent that ended so lets a child run.
#[must_use]
pub const fn satisfies(on: AfterWhat, ended: RunStatus) -> bool {
    let failed = matches!(ended, RunStatus::Failed | RunStatus::TimedOut | RunStatus::Unknown);
    let succeeded = matches!(ended, RunStatus::Succeeded);
    match on {
        AfterWhat::Success => succeeded,
        AfterWhat::Failure => failed,
        AfterWhat::Either => succeeded || failed,
    }
}

#[cfg(test)]
#[path = "graph_tests.rs"]
mod tests;
