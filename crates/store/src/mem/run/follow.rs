//! The runs that follow from ended runs.

use std::collections::{BTreeMap, BTreeSet};

use rondel_core::graph::Graph;
use rondel_core::{JobId, NodeId, Run, RunId, RunStatus, Timestamp, Trigger};

use crate::follow::{
    Child, EndedRun, FireFacts, Member, ParentResult, ParentUpdate, Root, detached, jobs_below, params,
};
use crate::ledger::{Ends, Finisher};
use crate::mem::{State, StoredNode};

impl State {
    /// Records that a run, or a whole broadcast, has got its verdict.
    pub(super) fn note_ended_run(&mut self, id: RunId, awaits_children: bool) {
        let Some(run) = self.runs.get(&id).filter(|run| self.broadcast_of(run).is_none()) else { return };
        let awaits_children = awaits_children && run.status == RunStatus::Succeeded;
        let ended_run = EndedRun { run: id, job: run.job, cause: run.cause, trigger: run.trigger, awaits_children };
        self.ended_runs.push(ended_run);
    }

    /// Releases or skips the children of ended runs, and counts the open children of the runs that await their children.
    pub(in crate::mem) fn follow_runs(&mut self, finisher: Finisher<'_>, ends: &mut Ends, now: Timestamp) {
        let ended_runs = std::mem::take(&mut self.ended_runs);
        let graph = Graph::new(self.parents.iter().copied());
        let parent_jobs: BTreeSet<JobId> = self.parents.iter().map(|edge| edge.parent).collect();
        let created_at_by_job =
            self.jobs.iter().map(|(job, stored_job)| (*job, stored_job.record.created_at)).collect();
        let may_have_followers =
            |ended_run: &&EndedRun| ended_run.trigger == Trigger::Parent || parent_jobs.contains(&ended_run.job);
        let roots: BTreeSet<RunId> = ended_runs.iter().filter(may_have_followers).map(EndedRun::root).collect();
        for root in roots {
            let Some(run) = self.runs.get(&root) else { continue };
            let root = Root { run: root, job: run.job, fire_at: run.fire_at, due_at: run.due_at };
            let runs_of_root: Vec<EndedRun> =
                ended_runs.iter().filter(|ended_run| ended_run.root() == root.run).copied().collect();
            let detached_jobs = self.jobs_above(detached(&graph, std::slice::from_ref(&root), &runs_of_root));
            let members = self.members(&root, &graph, &detached_jobs);
            let facts = FireFacts {
                root: &root,
                graph: &graph,
                created_at_by_job: &created_at_by_job,
                members,
                ended_runs: runs_of_root,
            };
            let children = self.children(&facts, finisher);
            let plan = facts.plan(&children, finisher.ids, now);
            for follower in plan.followers {
                let mut run = follower.run;
                if !run.status.is_terminal()
                    && let Some(child) = children.get(&run.job)
                {
                    let parents = follower.parents.iter().filter_map(|parent| self.parent_result(*parent)).collect();
                    run.params = Some(params(&child.spec.params, parents));
                }
                if self.insert(run.clone()) && !run.status.is_terminal() {
                    self.take_home(&run);
                    ends.released_runs.push(run);
                }
            }
            plan.parent_updates.into_iter().for_each(|update| self.apply_parent_update(&update, ends, now));
        }
    }

    /// The jobs of these runs' parents, grandparents and so on in their fires, except the roots.
    fn jobs_above(&self, runs: Vec<RunId>) -> BTreeSet<JobId> {
        let mut jobs = BTreeSet::new();
        for id in runs {
            let mut next_id = Some(id);
            while let Some(run) = next_id.and_then(|id| self.runs.get(&id)).filter(|run| run.trigger == Trigger::Parent)
            {
                jobs.insert(run.job);
                next_id = run.parent;
            }
        }
        jobs
    }

    fn members(&self, root: &Root, graph: &Graph, detached_jobs: &BTreeSet<JobId>) -> BTreeMap<JobId, Member> {
        let to_member = |run: &Run| Member {
            run: run.id,
            name: self.jobs.get(&run.job).map(|stored_job| stored_job.record.spec.name.clone()).unwrap_or_default(),
            status: run.status,
            reason: run.reason,
            open_children: run.open_children,
        };
        let job_and_member = |job: JobId| {
            let run_of_shard =
                |shard| self.keys.get(&(job, root.fire_at, root.run.get(), shard)).and_then(|id| self.runs.get(id));
            let run =
                if job == root.job { self.runs.get(&root.run) } else { run_of_shard(-1).or_else(|| run_of_shard(0)) };
            Some((job, to_member(run?)))
        };
        jobs_below(graph, root.job, detached_jobs).into_iter().filter_map(job_and_member).collect()
    }

    pub(in crate::mem) fn children(&self, facts: &FireFacts<'_>, finisher: Finisher<'_>) -> BTreeMap<JobId, Child> {
        let jobs = facts.jobs().into_iter().filter(|job| !facts.members.contains_key(job));
        let child = |job: JobId| {
            let stored_job = self.jobs.get(&job).filter(|stored_job| !stored_job.is_deleted)?;
            let home = self.due.get(&job).and_then(|due| self.nodes.get(&due.home));
            let lease = home.map(StoredNode::lease_of_home);
            let owner = lease.filter(|lease| lease.node != finisher.token.node).unwrap_or(finisher.token);
            let record = &stored_job.record;
            let (namespace, app, version, spec) = (record.namespace, record.app, record.version, record.spec.clone());
            Some((job, Child { namespace, app, version, spec, owner }))
        };
        jobs.filter_map(child).collect()
    }

    pub(in crate::mem) fn parent_result(&self, id: RunId) -> Option<ParentResult> {
        let run = self.runs.get(&id)?;
        let stored_job = self.jobs.get(&run.job)?;
        let version = stored_job.versions.get(&run.job_version);
        Some(ParentResult {
            job_name: stored_job.record.spec.name.clone(),
            run: id,
            status: if run.status.is_terminal() { run.status } else { RunStatus::Succeeded },
            is_follower: run.trigger == Trigger::Parent,
            params: run.params.clone(),
            job_params: version.map(|version| version.spec.params.clone()).unwrap_or_default(),
            result: run.result.clone(),
        })
    }

    /// Makes the owner of a new run the home of the run's job, if the job's old home no longer exists.
    fn take_home(&mut self, run: &Run) {
        if let Some(due) = self.due.get_mut(&run.job).filter(|due| due.home != run.node) {
            (due.home, due.term) = (NodeId::new(run.node.get()), due.term + 1);
        }
    }

    pub(super) fn apply_parent_update(&mut self, update: &ParentUpdate, ends: &mut Ends, now: Timestamp) {
        let Some(run) = self.runs.get_mut(&update.run) else { return };
        (run.status, run.open_children) = (update.status, Some(update.open_children));
        if update.message.is_some() {
            run.message.clone_from(&update.message);
        }
        if !update.status.is_terminal() {
            ends.awaiting_runs.extend(update.is_new.then_some((update.job, update.run)));
            return;
        }
        run.finished_at = Some(now);
        self.cancels.remove(&update.run);
        self.add_message(update.run, now);
        ends.ended_parents.push((update.job, update.run));
    }
}
