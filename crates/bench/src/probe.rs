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

const BATCH: u32 = 500;
const LANES: [u32; 2] = [1, 2];
/// How far ahead the fires of the probe are, so that no server finds them due.
const FAR_AHEAD: Duration = Duration::from_secs(30 * 24 * 3600);

/// The data of a lane.
#[derive(Debug)]
struct Lane {
    store: Arc<SqlStore>,
    ids: Arc<IdGen>,
    token: LeaseToken,
    due: Vec<DueJob>,
}

#[derive(Clone, Copy, Debug, Default)]
struct LaneTotals {
    batches: u32,
    /// Total duration of the claims.
    claim: Duration,
    /// Total duration of storing the results.
    finish: Duration,
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
    };
    let Join::Joined { token, ordinal } = store.join(&request).await? else {
        return Err(BenchError::failed("another probe is running on this database"));
    };
    let ids = Arc::new(IdGen::new(ordinal));
    let mut lanes = Vec::new();
    for count in LANES {
        lanes.push(with_lanes(store, &ids, token, plan, count).await?);
    }
    store.release(token, Timestamp::EPOCH).await?;
    Ok(lanes)
}

async fn with_lanes(
    store: &Arc<SqlStore>,
    ids: &Arc<IdGen>,
    token: LeaseToken,
    plan: &Plan,
    count: u32,
) -> Result<ProbeLane, BenchError> {
    let (namespace, app) = load::ensure_bench_app(store, ids).await?;
    let first = (clock::now() + FAR_AHEAD).ceil_second();
    let prefix = format!("probe-{}", clock::now().as_millis());
    let jobs = load::create(store, ids, &prefix, count * BATCH, FireTimes::Once(first)).await?;
    let due: Vec<DueJob> = jobs
        .into_iter()
        .map(|job| DueJob {
            job,
            next_fire_at: first,
            held_from: None,
            version: 1,
            home: NodeId::new(0),
            term: 0,
            recent_fires: RecentFires::default(),
        })
        .collect();
    let template = template(namespace, app, token);
    let database = plan.database_pid.map(usage::of_tree);
    let (cpu, start) = (clock::cpu(), Instant::now());
    let mut tasks = JoinSet::new();
    for due in due.chunks(usize::try_from(BATCH).unwrap_or(1)) {
        let lane = Lane { store: Arc::clone(store), ids: Arc::clone(ids), token, due: due.to_vec() };
        tasks.spawn(run_lane(lane, template.clone(), start + plan.probe));
    }
    let mut sum = LaneTotals::default();
    while let Some(ended) = tasks.join_next().await {
        let done = ended.map_err(|error| BenchError::failed(format!("the probe failed: {error}")))??;
        sum.batches += done.batches;
        sum.claim += done.claim;
        sum.finish += done.finish;
    }
    let runs = f64::from(sum.batches * BATCH);
    let cpu = (clock::cpu() - cpu).as_secs_f64();
    let database = database.zip(plan.database_pid).map(|(before, pid)| usage::of_tree(pid).since(before));
    let each = |total: Duration| (total / sum.batches.max(1)).as_secs_f64() * 1_000.0;
    Ok(ProbeLane {
        lanes: count,
        runs_per_second: runs / start.elapsed().as_secs_f64(),
        claim_ms: each(sum.claim),
        finish_ms: each(sum.finish),
        client_cpu_s_per_1000: cpu * 1_000.0 / runs.max(1.0),
        database_cpu_s_per_1000: database.map(|used| used.cpu.as_secs_f64() * 1_000.0 / runs.max(1.0)),
        database_bytes_per_run: database.map(|used| used.written as f64 / runs.max(1.0)),
    })
}

/// Runs batch after batch until the time is up; the last batch leaves the jobs without a next fire.
async fn run_lane(mut lane: Lane, template: Run, until: Instant) -> Result<LaneTotals, BenchError> {
    let mut done = LaneTotals::default();
    let ids = IdGen::new(0);
    loop {
        let is_last = Instant::now() >= until;
        let claims: Vec<ClaimJob> = lane.due.iter().map(|due| lane.claim(*due, &template, is_last)).collect();
        let start = Instant::now();
        let claimed = lane.store.claim(lane.token, &claims).await?;
        done.claim += start.elapsed();
        if claimed.jobs.len() != claims.len() || !claimed.existing.is_empty() {
            return Err(BenchError::failed("another server claims the probe's jobs"));
        }
        for (due, claim) in lane.due.iter_mut().zip(&claims) {
            *due = DueJob { next_fire_at: due.next_fire_at + Duration::from_secs(1), ..*due };
            due.home = lane.token.node;
            due.term = claim.expected_row.term;
        }
        let terms: std::collections::HashMap<_, _> = claimed.jobs.into_iter().collect();
        for due in &mut lane.due {
            due.term = terms.get(&due.job).copied().unwrap_or(due.term);
        }
        let results: Vec<AttemptEnd> = claims.iter().flat_map(|claim| &claim.runs).map(finish).collect();
        let start = Instant::now();
        lane.store.finish(Finisher { token: lane.token, ids: &ids }, &results).await?;
        done.finish += start.elapsed();
        done.batches += 1;
        if is_last {
            return Ok(done);
        }
    }
}

impl Lane {
    fn claim(&self, due: DueJob, template: &Run, is_last: bool) -> ClaimJob {
        let run = Run {
            id: RunId::new(self.ids.next(clock::now())),
            job: due.job,
            fire_at: due.next_fire_at,
            due_at: due.next_fire_at,
            ..template.clone()
        };
        let next = (!is_last).then(|| due.next_fire_at + Duration::from_secs(1));
        ClaimJob {
            recent_fires: due.recent_fires,
            expected_row: due,
            held_from: None,
            next_fire_at: next,
            runs: vec![run],
            awaited_run: None,
        }
    }
}

fn template(namespace: rondel_core::NamespaceId, app: rondel_core::AppId, token: LeaseToken) -> Run {
    let of = RunJob { namespace, job: rondel_core::JobId::new(0), job_version: 1, app };
    Run::new(RunId::new(0), of, Timestamp::EPOCH, Trigger::Once, (token.node, token.epoch))
}

fn finish(run: &Run) -> AttemptEnd {
    let later = |millis| run.due_at + Duration::from_millis(millis);
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
        started_at: Some(later(3)),
        finished_at: later(9),
        message: None,
        result: None,
        trace: None,
        detail: None,
        jitter: 0.5,
        owner: None,
        is_unfinished: false,
    }
}
