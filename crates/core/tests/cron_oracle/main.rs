//! Compares the cron engine with an oracle that walks through time and checks for each second or minute whether it matches.
//!
//! `PROPTEST_CASES=100000 PROPTEST_RNG_SEED=… cargo test --release -p rondel-core --test cron_oracle` is the long run, about
//! ten minutes; each case asks for ten instants in a random zone, mostly near a change of its clock. A failing case is printed
//! and kept; docs/PERFORMANCE.md has the last long run and its seed.
#![expect(clippy::unwrap_used, reason = "a test's helpers are tests")]

mod oracle;
mod spec;

use chrono::{Duration, NaiveDate};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use rondel_core::Timestamp;
use rondel_core::cron::{CronExpr, DstRule, Fold, Gap, Tz};

use self::oracle::{Oracle, changes};
use self::spec::{Days, Field, Part, Spec, any_days, any_spec, list};

fn any_rule() -> impl Strategy<Value = DstRule> {
    let gap = select(vec![Gap::Auto, Gap::Auto, Gap::NextValid, Gap::Skip]);
    let overlap = select(vec![Fold::Auto, Fold::Auto, Fold::First, Fold::Second, Fold::Both]);
    (gap, overlap).prop_map(|(gap, overlap)| DstRule { gap, overlap })
}

/// An instant in a year, near a change of the clock where the year has one.
fn instant_near_a_change(zone: Tz, year: i32, pick: &Index, shift: i64) -> i64 {
    let start = NaiveDate::from_ymd_opt(year, 1, 1).unwrap().and_hms_opt(0, 0, 0).unwrap().and_utc().timestamp();
    let changes = changes(zone, start, start + 366 * 86_400, 6 * 3600);
    let base = if changes.is_empty() {
        start + i64::try_from(pick.index(365 * 86_400)).unwrap()
    } else {
        pick.get(&changes).at
    };
    base + shift
}

fn check_span(oracle: &Oracle<'_>, rule: DstRule, from: i64, picks: &[Index]) -> Result<(), TestCaseError> {
    let text = oracle.spec.text();
    let expression = CronExpr::parse(&text).map_err(|refused| TestCaseError::fail(format!("{text}: {refused}")))?;
    let length = if oracle.minutes_suffice() { 2 * 86_400 } else { 3 * 3600 };
    let (start, end) = (Timestamp::from_secs(from), Timestamp::from_secs(from + length));
    let fires = oracle.walk(from, from + length);

    let found = expression.fires_between(oracle.zone, rule, start, end, usize::MAX);
    prop_assert_eq!(&found, &fires, "{} in {}", text, oracle.zone);
    let backwards = std::iter::successors(
        expression.prev_before(oracle.zone, rule, end + Duration::seconds(1).to_std().unwrap()),
        |&at| expression.prev_before(oracle.zone, rule, at),
    );
    let mut backwards: Vec<Timestamp> = backwards.take_while(|at| *at > start).collect();
    backwards.reverse();
    prop_assert_eq!(&backwards, &fires, "{} in {}, backwards", text, oracle.zone);

    for pick in picks {
        let millis = i64::try_from(pick.index(usize::try_from(length * 1000).unwrap())).unwrap();
        let at = Timestamp::from_millis(from * 1000 + millis);
        let next = expression.next_after(oracle.zone, rule, at).filter(|next| *next <= end);
        prop_assert_eq!(
            next,
            fires.iter().copied().find(|fire| *fire > at),
            "{} in {} after {}",
            text,
            oracle.zone,
            at
        );
        let prev = expression.prev_before(oracle.zone, rule, at).filter(|prev| *prev > start);
        prop_assert_eq!(
            prev,
            fires.iter().copied().rfind(|fire| *fire < at),
            "{} in {} before {}",
            text,
            oracle.zone,
            at
        );
    }
    Ok(())
}

proptest! {
    #[test]
    fn around_clock_changes(
        spec in any_spec(),
        rule in any_rule(),
        zone in select(&chrono_tz::TZ_VARIANTS[..]),
        year in 1971..2098_i32,
        pick in any::<Index>(),
        shift in -5400..3600_i64,
        picks in prop::collection::vec(any::<Index>(), 10),
    ) {
        let from = instant_near_a_change(zone, year, &pick, shift);
        let oracle = Oracle::new(&spec, zone, rule, from, from + 2 * 86_400);
        check_span(&oracle, rule, from, &picks)?;
    }

    /// Day, month and year fields, walked over some years day by day.
    #[test]
    fn over_years(
        days in any_days(),
        month in list(1, 12),
        year in prop::option::of(list(1970, 2199)),
        first in 1970..2190_i32,
        into in 0..366_i64,
    ) {
        let noon = |low, high, value| Field { parts: vec![Part::Value(value)], low, high };
        let year = if matches!(days, Days::Unix(..)) { None } else { year };
        let year = year.filter(|year| year.parts.iter().all(|part| !matches!(part, Part::Range(from, to, _) if from > to)));
        let spec = Spec { second: noon(0, 59, 0), minute: noon(0, 59, 0), hour: noon(0, 23, 12), days, month, year };
        let text = spec.text();
        let expression = CronExpr::parse(&text).map_err(|refused| TestCaseError::fail(format!("{text}: {refused}")))?;
        let start = NaiveDate::from_ymd_opt(first, 1, 1).unwrap() + Duration::days(into);
        let fires: Vec<Timestamp> = start.iter_days().take(1000).filter(|date| spec.has_date(*date))
            .map(|date| Timestamp::from(date.and_hms_opt(12, 0, 0).unwrap().and_utc())).collect();
        let midnight = |date: NaiveDate| Timestamp::from(date.and_hms_opt(0, 0, 0).unwrap().and_utc());
        let (from, to) = (midnight(start), midnight(start + Duration::days(1000)));
        prop_assert_eq!(&expression.fires_between(Tz::UTC, DstRule::default(), from, to, usize::MAX), &fires, "{}", text);
        let backwards = std::iter::successors(Some(to), |&at| expression.prev_before(Tz::UTC, DstRule::default(), at));
        let mut backwards: Vec<Timestamp> = backwards.skip(1).take_while(|at| *at >= from).collect();
        backwards.reverse();
        prop_assert_eq!(backwards, fires, "{}, backwards", text);
    }
}
