//! How many runs a second go through a database, from claim to verdict, in batches of 500 and some lanes.
//!
//! `cargo run --release -p rondel-store --example lifecycle -- URL [LANES] [BATCHES]`

#![expect(clippy::print_stdout, reason = "a probe says what it found")]

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rondel_core::outcome::{AfterPolicy, Outcome};
use rondel_core::{
    AppId, ExecutorId, IdGen, JobId, JobSpec, NamespaceId, NodeId, Run, RunId, RunStatus, Timestamp, Trigger,
};
use rondel_store::catalog::NewJob;
use rondel_store::cluster::{Join, JoinRequest};
use rondel_store::ledger::{ClaimJob, DueJob, Finish};
use rondel_store::{Catalog, Cluster, LeaseToken, Ledger, SqlStore, StoreConfig};
use tokio::time::Instant;

const BATCH: usize = 500;
const NAMESPACE: NamespaceId = NamespaceId::new(1);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().context("the URL of a database is missing")?;
    let lanes: usize = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let batches: usize = arguments.next().map_or(Ok(100), |text| text.parse())?;
    let config = StoreConfig { url: url.parse()?, ..StoreConfig::default() };
    let store = Arc::new(SqlStore::open(&config).await?);
    let request = JoinRequest {
        name: "lifecycle".to_owned(),
        lease: Duration::from_secs(3600),
        advertise_url: None,
        server_version: config.server_version.clone(),
        take_over: true,
    };
    let Join::Joined { token, ordinal } = store.join(&request).await? else { anyhow::bail!("the name is taken") };
    let ids = Arc::new(IdGen::new(ordinal));
    let now = store.now().await?;
    let app = store.ensure_app(AppId::new(ids.next(now)), NAMESPACE, "lifecycle", now).await?.id;

    let mut tasks = tokio::task::JoinSet::new();
    for lane in 0..lanes {
        let mut due = make_jobs(&store, &ids, app, lane).await?;
        let (store, ids) = (Arc::clone(&store), Arc::clone(&ids));
        tasks.spawn(async move {
            let start = Instant::now();
            let mut spent = (Duration::ZERO, Duration::ZERO);
            for _ in 0..batches {
                let (claim, finish) = one_batch(&store, &ids, token, app, &mut due, now + start.elapsed()).await?;
                spent = (spent.0 + claim, spent.1 + finish);
            }
            anyhow::Ok((start.elapsed(), spent))
        });
    }
    let mut longest = Duration::ZERO;
    while let Some(done) = tasks.join_next().await {
        let (elapsed, (claim, finish)) = done??;
        longest = longest.max(elapsed);
        let each = |spent: Duration| spent / u32::try_from(batches).unwrap_or(1);
        println!("  a batch: claim {:?}, finish {:?}", each(claim), each(finish));
    }
    let count = f64::from(u32::try_from(lanes * batches * BATCH)?);
    println!("{}: {lanes} lanes, {:.0} runs/s", config.url, count / longest.as_secs_f64());
    store.close().await;
    Ok(())
}

async fn make_jobs(store: &SqlStore, ids: &IdGen, app: AppId, lane: usize) -> anyhow::Result<Vec<DueJob>> {
    let now = store.now().await?;
    let at = now.ceil_second();
    let mut due = Vec::with_capacity(BATCH);
    for number in 0..BATCH {
        let id = JobId::new(ids.next(now));
        let spec: JobSpec = serde_json::from_value(serde_json::json!({
            "name": format!("job-{lane}-{number}-{id}"), "app": "lifecycle", "handler": "h"}))?;
        let new = NewJob {
            id,
            namespace: NAMESPACE,
            app,
            spec,
            anchor: now,
            next_fire_at: Some(at),
            author: "lifecycle".to_owned(),
            now,
        };
        store.create_job(new).await?.context("the name is taken")?;
        due.push(DueJob { job: id, next_fire_at: at, version: 1, home: NodeId::new(0), term: 0 });
    }
    Ok(due)
}

async fn one_batch(
    store: &SqlStore,
    ids: &IdGen,
    token: LeaseToken,
    app: AppId,
    due: &mut [DueJob],
    now: Timestamp,
) -> anyhow::Result<(Duration, Duration)> {
    let claims: Vec<ClaimJob> = due
        .iter()
        .map(|due| ClaimJob {
            seen: *due,
            next_fire_at: Some(due.next_fire_at + Duration::from_secs(1)),
            runs: vec![run(due, token, app, RunId::new(ids.next(now)))],
        })
        .collect();
    let start = Instant::now();
    let claimed = store.claim(token, &claims).await?;
    let claim_took = start.elapsed();
    anyhow::ensure!(claimed.jobs.len() == due.len() && claimed.existing.is_empty(), "a claim was lost");
    for (due, claim) in due.iter_mut().zip(&claims) {
        due.next_fire_at = claim.next_fire_at.context("each has a next fire")?;
        (due.home, due.term) = (token.node, 1);
    }
    let results: Vec<Finish> = claims.iter().flat_map(|claim| &claim.runs).map(finish).collect();
    let start = Instant::now();
    let finished = store.finish(&results).await?;
    let finish_took = start.elapsed();
    anyhow::ensure!(finished.len() == results.len(), "a result was lost");
    Ok((claim_took, finish_took))
}

fn run(due: &DueJob, token: LeaseToken, app: AppId, id: RunId) -> Run {
    Run {
        id,
        namespace: NAMESPACE,
        job: due.job,
        job_version: due.version,
        app,
        fire_at: due.next_fire_at,
        cause: 0,
        shard_index: 0,
        shard_total: Some(1),
        trigger: Trigger::Cron,
        status: RunStatus::Pending,
        reason: None,
        attempt: 1,
        due_at: due.next_fire_at,
        node: token.node,
        node_epoch: token.epoch,
        params: None,
        executor: None,
        executor_id: None,
        marked_at: None,
        started_at: None,
        finished_at: None,
        message: None,
        result: None,
        lost_count: 0,
        open_shards: None,
        parent: None,
        cancel_by: None,
        span_end_at: None,
        span_count: 1,
    }
}

fn finish(run: &Run) -> Finish {
    let later = |millis| Timestamp::from_millis(run.due_at.as_millis() + millis);
    Finish {
        run: run.id,
        job: run.job,
        attempt: 1,
        outcome: Outcome::Succeeded,
        policy: AfterPolicy {
            retry_max: 0,
            backoff: Duration::from_secs(10),
            backoff_max: Duration::from_secs(60),
            at_least_once: true,
        },
        executor: Some((ExecutorId::new(7), "executor-a".to_owned())),
        started_at: Some(later(3)),
        finished_at: later(9),
        message: None,
        result: None,
        jitter: 0.5,
    }
}
