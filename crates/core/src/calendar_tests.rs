use serde_json::{Value, json};

use super::*;

fn spec(rule: Value) -> CalendarSpec {
    let mut document = json!({"name": "c"});
    document["rule"] = rule;
    serde_json::from_value(document).unwrap()
}

fn calendar(rule: Value) -> Calendar {
    Calendar::compile(&spec(rule), |_| None).unwrap()
}

/// The pointers of the errors; none for a rule that is accepted.
fn refused(rule: Value) -> Vec<String> {
    let found = Calendar::compile(&spec(rule), |_| None);
    found.err().unwrap_or_default().into_iter().map(|error| error.pointer).collect()
}

const WRAPS: [fn(Value) -> Value; 3] =
    [|rule| json!({"not": rule}), |rule| json!({"all": [rule]}), |rule| json!({"any": [rule]})];

fn nested(depth: usize, wrap: fn(Value) -> Value) -> Value {
    (1..depth).fold(json!({"weekdays": ["mon"]}), |rule, _| wrap(rule))
}

#[test]
fn depths_are_counted_from_one_through_every_kind_of_rule() {
    for wrap in WRAPS {
        assert!(refused(nested(DEPTH_MAX, wrap)).is_empty());
        assert_eq!(refused(nested(DEPTH_MAX + 1, wrap)).len(), 1);
    }
    // Each calendar names the next one, and the last one lists days.
    let find = |last: usize| {
        move |name: &str| {
            let next = name.strip_prefix('c')?.parse::<usize>().ok()? + 1;
            let rule = if next > last { json!({"days": []}) } else { json!({"calendar": format!("c{next}")}) };
            Some(CalendarSpec { name: name.to_owned(), ..spec(rule) })
        }
    };
    let first = spec(json!({"calendar": "c2"}));
    assert!(Calendar::compile(&first, find(DEPTH_MAX)).is_ok());
    let errors = Calendar::compile(&first, find(DEPTH_MAX + 1)).unwrap_err();
    assert_eq!((errors.len(), errors[0].pointer.as_str()), (1, "/rule/calendar"));
}

#[test]
fn rules_days_times_and_names_have_bounds() {
    let rules = |count| json!({"any": vec![json!({"weekdays": []}); count]});
    assert!(refused(rules(RULE_COUNT_MAX - 1)).is_empty());
    assert_eq!(refused(rules(RULE_COUNT_MAX)), [format!("/rule/any/{}", RULE_COUNT_MAX - 1)]);
    assert_eq!(refused(rules(RULE_COUNT_MAX + 9)).len(), 2, "the walk ends behind the bound");
    let days = |first: &str, last: &str| json!({"days": ["1999-12-31", format!("{first}..{last}")]});
    // Together with 1999-12-31, the first span has 20,000 days.
    assert!(refused(days("2000-01-01", "2054-10-02")).is_empty());
    assert_eq!(refused(days("2000-01-01", "2054-10-03")), ["/rule/days/1"]);
    let times = |count| json!({"times": vec!["01:00-02:00"; count]});
    assert!(refused(times(TIME_COUNT_MAX)).is_empty());
    assert_eq!(refused(times(TIME_COUNT_MAX + 1)), [format!("/rule/times/{TIME_COUNT_MAX}")]);
    let named = |len: usize| json!({"days": [{"date": "2026-10-01", "name": "n".repeat(len)}]});
    assert!(refused(named(DAY_NAME_LEN_MAX)).is_empty());
    assert_eq!(refused(named(DAY_NAME_LEN_MAX + 1)), ["/rule/days/0"]);
    let described = |len: usize| {
        let described = CalendarSpec { description: "d".repeat(len), ..spec(json!({"days": []})) };
        Calendar::compile(&described, |_| None).is_ok()
    };
    assert!(described(DESCRIPTION_LEN_MAX) && !described(DESCRIPTION_LEN_MAX + 1));
}

#[test]
fn spans_of_the_day_wrap_and_end_at_midnight() {
    for bad in [
        "24:01-01:00",
        "24:00-01:00",
        "10:00-10:00",
        "10:60-11:00",
        "09:60-11:00",
        "25:00-26:00",
        "1:00-02:00",
        "10:00",
        "x-y",
    ] {
        assert_eq!(refused(json!({"times": [bad]})), ["/rule/times/0"], "{bad}");
    }
    let has =
        |span: &str, time: &str| calendar(json!({"times": [span]})).has(format!("2026-10-01T{time}").parse().unwrap());
    for (span, inside, outside) in [
        ("10:00-10:01", ["10:00:00", "10:00:59"], ["09:59:59", "10:01:00"]),
        ("22:00-24:00", ["22:00:00", "23:59:59"], ["21:59:59", "00:00:00"]),
        ("22:00-00:01", ["23:59:59", "00:00:59"], ["21:59:59", "00:01:00"]),
        ("00:00-24:00", ["00:00:00", "23:59:59"], ["", ""]),
    ] {
        assert!(inside.iter().all(|time| has(span, time)), "{span}");
        assert!(outside.iter().filter(|time| !time.is_empty()).all(|time| !has(span, time)), "{span}");
    }
}

#[test]
fn days_are_dates_and_spans_of_the_years_that_schedules_know() {
    for (text, is_good) in [
        ("2026-10-01", true),
        ("2026-10-01..2026-10-01", true),
        ("2026-10-02..2026-10-01", false),
        ("1970-01-01", true),
        ("1969-12-31", false),
        ("2199-12-31", true),
        ("2200-01-01", false),
        ("2026-02-29", false),
    ] {
        assert_eq!(refused(json!({"days": [text]})).is_empty(), is_good, "{text}");
    }
}

#[test]
fn a_question_costs_each_rule_and_each_span() {
    let days = json!({"days": ["2026-10-01"]});
    for (rule, size) in [
        (days.clone(), 1),
        (json!({"weekdays": ["mon", "tue"]}), 1),
        (json!({"times": ["01:00-02:00", "22:00-06:00"]}), 4),
        (json!({"all": [days, days]}), 3),
        (json!({"not": {"any": []}}), 2),
    ] {
        assert_eq!(calendar(rule.clone()).lookup_cost(), size, "{rule}");
    }
}

#[test]
fn times_are_found_wherever_they_are_nested() {
    let times = json!({"times": ["01:00-02:00"]});
    for rule in [times.clone(), json!({"not": times}), json!({"all": [{"days": []}, times]})] {
        let calendar = calendar(rule.clone());
        assert!(calendar.has_times(), "{rule}");
        let edge = |time: &str| {
            let next = calendar.next_edge(format!("2026-10-01T{time}").parse().unwrap());
            next.to_string()
        };
        assert_eq!(edge("00:00:00"), "2026-10-01 01:00:00");
        assert_eq!(edge("01:00:00"), "2026-10-01 02:00:00");
        assert_eq!(edge("02:00:00"), "2026-10-02 00:00:00");
    }
    assert!(!calendar(json!({"not": {"weekdays": ["sun"]}})).has_times());
}

#[test]
fn a_circle_of_calendars_is_refused_and_named() {
    let find = |name: &str| {
        let rule = match name {
            "b" => json!({"calendar": "c"}),
            _ => json!({"days": []}),
        };
        Some(CalendarSpec { name: name.to_owned(), ..spec(rule) })
    };
    let errors = Calendar::compile(&spec(json!({"calendar": "b"})), find).unwrap_err();
    assert_eq!(errors[0].message, "makes a cycle: c -> b -> c");
    // Naming the same calendar twice, side by side, is not a cycle.
    assert!(Calendar::compile(&spec(json!({"all": [{"calendar": "x"}, {"calendar": "x"}]})), find).is_ok());
}

#[test]
fn an_expanded_rule_names_no_calendar_and_is_as_deep_as_one_that_compiles() {
    let find = |name: &str| {
        let rule = match name {
            "b" => json!({"not": {"calendar": "x"}}),
            "x" => json!({"any": [{"days": ["2026-10-01"]}]}),
            _ => return None,
        };
        Some(CalendarSpec { name: name.to_owned(), ..spec(rule) })
    };
    let expanded = |rule| serde_json::to_value(spec(rule).expanded(find)).unwrap();
    assert_eq!(
        expanded(json!({"all": [{"calendar": "b"}, {"calendar": "gone"}]})),
        json!({"all": [{"not": {"any": [{"days": ["2026-10-01"]}]}}, {"any": []}]})
    );
    for wrap in WRAPS {
        let deepest = nested(DEPTH_MAX, wrap);
        assert_eq!(expanded(deepest.clone()), deepest);
        assert_ne!(expanded(nested(DEPTH_MAX + 1, wrap)), nested(DEPTH_MAX + 1, wrap));
    }
    let chain = |depth: usize| {
        let find = move |name: &str| {
            let next = name.strip_prefix('c')?.parse::<usize>().ok()? + 1;
            let rule =
                if next > depth { json!({"weekdays": ["mon"]}) } else { json!({"calendar": format!("c{next}")}) };
            Some(CalendarSpec { name: name.to_owned(), ..spec(rule) })
        };
        serde_json::to_value(spec(json!({"calendar": "c2"})).expanded(find)).unwrap()
    };
    assert_eq!(chain(DEPTH_MAX), json!({"weekdays": ["mon"]}));
    assert_eq!(chain(DEPTH_MAX + 1), json!({"any": []}));
}

#[test]
fn a_day_is_in_a_calendar_with_times_by_any_part_of_it() {
    let has = |rule: Value, day: &str| calendar(rule).has_part_of(day.parse().unwrap());
    let office = || json!({"all": [{"weekdays": ["mon"]}, {"times": ["09:00-17:00"]}]});
    assert!(has(office(), "2026-01-05") && !has(office(), "2026-01-06"));
    let night = || json!({"not": {"any": [{"weekdays": ["tue"]}, {"times": ["00:00-12:00"]}]}});
    assert!(has(night(), "2026-01-05") && !has(night(), "2026-01-06"));
    assert!(has(json!({"weekdays": ["mon"]}), "2026-01-05") && !has(json!({"weekdays": ["mon"]}), "2026-01-06"));
}

#[test]
fn the_last_listed_day_is_found_in_every_rule() {
    let last = |rule| calendar(rule).last_listed_day().map(|day| day.to_string());
    assert_eq!(last(json!({"any": [{"weekdays": ["mon"]}, {"times": ["08:00-12:00"]}]})), None);
    let rule = json!({"all": [{"weekdays": ["mon"]}, {"not": {"days": ["2026-10-01..2026-10-07", "2026-05-01"]}}]});
    assert_eq!(last(json!({"any": [{"days": ["2026-10-06"]}, rule]})).as_deref(), Some("2026-10-07"));
}
