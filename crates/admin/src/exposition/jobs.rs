//! Metrics of the individual jobs that have their own series and still exist.

use std::collections::HashMap;
use std::time::Duration;

use rondel_core::{JobId, NodeId, Timestamp};
use rondel_store::StoreError;
use rondel_store::catalog::JobRecord;
use tokio::time::timeout;

use super::family::{Family, Label, label};
use super::{pumps, seconds, to_f64};
use crate::metrics::JobSnapshot;
use crate::node::Shared;

/// Maximum number of jobs that one statement looks up.
const LOOKUP_BATCH: usize = 500;
/// Timeout of the lookup. A scrape must be answered within the scraper's timeout, even while the database does not answer.
const TIMEOUT: Duration = Duration::from_secs(3);

/// A job whose metrics are shown.
struct ShownJob {
    state: JobSnapshot,
    record: JobRecord,
    /// Whether the job's home is this node, or no node. Only the home sees all runs of a job, so only the home knows the job's newest verdict.
    is_at_home: bool,
}

impl ShownJob {
    fn labels(&self) -> Vec<Label> {
        vec![label("namespace", &self.state.namespace_name), label("job", &self.record.spec.name)]
    }
}

/// The series of individual jobs, without samples if the database does not answer.
pub(super) async fn families(shared: &Shared, now: Timestamp) -> Vec<Family> {
    let shown_jobs = match timeout(TIMEOUT, shown_jobs(shared)).await {
        Ok(Ok(shown_jobs)) => shown_jobs,
        Ok(Err(_)) | Err(_) => Vec::new(),
    };
    let instants = |read: fn(&ShownJob) -> Option<Timestamp>| {
        let samples = shown_jobs.iter().filter_map(move |job| Some((job.labels(), seconds(read(job)?))));
        samples.collect::<Vec<_>>()
    };
    let info = shown_jobs.iter().map(|job| {
        let spec = &job.record.spec;
        let (app, handler) = (label("app", &spec.app), label("handler", &spec.handler));
        let info_labels = [app, handler, label("enabled", spec.enabled.to_string())];
        (job.labels().into_iter().chain(info_labels).collect(), 1.0)
    });
    let jobs_at_home = || shown_jobs.iter().filter(|job| job.is_at_home);
    let statuses = jobs_at_home().filter_map(|job| {
        let status = label("status", job.state.last_status?.as_str());
        Some((job.labels().into_iter().chain([status]).collect(), 1.0))
    });
    let totals = shared.pumps.totals();
    let pumps =
        shown_jobs.iter().filter_map(|job| Some((job.labels(), *totals.get(&job.state.job)?))).collect::<Vec<_>>();
    let families = vec![
        Family::gauges("rondel_job_info", "Jobs with series of their own; always 1", info),
        Family::gauges(
            "rondel_job_next_fire_timestamp_seconds",
            "When a job fires next",
            instants(|job| job.record.next_fire_at),
        ),
        Family::gauges(
            "rondel_job_last_success_timestamp_seconds",
            "When a run of a job last succeeded, as far as this node has seen",
            instants(|job| job.state.succeeded_at),
        ),
        Family::gauges(
            "rondel_job_last_run_status",
            "The newest verdict of a job, by its home; 1 for that verdict",
            statuses,
        ),
        Family::gauges(
            "rondel_job_consecutive_failures",
            "Runs of a job that failed since the last one that succeeded, by its home",
            jobs_at_home().map(|job| (job.labels(), to_f64(job.state.failures))),
        ),
    ];
    families.into_iter().chain(pumps::families(&pumps, now)).collect()
}

/// Reads the jobs that have series. Discards the series of jobs that this or another server has deleted. If another node has become a job's
/// home, also discards the results that this node has seen of the job.
async fn shown_jobs(shared: &Shared) -> Result<Vec<ShownJob>, StoreError> {
    if shared.database.trouble().is_some() {
        return Ok(Vec::new());
    }
    let (series, own_node) = (&shared.definitions.job_series, shared.membership.token().node);
    let known_jobs = series.all();
    let mut shown_jobs = Vec::with_capacity(known_jobs.len());
    for chunk in known_jobs.chunks(LOOKUP_BATCH) {
        let ids: Vec<JobId> = chunk.iter().map(|state| state.job).collect();
        let records = shared.store.jobs_by_id(&ids).await?;
        let mut records: HashMap<JobId, JobRecord> = records.into_iter().map(|record| (record.id, record)).collect();
        let homes: HashMap<JobId, NodeId> = shared.store.homes_of_jobs(&ids).await?.into_iter().collect();
        for state in chunk {
            let Some(record) = records.remove(&state.job) else {
                series.forget(state.job);
                continue;
            };
            let is_at_home = homes.get(&state.job).is_none_or(|home| *home == own_node || *home == NodeId::new(0));
            if !is_at_home {
                series.reset_order_dependent(state.job);
            }
            shown_jobs.push(ShownJob { state: state.clone(), record, is_at_home });
        }
    }
    Ok(shown_jobs)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rondel_core::{NamespaceId, RunId, RunStatus};
    use rondel_store::catalog::{JobDeleted, JobDeletion};
    use rondel_store::cluster::{Join, JoinRequest};
    use rondel_store::ledger::{ClaimJob, DueRange};
    use rondel_store::{DatabaseTroubleKind, LeaseToken, MemStore, Store};
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::config::EngineConfig;
    use crate::engine::Engine;
    use crate::jobs;
    use crate::lifecycle::Lifecycle;

    const NAMESPACE: NamespaceId = NamespaceId::new(1);
    const FAILURES: &str = r#"rondel_job_consecutive_failures{namespace="default",job="j"}"#;
    const INFO: &str = r#"rondel_job_info{namespace="default",job="j""#;

    async fn start_engine(lifecycle: &Lifecycle) -> Engine {
        let started = Instant::now();
        let clock = move || Timestamp::from_secs(1_800_000_000) + started.elapsed();
        let store: Arc<dyn Store> = Arc::new(MemStore::new(Arc::new(clock)));
        let config = EngineConfig { metrics_job_max: 10, ..EngineConfig::default() };
        Engine::start(store, config, lifecycle).await.unwrap()
    }

    /// A job that is due in an hour, and that has failed here.
    async fn failed_job(engine: &Engine) -> JobRecord {
        let spec = json!({"name": "j", "app": "a", "handler": "h", "schedule": {"delay": "1h"}});
        let record = jobs::create(engine, NAMESPACE, serde_json::from_value(spec).unwrap(), "test").await.unwrap();
        let key = (record.id, record.version);
        let definition = engine.definitions([key]).await.unwrap().remove(&key).unwrap();
        definition.job_series.as_ref().unwrap().record_verdict(RunStatus::Failed, engine.now());
        record
    }

    async fn join(store: &dyn Store, name: &str) -> LeaseToken {
        let request = JoinRequest {
            name: name.to_owned(),
            lease: Duration::from_secs(1_000),
            advertise_url: None,
            server_version: String::new(),
            may_take_over: false,
            held: None,
            waited_for_takeover: Duration::ZERO,
        };
        match store.join(&request).await.unwrap() {
            Join::Joined { token, .. } => token,
            other @ (Join::Living { .. } | Join::BeingTakenOver) => unreachable!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_shown_by_the_home_alone_and_series_end_with_their_job() {
        let lifecycle = Lifecycle::new();
        let engine = start_engine(&lifecycle).await;
        let record = failed_job(&engine).await;
        let shown = engine.metrics().await.unwrap();
        assert!(shown.contains(&format!("{FAILURES} 1.0\n")), "{shown}");

        let other = join(engine.store(), "other").await;
        let range = DueRange { from: Timestamp::EPOCH, to: Timestamp::MAX, limit: 10 };
        let seen = engine.store().due_jobs(&[NodeId::new(0)], range).await.unwrap().pop().unwrap();
        let claim = ClaimJob {
            recent_fires: seen.recent_fires,
            held_from: None,
            next_fire_at: Some(seen.next_fire_at),
            runs: Vec::new(),
            awaited_run: None,
            expected_row: seen,
        };
        assert_eq!(engine.store().claim(other, &[claim]).await.unwrap().jobs.len(), 1);
        let shown = engine.metrics().await.unwrap();
        assert!(shown.contains(INFO) && !shown.contains(FAILURES), "{shown}");
        let series = || engine.shared().definitions.job_series.all();
        let failures = || series().into_iter().map(|state| state.failures).collect::<Vec<_>>();
        assert_eq!(failures(), [0], "what failed here is old if the job comes back");

        // Deleted by another server.
        let deletion = JobDeletion {
            id: record.id,
            expected_version: None,
            before: None,
            skipped_row_id: RunId::new(engine.new_id()),
            now: engine.now(),
            reached: engine.now(),
            detaches_followers: false,
            drops: None,
        };
        assert!(matches!(engine.store().delete_job(deletion).await.unwrap(), JobDeleted::Done));
        assert!(!engine.metrics().await.unwrap().contains(INFO));
        assert!(failures().is_empty(), "another job may have its place");
        lifecycle.soft.cancel();
        lifecycle.hard.cancel();
    }

    #[tokio::test(start_paused = true)]
    async fn a_scrape_asks_nothing_of_a_database_in_trouble() {
        let lifecycle = Lifecycle::new();
        let engine = start_engine(&lifecycle).await;
        failed_job(&engine).await;
        engine.shared().database.record_failure(DatabaseTroubleKind::Unreachable, "no answer", engine.now());
        let shown = engine.metrics().await.unwrap();
        assert!(shown.contains("rondel_db_up 0.0\n") && !shown.contains(INFO), "{shown}");
        lifecycle.soft.cancel();
        lifecycle.hard.cancel();
    }
}
