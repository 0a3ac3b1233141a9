//! Checks every line of the vectors: what Quartz 2.3.2 fires and refuses, and what happens when clocks change.
#![expect(clippy::unwrap_used, reason = "a test's helpers are tests")]

use rondel_core::Timestamp;
use rondel_core::cron::{CronExpr, DstRule, parse_zone};

const COUNT_MAX: usize = 5;

/// The result for a line in the notation of the vectors: `invalid`, `none` or fire times.
fn fires(expression: &str, zone: &str, after: &str, count: usize) -> String {
    let Ok(expression) = CronExpr::parse_quartz(expression) else { return "invalid".to_owned() };
    let (zone, after) = (parse_zone(zone).unwrap(), after.parse().unwrap());
    let fires = expression.fires_between(zone, DstRule::default(), after, Timestamp::MAX, count);
    if fires.is_empty() {
        return "none".to_owned();
    }
    fires.iter().map(Timestamp::to_string).collect::<Vec<_>>().join(",")
}

fn check_lines(vectors: &str, lines_expected: usize, count_of: impl Fn(&str) -> usize) {
    let lines: Vec<&str> = vectors.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    assert_eq!(lines.len(), lines_expected);
    let wrong: Vec<String> = lines.iter().filter_map(|line| check_line(line, &count_of)).collect();
    assert!(wrong.is_empty(), "{} lines differ:\n{}", wrong.len(), wrong.join("\n"));
}

fn check_line(line: &str, count_of: impl Fn(&str) -> usize) -> Option<String> {
    let columns: Vec<&str> = line.split('\t').collect();
    let &[expression, zone, after, expected] = columns.as_slice() else { return Some(format!("{line:?}")) };
    let found = fires(expression, zone, after, count_of(expected));
    (found != expected)
        .then(|| format!("{expression} in {zone} after {after}\n  found    {found}\n  expected {expected}"))
}

#[test]
fn quartz_vectors() {
    check_lines(include_str!("vectors/quartz-vectors.tsv"), 708, |_| COUNT_MAX);
}

#[test]
fn dst_vectors() {
    check_lines(include_str!("vectors/dst-vectors.tsv"), 14, |expected| expected.split(',').count());
}
