//! I11, and the part of I6 about calls: acknowledged changes exist, and a verdict that a caller saw does not change.

use std::collections::HashMap;

use serde_json::Value;

use super::Rules;
use super::evidence::{Call, Evidence, RunRow};
use super::fires::{concerns, show, switch};
use super::report::{Invariant, Report};

/// No fire that is due later than this after the acknowledgement runs under the old definition.
const PROMISE_MS: i64 = 1_000;

pub(super) fn check(evidence: &Evidence, _: Rules, report: &mut Report) {
    let runs: HashMap<&str, &RunRow> = evidence.runs.iter().map(|run| (run.id.as_str(), run)).collect();
    for call in evidence.calls.iter().filter(|call| call.is_acknowledged()) {
        let path = call.path.split('?').next().unwrap_or_default();
        match call.method.as_str() {
            "POST" if path == "/api/v1/jobs" => check_created(evidence, call, report),
            "POST" if path.ends_with("/runs") => check_triggered(call, &runs, report),
            "GET" if path.starts_with("/api/v1/runs") => check_seen_verdicts(call, &runs, report),
            _ => {}
        }
    }
    check_switched_off(evidence, report);
}

fn check_created(evidence: &Evidence, call: &Call, report: &mut Report) {
    let name = call.answer["name"].as_str().unwrap_or_default();
    let was_deleted = evidence.calls.iter().any(|call| call.method == "DELETE" && concerns(call, name));
    if !was_deleted && !evidence.jobs.iter().any(|job| job.name == name) {
        report.add(
            Invariant::Acknowledged,
            format!("job {name} was made, and is not there"),
            vec![format!("{call:?}")],
        );
    }
}

fn check_triggered(call: &Call, runs: &HashMap<&str, &RunRow>, report: &mut Report) {
    let id = call.answer["id"].as_str().unwrap_or_default();
    if !runs.contains_key(id) {
        report.add(
            Invariant::Acknowledged,
            format!("run {id} was triggered, and is not there"),
            vec![format!("{call:?}")],
        );
    }
}

/// Checks the verdicts that callers saw: each is final, unless its executor had not reported the end.
fn check_seen_verdicts(call: &Call, runs: &HashMap<&str, &RunRow>, report: &mut Report) {
    let one = [call.answer.clone()];
    let items: &[Value] = call.answer["items"].as_array().map_or(&one, Vec::as_slice);
    let is_final = |item: &RunRow| {
        let is_lost = item.reason.as_deref() == Some("executor_lost");
        let is_provisional = item.status == "unknown" || is_lost && ["failed", "cancelled"].contains(&&*item.status);
        !item.is_open() && !is_provisional
    };
    for item in items.iter().filter_map(RunRow::from_json).filter(is_final) {
        match runs.get(item.id.as_str()) {
            Some(run) if run.status == item.status => {}
            Some(run) => report.add(Invariant::Durable, "a verdict that was seen has changed", show(&[&item, run])),
            None => report.add(Invariant::Durable, "a run that was seen is not there any more", show(&[&item])),
        }
    }
}

/// Checks that the schedule of a job starts nothing while the job is off.
fn check_switched_off(evidence: &Evidence, report: &mut Report) {
    let offs = evidence.calls.iter().filter(|call| call.is_acknowledged() && switch(call) == Some(true));
    for off in offs {
        let Some(job) = evidence.jobs.iter().map(|job| job.name.as_str()).find(|job| concerns(off, job)) else {
            continue;
        };
        let is_on = |call: &&Call| call.sent_ms >= off.done_ms && concerns(call, job) && switch(call) == Some(false);
        let until = evidence.calls.iter().filter(is_on).map(|call| call.sent_ms).min().unwrap_or(i64::MAX);
        let ran = |run: &&RunRow| {
            run.job == job
                && run.is_scheduled()
                && run.status != "skipped"
                && run.fire_at_ms > off.done_ms + PROMISE_MS
                && run.fire_at_ms < until
        };
        let rows: Vec<&RunRow> = evidence.runs.iter().filter(ran).collect();
        if !rows.is_empty() {
            report.add(
                Invariant::Acknowledged,
                format!("{job} was switched off at {}, and fired", off.done_ms),
                show(&rows),
            );
        }
    }
}
