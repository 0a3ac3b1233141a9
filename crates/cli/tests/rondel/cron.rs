//! `rondel cron`.

use crate::process::run;

#[test]
fn fires_as_json() {
    let args =
        ["cron", "next", "0 30 9 ? * MON-FRI", "--time-zone", "Asia/Shanghai", "--after", "2026-03-06T00:00:00Z"];
    let output = run(&[&args[..], &["--count", "3", "-o", "json"]].concat());
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let expected = r#"{"fires":["2026-03-06T01:30:00Z","2026-03-09T01:30:00Z","2026-03-10T01:30:00Z"]}"#;
    assert_eq!(output.stdout, format!("{expected}\n"));
    assert_eq!(output.stderr, "");
}

#[test]
fn fires_in_a_table_show_zone_and_utc() {
    let output = run(&[
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
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let lines: Vec<_> = output.stdout.lines().collect();
    assert!(lines[0].starts_with("LOCAL") && lines.len() == 2, "{}", output.stdout);
    assert!(lines[1].starts_with("2026-03-07T02:00:00+08:00 CST  2026-03-06T18:00:00Z  "), "{}", lines[1]);
}

#[test]
fn an_expression_that_never_fires_is_refused() {
    let output = run(&["cron", "next", "0 0 0 31 2 ?", "-o", "json"]);
    assert_eq!((output.code, output.stdout.as_str()), (Some(2), "{\"fires\":[]}\n"));
    for command in ["next", "explain"] {
        let output = run(&["cron", command, "0 0 0 31 2 ?", "--after", "2026-03-06T00:00:00Z", "--lang", "en"]);
        assert_eq!(output.code, Some(2));
        let words = "error: 0 0 0 31 2 ? never fires after 2026-03-06T00:00:00Z\n";
        assert!(output.stderr.ends_with(words), "{}", output.stderr);
    }
}

#[test]
fn an_expression_is_explained_in_the_language_that_is_asked_for() {
    let explain = |extra_args: &[&str]| {
        let args =
            ["cron", "explain", "30 2 * * 1-5", "--time-zone", "Europe/Berlin", "--after", "2026-11-01T00:00:00Z"];
        let output = run(&[&args[..], extra_args].concat());
        assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""));
        output.stdout
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
    let output = run(&args);
    assert_eq!(output.code, Some(0));
    assert!(
        output.stderr.starts_with("at 02:30 every day (Europe/Berlin)\nread as Quartz cron with 6 fields"),
        "{}",
        output.stderr
    );
    assert!(output.stderr.contains("On 2026-03-29 the clock of Europe/Berlin skips 02:30"), "{}", output.stderr);
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
