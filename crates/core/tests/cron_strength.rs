//! Feeds arbitrary text to the parser: it never panics, and it never takes long.
#![expect(clippy::unwrap_used, reason = "a test's helpers are tests")]

use std::time::{Duration, Instant};

use proptest::prelude::*;
use rondel_core::Timestamp;
use rondel_core::cron::{CronExpr, DstRule, EXPRESSION_LENGTH_MAX, Tz};
use rondel_core::words::{Lang, cron};

/// Maximum time of one parse. A release build must finish within a millisecond; the long run is
/// `PROPTEST_CASES=300000 cargo test --release -p rondel-core --test cron_strength`.
/// A debug build is about ten times slower, and other tests run on the same machine.
const PARSE_MAX: Duration = Duration::from_millis(if cfg!(debug_assertions) { 100 } else { 1 });
/// Only the fastest of this many tries counts, so that a busy machine does not fail the test.
const TRY_COUNT: usize = 5;

/// How long the parser takes at best.
#[expect(clippy::disallowed_methods, reason = "this test is about time that passes")]
fn parse_time(text: &str) -> Duration {
    let once = || {
        let began = Instant::now();
        let _ = CronExpr::parse(text);
        began.elapsed()
    };
    std::iter::repeat_with(once).take(TRY_COUNT).min().unwrap()
}

/// Text that is nearly an expression.
fn almost() -> impl Strategy<Value = String> {
    let item = prop_oneof![
        4 => "[0-9]{1,5}",
        2 => Just("*".to_owned()),
        1 => Just("?".to_owned()),
        2 => "[0-9]{1,4}[-/#,][0-9]{1,12}",
        2 => "[0-9*]{1,3}-[0-9]{1,4}/[0-9]{1,11}",
        1 => "(L|LW|L-[0-9]{1,3}W?|[0-9]{1,2}W|[0-9]L|[0-9]#[0-9])",
        1 => "(MON|fri|JAN|December|SUN-SAT|X)",
        1 => "[-/#,*?LW@ \\t]{0,6}",
        1 => "\\PC{0,4}",
    ];
    let field = prop::collection::vec(item, 1..12).prop_map(|items| items.join(","));
    prop::collection::vec(field, 0..9).prop_map(|fields| fields.join(" "))
}

/// Expressions that are extreme in one way: long, or with many items.
fn worst_cases() -> Vec<String> {
    let filled = |unit: &str| unit.repeat(EXPRESSION_LENGTH_MAX / unit.len());
    let one_field = |unit: &str| {
        format!("{} * * * * ?", unit.repeat((EXPRESSION_LENGTH_MAX - 10) / unit.len()).trim_end_matches(','))
    };
    let mut cases: Vec<String> = ["0-59,", "0-59/1,", "1/1,", "*,", "0,"].into_iter().map(one_field).collect();
    cases.extend(["*", "9", ",", "-", "/", "* ", "é", "@", "L", "0-59/1 "].into_iter().map(filled));
    cases.push(format!("0 0 0 1 1 ? {}", "1970-2199,".repeat(24).trim_end_matches(',')));
    cases.push("x".repeat(1_000_000));
    cases
}

#[test]
fn the_worst_that_fits_is_read_fast() {
    for text in worst_cases() {
        let took = parse_time(&text);
        assert!(took < PARSE_MAX, "{took:?} for {:?}", text.chars().take(60).collect::<String>());
    }
}

proptest! {
    #[test]
    fn nothing_that_is_typed_is_slow_or_fatal(text in prop_oneof![3 => almost(), 1 => "\\PC{0,300}"]) {
        let took = parse_time(&text);
        prop_assert!(took < PARSE_MAX, "{:?} for {:?}", took, text);
        if let Ok(expression) = CronExpr::parse(&text) {
            let after = Timestamp::from_secs(1_800_000_000);
            let next = expression.next_after(Tz::Europe__Berlin, DstRule::default(), after);
            prop_assert!(next.is_none_or(|next| next > after));
            prop_assert!([Lang::En, Lang::Zh].into_iter().all(|lang| !cron(&expression, lang).is_empty()));
        }
    }
}
