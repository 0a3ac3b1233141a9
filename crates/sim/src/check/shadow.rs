//! Checks of shadow mode: none of its runs is sent.

use super::facts::Facts;
use super::starts::describe_start;
use crate::truth::{Start, Truth};

/// I14: no attempt of a run in shadow mode begins.
pub(super) fn begun_in_shadow_mode(facts: &Facts, truth: &Truth) -> Vec<String> {
    let is_shadow = |start: &&Start| {
        let job = facts.jobs.get(&start.job).and_then(|job| job.spec.compile().ok());
        let trigger = facts.runs.get(&start.run).map(|run| run.trigger);
        job.zip(trigger).is_some_and(|(job, trigger)| job.mode.is_shadow_run(trigger, start.fire_at))
    };
    let describe = |start: &Start| format!("I14 shadow: {} of {} began", describe_start(start), start.fire_at);
    truth.starts.iter().filter(is_shadow).map(describe).collect()
}
