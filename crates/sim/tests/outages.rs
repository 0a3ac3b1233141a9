//! Ten minutes without executors or without a server, for twenty jobs of each overlap and misfire policy. The ledger must
//! match the table in docs/API.md, and no run may begin after its queue time.

#![cfg(test)]

use rondel_sim::{Away, Options, OutageReport, outage};

#[track_caller]
fn check(away: Away) -> OutageReport {
    let report = outage(away, Options::default());
    assert!(report.violations.is_empty(), "{:#?}", report.violations.iter().take(20).collect::<Vec<_>>());
    assert!(report.run_count > 5_000, "a world in which nothing happens: {}", report.run_count);
    println!("{away:?}: {:#?}", report.verdicts);
    report
}

#[test]
fn ten_minutes_without_executors_end_as_the_table_says() {
    let report = check(Away::Executors);
    let of = |verdict: &str| -> i64 {
        report.verdicts.iter().filter(|((.., found), _)| found == verdict).map(|(_, count)| count).sum()
    };
    assert!(of("skipped: no_executor") > 0 && of("skipped: overlap") > 0 && of("skipped: covered") > 0);
}

#[test]
fn a_server_that_starts_again_in_the_midst_of_it_changes_nothing() {
    check(Away::ExecutorsWithRestart);
}

#[test]
fn ten_minutes_without_a_server_end_in_the_misfire_policy() {
    check(Away::Server);
}

#[test]
fn a_server_that_is_told_to_stop_loses_nothing_that_it_did_not_send() {
    let report = outage(Away::StoppedServer, Options::default());
    assert!(report.violations.is_empty(), "{:#?}", report.violations);
}

/// A server that stops must mark the runs that it has not sent as never sent.
#[cfg(debug_assertions)]
#[test]
fn what_is_left_as_perhaps_sent_is_noticed() {
    let mutant = Some(rondel_sim::Mutant::LeaveAsPerhapsSent);
    let report = outage(Away::StoppedServer, Options { mutant, ..Options::default() });
    assert!(report.violations.iter().any(|violation| violation.starts_with("lost:")), "{:#?}", report.violations);
}

/// If the queue time counted from a run's turn, runs of ten minutes ago would still begin.
#[cfg(debug_assertions)]
#[test]
fn queue_time_that_counts_from_the_turn_is_noticed() {
    let mutant = Some(rondel_sim::Mutant::QueueTimeFromTurn);
    let report = outage(Away::Executors, Options { mutant, ..Options::default() });
    let is_late = |violation: &String| violation.starts_with("I12 queue time");
    assert!(report.violations.iter().any(is_late), "{:#?}", report.violations);
}
