//! Which jobs follow from which. When a definition is saved, this module finds cycles and chains that are too long. When a run ends, it
//! decides which child jobs of the fire run.
//!
//! A fire begins with one run, its root. Every job that follows from the root's job, directly or indirectly, has one run in that fire. The
//! run is created when all of the job's parents that belong to the same fire have ended.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::id::JobId;
use crate::reason::Reason;
use crate::spec::AfterWhat;
use crate::status::RunStatus;

/// How many jobs a chain of parents and children may have.
pub const DEPTH_MAX: usize = 20;

/// One job follows from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The job that follows.
    pub child: JobId,
    /// The job that it follows from.
    pub parent: JobId,
    /// How the parent must have ended.
    pub on: AfterWhat,
}

/// Jobs and the jobs that follow from them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    parents: BTreeMap<JobId, BTreeMap<JobId, AfterWhat>>,
    children: BTreeMap<JobId, BTreeSet<JobId>>,
}

/// Why a job cannot have its parents. Each path lists its jobs in the order in which they would run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadGraph {
    /// The job would follow from itself. The path begins and ends with the parent that closes the cycle.
    Cycle(Vec<JobId>),
    /// This chain would have more than [`DEPTH_MAX`] jobs.
    TooDeep(Vec<JobId>),
}

impl Graph {
    #[must_use]
    pub fn new(edges: impl IntoIterator<Item = Edge>) -> Self {
        let mut graph = Self::default();
        edges.into_iter().for_each(|edge| graph.add(edge));
        graph
    }

    pub fn add(&mut self, edge: Edge) {
        self.parents.entry(edge.child).or_default().insert(edge.parent, edge.on);
        self.children.entry(edge.parent).or_default().insert(edge.child);
    }

    /// Replaces a job's parents, unless that makes a cycle or a chain that is too long. After an error the graph is changed,
    /// and must be discarded.
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
            if let Some(path) = self.shortest_path(job, parent) {
                return Err(BadGraph::Cycle(std::iter::once(parent).chain(path).collect()));
            }
        }
        parents.iter().for_each(|&(parent, on)| self.add(Edge { child: job, parent, on }));
        let chain = Chains::of(self, &self.topological_order().sorted_jobs).longest_chain_through(job);
        if chain.len() > DEPTH_MAX { Err(BadGraph::TooDeep(chain)) } else { Ok(()) }
    }

    /// Refuses a cycle, and a chain through one of these jobs that is too long. Each edge is visited a fixed number of times,
    /// however many chains lead through it. If several jobs are at fault, the path belongs to the job that would complete the
    /// cycle or the chain if the jobs were saved in the given order.
    ///
    /// # Errors
    /// [`BadGraph`], with the path.
    pub fn check(&self, jobs: &[JobId]) -> Result<(), BadGraph> {
        let TopologicalOrder { sorted_jobs, unsorted_jobs, .. } = self.topological_order();
        if !unsorted_jobs.is_empty() {
            return Err(BadGraph::Cycle(self.find_cycle(&unsorted_jobs, jobs)));
        }
        let chains = Chains::of(self, &sorted_jobs);
        let too_deep_job = jobs.iter().find(|job| chains.chain_len_above(**job) > DEPTH_MAX);
        let too_deep_part = || jobs.iter().rev().find(|job| chains.chain_len_through(**job) > DEPTH_MAX);
        match (too_deep_job, too_deep_job.is_none().then(too_deep_part).flatten()) {
            (Some(job), _) => Err(BadGraph::TooDeep(chains.longest_chain_to(*job))),
            (None, Some(job)) => Err(BadGraph::TooDeep(chains.longest_chain_through(*job))),
            (None, None) => Ok(()),
        }
    }

    /// A job and all jobs that follow from it, directly or indirectly.
    #[must_use]
    pub fn with_followers(&self, root: JobId) -> BTreeSet<JobId> {
        let mut reached_jobs = BTreeSet::from([root]);
        let mut jobs_to_visit = vec![root];
        while let Some(job) = jobs_to_visit.pop() {
            jobs_to_visit.extend(self.children_of(job).filter(|child| reached_jobs.insert(*child)));
        }
        reached_jobs
    }

    /// The jobs that follow directly from a job, in the order of their ids.
    pub fn children_of(&self, job: JobId) -> impl Iterator<Item = JobId> {
        self.children.get(&job).into_iter().flatten().copied()
    }

    fn parents_of(&self, job: JobId) -> impl Iterator<Item = JobId> {
        self.parents.get(&job).into_iter().flat_map(BTreeMap::keys).copied()
    }

    /// The shortest path down from one job to another.
    fn shortest_path(&self, from: JobId, to: JobId) -> Option<Vec<JobId>> {
        let mut came_from = BTreeMap::from([(from, from)]);
        let mut jobs_to_visit = VecDeque::from([from]);
        while let Some(job) = jobs_to_visit.pop_front() {
            if job == to {
                let mut path = vec![to];
                while let Some(job_before) =
                    path.last().and_then(|last| came_from.get(last)).filter(|_| path.last() != Some(&from))
                {
                    path.push(*job_before);
                }
                path.reverse();
                return Some(path);
            }
            for child in self.children_of(job) {
                came_from.entry(child).or_insert_with(|| {
                    jobs_to_visit.push_back(child);
                    job
                });
            }
        }
        None
    }

    /// Sorts every job after all of its parents. Jobs of a cycle, and those that follow from one, stay unsorted.
    fn topological_order(&self) -> TopologicalOrder {
        let mut open_parent_counts: BTreeMap<JobId, usize> = self
            .parents
            .iter()
            .filter(|(_, parents)| !parents.is_empty())
            .map(|(job, parents)| (*job, parents.len()))
            .collect();
        let mut sorted_jobs: Vec<JobId> =
            self.children.keys().filter(|job| !open_parent_counts.contains_key(job)).copied().collect();
        let (mut next_index, mut step_count) = (0, 0);
        while let Some(job) = sorted_jobs.get(next_index).copied() {
            next_index += 1;
            for child in self.children_of(job) {
                step_count += 1;
                let Some(count) = open_parent_counts.get_mut(&child) else { continue };
                *count -= 1;
                if *count == 0 {
                    open_parent_counts.remove(&child);
                    sorted_jobs.push(child);
                }
            }
        }
        TopologicalOrder { sorted_jobs, unsorted_jobs: open_parent_counts.into_keys().collect(), step_count }
    }

    /// A cycle among these jobs, each of which has a parent among them. The path begins and ends with the parent of the job that comes last
    /// in `job_order`.
    fn find_cycle(&self, unsorted_jobs: &BTreeSet<JobId>, job_order: &[JobId]) -> Vec<JobId> {
        let mut visited_jobs = BTreeSet::new();
        let mut path_up: Vec<JobId> = Vec::new();
        let mut job = unsorted_jobs.first().copied();
        while let Some(current_job) = job.filter(|job| visited_jobs.insert(*job)) {
            path_up.push(current_job);
            job = self.parents_of(current_job).find(|parent| unsorted_jobs.contains(parent));
        }
        let start = path_up.iter().position(|visited_job| Some(*visited_job) == job).unwrap_or_default();
        let mut cycle = path_up.split_off(start);
        cycle.reverse();
        let rank: BTreeMap<JobId, usize> = job_order.iter().enumerate().map(|(rank, job)| (*job, rank + 1)).collect();
        let last_saved_index = (0..cycle.len()).max_by_key(|at| cycle.get(*at).and_then(|job| rank.get(job)));
        cycle.rotate_left(last_saved_index.unwrap_or_default());
        cycle.last().copied().into_iter().chain(cycle).collect()
    }
}

/// The jobs of a graph, sorted so that each comes after its parents.
struct TopologicalOrder {
    sorted_jobs: Vec<JobId>,
    unsorted_jobs: BTreeSet<JobId>,
    /// How many edges were visited.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests hold the number of steps"))]
    step_count: usize,
}

/// The longest chains above and below each job: the number of jobs, the job itself included, and the next job of the chain.
struct Chains {
    chains_above: BTreeMap<JobId, (usize, Option<JobId>)>,
    chains_below: BTreeMap<JobId, (usize, Option<JobId>)>,
    /// How many edges were visited.
    step_count: usize,
}

impl Chains {
    fn of(graph: &Graph, sorted_jobs: &[JobId]) -> Self {
        let mut chains = Self { chains_above: BTreeMap::new(), chains_below: BTreeMap::new(), step_count: 0 };
        let longest_chain = |chains_so_far: &BTreeMap<JobId, (usize, Option<JobId>)>,
                             neighbours: &mut dyn Iterator<Item = JobId>| {
            let lengths_and_neighbours =
                neighbours.map(|neighbour| (chains_so_far.get(&neighbour).map_or(1, |(len, _)| *len), neighbour));
            let (mut longest, mut count) = ((0, None), 0);
            for (len, neighbour) in lengths_and_neighbours {
                count += 1;
                longest = if len >= longest.0 { (len, Some(neighbour)) } else { longest };
            }
            ((longest.0 + 1, longest.1), count)
        };
        for job in sorted_jobs {
            let (chain, count) = longest_chain(&chains.chains_above, &mut graph.parents_of(*job));
            chains.chains_above.insert(*job, chain);
            chains.step_count += count;
        }
        for job in sorted_jobs.iter().rev() {
            let (chain, count) = longest_chain(&chains.chains_below, &mut graph.children_of(*job));
            chains.chains_below.insert(*job, chain);
            chains.step_count += count;
        }
        chains
    }

    fn chain_len_above(&self, job: JobId) -> usize {
        self.chains_above.get(&job).map_or(1, |(len, _)| *len)
    }

    fn chain_len_through(&self, job: JobId) -> usize {
        self.chain_len_above(job) + self.chains_below.get(&job).map_or(1, |(len, _)| *len) - 1
    }

    /// The longest chain that ends with a job.
    fn longest_chain_to(&self, job: JobId) -> Vec<JobId> {
        let mut chain = follow_chain(&self.chains_above, job);
        chain.reverse();
        chain
    }

    /// The longest chain that a job is part of.
    fn longest_chain_through(&self, job: JobId) -> Vec<JobId> {
        let mut chain = self.longest_chain_to(job);
        chain.extend(follow_chain(&self.chains_below, job).into_iter().skip(1));
        chain
    }
}

fn follow_chain(chains: &BTreeMap<JobId, (usize, Option<JobId>)>, job: JobId) -> Vec<JobId> {
    std::iter::successors(Some(job), |job| chains.get(job).and_then(|(_, next)| *next)).collect()
}

/// The state of a job in a fire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobInFire {
    /// How its own run ended; this decides whether its children run. `None` while it is open.
    pub end_status: Option<RunStatus>,
    /// Its verdict; `None` while it has none. If the job ends with its children, the verdict comes later than `end_status`, and may be a
    /// failure because of a child.
    pub verdict: Option<(RunStatus, Option<Reason>)>,
}

/// Whether a job runs in a fire. This is decided once all of its parents have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildStart {
    Runs,
    /// It is skipped because this parent did not end as required.
    Refused(JobId),
}

/// The jobs of one fire, and the states of those that have a run in it.
#[derive(Clone, Debug)]
pub struct FireGraph<'g> {
    graph: &'g Graph,
    members: BTreeSet<JobId>,
    states: BTreeMap<JobId, JobInFire>,
}

impl<'g> FireGraph<'g> {
    /// A fire with these jobs, its root among them.
    #[must_use]
    pub fn new(graph: &'g Graph, members: BTreeSet<JobId>, states: BTreeMap<JobId, JobInFire>) -> Self {
        Self { graph, members, states }
    }

    /// The state of a job; `None` while the job has no run in this fire.
    #[must_use]
    pub fn state_of(&self, job: JobId) -> Option<JobInFire> {
        self.states.get(&job).copied()
    }

    /// Records that a job has a run, or that its state changed.
    pub fn set(&mut self, job: JobId, state: JobInFire) {
        self.states.insert(job, state);
    }

    /// The parents of a job that belong to this fire.
    pub fn parents_of(&self, job: JobId) -> impl Iterator<Item = JobId> {
        self.graph.parents_of(job).filter(|parent| self.members.contains(parent))
    }

    /// The jobs that have no run yet although all of their parents have ended, each with the decision whether it runs, in the order of
    /// their ids.
    #[must_use]
    pub fn ready_children(&self) -> Vec<(JobId, ChildStart)> {
        let jobs_without_run = self.members.iter().filter(|job| !self.states.contains_key(job));
        jobs_without_run.filter_map(|job| Some((*job, self.child_start(*job)?))).collect()
    }

    fn child_start(&self, job: JobId) -> Option<ChildStart> {
        let parents = self.graph.parents.get(&job)?;
        let mut refusing_parent = None;
        let mut count = 0;
        for (parent, on) in parents.iter().filter(|(parent, _)| self.members.contains(parent)) {
            let end_status = self.state_of(*parent)?.end_status?;
            count += 1;
            if !satisfies(*on, end_status) {
                refusing_parent = refusing_parent.or(Some(*parent));
            }
        }
        (count > 0).then(|| refusing_parent.map_or(ChildStart::Runs, ChildStart::Refused))
    }

    /// How many of a job's children have no verdict yet.
    #[must_use]
    pub fn open_child_count(&self, job: JobId) -> usize {
        let is_open = |child: &JobId| self.state_of(*child).is_none_or(|state| state.verdict.is_none());
        self.children_of(job).filter(is_open).count()
    }

    /// For a job that waits for its children: the first child that makes it fail. A child does not count if it was skipped
    /// because a parent did not end as required, because the child is paused, or because it is in shadow mode.
    #[must_use]
    pub fn failing_child(&self, job: JobId) -> Option<(JobId, RunStatus)> {
        self.children_of(job).find_map(|child| match self.state_of(child)?.verdict? {
            (RunStatus::Succeeded, _)
            | (RunStatus::Skipped, Some(Reason::Parent | Reason::Paused | Reason::Shadow)) => None,
            (status, _) => Some((child, status)),
        })
    }

    fn children_of(&self, job: JobId) -> impl Iterator<Item = JobId> {
        self.graph.children_of(job).filter(|child| self.members.contains(child))
    }
}

/// Whether a parent's end lets a child run.
#[must_use]
pub const fn satisfies(on: AfterWhat, end_status: RunStatus) -> bool {
    let has_failed = matches!(end_status, RunStatus::Failed | RunStatus::TimedOut | RunStatus::Unknown);
    let has_succeeded = matches!(end_status, RunStatus::Succeeded);
    match on {
        AfterWhat::Success => has_succeeded,
        AfterWhat::Failure => has_failed,
        AfterWhat::Either => has_succeeded || has_failed,
    }
}

#[cfg(test)]
#[path = "graph_tests.rs"]
mod tests;
