//! Checks of fires: each instant of each schedule has a row or lies in a span, and no other instant has one.

use std::collections::BTreeSet;

use rondel_core::outcome::fold_shards;
use rondel_core::run::ROOT_SHARD;
use rondel_core::spec::Delivery;
use rondel_core::{Job, JobId, Run, RunStatus, Timestamp};
use rondel_store::catalog::JobRecord;

use super::facts::Facts;
use crate::truth::Truth;

/// The rows of a job's schedule: one for each fire; for a sharded fire, the row of its root.
fn schedule_rows(facts: &Facts, job: JobId) -> Vec<&Run> {
    let is_row = |run: &&Run| run.job == job && run.cause == 0 && run.shard_index <= 0;
    let is_whole = |run: &&Run| {
        run.shard_index == ROOT_SHARD || run.shard_total.is_none_or(|total| total <= 1) || run.parent.is_none()
    };
    let mut rows: Vec<&Run> = facts.runs.values().filter(is_row).filter(is_whole).collect();
    rows.sort_by_key(|run| run.fire_at);
    rows
}

fn compile_definition(record: &JobRecord) -> Option<Job> {
    record.spec.compile().ok()
}

fn was_changed(record: &JobRecord, truth: &Truth) -> bool {
    record.version > 1
        || truth.job_switches.iter().any(|job_switch| job_switch.job == record.id)
        || truth.uncertain_jobs.contains(&record.id)
}

/// The last change of the job; `None` if it is unknown, or the job is off.
fn last_change_at(facts: &Facts, record: &JobRecord, truth: &Truth) -> Option<Timestamp> {
    // If clocks step, an edit has one instant for its server and another one for the database.
    let is_unclear = facts.has_clock_faults && was_changed(record, truth);
    if truth.uncertain_jobs.contains(&record.id) || !record.spec.enabled || is_unclear {
        return None;
    }
    let changed_at = truth
        .job_switches
        .iter()
        .filter(|job_switch| job_switch.job == record.id)
        .map(|job_switch| job_switch.answered_at)
        .max();
    Some(changed_at.unwrap_or(record.created_at))
}

/// I1: every instant since the last change of its job has exactly one row, or lies in exactly one span that was skipped. A fire may have a
/// row although it lies in a span of an earlier version: if a maintenance window is ended early, an edit plans its fires again.
pub(super) fn fires_without_one_row(facts: &Facts, truth: &Truth) -> Vec<String> {
    let mut complaints = Vec::new();
    for record in facts.jobs.values() {
        let (Some(job), Some(since)) = (compile_definition(record), last_change_at(facts, record, truth)) else {
            continue;
        };
        let rows = schedule_rows(facts, record.id);
        let is_of_fire = |run: &&&Run, at: Timestamp| {
            run.fire_at == at || (run.fire_at <= at && run.span_end_at.is_some_and(|end| at <= end))
        };
        for fire in job.timetable.fires(record.anchor, since, facts.ends_at) {
            let rows_of_fire = rows.iter().filter(|run| run.parent.is_none() && is_of_fire(run, fire.at));
            let (spans, single_rows): (Vec<&Run>, Vec<&Run>) = rows_of_fire.partition(|run| run.span_end_at.is_some());
            let is_planned_again = |span: &Run, row: &Run| span.job_version < row.job_version;
            match (spans.as_slice(), single_rows.as_slice()) {
                ([_], []) | ([], [_]) => {}
                ([span], [row]) if is_planned_again(span, row) => {}
                ([], []) => complaints.push(format!("I1 complete: {} has no row for {}", record.spec.name, fire.at)),
                _ => complaints.push(format!("I1 complete: {} has several rows for {}", record.spec.name, fire.at)),
            }
        }
    }
    complaints
}

/// I1 in the other direction: each row of a schedule is for one of its instants.
pub(super) fn unscheduled_rows(facts: &Facts, truth: &Truth) -> Vec<String> {
    let mut complaints = Vec::new();
    for record in facts.jobs.values().filter(|record| !was_changed(record, truth)) {
        let Some(job) = compile_definition(record).filter(|job| job.timetable.delay().is_none()) else { continue };
        let fires = job.timetable.fires(record.anchor, record.created_at, facts.ends_at);
        let planned_instants: BTreeSet<Timestamp> = fires.map(|fire| fire.at).collect();
        for run in schedule_rows(facts, record.id).into_iter().filter(|run| !planned_instants.contains(&run.fire_at)) {
            complaints.push(format!(
                "I1 complete: {} has a row for {}, which no schedule has",
                record.spec.name, run.fire_at
            ));
        }
    }
    complaints
}

/// I7: a job with a fixed delay fires until the end. A job with a corrected verdict is left out, because its next fire
/// counts from the verdict before the correction.
pub(super) fn broken_delay_chains(facts: &Facts, truth: &Truth) -> Vec<String> {
    let mut complaints = Vec::new();
    for record in facts.jobs.values() {
        let (Some(job), Some(since)) = (compile_definition(record), last_change_at(facts, record, truth)) else {
            continue;
        };
        let Some(delay) = job.timetable.delay() else { continue };
        let rows = schedule_rows(facts, record.id);
        if rows.iter().any(|run| truth.corrected_runs.contains(&run.id)) {
            continue;
        }
        let last_end_at =
            rows.iter().filter_map(|run| run.finished_at.max(Some(run.fire_at))).max().unwrap_or(since).max(since);
        let slack = std::time::Duration::from_secs(2);
        if last_end_at + delay + slack < facts.ends_at && !facts.has_clock_faults {
            complaints.push(format!(
                "I7 liveness: {} ended with {last_end_at}, long before {}",
                record.spec.name, facts.ends_at
            ));
        }
    }
    complaints
}

/// I7: the runs that follow from a verdict exist.
pub(super) fn missing_children(facts: &Facts) -> Vec<String> {
    let mut complaints = Vec::new();
    for child in facts.jobs.values() {
        for parent_spec in child.spec.parents() {
            let Some(parent) = facts.jobs.values().find(|job| job.spec.name == parent_spec.name) else { continue };
            let roots = facts.runs.values().filter(|run| {
                run.job == parent.id
                    && run.status == RunStatus::Succeeded
                    && run.due_at >= child.created_at
                    && run.trigger != rondel_core::Trigger::Parent
                    && (run.shard_index == ROOT_SHARD || !parent.spec.is_sharded())
            });
            for root in roots {
                let has_child = facts.runs.values().any(|run| run.job == child.id && run.cause == root.id.get());
                if !has_child {
                    let description =
                        format!("{} of {} succeeded and {} has no run", root.id, parent.spec.name, child.spec.name);
                    complaints.push(format!("I7 liveness: {description}"));
                }
            }
        }
    }
    complaints
}

/// I8: a sharded fire has the shards that its row names, and the verdict that follows from theirs.
pub(super) fn wrong_shards(facts: &Facts) -> Vec<String> {
    let mut complaints = Vec::new();
    for root in facts.runs.values().filter(|run| run.shard_index == ROOT_SHARD && run.shard_total.is_some()) {
        let is_shard = |run: &&Run| run.parent == Some(root.id) && run.job == root.job && run.shard_index >= 0;
        let shards: Vec<&Run> = facts.runs.values().filter(is_shard).collect();
        let shard_indexes: BTreeSet<i32> = shards.iter().map(|run| run.shard_index).collect();
        let total = root.shard_total.unwrap_or(0);
        if shard_indexes != (0..total).collect() || shards.len() != shard_indexes.len() {
            complaints
                .push(format!("I8 conservation: {} has {total} shards by its row and {shard_indexes:?}", root.id));
        }
        let verdict = fold_shards(shards.iter().map(|run| run.status));
        // If the root already had another verdict, a late result of a shard is in the shard's row only.
        let may_differ = facts.jobs.get(&root.job).is_some_and(|job| job.spec.delivery == Delivery::AtMostOnce);
        if root.status.is_terminal() && root.status != verdict && !may_differ {
            complaints.push(format!("I8 conservation: {} is {}, its shards make {verdict}", root.id, root.status));
        }
    }
    complaints
}
