mod attempts;
mod context;
mod sentences;
mod verdicts;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::calendar::{Calendar, CalendarSpec};
use crate::id::{AppId, JobId, NamespaceId, NodeId, RunId};
use crate::job::Job;
use crate::reason::Reason;
use crate::run::{Run, RunJob};
use crate::status::{RunStatus, Trigger};
use crate::time::Timestamp;
use crate::words::Lang;

fn at(text: &str) -> Timestamp {
    format!("2026-{text}Z").parse().unwrap()
}

fn secs(seconds: i64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

fn job(change: Value) -> Job {
    let mut spec = json!({"name": "a", "app": "b", "handler": "c"});
    let Value::Object(change) = change else { unreachable!() };
    spec.as_object_mut().unwrap().extend(change);
    let spec: crate::JobSpec = serde_json::from_value(spec).unwrap();
    spec.compile_with(spec.calendar.is_some().then(workdays)).unwrap()
}

/// A calendar of working days in China: without the first week of October 2026, but with a Saturday that replaces one of its days.
fn workdays() -> Arc<Calendar> {
    let spec: CalendarSpec = serde_json::from_value(json!({"name": "cn", "rule": {"any": [
        {"days": ["2026-10-10"]},
        {"all": [
            {"weekdays": ["mon", "tue", "wed", "thu", "fri"]},
            {"not": {"days": [{"date": "2026-10-01..2026-10-07", "name": "National Day"}]}},
        ]},
    ]}}))
    .unwrap();
    Arc::new(Calendar::compile(&spec, |_| None).unwrap())
}

fn row(id: i64, fire_at: Timestamp, status: RunStatus, reason: Option<Reason>) -> Run {
    let run_job = RunJob { namespace: NamespaceId::new(1), job: JobId::new(1), job_version: 1, app: AppId::new(1) };
    Run { status, reason, ..Run::new(RunId::new(id), run_job, fire_at, Trigger::Cron, (NodeId::new(1), 1)) }
}

fn done(id: i64, fire_at: Timestamp) -> Run {
    let started_at = Some(fire_at + Duration::from_millis(4));
    Run { executor: Some("w-1".to_owned()), started_at, ..row(id, fire_at, RunStatus::Succeeded, None) }
}

fn span(id: i64, first: Timestamp, last: Timestamp, count: i64) -> Run {
    Run { span_end_at: Some(last), span_count: count, ..row(id, first, RunStatus::Skipped, Some(Reason::Misfire)) }
}

fn facts<'a>(definitions: &'a [Definition], rows: &'a [Run]) -> FireInput<'a> {
    FireInput {
        definitions,
        anchor: Timestamp::EPOCH,
        deleted_at: None,
        rows,
        attempts: &[],
        context: None,
        next_fire_at: None,
        now: secs(1_000_000),
        windows: &[],
        kept_from: Timestamp::EPOCH,
    }
}

fn entries_of(facts: &FireInput<'_>, from: Timestamp, to: Timestamp) -> Vec<String> {
    let FireHistory { entries, next } = fire_history(facts, Range { from, to, limit: ENTRY_COUNT_MAX });
    assert_eq!(next, None);
    let describe = |entry: &Entry| {
        let Entry { first, last, count, verdict } = entry;
        let first = first.to_string().replace("2026-", "").replace("1970-01-01T", "");
        let more = if *count == 1 { String::new() } else { format!("+{}x{count}", last.since(entry.first).as_secs()) };
        let detail = match verdict {
            FireVerdict::Row { run, is_planned, .. } => {
                format!(" #{run}{}", if *is_planned { "" } else { " unplanned" })
            }
            FireVerdict::Span { run, .. } => format!(" #{run}"),
            FireVerdict::Calendar { day, moved_to, .. } => {
                let moved = moved_to.map(|to| format!(" to {to}").replace("2026-", "")).unwrap_or_default();
                format!(" {}{moved}", day.as_deref().unwrap_or("-"))
            }
            _ => String::new(),
        };
        format!("{first}{more} {}{detail}", verdict.code())
    };
    entries.iter().map(describe).collect()
}

#[test]
fn each_state_of_a_fire_is_listed() {
    let definitions = [Definition { from: Timestamp::EPOCH, job: job(json!({"schedule": {"every": "10s"}})) }];
    let rows = [
        done(1, secs(30)),
        row(2, secs(40), RunStatus::Failed, None),
        span(3, secs(50), secs(70), 3),
        Run { cause: 9, ..done(8, secs(85)) },
        row(4, secs(105), RunStatus::Skipped, Some(Reason::Changed)),
        row(5, secs(110), RunStatus::Pending, None),
    ];
    let facts =
        FireInput { now: secs(101), next_fire_at: Some(secs(100)), kept_from: secs(25), ..facts(&definitions, &rows) };
    let expected = [
        "00:00:10Z removed",
        "00:00:20Z removed",
        "00:00:30Z succeeded #1",
        "00:00:40Z failed #2",
        "00:00:50Z+20x3 skipped #3",
        "00:01:20Z missing",
        "00:01:30Z missing",
        "00:01:40Z undecided",
        "00:01:45Z skipped #4 unplanned",
        "00:01:50Z pending #5",
        "00:02:00Z planned",
    ];
    assert_eq!(entries_of(&facts, secs(1), secs(120)), expected);
}

#[test]
fn definitions_hold_from_the_instant_after_they_were_saved() {
    let definition = |from, change| Definition { from: secs(from), job: job(change) };
    let definitions = [
        definition(5, json!({"schedule": {"every": "10s"}})),
        definition(30, json!({"schedule": {"every": "10s"}, "enabled": false})),
        definition(55, json!({"schedule": {"every": "20s"}})),
    ];
    let rows: Vec<Run> = [10, 20, 30, 60].into_iter().map(|second| done(second, secs(second))).collect();
    let facts = FireInput { deleted_at: Some(secs(85)), ..facts(&definitions, &rows) };
    let expected = [
        "00:00:10Z succeeded #10",
        "00:00:20Z succeeded #20",
        "00:00:30Z succeeded #30",
        "00:00:40Z paused",
        "00:00:50Z paused",
        "00:01:00Z succeeded #60",
        "00:01:20Z missing",
    ];
    assert_eq!(entries_of(&facts, secs(0), secs(1000)), expected);
}

#[test]
fn long_stretches_are_one_entry_however_long() {
    let paused = json!({"schedule": {"cron": "* * * * * ?"}, "enabled": false});
    let definitions = [Definition { from: Timestamp::EPOCH, job: job(paused) }];
    let rows = [span(7, secs(100_001), secs(200_000), 100_000)];
    let expected = [
        "00:00:01Z+99999x100000 paused",
        "1970-01-02T03:46:41Z+99999x100000 skipped #7",
        "1970-01-03T07:33:21Z paused",
    ];
    assert_eq!(
        entries_of(&facts(&definitions, &rows), secs(1), secs(200_001))
            .iter()
            .map(|entry| entry.replace("1970-01-01T", ""))
            .collect::<Vec<_>>(),
        expected
    );
    let inside = ["1970-01-02T03:53:20Z+600x601 skipped #7"];
    assert_eq!(entries_of(&facts(&definitions, &rows), secs(100_400), secs(101_000)), inside);
}

#[test]
fn a_calendar_names_its_days() {
    let only = |rule| {
        let schedule = json!({"cron": "0 0 9 * * ?", "time_zone": "Asia/Shanghai"});
        let job = job(json!({"schedule": schedule, "calendar": {"name": "cn", "rule": rule}}));
        [Definition { from: Timestamp::EPOCH, job }]
    };
    let (from, to) = (at("10-07T00:00:00"), at("10-12T00:00:00"));
    let now = at("10-01T00:00:00");
    let definitions = only("only");
    let expected = [
        "10-07T01:00:00Z calendar National Day",
        "10-08T01:00:00Z planned",
        "10-09T01:00:00Z planned",
        "10-10T01:00:00Z planned",
        "10-11T01:00:00Z calendar -",
    ];
    assert_eq!(entries_of(&FireInput { now, ..facts(&definitions, &[]) }, from, to), expected);
    let definitions = only("next");
    let expected = [
        "10-07T01:00:00Z calendar National Day to 10-08T01:00:00Z",
        "10-08T01:00:00Z planned",
        "10-09T01:00:00Z planned",
        "10-10T01:00:00Z planned",
        "10-11T01:00:00Z calendar - to 10-12T01:00:00Z",
    ];
    assert_eq!(entries_of(&FireInput { now, ..facts(&definitions, &[]) }, from, to), expected);
}

#[test]
fn a_calendar_that_removes_every_fire_is_named() {
    let weekly = |day: &str| {
        let schedule = json!({"cron": format!("0 0 9 ? * {day}"), "time_zone": "UTC"});
        [Definition { from: at("10-12T00:00:00"), job: job(json!({"schedule": schedule, "calendar": {"name": "cn"}})) }]
    };
    let now = at("10-12T01:00:00");
    let definitions = weekly("SUN");
    let facts = FireInput { now, ..facts(&definitions, &[]) };
    assert_eq!(nearest_fires(&facts), (None, None));
    let answer = why_never(&facts);
    assert_eq!(answer.en, "It has not run so far: the calendar \"cn\" removes every fire of the schedule.");
    assert_eq!(answer.zh, "至今没有执行过：日历 \"cn\" 排除了调度的所有触发。");
    let then = why(&facts, now);
    assert!(then.en.contains("the calendar \"cn\" removes every fire of the schedule"), "{}", then.en);
    let definitions = weekly("MON");
    let open = why(&FireInput { definitions: &definitions, ..facts }, now);
    assert!(!open.en.contains("removes") && open.after.is_some(), "{}", open.en);
}

#[test]
fn a_closed_day_of_a_one_second_job_is_one_entry() {
    let schedule = json!({"cron": "* * * * * ?", "time_zone": "Asia/Shanghai"});
    let definitions =
        [Definition { from: Timestamp::EPOCH, job: job(json!({"schedule": schedule, "calendar": {"name": "cn"}})) }];
    let facts = FireInput { now: at("10-01T00:00:00"), ..facts(&definitions, &[]) };
    let expected = [
        "10-06T16:00:00Z+86399x86400 calendar National Day",
        "10-07T16:00:00Z+259199x259200 planned",
        "10-10T16:00:00Z+86399x86400 calendar -",
        "10-11T16:00:00Z planned",
    ];
    assert_eq!(entries_of(&facts, at("10-06T16:00:00"), at("10-11T16:00:00")), expected);
}

#[test]
fn a_delay_has_its_rows_and_its_next_fire() {
    let definitions = [Definition { from: Timestamp::EPOCH, job: job(json!({"schedule": {"delay": "20s"}})) }];
    let rows = [done(1, Timestamp::from_millis(30_020))];
    let facts =
        FireInput { now: secs(40), next_fire_at: Some(Timestamp::from_millis(52_500)), ..facts(&definitions, &rows) };
    assert_eq!(entries_of(&facts, secs(0), secs(100)), ["00:00:30.020Z succeeded #1", "00:00:52.500Z planned"]);
}

#[test]
fn a_full_history_names_the_next_instant() {
    let definitions =
        [Definition { from: Timestamp::EPOCH, job: job(json!({"schedule": [{"every": "1s"}, {"every": "2s"}]})) }];
    let rows: Vec<Run> = (1..=9).map(|second| done(second, secs(second))).collect();
    let facts = facts(&definitions, &rows);
    let first = fire_history(&facts, Range { from: secs(1), to: secs(9), limit: 4 });
    assert_eq!((first.entries.len(), first.next), (4, Some(secs(5))));
    let part = fire_history(&facts, Range { from: secs(10), to: secs(400 * 86_400), limit: 10 });
    assert_eq!((part.entries[0].count, part.next), (25_000, Some(Timestamp::from_millis(25_009_001))));
}

#[track_caller]
fn check_why(facts: &FireInput<'_>, at: Timestamp, en: &str, zh: &str) {
    let why = why(facts, at);
    assert_eq!((why.sentence(Lang::En), why.sentence(Lang::Zh)), (en, zh));
}

/// English messages of executors and the server are translated into the language of the answer, and no outcome is named twice.
#[test]
fn the_answer_has_the_message_in_its_language_and_the_outcome_once() {
    let schedule = json!({"cron": "0 30 2 * * ?", "time_zone": "UTC"});
    let definitions = [Definition { from: at("06-01T00:00:00"), job: job(json!({"schedule": schedule})) }];
    let night = |day| at(&format!("06-{day:02}T02:30:00"));
    let ended =
        |day: i64, status, message: &str| Run { message: Some(message.to_owned()), status, ..done(day, night(day)) };
    let rows = [
        ended(2, RunStatus::TimedOut, "timed out after 2s"),
        Run { attempt: 2, ..ended(3, RunStatus::TimedOut, "timed out after 1m; executor w-1 did not stop it") },
        ended(4, RunStatus::Failed, "exit code 3: disk full"),
        Run { open_children: Some(0), ..ended(5, RunStatus::Failed, "report.send timed out") },
        ended(6, RunStatus::TimedOut, "2 of 4 shards timed out"),
    ];
    let facts = FireInput { now: at("06-09T12:00:00"), next_fire_at: Some(night(9)), ..facts(&definitions, &rows) };
    for (day, en, zh) in [
        (2, "timed out after 2s.", "，超时：时限为 2 秒。"),
        (
            3,
            "timed out on attempt 2 after 1m; executor w-1 did not stop it.",
            "，超时（第 2 次尝试）：时限为 1 分钟；执行器 w-1 没有停止它。",
        ),
        (4, "failed: exit code 3: disk full.", "，失败：退出码 3：“disk full”。"),
        (5, "failed: report.send timed out.", "，失败：下游任务 report.send 超时。"),
        (6, "timed out: 2 of 4 shards timed out.", "，超时：4 个分片中有 2 个超时。"),
    ] {
        let start = format!("2026-06-{day:02} 02:30:00.004 UTC");
        let en = format!("It ran at {start} on w-1, {en}");
        let zh = format!("已于 {start} 执行（执行器 w-1）{zh}");
        check_why(&facts, night(day), &en, &zh);
    }
}

#[test]
fn the_answer_is_a_sentence() {
    let schedule = json!({"cron": "0 30 2 * * ?", "time_zone": "Europe/Berlin"});
    let definitions = [Definition { from: at("06-01T00:00:00"), job: job(json!({"schedule": schedule})) }];
    let night = |day| at(&format!("06-{day:02}T00:30:00"));
    let rows = [
        done(2, night(2)),
        Run { message: Some("exit 3".to_owned()), status: RunStatus::Failed, ..done(3, night(3)) },
        row(4, night(4), RunStatus::Skipped, Some(Reason::Overlap)),
        span(5, night(5), night(7), 3),
        Run { cancel_by: Some("li".to_owned()), ..row(8, night(8), RunStatus::Cancelled, None) },
    ];
    let facts = FireInput { now: at("06-09T12:00:00"), next_fire_at: Some(night(9)), ..facts(&definitions, &rows) };
    check_why(
        &facts,
        night(2),
        "It ran at 2026-06-02 02:30:00.004 Europe/Berlin on w-1, succeeded.",
        "已于 2026-06-02 02:30:00.004 Europe/Berlin 执行（执行器 w-1），成功。",
    );
    check_why(
        &facts,
        night(3),
        "It ran at 2026-06-03 02:30:00.004 Europe/Berlin on w-1, failed: exit 3.",
        "已于 2026-06-03 02:30:00.004 Europe/Berlin 执行（执行器 w-1），失败：“exit 3”。",
    );
    check_why(
        &facts,
        night(4),
        "It did not run: an earlier run had not ended, and the job's overlap policy skips overlapping runs.",
        "没有执行：较早的运行尚未结束，按任务的重叠策略跳过。",
    );
    check_why(
        &facts,
        night(6),
        "It did not run: its instant passed while no server was at work, and the job's misfire policy skips it. The same \
         holds for all 3 fires from 2026-06-05 02:30 Europe/Berlin to 2026-06-07 02:30 Europe/Berlin.",
        "没有执行：到期时没有服务器在工作，按任务的错过策略跳过。从 2026-06-05 02:30 Europe/Berlin 到 2026-06-07 02:30 \
         Europe/Berlin 共 3 次触发都是如此。",
    );
    check_why(&facts, night(8), "It did not run: it was cancelled by li.", "没有执行：已被取消（操作人 li）。");
    check_why(
        &facts,
        night(9),
        "It has not run yet: it was due at 2026-06-09 02:30 Europe/Berlin, and no server has taken it up so far.",
        "尚未执行：应在 2026-06-09 02:30 Europe/Berlin 执行，目前还没有服务器接手。",
    );
    check_why(
        &facts,
        night(10),
        "It will run at 2026-06-10 02:30 Europe/Berlin.",
        "将在 2026-06-10 02:30 Europe/Berlin 执行。",
    );
    check_why(
        &facts,
        at("06-04T02:30:00"),
        "Nothing was planned at 2026-06-04 04:30 Europe/Berlin, the previous fire is 2026-06-04 02:30 Europe/Berlin, the next one \
         is 2026-06-05 02:30 Europe/Berlin.",
        "2026-06-04 04:30 Europe/Berlin 没有安排，前一次触发是 2026-06-04 02:30 Europe/Berlin，下一次是 2026-06-05 02:30 \
         Europe/Berlin。",
    );
}

#[test]
fn the_reason_why_nothing_was_planned_is_given() {
    let manual = [Definition { from: secs(100), job: job(json!({})) }];
    let child = [Definition { from: secs(100), job: job(json!({"schedule": {"after": ["x", "y"]}})) }];
    let en = |saved: &[Definition], deleted_at, at| why(&FireInput { deleted_at, ..facts(saved, &[]) }, secs(at)).en;
    let expected =
        "Nothing was planned at 1970-01-01 00:05 UTC: the job has no schedule and runs only when it is triggered.";
    assert_eq!(en(&manual, None, 300), expected);
    assert_eq!(en(&child, None, 300), "Nothing was planned at 1970-01-01 00:05 UTC: the job follows x, y.");
    let expected = "Nothing was planned at 1970-01-01 00:05 UTC: the job was deleted at 1970-01-01 00:03:20 UTC.";
    assert_eq!(en(&manual, Some(secs(200)), 300), expected);
    let expected = "Nothing was planned at 1970-01-01 00:01 UTC: the first known definition was saved at \
                    1970-01-01 00:01:40 UTC.";
    assert_eq!(en(&manual, None, 60), expected);
    // For an instant more than a year before the first definition, the caller passes no definition.
    let expected = "Nothing was planned at 1970-01-01 00:05 UTC: no definition of the job is known from that time.";
    assert_eq!(en(&[], None, 300), expected);
}

fn schedules() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({"every": "7s"})),
        Just(json!({"cron": "0/20 * * * * ?"})),
        Just(json!([{"every": "30s"}, {"cron": "0/20 * * * * ?"}])),
        Just(json!({"cron": "0 0/7 * * * ?", "time_zone": "Asia/Shanghai"})),
        Just(json!([{"cron": "0 0 * * * ?", "time_zone": "Asia/Shanghai"}, {"at": "2026-10-07T15:59:30Z"}])),
    ]
}

fn definitions(base: i64) -> impl Strategy<Value = Vec<Definition>> {
    let rule = prop_oneof![Just(None), Just(Some("only")), Just(Some("except")), Just(Some("next"))];
    let one = (0i64..1200, schedules(), any::<bool>(), rule);
    prop::collection::vec(one, 1..4).prop_map(move |mut found| {
        found.sort_by_key(|(from, ..)| *from);
        let define = |(from, schedule, enabled, rule): (i64, Value, bool, Option<&str>)| {
            let mut spec = json!({"schedule": schedule, "enabled": enabled});
            if let Some(rule) = rule {
                spec["calendar"] = json!({"name": "cn", "rule": rule});
            }
            Definition { from: secs(base + from), job: job(spec) }
        };
        found.into_iter().map(define).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Each planned fire, each row and each instant that a calendar removes or moves is counted in exactly one entry, and nothing else is.
    #[test]
    fn every_planned_fire_is_listed_once(
        definitions in definitions(at("10-07T15:50:00").second()),
        rows in prop::collection::btree_map(0i64..1500, prop::option::of(1i64..200), 0..12),
        (now, next, kept) in (0i64..1500, prop::option::of(0i64..1500), 0i64..1500),
        limit in 1usize..40,
    ) {
        let base = at("10-07T15:50:00").second();
        let rows: Vec<Run> = rows
            .into_iter()
            .enumerate()
            .map(|(id, (second, length))| {
                let (id, at) = (i64::try_from(id).unwrap(), secs(base + second));
                length.map_or_else(|| done(id, at), |length| span(id, at, at + Duration::from_secs(length.unsigned_abs()), 9))
            })
            .collect();
        let facts = FireInput {
            next_fire_at: next.map(|next| secs(base + next)), now: secs(base + now), kept_from: secs(base + kept),
            ..facts(&definitions, &rows)
        };
        let (from, to) = (secs(base), secs(base + 1500));
        let mut planned: BTreeMap<Timestamp, bool> = BTreeMap::new();
        for (index, definition) in definitions.iter().enumerate() {
            let until = definitions.get(index + 1).map_or(to, |next| next.from);
            let table = &definition.job.timetable;
            planned.extend(table.fires(facts.anchor, definition.from, until).map(|fire| (fire.at, true)));
            planned.extend(table.removed_fires(facts.anchor, definition.from, until).map(|fire| (fire.at, false)));
        }
        planned.extend(rows.iter().map(|row| (row.fire_at, true)));
        let mut parts: Vec<Entry> = Vec::new();
        let mut cursor = Some(from);
        while let Some(from) = cursor {
            let part = fire_history(&facts, Range { from, to, limit });
            parts.extend(part.entries);
            prop_assert!(part.next.is_none_or(|next| next > from));
            cursor = part.next;
        }
        prop_assert!(parts.windows(2).all(|pair| pair[0].last < pair[1].first), "{parts:?}");
        let mut covered = 0;
        for entry in &parts {
            let inside: Vec<bool> = planned.range(entry.first..=entry.last).map(|(_, fires)| *fires).collect();
            prop_assert_eq!(u64::try_from(inside.len()).unwrap(), entry.count, "{:?}", entry);
            prop_assert!(inside.iter().all(|fires| *fires == entry.verdict.is_fire()), "{entry:?}");
            covered += inside.len();
        }
        prop_assert_eq!(covered, planned.len());
    }
}

#[test]
fn lateness_is_explained_by_the_wait() {
    use crate::reason::{Obstacle, ObstacleKind, ReasonDetail, WaitFor};
    let definitions = [Definition { from: secs(0), job: job(json!({"schedule": {"every": "1m"}})) }];
    let full = Obstacle { executor: "w1".to_owned(), kind: ObstacleKind::Full, condition: None };
    let detail = ReasonDetail { waits_for: Some(WaitFor::Slot), ..ReasonDetail::default() }.with_obstacles([full]);
    let trace = r#"{"route":"round","of":["w1"],"waited":{"executor":38000}}"#;
    let late = Run {
        started_at: Some(secs(99)),
        detail: Some(Arc::new(detail)),
        trace: Some(trace.to_owned()),
        ..done(1, secs(60))
    };
    let rows = [late, Run { started_at: Some(secs(159)), trace: None, ..done(2, secs(120)) }];
    let facts = facts(&definitions, &rows);
    check_why(
        &facts,
        secs(60),
        "It ran at 1970-01-01 00:01:39 UTC on w-1, 39 s late (waited 38 s for a free slot on w1), succeeded.",
        "已于 1970-01-01 00:01:39 UTC 执行（执行器 w-1），晚了 39 秒（等待 w1 上的空闲槽位用了 38 秒），成功。",
    );
    assert!(why(&facts, secs(120)).en.contains("on w-1, 39 s late, succeeded."));
}

/// Twenty crons that fire each second, of a job that was deleted or paused long ago: the search is bounded, and finds the nearest fires.
#[test]
fn the_search_for_the_nearest_fires_is_bounded() {
    let crons: Vec<Value> = (0..20).map(|_| json!({"cron": "* * * * * ?"})).collect();
    let definitions = [Definition { from: secs(1_000_000), job: job(json!({"schedule": crons})) }];
    let deleted_at = secs(1_500_000);
    let gone = FireInput { deleted_at: Some(deleted_at), now: secs(2_000_000), ..facts(&definitions, &[]) };
    let answer = why(&gone, Timestamp::from_millis(1_600_000_500));
    assert_eq!((answer.before, answer.after), (Some(deleted_at), None));
    let ahead = why(&gone, secs(100));
    assert_eq!((ahead.before, ahead.after), (None, Some(secs(1_000_001))));
    assert_eq!(
        nearest_fires(&FireInput { now: secs(1_200_000), ..facts(&definitions, &[]) }),
        (Some(secs(1_200_000)), Some(secs(1_200_001)))
    );
}
