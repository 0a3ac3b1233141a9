//! What opening a database refuses and repairs, and what a store does if the database refuses rows.

#![expect(clippy::unwrap_used, reason = "tests: what is not as it must be ends them")]

#[path = "database/adoption.rs"]
mod adoption;
#[path = "database/claims.rs"]
mod claims;
#[path = "database/connections.rs"]
mod connections;
#[path = "database/counters.rs"]
mod counters;
#[path = "database/hand_overs.rs"]
mod hand_overs;
#[path = "database/interrupted.rs"]
mod interrupted;
#[path = "database/joins.rs"]
mod joins;
#[path = "database/migrating.rs"]
mod migrating;
#[path = "database/packet_limit.rs"]
mod packet_limit;
#[path = "database/packets.rs"]
mod packets;
#[path = "database/proxy.rs"]
mod proxy;
#[path = "database/pump_roots.rs"]
mod pump_roots;
#[path = "database/read_only.rs"]
mod read_only;
#[path = "database/requests.rs"]
mod requests;
#[path = "database/silent.rs"]
mod silent;
#[path = "database/stale_statistics.rs"]
mod stale_statistics;
mod support;

use std::time::Duration;

use rondel_core::outcome::{NextStepPolicy, Outcome};
use rondel_core::run::RunJob;
use rondel_core::{
    AppId, ExecutorId, IdGen, JobId, JobSpec, NamespaceId, NodeId, Run, RunId, RunStatus, Timestamp, Trigger,
};
use rondel_store::access::TokenQuery;
use rondel_store::catalog::{JobCreated, NewJob};
use rondel_store::cluster::{Join, JoinRequest};
use rondel_store::ledger::{AttemptEnd, ClaimJob, DueRange, EndOutcome, Finisher, RunAtExecutor};
use rondel_store::outbox::TakeOutbox;
use rondel_store::upkeep::StuckJob;
use rondel_store::{
    Claim, Cluster, CreateJobs, Dispatch, Finish, Heal, LeaseToken, Namespaces, OpenError, Outbox, Runs, SqlStore,
    StoreConfig, Tokens,
};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor, Row};
use support::{Scratch, Server};

/// The beginning of a statement that copies rows of `run` to `open_run`. The caller appends a condition.
const COPY_OPEN_ROWS: &str = "INSERT INTO open_run (id, job_id, fire_at_ms, cause, shard_index, namespace_id, app_id, node_id, node_epoch, status, due_at_ms) \
     SELECT id, job_id, fire_at_ms, cause, shard_index, namespace_id, app_id, node_id, node_epoch, status, due_at_ms FROM run WHERE";

/// A fresh database of one kind, with direct access to it.
struct TestDatabase {
    config: StoreConfig,
    url: String,
    scratch: Option<Scratch>,
    _folder: Option<tempfile::TempDir>,
}

impl TestDatabase {
    async fn all() -> Vec<Self> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rondel.db");
        let config =
            StoreConfig { url: format!("sqlite://{}", path.display()).parse().unwrap(), ..StoreConfig::default() };
        let url = format!("sqlite://{}", path.display());
        let mut databases = vec![Self { config, url, scratch: None, _folder: Some(folder) }];
        for server in [Server::Postgres, Server::MySql] {
            if let Some(scratch) = Scratch::create(server).await {
                let (config, url) = (scratch.config(), scratch.url.clone());
                databases.push(Self { config, url, scratch: Some(scratch), _folder: None });
            }
        }
        databases
    }

    async fn execute(&self, statement: &str) {
        sqlx::any::install_default_drivers();
        let mut connection = AnyConnection::connect(&self.url).await.unwrap();
        connection.execute(AssertSqlSafe(statement)).await.unwrap();
        connection.close().await.unwrap();
    }

    async fn number(&self, query: &str) -> i64 {
        let mut connection = AnyConnection::connect(&self.url).await.unwrap();
        let row = connection.fetch_one(AssertSqlSafe(query)).await.unwrap();
        row.try_get(0).unwrap()
    }

    async fn end(self) {
        if let Some(scratch) = self.scratch {
            scratch.drop().await;
        }
    }
}

#[tokio::test]
async fn a_second_server_on_one_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = support::sqlite_config(folder.path());
    let first = SqlStore::open(&config).await.unwrap();
    let error = SqlStore::open(&config).await.unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("ron del%.db is in use by another rondel server"), "{error}");
    first.close().await;
    drop(first);
    SqlStore::open(&config).await.unwrap();
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let config = |path: &std::path::Path| StoreConfig {
        url: rondel_store::DatabaseUrl::sqlite_file(path),
        ..StoreConfig::default()
    };
    let error = SqlStore::open(&config(&folder.path().join("missing/rondel.db"))).await.unwrap_err();
    assert!(matches!(&error, OpenError::File { path, .. } if path.ends_with("missing/rondel.db")), "{error}");
    let error = SqlStore::open(&config(folder.path())).await.unwrap_err();
    assert!(matches!(error, OpenError::File { .. }), "{error}");
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "this is no database, however long it is looked at: ".repeat(100)).unwrap();
    assert!(SqlStore::open(&config(&text)).await.is_err());
}

#[tokio::test]
async fn an_address_without_a_server_is_reported_as_unreachable() {
    // This port was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for scheme in ["postgres", "mysql"] {
        let url = format!("{scheme}://rondel:secret@127.0.0.1:{port}/rondel").parse().unwrap();
        let start = tokio::time::Instant::now();
        let error = SqlStore::open(&StoreConfig { url, ..StoreConfig::default() }).await.unwrap_err();
        assert!(matches!(error, OpenError::Unreachable { .. }), "{error:?}");
        assert_eq!(
            error.to_string(),
            format!("cannot reach the database {scheme}://rondel:***@127.0.0.1:{port}/rondel")
        );
        assert!(start.elapsed() < Duration::from_secs(7));
    }
    // This server listens, and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://{}/rondel", silent.local_addr().unwrap()).parse().unwrap();
    let config = StoreConfig { url, connect_timeout: Duration::from_millis(300), ..StoreConfig::default() };
    let error = SqlStore::open(&config).await.unwrap_err();
    assert!(matches!(error, OpenError::Unreachable { .. }), "{error:?}");
}

#[tokio::test]
async fn a_missing_database_is_reported_with_a_remedy() {
    for database in TestDatabase::all().await.into_iter().filter(|database| database.scratch.is_some()) {
        let url = format!("{}_missing", database.url).parse().unwrap();
        let error = SqlStore::open(&StoreConfig { url, ..StoreConfig::default() }).await.unwrap_err();
        assert!(matches!(error, OpenError::Refused { .. }), "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains("_missing") && text.ends_with("create it, or name another one at the end of the URL"),
            "{text}"
        );
        assert!(!text.contains("at line"), "{text}");
    }
}

#[tokio::test]
async fn a_user_who_may_not_create_tables_is_reported_with_a_remedy() {
    for database in TestDatabase::all().await.into_iter().filter(|database| database.url.starts_with("postgres")) {
        let name = database.url.rsplit('/').next().unwrap().split('?').next().unwrap().to_owned();
        let guest = format!("{name}_guest");
        database.execute(&format!("CREATE ROLE {guest} LOGIN PASSWORD 'guest'")).await;
        let (_, host) = database.url.split_once('@').unwrap();
        let url = format!("postgres://{guest}:guest@{host}").parse().unwrap();
        let error = SqlStore::open(&StoreConfig { url, ..StoreConfig::default() }).await.unwrap_err();
        let cure = format!("ALTER DATABASE \"{name}\" OWNER TO \"{guest}\"");
        let text = error.to_string();
        assert!(text.contains("permission denied for schema public") && text.ends_with(&cure), "{text}");
        assert!(!text.contains("at line"), "{text}");
        database.execute(&format!("DROP ROLE {guest}")).await;
        database.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_is_too_new_is_refused_and_one_that_is_newer_is_not() {
    for database in TestDatabase::all().await {
        SqlStore::open(&database.config).await.unwrap().close().await;
        // A later version of the program has applied a migration with the number 999.
        let blob = if database.config.url.to_string().starts_with("postgres") { "'\\x00'" } else { "x'00'" };
        database
            .execute(&format!(
                "INSERT INTO _sqlx_migrations (version, description, installed_on, success, checksum, execution_time) \
                 VALUES (999, 'later', CURRENT_TIMESTAMP, TRUE, {blob}, 0)"
            ))
            .await;
        SqlStore::open(&database.config).await.unwrap().close().await;
        database.execute("UPDATE schema_compat SET min_server = '99.1.0'").await;
        let error = SqlStore::open(&database.config).await.unwrap_err();
        assert_eq!(error.to_string(), "the database needs rondel 99.1.0 or newer, this is 0.2.0");
        let newer = StoreConfig { server_version: "99.1.0".to_owned(), ..database.config.clone() };
        SqlStore::open(&newer).await.unwrap().close().await;
        database.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_start_at_once_migrate_once() {
    for database in TestDatabase::all().await.into_iter().filter(|database| database.scratch.is_some()) {
        let (a, b, c) = tokio::join!(
            SqlStore::open(&database.config),
            SqlStore::open(&database.config),
            SqlStore::open(&database.config)
        );
        for store in [a, b, c] {
            store.unwrap().close().await;
        }
        database.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_was_interrupted_is_finished() {
    for database in TestDatabase::all().await.into_iter().filter(|database| database.url.starts_with("mysql")) {
        SqlStore::open(&database.config).await.unwrap().close().await;
        // The server was killed during the first migration: half of the tables exist, and the migration is not marked as successful.
        database.execute("DROP TABLE outbox").await;
        database.execute("UPDATE _sqlx_migrations SET success = FALSE WHERE version = 1").await;
        let store = SqlStore::open(&database.config).await.unwrap();
        let (namespace_max, messages_per_namespace_max, hold) = (1, 1, Duration::ZERO);
        let take = TakeOutbox { excluded_namespaces: &[], namespace_max, messages_per_namespace_max, hold };
        assert_eq!(store.take_outbox(Timestamp::EPOCH, take).await.unwrap(), []);
        store.close().await;
        // The server was killed after the last statement of each migration. Each statement can run again.
        database.execute("UPDATE _sqlx_migrations SET success = FALSE").await;
        let store = SqlStore::open(&database.config).await.unwrap();
        assert_eq!(store.tokens(&TokenQuery { limit: 1, ..TokenQuery::default() }).await.unwrap(), []);
        store.close().await;
        database.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_have_their_limits() {
    for database in TestDatabase::all().await {
        let store = SqlStore::open(&database.config).await.unwrap();
        if database.url.starts_with("sqlite") {
            store.now().await.unwrap();
            let mode: String = {
                let mut connection = AnyConnection::connect(&database.url).await.unwrap();
                connection.fetch_one("PRAGMA journal_mode").await.unwrap().try_get(0).unwrap()
            };
            assert_eq!(mode, "wal");
        } else {
            // Another transaction holds a node's row. The store must give up instead of waiting forever.
            let token = join(&store, "held", Duration::from_secs(60)).await;
            let mut holder = AnyConnection::connect(&database.url).await.unwrap();
            let mut transaction = holder.begin().await.unwrap();
            transaction.execute("UPDATE node SET state = 'draining'").await.unwrap();
            // On a busy machine, one of several tries can be slow.
            let mut tries = Vec::new();
            while tries.len() < 3 && tries.iter().all(|took| *took >= Duration::from_millis(2_900)) {
                let start = tokio::time::Instant::now();
                let error = store.renew(token, Duration::from_secs(60)).await.unwrap_err();
                assert!(error.is_transient(), "{error:?}");
                tries.push(start.elapsed());
            }
            assert!(tries.iter().any(|took| *took < Duration::from_millis(2_900)), "{tries:?}");
            transaction.rollback().await.unwrap();
            assert!(store.renew(token, Duration::from_secs(60)).await.unwrap().is_some());
        }
        store.close().await;
        database.end().await;
    }
}

#[tokio::test]
async fn postgres_analyzes_tables_that_have_outgrown_their_statistics() {
    for database in TestDatabase::all().await.into_iter().filter(|database| database.url.starts_with("postgres")) {
        let store = SqlStore::open(&database.config).await.unwrap();
        pending(&store, 1_500).await;
        // Sets the statistics of an empty table, and prevents PostgreSQL from analyzing the table on its own.
        database.execute("ALTER TABLE run SET (autovacuum_enabled = false)").await;
        database.execute("UPDATE pg_class SET reltuples = 0, relpages = 100 WHERE relname = 'run'").await;
        let known = "SELECT CAST(reltuples AS BIGINT) FROM pg_class WHERE relname = 'run'";
        assert_eq!(database.number(known).await, 0);
        let end = tokio::time::Instant::now() + Duration::from_secs(60);
        // A connection reports its writes to other sessions only when it is idle.
        while database.number(known).await < 1_500 {
            assert!(tokio::time::Instant::now() < end, "it was not counted");
            store.stuck_jobs(10).await.unwrap();
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        store.close().await;
        database.end().await;
    }
}

#[tokio::test]
async fn postgres_reads_a_batch_by_its_keys_despite_wrong_statistics() {
    const ROWS: i64 = 5_000;
    for database in TestDatabase::all().await.into_iter().filter(|database| database.url.starts_with("postgres")) {
        let store = SqlStore::open(&database.config).await.unwrap();
        let (token, runs) = pending(&store, ROWS).await;
        // A connection reports its reads only when it ends.
        store.close().await;
        database.execute("ALTER TABLE run SET (autovacuum_enabled = false)").await;
        database.execute("UPDATE pg_class SET reltuples = 0, relpages = 100 WHERE relname = 'run'").await;
        let read = "SELECT CAST(SUM(idx_tup_read) AS BIGINT) FROM pg_stat_user_indexes WHERE relname = 'run'";
        let before = database.number(read).await;
        let store = SqlStore::open(&database.config).await.unwrap();
        let in_hand = |run: &Run| RunAtExecutor {
            run: run.id,
            attempt: 1,
            executor_id: ExecutorId::new(9),
            executor: "x".to_owned(),
            at: run.fire_at,
        };
        let batch: Vec<RunAtExecutor> = runs.iter().take(100).map(in_hand).collect();
        store.note_running(token, &batch).await.unwrap();
        let ids: Vec<RunId> = batch.iter().map(|one| one.run).collect();
        let running = store.runs(&ids).await.unwrap();
        assert_eq!(running.iter().filter(|run| run.status == RunStatus::Running).count(), 100);
        store.close().await;
        let read = database.number(read).await - before;
        assert!(read < ROWS, "{read} entries of indexes were read for 100 runs of {ROWS}");
        database.end().await;
    }
}

/// Takes a lease, even from a living node with this name.
async fn join(store: &SqlStore, name: &str, lease: Duration) -> LeaseToken {
    let request = JoinRequest {
        name: name.to_owned(),
        lease,
        advertise_url: None,
        server_version: "0.2.0".to_owned(),
        may_take_over: true,
        held: None,
        waited_for_takeover: Duration::ZERO,
    };
    let Join::Joined { token, .. } = store.join(&request).await.unwrap() else { unreachable!() };
    token
}

async fn pending(store: &SqlStore, count: i64) -> (LeaseToken, Vec<Run>) {
    let token = join(store, "node", Duration::from_secs(60)).await;
    let now = store.now().await.unwrap();
    let namespace = NamespaceId::new(1);
    let app = store.ensure_app(AppId::new(1), namespace, "app", now).await.unwrap().id;
    let spec: JobSpec =
        serde_json::from_value(serde_json::json!({"name": "job", "app": "app", "handler": "h"})).unwrap();
    let id = JobId::new(1);
    let new = NewJob {
        id,
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
    assert!(matches!(store.create_job(new).await.unwrap(), JobCreated::Saved(_)));
    let run_job = RunJob { namespace, job: id, job_version: 1, app };
    let fire_at = |number: i64| now + Duration::from_secs(u64::try_from(number).unwrap());
    let run = |number: i64| Run {
        due_at: now,
        ..Run::new(RunId::new(100 + number), run_job, fire_at(number), Trigger::Cron, (token.node, token.epoch))
    };
    let runs: Vec<Run> = (0..count).map(run).collect();
    let range = DueRange { from: Timestamp::EPOCH, to: Timestamp::MAX, limit: 9 };
    let seen_row = store.due_jobs(&[NodeId::new(0)], range).await.unwrap()[0];
    let claims = [ClaimJob {
        recent_fires: seen_row.recent_fires,
        expected_row: seen_row,
        held_from: None,
        next_fire_at: None,
        runs: runs.clone(),
        awaited_run: None,
    }];
    assert_eq!(store.claim(token, &claims).await.unwrap().jobs.len(), 1);
    (token, runs)
}

/// Makes the table refuse one word, as a database can refuse unforeseen data.
async fn refuse(database: &TestDatabase, column: &str) {
    let statement = if database.url.starts_with("sqlite") {
        format!(
            "CREATE TRIGGER poison BEFORE UPDATE ON run WHEN NEW.{column} = 'poison' \
             BEGIN SELECT RAISE(ABORT, 'poisoned'); END"
        )
    } else {
        format!("ALTER TABLE run ADD CONSTRAINT poison CHECK ({column} <> 'poison')")
    };
    database.execute(&statement).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_cannot_be_written_stands_alone() {
    for database in TestDatabase::all().await {
        let store = SqlStore::open(&database.config).await.unwrap();
        let (token, runs) = pending(&store, 40).await;
        refuse(&database, "message").await;
        let finish = |run: &Run| AttemptEnd {
            run: run.id,
            job: run.job,
            attempt: 1,
            outcome: Outcome::Succeeded,
            policy: NextStepPolicy {
                retry_max: 3,
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
            message: [13, 30].contains(&(run.id.get() - 100)).then(|| "poison".to_owned()),
            result: None,
            trace: None,
            detail: None,
            jitter: 0.0,
            owner: None,
            is_unsent: false,
            is_unfinished: false,
        };
        let batch: Vec<AttemptEnd> = runs.iter().map(finish).collect();
        let ids = IdGen::new(1023);
        let answers = store.finish(Finisher { token, ids: &ids }, &batch).await.unwrap().outcomes;
        for (number, answer) in answers.iter().enumerate() {
            let is_unwritable = [13, 30].contains(&number);
            assert_eq!(*answer == EndOutcome::Unwritable, is_unwritable, "{number}: {answer:?}");
        }
        let poisoned = store.runs(&[runs[13].id]).await.unwrap().pop().unwrap();
        assert_eq!(poisoned.status, RunStatus::Failed);
        assert_eq!(poisoned.message.as_deref(), Some("the result of this run cannot be written to the database"));
        assert_eq!(database.number("SELECT COUNT(*) FROM run WHERE status = 'succeeded'").await, 38);
        store.close().await;
        database.end().await;
    }
}

/// The store itself never leaves a job in this state. If another program did, the job is found and healed.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_without_its_next_fire_is_found_and_healed() {
    for database in TestDatabase::all().await {
        let store = SqlStore::open(&database.config).await.unwrap();
        let (token, runs) = pending(&store, 1).await;
        assert_eq!(store.stuck_jobs(9).await.unwrap(), []);
        database.execute("UPDATE job_due SET is_over = 0").await;
        let job = JobId::new(1);
        let seen_job = StuckJob { job, version: 1, awaited_run: None };
        assert_eq!(store.stuck_jobs(9).await.unwrap(), [seen_job]);
        assert!(store.heal_job(seen_job, None).await.unwrap(), "it rightly has none");
        assert_eq!(store.stuck_jobs(9).await.unwrap(), []);

        // A job that waits for an open run is not given a next fire, because the end of that run sets it.
        database.execute(&format!("UPDATE job_due SET is_over = 0, follows_run_id = {}", runs[0].id)).await;
        let waits = StuckJob { awaited_run: Some(runs[0].id), ..seen_job };
        assert_eq!(store.stuck_jobs(9).await.unwrap(), [waits]);
        assert!(!store.heal_job(seen_job, None).await.unwrap());
        assert!(store.heal_job(waits, None).await.unwrap());
        assert_eq!(store.stuck_jobs(9).await.unwrap(), []);

        database.execute("UPDATE job_due SET is_over = 0, follows_run_id = NULL").await;
        let next = Timestamp::from_secs(2_000_000_000);
        assert!(store.heal_job(seen_job, Some(next)).await.unwrap());
        let range = DueRange { from: next, to: next, limit: 9 };
        assert_eq!(store.due_jobs(&[token.node], range).await.unwrap().len(), 1);
        store.close().await;
        database.end().await;
    }
}
