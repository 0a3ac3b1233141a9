use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::cron::{Tz, parse_zone};
use crate::time::Timestamp;
use crate::words::Lang;

fn read(text: &str) -> Filter {
    Filter::parse(text, Scope::Runs).unwrap()
}

#[test]
fn every_kind_of_term_is_read_and_written() {
    let text = "status:failed,unknown -status:succeeded app:orders job:orders.* since:8h until:2026-11-22T10:00:00 \
                executor:w2 trigger:cron duration:>5m duration:<=1h late:>1s label:team=pay,area -label:legacy refused \
                -\"timed out\"";
    assert_eq!(read(text).to_string(), text);
    let jobs = "is:failing,paused app:orders";
    assert_eq!(Filter::parse(jobs, Scope::Jobs).unwrap().to_string(), jobs);
    assert_eq!(read("status:failed  status:timed-out").to_string(), "status:failed,timed_out");
    assert_eq!(read("Status：failed，unknown").to_string(), "status:failed,unknown");
    assert!(read("  ").is_empty());
}

#[test]
fn odd_text_is_searched_for() {
    for (text, texts) in [
        ("orders shell", vec!["orders", "shell"]),
        ("应用:orders", vec!["应用:orders"]),
        ("http://x/y?a=b", vec!["http://x/y?a=b"]),
        ("\"app:orders\"", vec!["app:orders"]),
        ("\"not closed", vec!["not closed"]),
        ("- :: :", vec!["-", "::", ":"]),
        ("\"\"", vec![]),
    ] {
        let found: Vec<String> = read(text).texts.into_iter().map(|text| text.text).collect();
        assert_eq!(found, texts, "{text}");
    }
}

#[test]
fn errors_point_at_their_place() {
    for (text, column, length, word) in [
        ("app:orders status:faild", 19, 5, "status:failed?"),
        ("status:failed,nonsense", 15, 8, "one of pending"),
        ("statsu:failed", 1, 13, "status:…"),
        ("since:soon", 7, 4, "since:8h"),
        ("duration:5m", 10, 2, "duration:>5m"),
        ("duration:>5m duration:>6m", 23, 3, "at most once"),
        ("-since:8h", 2, 8, "without the minus"),
        ("since:8h since:9h", 10, 8, "twice"),
        ("label:=x", 7, 2, "label:team"),
        ("app:", 1, 4, "app:orders"),
        ("is:failing", 4, 7, "dead"),
        ("-is:dead", 2, 7, "without the minus"),
    ] {
        let error = Filter::parse(text, Scope::Runs).unwrap_err();
        assert_eq!((error.column, error.length), (column, length), "{text}: {error}");
        assert!(error.to_string().contains(word), "{text}: {error}");
        assert!(!error.sentence(Lang::Zh).is_empty());
    }
    let long = "x".repeat(FILTER_LEN_MAX + 1);
    assert_eq!(Filter::parse(&long, Scope::Runs).unwrap_err().problem, FilterProblem::TooLong);
    let many = "x ".repeat(TERM_COUNT_MAX + 1);
    assert_eq!(Filter::parse(&many, Scope::Runs).unwrap_err().problem, FilterProblem::TooManyTerms);
}

#[test]
fn times_are_those_of_the_reader() {
    let now: Timestamp = "2026-11-22T12:00:00Z".parse().unwrap();
    let berlin = parse_zone("Europe/Berlin").unwrap();
    for (text, zone, first, last) in [
        ("8h", Tz::UTC, "2026-11-22T04:00:00Z", "2026-11-22T04:00:00Z"),
        ("1h30m", Tz::UTC, "2026-11-22T10:30:00Z", "2026-11-22T10:30:00Z"),
        ("today", Tz::UTC, "2026-11-22T00:00:00Z", "2026-11-22T23:59:59.999Z"),
        ("yesterday", berlin, "2026-11-20T23:00:00Z", "2026-11-21T22:59:59.999Z"),
        ("2026-03-29", berlin, "2026-03-28T23:00:00Z", "2026-03-29T21:59:59.999Z"),
        ("2026-03-29T02:30", berlin, "2026-03-29T01:30:00Z", "2026-03-29T01:30:00Z"),
        ("2026-11-22T10:00:00+08:00", berlin, "2026-11-22T02:00:00Z", "2026-11-22T02:00:00Z"),
    ] {
        let when = read(&format!("since:{text}")).since.unwrap();
        assert_eq!(when.first_instant(now, zone).to_string(), first, "{text}");
        assert_eq!(when.last_instant(now, zone).to_string(), last, "{text}");
    }
}

#[test]
fn patterns_match_names() {
    for (pattern, name, matches) in [
        ("orders.close", "orders.close", true),
        ("orders", "orders.close", false),
        ("orders.*", "orders.close", true),
        ("*.close", "orders.close", true),
        ("*ord*clo*", "orders.close", true),
        ("o*o", "o", false),
        ("*", "anything", true),
        ("a*b*c", "abc", true),
        ("a*bc*c", "abc", false),
    ] {
        assert_eq!(Pattern(pattern.to_owned()).matches(name), matches, "{pattern} {name}");
    }
    assert_eq!(Pattern("a*bcd*e".to_owned()).longest_part(), "bcd");
}

#[test]
fn bounds_are_whole_milliseconds() {
    assert_eq!(read("duration:>5s").duration.millis_range(), (5001, i64::MAX));
    assert_eq!(read("late:>=5s late:<6s").late.millis_range(), (5000, 5999));
}

#[test]
fn typed_text_is_completed() {
    let names = ["orders".to_owned(), "pay orders".to_owned()];
    let known = Names { apps: &names, ..Names::default() };
    let all = |text: &str, at: usize| suggest(text, at, Scope::Runs, &known);
    assert_eq!(all("", 0).len(), SUGGESTION_COUNT_MAX.min(Scope::Runs.keys().len()));
    let apps = all("app:ord", 7);
    assert_eq!(apps[0].text, "app:orders ");
    assert_eq!((apps[1].text.as_str(), apps[1].at), ("app:\"pay orders\" ", 17));
    let middle = all("app:o since:8h", 5);
    assert_eq!((middle[0].text.as_str(), middle[0].at), ("app:orders since:8h", 10));
    let negated = all("-s", 2);
    assert_eq!((negated.len(), negated[0].term.as_str(), negated[0].text.as_str()), (1, "-status:", "-status:"));
    assert_eq!(all("refused", 7), []);
}

#[test]
fn lengths_are_read_back() {
    for text in ["1d2h3m4s5ms", "250ms", "0s", "7d", "90m"] {
        let length = value::length(text).unwrap();
        assert_eq!(value::length(&value::write_length(length)), Some(length), "{text}");
    }
    assert_eq!(value::length("2w"), Some(Duration::from_secs(14 * 86_400)));
    for text in ["", "5", "h", "5 m", "1y", "99999999999999999999s"] {
        assert_eq!(value::length(text), None, "{text}");
    }
}

proptest! {
    #[test]
    fn nothing_panics_and_the_canonical_form_is_read_back(text in "[ \"\\\\:,：*<>=a-z0-9.-]{0,40}|\\PC{0,30}", at in 0usize..50) {
        for scope in [Scope::Runs, Scope::Jobs] {
            prop_assert!(suggest(&text, at, scope, &Names::default()).len() <= SUGGESTION_COUNT_MAX);
            match Filter::parse(&text, scope) {
                Ok(filter) => {
                    let written = filter.to_string();
                    prop_assert_eq!(Filter::parse(&written, scope), Ok(filter), "{:?}", written);
                }
                Err(error) => prop_assert!(error.column >= 1 && error.column <= text.chars().count(), "{}", error),
            }
        }
    }

    #[test]
    fn terms_in_any_order_are_read_back(terms in proptest::collection::vec(prop_oneof![
        Just("status:failed,running"), Just("-trigger:manual"), Just("app:a,b"), Just("-job:x*"), Just("label:k=v"),
        Just("\"a b\""), Just("-\"c:d\""), Just("executor:\"w 2\""), Just("-x"), Just("\\"), Just("late:>1s"),
    ], 0..8)) {
        let text = terms.join(" ");
        if let Ok(filter) = Filter::parse(&text, Scope::Runs) {
            prop_assert_eq!(&Filter::parse(&filter.to_string(), Scope::Runs), &Ok(filter.clone()));
            let joined: Vec<Filter> = filter.terms().iter().map(|term| read(term)).collect();
            prop_assert_eq!(joined.is_empty(), filter.is_empty());
        }
    }
}
