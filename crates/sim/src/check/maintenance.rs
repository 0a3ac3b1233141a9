//! Checks of maintenance windows: which of the fires inside may begin.

use rondel_core::maintenance::{FiresInside, MaintenanceWindow};

use super::facts::Facts;
use super::starts::{CLOCK_SLACK, describe_start};
use crate::truth::{Start, Truth};

/// I13: no planned fire inside a window begins before the window ends. If all windows skip their fires, such a
/// fire never begins.
pub(super) fn begun_in_window(facts: &Facts, truth: &Truth) -> Vec<String> {
    let may_hold = truth.windows.iter().any(|window| window.fires == FiresInside::Hold);
    let is_wrong = |start: &Start, window: &MaintenanceWindow| {
        let is_planned = facts.runs.get(&start.run).is_some_and(|run| run.cause == 0);
        let is_covered = facts.jobs.get(&start.job).is_some_and(|job| window.covers(job.namespace, job.app));
        let is_inside = is_planned && is_covered && window.has(start.fire_at);
        is_inside && (!may_hold || start.began_at + CLOCK_SLACK < window.ends_at)
    };
    let mut complaints = Vec::new();
    for window in &truth.windows {
        for start in truth.starts.iter().filter(|start| is_wrong(start, window)) {
            let (from, to) = (window.starts_at, window.ends_at);
            complaints.push(format!(
                "I13 maintenance: {} of {}, inside of {from} to {to}",
                describe_start(start),
                start.fire_at
            ));
        }
    }
    complaints
}
