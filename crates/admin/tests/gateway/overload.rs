//! More jobs fire at one instant than a server can claim before it. They start late, with the reason overload, and none is skipped.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rondel_admin::{Engine, EngineConfig, Lifecycle, jobs};
use rondel_core::misfire::LateBecause;
use rondel_core::route::trace::Trace;
use rondel_core::{Reason, Run, RunStatus, Timestamp, Trigger};
use rondel_proto::v1;
use rondel_proto::v1::executor_message::Body as Up;
use rondel_proto::v1::server_message::Body as Down;
use rondel_store::ledger::{AttemptEnd, ClaimJob, ClaimResult, Ends, Finisher, RunQuery};
use rondel_store::{Cluster as _, MemStore, Result, Runs as _, Store};
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::world::{LIMIT, NAMESPACE, hello, store, success_result};

const JOB_COUNT: usize = 300;
/// Long enough for a busy machine to create the jobs before their instant.
const AHEAD: Duration = Duration::from_secs(8);

/// A store whose claims take `length`. It records when each fire was claimed.
#[derive(Debug)]
struct SlowClaimsStore {
    inner: Arc<MemStore>,
    length: Duration,
    asked: Mutex<Vec<(Timestamp, Timestamp)>>,
}

impl SlowClaimsStore {
    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, _: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        effect.await
    }
}

rondel_store::delegate_store!(SlowClaimsStore {
    Claim {
        async fn claim(&self, token: LeaseToken, jobs: &[ClaimJob]) -> Result<ClaimResult> {
            let now = self.inner().now().await?;
            self.asked.lock().unwrap().extend(jobs.iter().map(|job| (now, job.expected_row.next_fire_at)));
            tokio::time::sleep(self.length).await;
            self.inner().claim(token, jobs).await
        }
    }
    Finish {
        async fn finish(&self, finisher: Finisher<'_>, batch: &[AttemptEnd]) -> Result<Ends> {
            self.inner().finish(finisher, batch).await
        }
    }
});

/// Starts a server with [`JOB_COUNT`] jobs that fire once, all at one instant, and an executor that succeeds with each run immediately.
/// Returns the instant and the runs of these jobs after all have ended.
async fn run_all_at_once(store: &Arc<SlowClaimsStore>, config: EngineConfig, ahead: Duration) -> (Timestamp, Vec<Run>) {
    let lifecycle = Lifecycle::new();
    let engine = Engine::start(Arc::clone(store) as Arc<dyn Store>, config, &lifecycle).await.unwrap();
    let at = engine.now().ceil_second() + ahead;
    for number in 0..JOB_COUNT {
        let spec = serde_json::json!({
            "name": format!("j{number}"), "app": "files", "handler": "h", "schedule": {"at": at.to_string()},
            "misfire": {"policy": "skip", "tolerance": "100ms"},
        });
        jobs::create(&engine, NAMESPACE, serde_json::from_value(spec).unwrap(), "test").await.unwrap();
    }
    let spec = serde_json::json!({"name": "punctual", "app": "files", "handler": "h", "schedule": {"every": "1s"}});
    jobs::create(&engine, NAMESPACE, serde_json::from_value(spec).unwrap(), "test").await.unwrap();
    let (up, messages) = mpsc::unbounded_channel();
    let send = |body| up.send(v1::ExecutorMessage { body: Some(body) }).unwrap();
    send(Up::Hello(v1::Hello { slots: 1_000, ..hello("e", 1) }));
    let messages = UnboundedReceiverStream::new(messages).map(Ok);
    let beat = v1::ExecutorMessage { body: Some(Up::Heartbeat(v1::Heartbeat::default())) };
    let mut down = engine.open_session(messages, "test").await.unwrap();
    let mut ended = BTreeSet::new();
    let ends = async {
        let has_verdicts = async || {
            let runs = all_runs(store).await;
            runs.len() == JOB_COUNT && runs.iter().all(|run| run.status.is_terminal())
        };
        while !has_verdicts().await {
            let next = tokio::time::timeout(Duration::from_millis(100), down.recv()).await;
            up.send(beat.clone()).unwrap();
            let Ok(next) = next else { continue };
            let Some(message) = next else { break };
            match message.body {
                Some(Down::Triggers(triggers)) => {
                    triggers.triggers.iter().for_each(|trigger| send(success_result(trigger)))
                }
                Some(Down::ResultAcks(acks)) => ended.extend(acks.acks.into_iter().map(|ack| ack.run_id)),
                _ => {}
            }
        }
    };
    let is_over = tokio::time::timeout(LIMIT, ends).await;
    let runs = all_runs(store).await;
    assert_eq!(runs.len(), JOB_COUNT, "{is_over:?}: {} ended", ended.len());
    lifecycle.soft.cancel();
    lifecycle.hard.cancel();
    (at, runs)
}

async fn all_runs(store: &Arc<SlowClaimsStore>) -> Vec<Run> {
    let mut runs = store.list_runs(NAMESPACE, &RunQuery { limit: 1_000, ..RunQuery::default() }).await.unwrap();
    runs.retain(|run| run.trigger == Trigger::Once);
    runs
}

fn misfires(runs: &[Run]) -> usize {
    runs.iter().filter(|run| run.reason == Some(Reason::Misfire)).count()
}

fn slow_claims(length: Duration) -> Arc<SlowClaimsStore> {
    Arc::new(SlowClaimsStore { inner: store(), length, asked: Mutex::default() })
}

/// With three jobs per claim, most jobs are claimed after the tolerance of their misfire policy.
fn slow_config() -> EngineConfig {
    EngineConfig {
        claim_ahead: Duration::from_millis(500),
        claim_page: 3,
        claim_budget: 3,
        backlog_budget: 3,
        claim_jobs: 3,
        ..EngineConfig::default()
    }
}

#[tokio::test]
async fn fires_that_a_server_claims_late_are_late_and_not_missed() {
    let store = slow_claims(Duration::from_millis(30));
    let (_, runs) = run_all_at_once(&store, slow_config(), AHEAD).await;
    assert_eq!(misfires(&runs), 0, "none is skipped");
    assert!(runs.iter().all(|run| run.status == RunStatus::Succeeded), "all have run");
    let behind = |run: &Run| {
        let trace: Trace = serde_json::from_str(run.trace.as_deref()?).ok()?;
        trace.waits().server
    };
    let late: Vec<_> = runs.iter().filter_map(behind).collect();
    assert!(!late.is_empty(), "100 claims take three seconds, and begin half a second before");
    assert!(late.iter().all(|late| late.because == LateBecause::Overload), "{late:?}");
}

/// Claims the fires of a job that fires each second while 300 others are late. Returns the shortest time between such a claim and the
/// instant of the fire.
async fn shortest_lead() -> Duration {
    let (claim_ahead, look_ahead) = (Duration::from_millis(900), Duration::from_secs(1));
    let store = slow_claims(Duration::from_millis(30));
    let config = EngineConfig { claim_ahead, look_ahead, ..slow_config() };
    let (at, _) = run_all_at_once(&store, config, AHEAD).await;
    let asked = store.asked.lock().unwrap();
    let fires = asked.iter().filter(|(_, fire_at)| *fire_at > at);
    fires.map(|(asked_at, fire_at)| fire_at.since(*asked_at)).min().unwrap()
}

#[tokio::test]
async fn a_job_that_is_in_time_stays_so_beside_late_ones() {
    // On a machine that stalls, every claim is late, whichever comes first. The measurement is then repeated.
    let mut leads = Vec::new();
    while leads.len() < 3 && leads.iter().all(|lead| *lead <= Duration::from_millis(200)) {
        leads.push(shortest_lead().await);
    }
    assert!(leads.iter().any(|lead| *lead > Duration::from_millis(200)), "claimed {leads:?} before it was due");
}

#[cfg(debug_assertions)]
#[tokio::test]
async fn late_fires_that_come_first_are_noticed() {
    rondel_failpoint::mutant::set(Some(rondel_failpoint::mutant::Mutant::LateFirst));
    // On a machine that stalls while fires become late, there are no late fires that could come first. The measurement is then repeated.
    let mut leads = Vec::new();
    while leads.len() < 3 && leads.iter().all(|lead| *lead >= Duration::from_millis(200)) {
        leads.push(shortest_lead().await);
    }
    rondel_failpoint::mutant::set(None);
    assert!(leads.iter().any(|lead| *lead < Duration::from_millis(200)), "claimed {leads:?} before it was due");
}

/// With this mutant, a fire is missed if it is late when it is claimed, so most fires would be skipped.
#[cfg(debug_assertions)]
#[tokio::test]
async fn late_fires_that_count_as_missed_are_noticed() {
    rondel_failpoint::mutant::set(Some(rondel_failpoint::mutant::Mutant::LateIsMissed));
    let store = slow_claims(Duration::from_millis(30));
    let (_, runs) = run_all_at_once(&store, slow_config(), AHEAD).await;
    rondel_failpoint::mutant::set(None);
    assert!(misfires(&runs) > 0, "100 claims take three seconds, and begin half a second before");
}

#[tokio::test]
async fn the_fires_of_a_dense_instant_are_claimed_earlier() {
    // 300 jobs at 100 a second. On a machine that stalls, the claim is late nevertheless. The measurement is then repeated.
    let mut leads = Vec::new();
    while leads.len() < 3 && leads.iter().all(|lead| *lead <= Duration::from_millis(1_500)) {
        leads.push(lead_of_a_dense_instant().await);
    }
    assert!(leads.iter().any(|lead| *lead > Duration::from_millis(1_500)), "claimed {leads:?} before they were due");
}

/// How long before the common due instant of 300 jobs their first claim was requested.
async fn lead_of_a_dense_instant() -> Duration {
    let claim_ahead = Duration::from_millis(500);
    let config = EngineConfig {
        claim_ahead,
        dense_from: 100,
        claim_pace: 100,
        dense_period: Duration::from_millis(100),
        ..EngineConfig::default()
    };
    let store = slow_claims(Duration::from_millis(1));
    let (at, runs) = run_all_at_once(&store, config, AHEAD).await;
    assert!(runs.iter().all(|run| run.status == RunStatus::Succeeded), "all have run");
    let asked = store.asked.lock().unwrap();
    let first = asked.iter().filter(|(_, fire_at)| *fire_at == at).map(|(asked_at, _)| *asked_at).min().unwrap();
    at.since(first)
}
