//! Batches that are larger than the packets that a database, or a proxy in front of it, accepts.

use std::time::Duration;

use rondel_core::outcome::{NextStepPolicy, Outcome};
use rondel_core::run::{ROOT_SHARD, RunJob};
use rondel_core::{
    AppId, ExecutorId, IdGen, JobId, JobSpec, NamespaceId, NodeId, Run, RunId, RunStatus, Timestamp, Trigger,
};
use rondel_store::catalog::{JobCreated, NewJob};
use rondel_store::ledger::{AttemptEnd, ClaimJob, DueRange, EndOutcome, Finisher};
use rondel_store::{Claim, Cluster, CreateJobs, Dispatch, Finish, LeaseToken, Namespaces, Runs, SqlStore, StoreConfig};

use crate::join;
use crate::packet_limit::PacketLimit;
use crate::support::{Scratch, Server, assert_open_rows};

const UNLIMITED: usize = usize::MAX;
const PARAMS: usize = 5_000;

/// A database behind a proxy that limits packets.
struct LimitedDatabase {
    scratch: Scratch,
    proxy: PacketLimit,
    store: SqlStore,
    token: LeaseToken,
}

impl LimitedDatabase {
    async fn all(config: &StoreConfig) -> Vec<Self> {
        let mut databases = Vec::new();
        for server in [Server::Postgres, Server::MySql] {
            let Some(scratch) = Scratch::create(server).await else { continue };
            let proxy = PacketLimit::start(server, &scratch.url, UNLIMITED).await;
            let config = StoreConfig { url: proxy.url.parse().unwrap(), ..config.clone() };
            let store = SqlStore::open(&config).await.unwrap();
            let token = join(&store, "node", Duration::from_secs(600)).await;
            databases.push(Self { scratch, proxy, store, token });
        }
        databases
    }

    /// Runs of one new job, written by one claim.
    async fn claim(&self, count: i64, shard_index: i32) -> Vec<Run> {
        let now = self.store.now().await.unwrap();
        let namespace = NamespaceId::new(1);
        let app = self.store.ensure_app(AppId::new(1), namespace, "app", now).await.unwrap().id;
        let spec = serde_json::json!({"name": "job", "app": "app", "handler": "h"});
        let spec: JobSpec = serde_json::from_value(spec).unwrap();
        let job = JobId::new(1);
        let new = NewJob {
            id: job,
            namespace,
            app,
            spec,
            anchor: now,
            next_fire_at: Some(now),
            delay: None,
            calendar: None,
            declared: None,
            author: "t".to_owned(),
            now,
        };
        assert!(matches!(self.store.create_job(new).await.unwrap(), JobCreated::Saved(_)));
        let run_job = RunJob { namespace, job, job_version: 1, app };
        let owner = (self.token.node, self.token.epoch);
        let run = |number: i64| Run {
            due_at: now,
            shard_index,
            params: Some("p".repeat(PARAMS)),
            ..Run::new(
                RunId::new(100 + number),
                run_job,
                now + Duration::from_secs(number.unsigned_abs()),
                Trigger::Cron,
                owner,
            )
        };
        let whole = |run: Run| if shard_index == ROOT_SHARD { run.for_all_shards() } else { run };
        let runs: Vec<Run> = (0..count).map(run).map(whole).collect();
        let range = DueRange { from: Timestamp::EPOCH, to: Timestamp::MAX, limit: 9 };
        let seen_row = self.store.due_jobs(&[NodeId::new(0)], range).await.unwrap()[0];
        let claims = [ClaimJob {
            recent_fires: seen_row.recent_fires,
            expected_row: seen_row,
            held_from: None,
            next_fire_at: None,
            runs: runs.clone(),
            awaited_run: None,
        }];
        assert_eq!(self.store.claim(self.token, &claims).await.unwrap().jobs.len(), 1);
        runs
    }

    async fn end(self) {
        assert_open_rows(&self.store).await;
        self.store.close().await;
        self.scratch.drop().await;
    }
}

fn shards(whole: &Run, total: i32) -> Vec<Run> {
    let shard = |index| Run {
        id: RunId::new(1_000 + i64::from(index)),
        shard_index: index,
        shard_total: Some(total),
        parent: Some(whole.id),
        ..whole.clone()
    };
    (0..total).map(shard).collect()
}

pub(super) fn succeeded(run: &Run, result: String) -> AttemptEnd {
    AttemptEnd {
        run: run.id,
        job: run.job,
        attempt: 1,
        outcome: Outcome::Succeeded,
        policy: NextStepPolicy {
            retry_max: 0,
            backoff: Duration::from_secs(1),
            backoff_max: Duration::from_secs(1),
            at_least_once: true,
            has_fixed_delay: false,
            awaits_children: false,
            is_pump: false,
        },
        executor: Some((ExecutorId::new(1), "executor".to_owned())),
        started_at: None,
        finished_at: run.due_at,
        message: None,
        result: Some(result),
        trace: None,
        detail: None,
        jitter: 0.0,
        owner: None,
        is_unsent: false,
        is_unfinished: false,
    }
}

/// Claims, shards and results all keep to the bound. A statement that is filled up to a power of two can be twice as large.
#[tokio::test(flavor = "multi_thread")]
async fn a_statement_carries_no_more_than_its_bytes() {
    const BYTES: usize = 20_000;
    let config = StoreConfig { statement_bytes_max: BYTES, ..StoreConfig::default() };
    for database in LimitedDatabase::all(&config).await {
        // The statements that create the tables have packets of up to this size.
        let before = database.proxy.largest();
        assert!(before < 2 * BYTES, "{before}");
        let root = &database.claim(9, ROOT_SHARD).await[0];
        let shards = shards(root, 50);
        assert!(database.store.expand(database.token, root.id, &shards).await.unwrap());
        let batch: Vec<AttemptEnd> = shards.iter().map(|shard| succeeded(shard, "r".repeat(PARAMS))).collect();
        let ids = IdGen::new(1023);
        let ends = database.store.finish(Finisher { token: database.token, ids: &ids }, &batch).await.unwrap();
        assert_eq!(ends.outcomes.len(), 50);
        let largest = database.proxy.largest();
        assert!((BYTES / 2..2 * BYTES + 1_000).contains(&largest), "{largest} bytes in one packet");
        assert_eq!(database.store.runs(&[root.id]).await.unwrap()[0].status, RunStatus::Succeeded);
        database.end().await;
    }
}

/// A proxy does not announce its limit. If the batch were not made smaller, the same rows would be sent forever.
#[tokio::test(flavor = "multi_thread")]
async fn shards_beyond_a_packet_that_nothing_names_are_written_in_smaller_statements() {
    for database in LimitedDatabase::all(&StoreConfig::default()).await {
        let root = &database.claim(1, ROOT_SHARD).await[0];
        let shards = shards(root, 40);
        database.proxy.limit(2 * PARAMS);
        let mut failed = 0;
        while !database.store.expand(database.token, root.id, &shards).await.is_ok_and(|is_first| is_first) {
            failed += 1;
            assert!(failed < 20, "the shards are not written");
        }
        assert!(database.proxy.cut_count() > 0, "the limit was never met");
        assert_eq!(database.store.runs(&[shards[39].id]).await.unwrap()[0].params, shards[39].params);
        database.end().await;
    }
}

/// One result can never be written: its run ends with that reason. All other results of the batch are written.
#[tokio::test(flavor = "multi_thread")]
async fn a_result_beyond_a_packet_does_not_hold_up_the_others() {
    for database in LimitedDatabase::all(&StoreConfig::default()).await {
        let runs = database.claim(20, 0).await;
        let result = |number: usize| "r".repeat(if number == 7 { 30_000 } else { 100 });
        let batch: Vec<AttemptEnd> =
            runs.iter().enumerate().map(|(number, run)| succeeded(run, result(number))).collect();
        database.proxy.limit(2 * PARAMS);
        let ids = IdGen::new(1023);
        let (mut answers, mut failed) = (Vec::new(), 0);
        while answers.len() < batch.len() {
            match database.store.finish(Finisher { token: database.token, ids: &ids }, &batch[answers.len()..]).await {
                Ok(ends) => answers.extend(ends.outcomes),
                Err(_) => failed += 1,
            }
            assert!(failed < 40, "only {} results are written", answers.len());
        }
        for (number, answer) in answers.iter().enumerate() {
            assert_eq!(*answer == EndOutcome::Unwritable, number == 7, "{number}: {answer:?}");
        }
        let refused = database.store.runs(&[runs[7].id]).await.unwrap().pop().unwrap();
        assert_eq!(refused.status, RunStatus::Failed);
        assert_eq!(refused.message.as_deref(), Some("the result of this run cannot be written to the database"));
        assert_eq!(database.store.runs(&[runs[19].id]).await.unwrap()[0].status, RunStatus::Succeeded);
        database.end().await;
    }
}
