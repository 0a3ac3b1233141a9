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
pub(super) struct Bench {
    pub(super) group: Group<u32>,
    pub(super) now: Instant,
}

impl Bench {
    pub(super) fn new(limits: Limits) -> Self {
        let now = Clock::now().into_std();
        Self { group: Group::new(RunKey::new(7, 1), 3, limits, now), now }
    }

    /// A group that holds these items at epoch 1.
    pub(super) fn holding(limits: Limits, names: &[&str]) -> Self {
        let mut bench = Self::new(limits);
        assert!(bench.order(1, names.iter().map(|name| item(name, 1))));
        bench
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

    pub(super) fn rows(&mut self, rows: &[(&str, u32)]) -> Fetched {
        let row = |(item, key): &(&str, u32)| Row { item: (*item).to_owned(), key: key.to_string(), value: *key };
        self.group.fetched(rows.iter().map(row).collect(), self.now, Timestamp::from_secs(50))
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
        assert_eq!(self.group.executed(number, ExecutionEnd::Done, self.now), []);
    }

    pub(super) fn failed(&mut self, number: u64) -> Vec<Option<Duration>> {
        let failures = self.group.executed(number, ExecutionEnd::Failed, self.now);
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
    let mut bench = Bench::holding(limits(), &["a", "b"]);
    bench.asks(&["a", "b"]);
    bench.waits(None);
    let found = bench.rows(&[("a", 1), ("a", 2), ("b", 3)]);
    assert_eq!(found, Fetched { accepted: 3, ..Fetched::default() });
    let (first, second) = (bench.executes(&[1]), bench.executes(&[2]));
    bench.waits(None);
    bench.done(first);
    let third = bench.executes(&[3]);
    bench.done(third);
    bench.waits(None);
    bench.done(second);
    bench.asks(&["a", "b"]);
    assert_eq!(bench.group.total(), Counts { fetches: 2, rows: 3, done: 3, failed: 0 });
}

#[test]
fn whoever_runs_dry_fetches_where_it_is_so_set_and_rows_in_work_are_left_out() {
    let mut bench = Bench::holding(Limits { not_sleep: true, ..limits() }, &["a"]);
    bench.asks(&["a"]);
    bench.rows(&[("a", 1)]);
    let first = bench.executes(&[1]);
    bench.asks(&["a"]);
    assert_eq!(bench.rows(&[("a", 1), ("a", 2)]), Fetched { accepted: 1, in_work: 1, ..Fetched::default() });
    let second = bench.executes(&[2]);
    bench.waits(None);
    bench.done(second);
    bench.asks(&["a"]);
    // The select may have read the row before it was done.
    bench.done(first);
    assert_eq!(bench.rows(&[("a", 1)]), Fetched { in_work: 1, ..Fetched::default() });
    bench.waits(Some(limits().idle));
    bench.now += limits().idle;
    bench.asks(&["a"]);
    assert_eq!(bench.rows(&[("a", 1)]).accepted, 1, "a later select has read it again");
}

#[test]
fn a_batch_has_rows_of_one_item() {
    let mut bench = Bench::holding(Limits { batch: 3, ..limits() }, &["a", "b"]);
    bench.asks(&["a", "b"]);
    bench.rows(&[("a", 1), ("b", 2), ("a", 3), ("a", 4), ("a", 5)]);
    bench.executes(&[1, 3, 4]);
    bench.executes(&[2]);
}

#[test]
fn a_select_without_rows_is_followed_by_a_wait_and_one_with_rows_by_a_pause() {
    let mut bench = Bench::holding(Limits { pause: SECOND * 2, ..limits() }, &["a"]);
    bench.asks(&["a"]);
    bench.rows(&[]);
    bench.waits(Some(limits().idle));
    bench.order(2, [item("a", 1), item("b", 1)]);
    bench.asks(&["a", "b"]);
    bench.rows(&[("b", 1)]);
    let number = bench.executes(&[1]);
    bench.done(number);
    bench.waits(Some(SECOND * 2));
}

#[test]
fn what_was_not_asked_for_is_dropped() {
    let mut bench = Bench::holding(limits(), &["a", "b"]);
    bench.asks(&["a", "b"]);
    bench.order(2, [item("a", 1), item("c", 1)]);
    let mut rows = vec![("b", 1), ("c", 2), ("x", 3)];
    rows.extend((0..9).map(|key| ("a", key)));
    let found = bench.rows(&rows);
    assert_eq!(found, Fetched { accepted: 7, surplus: 2, foreign: 3, ..Fetched::default() });
}

#[test]
fn a_full_select_makes_no_item_dry() {
    let mut bench = Bench::holding(limits(), &["a", "b"]);
    bench.asks(&["a", "b"]);
    let full: Vec<_> = (0..10).map(|key| ("a", key)).collect();
    bench.rows(&full);
    assert!(!bench.progress("b").dry, "a full select may have left rows of it out");
}

#[test]
fn the_last_rows_make_an_item_dry_once_they_are_done() {
    let mut bench = Bench::holding(limits(), &["a", "b"]);
    bench.asks(&["a", "b"]);
    bench.rows(&[("a", 1)]);
    assert_eq!((bench.progress("a").dry, bench.progress("b").dry), (false, true));
    let number = bench.executes(&[1]);
    assert_eq!(bench.progress("a").oldest_at_ms, 50_000);
    bench.done(number);
    assert_eq!((bench.progress("a").dry, bench.progress("a").oldest_at_ms), (false, 0));
    bench.asks(&["a", "b"]);
    bench.rows(&[]);
    assert!(bench.progress("a").dry && bench.group.is_dry());
    bench.now += SECOND;
    bench.asks(&["a", "b"]);
    bench.group.fetch_failed(bench.now);
    assert!(!bench.group.is_dry(), "nothing is known after a select that failed");
}

#[test]
fn a_released_item_is_worked_off_first_and_reported_until_an_order_leaves_it_out() {
    let mut bench = Bench::holding(limits(), &["a", "b"]);
    bench.asks(&["a", "b"]);
    bench.order(2, [item("a", 1), released("b", 1)]);
    bench.rows(&[("b", 1), ("b", 2), ("b", 3)]);
    let (first, second) = (bench.executes(&[1]), bench.executes(&[2]));
    bench.done(first);
    bench.done(second);
    let third = bench.executes(&[3]);
    assert!(!bench.progress("b").released);
    bench.done(third);
    let report = bench.report().unwrap();
    assert!(report.items[1].released && report.items[1].done == 3 && report.number == 2, "at once: {report:?}");
    assert_eq!(bench.report(), None);
    bench.asks(&["a"]);
    bench.rows(&[]);
    bench.now += SECOND * 4;
    assert_eq!(bench.report(), None, "one more select that found nothing is no news");
    bench.now += SECOND;
    assert!(bench.report().unwrap().items[1].released);
    bench.order(3, [item("a", 1), item("b", 1)]);
    assert!(bench.progress("b").released, "an epoch that was released does not come back");
    bench.order(4, [item("a", 1)]);
    assert_eq!(bench.group.full_report(bench.now).items.len(), 1);
    bench.order(5, [item("a", 1), item("b", 1)]);
    assert_eq!(bench.group.full_report(bench.now).items.len(), 1);
    bench.order(6, [item("a", 1), item("b", 2)]);
    bench.asks(&["a", "b"]);
}

#[test]
fn what_is_not_worked_off_in_time_is_aborted() {
    let mut bench = Bench::holding(Limits { row_retry_max: 3, ..limits() }, &["a", "b"]);
    bench.asks(&["a", "b"]);
    bench.rows(&[("a", 1), ("a", 2), ("a", 3), ("b", 4)]);
    let (first, second) = (bench.executes(&[1]), bench.executes(&[2]));
    assert_eq!(bench.failed(first), [Some(SECOND)]);
    bench.executes(&[3]);
    bench.order(2, [released("a", 1), item("b", 1)]);
    bench.waits(Some(SECOND * 36));
    bench.now += SECOND * 36;
    let mut aborted = Vec::new();
    while let Step::Abort(Task::Execution(number)) = bench.next() {
        aborted.push(number);
    }
    assert_eq!((aborted.len(), aborted[0]), (2, second));
    assert!(!bench.progress("a").released, "they are still there");
    for number in aborted {
        bench.group.executed(number, ExecutionEnd::Aborted, bench.now);
    }
    let item = bench.progress("a");
    assert_eq!((item.rows, item.done, item.failed, item.released), (3, 0, 3, true));
    bench.executes(&[4]);
}

#[test]
fn a_select_that_hangs_is_aborted_with_the_item_that_is_asked_back() {
    let mut bench = Bench::holding(limits(), &["a"]);
    bench.asks(&["a"]);
    bench.order(2, [released("a", 1)]);
    bench.now += SECOND * 36;
    assert!(matches!(bench.next(), Step::Abort(Task::Fetch)));
    assert!(!bench.progress("a").released);
    bench.group.fetch_aborted();
    assert!(bench.progress("a").released);
}

#[test]
fn an_item_that_an_order_leaves_out_is_dropped() {
    let mut bench = Bench::holding(limits(), &["a"]);
    bench.asks(&["a"]);
    bench.rows(&[("a", 1), ("a", 2), ("a", 3)]);
    let (first, second) = (bench.executes(&[1]), bench.executes(&[2]));
    bench.order(2, []);
    for number in [first, second] {
        assert!(matches!(bench.next(), Step::Abort(Task::Execution(aborted)) if aborted == number));
        bench.group.executed(number, ExecutionEnd::Aborted, bench.now);
    }
    bench.waits(None);
    assert_eq!(bench.group.total(), Counts { fetches: 1, rows: 3, ..Counts::default() });
    bench.order(3, [item("a", 1)]);
    bench.waits(None);
}

#[test]
fn a_higher_epoch_begins_anew_from_the_checkpoint_of_the_order() {
    let mut bench = Bench::holding(limits(), &["a"]);
    bench.asks(&["a"]);
    bench.rows(&[("a", 1), ("a", 2)]);
    let first = bench.executes(&[1]);
    bench.group.checkpoint("a", 1, "one").unwrap();
    bench.order(2, [PumpItem { checkpoint: "seven".to_owned(), params: "7".to_owned(), ..item("a", 2) }]);
    assert!(matches!(bench.next(), Step::Abort(Task::Execution(_))));
    let refused = bench.group.checkpoint("a", 1, "two");
    assert_eq!(refused, Err(CheckpointError::NotHeld { item: "a".to_owned() }));
    bench.group.executed(first, ExecutionEnd::Done, bench.now);
    let item = bench.progress("a");
    assert_eq!((item.epoch, item.rows, item.done, item.checkpoint.as_str()), (2, 0, 0, "seven"));
    let Step::Fetch { items, .. } = bench.next() else { panic!("a select") };
    assert_eq!((items[0].epoch, items[0].checkpoint.as_str(), items[0].raw_params()), (2, "seven", "7"));
    assert_eq!(bench.group.checkpoint("a", 2, &"x".repeat(4_097)), Err(CheckpointError::TooLong { bytes: 4_097 }));
}

#[test]
fn only_a_higher_order_is_taken_and_one_that_comes_again_is_answered() {
    let mut bench = Bench::holding(limits(), &["a"]);
    bench.group.full_report(bench.now);
    bench.now += SECOND;
    assert_eq!(bench.report(), None);
    assert!(!bench.order(0, []));
    assert_eq!(bench.report().map(|report| report.number), Some(1), "the answer has the number to go on from");
    bench.now += SECOND;
    assert!(!bench.order(1, []));
    assert_eq!(bench.report().map(|report| (report.number, report.items.len())), Some((1, 1)));
    assert!(bench.group.order(PumpOrder { term: 2, number: 0, ..order(0, []) }, bench.now));
    assert!(!bench.order(9, [item("b", 1)]), "of an older term");
}

#[test]
fn selects_that_fail_are_repeated_later_and_later() {
    let mut bench = Bench::holding(limits(), &["a"]);
    for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
        bench.asks(&["a"]);
        assert_eq!(bench.group.fetch_failed(bench.now), SECOND * seconds);
        bench.waits(Some(SECOND * seconds));
        bench.now += SECOND * seconds;
    }
    bench.asks(&["a"]);
    bench.rows(&[]);
    bench.now += SECOND;
    bench.asks(&["a"]);
    assert_eq!(bench.group.fetch_failed(bench.now), SECOND);
}

#[test]
fn a_group_that_yields_works_off_what_it_has_and_is_over() {
    let mut bench = Bench::holding(limits(), &["a"]);
    bench.asks(&["a"]);
    bench.rows(&[("a", 1), ("a", 2), ("a", 3)]);
    let first = bench.executes(&[1]);
    bench.group.order(PumpOrder { r#yield: true, ..order(2, [item("a", 1), item("b", 1)]) }, bench.now);
    let second = bench.executes(&[2]);
    bench.done(first);
    bench.done(second);
    let third = bench.executes(&[3]);
    bench.done(third);
    assert!(matches!(bench.next(), Step::Over));
    let all = bench.group.full_report(bench.now).items;
    assert!(all.len() == 2 && all.iter().all(|item| item.released));
}

#[test]
fn a_group_that_stops_throws_away_what_waits_and_finishes_what_is_in_execution() {
    let mut bench = Bench::holding(limits(), &["a"]);
    bench.asks(&["a"]);
    bench.rows(&[("a", 1), ("a", 2), ("a", 3)]);
    let (first, second) = (bench.executes(&[1]), bench.executes(&[2]));
    bench.group.stop(None);
    bench.waits(None);
    bench.done(first);
    bench.waits(None);
    bench.group.stop(Some(bench.now + SECOND));
    bench.waits(Some(SECOND));
    bench.now += SECOND;
    assert!(matches!(bench.next(), Step::Abort(Task::Execution(number)) if number == second));
    bench.group.executed(second, ExecutionEnd::Aborted, bench.now);
    assert!(matches!(bench.next(), Step::Over));
    assert_eq!(bench.group.total(), Counts { fetches: 1, rows: 3, done: 1, failed: 1 });
}

#[test]
fn a_group_that_stops_aborts_what_it_has_in_time_once_the_server_asks_for_it() {
    let mut bench = Bench::holding(limits(), &["a"]);
    bench.asks(&["a"]);
    bench.rows(&[("a", 1)]);
    let number = bench.executes(&[1]);
    bench.group.stop(None);
    bench.order(2, [item("a", 1)]);
    bench.waits(None);
    bench.order(3, [released("a", 1)]);
    bench.waits(Some(SECOND * 36));
    bench.now += SECOND * 36;
    assert!(matches!(bench.next(), Step::Abort(Task::Execution(aborted)) if aborted == number));
    bench.order(4, [released("a", 1)]);
    bench.waits(None);
}

#[test]
fn changes_are_reported_once_a_second_and_each_has_a_higher_sequence() {
    let mut bench = Bench::new(limits());
    assert_eq!(bench.report(), None);
    bench.order(1, [item("a", 1)]);
    let first = bench.report().unwrap();
    assert_eq!((first.run_id, first.attempt, first.job_id, first.term, first.number), (7, 1, 3, 1, 1));
    assert_eq!(first.items[0].sequence, 1);
    bench.asks(&["a"]);
    bench.rows(&[("a", 1)]);
    assert_eq!((bench.report(), bench.group.report_at()), (None, Some(bench.now + SECOND)));
    bench.now += SECOND;
    let second = bench.report().unwrap();
    assert_eq!((second.items[0].sequence, second.items[0].rows, second.items[0].fetches), (2, 1, 1));
    let number = bench.executes(&[1]);
    bench.done(number);
    bench.now += SECOND;
    let third = bench.report().unwrap();
    assert_eq!((third.items[0].sequence, third.items[0].done, third.items[0].per_minute), (3, 1, 1));
    bench.now += SECOND * 100;
    let fourth = bench.report().unwrap();
    assert_eq!((fourth.items[0].sequence, fourth.items[0].per_minute), (4, 0), "the rate falls without an event");
    assert_eq!(bench.group.report_at(), None);
}

#[test]
fn a_row_of_an_item_that_is_asked_back_is_not_tried_again() {
    let mut bench = Bench::holding(Limits { row_retry_max: 3, ..limits() }, &["a"]);
    bench.asks(&["a"]);
    bench.rows(&[("a", 1), ("a", 2)]);
    let (first, second) = (bench.executes(&[1]), bench.executes(&[2]));
    assert_eq!(bench.failed(first), [Some(SECOND)]);
    bench.order(2, [released("a", 1)]);
    assert_eq!(bench.failed(second), [None]);
    assert!(bench.progress("a").released);
}

#[test]
fn a_released_item_without_rows_is_reported_again_too() {
    let mut bench = Bench::holding(limits(), &["a"]);
    bench.order(2, [released("a", 1)]);
    assert!(bench.report().unwrap().items[0].released);
    for _ in 0..3 {
        bench.now += SECOND * 4;
        assert_eq!(bench.report(), None);
        bench.now += SECOND;
        assert!(bench.report().unwrap().items[0].released);
    }
}

#[test]
fn a_group_that_stops_aborts_its_select() {
    let mut bench = Bench::holding(limits(), &["a"]);
    bench.asks(&["a"]);
    bench.group.stop(None);
    assert!(matches!(bench.next(), Step::Abort(Task::Fetch)));
    bench.waits(None);
    assert_eq!(bench.rows(&[("a", 1)]).accepted, 0, "it may end by itself all the same");
    assert!(matches!(bench.next(), Step::Over));
}
