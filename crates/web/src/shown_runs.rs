//! Runs limited to what a caller may see, with their names, attempts, parameters and shards. Used by the API and by pages.

use std::collections::{BTreeSet, HashMap};

use rondel_core::access::Permission;
use rondel_core::disclosure::params_for_viewer;
use rondel_core::part::Part;
use rondel_core::pump::Counts;
use rondel_core::run::{Attempt, ROOT_SHARD};
use rondel_core::spec::with_params_of_shard;
use rondel_core::{JobId, Run};
use rondel_store::catalog::Definition;
use rondel_store::ledger::RunQuery;
use serde_json::Value;

use crate::call::Call;
use crate::parent_params;
use crate::problem::Problem;

/// Maximum number of shards that are shown with a broadcast; complete batches of shards are read, so a few more can appear.
const SHOWN_SHARD_COUNT_MAX: usize = 1000;

/// How many shards are read at a time.
const SHARD_BATCH_COUNT: u32 = 200;

pub(crate) async fn with_job_names<Q>(call: &Call<Q>, mut runs: Vec<Run>) -> Result<Vec<(String, Run)>, Problem> {
    call.conceal(&mut runs).await?;
    let names = job_names(call, &runs).await?;
    // A deleted job may have been purged with its name. Its runs then show its id.
    let name = |run: &Run| names.get(&run.job).cloned().unwrap_or_else(|| run.job.to_string());
    Ok(runs.into_iter().map(|run| (name(&run), run)).collect())
}

async fn job_names<Q>(call: &Call<Q>, runs: &[Run]) -> Result<HashMap<JobId, String>, Problem> {
    let mut ids: Vec<JobId> = runs.iter().map(|run| run.job).collect();
    ids.sort_unstable();
    ids.dedup();
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    Ok(call.engine().store().job_names(&ids).await?.into_iter().collect())
}

/// The attempts of a run, sorted by number: the current one is the last.
pub(crate) async fn read_attempts<Q>(call: &Call<Q>, run: &Run) -> Result<Vec<Attempt>, Problem> {
    let mut attempts = call.engine().store().attempts(run.id).await?;
    attempts.push(Attempt {
        attempt: run.attempt,
        status: run.shown_status(),
        reason: run.reason,
        detail: run.detail.clone(),
        executor: run.present_executor().map(str::to_owned),
        executor_id: run.executor_id,
        started_at: run.started_at,
        finished_at: run.finished_at,
        message: run.message.clone(),
    });
    Ok(attempts)
}

/// The definition of the job in the version that the run uses.
async fn run_definition<Q>(call: &Call<Q>, run: &Run) -> Result<Option<Definition>, Problem> {
    Ok(call.engine().store().definitions(&[(run.job, run.job_version)]).await?.pop())
}

/// The name of the run's shard; `None` if the run is not a shard, or if its job does not name shards.
pub(crate) async fn shard_name<Q>(call: &Call<Q>, run: &Run) -> Result<Option<String>, Problem> {
    if run.is_root() || !Part::is_possible_for(run) {
        return Ok(None);
    }
    let definition = run_definition(call, run).await?;
    Ok(definition.and_then(|definition| definition.spec.shard(run.shard_index).map(|shard| shard.name.clone())))
}

/// Finds out which part of its fire a run is, if the fire has several runs. Contains the ids of all pump jobs, since the answer depends on
/// whether the run's job is one.
pub(crate) struct Parts(BTreeSet<JobId>);

impl Parts {
    pub(crate) async fn read<'r, Q>(call: &Call<Q>, runs: impl Iterator<Item = &'r Run>) -> Result<Self, Problem> {
        let mut runs = runs;
        if !runs.any(Part::is_possible_for) {
            return Ok(Self(BTreeSet::new()));
        }
        Ok(Self(call.engine().store().pump_jobs().await?.into_iter().map(|pump| pump.job).collect()))
    }

    pub(crate) fn part_of(&self, run: &Run) -> Option<Part> {
        Part::of(run, self.0.contains(&run.job))
    }
}

/// The parameters of a run as JSON text: its own or else those of its definition, with those of its shard merged over them. They may
/// contain a secret that was removed from the job later, so likely secrets are shown only to callers who may edit the run's app. Data of
/// parent runs is shown only to callers who may see those runs.
pub(crate) async fn run_params<Q>(call: &Call<Q>, run: &Run) -> Result<Option<String>, Problem> {
    let is_shard = Part::is_possible_for(run) && !run.is_root();
    let definition = if run.params.is_none() || is_shard { run_definition(call, run).await? } else { None };
    let params_of_fire = || definition.as_ref().map(|definition| definition.spec.params.to_string());
    let text = run.params.clone().or_else(params_of_fire);
    let shard = definition.as_ref().filter(|_| is_shard).and_then(|definition| definition.spec.shard(run.shard_index));
    let text = match shard.map(|shard| &shard.params).filter(|params| !params.is_null()) {
        Some(params) => text.map(|text| {
            let params_of_fire = serde_json::from_str(&text).unwrap_or_default();
            with_params_of_shard(params_of_fire, params).to_string()
        }),
        None => text,
    };
    let may_edit = call.caller.rights.allow(Permission::Edit, run.namespace, Some(run.app));
    let Some(params) = text.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok()) else {
        return Ok(text.filter(|_| may_edit));
    };
    let has_parents = parent_params::contains_parent_data(&params);
    if may_edit && !has_parents {
        return Ok(text);
    }
    let params = if may_edit { params } else { params_for_viewer(params) };
    let params = if has_parents { parent_params::visible_params(call, params).await? } else { params };
    Ok(Some(params.to_string()))
}

/// Maximum number of groups whose earlier attempts are read for the total of their root run.
const GROUP_READ_COUNT_MAX: usize = 200;

/// The sum of the row counts that the groups of a pump's root run have reported at the ends of their attempts; `None` if they reported
/// none. An attempt that was lost with its executor has reported nothing.
pub(crate) async fn rows_of_groups<Q>(call: &Call<Q>, groups: &[Run]) -> Result<Option<Counts>, Problem> {
    let mut total: Option<Counts> = None;
    let mut add_counts = |message: Option<&str>| {
        if let Some(counts) = message.and_then(Counts::parse_message) {
            total = Some(total.unwrap_or_default().plus(counts));
        }
    };
    groups.iter().for_each(|group| add_counts(group.message.as_deref()));
    for group in groups.iter().filter(|group| group.attempt > 1).take(GROUP_READ_COUNT_MAX) {
        let earlier_attempts = call.engine().store().attempts(group.id).await?;
        earlier_attempts.iter().for_each(|attempt| add_counts(attempt.message.as_deref()));
    }
    Ok(total)
}

/// The shards of a broadcast, sorted by index.
pub(crate) async fn shard_runs<Q>(call: &Call<Q>, broadcast: &Run) -> Result<Vec<Run>, Problem> {
    let mut shards = Vec::new();
    let mut query = RunQuery { parent: Some(broadcast.id), limit: SHARD_BATCH_COUNT, ..RunQuery::default() };
    while shards.len() < SHOWN_SHARD_COUNT_MAX {
        let page = call.engine().store().list_runs(broadcast.namespace, &query).await?;
        query.after = page.last().map(|run| run.id);
        let is_last = page.len() < usize::try_from(SHARD_BATCH_COUNT).unwrap_or(usize::MAX);
        // A repeat of the broadcast is also among its children.
        shards.extend(page.into_iter().filter(|run| run.shard_index != ROOT_SHARD && run.fire_at == broadcast.fire_at));
        if is_last {
            break;
        }
    }
    shards.sort_by_key(|run| run.shard_index);
    call.conceal(&mut shards).await?;
    Ok(shards)
}
