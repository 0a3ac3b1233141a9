//! Why runs wait, and why they end without an executor: the reasons, with details from the dispatcher's memory.
//!
//! A wait that lasts longer than a second is stored in the run's row, in batches and off the run's path, so that it survives a restart and the
//! API of another server shows it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rondel_core::outcome::Outcome;
use rondel_core::reason::words::reason_text;
use rondel_core::reason::{Obstacle, ObstacleKind, ReasonDetail, WaitFor, milliseconds};
use rondel_core::words::Lang;
use rondel_core::{Reason, Run, Timestamp};
use rondel_store::ledger::{AttemptEnd, NotedWait, WaitPlace};

use super::decision::Decision;
use super::executors::is_fit_despite;
use super::groups::busy_with_groups;
use super::queue::limits::wait_detail;
use super::queue::noted::StoredWait;
use super::ready::{ReadyRun, end_of_unsent, waited_ms};
use super::recovery::unanswered::{UNANSWERED_WAITS_MAX, answer_wait};
use super::starts::unstarted_wait;
use super::step::Step;
use super::{ends, switches};
use crate::metrics::CountedRun;

/// How long a run must have waited before its wait is stored.
const NOTE_AFTER_WAITING: Duration = Duration::from_secs(1);
/// A stored wait is checked again after this long.
const NOTE_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// Maximum number of runs of each kind of wait that one round looks at.
const RUNS_PER_WAIT_MAX: usize = 1_000;
/// Maximum number of waits that one round stores.
const NOTE_COUNT_MAX: usize = 200;

/// Adds the reason to the end of an attempt, as parameters and as an English message.
pub(crate) fn with_reason(attempt_end: AttemptEnd, reason: Reason, detail: ReasonDetail) -> AttemptEnd {
    let message = Some(reason_text(reason, &detail, Lang::En));
    AttemptEnd { message, detail: Some(Arc::new(detail)), ..attempt_end }
}

/// Why a run whose queue timeout has passed is skipped, by the kind of its wait.
const fn skip_reason(waits_for: Option<WaitFor>) -> Reason {
    match waits_for {
        Some(WaitFor::App) => Reason::Stopped,
        Some(WaitFor::Executor | WaitFor::Answer | WaitFor::RollCall) | None => Reason::NoExecutor,
        Some(WaitFor::Slot | WaitFor::Limit) => Reason::Expired,
        Some(WaitFor::Run) => Reason::Overlap,
    }
}

/// The end of a run that is too late by its job's misfire policy. A run that a server had queued in time, as its noted wait shows, was not
/// missed: it waited too long, and that wait is the reason.
pub(crate) fn end_of_missed(ready: &ReadyRun, now: Timestamp) -> AttemptEnd {
    let is_wait = |what| what != WaitFor::RollCall;
    let noted_detail = ready.run.detail.as_deref().filter(|detail| detail.waits_for.is_some_and(is_wait));
    let (reason, detail) = match noted_detail {
        Some(noted_detail) => {
            let waited_ms = Some(milliseconds(now.since(ready.run.due_at)));
            (skip_reason(noted_detail.waits_for), ReasonDetail { waited_ms, ..noted_detail.clone() })
        }
        None => (Reason::Misfire, ReasonDetail::default()),
    };
    with_reason(end_of_unsent(&ready.run, &ready.definition, Outcome::Skipped(reason), now, None), reason, detail)
}

/// Skips a run that no executor has.
pub(super) fn skip(d: &mut Decision<'_>, ready: &ReadyRun, reason: Reason, detail: ReasonDetail) {
    let now = d.now;
    let attempt_end = end_of_unsent(&ready.run, &ready.definition, Outcome::Skipped(reason), now, None);
    ends::submit(d, with_reason(attempt_end, reason, detail), CountedRun::of_ready(ready));
}

/// The reason for the end of a run that found no executor within its queue timeout.
pub(super) fn unserved_reason(d: &Decision<'_>, ready: &ReadyRun) -> (Reason, ReasonDetail) {
    let now = d.now;
    let mut wait = wait_for_executor(d, ready);
    if wait.waits_for == Some(WaitFor::Slot) && wait.obstacles.is_empty() {
        // An executor has room by now, so the noted wait is the reason why the run waited.
        let noted_wait =
            d.state.noted_waits.by_run.get(&ready.run.id).filter(|noted| noted.attempt == ready.run.attempt);
        wait = noted_wait.map_or(wait, |noted| (*noted.detail).clone());
    }
    let detail = ReasonDetail { waited_ms: Some(waited_ms(ready, now)), ..wait };
    (skip_reason(detail.waits_for), detail)
}

/// The wait of a run that no executor takes now.
fn wait_for_executor(d: &Decision<'_>, ready: &ReadyRun) -> ReasonDetail {
    let now = d.now;
    if let Some(detail) = switches::switch_wait(d, ready) {
        return detail;
    }
    let job = &ready.definition.job;
    let mut obstacles = busy_with_groups(d, ready);
    obstacles.extend(d.state.executors.obstacles(ready, now));
    if let Some(executor) = executor_of_shard(&ready.run) {
        obstacles.retain(|obstacle| obstacle.executor == executor);
        if obstacles.is_empty() {
            let (executor, kind) = (executor.to_owned(), ObstacleKind::Offline);
            obstacles.push(Obstacle { executor, kind, condition: None });
        }
    }
    let eligible_executors = d.state.executors.eligible_executors(ready);
    let all_are_silent =
        !eligible_executors.is_empty() && eligible_executors.iter().all(|online| d.state.executors.is_silent(online));
    let has_fit_executor = obstacles.iter().any(|obstacle| is_fit_despite(obstacle.kind))
        || !eligible_executors.is_empty() && executor_of_shard(&ready.run).is_none();
    let has_fit_executor = has_fit_executor && !all_are_silent;
    let waits_for = Some(if has_fit_executor { WaitFor::Slot } else { WaitFor::Executor });
    let (app, handler) = (Some(job.app.clone()), Some(job.handler.clone()));
    let only_executor = ready.run.only_executor.clone();
    ReasonDetail { waits_for, app, handler, only_executor, ..ReasonDetail::default() }.with_obstacles(obstacles)
}

/// Stores those waits of waiting runs that are not stored yet, so that the next server does not treat these runs as missed.
pub(super) fn note_all_waits(d: &mut Decision<'_>) {
    let now = d.now;
    let mut notes = Vec::new();
    for (ready, wait) in waiting_runs(d, now, now, usize::MAX) {
        let (run, attempt) = (ready.run.id, ready.run.attempt);
        if d.state.noted_waits.by_run.contains_key(&run) {
            continue;
        }
        let (detail, place) = describe_wait(d, ready, wait);
        let detail = detail_with_wait(ready, Arc::unwrap_or_clone(detail));
        notes.push(NotedWait { run, attempt, detail, place });
    }
    require_marks(d, &notes);
    let mut notes = notes.into_iter();
    while !notes.as_slice().is_empty() {
        // A new list for each step: a list that is only shortened would keep its memory until its step has been performed.
        d.step(Step::NoteWaits(notes.by_ref().take(NOTE_COUNT_MAX).collect()));
    }
}

/// Stores the waits that have lasted longer than a second, if they are new or have changed.
pub(super) fn note_waits(d: &mut Decision<'_>) {
    let now = d.now;
    let mut noted_waits = std::mem::take(&mut d.state.noted_waits.by_run);
    let (mut waits_to_keep, mut changed_notes) = (HashMap::with_capacity(noted_waits.len()), Vec::new());
    for (ready, wait) in waiting_runs(d, now, now - NOTE_AFTER_WAITING, RUNS_PER_WAIT_MAX) {
        let (run, attempt, token) = (ready.run.id, ready.run.attempt, ready.token());
        let noted_wait = noted_waits.remove(&run).filter(|noted| (noted.attempt, noted.token) == (attempt, token));
        let is_fresh = noted_wait.as_ref().is_some_and(|noted| noted.stored_at + NOTE_AGAIN_AFTER > now);
        if is_fresh || changed_notes.len() >= NOTE_COUNT_MAX {
            waits_to_keep.extend(noted_wait.map(|noted| (run, noted)));
            continue;
        }
        let (detail, place) = describe_wait(d, ready, wait);
        if noted_wait.is_none_or(|noted| noted.detail != detail || noted.place != place) {
            let stored_detail = detail_with_wait(ready, (*detail).clone());
            changed_notes.push(NotedWait { run, attempt, detail: stored_detail, place: place.clone() });
        }
        waits_to_keep.insert(run, StoredWait { attempt, token, stored_at: now, detail, place });
    }
    d.state.noted_waits.by_run = waits_to_keep;
    require_marks(d, &changed_notes);
    if !changed_notes.is_empty() {
        d.step(Step::NoteWaits(changed_notes));
    }
}

/// Handles waits that were not stored, because the queue had no room or the database failed: the next round stores them.
pub(super) fn on_wait_notes_refused(d: &mut Decision<'_>, notes: &[NotedWait]) {
    for note in notes {
        if d.state.noted_waits.by_run.get(&note.run).is_some_and(|noted| noted.attempt == note.attempt) {
            d.state.noted_waits.by_run.remove(&note.run);
        }
    }
}

/// Records that these runs must be marked before they are sent, because from now on their rows may state that no executor has them. If an
/// executor has accepted a run, the row of the run names that executor instead.
fn require_marks(d: &mut Decision<'_>, notes: &[NotedWait]) {
    for note in notes {
        if let Some(open_run) = d.state.runs.get_mut(note.run).filter(|open| open.ready.run.attempt == note.attempt) {
            open_run.ready.has_noted_wait = true;
        }
        if let Some(active) =
            d.state.runs.active_mut(note.run).filter(|active| active.ready.run.attempt == note.attempt)
        {
            active.ready.has_noted_wait = true;
            active.row_names_executor |= matches!(note.place, WaitPlace::Executor(Some(_)));
        }
    }
}

/// Runs of this lease that have waited since `waiting_since` or longer: the first `count` of each kind of wait. Runs that remain in memory
/// from an earlier lease are left out: another node may have taken them over, and then their rows show more than this node knows.
fn waiting_runs<'d>(
    d: &'d Decision<'_>,
    now: Timestamp,
    waiting_since: Timestamp,
    count: usize,
) -> Vec<(&'d ReadyRun, Wait)> {
    let is_old = |since: Timestamp| since <= waiting_since;
    let is_chosen = |ready: &ReadyRun| ready.token() == d.facts.token && is_old(ready.run.due_at);
    let queued_waits = d.state.gates.first_queued_runs(is_chosen, count, &d.state.runs);
    let queued_waits = queued_waits.into_iter().map(|(ready, ahead)| {
        let detail = ReasonDetail { waits_for: Some(WaitFor::Run), run: ahead, ..ReasonDetail::default() };
        (ready, Wait::Known(Arc::new(detail)))
    });
    let limited_waits = d.state.limits.first_waiting_runs(is_chosen, count, &d.state.runs);
    let limited_waits =
        limited_waits.into_iter().map(|(key, ready)| (ready, Wait::Known(Arc::new(wait_detail(key, ready)))));
    let parked_waits = d.state.parked.first_waiting_runs(|open| is_old(open.since()), count, &d.state.runs);
    let parked_waits = parked_waits.into_iter().map(|ready| (ready, Wait::Executor));
    let unanswered_waits =
        d.state.runs.active_runs().filter_map(|active| Some((&active.ready, answer_wait(active, now)?)));
    let unanswered_waits = unanswered_waits.map(|(ready, detail)| (ready, Wait::Known(Arc::new(detail))));
    let begin_waits = d.state.runs.active_runs().filter_map(|active| {
        let is_connected = d.state.executors.get(active.executor).is_some();
        Some((&active.ready, Wait::Begin(Box::new(unstarted_wait(active, is_connected, now)?))))
    });
    let waits_in_hand = unanswered_waits.take(UNANSWERED_WAITS_MAX).chain(begin_waits.take(count));
    let all_waits = queued_waits.chain(limited_waits).chain(parked_waits).chain(waits_in_hand);
    all_waits.filter(|(ready, _)| is_chosen(ready)).collect()
}

/// The wait of a run: already known, or to be derived from the executors that are online.
enum Wait {
    Known(Arc<ReasonDetail>),
    Executor,
    /// Its executor has accepted the run and has not begun it.
    Begin(Box<(ReasonDetail, WaitPlace)>),
}

fn describe_wait(d: &Decision<'_>, ready: &ReadyRun, wait: Wait) -> (Arc<ReasonDetail>, WaitPlace) {
    match wait {
        Wait::Known(detail) => (detail, WaitPlace::Server),
        Wait::Executor => (Arc::new(wait_for_executor(d, ready)), WaitPlace::Server),
        Wait::Begin(begin) => {
            let (detail, place) = *begin;
            (Arc::new(detail), place)
        }
    }
}

/// What the row of a run stores once this wait is noted: the parameters that the row has so far, and the wait.
fn detail_with_wait(ready: &ReadyRun, wait: ReasonDetail) -> Arc<ReasonDetail> {
    let detail_so_far = ready.run.detail.as_deref().cloned().unwrap_or_default();
    Arc::new(detail_so_far.with_wait(wait))
}

/// The executor that the shard of a broadcast is meant for; `None` for a retry, and for any other run.
fn executor_of_shard(run: &Run) -> Option<&str> {
    let is_first_attempt_of_shard =
        run.attempt == 1 && run.parent.is_some() && run.shard_total.is_some_and(|total| total > 1);
    run.executor.as_deref().filter(|_| is_first_attempt_of_shard)
}
