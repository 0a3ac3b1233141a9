//! Rules with their sentences, conditions by table, and deadlines over clock changes.

use std::time::Duration;

use serde_json::json;

use super::deadline::Deadline;
use super::judge::{self, EndedRun, UnsuccessfulFire};
use super::*;
use crate::id::{IncidentId, JobId, RunId};
use crate::notice::RunSample;
use crate::reason::Reason;
use crate::status::RunStatus;
use crate::time::Timestamp;
use crate::words::Lang;

pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_secs(second)
}

pub(super) fn instant(text: &str) -> Timestamp {
    text.parse().unwrap()
}

pub(super) fn spec(more: &serde_json::Value) -> RuleSpec {
    let mut document = json!({"name": "rule", "condition": {"failed": {}}, "channels": ["slack"]});
    for (key, value) in more.as_object().unwrap() {
        document[key] = value.clone();
    }
    serde_json::from_value(document).unwrap()
}

#[track_caller]
fn check_refused(more: &serde_json::Value, pointer: &str, part: &str) {
    let errors = spec(more).check().unwrap_err();
    let found = errors.iter().find(|error| error.pointer == pointer);
    let message = found.map(|error| error.message.as_str());
    assert!(message.is_some_and(|message| message.contains(part)), "{errors:?}");
}

#[test]
fn a_wrong_rule_is_refused_with_the_field_and_a_correction() {
    check_refused(&json!({"name": "No Name"}), "/name", "is not a name");
    check_refused(&json!({"scope": {"label": "team"}}), "/scope/label", "key=value");
    check_refused(&json!({"scope": {"job": "Nightly"}}), "/scope/job", "is not a name");
    check_refused(
        &json!({"condition": {"failures_in_row": {"count": 0}}}),
        "/condition/failures_in_row/count",
        "from 1 to 100",
    );
    check_refused(
        &json!({"condition": {"failure_rate": {"percent": 101, "window": "1h"}}}),
        "/condition/failure_rate/percent",
        "1 to 100",
    );
    check_refused(
        &json!({"condition": {"failure_rate": {"percent": 5, "window": "1s"}}}),
        "/condition/failure_rate/window",
        "1m",
    );
    let by = |time: &str, zone: &str| json!({"condition": {"not_succeeded_by": {"time": time, "zone": zone}}});
    check_refused(&by("6:00", "Europe/Berlin"), "/condition/not_succeeded_by/time", "HH:MM");
    check_refused(&by("24:00", "Europe/Berlin"), "/condition/not_succeeded_by/time", "HH:MM");
    check_refused(&by("06:00", "Europe/Atlantis"), "/condition/not_succeeded_by/zone", "Atlantis");
    check_refused(&json!({"condition": {"running_longer": {}}}), "/condition/running_longer/than", "times_p95");
    let both = json!({"condition": {"running_longer": {"than": "1h", "times_p95": 3}}});
    check_refused(&both, "/condition/running_longer/than", "either");
    check_refused(&json!({"condition": {"node_lost": {}}, "scope": {"job": "a"}}), "/scope", "not about jobs");
    check_refused(&json!({"condition": {"no_executor": {}}, "scope": {"job": "a"}}), "/scope", "about apps");
    let disk = |bound: serde_json::Value| json!({"condition": {"disk_low": bound}});
    check_refused(&disk(json!({})), "/condition/disk_low/free_percent", "either free_percent");
    check_refused(&disk(json!({"free_percent": 5, "free": "1GiB"})), "/condition/disk_low/free_percent", "either");
    check_refused(&disk(json!({"free_percent": 91})), "/condition/disk_low/free_percent", "91 is not from 1 to 90");
    check_refused(&disk(json!({"free": "0B"})), "/condition/disk_low/free", "0B is not from 1B");
    let growth = json!({"condition": {"ledger_growth": {"runs": 0, "window": "30d"}}});
    check_refused(&growth, "/condition/ledger_growth/runs", "0 is not from 1");
    check_refused(&growth, "/condition/ledger_growth/window", "is not from 1m to");
    let labelled = json!({"condition": {"ledger_growth": {"runs": 9, "window": "1h"}}, "scope": {"label": "a=b"}});
    check_refused(&labelled, "/scope", "not for a label");
    let expiring = json!({"condition": {"certificate_expiring": {"within": "0s"}}, "scope": {"app": "a"}});
    check_refused(&expiring, "/condition/certificate_expiring/within", "0s is not from 1s");
    check_refused(&expiring, "/scope", "not about jobs");
    check_refused(&json!({"channels": ["a", "a"]}), "/channels/1", "twice");
    check_refused(&json!({"digest": "0s"}), "/digest", "1s");
    check_refused(&json!({"group_over": 0}), "/group_over", "1 to 100");
    check_refused(&json!({"escalate": {"channel": "Pager", "after": "5m"}}), "/escalate/channel", "is not a name");
    spec(&json!({"scope": {"app": "billing"}, "repeat": "4h", "escalate": {"channel": "pager", "after": "30m"}}))
        .check()
        .unwrap();
    let unknown = serde_json::from_value::<RuleSpec>(json!({"name": "a", "condition": {"failed": {"cuont": 3}}}));
    assert!(unknown.unwrap_err().to_string().contains("cuont"));
}

#[test]
fn a_rule_is_a_sentence_in_both_languages() {
    let close = spec(&json!({"scope": {"job": "nightly-close"}, "condition":
        {"not_succeeded_by": {"time": "06:00", "zone": "Europe/Berlin", "weekdays": ["mon", "fri"]}}}));
    assert_eq!(sentence::rule(&close, Lang::En), "nightly-close has not succeeded by 06:00 Europe/Berlin on Mon, Fri");
    assert_eq!(sentence::rule(&close, Lang::Zh), "nightly-close 在 06:00（Europe/Berlin，周一、周五）前没有成功");
    let all = spec(&json!({"condition": {"failures_in_row": {"count": 3}}}));
    assert_eq!(sentence::rule(&all, Lang::En), "any job failed 3 times in a row");
    assert_eq!(sentence::rule(&all, Lang::Zh), "任一任务连续失败 3 次");
    let skipped = spec(&json!({"condition": {"skipped": {"reasons": ["no_executor", "misfire"]}}}));
    assert_eq!(sentence::rule(&skipped, Lang::En), "any job was skipped (no executor, misfire)");
    assert_eq!(sentence::rule(&skipped, Lang::Zh), "任一任务被跳过（没有执行器、错过触发）");
    let token = spec(&json!({"condition": {"token_expiring": {"within": "14d"}}}));
    assert_eq!(sentence::rule(&token, Lang::En), "a token ends within 14 days");
    assert_eq!(sentence::rule(&token, Lang::Zh), "有令牌将在14天内到期");
    let certificate = spec(&json!({"condition": {"certificate_expiring": {"within": "14d"}}}));
    assert_eq!(sentence::rule(&certificate, Lang::En), "a TLS certificate ends within 14 days");
    let disk = spec(&json!({"condition": {"disk_low": {"free": "20GiB"}}}));
    assert_eq!(sentence::rule(&disk, Lang::En), "a disk has less than 20GiB free");
    assert_eq!(sentence::rule(&disk, Lang::Zh), "磁盘可用空间不足 20GiB");
    let growth = spec(&json!({"condition": {"ledger_growth": {"runs": 1000, "window": "1h"}}}));
    assert_eq!(sentence::rule(&growth, Lang::En), "all jobs together had 1000 or more runs in the last 1 hour");
}

#[test]
fn a_fire_is_part_of_the_incident_that_names_it_or_that_it_falls_into() {
    let by = json!({"condition": {"not_succeeded_by": {"time": "06:00", "zone": "UTC"}}});
    let check_of = |more: &serde_json::Value,
                    (is_failure, reason): (bool, Option<Reason>),
                    (ended_of, run): (Option<i64>, Option<i64>)| {
        let sample =
            RunSample { run: RunId::new(7), job: "j".to_owned(), fire_at: at(100_000), message: String::new() };
        let incident = Incident {
            id: IncidentId::new(1),
            subject: Subject { kind: SubjectKind::Job, id: 1, name: "j".to_owned(), app: None },
            group: None,
            state: IncidentState::Resolved,
            started_at: at(100_000),
            seen_at: at(100_100),
            resolved_at: Some(at(100_200)),
            count: 1,
            reported_count: 1,
            fired_at: None,
            reported_at: None,
            escalated_at: None,
            acknowledged_by: None,
            acknowledged_at: None,
            message_count: 0,
            check_at: None,
            samples: vec![sample],
        };
        let fire = ended_of.map(|second| UnsuccessfulFire { at: at(second), is_failure, reason });
        judge::is_part_of(&spec(more), &incident, (fire, run.map(RunId::new)))
    };
    let check = |more: &serde_json::Value, fire| check_of(more, (true, None), fire);
    let failed = json!({});
    assert!(check(&failed, (None, Some(7))) && !check(&failed, (None, Some(8))), "a run that is under way");
    for (second, is_in) in [(99_999, false), (100_000, true), (100_200, true), (100_201, false)] {
        assert_eq!(check(&failed, (Some(second), Some(8))), is_in, "{second}");
    }
    assert!(check(&by, (Some(100_000 - 86_400), None)) && !check(&by, (Some(100_000 - 86_401), None)));
    let (in_row, skipped) = (json!({"failures_in_row": {"count": 3}}), json!({"skipped": {}}));
    let busy = json!({"skipped": {"reasons": ["no_executor"]}});
    let (failure, skip) = ((true, None), (false, None));
    for (condition, fire, is_in) in [
        (&in_row, failure, true),
        (&in_row, skip, false),
        (&skipped, skip, false),
        (&skipped, failure, false),
        (&skipped, (false, Some(Reason::Overlap)), true),
        (&skipped, (false, Some(Reason::Shadow)), false),
        (&busy, (false, Some(Reason::NoExecutor)), true),
        (&busy, (false, Some(Reason::Overlap)), false),
    ] {
        let rule = json!({ "condition": condition });
        assert_eq!(check_of(&rule, fire, (Some(100_100), None)), is_in, "{rule} {fire:?}");
    }
}

#[test]
fn a_disk_around_its_bound_is_reported_once() {
    let low = |bound, free, is_open| judge::is_disk_low(bound, (free, 1_000), is_open);
    let tenth = (Some(10), None);
    assert!(low(tenth, 99, false) && !low(tenth, 100, false));
    assert!(low(tenth, 109, true), "the incident goes on until a tenth more is free");
    assert!(!low(tenth, 110, true));
    assert!(low((None, Some(50)), 49, false) && !low((None, Some(50)), 50, false));
    assert!(!judge::is_disk_low(tenth, (0, 0), false), "a file system without a size");
}

/// Runs by their letters, the newest first: `s`ucceeded, `f`ailed, s`k`ipped, `c`ancelled. Ids and instants count down to 1.
fn runs(letters: &str) -> Vec<EndedRun> {
    let status = |letter| match letter {
        's' => RunStatus::Succeeded,
        'f' => RunStatus::Failed,
        'k' => RunStatus::Skipped,
        _ => RunStatus::Cancelled,
    };
    let count = i64::try_from(letters.len()).unwrap();
    let run =
        |(letter, id)| EndedRun { run: RunId::new(id), job: JobId::new(1), fire_at: at(id), status: status(letter) };
    letters.chars().zip((1..=count).rev()).map(run).collect()
}

fn ids(ids: &[i64]) -> Vec<RunId> {
    ids.iter().copied().map(RunId::new).collect()
}

#[test]
fn a_streak_is_found_even_where_it_is_over_by_now() {
    let check = |count, letters: &str, events: &[i64]| judge::failures_in_row(count, &runs(letters), &ids(events));
    let holds = |since, new_count| ConditionState::Holds { since: at(since), new_count };
    assert_eq!(check(3, "fffs", &[4, 3, 2]), holds(2, 3));
    assert_eq!(check(3, "ffs", &[3, 2]), ConditionState::Clear);
    assert_eq!(check(3, "fcfkfs", &[6]), holds(2, 3), "cancelled and skipped ones do not count");
    assert_eq!(check(3, "ffffs", &[5]), holds(2, 1), "three of the four were counted before");
    assert_eq!(
        check(1, "sfs", &[2]),
        ConditionState::HasEnded { since: at(2), new_count: 1 },
        "it failed and succeeded in between"
    );
    assert_eq!(check(1, "sfs", &[]), ConditionState::Clear, "that was reported before");
    assert_eq!(check(3, "sfff", &[1, 2, 3]), ConditionState::HasEnded { since: at(1), new_count: 3 });
    assert_eq!(check(3, "ffsfff", &[6, 5]), ConditionState::Clear, "the events are of the streak that is too short");
    assert_eq!(check(1, "", &[]), ConditionState::Clear);
    assert_eq!(check(1, "fff", &[]), holds(1, 0), "a recheck finds nothing new");
}

#[test]
fn a_skip_holds_until_a_run_is_not_skipped() {
    let check = |letters: &str, events: &[i64]| judge::skipped(&runs(letters), &ids(events));
    assert_eq!(check("ks", &[2]), ConditionState::Holds { since: at(2), new_count: 1 });
    assert_eq!(check("sk", &[1]), ConditionState::HasEnded { since: at(1), new_count: 1 });
    assert_eq!(check("sk", &[]), ConditionState::Clear);
    assert_eq!(check("s", &[]), ConditionState::Clear);
}

#[test]
fn a_rate_needs_enough_runs_and_a_failure() {
    let check = |percent, min, counts| judge::failure_rate(percent, min, counts, at(0)).is_clear();
    assert!(!check(20, 1, (1, 5)) && check(21, 1, (1, 5)));
    assert!(check(20, 6, (1, 5)), "too few runs");
    assert!(check(1, 0, (0, 0)), "no runs");
    assert!(!check(100, 1, (7, 7)));
}

#[test]
fn lengths_are_over_when_they_are_over() {
    let minute = Duration::from_secs(60);
    assert!(judge::overdue(Some(at(0)), minute, at(59)).is_clear());
    assert_eq!(judge::overdue(Some(at(0)), minute, at(60)), ConditionState::Holds { since: at(60), new_count: 0 });
    assert!(judge::overdue(None, minute, at(60)).is_clear());
    let usual = Some(Duration::from_secs(10));
    assert_eq!(judge::longest_allowed(Some(minute), None, usual), Some(minute));
    assert_eq!(judge::longest_allowed(None, Some(3), usual), Some(Duration::from_secs(30)));
    assert_eq!(judge::longest_allowed(None, Some(3), None), None, "nothing is usual yet");
}

#[test]
fn a_success_counts_for_the_deadline_after_it() {
    let missed = |succeeded| !judge::missed_deadline(at(1000), at(500), succeeded).is_clear();
    assert!(missed(None) && missed(Some(at(499))) && !missed(Some(at(500))) && !missed(Some(at(1200))));
}

#[test]
fn a_deadline_is_found_on_its_days() {
    let berlin = Deadline::parse("06:00", "Europe/Berlin", &[]).unwrap();
    let next = |deadline: Deadline, after: &str| deadline.next_after(instant(after), |_| true).unwrap().to_string();
    assert_eq!(next(berlin, "2026-01-05T04:59:59Z"), "2026-01-05T05:00:00Z");
    assert_eq!(next(berlin, "2026-01-05T05:00:00Z"), "2026-01-06T05:00:00Z");
    assert_eq!(next(berlin, "2026-07-05T04:00:00Z"), "2026-07-06T04:00:00Z", "in summer an hour earlier");
    let weekdays: Vec<_> = serde_json::from_value(json!(["mon", "tue", "wed", "thu", "fri"])).unwrap();
    let working = Deadline::parse("06:00", "Europe/Berlin", &weekdays).unwrap();
    assert_eq!(next(working, "2026-01-02T05:00:00Z"), "2026-01-05T05:00:00Z", "Friday to Monday");
    assert_eq!(berlin.next_after(instant("2026-01-05T05:00:00Z"), |_| false), None, "a calendar without days");
    let kiritimati = Deadline::parse("00:30", "Pacific/Kiritimati", &[]).unwrap();
    assert_eq!(next(kiritimati, "2026-01-05T10:00:00Z"), "2026-01-05T10:30:00Z", "14 hours ahead of UTC");
}

#[test]
fn a_deadline_that_the_clock_skips_or_shows_twice_comes_once() {
    let berlin = Deadline::parse("02:30", "Europe/Berlin", &[]).unwrap();
    let next = |after: Timestamp| berlin.next_after(after, |_| true).unwrap();
    let gap = next(instant("2026-03-28T12:00:00Z"));
    assert_eq!(gap.to_string(), "2026-03-29T01:00:00Z", "02:30 does not exist: the first instant after the gap");
    assert_eq!(next(gap).to_string(), "2026-03-30T00:30:00Z");
    assert_eq!(berlin.counts_from(gap).to_string(), "2026-03-28T01:30:00Z");
    let fold = next(instant("2026-10-24T12:00:00Z"));
    assert_eq!(fold.to_string(), "2026-10-25T00:30:00Z", "the first of the two");
    assert_eq!(next(fold).to_string(), "2026-10-26T01:30:00Z", "and not the second one");
    assert_eq!(berlin.counts_from(next(fold)), fold);
}
