//! Reads the state of the system, and the facts from which the landing page derives what needs attention. Every read has a limit.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use futures_util::future::{try_join, try_join3, try_join5};
use rondel_admin::forecast::COMING_JOB_COUNT_MAX;
use rondel_admin::{OnlineExecutor, given_name};
use rondel_core::access::Permission;
use rondel_core::attention::{AttentionFacts, FORGOTTEN_AFTER, FailingJob, JobWithoutExecutor, LONG_MIN, RunUnderWay};
use rondel_core::homes::Switch;
use rondel_core::select::Select;
use rondel_core::sketch::{Sketch, Step};
use rondel_core::words::Lang;
use rondel_core::{JobId, NodeId, Run, RunId, RunStatus, Timestamp};
use rondel_store::access::TokenQuery;
use rondel_store::catalog::JobRecord;
use rondel_store::cluster::Node;
use rondel_store::rollups::{ChartRun, NewestOutcomes, OpenQuery, PointKind, UnsuccessfulRuns};

use super::super::view::own_message;
use crate::api::executors;
use crate::api::tokens::may_manage;
use crate::call::Call;
use crate::overview::recent_failures::RecentFailures;
use crate::overview::series::{self, BucketRange};
use crate::problem::Problem;

/// How many jobs of each kind are read at most.
const JOB_COUNT_MAX: u32 = 40;
/// Maximum number of idle jobs among which paused ones are looked for: others have no schedule, or wait for the end of a run.
const IDLE_JOB_COUNT_MAX: u32 = 200;
/// Maximum number of open runs of each status that are counted.
const OPEN_RUN_COUNT_MAX: u32 = 2_000;
/// How many jobs with long-running runs are read at most.
const LONG_RUNNING_JOB_COUNT_MAX: u32 = 400;
/// How many of these runs, the oldest first, are compared with the usual durations of their jobs.
const COMPARED_RUN_COUNT: usize = 100;
/// Maximum number of executors that are counted.
const EXECUTOR_COUNT_MAX: u32 = 500;
/// How many tokens are read at a time, the newest first.
const TOKEN_BATCH_COUNT: u32 = 200;
/// Maximum number of these reads. One may not suffice: tokens that end soon are rarely among the newest.
const TOKEN_READS_MAX: usize = 10;
/// How far back lateness is measured.
const LATENESS_LOOK_BACK: Duration = Duration::from_secs(15 * 60);
/// How far back the usual durations of a job are measured.
const DURATION_LOOK_BACK: Duration = Duration::from_secs(7 * 24 * 3600);
/// How far ahead the next fire is searched.
const LOOK_AHEAD: Duration = Duration::from_secs(366 * 24 * 3600);

/// The state of the system in numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Health {
    /// How many servers are living, or are dead without having shut down in order.
    pub(crate) node_count: usize,
    pub(crate) living_count: usize,
    /// The remaining time of the lease of the answering server.
    pub(crate) lease_left: Duration,
    /// How late fires were, as the 99th percentile; `None` without fires.
    pub(crate) lateness: Option<Duration>,
    pub(crate) executor_count: usize,
    pub(crate) online_count: usize,
    pub(crate) slot_count: u64,
    /// How many runs the online executors have.
    pub(crate) held_run_count: u64,
    /// How many runs are due but are not with an executor yet. Ends with a plus sign if there are more.
    pub(crate) queue_count: String,
    /// How many runs are running. Ends with a plus sign if there are more.
    pub(crate) running_count: String,
    pub(crate) next_fire_at: Option<Timestamp>,
}

/// The current state of the system, and the facts from which the landing page derives what needs attention.
pub(crate) struct SystemState {
    pub(crate) health: Health,
    pub(crate) facts: AttentionFacts,
}

/// Reads the state of the system, with messages in the reader's language.
pub(crate) async fn read<Q: Sync>(
    call: &Call<Q>,
    failures: &RecentFailures,
    lang: Lang,
) -> Result<SystemState, Problem> {
    let (engine, now) = (call.engine(), call.engine().now());
    let nodes = async { engine.store().nodes().await.map_err(Problem::from) };
    let idle_jobs =
        async { Ok(engine.store().idle_jobs(call.namespace.id, now - FORGOTTEN_AFTER, IDLE_JOB_COUNT_MAX).await?) };
    let fact_reads = try_join5(
        failures.read(call),
        failures.failing_jobs(call),
        idle_jobs,
        token_ends(call, now),
        lateness_p99(call, now),
    );
    let health = try_join(read_health(call, now), longest_running(call, now));
    let ((mut health, longest_runs), nodes, (unsuccessful_runs, newest_outcomes, idle_jobs, tokens, lateness)) =
        try_join3(health, nodes, fact_reads).await?;
    health.count_nodes(&nodes, (engine.token().node, now));
    health.lateness = lateness;
    let skipped_without_executor = skipped_without_executor(unsuccessful_runs);
    let ids = newest_outcomes
        .iter()
        .map(|outcomes| outcomes.job)
        .chain(skipped_without_executor.iter().map(|unsuccessful| unsuccessful.job));
    let ids = ids.chain(longest_runs.iter().map(|run| run.job)).chain(idle_jobs.iter().map(|(job, ..)| *job));
    let jobs = JobsById::read(call, ids).await?;
    let (failing, under_way) = try_join(
        failing_jobs(call, (newest_outcomes, unsuccessful_runs), (&jobs, lang)),
        runs_under_way(call, &longest_runs, (&jobs, now)),
    )
    .await?;
    let facts = AttentionFacts {
        failing,
        without_executor: jobs_without_executor(call, &skipped_without_executor, &jobs).await?,
        under_way,
        lateness,
        paused: paused_jobs(&idle_jobs, &jobs),
        tokens,
        lost_nodes: nodes
            .iter()
            .filter(|node| is_lost(node, now))
            .map(|node| (node.name.clone(), node.lease_until))
            .collect(),
        failing_loops: failing_loops(&nodes, now),
    };
    Ok(SystemState { health, facts })
}

/// Whether a node's lease has expired although the node did not shut down in order.
fn is_lost(node: &Node, now: Timestamp) -> bool {
    !node.is_living(now) && !node.report.is_leaving
}

fn failing_loops(nodes: &[Node], now: Timestamp) -> Vec<(String, String, Timestamp)> {
    let living_nodes = nodes.iter().filter(|node| node.is_living(now));
    let failing_loops = living_nodes.flat_map(|node| {
        let loops_of_node = node.report.loops.iter();
        loops_of_node.filter_map(|report| Some((node.name.clone(), report.name.clone(), report.failing_since?)))
    });
    failing_loops.collect()
}

/// Reads the numbers of executors and runs.
async fn read_health<Q: Sync>(call: &Call<Q>, now: Timestamp) -> Result<Health, Problem> {
    let open_runs = |status| read_open_runs(call, status);
    let runs = try_join3(open_runs(RunStatus::Running), open_runs(RunStatus::Pending), open_runs(RunStatus::Waiting));
    let ((executors, _), (running, pending, waiting), next_fire_at) =
        try_join3(executors::page(call, None, EXECUTOR_COUNT_MAX), runs, next_fire(call, now)).await?;
    let online_executors = || executors.iter().filter(|executor| executor.status != "offline");
    let is_due = |run: &&ChartRun| run.fire_at <= now;
    let due_count = pending.runs.iter().chain(&waiting.runs).filter(is_due).count();
    Ok(Health {
        executor_count: executors.len(),
        online_count: online_executors().count(),
        slot_count: online_executors().map(|executor| u64::from(executor.slots)).sum(),
        held_run_count: online_executors().filter_map(|executor| executor.running).map(u64::from).sum(),
        queue_count: count_text(due_count, pending.is_cut || waiting.is_cut),
        running_count: count_text(running.runs.len(), running.is_cut),
        next_fire_at,
        ..Health::default()
    })
}

/// The next fire of a job that the caller may see. Jobs that the caller may not see may fire earlier.
async fn next_fire<Q>(call: &Call<Q>, now: Timestamp) -> Result<Option<Timestamp>, Problem> {
    for limit in [JOB_COUNT_MAX, COMING_JOB_COUNT_MAX] {
        let coming_jobs = call.engine().store().coming_jobs(call.namespace.id, now + LOOK_AHEAD, limit).await?;
        let next_fire_at = coming_jobs.iter().find(|job| call.may_view(job.app)).map(|job| job.next_fire_at);
        if next_fire_at.is_some() || coming_jobs.len() < usize::try_from(limit).unwrap_or(usize::MAX) {
            return Ok(next_fire_at);
        }
    }
    Ok(None)
}

/// A number of runs as text, with a plus sign if not all runs were read.
fn count_text(count: usize, is_cut: bool) -> String {
    format!("{count}{}", if is_cut { "+" } else { "" })
}

impl Health {
    fn count_nodes(&mut self, nodes: &[Node], (own_node, now): (NodeId, Timestamp)) {
        let own_node = nodes.iter().find(|node| node.id == own_node);
        self.node_count = nodes.iter().filter(|node| node.is_living(now) || is_lost(node, now)).count();
        self.living_count = nodes.iter().filter(|node| node.is_living(now)).count();
        self.lease_left = own_node.map(|node| node.lease_until.since(now)).unwrap_or_default();
    }
}

/// The open runs that were read.
struct OpenRuns {
    runs: Vec<ChartRun>,
    /// Whether there are more open runs.
    is_cut: bool,
}

async fn read_open_runs<Q: Sync>(call: &Call<Q>, status: RunStatus) -> Result<OpenRuns, Problem> {
    let mut chart_runs =
        call.engine().store().open_chart_runs(call.namespace.id, status, OPEN_RUN_COUNT_MAX + 1).await?;
    let count = usize::try_from(OPEN_RUN_COUNT_MAX).unwrap_or(usize::MAX);
    let is_cut = chart_runs.len() > count;
    chart_runs.truncate(count);
    chart_runs.retain(|run| call.may_view(run.app));
    Ok(OpenRuns { runs: chart_runs, is_cut })
}

/// The 99th percentile of the lateness within [`LATENESS_LOOK_BACK`].
async fn lateness_p99<Q>(call: &Call<Q>, now: Timestamp) -> Result<Option<Duration>, Problem> {
    let buckets =
        series::namespace_buckets(call, BucketRange::new(Step::Minute, now - LATENESS_LOOK_BACK, now)).await?;
    Ok(series::sum_buckets(&buckets).lateness.quantile(990))
}

/// The jobs that were read, keyed by their ids. Deleted jobs, and those that the caller may not see, are left out.
struct JobsById(HashMap<JobId, JobRecord>);

impl JobsById {
    async fn read<Q>(call: &Call<Q>, ids: impl Iterator<Item = JobId>) -> Result<Self, Problem> {
        let ids: Vec<JobId> = ids.collect::<BTreeSet<_>>().into_iter().collect();
        let jobs = call.engine().store().jobs_by_id(&ids).await?;
        Ok(Self(jobs.into_iter().filter(|job| call.may_view(job.app)).map(|job| (job.id, job)).collect()))
    }
}

async fn failing_jobs<Q>(
    call: &Call<Q>,
    (newest_outcomes, unsuccessful_runs): (&[NewestOutcomes], &[UnsuccessfulRuns]),
    (jobs, lang): (&JobsById, Lang),
) -> Result<Vec<FailingJob>, Problem> {
    let is_enabled = |outcomes: &&NewestOutcomes| jobs.0.get(&outcomes.job).is_some_and(|job| job.spec.enabled);
    let newest_outcomes: Vec<&NewestOutcomes> = newest_outcomes.iter().filter(is_enabled).collect();
    let is_failure = |runs_of_status: &&UnsuccessfulRuns| runs_of_status.status != RunStatus::Skipped;
    let mut newest_run_by_job: BTreeMap<JobId, RunId> = BTreeMap::new();
    for runs_of_status in unsuccessful_runs.iter().filter(is_failure) {
        let run = newest_run_by_job.entry(runs_of_status.job).or_insert(runs_of_status.newest);
        *run = runs_of_status.newest.max(*run);
    }
    let ids: Vec<RunId> =
        newest_outcomes.iter().filter_map(|outcomes| newest_run_by_job.get(&outcomes.job)).copied().collect();
    let mut runs = call.engine().store().runs(&ids).await?;
    runs.retain(|run| call.may_view(run.app));
    call.conceal(&mut runs).await?;
    let message = |job: JobId| {
        let run = runs.iter().find(|run| run.job == job)?;
        own_message(run.message.as_deref(), run.reason, run.detail.as_deref(), lang)
    };
    let failing_job = |outcomes: &&NewestOutcomes| {
        Some(FailingJob {
            job: jobs.0.get(&outcomes.job)?.spec.name.clone(),
            streak: outcomes.streak,
            since: outcomes.failing_since?,
            succeeded_at: outcomes.succeeded_at,
            message: message(outcomes.job),
        })
    };
    Ok(newest_outcomes.iter().filter_map(failing_job).collect())
}

/// The jobs whose fires were skipped because there was no executor.
fn skipped_without_executor(unsuccessful_runs: &[UnsuccessfulRuns]) -> Vec<&UnsuccessfulRuns> {
    let job_count_max = usize::try_from(JOB_COUNT_MAX).unwrap_or(usize::MAX);
    unsuccessful_runs.iter().filter(|runs| runs.had_no_executor).take(job_count_max).collect()
}

/// The jobs that still have no executor: no executor offers the handler, or none of those that do may get the job's runs.
async fn jobs_without_executor<Q>(
    call: &Call<Q>,
    skipped_without_executor: &[&UnsuccessfulRuns],
    jobs: &JobsById,
) -> Result<Vec<JobWithoutExecutor>, Problem> {
    if skipped_without_executor.is_empty() {
        return Ok(Vec::new());
    }
    let (online_executors, switches) = (call.engine().online_executors(), call.engine().store().switches().await?);
    let job_without_executor = |runs: &&UnsuccessfulRuns| {
        let job = jobs.0.get(&runs.job)?;
        let select = Select::new(&job.spec.select).unwrap_or_default();
        let takes_new_runs = |executor: &OnlineExecutor| {
            let switch = switches.of_executor(executor.app, given_name(&executor.name));
            !executor.is_draining && switch.is_none_or(|switch| switch.switch == Switch::Active)
        };
        let has_handler =
            |executor: &&OnlineExecutor| executor.app == job.app && executor.has_handler(&job.spec.handler);
        let mut offering_executors = online_executors.iter().filter(has_handler).peekable();
        let is_offered = offering_executors.peek().is_some();
        let is_served = offering_executors
            .any(|executor| takes_new_runs(executor) && select.admits(given_name(&executor.name), &executor.labels));
        let (job, handler, count) = (job.spec.name.clone(), job.spec.handler.clone(), runs.count);
        (!is_served).then_some(JobWithoutExecutor { job, handler, is_offered, count })
    };
    Ok(skipped_without_executor.iter().filter_map(job_without_executor).collect())
}

/// The runs that have been running longest, one per job. They are read in the order of the instants at which they were due, so that the old
/// ones are found however many younger runs there are.
async fn longest_running<Q>(call: &Call<Q>, now: Timestamp) -> Result<Vec<Run>, Problem> {
    let begun_by = now - LONG_MIN;
    let query = OpenQuery {
        namespace: call.namespace.id,
        status: RunStatus::Running,
        due_by: begun_by,
        begun_by,
        first_attempts_only: false,
        limit: LONG_RUNNING_JOB_COUNT_MAX,
    };
    let store = call.engine().store();
    let ids: Vec<RunId> = store.open_jobs(query).await?.iter().map(|open_job| open_job.run).collect();
    let mut running_runs = store.runs(&ids).await?;
    running_runs.retain(|run| call.may_view(run.app) && run.status == RunStatus::Running && run.started_at.is_some());
    running_runs.sort_by_key(|run| run.started_at);
    running_runs.truncate(COMPARED_RUN_COUNT);
    Ok(running_runs)
}

/// The running runs, with the usual durations of their jobs.
async fn runs_under_way<Q>(
    call: &Call<Q>,
    running_runs: &[Run],
    (jobs, now): (&JobsById, Timestamp),
) -> Result<Vec<RunUnderWay>, Problem> {
    let job_ids: Vec<i64> = running_runs.iter().map(|run| run.job.get()).collect();
    let points =
        series::read_points(call, PointKind::Job, &job_ids, BucketRange::new(Step::Day, now - DURATION_LOOK_BACK, now))
            .await?;
    let mut durations_by_job: HashMap<i64, Sketch> = HashMap::new();
    points.iter().for_each(|point| durations_by_job.entry(point.owner).or_default().merge(&point.durations));
    let long_run = |run: &Run| {
        let job = jobs.0.get(&run.job)?.spec.name.clone();
        let usual_duration = durations_by_job.get(&run.job.get()).and_then(|durations| durations.quantile(950));
        Some(RunUnderWay { run: run.id, job, since: run.started_at?, usual: usual_duration })
    };
    Ok(running_runs.iter().filter_map(long_run).collect())
}

fn paused_jobs(idle_jobs: &[(JobId, i64, Timestamp)], jobs: &JobsById) -> Vec<(String, Timestamp)> {
    let paused_job = |(job, _, at): &(JobId, i64, Timestamp)| {
        let job = jobs.0.get(job).filter(|job| !job.spec.enabled)?;
        Some((job.spec.name.clone(), *at))
    };
    idle_jobs.iter().filter_map(paused_job).collect()
}

/// The names and expiry instants of valid tokens that expire: of all tokens for an admin of the cluster, else of the tokens of the caller's
/// account that the caller may read.
async fn token_ends<Q>(call: &Call<Q>, now: Timestamp) -> Result<Vec<(String, Timestamp)>, Problem> {
    let is_admin = call.caller.rights.allow(Permission::Cluster, call.namespace.id, None);
    if !is_admin && call.caller.account.is_none() {
        return Ok(Vec::new());
    }
    let owner = call.caller.account.filter(|_| !is_admin);
    let (mut ends, mut after_id) = (Vec::new(), None);
    for _ in 0..TOKEN_READS_MAX {
        let query = TokenQuery { owner, after: after_id, limit: TOKEN_BATCH_COUNT, ..TokenQuery::default() };
        let tokens = call.engine().store().tokens(&query).await?;
        let is_last = tokens.len() < usize::try_from(TOKEN_BATCH_COUNT).unwrap_or(usize::MAX);
        after_id = tokens.last().map(|token| token.id);
        let valid_tokens = tokens.into_iter().filter(|token| token.is_valid(now) && may_manage(&call.caller, token));
        ends.extend(valid_tokens.filter_map(|token| Some((token.name, token.expires_at?))));
        if is_last {
            break;
        }
    }
    Ok(ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_a_lower_bound_has_a_plus_sign() {
        assert_eq!((count_text(0, false), count_text(2_000, true)), ("0".to_owned(), "2000+".to_owned()));
    }
}
