use std::time::Duration;

use crate::pump::group::tests::{GroupHarness, SECOND, item, limits};
use crate::pump::group::{FetchCounts, Limits};

#[test]
fn a_row_is_tried_again_later_and_later_and_then_rests() {
    let mut harness = GroupHarness::holding(Limits { row_retry_max: 2, ..limits() }, &["a"]);
    harness.asks(&["a"]);
    harness.rows(&[("a", 1)]);
    let number = harness.executes(&[1]);
    assert_eq!(harness.failed(number), [Some(SECOND)]);
    harness.asks(&["a"]);
    assert_eq!(harness.rows(&[("a", 1)]), FetchCounts { in_work: 1, ..FetchCounts::default() }, "it waits");
    harness.now += SECOND;
    let number = harness.executes(&[1]);
    assert_eq!(harness.failed(number), [Some(SECOND * 2)]);
    harness.now += SECOND * 2;
    let number = harness.executes(&[1]);
    assert_eq!(harness.failed(number), [None]);
    harness.asks(&["a"]);
    assert_eq!(harness.rows(&[("a", 1)]), FetchCounts { resting: 1, ..FetchCounts::default() });
    assert!(harness.group.is_dry(), "a row that failed for good does not keep a pump going");
    harness.now += SECOND * 4;
    harness.asks(&["a"]);
    assert_eq!(harness.rows(&[("a", 1)]).accepted, 1);
    assert_eq!(harness.progress("a").failed, 3);
}

#[test]
fn rows_that_failed_for_good_are_named_while_they_are_there() {
    let mut harness = GroupHarness::holding(limits(), &["a", "b"]);
    let check =
        |harness: &GroupHarness, keys: &[&str]| assert_eq!(harness.group.failed_rows().collect::<Vec<_>>(), keys);
    harness.asks(&["a", "b"]);
    harness.rows(&[("a", 1), ("a", 2), ("b", 3)]);
    for row in [1, 2, 3] {
        let number = harness.executes(&[row]);
        assert_eq!(harness.failed(number), [None]);
    }
    check(&harness, &["1", "2", "3"]);
    harness.now += SECOND * 600;
    harness.asks(&["a", "b"]);
    harness.rows(&[("a", 1), ("b", 3)]);
    check(&harness, &["1", "3"]);
    let (first, third) = (harness.executes(&[1]), harness.executes(&[3]));
    harness.done(first);
    harness.failed(third);
    check(&harness, &["3"]);
    harness.group.yield_items(harness.now);
    harness.order(2, [item("a", 1)]);
    check(&harness, &["3"]);
}

/// A select may leave out rows that are in work, for instance because these are locked. It does not show that they are
/// gone.
#[test]
fn a_row_that_fails_for_good_is_not_forgotten_after_a_select_that_began_while_it_was_in_work() {
    let mut harness = GroupHarness::holding(Limits { not_sleep: true, ..limits() }, &["a"]);
    harness.asks(&["a"]);
    harness.rows(&[("a", 1)]);
    let number = harness.executes(&[1]);
    harness.asks(&["a"]);
    assert_eq!(harness.failed(number), [None]);
    harness.rows(&[]);
    assert_eq!((harness.group.is_dry(), harness.group.is_unfinished()), (true, true));

    harness.now += SECOND * 2;
    harness.asks(&["a"]);
    assert_eq!(harness.rows(&[("a", 1)]).accepted, 1);
    let number = harness.executes(&[1]);
    harness.asks(&["a"]);
    harness.rows(&[]);
    assert!(harness.group.is_unfinished(), "it is in work again");
    assert_eq!(harness.failed(number), [None]);
    assert!(harness.group.is_unfinished());

    harness.now += SECOND * 4;
    harness.asks(&["a"]);
    harness.rows(&[]);
    assert!(!harness.group.is_unfinished(), "a later select did not return it");
}

/// The server learns from a report that an item is dry (has no rows to execute), and reports are a second apart.
#[test]
fn a_row_that_failed_for_good_rests_until_its_item_is_reported_as_dry() {
    let pause = SECOND * 60;
    let limits = Limits { row_backoff: Duration::from_millis(10), pause, ..limits() };
    let mut harness = GroupHarness::holding(limits, &["a"]);
    harness.asks(&["a"]);
    harness.rows(&[("a", 1)]);
    let number = harness.executes(&[1]);
    assert_eq!(harness.failed(number), [None]);
    harness.now += pause;
    for _ in 0..2 {
        harness.asks(&["a"]);
        assert_eq!(harness.rows(&[("a", 1)]).resting, 1);
        assert!(harness.progress("a").dry);
        harness.now += SECOND;
    }
    harness.asks(&["a"]);
    assert_eq!(harness.rows(&[("a", 1)]).accepted, 1);
}

/// If each of several such rows rested for the same time, one of them would always be in work, and the pump would never be dry.
#[test]
fn a_row_that_fails_for_good_again_and_again_rests_longer_each_time() {
    let mut harness = GroupHarness::holding(limits(), &["a"]);
    let select = |harness: &mut GroupHarness, now_rests: bool| {
        harness.asks(&["a"]);
        let expected = FetchCounts {
            accepted: usize::from(!now_rests),
            resting: usize::from(now_rests),
            ..FetchCounts::default()
        };
        assert_eq!(harness.rows(&[("a", 1)]), expected);
    };
    select(&mut harness, false);
    for seconds in [2, 4, 8, 16, 32, 60, 60] {
        let number = harness.executes(&[1]);
        assert_eq!(harness.failed(number), [None]);
        harness.now += SECOND * (seconds - 1);
        select(&mut harness, true);
        harness.now += SECOND;
        select(&mut harness, false);
    }
    let number = harness.executes(&[1]);
    harness.done(number);
    select(&mut harness, false);
    let number = harness.executes(&[1]);
    assert_eq!(harness.failed(number), [None]);
    harness.now += SECOND * 2;
    select(&mut harness, false);
}

/// A row is in work from its first try to its last, so its rests must become longer than all its tries together.
#[test]
fn a_row_that_is_in_work_for_long_rests_for_longer() {
    let wait = SECOND * 10;
    let limits = Limits { row_retry_max: 9, row_backoff: wait, row_backoff_max: wait, ..limits() };
    let mut harness = GroupHarness::holding(limits, &["a"]);
    for seconds in [10, 20, 40, 80, 160, 320, 640, 720, 720] {
        harness.asks(&["a"]);
        assert_eq!(harness.rows(&[("a", 1)]).accepted, 1);
        for _ in 0..9 {
            let number = harness.executes(&[1]);
            assert_eq!(harness.failed(number), [Some(wait)]);
            harness.now += wait;
        }
        let number = harness.executes(&[1]);
        assert_eq!(harness.failed(number), [None], "it was in work for 90 s");
        harness.now += SECOND * (seconds - 1);
        harness.asks(&["a"]);
        assert_eq!(harness.rows(&[("a", 1)]).resting, 1);
        harness.now += SECOND;
    }
}

/// The rests grow even if the first one is long.
#[test]
fn the_rests_of_a_row_whose_retries_take_long_grow_too() {
    let rests =
        |wait: u32| [1, 2, 3, 4, 5].map(|times| limits().rest_period(SECOND * wait, Duration::ZERO, times).as_secs());
    assert_eq!(rests(1), [2, 4, 8, 16, 32]);
    assert_eq!(rests(10), [10, 20, 40, 80, 80]);
    assert_eq!(rests(80), [80, 160, 320, 640, 640]);
}
