//! What follows from each end of an attempt, and the verdict of several shards.

use super::*;

const POLICY: NextStepPolicy = NextStepPolicy {
    retry_max: 2,
    backoff: Duration::from_secs(10),
    backoff_max: Duration::from_secs(15),
    at_least_once: true,
    has_fixed_delay: false,
    awaits_children: false,
    is_pump: false,
};
const NOW: Timestamp = Timestamp::from_secs(1000);
const FIRST: AttemptFacts = AttemptFacts {
    attempt: 1,
    lost_count: 0,
    unreceived_count: 0,
    is_marked: false,
    may_have_begun: false,
    cancel_request_reason: None,
    is_unfinished: false,
    is_unexpanded: false,
};
const FAILED: Outcome = Outcome::Failed { retryable: true };

#[track_caller]
fn check_after(policy: NextStepPolicy, ended: AttemptFacts, outcome: Outcome, expected: NextStep) {
    assert_eq!(decide_next(policy, ended, outcome, NOW, 0.5), expected);
}

fn verdict(status: RunStatus, reason: Option<Reason>) -> NextStep {
    NextStep::Verdict { status, reason }
}

fn again_in(seconds: u64, reason: Reason, lost_count: i32) -> NextStep {
    NextStep::Retry { due_at: NOW + Duration::from_secs(seconds), reason, lost_count }
}

#[test]
fn retries_double_their_wait_up_to_the_cap_and_end() {
    check_after(POLICY, FIRST, FAILED, again_in(10, Reason::Retry, 0));
    check_after(POLICY, AttemptFacts { attempt: 2, ..FIRST }, FAILED, again_in(15, Reason::Retry, 0));
    check_after(POLICY, AttemptFacts { attempt: 3, ..FIRST }, FAILED, verdict(RunStatus::Failed, None));
    check_after(POLICY, FIRST, Outcome::TimedOut, again_in(10, Reason::Retry, 0));
    check_after(POLICY, FIRST, Outcome::Failed { retryable: false }, verdict(RunStatus::Failed, None));
}

#[test]
fn a_cancelled_run_is_not_tried_again() {
    let asked = AttemptFacts { cancel_request_reason: Some(Reason::Requested), ..FIRST };
    check_after(POLICY, asked, FAILED, verdict(RunStatus::Failed, None));
    let cancelled = verdict(RunStatus::Cancelled, Some(Reason::Requested));
    check_after(POLICY, asked, Outcome::Lost(Reason::NotReceived), cancelled);
    check_after(POLICY, asked, Outcome::Cancelled, cancelled);
    check_after(POLICY, FIRST, Outcome::Cancelled, cancelled);
    let covered = AttemptFacts { cancel_request_reason: Some(CancelRequest::LATER_RUN.reason), ..FIRST };
    check_after(POLICY, covered, Outcome::Cancelled, verdict(RunStatus::Cancelled, Some(Reason::Covered)));
}

#[test]
fn a_cancelled_run_whose_executor_is_lost_has_a_verdict_that_a_late_result_replaces() {
    let asked = AttemptFacts { cancel_request_reason: Some(Reason::Requested), ..FIRST };
    let provisional = verdict(RunStatus::Cancelled, Some(Reason::ExecutorLost));
    check_after(POLICY, asked, Outcome::Lost(Reason::ExecutorLost), provisional);
    check_after(POLICY, asked, Outcome::Unreported, provisional);
    assert!(is_provisional(RunStatus::Cancelled, Some(Reason::ExecutorLost)));
    assert!(is_provisional(RunStatus::Failed, Some(Reason::ExecutorLost)));
    for reason in [None, Some(Reason::NotReceived), Some(Reason::Requested), Some(Reason::Covered)] {
        assert!(!is_provisional(RunStatus::Cancelled, reason), "{reason:?}");
    }
}

#[test]
fn lost_attempts_are_counted_apart_and_end() {
    let lost = Outcome::Lost(Reason::ExecutorLost);
    check_after(POLICY, FIRST, lost, again_in(0, Reason::ExecutorLost, 1));
    let after_three = AttemptFacts { attempt: 4, lost_count: 3, ..FIRST };
    check_after(POLICY, after_three, lost, verdict(RunStatus::Failed, Some(Reason::ExecutorLost)));
    // A run that no executor received does not count as lost.
    let unreceived = Outcome::Lost(Reason::NotReceived);
    check_after(POLICY, after_three, unreceived, again_in(0, Reason::NotReceived, 3));
    check_after(
        POLICY,
        AttemptFacts { attempt: 1_000, ..FIRST },
        unreceived,
        verdict(RunStatus::Failed, Some(Reason::NotReceived)),
    );
    // Three attempts were lost with their executors, so the fourth is the first failure of the handler.
    check_after(POLICY, after_three, FAILED, again_in(10, Reason::Retry, 3));
    let unreceived_twice = AttemptFacts { attempt: 3, unreceived_count: 2, ..FIRST };
    check_after(POLICY, unreceived_twice, FAILED, again_in(10, Reason::Retry, 0));
}

#[test]
fn a_run_that_its_executor_stopped_in_silence_is_sent_again_without_a_retry() {
    let none = NextStepPolicy { retry_max: 0, ..POLICY };
    let begun = Outcome::Silenced { has_begun: true };
    check_after(none, FIRST, begun, again_in(0, Reason::ExecutorLost, 1));
    check_after(none, AttemptFacts { attempt: 2, lost_count: 1, ..FIRST }, FAILED, verdict(RunStatus::Failed, None));
    let after_three = AttemptFacts { attempt: 4, lost_count: 3, ..FIRST };
    check_after(none, after_three, begun, verdict(RunStatus::Failed, Some(Reason::ExecutorLost)));
    let asked = AttemptFacts { cancel_request_reason: Some(Reason::Requested), ..FIRST };
    check_after(none, asked, begun, verdict(RunStatus::Cancelled, Some(Reason::Requested)));

    let at_most_once = NextStepPolicy { at_least_once: false, ..none };
    let marked = AttemptFacts { is_marked: true, ..FIRST };
    check_after(at_most_once, marked, begun, verdict(RunStatus::Failed, None));
    let waiting = Outcome::Silenced { has_begun: false };
    check_after(at_most_once, marked, waiting, again_in(0, Reason::NotReceived, 0));
    check_after(none, after_three, waiting, again_in(0, Reason::NotReceived, 3));
}

#[test]
fn a_run_of_which_an_attempt_began_is_not_skipped() {
    let begun = AttemptFacts { attempt: 2, may_have_begun: true, ..FIRST };
    for at_least_once in [true, false] {
        let policy = NextStepPolicy { at_least_once, ..POLICY };
        for reason in [Reason::NoExecutor, Reason::Overlap, Reason::Expired, Reason::Misfire, Reason::Stopped] {
            let skipped = Outcome::Skipped(reason);
            check_after(policy, begun, skipped, verdict(RunStatus::Failed, Some(reason)));
            check_after(
                policy,
                AttemptFacts { attempt: 2, ..FIRST },
                skipped,
                verdict(RunStatus::Skipped, Some(reason)),
            );
        }
    }
    let by_handler = Outcome::Skipped(Reason::Handler);
    check_after(POLICY, begun, by_handler, verdict(RunStatus::Skipped, Some(Reason::Handler)));
}

#[test]
fn a_marked_at_most_once_run_that_was_lost_is_unknown() {
    let policy = NextStepPolicy { at_least_once: false, ..POLICY };
    let lost = Outcome::Lost(Reason::ExecutorLost);
    let marked = AttemptFacts { is_marked: true, ..FIRST };
    check_after(policy, marked, lost, verdict(RunStatus::Unknown, Some(Reason::ExecutorLost)));
    check_after(policy, FIRST, lost, again_in(0, Reason::ExecutorLost, 1));
}

#[test]
fn a_run_past_its_timeout_whose_end_is_not_reported_is_unknown_and_not_sent_again() {
    let policy = NextStepPolicy { at_least_once: false, retry_max: 9, ..POLICY };
    check_after(policy, FIRST, Outcome::Unreported, verdict(RunStatus::Unknown, None));
    let asked = AttemptFacts { cancel_request_reason: Some(Reason::Requested), ..FIRST };
    check_after(policy, asked, Outcome::Unreported, verdict(RunStatus::Cancelled, Some(Reason::ExecutorLost)));
}

#[test]
fn the_worst_shard_gives_the_verdict() {
    use RunStatus::{Failed, Skipped, Succeeded, TimedOut};
    for (shards, expected) in [
        (vec![Succeeded, Succeeded], Succeeded),
        (vec![Succeeded, Failed, TimedOut], Failed),
        (vec![Succeeded, Skipped], Skipped),
        (vec![], Skipped),
    ] {
        assert_eq!(fold_shards(shards), expected);
    }
}

#[test]
fn a_lost_attempt_is_no_failure_and_each_failure_counts() {
    // Both attempts so far were lost: the next failure is the first one.
    let all_lost = AttemptFacts { attempt: 2, lost_count: 2, ..FIRST };
    check_after(POLICY, all_lost, FAILED, again_in(10, Reason::Retry, 2));
    let none = NextStepPolicy { retry_max: 0, ..POLICY };
    check_after(none, all_lost, FAILED, verdict(RunStatus::Failed, None));
    let lost = Outcome::Lost(Reason::ExecutorLost);
    check_after(
        POLICY,
        AttemptFacts { attempt: 3, lost_count: 2, ..FIRST },
        lost,
        again_in(0, Reason::ExecutorLost, 3),
    );
    let unreceived = Outcome::Lost(Reason::NotReceived);
    check_after(POLICY, AttemptFacts { attempt: 999, ..FIRST }, unreceived, again_in(0, Reason::NotReceived, 0));
}

#[test]
fn a_group_of_a_pump_goes_on_until_it_is_asked_to_end() {
    let pump = NextStepPolicy { retry_max: 0, is_pump: true, ..POLICY };
    let many = AttemptFacts { attempt: 5_000, lost_count: 4_000, ..FIRST };
    check_after(pump, many, Outcome::Yielded, again_in(0, Reason::Moved, 4_001));
    check_after(pump, many, Outcome::Lost(Reason::ExecutorLost), again_in(0, Reason::ExecutorLost, 4_001));
    check_after(pump, many, Outcome::Lost(Reason::NotReceived), again_in(0, Reason::NotReceived, 4_000));
    check_after(pump, many, Outcome::Failed { retryable: false }, again_in(15, Reason::Retry, 4_000));
    for reason in [Reason::WindowOver, Reason::Dry, Reason::Paused, Reason::Changed] {
        let asked = AttemptFacts { cancel_request_reason: Some(reason), ..many };
        for outcome in [Outcome::Cancelled, Outcome::Yielded] {
            check_after(pump, asked, outcome, verdict(RunStatus::Succeeded, Some(reason)));
        }
        check_after(pump, asked, FAILED, verdict(RunStatus::Failed, None));
    }
    let by_hand = AttemptFacts { cancel_request_reason: Some(Reason::Requested), ..many };
    for outcome in [Outcome::Cancelled, Outcome::Yielded] {
        check_after(pump, by_hand, outcome, verdict(RunStatus::Cancelled, Some(Reason::Requested)));
    }
}

#[test]
fn a_group_that_leaves_failed_rows_at_the_end_of_a_window_has_failed() {
    let pump = NextStepPolicy { is_pump: true, ..POLICY };
    for (asked, status) in [
        (Reason::WindowOver, RunStatus::Failed),
        (Reason::Dry, RunStatus::Failed),
        (Reason::Paused, RunStatus::Succeeded),
        (Reason::Changed, RunStatus::Succeeded),
        (Reason::Requested, RunStatus::Cancelled),
    ] {
        let ended = AttemptFacts { cancel_request_reason: Some(asked), is_unfinished: true, ..FIRST };
        for outcome in [Outcome::Cancelled, Outcome::Yielded] {
            check_after(pump, ended, outcome, verdict(status, Some(asked)));
        }
    }
    check_after(pump, AttemptFacts { is_unfinished: true, ..FIRST }, Outcome::Yielded, again_in(0, Reason::Moved, 1));
}

#[test]
fn a_group_that_waits_for_its_next_attempt_as_its_pump_is_paused_has_not_failed() {
    let pump = NextStepPolicy { is_pump: true, ..POLICY };
    let later = AttemptFacts { attempt: 3, may_have_begun: true, ..FIRST };
    let (paused, deleted) = (Reason::Paused, Reason::Deleted);
    check_after(pump, later, Outcome::Skipped(paused), verdict(RunStatus::Succeeded, Some(paused)));
    check_after(pump, later, Outcome::Skipped(deleted), verdict(RunStatus::Failed, Some(deleted)));
    check_after(pump, FIRST, Outcome::Skipped(paused), verdict(RunStatus::Skipped, Some(paused)));
    check_after(POLICY, later, Outcome::Skipped(paused), verdict(RunStatus::Failed, Some(paused)));
}

#[test]
fn a_pump_that_ends_before_any_executor_took_it_has_not_succeeded() {
    let pump = NextStepPolicy { is_pump: true, ..POLICY };
    for (asked, status) in [
        (Reason::WindowOver, RunStatus::Skipped),
        (Reason::Paused, RunStatus::Skipped),
        (Reason::Changed, RunStatus::Skipped),
        (Reason::Requested, RunStatus::Cancelled),
    ] {
        let root = AttemptFacts { cancel_request_reason: Some(asked), is_unexpanded: true, ..FIRST };
        check_after(pump, root, Outcome::Cancelled, verdict(status, Some(asked)));
    }
}

#[test]
fn jitter_spreads_a_retry_by_a_tenth() {
    let wait = |jitter| match decide_next(POLICY, FIRST, FAILED, NOW, jitter) {
        NextStep::Retry { due_at, .. } => due_at.since(NOW).as_millis(),
        NextStep::Verdict { .. } => 0,
    };
    assert_eq!([-1.0, 0.0, 0.5, 1.0, 2.0].map(wait), [9_000, 9_000, 10_000, 11_000, 11_000]);
    let endless = NextStepPolicy { backoff: Duration::MAX, backoff_max: Duration::MAX, ..POLICY };
    check_after(endless, FIRST, FAILED, again_in(u64::MAX, Reason::Retry, 0));
}

#[test]
fn each_verdict_of_a_shard_outweighs_the_milder_ones() {
    use RunStatus::{Cancelled, Failed, Skipped, Succeeded, TimedOut, Unknown};
    let from_mild_to_bad = [Succeeded, Skipped, Cancelled, Unknown, TimedOut, Failed];
    for pair in from_mild_to_bad.windows(2) {
        for shards in [[pair[0], pair[1]], [pair[1], pair[0]]] {
            assert_eq!(fold_shards(shards), pair[1]);
        }
    }
}
