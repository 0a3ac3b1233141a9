//! `rondel cron`.

use crate::process::run;

#[test]
fn fires_as_json() {
    let args =
        ["cron", "next", "0 30 9 ? * MON-FRI", "--time-zone", "Asia/Shanghai", "--after", "2026-03-06T00:00:00Z"];
    let ended = run(&[&args[..], &["--count", "3", "-o", "json"]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let expected = r#"{"fires":["2026-03-06T01:30:00Z","2026-03-09T01:30:00Z","2026-03-10T01:30:00Z"]}"#;
    assert_eq!(ended.stdout, format!("{expected}\n"));
    assert_eq!(ended.stderr, "");
}

#[test]
fn fires_in_a_table_show_zone_and_utc() {
    let ended = run(&[
        "cron",
        "next",
        "0 0 2 * * ?",
        "--time-zone",
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
fn an_expression_that_never_fires_is_refused() {
    let ended = run(&["cron", "next", "0 0 0 31 2 ?", "-o", "json"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), "{\"fires\":[]}\n"));
    for command in ["next", "explain"] {
        let ended = run(&["cron", command, "0 0 0 31 2 ?", "--after", "2026-03-06T00:00:00Z", "--lang", "en"]);
        assert_eq!(ended.code, Some(2));
        let words = "error: 0 0 0 31 2 ? never fires after 2026-03-06T00:00:00Z\n";
        assert!(ended.stderr.ends_with(words), "{}", ended.stderr);
    }
}

#[test]
fn an_expression_is_explained_in_the_language_that_is_asked_for() {
    let explain = |more: &[&str]| {
        let args =
            ["cron", "explain", "30 2 * * 1-5", "--time-zone", "Europe/Berlin", "--after", "2026-11-01T00:00:00Z"];
        let ended = run(&[&args[..], more].concat());
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
        ended.stdout
    };
    let en = explain(&["--lang", "en"]);
    let expected = "at 02:30, Monday to Friday (Europe/Berlin)\nread as Unix cron with 5 fields, the first being the minute \
                    (weekday 0-7, 0 and 7 are Sunday)\n";
    assert_eq!(en, expected);
    assert!(explain(&["--lang", "zh"]).starts_with("周一至周五 02:30（Europe/Berlin）\n按 5 个字段的 Unix cron"));
    let json = explain(&["--lang", "en", "-o", "json"]);
    let expected = r#"{"expression":"30 2 * * 1-5","time_zone":"Europe/Berlin","dialect":"unix5","sentence":"at 02:30, Monday to Friday (Europe/Berlin)","next_fire_at":"2026-11-02T01:30:00Z","warnings":[]}"#;
    assert_eq!(json, format!("{expected}\n"));
}

#[test]
fn the_sentence_and_the_warnings_stand_beside_the_fires() {
    let args = [
        "cron",
        "next",
        "0 30 2 * * ?",
        "--time-zone",
        "Europe/Berlin",
        "--after",
        "2026-03-20T00:00:00Z",
        "--lang",
        "en",
    ];
    let ended = run(&args);
    assert_eq!(ended.code, Some(0));
    assert!(
        ended.stderr.starts_with("at 02:30 every day (Europe/Berlin)\nread as Quartz cron with 6 fields"),
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.contains("On 2026-03-29 the clock of Europe/Berlin skips 02:30"), "{}", ended.stderr);
}

#[test]
fn bad_input_is_refused_with_a_sentence() {
    for (args, words) in [
        (&["0 0 24 * * ?"][..], &["hour", "\"24\"", "0-23"][..]),
        (&["* * *"], &["expression"]),
        (&["@daily", "--time-zone", "shanghai"], &["--time-zone", "Asia/Shanghai"]),
        (&["@daily", "--after", "tomorrow"], &["--after", "RFC 3339"]),
    ] {
        run(&[&["cron", "next", "-o", "json"], args].concat()).refused(2, words);
    }
    assert_eq!(run(&["cron", "next", "@daily", "--count", "0"]).code, Some(2));
}

#[test]
fn an_expression_without_a_question_mark_gets_a_hint() {
    run(&["cron", "next", "0 0 * * * *"])
        .refused(2, &["only ? here or in day of month", "0 0 8 * * ? or 0 0 8 ? * MON"]);
}
