//! What an edit does to the rows of a job that are not sent yet, so that no fire runs under a definition that is gone.
//!
//! Rows that the new definition also fires move to the new version; others are settled. A settled row whose instant is
//! still ahead is reopened when the definition fires it again, never inserted again: its key exists. The next fire is
//! the first one without a row.

use crate::id::RunId;
use crate::job::Job;
use crate::run::{Reason, RunStatus};
use crate::schedule::next_of_all;
use crate::time::Timestamp;

/// A row of the job's own schedule (cause 0) whose instant is ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FutureRow {
    /// The run.
    pub id: RunId,
    /// Its instant.
    pub fire_at: Timestamp,
    /// `pending` or `waiting` for an unsent one, `skipped` for one that an earlier edit settled.
    pub status: RunStatus,
}

/// What an edit does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EditPlan {
    /// Open rows that move to the new version.
    pub keep: Vec<RunId>,
    /// Open rows that end as skipped …
    pub settle: Vec<RunId>,
    /// … for this reason.
    pub reason: Reason,
    /// Settled rows that are open again under the new version.
    pub reopen: Vec<RunId>,
    /// The first fire without a row.
    pub next_fire_at: Option<Timestamp>,
}

/// Plans an edit. `rows` are the job's rows with cause 0 and an instant after `now`, in any order; `job` is the new
/// definition, `None` for a deleted one.
#[must_use]
pub fn plan_edit(job: Option<&Job>, anchor: Timestamp, now: Timestamp, rows: &[FutureRow]) -> EditPlan {
    let reason = match job {
        None => Reason::Deleted,
        Some(job) if !job.enabled => Reason::Paused,
        Some(_) => Reason::Changed,
    };
    let schedules = job.filter(|job| job.enabled).map(|job| job.schedules.as_slice()).unwrap_or_default();
    let before = |at: Timestamp| Timestamp::from_millis(at.as_millis().saturating_sub(1));
    let fires = |at: Timestamp| next_of_all(schedules, anchor, before(at)).is_some_and(|(next, _)| next == at);
    let mut plan = EditPlan { keep: Vec::new(), settle: Vec::new(), reason, reopen: Vec::new(), next_fire_at: None };
    for row in rows {
        match (row.status.is_terminal(), fires(row.fire_at)) {
            (false, true) => plan.keep.push(row.id),
            (false, false) => plan.settle.push(row.id),
            (true, true) => plan.reopen.push(row.id),
            (true, false) => {}
        }
    }
    let mut next = next_of_all(schedules, anchor, now);
    while let Some((at, _)) = next.filter(|(at, _)| rows.iter().any(|row| row.fire_at == *at)) {
        next = next_of_all(schedules, anchor, at);
    }
    plan.next_fire_at = next.map(|(at, _)| at);
    plan
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(schedule: &serde_json::Value, enabled: bool) -> Job {
        let spec = json!({"name": "a", "app": "b", "handler": "c", "schedule": schedule, "enabled": enabled});
        serde_json::from_value::<crate::JobSpec>(spec).unwrap().compile().unwrap()
    }

    fn row(id: i64, second: i64, status: RunStatus) -> FutureRow {
        FutureRow { id: RunId::new(id), fire_at: Timestamp::from_secs(second), status }
    }

    fn ids(runs: &[RunId]) -> Vec<i64> {
        runs.iter().map(|run| run.get()).collect()
    }

    const ROWS: fn() -> Vec<FutureRow> = || {
        vec![
            row(1, 101, RunStatus::Pending),
            row(2, 102, RunStatus::Pending),
            row(3, 103, RunStatus::Skipped),
            row(4, 104, RunStatus::Skipped),
        ]
    };

    #[test]
    fn rows_follow_the_new_definition() {
        let every_two = job(&json!({"every": "2s"}), true);
        let plan = plan_edit(Some(&every_two), Timestamp::EPOCH, Timestamp::from_secs(100), &ROWS());
        assert_eq!((ids(&plan.keep), ids(&plan.settle), ids(&plan.reopen)), (vec![2], vec![1], vec![4]));
        assert_eq!((plan.reason, plan.next_fire_at), (Reason::Changed, Some(Timestamp::from_secs(106))));
    }

    #[test]
    fn a_paused_or_deleted_job_keeps_nothing() {
        let paused = job(&json!({"every": "1s"}), false);
        for (job, reason) in [(Some(&paused), Reason::Paused), (None, Reason::Deleted)] {
            let plan = plan_edit(job, Timestamp::EPOCH, Timestamp::from_secs(100), &ROWS());
            assert_eq!((ids(&plan.settle), plan.reason, plan.next_fire_at), (vec![1, 2], reason, None));
        }
    }

    #[test]
    fn a_hole_between_rows_is_the_next_fire() {
        let every_second = job(&json!({"every": "1s"}), true);
        let rows = [row(1, 101, RunStatus::Pending), row(2, 103, RunStatus::Pending)];
        let plan = plan_edit(Some(&every_second), Timestamp::EPOCH, Timestamp::from_secs(100), &rows);
        assert_eq!(plan.next_fire_at, Some(Timestamp::from_secs(102)));
    }
}
