//! The history of a job's fires: this module reads the facts, `core` computes the history.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use rondel_core::fires::{self, AnswerContext, AnswerSubject, Definition, FireHistory, FireInput, Range, Why};
use rondel_core::maintenance::MaintenanceWindow;
use rondel_core::run::Attempt;
use rondel_core::{AppId, Run, RunId, RunStatus, Timestamp};
use rondel_store::StoreError;
use rondel_store::catalog::{JobRecord, VersionRecord};
use rondel_store::ledger::RunQuery;

use crate::conceal;
use crate::node::Node;

mod context;

/// Maximum number of definitions read for one history; each may have a calendar of thousands of days.
const VERSION_COUNT_MAX: u32 = 50;
/// How far before and after an instant definitions are read, to find the fires next to the instant.
const DEFINITIONS_WITHIN: std::time::Duration = fires::RANGE_MAX;

/// Number of newest runs that are read to find the run that an answer is about; some of them may be shards.
const NEWEST_COUNT: u32 = 100;
const OPEN_STATUSES: [RunStatus; 3] = [RunStatus::Pending, RunStatus::Waiting, RunStatus::Running];

struct HistoryInput {
    record: JobRecord,
    definitions: Vec<Definition>,
    rows: Vec<Run>,
    attempts: Vec<Attempt>,
    context: AnswerContext,
    now: Timestamp,
    /// The runs of fires before this instant may have been deleted.
    kept_from: Timestamp,
    windows: Vec<MaintenanceWindow>,
}

impl HistoryInput {
    fn fire_input(&self) -> FireInput<'_> {
        FireInput {
            definitions: &self.definitions,
            anchor: self.record.anchor,
            deleted_at: None,
            rows: &self.rows,
            attempts: &self.attempts,
            context: Some(&self.context),
            next_fire_at: self.record.next_fire_at,
            windows: &self.windows,
            now: self.now,
            kept_from: self.kept_from,
        }
    }
}

/// The explanation of a job's present state: complete, or still to be computed for an instant.
enum WhyStep {
    Done(Why),
    At(Timestamp, AnswerSubject),
}

fn answer_now(input: &HistoryInput, is_open: bool) -> WhyStep {
    let facts = input.fire_input();
    let verdict_step = |run: &Run, about| WhyStep::Done(fires::why_run(&facts, run).with_subject(about, &facts));
    if let Some(run) = input.rows.first().filter(|_| is_open) {
        return verdict_step(run, AnswerSubject::OpenRun);
    }
    let (earlier_fire, later_fire) = fires::nearest_fires(&facts);
    match (input.rows.first(), earlier_fire, later_fire) {
        (Some(run), planned, _) if planned.is_none_or(|at| at < run.fire_at) => {
            verdict_step(run, AnswerSubject::LastFire)
        }
        // A run that a caller triggered does not belong to the history.
        (Some(run), Some(at), _) if at == run.fire_at && run.cause != 0 => verdict_step(run, AnswerSubject::LastFire),
        (_, Some(at), _) => WhyStep::At(at, AnswerSubject::LastFire),
        (_, None, Some(at)) => WhyStep::At(at, AnswerSubject::NextFire),
        (_, None, None) => WhyStep::Done(fires::why_never(&facts)),
    }
}

/// The outcome of each fire of a job in a range, and where the next history continues. `visible_apps` lists the apps whose runs and definitions
/// the caller may see; `None` means all.
///
/// # Errors
/// The store's.
pub(crate) async fn fires(
    node: &Node,
    record: &JobRecord,
    range: Range,
    visible_apps: Option<&[AppId]>,
) -> Result<FireHistory, StoreError> {
    let mut range_end = range.to;
    let mut versions = read_versions(node, record, range.from, range_end).await?;
    // One read returns only the newest definitions. If these do not reach back to the start of the range, the history ends earlier.
    while is_cut(&versions, range.from) && range_end > range.from {
        range_end = Timestamp::from_millis(range.from.as_millis().midpoint(range_end.as_millis()));
        versions = read_versions(node, record, range.from, range_end).await?;
    }
    let limit = range.limit.min(fires::ENTRY_COUNT_MAX);
    let row_count = u32::try_from(limit).unwrap_or(u32::MAX).saturating_add(1);
    let rows = node.store().planned_rows(record.id, range.from, range_end, row_count).await?;
    if rows.len() > limit
        && let Some(last_row) = rows.last()
    {
        range_end = range_end.min(last_row.fire_at.max(range.from));
    }
    let input = read_history_input(node, record, versions, rows, visible_apps).await?;
    let history_range = Range { from: range.from, to: range_end, limit };
    let mut history = compute(move || fires::fire_history(&input.fire_input(), history_range)).await;
    if range_end < range.to && history.next.is_none() {
        history.next = Some(Timestamp::from_millis(range_end.as_millis() + 1));
    }
    Ok(history)
}

/// Why a job ran or did not run at an instant.
///
/// # Errors
/// The store's.
pub(crate) async fn why(
    node: &Node,
    record: &JobRecord,
    at: Timestamp,
    visible_apps: Option<&[AppId]>,
) -> Result<Why, StoreError> {
    let versions = versions_around(node, record, at).await?;
    let rows = node.store().planned_rows(record.id, at, at, 2).await?;
    let input =
        with_context(node, read_history_input(node, record, versions, rows, visible_apps).await?, visible_apps).await?;
    let (why, input) = compute(move || (fires::why(&input.fire_input(), at), input)).await;
    if why.entry.is_some() {
        return Ok(why);
    }
    let Some(run) = read_nearest_run(node, record, at, visible_apps).await? else { return Ok(why) };
    let mut rows = vec![run];
    conceal::conceal(node, record.namespace, visible_apps, &mut rows).await?;
    let input = with_context(node, HistoryInput { rows, ..input }, visible_apps).await?;
    let (before, after) = (why.before, why.after);
    Ok(answer_about_run(&input).map_or(why, |answer| Why { before, after, ..answer }))
}

fn answer_about_run(input: &HistoryInput) -> Option<Why> {
    let (facts, run) = (input.fire_input(), input.rows.first()?);
    Some(fires::why_run(&facts, run).with_subject(AnswerSubject::NearRun(run.trigger), &facts))
}

/// Why a run of the job has its status, whatever triggered it.
///
/// # Errors
/// The store's.
pub(crate) async fn why_run(
    node: &Node,
    record: &JobRecord,
    run: &Run,
    visible_apps: Option<&[AppId]>,
) -> Result<Why, StoreError> {
    let is_planned = run.cause == 0 && is_whole(run);
    let answer = if is_planned { None } else { why_unplanned_run(node, record, run, visible_apps).await? };
    match answer {
        Some(answer) => Ok(answer),
        None => why(node, record, run.fire_at, visible_apps).await,
    }
}

/// Why a run has its status, for runs that are not in the history of fires: runs that no schedule planned, and shards.
async fn why_unplanned_run(
    node: &Node,
    record: &JobRecord,
    run: &Run,
    visible_apps: Option<&[AppId]>,
) -> Result<Option<Why>, StoreError> {
    let versions = versions_around(node, record, run.fire_at).await?;
    let input = read_history_input(node, record, versions, vec![run.clone()], visible_apps).await?;
    let input = with_context(node, input, visible_apps).await?;
    Ok(answer_about_run(&input))
}

/// The run of a job that is nearest to an instant for which no fire was planned: a run that a caller triggered, that follows a parent job,
/// that belongs to a backfill, or that began near the instant.
async fn read_nearest_run(
    node: &Node,
    record: &JobRecord,
    at: Timestamp,
    visible_apps: Option<&[AppId]>,
) -> Result<Option<Run>, StoreError> {
    let mut runs = newest_runs(node, record, (at + fires::NEAREST_RUN_WITHIN, &[]), visible_apps).await?;
    // A job that is triggered often may have more runs after the instant than were read.
    if is_full(&runs) && runs.last().is_some_and(|oldest| oldest.fire_at > at) {
        runs.append(&mut newest_runs(node, record, (at, &[]), visible_apps).await?);
    }
    Ok(fires::nearest_run(whole_runs(node, runs).await?, at))
}

/// Why a job is in its present state. Explains the job's newest run that is due and open. If there is none, explains the job's last fire, or
/// its last run if that is later than the fire. If there is none of these either, explains the job's next fire.
///
/// # Errors
/// The store's.
pub(crate) async fn why_now(
    node: &Node,
    record: &JobRecord,
    visible_apps: Option<&[AppId]>,
) -> Result<Why, StoreError> {
    let now = node.now();
    let open_run = newest_run(node, record, &OPEN_STATUSES, visible_apps).await?;
    let newest_run = match open_run {
        Some(_) => None,
        None => newest_run(node, record, &[], visible_apps).await?,
    };
    let is_open = open_run.is_some();
    let versions = read_versions(node, record, now - DEFINITIONS_WITHIN, now + DEFINITIONS_WITHIN).await?;
    let input =
        read_history_input(node, record, versions, open_run.into_iter().chain(newest_run).collect(), visible_apps)
            .await?;
    let input = with_context(node, input, visible_apps).await?;
    let (answer, input) = compute(move || (answer_now(&input, is_open), input)).await;
    match answer {
        WhyStep::Done(why) => Ok(why),
        // The history of an instant needs the rows around it.
        WhyStep::At(at, about) => {
            let mut rows = node.store().planned_rows(record.id, at, at, 2).await?;
            rows.retain(|run| is_within(run, visible_apps));
            conceal::conceal(node, record.namespace, visible_apps, &mut rows).await?;
            let input = with_context(node, HistoryInput { rows, ..input }, visible_apps).await?;
            Ok(compute(move || fires::why(&input.fire_input(), at).with_subject(about, &input.fire_input())).await)
        }
    }
}

/// Among a job's due runs with one of the statuses, the run with the latest planned instant. An empty list admits every status. A broadcast is
/// represented by its own run, not by a shard.
async fn newest_run(
    node: &Node,
    record: &JobRecord,
    statuses: &[RunStatus],
    visible_apps: Option<&[AppId]>,
) -> Result<Option<Run>, StoreError> {
    let runs = newest_runs(node, record, (node.now(), statuses), visible_apps).await?;
    let runs = whole_runs(node, runs).await?;
    Ok(runs.into_iter().find(|run| statuses.is_empty() || statuses.contains(&run.status)))
}

/// The newest runs of a job that are planned up to an instant and have one of these statuses, at most [`NEWEST_COUNT`]. An empty list of
/// statuses admits every status.
async fn newest_runs(
    node: &Node,
    record: &JobRecord,
    (fire_until, statuses): (Timestamp, &[RunStatus]),
    visible_apps: Option<&[AppId]>,
) -> Result<Vec<Run>, StoreError> {
    let (until, statuses, visible_apps) = (Some(fire_until), statuses.to_vec(), visible_apps.map(<[AppId]>::to_vec));
    let query = RunQuery {
        job: Some(record.id),
        until,
        statuses,
        within: visible_apps,
        limit: NEWEST_COUNT,
        ..RunQuery::default()
    };
    node.store().list_runs(record.namespace, &query).await
}

/// These runs, the newest first, with the shards of a broadcast replaced by the broadcast's own run. That run is read from the store if `runs`
/// has only shards of it, of which there may be hundreds.
async fn whole_runs(node: &Node, runs: Vec<Run>) -> Result<Vec<Run>, StoreError> {
    let (mut fire_runs, shards): (Vec<Run>, Vec<Run>) = runs.into_iter().partition(is_whole);
    let roots: BTreeSet<RunId> = shards.iter().filter_map(|shard| shard.parent).collect();
    let missing_ids: Vec<RunId> =
        roots.into_iter().filter(|root| fire_runs.iter().all(|run| run.id != *root)).collect();
    fire_runs.append(&mut node.store().runs(&missing_ids).await?);
    fire_runs.sort_by_key(|run| Reverse((run.fire_at, run.cause, run.shard_index)));
    Ok(fire_runs)
}

fn is_full(runs: &[Run]) -> bool {
    runs.len() >= usize::try_from(NEWEST_COUNT).unwrap_or(usize::MAX)
}

/// The definitions from which the history around an instant is computed.
async fn versions_around(node: &Node, record: &JobRecord, at: Timestamp) -> Result<Vec<VersionRecord>, StoreError> {
    let mut versions = read_versions(node, record, at - DEFINITIONS_WITHIN, at + DEFINITIONS_WITHIN).await?;
    if is_cut(&versions, at) {
        versions.extend(node.store().versions(record.id, at, at, 2).await?);
    }
    Ok(versions)
}

async fn read_versions(
    node: &Node,
    record: &JobRecord,
    from: Timestamp,
    to: Timestamp,
) -> Result<Vec<VersionRecord>, StoreError> {
    node.store().versions(record.id, from, to, VERSION_COUNT_MAX).await
}

/// The input of a history, restricted to the runs and definitions of `visible_apps`. A job that was moved to another app belonged to another
/// team before. Its earlier runs and definitions stay visible to that team only.
async fn read_history_input(
    node: &Node,
    record: &JobRecord,
    mut versions: Vec<VersionRecord>,
    mut rows: Vec<Run>,
    visible_apps: Option<&[AppId]>,
) -> Result<HistoryInput, StoreError> {
    if let Some(visible_apps) = visible_apps {
        let apps = node.store().apps(record.namespace).await?;
        let is_visible = |name: &str| apps.iter().any(|app| app.name == name && visible_apps.contains(&app.id));
        versions.retain(|version| is_visible(&version.spec.app));
        rows.retain(|run| is_within(run, Some(visible_apps)));
        conceal::conceal(node, record.namespace, Some(visible_apps), &mut rows).await?;
    }
    versions.sort_by_key(|version| version.version);
    versions.dedup_by_key(|version| version.version);
    let compile = |version: VersionRecord| {
        let job = node.compile(&version.spec, version.calendar.as_ref()).ok()?;
        Some(Definition { from: version.created_at, job })
    };
    let now = node.now();
    Ok(HistoryInput {
        record: record.clone(),
        definitions: versions.into_iter().filter_map(compile).collect(),
        rows,
        attempts: Vec::new(),
        context: AnswerContext::default(),
        now,
        kept_from: now - node.retention(),
        windows: node.shared().maintenance.of(record.namespace, record.app, now),
    })
}

/// The input, completed by the context of the explained run and by the run's earlier attempts.
async fn with_context(
    node: &Node,
    input: HistoryInput,
    visible_apps: Option<&[AppId]>,
) -> Result<HistoryInput, StoreError> {
    let attempts = match input.rows.iter().find(|run| run.attempt > 1) {
        Some(run) => node.store().attempts(run.id).await?,
        None => Vec::new(),
    };
    let context = match input.rows.last() {
        Some(run) => context::ContextReader(node).of(run, visible_apps).await?,
        None => context::ContextReader(node).of_fire().await?,
    };
    Ok(HistoryInput { attempts, context, ..input })
}

/// Computes on a thread for blocking work, so that no fire is delayed: a history of fires may cover thousands of instants.
pub(crate) async fn compute<T: Send + 'static>(history: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(history).await {
        Ok(history) => history,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Whether the run is not one of several shards.
fn is_whole(run: &Run) -> bool {
    run.is_root() || run.shard_total.is_none_or(|total| total <= 1)
}

fn is_within(run: &Run, visible_apps: Option<&[AppId]>) -> bool {
    visible_apps.is_none_or(|apps| apps.contains(&run.app))
}

/// Whether these definitions, newest first, do not reach back to `from`.
fn is_cut(versions: &[VersionRecord], from: Timestamp) -> bool {
    let is_full = versions.len() >= usize::try_from(VERSION_COUNT_MAX).unwrap_or(usize::MAX);
    is_full && versions.last().is_some_and(|oldest| oldest.created_at > from)
}
