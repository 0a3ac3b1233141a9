//! The deadlines of runs at executors.

use std::collections::BTreeMap;
use std::time::Duration;

use rondel_core::RunId;
use rondel_core::outcome::Outcome;

use crate::dispatch::ready::ReadyRun;
use crate::dispatch::starts::StartReport;

/// The deadlines of runs whose handlers have begun, by the boot-time clock: no step of the database's clock moves them.
#[derive(Debug, Default)]
pub(crate) struct Deadlines(BTreeMap<RunId, AttemptDeadline>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AttemptDeadline {
    attempt: i32,
    /// The deadline, by the boot-time clock in microseconds.
    at_micros: i64,
    /// Whether it counts from the arrival of a report that did not show how long the handler had been running. A later report that shows
    /// this replaces it.
    is_assumed: bool,
    /// Whether the executor was asked to stop the handler because of the deadline.
    is_asked: bool,
}

/// The action for a run past its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OverdueAction {
    /// The executor is asked to stop the handler.
    Ask,
    /// The run ends without the executor's answer.
    GiveUp,
}

impl Deadlines {
    /// Records that the handler of this attempt began at this instant, in microseconds of the boot-time clock. The first measured record of
    /// an attempt counts, and replaces that of an earlier attempt. Does nothing if the job has no timeout.
    pub(crate) fn record_start(&mut self, ready: &ReadyRun, start_micros: i64) {
        self.record(ready, start_micros, false);
    }

    /// Records the start of this attempt's handler, as shown by a report that arrived at `now_micros` of the boot-time clock. If the report has the
    /// instant of the start, but not how long the handler has been running, the timeout counts from now: the instant is by the database's clock,
    /// which may have stepped since. If the report has neither, the handler may not have begun, and nothing is recorded.
    pub(crate) fn record_report(&mut self, ready: &ReadyRun, report: StartReport, now_micros: i64) {
        let StartReport::Started(start) = report else { return self.forget_assumed(ready) };
        if let Some(start_micros) = start.boot_micros {
            self.record(ready, start_micros, false);
        } else if start.at.is_some() {
            self.record(ready, now_micros, true);
        }
    }

    /// The handler has not begun after all. If the executor was asked to stop the run, its answer still counts as a timeout.
    fn forget_assumed(&mut self, ready: &ReadyRun) {
        let is_wrong = |deadline: &AttemptDeadline| {
            deadline.attempt == ready.run.attempt && deadline.is_assumed && !deadline.is_asked
        };
        if self.0.get(&ready.run.id).is_some_and(is_wrong) {
            self.0.remove(&ready.run.id);
        }
    }

    fn record(&mut self, ready: &ReadyRun, start_micros: i64, is_assumed: bool) {
        let Some(timeout) = ready.definition.job.timeout else { return };
        let (attempt, at_micros) = (ready.run.attempt, later_by(start_micros, timeout));
        let new_deadline = AttemptDeadline { attempt, at_micros, is_assumed, is_asked: false };
        let deadline = self.0.entry(ready.run.id).or_insert(new_deadline);
        if deadline.attempt < attempt {
            *deadline = new_deadline;
        } else if deadline.attempt == attempt && deadline.is_assumed && !is_assumed {
            *deadline = AttemptDeadline { is_asked: deadline.is_asked, ..new_deadline };
        }
    }

    pub(crate) fn forget(&mut self, run: RunId) {
        self.0.remove(&run);
    }

    /// Turns the outcome *cancelled* into a timeout if the run was asked to stop because of its deadline.
    pub(crate) fn judge(&self, run: RunId, outcome: Outcome) -> Outcome {
        let is_asked = self.0.get(&run).is_some_and(|deadline| deadline.is_asked);
        if is_asked && outcome == Outcome::Cancelled { Outcome::TimedOut } else { outcome }
    }

    pub(super) fn record_asked(&mut self, run: RunId) {
        if let Some(deadline) = self.0.get_mut(&run) {
            deadline.is_asked = true;
        }
    }

    /// The runs that are past their deadlines by at least `ask` or `give_up`, each with its attempt and the action; a run that is past both is
    /// given up. The two times are `overdue_ask` and `overdue_timeout` of [`EngineConfig`](crate::EngineConfig).
    pub(super) fn due_actions(
        &self,
        now_micros: i64,
        (ask, give_up): (Duration, Duration),
    ) -> Vec<(RunId, i32, OverdueAction)> {
        let due_action = |deadline: &AttemptDeadline| {
            let ask_action = (now_micros >= later_by(deadline.at_micros, ask)).then_some(OverdueAction::Ask);
            if now_micros >= later_by(deadline.at_micros, give_up) { Some(OverdueAction::GiveUp) } else { ask_action }
        };
        self.0.iter().filter_map(|(run, deadline)| Some((*run, deadline.attempt, due_action(deadline)?))).collect()
    }
}

fn later_by(micros: i64, length: Duration) -> i64 {
    micros.saturating_add(i64::try_from(length.as_micros()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use rondel_core::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::dispatch::starts::StartTimes;
    use crate::dispatch::tests_support::{definition, ready};

    const PATIENCE: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(60));

    /// The end of an attempt may be known here only after the next one has begun.
    #[test]
    fn the_next_attempt_has_its_own_deadline() {
        let at = |second: i64| second * 1_000_000;
        let mut deadlines = Deadlines::default();
        let first = ready(1, &definition(&json!({"timeout": "30s"})));
        let mut second = first.clone();
        second.run.attempt = 2;
        deadlines.record_start(&first, at(100));
        deadlines.record_asked(first.run.id);
        deadlines.record_start(&second, at(200));
        deadlines.record_start(&first, at(300));
        assert_eq!(deadlines.due_actions(at(249), PATIENCE), []);
        assert_eq!(deadlines.due_actions(at(250), PATIENCE), [(first.run.id, 2, OverdueAction::Ask)]);
        assert_eq!(deadlines.judge(first.run.id, Outcome::Cancelled), Outcome::Cancelled);
    }

    #[test]
    fn a_measured_start_replaces_an_assumed_one() {
        let at = |second: i64| second * 1_000_000;
        let ready = ready(1, &definition(&json!({"timeout": "30s"})));
        let assumed = StartReport::Started(StartTimes { at: Some(Timestamp::from_secs(1)), boot_micros: None });
        let measured = |second| {
            StartReport::Started(StartTimes { at: Some(Timestamp::from_secs(1)), boot_micros: Some(at(second)) })
        };
        let unknown = StartReport::Started(StartTimes::default());
        // The deadline after reports that arrive at seconds 100, 110 and 120.
        let deadline = |reports: &[StartReport], is_asked: bool| {
            let mut deadlines = Deadlines::default();
            for (report, arrival) in reports.iter().zip([100, 110, 120]) {
                deadlines.record_report(&ready, *report, at(arrival));
                if is_asked {
                    deadlines.record_asked(ready.run.id);
                }
            }
            let outcome = deadlines.judge(ready.run.id, Outcome::Cancelled);
            assert_eq!(outcome == Outcome::TimedOut, is_asked && !deadlines.0.is_empty(), "{reports:?}");
            deadlines.0.get(&ready.run.id).map(|deadline| deadline.at_micros / at(1))
        };
        for is_asked in [false, true] {
            assert_eq!(deadline(&[unknown], is_asked), None, "it may not have begun");
            assert_eq!(deadline(&[assumed, assumed], is_asked), Some(130), "from the first arrival");
            assert_eq!(deadline(&[assumed, measured(40), measured(50)], is_asked), Some(70));
            assert_eq!(deadline(&[assumed, measured(105)], is_asked), Some(135));
            assert_eq!(deadline(&[measured(40), assumed], is_asked), Some(70));
            assert_eq!(deadline(&[measured(40), StartReport::NotStarted], is_asked), Some(70), "an old report");
        }
        assert_eq!(deadline(&[assumed, StartReport::NotStarted], false), None);
        assert_eq!(deadline(&[assumed, StartReport::NotStarted, measured(119)], false), Some(149));
        assert_eq!(deadline(&[assumed, StartReport::NotStarted], true), Some(130), "its answer counts as a timeout");
    }

    #[test]
    fn a_run_past_its_deadline_is_asked_to_end_and_then_given_up() {
        let at = |second: i64| second * 1_000_000;
        let mut deadlines = Deadlines::default();
        deadlines.record_start(&ready(1, &definition(&json!({"timeout": "30s"}))), at(100));
        deadlines.record_start(&ready(2, &definition(&json!({}))), at(100));
        let run = RunId::new(1_000);
        // Reported twice: the first report counts.
        deadlines.record_start(&ready(1, &definition(&json!({"timeout": "30s"}))), at(120));
        for (second, what) in [
            (149, None),
            (150, Some(OverdueAction::Ask)),
            (189, Some(OverdueAction::Ask)),
            (190, Some(OverdueAction::GiveUp)),
        ] {
            let expected: Vec<_> = what.map(|what| (run, 1, what)).into_iter().collect();
            assert_eq!(deadlines.due_actions(at(second), PATIENCE), expected, "{second}");
        }
        assert_eq!(deadlines.judge(run, Outcome::Cancelled), Outcome::Cancelled);
        deadlines.record_asked(run);
        assert_eq!(deadlines.judge(run, Outcome::Cancelled), Outcome::TimedOut);
        assert_eq!(deadlines.judge(run, Outcome::Succeeded), Outcome::Succeeded);
        deadlines.forget(run);
        assert_eq!(deadlines.due_actions(at(500), PATIENCE), []);
    }
}
