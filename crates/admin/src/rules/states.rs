//! Facts about the present: open runs and counts.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use rondel_core::alert::{
    Condition, ConditionState, Incident, Observation, RuleSpec, Scope, Subject, SubjectKind, judge,
};
use rondel_core::notice::RunSample;
use rondel_core::sketch::{Sketch, Step};
use rondel_core::{JobId, NamespaceId, RunStatus, Timestamp};
use rondel_store::StoreError;
use rondel_store::alerts::WatchedJob;
use rondel_store::catalog::App;
use rondel_store::rollups::{OpenJob, OpenQuery, PointDetail, PointKind, PointQuery, Verdicts};

use super::facts::{is_in_scope, job_subject};
use super::fleet;
use crate::node::Node;

/// Maximum number of jobs with open runs that one look reads per server. Jobs whose runs were planned earliest are read first.
const OPEN_JOBS_MAX: u32 = 5_000;
/// Maximum number of jobs for which a sample run is read: more jobs are reported as a group.
const SAMPLE_COUNT: usize = 100;
/// Maximum number of points (counts of one period) that one query reads.
const POINT_COUNT: u32 = 20_000;
/// Number of jobs whose points are read by one query, so that a point per hour of each job fits into [`POINT_COUNT`].
const USUAL_OWNER_COUNT: usize = 100;
/// The period whose runs give the usual duration of a job's runs.
const USUAL_WITHIN: Duration = Duration::from_secs(7 * 24 * 3600);
/// The longer period that is used if a job has too few runs in [`USUAL_WITHIN`]: a nightly job has seven.
const USUAL_WITHIN_RARE: Duration = Duration::from_secs(60 * 24 * 3600);
/// Windows up to this length are summed from points per minute, which are kept for a day.
const MINUTES_WITHIN: Duration = Duration::from_secs(24 * 3600);
/// How often conditions that change slowly are checked.
const SLOW_PERIOD: Duration = Duration::from_secs(10);
/// The default of `alert_rules_period`.
const USUAL_LOOP_PERIOD: Duration = Duration::from_secs(2);
/// How often tokens are checked. All of them are read each time.
const TOKEN_PERIOD: Duration = Duration::from_secs(300);
/// How often all other conditions are checked.
pub(super) const FAST_PERIOD: Duration = Duration::from_secs(5);

/// How often a rule with this condition is checked by a loop with this period.
pub(super) fn check_period(condition: &Condition, loop_period: Duration) -> Duration {
    let usual_period = match condition {
        Condition::FailureRate { .. }
        | Condition::LedgerGrowth { .. }
        | Condition::CertificateExpiring { .. }
        | Condition::DiskLow { .. } => SLOW_PERIOD,
        Condition::TokenExpiring { .. } => TOKEN_PERIOD,
        _ => FAST_PERIOD,
    };
    // A server that looks more often than usual, as in tests, also checks these conditions more often.
    if loop_period < USUAL_LOOP_PERIOD { usual_period.min(loop_period * 5) } else { usual_period }
}

/// The current observations of a rule with these open incidents. Subjects not listed do not fulfil the condition; `None` if the state is
/// not known yet.
pub(super) async fn observe(
    node: &Node,
    (namespace, name): (NamespaceId, &str),
    (spec, open_incidents): (&RuleSpec, &[Incident]),
    now: Timestamp,
) -> Result<Option<Vec<Observation>>, StoreError> {
    let observations = match &spec.condition {
        Condition::Late { by } => {
            let bound = |job: &WatchedJob| is_in_scope(&spec.scope, job).then_some(*by);
            without_jobs(late_jobs(node, namespace, (*by, bound), now).await?)
        }
        Condition::RunningLonger { than: Some(than), .. } => {
            let bound = |job: &WatchedJob| is_in_scope(&spec.scope, job).then_some(*than);
            without_jobs(running_longer(node, namespace, (*than, bound), now).await?)
        }
        Condition::RunningLonger { than: None, times_p95 } => {
            without_jobs(running_unusually_long(node, (namespace, &spec.scope), *times_p95, now).await?)
        }
        Condition::FailureRate { percent, window, min_runs } => {
            let subject_and_verdicts = sum_verdicts(node, (namespace, name, &spec.scope), *window, now).await?;
            let state = |verdicts: &Verdicts| {
                let counts = (verdicts.failure_count(), verdicts.failure_count() + verdicts.succeeded);
                judge::failure_rate(*percent, *min_runs, counts, now)
            };
            observe_counts(subject_and_verdicts, state)
        }
        Condition::LedgerGrowth { runs, window } => {
            let subject_and_verdicts = sum_verdicts(node, (namespace, name, &spec.scope), *window, now).await?;
            observe_counts(subject_and_verdicts, |verdicts| judge::ledger_growth(*runs, verdicts.total(), now))
        }
        Condition::NoExecutor { handler } => {
            return fleet::no_executor(node, (namespace, &spec.scope), handler.as_deref(), now).await;
        }
        Condition::NodeLost {} => fleet::node_lost(node, now).await?,
        Condition::LoopFailing { length } => fleet::loop_failing(node, *length, now).await?,
        Condition::TokenExpiring { within } => {
            fleet::token_expiring(node, (namespace, name), (*within, open_incidents), now).await?
        }
        Condition::CertificateExpiring { within } => fleet::certificate_expiring(node, *within, now).await?,
        Condition::DiskLow { free_percent, free } => {
            fleet::disk_low(node, (*free_percent, *free), open_incidents, now).await?
        }
        Condition::Failed {}
        | Condition::FailuresInRow { .. }
        | Condition::Skipped { .. }
        | Condition::NotSucceededBy { .. }
        | Condition::NoSuccessFor { .. } => Vec::new(),
    };
    Ok(Some(observations))
}

/// The jobs of these runs.
async fn jobs_of(node: &Node, open_jobs: &[OpenJob]) -> Result<BTreeMap<JobId, WatchedJob>, StoreError> {
    let ids: Vec<JobId> = open_jobs.iter().map(|open| open.job).collect();
    Ok(node.store().watched_jobs_by_id(&ids).await?.into_iter().map(|job| (job.id, job)).collect())
}

fn without_jobs(jobs_and_observations: Vec<(WatchedJob, Observation)>) -> Vec<Observation> {
    jobs_and_observations.into_iter().map(|(_, observation)| observation).collect()
}

/// One observation per job, which holds since the earliest of the job's instants; the first jobs get a sample run.
async fn observe_jobs(
    node: &Node,
    instants_and_jobs: Vec<(Timestamp, OpenJob)>,
    jobs: &BTreeMap<JobId, WatchedJob>,
) -> Result<Vec<(WatchedJob, Observation)>, StoreError> {
    let ids: Vec<_> = instants_and_jobs.iter().take(SAMPLE_COUNT).map(|(_, open)| open.run).collect();
    let runs = node.store().runs(&ids).await?;
    let sample = |open: &OpenJob, job: &WatchedJob| {
        let run = runs.iter().find(|run| run.id == open.run)?;
        let message = run.executor.clone().unwrap_or_else(|| run.status.as_str().to_owned());
        Some(RunSample { run: run.id, job: job.name.clone(), fire_at: run.fire_at, message })
    };
    let mut observations_by_job: BTreeMap<JobId, (WatchedJob, Observation)> = BTreeMap::new();
    for (at, open_job) in instants_and_jobs {
        let Some(job) = jobs.get(&open_job.job) else { continue };
        let (_, observation) = observations_by_job.entry(job.id).or_insert_with(|| {
            let state = ConditionState::Holds { since: at, new_count: 0 };
            (job.clone(), Observation { subject: job_subject(job), state, samples: Vec::new() })
        });
        if let ConditionState::Holds { since, .. } = &mut observation.state {
            *since = at.min(*since);
        }
        observation.samples.extend(sample(&open_job, job));
    }
    Ok(observations_by_job.into_values().collect())
}

/// The jobs with a run that has not started in time, with a bound per job; no bound is shorter than `shortest`.
pub(super) async fn late_jobs(
    node: &Node,
    namespace: NamespaceId,
    (shortest, bound): (Duration, impl Fn(&WatchedJob) -> Option<Duration> + Send + Sync),
    now: Timestamp,
) -> Result<Vec<(WatchedJob, Observation)>, StoreError> {
    let mut open_jobs = Vec::new();
    for status in [RunStatus::Pending, RunStatus::Waiting] {
        // A run that waits for its next attempt has already started, so it does not count as late.
        let begun_by = now - shortest;
        let query =
            OpenQuery { namespace, status, due_by: now, begun_by, first_attempts_only: true, limit: OPEN_JOBS_MAX };
        open_jobs.extend(node.store().open_jobs(query).await?);
    }
    let jobs = jobs_of(node, &open_jobs).await?;
    let late_jobs = open_jobs.into_iter().filter_map(|open| {
        let late_at = open.fire_at + bound(jobs.get(&open.job)?)?;
        (late_at <= now).then_some((late_at, open))
    });
    observe_jobs(node, late_jobs.collect(), &jobs).await
}

/// The jobs with a run that has been running for longer than the job's bound; no bound is shorter than `shortest`.
pub(super) async fn running_longer(
    node: &Node,
    namespace: NamespaceId,
    (shortest, bound): (Duration, impl Fn(&WatchedJob) -> Option<Duration> + Send + Sync),
    now: Timestamp,
) -> Result<Vec<(WatchedJob, Observation)>, StoreError> {
    let open_jobs = jobs_running_since(node, namespace, now - shortest).await?;
    let jobs = jobs_of(node, &open_jobs).await?;
    observe_jobs(node, jobs_exceeding(open_jobs, &jobs, bound, now), &jobs).await
}

/// Like [`running_longer`], but the bound is a multiple of the usual duration.
async fn running_unusually_long(
    node: &Node,
    (namespace, scope): (NamespaceId, &Scope),
    times_p95: Option<u32>,
    now: Timestamp,
) -> Result<Vec<(WatchedJob, Observation)>, StoreError> {
    // The bound depends on the job, so every job with a running run is checked.
    let open_jobs = jobs_running_since(node, namespace, now).await?;
    let mut jobs = jobs_of(node, &open_jobs).await?;
    jobs.retain(|_, job| is_in_scope(scope, job));
    let usual_durations = usual_durations(node, jobs.keys(), now).await?;
    let bound = |job: &WatchedJob| judge::longest_allowed(None, times_p95, usual_durations.get(&job.id).copied());
    observe_jobs(node, jobs_exceeding(open_jobs, &jobs, bound, now), &jobs).await
}

/// The jobs with a run that is running now and began at `begun_by` or earlier.
async fn jobs_running_since(
    node: &Node,
    namespace: NamespaceId,
    begun_by: Timestamp,
) -> Result<Vec<OpenJob>, StoreError> {
    let status = RunStatus::Running;
    let query =
        OpenQuery { namespace, status, due_by: begun_by, begun_by, first_attempts_only: false, limit: OPEN_JOBS_MAX };
    node.store().open_jobs(query).await
}

fn jobs_exceeding(
    open_jobs: Vec<OpenJob>,
    jobs: &BTreeMap<JobId, WatchedJob>,
    bound: impl Fn(&WatchedJob) -> Option<Duration>,
    now: Timestamp,
) -> Vec<(Timestamp, OpenJob)> {
    let jobs_over_bound = open_jobs.into_iter().filter_map(|open| {
        let over_at = open.started_at? + bound(jobs.get(&open.job)?)?;
        (over_at <= now).then_some((over_at, open))
    });
    jobs_over_bound.collect()
}

/// The 95th percentile of the duration of these jobs' runs, for jobs with enough counted runs.
async fn usual_durations(
    node: &Node,
    jobs: impl Iterator<Item = &JobId> + Send,
    now: Timestamp,
) -> Result<HashMap<JobId, Duration>, StoreError> {
    let owners: Vec<i64> = jobs.map(|job| job.get()).collect();
    let mut sketches = durations(node, &owners, (Step::Hour, USUAL_WITHIN), now).await?;
    let rare_owners = rare_jobs(&owners, &sketches);
    sketches.extend(durations(node, &rare_owners, (Step::Day, USUAL_WITHIN_RARE), now).await?);
    sketches.retain(|_, sketch| sketch.count() >= judge::USUAL_MIN_RUNS);
    Ok(sketches.into_iter().filter_map(|(job, sketch)| Some((job, sketch.quantile(950)?))).collect())
}

/// The jobs with fewer counted runs than a usual duration needs.
fn rare_jobs(owners: &[i64], sketches: &HashMap<JobId, Sketch>) -> Vec<i64> {
    let count = |owner: i64| sketches.get(&JobId::new(owner)).map_or(0, Sketch::count);
    owners.iter().copied().filter(|owner| count(*owner) < judge::USUAL_MIN_RUNS).collect()
}

/// The durations of these jobs' runs that were planned within the last `window`, from the counts of each `step`.
async fn durations(
    node: &Node,
    owners: &[i64],
    (step, window): (Step, Duration),
    now: Timestamp,
) -> Result<HashMap<JobId, Sketch>, StoreError> {
    let (from, to) = (now - window, now + step.length());
    let mut sketches: HashMap<JobId, Sketch> = HashMap::new();
    for owners in owners.chunks(USUAL_OWNER_COUNT) {
        let query =
            PointQuery { kind: PointKind::Job, owners, step, from, to, limit: POINT_COUNT, detail: PointDetail::Whole };
        for point in node.store().points(&query).await? {
            sketches.entry(JobId::new(point.owner)).or_default().merge(&point.durations);
        }
    }
    Ok(sketches)
}

/// The verdicts of the runs of a job, an app or all jobs that were planned within a window; `None` if there is no such job or app.
async fn sum_verdicts(
    node: &Node,
    (namespace, name, scope): (NamespaceId, &str, &Scope),
    window: Duration,
    now: Timestamp,
) -> Result<Option<(Subject, Verdicts)>, StoreError> {
    let store = node.store();
    let (kind, subject) = match scope {
        Scope::All | Scope::Label(_) => {
            let subject =
                Subject { kind: SubjectKind::Namespace, id: namespace.get(), name: name.to_owned(), app: None };
            (PointKind::Namespace, subject)
        }
        Scope::App(app) => match store.app(namespace, app).await? {
            Some(app) => (PointKind::App, app_subject(&app)),
            None => return Ok(None),
        },
        Scope::Job(job) => match store.job(namespace, job).await? {
            Some(record) => {
                let app = Some(record.spec.app);
                let (id, name) = (record.id.get(), record.spec.name);
                (PointKind::Job, Subject { kind: SubjectKind::Job, id, name, app })
            }
            None => return Ok(None),
        },
    };
    let step = match kind {
        PointKind::Job => Step::Hour,
        PointKind::App | PointKind::Namespace if window <= MINUTES_WITHIN => Step::Minute,
        PointKind::App | PointKind::Namespace => Step::Hour,
    };
    let from = step.floor(now - window);
    let to = now + step.length();
    let owners = [subject.id];
    let detail = PointDetail::Verdicts;
    let points =
        store.points(&PointQuery { kind, owners: &owners, step, from, to, limit: POINT_COUNT, detail }).await?;
    let total = points.iter().fold(Verdicts::default(), |sum, point| sum.plus(point.verdicts));
    Ok(Some((subject, total)))
}

fn observe_counts(
    subject_and_verdicts: Option<(Subject, Verdicts)>,
    state: impl Fn(&Verdicts) -> ConditionState,
) -> Vec<Observation> {
    let observations = subject_and_verdicts.map(|(subject, verdicts)| {
        let state = state(&verdicts);
        Observation { subject, state, samples: Vec::new() }
    });
    observations.into_iter().collect()
}

pub(super) fn app_subject(app: &App) -> Subject {
    Subject { kind: SubjectKind::App, id: app.id.get(), name: app.name.clone(), app: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nightly_job_has_too_few_runs_in_a_week() {
        let of = |count: u64| {
            let mut sketch = Sketch::default();
            (0..count).for_each(|_| sketch.add(Duration::from_secs(60)));
            sketch
        };
        let counted = HashMap::from([(JobId::new(1), of(7)), (JobId::new(2), of(10))]);
        assert_eq!(rare_jobs(&[1, 2, 3], &counted), [1, 3]);
        let points = USUAL_OWNER_COUNT * usize::try_from(USUAL_WITHIN_RARE.as_secs() / 86_400 + 2).unwrap();
        assert!(points <= POINT_COUNT as usize, "all of them are read");
    }
}
