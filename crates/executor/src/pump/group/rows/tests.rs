use std::time::Duration;

use crate::pump::group::tests::{Bench, SECOND, item, limits};
use crate::pump::group::{Fetched, Limits};

#[test]
fn a_row_is_tried_again_later_and_later_and_then_rests() {
    let mut bench = Bench::holding(Limits { row_retry_max: 2, ..limits() }, &["a"]);
    bench.asks(&["a"]);
    bench.rows(&[("a", 1)]);
    let number = bench.executes(&[1]);
    assert_eq!(bench.failed(number), [Some(SECOND)]);
    bench.asks(&["a"]);
    assert_eq!(bench.rows(&[("a", 1)]), Fetched { in_work: 1, ..Fetched::default() }, "it waits");
    bench.now += SECOND;
    let number = bench.executes(&[1]);
    assert_eq!(bench.failed(number), [Some(SECOND * 2)]);
    bench.now += SECOND * 2;
    let number = bench.executes(&[1]);
    assert_eq!(bench.failed(number), [None]);
    bench.asks(&["a"]);
    assert_eq!(bench.rows(&[("a", 1)]), Fetched { resting: 1, ..Fetched::default() });
    assert!(bench.group.is_dry(), "a row that failed for good does not keep a pump going");
    bench.now += SECOND * 4;
    bench.asks(&["a"]);
    assert_eq!(bench.rows(&[("a", 1)]).accepted, 1);
    assert_eq!(bench.progress("a").failed, 3);
}

#[test]
fn rows_that_failed_for_good_are_named_while_they_are_there() {
    let mut bench = Bench::holding(limits(), &["a", "b"]);
    let check = |bench: &Bench, keys: &[&str]| assert_eq!(bench.group.failed_rows().collect::<Vec<_>>(), keys);
    bench.asks(&["a", "b"]);
    bench.rows(&[("a", 1), ("a", 2), ("b", 3)]);
    for row in [1, 2, 3] {
        let number = bench.executes(&[row]);
        assert_eq!(bench.failed(number), [None]);
    }
    check(&bench, &["1", "2", "3"]);
    bench.now += SECOND * 600;
    bench.asks(&["a", "b"]);
    bench.rows(&[("a", 1), ("b", 3)]);
    check(&bench, &["1", "3"]);
    let (first, third) = (bench.executes(&[1]), bench.executes(&[3]));
    bench.done(first);
    bench.failed(third);
    check(&bench, &["3"]);
    bench.group.yield_items(bench.now);
    bench.order(2, [item("a", 1)]);
    check(&bench, &["3"]);
}

/// The server learns from a report that an item is dry, and reports are a second apart.
#[test]
fn a_row_that_failed_for_good_rests_until_its_item_is_reported_as_dry() {
    let pause = SECOND * 60;
    let limits = Limits { row_backoff: Duration::from_millis(10), pause, ..limits() };
    let mut bench = Bench::holding(limits, &["a"]);
    bench.asks(&["a"]);
    bench.rows(&[("a", 1)]);
    let number = bench.executes(&[1]);
    assert_eq!(bench.failed(number), [None]);
    bench.now += pause;
    for _ in 0..2 {
        bench.asks(&["a"]);
        assert_eq!(bench.rows(&[("a", 1)]).resting, 1);
        assert!(bench.progress("a").dry);
        bench.now += SECOND;
    }
    bench.asks(&["a"]);
    assert_eq!(bench.rows(&[("a", 1)]).accepted, 1);
}
