//! Decides the effect of a result on the row of its run. Every store uses this decision.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use rondel_core::edit::EditPlan;
use rondel_core::outcome::{AttemptFacts, NextStep, Outcome, decide_next, fold_shards, is_provisional};
use rondel_core::queued::{QueuedRunsPolicy, is_queued};
use rondel_core::reason::{ReasonDetail, WaitFor};
use rondel_core::route::trace::TRACE_LEN_MAX;
use rondel_core::run::{RESULT_LEN_MAX, ROOT_SHARD, RunJob};
use rondel_core::{ExecutorId, Job, NodeId, Reason, Run, RunId, RunStatus, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};

use crate::LeaseToken;
use crate::catalog::{JobRecord, QueuedDrops};
use crate::ledger::AttemptEnd;

/// Maximum size of a stored message, in bytes.
pub(crate) const MESSAGE_LEN_MAX: usize = 4 * 1024;
/// Maximum length of a name in a column, in characters.
pub(crate) const NAME_LEN_MAX: usize = 255;

/// The owner of a row that an edit inserts for skipped past fires. No node ever had such a run.
pub(crate) const NO_NODE: NodeId = NodeId::new(0);

/// The row that records the fires of a job that an edit or a deletion skips. It already has its verdict, and no owner. `None` if no fire is
/// skipped, or if the earlier definition can no longer be read.
pub(crate) fn skipped_row(
    record: &JobRecord,
    before: Option<&Job>,
    plan: &EditPlan,
    id: RunId,
    now: Timestamp,
) -> Option<Run> {
    let (span, job) = plan.skipped_span.zip(before)?;
    let run_job = RunJob { namespace: record.namespace, job: record.id, job_version: record.version, app: record.app };
    Some(span.row(id, run_job, job, plan.reason, (NO_NODE, 0), now))
}

/// The fields of a run's row that the effect of a result depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunRow {
    /// When its attempt may start: at its planned instant, or later.
    pub(crate) due_at: Timestamp,
    pub(crate) attempt: i32,
    pub(crate) status: RunStatus,
    pub(crate) reason: Option<Reason>,
    /// How often an executor was lost while it had the run.
    pub(crate) lost_count: i32,
    /// Number of earlier attempts that no executor received. Counted only if [`must_count_earlier_attempts`] is true for the outcome.
    pub(crate) unreceived_count: i32,
    /// Whether it was marked as possibly sent.
    pub(crate) is_marked: bool,
    /// Whether an earlier attempt began, or may have begun. Determined only if [`must_count_earlier_attempts`] is true for the outcome.
    pub(crate) may_have_begun: bool,
    /// The reason of the request to cancel it, if there is one.
    pub(crate) cancel_request_reason: Option<Reason>,
    /// Whether the run succeeded, but gets its verdict only when its children have ended.
    pub(crate) awaits_children: bool,
    /// Whether it is the row of a broadcast whose shards were never created.
    pub(crate) is_unexpanded: bool,
    /// The lease that owns it.
    pub(crate) owner: LeaseToken,
}

/// The effect of a result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Judgement {
    /// No attempt with this number ever began.
    NoSuchRun,
    /// The end of this attempt is already stored.
    Duplicate,
    /// A later attempt exists.
    Superseded,
    /// A server decided this end, but no longer owns the run.
    NotOwner,
    /// A server decided this end in the belief that no executor got the attempt, but an executor may have it.
    UnderWay,
    /// The stored verdict did not come from an executor's report, or is `skipped` although a handler began. This variant holds the true
    /// verdict.
    Late(RunStatus, Option<Reason>),
    /// The attempt ends, and this is the next step.
    Ends(NextStep),
}

/// Whether the earlier attempts of the run must be counted before this outcome can be judged.
pub(crate) const fn must_count_earlier_attempts(outcome: Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Skipped(_) | Outcome::Failed { .. } | Outcome::TimedOut | Outcome::Silenced { has_begun: true }
    )
}

pub(crate) fn judge(row: RunRow, attempt_end: &AttemptEnd) -> Judgement {
    if !(1..=row.attempt).contains(&attempt_end.attempt) {
        return Judgement::NoSuchRun;
    }
    if attempt_end.attempt < row.attempt && !mutant::on(Mutant::AnyAttemptEnds) {
        return Judgement::Superseded;
    }
    if !row.status.is_terminal() && attempt_end.owner.is_some_and(|owner| owner != row.owner) {
        return Judgement::NotOwner;
    }
    // For example, the run left this node, was sent by another one, and came back, while the end was on its way.
    if attempt_end.is_unsent && row.status == RunStatus::Running && !mutant::on(Mutant::StaleUnsentEnd) {
        return Judgement::UnderWay;
    }
    let facts = AttemptFacts {
        attempt: row.attempt,
        lost_count: row.lost_count,
        unreceived_count: row.unreceived_count,
        is_marked: row.is_marked,
        may_have_begun: row.may_have_begun,
        cancel_request_reason: row.cancel_request_reason,
        is_unfinished: attempt_end.is_unfinished && !mutant::on(Mutant::UnfinishedSucceeds),
        is_unexpanded: row.is_unexpanded,
    };
    let mut next_step =
        decide_next(attempt_end.policy, facts, attempt_end.outcome, attempt_end.finished_at, attempt_end.jitter);
    if is_correctable(row, attempt_end) {
        // Only the report of an executor shows the true verdict.
        let Some((status, reason)) = true_verdict(attempt_end.outcome).filter(|_| attempt_end.owner.is_none()) else {
            return Judgement::Duplicate;
        };
        // A group of a pump ended as the pump had asked it to.
        if let NextStep::Verdict { status, reason } = next_step
            && is_planned_end(row, attempt_end)
        {
            return Judgement::Late(status, reason);
        }
        let is_silenced = matches!(attempt_end.outcome, Outcome::Silenced { .. });
        return match status {
            RunStatus::Failed if row.cancel_request_reason.is_some() && is_silenced => {
                Judgement::Late(RunStatus::Cancelled, row.cancel_request_reason)
            }
            RunStatus::Cancelled => Judgement::Late(status, row.cancel_request_reason.or(reason)),
            _ => Judgement::Late(status, reason),
        };
    }
    // A run that awaits its children already has its result. Only a cancel can end it earlier.
    let is_over = row.status.is_terminal() && !mutant::on(Mutant::LateResultOverwrites);
    if is_over || (row.awaits_children && attempt_end.outcome != Outcome::Cancelled) {
        return Judgement::Duplicate;
    }
    if let NextStep::Retry { due_at, .. } = &mut next_step {
        // The next attempt starts no earlier than the due instant of this one. If the clock has stepped back, an attempt can be lost before
        // it is due. A run that a maintenance window held back is due when the window has ended.
        *due_at = row.due_at.max(*due_at);
    }
    Judgement::Ends(next_step)
}

/// Whether a group of a pump reports that it ended because the pump ends.
fn is_planned_end(row: RunRow, attempt_end: &AttemptEnd) -> bool {
    let has_released = matches!(attempt_end.outcome, Outcome::Cancelled | Outcome::Yielded);
    has_released && attempt_end.policy.is_pump && row.cancel_request_reason.is_some_and(Reason::ends_pump)
}

/// Whether the executor's report of the same attempt replaces the verdict in the row.
fn is_correctable(row: RunRow, attempt_end: &AttemptEnd) -> bool {
    match row.status {
        RunStatus::Unknown => true,
        RunStatus::Skipped => has_begun(attempt_end),
        status => is_provisional(status, row.reason) && !mutant::on(Mutant::LostVerdictIsFinal),
    }
}

/// Whether a result proves that a handler began. In that case the run was not skipped, whatever its row states: an edit settled the row
/// after the run had been sent.
fn has_begun(attempt_end: &AttemptEnd) -> bool {
    let is_end_of_handler =
        matches!(attempt_end.outcome, Outcome::Succeeded | Outcome::Failed { .. } | Outcome::TimedOut);
    is_end_of_handler && attempt_end.executor.is_some() && attempt_end.started_at.is_some()
}

/// The verdict that an outcome alone implies; `None` if it implies none.
fn true_verdict(outcome: Outcome) -> Option<(RunStatus, Option<Reason>)> {
    match outcome {
        Outcome::Succeeded => Some((RunStatus::Succeeded, None)),
        // The run is a group of a pump that moves to another executor. It has processed every row that it had fetched.
        Outcome::Yielded => Some((RunStatus::Succeeded, Some(Reason::Moved))),
        Outcome::Failed { .. } => Some((RunStatus::Failed, None)),
        Outcome::TimedOut => Some((RunStatus::TimedOut, None)),
        Outcome::Cancelled => Some((RunStatus::Cancelled, Some(Reason::Requested))),
        Outcome::Skipped(reason) => Some((RunStatus::Skipped, Some(reason))),
        Outcome::Silenced { has_begun: true } => Some((RunStatus::Failed, None)),
        Outcome::Silenced { has_begun: false } | Outcome::Lost(_) | Outcome::Unreported => None,
    }
}

/// The status with which an ended attempt is stored among the earlier attempts.
pub(crate) fn attempt_status(outcome: Outcome) -> RunStatus {
    true_verdict(outcome).map_or(RunStatus::Unknown, |(status, _)| status)
}

/// The verdict of a whole broadcast.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BroadcastOutcome {
    pub(crate) status: RunStatus,
    /// The reason of the shards with this verdict, if they all have the same one.
    pub(crate) reason: Option<Reason>,
    /// A line for users, unless all shards succeeded.
    pub(crate) message: Option<String>,
}

/// The outcome of a broadcast, from the verdicts of its shards; `cancel_by` is the caller of a request to cancel the broadcast.
pub(crate) fn fold_broadcast(shards: &[(RunStatus, Option<Reason>)], cancel_by: Option<&str>) -> BroadcastOutcome {
    let status = fold_shards(shards.iter().map(|(status, _)| *status));
    let mut reasons = shards.iter().filter(|shard| shard.0 == status).map(|(_, reason)| *reason);
    let count = reasons.clone().count();
    let reason = reasons.next().flatten().filter(|first| reasons.all(|reason| reason == Some(*first)));
    let end_words = match status {
        RunStatus::Failed => "failed",
        RunStatus::TimedOut => "timed out",
        RunStatus::Cancelled => "were cancelled",
        RunStatus::Unknown => "have an unknown outcome",
        RunStatus::Skipped => "were skipped",
        RunStatus::Succeeded | RunStatus::Pending | RunStatus::Waiting | RunStatus::Running => {
            // If the shards are groups of a pump, they may have a reason although they succeeded.
            return BroadcastOutcome { status, reason, message: None };
        }
    };
    let by_words =
        cancel_by.filter(|_| status == RunStatus::Cancelled).map(|caller| format!(" by {caller}")).unwrap_or_default();
    BroadcastOutcome {
        status,
        reason,
        message: Some(format!("{count} of {} shards {end_words}{by_words}", shards.len())),
    }
}

/// The shard index and the number of shards that an unsent row has under this definition.
pub(crate) const fn shard_of(job: &Job) -> (i32, Option<i32>) {
    if job.is_sharded() { (ROOT_SHARD, None) } else { (0, Some(1)) }
}

/// The next fire of a fixed delay after a run with this planned instant and this end. The end was measured by an executor's clock, which
/// may be wrong, so it counts only if it lies between the planned instant and now. The delay begins no earlier than the instant at which
/// the definition was saved, because the job may have been disabled when the run ended, and the end may have arrived only now.
pub(crate) fn fire_after_delay(
    (fire_at, finished_at): (Timestamp, Timestamp),
    (delay, defined_at): (Duration, Timestamp),
    now: Timestamp,
) -> Timestamp {
    let is_plausible = fire_at <= finished_at && finished_at <= now;
    (if is_plausible { finished_at.max(defined_at) } else { now }).saturating_add(delay)
}

/// The wait to record for a due run that moves to another server before it is sent, if its row records no wait. If the run waits there, the
/// other server replaces this record.
pub(crate) fn wait_of_unsent() -> ReasonDetail {
    ReasonDetail { waits_for: Some(WaitFor::Executor), ..ReasonDetail::default() }
}

/// Records a wait for a run that moves to another server before it is sent, if the run is due and its row has none. Without a recorded
/// wait, the next server would treat the fire as missed.
pub(crate) fn note_unsent(run: &mut Run, now: Timestamp) {
    if run.detail.is_none() && run.attempt == 1 && run.due_at <= now {
        run.detail = Some(Arc::new(wait_of_unsent()));
    }
}

/// The queued runs of a job that must end because the job is paused or deleted (`reason`), sorted by id. `open_runs` are the open runs of
/// the job, of which at most `drops.limit` are examined.
pub(crate) fn queued_to_drop(mut open_runs: Vec<Run>, reason: Reason, drops: QueuedDrops<'_>) -> Vec<RunId> {
    open_runs.sort_by_key(|run| run.id);
    open_runs.truncate(usize::try_from(drops.limit).unwrap_or(usize::MAX));
    let is_dropped = |run: &&Run| is_queued(run) && QueuedRunsPolicy::drops(drops.choice, reason, run.trigger);
    open_runs.iter().filter(is_dropped).map(|run| run.id).collect()
}

/// The end of an attempt, with texts that every database can store.
#[derive(Clone, Debug)]
pub(crate) struct CleanEnd<'f> {
    pub(crate) end: &'f AttemptEnd,
    pub(crate) executor_id: Option<ExecutorId>,
    pub(crate) executor: Option<Cow<'f, str>>,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) message: Option<Cow<'f, str>>,
    pub(crate) result: Option<Cow<'f, str>>,
    pub(crate) trace: Option<Cow<'f, str>>,
    /// As JSON text.
    pub(crate) detail: Option<String>,
}

impl<'f> CleanEnd<'f> {
    pub(crate) fn new(attempt_end: &'f AttemptEnd) -> Self {
        Self {
            end: attempt_end,
            executor_id: attempt_end.executor.as_ref().map(|(id, _)| *id),
            executor: attempt_end.executor.as_ref().map(|(_, name)| clean_name(name)),
            started_at: attempt_end.started_at,
            message: attempt_end.message.as_deref().map(|text| clean_text(text, MESSAGE_LEN_MAX)),
            result: attempt_end.result.as_deref().map(clean_result),
            trace: attempt_end.trace.as_deref().map(|text| clean_text(text, TRACE_LEN_MAX)),
            detail: attempt_end.detail.as_deref().and_then(ReasonDetail::to_json),
        }
    }

    /// Whether it has a message or a result. Without them it fits into the smallest packet that a database accepts.
    pub(crate) fn has_texts(&self) -> bool {
        self.message.is_some() || self.result.is_some()
    }
}

/// The result without NUL. A result that is too long is replaced by a note, because its beginning alone would be no JSON. Executors fail runs with
/// such results, but masks can lengthen a result, and an SDK of an earlier version sends longer ones.
fn clean_result(text: &str) -> Cow<'_, str> {
    let text = without_nul(text);
    if text.len() > RESULT_LEN_MAX {
        return Cow::Owned(format!(r#"{{"omitted":"{} bytes of JSON"}}"#, text.len()));
    }
    text
}

/// The text without NUL, which PostgreSQL refuses, cut to `len_max` bytes. A text that was cut ends with a mark.
pub(crate) fn clean_text(text: &str, len_max: usize) -> Cow<'_, str> {
    const CUT: char = '…';
    let text = without_nul(text);
    if text.len() <= len_max {
        return text;
    }
    let end = text.floor_char_boundary(len_max - CUT.len_utf8());
    let mut text = text[..end].to_owned();
    text.push(CUT);
    Cow::Owned(text)
}

/// The text without NUL, cut to the length of a column for names.
pub(crate) fn clean_name(text: &str) -> Cow<'_, str> {
    let text = without_nul(text);
    match text.char_indices().nth(NAME_LEN_MAX) {
        Some((end, _)) => Cow::Owned(text[..end].to_owned()),
        None => text,
    }
}

/// The text with NUL replaced, because PostgreSQL does not store NUL.
pub(crate) fn without_nul(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_kept_whole_or_replaced_by_a_note() {
        let longest = format!("\"{}\"", "x".repeat(RESULT_LEN_MAX - 2));
        assert_eq!(clean_result(&longest), longest);
        assert_eq!(clean_result(&format!("{longest} ")), r#"{"omitted":"65536 bytes of JSON"}"#);
    }

    #[test]
    fn a_skipped_row_is_settled_by_its_late_success() {
        let row = |status| RunRow {
            due_at: Timestamp::EPOCH,
            attempt: 1,
            status,
            reason: None,
            lost_count: 0,
            unreceived_count: 0,
            is_marked: false,
            may_have_begun: false,
            cancel_request_reason: None,
            awaits_children: false,
            is_unexpanded: false,
            owner: LeaseToken { node: NodeId::new(1), epoch: 1 },
        };
        let policy = rondel_core::outcome::NextStepPolicy {
            retry_max: 0,
            backoff: Duration::ZERO,
            backoff_max: Duration::ZERO,
            at_least_once: true,
            has_fixed_delay: false,
            awaits_children: false,
            is_pump: false,
        };
        let attempt_end = |outcome, began: bool| AttemptEnd {
            run: RunId::new(1),
            job: rondel_core::JobId::new(1),
            attempt: 1,
            outcome,
            policy,
            executor: Some((ExecutorId::new(1), String::new())),
            started_at: began.then_some(Timestamp::EPOCH),
            finished_at: Timestamp::EPOCH,
            message: None,
            result: None,
            trace: None,
            detail: None,
            jitter: 0.5,
            owner: None,
            is_unsent: false,
            is_unfinished: false,
        };
        let failed = Outcome::Failed { retryable: true };
        for (status, outcome, began, expected) in [
            (RunStatus::Skipped, Outcome::Succeeded, true, Judgement::Late(RunStatus::Succeeded, None)),
            (RunStatus::Skipped, failed, true, Judgement::Late(RunStatus::Failed, None)),
            (RunStatus::Skipped, Outcome::Succeeded, false, Judgement::Duplicate),
            (RunStatus::Skipped, Outcome::Cancelled, true, Judgement::Duplicate),
            (RunStatus::Succeeded, failed, true, Judgement::Duplicate),
        ] {
            assert_eq!(judge(row(status), &attempt_end(outcome, began)), expected, "{status:?} {outcome:?} {began}");
        }
        // The servers gave the run up because its executor was lost. That executor's report replaces the verdict.
        let (lost, asked) = (Some(Reason::ExecutorLost), Some(Reason::Covered));
        for (status, reason, outcome, expected) in [
            (RunStatus::Cancelled, lost, Outcome::Succeeded, Judgement::Late(RunStatus::Succeeded, None)),
            (RunStatus::Cancelled, lost, failed, Judgement::Late(RunStatus::Failed, None)),
            (RunStatus::Cancelled, lost, Outcome::Cancelled, Judgement::Late(RunStatus::Cancelled, asked)),
            (RunStatus::Cancelled, lost, Outcome::Lost(Reason::ExecutorLost), Judgement::Duplicate),
            (RunStatus::Cancelled, asked, Outcome::Succeeded, Judgement::Duplicate),
            (RunStatus::Failed, lost, Outcome::Succeeded, Judgement::Late(RunStatus::Succeeded, None)),
            (RunStatus::Failed, None, Outcome::Succeeded, Judgement::Duplicate),
        ] {
            let given_up = RunRow { reason, cancel_request_reason: asked, ..row(status) };
            assert_eq!(judge(given_up, &attempt_end(outcome, true)), expected, "{status:?} {reason:?} {outcome:?}");
            let by_server = AttemptEnd { owner: Some(given_up.owner), ..attempt_end(outcome, true) };
            assert_eq!(judge(given_up, &by_server), Judgement::Duplicate, "{status:?} {reason:?} {outcome:?}");
        }
        // A run that a server took for unsent may be at an executor by now.
        for (status, is_unsent, expected) in [
            (RunStatus::Running, true, Some(Judgement::UnderWay)),
            (RunStatus::Running, false, None),
            (RunStatus::Pending, true, None),
            (RunStatus::Waiting, true, None),
            (RunStatus::Succeeded, true, Some(Judgement::Duplicate)),
        ] {
            let skipped = attempt_end(Outcome::Skipped(Reason::Expired), false);
            let by_server = AttemptEnd { owner: Some(row(status).owner), executor: None, is_unsent, ..skipped };
            let verdict = NextStep::Verdict { status: RunStatus::Skipped, reason: Some(Reason::Expired) };
            let expected = expected.unwrap_or(Judgement::Ends(verdict));
            assert_eq!(judge(row(status), &by_server), expected, "{status:?} {is_unsent}");
        }
        // An attempt was lost before its instant, because the clock has stepped back since.
        let ahead = RunRow { due_at: Timestamp::from_secs(100), ..row(RunStatus::Running) };
        let again = NextStep::Retry { due_at: ahead.due_at, reason: Reason::NotReceived, lost_count: 0 };
        let lost = attempt_end(Outcome::Lost(Reason::NotReceived), false);
        assert_eq!(judge(ahead, &lost), Judgement::Ends(again));
    }

    #[test]
    fn text_is_cut_between_characters_with_a_mark() {
        assert_eq!(clean_text("short", 10), "short");
        assert_eq!(clean_text("ab\0c", 10), "ab\u{fffd}c");
        assert_eq!(clean_text("日日日日", 9), "日日…");
        assert_eq!(clean_text("日日日日", 10), "日日…");
        assert_eq!(clean_text(&"x".repeat(100), 10), "xxxxxxx…");
        assert_eq!(clean_name(&"日".repeat(300)).chars().count(), 255);
    }

    #[test]
    fn a_delay_counts_from_the_end_as_far_as_that_can_be() {
        let at = Timestamp::from_secs;
        let delay = Duration::from_secs(3);
        for (finished, expected) in [(15, 18), (10, 13), (20, 23), (21, 23), (9, 23)] {
            assert_eq!(fire_after_delay((at(10), at(finished)), (delay, at(1)), at(20)), at(expected), "{finished}");
        }
        assert_eq!(fire_after_delay((at(10), at(15)), (delay, at(17)), at(20)), at(20), "edited since");
    }

    #[test]
    fn a_fold_reports_how_many_shards_failed() {
        use RunStatus::{Cancelled, Failed, Skipped, Succeeded, TimedOut};
        let (covered, asked) = (Some(Reason::Covered), Some(Reason::Requested));
        let (later, none) = (Some("a later run"), None);
        for (shards, cancel_by, status, reason, message) in [
            (vec![(Succeeded, None), (Succeeded, None)], later, Succeeded, none, None),
            (
                vec![(Failed, None), (Succeeded, None), (Failed, None), (TimedOut, None)],
                later,
                Failed,
                none,
                Some("2 of 4 shards failed"),
            ),
            (
                vec![(Cancelled, covered), (Succeeded, None), (Cancelled, covered)],
                later,
                Cancelled,
                covered,
                Some("2 of 3 shards were cancelled by a later run"),
            ),
            (
                vec![(Cancelled, covered), (Cancelled, asked)],
                None,
                Cancelled,
                none,
                Some("2 of 2 shards were cancelled"),
            ),
            (vec![(Skipped, covered)], later, Skipped, covered, Some("1 of 1 shards were skipped")),
        ] {
            let expected = BroadcastOutcome { status, reason, message: message.map(str::to_owned) };
            assert_eq!(fold_broadcast(&shards, cancel_by), expected, "{shards:?}");
        }
    }
}
