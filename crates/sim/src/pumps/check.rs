//! The rules of pump jobs: what executors did with items, and when root runs began.

use std::collections::BTreeMap;
use std::time::Duration;

use rondel_core::run::ROOT_SHARD;
use rondel_core::{JobId, Reason, Run, RunStatus};

use super::truth::{Execution, ItemKey, LossCause, PumpTruth, Row};
use crate::check::Facts;
use crate::truth::{Start, Truth};
use crate::world::elapsed_ms;

/// How many complaints of one rule are listed.
const LISTED_MAX: usize = 5;
/// During a pause of this length, an executor may have been given up.
const LONG_STOP_MS: u64 = 2_000;
const PLANNED_TOLERANCE: Duration = Duration::from_millis(1);
/// The longest time between a server's check of the root runs and the beginning of a new root run, with a slow
/// database.
const RESTART_MAX: Duration = Duration::from_secs(2);

pub(super) fn check(facts: &Facts, truth: &Truth, pumps: &PumpTruth) -> Vec<String> {
    let complaints_by_rule = [
        wrong_owners(pumps),
        overlapping_executions(truth, pumps),
        executed_after_loss(truth, pumps),
        repeated_rows(pumps),
        rows_left_when_dry(facts, truth, pumps),
        unexpected_root_starts(facts),
    ];
    complaints_by_rule.into_iter().flat_map(|complaints| complaints.into_iter().take(LISTED_MAX)).collect()
}

fn describe_execution(execution: &Execution) -> String {
    let Execution { item_key, epoch, owner, executor, began_ms, .. } = execution;
    format!(
        "rows of {} at epoch {epoch} by run {} attempt {} on x{executor} at {began_ms} ms",
        item_key.1, owner.run, owner.attempt
    )
}

/// P1: rows of an item at an epoch are executed only by its owner at that epoch.
fn wrong_owners(pumps: &PumpTruth) -> Vec<String> {
    let is_wrong = |execution: &&Execution| {
        let tenure = pumps.tenures.get(&(execution.item_key.clone(), execution.epoch));
        tenure.is_none_or(|tenure| tenure.owner != execution.owner)
    };
    let wrong_executions = pumps.executions.iter().filter(is_wrong);
    wrong_executions
        .map(|execution| format!("P1 owner: {}, which was never dealt to it", describe_execution(execution)))
        .collect()
}

/// Whether the executor was paused for long between two instants.
fn was_paused(truth: &Truth, incarnation: i64, from_ms: u64, to_ms: u64) -> bool {
    let is_between = |(paused_incarnation, from, until): &(i64, u64, u64)| {
        *paused_incarnation == incarnation && until - from >= LONG_STOP_MS && *from <= to_ms && *until >= from_ms
    };
    truth.executor_pauses.iter().any(is_between)
}

/// P1: executions of one item under two epochs overlap only if the older owner had been fenced, or its executor was
/// paused and lost.
fn overlapping_executions(truth: &Truth, pumps: &PumpTruth) -> Vec<String> {
    let mut executions_by_item: BTreeMap<&ItemKey, Vec<&Execution>> = BTreeMap::new();
    for execution in &pumps.executions {
        executions_by_item.entry(&execution.item_key).or_default().push(execution);
    }
    let mut complaints = Vec::new();
    for executions in executions_by_item.values() {
        for (index, first) in executions.iter().enumerate() {
            let end_ms = first.ended_ms.unwrap_or(u64::MAX);
            for second in executions.iter().skip(index + 1).take_while(|second| second.began_ms < end_ms) {
                let older = if first.epoch <= second.epoch { first } else { second };
                let loss = pumps.tenures.get(&(older.item_key.clone(), older.epoch)).and_then(|tenure| tenure.loss);
                let is_allowed = match loss.map(|(_, cause)| cause) {
                    _ if first.epoch == second.epoch => {
                        first.owner == second.owner && first.incarnation == second.incarnation
                    }
                    Some(LossCause::Fenced) => true,
                    Some(LossCause::Freed) => was_paused(truth, older.incarnation, older.began_ms, second.began_ms),
                    Some(LossCause::Released) | None => false,
                };
                if !is_allowed {
                    complaints.push(format!(
                        "P1 overlap: {} beside {}, {loss:?}",
                        describe_execution(second),
                        describe_execution(first)
                    ));
                }
            }
        }
    }
    complaints
}

/// P1: no execution begins at an epoch after its owner has released the item. After the owner's attempt has ended, an
/// execution begins only if the owner's process was paused at that end.
fn executed_after_loss(truth: &Truth, pumps: &PumpTruth) -> Vec<String> {
    let mut complaints = Vec::new();
    for execution in &pumps.executions {
        let loss = pumps.tenures.get(&(execution.item_key.clone(), execution.epoch)).and_then(|tenure| tenure.loss);
        let Some((at_ms, cause)) = loss.filter(|(at_ms, _)| *at_ms < execution.began_ms) else { continue };
        let is_allowed = match cause {
            LossCause::Fenced => true,
            LossCause::Freed => {
                was_paused(truth, execution.incarnation, at_ms.saturating_sub(15_000), execution.began_ms)
            }
            LossCause::Released => false,
        };
        if !is_allowed {
            complaints.push(format!("P1 lost: {}, which was {cause:?} at {at_ms} ms", describe_execution(execution)));
        }
    }
    complaints
}

/// P5: a row that is done does not begin again at the same epoch, and a group never executes a row twice at the same
/// time.
fn repeated_rows(pumps: &PumpTruth) -> Vec<String> {
    let mut latest_executions: BTreeMap<(&ItemKey, i64, usize), &Execution> = BTreeMap::new();
    let mut complaints = Vec::new();
    for execution in &pumps.executions {
        for row_index in &execution.row_indexes {
            let Some(previous) =
                latest_executions.insert((&execution.item_key, execution.epoch, *row_index), execution)
            else {
                continue;
            };
            if previous.is_done || previous.ended_ms.is_none_or(|ended_ms| ended_ms > execution.began_ms) {
                complaints.push(format!("P5 row: {} again: {}", row_index, describe_execution(execution)));
            }
        }
    }
    complaints
}

/// P5: a root run that ended as dry has executed all rows that existed before its groups began, in the items that it had until its
/// end.
fn rows_left_when_dry(facts: &Facts, truth: &Truth, pumps: &PumpTruth) -> Vec<String> {
    let mut complaints = Vec::new();
    let is_dry = |root: &&Run| {
        root.cancel_reason == Some(Reason::Dry) && root.shard_index == ROOT_SHARD && !facts.has_clock_faults
    };
    for root in facts.runs.values().filter(is_dry) {
        let Some(ended_ms) = root.finished_at.map(elapsed_ms) else { continue };
        let is_of_root = |start: &&Start| facts.runs.get(&start.run).is_some_and(|run| run.parent == Some(root.id));
        let Some(began_ms) = truth.starts.iter().filter(is_of_root).map(|start| start.began_ms).min() else { continue };
        for name in pumps.item_names(root.job, root.job_version) {
            let is_left = |row: &&Row| {
                let was_there = row.arrives_ms < began_ms && row.done_ms.is_none_or(|done_ms| done_ms > ended_ms);
                was_there && !row.is_given_up()
            };
            let count = pumps.known_rows(&(root.job, name.clone())).iter().filter(is_left).count();
            if count > 0 {
                complaints.push(format!(
                    "P5 dry: root run {} ended at {ended_ms} ms, {count} rows of {name} are left",
                    root.id
                ));
            }
        }
    }
    complaints
}

/// P4: a root run begins at an instant of its schedule, by hand, with a new definition, or in place of an interrupted
/// one.
fn unexpected_root_starts(facts: &Facts) -> Vec<String> {
    let mut by_job: BTreeMap<JobId, Vec<&Run>> = BTreeMap::new();
    for run in facts.runs.values().filter(|run| run.shard_index == ROOT_SHARD) {
        by_job.entry(run.job).or_default().push(run);
    }
    let mut complaints = Vec::new();
    for (job, mut roots) in by_job {
        roots.sort_by_key(|run| run.fire_at);
        let Some(record) = facts.jobs.get(&job) else { continue };
        let Ok(compiled) = record.spec.compile() else { continue };
        for (index, root) in roots.iter().enumerate().filter(|(_, root)| root.cause == 0) {
            // A root run planned at the same moment, or later, may not have been known when this one began.
            let is_known = |earlier_root: &Run| earlier_root.id.created_at() + RESTART_MAX < root.id.created_at();
            let newest_known = roots[..index].iter().rposition(|earlier_root| is_known(earlier_root));
            let Some(previous_root) = roots[..index].last() else { continue };
            let may_follow =
                |earlier_root: &Run| was_interrupted(earlier_root) || root.job_version > earlier_root.job_version;
            let range = (root.fire_at - PLANNED_TOLERANCE, root.fire_at + PLANNED_TOLERANCE);
            let is_planned =
                compiled.timetable.fires(record.anchor, range.0, range.1).any(|fire| fire.at == root.fire_at);
            let is_follow_up =
                newest_known.is_none_or(|at| roots[at..index].iter().any(|earlier_root| may_follow(earlier_root)));
            let is_twice = roots[..index]
                .iter()
                .any(|earlier_root| earlier_root.cause == 0 && earlier_root.fire_at == root.fire_at);
            if is_twice || !(is_planned || is_follow_up) {
                let description = format!(
                    "root run {} of {} ({}, {:?}) after {} ({}, {} {:?})",
                    root.id,
                    record.spec.name,
                    root.fire_at,
                    root.trigger,
                    previous_root.id,
                    previous_root.fire_at,
                    previous_root.status,
                    previous_root.cancel_reason.or(previous_root.reason)
                );
                complaints.push(format!("P4 begins again: {description}"));
            }
        }
    }
    complaints
}

/// Whether another root run continues in place of this one.
fn was_interrupted(root: &Run) -> bool {
    match root.cancel_reason.or(root.reason) {
        Some(Reason::Paused | Reason::Changed | Reason::Misfire | Reason::ExecutorLost) => true,
        None => root.status != RunStatus::Succeeded,
        Some(_) => false,
    }
}
