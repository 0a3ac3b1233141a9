//! Searches across clock changes: forwards, backwards and by counting, under every rule.

use proptest::prelude::*;

use super::*;

const EXPRESSIONS: [&str; 8] = [
    "0 30 2 * * ?",
    "0 0 0 * * ?",
    "0 0 3 * * ?",
    "0 0 * * * ?",
    "0 */7 1-3 * * ?",
    "30 59 23 L * ?",
    "0 15 2 ? * 1#2",
    "*/20 0 2,3 29 2-3 ?",
];

/// Zones, and an hour in which the clock of each is changed.
const CHANGES: [(Tz, &str); 6] = [
    (Tz::America__New_York, "2026-03-08T07:00:00Z"),
    (Tz::America__New_York, "2026-11-01T06:00:00Z"),
    (Tz::Europe__Berlin, "2024-03-31T01:00:00Z"),
    (Tz::Australia__Lord_Howe, "2026-04-04T15:00:00Z"),
    (Tz::Pacific__Apia, "2011-12-30T10:00:00Z"),
    (Tz::UTC, "2024-02-29T12:00:00Z"),
];

fn rules() -> impl Strategy<Value = DstRule> {
    let gap = prop::sample::select(vec![Gap::Auto, Gap::NextValid, Gap::Skip]);
    let overlap = prop::sample::select(vec![Fold::Auto, Fold::First, Fold::Second, Fold::Both]);
    (gap, overlap).prop_map(|(gap, overlap)| DstRule { gap, overlap })
}

proptest! {
    #[test]
    fn both_directions_and_the_count_agree(
        text in prop::sample::select(EXPRESSIONS.to_vec()),
        (zone, change) in prop::sample::select(CHANGES.to_vec()),
        rule in rules(),
        (before, after) in (-90_000_i64..3_600, 0_i64..90_000),
    ) {
        let expression = CronExpr::parse(text).unwrap();
        let change = change.parse::<Timestamp>().unwrap().second();
        let (from, to) = (Timestamp::from_secs(change + before), Timestamp::from_secs(change + before + after));
        let forwards = expression.fires_between(zone, rule, from, to, usize::MAX);
        let end = Timestamp::from_secs(to.second() + 1);
        let mut backwards: Vec<Timestamp> =
            std::iter::successors(expression.prev_before(zone, rule, end), |at| expression.prev_before(zone, rule, *at))
                .take_while(|at| *at > from)
                .collect();
        backwards.reverse();
        prop_assert_eq!(&forwards, &backwards, "{} in {} by {:?}", text, zone, rule);
        prop_assert_eq!(expression.count_between(zone, rule, from, to), forwards.len() as u64);
    }
}

#[test]
fn skipped_times_fire_by_the_rule() {
    let fires = |text: &str, gap| {
        let rule = DstRule { gap, ..DstRule::default() };
        let (from, to) = ("2026-03-08T06:00:00Z".parse().unwrap(), "2026-03-08T08:00:00Z".parse().unwrap());
        let fires = CronExpr::parse(text).unwrap().fires_between(Tz::America__New_York, rule, from, to, 99);
        fires.iter().map(|at| at.to_string()[11..16].to_owned()).collect::<Vec<_>>()
    };
    for (text, auto, next_valid, skip) in [
        // All skipped times together fire once, at the end of the gap; a fire that is due there anyway is not repeated.
        ("0 10,50 2 * * ?", vec!["07:00"], vec!["07:00"], vec![]),
        ("0 0 2,3 * * ?", vec!["07:00"], vec!["07:00"], vec!["07:00"]),
        ("0 30 * * * ?", vec!["06:30", "07:30"], vec!["06:30", "07:00", "07:30"], vec!["06:30", "07:30"]),
        ("0 0 4 * * ?", vec!["08:00"], vec!["08:00"], vec!["08:00"]),
    ] {
        assert_eq!(fires(text, Gap::Auto), auto, "{text}");
        assert_eq!(fires(text, Gap::NextValid), next_valid, "{text}");
        assert_eq!(fires(text, Gap::Skip), skip, "{text}");
    }
}

#[test]
fn an_expression_has_a_length() {
    let can_be_read = |len: usize| CronExpr::parse(&format!("0 0 0 * * ?{}", " ".repeat(len - 11))).is_ok();
    assert!(can_be_read(EXPRESSION_LENGTH_MAX) && !can_be_read(EXPRESSION_LENGTH_MAX + 1));
}
