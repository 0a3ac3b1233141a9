//! Checks of rules and incidents.

use std::time::Duration;

use rondel_core::alert::expect::ExpectKind;
use rondel_core::alert::{Incident, IncidentState, RuleSpec, Subject, SubjectKind};
use rondel_core::notice::RunSample;
use rondel_core::outcome::Outcome;
use rondel_core::{AlertRuleId, AppId, IncidentId, JobId, NamespaceId, RunId, RunStatus, Timestamp};
use serde_json::json;

use super::alert_groups;
use super::broadcasts::expanded_broadcast;
use super::edits::{change, delete, skipped_fires_leave_events};
use super::{DEFAULT, FAILED, finish, finish_all, finish_one, job_with, join, name, next_id, pending_run, spec};
use crate::Store;
use crate::alerts::{
    AlertWrite, ExpectCheck, IncidentQuery, IncidentRecord, OpenRunExpectations, OpenRunsCheck, RuleChange, RuleCheck,
    RuleDeleted, RuleProgress, RuleRecord, RuleSaved,
};
use crate::catalog::{JobDeleted, JobSaved, Namespace, NewJob};
use crate::ledger::{RunOrder, RunSearch};

const SECOND: Duration = Duration::from_secs(1);

fn rule_spec(name: &str, condition: &serde_json::Value) -> RuleSpec {
    serde_json::from_value(json!({"name": name, "condition": condition, "description": "规则 \u{1f980}"})).unwrap()
}

pub(super) async fn new_namespace(store: &dyn Store) -> NamespaceId {
    let namespace = Namespace { id: NamespaceId::new(next_id()), name: name("tenant") };
    assert!(store.create_namespace(&namespace, store.now().await.unwrap()).await.unwrap());
    namespace.id
}

async fn save_rule(store: &dyn Store, namespace: NamespaceId, spec: &RuleSpec, expected: Option<i64>) -> RuleSaved {
    let now = store.now().await.unwrap();
    let change = RuleChange {
        id: AlertRuleId::new(next_id()),
        namespace,
        expected_version: expected,
        spec,
        author: "conformance",
        check_at: Some(now + SECOND),
        now,
    };
    store.save_alert_rule(change).await.unwrap()
}

pub(super) async fn saved_rule(store: &dyn Store, namespace: NamespaceId) -> RuleRecord {
    let spec = rule_spec(&name("rule"), &json!({"no_success_for": {"length": "1h"}}));
    match save_rule(store, namespace, &spec, Some(0)).await {
        RuleSaved::Created(record) => *record,
        other => unreachable!("not created: {other:?}"),
    }
}

pub(super) fn incident(rule: &RuleRecord, subject: i64, now: Timestamp) -> IncidentRecord {
    let subject =
        Subject { kind: SubjectKind::Job, id: subject, name: format!("job-{subject}"), app: Some("app".to_owned()) };
    let sample = RunSample { run: RunId::new(7), job: "job".to_owned(), fire_at: now, message: "\"ä务\"".to_owned() };
    let incident = Incident {
        id: IncidentId::new(next_id()),
        subject,
        group: None,
        state: IncidentState::Firing,
        started_at: now,
        seen_at: now,
        resolved_at: None,
        count: 3,
        reported_count: 2,
        fired_at: Some(now),
        reported_at: Some(now),
        escalated_at: None,
        acknowledged_by: None,
        acknowledged_at: None,
        message_count: 1,
        check_at: Some(now + SECOND),
        samples: vec![sample],
    };
    IncidentRecord { incident, rule: rule.id, spec: rule.spec.clone() }
}

pub(super) async fn write(store: &dyn Store, rule: &RuleRecord, version: i64, incidents: &[IncidentRecord]) -> bool {
    let write = AlertWrite {
        namespace: rule.namespace,
        version,
        incidents,
        messages: &[],
        evaluated_events: &[],
        checks: &[],
        expect_checks: &[],
        open_runs_check: None,
    };
    store.write_alerts(&write).await.unwrap()
}

pub(super) async fn alert_version(store: &dyn Store, namespace: NamespaceId) -> i64 {
    store.alert_version(namespace).await.unwrap().unwrap()
}

/// A rule is read as it was written. Each save creates a version and must name the version before it.
pub async fn a_rule_is_read_as_it_was_saved(store: &dyn Store) {
    let namespace = new_namespace(store).await;
    assert_eq!(store.alert_version(namespace).await.unwrap(), None);
    let first = saved_rule(store, namespace).await;
    assert_eq!(store.alert_rules(namespace).await.unwrap(), std::slice::from_ref(&first));
    assert_eq!((first.version, first.author.as_str()), (1, "conformance"));
    assert_eq!(save_rule(store, namespace, &first.spec, Some(0)).await, RuleSaved::Conflict(1));
    let changed = rule_spec(&first.spec.name, &json!({"failed": {}}));
    let RuleSaved::Changed(second) = save_rule(store, namespace, &changed, Some(1)).await else { unreachable!() };
    assert_eq!((second.id, second.version, second.created_at), (first.id, 2, first.created_at));
    assert_eq!(store.alert_rules(namespace).await.unwrap(), [*second]);
    let now = store.now().await.unwrap();
    for (name, expected, deleted) in [
        ("unknown", None, RuleDeleted::NotFound),
        (first.spec.name.as_str(), Some(1), RuleDeleted::Conflict(2)),
        (first.spec.name.as_str(), Some(2), RuleDeleted::Deleted),
    ] {
        assert_eq!(store.delete_alert_rule(namespace, name, expected, now).await.unwrap(), deleted, "{name}");
    }
    assert_eq!(store.alert_rules(namespace).await.unwrap(), []);
    assert_eq!(save_rule(store, namespace, &changed, Some(2)).await, RuleSaved::Conflict(0));
    check_that_a_due_check_stays(store).await;
}

/// A check that is due stays due when its rule is saved, unless the rule then watches something else or nothing.
async fn check_that_a_due_check_stays(store: &dyn Store) {
    let namespace = new_namespace(store).await;
    let rule = saved_rule(store, namespace).await;
    let now = store.now().await.unwrap();
    let progress = Some(RuleProgress { at: now - SECOND, after: "job-7".to_owned(), next: None });
    let due = [RuleCheck { rule: rule.id, at: Some(now - SECOND), progress: progress.clone() }];
    let version = alert_version(store, namespace).await;
    let write = AlertWrite {
        namespace,
        version,
        incidents: &[],
        messages: &[],
        evaluated_events: &[],
        checks: &due,
        expect_checks: &[],
        open_runs_check: None,
    };
    assert!(store.write_alerts(&write).await.unwrap());
    let edited = RuleSpec { description: "other".to_owned(), ..rule.spec.clone() };
    let RuleSaved::Changed(kept) = save_rule(store, namespace, &edited, None).await else { unreachable!() };
    assert_eq!((kept.check_at, &kept.progress), (Some(now - SECOND), &progress));
    assert_eq!(store.alert_rules(namespace).await.unwrap(), [*kept]);
    let off = RuleSpec { enabled: false, ..edited };
    let RuleSaved::Changed(off) = save_rule(store, namespace, &off, None).await else { unreachable!() };
    assert!(off.check_at > Some(now) && off.progress.is_none(), "{off:?}");
}

/// Of two decisions based on the same version, one is written. A decision based on an outdated version is not written.
pub async fn a_decision_is_written_from_the_newest_version_alone(store: &dyn Store) {
    let namespace = new_namespace(store).await;
    let rule = saved_rule(store, namespace).await;
    let (now, version) = (store.now().await.unwrap(), alert_version(store, namespace).await);
    let first = incident(&rule, 1, now);
    assert!(write(store, &rule, version, std::slice::from_ref(&first)).await);
    assert!(!write(store, &rule, version, &[incident(&rule, 1, now)]).await, "another server's decision");
    let open = store.open_incidents(namespace, rule.id, &[(SubjectKind::Job, 1), (SubjectKind::Job, 2)]).await.unwrap();
    assert_eq!((open.incidents, open.single_count, open.member_count), (vec![first.incident.clone()], 1, 0));

    let version = alert_version(store, namespace).await;
    assert!(store.acknowledge_incident(namespace, first.incident.id, "ann", now).await.unwrap());
    assert!(!store.acknowledge_incident(namespace, first.incident.id, "bob", now).await.unwrap());
    assert!(!write(store, &rule, version, std::slice::from_ref(&first)).await, "it would undo the acknowledgement");
    let found = store.incident(namespace, first.incident.id).await.unwrap().unwrap();
    assert_eq!(found.incident.acknowledged_by.as_deref(), Some("ann"));

    let check = RuleCheck {
        rule: rule.id,
        at: Some(now + SECOND * 9),
        progress: Some(RuleProgress { at: now, after: "job".to_owned(), next: None }),
    };
    let version = alert_version(store, namespace).await;
    let checks = AlertWrite {
        namespace,
        version,
        incidents: &[],
        messages: &[],
        evaluated_events: &[],
        checks: std::slice::from_ref(&check),
        expect_checks: &[],
        open_runs_check: None,
    };
    assert!(store.write_alerts(&checks).await.unwrap());
    let kept = store.alert_rules(namespace).await.unwrap().remove(0);
    assert_eq!((kept.check_at, kept.progress), (check.at, check.progress));

    let saved = async |spec: &RuleSpec| match save_rule(store, namespace, spec, None).await {
        RuleSaved::Changed(record) => record.updated_at,
        other => unreachable!("not changed: {other:?}"),
    };
    let due_at = async || store.incident(namespace, first.incident.id).await.unwrap().unwrap().incident.check_at;
    saved(&RuleSpec { description: "note".to_owned(), ..rule.spec.clone() }).await;
    assert_eq!(due_at().await, first.incident.check_at);
    let saved_at = saved(&rule_spec(&rule.spec.name, &json!({"failed": {}}))).await;
    assert_eq!(due_at().await, Some(saved_at), "the rule watches something else");
}

/// Members of a group are counted separately. After an incident is resolved, its subject may get a new one, and the resolved one stays in the history.
pub async fn incidents_are_found_by_each_filter(store: &dyn Store) {
    let namespace = new_namespace(store).await;
    let rule = saved_rule(store, namespace).await;
    let now = store.now().await.unwrap();
    let group = alert_groups::group(&rule, now);
    let mut member = incident(&rule, 2, now);
    (member.incident.group, member.incident.check_at) = (Some(group.incident.id), Some(now + SECOND * 60));
    let mut single = incident(&rule, 1, now);
    let all = [group.clone(), member.clone(), single.clone()];
    assert!(write(store, &rule, alert_version(store, namespace).await, &all).await);

    let open = store.open_incidents(namespace, rule.id, &[]).await.unwrap();
    assert_eq!((open.single_count, open.member_count, open.incidents.len()), (1, 1, 0));
    assert_eq!((open.group, open.unreported_subjects), (Some(group.incident.clone()), vec![]));
    let members_and_single = store.open_incidents_of_rule(rule.id, 10).await.unwrap();
    assert_eq!(members_and_single, [member.incident.clone(), single.incident.clone()]);
    assert!(!store.namespaces_with_due_alerts(now).await.unwrap().contains(&namespace));
    assert!(store.namespaces_with_due_alerts(now + SECOND).await.unwrap().contains(&namespace));
    let due = store.due_incidents(namespace, now + SECOND, 10).await.unwrap();
    let ids: Vec<IncidentId> = due.iter().map(|record| record.incident.id).collect();
    assert_eq!(ids.len(), 2);
    assert!(!ids.contains(&member.incident.id));

    (single.incident.state, single.incident.resolved_at) = (IncidentState::Resolved, Some(now));
    single.incident.check_at = None;
    let again = incident(&rule, 1, now);
    let version = alert_version(store, namespace).await;
    assert!(write(store, &rule, version, &[single.clone(), again.clone()]).await, "one open incident for a subject");
    let query = IncidentQuery { namespace, is_open: None, job: None, before: None, within: None, limit: 10 };
    let listed = async |query: IncidentQuery<'_>| -> Vec<IncidentId> {
        store.incidents(query).await.unwrap().into_iter().map(|record| record.incident.id).collect()
    };
    let [group, member, single, again] = [group, member, single, again].map(|record| record.incident.id);
    assert_eq!(listed(query).await, [again, single, member, group]);
    assert_eq!(listed(IncidentQuery { is_open: Some(true), ..query }).await, [again, member, group]);
    assert_eq!(listed(IncidentQuery { is_open: Some(false), ..query }).await, [single]);
    assert_eq!(listed(IncidentQuery { job: Some(JobId::new(1)), ..query }).await, [again, single]);
    assert_eq!(listed(IncidentQuery { before: Some(single), limit: 1, ..query }).await, [member]);
    let apps = ["app".to_owned()];
    assert_eq!(listed(IncidentQuery { within: Some(&apps), ..query }).await, [again, single, member]);
    assert_eq!(listed(IncidentQuery { within: Some(&[]), ..query }).await, []);
    let of_other_app = |number: i64| {
        let mut record = incident(&rule, 100 + number, now);
        record.incident.subject.app = Some("other".to_owned());
        record
    };
    let others: Vec<IncidentRecord> = (0..45).map(of_other_app).collect();
    assert!(write(store, &rule, alert_version(store, namespace).await, &others).await);
    let two = IncidentQuery { within: Some(&apps), limit: 2, ..query };
    assert_eq!(listed(two).await, [again, single], "behind many that are left out");
    let members_behind = (0..45).map(|number| {
        let mut record = incident(&rule, 200 + number, now);
        record.incident.group = Some(group);
        record
    });
    let members: Vec<IncidentRecord> = members_behind.collect();
    assert!(write(store, &rule, alert_version(store, namespace).await, &members).await);
    let ids = |found: Vec<IncidentRecord>| -> Vec<IncidentId> { found.iter().map(|one| one.incident.id).collect() };
    let open = IncidentQuery { is_open: Some(true), limit: 1, ..two };
    let ungrouped = store.ungrouped_incidents(open).await.unwrap();
    assert_eq!(ids(ungrouped), [again], "behind many members of a group");
    let mut of_group = vec![member];
    of_group.extend(members.iter().map(|one| one.incident.id));
    of_group.reverse();
    assert_eq!(ids(store.incidents_of_group(group, 100).await.unwrap()), of_group);
    assert_eq!(ids(store.incidents_of_group(group, 2).await.unwrap()), of_group[..2]);
    assert_eq!(store.incidents_of_group(again, 2).await.unwrap(), []);

    store.delete_alert_rule(namespace, &rule.spec.name, None, now).await.unwrap();
    assert_eq!(listed(IncidentQuery { is_open: Some(true), ..query }).await, []);
    let off = RuleSpec { enabled: false, ..rule.spec.clone() };
    assert_eq!(
        store.incidents(query).await.unwrap()[0].spec,
        off,
        "the rule as it was, but off: this end is no recovery"
    );
    while store.forget_incidents(now + SECOND, 500).await.unwrap() > 0 {}
    assert_eq!(listed(query).await, []);
    alert_groups::a_group_names_the_subjects_that_it_has_counted(store).await;
    alert_groups::the_incidents_of_an_expectation_are_counted(store).await;
}

/// The transaction of a verdict inserts an event if a rule covers such runs, and otherwise none.
pub async fn verdicts_leave_events_where_a_rule_waits_for_them(store: &dyn Store) {
    let token = join(store).await;
    let before = pending_run(store, token).await;
    finish_one(store, finish(&before, FAILED)).await;
    let rule = rule_spec(&name("rule"), &json!({"failed": {}}));
    assert!(matches!(save_rule(store, DEFAULT, &rule, Some(0)).await, RuleSaved::Created(_)));

    let (fails, well) = (pending_run(store, token).await, pending_run(store, token).await);
    finish_one(store, finish(&fails, FAILED)).await;
    finish_one(store, finish(&fails, FAILED)).await;
    finish_one(store, finish(&well, Outcome::Succeeded)).await;
    let (_, shards) = expanded_broadcast(store, token, 2).await;
    for shard in &shards {
        finish_one(store, finish(shard, FAILED)).await;
    }
    let root_id = shards[0].parent.unwrap();
    let (one, only) = expanded_broadcast(store, token, 1).await;
    finish_one(store, finish(&only[0], FAILED)).await;
    let ids = [before.id, fails.id, well.id, root_id, shards[0].id, shards[1].id, one.id, only[0].id];
    let events = store.alert_events(DEFAULT, 500).await.unwrap();
    let mut runs: Vec<RunId> = events.iter().map(|event| event.run).filter(|run| ids.contains(run)).collect();
    let mut expected = vec![fails.id, root_id, one.id];
    runs.sort_unstable();
    expected.sort_unstable();
    assert_eq!(runs, expected);
    let event = events.iter().find(|event| event.run == fails.id).unwrap();
    assert_eq!((event.job, event.status, event.fire_at), (fails.job, RunStatus::Failed, fails.fire_at));
    expected.extend(skipped_fires_leave_events(store).await);
    let now = store.now().await.unwrap();
    assert!(store.namespaces_with_due_alerts(now).await.unwrap().contains(&DEFAULT));

    let write = AlertWrite {
        namespace: DEFAULT,
        version: alert_version(store, DEFAULT).await,
        incidents: &[],
        messages: &[],
        evaluated_events: &expected,
        checks: &[],
        expect_checks: &[],
        open_runs_check: None,
    };
    assert!(store.write_alerts(&write).await.unwrap());
    let events = store.alert_events(DEFAULT, 500).await.unwrap();
    assert!(!events.iter().any(|event| ids.contains(&event.run)));
    store.delete_alert_rule(DEFAULT, &rule.name, None, now).await.unwrap();
}

/// Jobs are read by pages of their names, with their newest success.
pub async fn watched_jobs_are_read_in_pages(store: &dyn Store) {
    let token = join(store).await;
    let labelled = job_with(store, spec(&name("watched"), json!({"labels": {"team": "pay"}})), None).await;
    let other = job_with(store, spec(&name("watched"), json!({})), None).await;
    let page = async |after: &str, limit| store.watched_jobs(DEFAULT, None, after, limit).await.unwrap();
    let mut names: Vec<String> = Vec::new();
    loop {
        let found = page(names.last().map_or("", String::as_str), 3).await;
        names.extend(found.iter().map(|job| job.name.clone()));
        if found.len() < 3 {
            break;
        }
    }
    assert!(names.contains(&labelled.spec.name) && names.contains(&other.spec.name) && names.is_sorted());
    let found = store.watched_jobs_by_id(&[labelled.id, other.id, JobId::new(1)]).await.unwrap();
    let job = found.iter().find(|job| job.id == labelled.id).unwrap();
    assert_eq!((job.name.as_str(), job.app_name.as_str()), (labelled.spec.name.as_str(), "conformance"));
    assert_eq!((job.labels.get("team").map(String::as_str), job.succeeded_at), (Some("pay"), None));
    let of_app = store.watched_jobs(DEFAULT, Some(labelled.app), &labelled.spec.name[..7], 500).await.unwrap();
    assert!(of_app.iter().all(|job| job.app == labelled.app) && !of_app.is_empty());

    let (well, fails) = (pending_run(store, token).await, pending_run(store, token).await);
    finish_one(store, finish(&well, Outcome::Succeeded)).await;
    finish_one(store, finish(&fails, FAILED)).await;
    let jobs = [well.job, fails.job];
    let since = |at| store.newest_successes_since(&jobs, at);
    assert_eq!(since(well.fire_at).await.unwrap(), [(well.job, well.fire_at)]);
    assert_eq!(since(well.fire_at + SECOND).await.unwrap(), []);
    let (root, shards) = expanded_broadcast(store, token, 2).await;
    finish_all(store, &[finish(&shards[0], Outcome::Succeeded), finish(&shards[1], FAILED)]).await;
    assert_eq!(
        store.newest_successes_since(&[root.job], root.fire_at).await.unwrap(),
        [],
        "a shard is not its broadcast"
    );
    let (root, shards) = expanded_broadcast(store, token, 1).await;
    finish_one(store, finish(&shards[0], Outcome::Succeeded)).await;
    let found = store.newest_successes_since(&[root.job], root.fire_at).await.unwrap();
    assert_eq!(found, [(root.job, root.fire_at)]);
}

/// The checks of a job's expectations are created and removed with the job's definition. A decision sets when they are next due.
pub async fn expectations_are_looked_at_by_their_definition(store: &dyn Store) {
    let namespace = new_namespace(store).await;
    let now = store.now().await.unwrap();
    let app = store.ensure_app(AppId::new(next_id()), namespace, "app", now).await.unwrap();
    let new = NewJob {
        id: JobId::new(next_id()),
        namespace,
        app: app.id,
        spec: spec(&name("job"), json!({"expect": {"no_success_for": "1h", "late": "1m"}})),
        anchor: now,
        next_fire_at: None,
        delay: None,
        calendar: None,
        declared: None,
        author: "conformance".to_owned(),
        now,
    };
    let job = super::expect_created(store.create_job(new.clone()).await.unwrap());
    let now = store.now().await.unwrap();
    let expect_checks = store.expect_checks_of_jobs(&[job.id, JobId::new(1)]).await.unwrap();
    let kinds: Vec<ExpectKind> = expect_checks.iter().map(|check| check.kind).collect();
    assert_eq!(kinds, [ExpectKind::NoSuccessFor, ExpectKind::Late]);
    assert_eq!(expect_checks[1].at, None);
    let open = store.open_run_expectations(namespace).await.unwrap();
    assert!(open.at.is_some_and(|at| at <= now) && open.kinds == [ExpectKind::Late], "{open:?}");
    assert!(store.namespaces_with_due_alerts(now).await.unwrap().contains(&namespace));

    let write = |version, expect_checks, open_runs_check| AlertWrite {
        namespace,
        version,
        incidents: &[],
        messages: &[],
        evaluated_events: &[],
        checks: &[],
        expect_checks,
        open_runs_check,
    };
    let due = [ExpectCheck { at: Some(now), ..expect_checks[0] }];
    let version = alert_version(store, namespace).await;
    assert!(store.write_alerts(&write(version, &due, Some(OpenRunsCheck { at: None }))).await.unwrap());
    assert_eq!(store.due_expectations(namespace, now, 10).await.unwrap(), due);
    assert_eq!(store.open_run_expectations(namespace).await.unwrap(), OpenRunExpectations::default());
    assert!(store.namespaces_with_due_alerts(now).await.unwrap().contains(&namespace));
    assert!(store.watched_jobs_by_id(&[job.id]).await.unwrap()[0].expect.is_some());
    let later = [ExpectCheck { at: Some(now + SECOND), ..expect_checks[0] }];
    let version = alert_version(store, namespace).await;
    assert!(store.write_alerts(&write(version, &later, None)).await.unwrap());
    assert_eq!(store.due_expectations(namespace, now, 10).await.unwrap(), []);
    assert!(!store.namespaces_with_due_alerts(now).await.unwrap().contains(&namespace));

    // A decision that was made before the job was deleted is not written.
    let version = alert_version(store, namespace).await;
    assert_eq!(delete(store, job.id, None, now).await, JobDeleted::Done);
    assert!(!store.write_alerts(&write(version, &[], None)).await.unwrap());
    let all = json!({"no_success_for": "1h", "late": "1m", "longer_than": "1h"});
    let three = NewJob { id: JobId::new(next_id()), spec: spec(&name("job"), json!({"expect": all})), ..new };
    let job = super::expect_created(store.create_job(three).await.unwrap());
    assert_eq!(store.expect_checks_of_jobs(&[job.id]).await.unwrap().len(), 3);
}

/// A save of a job between a deadline and its check leaves the check due, unless the save changes the deadline.
pub async fn a_save_leaves_the_check_of_a_passed_deadline_due(store: &dyn Store) {
    let daily = |name: &str, time: &str, severity: &str| {
        spec(name, json!({"expect": {"success_by": {"time": time}, "severity": severity}}))
    };
    let job = job_with(store, daily(&name("job"), "06:00", "warning"), None).await;
    let check = async || store.expect_checks_of_jobs(&[job.id]).await.unwrap()[0].at.unwrap();
    let passed = check().await;
    let save = async |time: &str, severity: &str, now: Timestamp| {
        let spec = daily(&job.spec.name, time, severity);
        assert!(matches!(change(store, job.id, &spec, None, now).await, JobSaved::Saved(..)));
    };
    save("06:00", "critical", passed + SECOND).await;
    assert_eq!(check().await, passed);
    save("07:00", "critical", passed + SECOND * 2).await;
    assert_eq!(check().await, passed + SECOND * 3_600);
}

/// A run that failed for good is a dead letter until it is acknowledged. Another namespace cannot acknowledge it.
pub async fn a_failure_is_dead_until_it_is_acknowledged(store: &dyn Store) {
    let token = join(store).await;
    let (run, good) = (pending_run(store, token).await, pending_run(store, token).await);
    finish_one(store, finish(&run, FAILED)).await;
    finish_one(store, finish(&good, Outcome::Succeeded)).await;
    let mut search = RunSearch::new(store.now().await.unwrap(), 10);
    (search.is_dead, search.jobs) = (true, Some(vec![run.job, good.job]));
    let dead = async |search: &RunSearch| {
        let found = store.search_runs(DEFAULT, search).await.unwrap();
        found.runs.iter().map(|run| run.id).collect::<Vec<_>>()
    };
    assert_eq!(dead(&search).await, [run.id]);
    search.order = RunOrder::Longest;
    assert_eq!(dead(&search).await, [run.id]);
    assert!(store.dead_letter_count(DEFAULT, 1_000).await.unwrap() >= 1);
    assert_eq!(store.dead_letter_count(DEFAULT, 1).await.unwrap(), 1, "no more than the limit");
    let other = new_namespace(store).await;
    assert_eq!(store.acknowledge_dead_letters(other, &[run.id]).await.unwrap(), 0);
    assert_eq!(store.acknowledge_dead_letters(DEFAULT, &[run.id, good.id]).await.unwrap(), 1);
    assert_eq!(dead(&search).await, []);
    assert_eq!(store.acknowledge_dead_letters(DEFAULT, &[run.id]).await.unwrap(), 0);
    let (root, only) = expanded_broadcast(store, token, 1).await;
    finish_one(store, finish(&only[0], FAILED)).await;
    search.jobs = Some(vec![root.job]);
    assert_eq!(dead(&search).await, [root.id]);
    super::stats::failures_are_dead_until_a_later_success(store, token).await;
    super::results::a_report_of_success_ends_a_dead_letter(store, token).await;
}
