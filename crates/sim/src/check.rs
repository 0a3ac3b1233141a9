//! The rules, which compare what really happened with the ledger. Each complaint begins with the name of the broken
//! rule.

mod facts;
mod fires;
mod limits;
mod maintenance;
mod results;
mod shadow;
mod starts;

use crate::truth::Truth;
pub(crate) use facts::Facts;

/// How many complaints of one rule are listed.
const LISTED_MAX: usize = 5;

/// Checks all rules, and returns the complaints.
pub(crate) fn check(facts: &Facts, truth: &Truth) -> Vec<String> {
    let complaints_by_rule = [
        fires::fires_without_one_row(facts, truth),
        fires::unscheduled_rows(facts, truth),
        fires::broken_delay_chains(facts, truth),
        fires::missing_children(facts),
        fires::wrong_shards(facts),
        starts::begun_early(truth),
        starts::begun_twice(truth),
        starts::repeated_at_most_once(facts, truth),
        starts::overlapping_starts(facts, truth),
        starts::fenced_starts(truth),
        starts::stale_tokens(facts, truth),
        starts::begun_though_skipped(facts, truth),
        starts::queued_too_long(facts, truth),
        starts::begun_when_off(facts, truth),
        starts::begun_on_wrong_executor(facts, truth),
        limits::over_limit(facts, truth),
        maintenance::begun_in_window(facts, truth),
        shadow::begun_in_shadow_mode(facts, truth),
        results::lost_results(facts, truth),
        results::false_successes(facts, truth),
        results::lost_requested_runs(facts, truth),
        results::runs_without_end(facts),
    ];
    complaints_by_rule.into_iter().flat_map(|complaints| complaints.into_iter().take(LISTED_MAX)).collect()
}

/// Checks the rules of runs that also apply to groups of pump jobs.
pub(crate) fn check_pumps(facts: &Facts, truth: &Truth) -> Vec<String> {
    let complaints_by_rule = [
        fires::fires_without_one_row(facts, truth),
        fires::wrong_shards(facts),
        starts::begun_early(truth),
        starts::begun_twice(truth),
        starts::overlapping_starts(facts, truth),
        starts::fenced_starts(truth),
        starts::stale_tokens(facts, truth),
        starts::begun_though_skipped(facts, truth),
        results::lost_results(facts, truth),
        results::runs_without_end(facts),
    ];
    complaints_by_rule.into_iter().flat_map(|complaints| complaints.into_iter().take(LISTED_MAX)).collect()
}
