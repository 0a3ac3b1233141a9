//! Whether the handlers of runs at executors have begun. An executor accepts a few more runs than it has slots, and reports a start once the
//! handler has run for half a second. A run that it has accepted but not begun is not running.
//!
//! A missing report of a start does not prove that the handler has not begun: the report may have been lost with the stream. If an executor
//! is lost, the server draws no conclusion from a missing report.

use std::collections::HashMap;
use std::time::Duration;

use rondel_core::reason::{Obstacle, ObstacleKind, ReasonDetail, WaitFor};
use rondel_core::{RunId, Timestamp};
use rondel_proto::v1;
use rondel_store::ledger::WaitPlace;

use super::active::{ActiveRun, NOTE_RUNNING_AFTER, Phase};

/// An accepted run counts as queued at its executor if no start was reported this long after it was sent: longer than an immediate start
/// and its report take.
const QUEUED_AFTER: Duration = Duration::from_secs(2);

/// Whether the handler of a run has begun, by its executor's report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartReport {
    NotStarted,
    Started(StartTimes),
}

/// When a handler began, as far as its executor reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StartTimes {
    /// By the server's clock as the executor knew it then.
    pub(crate) at: Option<Timestamp>,
    /// By this server's boot-time clock, in microseconds. It stays right if the database's clock has stepped since the start.
    pub(crate) boot_micros: Option<i64>,
}

impl StartTimes {
    fn of(run: &v1::RunRef, now: Timestamp, now_boot_micros: i64) -> Self {
        let is_known = run.running_ms > 0;
        Self {
            at: reported_instant(run.started_at_ms, now),
            boot_micros: is_known.then(|| now_boot_micros.saturating_sub(run.running_ms.saturating_mul(1_000))),
        }
    }
}

/// An executor's report of which of its runs have begun.
#[derive(Clone, Debug, Default)]
pub(crate) struct StartReports(HashMap<(RunId, i32), StartReport>);

impl StartReports {
    /// The reports of a message that arrived now, by the database's clock and by the boot-time clock in microseconds.
    pub(crate) fn of(held_runs: &[v1::RunRef], (now, now_boot_micros): (Timestamp, i64)) -> Self {
        let report = |run: &v1::RunRef| match run.not_begun {
            true => StartReport::NotStarted,
            false => StartReport::Started(StartTimes::of(run, now, now_boot_micros)),
        };
        Self(held_runs.iter().map(|run| ((RunId::new(run.run_id), run.attempt), report(run))).collect())
    }

    /// A run without a report counts as begun, which is the safe assumption.
    pub(crate) fn get(&self, run: RunId, attempt: i32) -> StartReport {
        self.0.get(&(run, attempt)).copied().unwrap_or(StartReport::Started(StartTimes::default()))
    }
}

/// The first report of a handler's start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    /// The instant, by the server's clock; `None` from executors that do not report it.
    pub(crate) started_at: Option<Timestamp>,
    /// The delay between the arrival of the trigger and the start.
    pub(crate) start_delay: Duration,
}

/// An instant that an executor reports; 0 means none. The executor's clock only approximates the server's, so the result is never in the
/// future.
pub(crate) fn reported_instant(at_ms: i64, now: Timestamp) -> Option<Timestamp> {
    (at_ms > 0).then(|| Timestamp::from_millis(at_ms).min(now))
}

/// The wait of a run that its executor has accepted but, as far as this node knows, not begun, and the place of that wait. `None` until the
/// report of an immediate start would have arrived. If the executor is not connected here, the run may have begun without a report.
pub(crate) fn unstarted_wait(
    active: &ActiveRun,
    is_connected: bool,
    now: Timestamp,
) -> Option<(ReasonDetail, WaitPlace)> {
    let is_accepted = active.phase == Phase::Sent && !active.is_unanswered();
    let reported_within = if is_connected { QUEUED_AFTER } else { NOTE_RUNNING_AFTER };
    if !is_accepted || active.began_at.is_some() || now < active.sent_or_chosen_at + reported_within {
        return None;
    }
    let (waits_for, kind) = match is_connected {
        true => (WaitFor::Slot, ObstacleKind::Full),
        false => (WaitFor::Answer, ObstacleKind::Offline),
    };
    // The row of a broadcast's shard names its executor from its creation, and keeps that name.
    let run_at_executor =
        (!active.ready.is_for_one_executor()).then(|| active.run_at_executor(active.sent_or_chosen_at));
    let place = WaitPlace::Executor(run_at_executor);
    let obstacle = Obstacle { executor: active.executor_name.clone(), kind, condition: None };
    Some((ReasonDetail { waits_for: Some(waits_for), ..ReasonDetail::default() }.with_obstacles([obstacle]), place))
}

#[cfg(test)]
mod tests {
    use rondel_core::ExecutorId;
    use serde_json::json;

    use super::*;
    use crate::dispatch::tests_support::{definition, ready};

    const AT: fn(i64) -> Timestamp = Timestamp::from_millis;

    #[test]
    fn an_instant_that_an_executor_reports_is_never_in_the_future() {
        for (at_ms, expected) in [(-1, None), (0, None), (1, Some(1)), (500, Some(500)), (501, Some(500))] {
            assert_eq!(reported_instant(at_ms, AT(500)), expected.map(AT), "{at_ms}");
        }
    }

    /// The wait of a run that was sent at second 10 and accepted; `change` alters the run first.
    fn wait(is_connected: bool, now: i64, change: impl FnOnce(&mut ActiveRun)) -> Option<(Option<WaitFor>, bool)> {
        let ready = ready(10, &definition(&json!({})));
        let mut active = ActiveRun::new(ready, ExecutorId::new(1), "e1".to_owned(), AT(10_000), Phase::Sent);
        change(&mut active);
        let (detail, place) = unstarted_wait(&active, is_connected, AT(now))?;
        Some((detail.waits_for, matches!(place, WaitPlace::Executor(Some(_)))))
    }

    #[test]
    fn an_accepted_run_that_has_not_begun_waits_there() {
        assert_eq!(wait(true, 11_999, |_| {}), None, "its start may be on its way");
        assert_eq!(wait(true, 12_000, |_| {}), Some((Some(WaitFor::Slot), true)));
        assert_eq!(wait(false, 10_999, |_| {}), None);
        assert_eq!(wait(false, 11_000, |_| {}), Some((Some(WaitFor::Answer), true)));
        assert_eq!(wait(true, 60_000, |active| active.beats_at_send = Some(0)), None, "it is not answered");
        assert_eq!(wait(true, 60_000, |active| active.phase = Phase::Noted), None);
        assert_eq!(wait(true, 60_000, |active| active.record_start(AT(11_000), AT(12_000))), None);
        let broadcast = definition(&json!({"route": "broadcast"}));
        assert_eq!(
            wait(true, 60_000, |active| active.ready.definition = broadcast),
            Some((Some(WaitFor::Slot), false)),
            "its row names its executor already"
        );
    }

    #[test]
    fn a_run_begins_between_its_instant_and_now() {
        for (at, now, expected) in
            [(9_000, 12_000, 10_000), (11_000, 12_000, 11_000), (13_000, 12_000, 12_000), (1, 9_000, 9_000)]
        {
            let ready = ready(10, &definition(&json!({})));
            let mut active = ActiveRun::new(ready, ExecutorId::new(1), "e1".to_owned(), AT(8_000), Phase::Sent);
            active.record_start(AT(at), AT(now));
            assert_eq!(active.began_at, Some(AT(expected)), "{at} of {now}");
            active.record_start(AT(11_500), AT(20_000));
            assert_eq!(active.began_at, Some(AT(expected)), "the first report counts");
        }
    }
}
