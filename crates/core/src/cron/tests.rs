use super::field::{QUARTZ, UNIX};
use super::token::Token;
use super::*;
use proptest::prelude::*;

fn check_refused(text: &str, field: CronField, value: &str, position: usize) {
    let refused = CronExpr::parse(text).expect_err(text);
    assert_eq!(
        (refused.field, refused.value.as_str(), refused.position),
        (field, value, position),
        "{text}: {refused}"
    );
}

#[test]
fn refusals_name_field_value_and_position() {
    for (text, field, value, position) in [
        ("60 * * * * ?", CronField::Second, "60", 0),
        ("0 5,x * * * ?", CronField::Minute, "x", 4),
        ("0 0 24 * * ?", CronField::Hour, "24", 4),
        ("0 0 */25 * * ?", CronField::Hour, "25", 6),
        ("0 0 9,,10 * * ?", CronField::Hour, "", 6),
        ("0 0 1/ * * ?", CronField::Hour, "", 6),
        ("0 0 MON * * ?", CronField::Hour, "MON", 4),
        ("0 0 5X * * ?", CronField::Hour, "5X", 4),
        ("0 0 99999999999 * * ?", CronField::Hour, "99999999999", 4),
        ("? ? ? * * ?", CronField::Second, "?", 0),
        ("0 0 0 32 * ?", CronField::DayOfMonth, "32", 6),
        ("0 0 0 0 * ?", CronField::DayOfMonth, "0", 6),
        ("0 0 0 L-31 * ?", CronField::DayOfMonth, "L-31", 6),
        ("0 0 0 L- * ?", CronField::DayOfMonth, "L-", 6),
        ("0 0 0 LL * ?", CronField::DayOfMonth, "LL", 6),
        ("0 0 0 W * ?", CronField::DayOfMonth, "W", 6),
        ("0 0 0 0W * ?", CronField::DayOfMonth, "0W", 6),
        ("0 0 0 1,L * ?", CronField::DayOfMonth, "1,L", 6),
        ("0 0 0 1W,15W * ?", CronField::DayOfMonth, "1W,15W", 6),
        ("0 0 0 1 13 ?", CronField::Month, "13", 8),
        ("0 0 0 1 L ?", CronField::Month, "L", 8),
        ("0 0 0 1 JANN ?", CronField::Month, "JANN", 8),
        ("0 0 0 1 1 MON", CronField::DayOfWeek, "MON", 10),
        ("0 0 0 ? * ?", CronField::DayOfWeek, "?", 10),
        ("0 0 0 ? * 0", CronField::DayOfWeek, "0", 10),
        ("0 0 0 ? * 0L", CronField::DayOfWeek, "0", 10),
        ("0 0 0 ? * MON#6", CronField::DayOfWeek, "6", 14),
        ("0 0 0 ? * 2#1,3#2", CronField::DayOfWeek, "2#1,3#2", 10),
        ("0 0 0 ? * 2L,5L", CronField::DayOfWeek, "2L,5L", 10),
        ("0 0 0 ? * LW", CronField::DayOfWeek, "LW", 10),
        ("0 0 0 ? * MON-FRI/2", CronField::DayOfWeek, "MON-FRI/2", 10),
        ("0 0 0 ? * MONDAY-FRIDAY", CronField::DayOfWeek, "MONDAY-FRIDAY", 10),
        ("0 0 0 ? * MON-6", CronField::DayOfWeek, "MON-6", 10),
        ("0 0 0 * * ? foo", CronField::Year, "foo", 12),
        ("0 0 0 * * ? 2030-2026", CronField::Year, "2030-2026", 12),
        ("0 0 0 * * ? 1969", CronField::Year, "1969", 12),
        ("0 0 0 * * ? 2200", CronField::Year, "2200", 12),
        ("0 0 0 * * ? * *", CronField::Expression, "*", 14),
        ("* * * *", CronField::Expression, "* * * *", 0),
        ("", CronField::Expression, "", 0),
        (" @reboot", CronField::Expression, "@reboot", 1),
        ("* * * * 8", CronField::DayOfWeek, "8", 8),
        ("* * ? * *", CronField::DayOfMonth, "?", 4),
        ("* * L * *", CronField::DayOfMonth, "L", 4),
        ("*/0 * * * *", CronField::Minute, "0", 2),
        ("0 ä,é * * * ?", CronField::Minute, "ä", 2),
        ("0 1,é * * * ?", CronField::Minute, "é", 4),
    ] {
        check_refused(text, field, value, position);
    }
}

#[test]
fn long_texts_are_refused_and_not_repeated() {
    let text = format!("0 0 {} * * ?", "1,".repeat(200));
    let refused = CronExpr::parse(&text).unwrap_err();
    assert_eq!(refused.field, CronField::Expression);
    assert_eq!(refused.value.chars().count(), 41);
}

/// Checks that both texts have the same compiled fields, so the same fires.
fn check_same(text: &str, other: &str) {
    let (one, two) = (CronExpr::parse(text).expect(text), CronExpr::parse(other).expect(other));
    assert_eq!(one.fields, two.fields, "{text} and {other}");
}

#[test]
fn spellings_of_the_same() {
    for (text, other) in [
        ("@hourly", "0 0 * * * ?"),
        ("@Daily", "0 0 0 * * ?"),
        ("@midnight", "0 0 0 * * ?"),
        ("@weekly", "0 0 0 ? * SUN"),
        ("@monthly", "0 0 0 1 * ?"),
        ("@yearly", "0 0 0 1 1 ?"),
        ("@annually", "0 0 0 1 jan ?"),
        ("  0\t0  12 *  * ? ", "0 0 12 * * ?"),
        ("0 0 12 ? * mon-fri", "0 0 12 ? * 2-6"),
        ("0 0 12 ? * MONDAY", "0 0 12 ? * 2"),
        ("0 0 12 ? * FRI-MON", "0 0 12 ? * 6,7,1,2"),
        ("0 0 12 ? * fril", "0 0 12 ? * 6L"),
        ("0 0 12 ? * tue#2", "0 0 12 ? * 3#2"),
        ("0 0 12 lw * ?", "0 0 12 LW * ?"),
        ("0 0 12 L-0 * ?", "0 0 12 L * ?"),
        ("0 0 12 L-3w * ?", "0 0 12 L-3W * ?"),
        ("0 0 22-2/2 * * ?", "0 0 22,0,2 * * ?"),
        ("0 0 12 30-2 * ?", "0 0 12 30,31,1,2 * ?"),
        ("0 0 12 1 NOV-FEB ?", "0 0 12 1 11,12,1,2 ?"),
        ("0 /15 * * * ?", "0 0/15 * * * ?"),
        ("0 5/0 * * * ?", "0 5 * * * ?"),
        ("0 */0 * * * ?", "0 * * * * ?"),
        ("0 0 12 * * ? 2098/2", "0 0 12 * * ? 2098-2199/2"),
        ("0 0 12 * * ? 2150,2026", "0 0 12 * * ? 2026,2150"),
        ("0 12 * * 0", "0 0 12 ? * SUN"),
        ("0 12 * * 7", "0 0 12 ? * SUN"),
        ("0 12 * * 5-7", "0 0 12 ? * FRI-SUN"),
        ("0 12 * * 7-2", "0 0 12 ? * SUN-TUE"),
        ("0 12 * * mon-fri", "0 0 12 ? * MON-FRI"),
        ("0 12 * * 1/2", "0 0 12 ? * MON,WED,FRI"),
        ("0 12 1-31 * *", "0 0 12 * * ?"),
        ("0 22-2 1 1 *", "0 0 22-2 1 1 ?"),
    ] {
        check_same(text, other);
    }
}

/// Checks on which days of June 2026 an expression fires. The month starts on a Monday.
fn check_june(text: &str, days: &[u32]) {
    let june = date::Date::first_of(2026, 6).unwrap();
    let bits = CronExpr::parse(text).expect(text).fields.days.in_month_of(june);
    let found: Vec<u32> = (0..64).filter(|day| bits & (1 << day) != 0).collect();
    assert_eq!(found, days, "{text}");
}

#[test]
fn day_fields_together() {
    for (text, days) in [
        ("0 0 0 L * ?", &[30][..]),
        ("0 0 0 L-30 * ?", &[]),
        ("0 0 0 L-29 * ?", &[1]),
        ("0 0 0 LW * ?", &[30]),
        ("0 0 0 L-2W * ?", &[29]),
        ("0 0 0 6W * ?", &[5]),
        ("0 0 0 7W * ?", &[8]),
        ("0 0 0 31W * ?", &[]),
        ("0 0 0 ? * 1#5", &[]),
        ("0 0 0 ? * 2#5", &[29]),
        ("0 0 0 ? * 1L", &[28]),
        ("0 0 0 ? * L", &[6, 13, 20, 27]),
        ("0 0 13 * 5", &[5, 12, 13, 19, 26]),
        ("0 0 */10 * 1", &[1]),
        ("0 0 1-5 * */6", &[]),
        ("0 0 1-7 * */6", &[6, 7]),
        ("0 0 10,20 * *", &[10, 20]),
        ("0 0 * * 5", &[5, 12, 19, 26]),
    ] {
        check_june(text, days);
    }
}

#[test]
fn dialects_are_detected() {
    for (text, dialect) in [
        ("0 0 12 * * ?", Dialect::Quartz6),
        ("0 0 12 * * ? *", Dialect::Quartz7),
        ("0 12 * * *", Dialect::Unix5),
        ("@daily", Dialect::Macro),
    ] {
        assert_eq!(CronExpr::parse(text).unwrap().dialect(), dialect, "{text}");
    }
}

#[test]
fn pace_follows_the_hour_field() {
    for (text, wall_clock) in [
        ("0 0 2 * * ?", true),
        ("0 0/5 2,14 * * ?", true),
        ("0 0 * * * ?", false),
        ("0 0 2-2 * * ?", false),
        ("0 0 2,4-6 * * ?", false),
        ("0 0 0/2 * * ?", false),
        ("@hourly", false),
        ("@daily", true),
    ] {
        assert_eq!(CronExpr::parse(text).unwrap().hour_form == HourForm::WallClock, wall_clock, "{text}");
    }
}

#[test]
fn fires_by_chosen_rules() {
    let rule = |gap, overlap| DstRule { gap, overlap };
    let check = |text: &str, zone: &str, rule: DstRule, from: &str, to: &str, expected: &[&str]| {
        let zone = parse_zone(zone).unwrap();
        let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
        let found = CronExpr::parse(text).unwrap().fires_between(zone, rule, from, to, 100);
        let found: Vec<String> = found.iter().map(Timestamp::to_string).collect();
        assert_eq!(found, expected, "{text} {rule:?}");
    };
    let (spring, summer) = ("2026-03-08T06:30:00Z", "2026-03-08T09:30:00Z");
    check(
        "0 0 * * * ?",
        "America/New_York",
        rule(Gap::NextValid, Fold::Auto),
        spring,
        summer,
        &["2026-03-08T07:00:00Z", "2026-03-08T08:00:00Z", "2026-03-08T09:00:00Z"],
    );
    check("0 30 2 * * ?", "America/New_York", rule(Gap::Skip, Fold::Auto), spring, summer, &[]);
    let (autumn, winter) = ("2026-11-01T04:30:00Z", "2026-11-01T07:30:00Z");
    let (first, second) = ("2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z");
    for (overlap, fires) in [(Fold::First, &[first][..]), (Fold::Second, &[second]), (Fold::Both, &[first, second])] {
        check("0 30 1 * * ?", "America/New_York", rule(Gap::Auto, overlap), autumn, winter, fires);
        check("0 30 1-1 * * ?", "America/New_York", rule(Gap::Auto, overlap), autumn, winter, fires);
    }
    // These expressions fire only in the hour that the clock shows twice, once a year or once ever. Their next fire is in the second
    // pass of that hour; the next match by the clock alone is far away or does not exist.
    for text in ["0 30 1 1 11 ?", "0 30 1 1 11 ? 2026"] {
        check(text, "America/New_York", rule(Gap::Auto, Fold::Both), autumn, winter, &[first, second]);
        let (text, zone) = (CronExpr::parse(text).unwrap(), Tz::America__New_York);
        let before = text.prev_before(zone, rule(Gap::Auto, Fold::Both), second.parse().unwrap());
        assert_eq!(before, Some(first.parse().unwrap()), "{text}");
    }
    // Samoa had no 30 December 2011: the job of that day runs once, as the next day begins.
    check(
        "0 0 9,15 * * ?",
        "Pacific/Apia",
        DstRule::default(),
        "2011-12-29T10:00:00Z",
        "2011-12-31T00:00:00Z",
        &["2011-12-29T19:00:00Z", "2011-12-30T01:00:00Z", "2011-12-30T10:00:00Z", "2011-12-30T19:00:00Z"],
    );
    // Cairo's clock goes from 23:59:59 to 01:00.
    check(
        "0 30 0 * * ?",
        "Africa/Cairo",
        DstRule::default(),
        "2026-04-23T12:00:00Z",
        "2026-04-24T12:00:00Z",
        &["2026-04-23T22:00:00Z"],
    );
}

#[test]
fn fractions_of_a_second() {
    let each = CronExpr::parse("* * * * * ?").unwrap();
    let rule = DstRule::default();
    for (at, prev, next) in [(1_000, 0, 2_000), (1_001, 1_000, 2_000), (1_999, 1_000, 2_000)] {
        let at = Timestamp::from_millis(at);
        assert_eq!(each.next_after(Tz::UTC, rule, at), Some(Timestamp::from_millis(next)));
        assert_eq!(each.prev_before(Tz::UTC, rule, at), Some(Timestamp::from_millis(prev)));
    }
}

#[test]
fn the_search_ends() {
    let rule = DstRule::default();
    for text in ["0 0 0 31 2 ?", "0 0 0 30 FEB ?", "0 0 0 31 4,6,9,11 ? *", "0 0 0 31W 2 ?", "0 0 0 ? 2 1#5 2027"] {
        let never = CronExpr::parse(text).unwrap();
        for at in [Timestamp::from_millis(i64::MIN), Timestamp::EPOCH, Timestamp::MAX, Timestamp::from_millis(i64::MAX)]
        {
            assert_eq!(never.next_after(Tz::Asia__Shanghai, rule, at), None, "{text} after {at}");
            assert_eq!(never.prev_before(Tz::Asia__Shanghai, rule, at), None, "{text} before {at}");
        }
    }
    let daily = CronExpr::parse("@daily").unwrap();
    let (first, last) = ("1970-01-01T00:00:00Z".parse().unwrap(), "2199-12-31T00:00:00Z".parse().unwrap());
    assert_eq!(daily.next_after(Tz::UTC, rule, Timestamp::from_millis(i64::MIN)), Some(first));
    assert_eq!(daily.prev_before(Tz::UTC, rule, first), None);
    assert_eq!(daily.prev_before(Tz::UTC, rule, Timestamp::MAX), Some(last));
    assert_eq!(daily.next_after(Tz::UTC, rule, last), None);
}

/// If a zone changed its offset twice within one step, both changes could be missed.
#[test]
fn spans_are_longer_than_the_step_that_finds_them() {
    for zone in chrono_tz::TZ_VARIANTS {
        let spans = spans::spans_of(zone).as_slice();
        let shortest = spans.windows(2).map(|pair| pair[1].start - pair[0].start).min();
        assert!(shortest.is_none_or(|length| length > 2 * spans::STEP_SECONDS), "{zone}: {shortest:?} s");
    }
    for zone in [Tz::Africa__Casablanca, Tz::America__New_York, Tz::Pacific__Apia, Tz::Antarctica__Troll] {
        assert_eq!(spans::spans_of(zone).as_slice(), &*spans::find_spans(zone, 1800), "{zone}");
    }
}

#[test]
fn serde_carries_the_text() {
    let json = serde_json::to_string(&CronExpr::parse("0 0 12 LW * ?").unwrap()).unwrap();
    assert_eq!(json, "\"0 0 12 LW * ?\"");
    assert_eq!(serde_json::from_str::<CronExpr>(&json).unwrap(), CronExpr::parse("0 0 12 LW * ?").unwrap());
    assert!(
        serde_json::from_str::<CronExpr>("\"0 0 24 * * ?\"").unwrap_err().to_string().contains("hour at position 4")
    );
    let rule: DstRule = serde_json::from_str(r#"{"gap":"next_valid"}"#).unwrap();
    assert_eq!(rule, DstRule { gap: Gap::NextValid, overlap: Fold::Auto });
}

proptest! {
    #[test]
    fn no_text_panics(text in r"[-0-9*/,?LW#@ a-zA-Zé\t]{0,60}") {
        let _ignored = CronExpr::parse(&text).is_ok();
    }

    /// Our reader reads everything that the crate reads, and gives the same values.
    #[test]
    fn the_crate_and_our_reader_agree(
        place in 0..QUARTZ.len(),
        text in r"(\*|[0-9]{1,2}(-[0-9]{1,2})?|20[0-9]{2}(-20[0-9]{2})?)(/[0-9]{1,2})?(,[0-9]{1,2}(-[0-9]{1,2})?){0,2}",
    ) {
        let (spec, token) = (&QUARTZ[place], Token::of_text(&text));
        if cron_crate::read(spec.field, &text).is_some() {
            prop_assert_eq!(spec.read(token), spec.read_items(token));
        }
    }

    #[test]
    fn unix_weekdays_are_a_week(text in r"[0-7](-[0-7])?(/[1-7])?") {
        let bits = UNIX[4].read(Token::of_text(&text)).unwrap().bits_below_64();
        prop_assert!(bits != 0 && bits < 128);
    }
}
