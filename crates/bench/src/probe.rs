//! The probe: claims and finishes 500 runs at a time, one batch after the other in a few lanes, through the store
//! alone. It shows what a database achieves when nothing is decided, sent or run.

use std::sync::Arc;
use std::time::Duration;

use rondel_core::homes::RecentFires;
use rondel_core::outcome::{NextStepPolicy, Outcome};
use rondel_core::run::RunJob;
use rondel_core::{ExecutorId, IdGen, NodeId, Run, RunId, Timestamp, Trigger};
use rondel_store::cluster::{Join, JoinRequest};
use rondel_store::ledger::{AttemptEnd, ClaimJob, DueJob, Finisher};
use rondel_store::{Claim, Cluster, Finish, LeaseToken, SqlStore};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::load::{self, FireTimes};
use crate::plan::Plan;
use crate::report::ProbeLane;
use crate::{BenchError, clock, usage};

const BATCH_SIZE: u32 = 500;
const LANE_COUNTS: [u32; 2] = [1, 2];
/// How far ahead the fires of the probe are, so that no server finds them due.
const FAR_AHEAD: Duration = Duration::from_secs(30 * 24 * 3600);

/// The data of a lane.
#[derive(Debug)]
struct Lane {
    store: Arc<SqlStore>,
    ids: Arc<IdGen>,
    token: LeaseToken,
    due_jobs: Vec<DueJob>,
}

#[derive(Clone, Copy, Debug, Default)]
struct LaneTotals {
    batch_count: u32,
    /// Total duration of the claims.
    claim_time: Duration,
    /// Total duration of storing the results.
    finish_time: Duration,
}

/// Probes with one lane, and then with two.
pub(crate) async fn probe(store: &Arc<SqlStore>, plan: &Plan) -> Result<Vec<ProbeLane>, BenchError> {
    let request = JoinRequest {
        name: "bench-probe".to_owned(),
        lease: Duration::from_secs(3_600),
        advertise_url: None,
        server_version: env!("CARGO_PKG_VERSION").to_owned(),
        may_take_over: true,
        held: None,
        waited_for_takeover: Duration::ZERO,
    };
    let Join::Joined { token, ordinal } = store.join(&request).await? else {
        return Err(BenchError::failed("another probe is running on this database"));
    };
    let ids = Arc::new(IdGen::new(ordinal));
    let mut lanes = Vec::new();
    for lane_count in LANE_COUNTS {
        lanes.push(probe_with_lanes(store, &ids, token, plan, lane_count).await?);
    }
    store.release(token, Timestamp::EPOCH).await?;
    Ok(lanes)
}

async fn probe_with_lanes(
    store: &Arc<SqlStore>,
    ids: &Arc<IdGen>,
    token: LeaseToken,
    plan: &Plan,
    lane_count: u32,
) -> Result<ProbeLane, BenchError> {
    let (namespace, app) = load::ensure_bench_app(store, ids).await?;
    let first_fire = (clock::now() + FAR_AHEAD).ceil_second();
    let prefix = format!("probe-{}", clock::now().as_millis());
    let jobs = load::create(store, ids, &prefix, lane_count * BATCH_SIZE, FireTimes::Once(first_fire)).await?;
    let due_jobs: Vec<DueJob> = jobs
        .into_iter()
        .map(|job| DueJob {
            job,
            next_fire_at: first_fire,
            held_from: None,
            version: 1,
            home: NodeId::new(0),
            term: 0,
            recent_fires: RecentFires::default(),
        })
        .collect();
    let template = run_template(namespace, app, token);
    let database_usage = plan.database_pid.map(usage::of_tree);
    let (cpu_before, start) = (clock::cpu_time(), Instant::now());
    let mut tasks = JoinSet::new();
    for due_jobs in due_jobs.chunks(usize::try_from(BATCH_SIZE).unwrap_or(1)) {
        let lane = Lane { store: Arc::clone(store), ids: Arc::clone(ids), token, due_jobs: due_jobs.to_vec() };
        tasks.spawn(run_lane(lane, template.clone(), start + plan.probe_time));
    }
    let mut totals = LaneTotals::default();
    while let Some(result) = tasks.join_next().await {
        let lane_totals = result.map_err(|error| BenchError::failed(format!("the probe failed: {error}")))??;
        totals.batch_count += lane_totals.batch_count;
        totals.claim_time += lane_totals.claim_time;
        totals.finish_time += lane_totals.finish_time;
    }
    let run_count = f64::from(totals.batch_count * BATCH_SIZE);
    let cpu_s = (clock::cpu_time() - cpu_before).as_secs_f64();
    let database_usage =
        database_usage.zip(plan.database_pid).map(|(usage_before, pid)| usage::of_tree(pid).since(usage_before));
    let batch_ms = |total: Duration| (total / totals.batch_count.max(1)).as_secs_f64() * 1_000.0;
    Ok(ProbeLane {
        lanes: lane_count,
        runs_per_second: run_count / start.elapsed().as_secs_f64(),
        claim_ms: batch_ms(totals.claim_time),
        finish_ms: batch_ms(totals.finish_time),
        client_cpu_s_per_1000: cpu_s * 1_000.0 / run_count.max(1.0),
        database_cpu_s_per_1000: database_usage.map(|usage| usage.cpu.as_secs_f64() * 1_000.0 / run_count.max(1.0)),
        database_bytes_per_run: database_usage.map(|usage| usage.written_bytes as f64 / run_count.max(1.0)),
    })
}

/// Runs batch after batch until the time is up; the last batch leaves the jobs without a next fire.
async fn run_lane(mut lane: Lane, template: Run, deadline: Instant) -> Result<LaneTotals, BenchError> {
    let mut totals = LaneTotals::default();
    let ids = IdGen::new(0);
    loop {
        let is_last = Instant::now() >= deadline;
        let claims: Vec<ClaimJob> =
            lane.due_jobs.iter().map(|due_job| lane.claim(*due_job, &template, is_last)).collect();
        let start = Instant::now();
        let claim_result = lane.store.claim(lane.token, &claims).await?;
        totals.claim_time += start.elapsed();
        if claim_result.jobs.len() != claims.len() || !claim_result.existing.is_empty() {
            return Err(BenchError::failed("another server claims the probe's jobs"));
        }
        for (due_job, claim) in lane.due_jobs.iter_mut().zip(&claims) {
            *due_job = DueJob { next_fire_at: due_job.next_fire_at + Duration::from_secs(1), ..*due_job };
            due_job.home = lane.token.node;
            due_job.term = claim.expected_row.term;
        }
        let terms: std::collections::HashMap<_, _> = claim_result.jobs.into_iter().collect();
        for due_job in &mut lane.due_jobs {
            due_job.term = terms.get(&due_job.job).copied().unwrap_or(due_job.term);
        }
        let results: Vec<AttemptEnd> = claims.iter().flat_map(|claim| &claim.runs).map(attempt_end).collect();
        let start = Instant::now();
        lane.store.finish(Finisher { token: lane.token, ids: &ids }, &results).await?;
        totals.finish_time += start.elapsed();
        totals.batch_count += 1;
        if is_last {
            return Ok(totals);
        }
    }
}

impl Lane {
    fn claim(&self, due_job: DueJob, template: &Run, is_last: bool) -> ClaimJob {
        let run = Run {
            id: RunId::new(self.ids.next(clock::now())),
            job: due_job.job,
            fire_at: due_job.next_fire_at,
            due_at: due_job.next_fire_at,
            ..template.clone()
        };
        let next_fire = (!is_last).then(|| due_job.next_fire_at + Duration::from_secs(1));
        ClaimJob {
            recent_fires: due_job.recent_fires,
            expected_row: due_job,
            held_from: None,
            next_fire_at: next_fire,
            runs: vec![run],
            awaited_run: None,
        }
    }
}

fn run_template(namespace: rondel_core::NamespaceId, app: rondel_core::AppId, token: LeaseToken) -> Run {
    let run_job = RunJob { namespace, job: rondel_core::JobId::new(0), job_version: 1, app };
    Run::new(RunId::new(0), run_job, Timestamp::EPOCH, Trigger::Once, (token.node, token.epoch))
}

fn attempt_end(run: &Run) -> AttemptEnd {
    let after_due = |millis| run.due_at + Duration::from_millis(millis);
    AttemptEnd {
        run: run.id,
        job: run.job,
        attempt: 1,
        outcome: Outcome::Succeeded,
        policy: NextStepPolicy {
            retry_max: 0,
            backoff: Duration::from_secs(10),
            backoff_max: Duration::from_secs(60),
            at_least_once: true,
            has_fixed_delay: false,
            awaits_children: false,
            is_pump: false,
        },
        executor: Some((ExecutorId::new(7), "bench-0".to_owned())),
        started_at: Some(after_due(3)),
        finished_at: after_due(9),
        message: None,
        result: None,
        trace: None,
        detail: None,
        jitter: 0.5,
        owner: None,
        is_unsent: false,
        is_unfinished: false,
    }
}
