//! Ten minutes without executors or without a server, for twenty jobs of each overlap and misfire policy. The ledger must
//! match the table in docs/API.md, and no run may begin after its queue time.

#![cfg(test)]

use rondel_sim::{Options, OutageReport, OutageScope, outage};

#[track_caller]
fn check(scope: OutageScope) -> OutageReport {
    let report = outage(scope, Options::default());
    assert!(report.violations.is_empty(), "{:#?}", report.violations.iter().take(20).collect::<Vec<_>>());
    assert!(report.run_count > 5_000, "a world in which nothing happens: {}", report.run_count);
    println!("{scope:?}: {:#?}", report.verdicts);
    report
}

#[test]
fn ten_minutes_without_executors_match_the_table() {
    let report = check(OutageScope::Executors);
    let fire_count = |verdict: &str| -> i64 {
        report.verdicts.iter().filter(|((.., fire_verdict), _)| fire_verdict == verdict).map(|(_, count)| count).sum()
    };
    assert!(
        fire_count("skipped: no_executor") > 0
            && fire_count("skipped: overlap") > 0
            && fire_count("skipped: covered") > 0
    );
}

#[test]
fn a_restart_of_the_server_during_the_outage_changes_nothing() {
    check(OutageScope::ExecutorsWithRestart);
}

#[test]
fn ten_minutes_without_a_server_end_in_the_misfire_policy() {
    check(OutageScope::Server);
}

#[test]
fn a_server_that_stops_loses_no_run_that_it_did_not_send() {
    let report = outage(OutageScope::StoppedServer, Options::default());
    assert!(report.violations.is_empty(), "{:#?}", report.violations);
}

/// A server that stops must mark the runs that it has not sent as never sent.
#[cfg(debug_assertions)]
#[test]
fn runs_left_as_perhaps_sent_are_noticed() {
    let mutant = Some(rondel_sim::Mutant::LeaveAsPerhapsSent);
    let report = outage(OutageScope::StoppedServer, Options { mutant, ..Options::default() });
    assert!(report.violations.iter().any(|violation| violation.starts_with("lost:")), "{:#?}", report.violations);
}

/// If the queue time counted from a run's turn, runs of ten minutes ago would still begin.
#[cfg(debug_assertions)]
#[test]
fn queue_time_that_counts_from_the_turn_is_noticed() {
    let mutant = Some(rondel_sim::Mutant::QueueTimeFromTurn);
    let report = outage(OutageScope::Executors, Options { mutant, ..Options::default() });
    let is_late = |violation: &String| violation.starts_with("I12 queue time");
    assert!(report.violations.iter().any(is_late), "{:#?}", report.violations);
}
