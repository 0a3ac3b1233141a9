//! Jobs that are handed over to another server.

use std::time::Duration;

use rondel_core::{RunId, Timestamp};
use rondel_store::cluster::{HomeMove, Join, JoinRequest};
use rondel_store::ledger::{ClaimJob, DueRange, MovedJobs};
use rondel_store::{Adopt as _, Claim as _, Cluster as _, LeaseToken, Move as _, Runs as _, SqlStore, StoreConfig};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor};
use tokio::time::timeout;

use super::{TestDatabase, join, pending};
use crate::support::assert_open_rows;

/// To hand over a job with hundreds of thousands of runs takes longer than a lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_renews_its_lease_while_it_gets_a_job() {
    for database in TestDatabase::all().await.into_iter().filter(|database| database.scratch.is_some()) {
        let (lock_timeout, statement_timeout) = (Duration::from_secs(40), Duration::from_secs(60));
        let store =
            SqlStore::open(&StoreConfig { lock_timeout, statement_timeout, ..database.config.clone() }).await.unwrap();
        let (token, runs) = pending(&store, 3).await;
        let other = join(&store, "other", Duration::from_secs(600)).await;
        // The handover waits for this transaction.
        let mut holder = AnyConnection::connect(&database.url).await.unwrap();
        let mut transaction = holder.begin().await.unwrap();
        let hold = format!("UPDATE run SET message = 'held' WHERE id = {}", runs[0].id);
        transaction.execute(AssertSqlSafe(hold.as_str())).await.unwrap();
        let ids: Vec<RunId> = runs.iter().map(|run| run.id).collect();
        let renewal = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let renewed = timeout(Duration::from_secs(15), store.renew(other, Duration::from_secs(600))).await;
            transaction.rollback().await.unwrap();
            renewed
        };
        let (given, renewed) = tokio::join!(store.hand_over(token, &ids, other.node), renewal);
        assert!(renewed.is_ok_and(|renewed| renewed.unwrap().is_some()), "{}", database.url);
        assert_eq!(given.unwrap(), ids);
        holder.close().await.unwrap();
        assert_open_rows(&store).await;
        store.close().await;
        database.end().await;
    }
}

/// The lease of a dead server was fenced, and then the database's clock stepped back to before the end of that lease. No server holds the
/// raised epoch of the fenced node, so no server would take over jobs that were handed to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_fenced_server_gets_no_job_after_a_step_back_of_the_clock() {
    for database in TestDatabase::all().await {
        let store = SqlStore::open(&database.config).await.unwrap();
        let (token, runs) = pending(&store, 1).await;
        let dead = join(&store, "dead", Duration::from_secs(60)).await;
        store.release(dead, Timestamp::EPOCH).await.unwrap();
        assert_eq!(store.orphaned_jobs(token, &[dead.node.into()], 10).await.unwrap().fenced, [dead.node]);
        step_back(&database, "dead").await;
        let run = &runs[0];
        let moves = [HomeMove { job: run.job, runs: vec![run.id], to: dead.node }];
        let moved = store.move_jobs(token, &moves, Timestamp::EPOCH).await.unwrap();
        assert_eq!(moved, MovedJobs::default(), "{}", database.url);
        assert_eq!(store.hand_over(token, &[run.id], dead.node).await.unwrap(), [], "{}", database.url);
        assert_eq!(store.runs(&[run.id]).await.unwrap()[0].node, token.node);

        let again = join(&store, "dead", Duration::from_secs(60)).await;
        assert_eq!(again, LeaseToken { node: dead.node, epoch: dead.epoch + 2 });
        assert_eq!(store.move_jobs(token, &moves, Timestamp::EPOCH).await.unwrap().runs, [run.id], "{}", database.url);
        assert_open_rows(&store).await;
        store.close().await;
        database.end().await;
    }
}

/// The lease of a dead server was fenced, and then the database's clock stepped back to before the end of that lease. The lease has ended
/// nevertheless: other servers get the server's runs and jobs, and the server can join again.
#[tokio::test(flavor = "multi_thread")]
async fn a_fenced_lease_has_ended_even_if_the_clock_steps_back_to_before_its_end() {
    for database in TestDatabase::all().await {
        let store = SqlStore::open(&database.config).await.unwrap();
        let (dead, runs) = pending(&store, 1).await;
        let token = join(&store, "other", Duration::from_secs(60)).await;
        store.release(dead, Timestamp::EPOCH).await.unwrap();
        assert_eq!(store.orphaned_jobs(token, &[dead.node.into()], 10).await.unwrap().fenced, [dead.node]);
        step_back(&database, "node").await;
        let (now, nodes) = (store.now().await.unwrap(), store.nodes().await.unwrap());
        let fenced = nodes.iter().find(|node| node.id == dead.node).unwrap();
        assert!(fenced.lease_until > now && !fenced.is_living(now), "{}", database.url);

        let orphaned = store.orphaned_jobs(token, &[dead.node.into()], 10).await.unwrap();
        assert_eq!((orphaned.fenced, orphaned.jobs.len()), (vec![dead.node], 1), "{}", database.url);
        let adopted = store.adopt(token, &[dead.node.into()], &[runs[0].job]).await.unwrap().runs;
        let adopted: Vec<_> =
            adopted.iter().map(|adopted| (adopted.run.id, adopted.from, adopted.lease_ended_at)).collect();
        assert_eq!(adopted, [(runs[0].id, dead, fenced.lease_until)], "runs due by then may have been sent");

        // The job is at the dead server again, and has no open run of that server.
        let make_idle = format!("UPDATE job_due SET home = {}, next_fire_at_ms = 7", dead.node.get());
        database.execute(&make_idle).await;
        let range = DueRange { from: Timestamp::EPOCH, to: Timestamp::MAX, limit: 9 };
        let seen = store.due_jobs(&[dead.node], range).await.unwrap()[0];
        let claims = [ClaimJob {
            recent_fires: seen.recent_fires,
            expected_row: seen,
            held_from: None,
            next_fire_at: None,
            runs: Vec::new(),
            awaited_run: None,
        }];
        assert_eq!(store.claim(token, &claims).await.unwrap().jobs.len(), 1, "{}", database.url);
        database.execute(&make_idle).await;
        assert_eq!(store.free_jobs(token, dead.node, 10).await.unwrap(), 1, "{}", database.url);

        let Join::Joined { token: again, .. } = store.join(&rejoin_request()).await.unwrap() else { unreachable!() };
        assert_eq!(again, LeaseToken { epoch: dead.epoch + 2, ..dead });
        assert_eq!(store.orphaned_jobs(token, &[dead.node.into()], 10).await.unwrap().fenced, [], "it lives again");
        assert_open_rows(&store).await;
        store.close().await;
        database.end().await;
    }
}

/// An outage of the database ended the leases of all servers. A server that had fenced another one has that server's limits, and may return
/// later than the fenced server.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_returns_first_waits_for_the_one_that_fenced_it() {
    for database in TestDatabase::all().await {
        let store = SqlStore::open(&database.config).await.unwrap();
        let (dead, runs) = pending(&store, 1).await;
        let fencer = join(&store, "fencer", Duration::from_secs(60)).await;
        store.release(dead, Timestamp::EPOCH).await.unwrap();
        assert_eq!(store.orphaned_jobs(fencer, &[dead.node.into()], 10).await.unwrap().fenced, [dead.node]);
        store.release(fencer, Timestamp::EPOCH).await.unwrap();
        let request = rejoin_request();
        assert_eq!(store.join(&request).await.unwrap(), Join::BeingTakenOver, "{}", database.url);
        let last_time = JoinRequest { waited_for_takeover: request.lease * 2, ..request };
        let Join::Joined { token, .. } = store.join(&last_time).await.unwrap() else { unreachable!() };
        let nodes = store.nodes().await.unwrap();
        assert!(nodes.iter().all(|node| node.fenced_by.is_none()), "{}", database.url);
        let adopted = store.adopt(token, &[], &[runs[0].job]).await.unwrap().runs;
        assert_eq!(adopted.len(), 1, "{}", database.url);
        assert_open_rows(&store).await;
        store.close().await;
        database.end().await;
    }
}

/// The request of the server "node" for a lease, while other servers run.
fn rejoin_request() -> JoinRequest {
    JoinRequest {
        name: "node".to_owned(),
        lease: Duration::from_secs(60),
        advertise_url: None,
        server_version: "0.2.0".to_owned(),
        may_take_over: false,
        held: None,
        waited_for_takeover: Duration::ZERO,
    }
}

/// Moves the stored ends of a server's leases ten minutes ahead, as if the database's clock had stepped back by that much.
async fn step_back(database: &TestDatabase, name: &str) {
    let statement = format!(
        "UPDATE node SET lease_until_ms = lease_until_ms + 600000, prior_lease_until_ms = prior_lease_until_ms + 600000, \
         ended_at_ms = ended_at_ms + 600000 WHERE name = '{name}'"
    );
    database.execute(&statement).await;
}
