//! Reads the context of a run for its explanation: servers, executors, and other jobs' runs.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rondel_core::fires::{AnswerContext, CAUSE_STEP_COUNT_MAX, ExecutorState, NAMED_COUNT_MAX, OtherRun, ServerState};
use rondel_core::homes::Switch;
use rondel_core::reason::{LimitKind, ReasonDetail};
use rondel_core::spec::ConcurrencySpec;
use rondel_core::{AppId, ExecutorId, JobId, Reason, Run, RunId, RunStatus, Timestamp};
use rondel_store::StoreError;
use rondel_store::ledger::RunQuery;

use crate::conceal;
use crate::node::Node;

/// An executor that misses this many heartbeats is silent.
const SILENT_HEARTBEATS: u32 = 3;
/// Number of running runs that one statement reads, to find the runs that hold a limit.
const RUNNING_PAGE_LEN: u32 = 100;
/// Maximum number of pages of running runs. If there are more running runs, some runs that hold the limit may be missing.
const RUNNING_PAGES_MAX: usize = 50;
/// Maximum number of runs of the parent job that are read to find its run of the same fire.
const PARENT_RUN_COUNT: u32 = 100;

/// The state of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Availability {
    Taking,
    Draining,
    /// Silent since this instant.
    Silent(Timestamp),
}

impl Availability {
    /// Combines the states that the executor's streams to two nodes show.
    fn combine(self, other: Self) -> Self {
        match (self, other) {
            (Self::Silent(one), Self::Silent(another)) => Self::Silent(one.max(another)),
            (Self::Silent(_), heard) | (heard, _) => heard,
        }
    }
}

/// Reads the context of a run from the memory and the store of a node.
pub(super) struct ContextReader<'a>(pub(super) &'a Node);

impl ContextReader<'_> {
    /// The context of a run, limited to the facts that a caller with access to these apps may see.
    pub(super) async fn of(&self, run: &Run, visible_apps: Option<&[AppId]>) -> Result<AnswerContext, StoreError> {
        let mut context = AnswerContext::default();
        if run.status.is_terminal() {
            if run.reason == Some(Reason::Parent) {
                context.causes = self.causes(run, visible_apps).await?;
            }
            if run.is_root() && run.status != RunStatus::Succeeded {
                context.shards = self.shards(run, visible_apps).await?;
            }
            return Ok(context);
        }
        if run.due_at > self.0.now() {
            return Ok(context);
        }
        self.add_server(&mut context, run).await?;
        let executor_of_run = (run.status == RunStatus::Running).then_some(run.executor_id);
        self.add_executors(&mut context, run.app, executor_of_run).await?;
        if run.status != RunStatus::Running {
            self.add_holders(&mut context, run, visible_apps).await?;
        }
        Ok(context)
    }

    /// The context of a fire without a run.
    pub(super) async fn of_fire(&self) -> Result<AnswerContext, StoreError> {
        let (now, nodes) = (self.0.now(), self.0.store().nodes().await?);
        let last_home = nodes.into_iter().max_by_key(|node| node.lease_until).filter(|node| !node.is_living(now));
        Ok(AnswerContext {
            lease_ended: last_home.map(|node| (node.name, node.lease_until)),
            ..AnswerContext::default()
        })
    }

    async fn add_server(&self, context: &mut AnswerContext, run: &Run) -> Result<(), StoreError> {
        let (now, nodes) = (self.0.now(), self.0.store().nodes().await?);
        let node = nodes.into_iter().find(|node| (node.id, node.epoch) == (run.node, run.node_epoch));
        let Some(node) = node else { return Ok(()) };
        context.lease_ended = (!node.is_living(now)).then(|| (node.name.clone(), node.lease_until));
        context.server = Some(ServerState {
            is_leaving: node.report.is_leaving || node.id == self.0.token().node && self.0.readiness().draining,
            switch: node.switch,
            name: node.name,
            since: node.started_at,
        });
        Ok(())
    }

    /// Adds the executors of the app that accept no work now. If an executor has the run, only that executor is added. Also records whether any
    /// executor accepts work.
    async fn add_executors(
        &self,
        context: &mut AnswerContext,
        app: AppId,
        executor_of_run: Option<Option<ExecutorId>>,
    ) -> Result<(), StoreError> {
        let states = self.executor_states(app).await?;
        context.has_available_executor = states.values().any(|(state, _)| *state == Availability::Taking);
        let lost_after = self.0.lost_after();
        let mut unavailable_executors: Vec<ExecutorState> = Vec::new();
        // If one executor of a name takes work, the others of that name are earlier incarnations: they are not listed.
        let taking_names: BTreeSet<&String> =
            states.values().filter(|(state, _)| *state == Availability::Taking).map(|(_, name)| name).collect();
        for (id, (state, name)) in &states {
            let is_listed = executor_of_run.map_or_else(|| !taking_names.contains(name), |only| only == Some(*id));
            let silent_since = match state {
                Availability::Taking => continue,
                Availability::Draining => None,
                Availability::Silent(since) => Some((*since, *since + lost_after)),
            };
            if is_listed {
                let switch = self.0.executor_switch(app, name);
                unavailable_executors.push(ExecutorState { name: name.clone(), silent: silent_since, switch });
            }
        }
        unavailable_executors.sort_by(|a, b| a.name.cmp(&b.name));
        context.executors = unavailable_executors;
        Ok(())
    }

    /// The availability and name of each executor of an app that this or another node has heard from recently, by id.
    async fn executor_states(&self, app: AppId) -> Result<BTreeMap<ExecutorId, (Availability, String)>, StoreError> {
        let now = self.0.now();
        let silent_before = now - self.0.heartbeat().saturating_mul(SILENT_HEARTBEATS);
        let state_or_silent =
            |seen: Timestamp, otherwise| if seen < silent_before { Availability::Silent(seen) } else { otherwise };
        let mut states = BTreeMap::new();
        for online_name in self.0.online_names().into_iter().filter(|online_executor| online_executor.app == app) {
            if let Some(executor) = self.0.online_executor(online_name.id) {
                let is_active = self.0.executor_switch(app, &executor.name) == Switch::Active;
                let kind =
                    if executor.is_draining || !is_active { Availability::Draining } else { Availability::Taking };
                states.insert(online_name.id, (state_or_silent(executor.last_seen_at, kind), executor.name));
            }
        }
        let mut states_elsewhere: BTreeMap<ExecutorId, Availability> = BTreeMap::new();
        let mut sessions = self.0.store().sessions(now - self.0.lost_after()).await?;
        sessions.retain(|session| session.app == app && !states.contains_key(&session.executor));
        let left_executors: BTreeSet<ExecutorId> =
            sessions.iter().filter(|session| session.has_left).map(|session| session.executor).collect();
        for session in sessions.iter().filter(|session| !left_executors.contains(&session.executor)) {
            let last_seen_at = session.last_seen_at;
            let heard_state = if session.is_open() {
                state_or_silent(last_seen_at, Availability::Taking)
            } else {
                Availability::Silent(last_seen_at)
            };
            states_elsewhere
                .entry(session.executor)
                .and_modify(|known| *known = known.combine(heard_state))
                .or_insert(heard_state);
        }
        let ids: Vec<ExecutorId> = states_elsewhere.keys().copied().collect();
        let records = self.0.store().executors_by_id(&ids, Timestamp::EPOCH).await?;
        let named_states = records.into_iter().filter_map(|record| {
            let state = match (*states_elsewhere.get(&record.id)?, self.0.executor_switch(app, &record.name)) {
                (Availability::Taking, Switch::Draining | Switch::Stopped) => Availability::Draining,
                (state, _) => state,
            };
            Some((record.id, (state, record.name)))
        });
        states.extend(named_states);
        Ok(states)
    }

    /// Adds the run that this run waits behind (the run ahead), and the runs that hold the limit for which this run waits. If this run waits
    /// for no limit, the limit for which the run ahead waits is used.
    async fn add_holders(
        &self,
        context: &mut AnswerContext,
        run: &Run,
        visible_apps: Option<&[AppId]>,
    ) -> Result<(), StoreError> {
        let empty_detail = ReasonDetail::default();
        let detail = run.detail.as_deref().unwrap_or(&empty_detail);
        let run_ahead = match detail.run {
            Some(id) => self.0.store().runs(&[id]).await?.pop(),
            None => None,
        };
        let key = limit_key(detail).or_else(|| limit_key(run_ahead.as_ref()?.detail.as_deref()?));
        if let Some(key) = key {
            let mut holders = self.holders(run, &key).await?;
            holders.retain(|holder| holder.id != run.id);
            context.more_holder_count = holders.len().saturating_sub(NAMED_COUNT_MAX);
            holders.truncate(NAMED_COUNT_MAX);
            context.holders = self.with_job_names(holders, visible_apps).await?;
            context.limit = Some(key);
        }
        let runs_ahead: Vec<Run> = run_ahead.into_iter().collect();
        context.ahead = self.with_job_names(runs_ahead, visible_apps).await?.pop();
        Ok(())
    }

    /// The running runs that a concurrency limit counts, longest running first. The parameters of the runs can be large and are dropped, so that
    /// only one page of complete runs is in memory.
    async fn holders(&self, run: &Run, key: &str) -> Result<Vec<Run>, StoreError> {
        let mut query = RunQuery { statuses: vec![RunStatus::Running], limit: RUNNING_PAGE_LEN, ..RunQuery::default() };
        let mut holders = Vec::new();
        for _ in 0..RUNNING_PAGES_MAX {
            let mut page = self.0.store().list_runs(run.namespace, &query).await?;
            let is_last = page.len() < usize::try_from(RUNNING_PAGE_LEN).unwrap_or(usize::MAX);
            query.after = page.last().map(|run| run.id);
            let definitions_in_limit = self.counted_definitions(&page, key).await?;
            page.retain(|run| {
                !run.is_root() && !run.awaits_children() && definitions_in_limit.contains(&(run.job, run.job_version))
            });
            holders.extend(page.into_iter().map(|run| Run { params: None, ..run }));
            if is_last {
                break;
            }
        }
        holders.sort_by_key(|run| (run.started_at.unwrap_or(run.due_at), run.id));
        Ok(holders)
    }

    /// The definitions of these runs that have the concurrency limit with this key.
    async fn counted_definitions(&self, runs: &[Run], key: &str) -> Result<BTreeSet<(JobId, i64)>, StoreError> {
        let definitions: BTreeSet<(JobId, i64)> = runs.iter().map(|run| (run.job, run.job_version)).collect();
        let definitions = self.0.store().definitions(&definitions.into_iter().collect::<Vec<_>>()).await?;
        let is_counted = |limit: &ConcurrencySpec| limit.key == key;
        let definitions_in_limit =
            definitions.into_iter().filter(|definition| definition.spec.concurrency.as_ref().is_some_and(is_counted));
        Ok(definitions_in_limit.map(|definition| (definition.job, definition.version)).collect())
    }

    /// Some shards of a broadcast that have the same verdict as the broadcast, sorted by shard index.
    async fn shards(&self, run: &Run, visible_apps: Option<&[AppId]>) -> Result<Vec<OtherRun>, StoreError> {
        let limit = u32::try_from(NAMED_COUNT_MAX).unwrap_or(u32::MAX);
        let query = RunQuery { parent: Some(run.id), statuses: vec![run.status], limit, ..RunQuery::default() };
        let mut shards = self.0.store().list_runs(run.namespace, &query).await?;
        shards.sort_by_key(|shard| shard.shard_index);
        self.with_job_names(shards, visible_apps).await
    }

    /// The runs that led to the end of this run, nearest first, at most [`CAUSE_STEP_COUNT_MAX`]. The list ends before the first run that the
    /// caller may not see.
    async fn causes(&self, run: &Run, visible_apps: Option<&[AppId]>) -> Result<Vec<OtherRun>, StoreError> {
        let mut causes: Vec<OtherRun> = Vec::new();
        let mut last_run = run.clone();
        while causes.len() < CAUSE_STEP_COUNT_MAX && last_run.reason == Some(Reason::Parent) {
            let Some(parent) = self.refusing_parent(&last_run).await? else { break };
            let is_visible = super::is_within(&parent, visible_apps);
            let is_known = |id: RunId| id == run.id || causes.iter().any(|cause| cause.run.id == id);
            if !is_visible || is_known(parent.id) {
                break;
            }
            last_run = parent.clone();
            causes.extend(self.with_job_names(vec![parent], visible_apps).await?);
        }
        Ok(causes)
    }

    /// The run of the parent job that prevented this run from starting. If the job has several parents, that run need not be `run.parent`.
    async fn refusing_parent(&self, run: &Run) -> Result<Option<Run>, StoreError> {
        let first_run = match run.parent {
            Some(parent) => self.0.store().runs(&[parent]).await?.pop(),
            None => None,
        };
        let Some(name) = run.detail.as_ref().and_then(|detail| detail.parent.as_deref()) else { return Ok(first_run) };
        if let Some(first_run) = &first_run
            && self.0.store().job_names(&[first_run.job]).await?.iter().any(|(_, job_name)| job_name == name)
        {
            return Ok(Some(first_run.clone()));
        }
        let Some(job) = self.0.store().job(run.namespace, name).await? else { return Ok(None) };
        let query =
            RunQuery { job: Some(job.id), until: Some(run.fire_at), limit: PARENT_RUN_COUNT, ..RunQuery::default() };
        // The shards of a broadcast have the same cause as the broadcast's row, but only that row has the verdict.
        let runs = super::whole_runs(self.0, self.0.store().list_runs(run.namespace, &query).await?).await?;
        Ok(runs.into_iter().find(|other| other.cause == run.cause || other.id.get() == run.cause))
    }

    /// These runs, each with the name of its job if the caller may see the job.
    async fn with_job_names(
        &self,
        mut runs: Vec<Run>,
        visible_apps: Option<&[AppId]>,
    ) -> Result<Vec<OtherRun>, StoreError> {
        let jobs: BTreeSet<JobId> = runs.iter().map(|run| run.job).collect();
        let names = self.0.store().job_names(&jobs.into_iter().collect::<Vec<_>>()).await?;
        let names: HashMap<JobId, String> = names.into_iter().collect();
        if let Some(namespace) = runs.first().map(|run| run.namespace) {
            conceal::conceal(self.0, namespace, visible_apps, &mut runs).await?;
        }
        let named_run = |run: Run| {
            let job = super::is_within(&run, visible_apps).then(|| names.get(&run.job).cloned()).flatten();
            OtherRun { run, job }
        };
        Ok(runs.into_iter().map(named_run).collect())
    }
}

/// The key of the concurrency limit for which a run waits; `None` if it waits for no such limit.
fn limit_key(detail: &ReasonDetail) -> Option<String> {
    let limit = detail.limit.as_ref().filter(|limit| limit.kind == LimitKind::Concurrency)?;
    limit.key.clone()
}
