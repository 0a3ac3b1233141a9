//! `rondel cron next`.

use crate::process::run;

#[test]
fn fires_as_json() {
    let args = ["cron", "next", "0 30 9 ? * MON-FRI", "--tz", "Asia/Shanghai", "--after", "2026-03-06T00:00:00Z"];
    let ended = run(&[&args[..], &["--count", "3", "-o", "json"]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let expected = r#"{"fires":["2026-03-06T01:30:00Z","2026-03-09T01:30:00Z","2026-03-10T01:30:00Z"]}"#;
    assert_eq!(ended.stdout, format!("{expected}\n"));
    assert_eq!(ended.stderr, "");
}

#[test]
fn fires_for_people_show_zone_and_utc() {
    let ended = run(&[
        "cron",
        "next",
        "0 0 2 * * ?",
        "--tz",
        "Asia/Shanghai",
        "--after",
        "2026-03-06T00:00:00Z",
        "--count",
        "1",
    ]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let lines: Vec<_> = ended.stdout.lines().collect();
    assert!(lines[0].starts_with("LOCAL") && lines.len() == 2, "{}", ended.stdout);
    assert!(lines[1].starts_with("2026-03-07T02:00:00+08:00 CST  2026-03-06T18:00:00Z  "), "{}", lines[1]);
}

#[test]
fn what_never_fires_has_no_fires() {
    let ended = run(&["cron", "next", "0 0 0 31 2 ?", "-o", "json"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "{\"fires\":[]}\n"));
}

#[test]
fn bad_input_is_refused_with_a_sentence() {
    for (args, words) in [
        (&["0 0 24 * * ?"][..], &["hour", "\"24\"", "0-23"][..]),
        (&["* * *"], &["expression"]),
        (&["@daily", "--tz", "shanghai"], &["--tz", "Asia/Shanghai"]),
        (&["@daily", "--after", "tomorrow"], &["--after", "RFC 3339"]),
    ] {
        run(&[&["cron", "next", "-o", "json"], args].concat()).refused(2, words);
    }
    assert_eq!(run(&["cron", "next", "@daily", "--count", "0"]).code, Some(2));
}
