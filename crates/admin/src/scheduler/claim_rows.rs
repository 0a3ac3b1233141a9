//! The claim of a planned job: its plan without the fires that have a row already, and the rows to insert.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::try_join_all;
use rondel_core::JobId;
use rondel_core::maintenance::SKIPPED_AHEAD_MAX;
use rondel_core::misfire::MissedSpan;
use rondel_core::plan::{LookAhead, Plan, PlannedFire, spans_without_rows};
use rondel_core::{Reason, Run, RunId, RunStatus, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_store::ledger::{ClaimJob, DueJob};
use rondel_store::{Store, StoreError};

use crate::cluster::HeldLease;
use crate::definitions::{CompiledDefinition, CompiledDefinitions};
use crate::metrics::FireOutcome;

/// After an edit, a job may have rows at or after its next fire for at most this long, unless the clock stepped back: servers claim fires of
/// dense instants at most a minute ahead, and maintenance windows skip fires at most [`SKIPPED_AHEAD_MAX`] ahead.
const EDITED_RECENTLY: Duration = Duration::from_secs(300);
/// How many jobs' rows are read at the same time.
const READ_TOGETHER: usize = 8;

/// A due job with its plan.
#[derive(Debug)]
pub(super) struct PlannedJob<'d> {
    pub(super) due_job: DueJob,
    definition: &'d CompiledDefinition,
    plan: Plan,
    /// The spans of fires that do not run, each with the reason.
    skipped_spans: Vec<(MissedSpan, Reason)>,
    look_ahead: LookAhead,
}

impl<'d> PlannedJob<'d> {
    pub(super) fn new(due_job: DueJob, definition: &'d CompiledDefinition, plan: Plan, look_ahead: LookAhead) -> Self {
        let spans_in_window = plan.skipped_in_window.iter().map(|span| (*span, Reason::Maintenance));
        let skipped_spans =
            plan.missed.map(|span| (span, Reason::Misfire)).into_iter().chain(spans_in_window).collect();
        Self { due_job, definition, plan, skipped_spans, look_ahead }
    }

    /// The range of planned instants whose rows must be compared with the plan, because the unique key of rows reveals neither rows inside a
    /// span nor rows with another number of shards. `None` if the plan has no span of several fires and the job was not edited recently, and
    /// for a fixed delay, which has one fire.
    fn range_to_compare(&self) -> Option<(Timestamp, Timestamp)> {
        let has_spans = self.skipped_spans.iter().any(|(span, _)| span.count > 1);
        let plan_start = self.due_job.held_from.unwrap_or(self.due_job.next_fire_at);
        let was_edited = self.definition.version > 1 && plan_start < self.definition.saved_at + EDITED_RECENTLY;
        if !has_spans && !was_edited || self.definition.job.timetable.delay().is_some() {
            return None;
        }
        let fires = self.plan.fires.iter().map(|fire| (fire.fire_at, fire.fire_at));
        let ranges = || fires.clone().chain(self.skipped_spans.iter().map(|(span, _)| (span.first, span.last)));
        let (first, last) = (ranges().map(|(first, _)| first).min()?, ranges().map(|(_, last)| last).max()?);
        // Only an edit puts the next fire into a span that was skipped ahead. A fire that runs is not compared with the inside of spans.
        let is_near_span = was_edited && !self.skipped_spans.is_empty();
        Some((if is_near_span { first - SKIPPED_AHEAD_MAX } else { first }, last))
    }

    /// Leaves out the fires that have a row. `stored` has the first and the last fire of each row, sorted. A fire that runs is left out only
    /// if a row begins at its instant, and not if it lies inside a stored span: a window that was ended early, or another definition, may have
    /// skipped that span.
    fn leave_out(&mut self, stored: &[(Timestamp, Timestamp)]) {
        self.plan.fires.retain(|fire| stored.iter().all(|(first, _)| *first != fire.fire_at));
        let (job, anchor) = (&self.definition.job, self.definition.anchor);
        let spans =
            |(span, reason)| spans_without_rows(job, anchor, span, stored).into_iter().map(move |span| (span, reason));
        self.skipped_spans = std::mem::take(&mut self.skipped_spans).into_iter().flat_map(spans).collect();
    }
}

/// Leaves the fires that have a row already out of these plans. If a claim or an edit adds rows afterwards, the job's due row has changed, and
/// the claim leaves the job out. Reads the rows of a job `page_len` at a time.
pub(super) async fn leave_out_stored(
    store: &dyn Store,
    planned_jobs: &mut [PlannedJob<'_>],
    page_len: usize,
) -> Result<(), StoreError> {
    let mut jobs_to_compare: Vec<_> = planned_jobs
        .iter_mut()
        .filter_map(|planned_job| planned_job.range_to_compare().map(|range| (range, planned_job)))
        .collect();
    if jobs_to_compare.is_empty() || mutant::on(Mutant::SpanOverRow) {
        return Ok(());
    }
    let limit = u32::try_from(page_len).unwrap_or(u32::MAX).max(1);
    let range_starts: Vec<_> =
        jobs_to_compare.iter().map(|((from, _), planned)| (planned.due_job.job, *from)).collect();
    let jobs_with_rows: HashSet<JobId> = store.jobs_with_rows_from(&range_starts).await?.into_iter().collect();
    jobs_to_compare.retain(|(_, planned_job)| jobs_with_rows.contains(&planned_job.due_job.job));
    for chunk in jobs_to_compare.chunks_mut(READ_TOGETHER) {
        let read = |(range, planned_job): &(_, &mut PlannedJob<'_>)| {
            read_fires_with_rows(store, planned_job.due_job.job, *range, limit)
        };
        let stored_of_jobs = try_join_all(chunk.iter().map(read)).await?;
        for ((_, planned_job), stored) in chunk.iter_mut().zip(stored_of_jobs) {
            planned_job.leave_out(&stored);
        }
    }
    Ok(())
}

async fn read_fires_with_rows(
    store: &dyn Store,
    job: JobId,
    (mut from, through): (Timestamp, Timestamp),
    limit: u32,
) -> Result<Vec<(Timestamp, Timestamp)>, StoreError> {
    let mut stored = Vec::new();
    loop {
        let page = store.fires_with_rows(job, (from, through), limit).await?;
        stored.extend(&page);
        from = page.last().map_or(from, |(first, _)| Timestamp::from_millis(first.as_millis() + 1));
        if u32::try_from(page.len()).is_ok_and(|len| len < limit) {
            return Ok(stored);
        }
    }
}

/// The changes that the claim of a planned job makes.
pub(super) fn claim_request(lease: &HeldLease, planned_job: &PlannedJob<'_>) -> ClaimJob {
    let PlannedJob { due_job, definition, ref plan, ref skipped_spans, look_ahead } = *planned_job;
    let owner = (lease.token.node, lease.token.epoch);
    let skipped_rows = skipped_spans.iter().map(|(span, reason)| {
        let id = RunId::new(lease.ids.next(look_ahead.now));
        span.row(id, definition.run_job(), &definition.job, *reason, owner, look_ahead.now)
    });
    let fires = plan.fires.iter().map(|fire| fire_row(lease, definition, fire, look_ahead));
    let runs: Vec<Run> = skipped_rows.chain(fires).collect();
    let open_run = runs.iter().find(|run| !run.status.is_terminal()).map(|run| run.id);
    let awaited_run = open_run.filter(|_| definition.job.timetable.delay().is_some());
    let held_from = plan.held_from.filter(|_| !mutant::on(Mutant::HeldIsForgotten));
    let fire_count = u64::try_from(plan.fires.len()).unwrap_or(u64::MAX);
    let recent_fires = due_job.recent_fires.with_fires(fire_count, look_ahead.now);
    ClaimJob { expected_row: due_job, held_from, recent_fires, next_fire_at: plan.next, runs, awaited_run }
}

fn fire_row(lease: &HeldLease, definition: &CompiledDefinition, fire: &PlannedFire, look_ahead: LookAhead) -> Run {
    let owner = (lease.token.node, lease.token.epoch);
    let run = Run {
        // The ring covers only the look-ahead. A run that starts later, because of its jitter, waits in the store.
        status: if fire.due_at > look_ahead.end { RunStatus::Waiting } else { RunStatus::Pending },
        due_at: fire.due_at,
        ..Run::new(RunId::new(lease.ids.next(look_ahead.now)), definition.run_job(), fire.fire_at, fire.trigger, owner)
    };
    if definition.job.is_sharded() { run.for_all_shards() } else { run }
}

/// Counts the fires that the misfire policy or a maintenance window skips, which the claim has just written to the ledger.
pub(super) fn count_missed(definitions: &CompiledDefinitions, runs: &[Run], existing: &[RunId]) {
    for run in runs.iter().filter(|run| run.status == RunStatus::Skipped && !existing.contains(&run.id)) {
        if let Some(definition) = definitions.get(&(run.job, run.job_version)) {
            let count = u64::try_from(run.span_count).unwrap_or(0);
            let outcome = match run.reason {
                Some(Reason::Maintenance) => FireOutcome::SkippedMaintenance,
                _ => FireOutcome::Missed,
            };
            definition.counts.count_fires(run.trigger, outcome, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rondel_core::homes::RecentFires;
    use rondel_core::{NamespaceId, NodeId, Trigger};
    use rondel_store::MemStore;
    use rondel_store::ledger::{DueRange, RunQuery};
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::config::EngineConfig;
    use crate::dispatch::tests_support::definition;
    use crate::engine::Engine;
    use crate::jobs;
    use crate::lifecycle::Lifecycle;

    const NAMESPACE: NamespaceId = NamespaceId::new(1);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_secs(second)
    }

    /// A job with a fire each second, of this version, which was saved at the second 1000.
    fn every_second(version: i64) -> CompiledDefinition {
        let definition = Arc::into_inner(definition(&json!({"schedule": {"every": "1s"}}))).unwrap();
        CompiledDefinition { version, saved_at: at(1_000), ..definition }
    }

    /// A plan of the job whose next fire is `next`: it runs the fires of these seconds, and skips the spans.
    fn planned_job<'d>(
        definition: &'d CompiledDefinition,
        next: i64,
        fires: &[i64],
        spans: &[(i64, i64)],
    ) -> PlannedJob<'d> {
        let due_job = DueJob {
            job: definition.id,
            next_fire_at: at(next),
            held_from: None,
            version: definition.version,
            home: NodeId::new(1),
            term: 1,
            recent_fires: RecentFires::default(),
        };
        let fire = |second: &i64| PlannedFire { fire_at: at(*second), due_at: at(*second), trigger: Trigger::Interval };
        let span = |(first, last): &(i64, i64)| MissedSpan {
            first: at(*first),
            last: at(*last),
            count: last - first + 1,
            trigger: Trigger::Interval,
        };
        let plan = Plan {
            fires: fires.iter().map(fire).collect(),
            skipped_in_window: spans.iter().map(span).collect(),
            ..Plan::default()
        };
        let look_ahead = LookAhead { now: at(next), caught_up_at: at(next), end: at(next + 5) };
        PlannedJob::new(due_job, definition, plan, look_ahead)
    }

    /// Rows are read only for a plan with a span of several fires, and after an edit.
    #[test]
    fn a_plan_is_compared_if_its_fires_may_have_rows_that_the_key_does_not_reveal() {
        for (version, next, fires, spans, expected) in [
            (1, 1_001, vec![1_001, 1_002], vec![], None),
            (1, 1_001, vec![1_002], vec![(1_001, 1_001)], None),
            (1, 1_001, vec![1_004], vec![(1_001, 1_003)], Some((1_001, 1_004))),
            (2, 1_001, vec![1_001, 1_002], vec![], Some((1_001, 1_002))),
            (2, 1_001, vec![], vec![(1_001, 1_001)], Some((881, 1_001))),
            (2, 1_299, vec![1_299], vec![], Some((1_299, 1_299))),
            (2, 1_300, vec![1_300], vec![], None),
            (2, 1_300, vec![], vec![(1_300, 1_301)], Some((1_300, 1_301))),
            (2, 1_001, vec![], vec![], None),
        ] {
            let definition = every_second(version);
            let range = planned_job(&definition, next, &fires, &spans).range_to_compare();
            assert_eq!(
                range.map(|(from, to)| (from.second(), to.second())),
                expected,
                "{version} {next} {fires:?} {spans:?}"
            );
        }
        let delay = Arc::into_inner(definition(&json!({"schedule": {"delay": "1s"}}))).unwrap();
        let delay = CompiledDefinition { version: 2, saved_at: at(1_000), ..delay };
        assert_eq!(planned_job(&delay, 1_001, &[1_001], &[]).range_to_compare(), None);
        let definition = every_second(2);
        let mut held = planned_job(&definition, 1_400, &[1_290], &[]);
        held.due_job.held_from = Some(at(1_290));
        assert_eq!(
            held.range_to_compare(),
            Some((at(1_290), at(1_290))),
            "the plan starts at the first fire that was held back"
        );
    }

    /// The row of a fire may have another number of shards, and so another key. A span may be older than the end of its window.
    #[test]
    fn fires_with_rows_are_left_out() {
        for (fires, spans, stored, expected_fires, expected_spans) in [
            (vec![1_001, 1_002], vec![], vec![(1_001, 1_001)], vec![1_002], vec![]),
            (vec![1_001, 1_002], vec![], vec![(990, 1_060)], vec![1_001, 1_002], vec![]),
            (vec![], vec![(1_001, 1_001)], vec![(990, 1_060)], vec![], vec![]),
            (vec![], vec![(1_001, 1_062)], vec![(990, 1_060)], vec![], vec![(1_061, 1_062)]),
            (
                vec![1_009],
                vec![(1_001, 1_008)],
                vec![(1_003, 1_003)],
                vec![1_009],
                vec![(1_001, 1_002), (1_004, 1_008)],
            ),
        ] {
            let definition = every_second(2);
            let mut planned_job = planned_job(&definition, 1_001, &fires, &spans);
            let stored_rows: Vec<_> = stored.iter().map(|(first, last)| (at(*first), at(*last))).collect();
            planned_job.leave_out(&stored_rows);
            let fires: Vec<i64> = planned_job.plan.fires.iter().map(|fire| fire.fire_at.second()).collect();
            let ends = |span: &MissedSpan| (span.first.second(), span.last.second());
            let spans: Vec<_> = planned_job.skipped_spans.iter().map(|(span, _)| ends(span)).collect();
            assert_eq!((fires, spans), (expected_fires, expected_spans), "{stored:?}");
        }
    }

    /// The job was not planned for a minute, and the first six fires of that minute have rows.
    #[tokio::test(start_paused = true)]
    async fn a_span_of_missed_fires_begins_after_the_rows_of_the_job() {
        let started = Instant::now();
        let clock = move || Timestamp::from_secs(1_800_000_000) + started.elapsed();
        let store: Arc<dyn Store> = Arc::new(MemStore::new(Arc::new(clock)));
        let config = EngineConfig { claim_runs: 4, ..EngineConfig::default() };
        let lifecycle = Lifecycle::new();
        let engine = Engine::start(Arc::clone(&store), config, &lifecycle).await.unwrap();
        let node = engine.node();
        let spec = json!({"name": "j", "app": "a", "handler": "h", "schedule": {"cron": "* * * * * ?"},
            "misfire": {"policy": "skip"}});
        jobs::create(node, NAMESPACE, serde_json::from_value(spec).unwrap(), "test").await.unwrap();
        let range = DueRange { from: Timestamp::EPOCH, to: Timestamp::MAX, limit: 10 };
        let seen = store.due_jobs(&[NodeId::new(0)], range).await.unwrap()[0];
        let definition = node.definitions([(seen.job, seen.version)]).await.unwrap().remove(&(seen.job, seen.version));
        let run_job = definition.unwrap().run_job();
        let first = seen.next_fire_at - Duration::from_secs(60);
        let owner = (node.token().node, node.token().epoch);
        let row = |second: u32| Run {
            status: RunStatus::Skipped,
            reason: Some(Reason::Paused),
            finished_at: Some(first),
            ..Run::new(
                RunId::new(i64::from(second) + 1),
                run_job,
                first + Duration::from_secs(second.into()),
                Trigger::Cron,
                owner,
            )
        };
        let claim = ClaimJob {
            recent_fires: seen.recent_fires,
            expected_row: seen,
            held_from: None,
            next_fire_at: Some(first),
            runs: (0..6).map(row).collect(),
            awaited_run: None,
        };
        assert_eq!(store.claim(node.token(), &[claim]).await.unwrap().jobs.len(), 1);

        let until = Instant::now() + Duration::from_secs(8);
        let span = loop {
            let query = RunQuery { job: Some(seen.job), limit: 1_000, ..RunQuery::default() };
            let runs = store.list_runs(NAMESPACE, &query).await.unwrap();
            if let Some(span) = runs.into_iter().find(|run| run.reason == Some(Reason::Misfire)) {
                break span;
            }
            assert!(Instant::now() < until, "the missed fires have no row");
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let last = span.span_end_at.unwrap();
        assert_eq!(span.fire_at, first + Duration::from_secs(6));
        assert_eq!(i64::try_from(last.since(span.fire_at).as_secs()).unwrap() + 1, span.span_count);
        lifecycle.soft.cancel();
        lifecycle.hard.cancel();
    }
}
