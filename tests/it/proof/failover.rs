//! PostgreSQL with a synchronous standby, which takes the place of a primary that dies or hangs. What was acknowledged is there, since the
//! database acknowledges no commit that its standby does not have, and the servers go on by themselves.

use std::time::Duration;

use rondel_tests::check::Rules;
use rondel_tests::{Backend, ScratchDb, Signal, variable, wait_until, wall_clock_ms};
use serde_json::json;

use super::database::{Postgres, triggers};
use super::proxy::Proxy;
use super::stage::{Journal, Worker, job, judged, mixed_jobs, print, server};

const LIMIT: Duration = Duration::from_secs(60);
/// How soon after the new primary takes writes scheduling goes on, and what a busy machine adds.
const GOES_ON_MS: i64 = 5_000;
const MACHINE_MS: i64 = 3_000;

/// What happens to a primary.
#[derive(Debug, Clone, Copy)]
enum End {
    Killed,
    /// As where a network is cut: connections to it get no answer.
    Frozen,
}

/// A primary that acknowledges what its standby has, and the address that leads to it.
struct Pair {
    primary: Postgres,
    standby: Postgres,
    address: Proxy,
    journal: Journal,
    job_count: usize,
}

/// A standby of this primary, without which the primary acknowledges nothing from now on.
async fn synchronous_standby(primary: &Postgres) -> Postgres {
    let standby = primary.standby().await;
    for statement in ["ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"] {
        primary.sql(statement);
    }
    wait_until(LIMIT, "the standby is synchronous", async || {
        let state = primary.sql("SELECT sync_state FROM pg_stat_replication");
        if state == "sync" { Ok(()) } else { Err(state) }
    })
    .await;
    standby
}

impl Pair {
    /// Promotes the standby and leads new connections there. A new standby takes its place.
    async fn fail_over(mut self, end: End) -> Self {
        match end {
            End::Killed => self.primary.process().signal(Signal::KILL),
            End::Frozen => self.primary.freeze(),
        }
        self.address.redirect(&format!("127.0.0.1:{}", self.standby.port));
        self.standby.sql("SELECT pg_promote()");
        wait_until(LIMIT, "the new primary takes writes", async || {
            let is_standby = self.standby.sql("SELECT pg_is_in_recovery()");
            if is_standby == "f" { Ok(()) } else { Err(is_standby) }
        })
        .await;
        let back_ms = wall_clock_ms();
        let first_ms = wait_until(LIMIT, "handlers begin again", async || {
            let starts = self.journal.starts();
            starts.iter().map(|start| start.begin_ms).find(|begin| *begin > back_ms).ok_or(starts.len())
        })
        .await;
        let late_ms = first_ms - back_ms;
        print(&format!("primary {end:?}: handlers began again {late_ms} ms after its standby took writes"));
        assert!(late_ms <= GOES_ON_MS + MACHINE_MS, "{end:?}: after {late_ms} ms");
        self.journal.grows(2 * self.job_count).await;
        let standby = synchronous_standby(&self.standby).await;
        self.journal.grows(2 * self.job_count).await;
        Self { primary: self.standby, standby, ..self }
    }
}

fn number(name: &str, otherwise: usize) -> usize {
    variable(name).and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[tokio::test]
async fn a_standby_goes_on_with_all_that_was_acknowledged() {
    let Some(primary) = Postgres::start().await else { return };
    let standby = synchronous_standby(&primary).await;
    let address = Proxy::start(&format!("127.0.0.1:{}", primary.port)).await;
    let url = primary.url().replace(&primary.port.to_string(), address.url.rsplit(':').next().expect("a port"));
    let db = ScratchDb::given(Backend::Postgres, &url);
    let journal = Journal::new();
    let [first, second] = [server(&db, &[]).await, server(&db, &[]).await];
    let api = first.api().recording(journal.folder());
    let (job_count, rounds) = (number("TEST_FAILOVER_JOBS", 60), number("TEST_FAILOVERS", 2));
    mixed_jobs(&api, job_count, 40).await;
    let by_hand = job("by-hand", json!({}), json!({"schedule": null, "overlap": {"policy": "allow"}}));
    api.post("/api/v1/jobs", by_hand).await.expect(201);
    let _workers = [
        Worker::start(&[&first, &second], "one", &journal, None, &["--slots", "300"]).await,
        Worker::start(&[&second, &first], "two", &journal, None, &["--slots", "300"]).await,
    ];
    journal.grows(2 * job_count).await;
    let clicks = triggers(api.clone());
    let mut pair = Pair { primary, standby, address, journal, job_count };
    for round in 0..rounds {
        pair = pair.fail_over(if round % 2 == 0 { End::Killed } else { End::Frozen }).await;
    }
    clicks.abort();
    let report = judged(&api, &pair.journal, Rules::default()).await;
    print(&format!("{rounds} failovers of PostgreSQL: {report}"));
    report.assert_clean();
}
