//! Conditions by table, deadlines over clock changes, and the decision under any order of observations.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;

use super::deadline::Deadline;
use super::judge::{self, EndedRun};
use super::*;
use crate::id::{IncidentId, JobId, RunId};
use crate::notice::{NoticeKind, RunSample};
use crate::status::RunStatus;
use crate::time::Timestamp;
use crate::words::Lang;

fn at(second: i64) -> Timestamp {
    Timestamp::from_secs(second)
}

fn instant(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn spec(more: &serde_json::Value) -> RuleSpec {
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
fn a_wrong_rule_is_refused_with_the_field_and_what_would_be_right() {
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
    let check = |more: &serde_json::Value, (ended_of, run): (Option<i64>, Option<i64>)| {
        let sample =
            RunSample { run: RunId::new(7), job: "j".to_owned(), fire_at: at(100_000), message: String::new() };
        let incident = Incident {
            id: IncidentId::new(1),
            subject: Subject { kind: SubjectKind::Job, id: 1, name: "j".to_owned(), app: None },
            group: None,
            standing: Standing::Resolved,
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
            act_at: None,
            samples: vec![sample],
        };
        judge::is_part_of(&spec(more), &incident, (ended_of.map(at), run.map(RunId::new)))
    };
    let failed = json!({});
    assert!(check(&failed, (None, Some(7))) && !check(&failed, (None, Some(8))), "a run that is under way");
    for (second, is_in) in [(99_999, false), (100_000, true), (100_200, true), (100_201, false)] {
        assert_eq!(check(&failed, (Some(second), Some(8))), is_in, "{second}");
    }
    assert!(check(&by, (Some(100_000 - 86_400), None)) && !check(&by, (Some(100_000 - 86_401), None)));
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
    let holds = |since, new_count| Sighting::Holds { since: at(since), new_count };
    assert_eq!(check(3, "fffs", &[4, 3, 2]), holds(2, 3));
    assert_eq!(check(3, "ffs", &[3, 2]), Sighting::Clear);
    assert_eq!(check(3, "fcfkfs", &[6]), holds(2, 3), "cancelled and skipped ones do not count");
    assert_eq!(check(3, "ffffs", &[5]), holds(2, 1), "three of the four were counted before");
    assert_eq!(
        check(1, "sfs", &[2]),
        Sighting::HasEnded { since: at(2), new_count: 1 },
        "it failed and succeeded in between"
    );
    assert_eq!(check(1, "sfs", &[]), Sighting::Clear, "that was reported before");
    assert_eq!(check(3, "sfff", &[1, 2, 3]), Sighting::HasEnded { since: at(1), new_count: 3 });
    assert_eq!(check(3, "ffsfff", &[6, 5]), Sighting::Clear, "the events are of the streak that is too short");
    assert_eq!(check(1, "", &[]), Sighting::Clear);
    assert_eq!(check(1, "fff", &[]), holds(1, 0), "a recheck finds nothing new");
}

#[test]
fn a_skip_holds_until_a_run_is_not_skipped() {
    let check = |letters: &str, events: &[i64]| judge::skipped(&runs(letters), &ids(events));
    assert_eq!(check("ks", &[2]), Sighting::Holds { since: at(2), new_count: 1 });
    assert_eq!(check("sk", &[1]), Sighting::HasEnded { since: at(1), new_count: 1 });
    assert_eq!(check("sk", &[]), Sighting::Clear);
    assert_eq!(check("s", &[]), Sighting::Clear);
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
    assert_eq!(judge::overdue(Some(at(0)), minute, at(60)), Sighting::Holds { since: at(60), new_count: 0 });
    assert!(judge::overdue(None, minute, at(60)).is_clear());
    let usual = Some(Duration::from_secs(10));
    assert_eq!(judge::longest(Some(minute), None, usual), Some(minute));
    assert_eq!(judge::longest(None, Some(3), usual), Some(Duration::from_secs(30)));
    assert_eq!(judge::longest(None, Some(3), None), None, "nothing is usual yet");
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

fn subject(id: i64) -> Subject {
    Subject { kind: SubjectKind::Job, id, name: format!("job-{id}"), app: Some("app".to_owned()) }
}

/// The incidents of one rule, as a store would keep them.
struct World {
    spec: RuleSpec,
    incidents: BTreeMap<IncidentId, Incident>,
    silences: Vec<Silence>,
    messages: Vec<MessageDraft>,
    missing: Vec<String>,
    next: i64,
}

impl World {
    fn new(more: &serde_json::Value) -> Self {
        Self {
            spec: spec(more),
            incidents: BTreeMap::new(),
            silences: Vec::new(),
            messages: Vec::new(),
            missing: Vec::new(),
            next: 0,
        }
    }

    fn observe(&mut self, now: i64, seen: &[(i64, Sighting)]) -> Vec<NoticeKind> {
        let firing = || self.incidents.values().filter(|incident| incident.standing == Standing::Firing);
        let count = |is_member| firing().filter(|one| one.group.is_some() == is_member && one.subject.id != 0).count();
        let open = OpenIncidents {
            incidents: firing().filter(|one| one.subject.id != 0).cloned().collect(),
            group: firing().find(|one| one.subject.id == 0).cloned(),
            single_count: u64::try_from(count(false)).unwrap(),
            member_count: u64::try_from(count(true)).unwrap(),
        };
        let sample =
            |run| RunSample { run: RunId::new(run), job: "job".to_owned(), fire_at: at(run), message: String::new() };
        let observation = |(id, sighting): &(i64, Sighting)| Observation {
            subject: subject(*id),
            sighting: *sighting,
            samples: vec![sample(*id)],
        };
        let observations: Vec<Observation> = seen.iter().map(observation).collect();
        let view = RuleView { spec: &self.spec, namespace: "default", missing_channels: &self.missing };
        let mut next_id = || {
            self.next += 1;
            IncidentId::new(self.next)
        };
        let decision = decide(view, open, &observations, &self.silences, (at(now), &mut next_id));
        for incident in decision.incidents {
            self.incidents.insert(incident.id, incident);
        }
        let kinds = decision.messages.iter().map(|message| message.notice.kind).collect();
        self.messages.extend(decision.messages);
        kinds
    }
}

fn holds(since: i64, new_count: u64) -> Sighting {
    Sighting::Holds { since: at(since), new_count }
}

#[test]
fn an_incident_fires_once_collects_and_resolves_once() {
    let mut world = World::new(&json!({"digest": "1m"}));
    assert_eq!(world.observe(10, &[(1, holds(9, 1))]), [NoticeKind::Firing]);
    assert_eq!(world.observe(20, &[(1, holds(9, 99_999))]), []);
    assert_eq!(world.observe(70, &[(1, holds(9, 0))]), [NoticeKind::Digest]);
    let digest = &world.messages[1].notice;
    assert_eq!((digest.count, digest.summary_en.as_str()), (100_000, "job-1 failed (100000 times)."));
    assert_eq!(world.observe(140, &[(1, holds(9, 0))]), [], "nothing new");
    assert_eq!(world.observe(150, &[(1, Sighting::Clear)]), [NoticeKind::Resolved]);
    assert_eq!(world.observe(160, &[(1, Sighting::Clear)]), []);
    assert_eq!(
        world.observe(170, &[(1, Sighting::HasEnded { since: at(165), new_count: 1 })]),
        [NoticeKind::Firing, NoticeKind::Resolved]
    );
    let numbers: Vec<u32> = world.messages.iter().map(|message| message.number).collect();
    assert_eq!(numbers, [1, 2, 3, 1, 2]);
}

#[test]
fn an_incident_is_repeated_and_escalated_until_it_is_acknowledged() {
    let mut world = World::new(&json!({"repeat": "1h", "escalate": {"channel": "pager", "after": "30m"}}));
    assert_eq!(world.observe(0, &[(1, holds(0, 1))]), [NoticeKind::Firing]);
    assert_eq!(world.observe(1_800, &[(1, holds(0, 0))]), [NoticeKind::Escalated]);
    assert_eq!(world.messages[1].channel, "pager");
    assert_eq!(world.observe(3_600, &[(1, holds(0, 0))]), [NoticeKind::Reminder]);
    let first = world.incidents.values_mut().next().unwrap();
    (first.acknowledged_at, first.acknowledged_by) = (Some(at(3_700)), Some("ann".to_owned()));
    assert_eq!(world.observe(9_000, &[(1, holds(0, 5))]), [], "an engineer is on it");
    let sent = world.messages.len();
    assert_eq!(world.observe(9_100, &[(1, Sighting::Clear)]), [NoticeKind::Resolved, NoticeKind::Resolved]);
    let channels: Vec<&str> = world.messages[sent..].iter().map(|message| message.channel.as_str()).collect();
    assert_eq!(channels, ["slack", "pager"]);
}

#[test]
fn a_silence_keeps_messages_back_until_its_end() {
    let mut world = World::new(&json!({}));
    let spec = SilenceSpec { job: Some("job-1".to_owned()), ..SilenceSpec::default() };
    world.silences.push(Silence { spec, ends_at: at(100), is_maintenance: false });
    assert_eq!(world.observe(10, &[(1, holds(9, 1)), (2, holds(9, 1))]), [NoticeKind::Firing], "only of the other job");
    assert_eq!(world.observe(100, &[(1, holds(9, 0))]), [NoticeKind::Firing], "its end");
    world.silences[0].ends_at = at(1_000);
    assert_eq!(world.observe(120, &[(1, Sighting::Clear)]), [NoticeKind::Resolved], "it was reported, so its end is");
    assert_eq!(world.observe(130, &[(1, holds(125, 1))]), []);
    assert_eq!(world.observe(140, &[(1, Sighting::Clear)]), [], "never reported");
}

#[test]
fn an_incident_without_a_channel_is_not_reported_until_there_is_one() {
    let mut world = World::new(&json!({"repeat": "1h", "escalate": {"channel": "pager", "after": "30m"}}));
    world.missing = vec!["slack".to_owned()];
    assert_eq!(world.observe(10, &[(1, holds(9, 1))]), []);
    let first = |world: &World| world.incidents.values().next().unwrap().clone();
    assert_eq!((first(&world).fired_at, first(&world).reported_at), (None, None));
    assert_eq!(world.observe(1_809, &[(1, holds(9, 0))]), [NoticeKind::Escalated], "the pager is there");
    assert_eq!(world.observe(9_000, &[(1, holds(9, 5))]), []);
    world.missing.clear();
    assert_eq!(world.observe(9_010, &[(1, holds(9, 0))]), [NoticeKind::Firing], "it was set up");
    assert_eq!(first(&world).fired_at, Some(at(9_010)));
    world.missing = vec!["slack".to_owned()];
    assert_eq!(world.observe(9_020, &[(1, Sighting::Clear)]), [NoticeKind::Resolved], "to the pager");
    world.missing.push("pager".to_owned());
    assert_eq!(world.observe(9_030, &[(1, holds(9_025, 1))]), []);
    assert_eq!(world.observe(20_000, &[(1, holds(9_025, 1))]), []);
    assert_eq!(world.observe(20_010, &[(1, Sighting::Clear)]), [], "no message began it");
}

#[test]
fn the_end_of_an_incident_is_what_happened() {
    let by = json!({"condition": {"not_succeeded_by": {"time": "01:08", "zone": "Europe/Berlin"}}});
    let ended = |more: &serde_json::Value, sighting| {
        let mut world = World::new(more);
        world.observe(10, &[(1, holds(9, 1))]);
        world.observe(instant("1970-01-01T05:12:40Z").as_millis() / 1_000, &[(1, sighting)]);
        let message = &world.messages.last().unwrap().notice;
        assert_eq!(message.kind, NoticeKind::Resolved);
        (message.summary_en.clone(), message.summary_zh.clone())
    };
    let (en, zh) = ended(&by, Sighting::Clear);
    assert_eq!(en, "Resolved: job-1 succeeded, seen at 06:12 Europe/Berlin.");
    assert_eq!(zh, "已恢复：job-1 已成功，确认于 06:12（Europe/Berlin）。");
    let (en, zh) = ended(&by, Sighting::Unwatched);
    assert_eq!(en, "Closed: job-1 is not watched by the rule any more.");
    assert_eq!(zh, "已关闭：规则不再监视 job-1。");
    let conditions = [
        json!({"failed": {}}),
        json!({"failures_in_row": {"count": 3}}),
        json!({"failure_rate": {"percent": 20, "window": "1h"}}),
        json!({"skipped": {}}),
        json!({"late": {"by": "5m"}}),
        json!({"no_success_for": {"length": "1h"}}),
        json!({"running_longer": {"times_p95": 3}}),
        json!({"no_executor": {"handler": "h"}}),
        json!({"node_lost": {}}),
        json!({"loop_failing": {"length": "1m"}}),
        json!({"token_expiring": {"within": "14d"}}),
        json!({"certificate_expiring": {"within": "14d"}}),
        json!({"disk_low": {"free_percent": 10}}),
        json!({"ledger_growth": {"runs": 9, "window": "1h"}}),
    ];
    for condition in conditions {
        let (en, zh) = ended(&json!({ "condition": condition }), Sighting::Clear);
        assert!(en.starts_with("Resolved: ") && en.contains("job-1") && zh.starts_with("已恢复："), "{en} {zh}");
        assert!([" no ", " not ", "No longer"].iter().all(|word| !en.contains(word)), "{en}");
    }
}

#[test]
fn many_subjects_are_one_group() {
    let mut world = World::new(&json!({"group_over": 3, "digest": "1m"}));
    let all: Vec<(i64, Sighting)> = (1..=500).map(|id| (id, holds(9, 1))).collect();
    assert_eq!(world.observe(10, &all), [NoticeKind::Firing; 4], "three, and one for all others");
    let summary = &world.messages.iter().find(|one| one.notice.subject.name == "default").unwrap().notice;
    assert_eq!((summary.count, summary.summary_en.as_str()), (497, "497 more in default: failed."));
    let more: Vec<(i64, Sighting)> = (501..=600).map(|id| (id, holds(9, 1))).collect();
    assert_eq!(world.observe(20, &more), []);
    assert_eq!(world.observe(80, &[(600, holds(9, 0))]), [NoticeKind::Digest]);
    let members: Vec<(i64, Sighting)> = (1..=600).map(|id| (id, Sighting::Clear)).collect();
    assert_eq!(world.observe(90, &members[..500]), [NoticeKind::Resolved; 3]);
    assert_eq!(world.observe(95, &members), [NoticeKind::Resolved], "the last of the group");
    assert!(world.incidents.values().all(|incident| incident.standing == Standing::Resolved));
}

proptest! {
    /// For any observations in any order: between two firing messages of a subject there is a resolved one, and every resolved
    /// one follows a firing one. The numbers of an incident's messages rise by one.
    #[test]
    fn firing_and_resolved_take_turns(
        steps in prop::collection::vec((1..8_i64, 0..4_u8, 0..400_i64), 1..120),
        silence in prop::option::of((0..5_000_i64, 1..8_i64)),
        group_over in 1..6_u32,
    ) {
        let mut world = World::new(&json!({"group_over": group_over, "digest": "1m", "repeat": "3m"}));
        if let Some((ends, job)) = silence {
            let spec = SilenceSpec { job: Some(format!("job-{job}")), ..SilenceSpec::default() };
            world.silences.push(Silence { spec, ends_at: at(ends), is_maintenance: false });
        }
        let mut now = 0;
        for (id, what, wait) in steps {
            now += wait;
            let sighting = match what {
                0 => Sighting::Clear,
                1 => holds(now, 1),
                2 => holds(now, 0),
                _ => Sighting::HasEnded { since: at(now), new_count: 1 },
            };
            world.observe(now, &[(id, sighting)]);
        }
        let mut firing: BTreeMap<(String, bool), bool> = BTreeMap::new();
        let mut numbers: BTreeMap<IncidentId, u32> = BTreeMap::new();
        for message in &world.messages {
            let number = numbers.entry(message.incident).or_default();
            prop_assert_eq!(message.number, *number + 1);
            *number = message.number;
            let is_group = message.notice.subject.name == "default";
            let fires = firing.entry((message.notice.subject.name.clone(), is_group)).or_default();
            match message.notice.kind {
                NoticeKind::Firing => {
                    prop_assert!(!*fires, "two firing messages");
                    *fires = true;
                }
                NoticeKind::Resolved => {
                    prop_assert!(*fires, "resolved without firing");
                    *fires = false;
                }
                _ => prop_assert!(*fires),
            }
        }
    }
}
