//! I1 and I8: each planned fire has a row, and each row is complete.

use std::collections::{BTreeMap, BTreeSet};

use super::Rules;
use super::evidence::{Call, Evidence, JobFacts, RunRow};
use super::report::{Invariant, Report};

/// How long after a call that switches a job, or during this call, the job's fires may run or not.
const SWITCH_SLACK_MS: i64 = 1_000;

const STATUSES: [&str; 9] =
    ["pending", "waiting", "running", "succeeded", "failed", "timed_out", "cancelled", "unknown", "skipped"];

pub(super) fn check(evidence: &Evidence, rules: Rules, report: &mut Report) {
    let mut by_job: BTreeMap<&str, Vec<&RunRow>> = BTreeMap::new();
    for run in &evidence.runs {
        by_job.entry(&run.job).or_default().push(run);
    }
    for job in evidence.jobs.iter().filter(|job| job.is_scheduled) {
        let rows = by_job.get(job.name.as_str()).map_or(&[][..], Vec::as_slice);
        one_row_each(job, rows, report);
        match planned_fires(evidence, job, rules) {
            Some(fires) => no_hole(job, &fires, rows, report),
            None => report.unplanned_jobs.push(job.name.clone()),
        }
    }
    conservation(evidence, report);
}

/// The instants that must have a row by now; `None` if the checker cannot enumerate the schedule.
fn planned_fires(evidence: &Evidence, job: &JobFacts, rules: Rules) -> Option<Vec<i64>> {
    let period = job.period_ms?;
    let changes = || evidence.calls.iter().filter(|call| concerns(call, &job.name));
    let edits_schedule = |call: &Call| {
        ["PUT", "PATCH"].contains(&call.method.as_str()) && (call.method == "PUT" || !call.body["schedule"].is_null())
    };
    if changes().any(edits_schedule) {
        return None;
    }
    let is_off = |at: i64| {
        let mut off = false;
        for call in changes() {
            let Some(switches_off) = switch(call) else { continue };
            if call.sent_ms - SWITCH_SLACK_MS <= at && at <= call.done_ms + SWITCH_SLACK_MS {
                return true;
            }
            if call.done_ms < at && call.is_acknowledged() {
                off = switches_off;
            }
        }
        off
    };
    // The job is off without a call that switched it off: it was created so, or the history is missing.
    let has_history = changes().any(|call| switch(call).is_some());
    if !job.enabled && !has_history {
        return None;
    }
    let anchor = job.created_ms.div_euclid(1_000) * 1_000 + if job.created_ms % 1_000 == 0 { 0 } else { 1_000 };
    let end = evidence.read_at_ms - rules.settle_ms;
    let fires = (0..).map(|index| anchor + index * period).take_while(|at| *at <= end);
    Some(fires.filter(|at| *at > job.created_ms && !is_off(*at)).collect())
}

/// Whether a call is about this job.
pub(super) fn concerns(call: &Call, job: &str) -> bool {
    let path = call.path.split('?').next().unwrap_or_default();
    path.strip_prefix("/api/v1/jobs/").and_then(|rest| rest.split('/').next()) == Some(job)
}

/// Whether a call switches its job off (true) or on.
pub(super) fn switch(call: &Call) -> Option<bool> {
    let path = call.path.split('?').next().unwrap_or_default();
    match call.method.as_str() {
        "POST" if path.ends_with("/pause") => Some(true),
        "POST" if path.ends_with("/resume") => Some(false),
        "DELETE" => Some(true),
        "PATCH" | "PUT" => call.body["enabled"].as_bool().map(|enabled| !enabled),
        _ => None,
    }
}

fn one_row_each(job: &JobFacts, rows: &[&RunRow], report: &mut Report) {
    let mut keys: BTreeMap<(i64, Option<i64>), Vec<&RunRow>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.is_scheduled()) {
        keys.entry((row.fire_at_ms, row.shard)).or_default().push(row);
    }
    for ((fire, _), rows) in keys.iter().filter(|(_, rows)| rows.len() > 1) {
        report.add(Invariant::Complete, format!("two rows for the fire of {} at {fire}", job.name), show(rows));
    }
}

fn no_hole(job: &JobFacts, fires: &[i64], rows: &[&RunRow], report: &mut Report) {
    report.fire_count += fires.len();
    let scheduled = || rows.iter().filter(|row| row.is_scheduled());
    let found: BTreeSet<i64> = scheduled().map(|row| row.fire_at_ms).collect();
    let spans: Vec<(i64, i64)> = scheduled().filter_map(|row| Some((row.fire_at_ms, row.span_end_ms?))).collect();
    let has_row = |at: &i64| found.contains(at) || spans.iter().any(|(from, to)| (from..=to).contains(&at));
    let holes: Vec<String> = fires.iter().filter(|at| !has_row(at)).map(|at| format!("{} at {at}", job.name)).collect();
    if !holes.is_empty() {
        report.add(
            Invariant::Complete,
            format!("{} of {} fires of {} have no row", holes.len(), fires.len(), job.name),
            holes,
        );
    }
}

/// Checks that each row has a known status, and the fields that its verdict requires.
fn conservation(evidence: &Evidence, report: &mut Report) {
    for run in &evidence.runs {
        let status = match &run.reason {
            Some(reason) => format!("{} {reason}", run.status),
            None => run.status.clone(),
        };
        *report.statuses.entry(status).or_default() += 1;
        let wrong = if !STATUSES.contains(&run.status.as_str()) {
            "a status that does not exist"
        } else if run.status == "skipped" && run.reason.is_none() {
            "skipped without a reason"
        } else if !run.is_open() && run.finished_ms.is_none() {
            "a verdict without its instant"
        } else if run.is_open() && run.finished_ms.is_some() {
            "open with the instant of a verdict"
        } else {
            continue;
        };
        report.add(Invariant::Conservation, wrong, show(&[run]));
    }
    let ids: BTreeSet<&str> = evidence.runs.iter().map(|run| run.id.as_str()).collect();
    if ids.len() != evidence.runs.len() {
        report.add(Invariant::Conservation, "the same run stands in the ledger twice", Vec::new());
    }
}

pub(super) fn show(rows: &[&RunRow]) -> Vec<String> {
    rows.iter().map(|row| format!("{row:?}")).collect()
}
