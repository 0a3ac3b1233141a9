use std::time::{Duration, Instant};

use rondel_core::Timestamp;
use rondel_proto::v1::{PumpItem, PumpOrder, PumpProgress, PumpReport};
use tokio::time::Instant as Clock;

use super::*;

pub(super) const SECOND: Duration = Duration::from_secs(1);

pub(super) fn limits() -> Limits {
    Limits {
        threads: 2,
        fetch: 10,
        batch: 1,
        not_sleep: false,
        idle: Duration::from_millis(500),
        pause: Duration::ZERO,
        hand_over: SECOND * 40,
        row_retry_max: 0,
        row_backoff: SECOND,
        row_backoff_max: SECOND * 4,
    }
}

/// A group, and its current instant.
pub(super) struct GroupHarness {
    pub(super) group: Group<u32>,
    pub(super) now: Instant,
}

impl GroupHarness {
    pub(super) fn new(limits: Limits) -> Self {
        let now = Clock::now().into_std();
        Self { group: Group::new(RunKey::new(7, 1), 3, limits, now), now }
    }

    /// A group that holds these items at epoch 1.
    pub(super) fn holding(limits: Limits, names: &[&str]) -> Self {
        let mut harness = Self::new(limits);
        assert!(harness.order(1, names.iter().map(|name| item(name, 1))));
        harness
    }

    pub(super) fn order(&mut self, number: i64, items: impl IntoIterator<Item = PumpItem>) -> bool {
        self.group.order(order(number, items), self.now)
    }

    fn next(&mut self) -> Step<u32> {
        self.group.next(self.now)
    }

    #[track_caller]
    pub(super) fn asks(&mut self, names: &[&str]) {
        let Step::Fetch { items, limit } = self.next() else { panic!("no select") };
        assert_eq!((items.iter().map(|item| item.name.as_str()).collect::<Vec<_>>(), limit), (names.to_vec(), 10));
    }

    pub(super) fn rows(&mut self, rows: &[(&str, u32)]) -> FetchCounts {
        let row = |(item, key): &(&str, u32)| Row { item: (*item).to_owned(), key: key.to_string(), value: *key };
        self.group.accept_fetched(rows.iter().map(row).collect(), self.now, Timestamp::from_secs(50))
    }

    #[track_caller]
    pub(super) fn executes(&mut self, rows: &[u32]) -> u64 {
        match self.next() {
            Step::Execute(execution) => {
                assert_eq!(execution.rows, rows);
                execution.number
            }
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn waits(&mut self, length: Option<Duration>) {
        match self.next() {
            Step::Wait(until) => assert_eq!(until.map(|at| at - self.now), length),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn done(&mut self, number: u64) {
        assert_eq!(self.group.end_execution(number, ExecutionEnd::Done, self.now), []);
    }

    pub(super) fn failed(&mut self, number: u64) -> Vec<Option<Duration>> {
        let failures = self.group.end_execution(number, ExecutionEnd::Failed, self.now);
        failures.into_iter().map(|failure| failure.retry_after).collect()
    }

    fn report(&mut self) -> Option<PumpReport> {
        self.group.report(self.now)
    }

    pub(super) fn progress(&mut self, name: &str) -> PumpProgress {
        let report = self.group.full_report(self.now);
        report.items.into_iter().find(|item| item.name == name).unwrap()
    }
}

pub(super) fn item(name: &str, epoch: i64) -> PumpItem {
    PumpItem { name: name.to_owned(), epoch, ..PumpItem::default() }
}

fn released(name: &str, epoch: i64) -> PumpItem {
    PumpItem { release: true, ..item(name, epoch) }
}

pub(super) fn order(number: i64, items: impl IntoIterator<Item = PumpItem>) -> PumpOrder {
    let items = items.into_iter().collect();
    PumpOrder { run_id: 7, attempt: 1, term: 1, number, items, r#yield: false }
}

#[test]
fn the_last_worker_that_runs_dry_fetches() {
    let mut harness = GroupHarness::holding(limits(), &["a", "b"]);
    harness.asks(&["a", "b"]);
    harness.waits(None);
    let found = harness.rows(&[("a", 1), ("a", 2), ("b", 3)]);
    assert_eq!(found, FetchCounts { accepted: 3, ..FetchCounts::default() });
    let (first, second) = (harness.executes(&[1]), harness.executes(&[2]));
    harness.waits(None);
    harness.done(first);
    let third = harness.executes(&[3]);
    harness.done(third);
    harness.waits(None);
    harness.done(second);
    harness.asks(&["a", "b"]);
    assert_eq!(harness.group.total(), Counts { fetches: 2, rows: 3, done: 3, failed: 0 });
}

#[test]
fn with_not_sleep_a_dry_worker_fetches_and_rows_in_work_are_left_out() {
    let mut harness = GroupHarness::holding(Limits { not_sleep: true, ..limits() }, &["a"]);
    harness.asks(&["a"]);
    harness.rows(&[("a", 1)]);
    let first = harness.executes(&[1]);
    harness.asks(&["a"]);
    assert_eq!(harness.rows(&[("a", 1), ("a", 2)]), FetchCounts { accepted: 1, in_work: 1, ..FetchCounts::default() });
    let second = harness.executes(&[2]);
    harness.waits(None);
    harness.done(second);
    harness.asks(&["a"]);
    // The select may have read the row before it was done.
    harness.done(first);
    assert_eq!(harness.rows(&[("a", 1)]), FetchCounts { in_work: 1, ..FetchCounts::default() });
    harness.waits(Some(limits().idle));
    harness.now += limits().idle;
    harness.asks(&["a"]);
    assert_eq!(harness.rows(&[("a", 1)]).accepted, 1, "a later select has read it again");
}

#[test]
fn a_batch_has_rows_of_one_item() {
    let mut harness = GroupHarness::holding(Limits { batch: 3, ..limits() }, &["a", "b"]);
    harness.asks(&["a", "b"]);
    harness.rows(&[("a", 1), ("b", 2), ("a", 3), ("a", 4), ("a", 5)]);
    harness.executes(&[1, 3, 4]);
    harness.executes(&[2]);
}

#[test]
fn a_select_without_rows_is_followed_by_a_wait_and_one_with_rows_by_a_pause() {
    let mut harness = GroupHarness::holding(Limits { pause: SECOND * 2, ..limits() }, &["a"]);
    harness.asks(&["a"]);
    harness.rows(&[]);
    harness.waits(Some(limits().idle));
    harness.order(2, [item("a", 1), item("b", 1)]);
    harness.asks(&["a", "b"]);
    harness.rows(&[("b", 1)]);
    let number = harness.executes(&[1]);
    harness.done(number);
    harness.waits(Some(SECOND * 2));
}

#[test]
fn rows_that_were_not_requested_are_dropped() {
    let mut harness = GroupHarness::holding(limits(), &["a", "b"]);
    harness.asks(&["a", "b"]);
    harness.order(2, [item("a", 1), item("c", 1)]);
    let mut rows = vec![("b", 1), ("c", 2), ("x", 3)];
    rows.extend((0..9).map(|key| ("a", key)));
    let found = harness.rows(&rows);
    assert_eq!(found, FetchCounts { accepted: 7, surplus: 2, foreign: 3, ..FetchCounts::default() });
}

#[test]
fn a_full_select_makes_no_item_dry() {
    let mut harness = GroupHarness::holding(limits(), &["a", "b"]);
    harness.asks(&["a", "b"]);
    let full: Vec<_> = (0..10).map(|key| ("a", key)).collect();
    harness.rows(&full);
    assert!(!harness.progress("b").dry, "a full select may have left rows of it out");
}

#[test]
fn the_last_rows_make_an_item_dry_once_they_are_done() {
    let mut harness = GroupHarness::holding(limits(), &["a", "b"]);
    harness.asks(&["a", "b"]);
    harness.rows(&[("a", 1)]);
    assert_eq!((harness.progress("a").dry, harness.progress("b").dry), (false, true));
    let number = harness.executes(&[1]);
    assert_eq!(harness.progress("a").oldest_at_ms, 50_000);
    harness.done(number);
    assert_eq!((harness.progress("a").dry, harness.progress("a").oldest_at_ms), (false, 0));
    harness.asks(&["a", "b"]);
    harness.rows(&[]);
    assert!(harness.progress("a").dry && harness.group.is_dry());
    harness.now += SECOND;
    harness.asks(&["a", "b"]);
    harness.group.end_failed_fetch(harness.now);
    assert!(!harness.group.is_dry(), "nothing is known after a select that failed");
}

#[test]
fn a_released_item_is_worked_off_first_and_reported_until_an_order_leaves_it_out() {
    let mut harness = GroupHarness::holding(limits(), &["a", "b"]);
    harness.asks(&["a", "b"]);
    harness.order(2, [item("a", 1), released("b", 1)]);
    harness.rows(&[("b", 1), ("b", 2), ("b", 3)]);
    let (first, second) = (harness.executes(&[1]), harness.executes(&[2]));
    harness.done(first);
    harness.done(second);
    let third = harness.executes(&[3]);
    assert!(!harness.progress("b").released);
    harness.done(third);
    let report = harness.report().unwrap();
    assert!(report.items[1].released && report.items[1].done == 3 && report.number == 2, "at once: {report:?}");
    assert_eq!(harness.report(), None);
    harness.asks(&["a"]);
    harness.rows(&[]);
    harness.now += SECOND * 4;
    assert_eq!(harness.report(), None, "one more select that found nothing is no news");
    harness.now += SECOND;
    assert!(harness.report().unwrap().items[1].released);
    harness.order(3, [item("a", 1), item("b", 1)]);
    assert!(harness.progress("b").released, "an epoch that was released does not come back");
    harness.order(4, [item("a", 1)]);
    assert_eq!(harness.group.full_report(harness.now).items.len(), 1);
    harness.order(5, [item("a", 1), item("b", 1)]);
    assert_eq!(harness.group.full_report(harness.now).items.len(), 1);
    harness.order(6, [item("a", 1), item("b", 2)]);
    harness.asks(&["a", "b"]);
}

#[test]
fn rows_that_are_not_done_in_time_are_aborted() {
    let mut harness = GroupHarness::holding(Limits { row_retry_max: 3, ..limits() }, &["a", "b"]);
    harness.asks(&["a", "b"]);
    harness.rows(&[("a", 1), ("a", 2), ("a", 3), ("b", 4)]);
    let (first, second) = (harness.executes(&[1]), harness.executes(&[2]));
    assert_eq!(harness.failed(first), [Some(SECOND)]);
    harness.executes(&[3]);
    harness.order(2, [released("a", 1), item("b", 1)]);
    harness.waits(Some(SECOND * 36));
    harness.now += SECOND * 36;
    let mut aborted = Vec::new();
    while let Step::Abort(Task::Execution(number)) = harness.next() {
        aborted.push(number);
    }
    assert_eq!((aborted.len(), aborted[0]), (2, second));
    assert!(!harness.progress("a").released, "they are still there");
    for number in aborted {
        harness.group.end_execution(number, ExecutionEnd::Aborted, harness.now);
    }
    let item = harness.progress("a");
    assert_eq!((item.rows, item.done, item.failed, item.released), (3, 0, 3, true));
    harness.executes(&[4]);
}

#[test]
fn a_select_that_hangs_is_aborted_with_the_item_that_is_asked_back() {
    let mut harness = GroupHarness::holding(limits(), &["a"]);
    harness.asks(&["a"]);
    harness.order(2, [released("a", 1)]);
    harness.now += SECOND * 36;
    assert!(matches!(harness.next(), Step::Abort(Task::Fetch)));
    assert!(!harness.progress("a").released);
    harness.group.end_aborted_fetch();
    assert!(harness.progress("a").released);
}

#[test]
fn an_item_that_an_order_leaves_out_is_dropped() {
    let mut harness = GroupHarness::holding(limits(), &["a"]);
    harness.asks(&["a"]);
    harness.rows(&[("a", 1), ("a", 2), ("a", 3)]);
    let (first, second) = (harness.executes(&[1]), harness.executes(&[2]));
    harness.order(2, []);
    for number in [first, second] {
        assert!(matches!(harness.next(), Step::Abort(Task::Execution(aborted)) if aborted == number));
        harness.group.end_execution(number, ExecutionEnd::Aborted, harness.now);
    }
    harness.waits(None);
    assert_eq!(harness.group.total(), Counts { fetches: 1, rows: 3, ..Counts::default() });
    harness.order(3, [item("a", 1)]);
    harness.waits(None);
}

#[test]
fn a_higher_epoch_begins_anew_from_the_checkpoint_of_the_order() {
    let mut harness = GroupHarness::holding(limits(), &["a"]);
    harness.asks(&["a"]);
    harness.rows(&[("a", 1), ("a", 2)]);
    let first = harness.executes(&[1]);
    harness.group.checkpoint("a", 1, "one").unwrap();
    harness.order(2, [PumpItem { checkpoint: "seven".to_owned(), params: "7".to_owned(), ..item("a", 2) }]);
    assert!(matches!(harness.next(), Step::Abort(Task::Execution(_))));
    let refusal = harness.group.checkpoint("a", 1, "two");
    assert_eq!(refusal, Err(CheckpointError::NotHeld { item: "a".to_owned() }));
    harness.group.end_execution(first, ExecutionEnd::Done, harness.now);
    let item = harness.progress("a");
    assert_eq!((item.epoch, item.rows, item.done, item.checkpoint.as_str()), (2, 0, 0, "seven"));
    let Step::Fetch { items, .. } = harness.next() else { panic!("a select") };
    assert_eq!((items[0].epoch, items[0].checkpoint.as_str(), items[0].raw_params()), (2, "seven", "7"));
    assert_eq!(harness.group.checkpoint("a", 2, &"x".repeat(4_097)), Err(CheckpointError::TooLong { bytes: 4_097 }));
}

#[test]
fn only_a_higher_order_is_taken_and_one_that_comes_again_is_answered() {
    let mut harness = GroupHarness::holding(limits(), &["a"]);
    harness.group.full_report(harness.now);
    harness.now += SECOND;
    assert_eq!(harness.report(), None);
    assert!(!harness.order(0, []));
    assert_eq!(harness.report().map(|report| report.number), Some(1), "the answer has the number to go on from");
    harness.now += SECOND;
    assert!(!harness.order(1, []));
    assert_eq!(harness.report().map(|report| (report.number, report.items.len())), Some((1, 1)));
    assert!(harness.group.order(PumpOrder { term: 2, number: 0, ..order(0, []) }, harness.now));
    assert!(!harness.order(9, [item("b", 1)]), "of an older term");
}

#[test]
fn selects_that_fail_are_repeated_later_and_later() {
    let mut harness = GroupHarness::holding(limits(), &["a"]);
    for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
        harness.asks(&["a"]);
        assert_eq!(harness.group.end_failed_fetch(harness.now), SECOND * seconds);
        harness.waits(Some(SECOND * seconds));
        harness.now += SECOND * seconds;
    }
    harness.asks(&["a"]);
    harness.rows(&[]);
    harness.now += SECOND;
    harness.asks(&["a"]);
    assert_eq!(harness.group.end_failed_fetch(harness.now), SECOND);
}

#[test]
fn a_group_that_yields_executes_its_rows_and_ends() {
    let mut harness = GroupHarness::holding(limits(), &["a"]);
    harness.asks(&["a"]);
    harness.rows(&[("a", 1), ("a", 2), ("a", 3)]);
    let first = harness.executes(&[1]);
    harness.group.order(PumpOrder { r#yield: true, ..order(2, [item("a", 1), item("b", 1)]) }, harness.now);
    let second = harness.executes(&[2]);
    harness.done(first);
    harness.done(second);
    let third = harness.executes(&[3]);
    harness.done(third);
    assert!(matches!(harness.next(), Step::Ended));
    let all = harness.group.full_report(harness.now).items;
    assert!(all.len() == 2 && all.iter().all(|item| item.released));
}

#[test]
fn a_group_that_stops_drops_waiting_rows_and_finishes_executions() {
    let mut harness = GroupHarness::holding(limits(), &["a"]);
    harness.asks(&["a"]);
    harness.rows(&[("a", 1), ("a", 2), ("a", 3)]);
    let (first, second) = (harness.executes(&[1]), harness.executes(&[2]));
    harness.group.stop(None);
    harness.waits(None);
    harness.done(first);
    harness.waits(None);
    harness.group.stop(Some(harness.now + SECOND));
    harness.waits(Some(SECOND));
    harness.now += SECOND;
    assert!(matches!(harness.next(), Step::Abort(Task::Execution(number)) if number == second));
    harness.group.end_execution(second, ExecutionEnd::Aborted, harness.now);
    assert!(matches!(harness.next(), Step::Ended));
    assert_eq!(harness.group.total(), Counts { fetches: 1, rows: 3, done: 1, failed: 1 });
}

#[test]
fn a_group_that_stops_aborts_executions_in_time_once_the_server_requests_it() {
    let mut harness = GroupHarness::holding(limits(), &["a"]);
    harness.asks(&["a"]);
    harness.rows(&[("a", 1)]);
    let number = harness.executes(&[1]);
    harness.group.stop(None);
    harness.order(2, [item("a", 1)]);
    harness.waits(None);
    harness.order(3, [released("a", 1)]);
    harness.waits(Some(SECOND * 36));
    harness.now += SECOND * 36;
    assert!(matches!(harness.next(), Step::Abort(Task::Execution(aborted)) if aborted == number));
    harness.order(4, [released("a", 1)]);
    harness.waits(None);
}

#[test]
fn changes_are_reported_once_a_second_and_each_has_a_higher_sequence() {
    let mut harness = GroupHarness::new(limits());
    assert_eq!(harness.report(), None);
    harness.order(1, [item("a", 1)]);
    let first = harness.report().unwrap();
    assert_eq!((first.run_id, first.attempt, first.job_id, first.term, first.number), (7, 1, 3, 1, 1));
    assert_eq!(first.items[0].sequence, 1);
    harness.asks(&["a"]);
    harness.rows(&[("a", 1)]);
    assert_eq!((harness.report(), harness.group.report_at()), (None, Some(harness.now + SECOND)));
    harness.now += SECOND;
    let second = harness.report().unwrap();
    assert_eq!((second.items[0].sequence, second.items[0].rows, second.items[0].fetches), (2, 1, 1));
    let number = harness.executes(&[1]);
    harness.done(number);
    harness.now += SECOND;
    let third = harness.report().unwrap();
    assert_eq!((third.items[0].sequence, third.items[0].done, third.items[0].per_minute), (3, 1, 1));
    harness.now += SECOND * 100;
    let fourth = harness.report().unwrap();
    assert_eq!((fourth.items[0].sequence, fourth.items[0].per_minute), (4, 0), "the rate falls without an event");
    assert_eq!(harness.group.report_at(), None);
}

#[test]
fn a_row_of_an_item_that_is_asked_back_is_not_tried_again() {
    let mut harness = GroupHarness::holding(Limits { row_retry_max: 3, ..limits() }, &["a"]);
    harness.asks(&["a"]);
    harness.rows(&[("a", 1), ("a", 2)]);
    let (first, second) = (harness.executes(&[1]), harness.executes(&[2]));
    assert_eq!(harness.failed(first), [Some(SECOND)]);
    harness.order(2, [released("a", 1)]);
    assert_eq!(harness.failed(second), [None]);
    assert!(harness.progress("a").released);
}

#[test]
fn a_released_item_without_rows_is_reported_again_too() {
    let mut harness = GroupHarness::holding(limits(), &["a"]);
    harness.order(2, [released("a", 1)]);
    assert!(harness.report().unwrap().items[0].released);
    for _ in 0..3 {
        harness.now += SECOND * 4;
        assert_eq!(harness.report(), None);
        harness.now += SECOND;
        assert!(harness.report().unwrap().items[0].released);
    }
}

#[test]
fn a_group_that_stops_aborts_its_select() {
    let mut harness = GroupHarness::holding(limits(), &["a"]);
    harness.asks(&["a"]);
    harness.group.stop(None);
    assert!(matches!(harness.next(), Step::Abort(Task::Fetch)));
    harness.waits(None);
    assert_eq!(harness.rows(&[("a", 1)]).accepted, 0, "it may end by itself all the same");
    assert!(matches!(harness.next(), Step::Ended));
}
