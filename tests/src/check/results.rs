//! I6 and I7: each end is recorded as the handler reported it, and no run stays open.

use std::collections::HashMap;

use super::Rules;
use super::evidence::{Evidence, RunRow, Start};
use super::fires::show;
use super::report::{Invariant, Report};

pub(super) fn check(evidence: &Evidence, rules: Rules, report: &mut Report) {
    let starts: HashMap<(&str, i64), &Start> =
        evidence.starts.iter().map(|start| ((start.run.as_str(), start.attempt), start)).collect();
    for run in &evidence.runs {
        check_durable(evidence, run, &starts, report);
        if run.is_open() && !rules.may_be_open {
            let is_due = run.fire_at_ms <= evidence.read_at_ms - rules.settle_ms;
            if is_due {
                report.add(Invariant::Liveness, "a run has no verdict", show(&[run]));
            }
        }
    }
    for job in evidence.jobs.iter().filter(|job| job.enabled && job.is_scheduled) {
        let goes_on = job.next_fire_ms.is_some_and(|next| next > evidence.read_at_ms - rules.settle_ms);
        if !goes_on && job.period_ms.is_some() {
            report.add(
                Invariant::Liveness,
                format!("{} has stopped: its next fire is {:?}", job.name, job.next_fire_ms),
                Vec::new(),
            );
        }
    }
}

/// Checks that the ledger has the end that a handler reported, unless its process died before it could report it. Also
/// checks that each success in the ledger was one.
fn check_durable(evidence: &Evidence, run: &RunRow, starts: &HashMap<(&str, i64), &Start>, report: &mut Report) {
    let present =
        super::evidence::Attempt { number: run.attempt, status: run.status.clone(), reason: run.reason.clone() };
    let before = run.attempts.iter().filter(|attempt| attempt.number < run.attempt);
    for attempt in before.chain([&present]) {
        let start = starts.get(&(run.id.as_str(), attempt.number));
        let ended = start.and_then(|start| start.end).and_then(|(at, ok)| Some((at, ok?)));
        let wrong = match (ended, attempt.status.as_str()) {
            (None, "succeeded") if !evidence.starts.is_empty() && start.is_some_and(|start| start.end.is_none()) => {
                "the ledger has a success, and the handler has no end"
            }
            (Some((_, false)), "succeeded") => "the handler failed, and the ledger has a success",
            (Some((_, true)), "failed") if !was_lost_with_executor(attempt) => {
                "the handler succeeded, and the ledger has a failure"
            }
            (Some((at, true)), "failed" | "unknown" | "pending" | "waiting" | "running" | "skipped") => {
                // The result may be missing if the process died with it, if the process was paused, or if the handler
                // ended just before the ledger was read.
                let died = evidence
                    .died
                    .iter()
                    .any(|died| start.is_some_and(|start| start.pid == died.pid) && died.at_ms >= at);
                let is_young = at > evidence.read_at_ms - 1_000;
                if died || is_young || start.is_some_and(|start| was_paused(evidence, start)) {
                    continue;
                }
                "the handler succeeded, and the ledger does not know it"
            }
            _ => continue,
        };
        let rows = [show(&[run]), start.map(|start| super::starts::show(start)).into_iter().collect()].concat();
        report.add(Invariant::Durable, wrong, rows);
    }
}

/// Whether the attempt failed because its executor was lost: the handler's result may have been lost with it.
fn was_lost_with_executor(attempt: &super::evidence::Attempt) -> bool {
    attempt.reason.as_deref() == Some("executor_lost")
}

/// Whether the process was paused while it had the run: its report may have come too late.
fn was_paused(evidence: &Evidence, start: &Start) -> bool {
    evidence.paused.iter().any(|stop| stop.pid == start.pid && stop.to_ms >= start.begin_ms)
}
