use rondel_core::homes::Switch;
use rondel_core::{AppId, ExecutorId, NamespaceId};
use rondel_store::cluster::NodeReport;
use rondel_store::ledger::OrphanedJob;
use rondel_store::{MemStore, Store};
use serde_json::json;
use tokio::time::Instant;

use super::*;
use crate::clock::BootClock;
use crate::config::EngineConfig;
use crate::engine::Engine;
use crate::jobs;
use crate::lifecycle::Lifecycle;

#[test]
fn no_job_waits_in_a_batch_for_one_with_more_runs_than_fit() {
    let job = |(id, run_count)| OrphanedJob { id: JobId::new(id), run_count };
    let ids = |counts: &[(i64, u64)], page| {
        let jobs: Vec<OrphanedJob> = counts.iter().copied().map(job).collect();
        batch_jobs(&jobs, page)
            .into_iter()
            .map(|batch| batch.iter().map(|id| id.get()).collect())
            .collect::<Vec<Vec<_>>>()
    };
    assert_eq!(ids(&[], 3), Vec::<Vec<i64>>::new());
    assert_eq!(ids(&[(1, 1), (2, 2), (3, 2), (4, 9), (5, 9)], 3), [vec![1, 2], vec![3], vec![4], vec![5]]);
    assert_eq!(ids(&[(1, 1), (2, 9)], 3), [vec![1], vec![2]]);
}

const LEASE: Duration = Duration::from_secs(4);

#[test]
fn a_lease_that_ends_before_its_sent_runs_after_a_clock_step_is_asked_about() {
    let at = Timestamp::from_secs;
    let node = |id, epoch, lease_until| Node {
        id: NodeId::new(id),
        name: format!("n{id}"),
        epoch,
        lease_until,
        is_fenced: false,
        fenced_by: None,
        advertise_url: None,
        server_version: String::new(),
        started_at: at(1),
        switch: Switch::Active,
        report: NodeReport::default(),
    };
    let session = |id, ended_at| Session {
        token: LeaseToken { node: NodeId::new(id), epoch: 1 },
        executor: ExecutorId::new(7),
        app: AppId::new(1),
        last_seen_at: at(50),
        ended_at,
        has_left: false,
        process: None,
    };
    let asked = |lease_until, sessions: &[Session]| {
        let over = leases_that_sent(vec![node(1, 3, at(lease_until)), node(2, 1, at(200))], sessions, at(100));
        over.into_iter().map(|lease| (lease.node.get(), lease.epoch)).collect::<Vec<_>>()
    };
    assert_eq!(asked(100, &[]), [(1, 2)]);
    assert_eq!(asked(99, &[]), []);
    assert_eq!(asked(99, &[session(1, None)]), [(1, 2)]);
    assert_eq!(asked(99, &[session(1, Some(at(100)))]), [(1, 2)]);
    assert_eq!(asked(99, &[session(1, Some(at(60))), session(2, None)]), [], "another node's streams do not count");
}

/// Starts two servers whose beats are this far apart, kills the home of the job, and returns how many milliseconds after
/// the end of the dead server's lease the job has moved to the other one.
async fn takeover_delay_ms(apart: Duration) -> u64 {
    let began = Instant::now();
    let micros = move || i64::try_from(began.elapsed().as_micros()).unwrap();
    let store: Arc<dyn Store> = Arc::new(MemStore::new(Arc::new(move || Timestamp::from_millis(micros() / 1_000))));
    let start = async |name: &str, lifecycle: &Lifecycle| {
        let boot = BootClock::Given(Arc::new(micros));
        let config = EngineConfig { node_name: name.to_owned(), lease: LEASE, boot, ..EngineConfig::default() };
        Engine::start(Arc::clone(&store), config, lifecycle).await.unwrap()
    };
    let (dies, lives) = (Lifecycle::new(), Lifecycle::new());
    let dead = start("dies", &dies).await;
    let spec = json!({"name": "j", "app": "a", "handler": "h", "schedule": {"every": "1s"}});
    let namespace = NamespaceId::new(1);
    jobs::create(&dead, namespace, serde_json::from_value(spec).unwrap(), "test").await.unwrap();
    tokio::time::sleep(Duration::from_secs(3) + apart).await;
    let heir = start("lives", &lives).await.token();
    tokio::time::sleep(Duration::from_secs(5)).await;
    dies.soft.cancel();
    dies.hard.cancel();

    let of_dead = |nodes: Vec<Node>| nodes.into_iter().find(|node| node.name == "dies").unwrap();
    let lease_until = of_dead(store.nodes().await.unwrap()).lease_until;
    let limit = Instant::now() + Duration::from_secs(30);
    let is_claimed = async || store.jobs_of_home(heir.node, JobId::new(0), 1).await.unwrap().len() == 1;
    while !is_claimed().await {
        assert!(Instant::now() < limit, "not claimed within 30 s");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let claimed_at = Timestamp::from_millis(micros() / 1_000);
    assert!(claimed_at >= lease_until, "{claimed_at} {lease_until}");
    lives.soft.cancel();
    lives.hard.cancel();
    u64::try_from(claimed_at.since(lease_until).as_millis()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_jobs_of_a_dead_server_continue_when_its_lease_ends() {
    for apart_ms in [0, 170, 340, 510, 680, 850] {
        let late_ms = takeover_delay_ms(Duration::from_millis(apart_ms)).await;
        assert!(late_ms < 100, "beats {apart_ms} ms apart: {late_ms} ms late");
    }
}
