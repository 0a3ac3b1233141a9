//! The sentences about rows and instants, at their bounds.

use std::sync::Arc;

use super::*;

/// The English answer about a row, at an instant.
fn sentence_of(facts: &FireInput<'_>, row: &Run) -> String {
    let rows = [row.clone()];
    why_run(&FireInput { rows: &rows, ..*facts }, row).en
}

#[test]
fn a_row_is_described_at_the_bounds() {
    let definitions = [Definition { from: secs(0), job: job(json!({"schedule": {"every": "1m"}})) }];
    let facts = FireInput { now: secs(120), ..facts(&definitions, &[]) };
    let pending = |due| Run { due_at: secs(due), ..row(1, secs(60), RunStatus::Pending, None) };
    assert!(sentence_of(&facts, &pending(120)).starts_with("It has not begun yet: it has been due for 0 ms"));
    assert_eq!(sentence_of(&facts, &pending(121)), "It will run at 1970-01-01 00:02:01 UTC.");
    let again = |attempt| Run {
        attempt,
        ..Run { due_at: secs(180), ..row(1, secs(60), RunStatus::Waiting, Some(Reason::Retry)) }
    };
    assert_eq!(sentence_of(&facts, &again(1)), "It will run at 1970-01-01 00:03 UTC.");
    assert!(sentence_of(&facts, &again(2)).contains("UTC (attempt 2: "), "{}", sentence_of(&facts, &again(2)));
    // A second late is late; a run that began early is not.
    let began = |ms| Run { started_at: Some(Timestamp::from_millis(ms)), ..done(1, secs(60)) };
    assert_eq!(sentence_of(&facts, &began(61_000)), "It ran at 1970-01-01 00:01:01 UTC on w-1, 1 s late, succeeded.");
    for ms in [60_999, 60_000, 50_000] {
        assert!(!sentence_of(&facts, &began(ms)).contains("late"), "{ms}");
    }
    let attempt = |attempt, lost_count| sentence_of(&facts, &Run { attempt, lost_count, ..done(1, secs(60)) });
    assert!(!attempt(1, 0).contains("attempt") && attempt(2, 0).ends_with("on w-1, succeeded on attempt 2."));
    assert!(attempt(3, 1).contains("an executor was lost") && attempt(4, 2).contains("during 2 earlier ones"));
}

#[test]
fn waits_from_half_a_second_are_reported() {
    use crate::reason::{ReasonDetail, WaitFor};
    let definitions = [Definition { from: secs(0), job: job(json!({"schedule": {"every": "1m"}})) }];
    let facts = facts(&definitions, &[]);
    let waited = |turn: u32, executor: u32, waits_for: Option<WaitFor>| {
        let trace = format!(r#"{{"route":"round","of":["w1"],"waited":{{"turn":{turn},"executor":{executor}}}}}"#);
        let detail =
            waits_for.map(|waits_for| Arc::new(ReasonDetail { waits_for: Some(waits_for), ..ReasonDetail::default() }));
        let row = Run { started_at: Some(secs(70)), trace: Some(trace), detail, ..done(1, secs(60)) };
        let text = sentence_of(&facts, &row);
        let (_, part) = text.split_once("10 s late").unwrap();
        part.trim_end_matches(", succeeded.").trim().to_owned()
    };
    assert_eq!(waited(499, 499, None), "");
    assert_eq!(waited(500, 499, None), "(the server took it up 500 ms after it was due)");
    assert_eq!(waited(499, 500, None), "(waited 500 ms for an executor)");
    assert_eq!(waited(500, 600, None), "(waited 600 ms for an executor)");
    // The recorded wait decides which of the two lengths is named. If that length is too short, their sum is named.
    assert!(waited(900, 500, Some(WaitFor::Slot)).starts_with("(waited 500 ms "));
    assert!(
        waited(900, 499, Some(WaitFor::Slot)).starts_with("(waited 1 s "),
        "{}",
        waited(900, 499, Some(WaitFor::Slot))
    );
    assert!(waited(500, 900, Some(WaitFor::Run)).starts_with("(waited 500 ms "));
}

#[test]
fn a_late_server_is_named_with_the_reason() {
    let definitions = [Definition { from: secs(0), job: job(json!({"schedule": {"every": "1m"}})) }];
    let facts = facts(&definitions, &[]);
    let late = |waited: &str| {
        let trace = format!(r#"{{"route":"round","of":["w1"],"waited":{{{waited}}}}}"#);
        let row = Run { started_at: Some(secs(80)), trace: Some(trace), ..done(1, secs(60)) };
        let text = sentence_of(&facts, &row);
        text.split_once("20 s late").unwrap().1.trim_end_matches(", succeeded.").trim().to_owned()
    };
    assert_eq!(
        late(r#""overload":19000,"executor":1000"#),
        "(servers had more fires to start than they could, and took it up 19 s after it was due)"
    );
    assert_eq!(late(r#""overload":2000,"executor":18000"#), "(waited 18 s for an executor)");
    assert_eq!(late(r#""outage":19000"#), "(the server took it up 19 s after it was due)");
}

#[test]
fn a_run_that_did_not_begin_is_not_described_as_run() {
    let definitions = [Definition { from: secs(0), job: job(json!({"schedule": {"every": "1m"}})) }];
    let facts = facts(&definitions, &[]);
    let unbegun = |status| sentence_of(&facts, &row(1, secs(60), status, None));
    assert_eq!(unbegun(RunStatus::Failed), "It did not run: failed.");
    assert_eq!(unbegun(RunStatus::TimedOut), "It did not run: timed out.");
    assert_eq!(unbegun(RunStatus::Unknown), "It may have run, and its outcome is unknown.");
    assert_eq!(unbegun(RunStatus::Succeeded), "It ran at 1970-01-01 00:01 UTC, succeeded.");
    assert_eq!(unbegun(RunStatus::Skipped), "It did not run.");
    let cancelled = |reason, started_at| {
        let row =
            Run { started_at, cancel_by: Some("ann".to_owned()), ..row(1, secs(60), RunStatus::Cancelled, reason) };
        sentence_of(&facts, &row)
    };
    assert_eq!(cancelled(Some(Reason::Requested), None), "It did not run: it was cancelled by ann.");
    let ran = cancelled(Some(Reason::Requested), Some(secs(60)));
    assert_eq!(ran, "It ran at 1970-01-01 00:01 UTC and was cancelled by ann.");
    assert!(cancelled(Some(Reason::Covered), Some(secs(60))).contains(" and was cancelled: "));
}

#[test]
fn a_handler_gives_its_own_reason_and_others_do_not() {
    let definitions = [Definition { from: secs(0), job: job(json!({"schedule": {"every": "1m"}})) }];
    let facts = facts(&definitions, &[]);
    let skipped = |reason| {
        let message = Some("nothing to do".to_owned());
        sentence_of(&facts, &Run { message, ..row(1, secs(60), RunStatus::Skipped, Some(reason)) })
    };
    assert!(skipped(Reason::Handler).ends_with(": nothing to do."), "{}", skipped(Reason::Handler));
    assert!(!skipped(Reason::Misfire).contains("nothing to do"));
}

#[test]
fn a_span_of_one_fire_is_described_as_one_fire() {
    let definitions = [Definition { from: secs(0), job: job(json!({"schedule": {"every": "1m"}})) }];
    let facts = facts(&definitions, &[]);
    let text = |count| sentence_of(&facts, &span(1, secs(60), secs(120), count));
    assert!(!text(1).contains("The same holds") && text(2).contains("all 2 fires from"));
}

#[test]
fn the_nearest_fires_of_an_empty_instant_are_named() {
    let definitions = [Definition { from: secs(30), job: job(json!({"schedule": {"every": "1m"}})) }];
    let facts = FireInput { now: secs(150), next_fire_at: Some(secs(180)), ..facts(&definitions, &[]) };
    let between = why(&facts, secs(61));
    assert_eq!((between.entry, between.before, between.after), (None, Some(secs(60)), Some(secs(120))));
    assert!(between.en.starts_with("Nothing was planned at 1970-01-01 00:01:01 UTC"), "{}", between.en);
    assert!(why(&facts, secs(150)).en.starts_with("Nothing was planned"));
    assert!(why(&facts, secs(151)).en.starts_with("Nothing is planned"));
    assert!(why(&facts, secs(30)).en.contains("the first known definition was saved at 1970-01-01 00:00:30 UTC"));
    assert!(!why(&facts, secs(31)).en.contains("first known definition"));
    let deleted = FireInput { deleted_at: Some(secs(100)), ..facts };
    assert!(why(&deleted, secs(101)).en.contains("the job was deleted at"));
    assert!(!why(&deleted, secs(100)).en.contains("deleted"));
    // A fire at the present instant counts as the nearest one before; the next one comes after it.
    assert_eq!(nearest_fires(&FireInput { now: secs(120), ..facts }), (Some(secs(120)), Some(secs(180))));
    assert_eq!(nearest_fires(&FireInput { now: secs(119), ..facts }), (Some(secs(60)), Some(secs(120))));
    let fire = why_run(&facts, &done(7, secs(60)));
    let entry = fire.entry.unwrap();
    assert_eq!((entry.first, entry.last, entry.count), (secs(60), secs(60), 1));
    assert!(matches!(entry.verdict, FireVerdict::Row { is_planned: true, .. }));
}

#[test]
fn a_pause_is_described_in_the_tense_of_its_instant() {
    let paused = job(json!({"schedule": {"every": "1m"}, "enabled": false}));
    let definitions = [Definition { from: secs(0), job: paused }];
    let facts = FireInput { now: secs(120), ..facts(&definitions, &[]) };
    assert_eq!(why(&facts, secs(120)).en, "It did not run: the job was paused.");
    assert_eq!(why(&facts, secs(180)).en, "It will not run at 1970-01-01 00:03 UTC: the job is paused.");
}

#[test]
fn the_zone_is_that_of_the_definition_that_held() {
    let zoned = |zone: &str| job(json!({"schedule": {"cron": "0 * * * * ?", "time_zone": zone}}));
    let definitions =
        [Definition { from: secs(0), job: zoned("UTC") }, Definition { from: secs(60), job: zoned("Asia/Shanghai") }];
    let facts = facts(&definitions, &[]);
    let at = |second| sentence_of(&facts, &done(1, secs(second)));
    assert!(at(60).contains("00:01:00.004 UTC"), "the fire of the change is that of the old definition: {}", at(60));
    assert!(at(120).contains("08:02"), "{}", at(120));
}

#[test]
fn records_that_were_removed_begin_before_the_first_that_is_kept() {
    let definitions = [Definition { from: secs(0), job: job(json!({"schedule": {"every": "1m"}})) }];
    let facts =
        FireInput { kept_from: secs(60), now: secs(600), next_fire_at: Some(secs(120)), ..facts(&definitions, &[]) };
    assert_eq!(entries_of(&facts, secs(0), secs(120)), ["00:01:00Z missing", "00:02:00Z undecided"]);
    let later = FireInput { kept_from: secs(61), ..facts };
    assert_eq!(entries_of(&later, secs(0), secs(119)), ["00:01:00Z removed"]);
    let folded = |count: i64| {
        let facts = FireInput { kept_from: secs(999_999), now: secs(1_000_000), next_fire_at: None, ..facts };
        entries_of(&facts, secs(1), secs(60 * count)).len()
    };
    assert_eq!((folded(24), folded(25)), (24, 1), "so many are listed one by one");
}

#[test]
fn a_run_near_an_instant_is_found_by_its_fire_or_its_begin() {
    let run = |id: i64, cause: i64, fire_ms: i64, began_ms: Option<i64>| Run {
        cause,
        trigger: if cause == 0 { Trigger::Cron } else { Trigger::Api },
        started_at: began_ms.map(Timestamp::from_millis),
        ..row(id, Timestamp::from_millis(fire_ms), RunStatus::Succeeded, None)
    };
    let near = |runs: &[Run], ms| nearest_run(runs.to_vec(), Timestamp::from_millis(ms)).map(|run| run.id.get());
    let asked_for = [run(1, 7, 100_628, Some(100_700)), run(2, 8, 130_000, Some(190_500))];
    assert_eq!(near(&asked_for, 100_628), Some(1));
    assert_eq!((near(&asked_for, 100_000), near(&asked_for, 130_000)), (Some(1), Some(2)));
    assert_eq!((near(&asked_for, 190_000), near(&asked_for, 250_500)), (Some(2), Some(2)), "by its begin too");
    assert_eq!((near(&asked_for, 40_627), near(&asked_for, 250_501)), (None, None), "a minute at most");
    let planned = [run(3, 0, 600_000, Some(639_000))];
    assert_eq!((near(&planned, 639_400), near(&planned, 610_000)), (Some(3), None));
    let definitions = [Definition { from: secs(0), job: job(json!({})) }];
    let rows = [run(1, 7, 100_628, Some(100_700))];
    let facts = facts(&definitions, &rows);
    let answer = why_run(&facts, &rows[0]).with_subject(AnswerSubject::NearRun(Trigger::Api), &facts);
    let (en, zh) =
        ("Run of 1970-01-01 00:01:40.628 UTC, triggered through the API: It ran at", "的运行（通过 API 触发）：已于");
    assert!(answer.en.starts_with(en) && answer.zh.contains(zh), "{answer:?}");
}

#[test]
fn an_unknown_outcome_has_the_reason_that_is_true() {
    use crate::reason::ReasonDetail;
    let definitions = [Definition { from: secs(0), job: job(json!({"schedule": {"every": "1m"}})) }];
    let unknown = |reason, detail| {
        let (executor, started_at) = (Some("w1".to_owned()), Some(secs(60)));
        let detail = Some(Arc::new(ReasonDetail { executor: executor.clone(), ..detail }));
        Run { executor, started_at, detail, ..row(1, secs(60), RunStatus::Unknown, reason) }
    };
    let both = |row: Run| {
        let rows = [row.clone()];
        let why = why_run(&FireInput { rows: &rows, ..facts(&definitions, &[]) }, &row);
        (why.en, why.zh)
    };
    let (en, zh) = both(unknown(Some(Reason::NotReceived), ReasonDetail::default()));
    assert_eq!(
        en,
        "It may have run on w1, and its outcome is unknown: it was sent to executor w1, which did not acknowledge it and has no record of it, \
         and a run that may start at most once is not sent again."
    );
    assert!(zh.starts_with("可能执行过（执行器 w1），结果未知：已发送给执行器 w1") && zh.ends_with('。'), "{zh}");
    let (en, zh) = both(unknown(None, ReasonDetail { unreported_after_ms: Some(30_000), ..ReasonDetail::default() }));
    assert_eq!(
        en,
        "It ran at 1970-01-01 00:01 UTC on w1, and its outcome is unknown: it ran past its timeout of 30 s, and executor w1 \
         never reported that it ended."
    );
    assert!(zh.contains("结果未知：执行超过时限 30 秒"), "{zh}");
}

/// A pump begins when it is saved, and again after an edit or a failure: no schedule has such instants.
#[test]
fn a_pump_plans_the_instants_at_which_it_begins() {
    let pump = json!({"items": {"count": 2}, "groups": 1});
    let without = [Definition { from: secs(0), job: job(json!({"pump": pump})) }];
    let nightly = json!({"cron": "0 0 22 * * ?"});
    let until_empty = json!({"items": {"count": 2}, "groups": 1, "until": "empty"});
    let within = [Definition { from: secs(0), job: job(json!({"pump": until_empty, "schedule": nightly})) }];
    let plain = [Definition { from: secs(0), job: job(json!({})) }];
    let root = Run { trigger: Trigger::Once, ..done(1, secs(61)) };
    let rows = [root];
    for (definitions, is_planned) in [(&without, true), (&within, true), (&plain, false)] {
        let facts = FireInput { rows: &rows, ..facts(definitions, &[]) };
        let entries = fire_history(&facts, Range { from: secs(60), to: secs(62), limit: 9 }).entries;
        assert!(
            matches!(&entries[0].verdict, FireVerdict::Row { is_planned: planned, .. } if *planned == is_planned),
            "{entries:?}"
        );
        let why = why(&facts, secs(61));
        assert_eq!(why.en.contains("does not plan this instant"), !is_planned, "{}", why.en);
    }
    let never = |definitions| why_never(&facts(definitions, &[])).en;
    assert!(never(&without).contains("it begins when it is saved or resumed"), "{}", never(&without));
    assert!(never(&plain).contains("runs only when it is triggered"), "{}", never(&plain));
}

#[test]
fn a_fire_that_a_calendar_takes_is_not_over_while_it_is_ahead() {
    let (fire_at, over) = (at("10-07T01:00:00"), at("10-07T01:00:01"));
    for (rule, now, en, zh) in [
        (
            "only",
            fire_at,
            "It did not run: the calendar \"cn\" removes this fire (National Day).",
            "没有执行：日历 \"cn\" 排除了这次触发（National Day）。",
        ),
        (
            "only",
            at("10-01T00:00:00"),
            "It will not run at 2026-10-07 09:00 Asia/Shanghai: the calendar \"cn\" removes this fire (National Day).",
            "2026-10-07 09:00 Asia/Shanghai 不会执行：日历 \"cn\" 排除了这次触发（National Day）。",
        ),
        (
            "next",
            over,
            "It did not run then: the calendar \"cn\" (National Day) moves this fire to 2026-10-08 09:00 Asia/Shanghai.",
            "当时没有执行：日历 \"cn\"（National Day） 把这次触发移到了 2026-10-08 09:00 Asia/Shanghai。",
        ),
        (
            "next",
            at("10-07T00:59:59"),
            "It will not run at 2026-10-07 09:00 Asia/Shanghai: the calendar \"cn\" (National Day) moves this fire to \
             2026-10-08 09:00 Asia/Shanghai.",
            "2026-10-07 09:00 Asia/Shanghai 不会执行：日历 \"cn\"（National Day） 把这次触发移到了 2026-10-08 09:00 \
             Asia/Shanghai。",
        ),
    ] {
        let schedule = json!({"cron": "0 0 9 * * ?", "time_zone": "Asia/Shanghai"});
        let job = job(json!({"schedule": schedule, "calendar": {"name": "cn", "rule": rule}}));
        let definitions = [Definition { from: Timestamp::EPOCH, job }];
        let why = why(&FireInput { now, ..facts(&definitions, &[]) }, fire_at);
        assert_eq!((why.en.as_str(), why.zh.as_str()), (en, zh), "{rule} at {now}");
    }
}

#[test]
fn future_fires_in_shadow_mode_do_not_run() {
    let shadow = json!({"schedule": {"every": "1m"}, "mode": "shadow"});
    let definitions = [Definition { from: secs(0), job: job(shadow) }];
    let facts = FireInput { now: secs(90), next_fire_at: Some(secs(180)), ..facts(&definitions, &[]) };
    let planned = why(&facts, secs(180));
    assert_eq!(planned.en, "It will not run at 1970-01-01 00:03 UTC: the job is in shadow mode.");
    assert_eq!(planned.zh, "1970-01-01 00:03 UTC 不会执行：任务处于影子模式。");
    let claimed = row(1, secs(120), RunStatus::Pending, None);
    assert_eq!(sentence_of(&facts, &claimed), "It will not run at 1970-01-01 00:02 UTC: the job is in shadow mode.");
}

#[test]
fn a_pump_that_failed_at_its_end_names_the_rows_that_were_left() {
    let definitions = [Definition { from: secs(0), job: job(json!({"schedule": {"every": "1m"}})) }];
    let facts = facts(&definitions, &[]);
    let ended = |reason| Run { status: RunStatus::Failed, reason: Some(reason), ..done(1, secs(60)) };
    assert_eq!(
        sentence_of(&facts, &ended(Reason::Dry)),
        "It ran at 1970-01-01 00:01:00.004 UTC on w-1, failed: the rows that were left had failed for good."
    );
    assert!(
        sentence_of(&facts, &ended(Reason::WindowOver)).contains("failed: at the end of the window, rows were left")
    );
}
