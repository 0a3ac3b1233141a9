//! Checks of the reads of charts and overviews.

use std::time::Duration;

use rondel_core::outcome::{NextStepPolicy, Outcome};
use rondel_core::run::ROOT_SHARD;
use rondel_core::sketch::{Sketch, Step};
use rondel_core::{AppId, JobId, NamespaceId, NodeId, Reason, Run, RunId, RunStatus, Timestamp, Trigger};

use super::stats::roll_up;
use super::{FAILED, POLICY, claim, dispatch, due_job, finish, finish_all, job, join, next_id, run};
use crate::Store;
use crate::catalog::JobRecord;
use crate::ledger::{AttemptEnd, ClaimJob};
use crate::rollups::{JobActivity, PointDetail, PointKind, PointQuery, StatPoint, Verdicts};

async fn points(store: &dyn Store, kind: PointKind, owner: i64, step: Step) -> Vec<StatPoint> {
    let query = PointQuery {
        kind,
        owners: &[owner],
        step,
        from: Timestamp::EPOCH,
        to: Timestamp::MAX,
        limit: 100,
        detail: PointDetail::Whole,
    };
    store.points(&query).await.unwrap()
}

/// The points add up to the runs, whatever the batch size and whenever the verdicts arrive. No run counts twice, and old points are
/// removed.
pub async fn points_add_up_to_the_runs(store: &dyn Store) {
    let token = join(store).await;
    let at = Timestamp::from_secs(1_900_000_800);
    // The job has its own app, because other checks count runs in the common app.
    let app = store.ensure_app(AppId::new(next_id()), super::DEFAULT, &super::name("points"), at).await.unwrap().id;
    let job = JobRecord { app, ..job(store, Some(at)).await };
    let rows: Vec<Run> = (0..6).map(|number| run(&job, token, at + Duration::from_secs(number * 600))).collect();
    let span = Run {
        id: RunId::new(next_id()),
        status: RunStatus::Skipped,
        reason: Some(Reason::NoExecutor),
        finished_at: Some(at),
        span_end_at: Some(at + Duration::from_secs(3_000)),
        span_count: 4,
        fire_at: at + Duration::from_secs(100),
        ..rows[0].clone()
    };
    let all: Vec<Run> = rows.iter().cloned().chain([span]).collect();
    claim(store, token, &job, all).await;
    let ended = |run: &Run, outcome: Outcome, late: u64, took: u64| AttemptEnd {
        started_at: Some(run.fire_at + Duration::from_millis(late)),
        finished_at: run.fire_at + Duration::from_millis(late + took),
        ..finish(run, outcome)
    };
    finish_all(store, &[ended(&rows[0], Outcome::Succeeded, 5, 100), ended(&rows[1], FAILED, 7, 3_000)]).await;
    roll_up(store).await;
    finish_all(store, &[ended(&rows[2], Outcome::Succeeded, 9, 200), ended(&rows[3], Outcome::Succeeded, 11, 400)])
        .await;
    roll_up(store).await;
    roll_up(store).await;

    let stored = store.runs(&rows.iter().map(|run| run.id).collect::<Vec<_>>()).await.unwrap();
    let (mut durations, mut lateness) = (Sketch::default(), Sketch::default());
    for run in stored.iter().filter(|run| run.status.is_terminal()) {
        durations.add(run.finished_at.unwrap().since(run.started_at.unwrap()));
        lateness.add(run.started_at.unwrap().since(run.fire_at));
    }
    for (kind, owner) in [(PointKind::App, job.app.get()), (PointKind::Job, job.id.get())] {
        for step in kind.steps() {
            let found = points(store, kind, owner, *step).await;
            let sum = found.iter().fold(Verdicts::default(), |sum, point| sum.plus(point.verdicts));
            assert_eq!(
                sum,
                Verdicts { succeeded: 3, failed: 1, skipped: 4, ..Verdicts::default() },
                "{kind:?} {step:?}"
            );
            assert!(found.iter().all(|point| step.floor(point.at) == point.at && point.owner == owner));
            let (mut took, mut late) = (Sketch::default(), Sketch::default());
            found.iter().for_each(|point| took.merge(&point.durations));
            found.iter().for_each(|point| late.merge(&point.lateness));
            assert_eq!((&took, &late), (&durations, &lateness), "{kind:?} {step:?}");
        }
    }
    let of_namespace = points(store, PointKind::Namespace, job.namespace.get(), Step::Hour).await;
    assert!(of_namespace.iter().map(|point| point.verdicts.total()).sum::<u64>() >= 8);

    let first = Step::Hour.floor(at);
    let query = PointQuery {
        kind: PointKind::Job,
        owners: &[job.id.get()],
        step: Step::Hour,
        from: first,
        to: first + Duration::from_secs(1),
        limit: 10,
        detail: PointDetail::Whole,
    };
    let whole = store.points(&query).await.unwrap();
    assert_eq!(whole.len(), 1);
    let verdicts = store.points(&PointQuery { detail: PointDetail::Verdicts, ..query }).await.unwrap();
    let bare = StatPoint { durations: Sketch::default(), lateness: Sketch::default(), ..whole[0].clone() };
    assert_eq!(verdicts, [bare], "the verdicts without the lengths");
    let length = Duration::from_secs(4 * 3_600);
    let sums = store.points(&PointQuery { detail: PointDetail::VerdictsPer(length), ..query }).await.unwrap();
    assert_eq!(sums, [StatPoint { at: at.floor(length), ..verdicts[0].clone() }], "a stretch begins before the range");
    let of_app = PointQuery { kind: PointKind::App, owners: &[app.get(), app.get() + 1], step: Step::Minute, ..query };
    let of_app =
        PointQuery { to: first + Duration::from_secs(7_200), detail: PointDetail::VerdictsPer(length), ..of_app };
    let sums = store.points(&PointQuery { limit: 1, ..of_app }).await.unwrap();
    let verdicts = Verdicts { succeeded: 3, failed: 1, skipped: 4, ..Verdicts::default() };
    assert_eq!(sums.iter().map(|sum| (sum.owner, sum.verdicts)).collect::<Vec<_>>(), [(app.get(), verdicts)]);

    // A removal keeps to its limit even if many jobs have a point in the same hour.
    let other = super::job(store, Some(at)).await;
    let row = run(&other, token, at);
    claim(store, token, &other, vec![row.clone()]).await;
    finish_all(store, &[finish(&row, FAILED)]).await;
    roll_up(store).await;
    let before = first + Duration::from_secs(1);
    let forget = async || store.forget_points(PointKind::Job, Step::Hour, before, 1).await.unwrap();
    assert_eq!(forget().await, 1);
    while forget().await > 0 {}
    assert!(store.points(&query).await.unwrap().is_empty());
    assert!(!points(store, PointKind::Job, job.id.get(), Step::Day).await.is_empty());
}

/// A job is failing from its first failure after a success until its next success.
pub async fn failing_jobs_are_those_whose_newest_runs_failed(store: &dyn Store) {
    let token = join(store).await;
    let at = Timestamp::from_secs(1_900_000_800);
    let job = job(store, Some(at)).await;
    let rows: Vec<Run> = (0..6).map(|number| run(&job, token, at + Duration::from_secs(number * 60))).collect();
    claim(store, token, &job, rows.clone()).await;
    finish_all(store, &[finish(&rows[0], Outcome::Succeeded), finish(&rows[1], FAILED)]).await;
    roll_up(store).await;
    finish_all(store, &[finish(&rows[2], FAILED), finish(&rows[3], FAILED)]).await;
    roll_up(store).await;
    let failing = |within: Option<Vec<AppId>>| async move {
        let found = store.failing_jobs(job.namespace, within.as_deref(), 10_000).await.unwrap();
        found.into_iter().find(|pulse| pulse.job == job.id)
    };
    let pulse = failing(None).await.unwrap();
    assert_eq!((pulse.streak, pulse.failing_since), (3, Some(rows[1].fire_at)));
    assert_eq!((pulse.succeeded_at, pulse.failed_at), (Some(rows[0].fire_at), Some(rows[3].fire_at)));
    assert_eq!(failing(Some(vec![job.app])).await, Some(pulse));
    assert_eq!(failing(Some(vec![AppId::new(next_id())])).await, None);
    assert_eq!(failing(Some(Vec::new())).await, None);

    let counts = store.unsuccessful_runs(job.namespace, rows[0].id, 10_000).await.unwrap().counts;
    let found = counts.into_iter().find(|counted| counted.job == job.id).unwrap();
    assert_eq!((found.status, found.count, found.newest), (RunStatus::Failed, 3, rows[3].id));

    // A run whose end was unknown turns out to have failed: that is one failure.
    store.mark(token, &[dispatch::at_executor(&rows[4], "one")]).await.unwrap();
    let policy = NextStepPolicy { at_least_once: false, ..POLICY };
    let lost = AttemptEnd { policy, started_at: None, ..finish(&rows[4], Outcome::Lost(Reason::ExecutorLost)) };
    for end in [lost, finish(&rows[4], FAILED)] {
        finish_all(store, &[end]).await;
        roll_up(store).await;
        assert_eq!(failing(None).await.map(|pulse| pulse.streak), Some(4));
    }
    let counts = store.unsuccessful_runs(job.namespace, rows[0].id, 10_000).await.unwrap().counts;
    let found: Vec<_> = counts.into_iter().filter(|counted| counted.job == job.id).collect();
    assert_eq!((found.len(), found[0].status, found[0].count), (1, RunStatus::Failed, 4));

    finish_all(store, &[finish(&rows[5], Outcome::Succeeded)]).await;
    roll_up(store).await;
    assert_eq!(failing(None).await, None);
    check_failures_among_cancelled_runs(store).await;
}

/// A failure is counted although more newer runs were cancelled than one read has rows.
async fn check_failures_among_cancelled_runs(store: &dyn Store) {
    let token = join(store).await;
    let at = Timestamp::from_secs(1_900_000_800);
    // The runs have their own namespace, because other checks leave unsuccessful runs in the common one.
    let job = JobRecord { namespace: NamespaceId::new(next_id()), ..job(store, Some(at)).await };
    let ended = |number: u64, status: RunStatus| {
        let run = run(&job, token, at + Duration::from_secs(number));
        Run { status, finished_at: Some(at), ..run }
    };
    let mut rows = vec![ended(0, RunStatus::Failed)];
    rows.extend((1..=11).map(|number| ended(number, RunStatus::Cancelled)));
    let first_id = rows[0].id;
    claim(store, token, &job, rows).await;
    for (row_count, expected_count, is_cut) in [(1, 0, true), (2, 1, false), (100, 1, false)] {
        let found = store.unsuccessful_runs(job.namespace, first_id, row_count).await.unwrap();
        let counts: Vec<(RunStatus, u64)> = found.counts.iter().map(|runs| (runs.status, runs.count)).collect();
        assert_eq!((counts.len(), found.is_cut), (expected_count, is_cut), "{row_count}");
        assert!(counts.iter().all(|counted| *counted == (RunStatus::Failed, 1)), "{counts:?}");
    }
}

/// A job is running while one of its runs is running. It is failing if its newest verdict is a failure, even if that verdict is not counted
/// yet. It is finished when it has no next fire and its last run has ended.
pub async fn activity_is_read_of_runs_and_schedule(store: &dyn Store) {
    let token = join(store).await;
    let at = Timestamp::from_secs(1_900_000_800);
    let (job, idle) = (job(store, Some(at)).await, job(store, Some(at)).await);
    let rows: Vec<Run> = (0..3).map(|number| run(&job, token, at + Duration::from_secs(number * 60))).collect();
    let seen_row = due_job(store, &job, &[NodeId::new(0), token.node]).await.unwrap();
    let last = ClaimJob {
        recent_fires: seen_row.recent_fires,
        expected_row: seen_row,
        held_from: None,
        next_fire_at: None,
        awaited_run: None,
        runs: rows.clone(),
    };
    store.claim(token, &[last]).await.unwrap();
    let activity = |since: Timestamp| async move {
        let missing = JobId::new(next_id());
        let mut found = store.job_activity(&[job.id, missing, idle.id], since).await.unwrap();
        found.sort_by_key(|activity| activity.job);
        let fresh = JobActivity { job: idle.id, is_failing: false, is_running: false, is_over: false };
        assert_eq!((found.len(), found[0].job, found[1]), (2, job.id, fresh));
        (found[0].is_failing, found[0].is_running, found[0].is_over)
    };
    assert_eq!(activity(at).await, (false, false, false), "three runs are open");
    store.note_running(token, &[dispatch::at_executor(&rows[1], "one")]).await.unwrap();
    assert_eq!(activity(at).await, (false, true, false));
    finish_all(store, &[finish(&rows[0], Outcome::Succeeded), finish(&rows[1], FAILED)]).await;
    assert_eq!(activity(at).await, (true, false, false), "a verdict counts at once");
    assert_eq!(activity(rows[2].fire_at).await, (true, false, false), "the one before counts too");
    assert_eq!(activity(Timestamp::MAX).await, (false, false, false), "it is not rolled up yet");
    roll_up(store).await;
    assert_eq!(activity(Timestamp::MAX).await, (true, false, false));
    finish_all(store, &[finish(&rows[2], Outcome::Succeeded)]).await;
    for since in [at, Timestamp::MAX] {
        assert_eq!(activity(since).await, (false, false, true));
    }
}

/// Charts read the runs without shards that are planned in the range that they show, open runs by status, and the jobs that fire next.
pub async fn drawings_read_whole_runs(store: &dyn Store) {
    let token = join(store).await;
    let at = Timestamp::from_secs(1_900_000_800);
    let job = job(store, Some(at)).await;
    let rows: Vec<Run> = (0..3).map(|number| run(&job, token, at + Duration::from_secs(number * 60))).collect();
    let root = Run {
        id: RunId::new(next_id()),
        shard_index: ROOT_SHARD,
        shard_total: None,
        fire_at: at + Duration::from_secs(300),
        ..rows[0].clone()
    };
    let all: Vec<Run> = rows.iter().cloned().chain([root.clone()]).collect();
    claim(store, token, &job, all).await;
    let shard = |index| Run {
        id: RunId::new(next_id()),
        shard_index: index,
        shard_total: Some(2),
        parent: Some(root.id),
        ..root.clone()
    };
    assert!(store.expand(token, root.id, &[shard(0), shard(1)]).await.unwrap());
    finish_all(store, &[finish(&rows[0], Outcome::Succeeded)]).await;

    let ids = |runs: Vec<crate::rollups::ChartRun>| runs.into_iter().map(|run| run.id).collect::<Vec<_>>();
    let end = at + Duration::from_secs(3_600);
    let runs = store.chart_runs(&[job.id], at, end, 10).await.unwrap();
    assert_eq!(ids(runs), [root.id, rows[2].id, rows[1].id, rows[0].id]);
    assert_eq!(ids(store.chart_runs(&[job.id], at, end, 2).await.unwrap()), [root.id, rows[2].id]);
    assert_eq!(ids(store.chart_runs(&[job.id], at, rows[1].fire_at, 10).await.unwrap()), [rows[0].id]);
    let other = self::job(store, Some(at)).await;
    let others: Vec<Run> = (0..3).map(|number| run(&other, token, at + Duration::from_secs(number * 60))).collect();
    claim(store, token, &other, others.clone()).await;
    let two = store.chart_runs(&[other.id, JobId::new(next_id()), job.id], at, end, 2).await.unwrap();
    assert_eq!(ids(two), [others[2].id, others[1].id, root.id, rows[2].id], "job by job, of each its newest");
    assert!(store.chart_runs(&[], at, end, 2).await.unwrap().is_empty());
    let open = store.open_chart_runs(job.namespace, RunStatus::Pending, 10_000).await.unwrap();
    let open: Vec<RunId> = open.into_iter().filter(|run| run.job == job.id).map(|run| run.id).collect();
    assert!(open.contains(&rows[1].id) && open.contains(&rows[2].id) && !open.contains(&rows[0].id), "{open:?}");

    let query = crate::rollups::OpenQuery {
        namespace: job.namespace,
        status: RunStatus::Pending,
        due_by: rows[2].due_at,
        begun_by: rows[2].fire_at,
        first_attempts_only: true,
        limit: 10_000,
    };
    let late = async |query| store.open_jobs(query).await.unwrap().into_iter().find(|open| open.job == job.id);
    let found = late(query).await.expect("two runs of the job have not begun");
    assert_eq!((found.run, found.fire_at, found.started_at), (rows[1].id.min(rows[2].id), rows[1].fire_at, None));
    let before = rows[1].fire_at - Duration::from_millis(1);
    assert_eq!(late(crate::rollups::OpenQuery { begun_by: before, ..query }).await, None);
    assert_eq!(late(crate::rollups::OpenQuery { due_by: before, ..query }).await, None);
    assert_eq!(late(crate::rollups::OpenQuery { status: RunStatus::Running, ..query }).await, None);
    // A run that follows from others has the planned instant of their fire, and is due when they have ended. A run that a maintenance
    // window held back is due at the end of the window.
    for trigger in [Trigger::Parent, Trigger::Misfire] {
        let after = self::job(store, None).await;
        let planned = Run { cause: next_id(), trigger, due_at: end, ..run(&after, token, at) };
        let planned = store.request_run(token, planned).await.unwrap();
        let open = async |begun_by| {
            let query = crate::rollups::OpenQuery { due_by: end, begun_by, ..query };
            store.open_jobs(query).await.unwrap().into_iter().find(|open| open.job == after.id)
        };
        assert_eq!(open(end - Duration::from_millis(1)).await, None, "{trigger}");
        assert_eq!(open(end).await.map(|open| (open.run, open.fire_at)), Some((planned.id, end)), "{trigger}");
    }

    let in_all =
        store.chart_runs_of_namespace(job.namespace, (rows[0].id, RunId::new(next_id())), 10_000).await.unwrap();
    let in_all = ids(in_all.into_iter().filter(|run| run.job == job.id).collect());
    assert_eq!(in_all.len(), 6, "shards too: {in_all:?}");
    assert_eq!(in_all.last(), Some(&rows[0].id));
    let idle = super::job(store, None).await;
    let later = idle.updated_at + Duration::from_millis(1);
    let found = store.idle_jobs(idle.namespace, later, 10_000).await.unwrap();
    let is_idle = found.contains(&(idle.id, idle.version, idle.updated_at));
    assert!(!found.iter().any(|(id, ..)| *id == job.id), "it fires");
    assert!(
        !store.idle_jobs(idle.namespace, idle.updated_at, 10_000).await.unwrap().iter().any(|(id, ..)| *id == idle.id)
    );
    assert!(is_idle || !found.iter().any(|(id, ..)| *id == idle.id));

    let next = at + Duration::from_secs(7_200);
    let other = super::job(store, Some(next)).await;
    let coming = |to| async move {
        let found = store.coming_jobs(other.namespace, to, 10_000).await.unwrap();
        found.into_iter().find(|coming| coming.job == other.id)
    };
    assert_eq!(coming(next).await, None);
    let found = coming(next + Duration::from_millis(1)).await.unwrap();
    assert_eq!((found.version, found.app, found.next_fire_at), (other.version, other.app, next));
}
