//! Healing: repairs what no other loop finds. These are jobs that should fire and have no next fire, jobs whose home is no node of the cluster, and
//! calendars and jobs that did not follow a saved calendar because the node that saved it died too early.
//!
//! In each period one node looks. Normally it finds nothing and logs nothing.

use std::time::Duration;

use rondel_core::Timestamp;
use rondel_store::StoreError;
use rondel_store::upkeep::StuckJob;
use tokio_util::sync::CancellationToken;

use crate::background::{Background, TickError};
use crate::calendars::{self, CalendarError};
use crate::node::Node;
use rondel_core::error_chain::chain;

const PERIOD: Duration = Duration::from_secs(15);
/// The period of the check of calendars: longer, because all calendars are read.
const CALENDAR_PERIOD: Duration = Duration::from_secs(60);
/// Maximum number of jobs healed in one pass.
const STUCK_COUNT_MAX: u32 = 1_000;
const HOMELESS_PAGE: u32 = 1_000;
/// Maximum number of transactions in one pass that free jobs from a home that is no node.
const HOMELESS_PAGE_COUNT_MAX: u32 = 100;

/// The name of the pass that heals jobs.
const HEAL_PASS: &str = "heal";
/// The name of the pass that heals calendars.
const CALENDARS_PASS: &str = "heal_calendars";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HealCounts {
    /// Jobs that had no next fire.
    pub(crate) stuck: u64,
    /// Jobs whose home was no node.
    pub(crate) homeless: u64,
    /// Calendars whose stored expansion differed from the calendars that they name.
    pub(crate) calendars: u64,
    /// Jobs that were planned by an earlier version of their calendar.
    pub(crate) behind: u64,
}

pub(crate) struct HealLoop {
    node: Node,
}

impl Background for HealLoop {
    const NAME: &'static str = "heal";
    const ACTION: &'static str = "look for jobs and calendars to heal";

    fn period(&self) -> Option<Duration> {
        Some(PERIOD)
    }

    fn first_wait(&self) -> Duration {
        self.node.shared().first_look_delay(PERIOD)
    }

    async fn tick(&mut self, _stop: &CancellationToken) -> Result<u64, TickError> {
        let counts = self.heal_all().await?;
        if counts != HealCounts::default() {
            let HealCounts { stuck, homeless, calendars, behind } = counts;
            tracing::warn!(stuck, homeless, calendars, behind, "healed what no other loop found");
        }
        Ok(counts.stuck + counts.homeless + counts.calendars + counts.behind)
    }
}

impl HealLoop {
    pub(crate) const fn new(node: Node) -> Self {
        Self { node }
    }

    async fn heal_all(&self) -> Result<HealCounts, StoreError> {
        let mut counts = HealCounts::default();
        if !self.node.readiness().lease_held || !self.node.store().begin_pass(HEAL_PASS, PERIOD).await? {
            return Ok(counts);
        }
        counts.stuck = self.heal_stuck_jobs().await?;
        counts.homeless = self.free_homeless_jobs().await?;
        if self.node.store().begin_pass(CALENDARS_PASS, CALENDAR_PERIOD).await? {
            counts.calendars = self.expand_calendars().await?;
        }
        counts.behind = calendars::replan_jobs_of_calendars(&self.node).await?;
        if counts.stuck + counts.homeless > 0 {
            self.node.poke_scan();
        }
        Ok(counts)
    }

    async fn heal_stuck_jobs(&self) -> Result<u64, StoreError> {
        let store = self.node.store();
        let stuck_jobs = store.stuck_jobs(STUCK_COUNT_MAX).await?;
        let definitions = self.node.definitions(stuck_jobs.iter().map(|stuck| (stuck.job, stuck.version))).await?;
        let mut count = 0;
        for stuck_job in stuck_jobs {
            // If a run is open, its end sets the next fire. An unreadable definition was logged when it was loaded.
            let Some(definition) =
                definitions.get(&(stuck_job.job, stuck_job.version)).filter(|_| stuck_job.awaited_run.is_none())
            else {
                continue;
            };
            let job = &definition.job;
            let next_fire_at = if !job.enabled {
                None
            } else if job.timetable.delay().is_some() {
                job.timetable.first_delayed(self.node.now())
            } else {
                let accounted_until = self.accounted_until(stuck_job, definition.namespace).await?;
                job.timetable.next_scan_after(definition.anchor, accounted_until)
            };
            count += u64::from(store.heal_job(stuck_job, next_fire_at).await?);
        }
        Ok(count)
    }

    /// The instant up to which the fires of a job have their verdicts: its last planned row or its last edit, whichever is later. The misfire
    /// policy applies to fires that were due since then.
    async fn accounted_until(
        &self,
        stuck_job: StuckJob,
        namespace: rondel_core::NamespaceId,
    ) -> Result<Timestamp, StoreError> {
        let (store, now) = (self.node.store(), self.node.now());
        let edited_at =
            store.versions(stuck_job.job, now, now, 1).await?.first().map_or(now, |version| version.created_at);
        let query = rondel_store::ledger::RunQuery { job: Some(stuck_job.job), limit: 100, ..Default::default() };
        let rows = store.list_runs(namespace, &query).await?;
        let planned_ends = rows.iter().filter(|run| run.cause == 0).map(|run| run.span_end_at.unwrap_or(run.fire_at));
        Ok(planned_ends.max().unwrap_or(edited_at).max(edited_at))
    }

    async fn free_homeless_jobs(&self) -> Result<u64, StoreError> {
        let mut count = 0;
        for _ in 0..HOMELESS_PAGE_COUNT_MAX {
            let freed_count = self.node.store().free_homeless(HOMELESS_PAGE).await?;
            count += freed_count;
            if freed_count < u64::from(HOMELESS_PAGE) {
                break;
            }
        }
        Ok(count)
    }

    async fn expand_calendars(&self) -> Result<u64, StoreError> {
        let mut count = 0;
        for namespace in self.node.store().namespaces().await? {
            let calendar_names = calendars::composition(&self.node, namespace.id).await?.composed_calendars();
            match calendars::expand_until_settled(&self.node, namespace.id, &calendar_names).await {
                Ok(expanded) => count += expanded,
                Err(CalendarError::Store(error)) => return Err(error),
                Err(error) => {
                    tracing::error!(namespace = namespace.name, error = %chain(&error), "cannot put calendars together");
                }
            }
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rondel_core::{NamespaceId, Reason, Run, RunId, RunStatus, Trigger};
    use rondel_store::ledger::{ClaimJob, DueRange, RunQuery};
    use rondel_store::{MemStore, Store};
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::config::EngineConfig;
    use crate::engine::Engine;
    use crate::jobs;
    use crate::lifecycle::Lifecycle;

    const NAMESPACE: NamespaceId = NamespaceId::new(1);

    async fn start_engine(lifecycle: &Lifecycle) -> Engine {
        let started = Instant::now();
        let clock = move || Timestamp::from_secs(1_800_000_000) + started.elapsed();
        let store: Arc<dyn Store> = Arc::new(MemStore::new(Arc::new(clock)));
        Engine::start(store, EngineConfig::default(), lifecycle).await.unwrap()
    }

    #[tokio::test]
    async fn a_delay_whose_run_is_gone_begins_anew() {
        let lifecycle = Lifecycle::new();
        let engine = start_engine(&lifecycle).await;
        let node = engine.node();
        let spec = json!({"name": "j", "app": "a", "handler": "h", "schedule": {"delay": "1h"}});
        jobs::create(node, NAMESPACE, serde_json::from_value(spec).unwrap(), "test").await.unwrap();
        let range = DueRange { from: Timestamp::EPOCH, to: Timestamp::MAX, limit: 10 };
        let seen = node.store().due_jobs(&[rondel_core::NodeId::new(0)], range).await.unwrap()[0];
        // Claims the fire without creating a run, as if the run whose end sets the next fire had been lost.
        let claim = ClaimJob {
            recent_fires: seen.recent_fires,
            expected_row: seen,
            held_from: None,
            next_fire_at: None,
            runs: Vec::new(),
            awaited_run: Some(RunId::new(42)),
        };
        node.store().claim(node.token(), &[claim]).await.unwrap();
        assert_eq!(node.store().job(NAMESPACE, "j").await.unwrap().unwrap().next_fire_at, None);

        let heal = HealLoop::new(node.clone());
        assert_eq!(heal.heal_all().await.unwrap(), HealCounts { stuck: 1, ..HealCounts::default() });
        let next = node.store().job(NAMESPACE, "j").await.unwrap().unwrap().next_fire_at.unwrap();
        let ahead = next.since(node.now());
        assert!((3_590..=3_600).contains(&ahead.as_secs()), "{ahead:?}");
        assert_eq!(heal.heal_all().await.unwrap(), HealCounts::default(), "one node looks in a period");
        lifecycle.soft.cancel();
        lifecycle.hard.cancel();
    }

    /// A pause settled the fire at the end of a maintenance window, and the resumed job is planned for the same instant. The scan plans it
    /// again, long before this loop looks.
    #[tokio::test(start_paused = true)]
    async fn a_delay_whose_instant_had_a_fire_is_planned_again_by_the_scan() {
        let lifecycle = Lifecycle::new();
        let engine = start_engine(&lifecycle).await;
        let node = engine.node();
        let spec = json!({"name": "j", "app": "a", "handler": "h", "schedule": {"delay": "3s"}});
        jobs::create(node, NAMESPACE, serde_json::from_value(spec).unwrap(), "test").await.unwrap();
        let range = DueRange { from: Timestamp::EPOCH, to: Timestamp::MAX, limit: 10 };
        let seen = node.store().due_jobs(&[rondel_core::NodeId::new(0)], range).await.unwrap()[0];
        let definition = node.definitions([(seen.job, seen.version)]).await.unwrap().remove(&(seen.job, seen.version));
        let owner = (node.token().node, node.token().epoch);
        let of = definition.unwrap().run_job();
        let settled = Run {
            status: RunStatus::Skipped,
            reason: Some(Reason::Paused),
            finished_at: Some(node.now()),
            ..Run::new(RunId::new(42), of, seen.next_fire_at, Trigger::Cron, owner)
        };
        let claim = ClaimJob {
            recent_fires: seen.recent_fires,
            expected_row: seen,
            held_from: None,
            next_fire_at: Some(seen.next_fire_at),
            runs: vec![settled],
            awaited_run: None,
        };
        node.store().claim(node.token(), &[claim]).await.unwrap();
        // The test takes the pass of this period, so the loop does not look until the next one.
        node.store().begin_pass(HEAL_PASS, PERIOD).await.unwrap();

        let until = Instant::now() + Duration::from_secs(8);
        let has_next = async || {
            let query = RunQuery { job: Some(seen.job), limit: 10, ..RunQuery::default() };
            node.store().list_runs(NAMESPACE, &query).await.unwrap().iter().any(|run| run.fire_at > seen.next_fire_at)
        };
        while !has_next().await {
            assert!(Instant::now() < until, "the job has no next fire");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        lifecycle.soft.cancel();
        lifecycle.hard.cancel();
    }
}
