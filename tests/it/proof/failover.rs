//! Databases with several servers: PostgreSQL with a synchronous standby, and MariaDB with Galera. The server that takes the writes dies
//! or hangs, and another one takes its place. Nothing that was acknowledged is lost, because the database acknowledges a commit only once
//! the other servers have it. Rondel's servers continue without help.

use std::time::Duration;

use rondel_tests::check::Rules;
use rondel_tests::{Backend, ScratchDb, Signal, variable, wait_until, wall_clock_ms};
use serde_json::json;

use super::database::{Postgres, triggers};
use super::fixture::{Journal, Worker, create_mixed_jobs, job, judge_all, print, server};
use super::galera::Galera;
use super::proxy::Proxy;

const LIMIT: Duration = Duration::from_secs(60);
/// How soon scheduling continues once the next database server takes writes.
const GOES_ON_MS: i64 = 5_000;
/// The delay that a busy machine adds.
const MACHINE_MS: i64 = 3_000;

/// What happens to the database server that takes the writes.
#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    Killed,
    /// Connections to it get no answer, as if the network were cut.
    Frozen,
}

/// A database with several servers. Rondel's servers write to one of them, at an address that may lead to another one
/// later.
pub(super) trait Cluster {
    /// The URL of the server that takes the writes, for Rondel's servers.
    fn url(&self) -> String;
    /// The port of the server that takes the writes.
    fn port(&self) -> u16;
    /// Ends the server that takes the writes. From now on, the next server is to take them.
    async fn fail(&mut self, end: End);
    /// Waits until the next server takes writes.
    async fn wait_for_writes(&self);
    /// Adds the servers that the cluster needs for the next failure.
    async fn mend(&mut self);
}

/// A primary that acknowledges a commit once its standby has it.
struct Pair {
    primary: Postgres,
    standby: Option<Postgres>,
    failed: Option<Postgres>,
}

impl Pair {
    async fn start() -> Option<Self> {
        let mut pair = Self { primary: Postgres::start().await?, standby: None, failed: None };
        pair.mend().await;
        Some(pair)
    }
}

impl Cluster for Pair {
    fn url(&self) -> String {
        self.primary.url()
    }

    fn port(&self) -> u16 {
        self.primary.port
    }

    async fn fail(&mut self, end: End) {
        match end {
            End::Killed => self.primary.process().signal(Signal::KILL),
            End::Frozen => self.primary.freeze(),
        }
        let standby = self.standby.take().expect("the pair was mended");
        self.failed = Some(std::mem::replace(&mut self.primary, standby));
        self.primary.sql("SELECT pg_promote()");
    }

    async fn wait_for_writes(&self) {
        wait_until(LIMIT, "the new primary takes writes", async || {
            let is_standby = self.primary.sql("SELECT pg_is_in_recovery()");
            if is_standby == "f" { Ok(()) } else { Err(is_standby) }
        })
        .await;
    }

    /// Adds a new standby. From now on, the primary acknowledges nothing without it.
    async fn mend(&mut self) {
        self.failed = None;
        self.standby = Some(self.primary.standby().await);
        for statement in ["ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"] {
            self.primary.sql(statement);
        }
        wait_until(LIMIT, "the standby is synchronous", async || {
            let state = self.primary.sql("SELECT sync_state FROM pg_stat_replication");
            if state == "sync" { Ok(()) } else { Err(state) }
        })
        .await;
    }
}

/// The address of the server that takes the writes.
pub(super) fn place_of(cluster: &impl Cluster) -> String {
    format!("127.0.0.1:{}", cluster.port())
}

/// A proxy to the server that takes the writes, and the URL of the database through the proxy.
pub(super) async fn address_of(cluster: &impl Cluster) -> (Proxy, String) {
    let address = Proxy::start(&place_of(cluster)).await;
    let url = cluster.url().replace(&place_of(cluster), address.url.trim_start_matches("http://"));
    (address, url)
}

fn number(name: &str, otherwise: usize) -> usize {
    variable(name).and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Fails over repeatedly while jobs fire, and checks what has become of their runs.
async fn fails_over(backend: Backend, mut cluster: impl Cluster) {
    let (address, url) = address_of(&cluster).await;
    let db = ScratchDb::given(backend, &url);
    let journal = Journal::new();
    let [first, second] = [server(&db, &[]).await, server(&db, &[]).await];
    let api = first.api().recording(journal.folder());
    let (job_count, rounds) = (number("TEST_FAILOVER_JOBS", 60), number("TEST_FAILOVERS", 2));
    create_mixed_jobs(&api, job_count, 40).await;
    let by_hand = job("by-hand", json!({}), json!({"schedule": null, "overlap": {"policy": "allow"}}));
    api.post("/api/v1/jobs", by_hand).await.expect(201);
    let _workers = [
        Worker::start(&[&first, &second], "one", &journal, None, &["--slots", "300"]).await,
        Worker::start(&[&second, &first], "two", &journal, None, &["--slots", "300"]).await,
    ];
    journal.wait_for_starts(2 * job_count).await;
    let clicks = triggers(api.clone());
    for round in 0..rounds {
        let end = if round % 2 == 0 { End::Killed } else { End::Frozen };
        cluster.fail(end).await;
        address.redirect(&place_of(&cluster));
        cluster.wait_for_writes().await;
        let back_ms = wall_clock_ms();
        let first_ms = wait_until(LIMIT, "handlers begin again", async || {
            let starts = journal.starts();
            starts.iter().map(|start| start.begin_ms).find(|begin| *begin > back_ms).ok_or(starts.len())
        })
        .await;
        let late_ms = first_ms - back_ms;
        print(&format!("{backend}, {end:?}: handlers began again {late_ms} ms after the next one took writes"));
        assert!(late_ms <= GOES_ON_MS + MACHINE_MS, "{end:?}: after {late_ms} ms");
        journal.wait_for_starts(2 * job_count).await;
        cluster.mend().await;
        journal.wait_for_starts(2 * job_count).await;
    }
    clicks.abort();
    let report = judge_all(&api, &journal, Rules::default()).await;
    print(&format!("{rounds} failovers of {backend}: {report}"));
    report.assert_clean();
}

#[tokio::test]
async fn a_standby_of_postgres_goes_on_with_all_that_was_acknowledged() {
    let Some(pair) = Pair::start().await else { return };
    fails_over(Backend::Postgres, pair).await;
}

#[tokio::test]
async fn a_node_of_galera_goes_on_with_all_that_was_acknowledged() {
    let Some(galera) = Galera::start().await else { return };
    fails_over(Backend::Mysql, galera).await;
}
