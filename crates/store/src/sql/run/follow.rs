//! The runs that follow from ended runs: the children of a fire, which are released in the transaction of the ends.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rondel_core::graph::{DEPTH_MAX, Edge, Graph};
use rondel_core::{AppId, JobId, JobSpec, NamespaceId, NodeId, Run, RunId, RunStatus, Timestamp, Trigger};

use crate::follow::{
    Child, EndedRun, FireFacts, FirePlan, Follower, Member, ParentResult, ParentUpdate, Root, detached, jobs_below,
    params,
};
use crate::ledger::{Finisher, lease_of_home};
use crate::outbox::is_failure;
use crate::sql::catalog::read::READ_JOB_NAMES;
use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement};
use crate::sql::{Tx, rows};
use crate::{LeaseToken, Result};

pub(in crate::sql) const FIND_PARENTS: Statement =
    Statement { name: "find_parents", text: "SELECT DISTINCT parent_id FROM job_parent WHERE parent_id {in_list}" };
/// The end of a run locks the row of its fire's root, so that of two concurrent ends the second sees the first.
pub(in crate::sql) const LOCK_ROOTS: Statement = Statement {
    name: "lock_roots",
    text: "SELECT id, job_id, fire_at_ms, due_at_ms, status, reason, open_children, {now} FROM run \
           WHERE id {in_list} ORDER BY id {for_update}",
};
const READ_EDGES: Statement = Statement {
    name: "read_edges",
    text: "SELECT job_parent.child_id, job_parent.parent_id, job_parent.on_what, job.created_at_ms FROM job_parent \
           JOIN job ON job.id = job_parent.child_id WHERE job_parent.parent_id {in_list} AND job.retired = 0",
};
pub(in crate::sql) const READ_MEMBERS: Statement = Statement {
    name: "read_members",
    text: "SELECT run.id, run.job_id, run.cause, run.shard_index, run.status, run.reason, run.open_children \
           FROM {rows:iii} JOIN run ON run.job_id = v.column1 AND run.fire_at_ms = v.column2 \
           AND run.cause = v.column3 AND run.shard_index IN (0, -1)",
};
const READ_RUNS_ABOVE: Statement = Statement {
    name: "read_runs_above",
    text: "SELECT id, job_id, parent_id FROM run WHERE id {in_list} AND trigger_kind = 'parent'",
};
const READ_CHILDREN: Statement = Statement {
    name: "read_children",
    text: "SELECT job.id, job.namespace_id, job.app_id, job.version, job_version.spec, job_due.home, node.id, \
           node.epoch, node.lease_until_ms, node.prior_lease_until_ms FROM job JOIN job_version ON job_version.job_id = job.id AND job_version.version = job.version \
           JOIN job_due ON job_due.job_id = job.id \
           LEFT JOIN node ON node.id = job_due.home \
           WHERE job.id {in_list} AND job.retired = 0",
};
const READ_PARENT_RESULTS: Statement = Statement {
    name: "read_parent_results",
    text: "SELECT run.id, job.name, run.status, run.trigger_kind, run.params, job_version.spec, run.result FROM run \
           JOIN job ON job.id = run.job_id JOIN job_version ON job_version.job_id = run.job_id \
           AND job_version.version = run.job_version WHERE run.id {in_list}",
};
const FOLD_CHILDREN: Statement = Statement {
    name: "fold_children",
    text: "UPDATE {join:iitit}run SET open_children = v.column2, status = v.column3, \
           finished_at_ms = COALESCE(v.column4, run.finished_at_ms), message = COALESCE(v.column5, run.message) \
           {from:iitit} WHERE {of_rows:run.id} AND {check}run.status IN ('running', 'succeeded'){end}",
};
const TAKE_HOMES: Statement = Statement {
    name: "take_homes",
    text: "UPDATE {join:iii}job_due SET home = v.column3, term = term + 1 {from:iii} \
           WHERE {of_rows:job_due.job_id} AND {check}job_due.home = v.column2{end}",
};

/// The effects of a batch of ended runs on the other runs of their fires.
#[derive(Debug, Default)]
pub(super) struct FollowResult {
    /// Children that were released: their runs are open.
    pub(super) released_runs: Vec<Run>,
    /// Runs that now await their children.
    pub(super) awaiting_runs: Vec<(JobId, RunId)>,
    /// Runs that awaited their children and have now ended.
    pub(super) ended_parents: Vec<(JobId, RunId)>,
    /// The runs in `ended_parents` that failed.
    pub(super) failed_runs: Vec<RunId>,
}

/// A child, and the home that its job has lost. `lost_home` is set if the job's home has no node row; it is 0 if the job never had a home.
struct Candidate {
    child: Child,
    lost_home: Option<NodeId>,
}

/// The roots of a batch, and the state of their own rows.
struct Roots {
    roots: Vec<Root>,
    members: HashMap<RunId, Member>,
    now: Timestamp,
}

impl Tx<'_> {
    /// Releases or skips the children of runs that have just got their verdict, and counts the open children of the runs that await their
    /// children.
    pub(super) async fn follow_runs(
        &mut self,
        finisher: Finisher<'_>,
        ended_runs: &[EndedRun],
    ) -> Result<FollowResult> {
        let ended_runs = self.with_fires(ended_runs).await?;
        if ended_runs.is_empty() {
            return Ok(FollowResult::default());
        }
        let Roots { roots, mut members, now } = self.lock_roots(&ended_runs).await?;
        let root_jobs: BTreeSet<JobId> = roots.iter().map(|root| root.job).collect();
        let (mut graph, mut created_at_by_job) = self.read_graph_below(root_jobs.clone()).await?;
        let detached_jobs = self.read_jobs_above(detached(&graph, &roots, &ended_runs)).await?;
        if !detached_jobs.is_empty() {
            (graph, created_at_by_job) =
                self.read_graph_below(root_jobs.union(&detached_jobs).copied().collect()).await?;
        }
        let mut stored_members = self.read_members(&roots, &graph, &detached_jobs).await?;
        let mut facts: Vec<FireFacts<'_>> = Vec::with_capacity(roots.len());
        for root in &roots {
            let mut root_members = stored_members.remove(&root.run).unwrap_or_default();
            root_members.extend(members.remove(&root.run).map(|member| (root.job, member)));
            let runs_of_root = ended_runs.iter().filter(|ended_run| ended_run.root() == root.run).copied().collect();
            facts.push(FireFacts {
                root,
                graph: &graph,
                created_at_by_job: &created_at_by_job,
                members: root_members,
                ended_runs: runs_of_root,
            });
        }
        self.name_members(&mut facts).await?;
        let candidates = self.read_candidates(finisher, &facts).await?;
        let children: BTreeMap<JobId, Child> =
            candidates.iter().map(|(job, candidate)| (*job, candidate.child.clone())).collect();
        let plans: Vec<FirePlan> = facts.iter().map(|facts| facts.plan(&children, finisher.ids, now)).collect();
        let (followers, updates): (Vec<_>, Vec<_>) =
            plans.into_iter().map(|plan| (plan.followers, plan.parent_updates)).unzip();
        let mut follow_result = self.write_parent_updates(updates.concat(), now).await?;
        follow_result.released_runs = self.insert_followers(followers.concat(), &children).await?;
        self.take_homes(finisher.token, &follow_result.released_runs, &candidates).await?;
        Ok(follow_result)
    }

    /// The ended runs whose job has children, or whose fire has a run that may await them.
    async fn with_fires(&mut self, ended_runs: &[EndedRun]) -> Result<Vec<EndedRun>> {
        let mut jobs: Vec<i64> = ended_runs.iter().map(|ended_run| ended_run.job.get()).collect();
        jobs.sort_unstable();
        jobs.dedup();
        let mut parent_jobs = BTreeSet::new();
        for chunk in jobs.chunks(CHUNK_MAX) {
            for row in self.rows(Query::new(&FIND_PARENTS).list(chunk.iter().copied())).await? {
                parent_jobs.insert(JobId::new(Reader::new(&row, "job_parent").int("parent_id")?));
            }
        }
        let has_fire =
            |ended_run: &&EndedRun| ended_run.trigger == Trigger::Parent || parent_jobs.contains(&ended_run.job);
        Ok(ended_runs.iter().filter(has_fire).copied().collect())
    }

    /// Locks the rows of the roots. A root that was removed because of its age has no row, and nothing follows in its fire.
    async fn lock_roots(&mut self, ended_runs: &[EndedRun]) -> Result<Roots> {
        let ids: BTreeSet<i64> = ended_runs.iter().map(|ended_run| ended_run.root().get()).collect();
        let ids: Vec<i64> = ids.into_iter().collect();
        let mut locked_roots = Roots { roots: Vec::new(), members: HashMap::new(), now: Timestamp::EPOCH };
        for chunk in ids.chunks(CHUNK_MAX) {
            for row in self.rows(Query::new(&LOCK_ROOTS).list(chunk.iter().copied())).await? {
                let mut columns = Reader::new(&row, "run");
                let run = RunId::new(columns.int("id")?);
                locked_roots.roots.push(Root {
                    run,
                    job: JobId::new(columns.int("job_id")?),
                    fire_at: columns.at("fire_at_ms")?,
                    due_at: columns.at("due_at_ms")?,
                });
                let member = Member {
                    run,
                    name: String::new(),
                    status: columns.word("status")?,
                    reason: columns.opt_word("reason")?,
                    open_children: columns.opt_int32("open_children")?,
                };
                locked_roots.members.insert(run, member);
                locked_roots.now = columns.at("now")?;
            }
        }
        Ok(locked_roots)
    }

    /// The jobs of these runs and of the runs above them (parents, grandparents and so on) in their fires, except the roots.
    async fn read_jobs_above(&mut self, runs: Vec<RunId>) -> Result<BTreeSet<JobId>> {
        let mut jobs = BTreeSet::new();
        let mut level_runs: Vec<i64> = runs.into_iter().map(RunId::get).collect();
        for _ in 0..DEPTH_MAX {
            let mut runs_above = BTreeSet::new();
            for chunk in level_runs.chunks(CHUNK_MAX) {
                for row in self.rows(Query::new(&READ_RUNS_ABOVE).list(chunk.iter().copied())).await? {
                    let mut columns = Reader::new(&row, "run");
                    columns.int("id")?;
                    jobs.insert(JobId::new(columns.int("job_id")?));
                    runs_above.extend(columns.opt_int("parent_id")?);
                }
            }
            if runs_above.is_empty() {
                break;
            }
            level_runs = runs_above.into_iter().collect();
        }
        Ok(jobs)
    }

    /// All jobs that follow from these, level by level, and when they were created.
    async fn read_graph_below(
        &mut self,
        mut level_jobs: BTreeSet<JobId>,
    ) -> Result<(Graph, BTreeMap<JobId, Timestamp>)> {
        let (mut graph, mut created_at_by_job) = (Graph::default(), BTreeMap::new());
        let mut seen_jobs = level_jobs.clone();
        for _ in 0..DEPTH_MAX {
            let mut next_level = BTreeSet::new();
            let jobs: Vec<i64> = level_jobs.iter().map(|job| job.get()).collect();
            for chunk in jobs.chunks(CHUNK_MAX) {
                for row in self.rows(Query::new(&READ_EDGES).list(chunk.iter().copied())).await? {
                    let mut columns = Reader::new(&row, "job_parent");
                    let (child, parent) = (JobId::new(columns.int("child_id")?), JobId::new(columns.int("parent_id")?));
                    graph.add(Edge { child, parent, on: columns.word("on_what")? });
                    created_at_by_job.insert(child, columns.at("created_at_ms")?);
                    if seen_jobs.insert(child) {
                        next_level.insert(child);
                    }
                }
            }
            if next_level.is_empty() {
                break;
            }
            level_jobs = next_level;
        }
        Ok((graph, created_at_by_job))
    }

    /// The rows of these fires, by root and job. A broadcast is represented by the row for all its shards.
    async fn read_members(
        &mut self,
        roots: &[Root],
        graph: &Graph,
        detached_jobs: &BTreeSet<JobId>,
    ) -> Result<HashMap<RunId, BTreeMap<JobId, Member>>> {
        let mut keys = Vec::new();
        for root in roots {
            let jobs = jobs_below(graph, root.job, detached_jobs).into_iter().filter(|job| *job != root.job);
            keys.extend(jobs.map(|job| (job, root.fire_at, root.run)));
        }
        let mut member_rows: HashMap<(RunId, JobId), (i32, Member)> = HashMap::new();
        for chunk in keys.chunks(CHUNK_MAX) {
            let query = Query::new(&READ_MEMBERS)
                .rows(chunk, |query, (job, fire_at, root)| query.int(job.get()).at(*fire_at).int(root.get()));
            for row in self.rows(query).await? {
                let mut columns = Reader::new(&row, "run");
                let run = RunId::new(columns.int("id")?);
                let job = JobId::new(columns.int("job_id")?);
                let root = RunId::new(columns.int("cause")?);
                let shard_index = columns.int32("shard_index")?;
                let member = Member {
                    run,
                    name: String::new(),
                    status: columns.word("status")?,
                    reason: columns.opt_word("reason")?,
                    open_children: columns.opt_int32("open_children")?,
                };
                let member_row = member_rows.entry((root, job)).or_insert_with(|| (shard_index, member.clone()));
                if shard_index < member_row.0 {
                    *member_row = (shard_index, member);
                }
            }
        }
        let mut members: HashMap<RunId, BTreeMap<JobId, Member>> = HashMap::new();
        #[expect(clippy::iter_over_hash_type, reason = "each goes to a place of its own")]
        for ((root, job), (_, member)) in member_rows {
            members.entry(root).or_default().insert(job, member);
        }
        Ok(members)
    }

    async fn name_members(&mut self, facts: &mut [FireFacts<'_>]) -> Result<()> {
        let jobs: BTreeSet<i64> = facts.iter().flat_map(|facts| facts.members.keys().map(|job| job.get())).collect();
        let jobs: Vec<i64> = jobs.into_iter().collect();
        let mut names = HashMap::new();
        for chunk in jobs.chunks(CHUNK_MAX) {
            for row in self.rows(Query::new(&READ_JOB_NAMES).list(chunk.iter().copied())).await? {
                let mut columns = Reader::new(&row, "job");
                names.insert(JobId::new(columns.int("id")?), columns.text("name")?);
            }
        }
        for (job, member) in facts.iter_mut().flat_map(|facts| &mut facts.members) {
            member.name = names.get(job).cloned().unwrap_or_default();
        }
        Ok(())
    }

    /// The jobs that have no run yet in at least one of the fires to which they belong.
    async fn read_candidates(
        &mut self,
        finisher: Finisher<'_>,
        facts: &[FireFacts<'_>],
    ) -> Result<BTreeMap<JobId, Candidate>> {
        let wanted_jobs: BTreeSet<i64> = facts
            .iter()
            .flat_map(|facts| facts.jobs().into_iter().filter(|job| !facts.members.contains_key(job)))
            .map(JobId::get)
            .collect();
        let wanted_jobs: Vec<i64> = wanted_jobs.into_iter().collect();
        let mut candidates = BTreeMap::new();
        for chunk in wanted_jobs.chunks(CHUNK_MAX) {
            for row in self.rows(Query::new(&READ_CHILDREN).list(chunk.iter().copied())).await? {
                let mut columns = Reader::new(&row, "job");
                let job = JobId::new(columns.int("id")?);
                let namespace = NamespaceId::new(columns.int("namespace_id")?);
                let (app, version) = (AppId::new(columns.int("app_id")?), columns.int("version")?);
                let spec = columns.text("spec")?;
                let spec: JobSpec = serde_json::from_str(&spec).map_err(|error| columns.corrupt("spec", error))?;
                let home = NodeId::new(columns.int("home")?);
                let node_and_epoch = (columns.opt_int("node_id")?, columns.opt_int("epoch")?);
                let leases = (columns.opt_at("lease_until_ms")?, columns.opt_at("prior_lease_until_ms")?);
                // A dead home is accepted, because the run is adopted with the job's other open runs.
                let lease = match (node_and_epoch, leases) {
                    ((Some(node), Some(epoch)), (Some(lease_until), Some(prior_until))) => {
                        Some(lease_of_home(NodeId::new(node), epoch, (lease_until, prior_until)))
                    }
                    _ => None,
                };
                let own_lease = finisher.token;
                let lost_home = (lease.is_none() && home != own_lease.node).then_some(home);
                let owner = lease.filter(|lease| lease.node != own_lease.node).unwrap_or(own_lease);
                let child = Child { namespace, app, version, spec, owner };
                candidates.insert(job, Candidate { child, lost_home });
            }
        }
        Ok(candidates)
    }

    async fn write_parent_updates(&mut self, updates: Vec<ParentUpdate>, now: Timestamp) -> Result<FollowResult> {
        let mut follow_result = FollowResult::default();
        for update in &updates {
            match update.status.is_terminal() {
                false if update.is_new => follow_result.awaiting_runs.push((update.job, update.run)),
                false => {}
                true => {
                    follow_result.ended_parents.push((update.job, update.run));
                    follow_result.failed_runs.extend(is_failure(update.status).then_some(update.run));
                }
            }
        }
        for chunk in updates.chunks(CHUNK_MAX) {
            let query = Query::new(&FOLD_CHILDREN).rows(chunk, |query, update| {
                query
                    .int(update.run.get())
                    .int(update.open_children.into())
                    .text(update.status.as_str())
                    .opt_at(update.status.is_terminal().then_some(now))
                    .opt_text(update.message.as_deref())
            });
            self.execute_all(query, chunk.len()).await?;
            let changed_updates = chunk.iter().filter(|update| update.is_new || update.status.is_terminal());
            let changed_runs: Vec<(RunId, RunStatus)> =
                changed_updates.map(|update| (update.run, update.status)).collect();
            self.sync_rows(&changed_runs).await?;
        }
        for chunk in follow_result.ended_parents.chunks(CHUNK_MAX) {
            let ids = chunk.iter().map(|(_, run)| run.get());
            self.execute(Query::new(&rows::DELETE_CANCELS).list(ids)).await?;
        }
        Ok(follow_result)
    }

    /// Inserts the planned runs. An existing row stays unchanged. Returns the inserted runs that are open.
    async fn insert_followers(
        &mut self,
        mut followers: Vec<Follower>,
        children: &BTreeMap<JobId, Child>,
    ) -> Result<Vec<Run>> {
        let open_followers = || followers.iter().filter(|follower| !follower.run.status.is_terminal());
        let parent_ids: BTreeSet<i64> =
            open_followers().flat_map(|follower| &follower.parents).map(|run| run.get()).collect();
        let parent_results = self.read_parent_results(parent_ids.into_iter().collect()).await?;
        for follower in followers.iter_mut().filter(|follower| !follower.run.status.is_terminal()) {
            let Some(child) = children.get(&follower.run.job) else { continue };
            let parents = follower.parents.iter().filter_map(|run| parent_results.get(run).cloned()).collect();
            follower.run.params = Some(params(&child.spec.params, parents));
        }
        let runs: Vec<&Run> = followers.iter().map(|follower| &follower.run).collect();
        let existing_ids = self.insert_runs(&runs).await?;
        let new_runs = followers.into_iter().map(|follower| follower.run).filter(|run| !existing_ids.contains(&run.id));
        Ok(new_runs.filter(|run| !run.status.is_terminal()).collect())
    }

    async fn read_parent_results(&mut self, runs: Vec<i64>) -> Result<HashMap<RunId, ParentResult>> {
        let mut parent_results = HashMap::with_capacity(runs.len());
        for chunk in runs.chunks(CHUNK_MAX) {
            for row in self.rows(Query::new(&READ_PARENT_RESULTS).list(chunk.iter().copied())).await? {
                let mut columns = Reader::new(&row, "run");
                let run = RunId::new(columns.int("id")?);
                let job_name = columns.text("name")?;
                let status: RunStatus = columns.word("status")?;
                let is_follower = columns.word::<Trigger>("trigger_kind")? == Trigger::Parent;
                let params = columns.opt_text("params")?;
                let spec = columns.text("spec")?;
                let spec: JobSpec = serde_json::from_str(&spec).map_err(|error| columns.corrupt("spec", error))?;
                let result = columns.opt_text("result")?;
                // A run without a verdict awaits its children, so its own work has succeeded.
                let status = if status.is_terminal() { status } else { RunStatus::Succeeded };
                let job_params = spec.params;
                parent_results
                    .insert(run, ParentResult { job_name, run, status, is_follower, params, job_params, result });
            }
        }
        Ok(parent_results)
    }

    /// Makes this node the home of jobs that got a run and whose home no longer exists.
    async fn take_homes(
        &mut self,
        token: LeaseToken,
        released: &[Run],
        candidates: &BTreeMap<JobId, Candidate>,
    ) -> Result<()> {
        let jobs: BTreeSet<JobId> = released.iter().map(|run| run.job).collect();
        let job_and_lost_home = |job: JobId| Some((job, candidates.get(&job)?.lost_home?));
        let lost_homes: Vec<(JobId, NodeId)> = jobs.into_iter().filter_map(job_and_lost_home).collect();
        for chunk in lost_homes.chunks(CHUNK_MAX) {
            // If another node has taken the job in the meantime, that node remains its home. The run stays with the finishing node.
            let query = Query::new(&TAKE_HOMES)
                .rows(chunk, |query, (job, home)| query.int(job.get()).int(home.get()).int(token.node.get()));
            self.execute(query).await?;
        }
        Ok(())
    }
}
