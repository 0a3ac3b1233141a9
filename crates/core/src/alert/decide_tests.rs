//! The decision about a rule, under any order of observations.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::tests::{at, instant, spec};
use super::*;
use crate::id::{IncidentId, RunId};
use crate::notice::{NoticeKind, RunSample};

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

    fn observe(&mut self, now: i64, seen: &[(i64, ConditionState)]) -> Vec<NoticeKind> {
        let firing = || self.incidents.values().filter(|incident| incident.state == IncidentState::Firing);
        let count = |is_member| firing().filter(|one| one.group.is_some() == is_member && one.subject.id != 0).count();
        let group = firing().find(|one| one.subject.id == 0).cloned();
        let has_been_member =
            |one: &&Incident| one.group.is_some() && one.group == group.as_ref().map(|group| group.id);
        let open = OpenIncidents {
            counted_subjects: self
                .incidents
                .values()
                .filter(has_been_member)
                .map(|one| (one.subject.kind, one.subject.id))
                .collect(),
            incidents: firing().filter(|one| one.subject.id != 0).cloned().collect(),
            group,
            single_count: u64::try_from(count(false)).unwrap(),
            unreported_subjects: firing()
                .filter(|one| one.subject.id != 0 && one.group.is_none() && one.fired_at.is_none())
                .map(|one| one.subject.clone())
                .collect(),
            member_count: u64::try_from(count(true)).unwrap(),
        };
        let sample =
            |run| RunSample { run: RunId::new(run), job: "job".to_owned(), fire_at: at(run), message: String::new() };
        let observation = |(id, state): &(i64, ConditionState)| Observation {
            subject: subject(*id),
            state: *state,
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

fn holds(since: i64, new_count: u64) -> ConditionState {
    ConditionState::Holds { since: at(since), new_count }
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
    assert_eq!(world.observe(150, &[(1, ConditionState::Clear)]), [NoticeKind::Resolved]);
    assert_eq!(world.observe(160, &[(1, ConditionState::Clear)]), []);
    assert_eq!(
        world.observe(170, &[(1, ConditionState::HasEnded { since: at(165), new_count: 1 })]),
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
    assert_eq!(world.observe(9_100, &[(1, ConditionState::Clear)]), [NoticeKind::Resolved, NoticeKind::Resolved]);
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
    assert_eq!(
        world.observe(120, &[(1, ConditionState::Clear)]),
        [NoticeKind::Resolved],
        "it was reported, so its end is"
    );
    assert_eq!(world.observe(130, &[(1, holds(125, 1))]), []);
    assert_eq!(world.observe(140, &[(1, ConditionState::Clear)]), [], "never reported");
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
    assert_eq!(world.observe(9_020, &[(1, ConditionState::Clear)]), [NoticeKind::Resolved], "to the pager");
    world.missing.push("pager".to_owned());
    assert_eq!(world.observe(9_030, &[(1, holds(9_025, 1))]), []);
    assert_eq!(world.observe(20_000, &[(1, holds(9_025, 1))]), []);
    assert_eq!(world.observe(20_010, &[(1, ConditionState::Clear)]), [], "no message began it");
}

#[test]
fn a_resolved_message_names_the_cause() {
    let by = json!({"condition": {"not_succeeded_by": {"time": "01:08", "zone": "Europe/Berlin"}}});
    let ended = |more: &serde_json::Value, state| {
        let mut world = World::new(more);
        world.observe(10, &[(1, holds(9, 1))]);
        world.observe(instant("1970-01-01T05:12:40Z").as_millis() / 1_000, &[(1, state)]);
        let message = &world.messages.last().unwrap().notice;
        assert_eq!(message.kind, NoticeKind::Resolved);
        (message.summary_en.clone(), message.summary_zh.clone())
    };
    let (en, zh) = ended(&by, ConditionState::Clear);
    assert_eq!(en, "Resolved: job-1 succeeded, seen at 06:12 Europe/Berlin.");
    assert_eq!(zh, "已恢复：job-1 已成功，确认于 06:12（Europe/Berlin）。");
    let (en, zh) = ended(&by, ConditionState::Unwatched);
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
        let (en, zh) = ended(&json!({ "condition": condition }), ConditionState::Clear);
        assert!(en.starts_with("Resolved: ") && en.contains("job-1") && zh.starts_with("已恢复："), "{en} {zh}");
        assert!([" no ", " not ", "No longer"].iter().all(|word| !en.contains(word)), "{en}");
    }
}

#[test]
fn many_subjects_are_one_group() {
    let mut world = World::new(&json!({"group_over": 3, "digest": "1m"}));
    let all: Vec<(i64, ConditionState)> = (1..=500).map(|id| (id, holds(9, 1))).collect();
    assert_eq!(world.observe(10, &all), [NoticeKind::Firing; 4], "three, and one for all others");
    let summary = &world.messages.iter().find(|one| one.notice.subject.name == "default").unwrap().notice;
    assert_eq!((summary.count, summary.summary_en.as_str()), (497, "497 more in default: failed."));
    let more: Vec<(i64, ConditionState)> = (501..=600).map(|id| (id, holds(9, 1))).collect();
    assert_eq!(world.observe(20, &more), []);
    assert_eq!(world.observe(80, &[(600, holds(9, 7))]), [NoticeKind::Digest]);
    assert_eq!(world.messages.last().unwrap().notice.count, 597, "subjects, however often each of them failed");
    assert_eq!(world.observe(85, &[(600, holds(9, 7))]), []);
    let members: Vec<(i64, ConditionState)> = (1..=600).map(|id| (id, ConditionState::Clear)).collect();
    assert_eq!(world.observe(90, &members[..500]), [NoticeKind::Resolved; 3]);
    assert_eq!(world.observe(95, &members), [NoticeKind::Resolved], "the last of the group");
    assert!(world.incidents.values().all(|incident| incident.state == IncidentState::Resolved));
}

#[test]
fn a_group_counts_a_member_that_recovers_and_fails_again_once() {
    let mut world = World::new(&json!({"group_over": 1, "digest": "1m"}));
    let all = [1, 2, 3].map(|id| (id, holds(9, 1)));
    assert_eq!(world.observe(10, &all), [NoticeKind::Firing; 2]);
    for round in 0..5 {
        let now = 20 + round * 70;
        assert_eq!(world.observe(now, &[(3, ConditionState::Clear)]), []);
        let again = ConditionState::HasEnded { since: at(now), new_count: 1 };
        assert_eq!(world.observe(now + 61, &[(3, again)]), [], "the group has no new subject");
    }
    assert_eq!(world.observe(500, &[(4, holds(499, 1))]), [NoticeKind::Digest]);
    assert_eq!(world.messages.last().unwrap().notice.count, 3, "jobs 2, 3 and 4");
    let ended = [1, 2, 3, 4].map(|id| (id, ConditionState::Clear));
    assert_eq!(world.observe(510, &ended), [NoticeKind::Resolved; 2]);
    assert_eq!(world.observe(520, &all), [NoticeKind::Firing; 2]);
    assert_eq!(world.messages.last().unwrap().notice.count, 2, "another group counts from the beginning");
}

#[test]
fn a_group_waits_for_a_member_that_is_not_silenced() {
    let silence = |spec, ends| Silence { spec, ends_at: at(ends), is_maintenance: false };
    let mut world = World::new(&json!({"group_over": 2}));
    world.silences.push(silence(SilenceSpec { app: Some("app".to_owned()), ..SilenceSpec::default() }, 100));
    let all: Vec<(i64, ConditionState)> = (1..=5).map(|id| (id, holds(9, 1))).collect();
    assert_eq!(world.observe(10, &all), []);
    assert_eq!(world.observe(100, &all), [NoticeKind::Firing; 3], "the end of the silence");

    let mut world = World::new(&json!({"group_over": 1}));
    world.silences.push(silence(SilenceSpec { job: Some("job-2".to_owned()), ..SilenceSpec::default() }, 1_000));
    assert_eq!(world.observe(10, &[(1, holds(9, 1)), (2, holds(9, 1))]), [NoticeKind::Firing], "only of the first job");
    assert_eq!(world.observe(20, &[(3, holds(19, 1))]), [NoticeKind::Firing], "of the group");
}

#[test]
fn a_maintenance_window_holds_back_no_group_of_servers_or_tokens() {
    let conditions = [
        (json!({"node_lost": {}}), vec![NoticeKind::Firing; 2]),
        (json!({"token_expiring": {"within": "14d"}}), vec![NoticeKind::Firing; 2]),
        (json!({"failed": {}}), vec![]),
    ];
    for (condition, expected) in conditions {
        let mut world = World::new(&json!({"group_over": 1, "condition": condition}));
        world.silences.push(Silence { spec: SilenceSpec::default(), ends_at: at(1_000), is_maintenance: true });
        assert_eq!(world.observe(10, &[(1, holds(9, 1)), (2, holds(9, 1))]), expected, "one, and the group");
    }
}

#[test]
fn silenced_incidents_leave_their_places_to_others() {
    let mut world = World::new(&json!({"group_over": 2}));
    for job in ["job-1", "job-2", "job-3"] {
        let spec = SilenceSpec { job: Some(job.to_owned()), ..SilenceSpec::default() };
        world.silences.push(Silence { spec, ends_at: at(100), is_maintenance: false });
    }
    assert_eq!(world.observe(10, &[(1, holds(9, 1)), (2, holds(9, 1)), (3, holds(9, 1))]), []);
    let firing = world.observe(20, &[(4, holds(19, 1)), (5, holds(19, 1)), (6, holds(19, 1))]);
    assert_eq!(firing, [NoticeKind::Firing; 3], "two, and one for the group");
    let reported = |world: &World| -> Vec<String> {
        world.messages.iter().map(|message| message.notice.subject.name.clone()).collect()
    };
    let mut names = reported(&world);
    names.sort_unstable();
    assert_eq!(names, ["default", "job-4", "job-5"]);
    // The end of a silenced incident frees no place.
    assert_eq!(world.observe(30, &[(2, ConditionState::Clear), (7, holds(29, 1))]), []);
    assert_eq!(world.observe(100, &[(1, holds(9, 0))]), [NoticeKind::Firing], "its silence has ended");
    assert_eq!(reported(&world).last().map(String::as_str), Some("job-1"));
}

#[test]
fn a_failure_that_a_success_followed_is_described_before_its_end() {
    let mut world = World::new(&json!({}));
    world.observe(10, &[(1, ConditionState::HasEnded { since: at(9), new_count: 1 })]);
    let notices = world.messages.iter().map(|message| &message.notice);
    let texts: Vec<(&str, &str)> = notices.map(|one| (one.summary_en.as_str(), one.summary_zh.as_str())).collect();
    let ended = ("Resolved: job-1 succeeded.", "已恢复：job-1 已成功。");
    assert_eq!(texts, [("job-1 failed.", "job-1 失败。"), ended]);
}

#[test]
fn an_unknown_state_neither_begins_nor_ends_an_incident() {
    let mut world = World::new(&json!({}));
    assert_eq!(world.observe(10, &[(1, ConditionState::Unknown)]), []);
    assert_eq!(world.observe(20, &[(1, holds(19, 1))]), [NoticeKind::Firing]);
    assert_eq!(world.observe(30, &[(1, ConditionState::Unknown)]), []);
    assert_eq!(world.observe(40, &[(1, ConditionState::Clear)]), [NoticeKind::Resolved]);
}

#[test]
fn a_group_whose_members_are_no_longer_watched_is_closed() {
    let mut world = World::new(&json!({"group_over": 1}));
    assert_eq!(world.observe(10, &[(1, holds(9, 1)), (2, holds(9, 1))]), [NoticeKind::Firing; 2]);
    world.observe(20, &[(1, ConditionState::Unwatched), (2, ConditionState::Unwatched)]);
    let texts: Vec<&str> = world.messages[2..].iter().map(|message| message.notice.summary_en.as_str()).collect();
    let closed = ["job-1", "default"].map(|name| format!("Closed: {name} is not watched by the rule any more."));
    assert_eq!(texts, closed);
}

#[test]
fn an_acknowledgement_is_reported_where_the_incident_was() {
    let acknowledged = |world: &World, silences: &[Silence]| -> Vec<String> {
        let view = RuleView { spec: &world.spec, namespace: "default", missing_channels: &world.missing };
        let mut incident = world.incidents.values().next().unwrap().clone();
        let messages = acknowledge(view, (&mut incident, "ann"), silences, at(2_000));
        assert_eq!((incident.acknowledged_by.as_deref(), incident.acknowledged_at), (Some("ann"), Some(at(2_000))));
        let right = (NoticeKind::Acknowledged, incident.message_count);
        assert!(messages.iter().all(|one| (one.notice.kind, one.number) == right), "{messages:?}");
        messages.into_iter().map(|one| one.channel).collect()
    };
    let mut world = World::new(&json!({"escalate": {"channel": "pager", "after": "30m"}}));
    world.observe(0, &[(1, holds(0, 1))]);
    assert_eq!(acknowledged(&world, &[]), ["slack"]);
    world.observe(1_800, &[(1, holds(0, 0))]);
    assert_eq!(acknowledged(&world, &[]), ["slack", "pager"]);
    let silence = Silence { spec: SilenceSpec::default(), ends_at: at(9_000), is_maintenance: false };
    assert_eq!(acknowledged(&world, &[silence]), [""; 0]);
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
            let state = match what {
                0 => ConditionState::Clear,
                1 => holds(now, 1),
                2 => holds(now, 0),
                _ => ConditionState::HasEnded { since: at(now), new_count: 1 },
            };
            world.observe(now, &[(id, state)]);
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
